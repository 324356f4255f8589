"""The source: live keys as rows, and what changed from one root to the next, nothing else."""

from __future__ import annotations

import datetime as dt
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from pyspark.sql.streaming.datasource import ReadAllAvailable

from datalattice.apps.kv import KV_SECTION, Database
from datalattice.arrow.batches import row_bytes
from datalattice.arrow.values import ValueFormat, to_column_value
from datalattice.cells import (
    Char,
    Index,
    Map,
    Signed,
    Value,
    Vector,
    decode_message,
    same,
    to_cell,
    to_text,
)
from datalattice.clock import SystemClock
from datalattice.crypto import KeyPair
from datalattice.cursors import RootLattice
from datalattice.errors import BadFormat, BadSignature, DataLoss, MissingData, UsageError
from datalattice.lattice import MergeContext, root_lattice
from datalattice.pipeline.changes import STAND_MS, ReadPosition
from datalattice.pipeline.kv.options import HIDDEN_DATABASE, KV_COLUMNS, parse_options
from datalattice.pipeline.kv.rows import rows
from datalattice.pipeline.kv.source import KVSource, KVStreamReader
from datalattice.pipeline.leasing import RootLease
from datalattice.pipeline.read_targets import OpenTarget
from datalattice.pipeline.reader import Planned
from datalattice.store import CellStore
from datalattice.store.gc import collection
from datalattice.store.kept import KEEP_NOTHING
from datalattice.testing.clocks import StoppedClock
from datalattice.testing.spark_kit import rows_of, struct_of

ALICE, BOB = KeyPair(bytes([1]) * 32), KeyPair(bytes([2]) * 32)
NAME = "0x" + ALICE.public_key.hex()
NOW_MS = 1_700_000_000_000


class Stores:
    """Databases of two owners in one store that stays open for writing."""

    def __init__(self, folder: Path, clock: StoppedClock) -> None:
        self.folder = folder
        self.clock = clock
        self.store = CellStore.open(folder)
        self.roots = {
            keys.public_key: RootLattice(root_lattice(), None, MergeContext(key_pair=keys))
            for keys in (ALICE, BOB)
        }

    def db(self, name: str = "shop", keys: KeyPair = ALICE) -> Database:
        return Database.at(self.roots[keys.public_key], keys.public_key, name, self.clock)

    def commit(self) -> str:
        both = [root.get() for root in self.roots.values()]
        self.store.commit(root_lattice().merge(both[0], both[1]))
        found = self.store.root_hash()
        assert found is not None
        return "0x" + found.hex()

    def source(self, **options: str) -> tuple[KVSource, Any]:
        given = {"store": str(self.folder), "valueFormat": "json", **options}
        found = KVSource(given)
        return found, struct_of(parse_options(given).types)

    def read(self, **options: str) -> list[dict[str, Any]]:
        found, schema = self.source(**options)
        reader = found.reader(schema)
        tasks = reader.partitions()
        return rows_of(reader, tasks)

    def seen(self, **options: str) -> dict[str, Any]:
        return {row["key"]: json.loads(row["value"]) for row in self.read(**options)}

    def stream(self, **options: str) -> Stream:
        found, schema = self.source(**options)
        reader = found.streamReader(schema)
        assert isinstance(reader, KVStreamReader)
        assert reader.clock is self.clock
        return Stream(reader)


class Stream:
    """Does what Spark does with a reader."""

    def __init__(self, reader: KVStreamReader) -> None:
        self.reader = reader
        self.at: dict[str, Any] = as_json(reader.initialOffset())
        self.last: tuple[dict[str, Any], dict[str, Any]] | None = None

    def next(self) -> list[dict[str, Any]]:
        end = as_json(self.reader.latestOffset(self.at, self.reader.getDefaultReadLimit()))
        if end == self.at:
            return []
        self.last = self.at, end
        self.at = end
        found = self.again()
        self.reader.commit(end)
        return found

    def again(self) -> list[dict[str, Any]]:
        assert self.last is not None
        tasks = self.reader.partitions(*self.last)
        return rows_of(self.reader, tasks)

    def told(self) -> list[tuple[str, Any]]:
        return [(row["key"], row["type"] and json.loads(row["value"])) for row in self.next()]


