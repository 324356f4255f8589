"""Session: one conversation with one peer - what it holds, what it was asked, how it behaved.

Also the events that a codec makes of a peer's bytes. A codec knows one wire protocol and nothing of
sessions; a session knows the state of one connection and nothing of bytes; the replicator joins
them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final, Protocol

from datalattice.cells import Value
from datalattice.crypto import KeyPair
from datalattice.sync.conduct import Conduct
from datalattice.sync.effects import Pace, Pull, Standing
from datalattice.sync.plain import WHOLE_BYTES_PER_S, PlainPeer, PlainUpdate
from datalattice.sync.replica import Offer, Part, Probe
from datalattice.sync.starts import Start

UNSENT_MAX: Final = 128
"""Frames that may wait to be written to one peer before pushes to it are held back."""

BATCHES_MAX: Final = 4
"""Requests for parts that may be in flight to one peer."""

PENDING_MAX: Final = 64
"""Requests of ours that may wait for an answer of one peer."""

QUIET_MS: Final = 2
"""A burst of changes is over when none comes for this long: then it may be told early."""

NO_SUCH: Final = "ARGUMENT"
"""How the error of an answer begins that is about what was asked for."""

CROWDED_MS: Final = 500
"""How long what strangers changed may wait to be told while more of them wait to be heard.

