"""Conversation: what one replica and one peer say to each other, in one wire protocol.

A conversation has no input and no output, and time is passed in. `receive` turns a payload of the
peer into *events* for the replicator; `send` turns a *saying* of the replicator into payloads. The
conversation owns all that one connection needs to remember: request ids, which answer belongs to
which request, deadlines, the peer's features, and the proof of its key. It has no storage.

One message may cause several events, and so may `send` (a comparison may end at once). Frames and
events are queued: take `frames()` and then `events()` after each call.

An *exchange* is a number of this conversation for a comparison: positive for ours, negative for one
that the peer began. Each of its messages is a `Round`, and `Ended` follows the last of them. An
answer to a request for parts carries the request, so the replicator keeps no table of ids.

Source: docs/design/conversation.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Protocol

from datalattice.sync.replica import Offer, Part, Peer, Reply, Step, Want

GOODBYE: Final = "the peer said goodbye"
NO_ANSWER: Final = "the peer did not answer in time"
CLOSED: Final = "the connection was closed"

# --- events: what a replicator learns from a conversation -----------------------------------------


@dataclass(frozen=True, slots=True)
class Joined:
    """Changes are pushed to the peer from now on: this node dialled it, or it asked for them."""


@dataclass(frozen=True, slots=True)
class Met:
    """The peer's features are known; `Conversation.peer` has them.

    answered: it answered our greeting; otherwise it greeted us.
    start:    its signed start, the first time it sends one; see docs/design/forks.md.
    """

    answered: bool
    start: object = None


@dataclass(frozen=True, slots=True)
class Proved:
    """The peer has proved that it holds this key."""

    public_key: bytes


@dataclass(frozen=True, slots=True)
class Claimed:
    """The key that signed the peer's message, not yet proved to be the peer's; None: unsigned."""

    public_key: bytes | None


@dataclass(frozen=True, slots=True)
class Offered:
    """The peer offers something that was not asked for."""

    offer: Offer


@dataclass(frozen=True, slots=True)
class Bare:
    """The peer sent a value that is not inside a message.

    It is an offer if the peer is known to broadcast its state, and else ignored for `reason`.
    """

    offer: Offer
    reason: str


@dataclass(frozen=True, slots=True)
class Asked:
    """The peer requests something; the answer goes back to `exchange`.

    is_open: allowed before the peer is admitted, as a request to become a member is.
    """

    exchange: object
    request: object
    is_open: bool = False


@dataclass(frozen=True, slots=True)
class Answered:
    """The peer answered `saying`, in time or late. The events after it say what the answer was."""

    saying: object


@dataclass(frozen=True, slots=True)
class Round:
    """The peer's message in a comparison, which either side may have begun."""

    exchange: int
    message: object


@dataclass(frozen=True, slots=True)
class Ended:
    """A comparison is over: no message of it follows. `error`: why it ended early."""

    exchange: int
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Delivered:
    """The peer's answer to a request for parts; it lacks the requested parts not among `parts`."""

    request: Want
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Failed:
    """A request for parts was not answered in time."""

    request: Want


@dataclass(frozen=True, slots=True)
class Doubted:
    """A message between the two may have been lost, so their states are to be compared."""

    reason: str


@dataclass(frozen=True, slots=True)
class TwinMet:
    """The peer is connected to another node with our identity, which signed this start."""

    start: object


@dataclass(frozen=True, slots=True)
class Fault:
    """The peer did something wrong; `kind` is counted, `is_fatal` ends the conversation."""

    kind: str
    text: str
    is_fatal: bool = False


@dataclass(frozen=True, slots=True)
class Left:
    """The peer ends the connection, for this reason."""

    reason: str = GOODBYE


PeerEvent = (
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
    | Doubted
    | TwinMet
    | Fault
    | Left
)

# --- sayings: what a replicator has a conversation send -------------------------------------------


@dataclass(frozen=True, slots=True)
class Greet:
    """Begin: prove our key, ask for the peer's, and greet a peer that this node dialled."""


@dataclass(frozen=True, slots=True)
class DemandProof:
    """Ask the peer to prove its key."""


@dataclass(frozen=True, slots=True)
class Push:
    """Send the peer our changes."""

    offer: Offer


@dataclass(frozen=True, slots=True)
class Compare:
    """Begin a comparison with its first step."""

    step: Step


@dataclass(frozen=True, slots=True)
class Continue:
    """Send the next step of a comparison."""

    exchange: int
    step: Step


@dataclass(frozen=True, slots=True)
class Finish:
    """Tell the peer that this side needs nothing more from a comparison."""

    exchange: int


@dataclass(frozen=True, slots=True)
class Request:
    """Ask for parts."""

    want: Want


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer a request of the peer."""

    exchange: object
    reply: Reply


@dataclass(frozen=True, slots=True)
class Deny:
    """Refuse to answer, in the same words as for something unknown."""

    exchange: object


@dataclass(frozen=True, slots=True)
class Refuse:
    """Tell the peer that its last message cannot be read."""

    text: str


@dataclass(frozen=True, slots=True)
class TellTwin:
    """Tell the peer that another node has its identity.

    next: the connection of that node, which is told once this peer has answered.
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

# --- what a conversation is -----------------------------------------------------------------------


