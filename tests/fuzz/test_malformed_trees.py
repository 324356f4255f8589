"""Trees that no writer makes: cells that refer to one another many times over, or without end.

Each is a few kilobytes on the wire and describes a tree of astronomical size or depth. Whatever is
done with one ends soon, in a value, `BadFormat` or `MissingData`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from datalattice.cells import (
    EMPTY_MAP,
    EMPTY_SET,
    Index,
    Keyword,
    Map,
    Set,
    Value,
    Vector,
    decode,
    decode_message,
    difference,
    encode,
    encode_message,
    memory_size,
    missing,
    novelty,
    same,
    to_json,
    to_text,
    validate,
    value_hash,
    vector_fork_offset,
)
from datalattice.crypto import sha3_256
from datalattice.errors import BadFormat, LimitExceeded, MissingData
from datalattice.limits import EMBEDDED_BYTES_MAX

CHILDREN = 16


class Shelf:
    def __init__(self) -> None:
        self.cells: dict[bytes, bytes] = {}

    def load(self, hash: bytes) -> Value:
        if hash not in self.cells:
            raise MissingData([hash])
        return decode(self.cells[hash], self)

    def put(self, encoding: bytes) -> bytes:
        """Keep a cell; return how a parent refers to it."""
        digest = sha3_256(encoding)
        self.cells[digest] = encoding
        return encoding if len(encoding) <= EMBEDDED_BYTES_MAX else b"\x20" + digest


def vlq(count: int) -> bytes:
    out = [count & 0x7F]
    while count := count >> 7:
        out.append((count & 0x7F) | 0x80)
    return bytes(reversed(out))


def shared_trie(
    tag: int, levels: int, shift: Callable[[int], int], key: int = 1
) -> tuple[Value, Shelf]:
    """Return a trie each of whose nodes has one child sixteen times, and where its cells are."""
    shelf = Shelf()
    leaf = Map.of([(key, "x" * 200)]) if tag == 0x82 else Set.of([str(key) * 200])
    top = encode(leaf)
    reference = shelf.put(top)
    for level in range(levels):
        node = bytes([tag]) + vlq(CHILDREN + level)
        top = node + bytes([shift(level)]) + b"\xff\xff" + reference * CHILDREN
        reference = shelf.put(top)
    return decode(top, shelf), shelf


def shared_index(levels: int, depth: Callable[[int], int]) -> tuple[Value, Shelf]:
    shelf = Shelf()
    top = encode(Index.of([(b"k" * 32, "x" * 200)]))
    reference = shelf.put(top)
    for level in range(levels):
        node = b"\x84" + vlq(2 + level) + b"\x00"
        top = node + bytes([depth(level)]) + b"\xff\xff" + reference * CHILDREN
        reference = shelf.put(top)
    return decode(top, shelf), shelf


def deeper(level: int) -> int:
    """Each node of 62 levels is one digit deeper than its parent, as the rule asks."""
    return 61 - level


def ends(action: Callable[[], object]) -> None:
    """Run an action that may refuse the data but must end within the time of a test."""
    try:
        action()
    except (BadFormat, MissingData):
        return


SHAPES = [
    pytest.param(62, deeper, id="62 levels, each deeper"),
    pytest.param(62, lambda _: 0, id="62 levels, all alike"),
    pytest.param(3000, lambda _: 0, id="3000 levels, all alike"),
    pytest.param(3000, lambda _: 63, id="3000 levels, all at the end"),
]

KEY = b"\x00" * 32
MANY = [(f"key-{n}", n) for n in range(40)]


@pytest.mark.parametrize(("levels", "shift"), SHAPES)
def test_maps_of_shared_nodes_end(levels: int, shift: Callable[[int], int]) -> None:
    evil, _ = shared_trie(0x82, levels, shift)
    worse, _ = shared_trie(0x82, levels, shift, key=2)
    assert isinstance(evil, Map)
    assert isinstance(worse, Map)
    own = Map.of(MANY)

    def keep(_key: Value, own: Value, other: Value, has: bool, _had: bool) -> object:
        return own if has else other

    for action in (
        lambda: evil.get(5),
        lambda: [evil.get(n) for n in range(200)],
        lambda: encode(evil.put(5, 6)),
        lambda: [evil.put(n, n) for n in range(200)],
        lambda: [evil.remove(n) for n in range(200)],
        lambda: list(evil),
        lambda: list(evil.values()),
        lambda: own.merge_with(evil, keep),
        lambda: EMPTY_MAP.merge_with(evil, keep),
        lambda: evil.merge_with(own, keep),
        lambda: list(own.differences(evil)),
        lambda: list(evil.differences(own)),
        lambda: list(evil.differences(EMPTY_MAP)),
        lambda: list(evil.differences(worse)),
        lambda: evil.merge_with(worse, keep),
    ):
        ends(action)
    with pytest.raises(BadFormat):
        validate(evil)


@pytest.mark.parametrize(("levels", "shift"), SHAPES)
def test_sets_of_shared_nodes_end(levels: int, shift: Callable[[int], int]) -> None:
    evil, _ = shared_trie(0x83, levels, shift)
    worse, _ = shared_trie(0x83, levels, shift, key=2)
    assert isinstance(evil, Set)
    assert isinstance(worse, Set)
    own = Set.of(range(40))
    for action in (
        lambda: [n in evil for n in range(200)],
        lambda: [evil.add(n) for n in range(200)],
        lambda: [evil.remove(n) for n in range(200)],
        lambda: list(evil),
        lambda: own.union(evil),
        lambda: evil.union(own),
        lambda: EMPTY_SET.union(evil),
        lambda: list(own.differences(evil)),
        lambda: list(evil.differences(worse)),
        lambda: evil.union(worse),
    ):
        ends(action)
    with pytest.raises(BadFormat):
        validate(evil)


@pytest.mark.parametrize(("levels", "depth"), SHAPES)
def test_indexes_of_shared_nodes_end(levels: int, depth: Callable[[int], int]) -> None:
    evil, _ = shared_index(levels, depth)
    assert isinstance(evil, Index)
    own = Index.of([(f"{n:032d}", n) for n in range(40)])
    keys = [KEY, b"", b"k", b"k" * 32, Keyword("key"), b"\xff" * 32]

    def keep(_key: Value, own: Value, other: Value, has: bool, _had: bool) -> object:
        return own if has else other

    for action in (
        lambda: [evil.get(key) for key in keys],
        lambda: [evil.put(key, 1) for key in keys],
        lambda: [evil.remove(key) for key in keys],
        lambda: list(evil),
        lambda: list(evil.values()),
        lambda: own.merge_with(evil, keep),
        lambda: evil.merge_with(own, keep),
        lambda: list(own.differences(evil)),
        lambda: list(evil.differences(own)),
    ):
        ends(action)
    with pytest.raises(BadFormat):
        validate(evil)


@pytest.mark.parametrize("depth", [0, 5, 63])
def test_keys_of_an_index_that_are_shorter_than_their_place_end(depth: int) -> None:
    shelf = Shelf()
    leaf = shelf.put(encode(Index.of([(b"", 1)])))
    evil = decode(b"\x84\x02\x00" + bytes([depth]) + b"\x00\x03" + leaf * 2, shelf)
    assert isinstance(evil, Index)
    other = Index.of([(b"abc", 1), (b"abd", 2)])
    keys = [b"", b"abc", KEY]
    for action in (
        lambda: [evil.get(key) for key in keys],
        lambda: evil.put(b"", 1),
        lambda: evil.put(b"abc", 1),
        lambda: evil.put(KEY, 1),
        lambda: evil.remove(b""),
        lambda: evil.remove(b"abc"),
        lambda: evil.remove(KEY),
        lambda: list(evil),
        lambda: other.merge_with(evil, lambda _k, a, _b, _h, _t: a),
        lambda: list(evil.differences(other)),
    ):
        ends(action)
    with pytest.raises(BadFormat):
        validate(evil)


@pytest.mark.parametrize("count", [41, 80, 81])
def test_a_node_that_counts_wrongly_is_not_canonical(count: int) -> None:
    shelf = Shelf()
    big = shelf.put(encode(Map.of([(n, "x" * 120) for n in range(40)])))
    evil = decode(b"\x82" + vlq(count) + b"\x00\x00\x03" + big * 2, shelf)
    assert isinstance(evil, Map)
    ends(lambda: [evil.remove(n) for n in range(40)])
    ends(lambda: [evil.put(n, n) for n in range(40)])
    ends(lambda: list(evil))
    with pytest.raises(BadFormat):
        validate(evil)


def chain(length: int) -> Vector:
    """Return vectors in one another, each too long to stand inside the next."""
    value = Vector.of([])
    for number in range(length):
        value = Vector.of([value, f"{number:0130d}"])
    return value


def test_long_chains_are_walked_without_recursion() -> None:
    length = 20_000
    value = chain(length)
    message = encode_message(value)
    whole = decode_message(message)
    assert same(whole, value)
    assert validate(whole) == []
    assert missing(whole) == []
    assert len(novelty(whole)) == length - 1
    assert memory_size(whole) == memory_size(value)
    assert len(list(difference(None, whole))) == length - 1
    assert encode_message(whole) == message
    assert value_hash(whole) == value_hash(value)


def test_values_nested_inline_as_deep_as_they_go_are_read() -> None:
    for wrap in (b"\x80\x01", b"\x81\x01", b"\xc0\x00", b"\xd0\x01", b"\x83\x01"):
        deepest = wrap * 69 + b"\x10"
        top = b"\xc0" + deepest + deepest
        assert encode(decode(top)) == top
        with pytest.raises(BadFormat):
            decode(b"\xc0" + wrap * 70 + b"\x10" + b"\x00")
    with pytest.raises(BadFormat, match="nested"):
        decode(b"\x80\x01" * 5000 + b"\x00")


def shared_vector(item: Value, levels: int) -> tuple[Vector, Shelf]:
    """Return the canonical vector of 16**(levels + 1) times `item`, and where its cells are."""
    shelf = Shelf()
    shelf.put(encode(item))
    top = encode(Vector.of([item] * CHILDREN))
    count = CHILDREN
    for _ in range(levels):
        count *= CHILDREN
        top = b"\x80" + vlq(count) + shelf.put(top) * CHILDREN
    made = decode(top, shelf)
    assert isinstance(made, Vector)
    return made, shelf


def test_text_of_more_characters_than_memory_holds_is_refused() -> None:
    long, _ = shared_vector("x" * 4000, 7)  # 16 TB of text
    for write in (to_text, to_json):
        with pytest.raises(LimitExceeded, match="at most 100000000 characters"):
            write(Vector.of([long]))


def test_blobs_of_more_bytes_than_memory_holds_are_not_written_out() -> None:
    shelf = Shelf()
    count = 4096
    top = encode(bytes(count))
    for _ in range(10):
        count *= CHILDREN
        top = b"\x31" + vlq(count) + shelf.put(top) * CHILDREN
    blob = decode(top, shelf)
    assert validate(blob) == []
    for write in (to_text, to_json):
        for value in (blob, Vector.of([blob]), Map.of([(blob, 1)]), Map.of([(1, blob)])):
            with pytest.raises(LimitExceeded):
                write(value)


def test_logs_that_differ_only_in_how_a_child_is_written_are_told_apart_at_once() -> None:
    """A child that fits inside its parent, referenced by hash, is no canonical value."""
    own, _ = shared_vector(b"x", 12)
    shelf = Shelf()
    top = b"\x80\x10" + (b"\x20" + sha3_256(encode(b"x"))) * CHILDREN
    count = CHILDREN
    for _ in range(12):
        count *= CHILDREN
        top = b"\x80" + vlq(count) + shelf.put(top) * CHILDREN
    evil = decode(top, shelf)
    assert isinstance(evil, Vector)
    assert vector_fork_offset(own, evil) == 0
    assert vector_fork_offset(evil, own) == 0
    with pytest.raises(MissingData):
        evil[0]
