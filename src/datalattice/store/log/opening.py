"""Opening: open the folder of a store for the writer or for a reader, and recover its log.

Source: docs/store.md "Recovery", "After a loss", "Readers".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Final, NamedTuple, TypeVar

from datalattice.crypto import Entropy
from datalattice.errors import Corruption, StoreFailed, StoreVersion, UsageError
from datalattice.store.disk import LockFile, write_error
from datalattice.store.files import StoreFolder
from datalattice.store.log.folder import (
    INDEX,
    LOCK_FILE,
    STORE_FILE,
    check_folder,
    index_is_usable,
    invalidate_index,
    make_store,
    mark_index,
    raise_version,
    read_store_id,
)
from datalattice.store.log.freespace import FreeSpace
from datalattice.store.log.hashindex import BEGINNING, TABLES, HashIndex, LogPosition
from datalattice.store.log.locking import wait_for_lock
from datalattice.store.log.logend import (
    EndRecord,
    Loss,
    lost_packs,
    read_loss,
    unknown_loss,
    write_loss,
)
from datalattice.store.log.logstate import LogState
from datalattice.store.log.packing import PACK_TRAILER_BYTES, SEGMENT_HEADER_BYTES
from datalattice.store.log.recovery import LogReader, Recovery
from datalattice.store.log.removed import (
    DAMAGED_RECORD,
    GARBAGE_FILE,
    NOTHING_REMOVED,
    RemovedRecord,
    delete_dropped,
    finish_removal,
    read_removed,
    read_swept_before,
)
from datalattice.store.log.segments import (
    SEGMENTS,
    SegmentWriter,
    segment_head,
    segment_numbers,
    segment_path,
)
from datalattice.store.records import Damage

T = TypeVar("T")

_COPY_BYTES: Final = 1 << 20
"""Bytes of a tail that are written again at a time."""

_REMEDY: Final = (
    "put the file back; or fetch what is gone with `lattice disk heal --from-store DIR` or "
    "`--from HOST:PORT`; or open the store with repair=True and lose it"
)


class OpenSettings(NamedTuple):
    """The settings with which a writer opens a store, and again after it released its lock."""

    folder: StoreFolder
    entropy: Entropy
    segment_bytes: int
    recent_max: int
    space: FreeSpace


class ReleasedLog(NamedTuple):
    """How a writer left a log when it released its lock."""

    position: LogPosition
    """The end of the last pack; everything before it is durable."""
    removed: bytes
    """The head of the record of removed cells."""


class OpenLog:
    """The parts of an open store."""

    def __init__(
        self, store_id: bytes, index: HashIndex, state: LogState, removed: RemovedRecord
    ) -> None:
        self.store_id = store_id
        self.index = index
        self.state = state
        self.removed = removed
        self.damage: list[Damage] = []
        self.start = state.watermark()
        """Up to where the tables on disk were complete when they were last read."""
        self.lock: LockFile | None = None
        self.writer: SegmentWriter | None = None
        self.end: EndRecord | None = None
        self.loss: Loss | None = None
        """Acknowledged commits that are gone."""
        self.was_cut = False
        """Whether packs were lost at the end of the log, and none follows them yet."""
        self.keeps_root = False
        """Whether the root is the lost one, so that healing can restore it."""
        self.place = ("", "")
        """Where the folder was, and the file of the tables, when a writer opened it."""
        self.released: ReleasedLog | None = None
        """How the log was left, while a writer has released its lock; None: open the store anew."""


def open_reader(folder: StoreFolder) -> OpenLog:
    """Open a store for reading beside its writer, or without one. Writes nothing.

    Raises: UsageError: there is no store. StoreVersion: a newer version made it.
            StoreFailed: its index must be made again first, which a writer does.
    """
    check_folder(folder, must_exist=True)
    store_id = read_store_id(folder)
    if not index_is_usable(folder):
        raise StoreFailed(
            f"{folder}: the index must be made again after a power failure, a copy or a cut of its "
            "file; a writer does that when it opens the store, `lattice disk heal` for example"
        )
    try:
        index = HashIndex(folder.disk.engine(f"{folder}/{INDEX}", TABLES, read_only=True))
        start = index.watermark()
        index.swept_before = read_swept_before(folder)
    except (Corruption, StoreVersion) as error:
        raise StoreFailed(
            f"{folder}: the index is damaged and must be made again; a writer does that when it "
            "opens the store, `lattice disk heal` for example"
        ) from error
    try:
        _check_id(folder, store_id, start.position.segment)
    except Corruption:
        index.close()
        raise
    # A collection flushes the index before it deletes anything. So everything removed lies before
    # the watermark, and a reader needs no record of it.
    return OpenLog(store_id, index, LogState(index, start), NOTHING_REMOVED)


def open_writer(
    settings: OpenSettings, *, repair: bool, keep_root: bool = False, wait_s: float = 0.0
) -> OpenLog:
    """Open a store for writing: make it if needed, lock it, read its tail, cut torn packs.

    Raises: UsageError: something else is in the folder. StoreLocked: another writer has it.
            StoreVersion: a newer version made it. Corruption: acknowledged commits are lost;
            `repair` opens it nevertheless, with `keep_root` at the root that the index knows.
    """
    folder = settings.folder
    try:
        if not check_folder(folder, must_exist=False):
            folder.disk.create_folder(folder.path)
        path = f"{folder}/{LOCK_FILE}"
        # Locked before anything is read: another writer may be changing all of it.
        lock = wait_for_lock(folder.disk, folder.path, lambda: folder.disk.lock(path), wait_s)
        try:
            return settings.space.spend_reserve(
                lambda: open_locked(settings, lock, repair=repair, keep_root=keep_root)
            )
        except BaseException:
            lock.release()
            raise
    except (FileExistsError, NotADirectoryError) as error:
        raise UsageError(f"{folder}: not a folder, its path goes through a file") from error
    except OSError as error:
        raise write_error(error, folder) from error


def open_locked(
    settings: OpenSettings, lock: LockFile, *, repair: bool = False, keep_root: bool = False
) -> OpenLog:
    """Do the work of `open_writer`; the lock is held."""
    folder = settings.folder
    if not check_folder(folder, must_exist=False):
        make_store(folder, settings.entropy)
    # Before anything is written: on a full disk the start itself needs the reserved space.
    settings.space.begin()
    store_id = read_store_id(folder)
    raise_version(folder, store_id)
    try:
        index = _open_index(settings, is_usable=keep_root or not repair)
    except (Corruption, StoreVersion):
        # Unreadable tables, or tables of another LMDB version: "deleted and made again from the
        # segments".
        index = _open_index(settings, is_usable=False)
    try:
        removed, damage = _read_removed(folder, store_id)
        index.swept_before = read_swept_before(folder)
        loss = read_loss(folder)
        unknown = unknown_loss(folder) if loss is None else None
        if unknown is not None:
            loss = unknown
            # Before `EndRecord` makes the file `end` again, which would hide the loss.
            write_loss(folder, unknown)
        end = EndRecord(folder, store_id)
    except BaseException:
        index.close()
        raise
    try:
        opened = OpenLog(store_id, index, LogState(index, index.watermark(), removed), removed)
        opened.lock = lock
        opened.place = place_of(folder)
        opened.end = end
        opened.loss = loss
        opened.writer = SegmentWriter(folder, store_id, settings.segment_bytes)
        recover(folder, opened, opened.writer, repair=repair, keep_root=keep_root)
        opened.damage += [*damage, *end.damage]
        if finish_removal(folder, index, removed):
            # The index must forget the cells durably before their files are deleted.
            index.flush(opened.state.watermark())
            delete_dropped(folder, removed)
    except BaseException:
        end.close()
        _close_index(folder, index)
        raise
    return opened


def place_of(folder: StoreFolder) -> tuple[str, str]:
    """Return where a store's folder is, and the file of its index's tables."""
    disk = folder.disk
    return disk.place(f"{folder}/{SEGMENTS}"), disk.engine_identity(f"{folder}/{INDEX}")


def made_of(opened: OpenLog, folder: StoreFolder, make: Callable[[OpenLog], T]) -> T:
    """Return the result of `make`; if it raises, close everything that was opened."""
    try:
        return make(opened)
    except BaseException:
        if opened.end is not None:
            opened.end.close()
        _close_index(folder, opened.index)
        if opened.lock is not None:
            opened.lock.release()
        raise


def with_readable_index(folder: StoreFolder, attempt: Callable[[], T]) -> T:
    """Return the result of `attempt`, which opens a store for writing.

    If it finds the index damaged, a second attempt makes the index again.
    """
    try:
        return attempt()
    except Corruption:
        if index_is_usable(folder):
            raise
    return attempt()


def _close_index(folder: StoreFolder, index: HashIndex) -> None:
    """Close an index; when it was found damaged, the next writer makes it again."""
    if index.is_damaged and not index.read_only:
        invalidate_index(folder)
    index.close()


def _read_removed(folder: StoreFolder, store_id: bytes) -> tuple[RemovedRecord, list[Damage]]:
    """Return the record of removed cells, and its damage.

    Without the record, removed cells may reappear when the index is made again, some of them
    incomplete. A check finds those; healing completes or discards them.
    """
    try:
        return read_removed(folder, store_id), []
    except Corruption:
        return NOTHING_REMOVED, [Damage(f"{folder}/{GARBAGE_FILE}", 0, DAMAGED_RECORD)]


def _open_index(settings: OpenSettings, *, is_usable: bool) -> HashIndex:
    """Return the index, emptied when it may not be used."""
    folder = settings.folder
    path = f"{folder}/{INDEX}"
    # The index is derived: deleting it loses nothing, but a wrong one hides cells.
    if not (is_usable and index_is_usable(folder)):
        folder.disk.remove_folder(path)
        # A new file may get the inode number of the old one, so the old mark must go first.
        mark_index(folder, clean=False)
        folder.disk.engine(path, TABLES, read_only=False).close()
    mark_index(folder, clean=False)
    engine = folder.disk.engine(path, TABLES, read_only=False)
    return HashIndex(engine, recent_max=settings.recent_max)


def recover(
    folder: StoreFolder,
    opened: OpenLog,
    writer: SegmentWriter,
    *,
    repair: bool,
    keep_root: bool = False,
    left: LogPosition | None = None,
) -> None:
    """Read the packs after the watermark, and let the log end after the last good one.

    left: up to where the log was durable when this process released the lock; None for a new
    process.
    """
    state, index = opened.state, opened.index
    known = None if opened.end is None else opened.end.found
    # Two records say up to which pack the log was acknowledged: the index and the file `end`.
    last = max(state.position.sequence, 0 if known is None else known.position.sequence)
    _check_id(folder, opened.store_id, state.position.segment)
    reason = why_unreached(folder, state.position)
    good = None  # the end of the last readable pack, if the index knows later ones
    if reason:
        good = _last_good(folder, opened.store_id, state.position.segment)
        if not repair:
            raise Corruption(f"{lost_packs(folder, good, last, known, reason)}; {_REMEDY}")
        # The trailer is not compared, so that a pack of a later segment may follow.
        state.move_to(state.position._replace(trailer=None))
    removed = opened.removed
    log = LogReader(folder, opened.store_id, state.position, removed, acknowledged=last)
    recovery = Recovery(log, folder)
    for pack in recovery.packs():
        state.apply(pack)
        if index.is_large:
            index.flush(state.watermark())
    state.move_to(recovery.end)
    # "The damage is reported with file and offset, and the bytes stay where they are."
    opened.damage = recovery.damage
    # A third record: the headers of later packs say up to which pack the log was durable.
    last = max(last, log.proven)
    if recovery.lost is not None:
        reason = recovery.lost.reason
    elif recovery.end.segment < removed.begin:
        reason = f"the segments from {removed.begin} on are gone"
    # "A shorter log never replaces a longer one": fewer packs than were acknowledged are a loss.
    elif recovery.end.sequence < last:
        reason = "the log ends here"
    loss = opened.loss
    if reason:
        loss = lost_packs(folder, good or recovery.end, last, known, reason)
    if loss is not None and not loss.is_given_up:
        if not repair:
            # Acknowledged data is never dropped without `repair`.
            raise Corruption(f"{loss}; {_REMEDY}")
        _continue_without(folder, opened, loss, keep_root=keep_root)
        return
    cut, end = recovery.cut, recovery.end
    # Not even the header of this segment was proven, so the file goes.
    if cut is not None and cut.offset == 0:
        folder.disk.remove(segment_path(folder, cut.segment))
    if end.segment:
        first = recovery.unproven_from or end
        # The header of a segment is proven only by a proven pack in it.
        inside = first.segment == end.segment and first.offset > SEGMENT_HEADER_BYTES
        begin = first.offset if inside else 0
        # While this process lived, no power failed: bytes after a proven pack are preallocated
        # space. A header without such a pack may be one whose sync failed.
        is_proven = recovery.unproven_from is None and end.offset > SEGMENT_HEADER_BYTES
        if left is None or cut is not None or not is_proven:
            _secure_tail(folder, end.segment, begin, end.offset)
        writer.resume(end.segment, end.offset)
    if left is None or cut is not None or left.segment != end.segment:
        # A process that died may have created or removed a name that is not durable yet.
        folder.disk.sync_folder(f"{folder}/{SEGMENTS}")


def _continue_without(folder: StoreFolder, opened: OpenLog, loss: Loss, *, keep_root: bool) -> None:
    """Continue the log after the lost packs, with a greater number and in a new segment.

    No number and no location is used twice, so a process that has read the lost packs cannot
    confuse them with others.
    """
    state, writer = opened.state, opened.writer
    assert writer is not None
    known = None if opened.end is None else opened.end.found
    numbers = [*segment_numbers(folder), state.position.segment, opened.removed.begin - 1]
    if known is not None:
        numbers.append(known.position.segment)
    writer.skip_to(max(*numbers, 0))
    sequence = max(state.position.sequence, loss.last)
    state.move_to(state.position._replace(sequence=sequence, trailer=None))
    if keep_root:
        state.root = state.root if loss.root is None else loss.root
        loss = replace(loss, root=state.root)
    # Before any pack follows: until then every opening finds the loss again.
    write_loss(folder, loss)
    opened.loss = loss
    opened.was_cut = True
    opened.keeps_root = keep_root


def _last_good(folder: StoreFolder, store_id: bytes, segment: int) -> LogPosition:
    """Return the end of the last good pack of the segments up to `segment`."""
    for number in reversed(segment_numbers(folder)):
        if number <= segment:
            start = LogPosition(0, number, 0, None)
            log = LogReader(folder, store_id, start, last_segment=number)
            deque(log.read(), maxlen=0)
            if log.end.segment == number:
                return log.end
    return BEGINNING.position


def _check_id(folder: StoreFolder, store_id: bytes, segment: int) -> None:
    """Check that a segment belongs to the store. Raises: Corruption: to another one."""
    header = segment_head(folder, segment) if segment else None
    # A segment of another store would be read with the wrong checksums: all of it as damage.
    if header is not None and header[1] != store_id:
        raise Corruption(
            f"{folder}/{STORE_FILE} and {segment_path(folder, segment)} name different stores; "
            "put the right file back"
        )


def why_unreached(folder: StoreFolder, position: LogPosition) -> str:
    """Return why the log does not reach `position`, "" when it does.

    It ends earlier, or it is another log.
    """
    if not position.segment:
        return ""
    path = segment_path(folder, position.segment)
    if not folder.disk.exists(path):
        return "the segment is gone"
    file = folder.disk.open(path)
    try:
        # The four bytes before the position are the trailer of the last pack.
        before = file.read(position.offset - PACK_TRAILER_BYTES, PACK_TRAILER_BYTES)
    finally:
        file.close()
    known = position.trailer is not None and position.offset > SEGMENT_HEADER_BYTES
    if len(before) < PACK_TRAILER_BYTES:
        return f"the file ends before byte {position.offset}"
    if known and int.from_bytes(before, "big") != position.trailer:
        return f"pack {position.sequence} does not end at byte {position.offset}"
    return ""


def _secure_tail(folder: StoreFolder, segment: int, begin: int, end: int) -> None:
    """Make the packs from `begin` to `end` durable, and cut everything after them.

    "Complete packs after the last proven one are written once more, synced and kept": after a
    failed sync the kernel may hold pages that it believes to be on the disk and that never got
    there.
    """
    file = folder.disk.open(segment_path(folder, segment), write=True)
    try:
        if file.size() > end:
            file.truncate(end)
        for offset in range(begin, end, _COPY_BYTES):
            file.write(offset, file.read(offset, min(_COPY_BYTES, end - offset)))
        file.sync()
    finally:
        file.close()
