"""Audit: every planted fault is found where it is, and a store without faults has none."""

from __future__ import annotations

import importlib
import pickle
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from datalattice.cells import Map, Signed, Vector, encode, value_hash
from datalattice.crypto import KeyPair, SeededEntropy, sha3_256
from datalattice.errors import StoreFailed, UsageError
from datalattice.store import CellFetcher, CellStore, heal_store, open_damaged
from datalattice.store.gc import check_extent, collection, extent_of
from datalattice.store.kept import KEEP_NOTHING
from datalattice.store.log import locate
from datalattice.testing.planting import flip, plant, put_raw, segment_file, text

pa = pytest.importorskip("pyarrow")

from datalattice.pipeline.jobs.audit import (  # noqa: E402
    FACTS,
    AuditPlan,
    IndexTask,
    PacksTask,
    Sums,
    TaskCounts,
    examine,
    read_facts,
)
from datalattice.pipeline.jobs.stores import (  # noqa: E402
    STORE_PARTS_MAX,
    for_tasks,
    store_folder,
    store_partitions,
)

Row = tuple[str, bytes | None, str, int, str]

audit_module = importlib.import_module("datalattice.pipeline.jobs.audit")  # not its namesake


class Audited:
    """An audit in this process: its tasks run one after another, pickled as Spark does."""

    def __init__(self, folder: Path, parts: int | None = 4) -> None:
        self.steps: list[str] = []
        self.task_rows: set[Row] = set()
        with CellStore.open(folder, read_only=True) as reader:
            extent = extent_of(reader)
            work = AuditPlan(str(folder), for_tasks(extent), store_partitions(extent, parts))
            sums, rows = examine(reader, work, self.run)
            check_extent(reader, extent)
        self.sums: Sums = sums
        own = {(one.kind.value, one.hash, one.file, one.offset, one.detail) for one in rows}
        self.rows = self.task_rows | own

    def run(self, step: str, task: PacksTask | IndexTask, count: int) -> TaskCounts:
        self.steps.append(step)
        facts: list[str] = []
        for number in range(count):
            batch = pa.RecordBatch.from_arrays([pa.array([number], pa.int64())], names=["id"])
            for out in pickle.loads(pickle.dumps(task))(iter([batch])):
                for row in out.to_pylist():
                    if row["kind"] == FACTS:
                        facts.append(row["detail"])
                    else:
                        self.task_rows.add(tuple(row.values()))
        return read_facts(facts)

    @property
    def kinds(self) -> Counter[str]:
        return Counter(row[0] for row in self.rows)

    @property
    def of_cells(self) -> set[tuple[str, bytes | None]]:
        return {(row[0], row[1]) for row in self.rows if row[1] is not None}


def filled(folder: Path, commits: int = 12, segment_bytes: int = 8_192) -> None:
    """Make a store of several segments with signed values, staged cells and blobs."""
    root = Map.of([])
    keys = KeyPair(bytes([3]) * 32)
    with CellStore.open(folder, segment_bytes=segment_bytes, entropy=SeededEntropy(2)) as store:
        for number in range(commits):
            for key in range(8):
                root = root.put(f"key {number * 5 + key}", text(number * 8 + key))
            root = root.put("signed", Signed.sign(keys, Vector.of([number, text(number, 300)])))
            root = root.put("short", Signed.sign(keys, number))
            root = root.put("blob", bytes(range(256)) * 50 * (number + 1))
            store.commit(root)
        store.put(Map.of([(f"staged {n}", text(900 + n)) for n in range(9)]))


@pytest.fixture(name="whole")
def fixture_whole(tmp_path: Path) -> Path:
    filled(tmp_path / "s")
    return tmp_path / "s"


def place_of(folder: Path, value: Any) -> tuple[Path, int, int]:
    """Return (file, offset, length) of the cell of a value."""
    with CellStore.open(folder, read_only=True) as store:
        segment, offset, length = locate(store.location_of(value_hash(value)))
    return segment_file(folder, segment), offset, length


