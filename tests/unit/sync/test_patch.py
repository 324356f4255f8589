"""Patch: what it makes is what was there, whatever the values; what is no patch is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, strategies as st

from datalattice.cells import (
    EMPTY_MAP,
    Index,
    Map,
    Set,
    Signed,
    Value,
    Vector,
    encode,
    to_cell,
    value_hash,
)
from datalattice.crypto import KeyPair, sha3_256
from datalattice.errors import BadFormat, LimitExceeded, MissingData
from datalattice.limits import CELL_BYTES_MAX
from datalattice.store import MemoryStore
from datalattice.sync.lattice.delta import beyond
from datalattice.sync.lattice.patch import (
    HUNKS_MAX,
    PATCH_CELLS_MAX,
    PATCH_HUNKS_MAX,
    cells_worth,
    read_patch,
    write_patch,
)
from datalattice.wire import encode_length

ROOM = 10_000_000
KEYS = KeyPair(b"p" * 32)


def cells_and_patch(
    before: Value, after: Value
) -> tuple[MemoryStore, dict[bytes, bytes], bytes, bytes]:
    """Return (a store that has `before`, the new cells, their patch, the base)."""
    sender, receiver = MemoryStore(), MemoryStore()
    receiver.commit(before)
    sender.commit(before)
    sender.commit(after)
    cells = beyond([before], after, sender.get_encodings, ROOM)
    assert cells is not None
    base = encode(before)
    return receiver, cells, write_patch(encode(after), cells, base, sender.get_encoding), base


def check(before: Value, after: Value) -> tuple[int, int]:
    """Check that the patch makes the new cells; return (bytes of cells, of the patch)."""
    receiver, cells, patch, base = cells_and_patch(before, after)
    made = read_patch(patch, base, receiver.get_encoding, ROOM)
    assert list(made)[-1] == value_hash(after)
    assert made == {**cells, value_hash(after): encode(after)}
    return sum(map(len, cells.values())), len(patch)


NUMBERS = Map.of([(f"key {number}", number) for number in range(5_000)])


@pytest.mark.parametrize(
    ("before", "change"),
    [
        (NUMBERS, lambda value: value.put("key 77", -1)),
        (NUMBERS, lambda value: value.put("another", -1)),
        (NUMBERS, lambda value: value.remove("key 77")),
        (Set.of(range(5_000)), lambda value: value.add(-1)),
        (Vector.of(range(5_000)), lambda value: value.append(-1)),
        (Vector.of(range(4_095)), lambda value: value.append(-1).append(-2)),
        (Vector.of(range(5_000)), lambda value: value.set(3, -1)),
        (Index.of([(f"k{n}", n) for n in range(5_000)]), lambda value: value.put("k", 1)),
        (to_cell({"t": "x" * 50_000}), lambda value: value.put("t", "x" * 49_000 + "y" * 1_001)),
    ],
)
def test_a_small_change_of_a_large_value_makes_a_small_patch(
    before: Value, change: Callable[[Value], Value]
) -> None:
    cells_bytes, patch_bytes = check(before, change(before))
    assert patch_bytes < max(100, cells_bytes * 2 // 3)


def test_a_hundred_changed_keys_cost_a_few_bytes_each() -> None:
    after = NUMBERS.put_many([(f"key {50 * number}", -number) for number in range(100)])
    cells_bytes, patch_bytes = check(NUMBERS, after)
    assert patch_bytes < 30 * 100
    assert cells_bytes > 10 * patch_bytes


def test_a_signed_value_is_patched_through_its_signature() -> None:
    before = Map.of([(KEYS.public_key, Signed.sign(KEYS, NUMBERS)), ("p", "x" * 100)])
    after = before.put(KEYS.public_key, Signed.sign(KEYS, NUMBERS.put("key 1", -1)))
    cells_bytes, patch_bytes = check(before, after)
    assert 64 < patch_bytes < 250
    assert patch_bytes * 5 < cells_bytes


def test_data_that_look_like_a_reference_are_data() -> None:
    bait = b"\x20" + value_hash("x" * 200)
    check(to_cell([bait, ["y" * 200], "z" * 30]), to_cell([bait, ["x" * 200], "z" * 30]))


@given(st.integers(0, 60), st.integers(1, 20))
def test_content_under_its_hashes_goes_through_a_patch(size: int, added: int) -> None:
    # The key of a leaf is the tag and the hash that its reference consists of.
    blobs = [f"{number}".ljust(200, ".").encode() for number in range(size + added)]
    entries = [(value_hash(blob), blob) for blob in blobs]
    check(Index.of(entries[:size]), Index.of(entries))


scalars = st.integers(-1_000, 1_000) | st.text(max_size=300) | st.binary(max_size=300)
changes = st.lists(st.tuples(st.integers(0, 400), scalars), max_size=20)


@given(st.integers(0, 400), changes)
def test_any_change_of_a_map_goes_through_a_patch(
    size: int, changed: list[tuple[int, str]]
) -> None:
    before = Map.of([(number, f"{number}" * 20) for number in range(size)])
    after = before.put_many(changed)
    if value_hash(before) != value_hash(after):
        check(before, after)


@given(st.integers(1, 400), st.lists(scalars, min_size=1, max_size=40), st.integers(0, 30))
def test_any_change_of_a_vector_goes_through_a_patch(
    size: int, added: list[str], dropped: int
) -> None:
    before = Vector.of([f"{number}" * 30 for number in range(size)])
    after = before.drop(min(dropped, size)).concat(Vector.of(added))
    if value_hash(before) != value_hash(after):
        check(before, after)


def test_what_is_below_twice_is_written_once() -> None:
    part = to_cell({"a": "x" * 500})
    after = to_cell([part, part, [part], "y" * 200])
    check(to_cell([1, 2, 3, "y" * 200, "z" * 200]), after)


def test_a_chain_is_no_recursion() -> None:
    value: Value = "x" * 200
    other: Value = "y" * 200
    for _ in range(3_000):
        value = to_cell([value, "x" * 100])
        other = to_cell([other, "x" * 100])
    check(value, other)


@pytest.mark.parametrize("less", [0, 1])
def test_the_bytes_a_patch_stands_for_are_limited(less: int) -> None:
    receiver, cells, patch, base = cells_and_patch(NUMBERS, NUMBERS.put("key 5", -1))
    size = sum(map(len, cells.values()))
    if not less:
        assert read_patch(patch, base, receiver.get_encoding, size)
        return
    with pytest.raises(LimitExceeded, match="more bytes of cells"):
        read_patch(patch, base, receiver.get_encoding, size - less)


def head(count: int, kind: int) -> bytes:
    return encode_length(count * 4 + kind)


WIDE = to_cell(["x" * 200, "y" * 200])


@pytest.mark.parametrize(
    ("patch", "text"),
    [
        (b"", "cut off"),
        (b"\x80" * 12, "cut off or too long"),
        (head(0, 3), "kinds 0 to 2, got 3"),
        (head(0, 0) + b"\x00", "1 bytes follow"),
        (head(1, 0), "cut off"),
        (head(1, 0) + b"\x02", "reference 2 of 2"),
        (head(1, 0) + b"\x00", "cut off"),
        (head(1_000, 0), "1000 references"),
        (head(0, 1) + b"\x01" + encode_length(60) + encode_length(60) + b"\x00", "120 bytes of"),
        (
            head(0, 1)
            + b"\x02"
            + b"\x00\x00"
            + encode_length(16_000)
            + b"z" * 16_000
            + b"\x00\x00"
            + encode_length(384)
            + b"z" * 384,
            "16384|edits",
        ),
        (
            head(0, 1) + b"\x01\x00\x00" + encode_length(CELL_BYTES_MAX - 10) + b"z" * 16_373,
            "more than",
        ),
        (head(0, 1) + b"\x7f", "cut off"),
        (head(0, 2) + b"\x05\x00", "cut off"),
        (head(0, 2) + encode_length(CELL_BYTES_MAX + 1) + b"\x00" * 20_000, "for one cell"),
        (head(1, 0) + b"\x00" + head(1, 2) + b"\x00\x01\x00", "reference 0 of 0"),
        (head(1, 0) + b"\x00" + head(1, 2) + b"\x00\x01\xff", "BadFormat|tag|0xff|ff"),
    ],
)
def test_what_is_no_patch_is_refused(patch: bytes, text: str) -> None:
    store = MemoryStore()
    store.commit(WIDE)
    with pytest.raises(BadFormat, match=text):
        read_patch(patch, encode(WIDE), store.get_encoding, ROOM)


def test_what_a_patch_is_made_of_must_be_here() -> None:
    patch = head(1, 0) + b"\x00" + head(0, 0)
    with pytest.raises(MissingData) as caught:
        read_patch(patch, encode(WIDE), MemoryStore().get_encoding, ROOM)
    assert caught.value.hashes == (value_hash("x" * 200),)


@given(st.binary(max_size=400))
def test_arbitrary_bytes_make_cells_or_an_error(data: bytes) -> None:
    store = MemoryStore()
    store.commit(NUMBERS)
    try:
        made = read_patch(data, encode(NUMBERS), store.get_encoding, 100_000)
    except (BadFormat, LimitExceeded, MissingData):
        return
    assert all(sha3_256(cell) == hash for hash, cell in made.items())


def test_an_empty_map_is_made_from_nothing() -> None:
    store = MemoryStore()
    store.commit(WIDE)
    patch = head(0, 2) + encode_length(len(encode(EMPTY_MAP))) + encode(EMPTY_MAP)
    made = read_patch(patch, encode(WIDE), store.get_encoding, ROOM)
    assert made == {value_hash(EMPTY_MAP): encode(EMPTY_MAP)}


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_the_hunks_of_an_edit_are_limited(more: int) -> None:
    hunks = HUNKS_MAX + more
    patch = head(0, 1) + encode_length(hunks) + b"\x00\x00\x00" * hunks
    if more <= 0:
        assert list(read_patch(patch, encode(WIDE), MemoryStore().get_encoding, ROOM).values()) == [
            encode(WIDE)
        ]
        return
    with pytest.raises(BadFormat, match="at most 256 hunks for a cell, got 257"):
        read_patch(patch, encode(WIDE), MemoryStore().get_encoding, ROOM)


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_the_cells_of_a_patch_are_limited(more: int) -> None:
    # A chain of cells below the top, each of one reference to the next.
    count = PATCH_CELLS_MAX + more
    link = b"\x80\x01\x20" + sha3_256(b"a hash to be computed")
    cell = head(1, 2) + b"\x00" + encode_length(len(link)) + link
    patch = cell * count + head(0, 2) + b"\x03\x80\x01\x00"
    if more <= 0:
        assert len(read_patch(patch, b"", MemoryStore().get_encoding, ROOM)) == count + 1
        return
    with pytest.raises(LimitExceeded, match="more than 4096 cells"):
        read_patch(patch, b"", MemoryStore().get_encoding, ROOM)


def test_a_patch_that_names_what_stays_as_it_was_is_not_read() -> None:
    store = MemoryStore()
    store.commit(WIDE)
    with pytest.raises(LimitExceeded, match="stays as it was"):
        read_patch(head(1, 0) + b"\x00" + head(0, 0), encode(WIDE), store.get_encoding, ROOM)
    # A writer names none, even when the cells to be written have it.
    same = {value_hash("x" * 200): encode("x" * 200)}
    after = to_cell(["x" * 200, "z" * 200])
    cells = same | {value_hash("z" * 200): encode("z" * 200)}
    patch = write_patch(encode(after), cells, encode(WIDE), store.get_encoding)
    made = read_patch(patch, encode(WIDE), store.get_encoding, ROOM)
    assert made.keys() == {value_hash("z" * 200), value_hash(after)}


@pytest.mark.parametrize(
    ("size", "cells"),
    [
        (0, 64),
        (3, 65),
        (3 * (PATCH_CELLS_MAX - 64) - 1, PATCH_CELLS_MAX - 1),
        (10**6, PATCH_CELLS_MAX),
    ],
)
def test_a_patch_is_worth_a_cell_for_some_of_its_bytes(size: int, cells: int) -> None:
    assert cells_worth(size) == cells


def test_the_hunks_that_a_writer_looks_for_are_bounded_for_all_cells_together() -> None:
    # Every other byte differs, so no two places match.
    count = PATCH_HUNKS_MAX // 8
    befores = [bytes(n % 251 for n in range(k, k + 200)) for k in range(2 * count)]
    afters = [b"".join(one[n : n + 12] + b"\xff" for n in range(0, 200, 12)) for one in befores]
    before, after = Vector.of(befores), Vector.of(afters)
    receiver, cells, patch, base = cells_and_patch(before, after)
    made = read_patch(patch, base, receiver.get_encoding, ROOM)
    assert made.keys() >= cells.keys()
    _, few_cells, few, _ = cells_and_patch(Vector.of(befores[:64]), Vector.of(afters[:64]))
    assert len(few) / len(few_cells) < 0.8 * len(patch) / len(cells)
