"""Adapter: the interface of what runs the operations of a venue, and of a job that it runs.

An adapter offers operations; the runner keeps the jobs. It calls `run` when the job is durably
STARTED; the value that `run` returns is the output of the job. It may call `run` again for the same
job: after a pause, and after a restart if the operation's rule says so. Then `ask` returns the
earlier answers, `invoke` finds the earlier jobs, and `effect_key` returns the same keys.

Source: docs/design/venue.md "Adapters".
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
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
"""Most concurrent calls of one blocking adapter."""


class RecoveryRule(StrEnum):
    """What the venue does with a job that ran when it stopped."""

    RETRY = "retry"
    """Run it again: with the same effect keys it has the effects of one run."""
    FAIL = "fail"
    """End it as FAILED: its effects are unknown."""
    CHECK = "check"
    """Ask the adapter for the outcome of the effect key first."""


@dataclass(frozen=True, slots=True)
class VenueOperation:
    """An operation that an adapter offers.

    path: below `v/ops/`, such as "json/merge". metadata: the object of its asset; `name`,
    `description`, and `operation` with `adapter` ("json:merge"), `input`, `output`, `strict`,
    `secretFields`, `recover`. has_effects: whether it changes anything outside the job; if not, a
    job may run before it is durably STARTED, and runs again after an interruption.
    recover: the rule for interrupted jobs; None: RETRY without effects, else FAIL.
    """

    path: str
    metadata: OperationMetadata
    has_effects: bool = True
    recover: RecoveryRule | None = None

    @property
    def rule(self) -> RecoveryRule:
        """The rule for its interrupted jobs."""
        if self.recover is not None:
            return self.recover
        # "`fail` | is FAILED; with effects this is the default" (docs/design/venue.md "Adapters").
        return RecoveryRule.FAIL if self.has_effects else RecoveryRule.RETRY


class Known(StrEnum):
    """Whether an effect happened."""

    DONE = "done"
    NONE = "none"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class EffectOutcome:
    """An adapter's knowledge of an effect. DONE: it ended, with a result or an error."""

    known: Known
    result: Json = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class JobResult:
    """The end of a job that another job invoked. status: such as COMPLETE. error: "" for none."""

    id: bytes
    status: str
    output: Json = None
    error: str = ""


