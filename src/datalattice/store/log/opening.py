"""Opening: from a folder to a store that is ready, for the writer and for readers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Final, NamedTuple, TypeVar

from datalattice.crypto import Entropy
from datalattice.errors import Corruption, StoreFailed, StoreVersion, UsageError
from datalattice.store.base import Damage
from datalattice.store.disk import Disk, LockFile, write_error
from datalattice.store.log.folder import (
    INDEX,
    LOCK_FILE,
    STORE_FILE,
    check_folder,
    disown_index,
    index_is_believable,
    is_checked,
    make_store,
    mark_index,
    read_store_id,
    renew_store,
)
from datalattice.store.log.freespace import FreeSpace
from datalattice.store.log.hashindex import BEGINNING, TABLES, HashIndex, Position
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
from datalattice.store.log.packing import (
    PACK_TRAILER_BYTES,
    SEGMENT_HEADER_BYTES,
    read_segment_header,
)
from datalattice.store.log.recovery import LogReader, Recovery
from datalattice.store.log.removed import (
    DAMAGED_RECORD,
    GARBAGE_FILE,
    NOTHING_REMOVED,
    RemovedRecord,
    carry_out,
    read_removed,
    remove_dropped,
)
from datalattice.store.log.segments import FOLDER as SEGMENTS
from datalattice.store.log.segments import SegmentWriter, segment_numbers, segment_path

T = TypeVar("T")

COPY_BYTES: Final = 1 << 20
"""How much of a tail is written again at a time."""

_REMEDY: Final = (
    "put the file back; or fetch what is gone with `lattice disk heal --from-store DIR` or "
    "`--from HOST:PORT`; or open the store with repair=True and lose it"
)


class ReleasedLog(NamedTuple):
    """How a writer left a store when it gave its lock back."""

    position: Position
    """Behind the last pack; all before it is durable."""
    removed: bytes
    """The head of the record of what was removed."""


class OpenLog:
    """What an open store is made of."""

    __slots__ = (
        "damage",
        "end",
        "index",
        "is_checked",
        "keeps_root",
        "left",
        "lock",
        "loss",
        "place",
        "removed",
        "start",
        "state",
        "store_id",
        "was_cut",
        "writer",
    )

    def __init__(
        self, store_id: bytes, index: HashIndex, state: LogState, removed: RemovedRecord
    ) -> None:
        self.store_id = store_id
        self.index = index
        self.state = state
        self.removed = removed
        self.damage: list[Damage] = []
        self.start = state.watermark()
        """Up to where the tables on disk were complete when they were looked at last."""
        self.lock: LockFile | None = None
        self.writer: SegmentWriter | None = None
        self.end: EndRecord | None = None
        self.loss: Loss | None = None
        """Acknowledged commits that are gone."""
        self.is_checked = True
        """Whether every cell is known to be well formed."""
        self.was_cut = False
        """Whether the log has no pack behind them yet."""
        self.keeps_root = False
        """Whether the root is the lost one, so that healing can bring it back."""
        self.place = ("", "")
        """Where the folder lay, and which file the tables were in, when a writer opened it."""
        self.left: ReleasedLog | None = None
        """How a writer left it that gave its lock back; None: it has to be opened anew."""


def open_reader(disk: Disk, folder: str) -> OpenLog:
    """Open a store for reading beside its writer, or without one. Writes nothing.

    Raises: UsageError: there is no store. StoreVersion: a newer version made it.
            StoreFailed: its index must be made again first, which a writer does.
    """
    check_folder(disk, folder, must_exist=True)
    store_id = read_store_id(disk, folder)
    if not index_is_believable(disk, folder):
        raise StoreFailed(
            f"{folder}: the index must be made again after a power failure, a copy or a cut of its "
            "file; a writer does that when it opens the store, `lattice disk heal` for example"
        )
    try:
        index = HashIndex(disk.engine(f"{folder}/{INDEX}", TABLES, read_only=True))
        start = index.watermark()
    except (Corruption, StoreVersion) as error:
        raise StoreFailed(
            f"{folder}: the index is damaged and must be made again; a writer does that when it "
            "opens the store, `lattice disk heal` for example"
        ) from error
    try:
        _check_id(disk, folder, store_id, start.position.segment)
    except Corruption:
        index.close()
        raise
    # A reader begins behind everything that was ever removed.
    return OpenLog(store_id, index, LogState(index, start), NOTHING_REMOVED)


def open_writer(
    disk: Disk,
    folder: str,
    entropy: Entropy,
    *,
    segment_bytes: int,
    recent_max: int,
    repair: bool,
    keep_root: bool = False,
    room: FreeSpace,
    wait_s: float = 0.0,
) -> OpenLog:
    """Open a store for writing: make it if needed, lock it, read its tail, cut what was torn.

    Raises: UsageError: something else is in the folder. StoreLocked: another writer has it.
            StoreVersion: a newer version made it. Corruption: acknowledged commits are lost;
            `repair` opens it all the same, and with `keep_root` at the root that the index knows.
    """
    try:
        exists = check_folder(disk, folder, must_exist=False)
        if not exists:
            disk.create_folder(folder)
        path = f"{folder}/{LOCK_FILE}"
        lock = wait_for_lock(disk, folder, lambda: disk.lock(path), wait_s)

        def attempt() -> OpenLog:
            return open_locked(
                disk,
                folder,
                entropy,
                segment_bytes=segment_bytes,
                recent_max=recent_max,
                repair=repair,
                keep_root=keep_root,
                lock=lock,
                room=room,
            )

        try:
            return room.spend_reserve(attempt)
        except BaseException:
            lock.release()
            raise
    except (FileExistsError, NotADirectoryError) as error:
        raise UsageError(f"{folder}: not a folder, its path goes through a file") from error
    except OSError as error:
        raise write_error(error, folder) from error


def open_locked(
    disk: Disk,
    folder: str,
    entropy: Entropy,
    *,
    segment_bytes: int,
    recent_max: int,
    repair: bool,
    keep_root: bool,
    lock: LockFile,
    room: FreeSpace,
) -> OpenLog:
    """Do the work of `open_writer`; the lock is held."""
    if not check_folder(disk, folder, must_exist=False):
        make_store(disk, folder, entropy)
    room.begin()
    store_id = read_store_id(disk, folder)
    renew_store(disk, folder, store_id)
    try:
        index = _open_index(disk, folder, recent_max, believe=keep_root or not repair)
    except (Corruption, StoreVersion):
        # The tables are not readable, or not by this LMDB. They are derived: made again.
        index = _open_index(disk, folder, recent_max, believe=False)
    try:
        removed, damage = _read_removed(disk, folder, store_id)
        loss = read_loss(disk, folder)
        unknown = unknown_loss(disk, folder) if loss is None else None
        if unknown is not None:
            loss = unknown
            write_loss(disk, folder, unknown)  # before there is an `end` again
        end = EndRecord(disk, folder, store_id)
    except BaseException:
        index.close()
        raise
    try:
        opened = OpenLog(store_id, index, LogState(index, index.watermark(), removed), removed)
        opened.lock = lock
        opened.place = place_of(disk, folder)
        opened.is_checked = is_checked(disk, folder)
        opened.end = end
        opened.loss = loss
        opened.writer = SegmentWriter(disk, folder, store_id, segment_bytes)
        recover(disk, folder, opened, opened.writer, repair=repair, keep_root=keep_root)
        opened.damage += [*damage, *end.damage]
        if carry_out(disk, folder, index, removed):
            index.flush(opened.state.watermark())
            remove_dropped(disk, folder, removed)
    except BaseException:
        end.close()
        _give_back_index(disk, folder, index)
        raise
    return opened


def place_of(disk: Disk, folder: str) -> tuple[str, str]:
    """Return where a store's folder is, and which file the tables of its index are in."""
    return disk.place(f"{folder}/{SEGMENTS}"), disk.engine_identity(f"{folder}/{INDEX}")


