"""Starts in greetings: two nodes with one identity are told of each other, and nobody else is."""

from __future__ import annotations

import pytest

from datalattice.cells import Keyword, Signed, Value, Vector
from datalattice.clock import SystemClock
from datalattice.crypto import KeyPair
from datalattice.lattice import root_lattice
from datalattice.store import MemoryStore
from datalattice.sync import LatticeProtocol, LatticeReplica, NodeStart, Replicator, sign_start
from datalattice.sync.lattice.starts import START_TAG, read_start
from datalattice.wire import Ping, decode_payload, encode_ping

TWICE, OTHER, RELAY = (KeyPair(bytes([seed]) * 32) for seed in (1, 2, 3))
PEER, PATCHES, TWIN = Keyword("PEER"), Keyword("LP"), Keyword("TWIN")


def replicator(identity: KeyPair, number: int = 0) -> Replicator:
    replica = LatticeReplica(MemoryStore(), root_lattice())
    start = sign_start(identity, number, 0)
    return Replicator(replica, LatticeProtocol(SystemClock(), identity=identity, start=start))


def greeting(said: Value) -> bytes:
    return encode_ping(1, PEER, PATCHES, said)


def greet(relay: Replicator, id: str, key: KeyPair, said: Value) -> None:
    relay.open(id, 0, outbound=False, public_key=key.public_key)
    relay.receive(id, greeting(said), 0)


def twins_told(relay: Replicator) -> int:
    """Count the messages of a relay that name another node with the receiver's identity."""
    pings = [decode_payload(payload)[0] for _, payload in relay.take_effects().sends]
    return sum(isinstance(one, Ping) and TWIN in one.extra for one in pings)


def test_both_of_two_live_nodes_are_told_what_the_other_has_signed_the_older_one_first() -> None:
    relay = replicator(RELAY)
    older, newer = (sign_start(TWICE, number, 5) for number in (1, 2))
    greet(relay, "older", TWICE, older.signed)
    relay.take_effects()
    greet(relay, "newer", TWICE, newer.signed)
    sends = relay.take_effects().sends
    nodes = {id: replicator(TWICE, number) for id, number in (("older", 1), ("newer", 2))}
    for node in nodes.values():
        node.open("relay", 0, outbound=True, public_key=RELAY.public_key)
        node.take_effects()
    for id, payload in sends:
        nodes[id].receive("relay", payload, 0)
    effects = nodes["older"].take_effects()
    assert effects.twins == [newer]
    # A connection that never answers may be that of a node that was killed and started again.
    assert nodes["newer"].take_effects().twins == []
    for _, payload in effects.sends:
        relay.receive("older", payload, 0)
    effects = relay.take_effects()
    assert [(note.kind, note.peer) for note in effects.notes] == [("peer-cloned", "older")]
    for id, payload in effects.sends:
        nodes[id].receive("relay", payload, 0)
    assert nodes["newer"].take_effects().twins == [older]


@pytest.mark.parametrize(
    ("second_key", "second"),
    [
        (TWICE, sign_start(TWICE, 1, 9).signed),
        (OTHER, sign_start(OTHER, 2, 5).signed),
        (TWICE, sign_start(OTHER, 2, 5).signed),
        (TWICE, Signed(TWICE.public_key, bytes(64), Vector.of((START_TAG, 2, 5)))),
        (TWICE, Signed.sign(TWICE, Vector.of((START_TAG, "2", 5)))),
        (TWICE, Signed.sign(TWICE, Vector.of((START_TAG, 2)))),
        (TWICE, Signed.sign(TWICE, 2)),
        (TWICE, 2),
        (TWICE, None),
    ],
    ids=[
        "the same start",
        "another node",
        "of another key",
        "forged",
        "no number",
        "too short",
        "no vector",
        "not signed",
        "nothing",
    ],
)
def test_nothing_else_makes_a_twin(second_key: KeyPair, second: Value) -> None:
    relay = replicator(RELAY)
    greet(relay, "a", TWICE, sign_start(TWICE, 1, 5).signed)
    greet(relay, "b", second_key, second)
    assert twins_told(relay) == 0
    greet(relay, "c", TWICE, sign_start(TWICE, 2, 5).signed)
    assert twins_told(relay) >= 1


def test_a_connection_that_has_ended_is_no_twin() -> None:
    relay = replicator(RELAY)
    greet(relay, "a", TWICE, sign_start(TWICE, 1, 5).signed)
    relay.closed("a", 0)
    greet(relay, "b", TWICE, sign_start(TWICE, 2, 5).signed)
    assert twins_told(relay) == 0


def exchange(nodes: dict[str, Replicator]) -> tuple[dict[str, list[NodeStart]], list[str]]:
    """Deliver frames between two nodes; return the twins each heard of, and who ended it."""
    heard: dict[str, list[NodeStart]] = {name: [] for name in nodes}
    ended: list[str] = []
    is_quiet = False
    while not is_quiet:
        is_quiet = True
        for name, node in nodes.items():
            peer = next(one for one in nodes if one != name)
            effects = node.take_effects()
            heard[name] += [one for one in effects.twins if isinstance(one, NodeStart)]
            ended += [name for _ in effects.closes]
            for _, payload in effects.sends:
                is_quiet = False
                nodes[peer].receive(name, payload, 0)
    return heard, ended


@pytest.mark.parametrize("proves", [False, True], ids=["plain", "tls"])
def test_two_nodes_with_one_identity_that_meet_tell_each_other(proves: bool) -> None:
    nodes = {"dialler": replicator(TWICE, 1), "other": replicator(TWICE, 2)}
    key = TWICE.public_key if proves else None
    nodes["other"].open("dialler", 0, outbound=False, public_key=key)
    nodes["dialler"].open("other", 0, outbound=True, public_key=key)
    heard, ended = exchange(nodes)
    assert {one.number for one in heard["dialler"]} == {2}
    assert {one.number for one in heard["other"]} == {1}
    assert "dialler" in ended


def test_what_else_is_said_with_our_own_key_is_not_heard() -> None:
    node = replicator(TWICE)
    node.open("other", 0, outbound=False, public_key=TWICE.public_key)
    node.take_effects()
    node.receive("other", greeting(sign_start(TWICE, 2, 5).signed), 0)
    assert node.take_effects().sends == []
    node.tick(60_000)
    effects = node.take_effects()
    assert [id for id, _ in effects.closes] == ["other"], "it does not wait for long"


@pytest.mark.parametrize(
    "said",
    [
        sign_start(OTHER, 2, 5).signed,
        Signed(TWICE.public_key, bytes(64), Vector.of((START_TAG, 2, 5))),
    ],
    ids=["another's", "forged"],
)
def test_a_stranger_cannot_invent_a_twin(said: Signed) -> None:
    node = replicator(TWICE)
    node.open("stranger", 0, outbound=False, public_key=OTHER.public_key)
    node.receive("stranger", encode_ping(1, TWIN, said), 0)
    assert node.take_effects().twins == []


def test_a_start_reads_back() -> None:
    start = sign_start(TWICE, 7, 8)
    assert start == NodeStart(TWICE.public_key, 7, 8, start.signed)
    assert read_start(start.signed) == start
