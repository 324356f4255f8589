"""Lattice replica: a store, a lattice and a live cursor, as something that replicates.

Three values matter. The *live* value is what the cursor holds: users change it at will, in memory.
The *root* is the value last committed to the store. The *announced* value is the root without what
never leaves this node (`:local`); its hash is what peers compare, and everything below it can be
served.

Foreign values come in through the `Intake`, which merges those that are complete into the root.
The merge never works on the live value, so a user's unfinished changes stay private until they are
synced.

Length: one replica: what is written, what peers are told, and what they are asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from datalattice.cells import (
    Hole,
    Holes,
    Value,
    Vector,
    Work,
    encode,
    is_embedded,
    novelty,
    references,
    same,
    value_hash,
)
from datalattice.clock import Clock, SystemClock
from datalattice.cursors import Gate, RootLattice, refusals, restored
from datalattice.errors import (
    BadFormat,
    NoSuchPath,
    NotContained,
)
from datalattice.lattice import (
    EMPTY_CONTEXT,
    Lattice,
    MergeContext,
    MergeNotice,
    OwnerForked,
    did_of,
    discard,
    get_in,
    verify_did,
)
from datalattice.limits import MESSAGE_BYTES_MAX
from datalattice.store import Store
from datalattice.sync.lattice.charging import Charges
from datalattice.sync.lattice.comparison import LatticeComparison, Meeting
from datalattice.sync.lattice.delta import beyond
from datalattice.sync.lattice.evidence import Evidence, EvidenceLimits
from datalattice.sync.lattice.handover import handed, is_fork_query
from datalattice.sync.lattice.hosting import Areas
from datalattice.sync.lattice.intake import STAGED_BYTES_MAX, Intake
from datalattice.sync.lattice.metowners import MetOwners
from datalattice.sync.lattice.overlay import overlaid
from datalattice.sync.lattice.patch import PATCH_CELLS_MAX, write_patch
from datalattice.sync.lattice.plain import PlainPeer
from datalattice.sync.lattice.policy import HostingPolicy
from datalattice.sync.lattice.requests import PATCHES, Lookup, LookupResult
from datalattice.sync.lattice.spelling import Speller
from datalattice.sync.lattice.views import MADE_MAX, Views
from datalattice.sync.replica import (
    FETCHES,
    Absorbed,
    News,
    Offer,
    Part,
    Peer,
    Probe,
    Publication,
    Regard,
    Remark,
    Reply,
    Want,
    Why,
)

PUSH_BYTES_MAX: Final = 8_000_000
"""Largest difference that is pushed.

