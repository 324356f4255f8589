"""Clusters of lattice nodes in a simulated network: whatever is lost, they end up equal."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pytest

from datalattice.apps.queue import LatticeMQ
from datalattice.cells import (
    Index,
    Keyword,
    Map,
    Signed,
    Value,
    Vector,
    encode,
    encode_message,
    missing,
    value_hash,
)
from datalattice.crypto import KeyPair, SeededEntropy
from datalattice.errors import MissingData
from datalattice.lattice import MergeContext, get_in, local_value, root_lattice, set_local
from datalattice.store import MemoryStore
from datalattice.sync import LatticeCodec, LatticeReplica, Replicator
from datalattice.testing.simnet import SimNetwork

HEAL_MS = 70_000
"""Time without faults in which every node states its root twice."""


class SimClock:
    """The network's time as a wall clock."""

    def __init__(self, net: SimNetwork) -> None:
        self._net = net

    def now_ms(self) -> int:
        return 1_800_000_000_000 + self._net.now_ms


@dataclass
class Member:
    keys: KeyPair
    store: MemoryStore
    replica: LatticeReplica


class Cluster:
    """Nodes of the standard root; each writes queues of its own."""

    def __init__(self, size: int, seed: int, **faults: float) -> None:
        self.net = SimNetwork(
            seed,
            loss=faults.get("loss", 0.0),
            repeat=faults.get("repeat", 0.0),
            delay_ms=int(faults.get("delay_ms", 1)),
        )
        self.entropy = SeededEntropy(seed + 1)
        self.clock = SimClock(self.net)
        self.members: dict[str, Member] = {}
        for index in range(size):
            name = f"n{index}"
            self.start(name, KeyPair(bytes([index + 1]) * 32), MemoryStore())

    def start(self, name: str, keys: KeyPair, store: MemoryStore) -> None:
        """Start a node over a store, as after a crash of the one before."""
        replica = LatticeReplica(store, root_lattice(), MergeContext(key_pair=keys))
        self.members[name] = Member(keys, store, replica)
        self.net.add(name, Replicator(replica, LatticeCodec(replica, self.clock)))

    def restart(self, name: str) -> None:
        member = self.members[name]
        links = [link for link in self.net.links if name in link]
        for link in links:
            self.net.cut(*link)
        self.start(name, member.keys, member.store)
        for link in links:
            self.net.connect(*link)

    def connect_ring(self) -> None:
        names = list(self.members)
        for index, name in enumerate(names):
            self.net.connect(name, names[(index + 1) % len(names)])

    def connect_line(self) -> None:
        names = list(self.members)
        for left, right in itertools.pairwise(names):
            self.net.connect(left, right)

    def pick(self, count: int) -> int:
        return int.from_bytes(self.entropy.bytes(4), "big") % count

    def offer(self, name: str, count: int, width: int = 20) -> None:
        member = self.members[name]
        topics = LatticeMQ.at(member.replica.cursor, member.keys.public_key, self.clock)
        size = topics.partition("t", 0).size()
        values = [f"{name}-{size + step}".ljust(width, ".") for step in range(count)]
        topics.partition("t", 0).offer_many(values)
        self.net.publish(name)

    def records(self, at: str, of: str) -> int:
        cursor = self.members[at].replica.cursor
        return LatticeMQ.at(cursor, self.members[of].keys.public_key).partition("t", 0).size()

    def root_hashes(self) -> set[bytes]:
        return {member.replica.announced_hash for member in self.members.values()}

    def heal(self) -> None:
        self.net.loss = self.net.repeat = 0.0
        self.net.run(self.net.now_ms + HEAL_MS)

    def check(self) -> None:
        """All equal, everything announced is complete, and nothing waits any more."""
        assert len(self.root_hashes()) == 1
        for name, member in self.members.items():
            assert missing(member.replica.announced) == []
            assert member.store.root_hash() == value_hash(member.replica.cursor.get())
            assert self.net.nodes[name].missing_count == 0
            assert member.replica.missing_count == 0


@pytest.mark.parametrize("seed", range(12))
def test_faulty_networks_converge(seed: int) -> None:
    size = 3 + seed % 3
    cluster = Cluster(size, seed, loss=0.2, repeat=0.1, delay_ms=1 + 40 * (seed % 4))
    cluster.connect_ring() if seed % 2 else cluster.connect_line()
    written = dict.fromkeys(cluster.members, 0)
    for _ in range(40):
        name = f"n{cluster.pick(size)}"
        count = 1 + cluster.pick(30)
        cluster.offer(name, count)
        written[name] += count
        cluster.net.run(cluster.net.now_ms + cluster.pick(80))
        if cluster.pick(10) == 0:
            cluster.restart(f"n{cluster.pick(size)}")
    cluster.heal()
    cluster.check()
    for owner, count in written.items():
        assert all(cluster.records(at, owner) == count for at in cluster.members)


