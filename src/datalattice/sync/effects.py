"""Effects: what a replicator wants done, how fast it goes about things, and how it stands.

Plain records: whoever runs a replicator takes them after each call and carries them out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from datalattice.sync.wants import ROUNDS_MAX

BROADCAST_DELAY_MS: Final = 50
BURST_MAX: Final = 8
ROOT_SYNC_INTERVAL_MS: Final = 30_000
REQUEST_TIMEOUT_MS: Final = 5_000
ASK_TIMEOUT_MS: Final = 10_000


@dataclass(frozen=True, slots=True)
class Pace:
    """The time constants of a replicator, in milliseconds.

    broadcast_delay_ms: least time from one push to a peer to the next. A peer of our kind is told
                        sooner, when a burst of changes is over; up to `burst_max` times in a row,
                        so that on average the time holds for it, too.
    """

    broadcast_delay_ms: int = BROADCAST_DELAY_MS
    burst_max: int = BURST_MAX
    root_sync_interval_ms: int = ROOT_SYNC_INTERVAL_MS
    request_timeout_ms: int = REQUEST_TIMEOUT_MS
    ask_timeout_ms: int = ASK_TIMEOUT_MS
    rounds_max: int = ROUNDS_MAX


@dataclass(frozen=True, slots=True)
class Note:
    """Something an operator may want to count: a word, the peer, and the circumstances.

    `count` of them happened together, and the text is about the first.
    """

    kind: str
    peer: str
    text: str
    count: int = 1


@dataclass(frozen=True, slots=True)
class Standing:
    """How it stands with a connection.

    joined:        it is told of changes.
    equal:         the last state that the peer told is the one that is here, or the part of it
                   that is replicated with it.
    pending_count: requests that it has not answered.
    public_key:    the key that it has proved to hold.
    """

    id: str
    joined: bool
    equal: bool
    pending_count: int
    public_key: bytes | None = None


@dataclass(frozen=True, slots=True)
class Pull:
    """Somebody waits until a peer's state is here.

    path:      what is asked for; nothing: the root.
    is_strict: it counts as not taken when something was left out of it that is said to be of an
               owner whose key is here.
    """

    token: object
    path: tuple[object, ...] = ()
    is_strict: bool = False


@dataclass(slots=True)
class Effects:
    """What the caller has to do, in order.

    sends:      (session, payload) to be written.
    closes:     (session, reason) to be closed once everything before is written.
    finished:   (token, error or nil) of pulls that came to an end.
    changed:    whether the replica's state is another one.
    notes:      events to count and log.
    identified: (session, public key) that a challenge proved.
    useful:     sessions of which a message changed the state, answered, or asked for parts it got.
    taken:      (session, nil or why not) of values that were taken in full, or were not.
    breaches:   sessions among `closes` whose peers did what no honest peer does.
    suspects:   (session, reason) of wanted peers that did so; they stay.
    push_count: states and differences among the sends.
    twins:      starts of other nodes with this node's identity, as peers report them.
    healed, unhealed: parts that `heal` asked for, and got or did not get.
    """

    sends: list[tuple[str, bytes]] = field(default_factory=list)
    closes: list[tuple[str, str]] = field(default_factory=list)
    finished: list[tuple[object, str | None]] = field(default_factory=list)
    changed: bool = False
    notes: list[Note] = field(default_factory=list)
    identified: list[tuple[str, bytes]] = field(default_factory=list)
    healed: list[bytes] = field(default_factory=list)
    unhealed: list[bytes] = field(default_factory=list)
    push_count: int = 0
    twins: list[object] = field(default_factory=list)
    useful: set[str] = field(default_factory=set)
    taken: list[tuple[str, str | None]] = field(default_factory=list)
    breaches: list[str] = field(default_factory=list)
    suspects: list[tuple[str, str]] = field(default_factory=list)

    def note(self, kind: str, peer: str, text: str, count: int = 1) -> None:
        """Have something counted and logged."""
        self.notes.append(Note(kind, peer, text, count))

    def finish(self, pull: Pull | None, error: str | None) -> None:
        """End a pull, if it is one."""
        if pull is not None:
            self.finished.append((pull.token, error))

    @property
    def is_silent(self) -> bool:
        """Whether there is nothing to do; the state may be another one all the same."""
        parts = self.healed or self.unhealed or self.suspects
        return not (
            self.sends
            or self.closes
            or self.finished
            or self.notes
            or self.identified
            or self.twins
            or parts
        )

    def __bool__(self) -> bool:
        return self.changed or not self.is_silent
