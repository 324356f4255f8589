"""Etch: the reference's store file: cells by hash in one file, with one root.

`EtchStore` is a store like any other: values open lazily from the file, commits append to it.
`check_etch` proves a file byte by byte, `collect_etch` copies what is still needed to a new file,
and `copy_cells` moves a value with all below it between stores.
"""

from __future__ import annotations

from datalattice.store.etch.checking import EtchFault, EtchReport, check_etch
from datalattice.store.etch.copying import collect_etch, copy_cells
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
    "copy_cells",
    "digit_of",
    "slot_count",
]
