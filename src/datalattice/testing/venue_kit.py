"""Venue kit: adapters and jobs for tests, and a venue on virtual time that may crash."""

from __future__ import annotations

import asyncio
import selectors
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from hashlib import sha256
from typing import Any, TypeVar

from datalattice.apps.grid import GRID, GRID_SECTION, VENUE, Venue, part_of
from datalattice.cells import Keyword, Signed
from datalattice.crypto import KeyPair
from datalattice.cursors import LatticeCursor, RootLattice
from datalattice.errors import UsageError
from datalattice.lattice import LOCAL_KEY, LOCAL_LATTICE, KeyedLattice, MergeContext, did_of
from datalattice.service.venue import (
    INPUT_REQUIRED,
    VENUE_LIMITS,
    Adapter,
    EffectOutcome,
    GridJobs,
    JobBatch,
    JobContext,
    JobResult,
    Json,
    Known,
    OperationFailed,
    OperationMetadata,
    PlainAdapter,
    RecoveryRule,
    VenueLimits,
    VenueOperation,
    VenueRunner,
)
from datalattice.testing.dice import Dice

T = TypeVar("T")


class EchoAdapter(PlainAdapter):
    """Returns its input, or fails with the text in it."""

    name = "echo"

    def operations(self) -> Sequence[VenueOperation]:
        """Return `echo/back`, and `echo/fail`, whose input has the `text` of the error."""
        return (
            VenueOperation(
                "echo/back",
                {"name": "Back", "operation": {"adapter": "echo:back"}},
                has_effects=False,
            ),
            VenueOperation(
                "echo/fail",
                {"name": "Fail", "operation": {"adapter": "echo:fail"}},
                has_effects=False,
            ),
        )

    def check(self, meta: OperationMetadata, input: Json) -> None:
        if _sub(meta) == "fail" and not (isinstance(input, dict) and input.get("text")):
            raise UsageError("input: an object with `text`, the text of the error")

    async def run(self, job: object, meta: OperationMetadata, input: Json) -> Json:
        if _sub(meta) == "fail":
            assert isinstance(input, dict)
            raise OperationFailed(str(input["text"]))
        return input


def _sub(meta: OperationMetadata) -> str:
    operation = meta["operation"]
    assert isinstance(operation, dict)
    return str(operation["adapter"]).partition(":")[2]


class LoneJob:
    """A `JobContext` without a venue: it keeps what an adapter does with it.

    answers: what `ask` returns, in order. invoked: does what `invoke` asks for.
    """

    def __init__(
        self,
        answers: Sequence[Json] = (),
        invoked: Callable[[str, Json], JobResult] | None = None,
        *,
        attempt: int = 1,
        saved: Json = None,
        deadline_ms: int | None = None,
    ) -> None:
        self.id = bytes(16)
        self.caller = "did:key:z6MkCaller"
        self.grants: tuple[str, ...] | None = None
        self.attempt = attempt
        self.deadline_ms = deadline_ms
        self.cancelled = False
        self.saved = saved
        self.shown: list[dict[str, Json]] = []
        self.asked: list[tuple[str, str]] = []
        self.begun: list[tuple[str, str, Json, str | None]] = []
        self._answers = list(answers)
        self._invoked = invoked

    def effect_key(self, name: str = "") -> bytes:
        return sha256(name.encode()).digest()

    async def progress(self, members: Mapping[str, Json]) -> None:
        self.shown.append(dict(members))

    async def checkpoint(self, value: Json) -> None:
        self.saved = value

    async def ask(self, message: str, kind: str = INPUT_REQUIRED) -> Json:
        self.asked.append((kind, message))
        return self._answers.pop(0)

    async def invoke(
        self,
        op: str,
        input: Json,
        *,
        key: str,
        venue: str | None = None,
        on_started: Callable[[bytes], None] = lambda _id: None,
    ) -> JobResult:
        assert self._invoked is not None, f"nothing does {op}"
        self.begun.append((key, op, input, venue))
        on_started(sha256(key.encode()).digest()[:16])
        return self._invoked(op, input)


