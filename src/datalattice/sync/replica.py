"""Replica: the seam between something that replicates and everything that moves messages.

A replica keeps content-addressed *parts* and describes its state by a *probe*. Two replicas have
converged when their probes are equal. A `Replicator` calls:

    probe     its state
    publish   make local writes durable                              -> whether there were any
    absorb    take in what a peer sent                               -> Absorbed
    news      what a peer that holds these states lacks              -> News, or None
    serve     answer a request of a peer                             -> replies
    compare   begin to find out how the two states differ            -> Comparison, or None
    equals    whether a peer that stated a probe has our state
    repair    replace damaged parts
    regard    whether we speak to a peer: the one gate, both ways
    hear      count a message of a peer
    forget    a connection has ended

Missing parts are a value in `Absorbed`, never an exception. Every call may block on storage; none
knows the network. What `publish` or `absorb` reports is durable when it returns, so nothing is sent
before it is. See docs/design/replication.md.

The seam is about transport, not algebra: only the replica and its conversation know what a part is,
what a probe says and what a comparison asks. The replicator compares probe keys and counts hashes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Protocol

from datalattice.errors import BadFormat

FETCHES: Final = "fetches"
"""Feature of a peer that asks for the parts it lacks. Any other peer is sent offers with all their
parts, a limited number at a time, paced by their bytes."""

REPLICATES: Final = "replicates"
"""Feature of a peer of our kind. It is sent changes when a burst of them is over; any other peer at
the end of the pace window."""


@dataclass(frozen=True, slots=True)
class Peer:
    """Who is at the other end of a connection. Equality and hash are by `connection` alone.

    connection: its name, unique in this process.
    dialled:    this node made the connection.
    public_key: the key that the transport or a challenge has proved, else None.
    features:   what the peer can do, as words of its wire protocol, `FETCHES` and `REPLICATES`.
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
    """The state of a replica: equal keys, equal state. Only the replica reads `data`."""

    key: bytes
    data: object = None


@dataclass(frozen=True, slots=True)
class Offer:
    """What one side gives another: a probe and parts; or hashes of parts that no peer delivered.

    base:     of news, the known state that the parts are the difference to; of two the later one.
    patch:    the same parts as a patch of `base`, where that may be shorter.
    is_aside: the probe is not the state of the peer that sent it.
    """

    probe: Probe | None = None
    parts: tuple[Part, ...] = ()
    lost: tuple[bytes, ...] = ()
    base: Probe | None = None
    patch: bytes | None = None
    is_aside: bool = False


@dataclass(frozen=True, slots=True)
class Remark:
    """Something refused or noticed: `kind` is a metric label, `text` describes the first case.

    is_refusal: nothing of a value was taken.
    is_loss:    a part of a value was left out, since it cannot be merged.
    """

    kind: str
    text: str
    count: int = 1
    is_refusal: bool = False
    is_loss: bool = False


@dataclass(slots=True)
class Absorbed:
    """The result of an offer. It is filled in on the offer's way through the replica.

    missing:  parts that are needed first; the value is merged once they have been absorbed.
    holds:    (connection, probe) pairs: the peer holds this state, and all of it is here now.
    parts_of: the same for probes of a part of the peer's state.
    finished: keys of probes that need nothing more: contained or refused.
    dropped:  keys of probes that were given up.
    changed:  the replica's own probe changed.
    reports:  what was refused or noticed, for the operator.
    refused:  of the finished keys those whose value was not taken, and why.
    disputed: of the finished keys those whose value had data under an owner of this node that the
              owner did not sign.
    superseded: (key, newer key): the same peer has replaced the first; the second contains it.
    ended:    (connection, in full) of each value that was merged or refused.
    unwanted: missing parts that are not needed any more.
    breaches: (connection, reason) of peers that sent what no honest peer sends.
    unread:   the offer is a patch of a state that is not here, so it could not be read.
    lacking:  parts that values of other peers need, by the connection that stated them.
    readmits: whom the replica admits may have changed, so each partner is asked about again.
    """

    missing: list[bytes] = field(default_factory=list)
    holds: list[tuple[str, Probe]] = field(default_factory=list)
    finished: list[bytes] = field(default_factory=list)
    dropped: list[bytes] = field(default_factory=list)
    changed: bool = False
    reports: list[Remark] = field(default_factory=list)
    refused: dict[bytes, str] = field(default_factory=dict)
    disputed: set[bytes] = field(default_factory=set)
    superseded: list[tuple[bytes, bytes]] = field(default_factory=list)
    parts_of: list[tuple[str, Probe]] = field(default_factory=list)
    ended: list[tuple[str, bool]] = field(default_factory=list)
    unwanted: list[bytes] = field(default_factory=list)
    breaches: list[tuple[str, str]] = field(default_factory=list)
    unread: bool = False
    lacking: dict[str, list[bytes]] = field(default_factory=dict)
    readmits: bool = False


