"""Lazy loading: what is not at hand is loaded when it is looked at, and only that."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING

import pytest
from nacl import bindings

from datalattice.cells import (
    EMPTY_MAP,
    EMPTY_VECTOR,
    Blob,
    Holes,
    Index,
    Map,
    OpenCells,
    Set,
    Signed,
    Text,
    Value,
    Vector,
    branch_hashes,
    close_cells,
    decode,
    decode_message,
    decode_parts,
    difference,
    encode,
    encode_levels,
    encode_message,
    memory_size,
    missing,
    novelty,
    same,
    tagged,
    validate,
    value_hash,
    vector_fork_offset,
)
from datalattice.cells.walk import OPEN_CELLS_MAX
from datalattice.crypto import SIGNATURE_BYTES, KeyPair
from datalattice.errors import BadFormat, LimitExceeded, MissingData
from datalattice.limits import CHUNK_BYTES

if TYPE_CHECKING:
    from _typeshed import TraceFunction

COUNT = 20_000


class Shelf:
    """A loader that counts."""

    def __init__(self, *values: Value) -> None:
        self.cells: dict[bytes, bytes] = {}
        self.loads = 0
        for value in values:
            self.keep(value)

    def keep(self, value: Value) -> None:
        for digest, encoding, _ in novelty(value):
            self.cells[digest] = encoding

    def load(self, hash: bytes) -> Value:
        self.loads += 1
        if hash not in self.cells:
            raise MissingData([hash])
        return decode(self.cells[hash], self)

    def open(self, value: Value) -> Value:
        """Return `value` as one that has nothing at hand but its own cell."""
        self.loads = 0
        return decode(encode(value), self)


def as_vector(value: Value) -> Vector:
    assert isinstance(value, Vector)
    return value


def as_map(value: Value) -> Map:
    assert isinstance(value, Map)
    return value


@pytest.fixture(scope="module")
def vector() -> Vector:
    return Vector.of([f"element {n}" for n in range(COUNT)])


@pytest.fixture(scope="module")
def mapping() -> Map:
    return Map.of([(f"key {n}", n) for n in range(COUNT)])


@pytest.fixture(scope="module")
def full_shelf(vector: Vector, mapping: Map) -> Shelf:
    return Shelf(vector, mapping)


@pytest.fixture
def shelf(full_shelf: Shelf) -> Shelf:
    """Give each test a shelf of its own: some put more on it."""
    own = Shelf()
    own.cells.update(full_shelf.cells)
    return own


def test_a_missing_cell_is_named(vector: Vector) -> None:
    bare = as_vector(decode(encode(vector)))
    with pytest.raises(MissingData) as caught:
        bare[0]
    assert caught.value.hashes[0] in branch_hashes(encode(vector))
    assert len(bare) == COUNT


@pytest.mark.parametrize("position", [0, 1, 12_345, COUNT - 1])
def test_reading_one_element_loads_one_path(vector: Vector, shelf: Shelf, position: int) -> None:
    lazy = as_vector(shelf.open(vector))
    assert lazy[position] == f"element {position}"
    assert shelf.loads <= 5


@pytest.mark.parametrize("count", [COUNT, 4_096 + 6 * 256])
def test_an_append_below_a_missing_path_says_so(count: int) -> None:
    bare = as_vector(decode(encode(Vector.of(range(count)))))
    for number in range(15):
        bare = bare.append(number)
    with pytest.raises(MissingData):
        bare.append(15)


def test_reading_a_range_loads_its_leaves(vector: Vector, shelf: Shelf) -> None:
    lazy = as_vector(shelf.open(vector))
    assert lazy.to_list(8_000, 8_160) == [f"element {n}" for n in range(8_000, 8_160)]
    shelf.loads = 0
    steps = lazy.iter_range(0, COUNT)
    assert [next(steps) for _ in range(3)] == ["element 0", "element 1", "element 2"]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda v: v.append("x"), id="append"),
        pytest.param(lambda v: v.set(5, "x"), id="set"),
        pytest.param(lambda v: v.extend(["x"] * 40), id="extend"),
        pytest.param(lambda v: v.drop(16 * 1000), id="drop"),
    ],
)
def test_changing_a_vector_loads_and_writes_one_path(
    vector: Vector, shelf: Shelf, change: Callable[[Vector], Vector]
) -> None:
    lazy = as_vector(shelf.open(vector))
    changed = change(lazy)
    assert shelf.loads <= 30
    assert value_hash(changed) == value_hash(change(vector))
    assert len(novelty(changed, shelf)) <= 20


def test_changing_a_map_loads_and_writes_one_path(mapping: Map, shelf: Shelf) -> None:
    lazy = as_map(shelf.open(mapping))
    for key in ("key 77", "no such key"):
        shelf.loads = 0
        changed = lazy.put(key, "new")
        assert changed[key] == "new"
        assert shelf.loads <= 20
        assert len(novelty(changed, shelf)) <= 5
    shelf.loads = 0
    assert same(lazy.remove("key 77"), mapping.remove("key 77"))
    assert lazy.remove("no such key") is lazy
    assert shelf.loads <= 20


def test_a_merge_loads_what_differs(mapping: Map, shelf: Shelf) -> None:
    other = mapping.put("key 77", "new").put("another", 1).remove("key 5")
    shelf.keep(other)
    own, theirs = as_map(shelf.open(mapping)), as_map(shelf.open(other))
    shelf.loads = 0
    asked: list[Value] = []

    def join(key: Value, mine: Value, new: Value, _has: bool, had: bool) -> object:
        asked.append(key)
        return new if had else mine

    merged = own.merge_with(theirs, join)
    assert {"key 77", "another"} <= set(asked) <= {"key 77", "another", "key 5"}
    assert shelf.loads <= 60
    assert same(merged, mapping.put("key 77", "new").put("another", 1))


def test_equal_subtrees_need_not_be_here_for_a_merge(mapping: Map) -> None:
    other = mapping.put("key 77", "new")
    shelf = Shelf()
    for digest, encoding, _ in difference(mapping, other):
        shelf.cells[digest] = encoding
    for digest, encoding, _ in difference(other, mapping):
        shelf.cells[digest] = encoding
    own, theirs = as_map(shelf.open(mapping)), as_map(shelf.open(other))
    merged = own.merge_with(theirs, lambda _k, _a, b, _has, _had: b)
    assert merged is theirs
    assert [entry[0] for entry in own.differences(theirs)] == ["key 77"]


def test_forks_of_long_logs_are_found_without_loading_what_they_share(
    vector: Vector, shelf: Shelf
) -> None:
    one, two = vector.append("one"), vector.append("two")
    shelf.keep(one)
    shelf.keep(two)
    left, right = as_vector(shelf.open(one)), as_vector(shelf.open(two))
    shelf.loads = 0
    assert vector_fork_offset(left, right) == COUNT
    assert shelf.loads <= 100, "a few blocks at each of four levels, of 1,250 leaves"
    assert vector_fork_offset(left, as_vector(shelf.open(vector))) is None


def test_settling_lets_go_of_memory_and_changes_nothing(vector: Vector) -> None:
    fresh = Vector.of(list(vector))
    before = value_hash(fresh)
    shelf = Shelf()
    parts = novelty(fresh, shelf)
    for digest, encoding, _ in parts:
        shelf.cells[digest] = encoding
    close_cells(parts, shelf)
    assert fresh[777] == "element 777"
    assert shelf.loads > 0
    assert value_hash(fresh) == before
    grown = fresh.append("new")
    assert len(novelty(grown, shelf)) < 10


def commit(value: Value, shelf: Shelf, path: OpenCells) -> int:
    """Keep what `shelf` lacks of a value as a store does; return how many cells that was."""
    parts = novelty(value, shelf)
    for digest, encoding, _ in parts:
        shelf.cells[digest] = encoding
    path.follow(parts)
    return len(parts)


def test_the_path_of_the_last_commit_stays_open(shelf: Shelf) -> None:
    shelf.cells.clear()
    path = OpenCells(shelf)
    key = KeyPair(b"k" * 32)
    value = Index.of([(f"key {n:04}", f"{n} " * 40) for n in range(2_000)])
    commit(Map.of([("slot", Signed.sign(key, value))]), shelf, path)
    kept = as_map(shelf.open(Map.of([("slot", Signed.sign(key, value))])))
    for n in (5, 6, 7, 1_999, 9):
        signed = kept["slot"]
        assert isinstance(signed, Signed)
        assert isinstance(signed.value, Index)
        grown = signed.value.put(f"key {n:04}", f"other {n}")
        kept = Map.of([("slot", Signed.sign(key, grown))])
        assert commit(kept, shelf, path) <= 6
        shelf.loads = 0
        signed = kept["slot"]
        assert isinstance(signed, Signed)
        assert isinstance(signed.value, Index)
        assert signed.value[f"key {n:04}"] == f"other {n}"
        assert signed.value.put(f"key {n:04}", "next")[f"key {n:04}"] == "next"
        assert shelf.loads == 0
    assert value_hash(kept) == value_hash(decode_message(encode_message(kept)))


def test_a_write_to_a_stored_node_lists_only_the_children_on_its_way(shelf: Shelf) -> None:
    shelf.cells.clear()
    entries = {f"{n:02x}": "text" * 20 for n in range(256)}
    shelf.keep(Index.of(entries))
    index = shelf.open(Index.of(entries))
    assert isinstance(index, Index)
    grown = index.put("7f", "other").put_many({"00": "a", "01": "b", "20": "c", "0": "new"})
    for node, digits in ((grown, 1 << 3), (grown._peek_child(3), 0b10000101)):
        assert isinstance(node, Index)
        assert node._kids is None
        assert node._edit is not None
        assert node._edit.digits == digits
    wanted = Index.of({**entries, "7f": "other", "00": "a", "01": "b", "20": "c", "0": "new"})
    assert encode_message(grown) == encode_message(wanted)


def test_a_written_index_of_another_store_is_all_novel(shelf: Shelf) -> None:
    entries = {f"{n:02x}": "text" * 20 for n in range(256)}
    shelf.keep(Index.of(entries))
    index = shelf.open(Index.of(entries))
    assert isinstance(index, Index)
    grown = index.put("7f", "other")
    wanted = {digest for digest, _, _ in novelty(Index.of({**entries, "7f": "other"}))}
    assert {digest for digest, _, _ in novelty(grown, Shelf())} == wanted
    assert len(novelty(grown, shelf)) == 2  # the top has two references: too short to be a cell


def test_a_written_index_is_searched_for_unsound_cells_after_it_was_encoded(shelf: Shelf) -> None:
    entries = {f"{n:02x}": "text" * 20 for n in range(256)}
    shelf.keep(Index.of(entries))
    index = shelf.open(Index.of(entries))
    assert isinstance(index, Index)
    grown = index.put("7f", shelf.open(Vector.of(["x" * 200])))
    assert encode(grown)
    assert Holes({value_hash("x" * 200): "bad"}).is_planted(grown)
    assert not Holes({value_hash("y" * 200): "bad"}).is_planted(grown)


def test_cells_encoded_level_by_level_are_those_encoded_from_the_top(shelf: Shelf) -> None:
    entries = {f"{n:03}": "text" * (n % 40) for n in range(300)}
    stored = Index.of(entries)
    shelf.keep(stored)
    for index in (stored, shelf.open(stored)):
        assert isinstance(index, Index)
        key = KeyPair(b"k" * 32)
        grown = Map.of([("slot", Signed.sign(key, index.put("7", "x" * 200).put("001", "y")))])
        encode_levels(grown)
        parts = novelty(grown)
        assert all(value_hash(decode(encoding)) == digest for digest, encoding, _ in parts)
        wanted = Index.of({**entries, "7": "x" * 200, "001": "y"})
        assert value_hash(grown) == value_hash(Map.of([("slot", Signed.sign(key, wanted))]))
    encode_levels("no cell")


def test_levels_with_shared_cells_have_each_cell_once() -> None:
    # 2**200 paths lead to the lowest cell.
    shared: Value = "text" * 100
    for n in range(200):
        shared = Index.of({"a": shared, "b": shared, "n": f"{n:0120}"})
    encode_levels(shared)
    assert len(novelty(shared)) == 201


def test_a_commit_closes_the_path_of_the_one_before(shelf: Shelf) -> None:
    path = OpenCells(shelf)
    below = [Index.of([(f"{n} {m}", "text") for m in range(16)]) for n in range(3)]
    first = Index.of([("a", below[0]), ("b", below[1]), ("c", "x" * 120)])
    commit(first, shelf, path)
    assert first["a"] is below[0]
    second = first.put("b", below[2])
    commit(second, shelf, path)
    assert below[0]._kids is None
    assert second["b"] is below[2]
    assert second["a"] == below[0]
    assert second["a"] is not below[0]


@pytest.mark.parametrize("more", [0, 1])
def test_a_commit_of_many_cells_closes_them_all(shelf: Shelf, more: int) -> None:
    path = OpenCells(shelf)
    below = Index.of([(f"{n:02}", "text") for n in range(16)])
    texts = [f"{n}" * 150 for n in range(OPEN_CELLS_MAX - 6 + more)]
    value = Vector.of([below, *[Vector.of(texts[n : n + 15]) for n in (0, 15, 30, 45)]])
    assert commit(value, shelf, path) == OPEN_CELLS_MAX + more
    assert (below._kids is None) == bool(more)


def test_novelty_stops_at_what_home_already_has(mapping: Map, shelf: Shelf) -> None:
    lazy = as_map(shelf.open(mapping))
    news = novelty(lazy.put("key 1", Vector.of(["x" * 200])), shelf)
    assert value_hash("x" * 200) in {digest for digest, _, _ in news}
    assert len(news) < 10
    elsewhere = Shelf()
    assert len(novelty(lazy, elsewhere)) == len(novelty(mapping))


def test_novelty_leaves_closed_what_home_loads() -> None:
    shelf = Shelf()
    texts = [f"{n}" * 150 for n in range(6)]
    value = Index.of([(f"key {n}", Vector.of([text])) for n, text in enumerate(texts)])
    shelf.keep(value)
    kept = shelf.open(value)
    assert isinstance(kept, Index)
    held = kept["key 1"]  # embedded, and refers to a text
    assert isinstance(held, Vector)
    news = novelty(Vector.of([held, "x" * 150]), shelf)
    assert [encoding for _, encoding, _ in news] == [encode("x" * 150)]
    assert held._kids is None


@pytest.mark.parametrize("size", [CHUNK_BYTES * 5, CHUNK_BYTES * 16, CHUNK_BYTES * 40])
def test_novelty_has_children_before_parents(size: int) -> None:
    data = bytes(i * i % 251 for i in range(size))
    for value in (data, "".join(map(chr, data))[: size // 2], Vector.of([data, 1])):
        met: set[bytes] = set()
        for digest, encoding, _ in novelty(value):
            assert met.issuperset(branch_hashes(encoding))
            met.add(digest)
        assert len(met) > 3


def test_novelty_of_what_is_not_here_says_so(mapping: Map) -> None:
    with pytest.raises(MissingData):
        novelty(decode(encode(mapping)), Shelf())


# --- messages --------------------------------------------------------------------------------


def test_a_message_can_leave_out_what_the_reader_knows(mapping: Map, shelf: Shelf) -> None:
    changed = mapping.put("key 77", "new")
    delta = encode_message(changed, known=shelf.cells.__contains__)
    assert len(delta) < 10_000
    again, parts = decode_parts(delta, shelf)
    assert 0 < len(parts) < 10
    assert as_map(again)["key 77"] == "new"
    assert as_map(again)["key 78"] == 78
    assert value_hash(again) == value_hash(changed)
    assert missing(again) == []
    assert missing(decode_message(delta)) != []


def test_a_message_lists_branches_depth_first_in_order() -> None:
    a, b, c = "a" * 200, "b" * 200, "c" * 200
    inner = Vector.of([b] + ["x" * 100] * 5)
    message = encode_message(Vector.of([a, inner, c, a]))
    places = [message.index(encode(value)) for value in (a, inner, b, c)]
    assert places == sorted(places)
    assert message.count(encode(a)) == 1


def test_a_message_that_would_be_too_long_is_refused(vector: Vector) -> None:
    size = len(encode_message(vector))
    with pytest.raises(LimitExceeded, match="at most 1000 bytes"):
        encode_message(vector, limit=1000)
    assert len(encode_message(vector, limit=2 * size)) == size


def test_parts_keep_what_came_and_look_behind(mapping: Map, shelf: Shelf) -> None:
    value, parts = decode_parts(encode_message(Vector.of(["x" * 200])), shelf)
    assert value_hash("x" * 200) in parts
    assert parts.load(value_hash("x" * 200)) == "x" * 200
    assert same(parts.load(next(iter(branch_hashes(encode(mapping))))), None) is False
    with pytest.raises(MissingData):
        parts.load(bytes(32))
    assert as_vector(value)[0] == "x" * 200


# --- other kinds of cells --------------------------------------------------------------------


def test_a_blob_loads_the_chunks_it_is_read_in() -> None:
    data = bytes(n * 7 & 0xFF for n in range(500_000))
    shelf = Shelf(Blob.of(data))
    lazy = shelf.open(data)
    assert isinstance(lazy, Blob)
    assert len(lazy) == 500_000
    assert lazy[300_000:300_010] == data[300_000:300_010]
    assert lazy[-1] == data[-1]
    assert lazy.read(499_990, 600_000) == data[499_990:]
    assert shelf.loads <= 9
    assert bytes(lazy) == data
    assert lazy == data
    assert lazy != data[1:]
    with pytest.raises(IndexError):
        lazy[500_000]


def test_a_long_text_reads_like_a_string() -> None:
    text = "größer " * 2000
    cell = Text.of(text)
    assert isinstance(cell, Text)
    assert str(cell) == text
    assert len(cell) == len(text)
    assert cell == text
    assert hash(cell) == hash(text)
    assert Text.of("short") == "short"
    assert Map.of([(cell, 1)])[text] == 1
    assert same(cell, text)


def test_a_signed_value_is_verified_without_its_content() -> None:
    pair = KeyPair(bytes(32))
    content = Vector.of(["x" * 60] * 10)
    cell = Signed.sign(pair, content)
    bare = decode(encode(cell))
    assert isinstance(bare, Signed)
    assert bare.verify()
    assert bare.message() == b"\x20" + value_hash(content)
    with pytest.raises(MissingData):
        _ = bare.value
    small = Signed.sign(pair, 5)
    assert small.message() == encode(5)
    wrong = Signed(pair.public_key, small.signature, 6)
    assert not wrong.verify()
    assert not wrong.verify(), "remembered"
    assert not Signed(bytes(32), bytes(64), 6).verify()


def test_only_signatures_that_were_not_made_here_are_verified(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[bytes] = []
    verify = bindings.crypto_sign_open

    def counting(signed: bytes, key: bytes) -> object:
        asked.append(signed[SIGNATURE_BYTES:])
        return verify(signed, key)

    monkeypatch.setattr(bindings, "crypto_sign_open", counting)
    pair, other = KeyPair(bytes(32)), KeyPair(bytes([1]) * 32)
    made = Signed.sign(pair, 7)
    again = decode(encode(made))
    assert isinstance(again, Signed)
    assert again.verify()
    assert asked == []
    # The same signature below another key, or over another value, is another claim.
    assert not Signed(other.public_key, made.signature, 7).verify()
    assert not Signed(pair.public_key, made.signature, 8).verify()
    assert asked == [encode(7), encode(8)]
    # Those made long ago are forgotten, and verified.
    for number in range(tagged.MADE_HERE_MAX):
        encode(Signed.sign(pair, number + 100))
    assert Signed(pair.public_key, made.signature, 7).verify()
    assert asked == [encode(7), encode(8), encode(7)]


def test_a_set_of_missing_cells_is_named_whole() -> None:
    made = Set.of([f"{n:0200d}" for n in range(50)])
    bare = decode(encode(made))
    assert missing(bare) == branch_hashes(encode(made))
    assert missing(bare, limit=2) == branch_hashes(encode(made))[:2]
    assert sorted(validate(bare)) == sorted(missing(bare))


def test_memory_size_counts_every_way_to_a_cell() -> None:
    text = "x" * 200
    assert memory_size(5) == 0
    assert memory_size("short") == 0
    assert memory_size(text) == 200 + 3 + 64
    assert memory_size(Vector.of([text, text])) == 2 * memory_size(text)
    assert memory_size(EMPTY_MAP) == 0


def test_difference_names_what_the_other_side_needs(mapping: Map) -> None:
    changed = mapping.put("key 77", "new")
    parts = list(difference(mapping, changed))
    assert 0 < len(parts) < 10
    assert parts[0][0] == value_hash(changed)
    assert list(difference(mapping, mapping)) == []
    assert len(list(difference(None, mapping))) == len(novelty(mapping))
    assert list(difference(mapping, 5)) == []


def test_an_index_loads_one_path() -> None:
    index = Index.of([(n.to_bytes(4, "big"), "x" * 50) for n in range(5000)])
    shelf = Shelf(index)
    lazy = shelf.open(index)
    assert isinstance(lazy, Index)
    assert lazy[(77).to_bytes(4, "big")] == "x" * 50
    assert lazy.get(b"none") is None
    assert shelf.loads <= 8
    merged = lazy.merge_with(index.put(b"new", 1), lambda _k, a, b, _has, had: b if had else a)
    assert same(merged, index.put(b"new", 1))


def test_a_look_up_and_a_write_leave_the_nodes_of_a_stored_index_closed() -> None:
    plain = Index.of({f"key {n:05d}": f"value {n} " * 12 for n in range(5_000)})
    opened: dict[bytes, Value] = {}

    class Cache(Shelf):
        """A loader that hands out one object a cell."""

        def load(self, hash: bytes) -> Value:
            return opened.setdefault(hash, super().load(hash))

    home = Cache(plain)
    index = home.load(plain.hash)
    assert isinstance(index, Index)
    assert index.get("key 04711") == "value 4711 " * 12
    changed = index.put("key 04711", "new").put_many({"key 00017": "new", "key 03999": "new"})
    assert len(opened) > 10
    # Every open node has an object for each of its children: they would stay in a store's cache.
    assert [node for node in opened.values() if isinstance(node, Index) and node._kids] == []
    assert index.get("key 04711") == "value 4711 " * 12
    leaves = [node for node in opened.values() if isinstance(node, Index) and node._kids]
    assert {len(leaf) for leaf in leaves} <= {1, 10}, "what is read again is opened"
    pairs = dict(plain.entries()) | dict.fromkeys(["key 04711", "key 00017", "key 03999"], "new")
    assert same(changed, Index.of(pairs))


@pytest.mark.parametrize("times", [1, 12], ids=["embedded", "cells"])
def test_keys_that_are_read_again_open_the_nodes_above_them(times: int) -> None:
    plain = Index.of({f"key {n:03d}": f"value {n} " * times for n in range(1_000)})
    opened: dict[bytes, Value] = {}

    class Cache(Shelf):
        """A loader that hands out one object a cell."""

        def load(self, hash: bytes) -> Value:
            return opened.setdefault(hash, super().load(hash))

    def sizes() -> list[int]:
        """Return the sizes of the open nodes above keys."""
        nodes = [node for node in opened.values() if isinstance(node, Index) and node._kids]
        return sorted(len(node) for node in nodes if len(node) > 1)

    home = Cache(plain)
    index = home.load(plain.hash)
    assert isinstance(index, Index)
    for number in range(1_000):
        assert index.get(f"key {number:03d}") == f"value {number} " * times
    assert sizes() == [], "each was read once"
    for wanted in ([10], [10, 100], [10, 100, 1_000], [10, 100, 1_000]):
        assert index.get("key 471") == "value 471 " * times
        assert sizes() == wanted
        above = next(node for node in opened.values() if isinstance(node, Index) and node._kids)
        entry = above.under("key 471")
        assert len(entry) == 1
        assert entry._kids is not None, "the second read opens the entry"


def test_a_write_spares_the_children_that_another_thread_reads() -> None:
    index = Index.of({f"key {n}": n for n in range(10)})
    read = index._open()
    wanted = read[:]
    before = sys.gettrace()

    def trace(frame: FrameType, _event: str, _value: object) -> TraceFunction | None:
        # After the children were read for the write, another thread's commit closes the node.
        if "kids" in frame.f_locals:
            index._kids = None
        return trace if frame.f_code.co_name == "_put" else None

    encode(index)
    sys.settrace(trace)
    try:
        changed = index.put("key 77", 7)
    finally:
        sys.settrace(before)
    assert len(changed) == 11
    assert list(map(id, read)) == list(map(id, wanted))


def test_threads_that_append_to_one_vector_get_vectors_of_their_own() -> None:
    base = EMPTY_VECTOR
    for number in range(512 + 16 + 15):
        base = base.append(number)
    others: list[Vector] = []
    before = sys.gettrace()

    def trace(frame: FrameType, _event: str, _value: object) -> TraceFunction | None:
        # Before each step of the append, another thread appends to the same vector.
        if frame.f_code.co_name not in ("append", "_with_leaf"):
            return None
        others.append(base.append(f"other {len(others)}"))
        return trace

    sys.settrace(trace)
    try:
        own = base.append("own")
    finally:
        sys.settrace(before)
    assert same(own, Vector.of([*range(543), "own"]))
    for number, other in enumerate(others):
        assert same(other, Vector.of([*range(543), f"other {number}"]))


def test_a_child_that_is_something_else_is_found_when_looked_at() -> None:
    vector = Vector.of(["x" * 200] * 33)
    own = set(branch_hashes(encode(vector))) - {value_hash("x" * 200)}
    shelf = Shelf()
    shelf.cells = dict.fromkeys(own, encode(Vector.of(range(40))))
    bare = shelf.open(vector)
    with pytest.raises(BadFormat, match="a vector node is not a vector of 16 elements"):
        as_vector(bare)[0]
    with pytest.raises(BadFormat):
        validate(bare)


@pytest.mark.parametrize("count", [0, 3, 20])
@pytest.mark.parametrize("chunks", [bytes(8_192), "x" * 8_192], ids=["blob", "text"])
def test_a_map_value_in_few_chunks_is_read_through_the_loader(
    count: int, chunks: bytes | str
) -> None:
    """Its top cell is so short that it stands inside the leaf, and refers to its chunks there."""
    made = Map.of([(i, i) for i in range(count)]).put("long", chunks)
    shelf = Shelf(made)
    loaded = shelf.open(made)
    assert isinstance(loaded, Map)
    assert same(loaded["long"], chunks)
    assert same(loaded.put("other", 1)["long"], chunks)
    assert same(loaded.get("long"), Map.of(loaded.entries()).get("long"))


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_messages_are_read_from_any_bytes(kind: Callable[[bytes], bytes], mapping: Map) -> None:
    data = encode_message(Vector.of([b"x" * 10, b"y" * 300, mapping]))
    read = decode_message(kind(data))
    assert isinstance(read, Vector)
    assert [type(item) for item in read] == [bytes, bytes, Map]
    assert encode_message(read) == data


def test_the_difference_enters_nothing_that_both_sides_share() -> None:
    # Bare top cells: whatever is entered has to be loaded.
    whole = Map.of([(f"key {n}", n) for n in range(COUNT)])
    changed = whole.put("key 77", "new")
    shelf = Shelf(whole, changed)
    own, other = shelf.open(whole), shelf.open(changed)
    shelf.loads = 0
    assert len(list(difference(own, other))) <= 5
    assert shelf.loads <= 2 * 5 * 2
    grown = Vector.of(range(COUNT - COUNT % 16))
    longer = grown.extend(["a new element"] * 15)  # what was the top is one level down now
    shelf = Shelf(grown, longer)
    own, other = shelf.open(grown), shelf.open(longer)
    shelf.loads = 0
    assert [cell for _, _, cell in difference(own, other)] == [longer]
    assert shelf.loads <= 32
