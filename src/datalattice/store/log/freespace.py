"""Room: how much is free on the disk, and a file that is removed when nothing is.

A store on a full disk could neither start nor collect, since both write before they free anything.
So it keeps a file, `reserve`, whose only use is its size. A start that finds less than 1 MiB, or a
collection that finds little, removes it; it is made again when twice its size is free. It grows
with the log and with the index, up to `spare_bytes`.

Before the disk is full, commits stop: below `spare_bytes` of free room they raise `StoreFull`,
while collections, and the healing of damaged cells, go on.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Final, TypeVar

from datalattice.errors import StoreFull
from datalattice.store.disk import Disk, write_error
from datalattice.store.log.segments import segment_numbers

T = TypeVar("T")

RESERVE_FILE: Final = "reserve"

SPARE_BYTES: Final = 64 * 1024 * 1024
"""Largest `reserve`, and the free room below which commits are refused."""

SPARE_BYTES_MIN: Final = 1024 * 1024
"""Least size of `reserve`."""

ENTRY_BYTES: Final = 150
"""Room for each entry of the index. Tables that are made again take 57 to 80; entries that come
between others also have the old pages copied."""

ASK_BYTES: Final = 8 * 1024 * 1024
"""The disk is asked again how much is free after so many bytes were written ..."""

ASK_MS: Final = 30_000
"""... or so much time has passed."""


class FreeSpace:
    """The free room of the disk that a store is on. Any thread may use it."""

    def __init__(
        self,
        disk: Disk,
        folder: str,
        now_ms: Callable[[], int],
        *,
        spare_bytes: int,
        segment_bytes: int,
    ) -> None:
        self._disk = disk
        self._folder = folder
        self._path = f"{folder}/{RESERVE_FILE}"
        self._now_ms = now_ms
        self._spare_bytes = spare_bytes
        self._segment_bytes = segment_bytes
        self._lock = threading.Lock()
        self._written = 0  # since the disk was asked
        self._asked_ms = 0
        self._free = -1
        self._entries = 0
        self._is_held = False  # while a collection uses the room, the reserve is not made again

    def wrote(self, size: int, entries: int) -> None:
        """Take note of bytes that were written, with so many entries for the index."""
        self._written += size
        self._entries += entries

    def free_bytes(self) -> int:
        """Return how much is free, as known since the last 8 MB or 30 s; exact when it is low."""
        age_ms = self._now_ms() - self._asked_ms
        is_known = self._free >= self._spare_bytes and 0 <= age_ms < ASK_MS
        if not is_known or self._written >= ASK_BYTES:
            self.ask()
        return self._free

    def ask(self) -> int:
        """Ask the disk how much is free, and make the reserve again if there is room for it."""
        with self._lock:
            self._written, self._asked_ms = 0, self._now_ms()
            self._free = self._disk.free_bytes(self._folder)
            if self._spare_bytes and not self._is_held:
                self._make_reserve()
            return self._free

    def begin(self) -> None:
        """Remove the reserve where nearly nothing is free: who starts writes more than the store.

        Raises: OSError: the disk refuses.
        """
        if self.ask() < SPARE_BYTES_MIN:
            with self._lock:
                self._release()
                self._free = self._disk.free_bytes(self._folder)

    def check(self) -> None:
        """Check that there is room for a commit.

        Raises: StoreFull: less than `spare_bytes` are free.
        """
        if self._spare_bytes and self.free_bytes() < self._spare_bytes:
            raise StoreFull(
                f"{self._folder}: only {self._free} bytes are free on the disk, and a store, even "
                f"a new one, takes writes while {self._spare_bytes} are: starts and collections "
                "need them; make room"
            )

    def hold(self) -> None:
        """Remove the reserve if the room is low, and let it be gone until `let_go`."""
        with self._lock:
            self._is_held = True
            self._free = self._disk.free_bytes(self._folder)
            if self._free < 2 * self._wanted_bytes():
                self._release()
                self._free = self._disk.free_bytes(self._folder)

    def let_go(self) -> None:
        """Let the reserve be made again."""
        self._is_held = False
        self.ask()

    def _wanted_bytes(self) -> int:
        count = len(segment_numbers(self._disk, self._folder))
        copies, index = (count - 1) * self._segment_bytes, self._entries * ENTRY_BYTES
        return min(self._spare_bytes, max(SPARE_BYTES_MIN, copies, index))

    def _make_reserve(self) -> None:
        """Make the reserve, or a larger one; a disk that refuses is asked again later."""
        try:
            wanted = self._wanted_bytes()
            present = 0
            if self._disk.exists(self._path):
                file = self._disk.open(self._path)
                present = file.size()
                file.close()
            if present < wanted and self._free >= 2 * wanted:
                # Not synced: where a power failure takes the name away, it is made again.
                self._disk.allocate(self._path, wanted)
                self._free = self._disk.free_bytes(self._folder)
        except OSError:
            # Others may have taken the room just now. The store works without a reserve.
            with contextlib.suppress(OSError):
                self._release()

    def _release(self) -> bool:
        """Remove the reserve; return whether there was one."""
        if not self._disk.exists(self._path):
            return False
        self._disk.remove(self._path)
        return True

    def spend_reserve(self, attempt: Callable[[], T]) -> T:
        """Return what `attempt` returns; when the disk is full, try again without the reserve."""
        try:
            return attempt()
        except (OSError, StoreFull) as error:
            where = self._folder
            is_full = isinstance(error, StoreFull) or isinstance(
                write_error(error, where), StoreFull
            )
            if not is_full or not self._release():
                raise
            return attempt()
