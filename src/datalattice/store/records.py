"""Records: reports of stores of every kind: damage, and the result of a collection."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from datalattice.errors import UsageError
from datalattice.limits import HASH_BYTES

GRACE_MS: Final = 60 * 60 * 1_000
"""Default grace: a collection keeps everything younger."""

CollectProgress = Callable[[str, int, int], None]
"""Called with the step, how much of it is done, and of how much: "mark", cells, all cells."""

CheckProgress = Callable[[int, int], None]
"""Called with the number of bytes checked so far, and of all bytes."""

OnCells = Callable[[int], None]
"""Called with the number of cells done."""


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes of a store that differ from those that were written; their cells count as missing."""

    file: str
    offset: int
    reason: str
    hash: bytes | None = None
    """The lost cell; None: unknown, or several."""

    def __str__(self) -> str:
        return f"{self.file} at byte {self.offset}: {self.reason}"


def check_hash(hash: object) -> bytes:
    """Return `hash`.

    Raises: UsageError: it is not 32 bytes.
    """
    # A hash of a wrong type would otherwise look like a missing cell.
    if not isinstance(hash, bytes) or len(hash) != HASH_BYTES:
        what = f"{len(hash)} bytes" if isinstance(hash, bytes) else type(hash).__name__
        raise UsageError(f"a hash is {HASH_BYTES} bytes, got {what}")
    return hash


@dataclass(frozen=True, slots=True)
class Collected:
    """The result of a collection."""

    cells_live: int = 0
    """Cells that stay."""
    cells_dead: int = 0
    """Cells that nothing reached."""
    cells_removed: int = 0
    """Of these, those that were removed: none where no segment was worth dropping."""
    bytes_live: int = 0
    """Bytes of the cells that stay, each with its entry in a pack (`CELL_BYTES`)."""
    bytes_dead: int = 0
    """Bytes of the cells that nothing reached, counted in the same way."""
    bytes_before: int = 0
    """Length of all segment files before, as in `StoreStats.bytes` ..."""
    bytes_after: int = 0
    """... and after it; in a dry run as it would be."""
    segments: int = 0
    """Segments that were inspected."""
    dropped: int = 0
    """Segments that were dropped."""
    copied: int = 0
    """Live cells of dropped segments that were written again."""
    leases_ended: int = 0
    """Leases that were removed because their time was over."""
    seconds: float = 0.0
    is_dry: bool = False
    """Whether this was a dry run: the figures of a collection, but nothing was changed."""

    def followed_by(self, other: Collected) -> Collected:
        """Return the result of this round and a later one together."""
        return replace(
            other,
            cells_dead=max(self.cells_dead, self.cells_removed + other.cells_dead),
            bytes_dead=max(self.bytes_dead, other.bytes_dead),
            cells_removed=self.cells_removed + other.cells_removed,
            bytes_before=self.bytes_before,
            segments=max(self.segments, other.segments),
            dropped=self.dropped + other.dropped,
            copied=self.copied + other.copied,
            seconds=self.seconds + other.seconds,
        )
