"""Lattice state: the live value, the root and the announced value of one replica.

The *live* value is what the cursor holds: users change it at will, in memory. The *root* is the
value last committed to the store. The *announced* value is the root without what never leaves this
node (`:local`); peers compare its hash, and everything below it can be served.

Foreign values are joined into the root and never into the live value, so a user's unfinished
changes stay private until they are synced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from datalattice.cells import (
    ABSENT,
    NO_HOLES,
    Hole,
    Holes,
    Index,
    Map,
    Value,
    Work,
    encode,
    is_embedded,
    references,
    same,
    value_hash,
)
from datalattice.clock import Clock
from datalattice.cursors import Gate, RootLattice, refusals, restored
from datalattice.errors import (
    BadFormat,
    Corruption,
    DataLatticeError,
    MissingData,
    NotContained,
    UsageError,
    WorkExceeded,
)
from datalattice.lattice import (
    KeyedLattice,
    Lattice,
    MergeContext,
    MergeNotice,
    OwnerForked,
    OwnerLattice,
    did_of,
    discard,
    replicable,
    verify_did,
)
from datalattice.store import Store
from datalattice.sync.lattice.absorption import QUOTA_EXCEEDED, Absorption
from datalattice.sync.lattice.charging import Charges
from datalattice.sync.lattice.evidence import Evidence, EvidenceLimits
from datalattice.sync.lattice.handover import MetOwners
from datalattice.sync.lattice.hosting import Hosting
from datalattice.sync.lattice.peerviews import MADE_MAX, Views
from datalattice.sync.lattice.policy import Areas, HostingPolicy, HostingTable, OwnerRules
from datalattice.sync.lattice.quotas import QuotaCheck, Quotas
from datalattice.sync.lattice.usage import OwnerSlot, Usage

_REFUSALS: Final = (BadFormat, Corruption, MissingData, UsageError, WorkExceeded)
"""Reasons to refuse a foreign value. That parts do not fit together shows only in a merge."""


@dataclass(slots=True)
class JoinResult:
    """The result of joining a complete foreign value into the root.

    value:    its hosted part.
    error:    why none of it was taken.
    in_full:  nothing of `value` was left out.
    is_cut:   all of `value` was taken, and a hosting policy may have cut off the rest.
    slots:    owners' slots that were counted anew.
    """

    value: Value
    error: DataLatticeError | None = None
    in_full: bool = False
    is_cut: bool = False
    slots: list[OwnerSlot] = field(default_factory=list)


class LatticeState:
    """What one replica holds. One thread owns it; its cursor is for every thread.

    on_sync: called by a cursor's `sync`; it must see to it that `publish` runs on the owner's
             thread. None: `publish` runs at once.
    """

    def __init__(
        self,
        store: Store,
        lattice: Lattice,
        context: MergeContext,
        charges: Charges,
        clock: Clock,
        *,
        on_sync: Callable[[Value], Value] | None = None,
        policy: HostingPolicy | None = None,
        evidence_limits: EvidenceLimits | None = None,
        watched: Callable[[Value], bool] | None = None,
        gate: Gate | None = None,
        made_max: int = MADE_MAX,
    ) -> None:
        self.store: Final = store
        self.lattice: Final = lattice
        self.on_loss: Callable[[Sequence[bytes]], None] | None = None
        """Called, on the owner's thread, with cells of this store that turned out to be missing."""
        self._met = MetOwners(
            Areas.of(lattice).owned, lambda owner: self._context.signer(owner) is not None
        )
        self._charges = charges
        self._pairs = charges.pairs
        # Owners that are no public key need a verifier; this one knows those that name their key.
        users = context.verified_by(context.verifier or verify_did)
        self._context = users.reporting(self._note)
        self._outcome = Absorption()  # of the offer that is being taken in
        self._holes = NO_HOLES  # of the value that is being joined
        self.zero: Final = lattice.zero()
        self.root: Value = store.root()
        """The durable value, with what never leaves this node."""
        if store.root_hash() is None:
            # A node without history announces the zero at once, so that whoever asks learns that
            # it has nothing.
            self.root = self.zero
            store.commit(self.root)
        self._live_root = self.root  # the last root that is part of the live value
        self.views: Final = Views(lattice, store, made_max)
        """What peers are sent and served."""
        self.views.announce(self._public(self.root), self.root)
        self._forks: list[OwnerForked] = []  # met since the last commit
        self.evidence: Final = Evidence(
            lattice, self._context, self.views.load_all, clock, evidence_limits, watched
        )
        """The branches of forked slots that are not in the root's slots."""
        self.evidence.load(self.root)
        self.hosting: Hosting | None = None
        """Whose data is taken, and how much; None: all of it."""
        if policy is not None:
            table = HostingTable(store.notes, clock)
            rules = OwnerRules(policy, table, lattice, self._context)
            usage = Usage(store, self._load_all, clock.now_ms)
            quotas = Quotas(rules, usage, clock, self.evidence)
            self.hosting = Hosting(rules, quotas, charges.known)
        self._handed: set[bytes] = set()  # ids of kept branches that are announced
        sync = on_sync or self._publish_now
        self.cursor: Final = RootLattice(lattice, self.root, users, sync, gate=gate)
        self._announce_branches()

    @property
    def owners(self) -> list[bytes | str]:
        """The owners that this node may sign for: its ring's and identity's keys, and their DIDs.

        A DID other than `did:key` is among them once it stands in the announced root.
        """
        own = self._context.key_pair
        pairs = [*self._context.keys] + ([] if own is None else [own])
        keys = sorted({pair.public_key for pair in pairs})
        return [*keys, *map(did_of, keys), *(self._met.ours(self.views.announced) if keys else ())]

    @property
    def is_blank(self) -> bool:
        """Whether the root holds no data: it equals the lattice's zero."""
        return same(self.root, self.zero)

    # --- local writes -------------------------------------------------------------------------

    def publish(self) -> bool:
        """Commit the live value and announce it; return whether it was a new one.

        Raises: UsageError, BadSignature: it has data that this node may not write, or lacks data
                of the root. Nothing is committed; these parts of the live value are set back, and
                the next call commits the others.
        """
        self._update_live()
        if self.hosting is not None and self.hosting.rules.table.has_refusals:
            # Forks of the cursor, made before a refusal, may have brought refused slots back.
            self.cursor.adopt(self._without_forgotten)
        value = self.cursor.get()
        if value is self.root or same(value, self.root):
            return False
        self._refuse(value)
        # A join of forked logs leaves records out; the evidence of the same commit has them.
        forked = bool(self._forks)
        try:
            self._commit(self._with_evidence(value), contains=not forked)
        except NotContained:
            silent = self._context.reporting(discard)
            self.cursor.adopt(lambda live: self.lattice.merge(self.root, live, silent))
            raise
        return True

    def _publish_now(self, value: Value) -> Value:
        self.publish()
        return value

    def _refuse(self, value: Value) -> None:
        """Set back what may not be written here in the live value, and raise if there is any.

        If it stayed, no later write could be committed.
        """
        before = self._without_forgotten(self.root)
        refused = list(refusals(self.lattice, before, value, self._context))
        for one in refused:
            self.cursor.adopt(partial(restored, refused=one))
        if refused:
            raise refused[0].error

    # --- foreign values -----------------------------------------------------------------------

    def join(
        self,
        read: Callable[[Work], Value],
        key: bytes,
        holes: Holes,
        peer: str,
        outcome: Absorption,
    ) -> JoinResult:
        """Join a complete foreign value into the root, around its holes; durable on return.

        The account of its sender pays for all of it: reading, merging, and its evidence.

        read: returns the value, as a root. key: under which it was offered.
        Raises: StoreError: it cannot be kept.
        """
        work, is_commit = self._charges.open(peer), False
        self._outcome, self._holes = outcome, holes
        dropped = outcome.dropped_parts
        hosting, admitted, other = self.hosting, None, None
        try:
            other = read(work)
            if hosting is not None:
                admitted = self._admit(hosting, other, work, peer)
                other = admitted.value
            # Into the root, never into the live value: unfinished edits of the user stay private.
            merged = self._merge(other, holes, work)
        except _REFUSALS as error:
            return JoinResult(other, error)
        else:
            joined = JoinResult(other, in_full=not holes and outcome.dropped_parts == dropped)
            # A slot without room is cut off this peer's values for a minute: it is missing here.
            short = [] if hosting is None else hosting.quotas.short_of(peer)
            if joined.in_full and short:
                outcome.remark(QUOTA_EXCEEDED, short[-1])
                joined.in_full = False
            joined.is_cut = joined.in_full and admitted is not None and not admitted.is_short
            is_new = merged is not self.root and not same(merged, self.root)
            is_commit = self._keep(merged, work)
            if is_commit and is_new:
                outcome.changed = True
                if hosting is not None and admitted is not None:
                    joined.slots = [count.slot for count in hosting.quotas.taken(merged, admitted)]
            return joined
        finally:
            self._holes = NO_HOLES
            outcome.merged(key)
            self._charges.close(peer, work, is_commit=is_commit)

    def _admit(self, hosting: Hosting, other: Value, work: Work, peer: str) -> QuotaCheck:
        """Return what of a complete root is hosted and has room."""
        # Again: the operator may have decided while the value waited for its cells.
        other = hosting.cut(other, self.root, peer, work)
        return hosting.quotas.check(
            self.root, other, peer, self._outcome, work, is_known=peer in self._charges.known
        )

    def _merge(self, other: Value, holes: Holes, work: Work) -> Value:
        if isinstance(other, Hole):
            raise BadFormat(holes.reason())
        context = self._context.for_foreign(self._context.report, work, holes)
        merged = self.lattice.merge(self.root, other, context)
        if holes.is_planted(merged):  # "no merge can plant a hole, whatever it forgets"
            raise BadFormat(f"the merge would keep a cell that is not sound: {holes.reason()}")
        return merged

    def _keep(self, merged: Value, work: Work) -> bool:
        """Make a merged root, and the evidence for it, durable; return whether it took a commit."""
        value = self._with_evidence(merged, work)
        if value is self.root or same(value, self.root):
            return False
        # Evidence is written in the commit of the merge that made it. Of two branches of a slot the
        # greater one replaces the other, so the root need not contain the one before it.
        self._commit(value, contains=False)
        return True

    def lost(self, hashes: Sequence[bytes]) -> None:
        """Report cells of this store that turned out to be missing."""
        if self.on_loss is not None:
            self.on_loss(hashes)

    def _load_all(self, hashes: Sequence[bytes]) -> list[bytes | None]:
        """Return encodings of cells of the value that is being joined, those above holes too."""
        tainted = self._holes.tainted
        if not tainted:
            return self.views.load_all(hashes)
        found = self.views.load_all([hash for hash in hashes if hash not in tainted])
        rest = iter(found)
        return [tainted[hash] if hash in tainted else next(rest) for hash in hashes]

    def _note(self, notice: MergeNotice) -> None:
        self._outcome.report(notice, self._context)
        if isinstance(notice, OwnerForked):
            self._forks.append(notice)

    def _with_evidence(self, value: Value, work: Work | None = None) -> Value:
        """Return a root to be committed, with the evidence of what its slots leave out."""
        forks, self._forks = self._forks, []
        made = self.evidence.bring_up(value, forks, work)
        for fork in forks:  # a decided fork is not compared again, whoever states it
            if fork not in self.evidence.unpaid:
                self._pairs.forked(value_hash(fork.kept), value_hash(fork.other))
        return made

    # --- decisions of the operator ------------------------------------------------------------

    def drop_evidence(self, ids: Sequence[bytes]) -> bool:
        """Delete records of forks for good; return whether there were any; durable."""
        value = self.evidence.drop(self.root, ids)
        if value is self.root:
            return False
        self._commit(value)
        return True

    def drop_refused(self) -> bool:
        """Leave the slots that the operator refuses out of the root; return whether there were any.

        Durable on return. Peers keep theirs; what they send of it is cut off on arrival.
        """
        # "A refusal of an owner is a tombstone of hosting, not of data": the new root need not
        # contain the one before it (docs/design/foreign-data.md, Room).
        self.cursor.adopt(self._without_forgotten)
        value = self._without_forgotten(self.root)
        if value is self.root or self.hosting is None:
            return False
        self._commit(value, contains=False)
        self.hosting.released()
        return True

    def _without_forgotten(self, value: Value) -> Value:
        hosting = self.hosting
        return value if hosting is None else hosting.without_forgotten(value)

    # --- commits ------------------------------------------------------------------------------

    def make_writable(self) -> None:
        """Let the store go on after a write that failed, if the disk allows it."""
        if self.store.has_failed:
            self.store.resume()

    def _commit(self, value: Value, *, contains: bool = True) -> None:
        """Make `value` the durable root, then announce it, then join it into the live value."""
        self.make_writable()
        # "They were signed to be published": branches that only `:local` has are announced, too.
        kept = self.evidence.open
        new = [one for one in kept if one.id not in self._handed] if kept else []
        branches = [one.loser for one in new if one.loser is not None] if new else []
        announced = self._public(value)
        # "A cell is served by its hash when the part of a root that peers see reached it": the
        # store keeps that with the cell (docs/design/foreign-data.md, What is served).
        self.store.commit(value, contains=contains, announced=[announced, *branches])
        if new:
            self._handed = {one.id for one in kept}
        self.root = value
        # Announced only now that it is durable: a crash takes nothing back that a peer has seen.
        self.views.announce(announced, value)
        self._update_live()

    def _public(self, root: Value) -> Value:
        """Return a root without what never leaves this node."""
        return replicable(root) if isinstance(self.lattice, KeyedLattice) else root

    def _update_live(self) -> None:
        """Join the root into the live value: what is published must contain it."""
        before, root, lattice = self._live_root, self.root, self.lattice
        if before is not root and self.cursor.get() is not root:
            # Whatever is written from now on is written on top of it.
            self.cursor.adopt(lambda live: overlaid(lattice, before, live, root, self._context))
        self._live_root = root

    def _announce_branches(self) -> None:
        """Announce the kept branches of a root that came from another store, as of a backup."""
        self._handed = {one.id for one in self.evidence.open if self._is_handed(one.loser)}
        if len(self._handed) < len(self.evidence.open):
            self._commit(self.root, contains=False)

    def _is_handed(self, branch: Value) -> bool:
        """Return whether all of a kept branch that is here is announced."""
        names = references(encode(branch)) if is_embedded(branch) else [value_hash(branch)]
        return all(self.store.announced(name) for name in names)


