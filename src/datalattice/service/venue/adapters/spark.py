"""Adapter `spark`: runs jobs of this package on Spark, which the operator offers.

All work of a job on Spark has the job's effect key as tag, by which it is found and cancelled.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from datalattice.errors import UsageError
from datalattice.pipeline import clear_errors, register
from datalattice.pipeline.jobs import cancel_tagged, spark_errors, tagged
from datalattice.service.venue import (
    JobContext,
    Json,
    OperationFailed,
    OperationMetadata,
    PlainAdapter,
    RecoveryRule,
    VenueOperation,
)
from datalattice.service.venue.adapters.inputs import check_offer_name, members, sub_operation
from datalattice.service.venue.adapters.python import checked_result

if TYPE_CHECKING:
    from datalattice.pipeline import SparkSession

_INTERRUPT_S: Final = 0.2
"""Seconds between interrupts of a cancelled job, which may be between two stages."""

SPARK_JOBS_AT_ONCE: Final = 2
"""Concurrent jobs of a venue on Spark; further ones wait."""


class Reported(Protocol):
    """The report that a job on Spark returns, such as `LoadReport`."""

    def as_json(self) -> Mapping[str, object]:
        """Return the report as a JSON document."""
        ...


@dataclass(frozen=True, slots=True)
class SparkOffer:
    """A job that callers may run as `spark/<name>`.

    job: a function of `datalattice.pipeline.jobs`, or another that takes a session, these arguments
    and `progress`. fixed: arguments that the operator sets, among them all paths. open: arguments
    that callers may give, with their JSON Schemas by name. once: the job takes `write_id`, so that
    repeated runs write its result once; an interrupted job then runs again.
    Raises: UsageError: the name has another form, or an argument is both fixed and open.
    """

    name: str
    job: Callable[..., Reported]
    description: str = ""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    open: Mapping[str, Json] = field(default_factory=dict)
    once: bool = False

    def __post_init__(self) -> None:
        check_offer_name("job", self.name)
        for name in (*self.open, *self.fixed):
            if name in {"spark", "progress", "write_id"} or (
                name in self.open and name in self.fixed
            ):
                raise UsageError(
                    f"the argument {name!r} is set by the venue, or is in both `fixed` and `open`"
                )


class SparkAdapter(PlainAdapter):
    """Runs `spark:<name>`.

    session: returns the Spark session; the first job starts it and registers the formats of this
    package. at_once: concurrent jobs. end: ends a started session when the adapter closes.
    Raises: UsageError: two jobs have one name.
    """

    name = "spark"

    def __init__(
        self,
        offers: Iterable[SparkOffer],
        session: Callable[[], SparkSession],
        at_once: int = SPARK_JOBS_AT_ONCE,
        end: Callable[[SparkSession], None] | None = None,
    ) -> None:
        self._offers: Final[dict[str, SparkOffer]] = {}
        for one in offers:
            # The name is the path of the operation, `spark/<name>`.
            if one.name in self._offers:
                raise UsageError(f"two jobs have the name {one.name!r}")
            self._offers[one.name] = one
        self._session: Final = session
        self._end: Final = end
        self._started: SparkSession | None = None
        self._turns: Final = asyncio.Semaphore(at_once)
        self._threads: Final = ThreadPoolExecutor(at_once, "venue-spark")
        self._starting: Final = threading.Lock()

    def operations(self) -> Sequence[VenueOperation]:
        """Return an operation for each job."""
        return [
            VenueOperation(
                f"spark/{one.name}",
                {
                    "name": one.name,
                    "description": one.description,
                    "operation": {
                        "adapter": f"spark:{one.name}",
                        "input": {"type": "object", "properties": dict(one.open)},
                    },
                },
                # Run again, a job without a `write_id` could write its result twice.
                recover=RecoveryRule.RETRY if one.once else RecoveryRule.FAIL,
            )
            for one in self._offers.values()
        ]

    def check(self, meta: OperationMetadata, input: Json) -> None:
        """Refuse an unknown job, and arguments that are not open to callers."""
        self._arguments(meta, input)

    async def run(self, job: JobContext, meta: OperationMetadata, input: Json) -> Json:
        """Run the job, with its progress as `message`; return its report.

        Raises: OperationFailed: Spark or the job failed. UsageError: it refuses its arguments, or
                Spark or Java is missing.
        """
        offer, arguments = self._arguments(meta, input)
        tag = job.effect_key().hex()
        # The same text at each attempt of a job, so a repeated run writes its result once.
        if offer.once:
            arguments["write_id"] = tag
        async with self._turns:
            run = _SparkRun(offer, arguments, tag)
            loop = asyncio.get_running_loop()
            telling = asyncio.create_task(run.tell(job))
            call = loop.run_in_executor(self._threads, run.call, self._start)
            try:
                return checked_result(await asyncio.shield(call))
            finally:
                # A thread cannot be cancelled: interrupt the work on Spark until its call returns.
                while not call.done():
                    await asyncio.to_thread(run.interrupt)
                    await asyncio.wait([call], timeout=_INTERRUPT_S)
                # Retrieved, since asyncio logs an exception that is not.
                call.exception()
                telling.cancel()
                await asyncio.gather(telling, return_exceptions=True)

    def close(self) -> None:
        """End the threads when their jobs have ended, and the session."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        with self._starting:
            if self._end is not None and self._started is not None:
                self._end(self._started)
            self._started = None

    def _start(self) -> SparkSession:
        with self._starting:  # so that one Java is started
            spark = self._session()
            register(spark)  # for each thread: it may have a session of its own
            self._started = spark
            return spark

    def _arguments(self, meta: OperationMetadata, given: Json) -> tuple[SparkOffer, dict[str, Any]]:
        offer = self._offers[sub_operation(meta, self._offers)]
        # The fixed arguments last: no caller replaces what the operator set.
        return offer, {**members(given, offer.open), **offer.fixed}


class _SparkRun:
    """One run of a job."""

    def __init__(self, offer: SparkOffer, arguments: Mapping[str, Any], tag: str) -> None:
        self._offer: Final = offer
        self._arguments: Final = arguments
        self._tag: Final = tag
        self._spark: SparkSession | None = None
        self._interrupted = False
        self._message = ""
        self._news: Final = asyncio.Event()
        self._loop: Final = asyncio.get_running_loop()

    def call(self, start: Callable[[], SparkSession]) -> dict[str, object]:
        """Run the job in this thread."""
        spark = start()
        with tagged(spark, self._tag):
            self._spark = spark
            # Cancelled while the session started, when there was no work to interrupt.
            if self._interrupted:
                raise OperationFailed("the job was cancelled")
            with spark_errors(), clear_errors():
                report = self._offer.job(spark, **self._arguments, progress=self._progress)
            return dict(report.as_json())

    def interrupt(self) -> None:
        """Cancel the running work on Spark."""
        self._interrupted = True
        if self._spark is not None:
            cancel_tagged(self._spark, self._tag)

    def _progress(self, step: str, done: int, total: int | None) -> None:
        self._message = f"{step}: {done} of {'?' if total is None else total} tasks"
        self._loop.call_soon_threadsafe(self._news.set)

    async def tell(self, job: JobContext) -> None:
        """Write the newest progress to the record, one write at a time."""
        while True:
            await self._news.wait()
            self._news.clear()
            await job.progress({"message": self._message})
