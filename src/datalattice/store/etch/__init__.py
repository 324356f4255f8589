"""Etch: the store file of the reference implementation, with cells by hash and one root.

`EtchStore` is a store like any other: values load lazily from the file, commits append to it.
`check_etch` verifies every byte of a file, and `collect_etch` copies what is still needed to a new
file.
"""

from __future__ import annotations

from datalattice.store.etch.checking import EtchFault, EtchReport, check_etch
from datalattice.store.etch.copying import collect_etch
from datalattice.store.etch.etchstore import EtchStore
from datalattice.store.etch.layout import (
    ANNOUNCED,
    DATA_START,
    LEVELS,
    PERSISTED,
    STORED,
    EtchRecord,
    block_bytes,
    digit_of,
    slot_count,
)
from datalattice.store.etch.reader import EtchFile
from datalattice.store.etch.writer import EtchWriter

__all__ = [
    "ANNOUNCED",
    "DATA_START",
    "LEVELS",
    "PERSISTED",
    "STORED",
    "EtchFault",
    "EtchFile",
    "EtchRecord",
    "EtchReport",
    "EtchStore",
    "EtchWriter",
    "block_bytes",
    "check_etch",
    "collect_etch",
    "digit_of",
    "slot_count",
]
