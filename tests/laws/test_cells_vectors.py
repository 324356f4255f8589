"""Laws of vectors and lists against plain Python lists."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import example, given, strategies as st

from datalattice.cells import (
    EMPTY_VECTOR,
    List,
    Value,
    Vector,
    decode_message,
    encode,
    encode_message,
    same,
    validate,
    vector_fork_offset,
)
from datalattice.testing.strategies import BORDER_COUNTS, plain_scalars, sequences


def elements() -> st.SearchStrategy[Sequence[Value]]:
    return sequences(plain_scalars(), max_size=40)


def equal(vector: Vector | List, items: Sequence[Value]) -> bool:
    held = list(vector)
    return len(vector) == len(held) == len(items) and all(map(same, held, items))


def by_appending(items: Sequence[Value]) -> Vector:
    vector = EMPTY_VECTOR
    for item in items:
        vector = vector.append(item)
    return vector


@given(elements())
def test_bulk_builder_equals_single_appends(items: Sequence[Value]) -> None:
    bulk = Vector.of(items)
    assert equal(bulk, items)
    assert encode(bulk) == encode(by_appending(items))
    assert encode_message(bulk) == encode_message(by_appending(items))
    assert validate(bulk) == []


@given(elements(), elements())
def test_extend_equals_building_whole(first: Sequence[Value], second: Sequence[Value]) -> None:
    whole = encode(Vector.of([*first, *second]))
    assert encode(Vector.of(first).extend(second)) == whole
    assert encode(by_appending(first).concat(Vector.of(second))) == whole
    assert encode(Vector.of(first) + second) == whole


@given(elements(), st.integers(-3, 330))
def test_drop_equals_building_the_rest(items: Sequence[Value], number: int) -> None:
    rest = list(items)[max(number, 0) :]
    dropped = Vector.of(items).drop(number)
    assert equal(dropped, rest)
    assert encode(dropped) == encode(Vector.of(rest))
    assert encode_message(dropped) == encode_message(Vector.of(rest))


@given(elements(), st.integers(-3, 330))
def test_take_equals_building_the_first(items: Sequence[Value], number: int) -> None:
    first = list(items)[: max(number, 0)]
    for whole in (Vector.of(items), by_appending(items)):
        taken = whole.take(number)
        assert equal(taken, first)
        assert encode_message(taken) == encode_message(Vector.of(first))
        assert encode(taken.append(1)) == encode(Vector.of([*first, 1]))
        assert equal(whole, list(items))


@given(elements(), st.slices(300))
def test_positions_and_slices_are_those_of_a_list(items: Sequence[Value], part: slice) -> None:
    vector = Vector.of(items)
    cut = vector[part]
    assert isinstance(cut, Vector)
    assert equal(cut, list(items)[part])
    for position in (0, 1, -1, len(items) - 1, -len(items), len(items) // 2):
        if -len(items) <= position < len(items):
            assert same(vector[position], items[position])
        else:
            with pytest.raises(IndexError):
                vector[position]


@given(elements(), st.integers(0, 310), st.integers(0, 310))
def test_ranges_and_reversal_are_those_of_a_list(
    items: Sequence[Value], start: int, stop: int
) -> None:
    vector = Vector.of(items)
    assert all(map(same, vector.iter_range(start, stop), items[start:stop]))
    assert len(vector.to_list(start, stop)) == len(items[start:stop])
    assert all(map(same, reversed(vector), reversed(items)))


@given(elements(), st.data())
def test_set_replaces_one_element(items: Sequence[Value], data: st.DataObject) -> None:
    vector = Vector.of(items)
    if not items:
        with pytest.raises(IndexError):
            vector.set(0, 1)
        return
    position = data.draw(st.integers(0, len(items) - 1))
    new = data.draw(plain_scalars())
    changed = list(items)
    changed[position] = new
    assert encode(vector.set(position, new)) == encode(Vector.of(changed))
    assert vector.set(position, items[position]) is vector
    assert equal(vector, items), "the vector itself must not change"


@given(elements(), st.lists(plain_scalars(), max_size=3), st.lists(plain_scalars(), max_size=20))
def test_vectors_that_share_a_tail_do_not_see_each_other(
    items: Sequence[Value], left: list[Value], right: list[Value]
) -> None:
    shared = by_appending(items)
    one, two = shared, shared
    for item in left:
        one = one.append(item)
    for item in right:
        two = two.append(item)
    assert encode(one) == encode(Vector.of([*items, *left]))
    assert encode(two) == encode(Vector.of([*items, *right]))
    assert encode(shared) == encode(Vector.of(items))


@given(
    st.sampled_from([0, 240, 256, 495, 512, 4_080]),
    st.lists(
        st.tuples(st.integers(0, 9), st.integers(1, 60), st.sampled_from(["", "encode", "read"])),
        max_size=12,
    ),
)
@example(512, [(0, 32, ""), (1, 16, ""), (1, 1, "encode"), (3, 16, "")])
def test_vectors_that_share_leaves_do_not_see_each_other(
    count: int, steps: list[tuple[int, int, str]]
) -> None:
    versions = [(by_appending(range(count)), [*range(count)])]
    for number, (which, more, then) in enumerate(steps):
        vector, items = versions[which % len(versions)]
        items = [*items, *range(1_000 * number, 1_000 * number + more)]
        for item in items[-more:]:
            vector = vector.append(item)
        if then == "encode":
            encode(vector)
        elif then == "read":
            assert vector.get(len(items) - 20) == (items[-20] if len(items) >= 20 else None)
        versions.append((vector, items))
    for vector, items in versions:
        assert encode_message(vector) == encode_message(Vector.of(items))


@given(elements(), st.integers(0, 310), st.lists(plain_scalars(), max_size=20), st.booleans())
def test_fork_offset_is_the_first_difference(
    items: Sequence[Value], keep: int, tail: list[Value], separately: bool
) -> None:
    other_items = [*items[:keep], *tail]
    own = Vector.of(items)
    kept = own[:keep]
    assert isinstance(kept, Vector)
    other = kept.extend(tail)
    if separately:
        again = decode_message(encode_message(other))
        assert isinstance(again, Vector)
        other = again
    naive = next(
        (i for i, (a, b) in enumerate(zip(items, other_items, strict=False)) if not same(a, b)),
        None,
    )
    assert vector_fork_offset(own, other) == naive
    assert vector_fork_offset(other, own) == naive


@given(elements(), st.lists(st.tuples(st.integers(0, 310), plain_scalars()), max_size=4), st.data())
def test_merge_with_joins_position_by_position(
    items: Sequence[Value], changes: list[tuple[int, Value]], data: st.DataObject
) -> None:
    own = Vector.of(items)
    other_items = list(items)
    for position, value in changes:
        if position < len(other_items):
            other_items[position] = value
    other_items = other_items[: data.draw(st.integers(0, len(items)))]
    other_items += data.draw(st.lists(plain_scalars(), max_size=20))
    other = Vector.of(other_items)

    def greater(_: int, a: Value, b: Value) -> Value:
        return max(a, b, key=encode)

    longest = max(len(items), len(other_items))
    pairs = [
        (
            items[i] if i < len(items) else None,
            other_items[i] if i < len(other_items) else None,
        )
        for i in range(longest)
    ]
    wanted = Vector.of([max(pair, key=encode) for pair in pairs])
    result = own.merge_with(other, greater)
    assert encode(result) == encode(wanted)
    if same(wanted, own):
        assert result is own
    elif same(wanted, other):
        assert result is other


@given(elements())
def test_lists_are_vectors_told_from_the_other_end(items: Sequence[Value]) -> None:
    made = List.of(items)
    assert equal(made, items)
    assert encode(made)[1:] == encode(Vector.of(items[::-1]))[1:]
    by_prepending = List.of([])
    for item in reversed(items):
        by_prepending = by_prepending.prepend(item)
    assert encode(by_prepending) == encode(made)
    again = decode_message(encode_message(made))
    assert isinstance(again, List)
    assert equal(again, items)
    assert all(map(same, reversed(made), reversed(items)))
    for position in {0, len(items) - 1, -1} if items else set():
        assert same(made[position], items[position])


@pytest.mark.parametrize("count", [*BORDER_COUNTS, 4095, 4096, 4097, 4112, 4368, 5000])
def test_all_ways_of_building_agree_at_the_borders_of_the_shapes(count: int) -> None:
    items = list(range(count))
    vector = Vector.of(items)
    assert encode_message(vector) == encode_message(by_appending(items))
    assert vector.to_list() == items
    again = decode_message(encode_message(vector))
    assert isinstance(again, Vector)
    assert encode(again.append(-1)) == encode(Vector.of([*items, -1]))
    assert encode(again.drop(16)) == encode(Vector.of(items[16:]))
    for number in (0, 1, count // 2, count - 17, count - 16, count - 1, count):
        assert encode_message(again.take(number)) == encode_message(
            Vector.of(items[: max(number, 0)])
        )
    assert encode(again.extend(range(40))) == encode(Vector.of([*items, *range(40)]))
