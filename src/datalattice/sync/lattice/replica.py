"""Lattice replica: a store, a lattice and a live cursor, as something that replicates.

Three values matter. The *live* value is what the cursor holds: users change it at will, in memory.
The *root* is the value last committed to the store. The *announced* value is the root without what
never leaves this node (`:local`); its hash is what peers compare, and everything below it can be
served.

A foreign value goes through five steps. It is wrapped up to the root, so that every check from
there down applies to it. What this node does not replicate is cut off. It is claimed: cells that
are neither here nor in the message are named, and nothing more happens until they are. It is merged
into the root and committed. The live value takes the new root in.

The merge never works on the live value, so a user's unfinished changes stay private until they are
synced.

Length: one replica; its parts (staging, hosting, charges) have modules of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Final

from datalattice.cells import (
    NO_HOLES,
    Hole,
    Holes,
    Index,
    Keyword,
    Parts,
    Signed,
    Value,
    Vector,
    Work,
    brief,
    decode,
    decode_parts,
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
    Corruption,
    LimitExceeded,
    MissingData,
    NoSuchPath,
    NotContained,
    StoreError,
    TypeMismatch,
    UsageError,
    WorkExceeded,
)
from datalattice.lattice import (
    EMPTY_CONTEXT,
    LOCAL_KEY,
    KeyedLattice,
    Lattice,
    MergeContext,
    OwnerForked,
    Report,
    StringKeyedLattice,
    assoc_in,
    canonical_path,
    did_of,
    discard,
    get_in,
    name_bytes,
    replicable,
    select,
    step,
    verify_did,
)
from datalattice.limits import MESSAGE_BYTES_MAX
from datalattice.store import Store
from datalattice.sync.lattice.absorption import REFUSED, UNSOUND, Absorption
from datalattice.sync.lattice.approach import AHEAD_BYTES_MAX, Approach
from datalattice.sync.lattice.charging import Charges, Sender
from datalattice.sync.lattice.comparison import LatticeComparison, Meeting
from datalattice.sync.lattice.delta import beyond
from datalattice.sync.lattice.evidence import Evidence, EvidenceLimits
from datalattice.sync.lattice.handover import handed, is_fork_query
from datalattice.sync.lattice.hosting import DISK_LOW, Admitted, Areas, Hosting, QuotaExceeded
from datalattice.sync.lattice.incoming import Claim, Incoming, PatchedRoot, Waiting
from datalattice.sync.lattice.incomplete import Completion, IncompleteCells
from datalattice.sync.lattice.metowners import MetOwners
from datalattice.sync.lattice.overlay import overlaid
from datalattice.sync.lattice.patch import PATCH_CELLS_MAX, cells_worth, read_patch, write_patch
from datalattice.sync.lattice.plain import PlainPeer
from datalattice.sync.lattice.policy import HostingPolicy
from datalattice.sync.lattice.requests import PATCHES, Lookup, LookupResult
from datalattice.sync.lattice.spelling import Speller
from datalattice.sync.lattice.usage import OwnerSlot
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
    Undecodable,
    Want,
    Why,
)
from datalattice.wire import PATCH_BYTES_MAX, join_cells

PUSH_BYTES_MAX: Final = 8_000_000
"""Largest difference that is pushed.

Of a larger one the peer is told the root and fetches the rest at its own pace.
"""

CLAIMS_MAX: Final = 64
"""Incomplete values that one peer may have us wait for."""

STAGED_BYTES_MAX: Final = 256_000_000
"""Cells held in memory above gaps.

