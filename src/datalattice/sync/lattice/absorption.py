"""Absorption: what becomes of an offer, while it is taken in."""

from __future__ import annotations

from collections.abc import Iterable
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
from datalattice.sync.replica import Absorbed, Probe, Remark

REFUSED: Final = "value-refused"
"""What a value that is not taken is counted as."""

UNSOUND: Final = "unsound-cells"
"""What cells are counted as that are well formed by themselves and do not fit together."""

QUOTA_EXCEEDED: Final = "quota-exceeded"
"""What slots are counted as that have no room for a value."""

_PARTS: Final = frozenset({MALFORMED, MISMATCHED, TOO_COSTLY, SECTION_DROPPED, QUOTA_EXCEEDED})

_WHY: Final = {
    ENTRY_DROPPED: "it is no value of this place",
    BAD_SIGNATURE: "its signature is not valid",
    NOT_OWNER: "it is not signed by its owner",
    MALFORMED: "its cells do not fit together",
    MISMATCHED: "a value in it is of another kind than its place takes",
    TOO_COSTLY: "to merge it takes more work than its size allows",
}


def report_text(report: MergeNotice) -> str:
    """Return what a merge reported, in words: where, and why or what."""
    where = " ".join(map(_key_text, report.path)) or "the root"
    if isinstance(report, EntryDropped):
        return f"{where}: not taken, {_WHY.get(report.kind, report.kind)}"
    if isinstance(report, SectionDropped):
        return f"{where}: not taken, {report.reason}"
    if isinstance(report, OwnerForked):
        return f"{where}: its owner signed two values of which neither has the other"
    return repr(report)


def _key_text(key: Value) -> str:
    if isinstance(key, bytes) and len(key) == PUBLIC_KEY_BYTES:
        return key.hex()
    return to_text(key) if isinstance(key, Keyword) else brief(key)


class Absorption:
    """An `Absorbed` in the making."""

    def __init__(self, sender: str = "") -> None:
        self.missing: list[bytes] = []
        self._sender = sender
        self._lacking: dict[str, list[bytes]] = {}  # by the peer that stated what needs it
        self.holds: list[tuple[str, Probe]] = []
        self.parts_of: list[tuple[str, Probe]] = []
        self.finished: list[bytes] = []
        self.refused: dict[bytes, str] = {}
        self.disputed: set[bytes] = set()
        self.superseded: list[tuple[bytes, bytes]] = []
        self.dropped: list[bytes] = []
        self.unwanted: list[bytes] = []
        self.breaches: list[tuple[str, str]] = []
        self.changed = False
        self.unread = False
        self._is_disputed = False
        self.ended: list[tuple[str, bool]] = []
        self.dropped_parts = 0
        """Slots, entries and sections that were left out because they cannot be merged."""
        self._remarks: dict[str, object] = {}
        self._counts: dict[str, int] = {}

    def need(self, hashes: Iterable[bytes], peer: str) -> None:
        """Note cells that are missing of what `peer` stated or sent."""
        if peer == self._sender:
            self.missing.extend(hashes)
        else:
            self._lacking.setdefault(peer, []).extend(hashes)

    def refuse(self, key: bytes, text: str) -> None:
        """Note that a value is not taken, and needs nothing more."""
        self.finished.append(key)
        self.refused[key] = text
        self.remark(REFUSED, text)

    def supersede(self, key: bytes, newer: bytes) -> None:
        """Note that a peer's newer value stands for an older one of it, which it contains."""
        if key != newer:
            self.superseded.append((key, newer))

    def report(self, report: MergeNotice, context: MergeContext) -> None:
        """Note what a merge left out."""
        self.remark(report.kind, report)
        owner = report.path[1] if len(report.path) > 1 else None
        if isinstance(report, EntryDropped) and isinstance(owner, bytes) and context.holds(owner):
            self._is_disputed = True

    def merged(self, key: bytes) -> None:
        """Note that all reports so far since the last merge are about the value with this key."""
        if self._is_disputed:
            self.disputed.add(key)
        self._is_disputed = False

    def remark(self, kind: str, what: object) -> None:
        """Note something. A value may give cause to millions: the first of a kind speaks for all.

        It is made text at the end, so that the others cost a count and no more.
        """
        self.dropped_parts += kind in _PARTS
        self._remarks.setdefault(kind, what)
        self._counts[kind] = self._counts.get(kind, 0) + 1

    def absorbed(self) -> Absorbed:
        """Return what became of it."""
        remarks = (
            Remark(
                kind,
                report_text(what) if isinstance(what, MergeNotice) else str(what),
                self._counts[kind],
                is_refusal=kind == REFUSED,
                is_loss=kind in _PARTS,
            )
            for kind, what in self._remarks.items()
        )
        return Absorbed(
            tuple(self.missing),
            tuple(self.holds),
            tuple(self.finished),
            tuple(self.dropped),
            self.changed,
            tuple(remarks),
            self.refused,
            frozenset(self.disputed),
            tuple(self.superseded),
            tuple(self.parts_of),
            tuple(self.ended),
            tuple(self.unwanted),
            tuple(self.breaches),
            self.unread,
            tuple((peer, tuple(hashes)) for peer, hashes in self._lacking.items() if hashes),
        )
