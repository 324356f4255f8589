"""Simulated disk: keeps exactly what was synced, and may lose or tear everything else.

It counts the operations that change something. A chosen one can stop the process (`crash_at`) or
fail with an error (`fail_at`). `restart` then begins a new process, with or without a power
failure:

- without one, all that was written is there, since the system's memory outlives a process;
- with one, any 512-byte sectors of each write since the file's last sync may be lost; each name
  that was new, replaced or removed since the folder's last sync may have either state; and tables
  that were not synced are garbage.

With a `capacity` the disk fills: a write that needs more room fails with ENOSPC, half done, until
something is removed. Bytes of files and tables count.

As on Linux, the writes before a failed sync are neither on the disk nor part of the next sync.

Length: one disk, its files and its tables, which share its faults.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Final

from datalattice.crypto import SeededEntropy
from datalattice.engine import Engine, MemoryEngine, ReadTxn, Snapshot, WriteTxn
from datalattice.errors import StoreFull, StoreLocked
from datalattice.store import DiskFile, FileView, Lock, LockFile, lock_mark

SECTOR_BYTES: Final = 512  # a disk writes sectors whole

_UNBOUNDED: Final = 1 << 60
"""Free bytes of a disk without a capacity."""


# No `except Exception` of the product may hide the end of its process.
class SimulatedCrash(BaseException):
    """The process ended here. Not an Exception, so the product never catches it."""


class _Content:
    """The bytes of one file: those that processes see, the durable ones, and the writes between."""

    def __init__(self) -> None:
        self.now = bytearray()
        self.durable = bytearray()
        self.pending: list[tuple[int, bytes | None]] = []  # None: cut to this size
        self.reserved = 0  # allocated bytes without content

    @property
    def size(self) -> int:
        return len(self.now) or self.reserved  # reserved room counts as used, as blocks do

    def do(self, offset: int, data: bytes | None) -> None:
        _apply(self.now, offset, data)
        self.pending.append((offset, data))

    def sync(self) -> None:
        for offset, data in self.pending:  # in order: later writes win
            _apply(self.durable, offset, data)
        self.pending.clear()


def _apply(target: bytearray, offset: int, data: bytes | None) -> None:
    if data is None:
        del target[offset:]
        target.extend(bytes(offset - len(target)))  # a longer cut leaves zeros, as `ftruncate`
        return
    if len(target) < offset:
        target.extend(bytes(offset - len(target)))
    target[offset : offset + len(data)] = data


class SimDisk:
    """A disk of one machine; see the module."""

    def __init__(self, seed: int) -> None:
        self._entropy = SeededEntropy(seed)  # seeded: a failing run can be repeated
        self._names: dict[str, _Content] = {}
        self._kept: dict[str, _Content] = {}
        self._name_changes: list[tuple[str, str, _Content | None]] = []  # folder, path, content
        self._folders: set[str] = set()
        self._tables: dict[str, _Tables] = {}
        self._removed: dict[str, _Tables] = {}
        self._locks: set[str] = set()
        self._locks_taken = 0
        self._last_holders: dict[str, SimLock] = {}
        self._boot = 1
        self._dead = False
        self.steps = 0
        """Number of operations that changed something."""
        self.crash_at: int | None = None
        """Number of the operation at which the process ends."""
        self.fail_at: int | None = None
        """Number of the operation that fails."""
        self.fail_errno = errno.EIO
        """The error with which it fails."""
        self.capacity: int | None = None
        """Bytes that the disk can hold; None: no limit."""
        self.fills_at: int | None = None
        """Number of the operation from which on the disk is full."""

    # --- faults ---

    def step(self) -> bool:
        """Count an operation; return whether it must fail."""
        self.check_alive()
        self.steps += 1
        if self.steps == self.crash_at:
            self._dead = True  # this operation is still done, or half done: the crash is behind it
        if self.steps == self.fills_at:
            self.capacity = self.used_bytes  # full from here on, whatever was free
        return self.steps == self.fail_at

    @property
    def used_bytes(self) -> int:
        """Bytes of all files and tables."""
        # By identity: two names may be one file.
        contents = {id(content): content.size for content in self._names.values()}
        return sum(contents.values()) + sum(one.size_bytes for one in self._tables.values())

    def take_room(self, growth: int) -> None:
        """Check that there is room for `growth` more bytes.

        Raises: OSError: there is not.
        """
        if self.capacity is not None and growth > max(0, self.capacity - self.used_bytes):
            raise OSError(errno.ENOSPC, "simulated: the disk is full")

    def check_alive(self) -> None:
        if self._dead:
            raise SimulatedCrash

    def refuse(self) -> None:
        raise OSError(self.fail_errno, "simulated")

    def attempt(self) -> None:
        """Count an operation. Raises: OSError: it is the one that must fail."""
        if self.step():
            self.refuse()

    def restart(self, *, power_failure: bool) -> None:
        """Begin a new process, after a power failure or not, without planned faults."""
        self._dead = False
        self.crash_at = self.fail_at = self.fills_at = None
        self._locks.clear()  # the system drops the locks of a process that ended
        if power_failure:
            self._boot += 1  # a boot of its own: an unsynced index must not be trusted
            self._lose_names()
            for content in {id(content): content for content in self._kept.values()}.values():
                self._lose_writes(content)
            self._names = dict(self._kept)
            self._lose_tables()  # tables last: they may be of a folder that is lost

    def _chance(self, of: int) -> int:
        return int.from_bytes(self._entropy.bytes(4), "big") % of

    def _lose_names(self) -> None:
        for _, path, content in self._name_changes:
            if self._chance(2):  # each name by itself: a rename may be half on the disk
                self._set_kept(path, content)
        self._name_changes.clear()

    def _set_kept(self, path: str, content: _Content | None) -> None:
        if content is None:
            self._kept.pop(path, None)
        else:
            self._kept[path] = content

    def _lose_writes(self, content: _Content) -> None:
        # The two extremes are likely, too: they show most faults.
        mood = self._chance(3)  # everything, nothing, or anything in between
        for offset, data in content.pending:
            if mood == 0 or (mood == 2 and self._chance(3) == 0):
                _apply(content.durable, offset, data)
            elif mood == 2 and data is not None:
                self._tear(content, offset, data)  # a cut is never torn
        content.pending.clear()
        # After a power failure every reader sees what is durable.
        content.now = bytearray(content.durable)

    def _tear(self, content: _Content, offset: int, data: bytes) -> None:
        start = offset
        end = offset + len(data)
        while start < end:
            # Up to the next border of a sector.
            stop = min(end, (start // SECTOR_BYTES + 1) * SECTOR_BYTES)
            if self._chance(2):
                _apply(content.durable, start, data[start - offset : stop - offset])
            start = stop

    def _lose_tables(self) -> None:
        for path, removed in self._removed.items():
            # A removal that was not synced may come back.
            if path not in self._tables and self._chance(2):
                self._tables[path] = removed
        self._removed.clear()
        for path, tables in list(self._tables.items()):
            if not tables.named and self._chance(2):  # a folder that was not synced has no entry
                del self._tables[path]
            elif tables.dirty:
                tables.spoil(self._chance)  # not synced: the tables of an index may be anything

    # --- the disk ---

    def exists(self, path: str) -> bool:
        self.check_alive()
        return path in self._names or path in self._folders

    def names(self, folder: str) -> list[str]:
        self.check_alive()
        if folder not in self._folders:
            raise FileNotFoundError(errno.ENOENT, "no such folder", folder)
        inside = [*self._names, *self._folders, *self._tables]
        prefix = folder + "/"
        return sorted({p[len(prefix) :].split("/")[0] for p in inside if p.startswith(prefix)})

    def create_folder(self, path: str) -> None:
        self.attempt()
        parts = path.split("/")
        self._folders.update("/".join(parts[:n]) for n in range(1, len(parts) + 1))
        self.check_alive()

    def open(self, path: str, *, create: bool = False, write: bool = False) -> DiskFile:
        self.check_alive()
        if create:
            self.attempt()
            self._rename(path, _Content())
            self.check_alive()
        if path not in self._names:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return SimFile(self, self._names[path], writable=create or write)

    def _rename(self, path: str, content: _Content | None) -> None:
        if content is None:
            self._names.pop(path, None)
        else:
            self._names[path] = content
        # Neither durable nor lost until the folder is synced.
        self._name_changes.append((path.rpartition("/")[0], path, content))

    def view(self, path: str) -> FileView:
        self.check_alive()
        if path not in self._names:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return SimView(self, path)

    def replace(self, source: str, target: str) -> None:
        self.attempt()
        self._rename(target, self._names[source])
        self._rename(source, None)
        self.check_alive()

    def remove(self, path: str) -> None:
        self.attempt()
        self._rename(path, None)
        self.check_alive()

    def remove_folder(self, path: str) -> None:
        if path in self._tables:
            self.attempt()
            self._removed[path] = self._tables.pop(path)
        self.check_alive()

    def sync_folder(self, path: str) -> None:
        self.attempt()
        self.check_alive()
        for folder, name, content in self._name_changes:
            if folder == path:
                self._set_kept(name, content)  # "each name since the folder's last sync"
        self._name_changes = [change for change in self._name_changes if change[0] != path]
        self._removed = {p: t for p, t in self._removed.items() if p.rpartition("/")[0] != path}
        for name, tables in self._tables.items():
            tables.named = tables.named or name.rpartition("/")[0] == path

    def free_bytes(self, path: str) -> int:
        self.check_alive()
        return _UNBOUNDED if self.capacity is None else max(0, self.capacity - self.used_bytes)

    def allocate(self, path: str, size: int) -> None:
        self.attempt()
        present = self._names.get(path)
        self.take_room(size - (0 if present is None else present.size))
        content = _Content()
        content.reserved = size
        self._rename(path, content)
        self.check_alive()

    def boot_id(self) -> str:
        return f"boot-{self._boot}"

    def place(self, path: str) -> str:
        """Return one word for every folder: nothing is copied here."""
        return "simulated"

    def lock(self, path: str) -> LockFile:
        found = SimLock(self, path)
        found.retake()
        return found

    def take_lock(self, path: str, holder: SimLock) -> bool:
        """Give a lock to a holder; return whether it was also the last holder."""
        self.check_alive()
        if path in self._locks:
            raise StoreLocked(f"{path}: another writer has this store open")
        self._locks.add(path)
        # Who had it last may trust what it remembers.
        before, self._last_holders[path] = self._last_holders.get(path), holder
        return before is holder

    def count_lock(self) -> int:
        """Count the locks that were taken; return the number of this one."""
        self._locks_taken += 1
        return self._locks_taken

    def note_holder(self, path: str, data: bytes) -> None:
        """Replace the bytes of a lock file, visible at once and never durable."""
        self._names.setdefault(path, _Content()).now[:] = data  # a lock's text is never synced

    def drop_lock(self, path: str) -> None:
        self._locks.discard(path)

    def lock_contents(self, path: str) -> Lock:
        found = SimLock(self, path, has_text=False)
        found.retake()
        return found

    def engine(self, path: str, tables: Iterable[str], *, read_only: bool) -> Engine:
        self.check_alive()
        found = self._tables.get(path)
        if found is None:
            # The lowest free number, as file systems take it. That of a removed file is not free:
            # the file may come back.
            used = {t.identity for t in [*self._tables.values(), *self._removed.values()]}
            identity = min(n for n in range(len(used) + 1) if n not in used)
            found = self._tables[path] = _Tables(MemoryEngine(tables), identity)
        return SimEngine(self, found, read_only=read_only)

    def engine_identity(self, path: str) -> str:
        found = self._tables.get(path)
        return "" if found is None else f"file-{found.identity}"

    def engine_bytes(self, path: str) -> int:
        return 0  # tables count with the files

    # --- for tests ---

    def flip(self, path: str, offset: int, mask: int = 1) -> None:
        """Change bits of a file, also on the disk."""
        content = self._names[path]
        content.now[offset] ^= mask
        if offset < len(content.durable):  # also on the disk: damage survives a restart
            content.durable[offset] ^= mask

    def cut(self, path: str, size: int) -> None:
        """Cut a file, also on the disk."""
        content = self._names[path]
        del content.now[size:]
        del content.durable[size:]

    def durable(self, path: str) -> bytes | None:
        """Return what a file is sure to have after a power failure; None: it may be gone."""
        content = self._kept.get(path)
        return None if content is None else bytes(content.durable)

    def drop(self, path: str) -> None:
        """Remove a file, also from the disk."""
        del self._names[path]
        self._kept.pop(path, None)

    def size(self, path: str) -> int:
        return len(self._names[path].now)


class SimView:
    """A file that is open for reading."""

    def __init__(self, disk: SimDisk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._content = disk._names[path]

    def read(self, count: int, offset: int, /) -> bytes:
        return bytes(self._content.now[offset : offset + count])

    def is_removed(self) -> bool:
        return self._disk._names.get(self._path) is not self._content


class SimLock:
    """A lock of a simulated disk."""

    def __init__(self, disk: SimDisk, path: str, *, has_text: bool = True) -> None:
        self._disk = disk
        self._path = path
        self._has_text = has_text
        self._is_held = False
        self._number = 0  # count of locks taken on the disk, at the last time this one was
        self._generation = 0

    def retake(self) -> bool:
        is_same = self._disk.take_lock(self._path, self)
        self._is_held = True
        if not is_same:
            self._generation = 0
            self._number = self._disk.count_lock()
            self._write()
        return is_same

    def is_free(self) -> bool:
        self._disk.check_alive()
        return self._path not in self._disk._locks

    def raise_generation(self) -> None:
        self._generation += 1
        self._write()

    def _write(self) -> None:
        text = f"1 1 {self._number}".encode()  # what a real lock file has: process, start, number
        if self._has_text:
            self._disk.note_holder(self._path, lock_mark(text, self._generation))

    def lend(self) -> None:
        if self._is_held:
            self._disk.drop_lock(self._path)
        self._is_held = False

    def release(self) -> None:
        self.lend()


class SimFile:
    """An open file of a simulated disk."""

    def __init__(self, disk: SimDisk, content: _Content, *, writable: bool) -> None:
        self._disk = disk
        self._content = content
        self._writable = writable

    def read(self, offset: int, count: int) -> bytes:
        self._disk.check_alive()
        return bytes(self._content.now[offset : offset + count])

    def write(self, offset: int, data: bytes) -> None:
        assert self._writable, "opened for reading"
        refused = self._disk.step()
        try:
            self._disk.check_alive()
        except SimulatedCrash:
            # Half of it is written: a process ends anywhere.
            self._content.do(offset, data[: len(data) // 2])
            raise
        if refused:
            # An error may come behind a part of the bytes.
            self._content.do(offset, data[: len(data) // 2])
            self._disk.refuse()
        growth = max(0, offset + len(data) - len(self._content.now))
        if growth:
            try:
                self._disk.take_room(growth)
            except OSError:
                self._content.do(offset, data[: len(data) - growth])  # as much as there is room for
                raise
        self._content.do(offset, data)

    def begin_write(self, offset: int, parts: list[bytes]) -> None:
        self.write(offset, b"".join(parts))

    def sync(self) -> None:
        if self._disk.step():
            # "writes before a failed sync are neither on the disk nor part of the next sync"
            self._content.pending.clear()
            self._disk.refuse()
        self._disk.check_alive()
        self._content.sync()

    def size(self) -> int:
        self._disk.check_alive()
        return self._content.size

    def truncate(self, size: int) -> None:
        self._disk.attempt()
        self._content.do(size, None)
        self._disk.check_alive()

    def close(self) -> None:
        """Do nothing: an open file holds no resource."""


class _Tables:
    """Tables on a simulated disk."""

    def __init__(self, engine: MemoryEngine, identity: int) -> None:
        self.engine = engine
        self.identity = identity
        self.dirty = True
        self.named = False

    def __deepcopy__(self, _memo: object) -> _Tables:
        made = _Tables(MemoryEngine(self.engine.tables), self.identity)
        made.dirty, made.named = self.dirty, self.named
        with self.engine.read() as view, made.engine.write() as txn:
            for table in self.engine.tables:
                for key, value in view.scan(table):
                    txn.put(table, key, value)
        return made

    @property
    def size_bytes(self) -> int:
        with self.engine.read() as view:
            return _entries_bytes(view, self.engine.tables)

    def spoil(self, chance: Callable[[int], int]) -> None:
        """Damage the tables as a crash may: entries are gone or lead elsewhere."""
        with self.engine.write() as txn:
            for key, value in list(txn.scan("places")):
                if chance(2):
                    txn.delete("places", key)
                else:
                    txn.put("places", key, value[:-2] + bytes([value[-2] ^ 0x55]) + value[-1:])


class SimEngine:
    """Tables of a simulated disk, seen by one process."""

    def __init__(self, disk: SimDisk, tables: _Tables, *, read_only: bool) -> None:
        self._disk = disk
        self._tables = tables
        self._read_only = read_only

    @property
    def tables(self) -> tuple[str, ...]:
        return self._tables.engine.tables

    @property
    def read_only(self) -> bool:
        return self._read_only

    @property
    def is_damaged(self) -> bool:
        return False

    @property
    def last_commit(self) -> int:
        return self._tables.engine.last_commit

    def read(self) -> Snapshot:
        self._disk.check_alive()
        return self._tables.engine.read()

    def write(self) -> AbstractContextManager[WriteTxn]:
        return self._write()

    @contextmanager
    def _write(self) -> Iterator[WriteTxn]:
        with self._tables.engine.write() as txn:
            yield txn
            self._disk.step()
            self._disk.check_alive()
            self._grow(txn)
            self._tables.dirty = True  # dirty until the next sync
        self._disk.step()  # a second step: the process may end behind the commit
        self._disk.check_alive()

    def _grow(self, txn: WriteTxn) -> None:
        if self._disk.capacity is None:
            return
        try:
            self._disk.take_room(_entries_bytes(txn, self.tables) - self._tables.size_bytes)
        except OSError as error:
            raise StoreFull(f"simulated tables: {error.strerror}") from error

    def sync(self) -> None:
        self._disk.step()
        self._disk.check_alive()
        self._tables.dirty = False

    def close(self) -> None:
        """Do nothing: the tables stay on the disk."""


def _entries_bytes(view: ReadTxn, tables: Iterable[str]) -> int:
    return sum(len(key) + len(value) for table in tables for key, value in view.scan(table))