They are inner nodes, so the values above them may be far larger.
"""

CUTS_MAX: Final = 1_024
"""Peers whose last state is remembered of which a part is not hosted here."""

MADE_MAX: Final = 1_000
"""Cells remembered that exist only because something was cut off the root, for each view of it."""

SECTIONS_MAX: Final = 256
"""Sections of a foreign root, those among them that are unknown here. A huge root is named in a few
bytes when all of it came before."""

TOO_LARGE: Final = "too-large"
"""What entries are counted as that cannot be told to a plain peer."""

_SIGNED_FIELDS: Final = {"public-key", "signature", "value"}


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
    ) -> None:
        self._store = store
        self._lattice = lattice
        self._areas = Areas.of(lattice)
        self._met = MetOwners(self._areas.owned, self._signs_for)
        self._frame_max = frame_max
        self._meetings: dict[str, Meeting] = {}  # by connection
        self._sections = _sections_of(lattice)
        self._outcome = Absorption()  # of what is taken in just now
        # Owners that are no public key need a verifier; this one knows those that name their key.
        verifier = context.verifier or verify_did
        users = context.verified_by(verifier)
        self._context = users.reporting(self._note)
        self.on_loss: Callable[[Sequence[bytes]], None] | None = None
        """Called, on the owner's thread, with cells of this store that turned out to be missing."""
        self._incomplete = IncompleteCells(store)
        self._waiting: dict[Claim, Waiting] = {}
        self._holes = NO_HOLES  # of the value that is merged just now
        self._approach = Approach(store)
        # What a peer stated, under which policy, and what of it was taken.
        self._cuts: dict[Claim, tuple[bytes, object, Probe]] = {}
        self._stated: dict[Claim, Probe] = {}  # what is waited for, as it was stated
        self._next: dict[Claim, Probe] = {}  # what is known by its hash alone, and comes after
        self._zero: Final = lattice.zero()
        self._root: Value = store.root()
        if store.root_hash() is None:
            # A node without history announces the zero at once: whoever asks learns that nothing is
            # here.
            self._root = self._zero
            store.commit(self._root)
        self._joined = self._root  # the last root that is part of the live value
        self._announced: Value = None
        self._made: dict[bytes, bytes] = {}
        self._paths: dict[str, tuple[tuple[Value, ...], ...]] = {}
        self._views: dict[str, tuple[Value, Value]] = {}  # peer -> (announced, what it is told)
        self._announce(self._public(self._root))
        clock = clock or SystemClock()
        self.charges = Charges(clock)
        """What the merges of each sender cost."""
        self.hosting: Hosting | None = None
        """Whose data is taken, and how much; None: all of it."""
        if hosting is not None:
            self.hosting = Hosting(
                hosting, store, lattice, self._context, self._fetch_foreign, clock
            )
        self._forks: list[OwnerForked] = []  # met since the last commit
        self.evidence = Evidence(
            lattice, self._context, self._load_encodings, clock, evidence_limits, watched
        )
        """The branches of forked slots that are not in the root's slots."""
        self.evidence.load(self._root)
        if self.hosting is not None:
            self.hosting.evidence = self.evidence
        self._handed: set[bytes] = set()  # ids of kept branches that are announced
        sync = on_sync or self._publish_now
        self.cursor = RootLattice(lattice, self._root, users, sync, gate=gate)
        self._announce_branches()

    def _note(self, report: Report) -> None:
        self._outcome.report(report, self._context)
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

    def restrict(self, peer: str, paths: Iterable[Sequence[object]] | None) -> None:
        """Replicate with `peer` only what lies at `paths`, in both directions; None: everything.

        It bounds what is exchanged, not what may be known: a peer that learnt the hash of another
        announced cell elsewhere is given it.
        Raises: UsageError: a path that the lattice does not have, or that enters a signed value.
        """
        self._views.pop(peer, None)
        if paths is None:
            self._paths.pop(peer, None)
        else:
            self._paths[peer] = tuple(canonical_path(self._lattice, path) for path in paths)

    def _view(self, peer: str) -> Value:
        """Return what a peer is told of the announced value."""
        paths = self._paths.get(peer)
        if paths is None:
            return self._announced
        announced, view = self._views.get(peer, (None, None))
        if announced is not self._announced:
            view = select(self._announced, paths)
            view = self._zero if view is None else view
            self._keep(view)
            self._views[peer] = (self._announced, view)
        return view

    def introduce(self, peer: str, sender: Sender, *, is_wanted: bool, is_known: bool) -> None:
        """Take note of who is at the other end of a connection, before anything else of it.

        is_wanted: the operator named it as a peer; is_known: that, or allowed it to connect.
        """
        self.charges.introduce(peer, sender, is_wanted=is_wanted)
        if self.hosting is not None:
            self.hosting.introduce(peer, is_known=is_known)

    def leave(self, peer: str) -> None:
        """Take note that a connection has ended."""
        self.charges.leave(peer)
        if self.hosting is not None:
            self.hosting.introduce(peer, is_known=False)

    def wait_ms(self, peer: str) -> int:
        """Return how long what comes next over a connection has to wait."""
        return self.charges.wait_ms(peer)

    @property
    def lattice(self) -> Lattice:
        """What is replicated."""
        return self._lattice

    @property
    def announced(self) -> Value:
        """The value that peers are told and served."""
        return self._announced

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
        return value_hash(self._announced)

    @property
    def missing_count(self) -> int:
        """Foreign values that wait for cells."""
        return len(self._waiting) + len(self._approach)

    @property
    def staged_bytes(self) -> int:
        """Bytes of cells of such values that are here already."""
        return self._incomplete.size_bytes + self._approach.size_bytes

    @property
    def is_blank(self) -> bool:
        """Whether nothing was written or taken in here so far."""
        return same(self._root, self._zero)

    def query(self, path: Sequence[Value], peer: str, *, strict: bool = True) -> Value:
        """Return what is announced to `peer` at a path, nil where nothing is.

        Raises: NoSuchPath: `strict`, and a key names a section that the lattice does not have.
        """
        lattice: Lattice | None = self._lattice
        value = self._view(peer)
        for key in path:
            if lattice is not None:
                below = lattice.child(key)
                named = isinstance(lattice, (KeyedLattice, StringKeyedLattice))
                if strict and named and below is None:
                    raise NoSuchPath(f"the lattice has nothing at {brief(key)}")
                lattice = below
            value = _field(value, key) if isinstance(value, Signed) else step(value, key)
        return value

    @property
    def owners(self) -> list[bytes | str]:
        """The owners that this node may sign for: its ring's and identity's keys, and their DIDs.

        What DIDs other than `did:key` stand for is known only where they are met: in the root.
        """
        own = self._context.key_pair
        pairs = [*self._context.keys] + ([] if own is None else [own])
        keys = sorted({pair.public_key for pair in pairs})
        return [*keys, *map(did_of, keys), *(self._met.ours(self._announced) if keys else ())]

    def _signs_for(self, owner: str) -> bool:
        return self._context.signer(owner) is not None

    def handed(self, owner: Value, peer: str) -> Vector:
        """Return the kept branches of an owner that are not in their slots: Vector of [path cell].

        They were signed to be published. Of a partial peer only those of its slots.
        """
        view = self._view(peer)
        return handed(self.evidence.open, owner, lambda path: get_in(view, path) is not None)

    def load_encoding(self, hash: bytes) -> bytes | None:
        """Return the encoding of a cell, or None when it is not here, or damaged."""
        encoding = self._made.get(hash)
        try:
            return self._store.get_encoding(hash) if encoding is None else encoding
        except Corruption:
            return None  # the store tells whoever is to heal it

    # --- what a replicator needs --------------------------------------------------------------

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
        outcome = self._outcome = Absorption(peer.connection)
        try:
            offer = self._unpatched(offer, outcome)
            self._take_in(offer, peer.connection, outcome)
        except StoreError:
            # Staging has let go of cells that the store may not have: nothing may rest on them.
            self._give_up(list(self._waiting), outcome)
            raise
        finally:
            if plain is not None and asked and offer.probe is not None:
                plain.failed = plain.failed or offer.probe.key not in outcome.finished
        for is_part, held in ((False, outcome.holds), (True, outcome.parts_of)):
            for connection, probe in held:
                meeting = self._meetings.get(connection)
                if meeting is not None and meeting.plain is not None:
                    meeting.plain.holds(probe, part=is_part)
        return outcome.absorbed()

    def _unpatched(self, offer: Offer, outcome: Absorption) -> Offer:
        """Return what a patch says, or its hash alone where it is known or cannot be read.

        It brought the bytes of its message, whatever it stands for, and is read where it has as
        many: a few cells that repeat are a blob of any length.
        Raises: Undecodable: it is no patch.
        """
        patched = None if offer.probe is None else offer.probe.data
        if not isinstance(patched, PatchedRoot):
            return offer
        message, size = patched.message, patched.size_bytes
        load, patch = self.load_encoding, message.patch
        base = encode(message.base) if message.absent is None else load(message.absent)
        top = Probe(message.hash, Incoming((), None, Parts(None), message.hash, sent=size))
        # "It is read when it is no longer than its message, its value is not here"
        # (foreign-data.md, Charges): to read it again would earn for cells that are here.
        if load(message.hash) is not None:
            return Offer(top)
        outcome.unread = True
        if base is None or len(patch) > size:
            return Offer(top)
        limit = min(patched.bytes_max, PATCH_BYTES_MAX)
        try:
            cells = read_patch(bytes(patch), base, load, limit, cells_worth(len(patch)))
            hash, cell = cells.popitem()
            # What it makes is not what it says: "it counts as a statement of the root".
            if hash != message.hash:
                return Offer(top)
            made = join_cells(cell, cells.values())
            value, parts = decode_parts(made, None, patched.bytes_max, ordered=False)
        except (MissingData, LimitExceeded):
            return Offer(top)
        except BadFormat as error:
            raise Undecodable(str(error)) from error
        outcome.unread = False
        return Offer(Probe(hash, Incoming((), value, parts, sent=size)))

    def _take_in(self, offer: Offer, peer: str, outcome: Absorption) -> None:
        # "A disk that is full stops a store where it writes before it frees"
        # (docs/design/foreign-data.md, Room): others' data is refused before that.
        if self.hosting is not None and not self.hosting.has_room():
            self._turn_away(offer, outcome)
            return
        if offer.parts:
            self.charges.bring(peer, sum(len(part.data) for part in offer.parts))
            cells = {part.hash: part.data for part in offer.parts}
            progress = self._incomplete.add(cells, peer)
            charged = self._approach.arrived(offer.parts, progress.missing)
            self._proceed(progress, peer, outcome)
            for slot, size in charged:
                self._cut_short(slot, size, outcome)
            self._come_nearer(offer.parts, outcome)
        if offer.lost:
            self._give_up(self._incomplete.claims_above(offer.lost), outcome)
            self._turn_back(self._approach.lost(offer.lost), outcome)
        if offer.probe is not None:
            self._consider(offer.probe, peer, outcome, is_new=True)
        if self._incomplete.size_bytes > STAGED_BYTES_MAX:
            # Not those of this peer: who fills the room to the brim would keep the others out.
            self._give_up(self._incomplete.heaviest(attrgetter("peer")), outcome)

    def _turn_away(self, offer: Offer, outcome: Absorption) -> None:
        """Take nothing in: the room that the disk still has is for this node's own data."""
        outcome.remark(DISK_LOW, "the disk is nearly full: data of others is not taken")
        if offer.probe is not None:
            outcome.dropped.append(offer.probe.key)
        # What waits for cells would take the room that is left as soon as they came.
        self._give_up(list(self._waiting), outcome)
        self._turn_back(self._approach.claims(), outcome)

    def not_hosted(self, offer: Offer, peer: str) -> list[str]:
        """Name the parts of a stated root that the hosting policy cuts off; its cells are here."""
        if self.hosting is None or offer.probe is None:
            return []
        incoming = offer.probe.data
        assert isinstance(incoming, Incoming)
        try:
            value, _ = self._approach.open(incoming)
            return self.hosting.cut_off(value, self._root, peer)
        except (MissingData, BadFormat):
            return []  # `absorb` tells what is wrong with it

    def serve(self, peer: Peer, request: object) -> Iterator[Reply]:
        """Answer a request for cells by hash, or for what is announced at a path."""
        if isinstance(request, Want):
            yield Reply(self.supply(request.hashes))
            return
        assert isinstance(request, Lookup)
        if is_fork_query(request.path):
            yield Reply(self._hand_over(request.path[1], peer.connection))
            return
        try:
            value = self.query(request.path, peer.connection, strict=request.is_strict)
        except NoSuchPath as error:
            yield Reply(LookupResult(error=str(error)))
        else:
            yield Reply(LookupResult(value, self.load_encoding))

    def supply(self, want: Sequence[bytes]) -> list[Part | None]:
        """Return cells by hash."""
        found = ((hash, self._supplied(hash)) for hash in want)
        return [None if data is None else Part(hash, data) for hash, data in found]

    def _supplied(self, hash: bytes) -> bytes | None:
        return self.load_encoding(hash) if self._store.announced(hash) else self._made.get(hash)

    def _hand_over(self, owner: Value, connection: str) -> LookupResult:
        answer = self.handed(owner, connection)
        made = {hash: data for hash, data, _ in novelty(answer, self._store)}
        return LookupResult(answer, lambda hash: made.get(hash) or self.load_encoding(hash))

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
        key = value_hash(self._view(peer.connection))
        if plain is not None:
            return plain.level == key
        return stated is not None and stated.key == key

    def begin(self, connection: str) -> Offer:
        """Return the root alone."""
        value = self._view(connection)
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
        value = self._view(peer.connection)
        probe = Probe(value_hash(value), value)
        # What the peer holds is a hint: "if it is wrong the peer asks"
        # (docs/design/replication.md).
        if any(base.key == probe.key for base in known):
            return None
        held = [base.data for base in known]
        cells = beyond(held, value, self._load_encodings, PUSH_BYTES_MAX) if held else None
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
            patch = write_patch(encode(value), cells, encode(base.data), self.load_encoding)
        return News((Offer(probe, parts, base=base, patch=patch),))

    def _spell_out(self, plain: PlainPeer, connection: str) -> News:
        """Return what a plain peer lacks, of which it is taken to have been told."""
        view = self._view(connection)
        fetch = self._load_encodings
        frame_max = min(MESSAGE_BYTES_MAX, self._frame_max)
        speller = Speller(self._lattice, view, self._store, fetch, frame_max, PUSH_BYTES_MAX)
        told = None if plain.told is None else plain.told.data
        made = speller.spell_out([one.data for one in plain.heard], told)
        if made.missing and self.on_loss is not None:
            self.on_loss(made.missing)
        plain.told = None if made.told is None else Probe(value_hash(made.told), made.told)
        # Only what it states itself proves what it has: nothing is left to tell, so it has it all.
        has_all = made.is_all and plain.told is None
        plain.level = value_hash(view) if has_all else None
        return News(
            tuple(Offer(Probe(value_hash(piece.value), piece)) for piece in made.pieces),
            not made.is_all,
            tuple(Remark(TOO_LARGE, f"{one} does not fit into a frame") for one in made.too_large),
        )

    def _load_encodings(self, hashes: Sequence[bytes]) -> list[bytes | None]:
        try:
            found = self._store.get_encodings(hashes)
        except Corruption:
            return [self.load_encoding(hash) for hash in hashes]
        return [
            self._made.get(hash) if encoding is None else encoding
            for hash, encoding in zip(hashes, found, strict=True)
        ]

    # --- inside -------------------------------------------------------------------------------

    @property
    def probe(self) -> Probe:
        """How far this replica has come: the announced value."""
        return Probe(self.announced_hash, self._announced)

    def _consider(
        self, probe: Probe, peer: str, outcome: Absorption, *, is_new: bool = False
    ) -> None:
        """Take in a value as far as its cells are here; `is_new`: it has just come."""
        incoming = probe.data
        assert isinstance(incoming, Incoming)
        if is_new:
            self.charges.bring(peer, incoming.size_bytes)
        claim = Claim(peer, incoming.place)
        # "A peer that states nothing, or the state that it is told, is answered without a look at
        # its cells" (docs/design/foreign-data.md, Costs outside of merges).
        if self._is_here(claim, probe, outcome):
            return
        if self._sections and incoming.path and name_bytes(incoming.path[0]) not in self._sections:
            text = f"value at {brief(incoming.path)} not taken: nothing of it is replicated here"
            outcome.refuse(probe.key, text)
            return
        if claim not in self._waiting and self._claim_count(peer) >= CLAIMS_MAX:
            outcome.refuse(probe.key, f"{CLAIMS_MAX} values of this peer are incomplete already")
            return
        if self.hosting is not None and self._enter(claim, probe, outcome):
            return
        before = self._waiting.get(claim)
        if before is not None and incoming.absent is not None:
            # It would be fetched from its top. A peer that writes faster than that takes would
            # never be heard if the last value always took the place of the one before.
            self._pass_over_next(claim, probe.key, outcome)
            if before.key != probe.key:
                self._next[claim] = probe
            return
        cells = dict(incoming.cells.encodings())
        if incoming.absent is not None:
            waiting = Waiting(probe.key, incoming.path, incoming.absent, True, False)
        else:
            try:
                value, is_wrapped = self._wrap(incoming.path, incoming.value, peer), True
            except (MissingData, BadFormat):
                # Nothing of it is checked yet: it is wrapped once it is complete, around its holes.
                value, is_wrapped = incoming.value, False
            except UsageError as error:
                outcome.refuse(probe.key, f"value at {brief(incoming.path)} not taken: {error}")
                return
            # What wrapping made is here in memory only; all other cells came with the message.
            cells.update((hash, data) for hash, data, _ in novelty(value, incoming.cells))
            waiting = Waiting.of(value, probe.key, incoming.path, is_wrapped=is_wrapped)
        self._proceed(self._wait(claim, waiting, cells, outcome), peer, outcome)

    def _wait(
        self, claim: Claim, waiting: Waiting, cells: Mapping[bytes, bytes], outcome: Absorption
    ) -> Completion:
        """Wait for the cells of a value, with these at hand, in the place of the one before it."""
        before = self._waiting.get(claim)
        if before is not None:
            # A peer's newer value contains its older one; the cells fetched so far serve both.
            outcome.supersede(before.key, waiting.key)
            self._pass_over_next(claim, waiting.key, outcome)
            self._incomplete.release(claim)
        self._waiting[claim] = waiting
        bare = b"" if waiting.is_hash else waiting.top
        refs = references(bare) if bare else [waiting.top]
        return self._incomplete.claim(claim, refs, cells, bare, claim.peer)

    def _enter(self, claim: Claim, probe: Probe, outcome: Absorption) -> bool:
        """Consider a value under a policy: look whose data it has, cut off what is refused.

        False: that cannot be told, so it is cut, around its holes, when all of it is here.
        """
        incoming, hosting, approach = probe.data, self.hosting, self._approach
        assert isinstance(incoming, Incoming)
        assert hosting is not None
        before = self._waiting.get(claim)
        work = self.charges.open(claim.peer)
        try:
            value, loader = approach.open(incoming)
            value = self._wrap(incoming.path, value, claim.peer, work)
            limited = hosting.limited(self._root, value, claim.peer, work)
        except MissingData as error:
            is_new = claim not in approach or approach.probe_of(claim) is probe
            if before is None and is_new:
                outcome.need(approach.look(claim, probe, error.hashes), claim.peer)
                return True
            # What is fetched just now comes first, or whoever writes quickly is never heard.
            self._pass_over_next(claim, probe.key, outcome)
            if (approach.probe_of(claim).key if before is None else before.key) != probe.key:
                self._next[claim] = probe
            return True
        except (BadFormat, Corruption):
            approach.forget(claim)
            return False
        except (UsageError, WorkExceeded) as error:
            approach.forget(claim)
            outcome.refuse(probe.key, f"value at {brief(incoming.path)} not taken: {error}")
            return True
        finally:
            self.charges.close(claim.peer, work)
        if before is None and claim not in approach and same(value, self._zero):
            self._took(claim, probe.key, Probe(value_hash(value), value), outcome)
            return True  # nothing of it concerns this node, so there is nothing to merge
        cells = approach.cells(incoming, {hash: data for hash, data, _ in novelty(value, loader)})
        passed = approach.forget(claim)
        if passed is not None:
            outcome.supersede(passed.key, probe.key)
        waiting = Waiting.of(value, probe.key, incoming.path, is_wrapped=True)
        progress = self._wait(claim, waiting, cells, outcome)
        self._stated[claim] = probe
        approach.follow(limited, cells, progress.missing)
        self._proceed(progress, claim.peer, outcome)
        return True

    def _come_nearer(self, parts: Sequence[Part], outcome: Absorption) -> None:
        """Go on with the values whose upper cells have come."""
        if not len(self._approach):
            return
        missing, ready = self._approach.take(parts)
        outcome.missing.extend(missing)
        for claim in ready:
            self._consider(self._approach.probe_of(claim), claim.peer, outcome)
            if claim not in self._waiting and claim not in self._approach:
                after = self._next.pop(claim, None)
                if after is not None:
                    self._consider(after, claim.peer, outcome)
        if self._approach.size_bytes > AHEAD_BYTES_MAX:
            self._turn_back(self._approach.claims(), outcome)

    def _turn_back(self, claims: Iterable[Claim], outcome: Absorption) -> None:
        """Give up values whose upper cells are fetched."""
        for claim in claims:
            probe = self._approach.forget(claim)
            if probe is not None:
                outcome.dropped.append(probe.key)
            if claim in self._next:
                outcome.dropped.append(self._next.pop(claim).key)

    def _cut_short(self, slot: OwnerSlot, size: int, outcome: Absorption) -> None:
        """Fetch no more of a slot when what came of it has no room; fetch the rest without it."""
        hosting, approach = self.hosting, self._approach
        # "From there on every cell that arrives lies in a known slot": the quota holds while a
        # value still comes (docs/design/foreign-data.md, Room).
        if hosting is None or hosting.has_room_for(slot, self._root, size, outcome):
            return
        waits = approach.waits_for(slot)
        claims = self._incomplete.claims_above(waits)
        hosting.blame(slot, [claim.peer for claim in claims if isinstance(claim, Claim)])
        approach.drop(slot)
        for claim in claims:
            assert isinstance(claim, Claim)
            del self._waiting[claim]
        approach.leave(self._incomplete.drop(claims))
        for claim in claims:
            assert isinstance(claim, Claim)
            self._consider(self._stated.pop(claim), claim.peer, outcome)
        outcome.unwanted += [hash for hash in waits if not self._incomplete.is_wanted(hash)]

    def _pass_over_next(self, claim: Claim, newer: bytes, outcome: Absorption) -> None:
        """Wait for the value with the key `newer` in the place of the one that was to come next."""
        if claim in self._next:
            outcome.supersede(self._next.pop(claim).key, newer)

    def _claim_count(self, peer: str) -> int:
        return sum(claim.peer == peer for claim in self._waiting) + self._approach.count(peer)

    def _wrap(
        self, path: tuple[Value, ...], value: Value, peer: str, work: Work | None = None
    ) -> Value:
        """Return a foreign value as a root: where it belongs, without what is not replicated.

        Raises: UsageError: the path leads nowhere, or through a signature; a wrong kind of value.
                MissingData: it takes a look at a cell that is not here yet.
                WorkExceeded: to look whose data it has costs more than `work` has.
        """
        lattice = self._lattice
        if path:
            # Wrapped to the root, a value passes every check above it: section, owner, signature.
            value = assoc_in(None, path, value, lattice)
        if not lattice.check_foreign(value):
            raise TypeMismatch(f"not a value of this lattice: {type(value).__name__}")
        if isinstance(lattice, KeyedLattice) and isinstance(value, Index):
            # "A root has at most 256 sections, known or not" (docs/design/foreign-data.md, Costs
            # outside of merges).
            if len(value) > SECTIONS_MAX:
                raise TypeMismatch(f"a root of {len(value)} sections, at most {SECTIONS_MAX}")
            sections = self._sections
            for key in [key for key, _ in value.entries() if name_bytes(key) not in sections]:
                value = value.remove(key)
            if path and not len(value):
                raise NoSuchPath("nothing of it is replicated here")
        paths = self._paths.get(peer)
        if paths is not None:
            value = select(value, paths)
            if value is None:
                raise NoSuchPath("nothing of it is replicated with this peer")
        if self.hosting is not None:
            value = self.hosting.cut(value, self._root, peer, work)
            if path and get_in(value, path) is None:
                raise NoSuchPath("this node does not host it")
        return value

    def _proceed(self, progress: Completion, peer: str, outcome: Absorption) -> None:
        """Store what is complete, note what is missing, merge the values that became complete."""
        if progress.stored:
            self._make_writable()
            try:
                self._store.put_encodings(progress.stored)
            except MissingData:  # a collection removed what they lean on; they are offered again
                self._give_up(list(self._waiting), outcome)
                return
        outcome.need(progress.missing, peer)
        # "A bad part costs the smallest unit": the cell is not stored, and what needs it is left
        # out when the value is merged (docs/design/foreign-data.md, Holes).
        for hash, reason, sender in progress.unsound:
            text = f"cell 0x{hash.hex()} is not stored: {reason}"
            outcome.remark(UNSOUND, text)
            if self.charges.blame(sender):
                count = self.charges.limits.unsound_max
                outcome.breaches.append((sender, f"{count} cells that do not fit together: {text}"))
        for claim in progress.complete:
            assert isinstance(claim, Claim)
            waiting = self._waiting.pop(claim)
            self._stated.pop(claim, None)
            refusal = progress.refused.get(claim)
            if refusal is None:
                holes = progress.holes.get(claim, NO_HOLES)
                in_full = self._merge(claim, waiting, holes, outcome)
            else:
                outcome.refuse(
                    waiting.key, f"a value at {brief(waiting.path)} is not taken: {refusal}"
                )
                in_full = False
            outcome.ended.append((claim.peer, in_full))
            after = self._next.pop(claim, None)
            if after is not None:
                self._consider(after, claim.peer, outcome)

    def _merge(self, claim: Claim, waiting: Waiting, holes: Holes, outcome: Absorption) -> bool:
        """Merge a complete foreign value around its holes; return whether it was taken in full."""
        work = self.charges.open(claim.peer)
        try:
            return self._merge_on(work, claim, waiting, holes, outcome)
        finally:
            self.charges.close(claim.peer, work)

    def _merge_on(
        self, work: Work, claim: Claim, waiting: Waiting, holes: Holes, outcome: Absorption
    ) -> bool:
        """Merge it on the account of one message, which pays for its evidence, too."""
        peer = claim.peer
        outcome.finished.append(waiting.key)
        loader = holes.loader(self._store)
        dropped = outcome.dropped_parts
        self._holes = holes
        try:
            other = loader.load(waiting.top) if waiting.is_hash else decode(waiting.top, loader)
            if not waiting.is_wrapped:
                other = self._wrap(waiting.path, other, peer, work)
            admitted = self._admit(other, peer, work)
            other = other if admitted is None else admitted.value
            merged = self._merged(other, holes, work)
        except (BadFormat, Corruption, MissingData, UsageError, WorkExceeded) as error:
            if isinstance(error, MissingData) and self.on_loss is not None:
                self.on_loss(error.hashes)  # the foreign value is complete: it is ours
            # Parts that do not fit together show only when they are looked at.
            text = f"a value at {brief(waiting.path)} is not taken: {error}"
            outcome.refused[waiting.key] = text
            outcome.remark(REFUSED, text)
            return False
        finally:
            self._holes = NO_HOLES
            outcome.merged(waiting.key)
        taken = Probe(value_hash(other), other)
        if not holes:
            held = outcome.parts_of if waiting.path else outcome.holds
            held.append((peer, taken))
        in_full = not holes and outcome.dropped_parts == dropped
        # What had no room is cut off its later values for a while; it is missing here all the same.
        short = [] if self.hosting is None else self.hosting.short_of(peer)
        if in_full and short:
            outcome.remark(QuotaExceeded.kind, short[-1])
            in_full = False
        if in_full and admitted is not None and not admitted.is_short and taken.key != waiting.key:
            self._remember_cut(claim, waiting, taken)
        is_new = merged is not self._root and not same(merged, self._root)
        value = self._with_evidence(merged, work)
        if value is self._root or (not is_new and same(value, self._root)):
            return in_full
        # "It was written in the commit of the merge that made it." Of two branches of a slot the
        # greater one replaces the other, so the root need not contain the one before it.
        self._commit(value, contains=False)
        self.charges.commit(peer)
        if not is_new:
            return in_full
        if self.hosting is not None and admitted is not None:
            for count in self.hosting.taken(merged, admitted):
                self._approach.drop(count.slot)
        outcome.changed = True
        return in_full

    def _remember_cut(self, claim: Claim, waiting: Waiting, taken: Probe) -> None:
        """Remember that all of a peer's state is here that is hosted: it may state it for hours."""
        if self.hosting is None or waiting.path:
            return
        self._cuts.pop(claim, None)
        self._cuts[claim] = (waiting.key, self.hosting.epoch, taken)
        if len(self._cuts) > CUTS_MAX:
            del self._cuts[next(iter(self._cuts))]

    def _is_here(self, claim: Claim, probe: Probe, outcome: Absorption) -> bool:
        """Return whether all is here that a peer states: nothing, or the state that it is told.

        Or it states again what was taken of it but for what is not hosted.
        """
        if claim in self._waiting or claim in self._approach:
            return False
        for value in (self._zero, self._view(claim.peer)):
            if value_hash(value) == probe.key:
                self._took(claim, probe.key, Probe(probe.key, value), outcome)
                return True
        key, epoch, taken = self._cuts.get(claim, (b"", None, None))
        if taken is None or key != probe.key or self.hosting is None:
            return False
        if epoch != self.hosting.epoch:
            return False
        self._took(claim, probe.key, taken, outcome)
        return True

    def _took(self, claim: Claim, key: bytes, taken: Probe, outcome: Absorption) -> None:
        """Note that all of what a peer stated is here, as `taken`."""
        outcome.finished.append(key)
        outcome.holds.append((claim.peer, taken))
        outcome.ended.append((claim.peer, True))

    def _merged(self, other: Value, holes: Holes, work: Work) -> Value:
        """Return the root with a foreign one merged into it.

        Raises: BadFormat: its own cell is not sound, or the result would refer to one that is not.
        """
        if isinstance(other, Hole):
            raise BadFormat(holes.reason())
        context = self._context.for_foreign(self._context.report, work, holes)
        merged = self._lattice.merge(self._root, other, context)
        if holes.is_planted(merged):  # "no merge can plant a hole, whatever it forgets"
            raise BadFormat(f"the merge would keep a cell that is not sound: {holes.reason()}")
        return merged

    def _fetch_foreign(self, hashes: Sequence[bytes]) -> list[bytes | None]:
        """Return encodings of cells of the value that is just merged, also of those above holes."""
        tainted = self._holes.tainted
        if not tainted:
            return self._load_encodings(hashes)
        found = self._load_encodings([hash for hash in hashes if hash not in tainted])
        rest = iter(found)
        return [tainted[hash] if hash in tainted else next(rest) for hash in hashes]

    def _admit(self, other: Value, peer: str, work: Work) -> Admitted | None:
        """Return what of a complete root is hosted and has room; None: there is no policy."""
        hosting = self.hosting
        if hosting is None:
            return None
        # Once more: it may have been decided while the value waited for its cells.
        other = hosting.cut(other, self._root, peer, work)
        return hosting.within(self._root, other, peer, self._outcome, work)

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
        announced = self._public(value)
        # "A cell is served by its hash when the part of a root that peers see reached it": the
        # store keeps that with the cell (docs/design/foreign-data.md, What is served).
        self._store.commit(value, contains=contains, announced=[announced, *branches])
        if new:
            self._handed = {one.id for one in self.evidence.open}
        self._root = value
        self._announce(announced)
        self._join()

    def _join(self) -> None:
        """Make the root part of the live value, if it is not: what is published must contain it."""
        before, root, lattice = self._joined, self._root, self._lattice
        if before is not root and self.cursor.get() is not root:
            # Whatever is written from now on is written on top of it.
            self.cursor.adopt(lambda live: overlaid(lattice, before, live, root, self._context))
        self._joined = root

    def _public(self, root: Value) -> Value:
        """Return a root without what never leaves this node."""
        return replicable(root) if isinstance(self._lattice, KeyedLattice) else root

    def _announce_branches(self) -> None:
        """Announce the kept branches of a root that came from another store, as of a backup."""
        self._handed = {one.id for one in self.evidence.open if self._is_handed(one.loser)}
        if len(self._handed) < len(self.evidence.open):
            self._commit(self._root, contains=False)

    def _is_handed(self, branch: Value) -> bool:
        """Return whether all of a kept branch that is here is announced."""
        names = references(encode(branch)) if is_embedded(branch) else [value_hash(branch)]
        return all(self._store.announced(name) for name in names)

    def _announce(self, announced: Value) -> None:
        if announced is not self._root:
            self._keep(announced)
        self._announced = announced

    def _keep(self, value: Value) -> None:
        """Keep the cells on the way to what was cut off: they differ from the stored ones.

        Peers will ask for them, and for those of the state before this one, too.
        """
        made = {hash: encoding for hash, encoding, _ in novelty(value, self._store)}
        made[value_hash(value)] = encode(value)  # asked for by hash even where it is no branch
        known = {hash: encoding for hash, encoding in self._made.items() if hash not in made}
        room = MADE_MAX * (1 + len(self._paths))  # the views of all peers are kept, too
        self._made = dict([*known.items(), *made.items()][-max(room, len(made)) :])

    def _give_up(self, claims: Iterable[object], outcome: Absorption) -> None:
        for claim in claims:
            assert isinstance(claim, Claim)
            outcome.dropped.append(self._waiting.pop(claim).key)
            self._stated.pop(claim, None)
            if claim in self._next:
                outcome.dropped.append(self._next.pop(claim).key)
        self._approach.leave(self._incomplete.drop(claims))


def _sections_of(lattice: Lattice) -> set[bytes | None]:
    """Return the names of the sections that a lattice replicates."""
    fixed = lattice.children() if isinstance(lattice, KeyedLattice) else ()
    return {name_bytes(key) for key in fixed} - {name_bytes(LOCAL_KEY)}


def _field(signed: Signed, key: Value) -> Value:
    """Return a field of signed data, which a query reads like a record with three keyword keys."""
    if not isinstance(key, Keyword) or key.name not in _SIGNED_FIELDS:
        return None
    if key.name == "value":
        return signed.value
    return signed.public_key if key.name == "public-key" else signed.signature