def test_a_thousand_planted_faults_are_found_and_no_other(tmp_path: Path) -> None:
    planted = plant(tmp_path / "s", 250)
    assert len(planted.expected) == 1_000
    found = Audited(tmp_path / "s")
    assert found.of_cells == planted.expected
    assert found.kinds.keys() == {"hash", "reference", "signature", "encoding", "pack"}
    assert len(found.task_rows) == 1_000
    assert found.kinds["pack"] > 1
    assert found.steps == ["audit", "index"]
    with CellStore.open(tmp_path / "s", read_only=True) as store:
        assert found.sums.cells == store.stats().cells
        assert found.sums.packs + found.kinds["pack"] == store.check().packs + found.kinds["pack"]


@pytest.mark.parametrize("parts", [1, 2, 5, 1_000])
def test_a_store_without_faults_has_none_however_it_is_cut(whole: Path, parts: int) -> None:
    found = Audited(whole, parts)
    assert found.rows == set()
    assert found.steps == ["audit"]
    with CellStore.open(whole, read_only=True) as store:
        report = store.check()
    assert (found.sums.packs, found.sums.cells) == (report.packs, report.cells)
    assert found.sums.signed == 24


def test_no_faults_in_stores_that_lived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collection, "FREED_BYTES_MIN", 1)
    folder = tmp_path / "s"
    assert Audited(_empty(folder)).rows == set()
    filled(folder)
    with CellStore.open(folder, segment_bytes=8_192, retention=KEEP_NOTHING) as store:
        store.collect(grace_ms=0)
        root = store.root()
        assert isinstance(root, Map)
        for number in range(30):  # beside the writer
            root = root.put(f"later {number}", text(5_000 + number))
            store.commit(root)
        found = Audited(folder)
        assert found.rows == set()
        assert found.sums.cells == store.stats().cells
        store.collect(grace_ms=0)
    assert Audited(folder, 3).rows == set()


def _empty(folder: Path) -> Path:
    CellStore.open(folder).close()
    return folder


def test_a_fault_has_its_place_and_says_what_it_is(whole: Path) -> None:
    path, offset, length = place_of(whole, text(20))
    flip(path, offset + length - 1)
    found = Audited(whole)
    (cell,) = found.task_rows
    detail = "the cell does not fit its hash"
    assert cell == ("hash", value_hash(text(20)), str(path), offset, detail)
    (pack,) = found.rows - found.task_rows
    assert pack[:3] == ("pack", None, str(path))
    assert pack[3] < offset
    assert "does not fit its checksum" in pack[4]


def test_what_is_said_of_references_signatures_and_forms(tmp_path: Path) -> None:
    nowhere = sha3_256(b"nowhere")
    short = encode("short")
    keys = KeyPair(bytes([9]) * 32)
    bad = bytearray(encode(Signed.sign(keys, text(1))))
    bad[60] ^= 1
    tail = b"".join(encode(text(n, 60)) for n in range(4))
    with CellStore.open(tmp_path / "s") as store:
        store.commit("short")
        lost = put_raw(store, b"\x80\x06\x20" + nowhere + b"\x20" + nowhere + tail)
        by_hash = put_raw(store, b"\x80\x05\x20" + sha3_256(short) + tail)
        store.put(text(1))
        forged = put_raw(store, bytes(bad))
        padded = put_raw(store, b"\x80\x05\x12\x00\x05" + tail)
        keyless = b"\x91" + bytes(64) + encode(text(2, 100))
        put_raw(store, keyless)
    said = {(row[0], row[1]): row[4] for row in Audited(tmp_path / "s").rows}
    assert said == {
        ("reference", lost): f"refers to 0x{nowhere.hex()}, which is not in the store",
        (
            "encoding",
            by_hash,
        ): f"refers by hash to 0x{sha3_256(short).hex()}, a cell of {len(short)} bytes, "
        "which belongs inside it",
        ("signature", forged): f"the signature is not one of the key 0x{keys.public_key.hex()}",
        ("encoding", padded): "bad encoding at byte 2: an integer is not in its shortest form",
    }


