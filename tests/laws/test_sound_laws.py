"""Laws of soundness: `check_cell` one level at a time says what rebuilding the whole value says."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given, strategies as st

from datalattice.cells import (
    Address,
    Blob,
    Fact,
    Facts,
    Index,
    Keyword,
    KnownFacts,
    List,
    Map,
    Record,
    Set,
    Text,
    Value,
    Vector,
    check_cell,
    decode,
    encode,
    learn_cell,
    learn_cells,
    missing,
    novelty,
    references,
    validate,
    value_hash,
)
from datalattice.crypto import sha3_256
from datalattice.errors import BadFormat, MissingData
from datalattice.testing.dice import Dice
from datalattice.testing.malformed import cells_of, mutated, value_from_cells, with_cell
from datalattice.testing.strategies import pattern_bytes, values

LONG = "x" * 150


def maps(count: int) -> Map:
    return Map.of([(n, LONG) for n in range(count)])


def sets(count: int) -> Set:
    return Set.of([f"{LONG}{n}" for n in range(count)])


def indexes(count: int) -> Index:
    return Index.of([(f"key-{n:05}", LONG) for n in range(count)])


def vectors(count: int) -> Vector:
    return Vector.of([f"{LONG}{n}" for n in range(count)])


MAKERS: list[Callable[[], Value]] = [
    lambda: maps(60),
    lambda: Map.of([(n, Map.of([(1, 2), (3, 4), ("five", n)])) for n in range(20)]),
    lambda: sets(60),
    lambda: indexes(60),
    lambda: Index.of([(pattern_bytes(n % 7, n), n) for n in range(90)]),
    lambda: Index.of([(f"{n}{LONG}", n) for n in range(40)]),
    lambda: Index.of([(key, 1) for key in (b"a" * 5000, b"a" * 20, Keyword("a"), Address(7))]),
    lambda: Vector.of(range(700)),
    lambda: List.of(range(100)),
    lambda: Record(1, range(40)),
    lambda: Blob.of(pattern_bytes(5000)),
    lambda: Blob.of(pattern_bytes(70_000)),
    lambda: Text.of("y" * 70_000),
]
STRANGERS = {
    hash: encoding for make in MAKERS for hash, encoding, _ in novelty(make()) if hash[0] < 32
}


class NoFacts(Facts):
    def of(self, hash: bytes) -> Fact:
        raise MissingData([hash])


def rebuilt(value: Value) -> Value:
    """Return the value that has the content of `value`, made by its own kind's builder."""
    if isinstance(value, Map):
        return Map.of([(rebuilt(key), rebuilt(below)) for key, below in value.entries()])
    if isinstance(value, Set):
        return Set.of([rebuilt(item) for item in value])
    if isinstance(value, Index):
        return Index.of([(rebuilt(key), rebuilt(below)) for key, below in value.entries()])
    if isinstance(value, Vector):
        return Vector.of([rebuilt(item) for item in value])
    if isinstance(value, List):
        return List.of([rebuilt(item) for item in value])
    if isinstance(value, Record):
        return Record(value.digit, [rebuilt(item) for item in value])
    if isinstance(value, (Blob, Text)):
        data = bytes(value)
        return (
            Blob.of(data)
            if isinstance(value, Blob)
            else Text.of(data.decode("utf-8", "surrogateescape"))
        )
    return value


def is_canonical(value: Value) -> bool:
    try:
        return value_hash(rebuilt(value)) == value_hash(value)
    except BadFormat:
        return False


def verdict(check: Callable[[], object]) -> bool:
    try:
        check()
    except BadFormat:
        return False
    return True


def names_short(value: Value) -> bool:
    """Return whether a cell refers to one that belongs inside its parent."""
    return any(len(encoding) <= 140 for encoding in cells_of(value)[1].values())


def in_post_order(top: bytes, below: dict[bytes, bytes], dice: random.Random) -> list[bytes]:
    """Return the encodings of some order in which every cell comes after those below it."""
    found: dict[bytes, None] = {}

    def visit(encoding: bytes) -> None:
        refs = references(encoding)
        dice.shuffle(refs)
        for ref in refs:
            if below[ref] not in found:
                visit(below[ref])
        found[encoding] = None

    visit(top)
    return list(found)


def check_together(value: Value, dice: random.Random) -> None:
    """Check the cells of a value as one message brings them: children first, in one go."""
    top, below = cells_of(value)
    cells = [(sha3_256(one), one) for one in in_post_order(top, below, dice)]
    facts = KnownFacts({**below, sha3_256(top): top}.get)
    sound = learn_cells(cells, facts)
    for _, encoding in cells[sound : sound + 1]:
        check_cell(encoding, facts)
        raise AssertionError("a cell that was passed over is sound")


def check_one_by_one(value: Value, dice: random.Random, facts_max: int) -> None:
    """Check the cells of a value as a claim does: children first, each once."""
    top, below = cells_of(value)
    stored: dict[bytes, bytes] = {}
    facts = KnownFacts(stored.get, facts_max)
    short = {hash for hash, encoding in below.items() if len(encoding) <= 140}
    for encoding in in_post_order(top, below, dice):
        facts.add(sha3_256(encoding), check_cell(encoding, facts, short))
        stored[sha3_256(encoding)] = encoding
        facts.trim()


