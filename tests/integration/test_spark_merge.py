"""Spark merges replicas and compares roots, as functions and as commands."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from datalattice.cells import value_hash
from datalattice.cli.main import run
from datalattice.client import Folder, write_key
from datalattice.errors import BadFormat
from datalattice.pipeline import clear_errors
from datalattice.pipeline.jobs import diff, merge
from datalattice.store import CellStore
from datalattice.testing.replicas import ALICE, BOB, SampleRoot, merged

pytest.importorskip("pyspark")
merging = importlib.import_module("datalattice.pipeline.jobs.merge")  # the package shows its job
pytestmark = [pytest.mark.once, pytest.mark.spark, pytest.mark.timeout(120)]


def replicas() -> list[SampleRoot]:
    start = SampleRoot().set(ALICE, {f"k{i:04}": "v" * 20 for i in range(400)}).offer(BOB, [1, 2])
    forks = [start.fork(10_000 * (i + 1)) for i in range(5)]
    for i, fork in enumerate(forks):
        fork.set(ALICE, {f"k{j:04}": i for j in range(i, 400, 9)})
    return forks


def test_spark_merges_archives_and_stores_and_finds_what_changed(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merging, "RANGE_KEYS", 100)
    forks = replicas()
    inputs = [one.save(tmp_path / f"r{i}") for i, one in enumerate(forks[:-1])]
    inputs.append(forks[-1].export(tmp_path / "last.archive", tmp_path / "scratch"))
    told: list[tuple[str, int, int | None]] = []
    made = tmp_path / "made"
    report = merge(
        spark,
        inputs,
        store=str(made),
        key=ALICE,
        fan_in=2,
        progress=lambda *one: told.append(one),
    )
    wanted = merged([one.root for one in forks], ALICE)
    assert report.root == value_hash(wanted).hex()
    assert report.rounds == 3
    assert {"check", "merge"} <= {step for step, _, _ in told}

    changed = {tuple(row["path"]) for row in diff(spark, inputs[0], str(made)).collect()}
    assert changed == {("main", f"k{j:04}") for i in range(1, 5) for j in range(i, 400, 9)}
    assert diff(spark, str(made), str(made)).count() == 0


def test_an_error_of_a_task_is_told_as_what_it_is(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "torn").write_bytes(b"DLAR nothing of an archive")
    with pytest.raises(BadFormat, match="the archive ends"), clear_errors():
        merge(spark, [str(tmp_path / "torn")], store=str(tmp_path / "made"))
    assert not list(tmp_path.glob("made*"))


@pytest.mark.usefixtures("spark")
def test_the_commands_merge_and_diff(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    forks = replicas()[:2]
    folder = Folder(tmp_path / "hq")
    write_key(folder.key_path, ALICE)
    inputs = [one.save(tmp_path / f"r{i}") for i, one in enumerate(forks)]
    capsys.readouterr()
    assert run(["spark", "merge", *inputs, "--into", str(folder.path), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["root"] == value_hash(merged([one.root for one in forks], ALICE)).hex()
    with CellStore.open(folder.store_path, read_only=True) as store:
        assert (store.root_hash() or b"").hex() == report["root"]
    place = str(folder.path)
    assert run(["spark", "diff", inputs[0], place, "--json", "-n", "3"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["changes"] == len(range(1, 400, 9))
    assert len(document["rows"]) == 3
    assert document["sums"][0]["section"] == ":kv"
    assert run(["spark", "diff", inputs[0], place]) == 0
    shown = capsys.readouterr().out
    assert "~ :kv 0x" in shown
    assert run(["spark", "merge", inputs[0], "--store", inputs[0]]) == 2
    assert "exists; name a new path" in capsys.readouterr().err
