"""Adapter `spark`: which arguments a caller may give, what it shows, and how a job is cancelled."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from datalattice.errors import UsageError
from datalattice.service.venue import OperationFailed, OperationMetadata, RecoveryRule
from datalattice.service.venue.adapters.spark import SparkAdapter, SparkOffer
from datalattice.testing.venue_kit import LoneJob

TAG = LoneJob().effect_key().hex()


@dataclass
class Session:
    """What the adapter asks of a session of Spark Connect."""

    tags: set[str] = field(default_factory=set)
    interrupted: list[str] = field(default_factory=list)
    was_interrupted: threading.Event = field(default_factory=threading.Event)
    formats: list[str] = field(default_factory=list)

    @property
    def dataSource(self) -> Any:  # noqa: N802 - Spark's name
        return SimpleNamespace(register=lambda source: self.formats.append(source.name()))

    def addTag(self, tag: str) -> None:  # noqa: N802 - Spark's name
        self.tags.add(tag)

    def removeTag(self, tag: str) -> None:  # noqa: N802 - Spark's name
        self.tags.remove(tag)

    def interruptTag(self, tag: str) -> list[str]:  # noqa: N802 - Spark's name
        self.interrupted.append(tag)
        self.was_interrupted.set()
        return []


Session.__module__ = "pyspark.sql.connect.session"


class Report:
    def __init__(self, document: Any) -> None:
        self.document = document

    def as_json(self) -> Any:
        return self.document


def meta(name: str) -> OperationMetadata:
    return {"operation": {"adapter": f"spark:{name}"}}


def adapter(session: Any, job: Callable[..., Any], **more: Any) -> SparkAdapter:
    return SparkAdapter([SparkOffer("job", job, **more)], lambda: session)


def run(session: Session, job: Callable[..., Any], given: Any = None, **more: Any) -> Any:
    runner, shown = adapter(session, job, **more), LoneJob()
    try:
        runner.check(meta("job"), given or {})
        return asyncio.run(runner.run(shown, meta("job"), given or {})), shown.shown
    finally:
        runner.close()


def test_a_session_has_the_formats_and_is_ended_if_it_was_started() -> None:
    session, ended = Session(), list[Any]()
    given: Any = session

    def job(_spark: Any, **_: Any) -> Report:
        return Report({})

    def used(times: int) -> SparkAdapter:
        runner = SparkAdapter([SparkOffer("job", job)], lambda: given, end=ended.append)
        for _ in range(times):
            asyncio.run(runner.run(LoneJob(), meta("job"), {}))
        return runner

    used(0).close()
    assert (session.formats, ended) == ([], [])
    runner = used(2)
    assert session.formats.count("lattice.queue") == 2
    runner.close()
    runner.close()
    assert ended == [session]


def test_a_job_gets_fixed_and_open_arguments_and_its_tag() -> None:
    session = Session()

    def job(spark: Any, **arguments: Any) -> Report:
        arguments.pop("progress")
        return Report({"arguments": arguments, "tags": sorted(spark.tags)})

    made, _ = run(
        session, job, {"topic": "a"}, fixed={"store": "data"}, open={"topic": {}}, once=True
    )
    assert made == {
        "arguments": {"topic": "a", "store": "data", "write_id": TAG},
        "tags": [TAG],
    }
    assert session.tags == set()
    assert "lattice.queue" in session.formats, "jobs of this package read through its formats"


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"store": "/etc"}, "unknown member 'store'; known: topic"),
        ({"write_id": "x"}, "unknown member 'write_id'"),
        ([], "the input is an object with topic"),
    ],
)
def test_a_caller_cannot_give_other_arguments(given: Any, named: str) -> None:
    offer = adapter(None, Report, fixed={"store": "data"}, open={"topic": {}})
    with pytest.raises(UsageError, match=named):
        offer.check(meta("job"), given)
    with pytest.raises(UsageError, match="spark:job, got 'spark:other'"):
        offer.check(meta("other"), {})


def test_the_newest_progress_is_shown() -> None:
    def job(_spark: Any, progress: Any) -> Report:
        progress("merge", 1, None)
        progress("merge", 2, 2)
        return Report({})

    async def shown_progress() -> list[Any]:
        told = asyncio.Event()

        class Job(LoneJob):
            async def progress(self, members: Any) -> None:
                await super().progress(members)
                told.set()

        def waiting(spark: Any, progress: Any) -> Report:
            report = job(spark, progress)
            asyncio.run_coroutine_threadsafe(told.wait(), loop).result()
            return report

        loop, shown = asyncio.get_running_loop(), Job()
        runner = adapter(Session(), waiting)
        await runner.run(shown, meta("job"), {})
        runner.close()
        return shown.shown

    assert asyncio.run(shown_progress())[-1] == {"message": "merge: 2 of 2 tasks"}


def test_cancelling_the_job_interrupts_its_tag_until_it_ends() -> None:
    session, started = Session(), threading.Event()

    def job(_spark: Any, **_arguments: Any) -> Report:
        started.set()
        session.was_interrupted.wait()
        raise RuntimeError("Spark: cancelled")

    async def cancel() -> None:
        runner = adapter(session, job)
        running = asyncio.create_task(runner.run(LoneJob(), meta("job"), {}))
        await asyncio.to_thread(started.wait)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        runner.close()

    asyncio.run(cancel())
    assert set(session.interrupted) == {TAG}
    assert session.tags == set()


def test_a_failure_is_that_of_the_job() -> None:
    def job(_spark: Any, **_arguments: Any) -> Report:
        raise UsageError("topic: there is none")

    session = Session()
    with pytest.raises(UsageError, match="topic: there is none"):
        run(session, job)
    assert session.tags == set()
    with pytest.raises(OperationFailed, match="not JSON"):
        run(session, lambda _spark, **_: Report({"frame": object()}))


def test_a_job_that_writes_once_runs_again() -> None:
    offers = [SparkOffer("once", Report, once=True), SparkOffer("other", Report)]
    once, other = SparkAdapter(offers, Session).operations()  # type: ignore[arg-type]
    assert (once.path, once.has_effects, once.rule) == ("spark/once", True, RecoveryRule.RETRY)
    assert (other.path, other.has_effects, other.rule) == ("spark/other", True, RecoveryRule.FAIL)


def test_an_offer_has_one_meaning() -> None:
    with pytest.raises(UsageError, match="the name of a job"):
        SparkOffer("A job", Report)
    with pytest.raises(UsageError, match="'a' is set by the venue, or is in both"):
        SparkOffer("job", Report, fixed={"a": 1}, open={"a": {}})
    with pytest.raises(UsageError, match="'write_id' is set by the venue"):
        SparkOffer("job", Report, open={"write_id": {}})
    with pytest.raises(UsageError, match="two jobs have the name 'a'"):
        SparkAdapter([SparkOffer("a", Report), SparkOffer("a", Report)], Session)  # type: ignore[arg-type]
