"""Observer: what a node counts and measures, and whether it is healthy.

A node is `ok`, or `degraded` for one or several reasons, each with a key. The code that finds a
reason calls `degrade`, and `recover` when the reason is gone. Reasons that nothing reports, such as
damage in the store, are found by `checks` when the health is read; `log_checks` logs which of them
came and went. `noticed` names the peers that caused recent events. Every method may be called from
any thread.

Source: docs/node.md "Operations".
"""

from __future__ import annotations

import bisect
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from datalattice.errors import DataLatticeError, StoreError
from datalattice.lattice import OWN_MALFORMED
from datalattice.node.logs import Repeats, log_event
from datalattice.sync import Note

# Upper bounds of the buckets of measured times: the series 1, 2.5, 5 from 1 ms to 10 s.
BUCKETS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

# Health keys.
HEALTH_WRITES: Final = "writes"  # commits fail; recovers with the next one that succeeds
HEALTH_MALFORMED: Final = "malformed"  # a part of the own root cannot be merged
HEALTH_FAULT: Final = "fault"  # a bug of ours; stays until the node is started again

# Kinds of notes that honest peers cause all the time: logged at debug level, never noticed.
_QUIET: Final = frozenset(
    {"ignored", "timeout", "unasked", "undelivered", "unproved", "write-superseded"}
)

NOTICED_MAX: Final = 64  # peers noticed; strangers come with new keys, so the quietest one goes
NOTICED_S: Final = 600.0  # a peer is noticed this long after its last note

Check = Callable[[], str | None]  # returns why the node is degraded, None if it is not