def test_a_partition_heals() -> None:
    cluster = Cluster(4, 99)
    cluster.connect_line()
    cluster.net.run(1_000)
    cluster.net.cut("n1", "n2")
    for name in cluster.members:
        cluster.offer(name, 50)
        cluster.net.run(cluster.net.now_ms + 30)
    cluster.net.run(cluster.net.now_ms + 1_000)
    assert len(cluster.root_hashes()) == 2
    cluster.net.connect("n1", "n2")
    cluster.net.run(cluster.net.now_ms + 1_000)
    cluster.check()


def test_the_same_seed_gives_the_same_trace() -> None:
    traces = set()
    for _ in range(2):
        cluster = Cluster(3, 5, loss=0.2, repeat=0.2, delay_ms=60)
        cluster.connect_ring()
        for turn in range(15):
            cluster.offer(f"n{turn % 3}", 3)
            cluster.net.run(cluster.net.now_ms + 25)
        cluster.heal()
        traces.add(cluster.net.trace())
    assert len(traces) == 1


def test_a_change_costs_its_path_and_not_the_value() -> None:
    cluster = Cluster(2, 1)
    cluster.connect_line()
    cluster.offer("n0", 20_000)
    cluster.net.run(2_000)
    cluster.check()
    before = cluster.net.sent_bytes
    cluster.offer("n0", 1)
    cluster.net.run(4_000)
    cluster.check()
    assert cluster.net.sent_bytes - before < 12_000


def test_a_newcomer_fetches_everything_in_batches() -> None:
    cluster = Cluster(2, 1)
    cluster.offer("n0", 30_000, width=60)
    cluster.connect_line()
    cluster.net.run(3_000)
    cluster.check()
    assert cluster.records("n1", "n0") == 30_000


def test_what_is_local_never_leaves() -> None:
    cluster = Cluster(2, 1)
    secret = "only for this node " * 20
    member = cluster.members["n0"]
    slot = Map.of([(Keyword("note"), Map.of([(Keyword("timestamp"), 1), ("text", secret)]))])
    member.replica.cursor.update(lambda root: set_local(root, member.keys, slot))
    seen: list[bytes] = []
    cluster.net.on_frame = lambda _from, _to, payload: seen.append(payload)
    cluster.offer("n0", 100)
    cluster.connect_line()
    cluster.net.run(1_000)
    cluster.offer("n1", 100)
    cluster.net.run(40_000)
    assert len(cluster.root_hashes()) == 1
    assert not any(secret.encode()[:40] in payload for payload in seen)
    assert local_value(member.replica.cursor.get(), member.keys.public_key) is not None
    assert local_value(cluster.members["n1"].replica.cursor.get(), member.keys.public_key) is None


def test_what_is_local_is_not_accepted() -> None:
    receiver = Cluster(1, 1)
    stranger = KeyPair(b"x" * 32)
    slot = Map.of([(Keyword("note"), Map.of([(Keyword("timestamp"), 1)]))])
    root = set_local(root_lattice().zero(), stranger, slot)
    before = receiver.root_hashes()
    _feed(receiver, (), root)
    _feed(receiver, (Keyword("local"),), get_in(root, [Keyword("local")]))
    assert receiver.root_hashes() == before


def test_a_path_does_not_go_around_signatures_and_owners() -> None:
    cluster = Cluster(1, 1)
    victim = cluster.members["n0"].keys
    cluster.offer("n0", 1)
    before = cluster.root_hashes()
    forger = KeyPair(b"f" * 32)
    topics = Map.of([("t", Vector.of([]))])
    queue = Keyword("queue")
    _feed(cluster, (queue, victim.public_key), Signed.sign(forger, topics))
    _feed(cluster, (queue,), Map.of([(victim.public_key, Signed.sign(forger, topics))]))
    _feed(cluster, (queue, victim.public_key, Keyword("value")), topics)
    assert cluster.root_hashes() == before


def _feed(cluster: Cluster, path: tuple[Value, ...], value: Value) -> None:
    """Have a stranger send a value."""
    message = Vector.of([Keyword("LV"), Vector.of(path), value])
    node = cluster.net.nodes["n0"]
    node.open("stranger", cluster.net.now_ms, outbound=False)
    node.receive("stranger", encode_message(message), cluster.net.now_ms)
    node.closed("stranger", cluster.net.now_ms)
    node.take_effects()


def test_a_value_that_never_completes_is_dropped_without_harm() -> None:
    cluster = Cluster(1, 1)
    before = cluster.root_hashes()
    data = Vector.of(["x" * 200 + str(n) for n in range(300)])
    root = Index.of([(Keyword("data"), Index.of([(value_hash(data), data)]))])
    message = Vector.of([Keyword("LV"), Vector.of([]), root])
    node = cluster.net.nodes["n0"]
    node.open("mute", 0, outbound=False)
    node.receive("mute", encode(message), 0)
    assert node.missing_count > 0
    while (deadline := node.next_deadline()) is not None and node.missing_count:
        node.tick(deadline)
    assert cluster.root_hashes() == before
    assert cluster.members["n0"].replica.missing_count == 0
    assert "dropped" in {note.kind for note in node.take_effects().notes}
    with pytest.raises(MissingData):
        cluster.members["n0"].store.load(value_hash(data))
