"""Turn: several processes write to one store in turn, and each keeps it open.

A writer keeps the store's lock while it writes and a little longer, because the next write often
follows at once. If another process waits for the lock (it holds `turn.lock`, see `log.locking`),
the writer releases the lock after its write, and waits for it like the others before its next
write. So a writer that never pauses does not block the others.

Source: docs/store.md "Sharing the lock"; docs/design/write-turn.md.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final

from datalattice.errors import StoreClosed, StoreError, StoreLocked
from datalattice.forking import begins_anew
from datalattice.store.cellstore import CellStore
from datalattice.store.disk import Disk, LockFile, RealDisk
from datalattice.store.log.folder import TURN_FILE

_KEEP_S: Final = 0.05
"""How long a writer keeps the lock after its last write."""

_LOOK_S: Final = 0.005
"""How often an idle holder of the lock checks whether another process waits."""


class WriteTurn:
    """A store that this process writes to from time to time, beside other processes.

        turn = WriteTurn(lambda: CellStore.open("data", wait_s=10))
        with turn.write() as store:
            store.commit(...)
        turn.close()

    `store` reads in between. Any thread may use it; a forked child opens the store anew.
    """

    def __init__(
        self,
        open_store: Callable[[], CellStore],
        *,
        keep_s: float = _KEEP_S,
        check: Callable[[CellStore], None] | None = None,
        disk: Disk | None = None,
    ) -> None:
        """`open_store` opens the store for writing.

        check: called with the lock held each time the store was opened or opened anew
        (`CellStore.acquire`). If it raises, `write` raises too, and the next `write` calls it
        again.
        """
        self._open_store = open_store
        self._keep_s = keep_s
        self._check = check
        self._disk = disk or RealDisk()
        self.begin_in_child()
        begins_anew(self)

    def begin_in_child(self) -> None:
        """Begin without store, locks and thread, which belong to the parent of a forked child."""
        self._changed = threading.Condition()
        self._inside = threading.local()
        self._store: CellStore | None = None
        self._line: LockFile | None = None
        self._thread: threading.Thread | None = None
        self._writers = 0
        self._is_held = False
        self._is_leaving = False
        self._is_unchecked = True
        self._is_closed = False
        self._failure: StoreError | None = None
        self._last_s = 0.0

    @property
    def opened(self) -> CellStore | None:
        """The store, to be read; None when it was not opened yet."""
        return self._store

    @property
    def is_held(self) -> bool:
        """Whether this process has the store's lock now; it may be given back at any moment."""
        return self._is_held

    @property
    def store(self) -> CellStore:
        """The store, to be read; opened when it is not yet.

        Raises: as `write`.
        """
        with self._changed:
            if self._store is None:
                self._take(0.0)
            assert self._store is not None
            return self._store

    def write(self, wait_s: float = 0.0) -> AbstractContextManager[CellStore]:
        """Return a context that holds the lock, and keeps it a little longer. May be nested.

        Raises: StoreLocked: another process held the lock for `wait_s`; the text names it. Others
            as `open_store`, `CellStore.acquire` and `check`.
        """
        return _Writing(self, wait_s)

    def _enter(self, wait_s: float) -> CellStore:
        # Counted for each thread: a nested `write` of the same thread has the lock already.
        depth: int = getattr(self._inside, "depth", 0)
        if not depth:
            with self._changed:
                # "Released at once when another process waits": that process writes first.
                while self._is_leaving:
                    self._changed.wait()
                if not self._is_held:
                    self._take(wait_s)
                elif self._is_unchecked:
                    self._run_check()
                self._writers += 1
        self._inside.depth = depth + 1
        assert self._store is not None
        return self._store

    def _take(self, wait_s: float) -> None:
        """Take the lock; the caller holds the condition."""
        if self._is_closed:
            raise StoreClosed("the write turn is closed")
        # A release in the background failed: the next write raises its error.
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        if self._store is None:
            self._store = self._open_store()
            self._is_unchecked = True
        elif self._store.acquire(wait_s):
            self._is_unchecked = True
        self._is_held = True
        self._last_s = time.monotonic()
        try:
            self._run_check()
        except BaseException:
            self._give_back()
            raise
        self._leave_later()

    def _run_check(self) -> None:
        if self._is_unchecked and self._check is not None:
            assert self._store is not None
            self._check(self._store)
        self._is_unchecked = False

    def _leave(self) -> None:
        depth: int = getattr(self._inside, "depth", 0)
        # In a child that was forked in here, the turn that was taken is the parent's.
        if not depth:
            return
        self._inside.depth = depth - 1
        if depth > 1:
            return
        with self._changed:
            self._writers -= 1
            self._last_s = time.monotonic()
            # One attempt on `turn.lock`: it fails exactly when another process waits.
            self._is_leaving = self._is_leaving or self._is_awaited()
            # The last writing thread releases the lock; before that others may still be writing.
            if self._is_leaving and not self._writers:
                self._give_back()

    def _is_awaited(self) -> bool:
        """Return whether another process waits for the lock."""
        if self._line is not None:
            return not self._line.is_free()
        assert self._store is not None
        try:
            self._line = self._disk.lock(f"{self._store.path}/{TURN_FILE}")
        except StoreLocked:
            return True
        # Released at once: taking it only showed that no other process waits.
        self._line.lend()
        return False

    def is_awaited(self) -> bool:
        """Return whether this process has the lock and another one waits for it."""
        with self._changed:
            return self._is_held and self._is_awaited()

    def _give_back(self) -> None:
        """Release the lock; the caller holds the condition, and no thread writes."""
        self._is_held = self._is_leaving = False
        try:
            if self._store is not None:
                self._store.release()
        finally:
            self._changed.notify_all()

    def _leave_later(self) -> None:
        """Let a thread release the lock later; the caller holds the condition."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._keep, name="write turn", daemon=True)
            self._thread.start()
        else:
            self._changed.notify_all()

    def _keep(self) -> None:
        with self._changed:
            while not self._is_closed:
                if not self._is_held:
                    self._changed.wait()
                    continue
                left_s = self._last_s + self._keep_s - time.monotonic()
                # "The lock is kept for 50 ms after the last write, and released at once when
                # another process waits."
                if self._writers or (left_s > 0 and not self._is_awaited()):
                    self._changed.wait(_LOOK_S)
                    continue
                try:
                    self._give_back()
                except StoreError as error:
                    self._failure = error  # raised by the next write

    def close(self) -> None:
        """Close the store (`CellStore.retire`): values read from it stay readable.

        Closing twice is allowed; writes under way are waited for.
        """
        with self._changed:
            while self._writers:
                self._is_leaving = True  # the last writer gives the lock back, which wakes this
                self._changed.wait()
            self._is_closed = True
            self._is_held = False
            self._changed.notify_all()
            thread, self._thread = self._thread, None
            store, self._store = self._store, None
            line, self._line = self._line, None
        if thread is not None:
            thread.join()
        if line is not None:
            line.release()
        if store is not None:
            # Values that were read from the store stay readable.
            store.retire()


class _Writing:
    """A context of `WriteTurn.write`; a generator would take three times as long in each write."""

    __slots__ = ("_turn", "_wait_s")

    def __init__(self, turn: WriteTurn, wait_s: float) -> None:
        self._turn = turn
        self._wait_s = wait_s

    def __enter__(self) -> CellStore:
        return self._turn._enter(self._wait_s)

    def __exit__(self, *_error: object) -> None:
        self._turn._leave()
