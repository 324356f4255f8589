"""Facts: what is told about a node without its content."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from datalattice.apps.dlfs.node import read_node
from datalattice.apps.dlfs.paths import join_path
from datalattice.apps.dlfs.tree import Names, live_entries
from datalattice.cells import Value, blob_length, value_hash


class Stat(NamedTuple):
    """What is known about a file or directory. `size` is 0 for directories."""

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


class Usage(NamedTuple):
    """How much is at and below a path; a directory counts itself."""

    bytes: int
    files: int
    directories: int


def stat_of(names: Names, value: Value) -> Stat:
    """Return what is known about the live node `value` at `names`; the root has the name "".

    Source: CAD028 "Operations"; docs/dlfs.md "Operations".
    """
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


def usage_of(value: Value) -> Usage:
    """Return how much is at and below a live node.

    Source: docs/dlfs.md "Operations".
    """
    total = files = directories = 0
    waiting = [value]
    while waiting:
        node_value = waiting.pop()
        node = read_node(node_value)
        if node is not None and node.data is not None:
            total += blob_length(node.data)
            files += 1
        else:
            directories += 1
            waiting.extend(child for _, child, _ in live_entries(node_value))
    return Usage(total, files, directories)


def walked(names: Names, value: Value) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield (path, directories, files) of the directory `value` at `names` and of all below it.

    Source: docs/dlfs.md "Operations".
    """
    waiting = [(names, value)]
    while waiting:
        place, directory = waiting.pop()
        found = list(live_entries(directory))
        below = [(name, child) for name, child, node in found if node.is_directory]
        yield (
            join_path(place),
            [name for name, _ in below],
            [name for name, _, node in found if node.is_file],
        )
        waiting.extend(((*place, name), child) for name, child in reversed(below))
