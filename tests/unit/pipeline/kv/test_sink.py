"""The sink: keys show what rows say, once, whatever else is written meanwhile."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

import pyarrow as pa
from pyspark.sql.types import StructType

from datalattice.apps.kv import Database
from datalattice.cells import (
    Index,
    Keyword,
    Vector,
    decode_message,
    encode,
    encode_message,
    same,
    to_cell,
)
from datalattice.client import Folder, edit, editing, reading, write_key
from datalattice.clock import SystemClock
from datalattice.crypto import KeyPair
from datalattice.cursors import RootLattice
from datalattice.errors import BadFormat, DataLatticeError, LimitExceeded, StoreFull, UsageError
from datalattice.lattice import root_lattice
from datalattice.pipeline.exactly_once import job as exactly_once
from datalattice.pipeline.exactly_once.job import Mark, RootMoved, Staged
from datalattice.pipeline.kv import stage as rows_stage, upsert
from datalattice.pipeline.kv.options import HIDDEN_DATABASE
from datalattice.pipeline.kv.sink import sink_options
from datalattice.pipeline.kv.source import KVSource
from datalattice.pipeline.kv.upsert import Writes, mark_key, rebased, upserting
from datalattice.testing.spark_kit import FakeTaskContext, commit, full_disk

KEYS = KeyPair(bytes(32))
NOW_MS = 1_000_000
PLAIN = "key string, value string"


class Sink:
    """Saves rows; each list of rows is what one task gets."""

    def __init__(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.home = home
        self.monkeypatch = monkeypatch
        monkeypatch.setattr("datalattice.clock.SystemClock.now_ms", lambda _self: NOW_MS)

    def writer(
        self, schema: str, *, batch: int | None = None, overwrite: bool = False, **options: str
    ) -> Any:
        kind = StructType()
        for column in schema.split(", "):
            name, _, type_name = column.partition(" ")
            kind = kind.add(name, type_name)
        given = {"database": "db", "store": str(self.home), **options}
        source = KVSource({name: text for name, text in given.items() if text})
        make = source.writer if batch is None else source.streamWriter
        return pickle.loads(pickle.dumps(make(kind, overwrite)))

    def stage(self, writer: Any, schema: str, task: int, rows: list[tuple[Any, ...]]) -> Staged:
        self.monkeypatch.setattr(
            exactly_once, "_task_context", lambda: FakeTaskContext(task, "7", 7)
        )
        names = [column.partition(" ")[0] for column in schema.split(", ")]
        columns = [list(column) for column in zip(*rows, strict=True)] or [[] for _ in names]
        found = writer.write(iter([pa.record_batch(columns, names=names)]))
        assert isinstance(found, Staged)
        return found

    def save(
        self,
        schema: str,
        *tasks: list[tuple[Any, ...]],
        batch: int | None = None,
        overwrite: bool = False,
        **options: str,
    ) -> None:
        writer = self.writer(schema, batch=batch, overwrite=overwrite, **options)
        messages = [self.stage(writer, schema, task, rows) for task, rows in enumerate(tasks)]
        commit(writer, messages, batch)

    def write(self, change: Callable[[Database], object], name: str = "db") -> None:
        edit(Folder(self.home), lambda root, keys: change(Database.at(root, keys.public_key, name)))

    def shown(self, name: str = "db") -> dict[str, Any]:
        with reading(Folder(self.home)) as root:
            mine = Database.at(RootLattice(root_lattice(), root), KEYS.public_key, name)
            found: dict[str, Any] = {}
            for key in mine:
                kind = mine.type(key)
                read = {"hash": mine.hgetall, "set": mine.smembers, "counter": mine.count}
                value = read[kind](key) if kind in read else mine[key]
                held = decode_message(encode_message(value))
                found[key] = dict(held.items()) if isinstance(held, Index) else held
            return found

    def ttl(self, key: str) -> timedelta | None:
        with reading(Folder(self.home)) as root:
            mine = Database.at(RootLattice(root_lattice(), root), KEYS.public_key, "db")
            return mine.ttl(key)


@pytest.fixture
def sink(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sink:
    write_key(tmp_path / "key", KEYS)
    return Sink(tmp_path, monkeypatch)


# --- rows to keys ---------------------------------------------------------------------------


def test_the_last_row_of_a_key_in_the_order_of_tasks_wins(sink: Sink) -> None:
    sink.save(PLAIN, [("a", "1"), ("b", "1"), ("b", "2")], [], [("a", "3"), ("c", "4")])
    assert sink.shown() == {"a": "3", "b": "2", "c": "4"}
    assert sink.shown(HIDDEN_DATABASE).keys() == {"spark-saves/db"}


def test_a_row_without_value_or_type_deletes_its_key(sink: Sink) -> None:
    sink.write(lambda db: db.set_many({"a": 1, "b": 2, "c": 3}))
    schema = "key string, value string, type string"
    sink.save(schema, [("a", None, "value"), ("b", "x", None), ("none", None, None)])
    assert sink.shown() == {"c": 3}
    with reading(Folder(sink.home)) as root:
        mine = Database.at(RootLattice(root_lattice(), root), KEYS.public_key, "db")
        assert mine.store().get("none") is None  # nothing was there to delete


def test_other_keys_and_other_databases_stay(sink: Sink) -> None:
    sink.write(lambda db: db.set_many({"a": 1, "b": 2}))
    sink.write(lambda db: db.set("x", 1), "other")
    sink.save(PLAIN, [("a", "new")])
    sink.save(PLAIN, [("y", "2")], database="third")
    assert sink.shown() == {"a": "new", "b": 2}
    assert sink.shown("other") == {"x": 1}
    assert sink.shown("third") == {"y": "2"}


def test_a_column_may_name_the_database(sink: Sink) -> None:
    schema = "database string, key string, value long"
    sink.save(schema, [("one", "a", 1), ("two", "a", 2), ("one", "b", 3)], database="")
    assert sink.shown("one") == {"a": 1, "b": 3}
    assert sink.shown("two") == {"a": 2}


def test_types_make_structures_and_go_on_with_them(sink: Sink) -> None:
    schema = "key string, type string, value string"
    rows = [
        ("h", "hash", '{"a": 1, "b": 2}'),
        ("s", "set", "[1, 2]"),
        ("l", "list", "[1, 2]"),
        ("c", "counter", "7"),
        ("v", "value", '{"a": 1}'),
    ]
    sink.save(schema, rows, valueFormat="json")
    sink.write(lambda db: (db.hset("h", "other", 5), db.incr("c", 3), db.sadd("s", 9)))
    sink.save(
        schema, [("h", "hash", '{"a": 1, "c": 3}'), ("c", "counter", "8")], valueFormat="json"
    )
    shown = sink.shown()
    assert shown["h"] == {"a": 1, "c": 3}
    assert same(shown["s"], to_cell({1, 2, 9}))
    assert shown["c"] == 8
    assert shown["l"] == Vector.of([1, 2])


def test_keys_expire_when_their_row_says_so(sink: Sink) -> None:
    schema = "key string, value string, expires timestamp"
    at = datetime.fromtimestamp((NOW_MS + 500) / 1000, UTC)
    sink.save(schema, [("a", "1", at), ("b", "1", None)])
    assert (sink.ttl("a"), sink.ttl("b")) == (timedelta(milliseconds=500), None)
    sink.save(PLAIN, [("a", "2")])
    assert sink.ttl("a") is None


@pytest.mark.parametrize(
    ("kind", "given", "format", "held"),
    [
        ("string", "text", "", "text"),
        ("string", '{"a": 1}', "json", {"a": 1}),
        ("binary", encode_message(Keyword("k")), "", Keyword("k")),
        ("binary", b"raw", "bytes", b"raw"),
        ("long", 5, "", 5),
        ("double", 0.5, "", 0.5),
        ("boolean", True, "", True),
    ],
)
def test_values_come_from_columns_of_these_types(
    sink: Sink, kind: str, given: object, format: str, held: object
) -> None:
    sink.save(f"key string, value {kind}", [("a", given)], valueFormat=format)
    assert same(to_cell(sink.shown()["a"]), to_cell(held))


def test_rows_as_they_are_read_can_be_written(sink: Sink) -> None:
    sink.write(lambda db: db.set("a", {"x": 1}))
    sink.write(lambda db: (db.hset("h", "f", 1), db.sadd("s", 1)))
    source = KVSource({"store": str(sink.home), "columns": "database,key,type,value,owner"})
    schema = "database string, key string, type string, value binary, owner string"
    kind = StructType()
    for column in schema.split(", "):
        name, _, type_name = column.partition(" ")
        kind = kind.add(name, type_name)
    reader: Any = source.reader(kind)
    rows = [
        tuple(row.values())
        for task in reader.partitions()
        for batch in reader.read(task)
        for row in batch.to_pylist()
    ]
    sink.save(schema, rows, database="copy")
    assert sink.shown("copy").keys() == {"a", "h", "s"}
    assert all(
        same(to_cell(sink.shown("copy")[key]), to_cell(value))
        for key, value in sink.shown().items()
    )


def test_overwrite_deletes_what_no_row_names(sink: Sink) -> None:
    sink.write(lambda db: db.set_many({"a": 1, "b": 2}))
    sink.write(lambda db: db.sadd("s", 1, 2))
    sink.write(lambda db: db.set("x", 1), "other")
    schema = "key string, type string, value string"
    rows = [("a", "value", "9"), ("s", "set", "[2, 3]")]
    sink.save(schema, rows, overwrite=True, valueFormat="json")
    assert sink.shown().keys() == {"a", "s"}
    assert same(sink.shown()["s"], to_cell({2, 3}))
    assert sink.shown("other") == {"x": 1}
    sink.save(PLAIN, [], overwrite=True)
    assert sink.shown() == {}


# --- once -----------------------------------------------------------------------------------


def test_a_batch_that_comes_again_is_skipped(sink: Sink) -> None:
    sink.save(PLAIN, [("a", "1")], batch=0)
    sink.write(lambda db: db.set("a", "mine"))
    sink.save(PLAIN, [("a", "1")], batch=0)
    assert sink.shown() == {"a": "mine"}
    sink.save(PLAIN, [("a", "2")], batch=1)
    assert sink.shown() == {"a": "2"}
    ((_, number),) = sink.shown(HIDDEN_DATABASE).items()
    assert number == 1


@pytest.mark.parametrize("batch", [3, None])
def test_a_driver_that_comes_back_hears_that_its_batch_is_done(
    sink: Sink, batch: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    name: dict[str, Any] = {} if batch is not None else {"writeId": "w"}
    dead, living = (sink.writer(PLAIN, batch=batch, **name) for _ in range(2))
    message, other = (sink.stage(driver, PLAIN, 0, [("a", "1")]) for driver in (dead, living))
    commit(living, [other], batch)
    shutil.rmtree(sink.home / "staging", ignore_errors=True)  # a stream's are gone already
    sink.write(lambda db: db.set("a", "mine"))
    commit(dead, [message], batch)
    assert "was written before: skipped" in caplog.text
    assert sink.shown() == {"a": "mine"}


def test_a_save_under_a_name_happens_once_for_each_version(sink: Sink) -> None:
    names = [f"daily-sales-in-a-region-with-a-long-name-{i}" for i in range(2)]
    for name in names:
        sink.save(PLAIN, [(name[-1], "1")], writeId=name)
    sink.write(lambda db: db.clear())
    for name in names:
        sink.save(PLAIN, [(name[-1], "1")], writeId=name)
    assert sink.shown() == {}
    sink.save(PLAIN, [("a", "1")], writeId=names[0], writeVersion="1")
    assert sink.shown() == {"a": "1"}


def test_saves_of_one_name_to_several_databases_are_several(sink: Sink) -> None:
    for name in ("db", "other", "db"):
        sink.save(PLAIN, [("a", name)], database=name, writeId="totals", writeVersion="7")
        sink.write(lambda db: db.set("b", "mine"), name)
    assert sink.shown() == {"a": "db", "b": "mine"}
    assert sink.shown("other") == {"a": "other", "b": "mine"}


def test_names_of_columns_are_taken_in_any_case(sink: Sink) -> None:
    sink.save("Key string, VALUE string, Type string", [("a", "1", "value"), ("b", "1", None)])
    assert sink.shown() == {"a": "1"}


def test_marks_have_keys_that_an_index_can_tell_apart() -> None:
    short, long = "x" * 32, "x" * 33
    assert mark_key(Mark(short, 1, "")) == short
    other = mark_key(Mark(long, 1, ""))
    assert len(other.encode()) == 32
    assert other != mark_key(Mark(long + "y", 1, ""))


# --- others write meanwhile -----------------------------------------------------------------


def store_of(**entries: object) -> Index:
    db = Database.create()
    db.set_many(entries)
    return db.store()


def shown_in(store: Index) -> dict[str, object]:
    db = Database.create()
    db.cursor.set(store)
    return dict(db.items())


def test_what_others_wrote_meanwhile_stays_and_ours_wins_where_both_did() -> None:
    before = store_of(a=1, b=1, c=1, d=1)
    ours, theirs = Database.create(), Database.create()
    ours.cursor.set(before)
    theirs.cursor.set(before)
    ours.set_many({"a": "ours", "new": "ours"})
    ours.delete("c")
    theirs.set_many({"a": "theirs", "b": "theirs", "c": "theirs", "fresh": 1})
    theirs.delete("d")
    writes = Writes("me", SystemClock().now_ms())
    made = rebased(before, ours.store(), theirs.store(), writes)
    assert shown_in(made) == {"a": "ours", "new": "ours", "b": "theirs", "fresh": 1}


def test_a_key_that_others_removed_for_good_is_gone_unless_we_wrote_it() -> None:
    before = store_of(a=1, b=1)
    ours = Database.create()
    ours.cursor.set(before)
    ours.set("a", 2)
    writes = Writes("me", SystemClock().now_ms())
    assert shown_in(rebased(before, ours.store(), Index(), writes)) == {"a": 2}
    ours.delete("a")
    assert rebased(before, ours.store(), Index(), writes).get("a") is None


def test_a_count_that_others_moved_meanwhile_becomes_the_total_of_the_row() -> None:
    base = Database.create(replica="me")
    base.incr("c", 5)
    ours, theirs = base.fork(), base.fork()
    ours.incr("c", 5)  # to 10
    theirs.incr("c", 1)
    writes = Writes("me", SystemClock().now_ms())
    made = rebased(base.store(), ours.store(), theirs.store(), writes)
    db = Database.create()
    db.cursor.set(made)
    assert db.count("c") == 10


def test_more_writes_of_others_than_one_looks_at_begin_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before, there = store_of(), store_of(a=1, b=2)
    writes = Writes("me", SystemClock().now_ms())
    monkeypatch.setattr(upsert, "REBASE_KEYS_MAX", 2)
    assert shown_in(rebased(before, store_of(c=1), there, writes)) == {"a": 1, "b": 2, "c": 1}
    monkeypatch.setattr(upsert, "REBASE_KEYS_MAX", 1)
    with pytest.raises(RootMoved):
        rebased(before, store_of(c=1), there, writes)


def test_a_key_that_shares_32_bytes_with_one_written_meanwhile_stands_beside_it() -> None:
    one, two = "x" * 32 + "1", "x" * 32 + "2"
    ours, theirs = store_of(**{one: 1}), store_of(**{one: 3, two: 2})
    assert shown_in(rebased(Index(), ours, theirs, Writes("me", NOW_MS))) == {one: 1, two: 2}


def test_the_whole_change_is_made_on_the_root_that_is_there_then(sink: Sink) -> None:
    sink.write(lambda db: db.set_many({"a": 1, "b": 1}))
    writer = sink.writer(PLAIN)
    staged = sink.stage(writer, PLAIN, 0, [("a", "2"), ("c", "2")])
    mark = Mark("spark-query/x", 3, "")
    with editing(Folder(sink.home)) as editor:
        change = upserting(editor, [staged], mark, SystemClock())
        assert change is not None
        editor.edit(
            lambda root, keys: Database.at(root, keys.public_key, "db").set_many({"a": 5, "d": 5})
        )
        editor.edit(change)
        assert upserting(editor, [staged], mark, SystemClock()) is None
        editor.edit(change)  # made again, as when the node's answer was lost
    assert sink.shown() == {"a": "2", "b": 1, "c": "2", "d": 5}


def test_what_is_written_is_stored_piece_by_piece(
    sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces: list[int] = []
    put = upsert._BatchDatabases._put

    def counted(self: Any, name: str, entries: list[Any]) -> None:
        pieces.append(len(entries))
        put(self, name, entries)

    monkeypatch.setattr(upsert._BatchDatabases, "_put", counted)
    monkeypatch.setattr(upsert, "_KEYS_MAX", 100)
    monkeypatch.setattr(rows_stage, "RUN_KEYS_MAX", 64)
    rows = [(f"k{i}", "x" * 300) for i in range(450)]
    sink.save(PLAIN, rows)
    assert sink.shown() == dict(rows)
    assert pieces == [100, 100, 100, 100, 50]
    pieces.clear()
    monkeypatch.setattr(upsert, "STAGE_BYTES_MAX", 100_000)
    long = "".join(map(str, range(14_000)))
    sink.save(PLAIN, [(f"big{i}", f"{i}{long}") for i in range(4)])
    assert pieces == [2, 2]
    assert sink.shown()["big3"] == to_cell(f"3{long}")


def test_a_disk_that_is_full_while_the_driver_joins_takes_nothing_and_later_all(
    sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upsert, "_KEYS_MAX", 16)
    sink.save(PLAIN, [("a", "before")])
    rows = [(f"k{i}", "x" * 2_000) for i in range(160)]
    writer = sink.writer(PLAIN, batch=3)
    message = sink.stage(writer, PLAIN, 0, rows)
    room = 0
    while len(sink.shown()) == 1:
        with full_disk(room), suppress(StoreFull):
            commit(writer, [message], 3)
        room += 1
    assert room > 2  # what one try staged is there for the next
    assert sink.shown() == {"a": "before", **dict(rows)}


# --- what is wrong --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "row", "said"),
    [
        (PLAIN, (None, "1"), "column key is NULL"),
        (PLAIN, ("x" * 4_097, "1"), "at most 4096 bytes"),
        (
            "key string, value string, type string",
            ("a", "1", "map"),
            "'map' for key 'a'; it takes value",
        ),
        (
            "key string, value string, type string",
            ("a", "1", "hash"),
            "key 'a' of type hash: a hash",
        ),
        ("key string, value binary", ("a", b"\xff"), "not of valueFormat=cell"),
    ],
)
def test_a_row_that_cannot_be_a_key_is_named_and_nothing_is_staged(
    sink: Sink, schema: str, row: tuple[Any, ...], said: str
) -> None:
    writer = sink.writer(schema)
    with pytest.raises(DataLatticeError, match=said):
        sink.stage(
            writer,
            schema,
            0,
            [("fine", *row[1:]), row] if row[1] == "1" and len(row) == 2 else [row],
        )
    assert not list((sink.home / "staging").glob("*/*/*"))


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_a_string_that_is_not_utf8_is_refused(sink: Sink, kind: pa.DataType) -> None:
    raw = pa.array([b"a\xff"], pa.large_binary() if kind == pa.large_string() else pa.binary())
    keys = pa.Array.from_buffers(kind, 1, raw.buffers())
    with pytest.raises(UsageError, match="column key has a STRING that is not UTF-8"):
        sink.writer(PLAIN).write(iter([pa.record_batch({"key": keys, "value": ["1"]})]))
    assert not list((sink.home / "staging").glob("*/*/*"))


def test_keys_that_share_32_bytes_are_written_beside_one_another(sink: Sink) -> None:
    rows = {"x" * 32 + tail: tail for tail in ("", "1", "2", "1" * 200)}
    sink.save(PLAIN, list(rows.items()))
    sink.save(PLAIN, [("x" * 32 + "1", "again")])
    assert sink.shown() == rows | {"x" * 32 + "1": "again"}


@pytest.mark.parametrize(
    ("schema", "options", "said"),
    [
        ("key string", {}, "column value is missing"),
        ("value string", {}, "column key is missing"),
        ("key string, value string, KEY string", {}, "there are two columns key"),
        ("key string, value string", {"database": "d" * 4_097}, "at most 4096 bytes of UTF-8"),
        ("key string, value string, topic string", {}, "column topic is not one of a key"),
        ("key binary, value string", {}, "column key has the type BINARY; it takes STRING"),
        ("key string, value date", {}, "column value has the type DATE"),
        ("key string, value string, expires long", {}, "expires has the type BIGINT"),
        ("key string, value string", {"valueFormat": "cell"}, "valueFormat=cell takes BINARY"),
        ("key string, value string", {"database": ""}, "no database is named"),
        ("key string, value string", {"database": HIDDEN_DATABASE}, "give another name"),
        ("key string, value string", {"topic": "t"}, "unknown option topic"),
    ],
)
def test_a_bad_column_or_option_names_itself_and_what_is_accepted(
    sink: Sink, schema: str, options: dict[str, str], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        sink.writer(schema, batch=None, overwrite=False, **options)


def test_a_row_without_a_database_is_refused(sink: Sink) -> None:
    schema = "database string, key string, value string"
    for name in (None, "", HIDDEN_DATABASE):
        with pytest.raises(UsageError, match="database"):
            sink.save(schema, [(name, "a", "1")], database="")


def test_names_of_databases_have_a_limit(sink: Sink) -> None:
    schema = "database string, key string, value string"
    sink.save(schema, [("d" * 4_096, "a", "1")], database="")
    assert sink.shown("d" * 4_096) == {"a": "1"}
    with pytest.raises(UsageError, match=r"name of a database has .* got 4098"):
        sink.save(schema, [("ü" * 2_049, "a", "1")], database="")


def test_a_task_writes_to_so_many_databases_and_no_more(
    sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows_stage, "DATABASES_MAX", 3)
    schema = "database string, key string, value string"
    rows = [(f"d{i % 3}", f"k{i}", "1") for i in range(9)]
    sink.save(schema, rows, database="")
    with pytest.raises(LimitExceeded, match="at most 3 databases"):
        sink.save(schema, [*rows, ("d3", "a", "1")], database="")


def test_what_no_task_stages_is_refused(sink: Sink) -> None:
    job = sink.writer(PLAIN)._job

    def joined(kind: int, head: object, *items: object) -> None:
        with job.stage() as stage:
            encodings = [encode(to_cell(item)) for item in items]
            stage.parcels.put_items(kind, encode_message(to_cell(head)), encodings)
            staged = stage.done(1)
        with editing(Folder(sink.home)) as editor:
            upserting(editor, [staged], Mark("k", 1, ""), SystemClock())

    for head in (5, ["db"], [5, 1]):
        with pytest.raises(BadFormat):
            joined(rows_stage.ITEMS, head)
    with pytest.raises(BadFormat):
        joined(rows_stage.ITEMS + 1, ["db", 1])
    for item in (5, ["a", 0, 1], ["a", "x", 1, None], ["a", 0, 1, "x"], [Keyword("a"), 0, 1, None]):
        with pytest.raises(BadFormat):
            joined(rows_stage.ITEMS, ["db", 1], item)


@pytest.mark.parametrize("keys", [23, 120])
@pytest.mark.parametrize("runs", [2, 64])
def test_however_rows_are_split_the_database_is_that_of_writes_one_by_one(
    sink: Sink, monkeypatch: pytest.MonkeyPatch, runs: int, keys: int
) -> None:
    monkeypatch.setattr(rows_stage, "RUN_KEYS_MAX", 7)
    monkeypatch.setattr(rows_stage, "_ROWS_MAX", 5)
    monkeypatch.setattr(rows_stage, "ITEMS_BYTES", 100)
    monkeypatch.setattr(upsert, "RUNS_MAX", runs)
    rows = [
        (f"k{row * 7 % keys}", None if row % 13 == 5 else f"{row}".ljust(row % 9 * 400, "x"))
        for row in range(120)
    ]
    sizes = (1, 0, 40, 9, 70)
    parts = [rows[sum(sizes[:task]) :][:size] for task, size in enumerate(sizes)]

    def one_by_one(db: Database) -> None:
        for key, text in rows:
            if text is None:
                db.delete(key)
            else:
                db.set(key, text)

    for name in ("db", "other"):
        sink.write(lambda db: db.set_many({"k1": "old", "more": 1}), name)
    sink.save(PLAIN, *parts)
    sink.write(one_by_one, "other")
    assert sink.shown() == sink.shown("other")
    assert len(sink.shown()) > 20
    if keys == len(rows):  # written once each, so with the same times
        with reading(Folder(sink.home)) as root:
            cursor = RootLattice(root_lattice(), root)
            mine = [Database.at(cursor, KEYS.public_key, name) for name in ("db", "other")]
            assert mine[0].store().hash == mine[1].store().hash


def test_the_options_are_parsed_once(sink: Sink) -> None:
    given = {"STORE": str(sink.home), "Database": "db", "valueformat": "JSON"}
    options = sink_options(given, streaming=False)
    assert options.database == "db"
    assert options.value_format is not None


def test_an_abort_throws_away_what_was_staged(sink: Sink) -> None:
    writer = sink.writer(PLAIN)
    staged = sink.stage(writer, PLAIN, 0, [("a", "1")])
    assert Path(staged.path).exists()
    writer.abort([staged, None])
    assert not Path(staged.path).exists()
