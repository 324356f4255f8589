"""Cell store: cells by hash on disk, one writer, readers in any number of processes.

The modules of `log` define rules and layout: `packing` the bytes, `segments` the files, `recovery`
how the log is read after a crash, `reopening` how a writer takes its lock again, `hashindex` and
`folder` the derived index and when it may be used, `committer` the order of write, sync and
publication.

Source: docs/store.md "Commit order", "Sharing the lock", "After a loss", "Heal".

Length: everything that writes to one store, in one object.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Final

from datalattice.cells import (
    Blob,
    CellRun,
    EncodedCell,
    FreshCells,
    Value,
    branch_hashes,
    encode_levels,
    may_refer,
    novelty,
    value_hash,
)
from datalattice.clock import BoundedClock, Clock, SystemClock
from datalattice.crypto import Entropy, SystemEntropy
from datalattice.errors import MissingData, ReadOnly, StoreError, StoreFull, UsageError
from datalattice.forking import freed_in_child
from datalattice.limits import CELL_BYTES_MAX, HASH_BYTES
from datalattice.store.base import (
    Any_,
    Commit,
    Expected,
    announced_parts,
    check_cells,
    reachable,
    with_top,
)
from datalattice.store.cache import CACHE_BYTES_MAX
from datalattice.store.disk import Disk, LastUse, LockFile, RealDisk, write_error
from datalattice.store.files import StoreFolder
from datalattice.store.gc.collector import GarbageCollector
from datalattice.store.gc.marking import Begin, MarkRoots
from datalattice.store.gc.sweeping import SweepList
from datalattice.store.kept.history import RETENTION, Retention
from datalattice.store.log.committer import (
    LOCK_RELEASED,
    NO_CELLS,
    CellBatch,
    CommittedPack,
    Committer,
    batches_of,
)
from datalattice.store.log.folder import LOSS_FILE, invalidate_index, mark_index
from datalattice.store.log.freespace import SPARE_BYTES, FreeSpace
from datalattice.store.log.hashindex import NOWHERE, RECENT_ENTRIES_MAX, STAGED
from datalattice.store.log.locking import wait_for_lock
from datalattice.store.log.logend import write_loss
from datalattice.store.log.logstate import Pack
from datalattice.store.log.opening import (
    OpenLog,
    OpenSettings,
    made_of,
    open_reader,
    open_writer,
    with_readable_index,
)
from datalattice.store.log.packing import CELL_ENTRY_BYTES, LogSpan, seed_of
from datalattice.store.log.reopening import is_as_released, note_released, open_again
from datalattice.store.log.segments import PACK_BYTES_MAX, SEGMENT_BYTES, SegmentWriter
from datalattice.store.log.stagedspans import StagedSpans
from datalattice.store.notes import write_collected
from datalattice.store.placefile import PlaceFile
from datalattice.store.reader import StoreReader
from datalattice.store.records import GRACE_MS, Collected, CollectProgress, check_hash

PENDING_BYTES_MAX: Final = PACK_BYTES_MAX - 2 * CELL_BYTES_MAX
"""When more bytes than this are staged, they are written in one pack, without waiting for a commit.
With the cell that exceeds the bound they still fit into a pack.
"""

UNSYNCED_PACKS_MAX: Final = 4
"""When this many packs are written and not durable, the next one of staged cells waits for a sync.
Their cells stay in memory until then; a sync for each pack would take most of the time.
"""

PUT_TOGETHER: Final = 256
"""Cells that are looked up together while they are staged."""

SEGMENT_BYTES_MIN: Final = 4_096

NIL: Final = b"\x00"
"""The encoding of nil, which refers to nothing."""


class CellStore(StoreReader):
    """Cells by hash in a folder. Made by `CellStore.open`.

        with CellStore.open("data") as store:
            store.commit(value)                    # durable when it returns
            store.root()

    All methods may be called from any thread.
    """

    def __init__(
        self,
        settings: OpenSettings,
        opened: OpenLog,
        *,
        read_only: bool,
        cache_bytes: int,
        pending_bytes: int,
        clock: Clock,
        retention: Retention,
    ) -> None:
        super().__init__(
            settings.folder,
            opened,
            read_only=read_only,
            cache_bytes=cache_bytes,
            clock=clock,
            retention=retention,
        )
        self._settings = settings
        self._pending_max = pending_bytes
        self._pending_bytes = 0
        self.space = settings.space
        """How much is free on the disk."""
        self._collector = GarbageCollector(
            settings=settings,
            opened=lambda: self._opened,
            segments=self._segments,
            cache=self._cache,
            clock=clock,
            keepers=(self.history, self.pins),
        )
        self._lending = freed_in_child(
            threading.Lock()
        )  # held while the lock is released or taken again
        self._spans = StagedSpans()
        self._committer: Committer | None = None
        # "Readers in other processes" take no lock and write nothing.
        if opened.writer is not None:
            committer = self._begin_writing(opened, opened.writer)
            self._history.begin(opened.state.root, self.has)
            self.space.wrote(0, opened.index.entries_max())
            self.space.ask()
            # `repair` without `keep_root`: commit the last good root again, after the lost packs.
            if opened.was_cut and not opened.keeps_root:
                self._give_up(committer)
        if read_only:
            self.refresh()

    def _begin_writing(self, opened: OpenLog, writer: SegmentWriter) -> Committer:
        """Begin to write after the last pack of the log."""
        assert opened.end is not None
        committer = self._committer = Committer(
            where=self._folder.path,
            writer=writer,
            state=opened.state,
            index=opened.index,
            seed=seed_of(opened.store_id),
            end=opened.end,
            now_ms=self.clock.now_ms,
            published=self._published,
            changed=self._changed,
        )
        # A new generation: readers that remember that of an earlier writer read the log again.
        self._changed()
        return committer

    def _changed(self) -> None:
        """Make readers notice that something was written."""
        lock = self._opened.lock
        if lock is not None:
            lock.raise_generation()

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        read_only: bool = False,
        repair: bool = False,
        keep_root: bool = False,
        cache_bytes: int = CACHE_BYTES_MAX,
        pending_bytes: int = PENDING_BYTES_MAX,
        segment_bytes: int = SEGMENT_BYTES,
        recent_entries: int = RECENT_ENTRIES_MAX,
        spare_bytes: int = SPARE_BYTES,
        wait_s: float = 0.0,
        disk: Disk | None = None,
        entropy: Entropy | None = None,
        clock: Clock | None = None,
        retention: Retention = RETENTION,
    ) -> CellStore:
        """Open the store at `path`, and create it if needed.

        read_only:   read beside a writer in any process.
        repair:      open a log whose acknowledged end is lost, at the last good root, and build the
                     index again. With `keep_root`, open it at the root that the index knows,
                     although cells are lost.
        spare_bytes: disk space that is reserved for starts and collections; 0: none.
        wait_s:      how long to wait for another writer.
        Raises: UsageError: something else is there, or nothing and `read_only`.
                StoreLocked: another writer has it open; the text names the process.
                StoreVersion: a newer version made it. Corruption: acknowledged commits are lost.
                StoreFailed: a reader finds an index that a writer must make again first.
        Cost:   reads the packs written since the index was last flushed.
        """
        # `repair` commits a root after the lost packs.
        if read_only and repair:
            raise UsageError("repair writes: open the store without read_only")
        # Before anything is created: a wrong argument must not leave a folder.
        _check_sizes(segment_bytes, spare_bytes, pending_bytes)
        where = os.fspath(path)
        # An empty path would be the current folder; a NUL ends a path in the kernel.
        if not where or "\0" in where:
            raise UsageError(f"a store is opened at the path of a folder, got {where!r}")
        folder = StoreFolder(disk or RealDisk(), where)
        clock = BoundedClock(clock or SystemClock())
        settings = OpenSettings(
            folder,
            entropy or SystemEntropy(),
            segment_bytes,
            recent_entries,
            FreeSpace(folder, clock.now_ms, spare_bytes=spare_bytes, segment_bytes=segment_bytes),
        )
        make = partial(
            cls,
            settings,
            read_only=read_only,
            cache_bytes=cache_bytes,
            pending_bytes=pending_bytes,
            clock=clock,
            retention=retention,
        )
        if read_only:
            return made_of(open_reader(folder), folder, make)

        def attempt() -> CellStore:
            opened = open_writer(settings, repair=repair, keep_root=keep_root, wait_s=wait_s)
            return made_of(opened, folder, make)

        return with_readable_index(folder, attempt)

    # --- the lock ---

    def release(self) -> None:
        """Release the lock, and continue as a reader; `acquire` takes it again.

        Everything put and committed is durable on return. Writes of other threads are refused.
        Raises: UsageError: a collection is running. StoreFull, StoreFailed: staged cells could not
                be written; the lock is released nevertheless. ReadOnly: opened for reading.
        Cost:   no sync if everything is durable already. The index is not flushed, so the next
            opening reads the packs after it, as it does after a crash.
        """
        with self._lending:
            if self._read_only and self._committer is not None:
                return
            committer = self._writer()
            lock = self._opened.lock
            assert lock is not None
            # Set again below, once everything is durable; until then reopening reads the log.
            self._opened.released = None
            # A collection writes; it must not run without the lock.
            with self._collector.idle():
                try:
                    with committer.lock:
                        try:
                            self._write_pending()
                            committer.flush_durable()
                            note_released(self._folder, self._opened)
                        except OSError as error:
                            raise write_error(error, self._folder) from error
                        finally:
                            # Before the lock is released: no thread may write beside the next
                            # writer.
                            committer.pause()
                finally:
                    self._history.pause()
                    # Under the readers' lock: no thread may see one half of the old state and one
                    # half of the new one.
                    with self._refresh_lock:
                        self._generation.forget()
                        self._has_released = True
                        self._read_only = True
                    # Last of all: from here on another process may write.
                    lock.lend()

    def acquire(self, wait_s: float = 0.0) -> bool:
        """Take the lock again after `release`, and read what others wrote meanwhile.

        Return True if the store had to be opened anew: the folder was restored, moved or collected,
        or its log does not continue where it was released. The caller must then repeat the checks
        it makes after opening (`loss`, `place`, the peers).
        Raises: StoreLocked: another writer had it for `wait_s`; the text names the process.
                ReadOnly: opened for reading. Others as `open`; the store can still be read then.
        Cost:   one read at the log's end if no other process wrote; otherwise reads their packs.
        """
        with self._lending:
            self._check_process()
            if not self._read_only:
                return False
            lock = self._opened.lock
            if self._committer is None or lock is None:
                self._writer()
                raise ReadOnly(f"{self._folder}: opened for reading only")
            try:
                is_unshared = wait_for_lock(
                    self._folder.disk, self._folder.path, lock.retake, wait_s
                )
            except OSError as error:
                raise write_error(error, self._folder) from error
            try:
                with self._refresh_lock:
                    return self._take_again(lock, self._committer, is_unshared=is_unshared)
            except BaseException:
                lock.lend()
                raise

    def _take_again(self, lock: LockFile, committer: Committer, *, is_unshared: bool) -> bool:
        """Continue writing; the lock is held. Return whether the store was opened anew."""
        before = self._opened
        # The common case: one small read, and index and cache are kept.
        if is_unshared and is_as_released(self._folder, before):
            self._history.go_on(before.state.root, self.has, is_unshared=True)
            committer.go_on()
            self._read_only = False
            return False
        committer.close()
        known_entries = before.index.recent_count
        try:
            opened = open_again(self._settings, before, lock)
        finally:
            before.released = None
        assert opened.writer is not None
        # Another index: the folder was restored, moved or collected, or its log was cut.
        is_anew = opened.index is not before.index
        self._opened, self._index, self._state = opened, opened.index, opened.state
        self._segments.forget()
        if is_anew:
            self._identity = opened.place[1]
            self._cache.clear()
            self._collector.reset()
            # The damage was found in the old files.
            self._damage.clear()
            before.index.close()
        self._damage.update({(item.file, item.offset): item for item in opened.damage})
        self.space.wrote(0, max(0, opened.index.recent_count - known_entries))
        self._begin_writing(opened, opened.writer)
        self._spans.clear()  # another process may have collected
        waiting = {**self._writing, **self._pending}  # empty, unless a write failed before
        # Cells that other writers stored meanwhile need not be staged again.
        self._pending = {h: cell for h, cell in waiting.items() if self._index.find(h) < 0}
        self._writing = {}
        self._pending_bytes = sum(CellBatch([], list(self._pending.values())).lengths)
        self._history.go_on(opened.state.root, self.has, is_unshared=False)
        self._read_only = False
        return is_anew

    def _check_process(self) -> None:
        # A forked child has the parent's descriptors: two writers would share one log.
        if self._pid != os.getpid():
            raise UsageError(
                f"{self._folder}: opened for writing by another process, before a fork; open the "
                "store again in this one"
            )

    # --- loss ---

    def _give_up(self, committer: Committer) -> None:
        """Continue without the lost commits: the present root is committed after them."""
        with committer.lock:
            written = committer.write(NO_CELLS, NO_CELLS, [], self._state.root)
        committer.make_durable(written)
        # "It is synced with `close`, with `sync`" (docs/store.md "What is known of the end").
        committer.record_end()
        loss = self._opened.loss
        if loss is not None:
            loss = self._opened.loss = replace(loss, is_given_up=True)
            write_loss(self._folder, loss)
        self._opened.was_cut = False

    def accept_loss(self) -> None:
        """Accept `loss`: from now on there is none.

        The caller has fetched the lost data from elsewhere, or does without it: the next record of
        an owner may then get the offset of a lost one.
        Raises: StoreFull, StoreFailed: it cannot be recorded. ReadOnly: a reader.
        """
        committer = self._writer()
        if self._opened.was_cut:
            self._give_up(committer)
        try:
            self._folder.remove(LOSS_FILE)
        except OSError as error:
            raise write_error(error, self._folder) from error
        # Only after the removal is durable: otherwise the next opening finds the loss again.
        self._opened.loss = None

    # --- writing ---

    def _commit(
        self, value: Value, expected: Expected | Any_, announced: Sequence[Value] | None
    ) -> Commit | None:
        committer = self._writer()
        # Hashed before the lock is taken, because other commits wait for it.
        encode_levels(value)
        root = value_hash(value)
        if not isinstance(expected, Any_) and expected != committer.head:
            return None
        self.space.check()
        parts = novelty(value, self)
        tops = with_top(parts, value, root)
        shown = tops if announced is None else announced_parts(announced, self)
        with committer.lock:
            self._check_open()
            if not isinstance(expected, Any_) and expected != committer.head:
                return None
            written = self._write_commit(committer, tops, shown, root)
        committer.make_durable(written)
        self.history.flush()
        # The cells are durable: they load their children through the store.
        self._adopt(tops)
        self._cache.add_many(tops)  # the next write begins at the top, however short it is
        return Commit(root, parts, written.sequence)

    def _write_commit(
        self, committer: Committer, tops: list[EncodedCell], shown: list[EncodedCell], root: bytes
    ) -> CommittedPack:
        """Write the cells of a root, `tops`. Those in `shown` are announced, with all below them.

        `shown` may have cells that are not in `tops`: the upper cells of the root without its
        private entry. They are not stored.
        """
        if self._spans.is_waiting:
            self._write(committer, NO_CELLS, [], None)  # then the log has all cells of these values
        known = [hash for hash, _, _ in shown if hash in self._spans] if self._spans else []
        if known:
            is_all = shown is tops
            tops = [part for part in tops if part[0] not in known]
            shown = tops if is_all else [part for part in shown if part[0] not in known]
        private: dict[bytes, bytes] = {}
        if shown is not tops:
            public = {hash for hash, _, _ in shown}
            # Private cells are staged: written, and never served to others. Those that are here
            # already are left out, since a staged copy would hide an announced one.
            private = {h: data for h, data, _ in tops if h not in public and not self.has(h)}
            tops = [part for part in tops if part[0] in public]
        fresh, staged = self._index.split_new(tops, self)
        if root in fresh:  # a root is the cell most likely to be committed again
            location = self._index.find(root)
            if location >= 0:
                del fresh[root]
                staged += [root] if location & STAGED else []
        promoted = dict.fromkeys(staged)
        # Without staged cells there is nothing to promote, and the value need not be followed.
        spans: list[LogSpan] = []
        if self._pending or self._writing or self._state.staged:
            reached, spans = self._staged_below(shown, known)
            # Children first: a crash may leave the first packs of a commit with several.
            fresh = self._pending_below(reached) | fresh
            promoted |= {hash: None for hash in reached if hash not in fresh}
        self._spans.forget_trees()
        if promoted and self._spans:
            # A cell is counted once as no longer staged: by its hash, or in a span.
            locations = self._index.find_many(list(promoted))
            if min(locations) < 0:
                waiting_at = committer.waiting_locations()
                known_at = zip(promoted, locations, strict=True)
                locations = [waiting_at.get(hash, at) if at < 0 else at for hash, at in known_at]
            self._spans.forget_at(locations)
        has_new = bool(fresh or private or promoted or spans or self._pending)
        # Nothing to write: the root is the present one, and no cell is new.
        if not has_new and root == committer.head:
            committer.check()
            return committer.written
        # Closure: a store never holds a cell without all cells below it.
        self._check_below(fresh | private)
        cells = CellBatch(list(fresh), list(fresh.values()))
        for hash in fresh.keys() & self._pending.keys():
            # Kept in memory until they are durable: if the write fails, they are staged again.
            self._writing[hash] = self._pending.pop(hash)
            self._pending_bytes -= len(fresh[hash])
        # Private cells are written in the same pack, marked as staged.
        self._pending |= private
        self._pending_bytes += sum(map(len, private.values()))
        written = self._write(committer, cells, list(promoted), root, spans)
        # Other puts find them here until they are durable: a staged copy hides an announced cell.
        self._writing.update(fresh)
        return written

    def _pending_below(self, reached: dict[bytes, None]) -> dict[bytes, bytes]:
        """Return those of the cells `reached` that wait for a pack, in the order of staging."""
        found = {hash: self._find_pending(hash) for hash in self._pending if hash in reached}
        return {hash: encoding for hash, encoding in found.items() if encoding is not None}

    def _staged_below(
        self, shown: list[EncodedCell], known: list[bytes]
    ) -> tuple[dict[bytes, None], list[LogSpan]]:
        """Return (staged cells that a commit reaches, parts of the log with more of them).

        known: values with spans that the commit reaches; those below `shown` are added.
        """
        inside = partial(self._staged_encodings, known)
        reached = dict.fromkeys(reachable(shown, inside))
        spans, followed = self._spans.take(known)
        found = zip(followed, inside(followed), strict=True)
        below = [(hash, encoding, None) for hash, encoding in found if encoding is not None]
        reached.update((hash, None) for hash, _, _ in below)
        reached.update(dict.fromkeys(reachable(below, inside)))
        return reached, spans

    def _staged_encodings(self, known: list[bytes], hashes: list[bytes]) -> list[bytes | None]:
        """Return the encodings of staged cells, None for all others.

        Values with spans are added to `known`, and not followed. For a cell without references the
        result is the encoding of nil: such cells (chunks of blobs, blocks of records) are most of a
        large value, and need not be verified.
        """
        locations = self._index.find_many(hashes)
        staged = [at if at >= 0 and at & STAGED else NOWHERE for at in locations]
        found = self._segments.read_many(staged)
        for i in range(len(hashes)):
            # In memory: the index has a pack only after it is published.
            if hashes[i] in self._spans:
                known.append(hashes[i])
                found[i] = None
                continue
            waiting = self._find_pending(hashes[i])
            encoding = found[i] if waiting is None else waiting
            if encoding is not None and not may_refer(encoding):
                found[i] = NIL
            elif waiting is not None:
                found[i] = waiting
            elif staged[i] >= 0:
                found[i] = self._read(hashes[i], staged[i], verify=True)
        return found

    def _check_below(self, cells: dict[bytes, bytes]) -> None:
        """Check that new cells refer only to new cells and to cells that are here.

        The caller holds the lock. A value in memory may refer to cells that a collection has
        removed.
        Raises: MissingData: one is missing; nothing was written.
        """
        if not self._collector.has_swept:
            return  # nothing was removed since the store was opened
        wanted = {
            ref: None
            for encoding in cells.values()
            for ref in branch_hashes(encoding)
            if ref not in cells and ref not in self._pending and ref not in self._writing
        }
        hashes = list(wanted)
        locations = self._index.find_many(hashes)
        absent = [hash for hash, location in zip(hashes, locations, strict=True) if location < 0]
        if absent:
            raise MissingData(absent)

    def _write(
        self,
        committer: Committer,
        cells: CellBatch,
        promoted: list[bytes],
        root: bytes | None,
        spans: Sequence[LogSpan] = (),
    ) -> CommittedPack:
        """Write a pack with `cells`, followed by everything pending."""
        pending = self._pending
        staged = CellBatch(list(pending), list(pending.values()))
        written = committer.write(cells, staged, promoted, root, spans)
        if self._spans.is_waiting:
            self._spans.written(committer.newest, len(pending))
        # `_published` removes them from `_writing`.
        self._writing.update(pending)
        self._pending = {}
        self._pending_bytes = 0
        return written

    def _published(self, pack: Pack) -> None:
        # `space` asks the disk again after 8 MB were written.
        self.space.wrote(pack.length, len(pack.hashes))
        if pack.root is not None:
            self.history.note(pack.root)
        if self._writing:
            for hash in pack.hashes:
                self._writing.pop(hash, None)

    def _touch(self, hash: bytes) -> None:
        self._collector.touch(hash)

    def _put_cells(self, value: Value, cells: list[tuple[bytes, bytes]]) -> int:
        # Only for large values: a commit announces them by the parts of the log they are in.
        if not isinstance(value, Blob) or not self._spans.is_large(len(value)):
            return self.put_encodings(cells)
        own = dict(cells)
        is_whole = all(
            ref in own
            for hash, encoding in own.items()
            if hash not in self._spans
            for ref in branch_hashes(encoding)
        )
        return self._stage(own.items(), value.hash if is_whole else None)

    def _put_fresh(self, value: Value, cells: FreshCells) -> int:
        # Each is a part of a large value, whose spans are known.
        return self._stage(cells.nodes, value_hash(value), chunks=cells.chunks)

    def put_encodings(self, cells: Iterable[tuple[bytes, bytes]]) -> int:
        return self._stage(cells, None)

    def put_tree(self, top: bytes, cells: list[tuple[bytes, bytes]]) -> int:
        if self._spans.is_announced(len(cells)):
            return self._stage(cells, top, is_tree=True)
        return self._stage(cells, None)

    def _stage(
        self,
        cells: Iterable[tuple[bytes, bytes]],
        value: bytes | None,
        *,
        is_tree: bool = False,
        chunks: CellRun | None = None,
    ) -> int:
        """Stage cells; return how many were new. They are all cells below `value`, if given.

        is_tree: the spans of the value are known until the next commit. chunks: more cells, which
        come first.
        """
        committer = self._writer()
        self.space.check()
        count = 0
        with committer.lock:
            self._check_open()
            committer.check()
            if chunks is not None:
                if self._stage_run(committer, chunks):
                    count = len(chunks.hashes)
                else:
                    cells = dict([*chunks.cells(), *cells]).items()  # each once
            # A collection may have removed cells since the caller's look-up: look again.
            if self._collector.has_swept:
                cells = list(cells)
                new = {hash: encoding for hash, encoding in cells if not self.has(hash)}
                self._check_below(new)
            rest = iter(cells)
            first = len(self._pending) - count
            shared: dict[bytes, None] = {}  # cells that an earlier value has staged
            while batch := list(islice(rest, PUT_TOGETHER)):
                hashes = [hash for hash, _ in batch]
                for hash in hashes:
                    if not (type(hash) is bytes and len(hash) == HASH_BYTES):
                        check_hash(hash)
                locations = self._index.find_many(hashes)
                has_published = False
                for (hash, encoding), found in zip(batch, locations, strict=True):
                    location = self._index.find(hash) if has_published and found < 0 else found
                    if location >= 0 or hash in self._pending or hash in self._writing:
                        if value is not None and (location < 0 or location & STAGED):
                            shared[hash] = None
                        continue
                    self._pending[hash] = encoding
                    self._pending_bytes += len(encoding)
                    count += 1
                    # Bounds the memory of staged cells; they are written without a root.
                    entries = CELL_ENTRY_BYTES * len(self._pending)
                    if self._pending_bytes + entries > self._pending_max:
                        if value is not None:
                            self._spans.wait(value, first, len(self._pending))
                        first = 0
                        # Cells that were in `_writing` may be in the index afterwards.
                        has_published = self._write_staged(committer) or has_published
            if value is not None and count:
                self._spans.wait(value, first, len(self._pending))
                if all(hash in self._spans for hash in shared):
                    self._spans.join(value, shared)
                else:
                    self._spans.forget(value)
                if is_tree:
                    self._spans.forget_next(value)
        return count

    def _stage_run(self, committer: Committer, run: CellRun) -> bool:
        """Stage the cells of a run; False: some are here already, and none was staged.

        The caller holds the lock.
        """
        cells: dict[bytes, bytes | CellRun] = dict.fromkeys(run.hashes, run)
        size = len(run.encodings) + CELL_ENTRY_BYTES * len(cells)
        if size > self._pending_max or len(cells) < len(run.hashes):
            return False
        entries = CELL_ENTRY_BYTES * len(self._pending)
        if self._pending_bytes + entries + size > self._pending_max:
            self._write_staged(committer)
        for held in (self._pending, self._writing):
            if not held.keys().isdisjoint(run.hashes):
                return False
        if self._index.has_any(run.hashes):
            return False
        self._pending.update(cells)
        self._pending_bytes += len(run.encodings)
        return True

    def _write_staged(self, committer: Committer) -> bool:
        """Write the staged cells; return whether earlier packs were published.

        The caller holds the lock.
        """
        must_wait = committer.waiting_packs >= UNSYNCED_PACKS_MAX
        if must_wait:
            # Most bytes went to the disk while these packs were filled.
            committer.flush_durable()
        self._write(committer, NO_CELLS, [], None)
        return must_wait

    def sync(self) -> None:
        """Return when everything put and committed so far is durable.

        Raises: StoreFull, StoreFailed: it could not be written; the store must be opened again.
        """
        self._check_open()
        committer = self._committer
        if committer is None or (self._read_only and not self._pending):
            return
        with committer.lock:
            committer.check()
            written = committer.written
            if self._pending:
                written = self._write(committer, NO_CELLS, [], None)
        committer.make_durable(written)
        committer.record_end()

    @property
    def has_failed(self) -> bool:
        return self._committer is not None and self._committer.has_failed

    def resume(self) -> None:
        committer = self._writer()
        if committer.has_failed:
            committer.restart(self._take_back)

    def _take_back(self) -> None:
        """Stage the cells again that were written and not made durable."""
        self._spans.clear()
        self._segments.forget()
        # "Staged cells stay staged; a commit that failed must be repeated" (docs/store.md).
        self._pending = {**self._writing, **self._pending}
        self._writing = {}
        self._pending_bytes = sum(CellBatch([], list(self._pending.values())).lengths)

    def heal(self, cells: Iterable[tuple[bytes, bytes]], promoted: Sequence[bytes] = ()) -> int:
        """Store cells that are damaged or missing here, from any source; return how many.

        They are durable on return. The root is written with them, and the staged cells in
        `promoted` become announced.
        Raises: BadFormat: an encoding is not canonical or has another hash; nothing is kept.
        """
        committer = self._writer()
        # "Each is compared with its hash" (docs/store.md "Heal"), so any source will do.
        healed = check_cells(cells)
        for batch in batches_of(healed):
            locations = self._index.find_many(list(batch))
            # A healed cell stays staged or announced: healing must not announce staged cells.
            is_staged = [location >= 0 and location & STAGED != 0 for location in locations]
            with committer.lock:
                self._check_open()
                committer.check()
                self._spans.clear()  # the copies lie elsewhere
                written = committer.write(
                    CellBatch.chosen(batch, is_staged, False),
                    CellBatch.chosen(batch, is_staged, True),
                    list(promoted),
                    # A lost root is committed once all its cells are here again.
                    None if self._opened.was_cut else committer.head,
                )
            committer.make_durable(written)
        for at, damage in list(self._damage.items()):
            if damage.hash in healed:
                del self._damage[at]
        return len(healed)

    def discard(self, hashes: Iterable[bytes]) -> int:
        """Remove unneeded cells from the index; return how many. Their bytes stay in the log."""
        committer = self._writer()
        gone = list(hashes)
        with committer.lock:
            committer.check()
            # The next collection drops their bytes.
            self._index.discard(gone)
            for hash in gone:
                self._cache.forget(hash)
        return len(gone)

    def free_bytes(self, *, ask: bool = False) -> int:
        """Return how many bytes the disk can still take, as of the last 8 MB or 30 s."""
        return self.space.ask() if ask else self.space.free_bytes()

    # --- garbage ---

    def collect(
        self,
        *,
        grace_ms: int = GRACE_MS,
        dry_run: bool = False,
        progress: CollectProgress | None = None,
    ) -> Collected:
        return self._collect(lambda: (self.roots_kept(grace_ms), None), dry_run, progress)

    def sweep(
        self, plan: SweepList, *, dry_run: bool = False, progress: CollectProgress | None = None
    ) -> Collected:
        """Collect as `collect` does, by a mark made elsewhere; only newer packs are followed.

        Raises: UsageError: the list is another store's, or stale. Others as `collect`.
        Cost:   goes through the index; memory is two bits for each 32 bytes of the store.
        """
        return self._collect(lambda: self._collector.begin_sweep(plan), dry_run, progress)

    def roots_kept(self, grace_ms: int) -> MarkRoots:
        """Return the roots from which a collection with this grace follows cells."""
        return self._collector.roots(grace_ms)

    def _collect(self, begin: Begin, dry_run: bool, progress: CollectProgress | None) -> Collected:
        self._check_open()
        committer = None if dry_run and self._read_only else self._writer()
        done = self._collector.collect(
            committer,
            begin,
            dry_run=dry_run,
            progress=progress,
            damage=self.damage,
            write_pending=self._write_pending,
            resume=self.resume,
        )
        if not done.is_dry:
            self._changed()
            write_collected(self.notes, self.clock.now_ms(), done.cells_dead - done.cells_removed)
        return done

    def _write_pending(self) -> None:
        """Write staged cells; the caller holds the lock."""
        if self._pending:
            self._write(self._writer(), NO_CELLS, [], None)
        self._spans.clear()  # a collection, of another process too, may move or remove their cells

    @property
    def copy_id(self) -> str:
        return self.place().copy_id

    def place(self) -> PlaceFile:
        """Return the record of where this store lies."""
        return PlaceFile(self._folder)

    def close(self) -> None:
        """Make everything durable, flush the index and release the folder.

        On a full disk the index is not flushed: the next opening reads more of the log.
        Raises: StoreFull, StoreFailed: something could not be written; the folder is released
                nevertheless.
        """
        if self._closed:
            return
        is_own = self._pid == os.getpid()  # a forked child leaves everything to its parent
        if is_own:
            self._collector.stop()
        try:
            if is_own and self._committer is not None and self._is_for_writing():
                self._close_writer(self._committer)
        finally:
            # Even if closing failed, every later use raises StoreClosed.
            self._closed = True
            if self._committer is not None:
                self._committer.close()
                if self._index.is_damaged:
                    invalidate_index(self._folder)
            self._history.close()
            self._index.close()
            self._segments.forget()
            self._cache.clear()
            if self._opened.lock is not None:
                self._opened.lock.release()

    def retire(self) -> None:
        """Release the folder as `close` does, and continue as a reader.

        Values read from the store stay readable: the store is closed when nothing refers to it any
        more. The caller drops its own reference.
        Raises: as `close`.
        """
        if self._closed or self._last_use is not None or self._pid != os.getpid():
            return  # a forked child leaves everything to its parent
        self._collector.stop()
        try:
            if self._committer is not None and self._is_for_writing():
                self._close_writer(self._committer)
        finally:
            if self._committer is not None:
                self._committer.close()
                self._history.pause()
            self._history.close()
            with self._refresh_lock:
                self._generation.forget()
                self._committer = None
                self._has_released = self._read_only = True
            if self._opened.lock is not None:
                self._opened.lock.release()
            self._held = [self._index.close]
            self._last_use = LastUse(self._held)

    def _is_for_writing(self) -> bool:
        """Return whether the store has its lock, after taking it again if it was released."""
        if not self._read_only:
            return True
        try:
            self.acquire()
        except (StoreError, UsageError):
            return False  # another process has the lock, or the folder is gone
        return True

    def _close_writer(self, committer: Committer) -> None:
        try:
            committer.check()
        except StoreError:
            return  # raised before; the next opening reads the log
        self.sync()
        committer.check()
        # A closed store has no preallocated space at its end.
        committer.trim()
        try:
            # The next opening then reads no packs at all.
            self._index.flush(self._state.watermark())
        except StoreError:
            return  # nothing is lost: the next opening reads the log from the old watermark
        try:
            self._index.sync()
        except StoreError:
            # After a failed sync the kernel may drop pages that it has reported as written.
            self._invalidate_index()
            return
        # On a full disk the tables stay marked `dirty`: usable until the next power failure.
        with contextlib.suppress(StoreFull):
            mark_index(self._folder, clean=True)

    def _invalidate_index(self) -> None:
        try:
            invalidate_index(self._folder)
        except OSError as error:
            raise write_error(error, self._folder) from error

    def _writer(self) -> Committer:
        self._check_open()
        committer = self._committer
        if committer is None:
            raise ReadOnly(f"{self._folder}: opened for reading only; open it without read_only")
        self._check_process()
        if self._read_only:
            raise ReadOnly(f"{self._folder}: {LOCK_RELEASED}")
        return committer


def _check_sizes(segment_bytes: int, spare_bytes: int, pending_bytes: int) -> None:
    if not SEGMENT_BYTES_MIN <= segment_bytes <= SEGMENT_BYTES:
        raise UsageError(
            f"segment_bytes is {SEGMENT_BYTES_MIN} to {SEGMENT_BYTES}, got {segment_bytes}"
        )
    if spare_bytes < 0:
        raise UsageError(f"spare_bytes is at least 0, got {spare_bytes}")
    if not 0 <= pending_bytes <= PENDING_BYTES_MAX:
        raise UsageError(f"pending_bytes is 0 to {PENDING_BYTES_MAX}, got {pending_bytes}")
