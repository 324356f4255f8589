"""LMDB: the engine on disk. One memory-mapped file, one writer, readers in any number of processes.

A process may open an LMDB environment only once, so engines of one process that name the same
folder share it. For the same reason a reader opens the environment with write access where the file
permissions allow it: a writer of the same process can then join later.

With `durable=False` a commit does not wait for the disk. Committed data then survives the death of
the process, but after a power failure the file may be unusable. Use it only for tables that can be
rebuilt, whose owner knows when to rebuild them.

Length: one engine and the environments that its readers and writers share.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import lmdb

from datalattice.engine.base import (
    FULL_CODES,
    TABLES_MAX,
    VALUE_BYTES_MAX,
    KeyValue,
    check_key,
    check_tables,
    check_value,
    read_only_error,
    successor,
    unknown_table,
)
from datalattice.engine.longkeys import (
    LONG_TABLE,
    SHORT_KEY_BYTES,
    LongKeys,
    seek_before,
    stored_bound,
)
from datalattice.errors import (
    Corruption,
    ReadOnly,
    StoreClosed,
    StoreError,
    StoreFailed,
    StoreFull,
    StoreVersion,
    UsageError,
)
from datalattice.forking import check_process, freed_in_child, this_process

MAP_BYTES_MAX: Final = 1 << 40
"""Greatest size of the file: address space, reserved at opening; disk is taken as it is used."""

READERS_MAX: Final = 1_024
"""Most concurrent read transactions of all processes, each a 64-byte slot in the lock file."""

TOGETHER_MIN: Final = 8
"""From so many keys on, one call of LMDB reads them all."""

_BEGUN: Final = "a transaction that was begun"

DATA_FILE: Final = "data.mdb"
_LOCK_FILE: Final = "lock.mdb"

_FULL_BYTES: Final = 1 << 20
"""With less free space than this, EIO means a full disk: LMDB writes at most 256 KiB at once."""


def _translate(error: lmdb.Error, where: str) -> StoreError:
    """Return the package's error for `error`, by who must act on it."""
    reason = str(error).removeprefix(f"{where}: ")
    text = f"{where}: {reason}"
    if isinstance(error, lmdb.MapFullError) or _is_full(error, where):
        return StoreFull(f"{where}: no room left: {reason}")
    # This mismatch has no class of its own in py-lmdb, only its text.
    if isinstance(error, lmdb.VersionMismatchError) or "data format" in reason:
        return StoreVersion(f"{where}: written by another version of LMDB: {reason}")
    if isinstance(
        error, lmdb.CorruptedError | lmdb.InvalidError | lmdb.PageNotFoundError | lmdb.PanicError
    ):
        return Corruption(text)
    if "ermission denied" in reason:
        text += f" (readers also need write access to {_LOCK_FILE} there, to register)"
    return StoreFailed(text)


def _is_full(error: lmdb.Error, where: str) -> bool:
    """Return whether the disk is full.

    LMDB reports EIO for a partial write on a full disk, and also for a failing disk.
    """
    code = getattr(error, "code", 0)
    if code != errno.EIO:
        return code in FULL_CODES
    try:
        status = os.statvfs(where)
    except OSError:
        return False  # the disk itself fails
    return status.f_bavail * status.f_frsize < _FULL_BYTES


class _Environment:
    """One LMDB environment of this process, shared by the engines that name its folder."""

    def __init__(self, path: Path, name: str, *, durable: bool, create: bool) -> None:
        self.name = name  # the real path at opening: a link may lead elsewhere later
        self.durable = durable
        self.users = 0
        self.pid = os.getpid()
        self.handles: dict[str, Any] = {}
        self.write_lock = threading.Lock()
        self.writer_thread: int | None = None
        # A reader that may write opens for writing, so that a writer of this process can share it.
        writable = create or os.access(path / DATA_FILE, os.W_OK)
        try:
            with _beside_inherited(name):
                self.env = lmdb.open(
                    str(path),
                    map_size=MAP_BYTES_MAX,
                    readonly=not writable,
                    create=create,
                    mode=0o600,
                    # Durable: data and the page that names them are both synced before a commit
                    # returns.
                    sync=durable,
                    metasync=durable,
                    max_readers=READERS_MAX,
                    max_dbs=TABLES_MAX + 1,  # LONG_TABLE
                    # Access is random: read-ahead would read pages that nothing uses.
                    readahead=False,
                    meminit=False,
                )
        except lmdb.Error as error:
            raise _translate(error, str(path)) from error
        self.file = _file_of(path)
        # Of processes that were killed: their slots keep pages from being used again.
        self.env.reader_check()

    def take(self) -> None:
        """Become the one thread that writes; waits for another one.

        Raises: UsageError: this thread writes already.
        """
        me = threading.get_ident()
        if self.writer_thread == me:  # two nested writers of one thread would wait for each other
            raise UsageError("this thread is already in a write transaction of this engine")
        self.write_lock.acquire()
        self.writer_thread = me

    def give_back(self) -> None:
        """Let another thread write."""
        self.writer_thread = None
        self.write_lock.release()


