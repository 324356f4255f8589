"""Exact: the join of two indexes in which a key is more than the bytes that an Index looks at.

An Index takes keys of one beginning, or of one spelling, for the same key. Where a key is a name to
be proven or a hash to be recomputed, that would let a foreign entry stand in another's place: here
every foreign key is judged as it was written, and one that only looks like an own one contends with
it, by the greater hash.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import mypyc_attr

from datalattice.cells import ABSENT, Index, Value, Work, value_hash


@mypyc_attr(allow_interpreted_subclasses=True)
class Judge:
    """What an exact join asks about entries; subclasses say what is sound, and how two are joined.

    Source: docs/design/decisions.md "D9".
    """

    def admits(self, key: Value, value: Value) -> bool:
        """Return whether a foreign entry may stand; report it when not.

        Source: docs/design/decisions.md "D9".
        """
        return False

    def join(self, key: Value, own: Value, other: Value) -> Value:
        """Return the join of two values of one key, nil for none; own is nil when it is absent.

        Source: CAD024 "Index lattice"; docs/lattices.md "Maps and indexes".
        """
        return other if own is None else own


class _Joining:
    """One join of two indexes."""

    def __init__(self, judge: Judge) -> None:
        self._judge: Final = judge

    def entry(
        self, key: Value, own: Value, other: Value, own_present: bool, other_present: bool
    ) -> Value:
        """Return the joined value of an entry on which two indexes differ, or ABSENT."""
        kept = own if own_present else ABSENT
        if not other_present or not self._judge.admits(key, other):
            return kept
        merged = self._judge.join(key, own, other)
        return kept if merged is None else merged

    def contend(self, held: Value, own: Value, key: Value, other: Value) -> tuple[Value, object]:
        """Return the entry of the key with the greater hash, of two in one position."""
        if not self._judge.admits(key, other):
            return held, own
        if value_hash(held) > value_hash(key) and self._judge.admits(held, own):
            return held, own
        merged = self._judge.join(key, None, other)
        return (held, own) if merged is None else (key, merged)


def merge_exact(own: Index, other: Index, judge: Judge, work: Work | None = None) -> Index:
    """Return `own` with every entry of `other` that the judge admits joined in.

    Cost:   entries that differ; paid from `work`, when given.
    Source: CAD024 "Index lattice"; docs/lattices.md "Maps and indexes".
    """
    joining = _Joining(judge)
    return own.merge_with(other, joining.entry, rival=joining.contend, work=work)
