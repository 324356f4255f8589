"""The source in one process: plans and tasks over a store, a past root and a running node."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from datalattice.apps.queue import Topics
from datalattice.cells import element_runs
from datalattice.clock import SystemClock
from datalattice.crypto import KeyPair
from datalattice.cursors import RootLattice
from datalattice.errors import Corruption, DataLoss, MissingData, PeerUnavailable, UsageError
from datalattice.lattice import MergeContext, root_lattice
from datalattice.limits import FAN_OUT
from datalattice.pipeline import remote
from datalattice.pipeline.leasing import RootLease
from datalattice.pipeline.read_targets import (
    MOVED_MAX,
    OpenTarget,
    ReadTarget,
    encodings,
    open_target,
)
from datalattice.store import CellStore
from datalattice.store.gc import collection
from datalattice.store.kept import KEEP_NOTHING
from datalattice.store.log.packing import locate
from datalattice.store.log.segments import segment_path
from datalattice.testing.background import BackgroundNode

pytest.importorskip("pyspark")
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import StructType

from datalattice.pipeline.queue.source import (
    QueueReader,
    QueueSource,
    QueueStreamReader,
)
from datalattice.testing.clocks import LateClock
from datalattice.testing.planting import flip

KEYS = KeyPair(bytes([1]) * 32)


class Writer:
    """One owner's queue in a store that stays open for writing and remembers no former roots."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = LateClock()
        self.store = CellStore.open(
            folder, retention=KEEP_NOTHING, clock=self.clock, segment_bytes=4_096
        )
        self.root = RootLattice(root_lattice(), None, MergeContext(key_pair=KEYS))

    def offer(self, *values: object) -> None:
        Topics.at(self.root, KEYS.public_key).partition("t", 0).offer_many(list(values))
        self.store.commit(self.root.get())

    def truncate(self, offset: int) -> None:
        Topics.at(self.root, KEYS.public_key).partition("t", 0).truncate(offset)
        self.store.commit(self.root.get())

    def collect(self) -> None:
        """Remove everything that nobody needs now."""
        self.clock.late_ms += 60_000
        self.store.collect(grace_ms=0)

    @property
    def leased(self) -> list[bytes]:
        return [one.root_hash for one in self.store.pins.leases()]


@pytest.fixture
def writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Writer]:
    monkeypatch.setattr(collection, "FREED_BYTES_MIN", 1)  # a little is worth a collection
    made = Writer(tmp_path / "store")
    yield made
    made.store.close()


def schema(source: QueueSource) -> StructType:
    # Parsing DDL needs a running Spark; the columns of these tests are of these types.
    types = {"offset": "long", "value": "string", "partition": "long", "topic": "string"}
    fields = [
        {"name": name, "type": types[name], "nullable": True, "metadata": {}}
        for name in source.parsed.columns
    ]
    return StructType.fromJson({"fields": fields})


def source_of(where: Writer | BackgroundNode, **options: str) -> QueueSource:
    place = (
        {"node": where.address}
        if isinstance(where, BackgroundNode)
        else {"store": str(where.folder)}
    )
    return QueueSource({"columns": "offset,value", "valueFormat": "json", **place, **options})


def batch(where: Writer | BackgroundNode, **options: str) -> QueueReader:
    source = source_of(where, **options)
    reader = source.reader(schema(source))
    assert isinstance(reader, QueueReader)
    return reader


def stream(where: Writer | BackgroundNode, **options: str) -> QueueStreamReader:
    source = source_of(where, **options)
    reader = source.streamReader(schema(source))
    assert isinstance(reader, QueueStreamReader)
    return reader


def rows(reader: QueueReader | QueueStreamReader, tasks: Sequence[InputPartition]) -> list[object]:
    """Return the values that tasks read, each in a copy of the reader as a worker gets it."""
    found = []
    for task in tasks:
        in_worker, given = pickle.loads(pickle.dumps((reader, task)))
        for one in in_worker.read(given):
            found += [json.loads(value) for value in one.column("value").to_pylist()]
    return found


def start(reader: QueueStreamReader) -> dict[str, object]:
    return through_json(reader.initialOffset())


def through_json(offset: dict[str, object]) -> dict[str, Any]:
    found = json.loads(json.dumps(offset))
    assert isinstance(found, dict)
    return found


# --- batches ------------------------------------------------------------------------------------


