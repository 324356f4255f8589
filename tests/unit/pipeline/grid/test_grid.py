"""The grid as tables: what venues publish, who signed it, and jobs that change."""

from __future__ import annotations

import hashlib
import json
import logging
import pickle
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import datalattice.apps  # noqa: F401 - registers the sections of the root lattice
from datalattice.apps.grid import GRID_SECTION, Venue
from datalattice.arrow import GRID_COLUMNS, GridTable
from datalattice.cells import Index, Keyword, Map, Signed, Vector, decode_message, make_blob, same
from datalattice.crypto import KeyPair
from datalattice.cursors import RootLattice
from datalattice.errors import (
    BadSignature,
    Corruption,
    DataLoss,
    LimitExceeded,
    MissingData,
    UsageError,
)
from datalattice.lattice import MergeContext, did_of, root_lattice
from datalattice.pipeline import changes
from datalattice.pipeline.grid import rows as grid_rows
from datalattice.pipeline.grid.options import parse_options
from datalattice.pipeline.read_targets import OpenTarget
from datalattice.store import CellStore
from datalattice.testing.background import BackgroundNode
from datalattice.testing.clocks import TickingClock

pa: Any = pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from datalattice.pipeline.grid.source import GridSource  # noqa: E402 - needs Spark
from datalattice.testing.spark_kit import rows_of, struct_of  # noqa: E402 - needs Spark

ALICE, BOB = KeyPair(bytes([1]) * 32), KeyPair(bytes([2]) * 32)
NOW_MS = 1_700_000_000_000


