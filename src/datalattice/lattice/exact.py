"""Exact: the merge of two indexes in which every byte of a key counts.

An Index compares only the first 32 bytes of a key, and ignores its type. So a foreign entry could
replace another one whose key is a name to be proven or a hash to be recomputed. Here every foreign
key is checked with all its bytes, and of two keys in one position the greater hash stays.

Source: CAD024 "Index lattice"; docs/lattices.md "Maps and indexes"; docs/design/decisions.md "D9".
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import mypyc_attr

from datalattice.cells import ABSENT, Index, Value, Work, value_hash


@mypyc_attr(allow_interpreted_subclasses=True)
class Judge:
    """Decides about entries of an exact merge; subclasses implement the checks and the merge."""

    def admits(self, key: Value, value: Value) -> bool:
        """Return whether a foreign entry is acceptable; report it otherwise."""
        return False

    def join(self, key: Value, own: Value, other: Value) -> Value:
        """Return the merge of two values of one key, or None; `own` is None when absent."""
        return other if own is None else own


class _ExactMerge:
    """One merge of two indexes."""

    def __init__(self, judge: Judge) -> None:
        self._judge: Final = judge

    def entry(
        self, key: Value, own: Value, other: Value, own_present: bool, other_present: bool
    ) -> Value:
        """Return the merged value of an entry on which two indexes differ, or ABSENT."""
        # An entry that the judge refuses is left out; own's stays.
        kept = own if own_present else ABSENT
        if not other_present or not self._judge.admits(key, other):
            return kept
        merged = self._judge.join(key, own, other)
        return kept if merged is None else merged

    def contend(self, held: Value, own: Value, key: Value, other: Value) -> tuple[Value, object]:
        """Return the entry whose key has the greater hash, of two keys in one position."""
        if not self._judge.admits(key, other):
            return held, own
        # "Of two Index keys with equal bytes the greater hash stays" (docs/design/decisions.md "Law
        # domain"). Own is checked too: a bad entry must not win over a good one.
        if value_hash(held) > value_hash(key) and self._judge.admits(held, own):
            return held, own
        merged = self._judge.join(key, None, other)
        return (held, own) if merged is None else (key, merged)


def merge_judged(own: Index, other: Index, judge: Judge, work: Work | None = None) -> Index:
    """Return `own` merged with every entry of `other` that the judge admits.

    Cost:   entries that differ, charged to `work`.
    """
    merge = _ExactMerge(judge)
    return own.merge_with(other, merge.entry, rival=merge.contend, work=work)
