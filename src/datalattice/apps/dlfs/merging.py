"""Merging: how two nodes are joined, exactly as the page on decisions says under "Base".

A directory is the set of what its names hold; a file or a tombstone is a register that the latest
write wins. What decides between the two kinds is time, and a directory that wins remembers, as its
base, how far back it was cleared.

Trees come from strangers and a few cells that are used many times over can stand for more nodes
than any machine could visit. So all merges of one message remember together what they did for a
directory, by its hash, and go no deeper than `DEPTH_MAX`. What was done at one depth holds at every
depth that has room for as many levels as were looked at.

Source: docs/design/decisions.md "Base", "D-FS1"; docs/dlfs.md "Writes", "What foreigners may send",
    "Nodes"; CAD028 "checkForeign".
"""

from __future__ import annotations

from collections.abc import Callable
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
from datalattice.apps.dlfs.times import Times, directory_ticks, directory_time
from datalattice.cells import ABSENT, Index, Value, Vector, Work, same, value_hash
from datalattice.lattice import (
    EntryDropped,
    ExactKeys,
    ExactMerge,
    MergeContext,
    MergeNotice,
    WriteSuperseded,
    as_operand,
    discard,
    greater,
    key_of,
    name_of,
)

OWN: Final = "own"
OTHER: Final = "other"
Path = tuple[Value, ...]
Key = tuple[bytes, bytes | int]


def time_of(value: Value) -> int:
    """Return the time of a node: its utime, of a directory the greatest in its whole subtree.

    -1 for a value that is no node.

    Cost:   a directory is walked, once for each hash.
    """
    node = read_node(value)
    if node is None:
        return NO_TIME
    return directory_time(value, node) if node.is_directory else node.utime


def is_well_formed(value: Value, known: Times | None = None, work: Work | None = None) -> bool:
    """Return whether a value is a node whose base, if it has one, is older than the node.

    What lies below is not looked at, unless the directory itself is not newer than its base.

    Shapes: known: what this merge found out before; filled.
    """
    node = read_node(value)
    if node is None:
        return False
    base = node.base
    # Only a directory has a base.
    return base == NO_TIME or node.utime > base or directory_time(value, node, known, work) > base


def entries_of(node: Node, work: Work | None = None) -> Index:
    """Return a directory's entries, with the deletions of its fifth position as tombstones."""
    return Merging(None, _memos(work, _SILENT), work).folded(node, (), 0)


class _Memo:
    """What was done for directories, by hashes, and how many levels of them that looked at."""

    def __init__(self) -> None:
        self._done: Final[dict[Key, tuple[Value, int]]] = {}
        self._cut_short: Final[dict[tuple[Key, int], tuple[Value, int]]] = {}

    def get(self, key: Key, depth: int) -> tuple[Value, int] | None:
        """Return what was done that holds at this depth: (result, levels looked at)."""
        found = self._done.get(key)
        if found is not None and depth + found[1] <= DEPTH_MAX:
            return found
        return self._cut_short.get((key, depth))

    def put(self, key: Key, depth: int, result: Value, levels: int) -> None:
        """Remember what was done at a depth."""
        if depth + levels <= DEPTH_MAX:
            self._done[key] = (result, levels)
        else:
            self._cut_short[key, depth] = (result, levels)


class _Memos:
    """What the merges of one message did already."""

    def __init__(self) -> None:
        self.times: Final[Times] = {}
        self.cleaned: Final = _Memo()
        self.cuts: Final = _Memo()
        self.joins: Final = _Memo()


_MEMO: Final = "drives"
_TELLING: Final = b"telling"
_SILENT: Final = b"silent"


def _memos(work: Work | None, which: bytes) -> _Memos:
    """Return what was done already: by this message where there is an account, else nothing.

    What was done in silence told nobody what it left out: it is remembered apart.
    """
    if work is None:
        return _Memos()
    held = work.memo(_MEMO)
    found = held.get(which)
    if not isinstance(found, _Memos):
        found = held[which] = _Memos()
    return found