def made_of(opened: OpenLog, disk: Disk, folder: str, make: Callable[[OpenLog], T]) -> T:
    """Return what is made of an open store; where that fails, the folder is given back."""
    try:
        return make(opened)
    except BaseException:
        if opened.end is not None:
            opened.end.close()
        _give_back_index(disk, folder, opened.index)
        if opened.lock is not None:
            opened.lock.release()
        raise


def with_readable_index(disk: Disk, folder: str, attempt: Callable[[], T]) -> T:
    """Return what an attempt to open a store for writing returns.

    The index may turn out to be damaged on the way: then it is made again by a second attempt.
    """
    try:
        return attempt()
    except Corruption:
        if index_is_believable(disk, folder):
            raise
    return attempt()


def _give_back_index(disk: Disk, folder: str, index: HashIndex) -> None:
    """Close an index; the next writer makes it again when it was found to be damaged."""
    if index.is_damaged and not index.read_only:
        disown_index(disk, folder)
    index.close()


def _read_removed(disk: Disk, folder: str, store_id: bytes) -> tuple[RemovedRecord, list[Damage]]:
    """Return the record of what was removed, and its damage.

    Without the record, cells that were removed may come back when the index is made again, some
    of them incomplete. A check finds those, and healing forgets them or completes them.
    """
    try:
        return read_removed(disk, folder, store_id), []
    except Corruption:
        return NOTHING_REMOVED, [Damage(f"{folder}/{GARBAGE_FILE}", 0, DAMAGED_RECORD)]


