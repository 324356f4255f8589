"""Merging: how two nodes are joined, exactly as the page on decisions says under "Base".

A directory is the set of what its names hold; a file or a tombstone is a register that the latest
write wins. What decides between the two kinds is time, and a directory that wins remembers, as its
base, how far back it was cleared.

Trees come from strangers and a few cells that are used many times over can stand for more nodes
than any machine could visit. So each walk remembers what it did for a directory, by hash, and goes
no deeper than `DEPTH_MAX`.
"""

from __future__ import annotations

from typing import Final

from datalattice.apps.dlfs.node import (
    DEPTH_MAX,
    ENTRIES,
    NO_TIME,
    Node,
    deletions_of,
    is_name,
    is_time,
    is_zero,
    make_directory,
    make_tombstone,
    read_node,
)
from datalattice.cells import ABSENT, Index, Value, Vector, same, value_hash
from datalattice.lattice import (
    EntryDropped,
    MergeContext,
    Report,
    WriteSuperseded,
    as_operand,
    discard,
    greater,
)

OWN: Final = "own"
OTHER: Final = "other"
Path = tuple[Value, ...]


def time_of(value: Value) -> int:
    """Return the time of a node: its utime, of a directory the greatest in its whole subtree.

    -1 for a value that is no node.

    Cost:   a directory is walked.
    Source: docs/design/decisions.md "Base"; docs/dlfs.md "Writes".
    """
    return _time(value, 0, {})


def _time(value: Value, depth: int, known: dict[bytes, int]) -> int:
    node = read_node(value)
    if node is None or depth > DEPTH_MAX:
        return NO_TIME
    if node.entries is None:
        return node.utime
    key = value_hash(value)
    found = known.get(key)
    if found is None:
        found = node.utime
        for name, deleted in deletions_of(node):
            if is_name(name) and isinstance(deleted, int) and is_time(deleted):
                found = max(found, deleted)
        for name, child in node.entries.entries():
            if is_name(name):
                found = max(found, _time(child, depth + 1, known))
        known[key] = found
    return found


def is_newer(value: Value, node: Node, than: int, depth: int = 0) -> bool:
    """Return whether the time of a node is greater; a directory is walked only when it must be.

    Source: docs/design/decisions.md "Base".
    """
    return node.utime > than or (node.is_directory and _time(value, depth, {}) > than)


def is_well_formed(value: Value) -> bool:
    """Return whether a value is a node whose base, if it has one, is older than the node.

    What lies below is not looked at, unless the directory itself is not newer than its base.

    Source: CAD028 "checkForeign"; docs/dlfs.md "What foreigners may send".
    """
    node = read_node(value)
    return node is not None and (node.base == NO_TIME or is_newer(value, node, node.base))


def entries_of(node: Node) -> Index:
    """Return the entries of a directory, deletions of its fifth position as tombstones among them.

    Source: docs/dlfs.md "Nodes"; docs/design/decisions.md "D-FS1".
    """
    return Merging(None)._folded(node, (), 0)


