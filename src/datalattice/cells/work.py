"""Work: what one merge may cost, so that a few foreign bytes cannot occupy a processor.

A merge of foreign values pays for each step in ticks and earns by bytes it reads for the first
time. Legal work is linear in distinct cells, so it earns what it spends; a small tree that stands
for a huge one does not. Local merges have no `Work` and no bound.

Source: docs/design/foreign-data.md "Work".
"""

from __future__ import annotations

from typing import Final

from datalattice.errors import WorkExceeded
from datalattice.limits import WORK_START_TICKS


class Work:
    """The account of one merge, shared by everything below it. One thread uses it."""

    def __init__(self, ticks: int = WORK_START_TICKS) -> None:
        self._left: int = ticks
        self._spent: int = 0
        self._grants: int = 0
        self._read: Final[set[bytes]] = set()
        self._memos: Final[dict[str, dict[bytes, object]]] = {}

    @property
    def spent(self) -> int:
        """Ticks paid so far; about a microsecond each."""
        return self._spent

    @property
    def grants(self) -> int:
        """Times that more was granted."""
        return self._grants

    @property
    def left(self) -> int:
        """Ticks that may still be paid; negative once they were exceeded."""
        return self._left

    def spend(self, ticks: int) -> None:
        """Pay for a step.

        Raises: WorkExceeded: the account is empty.
        """
        self._spent += ticks
        self._left -= ticks
        if self._left < 0:
            raise WorkExceeded("the value costs more work than its size allows")

    def earn(self, hash: bytes, size: int) -> None:
        """Add one tick for each byte of a cell, the first time this merge reads it."""
        if hash not in self._read:
            self._read.add(hash)
            self._left += size

    def grant(self, ticks: int) -> None:
        """Go on after an exceeded part with `ticks` more than nothing."""
        self._grants += 1
        self._left = max(self._left, 0) + ticks

    def memo(self, name: str) -> dict[bytes, object]:
        """Return what this merge found out under `name`, by hash; shared by all its parts."""
        found = self._memos.get(name)
        if found is None:
            found = self._memos[name] = {}
        return found
