"""Hosting table: what the operator of a node decided about owners while it ran.

It is kept durably with the store, as JSON: for each owner whether its data is allowed without
limits, how many bytes it may have, and in which sections it is refused, since when and why.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Final

from datalattice.clock import Clock
from datalattice.errors import Corruption
from datalattice.store import Notes

NOTE: Final = "hosting"
"""The name of the table among the notes of a store."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What was decided about one owner.

    refused: sections whose data of the owner is not taken; "*" for all.
    """

    owner: str
    allowed: bool = False
    limit: int | None = None
    refused: tuple[str, ...] = ()
    since_ms: int = 0
    reason: str = ""

    @property
    def is_empty(self) -> bool:
        """Whether it says nothing any more."""
        return not self.allowed and self.limit is None and not self.refused


class HostingTable:
    """The decisions of one store."""

    def __init__(self, notes: Notes, clock: Clock) -> None:
        self._notes = notes
        self._clock = clock
        self._decisions = _parse(notes.read(NOTE))
        self.version = 0
        """Grows with every decision."""

    @property
    def decisions(self) -> list[Decision]:
        """All decisions, by owner."""
        return [self._decisions[owner] for owner in sorted(self._decisions)]

    @property
    def has_refusals(self) -> bool:
        """Whether any owner is refused anywhere."""
        return any(one.refused for one in self._decisions.values())

    @property
    def forgotten(self) -> list[tuple[str | None, str]]:
        """(section, owner) of all refusals; section None: every one."""
        return [
            (None if section == "*" else section, one.owner)
            for one in self._decisions.values()
            for section in one.refused
        ]

    def is_allowed(self, owner: str) -> bool:
        """Return whether an owner has no limits."""
        found = self._decisions.get(owner)
        return found is not None and found.allowed

    def limit(self, owner: str) -> int | None:
        """Return how many bytes an owner may have, None when nothing was decided."""
        found = self._decisions.get(owner)
        return None if found is None else found.limit

    def is_forgotten(self, section: str, owner: str) -> bool:
        """Return whether the data of an owner in a section is refused."""
        found = self._decisions.get(owner)
        return found is not None and ("*" in found.refused or section in found.refused)

    def allow(self, owner: str) -> None:
        """Take an owner's data without limits, refused or not until now; durable on return."""
        self._decide(replace(self._of(owner), allowed=True, refused=(), reason=""))

    def refuse(self, owner: str, section: str | None, reason: str) -> None:
        """Take an owner's data no more, in one section or in all; durable on return.

        Without a reason the one that was given before stays.
        """
        before = self._of(owner)
        refused = {"*"} if section is None else {*before.refused, section}
        names = ("*",) if "*" in refused else tuple(sorted(refused))
        self._decide(replace(before, allowed=False, refused=names, reason=reason or before.reason))

    def set_limit(self, owner: str, limit: int | None) -> None:
        """Let an owner have so many bytes, None: as many as others; durable on return."""
        self._decide(replace(self._of(owner), limit=limit))

    def host(self, owner: str) -> None:
        """Take an owner's data again, within the limits of all; durable on return."""
        self._decide(replace(self._of(owner), refused=(), reason=""))

    def _of(self, owner: str) -> Decision:
        return self._decisions.get(owner, Decision(owner))

    def _decide(self, decision: Decision) -> None:
        decision = replace(decision, since_ms=self._clock.now_ms())
        after = {**self._decisions, decision.owner: decision}
        if decision.is_empty:
            del after[decision.owner]
        rows = [asdict(after[owner]) for owner in sorted(after)]
        self._notes.write(NOTE, json.dumps(rows, indent=1) + "\n")
        self._decisions = after
        self.version += 1


def _parse(text: str | None) -> dict[str, Decision]:
    """Return the decisions in a note.

    Raises: Corruption: it is none.
    """
    try:
        rows = [] if text is None else json.loads(text)
        found = [Decision(**row | {"refused": tuple(row["refused"])}) for row in rows]
    except (ValueError, TypeError, KeyError) as error:
        raise Corruption(f"the note {NOTE!r} of the store is no hosting table: {error}") from error
    return {one.owner: one for one in found}
