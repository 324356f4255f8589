"""Branches that only third parties keep reach the owner's nodes, which join them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from datalattice.apps.kv import Database
from datalattice.apps.queue import Topics
from datalattice.cells import (
    EMPTY_VECTOR,
    Keyword,
    MessageCells,
    Signed,
    Value,
    Vector,
    decode,
    decode_message,
    encode_message,
    same,
    value_hash,
)
from datalattice.crypto import KeyPair, KeyRing
from datalattice.cursors import RootLattice
from datalattice.lattice import MergeContext, did_of, get_in, root_lattice, verify_did
from datalattice.store import MemoryStore, Store
from datalattice.sync import (
    LatticeProtocol,
    LatticeReplica,
    Offer,
    Pace,
    Part,
    Peer,
    Probe,
    Replicator,
)
from datalattice.sync.lattice.forkrecords import FORKS_KEY
from datalattice.sync.lattice.handover import OWNERS_ASKED_MAX, fork_queries, one_handed
from datalattice.sync.lattice.incoming import Incoming, Lookup, LookupResult
from datalattice.testing.clocks import StoppedClock
from datalattice.testing.malformed import cells_of

Verifier = Callable[[Value, bytes], bool]

OWNER, RELAY, DEVICE = KeyPair(b"o" * 32), KeyPair(b"r" * 32), KeyPair(b"d" * 32)
SLOT = (Keyword("kv"), OWNER.public_key)
ROUND_MS = Pace().root_sync_interval_ms


class Net:
    """Nodes and the frames between them."""

    def __init__(self) -> None:
        self.nodes: dict[str, Replicator] = {}
        self.now = 0

    def add(self, name: str, replica: LatticeReplica) -> LatticeReplica:
        self.nodes[name] = Replicator(replica, LatticeProtocol(StoppedClock(9_000)))
        return replica

    def link(self, a: str, b: str) -> None:
        self.nodes[b].open(a, self.now, outbound=False)
        self.nodes[a].open(b, self.now, outbound=True)
        self.settle()

    def settle(self) -> None:
        """Deliver frames until there are none, windows of the pace included."""
        quiet = 0
        while quiet < 3:
            frames = [
                (name, peer, payload)
                for name, node in self.nodes.items()
                for peer, payload in node.take_effects().sends
            ]
            for name, peer, payload in frames:
                self.nodes[name].written(peer, 1, self.now)
                self.nodes[peer].receive(name, payload, self.now)
            quiet = 0 if frames else quiet + 1
            if not frames:
                self.now += 60
                for node in self.nodes.values():
                    node.tick(self.now)

    def next_round(self) -> None:
        self.now += ROUND_MS
        for node in self.nodes.values():
            node.tick(self.now)
        self.settle()


def relay(
    store: Store | None = None, key: KeyPair = RELAY, verifier: Verifier = verify_did
) -> LatticeReplica:
    store = MemoryStore() if store is None else store
    context = MergeContext(key_pair=key, verifier=verifier)
    return LatticeReplica(store, root_lattice(), context, clock=StoppedClock(1_000))


def device(verifier: Verifier = verify_did) -> LatticeReplica:
    context = MergeContext(key_pair=DEVICE, keys=KeyRing(OWNER), verifier=verifier)
    return LatticeReplica(MemoryStore(), root_lattice(), context, clock=StoppedClock(5_000))


def kv_root(name: str, stamp: int, count: int = 1) -> Value:
    root = RootLattice(root_lattice(), None, MergeContext(key_pair=OWNER))
    database = Database.at(root, OWNER.public_key, "d", clock=StoppedClock(stamp), replica="x")
    for number in range(count):
        database.set(f"{name}{number}", f"{name} {number} ".ljust(200, "."))
    return root.get()


def source(root: Value, verifier: Verifier = verify_did) -> LatticeReplica:
    """Return a device that is about to go, with what it wrote."""
    context = MergeContext(verifier=verifier)
    made = LatticeReplica(MemoryStore(), root_lattice(), context, clock=StoppedClock(3_000))
    made.cursor.update(lambda _: root)
    made.publish()
    return made


@pytest.mark.parametrize("did", [did_of(OWNER.public_key), "did:web:shop.example"])
def test_branches_of_a_did_are_handed_to_whoever_has_its_key(did: str) -> None:
    def verify(owner: Value, signer: bytes) -> bool:
        return verify_did(owner, signer) or (owner == did and signer == OWNER.public_key)

    def root(name: str, stamp: int) -> Value:
        context = MergeContext(key_pair=OWNER, verifier=verify)
        made = RootLattice(root_lattice(), None, context)
        Database.at(made, did, "d", clock=StoppedClock(stamp), replica="x").set(name, 1)
        return made.get()

    kept = relays_with(root("a", 10), root("b", 20), verifier=verify)
    (record,) = kept.evidence.records.values()
    assert record.owner == did
    net, mine = Net(), device(verify)
    net.add("relay", kept)
    net.add("device", mine)
    net.link("device", "relay")
    net.next_round()
    net.next_round()
    assert sorted(Database.at(mine.cursor, did, "d").keys()) == ["a", "b"]
    assert kept.announced_hash == mine.announced_hash
    assert kept.evidence.records == {}


def relays_with(*roots: Value, verifier: Verifier = verify_did) -> LatticeReplica:
    """Return a relay that took branches of devices which are gone."""
    kept = relay(verifier=verifier)
    for at, root in enumerate(roots):
        net = Net()
        net.add("relay", kept)
        net.add(f"gone {at}", source(root, verifier))
        net.link(f"gone {at}", "relay")
    return kept


@pytest.mark.parametrize("count", [1, 300])
@pytest.mark.parametrize("since", ["", "restarted", "from a backup"])
def test_a_branch_in_evidence_alone_is_joined_by_the_owners_next_device(
    count: int, since: str
) -> None:
    kept = relays_with(kv_root("a", 10, count), kv_root("b", 20, count))
    assert len(kept.evidence.records) == 1
    if since == "from a backup":
        store = MemoryStore()
        store.commit(decode_message(encode_message(kept.root)))
        kept = relay(store)
    elif since:
        kept = relay(kept.store)
    net, mine = Net(), device()
    net.add("relay", kept)
    net.add("device", mine)
    net.link("device", "relay")
    net.next_round()
    names = sorted(Database.at(mine.cursor, OWNER.public_key, "d").keys())
    assert names == sorted([f"{name}{n}" for name in "ab" for n in range(count)])
    assert kept.announced_hash == mine.announced_hash
    assert kept.evidence.records == {}


def test_several_branches_arrive_in_several_rounds() -> None:
    kept = relays_with(*(kv_root(name, 10 + at, 40) for at, name in enumerate("abcde")))
    assert len(kept.evidence.records) == 4
    net, mine = Net(), device()
    net.add("relay", kept)
    net.add("device", mine)
    net.link("relay", "device")  # the device did not choose the peer
    for _ in range(8):
        net.next_round()
    assert len(list(Database.at(mine.cursor, OWNER.public_key, "d").keys())) == 200
    assert kept.evidence.records == {}


def test_two_relays_with_a_branch_each_come_to_one_root_with_all_of_both() -> None:
    one, two = relays_with(kv_root("a", 10)), relay(key=KeyPair(b"s" * 32))
    net = Net()
    net.add("two", two)
    net.add("gone", source(kv_root("b", 20)))
    net.link("gone", "two")
    net = Net()
    net.add("one", one)
    net.add("two", two)
    net.link("one", "two")
    assert one.announced_hash == two.announced_hash
    assert len(one.evidence.records) == len(two.evidence.records) == 1
    mine = net.add("device", device())
    net.link("device", "two")
    net.next_round()
    net.next_round()
    assert one.announced_hash == two.announced_hash == mine.announced_hash
    assert sorted(Database.at(one.cursor, OWNER.public_key, "d").keys()) == ["a0", "b0"]
    assert one.evidence.records == two.evidence.records == {}


def test_records_of_a_lost_log_become_evidence_of_the_owners_node() -> None:
    def queue_root(values: list[str], stamp: int) -> Value:
        root = RootLattice(root_lattice(), None, MergeContext(key_pair=OWNER))
        Topics.at(root, OWNER.public_key, StoppedClock(stamp)).partition("t", 0).offer_many(values)
        return root.get()

    kept = relays_with(queue_root(["l"], 10), queue_root(["r", "s"], 20))
    net, mine = Net(), device()
    net.add("relay", kept)
    net.add("device", mine)
    net.link("device", "relay")
    (record,) = mine.evidence.records.values()
    assert [(log.first, log.end) for log in record.logs] == [(0, 1)]


def handed(node: LatticeReplica, owner: bytes) -> Vector:
    """Return what a node answers to the peer `p` that asks for the branches of an owner."""
    (reply,) = node.serve(Peer("p"), Lookup((FORKS_KEY, owner), is_strict=True))
    assert isinstance(reply.body, LookupResult)
    assert isinstance(reply.body.value, Vector)
    return reply.body.value


def test_only_the_branches_of_the_owner_are_handed_and_not_outside_the_view() -> None:
    kept = relays_with(kv_root("a", 10), kv_root("b", 20))
    assert len(handed(kept, OWNER.public_key)) == 1
    assert handed(kept, RELAY.public_key) is EMPTY_VECTOR
    kept.views.restrict("p", [(Keyword("queue"),)])
    assert handed(kept, OWNER.public_key) is EMPTY_VECTOR


def test_wrong_answers_cost_nothing() -> None:
    (entry,) = handed(relays_with(kv_root("a", 10), kv_root("b", 20)), OWNER.public_key)
    assert isinstance(entry, Vector)
    owner = OWNER.public_key
    found = one_handed(Vector.of((entry,)), owner, 5)
    assert found is not None
    assert same(found[1], entry[1])
    path = entry[0]
    for wrong in (
        None,
        5,
        EMPTY_VECTOR,
        Vector.of((entry,) * 9),
        Vector.of((5,)),
        Vector.of((Vector.of((path,)),)),
        Vector.of((Vector.of((EMPTY_VECTOR, entry[1])),)),
        Vector.of((Vector.of((path, value_hash(path))),)),
    ):
        assert one_handed(wrong, owner, 0) is None
    assert one_handed(Vector.of((entry,)), RELAY.public_key, 0) is None


@pytest.mark.parametrize("count", [0, 1, OWNERS_ASKED_MAX, OWNERS_ASKED_MAX + 1, 30])
def test_all_owners_are_asked_for_in_turn(count: int) -> None:
    owners = [bytes([n]) * 32 for n in range(count)]
    rounds = [fork_queries(owners, turn) for turn in range(5)]
    assert all(len(one) == min(count, OWNERS_ASKED_MAX) for one in rounds)
    assert {path[1] for one in rounds for path in one} == set(owners)


def test_a_branch_takes_not_the_place_of_what_its_peer_has_in_the_slot() -> None:
    def stated(root: Value, *, is_branch: bool) -> tuple[Offer, list[Part]]:
        slot = get_in(root, SLOT)
        assert isinstance(slot, Signed)
        top, below = cells_of(slot)
        parts = MessageCells(None)
        probe = Probe(value_hash(slot), Incoming(SLOT, decode(top, parts), parts, None, is_branch))
        return Offer(probe), [Part(hash, data) for hash, data in below.items()]

    mine = device()
    present, cells = stated(kv_root("a", 20, 40), is_branch=False)
    assert mine.absorb(present, Peer("relay")).missing
    branch, others = stated(kv_root("b", 10, 1), is_branch=True)
    taken = mine.absorb(branch, Peer("relay"))
    assert taken.superseded == []
    finished: set[bytes] = set()
    for parts in (others, cells) * 4:  # one level of a tree comes at a time
        finished.update(mine.absorb(Offer(None, tuple(parts)), Peer("relay")).finished)
    assert present.probe is not None
    assert branch.probe is not None
    assert finished | set(taken.finished) == {present.probe.key, branch.probe.key}
    assert len(list(Database.at(mine.cursor, OWNER.public_key, "d").keys())) == 41