class Merging:
    """One merge of two trees: whom to tell, what it may cost, and what was done already."""

    def __init__(
        self, context: MergeContext | None, memos: _Memos | None = None, work: Work | None = None
    ) -> None:
        silent = context is None or context.report is discard
        if context is not None:
            work = context.work
        self._tell: Final = None if silent else context
        self.work: Final = work
        self._memos: Final = memos or _memos(work, _SILENT if silent else _TELLING)
        self._aside: Merging | None = None
        self._deepest = 0  # the deepest level looked at so far

    def _report(self, report: MergeNotice) -> None:
        if self._tell is not None:
            self._tell.report(report)

    def _in_silence(self) -> Merging:
        """Return the merge that tells nothing, for what only asks what would come of it."""
        if self._tell is None:
            return self
        if self._aside is None:
            self._aside = Merging(None, _memos(self.work, _SILENT), self.work)
        return self._aside

    def _once(
        self, memo: _Memo, key: Key, node: Node, depth: int, do: Callable[[], Value]
    ) -> Value:
        """Return what `do` returns for a directory at a depth, done once for as many as it can."""
        found = memo.get(key, depth)
        if found is None:
            if self.work is not None:
                self.work.spend(directory_ticks(node))
            before, self._deepest = self._deepest, depth
            found = do(), self._deepest - depth
            self._deepest = before
            memo.put(key, depth, *found)
        self._deepest = max(self._deepest, depth + found[1])
        return found[0]

    def _is_newer(self, value: Value, node: Node, than: int) -> bool:
        """Return whether the time of a node is greater; a directory is walked when it must be."""
        if node.utime > than or not node.is_directory:
            return node.utime > than
        return directory_time(value, node, self._memos.times, self.work) > than

    # --- foreign trees ---

    def clean(self, value: Value, path: Path, depth: int) -> Value:
        """Return a foreign node without what is malformed in it; each such entry is reported.

        The node itself is well-formed. The same object when nothing is wrong.
        """
        node = read_node(value)
        if node is None or node.entries is None:
            return value
        return self._once(
            self._memos.cleaned,
            (value_hash(value), b""),
            node,
            depth,
            lambda: self._cleaned_directory(value, node, path, depth),
        )

    def _cleaned_directory(self, value: Value, node: Node, path: Path, depth: int) -> Value:
        assert node.entries is not None
        entries = node.entries
        for name, child in node.entries.entries(self.work):
            below = (*path, ENTRIES, name)
            if not self._is_entry(name, child, depth + 1):
                self._report(EntryDropped(below))
                entries = entries.remove(name)
                continue
            cleaned = self.clean(child, below, depth + 1)
            if cleaned is child:
                continue
            if self._is_sound(cleaned):
                entries = entries.put(name, cleaned)
            else:  # what was newer than its base lay too deep
                entries = entries.remove(name)
        if entries is node.entries:
            return value
        assert isinstance(value, Vector)
        return Vector.of([entries, *value.to_list(1)])

    def _is_entry(self, name: Value, value: Value, depth: int) -> bool:
        self._deepest = max(self._deepest, depth)
        return is_name(name) and depth <= DEPTH_MAX and self._is_sound(value)

    def _is_sound(self, value: Value) -> bool:
        return is_well_formed(value, self._memos.times, self.work)

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
            return self._once(
                self._memos.joins,
                (value_hash(own), value_hash(other)),
                a if a.entries else b,
                depth,
                lambda: self._directories(own, a, other, b, path, depth),
            )
        if a.is_directory:
            return self._mixed(own, a, b, other, OWN, path, depth)
        if b.is_directory:
            if self._is_newer(other, b, a.utime):  # else it gives way, whatever is in it
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
        if not self._is_newer(directory, node, register.utime):
            self._report(WriteSuperseded(path, side))
            return register_value
        if register.is_file:
            self._report(WriteSuperseded(path, OTHER if side == OWN else OWN))
        if node.base >= register.utime:
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
        mine, theirs = self.folded(x, (), depth), self.folded(y, path, depth)
        entries = _Names(self, mine, theirs, path, depth).joined()
        top = x if _rank(x) >= _rank(y) else y
        made = make_directory(
            entries, top.utime, base=base, metadata=top.metadata, further=top.further
        )
        return as_operand(made, own, other)

    # --- the layout of CAD028 ---

    def folded(self, node: Node, path: Path, depth: int) -> Index:
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
            known = name_of(name)
            key = name if known is None else key_of(known)
            tombstone = make_tombstone(deleted)
            present = entries.get(key)
            joined = tombstone
            if present is not None and self._is_entry(key, present, depth + 1):
                silent = self._in_silence()
                joined = silent.join(tombstone, present, (), depth + 1)  # type: ignore[assignment]
            entries = entries.put(key, joined)
        return entries

    # --- cutting ---

    def _cut(self, value: Value, at: int, side: str, path: Path, depth: int) -> Value:
        """Return what is newer than `at` in a node, ABSENT for nothing.

        The same object when everything is. Our own side may be as its signer made it: whatever is
        malformed or too deep goes.
        """
        self._deepest = max(self._deepest, depth)
        node = read_node(value)
        if node is None or depth > DEPTH_MAX or not self._is_sound(value):
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
        self, value: Value, node: Node, at: int, side: str, path: Path, depth: int
    ) -> Value:
        if not self._is_newer(value, node, at):
            self._report(WriteSuperseded(path, side))
            return ABSENT
        entries = full = self.folded(node, (), depth)  # so that it is spelled alike in any order
        for name, child in full.entries(self.work):
            kept = self._cut(child, at, side, (*path, ENTRIES, name), depth + 1)
            if kept is ABSENT:
                entries = entries.remove(name)
            elif kept is not child:
                entries = entries.put(name, kept)
        stays = node.utime > at
        if not stays and not entries:
            return ABSENT  # what was newer lies too deep
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
        return (
            left if self._is_sound(left) else ABSENT
        )  # what was newer than its base lies too deep


