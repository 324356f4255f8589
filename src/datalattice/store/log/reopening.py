"""Reopening: a writer takes the lock again that it released, and continues after other writers.

Theory of operation. No power failed while this process lived. So everything that was durable when
it released the lock still is. Other processes have made complete writes since; only the last write
of a killed process may be cut off. There are three cases, each with fewer assumptions than the one
before:

    no other writer        the lock file still has our text (`lockfile`): look at the log's last
                           pack, and at where the folder is
    packs were appended    the index and the state are kept, and the packs after them are read as
                           an opening reads them: unacknowledged ones are secured or cut, damage is
                           reported, lost packs are an error
    anything else          the store is opened anew: another folder, index, record of removed cells
                           or of a loss, or a log that does not reach as far as it was left
"""

from __future__ import annotations

from datalattice.errors import Corruption
from datalattice.store.disk import LockFile, write_error
from datalattice.store.files import StoreFolder
from datalattice.store.log.folder import (
    check_folder,
    index_is_in_use,
    index_is_usable,
    mark_index,
    read_store_id,
)
from datalattice.store.log.logend import EndRecord, read_loss, unknown_loss
from datalattice.store.log.opening import (
    OpenLog,
    OpenSettings,
    ReleasedLog,
    open_locked,
    place_of,
    recover,
    why_unreached,
    with_readable_index,
)
from datalattice.store.log.removed import read_removed_head
from datalattice.store.log.segments import SegmentWriter


def note_released(folder: StoreFolder, opened: OpenLog) -> None:
    """Remember how a writer leaves a store; everything is durable and the lock is still held."""
    opened.start = opened.index.watermark()
    opened.released = ReleasedLog(opened.state.position, read_removed_head(folder))


def is_as_released(folder: StoreFolder, opened: OpenLog) -> bool:
    """Return whether a store that no other process wrote to is as it was left.

    It is not where the folder was restored, moved or copied meanwhile, or its log was cut.
    """
    released, position = opened.released, opened.state.position
    try:
        return (
            released is not None
            and released.position == position
            and opened.place == place_of(folder)
            and not why_unreached(folder, position)
        )
    except OSError:
        return False  # gone or unreadable: opening it anew raises the error


def open_again(settings: OpenSettings, known: OpenLog, lock: LockFile) -> OpenLog:
    """Open a store for writing that this process released; it has the lock again.

    If only packs were appended meanwhile, the result keeps the index and the state of `known`.
    Otherwise everything is opened anew.
    Raises: as `open_writer`. UsageError: there is no store any more.
    """
    folder = settings.folder

    def attempt() -> OpenLog:
        check_folder(folder, must_exist=True)
        try:
            opened = _read_appended(settings, known)
        except Corruption:
            # Opening the store anew reports the loss, or makes the index again.
            opened = None
        # In doubt about what happened meanwhile, everything is read as an opening does.
        if opened is None:
            opened = open_locked(settings, lock)
        opened.lock = lock
        return opened

    try:
        return with_readable_index(folder, lambda: settings.space.spend_reserve(attempt))
    except OSError as error:
        raise write_error(error, folder) from error


def _read_appended(settings: OpenSettings, known: OpenLog) -> OpenLog | None:
    """Read the packs appended to a released store; None: the store has changed in another way."""
    folder = settings.folder
    released, index, state = known.released, known.index, known.state
    if (
        released is None
        or known.place != place_of(folder)
        or not index_is_usable(folder)
        or released.removed != read_removed_head(folder)
        or read_store_id(folder) != known.store_id
        or read_loss(folder) is not None
        or unknown_loss(folder) is not None
        or why_unreached(folder, released.position)
    ):
        return None
    # Another writer closed it `clean`; a crash from now on must find `dirty`.
    if not index_is_in_use(folder):
        mark_index(folder, clean=False)
    end = EndRecord(folder, known.store_id)
    try:
        acknowledged = 0 if end.found is None else end.found.position.sequence
        index.refresh()
        start = index.watermark()
        if (
            start != known.start
            or state.position.sequence > acknowledged
            or why_unreached(folder, state.position)
        ):
            # As a reader this process may have read unacknowledged packs that were cut since. The
            # tables on disk never have those.
            index.drop_recent()
            state.restart(start)
        opened = OpenLog(known.store_id, index, state, known.removed)
        opened.start = start
        opened.place = known.place
        opened.end = end
        opened.writer = SegmentWriter(folder, known.store_id, settings.segment_bytes)
        recover(folder, opened, opened.writer, repair=False, left=released.position)
        opened.damage += end.damage
    except BaseException:
        end.close()
        raise
    return opened