def as_json(form: dict[str, object]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(form))
    return found


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> StoppedClock:
    made = StoppedClock(NOW_MS)
    monkeypatch.setattr("datalattice.pipeline.reader.SystemClock", lambda: made)
    return made


@pytest.fixture
def stores(tmp_path: Path, clock: StoppedClock) -> Iterator[Stores]:
    made = Stores(tmp_path / "store", clock)
    yield made
    made.store.close()


# --- batches --------------------------------------------------------------------------------


def test_a_batch_has_a_row_for_each_live_key(stores: Stores, clock: StoppedClock) -> None:
    db = stores.db()
    db.set("a", {"n": 1})
    db.set("b", 2, ttl=0.5)
    db.set("gone", 3)
    db.delete("gone")
    db.set("old", 4, ttl=0.099)
    db.hset("h", "x", 1)
    db.zadd("z", 2.5, "m")
    db.rpush("l", 1, 2)
    db.incr("c", 7)
    stores.commit()
    clock.now += 100
    made = stores.read()
    assert [tuple(row) for row in made] == [KV_COLUMNS] * 6
    assert {row["key"]: (row["type"], json.loads(row["value"])) for row in made} == {
        "a": ("value", {"n": 1}),
        "b": ("value", 2),
        "c": ("counter", 7),
        "h": ("hash", {"x": 1}),
        "l": ("list", [1, 2]),
        "z": ("zset", [["m", 2.5]]),
    }
    assert {(row["owner"], row["database"]) for row in made} == {(NAME, "shop")}
    at = {row["key"]: row["expires"] for row in made}
    assert at["a"] is None
    assert at["b"] == dt.datetime.fromtimestamp((NOW_MS + 500) / 1000, dt.UTC)
    assert made[0]["updated"] == dt.datetime.fromtimestamp(NOW_MS / 1000, dt.UTC)


def test_owners_databases_prefixes_and_columns_can_be_chosen(stores: Stores) -> None:
    stores.db().set_many({"user/1": 1, "user/2": 2, "visit": 3})
    stores.db("bank")["x"] = 4
    stores.db("shop", BOB)["user/3"] = 5
    stores.commit()
    assert stores.seen(owner=NAME.upper().replace("X", "x"), database="shop,bank") == {
        "user/1": 1,
        "user/2": 2,
        "visit": 3,
        "x": 4,
    }
    assert stores.seen(prefix="user/") == {"user/1": 1, "user/2": 2, "user/3": 5}
    assert stores.seen(prefix="user/1") == {"user/1": 1}
    assert stores.seen(prefix="nobody") == {}
    assert stores.read(columns="type,key", database="bank") == [{"type": "value", "key": "x"}]
    assert {row["owner"] for row in stores.read(columns="owner")} == {
        NAME,
        "0x" + BOB.public_key.hex(),
    }


def test_a_prefix_longer_than_an_index_can_tell_is_compared_in_full(stores: Stores) -> None:
    stores.db()["k" * 40 + "a"] = 1
    stores.commit()
    assert stores.seen(prefix="k" * 40) == {"k" * 40 + "a": 1}
    assert stores.seen(prefix="k" * 41) == {}


def test_blanks_in_a_prefix_count(stores: Stores) -> None:
    stores.db().update({"a": 1, "a ": 2, "a b": 3, " a": 4})
    stores.commit()
    assert stores.seen(prefix="a ") == {"a ": 2, "a b": 3}
    assert stores.seen(prefix=" ") == {" a": 4}


