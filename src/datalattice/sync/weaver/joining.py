"""Joining: a node with an invite asks the node that made it to become a peer of a store.

A store's own stream refuses strangers, so they ask on a stream of another protocol, one for all
stores of the node. Every refusal is the same message, whether the store is unknown, the secret
wrong or used, or the peer revoked.

Source: Weaver specification "Join and bootstrap".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from datalattice.errors import ProtocolViolation
from datalattice.sync.replica import (
    Absorbed,
    News,
    Offer,
    Part,
    Peer,
    Probe,
    Regard,
    Reply,
    Step,
    Why,
)
from datalattice.sync.weaver.messages import JoinRequest, JoinResponse

JOIN_PROTOCOL: Final = "weaver-join/1"
"""Name of the protocol on a multiplexed connection; its store id is empty."""

# One text for every refusal: a stranger learns nothing about the store.
REFUSED_TEXT: Final = "the node that made the invite refuses it"

_NOTHING: Final = Probe(b"")


class JoinPolicy(Protocol):
    """Decides who may join the stores of a node."""

    @property
    def node(self) -> bytes:
        """The public key of this node."""

    def admit(self, store_id: bytes, peer: bytes, secret: bytes) -> str | None:
        """Make a peer with a valid secret a peer of the store, durably.

        Returns: the kind of the store; None: it is refused.
        """


@dataclass(eq=False, slots=True)
class Application:
    """A request of ours to join a store.

    on_end: called once, in the lane, with (kind of the store, None) or (None, why it was refused).
    """

    store_id: bytes
    secret: bytes
    inviter: bytes
    on_end: Callable[[str | None, str | None], None]


class JoinReplica:
    """Answers requests to join, and makes those of this node. It holds no data."""

    def __init__(self, policy: JoinPolicy) -> None:
        self._policy = policy
        self._applications: dict[bytes, Application] = {}  # by inviter

    def apply(self, application: Application) -> None:
        """Ask the inviter at its next comparison; a former application to it is replaced."""
        self._applications[application.inviter] = application

    # --- what a replicator needs --------------------------------------------------------------

    def compare(self, peer: Peer, why: Why, path: Sequence[object] = ()) -> _JoinRequest | None:
        """Ask to join if there is an application to this peer; nothing else is compared."""
        if why is Why.ASKED:
            return None
        # Removed at once: the attempt may use up the secret.
        application = self._applications.pop(peer.public_key or b"", None)
        return None if application is None else _JoinRequest(self._policy.node, application)

    def serve(self, peer: Peer, request: object) -> Iterator[Reply]:
        """Answer a request to join."""
        kind = None
        # "node_pubkey must equal the transport's remote key."
        if isinstance(request, JoinRequest) and request.node_pubkey == peer.public_key:
            kind = self._policy.admit(request.store_id, request.node_pubkey, request.invite_secret)
            if kind is not None:
                yield Reply(JoinResponse(self._policy.node, request.store_id, kind))
                return
        yield Reply(None)  # the same refusal, whatever is wrong

    def regard(self, peer: Peer) -> Regard:
        """Talk to every peer whose key is proved."""
        # A stranger may ask to join: `admit` decides.
        return Regard.REFUSED if peer.public_key is None else Regard.STRANGER

    @property
    def probe(self) -> Probe:
        return _NOTHING

    def publish(self) -> bool:
        return False

    def absorb(self, offer: Offer, peer: Peer, *, asked: bool = False) -> Absorbed:
        """Refuse: nothing is offered here.

        Raises: ProtocolViolation: always.
        """
        raise ProtocolViolation("nothing is replicated where nodes ask to join")

    def news(self, peer: Peer, known: Sequence[Probe]) -> News | None:
        return None

    def equals(self, peer: Peer, stated: Probe | None) -> bool:
        """Return True: there is no data in which the two could differ."""
        return True

    def repair(self, parts: Sequence[Part]) -> None:
        """There is nothing to repair."""

    def hear(self, peer: Peer) -> None:
        """Count nothing."""

    def forget(self, peer: Peer) -> None:
        """Forget nothing."""


class _JoinRequest:
    """One request to join, as a comparison of one round."""

    probe: Final = None

    def __init__(self, node: bytes, application: Application) -> None:
        self._node = node
        self._application = application
        self._is_over = False

    def start(self) -> Step:
        """Ask."""
        wanted = self._application
        return Step((JoinRequest(self._node, wanted.store_id, wanted.secret),))

    def receive(self, message: object) -> Step:
        """Take in the answer.

        Raises: ProtocolViolation: it is for another store or from another node than asked.
        """
        wanted = self._application
        assert isinstance(message, JoinResponse)
        # The transport has proved the peer's key, and the answer must name it.
        if (message.store_id, message.inviter_pubkey) != (wanted.store_id, wanted.inviter):
            raise ProtocolViolation("an answer to another request to join")
        self._end(message.store_type, None)
        return Step(is_done=True)

    def ended(self) -> Probe | None:
        """Note that no answer comes any more."""
        if not self._is_over:  # the stream ended without an answer
            self._end(None, REFUSED_TEXT)
        return None

    def _end(self, kind: str | None, refused: str | None) -> None:
        self._is_over = True
        self._application.on_end(kind, refused)
