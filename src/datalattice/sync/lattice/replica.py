"""Lattice replica: a store, a lattice and a live cursor, as something that replicates.

A `LatticeState` holds the data. `absorb` gives what peers send to the `Intake`, which joins
complete values into that state; what peers are sent is made here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from datalattice.cells import MessageCells, Value, Vector, encode, is_embedded, novelty, value_hash
from datalattice.clock import Clock, SystemClock
from datalattice.cursors import Gate
from datalattice.errors import NoSuchPath
from datalattice.lattice import (
    BAD_SIGNATURE,
    EMPTY_CONTEXT,
    ENTRY_DROPPED,
    NOT_OWNER,
    Lattice,
    MergeContext,
    get_in,
)
from datalattice.limits import MESSAGE_BYTES_MAX
from datalattice.store import Store
from datalattice.sync.lattice.absorption import QUOTA_EXCEEDED, Absorption
from datalattice.sync.lattice.charging import Charges
from datalattice.sync.lattice.comparison import LatticeComparison, Meeting, PlainPeer
from datalattice.sync.lattice.delta import beyond
from datalattice.sync.lattice.evidence import EvidenceLimits
from datalattice.sync.lattice.handover import handed, is_fork_query
from datalattice.sync.lattice.incoming import PATCHES, Incoming, Lookup, LookupResult
from datalattice.sync.lattice.intake import DISK_LOW, STAGED_BYTES_MAX, Intake
from datalattice.sync.lattice.latticestate import LatticeState
from datalattice.sync.lattice.patch import PATCH_CELLS_MAX, write_patch
from datalattice.sync.lattice.peerviews import MADE_MAX
from datalattice.sync.lattice.policy import HostingPolicy
from datalattice.sync.lattice.spelling import Speller
from datalattice.sync.replica import (
    FETCHES,
    Absorbed,
    News,
    Offer,
    Part,
    Peer,
    Probe,
    Regard,
    Remark,
    Reply,
    Want,
    Why,
)

PUSH_BYTES_MAX: Final = 8_000_000
"""Largest difference that is pushed. Of a larger one the peer is sent the root alone, and fetches
the rest at its own pace."""

TOO_LARGE: Final = "too-large"
"""Metric label of entries that do not fit into a frame to a plain peer."""

IMPORTED: Final = "import"
"""The name, in place of a connection, of an import by the operator."""

NOT_HOSTED: Final = "not-hosted"
"""Metric label of parts that the hosting policy of this node cuts off."""

_LEFT_OUT: Final = frozenset(
    {BAD_SIGNATURE, ENTRY_DROPPED, NOT_OWNER, QUOTA_EXCEEDED, DISK_LOW, NOT_HOSTED}
)


@dataclass(frozen=True, slots=True)
class ReplicaLimits:
    """Bounds of what a replica holds in memory and sends.

    staged_bytes_max: bytes of cells above gaps, of all values that wait.
    made_max:         cells that exist only because something was cut off, for each view.
    push_bytes_max:   bytes of a difference that is pushed.
    """

    staged_bytes_max: int = STAGED_BYTES_MAX
    made_max: int = MADE_MAX
    push_bytes_max: int = PUSH_BYTES_MAX


class LatticeReplica:
    """A lattice value that replicates; one thread owns it, its cursor is for every thread.

    on_sync: as of `LatticeState`. frame_max: longest frame that this node reads, in bytes.
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
        clock = clock or SystemClock()
        self.charges: Final = charges or Charges(clock)
        """The accounts of senders, which pay for merges."""
        self.state: Final = LatticeState(
            store,
            lattice,
            context,
            self.charges,
            clock,
            on_sync=on_sync,
            policy=hosting,
            evidence_limits=evidence_limits,
            watched=watched,
            gate=gate,
            made_max=limits.made_max,
        )
        """The root, the live value, and what commits them."""
        self.store: Final = store
        self.lattice: Final = lattice
        self.cursor: Final = self.state.cursor
        self.views: Final = self.state.views
        self.evidence: Final = self.state.evidence
        self.hosting: Final = self.state.hosting
        self.intake: Final = Intake(self.state, self.charges, limits.staged_bytes_max)
        """The foreign values that wait for cells."""
        self._frame_max = frame_max
        self._push_bytes_max = limits.push_bytes_max
        self._meetings: dict[str, Meeting] = {}  # by connection

    @property
    def root(self) -> Value:
        """The value that is durable, with what never leaves this node."""
        return self.state.root

    @property
    def announced(self) -> Value:
        """The part of the root that peers are sent and served."""
        return self.views.announced

    @property
    def announced_hash(self) -> bytes:
        """The value hash of the announced value."""
        return value_hash(self.views.announced)

    @property
    def probe(self) -> Probe:
        """The present state: the announced value."""
        return Probe(self.announced_hash, self.views.announced)

    # --- changes ------------------------------------------------------------------------------

    def publish(self) -> bool:
        """Commit the live value and announce it; return whether it was a new one.

        Raises: UsageError, BadSignature: as `LatticeState.publish`. StoreError: it was not kept.
        """
        return self.state.publish()

    def absorb(self, offer: Offer, peer: Peer, *, asked: bool = False) -> Absorbed:
        """Take in a foreign value, or cells that one waits for.

        Raises: BadFormat: a value that is not what its encoding claims. Undecodable: a malformed
                patch. StoreError: the store cannot keep it; all values that wait are given up.
        """
        plain = self._plain(peer)
        outcome = Absorption(sender=peer.connection)
        try:
            self.intake.take_in(offer, outcome)
        finally:
            if plain is not None and asked and offer.probe is not None:
                plain.failed = plain.failed or offer.probe.key not in outcome.finished
        for is_part, held in ((False, outcome.holds), (True, outcome.parts_of)):
            for connection, probe in held:
                meeting = self._meetings.get(connection)
                if meeting is not None and meeting.plain is not None:
                    meeting.plain.holds(probe, part=is_part)
        return outcome.finish()

    def repair(self, parts: Sequence[Part]) -> None:
        """Replace damaged or missing cells by these, which peers delivered.

        Raises: BadFormat: one is not what its hash says. StoreError: they cannot be kept.
        """
        self.state.make_writable()
        self.store.heal((part.hash, part.data) for part in parts)

    # --- peers --------------------------------------------------------------------------------

    def regard(self, peer: Peer) -> Regard:
        """Return how a peer is regarded: any peer may read, and offer what is signed."""
        wanted = peer.connection in self.charges.wanted
        return Regard.WANTED if wanted else Regard.STRANGER

    def hear(self, peer: Peer) -> None:
        """Charge a message to its sender."""
        self.charges.hear(peer.connection)

    def forget(self, peer: Peer) -> None:
        self._meetings.pop(peer.connection, None)

    def compare(
        self, peer: Peer, why: Why, path: Sequence[object] = ()
    ) -> LatticeComparison | None:
        meeting = self._meetings.setdefault(peer.connection, Meeting())
        if FETCHES in peer.features:
            meeting.plain = None
        elif why is Why.MEETING and meeting.plain is None:
            meeting.plain = PlainPeer()
        if why is Why.ASKED:
            return None  # a comparison of this protocol is one question, which `serve` answers
        if meeting.plain is not None and meeting.plain.open and why in (Why.DUE, Why.DIRTY):
            return None  # the round before has no answer yet
        made = LatticeComparison(self.state, peer, meeting, why, path, self._frame_max)
        return None if made.is_empty else made

    def equals(self, peer: Peer, stated: Probe | None) -> bool:
        plain = self._plain(peer)
        key = value_hash(self.views.of(peer.connection))
        if plain is not None:
            return plain.level == key
        return stated is not None and stated.key == key

    def _plain(self, peer: Peer) -> PlainPeer | None:
        """Return what a peer that fetches nothing is assumed to have, None for any other."""
        meeting = self._meetings.get(peer.connection)
        return None if meeting is None or FETCHES in peer.features else meeting.plain

    # --- what peers ask -----------------------------------------------------------------------

    def serve(self, peer: Peer, request: object) -> Iterator[Reply]:
        """Answer a request for cells by hash, or for what is announced at a path."""
        # Cells that were announced, and no others: a known hash of `:local` gets nothing.
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
            yield Reply(LookupResult(value, self.views.load_all))

    def _hand_over(self, owner: Value, connection: str) -> LookupResult:
        """Return the kept branches of an owner that are not in their slots."""
        view = self.views.of(connection)
        # They were signed to be published. A partial peer sees those of its own slots only.
        answer: Vector = handed(
            self.evidence.open, owner, lambda path: get_in(view, path) is not None
        )
        made = {hash: data for hash, data, _ in novelty(answer, self.store)}
        load = self.views.load
        return LookupResult(answer, lambda some: [made.get(one) or load(one) for one in some])

    # --- what peers are sent ------------------------------------------------------------------

    def news(self, peer: Peer, known: Sequence[Probe]) -> News | None:
        """Return the present root with the cells that none of the known values has.

        For a plain peer: what it neither stated nor was sent since, as complete values; None until
        it has answered once.
        """
        plain = self._plain(peer)
        if plain is not None:
            return self._spell_out(plain, peer.connection) if plain.is_asked else None
        value = self.views.of(peer.connection)
        probe = Probe(value_hash(value), value)
        # What the peer holds is a hint: "if it is wrong the peer asks"
        # (docs/design/replication.md).
        if probe.key in [base.key for base in known]:
            return None
        held = [base.data for base in known]
        cells = beyond(held, value, self.views.load_all, self._push_bytes_max) if held else None
        if cells is None:
            # "A difference above 8 MB is replaced by the root alone" (docs/protocol.md).
            return News((self.views.top(peer.connection),))
        parts = tuple([Part(hash, data) for hash, data in cells.items()])
        # A patch of an embedded value, which is what a new peer states first, saves nothing.
        base = ([base for base in known if not is_embedded(base.data)] or known)[0]
        patch = None
        if PATCHES in peer.features and 0 < len(parts) <= PATCH_CELLS_MAX:
            patch = write_patch(encode(value), cells, encode(base.data), self.views.load)
        return News((Offer(probe, parts, base=base, patch=patch),))

    def _spell_out(self, plain: PlainPeer, connection: str) -> News:
        """Return what a plain peer lacks; it is assumed to have it from now on."""
        view = self.views.of(connection)
        fetch = self.views.load_all
        frame_max = min(MESSAGE_BYTES_MAX, self._frame_max)
        speller = Speller(self.lattice, view, self.store, fetch, frame_max, self._push_bytes_max)
        told = None if plain.told is None else plain.told.data
        made = speller.spell_out([one.data for one in plain.heard], told)
        if made.missing:
            self.state.lost(made.missing)
        plain.told = None if made.told is None else Probe(value_hash(made.told), made.told)
        # Only what the peer states proves what it has: it is level once nothing is left to send
        # and nothing was sent since its last answer.
        has_all = made.is_all and plain.told is None
        plain.level = value_hash(view) if has_all else None
        return News(
            tuple(Offer(Probe(value_hash(piece.value), piece)) for piece in made.pieces),
            not made.is_all,
            tuple(Remark(TOO_LARGE, f"{one} does not fit into a frame") for one in made.too_large),
        )


