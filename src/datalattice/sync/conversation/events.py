"""Events: what a replicator learns from a conversation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from datalattice.sync.replica import Offer, Part, Want

GOODBYE: Final = "the peer said goodbye"


@dataclass(frozen=True, slots=True)
class Joined:
    """The peer is told of changes from now on: this node chose it, or it asked for that."""


@dataclass(frozen=True, slots=True)
class Met:
    """It is known how the peer speaks: `Conversation.peer` has its features.

    answered: it answered our greeting; otherwise it greeted us.
    start:    what it proves of its start, the first time; see docs/design/forks.md.
    """

    answered: bool
    start: object = None


@dataclass(frozen=True, slots=True)
class Proved:
    """The peer has proved to hold this key."""

    public_key: bytes


@dataclass(frozen=True, slots=True)
class Claimed:
    """The peer signed something with this key, which proves nothing yet; None: with no key."""

    public_key: bytes | None


@dataclass(frozen=True, slots=True)
class Offered:
    """The peer offers something that was not asked for."""

    offer: Offer


@dataclass(frozen=True, slots=True)
class Bare:
    """The peer sent a value without a message around it; `reason`: why that means nothing.

    It is the state of a peer that is known to speak so, and counts for nothing otherwise.
    """

    offer: Offer
    reason: str


@dataclass(frozen=True, slots=True)
class Asked:
    """The peer requests something; the answer goes back to `exchange`.

    is_open: it may ask before it is admitted, as whoever wants to become a member does.
    """

    exchange: object
    request: object
    is_open: bool = False


@dataclass(frozen=True, slots=True)
class Answered:
    """The peer answered what was said, in time or late. What the answer is comes next."""

    saying: object


@dataclass(frozen=True, slots=True)
class Round:
    """A message of a comparison: of ours, or of one that the peer began."""

    exchange: int
    message: object


@dataclass(frozen=True, slots=True)
class Ended:
    """A comparison is over: no message of it will come. `error`: why it ended early."""

    exchange: int
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Delivered:
    """Parts that were requested; those of the request that are not among them, the peer lacks."""

    request: Want
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Failed:
    """A request for parts was not answered in time."""

    request: Want


@dataclass(frozen=True, slots=True)
class TwinMet:
    """The peer is connected to another node with our identity, which signed this start."""

    start: object


@dataclass(frozen=True, slots=True)
class Fault:
    """Something about the peer, to be counted by a word; `is_fatal`: the conversation is over."""

    kind: str
    text: str
    is_fatal: bool = False


@dataclass(frozen=True, slots=True)
class Left:
    """The peer says goodbye, or why it will not speak with us."""

    reason: str = GOODBYE


Event = (
    Joined
    | Met
    | Proved
    | Claimed
    | Offered
    | Bare
    | Asked
    | Answered
    | Round
    | Ended
    | Delivered
    | Failed
    | TwinMet
    | Fault
    | Left
)