def spoil_venue(hostile: Venue, key_pair: KeyPair, forged: Sequence[bytes], victim: bytes) -> None:
    """Write into a node's own grid what no honest venue does.

    key_pair: of the venue, which signs another text and another content than their hashes say.
    forged, victim: public keys of others; a state below each of the former is signed by the wrong
    key, and the one below the latter says that its key has signed it.
    """
    venues, meta = Keyword("venues"), Keyword("meta")
    tampered, content = sha256(b"one").digest(), sha256(b"two").digest()
    own = hostile.view()[hostile.did]
    for part, key, value in (
        (Keyword("assets"), tampered, {"metadata": "{}"}),
        (Keyword("storage"), content, b"other"),
    ):
        own = own.put(part, part_of(own, part).put(key, value))
    signed = Signed.sign(key_pair, VENUE.zero())
    broken = Signed(victim, signed.signature, signed.value)
    hostile.cursor.assoc_in(Signed.sign(key_pair, own), venues, hostile.did)
    for other in forged:
        hostile.cursor.assoc_in(signed, venues, did_of(other))
    hostile.cursor.assoc_in(broken, venues, did_of(victim))
    hostile.cursor.assoc_in('{"name":"tampered"}', meta, tampered)


# --- a venue on virtual time ----------------------------------------------------------------------


def venue_root(key_pair: KeyPair) -> LatticeCursor:
    """Return a root in memory with a grid and a local section."""
    lattice = KeyedLattice({GRID_SECTION: GRID, LOCAL_KEY: LOCAL_LATTICE})
    return RootLattice(lattice, lattice.zero(), MergeContext(key_pair=key_pair))


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time jumps to the next timer when nothing else is ready."""

    def __init__(self) -> None:
        self.now_s = 1_000.0
        super().__init__(_JumpingSelector(self))

    def time(self) -> float:
        return self.now_s


class _JumpingSelector(selectors.SelectSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(0)
        if not found:
            assert timeout is not None, "everything waits, and no timer is set"
            self._loop.now_s += timeout
        return found


class LoopClock:
    """The wall clock of a virtual loop, in Unix milliseconds."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def now_ms(self) -> int:
        # Rounded: the float of a timer may be just below its millisecond.
        return round(self._loop.now_s * 1_000)


class LedgerAdapter(PlainAdapter):
    """Operations whose effects are in a list outside the venue.

    `ledger/RULE`: has one effect, waits `ms`, and returns how many effects its key has had; with
    `ask`, it asks before the effect and returns the answer, too. `ledger/pure`: without effects.
    `ledger/parent`: invokes `ledger/check` for each of `parts`, one after the other.
    """

    name = "ledger"

    def __init__(self) -> None:
        self.effects: list[bytes] = []
        self.cancelled: list[bytes] = []
        self.runs: Counter[bytes] = Counter()

    def operations(self) -> Sequence[VenueOperation]:
        rules = [(rule.value, True, rule) for rule in RecoveryRule]
        others = [("pure", False, None), ("parent", False, None), ("secret", False, None)]
        return [
            VenueOperation(
                f"ledger/{name}",
                {
                    "name": name,
                    "operation": {"adapter": f"ledger:{name}", "secretFields": ["pin"]},
                },
                has_effects,
                rule,
            )
            for name, has_effects, rule in rules + others
        ]

    async def run(self, job: JobContext, meta: OperationMetadata, input: Json) -> Json:
        assert isinstance(input, dict)
        self.runs[job.id] += 1
        if _sub(meta) == "parent":
            return await self._parts(job, input)
        answer: Json = None
        if "ask" in input:
            answer = await job.ask(str(input["ask"]))
        if _sub(meta) in list(RecoveryRule):
            self.effects.append(job.effect_key())
        ms = input.get("ms")
        assert isinstance(ms, int | None)
        await asyncio.sleep((ms or 0) / 1_000)
        if input.get("fail"):
            raise OperationFailed(str(input["fail"]))
        found: dict[str, Json] = {"times": self.effects.count(job.effect_key()), "answer": answer}
        return found | {name: input[name] for name in ("pin",) if name in input}

    async def _parts(self, job: JobContext, input: dict[str, Json]) -> Json:
        parts = input["parts"]
        found: list[Json] = []
        assert isinstance(parts, list)
        for number, part in enumerate(parts):
            result = await job.invoke("v/ops/ledger/check", part, key=str(number))
            found.append({"status": result.status, "error": result.error})
            await job.progress({"message": f"{number + 1} done"})
        return found

    async def cancel(self, job: JobContext) -> None:
        self.cancelled.append(job.id)

    async def outcome(self, effect_key: bytes) -> EffectOutcome:
        if effect_key in self.effects:
            return EffectOutcome(Known.DONE, {"found": True})
        return EffectOutcome(Known.NONE)


