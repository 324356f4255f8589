"""Pickling: a handle is pickled as path, options, owner and name; loading it opens the folder.

For spawned processes and Spark. A handle of a node in memory cannot be pickled.
"""

from __future__ import annotations

import copyreg
from typing import Any, Final

from datalattice.apps.dlfs import Drive
from datalattice.apps.grid import Venue
from datalattice.apps.kv import Database
from datalattice.apps.queue import Feed, Queue, Topic
from datalattice.client.bound import NodeBinding, Options
from datalattice.client.node import open
from datalattice.errors import UsageError

_OWNER, _NAME, _PARTITION = 1, 3, 5
"""Positions in the path of a cursor: `section, owner, :value, name, :partitions, id`."""


def _parts(handle: Any) -> tuple[str, tuple[object, ...], dict[str, object]]:
    """Return the method of `Node` that made a handle, and its arguments."""
    if isinstance(handle, Venue):
        return "venue", (handle.did,), {}
    if isinstance(handle, Feed):
        return "feed", (handle._name, handle._owners), {"of": handle._type.of}
    path = handle.cursor.context.path
    named = {"owner": path[_OWNER]}
    if isinstance(handle, Drive):
        return "drive", (path[_NAME],), named
    named["of"] = handle._type.of
    if isinstance(handle, Queue):
        return "queue", (path[_NAME], path[_PARTITION]), named
    if isinstance(handle, Topic):
        return "topic", (path[_NAME], handle._count), named
    return "database", (path[_NAME],), named


def _reduce(handle: Any) -> tuple[Any, ...]:
    binding = handle._binding
    # Data in memory exists in its process only.
    if not isinstance(binding, NodeBinding) or binding.origin is None:
        raise UsageError(
            f"this {type(handle).__name__} cannot be pickled: only handles of a folder opened by "
            "datalattice.open can"
        )
    return _reopened, (*binding.origin, *_parts(handle))


def _reopened(
    path: str, options: Options, kind: str, given: tuple[object, ...], named: dict[str, object]
) -> object:
    node = open(path, **options._asdict())
    return getattr(node, kind)(*given, **named)


HANDLES: Final = (Database, Drive, Feed, Queue, Topic, Venue)

for _kind in HANDLES:
    copyreg.pickle(_kind, _reduce)
