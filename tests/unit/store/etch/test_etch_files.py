"""Etch files: the reference's own bytes written again, chains, values, and two at one file."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from datalattice.cells import NIL_HASH, Map, Vector, same, value_hash
from datalattice.crypto import sha3_256
from datalattice.errors import (
    Corruption,
    MissingData,
    ReadOnly,
    StoreLocked,
    StoreVersion,
    UsageError,
)
from datalattice.store import CellStore, MemoryStore, Store, copy_cells
from datalattice.store.disk import RealDisk
from datalattice.store.etch import (
    ANNOUNCED,
    DATA_START,
    LEVELS,
    PERSISTED,
    STORED,
    EtchFile,
    EtchStore,
    EtchWriter,
    check_etch,
    collect_etch,
    digit_of,
    slot_count,
)
from datalattice.testing.disk import SimDisk
from datalattice.testing.store_kit import check_store

VECTORS = Path(__file__).parents[3] / "vectors" / "etch-files.json"
CASES = json.loads(VECTORS.read_text(encoding="utf-8"))["cases"]
LONG = "long enough to be a cell of its own, which takes more than 140 bytes " * 3
HEADER_ROOT = 12


def writer_of(store: EtchStore) -> EtchWriter:
    assert isinstance(store.file, EtchWriter)
    return store.file


def key(*digits: int) -> bytes:
    """Return a made-up key that begins with these bytes."""
    return bytes(digits) + bytes(32 - len(digits))


def longs(start: int, number: int) -> Vector:
    return Vector.of([f"{at} {LONG}" for at in range(start, start + number)])


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_the_same_records_give_the_bytes_of_the_reference(
    case: dict[str, Any], tmp_path: Path
) -> None:
    wanted = bytearray(case["file_size"])
    wanted[:44] = bytes.fromhex(case["header"])
    for block in case["index_blocks"]:
        for number, slot in block["slots"]:
            at = block["offset"] + 8 * number
            wanted[at : at + 8] = bytes.fromhex(slot)
    with EtchStore.open(tmp_path / "f") as store:
        for record in case["records"]:
            encoding = bytes.fromhex(record["encoding"])
            data = bytes.fromhex(record["key"]) + bytes((record["flags"] & 0x0F,))
            data += record["memory_size"].to_bytes(8, "big") + len(encoding).to_bytes(2, "big")
            wanted[record["offset"] : record["offset"] + len(data + encoding)] = data + encoding
            writer_of(store).put(data[:32], encoding, record["flags"] & 0x0F, record["memory_size"])
        root = bytes.fromhex(case["root_hash"])
        if any(root):
            writer_of(store).set_root(root)
    got = bytearray((tmp_path / "f").read_bytes())
    for record in case["records"]:  # whether a cell is embedded is a hint that may be missing
        got[record["offset"] + 32] &= 0x0F
    assert got == wanted[: case["data_length"]]


def make_stores(tmp_path: Path, kind: str) -> Callable[[], Store]:
    numbers = count()
    if kind == "simulated":
        return lambda: EtchStore.open(f"d/{next(numbers)}", disk=SimDisk(1))
    return lambda: EtchStore.open(tmp_path / str(next(numbers)))


@pytest.mark.parametrize("kind", ["disk", "simulated"])
def test_an_etch_store_keeps_the_protocol_of_stores(kind: str, tmp_path: Path) -> None:
    check_store(make_stores(tmp_path, kind), announces_all=True)


def test_a_value_is_there_after_opening_again_and_nothing_is_written_twice(tmp_path: Path) -> None:
    value = Map.of({f"k{at}": longs(at, 5) for at in range(40)})
    with EtchStore.open(tmp_path / "f") as store:
        store.commit(value)
        length = store.file.length
        store.commit(value)
        store.put(value)
        assert store.file.length == length
    with EtchStore.open(tmp_path / "f", read_only=True) as reader:
        assert same(reader.root(), value)
        assert reader.status(value_hash(value)) == PERSISTED
        with pytest.raises(ReadOnly):
            reader.commit(1)
    assert check_etch(tmp_path / "f").is_clean


def test_digits_are_those_of_the_key_at_each_level() -> None:
    name = bytes(range(0x10, 0x30))
    assert [digit_of(name, level) for level in range(7)] == [0x1011, 0x12, 1, 3, 1, 4, 1]
    assert digit_of(name, LEVELS - 1) == name[31] & 0x0F
    assert [slot_count(level) for level in (0, 1, 2, LEVELS - 1)] == [65_536, 256, 16, 16]


def test_chains_wrap_round_fill_and_give_way(tmp_path: Path) -> None:
    keys = [key(0xFF, 0xFF, at) for at in range(3)]  # from the last slot on into the first two
    keys += [key(0, 0, 9), key(0, 1, 9)]  # whose slots are lent to the chain
    keys += [key(0x20, 0, 7, 0x12, at) for at in range(0, 256, 16)]  # equal down to level 3
    keys += [key(0x20, at, 1) for at in range(1, 20)]  # where that chain is
    keys += [key(0x30, at, 1) for at in range(256)]  # side by side, so that chains are blocked
    keys += [key(0x30, at % 256, 2 + at // 256) for at in range(600)]
    with EtchStore.open(tmp_path / "f") as store:
        for at, one in enumerate(keys):
            writer_of(store).put(one, bytes((0x31, 1, at % 256)), STORED)
            assert writer_of(store).find(one) is not None
        wanted = set(keys)
        assert {record.key for record in store.file.records()} == wanted
    with EtchStore.open(tmp_path / "f", read_only=True) as reader:
        assert all(reader.file.find(one) is not None for one in wanted)
        assert reader.file.find(key(0xFF, 0xFF, 3)) is None
        levels = [level for _, level in reader.file.blocks()]
    assert max(levels) == 4
    faults = check_etch(tmp_path / "f").faults
    assert {fault.reason for fault in faults} == {"the encoding has another hash than the key"}


def test_labels_only_rise_and_the_memory_size_comes_with_persisted(tmp_path: Path) -> None:
    encoding = b"\x31\x81\x48" + b"x" * 200
    name = sha3_256(encoding)
    with EtchStore.open(tmp_path / "f") as store:
        writer = writer_of(store)
        for status, size, wanted in (
            (STORED, 5, (STORED, 0)),
            (PERSISTED, 267, (PERSISTED, 267)),
            (STORED, 1, (PERSISTED, 267)),
            (ANNOUNCED, 1, (ANNOUNCED, 267)),
            (PERSISTED, 1, (ANNOUNCED, 267)),
        ):
            writer.put(name, encoding, status, size)
            writer.flush()
            record = writer.get(name)
            assert record is not None
            assert (record.status, record.memory_size) == wanted
            assert record.flags & 0x20
            assert record.encoding == encoding
    assert check_etch(tmp_path / "f").is_clean


def test_a_nil_root_reads_as_nil_and_is_not_written(tmp_path: Path) -> None:
    with EtchStore.open(tmp_path / "f") as store:
        assert store.root_hash() is None
        store.commit(None)
        assert store.file.length == DATA_START
    with EtchStore.open(tmp_path / "f", read_only=True) as reader:
        assert reader.root_hash() == NIL_HASH
        assert reader.root() is None


def test_a_root_that_is_not_here_is_named_and_the_rest_can_be_read(tmp_path: Path) -> None:
    with EtchStore.open(tmp_path / "f") as store:
        store.commit(longs(0, 3))
    with (tmp_path / "f").open("r+b") as file:
        file.seek(HEADER_ROOT)
        file.write(b"\x07" * 32)
    with EtchStore.open(tmp_path / "f", read_only=True) as reader:
        assert reader.load(value_hash(longs(0, 3))) == longs(0, 3)
        with pytest.raises(MissingData):
            reader.root()
    assert [fault.reason for fault in check_etch(tmp_path / "f").faults] == [
        "the root's record is missing"
    ]


def test_one_writer_at_a_time_and_readers_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "f"
    with EtchStore.open(path) as store:
        store.commit(longs(0, 50))
        with EtchStore.open(path, read_only=True) as reader:
            for start in range(50, 3_000, 50):  # moves chains and blocks under the reader
                store.commit(longs(start, 50))
            assert reader.root() == longs(0, 50)
            assert all(reader.load(value_hash(one)) == one for one in longs(0, 50))
            assert not reader.has(value_hash(longs(2_950, 50)))
        with pytest.raises(StoreLocked, match="another program"):
            EtchStore.open(path)
        with pytest.raises(StoreLocked):
            collect_etch(path)
    EtchStore.open(path).close()


@pytest.mark.parametrize(
    ("data", "error", "words"),
    [
        (b"something else", UsageError, "not an Etch file"),
        (b"\xe7\xc6\x00\x02" + bytes(600_000), StoreVersion, "version 2"),
    ],
)
def test_other_files_are_refused(
    data: bytes, error: type[Exception], words: str, tmp_path: Path
) -> None:
    (tmp_path / "f").write_bytes(data)
    for read_only in (True, False):
        with pytest.raises(error, match=words):
            EtchStore.open(tmp_path / "f", read_only=read_only)
    assert (tmp_path / "f").read_bytes() == data


def test_an_empty_file_is_a_new_store_and_none_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"")
    with EtchStore.open(tmp_path / "f") as store:
        store.commit(1)
    assert check_etch(tmp_path / "f").is_clean
    with pytest.raises(UsageError, match="no such file"):
        EtchStore.open(tmp_path / "g", read_only=True)
    with pytest.raises(UsageError, match="path of a file"):
        EtchStore.open("")


def test_values_move_between_stores_with_their_root(tmp_path: Path) -> None:
    value = Map.of({"a": longs(0, 300), "b": Map.of({"c": longs(300, 30)})})
    steps: list[int] = []
    with CellStore.open(tmp_path / "s") as store, EtchStore.open(tmp_path / "f") as etch:
        root = store.commit(value).root_hash
        new = copy_cells(store, root, etch, steps.append)
        assert new == steps[-1] == len(list(etch.file.records()))
        etch.set_root(root)
        assert copy_cells(store, root, etch) == 0
        with MemoryStore() as memory:
            copy_cells(etch, root, memory)
            memory.commit(memory.load(root))
            assert same(memory.root(), value)
        with pytest.raises(MissingData):
            copy_cells(store, bytes(32), etch)
    assert check_etch(tmp_path / "f").is_clean


def test_a_root_is_set_from_elsewhere_in_one_go_or_not_at_all(tmp_path: Path) -> None:
    with MemoryStore() as memory, EtchStore.open(tmp_path / "f") as etch:
        root = memory.commit(longs(0, 40)).root_hash

        def fetch(hash: bytes) -> bytes:
            found = memory.get_encoding(hash)
            if found is None or hash == value_hash(f"30 {LONG}"):
                raise MissingData([hash])
            return found

        with pytest.raises(MissingData):
            etch.set_root(root, fetch)
        assert etch.root_hash() is None
        assert etch.set_root(root, lambda hash: memory.get_encoding(hash) or b"") > 0
        assert etch.root() == longs(0, 40)
    assert check_etch(tmp_path / "f").is_clean


def test_collection_keeps_root_and_pins_with_their_labels(tmp_path: Path) -> None:
    path = tmp_path / "f"
    kept, pinned, loose = longs(0, 20), longs(100, 20), longs(200, 200)
    with EtchStore.open(path) as store:
        store.commit(loose)
        store.put(pinned)
        store.commit(kept)
        before = {record.key: record.flags for record in store.file.records()}
    with pytest.raises(UsageError, match="pinned cell"):
        collect_etch(path, [bytes(32)])
    was, now = collect_etch(path, [value_hash(pinned)])
    assert now < was
    assert list(tmp_path.iterdir()) == [path]
    with EtchStore.open(path, read_only=True) as reader:
        assert reader.root() == kept
        assert reader.load(value_hash(pinned)) == pinned
        assert not reader.has(value_hash(loose))
        assert all(before[record.key] == record.flags for record in reader.file.records())
    assert check_etch(path).is_clean


def test_a_lost_cell_ends_the_collection_and_the_file_stays(tmp_path: Path) -> None:
    path = tmp_path / "f"
    with EtchStore.open(path) as store:
        store.commit(longs(0, 5))
        position = store.file.find(value_hash(f"3 {LONG}"))
    assert position is not None
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)
    with pytest.raises(MissingData):
        collect_etch(path)
    assert path.read_bytes() == data
    assert list(tmp_path.iterdir()) == [path]


def test_damaged_records_are_healed_where_they_are(tmp_path: Path) -> None:
    path = tmp_path / "f"
    text = f"2 {LONG}"
    name = value_hash(text)
    with EtchStore.open(path) as store:
        store.commit(longs(0, 5))
        position = store.file.find(name) or 0
        encoding = store.get_encoding(name) or b""
    clean = path.read_bytes()
    damaged = bytearray(clean)
    damaged[position + 60] ^= 1
    path.write_bytes(damaged)
    with EtchStore.open(path) as store:
        with pytest.raises(Corruption, match=f"at byte {position}"):
            store.load(name)
        assert not store.has(name)
        assert store.damage[0].offset == position
        assert store.heal([(name, encoding)]) == 1
        assert store.load(name) == text
        assert store.damage == ()
    assert path.read_bytes() == clean


def test_a_large_store_is_whole(tmp_path: Path) -> None:
    value = Map.of({at: f"{at} {LONG}" for at in range(5_000)})
    with EtchStore.open(tmp_path / "f") as store:
        store.commit(value)
    report = check_etch(tmp_path / "f")
    assert report.is_clean
    assert report.cells > 5_000
    assert report.unreached_bytes == 0
    with EtchStore.open(tmp_path / "f", read_only=True) as reader:
        root = reader.root()
        assert isinstance(root, Map)
        assert root[4_999] == f"4999 {LONG}"


def test_a_reader_sees_the_file_as_it_was(tmp_path: Path) -> None:
    disk = RealDisk()
    with EtchStore.open(tmp_path / "f") as store:
        store.commit(1)
        old = EtchFile(disk, str(tmp_path / "f"))
        store.commit(2)
        assert old.root_hash == value_hash(1)
        assert old.find(value_hash(2)) is None
        old.close()
