"""Quotas: how much room the data of each owner may take, and which slots had none.

Bytes are counted by `Usage`. A value that would take more room than its owner has is left out of
the merge; a slot that had no room is cut off later values for a minute.

Source: docs/design/foreign-data.md "Room".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from datalattice.cells import Signed, Value, Work, arrivals, same, value_hash
from datalattice.clock import Clock
from datalattice.errors import BadFormat, WorkExceeded
from datalattice.lattice import TOO_COSTLY, EntryDropped, SectionDropped, ValuePath, get_in
from datalattice.sync.lattice.absorption import QUOTA_EXCEEDED, Absorption
from datalattice.sync.lattice.evidence import Evidence
from datalattice.sync.lattice.policy import (
    OwnerRules,
    containers,
    owner_text,
    section_name,
    within,
    without,
)
from datalattice.sync.lattice.usage import RECOUNT_MS, Count, OwnerSlot, Usage

OVER_MAX: Final = 65_536
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


@dataclass(slots=True)
class _Short:
    """A slot that had no room for a value: why, when, and the connections of its senders."""

    text: str
    at_ms: int
    peers: set[str]


class Quotas:
    """The room of all owners on one node, and what is used of it. One thread uses it."""

    def __init__(self, rules: OwnerRules, usage: Usage, clock: Clock, evidence: Evidence) -> None:
        self.usage: Final = usage
        self._rules = rules
        self._clock = clock
        # Branches of forks count for the owner, and are deleted before a value is refused.
        self.evidence: Final = evidence
        self.over: Final[dict[bytes, int]] = {}
        """When each slot last had no room for a value, by its key."""
        self._short: dict[bytes, _Short] = {}  # by the key of a slot
        self._strangers_bytes: int | None = None  # None: to be added up again

    @property
    def strangers_bytes(self) -> int:
        """The bytes of all owners that are neither own nor allowed."""
        if self._strangers_bytes is None:
            self._strangers_bytes = sum(
                count.size_bytes
                for count in self.usage
                if count.slot.owner is not None and not self._rules.is_free(count.slot.owner)
            )
        return self._strangers_bytes

    def is_over(self, slot: OwnerSlot) -> bool:
        """Return whether a slot had no room for a value less than a minute ago."""
        since_ms = self.over.get(slot.key)
        if since_ms is None:
            return False
        if 0 <= self._clock.now_ms() - since_ms < RECOUNT_MS:
            # "Nothing of the slot is fetched for a minute" (docs/node.md, Hosting).
            return True
        del self.over[slot.key]
        return False

    def limit_of(self, slot: OwnerSlot) -> Limit:
        """Return the limit that leaves a slot the least room."""
        policy, owner = self._rules.policy, slot.owner
        if owner is None:
            quota = policy.unsigned_of(slot.section).strangers_bytes
            setting = f"unsigned.{slot.section}.strangers_bytes"
            return Limit(quota, self.usage.used_bytes(slot), setting)
        # An owner's bytes count over all sections, with the branches of its forks.
        here = self.usage.bytes_of(owner) + self.evidence.bytes_of(owner)
        decided = self._rules.table.limit(owner_text(owner))
        own = Limit(policy.owner_bytes, here, "owner_bytes")
        # The operator's limit for one owner replaces that of the policy.
        own = own if decided is None else Limit(decided, here, "hosting limit")
        strangers = Limit(policy.strangers_bytes, self.strangers_bytes, STRANGERS_SETTING)
        return own if own.room <= strangers.room else strangers

    def has_room_for(
        self,
        slot: OwnerSlot,
        root: Value,
        size: int,
        outcome: Absorption,
        senders: Callable[[], Iterable[str]],
    ) -> bool:
        """Return whether a slot has room for `size` bytes more; if not, refuse it for a minute.

        senders: returns the connections that the value comes over.
        """
        limit = self.limit_of(slot)
        # Before data is refused, evidence of the owner's forks is deleted.
        if size > limit.room and slot.owner is not None and self.evidence.release(slot.owner):
            limit = self.limit_of(slot)
        # A count may be too high, since it includes cells that later values no longer have.
        if size > limit.room and slot.owner is not None:
            for value in self._rules.values_of(root, slot):
                self.usage.refresh(slot, value)
            limit = self.limit_of(slot)
        if size <= limit.room:
            return True
        # All are dropped: to find the oldest of many would cost more than to check them again.
        if len(self.over) >= OVER_MAX:
            self.over.clear()
        self.over[slot.key] = self._clock.now_ms()
        self.refuse(slot, limit._replace(used=limit.used + size), outcome, senders())
        return False

    def refuse(
        self, slot: OwnerSlot, limit: Limit, outcome: Absorption, senders: Iterable[str]
    ) -> None:
        """Note that a slot has no room for a value, which came over the connections `senders`."""
        text = limit.text(slot)
        outcome.remark(QUOTA_EXCEEDED, text)
        before = self._short.pop(slot.key, None)
        peers = set() if before is None else before.peers
        peers.update(senders)
        while len(peers) > SHORT_MAX:
            peers.pop()
        self._short[slot.key] = _Short(text, self._clock.now_ms(), peers)
        if len(self._short) > SHORT_MAX:
            del self._short[next(iter(self._short))]

    def short_of(self, peer: str | None = None) -> list[str]:
        """Say which slots lately had no room for values of all peers or one, the latest last."""
        if not self._short:
            return []
        since_ms = self._clock.now_ms() - SHORT_MS
        self._short = {key: one for key, one in self._short.items() if one.at_ms > since_ms}
        return [one.text for one in self._short.values() if peer is None or peer in one.peers]

    def check(
        self,
        root: Value,
        other: Value,
        peer: str,
        outcome: Absorption,
        work: Work | None = None,
        *,
        is_known: bool,
    ) -> QuotaCheck:
        """Return which part of a complete foreign root has room here, and its counts.

        A part that costs more to count than `work` has is left out, and reported.
        """
        made = QuotaCheck(
            self, self._rules, root, other, peer, outcome, work or Work(), bool(self.over)
        )
        areas = self._rules.areas
        if not is_known:
            for path in within(areas.unsigned, other):
                made.weigh_area(made.weigh_unsigned, path, other)
        for path in within(areas.owned, other):
            made.weigh_area(made.weigh_owners, path, other)
        return made

    def taken(self, merged: Value, admitted: QuotaCheck) -> list[Count]:
        """Take over the counts of the values that the merged root has; return them."""
        found: list[Count] = []
        for path, owner, mine, count in admitted.counts:
            present = get_in(merged, (*path, owner))
            if same(present, mine):
                continue  # the merge left the value out
            # A merge with our value is another value than was counted, of about the same size.
            now = count.plus(value_hash(present), (0, 0))
            if self._strangers_bytes is not None:
                self._strangers_bytes += now.size_bytes - self.usage.used_bytes(now.slot)
            # The slot has room after all, so health names it no longer.
            self.usage.take(now)
            self._short.pop(now.slot.key, None)
            found.append(now)
        for path, before, slot, grown in admitted.added:
            if not same(get_in(merged, path), before):
                found.append(self.usage.add(slot, *grown))
                self._short.pop(slot.key, None)
        return found

    def decided(self) -> None:
        """Note that the operator's lists or limits changed."""
        self._strangers_bytes = None
        self.over.clear()
        self._short.clear()

    def inexact(self, root: Value) -> list[tuple[OwnerSlot, Value]]:
        """Return the slots whose counts may be too high, with their values; forget those gone."""
        found: list[tuple[OwnerSlot, Value]] = []
        for count in self.usage:
            slot = count.slot
            values = self._rules.values_of(root, slot)
            if not values:
                self.usage.drop(slot)
            # A count of strangers' data only grows; one with `since` may include removed cells.
            elif slot.owner is None or count.since or count.root != value_hash(values[0]):
                found += [(slot, value) for value in values]
        return found

    def recounted(self, root: Value, counts: list[Count]) -> None:
        """Take over exact counts of the slots that still have the counted values."""
        # What strangers added to an unsigned part is at most what is there.
        for slot in dict.fromkeys(count.slot for count in counts if count.slot.owner is None):
            size = sum(one.size_bytes for one in counts if one.slot == slot)
            cells = sum(one.cells for one in counts if one.slot == slot)
            if size < self.usage.used_bytes(slot):
                self.usage.take(Count(slot, size, cells, b""))
        for count in counts:
            values = self._rules.values_of(root, count.slot)
            if count.slot.owner is not None and values and value_hash(values[0]) == count.root:
                self.usage.take(count)
        self.decided()


