"""Committer: writes packs one after another, and shares syncs between commits.

Theory of operation. One lock orders the packs. A commit writes its pack under the lock, releases
the lock, and waits until the pack is durable. The first waiter syncs for all packs written so far
and the others wait for it, so commits that arrive together share one sync. Then packs are
*published* in order: their cells enter the index, and their root becomes the present root.

After a failed write or sync the content of the file is unknown, so the committer refuses every
write until `restart`, or until the store is opened again. Published cells stay readable.

Source: docs/store.md "Commit order".

Length: the order of write, sync and publication is one state, beside the batches that it writes.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from datalattice.cells import CellRun
from datalattice.errors import ReadOnly, StoreError, StoreFailed, StoreFull, UsageError
from datalattice.limits import CELL_BYTES_MAX
from datalattice.store.disk import write_error
from datalattice.store.log.hashindex import HashIndex, LogPosition
from datalattice.store.log.logend import EndRecord, LogEnd
from datalattice.store.log.logstate import LogState, Pack
from datalattice.store.log.packing import (
    CELL_ENTRY_BYTES,
    FLAG_PART,
    FLAG_ROOT,
    NO_ROOT,
    PARTS_MAX,
    PARTS_SHIFT,
    SEGMENT_HEADER_BYTES,
    LogSpan,
    build_pack,
    pack_length,
    trailer_of,
)
from datalattice.store.log.segments import PACK_BYTES_MAX, SegmentWriter

LOCK_RELEASED: Final = "the store has released its lock; acquire it again before writing"


class CellBatch:
    """Cells to be written to a pack, in columns."""

    __slots__ = ("_held", "hashes", "lengths")

    def __init__(self, hashes: list[bytes], held: Sequence[bytes | CellRun]) -> None:
        """held: for each cell its encoding, or a run that has it."""
        self.hashes: Final = hashes
        self._held: Final = held
        self.lengths: Final = [one.length if isinstance(one, CellRun) else len(one) for one in held]

    @classmethod
    def chosen(cls, cells: Mapping[bytes, bytes], marks: list[bool], mark: bool) -> CellBatch:
        """Return those of `cells`, encodings by hash, whose entry in `marks` equals `mark`."""
        hashes = [hash for hash, own in zip(cells, marks, strict=True) if own is mark]
        return cls(hashes, [cells[hash] for hash in hashes])

    def part(self, first: int, stop: int) -> CellBatch:
        """Return the cells `first` to before `stop`."""
        return CellBatch(self.hashes[first:stop], self._held[first:stop])

    def encodings(self) -> list[bytes]:
        """Return the encodings end to end, in one piece for each cell or run."""
        found: list[bytes] = []
        at = 0
        while at < len(self._held):
            one = self._held[at]
            if isinstance(one, CellRun):
                stop = at + len(one.hashes)
                if self.hashes[at:stop] == one.hashes:
                    found.append(one.encodings)
                    at = stop
                    continue
                one = one.encoding(self.hashes[at])  # a part of a run was written before
            found.append(one)
            at += 1
        return found

    def check(self) -> None:
        """Check the lengths, before anything is written.

        Raises: UsageError: an encoding is longer than a cell may be.
        """
        longest = max(self.lengths, default=0)
        # A location has 14 bits for the length, so a longer cell could not be found again.
        if longest > CELL_BYTES_MAX:
            raise UsageError(f"a cell has at most {CELL_BYTES_MAX} bytes, got one of {longest}")


NO_CELLS: Final = CellBatch([], [])


class CommittedPack:
    """The packs that a call has written, for `make_durable`.

    A class compiles better than a NamedTuple.
    """

    __slots__ = ("epoch", "sequence")

    def __init__(self, sequence: int, epoch: int) -> None:
        self.sequence: Final = sequence
        """Number of the last pack."""
        self.epoch: Final = epoch
        """How often the committer was restarted; a restart discards packs that are not durable."""


class Committer:
    """Writes packs, makes them durable, publishes them."""

    def __init__(
        self,
        *,
        where: str,
        writer: SegmentWriter,
        state: LogState,
        index: HashIndex,
        seed: int,
        end: EndRecord,
        now_ms: Callable[[], int],
        published: Callable[[Pack], None],
        changed: Callable[[], None],
    ) -> None:
        self.lock = threading.Lock()
        """Held while a pack is built and written."""
        self._turn = threading.Condition(self.lock)
        self._where = where
        self._writer = writer
        self._state = state
        self._index = index
        self._seed = seed
        self._end = end
        self._now_ms = now_ms
        self._published = published
        self._changed = changed
        self._waiting: deque[Pack] = deque()
        self._syncing = False
        self._awaiting = 0  # threads that wait for the end of a sync
        self._durable = state.position.sequence
        self._sequence = state.position.sequence
        self._trailer = state.position.trailer
        self._failure: StoreError | None = None
        self._is_paused = False
        self._epoch = 0
        self.head = state.root
        """Hash of the root that was written last, durable or not."""
        self.newest: Pack | None = None
        """The pack that was written last; None: this object wrote none."""

    @property
    def written(self) -> CommittedPack:
        """All packs written so far."""
        return CommittedPack(self._sequence, self._epoch)

    @property
    def waiting_packs(self) -> int:
        """How many packs are written and not published."""
        return len(self._waiting)

    def waiting_locations(self) -> dict[bytes, int]:
        """Return the locations of cells that are written and not published; the lock is held."""
        return {
            hash: location
            for pack in self._waiting
            for hash, location in zip(pack.hashes, pack.locations, strict=True)
        }

    def check(self) -> None:
        """Check that no write failed before, and that the store has its lock.

        Raises: StoreFailed: one did. ReadOnly: the lock was released.
        """
        if self._is_paused:
            raise ReadOnly(f"{self._where}: {LOCK_RELEASED}")
        if self._failure is not None:
            raise StoreFailed(f"{self._failure}; open the store again") from self._failure

    def pause(self) -> None:
        """Refuse every write until `go_on`; everything is durable. The lock is held."""
        # Without this record the next writer finds the end of the log by reading it.
        with contextlib.suppress(OSError):
            self._end.note(self._reached())
        self._is_paused = True

    def go_on(self) -> None:
        """Write again after the last pack: the log is as it was left."""
        with self.lock:
            self._is_paused = False

    @property
    def has_failed(self) -> bool:
        """Whether a write or sync failed, so that nothing more is written."""
        return self._failure is not None

    def restart(self, taken_back: Callable[[], None]) -> None:
        """Go back to the durable position, and allow writes again from there.

        `taken_back` is called before any new write.
        Raises: StoreFull, StoreFailed: the disk still refuses.
        """
        with self.lock:
            # A sync under way may still succeed: then its packs are durable.
            while self._syncing:
                self._await_sync()
            if self._failure is None:
                return
            self._publish()
            position = self._state.position
            # The bytes before the cut prove that the durable part is still there.
            before = b""
            if position.trailer is not None and position.offset > SEGMENT_HEADER_BYTES:
                before = position.trailer.to_bytes(4, "big")
            try:
                self._writer.rewind(position.segment, position.offset, before)
            except OSError as error:
                raise self._fail(write_error(error, self._where)) from error
            self._epoch += 1
            # "A commit that was waiting for its sync fails too": its pack was never acknowledged,
            # and `taken_back` stages its cells again.
            self._waiting.clear()
            # Numbers of discarded packs are used again: no reader has seen those acknowledged.
            self._sequence = self._durable = position.sequence
            self._trailer = position.trailer
            self.head = self._state.root
            taken_back()
            self._failure = None
            self._changed()

    # --- writing; the caller holds the lock ---

    def write(
        self,
        fresh: CellBatch,
        staged: CellBatch,
        promoted: list[bytes],
        root: bytes | None,
        spans: Sequence[LogSpan] = (),
    ) -> CommittedPack:
        """Write the packs of one commit, or of staged cells only; `make_durable` takes the result.

        promoted: hashes of staged cells that it announces. spans: parts of the log whose cells it
        announces.
        Raises: StoreFull, StoreFailed: the disk refused; every later write is refused, too.
        """
        self.check()
        # Not at the end of the commit before: whoever waits for that one needs no table on disk.
        if self._index.is_large:
            try:
                self._index.flush(self._state.watermark())
            except StoreError as error:
                raise self._fail(error) from error
        fresh.check()
        staged.check()
        parts = [(part, NO_CELLS) for part in _split(fresh)]
        first, *rest = _split(staged)
        # Staged cells share the pack with the root where they fit.
        parts[-1] = (parts[-1][0], first)
        parts += [(NO_CELLS, part) for part in rest]
        # The flags of the last pack count the parts before it in 14 bits.
        if len(parts) - 1 > PARTS_MAX:
            raise UsageError(
                f"a commit has at most {PARTS_MAX} packs of {PACK_BYTES_MAX} bytes: commit in steps"
            )
        flags = 0 if root is None else FLAG_ROOT | (len(parts) - 1) << PARTS_SHIFT
        # "Several packs that count only when the last one, with the root, is there". Packs without
        # a root count one by one.
        part_flags = 0 if root is None else FLAG_PART
        try:
            for cells, apart in parts[:-1]:
                self._append(part_flags, cells, apart, [], [], NO_ROOT)
            cells, apart = parts[-1]
            self._append(flags, cells, apart, promoted, list(spans), root or NO_ROOT)
        except OSError as error:
            raise self._fail(write_error(error, self._where)) from error
        except StoreFull as error:
            self._fail(error)
            raise
        if root is not None:
            self.head = root
        return self.written

    def _append(
        self,
        flags: int,
        fresh: CellBatch,
        staged: CellBatch,
        promoted: list[bytes],
        spans: list[LogSpan],
        root: bytes,
    ) -> None:
        hashes = fresh.hashes + staged.hashes
        lengths = fresh.lengths + staged.lengths
        sequence = self._sequence + 1
        writer = self._writer
        segment = writer.segment
        length = pack_length(lengths, len(promoted), len(spans))
        # May begin a new segment, which syncs the old one first.
        writer.make_room(length, sequence)
        if writer.segment != segment:
            self._durable = self._sequence  # `make_room` synced the old segment
        time_ms = self._now_ms()
        parts, locations = build_pack(
            seed=self._seed,
            flags=flags,
            sequence=sequence,
            durable=self._durable,
            time_ms=time_ms,
            before=self._trailer or 0,
            segment=writer.segment,
            offset=writer.offset,
            length=length,
            root=root,
            hashes=hashes,
            lengths=lengths,
            encodings=fresh.encodings() + staged.encodings(),
            staged=len(staged.hashes),
            promoted=promoted,
            spans=spans,
        )
        writer.append(parts, length)
        self._sequence = sequence
        self._trailer = trailer_of(parts[-1])
        # The end of this pack: a reader that knows it continues here.
        end = LogPosition(sequence, writer.segment, writer.offset, self._trailer)
        own_root = root if flags & FLAG_ROOT else None
        count = len(staged.hashes)
        self.newest = Pack(
            end, length, flags, own_root, hashes, locations, count, promoted, spans, time_ms
        )
        self._waiting.append(self.newest)

    def _fail(self, error: StoreError) -> StoreError:
        self._failure = error
        return error

    # --- durability; the caller does not hold the lock ---

    def make_durable(self, written: CommittedPack) -> None:
        """Wait until all writes are durable and published.

        Raises: StoreFull, StoreFailed: it cannot be made durable.
        """
        sequence, epoch = written.sequence, written.epoch
        with self.lock:
            while self._syncing and self._durable < sequence and epoch == self._epoch:
                self._await_sync()
            if epoch != self._epoch:
                raise StoreFailed(f"{self._where}: a write failed, and this one with it")
            # Another waiter's sync covered this pack.
            if self._durable >= sequence:
                self._publish()
                return
            self.check()
            # No sync is under way, so no thread uses the finished segments' files.
            self._writer.close_retired()
            self._syncing = True
            # Everything written by now is covered by the sync that begins here.
            target = self._sequence
            file = self._writer.file()
        failure: OSError | None = None
        try:
            if file is not None:
                file.sync()
        except OSError as error:
            failure = error
        except BaseException:
            # An interrupt is not a failure of the disk: the next waiter syncs again.
            with self.lock:
                self._end_sync()
            raise
        with self.lock:
            self._end_sync()
            if failure is not None:
                # After a failed sync the content of the file is unknown: no later write may build
                # on it.
                raise self._fail(write_error(failure, self._where)) from failure
            # `restart` waits for a sync under way, so `target` is of this epoch.
            self._durable = max(self._durable, target)
            self._publish()

    def _await_sync(self) -> None:
        """Wait until a sync ends; the lock is held."""
        self._awaiting += 1
        try:
            self._turn.wait()
        finally:
            self._awaiting -= 1

    def _end_sync(self) -> None:
        """Note that no sync is under way; the lock is held."""
        self._syncing = False
        if self._awaiting:  # notifying takes a microsecond even without waiters
            self._turn.notify_all()

    def flush_durable(self) -> None:
        """Make everything written durable, and publish it; the caller holds the lock.

        Raises: StoreFull, StoreFailed: it cannot be made durable.
        """
        while self._syncing:
            self._await_sync()
        self.check()
        file = self._writer.file()
        if self._durable < self._sequence:
            try:
                if file is not None:
                    file.sync()
            except OSError as error:
                raise self._fail(write_error(error, self._where)) from error
            self._durable = self._sequence
        self._writer.close_retired()  # no sync is under way
        self._publish()
        self.check()

    def turn_over(self) -> tuple[int, list[bytes]]:
        """Publish everything, and let the next pack begin a new segment.

        Return the number of that segment, and the hashes of cells that a failed commit left in the
        log and that the index gets now. The caller holds the lock.
        Raises: StoreFull, StoreFailed: what was written cannot be made durable.
        """
        self.flush_durable()
        orphans = self._state.give_up_parts()
        try:
            # Synced and closed: only the last segment can end in a pack that was not acknowledged.
            self._writer.finish()
            self._index.flush(self._state.watermark())
        except OSError as error:
            raise self._fail(write_error(error, self._where)) from error
        except StoreError as error:
            raise self._fail(error) from error
        writer = self._writer
        return writer.segment if writer.file() is not None else writer.segment + 1, orphans

    def _publish(self) -> None:
        """Show durable packs to the readers of this object, in order."""
        if self._is_paused:  # all were published, and the log's end is another writer's now
            return
        waiting = self._waiting
        is_news = bool(waiting)
        # In order of the log, so the index is always complete up to a position.
        while waiting and waiting[0].end.sequence <= self._durable:
            pack = waiting.popleft()
            self._state.apply(pack)
            self._published(pack)
        try:  # noqa: SIM105 - a context manager would cost each commit a microsecond
            self._end.note(self._reached())
        except OSError:
            # A failure is not this commit's, which is durable: the next one writes the record
            # again, and `record_end` raises.
            pass
        if is_news:
            self._changed()

    def _reached(self) -> LogEnd:
        return LogEnd(self._state.position, self._state.root)

    def record_end(self) -> None:
        """Record durably that published writes were acknowledged.

        Raises: StoreFull, StoreFailed: it cannot be written.
        """
        with self.lock:
            self.check()
            try:
                self._end.sync(self._reached())
            except OSError as error:
                raise self._fail(write_error(error, self._where)) from error

    def trim(self) -> None:
        """Cut the preallocated space after the last pack.

        Raises: StoreFailed: the disk refuses.
        """
        with self.lock:
            try:
                self._writer.trim()
            except OSError as error:
                raise self._fail(write_error(error, self._where)) from error

    def close(self) -> None:
        """Wait for a sync under way, and close the files."""
        with self.lock:
            while self._syncing:
                self._await_sync()
            self._writer.close()
            self._end.close()


def batches_of(cells: Mapping[bytes, bytes]) -> Iterator[dict[bytes, bytes]]:
    """Yield the cells in batches that fit into a pack each, at least one batch."""
    batch: dict[bytes, bytes] = {}
    size = 0
    for hash, encoding in cells.items():
        size += len(encoding) + CELL_ENTRY_BYTES
        if size > PACK_BYTES_MAX // 2 and batch:
            yield batch
            batch, size = {}, len(encoding) + CELL_ENTRY_BYTES
        batch[hash] = encoding
    yield batch


def _split(cells: CellBatch) -> list[CellBatch]:
    """Return the cells in batches of at most PACK_BYTES_MAX, at least one batch."""
    if pack_length(cells.lengths, 0) <= PACK_BYTES_MAX:
        return [cells]  # the usual case
    runs: list[CellBatch] = []
    start = size = 0
    for position, length in enumerate(cells.lengths):
        size += length + CELL_ENTRY_BYTES
        if size > PACK_BYTES_MAX:
            runs.append(cells.part(start, position))
            start, size = position, length + CELL_ENTRY_BYTES
    runs.append(cells.part(start, len(cells.lengths)))
    return runs