def _cut_end(folder: Path) -> None:
    last = max((folder / "segments").iterdir())
    with last.open("r+b") as file:
        file.truncate(last.stat().st_size - 1)


def _lose_first(folder: Path) -> None:
    min((folder / "segments").iterdir()).unlink()


def _lose_middle(folder: Path) -> None:
    for path in sorted((folder / "segments").iterdir())[2:4]:
        path.unlink()


def _damage_headers(folder: Path) -> None:
    for path in sorted((folder / "segments").iterdir())[1:4]:
        flip(path, 20)


def _damage_pack_header(folder: Path) -> None:
    flip(sorted((folder / "segments").iterdir())[1], 44 + 30)


def _damage_table(folder: Path) -> None:
    flip(sorted((folder / "segments").iterdir())[1], 44 + 96 + 50)


def _lose_last(folder: Path) -> None:
    max((folder / "segments").iterdir()).unlink()


@pytest.mark.parametrize("parts", [1, 4, 100])
@pytest.mark.parametrize(
    "damage",
    [_cut_end, _lose_first, _lose_middle, _damage_pack_header, _damage_table, _lose_last],
)
def test_damaged_and_missing_packs_are_found(
    whole: Path, damage: Callable[[Path], None], parts: int
) -> None:
    damage(whole)
    found = Audited(whole, parts)
    assert found.kinds["pack"] == 1
    with CellStore.open(whole, read_only=True) as store:
        report = store.check()
    lost = {one.hash for one in report.damage if one.hash is not None}
    assert {row[1] for row in found.rows if row[0] == "hash"} == lost
    # Whatever is wrong with one cell is not told of those that refer to it.
    assert found.kinds["reference"] == 0


def test_a_damaged_header_of_a_segment_is_a_scar_since_its_cells_are_whole(whole: Path) -> None:
    _damage_headers(whole)
    for parts in (1, 3, 100):
        found = Audited(whole, parts)
        assert found.kinds == {"scar": 3}
        assert {row[4] for row in found.rows} == {"the header of the segment is damaged"}


def test_a_healed_store_has_only_scars(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "copy")
    for value in (text(11), text(30), text(60)):
        path, offset, _ = place_of(whole, value)
        flip(path, offset + 9)
    assert Audited(whole).kinds["hash"] == 3
    with CellStore.open(tmp_path / "copy") as copy, open_damaged(whole) as store:

        def fetch(hashes: Any) -> Iterator[tuple[bytes, bytes]]:
            for hash in hashes:
                data = copy.get_encoding(hash)
                if data is not None:
                    yield hash, data

        assert heal_store(store, CellFetcher(store, fetch)).report.is_clean
    assert Audited(whole).kinds.keys() == {"scar"}


