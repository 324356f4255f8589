"""Partial replication: with some peers only some paths are exchanged, in both directions."""

from __future__ import annotations

import pytest

from datalattice.apps.queue import Topics
from datalattice.cells import Keyword, Value, same
from datalattice.clock import SystemClock
from datalattice.crypto import KeyPair
from datalattice.errors import NoSuchPath, UsageError
from datalattice.lattice import MergeContext, get_in, root_lattice
from datalattice.store import MemoryStore
from datalattice.sync import LatticeProtocol, LatticeReplica, Replicator

MINE, THEIRS, OTHERS = KeyPair(b"m" * 32), KeyPair(b"t" * 32), KeyPair(b"o" * 32)
QUEUE = Keyword("queue")


class Pair:
    """Two replicators joined by a perfect link called `link` on both sides."""

    def __init__(self) -> None:
        self.replicas: list[LatticeReplica] = []
        self.nodes: list[Replicator] = []
        for keys in (MINE, THEIRS):
            replica = LatticeReplica(MemoryStore(), root_lattice(), MergeContext(key_pair=keys))
            self.replicas.append(replica)
            self.nodes.append(Replicator(replica, LatticeProtocol(SystemClock())))
        self.now_ms = 0
        self.payloads: list[bytes] = []

    def write(self, side: int, keys: KeyPair, text: str) -> None:
        cursor = self.replicas[side].cursor
        cursor.with_context(MergeContext(key_pair=keys))
        Topics.at(cursor, keys.public_key).partition("t", 0).offer(text)
        self.nodes[side].publish(self.now_ms)

    def connect(self) -> None:
        self.nodes[1].open("link", self.now_ms, outbound=False)
        self.nodes[0].open("link", self.now_ms, outbound=True)
        self.run()

    def run(self) -> None:
        for _ in range(40):
            self.now_ms += 100
            for side, node in enumerate(self.nodes):
                node.tick(self.now_ms)
                for _, payload in node.take_effects().sends:
                    node.written("link", 1, self.now_ms)
                    self.payloads.append(payload)
                    self.nodes[1 - side].receive("link", payload, self.now_ms)

    def records(self, side: int, keys: KeyPair) -> list[Value]:
        topics = Topics.at(self.replicas[side].cursor, keys.public_key)
        return list(topics.partition("t", 0))


def test_only_the_named_paths_are_exchanged() -> None:
    pair = Pair()
    for keys in (MINE, OTHERS):
        pair.write(0, keys, f"by {keys.public_key.hex()[:4]}")
    pair.replicas[0].views.restrict("link", [(QUEUE, MINE.public_key), (QUEUE, THEIRS.public_key)])
    pair.connect()
    assert len(pair.records(1, MINE)) == 1
    assert pair.records(1, OTHERS) == []
    pair.write(1, THEIRS, "back")
    pair.write(1, OTHERS, "not wanted")
    pair.run()
    assert pair.records(0, THEIRS) == ["back"]
    assert len(pair.records(0, OTHERS)) == 1
    assert all(OTHERS.public_key not in payload for payload in pair.payloads[:-1])


def test_a_restricted_pair_comes_to_rest() -> None:
    pair = Pair()
    pair.write(0, OTHERS, "kept here")
    pair.write(0, MINE, "shared")
    pair.replicas[0].views.restrict("link", [("queue", MINE.public_key)])
    pair.connect()
    sent_count = len(pair.payloads)
    pair.run()
    assert len(pair.payloads) == sent_count


def test_lifting_the_restriction_shares_the_rest() -> None:
    pair = Pair()
    pair.write(0, OTHERS, "kept at first")
    pair.replicas[0].views.restrict("link", [("queue", MINE.public_key)])
    pair.connect()
    assert pair.records(1, OTHERS) == []
    pair.replicas[0].views.restrict("link", None)
    pair.write(0, MINE, "one more")
    pair.run()
    assert pair.records(1, OTHERS) == ["kept at first"]
    here, there = pair.replicas
    assert same(here.announced, there.announced)


@pytest.mark.parametrize("paths", [[], [(Keyword("fs"),)]])
def test_a_peer_of_which_nothing_is_wanted_gets_the_zero(paths: list[tuple[Value, ...]]) -> None:
    pair = Pair()
    pair.write(0, MINE, "mine")
    pair.replicas[0].views.restrict("link", paths)
    pair.connect()
    assert get_in(pair.replicas[1].announced, [QUEUE, MINE.public_key]) is None


def test_paths_are_checked() -> None:
    replica = Pair().replicas[0]
    with pytest.raises(NoSuchPath, match="nothing at 'nonsense'"):
        replica.views.restrict("link", [("nonsense",)])
    with pytest.raises(UsageError, match="enters a signed value"):
        replica.views.restrict("link", [("queue", MINE.public_key, "value")])
