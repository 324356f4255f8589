"""Merging: the merge of two nodes, by the rules under "Base" on the page of decisions.

Directories merge name by name. A file or a tombstone is a register: the latest write wins. Between
a directory and a register the later time wins; a directory that wins gets as its base the time up
to which it was cleared.

A few foreign cells that share subtrees can encode more nodes than a machine can visit. So all
merges of one message share a cache of results by directory hash, and stop at `DEPTH_MAX`. A result
computed at one depth is valid at every depth from which the levels it read still fit.

Source: docs/design/decisions.md "Base", "D-FS1"; docs/dlfs.md "Writes", "What foreigners may send",
    "Nodes"; CAD028 "checkForeign".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from datalattice.apps.dlfs.node import (
    DRIVE_DEPTH_MAX,
    ENTRIES_AT,
    DriveNode,
    deletions_of,
    is_name,
    is_time,
    is_zero,
    make_directory,
    make_tombstone,
    read_node,
)
from datalattice.apps.dlfs.times import DirectoryTimes, directory_ticks, directory_time
from datalattice.cells import ABSENT, Index, Value, Vector, Work, same, value_hash
from datalattice.lattice import (
    NO_TIME,
    OTHER,
    OWN,
    EntryDropped,
    ExactKeys,
    ExactMerge,
    MergeContext,
    MergeNotice,
    ValuePath,
    WriteSuperseded,
    as_operand,
    discard,
    greater,
    key_of,
    name_of,
)

Key = tuple[bytes, bytes | int]


def node_time(value: Value) -> int:
    """Return the time of a node: its utime; of a directory, the greatest in its subtree.

    A malformed value has time -1.

    Cost:   walks each distinct directory once.
    """
    node = read_node(value)
    if node is None:
        return NO_TIME
    # The entries of a directory may be later than its own utime.
    return directory_time(value, node) if node.is_directory else node.utime


def is_well_formed(
    value: Value, known: DirectoryTimes | None = None, work: Work | None = None
) -> bool:
    """Return whether a value is a node that is newer than its base, if it has one.

    Entries are read only if the directory's own time is not newer than its base.

    Shapes: known: times that this merge has computed; extended.
    """
    node = read_node(value)
    if node is None:
        return False
    base = node.base
    # Only a directory has a base.
    return base == NO_TIME or node.utime > base or directory_time(value, node, known, work) > base


def entries_of(node: DriveNode, work: Work | None = None) -> Index:
    """Return a directory's entries, with the deletions of its fifth position as tombstones."""
    return Merging(None, _memos(work, _SILENT), work).folded(node, (), 0)


class _Memo:
    """Cached results for directories by hash, with the number of levels each result read."""

    def __init__(self) -> None:
        self._done: Final[dict[Key, tuple[Value, int]]] = {}
        self._cut_short: Final[dict[tuple[Key, int], tuple[Value, int]]] = {}

    def get(self, key: Key, depth: int) -> tuple[Value, int] | None:
        """Return (result, levels read) of a cached result that is valid at this depth."""
        found = self._done.get(key)
        # Valid wherever the levels that it read still fit.
        if found is not None and depth + found[1] <= DRIVE_DEPTH_MAX:
            return found
        return self._cut_short.get((key, depth))

    def put(self, key: Key, depth: int, result: Value, levels: int) -> None:
        """Cache a result computed at a depth."""
        if depth + levels <= DRIVE_DEPTH_MAX:
            self._done[key] = (result, levels)
        else:
            # A result that met the depth limit is valid at its own depth alone.
            self._cut_short[key, depth] = (result, levels)


class _Memos:
    """The caches shared by the merges of one message."""

    def __init__(self) -> None:
        self.times: Final[DirectoryTimes] = {}
        self.cleaned: Final = _Memo()
        self.cuts: Final = _Memo()
        self.joins: Final = _Memo()


_MEMO: Final = "drives"
_TELLING: Final = b"telling"
_SILENT: Final = b"silent"


def _memos(work: Work | None, which: bytes) -> _Memos:
    """Return the caches of the message that `work` accounts for; without `work`, new ones.

    Merges that do not report have separate caches: a cached result skips the reports.
    """
    if work is None:
        return _Memos()
    held = work.memo(_MEMO)
    found = held.get(which)
    if not isinstance(found, _Memos):
        found = held[which] = _Memos()
    return found


