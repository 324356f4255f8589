"""Joining: an invite lets one node in, once, and everyone else hears the same."""

from __future__ import annotations

import pytest

from datalattice.crypto import KeyPair
from datalattice.errors import ProtocolViolation
from datalattice.sync import Offer, Pace, Peer, Replicator, Want, Why
from datalattice.sync.weaver import (
    Application,
    JoinReplica,
    JoinRequest,
    JoinResponse,
    WeaverProtocol,
)

STORE = b"s" * 16
SECRET = b"x" * 32
INVITER = KeyPair(b"i" * 32).public_key
JOINER = KeyPair(b"j" * 32).public_key


class Policy:
    """Lets in whoever has the secret, once."""

    def __init__(self, node: bytes) -> None:
        self.node = node
        self.secrets = {SECRET}
        self.peers: list[bytes] = []

    def admit(self, store_id: bytes, peer: bytes, secret: bytes) -> str | None:
        if store_id != STORE or secret not in self.secrets:
            return None
        self.secrets.remove(secret)
        self.peers.append(peer)
        return "core:kvstore"


class Nodes:
    """A node that invites and one that asks, connected."""

    def __init__(self) -> None:
        self.policies = Policy(INVITER), Policy(JOINER)
        self.replicas = [JoinReplica(policy) for policy in self.policies]
        self.ends = [Replicator(one, WeaverProtocol(None), Pace()) for one in self.replicas]
        self.frames: list[bytes] = []
        self.answers: list[tuple[str | None, str | None]] = []

    def ask(self, secret: bytes = SECRET, store_id: bytes = STORE) -> None:
        self.replicas[1].apply(
            Application(store_id, secret, INVITER, lambda *said: self.answers.append(said))
        )
        for end in self.ends:
            end.closed("c", 0)
        self.ends[0].open("c", 0, outbound=False, public_key=JOINER)
        self.ends[1].open("c", 0, outbound=True, public_key=INVITER)
        self.carry()

    def carry(self) -> None:
        moved = True
        while moved:
            moved = False
            for side, end in enumerate(self.ends):
                for _, frame in end.take_effects().sends:
                    moved = True
                    self.frames.append(frame)
                    self.ends[1 - side].receive("c", frame, 0)


def test_a_node_with_an_invite_becomes_a_peer_and_learns_the_kind() -> None:
    nodes = Nodes()
    nodes.ask()
    assert nodes.answers == [("core:kvstore", None)]
    assert nodes.policies[0].peers == [JOINER]


def test_an_invite_is_used_once() -> None:
    nodes = Nodes()
    nodes.ask()
    nodes.ask()
    (_, refused) = nodes.answers[1]
    assert refused is not None
    assert nodes.policies[0].peers == [JOINER]


def test_an_unknown_store_and_a_wrong_secret_are_answered_alike() -> None:
    frames = []
    for secret, store_id in ((b"?" * 32, STORE), (SECRET, b"?" * 16)):
        nodes = Nodes()
        nodes.ask(secret, store_id)
        (answer,) = nodes.answers
        frames.append((nodes.frames[-1], answer))
    assert frames[0] == frames[1]


def test_a_connection_that_ends_ends_the_application() -> None:
    nodes = Nodes()
    said = nodes.answers
    nodes.replicas[1].apply(Application(STORE, SECRET, INVITER, lambda *how: said.append(how)))
    nodes.ends[1].open("c", 0, outbound=True, public_key=INVITER)
    assert not said
    nodes.ends[1].closed("c", 0)
    assert len(said) == 1


def test_a_request_under_the_key_of_another_is_refused() -> None:
    (reply,) = JoinReplica(Policy(INVITER)).serve(
        Peer("c", public_key=b"k" * 32), JoinRequest(JOINER, STORE, SECRET)
    )
    assert reply.body is None


def test_an_answer_of_another_node_is_not_taken() -> None:
    replica = JoinReplica(Policy(JOINER))
    replica.apply(Application(STORE, SECRET, INVITER, lambda *_: None))
    peer = Peer("c", public_key=INVITER)
    assert replica.compare(peer, Why.ASKED) is None
    joining = replica.compare(peer, Why.MEETING)
    assert joining is not None
    with pytest.raises(ProtocolViolation, match="another request"):
        joining.receive(JoinResponse(JOINER, STORE, "core:kvstore"))


def test_nothing_else_is_served_or_taken() -> None:
    replica = JoinReplica(Policy(INVITER))
    peer = Peer("c", public_key=JOINER)
    (reply,) = replica.serve(peer, Want((bytes(32),)))
    assert reply.body is None
    with pytest.raises(ProtocolViolation):
        replica.absorb(Offer(), peer)