@dataclass(slots=True)
class Histogram:
    """Durations, counted in buckets."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS_S) + 1))
    sum_s: float = 0.0

    def add(self, seconds: float) -> None:
        """Count one duration."""
        self.counts[bisect.bisect_left(BUCKETS_S, seconds)] += 1
        self.sum_s += seconds

    @property
    def count(self) -> int:
        """How many durations were added."""
        return sum(self.counts)


@dataclass(slots=True)
class _Offender:
    """The notes of one peer: how many of each kind, and the text of the last."""

    kinds: Counter[str] = field(default_factory=Counter)
    text: str = ""
    last_s: float = 0.0


class Noticed:
    """The peers that recent notes are about, for the health page. Not thread-safe."""

    def __init__(self, now_s: Callable[[], float], peers_max: int = NOTICED_MAX) -> None:
        self._now_s = now_s
        self._max = peers_max
        self._peers: dict[str, _Offender] = {}  # in the order of their last notes

    def add(self, name: str, note: Note) -> None:
        """Add a note about the peer with a name."""
        peer = self._peers.pop(name, None) or _Offender()
        peer.kinds[note.kind] += note.count
        peer.text, peer.last_s = note.text, self._now_s()
        # Moved to the end, so that the first is the peer that was quiet longest.
        self._peers[name] = peer
        if len(self._peers) > self._max:
            del self._peers[next(iter(self._peers))]

    def document(self) -> dict[str, dict[str, object]]:
        """Return by name `kinds` with counts, and the `text` of the last note; latest last."""
        # Bounded in time, so that health shows what is wrong now.
        since_s = self._now_s() - NOTICED_S
        self._peers = {name: one for name, one in self._peers.items() if one.last_s > since_s}
        return {
            name: {"kinds": dict(one.kinds), "text": one.text} for name, one in self._peers.items()
        }


class Observer:
    """Counters and durations by name, and the reasons to be degraded."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self.counters: dict[str, int] = {}
        self.times: dict[str, Histogram] = {}
        self.checks: dict[str, Check] = {}
        self._troubles: dict[str, str] = {}
        self._logged: dict[str, str] = {}  # what the checks said when they were last logged
        self._now_s = now_s
        self._changed_s = now_s()
        self._repeats = Repeats(now_s)
        self._noticed = Noticed(now_s)
        # Returns the lasting name of a connection's peer: its key, else its address.
        self.name_of: Callable[[str], str] = _host
        self._lock = threading.Lock()

    def count(self, name: str, amount: int = 1) -> None:
        """Add to a counter."""
        with self._lock:
            self.counters[name] = self.counters.get(name, 0) + amount

    def measure(self, name: str, seconds: float) -> None:
        """Add a duration."""
        with self._lock:
            times = self.times.get(name)
            if times is None:
                times = self.times[name] = Histogram()
            times.add(seconds)

    def changed(self) -> None:
        """Note that a change was committed, so that writes work."""
        self.count("changes")
        self._changed_s = self._now_s()
        self.recover(HEALTH_WRITES)

    @property
    def unchanged_s(self) -> float:
        """Seconds since the last change, or since the start."""
        return self._now_s() - self._changed_s

    def note(self, note: Note) -> None:
        """Count and log something a peer did."""
        self.count(note.kind, note.count)
        if note.kind == OWN_MALFORMED:  # merges skip the own part until it is repaired
            self.degrade(
                HEALTH_MALFORMED,
                f"this node's own data is malformed: {note.text}; "
                "stop it and run `lattice disk repair`",
            )
        level = logging.DEBUG if note.kind in _QUIET else logging.INFO
        name = self.name_of(note.peer)
        with self._lock:
            unlogged = self._repeats.admit(note.kind, _host(note.peer))
            if level == logging.INFO:
                self._noticed.add(name, note)
        if unlogged is not None:  # the first few of a kind and peer, then one a minute
            log_event(
                level,
                "peer-note",
                kind=note.kind,
                peer=note.peer,
                text=note.text,
                unlogged=unlogged or None,
            )

    @property
    def noticed(self) -> dict[str, dict[str, object]]:
        """Recent notes by the key or address of the peer; see `Noticed.document`."""
        with self._lock:
            return self._noticed.document()

    # --- health -------------------------------------------------------------------------------

    def failed(self, error: Exception) -> None:
        """Degrade the node for an error: of the store until a write succeeds, else until it ends.

        An error other than a DataLatticeError is a bug of this program, and is logged as a fault.
        """
        self.count("faults")
        is_known = isinstance(error, DataLatticeError)
        # The store may recover; after a bug nothing is known about the state in memory.
        key = HEALTH_WRITES if isinstance(error, StoreError) else HEALTH_FAULT
        self.degrade(key, f"{type(error).__name__}: {error}")
        if not is_known:
            log_event(logging.ERROR, "fault", error=repr(error))

    def degrade(self, key: str, text: str) -> None:
        """Degrade the node for a reason, until `recover` is called with the same key."""
        with self._lock:
            is_new = self._troubles.get(key) != text  # repeated reasons are logged once
            self._troubles[key] = text
        if is_new:
            log_event(logging.ERROR, "degraded", key=key, reason=text)

    def recover(self, key: str) -> None:
        """Remove a reason; does nothing if there is none with this key."""
        if key in self._troubles:  # without the lock: it is called after every commit
            with self._lock:
                self._troubles.pop(key, None)
            log_event(logging.WARNING, "recovered", key=key)

    def log_checks(self) -> None:
        """Log which reasons of `checks` came, changed or went since the last call."""
        found = {key: text for key, check in self.checks.items() if (text := check()) is not None}
        with self._lock:
            before, self._logged = self._logged, found
        for key, text in found.items():
            if before.get(key) != text:
                log_event(logging.ERROR, "degraded", key=key, reason=text)
        for key in before.keys() - found.keys():
            log_event(logging.WARNING, "recovered", key=key)

    def has(self, key: str) -> bool:
        """Return whether there is a reason with this key."""
        return key in self._troubles

    @property
    def reasons(self) -> dict[str, str]:
        """Why the node is degraded, by key; empty when it is healthy."""
        with self._lock:
            found = dict(self._troubles)
        for key, check in self.checks.items():
            text = check()
            if text is not None:
                found[key] = text
        return found

    @property
    def health(self) -> str:
        """`ok`, or `degraded: ` and the reasons."""
        reasons = self.reasons
        return "degraded: " + "; ".join(reasons.values()) if reasons else "ok"


def _host(peer: str) -> str:
    """Return the part of a connection id that stays the same when a peer reconnects."""
    # `in HOST:PORT #NUMBER`: an inbound connection comes from another port each time.
    address = peer.partition(" #")[0]
    return address.rpartition(":")[0] if address.startswith("in ") else address
