"""Work: what one merge may cost, so that a few foreign bytes cannot occupy a processor.

A merge of foreign values pays for each step in ticks and earns by bytes it reads for the first
time. Legal work is linear in distinct cells, so it earns what it spends; a small tree that stands
for a huge one does not. Local merges have no `Work` and no bound.

Source: docs/design/foreign-data.md "Work".
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from datalattice.cells.cell import Cell, Ref, Value
from datalattice.errors import WorkExceeded
from datalattice.limits import EMBEDDED_BYTES_MAX, WORK_LIMITS, WorkLimits


class Work:
    """The account of one merge, shared by everything below it. One thread uses it.

    Shapes: limits: the weights of steps, and what the account begins with.
    """

    def __init__(self, limits: WorkLimits = WORK_LIMITS) -> None:
        self.limits: Final = limits
        self._left: i64 = limits.start
        self._spent: i64 = 0
        self._node: Final[i64] = limits.node
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
        self._pay(min(ticks, _TICKS_MAX))

    def _pay(self, ticks: i64) -> None:
        self._spent += ticks
        self._left -= ticks
        if self._left < 0:
            raise WorkExceeded("the value costs more work than its size allows")

    def enter(self, node: Cell) -> None:
        """Pay for a tree node that is looked into, and earn its bytes when it is new.

        Raises: WorkExceeded: the account is empty.
        """
        encoding = node._encoding
        # What stands inside its parent was earned with that.
        if encoding is not None and len(encoding) > EMBEDDED_BYTES_MAX:
            self.earn(node.hash, len(encoding))
        self._pay(self._node)

    def meet(self, kid: object, value: Value) -> None:
        """Earn the bytes of a value that was just loaded for `kid`, when they are new."""
        if isinstance(kid, Ref):
            encoding = value._encoding if isinstance(value, Cell) else value
            if isinstance(encoding, (bytes, str)):
                self.earn(kid.hash, len(encoding))
        elif isinstance(kid, Cell):
            encoding = kid._encoding
            if isinstance(encoding, bytes) and len(encoding) > EMBEDDED_BYTES_MAX:
                self.earn(kid.hash, len(encoding))

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


_TICKS_MAX: Final = 1 << 60
"""A step that costs more is beyond any account; sums of it fit into 64 bits."""