@pytest.mark.parametrize("maker", range(len(MAKERS)))
def test_mutated_values_are_sound_exactly_when_rebuilding_them_changes_nothing(maker: int) -> None:
    dice = Dice(maker)
    value = MAKERS[maker]()
    assert verdict(lambda: validate(value))
    unsound = 0
    for _ in range(80):
        other = mutated(value, dice, STRANGERS)
        if missing(other):
            continue
        is_sound = verdict(partial(validate, other))
        assert is_sound == is_canonical(other)
        for facts_max in (0, 10_000):
            order = random.Random(maker)
            assert is_sound == verdict(partial(check_one_by_one, other, order, facts_max))
        if not names_short(other):
            assert is_sound == verdict(partial(check_together, other, random.Random(maker)))
        unsound += not is_sound
    assert unsound


@given(values(), st.randoms(use_true_random=False), st.sampled_from([0, 1, 1000]))
def test_every_value_is_sound_in_any_order_of_its_cells(
    value: Value, dice: random.Random, facts_max: int
) -> None:
    assert validate(value) == []
    check_one_by_one(value, dice, facts_max)


# --- the rules, one by one ----------------------------------------------------------------------


def swapped(value: Value, old: Value, new: Value) -> Value:
    """Return a value in which one cell stands where another one stood."""
    top, below = cells_of(value)
    _, more = cells_of(new)
    top, below = with_cell(top, {**below, **more}, value_hash(old), encode(new))
    return value_from_cells(top, below | more)


def child(value: Value, *path: int) -> Value:
    """Return the cell that references in turn lead to."""
    top, below = cells_of(value)
    for position in path:
        top = below[references(top)[position]]
    return value_from_cells(top, below)


def with_bytes(value: Value, old: bytes, new: bytes) -> Value:
    """Return a value whose top cell has other bytes."""
    top, below = cells_of(value)
    assert top.count(old) == 1
    return value_from_cells(top.replace(old, new), below)


def swapped_children(value: Value) -> Value:
    top, below = cells_of(value)
    first, second = references(top)[:2]
    top = top.replace(first, bytes(32)).replace(second, first).replace(bytes(32), second)
    return value_from_cells(top, below)


MAP = maps(60)
SET = sets(60)
INDEX = Index.of([(bytes([digit, n]), LONG) for digit in (0x10, 0x20, 0x30) for n in range(9)])
PREFIX = Index.of([(b"ab", LONG), (b"abc", LONG), (b"abd", LONG)])
ILLEGAL: dict[str, Callable[[], Value]] = {
    "a map child of another kind": lambda: swapped(MAP, child(MAP, 0), "a stranger" * 30),
    "a set in a map": lambda: swapped(MAP, child(MAP, 0), child(SET, 0)),
    "map children in each other's place": lambda: swapped_children(MAP),
    "set children in each other's place": lambda: swapped_children(SET),
    "a map that counts wrongly": lambda: with_bytes(MAP, b"\x82\x3c", b"\x82\x3d"),
    "a child with a key less": lambda: swapped(MAP, child(MAP, 0), first_removed(child(MAP, 0))),
    "a map whose keys share less than it says": lambda: with_bytes(
        MAP, b"\x82\x3c\x00", b"\x82\x3c\x01"
    ),
    "an index child of another kind": lambda: swapped(INDEX, child(INDEX, 0), b"a blob" * 30),
    "index children in each other's place": lambda: swapped_children(INDEX),
    "an index that counts wrongly": lambda: with_bytes(INDEX, b"\x84\x1b", b"\x84\x1c"),
    "an entry that does not end at the depth": lambda: with_bytes(
        PREFIX, b"\x31\x02ab", b"\x31\x01a"
    ),
    "an entry that its children do not begin with": lambda: with_bytes(
        PREFIX, b"\x31\x02ab", b"\x31\x02ac"
    ),
    "an index node deeper than its keys part": lambda: with_bytes(
        INDEX, b"\x84\x1b\x00\x00", b"\x84\x1b\x00\x02"
    ),
    "an index key that is a vector": lambda: swapped(
        Index.of([("k" * 200, 1)]), "k" * 200, vectors(3)
    ),
    "a vector whose prefix is shorter": lambda: swapped(
        Vector.of([LONG] * 17), Vector.of([LONG] * 16), Vector.of([LONG] * 15)
    ),
    "a vector whose child is a list": lambda: swapped(
        Vector.of([LONG] * 32), Vector.of([LONG] * 16), List.of([LONG] * 16)
    ),
    "a blob whose chunk is a string": lambda: swapped(
        Blob.of(bytes(8192)), bytes(4096), "\0" * 4096
    ),
    "a blob whose chunk is shorter": lambda: swapped(
        Blob.of(bytes(8192)), bytes(4096), bytes(4095)
    ),
    "a string whose chunk is longer": lambda: swapped(Text.of("a" * 4296), b"a" * 200, b"a" * 201),
    "a short cell by its hash": lambda: swapped(Vector.of([LONG]), LONG, "short"),
}


