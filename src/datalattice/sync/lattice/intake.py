"""Intake: foreign values, from their arrival until they are merged or refused.

A foreign value goes through four steps. It is wrapped up to the root, so that every check from
there down applies to it. What this node does not replicate is cut off. It is claimed: cells that
are neither here nor in the message are named, and nothing more happens until they are. Then it is
merged, on the account of who sent it.

What goes on with a claim depends on what else waits for it: under a hosting policy the upper cells
come first (`Approach`), and of a value that is known by its hash alone the one before it is
finished first.

Length: one account of what every peer's values wait for; every step changes the same claims.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Final, Protocol

from datalattice.cells import (
    NO_HOLES,
    Holes,
    Index,
    MessageCells,
    Value,
    Work,
    brief,
    decode,
    decode_parts,
    encode,
    novelty,
    references,
    same,
    value_hash,
)
from datalattice.clock import Clock
from datalattice.errors import (
    BadFormat,
    Corruption,
    LimitExceeded,
    MissingData,
    NoSuchPath,
    StoreError,
    TypeMismatch,
    UsageError,
    WorkExceeded,
)
from datalattice.lattice import (
    LOCAL_KEY,
    KeyedLattice,
    Lattice,
    MergeContext,
    assoc_in,
    get_in,
    name_bytes,
    select,
)
from datalattice.store import Store
from datalattice.sync.lattice.absorption import REFUSED, UNSOUND, Absorption
from datalattice.sync.lattice.approach import AHEAD_BYTES_MAX, Approach
from datalattice.sync.lattice.charging import Charges, Sender
from datalattice.sync.lattice.hosting import DISK_LOW, Admitted, Hosting, QuotaExceeded
from datalattice.sync.lattice.incoming import Claim, Incoming, PatchedRoot, Waiting
from datalattice.sync.lattice.incomplete import Completion, IncompleteCells
from datalattice.sync.lattice.patch import cells_worth, read_patch
from datalattice.sync.lattice.policy import HostingPolicy
from datalattice.sync.lattice.usage import OwnerSlot
from datalattice.sync.lattice.views import Views
from datalattice.sync.replica import Offer, Part, Probe, Undecodable
from datalattice.wire import PATCH_BYTES_MAX, join_cells

CLAIMS_MAX: Final = 64
"""Incomplete values that one peer may have us wait for."""

STAGED_BYTES_MAX: Final = 256_000_000
"""Cells held in memory above gaps.

