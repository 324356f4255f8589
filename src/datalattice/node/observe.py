"""Observe: what a node counts and how it says how it is."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from datalattice.sync import Note

_log = logging.getLogger("datalattice.node")

_QUIET = {"ignored", "timeout", "undelivered"}


@dataclass(slots=True)
class Observer:
    """Counters by name, and the last fault that still matters."""

    counters: dict[str, int] = field(default_factory=dict)
    fault: str | None = None

    def count(self, name: str, amount: int = 1) -> None:
        """Add to a counter."""
        self.counters[name] = self.counters.get(name, 0) + amount

    def note(self, note: Note) -> None:
        """Count and log something a peer did."""
        self.count(note.kind)
        level = logging.DEBUG if note.kind in _QUIET else logging.INFO
        _log.log(level, "%s from %s: %s", note.kind, note.peer, note.text)

    def failed(self, error: Exception) -> None:
        """Remember that the node could not do what it should."""
        self.count("faults")
        self.fault = f"{type(error).__name__}: {error}"
        _log.error("%s", self.fault)

    @property
    def health(self) -> str:
        """`ok`, or `degraded: ` and why."""
        return "ok" if self.fault is None else f"degraded: {self.fault}"