def test_keys_that_share_32_bytes_are_rows_of_their_own(
    stores: Stores, clock: StoppedClock
) -> None:
    old, new = "k" * 32 + "old", "k" * 32 + "new"
    stores.db().update({old: 1, "other": 2})
    since = stores.commit()
    stream = stores.stream()
    assert len(stream.next()) == 2
    stores.db().delete(old)
    clock.now += 1_000
    assert stores.db().gc(0) == 1
    stores.db()[new] = 3
    stores.commit()
    assert sorted(stream.told()) == [(new, 3), (old, None)]
    changed = {row["key"]: row["type"] for row in stores.read(startingOffsets=since)}
    assert changed == {new: "value", old: None}
    stores.db()[new] = 4
    stores.commit()
    assert stream.told() == [(new, 4)]


def test_a_long_key_that_stands_as_it_is_beside_its_own_key_is_one_row(stores: Stores) -> None:
    """An earlier version wrote long keys as they are; from the next write on they stand exact."""
    old, new = "k" * 32 + "old", "k" * 32 + "new"
    stores.db().cursor.set(Index.of([(old, Vector.of((1, 0, 5, None))), ("other", 5)]))
    since = stores.commit()
    stream = stores.stream()
    assert stream.told() == [(old, 1)]
    stores.db().update({old: 2, new: 3})
    stores.commit()
    assert sorted(stream.told()) == [(new, 3), (old, 2)]
    for options in ({}, {"minPartitions": "4"}, {"prefix": "k" * 33}, {"startingOffsets": since}):
        wanted = {old: 2, new: 3} if options != {"prefix": "k" * 33} else {}
        assert stores.seen(**options) == wanted
        assert len(stores.read(**options)) == len(wanted)
    stores.db().delete(old)
    stores.commit()
    assert stream.told() == [(old, None)]
    assert stores.seen() == {new: 3}


def test_the_database_of_sinks_is_read_when_it_is_named(stores: Stores) -> None:
    stores.db()["a"] = 1
    stores.db(HIDDEN_DATABASE)["query"] = 5
    stores.commit()
    assert stores.seen() == {"a": 1}
    assert stores.seen(database=HIDDEN_DATABASE) == {"query": 5}


@pytest.mark.parametrize(
    ("format", "give"),
    [
        ("cell", decode_message),
        ("string", json.loads),
        ("json", json.loads),
    ],
)
def test_values_come_in_the_form_that_is_asked_for(
    stores: Stores, format: str, give: Callable[[Any], Any]
) -> None:
    value = to_cell({"a": [1, "x" * 500]})
    stores.db()["a"] = value
    stores.commit()
    (row,) = stores.read(valueFormat=format)
    assert same(to_cell(give(row["value"])), value)


def test_bytes_refuse_what_has_none_and_name_the_key(stores: Stores) -> None:
    stores.db()["text"] = "plain"
    stores.commit()
    assert stores.read(valueFormat="bytes")[0]["value"] == b"plain"
    stores.db()["list"] = [1]
    stores.commit()
    with pytest.raises(UsageError, match=r"valueFormat='bytes'.*key 'list' in database 'shop'"):
        stores.read(valueFormat="bytes")


def test_a_past_root_is_read_as_it_was(stores: Stores) -> None:
    stores.db()["a"] = 1
    old = stores.commit()
    stores.db()["a"] = 2
    stores.commit()
    assert stores.seen(asOf=old) == {"a": 1}
    assert stores.seen() == {"a": 2}


def test_a_batch_can_tell_what_changed_since_a_root(stores: Stores) -> None:
    stores.db().set_many({f"k{i}": i for i in range(500)})
    old = stores.commit()
    stores.db()["k7"] = "new"
    del stores.db()["k8"]
    newer = stores.commit()
    stores.db()["later"] = 1
    stores.commit()
    made = stores.read(startingOffsets=old, asOf=newer)
    assert [(row["key"], row["type"], row["value"]) for row in made] == [
        ("k7", "value", '"new"'),
        ("k8", None, None),
    ]


