"""Maps, sets and vectors that are built: one value however it was made, in few objects."""

from __future__ import annotations

import gc
import random
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, TypeVar

import pytest

from datalattice.cells import (
    Map,
    Set,
    Value,
    Vector,
    decode_message,
    encode_message,
    same,
    value_hash as hash_of,
)

if TYPE_CHECKING:
    from _typeshed import TraceFunction

Made = TypeVar("Made")
COUNTS = (0, 1, 15, 16, 17, 63, 64, 65, 100, 700)


def entries(count: int, kind: str) -> list[tuple[Value, Value]]:
    """Return entries, a few with keys that occur twice."""
    dice = random.Random(count)

    def value(number: int) -> Value:
        if kind == "small":
            return number
        if kind == "long":  # leaves at the limit of what is embedded, and beyond
            return "v" * dice.randrange(150)
        return dice.choice([None, True, b"v" * 139, "w" * 300, Vector.of([number]), Map(), 2**70])

    def key(number: int) -> Value:
        number = dice.choice([number, number, number, number // 2])
        if kind == "small":
            return dice.choice([number, f"key-{number}"])
        return dice.choice([number, float(number), "k" * dice.randrange(150) + str(number)])

    return [(key(number), value(number)) for number in range(count)]


@pytest.mark.parametrize("kind", ["small", "long", "mixed"])
@pytest.mark.parametrize("count", COUNTS)
def test_a_map_is_the_same_however_it_was_made(count: int, kind: str) -> None:
    pairs = entries(count, kind)
    bulk, put, read, other_way = Map.of(pairs), Map(), Map(), Map()
    last = {hash_of(key): (key, value) for key, value in pairs}
    for number, (key, value) in enumerate(pairs):
        put = put.put(key, value)
        read = read.put(key, value)
        assert same(read[key], value)
        if number % 7 == 0:
            hash_of(read)
    for key, value in reversed(last.values()):
        other_way = other_way.put(key, value)
    parsed = decode_message(encode_message(bulk))
    assert hash_of(bulk) == hash_of(put) == hash_of(read) == hash_of(other_way) == hash_of(parsed)
    assert len(bulk) == len(put) == len(last)
    for one in (bulk, put, read, parsed):
        assert isinstance(one, Map)
        assert [hash_of(key) for key in one] == sorted(last)
        for key, value in last.values():
            assert same(one[key], value)
            assert one.put(key, value) is one or kind == "mixed"
        assert one.get("absent", one) is one
    emptied = bulk
    for digest in sorted(last)[::2] + sorted(last)[1::2]:
        emptied = emptied.remove(last[digest][0])
    assert same(emptied, Map())


@pytest.mark.parametrize("count", COUNTS)
def test_a_set_is_the_same_however_it_was_made(count: int) -> None:
    items = [key for key, _ in entries(count, "long")] + list(range(count))
    added = Set()
    for item in items:
        added = added.add(item)
        assert added.add(item) is added
    bulk = Set.of(items)
    assert hash_of(added) == hash_of(bulk) == hash_of(Set.of(reversed(items)))
    assert all(item in bulk for item in items)
    assert all(bulk.add(item) is bulk for item in items)


def test_a_map_built_in_bulk_takes_changes() -> None:
    pairs: list[tuple[Value, Value]] = [(f"key-{number}", number) for number in range(2_000)]
    bulk, wanted = Map.of(pairs), dict(pairs)
    dice = random.Random(5)
    made = bulk
    for number in range(3_000):
        key = f"key-{dice.randrange(4_000)}"
        value: Value = dice.choice([number, "long" * dice.randrange(60), Vector.of([number])])
        if dice.randrange(3):
            made, wanted[key] = made.put(key, value), value
        else:
            made = made.remove(key)
            wanted.pop(key, None)
    assert hash_of(made) == hash_of(Map.of(wanted))
    assert hash_of(bulk) == hash_of(Map.of(pairs))


@pytest.mark.parametrize("order", ["forwards", "backwards", "shuffled"])
def test_every_version_of_a_map_that_is_put_to_stays(order: str) -> None:
    pairs = entries(300, "small")
    versions = [Map()]
    for key, value in pairs:
        versions.append(versions[-1].put(key, value))
    numbers = list(range(len(versions)))
    if order == "shuffled":
        random.Random(6).shuffle(numbers)
    for number in reversed(numbers) if order == "backwards" else numbers:
        assert hash_of(versions[number]) == hash_of(Map.of(pairs[:number]))
    # A map that another one was made from before, and was not read in between.
    branch = versions[0].put("a", 1)
    left, right = branch.put("b", 2), branch.put("c", 3)
    assert dict(left.items()) == {"a": 1, "b": 2}
    assert dict(right.items()) == {"a": 1, "c": 3}
    assert len(branch) == 1
    assert same(branch, Map({"a": 1}))
    assert left.put("b", 2) is left


def test_versions_that_are_read_share_their_parts() -> None:
    versions = [Map()]
    for number in range(600):
        versions.append(versions[-1].put(number, number))
    assert objects(lambda: [hash_of(version) for version in versions[300:]]) < 10 * 300


def objects(work: Callable[[], object]) -> int:
    """Return the number of objects that the cycle collector sees more after some work."""
    gc.collect()
    before = len(gc.get_objects())
    kept = work()
    gc.collect()
    found = len(gc.get_objects()) - before
    del kept
    return found


def test_an_early_version_holds_few_of_the_later_entries() -> None:
    grown, kept = Map.of([]), {}
    for number in range(2_000):
        grown = grown.put(number, b"x")
        if number in (15, 40, 999):
            kept[number + 1] = grown
    for count, early in kept.items():
        assert early._run is None or len(early._run.keys) <= 2 * count
        assert early == Map.of((number, b"x") for number in range(count))
    assert grown == Map.of((number, b"x") for number in range(2_000))


def test_many_small_entries_are_few_objects() -> None:
    pairs = [(f"key-{number}", number) for number in range(10_000)]
    assert objects(lambda: Map.of(pairs)) < 10_000 / 3
    assert objects(lambda: Set.of(range(100_000))) < 100_000 / 5
    numbers = list(range(100_000))
    assert objects(lambda: Vector.of(numbers)) < 100_000 / 200

    def appended() -> Vector:
        vector = Vector()
        for number in numbers:
            vector = vector.append(number)
        return vector

    assert objects(appended) < 100_000 / 200


def at_each_line(
    make: Callable[[], Map], work: Callable[[Map], Made], other: Callable[[Map], Made]
) -> Iterator[tuple[Map, list[Made]]]:
    """Call `work` for a new map again and again, and `other` before its first, second, ... line.

    Another thread may come there; between the lines of compiled code none does. Only lines of
    methods of tries count. Yields the map and what was returned.
    """
    before, line, left = sys.gettrace(), 0, 0
    found: list[Made] = []
    one = make()

    def trace(frame: FrameType, event: str, _value: object) -> TraceFunction | None:
        nonlocal left
        code = frame.f_code
        if not code.co_filename.endswith("cells/trie.py") or "." not in code.co_qualname:
            return None
        left -= event == "line"
        if left:
            return trace
        sys.settrace(before)
        found.append(other(one))
        return None

    while not left:
        line += 1
        left, found, one = line, [], make()
        sys.settrace(trace)
        try:
            found.append(work(one))
        finally:
            sys.settrace(before)
        yield one, found


def test_a_map_may_be_read_by_two_threads() -> None:
    numbers = range(18)
    wanted = Map((number, number) for number in numbers)
    built = Map((number, number) for number in range(15))
    makes: list[Callable[[], Map]] = [
        lambda: Map((number, number) for number in numbers),
        lambda: built.put(15, 15).put(16, 16).put(17, 17),
    ]
    works: list[Callable[[Map], bool]] = [
        lambda one: one[9] == 9,
        lambda one: same(one.put(3, 4), wanted.put(3, 4)),
        lambda one: not list(one.differences(wanted)),
    ]
    for make in makes:
        for work in works:
            for one, found in at_each_line(make, work, lambda one: len(list(one)) == 18):
                assert all(found)
                assert one[17] == 17


def test_two_threads_may_put_to_one_map() -> None:
    built = Map((number, number) for number in range(15))
    for _, made in at_each_line(
        lambda: built.put(15, 15), lambda one: one.put(None, "a"), lambda one: one.put(None, "b")
    ):
        assert {len(one) for one in made} == {17}
        assert sorted(map(str, (one[None] for one in made))) in (["a"], ["a", "b"])


@pytest.mark.parametrize("count", [255, 256, 257, 511, 512, 4_096, 5_000])
def test_a_vector_is_the_same_however_it_was_made(count: int) -> None:
    for items in ([*range(count)], ["long" * 9] * count, [0, "x" * 139] * (count // 2)):
        bulk, appended = Vector.of(items), Vector()
        for item in items:
            appended = appended.append(item)
        extended = Vector.of(items[:100]).extend(items[100:])
        parsed = decode_message(encode_message(bulk))
        assert hash_of(bulk) == hash_of(appended) == hash_of(extended) == hash_of(parsed)
        assert list(bulk) == list(appended) == items
        changed = bulk.set(len(items) // 2, "changed").append(1)
        wanted = [*items[: len(items) // 2], "changed", *items[len(items) // 2 + 1 :], 1]
        assert hash_of(changed) == hash_of(Vector.of(wanted))
        assert hash_of(changed.drop(16)) == hash_of(Vector.of(wanted[16:]))
        assert hash_of(changed.take(250)) == hash_of(Vector.of(wanted[:250]))