def _file_of(path: Path) -> tuple[int, int] | None:
    """Return device and inode of the data file, which differ once it is replaced; None: no file."""
    try:
        status = (path / DATA_FILE).stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


_shared: dict[str, _Environment] = {}
_inherited: Final[list[object]] = []
"""What a forked child has of its parent's environments; referenced, so that nothing closes it."""
_shared_lock = freed_in_child(threading.RLock())
"""Reentrant: a finalizer that runs while this thread opens a folder may release another one."""


def _acquire(path: Path, *, durable: bool, create: bool) -> _Environment:
    """Return this process's environment for the folder; open it if needed."""
    if not create and not (path / DATA_FILE).exists():  # a reader creates nothing
        raise UsageError(f"{path}: this folder has no tables; open it for writing to create them")
    if create:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    name = os.path.realpath(path)  # two paths may lead to one folder
    with _shared_lock:
        # From this look-up to the count of users nothing may run a finalizer, which could close it.
        file = _file_of(path)
        found = _shared.get(name)
        if found is not None and found.file != file:
            found = None  # the folder was replaced; engines that have the old one open keep it
        if found is None:
            found = _shared[name] = _Environment(path, name, durable=durable, create=create)
        elif found.durable != durable:
            raise UsageError(f"{path}: already open in this process with durable={found.durable}")
        found.users += 1
        return found


def _release(shared: _Environment) -> None:
    with _shared_lock:
        shared.users -= 1  # counted under the lock: an engine may open it meanwhile
        # A forked child must not close what its parent uses.
        if shared.users == 0 and shared.pid == this_process.id:
            # A replaced folder has an environment of its own there.
            if _shared.get(shared.name) is shared:
                del _shared[shared.name]
            shared.env.close()


def _begin_in_child() -> None:
    _inherited.extend(_shared.values())
    _shared.clear()


os.register_at_fork(after_in_child=_begin_in_child)


@contextmanager
def _beside_inherited(name: str) -> Iterator[None]:
    """Let a forked child open an environment that its parent has open.

    py-lmdb refuses files that were open at the fork until the child closes the inherited
    environment. But this ends the parent's read transactions in LMDB's table of readers, which the
    processes share: a writer then reuses pages that the parent reads.
    """
    inherited = [one for one in _inherited if isinstance(one, _Environment) and one.name == name]
    envid: Any = sys.modules.get("lmdb._envid")
    if not inherited or envid is None:
        for one in inherited:  # py-lmdb 2 compares paths, and has no other way
            one.env.close()
        yield
        return
    # Of the files it compares, none: `_shared` has what this process itself has open.
    kept, envid.env_keys = envid.env_keys, _no_keys
    try:
        yield
    finally:
        envid.env_keys = kept


def _no_keys(_path: object, _subdir: object) -> tuple[object, ...]:
    return ()


