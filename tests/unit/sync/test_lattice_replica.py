"""The cursor of a replica decides about owners as the replica does, and what peers are told."""

from __future__ import annotations

from datalattice.apps.queue import LatticeMQ
from datalattice.cells import Map, value_hash
from datalattice.crypto import KeyPair
from datalattice.lattice import MapLattice, MaxLattice, MergeContext, did_of, root_lattice
from datalattice.store import MemoryStore
from datalattice.sync import LatticeReplica, Probe

KEYS = KeyPair(b"k" * 32)


def test_an_owner_named_by_did_keeps_the_writes_of_a_fork_and_of_its_parent() -> None:
    replica = LatticeReplica(MemoryStore(), root_lattice(), MergeContext(key_pair=KEYS))
    owner = did_of(KEYS.public_key)
    fork = replica.cursor.fork()
    LatticeMQ.at(fork, owner).partition("mine", 0).offer("in the fork")
    LatticeMQ.at(replica.cursor, owner).partition("other", 0).offer("in the parent")
    fork.sync()
    replica.publish()
    queues = LatticeMQ.at(replica.cursor, owner)
    assert list(queues.partition("mine", 0)) == ["in the fork"]
    assert list(queues.partition("other", 0)) == ["in the parent"]


def test_a_change_is_told_against_what_a_new_peer_was_given_not_its_beginning() -> None:
    lattice = MapLattice(MaxLattice())
    replica = LatticeReplica(MemoryStore(), lattice)
    zero = Probe(value_hash(lattice.zero()), lattice.zero())
    replica.cursor.set(Map.of([(f"key {number}", number) for number in range(1_000)]))
    given = replica.publish().probe
    replica.cursor.path("key 5").set(9_999)
    replica.publish()
    offer = replica.answer((zero, given), "peer")
    assert offer is not None
    assert offer.base is given
