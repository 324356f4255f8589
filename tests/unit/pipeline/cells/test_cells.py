"""Cells out of a store, each once, and back into another, complete and kept."""

from __future__ import annotations

import asyncio
import hashlib
import os
import pickle
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from datalattice.apps.queue import Topics
from datalattice.cells import Map, Vector, encode, make_blob, novelty, references
from datalattice.client import Folder, write_key
from datalattice.client.settings import NodeConfig
from datalattice.crypto import KeyPair
from datalattice.cursors import RootLattice
from datalattice.errors import (
    BadFormat,
    Corruption,
    MissingData,
    StoreFailed,
    StoreLocked,
    UsageError,
)
from datalattice.lattice import MergeContext, root_lattice
from datalattice.node import Daemon
from datalattice.pipeline.cells.options import read_options, write_options
from datalattice.store import CellStore

pa: Any = pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from datalattice.pipeline.cells import sink  # noqa: E402 - needs Spark
from datalattice.pipeline.cells.sink import OPEN_STORES_MAX  # noqa: E402 - needs Spark
from datalattice.pipeline.cells.source import CellsSource  # noqa: E402 - needs Spark
from datalattice.testing.polling import LIMIT_S  # noqa: E402 - below what needs Spark
from datalattice.testing.spark_kit import rows_of, struct_of  # noqa: E402 - needs Spark

ALICE = KeyPair(bytes([1]) * 32)


def reader_of(folder: Path, **options: str) -> Any:
    source = CellsSource({"path": str(folder), **options})
    return source.reader(struct_of(read_options(source.given).types))


def read(folder: Path, **options: str) -> list[dict[str, Any]]:
    reader = reader_of(folder, **options)
    return rows_of(reader, reader.partitions())


def value_of(n: int) -> Vector:
    return Vector.of([make_blob(bytes([n, i]) * 300) for i in range(40)] + [Map.of({"n": n})])


@pytest.fixture
def store(tmp_path: Path) -> Iterator[CellStore]:
    with CellStore.open(tmp_path / "from") as made:
        yield made


class TestReading:
    def test_every_cell_once(self, store: CellStore) -> None:
        values = [value_of(n) for n in range(5)]
        expected: dict[bytes, bytes] = {}
        for value in values:
            store.commit(value)
            expected |= {hash: encoding for hash, encoding, _ in novelty(value)}
        staged = value_of(9)
        store.put(staged)
        store.sync()
        expected |= {hash: encoding for hash, encoding, _ in novelty(staged)}
        found = read(Path(store.path))
        assert len(found) == len(expected)
        assert {row["hash"]: row["encoding"] for row in found} == expected
        for row in found:
            assert row["hash"] == hashlib.sha3_256(row["encoding"]).digest()
            assert row["refs"] == references(row["encoding"])

    def test_an_empty_store(self, store: CellStore) -> None:
        assert read(Path(store.path)) == []

    def test_columns(self, store: CellStore) -> None:
        store.commit(value_of(1))
        assert set(read(Path(store.path), columns="Refs,hash")[0]) == {"refs", "hash"}

    def test_the_folder_of_a_node_and_several_tasks(self, tmp_path: Path) -> None:
        with CellStore.open(tmp_path / "store", segment_bytes=1 << 20) as store:
            for n in range(6):
                store.commit(make_blob(hashlib.shake_128(bytes([n])).digest(900_000)))
            whole = read(tmp_path)
            reader = reader_of(tmp_path, minPartitions="3")
            parts = reader.partitions()
            assert len(parts) > 1
            sent = pickle.loads(pickle.dumps((reader, parts)))
            assert sorted(row["hash"] for row in rows_of(*sent)) == sorted(
                row["hash"] for row in whole
            )
            # What comes later is not of the plan.
            store.commit(value_of(1))
            assert len(rows_of(reader, parts)) == len(whole)

    def test_damage(self, tmp_path: Path) -> None:
        with CellStore.open(tmp_path / "s") as store:
            store.commit(Vector.of([make_blob(b"a" * 4_000), make_blob(b"b" * 4_000)]))
        (segment,) = (tmp_path / "s" / "segments").iterdir()
        data = bytearray(segment.read_bytes())
        at = data.find(b"b" * 4_000)
        data[at] ^= 1
        segment.write_bytes(data)
        with pytest.raises(Corruption, match=r"at byte \d+: .*lattice disk check"):
            read(tmp_path / "s")

    def test_cells_that_are_removed_meanwhile(self, store: CellStore) -> None:
        for n in range(3):
            store.commit(value_of(n))
        reader = reader_of(Path(store.path))
        parts = reader.partitions()
        store.history.forget(1 << 60)
        store.collect(grace_ms=0)
        with pytest.raises(StoreFailed, match="cells were removed from it meanwhile; begin again"):
            rows_of(reader, parts)
        assert len(read(Path(store.path))) == len(novelty(value_of(2)))

    @pytest.mark.parametrize(
        ("options", "text"),
        [
            ({"columns": "hash,value"}, "one or more of hash, encoding, refs"),
            ({"verify": "maybe"}, "true or false"),
            ({"minPartitions": "0"}, "a whole number from 1 to 262144"),
            ({"node": "tcp://localhost:1"}, "unknown option node"),
        ],
    )
    def test_options(self, store: CellStore, options: dict[str, str], text: str) -> None:
        with pytest.raises(UsageError, match=text):
            read(Path(store.path), **options)

    def test_no_store(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="there is no store"):
            read(tmp_path)


