"""Work: what one merge may cost, so that a few foreign bytes cannot occupy a processor.

A merge of foreign values pays for each step in ticks and earns by bytes it reads for the first
time, as many as its sender brought; by what it made itself, no more than by what it was given.
Legal work is linear in distinct cells, so it earns what it spends; a small tree that stands for a
huge one does not. Local merges have no `Work` and no bound.

Source: docs/design/foreign-data.md "Remembered pairs", "Work".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mypy_extensions import i64

from datalattice.cells.cell import Cell, Ref, Value, value_hash
from datalattice.errors import WorkExceeded
from datalattice.limits import EMBEDDED_BYTES_MAX, HASH_BYTES, WORK_LIMITS, WorkLimits

PAIRS_MAX: Final = 4_096
"""Pairs of slots that are remembered; the oldest go."""

UNBOUNDED: Final = 1 << 60
"""Ticks beyond any account: sums of them fit into 64 bits."""


class SlotPairs:
    """Pairs (own, other) of slots whose merge would end as it did before. One thread uses it.

    A pill that was planted once would else cost its merge at every later statement of any peer.
    """

    def __init__(self, pairs_max: int = PAIRS_MAX) -> None:
        self._max: Final = pairs_max
        self._failed: Final[dict[bytes, int]] = {}
        self._forked: Final[dict[bytes, int]] = {}

    def __len__(self) -> int:
        return len(self._failed) + len(self._forked)

    def fails(self, own: bytes, other: bytes, ticks: int) -> bool:
        """Return whether the merge of two values by hash failed with so many ticks, or more."""
        failed = self._failed
        return bool(failed) and failed.get(_pair(own, other), -1) >= ticks

    def failed(self, own: bytes, other: bytes, ticks: int) -> None:
        """Remember that so many ticks were too few for a merge."""
        pair = _pair(own, other)
        _remember(self._failed, pair, max(ticks, self._failed.get(pair, 0)), self._max)

    def forks(self, own: bytes, other: bytes) -> bool:
        """Return whether two values fork, and own is the one that stays."""
        forked = self._forked
        return bool(forked) and _pair(own, other) in forked

    def forked(self, own: bytes, other: bytes) -> None:
        """Remember that two values fork, and that own stays."""
        _remember(self._forked, _pair(own, other), 1, self._max)

    def clear(self) -> None:
        """Forget all of them: what they rest on has changed."""
        self._failed.clear()
        self._forked.clear()


def _pair(own: bytes, other: bytes) -> bytes:
    return own[: HASH_BYTES // 2] + other[: HASH_BYTES // 2]


def _remember(pairs: dict[bytes, int], pair: bytes, found: int, pairs_max: int) -> None:
    pairs.pop(pair, None)
    pairs[pair] = found
    if len(pairs) > pairs_max:
        del pairs[next(iter(pairs))]


class Work:
    """The account of one merge, shared by everything below it. One thread uses it.

    Shapes: limits: the weights of steps, and what the account begins with; earn_max: the bytes that
            it may earn by in all; pairs: what earlier merges found out.
    """

    def __init__(
        self,
        limits: WorkLimits = WORK_LIMITS,
        *,
        earn_max: int = UNBOUNDED,
        pairs: SlotPairs | None = None,
    ) -> None:
        self.limits: Final = limits
        self.pairs: Final = SlotPairs(0) if pairs is None else pairs
        self._room: i64 = earn_max
        self._made_room: i64 = 0  # what may still be earned by cells that the merge made
        self._left: i64 = limits.start
        self._spent: i64 = 0
        self._node: Final[i64] = limits.node
        self._grants: int = 0
        self._exceeded: bool = False
        self._read: Final[set[bytes]] = set()
        self._memos: Final[dict[str, dict[bytes, object]]] = {}

    @property
    def spent(self) -> int:
        """Ticks paid so far; about a microsecond each."""
        return self._spent

    @property
    def exceeded(self) -> bool:
        """Whether some part cost more than there was."""
        return self._exceeded

    @property
    def grants(self) -> int:
        """Times that more was granted."""
        return self._grants

    @property
    def left(self) -> int:
        """Ticks that may still be paid; negative once they were exceeded."""
        return self._left

    @property
    def offered(self) -> int:
        """Ticks that may still be paid when all is earned that may be."""
        left: i64 = self._left
        return max(left, 0) + self._room

    def spend(self, ticks: int) -> None:
        """Pay for a step.

        Raises: WorkExceeded: the account is empty.
        """
        self._pay(min(ticks, UNBOUNDED))

    def _pay(self, ticks: i64) -> None:
        self._spent += ticks
        self._left -= ticks
        if self._left < 0:
            self._exceeded = True
            raise WorkExceeded("the value costs more work than its size allows")

    def enter(self, node: Cell) -> None:
        """Pay for a tree node that is looked into, and earn its bytes when it is new.

        Raises: WorkExceeded: the account is empty.
        """
        encoding = node._encoding
        # What stands inside its parent was earned with that.
        if encoding is not None and len(encoding) > EMBEDDED_BYTES_MAX:
            self._earn_by(node, len(encoding))
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
                self._earn_by(kid, len(encoding))

    def earn(self, hash: bytes, size: int) -> None:
        """Add one tick for each byte of a cell, the first time this merge reads it.

        "No more than the bytes that the sender brought": what was planted earns nothing later.
        """
        if hash not in self._read:
            self._read.add(hash)
            self._made_room += self._earn(size)

    def _earn_by(self, cell: Cell, size: int) -> None:
        """Earn by a cell at hand; by those that this merge made no more than by all others.

        Two small trees may have a join of any size, and it is read when it is compared with what
        stays. What was brought, and what is stored, is loaded.
        """
        hash = cell.hash
        if cell._loader is not None:
            self.earn(hash, size)
        elif hash not in self._read:
            self._read.add(hash)
            self._made_room -= self._earn(min(size, self._made_room))

    def _earn(self, size: i64) -> i64:
        ticks = min(size, self._room)
        self._room -= ticks
        self._left += ticks
        return ticks

    def verify(self, hash: bytes) -> None:
        """Pay for the signature of a cell, the first time this merge looks at it.

        Raises: WorkExceeded: the account is empty.
        """
        verified = self.memo("verified")
        if hash not in verified:
            verified[hash] = None
            self._pay(self.limits.signature)

    def _grant(self, ticks: i64) -> None:
        """Go on after an exceeded part with `ticks` more than nothing."""
        self._grants += 1
        self._left = max(self._left, 0) + ticks

    def attempt(self, own: Value, other: Value, step: Callable[[], Value]) -> Value:
        """Return what a step makes of two values; own where they are known to fork.

        When it costs too much that is remembered, and what comes after it has a little more.
        Raises: WorkExceeded: it costs too much, or did before with no fewer ticks than now.
        """
        pairs, offered = self.pairs, self.offered
        if len(pairs):
            hashes = value_hash(own), value_hash(other)
            if pairs.forks(*hashes):
                return own  # reported when it was met first, and kept as evidence since
            if pairs.fails(*hashes, offered):
                raise WorkExceeded("merging these two values cost more work than their size allows")
        # What begins with less fails because of what came before it, which says nothing of it.
        is_full = self._left >= self.limits.grant
        try:
            return step()
        except WorkExceeded:
            if is_full:
                pairs.failed(value_hash(own), value_hash(other), offered)
            if self._grants < self.limits.grants_max:
                self._grant(self.limits.grant)
            raise

    def memo(self, name: str) -> dict[bytes, object]:
        """Return what this merge found out under `name`, by hash; shared by all its parts."""
        found = self._memos.get(name)
        if found is None:
            found = self._memos[name] = {}
        return found
