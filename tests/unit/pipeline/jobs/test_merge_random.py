"""Merge of random replicas of the whole root: the hash is that of one process, each time."""

from __future__ import annotations

import importlib
import random
from pathlib import Path
from typing import Any

import pytest

from datalattice.apps.dlfs import Drive
from datalattice.cells import EMPTY_MAP, Index, Keyword, Map, Signed, Value, to_cell, value_hash
from datalattice.crypto import KeyPair
from datalattice.lattice import assoc_in, root_lattice, set_local
from datalattice.pipeline.jobs import merge
from datalattice.testing.replicas import ALICE, BOB, CAROL, SampleRoot, merged, run_here

pytest.importorskip("pyspark")

module = importlib.import_module("datalattice.pipeline.jobs.merge")  # the package shows its job

OWNERS = (ALICE, BOB, CAROL)
CASES = 10


def change(draw: random.Random, replica: SampleRoot) -> None:
    """Write something, as an owner or as somebody who is none."""
    keys, kind = draw.choice(OWNERS), draw.randrange(8)
    if kind < 3:
        entries: dict[str, object] = {f"k{draw.randrange(30)}": draw.randrange(5) for _ in range(9)}
        replica.set(keys, entries, draw.choice("de"))
    elif kind == 3:
        replica.offer(keys, [draw.randrange(9)] * draw.randrange(1, 20), draw.choice("tu"))
    elif kind == 4:
        replica.write(keys, lambda cursor, clock: write_file(draw, cursor, clock, keys))
    elif kind == 5:
        replica.root = set_local(replica.root, keys, draw.randrange(9))
    elif kind == 6:
        datum = to_cell({"a": draw.randrange(6)})
        key = value_hash(datum) if draw.random() < 0.8 else bytes(32)
        replica.root = assoc_in(replica.root, [Keyword("data"), key], datum, root_lattice())
    else:
        plant(draw, replica)


def write_file(draw: random.Random, cursor: Any, clock: Any, keys: KeyPair) -> None:
    drive = Drive.at(cursor, keys.public_key, "home", clock)
    drive.write(f"/f{draw.randrange(4)}", bytes([draw.randrange(3)]) * 5_000)


def plant(draw: random.Random, replica: SampleRoot) -> None:
    """Put what does not belong there in the place of an owner."""
    section = Keyword(draw.choice(["kv", "queue", "fs", "local"]))
    owners = replica.root.get(section) if isinstance(replica.root, Index) else None
    if not isinstance(owners, Map) or not len(owners):
        return
    key, cell = draw.choice(list(owners.entries()))
    if not isinstance(cell, Signed):
        return
    forged = Signed(cell.public_key, bytes(64), cell.value)
    others: list[tuple[Value, Value]] = [
        (draw.choice(OWNERS).public_key, cell),
        (key, forged),
        (key, 5),
        (b"short", Signed.sign(draw.choice(OWNERS), EMPTY_MAP)),
        (key, Signed.sign(draw.choice(OWNERS), to_cell({"d": 1}))),
    ]
    replica.root = assoc_in(replica.root, [section], owners.put(*draw.choice(others)))


@pytest.mark.parametrize("seed", range(CASES))
def test_random_replicas(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(seed)
    start = SampleRoot(root_lattice().zero())
    replicas: list[SampleRoot] = []
    for number in range(draw.randrange(2, 7)):
        replicas.append(draw.choice([start, *replicas]).fork(10_000 * number))
        for _ in range(draw.randrange(1, 6)):
            change(draw, replicas[-1])
    monkeypatch.setattr(module, "run_tasks", run_here)
    monkeypatch.setattr(module, "RANGE_KEYS", draw.choice([5, 1_000]))
    monkeypatch.setattr(module, "_BUCKETS_MAX", draw.choice([1, 3, 64]))
    monkeypatch.setattr(module, "SAMPLE_MAX", draw.choice([1, 16]))
    key = draw.choice([None, *OWNERS])
    wanted = value_hash(merged([one.root for one in replicas], key)).hex()
    inputs = [one.save(tmp_path / f"r{number}") for number, one in enumerate(replicas)]
    fan_in = draw.randrange(2, 6)
    report = merge(None, inputs, store=str(tmp_path / "made"), key=key, fan_in=fan_in)  # type: ignore[arg-type]  # no Spark is needed
    assert report.root == wanted
