"""Retaking: a writer that gave its lock back goes on, behind what others wrote meanwhile.

Theory of operation. While this process lives no power has failed. So what was durable when it gave
the lock back still is, and what others did since are whole writes, or the beginning of the last one
of a writer that was killed. Three cases, each with fewer assumptions than the one before:

    nobody had the lock    the text of the lock file is ours still (`lockfile`): one look at the
                           log's last pack, and at where the folder is
    packs were appended    the index and the state are used on, and the packs behind them are read
                           as an opening reads them: what nobody acknowledged is written again or
                           cut, damage is reported, lost packs are an error
    anything else          the store is opened anew: another folder, index, record of removed cells
                           or of a loss, or a log that does not go as far as it was left
"""

from __future__ import annotations

from datalattice.crypto import Entropy
from datalattice.errors import Corruption
from datalattice.store.disk import Disk, LockFile, write_error
from datalattice.store.log.folder import (
    check_folder,
    index_is_believable,
    index_is_in_use,
    is_checked,
    mark_index,
    read_store_id,
)
from datalattice.store.log.freespace import FreeSpace
from datalattice.store.log.logend import EndRecord, read_loss, unknown_loss
from datalattice.store.log.opening import (
    OpenLog,
    ReleasedLog,
    open_locked,
    place_of,
    recover,
    why_unreached,
    with_readable_index,
)
from datalattice.store.log.removed import read_removed_head
from datalattice.store.log.segments import SegmentWriter


def leave(disk: Disk, folder: str, opened: OpenLog) -> None:
    """Note how a writer leaves a store; everything is durable, and it still has the lock."""
    opened.start = opened.index.watermark()
    opened.left = ReleasedLog(opened.state.position, read_removed_head(disk, folder))


def is_as_left(disk: Disk, folder: str, opened: OpenLog) -> bool:
    """Return whether a store that nobody else had for writing is as it was left.

    It is not where the folder was restored, moved or copied meanwhile, or its log was cut.
    """
    left, position = opened.left, opened.state.position
    try:
        return (
            left is not None
            and left.position == position
            and opened.place == place_of(disk, folder)
            and not why_unreached(disk, folder, position)
        )
    except OSError:
        return False  # it is gone, or cannot be read: opening it anew tells


def open_again(
    disk: Disk,
    folder: str,
    known: OpenLog,
    lock: LockFile,
    *,
    entropy: Entropy,
    segment_bytes: int,
    recent_max: int,
    room: FreeSpace,
) -> OpenLog:
    """Open a store for writing that this process left; it has the lock again.

    The index and the state of `known` are used on where only packs were appended meanwhile: then
    the result has its index. Otherwise all is opened anew.
    Raises: as `open_writer`. UsageError: there is no store any more.
    """

    def attempt() -> OpenLog:
        check_folder(disk, folder, must_exist=True)
        try:
            opened = _read_on(disk, folder, known, segment_bytes)
        except Corruption:
            opened = None  # opening it anew tells what is lost, or makes the index again
        if opened is None:
            opened = open_locked(
                disk,
                folder,
                entropy,
                segment_bytes=segment_bytes,
                recent_max=recent_max,
                repair=False,
                keep_root=False,
                lock=lock,
                room=room,
            )
        opened.lock = lock
        return opened

    try:
        return with_readable_index(disk, folder, lambda: room.spend_reserve(attempt))
    except OSError as error:
        raise write_error(error, folder) from error


def _read_on(disk: Disk, folder: str, known: OpenLog, segment_bytes: int) -> OpenLog | None:
    """Take in what was appended to a store that was left; None: it is not the one that was left."""
    left, index, state = known.left, known.index, known.state
    if (
        left is None
        or known.place != place_of(disk, folder)
        or not index_is_believable(disk, folder)
        or left.removed != read_removed_head(disk, folder)
        or read_store_id(disk, folder) != known.store_id
        or read_loss(disk, folder) is not None
        or unknown_loss(disk, folder) is not None
        or why_unreached(disk, folder, left.position)
    ):
        return None
    if not index_is_in_use(disk, folder):
        mark_index(disk, folder, clean=False)
    end = EndRecord(disk, folder, known.store_id)
    try:
        acknowledged = 0 if end.found is None else end.found.position.sequence
        index.look_again()
        start = index.watermark()
        if (
            start != known.start
            or state.position.sequence > acknowledged
            or why_unreached(disk, folder, state.position)
        ):
            # As a reader it may have met packs that nobody acknowledged: the tables have none.
            index.drop_recent()
            state.restart(start)
        opened = OpenLog(known.store_id, index, state, known.removed)
        opened.start = start
        opened.place = known.place
        opened.is_checked = is_checked(disk, folder)
        opened.end = end
        opened.writer = SegmentWriter(disk, folder, known.store_id, segment_bytes)
        recover(disk, folder, opened, opened.writer, repair=False, left=left.position)
        opened.damage += end.damage
    except BaseException:
        end.close()
        raise
    return opened
