"""Jobs over a whole store on Spark: audit, and the mark of garbage with its sweep."""

from __future__ import annotations

import importlib
import shutil
from pathlib import Path
from typing import Any

import pytest

from datalattice.cells import Map, missing
from datalattice.errors import StoreFailed, UsageError
from datalattice.store import CellStore, RealDisk
from datalattice.store.gc import SweepList, collection, partition_marking
from datalattice.store.kept import KEEP_NOTHING
from datalattice.testing.planting import plant, text

pytest.importorskip("pyspark")
pytestmark = [pytest.mark.once, pytest.mark.spark, pytest.mark.timeout(120)]


@pytest.fixture(name="folder")
def fixture_folder(tmp_path: Path) -> Path:
    """Give a store of several segments whose root has changed many times."""
    root = Map.of([])
    with CellStore.open(tmp_path / "s", segment_bytes=8_192, retention=KEEP_NOTHING) as store:
        for number in range(20):
            for key in range(6):
                root = root.put(f"key {(number * 5 + key) % 60}", text(number * 6 + key))
            store.commit(root)
        store.history.forget(1 << 52)
    return tmp_path / "s"


@pytest.mark.parametrize("collected", [100_000, 30])
def test_audit_finds_a_thousand_planted_faults_and_no_other(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, collected: int
) -> None:
    from datalattice.pipeline.jobs import audit

    job = importlib.import_module("datalattice.pipeline.jobs.audit")  # not its namesake
    monkeypatch.setattr(job, "COLLECTED_MAX", collected)
    planted = plant(tmp_path / "s", 250)
    steps: list[str] = []
    report = audit(
        spark, str(tmp_path / "s"), parts=3, progress=lambda step, *_: steps.append(step)
    )
    rows = report.faults.collect()
    of_cells = [(row.kind, bytes(row.hash)) for row in rows if row.hash is not None]
    assert set(of_cells) == planted.expected
    assert len(of_cells) == 1_000
    packs = report.counts.pop("pack")
    assert packs == len(rows) - 1_000
    assert report.counts == dict.fromkeys(["encoding", "hash", "reference", "signature"], 250)
    assert not report.is_clean
    assert set(steps) >= {"audit", "index"}
    document = report.as_json()
    assert len(document["faults"]) == 1_000  # type: ignore[arg-type]
    assert document["clean"] is False


def test_audit_of_a_sound_store_has_no_faults(spark: Any, folder: Path) -> None:
    from datalattice.pipeline.jobs import audit

    report = audit(spark, str(folder))
    assert report.is_clean
    assert report.listed() == []
    assert report.faults.collect() == []
    assert report.faults.columns == ["kind", "hash", "file", "offset", "detail"]


def places_listed(store: CellStore, path: Path) -> tuple[set[int], set[int]]:
    """Return the places of a store that a sweep list says stay, and those that may go."""
    plan = SweepList(RealDisk(), str(path))
    known = plan.prior_mark()
    plan.close()
    places = {place for _, place in store._index.entries()}
    return set(filter(known.live.has, places)), set(filter(known.dead.has, places))


def test_gc_marks_as_the_store_does_and_the_store_sweeps(
    spark: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from datalattice.pipeline.jobs import gc

    job = importlib.import_module("datalattice.pipeline.jobs.gc")  # not its namesake
    monkeypatch.setattr(collection, "FREED_BYTES_MIN", 1)
    out = tmp_path / "list"
    with CellStore.open(folder, segment_bytes=8_192, retention=KEEP_NOTHING) as store:
        report = gc(spark, str(folder), str(out), grace_ms=0, parts=3)
        own = store.collect(grace_ms=0, dry_run=True)
        assert (report.cells_live, report.cells_dead) == (own.cells_live, own.cells_dead)
        assert report.as_json()["parts"] == report.parts == 3
        assert report.rounds == 2  # the driver marks so small a store; tasks list the rest
        for most in (0, 65_536):  # by tasks, which shuffle what leads on, or leave it to the driver
            monkeypatch.setattr(partition_marking, "WAITING_MIN", 0)
            monkeypatch.setattr(job, "HANDED_MAX", most)
            monkeypatch.setattr(job, "COLLECTED_BYTES", most << 10)
            other = gc(spark, str(folder), str(tmp_path / "other"), grace_ms=0, parts=3)
            assert other.rounds > 2
            assert other.as_json() | {"list": "", "rounds": 0} == (
                report.as_json() | {"list": "", "rounds": 0}
            )
            assert places_listed(store, tmp_path / "other") == places_listed(store, out)
        plan = SweepList(RealDisk(), str(out))
        swept = store.sweep(plan)
        assert (swept.cells_dead, swept.cells_live) == (own.cells_dead, own.cells_live)
        assert missing(store.root()) == []
        assert store.check().is_clean
        with pytest.raises(UsageError, match="the list is stale"):
            store.sweep(plan)
        plan.close()


def test_what_a_job_refuses_is_told_as_it_is(spark: Any, folder: Path, tmp_path: Path) -> None:
    from datalattice.pipeline.jobs import audit, gc

    with pytest.raises(UsageError, match="no store here"):
        audit(spark, str(tmp_path / "nothing"))
    with pytest.raises(UsageError, match="option parts=0 is not accepted"):
        gc(spark, str(folder), str(tmp_path / "list"), parts=0)
    with pytest.raises(UsageError, match="a grace is 0 or more milliseconds, got -1"):
        gc(spark, str(folder), str(tmp_path / "list"), grace_ms=-1)
    shutil.rmtree(folder / "segments")
    (folder / "segments").mkdir()
    with pytest.raises(StoreFailed, match="heal the store first"):
        gc(spark, str(folder), str(tmp_path / "list"))
    assert not (tmp_path / "list").exists()
