"""Actions: all that a user can have a node do, each declared once for every door."""

from __future__ import annotations

# Each module declares its actions when it is loaded: all of them, so that `ACTIONS` is complete.
from datalattice.actions import drive, kv, lattice, node, queue, stores
from datalattice.actions.action import (
    ACTIONS,
    CALLER,
    PACKAGE,
    Action,
    ActionKind,
    ActionRequest,
    Route,
    action,
    action_named,
)
from datalattice.actions.common import OWN, PAGE, PAGE_MAX, PIECE_BYTES_MAX, Empty
from datalattice.actions.documents import from_document, read_text, schema_of, to_document
from datalattice.actions.formats import CELL, HASH, KEY, RAW, STORE_ID, CellFormat, HexFormat

__all__ = [
    "ACTIONS",
    "CALLER",
    "CELL",
    "HASH",
    "KEY",
    "OWN",
    "PACKAGE",
    "PAGE",
    "PAGE_MAX",
    "PIECE_BYTES_MAX",
    "RAW",
    "STORE_ID",
    "Action",
    "ActionKind",
    "ActionRequest",
    "CellFormat",
    "Empty",
    "HexFormat",
    "Route",
    "action",
    "action_named",
    "drive",
    "from_document",
    "kv",
    "lattice",
    "node",
    "queue",
    "read_text",
    "schema_of",
    "stores",
    "to_document",
]
