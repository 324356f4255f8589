"""Opening: from a folder to a store that is ready, for the writer and for readers."""

from __future__ import annotations

from typing import Final

from datalattice.crypto import Entropy
from datalattice.errors import Corruption, StoreFailed, StoreVersion, UsageError
from datalattice.store.base import Damage
from datalattice.store.disk import Disk, Lock, write_error
from datalattice.store.folder import (
    INDEX,
    LOCK_FILE,
    STORE_FILE,
    check_folder,
    index_is_believable,
    make_store,
    mark_index,
    read_store_id,
    renew_store,
)
from datalattice.store.garbage import (
    DAMAGED_RECORD,
    GARBAGE_FILE,
    REMOVED_NOTHING,
    Removed,
    carry_out,
    read_removed,
    remove_dropped,
)
from datalattice.store.hashindex import TABLES, HashIndex, Position
from datalattice.store.logstate import LogState
from datalattice.store.packing import (
    PACK_TRAILER_BYTES,
    SEGMENT_HEADER_BYTES,
    read_segment_header,
)
from datalattice.store.recovery import LogReader, Recovery
from datalattice.store.room import Room
from datalattice.store.segments import FOLDER as SEGMENTS
from datalattice.store.segments import SegmentWriter, segment_numbers, segment_path

COPY_BYTES: Final = 1 << 20
"""How much of a tail is written again at a time."""

_REMEDY: Final = "put the file back, or open the store with repair=True and lose what is gone"


class Opened:
    """What an open store is made of."""

    __slots__ = ("damage", "index", "lock", "removed", "state", "store_id", "writer")

    def __init__(
        self, store_id: bytes, index: HashIndex, state: LogState, removed: Removed
    ) -> None:
        self.store_id = store_id
        self.index = index
        self.state = state
        self.removed = removed
        self.damage: list[Damage] = []
        self.lock: Lock | None = None
        self.writer: SegmentWriter | None = None


def open_reader(disk: Disk, folder: str) -> Opened:
    """Open a store for reading beside its writer, or without one. Writes nothing.

    Raises: UsageError: there is no store. StoreVersion: a newer version made it.
            StoreFailed: its index must be made again first, which a writer does.
    """
    check_folder(disk, folder, must_exist=True)
    store_id = read_store_id(disk, folder)
    if not index_is_believable(disk, folder):
        raise StoreFailed(
            f"{folder}: the index must be made again after a power failure or a copy; "
            "open the store for writing once"
        )
    try:
        index = HashIndex(disk.engine(f"{folder}/{INDEX}", TABLES, read_only=True))
        start = index.watermark()
    except (Corruption, StoreVersion) as error:
        raise StoreFailed(
            f"{folder}: the index is damaged and must be made again; "
            "open the store for writing once"
        ) from error
    try:
        _check_id(disk, folder, store_id, start.position.segment)
    except Corruption:
        index.close()
        raise
    # A reader begins behind everything that was ever removed.
    return Opened(store_id, index, LogState(index, start), REMOVED_NOTHING)


