"""Store: cells by hash and one root; in memory, or in a folder with one writer and many readers.

Its packages export what only a few modules need. `store.log`: packs, segments and the index.
`store.kept`: pins, leases and former roots. `store.gc`: garbage collection by many processes.
`store.etch`: the reference implementation's file format.
"""

from __future__ import annotations

from datalattice.store.archive import (
    announce_cells,
    copy_cells,
    export_cells,
    import_cells,
    unsound_below,
)
from datalattice.store.base import (
    ANY,
    PRIVATE_KEY,
    Commit,
    Store,
    children_first,
    public_part,
)
from datalattice.store.cache import CACHE_BYTES_MAX
from datalattice.store.cellstore import CellStore
from datalattice.store.checkedcells import CheckedCells
from datalattice.store.checking import CheckReport
from datalattice.store.disk import (
    FILE_MODE,
    FOLDER_MODE,
    Disk,
    DiskFile,
    FileView,
    Lock,
    LockFile,
    RealDisk,
    write_error,
)
from datalattice.store.files import replace_file
from datalattice.store.healing import CellFetcher, Fetch, Healing, heal_store, open_damaged
from datalattice.store.lockfile import lock_mark
from datalattice.store.log.folder import FOLDER_VERSION, STORE_FILE, store_in
from datalattice.store.log.locking import wait_for_lock
from datalattice.store.memory import MemoryStore
from datalattice.store.notes import Notes
from datalattice.store.placefile import PLACE_FILE, START_BYTES, PlaceFile
from datalattice.store.records import Damage
from datalattice.store.refs import parse_time, time_text
from datalattice.store.turn import WriteTurn
from datalattice.store.writebuffer import WriteBuffer

__all__ = [
    "ANY",
    "CACHE_BYTES_MAX",
    "FILE_MODE",
    "FOLDER_MODE",
    "FOLDER_VERSION",
    "PLACE_FILE",
    "PRIVATE_KEY",
    "START_BYTES",
    "STORE_FILE",
    "CellFetcher",
    "CellStore",
    "CheckReport",
    "CheckedCells",
    "Commit",
    "Damage",
    "Disk",
    "DiskFile",
    "Fetch",
    "FileView",
    "Healing",
    "Lock",
    "LockFile",
    "MemoryStore",
    "Notes",
    "PlaceFile",
    "RealDisk",
    "Store",
    "WriteBuffer",
    "WriteTurn",
    "announce_cells",
    "children_first",
    "copy_cells",
    "export_cells",
    "heal_store",
    "import_cells",
    "lock_mark",
    "open_damaged",
    "parse_time",
    "public_part",
    "replace_file",
    "store_in",
    "time_text",
    "unsound_below",
    "wait_for_lock",
    "write_error",
]
