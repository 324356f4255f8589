"""Journal: durable transactions that cost one wait for the disk, in front of another engine.

LMDB writes a page of every table that a transaction touches, and waits for the disk twice. Here a
small transaction is appended to a file, the journal, which is synced once; its changes are held in
memory, in front of the tables. Once the journal is full, and for a large transaction, all changes
go to the tables in one transaction there, which also names the next generation of the journal: from
then on the records in the file do not count, and the next ones are written over them.

    journal     = 128 zeros, records
    journal.end = boot id 16, generation 16, end u64, number of records so far u64, CRC-32 u32
    record  = length u32, check 16, parts; a length of 0 follows the last record
    part    = length u8 and name of a table, count u32, then for each change: length u32 of the key,
              key, length u32 of the value, value; ff ff ff ff removes the key, and no value follows

The second file, the header, is mapped and never synced: a commit waits for the pages of its record
and nothing else. An earlier version had the header in the journal, where zeros are now.

A check covers the body and the check before, the first one the generation, so remains of older
records or of a failed write are never read as a record. Integers are big-endian.

Any number of processes may use the file. A writer holds the write transaction of the tables, so
there is one at a time. `end` says how far the records are durable: all processes read up to there,
and so never see a transaction that a power failure could undo. After a restart of the machine the
header may be older than the records; then every record with a right check is durable, and counts.

Length: one file format, with the transactions that read through it.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
import zlib
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from operator import itemgetter
from pathlib import Path
from struct import Struct
from types import TracebackType
from typing import Final, NamedTuple, Protocol, Self

from datalattice.crypto import blake3
from datalattice.engine.base import (
    FULL_CODES,
    TABLE_KEY_BYTES_MAX,
    VALUE_BYTES_MAX,
    Engine,
    KeyValue,
    ReadTxn,
    Snapshot,
    WriteTxn,
    check_key,
    check_value,
    unknown_table,
)
from datalattice.errors import Corruption, StoreClosed, StoreFailed, StoreFull, UsageError

JOURNAL_FILE: Final = "journal"
JOURNAL_END_FILE: Final = "journal.end"
JOURNAL_TABLE: Final = "journal"
"""Table of the engine below that holds the generation."""

JOURNAL_BYTES: Final = 512 * 1024
"""Records are collected up to this size before they go to the tables."""

RECORD_BYTES_MAX: Final = 64 * 1024
"""Larger transactions go to the tables at once: writing them twice would cost more."""

_KEY: Final = b"generation"  # in `JOURNAL_TABLE`
_HEADER: Final = Struct(">16s16sQQ")  # boot id, generation, end, number of records
_HEADER_BYTES: Final = _HEADER.size + 4
_START: Final = 128  # where the first record begins
_HEAD: Final = Struct(">I16s")  # of a record: length, check
_LENGTH: Final = Struct(">I")
_REMOVED: Final = 2**32 - 1  # in place of the length of a value
_HEADER_LOOKS: Final = 100  # readings of a header until one has the right checksum
_CHECK_BYTES: Final = 16
_NO_GENERATION: Final = bytes(16)


class JournalFile(Protocol):
    """An open file. Every method may raise OSError."""

    def read(self, offset: int, count: int) -> bytes:
        """Return up to `count` bytes from `offset`, fewer only at the end of the file."""

    def write(self, offset: int, data: bytes) -> None:
        """Write all of `data` at `offset`."""

    def sync(self) -> None:
        """Return when everything written to this file is durable."""

    def size(self) -> int:
        """Return the length of the file in bytes."""

    def close(self) -> None:
        """Close the file without a sync."""


class _Header(NamedTuple):
    """How far records are durable, and since which boot and in which generation."""

    boot: bytes
    generation: bytes
    end: int
    records: int


_NO_HEADER: Final = _Header(b"", b"", 0, 0)


class _Recent:
    """The changes of one generation's records, and how far the file has been read.

    Each key has its values with the numbers of their records, so that a snapshot, which knows how
    many records it saw, keeps its view while others follow.
    """

    def __init__(self, generation: bytes) -> None:
        self.generation = generation
        self.check = generation
        self.end = _START
        self.count = 0
        self.values: dict[str, dict[bytes, list[tuple[int, bytes | None]]]] = {}
        self.keys: dict[str, list[bytes]] = {}

    def apply(self, changes: dict[str, dict[bytes, bytes | None]], size: int, check: bytes) -> None:
        """Add the changes of a record of `size` bytes."""
        number = self.count + 1
        for table, changed in changes.items():
            values = self.values.setdefault(table, {})
            keys = self.keys.setdefault(table, [])
            for key, value in changed.items():
                versions = values.get(key)
                if versions is None:
                    values[key] = [(number, value)]
                    insort(keys, key)
                else:
                    versions.append((number, value))
        self.end += size
        self.check = check
        self.count = number  # last: what a snapshot counts is complete

    def find(self, table: str, key: bytes, count: int) -> tuple[int, bytes | None] | None:
        """Return (record number, value) of the newest of `count` records with a key, or None."""
        values = self.values.get(table)
        versions = None if values is None else values.get(key)
        if versions is not None:
            for version in reversed(versions):
                if version[0] <= count:
                    return version
        return None

    def between(self, table: str, start: bytes, end: bytes | None) -> list[bytes]:
        """Return the changed keys from `start` to before `end`, in order."""
        keys = self.keys.get(table)
        if not keys:
            return []
        last = len(keys) if end is None else bisect_left(keys, end)
        return keys[bisect_left(keys, start) : last]


class _View:
    """The tables with the first `count` records of a generation in front of them."""

    __slots__ = ("_base", "_count", "_recent", "_tables")

    def __init__(self, tables: frozenset[str], base: ReadTxn, recent: _Recent) -> None:
        self._tables = tables
        self._base = base
        self._recent = recent
        self._count = recent.count

    def check_table(self, table: str) -> None:
        if table not in self._tables:
            raise unknown_table(table, sorted(self._tables))

    def get(self, table: str, key: bytes) -> bytes | None:
        found = self._recent.find(table, key, self._count)
        if found is not None:
            return found[1]
        self.check_table(table)
        return self._base.get(table, key)

    def get_many(self, table: str, keys: Iterable[bytes]) -> list[bytes | None]:
        if table not in self._recent.values:
            self.check_table(table)
            return self._base.get_many(table, keys)
        return [self.get(table, key) for key in keys]

    def scan(
        self, table: str, start: bytes, end: bytes | None, reverse: bool
    ) -> Iterator[KeyValue]:
        self.check_table(table)
        below = self._base.scan(table, start, end, reverse=reverse)
        changed = self._recent.between(table, start, end)
        if not changed:
            return below
        if reverse:
            changed.reverse()
        return self._merge(table, iter(changed), below, reverse)

    def _merge(
        self, table: str, changed: Iterator[bytes], below: Iterator[KeyValue], reverse: bool
    ) -> Iterator[KeyValue]:
        row = next(below, None)
        for key in changed:
            found = self._recent.find(table, key, self._count)
            if found is None:
                continue  # of a later record
            while row is not None and (row[0] > key if reverse else row[0] < key):
                yield row
                row = next(below, None)
            if row is not None and row[0] == key:
                row = next(below, None)
            if found[1] is not None:
                yield key, found[1]
        while row is not None:
            yield row
            row = next(below, None)

    def count(self, table: str) -> int:
        self.check_table(table)
        total = self._base.count(table)
        for key in self._recent.between(table, b"", None):
            found = self._recent.find(table, key, self._count)
            if found is not None:
                total += (found[1] is not None) - (self._base.get(table, key) is not None)
        return total


class JournalSnapshot:
    """One unchanging view of a journaled engine."""

    __slots__ = ("_base", "_engine", "_view")

    def __init__(self, engine: JournaledEngine) -> None:
        self._engine = engine
        self._base: Snapshot | None = None
        self._view: _View | None = None
        self.renew()

    def _live(self) -> _View:
        view = self._view
        if view is None:
            raise UsageError("the transaction is over")
        self._engine.check_open()
        return view

    def get(self, table: str, key: bytes) -> bytes | None:
        return self._live().get(table, _checked(key))

    def get_many(self, table: str, keys: Iterable[bytes]) -> list[bytes | None]:
        return self._live().get_many(table, [_checked(key) for key in keys])

    def scan(
        self, table: str, start: bytes = b"", end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[KeyValue]:
        return self._walk(self._live().scan(table, start, end, reverse))

    def _walk(self, entries: Iterator[KeyValue]) -> Iterator[KeyValue]:
        for entry in entries:
            yield entry
            self._live()  # raises once the transaction is over

    def count(self, table: str) -> int:
        return self._live().count(table)

    def getter(self, table: str) -> Callable[[bytes], bytes | None]:
        view = self._live()
        view.check_table(table)

        def get(key: bytes) -> bytes | None:
            return view.get(table, key)

        return get

    def renew(self) -> None:
        self.close()
        self._base, recent = self._engine.begin()
        self._view = _View(self._engine.known, self._base, recent)

    def close(self) -> None:
        """Release the view."""
        base, self._base, self._view = self._base, None, None
        if base is not None:
            base.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class JournalWriteTxn:
    """The write transaction of a journaled engine: its changes are in memory until the commit.

    It is its own context: one made by `contextmanager` costs ten times as much.
    """

    __slots__ = ("_below", "_engine", "_keys", "_raw", "_recent", "_view", "changes", "size")

    def __init__(self, engine: JournaledEngine, below: AbstractContextManager[WriteTxn]) -> None:
        self._engine = engine
        self._below = below
        self._raw: WriteTxn | None = None
        self._recent: _Recent | None = None
        self._view: _View | None = None
        self.changes: dict[str, dict[bytes, bytes | None]] = {}
        self._keys: dict[str, list[bytes]] = {}
        self.size = 0

    def __enter__(self) -> Self:
        self._raw = raw = self._below.__enter__()
        try:
            self._recent = recent = self._engine.begin_write(raw)
        except BaseException as error:
            self._below.__exit__(type(error), error, error.__traceback__)
            raise
        self._view = _View(self._engine.known, raw, recent)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        raw, recent = self._raw, self._recent
        self._raw = self._recent = self._view = None
        if kind is None and self.changes and raw is not None and recent is not None:
            try:
                self._engine.commit(raw, recent, self.changes, self.size)
            except BaseException as failure:
                self._below.__exit__(type(failure), failure, failure.__traceback__)
                raise
        self._below.__exit__(kind, error, trace)

    def _live(self) -> _View:
        view = self._view
        if view is None:
            raise UsageError("the transaction is over")
        return view

    def get(self, table: str, key: bytes) -> bytes | None:
        view = self._live()
        changed = self.changes.get(table)
        if changed is not None and _checked(key) in changed:
            return changed[key]
        return view.get(table, _checked(key))

    def get_many(self, table: str, keys: Iterable[bytes]) -> list[bytes | None]:
        if self.changes.get(table):
            return [self.get(table, key) for key in keys]
        return self._live().get_many(table, [_checked(key) for key in keys])

    def scan(
        self, table: str, start: bytes = b"", end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[KeyValue]:
        """Yield `(key, value)` for start <= key < end; sees changes made ahead of its position."""
        below = self._live().scan(table, start, end, reverse)
        return self._walk(table, below, start, end, reverse)

    def _walk(
        self, table: str, below: Iterator[KeyValue], start: bytes, end: bytes | None, reverse: bool
    ) -> Iterator[KeyValue]:
        bound = end if reverse else start
        row = next(below, None)
        while True:
            self._live()
            key = self._before(table, bound) if reverse else self._from(table, bound or b"")
            if key is not None and (key < start if reverse else end is not None and key >= end):
                key = None
            if row is not None and (key is None or (row[0] > key if reverse else row[0] < key)):
                bound = row[0] if reverse else row[0] + b"\0"
                yield row
                row = next(below, None)
            elif key is not None:
                if row is not None and row[0] == key:
                    row = next(below, None)
                bound = key if reverse else key + b"\0"
                value = self.changes[table][key]
                if value is not None:
                    yield key, value
            else:
                return

    def _sorted(self, table: str) -> list[bytes]:
        keys = self._keys.get(table)
        if keys is None:
            keys = self._keys[table] = sorted(self.changes.get(table, ()))
        return keys

    def _from(self, table: str, bound: bytes) -> bytes | None:
        """Return the least changed key >= bound."""
        keys = self._sorted(table)
        at = bisect_left(keys, bound)
        return keys[at] if at < len(keys) else None

    def _before(self, table: str, bound: bytes | None) -> bytes | None:
        """Return the greatest changed key < bound, of all for None."""
        keys = self._sorted(table)
        at = len(keys) if bound is None else bisect_left(keys, bound)
        return keys[at - 1] if at else None

    def count(self, table: str) -> int:
        view = self._live()
        total = view.count(table)
        for key, value in self.changes.get(table, {}).items():
            total += (value is not None) - (view.get(table, key) is not None)
        return total

    def put(self, table: str, key: bytes, value: bytes) -> None:
        self._live().check_table(table)
        self._set(table, _checked(key), check_value(value))

    def put_many(self, table: str, items: Iterable[KeyValue]) -> None:
        """Set many values; a later pair wins over an earlier one."""
        self._live().check_table(table)
        if not isinstance(items, list):  # it may be made from a scan, which sees what is put
            for key, value in items:
                self._set(table, _checked(key), check_value(value))
            return
        changed = self.changes.get(table) or {}
        added = 0
        for key, value in items:
            _checked(key)
            # The condition repeats that of check_value to save a call a pair.
            if not (type(value) is bytes and len(value) <= VALUE_BYTES_MAX):
                check_value(value)
            changed[key] = value
            added += len(key) + 8 + len(value)
        self.size += added
        if changed:
            self.changes[table] = changed
        self._keys.pop(table, None)  # sorted anew when a scan asks for them

    def _set(self, table: str, key: bytes, value: bytes | None) -> None:
        changed = self.changes.get(table)
        if changed is None:
            changed = self.changes[table] = {}
        keys = self._keys.get(table)  # sorted once a scan has asked for them
        if keys is not None and key not in changed:
            insort(keys, key)
        changed[key] = value
        self.size += len(key) + (8 if value is None else 8 + len(value))

    def delete(self, table: str, key: bytes) -> bool:
        present = self.get(table, key) is not None
        if present:
            self._set(table, key, None)
        return present

    def delete_range(self, table: str, start: bytes = b"", end: bytes | None = None) -> int:
        gone = 0
        for key, _ in self.scan(table, start, end):
            self._set(table, key, None)
            gone += 1
        return gone


class JournaledEngine:
    """Tables of another engine, with a journal in front."""

    def __init__(
        self,
        base: Engine,
        open_file: Callable[[str], JournalFile | None],
        boot: bytes,
        *,
        full_bytes: int = JOURNAL_BYTES,
    ) -> None:
        """Use `open_engine`, unless the disk is simulated.

        base: durable, with the table `journal` besides those of this engine. open_file: opens a
        file by name; returns None while there is no such file. boot: differs after each restart of
        the machine, empty where unknown.
        """
        self._base = base
        self._names = tuple(name for name in base.tables if name != JOURNAL_TABLE)
        self.known: Final = frozenset(self._names)
        self._open_file = open_file
        self._file: JournalFile | None = None
        self._end_file: JournalFile | None = None
        self._boot = blake3(boot)[:16]
        self._full_bytes = full_bytes
        self._lock = threading.RLock()
        self._recent = _Recent(_NO_GENERATION)
        self._records = 0  # number of records so far, by the header
        self._has_looked = False  # whether a writer has looked for records after the header's end
        self._is_damaged = False
        self._closed = False
        if base.read_only:
            return  # the files are opened once they are there
        try:
            with base.write() as raw:  # as the only writer: new files are filled with zeros
                self._open_files()
                self._move_header()
                # Records of a killed writer are adopted now or never, since a caller reads before
                # it writes and relies on that. Damage is raised again by reads and writes.
                with contextlib.suppress(Corruption):
                    self._follow(raw, is_writer=True)
        except BaseException:
            self._close_files()
            raise

    @property
    def tables(self) -> tuple[str, ...]:
        return self._names

    @property
    def read_only(self) -> bool:
        return self._base.read_only

    @property
    def is_damaged(self) -> bool:
        return self._is_damaged or self._base.is_damaged

    @property
    def last_commit(self) -> int:
        self.check_open()
        return self._base.last_commit + self._header().records

    def check_open(self) -> None:
        """Raise if the engine is closed."""
        if self._closed:
            raise StoreClosed("the engine is closed")

    def read(self) -> JournalSnapshot:
        return JournalSnapshot(self)

    def begin(self) -> tuple[Snapshot, _Recent]:
        """Return a view of the tables, and the records in front of it."""
        while True:
            self.check_open()
            view = self._base.read()
            try:
                with self._lock:
                    recent, is_certain = self._follow(view)
                if is_certain or self._is_newest(view):
                    return view, recent
            except Corruption:
                if self._is_newest(view):
                    self._is_damaged = True
                    view.close()
                    raise
            except BaseException:
                view.close()
                raise
            view.close()

    def _is_newest(self, view: ReadTxn) -> bool:
        """Return whether the generation that a view shows still is the present one.

        If not, a writer has moved its records to the tables, and others may be written over them.
        """
        with self._base.read() as newest:
            return newest.get(JOURNAL_TABLE, _KEY) == view.get(JOURNAL_TABLE, _KEY)

    def write(self) -> JournalWriteTxn:
        self.check_open()
        return JournalWriteTxn(self, self._base.write())

    def begin_write(self, raw: WriteTxn) -> _Recent:
        """Return the records that the tables do not have yet, for the writer."""
        with self._lock:
            self._move_header()  # a process of an earlier version may write meanwhile
            return self._follow(raw, is_writer=True)[0]

    def commit(
        self,
        raw: WriteTxn,
        recent: _Recent,
        changes: dict[str, dict[bytes, bytes | None]],
        size: int,
    ) -> None:
        """Write the changes of a transaction as a record, or into the tables where none fits."""
        if size <= RECORD_BYTES_MAX and recent.end + size <= self._full_bytes:
            self._append(recent, changes)
        else:
            self._move(raw, recent, changes)

    def _append(self, recent: _Recent, changes: dict[str, dict[bytes, bytes | None]]) -> None:
        """Make a transaction durable as a record."""
        body = _encode(changes)
        check = _check(recent, body)
        record = _HEAD.pack(len(body), check) + body
        file = self._file
        assert file is not None, "a writer has made the file"
        try:
            file.write(recent.end, record + bytes(_LENGTH.size))
            file.sync()
            with self._lock:
                # Under one lock: a reader that found the record published before `recent` has it
                # would add it a second time.
                end = recent.end + len(record)
                self._publish(_Header(self._boot, recent.generation, end, self._records + 1))
                recent.apply(changes, len(record), check)
        except OSError as error:
            # The transaction was not acknowledged, so its record is made invalid.
            with contextlib.suppress(OSError):
                file.write(recent.end, bytes(_HEAD.size))
                file.sync()
            raise _failure(error) from error

    def _move(
        self, raw: WriteTxn, recent: _Recent, changes: dict[str, dict[bytes, bytes | None]]
    ) -> None:
        """Write all records and a transaction to the tables, which begins a new generation."""
        latest: dict[str, dict[bytes, bytes | None]] = {
            table: {key: versions[-1][1] for key, versions in values.items()}
            for table, values in recent.values.items()
        }
        for table, changed in changes.items():
            latest.setdefault(table, {}).update(changed)
        for table, changed in latest.items():
            rows = sorted(changed.items(), key=itemgetter(0))
            for key, value in rows:
                if value is None:
                    raw.delete(table, key)
            raw.put_many(table, [(key, value) for key, value in rows if value is not None])
        # Derived from all records so far, so that the journal of other tables never fits.
        number = self._base.last_commit.to_bytes(8, "big")
        raw.put(JOURNAL_TABLE, _KEY, blake3(recent.check + number)[:_CHECK_BYTES])

    # --- the file -------------------------------------------------------------------------------

    def _open_files(self) -> None:
        if self._file is None:
            self._file = self._open_file(JOURNAL_FILE)
        if self._end_file is None:
            self._end_file = self._open_file(JOURNAL_END_FILE)

    def _close_files(self) -> None:
        files = self._file, self._end_file
        self._file = self._end_file = None
        for file in files:
            if file is not None:
                file.close()

    def _move_header(self) -> None:
        """Take the header out of a journal of an earlier version."""
        file = self._file
        assert file is not None, "a writer has made the file"
        try:
            former = file.read(0, _HEADER.size)
            if any(former):
                _, generation, end, records = _HEADER.unpack(former)
                # With a boot id that fits none, every record with a right check counts: the earlier
                # version may have written after this one, or may do so again.
                self._publish(_Header(bytes(16), generation, end, records))
                file.write(0, bytes(_START))
                file.sync()
        except OSError as error:
            raise _failure(error) from error

    def _header(self) -> _Header:
        """Return the header, zeros where there is none."""
        file = self._end_file
        if file is None:
            self._open_files()
            file = self._end_file
            if file is None:
                return _NO_HEADER
        for _ in range(_HEADER_LOOKS):  # while it is being written its checksum is wrong
            data = self._read(file, 0, _HEADER_BYTES)
            if _LENGTH.pack(zlib.crc32(data[: _HEADER.size])) == data[_HEADER.size :]:
                boot, generation, end, records = _HEADER.unpack_from(data)
                return _Header(boot, generation, end, records)
            if not any(data):
                break  # nothing was written yet
        return _NO_HEADER

    def _publish(self, header: _Header) -> None:
        """Let others read up to the end of the records, which are durable."""
        file = self._end_file
        assert file is not None, "a writer has made the file"
        data = _HEADER.pack(*header)
        file.write(0, data + _LENGTH.pack(zlib.crc32(data)))
        self._records = header.records

    def _read(self, file: JournalFile, offset: int, count: int) -> bytes:
        try:
            return file.read(offset, count)
        except OSError as error:
            raise _failure(error) from error

    def _follow(self, view: ReadTxn, *, is_writer: bool = False) -> tuple[_Recent, bool]:
        """Return (the records in front of the tables as `view` shows them, whether it is certain).

        It is not if a writer may have overwritten records while they were read.
        """
        generation = view.get(JOURNAL_TABLE, _KEY) or _NO_GENERATION
        recent = self._recent
        if recent.generation != generation:
            recent = self._recent = _Recent(generation)
        header = self._header()
        self._records = header.records
        if self._file is None:
            return recent, True
        is_published = header.generation == generation
        published = header.end if is_published else _START
        # If the header is of another boot, every record with a right check came from the disk, so
        # it is durable and counts: the header may be older. If it is of this boot, only the records
        # up to its end count. But the header of a detached volume, or of a copy, may be older, so a
        # writer looks for further records once.
        is_bounded = header.boot == self._boot and (self._has_looked or not is_writer)
        if is_bounded and recent.end >= published:
            return recent, is_published or is_writer
        while not is_bounded or recent.end < published:
            changes, size, check = self._record(recent)
            if not size:
                break
            recent.apply(changes, size, check)
        if recent.end < published:
            raise Corruption(f"the journal has no record at byte {recent.end}")
        if is_writer:
            if recent.end > published or header.boot != self._boot:
                self._adopt(recent)
            self._has_looked = True
        elif not is_bounded and self._header().boot == self._boot:
            # A writer came meanwhile, so a record with a right check may not be durable.
            self._recent = _Recent(_NO_GENERATION)
            return self._follow(view)
        return recent, is_writer

    def _record(self, recent: _Recent) -> tuple[dict[str, dict[bytes, bytes | None]], int, bytes]:
        """Return (changes, size, check) of the record after the last one; size 0: there is none."""
        file = self._file
        assert file is not None, "records are read from a file that is there"
        head = self._read(file, recent.end, _HEAD.size)
        if len(head) == _HEAD.size:
            length, check = _HEAD.unpack(head)
            if 0 < length <= 4 * RECORD_BYTES_MAX:
                body = self._read(file, recent.end + _HEAD.size, length)
                if len(body) == length and check == _check(recent, body):
                    return _decode(body), _HEAD.size + length, check
        return {}, 0, b""

    def _adopt(self, recent: _Recent) -> None:
        """Acknowledge records that are in the journal and that its header does not count yet."""
        file = self._file
        assert file is not None, "a writer has made the file"
        try:
            # Written again: after a failed sync the kernel may hold pages that never got to the
            # disk and count as written.
            file.write(_START, file.read(_START, recent.end - _START))
            file.sync()
            count = self._records + recent.count
            self._publish(_Header(self._boot, recent.generation, recent.end, count))
        except OSError as error:
            self._recent = _Recent(_NO_GENERATION)
            raise _failure(error) from error

    def sync(self) -> None:
        """Return when everything committed is durable, which it is."""
        self.check_open()

    def close(self) -> None:
        """Release all resources; the records stay in the journal."""
        self._closed = True
        self._close_files()
        self._base.close()


def _check(recent: _Recent, body: bytes) -> bytes:
    return blake3(recent.check + body)[:_CHECK_BYTES]


def _encode(changes: dict[str, dict[bytes, bytes | None]]) -> bytes:
    parts: list[bytes] = []
    pack = _LENGTH.pack
    for table, changed in changes.items():
        name = table.encode()
        parts += (bytes([len(name)]), name, pack(len(changed)))
        for key, value in changed.items():
            if value is None:
                parts += (pack(len(key)), key, pack(_REMOVED))
            else:
                parts += (pack(len(key)), key, pack(len(value)), value)
    return b"".join(parts)


def _decode(body: bytes) -> dict[str, dict[bytes, bytes | None]]:
    """Return the changes of a record whose check is right."""
    changes: dict[str, dict[bytes, bytes | None]] = {}
    at, size = 0, len(body)
    while at < size:
        start = at + 1
        at = start + body[at]
        changed = changes[body[start:at].decode()] = {}
        count = int.from_bytes(body[at : at + 4], "big")
        at += 4
        for _ in range(count):
            start = at + 4
            at = start + int.from_bytes(body[at:start], "big")
            key = body[start:at]
            length = int.from_bytes(body[at : at + 4], "big")
            at += 4
            if length == _REMOVED:
                changed[key] = None
            else:
                changed[key] = body[at : at + length]
                at += length
    return changes


def _failure(error: OSError) -> StoreFull | StoreFailed:
    if error.errno in FULL_CODES:
        return StoreFull(f"the journal: no room left: {error.strerror}")
    return StoreFailed(f"the journal: {error.strerror}")


# --- in a folder ----------------------------------------------------------------------------------


class _OsFile:
    """The journal in a folder."""

    def __init__(self, path: Path, *, create: bool) -> None:
        flags = os.O_RDWR | os.O_CREAT if create else os.O_RDONLY
        self.fd = os.open(path, flags | os.O_CLOEXEC, 0o600)

    def read(self, offset: int, count: int) -> bytes:
        return os.pread(self.fd, count, offset)

    def write(self, offset: int, data: bytes) -> None:
        while data:
            done = os.pwrite(self.fd, data, offset)
            offset, data = offset + done, data[done:]

    def sync(self) -> None:
        sync = getattr(os, "fdatasync", os.fsync)
        sync(self.fd)

    def size(self) -> int:
        return os.fstat(self.fd).st_size

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


class _MappedFile:
    """The header, in memory that all processes share. With `create` no other process writes it."""

    def __init__(self, path: Path, *, create: bool) -> None:
        file = _OsFile(path, create=create)
        try:
            if file.size() < _HEADER_BYTES:
                if not create:  # the process that made it has not filled it yet
                    raise FileNotFoundError
                file.write(0, bytes(_HEADER_BYTES))
            access = mmap.ACCESS_WRITE if create else mmap.ACCESS_READ
            self._map = mmap.mmap(file.fd, _HEADER_BYTES, access=access)
        finally:
            file.close()

    def read(self, offset: int, count: int) -> bytes:
        return self._map[offset : offset + count]

    def write(self, offset: int, data: bytes) -> None:
        self._map[offset : offset + len(data)] = data

    def sync(self) -> None:
        self._map.flush()

    def size(self) -> int:
        return len(self._map)

    def close(self) -> None:
        """Do nothing: a thread may be reading; the mapping ends with this object."""


def open_journal(folder: Path, name: str, *, create: bool) -> JournalFile | None:
    """Open a file of the journal in a folder; None: it is not there, and `create` is False.

    Only one process at a time may create.
    """
    try:
        if name == JOURNAL_END_FILE:
            return _MappedFile(folder / name, create=create)
        file = _OsFile(folder / name, create=create)
        if create:
            _take_room(file, folder)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _failure(error) from error
    return file


def _take_room(file: _OsFile, folder: Path) -> None:
    """Fill a new file: a sync of one that grows waits for the file system's own journal, too."""
    try:
        size = file.size()
        if size < JOURNAL_BYTES:
            file.write(size, bytes(JOURNAL_BYTES - size))
            os.fsync(file.fd)
            folder_fd = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(folder_fd)
            finally:
                os.close(folder_fd)
    except OSError:
        file.close()
        raise


def boot_id() -> bytes:
    """Return bytes that differ after each restart of the machine; empty where it is unknown."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_bytes().strip()
    except OSError:
        return b""


def _checked(key: bytes) -> bytes:
    """Return a key, as `check_key`, which costs more since it is not compiled."""
    return key if type(key) is bytes and len(key) <= TABLE_KEY_BYTES_MAX else check_key(key)