CELL_TYPES = {"hash": "BINARY", "encoding": "BINARY", "refs": "ARRAY<BINARY>"}
ARROW = pa.schema([("hash", pa.binary()), ("encoding", pa.binary())])


def batch_of(cells: Sequence[tuple[bytes | None, bytes | None]]) -> Any:
    return pa.RecordBatch.from_pylist(
        [{"hash": hash, "encoding": encoding} for hash, encoding in cells], schema=ARROW
    )


def writer_of(folder: Path, types: dict[str, str] = CELL_TYPES, /, **options: str) -> Any:
    return CellsSource({"path": str(folder), **options}).writer(struct_of(types), False)


def write(folder: Path, cells: list[tuple[Any, Any]], tasks: int = 1, **options: str) -> None:
    """Write cells as Spark does: some in each task, then the commit on the driver."""
    writer = pickle.loads(pickle.dumps(writer_of(folder, **options)))
    messages = [writer.write(iter([batch_of(cells[n::tasks])])) for n in range(tasks)]
    writer.commit(pickle.loads(pickle.dumps(messages)))


def cells_of(value: Any) -> list[tuple[bytes, bytes]]:
    """Return the cells of a value, the top one first: not the order in which a store takes them."""
    found = {hash: encoding for hash, encoding, _ in novelty(value)} | {value.hash: encode(value)}
    return list(found.items())[::-1]


