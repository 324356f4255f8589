"""Healing: from a report to a store that is whole, with the help of whoever has the cells.

A cell is its hash, so it can be had from anybody: what comes is compared with the hash, and nothing
else about its origin matters. Cells that are whole but lie in a damaged pack are written again from
their own bytes. What the root reaches and is lost is fetched, level by level: what is below a
missing cell is known only when that is here. What the root does not reach and nobody has is
forgotten, so that it is stored anew when it comes again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from datalattice.cells import references
from datalattice.crypto import Entropy, sha3_256
from datalattice.errors import Corruption
from datalattice.store.cellstore import CellStore
from datalattice.store.checking import Progress, Report
from datalattice.store.disk import Disk

FETCH_MAX: Final = 4_096
"""Cells that are asked for at a time."""

ROUNDS_MAX: Final = 64
"""Checks of one healing: each but the last one followed a change for the better."""

Fetch = Callable[[Sequence[bytes]], Iterable[tuple[bytes, bytes]]]
"""Returns those of the cells that can be had, as (hash, encoding); it may return wrong ones."""


@dataclass(frozen=True, slots=True)
class Healing:
    """What a healing did."""

    report: Report
    """Of the check at the end."""
    rescued: int
    """Cells written again from their own bytes."""
    fetched: int
    """Cells that others had."""
    forgotten: int
    """Damaged or incomplete cells that nothing needs, and nobody had."""
    refused: int
    """Cells that came and are not what was asked for."""


def open_damaged(
    path: str | os.PathLike[str], *, disk: Disk | None = None, entropy: Entropy | None = None
) -> CellStore:
    """Open a store for writing even when its last commits are damaged, at its last root.

    Raises: as `CellStore.open`, but Corruption only for a store that cannot be told to be one.
    """
    try:
        return CellStore.open(path, disk=disk, entropy=entropy)
    except Corruption:
        return CellStore.open(path, repair=True, keep_root=True, disk=disk, entropy=entropy)


def heal_store(
    store: CellStore, fetch: Fetch | None = None, progress: Progress | None = None
) -> Healing:
    """Check a store, repair what can be repaired, and check it again, until nothing gets better.

    Raises: StoreFull, StoreFailed: it cannot be written. Whatever `fetch` raises.
    """
    rescued = forgotten = 0
    cells = _Cells(store, fetch)
    for _ in range(ROUNDS_MAX):
        report = store.check(progress)
        if report.is_clean:
            break
        saved = _rescue(store, report)
        rescued += saved
        before = cells.fetched
        cells.acquire(report.wanted)
        if cells.fetched > before or saved:
            continue
        if not report.useless:
            break
        forgotten += store.discard(report.useless)
    return Healing(store.check(progress), rescued, cells.fetched, forgotten, cells.refused)


def _rescue(store: CellStore, report: Report) -> int:
    """Write the endangered cells again, and the root with them; return how many."""
    whole: list[tuple[bytes, bytes]] = []
    for hash, place in report.endangered:
        try:
            data = store.read_place(place)
        except Corruption:
            continue  # since the check: the next one tells
        if sha3_256(data) == hash:
            whole.append((hash, data))
    store.heal(whole, report.unserved)
    return len(whole) + len(report.unserved)


class _Cells:
    """Fetches cells and what is below them."""

    def __init__(self, store: CellStore, fetch: Fetch | None) -> None:
        self._store = store
        self._fetch = fetch
        self.fetched = 0
        self.refused = 0

    def acquire(self, wanted: Sequence[bytes]) -> None:
        """Fetch these cells and all below them that is not here."""
        if self._fetch is None:
            return
        asked = set(wanted)
        stack = list(wanted)
        while stack:
            batch, stack = stack[-FETCH_MAX:], stack[:-FETCH_MAX]
            open_hashes = set(batch)
            good: list[tuple[bytes, bytes]] = []
            for hash, encoding in self._fetch(batch):
                if hash not in open_hashes or sha3_256(encoding) != hash:
                    self.refused += 1
                    continue
                open_hashes.discard(hash)
                good.append((hash, encoding))
            if not good:
                continue
            self.fetched += self._store.heal(good)
            for _, encoding in good:
                below = self._store.missing(references(encoding))
                stack.extend(hash for hash in below if hash not in asked)
                asked.update(below)