def test_a_batch_reads_the_root_that_was_planned(writer: Writer) -> None:
    writer.offer(*range(100))
    reader = batch(writer, minPartitions="3")
    tasks = reader.partitions()
    assert len(tasks) == 3
    writer.offer(*range(100, 200))
    writer.truncate(150)
    writer.collect()
    assert rows(reader, tasks) == list(range(100))
    assert rows(reader, reader.partitions()) == list(range(150, 200))


def test_a_leaf_that_is_damaged_is_reported_with_its_hash(writer: Writer) -> None:
    writer.offer(*("x" * 100 for _ in range(600)))
    reader = batch(writer)
    (task,) = tasks = reader.partitions()
    assert len(rows(reader, tasks)) == 600
    place = open_target(ReadTarget(str(writer.folder)))
    asked: list[bytes] = []

    def fetch(hash: bytes) -> bytes:
        asked.append(hash)
        return encodings(place)(hash)

    *_, run = element_runs(task.part.log.entries, 100, 101, fetch)
    leaf = asked[-1]
    segment, offset, _ = locate(writer.store.location_of(leaf))
    flip(Path(segment_path(str(writer.folder), segment)), offset + len(run.data) - 10)
    trusting = batch(writer, verify="false")
    found = rows(trusting, trusting.partitions())
    assert len(found) == 600
    wrong = {number % FAN_OUT for number, value in enumerate(found) if value != "x" * 100}
    assert wrong == {FAN_OUT - 1}  # the last record of the leaf, wherever that stands
    with pytest.raises(Corruption, match=leaf.hex()):
        rows(reader, tasks)


def test_without_a_lease_what_was_planned_may_go(writer: Writer) -> None:
    writer.offer(*("x" * 300 for _ in range(100)))
    reader = batch(writer, leaseSeconds="0")
    tasks = reader.partitions()
    assert writer.leased == []
    writer.truncate(100)
    writer.collect()
    open_target(ReadTarget(str(writer.folder))).root_hash()  # as a new process
    with pytest.raises(DataLoss, match=r"store does not have; .*leaseSeconds"):
        rows(reader, tasks)


def test_a_plan_leases_its_root(writer: Writer) -> None:
    writer.offer(*range(10))
    root_hash = writer.store.root_hash()
    batch(writer, leaseSeconds="100").partitions()
    (lease,) = writer.store.pins.leases()
    assert lease.root_hash == root_hash
    assert lease.expires_ms is not None
    assert 0 < lease.expires_ms - SystemClock().now_ms() <= 100_000


def test_a_past_root_is_read_as_it_was(writer: Writer) -> None:
    writer.offer(*range(10))
    hash = writer.store.root_hash()
    assert hash is not None
    writer.store.pins.pin(hash, "ten")
    writer.offer(*range(10, 20))
    for as_of in ("ten", "0x" + hash.hex()):
        reader = batch(writer, asOf=as_of)
        assert rows(reader, reader.partitions()) == list(range(10))
    with pytest.raises(UsageError, match="nobody"):
        batch(writer, asOf="nobody").partitions()
    with pytest.raises(UsageError, match="asOf is for batches"):
        stream(writer, asOf="ten")


def test_a_nodes_folder_names_its_store(writer: Writer) -> None:
    writer.offer(*range(10))
    source = QueueSource({"path": str(writer.folder.parent), "columns": "offset"})
    reader = source.reader(schema(source))
    assert isinstance(reader, QueueReader)
    assert len(reader.partitions()) == 1


def test_what_a_task_is_given_is_small(writer: Writer) -> None:
    for first in range(0, 40_000, 10_000):
        writer.offer(*range(first, first + 10_000))
    (task,) = batch(writer).partitions()
    assert len(pickle.dumps(task)) < 4_000


