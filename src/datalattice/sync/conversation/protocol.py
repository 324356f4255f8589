"""Protocol: what a conversation has to be."""

from __future__ import annotations

from typing import Protocol

from datalattice.sync.conversation.events import Event
from datalattice.sync.conversation.sayings import Saying
from datalattice.sync.replica import Peer


class Conversation(Protocol):
    """One protocol with one peer for one replica. One thread uses it."""

    @property
    def peer(self) -> Peer:
        """Who it is with, as far as that is known and proved."""
        ...

    @property
    def batch_max(self) -> int:
        """Most parts of one request."""
        ...

    @property
    def room(self) -> int:
        """How many requests for parts may be sent now."""
        ...

    @property
    def pending_count(self) -> int:
        """How many requests of ours wait for an answer; at most `PENDING_MAX` are begun."""
        ...

    @property
    def deadline_ms(self) -> int | None:
        """When `expire` has something to do, None when nothing is awaited."""
        ...

    def send(self, saying: Saying, now_ms: int) -> int | None:
        """Say something; return the exchange of a comparison of which answers are awaited."""
        ...

    def receive(self, payload: bytes, now_ms: int) -> None:
        """Take in a payload of the peer. What is wrong with it is an event."""
        ...

    def expire(self, now_ms: int) -> None:
        """Give up what was not answered in time."""
        ...

    def excuse(self, busy_ms: int) -> None:
        """Grant more time for answers: nothing could be heard here for so long."""
        ...

    def close(self) -> None:
        """End it: what is awaited has failed."""
        ...

    def frames(self) -> list[bytes]:
        """Return the payloads to be sent, and forget them."""
        ...

    def events(self) -> list[Event]:
        """Return what happened, in order, and forget it."""
        ...


class WireProtocol(Protocol):
    """Makes conversations: one wire protocol of one replica."""

    def converse(self, peer: Peer, pinned: bytes | None) -> Conversation:
        """Return a conversation with a peer that has to prove the key `pinned`, if one is given."""
        ...
