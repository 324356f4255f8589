"""Spark reads queues: in batches, as streams, over restarts, truncation and mistakes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from datalattice.apps.queue import Queue, Topics
from datalattice.cells import Keyword, decode_message, same, to_cell
from datalattice.crypto import KeyPair
from datalattice.cursors import RootLattice
from datalattice.errors import DataLatticeError, DataLoss, UsageError
from datalattice.lattice import MergeContext, root_lattice
from datalattice.pipeline import clear_errors
from datalattice.store import CellStore
from datalattice.testing.clocks import TickingClock

pytest.importorskip("pyspark")
pytestmark = [pytest.mark.once, pytest.mark.spark, pytest.mark.timeout(120)]

ALICE, BOB = KeyPair(bytes([1]) * 32), KeyPair(bytes([2]) * 32)


def name_of(keys: KeyPair) -> str:
    return "0x" + keys.public_key.hex()


class Writer:
    """Queues of one or two owners in one store that stays open for writing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = CellStore.open(folder)
        self.clock = TickingClock()
        self.roots = {
            keys.public_key: RootLattice(root_lattice(), None, MergeContext(key_pair=keys))
            for keys in (ALICE, BOB)
        }

    def queue(self, partition: object = 0, topic: str = "t", keys: KeyPair = ALICE) -> Queue:
        root = self.roots[keys.public_key]
        return Topics.at(root, keys.public_key, self.clock).partition(topic, partition)

    def commit(self) -> None:
        both = [root.get() for root in self.roots.values()]
        self.store.commit(root_lattice().merge(both[0], both[1]))

    def offer(self, values: range | list[Any], partition: object = 0, **where: Any) -> None:
        self.queue(partition, **where).offer_many(list(values))
        self.commit()

    def truncate(self, offset: int) -> None:
        self.queue().truncate(offset)
        self.commit()


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Writer]:
    made = Writer(tmp_path / "store")
    yield made
    made.store.close()


@pytest.fixture
def read(spark: Any, writer: Writer) -> Callable[..., Any]:
    def frame(**options: str) -> Any:
        return spark.read.format("lattice.queue").options(**options).load(str(writer.folder))

    return frame


class Stream:
    """A query over the queues that remembers its batches; each `run` is a new start of it."""

    def __init__(self, spark: Any, folder: Path, checkpoint: Path) -> None:
        self.spark = spark
        self.folder = folder
        self.checkpoint = checkpoint
        self.batches: dict[int, list[int]] = {}
        self.fail_at: int | None = None

    def run(self, **options: str) -> list[int]:
        """Read what is there, then end; return the values of this run."""
        seen: list[int] = []

        def keep(frame: Any, batch: int) -> None:
            values = sorted(int(row.value) for row in frame.collect())
            again = self.batches.setdefault(batch, values)
            assert values == again, f"batch {batch} came again with other records"
            if batch == self.fail_at:
                raise RuntimeError("the sink failed")
            seen.extend(values)

        reader = self.spark.readStream.format("lattice.queue").option("valueFormat", "json")
        query = (
            reader.options(**options)
            .load(str(self.folder))
            .writeStream.foreachBatch(keep)
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination()
        finally:
            query.stop()
        return sorted(seen)

    @property
    def values(self) -> list[int]:
        return sorted(value for values in self.batches.values() for value in values)


@pytest.fixture
def stream(spark: Any, writer: Writer, tmp_path: Path) -> Stream:
    return Stream(spark, writer.folder, tmp_path / "checkpoint")


# --- batches --------------------------------------------------------------------------------


def test_a_batch_has_every_record_of_every_partition(
    writer: Writer, read: Callable[..., Any]
) -> None:
    writer.offer(range(1_000))
    writer.offer(range(1_000, 1_300), partition=1)
    writer.offer(range(5_000, 5_010), keys=BOB)
    writer.offer(["other"], topic="u")
    rows = read(valueFormat="json", topic="t").collect()
    assert sorted((row.owner, row.partition, row.offset, row.value) for row in rows) == sorted(
        [(name_of(ALICE), 0, i, str(i)) for i in range(1_000)]
        + [(name_of(ALICE), 1, i, str(1_000 + i)) for i in range(300)]
        + [(name_of(BOB), 0, i, str(5_000 + i)) for i in range(10)]
    )
    assert {row.topic for row in rows} == {"t"}


def test_records_come_back_exactly(writer: Writer, read: Callable[..., Any]) -> None:
    values = [
        to_cell(value)
        for value in (
            "text",
            b"bytes",
            2**70,
            1.5,
            {"a": [1, {Keyword("k"): "x" * 500}]},
            b"\x00" * 10_000,
            "long" * 5_000,
        )
    ]
    keys = [f"key{i}" if i % 2 else None for i in range(len(values))]
    writer.queue().offer_many(values, keys=keys, headers=[{"n": i} for i in range(len(values))])
    writer.commit()
    rows = read(includeHeaders="true", keyFormat="string").orderBy("offset").collect()
    for row, value in zip(rows, values, strict=True):
        assert same(decode_message(bytes(row.value)), value)
    assert [row.key for row in rows] == keys
    assert [row.headers for row in rows] == [{"n": str(i)} for i in range(len(values))]
    assert {row.timestamp.timestamp() for row in rows} == {1.001}


def test_ranges_and_tasks_can_be_chosen(writer: Writer, read: Callable[..., Any]) -> None:
    writer.offer(range(1_000))
    writer.offer(range(1_000, 1_100), partition=1)
    frame = read(
        columns="value,offset",
        valueFormat="json",
        startingOffsets=json.dumps({"0": 990, "1": 20}),
        endingOffsets=json.dumps({"1": 30}),
    )
    found = sorted(int(row.value) for row in frame.collect())
    assert found == [*range(990, 1_000), *range(1_020, 1_030)]
    assert frame.columns == ["value", "offset"]
    whole = read(columns="offset", minPartitions="7")
    assert whole.rdd.getNumPartitions() >= 7
    assert whole.count() == 1_100
    since = read(columns="partition", startingTimestamp="1002")  # partition 1 was written then
    assert [tuple(row) for row in since.distinct().collect()] == [(1,)]


def test_a_store_without_records_has_no_rows(writer: Writer, read: Callable[..., Any]) -> None:
    assert read().collect() == []
    writer.offer([])
    assert read().collect() == []


def test_truncated_records_are_gone_and_asking_for_them_is_said(
    writer: Writer, read: Callable[..., Any]
) -> None:
    writer.offer(range(100))
    writer.truncate(40)
    assert read(columns="offset").agg({"offset": "min"}).collect()[0][0] == 40
    old = {"startingOffsets": '{"0": 10}', "columns": "offset"}
    with pytest.raises(DataLoss, match="records 10 to 39 are not there"), clear_errors():
        read(**old).collect()
    assert read(failOnDataLoss="false", **old).count() == 60


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"valueFormat": "avro"}, "option valueFormat='avro' is not accepted: one of cell, bytes"),
        ({"topics": "t"}, "unknown option topics='t' (did you mean topic?)"),
        ({"topic": "nowhere"}, "option topic='nowhere' is not accepted: the store has no such"),
        ({"startingOffsets": "latest"}, "option startingOffsets='latest' is not accepted: a batch"),
        ({"endingOffsets": "earliest"}, "option endingOffsets='earliest' is not accepted: a batch"),
        ({"endingOffsets": '{"0": 11}'}, "option endingOffsets=11 is not accepted: partition 0"),
        ({"valueFormat": "bytes"}, "option valueFormat='bytes' is not accepted: the value of rec"),
    ],
)
def test_a_mistake_in_a_batch_is_one_clear_line(
    writer: Writer, read: Callable[..., Any], options: dict[str, str], says: str
) -> None:
    writer.offer(range(10))
    with pytest.raises(UsageError) as caught, clear_errors():
        read(**options).collect()
    assert str(caught.value).startswith(says)
    assert "\n" not in str(caught.value)