@pytest.fixture
def between(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Return what has the next roots that are chosen collected before they can be leased."""
    lease, moves = OpenTarget.lease, iter(range(0))

    def late(self: OpenTarget, hash: bytes, seconds: float) -> RootLease:
        if next(moves, None) is not None:
            writer.offer("new")
            writer.collect()
        return lease(self, hash, seconds)

    def plant(times: int) -> None:
        nonlocal moves
        moves = iter(range(times))

    monkeypatch.setattr(OpenTarget, "lease", late)
    return plant


def test_a_plan_whose_root_is_collected_looks_at_the_one_that_came_after(
    writer: Writer, between: Callable[[int], None]
) -> None:
    writer.offer("a")
    reader = batch(writer)
    between(MOVED_MAX)
    with pytest.raises(MissingData):
        reader.partitions()
    between(MOVED_MAX - 1)
    assert rows(reader, reader.partitions()) == ["a", *["new"] * (2 * MOVED_MAX - 1)]


# --- streams ------------------------------------------------------------------------------------


def test_a_stream_reads_a_batch_from_the_root_where_it_found_its_end(writer: Writer) -> None:
    reader = stream(writer)
    begin = start(reader)
    assert through_json(reader.latestOffset(begin, ReadAllAvailable())) == begin
    assert writer.leased == []
    writer.offer(*range(100))
    end = through_json(reader.latestOffset(begin, ReadAllAvailable()))
    assert writer.leased == [writer.store.root_hash()]
    writer.offer(*range(100, 200))
    writer.truncate(150)
    writer.collect()
    tasks = reader.partitions(begin, end)
    assert rows(reader, tasks) == list(range(100)), "truncated and collected meanwhile"
    # The records up to 150 are gone before anybody asked for them.
    with pytest.raises(DataLoss, match="records 100 to 149"):
        reader.latestOffset(end, ReadAllAvailable())


def test_leases_of_a_stream_are_given_back(writer: Writer) -> None:
    reader = stream(writer)
    begin = start(reader)
    roots = []
    for first in (0, 10, 20):
        writer.offer(*range(first, first + 10))
        roots.append(writer.store.root_hash())
        end = through_json(reader.latestOffset(begin, ReadAllAvailable()))
        reader.commit(begin)  # as Spark does: with the next batch
        assert rows(reader, reader.partitions(begin, end)) == list(range(first, first + 10))
        assert writer.leased == roots[-1:]
        begin = end
    reader.stop()
    assert writer.leased == []


def test_idle_looks_lease_nothing_and_read_nothing_again(writer: Writer) -> None:
    writer.offer(*range(10))
    reader = stream(writer)
    end = through_json(reader.latestOffset(start(reader), ReadAllAvailable()))
    seen = reader._last
    for _ in range(3):
        assert through_json(reader.latestOffset(end, ReadAllAvailable())) == end
        assert through_json(reader.reportLatestOffset()) == end
    assert reader._last is seen
    assert len(writer.leased) == 1


def test_a_query_that_is_started_again_reads_the_same(writer: Writer) -> None:
    writer.offer(*range(100))
    reader = stream(writer, maxOffsetsPerTrigger="30")
    limit = reader.getDefaultReadLimit()
    assert isinstance(limit, ReadMaxRows)
    begin = start(reader)
    end = through_json(reader.latestOffset(begin, limit))
    first = rows(reader, reader.partitions(begin, end))
    assert first == list(range(30))
    writer.offer(*range(100, 150))
    again = stream(writer, maxOffsetsPerTrigger="30")
    assert rows(again, again.partitions(begin, end)) == first
    after = through_json(again.latestOffset(end, limit))
    assert rows(again, again.partitions(end, after)) == list(range(30, 60))


def test_a_stream_whose_root_is_collected_looks_at_the_one_that_came_after(
    writer: Writer, between: Callable[[int], None]
) -> None:
    writer.offer("a")
    reader = stream(writer)
    begin = start(reader)
    between(2)
    end = through_json(reader.latestOffset(begin, ReadAllAvailable()))
    assert rows(reader, reader.partitions(begin, end)) == ["a", "new", "new"]
    between(1)
    again = stream(writer)  # the query is started again, and asks for the same
    assert rows(again, again.partitions(begin, end)) == ["a", "new", "new"]


def test_a_stream_that_slept_longer_than_its_lease_reads_the_root_of_now(writer: Writer) -> None:
    writer.offer(*range(5))
    reader = stream(writer, leaseSeconds="1")
    begin = start(reader)
    end = through_json(reader.latestOffset(begin, ReadAllAvailable()))
    writer.offer("later")
    for lease in reader._leases._held.values():
        lease.expires_ms = 0
    writer.collect()
    assert rows(reader, reader.partitions(begin, end)) == list(range(5))


def test_a_stream_that_is_ahead_of_its_log_says_so_once(
    writer: Writer, caplog: pytest.LogCaptureFixture
) -> None:
    """As where a store was put back from an older copy."""
    writer.offer(*range(10))
    ahead = json.loads(
        json.dumps(start(stream(writer, startingOffsets="latest"))).replace("10", "50")
    )
    with pytest.raises(DataLoss, match="records 10 to 49 are not there: the log ends at 10"):
        stream(writer).latestOffset(ahead, ReadAllAvailable())
    reader = stream(writer, failOnDataLoss="false")
    for _ in range(3):
        assert through_json(reader.latestOffset(ahead, ReadAllAvailable())) == ahead
    assert caplog.text.count("the log ends at 10; waiting for records after them") == 1
    writer.offer(*range(10, 60))
    end = through_json(reader.latestOffset(ahead, ReadAllAvailable()))
    assert rows(reader, reader.partitions(ahead, end)) == list(range(50, 60))


def test_all_that_was_there_at_the_start_and_no_more(writer: Writer) -> None:
    writer.offer(*range(10))
    reader = stream(writer)
    begin = start(reader)
    reader.prepareForTriggerAvailableNow()
    writer.offer(*range(10, 20))
    end = through_json(reader.latestOffset(begin, ReadAllAvailable()))
    assert rows(reader, reader.partitions(begin, end)) == list(range(10))
    assert through_json(reader.latestOffset(end, ReadAllAvailable())) == end


# --- nodes --------------------------------------------------------------------------------------


@pytest.fixture
def node(tmp_path: Path) -> Iterator[BackgroundNode]:
    with BackgroundNode(tmp_path / "node" / "store", KEYS) as running:
        yield running
        open_target(ReadTarget(node=running.address)).close()


def offer(node: BackgroundNode, *values: object) -> None:
    def change(cursor: RootLattice) -> None:
        Topics.at(cursor, KEYS.public_key).partition("t", 0).offer_many(list(values))

    node.edit(change)


def test_a_batch_from_a_node(node: BackgroundNode) -> None:
    values = [f"{i}" * 50 for i in range(3_000)]
    offer(node, *values)
    reader = batch(node, minPartitions="4", columns="topic,partition,offset,value")
    tasks = reader.partitions()
    assert len(tasks) == 4
    offer(node, "more")
    assert rows(reader, tasks) == values
    root_hash = tasks[0].snapshot.root_hash
    assert root_hash is not None
    past = batch(node, asOf="0x" + root_hash.hex())
    assert len(rows(past, past.partitions())) == 3_000
    assert len(rows(reader, reader.partitions())) == 3_001


def test_a_stream_from_a_node_that_is_started_anew(node: BackgroundNode) -> None:
    reader = stream(node)
    begin = start(reader)
    offer(node, *range(100))
    end = through_json(reader.latestOffset(begin, ReadAllAvailable()))
    tasks = reader.partitions(begin, end)
    node.stop()
    node.start()
    assert rows(reader, tasks) == list(range(100))
    offer(node, *range(100, 150))
    after = through_json(reader.latestOffset(end, ReadAllAvailable()))
    reader.commit(end)
    assert rows(reader, reader.partitions(end, after)) == list(range(100, 150))
    reader.stop()


def test_a_node_that_is_gone_is_a_clear_error(
    node: BackgroundNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(node, *("x" * 300 for _ in range(1_000)))
    monkeypatch.setattr(remote, "PATIENCE_S", 0.1)
    reader = batch(node)
    tasks = reader.partitions()
    node.stop()
    with pytest.raises(PeerUnavailable, match=f"node {node.address} cannot be reached"):
        rows(reader, tasks)


def test_only_what_is_needed_is_fetched(node: BackgroundNode) -> None:
    """Large values stay where they are when their column is not asked for."""
    offer(node, *(bytes([i]) * 50_000 for i in range(40)))
    reader = batch(node, columns="offset")
    tasks = reader.partitions()
    cells = open_target(ReadTarget(node=node.address))._cells
    assert isinstance(cells, remote.RemoteCells)
    before = cells.requests
    assert sum(one.num_rows for task in tasks for one in reader.read(task)) == 40
    assert cells.requests == before


def test_spark_looks_for_null_only_where_a_record_may_lack_something() -> None:
    columns = QueueSource({"store": "unread", "valueFormat": "bytes"}).schema().split(", ")
    assert [column for column in columns if column.endswith(" NOT NULL")] == [
        "`owner` STRING NOT NULL",
        "`topic` STRING NOT NULL",
        "`partition` BIGINT NOT NULL",
        "`offset` BIGINT NOT NULL",
    ]
    assert len(columns) == 7
