"""Lattices of the database: one entry, a store of entries by key, and the section `:kv`.

Source: CAD037 "Entry", "checkForeign", "Merge", "Store"; docs/kv.md "Entries", "What foreigners may
    send", "Merge", "Layout"; docs/design/forks.md "The order"; docs/design/decisions.md "D9",
    "Base", "D-KV3", "D10"; docs/cells.md "Exact keys"; CAD024 "Root layout".
"""

from __future__ import annotations

from typing import Final

from datalattice.apps.kv.entries import ZERO_ENTRY, Entry, is_sound_entry, read_entry
from datalattice.apps.kv.joining import merge_entries
from datalattice.apps.kv.order import latest_of_entries
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
    register_section,
)

KV_SECTION: Final = Keyword("kv")


class KVEntryLattice(Lattice):
    """One key of a database; its value is the merge of all its writes."""

    def zero(self) -> Value:
        """Return the tombstone of time 0, `[nil nil 0 nil]`."""
        return ZERO_ENTRY

    def has_order(self) -> bool:
        """Return True."""
        return True

    def latest(self, own: Value, other: Value, walk: Walk) -> Latest:
        """Return the newest write of each entry that the other lacks."""
        return latest_of_entries(own, other, walk)

    def check_foreign(self, value: Value) -> bool:
        """Return whether `value` is an entry and all its members are well formed."""
        return is_sound_entry(value)

    def accepts(self, other: Value, context: MergeContext) -> bool:
        """Return whether `other` is an entry; the merge checks its members one by one."""
        return _read_foreign(other, context) is not None

    def merge(self, own: Value, other: Value, context: MergeContext = EMPTY_CONTEXT) -> Value:
        """Return the result of replaying the writes of both sides in the order of their times.

        Shapes: own, other: None or an entry.
        Cost:   proportional to the members that differ.
        """
        if other is None:
            return ZERO_ENTRY if own is None else own
        if own is other:
            return own
        theirs = _read_foreign(other, context)
        if theirs is None:
            return ZERO_ENTRY if own is None else own  # "own nil: other if valid, else zero"
        work = context.work
        if work is not None:
            # A hostile store of many small entries costs its sender's allowance.
            work.spend(work.limits.entry)
        return merge_entries(own, theirs, context)


def _read_foreign(other: Value, context: MergeContext) -> Entry | None:
    """Return the entry in a foreign value; None if it is malformed, which is reported."""
    entry = read_entry(other)
    if entry is None:
        context.report(EntryDropped(context.path))
    return entry


class KVStoreLattice(ExactIndexLattice):
    """A store: an Index of entries by key; a key on both sides gets the merge of its entries."""

    def __init__(self) -> None:
        super().__init__(KVEntryLattice())

    def _arguments(self) -> tuple[object, ...]:
        return ()


def kv_section() -> Lattice:
    """Return the lattice of the section `:kv`: owner, `:value`, database name, key."""
    return OwnerLattice(MapLattice(KVStoreLattice()))


register_section(KV_SECTION, kv_section())