def test_many_keys_are_read_in_many_tasks(stores: Stores) -> None:
    stores.db().set_many({f"k{i:04}": "x" * 200 for i in range(1_000)})
    stores.commit()
    found, schema = stores.source(minPartitions="4")
    reader = found.reader(schema)
    tasks = reader.partitions()
    assert len(tasks) == 4
    made = rows_of(reader, tasks)
    assert sorted(row["key"] for row in made) == [f"k{i:04}" for i in range(1_000)]
    options = parse_options(dict(found.options))
    for task in tasks:
        assert isinstance(task, Planned)
        part, times = task.part
        sized = list(rows(part, options, times, stores.store))
        assert 200 < len(sized) < 300
        assert all(200 < row_bytes(row) < 600 for row in sized)


def test_an_empty_store_has_no_rows(stores: Stores) -> None:
    assert stores.read() == []


# --- what is wrong --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"owner": "0x" + "00" * 32}, "no such owner; it has: 0x"),
        ({"database": "shpo"}, "no such database; it has: shop"),
        ({"databases": "shop"}, "did you mean database"),
        ({"columns": "key,offset"}, "owner, database, key, type, value, updated, expires"),
        ({"valueFormat": "xml"}, "one of cell, bytes, string, json, variant"),
        ({"startingOffsets": "0xab"}, "hash of a root"),
        ({"startingOffsets": "latest"}, "would read nothing from there"),
        ({"minPartitions": "0"}, "a whole number from 1 to 262144"),
        ({"prefix": ""}, "at least one character"),
    ],
)
def test_a_bad_option_names_itself_and_what_is_accepted(
    stores: Stores, options: dict[str, str], said: str
) -> None:
    stores.db()["a"] = 1
    stores.commit()
    with pytest.raises(UsageError, match=said):
        stores.read(**options)


def test_a_schema_of_ones_own_is_refused(stores: Stores) -> None:
    found, _ = stores.source()
    with pytest.raises(UsageError, match="omit schema"):
        found.reader(struct_of({"key": "BINARY"}))


def test_a_stream_has_no_past(stores: Stores) -> None:
    with pytest.raises(UsageError, match="asOf is for batches"):
        stores.stream(asOf="1h")


def test_databases_that_their_owner_did_not_sign_are_refused(stores: Stores) -> None:
    stores.db()["a"] = 1
    stores.commit()
    root = stores.store.root()
    assert isinstance(root, Index)
    databases = Map.of({"shop": Index.of({"a": 1})})
    for forged in (
        Signed(BOB.public_key, bytes(64), databases),
        Signed.sign(ALICE, databases),
    ):
        stores.store.commit(root.put(KV_SECTION, Map.of([(BOB.public_key, forged)])))
        with pytest.raises(BadSignature, match=BOB.public_key.hex()):
            stores.read()


def test_a_database_whose_name_is_not_text_is_shown(stores: Stores) -> None:
    odd = decode_message(b"\x30\x02\xff\xfe")
    half = Char(0xD800)
    stores.db()["a"] = Vector.of([half])
    stores.commit()
    root = stores.store.root()
    assert isinstance(root, Index)
    signed: Any = root.get(KV_SECTION)
    held = signed.get(ALICE.public_key).value.get("shop")
    again = Signed.sign(ALICE, Map.of([(odd, held)]))
    stores.store.commit(root.put(KV_SECTION, Map.of([(ALICE.public_key, again)])))
    for format in ("cell", "string", "json", "variant"):
        (row,) = stores.read(valueFormat=format, database=to_text(odd))
        assert row["database"] == to_text(odd)
        assert row["value"] == to_column_value(Vector.of([half]), ValueFormat(format))


