"""Facts: status, size and listing of nodes, without their content.

Source: CAD028 "Operations"; docs/dlfs.md "Operations".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from datalattice.apps.dlfs.node import DEPTH_MAX, read_node
from datalattice.apps.dlfs.paths import join_path
from datalattice.apps.dlfs.tree import Names, listed, live_entries
from datalattice.cells import Value, blob_length, value_hash


class Stat(NamedTuple):
    """The status of a file or directory. `size` is 0 for directories."""

    path: str
    name: str
    is_dir: bool
    size: int
    modified_ms: int
    metadata: Value
    hash: bytes

    @property
    def is_file(self) -> bool:
        """Whether it is a file."""
        return not self.is_dir


class DriveUsage(NamedTuple):
    """Totals of a subtree; a directory counts itself."""

    bytes: int
    files: int
    directories: int


def stat_of(names: Names, value: Value) -> Stat:
    """Return the status of the live node `value` at `names`; the root has the name ""."""
    node = read_node(value)
    assert node is not None
    return Stat(
        path=join_path(names),
        name=names[-1] if names else "",
        is_dir=node.is_directory,
        size=0 if node.data is None else blob_length(node.data),
        modified_ms=node.utime,
        metadata=node.metadata,
        hash=value_hash(value),
    )


def usage_of(value: Value) -> DriveUsage:
    """Return the totals of the subtree of a live node, down to the greatest depth of a path.

    Cost:   reads each distinct directory once.
    """
    return _usage(value, 0, {})


def _usage(value: Value, depth: int, known: dict[tuple[bytes, int], DriveUsage]) -> DriveUsage:
    node = read_node(value)
    if node is not None and node.data is not None:
        return DriveUsage(blob_length(node.data), 1, 0)
    key = value_hash(value), depth
    found = known.get(key)
    if found is None:
        total, files, directories = 0, 0, 1
        if depth < DEPTH_MAX:
            for _, child, _ in live_entries(value):
                below = _usage(child, depth + 1, known)
                total += below.bytes
                files += below.files
                directories += below.directories
        found = known[key] = DriveUsage(total, files, directories)
    return found


def walked(names: Names, value: Value) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield (path, directories, files) of the directory `value` at `names` and of all below it."""
    waiting = [(names, value)]
    while waiting:
        place, directory = waiting.pop()
        found = listed(directory)
        below = [(name, child) for name, child, node in found if node.is_directory]
        yield (
            join_path(place),
            [name for name, _ in below],
            [name for name, _, node in found if node.is_file],
        )
        waiting.extend(((*place, name), child) for name, child in reversed(below))
