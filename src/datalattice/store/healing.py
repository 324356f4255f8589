"""Healing: repair a store after a check, with cells from other sources.

Received cells are compared with their hashes, so any source will do. Intact cells in a damaged pack
are written again from their own bytes. Lost cells that the root reaches are fetched level by level,
because the references of a missing cell are unknown until it is here. Lost cells that the root does
not reach and that no source has are removed from the index, so that they are stored again when they
come again.

Source: docs/store.md "Heal".
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from datalattice.cells import references
from datalattice.crypto import Entropy, sha3_256
from datalattice.errors import Corruption
from datalattice.store.base import Store
from datalattice.store.cellstore import CellStore
from datalattice.store.checking import CheckReport
from datalattice.store.disk import Disk
from datalattice.store.records import CheckProgress

_FETCH_MAX: Final = 4_096
"""Most cells that are requested at a time."""

_ROUNDS_MAX: Final = 64
"""Most checks of one healing. Another check follows only if something improved."""


class CellSource(Protocol):
    """A source of cells, such as peers or another store."""

    def acquire(self, wanted: Sequence[bytes]) -> int:
        """Store those of the cells that the source has, with all below them; return how many."""
        ...


Fetch = Callable[[Sequence[bytes]], Iterable[tuple[bytes, bytes]]]
"""Returns those of the cells that the source has, as (hash, encoding); they are verified."""


@dataclass(frozen=True, slots=True)
class Healing:
    """The result of a healing."""

    report: CheckReport
    """The result of the last check."""
    rescued: int
    """Cells written again from their own bytes."""
    fetched: int
    """Cells that the source had."""
    forgotten: int
    """Damaged or incomplete cells that are not needed and that the source lacks."""


def open_damaged(
    path: str | os.PathLike[str], *, disk: Disk | None = None, entropy: Entropy | None = None
) -> CellStore:
    """Open a store for writing even when its last commits are damaged, at its last root.

    An index that cannot be read is made again.
    Raises: as `CellStore.open`, but Corruption only where the folder is not recognised as a store.
    """
    try:
        store = CellStore.open(path, disk=disk, entropy=entropy)
    except Corruption:
        return CellStore.open(path, repair=True, keep_root=True, disk=disk, entropy=entropy)
    if store._index.is_readable():
        return store
    store.close()
    return CellStore.open(path, disk=disk, entropy=entropy)


def heal_store(
    store: CellStore, source: CellSource | None = None, progress: CheckProgress | None = None
) -> Healing:
    """Check a store, repair what can be repaired, and check again, until nothing improves.

    Raises: StoreFull, StoreFailed: it cannot be written. Whatever `source` raises.
    """
    rescued = fetched = forgotten = 0
    report = store.check(progress)
    for _ in range(_ROUNDS_MAX):
        # A lost root is committed first, because the check starts from the root.
        if _bring_back(store, report):
            report = store.check(progress)
        if report.is_clean:
            break
        saved = _rescue(store, report)
        had = source.acquire(report.wanted) if source is not None and report.wanted else 0
        rescued += saved
        fetched += had
        # "Damaged cells that the root does not reach and that no source has are dropped"
        # (docs/store.md "Heal"); the others are reported.
        if not saved and not had:
            if not report.useless:
                report = store.check(progress)
                break
            forgotten += store.discard(report.useless)
        report = store.check(progress)
    return Healing(report, rescued, fetched, forgotten)


def _bring_back(store: CellStore, report: CheckReport) -> bool:
    """Commit a lost root again once all its cells are here; return whether that was done."""
    loss = store.loss
    # If the loss was given up, the log has continued without the lost root.
    if loss is None or loss.is_given_up or store.root_hash() != loss.root:
        return False
    if report.wanted or report.missing or report.endangered or report.unserved:
        return False
    store.accept_loss()
    return True


def _rescue(store: CellStore, report: CheckReport) -> int:
    """Write the endangered cells again, and the root with them; return how many."""
    whole: list[tuple[bytes, bytes]] = []
    for hash, location in report.endangered:
        try:
            data = store.read_location(location)
        except Corruption:
            continue  # damaged since the check; the next one reports it
        # The pack around it is damaged, so only the hash proves the cell.
        if sha3_256(data) == hash:
            whole.append((hash, data))
    store.heal(whole, report.unserved)
    return len(whole) + len(report.unserved)


class CellFetcher:
    """A source that fetches encodings by a function and stores the correct ones."""

    def __init__(self, store: Store, fetch: Fetch) -> None:
        self._store = store
        self._fetch = fetch
        self.refused = 0
        """Number of received cells that were not requested, or do not match their hash."""

    def acquire(self, wanted: Sequence[bytes]) -> int:
        """Store those of the cells that the source has, with all below them; return how many."""
        fetched = 0
        asked = set(wanted)
        stack = list(wanted)
        while stack:
            batch, stack = stack[-_FETCH_MAX:], stack[:-_FETCH_MAX]
            awaited = set(batch)
            good: list[tuple[bytes, bytes]] = []
            for hash, encoding in self._fetch(batch):
                # A source is not trusted: only the hash identifies a cell.
                if hash not in awaited or sha3_256(encoding) != hash:
                    self.refused += 1
                    continue
                awaited.discard(hash)
                good.append((hash, encoding))
            # Stored before what is below is requested: memory stays bounded by a batch.
            fetched += self._store.heal(good)
            for _, encoding in good:
                below = self._store.missing(references(encoding))
                stack.extend(hash for hash in below if hash not in asked)
                # A hash is requested once, so a hostile source cannot keep this loop going.
                asked.update(below)
        return fetched