_CONTAINERS = (Index, Map)


def overlaid(
    lattice: Lattice, base: Value, live: Value, root: Value, context: MergeContext
) -> Value:
    """Return `root` with what `live` has changed of `base` joined in.

    A merge of `live` and `root` gives the same value, but it looks into all that `root` changed,
    which was checked before: a writer would spend time on what strangers sent meanwhile.

    live, root: both made of `base` by writes and merges.
    Cost:       sections and slots that differ between `base` and `live`.
    """
    if same(base, live):
        return root
    if same(base, root):
        return live
    if isinstance(lattice, (KeyedLattice, OwnerLattice)):
        for kind in _CONTAINERS:
            if isinstance(base, kind) and isinstance(live, kind) and isinstance(root, kind):
                return _overlaid_entries(lattice, base, live, root, context)
    return lattice.merge(live, root, context)


def _overlaid_entries(
    lattice: Lattice, base: Index | Map, live: Index | Map, root: Index | Map, context: MergeContext
) -> Value:
    made = root
    for key, _, before, is_there, mine in base.differences(live):  # type: ignore[arg-type]
        theirs = root.get(key, ABSENT)
        if not is_there or theirs is mine:
            continue  # a merge restores what a writer removed, so an overlay does, too
        below = lattice.child(key)
        if theirs is ABSENT or below is None:
            made = made.put(key, mine)
        elif isinstance(below, OwnerLattice):
            made = made.put(key, overlaid(below, before, mine, theirs, context.child(key)))
        else:
            # By the container's own merge, which checks who may write and reports what it drops.
            kind = type(root)
            one = lattice.merge(kind.of([(key, mine)]), kind.of([(key, theirs)]), context)
            assert isinstance(one, _CONTAINERS)
            made = made.put(key, one.get(key))
    return made