def test_two_databases_whose_names_read_the_same_are_refused(stores: Stores) -> None:
    names: list[tuple[Value, Value]] = [("5", Index.of({"a": 1})), (5, Index.of({"b": 1}))]
    signed = Signed.sign(ALICE, Map.of(names))
    section = Map.of([(ALICE.public_key, signed)])
    stores.store.commit(Index.of([(KV_SECTION, section)]))
    with pytest.raises(BadFormat, match="read the same: 5"):
        stores.read()


# --- streams --------------------------------------------------------------------------------


def test_a_stream_tells_everything_first_and_then_what_changed(stores: Stores) -> None:
    stores.db().set_many({"a": 1, "b": 2, "c": 3})
    stores.commit()
    stream = stores.stream()
    assert sorted(stream.told()) == [("a", 1), ("b", 2), ("c", 3)]
    assert stream.told() == []
    stores.db()["b"] = 20
    stores.commit()
    stores.db()["b"] = 21
    stores.db()["d"] = 4
    del stores.db()["a"]
    stores.commit()
    assert stream.told() == [("a", None), ("b", 21), ("d", 4)]
    made = stream.again()
    assert [row["key"] for row in made] == ["a", "b", "d"]
    assert made[0]["updated"] is not None
    assert made[0]["expires"] is None


def test_a_key_created_and_deleted_between_two_batches_makes_no_row(stores: Stores) -> None:
    stores.db()["a"] = 1
    stores.commit()
    stream = stores.stream()
    stream.next()
    stores.db()["b"] = 1
    del stores.db()["b"]
    stores.commit()
    assert stream.told() == []


def test_what_concerns_others_makes_no_batch(stores: Stores) -> None:
    stores.db()["a"] = 1
    stores.commit()
    stream = stores.stream(owner=NAME, database="shop", prefix="a")
    stream.next()
    at = stream.at
    stores.db()["b"] = 1
    stores.db("bank")["a"] = 1
    stores.db("shop", BOB)["a"] = 1
    stores.commit()
    assert stream.told() == []
    assert stream.at == at
    stores.db()["ab"] = 1
    stores.commit()
    assert stream.told() == [("ab", 1)]


def test_a_stream_moves_on_after_a_while_although_nothing_changed_for_it(
    stores: Stores, clock: StoppedClock
) -> None:
    stores.db()["a"] = 1
    stores.commit()
    stream = stores.stream(database="shop")
    stream.next()
    stores.db("bank")["x"] = 1
    new = stores.commit()
    clock.now += STAND_MS
    assert stream.next() == []
    assert stream.at["root"] != new
    clock.now += 1
    assert stream.next() == []
    assert stream.at["root"] == new


def test_a_stream_may_begin_now_or_at_a_root(stores: Stores) -> None:
    stores.db()["a"] = 1
    first = stores.commit()
    stores.db()["b"] = 2
    stores.commit()
    late, since = stores.stream(startingOffsets="latest"), stores.stream(startingOffsets=first)
    assert late.told() == []
    assert since.told() == [("b", 2)]
    stores.db()["c"] = 3
    stores.commit()
    assert late.told() == since.told() == [("c", 3)]


def test_a_stream_over_a_store_without_a_root_waits(stores: Stores) -> None:
    stream = stores.stream()
    assert stream.next() == []
    stores.db()["a"] = 1
    stores.commit()
    assert stream.told() == [("a", 1)]


def test_expiry_is_judged_by_the_time_in_the_position(stores: Stores, clock: StoppedClock) -> None:
    stores.db().set("a", 1, ttl=0.1)
    stores.db().set("b", 1, ttl=0.1)
    stores.commit()
    stream = stores.stream()
    assert stream.told() == [("a", 1), ("b", 1)]
    clock.now += 200
    assert [row["type"] for row in stream.again()] == ["value", "value"]  # as when it was planned
    stores.db().gc(0)  # nothing was written: what expired is told when its entry goes
    stores.db()["c"] = 1
    stores.commit()
    assert stream.told() == [("a", None), ("b", None), ("c", 1)]


