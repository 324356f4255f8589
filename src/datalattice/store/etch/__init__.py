"""Etch: the store file of the reference implementation, with cells by hash and one root.

`EtchStore` is a store like any other: values load lazily from the file, commits append to it.
`check_etch` verifies every byte of a file, and `collect_etch` copies what is still needed to a new
file.
"""

from __future__ import annotations

from datalattice.store.etch.checking import (
    EtchFault as EtchFault,
    EtchReport as EtchReport,
    check_etch as check_etch,
)
from datalattice.store.etch.copying import collect_etch as collect_etch
from datalattice.store.etch.etchstore import EtchStore as EtchStore
from datalattice.store.etch.layout import (
    ANNOUNCED as ANNOUNCED,
    DATA_START as DATA_START,
    LEVELS as LEVELS,
    PERSISTED as PERSISTED,
    STORED as STORED,
    EtchRecord as EtchRecord,
    block_bytes as block_bytes,
    digit_of as digit_of,
    slot_count as slot_count,
)
from datalattice.store.etch.reader import EtchFile as EtchFile
from datalattice.store.etch.writer import EtchWriter as EtchWriter