class Merging:
    """One merge of two trees: whom to tell, and what was done already."""

    def __init__(self, context: MergeContext | None) -> None:
        silent = context is None or context.report is discard
        self._tell: Final = None if silent else context
        self._times: Final[dict[bytes, int]] = {}
        self._cleaned: Final[dict[tuple[bytes, int], Value]] = {}
        self._cuts: Final[dict[tuple[bytes, int], Value]] = {}
        self._joins: Final[dict[tuple[bytes, bytes], Value]] = {}

    def _report(self, report: Report) -> None:
        if self._tell is not None:
            self._tell.report(report)

    # --- foreign trees ---

    def clean(self, value: Value, path: Path, depth: int) -> Value:
        """Return a foreign node without what is malformed in it; each such entry is reported.

        The node itself is well-formed. The same object when nothing is wrong.
        """
        node = read_node(value)
        if node is None or node.entries is None:
            return value
        key = (value_hash(value), depth)
        found = self._cleaned.get(key)
        if found is None:
            found = self._cleaned[key] = self._cleaned_directory(value, node, path, depth)
        return found

    def _cleaned_directory(self, value: Value, node: Node, path: Path, depth: int) -> Value:
        assert node.entries is not None
        entries = node.entries
        for name, child in node.entries.entries():
            below = (*path, ENTRIES, name)
            if not self._is_entry(name, child, depth + 1):
                self._report(EntryDropped(below))
                entries = entries.remove(name)
                continue
            cleaned = self.clean(child, below, depth + 1)
            if cleaned is not child:
                entries = entries.put(name, cleaned)
        if entries is node.entries:
            return value
        assert isinstance(value, Vector)
        return Vector.of([entries, *value.to_list(1)])

    def _is_entry(self, name: Value, value: Value, depth: int) -> bool:
        return is_name(name) and depth <= DEPTH_MAX and is_well_formed(value)

    # --- joining ---

    def join(self, own: Value, other: Value, path: Path, depth: int) -> Value:
        """Return the join of two nodes; `other` is foreign, and well-formed at its top."""
        if own is other or same(own, other):
            return own
        a, b = read_node(own), read_node(other)
        assert b is not None
        if a is None or is_zero(own):
            return self.clean(other, path, depth)
        if is_zero(other):
            return own
        if a.is_directory and b.is_directory:
            key = (value_hash(own), value_hash(other))
            found = self._joins.get(key)
            if found is None:
                found = self._joins[key] = self._directories(own, a, other, b, path, depth)
            return found
        if a.is_directory:
            return self._mixed(own, a, b, other, OWN, path, depth)
        if b.is_directory:
            other = self.clean(other, path, depth)
            return self._mixed(other, b, a, own, OTHER, path, depth)
        return self._registers(own, a, other, b, path)

    def _registers(self, own: Value, a: Node, other: Value, b: Node, path: Path) -> Value:
        later = own if a.utime > b.utime else other
        winner = greater(own, other) if a.utime == b.utime else later
        loser, lost = (b, OTHER) if winner is own else (a, OWN)
        kept = a if winner is own else b
        if loser.is_file and self._tell and not same(loser.data, kept.data):
            self._report(WriteSuperseded(path, lost))
        return winner

    def _mixed(
        self,
        directory: Value,
        node: Node,
        register: Node,
        register_value: Value,
        side: str,
        path: Path,
        depth: int,
    ) -> Value:
        """Return the join of a directory, on `side`, and a file or a tombstone."""
        if not is_newer(directory, node, register.utime, depth):
            self._report(WriteSuperseded(path, side))
            return register_value
        if register.is_file:
            self._report(WriteSuperseded(path, OTHER if side == OWN else OWN))
        if node.base >= register.utime:
            return directory
        cut = read_node(self._cut(directory, register.utime, side, path, depth))
        assert cut is not None
        return make_directory(
            self._folded(cut, (), depth),
            cut.utime,
            base=register.utime,
            metadata=cut.metadata,
            further=cut.further,
        )

    def _directories(
        self, own: Value, a: Node, other: Value, b: Node, path: Path, depth: int
    ) -> Value:
        base = max(a.base, b.base)
        left, right = own, other
        if b.base < base:
            right = self._cut(self.clean(other, path, depth), base, OTHER, path, depth)
        if a.base < base:
            left = self._cut(own, base, OWN, path, depth)
        if right is ABSENT:
            return own
        if left is ABSENT:
            return self.clean(other, path, depth)
        x, y = read_node(left), read_node(right)
        assert x is not None
        assert y is not None
        mine, theirs = self._folded(x, (), depth), self._folded(y, path, depth)
        entries = _Names(self, mine, theirs, path, depth).joined()
        top = x if _rank(x) >= _rank(y) else y
        made = make_directory(
            entries, top.utime, base=base, metadata=top.metadata, further=top.further
        )
        return as_operand(made, own, other)

    # --- the layout of CAD028 ---

    def _folded(self, node: Node, path: Path, depth: int) -> Index:
        """Return the entries with the names of the fifth position joined in as tombstones.

        Bad ones are dropped, and reported where there is a path to name them by.
        """
        entries = node.entries
        assert entries is not None
        for name, deleted in deletions_of(node):
            if not (is_name(name) and isinstance(deleted, int) and is_time(deleted)):
                if path:
                    self._report(EntryDropped((*path, name)))
                continue
            tombstone = make_tombstone(deleted)
            present = entries.get(name)
            joined = tombstone
            if present is not None and self._is_entry(name, present, depth + 1):
                joined = Merging(None).join(tombstone, present, (), depth + 1)  # type: ignore[assignment]
            entries = entries.put(name, joined)
        return entries

    # --- cutting ---

    def _cut(self, value: Value, at: int, side: str, path: Path, depth: int) -> Value:
        """Return what is newer than `at` in a node, ABSENT for nothing.

        The same object when everything is. Our own side may be as its signer made it: whatever is
        malformed or too deep goes.
        """
        node = read_node(value)
        if node is None or depth > DEPTH_MAX:
            return ABSENT
        if node.entries is None:
            if node.utime > at:
                return value
            if node.is_file:
                self._report(WriteSuperseded(path, side))
            return ABSENT
        key = (value_hash(value), at)
        found = self._cuts.get(key)
        if found is None:
            found = self._cuts[key] = self._cut_directory(value, node, at, side, path, depth)
        return found

    def _cut_directory(
        self, value: Value, node: Node, at: int, side: str, path: Path, depth: int
    ) -> Value:
        if node.utime <= at and _time(value, depth, self._times) <= at:
            self._report(WriteSuperseded(path, side))
            return ABSENT
        inside = max(at, node.base)
        entries = full = self._folded(node, (), depth)  # so that it is spelled alike in any order
        for name, child in full.entries():
            kept = self._cut(child, inside, side, (*path, ENTRIES, name), depth + 1)
            if kept is ABSENT:
                entries = entries.remove(name)
            elif kept is not child:
                entries = entries.put(name, kept)
        stays = node.utime > inside
        base = node.base if node.base > at else NO_TIME
        if entries is full is node.entries and stays and base == node.base:
            return value
        return make_directory(
            entries,
            node.utime if stays else inside,
            base=base,
            metadata=node.metadata if stays else None,
            further=node.further if stays else (),
        )


