"""Heal: a running node fetches its own missing or damaged cells from its peers.

The store reports cells that do not match their hash, and the replica reports cells that are missing
below its root, both on any thread. The node is degraded until the cells are back. All joined peers
are asked for the cells by hash, then for the cells below them, and again at intervals while no peer
has them.

A check reads the whole store to find damage that no read has met yet: on request, if the store was
opened with damage, and at intervals if configured. It also decides whether a cell that no peer has
is needed at all: a collection may have removed cells that a stranger sent and that were never
merged.

Source: docs/node.md "Damage and healing".
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterable, Sequence
from typing import Final

from datalattice.cells import references
from datalattice.client import Progress
from datalattice.errors import Corruption, MissingData, StoreClosed, StoreError, UsageError
from datalattice.node.lanes import Lane
from datalattice.node.observe import HEALTH_WRITES, Observer
from datalattice.store import (
    CellFetcher,
    CellStore,
    Damage,
    Fetch,
    Healing,
    Store,
    heal_store,
)
from datalattice.sync import Effects, Replicator

_RETRY_S: Final = 2.0  # between requests for cells no peer had, and between tries of a failed store
DOUBT_S: Final = 600.0  # between checks of the store made because no peer has a cell
_ANSWER_S: Final = 60.0  # a check waits this long for peers while no cell arrives

MISSING: Final = "missing"  # health key: cells below the root are missing or damaged


class Healer:
    """Finds and fetches the missing cells of one node. `note` and `failed` run on any thread."""

    def __init__(
        self, store: Store, lane: Lane, observer: Observer, check_interval_s: float
    ) -> None:
        self._store = store
        self._lane = lane
        self._observer = observer
        self._check_interval_s = check_interval_s
        self._changed = threading.Condition()
        self._wanted: dict[bytes, bool] = {}  # hash -> whether a request for it is open
        self._healed_count = 0
        self._doubted = False  # whether some wanted cells may not be needed
        self._healing = threading.Lock()
        self._others: CellFetcher | None = None
        self._closed = threading.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, on the event loop."""
        self._store.on_damage = self._damaged
        self._task = asyncio.ensure_future(self._run())

    async def close(self) -> None:
        """Stop; a check in progress is abandoned."""
        self._closed.set()
        with self._changed:
            self._changed.notify_all()
        self._store.on_damage = None
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await asyncio.to_thread(self._wait_for_healing)

    def _wait_for_healing(self) -> None:
        with self._healing:
            return

    def make_writable(self) -> None:
        """Resume the store after a failed write, now.

        Raises: StoreFull, StoreFailed: the disk does not allow it yet.
        """
        if self._store.has_failed:
            self._store.resume()
            self._lane.submit(self._resume)

    # --- damage and losses --------------------------------------------------------------------

    def _damaged(self, damage: Damage) -> None:
        # Damage without a hash: the file no longer tells which cell was there.
        self._observer.count("cells-damaged")
        if damage.hash is not None:
            self.note([damage.hash])

    def note(self, hashes: Iterable[bytes]) -> None:
        """Ask peers for cells of our own that are damaged or missing."""
        with self._changed:
            fresh = [hash for hash in hashes if hash not in self._wanted]
            # Noted before the request, so that a fast answer finds its entry.
            self._wanted.update(dict.fromkeys(fresh, False))
            count = len(self._wanted)
        if fresh:
            self._observer.count("cells-missing", len(fresh))
            self._observer.degrade(MISSING, f"{count} cells of this node are damaged or missing")
            self._ask()

    def _ask(self) -> None:
        with self._changed:
            idle = [hash for hash, is_asked in self._wanted.items() if not is_asked]
            self._wanted.update(dict.fromkeys(idle, True))
        if idle:
            self._lane.submit(lambda replicator, now_ms: replicator.acquire(idle, now_ms))

    def failed(self, error: Exception) -> None:
        """Handle a failure: missing cells are fetched, any other error degrades the node."""
        if isinstance(error, MissingData):
            self.note(error.hashes)
        elif isinstance(error, Corruption) and self._wanted:  # reported already, as missing cells
            self._observer.count("faults")
        else:
            self._observer.failed(error)

    # --- in the lane ---------------------------------------------------------------------------

    def settle(self, effects: Effects) -> None:
        """Note which cells peers delivered, and which no peer has."""
        if not effects.healed and not effects.unhealed:  # as for nearly all effects
            return
        # `NodeServer.fetch_cells` asks for cells too, which this node does not need for its root.
        healed = [hash for hash in effects.healed if hash in self._wanted]
        lost = {hash for hash in effects.unhealed if hash in self._wanted}
        if not healed and not lost:
            return
        below: list[bytes] = []
        doubted = bool(lost)
        for hash in healed:
            try:
                encoding = self._store.get_encoding(hash)
            except Corruption:
                lost.add(hash)  # written, and damaged again
                continue
            # "What is missing below it is asked for in turn."
            if encoding is not None:
                below += self._store.missing(references(encoding))
        self.note(below)  # before waking waiters: they wait until nothing is wanted
        with self._changed:
            for hash in lost & self._wanted.keys():
                self._wanted[hash] = False
            for hash in set(healed) - lost:
                self._wanted.pop(hash, None)
            self._healed_count += len(healed)
            # No peer has it: a check of the store decides whether it is needed.
            self._doubted = self._doubted or doubted
            is_done = not self._wanted
            self._changed.notify_all()
        self._observer.count("cells-healed", len(healed))
        if is_done:
            self._observer.recover(MISSING)
            self._lane.submit(Replicator.publish)  # writes that failed for want of these cells

    # --- checks -------------------------------------------------------------------------------

    def heal(self, others: Fetch | None = None, progress: Progress | None = None) -> Healing:
        """Check the store, and fetch damaged cells from the peers. Blocks: not for the event loop.

        others: asked for what the peers do not have. progress: called with (done, total).
        Raises: UsageError: the store is in memory. StoreError: it cannot be written.
                OSError: a file of it cannot be read.
        """
        store = self._store
        if not isinstance(store, CellStore):
            raise UsageError("a store in memory has nothing to check")

        def go_on(done: int, total: int) -> None:
            if self._closed.is_set():
                raise StoreClosed("the node is closing")
            if progress is not None:
                progress(done, total)

        with self._healing:
            self._others = None if others is None else CellFetcher(store, others)
            try:
                healing = heal_store(store, self, go_on)
            except (StoreError, OSError) as error:
                self._observer.degrade(MISSING, f"the check of the store failed: {error}")
                raise
        self._observer.count("checks")
        report = healing.report
        if report.is_clean:
            with self._changed:
                self._wanted.clear()
            self._observer.recover(MISSING)
        else:
            places, cells = len(report.damage), len(report.missing)
            text = f"the store has {places} damaged places and lacks {cells} cells"
            self._observer.degrade(MISSING, text)
        return healing

    def acquire(self, wanted: Sequence[bytes]) -> int:
        """Fetch cells with all below them from the peers, then from `others`; return how many."""
        before = self._healed_count
        self.note(wanted)
        self._ask()
        with self._changed:
            while any(self._wanted.values()) and not self._closed.is_set():
                seen = self._healed_count
                # The time limit starts again while cells arrive: healing a large store takes hours.
                if not self._changed.wait(_ANSWER_S) and seen == self._healed_count:
                    break
            left = list(self._wanted)
        found = self._healed_count - before
        if self._others is not None and left:
            found += self._others.acquire(left)
        return found

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        is_due = bool(self._store.damage)
        checked_s = loop.time()
        doubt_after_s = checked_s
        while True:
            if self._doubted and self._wanted and loop.time() >= doubt_after_s:
                is_due, doubt_after_s = True, loop.time() + DOUBT_S
            self._doubted = False
            if is_due and isinstance(self._store, CellStore):
                # A failed check degrades the node itself.
                with contextlib.suppress(StoreError, OSError):
                    await asyncio.to_thread(self.heal)
                checked_s = loop.time()
            await asyncio.sleep(_RETRY_S)
            interval_s = self._check_interval_s
            is_due = 0 < interval_s <= loop.time() - checked_s
            self._ask()
            # A store that failed refuses writes until it is resumed; this tries every `_RETRY_S`.
            if self._store.has_failed or self._observer.has(HEALTH_WRITES):
                self._lane.submit(self._resume)

    def _resume(self, replicator: Replicator, now_ms: int) -> None:
        self._store.resume()
        replicator.publish(now_ms)
        self._observer.recover(HEALTH_WRITES)
