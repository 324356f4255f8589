"""KV: databases of values, hashes, sets, sorted sets, lists and counters by key, merged by time.

A `Database` is a thin object over one cursor. Importing this package registers the root section
`:kv`, with the path `:kv, owner, :value, database name, key`.
"""

from __future__ import annotations

from datalattice.apps.kv.database import Batch, Database, replica_name
from datalattice.apps.kv.entries import Entry, read_entry
from datalattice.apps.kv.joining import ENTRIES
from datalattice.apps.kv.keys import KEY_BYTES_MAX, checked_key
from datalattice.apps.kv.lattice import KV_SECTION, KVEntryLattice, KVStoreLattice
from datalattice.apps.kv.operations import GC_AGE
from datalattice.apps.kv.showing import (
    TYPE_TAGS,
    checked_shown,
    live_entry,
    put_shown,
    shown_value,
)
from datalattice.apps.kv.watching import KeyChange, Watch
from datalattice.apps.kv.writing import delete

__all__ = [
    "ENTRIES",
    "GC_AGE",
    "KEY_BYTES_MAX",
    "KV_SECTION",
    "TYPE_TAGS",
    "Batch",
    "Database",
    "Entry",
    "KVEntryLattice",
    "KVStoreLattice",
    "KeyChange",
    "Watch",
    "checked_key",
    "checked_shown",
    "delete",
    "live_entry",
    "put_shown",
    "read_entry",
    "replica_name",
    "shown_value",
]
