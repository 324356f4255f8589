"""Cell store: cells by hash on disk, one writer, readers in any number of processes.

The rules and the layout are told module by module: `packing` the bytes, `segments` the files,
`recovery` what is read back after a crash, `hashindex` and `folder` the derived index and when it
is believed, `committer` the order of write, sync and publication.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterable
from typing import Final

from datalattice.cells import Part, Value, novelty, settle, value_hash
from datalattice.crypto import Entropy, SystemEntropy
from datalattice.errors import Corruption, ReadOnly, StoreClosed, StoreError, UsageError
from datalattice.limits import HASH_BYTES
from datalattice.store.base import (
    Any_,
    Commit,
    Damage,
    Expected,
    Store,
    check_hash,
    reachable,
    with_top,
)
from datalattice.store.cache import CACHE_BYTES_MAX
from datalattice.store.committer import Cells, Committer
from datalattice.store.disk import Disk, RealDisk, write_error
from datalattice.store.folder import INDEX, mark_index
from datalattice.store.hashindex import RECENT_ENTRIES_MAX, STAGED
from datalattice.store.opening import Opened, open_reader, open_writer
from datalattice.store.packing import locate, seed_of
from datalattice.store.recovery import LogReader, Pack, Recovery
from datalattice.store.segments import SEGMENT_BYTES, SegmentReader, segment_path

PENDING_BYTES_MAX: Final = 8 * 1024 * 1024
"""Staged cells beyond this are written without waiting for a commit: one pack takes them all."""

SEGMENT_BYTES_MIN: Final = 4_096

_sha3: Final = hashlib.sha3_256


class CellStore(Store):
    """Cells by hash in a folder. Made by `CellStore.open`.

        with CellStore.open("data") as store:
            store.commit(value)                    # durable when it returns
            store.root()

    All methods may be called from any thread.
    """

    def __init__(
        self,
        disk: Disk,
        folder: str,
        opened: Opened,
        *,
        read_only: bool,
        cache_bytes: int,
        pending_bytes: int,
    ) -> None:
        super().__init__(cache_bytes)
        self._pending_max = pending_bytes
        self._disk = disk
        self._folder = folder
        self._read_only = read_only
        self._opened = opened
        self._index = opened.index
        self._state = opened.state
        self._segments = SegmentReader(disk, folder)
        self._closed = False
        self._damage = {(item.file, item.offset): item for item in opened.damage}
        self._pending: dict[bytes, bytes] = {}  # staged, not written
        self._pending_bytes = 0
        self._writing: dict[bytes, bytes] = {}  # staged, written, not durable
        self._refresh_lock = threading.Lock()
        self._identity = disk.engine_identity(f"{folder}/{INDEX}")
        self._committer: Committer | None = None
        if opened.writer is not None:
            self._committer = Committer(
                where=folder,
                writer=opened.writer,
                state=opened.state,
                index=opened.index,
                seed=seed_of(opened.store_id),
                published=self._published,
            )
        if read_only:
            self.refresh()

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        read_only: bool = False,
        repair: bool = False,
        cache_bytes: int = CACHE_BYTES_MAX,
        pending_bytes: int = PENDING_BYTES_MAX,
        segment_bytes: int = SEGMENT_BYTES,
        recent_entries: int = RECENT_ENTRIES_MAX,
        disk: Disk | None = None,
        entropy: Entropy | None = None,
    ) -> CellStore:
        """Open the store at `path`, made when needed; `read_only` beside a writer, in any process.

        `repair`: open a log whose acknowledged end is lost, at the last good root, and make the
        index again.
        Raises: UsageError: something else is there, or nothing and `read_only`.
                StoreLocked: another writer has it open; the text names the process.
                StoreVersion: a newer version made it. Corruption: acknowledged commits are lost.
                StoreFailed: a reader finds an index that a writer must make again first.
        Cost:   reads what was written since the index was last brought up to date.
        """
        if read_only and repair:
            raise UsageError("repair writes: open the store without read_only")
        if not SEGMENT_BYTES_MIN <= segment_bytes <= SEGMENT_BYTES:
            raise UsageError(
                f"segment_bytes is {SEGMENT_BYTES_MIN} to {SEGMENT_BYTES}, got {segment_bytes}"
            )
        if not 0 <= pending_bytes <= PENDING_BYTES_MAX:
            raise UsageError(f"pending_bytes is 0 to {PENDING_BYTES_MAX}, got {pending_bytes}")
        folder = os.fspath(path)
        if not folder or "\0" in folder:
            raise UsageError(f"a store is opened at the path of a folder, got {folder!r}")
        disk = disk or RealDisk()
        if read_only:
            opened = open_reader(disk, folder)
        else:
            opened = open_writer(
                disk,
                folder,
                entropy or SystemEntropy(),
                segment_bytes=segment_bytes,
                recent_max=recent_entries,
                repair=repair,
            )
        return cls(
            disk,
            folder,
            opened,
            read_only=read_only,
            cache_bytes=cache_bytes,
            pending_bytes=pending_bytes,
        )

    @property
    def path(self) -> str:
        """The store's folder."""
        return self._folder

    @property
    def read_only(self) -> bool:
        """Whether commits are refused."""
        return self._read_only

    @property
    def damage(self) -> tuple[Damage, ...]:
        """Damaged places that were met so far; what they held counts as missing."""
        return tuple(self._damage.values())

    # --- reading ---

    def get_encoding(self, hash: bytes, *, verify: bool = True) -> bytes | None:
        """Return the encoding of a cell, or None; `verify` compares it with the hash.

        Raises: Corruption: the stored bytes are damaged. From then on the cell counts as missing,
                so that it can be fetched again.
        """
        place = self._find(hash)
        if place < 0:
            return self._find_pending(hash)
        return self._read(hash, place, verify=verify)

    def get_encodings(self, hashes: Iterable[bytes]) -> list[bytes | None]:
        """Return the encodings of cells in the order of `hashes`, None for the absent ones."""
        self._check_open()
        wanted = [check_hash(hash) for hash in hashes]
        places = self._index.find_many(wanted)
        return [
            self._read(hash, place, verify=True) if place >= 0 else self.get_encoding(hash)
            for hash, place in zip(wanted, places, strict=True)
        ]

    def _find(self, hash: bytes) -> int:
        if self._closed:
            self._check_open()
        if len(hash) != HASH_BYTES:
            check_hash(hash)
        place = self._index.find(hash)
        if place < 0 and self._read_only and self.refresh():
            place = self._index.find(hash)
        return place

    def _find_pending(self, hash: bytes) -> bytes | None:
        if not self._pending and not self._writing:
            return None
        return self._pending.get(hash) or self._writing.get(hash)

    def _read(self, hash: bytes, place: int, *, verify: bool) -> bytes:
        try:
            data = self._segments.read(place)
        except Corruption as error:
            self._quarantine(hash, place, str(error))
            raise
        if verify and _sha3(data).digest() != hash:
            raise Corruption(
                str(self._quarantine(hash, place, f"cell 0x{hash.hex()} does not fit its hash"))
            )
        return data

    def _quarantine(self, hash: bytes, place: int, reason: str) -> Damage:
        segment, offset, _ = locate(place)
        damage = Damage(segment_path(self._folder, segment), offset, reason)
        self._damage[damage.file, damage.offset] = damage
        self._index.forget(hash)
        self._cache.forget(hash)
        return damage

    def has(self, hash: bytes) -> bool:
        """Return whether the cell is here."""
        return self._find(hash) >= 0 or hash in self._pending or hash in self._writing

    def announced(self, hash: bytes) -> bool:
        """Return whether the cell may be served to others: a committed root reached it."""
        place = self._find(hash)
        return place >= 0 and not place & STAGED

    def root_hash(self) -> bytes | None:
        """Return the hash of the last root that is durable, None when none was ever committed.

        A reader looks at the log first, so it sees every commit that was acknowledged before the
        call.
        """
        self._check_open()
        if self._read_only:
            self.refresh()
        return self._state.root

    def refresh(self) -> bool:
        """Take in what the writer wrote since; return whether there was anything.

        Readers do so by themselves when they ask for the root or miss a cell.
        """
        self._check_open()
        if not self._read_only:
            return False
        with self._refresh_lock:
            identity = self._disk.engine_identity(f"{self._folder}/{INDEX}")
            if identity != self._identity:
                self._reopen(identity)
            index, state = self._index, self._state
            before = state.position
            index.look_again()
            start = index.watermark()
            if start.position.sequence >= state.position.sequence:
                index.drop_recent()
                state.restart(start)
            else:
                index.drop_tail(start.position.sequence)
            log = LogReader(self._disk, self._folder, self._opened.store_id, state.position)
            recovery = Recovery(log, self._folder)
            for pack in recovery.packs():
                index.note_tail(state.apply(pack))
            state.move_to(recovery.end)
            self._damage.update({(item.file, item.offset): item for item in recovery.damage})
            return state.position != before

    def _reopen(self, identity: str) -> None:
        """Follow a writer that made the index again."""
        old, self._opened = self._index, open_reader(self._disk, self._folder)
        self._index, self._state = self._opened.index, self._opened.state
        self._identity = identity
        old.close()

    # --- writing ---

    def _commit(self, value: Value, expected: Expected | Any_) -> Commit | None:
        committer = self._writer()
        root = value_hash(value)
        if not isinstance(expected, Any_) and expected != committer.head:
            return None
        parts = novelty(value, self)
        with committer.lock:
            self._check_open()
            if not isinstance(expected, Any_) and expected != committer.head:
                return None
            sequence = self._write_commit(committer, value, root, parts)
        committer.make_durable(sequence)
        settle(parts, self)
        self._cache.add_many(parts)
        return Commit(root, parts, sequence)

    def _write_commit(
        self, committer: Committer, value: Value, root: bytes, parts: list[Part]
    ) -> int:
        tops = with_top(parts, value, root)
        fresh, staged = self._index.sort_out(tops, self)
        if root in fresh:  # the one cell that is likely to come again
            place = self._index.find(root)
            if place >= 0:
                del fresh[root]
                staged += [root] if place & STAGED else []
        promoted = dict.fromkeys(staged)
        if self._pending or self._writing or self._state.staged:
            for hash in reachable(tops, self._staged_encoding):
                waiting = self._pending.get(hash)
                if waiting is not None:
                    fresh[hash] = waiting
                elif hash not in fresh:
                    promoted[hash] = None
        if not fresh and not promoted and not self._pending and root == committer.head:
            committer.check()
            return committer.sequence
        cells = Cells(list(fresh), list(fresh.values()))
        for hash in fresh.keys() & self._pending.keys():
            self._pending_bytes -= len(self._pending.pop(hash))
        return self._write(committer, cells, list(promoted), root)

    def _staged_encoding(self, hash: bytes) -> bytes | None:
        """Return the encoding of a cell that is staged, None for any other."""
        waiting = self._find_pending(hash)
        if waiting is not None:
            return waiting
        place = self._index.find(hash)
        return self._read(hash, place, verify=True) if place >= 0 and place & STAGED else None

    def _write(
        self, committer: Committer, cells: Cells, promoted: list[bytes], root: bytes | None
    ) -> int:
        """Write a pack with all that is pending behind `cells`."""
        pending = self._pending
        staged = Cells(list(pending), list(pending.values()))
        sequence = committer.write(cells, staged, promoted, root)
        self._writing.update(pending)
        self._pending = {}
        self._pending_bytes = 0
        return sequence

    def _published(self, pack: Pack) -> None:
        if pack.staged:
            for hash in pack.hashes[len(pack.hashes) - pack.staged :]:
                self._writing.pop(hash, None)

    def put(self, *values: Value) -> int:
        """Stage the cells of `values` without announcing them; return how many were new.

        They are durable with the next commit or `sync`.
        """
        count = 0
        for value in values:
            parts = novelty(value, self)
            tops = with_top(parts, value, value_hash(value))
            count += self.put_encodings([(hash, encoding) for hash, encoding, _ in tops])
            settle(parts, self)
        return count

    def put_encodings(self, cells: Iterable[tuple[bytes, bytes]]) -> int:
        """Stage cells given as (hash, encoding) without announcing them; return how many were new.

        The caller has made sure that the encodings are canonical and have these hashes, and that
        the cells below them are here or among them. They are durable with the next commit or
        `sync`.
        """
        committer = self._writer()
        count = sequence = 0
        with committer.lock:
            self._check_open()
            committer.check()
            for hash, encoding in cells:
                if not self.has(hash):
                    self._pending[hash] = encoding
                    self._pending_bytes += len(encoding)
                    count += 1
                    if self._pending_bytes > self._pending_max:
                        sequence = self._write(committer, Cells([], []), [], None)
        if sequence:
            committer.make_durable(sequence)
        return count

    def sync(self) -> None:
        """Return when everything put and committed so far is durable.

        Raises: StoreFull, StoreFailed: it could not be written; the store must be opened again.
        """
        self._check_open()
        committer = self._committer
        if committer is None:
            return
        with committer.lock:
            committer.check()
            sequence = committer.sequence
            if self._pending:
                sequence = self._write(committer, Cells([], []), [], None)
        committer.make_durable(sequence)

    def close(self) -> None:
        """Make everything durable, bring the index up to date and give the folder back.

        Raises: StoreFull, StoreFailed: something could not be written; the folder is given back all
                the same.
        """
        if self._closed:
            return
        try:
            if self._committer is not None:
                self._close_writer(self._committer)
        finally:
            self._closed = True
            if self._committer is not None:
                self._committer.close()
            self._index.close()
            self._segments.forget()
            self._cache.clear()
            if self._opened.lock is not None:
                self._opened.lock.release()

    def _close_writer(self, committer: Committer) -> None:
        try:
            committer.check()
        except StoreError:
            return  # told before; the log is read when the store is opened again
        self.sync()
        committer.check()
        self._index.flush(self._state.watermark())
        self._index.sync()
        try:
            committer.trim()
            mark_index(self._disk, self._folder, clean=True)
        except OSError as error:
            raise write_error(error, self._folder) from error

    def _writer(self) -> Committer:
        self._check_open()
        committer = self._committer
        if committer is None:
            raise ReadOnly(f"{self._folder}: opened for reading only; open it without read_only")
        return committer

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed(
                f"{self._folder}: the store is closed; values that were read from it load their "
                "cells through it, so use or commit them elsewhere before closing it"
            )
