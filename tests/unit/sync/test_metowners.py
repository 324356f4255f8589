"""DIDs of owners that are met in a root: kept up by what changes, however many owners there are."""

from __future__ import annotations

import pytest

from datalattice.cells import EMPTY_MAP, Index, Keyword, Map, Signed, Value
from datalattice.clock import SystemClock
from datalattice.crypto import KeyPair
from datalattice.lattice import MergeContext, assoc_in, did_of, root_lattice
from datalattice.store import MemoryStore
from datalattice.sync import LatticeProtocol, LatticeReplica, Replicator
from datalattice.sync.lattice.handover import DIDS_MAX, MetOwners
from datalattice.testing.steps import steps_of
from datalattice.wire import encode_ping

PATH = (Keyword("grid"), Keyword("venues"))
KEY = KeyPair(b"k" * 32)
SLOT = Signed.sign(KEY, EMPTY_MAP)


def root(owners: Map | Index) -> Value:
    return assoc_in(None, PATH, owners, root_lattice())


def crowd(count: int) -> Index:
    return Index.of([(f"did:web:{n}.example", SLOT) for n in range(count)])


def test_dids_that_keys_here_may_sign_for_are_named_once_and_in_any_root_after() -> None:
    signed = {"did:web:mine.example"}
    met = MetOwners([PATH], signed.__contains__)
    assert met.ours(None) == []
    others = [("did:web:other.example", SLOT), (did_of(KEY.public_key), SLOT), ("no did", SLOT)]
    owners = Index.of(others).put("did:web:mine.example", SLOT)
    assert met.ours(root(owners)) == met.ours(root(owners)) == ["did:web:mine.example"]
    signed.add("did:web:other.example")  # a document came that names a key of this node
    assert set(met.ours(root(owners))) == signed
    signed.discard("did:web:mine.example")
    assert met.ours(root(owners)) == ["did:web:other.example"]


@pytest.mark.parametrize("count", [DIDS_MAX - 1, DIDS_MAX, DIDS_MAX + 1])
def test_so_many_are_named_at_most(count: int) -> None:
    met = MetOwners([PATH], lambda _: True)
    owners = root(crowd(count))
    met.ours(owners)
    assert len(met.ours(owners)) == min(count, DIDS_MAX)


def test_of_more_than_are_looked_at_each_has_its_turn() -> None:
    met = MetOwners([PATH], lambda did: did == "did:web:99.example")
    owners = root(crowd(3 * DIDS_MAX))
    assert [met.ours(owners) for _ in range(3)][-1] == ["did:web:99.example"]


def test_a_look_costs_what_changed_among_many_owners_as_among_few() -> None:
    costs = []
    for count in (2 * DIDS_MAX, 20 * DIDS_MAX):
        met, owners = MetOwners([PATH], lambda _: False), crowd(count)
        met.ours(root(owners))
        same = steps_of(lambda: met.ours(root(owners)))  # noqa: B023
        grown = root(owners.put("did:web:new.example", SLOT))
        costs.append((same, steps_of(lambda: met.ours(grown))))  # noqa: B023
    (few_same, few_grown), (many_same, many_grown) = costs
    assert many_same == few_same
    assert many_grown < 2 * few_grown


def test_a_peer_that_greets_again_and_again_is_asked_for_branches_once() -> None:
    replica = LatticeReplica(MemoryStore(), root_lattice(), MergeContext(key_pair=KEY))
    protocol = LatticeProtocol(SystemClock())
    node = Replicator(replica, protocol)
    node.open("peer", 0, outbound=False)
    asked = []
    for id in range(1, 4):
        node.receive("peer", encode_ping(id, Keyword("PEER"), Keyword("LP")), id)
        asked.append(len(node.take_effects().sends))
    assert asked[0] > asked[1] == asked[2] == 1  # the answer to the greeting
