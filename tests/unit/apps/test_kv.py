"""The database: what each operation does, returns and refuses, and how it is shared."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from datalattice.apps.kv import (
    GC_AGE,
    KEY_BYTES_MAX,
    KV_SECTION,
    Database,
    KeyChange,
    KVEntryLattice,
    KVStoreLattice,
    read_entry,
)
from datalattice.cells import (
    EMPTY_INDEX,
    Index,
    Keyword,
    Map,
    Set,
    Signed,
    Value,
    Vector,
    same,
    text_bytes,
    to_python,
    value_hash,
)
from datalattice.crypto import KeyPair, KeyRing
from datalattice.cursors import RootLattice
from datalattice.errors import (
    NoSigningKey,
    TypeMismatch,
    UsageError,
    WrongType,
)
from datalattice.lattice import (
    EntryDropped,
    MergeContext,
    MergeNotice,
    WriteSuperseded,
    key_of,
    root_lattice,
)
from datalattice.limits import INDEX_KEY_BYTES
from datalattice.testing.cells_kit import CellDict
from datalattice.testing.clocks import StoppedClock
from datalattice.testing.polling import LIMIT_S

LONG_MIN, LONG_MAX = -(2**63), 2**63 - 1
ALICE, BOB = KeyPair(b"a" * 32), KeyPair(b"b" * 32)


@pytest.fixture
def clock() -> StoppedClock:
    return StoppedClock()


@pytest.fixture
def db(clock: StoppedClock) -> Database:
    return Database.create(replica="here", clock=clock)


def entry(database: Database, key: str) -> object:
    stored = database.store().get(key)
    return None if stored is None else to_python(stored)


# --- a dict -------------------------------------------------------------------------------------


def test_it_is_a_mapping(db: Database) -> None:
    assert isinstance(db, MutableMapping)
    db["b"] = {"x": [1, 2]}
    db.update({"a": 1}, c=None)
    assert list(db) == ["a", "b", "c"]
    assert len(db) == 3
    assert db["a"] == 1
    assert to_python(db["b"]) == {"x": [1, 2]}
    assert dict(db.items())["c"] is None
    assert next(iter(db.values())) == 1
    assert "c" in db
    assert db.get("c", 5) is None  # a value that is None is there
    assert db.get("d", 5) == 5
    nothing: Any = 7
    assert nothing not in db
    del db["a"]
    with pytest.raises(KeyError):
        db["a"]
    with pytest.raises(KeyError):
        del db["a"]
    assert db.pop("c") is None
    assert db.popitem()[0] == "b"
    assert not db
    assert db.setdefault("n", 1) == 1
    assert db.setdefault("n", 2) == 1
    db.clear()
    assert len(db) == 0
    assert len(db.store()) == 4


def test_a_key_of_any_type_reads_as_one_value(db: Database) -> None:
    with db.watch() as watch:
        db["plain"] = [1]
        db.hset("hash", "name", "Ada")
        db.sadd("set", "x")
        db.zadd("scores", 2, "b")
        db.zadd("scores", 1, "a")
        db.rpush("list", 1, 2)
        db.incr("visits", 3)
        held = {
            "plain": [1],
            "hash": Index.of({"name": "Ada"}),
            "set": {"x"},
            "scores": [["a", 1.0], ["b", 2.0]],
            "list": [1, 2],
            "visits": 3,
        }
        assert dict(db) == held == {change.key: change.value for change in watch.poll()}
    assert db["visits"] == db.get("visits") == db.setdefault("visits", 9) == db.pop("visits") == 3
    assert sorted(map(repr, db.values())) == sorted(repr(db[key]) for key in db)


def test_a_typed_database_reads_counters_and_lists_as_they_are(clock: StoppedClock) -> None:
    db = Database.create("shop", ALICE, clock=clock, of=timedelta)
    db["lap"] = timedelta(seconds=1)
    db.incr("visits")
    db.rpush("list", "a")
    assert dict(db) == {"lap": timedelta(seconds=1), "visits": 1, "list": ["a"]}


def test_keys_come_in_the_order_of_their_bytes_and_by_prefix(db: Database) -> None:
    for key in ("user/2", "user/10", "us", "users", "z", ""):
        db[key] = key
    assert list(db) == ["", "us", "user/10", "user/2", "users", "z"]
    assert [key for key, _entry in db.scan("user/")] == ["user/10", "user/2"]
    assert [key for key, _entry in db.scan("user/10")] == ["user/10"]
    assert [key for key, _entry in db.scan("zz")] == []
    assert len(list(db.scan())) == 6


def test_a_scan_begins_at_start_and_ends_before_stop(db: Database) -> None:
    ends = ["", "0", "é", "customer/", "\U0001f4a1", "x" * 23, "x" * 24, "x" * 25, "x" * 60]
    names = [begin + end for begin in ("", "customer", "customers", "cz") for end in ends]
    db.update(dict.fromkeys(names, 1))
    # Keys that earlier versions stored as they are, without made keys.
    db.cursor.set(db.store().put("customer" + "w" * 40, db.store().get("0")))
    keys = sorted({*names, "customer" + "w" * 40})
    for start in (None, *keys):
        for stop in (None, *keys):
            found = [key for key, _entry in db.scan(start=start, stop=stop)]
            wanted = [k for k in keys if (start or "") <= k and (stop is None or k < stop)]
            assert sorted(found) == wanted
            for prefix in ("cust", "customer" + "x" * 23):
                inside = [key for key, _entry in db.scan(prefix, start=start, stop=stop)]
                assert sorted(inside) == [key for key in wanted if key.startswith(prefix)]


def test_a_scan_of_a_range_loads_what_it_returns(db: Database) -> None:
    db.update({f"customer/{i:05}": f"{i} " * 40 for i in range(3_000)})
    cells = CellDict()
    db.cursor.set(cells.kept(db.store()))
    assert len(list(db.scan(start="customer/01000", stop="customer/01010"))) == 10
    assert cells.loads < 60  # of more than 3,000


@pytest.mark.parametrize("name", ["start", "stop"])
@pytest.mark.parametrize(
    ("given", "error", "said"),
    [(1, TypeMismatch, "a str: int"), (b"k", TypeMismatch, "bytes"), ("\ud800", UsageError, "")],
)
def test_a_scan_names_the_bound_that_is_no_key(
    db: Database, name: str, given: object, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=f"`{name}`, a key, is not .*{said}"):
        db.scan(**{name: given})  # type: ignore[arg-type]
    with pytest.raises(TypeMismatch, match="a prefix is not a str: int"):
        db.scan(1)  # type: ignore[arg-type]


def test_types_are_named(db: Database) -> None:
    db["v"] = 1
    db.hset("h", "f", 1)
    db.sadd("s", 1)
    db.zadd("z", 1, "m")
    db.rpush("l", 1)
    db.incr("c")
    names = {key: db.type(key) for key in db}
    assert names == {
        "v": "value",
        "h": "hash",
        "s": "set",
        "z": "zset",
        "l": "list",
        "c": "counter",
    }
    assert db.type("none") is None


WRONG: dict[str, Any] = {
    "HSET": lambda db: db.hset("k", "f", 1),
    "HGET": lambda db: db.hget("k", "f"),
    "HDEL": lambda db: db.hdel("k", "f"),
    "HGETALL": lambda db: db.hgetall("k"),
    "HLEN": lambda db: db.hlen("k"),
    "SADD": lambda db: db.sadd("k", 1),
    "SREM": lambda db: db.srem("k", 1),
    "SISMEMBER": lambda db: db.sismember("k", 1),
    "SMEMBERS": lambda db: db.smembers("k"),
    "SCARD": lambda db: db.scard("k"),
    "ZADD": lambda db: db.zadd("k", 1, 1),
    "ZREM": lambda db: db.zrem("k", 1),
    "ZSCORE": lambda db: db.zscore("k", 1),
    "ZRANGE": lambda db: db.zrange("k"),
    "ZRANGEBYSCORE": lambda db: db.zrange_by_score("k", 0, 1),
    "ZCARD": lambda db: db.zcard("k"),
    "LPUSH": lambda db: db.lpush("k", 1),
    "RPUSH": lambda db: db.rpush("k", 1),
    "LPOP": lambda db: db.lpop("k"),
    "RPOP": lambda db: db.rpop("k"),
    "LRANGE": lambda db: db.lrange("k"),
    "LLEN": lambda db: db.llen("k"),
    "INCRBY": lambda db: db.incr("k"),
    "DECRBY": lambda db: db.decr("k"),
    "COUNT": lambda db: db.count("k"),
}


@pytest.mark.parametrize("operation", WRONG)
def test_an_operation_of_another_type_is_refused_and_changes_nothing(
    db: Database, operation: str
) -> None:
    db["k"] = 1
    before = db.store()
    with pytest.raises(WrongType, match=f"^WRONGTYPE Operation {operation} .* holding value"):
        WRONG[operation](db)
    assert db.store() is before


def test_modify_refuses_what_is_no_plain_value(db: Database) -> None:
    db.incr("k")
    with pytest.raises(WrongType, match="MODIFY against a key holding counter"):
        db.modify("k", lambda value: value)


# --- stamps and bases -----------------------------------------------------------------------------


def test_a_write_is_later_than_what_it_replaces_even_when_the_clock_stands(
    db: Database, clock: StoppedClock
) -> None:
    db["k"] = 1
    db["k"] = 2
    assert entry(db, "k") == [2, 0, 1_001, None]
    clock.now = 5
    assert db.delete("k")
    assert entry(db, "k") == [None, None, 1_002, None]


def test_a_clock_before_1970_is_refused(db: Database, clock: StoppedClock) -> None:
    db.cursor.set(EMPTY_INDEX)
    clock.now = -1
    writes: list[Callable[[], object]] = [
        lambda: db.set("k", 1),
        lambda: db.set_many({"k": 1}),
        lambda: db.rpush("k", 1),
    ]
    for write in writes:
        with pytest.raises(UsageError, match="the clock shows -1 ms"):
            write()
    assert db.store() is EMPTY_INDEX


def test_a_structure_made_over_a_tombstone_has_its_time_as_base(db: Database) -> None:
    db["k"] = 1
    db.delete("k")
    db.hset("k", "f", 1)
    assert entry(db, "k") == [{"f": [1, 1_002]}, 1, 1_002, None, 1_001]


def test_a_structure_made_over_an_expired_one_has_its_expiry_as_base(
    db: Database, clock: StoppedClock
) -> None:
    db.incr("k", 5)
    db.expire("k", 0.02)
    clock.now = 1_030
    assert db.count("k") == 0
    assert db.incr("k") == 1
    assert entry(db, "k") == [{"here": [1, 0]}, 5, 1_030, None, 1_020]


def test_replicas_that_count_on_after_the_same_expiry_add_up(clock: StoppedClock) -> None:
    a, b = (Database.create(replica=name, clock=clock) for name in "ab")
    a.incr("k", 5)
    a.expire("k", 0.012)
    b.merge(a)
    clock.now = 1_020
    a.incr("k")
    clock.now = 1_021
    b.incr("k")
    a.merge(b)
    b.merge(a)
    assert a.count("k") == b.count("k") == 2


def test_increments_that_did_not_see_a_delete_go_with_it(clock: StoppedClock) -> None:
    a, b = (Database.create(replica=name, clock=clock) for name in "ab")
    a.incr("k", 2)
    b.merge(a)
    clock.now = 1_010
    a.delete("k")
    clock.now = 1_020
    b.incr("k")
    a.merge(b)
    assert "k" not in a
    assert entry(a, "k") == [{}, 5, 1_020, None, 1_010]
    clock.now = 1_030
    assert a.incr("k") == 1
    b.merge(a)
    assert b.count("k") == 1
    assert a.type("k") == "counter"


def test_an_emptied_structure_is_a_tombstone_to_other_types(clock: StoppedClock) -> None:
    db = Database.create(clock=clock)
    db.cursor.set(Index.of({"k": Vector.of((EMPTY_INDEX, 5, 20, None, 10))}))
    assert "k" not in db
    db.hset("k", "f", 1)
    assert entry(db, "k") == [{"f": [1, 1_000]}, 1, 1_000, None, 20]


def test_the_end_of_time_is_refused(db: Database) -> None:
    db.cursor.set(Index.of({"k": Vector.of((1, 0, LONG_MAX, None))}))
    before = db.store()
    with pytest.raises(UsageError, match="does not fit in 64 bits"):
        db.set("k", 2)
    with pytest.raises(UsageError, match="does not fit in 64 bits"):
        db.delete("k")
    assert db.store() is before
    db.cursor.set(Index.of({"k": Vector.of((1, 0, LONG_MAX - 1, None))}))
    db["k"] = 3
    assert db["k"] == 3


# --- expiry ---------------------------------------------------------------------------------------


def test_a_key_expires(db: Database, clock: StoppedClock) -> None:
    db.set("k", 1, ttl=0.1)
    db["forever"] = 1
    assert db.ttl("k") == timedelta(milliseconds=100)
    assert db.ttl("forever") is None
    assert db.ttl("none") is None
    clock.now += 99
    assert db["k"] == 1
    clock.now += 1
    assert "k" not in db
    assert list(db) == ["forever"]
    assert db.ttl("k") is None
    assert not db.delete("k")
    assert not db.expire("k", timedelta(milliseconds=5))


def test_expire_and_persist_are_writes_that_replicate(db: Database, clock: StoppedClock) -> None:
    other = Database.create(clock=clock)
    db.sadd("s", 1)
    other.merge(db)
    assert db.expire("s", 0.05)
    other.merge(db)
    assert other.ttl("s") == timedelta(milliseconds=50)
    assert db.persist("s")
    assert not db.persist("s")
    other.merge(db)
    assert other.ttl("s") is None
    assert not db.expire("none", 0.005)
    assert not db.persist("none")


def test_structure_writes_keep_the_expiry_and_a_value_clears_it(db: Database) -> None:
    db.hset("h", "f", 1)
    db.expire("h", 0.05)
    db.hset("h", "g", 1)
    db.rpush("l", 1)
    db.expire("l", 0.05)
    db.rpush("l", 2)
    db.set("v", 1, 0.05)
    db.modify("v", lambda _value: 2)
    assert [db.ttl(key) for key in "hlv"] == [timedelta(milliseconds=50)] * 3
    db["v"] = 3
    assert db.ttl("v") is None


@pytest.mark.parametrize("ttl", [0, -1, 0.0001, True, "1", math.nan, timedelta(0), LONG_MAX + 1])
def test_a_bad_time_to_live_is_refused(db: Database, ttl: Any) -> None:
    db["k"] = 1
    before = db.store()
    with pytest.raises(UsageError, match="`ttl` is not a positive time span"):
        db.set("k", 1, ttl)
    with pytest.raises(UsageError, match="`ttl` is not a positive time span"):
        db.set_many({"k": 1}, ttl)
    with pytest.raises(UsageError, match="`ttl`"):
        db.expire("k", ttl)
    assert db.store() is before


def test_an_expiry_past_64_bits_is_refused(db: Database) -> None:
    last = LONG_MAX // 1_000
    for write in (lambda: db.set("k", 1, last), lambda: db.expire("h", last)):
        db.hset("h", "f", 1)
        with pytest.raises(UsageError, match=r"`ttl` exceeds the last time of 64 bits: \d+"):
            write()
    db.set("k", 1, last - 1)
    assert db.ttl("k") == timedelta.max  # which is earlier: no timedelta is longer


# --- clean-up -------------------------------------------------------------------------------------


def test_clean_up_takes_what_is_old_and_unseen(db: Database, clock: StoppedClock) -> None:
    db["live"] = 1
    db["gone"] = 1
    db.delete("gone")  # at 1,001
    db.set("due", 1, 0.01)  # expires at 1,010
    clock.now = 1_001 + GC_AGE // timedelta(milliseconds=1) - 1
    assert db.gc() == 0
    clock.now += 1
    assert db.gc() == 1
    clock.now += 8
    assert db.gc() == 0
    clock.now += 1
    assert db.gc() == 1
    assert list(db.store()) == ["live"]


def test_clean_up_of_age_0_takes_all_that_is_unseen(db: Database) -> None:
    db["k"] = 1
    db.delete("k")  # a millisecond ahead of the clock
    assert db.gc(0.001) == 0
    assert db.gc(0) == 1
    before = db.store()
    assert db.gc(0) == 0
    assert db.store() is before


@pytest.mark.parametrize("age", [-1, math.nan, True, None])
def test_a_bad_age_is_refused(db: Database, age: Any) -> None:
    with pytest.raises(UsageError, match="min_age"):
        db.gc(age)


# --- hashes, sets, sorted sets, lists, counters ---------------------------------------------------


def test_hashes(db: Database) -> None:
    assert db.hset("h", "b", 1)
    assert not db.hset("h", "b", 2)
    assert db.hset_many("h", {"a": "x", "b": 3}) == 1
    assert db.hset_many("none", {}) == 0
    assert db.hget("h", "b") == 3
    assert db.hget("h", "c") is None
    assert db.hget("none", "c") is None
    assert list(db.hgetall("h").entries()) == [("a", "x"), ("b", 3)]
    assert db.hlen("h") == 2
    assert db.hexists("h", "a")
    assert db.hdel("h", "a", "a", "zz") == 1
    assert db.hdel("none", "a") == 0
    assert not db.hexists("h", "a")
    before = db.store()
    assert db.hdel("h", "a") == 0
    assert db.store() is before
    assert not db.hset("h", "b", None)
    assert db.hlen("h") == 0


def test_sets(db: Database, clock: StoppedClock) -> None:
    assert db.sadd("s", 1, 1.0, True, 1, [1]) == 4
    assert db.scard("s") == 4
    assert db.sismember("s", [1])
    assert not db.sismember("s", 2)
    assert db.smembers("s") == Set.of([1, 1.0, True, Vector.of([1])])
    assert db.srem("s", 1, 2) == 1
    before = db.store()
    assert db.srem("s", 1) == 0
    assert db.sadd("s", True) == 0  # there, and the clock stands: nothing to write
    assert db.store() is before
    clock.now += 1
    assert db.sadd("s", True) == 0
    assert db.store() is not before  # a later add outlives a removal elsewhere that was earlier
    assert db.smembers("none") == Set.of([])


def test_sorted_sets(db: Database) -> None:
    assert db.zadd("z", 2, "b") == 1
    assert db.zadd_many("z", [(1.5, "a"), (2, "c"), (-1, "d")]) == 3
    assert db.zadd("z", 9, "d") == 0
    tied = sorted("bc", key=value_hash)
    assert list(db.zrange("z")) == ["a", *tied, "d"]
    assert list(db.zrange("z", 1, 2)) == tied
    assert list(db.zrange("z", -1, 99)) == ["d"]
    assert list(db.zrange("z", 3, 1)) == []
    assert db.zitems("z", 0, 0) == [("a", 1.5)]
    assert set(db.zrange_by_score("z", 1.5, 2)) == {"a", "b", "c"}
    assert list(db.zrange_by_score("z", low=3)) == ["d"]
    assert db.zscore("z", "d") == 9.0
    assert db.zscore("z", "none") is None
    assert db.zcard("z") == 4
    assert db.zrem("z", "a", "none") == 1
    assert db.zrem("none", "a") == 0
    assert db.zscore("z", "a") is None
    before = db.store()
    assert db.zadd("z", 9, "d") == 0
    assert db.store() is before


def test_scores_are_numbers_that_can_be_ordered(db: Database) -> None:
    for score, error in ((float("nan"), UsageError), ("1", TypeMismatch), (True, TypeMismatch)):
        with pytest.raises(error, match="score"):
            db.zadd("z", score, "m")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="too large for a float"):
        db.zadd("z", 10**400, "m")
    db.zadd_many("z", [(float("inf"), "top"), (float("-inf"), "low")])
    assert list(db.zrange("z")) == ["low", "top"]


def test_lists(db: Database) -> None:
    assert db.rpush("l", 1, 2) == 2
    assert db.lpush("l", "a", "b") == 4
    assert to_python(db.lrange("l")) == ["b", "a", 1, 2]
    assert to_python(db.lrange("l", -3, -2)) == ["a", 1]
    assert to_python(db.lrange("l", -9, 0)) == ["b"]
    assert to_python(db.lrange("l", 4, 9)) == []
    assert db.lpop("l") == "b"
    assert db.rpop("l") == 2
    assert db.llen("l") == 2
    assert db.lpop("l") == "a"
    assert db.rpop("l") == 1
    before = db.store()
    assert db.lpop("l") is None
    assert db.rpop("l") is None
    assert db.rpush("l") == 0
    assert db.store() is before
    assert "l" in db
    assert db.llen("none") == 0
    with pytest.raises(UsageError, match="position"):
        db.lrange("l", 0.5, 1)  # type: ignore[arg-type]


def test_counters(db: Database) -> None:
    assert db.incr("c") == 1
    assert db.incr("c", 5) == 6
    assert db.decr("c", 2) == 4
    assert db.incr("c", -10) == -6
    assert db.count("c") == -6
    assert db.count("none") == 0
    assert entry(db, "c") == [{"here": [6, 12]}, 5, 1_000, None]


def test_counters_stay_within_64_bits(db: Database) -> None:
    assert db.incr("c", LONG_MAX) == LONG_MAX
    before = db.store()
    with pytest.raises(UsageError, match="would exceed 64 bits"):
        db.incr("c")
    assert db.store() is before
    other = Database.create(replica="there", clock=StoppedClock())
    other.merge(db)
    with pytest.raises(UsageError, match="total"):
        other.incr("c")
    assert other.decr("c") == LONG_MAX - 1
    far = Database.create(replica="far", clock=StoppedClock())
    far.incr("c", 10)
    other.merge(far)
    assert other.count("c") == LONG_MAX + 9
    with pytest.raises(UsageError, match="total"):
        other.incr("c")
    assert other.decr("c", 3) == LONG_MAX + 6  # the way back stays open
    for amount in (LONG_MAX + 1, 1.5, True, "1"):
        with pytest.raises(UsageError, match="64 bits"):
            db.incr("c", amount)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match=r"2\*\*63"):
            db.decr("c", amount)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=f": {LONG_MIN}$"):  # the number that was given
        db.decr("c", LONG_MIN)


# --- keys -----------------------------------------------------------------------------------------


def test_keys_and_fields_of_any_length_up_to_a_cell(db: Database) -> None:
    fits, long = "é" * (KEY_BYTES_MAX // 2), "é" * (KEY_BYTES_MAX // 2) + "x"
    short = "é" * 16
    for key in (fits[:-1], short[:-1], short[:-1] + "x", "other/" + "x" * 40, ""):
        db[key] = key
        assert db[key] == key
        db.delete(key)
        db.gc(0)
    db[fits] = 1
    db.hset("h", fits, 1)
    db.update({"other/" + "x" * 40: 2})
    assert list(db) == ["h", "other/" + "x" * 40, fits]
    assert list(db.hgetall("h").entries()) == [(fits, 1)]
    before = db.store()
    writes: list[Callable[[], None]] = [
        lambda: db.set(long, 1),
        lambda: db.update({"ok": 1, long: 1}),
    ]
    for write in writes:
        with pytest.raises(UsageError, match="a key has 4097 bytes of UTF-8; at most 4096 bytes"):
            write()
    with pytest.raises(UsageError, match="a field has 4097 bytes"):
        db.hset("h", long, 1)
    assert db.store() is before
    assert long not in db
    assert db.hget("h", long) is None
    assert db.hdel("h", long) == 0


LONG = [
    "k" * 32,
    "k" * 32 + "a",
    "k" * 32 + "b",
    "k" * 31 + "\xe9",
    "k" * 33 + "a" * 200,
    "k" * 4_096,
]


STORE = KVStoreLattice()


def test_keys_and_fields_that_share_32_bytes_are_keys_of_their_own(db: Database) -> None:
    values = {key: number for number, key in enumerate(LONG)}
    for key, number in values.items():
        db[key] = number
        db.hset("h", key, number)
    assert dict(db.items()) == values | {"h": db["h"]}
    assert dict(db.hgetall("h").entries()) == values
    assert db.hlen("h") == len(LONG)
    assert [db.cursor.path(key, 0).get() for key in LONG] == list(values.values())
    assert {key for key, _entry in db.scan("k" * 33)} == {
        one for one in LONG if one[:33] == "k" * 33
    }
    assert db.hdel("h", LONG[1], LONG[2], "k" * 32 + "c") == 2
    assert db.delete(LONG[1])
    assert db.pop(LONG[2]) == 2
    assert db.expire(LONG[3], 0.005)
    assert db.ttl(LONG[3]) == timedelta(milliseconds=5)
    assert db.ttl(LONG[4]) is None
    assert LONG[1] not in db
    assert db.gc(0) == 2
    assert not {LONG[1], LONG[2]} & set(db)
    assert db[LONG[4]] == 4
    assert db.hget("h", LONG[4]) == 4
    db.clear()
    assert list(db) == []


def test_replicas_that_made_keys_apart_have_all_of_them_and_are_equal(clock: StoppedClock) -> None:
    sides = [Database.create("d", one, clock=clock) for one in (ALICE, BOB)]
    for number, key in enumerate(LONG):
        sides[number % 2][key] = number
        sides[number % 2].hset("h", key, number)
    own = [side.store() for side in sides]
    for side, other in zip(sides, reversed(own), strict=True):
        side.merge(other)
    assert same(sides[0].store(), sides[1].store())
    for side in sides:
        assert {key: side[key] for key in LONG} == {key: n for n, key in enumerate(LONG)}
        assert dict(side.hgetall("h").entries()) == {key: n for n, key in enumerate(LONG)}


@pytest.mark.parametrize("size", [4_072, 4_073, 4_096])
def test_the_longest_keys_are_read_listed_and_merged_when_they_come_from_a_store(
    db: Database, clock: StoppedClock, size: int
) -> None:
    """Above 4,072 bytes the key that is made of a name is a text tree."""
    name = "k" * size
    db[name] = 1
    db.hset("h", name, 1)
    sides = [Database.create("d", one, clock=clock) for one in (ALICE, BOB)]
    for number, side in enumerate(sides):
        side.cursor.set(CellDict().kept(db.store()))
        assert list(side) == ["h", name]
        assert list(side.hgetall("h").entries()) == [(name, 1)]
        side[f"more {number}"] = number
    own = [CellDict().kept(side.store()) for side in sides]
    for side, other in zip(sides, reversed(own), strict=True):
        side.merge(other)
    assert list(sides[0]) == list(sides[1]) == ["h", name, "more 0", "more 1"]
    assert same(sides[0].store(), sides[1].store())


def test_a_long_key_of_another_system_is_read_and_written_by_its_name(db: Database) -> None:
    long = "k" * 40
    for cell in (long, long.encode(), Keyword(long)):
        before = Index.of({cell: Vector.of((1, 0, 5, None))})
        db.cursor.set(before)
        assert dict(db.items()) == {long: 1}
        assert db.cursor.path(long).get() is not None
        db[long[:32]] = 3  # which belongs where the long one stands
        assert dict(db.items()) == {long[:32]: 3, long: 1}
        assert same(STORE.merge(db.store(), before), db.store())
        db.cursor.set(before)
        db[long] = 2
        db[long + "x"] = 4
        assert dict(db.items()) == {long: 2, long + "x": 4}
        assert long[:32] not in db
        assert same(STORE.merge(db.store(), before), db.store())
        assert db.delete(long)
        assert list(db) == [long + "x"]
        assert db.gc(0) > 0
        assert list(db) == [long + "x"]


def test_a_key_that_is_not_made_of_its_name_is_dropped_and_reported(db: Database) -> None:
    entry = Vector.of((1, 0, 5, None))
    made = text_bytes(key_of("k" * 40))
    swapped = (made[:32] + b"x" + made[33:]).decode("utf-8", "surrogateescape")
    bad: list[Value] = [made, made[:32], swapped, made[:33].decode("utf-8", "surrogateescape")]
    for key in bad:
        reports: list[MergeNotice] = []
        other = Index.of([(key, entry), ("ok", entry)])
        merged = STORE.merge(EMPTY_INDEX, other, MergeContext(report=reports.append))
        assert [report.path for report in reports] == [(key,)]
        assert same(merged, Index.of([("ok", entry)]))
        db.cursor.set(other)
        assert list(db) == ["ok"]
        assert "k" * 40 not in db
        own = Index.of([(key_of("k" * 40), entry)])
        joined = STORE.merge(own, other)
        assert isinstance(joined, Index)
        assert same(joined.get(key_of("k" * 40)), entry)
        fields = Index.of([(key, Vector.of((1, 5))), ("ok", Vector.of((1, 5)))])
        db.cursor.set(Index.of({"h": Vector.of((fields, 1, 5, None))}))
        assert dict(db.hgetall("h").entries()) == {"ok": 1}


@pytest.mark.parametrize("key", ["k" * 5_000, b"k" * 5_000, "k" * 32 + "\udcff"])
def test_a_stored_key_that_cannot_be_named_is_passed_over(db: Database, key: object) -> None:
    db.cursor.set(Index.of([(key, Vector.of((1, 0, 5, None))), ("l", 5)]))
    assert list(db) == []
    assert "k" * 32 not in db
    with pytest.raises(UsageError, match="has the same first 32 bytes as"):
        db["k" * 32] = 3


def test_what_is_no_text_is_refused(db: Database) -> None:
    with pytest.raises(TypeMismatch, match="a key is not a str: int"):
        db[1] = 2  # type: ignore[index]
    with pytest.raises(UsageError, match="Unicode"):
        db["\ud800"] = 2
    with pytest.raises(TypeMismatch, match="a field is not a str"):
        db.hset("h", 1, 2)  # type: ignore[arg-type]


def test_keys_that_are_no_strings_are_shown_by_their_bytes(db: Database) -> None:
    cells = {Keyword("word"): 1, b"\xff": 2, b"text": 3}
    store = Index.of([(key, Vector.of((n, 0, 5, None))) for key, n in cells.items()])
    db.cursor.set(store)
    assert dict(db.items()) == {"word": 1, "text": 3}
    assert db["word"] == 1


def test_a_store_that_holds_junk_is_read_without_it(db: Database) -> None:
    bad_hash = Index.of({"good": Vector.of((1, 2)), "bad": 5, "worse": Vector.of((1, -1))})
    db.cursor.set(Index.of({"j": 5, "k": Vector.of((1,)), "h": Vector.of((bad_hash, 1, 5, None))}))
    assert list(db) == ["h"]
    assert db.hlen("h") == 1
    assert db.hget("h", "bad") is None
    assert db.hset("h", "bad", 7)
    assert db.hlen("h") == 2
    db["j"] = 1
    assert db["j"] == 1


def test_pop_takes_a_value_once(db: Database) -> None:
    db.update({"a": 1, "b": None})
    db.rpush("l", 1)
    assert db.pop("a") == 1
    assert db.pop("a", 7) == 7
    with pytest.raises(KeyError, match="a"):
        db.pop("a")
    assert db.pop("b", 7) is None
    assert db.popitem() == ("l", Vector.of([1]))
    with pytest.raises(KeyError, match="no live key"):
        db.popitem()


def test_threads_pop_each_value_once(db: Database) -> None:
    db.update({f"k{i}": i for i in range(200)})
    taken: list[object] = []

    def take() -> None:
        with suppress(KeyError):
            while True:
                taken.append(db.popitem()[1])

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(str(one) for one in taken) == sorted(str(i) for i in range(200))
    assert len(db) == 0


# --- atomic writes --------------------------------------------------------------------------------


def test_modify_reads_and_writes_in_one_update(db: Database) -> None:
    assert db.modify("k", lambda value: value + 1, default=0) == 1
    assert db.modify("k", lambda value: value + 1, default=0) == 2

    def fail(_value: object) -> object:
        raise ZeroDivisionError

    before = db.store()
    with pytest.raises(ZeroDivisionError):
        db.modify("k", fail)
    assert db.store() is before


def test_threads_lose_no_increment(db: Database) -> None:
    def work() -> None:
        for _ in range(100):
            db.incr("c")
            db.modify("m", lambda value: value + 1, default=0)
            with db.batch() as batch:
                batch.incr("b")
                batch.rpush("l", 1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert db.count("c") == db["m"] == db.count("b") == db.llen("l") == 400


def test_a_batch_is_one_update(db: Database) -> None:
    with db.watch() as watch:
        with db.batch() as batch:
            batch["a"] = 1
            batch.incr("n", 2)
            assert batch["a"] == 1
            assert "a" not in db
            assert watch.poll() == []
        assert [change.key for change in watch.poll()] == ["a", "n"]
    with pytest.raises(UsageError, match="the batch is over"):
        batch["b"] = 1
    with pytest.raises(UsageError, match="the batch is over"):
        batch.commit()


def test_a_batch_that_fails_writes_nothing(db: Database) -> None:
    db["a"] = 1
    before = db.store()

    def fail() -> None:
        with db.batch() as batch:
            batch["a"] = 2
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert db.store() is before
    with db.batch():
        pass
    assert db.store() is before


def test_a_batch_runs_again_when_somebody_wrote_meanwhile(db: Database) -> None:
    with db.batch() as batch:
        batch.incr("n")
        db.incr("n")
        db["other"] = 1
    assert db.count("n") == 2
    assert db["other"] == 1
    db.hset("h", "f", 1)
    late = db.batch()
    late["x"] = 1
    late.hset("h", "f", 2)
    db["h"] = "a value now"
    before = db.store()
    with pytest.raises(WrongType):
        late.commit()
    assert db.store() is before


def test_a_batch_is_signed_once(clock: StoppedClock) -> None:
    root = RootLattice(root_lattice(), None, MergeContext(key_pair=ALICE))
    db = Database.at(root, ALICE.public_key, "d", clock)
    states: list[object] = []
    root.subscribe(lambda: states.append(root.get()))
    with db.batch() as batch:
        for n in range(50):
            batch[f"k{n}"] = n
    db.set_many({f"m{n}": n for n in range(50)})
    assert len(states) == 2
    assert len(db) == 100


# --- watching -------------------------------------------------------------------------------------


def test_a_watch_tells_what_readers_see(db: Database) -> None:
    db["user/1"] = 1
    with db.watch("user/") as watch:
        assert watch.poll() == []
        db["user/1"] = 2
        db["user/2"] = 1
        db["other"] = 1
        db.incr("user/n")
        assert watch.poll() == [
            KeyChange("user/1", "value", 2, 1),
            KeyChange("user/2", "value", 1, None),
            KeyChange("user/n", "counter", db["user/n"], None),
        ]
        db.delete("user/2")
        told = next(watch)
        assert told == KeyChange("user/2", None, None, 1)
        assert told.deleted
        db.gc(0)  # forgetting a tombstone is nothing to readers
        db["user/1"] = 2  # nor is the same value again
        assert watch.poll() == []


def test_a_watch_tells_long_keys_by_name_each_once(db: Database) -> None:
    old, new = "k" * 32 + "old", "k" * 32 + "new"
    db.cursor.set(Index.of([(old, Vector.of((1, 0, 5, None)))]))
    with db.watch("k" * 32 + "o") as narrow, db.watch("k") as wide:
        db.update({old: 2, new: 3})
        assert [change.key for change in narrow.poll()] == [old]
        told = {change.key: (change.previous, change.value) for change in wide.poll()}
        assert told == {old: (1, 2), new: (None, 3)}
        db.delete(old)
        assert [(one.key, one.previous, one.deleted) for one in wide.poll()] == [(old, 2, True)]


def test_a_watch_tells_of_a_key_in_the_place_of_another(db: Database) -> None:
    first, second = "k" * INDEX_KEY_BYTES + "1", "k" * INDEX_KEY_BYTES + "2"
    db[first] = 1
    with db.watch() as watch:
        db.delete(first)
        db.gc(0)
        db[second] = 1  # an index tells the two keys apart by the bytes that they share
        assert watch.poll() == [
            KeyChange(first, None, None, 1),
            KeyChange(second, "value", 1, None),
        ]


def test_a_watch_waits_for_merges_and_forks(db: Database, clock: StoppedClock) -> None:
    fork = db.fork()
    other = Database.create(clock=clock)
    other["m"] = 1
    fork["f"] = 1
    seen: list[str] = []
    with db.watch(timeout=LIMIT_S) as watch:

        def write() -> None:
            db.merge(other)
            fork.sync()

        thread = threading.Thread(target=write)
        thread.start()
        while len(seen) < 2:
            seen.append(next(watch).key)
        thread.join()
    assert sorted(seen) == ["f", "m"]
    assert watch.closed
    assert list(watch) == []


def test_a_watch_wakes_and_ends(db: Database) -> None:
    woken: list[bool] = []
    watch = db.watch()
    watch.on_wake(lambda: woken.append(True))
    db["a"] = 1
    assert next(watch).key == "a"
    watch.close()
    assert woken == [True, True]
    with pytest.raises(StopIteration):
        next(watch)
    with db.watch(wait=False) as ending:
        db["b"] = 1
        assert [change.key for change in ending] == ["b"]


def test_a_watch_is_followed_in_an_event_loop(db: Database) -> None:
    async def run() -> list[str]:
        seen: list[str] = []
        async with db.watch() as watch:
            await asyncio.to_thread(db.update, {"a": 1, "b": 2})
            async for change in watch:
                seen.append(change.key)
                if len(seen) == 2:
                    break
        return seen

    assert asyncio.run(asyncio.wait_for(run(), LIMIT_S)) == ["a", "b"]


# --- forks, owners, replicas ----------------------------------------------------------------------


def test_a_fork_s_writes_arrive_with_sync(db: Database) -> None:
    db["k"] = 1
    fork = db.fork()
    fork["k"] = 2
    assert dict(db.items()) == {"k": 1}
    fork.sync()
    assert dict(db.items()) == {"k": 2}
    assert fork.replica == db.replica


def test_below_a_root_it_is_signed_and_verified(clock: StoppedClock) -> None:
    root = RootLattice(root_lattice(), None, MergeContext(key_pair=ALICE))
    db = Database.at(root, ALICE.public_key, "d", clock)
    assert list(db) == []
    assert root.get() is None  # looking writes nothing
    assert db.replica == ALICE.public_key.hex()
    db["k"] = 1
    cell = root.get(KV_SECTION, ALICE.public_key)
    assert isinstance(cell, Signed)
    assert cell.verify()
    assert Database.at(root, ALICE.public_key, "d")["k"] == 1
    assert repr(db) == f"<Database 'd' of {ALICE.public_key.hex()[:8]}: 1 key>"
    assert db.name == "d"
    assert db.owner == ALICE.public_key
    with pytest.raises(NoSigningKey):
        Database.at(RootLattice(root_lattice()), BOB.public_key, "d")["k"] = 1


def test_devices_of_one_owner_count_in_a_column_each(clock: StoppedClock) -> None:
    devices = []
    for identity in (BOB, KeyPair(b"\x07" * 32)):
        context = MergeContext(key_pair=identity, keys=KeyRing(ALICE))
        devices.append(RootLattice(root_lattice(), None, context))
    counters = [Database.at(one, ALICE.public_key, "d", clock) for one in devices]
    for _ in range(10):
        for counter in counters:
            counter.incr("seen")
    one, other = (device.get() for device in devices)
    devices[0].merge(other)
    devices[1].merge(one)
    assert [counter.count("seen") for counter in counters] == [20, 20]


def test_replicas_are_merged_by_owner(clock: StoppedClock) -> None:
    a = Database.create("shared", ALICE, clock=clock)
    b = Database.create("shared", BOB, clock=clock)
    a["from"] = "a"
    clock.now += 1
    b["of b"] = "b"
    a.incr("n", 2)
    b.incr("n", 3)
    assert a.merge_replicas(b.export_replica()) == 1
    assert b.merge_replicas(a.export_replica()) == 1
    assert a.store() == b.store()
    assert a.count("n") == 5
    assert a.merge_replicas(a.export_replica()) == 0
    assert a.merge_replicas(None) == 0
    assert a.merge_replicas(Map.of([])) == 0
    other = Database.create("another name", BOB, clock=clock)
    other["x"] = 1
    assert a.merge_replicas(other.export_replica()) == 0


def test_replicas_are_chosen_by_owner(clock: StoppedClock) -> None:
    exports = []
    for seed in b"xyz":
        one = Database.create("d", KeyPair(bytes([seed]) * 32), clock=clock)
        one[chr(seed)] = 1
        exports.append(one.export_replica())
    everything = Map.of([pair for export in exports for pair in export.entries()])
    wanted = KeyPair(b"y" * 32).public_key
    db = Database.create("d", ALICE, clock=clock)
    assert db.merge_replicas(everything, lambda owner: owner == wanted) == 1
    assert list(db) == ["y"]
    assert db.merge_replicas(everything) == 3
    assert list(db) == ["x", "y", "z"]


def test_forged_replicas_are_refused_and_reported(clock: StoppedClock) -> None:
    reports: list[MergeNotice] = []
    a = Database.create("d", ALICE, clock=clock, report=reports.append)
    b = Database.create("d", BOB, clock=clock)
    b["k"] = 1
    signed = b.signed_state()
    victim = KeyPair(b"v" * 32).public_key
    assert a.merge_replicas(Map.of([(victim, signed)])) == 0
    assert [type(report) for report in reports] == [EntryDropped]
    junk = Signed.sign(BOB, Map.of([("d", 5)]))
    assert a.merge_replicas(Map.of([(BOB.public_key, junk)])) == 0
    assert reports[-1] == EntryDropped((BOB.public_key, Keyword("value"), "d"))
    with pytest.raises(TypeMismatch, match="a Map of owners"):
        a.merge_replicas(5)


def test_owners_that_are_no_keys_need_the_verifier_s_word(clock: StoppedClock) -> None:
    b = Database.create("d", BOB, owner="did:example:bob", clock=clock)
    b["k"] = 1
    export = b.export_replica()
    assert list(export) == ["did:example:bob"]
    yes = Database.create("d", ALICE, clock=clock, verifier=lambda _o, key: key == BOB.public_key)
    no = Database.create("d", ALICE, clock=clock, verifier=lambda _owner, _key: False)
    assert yes.merge_replicas(export) == 1
    assert no.merge_replicas(export) == 0


def test_without_a_key_there_are_no_replicas(db: Database) -> None:
    for call in (db.signed_state, db.export_replica, lambda: db.merge_replicas(None)):
        with pytest.raises(NoSigningKey, match="key pair"):
            call()


@pytest.mark.parametrize("replica", ["", "x" * 33])
def test_a_replica_s_name_is_one_that_an_index_can_tell_apart(replica: str) -> None:
    with pytest.raises(UsageError, match="1 to 32 bytes"):
        Database.create(replica=replica)


def test_names() -> None:
    with pytest.raises(UsageError, match="name is empty"):
        Database.create("")
    with pytest.raises(TypeMismatch, match="a str"):
        Database.create(5)  # type: ignore[arg-type]
    assert Database.create(replica="x" * 32).replica == "x" * 32
    assert Database.create().replica == "default"
    assert Database.create(key_pair=ALICE).replica == ALICE.public_key.hex()


def test_of_two_values_written_at_one_time_the_greater_hash_stays() -> None:
    lattice = KVEntryLattice()
    one, two = (Vector.of((value, 0, 5, None)) for value in ("one", "two"))
    later = Vector.of(("none of them", 0, 6, None))
    winner = max(one, two, key=value_hash)
    assert lattice.merge(one, two) is winner
    assert lattice.merge(two, one) is winner
    assert lattice.merge(later, winner) is lattice.merge(winner, later) is later


def test_merge_takes_databases_and_stores(db: Database, clock: StoppedClock) -> None:
    other = Database.create(clock=clock)
    other["k"] = 1
    db.merge(other.store())
    assert db["k"] == 1
    with pytest.raises(TypeMismatch, match="is not a Database or a store"):
        db.merge(5)  # type: ignore[arg-type]


def test_what_a_merge_drops_is_reported(clock: StoppedClock) -> None:
    reports: list[MergeNotice] = []
    a = Database.create("d", replica="a", clock=clock, report=reports.append)
    b = Database.create("d", replica="b", clock=clock)
    a["v"] = "mine"
    a["same"] = 1
    a.hset("h", "f", 1)
    a.incr("c", 3)
    a.sadd("s", "x")
    a.zadd("z", 1, "x")
    clock.now += 10
    b["v"] = "theirs"
    b["same"] = 1
    b.hset("h", "f", 2)
    b.zadd("z", 2, "x")
    b["c"] = 0
    b.delete("c")
    a.merge(b)
    place = read_entry(a.store()["z"])
    assert place is not None
    member = next(iter(place.members))
    lost = [("c",), ("h", "f"), ("v",), ("z", member)]
    assert sorted(map(repr, reports)) == [repr(WriteSuperseded(path, "own")) for path in lost]
    reports.clear()
    a.merge(b)
    assert reports == []
