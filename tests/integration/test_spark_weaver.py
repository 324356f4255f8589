"""Spark reads weaver stores beside the program that writes to them."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import datalattice
from datalattice.errors import DataLoss
from datalattice.pipeline import clear_errors, read_weaver
from datalattice.testing.stores_kit import envelopes_of
from datalattice.weaver import store_id_text

pytest.importorskip("pyspark")
pytestmark = [pytest.mark.once, pytest.mark.spark, pytest.mark.timeout(120)]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "spark-weaver.md"


def test_the_examples_of_the_page_run(spark: Any, tmp_path: Path) -> None:
    text = PAGE.read_text(encoding="utf-8")
    # Spark's processes have working folders of their own.
    for name in ("home", "changes", "checkpoint"):
        text = text.replace(f'"{name}"', repr(str(tmp_path / name)))
    names = {"spark": spark}
    for block in re.findall(r"^```py\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        exec(compile(block, PAGE.name, "exec"), names)
    before: Any = names["before"]
    assert [row["value"] for row in before.collect()] == ["Shopping"]


def test_what_is_written_while_a_stream_runs_over_a_restart(spark: Any, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []

    def note(batch: Any, number: int) -> None:
        seen.extend((number, row["seq"]) for row in batch.collect())

    def run() -> None:
        frame = read_weaver(
            spark, tmp_path / "home", name="diary", table="state", stream=True, min_partitions=2
        )
        query = (
            frame.writeStream.foreachBatch(note)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(60)  # raises what the query failed with
        assert not query.isActive

    with datalattice.open(tmp_path / "home") as node:
        diary = node.store("diary", kind="log")
        diary.extend(["a", "b"])
        run()
        diary.extend(["c"])
        run()
        assert seen == [(0, 3), (0, 4), (1, 5)]
        id, envelopes = store_id_text(diary.store.id), envelopes_of(diary.store)
    shutil.rmtree(tmp_path / "home" / "weaver")
    with datalattice.open(tmp_path / "home") as node:
        node.store(id, kind="log").store.ingest(envelopes)
        with pytest.raises(DataLoss, match="the log was made anew"), clear_errors():
            run()
    assert len(seen) == 3
