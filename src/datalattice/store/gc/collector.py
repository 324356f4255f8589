"""Collector: when a store collects, and from which roots.

It remembers which values were put lately, and whether anything was removed since the store was
opened. The headers of the packs say how old cells are (`marking.young_start`).

Source: docs/store.md "Garbage".
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Final

from datalattice.clock import Clock
from datalattice.errors import StoreClosed, StoreFailed, UsageError
from datalattice.store.cache import CellCache
from datalattice.store.gc.collection import CollectionRun
from datalattice.store.gc.marking import Begin, MarkRoots, PriorMark, young_start
from datalattice.store.gc.sweeping import CLOCK_SKEW_MS, SweepList
from datalattice.store.kept.history import History
from datalattice.store.kept.pins import Pins
from datalattice.store.log.committer import Committer
from datalattice.store.log.opening import OpenLog, OpenSettings
from datalattice.store.log.removed import known_removed
from datalattice.store.log.segments import SegmentReader
from datalattice.store.records import Collected, CollectProgress, Damage

TOUCHED_MAX: Final = 65_536
"""Most recently put values that are remembered. Of other values only the age of their cells
counts."""


class GarbageCollector:
    """The collections of one store."""

    def __init__(
        self,
        *,
        settings: OpenSettings,
        opened: Callable[[], OpenLog],
        segments: SegmentReader,
        cache: CellCache,
        clock: Clock,
        keepers: tuple[History, Pins],
    ) -> None:
        self._folder = settings.folder
        self._opened = opened
        self._segments = segments
        self._cache = cache
        self._clock = clock
        self._segment_bytes = settings.segment_bytes
        self._space = settings.space
        self._history, self._pins = keepers
        self._collecting = threading.Lock()
        self._stopped = False
        self._unswept: CollectionRun | None = None
        self._touched: dict[bytes, int] = {}  # hashes of values that were put, and when
        self.has_swept = False
        """Whether cells were removed since the store was opened. While False, every cell that was
        ever returned, or reported as present, is still here."""

    def touch(self, hash: bytes) -> None:
        """Remember that a value was put: no pack says so if its cells were here already."""
        touched = self._touched
        touched.pop(hash, None)
        touched[hash] = self._clock.now_ms()
        if len(touched) > TOUCHED_MAX:
            # The first in the dictionary is the one put longest ago.
            touched.pop(next(iter(touched)))

    def collect(
        self,
        committer: Committer | None,
        begin: Begin,
        *,
        dry_run: bool,
        progress: CollectProgress | None,
        damage: Sequence[Damage],
        write_pending: Callable[[], None],
        resume: Callable[[], None],
    ) -> Collected:
        """Do the work of `CellStore.collect` and `sweep`; without a committer only a dry run.

        begin:  returns the roots to follow, and an earlier mark; called when no other collection
                can begin.
        resume: recovers a store whose writes failed on a full disk.
        """
        # One at a time: two would drop segments that the other copies from.
        if not self._collecting.acquire(blocking=False):
            raise UsageError("a collection is going on already; wait for its end")
        is_run = committer is not None and not dry_run
        try:
            if is_run:
                self._space.hold()  # the copies may need the reserved space
                resume()
            self._check_stopped()
            if damage:
                # "A store that is damaged, or lacks cells, is not collected: heal it first": cells
                # below a damaged cell cannot be followed, so they would be removed.
                raise StoreFailed(f"{damage[0]}; heal the store first, then collect")
            if committer is not None:
                with committer.lock:
                    write_pending()
                    committer.flush_durable()
            # A sweep that failed is finished first: its cells already count as removed.
            if committer is not None and self._unswept is not None:
                with self._pins.locked():
                    self._finish(self._unswept, committer)
            if committer is None or dry_run:
                return self._collection(*begin(), progress).dry_run()
            with self._pins.locked():  # so no lease is being renewed
                ended = self._pins.remove_ended()
            report = self._rounds(committer, begin, progress, write_pending)
            return replace(report, leases_ended=ended)
        finally:
            if is_run:
                self._space.let_go()
            self._collecting.release()

    def _rounds(
        self,
        committer: Committer,
        begin: Begin,
        progress: CollectProgress | None,
        write_pending: Callable[[], None],
    ) -> Collected:
        """Collect; repeat while a round ended early for lack of space for copies."""
        done: Collected | None = None
        while True:
            roots, prior = begin()
            run = self._collection(roots, prior, progress)
            report = run.run(
                committer,
                locked=self._pins.locked,
                write_pending=write_pending,
                swept=partial(self._swept, run),
                room_bytes=self._space.ask,
            )
            self._segments.drop(run.dropped)
            self._unswept = None
            done = report if done is None else done.followed_by(report)
            # A list made elsewhere is stale once segments are dropped.
            if prior is not None or not (run.is_partial and report.dropped):
                return done

    def begin_sweep(self, plan: SweepList) -> tuple[MarkRoots, PriorMark]:
        """Return the roots that a sweep by a list follows, and the mark in the list.

        Raises: UsageError: the list does not fit the store.
        """
        opened, head = self._opened(), plan.head
        plan.check_fits(self._folder, opened.store_id, self._clock.now_ms())
        roots = self.roots(0, head.time_ms - head.grace_ms - CLOCK_SKEW_MS)
        # The list says nothing about packs after its position: they count as young.
        return replace(roots, start=head.position, root=head.root), plan.prior_mark()

    @contextmanager
    def idle(self) -> Iterator[None]:
        """Keep collections from beginning while the block runs.

        Raises: UsageError: one is running.
        """
        if not self._collecting.acquire(blocking=False):
            raise UsageError("a collection is going on; wait for its end")
        try:
            yield
        finally:
            self._collecting.release()

    def reset(self) -> None:
        """Note that the store was opened anew: cells reported as present may be gone."""
        self.has_swept = True
        self._unswept = None

    def stop(self) -> None:
        """End a running collection and wait for it; no other one begins."""
        self._stopped = True
        # Waits until the running collection has noticed and ended.
        with self._collecting:
            pass

    def _check_stopped(self) -> None:
        if self._stopped:
            raise StoreClosed(f"{self._folder}: the store is closing")

    def _swept(self, run: CollectionRun) -> None:
        """Note that unmarked cells count as removed; the lock is held."""
        self.has_swept = True
        self._unswept = run
        # The cache may have removed cells, which must count as missing.
        self._cache.clear()

    def _finish(self, run: CollectionRun, committer: Committer) -> None:
        """Finish a collection whose sweep failed."""
        run.sweep(committer)
        self._segments.drop(run.dropped)
        self._unswept = None

    def roots(self, grace_ms: int, since_ms: int | None = None) -> MarkRoots:
        """Return the roots of a mark that keeps everything younger than a grace.

        since_ms: values that were put from this time on are roots too; by default the beginning of
        the grace.
        Raises: UsageError: a negative grace.
        """
        if grace_ms < 0:
            raise UsageError(f"a grace is 0 or more milliseconds, got {grace_ms}")
        now_ms = self._clock.now_ms()
        since = now_ms - grace_ms
        opened = self._opened()
        # Without a grace nothing counts as young.
        start, root = opened.state.position, opened.state.root
        if grace_ms:
            removed = known_removed(self._folder, opened.store_id)
            start, root = young_start(self._folder, opened, removed, since)
        begin_ms = since if since_ms is None else since_ms
        return MarkRoots(self._pins.roots, lambda: self._tops(begin_ms), start, root)

    def _collection(
        self, roots: MarkRoots, prior: PriorMark | None, progress: CollectProgress | None
    ) -> CollectionRun:
        opened = self._opened()

        def tell(what: str, done: int, total: int) -> None:
            self._check_stopped()
            if progress is not None:
                progress(what, done, total)

        return CollectionRun(
            folder=self._folder,
            log=opened,
            roots=roots,
            removed=known_removed(self._folder, opened.store_id),
            segment_bytes=self._segment_bytes,
            now_ms=self._clock.now_ms(),
            progress=tell,
            prior=prior,
        )

    def _tops(self, since_ms: int) -> list[bytes]:
        """Return former roots, and values put since a time."""
        # Copied: writers go on touching values while this runs.
        put = [hash for hash, time_ms in list(self._touched.items()) if time_ms >= since_ms]
        return [*self._history.roots(), *put]