They are inner nodes, so the values above them may be far larger.
"""

CUTS_MAX: Final = 1_024
"""Peers whose last state is remembered of which a part is not hosted here."""

SECTIONS_MAX: Final = 256
"""Sections of a foreign root, those among them that are unknown here. A huge root is named in a few
bytes when all of it came before."""


class Merger(Protocol):
    """Where complete foreign values go."""

    @property
    def root(self) -> Value:
        """The value that they are merged into."""
        ...

    def merge(self, other: Value, holes: Holes, work: Work) -> Value:
        """Return the root with a foreign one merged into it, around its holes.

        Raises: BadFormat: its own cell is not sound, or the result would refer to one that is not.
                WorkExceeded: it takes more work than there is.
        """
        ...

    def keep(self, merged: Value, work: Work) -> bool:
        """Make a merged root, and the evidence for it, durable; return whether it took a commit."""
        ...

    def lost(self, hashes: Sequence[bytes]) -> None:
        """Take note of cells of the root that turned out to be missing."""
        ...


class Intake:
    """The foreign values of one replica that are on their way in. One thread uses it.

    policy: whose data is taken, and how much; None: all of it.
    """

    def __init__(
        self,
        merger: Merger,
        store: Store,
        lattice: Lattice,
        views: Views,
        context: MergeContext,
        clock: Clock,
        policy: HostingPolicy | None = None,
        charges: Charges | None = None,
        staged_bytes_max: int = STAGED_BYTES_MAX,
    ) -> None:
        self._merger = merger
        self._store = store
        self._lattice = lattice
        self._views = views
        self.staged_bytes_max = staged_bytes_max
        self._sections = _sections_of(lattice)
        self._zero: Final = lattice.zero()
        self.outcome = Absorption()
        """What becomes of the offer that is taken in just now."""
        self._incomplete = IncompleteCells(store)
        self._approach = Approach(store)
        self._waiting: dict[Claim, Waiting] = {}
        self._stated: dict[Claim, Probe] = {}  # what is waited for, as it was stated
        self._next: dict[Claim, Probe] = {}  # what is known by its hash alone, and comes after
        # What a peer stated, under which policy, and what of it was taken.
        self._cuts: dict[Claim, tuple[bytes, object, Probe]] = {}
        self._holes = NO_HOLES  # of the value that is merged just now
        self.charges = charges or Charges(clock)
        """What the merges of each sender cost."""
        self.hosting: Hosting | None = None
        """Whose data is taken, and how much; None: all of it."""
        if policy is not None:
            self.hosting = Hosting(policy, store, lattice, context, self._fetch, clock)

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

    @property
    def count(self) -> int:
        """Values that wait for cells."""
        return len(self._waiting) + len(self._approach)

    @property
    def size_bytes(self) -> int:
        """Bytes of cells of such values that are here already."""
        return self._incomplete.size_bytes + self._approach.size_bytes

    @property
    def gaps_bytes(self) -> int:
        """Of these, bytes of cells above gaps: at most `staged_bytes_max`."""
        return self._incomplete.size_bytes

    def take_in(self, offer: Offer, peer: str) -> Absorption:
        """Take in what a peer sent; return what became of it.

        Raises: Undecodable: a patch that is none. StoreError: the store cannot keep it; all that
                waits for cells is given up.
        """
        outcome = self.outcome = Absorption(peer)
        try:
            self._take_in(self._unpatched(offer, outcome), peer, outcome)
        except StoreError:
            # Staging has let go of cells that the store may not have: nothing may rest on them.
            self._give_up(list(self._waiting), outcome)
            raise
        return outcome

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
        load, patch = self._views.load, message.patch
        base = encode(message.base) if message.absent is None else load(message.absent)
        top = Probe(message.hash, Incoming((), None, MessageCells(None), message.hash, sent=size))
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
        if self._incomplete.size_bytes > self.staged_bytes_max:
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
            return self.hosting.cut_off(value, self._merger.root, peer)
        except (MissingData, BadFormat):
            return []  # `absorb` tells what is wrong with it

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
            limited = hosting.limited(self._merger.root, value, claim.peer, work)
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
        if hosting is None or hosting.has_room_for(slot, self._merger.root, size, outcome):
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
        paths = self._views.paths_of(peer)
        if paths is not None:
            value = select(value, paths)
            if value is None:
                raise NoSuchPath("nothing of it is replicated with this peer")
        if self.hosting is not None:
            value = self.hosting.cut(value, self._merger.root, peer, work)
            if path and get_in(value, path) is None:
                raise NoSuchPath("this node does not host it")
        return value

    def _proceed(self, progress: Completion, peer: str, outcome: Absorption) -> None:
        """Store what is complete, note what is missing, merge the values that became complete."""
        if progress.stored:
            if self._store.has_failed:
                self._store.resume()
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
            merged = self._merger.merge(other, holes, work)
        except (BadFormat, Corruption, MissingData, UsageError, WorkExceeded) as error:
            if isinstance(error, MissingData):
                self._merger.lost(error.hashes)  # the foreign value is complete: it is ours
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
        root = self._merger.root
        is_new = merged is not root and not same(merged, root)
        if not self._merger.keep(merged, work):
            return in_full
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
        for value in (self._zero, self._views.of(claim.peer)):
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

    def _fetch(self, hashes: Sequence[bytes]) -> list[bytes | None]:
        """Return encodings of cells of the value that is just merged, also of those above holes."""
        tainted = self._holes.tainted
        if not tainted:
            return self._views.load_all(hashes)
        found = self._views.load_all([hash for hash in hashes if hash not in tainted])
        rest = iter(found)
        return [tainted[hash] if hash in tainted else next(rest) for hash in hashes]

    def _admit(self, other: Value, peer: str, work: Work) -> Admitted | None:
        """Return what of a complete root is hosted and has room; None: there is no policy."""
        hosting = self.hosting
        if hosting is None:
            return None
        # Once more: it may have been decided while the value waited for its cells.
        other = hosting.cut(other, self._merger.root, peer, work)
        return hosting.within(self._merger.root, other, peer, self.outcome, work)

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