@dataclass(slots=True)
class QuotaCheck:
    """Which part of one foreign root has room here.

    value:    the part to be merged; at first all.
    work:     the account that pays for the counting.
    is_short: a part was left out, now or within the last minute.
    counts:   (path, owner, value before, count) of owners' slots, valid once merged.
    added:    (path, value before, slot, (bytes, cells)) of unsigned parts, valid once merged.
    """

    quotas: Quotas
    rules: OwnerRules
    root: Value
    value: Value
    peer: str
    outcome: Absorption
    work: Work
    is_short: bool
    counts: list[tuple[ValuePath, Value, Value, Count]] = field(default_factory=list)
    added: list[tuple[ValuePath, Value, OwnerSlot, tuple[int, int]]] = field(default_factory=list)

    def weigh_area(
        self, weigh: Callable[[ValuePath, Value], None], path: ValuePath, other: Value
    ) -> None:
        """Weigh the part of a foreign root at a path; leave it out if that costs too much."""
        try:
            weigh(path, other)
        except WorkExceeded:
            # The account is used up, so no merge of this path can be paid for.
            self.outcome.remark(TOO_COSTLY, SectionDropped(path, TOO_COSTLY))
            self.leave_out(path[:-1], path[-1])

    def weigh_unsigned(self, path: ValuePath, other: Value) -> None:
        """Weigh the unsigned part at a path, which a stranger sent."""
        mine, theirs = get_in(self.root, path), get_in(other, path)
        if theirs is None or same(mine, theirs):
            return

        def weigh() -> Value:
            slot = OwnerSlot(section_name(path), None)
            limit = self.quotas.limit_of(slot)
            grown = self.quotas.usage.growth(mine, theirs, limit.room, self.work)
            if grown is None:
                self.quotas.refuse(slot, limit, self.outcome, (self.peer,))
                self.leave_out(path[:-1], path[-1])
            else:
                self.added.append((path, mine, slot, grown))
            return None

        self._afford(path[:-1], path[-1], mine, theirs, weigh)

    def weigh_owners(self, path: ValuePath, other: Value) -> None:
        """Weigh what differs in the owners' slots at a path."""
        own, others = containers(self.root, other, path)
        try:
            found = [] if others is None else list(arrivals(own, others, self.work))
        except BadFormat:
            return  # the merge leaves out what cannot be walked, and reports it
        for owner, mine, theirs in found:
            if self.rules.is_free(owner) or not isinstance(theirs, Signed):
                continue

            def weigh(owner: Value = owner, mine: Value = mine, theirs: Signed = theirs) -> Value:
                # A forged cell must not use up the owner's room: the merge drops it.
                self.work.verify(value_hash(theirs))
                if self.rules.is_signed_by(owner, theirs):
                    self._weigh_slot(path, owner, mine, theirs)
                return None

            self._afford(path, owner, mine, theirs, weigh)

    def _weigh_slot(self, path: ValuePath, owner: Value, mine: Value, theirs: Value) -> None:
        quotas, usage, work = self.quotas, self.quotas.usage, self.work
        slot = OwnerSlot(section_name(path), owner)
        before = usage.known(slot, mine)
        limit = quotas.limit_of(slot)
        count = usage.after(slot, mine, theirs, limit.room + before.size_bytes, work)
        # Before data is refused, evidence of the owner's forks is deleted.
        if count is None and quotas.evidence.release(owner):
            limit = quotas.limit_of(slot)
            grown = usage.growth(mine, theirs, limit.room, work)
            if grown is not None:
                count = usage.known(slot, mine).plus(value_hash(theirs), grown)
        if count is not None and count.cells > self.rules.policy.owner_cells:
            limit = Limit(self.rules.policy.owner_cells, limit.used, OWNER_CELLS_SETTING)
            count = None
        if count is None:
            quotas.refuse(slot, limit, self.outcome, (self.peer,))
            self.leave_out(path, owner)
        else:
            self.counts.append((path, owner, mine, count))

    def _afford(
        self, path: ValuePath, key: Value, mine: Value, theirs: Value, weigh: Callable[[], Value]
    ) -> None:
        """Weigh the value at a key of the container at a path; leave it out if that costs too much.

        Raises: WorkExceeded: the account is used up.
        """
        try:
            self.work.attempt(mine, theirs, weigh)
        except WorkExceeded:
            if self.work.left < 0:
                raise
            self.outcome.remark(TOO_COSTLY, EntryDropped((*path, key), TOO_COSTLY))
            self.leave_out(path, key)

    def leave_out(self, path: ValuePath, key: Value) -> None:
        """Leave out the value at a key of the container at a path."""
        self.value = without(self.value, path, key, self.rules.lattice)
        self.is_short = True
