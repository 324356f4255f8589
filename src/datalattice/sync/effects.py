"""Effects: what a replicator wants done, its time constants, and the status of its connections.

Plain records: the caller of a replicator takes them after each call and carries them out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from datalattice.sync.replica import Probe
from datalattice.sync.wants import ROUNDS_MAX

BROADCAST_DELAY_MS: Final = 50  # one push for many small changes
BURST_MAX: Final = 8  # early pushes in a row, before the delay holds again
ROOT_SYNC_INTERVAL_MS: Final = 30_000  # a peer that missed a change notices by then
REQUEST_TIMEOUT_MS: Final = 5_000  # without the time that this node was busy
ASK_TIMEOUT_MS: Final = 10_000


@dataclass(frozen=True, slots=True)
class Pace:
    """The time constants of a replicator, in milliseconds.

    broadcast_delay_ms: least time from one push to a peer to the next. A peer of our kind is sent
                        changes sooner, when a burst of them is over, up to `burst_max` times in a
                        row; on average the delay holds for it, too.
    rounds_max:         times that every peer is asked for a missing part.
    """

    broadcast_delay_ms: int = BROADCAST_DELAY_MS
    burst_max: int = BURST_MAX
    root_sync_interval_ms: int = ROOT_SYNC_INTERVAL_MS
    request_timeout_ms: int = REQUEST_TIMEOUT_MS
    ask_timeout_ms: int = ASK_TIMEOUT_MS
    rounds_max: int = ROUNDS_MAX


@dataclass(frozen=True, slots=True)
class Note:
    """An event for metrics and log: a label, the peer, and a text about the first of `count`."""

    kind: str
    peer: str
    text: str
    count: int = 1


@dataclass(frozen=True, slots=True)
class Standing:
    """The status of a connection.

    joined:        changes are pushed to it.
    equal:         the peer last stated our state, or the part of it that is replicated with it.
    pending_count: requests that it has not answered.
    public_key:    the key that it has proved to hold.
    is_dirty:      something may have been lost since the last complete comparison.
    compared_ms:   when that comparison ended, by the steady clock.
    agreed_ms:     since when it has our state; if it is not known to have it: until when it had it.
    stated:        the last state that it stated, if all of that is here.
    """

    id: str
    joined: bool
    equal: bool
    pending_count: int
    public_key: bytes | None = None
    is_dirty: bool = True
    compared_ms: int | None = None
    agreed_ms: int | None = None
    stated: Probe | None = None


@dataclass(frozen=True, slots=True)
class Pull:
    """A caller waits until a peer's state is here.

    path:      the part that is asked for; empty: all of it.
    is_strict: the pull fails when data was left out under an owner whose key is here.
    """

    token: object
    path: tuple[object, ...] = ()
    is_strict: bool = False


@dataclass(slots=True)
class Effects:
    """What the caller has to do, in order.

    sends:      (connection, payload) to be written.
    closes:     (connection, reason) to be closed once everything before is written.
    finished:   (token, error or None) of pulls that have ended.
    changed:    the replica's state has changed.
    notes:      events to count and log.
    identified: (connection, public key) that a challenge proved.
    useful:     connections with a message that changed the state, answered, or got parts.
    taken:      (connection, None or why not) of each value: whether it was merged in full.
    breaches:   connections among `closes` whose peers sent what no honest peer sends.
    suspects:   (connection, reason) of wanted peers that sent such a thing; they stay connected.
    push_count: states and differences among the sends.
    twins:      starts of other nodes with this node's identity, as peers report them.
    healed, unhealed: parts that `acquire` asked for, and got or did not get.
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
        """Add an event to be counted and logged."""
        self.notes.append(Note(kind, peer, text, count))

    def finish(self, pull: Pull | None, error: str | None) -> None:
        """End a pull, if there is one."""
        if pull is not None:
            self.finished.append((pull.token, error))

    @property
    def is_silent(self) -> bool:
        """Whether there is nothing to carry out; the state may have changed all the same."""
        said = self.sends or self.closes or self.finished or self.notes or self.identified
        return not (said or self.twins or self.healed or self.unhealed or self.suspects)

    def __bool__(self) -> bool:
        return self.changed or not self.is_silent  # a change alone is an effect, too
