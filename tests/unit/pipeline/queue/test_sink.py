"""The sink: rows become records in their order, once, with what the queue's own offers give."""

from __future__ import annotations

import asyncio
import datetime as dt
import pickle
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
)

from datalattice.apps.queue import PARTITIONS_MAX, Queue, Topic, Topics, make_entry, partition_of
from datalattice.cells import Vector, decode_message, encode_message, same, to_cell
from datalattice.client import Folder, edit, editing, reading, write_key
from datalattice.client.settings import NodeConfig
from datalattice.clock import SystemClock
from datalattice.crypto import KeyPair
from datalattice.cursors import RootLattice
from datalattice.errors import (
    BadFormat,
    Corruption,
    DataLatticeError,
    LimitExceeded,
    StoreFull,
    UsageError,
)
from datalattice.lattice import root_lattice
from datalattice.node import Daemon, NodeServer
from datalattice.pipeline.exactly_once import job as exactly_once, task_files
from datalattice.pipeline.exactly_once.job import Mark, Staged
from datalattice.pipeline.queue import append, stage as rows_stage
from datalattice.pipeline.queue.sink import sink_options
from datalattice.pipeline.queue.source import QueueSource
from datalattice.testing.clocks import StoppedClock
from datalattice.testing.polling import LIMIT_S
from datalattice.testing.spark_kit import FakeTaskContext, commit, full_disk

KEYS = KeyPair(bytes(32))
NOW_MS = 1_000_000
TYPES = {
    "int": IntegerType(),
    "bigint": LongType(),
    "map": MapType(StringType(), StringType()),
    "kafka": ArrayType(StructType().add("key", "string").add("value", "binary")),
}
NO_TEXT = pa.Array.from_buffers(pa.string(), 1, pa.array([b"a\xff"]).buffers())
"""A string that is not UTF-8, as Spark makes it of a BINARY that is cast."""
NO_TEXT_MAP = pa.MapArray.from_arrays([0, 1], ["name"], NO_TEXT)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return a node's folder."""
    write_key(tmp_path / "key", KEYS)
    return tmp_path