def _open_index(disk: Disk, folder: str, recent_max: int, *, believe: bool) -> HashIndex:
    """Return the index, emptied when it may not be believed."""
    path = f"{folder}/{INDEX}"
    if not (believe and index_is_believable(disk, folder)):
        disk.remove_folder(path)
        mark_index(disk, folder, clean=False)  # a new file may get the number of the old one
        disk.engine(path, TABLES, read_only=False).close()
    mark_index(disk, folder, clean=False)
    return HashIndex(disk.engine(path, TABLES, read_only=False), recent_max=recent_max)


def recover(
    disk: Disk,
    folder: str,
    opened: OpenLog,
    writer: SegmentWriter,
    *,
    repair: bool,
    keep_root: bool = False,
    left: Position | None = None,
) -> None:
    """Read the packs behind the watermark, and make the log end behind the last good one.

    left: what was durable when this process, which still lives, had the lock before.
    """
    state, index = opened.state, opened.index
    known = None if opened.end is None else opened.end.found
    last = max(state.position.sequence, 0 if known is None else known.position.sequence)
    _check_id(disk, folder, opened.store_id, state.position.segment)
    reason = why_unreached(disk, folder, state.position)
    good = None  # behind the last pack that can be read, where the index knows more
    if reason:
        good = _last_good(disk, folder, opened.store_id, state.position.segment)
        if not repair:
            raise Corruption(f"{lost_packs(disk, folder, good, last, known, reason)}; {_REMEDY}")
        state.move_to(state.position._replace(trailer=None))  # what comes next may still follow
    removed = opened.removed
    log = LogReader(disk, folder, opened.store_id, state.position, removed, acknowledged=last)
    recovery = Recovery(log, folder)
    for pack in recovery.packs():
        state.apply(pack)
        if index.is_large:
            index.flush(state.watermark())
    state.move_to(recovery.end)
    opened.damage = recovery.damage
    last = max(last, log.proven)
    if recovery.lost is not None:
        reason = recovery.lost.reason
    elif recovery.end.segment < removed.begin:
        reason = f"the segments from {removed.begin} on are gone"
    elif recovery.end.sequence < last:
        reason = "the log ends here"
    loss = opened.loss
    if reason:
        loss = lost_packs(disk, folder, good or recovery.end, last, known, reason)
    if loss is not None and not loss.is_given_up:
        if not repair:
            raise Corruption(f"{loss}; {_REMEDY}")
        _go_on_without(disk, folder, opened, loss, keep_root=keep_root)
        return
    cut, end = recovery.cut, recovery.end
    if cut is not None and cut.offset == 0:
        disk.remove(segment_path(folder, cut.segment))
    if end.segment:
        first = recovery.unproven_from or end
        # Nothing proves the header of a segment whose first pack is not proven.
        inside = first.segment == end.segment and first.offset > SEGMENT_HEADER_BYTES
        begin = first.offset if inside else 0
        # Since it was left no power failed: bytes behind a pack that is proven are room. A header
        # without such a pack may be one whose sync failed.
        is_proven = recovery.unproven_from is None and end.offset > SEGMENT_HEADER_BYTES
        if left is None or cut is not None or not is_proven:
            _secure_tail(disk, segment_path(folder, end.segment), begin, end.offset)
        writer.resume(end.segment, end.offset)
    if left is None or cut is not None or left.segment != end.segment:
        # A process that died may have made, or removed, a name that is not on the disk yet.
        disk.sync_folder(f"{folder}/{SEGMENTS}")


