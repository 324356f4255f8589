"""History: the roots of a store and since when each was the root, thinned with age.

    history       a header of 16 bytes, then a slot of 44 bytes for each root: Unix milliseconds
                  (8), root hash (32), CRC-32 (4)

Theory of operation. An entry is written when its root is durable, without a sync of its own, so a
commit costs one more short write. If the process dies, no written entry is lost; a power failure
may lose the last ones. A torn slot does not match its checksum and is left out. So an entry may be
missing, but it is never wrong. Times never decrease, even if the clock is set back.

A `Retention` thins the history. Each of its steps keeps the entries that answer "what was the root
at ..." for each full second, minute or hour. Each interval divides the next one, so a finer step
has kept all entries that a coarser step needs. Before a collection reads `roots`, the thinned
history is made durable: a root that was thinned out never reappears.

Source: docs/history.md.
"""

from __future__ import annotations

import struct
import threading
import zlib
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

from datalattice.errors import StoreError, UsageError
from datalattice.forking import freed_in_child
from datalattice.store.disk import DiskFile, write_error
from datalattice.store.files import StoreFolder
from datalattice.store.records import Damage

HISTORY_FILE: Final = "history"

SECOND_MS: Final = 1_000
MINUTE_MS: Final = 60 * SECOND_MS
HOUR_MS: Final = 60 * MINUTE_MS
DAY_MS: Final = 24 * HOUR_MS

RECENT_MAX: Final = 1_000
"""Most latest entries that are not thinned, up to the age `RECENT_MS`."""

RECENT_MS: Final = MINUTE_MS

COMPACT_ENTRIES = 8_192  # not Final, which is compiled in: tests thin sooner
"""After this many new entries the file is thinned and replaced."""

_HEAD: Final = b"DLHI\0\1" + bytes(10)
_ENTRY: Final = struct.Struct(">q32s")  # Unix milliseconds, root hash
SLOT_BYTES: Final = _ENTRY.size + 4


class Moment(NamedTuple):
    """A root, and since when it was the root."""

    time_ms: int
    root_hash: bytes


