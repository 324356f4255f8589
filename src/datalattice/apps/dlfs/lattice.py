"""Lattice of the file system: nodes, and the section `:fs` of the standard root.

Source: CAD028 "Node", "checkForeign", "Paths", "Merge"; docs/dlfs.md "Nodes", "What foreigners may
    send", "Merge"; docs/design/forks.md "The order"; docs/design/decisions.md "D9", "Base",
    "D-FS1".
"""

from __future__ import annotations

from typing import Final

from datalattice.apps.dlfs.merging import Merging, is_well_formed
from datalattice.apps.dlfs.node import ENTRIES_AT, ZERO_NODE
from datalattice.apps.dlfs.order import latest_of_nodes
from datalattice.cells import Keyword, Value
from datalattice.lattice import (
    EMPTY_CONTEXT,
    EntryDropped,
    ExactIndexLattice,
    Latest,
    Lattice,
    MapLattice,
    MergeContext,
    OwnerLattice,
    Walk,
    as_integer,
    is_integer,
    is_long,
    register_section,
)


class DLFSLattice(Lattice):
    """A node of a drive and its subtree."""

    def zero(self) -> Value:
        """Return the empty directory of time 0."""
        return ZERO_NODE

    def has_order(self) -> bool:
        """Return True."""
        return True

    def latest(self, own: Value, other: Value, walk: Walk) -> Latest:
        """Return the newest write of each tree that the other lacks.

        Cost:   proportional to the directories that differ.
        """
        return latest_of_nodes(own, other, walk)

    def check_foreign(self, value: Value) -> bool:
        """Return whether `value` has the shape of a node."""
        return is_well_formed(value)

    def accepts(self, other: Value, context: MergeContext) -> bool:
        """Return whether `other` has the shape of a node; report it if not."""
        if is_well_formed(other, work=context.work):
            return True
        context.report(EntryDropped(context.path))
        return False

    def child(self, key: Value) -> Lattice | None:
        """Return the lattice of the entries for position 0, otherwise None."""
        return ExactIndexLattice(self) if is_integer(key) and key == ENTRIES_AT else None

    def resolve_key(self, key: Value) -> Value:
        """Return `key` if it is an Integer, or the Integer in a String; otherwise None."""
        # "Strings that parse as an integer"; other digits of Unicode are names.
        if isinstance(key, str) and key.removeprefix("-").isdecimal() and key.isascii():
            number = int(key) if len(key) < _LONG_DIGITS else None
            return number if number is not None and is_long(number) else None
        return as_integer(key)

    def merge(self, own: Value, other: Value, context: MergeContext = EMPTY_CONTEXT) -> Value:
        """Return the merge of two trees; an operand itself if the result equals it.

        Shapes: own, other: None or a node.
        Cost:   proportional to the directories that differ or are new. A directory whose base rises
                is walked completely.
        Raises: MissingData: a directory to read is not in the store.
        """
        if other is None or own is other:
            return own
        if not self.accepts(other, context):
            return ZERO_NODE if own is None else own  # "fail closed": own stays as it is
        merging = Merging(context)
        if own is None:
            return merging.clean(other, context.path, 0)
        return merging.join(own, other, context.path, 0)


_LONG_DIGITS: Final = 21  # a 64-bit number has at most 20 characters

FS_SECTION: Final = Keyword("fs")
DRIVES: Final = MapLattice(DLFSLattice())  # "the drive's root node"
"""The lattice of one owner's drives by name."""

register_section(FS_SECTION, OwnerLattice(DRIVES))
