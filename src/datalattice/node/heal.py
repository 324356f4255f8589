"""Heal: a running node that misses cells of its own asks its peers for them.

Whoever meets damage tells the healer, on whatever thread: the store when a cell does not fit its
hash, the replica when a cell below its root is not here. The node is degraded until the cells are
back. They are asked of all joined peers by hash, with what is below them in turn, and again from
time to time as long as nobody had them. A check of the whole store looks for damage that nobody has
met: when it is asked for, when the store was opened with damage, and at intervals if configured. A
store of an earlier version, which may have taken in malformed cells, is checked once at its start.

A cell that no peer has may be superfluous: a collection may remove what strangers sent and this
node never took, while another value refers to it. A check of the store finds out.
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
from datalattice.node.observe import WRITES, Observer
from datalattice.store import (
    CellFetcher,
    CellStore,
    CheckReport,
    Damage,
    Fetch,
    Healing,
    Store,
    heal_store,
)
from datalattice.sync import Effects, Replicator

RETRY_S: Final = 2.0
"""How often cells that nobody had are asked for again, and a store that failed is tried."""

DOUBT_S: Final = 600.0
"""Time between checks of the store that are made because no peer has a cell."""

ANSWER_S: Final = 60.0
"""How long a healing waits for peers while nothing comes."""

MISSING: Final = "missing"
"""Key of the trouble that cells below the root are not here."""

UNCHECKED: Final = "unchecked"
"""Key of the trouble that the store is of a version which did not check what peers sent."""


class Healer:
    """The missing cells of one node. `note` and `failed` may be called from any thread."""

    def __init__(
        self, store: Store, lane: Lane, observer: Observer, check_interval_s: float
    ) -> None:
        self._store = store
        self._lane = lane
        self._observer = observer
        self._check_interval_s = check_interval_s
        self._changed = threading.Condition()
        self._wanted: dict[bytes, bool] = {}  # hash -> whether peers are asked for it just now
        self._healed_count = 0
        self._doubted = False  # whether some of them may not be needed
        self._healing = threading.Lock()
        self._others: CellFetcher | None = None
        self._closed = threading.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to listen for damage, in the event loop."""
        if isinstance(self._store, CellStore):
            self._store.on_damage = self._damaged
        self._task = asyncio.ensure_future(self._run())

    async def close(self) -> None:
        """Heal no more; a check that is under way comes to its end."""
        self._closed.set()
        with self._changed:
            self._changed.notify_all()
        if isinstance(self._store, CellStore):
            self._store.on_damage = None
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await asyncio.to_thread(self._wait_for_healing)

    def _wait_for_healing(self) -> None:
        with self._healing:
            return

    @property
    def wanted_count(self) -> int:
        """Cells below the root that are damaged or missing, as far as is known."""
        return len(self._wanted)

    def make_writable(self) -> None:
        """Let the store go on after a write that failed, when the disk lets it, and not later.

        Raises: StoreFull, StoreFailed: it does not.
        """
        if self._store.has_failed:
            self._store.resume()
            self._lane.submit(self._resume)

    # --- what is lost -------------------------------------------------------------------------

    def _damaged(self, damage: Damage) -> None:
        self._observer.count("cells-damaged")
        if damage.hash is not None:
            self.note([damage.hash])

    def note(self, hashes: Iterable[bytes]) -> None:
        """Ask peers for cells of our own that are damaged or missing."""
        with self._changed:
            fresh = [hash for hash in hashes if hash not in self._wanted]
            self._wanted.update(dict.fromkeys(fresh, False))
            count = len(self._wanted)
        if fresh:
            self._observer.count("cells-missing", len(fresh))
            self._observer.degrade(MISSING, f"{count} cells of this node are damaged or missing")
            self._ask()

    def _ask(self) -> None:
        """Have the peers asked for what they are not asked for already."""
        with self._changed:
            idle = [hash for hash, is_asked in self._wanted.items() if not is_asked]
            self._wanted.update(dict.fromkeys(idle, True))
        if idle:
            self._lane.submit(lambda replicator, now_ms: replicator.acquire(idle, now_ms))

    def failed(self, error: Exception) -> None:
        """Take note of what failed; cells that are missing or damaged are a matter for peers."""
        if isinstance(error, MissingData):
            self.note(error.hashes)
        elif isinstance(error, Corruption) and self._wanted:
            self._observer.count("faults")
        else:
            self._observer.failed(error)

    # --- in the lane ---------------------------------------------------------------------------

    def settle(self, effects: Effects) -> None:
        """Take note of the cells that peers had, and of those that nobody has."""
        if not effects.healed and not effects.unhealed:
            return
        below: list[bytes] = []
        lost = set(effects.unhealed)
        for hash in effects.healed:
            try:
                encoding = self._store.get_encoding(hash)
            except Corruption:
                lost.add(hash)  # the disk did not keep it
                continue
            if encoding is not None:
                below += self._store.missing(references(encoding))
        self.note(below)  # first: whoever waits for all of it must not wake in between
        with self._changed:
            for hash in lost & self._wanted.keys():
                self._wanted[hash] = False
            for hash in set(effects.healed) - lost:
                self._wanted.pop(hash, None)
            self._healed_count += len(effects.healed)
            self._doubted = self._doubted or bool(effects.unhealed)
            is_done = not self._wanted
            self._changed.notify_all()
        self._observer.count("cells-healed", len(effects.healed))
        if is_done:
            self._observer.recover(MISSING)
            self._lane.submit(_publish)  # what could not be published for want of these cells

    # --- checks -------------------------------------------------------------------------------

    def heal(self, others: Fetch | None = None, progress: Progress | None = None) -> Healing:
        """Check the store and repair it with the help of the peers. Blocks; not for the loop.

        others: is asked for what the peers do not have. progress: told how far the check is.
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
        if not store.is_checked:
            self._judge(store, report)
        return healing

    def _judge(self, store: CellStore, report: CheckReport) -> None:
        """Take note of whether a store of an earlier version has malformed cells."""
        count = len(report.unsound)
        if count:
            self._observer.degrade(
                UNCHECKED, f"{count} cells are malformed; `lattice disk check` says where they are"
            )
        elif report.is_clean:
            store.mark_checked()
            self._observer.recover(UNCHECKED)

    def acquire(self, wanted: Sequence[bytes]) -> int:
        """Wait until peers gave these cells, with all below them, or have them not; count them."""
        before = self._healed_count
        self.note(wanted)
        self._ask()
        with self._changed:
            while any(self._wanted.values()) and not self._closed.is_set():
                seen = self._healed_count
                if not self._changed.wait(ANSWER_S) and seen == self._healed_count:
                    break
            left = list(self._wanted)
        found = self._healed_count - before
        if self._others is not None and left:
            found += self._others.acquire(left)
        return found

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        is_due = bool(self._store.damage)
        if isinstance(self._store, CellStore) and not self._store.is_checked:
            is_due = True
            self._observer.degrade(
                UNCHECKED, "an earlier version made the store; it is checked now"
            )
        checked_s = loop.time()
        doubt_after_s = checked_s
        while True:
            if self._doubted and self._wanted and loop.time() >= doubt_after_s:
                is_due, doubt_after_s = True, loop.time() + DOUBT_S
            self._doubted = False
            if is_due and isinstance(self._store, CellStore):
                # What a check cannot do, it says by degrading the node.
                with contextlib.suppress(StoreError, OSError):
                    await asyncio.to_thread(self.heal)
                checked_s = loop.time()
            await asyncio.sleep(RETRY_S)
            interval_s = self._check_interval_s
            is_due = 0 < interval_s <= loop.time() - checked_s
            self._ask()
            if self._store.has_failed or self._observer.has(WRITES):
                self._lane.submit(self._resume)

    def _resume(self, replicator: Replicator, now_ms: int) -> None:
        self._store.resume()
        replicator.publish(now_ms)
        self._observer.recover(WRITES)


def _publish(replicator: Replicator, now_ms: int) -> None:
    replicator.publish(now_ms)