class Merging:
    """One merge of two trees, with its report function, work account and caches."""

    def __init__(
        self, context: MergeContext | None, memos: _Memos | None = None, work: Work | None = None
    ) -> None:
        # Without a listener, no report is made.
        silent = context is None or context.report is discard
        if context is not None:
            work = context.work
        self._tell: Final = None if silent else context
        self.work: Final = work
        self._memos: Final = memos or _memos(work, _SILENT if silent else _TELLING)
        self._aside: Merging | None = None
        self._deepest = 0  # the deepest level read so far

    def _report(self, report: MergeNotice) -> None:
        if self._tell is not None:
            self._tell.report(report)

    def _in_silence(self) -> Merging:
        """Return this merge without reports."""
        if self._tell is None:
            return self
        if self._aside is None:
            self._aside = Merging(None, _memos(self.work, _SILENT), self.work)
        return self._aside

    def _once(
        self, memo: _Memo, key: Key, node: DriveNode, depth: int, do: Callable[[], Value]
    ) -> Value:
        """Return the result of `do` for a directory at a depth, from the cache if possible."""
        found = memo.get(key, depth)
        if found is None:
            if self.work is not None:  # a cached result costs nothing
                self.work.spend(directory_ticks(node))
            # The depth that this directory alone reaches.
            before, self._deepest = self._deepest, depth
            found = do(), self._deepest - depth
            self._deepest = before
            memo.put(key, depth, *found)
        self._deepest = max(self._deepest, depth + found[1])
        return found[0]

    def _is_newer(self, value: Value, node: DriveNode, than: int) -> bool:
        """Return whether a node's time is greater than `than`; walk a directory if necessary."""
        if node.utime > than or not node.is_directory:
            return node.utime > than
        return directory_time(value, node, self._memos.times, self.work) > than

    # --- foreign trees ---

    def clean(self, value: Value, path: ValuePath, depth: int) -> Value:
        """Return a well-formed foreign node without its malformed entries; report each of these.

        Returns the same object if every entry is well formed.
        """
        node = read_node(value)
        if node is None or node.entries is None:
            return value  # files and tombstones have nothing inside
        return self._once(
            self._memos.cleaned,
            (value_hash(value), b""),
            node,
            depth,
            lambda: self._cleaned_directory(value, node, path, depth),
        )

    def _cleaned_directory(
        self, value: Value, node: DriveNode, path: ValuePath, depth: int
    ) -> Value:
        assert node.entries is not None
        entries = node.entries
        for name, child in node.entries.entries(self.work):
            below = (*path, ENTRIES_AT, name)
            if not self._is_entry(name, child, depth + 1):
                self._report(EntryDropped(below))
                entries = entries.remove(name)
                continue
            cleaned = self.clean(child, below, depth + 1)
            if cleaned is child:
                continue
            if self._is_sound(cleaned):
                entries = entries.put(name, cleaned)
            else:  # every node that was newer than its base was too deep
                entries = entries.remove(name)
        if entries is node.entries:
            return value
        assert isinstance(value, Vector)
        return Vector.of([entries, *value.to_list(1)])

    def _is_entry(self, name: Value, value: Value, depth: int) -> bool:
        self._deepest = max(self._deepest, depth)
        # "With a bad name or deeper than 100 names" an entry is dropped (docs/dlfs.md "What
        # foreigners may send").
        # All three: name, depth, and newer than its base.
        return is_name(name) and depth <= DRIVE_DEPTH_MAX and self._is_sound(value)

    def _is_sound(self, value: Value) -> bool:
        return is_well_formed(value, self._memos.times, self.work)

    # --- joining ---

    def join(self, own: Value, other: Value, path: ValuePath, depth: int) -> Value:
        """Return the merge of two nodes; `other` is foreign, and well-formed at its top."""
        if own is other or same(own, other):
            return own
        a, b = read_node(own), read_node(other)
        assert b is not None
        # A drive is the zero node, an empty directory of time 0, until its first write.
        if a is None or is_zero(own):
            return self.clean(other, path, depth)
        if is_zero(other):
            return own
        if a.is_directory and b.is_directory:
            return self._once(
                self._memos.joins,
                (value_hash(own), value_hash(other)),
                a if a.entries else b,  # the work is charged for the side that has entries
                depth,
                lambda: self._directories(own, a, other, b, path, depth),
            )
        if a.is_directory:
            return self._mixed(own, a, b, other, OWN, path, depth)
        if b.is_directory:
            if self._is_newer(other, b, a.utime):  # otherwise other loses, whatever it contains
                other = self.clean(other, path, depth)
            return self._mixed(other, b, a, own, OTHER, path, depth)
        return self._registers(own, a, other, b, path)

    def _registers(
        self, own: Value, a: DriveNode, other: Value, b: DriveNode, path: ValuePath
    ) -> Value:
        later = own if a.utime > b.utime else other
        # "At equal times the one with the greater value hash" (docs/dlfs.md "Merge").
        winner = greater(own, other) if a.utime == b.utime else later
        loser, lost = (b, OTHER) if winner is own else (a, OWN)
        kept = a if winner is own else b
        # Readers lose nothing by a deletion that loses.
        if loser.is_file and self._tell and not same(loser.data, kept.data):
            self._report(WriteSuperseded(path, lost))
        return winner

    def _mixed(
        self,
        directory: Value,
        node: DriveNode,
        register: DriveNode,
        register_value: Value,
        side: str,
        path: ValuePath,
        depth: int,
    ) -> Value:
        """Return the merge of a directory, on `side`, and a file or a tombstone."""
        # "Where a directory meets a file or a tombstone, time decides, and the directory keeps only
        # what is newer" (docs/dlfs.md "Merge").
        if not self._is_newer(directory, node, register.utime):
            self._report(WriteSuperseded(path, side))  # the directory loses with all its entries
            return register_value
        if register.is_file:
            self._report(WriteSuperseded(path, OTHER if side == OWN else OWN))
        if node.base >= register.utime:  # it has cleared that time already
            return directory
        left = self._cut(directory, register.utime, side, path, depth)
        if left is ABSENT:
            return register_value
        cut = read_node(left)
        assert cut is not None
        return make_directory(
            self.folded(cut, (), depth),
            cut.utime,
            base=register.utime,
            metadata=cut.metadata,
            further=cut.further,
        )

    def _directories(
        self, own: Value, a: DriveNode, other: Value, b: DriveNode, path: ValuePath, depth: int
    ) -> Value:
        base = max(a.base, b.base)  # both sides forget what either has cleared
        left, right = own, other
        if b.base < base:
            right = self._cut(self.clean(other, path, depth), base, OTHER, path, depth)
        if a.base < base:
            left = self._cut(own, base, OWN, path, depth)
        if right is ABSENT:  # nothing of other is left after the cut
            return own
        if left is ABSENT:
            return self.clean(other, path, depth)
        x, y = read_node(left), read_node(right)
        assert x is not None
        assert y is not None
        mine, theirs = self.folded(x, (), depth), self.folded(y, path, depth)
        entries = _Names(self, mine, theirs, path, depth).joined()
        # "Metadata and unknown fields go with the later utime" (docs/dlfs.md "Merge").
        top = x if _rank(x) >= _rank(y) else y
        made = make_directory(
            entries, top.utime, base=base, metadata=top.metadata, further=top.further
        )
        return as_operand(made, own, other)

    # --- the layout of CAD028 ---

    def folded(self, node: DriveNode, path: ValuePath, depth: int) -> Index:
        """Return the entries merged with the deletions of the fifth element, as tombstones.

        Malformed ones are dropped, and reported if a path is known.
        """
        entries = node.entries
        assert entries is not None
        for name, deleted in deletions_of(node):
            # A bad deletion alone is dropped, the directory stays.
            if not (is_name(name) and isinstance(deleted, int) and is_time(deleted)):
                if path:
                    self._report(EntryDropped((*path, name)))
                continue
            known = name_of(name)
            key = name if known is None else key_of(known)
            # "Those are read as tombstones and written back as such" (docs/dlfs.md "Nodes").
            tombstone = make_tombstone(deleted)
            present = entries.get(key)
            joined = tombstone
            if present is not None and self._is_entry(key, present, depth + 1):
                silent = self._in_silence()
                joined = silent.join(tombstone, present, (), depth + 1)  # type: ignore[assignment]
            entries = entries.put(key, joined)
        return entries

    # --- cutting ---

    def _cut(self, value: Value, at: int, side: str, path: ValuePath, depth: int) -> Value:
        """Return the part of a node that is newer than `at`, ABSENT if there is none.

        Returns the same object if everything is newer. Malformed and too deep nodes are dropped.
        """
        self._deepest = max(self._deepest, depth)
        node = read_node(value)
        # The signer of own may have written any value: no merge has checked it.
        if node is None or depth > DRIVE_DEPTH_MAX or not self._is_sound(value):
            return ABSENT
        if node.entries is None:
            if node.utime > at:
                return value
            if node.is_file:
                self._report(WriteSuperseded(path, side))
            return ABSENT
        return self._once(
            self._memos.cuts,
            (value_hash(value), at),
            node,
            depth,
            lambda: self._cut_directory(value, node, at, side, path, depth),
        )

    def _cut_directory(
        self, value: Value, node: DriveNode, at: int, side: str, path: ValuePath, depth: int
    ) -> Value:
        if not self._is_newer(value, node, at):
            self._report(WriteSuperseded(path, side))
            return ABSENT
        # Folded first, so that the encoding is the same in any order of merges.
        entries = full = self.folded(node, (), depth)
        for name, child in full.entries(self.work):
            kept = self._cut(child, at, side, (*path, ENTRIES_AT, name), depth + 1)
            if kept is ABSENT:
                entries = entries.remove(name)
            elif kept is not child:
                entries = entries.put(name, kept)
        stays = node.utime > at
        if not stays and not entries:
            return ABSENT  # every newer node is too deep
        # A base at or below the cut clears nothing that the cut has kept.
        base = node.base if node.base > at else NO_TIME
        is_folded = next(deletions_of(node), None) is None
        if is_folded and entries is full and stays and base == node.base:
            return value
        left = make_directory(
            entries,
            node.utime if stays else at,
            base=base,
            metadata=node.metadata if stays else None,
            further=node.further if stays else (),
        )
        # A node whose newer parts were all too deep is no longer newer than its base.
        return left if self._is_sound(left) else ABSENT