class LmdbEngine:
    """Ordered tables in a folder."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        tables: Iterable[str],
        *,
        read_only: bool = False,
        durable: bool = True,
    ) -> None:
        self._names = check_tables(tables)
        self._read_only = read_only
        self._is_damaged = False
        self.path = Path(path)
        self._shared: _Environment | None = _acquire(
            self.path, durable=durable, create=not read_only
        )
        self._handles = self._shared.handles
        if not read_only:
            self._create_tables(self._shared)

    def _create_tables(self, shared: _Environment) -> None:
        shared.take()
        try:
            # In a transaction of its own, so a half-created set of tables is never seen.
            with shared.env.begin(write=True) as txn:
                for name in (*self._names, LONG_TABLE):
                    self._handles[name] = shared.env.open_db(name.encode(), txn=txn)
        except lmdb.Error as error:
            self.close()
            raise self.failure(error) from error
        finally:
            shared.give_back()

    def find_tables(self) -> None:
        """Open the handles of tables that were created since this reader last looked."""
        # Outside any transaction: a handle opened in a read transaction ends with it.
        env = self._environment().env
        try:
            for name in {*self._names, LONG_TABLE} - self._handles.keys():
                # A writer has not created it yet: it reads as empty.
                with contextlib.suppress(lmdb.NotFoundError):
                    self._handles[name] = env.open_db(name.encode(), create=False)
        except lmdb.Error as error:
            raise self.failure(error) from error

    @property
    def tables(self) -> tuple[str, ...]:
        return self._names

    @property
    def read_only(self) -> bool:
        return self._read_only

    @property
    def is_damaged(self) -> bool:
        return self._is_damaged

    @property
    def last_commit(self) -> int:
        number: int = self._environment().env.info()["last_txnid"]  # no snapshot is opened for this
        return number

    def failure(self, error: lmdb.Error) -> StoreError:
        """Return the package's error for `error`, and record damage."""
        found = _translate(error, str(self.path))
        if not isinstance(found, Corruption):
            return found
        self._is_damaged = True
        if self._shared is None or self._shared.durable:  # these tables are the only copy
            return found
        return Corruption(f"{found}; `lattice disk heal` rebuilds these tables")

    def read(self) -> LmdbSnapshot:
        return LmdbSnapshot(self)

    def write(self) -> LmdbWriteTxn:
        # LMDB would allow the write: readers open with write access where they can.
        if self._read_only:
            raise ReadOnly(read_only_error(str(self.path)))
        return LmdbWriteTxn(self, self._environment())

    def sync(self) -> None:
        """Return when everything committed is durable."""
        try:
            self._environment().env.sync(True)
        except lmdb.Error as error:
            raise self.failure(error) from error

    def close(self) -> None:
        """Release the folder. Snapshots of this engine must not be used afterwards."""
        shared, self._shared = self._shared, None  # taken first: closing twice releases once
        if shared is not None:
            _release(shared)

    def _environment(self) -> _Environment:
        shared = self._shared
        if shared is None:
            raise StoreClosed(f"{self.path}: the engine is closed")
        return shared if shared.pid == this_process.id else self._opened_in_child(shared)

    def _opened_in_child(self, inherited: _Environment) -> _Environment:
        """Open the folder in a forked child, where the parent's environment must not be used."""
        with _shared_lock:
            shared = self._shared
            if shared is None or shared is inherited:
                shared = _acquire(self.path, durable=inherited.durable, create=False)
                self._shared, self._handles = shared, shared.handles
        self.find_tables()
        return shared

    def handle(self, table: str) -> Any:
        """Return LMDB's handle of a table; None while the table does not exist on disk."""
        found = self._handles.get(table)
        if found is None and table not in self._names:
            raise unknown_table(table, self._names)
        return found

    def long_keys(self, raw: Any, table: str) -> LongKeys | None:
        """Return the view of a table that takes keys of any length; None: it has no long key."""
        handle, rests = self.handle(table), self._handles.get(LONG_TABLE)
        return None if handle is None or rests is None else LongKeys(raw, table, handle, rests)