@dataclass(frozen=True, slots=True)
class Retention:
    """Which entries a history keeps: the present root, and those of the following two kinds.

    - the last `recent_max` roots that were replaced in the last `recent_ms`;
    - for each step, of the roots replaced in the last `span`, those that were the root at a full
      `interval`.
    """

    recent_max: int = RECENT_MAX
    recent_ms: int = RECENT_MS
    steps: tuple[tuple[int, int], ...] = (
        (10 * MINUTE_MS, SECOND_MS),
        (DAY_MS, MINUTE_MS),
        (30 * DAY_MS, HOUR_MS),
    )
    """(span, interval) in milliseconds; spans grow, and each interval divides the next one."""

    def __post_init__(self) -> None:
        spans = [span for span, _ in self.steps]
        intervals = [interval for _, interval in self.steps]
        fits = (
            self.recent_max >= 0
            and self.recent_ms >= 0
            and all(number > 0 for number in spans + intervals)
            and spans == sorted(set(spans))
            and all(b % a == 0 for a, b in pairwise(intervals))
        )
        if not fits:
            raise UsageError(
                "a Retention has growing spans, and intervals of which each divides the next, "
                f"got {self!r}"
            )

    def thin(self, entries: list[Moment], now_ms: int) -> list[Moment]:
        """Return the entries that stay; they are in order of time."""
        kept = []
        # Index of the oldest entry that counts as recent; the last one is the present root.
        oldest_recent = len(entries) - 1 - self.recent_max
        for position, entry in enumerate(entries[:-1]):
            until_ms = entries[position + 1].time_ms
            age_ms = now_ms - until_ms
            if (position >= oldest_recent and age_ms <= self.recent_ms) or self._answers(
                entry.time_ms, until_ms, age_ms
            ):
                kept.append(entry)
        return kept + entries[-1:]

    def _answers(self, from_ms: int, until_ms: int, age_ms: int) -> bool:
        for span, interval in self.steps:
            # The first step that is long enough decides: later ones keep fewer entries.
            if age_ms <= span:
                # Kept if a full interval lies in [from, until): it was the root then.
                return -(-from_ms // interval) * interval < until_ms
        return False


RETENTION: Final = Retention()
"""The default of a store."""

KEEP_NOTHING: Final = Retention(0, 0, ())
"""Only the present root."""


class History:
    """The roots of one store and their times, `Store.history`; these are in memory."""

    def __init__(self, *, now_ms: Callable[[], int], retention: Retention = RETENTION) -> None:
        self._now_ms = now_ms
        self._retention = retention
        self._lock = freed_in_child(threading.Lock())
        # Two lists: Python's cycle collector would visit a `Moment` for each commit.
        self._times: list[int] = []  # Unix milliseconds
        self._roots: list[bytes] = []
        self._since = 0  # entries since the history was thinned

    @property
    def damage(self) -> tuple[Damage, ...]:
        """Entries that were left out because they do not match their checksum."""
        return ()

    @property
    def failure(self) -> StoreError | None:
        """Why the last entries could not be written; they are tried again with the next ones."""
        return None

    def entries(self) -> list[Moment]:
        """Return the entries, the oldest first; the last is the present root."""
        with self._lock:
            return self._moments()

    def roots(self) -> list[bytes]:
        """Return the hashes of the roots to keep, each once.

        The writer first makes the thinned history durable: roots that it lacks never reappear, so
        their cells may be removed. A reader returns what the writer would keep now.
        Raises: StoreFull, StoreFailed: the thinned history could not be written.
        """
        with self._lock:
            self._compact()
        return list(dict.fromkeys(entry.root_hash for entry in self.entries()))

    def at(self, time_ms: int) -> Moment | None:
        """Return the last entry at or before a time, None before the first."""
        entries = self.entries()
        index = bisect_right(entries, time_ms, key=lambda entry: entry.time_ms)
        return entries[index - 1] if index else None

    def note(self, root: bytes, now_ms: int | None = None) -> None:
        """Add a durable root; `flush` writes it. now_ms: the present time, if it is known."""
        with self._lock:
            self._note(root, self._now_ms() if now_ms is None else now_ms)

    def _note(self, root: bytes, now_ms: int) -> None:
        roots, times = self._roots, self._times
        if roots:
            # A collection writes a pack that repeats the root, which is not a new entry.
            if roots[-1] == root:
                return
            # Times never decrease, so a bisection finds the root at a time.
            now_ms = max(now_ms, times[-1])
        times.append(now_ms)
        roots.append(root)
        self._since += 1

    def flush(self) -> None:
        """Write new entries without a sync; keep them in memory where that fails.

        The commit is durable already, so a failure here is not one of the commit.
        """
        if self._since >= COMPACT_ENTRIES:
            with self._lock:
                self._compact()

    def forget(self, before_ms: int) -> int:
        """Remove the entries of roots replaced before a time, durably; return how many.

        Raises: StoreFull, StoreFailed: it could not be written.
        """
        with self._lock:
            # An entry ends where the next begins, so the last one, the present root, always stays.
            count = bisect_right(self._times[1:], before_ms)
            del self._times[:count], self._roots[:count]
            self._compact()
            return count

    def _compact(self) -> None:
        """Thin the history; the lock is held."""
        self._set(self._retention.thin(self._moments(), self._now_ms()))
        self._since = 0

    def _moments(self, start: int = 0) -> list[Moment]:
        return list(map(Moment, self._times[start:], self._roots[start:]))

    def _set(self, entries: list[Moment]) -> None:
        self._times = [one.time_ms for one in entries]
        self._roots = [one.root_hash for one in entries]


class FolderHistory(History):
    """The history of a store in a folder. A reader reads the file at each call."""

    def __init__(
        self,
        folder: StoreFolder,
        *,
        now_ms: Callable[[], int],
        writable: bool,
        retention: Retention = RETENTION,
    ) -> None:
        super().__init__(now_ms=now_ms, retention=retention)
        self._folder = folder
        self._path = f"{folder}/{HISTORY_FILE}"
        self._writable = writable
        self._file: DiskFile | None = None
        self._offset = 0  # where the next slot goes
        self._fresh = 0  # how many of the last entries are not in the file yet
        self._failure: StoreError | None = None
        self._damage: tuple[Damage, ...] = ()
        if writable:
            self._load()

    @property
    def damage(self) -> tuple[Damage, ...]:
        return self._damage

    @property
    def failure(self) -> StoreError | None:
        return self._failure

    def entries(self) -> list[Moment]:
        with self._lock:
            return self._moments() if self._writable else self._read()[0]

    def roots(self) -> list[bytes]:
        if self._writable:
            return super().roots()
        entries = self._retention.thin(self.entries(), self._now_ms())
        return list(dict.fromkeys(entry.root_hash for entry in entries))

    # --- by the store that writes ---

    def begin(self, root: bytes | None, is_here: Callable[[bytes], bool]) -> None:
        """Begin to write: drop entries whose roots are gone, and note the present root."""
        with self._lock:
            count = len(self._roots)
            # A collection by another process may have removed the cells of a root.
            self._set([one for one in self._moments() if is_here(one.root_hash)])
            is_whole = self._offset == len(_HEAD) + len(self._roots) * SLOT_BYTES
            if root is not None:
                self._note(root, self._now_ms())
            if is_whole and count < COMPACT_ENTRIES:
                self._since = len(self._roots)
                self._attempt(self._open_file)
            else:
                self._attempt(self._compact)
        self.flush()

    def pause(self) -> None:
        """Let other processes write. From now on each call reads the file."""
        self.flush()
        with self._lock:
            self._writable = False

    def go_on(
        self, root: bytes | None, is_here: Callable[[bytes], bool], *, is_unshared: bool
    ) -> None:
        """Write again after a `pause`; is_unshared: no other process wrote meanwhile."""
        with self._lock:
            self._writable = True
            if is_unshared:
                return
            file, self._file = self._file, None
            if file is not None:
                file.close()
            try:
                has_followed = not self._fresh and self._failure is None and self._follow()
            except OSError:
                has_followed = False  # `_read` below raises the error
            if has_followed:
                if root is not None:
                    self._note(root, self._now_ms())
                self._attempt(self._open_file)
        if has_followed:
            self.flush()
        else:
            self._load()
            self.begin(root, is_here)

    def _follow(self) -> bool:
        """Read what others appended; return False where they replaced the file."""
        start = self._offset
        if not self._roots:
            return False
        data = (self._folder.read(HISTORY_FILE) or b"")[start - SLOT_BYTES :]
        # Thinning only removes entries. So if the last known one is still at its offset, all
        # entries before it are unchanged.
        if data[:SLOT_BYTES] != _slot(*self._moments(-1)[0]):
            return False
        appended, bad = parse_history(_HEAD + data)
        if bad or len(data) % SLOT_BYTES:
            return False
        self._set(self._moments() + appended[1:])
        self._offset = start + len(data) - SLOT_BYTES
        self._since += len(appended) - 1
        return True

    def _attempt(self, step: Callable[[], None]) -> None:
        """Call `step`, which writes; a failure is kept, and the next `_compact` repairs it."""
        try:
            step()
        except OSError as error:
            self._failure = write_error(error, self._path)
        except StoreError as error:
            self._failure = error

    def _open_file(self) -> None:
        self._file = self._folder.open(HISTORY_FILE, write=True)

    def _note(self, root: bytes, now_ms: int) -> None:
        before = self._since
        super()._note(root, now_ms)
        self._fresh += self._since - before

    def flush(self) -> None:
        if not self._fresh:
            return
        with self._lock:
            if self._fresh:  # another thread may have written them meanwhile
                is_due = self._since >= COMPACT_ENTRIES or self._failure is not None
                self._attempt(self._compact if is_due or self._file is None else self._append)

    def _append(self) -> None:
        assert self._file is not None
        # Without a sync: a power failure may lose the last entries, which is accepted.
        first = len(self._roots) - self._fresh
        slots = map(_slot, self._times[first:], self._roots[first:])
        data = b"".join(slots)
        self._file.write(self._offset, data)
        self._offset += len(data)
        self._fresh = 0

    def close(self) -> None:
        """Write and sync new entries as far as the disk allows, and close the file."""
        if self._writable:
            self.flush()
        file, self._file = self._file, None
        if file is not None:
            self._attempt(file.sync)
            file.close()

    # --- the file ---

    def _compact(self) -> None:
        """Thin the history and replace the file durably."""
        super()._compact()
        data = _HEAD + _slots(self._moments())
        if self._file is not None:
            self._file.close()
            self._file = None
        try:
            self._folder.replace(HISTORY_FILE, data)
            self._file = self._folder.open(HISTORY_FILE, write=True)
        except OSError as error:
            raise write_error(error, self._path) from error
        self._offset = len(data)
        self._fresh = 0
        self._failure = None

    def _load(self) -> None:
        entries, self._offset = self._read()
        self._set(entries)

    def _read(self) -> tuple[list[Moment], int]:
        """Return the entries in the file, and its length."""
        data = self._folder.read(HISTORY_FILE) or b""
        entries, bad = parse_history(data)
        self._damage = tuple(
            Damage(self._path, offset, "an entry of the history does not fit its checksum")
            for offset in bad
        )
        return entries, len(data)


def _slot(time_ms: int, root: bytes) -> bytes:
    # [Unix milliseconds 8][root hash 32][CRC-32 4, begun with 1, so that zeros never fit].
    entry = _ENTRY.pack(time_ms, root)
    return entry + zlib.crc32(entry, 1).to_bytes(4, "big")


def _slots(entries: list[Moment]) -> bytes:
    return b"".join([_slot(*one) for one in entries])


def parse_history(data: bytes) -> tuple[list[Moment], list[int]]:
    """Return the entries in the bytes of a file, and the offsets of those that are damaged.

    Slots that do not match at the end were torn by a power failure, which is not damage.
    """
    entries: list[Moment] = []
    bad: list[int] = []
    damaged: list[int] = []
    # Without the right head nothing in the file is trusted.
    if not data.startswith(_HEAD):
        return [], [0] if data else []
    for offset in range(len(_HEAD), len(data) - SLOT_BYTES + 1, SLOT_BYTES):
        time_ms, root_hash = _ENTRY.unpack_from(data, offset)
        fits = data[offset : offset + SLOT_BYTES] == _slot(time_ms, root_hash)
        # Times never decrease, so an earlier time than the one before it is damage.
        if not fits or (entries and time_ms < entries[-1].time_ms):
            bad.append(offset)
            continue
        # A good slot follows, so what was bad before it is damage and not a torn end.
        damaged += bad
        bad = []
        entries.append(Moment(time_ms, root_hash))
    return entries, damaged