class Conversation(Protocol):
    """One protocol with one peer for one replica. One thread uses it."""

    @property
    def peer(self) -> Peer:
        """Who is at the other end, as far as that is known and proved."""

    @property
    def batch_max(self) -> int:
        """Greatest number of parts in one request."""

    @property
    def room(self) -> int:
        """How many requests for parts may be sent now."""

    @property
    def pending_count(self) -> int:
        """Requests of ours that wait for an answer; at most `PENDING_MAX` are begun."""

    @property
    def deadline_ms(self) -> int | None:
        """When `expire` must be called, None while nothing is awaited."""

    def send(self, saying: Saying, now_ms: int) -> int | None:
        """Send something; return the exchange of a comparison that awaits answers."""

    def receive(self, payload: bytes, now_ms: int) -> None:
        """Take in a payload of the peer. What is wrong with it is a `Fault` event."""

    def expire(self, now_ms: int) -> None:
        """Give up the requests whose deadline has passed."""

    def excuse(self, busy_ms: int) -> None:
        """Extend all deadlines by the time for which this node read nothing."""

    def close(self) -> None:
        """End the conversation: its open requests and comparisons fail."""

    def frames(self) -> list[bytes]:
        """Return the payloads to be sent, once each."""

    def events(self) -> list[PeerEvent]:
        """Return what happened, in order, once each."""


class Outbox:
    """Base of conversations: queues of payloads and of events, each returned once."""

    def __init__(self) -> None:
        self._frames: list[bytes] = []
        self._events: list[PeerEvent] = []

    def frames(self) -> list[bytes]:
        """Return the payloads to be sent, once each."""
        frames, self._frames = self._frames, []
        return frames

    def events(self) -> list[PeerEvent]:
        """Return what happened, in order, once each."""
        events, self._events = self._events, []
        return events


class WireProtocol(Protocol):
    """Makes conversations: one wire protocol of one replica."""

    def converse(self, peer: Peer, pinned: bytes | None) -> Conversation:
        """Return a conversation with a peer that must prove the key `pinned`, if one is given."""


# --- requests: which answer belongs to which question ---------------------------------------------

BATCHES_MAX: Final = 4
"""Requests for parts that may be in flight to one peer."""

PENDING_MAX: Final = 64
"""Requests of ours that may wait for an answer of one peer."""

LATE_MAX: Final = 16
"""Timed-out requests for parts, for each peer, whose late answer is still used."""


@dataclass(slots=True)
class Pending:
    """A saying that is not answered yet. Only the wire protocol reads `detail`."""

    saying: object
    deadline_ms: int
    detail: object = None


class Requests:
    """The open requests of one conversation, by id: correlation, deadlines, and late answers."""

    def __init__(self) -> None:
        self._pending: dict[int, Pending] = {}
        self._late: dict[int, Request] = {}
        self._last_id = 0

    def __len__(self) -> int:
        return len(self._pending)

    def __iter__(self) -> Iterator[Pending]:
        return iter(self._pending.values())

    def add(self, saying: object, deadline_ms: int, detail: object = None) -> int:
        """Await an answer; return the id to ask with, which no earlier request had."""
        # Ids are never reused: a late answer to another request would fit.
        self._last_id += 1
        self._pending[self._last_id] = Pending(saying, deadline_ms, detail)
        return self._last_id

    def answered(self, id: object) -> Pending | None:
        """Return the request that an answer with this id belongs to, once; None: there is none."""
        if type(id) is not int:  # `True` equals 1 in Python but is another value on the wire
            return None
        late = self._late.pop(id, None)
        pending = self._pending.pop(id, None)
        return Pending(late, 0) if pending is None and late is not None else pending

    def partly_answered(self, id: object, count: int, deadline_ms: int) -> Want | None:
        """Take the first `count` parts off a request; the rest of its answer is still awaited.

        Returns: a request for these parts; None: there is no such request, or it has fewer.
        """
        pending = self._pending.get(id) if type(id) is int else None
        if pending is None or not isinstance(pending.saying, Request):
            return None
        # Parts come in the order of the request, so a count says which they are.
        hashes = pending.saying.want.hashes
        # A part of an answer has at least one hash and leaves at least one.
        if not 0 < count < len(hashes):
            return None
        pending.saying = Request(Want(hashes[count:]))
        pending.deadline_ms = deadline_ms
        return Want(hashes[:count])

    def expired(self, now_ms: int) -> list[Pending]:
        """Remove and return the requests whose deadline has passed."""
        ids = [id for id, one in self._pending.items() if one.deadline_ms <= now_ms]
        found = [self._pending.pop(id) for id in ids]
        for id, one in zip(ids, found, strict=True):
            # A late answer still holds parts that are wanted: the newest 16 requests are kept.
            if isinstance(one.saying, Request):
                if len(self._late) >= LATE_MAX:
                    del self._late[next(iter(self._late))]
                self._late[id] = one.saying
        return found

    def excuse(self, busy_ms: int) -> None:
        """Extend all deadlines."""
        # The answers may have come in that time and lie unread in the socket.
        for one in self._pending.values():
            one.deadline_ms += busy_ms

    def clear(self) -> None:
        """Await nothing more."""
        self._pending.clear()

    @property
    def deadline_ms(self) -> int | None:
        """When the first request is late."""
        return min([one.deadline_ms for one in self]) if self._pending else None

    @property
    def room(self) -> int:
        """How many requests for parts may be sent now."""
        return BATCHES_MAX - sum(isinstance(one.saying, Request) for one in self)