class TestWriting:
    def test_a_value_into_a_new_store(self, tmp_path: Path) -> None:
        value = value_of(1)
        to = tmp_path / "to"
        write(to, cells_of(value), 3, root="0x" + value.hash.hex(), pin="kept")
        with CellStore.open(to) as store:
            assert store.load(value.hash) == value
            assert [(pin.name, pin.root_hash) for pin in store.pins.all()] == [("kept", value.hash)]
            assert store.root_hash() is None
            assert store.check().is_clean
        assert sorted(path.name for path in tmp_path.iterdir()) == ["to", "to.staging"]
        assert list((tmp_path / "to.staging").iterdir()) == []

    @pytest.mark.parametrize("tasks", [OPEN_STORES_MAX, OPEN_STORES_MAX + 1])
    def test_what_many_tasks_have_and_some_twice(self, tmp_path: Path, tasks: int) -> None:
        value = value_of(1)
        cells = cells_of(value)
        write(tmp_path / "to", cells + cells[::3], tasks, root=value.hash.hex(), pin="kept")
        with CellStore.open(tmp_path / "to") as store:
            assert store.load(value.hash) == value
            assert store.check().is_clean
        assert len(read(tmp_path / "to")) == len(cells)

    @pytest.mark.parametrize("tasks", [1, 3, OPEN_STORES_MAX + 1])
    @pytest.mark.parametrize("copies", [0, 1, 5, 12])
    def test_what_a_copy_left_when_it_ended_is_complete(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tasks: int, copies: int
    ) -> None:
        monkeypatch.setattr(sink, "NOTES_MAX", 3)
        value = Map.of({name: value_of(n) for n, name in enumerate("abc")})
        options = {"root": value.hash.hex(), "pin": "kept"}
        real = CellStore.put_encodings
        calls = 0

        def ending(store: CellStore, cells: Any) -> Any:
            nonlocal calls
            if store.path == str(tmp_path / "to"):
                calls += 1
                if calls > copies:
                    raise StoreFailed("the disk is full")
            return real(store, cells)

        with monkeypatch.context() as patch:
            patch.setattr(CellStore, "put_encodings", ending)
            with pytest.raises(StoreFailed, match="the disk is full"):
                write(tmp_path / "to", cells_of(value), tasks, **options)
        with CellStore.open(tmp_path / "to") as store:
            for row in read(tmp_path / "to"):
                assert all(store.has(below) for below in row["refs"])
        write(tmp_path / "to", cells_of(value), tasks, **options)
        with CellStore.open(tmp_path / "to") as store:
            assert store.load(value.hash) == value
            assert store.check().is_clean

    def test_a_staged_cell_that_is_damaged_is_not_copied(self, tmp_path: Path) -> None:
        value = value_of(1)
        writer = writer_of(tmp_path / "to", root=value.hash.hex(), pin="kept")
        staged = writer.write(iter([batch_of(cells_of(value))]))
        (segment,) = (Path(staged.path) / "segments").iterdir()
        data = bytearray(segment.read_bytes())
        data[data.find(bytes([1, 5]) * 300)] ^= 4
        segment.write_bytes(data)
        with pytest.raises(Corruption):
            writer.commit([staged])
        with CellStore.open(tmp_path / "to") as store:
            assert store.pins.all() == []
        assert list((tmp_path / "to.staging").iterdir()) == []

    def test_writing_again_changes_nothing(self, tmp_path: Path) -> None:
        value = value_of(1)
        for _ in range(2):
            write(tmp_path / "to", cells_of(value), root=value.hash.hex(), pin="kept")
        assert len(read(tmp_path / "to")) == len(cells_of(value))

    def test_what_the_store_has_need_not_come(self, tmp_path: Path) -> None:
        both = Vector.of([value_of(1), value_of(2)])
        with CellStore.open(tmp_path / "to") as store:
            store.commit(value_of(1))
        here = {hash for hash, _ in cells_of(value_of(1))}
        new = [cell for cell in cells_of(both) if cell[0] not in here]
        write(tmp_path / "to", new, root=both.hash.hex(), pin="both")
        with CellStore.open(tmp_path / "to") as store:
            assert store.load(both.hash) == both

    def test_a_whole_store_goes_through_rows(self, store: CellStore, tmp_path: Path) -> None:
        value = value_of(7)
        store.commit(value)
        rows = [(row["hash"], row["encoding"]) for row in read(Path(store.path))]
        write(tmp_path / "to", rows, root=value.hash.hex(), pin="copy")
        assert sorted(row["hash"] for row in read(tmp_path / "to")) == sorted(
            hash for hash, _ in rows
        )

    def test_a_root_is_merged_into_the_folder_of_a_node(self, tmp_path: Path) -> None:
        root = RootLattice(root_lattice(), None, MergeContext(key_pair=ALICE))
        Topics.at(root, ALICE.public_key).partition("t", 0).offer_many(list(range(50)))
        value: Any = root.get()
        node = tmp_path / "node"
        node.mkdir()
        write_key(Folder(node).key_path, KeyPair(bytes([2]) * 32))
        write(node, cells_of(value), root=value.hash.hex(), merge="true")
        with CellStore.open(node / "store") as store:
            assert store.root_hash() == value.hash
        assert list((node / "staging").iterdir()) == []

    def test_beside_a_running_node(self, tmp_path: Path) -> None:
        write_key(Folder(tmp_path).key_path, ALICE)
        value = value_of(1)
        cells = cells_of(value)

        def work() -> None:
            write(tmp_path, cells, root=value.hash.hex(), pin="kept")
            assert {row["hash"] for row in read(tmp_path)} >= {hash for hash, _ in cells}

        async def run() -> None:
            ready: asyncio.Future[object] = asyncio.get_running_loop().create_future()
            daemon = Daemon(
                tmp_path,
                NodeConfig(port=-1),
                key_pair=ALICE,
                ready=lambda _, node: ready.set_result(node),
            )
            async with asyncio.timeout(LIMIT_S):
                serve = asyncio.ensure_future(daemon.serve())
                try:
                    await ready
                    await asyncio.to_thread(work)
                finally:
                    daemon.stop()
                    await serve

        asyncio.run(run())
        with CellStore.open(tmp_path / "store", read_only=True) as store:
            assert [(pin.name, pin.root_hash) for pin in store.pins.all()] == [("kept", value.hash)]

    def test_only_what_is_below_the_root_is_taken(self, tmp_path: Path) -> None:
        value, other = value_of(1), value_of(2)
        write(tmp_path / "to", cells_of(value) + cells_of(other), root=value.hash.hex(), pin="p")
        assert len(read(tmp_path / "to")) == len(cells_of(value))

    def test_a_hash_need_not_be_given(self, tmp_path: Path) -> None:
        value = value_of(1)
        cells = [(None, encoding) for _, encoding in cells_of(value)]
        write(tmp_path / "to", cells, root=value.hash.hex(), pin="p")
        assert len(read(tmp_path / "to")) == len(cells)

    def test_a_missing_cell_leaves_nothing_behind(self, tmp_path: Path) -> None:
        value = value_of(1)
        cells = cells_of(value)
        with pytest.raises(MissingData, match=cells[-1][0].hex()):
            write(tmp_path / "to", cells[:-1], root=value.hash.hex(), pin="p")
        assert read(tmp_path / "to") == []
        assert list((tmp_path / "to.staging").iterdir()) == []
        with CellStore.open(tmp_path / "to") as store:
            assert store.pins.all() == []

    @pytest.mark.parametrize(
        ("cell", "error", "text"),
        [
            ((None, b"\xff\xff"), BadFormat, "is not canonical"),
            ((bytes(32), encode(5)), BadFormat, f"0x{'00' * 32} has another hash"),
            ((None, None), UsageError, "column encoding has a NULL"),
        ],
    )
    def test_bad_rows(self, tmp_path: Path, cell: Any, error: Any, text: str) -> None:
        writer = writer_of(tmp_path / "to", root="00" * 32, pin="p")
        with pytest.raises(error, match=text):
            writer.write(iter([batch_of([(None, encode(1)), cell])]))
        writer.abort([None])
        assert not list((tmp_path / "to.staging").rglob("*.seg"))
        assert not (tmp_path / "to").exists()

    def test_an_aborted_write_leaves_nothing_behind(self, tmp_path: Path) -> None:
        writer = writer_of(tmp_path / "to", root="00" * 32, pin="p")
        writer.abort([writer.write(iter([batch_of([(None, encode(1))])])), None])
        assert list((tmp_path / "to.staging").iterdir()) == []

    def test_two_saves_of_one_value_do_not_meet(self, tmp_path: Path) -> None:
        value = value_of(1)
        root = value.hash.hex()
        writers = [writer_of(tmp_path / "to", root=root, pin=pin) for pin in ("one", "two")]
        staged: list[list[Any]] = [
            [writer.write(iter([batch_of(cells_of(value))]))] for writer in writers
        ]
        beside = Path(staged[0][0].path).parent / "9-0-0123456789abcdef"
        beside.mkdir()  # what a task left that Spark gave up
        for writer, messages in zip(writers, staged, strict=True):
            writer.commit(messages)
            assert not beside.exists()
        with CellStore.open(tmp_path / "to") as store:
            assert sorted(pin.name for pin in store.pins.all()) == ["one", "two"]
        assert list((tmp_path / "to.staging").iterdir()) == []

    def test_what_a_killed_driver_left_is_removed_when_it_is_old(self, tmp_path: Path) -> None:
        batch = tmp_path / "to.staging" / f"save-{'0' * 32}" / "0"
        left = batch / "2-0-0123456789abcdef"
        left.mkdir(parents=True)
        value = value_of(1)
        write(tmp_path / "to", cells_of(value), root=value.hash.hex(), pin="p")
        assert left.exists()
        for folder in (left, batch, batch.parent):
            os.utime(folder, (0, 0))
        write(tmp_path / "to", cells_of(value), root=value.hash.hex(), pin="p")
        assert not batch.exists()

    def test_a_store_in_use(self, store: CellStore) -> None:
        value = value_of(1)
        with pytest.raises(StoreLocked):
            write(Path(store.path), cells_of(value), root=value.hash.hex(), pin="p")

    @pytest.mark.parametrize(
        ("types", "text"),
        [
            ({"hash": "BINARY"}, "always a column encoding"),
            ({"encoding": "STRING"}, "column encoding has the type STRING; it takes BINARY"),
            ({"encoding": "BINARY", "hash": "STRING"}, "column hash has the type STRING"),
            ({"encoding": "BINARY", "refs": "STRING"}, "column refs has the type STRING"),
            ({"encoding": "BINARY", "value": "STRING"}, "no column value"),
        ],
    )
    def test_columns(self, tmp_path: Path, types: dict[str, str], text: str) -> None:
        with pytest.raises(UsageError, match=text):
            writer_of(tmp_path / "to", types, root="00" * 32, pin="p")

    def test_overwriting(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="write cells with mode append"):
            CellsSource({"path": str(tmp_path / "x")}).writer(struct_of(CELL_TYPES), True)

    @pytest.mark.parametrize(
        ("options", "text"),
        [
            ({"pin": "p"}, "option root is missing"),
            ({"root": "12", "pin": "p"}, "the hash of a cell, 0x and 64 hex digits"),
            ({"root": "00" * 32}, "option pin or merge=true is missing"),
            ({"root": "00" * 32, "pin": "../x"}, "option pin='../x' is not accepted"),
            ({"root": "00" * 32, "merge": "false"}, "option pin or merge=true is missing"),
            ({"root": "00" * 32, "pin": "p", "columns": "hash"}, "unknown option columns"),
        ],
    )
    def test_options(self, tmp_path: Path, options: dict[str, str], text: str) -> None:
        with pytest.raises(UsageError, match=text):
            write_options({"store": str(tmp_path / "new"), **options})

    def test_a_folder_of_something_else(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="neither the folder of a node, nor a store"):
            write_options({"store": str(tmp_path), "root": "00" * 32, "pin": "p"})