Of a larger one the peer is told the root and fetches the rest at its own pace.
"""


@dataclass(frozen=True, slots=True)
class ReplicaLimits:
    """What a replica holds in memory at most.

    staged_bytes_max: bytes of cells above gaps, of all values that wait.
    made_max:         cells that exist only because something was cut off, for each view.
    push_bytes_max:   bytes of a difference that is pushed.
    """

    staged_bytes_max: int = STAGED_BYTES_MAX
    made_max: int = MADE_MAX
    push_bytes_max: int = PUSH_BYTES_MAX


TOO_LARGE: Final = "too-large"
"""What entries are counted as that cannot be told to a plain peer."""


class LatticeReplica:
    """A lattice value that replicates; one thread owns it, its cursor is for everybody.

    Whoever gives `on_sync` sees to it that `publish` is called, on the owner's thread.
    """

    def __init__(
        self,
        store: Store,
        lattice: Lattice,
        context: MergeContext = EMPTY_CONTEXT,
        on_sync: Callable[[Value], Value] | None = None,
        hosting: HostingPolicy | None = None,
        clock: Clock | None = None,
        evidence_limits: EvidenceLimits | None = None,
        watched: Callable[[Value], bool] | None = None,
        gate: Gate | None = None,
        frame_max: int = MESSAGE_BYTES_MAX,
        charges: Charges | None = None,
        limits: ReplicaLimits | None = None,
    ) -> None:
        limits = limits or ReplicaLimits()
        self._store = store
        self._lattice = lattice
        self._met = MetOwners(Areas.of(lattice).owned, self._signs_for)
        self._frame_max = frame_max
        self._push_bytes_max = limits.push_bytes_max
        self._meetings: dict[str, Meeting] = {}  # by connection
        # Owners that are no public key need a verifier; this one knows those that name their key.
        users = context.verified_by(context.verifier or verify_did)
        self._context = users.reporting(self._note)
        self.on_loss: Callable[[Sequence[bytes]], None] | None = None
        """Called, on the owner's thread, with cells of this store that turned out to be missing."""
        self._zero: Final = lattice.zero()
        self._root: Value = store.root()
        if store.root_hash() is None:
            # A node without history announces the zero at once: whoever asks learns that nothing is
            # here.
            self._root = self._zero
            store.commit(self._root)
        self._joined = self._root  # the last root that is part of the live value
        self.views = Views(lattice, store, limits.made_max)
        """What peers are told and served."""
        self.views.announce(self.views.public(self._root), self._root)
        clock = clock or SystemClock()
        self.intake = Intake(
            self,
            store,
            lattice,
            self.views,
            self._context,
            clock,
            hosting,
            charges,
            limits.staged_bytes_max,
        )
        """The foreign values that are on their way in."""
        self.charges = self.intake.charges
        """What the merges of each sender cost."""
        self.hosting = self.intake.hosting
        """Whose data is taken, and how much; None: all of it."""
        self._forks: list[OwnerForked] = []  # met since the last commit
        self.evidence = Evidence(
            lattice, self._context, self.views.load_all, clock, evidence_limits, watched
        )
        """The branches of forked slots that are not in the root's slots."""
        self.evidence.load(self._root)
        if self.hosting is not None:
            self.hosting.evidence = self.evidence
        self._handed: set[bytes] = set()  # ids of kept branches that are announced
        sync = on_sync or self._publish_now
        self.cursor = RootLattice(lattice, self._root, users, sync, gate=gate)
        self._announce_branches()

    def _note(self, report: MergeNotice) -> None:
        self.intake.outcome.report(report, self._context)
        if isinstance(report, OwnerForked):
            self._forks.append(report)

    def _with_evidence(self, value: Value, work: Work | None = None) -> Value:
        """Return a root to be committed, with the evidence of what its slots leave out."""
        forks, self._forks = self._forks, []
        made = self.evidence.bring_up(value, forks, work)
        for fork in forks:  # what is decided need not be found out again, whoever states it
            if fork not in self.evidence.unpaid:
                self.charges.pairs.forked(value_hash(fork.kept), value_hash(fork.other))
        return made

    def drop_evidence(self, ids: Sequence[bytes]) -> bool:
        """Let go of records of forks, for good; return whether there were any; durable."""
        value = self.evidence.drop(self._root, ids)
        if value is self._root:
            return False
        self._commit(value)
        return True

    # --- what others may see ------------------------------------------------------------------

    @property
    def lattice(self) -> Lattice:
        """What is replicated."""
        return self._lattice

    @property
    def announced(self) -> Value:
        """The value that peers are told and served."""
        return self.views.announced

    @property
    def store(self) -> Store:
        """Where the root is kept. It is the replica's to move."""
        return self._store

    @property
    def root(self) -> Value:
        """The value that is durable, with what never leaves this node."""
        return self._root

    @property
    def announced_hash(self) -> bytes:
        """The value hash of the announced value."""
        return value_hash(self.views.announced)

    @property
    def is_blank(self) -> bool:
        """Whether nothing was written or taken in here so far."""
        return same(self._root, self._zero)

    @property
    def owners(self) -> list[bytes | str]:
        """The owners that this node may sign for: its ring's and identity's keys, and their DIDs.

        What DIDs other than `did:key` stand for is known only where they are met: in the root.
        """
        own = self._context.key_pair
        pairs = [*self._context.keys] + ([] if own is None else [own])
        keys = sorted({pair.public_key for pair in pairs})
        return [*keys, *map(did_of, keys), *(self._met.ours(self.views.announced) if keys else ())]

    def _signs_for(self, owner: str) -> bool:
        return self._context.signer(owner) is not None

    def handed(self, owner: Value, peer: str) -> Vector:
        """Return the kept branches of an owner that are not in their slots: Vector of [path cell].

        They were signed to be published. Of a partial peer only those of its slots.
        """
        view = self.views.of(peer)
        return handed(self.evidence.open, owner, lambda path: get_in(view, path) is not None)

    # --- what a replicator needs --------------------------------------------------------------

    @property
    def probe(self) -> Probe:
        """How far this replica has come: the announced value."""
        return Probe(self.announced_hash, self.views.announced)

    def publish(self) -> Publication:
        """Commit the live value and announce it.

        Raises: UsageError, BadSignature: it has what this node may not write, or lacks what the
                root has. Nothing is committed; the live value has these parts as they were, and
                the rest of it is committed by the next call.
        """
        self._join()
        if self.hosting is not None and self.hosting.table.has_refusals:
            self.cursor.adopt(self._without_forgotten)  # forks of the live value may still have it
        value = self.cursor.get()
        changed = value is not self._root and not same(value, self._root)
        if changed:
            self._refuse(value)
            forked = bool(self._forks)
            # A join of forked logs leaves records out: they are in the evidence of this commit.
            try:
                self._commit(self._with_evidence(value), contains=not forked)
            except NotContained:
                silent = self._context.reporting(discard)
                self.cursor.adopt(lambda live: self._lattice.merge(self._root, live, silent))
                raise
        return Publication(changed, self.probe)

    def _refuse(self, value: Value) -> None:
        """Take out of the live value what may not be written here, and raise, if `value` has any.

        It must not stay: it would keep all that is written later from being committed.
        """
        before = self._without_forgotten(self._root)
        refused = list(refusals(self._lattice, before, value, self._context))
        for one in refused:
            self.cursor.adopt(partial(restored, refused=one))
        if refused:
            raise refused[0].error

    def _publish_now(self, value: Value) -> Value:
        self.publish()
        return value

    def drop_refused(self) -> bool:
        """Leave out of the root what the operator had forgotten; return whether there was any.

        Durable on return. Peers keep theirs; what they send of it is cut off at the door.
        """
        # "A refusal of an owner is a tombstone of hosting, not of data": the new root need not
        # contain the one before it (docs/design/foreign-data.md, Room).
        self.cursor.adopt(self._without_forgotten)
        value = self._without_forgotten(self._root)
        if value is self._root or self.hosting is None:
            return False
        self._commit(value, contains=False)
        self.hosting.released()
        return True

    def _without_forgotten(self, value: Value) -> Value:
        hosting = self.hosting
        if hosting is None or not hosting.table.has_refusals:
            return value
        return hosting.without_forgotten(value)

    def absorb(self, offer: Offer, peer: Peer, *, asked: bool = False) -> Absorbed:
        """Take in a foreign value, or cells that one waits for.

        Raises: BadFormat: a value that is not what its encoding claims. Undecodable: a patch that
                is none. StoreError: the store cannot keep it. All that waits for cells is given up.
        """
        plain = self._plain(peer)
        try:
            outcome = self.intake.take_in(offer, peer.connection)
        finally:
            if plain is not None and asked and offer.probe is not None:
                is_over = offer.probe.key in self.intake.outcome.finished
                plain.failed = plain.failed or not is_over
        for is_part, held in ((False, outcome.holds), (True, outcome.parts_of)):
            for connection, probe in held:
                meeting = self._meetings.get(connection)
                if meeting is not None and meeting.plain is not None:
                    meeting.plain.holds(probe, part=is_part)
        return outcome.absorbed()

    def serve(self, peer: Peer, request: object) -> Iterator[Reply]:
        """Answer a request for cells by hash, or for what is announced at a path."""
        if isinstance(request, Want):
            yield Reply(self.views.supply(request.hashes))
            return
        assert isinstance(request, Lookup)
        if is_fork_query(request.path):
            yield Reply(self._hand_over(request.path[1], peer.connection))
            return
        try:
            value = self.views.query(request.path, peer.connection, strict=request.is_strict)
        except NoSuchPath as error:
            yield Reply(LookupResult(error=str(error)))
        else:
            yield Reply(LookupResult(value, self.views.load))

    def _hand_over(self, owner: Value, connection: str) -> LookupResult:
        answer = self.handed(owner, connection)
        made = {hash: data for hash, data, _ in novelty(answer, self._store)}
        return LookupResult(answer, lambda hash: made.get(hash) or self.views.load(hash))

    def _plain(self, peer: Peer) -> PlainPeer | None:
        """Return what is known of a peer that fetches nothing, None of any other."""
        meeting = self._meetings.get(peer.connection)
        return None if meeting is None or FETCHES in peer.features else meeting.plain

    def regard(self, peer: Peer) -> Regard:
        """Return how a peer is regarded: everybody may read and offer what is signed."""
        wanted = self.charges.is_wanted(peer.connection)
        return Regard.WANTED if wanted else Regard.STRANGER

    def hear(self, peer: Peer) -> None:
        """Charge a message to its sender."""
        self.charges.hear(peer.connection)

    def forget(self, peer: Peer) -> None:
        """Forget what is known of a connection that has ended."""
        self._meetings.pop(peer.connection, None)

    def compare(
        self, peer: Peer, why: Why, path: Sequence[object] = ()
    ) -> LatticeComparison | None:
        """Begin a comparison with a peer; None: there is nothing to say."""
        meeting = self._meetings.setdefault(peer.connection, Meeting())
        if FETCHES in peer.features:
            meeting.plain = None
        elif why is Why.MEETING and meeting.plain is None:
            meeting.plain = PlainPeer()
        if why is Why.ASKED:
            return None  # whoever begins one in this protocol asks all at once, as a client does
        if meeting.plain is not None and meeting.plain.open and why is Why.DUE:
            return None  # the round before has no answer yet
        made = LatticeComparison(self, peer, meeting, why, path, self._frame_max)
        return None if made.is_empty else made

    def equals(self, peer: Peer, stated: Probe | None) -> bool:
        """Return whether a peer has what is here, as far as it is replicated with it."""
        plain = self._plain(peer)
        key = value_hash(self.views.of(peer.connection))
        if plain is not None:
            return plain.level == key
        return stated is not None and stated.key == key

    def begin(self, connection: str) -> Offer:
        """Return the root alone."""
        value = self.views.of(connection)
        probe = Probe(value_hash(value), value)
        top = () if is_embedded(value) else (Part(probe.key, encode(value)),)
        return Offer(probe, top)

    def news(self, peer: Peer, known: Sequence[Probe]) -> News | None:
        """Return the present root with the cells that none of the known values has.

        For a plain peer: values that are complete in themselves, of what it has not stated and was
        not told since; None until it has answered once.
        """
        plain = self._plain(peer)
        if plain is not None:
            return self._spell_out(plain, peer.connection) if plain.is_asked else None
        value = self.views.of(peer.connection)
        probe = Probe(value_hash(value), value)
        # What the peer holds is a hint: "if it is wrong the peer asks"
        # (docs/design/replication.md).
        if any(base.key == probe.key for base in known):
            return None
        held = [base.data for base in known]
        cells = beyond(held, value, self.views.load_all, self._push_bytes_max) if held else None
        if cells is None:
            # "A difference above 8 MB is replaced by the root alone" (docs/node.md, What is sent
            # when).
            return News((self.begin(peer.connection),))
        parts = tuple(Part(hash, data) for hash, data in cells.items())
        # A patch of next to nothing, which is what a new peer states first, spares nothing.
        bases = (base for base in known if not is_embedded(base.data))
        base = next(bases, known[0])
        patch = None
        if PATCHES in peer.features and 0 < len(parts) <= PATCH_CELLS_MAX:
            patch = write_patch(encode(value), cells, encode(base.data), self.views.load)
        return News((Offer(probe, parts, base=base, patch=patch),))

    def _spell_out(self, plain: PlainPeer, connection: str) -> News:
        """Return what a plain peer lacks, of which it is taken to have been told."""
        view = self.views.of(connection)
        fetch = self.views.load_all
        frame_max = min(MESSAGE_BYTES_MAX, self._frame_max)
        speller = Speller(self._lattice, view, self._store, fetch, frame_max, self._push_bytes_max)
        told = None if plain.told is None else plain.told.data
        made = speller.spell_out([one.data for one in plain.heard], told)
        if made.missing:
            self.lost(made.missing)
        plain.told = None if made.told is None else Probe(value_hash(made.told), made.told)
        # Only what it states itself proves what it has: nothing is left to tell, so it has it all.
        has_all = made.is_all and plain.told is None
        plain.level = value_hash(view) if has_all else None
        return News(
            tuple(Offer(Probe(value_hash(piece.value), piece)) for piece in made.pieces),
            not made.is_all,
            tuple(Remark(TOO_LARGE, f"{one} does not fit into a frame") for one in made.too_large),
        )

    # --- what the intake needs ----------------------------------------------------------------

    def merge(self, other: Value, holes: Holes, work: Work) -> Value:
        """Return the root with a foreign one merged into it, around its holes.

        Raises: BadFormat: its own cell is not sound, or the result would refer to one that is not.
                WorkExceeded: it takes more work than there is.
        """
        if isinstance(other, Hole):
            raise BadFormat(holes.reason())
        context = self._context.for_foreign(self._context.report, work, holes)
        merged = self._lattice.merge(self._root, other, context)
        if holes.is_planted(merged):  # "no merge can plant a hole, whatever it forgets"
            raise BadFormat(f"the merge would keep a cell that is not sound: {holes.reason()}")
        return merged

    def keep(self, merged: Value, work: Work) -> bool:
        """Make a merged root, and the evidence for it, durable; return whether it took a commit."""
        value = self._with_evidence(merged, work)
        if value is self._root or same(value, self._root):
            return False
        # "It was written in the commit of the merge that made it." Of two branches of a slot the
        # greater one replaces the other, so the root need not contain the one before it.
        self._commit(value, contains=False)
        return True

    def lost(self, hashes: Sequence[bytes]) -> None:
        """Tell of cells of this store that turned out to be missing."""
        if self.on_loss is not None:
            self.on_loss(hashes)

    # --- inside -------------------------------------------------------------------------------

    def repair(self, parts: Sequence[Part]) -> None:
        """Put these cells, which peers had, in the place of damaged or missing ones.

        Raises: BadFormat: one is not what its hash says. StoreError: they cannot be kept.
        """
        self._make_writable()
        self._store.heal((part.hash, part.data) for part in parts)

    def _make_writable(self) -> None:
        """Let the store go on after a write that failed, when the disk lets it."""
        if self._store.has_failed:
            self._store.resume()

    def _commit(self, value: Value, *, contains: bool = True) -> None:
        """Make `value` the durable root, then what is announced, then part of the live value."""
        self._make_writable()
        # "They were signed to be published": branches that only `:local` has are announced, too.
        new = [one for one in self.evidence.open if one.id not in self._handed]
        branches = [one.loser for one in new if one.loser is not None]
        announced = self.views.public(value)
        # "A cell is served by its hash when the part of a root that peers see reached it": the
        # store keeps that with the cell (docs/design/foreign-data.md, What is served).
        self._store.commit(value, contains=contains, announced=[announced, *branches])
        if new:
            self._handed = {one.id for one in self.evidence.open}
        self._root = value
        self.views.announce(announced, value)
        self._join()

    def _join(self) -> None:
        """Make the root part of the live value, if it is not: what is published must contain it."""
        before, root, lattice = self._joined, self._root, self._lattice
        if before is not root and self.cursor.get() is not root:
            # Whatever is written from now on is written on top of it.
            self.cursor.adopt(lambda live: overlaid(lattice, before, live, root, self._context))
        self._joined = root

    def _announce_branches(self) -> None:
        """Announce the kept branches of a root that came from another store, as of a backup."""
        self._handed = {one.id for one in self.evidence.open if self._is_handed(one.loser)}
        if len(self._handed) < len(self.evidence.open):
            self._commit(self._root, contains=False)

    def _is_handed(self, branch: Value) -> bool:
        """Return whether all of a kept branch that is here is announced."""
        names = references(encode(branch)) if is_embedded(branch) else [value_hash(branch)]
        return all(self._store.announced(name) for name in names)