Each push costs every peer a merge and a commit: what honest peers write would stand in line there.
"""

LATE_MAX: Final = 16
"""Requests for parts that timed out and whose answer is used all the same, for one peer."""

TOLD_MAX: Final = 64
"""States of which it is remembered that a peer was told them."""

RETELL_MS: Final = 1_000
"""Least time between two repeats, to a stranger, of a state that it could not read."""


# --- what a peer said ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Offered:
    """It has something."""

    offer: Offer


@dataclass(frozen=True, slots=True)
class Wanted:
    """It asks for parts."""

    request: object
    hashes: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Answered:
    """It answers the request with this id. `error` is set when it refused."""

    id: object
    content: object
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Replied:
    """It asked something that the codec answered by itself: send this."""

    payload: bytes


@dataclass(frozen=True, slots=True)
class Joined:
    """It wants to be told of changes; send this.

    terse: it reads patches. start: what it says of its start.
    """

    payload: bytes
    terse: bool = False
    start: Value = None


@dataclass(frozen=True, slots=True)
class Twin:
    """It knows another node with our identity, which said this of its start; send the payload."""

    payload: bytes
    start: Value


@dataclass(frozen=True, slots=True)
class Challenged:
    """It wants to know who we are."""

    challenge: object


@dataclass(frozen=True, slots=True)
class Left:
    """It says goodbye, or why it will not have us."""

    reason: str = "the peer said goodbye"


@dataclass(frozen=True, slots=True)
class Ignored:
    """It said something that has no effect here."""

    reason: str


@dataclass(frozen=True, slots=True)
class Bare:
    """It said something that is its state if it is a plain peer, and else has no effect."""

    offer: Offer
    reason: str


Heard = Offered | Wanted | Answered | Replied | Joined | Challenged | Left | Ignored | Bare | Twin


class Codec(Protocol):
    """One wire protocol: bytes of a peer to events, and what we say to bytes."""

    def decode(self, payload: bytes, peer: str) -> Heard:
        """Return what `peer` said.

        Raises: BadFormat: the payload is not a message.
        """
        ...

    def parts(self, content: object, hashes: Sequence[bytes]) -> list[Part | None]:
        """Return the parts in an answer to `want(hashes)`, None for those it does not have.

        Raises: PeerError: it is no answer to that, or holds parts that were not asked for.
        """
        ...

    def offer(self, content: object, path: tuple[Value, ...] = ()) -> Offer | None:
        """Return what the content of an answer to `ask` for a path offers."""
        ...

    def refuse(self, text: str) -> bytes:
        """Return the answer to a payload that is not a message."""
        ...

    def hello(self, id: int) -> bytes:
        """Return the message that asks to be told of changes. It is answered."""
        ...

    def questions(self, *, plain: bool) -> Sequence[tuple[Value, ...]]:
        """Return the paths to ask a peer for, so that the answers together are its state."""
        ...

    def ask(self, id: int, path: tuple[Value, ...] = ()) -> bytes:
        """Return the question for a peer's state, or for what it has at a path."""
        ...

    def welcomed(self, content: object) -> bool:
        """Return whether the content of an answer to `hello` says that the peer reads patches."""
        ...

    def is_plain(self, content: object) -> bool:
        """Return whether the content of an answer to `hello` is that of a plain peer."""
        ...

    def more_questions(self, turn: int) -> Sequence[tuple[Value, ...]]:
        """Return what to ask a peer of our kind beside its state, in its round number `turn`."""
        ...

    def more(self, content: object, path: tuple[Value, ...], turn: int) -> Offer | None:
        """Return what the content of the answer to such a question offers."""
        ...

    def spell_out(self, heard: Sequence[Probe], told: Probe | None, peer: str) -> PlainUpdate:
        """Return what a plain peer lacks that has `heard` and was told `told`."""
        ...

    def started(self, content: object) -> Value:
        """Return what a peer says of its start in the content of an answer to `hello`."""
        ...

    def twin(self, id: int, start: Start) -> bytes:
        """Return the message that there is another node with the receiver's identity."""
        ...

    def push(self, offer: Offer, *, terse: bool) -> bytes:
        """Return the message that carries an offer; `terse`: to one that reads patches."""
        ...

    def want(self, id: int, hashes: Sequence[bytes]) -> bytes:
        """Return the request for parts."""
        ...

    def give(self, request: object, parts: Sequence[Part | None], hashes: Sequence[bytes]) -> bytes:
        """Return the answer to a request for parts."""
        ...

    def challenge(self, id: int, asker: KeyPair, token: bytes, wanted: bytes | None) -> bytes:
        """Return the request to prove a key: the wanted one, or any."""
        ...

    def prove(self, challenge: object, own: KeyPair | None) -> bytes:
        """Return the answer to a challenge."""
        ...

    def challenger(self, challenge: object) -> bytes | None:
        """Return the key that signed a challenge, nil when none did."""
        ...

    def proof(self, content: object, asker: KeyPair, token: bytes, wanted: bytes | None) -> bytes:
        """Return the public key that an answer to `challenge` proves.

        Raises: PeerError: it proves none, or another than the wanted one.
        """
        ...

    @property
    def batch_max(self) -> int:
        """Most hashes in one `want`."""
        ...


# --- our side of it -----------------------------------------------------------------------------


class Purpose(Enum):
    """Why a request was sent."""

    HELLO = "hello"
    ASK = "ask"
    WANT = "want"
    MORE = "more"
    CHALLENGE = "challenge"
    TWIN = "twin"


@dataclass(frozen=True, slots=True)
class Pending:
    """A request that was sent and not answered.

    secret: a challenge's token.
    path:   what an ASK asks for; `in_round`: a round of questions to a plain peer waits for it.
    twin:   the session of another node with this peer's identity, which is told after the answer.
    """

    purpose: Purpose
    deadline_ms: int
    hashes: tuple[bytes, ...] = ()
    pull: Pull | None = None
    secret: bytes = b""
    path: tuple[Value, ...] = ()
    in_round: bool = False
    twin: str = ""