def test_all_that_is_available_ends_with_what_was_there(stores: Stores) -> None:
    stores.db()["a"] = 1
    stores.commit()
    stream = stores.stream()
    assert isinstance(stream.reader.getDefaultReadLimit(), ReadAllAvailable)
    stream.reader.prepareForTriggerAvailableNow()
    stores.db()["b"] = 1
    stores.commit()
    assert stream.told() == [("a", 1)]
    assert stream.next() == []
    assert stream.reader.reportLatestOffset()["root"] != stream.at["root"]


def test_the_roots_of_a_batch_are_leased_until_the_next_is_done(stores: Stores) -> None:
    stores.db()["a"] = 1
    first = stores.commit()
    stream = stores.stream()
    stream.next()

    def leased() -> list[str]:
        return ["0x" + lease.root_hash.hex() for lease in stores.store.pins.leases()]

    assert leased() == [first]
    stores.db()["b"] = 1
    second = stores.commit()
    end = stream.reader.latestOffset(stream.at, ReadAllAvailable())
    stream.reader.partitions(stream.at, end)
    assert sorted(leased()) == sorted([first, second])
    stream.reader.commit(end)
    assert leased() == [second]


# --- roots that are gone --------------------------------------------------------------------


def lose(stream: Stream) -> str:
    """Let the root at which a stream stands be gone; return its hash."""
    gone = "0x" + "ab" * 32
    stream.at = {**stream.at, "root": gone}
    return gone


def test_a_start_that_is_gone_is_an_error_with_its_hash(stores: Stores) -> None:
    stores.db()["a"] = 1
    stores.commit()
    stream = stores.stream()
    stream.next()
    gone = lose(stream)
    stores.db()["b"] = 2
    stores.commit()
    with pytest.raises(DataLoss, match=f"{gone}.*failOnDataLoss=false"):
        stream.next()


def test_without_fail_on_data_loss_everything_is_read_again(
    stores: Stores, caplog: pytest.LogCaptureFixture
) -> None:
    stores.db()["a"] = 1
    stores.commit()
    stream = stores.stream(failOnDataLoss="false")
    stream.next()
    lose(stream)
    stores.db()["b"] = 2
    stores.commit()
    with caplog.at_level(logging.WARNING):
        assert stream.told() == [("a", 1), ("b", 2)]
    assert "reading all keys again" in caplog.text


def test_a_batch_end_that_is_gone_gives_way_to_the_present_root(
    stores: Stores, caplog: pytest.LogCaptureFixture
) -> None:
    stores.db()["a"] = 1
    stores.commit()
    strict, lenient = stores.stream(), stores.stream(failOnDataLoss="false")
    gone = {**strict.at, "root": "0x" + "ab" * 32}
    with pytest.raises(DataLoss, match="ab" * 32):
        strict.reader.partitions(strict.at, gone)
    with caplog.at_level(logging.WARNING):
        tasks = lenient.reader.partitions(lenient.at, gone)
    assert [row["key"] for row in rows_of(lenient.reader, tasks)] == ["a"]
    assert "current root instead" in caplog.text


