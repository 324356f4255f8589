"""datalattice: immutable Merkle values that merge, kept by cursors, stores and nodes.

What most programs need can be imported from here; each name is looked up in its package when it is
first asked for, so that importing one part does not load the others.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from datalattice.version import VERSION as __version__  # noqa: N811 - its usual name

if TYPE_CHECKING:
    from datalattice.apps.dlfs import Drive
    from datalattice.apps.grid import Venue
    from datalattice.apps.kv import Database
    from datalattice.apps.queue import Queue, Topic, Topics
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
        changes,
        decode,
        decode_message,
        encode,
        encode_message,
        from_json,
        from_text,
        same,
        to_cell,
        to_json,
        to_python,
        to_text,
        value_hash,
    )
    from datalattice.client import Node as Node
    from datalattice.client import open as open
    from datalattice.crypto import KeyPair
    from datalattice.cursors import Cursor, Root, RootLattice, open_store
    from datalattice.errors import (
        AlreadyExists,
        BadFormat,
        BadSignature,
        Corruption,
        DataLatticeError,
        DirectoryNotEmpty,
        IsADirectory,
        LimitExceeded,
        MissingData,
        NoSigningKey,
        NoSuchPath,
        NotADirectory,
        NotContained,
        ReadOnly,
        StoreError,
        StoreLocked,
        TypeMismatch,
        Unauthorized,
        Unavailable,
        UsageError,
        WrongType,
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
        register_section,
        root_lattice,
    )
    from datalattice.node import open_node


_HOMES: Final = (
    "errors",
    "crypto",
    "cells",
    "lattice",
    "cursors",
    "store",
    "apps.kv",
    "apps.queue",
    "apps.dlfs",
    "apps.grid",
    "client",
    "node",
)


def __getattr__(name: str) -> Any:
    if name in ("open", "Node"):  # `open` is not in __all__: `import *` keeps the builtin
        value = globals()[name] = getattr(import_module(f"{__name__}.client"), name)
        return value
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
    "AlreadyExists",
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
    "Database",
    "DirectoryNotEmpty",
    "Drive",
    "FunctionLattice",
    "Index",
    "IndexLattice",
    "IsADirectory",
    "JSONLattice",
    "KeyPair",
    "KeyedLattice",
    "Keyword",
    "LWPLattice",
    "LWWLattice",
    "Lattice",
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
    "Node",
    "NotADirectory",
    "NotContained",
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
    "Topics",
    "TupleLattice",
    "TypeMismatch",
    "Unauthorized",
    "Unavailable",
    "UsageError",
    "Value",
    "Vector",
    "VectorLattice",
    "Venue",
    "WrongType",
    "__version__",
    "changes",
    "decode",
    "decode_message",
    "encode",
    "encode_message",
    "from_json",
    "from_text",
    "open_node",
    "open_store",
    "register_section",
    "root_lattice",
    "same",
    "to_cell",
    "to_json",
    "to_python",
    "to_text",
    "value_hash",
]
