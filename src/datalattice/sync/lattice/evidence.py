"""Evidence: the branches of forked slots that this node did not choose, kept until they are joined.

They are stored under `:forks` of the node's own `:local` slot: part of the root, so they survive
restarts and collections, and never announced. It is a Map with `:timestamp` (the registers of
`:local` are last-write-wins), `:records`, an Index from fork id to a record, and `:dropped`, the
ids of records that the operator dropped.

Length: what is kept of each slot, and the comparisons that decide it.

Source: docs/design/forks.md "Evidence".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

from datalattice.apps.queue import QUEUE_SECTION, is_appended, read_state
from datalattice.cells import (
    EMPTY_INDEX,
    EMPTY_MAP,
    Index,
    Map,
    Signed,
    Value,
    Vector,
    Work,
    same,
    value_hash,
)
from datalattice.clock import Clock
from datalattice.errors import BadSignature, MissingData, WorkExceeded
from datalattice.lattice import (
    LOCAL_KEY,
    LOG_BRANCH,
    TIMESTAMP,
    DIDVerifier,
    Lattice,
    MergeContext,
    MergeNotice,
    OwnerForked,
    SignedLattice,
    ValuePath,
    Walk,
    as_integer,
    discard,
    get_in,
    is_greater,
    local_value,
    set_local,
    slot_changes,
)
from datalattice.sync.lattice.delta import LoadAll, growth
from datalattice.sync.lattice.forkrecords import (
    DROPPED,
    FORKS_KEY,
    RECORDS,
    ForkRecord,
    fork_id,
    losses_of,
    partition_of_slot,
    stored_forks,
)

_MINUTE_MS: Final = 60_000
COMPARING_TICKS_MAX: Final = 64_000
"""Ticks that one message may have spent when the last comparison of its branches begins."""


@dataclass(frozen=True, slots=True)
class EvidenceLimits:
    """How much evidence a node keeps. A fork costs its owner no more than two signatures.

    records_per_slot: beyond it the least in the order goes, never one of the first two.
    bytes_per_owner:  of cells that only the losing branches have; likewise. A single branch that
                      is larger is kept as its signature and hash only.
    records, bytes:   of the node; beyond, records of the owner with most bytes go, never those of
                      watched owners.
    dropped:          ids of dropped records that are remembered, so that a replay brings none back.
    forks_per_minute: of one slot that are examined; the order alone decides further ones.
    own_records_per_slot: of an owner whose key is here. All its forks are examined, and its records
                      may take all `bytes`: a clone of this node may fork as often as it writes, and
                      each branch may have acknowledged records.
    """

    records_per_slot: int = 8
    own_records_per_slot: int = 256
    bytes_per_owner: int = 16 * 1024 * 1024
    records: int = 1_024
    bytes: int = 256 * 1024 * 1024
    dropped: int = 1_024
    forks_per_minute: int = 60


@dataclass(slots=True)
class _OfOwner:
    """The records of one owner, and the bytes of cells that only their branches have."""

    is_watched: bool
    records: dict[bytes, ForkRecord] = field(default_factory=dict)
    size: int = 0


class Evidence:
    """The evidence of one node: brought up to date with every commit of its root."""

    def __init__(
        self,
        lattice: Lattice,
        context: MergeContext,
        fetch: LoadAll,
        clock: Clock,
        limits: EvidenceLimits | None = None,
        watched: Callable[[Value], bool] | None = None,
    ) -> None:
        self._lattice = lattice
        self._context = context
        self._fetch = fetch
        self._clock = clock
        self._limits = limits or EvidenceLimits()
        self._watched = watched
        self._key_pair = context.key_pair
        # Evidence is signed into `:local`, which takes an identity.
        self.can_keep: Final = context.key_pair is not None and lattice.child(LOCAL_KEY) is not None
        self.records: dict[bytes, ForkRecord] = {}
        """What is kept, by id; for the thread that owns the replica."""
        self.open: tuple[ForkRecord, ...] = ()
        """The same as of the last commit, for any thread."""
        self.seen_count = 0
        """Forks met so far, kept or not."""
        self.skipped_count = 0
        """Forks that were not examined, since their slot had too many."""
        self.unpaid: list[OwnerForked] = []
        """Forks that the last message did not pay for: another one may."""
        self.evicted_count = 0
        """Records that were deleted because there were too many."""
        self.size_bytes = 0
        """Bytes of cells that only the kept branches have."""
        self._slots: dict[bytes, dict[bytes, ForkRecord]] = {}  # path hash -> records by id
        self._owners: dict[bytes, _OfOwner] = {}  # by the hash of the owner
        self._settled: Value = None  # the root that the records were last compared with
        self._fresh: dict[bytes, ForkRecord] = {}  # records that were put since, by id
        self._cells: Index = EMPTY_INDEX  # the records as they are stored
        self._dropped: tuple[bytes, ...] = ()
        self._checked: dict[bytes, bytes] = {}  # id -> hash of the slot it was last compared with
        self._apart: dict[bytes, bytes] = {}  # id -> hash of that slot, if it lacks the branch
        self._examined: dict[bytes, tuple[int, int]] = {}  # path hash -> (minute, forks in it)
        self._is_new = False  # there is something to be written
        self._branches: Final = Branches(lattice, context)

    def load(self, root: Value) -> None:
        """Read the evidence in a root, after a start."""
        if self._key_pair is None or not self.can_keep:
            return
        try:
            found, self._dropped = stored_forks(root, self._key_pair.public_key)
        # Not our own slot: nothing in it is believed.
        except BadSignature:
            return
        for record in found.values():
            self._put(record)
        self._is_new, self._settled = False, root  # they are compared at the first commit
        self.open = tuple(self.records.values())

    def bring_up(
        self, root: Value, forks: Sequence[OwnerForked], work: Work | None = None
    ) -> Value:
        """Return the root to be committed, with the evidence of what its slots leave out.

        work: the account of the message that made the root, a new one when there is none. It pays
              for the comparisons of branches, each fork having an equal share of what is left,
              except for owners whose keys are here.
        Cost: the slots that changed since the last call; a merge for each fork and record of its
              slot.
        """
        # Nearly every commit: no fork was met and none is kept.
        if not forks and not self.records and not self._is_new:
            self._settled, self.unpaid = root, []
            return root  # no branch is kept, so no commit can make one obsolete
        work = Work() if work is None else work
        branches = self._branches
        branches.work = work
        # The messages that brought the evidence earned work for it then, so reading it again earns
        # none.
        account = min(max(work.left, 0), COMPARING_TICKS_MAX)
        self.unpaid = []
        for fork in forks:
            branches.spent_max = work.spent + account // len(forks)
            self.seen_count += 1
            if not (self.can_keep and self._may_examine(fork)):
                continue
            try:
                self._add(fork)
            except WorkExceeded:  # the order alone has decided; another message may pay
                self.skipped_count += 1
                self.unpaid.append(fork)
        branches.spent_max = work.spent + account
        added = list(self._fresh.values())
        self._settle(root)
        self._bound(added)
        return self._written(root) if self._is_new or not self._is_stored(root) else root

    def drop(self, root: Value, ids: Sequence[bytes]) -> Value:
        """Return the root without some records; their ids are remembered."""
        # The ids are remembered, so that a replayed fork does not come back.
        gone = [id for id in ids if id in self.records]
        for id in gone:
            self._take(id)
        self._dropped = (*self._dropped, *gone)[-self._limits.dropped :]
        return self._written(root) if gone else root

    def is_mine(self, owner: Value) -> bool:
        """Return whether a key of this node may sign for an owner."""
        return self._context.signer(owner) is not None

    def is_watched(self, owner: Value) -> bool:
        """Return whether forks of an owner concern this node: its own, and those it watches."""
        return self.is_mine(owner) or (self._watched is not None and self._watched(owner))

    def bytes_of(self, owner: Value) -> int:
        """Return the bytes of cells that only the kept branches of an owner have."""
        found = self._owners.get(value_hash(owner)) if self._owners else None
        return 0 if found is None else found.size

    def release(self, owner: Value) -> bool:
        """Delete all branches of an owner to make room; return whether there were any.

        The next committed root is without them.
        """
        found = self._owners.get(value_hash(owner))
        if found is None:
            return False
        for record in list(found.records.values()):
            self._evict_one(record)
        return True

    # --- what is kept ---------------------------------------------------------------------------

    def _put(self, record: ForkRecord) -> None:
        if record.id in self.records:
            self._take(record.id)
        self.records[record.id] = self._fresh[record.id] = record
        self._slots.setdefault(_path_hash(record.path), {})[record.id] = record
        key = value_hash(record.owner)
        of_owner = self._owners.get(key)
        if of_owner is None:
            of_owner = _OfOwner(self.is_watched(record.owner))
            self._owners[key] = of_owner
        of_owner.records[record.id] = record
        of_owner.size += max(record.bytes, 0)
        self.size_bytes += max(record.bytes, 0)
        self._cells = self._cells.put(record.id, record.cell())
        self._is_new = True

    def _take(self, id: bytes) -> None:
        record = self.records.pop(id)
        slot = self._slots[_path_hash(record.path)]
        del slot[id]
        if not slot:
            del self._slots[_path_hash(record.path)]
        key = value_hash(record.owner)
        of_owner = self._owners[key]
        del of_owner.records[id]
        of_owner.size -= max(record.bytes, 0)
        self.size_bytes -= max(record.bytes, 0)
        if not of_owner.records:
            del self._owners[key]
        self._fresh.pop(id, None)
        self._checked.pop(id, None)
        self._apart.pop(id, None)
        self._cells = self._cells.remove(id)
        self._is_new = True

    def _may_examine(self, fork: OwnerForked) -> bool:
        """Count a fork of a slot; return whether it is compared."""
        # "Forks of a slot examined: 60 a minute", of one's own all.
        if self.is_mine(fork.owner):
            return True
        minute = self._clock.now_ms() // _MINUTE_MS
        key = _path_hash(fork.path)
        since, count = self._examined.get(key, (minute, 0))
        if since != minute:
            self._examined = {k: v for k, v in self._examined.items() if v[0] == minute}
            count = 0
        self._examined[key] = (minute, count + 1)
        if count >= self._limits.forks_per_minute:
            self.skipped_count += 1
            return False
        return True

    def _add(self, fork: OwnerForked) -> None:
        winner, loser = fork.kept, fork.other
        if not isinstance(winner, Signed) or not isinstance(loser, Signed):
            return
        id = fork_id(fork.path, loser)
        # "A replay does not bring it back" (docs/node.md, Forks).
        if id in self._dropped or id in self.records:
            return
        # "A branch that writes on is one record": a later cell of it replaces the earlier ones.
        earlier: list[bytes] = []
        for other in self._slots.get(_path_hash(fork.path), {}).values():
            if other.loser is None or self._apart.get(other.id) == value_hash(loser):
                continue  # compared before, while this cell was in the slot
            kept, left = self._branches.joined(fork.path, fork.owner, other.loser, loser)
            if left is None and kept is not loser:
                return
            if left is None:
                earlier.append(other.id)
        for one in earlier:
            self._take(one)
        # A branch with more bytes of its own than an owner may have is kept as its proof alone.
        bytes_max = self._bytes_max(fork.owner)
        size = growth(winner, loser, self._fetch, bytes_max)
        proof: Value = None
        if size is None:
            proof = Vector.of((loser.public_key, loser.signature, value_hash(loser.value)))
        self._put(
            ForkRecord(
                id,
                fork.path,
                fork.owner,
                fork.branch,
                winner,
                None if size is None else loser,
                losses_of(fork),
                self._clock.now_ms(),
                -bytes_max if size is None else size[0],
                proof,
            )
        )

    def _settle(self, root: Value) -> None:
        """Delete the records whose branch is contained in its slot by now."""
        former, self._settled = self._settled, root
        if not self.records:
            return
        found, self._fresh = self._fresh, {}
        changes: dict[bytes, SlotChange] = {}  # by the id of a record
        try:
            for path, before, _ in slot_changes(former, root):
                of_slot = self._slots.get(_path_hash(path))
                if of_slot is not None:
                    found |= of_slot
                    changes.update(dict.fromkeys(of_slot, SlotChange(before)))
        except MissingData:
            found = dict(self.records)  # the former root was collected
        for record in found.values():
            slot = get_in(root, record.path)
            if not isinstance(slot, Signed) or record.loser is None:
                continue
            hash = value_hash(slot)
            # "Branches of a forked slot are compared once" with each value of the slot.
            if self._checked.get(record.id) == hash:
                continue
            change = changes.get(record.id)
            with suppress(WorkExceeded):  # the record stays until a message pays
                self._compare(record, slot, change)
            if record.id in self.records:
                self._checked[record.id] = hash

    def _compare(self, record: ForkRecord, slot: Signed, change: SlotChange | None) -> None:
        """Delete a record if its slot contains its branch by now, else note how it is left out."""
        loser = record.loser
        assert loser is not None
        # The order is total: what is above the cell that a branch lost to is above the branch.
        lost_to = value_hash(loser), self._apart.get(record.id)
        # Only a branch at or below the former cell is below the greater one that replaced it.
        if change is not None and value_hash(change.before) not in lost_to:
            change = None
        kept, left = self._branches.joined(record.path, record.owner, slot, loser, change)
        if kept is not slot:  # the branch is the greater one of the two
            left = OwnerForked(record.owner, record.path, slot, loser)
        now = record
        if left is not None and (left.branch != record.branch or losses_of(left) != record.logs):
            now = replace(record, branch=left.branch, logs=losses_of(left))
        if left is None or (now.branch == LOG_BRANCH and _all_appended(slot.value, now)):
            self._take(record.id)
            return
        if now is not record:
            self._put(now)
        if kept is slot:
            self._apart[record.id] = value_hash(slot)

    # --- bounds ---------------------------------------------------------------------------------

    def _bound(self, added: Iterable[ForkRecord]) -> None:
        """Delete what exceeds the limits, where records were added."""
        limits = self._limits
        for record in added:
            slot = self._slots.get(_path_hash(record.path), {})
            while len(slot) > self.records_max(record.owner) and self._evict(slot):
                pass
            of_owner = self._owners.get(value_hash(record.owner))
            while (
                of_owner is not None
                and of_owner.size > self._bytes_max(record.owner)
                and self._evict(of_owner.records)
            ):
                pass
        while len(self.records) > limits.records or self.size_bytes > limits.bytes:
            strangers = [one for one in self._owners.values() if not one.is_watched]
            if not strangers:
                return
            # "From the owner with the most bytes; equal: the owner first seen last."
            most = max(one.size for one in strangers)
            worst = max(
                (one.records.values() for one in strangers if one.size == most),
                key=lambda found: min(record.seen_ms for record in found),
            )
            self._evict_one(max(worst, key=lambda record: (record.seen_ms, record.id)))

    def records_max(self, owner: Value) -> int:
        """Return how many records are kept of a slot of an owner."""
        limits = self._limits
        return limits.own_records_per_slot if self.is_mine(owner) else limits.records_per_slot

    def _bytes_max(self, owner: Value) -> int:
        return self._limits.bytes if self.is_mine(owner) else self._limits.bytes_per_owner

    def _evict(self, records: dict[bytes, ForkRecord]) -> bool:
        """Delete the least of some records by the order; return whether there was one."""
        # "Never one of the first two": they prove the fork.
        later = sorted(records.values(), key=lambda one: (one.seen_ms, one.id))[2:]
        if not later:
            return False
        least = later[0]
        for one in later[1:]:
            if self._branches.is_less(one, least):
                least = one
        self._evict_one(least)
        return True

    def _evict_one(self, record: ForkRecord) -> None:
        self._take(record.id)
        self.evicted_count += 1

    def _is_stored(self, root: Value) -> bool:
        """Return whether a root has these records; a program may have overwritten them."""
        if self._key_pair is None or not self.records:
            return True
        held = local_value(root, self._key_pair.public_key, FORKS_KEY)
        return isinstance(held, Map) and same(held.get(RECORDS), self._cells)

    # --- the slot -------------------------------------------------------------------------------

    def _written(self, root: Value) -> Value:
        key_pair = self._key_pair
        assert key_pair is not None
        held = local_value(root, key_pair.public_key)
        fields = held if isinstance(held, Map) else EMPTY_MAP
        before = fields.get(FORKS_KEY)
        last = as_integer(before.get(TIMESTAMP)) if isinstance(before, Map) else None
        made = Map.of(
            [
                # Last write wins in `:local`, so the time must grow even if the clock went back.
                (TIMESTAMP, max(self._clock.now_ms(), (last or 0) + 1)),
                (RECORDS, self._cells),
                (DROPPED, Vector.of(self._dropped)),
            ]
        )
        self._is_new = False
        self.open = tuple(self.records.values())
        return set_local(root, key_pair, fields.put(FORKS_KEY, made))


# --- comparisons ----------------------------------------------------------------------------------


@dataclass(slots=True)
class SlotChange:
    """The former cell of a slot. is_rise: the present cell is greater; None: not compared yet."""

    before: Value
    is_rise: bool | None = None


class Branches:
    """Comparisons of two cells of one slot.

    work:      the account of the message whose forks are compared just now.
    spent_max: ticks of that account after which no comparison begins.
    """

    def __init__(self, lattice: Lattice, context: MergeContext) -> None:
        self._lattice: Final = lattice
        self._context: Final = context
        self.work = Work()
        self.spent_max = 0

    def joined(
        self,
        path: ValuePath,
        owner: Value,
        one: Signed,
        two: Signed,
        change: SlotChange | None = None,
    ) -> tuple[Value, OwnerForked | None]:
        """Return (the cell that stays in a slot, None or how it leaves the other one out).

        change: of the slot, if `one` is there now and `two` is at most what was there before.
        Cost:   a merge; with `change` one comparison by the order for all branches of the slot.
        Raises: WorkExceeded: the account has too little left.
        """
        lattice = self._lattice.path(*path)
        if not isinstance(lattice, SignedLattice):
            return one, None
        # "Of one's own all": forks of our owners are compared at any cost.
        work = None if self._context.signer(owner) is not None else self.work
        if work is not None and work.spent > self.spent_max:
            raise WorkExceeded("the message pays for no more comparisons")
        if change is not None:
            if change.is_rise is None:
                change.is_rise = _is_rise(lattice, owner, change.before, one, Walk(work))
            if change.is_rise:
                context = MergeContext(path=path, report=discard, owner=owner, work=work)
                return one, lattice.left_out(one, two, context)
        found: list[OwnerForked] = []

        def note(report: MergeNotice) -> None:
            if isinstance(report, OwnerForked):
                found.append(report)

        verifier = self._context.verifier
        if isinstance(owner, str):
            verifier = DIDVerifier(verifier)
        # Without keys, so that no join is signed.
        context = MergeContext(verifier=verifier, path=path, report=note, owner=owner, work=work)
        kept = lattice.merge(one, two, context)
        return kept, found[0] if found else None

    def is_less(self, a: ForkRecord, b: ForkRecord) -> bool:
        """Return whether the branch of `a` is less than that of `b`, or is not kept."""
        lattice = self._lattice.path(*a.path)
        if a.loser is None or b.loser is None or not isinstance(lattice, SignedLattice):
            return a.loser is None
        if _path_hash(a.path) != _path_hash(b.path) or not lattice.inner.has_order():
            return value_hash(a.loser) < value_hash(b.loser)
        hashes = value_hash(b.loser), value_hash(a.loser)
        inner = lattice.inner
        return is_greater(inner, b.loser.value, hashes[0], a.loser.value, hashes[1], Walk())


def _is_rise(
    lattice: SignedLattice, owner: Value, before: Value, after: Signed, walk: Walk
) -> bool:
    """Return whether a valid cell replaced a lesser one, in the slot of a public key."""
    inner = lattice.inner
    if lattice.whole or not inner.has_order() or not isinstance(before, Signed):
        return False
    # A forged cell is no rise, whatever its value says.
    if owner != after.public_key or not after.verify():
        return False
    hashes = value_hash(after), value_hash(before)
    try:
        return is_greater(inner, after.value, hashes[0], before.value, hashes[1], walk)
    except MissingData:
        return False  # the former root was collected: each branch is compared for itself


def _path_hash(path: ValuePath) -> bytes:
    return value_hash(Vector.of(path))


def _all_appended(value: Value, record: ForkRecord) -> bool:
    """Return whether all records that a join left out are in the logs again."""
    if not record.path or not same(record.path[0], QUEUE_SECTION):
        return False
    branches = list(record.log_branches())
    return bool(branches) and all(
        is_appended(read_state(partition_of_slot(value, log)), branch) for log, branch in branches
    )