def open_writer(
    disk: Disk,
    folder: str,
    entropy: Entropy,
    *,
    segment_bytes: int,
    recent_max: int,
    repair: bool,
    keep_root: bool = False,
    room: Room,
) -> Opened:
    """Open a store for writing: make it if needed, lock it, read its tail, cut what was torn.

    Raises: UsageError: something else is in the folder. StoreLocked: another writer has it.
            StoreVersion: a newer version made it. Corruption: acknowledged commits are lost;
            `repair` opens it all the same, and with `keep_root` at the root that the index knows.
    """
    try:
        exists = check_folder(disk, folder, must_exist=False)
        if not exists:
            disk.create_folder(folder)
        lock = disk.lock(f"{folder}/{LOCK_FILE}")

        def attempt() -> Opened:
            return _open_locked(
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


def _open_locked(
    disk: Disk,
    folder: str,
    entropy: Entropy,
    *,
    segment_bytes: int,
    recent_max: int,
    repair: bool,
    keep_root: bool,
    lock: Lock,
    room: Room,
) -> Opened:
    if not check_folder(disk, folder, must_exist=False):
        make_store(disk, folder, entropy)
        room.ask()  # it makes the reserve
    store_id = read_store_id(disk, folder)
    renew_store(disk, folder, store_id)
    try:
        index = _open_index(disk, folder, recent_max, believe=keep_root or not repair)
    except (Corruption, StoreVersion):
        # The tables are not readable, or not by this LMDB. They are derived: made again.
        index = _open_index(disk, folder, recent_max, believe=False)
    try:
        removed, damage = _read_removed(disk, folder, store_id)
        opened = Opened(store_id, index, LogState(index, index.watermark(), removed), removed)
        opened.lock = lock
        opened.writer = SegmentWriter(disk, folder, store_id, segment_bytes)
        _recover(disk, folder, opened, opened.writer, repair=repair)
        opened.damage += damage
        if carry_out(disk, folder, index, removed):
            index.flush(opened.state.watermark())
            remove_dropped(disk, folder, removed)
    except BaseException:
        index.close()
        raise
    return opened


def _read_removed(disk: Disk, folder: str, store_id: bytes) -> tuple[Removed, list[Damage]]:
    """Return the record of what was removed, and its damage.

    Without the record, cells that were removed may come back when the index is made again, some
    of them incomplete. A check finds those, and healing forgets them or completes them.
    """
    try:
        return read_removed(disk, folder, store_id), []
    except Corruption:
        return REMOVED_NOTHING, [Damage(f"{folder}/{GARBAGE_FILE}", 0, DAMAGED_RECORD)]


def _open_index(disk: Disk, folder: str, recent_max: int, *, believe: bool) -> HashIndex:
    """Return the index, emptied when it may not be believed."""
    path = f"{folder}/{INDEX}"
    if not (believe and index_is_believable(disk, folder)):
        disk.remove_folder(path)
        mark_index(disk, folder, clean=False)  # a new file may get the number of the old one
        disk.engine(path, TABLES, read_only=False).close()
    mark_index(disk, folder, clean=False)
    return HashIndex(disk.engine(path, TABLES, read_only=False), recent_max=recent_max)


def _recover(
    disk: Disk, folder: str, opened: Opened, writer: SegmentWriter, *, repair: bool
) -> None:
    """Read the packs behind the watermark, and make the log end behind the last good one."""
    state, index = opened.state, opened.index
    _check_id(disk, folder, opened.store_id, state.position.segment)
    try:
        check_reach(disk, folder, state.position)
        is_lost = False
    except Corruption:
        if not repair:
            raise
        is_lost = True
        state.move_to(state.position._replace(trailer=None))  # what comes next may still follow
    removed = opened.removed
    log = LogReader(disk, folder, opened.store_id, state.position, removed)
    recovery = Recovery(log, folder)
    for pack in recovery.packs():
        state.apply(pack)
        if index.is_large:
            index.flush(state.watermark())
    state.move_to(recovery.end)
    opened.damage = recovery.damage
    lost: object = recovery.lost
    if recovery.end.segment < removed.begin:
        lost = f"{segment_path(folder, removed.begin)}: the segments from this one on are gone"
    if is_lost or lost is not None:
        if not repair:
            raise Corruption(f"{lost}; {_REMEDY}")
        numbers = segment_numbers(disk, folder)
        # Not among the segments that the record of removed cells speaks of.
        writer.skip_to(
            max(*numbers, state.position.segment, recovery.end.segment, removed.begin - 1, 0)
        )
        return
    cut, end = recovery.cut, recovery.end
    if cut is not None and cut.offset == 0:
        disk.remove(segment_path(folder, cut.segment))
    if end.segment:
        first = recovery.unproven_from or end
        # Nothing proves the header of a segment whose first pack is not proven.
        inside = first.segment == end.segment and first.offset > SEGMENT_HEADER_BYTES
        begin = first.offset if inside else 0
        _secure_tail(disk, segment_path(folder, end.segment), begin, end.offset)
        writer.resume(end.segment, end.offset)
    # A process that died may have made, or removed, a name that is not on the disk yet.
    disk.sync_folder(f"{folder}/{SEGMENTS}")


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


def check_reach(disk: Disk, folder: str, position: Position) -> None:
    """Check that the log goes as far as the index says.

    Raises: Corruption: it ends before, or is another log. A shorter log never replaces a longer
            one.
    """
    if not position.segment:
        return
    path = segment_path(folder, position.segment)
    if not disk.exists(path):
        raise Corruption(
            f"{path}: the segment is gone, and with it pack {position.sequence}; {_REMEDY}"
        )
    file = disk.open(path)
    try:
        before = file.read(position.offset - PACK_TRAILER_BYTES, PACK_TRAILER_BYTES)
    finally:
        file.close()
    known = position.trailer is not None and position.offset > SEGMENT_HEADER_BYTES
    if len(before) < PACK_TRAILER_BYTES:
        raise Corruption(
            f"{path} at byte {position.offset}: the file ends before the end of pack "
            f"{position.sequence}; {_REMEDY}"
        )
    if known and int.from_bytes(before, "big") != position.trailer:
        raise Corruption(
            f"{path} at byte {position.offset}: pack {position.sequence} does not end here; "
            + _REMEDY
        )


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
