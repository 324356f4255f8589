"""Showing: a key as one value, and back; what stays the same in a structure keeps its times."""

from __future__ import annotations

from typing import Any

import pytest

from datalattice.apps.kv import (
    TYPE_TAGS,
    Database,
    Entry,
    checked_shown,
    live_entry,
    put_shown,
    read_entry,
    shown_value,
)
from datalattice.cells import (
    EMPTY_VECTOR,
    Index,
    Keyword,
    List,
    Set,
    Value,
    Vector,
    same,
    to_cell,
    to_python,
)
from datalattice.errors import DataLatticeError, TypeMismatch, UsageError
from datalattice.testing.clocks import StoppedClock

NOW = 1_000_000


def entry_of(db: Database, key: str = "k") -> Entry:
    entry = live_entry(db.store().get(key), NOW)
    assert entry is not None
    return entry


def put(stored: Value, type_name: str, value: object, expire: int | None = None) -> Value:
    tag = TYPE_TAGS[type_name]
    return put_shown(stored, tag, checked_shown(tag, to_cell(value)), expire, "me", NOW)


def sees(stored: Value, at_ms: int = NOW) -> tuple[str, Value] | None:
    entry = live_entry(stored, at_ms)
    return None if entry is None else (entry.type_name, shown_value(entry))


@pytest.fixture
def db() -> Database:
    return Database.create(clock=StoppedClock(NOW))


def test_each_type_shows_as_one_value(db: Database) -> None:
    db.set("value", {"a": 1})
    db.hset_many("hash", {"name": "Ada", "gone": 1})
    db.hdel("hash", "gone")
    db.sadd("set", 1, 2, 3)
    db.srem("set", 2)
    db.zadd_many("zset", [(2.5, "b"), (1, "a")])
    db.rpush("list", 1, 2)
    db.incr("counter", 7)
    shown = {key: shown_value(entry_of(db, key)) for key in db}
    assert same(shown["value"], to_cell({"a": 1}))
    assert same(shown["hash"], Index.of({"name": "Ada"}))
    assert same(shown["set"], to_cell({1, 3}))
    assert same(shown["zset"], to_cell([["a", 1.0], ["b", 2.5]]))
    assert same(shown["list"], to_cell([1, 2]))
    assert shown["counter"] == 7


EXAMPLES: list[tuple[str, Any]] = [
    ("value", {"a": [1]}),
    ("hash", {"name": "Ada", "age": 36}),
    ("set", {1, "two"}),
    ("zset", [["a", 1.0], ["b", 2.0]]),
    ("list", [3, 1]),
    ("counter", -5),
]


@pytest.mark.parametrize(("kind", "value"), EXAMPLES)
@pytest.mark.parametrize(("before", "held"), [("none", None), *EXAMPLES])
def test_what_was_put_is_what_is_shown_over_anything(
    kind: str, value: object, before: str, held: object
) -> None:
    stored = None if before == "none" else put(None, before, held)
    made = put(stored, kind, value)
    seen = sees(made)
    assert seen is not None
    assert seen[0] == kind
    assert same(seen[1], checked_shown(TYPE_TAGS[kind], to_cell(value)))
    old, new = read_entry(stored), read_entry(made)
    assert new is not None
    if old is not None and (kind != before or kind in ("value", "list")):
        assert new.time() > old.time()


@pytest.mark.parametrize(
    ("kind", "first", "second"),
    [
        ("hash", {"a": 1, "b": 2, "c": 3}, {"a": 1, "b": 5, "d": 4}),
        ("set", {1, 2, 3}, {2, 3, 4}),
        ("zset", [["a", 1.0], ["b", 2.0], ["c", 3.0]], [["b", 2.0], ["c", 9.0], ["d", 0.5]]),
        ("counter", 10, 4),
    ],
)
def test_a_structure_goes_on_and_what_stays_the_same_keeps_its_time(
    kind: str, first: object, second: object
) -> None:
    stored = put(None, kind, first)
    tag = TYPE_TAGS[kind]
    value = checked_shown(tag, to_cell(second))
    made = put_shown(stored, tag, value, None, "me", NOW + 50)
    seen = sees(made)
    if kind == "zset":  # rows come in the order of scores
        value = to_cell([["d", 0.5], ["b", 2.0], ["c", 9.0]])
    assert seen is not None
    assert same(seen[1], value)
    again = put_shown(made, tag, value, None, "me", NOW + 99)
    if kind != "counter":
        assert same(again, made)
    before, after = read_entry(stored), read_entry(made)
    assert before is not None
    assert after is not None
    assert after.base == -1
    kept = {"hash": "a", "set": 2, "zset": "b"}.get(kind)
    if kept is not None:

        def time_of(entry: Entry) -> Value:
            for key, member in entry.members.entries():
                assert isinstance(member, Vector)
                if kept in (key, member[0]):
                    return member[1 if kind != "zset" else 2]
            return None

        assert time_of(before) == time_of(after) == NOW