class VenueCrashed(Exception):
    """The venue's process ended at a commit."""


class VenueLife:
    """One life of a venue's process, on virtual time, over a root that outlives it.

    A commit takes a virtual millisecond. crash_at: the number of the commit at which it ends, from
    1; None: never. is_after: once that commit is durable, not before.
    """

    def __init__(
        self,
        root: LatticeCursor,
        key_pair: KeyPair,
        adapters: Sequence[Adapter],
        *,
        crash_at: int | None = None,
        is_after: bool = False,
        limits: VenueLimits = VENUE_LIMITS,
        start_s: float = 1_000.0,
    ) -> None:
        self.loop = VirtualLoop()
        self.loop.now_s = start_s
        self.clock = LoopClock(self.loop)
        self.storage = GridJobs(root, key_pair, clock=self.clock)
        self.commits = 0
        self.failures: list[Exception] = []
        """Raised by the next commits instead of writing."""
        self._crash_at = crash_at
        self._is_after = is_after
        self._write = self.storage.write
        self.storage.write = self._commit  # type: ignore[method-assign]
        self.runner = VenueRunner(
            self.storage,
            adapters,
            clock=self.clock,
            entropy=Dice(7),
            limits=limits,
            off_loop=self._off_loop,
        )
        self.crashed = asyncio.Event()

    def _commit(self, batch: JobBatch) -> None:
        self.commits += 1
        if self.failures:
            raise self.failures.pop(0)
        is_last = self.commits == self._crash_at
        if not is_last or self._is_after:
            self._write(batch)
        if is_last:
            raise VenueCrashed

    async def _off_loop(self, call: Callable[[], Any]) -> Any:
        if self.crashed.is_set():
            await asyncio.Event().wait()
        await asyncio.sleep(0.001)
        try:
            return call()
        except VenueCrashed:
            self.crashed.set()
            await asyncio.Event().wait()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do work on the loop.

        Raises: VenueCrashed: the process ended before it was done.
        """
        return self.loop.run_until_complete(self._unless_crashed(work))

    async def _unless_crashed(self, work: Coroutine[Any, Any, T]) -> T:
        task = asyncio.ensure_future(work)
        crash = asyncio.ensure_future(self.crashed.wait())
        await asyncio.wait([task, crash], return_when=asyncio.FIRST_COMPLETED)
        crash.cancel()
        if not task.done():
            raise VenueCrashed
        return task.result()

    def pass_ms(self, ms: int) -> None:
        """Let virtual time pass."""
        self.run(asyncio.sleep(ms / 1_000))

    def until(self, is_so: Callable[[], bool]) -> None:
        """Let time pass, a millisecond at a time, until `is_so` holds; a minute at most."""
        for _ in range(60_000):
            if is_so():
                return
            self.pass_ms(1)
        raise AssertionError("a minute has passed")

    def end(self) -> None:
        """End the process as it is: nothing more is written."""
        self.crashed.set()
        self._crash_at, self._is_after = self.commits + 1, False
        while left := asyncio.all_tasks(self.loop):  # tasks that end may begin others
            for task in left:
                task.cancel()
            self.loop.run_until_complete(asyncio.wait(left))
            for task in left:
                if not task.cancelled():
                    task.exception()
        self.loop.close()
