"""Outcome: what becomes of an offer, while it is taken in."""

from __future__ import annotations

from typing import Final

from datalattice.sync.replica import Absorbed, Probe, Remark

REFUSED: Final = "value-refused"
"""What a value that is not taken is counted as."""


class Outcome:
    """An `Absorbed` in the making."""

    def __init__(self) -> None:
        self.missing: list[bytes] = []
        self.holds: list[tuple[str, Probe]] = []
        self.finished: list[bytes] = []
        self.dropped: list[bytes] = []
        self.changed = False
        self._remarks: dict[str, str] = {}
        self._counts: dict[str, int] = {}

    def refuse(self, key: bytes, text: str) -> None:
        """Note that a value is not taken, and needs nothing more."""
        self.finished.append(key)
        self.remark(REFUSED, text)

    def remark(self, kind: str, text: str) -> None:
        """Note something. A hostile value may give cause to millions: the first speaks for all."""
        self._remarks.setdefault(kind, text)
        self._counts[kind] = self._counts.get(kind, 0) + 1

    def absorbed(self) -> Absorbed:
        """Return what became of it."""
        remarks = (
            Remark(kind, text, self._counts[kind], is_refusal=kind == REFUSED)
            for kind, text in self._remarks.items()
        )
        return Absorbed(
            tuple(self.missing),
            tuple(self.holds),
            tuple(self.finished),
            tuple(self.dropped),
            self.changed,
            tuple(remarks),
        )