def _go_on_without(
    disk: Disk, folder: str, opened: OpenLog, loss: Loss, *, keep_root: bool
) -> None:
    """Let the next pack follow those that are lost, with a number and a segment of its own.

    No number, and so no place, is given twice: whoever has seen the lost packs cannot mistake
    others for them.
    """
    state, writer = opened.state, opened.writer
    assert writer is not None
    known = None if opened.end is None else opened.end.found
    numbers = [*segment_numbers(disk, folder), state.position.segment, opened.removed.begin - 1]
    if known is not None:
        numbers.append(known.position.segment)
    writer.skip_to(max(*numbers, 0))
    sequence = max(state.position.sequence, loss.last)
    state.move_to(state.position._replace(sequence=sequence, trailer=None))
    if keep_root:
        state.root = state.root if loss.root is None else loss.root
        loss = replace(loss, root=state.root)
    write_loss(disk, folder, loss)  # before anything follows it: until then it is found again
    opened.loss = loss
    opened.was_cut = True
    opened.keeps_root = keep_root


def _last_good(disk: Disk, folder: str, store_id: bytes, segment: int) -> Position:
    """Return where the last good pack of the segments up to this one ends."""
    for number in reversed(segment_numbers(disk, folder)):
        if number <= segment:
            start = Position(0, number, 0, None)
            log = LogReader(disk, folder, store_id, start, last_segment=number)
            deque(log.read(), maxlen=0)
            if log.end.segment == number:
                return log.end
    return BEGINNING.position


def _check_id(disk: Disk, folder: str, store_id: bytes, segment: int) -> None:
    """Check that the store is the one that its segments belong to.

    Raises: Corruption: its description names another one.
    """
    path = segment_path(folder, segment)
    if not segment or not disk.exists(path):
        return
    file = disk.open(path)
    try:
        header = read_segment_header(file.read(0, SEGMENT_HEADER_BYTES))
    finally:
        file.close()
    if header is not None and header[1] != store_id:
        raise Corruption(
            f"{folder}/{STORE_FILE} and {path} name different stores; put the right file back"
        )


def why_unreached(disk: Disk, folder: str, position: Position) -> str:
    """Return why the log does not go as far as the index says, "" when it does.

    It ends before, or is another log. A shorter log never replaces a longer one.
    """
    if not position.segment:
        return ""
    path = segment_path(folder, position.segment)
    if not disk.exists(path):
        return "the segment is gone"
    file = disk.open(path)
    try:
        before = file.read(position.offset - PACK_TRAILER_BYTES, PACK_TRAILER_BYTES)
    finally:
        file.close()
    known = position.trailer is not None and position.offset > SEGMENT_HEADER_BYTES
    if len(before) < PACK_TRAILER_BYTES:
        return f"the file ends before byte {position.offset}"
    if known and int.from_bytes(before, "big") != position.trailer:
        return f"pack {position.sequence} does not end at byte {position.offset}"
    return ""


def _secure_tail(disk: Disk, path: str, begin: int, end: int) -> None:
    """Make sure that the packs from `begin` to `end` are on the disk, and nothing behind them.

    They are written again: after a failed sync the system may hold pages that it takes for written
    though they never were.
    """
    file = disk.open(path, write=True)
    try:
        if file.size() > end:
            file.truncate(end)
        for offset in range(begin, end, COPY_BYTES):
            file.write(offset, file.read(offset, min(COPY_BYTES, end - offset)))
        file.sync()
    finally:
        file.close()
