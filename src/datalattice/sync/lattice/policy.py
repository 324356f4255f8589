"""Policy: whose data a node hosts, by its settings, its operator's decisions, and its own keys.

Own keys are never limited.

Source: docs/design/foreign-data.md "Room".
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import Final

from datalattice.cells import Index, Map, Signed, Value, to_text
from datalattice.clock import Clock
from datalattice.crypto import PUBLIC_KEY_BYTES
from datalattice.errors import Corruption, UsageError
from datalattice.lattice import (
    LOCAL_KEY,
    KeyedLattice,
    Lattice,
    MergeContext,
    OwnerLattice,
    ValuePath,
    assoc_in,
    get_in,
)
from datalattice.store import Notes
from datalattice.sync.lattice.usage import OwnerSlot

SENDERS: Final = ("any", "known", "none")
OWNERS: Final = ("any", "known")

_OWNER_BYTES: Final = 1_000_000_000
OWNER_CELLS: Final = 1_000_000
_STRANGERS_BYTES: Final = 8_000_000_000
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
    owner_bytes: int = _OWNER_BYTES
    owner_cells: int = OWNER_CELLS
    strangers_bytes: int = _STRANGERS_BYTES
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

_NOTE: Final = "hosting"
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
        """Whether nothing is decided."""
        return not self.allowed and self.limit is None and not self.refused


_UNDECIDED: Final = Decision("")


class HostingTable:
    """The decisions of one store, kept durably as JSON in a note."""

    def __init__(self, notes: Notes, clock: Clock) -> None:
        self._notes = notes
        self._clock = clock
        self._decisions = _parse(notes.read(_NOTE))
        self.version = 0
        """Grows with every decision."""
        self.has_refusals = bool(self.forgotten)
        """Whether any owner is refused anywhere."""

    @property
    def decisions(self) -> list[Decision]:
        """All decisions, by owner."""
        return [self._decisions[owner] for owner in sorted(self._decisions)]

    @property
    def forgotten(self) -> list[tuple[str | None, str]]:
        """(section, owner) of all refusals; section None: all sections."""
        return [
            (None if section == "*" else section, one.owner)
            for one in self._decisions.values()
            for section in one.refused
        ]

    def is_allowed(self, owner: str) -> bool:
        """Return whether an owner has no limits."""
        return self._decisions.get(owner, _UNDECIDED).allowed

    def limit(self, owner: str) -> int | None:
        """Return the bytes that an owner may have, None when nothing was decided."""
        return self._decisions.get(owner, _UNDECIDED).limit

    def is_forgotten(self, section: str, owner: str) -> bool:
        """Return whether the data of an owner in a section is refused."""
        refused = self._decisions.get(owner, _UNDECIDED).refused
        return "*" in refused or section in refused

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
        """Set the bytes that an owner may have, None: as the policy says; durable on return."""
        self._decide(replace(self._of(owner), limit=limit))

    def host(self, owner: str) -> None:
        """Take an owner's data again, within its limits; durable on return."""
        self._decide(replace(self._of(owner), refused=(), reason=""))

    def _of(self, owner: str) -> Decision:
        return self._decisions.get(owner, Decision(owner))

    def _decide(self, decision: Decision) -> None:
        decision = replace(decision, since_ms=self._clock.now_ms())
        after = {**self._decisions, decision.owner: decision}
        # An owner about whom nothing is decided any more is under the policy alone.
        if decision.is_empty:
            del after[decision.owner]
        # The note is durable before the decision counts.
        rows = [asdict(after[owner]) for owner in sorted(after)]
        self._notes.write(_NOTE, json.dumps(rows, indent=1) + "\n")
        self._decisions = after
        self.version += 1
        self.has_refusals = bool(self.forgotten)


def _parse(text: str | None) -> dict[str, Decision]:
    """Return the decisions in a note.

    Raises: Corruption: it is not a list of decisions.
    """
    try:
        rows = [] if text is None else json.loads(text)
        found = [Decision(**row | {"refused": tuple(row["refused"])}) for row in rows]
    except (ValueError, TypeError, KeyError) as error:
        raise Corruption(
            f"the note {_NOTE!r} of the store is not a hosting table: {error}"
        ) from error
    return {one.owner: one for one in found}


# --- rules ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class Areas:
    """The paths from the root at which a lattice has owners, and those of its unsigned parts."""

    owned: list[ValuePath] = field(default_factory=list)
    unsigned: list[ValuePath] = field(default_factory=list)

    @classmethod
    def of(cls, lattice: Lattice) -> Areas:
        """Return those of the lattice of a root."""
        areas = cls()
        areas._collect((), lattice)
        return areas

    def _collect(self, path: ValuePath, lattice: Lattice) -> None:
        if isinstance(lattice, KeyedLattice):
            # `:local` never leaves a node, so no foreign value has it.
            for key, child in lattice.children().items():
                if path or key != LOCAL_KEY:
                    self._collect((*path, key), child)
        elif not path:
            return  # a root without sections: no policy applies to it
        elif isinstance(lattice, OwnerLattice):
            self.owned.append(path)
        else:
            self.unsigned.append(path)