class _Names:
    """The merge of the entries of two directories."""

    def __init__(
        self, merging: Merging, own: Index, other: Index, path: ValuePath, depth: int
    ) -> None:
        self._merging: Final = merging
        self._own: Final = own
        self._other: Final = other
        self._path: Final = (*path, ENTRIES_AT)
        self._depth: Final = depth + 1
        self._exact: Final = ExactMerge(self._join, self._lost)

    def joined(self) -> Index:
        work = self._merging.work
        return self._own.merge_with(self._other, self._join, rival=self._rival, work=work)

    def _rival(self, held: Value, own: Value, key: Value, other: Value) -> tuple[Value, object]:
        """Return the entry to keep of two entries whose keys share their first 32 bytes."""
        if not is_name(key):  # a foreign key may share the first bytes of a name and not be one
            self._lost(key, False)
            return held, own
        if is_name(held):
            return self._exact.rival(held, own, key, other)
        value = self._join(key, None, other, False, True)
        return (held, own) if value is ABSENT else (key, value)

    def _lost(self, key: Value, is_own: bool) -> None:
        path = (*self._path, key)
        self._merging._report(WriteSuperseded(path, OWN) if is_own else EntryDropped(path))

    def _join(
        self, key: Value, own: Value, other: Value, own_present: bool, other_present: bool
    ) -> Value:
        """Return the merged entry of a key."""
        merging = self._merging
        path = (*self._path, key)
        if not merging._is_entry(key, other, self._depth):
            merging._report(EntryDropped(path))
            # "With a bad name or deeper than 100 names": own stays.
            return own if own_present else ABSENT
        if not own_present:
            return merging.clean(other, path, self._depth)
        return merging.join(own, other, path, self._depth)


def _rank(node: DriveNode) -> tuple[int, bool, bytes]:
    """Return the rank of a directory; the greater one gives time, metadata and further fields."""
    plain = node.metadata is None and not node.further
    shown = b"" if plain else value_hash(Vector.of([node.metadata, *node.further]))
    return node.utime, not plain, shown


def _either(own: Value, other: Value) -> Value:
    if not is_well_formed(own):
        return other
    return Merging(None).join(own, other, (), 0) if is_well_formed(other) else own


NAMES: Final = ExactKeys(_either, texts=False)
"""How the Index of a directory represents its names."""
