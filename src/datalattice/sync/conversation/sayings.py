"""Sayings: what a replicator wants to have said."""

from __future__ import annotations

from dataclasses import dataclass

from datalattice.sync.replica import Offer, Reply, Step, Want


@dataclass(frozen=True, slots=True)
class Greet:
    """Take up the conversation: prove and ask for keys, and greet a peer that we chose."""


@dataclass(frozen=True, slots=True)
class DemandProof:
    """Have the peer prove its key."""


@dataclass(frozen=True, slots=True)
class Push:
    """Tell the peer of changes."""

    offer: Offer


@dataclass(frozen=True, slots=True)
class Compare:
    """Begin a comparison with its first step."""

    step: Step


@dataclass(frozen=True, slots=True)
class Continue:
    """Say what a step of a comparison has to say."""

    exchange: int
    step: Step


@dataclass(frozen=True, slots=True)
class Finish:
    """Say that this side needs nothing more of a comparison."""

    exchange: int


@dataclass(frozen=True, slots=True)
class Request:
    """Ask for parts."""

    want: Want


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer what the peer asked."""

    exchange: object
    reply: Reply


@dataclass(frozen=True, slots=True)
class Deny:
    """Refuse to answer, in the words in which something unknown is refused."""

    exchange: object


@dataclass(frozen=True, slots=True)
class Refuse:
    """Tell the peer that its last message cannot be read."""

    text: str


@dataclass(frozen=True, slots=True)
class TellTwin:
    """Tell the peer of another node with its identity.

    next: the connection of that node, which is told in turn once this one has answered.
    """

    start: object
    next: str = ""


Saying = (
    Greet
    | DemandProof
    | Push
    | Compare
    | Continue
    | Finish
    | Request
    | Answer
    | Deny
    | Refuse
    | TellTwin
)