@dataclass(slots=True)
class Session:
    """The state of one connection.

    sent, received: the last states that this peer was told, and told us and we took in. What it is
                    sent next is the difference to them. They are hints: a peer that lacks a cell
                    all the same asks for it.
    told_keys:      those of the last states that this peer was told.
    misread:        it could not read one of them, so the next one is not told as a patch;
    retell_ms:      when a stranger may say that again.
    stated:         the key of the last state that this peer told, taken in or not.
    is_settled:     whether `received` is what that came to.
    dirty:          there may be something to push.
    sent_last:      which of the two is the later one.
    greeted:        it is known what it can do: it said hello, or answered ours.
    terse:          it reads patches, so it is one of ours.
    plain:          what is known of a peer that has none of our extensions.
    paced_ms:       when pushes that keep to the pace would have used up those that were made.
    early:          the next push may come before the window is over, since few were made lately.
    window_ms:      when the window of the last push is over.
    late:           the parts of requests that timed out: an answer that comes too late is used.
    public_key:     the key that the other end has proved to hold, nil while it has not.
    pinned:         the key we insist on, if any.
    wanted:         the operator named this peer; it is never cut for what it relays.
    turn:           how often it was asked for more than its state.
    start:          what it has said of its start, signed with its proved key.
    claimed:        the key that signed a challenge of it, which proves nothing.
    """

    id: str
    outbound: bool
    joined: bool
    opened_ms: int
    public_key: bytes | None = None
    pinned: bytes | None = None
    wanted: bool = False
    sent: Probe | None = None
    received: Probe | None = None
    sent_last: bool = False
    told_keys: deque[bytes] = field(default_factory=lambda: deque(maxlen=TOLD_MAX))
    misread: bool = False
    retell_ms: int = 0
    stated: bytes | None = None
    is_settled: bool = False
    greeted: bool = False
    terse: bool = False
    plain: PlainPeer | None = None
    claimed: bytes | None = None
    start: Start | None = None
    dirty: bool = False
    paced_ms: int = 0
    early: bool = False
    window_ms: int = 0
    push_after_ms: int = 0
    sync_after_ms: int = 0
    unsent_count: int = 0
    conduct: Conduct = field(default_factory=Conduct)
    closing: bool = False
    pending: dict[int, Pending] = field(default_factory=dict)
    late: dict[int, tuple[bytes, ...]] = field(default_factory=dict)
    last_id: int = 0
    turn: int = 0

    def twins(self, sessions: Iterable[Session]) -> list[Session]:
        """Return the live sessions of the same identity and another start."""
        start = self.start
        if start is None:
            return []
        return [
            one
            for one in sessions
            if not one.closing
            and one.start is not None
            and one.public_key == self.public_key
            and one.start.number != start.number
        ]

    def next_id(self) -> int:
        """Return a request id that is new on this connection."""
        self.last_id += 1
        return self.last_id

    @property
    def known(self) -> tuple[Probe, ...]:
        """The states that this peer is taken to hold, the later one first."""
        both = (self.sent, self.received) if self.sent_last else (self.received, self.sent)
        return tuple(probe for probe in both if probe is not None)

    @property
    def is_unproved(self) -> bool:
        """Whether the key that we insist on is not proved, so that nothing else counts yet."""
        return self.pinned is not None and self.public_key != self.pinned

    @property
    def is_full(self) -> bool:
        """Whether this peer takes frames more slowly than we make them."""
        return self.unsent_count >= UNSENT_MAX

    def deadlines(self) -> Iterator[int]:
        """Yield the times at which there is something to do for this peer."""
        for pending in self.pending.values():
            yield pending.deadline_ms
        if self.joined and not (self.is_full or self.closing):
            yield self.sync_after_ms
            if self.dirty and self.may_push:
                yield self.push_after_ms

    @property
    def may_push(self) -> bool:
        """Whether this peer may be told something, as far as the pace allows."""
        if not (self.joined and self.greeted) or self.is_full or self.closing:
            return False
        # Complete values may be long: one lot of them at a time, once it is known what is lacking.
        return self.plain is None or (self.plain.is_asked and not self.unsent_count)

    def told(self, probe: Probe, now_ms: int, pace: Pace) -> None:
        """Note that this peer was told a state; decides when it may be told the next one."""
        self.sent, self.sent_last, self.misread = probe, True, False
        self.told_keys.append(probe.key)
        self.sync_after_ms = now_ms + pace.root_sync_interval_ms
        self.paced_ms = max(self.paced_ms, now_ms) + pace.broadcast_delay_ms
        ahead_ms = (pace.burst_max - 1) * pace.broadcast_delay_ms
        self.early = self.terse and self.paced_ms - ahead_ms <= now_ms
        self.push_after_ms = self.window_ms = now_ms + pace.broadcast_delay_ms

    def asked_for(self, hashes: Collection[bytes], now_ms: int) -> bool:
        """Note which cells this peer lacks; return whether it is to be told our state once more.

        Who asks for the very top of a state lacks what the patch rested on, and so lost all of it:
        the next one rests on what the peer itself told.
        """
        if not any(key in hashes for key in self.told_keys):
            return False
        if now_ms < self.retell_ms and not self.wanted:
            return False
        self.retell_ms = now_ms + RETELL_MS
        self.told_keys.clear()
        self.sent, self.sent_last = None, False
        self.misread = self.dirty = True
        return True

    def told_whole(self, whole: PlainUpdate, now_ms: int, pace: Pace) -> None:
        """Note that this plain peer was told something; decides when it may be told more."""
        assert self.plain is not None
        self.plain.told, self.dirty = whole.told, not whole.is_all
        pause_ms = 1_000 * whole.size_bytes // WHOLE_BYTES_PER_S
        self.push_after_ms = now_ms + max(pace.broadcast_delay_ms, pause_ms)

    def changed(self, now_ms: int, *, crowded: bool = False) -> None:
        """Note that there is something new to tell: at the end of the window, or of the burst.

        crowded: strangers made it, and more of them wait: it has time until `CROWDED_MS`, or goes
                 with what others change meanwhile.
        """
        was_dirty, self.dirty = self.dirty, True
        if crowded and self.plain is None:
            if not was_dirty:
                self.push_after_ms = max(self.push_after_ms, now_ms + CROWDED_MS)
            return
        if self.early:
            self.push_after_ms = min(self.window_ms, now_ms + QUIET_MS)
        elif self.plain is None:
            self.push_after_ms = min(self.push_after_ms, self.window_ms)

    def states(self, key: bytes) -> None:
        """Note that this peer told a state; nothing is known of how it compares with ours yet."""
        self.stated, self.is_settled = key, False

    def heard(self, probe: Probe, finished: Collection[bytes], *, part: bool = False) -> None:
        """Note that all of a state that this peer told is here now, as `probe`.

        finished: keys of the states as they were told that need nothing more. part: it is only a
                  part of the peer's state.
        """
        if self.plain is not None:
            self.plain.holds(probe, part=part)
        elif part:
            return
        else:
            self.received, self.sent_last = probe, False
            self.is_settled = self.stated in finished  # else it has told another one since
        self.dirty = True

    def standing(self, key: bytes) -> Standing:
        """Return how it stands with this peer, when `key` is the key of what we would tell it."""
        # That we sent it all says nothing of what it took: only its own word counts.
        equal = self.is_settled and self.received is not None and self.received.key == key
        if self.plain is not None:
            equal = self.plain.level == key
        return Standing(self.id, self.joined, equal, len(self.pending), self.public_key)

    def excuse(self, busy_ms: int) -> None:
        """Grant more time for answers to what was asked."""
        for id, pending in self.pending.items():
            self.pending[id] = replace(pending, deadline_ms=pending.deadline_ms + busy_ms)

    def expire(self, id: int) -> Pending:
        """Give up waiting for an answer; return what was asked."""
        pending = self.pending.pop(id)
        if pending.hashes:
            if len(self.late) >= LATE_MAX:
                del self.late[next(iter(self.late))]
            self.late[id] = pending.hashes
        return pending

    def batches_in_flight(self) -> int:
        """Return how many requests for parts wait for an answer."""
        return sum(pending.purpose is Purpose.WANT for pending in self.pending.values())
