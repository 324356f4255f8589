"""Observe: what a node counts and measures, and how it says how it is.

A node is `ok`, or `degraded` for reasons that each have a key: whoever finds a reason calls
`degrade`, and `recover` when it is gone. Reasons that are a matter of looking, such as damage in
the store, are looked up by `checks` whenever somebody asks; `log_checks` logs those that came and
went. Everything may be called from any thread.
"""

from __future__ import annotations

import bisect
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from datalattice.errors import DataLatticeError, StoreError
from datalattice.lattice import OWN_MALFORMED
from datalattice.node.logs import Repeats, log_event
from datalattice.node.noticed import Noticed
from datalattice.sync import Note

BUCKETS_S: Final = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
)
"""Upper bounds of the buckets of measured times."""

WRITES: Final = "writes"
"""Key of the trouble that commits fail; gone with the next that succeeds."""

MALFORMED: Final = "malformed"
"""Key of what is wrong when a part of the own root cannot be merged."""

FAULT: Final = "fault"
"""Key of a fault of ours; it stays."""

_QUIET: Final = frozenset(
    {"ignored", "timeout", "unasked", "undelivered", "unproved", "write-superseded"}
)

Check = Callable[[], str | None]
"""Returns why a node is degraded, None when it is not."""


@dataclass(slots=True)
class Histogram:
    """How long something took, in buckets."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS_S) + 1))
    sum_s: float = 0.0

    def add(self, seconds: float) -> None:
        """Count one that took so long."""
        self.counts[bisect.bisect_left(BUCKETS_S, seconds)] += 1
        self.sum_s += seconds

    @property
    def count(self) -> int:
        """How many there were."""
        return sum(self.counts)


class Observer:
    """Counters and times by name, and the reasons why the node is not well."""

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
        self.name_of: Callable[[str], str] = _host
        """Returns what stays of a peer when its connection has ended: its key, where it has one."""
        self._lock = threading.Lock()

    def count(self, name: str, amount: int = 1) -> None:
        """Add to a counter."""
        with self._lock:
            self.counters[name] = self.counters.get(name, 0) + amount

    def measure(self, name: str, seconds: float) -> None:
        """Note how long something took."""
        with self._lock:
            times = self.times.get(name)
            if times is None:
                times = self.times[name] = Histogram()
            times.add(seconds)

    def changed(self) -> None:
        """Note that a change was committed: writes work."""
        self.count("changes")
        self._changed_s = self._now_s()
        self.recover(WRITES)

    @property
    def unchanged_s(self) -> float:
        """How long ago the last change was; since the start where there was none."""
        return self._now_s() - self._changed_s

    def note(self, note: Note) -> None:
        """Count and log something a peer did."""
        self.count(note.kind, note.count)
        if note.kind == OWN_MALFORMED:
            self.degrade(
                MALFORMED,
                f"this node's own data is malformed: {note.text}; "
                "stop it and run `lattice disk repair`",
            )
        level = logging.DEBUG if note.kind in _QUIET else logging.INFO
        name = self.name_of(note.peer)
        with self._lock:
            unlogged = self._repeats.admit(note.kind, _host(note.peer))
            if level == logging.INFO:
                self._noticed.add(name, note)
        if unlogged is not None:
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
        """Which peers did what of late, by their keys or addresses: counts by word, and a text."""
        with self._lock:
            return self._noticed.reading()

    # --- health -------------------------------------------------------------------------------

    def failed(self, error: Exception) -> None:
        """Remember that the node could not do what it should.

        That writes fail lasts until one succeeds; a fault of ours, which is any error that nobody
        foresaw, until the node is started again.
        """
        self.count("faults")
        is_known = isinstance(error, DataLatticeError)
        key = WRITES if isinstance(error, StoreError) else FAULT
        self.degrade(key, f"{type(error).__name__}: {error}")
        if not is_known:
            log_event(logging.ERROR, "fault", error=repr(error))

    def degrade(self, key: str, text: str) -> None:
        """Say that the node is not well, and why, until `recover` is called with the same key."""
        with self._lock:
            is_new = self._troubles.get(key) != text
            self._troubles[key] = text
        if is_new:
            log_event(logging.ERROR, "degraded", key=key, reason=text)

    def recover(self, key: str) -> None:
        """Say that a reason is gone; nothing happens where there was none."""
        if key in self._troubles:
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
        """Return whether this reason was given, and is not gone."""
        return key in self._troubles

    @property
    def reasons(self) -> dict[str, str]:
        """Why the node is degraded, by key; nothing when it is well."""
        with self._lock:
            found = dict(self._troubles)
        for key, check in self.checks.items():
            text = check()
            if text is not None:
                found[key] = text
        return found

    @property
    def health(self) -> str:
        """`ok`, or `degraded: ` and why."""
        reasons = self.reasons
        return "degraded: " + "; ".join(reasons.values()) if reasons else "ok"


def _host(peer: str) -> str:
    """Return what stays the same when a peer comes back: its port and number do not."""
    address = peer.partition(" #")[0]
    return address.rpartition(":")[0] if address.startswith("in ") else address