class Sink:
    """Saves rows; each list of columns is what one task gets."""

    def __init__(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.home = home
        self.monkeypatch = monkeypatch
        monkeypatch.setattr("datalattice.clock.SystemClock.now_ms", lambda _self: NOW_MS)

    def writer(self, schema: str, batch: int | None = None, **options: Any) -> Any:
        kind = StructType()
        for column in schema.split(", "):
            name, _, type_name = column.partition(" ")
            kind = kind.add(name, TYPES.get(type_name, type_name))
        given = {"topic": "t", "store": str(self.home), **options}
        source = QueueSource({name: text for name, text in given.items() if text})
        made = source.writer(kind, False) if batch is None else source.streamWriter(kind, False)
        return pickle.loads(pickle.dumps(made))

    def stage(self, writer: Any, task: int, *batches: dict[str, Any]) -> Staged:
        self.monkeypatch.setattr(
            exactly_once, "_task_context", lambda: FakeTaskContext(task, "7", 7)
        )
        found = writer.write(pa.record_batch(columns) for columns in batches)
        assert isinstance(found, Staged)
        return found

    def save(
        self, schema: str, *tasks: dict[str, Any], batch: int | None = None, **options: Any
    ) -> None:
        writer = self.writer(schema, batch, **options)
        messages = [self.stage(writer, task, columns) for task, columns in enumerate(tasks)]
        commit(writer, messages, batch)

    def topic(self, name: str = "t") -> Topic:
        with reading(Folder(self.home)) as root:
            mine = Topics.at(RootLattice(root_lattice(), root), KEYS.public_key)
            whole = decode_message(encode_message(mine.topic(name).cursor.get()))
        made = Topic.create()
        made.cursor.set(whole)
        return made

    def entries(self, partition: int = 0, topic: str = "t") -> list[Any]:
        with reading(Folder(self.home)) as root:
            mine = Topics.at(RootLattice(root_lattice(), root), KEYS.public_key)
            found = mine.topic(topic).partition(partition).entries()
            return [to_python_entry(entry.cell) for entry in found]


def to_python_entry(entry: Any) -> tuple[Any, ...]:
    key, value, stamp, headers = entry
    return key, value, stamp, None if headers is None else dict(headers.items())


@pytest.fixture
def sink(home: Path, monkeypatch: pytest.MonkeyPatch) -> Sink:
    return Sink(home, monkeypatch)


# --- rows to records ------------------------------------------------------------------------


@pytest.mark.parametrize("partitions", [1, 3])
def test_rows_may_be_maps_of_their_columns(sink: Sink, partitions: int) -> None:
    rows = [
        {"Value": i, "topic": f"k{i % 5}" if i % 7 else None, "long": "x" * (i * 7 % 300)}
        for i in range(100)
    ]
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    schema = "Value bigint, topic string, long string"
    given: dict[str, Any] = {"rows": "MAP", "keyColumn": "topic", "numPartitions": str(partitions)}
    sink.save(schema, columns, **given)

    other = Topic.create(StoppedClock(NOW_MS))
    other.set_num_partitions(partitions)
    for row in rows:
        key = row["topic"]
        log = other.partition(0 if key is None else partition_of(key, partitions))
        log.offer(row, key=key)
    for partition in range(partitions):
        with reading(Folder(sink.home)) as root:
            mine = Topics.at(RootLattice(root_lattice(), root), KEYS.public_key)
            found = mine.partition("t", partition).cursor.get()
            assert same(found, other.partition(partition).cursor.get())


def test_maps_of_rows_leave_out_what_is_null(sink: Sink) -> None:
    columns = {"n": [1, None], "s": ["x", None]}
    sink.save("n bigint, s string", columns, rows="map", dropNulls="true")
    assert [dict(value.items()) for _, value, _, _ in sink.entries()] == [{"n": 1, "s": "x"}, {}]
    no_text = pa.record_batch([NO_TEXT], ["s"])
    writer = sink.writer("s string", rows="map")
    with pytest.raises(UsageError, match="the column s has a STRING that is not UTF-8"):
        writer.write(iter([no_text]))


def test_rows_become_records_in_the_order_of_tasks_and_rows(sink: Sink) -> None:
    sink.save("value string", {"value": ["a", "b"]}, {"value": []}, {"value": ["c"]})
    sink.save("value string", {"value": ["d"]})
    assert sink.entries() == [(None, text, NOW_MS, None) for text in "abcd"]
    assert sink.topic().num_partitions == 1


def test_the_log_is_what_offers_make(sink: Sink) -> None:
    values = [f"value {i}" if i % 7 else f"{i} ".ljust(300 * i, "x") for i in range(100)]
    sink.save("value string", *({"value": values[i : i + 30]} for i in range(0, 100, 30)))

    other = Queue.create(StoppedClock(NOW_MS))
    other.offer_many(values)
    with reading(Folder(sink.home)) as root:
        mine = Topics.at(RootLattice(root_lattice(), root), KEYS.public_key)
        assert same(mine.partition("t", 0).cursor.get(), other.cursor.get())


def test_keys_choose_partitions_as_topics_do(sink: Sink) -> None:
    keys = [f"k{i % 20}" if i % 21 else None for i in range(100)]
    columns = {"key": keys, "value": [str(i) for i in range(100)]}
    sink.save("key string, value string", columns, columns, numPartitions="3")
    assert sink.topic().num_partitions == 3
    for partition in range(3):
        expected = [
            (key, str(row))
            for task in range(2)
            for row, key in enumerate(keys)
            if (task if key is None else partition_of(key, 3)) == partition
        ]
        assert [entry[:2] for entry in sink.entries(partition)] == expected
    sink.save("value string", {"value": ["later"]}, numPartitions="9")  # it has 3 now
    assert sink.topic().num_partitions == 3
    assert sink.topic().partitions() == [0, 1, 2]


def test_a_topic_gets_the_number_that_is_named_though_its_rows_name_their_partitions(
    sink: Sink,
) -> None:
    columns = {"partition": pa.array([2, 0], pa.int32()), "value": ["a", "b"]}
    sink.save("partition int, value string", columns)
    assert sink.topic().num_partitions == 0
    sink.save("partition int, value string", columns, numPartitions="3")
    assert sink.topic().num_partitions == 3
    sink.save("partition int, value string", columns, numPartitions="9")  # it has 3 now
    assert sink.topic().num_partitions == 3
    sink.save("key string, value string", {"key": ["k"], "value": ["c"]})
    assert sum(map(len, map(sink.entries, range(3)))) == 7


def test_columns_say_where_when_and_what_else(sink: Sink) -> None:
    at = dt.datetime(2026, 1, 2, 3, 4, 5, 678_900, tzinfo=dt.UTC)
    columns = {
        "owner": ["0x00"] * 4,
        "topic": ["t", "u", "t", "t"],
        "partition": pa.array([2, 0, None, 2], pa.int32()),
        "offset": [9, 9, 9, 9],
        "timestamp": pa.array([at, None, at, None], pa.timestamp("us", tz="UTC")),
        "key": pa.array([b"k", None, None, None], pa.binary()),
        "value": [b"a", b"b", b"c", b"d" * 3_000],
        "headers": pa.array(
            [[("h", "1")], None, [], [("h", "1"), ("h", "2")]], pa.map_(pa.string(), pa.string())
        ),
    }
    schema = (
        "owner string, topic string, partition int, offset bigint, timestamp timestamp, "
        "key binary, value binary, headers map"
    )
    sink.save(schema, columns, topic="", valueFormat="bytes", keyFormat="bytes")
    stamp = int(at.timestamp() * 1000)
    assert stamp % 1000 == 678
    assert sink.entries(2) == [
        (b"k", b"a", stamp, {"h": "1"}),
        (None, b"d" * 3_000, NOW_MS, {"h": "2"}),
    ]
    assert sink.entries(0) == [(None, b"c", stamp, {})]
    assert sink.entries(0, "u") == [(None, b"b", NOW_MS, None)]
    sink.save(schema, columns, topic="x", valueFormat="bytes", keyFormat="bytes")
    assert len(sink.entries(2, "x")) == 2, "the option goes before the column"


def test_names_of_columns_are_taken_in_any_case(sink: Sink) -> None:
    sink.save("Value string, PARTITION int", {"Value": ["a"], "PARTITION": [1]})
    assert sink.entries(1) == [(None, "a", NOW_MS, None)]


def test_headers_may_be_those_of_kafka_s_rows(sink: Sink) -> None:
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    headers = pa.array([[{"key": "h", "value": b"1"}], None], kind)
    sink.save(
        "value string, headers kafka",
        {"value": ["a", "b"], "headers": headers},
    )
    assert [entry[3] for entry in sink.entries()] == [{"h": b"1"}, None]


def test_of_several_headers_with_one_key_the_last_stays(sink: Sink) -> None:
    pairs = [{"Key": "h", "Value": b"1"}, {"Key": "h", "Value": None}]
    sink.save("value string, headers kafka", {"value": ["a"], "headers": pa.array([pairs])})
    assert sink.entries()[0][3] == {"h": None}


@pytest.mark.parametrize("header", [None, {"key": None, "value": b"1"}])
def test_a_header_without_a_key_is_refused(sink: Sink, header: dict[str, Any] | None) -> None:
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    rows = {"value": ["a"], "headers": pa.array([[header]], kind)}
    with pytest.raises(UsageError, match="the column headers has a NULL header"):
        sink.save("value string, headers kafka", rows)


def test_names_of_topics_have_a_limit(sink: Sink) -> None:
    schema, most = "value string, topic string", "t" * 4_096
    sink.save(schema, {"value": ["a"], "topic": [most]}, topic="")
    assert sink.entries(0, most) == [(None, "a", NOW_MS, None)]
    said = "name of a topic has at most 4096 bytes of UTF-8, got 4097"
    with pytest.raises(UsageError, match=said):
        sink.save(schema, {"value": ["a"], "topic": [most + "t"]}, topic="")
    with pytest.raises(UsageError, match=said):
        sink.writer("value string", topic=most + "t")


@pytest.mark.parametrize(
    ("type_name", "options", "given", "expected"),
    [
        ("binary", {}, [encode_message(to_cell({"a": [1]}))], {"a": [1]}),
        ("binary", {"valueFormat": "bytes"}, [b"raw"], b"raw"),
        ("string", {"valueFormat": "bytes"}, ["raw"], b"raw"),
        ("string", {}, ["text"], "text"),
        ("string", {"valueFormat": "json"}, ['{"a": [1, 2.5]}'], {"a": [1, 2.5]}),
        ("bigint", {}, [7], 7),
        ("double", {}, [7.5], 7.5),
        ("boolean", {}, [True], True),
    ],
)
def test_values_are_read_by_their_format(
    sink: Sink, type_name: str, options: dict[str, Any], given: list[Any], expected: Any
) -> None:
    sink.save(f"value {type_name}", {"value": given}, **options)
    assert same(sink.entries()[0][1], to_cell(expected))


def test_empty_strings_are_bytes_where_the_format_says_so(sink: Sink) -> None:
    """They also go where their bytes go, be they alone in their rows or not."""
    options: dict[str, Any] = {"valueFormat": "bytes", "keyFormat": "bytes", "numPartitions": "7"}
    for i, others in enumerate(([], ["a"])):
        strings = pa.array(["", *others, None], pa.large_string())  # not joined by Arrow
        columns = {"key": strings, "value": strings.fill_null("")}
        sink.save("key string, value string", columns, topic=f"t{i}", **options)
        found = sink.entries(partition_of(b"", 7), f"t{i}")
        assert (b"", b"", NOW_MS, None) in found


def test_long_and_nested_values_come_through_whole(sink: Sink) -> None:
    values = [to_cell({"n": i, "list": ["x" * 200] * (i % 5 * 40)}) for i in range(60)]
    values.append(to_cell(b"\x01" * 3_000_000))
    rows = {"value": [encode_message(value) for value in values]}
    sink.save("value binary", rows, rows)
    found = sink.entries()
    assert len(found) == 2 * len(values)
    with reading(Folder(sink.home)) as root:
        queue = Topics.at(RootLattice(root_lattice(), root), KEYS.public_key).partition("t", 0)
        assert all(same(a, b) for a, b in zip(queue, values + values, strict=True))


# --- mistakes -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "options", "says"),
    [
        ("value string, colour string", {}, "column colour is not one of a record: value, key"),
        ("key string", {}, "column value is missing: rows of a queue have value, key, headers"),
        ("value string, VALUE string", {}, "there are two columns value"),
        ("value string", {"topic": ""}, "no topic is named: give the option topic, or a column"),
        ("value string, topic int", {}, "column topic has the type INT; it takes STRING"),
        (
            "value string, partition string",
            {},
            "column partition has the type STRING; it takes TINY",
        ),
        (
            "value string, timestamp string",
            {},
            "column timestamp has the type STRING; it takes TIME",
        ),
        ("value string, headers string", {}, "column headers has the type STRING; it takes MAP<"),
        (
            "value date",
            {},
            "column value has the type DATE; it takes BINARY, STRING, VARIANT, a num",
        ),
        ("value int", {"valueFormat": "json"}, "column value has the type INT; valueFormat=json"),
        ("value string, key int", {"keyFormat": "bytes"}, "column key has the type INT; keyForm"),
        ("value string", {"valueFormat": "avro"}, "option valueFormat='avro' is not accepted"),
        ("value string", {"numPartitions": "0"}, "option numPartitions='0' is not accepted"),
        ("value string", {"startingOffsets": "latest"}, "unknown option startingOffsets='latest'"),
        ("v string", {"keyColumn": "v"}, "option keyColumn is for rows=map"),
        ("v string", {"dropNulls": "true"}, "option dropNulls is for rows=map"),
        (
            "v string",
            {"rows": "map", "valueFormat": "string"},
            "option valueFormat is not for rows",
        ),
        ("v string", {"rows": "map", "keyFormat": "string"}, "option keyFormat is not for rows"),
        ("v string", {"rows": "map", "topic": ""}, "rows=map needs the option topic"),
        (
            "v string",
            {"rows": "map", "keyColumn": "V"},
            "option keyColumn='V' is not accepted: the",
        ),
        ("v string, v string", {"rows": "map"}, "two columns have the same name"),
    ],
)
def test_a_mistake_is_reported_before_anything_is_done(
    sink: Sink, schema: str, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(UsageError) as caught:
        sink.writer(schema, **options)
    assert str(caught.value).startswith(says)


def test_numbers_of_partitions_have_a_limit(home: Path) -> None:
    given = {"store": str(home), "topic": "t"}
    for count in (PARTITIONS_MAX - 1, PARTITIONS_MAX):
        found = sink_options({**given, "numPartitions": str(count)}, streaming=False)
        assert found.num_partitions == count
    with pytest.raises(UsageError, match=f"a whole number from 1 to {PARTITIONS_MAX}"):
        sink_options({**given, "numPartitions": str(PARTITIONS_MAX + 1)}, streaming=False)


def test_a_queue_is_never_overwritten(home: Path) -> None:
    source = QueueSource({"store": str(home), "topic": "t"})
    schema = StructType().add("value", "string")
    for make in (source.writer, source.streamWriter):
        with pytest.raises(UsageError, match="a queue only grows: write with mode append"):
            make(schema, True)


@pytest.mark.parametrize(
    ("schema", "columns", "options", "says"),
    [
        ("value string", {"value": ["a", None]}, {}, "the column value is NULL in a row"),
        ("value string", {"value": pa.array([None], pa.string())}, {}, "the column value is NULL"),
        ("value binary", {"value": [b"\xff"]}, {}, "a row that is not of valueFormat=cell: "),
        ("value binary", {"value": [b"\x00"]}, {}, "the column value is NULL in a row"),
        ("value string", {"value": ["{"]}, {"valueFormat": "json"}, "not of valueFormat=json: "),
        ("value string", {"value": NO_TEXT}, {}, "column value has a STRING that is not UTF-8 ("),
        (
            "value string, headers map",
            {"value": ["a"], "headers": NO_TEXT_MAP},
            {},
            "column headers has a STRING that is not UTF-8 (",
        ),
        (
            "value string, topic string",
            {"value": ["a", "b"], "topic": ["t", None]},
            {"topic": ""},
            "a row has no topic",
        ),
        (
            "value string, topic string",
            {"value": ["a"], "topic": pa.array([None], pa.string())},
            {"topic": ""},
            "a row has no topic",
        ),
        (
            "value string, partition int",
            {"value": ["a"], "partition": [-1]},
            {},
            "the column partition is -1 in a row; it takes 0 to 2147483646",
        ),
        (
            "value string, partition bigint",
            {"value": ["a"], "partition": [PARTITIONS_MAX]},
            {},
            "the column partition is 2147483647 in a row; it takes 0 to 2147483646",
        ),
    ],
)
def test_a_row_that_is_not_a_record_fails_its_task_and_nothing_is_left(
    sink: Sink, schema: str, columns: dict[str, Any], options: dict[str, Any], says: str
) -> None:
    writer = sink.writer(schema, **options)
    with pytest.raises(UsageError) as caught:
        sink.stage(writer, 0, columns)
    assert says in str(caught.value)
    assert not list((sink.home / "staging").glob("*/*/*"))


def test_one_task_writes_to_a_bounded_number_of_partitions(
    sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows_stage, "LOGS_MAX", 3)
    for count in (2, 3):
        rows = {"value": ["a"] * count, "partition": list(range(count))}
        sink.save("value string, partition int", rows)
    writer = sink.writer("value string, partition int")
    with pytest.raises(LimitExceeded, match="at most 3 partitions"):
        sink.stage(writer, 0, {"value": ["a"] * 4, "partition": [0, 1, 2, 3]})


# --- once, whatever happens -----------------------------------------------------------------


def test_a_batch_of_a_stream_is_written_once(sink: Sink) -> None:
    for batch in (0, 1, 1, 0, 2):
        sink.save("value bigint", {"value": [batch]}, {"value": [batch + 10]}, batch=batch)
    assert [entry[1] for entry in sink.entries()] == [0, 10, 1, 11, 2, 12]
    assert sink.topic().get_meta("spark-query/7") == 2


def test_a_batch_that_is_in_one_of_its_topics_is_in_none_of_them_again(sink: Sink) -> None:
    schema = "value bigint, topic string"
    sink.save(schema, {"value": [1], "topic": ["a"]}, batch=0, topic="")
    sink.save(schema, {"value": [1, 2], "topic": ["b", "a"]}, batch=0, topic="")
    assert len(sink.entries(topic="a")) == 1
    assert sink.entries(topic="b") == []


@pytest.mark.parametrize("batch", [3, None])
@pytest.mark.parametrize("topic", ["t", ""])
def test_a_driver_that_comes_back_hears_that_its_batch_is_done(
    sink: Sink, batch: int | None, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    schema, rows = "value bigint, topic string", {"value": [1, 2], "topic": ["t", "u"]}
    name: dict[str, Any] = {} if batch is not None else {"writeId": "w"}
    drivers = [sink.writer(schema, batch, topic=topic, **name) for _ in range(2)]
    dead, living = ([sink.stage(driver, 0, rows), sink.stage(driver, 1)] for driver in drivers)
    commit(drivers[1], living, batch)
    shutil.rmtree(sink.home / "staging", ignore_errors=True)  # a stream's are gone already
    before = len(sink.entries())
    commit(drivers[0], dead, batch)
    assert "was written before: skipped" in caplog.text
    assert len(sink.entries()) == before == (2 if topic else 1)
    if batch is not None:
        with pytest.raises(UsageError, match="what task 0 staged is missing"):
            commit(drivers[0], dead, batch + 1)


def test_metadata_grows_with_queries_not_with_batches_or_saves(sink: Sink) -> None:
    for number in range(3):
        sink.save("value bigint", {"value": [number]}, batch=number)
        sink.save("value bigint", {"value": [number]})
        sink.save("value bigint", {"value": [number]}, writeId="w", writeVersion=str(number))
    keys = {key for key, _ in sink.topic().metadata().entries()}
    names = {key for key in keys if isinstance(key, str)}
    assert names == {"spark-query/7", "spark-saves", "spark-write/w"}
    assert len(keys) == 4, "and the number of partitions"


def test_what_a_second_attempt_staged_is_not_there_twice(sink: Sink) -> None:
    writer = sink.writer("value bigint")
    sink.stage(writer, 0, {"value": [1]})  # a first attempt whose message nobody got
    again = sink.stage(writer, 0, {"value": [1]})
    writer.abort([sink.stage(writer, 1, {"value": [9]})])
    writer.commit([again])
    assert [entry[1] for entry in sink.entries()] == [1]
    assert not list((sink.home / "staging").iterdir())


def offer(home: Path, *values: object, partition: int = 0) -> None:
    def change(cursor: RootLattice, keys: KeyPair) -> None:
        Topics.at(cursor, keys.public_key).partition("t", partition).offer_many(values)

    edit(Folder(home), change)


def test_a_log_that_grew_or_was_cut_meanwhile_is_continued_anew(sink: Sink) -> None:
    offer(sink.home, *range(20))
    writer = sink.writer("value bigint")
    message = sink.stage(writer, 0, {"value": [100, 101]})
    mark = Mark("m", 1, "s")
    with editing(Folder(sink.home)) as editor:
        late = append.appending(editor, [message], mark, SystemClock())
        assert late is not None

        def truncate(cursor: RootLattice, keys: KeyPair) -> None:
            Topics.at(cursor, keys.public_key).partition("t", 0).truncate(3)

        editor.edit(truncate)
        with pytest.raises(exactly_once.RootMoved):
            editor.edit(late)
        again = append.appending(editor, [message], mark, SystemClock())
        assert again is not None
        editor.edit(again)
        editor.edit(again)  # the mark is there: nothing happens
        assert append.appending(editor, [message], mark, SystemClock()) is None
    assert [entry[1] for entry in sink.entries()] == [*range(3, 20), 100, 101]


def test_a_number_of_partitions_that_changed_meanwhile_is_reported(sink: Sink) -> None:
    writer = sink.writer("key string, value bigint", numPartitions="4")
    message = sink.stage(writer, 0, {"key": ["a"], "value": [1]})

    def change(cursor: RootLattice, keys: KeyPair) -> None:
        Topics.at(cursor, keys.public_key).topic("t").set_num_partitions(5)

    edit(Folder(sink.home), change)
    with pytest.raises(UsageError, match="topic 't' has 5 partitions now, and had 4 when this"):
        writer.commit([message])
    assert sink.topic().partitions() == []


def test_what_no_task_of_this_version_staged_is_refused(sink: Sink) -> None:
    writer = sink.writer("value bigint")
    for kind, head in (
        (rows_stage.RECORDS_PARCEL + 1, to_cell(["t", 0, None])),
        (rows_stage.RECORDS_PARCEL, to_cell(["t", 0])),
        (rows_stage.RECORDS_PARCEL, to_cell([1, 0, None])),
        (rows_stage.RECORDS_PARCEL, to_cell(["t", "0", None])),
        (rows_stage.RECORDS_PARCEL, to_cell(["t", 0, "1"])),
    ):
        with writer._job.stage() as stage:
            stage.parcels.put_items(kind, encode_message(head), [])
            message = stage.done(1)
        with pytest.raises(BadFormat, match="not of this version of the sink"):
            writer.commit([message])


def test_what_was_staged_is_written_as_it_is_or_not_at_all(sink: Sink) -> None:
    writer = sink.writer("value string")
    message = sink.stage(writer, 0, {"value": ["a", "b" * 2_000]})
    path = Path(message.path, exactly_once.PARCELS)
    whole = path.read_bytes()
    for at in range(0, len(whole), 97):
        path.write_bytes(whole[:at] + bytes((whole[at] ^ 1,)) + whole[at + 1 :])
        with pytest.raises(Corruption, match="differs from what its task wrote"):
            writer.commit([message])
    for cut in (0, 1, 100, len(whole) - 1):
        path.write_bytes(whole[:cut])
        with pytest.raises(Corruption, match="differs from what its task wrote"):
            writer.commit([message])
    assert sink.entries() == []
    path.write_bytes(whole)
    writer.commit([message])
    assert [entry[1] for entry in sink.entries()] == ["a", "b" * 2_000]


@pytest.mark.parametrize("sizes", [[1, 15, 16, 17], [0, 5, 0, 300, 2], [64, 3, 64]])
@pytest.mark.parametrize("before", [0, 7, 16])
def test_however_rows_are_split_among_tasks_the_log_is_that_of_offers(
    sink: Sink, sizes: list[int], before: int
) -> None:
    def value(row: int) -> str:
        return f"{row} ".ljust((row % 5) ** 5, "x") if row % 50 > 40 else f"value {row}"

    rows = [(f"k{row}" if row % 3 else None, value(row)) for row in range(before + sum(sizes))]
    at = dt.datetime(2026, 1, 2, tzinfo=dt.UTC)
    tasks, first = [], 0
    for size in ([before] if before else []) + sizes:
        part = rows[first : first + size]
        tasks.append(
            {
                "key": pa.array([key for key, _ in part], pa.string()),
                "value": pa.array([text for _, text in part], pa.string()),
                "timestamp": pa.array([at] * size, pa.timestamp("us", tz="UTC")),
            }
        )
        first += size
    schema = "key string, value string, timestamp timestamp"
    if before:
        sink.save(schema, tasks.pop(0))
    sink.save(schema, *tasks)
    stamp = int(at.timestamp() * 1_000)
    expected = Vector.of([make_entry(key, text, stamp) for key, text in rows])
    with reading(Folder(sink.home)) as root:
        mine = Topics.at(RootLattice(root_lattice(), root), KEYS.public_key)
        log = mine.partition("t", 0).state().entries
        assert log.hash == expected.hash
        assert all(same(one, other) for one, other in zip(log, expected, strict=True))


def test_memory_holds_a_piece_of_a_log_only(sink: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (rows_stage, append):
        monkeypatch.setattr(module, "STAGE_BYTES_MAX", 20_000)
    monkeypatch.setattr(task_files, "CELLS_BYTES", 20_000)
    sizes: list[int] = []
    put = task_files.ParcelWriter.put

    def noted(self: task_files.ParcelWriter, kind: int, head: bytes, ends: Any, data: Any) -> None:
        sizes.append(len(memoryview(data)))
        put(self, kind, head, ends, data)

    monkeypatch.setattr(task_files.ParcelWriter, "put", noted)
    offer(sink.home, *range(7))
    values = [f"{i} ".ljust(50 + i % 3 * 2_000, "x") for i in range(500)]
    sink.save("value string", {"value": values}, {"value": values})
    assert len(sizes) > 40
    assert max(sizes) < 50_000
    assert [entry[1] for entry in sink.entries()] == [*range(7), *values, *values]


def test_a_disk_that_is_full_while_the_driver_joins_takes_nothing_and_later_all(
    sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(append, "STAGE_BYTES_MAX", 20_000)
    sink.save("value string", {"value": ["before"]})
    values = [f"{i} ".ljust(2_000, "x") for i in range(50)]
    writer = sink.writer("value string", 3)
    messages = [sink.stage(writer, task, {"value": values}) for task in range(2)]
    room = 0
    while len(sink.entries()) == 1:
        with full_disk(room), suppress(StoreFull):
            commit(writer, messages, 3)
        room += 1
    assert room > 2  # what one try staged is there for the next
    assert [entry[1] for entry in sink.entries()] == ["before", *values, *values]


def test_beside_a_running_node_its_node_writes(sink: Sink) -> None:
    large = [f"{number} ".ljust(3_000, "x") for number in range(50)]

    def work() -> None:
        for batch in (0, 1, 1):
            sink.save("value string", {"value": large}, {"value": ["a"] * 40}, batch=batch)

    async def run() -> NodeServer:
        ready: asyncio.Future[NodeServer] = asyncio.get_running_loop().create_future()
        daemon = Daemon(
            sink.home,
            NodeConfig(port=-1),
            key_pair=KEYS,
            ready=lambda _, node: ready.set_result(node),
        )
        async with asyncio.timeout(LIMIT_S):
            serve = asyncio.ensure_future(daemon.serve())
            try:
                node = await ready
                await asyncio.to_thread(work)
                return node
            finally:
                daemon.stop()
                await serve

    asyncio.run(run())
    assert [entry[1] for entry in sink.entries()] == [*large, *["a"] * 40] * 2


def test_a_clear_error_is_one_of_ours(sink: Sink) -> None:
    offer(sink.home, 1)
    with pytest.raises(DataLatticeError):
        sink.save("value binary", {"value": [b"\xff\xff"]})
    assert [entry[1] for entry in sink.entries()] == [1]
