"""KV: databases of values, hashes, sets, sorted sets, lists and counters by key, merged by time.

A `Database` is a thin object over one cursor. Importing this package registers the root section
`:kv`, with the path `:kv, owner, :value, database name, key`.
"""

from __future__ import annotations

from datalattice.apps.kv.database import (
    Batch as Batch,
    Database as Database,
    replica_name as replica_name,
)
from datalattice.apps.kv.entries import Entry as Entry, read_entry as read_entry
from datalattice.apps.kv.joining import ENTRY_KEYS as ENTRY_KEYS
from datalattice.apps.kv.keys import KEY_BYTES_MAX as KEY_BYTES_MAX, checked_key as checked_key
from datalattice.apps.kv.lattice import (
    KV_SECTION as KV_SECTION,
    KVEntryLattice as KVEntryLattice,
    KVStoreLattice as KVStoreLattice,
)
from datalattice.apps.kv.operations import GC_AGE as GC_AGE
from datalattice.apps.kv.showing import (
    TYPE_TAGS as TYPE_TAGS,
    checked_shown as checked_shown,
    put_shown as put_shown,
    shown_value as shown_value,
)
from datalattice.apps.kv.watching import (
    KeyChange as KeyChange,
    Watch as Watch,
    as_store as as_store,
)
from datalattice.apps.kv.writing import delete as delete, live_entry as live_entry