class _Names:
    """The join of the entries of two directories."""

    def __init__(self, merging: Merging, own: Index, other: Index, path: Path, depth: int) -> None:
        self._merging: Final = merging
        self._own: Final = own
        self._other: Final = other
        self._path: Final = (*path, ENTRIES)
        self._depth: Final = depth + 1
        self._renamed: Final[list[tuple[Value, Value]]] = []

    def joined(self) -> Index:
        merged = self._own.merge_with(self._other, self._join)
        for key, value in self._renamed:
            merged = merged.put(key, value)
        return merged

    def _join(
        self, key: Value, own: Value, other: Value, own_present: bool, other_present: bool
    ) -> Value:
        """Return what stands under a key afterwards.

        Names that begin with the same 32 bytes are one key, given by the greater hash of the two.
        """
        merging = self._merging
        theirs = self._other.key_cell(key) if own_present else key
        if not merging._is_entry(theirs, other, self._depth):
            merging._report(EntryDropped((*self._path, theirs)))
            if not own_present:
                return ABSENT
            return self._under(self._own.key_cell(key), own, key)
        path = (*self._path, theirs)
        if not own_present:
            return merging.clean(other, path, self._depth)
        merged = merging.join(own, other, path, self._depth)
        if merged is own and not same(own, other):
            return self._under(self._own.key_cell(key), own, key)
        return self._under(theirs, other, key) if merged is other else merged

    def _under(self, name: Value, value: Value, key: Value) -> Value:
        """Return `value`, which is to stand under its own name and not under `key`."""
        if not same(name, key):
            self._renamed.append((name, value))
        return value


def _rank(node: Node) -> tuple[int, bool, bytes]:
    """Return by what the time, metadata and further fields of one of two directories are taken."""
    plain = node.metadata is None and not node.further
    shown = b"" if plain else value_hash(Vector.of([node.metadata, *node.further]))
    return node.utime, not plain, shown
