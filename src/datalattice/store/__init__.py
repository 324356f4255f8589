"""Store: cells by hash and one root; in memory, or in a folder with one writer and many readers."""

from __future__ import annotations

from datalattice.store.archive import (
    announce_cells,
    export_cells,
    import_cells,
    place_at_opening,
    unsound_below,
)
from datalattice.store.base import ANY, PRIVATE_KEY, Commit, Contains, Damage, Store, public_part
from datalattice.store.cache import CACHE_BYTES_MAX, CellCache
from datalattice.store.cellstore import CellStore
from datalattice.store.checking import Missing, Report, Seen
from datalattice.store.collecting import GRACE_MS, Collected
from datalattice.store.disk import (
    FILE_MODE,
    FOLDER_MODE,
    Disk,
    DiskFile,
    Lock,
    LockFile,
    RealDisk,
    View,
    write_error,
)
from datalattice.store.doors import CheckedCells
from datalattice.store.folder import STORE_FILE, store_in
from datalattice.store.garbage import Marks
from datalattice.store.hashindex import Position
from datalattice.store.healing import Fetch, Fetching, Healing, Source, heal_store, open_damaged
from datalattice.store.history import NOTHING, RETENTION, History, Moment, Retention
from datalattice.store.leases import LEASE_SECONDS_MAX, Lease
from datalattice.store.line import wait_in_line
from datalattice.store.lockfile import lock_mark
from datalattice.store.marking import PLACE_SHIFT
from datalattice.store.memory import MemoryStore
from datalattice.store.notes import Notes
from datalattice.store.packing import locate
from datalattice.store.pins import Pin, Pins
from datalattice.store.pins import check_name as check_pin_name
from datalattice.store.place import PLACE_FILE, START_BYTES, STARTS_MAX, PlaceFile
from datalattice.store.reading import Stats
from datalattice.store.refs import parse_time, time_text
from datalattice.store.staging import Staging
from datalattice.store.stretches import (
    Beginning,
    Extent,
    Hole,
    Plan,
    Stretch,
    StretchMarker,
    StretchReader,
    Tops,
    beginning_of,
    check_extent,
    entry_count,
    extent_of,
    mark_tops,
    missing_before,
    record_damage,
    upper_bits,
)
from datalattice.store.sweeping import (
    SweepHead,
    SweepList,
    SweptSegment,
    sweep_head,
    write_sweep_list,
)
from datalattice.store.turn import WriteTurn

__all__ = [
    "ANY",
    "CACHE_BYTES_MAX",
    "FILE_MODE",
    "FOLDER_MODE",
    "GRACE_MS",
    "LEASE_SECONDS_MAX",
    "NOTHING",
    "PLACE_FILE",
    "PLACE_SHIFT",
    "PRIVATE_KEY",
    "RETENTION",
    "STARTS_MAX",
    "START_BYTES",
    "STORE_FILE",
    "Beginning",
    "CellCache",
    "CellStore",
    "CheckedCells",
    "Collected",
    "Commit",
    "Contains",
    "Damage",
    "Disk",
    "DiskFile",
    "Extent",
    "Fetch",
    "Fetching",
    "Healing",
    "History",
    "Hole",
    "Lease",
    "Lock",
    "LockFile",
    "Marks",
    "MemoryStore",
    "Missing",
    "Moment",
    "Notes",
    "Pin",
    "Pins",
    "PlaceFile",
    "Plan",
    "Position",
    "RealDisk",
    "Report",
    "Retention",
    "Seen",
    "Source",
    "Staging",
    "Stats",
    "Store",
    "Stretch",
    "StretchMarker",
    "StretchReader",
    "SweepHead",
    "SweepList",
    "SweptSegment",
    "Tops",
    "View",
    "WriteTurn",
    "announce_cells",
    "beginning_of",
    "check_extent",
    "check_pin_name",
    "entry_count",
    "export_cells",
    "extent_of",
    "heal_store",
    "import_cells",
    "locate",
    "lock_mark",
    "mark_tops",
    "missing_before",
    "open_damaged",
    "parse_time",
    "place_at_opening",
    "public_part",
    "record_damage",
    "store_in",
    "sweep_head",
    "time_text",
    "unsound_below",
    "upper_bits",
    "wait_in_line",
    "write_error",
    "write_sweep_list",
]
