"""Absorption: the result of an offer, collected on its way through the replica."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from datalattice.cells import Keyword, Value, brief, to_text
from datalattice.crypto import PUBLIC_KEY_BYTES
from datalattice.lattice import (
    BAD_SIGNATURE,
    ENTRY_DROPPED,
    MALFORMED,
    MISMATCHED,
    NOT_OWNER,
    SECTION_DROPPED,
    TOO_COSTLY,
    EntryDropped,
    MergeContext,
    MergeNotice,
    OwnerForked,
    SectionDropped,
)
from datalattice.sync.replica import Absorbed, Remark

VALUE_REFUSED: Final = "value-refused"
"""Metric label of values that were refused."""

UNSOUND_CELLS: Final = "unsound-cells"
"""Metric label of cells that are well formed by themselves and do not fit together."""

QUOTA_EXCEEDED: Final = "quota-exceeded"
"""Metric label of slots that have no room for a value."""

_LOSSES: Final = frozenset({MALFORMED, MISMATCHED, TOO_COSTLY, SECTION_DROPPED, QUOTA_EXCEEDED})

_WHY: Final = {
    ENTRY_DROPPED: "it is not a value that its path takes",
    BAD_SIGNATURE: "its signature is not valid",
    NOT_OWNER: "it is not signed by its owner",
    MALFORMED: "its cells do not fit together",
    MISMATCHED: "a value in it has another type than its path takes",
    TOO_COSTLY: "to merge it takes more work than its size allows",
}


def notice_text(notice: MergeNotice) -> str:
    """Return a notice of a merge in words: where, and what or why."""
    where = " ".join(map(_key_text, notice.path)) or "the root"
    if isinstance(notice, EntryDropped):
        return f"{where}: not taken, {_WHY.get(notice.kind, notice.kind)}"
    if isinstance(notice, SectionDropped):
        return f"{where}: not taken, {notice.reason}"
    if isinstance(notice, OwnerForked):
        return f"{where}: its owner signed two values of which neither has the other"
    return repr(notice)


def _key_text(key: Value) -> str:
    if isinstance(key, bytes) and len(key) == PUBLIC_KEY_BYTES:
        return key.hex()
    return to_text(key) if isinstance(key, Keyword) else brief(key)


@dataclass(slots=True)
class Absorption(Absorbed):
    """The `Absorbed` of one offer in the making: it travels with the offer to every step.

    sender:        the connection that the offer came over.
    dropped_parts: slots, entries and sections that were left out because they cannot be merged.
    """

    sender: str = ""
    dropped_parts: int = 0
    _is_disputed: bool = False
    _first: dict[str, object] = field(default_factory=dict)  # by kind
    _counts: dict[str, int] = field(default_factory=dict)

    def need(self, hashes: Iterable[bytes], peer: str) -> None:
        """Note cells that are missing of what `peer` stated or sent."""
        # Asked of the peer whose value needs them: it has them, and the sender may not.
        if peer == self.sender:
            self.missing.extend(hashes)
        elif found := list(hashes):
            self.lacking.setdefault(peer, []).extend(found)

    def refuse(self, key: bytes, text: str) -> None:
        """Note that a value is not taken, and needs nothing more."""
        self.finished.append(key)
        self.refused[key] = text
        self.remark(VALUE_REFUSED, text)

    def report(self, notice: MergeNotice, context: MergeContext) -> None:
        """Note what a merge left out."""
        self.remark(notice.kind, notice)
        # Data under an owner of this node that the owner did not sign: a strict pull fails.
        owner = notice.path[1] if len(notice.path) > 1 else None
        if isinstance(notice, EntryDropped) and isinstance(owner, bytes) and context.holds(owner):
            self._is_disputed = True

    def merged(self, key: bytes) -> None:
        """Attribute the notices since the last call to the value with this key."""
        if self._is_disputed:
            self.disputed.add(key)
        self._is_disputed = False

    def remark(self, kind: str, what: object) -> None:
        """Note something for the operator."""
        # A value may cause millions of notices: the first of a kind is kept, the others counted.
        self.dropped_parts += kind in _LOSSES
        self._first.setdefault(kind, what)
        self._counts[kind] = self._counts.get(kind, 0) + 1

    def finish(self) -> Absorbed:
        """Write the remarks as text and return the result."""
        for kind, what in self._first.items():
            text = notice_text(what) if isinstance(what, MergeNotice) else str(what)
            count, is_loss = self._counts[kind], kind in _LOSSES
            self.reports.append(Remark(kind, text, count, kind == VALUE_REFUSED, is_loss))
        return self