def test_a_folder_that_is_no_store_is_said(spark: Any, tmp_path: Path) -> None:
    for folder in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(DataLatticeError) as caught, clear_errors():
            spark.read.format("lattice.queue").load(str(folder)).collect()
        assert str(folder) in str(caught.value)


def test_a_schema_of_one_s_own_is_refused(spark: Any, writer: Writer) -> None:
    writer.offer(range(10))
    reader = spark.read.format("lattice.queue").schema("value STRING")
    with pytest.raises(UsageError, match="choose columns and types"), clear_errors():
        reader.load(str(writer.folder)).collect()


# --- streams --------------------------------------------------------------------------------


def test_a_restart_goes_on_where_the_stream_stood(writer: Writer, stream: Stream) -> None:
    writer.offer(range(100))
    writer.offer(range(100, 125), partition=1)
    assert stream.run(maxOffsetsPerTrigger="50") == list(range(125))
    assert [len(batch) for batch in stream.batches.values()] == [50, 50, 25]
    writer.offer(range(200, 220))
    writer.offer(range(300, 305), partition=2)
    writer.offer(range(400, 405), keys=BOB)
    fresh = [*range(200, 220), *range(300, 305), *range(400, 405)]
    assert stream.run() == fresh
    assert stream.values == sorted([*range(125), *fresh])


def test_a_failed_batch_is_given_again_the_same(writer: Writer, stream: Stream) -> None:
    writer.offer(range(60))
    stream.fail_at = 1
    with pytest.raises(Exception, match="the sink failed"):
        stream.run(maxOffsetsPerTrigger="20")
    assert stream.values == list(range(40))
    writer.offer(range(60, 100))
    stream.fail_at = None
    assert stream.run(maxOffsetsPerTrigger="20") == list(range(20, 100))
    assert stream.values == list(range(100))


def test_a_stream_may_begin_at_the_end(writer: Writer, stream: Stream) -> None:
    writer.offer(range(10))
    assert stream.run(startingOffsets="latest") == []
    writer.offer(range(10, 15))
    assert stream.run(startingOffsets="latest") == list(range(10, 15))


def test_a_stream_waits_for_a_topic_that_is_not_there_yet(writer: Writer, stream: Stream) -> None:
    assert stream.run(topic="t") == []
    writer.offer(range(5))
    assert stream.run(topic="t") == list(range(5))


def test_what_was_truncated_unread_stops_the_stream_or_is_skipped(
    writer: Writer, stream: Stream
) -> None:
    writer.offer(range(10))
    assert stream.run() == list(range(10))
    writer.offer(range(10, 50))
    writer.truncate(30)
    with pytest.raises(DataLoss, match="records 10 to 29 are not there"), clear_errors():
        stream.run()
    assert stream.run(failOnDataLoss="false") == list(range(30, 50))


def test_a_stream_has_no_end_to_choose(writer: Writer, stream: Stream) -> None:
    writer.offer(range(10))
    with pytest.raises(UsageError, match="option endingOffsets is for batches"), clear_errors():
        stream.run(endingOffsets='{"0": 5}')