class _Transaction:
    """Base of read and write transactions."""

    __slots__ = ("_engine", "_pid", "_raw")

    def __init__(self, engine: LmdbEngine, raw: Any) -> None:
        self._engine = engine
        self._raw = raw
        self._pid = this_process.id

    def _live(self) -> Any:
        if self._raw is None:
            raise UsageError("the transaction is over")
        if self._pid != this_process.id:
            check_process(self._pid, _BEGUN)
        self._engine._environment()  # raises if the engine was closed
        return self._raw

    def _taken(self) -> Any:
        """Return LMDB's transaction, which the caller ends; None after that, and in a child."""
        raw, self._raw = self._raw, None  # later use raises instead of touching freed pages
        if self._pid != this_process.id:
            # LMDB would end it in the table of readers, or write its pages.
            _inherited.append(raw)
            return None
        return raw

    def get(self, table: str, key: bytes) -> bytes | None:
        """Return the value of `key`, or None."""
        raw = self._live()
        handle = self._engine.handle(table)
        is_long = not is_plain(key)
        if handle is None:  # the table does not exist yet: no key
            return None
        try:
            if is_long:
                long = self._engine.long_keys(raw, table)
                return None if long is None else long.get(key)
            found: bytes | None = raw.get(key, None, handle)
        except lmdb.Error as error:
            raise self._engine.failure(error) from error
        return found

    def get_many(self, table: str, keys: Iterable[bytes]) -> list[bytes | None]:
        """Return the values of `keys` in their order, None for absent keys."""
        raw = self._live()
        wanted = list(keys)
        handle = self._engine.handle(table)
        are_short = True
        for key in wanted:
            if not is_plain(key):
                are_short = False
        if handle is None:
            return [None] * len(wanted)
        if not are_short:
            return [self.get(table, key) for key in wanted]  # the slow way only if a key needs it
        try:
            if len(wanted) >= TOGETHER_MIN:
                found = dict(raw.cursor(handle).getmulti(wanted))
                return [found.get(key) for key in wanted]
            get = raw.get
            return [get(key, None, handle) for key in wanted]
        except lmdb.Error as error:
            raise self._engine.failure(error) from error

    def count(self, table: str) -> int:
        """Return the number of keys."""
        raw = self._live()
        handle = self._engine.handle(table)
        if handle is None:
            return 0
        try:
            entries: int = raw.stat(handle)["entries"]
            long = self._engine.long_keys(raw, table)
            if long is not None:
                entries += long.surplus()  # keys of a group are not entries of this table
        except lmdb.Error as error:
            raise self._engine.failure(error) from error
        return entries


