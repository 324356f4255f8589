"""Showing: conversion between an entry and the single value that readers see.

Tables, files and other databases hold a key as one value. A hash becomes an Index of its fields to
values (a Map if a field is longer than 32 bytes), a set a Set of its members, a sorted set a Vector
of `[member score]` by score, a counter its total. The reverse conversion writes only differences:
unchanged members keep their times, so that concurrent changes by other replicas are kept.

Source: CAD037 "TTL"; docs/kv.md "Expiry", "As one value", "Stamps".
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Final, cast

from datalattice.apps.kv.entries import LIST_TAG, VALUE_TAG, Entry, pack_register
from datalattice.apps.kv.joining import ENTRY_KEYS
from datalattice.apps.kv.keys import checked_key, checked_text
from datalattice.apps.kv.kinds import (
    COUNTER,
    COUNTER_TAG,
    FIELDS,
    HASH,
    HASH_TAG,
    SET,
    SET_TAG,
    STRUCTURE_KINDS,
    ZSET,
    ZSET_TAG,
    StructureKind,
)
from datalattice.apps.kv.writing import (
    add_members,
    add_scored,
    after,
    count_up,
    delete,
    delete_fields,
    expire_at,
    live_entry,
    put_fields,
    read_slot,
    read_structure,
    remove_members,
    total_of,
)
from datalattice.apps.valuetypes import T, ValueType
from datalattice.cells import Index, List, Map, Set, Value, Vector, same
from datalattice.errors import TypeMismatch, UsageError
from datalattice.lattice import as_integer, is_long, is_short

TYPE_TAGS: Final = {
    "value": VALUE_TAG,
    "hash": HASH_TAG,
    "set": SET_TAG,
    "zset": ZSET_TAG,
    "list": LIST_TAG,
    "counter": COUNTER_TAG,
}
"""The types of keys by name."""

SHORT_MEMBERS_MAX: Final = 1_000
"""Most members of a structure that `short_value` reads."""


def shown_value(entry: Entry) -> Value:
    """Return an entry as one value, regardless of its expiry.

    Cost:   reads all members of a structure.
    """
    kind = entry.kind
    if kind is None:
        return entry.value
    if kind is HASH:
        return by_field(entry.members)
    if kind is SET:
        return Set.of([member[0] for _name, member in visible_members(kind, entry.members)])
    if kind is ZSET:
        return Vector.of([Vector.of(pair) for pair in by_score(entry.members)])
    return total_of(entry.members)


def short_value(entry: Entry) -> Value:
    """Return an entry as one value; a large structure as it is stored, which needs no full read."""
    members = entry.value
    # A notebook's table must not read a structure of any size.
    is_long = isinstance(members, (Index, Map)) and len(members) > SHORT_MEMBERS_MAX
    return members if is_long else shown_value(entry)


def read_value(store: Index, key: str, now_ms: int, type: ValueType[T], missing: object) -> object:
    """Return the value of a key of a store, `missing` if the key is not live at `now_ms`.

    Raises: TypeMismatch: a plain value does not fit the type. UsageError: the key is no text.
    """
    entry = live_entry(ENTRY_KEYS.get(store, checked_text(key, "a key")), now_ms)
    return missing if entry is None else typed_value(entry, type)


def typed_value(entry: Entry, type: ValueType[T]) -> T:
    """Return the value that a handle with a value type returns for an entry.

    Raises: TypeMismatch: a plain value does not fit the type.
    """
    # "In a database of a named type only plain values are of that type" (docs/kv.md "As one
    # value").
    if entry.tag == VALUE_TAG:
        return type.from_cell(entry.value)
    return cast("T", shown_value(entry))


def visible_members(kind: StructureKind, index: Index) -> Iterator[tuple[Value, Vector]]:
    """Yield the visible members with their keys."""
    for key, member in index.entries():
        if kind.holds(key, member) and kind.shows(member) and isinstance(member, Vector):
            yield key, member


def visible_fields(index: Index) -> Iterator[tuple[str, Value]]:
    """Yield the visible fields of a hash with their values."""
    for field, member in FIELDS.entries(index):
        if HASH.holds(field, member) and HASH.shows(member) and isinstance(member, Vector):
            yield field, member[0]


def by_field(index: Index) -> Index | Map:
    """Return the visible fields of a hash; a Map if a field is longer than 32 bytes."""
    return fielded(list(visible_fields(index)))


def fielded(pairs: list[tuple[str, Value]]) -> Index | Map:
    """Return fields with values as an Index, or as a Map like `by_field`."""
    # "A Map where a field is longer than 32 bytes" (docs/kv.md "Hashes").
    is_exact = all(is_short(field) for field, _value in pairs)
    return Index.of(pairs) if is_exact else Map.of(pairs)


def by_score(index: Index) -> list[tuple[Value, float]]:
    """Return the members of a sorted set with their scores, ordered by score, then hash.

    A NaN score, which a peer may send, comes last.
    """
    ranked: list[tuple[bool, float, int, Value, float]] = []
    for position, (_name, member) in enumerate(visible_members(ZSET, index)):
        score = member[1]
        assert isinstance(score, float)
        unordered = math.isnan(score)  # NaN compares false with every number
        ranked.append((unordered, 0.0 if unordered else score, position, member[0], score))
    ranked.sort(key=lambda row: row[:3])  # "equal scores: member-hash order"
    return [(member, score) for _nan, _rank, _position, member, score in ranked]


def checked_score(score: object) -> float:
    """Return a score as a float.

    Raises: TypeMismatch: it is not an int or float. UsageError: it is NaN, or too large.
    """
    if type(score) is not int and type(score) is not float:
        raise TypeMismatch(f"`score` is not an int or float: {type(score).__name__}")
    try:
        number = float(score)
    except OverflowError as error:
        raise UsageError(f"`score` is too large for a float: {score!r}") from error
    # "A score is a number other than NaN" (docs/kv.md "Sorted sets").
    if math.isnan(number):
        raise UsageError("`score` is nan, which has no order; give a number")
    return number


def checked_shown(tag: int, value: Value) -> Value:
    """Return `value` in the form that `put_shown` expects for a type.

    A hash may also be given as a Map, a set or list as any sequence.

    Raises: TypeMismatch: the value does not fit the type. UsageError: a field, score or total is
            invalid.
    """
    if tag == LIST_TAG:
        return Vector.of(_elements(value, "a list"))
    if tag == SET_TAG:
        return Set.of(_elements(value, "a set"))
    if tag == HASH_TAG:
        return _fields(value)
    if tag == ZSET_TAG:
        return Vector.of([_scored(pair) for pair in _elements(value, "a sorted set")])
    if tag == COUNTER_TAG and not is_long(value):
        raise TypeMismatch(f"a counter is not an integer of 64 bits: {type(value).__name__}")
    return value


def _elements(value: Value, what: str) -> Iterable[Value]:
    if not isinstance(value, (Vector, List, Set)):
        raise TypeMismatch(f"{what} is not a Vector, List or Set: {type(value).__name__}")
    return value


def _fields(value: Value) -> Index | Map:
    if not isinstance(value, (Index, Map)):
        raise TypeMismatch(f"a hash is not an Index or Map of fields: {type(value).__name__}")
    given = {checked_key(field, "a field"): held for field, held in value.entries()}
    # None deletes the field.
    return fielded([(field, held) for field, held in given.items() if held is not None])


def _scored(pair: Value) -> Vector:
    if not isinstance(pair, Vector) or len(pair) != 2:
        raise TypeMismatch(
            f"a member of a sorted set is not a Vector [member score]: {type(pair).__name__}"
        )
    return Vector.of((pair[0], checked_score(pair[1])))


def put_shown(
    stored: Value, tag: int, value: Value, expire: int | None, replica: str, now_ms: int
) -> Value:
    """Return the entry that replaces `stored` and shows a value of a type.

    A live structure of the same type is kept and only differences are written; a structure without
    members shows as absent. A plain value or list is always written.

    value: from `checked_shown`. replica: the name of the counter column.
    Units:  expire: Unix milliseconds; None for never.
    Raises: UsageError: a count exceeds 64 bits.
    """
    kind = STRUCTURE_KINDS.get(tag)
    if kind is None:
        return pack_register(value, tag, after(read_slot(stored, now_ms), now_ms), expire)
    held = live_entry(stored, now_ms)
    if held is not None and held.kind is not kind:
        # "Another type is deleted first" (docs/kv.md "As one value").
        stored = delete(stored, now_ms)[0]
    made = _structured(stored, kind, value, replica, now_ms)
    entry = live_entry(made, now_ms)
    if entry is None or entry.expire == expire:  # nothing to expire, or no change of the expiry
        return made
    return expire_at(made, expire, now_ms)[0]


def _structured(
    stored: Value, kind: StructureKind, value: Value, replica: str, now_ms: int
) -> Value:
    members = read_structure(stored, kind, "SHOW", now_ms)
    if kind is COUNTER:
        amount = as_integer(value)
        assert amount is not None
        # "A counter is moved to the total by this replica" (docs/kv.md "As one value").
        return count_up(stored, replica, amount - total_of(members), now_ms)[0]
    if kind is HASH:
        return _hash(stored, members, value, now_ms)
    if kind is SET:
        assert isinstance(value, Set)
        gone = [one[0] for _name, one in visible_members(SET, members) if one[0] not in value]
        stored = remove_members(stored, SET, "SHOW", gone, now_ms)[0]
        held = Set.of([one[0] for _name, one in visible_members(SET, members)])
        return add_members(stored, [one for one in value if one not in held], now_ms)[0]
    assert isinstance(value, Vector)
    wanted = [(pair[0], checked_score(pair[1])) for pair in value if isinstance(pair, Vector)]
    kept = Set.of([member for member, _score in wanted])
    gone = [one[0] for _name, one in visible_members(ZSET, members) if one[0] not in kept]
    stored = remove_members(stored, ZSET, "SHOW", gone, now_ms)[0]
    scores = Map.of([(one[0], one[1]) for _name, one in visible_members(ZSET, members)])
    # An equal score is not written again: its time stays.
    fresh = [one for one in wanted if not same(scores.get(one[0]), one[1])]
    return add_scored(stored, fresh, now_ms)[0]


def _hash(stored: Value, members: Index, value: Value, now_ms: int) -> Value:
    assert isinstance(value, (Index, Map))
    before = dict(visible_fields(members))
    wanted = {field: held for field, held in value.entries() if isinstance(field, str)}
    gone = [field for field in before if field not in wanted]
    changed = [
        (field, held)
        for field, held in wanted.items()
        if field not in before or not same(before[field], held)
    ]
    stored = delete_fields(stored, gone, now_ms)[0]
    return put_fields(stored, changed, now_ms)[0] if changed else stored