def test_more_damage_than_is_listed(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for value in (text(11), text(30), text(60)):
        path, offset, _ = place_of(whole, value)
        flip(path, offset + 9)
    before = Audited(whole)
    monkeypatch.setattr(audit_module, "GAPS_MAX", 2)
    found = Audited(whole)
    assert found.rows == before.rows
    assert found.sums.cells == before.sums.cells
    monkeypatch.setattr(audit_module, "GAPS_MAX", 3)
    assert Audited(whole).rows == before.rows


def test_entries_that_lead_nowhere_have_the_whole_index_gone_through(whole: Path) -> None:
    hash = sha3_256(b"nothing of the kind")
    with CellStore.open(whole) as store:
        place = store.location_of(value_hash(text(30)))
        store._index.add([hash], [place])
    found = Audited(whole)
    assert found.steps == ["audit", "index", "whole index"]
    assert found.of_cells == {("hash", hash)}
    with CellStore.open(whole, read_only=True) as store:
        assert found.sums.cells == store.stats().cells


def test_lost_roots_pins_and_leases_are_named(whole: Path) -> None:
    with CellStore.open(whole) as store:
        old = store.history.entries()[3].root_hash
        store.pins.pin(old, "release")
        lease = store.lease(old, 600)
        root = store.root_hash()
        assert root is not None
        store.discard([old])
    found = Audited(whole)
    said = sorted(row[4] for row in found.rows if row[0] == "root")
    assert said[1] == "the pin 'release' is not in the store"
    assert said[0].startswith("the lease ")
    assert {row[1] for row in found.rows} == {old}
    with CellStore.open(whole) as store:
        lease.release()
        store.discard([root])
    assert "the root is not in the store" in {row[4] for row in Audited(whole).rows}


def test_a_damaged_file_of_pins_is_named(whole: Path) -> None:
    flip(whole / "pins", 30)
    (row,) = Audited(whole).rows
    assert row[0] == "root"
    assert "the file of pins is damaged" in row[4]


def test_without_the_record_of_removed_cells_a_store_is_whole(
    whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collection, "FREED_BYTES_MIN", 1)
    with CellStore.open(whole, segment_bytes=8_192, retention=KEEP_NOTHING) as store:
        assert store.collect(grace_ms=0).dropped
    flip(whole / "garbage", 20)
    for parts in (1, 4):
        found = Audited(whole, parts)
        assert found.kinds.keys() == {"scar"}
        assert ("scar", None, str(whole / "garbage"), 0) in {row[:4] for row in found.rows}


def test_a_collection_meanwhile_ends_the_job(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collection, "FREED_BYTES_MIN", 1)
    with CellStore.open(whole, read_only=True) as reader:
        extent = extent_of(reader)
        with CellStore.open(whole, segment_bytes=8_192, retention=KEEP_NOTHING) as store:
            assert store.collect(grace_ms=0).dropped
        work = AuditPlan(str(whole), for_tasks(extent), store_partitions(extent, 2))
        batch = pa.RecordBatch.from_arrays([pa.array([0], pa.int64())], names=["id"])
        with pytest.raises(StoreFailed, match="cells were removed from it meanwhile; begin again"):
            list(PacksTask(work)(iter([batch])))


def test_another_store_at_the_same_place_is_refused(whole: Path, tmp_path: Path) -> None:
    with CellStore.open(whole, read_only=True) as reader:
        extent = extent_of(reader)
    _empty(tmp_path / "other")
    work = AuditPlan(str(tmp_path / "other"), for_tasks(extent), store_partitions(extent, 1))
    batch = pa.RecordBatch.from_arrays([pa.array([0], pa.int64())], names=["id"])
    with pytest.raises(UsageError, match="another store than the one that the work was planned"):
        list(PacksTask(work)(iter([batch])))


def test_parts(whole: Path) -> None:
    with CellStore.open(whole, read_only=True) as reader:
        extent = extent_of(reader)
    count = len(extent.segments)
    assert count > 8
    assert 5 <= len(store_partitions(extent, None)) <= 8
    assert [len(store_partitions(extent, None, cores)) for cores in (1, 2)] == [1, 4]
    assert len(store_partitions(extent, 1)) == 1
    assert len(store_partitions(extent, STORE_PARTS_MAX)) == count
    for parts in (1, 2, 3, count, STORE_PARTS_MAX):
        numbers = [
            n for one in store_partitions(extent, parts) for n in range(one.first, one.last + 1)
        ]
        assert numbers == [segment.number for segment in extent.segments]
    for bad in (0, STORE_PARTS_MAX + 1):
        with pytest.raises(UsageError, match=f"option parts={bad} is not accepted"):
            store_partitions(extent, bad)


def test_store_folder(whole: Path, tmp_path: Path) -> None:
    assert store_folder(str(whole)) == str(whole)
    (tmp_path / "node").mkdir()
    shutil.copytree(whole, tmp_path / "node" / "store")
    assert store_folder(str(tmp_path / "node")) == str(tmp_path / "node" / "store")
    with pytest.raises(UsageError, match="no store here; give the folder of a store, or of a node"):
        store_folder(str(tmp_path))