class Grid:
    """Two venues in one store that stays open for writing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = CellStore.open(folder)
        clock = TickingClock(NOW_MS)
        self.roots = [
            RootLattice(root_lattice(), None, MergeContext(key_pair=keys)) for keys in (ALICE, BOB)
        ]
        self.alice, self.bob = (
            Venue.at(root, keys, clock=clock)
            for root, keys in zip(self.roots, (ALICE, BOB), strict=True)
        )

    def commit(self) -> bytes:
        self.alice.merge(self.bob.grid)
        return self.store.commit(self.roots[0].get()).root_hash

    def source(self, **options: str) -> GridSource:
        return GridSource({"store": str(self.folder), **options})

    def read(self, **options: str) -> list[dict[str, Any]]:
        source = self.source(**options)
        reader: Any = source.reader(struct_of(source.parsed.types))
        return rows_of(reader, reader.partitions())

    def stream(self, **options: str) -> Any:
        source = self.source(table="jobs", **options)
        return source.streamReader(struct_of(source.parsed.types))


@pytest.fixture
def grid(tmp_path: Path) -> Iterator[Grid]:
    made = Grid(tmp_path / "store")
    yield made
    made.store.close()


def artifact(content: bytes, name: str = "a") -> str:
    return json.dumps({"name": name, "content": {"sha256": hashlib.sha256(content).hexdigest()}})


class TestTables:
    def test_assets(self, grid: Grid) -> None:
        text = artifact(b"x", "Iris")
        mine = grid.alice.register(text)
        theirs = grid.bob.register(' {"title": 5}')
        grid.commit()
        found = {row["asset"]: row for row in grid.read(table="assets")}
        assert found == {
            mine.hex(): {
                "venue": did_of(ALICE.public_key),
                "asset": mine.hex(),
                "name": "Iris",
                "content": hashlib.sha256(b"x").hexdigest(),
                "metadata": text,
            },
            theirs.hex(): {
                "venue": did_of(BOB.public_key),
                "asset": theirs.hex(),
                "name": None,
                "content": None,
                "metadata": ' {"title": 5}',
            },
        }

    def test_jobs(self, grid: Grid) -> None:
        made = grid.alice.create_job({"op": "x", "n": 1.5})
        grid.alice.update_job(made, {"status": "COMPLETE"})
        grid.commit()
        record = grid.alice.job(made)
        assert isinstance(record, Map)
        (row,) = grid.read(table="jobs")
        assert json.loads(row.pop("record")) == {
            "id": made.hex(),
            "status": "COMPLETE",
            "created": record.get("created"),
            "updated": record.get("updated"),
            "op": "x",
            "n": 1.5,
        }
        for name in ("created", "updated"):
            stamp_ms = record.get(name)
            assert isinstance(stamp_ms, int)
            assert row.pop(name) == datetime.fromtimestamp(stamp_ms / 1000, UTC)
        assert row == {"venue": grid.alice.did, "job": made.hex(), "status": "COMPLETE"}
        (cell,) = grid.read(table="jobs", columns="record", valueFormat="cell")
        assert same(decode_message(cell["record"]), record)
        (variant,) = grid.read(table="jobs", columns="record", valueFormat="variant")
        assert set(variant["record"]) == {"value", "metadata"}

    def test_meta_is_that_of_all_venues_once(self, grid: Grid) -> None:
        for venue in (grid.alice, grid.bob):
            venue.register('{"a":1}')
        made = grid.bob.register('{"b":1}')
        grid.commit()
        found = grid.read(table="meta")
        assert [row["metadata"] for row in found if row["asset"] == made.hex()] == ['{"b":1}']
        assert len(found) == 2

    def test_storage(self, grid: Grid) -> None:
        content = b"z" * 10_000
        grid.alice.put_content(grid.alice.register(artifact(content)), content)
        grid.commit()
        name = hashlib.sha256(content).hexdigest()
        listed = {"venue": grid.alice.did, "hash": name, "size": 10_000}
        assert grid.read(table="storage") == [listed]
        assert grid.read(table="storage", includeContent="true") == [{**listed, "content": content}]

    def test_venues_are_chosen(self, grid: Grid) -> None:
        grid.alice.create_job()
        made = grid.bob.create_job()
        grid.commit()
        assert [row["job"] for row in grid.read(table="jobs", venue=grid.bob.did)] == [made.hex()]
        with pytest.raises(UsageError, match=r"venue='did:key:zz' .* no such venue; it has: did"):
            grid.read(table="jobs", venue="did:key:zz")

    def test_an_empty_store_and_an_empty_grid_have_no_rows(self, grid: Grid) -> None:
        for table in GRID_COLUMNS:
            assert grid.read(table=table.value) == []
        grid.commit()
        for table in GRID_COLUMNS:
            assert grid.read(table=table.value) == []

    def test_hidden_entries_are_read_on_demand(self, grid: Grid) -> None:
        seen, hidden = grid.alice.create_job(), grid.alice.create_job()
        grid.alice.hide("jobs", hidden)
        grid.commit()
        assert [row["job"] for row in grid.read(table="jobs")] == [seen.hex()]
        both = grid.read(table="jobs", includeHidden="true")
        assert {row["job"] for row in both} == {seen.hex(), hidden.hex()}

    def test_as_of_reads_an_earlier_root(self, grid: Grid) -> None:
        grid.alice.create_job()
        before = grid.commit()
        grid.alice.create_job()
        grid.commit()
        assert len(grid.read(table="jobs")) == 2
        assert len(grid.read(table="jobs", asOf="0x" + before.hex())) == 1

    def test_many_entries_become_several_tasks(
        self, grid: Grid, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(grid_rows, "ENTRIES_PER_TASK_MAX", 10)
        made = {grid.alice.create_job({"n": n}).hex() for n in range(60)}
        grid.commit()
        source = grid.source(table="jobs")
        reader: Any = source.reader(struct_of(source.parsed.types))
        parts = reader.partitions()
        counts = [len(rows_of(reader, [part])) for part in parts]
        assert len(parts) >= 6
        assert max(counts) <= 10
        assert {row["job"] for row in rows_of(reader, parts)} == made

    def test_tasks_read_what_was_planned(self, grid: Grid) -> None:
        grid.alice.create_job()
        grid.commit()
        source = grid.source(table="jobs")
        reader: Any = source.reader(struct_of(source.parsed.types))
        parts = reader.partitions()
        grid.alice.create_job()
        grid.commit()
        assert len(rows_of(reader, parts)) == 1


class TestWhatIsRefused:
    @pytest.mark.parametrize(
        ("options", "text"),
        [
            ({}, "option table is missing: one of assets, jobs, meta, storage"),
            ({"table": "users"}, "option table='users' is not accepted"),
            ({"table": "meta", "venue": "did:key:z"}, "not divided by venues"),
            ({"table": "jobs", "includeContent": "true"}, "only the table storage has contents"),
            (
                {"table": "storage", "includeContent": "true", "columns": "hash"},
                "columns='hash' contradicts it",
            ),
            ({"table": "jobs", "columns": "asset"}, "one or more of venue, job, status"),
            ({"table": "jobs", "tabel": "x"}, "did you mean table"),
            ({"table": "storage", "maxContentBytes": "2g"}, "from 1 to 1073741824"),
            ({"table": "storage", "maxContentBytes": "0"}, "from 1 to 1073741824"),
            ({"table": "jobs", "startingOffsets": "0x12"}, "the hash of a root"),
        ],
    )
    def test_options(self, options: dict[str, str], text: str) -> None:
        with pytest.raises(UsageError, match=text):
            parse_options({"store": "s", **options})

    def test_options_of_the_other_kind(self, grid: Grid) -> None:
        for name, value in (("startingOffsets", "latest"), ("failOnDataLoss", "false")):
            with pytest.raises(UsageError, match=f"option {name} is for streams"):
                grid.read(table="jobs", **{name: value})
        source = grid.source(table="assets")
        with pytest.raises(UsageError, match="only jobs can be streamed"):
            source.streamReader(struct_of(source.parsed.types))
        with pytest.raises(UsageError, match="option asOf is for batches"):
            grid.stream(asOf="HEAD")

    def test_a_schema_of_ones_own(self, grid: Grid) -> None:
        with pytest.raises(UsageError, match=r"the rows of lattice.grid are \(asset STRING"):
            grid.source(table="meta").reader(struct_of({"asset": "STRING"}))

    def test_the_bytes_format_takes_no_record(self, grid: Grid) -> None:
        grid.alice.create_job()
        grid.commit()
        with pytest.raises(UsageError, match=r"valueFormat='bytes' .* a job's record is a Map"):
            grid.read(table="jobs", valueFormat="bytes")

    @pytest.mark.parametrize("format", ["json", "string", "variant"])
    def test_a_record_that_is_not_a_text(self, grid: Grid, format: str) -> None:
        deep: Any = None
        for _ in range(600):
            deep = Vector.of([deep])
        made = grid.alice.create_job({"input": deep})
        grid.commit()
        with pytest.raises(LimitExceeded, match=f"job {made.hex()} of did:.*500 levels.*columns"):
            grid.read(table="jobs", valueFormat=format)
        assert len(grid.read(table="jobs", valueFormat="cell")) == 1
        assert grid.read(table="jobs", columns="job") == [{"job": made.hex()}]

    def test_contents_beyond_the_limit(self, grid: Grid) -> None:
        content = b"q" * 1_000
        grid.alice.put_content(grid.alice.register(artifact(content)), content)
        grid.commit()
        for limit in ("1000", "1001", "1k"):
            (row,) = grid.read(table="storage", includeContent="true", maxContentBytes=limit)
            assert row["content"] == content
        with pytest.raises(LimitExceeded, match="has 1000 bytes, and maxContentBytes is 999"):
            grid.read(table="storage", includeContent="true", maxContentBytes="999")
        assert grid.read(table="storage", maxContentBytes="999")[0]["size"] == 1_000

    @pytest.mark.parametrize("signer", [ALICE, BOB])
    def test_a_forged_venue(self, grid: Grid, signer: KeyPair) -> None:
        state = Index.of({Keyword("jobs"): Index.of({b"j" * 16: {"status": "PENDING"}})})
        signed = Signed.sign(signer, state)
        if signer is ALICE:  # the right key, and a signature of something else
            signed = Signed(ALICE.public_key, signed.signature, Index())
        venues = Index.of({did_of(ALICE.public_key): signed})
        grid.store.commit(Index.of({GRID_SECTION: Index.of({Keyword("venues"): venues})}))
        with pytest.raises(BadSignature, match="is not signed by its key"):
            grid.read(table="jobs")

    @pytest.mark.parametrize(
        ("part", "table", "value"),
        [
            ("assets", GridTable.ASSETS, Map.of({"metadata": '{"a":1}'})),
            ("assets", GridTable.ASSETS, Map.of({"metadata": "no JSON"})),
            ("storage", GridTable.STORAGE, make_blob(b"other")),
        ],
    )
    def test_what_is_not_what_its_key_says(
        self, grid: Grid, part: str, table: GridTable, value: Any
    ) -> None:
        state = Index.of({Keyword(part): Index.of({bytes(32): value})})
        venues = Index.of({did_of(ALICE.public_key): Signed.sign(ALICE, state)})
        grid.store.commit(Index.of({GRID_SECTION: Index.of({Keyword("venues"): venues})}))
        columns = ",".join(GRID_COLUMNS[table])
        with pytest.raises(Corruption, match=f"{bytes(32).hex()} is damaged"):
            grid.read(table=table.value, columns=columns)

    def test_what_is_not_a_entry_is_left_out(self, grid: Grid) -> None:
        # A venue may write anything below its own DID; merges elsewhere drop it.
        parts = {"assets": 5, "jobs": "text", "storage": Vector.of([])}
        state = Index.of({Keyword(name): Index.of({b"k": one}) for name, one in parts.items()})
        venues = Index.of({did_of(ALICE.public_key): Signed.sign(ALICE, state)})
        meta = Index.of({b"m": 7})
        whole = Index.of({Keyword("venues"): venues, Keyword("meta"): meta})
        grid.store.commit(Index.of({GRID_SECTION: whole}))
        for table in GRID_COLUMNS:
            assert grid.read(table=table.value) == []


class TestStream:
    def names(self, reader: Any, start: Any, end: Any) -> list[str]:
        return [row["job"] for row in rows_of(reader, reader.partitions(start, end))]

    def test_changes_come_batch_by_batch(self, grid: Grid) -> None:
        first = grid.alice.create_job()
        grid.commit()
        reader = grid.stream()
        start = reader.initialOffset()
        assert start == {"version": 1, "root": None}
        middle = reader.latestOffset(start, reader.getDefaultReadLimit())
        assert self.names(reader, start, middle) == [first.hex()]
        assert reader.latestOffset(middle, None) == middle
        second = grid.bob.create_job()
        grid.alice.update_job(first, {"status": "STARTED"})
        grid.commit()
        end = reader.latestOffset(middle, None)
        assert reader.reportLatestOffset() == end
        assert sorted(self.names(reader, middle, end)) == sorted([first.hex(), second.hex()])
        # A batch that is planned again, also by another process, has the same rows.
        assert sorted(self.names(grid.stream(), middle, end)) == sorted([first.hex(), second.hex()])
        reader.commit(end)
        assert self.names(reader, end, end) == []

    def test_an_empty_store(self, grid: Grid) -> None:
        reader = grid.stream()
        start = reader.initialOffset()
        assert reader.latestOffset(start, None) == start
        assert reader.partitions(start, start) == []

    def test_latest_begins_with_what_changes(self, grid: Grid) -> None:
        grid.alice.create_job()
        root = grid.commit()
        made = None
        for options in ({"startingOffsets": "latest"}, {"startingOffsets": root.hex()}):
            reader = grid.stream(**options)
            start = reader.initialOffset()
            made = made or grid.alice.create_job()
            grid.commit()
            assert self.names(reader, start, reader.latestOffset(start, None)) == [made.hex()]

    def test_available_now_ends_at_the_root_of_its_beginning(self, grid: Grid) -> None:
        first = grid.alice.create_job()
        grid.commit()
        reader = grid.stream()
        reader.prepareForTriggerAvailableNow()
        grid.alice.create_job()
        grid.commit()
        start = reader.initialOffset()
        end = reader.latestOffset(start, None)
        assert self.names(reader, start, end) == [first.hex()]
        assert reader.latestOffset(end, None) == end

    def test_roots_are_leased_until_the_batch_behind_them_is_done(self, grid: Grid) -> None:
        offsets = [grid.stream().initialOffset()]
        reader = grid.stream(leaseSeconds="60")

        def leased() -> list[bytes]:
            return [lease.root_hash for lease in grid.store.pins.leases()]

        made = []
        for _ in range(3):
            grid.alice.create_job()
            made.append(grid.commit())
            offsets.append(reader.latestOffset(offsets[-1], None))
            assert len(self.names(reader, *offsets[-2:])) == 1
        assert sorted(leased()) == sorted(made)
        reader.commit(offsets[2])
        assert sorted(leased()) == sorted(made[1:])
        reader.commit(offsets[3])
        assert leased() == made[2:]

    def test_what_others_write_makes_no_batch(
        self, grid: Grid, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        grid.alice.create_job()
        grid.commit()
        reader = grid.stream()
        start = reader.latestOffset(reader.initialOffset(), None)
        for _ in range(2):
            grid.alice.register(json.dumps({"n": grid.bob.register("{}").hex()}))
            grid.commit()
            assert reader.latestOffset(start, None) == start
        monkeypatch.setattr(changes, "STAND_MS", -1)  # it stood there for long
        moved = reader.latestOffset(start, None)
        assert moved != start
        assert reader.partitions(start, moved) == []

    def test_a_present_root_that_is_damaged(
        self, grid: Grid, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def lost(*_: object) -> None:
            raise MissingData([bytes(32)])

        grid.alice.create_job()
        grid.commit()
        monkeypatch.setattr(OpenTarget, "lease", lost)
        with pytest.raises(DataLoss):
            grid.stream(startingOffsets="latest").initialOffset()

    def test_the_reader_travels_without_what_it_holds(self, grid: Grid) -> None:
        grid.alice.create_job()
        grid.commit()
        reader = grid.stream()
        start = reader.initialOffset()
        parts = reader.partitions(start, reader.latestOffset(start, None))
        assert len(rows_of(*pickle.loads(pickle.dumps((reader, parts))))) == 1

    def test_a_root_that_is_gone(self, grid: Grid, caplog: pytest.LogCaptureFixture) -> None:
        made = grid.alice.create_job()
        grid.commit()
        gone = {"version": 1, "root": "0x" + "ab" * 32}
        reader = grid.stream()
        end = reader.latestOffset(gone, None)
        with pytest.raises(DataLoss, match=f"since the root 0x{'ab' * 32} are unknown"):
            reader.partitions(gone, end)
        with pytest.raises(DataLoss):
            grid.stream(startingOffsets="ab" * 32).initialOffset()
        lenient = grid.stream(failOnDataLoss="false")
        with caplog.at_level(logging.WARNING, "datalattice.pipeline"):
            assert self.names(lenient, gone, end) == [made.hex()]
            assert self.names(lenient, lenient.initialOffset(), gone) == [made.hex()]
            assert self.names(lenient, end, gone) == []  # what changed up to the present root
        assert "reading all jobs again" in caplog.text

    @pytest.mark.parametrize(
        "offset", [{}, {"version": 2, "root": None}, {"version": 1, "root": 5}]
    )
    def test_a_position_of_another_version(self, grid: Grid, offset: dict[str, object]) -> None:
        reader = grid.stream()
        with pytest.raises(UsageError, match="holds no position of this source"):
            reader.partitions(reader.initialOffset(), offset)


def test_the_reader_travels_to_tasks(grid: Grid) -> None:
    grid.alice.create_job()
    grid.commit()
    source = grid.source(table="jobs")
    reader: Any = source.reader(struct_of(source.parsed.types))
    parts: Callable[[], Any] = reader.partitions
    sent = pickle.loads(pickle.dumps((reader, parts())))
    assert len(rows_of(*sent)) == 1


def test_a_running_node_gives_the_rows_of_its_store(grid: Grid) -> None:
    content = bytes(range(256)) * 100
    made = grid.alice.register(artifact(content))
    grid.alice.put_content(made, content)
    for n in range(20):
        grid.bob.create_job({"n": n})
    grid.commit()
    jobs, stored = grid.read(table="jobs"), grid.read(table="storage", includeContent="true")
    grid.store.close()
    with BackgroundNode(grid.folder, ALICE) as node:

        def source(**options: str) -> tuple[GridSource, Any]:
            found = GridSource({"node": node.address, **options})
            return found, struct_of(found.parsed.types)

        batch, schema = source(table="storage", includeContent="true")
        reader: Any = batch.reader(schema)
        assert rows_of(reader, reader.partitions()) == stored
        stream, schema = source(table="jobs")
        reader = stream.streamReader(schema)
        start = reader.initialOffset()
        end = reader.latestOffset(start, None)
        assert rows_of(reader, reader.partitions(start, end)) == jobs
        reader.commit(end)
        assert reader.latestOffset(end, None) == end
        venue = Venue.at(node.node.cursor, ALICE)
        new = node.edit(lambda _: venue.create_job({"n": 20}))
        later = reader.latestOffset(end, None)
        assert [row["job"] for row in rows_of(reader, reader.partitions(end, later))] == [new.hex()]