@pytest.mark.parametrize("moment", ["batch", "new stream", "next batch", "last batch"])
def test_a_root_that_is_collected_before_it_is_held_gives_way_to_the_next(
    moment: str, stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = Late()
    stores.store.close()
    stores.store = CellStore.open(
        stores.folder, retention=KEEP_NOTHING, clock=late, segment_bytes=4_096
    )
    monkeypatch.setattr(collection, "FREED_BYTES_MIN", 1)  # a little is worth a collection
    lease, moves = OpenTarget.lease, iter(range(0))

    def planted(self: OpenTarget, hash: bytes, seconds: float) -> RootLease:
        if next(moves, None) is not None:
            stores.db()["new"] = late.late_ms
            stores.commit()
            late.late_ms += 60_000
            stores.store.collect(grace_ms=0)
        return lease(self, hash, seconds)

    monkeypatch.setattr(OpenTarget, "lease", planted)
    stores.db()["a"] = 1
    stores.commit()
    if moment == "batch":
        moves = iter(range(2))
        assert stores.seen() == {"a": 1, "new": 60_000}
        return
    if moment == "new stream":
        moves = iter(range(1))
        stream = stores.stream(startingOffsets="latest")
        assert stream.next() == []
        stores.db()["b"] = 2
        stores.commit()
        assert stream.told() == [("b", 2)]
        return
    stream = stores.stream()
    moves = iter(range(2))
    if moment == "last batch":
        stream.reader.prepareForTriggerAvailableNow()
    assert stream.told() == [("a", 1), ("new", 60_000)]


class Late:
    """A clock that is put forward."""

    late_ms = 0

    def now_ms(self) -> int:
        return SystemClock().now_ms() + self.late_ms


class Lacking:
    """A loader that lacks some cells."""

    def __init__(self, store: CellStore, lacks: set[bytes]) -> None:
        self.store = store
        self.lacks = lacks

    def load(self, hash: bytes) -> Value:
        from datalattice.cells import decode

        if hash in self.lacks:
            raise MissingData([hash])
        encoding = self.store.get_encoding(hash)
        assert encoding is not None
        return decode(encoding, self)


def test_a_task_that_misses_what_was_before_tells_all_that_is_now_once(
    stores: Stores, caplog: pytest.LogCaptureFixture
) -> None:
    from datalattice.cells import novelty

    stores.db().set_many({f"k{i:04}": "x" * 200 for i in range(300)})
    stores.commit()
    before = {hash for hash, _, _ in novelty(stores.db().store(), None)}
    stream = stores.stream()
    stream.next()
    stores.db().set_many({f"k{i:04}": "y" * 200 for i in range(300)})
    stores.commit()
    now = {hash for hash, _, _ in novelty(stores.db().store(), None)}
    end = stream.reader.latestOffset(stream.at, ReadAllAvailable())
    (planned,) = stream.reader.partitions(stream.at, end)
    part, times = planned.part
    found, _ = stores.source(failOnDataLoss="false")
    strict, _ = stores.source()
    some = set(sorted(before - now)[:10])
    loader = Lacking(stores.store, some)
    with caplog.at_level(logging.WARNING):
        made = list(rows(part, parse_options(dict(found.options)), times, loader))
    assert [row[2] for row in made] == [f"k{i:04}" for i in range(300)]
    assert "its earlier state is no longer there" in caplog.text
    with pytest.raises(MissingData):
        list(rows(part, parse_options(dict(strict.options)), times, loader))
    lacking = Lacking(stores.store, set(sorted(now - before)[:10]))
    with pytest.raises(MissingData):
        list(rows(part, parse_options(dict(found.options)), times, lacking))


# --- positions ------------------------------------------------------------------------------


@pytest.mark.parametrize("root", [None, bytes(range(32))])
def test_a_position_is_what_was_written(root: bytes | None) -> None:
    position = ReadPosition(root, NOW_MS)
    assert ReadPosition.read(as_json(position.write()), has_time=True) == position


@pytest.mark.parametrize(
    "form",
    [
        {},
        {"version": 2, "root": None, "time": 1},
        {"version": 1, "root": "0xab", "time": 1},
        {"version": 1, "root": "zz" * 33, "time": 1},
        {"version": 1, "root": "0x" + "zz" * 32, "time": 1},
        {"version": 1, "root": 5, "time": 1},
        {"version": 1, "root": None},
        {"version": 1, "offsets": {}},
    ],
)
def test_another_checkpoint_is_refused(form: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="use another checkpointLocation"):
        ReadPosition.read(form, has_time=True)
