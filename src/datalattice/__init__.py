"""datalattice: immutable Merkle values that merge, kept by cursors, stores and nodes.

What most programs need can be imported from here; each name is looked up in its package when it is
first asked for, so that importing one part does not load the others.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from datalattice.apps.queue import LatticeMQ, Queue, Topic
    from datalattice.cells import (
        Address,
        Blob,
        Char,
        Index,
        Keyword,
        List,
        Map,
        Record,
        Set,
        Signed,
        Symbol,
        Text,
        Value,
        Vector,
        decode,
        decode_message,
        encode,
        encode_message,
        from_json,
        same,
        to_cell,
        to_json,
        to_python,
        to_text,
        value_hash,
    )
    from datalattice.crypto import KeyPair
    from datalattice.cursors import Cursor, Root, RootLattice
    from datalattice.errors import (
        BadFormat,
        BadSignature,
        Corruption,
        DataLatticeError,
        LimitExceeded,
        MissingData,
        NoSigningKey,
        NoSuchPath,
        ReadOnly,
        StoreError,
        StoreLocked,
        TypeMismatch,
        Unauthorized,
        Unavailable,
        UsageError,
    )
    from datalattice.lattice import (
        CASLattice,
        CompareLattice,
        DataLattice,
        FunctionLattice,
        IndexLattice,
        JSONLattice,
        KeyedLattice,
        Lattice,
        LWPLattice,
        LWWLattice,
        MapLattice,
        MaxLattice,
        MergeContext,
        MinLattice,
        OwnerLattice,
        SetLattice,
        SignedLattice,
        StringKeyedLattice,
        TupleLattice,
        VectorLattice,
        root_lattice,
    )
    from datalattice.node import open_node
    from datalattice.store import open_store

__version__ = "0.1.0"

_HOMES: Final = (
    "errors",
    "crypto",
    "cells",
    "lattice",
    "cursors",
    "store",
    "apps.queue",
    "node",
)


def __getattr__(name: str) -> Any:
    if name in __all__:
        for home in _HOMES:
            module = import_module(f"{__name__}.{home}")
            if hasattr(module, name):
                value = globals()[name] = getattr(module, name)
                return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__all__ = [
    "Address",
    "BadFormat",
    "BadSignature",
    "Blob",
    "CASLattice",
    "Char",
    "CompareLattice",
    "Corruption",
    "Cursor",
    "DataLattice",
    "DataLatticeError",
    "FunctionLattice",
    "Index",
    "IndexLattice",
    "JSONLattice",
    "KeyPair",
    "KeyedLattice",
    "Keyword",
    "LWPLattice",
    "LWWLattice",
    "Lattice",
    "LatticeMQ",
    "LimitExceeded",
    "List",
    "Map",
    "MapLattice",
    "MaxLattice",
    "MergeContext",
    "MinLattice",
    "MissingData",
    "NoSigningKey",
    "NoSuchPath",
    "OwnerLattice",
    "Queue",
    "ReadOnly",
    "Record",
    "Root",
    "RootLattice",
    "Set",
    "SetLattice",
    "Signed",
    "SignedLattice",
    "StoreError",
    "StoreLocked",
    "StringKeyedLattice",
    "Symbol",
    "Text",
    "Topic",
    "TupleLattice",
    "TypeMismatch",
    "Unauthorized",
    "Unavailable",
    "UsageError",
    "Value",
    "Vector",
    "VectorLattice",
    "__version__",
    "decode",
    "decode_message",
    "encode",
    "encode_message",
    "from_json",
    "open_node",
    "open_store",
    "root_lattice",
    "same",
    "to_cell",
    "to_json",
    "to_python",
    "to_text",
    "value_hash",
]
