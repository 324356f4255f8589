"""Spark reads the grid, the files of drives and the cells of stores, and writes cells."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from datalattice.apps.dlfs import Drive
from datalattice.apps.grid import Venue
from datalattice.cells import novelty
from datalattice.crypto import KeyPair
from datalattice.cursors import RootLattice
from datalattice.errors import DataLatticeError, LimitExceeded, UsageError
from datalattice.lattice import MergeContext, root_lattice
from datalattice.pipeline import clear_errors, read_cells, read_files, read_grid
from datalattice.store import CellStore

pytest.importorskip("pyspark")
pytestmark = [pytest.mark.once, pytest.mark.spark, pytest.mark.timeout(120)]

ALICE = KeyPair(bytes([1]) * 32)


class Site:
    """A venue and a drive in one store that stays open for writing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = CellStore.open(folder)
        self.root = RootLattice(root_lattice(), None, MergeContext(key_pair=ALICE))
        self.venue = Venue.at(self.root, ALICE)
        self.drive = Drive.at(self.root, ALICE.public_key, "main")

    def commit(self) -> bytes:
        return self.store.commit(self.root.get()).root_hash


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path / "site")
    yield made
    made.store.close()


def test_tables_of_the_grid(spark: Any, site: Site) -> None:
    content = b"c" * 5_000
    digest = hashlib.sha256(content).hexdigest()
    asset = site.venue.register(json.dumps({"name": "A", "content": {"sha256": digest}}))
    site.venue.put_content(asset, content)
    job = site.venue.create_job({"op": "x", "input": {"n": 7}})
    site.commit()
    (row,) = read_grid(spark, site.folder, table="assets").collect()
    assert (row["asset"], row["name"], row["content"]) == (asset.hex(), "A", digest)
    jobs = read_grid(spark, site.folder, table="jobs", value_format="variant")
    (row,) = jobs.selectExpr(
        "job",
        "status",
        "updated = created AS fresh",
        "variant_get(record, '$.input.n', 'int') AS n",
    ).collect()
    assert row.asDict() == {"job": job.hex(), "status": "PENDING", "fresh": True, "n": 7}
    (row,) = read_grid(spark, site.folder, table="storage", include_content=True).collect()
    assert bytes(row["content"]) == content
    with pytest.raises(UsageError, match="no such venue"), clear_errors():
        read_grid(spark, site.folder, table="jobs", venue="did:key:zNobody").collect()


def test_changes_of_jobs_over_a_restart(spark: Any, site: Site, tmp_path: Path) -> None:
    first = site.venue.create_job()
    site.commit()
    seen: list[tuple[int, str, str]] = []

    def note(batch: Any, number: int) -> None:
        seen.extend((number, row["job"], row["status"]) for row in batch.collect())

    def run() -> None:
        frame = read_grid(spark, site.folder, table="jobs", stream=True)
        query = (
            frame.writeStream.foreachBatch(note)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(60)
        assert not query.isActive
        assert query.exception() is None

    run()
    assert seen == [(0, first.hex(), "PENDING")]
    site.venue.update_job(first, {"status": "STARTED"})
    second = site.venue.create_job()
    site.commit()
    run()
    assert sorted(seen[1:]) == sorted([(1, first.hex(), "STARTED"), (1, second.hex(), "PENDING")])


def test_files_whole_and_in_chunks(spark: Any, site: Site) -> None:
    data = bytes(range(256)) * 1_000
    site.drive.mkdir("/a")
    site.drive.write("/a/big", data)
    site.drive.write("/small.txt", b"text")
    site.commit()
    listed = read_files(spark, site.folder, drive="main").orderBy("path").collect()
    assert [(row["path"], row["size"]) for row in listed] == [
        ("/a/big", 256_000),
        ("/small.txt", 4),
    ]
    (row,) = read_files(spark, site.folder, glob="/*.txt", include_content=True).collect()
    assert bytes(row["content"]) == b"text"
    chunks = read_files(spark, site.folder, glob="/a", chunk_bytes="100000").orderBy("chunk")
    assert b"".join(bytes(row["content"]) for row in chunks.collect()) == data
    with pytest.raises(LimitExceeded, match="chunkBytes"), clear_errors():
        read_files(spark, site.folder, include_content=True, max_content_bytes=99).collect()


def test_cells_out_of_a_store_and_into_another(spark: Any, site: Site, tmp_path: Path) -> None:
    site.drive.write("/big", bytes(range(256)) * 1_000)
    site.venue.register("{}")
    root = site.commit()
    value: Any = site.store.load(root)
    cells = read_cells(spark, site.folder)
    expected = {hash for hash, _, _ in novelty(value)} | {root}
    assert {bytes(row[0]) for row in cells.select("hash").collect()} >= expected
    writer = cells.repartition(3).write.format("lattice.cells").mode("append")
    writer = writer.option("store", str(tmp_path / "copy")).option("pin", "copy")
    writer.option("root", "0x" + root.hex()).save()
    with CellStore.open(tmp_path / "copy") as copy:
        assert copy.load(root) == value
        assert [pin.name for pin in copy.pins.all()] == ["copy"]
    with pytest.raises(DataLatticeError, match="missing cells: 0xabab"), clear_errors():
        writer.option("root", "0x" + "ab" * 32).save()
