"""Workers: the garbage collector is relieved in workers of Spark, once, and nowhere else."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from datalattice.pipeline.spark import workers
from datalattice.pipeline.spark.workers import freeze_objects

pyspark: Any = pytest.importorskip("pyspark")


def test_a_process_that_runs_no_task_is_left_alone() -> None:
    before = gc.get_freeze_count()
    freeze_objects()
    assert gc.get_freeze_count() == before


def test_a_worker_is_settled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark.TaskContext, "get", object)
    monkeypatch.setattr(workers, "_settled", set())
    gc.unfreeze()
    try:
        freeze_objects()
        settled = gc.get_freeze_count()
        assert settled > 1_000
        more = [[number] for number in range(10_000)]
        freeze_objects()
        assert gc.get_freeze_count() < settled + len(more)
    finally:
        gc.unfreeze()
