"""A job of a venue on a real Spark: its report, its progress, its tag, and its end."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest

import datalattice
from datalattice.service.venue import OperationMetadata
from datalattice.service.venue.adapters import SparkAdapter, SparkOffer
from datalattice.testing.venue_kit import LoneJob

pytest.importorskip("pyspark")
pytestmark = [pytest.mark.once, pytest.mark.spark, pytest.mark.timeout(120)]


def meta(name: str) -> OperationMetadata:
    return {"operation": {"adapter": f"spark:{name}"}}


def test_a_load_writes_its_rows_once_however_often_it_runs(spark: Any, tmp_path: Path) -> None:
    from datalattice.pipeline.jobs import load

    rows = tmp_path / "rows.json"
    rows.write_text("\n".join(json.dumps({"n": n}) for n in range(10)))
    with datalattice.open(tmp_path / "data"):
        pass  # makes the key
    fixed = {"paths": [str(rows)], "store": str(tmp_path / "data")}
    offer = SparkOffer("load", load, fixed=fixed, open={"topic": {"type": "string"}}, once=True)
    adapter = SparkAdapter([offer], lambda: spark)

    async def run() -> list[Any]:
        return [await adapter.run(LoneJob(), meta("load"), {"topic": "t"}) for _ in range(2)]

    reports = asyncio.run(run())
    adapter.close()
    assert [report["rows"] for report in reports] == [10, 10]
    with datalattice.open(tmp_path / "data") as node:
        assert len(list(node.topic("t").partition(0).entries())) == 10


def test_cancelling_ends_what_runs_on_spark(spark: Any) -> None:
    started = threading.Event()

    def slow(spark: Any, **_arguments: Any) -> Any:
        from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

        threading.Timer(0.5, started.set).start()  # when it runs on Spark, or soon will
        # Some years of work, which only a cancel ends.
        numbers = spark.range(1 << 50).select(F.sum(F.hash("id")))
        return numbers.collect()

    adapter = SparkAdapter([SparkOffer("slow", slow)], lambda: spark)

    async def run() -> None:
        running = asyncio.create_task(adapter.run(LoneJob(), meta("slow"), {}))
        await asyncio.to_thread(started.wait)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(run())
    adapter.close()
    assert spark.range(3).count() == 3