def test_another_type_is_deleted_first_so_that_old_members_stay_gone() -> None:
    stored = put(None, "set", {1, 2})
    made = put(put(stored, "value", 5), "set", {9})
    from datalattice.apps.kv import KVEntryLattice

    joined = KVEntryLattice().merge(made, stored)
    assert sees(joined) == ("set", Set.of([9]))


@pytest.mark.parametrize("kind", [kind for kind, _ in EXAMPLES])
def test_the_expiry_is_the_one_given(kind: str) -> None:
    value = dict(EXAMPLES)[kind]
    limited = put(None, kind, value, NOW + 10)
    assert sees(limited, NOW + 9) is not None
    assert sees(limited, NOW + 10) is None
    free = put(limited, kind, value)
    assert sees(free, NOW + 10) is not None
    past = put(free, kind, value, NOW - 1)
    assert sees(past) is None


@pytest.mark.parametrize(("kind", "empty"), [("hash", {}), ("set", set()), ("zset", [])])
def test_a_structure_without_members_shows_nothing_over_a_key_that_is_none(
    kind: str, empty: object
) -> None:
    assert sees(put(None, kind, empty)) is None
    assert sees(put(put(None, "value", 1), kind, empty)) is None
    seen = sees(put(put(None, kind, dict(EXAMPLES)[kind]), kind, empty))
    assert seen is not None
    assert not to_python(seen[1])


def test_an_expired_structure_begins_anew() -> None:
    stored = put(None, "set", {1}, NOW - 5)
    assert sees(put(stored, "set", {2})) == ("set", Set.of([2]))


def test_lists_and_sets_are_taken_for_one_another() -> None:
    tag = TYPE_TAGS["set"]
    assert checked_shown(tag, to_cell([1, 1, 2])) == Set.of([1, 2])
    assert checked_shown(TYPE_TAGS["list"], List.of([1, 2])) == Vector.of([1, 2])
    assert checked_shown(TYPE_TAGS["hash"], Index.of({"a": None, "b": 1})) == Index.of({"b": 1})


@pytest.mark.parametrize(
    ("kind", "value", "error", "said"),
    [
        ("list", 1, TypeMismatch, "a list is not a Vector, List or Set: int"),
        ("set", "text", TypeMismatch, "a set is not a Vector, List or Set: str"),
        ("hash", EMPTY_VECTOR, TypeMismatch, "a hash is not an Index or Map of fields: Vector"),
        ("hash", {Keyword("a"): 1}, TypeMismatch, "a field is not a str: Keyword"),
        ("hash", {"x" * 4_097: 1}, UsageError, "at most 4096 bytes"),
        ("zset", ["a"], TypeMismatch, r"a Vector \[member score\]: str"),
        ("zset", [["a", "b"]], TypeMismatch, "`score` is not an int or float: str"),
        ("zset", [["a", float("nan")]], UsageError, "has no order"),
        ("counter", "7", TypeMismatch, "a counter is not an integer of 64 bits: str"),
        ("counter", 2**63, TypeMismatch, "a counter is not an integer of 64 bits: int"),
    ],
)
def test_a_value_that_its_type_does_not_take_is_named(
    kind: str, value: object, error: type[DataLatticeError], said: str
) -> None:
    with pytest.raises(error, match=said):
        checked_shown(TYPE_TAGS[kind], to_cell(value))


def test_the_largest_total_fits_and_a_column_that_leaves_64_bits_is_refused() -> None:
    stored = put(None, "counter", 2**63 - 1)
    assert sees(stored) == ("counter", 2**63 - 1)
    down = put(stored, "counter", 0)
    with pytest.raises(UsageError, match="would exceed 64 bits"):
        put(down, "counter", 1)


def test_nothing_is_seen_of_tombstones_and_what_is_no_entry(db: Database) -> None:
    db["k"] = 1
    del db["k"]
    assert live_entry(db.store().get("k"), NOW) is None
    assert live_entry(Vector.of([1]), NOW) is None
    assert live_entry(None, NOW) is None
