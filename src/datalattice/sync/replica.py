"""Replica: the seam between something that replicates and everything that moves messages.

A replica keeps content-addressed *parts* and can say how far it has come in a *probe*. Two replicas
have converged when their probes are equal. Six methods are all that a `Replicator` needs of one:

    publish   make local writes durable                     -> Change
    absorb    take in what a peer sent                      -> Absorbed
    supply    hand out parts by hash                        -> parts
    begin     the message that opens a comparison           -> Offer
    answer    what a peer known to hold these probes lacks  -> Offer or nothing
    repair    take parts in the place of damaged ones

What is missing is a value in Absorbed, never an exception. All of them may block on storage and
none of them knows the network. When `publish` or `absorb` returns, what it reports is durable:
nothing is sent before it is. See docs/design/replication.md.

The seam is about transport, not algebra. What a part is, and what a probe says, is the replica's
own business and that of the codec that writes them; the replicator compares probe keys and counts
hashes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of content and the hash that names it."""

    hash: bytes
    data: bytes


@dataclass(frozen=True, slots=True)
class Probe:
    """How far a replica has come.

    Equal keys mean equal state; `data` is for the replica and its codec.
    """

    key: bytes
    data: object = None


@dataclass(frozen=True, slots=True)
class Offer:
    """What one side gives another: a probe and parts; or hashes that nobody could deliver.

    base:   of an answer, the later of the known states that it is the difference to.
    unread: it came as the difference to a state that is not here, so no part of it could be read.
    """

    probe: Probe | None = None
    parts: tuple[Part, ...] = ()
    lost: tuple[bytes, ...] = ()
    base: Probe | None = None
    unread: bool = False


@dataclass(frozen=True, slots=True)
class Change:
    """What a local publication did."""

    changed: bool
    probe: Probe


@dataclass(frozen=True, slots=True)
class Remark:
    """What was refused or noticed: a word to count it by, and a line about the first of them.

    is_refusal: the peer sent something that is of no use to anybody here.
    is_loss:    a part of what it sent was left out, since it cannot be merged.
    """

    kind: str
    text: str
    count: int = 1
    is_refusal: bool = False
    is_loss: bool = False


@dataclass(frozen=True, slots=True)
class Absorbed:
    """What became of an offer.

    missing:  parts that are needed first; the same offer is finished later, when they have been
              absorbed.
    holds:    (peer, probe) pairs whose content is now contained here; the peer is known to hold it.
    parts_of: likewise, but the probe is only of a part of the peer's state.
    finished: keys of the probes that need nothing more, contained or refused.
    dropped:  keys of the probes that were given up.
    changed:  whether this replica's own probe is another one now.
    reports:  what was refused or noticed, for the operator.
    refused:  of the finished keys those whose value was not taken, and why.
    disputed: of the finished keys those of whose value something was left out that says it is of
              an owner whose key is here.
    superseded: (key, newer key) of probes that the same peer has replaced: what waits for the first
              is contained when the second is.
    ended:    (peer, in full) of each value that was merged or refused: whether all of it was taken.
    unwanted: parts that were missing and are not needed any more.
    breaches: (peer, reason) of those that sent what no honest peer sends.
    """

    missing: tuple[bytes, ...] = ()
    holds: tuple[tuple[str, Probe], ...] = ()
    finished: tuple[bytes, ...] = ()
    dropped: tuple[bytes, ...] = ()
    changed: bool = False
    reports: tuple[Remark, ...] = ()
    refused: Mapping[bytes, str] = field(default_factory=dict)
    disputed: frozenset[bytes] = frozenset()
    superseded: tuple[tuple[bytes, bytes], ...] = ()
    parts_of: tuple[tuple[str, Probe], ...] = ()
    ended: tuple[tuple[str, bool], ...] = ()
    unwanted: tuple[bytes, ...] = ()
    breaches: tuple[tuple[str, str], ...] = ()


class Replica(Protocol):
    """Something that replicates. Owned by one thread; every call may block on storage."""

    def publish(self) -> Change:
        """Make local writes durable and part of what is offered.

        Raises: StoreError: nothing was published.
        """
        ...

    def absorb(self, offer: Offer, peer: str) -> Absorbed:
        """Take in what `peer` sent; durable on return.

        Raises: PeerError: the offer is illegal, nothing of it was kept.
                StoreError: the store cannot keep it.
        """
        ...

    def supply(self, want: Sequence[bytes], peer: str) -> list[Part | None]:
        """Return the parts with these hashes in order, None for those that are not here."""
        ...

    def begin(self, peer: str) -> Offer:
        """Return the shortest statement of the state: it lets a peer find out what it lacks."""
        ...

    def answer(self, known: Sequence[Probe], peer: str) -> Offer | None:
        """Return what a peer that holds `known` lacks, or None when it lacks nothing."""
        ...

    def repair(self, parts: Sequence[Part]) -> None:
        """Put these parts, which peers had, in the place of damaged or missing ones.

        Raises: StoreError: the store cannot keep them.
        """
        ...
