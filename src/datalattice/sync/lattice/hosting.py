"""Hosting: whose data this node takes, and how much of it.

It is a policy of one node and changes no lattice value: what is refused is cut off a foreign value
before anything of it is fetched, and a value that would take more room than its owner has is left
out of the merge. Own keys are never limited.

Length: the decisions of one node about foreign values; policy and counts are other modules.

Source: docs/design/foreign-data.md "Room".
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, NamedTuple

from datalattice.cells import (
    Index,
    Map,
    Signed,
    Value,
    Work,
    arrivals,
    arriving_names,
    same,
    to_text,
    value_hash,
)
from datalattice.clock import Clock
from datalattice.crypto import PUBLIC_KEY_BYTES
from datalattice.errors import BadFormat, WorkExceeded
from datalattice.lattice import (
    LOCAL_KEY,
    TOO_COSTLY,
    EntryDropped,
    KeyedLattice,
    Lattice,
    MergeContext,
    OwnerLattice,
    SectionDropped,
    assoc_in,
    get_in,
)
from datalattice.store import Store
from datalattice.sync.lattice.absorption import QUOTA_EXCEEDED, Absorption
from datalattice.sync.lattice.delta import LoadAll
from datalattice.sync.lattice.evidence import Evidence
from datalattice.sync.lattice.forkrecords import Path
from datalattice.sync.lattice.policy import HostingPolicy, HostingTable
from datalattice.sync.lattice.usage import RECOUNT_MS, Count, OwnerSlot, Usage

DISK_LOW: Final = "disk-low"
"""Metric label of values that are not taken because the disk is nearly full."""

_OVER_MAX: Final = 65_536
"""Slots without room that are remembered."""

OWNER_CELLS_SETTING: Final = "owner_cells"
STRANGERS_SETTING: Final = "strangers_bytes"

SHORT_MS: Final = 2 * RECOUNT_MS
"""How long health names a slot that had no room for a value; peers offer values more often."""

SHORT_MAX: Final = 1_024
"""Slots that health names for this reason."""


class Limit(NamedTuple):
    """A quota, the bytes or cells used of it, and the setting that it comes from."""

    quota: int
    used: int
    setting: str

    @property
    def room(self) -> int:
        """What may be added; negative when there is too much already."""
        return self.quota - self.used

    def text(self, slot: OwnerSlot) -> str:
        """Say that a value of a slot was not taken because of this limit."""
        quota, used, setting = self
        what = f"the data of {'strangers' if slot.owner is None else owner_text(slot.owner)}"
        if setting == OWNER_CELLS_SETTING:
            what += f" would have more than {quota} cells in :{slot.section}"
        elif setting == STRANGERS_SETTING:
            what += (
                f" in :{slot.section} has no room: all strangers have {used} bytes, and more "
                f"would exceed {quota}"
            )
        else:
            what += f" has {used} bytes, and more in :{slot.section} would exceed {quota}"
        return f"{what} ({setting}); `lattice hosting` shows and changes it"


def owner_text(owner: Value) -> str:
    """Return an owner as text: a key in hex, a DID or other text as it is."""
    if isinstance(owner, bytes) and len(owner) == PUBLIC_KEY_BYTES:
        return owner.hex()
    return owner if isinstance(owner, str) else to_text(owner)


@dataclass(slots=True)
class _Short:
    """A slot that had no room: when and why, and the connections that the values came over."""

    text: str
    at_ms: int
    peers: set[str]


@dataclass(slots=True)
class Areas:
    """The paths from the root at which a lattice has owners, and those of its unsigned parts."""

    owned: list[Path] = field(default_factory=list)
    unsigned: list[Path] = field(default_factory=list)

    @classmethod
    def of(cls, lattice: Lattice) -> Areas:
        """Return those of the lattice of a root."""
        areas = cls()
        areas.collect((), lattice)
        return areas

    def collect(self, path: Path, lattice: Lattice) -> None:
        """Add the areas of a lattice that is at a path."""
        if isinstance(lattice, KeyedLattice):
            for key, child in lattice.children().items():
                if path or key != LOCAL_KEY:
                    self.collect((*path, key), child)
        elif not path:
            return  # a root without sections: a policy names none of it
        elif isinstance(lattice, OwnerLattice):
            self.owned.append(path)
        else:
            self.unsigned.append(path)


def section_name(path: Path) -> str:
    """Return the name of the section that a path leads into, without its colon."""
    return _name_of(path[0])


@lru_cache(256)
def _name_of(key: Value) -> str:
    return to_text(key).removeprefix(":")


def _within(paths: list[Path], value: Value) -> list[Path]:
    """Return the paths whose section a root has."""
    return [path for path in paths if path[0] in value] if isinstance(value, Index) else []


class Hosting:
    """The policy of one node, what its operator decided since, and what is used.

    One thread uses it.
    """

    def __init__(
        self,
        policy: HostingPolicy,
        store: Store,
        lattice: Lattice,
        context: MergeContext,
        fetch: LoadAll,
        clock: Clock,
        evidence: Evidence,
        is_known: Callable[[str], bool],
    ) -> None:
        self.policy = policy
        self._is_known = is_known  # whether a connection is with a wanted or allowed peer
        self.table = HostingTable(store.notes, clock)
        self.usage = Usage(store, fetch, clock.now_ms)
        self.wanted: Callable[[], Collection[bytes]] = tuple
        """Returns the keys of the peers that this node wants."""
        self._store = store
        self._lattice = lattice
        self._context = context
        self._areas = Areas.of(lattice)
        self.section_names: Final = tuple(dict.fromkeys(map(section_name, self._areas.owned)))
        """Names of the sections that have owners."""
        self._clock = clock
        # Branches of forks count for the owner, and are deleted before a value is refused.
        self.evidence = evidence
        self._over: dict[bytes, int] = {}  # key of a slot -> when it had no room for a value
        self._short: dict[bytes, _Short] = {}  # by the key of a slot
        self._strangers_bytes: int | None = None  # of all their slots, None: to be added up

    # --- who ----------------------------------------------------------------------------------

    def is_own(self, owner: Value) -> bool:
        """Return whether a key of this node may sign for an owner."""
        return self._context.signer(owner) is not None

    def is_own_text(self, text: str) -> bool:
        """Return whether this text names an owner of this node."""
        return any(self.is_own(self.owner_of(path, text)) for path in self._areas.owned)

    def is_allowed(self, owner: Value) -> bool:
        """Return whether an owner is on a list of owners without limits."""
        text = owner_text(owner)
        return text in self.policy.allow or self.table.is_allowed(text)

    def refuses(self, section: str, owner: Value) -> bool:
        """Return whether the data of an owner is not taken."""
        text = owner_text(owner)
        # The operator's decision comes first, then own keys, then the lists of the policy.
        if self.table.is_forgotten(section, text):
            return True
        if self.is_own(owner) or self.table.is_allowed(text) or text in self.policy.allow:
            return False
        if text in self.policy.refuse:
            return True
        return self.policy.owners == "known" and owner not in self.wanted()

    @property
    def epoch(self) -> object:
        """What the decisions rest on: while it is equal, a value is cut in the same way."""
        wanted = frozenset(self.wanted()) if self.policy.owners == "known" else None
        return self.table.version, wanted

    # --- before a claim -----------------------------------------------------------------------

    def cut(self, value: Value, root: Value, peer: str, work: Work | None = None) -> Value:
        """Return a foreign root without what is refused. What `root` has already may stay.

        Raises: MissingData: an owner's entry cannot be judged before its cell is here.
                WorkExceeded: to find out whose data it has costs more than `work` has.
        """
        if not isinstance(value, Index):
            return value
        sections = self.policy.sections
        # All sections that the policy does not name are cut, also those that are unknown here.
        if sections is not None:
            for key in [key for key, _ in value.entries()]:
                if to_text(key).removeprefix(":") not in sections:
                    value = value.remove(key)
        for path in _within(self._areas.unsigned, value):
            section = section_name(path)
            sender = self.policy.unsigned_of(section).sender
            is_known = self._is_known(peer)
            is_over = not is_known and self._is_over(OwnerSlot(section, None))
            if sender == "none" or (sender == "known" and not is_known) or is_over:
                value = _without(value, path[:-1], path[-1], self._lattice)
        if self._has_rules or self._over:
            for path, owner, _ in list(self._differing(root, value, work)):
                slot = OwnerSlot(section_name(path), owner)
                if self.refuses(slot.section, owner) or self._is_over(slot):
                    value = _without(value, path, owner, self._lattice)
        return value

    def cut_off(self, value: Value, root: Value, peer: str) -> list[str]:
        """Name what `cut` leaves out of a foreign root.

        Raises: MissingData: as `cut`.
        """
        left = self.cut(value, root, peer)
        if left is value:
            return []
        paths = [
            path
            for path in self._areas.unsigned
            if get_in(value, path) is not None and get_in(left, path) is None
        ]
        paths += [(*path, owner) for path, owner, _ in self._differing(left, value, None)]
        return [" ".join(map(owner_text, path)) for path in paths]

    @property
    def _has_rules(self) -> bool:
        policy = self.policy
        return bool(policy.owners == "known" or policy.refuse or self.table.has_refusals)

    def _is_over(self, slot: OwnerSlot) -> bool:
        """Return whether a slot had no room for a value less than a minute ago."""
        if not self._over:
            return False
        since_ms = self._over.get(slot.key)
        if since_ms is None:
            return False
        if 0 <= self._clock.now_ms() - since_ms < RECOUNT_MS:
            return True
        del self._over[slot.key]
        return False

    def _differing(
        self, root: Value, other: Value, work: Work | None
    ) -> Iterator[tuple[Path, Value, list[bytes]]]:
        """Yield (path, owner, names) where the other differs; slots are not loaded."""
        for path in _within(self._areas.owned, other):
            own, theirs = _containers(root, other, path)
            if theirs is None:
                continue
            try:
                found = list(arriving_names(own, theirs, work))
            except BadFormat:
                continue  # the merge leaves out what cannot be walked, and reports it
            for owner, names in found:
                yield path, owner, names

    def limited(
        self, root: Value, other: Value, peer: str, work: Work | None = None
    ) -> list[tuple[OwnerSlot, list[bytes]]]:
        """Return (slot, hashes that lead into it) of what differs in a foreign root and is limited.

        Raises: MissingData: a node of a container that leads there is not here.
                WorkExceeded: to find out whose data it has costs more than `work` has.
        """
        found = [
            (OwnerSlot(section_name(path), owner), names)
            for path, owner, names in self._differing(root, other, work)
            if names and not (self.is_own(owner) or self.is_allowed(owner))
        ]
        if not self._is_known(peer):
            for path in _within(self._areas.unsigned, other):
                # An unsigned part has no owner; all that strangers add to it has one limit.
                own, theirs = _containers(root, other, path[:-1])
                for key, names in () if theirs is None else arriving_names(own, theirs, work):
                    if names and same(key, path[-1]):
                        found.append((OwnerSlot(section_name(path), None), names))
        return found

    def has_room_for(self, slot: OwnerSlot, root: Value, size: int, outcome: Absorption) -> bool:
        """Return whether a slot has room for `size` bytes more; if not, refuse it for a minute."""
        limit = self.limit_of(slot)
        # Before data is refused, evidence of the owner's forks is deleted.
        if size > limit.room and slot.owner is not None and self.evidence.release(slot.owner):
            limit = self.limit_of(slot)
        # A count may be too high, since it still has what later values left out.
        if size > limit.room and slot.owner is not None:
            for path in self._areas.owned:
                if section_name(path) == slot.section:
                    self.usage.refresh(slot, get_in(root, (*path, slot.owner)))
            limit = self.limit_of(slot)
        if size <= limit.room:
            return True
        # All at once: to find the oldest of many would cost more than it saves.
        if len(self._over) >= _OVER_MAX:
            self._over.clear()
        self._over[slot.key] = self._clock.now_ms()
        self.refuse(slot, limit._replace(used=limit.used + size), outcome)
        return False

    def refuse(
        self, slot: OwnerSlot, limit: Limit, outcome: Absorption, peer: str | None = None
    ) -> None:
        """Note that a slot has no room for a value, which `peer` sent if it is given."""
        text = limit.text(slot)
        outcome.remark(QUOTA_EXCEEDED, text)
        before = self._short.pop(slot.key, None)
        peers = set() if before is None else before.peers
        self._short[slot.key] = _Short(text, self._clock.now_ms(), peers)
        if len(self._short) > SHORT_MAX:
            del self._short[next(iter(self._short))]
        if peer is not None:
            self.blame(slot, (peer,))

    def blame(self, slot: OwnerSlot, peers: Iterable[str]) -> None:
        """Note the connections that a value came over for which a slot had no room."""
        found = self._short.get(slot.key)
        if found is not None:
            found.peers.update(peers)
            while len(found.peers) > SHORT_MAX:
                found.peers.pop()

    def short_of(self, peer: str | None = None) -> list[str]:
        """Describe the slots that had no room of late, latest last: all, or those of one peer."""
        if not self._short:
            return []
        since_ms = self._clock.now_ms() - SHORT_MS
        self._short = {key: one for key, one in self._short.items() if one.at_ms > since_ms}
        return [one.text for one in self._short.values() if peer is None or peer in one.peers]

    def limit_of(self, slot: OwnerSlot) -> Limit:
        """Return the limit that leaves a slot the least room."""
        policy, owner = self.policy, slot.owner
        if owner is None:
            quota = policy.unsigned_of(slot.section).strangers_bytes
            setting = f"unsigned.{slot.section}.strangers_bytes"
            return Limit(quota, self.usage.used_bytes(slot), setting)
        # An owner's bytes count over all sections, with the branches of its forks.
        here = sum(self.usage.used_bytes(OwnerSlot(name, owner)) for name in self.section_names)
        here += self.evidence.bytes_of(owner)
        decided = self.table.limit(owner_text(owner))
        own = Limit(policy.owner_bytes, here, "owner_bytes")
        own = own if decided is None else Limit(decided, here, "hosting limit")
        strangers = Limit(policy.strangers_bytes, self.strangers_bytes(), STRANGERS_SETTING)
        return own if own.room <= strangers.room else strangers

    # --- before a merge -----------------------------------------------------------------------

    def within(
        self, root: Value, other: Value, peer: str, outcome: Absorption, work: Work | None = None
    ) -> QuotaCheck:
        """Return what of a complete foreign root has room here, and the counts to be taken then.

        What costs more to count than `work` has is left out, and reported.
        """
        made = QuotaCheck(
            self, self._lattice, root, other, peer, outcome, work or Work(), bool(self._over)
        )
        if not self._is_known(peer):
            for path in _within(self._areas.unsigned, other):
                made.weigh_area(made.weigh_unsigned, path, other)
        for path in _within(self._areas.owned, other):
            made.weigh_area(made.weigh_owners, path, other)
        return made

    def is_signed_by(self, owner: Value, cell: Signed) -> bool:
        """Return whether an owner signed a cell."""
        return cell.verify() and self._context.verify_owner(owner, cell.public_key)

    def strangers_bytes(self) -> int:
        """Return the bytes of all owners that are neither own nor allowed."""
        if self._strangers_bytes is None:
            self._strangers_bytes = sum(
                count.size_bytes
                for count in self.usage
                if count.slot.owner is not None
                and not self.is_own(count.slot.owner)
                and not self.is_allowed(count.slot.owner)
            )
        return self._strangers_bytes

    def taken(self, merged: Value, admitted: QuotaCheck) -> list[Count]:
        """Take over the counts of what is in the merged root; return them."""
        found: list[Count] = []
        for path, owner, mine, count in admitted.counts:
            present = get_in(merged, (*path, owner))
            if same(present, mine):
                continue  # the merge left the value out
            # A join with own is another value than was counted, of about the same size.
            now = count.plus(value_hash(present), (0, 0))
            if self._strangers_bytes is not None:
                self._strangers_bytes += now.size_bytes - self.usage.used_bytes(now.slot)
            self.usage.take(now)
            self._short.pop(now.slot.key, None)
            found.append(now)
        for path, before, slot, grown in admitted.added:
            if not same(get_in(merged, path), before):
                found.append(self.usage.add(slot, *grown))
                self._short.pop(slot.key, None)
        return found

    # --- by the operator ----------------------------------------------------------------------

    def decided(self) -> None:
        """Note that lists or limits changed."""
        self._strangers_bytes = None
        self._over.clear()
        self._short.clear()

    def has_room(self) -> bool:
        """Return whether the disk has room for foreign data."""
        # A memory store has no disk, and so no bound.
        free = self._store.free_bytes()
        return free is None or free >= self.policy.reserve_bytes

    def without_forgotten(self, value: Value) -> Value:
        """Return a root without the slots that the operator had forgotten."""
        for section, text in self.table.forgotten:
            for path in self._areas.owned:
                if section in (None, section_name(path)):
                    owner = self.owner_of(path, text)
                    if get_in(value, (*path, owner)) is not None:
                        value = _without(value, path, owner, self._lattice)
        return value

    def released(self) -> None:
        """Note that the root is now without what the operator had forgotten."""
        for section, text in self.table.forgotten:
            for path in self._areas.owned:
                if section in (None, section_name(path)):
                    self.usage.drop(OwnerSlot(section_name(path), self.owner_of(path, text)))
        self.decided()

    def owner_of(self, path: tuple[Value, ...], text: str) -> Value:
        """Return the owner that this text names, as a key of the map of owners at a path."""
        lattice: Lattice | None = self._lattice
        for key in path:
            lattice = None if lattice is None else lattice.child(key)
        return text if lattice is None else lattice.resolve_key(text)

    def slots_of(self, root: Value, text: str) -> list[tuple[tuple[Value, ...], Value, Value]]:
        """Return (path, owner, value) of each slot that an owner has in a root."""
        found = []
        for path in self._areas.owned:
            owner = self.owner_of(path, text)
            value = get_in(root, (*path, owner))
            if value is not None:
                found.append((path, owner, value))
        return found

    def inexact(self, root: Value) -> list[tuple[OwnerSlot, Value]]:
        """Return the slots whose counts may be too high, with their values; forget those gone."""
        found: list[tuple[OwnerSlot, Value]] = []
        for count in self.usage:
            slot = count.slot
            values = self._values_of(root, slot)
            if not values:
                self.usage.drop(slot)
            # A count of strangers' data only grows, and one with `since` has what values left out.
            elif slot.owner is None or count.since or count.root != value_hash(values[0]):
                found += [(slot, value) for value in values]
        return found

    def _values_of(self, root: Value, slot: OwnerSlot) -> list[Value]:
        areas = self._areas.unsigned if slot.owner is None else self._areas.owned
        below = () if slot.owner is None else (slot.owner,)
        values = [
            get_in(root, (*path, *below)) for path in areas if section_name(path) == slot.section
        ]
        return [value for value in values if value is not None]

    def recounted(self, root: Value, counts: list[Count]) -> None:
        """Take over exact counts of the slots that still have the counted values."""
        # What strangers added to an unsigned part is at most what is there.

        for slot in dict.fromkeys(count.slot for count in counts if count.slot.owner is None):
            size = sum(one.size_bytes for one in counts if one.slot == slot)
            cells = sum(one.cells for one in counts if one.slot == slot)
            if size < self.usage.used_bytes(slot):
                self.usage.take(Count(slot, size, cells, b""))
        for count in counts:
            values = self._values_of(root, count.slot)
            if count.slot.owner is not None and values and value_hash(values[0]) == count.root:
                self.usage.take(count)
        self.decided()


@dataclass(slots=True)
class QuotaCheck:
    """What of one foreign root has room here.

    value:    what is merged of it; at first all.
    work:     the account that pays for the counting.
    is_short: something was left out that had no room just now.
    counts:   (path, owner, value before, count) of owners' slots, to be taken once merged.
    added:    (path, value before, slot, (bytes, cells)) of unsigned parts, likewise.
    """

    hosting: Hosting
    lattice: Lattice
    root: Value
    value: Value
    peer: str
    outcome: Absorption
    work: Work
    is_short: bool
    counts: list[tuple[Path, Value, Value, Count]] = field(default_factory=list)
    added: list[tuple[Path, Value, OwnerSlot, tuple[int, int]]] = field(default_factory=list)

    def weigh_area(self, weigh: Callable[[Path, Value], None], path: Path, other: Value) -> None:
        """Weigh all that a foreign root has at a path."""
        try:
            weigh(path, other)
        except WorkExceeded:
            # The account is at its end, so nothing is left to merge any of it.
            self.outcome.remark(TOO_COSTLY, SectionDropped(path, TOO_COSTLY))
            self.leave_out(path[:-1], path[-1])

    def weigh_unsigned(self, path: Path, other: Value) -> None:
        """Weigh the unsigned part at a path, which a stranger sent."""
        mine, theirs = get_in(self.root, path), get_in(other, path)
        if theirs is None or same(mine, theirs):
            return

        def weigh() -> Value:
            slot = OwnerSlot(section_name(path), None)
            limit = self.hosting.limit_of(slot)
            grown = self.hosting.usage.growth(mine, theirs, limit.room, self.work)
            if grown is None:
                self.hosting.refuse(slot, limit, self.outcome, self.peer)
                self.leave_out(path[:-1], path[-1])
            else:
                self.added.append((path, mine, slot, grown))
            return None

        self._afford(path[:-1], path[-1], mine, theirs, weigh)

    def weigh_owners(self, path: Path, other: Value) -> None:
        """Weigh what differs in the owners' slots at a path."""
        own, others = _containers(self.root, other, path)
        try:
            found = [] if others is None else list(arrivals(own, others, self.work))
        except BadFormat:
            return  # the merge leaves out what cannot be walked, and reports it
        for owner, mine, theirs in found:
            is_free = self.hosting.is_own(owner) or self.hosting.is_allowed(owner)
            if is_free or not isinstance(theirs, Signed):
                continue

            def weigh(owner: Value = owner, mine: Value = mine, theirs: Signed = theirs) -> Value:
                # A forged cell must not use up the owner's room: the merge drops it.
                self.work.verify(value_hash(theirs))
                if self.hosting.is_signed_by(owner, theirs):
                    self._weigh_slot(path, owner, mine, theirs)
                return None

            self._afford(path, owner, mine, theirs, weigh)

    def _weigh_slot(self, path: Path, owner: Value, mine: Value, theirs: Value) -> None:
        hosting, usage, work = self.hosting, self.hosting.usage, self.work
        slot = OwnerSlot(section_name(path), owner)
        before = usage.known(slot, mine)
        limit = hosting.limit_of(slot)
        count = usage.after(slot, mine, theirs, limit.room + before.size_bytes, work)
        # Before data is refused, evidence of the owner's forks is deleted.
        if count is None and hosting.evidence.release(owner):
            limit = hosting.limit_of(slot)
            grown = usage.growth(mine, theirs, limit.room, work)
            if grown is not None:
                count = usage.known(slot, mine).plus(value_hash(theirs), grown)
        if count is not None and count.cells > hosting.policy.owner_cells:
            limit = Limit(hosting.policy.owner_cells, limit.used, OWNER_CELLS_SETTING)
            count = None
        if count is None:
            hosting.refuse(slot, limit, self.outcome, self.peer)
            self.leave_out(path, owner)
        else:
            self.counts.append((path, owner, mine, count))

    def _afford(
        self, path: Path, key: Value, mine: Value, theirs: Value, weigh: Callable[[], Value]
    ) -> None:
        """Weigh what is at a key of the container at a path, or leave it out: it costs too much.

        Raises: WorkExceeded: it does, and the account is at its end.
        """
        try:
            self.work.attempt(mine, theirs, weigh)
        except WorkExceeded:
            if self.work.left < 0:
                raise
            self.outcome.remark(TOO_COSTLY, EntryDropped((*path, key), TOO_COSTLY))
            self.leave_out(path, key)

    def leave_out(self, path: Path, key: Value) -> None:
        """Leave out what is at a key of the container at a path."""
        self.value = _without(self.value, path, key, self.lattice)
        self.is_short = True


def _containers(root: Value, other: Value, path: Path) -> tuple[Map | Index, Map | Index | None]:
    """Return the containers of two roots at a path; (an empty one, None) if the other lacks it."""
    mine, theirs = get_in(root, path), get_in(other, path)
    if not isinstance(theirs, (Map, Index)):
        return Map(), None
    if isinstance(theirs, Map):
        return mine if isinstance(mine, Map) else Map(), theirs
    return mine if isinstance(mine, Index) else Index(), theirs


def _without(value: Value, path: tuple[Value, ...], key: Value, lattice: Lattice) -> Value:
    """Return a root without what is at a key of the container at a path, nor an empty container."""
    container = get_in(value, path)
    if not isinstance(container, (Map, Index)) or key not in container:
        return value
    rest = container.remove(key)
    # An empty container goes, too: a root without data has no sections.
    if path and not len(rest):
        return _without(value, path[:-1], path[-1], lattice)
    return assoc_in(value, path, rest, lattice)