def first_removed(value: Value) -> Value:
    assert isinstance(value, Map)
    return value.remove(next(iter(value)))


@pytest.mark.parametrize("name", ILLEGAL)
def test_an_illegal_pair_of_cells_is_refused(name: str) -> None:
    value = ILLEGAL[name]()
    for encoding in (encode(value), *cells_of(value)[1].values()):
        decode(encoding)  # each by itself is well formed
    with pytest.raises(BadFormat):
        validate(value)
    with pytest.raises(BadFormat):
        check_one_by_one(value, random.Random(1), 1000)


@pytest.mark.parametrize("value", [MAP, SET, INDEX, PREFIX, vectors(17), vectors(32)], ids=repr)
def test_a_legal_pair_of_cells_is_sound(value: Value) -> None:
    assert validate(value) == []
    check_one_by_one(value, random.Random(1), 1000)


def test_what_is_no_structure_may_be_of_any_kind() -> None:
    for value in (
        Vector.of([LONG, MAP, INDEX]),
        Map.of([(LONG, MAP)]),
        Map.of([(MAP, LONG)]),
        Index.of([(LONG, SET)]),
        Set.of([INDEX, vectors(20)]),
    ):
        assert validate(value) == []
        check_cell(encode(value), KnownFacts(cells_of(value)[1].get))


def test_the_keys_of_an_embedded_map_are_in_order() -> None:
    good = encode(Vector.of([Map.of([(1, 2), (3, 4)])]))
    pairs = good[4:8], good[8:]
    bad = good[:4] + pairs[1] + pairs[0]
    check_cell(good, NoFacts())
    with pytest.raises(BadFormat, match="order"):
        check_cell(bad, NoFacts())
    with pytest.raises(BadFormat, match="order"):
        decode(bad)


def test_a_child_that_is_not_here_is_missing_and_a_visible_fault_beside_it_is_told() -> None:
    top, below = cells_of(INDEX)
    gone, kept = references(top)[0], references(top)[1]
    some = KnownFacts({hash: cell for hash, cell in below.items() if hash != gone}.get)
    with pytest.raises(MissingData) as caught:
        check_cell(top, some)
    assert gone in caught.value.hashes
    stranger = encode(MAP)
    bad = top.replace(kept, sha3_256(stranger))
    shelf = {**below, **cells_of(MAP)[1], sha3_256(stranger): stranger}
    del shelf[gone]
    with pytest.raises(BadFormat):
        check_cell(bad, KnownFacts(shelf.get))


def test_facts_are_remembered_up_to_their_bound_and_read_again_from_what_is_stored() -> None:
    top, below = cells_of(maps(400))
    reads: list[bytes] = []

    def load(hash: bytes) -> bytes | None:
        reads.append(hash)
        return below.get(hash)

    facts = KnownFacts(load, 6)
    check_cell(top, facts)
    assert len(facts) > 6
    facts.trim()
    assert len(facts) == 3
    facts.trim()
    assert len(facts) == 3
    before = len(reads)
    check_cell(top, facts)
    assert len(reads) > before
    before = len(reads)
    check_cell(top, facts)
    assert len(reads) == before


@pytest.mark.parametrize("value", [Map.of([(1, 2), (3, 4)]), Set.of([1, 2]), Set.of([5, 6, 7])])
@pytest.mark.parametrize("levels", [1, 2, 3])
def test_a_map_or_set_in_a_leaf_has_its_keys_in_order(value: Value, levels: int) -> None:
    encoding = encode(value)
    size = (len(encoding) - 2) // encoding[1]
    facts = KnownFacts(dict[bytes, bytes]().get)
    for key in (encoding[2 : 2 + size], encoding[-size:]):
        leaf = encoding[:2] + key + encoding[2 + size : -size] + encoding[2 : 2 + size]
        for _ in range(levels - 1):
            leaf = b"\x80\x01" + leaf
        cell = b"\x80\x03" + leaf + 2 * encode(LONG[:100])
        with pytest.raises(BadFormat, match="not in strictly increasing order"):
            learn_cell(sha3_256(cell), cell, facts)
        assert learn_cells([(sha3_256(cell), cell)], facts) == 0


def test_leaves_cost_no_fact_however_many_there_are() -> None:
    records = Vector.of([f"{LONG}{n}" for n in range(16)])
    blob = b"x" * 4_000
    mixed = Vector.of([1, LONG, blob, Vector.of([2, "short"])])
    leaves = [encode(value) for value in (LONG, blob, records, mixed)]
    facts = KnownFacts(dict[bytes, bytes]().get)
    assert learn_cells([(sha3_256(leaf), leaf) for leaf in leaves], facts) == len(leaves)
    assert not len(facts)
    top, below = cells_of(vectors(16_000))
    facts = KnownFacts(below.get)
    cells = [(sha3_256(one), one) for one in in_post_order(top, below, random.Random(1))]
    assert learn_cells(cells, facts) == len(cells) == 17_068
    # One for each node above the leaves.
    assert len(facts) == 68
