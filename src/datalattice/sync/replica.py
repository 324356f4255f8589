"""Replica: the seam between something that replicates and everything that moves messages.

A replica keeps content-addressed *parts* and can say how far it has come in a *probe*. Two replicas
have converged when their probes are equal. This is all that a `Replicator` needs of one:

    probe     how far it has come
    publish   make local writes durable                        -> Publication
    absorb    take in what a peer sent                         -> Absorbed
    news      what a peer lacks that holds these probes        -> News, or None
    serve     answer a request of a peer                       -> replies
    compare   begin to find out how the two states differ      -> Comparison, or None
    equals    whether a peer that states a probe has this state
    repair    take parts in the place of damaged ones
    regard    whether a peer may be spoken to: the one gate, both ways
    hear      a message of a peer has come
    forget    a connection has ended

What is missing is a value in Absorbed, never an exception. All of them may block on storage and
none of them knows the network. When `publish` or `absorb` returns, what it reports is durable:
nothing is sent before it is. See docs/design/replication.md.

The seam is about transport, not algebra. What a part is, what a probe says and what a comparison
asks is the replica's own business and that of the conversation that writes it; the replicator
compares probe keys and counts hashes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Protocol

from datalattice.errors import BadFormat

FETCHES: Final = "fetches"
"""Feature of a peer that asks for the parts it lacks. Any other is sent offers that are complete in
themselves, one lot after the other, at a pace by their bytes."""

REPLICATES: Final = "replicates"
"""Feature of a peer of our kind. It is told of changes when a burst of them is over; any other at
the end of the window."""


@dataclass(frozen=True, slots=True)
class Peer:
    """Who is at the other end of a connection. Peers of one connection are equal.

    connection: names the connection; no two of a process have the same.
    dialled:    this node made it.
    public_key: the key that the transport or a challenge has proved; None: not proved.
    features:   what the peer is able to do, as words of its wire protocol, `FETCHES`
                and `REPLICATES`.
    """

    connection: str
    dialled: bool = field(default=False, compare=False)
    public_key: bytes | None = field(default=None, compare=False)
    features: frozenset[str] = field(default=frozenset(), compare=False)


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of content and the hash that names it."""

    hash: bytes
    data: bytes


@dataclass(frozen=True, slots=True)
class Probe:
    """How far a replica has come.

    Equal keys mean equal state; `data` is for the replica and its conversations.
    """

    key: bytes
    data: object = None


@dataclass(frozen=True, slots=True)
class Offer:
    """What one side gives another: a probe and parts; or hashes that nobody could deliver.

    base:     of news, the later of the known states that it is the difference to.
    patch:    the parts once more, written as what differs from `base`, where that may be shorter.
    is_aside: it says nothing of the state of the peer that it came from.
    """

    probe: Probe | None = None
    parts: tuple[Part, ...] = ()
    lost: tuple[bytes, ...] = ()
    base: Probe | None = None
    patch: bytes | None = None
    is_aside: bool = False


