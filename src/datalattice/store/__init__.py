"""Store: cells by hash and one root; in memory, or in a folder with one writer and many readers.

Its packages export names that only a few modules need. `store.log`: packs, segments and the index.
`store.kept`: pins, leases and former roots. `store.gc`: garbage collection by many processes.
`store.etch`: the reference implementation's file format.
"""

from __future__ import annotations

from datalattice.store.archive import (
    announce_cells as announce_cells,
    copy_cells as copy_cells,
    export_cells as export_cells,
    import_cells as import_cells,
    unsound_below as unsound_below,
)
from datalattice.store.base import (
    PRIVATE_KEY as PRIVATE_KEY,
    Commit as Commit,
    Store as Store,
    children_first as children_first,
)
from datalattice.store.cache import CACHE_BYTES_MAX as CACHE_BYTES_MAX
from datalattice.store.cellstore import CellStore as CellStore
from datalattice.store.checkedcells import CheckedCells as CheckedCells
from datalattice.store.checking import CheckReport as CheckReport
from datalattice.store.disk import (
    FILE_MODE as FILE_MODE,
    FOLDER_MODE as FOLDER_MODE,
    Disk as Disk,
    DiskFile as DiskFile,
    FileView as FileView,
    Lock as Lock,
    LockFile as LockFile,
    RealDisk as RealDisk,
    write_error as write_error,
)
from datalattice.store.files import replace_file as replace_file
from datalattice.store.healing import (
    CellFetcher as CellFetcher,
    Fetch as Fetch,
    Healing as Healing,
    heal_store as heal_store,
    open_damaged as open_damaged,
)
from datalattice.store.lockfile import lock_mark as lock_mark
from datalattice.store.log.folder import (
    FOLDER_VERSION as FOLDER_VERSION,
    STORE_FILE as STORE_FILE,
    store_in as store_in,
)
from datalattice.store.log.locking import wait_for_lock as wait_for_lock
from datalattice.store.memory import MemoryStore as MemoryStore
from datalattice.store.notes import Notes as Notes
from datalattice.store.placefile import (
    PLACE_FILE as PLACE_FILE,
    START_BYTES as START_BYTES,
    PlaceFile as PlaceFile,
)
from datalattice.store.records import Damage as Damage, OnCells as OnCells
from datalattice.store.refs import parse_time as parse_time, time_text as time_text
from datalattice.store.turn import WriteTurn as WriteTurn
from datalattice.store.writebuffer import WriteBuffer as WriteBuffer
