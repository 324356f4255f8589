"""Free space: how much the disk can still take, and a file that reserves space for a full disk.

"A start and a collection write before they free anything", so on a full disk neither could run. The
file `reserve` keeps space for them. A start that finds less than 1 MiB free, or a collection that
finds little, deletes it. It is made again when twice its size is free. It grows with the log and
the index, up to `spare_bytes`.

Commits stop before the disk is full: below `spare_bytes` of free space they raise `StoreFull`.
Collections and the healing of damaged cells continue.

Source: docs/store.md "A full disk".
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Final, TypeVar

from datalattice.errors import StoreFull
from datalattice.forking import freed_in_child
from datalattice.store.disk import write_error
from datalattice.store.files import StoreFolder
from datalattice.store.log.segments import segment_numbers

T = TypeVar("T")

RESERVE_FILE: Final = "reserve"

SPARE_BYTES: Final = 64 * 1024 * 1024
"""Largest `reserve`, and the free space below which commits are refused."""

SPARE_BYTES_MIN: Final = 1024 * 1024
"""Least size of `reserve`."""

ENTRY_BYTES: Final = 150
"""Space reserved for each entry of the index. A rebuilt table takes 57 to 80 bytes an entry;
inserting between other entries also copies old pages."""

ASK_BYTES: Final = 8 * 1024 * 1024
"""The disk is asked for its free space again after this many bytes were written ..."""

ASK_MS: Final = 30_000
"""... or after this time."""


class FreeSpace:
    """The free space of the disk that a store is on. Any thread may use it."""

    def __init__(
        self,
        folder: StoreFolder,
        now_ms: Callable[[], int],
        *,
        spare_bytes: int,
        segment_bytes: int,
    ) -> None:
        self._folder = folder
        self._path = f"{folder}/{RESERVE_FILE}"
        self._now_ms = now_ms
        self._spare_bytes = spare_bytes
        self._segment_bytes = segment_bytes
        self._lock = freed_in_child(threading.Lock())
        self._written = 0  # since the disk was asked
        self._asked_ms = 0
        self._free = -1
        self._entries = 0
        self._is_held = False  # while a collection uses the space, no reserve is made

    def wrote(self, size: int, entries: int) -> None:
        """Count bytes that were written, and their entries in the index."""
        self._written += size
        self._entries += entries

    def free_bytes(self) -> int:
        """Return the free bytes as they were at most 8 MB or 30 s ago; exact when few are free."""
        age_ms = self._now_ms() - self._asked_ms
        # Near the bound the disk is asked each time, because other programs write to it too.
        is_known = self._free >= self._spare_bytes and 0 <= age_ms < ASK_MS
        if not is_known or self._written >= ASK_BYTES:
            self.ask()
        return self._free

    def ask(self) -> int:
        """Ask the disk how much is free, and make the reserve again if it fits."""
        with self._lock:
            self._written, self._asked_ms = 0, self._now_ms()
            self._measure()
            if self._spare_bytes and not self._is_held:
                self._make_reserve()
            return self._free

    def _measure(self) -> None:
        self._free = self._folder.disk.free_bytes(self._folder.path)

    def begin(self) -> None:
        """Delete the reserve if nearly nothing is free: a starting node writes other files too.

        Raises: OSError: the disk refuses.
        """
        # "A start that finds less than 1 MB free removes the file" (docs/store.md "A full disk").
        if self.ask() < SPARE_BYTES_MIN:
            with self._lock:
                self._release()
                self._measure()

    def check(self) -> None:
        """Check that there is space for a commit.

        Raises: StoreFull: less than `spare_bytes` are free.
        """
        # "Raises `StoreFull` before it writes anything": "The same call works once there is space."
        if self._spare_bytes and self.free_bytes() < self._spare_bytes:
            raise StoreFull(
                f"{self._folder}: only {self._free} bytes are free on the disk, and a store, even "
                f"a new one, takes writes while {self._spare_bytes} are: starts and collections "
                "need them; make room"
            )

    def hold(self) -> None:
        """Delete the reserve if little is free, and make none until `let_go`."""
        with self._lock:
            self._is_held = True
            self._measure()
            # With twice the reserve free, the copies fit beside it.
            if self._free < 2 * self._wanted_bytes():
                self._release()
                self._measure()

    def let_go(self) -> None:
        """Allow the reserve again."""
        self._is_held = False
        self.ask()

    def _wanted_bytes(self) -> int:
        # A collection may copy all segments but the last one; an opening may rebuild the index.
        count = len(segment_numbers(self._folder))
        copies, index = (count - 1) * self._segment_bytes, self._entries * ENTRY_BYTES
        return min(self._spare_bytes, max(SPARE_BYTES_MIN, copies, index))

    def _make_reserve(self) -> None:
        """Make the reserve, or a larger one; if the disk refuses, this is tried again later."""
        try:
            wanted = self._wanted_bytes()
            present = self._folder.size(RESERVE_FILE) if self._folder.exists(RESERVE_FILE) else 0
            if present < wanted and self._free >= 2 * wanted:
                # Not synced: if a power failure loses the file, it is made again.
                self._folder.disk.allocate(self._path, wanted)
                self._measure()
        except OSError:
            # Other programs may have taken the space. The store works without a reserve.
            with contextlib.suppress(OSError):
                self._release()

    def _release(self) -> bool:
        """Delete the reserve; return whether there was one."""
        if not self._folder.exists(RESERVE_FILE):
            return False
        self._folder.disk.remove(self._path)
        return True

    def spend_reserve(self, attempt: Callable[[], T]) -> T:
        """Call `attempt` and return its result; on a full disk, again without the reserve."""
        try:
            return attempt()
        except (OSError, StoreFull) as error:
            is_full = isinstance(error, StoreFull) or isinstance(
                write_error(error, self._folder.path), StoreFull
            )
            if not is_full or not self._release():
                raise
            # Once more only: the next failure is raised, as there is nothing left to free.
            return attempt()