class OwnerRules:
    """Whose data this node takes: the policy, what its operator decided since, and its own keys.

    One thread uses it.
    """

    def __init__(
        self, policy: HostingPolicy, table: HostingTable, lattice: Lattice, context: MergeContext
    ) -> None:
        self.policy: Final = policy
        self.table: Final = table
        self.lattice: Final = lattice
        self.areas: Final = Areas.of(lattice)
        self.section_names: Final = tuple(dict.fromkeys(map(section_name, self.areas.owned)))
        """Names of the sections that have owners."""
        self.wanted: Callable[[], Collection[bytes]] = tuple
        """Returns the keys of the peers that this node wants."""
        self._context = context

    @property
    def epoch(self) -> object:
        """The inputs of all decisions: while it is equal, a value is cut in the same way."""
        # The wanted peers decide only where strangers are refused.
        wanted = frozenset(self.wanted()) if self.policy.owners == "known" else None
        return self.table.version, wanted

    @property
    def refuse_any(self) -> bool:
        """Whether the data of any owner is refused."""
        policy = self.policy
        return bool(policy.owners == "known" or policy.refuse or self.table.has_refusals)

    def is_own(self, owner: Value) -> bool:
        """Return whether a key of this node may sign for an owner."""
        return self._context.signer(owner) is not None

    def is_own_text(self, text: str) -> bool:
        """Return whether this text names an owner of this node."""
        return any(self.is_own(self._owner_of(path, text)) for path in self.areas.owned)

    def is_free(self, owner: Value) -> bool:
        """Return whether the data of an owner has no limits: an own key, or an allowed owner."""
        if self.is_own(owner):
            return True
        text = owner_text(owner)
        return text in self.policy.allow or self.table.is_allowed(text)

    def is_signed_by(self, owner: Value, cell: Signed) -> bool:
        """Return whether an owner signed a cell."""
        return cell.verify() and self._context.verify_owner(owner, cell.public_key)

    def refuses(self, section: str, owner: Value) -> bool:
        """Return whether the data of an owner is not taken."""
        text = owner_text(owner)
        # The operator's decision comes first, then own keys, then the lists of the policy.
        if self.table.is_forgotten(section, text):
            return True
        # "Data of own keys has no limit", and neither has that of allowed owners.
        if self.is_free(owner):
            return False
        if text in self.policy.refuse:
            return True
        return self.policy.owners == "known" and owner not in self.wanted()

    def forgotten(self) -> Iterator[tuple[ValuePath, Value]]:
        """Yield (path of the map of owners, owner) of each slot that the operator refuses."""
        for section, text in self.table.forgotten:
            for path in self.areas.owned:
                if section in (None, section_name(path)):
                    yield path, self._owner_of(path, text)

    def slots_of(self, root: Value, text: str) -> list[tuple[ValuePath, Value, Value]]:
        """Return (path, owner, value) of each slot that an owner has in a root."""
        found = []
        for path in self.areas.owned:
            owner = self._owner_of(path, text)
            value = get_in(root, (*path, owner))
            if value is not None:
                found.append((path, owner, value))
        return found

    def values_of(self, root: Value, slot: OwnerSlot) -> list[Value]:
        """Return the values of a slot in a root: all unsigned parts of a section are one slot."""
        areas = self.areas.unsigned if slot.owner is None else self.areas.owned
        below = () if slot.owner is None else (slot.owner,)
        values = [
            get_in(root, (*path, *below)) for path in areas if section_name(path) == slot.section
        ]
        return [value for value in values if value is not None]

    def _owner_of(self, path: ValuePath, text: str) -> Value:
        """Return the owner that this text names, as a key of the map of owners at a path."""
        lattice: Lattice | None = self.lattice
        for key in path:
            lattice = None if lattice is None else lattice.child(key)
        return text if lattice is None else lattice.resolve_key(text)


def owner_text(owner: Value) -> str:
    """Return an owner as text: a key in hex, a DID or other text as it is."""
    if isinstance(owner, bytes) and len(owner) == PUBLIC_KEY_BYTES:
        return owner.hex()
    return owner if isinstance(owner, str) else to_text(owner)


def section_name(path: ValuePath) -> str:
    """Return the name of the section that a path leads into, without its colon."""
    return _name_of(path[0])


@lru_cache(256)
def _name_of(key: Value) -> str:
    return to_text(key).removeprefix(":")


def within(paths: list[ValuePath], value: Value) -> list[ValuePath]:
    """Return the paths whose section a root has."""
    return [path for path in paths if path[0] in value] if isinstance(value, Index) else []


def containers(
    root: Value, other: Value, path: ValuePath
) -> tuple[Map | Index, Map | Index | None]:
    """Return the containers of two roots at a path; (an empty one, None) if the other lacks it."""
    mine, theirs = get_in(root, path), get_in(other, path)
    if not isinstance(theirs, (Map, Index)):
        return Map(), None
    if isinstance(theirs, Map):
        return mine if isinstance(mine, Map) else Map(), theirs
    return mine if isinstance(mine, Index) else Index(), theirs


def without(value: Value, path: ValuePath, key: Value, lattice: Lattice) -> Value:
    """Return a root without a key of the container at a path, and without emptied containers."""
    container = get_in(value, path)
    if not isinstance(container, (Map, Index)) or key not in container:
        return value
    rest = container.remove(key)
    # An empty container goes, too: a root without data has no sections.
    if path and not len(rest):
        return without(value, path[:-1], path[-1], lattice)
    return assoc_in(value, path, rest, lattice)