@dataclass(frozen=True, slots=True)
class Publication:
    """What became of local writes that were to be published."""

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
    holds:    (connection, probe) pairs whose content is now contained here; the peer is known to
              hold it.
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
    ended:    (connection, in full) of each value that was merged or refused: whether all of it was
              taken.
    unwanted: parts that were missing and are not needed any more.
    breaches: (connection, reason) of those that sent what no honest peer sends.
    unread:   it came as the difference to a state that is not here, so no part of it could be read.
    lacking:  (connection, parts) that what other peers stated before needs, of which nothing could
              be told until now.
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
    unread: bool = False
    lacking: tuple[tuple[str, tuple[bytes, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class News:
    """What a peer lacks, as offers to be sent one after the other.

    more:    there is more, to be asked for once these have left.
    reports: what cannot be sent.
    """

    offers: tuple[Offer, ...] = ()
    more: bool = False
    reports: tuple[Remark, ...] = ()


@dataclass(frozen=True, slots=True)
class Want:
    """A request for parts."""

    hashes: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer to a request, or a part of it; after the `last` one nothing comes."""

    body: object
    last: bool = True


class Regard(Enum):
    """How a peer is regarded.

    REFUSED:  it is not spoken to: nothing of it counts, and nothing is sent to it.
    STRANGER: it is parted with when it sends what no honest peer sends.
    WANTED:   the operator named it; it is never cut for what it relays.
    """

    REFUSED = "refused"
    STRANGER = "stranger"
    WANTED = "wanted"


class Why(Enum):
    """Why two states are compared.

    MEETING:  the peer answered our greeting.
    WELCOMED: the peer greeted us.
    DUE:      the interval is over.
    DOUBT:    the peer takes us to have a state that is not here.
    PULL:     somebody waits until the peer's state is here.
    ASKED:    the peer has begun a comparison; its first message comes next.
    """

    MEETING = "meeting"
    WELCOMED = "welcomed"
    DUE = "due"
    DOUBT = "doubt"
    PULL = "pull"
    ASKED = "asked"


@dataclass(frozen=True, slots=True)
class Step:
    """What a comparison has found out: what to say next, what to fetch, what the peer offered.

    is_done: this side has nothing more to ask; the comparison ends here once `need` has come.
    error:   why the peer's message is of no use; whoever waits for the comparison is told.
    """

    say: tuple[object, ...] = ()
    offers: tuple[Offer, ...] = ()
    need: tuple[bytes, ...] = ()
    is_done: bool = False
    error: str | None = None


class Comparison(Protocol):
    """One run of finding out how the states of two replicas differ."""

    @property
    def probe(self) -> Probe | None:
        """The state of ours that the peer is told by it; None: none."""
        ...

    def start(self) -> Step:
        """Return what to say first."""
        ...

    def receive(self, message: object) -> Step:
        """Take in a message of the peer; return what follows.

        Raises: PeerError: the message is illegal.
        """
        ...

    def ended(self) -> Probe | None:
        """Take note that no message will come; return what both sides have then, if it is known."""
        ...


class Undecodable(BadFormat):
    """An offer is no message of its protocol. It counts as a frame that cannot be read."""


class Replica(Protocol):
    """Something that replicates. Owned by one thread; every call may block on storage."""

    @property
    def probe(self) -> Probe:
        """How far it has come."""
        ...

    def publish(self) -> Publication:
        """Make local writes durable and part of what is offered.

        Raises: StoreError: nothing was published.
        """
        ...

    def absorb(self, offer: Offer, peer: Peer, *, asked: bool = False) -> Absorbed:
        """Take in what `peer` sent; durable on return.

        asked:  it answers a comparison or request of ours.
        Raises: PeerError: the offer is illegal, nothing of it was kept.
                StoreError: the store cannot keep it.
        """
        ...

    def news(self, peer: Peer, known: Sequence[Probe]) -> News | None:
        """Return what a peer lacks that holds `known`; None: nothing, as far as it is known."""
        ...

    def serve(self, peer: Peer, request: object) -> Iterator[Reply]:
        """Answer a request. For a `Want` the body is a list of parts, None for absent ones."""
        ...

    def compare(self, peer: Peer, why: Why, path: Sequence[object] = ()) -> Comparison | None:
        """Begin a comparison with a peer; None: there is nothing to say.

        path: of a pull, what it is about; nothing: everything.
        """
        ...

    def equals(self, peer: Peer, stated: Probe | None) -> bool:
        """Return whether a peer has what is here, as far as it is replicated with it.

        stated: what it last stated, if all of that is here.
        """
        ...

    def repair(self, parts: Sequence[Part]) -> None:
        """Put these parts, which peers had, in the place of damaged or missing ones.

        Raises: StoreError: the store cannot keep them.
        """
        ...

    def regard(self, peer: Peer) -> Regard:
        """Return how a peer is regarded: asked before anything of it counts or is sent to it."""
        ...

    def hear(self, peer: Peer) -> None:
        """Take note of a message of a peer, before anything of it is looked at."""
        ...

    def forget(self, peer: Peer) -> None:
        """Forget what is known of a connection that has ended."""
        ...