class LmdbSnapshot(_Transaction):
    """One unchanging view of an LMDB engine.

    Keep it short or renew it: LMDB cannot reuse pages that an open view needs, so the file grows.
    """

    __slots__ = ()

    def __init__(self, engine: LmdbEngine) -> None:
        super().__init__(engine, None)
        self.renew()

    def scan(
        self, table: str, start: bytes = b"", end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[KeyValue]:
        raw = self._live()
        handle = self._engine.handle(table)
        if handle is None:
            return iter(())
        return self._walk(raw, table, start, end, reverse)

    def _walk(
        self, raw: Any, table: str, start: bytes, end: bytes | None, reverse: bool
    ) -> Iterator[KeyValue]:
        try:
            cursor = raw.cursor(self._engine.handle(table))
            yield from self._steps(cursor, self._engine.long_keys(raw, table), start, end, reverse)
        except lmdb.Error as error:
            raise self._engine.failure(error) from error

    def _steps(
        self, cursor: Any, long: LongKeys | None, start: bytes, end: bytes | None, reverse: bool
    ) -> Iterator[KeyValue]:
        # The empty key sorts first; LMDB cannot hold it, so `LongKeys` does.
        empty = None if long is None or start or end == b"" else long.get(b"")
        if reverse:
            found = seek_before(cursor, end)
            step = cursor.prev
        else:
            if empty is not None:
                yield b"", empty
            found = cursor.set_range(stored_bound(start)) if start else cursor.first()
            step = cursor.next
        while found:
            key, value = cursor.item()
            # An entry of a group: its keys are walked one by one.
            if len(key) > SHORT_KEY_BYTES and long is not None:
                yield from self._group(long, key[:SHORT_KEY_BYTES], start, end, reverse)
            elif key < start if reverse else end is not None and key >= end:
                return
            else:
                yield key, value
            self._live()  # raises once the transaction is over
            found = step()
        if reverse and empty is not None:
            yield b"", empty

    def _group(
        self, long: LongKeys, group: bytes, start: bytes, end: bytes | None, reverse: bool
    ) -> Iterator[KeyValue]:
        """Yield the keys from `start` to before `end` that begin with `group` and are longer."""
        above = successor(group)
        # Within one group; a reverse walk begins at the bound or at the group's end.
        bound: bytes | None = max(start, group + b"\0")
        if reverse:
            bound = end if end is not None and (above is None or end < above) else above
        while True:
            found = long.last(bound) if reverse else long.first(bound or b"")
            if found is None or not found[0].startswith(group) or found[0] == group:
                return
            key = found[0]
            if key < start if reverse else end is not None and key >= end:
                return
            yield found
            self._live()
            bound = key if reverse else key + b"\0"

    def getter(self, table: str) -> Callable[[bytes], bytes | None]:
        raw = self._live()
        handle = self._engine.handle(table)
        if handle is None:  # a table without a file has no keys
            return _nothing
        long = self._engine.long_keys(raw, table)
        raw_get = raw.get

        def get(key: bytes) -> bytes | None:
            try:
                if not 0 < len(key) <= SHORT_KEY_BYTES:
                    return None if long is None else long.get(key)
                found: bytes | None = raw_get(key, None, handle)
            except lmdb.Error as error:
                raise self._engine.failure(error) from error
            return found

        return get

    def renew(self) -> None:
        self.close()
        shared = self._engine._environment()
        self._engine.find_tables()  # before `begin`: handles opened inside it would end with it
        try:
            try:
                self._raw = shared.env.begin()
            except lmdb.ReadersFullError:
                if not shared.env.reader_check():  # frees the slots of processes that are gone
                    raise
                self._raw = shared.env.begin()
            self._pid = this_process.id
        except lmdb.ReadersFullError as error:
            raise StoreFull(
                f"{self._engine.path}: more than {READERS_MAX} open read transactions"
            ) from error
        except lmdb.Error as error:
            raise self._engine.failure(error) from error

    def close(self) -> None:
        """Release the view."""
        raw = self._taken()
        if raw is not None:  # closing twice is allowed
            raw.abort()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class LmdbWriteTxn(_Transaction):
    """The write transaction of an LMDB engine, which begins and ends as a context."""

    __slots__ = ("_shared", "_writes")

    def __init__(self, engine: LmdbEngine, shared: _Environment) -> None:
        super().__init__(engine, None)
        self._shared = shared
        self._writes = 0

    def __enter__(self) -> Self:
        shared = self._shared
        # In the thread first: LMDB would wait in its own lock, without an error.
        shared.take()
        try:
            self._raw = shared.env.begin(write=True)
        except BaseException as error:
            shared.give_back()
            if isinstance(error, lmdb.Error):
                raise self._engine.failure(error) from error
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        raw = self._taken()
        if raw is None:  # a forked child: the parent ends the transaction
            if kind is None:
                check_process(self._pid, _BEGUN)
            return
        try:
            if kind is None:
                raw.commit()
        except lmdb.Error as failure:
            raise self._engine.failure(failure) from failure
        finally:
            raw.abort()  # a no-op after a commit
            self._shared.give_back()

    def _live(self) -> Any:
        if self._raw is None:
            raise UsageError("the transaction is over")
        if self._pid != this_process.id:
            check_process(self._pid, _BEGUN)
        return self._raw

    def scan(
        self, table: str, start: bytes = b"", end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[KeyValue]:
        """Yield `(key, value)` for start <= key < end; sees changes made ahead of its position."""
        self._live()
        self._engine.handle(table)
        return self._walk(table, start, end, reverse)

    def _walk(
        self, table: str, start: bytes, end: bytes | None, reverse: bool
    ) -> Iterator[KeyValue]:
        # A write between two steps may move LMDB's pages: then the next step seeks anew.
        bound = end if reverse else start
        cursor, writes = None, -1
        while True:
            found: KeyValue | None = None
            # The cursor is valid as long as nothing was written since it moved.
            if cursor is not None and writes == self._writes:
                found = self._step(cursor, reverse)
            if found is None:
                cursor, found = self._seek(table, bound, reverse)
                writes = self._writes
            if found is None:
                return
            key = found[0]
            if key < start if reverse else end is not None and key >= end:
                return
            yield found
            bound = key if reverse else key + b"\0"

    def _step(self, cursor: Any, reverse: bool) -> KeyValue | None:
        """Return the next entry; None at the end and before a group of long keys."""
        self._live()
        try:
            if not (cursor.prev() if reverse else cursor.next()):
                return None
            entry: KeyValue = cursor.item()
        except lmdb.Error as error:
            raise self._engine.failure(error) from error
        return entry if len(entry[0]) <= SHORT_KEY_BYTES else None  # a group is walked by seeking

    def _seek(self, table: str, bound: bytes | None, reverse: bool) -> tuple[Any, KeyValue | None]:
        """Return (cursor, entry): the first at or after `bound`, with `reverse` the last before it.

        The cursor is on the entry; None for a long key or the empty one.
        """
        raw = self._live()
        try:
            cursor = raw.cursor(self._engine.handle(table))
            found = False
            if reverse:
                found = seek_before(cursor, bound)
            elif bound:
                found = cursor.set_range(stored_bound(bound))
            if found:
                entry: KeyValue = cursor.item()
                if len(entry[0]) <= SHORT_KEY_BYTES:
                    return cursor, entry
            elif bound and not reverse:
                return None, None
            long = self._long(table)
            return None, long.last(bound) if reverse else long.first(bound or b"")
        except lmdb.Error as error:
            raise self._engine.failure(error) from error

    def _long(self, table: str) -> LongKeys:
        long = self._engine.long_keys(self._live(), table)
        assert long is not None, "a writer has created all tables"
        return long

    def put(self, table: str, key: bytes, value: bytes) -> None:
        raw = self._live()
        check_value(value)
        plain = is_plain(key)
        handle = self._engine.handle(table)
        self._writes += 1  # an open scan must seek anew
        try:
            if plain:
                raw.put(key, value, db=handle)
            else:
                self._long(table).put(key, value)
        except lmdb.Error as error:
            raise self._engine.failure(error) from error

    def put_many(self, table: str, items: Iterable[KeyValue]) -> None:
        raw = self._live()
        long: list[KeyValue] = []
        self._writes += 1
        plain = isinstance(items, list) and _are_plain(items)
        try:
            # One call for all: most of the time of a batch is LMDB's.
            cursor = raw.cursor(self._engine.handle(table))
            cursor.putmulti(items if plain else self._checked(items, long))
        except lmdb.Error as error:
            raise self._engine.failure(error) from error
        for key, value in long:  # after the short ones: the order of distinct keys does not matter
            self.put(table, key, value)

    def _checked(self, items: Iterable[KeyValue], long: list[KeyValue]) -> Iterator[KeyValue]:
        """Yield the pairs with short keys after checking each; append the others to `long`."""
        for pair in items:
            # The conditions repeat is_plain and check_value to save two calls per valid pair.
            key, value = pair
            if not (type(value) is bytes and len(value) <= VALUE_BYTES_MAX):
                check_value(value)
            if (type(key) is bytes and 0 < len(key) <= SHORT_KEY_BYTES) or is_plain(key):
                self._writes += 1  # `items` may be made from a scan
                yield pair
            else:
                long.append(pair)

    def delete(self, table: str, key: bytes) -> bool:
        raw = self._live()
        plain = is_plain(key)
        handle = self._engine.handle(table)
        self._writes += 1
        try:
            gone: bool = raw.delete(key, db=handle) if plain else self._long(table).delete(key)
        except lmdb.Error as error:
            raise self._engine.failure(error) from error
        return gone

    def delete_range(self, table: str, start: bytes = b"", end: bytes | None = None) -> int:
        gone = 0
        for key, _ in self.scan(table, start, end):
            gone += self.delete(table, key)
        return gone


def _are_plain(items: list[KeyValue]) -> bool:
    """Return whether all keys are stored as they are, and all pairs are valid."""
    for key, value in items:
        if not (type(key) is bytes and 0 < len(key) <= SHORT_KEY_BYTES):
            return False
        if not (type(value) is bytes and len(value) <= VALUE_BYTES_MAX):
            return False
    return True


def is_plain(key: bytes) -> bool:
    """Return whether `key` is on disk as it is.

    Raises: UsageError: as check_key.
    """
    if type(key) is not bytes:
        check_key(key)
    length = len(key)
    if length > SHORT_KEY_BYTES:
        check_key(key)
    return 0 < length <= SHORT_KEY_BYTES


def _nothing(_: bytes) -> None:
    """Return None: the getter of a table that does not exist on disk."""
