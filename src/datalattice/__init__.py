"""datalattice: signed values that merge, kept in a folder and replicated between nodes.

    import datalattice

    with datalattice.open("data") as node:
        node.queue("log").offer("hello")
        node.database("shop")["opened"] = True

Each name is imported from its package at its first use, so that importing one part does not load
the others. All other names are imported from their packages: `datalattice.cells`, `lattice`,
`cursors`, `store`, `node`, `errors`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from datalattice.version import VERSION as __version__  # noqa: N811 - its usual name

if TYPE_CHECKING:
    from datalattice.apps import Owner
    from datalattice.apps.dlfs import Drive
    from datalattice.apps.grid import Venue
    from datalattice.apps.kv import Database
    from datalattice.apps.queue import Consumer, Feed, Queue, QueueEntry, Topic
    from datalattice.cells import (
        Keyword,
        Map,
        Set,
        Vector,
        from_json,
        to_cell,
        to_json,
        to_python,
        value_hash,
    )
    from datalattice.client import Node, open as open
    from datalattice.crypto import KeyPair
    from datalattice.cursors import Cursor
    from datalattice.errors import DataLatticeError, DataLoss, Unavailable, UsageError
    from datalattice.node import serve  # type: ignore[no-redef, unused-ignore]
    from datalattice.weaver import KVStore, LogStore


_HOMES: Final = {
    "Consumer": "apps.queue",
    "Cursor": "cursors",
    "DataLatticeError": "errors",
    "DataLoss": "errors",
    "Database": "apps.kv",
    "Drive": "apps.dlfs",
    "Feed": "apps.queue",
    "KVStore": "weaver",
    "KeyPair": "crypto",
    "Keyword": "cells",
    "LogStore": "weaver",
    "Map": "cells",
    "Node": "client",
    "Owner": "apps",
    "Queue": "apps.queue",
    "QueueEntry": "apps.queue",
    "Set": "cells",
    "Topic": "apps.queue",
    "Unavailable": "errors",
    "UsageError": "errors",
    "Vector": "cells",
    "Venue": "apps.grid",
    "from_json": "cells",
    "open": "client",
    "serve": "node",
    "to_cell": "cells",
    "to_json": "cells",
    "to_python": "cells",
    "value_hash": "cells",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{home}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})


# Without `open`: `from datalattice import *` keeps the builtin.
__all__ = [
    "Consumer",
    "Cursor",
    "DataLatticeError",
    "DataLoss",
    "Database",
    "Drive",
    "Feed",
    "KVStore",
    "KeyPair",
    "Keyword",
    "LogStore",
    "Map",
    "Node",
    "Owner",
    "Queue",
    "QueueEntry",
    "Set",
    "Topic",
    "Unavailable",
    "UsageError",
    "Vector",
    "Venue",
    "__version__",
    "from_json",
    "serve",
    "to_cell",
    "to_json",
    "to_python",
    "value_hash",
]