# --- imports by the operator ----------------------------------------------------------------------


def offer_of(top: bytes, apart: Mapping[bytes, bytes]) -> Offer:
    """Return the offer of a root by its hash; its cells are staged, except those in `apart`."""
    parts = MessageCells(None)
    parts.add(list(apart.values()))
    return Offer(Probe(top, Incoming((), None, parts, top)))


def absorb_import(replica: LatticeReplica, offer: Offer, *, is_known: bool = False) -> Absorbed:
    """Merge a value that the operator imports, with the same checks as the state of a peer.

    Its sound cells are staged in the store already. Unsound cells, and those above them, come with
    the offer. The result names everything that was left out. Durable on return.

    is_known: its unsigned data comes from a known sender, so that it has no quota.
    Raises: as `LatticeReplica.absorb`.
    """
    # The operator waits for it, so it has the account of a wanted peer.
    replica.charges.introduce(IMPORTED, IMPORTED, is_wanted=True, is_known=is_known)
    try:
        names = replica.intake.not_hosted(offer, IMPORTED)
        absorbed = replica.absorb(offer, Peer(IMPORTED))
        if absorbed.missing:  # a collection took cells that were staged
            replica.absorb(Offer(lost=tuple(absorbed.missing)), Peer(IMPORTED))
    finally:
        replica.charges.leave(IMPORTED)
    if names:
        text = f"{names[0]}: this node does not host it; `lattice hosting` shows what it hosts"
        absorbed.reports.append(Remark(NOT_HOSTED, text, len(names)))
    return absorbed


def is_left_out(remark: Remark) -> bool:
    """Return whether a report is of something that was not taken."""
    return remark.is_refusal or remark.is_loss or remark.kind in _LEFT_OUT
