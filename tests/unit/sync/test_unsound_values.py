"""Foreign values that are malformed across cells cost their own part, on every node they reach."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from datalattice.apps.kv import Database
from datalattice.apps.queue import Topics
from datalattice.cells import (
    Index,
    Keyword,
    Map,
    MessageCells,
    Signed,
    Value,
    Vector,
    decode,
    decode_parts,
    encode,
    encode_message,
    references,
    same,
    skip_kid,
    value_hash,
)
from datalattice.crypto import KeyPair
from datalattice.lattice import (
    EMPTY_CONTEXT,
    Lattice,
    MapLattice,
    MaxLattice,
    MergeContext,
    get_in,
    root_lattice,
)
from datalattice.store import MemoryStore
from datalattice.sync import Absorbed, LatticeReplica, Offer, Part, Peer, Probe
from datalattice.sync.lattice.absorption import UNSOUND_CELLS, VALUE_REFUSED
from datalattice.sync.lattice.incoming import Incoming
from datalattice.testing.malformed import cells_of, value_from_cells, with_cell

KV, DATA = Keyword("kv"), Keyword("data")
KEYS = [KeyPair(bytes([n]) * 32) for n in range(50)]
STRANGER = KeyPair(b"s" * 32)
LONG = "x" * 150


def entries(mark: str) -> Index:
    return Index.of([(f"k{n:02}", Vector.of((mark * 90 + str(n), 0, 5, None))) for n in range(60)])


def malformed(value: Value) -> Value:
    """Return a value with a Blob in the place of its first child."""
    top, below = cells_of(value)
    blob = b"b" * 200
    below[value_hash(blob)] = encode(blob)
    return value_from_cells(*with_cell(top, below, references(top)[0], encode(blob)))


def slot(key: KeyPair, value: Value) -> Signed:
    return Signed.sign(key, Map.of([("db", value)]))


def databases(slots: dict[KeyPair, Value]) -> Index:
    return Index.of([(KV, Map.of([(key.public_key, value) for key, value in slots.items()]))])


def offer(value: Value, path: Sequence[Value] = ()) -> Offer:
    found, parts = decode_parts(encode_message(value), ordered=False)
    return Offer(Probe(value_hash(found), Incoming(tuple(path), found, parts)))


def replica(key: KeyPair = KEYS[0]) -> LatticeReplica:
    return LatticeReplica(MemoryStore(), root_lattice(), MergeContext(key_pair=key))


def kinds(absorbed: Absorbed) -> dict[str, int]:
    return {one.kind: one.count for one in absorbed.reports}


def in_slot(node: LatticeReplica, key: KeyPair) -> Value:
    return get_in(node.announced, [KV, key.public_key])


def fetch(target: LatticeReplica, source: LatticeReplica | Relay) -> list[Absorbed]:
    """Have `target` learn of the root of `source` by its hash, and fetch what it lacks."""
    hash = source.announced_hash
    supply = source.supply if isinstance(source, Relay) else source.views.supply
    probe = Probe(hash, Incoming((), None, MessageCells(None), hash))
    steps = [target.absorb(Offer(probe), Peer("peer"))]
    while steps[-1].missing:
        parts = supply(steps[-1].missing)
        here = tuple(part for part in parts if part is not None)
        assert here
        steps.append(target.absorb(Offer(None, here), Peer("peer")))
    return steps


class Relay:
    """A node that stores and hands on anything."""

    def __init__(self, root: Value) -> None:
        top, self._cells = cells_of(root)
        self.announced_hash = value_hash(root)
        self._cells[self.announced_hash] = top

    def supply(self, want: Sequence[bytes]) -> list[Part | None]:
        return [Part(hash, self._cells[hash]) if hash in self._cells else None for hash in want]


def test_a_malformed_slot_does_not_keep_honest_data_of_two_nodes_apart() -> None:
    one, two = replica(KEYS[0]), replica(KEYS[1])
    bad = offer(databases({STRANGER: slot(STRANGER, malformed(entries("m")))}))
    good = offer(databases({STRANGER: slot(STRANGER, entries("g"))}))
    absorbed = one.absorb(bad, Peer("stranger"))
    assert kinds(absorbed) == {"unsound-cells": 1, "malformed": 1}
    assert two.absorb(good, Peer("stranger")).changed
    for node, key in ((one, KEYS[0]), (two, KEYS[1])):
        Topics.at(node.cursor, key.public_key).partition("log", 0).offer("mine")
        node.publish()
    fetch(one, two)
    fetch(two, one)
    assert same(one.announced, two.announced)
    for node in (one, two):
        for key in KEYS[:2]:
            assert list(Topics.at(node.cursor, key.public_key).partition("log", 0)) == ["mine"]


@pytest.mark.parametrize("has_own", [False, True], ids=["nothing of it yet", "own slots"])
@pytest.mark.parametrize("way", ["whole", "fetched from a relay"])
def test_one_malformed_slot_among_fifty_costs_that_slot(way: str, has_own: bool) -> None:
    slots: dict[KeyPair, Value] = {key: slot(key, entries("g")) for key in KEYS}
    bad = slots[KEYS[7]] = slot(KEYS[7], malformed(entries("m")))
    root = databases(slots)
    node = replica(STRANGER)
    own = slot(KEYS[7], entries("o"))
    if has_own:
        node.absorb(offer(databases({KEYS[7]: own})), Peer("peer"))
    before = node.announced_hash
    steps = [node.absorb(offer(root), Peer("peer"))] if way == "whole" else fetch(node, Relay(root))
    last = steps[-1]
    assert last.changed
    assert node.announced_hash != before
    for key in KEYS:
        wanted = slots[key] if key is not KEYS[7] else (own if has_own else None)
        assert same(in_slot(node, key), wanted)
    assert last.ended == [("peer", False)]
    assert last.holds == []
    for hash in (value_hash(bad), value_hash(bad.value)):
        assert not node.store.has(hash)


def test_a_malformed_content_store_costs_its_section_and_a_value_its_entry() -> None:
    content = Index.of([(value_hash(value), value) for value in (LONG + str(n) for n in range(60))])
    node = replica()
    root = Index.of(
        [(DATA, malformed(content)), (KV, Map.of([(KEYS[1].public_key, slot(KEYS[1], 1))]))]
    )
    absorbed = node.absorb(offer(root), Peer("peer"))
    assert kinds(absorbed)["section-dropped"] == 1
    assert in_slot(node, KEYS[1]) is not None
    bad = malformed(entries("m"))
    mixed = Index.of([*content.entries(), (value_hash(bad), bad)])
    absorbed = node.absorb(offer(mixed, (DATA,)), Peer("peer"))
    assert absorbed.changed
    assert same(get_in(node.announced, [DATA]), content)
    assert kinds(absorbed)["malformed"] == 1


def test_map_keys_out_of_order_are_found_though_a_message_is_read_without_hashing_them() -> None:
    pairs = [(n, LONG) for n in range(10)]
    good = Map.of(pairs)
    encoding = encode(good)
    assert len(encoding) > 140
    first = skip_kid(encoding, skip_kid(encoding, 2))
    second = skip_kid(encoding, skip_kid(encoding, first))
    unordered = encoding[:2] + encoding[first:second] + encoding[2:first] + encoding[second:]
    top, below = cells_of(Vector.of([good]))
    value = value_of_unordered(top, below, value_hash(good), unordered)
    node = replica()
    absorbed = node.absorb(offer(Index.of([(value_hash(value), value)]), (DATA,)), Peer("peer"))
    assert get_in(node.announced, [DATA, value_hash(value)]) is None
    assert kinds(absorbed) == {UNSOUND_CELLS: 1, "malformed": 1}


def value_of_unordered(top: bytes, below: dict[bytes, bytes], old: bytes, new: bytes) -> Value:
    """Return a value with a cell that `decode` would refuse."""
    changed, cells = with_cell(top, below, old, new)
    parts = MessageCells(None)
    parts.add(list(cells.values()))
    return decode(changed, parts)


class TakesOther(Lattice):
    """A merge that takes what the other side has, whatever it is."""

    def merge(self, own: Value, other: Value, context: MergeContext = EMPTY_CONTEXT) -> Value:
        return other

    def check_foreign(self, value: Value) -> bool:
        return True


def test_no_merge_can_plant_a_hole() -> None:
    node = LatticeReplica(MemoryStore(), TakesOther())
    assert node.absorb(offer(Vector.of([LONG])), Peer("peer")).changed
    before = node.announced_hash
    bad = malformed(entries("m"))
    for value in (bad, Vector.of([bad, LONG]), Vector.of([Vector.of([bad])])):
        absorbed = node.absorb(offer(value), Peer("peer"))
        assert not absorbed.changed
        assert VALUE_REFUSED in kinds(absorbed)
        assert absorbed.ended == [("peer", False)]
        assert node.announced_hash == before
    assert node.absorb(offer(Vector.of([LONG, LONG])), Peer("peer")).ended == [("peer", True)]


def test_a_root_that_is_malformed_itself_is_refused() -> None:
    node = LatticeReplica(MemoryStore(), MapLattice(MaxLattice()))
    numbers = Map.of([(f"{LONG}{n}", n) for n in range(60)])
    assert node.absorb(offer(numbers), Peer("peer")).changed
    before = node.announced_hash
    absorbed = node.absorb(offer(malformed(numbers)), Peer("peer"))
    assert VALUE_REFUSED in kinds(absorbed)
    assert node.announced_hash == before


def test_what_was_found_unsound_once_is_not_asked_for_again() -> None:
    root = databases({STRANGER: slot(STRANGER, malformed(entries("m"))), KEYS[1]: slot(KEYS[1], 1)})
    node, relay = replica(), Relay(root)
    first = fetch(node, relay)
    again = fetch(node, relay)
    asked = [hash for step in again for hash in step.missing]
    assert len(asked) < sum(len(step.missing) for step in first)
    assert UNSOUND_CELLS in kinds(first[-1])
    assert UNSOUND_CELLS not in kinds(again[-1])
    assert again[-1].ended == [("peer", False)]


def test_own_poison_gives_way_to_a_sound_slot_of_the_owner() -> None:
    """A store that was poisoned before cells were checked."""
    store = MemoryStore()
    poison = databases({STRANGER: slot(STRANGER, malformed(entries("m")))})
    store.commit(poison)
    node = LatticeReplica(store, root_lattice(), MergeContext(key_pair=KEYS[0]))
    Database.at(node.cursor, KEYS[0].public_key, "db").update({"a": 1})
    node.publish()
    good = slot(STRANGER, entries("g"))
    absorbed = node.absorb(
        offer(databases({STRANGER: good, KEYS[1]: slot(KEYS[1], 1)})), Peer("peer")
    )
    assert absorbed.changed
    assert kinds(absorbed) == {"own-malformed": 1}
    assert same(in_slot(node, STRANGER), good)
    assert in_slot(node, KEYS[1]) is not None