@dataclass(frozen=True, slots=True)
class News:
    """What a peer lacks, as offers to be sent one after the other.

    more:    there is more, to be asked for once these have left.
    reports: what cannot be sent.
    is_behind: the peer lacks more than news can say, so it is to be compared.
    is_whole:  a peer finds all that it lacks from the probe, so no comparison is due for a while.
    """

    offers: tuple[Offer, ...] = ()
    more: bool = False
    reports: tuple[Remark, ...] = ()
    is_behind: bool = False
    is_whole: bool = True


@dataclass(frozen=True, slots=True)
class Want:
    """A request for parts."""

    hashes: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer to a request, or a part of it; `last`: the last one."""

    body: object
    last: bool = True


class Regard(Enum):
    """How a peer is regarded.

    REFUSED:  nothing that it sends counts, and nothing is sent to it.
    STRANGER: it is disconnected when it sends what no honest peer sends.
    WANTED:   the operator named it; it is never disconnected for what it relays.
    """

    REFUSED = "refused"
    STRANGER = "stranger"
    WANTED = "wanted"


class Why(Enum):
    """Why two states are compared.

    MEETING:  the peer answered our greeting.
    WELCOMED: the peer greeted us.
    DUE:      the interval is over.
    DIRTY:    a message may have been lost, or the last comparison left parts out.
    DOUBT:    the peer assumes that we hold a state which is not here.
    PULL:     a caller waits until the peer's state is here.
    ASKED:    the peer has begun a comparison; its first message comes next.
    """

    MEETING = "meeting"
    WELCOMED = "welcomed"
    DUE = "due"
    DIRTY = "dirty"
    DOUBT = "doubt"
    PULL = "pull"
    ASKED = "asked"


@dataclass(frozen=True, slots=True)
class Step:
    """What follows in a comparison: what to say next, what to fetch, what the peer offered.

    is_done: this side asks nothing more; the comparison ends here once `need` has come.
    error:   why the peer's message cannot be used; a pull that waits for the comparison fails.
    is_partial: some of the difference was left out, for another comparison.
    """

    say: tuple[object, ...] = ()
    offers: tuple[Offer, ...] = ()
    need: tuple[bytes, ...] = ()
    is_done: bool = False
    error: str | None = None
    is_partial: bool = False


class Comparison(Protocol):
    """One run of finding out how the states of two replicas differ."""

    @property
    def probe(self) -> Probe | None:
        """Our state, if the comparison states it to the peer."""

    def start(self) -> Step:
        """Return what to say first."""

    def receive(self, message: object) -> Step:
        """Take in a message of the peer; return what follows.

        Raises: PeerError: the message is illegal.
        """

    def ended(self) -> Probe | None:
        """Note that no message follows; return the state that both sides have now, if known."""


class Undecodable(BadFormat):
    """An offer that does not decode. It counts as a malformed frame."""


class Replica(Protocol):
    """Something that replicates. Owned by one thread; every call may block on storage."""

    @property
    def probe(self) -> Probe:
        """The present state."""

    def publish(self) -> bool:
        """Make local writes durable and part of what is offered; return whether there were any.

        Raises: StoreError: nothing was published.
        """

    def absorb(self, offer: Offer, peer: Peer, *, asked: bool = False) -> Absorbed:
        """Take in what `peer` sent; durable on return.

        asked:  it answers a comparison or request of ours.
        Raises: PeerError: the offer is illegal, nothing of it was kept.
                StoreError: the store cannot keep it.
        """

    def news(self, peer: Peer, known: Sequence[Probe]) -> News | None:
        """Return what a peer that holds `known` lacks; None: nothing, as far as is known."""

    def serve(self, peer: Peer, request: object) -> Iterator[Reply]:
        """Answer a request. For a `Want` the body is a list of parts, None for absent ones."""

    def compare(self, peer: Peer, why: Why, path: Sequence[object] = ()) -> Comparison | None:
        """Begin a comparison with a peer; None: there is nothing to say.

        path: of a pull, the part of the state that is pulled; empty: all of it.
        """

    def equals(self, peer: Peer, stated: Probe | None) -> bool:
        """Return whether a peer has our state, or the part of it that is replicated with it.

        stated: what it last stated, if all of that is here.
        """

    def repair(self, parts: Sequence[Part]) -> None:
        """Replace damaged or missing parts by these, which peers delivered.

        Raises: StoreError: the store cannot keep them.
        """

    def regard(self, peer: Peer) -> Regard:
        """Return how a peer is regarded: asked before anything of it counts or is sent to it."""

    def hear(self, peer: Peer) -> None:
        """Count a message of a peer, before it is decoded."""

    def forget(self, peer: Peer) -> None:
        """Forget what is known of a connection that has ended."""
