"""Vectors grown by elements given as encodings: equal to vectors grown by the elements."""

from __future__ import annotations

from itertools import accumulate

import pytest

from datalattice.cells import (
    Index,
    Keyword,
    Value,
    Vector,
    decode_message,
    encode,
    encode_message,
    novelty,
    packed_vector,
    same,
    value_hash,
)
from datalattice.store import MemoryStore


def elements(first: int, count: int) -> list[object]:
    return [Vector.of((None, f"value {i}", i, None)) for i in range(first, first + count)]


def rows(values: list[object]) -> tuple[bytes, list[int]]:
    encodings = [encode(value) for value in values]
    return b"".join(encodings), list(accumulate(map(len, encodings)))


@pytest.mark.parametrize("start", [0, 1, 15, 16, 17, 31, 256, 300])
@pytest.mark.parametrize("count", [0, 1, 14, 15, 16, 17, 33, 600])
def test_growing_by_encodings_equals_growing_by_values(start: int, count: int) -> None:
    begun = Vector.of(elements(0, start))
    values = elements(start, count)
    grown = begun.extend_encoded(*rows(values))
    expected = begun.extend(values)
    assert len(grown) == start + count
    assert value_hash(grown) == value_hash(expected)
    assert [encode(element) for element in grown] == [encode(element) for element in expected]
    assert sorted(part[0] for part in novelty(grown)) == sorted(
        part[0] for part in novelty(expected)
    )
    assert same(decode_message(encode_message(grown)), expected)


@pytest.mark.parametrize("start", [1, 14, 15, 17, 31, 47, 257, 271, 300])
@pytest.mark.parametrize("is_read", [False, True], ids=["closed", "read between"])
def test_a_stored_vector_grows_by_encodings_as_by_values(start: int, is_read: bool) -> None:
    values = elements(0, start)
    values[start // 2] = "a long text " * 20  # held by its hash
    added = elements(start, 40)
    store = MemoryStore()
    store.commit(Vector.of(values))
    grown = store.load(value_hash(Vector.of(values)))
    for number, value in enumerate(added):
        assert isinstance(grown, Vector)
        before = encode(grown)
        made = grown.extend_encoded(*rows([value]))
        assert encode(grown) == before
        assert not is_read or made[-1] == value
        grown = made
        assert value_hash(grown) == value_hash(Vector.of([*values, *added[: number + 1]]))
    store.commit(grown)
    assert store.load(value_hash(grown)) == Vector.of([*values, *added])


@pytest.mark.parametrize(
    "parts",
    [
        (),
        ("text", 0, 1_700_000_000_000, None),
        (b"bytes", True, -1.5, Keyword("name")),
        tuple(range(16)),
        ("t" * 132, None, 0, 0),  # 140 bytes
    ],
)
def test_a_packed_vector_is_that_of_its_elements(parts: tuple[Value, ...]) -> None:
    packed = packed_vector(parts)
    assert packed is not None
    assert packed == Vector.of(parts)
    assert packed.to_list() == list(parts)
    assert encode_message(Index.of([("a", packed)])) == encode_message(
        Index.of([("a", Vector.of(parts))])
    )


@pytest.mark.parametrize(
    "parts", [tuple(range(17)), ("t" * 133, None, 0, 0), (Vector.of([1]),), (1 << 100,)]
)
def test_what_is_longer_or_no_scalar_is_not_packed(parts: tuple[Value, ...]) -> None:
    assert packed_vector(parts) is None


def test_the_vector_that_was_grown_stays_as_it_was() -> None:
    begun = Vector.of(elements(0, 20))
    before = value_hash(begun)
    grown = begun.extend_encoded(*rows(elements(20, 40)))
    other = begun.extend(elements(100, 3))
    assert value_hash(begun) == before
    assert same(grown[:20], begun)
    assert same(other[20], elements(100, 1)[0])
    assert same(grown.append("x")[:60], grown)


def test_a_vector_is_made_of_elements_that_fill_one_closed_block() -> None:
    made = Vector(range(256))
    assert encode(made) == encode(Vector.of(range(256)))
    assert made.append(256).to_list() == list(range(257))


def test_a_finished_block_keeps_its_leaves_if_a_late_thread_adds_to_their_list() -> None:
    texts = [f"{i:40}" for i in range(512)]
    begun = Vector.of(texts[:256])
    for text in texts[256:496]:
        begun = begun.append(text)
    leaves = begun._prefix.leaves  # type: ignore[attr-defined]
    grown = begun.extend(texts[496:])
    leaves.append(Vector.of(texts[:16]))  # by a thread that saw 15 leaves
    assert encode(grown) == encode(Vector.of(texts))
    assert grown.drop(272).to_list() == texts[272:]
