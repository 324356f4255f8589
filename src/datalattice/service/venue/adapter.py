"""Adapters: what runs the operations of a venue, and what the venue gives them.

An adapter offers operations; the runner keeps the jobs. It calls `run` once the job is durably
STARTED, and what `run` returns is the output. It may call `run` again for the same job: after a
pause, and after a restart as the operation's rule says. Then `ask` returns the answers that were
given before, `invoke` finds the jobs that were begun before, and `effect_key` is what it was.

Source: docs/design/venue.md "Adapters".
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from datalattice.errors import OperationFailed, UsageError

T = TypeVar("T")

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
OperationMetadata: TypeAlias = Mapping[str, Json]
"""The metadata of an operation: the JSON object whose text is the asset."""

INPUT_REQUIRED: Final = "INPUT_REQUIRED"
AUTH_REQUIRED: Final = "AUTH_REQUIRED"

BLOCKING_THREADS: Final = 32
"""Blocking calls of adapters that run at once."""


class RecoveryRule(StrEnum):
    """What happens to a job that ran when the venue stopped."""

    RETRY = "retry"
    """Run it again: with the same effect keys its effects are those of once."""
    FAIL = "fail"
    """The job is FAILED: what it did is not known."""
    CHECK = "check"
    """Ask the adapter for the outcome of the effect key first."""


@dataclass(frozen=True, slots=True)
class VenueOperation:
    """An operation that an adapter offers.

    path: below `v/ops/`, such as "json/merge". metadata: the object of its asset; `name`,
    `description`, and `operation` with `adapter` ("json:merge"), `input`, `output`, `strict`,
    `secretFields`, `recover`. has_effects: on anything outside the job: without effects an
    interrupted job runs again, and need not be durably STARTED before it runs.
    recover: the rule for interrupted jobs; None: RETRY without effects, else FAIL.
    """

    path: str
    metadata: OperationMetadata
    has_effects: bool = True
    recover: RecoveryRule | None = None

    @property
    def rule(self) -> RecoveryRule:
        """What happens to its interrupted jobs."""
        if self.recover is not None:
            return self.recover
        return RecoveryRule.FAIL if self.has_effects else RecoveryRule.RETRY


class Known(StrEnum):
    """What is known of an effect."""

    DONE = "done"
    NONE = "none"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class EffectOutcome:
    """What an adapter found out about an effect. DONE: it ended, with a result or an error."""

    known: Known
    result: Json = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class JobResult:
    """How a job that another one invoked has ended. status: COMPLETE, FAILED, ... error: or ""."""

    id: bytes
    status: str
    output: Json = None
    error: str = ""


class JobContext(Protocol):
    """One job, as its adapter sees it. What it awaits is durable when it returns."""

    @property
    def id(self) -> bytes:
        """The job id, 16 bytes."""
        ...

    @property
    def caller(self) -> str:
        """The DID of the caller."""
        ...

    @property
    def grants(self) -> tuple[str, ...] | None:
        """What the credential of the call was narrowed to, as `r lattice/kv`; None: to nothing."""
        ...

    @property
    def attempt(self) -> int:
        """1 the first time that it runs, 2 after the first restart, ..."""
        ...

    @property
    def deadline_ms(self) -> int | None:
        """When the job ends as TIMEOUT, in Unix milliseconds."""
        ...

    @property
    def cancelled(self) -> bool:
        """Whether the job has ended or paused meanwhile: what `run` returns is dropped."""
        ...

    @property
    def saved(self) -> Json:
        """What `checkpoint` saved last, also in an earlier attempt; None if nothing."""
        ...

    def effect_key(self, name: str = "") -> bytes:
        """Return 32 bytes that name an effect of this job; the same in every attempt."""
        ...

    async def progress(self, members: Mapping[str, Json]) -> None:
        """Show members of the record: `message`, `output`, `steps`, `venue`, `remoteId`."""
        ...

    async def checkpoint(self, value: Json) -> None:
        """Save a value for a later attempt; it is never shown or sent."""
        ...

    async def ask(self, message: str, kind: str = INPUT_REQUIRED) -> Json:
        """Wait for a message of the caller, and return it. `message`: what is asked for.

        kind: INPUT_REQUIRED or AUTH_REQUIRED. The n-th call of a later attempt returns the n-th
        answer of the earlier one.
        """
        ...

    async def invoke(
        self,
        op: str,
        input: Json,
        *,
        key: str,
        venue: str | None = None,
        on_started: Callable[[bytes], None] = lambda _id: None,
    ) -> JobResult:
        """Run an operation as a job of the same caller; return how it ended.

        key: unlike those of the other jobs that this job invokes. A later attempt that gives the
        same key gets the job of the earlier one. venue: where to run it, by URL or DID.
        on_started: called with the id of the job. If this call is cancelled, so is that job.
        Raises: UsageError: the reference or the input is refused.
        """
        ...


class Adapter(Protocol):
    """What runs some operations. Its methods run on the event loop of the venue; see `Blocking`."""

    @property
    def name(self) -> str:
        """The type of the adapter: what stands before ":" in `operation.adapter`."""
        ...

    def operations(self) -> Sequence[VenueOperation]:
        """Return the operations for the catalogue of the venue."""
        ...

    def check(self, meta: OperationMetadata, input: Json) -> None:
        """Refuse an input before there is a job. Raises: UsageError: and why."""
        ...

    async def run(self, job: JobContext, meta: OperationMetadata, input: Json) -> Json:
        """Do the operation; return its output.

        Raises: OperationFailed: with the text for the caller. Another exception fails the job with
                its class name and text.
        """
        ...

    async def deliver(self, job: JobContext, message: Json) -> bool:
        """Take a message for a job that runs and asks nothing; return whether it was taken.

        One that is not taken waits for the next `ask`.
        """
        ...

    async def cancel(self, job: JobContext) -> None:
        """Stop the work outside this process, if it can: the job has been cancelled durably.

        `run` is cancelled first. There are 5 seconds.
        """
        ...

    async def outcome(self, effect_key: bytes) -> EffectOutcome:
        """Return what is known of an effect, for the rule `check`. The key: `effect_key()`."""
        ...

    def close(self) -> None:
        """Give back what it holds: no job of it runs any more."""
        ...


class PlainAdapter:
    """An adapter of which only `name`, `operations` and `run` are its own."""

    def check(self, meta: OperationMetadata, input: Json) -> None:
        """Accept every input."""

    async def deliver(self, job: JobContext, message: Json) -> bool:
        """Leave the message for `ask`."""
        return False

    async def cancel(self, job: JobContext) -> None:
        """Do nothing: `run` was cancelled."""

    async def outcome(self, effect_key: bytes) -> EffectOutcome:
        """Return that nothing is known."""
        return EffectOutcome(Known.UNKNOWN)

    def close(self) -> None:
        """Do nothing: it holds nothing."""


# --- adapters that block --------------------------------------------------------------------------


class BlockingJob:
    """A job as a blocking adapter sees it, in its thread. Methods wait as those of `JobContext`.

    Raises: OperationFailed: the job has ended meanwhile; the adapter ends as well.
    """

    def __init__(self, job: JobContext, loop: asyncio.AbstractEventLoop) -> None:
        self._job: Final = job
        self._loop: Final = loop
        self.id: Final = job.id
        self.caller: Final = job.caller
        self.attempt: Final = job.attempt
        self.deadline_ms: Final = job.deadline_ms
        self.saved: Final = job.saved

    @property
    def cancelled(self) -> bool:
        """Whether the job has ended or paused: look often, and return."""
        return self._job.cancelled

    def effect_key(self, name: str = "") -> bytes:
        """As `JobContext.effect_key`."""
        return self._job.effect_key(name)

    def progress(self, members: Mapping[str, Json]) -> None:
        """As `JobContext.progress`."""
        self._wait(self._job.progress(members))

    def checkpoint(self, value: Json) -> None:
        """As `JobContext.checkpoint`."""
        self._wait(self._job.checkpoint(value))

    def ask(self, message: str, kind: str = INPUT_REQUIRED) -> Json:
        """As `JobContext.ask`."""
        return self._wait(self._job.ask(message, kind))

    def invoke(self, op: str, input: Json, *, key: str, venue: str | None = None) -> JobResult:
        """As `JobContext.invoke`."""
        return self._wait(self._job.invoke(op, input, key=key, venue=venue))

    def _wait(self, call: Coroutine[Any, Any, T]) -> T:
        if self.cancelled:
            call.close()
            raise OperationFailed("the job has ended")
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()


class BlockingAdapter(Protocol):
    """As `Adapter`, with methods that block; each call runs in a thread."""

    @property
    def name(self) -> str:
        """As `Adapter.name`."""
        ...

    def operations(self) -> Sequence[VenueOperation]:
        """As `Adapter.operations`."""
        ...

    def check(self, meta: OperationMetadata, input: Json) -> None:
        """As `Adapter.check`; it does not block."""
        ...

    def run(self, job: BlockingJob, meta: OperationMetadata, input: Json) -> Json:
        """As `Adapter.run`. Nothing interrupts it: it looks at `job.cancelled`."""
        ...

    def deliver(self, job: BlockingJob, message: Json) -> bool:
        """As `Adapter.deliver`."""
        ...

    def cancel(self, job: BlockingJob) -> None:
        """As `Adapter.cancel`."""
        ...

    def outcome(self, effect_key: bytes) -> EffectOutcome:
        """As `Adapter.outcome`."""
        ...


class Blocking:
    """An `Adapter` of one that blocks."""

    def __init__(self, adapter: BlockingAdapter, threads: int = BLOCKING_THREADS) -> None:
        """threads: in which calls run, 1 or more; further ones wait."""
        if threads < 1:
            raise UsageError(f"threads: 1 or more, got {threads}")
        self._adapter: Final = adapter
        self._pool: Final = ThreadPoolExecutor(threads, f"venue-{adapter.name}")
        # Apart, because all others may be in `run`.
        self._control: Final = ThreadPoolExecutor(2, f"venue-{adapter.name}-control")
        self.operations: Final = adapter.operations
        self.check: Final = adapter.check

    @property
    def name(self) -> str:
        """The type of the adapter."""
        return self._adapter.name

    async def run(self, job: JobContext, meta: OperationMetadata, input: Json) -> Json:
        """Run it in a thread, which may go on after this is cancelled."""
        call = partial(self._adapter.run, _blocking(job), meta, input)
        return await asyncio.get_running_loop().run_in_executor(self._pool, call)

    async def deliver(self, job: JobContext, message: Json) -> bool:
        """As `Adapter.deliver`, in a thread."""
        return await self._soon(partial(self._adapter.deliver, _blocking(job), message))

    async def cancel(self, job: JobContext) -> None:
        """As `Adapter.cancel`, in a thread."""
        await self._soon(partial(self._adapter.cancel, _blocking(job)))

    async def outcome(self, effect_key: bytes) -> EffectOutcome:
        """As `Adapter.outcome`, in a thread."""
        return await self._soon(partial(self._adapter.outcome, effect_key))

    def _soon(self, call: Callable[[], T]) -> Awaitable[T]:
        return asyncio.get_running_loop().run_in_executor(self._control, call)

    def close(self) -> None:
        """End the threads that are idle; a call under way ends by itself."""
        with suppress(RuntimeError):
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._control.shutdown(wait=False, cancel_futures=True)


def _blocking(job: JobContext) -> BlockingJob:
    return BlockingJob(job, asyncio.get_running_loop())
