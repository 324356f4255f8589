"""Work: a budget for one merge, so that a few foreign bytes cannot occupy a processor.

A merge of foreign values pays for each step in ticks. It earns one tick for each byte it reads for
the first time, up to the number of bytes that its sender brought. Cells that the merge itself made
earn at most as much as all others. Legal work is linear in distinct cells, so it earns what it
spends; a small tree that stands for a huge one does not. Local merges have no budget.

Source: docs/design/foreign-data.md "Remembered pairs", "Work".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mypy_extensions import i64

from datalattice.cells.cell import Cell, Ref, Value, value_hash
from datalattice.errors import WorkExceeded
from datalattice.limits import EMBEDDED_BYTES_MAX, HASH_BYTES, WORK_LIMITS, WorkLimits

_PAIRS_MAX: Final = 4_096
"""Most pairs of slots that are remembered; the oldest are forgotten first."""

UNBOUNDED: Final = 1 << 60
"""Ticks beyond any budget, yet sums of them fit into 64 bits."""


class SlotPairs:
    """Pairs (own, other) of slot values whose merge had a known outcome. Not thread-safe.

    Without it, a hostile value that was planted once would cost its merge again with every later
    announcement of any peer.
    """

    def __init__(self, pairs_max: int = _PAIRS_MAX) -> None:
        self._max: Final = pairs_max
        self._failed: Final[dict[bytes, int]] = {}
        self._forked: Final[dict[bytes, int]] = {}

    def __len__(self) -> int:
        return len(self._failed) + len(self._forked)

    def fails(self, own: bytes, other: bytes, ticks: int) -> bool:
        """Return whether the merge of two values by hash failed with at least `ticks`."""
        failed = self._failed
        # With more ticks than it had then, the merge may succeed, so it is tried again.
        return bool(failed) and failed.get(_pair(own, other), -1) >= ticks

    def failed(self, own: bytes, other: bytes, ticks: int) -> None:
        """Remember that `ticks` were too few for a merge."""
        pair = _pair(own, other)
        _remember(self._failed, pair, max(ticks, self._failed.get(pair, 0)), self._max)

    def forks(self, own: bytes, other: bytes) -> bool:
        """Return whether two values are known to fork, with own as the one that stays."""
        forked = self._forked
        return bool(forked) and _pair(own, other) in forked

    def forked(self, own: bytes, other: bytes) -> None:
        """Remember that two values fork, and that own stays."""
        _remember(self._forked, _pair(own, other), 1, self._max)


def _pair(own: bytes, other: bytes) -> bytes:
    # Half of each hash: 128 bits of both suffice against collisions, and the key is short.
    return own[: HASH_BYTES // 2] + other[: HASH_BYTES // 2]


def _remember(pairs: dict[bytes, int], pair: bytes, found: int, pairs_max: int) -> None:
    pairs.pop(pair, None)
    pairs[pair] = found
    if len(pairs) > pairs_max:
        # A dict keeps the order of insertion: the first pair is the oldest.
        del pairs[next(iter(pairs))]


class Work:
    """The budget of one merge, shared by all its parts. Not thread-safe.

    Args:   limits: costs of steps and the initial budget. earn_max: most ticks to earn by bytes.
            pairs: outcomes of earlier merges.
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
        self._made_room: i64 = 0  # ticks that cells made by this merge may still earn
        self._left: i64 = limits.start
        self._spent: i64 = 0
        self._node: Final[i64] = limits.node
        self._grants: int = 0
        self._exceeded: bool = False
        self._read: Final[set[bytes]] = set()
        self._memos: Final[dict[str, dict[bytes, object]]] = {}

    @property
    def spent(self) -> int:
        """Ticks spent so far, about a microsecond each."""
        return self._spent

    @property
    def exceeded(self) -> bool:
        """Whether a part exceeded the budget."""
        return self._exceeded

    @property
    def grants(self) -> int:
        """Number of times that the budget was raised after a costly part."""
        return self._grants

    @property
    def left(self) -> int:
        """Ticks left; negative once the budget was exceeded."""
        return self._left

    @property
    def offered(self) -> int:
        """Ticks left, plus all that may still be earned."""
        left: i64 = self._left
        return max(left, 0) + self._room

    def spend(self, ticks: int) -> None:
        """Charge a step. Raises: WorkExceeded: the budget is spent."""
        self._pay(min(ticks, UNBOUNDED))

    def _pay(self, ticks: i64) -> None:
        self._spent += ticks
        self._left -= ticks
        # "A part that exceeds it is left out" (docs/design/foreign-data.md "Work"); `isolated`
        # catches this.
        if self._left < 0:
            self._exceeded = True
            raise WorkExceeded("the value costs more work than its size allows")

    def enter(self, node: Cell) -> None:
        """Charge a tree node that is visited; a new node earns its bytes.

        Raises: WorkExceeded: the budget is spent.
        """
        encoding = node._encoding
        # An embedded cell earned with its parent.
        if encoding is not None and len(encoding) > EMBEDDED_BYTES_MAX:
            self._earn_by(node, len(encoding))
        self._pay(self._node)

    def meet(self, kid: object, value: Value) -> None:
        """Earn the bytes of a value just loaded for `kid`, if it is new."""
        if isinstance(kid, Ref):
            encoding = value._encoding if isinstance(value, Cell) else value
            # A long string earns by its characters, which is close to its bytes.
            if isinstance(encoding, (bytes, str)):
                self.earn(kid.hash, len(encoding))
        elif isinstance(kid, Cell):
            encoding = kid._encoding
            if isinstance(encoding, bytes) and len(encoding) > EMBEDDED_BYTES_MAX:
                self._earn_by(kid, len(encoding))

    def earn(self, hash: bytes, size: int) -> None:
        """Add one tick for each byte of a cell, the first time this merge reads it.

        "No more than the bytes that the sender brought": cells planted earlier earn nothing later.
        """
        if hash not in self._read:
            self._read.add(hash)
            self._made_room += self._earn(size)

    def _earn_by(self, cell: Cell, size: int) -> None:
        """Earn by a loaded cell; cells made by this merge earn at most what all others earned.

        Two small trees may have a merge of any size, which is read again when it is compared.
        Received and stored cells have a loader; cells made here have none.
        """
        hash = cell.hash
        # Received or stored: its bytes were brought by someone.
        if cell._loader is not None:
            self.earn(hash, size)
        elif hash not in self._read:
            self._read.add(hash)
            self._made_room -= self._earn(min(size, self._made_room))

    def _earn(self, size: i64) -> i64:
        # "It earns no more than the bytes that its sender brought" (docs/design/foreign-data.md
        # "Charges").
        ticks = min(size, self._room)
        self._room -= ticks
        self._left += ticks
        return ticks

    def verify(self, hash: bytes) -> None:
        """Charge the signature of a cell, the first time this merge checks it.

        Raises: WorkExceeded: the budget is spent.
        """
        verified = self.memo("verified")
        # Verification is cached per cell, so only the first look costs.
        if hash not in verified:
            verified[hash] = None
            self._pay(self.limits.signature)

    def _grant(self, ticks: i64) -> None:
        """Raise the budget to `ticks` above zero or above what is left, after a costly part."""
        self._grants += 1
        self._left = max(self._left, 0) + ticks

    def attempt(self, own: Value, other: Value, step: Callable[[], Value]) -> Value:
        """Return the result of `step`; own if the two values are known to fork.

        A failure is remembered, and the budget is raised a little for the parts that follow.
        Raises: WorkExceeded: it costs too much, or did before with at least as many ticks as now.
        """
        pairs, offered = self.pairs, self.offered
        if len(pairs):
            hashes = value_hash(own), value_hash(other)
            if pairs.forks(*hashes):
                return own  # the fork was reported and kept as evidence when it was first seen
            if pairs.fails(*hashes, offered):
                raise WorkExceeded("merging these two values cost more work than their size allows")
        # A part that begins with less than a grant may fail because of earlier parts.
        is_full = self._left >= self.limits.grant
        try:
            return step()
        except WorkExceeded:
            if is_full:
                pairs.failed(value_hash(own), value_hash(other), offered)
            # "What comes after it has 2,000 ticks more, up to 16 times"
            # (docs/design/foreign-data.md "Work").
            if self._grants < self.limits.grants_max:
                self._grant(self.limits.grant)
            raise

    def memo(self, name: str) -> dict[bytes, object]:
        """Return this merge's cache called `name`, by hash."""
        found = self._memos.get(name)
        if found is None:
            found = self._memos[name] = {}
        return found