class _Names:
    """The join of the entries of two directories."""

    def __init__(self, merging: Merging, own: Index, other: Index, path: Path, depth: int) -> None:
        self._merging: Final = merging
        self._own: Final = own
        self._other: Final = other
        self._path: Final = (*path, ENTRIES)
        self._depth: Final = depth + 1
        self._exact: Final = ExactMerge(self._join, self._lost)

    def joined(self) -> Index:
        work = self._merging.work
        return self._own.merge_with(self._other, self._join, rival=self._rival, work=work)

    def _rival(self, held: Value, own: Value, key: Value, other: Value) -> tuple[Value, object]:
        """Return which entry stays, of two whose keys share 32 bytes."""
        if not is_name(key):
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
        """Return what stands under a key afterwards."""
        merging = self._merging
        path = (*self._path, key)
        if not merging._is_entry(key, other, self._depth):
            merging._report(EntryDropped(path))
            return own if own_present else ABSENT
        if not own_present:
            return merging.clean(other, path, self._depth)
        return merging.join(own, other, path, self._depth)


def _rank(node: Node) -> tuple[int, bool, bytes]:
    """Return by what the time, metadata and further fields of one of two directories are taken."""
    plain = node.metadata is None and not node.further
    shown = b"" if plain else value_hash(Vector.of([node.metadata, *node.further]))
    return node.utime, not plain, shown


def _either(own: Value, other: Value) -> Value:
    if not is_well_formed(own):
        return other
    return Merging(None).join(own, other, (), 0) if is_well_formed(other) else own


NAMES: Final = ExactKeys(_either, texts=False)
"""How the names of a directory stand in its Index.

Source: docs/dlfs.md "Names and paths".
"""
