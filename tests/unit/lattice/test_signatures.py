"""Signatures: the slots of signers that differ between two roots, and the rest by section."""

from __future__ import annotations

from datalattice.cells import Index, Keyword, Map, Signed, Value, Vector
from datalattice.crypto import KeyPair
from datalattice.lattice import slot_changes

ONE, TWO = KeyPair(bytes([1]) * 32), KeyPair(bytes([2]) * 32)
QUEUE, DATA, P2P, NODES = (Keyword(name) for name in ("queue", "data", "p2p", "nodes"))


def signed(keys: KeyPair, number: int) -> Signed:
    return Signed.sign(keys, Vector.of([number]))


def root(one: int, two: int | None = None, **more: Value) -> Index:
    slots: list[tuple[Value, Value]] = [(ONE.public_key, signed(ONE, one))]
    if two is not None:
        slots.append((TWO.public_key, signed(TWO, two)))
    sections = [(Keyword(name), value) for name, value in more.items()]
    return Index.of([(QUEUE, Map.of(slots)), *sections])


def paths(before: Value, after: Value) -> list[tuple[Value, ...]]:
    return [path for path, _, _ in slot_changes(before, after)]


def test_only_slots_that_differ_are_named() -> None:
    assert list(slot_changes(root(1, 1), root(1, 1))) == []
    ((path, mine, theirs),) = slot_changes(root(1, 1), root(1, 2))
    assert path == (QUEUE, TWO.public_key)
    assert (mine, theirs) == (signed(TWO, 1), signed(TWO, 2))


def test_what_is_new_or_gone_is_named_slot_by_slot() -> None:
    wanted = {(QUEUE, ONE.public_key), (QUEUE, TWO.public_key)}
    assert set(paths(None, root(1, 1))) == set(paths(root(1, 1), None)) == wanted
    ((path, mine, theirs),) = slot_changes(root(1, 1), root(1))
    assert (path, mine, theirs) == ((QUEUE, TWO.public_key), signed(TWO, 1), None)


def test_slots_with_three_keys_are_found() -> None:
    p2p = Map.of([(NODES, Map.of([(ONE.public_key, signed(ONE, 1))]))])
    assert paths(root(1), root(1, p2p=p2p)) == [(P2P, NODES, ONE.public_key)]


def test_what_nobody_signed_is_one_change_of_its_section() -> None:
    before = root(1, data=Map.of([(bytes(32), "a"), (bytes([1]) * 32, "b")]))
    after = root(2, data=Map.of([(bytes(32), "c")]))
    assert set(paths(before, after)) == {(QUEUE, ONE.public_key), (DATA,)}
    assert paths(Vector.of([1]), Vector.of([2])) == []


def test_a_section_that_becomes_an_index_loses_its_slots_and_has_new_ones() -> None:
    before = Index.of([(QUEUE, Map.of([(ONE.public_key, signed(ONE, 1))]))])
    after = Index.of([(QUEUE, Index.of([(TWO.public_key, signed(TWO, 1))]))])
    gone = ((QUEUE, ONE.public_key), signed(ONE, 1), None)
    come = ((QUEUE, TWO.public_key), None, signed(TWO, 1))
    assert list(slot_changes(before, after)) == [gone, come]
    assert [path for path, _, _ in slot_changes(after, before)] == [gone[0], come[0]]
