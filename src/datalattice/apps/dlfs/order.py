"""Order of drives: by which of two forked drives has the newest write.

At equal times a directory ranks above its entries, so a base ranks above what it cleared.

Source: docs/design/forks.md "The order"; docs/dlfs.md "Merge".
"""

from __future__ import annotations

from typing import Final

from datalattice.apps.dlfs.merging import entries_of, is_well_formed
from datalattice.apps.dlfs.node import DRIVE_DEPTH_MAX, DriveNode, is_name, read_node
from datalattice.cells import Index, Value, Vector, value_hash
from datalattice.lattice import (
    NO_TIME,
    Element,
    EntryOrder,
    Latest,
    Walk,
    contrast_all,
    element,
    malformed,
    wider,
)
from datalattice.limits import WORK_LIMITS

_DIRECTORY: Final = b"\x01"
_BASE: Final = b"\x02"
_REGISTER: Final = b"\x09"
_PLAIN: Final = b"\x00"  # a directory with neither metadata nor unknown fields
_DESCRIBED: Final = b"\x01"


class _NameOrder(EntryOrder):
    """The elements of a directory's entries at a given depth below the drive."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self._depth: Final = depth

    def entry(
        self,
        key: Value,
        own: Value,
        other: Value,
        own_present: bool,
        other_present: bool,
        walk: Walk,
    ) -> Latest:
        """Return the greatest elements of both sides below one name."""
        return _compare(own, other, own_present, other_present, is_name(key), self._depth, walk)


_NAMES: Final = [_NameOrder(depth) for depth in range(1, DRIVE_DEPTH_MAX + 2)]
"""One per depth, because a node below the greatest depth is malformed."""


def latest_of_nodes(own: Value, other: Value, walk: Walk) -> Latest:
    """Return the greatest element of each tree that the other lacks; None is an absent tree.

    Cost:   proportional to the directories that differ; one-sided subtrees are cached.
    """
    return _compare(own, other, own is not None, other is not None, True, 0, walk)


def _compare(
    own: Value, other: Value, has: bool, had: bool, named: bool, depth: int, walk: Walk
) -> Latest:
    a = _read(own, named, depth, walk) if has else None
    b = _read(other, named, depth, walk) if had else None
    found = contrast_all(_elements(own, a, has), _elements(other, b, had))
    mine, theirs = _entries(a, walk), _entries(b, walk)
    if mine is None and theirs is None:
        return found
    if mine or theirs:
        walk.spend(WORK_LIMITS.directory)
    # A few cells can encode any number of pairs of directories, so each pair is compared once.
    pair = (
        -1 - depth,
        b"" if mine is None else value_hash(mine),
        b"" if theirs is None else value_hash(theirs),
    )
    known = walk.pairs.get(pair)
    if known is None:
        known = walk.pairs[pair] = _NAMES[depth].of_index(mine, theirs, walk)
    return wider(found, known)


def _read(value: Value, named: bool, depth: int, walk: Walk) -> DriveNode | None:
    # Malformed there, as in a merge.
    if not named or depth > DRIVE_DEPTH_MAX or not is_well_formed(value, work=walk.work):
        return None
    return read_node(value)


def _entries(node: DriveNode | None, walk: Walk) -> Index | None:
    return None if node is None or node.entries is None else entries_of(node, walk.work)


def _elements(value: Value, node: DriveNode | None, present: bool) -> list[Element]:
    if not present:
        return []
    if node is None:
        return [malformed(value)]  # malformed values rank by hash, below everything that has a time
    if not node.is_directory:
        return [element(node.utime, _REGISTER + value_hash(value))]
    plain = node.metadata is None and not node.further
    shown = _PLAIN
    if not plain:
        shown = _DESCRIBED + value_hash(Vector.of([node.metadata, *node.further]))
    found = [element(node.utime, _DIRECTORY + shown)]
    if node.base != NO_TIME:
        found.append(element(node.base, _BASE))
    return found