class JobContext(Protocol):
    """One job, for its adapter. Awaited methods return when their effect is durable."""

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
        """The grants that narrow the caller's credential, as `r lattice/kv`; None: not narrowed."""
        ...

    @property
    def attempt(self) -> int:
        """The number of this run: 1, then 2 after the first restart, ..."""
        ...

    @property
    def deadline_ms(self) -> int | None:
        """The time at which the job ends as TIMEOUT, in Unix milliseconds; None: never."""
        ...

    @property
    def cancelled(self) -> bool:
        """Whether the job has ended or paused: the result of this run is dropped."""
        ...

    @property
    def saved(self) -> Json:
        """The last value of `checkpoint`, of an earlier attempt, too; None: there is none."""
        ...

    def effect_key(self, name: str = "") -> bytes:
        """Return 32 bytes that name an effect of this job; the same in every attempt."""
        ...

    async def progress(self, members: Mapping[str, Json]) -> None:
        """Set members of the record: `message`, `output`, `steps`, `venue`, `remoteId`."""
        ...

    async def checkpoint(self, value: Json) -> None:
        """Save a value for a later attempt; it stays private to this node."""
        ...

    async def ask(self, message: str, kind: str = INPUT_REQUIRED) -> Json:
        """Wait for a message of the caller, and return it. message: the question.

        kind: INPUT_REQUIRED or AUTH_REQUIRED. In a later attempt the n-th call returns the n-th
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
        """Run an operation as a job of the same caller; return its end.

        key: names the job among those that this job invokes; in a later attempt the same key gives
        the earlier job. venue: the venue that runs it, by URL or DID; None: this one. on_started:
        called with the id of the job. Cancelling this call cancels the job.
        Raises: UsageError: the reference or the input is refused.
        """
        ...


class Adapter(Protocol):
    """Runs operations of one type, on the event loop of the venue; `Blocking` for threads."""

    @property
    def name(self) -> str:
        """The type of the adapter: the part before ":" in `operation.adapter`."""
        ...

    def operations(self) -> Sequence[VenueOperation]:
        """Return the operations for the catalogue of the venue."""
        ...

    def check(self, meta: OperationMetadata, input: Json) -> None:
        """Check an input before a job is made. Raises: UsageError: it is refused."""
        ...

    async def run(self, job: JobContext, meta: OperationMetadata, input: Json) -> Json:
        """Do the operation; return its output.

        Raises: OperationFailed: the job fails with this text. Any other exception fails the job
                with its class name and text.
        """
        ...

    async def deliver(self, job: JobContext, message: Json) -> bool:
        """Offer a message to a running job that has no question open; return whether it took it.

        A message that it does not take waits for the next `ask`.
        """
        ...

    async def cancel(self, job: JobContext) -> None:
        """Stop work of a durably cancelled job outside this process, where that is possible.

        `run` is cancelled first. The call has 5 seconds.
        """
        ...

    async def outcome(self, effect_key: bytes) -> EffectOutcome:
        """Return the outcome of an effect, for the rule `check`. effect_key: of `effect_key()`."""
        ...

    def close(self) -> None:
        """Release resources; no job of this adapter runs any more."""
        ...


class PlainAdapter:
    """Base of adapters that define only `name`, `operations` and `run`."""

    def check(self, meta: OperationMetadata, input: Json) -> None:
        """Accept every input."""

    async def deliver(self, job: JobContext, message: Json) -> bool:
        """Leave the message for `ask`."""
        return False

    async def cancel(self, job: JobContext) -> None:
        """Do nothing: the venue has cancelled `run`."""

    async def outcome(self, effect_key: bytes) -> EffectOutcome:
        """Return UNKNOWN."""
        return EffectOutcome(Known.UNKNOWN)

    def close(self) -> None:
        """Do nothing: there is nothing to release."""


# --- adapters that block --------------------------------------------------------------------------


class BlockingJob:
    """A job for a blocking adapter, in its thread; methods block as those of `JobContext` await.

    Raises: OperationFailed: the job has ended; the adapter should return.
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
        """Whether the job has ended or paused: check it often, and return if it has."""
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
        # A thread cannot be interrupted, so each of its calls ends it once the job has ended.
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
        """As `Adapter.run`. A thread cannot be interrupted: check `job.cancelled`."""
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
    """Makes an `Adapter` of a blocking one: its calls run in threads."""

    def __init__(self, adapter: BlockingAdapter, threads: int = BLOCKING_THREADS) -> None:
        """threads: most concurrent calls, 1 or more; further calls wait."""
        if threads < 1:
            raise UsageError(f"threads: 1 or more, got {threads}")
        self._adapter: Final = adapter
        self._pool: Final = ThreadPoolExecutor(threads, f"venue-{adapter.name}")
        # Threads of their own for short calls: all of the pool may be busy in `run`.
        self._control: Final = ThreadPoolExecutor(2, f"venue-{adapter.name}-control")
        self.operations: Final = adapter.operations
        self.check: Final = adapter.check

    @property
    def name(self) -> str:
        """The type of the adapter."""
        return self._adapter.name

    async def run(self, job: JobContext, meta: OperationMetadata, input: Json) -> Json:
        """As `Adapter.run`, in a thread, which may go on after this call is cancelled."""
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
        """End the idle threads; running calls end by themselves."""
        # Without waiting: a call that hangs must not keep the venue from ending.
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._control.shutdown(wait=False, cancel_futures=True)


def _blocking(job: JobContext) -> BlockingJob:
    return BlockingJob(job, asyncio.get_running_loop())
