"""Hosting: whose data this node takes, and how much of it.

It is a policy of one node and changes no lattice value: what is refused is cut off a foreign value
before anything of it is fetched, and a value that would take more room than its owner has is left
out of the merge. Own keys are never limited.

Length: the decisions of one node about foreign values; tables, policy and counts stand apart.

Source: docs/design/foreign-data.md "Room".
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import ClassVar, Final, Protocol

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
from datalattice.sync.lattice.delta import Fetch
from datalattice.sync.lattice.forkrecords import Path
from datalattice.sync.lattice.hostingtable import HostingTable
from datalattice.sync.lattice.policy import HostingPolicy
from datalattice.sync.lattice.usage import RECOUNT_MS, Count, OwnerSlot, Usage

DISK_LOW: Final = "disk-low"
"""What a value is counted as that is not taken because the disk is nearly full."""


_OVER_MAX: Final = 65_536

OWNER_CELLS: Final = "owner_cells"
STRANGERS_BYTES: Final = "strangers_bytes"

SHORT_MS: Final = 2 * RECOUNT_MS
"""How long health names a slot that had no room for a value; peers offer it again sooner."""

SHORT_MAX: Final = 1_024
"""Slots that health names for this reason."""


@dataclass(frozen=True, slots=True)
class QuotaExceeded:
    """A value was not taken because there would be more than `quota` bytes, or cells, here."""

    kind: ClassVar[str] = QUOTA_EXCEEDED
    section: str
    owner: str
    """The key in hex, or the name; "" for the unsigned data of strangers."""
    bytes: int
    """What is here already of what the quota is for: of the owner, or of all strangers."""
    quota: int
    setting: str

    def __str__(self) -> str:
        what = f"the data of {self.owner or 'strangers'}"
        if self.setting == OWNER_CELLS:
            what += f" would have more than {self.quota} cells in :{self.section}"
        elif self.setting == STRANGERS_BYTES:
            what += (
                f" in :{self.section} has no room: all strangers have {self.bytes} bytes, and more "
                f"would exceed {self.quota}"
            )
        else:
            what += (
                f" has {self.bytes} bytes, and more in :{self.section} would exceed {self.quota}"
            )
        return f"{what} ({self.setting}); `lattice hosting` shows and changes it"


def owner_text(owner: Value) -> str:
    """Return how people name an owner: a key in hex, a DID or other text as it is."""
    if isinstance(owner, bytes) and len(owner) == PUBLIC_KEY_BYTES:
        return owner.hex()
    return owner if isinstance(owner, str) else to_text(owner)


@dataclass(slots=True)
class _Short:
    """A slot that had no room: when and why, and over which connections the value came."""

    report: QuotaExceeded
    at_ms: int
    peers: set[str]


@dataclass(slots=True)
class Areas:
    """Where a lattice has owners, and where what nobody signs: paths from the root."""

    owned: list[Path] = field(default_factory=list)
    unsigned: list[Path] = field(default_factory=list)

    @classmethod
    def of(cls, lattice: Lattice) -> Areas:
        """Return those of the lattice of a root."""
        areas = cls()
        areas.collect((), lattice)
        return areas

    def collect(self, path: Path, lattice: Lattice) -> None:
        """Add the paths below one, at which this lattice is."""
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
    """Return those of some paths whose section a root has: of a small message, most are not."""
    return [path for path in paths if path[0] in value] if isinstance(value, Index) else []


class OwnersEvidence(Protocol):
    """The evidence of forks that a node keeps."""

    def bytes_of(self, owner: Value) -> int:
        """Return the bytes that are kept for the forks of an owner."""
        ...

    def release(self, owner: Value) -> bool:
        """Let go of them; return whether there were any."""
        ...


class NoEvidence:
    """The evidence of a node that keeps none."""

    def bytes_of(self, owner: Value) -> int:
        """Return 0."""
        return 0

    def release(self, owner: Value) -> bool:
        """Return False."""
        return False


class Hosting:
    """The policy of one node, what its operator decided since, and what is used. One thread's."""

    def __init__(
        self,
        policy: HostingPolicy,
        store: Store,
        lattice: Lattice,
        context: MergeContext,
        fetch: Fetch,
        clock: Clock,
    ) -> None:
        self.policy = policy
        self.table = HostingTable(store.notes, clock)
        self.usage = Usage(store, fetch, clock.now_ms)
        self.wanted: Callable[[], Collection[bytes]] = tuple
        """Returns the keys of the peers that this node wants."""
        self._store = store
        self._lattice = lattice
        self._context = context
        self._areas = Areas.of(lattice)
        self._clock = clock
        self.evidence: OwnersEvidence = NoEvidence()
        """What is kept of forks; it counts for the owner, and goes before a value is refused."""
        self._over: dict[bytes, int] = {}  # key of a slot -> when it had no room for a value
        self._short: dict[bytes, _Short] = {}  # by the key of a slot
        self._acquainted: set[str] = set()
        self._strangers_bytes: int | None = None  # of all their slots, None: to be added up

    def introduce(self, peer: str, *, is_known: bool) -> None:
        """Take note of whether a peer is known: wanted, or allowed."""
        if is_known:
            self._acquainted.add(peer)
        else:
            self._acquainted.discard(peer)

    # --- who ----------------------------------------------------------------------------------

    def is_own(self, owner: Value) -> bool:
        """Return whether a key of this node may sign for an owner."""
        return self._context.signer(owner) is not None

    def is_own_text(self, text: str) -> bool:
        """Return whether people call an owner of this node so."""
        return any(self.is_own(self.owner_of(path, text)) for path in self._areas.owned)

    def is_allowed(self, owner: Value) -> bool:
        """Return whether an owner is on a list of those without limits."""
        text = owner_text(owner)
        return text in self.policy.allow or self.table.is_allowed(text)

    def refuses(self, section: str, owner: Value) -> bool:
        """Return whether the data of an owner is not taken."""
        text = owner_text(owner)
        if self.table.is_forgotten(section, text):
            return True
        if self.is_own(owner) or self.table.is_allowed(text) or text in self.policy.allow:
            return False
        if text in self.policy.refuse:
            return True
        return self.policy.owners == "known" and owner not in self.wanted()

    @property
    def epoch(self) -> object:
        """What the decisions rest on: when it is another one, a value may be cut in another way."""
        wanted = frozenset(self.wanted()) if self.policy.owners == "known" else None
        return self.table.version, wanted

    # --- before a claim -----------------------------------------------------------------------

    def cut(self, value: Value, root: Value, peer: str, work: Work | None = None) -> Value:
        """Return a foreign root without what is refused; where `root` has the same, it may stay.

        Raises: MissingData: an owner's entry cannot be judged before its cell is here.
                WorkExceeded: to look whose data it has costs more than `work` has.
        """
        if not isinstance(value, Index):
            return value
        sections = self.policy.sections
        if sections is not None:
            for key in [key for key, _ in value.entries()]:
                if to_text(key).removeprefix(":") not in sections:
                    value = value.remove(key)
        for path in _within(self._areas.unsigned, value):
            section = section_name(path)
            sender = self.policy.unsigned_of(section).sender
            is_known = peer in self._acquainted
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
        """Yield (path, owner, names) where the other has something else; slots are not loaded."""
        for path in _within(self._areas.owned, other):
            own, theirs = _containers(root, other, path)
            if theirs is None:
                continue
            try:
                found = list(arriving_names(own, theirs, work))
            except BadFormat:
                continue  # as in `_slots`
            for owner, names in found:
                yield path, owner, names

    def limited(
        self, root: Value, other: Value, peer: str, work: Work | None = None
    ) -> list[tuple[OwnerSlot, list[bytes]]]:
        """Return (slot, hashes that lead into it) of what differs in a foreign root and has limits.

        Raises: MissingData: a node of a container that leads there is not here.
                WorkExceeded: to look whose data it has costs more than `work` has.
        """
        found = [
            (OwnerSlot(section_name(path), owner), names)
            for path, owner, names in self._differing(root, other, work)
            if names and not (self.is_own(owner) or self.is_allowed(owner))
        ]
        if peer not in self._acquainted:
            for path in _within(self._areas.unsigned, other):
                own, theirs = _containers(root, other, path[:-1])
                for key, names in () if theirs is None else arriving_names(own, theirs, work):
                    if names and same(key, path[-1]):
                        found.append((OwnerSlot(section_name(path), None), names))
        return found

    def has_room_for(self, slot: OwnerSlot, root: Value, size: int, outcome: Absorption) -> bool:
        """Return whether a slot has room for so many bytes more; if not, it is refused a minute."""
        quota, used, setting = self._limit_of(slot)
        if used + size > quota and slot.owner is not None and self.evidence.release(slot.owner):
            quota, used, setting = self._limit_of(slot)
        if used + size > quota and slot.owner is not None:
            for path in self._areas.owned:
                if section_name(path) == slot.section:
                    self.usage.refreshed(slot, get_in(root, (*path, slot.owner)))
            quota, used, setting = self._limit_of(slot)
        if used + size <= quota:
            return True
        if len(self._over) >= _OVER_MAX:
            self._over.clear()
        self._over[slot.key] = self._clock.now_ms()
        text = "" if slot.owner is None else owner_text(slot.owner)
        report = QuotaExceeded(slot.section, text, used + size, quota, setting)
        self._refuse(slot, report, outcome)
        return False

    def _refuse(self, slot: OwnerSlot, report: QuotaExceeded, outcome: Absorption) -> None:
        """Note that a slot has no room for a value."""
        outcome.remark(QuotaExceeded.kind, str(report))
        before = self._short.pop(slot.key, None)
        peers = set() if before is None else before.peers
        self._short[slot.key] = _Short(report, self._clock.now_ms(), peers)
        if len(self._short) > SHORT_MAX:
            del self._short[next(iter(self._short))]

    def blame(self, slot: OwnerSlot, peers: Iterable[str]) -> None:
        """Note over which connections a value came for which a slot had no room."""
        found = self._short.get(slot.key)
        if found is not None:
            found.peers.update(peers)
            while len(found.peers) > SHORT_MAX:
                found.peers.pop()

    def short_of(self, peer: str | None = None) -> list[str]:
        """Say which slots had no room of late, the latest last: all, or for values of one peer."""
        if not self._short:
            return []
        since_ms = self._clock.now_ms() - SHORT_MS
        self._short = {key: one for key, one in self._short.items() if one.at_ms > since_ms}
        return [
            str(one.report) for one in self._short.values() if peer is None or peer in one.peers
        ]

    def _limit_of(self, slot: OwnerSlot) -> tuple[int, int, str]:
        """Return (quota, bytes used of it, the setting) of the limit that a slot meets first."""
        policy, owner = self.policy, slot.owner
        if owner is None:
            quota = policy.unsigned_of(slot.section).strangers_bytes
            setting = f"unsigned.{slot.section}.strangers_bytes"
            return quota, self.usage.used_bytes(slot), setting
        own_limit = self.table.limit(owner_text(owner))
        here = sum(self.usage.used_bytes(OwnerSlot(name, owner)) for name in self.section_names)
        here += self.evidence.bytes_of(owner)
        limits = (
            (policy.owner_bytes, here, "owner_bytes")
            if own_limit is None
            else (own_limit, here, "hosting limit"),
            (policy.strangers_bytes, self.strangers_bytes(), STRANGERS_BYTES),
        )
        return min(limits, key=lambda one: one[0] - one[1])

    def _slots(
        self, path: Path, root: Value, other: Value, work: Work
    ) -> list[tuple[Value, Value, Value]]:
        """Return (owner, own slot, other's) where the other has something else at a path."""
        own, theirs = _containers(root, other, path)
        if theirs is None:
            return []
        try:
            return list(arrivals(own, theirs, work))
        except BadFormat:
            return []  # the merge leaves out what cannot be walked, and reports it

    # --- before a merge -----------------------------------------------------------------------

    def within(
        self, root: Value, other: Value, peer: str, outcome: Absorption, work: Work | None = None
    ) -> Admitted:
        """Return what of a complete foreign root has room here, and the counts to be taken then.

        What costs more to count than `work` has is left out, and reported.
        """
        work = work or Work()
        admitted = Admitted(other, is_short=bool(self._over))
        for path in _within(self._areas.unsigned, other):
            mine, theirs = get_in(root, path), get_in(other, path)
            if theirs is None or same(mine, theirs) or peer in self._acquainted:
                continue

            def weigh(path: Path = path, mine: Value = mine, theirs: Value = theirs) -> Value:
                self._weigh_unsigned(path, mine, theirs, admitted, outcome, peer, work)
                return None

            try:
                self._afford(path[:-1], path[-1], mine, theirs, weigh, admitted, outcome, work)
            except WorkExceeded:
                self._end(path, admitted, outcome)
        for path in _within(self._areas.owned, other):
            try:
                self._weigh_owners(path, root, other, admitted, peer, outcome, work)
            except WorkExceeded:
                self._end(path, admitted, outcome)
        return admitted

    def _end(self, path: Path, admitted: Admitted, outcome: Absorption) -> None:
        """Leave out all at a path, since the account ended there: nothing is left to merge it."""
        outcome.remark(TOO_COSTLY, SectionDropped(path, TOO_COSTLY))
        admitted.leave_out(path[:-1], path[-1], self._lattice)

    def _weigh_owners(
        self,
        path: Path,
        root: Value,
        other: Value,
        admitted: Admitted,
        peer: str,
        outcome: Absorption,
        work: Work,
    ) -> None:
        """Weigh what differs in the owners' slots at a path.

        Raises: WorkExceeded: the account is at its end.
        """
        for owner, mine, theirs in self._slots(path, root, other, work):
            if self.is_own(owner) or self.is_allowed(owner):
                continue
            # Who is not the owner cannot use up the owner's room.
            if not isinstance(theirs, Signed):
                continue

            def weigh(owner: Value = owner, mine: Value = mine, theirs: Signed = theirs) -> Value:
                work.verify(value_hash(theirs))
                if theirs.verify() and self._context.verify_owner(owner, theirs.public_key):
                    self._weigh(path, owner, mine, theirs, admitted, outcome, peer, work)
                return None

            self._afford(path, owner, mine, theirs, weigh, admitted, outcome, work)

    def _afford(
        self,
        path: Path,
        key: Value,
        mine: Value,
        theirs: Value,
        weigh: Callable[[], Value],
        admitted: Admitted,
        outcome: Absorption,
        work: Work,
    ) -> None:
        """Weigh what is at a key of the container at a path, or leave it out: it costs too much.

        Raises: WorkExceeded: it does, and the account is at its end.
        """
        try:
            work.attempt(mine, theirs, weigh)
        except WorkExceeded:
            if work.left < 0:
                raise
            outcome.remark(TOO_COSTLY, EntryDropped((*path, key), TOO_COSTLY))
            admitted.leave_out(path, key, self._lattice)

    def _weigh(
        self,
        path: tuple[Value, ...],
        owner: Value,
        mine: Value,
        theirs: Value,
        admitted: Admitted,
        outcome: Absorption,
        peer: str,
        work: Work,
    ) -> None:
        policy, usage = self.policy, self.usage
        slot = OwnerSlot(section_name(path), owner)
        text = owner_text(owner)
        before = usage.known(slot, mine).size_bytes
        quota, used, setting = self._limit_of(slot)
        count = usage.after(slot, mine, theirs, quota - used + before, work)
        if count is None and self.evidence.release(owner):
            quota, used, setting = self._limit_of(slot)
            grown = usage.growth(mine, theirs, quota - used, work)
            count = (
                None if grown is None else usage.known(slot, mine).plus(value_hash(theirs), grown)
            )
        if count is not None and count.cells > policy.owner_cells:
            count, quota, setting = None, policy.owner_cells, OWNER_CELLS
        if count is None:
            report = QuotaExceeded(slot.section, text, used, quota, setting)
            self._refuse(slot, report, outcome)
            self.blame(slot, (peer,))
            admitted.leave_out(path, owner, self._lattice)
        else:
            admitted.counts.append((path, owner, mine, count))

    def _weigh_unsigned(
        self,
        path: Path,
        mine: Value,
        theirs: Value,
        admitted: Admitted,
        outcome: Absorption,
        peer: str,
        work: Work,
    ) -> None:
        slot = OwnerSlot(section_name(path), None)
        quota, used, setting = self._limit_of(slot)
        grown = self.usage.growth(mine, theirs, quota - used, work)
        if grown is None:
            report = QuotaExceeded(slot.section, "", used, quota, setting)
            self._refuse(slot, report, outcome)
            self.blame(slot, (peer,))
            admitted.leave_out(path[:-1], path[-1], self._lattice)
        else:
            admitted.added.append((path, mine, slot, grown))

    @property
    def section_names(self) -> list[str]:
        """Names of the sections that have owners."""
        return list(dict.fromkeys(section_name(path) for path in self._areas.owned))

    def strangers_bytes(self) -> int:
        """Return the bytes of all who are neither own nor allowed."""
        if self._strangers_bytes is None:
            self._strangers_bytes = sum(
                count.size_bytes
                for count in self.usage
                if count.slot.owner is not None
                and not self.is_own(count.slot.owner)
                and not self.is_allowed(count.slot.owner)
            )
        return self._strangers_bytes

    def taken(self, merged: Value, admitted: Admitted) -> list[Count]:
        """Take the counts of what was merged, where it is in the merged root; return them."""
        found: list[Count] = []
        for path, owner, mine, count in admitted.counts:
            present = get_in(merged, (*path, owner))
            if same(present, mine):
                continue
            # Joined with own it may be another value, of about the same size.
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
        """Take note that lists or limits changed."""
        self._strangers_bytes = None
        self._over.clear()
        self._short.clear()

    def has_room(self) -> bool:
        """Return whether the disk has room for foreign data."""
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
        """Take note that what was forgotten is not in the root any more."""
        for section, text in self.table.forgotten:
            for path in self._areas.owned:
                if section in (None, section_name(path)):
                    self.usage.drop(OwnerSlot(section_name(path), self.owner_of(path, text)))
        self.decided()

    def owner_of(self, path: tuple[Value, ...], text: str) -> Value:
        """Return the owner that people name so, as it stands in the map of owners at a path."""
        lattice: Lattice | None = self._lattice
        for key in path:
            lattice = None if lattice is None else lattice.child(key)
        return text if lattice is None else lattice.resolve_key(text)

    def slots_of(self, root: Value, text: str) -> list[tuple[tuple[Value, ...], Value, Value]]:
        """Return (path, owner, value) of all that an owner has in a root."""
        found = []
        for path in self._areas.owned:
            owner = self.owner_of(path, text)
            value = get_in(root, (*path, owner))
            if value is not None:
                found.append((path, owner, value))
        return found

    def inexact(self, root: Value) -> list[tuple[OwnerSlot, Value]]:
        """Return the slots whose counts are not exact, with their values; forget those that went.

        What strangers added to unsigned data is known exactly; it is bounded by what is there.
        """
        found: list[tuple[OwnerSlot, Value]] = []
        for count in self.usage:
            slot = count.slot
            values = self._values_of(root, slot)
            if not values:
                self.usage.drop(slot)
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
        """Take exact counts of the slots that have still the values that were counted."""
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
class Admitted:
    """What of a foreign root is merged, and what is to be counted when it was."""

    value: Value
    counts: list[tuple[Path, Value, Value, Count]] = field(default_factory=list)
    added: list[tuple[Path, Value, OwnerSlot, tuple[int, int]]] = field(default_factory=list)
    is_short: bool = False
    """Whether something was left out that had no room just now."""

    def leave_out(self, path: Path, key: Value, lattice: Lattice) -> None:
        """Leave out what is at a key of the container at a path."""
        self.value = _without(self.value, path, key, lattice)
        self.is_short = True


def _containers(root: Value, other: Value, path: Path) -> tuple[Map | Index, Map | Index | None]:
    """Return the containers of two roots at a path; (an empty one, nil) if the other lacks it."""
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
    if path and not len(rest):
        return _without(value, path[:-1], path[-1], lattice)
    return assoc_in(value, path, rest, lattice)
