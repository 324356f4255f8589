"""Policy: whose data a node hosts and how much: its settings and its operator's decisions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Final

from datalattice.clock import Clock
from datalattice.errors import Corruption, UsageError
from datalattice.store import Notes

SENDERS: Final = ("any", "known", "none")
OWNERS: Final = ("any", "known")

OWNER_BYTES: Final = 1_000_000_000
OWNER_CELLS: Final = 1_000_000
STRANGERS_BYTES: Final = 8_000_000_000
RESERVE_BYTES: Final = 512_000_000
UNSIGNED_BYTES: Final = 64_000_000


@dataclass(frozen=True, slots=True)
class UnsignedPolicy:
    """From whom the unsigned part of a section is taken.

    sender:          `any`, `known` (wanted peers), or `none`.
    strangers_bytes: bytes that all peers together may add that are not known.
    """

    sender: str = "any"
    strangers_bytes: int = UNSIGNED_BYTES

    def __post_init__(self) -> None:
        _check_choice("from", self.sender, SENDERS)
        _check_size("strangers_bytes", self.strangers_bytes)


@dataclass(frozen=True, slots=True)
class HostingPolicy:
    """Whose data is taken. Own keys have no limit.

    sections:        names of the sections that are taken; None: all that are registered.
    owners:          `any`, or `known`: own keys, wanted peers, and `allow`.
    allow, refuse:   owners without limits, and owners whose data is not taken: keys in hex, DIDs.
    owner_bytes:     bytes that one owner may have, over all sections.
    owner_cells:     cells that one owner may have in each section.
    strangers_bytes: bytes that all owners together may have that are neither own nor allowed.
    reserve_bytes:   free bytes of the disk below which foreign data is not taken.
    unsigned:        rules for the unsigned part of sections, by name.
    """

    sections: tuple[str, ...] | None = None
    owners: str = "any"
    allow: tuple[str, ...] = ()
    refuse: tuple[str, ...] = ()
    owner_bytes: int = OWNER_BYTES
    owner_cells: int = OWNER_CELLS
    strangers_bytes: int = STRANGERS_BYTES
    reserve_bytes: int = RESERVE_BYTES
    unsigned: Mapping[str, UnsignedPolicy] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_choice("owners", self.owners, OWNERS)
        for name in ("owner_bytes", "owner_cells", "strangers_bytes", "reserve_bytes"):
            _check_size(name, getattr(self, name))

    def unsigned_of(self, section: str) -> UnsignedPolicy:
        """Return the rule for the unsigned part of a section."""
        return self.unsigned.get(section, _UNSIGNED)


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise UsageError(
            f"hosting: {name} is {', '.join(choices[:-1])} or {choices[-1]}, got {value!r}"
        )


def _check_size(name: str, value: int) -> None:
    if value < 0:
        raise UsageError(f"hosting: {name} is at least 0, got {value}")


_UNSIGNED: Final = UnsignedPolicy()

# --- decisions while the node runs ----------------------------------------------------------------

NOTE: Final = "hosting"
"""The name of the hosting table among the notes of a store."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What the operator decided about one owner.

    allowed: its data has no limits.
    limit:   bytes that it may have, where they are not those of the policy.
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
        """Whether it says nothing."""
        return not self.allowed and self.limit is None and not self.refused


class HostingTable:
    """The decisions of one store, kept durably as JSON in a note."""

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
        """Return the bytes that an owner may have, None when nothing was decided."""
        found = self._decisions.get(owner)
        return None if found is None else found.limit

    def is_forgotten(self, section: str, owner: str) -> bool:
        """Return whether the data of an owner in a section is refused."""
        found = self._decisions.get(owner)
        return found is not None and ("*" in found.refused or section in found.refused)

    def allow(self, owner: str) -> None:
        """Take an owner's data without limits, even if it was refused; durable on return."""
        self._decide(replace(self._of(owner), allowed=True, refused=(), reason=""))

    def refuse(self, owner: str, section: str | None, reason: str) -> None:
        """Stop taking an owner's data, in one section or in all; durable on return.

        Without a reason the former one stays.
        """
        before = self._of(owner)
        # "*" covers every section, those that come later included.
        refused = {"*"} if section is None else {*before.refused, section}
        names = ("*",) if "*" in refused else tuple(sorted(refused))
        self._decide(replace(before, allowed=False, refused=names, reason=reason or before.reason))

    def set_limit(self, owner: str, limit: int | None) -> None:
        """Set the bytes that an owner may have, None: as many as others; durable on return."""
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
        # The note is durable before the decision counts.
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
        raise Corruption(
            f"the note {NOTE!r} of the store is not a hosting table: {error}"
        ) from error
    return {one.owner: one for one in found}
