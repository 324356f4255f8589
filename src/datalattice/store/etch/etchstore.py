"""Etch store: an Etch file as a store like any other; its values load lazily from the file.

Staged cells have the status STORED in the file, announced cells PERSISTED.

Source: CAD047; docs/etch.md "Store".
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from datalattice.cells import NIL_HASH, EncodedCell, Value, close_cells, novelty, value_hash
from datalattice.crypto import sha3_256, sha3_256_many
from datalattice.errors import MissingData, ReadOnly, StoreClosed, UsageError
from datalattice.store.base import (
    Any_,
    Commit,
    Expected,
    Store,
    check_cells,
    with_top,
)
from datalattice.store.cache import CACHE_BYTES_MAX
from datalattice.store.disk import Disk, Lock, RealDisk
from datalattice.store.etch.layout import NO_ETCH_ROOT, PERSISTED, STORED, EtchRecord
from datalattice.store.etch.reader import EtchFile
from datalattice.store.etch.writer import EtchWriter, create_etch, store_below
from datalattice.store.records import (
    GRACE_MS,
    Collected,
    CollectProgress,
    Damage,
    check_hash,
)

_NIL: Final = b"\x00"


class EtchStore(Store):
    """Cells by hash in an Etch file. Made by `EtchStore.open`. All methods are thread-safe."""

    def __init__(
        self, file: EtchFile, lock: Lock | None, cache_bytes: int = CACHE_BYTES_MAX
    ) -> None:
        super().__init__(cache_bytes)
        self._file: Final = file
        self._held = lock
        self._mutex: Final = threading.RLock()
        self._damaged: dict[bytes, Damage] = {}
        self._sequence = 0
        self._closed = False

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        read_only: bool = False,
        cache_bytes: int = CACHE_BYTES_MAX,
        disk: Disk | None = None,
    ) -> EtchStore:
        """Open the file at `path`, made if needed; `read_only` beside a writer, without a lock.

        Raises: UsageError: it is not an Etch file, or there is none and `read_only`.
                StoreLocked: another process writes to it. StoreVersion: an unknown version.
                Corruption: its header or its index is invalid.
        """
        where = os.fspath(path)
        if not where or "\0" in where:
            raise UsageError(f"an Etch store is opened at the path of a file, got {where!r}")
        disk = disk or RealDisk()
        # "Reading needs no lock and works beside a process that writes" (docs/etch.md "Store").
        if read_only:
            if not disk.exists(where):
                raise UsageError(f"{where}: there is no such file")
            file = EtchFile(disk, where)
            try:
                file.look_behind()
            except BaseException:
                file.close()
                raise
            return cls(file, None, cache_bytes)
        if not disk.exists(where):
            create_etch(disk, where)
        # "Writing takes the lock on the file's bytes that Java programs take, too" (docs/etch.md
        # "Store").
        lock = disk.lock_contents(where)
        try:
            # "A file of length 0 is a new store": other programs create it before they lock it.
            if _is_empty(disk, where):
                create_etch(disk, where)
                lock.release()
                lock = disk.lock_contents(where)
            return cls(EtchWriter(disk, where), lock, cache_bytes)
        except BaseException:
            lock.release()
            raise

    @property
    def path(self) -> str:
        """The file."""
        return self._file.path

    @property
    def file(self) -> EtchFile:
        """Records and index of the file."""
        return self._file

    @property
    def damage(self) -> tuple[Damage, ...]:
        """Damaged records found so far."""
        return tuple(self._damaged.values())

    # --- reading ---

    def get_encoding(self, hash: bytes, *, verify: bool = True) -> bytes | None:
        """Return the encoding of a cell, or None; nil is always here.

        Raises: Corruption: the record is damaged, or the index on the way to it.
        """
        with self._mutex:
            record = self._record(hash)
            if record is None:
                # Nil is never stored: its encoding is known.
                return _NIL if hash == NIL_HASH else None
            if verify and sha3_256(record.encoding) != hash:
                reason = "a record's encoding has another hash than its key"
                self._damaged[hash] = Damage(self.path, record.offset, reason, hash)
                self._cache.forget(hash)
                raise self._file.broken(record.offset, reason)
            return record.encoding

    def _record(self, hash: bytes) -> EtchRecord | None:
        self._check_open()
        check_hash(hash)
        return None if hash in self._damaged else self._file.get(hash)

    def get_encodings(self, hashes: Iterable[bytes], *, verify: bool = True) -> list[bytes | None]:
        wanted = list(hashes)
        with self._mutex:
            records = [self._record(hash) for hash in wanted]
            found = [None if record is None else record.encoding for record in records]
            digests = sha3_256_many([encoding or b"" for encoding in found]) if verify else wanted
            for i, hash in enumerate(wanted):
                if digests[i] != hash or found[i] is None:
                    found[i] = self.get_encoding(hash, verify=verify)  # absent, nil or damaged
        return found

    def has(self, hash: bytes) -> bool:
        with self._mutex:
            self._check_open()
            # A damaged cell counts as missing, so that it can be fetched again.
            if hash in self._damaged:
                return False
            return self._file.find(check_hash(hash)) is not None or hash == NIL_HASH

    def announced(self, hash: bytes) -> bool:
        """Return whether the cell is here with all cells below it, so that it may be served."""
        return self.status(hash) >= PERSISTED

    def status(self, hash: bytes) -> int:
        """Return what the file guarantees of a cell: STORED, PERSISTED, ...; 0: it is absent."""
        with self._mutex:
            self._check_open()
            if hash in self._damaged:
                return 0
            found = self._file.status_of(check_hash(hash))
            # "nil is never written and always there" (docs/etch.md "Store").
            return PERSISTED if hash == NIL_HASH and not found else found

    def root_hash(self) -> bytes | None:
        """Return the hash of the root, None when none was ever set."""
        with self._mutex:
            self._check_open()
            # Zeros in the header: a root was never set. A nil root has the hash of nil.
            root = self._file.root_hash
            return None if root == NO_ETCH_ROOT else root

    # --- writing ---

    def _writer(self) -> EtchWriter:
        self._check_open()
        if not isinstance(self._file, EtchWriter):
            raise ReadOnly(f"{self.path}: opened for reading only; open it without read_only")
        return self._file

    def _commit(
        self, value: Value, expected: Expected | Any_, announced: Sequence[Value] | None
    ) -> Commit | None:
        with self._mutex:
            writer = self._writer()
            if not isinstance(expected, Any_) and expected != self.root_hash():
                return None
            root = value_hash(value)
            parts = novelty(value, self)
            self._store_parts(writer, parts, value, PERSISTED)
            if root != self.root_hash():
                self._sequence += 1
                writer.set_root(root)
            writer.flush()
            close_cells(parts, self)
            return Commit(root, parts, self._sequence)

    def _store_parts(
        self, writer: EtchWriter, parts: list[EncodedCell], value: Value, status: int
    ) -> int:
        root = value_hash(value)
        # "nil is never written": its hash stands for it.
        if root == NIL_HASH:
            return 0
        fresh = {hash: encoding for hash, encoding, _ in with_top(parts, value, root)}

        def fetch(hash: bytes) -> bytes:
            encoding = fresh.get(hash)
            return self._fetch(hash) if encoding is None else encoding

        return store_below(writer, root, fetch, status)

    def _fetch(self, hash: bytes) -> bytes:
        encoding = self.get_encoding(hash)
        if encoding is None:
            raise MissingData([hash])
        return encoding

    def persist(self, value: Value) -> bytes:
        """Store a value with all below it, durably; the root stays. Return its hash."""
        with self._mutex:
            writer = self._writer()
            parts = novelty(value, self)
            self._store_parts(writer, parts, value, PERSISTED)
            writer.flush()
            close_cells(parts, self)
            return value_hash(value)

    def put_encodings(self, cells: Iterable[tuple[bytes, bytes]]) -> int:
        with self._mutex:
            writer = self._writer()
            return sum(
                writer.put(hash, encoding, STORED) for hash, encoding in cells if hash != NIL_HASH
            )

    def set_root(self, hash: bytes, fetch: Callable[[bytes], bytes] | None = None) -> int:
        """Make the cell with this hash the root, with all below it; return how many cells are new.

        `fetch` returns the encodings of cells that are not here; without it all must be here.
        Raises: MissingData: `fetch` lacks a cell too; the root is unchanged.
        """
        with self._mutex:
            writer = self._writer()
            new = 0
            if check_hash(hash) != NIL_HASH:
                new = store_below(writer, hash, fetch or self._fetch, PERSISTED)
            self._sequence += hash != self.root_hash()
            writer.set_root(hash)
            writer.flush()
            return new

    def sync(self) -> None:
        with self._mutex:
            self._check_open()
            if isinstance(self._file, EtchWriter):
                self._file.flush()

    def heal(self, cells: Iterable[tuple[bytes, bytes]]) -> int:
        """Store cells that are damaged or missing here, from any source; return how many.

        A damaged record is repaired in place.
        Raises: BadFormat: an encoding is not canonical or has another hash; nothing is kept.
        """
        with self._mutex:
            writer = self._writer()
            healed = check_cells(cells)
            writer.flush()
            for hash, encoding in healed.items():
                if hash in self._damaged:
                    writer.restore(hash, encoding)
                    del self._damaged[hash]
                else:
                    writer.put(hash, encoding, STORED)
            for hash in healed:
                self._promote(writer, hash)
            writer.flush()
            return len(healed)

    def _promote(self, writer: EtchWriter, hash: bytes) -> None:
        try:
            store_below(writer, hash, self._fetch, PERSISTED)
        except MissingData:
            return  # it stays STORED until the cells below it come

    def size_bytes(self) -> int:
        """Return the data length of the file."""
        return self._file.length

    def collect(
        self,
        *,
        grace_ms: int = GRACE_MS,
        dry_run: bool = False,
        progress: CollectProgress | None = None,
    ) -> Collected:
        """Raise UsageError: the format has no ages of cells, so a copy replaces the file."""
        raise UsageError(f"{self.path}: an Etch file is collected by `collect_etch`, while closed")

    @property
    def has_failed(self) -> bool:
        """Whether a write failed: the file must be opened again."""
        return isinstance(self._file, EtchWriter) and self._file.has_failed

    def close(self) -> None:
        """Make everything durable and close the file."""
        with self._mutex:
            if self._closed:
                return
            try:
                # After a failed write the file is not written again: the next opening finds what is
                # there.
                if isinstance(self._file, EtchWriter) and not self._file.has_failed:
                    self._file.flush()
            finally:
                self._closed = True
                self._cache.clear()
                self._file.close()
                if self._held is not None:
                    self._held.release()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed("the store is closed")


def _is_empty(disk: Disk, path: str) -> bool:
    file = disk.open(path)
    try:
        return file.size() == 0
    finally:
        file.close()
