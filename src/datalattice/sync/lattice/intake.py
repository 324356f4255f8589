"""Intake: foreign values, from their arrival until they are complete and joined, or refused.

A foreign value goes through four steps. It is wrapped up to the root, so that every check from
there down applies to it. What this node does not replicate is cut off. The rest is claimed: it
waits for the cells that are neither here nor in the message. Once they have come, the
`LatticeState` joins it into the root, on the account of its sender.

Two rules decide what comes first. Under a hosting policy the upper cells of a value are fetched
before the rest (`Approach`). A value that is known by its hash alone waits until the one before it
is finished.

Each step writes into the `Absorption` of the offer, which is the result.

Length: one account of what every peer's values wait for; every step changes the same claims.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Final

from datalattice.cells import (
    NO_HOLES,
    Holes,
    Value,
    Work,
    brief,
    decode,
    novelty,
    references,
    same,
    value_hash,
)
from datalattice.errors import (
    BadFormat,
    Corruption,
    MissingData,
    NoSuchPath,
    StoreError,
    UsageError,
    WorkExceeded,
)
from datalattice.lattice import ValuePath, get_in
from datalattice.sync.lattice.absorption import UNSOUND_CELLS, VALUE_REFUSED, Absorption
from datalattice.sync.lattice.approach import AHEAD_BYTES_MAX, Approach, SlotFetches
from datalattice.sync.lattice.charging import Charges
from datalattice.sync.lattice.incoming import Claim, Incoming, Waiting, unpatched
from datalattice.sync.lattice.incomplete import Completion, IncompleteCells
from datalattice.sync.lattice.latticestate import LatticeState
from datalattice.sync.lattice.usage import OwnerSlot
from datalattice.sync.replica import Offer, Part, Probe

DISK_LOW: Final = "disk-low"
"""Metric label of values that are not taken because the disk is nearly full."""

CLAIMS_MAX: Final = 64
"""Incomplete values that one peer may have here."""

STAGED_BYTES_MAX: Final = 256_000_000
"""Bytes of cells in memory above gaps: inner nodes, so the values may be far larger."""

CUTS_MAX: Final = 1_024
"""Remembered states of peers of which a part is not hosted here."""


class Intake:
    """The foreign values of one replica that are on their way in. One thread uses it."""

    def __init__(
        self, state: LatticeState, charges: Charges, staged_bytes_max: int = STAGED_BYTES_MAX
    ) -> None:
        self._state = state
        self._charges = charges
        self._store = state.store
        self._lattice = state.lattice
        self._views = state.views
        self._hosting = state.hosting
        self.staged_bytes_max = staged_bytes_max
        self._incomplete = IncompleteCells(state.store)
        self._approach = Approach(state.store)
        self._slots = SlotFetches()
        self._waiting: dict[Claim, Waiting] = {}
        self._stated: dict[Claim, Probe] = {}  # claimed values under a policy, before it cut them
        self._next: dict[Claim, Probe] = {}  # values known by hash alone, to be claimed afterwards
        # (key of what a peer stated, epoch of the policy then, what was taken of it)
        self._cuts: dict[Claim, tuple[bytes, object, Probe]] = {}

    @property
    def count(self) -> int:
        """Values that wait for cells."""
        return len(self._waiting) + len(self._approach)

    @property
    def size_bytes(self) -> int:
        """Bytes of cells in memory for values that wait."""
        return self._incomplete.size_bytes + self._approach.size_bytes

    @property
    def gaps_bytes(self) -> int:
        """Of these, bytes of cells above gaps: at most `staged_bytes_max`."""
        return self._incomplete.size_bytes

    def take_in(self, offer: Offer, outcome: Absorption) -> None:
        """Take in what `outcome.sender` sent, and note the result in `outcome`.

        Raises: Undecodable: a malformed patch. StoreError: the store cannot keep it; all values
                that wait for cells are given up.
        """
        try:
            self._take_in(unpatched(offer, self._views.load, outcome), outcome)
        except StoreError:
            # `IncompleteCells` counts cells as stored that the store may lack, so no claim that
            # builds on them may complete.
            self._give_up(list(self._waiting), outcome)
            raise

    def _take_in(self, offer: Offer, outcome: Absorption) -> None:
        peer = outcome.sender
        # "A collection writes before it frees, so a full disk would stop it"
        # (docs/design/foreign-data.md, Room): others' data is refused before that.
        if not self._has_disk():
            self._refuse_offer(offer, outcome)
            return
        size = sum(len(part.data) for part in offer.parts)
        if offer.probe is not None:
            assert isinstance(offer.probe.data, Incoming)
            size += offer.probe.data.size_bytes
        # Credited before anything is merged: a value pays with the bytes that it came in.
        self._charges.bring(peer, size)
        if offer.parts:
            cells = {part.hash: part.data for part in offer.parts}
            progress = self._incomplete.add(cells, peer)
            charged = self._slots.arrived(offer.parts, progress.missing)
            self._proceed(progress, peer, outcome)
            for slot, size in charged:
                self._stop_slot(slot, size, outcome)
            self._continue_approach(offer.parts, outcome)
        if offer.lost:
            self._give_up(self._incomplete.claims_above(offer.lost), outcome)
            self._give_up_approach(self._approach.lost(offer.lost), outcome)
        if offer.probe is not None:
            self._consider(offer.probe, peer, outcome)
        if self._incomplete.size_bytes > self.staged_bytes_max:
            # Not those of this peer: one that fills the room would keep the others out.
            self._give_up(self._incomplete.heaviest(attrgetter("peer")), outcome)

    def _has_disk(self) -> bool:
        if self._hosting is None:
            return True
        free = self._store.free_bytes()
        # A memory store has no disk, and so no bound.
        return free is None or free >= self._hosting.rules.policy.reserve_bytes

    def _refuse_offer(self, offer: Offer, outcome: Absorption) -> None:
        """Refuse an offer: the room that the disk still has is for this node's own data."""
        outcome.remark(DISK_LOW, "the disk is nearly full: data of others is not taken")
        if offer.probe is not None:
            outcome.dropped.append(offer.probe.key)
        # What waits for cells would take the room that is left as soon as they came.
        self._give_up(list(self._waiting), outcome)
        self._give_up_approach(self._approach.claims(), outcome)

    def not_hosted(self, offer: Offer, peer: str) -> list[str]:
        """Name the parts of a root that the hosting policy cuts off; its cells are here."""
        if self._hosting is None or offer.probe is None:
            return []
        incoming = offer.probe.data
        assert isinstance(incoming, Incoming)
        try:
            value, _ = self._approach.open(incoming)
            return self._hosting.cut_off(value, self._state.root, peer)
        except (MissingData, BadFormat):
            return []  # `take_in` notes what is wrong with it

    def _consider(self, probe: Probe, peer: str, outcome: Absorption) -> None:
        """Take in a value as far as its cells are here."""
        incoming = probe.data
        assert isinstance(incoming, Incoming)
        claim = Claim(peer, incoming.location)
        # "Some statements are answered from their hash alone: an empty one, one that equals our own
        # state" (docs/design/foreign-data.md, Costs outside of merges).
        if self._is_here(claim, probe, outcome):
            return
        if not self._views.is_replicated(incoming.path):
            text = f"value at {brief(incoming.path)} not taken: nothing of it is replicated here"
            outcome.refuse(probe.key, text)
            return
        # A newer value at the same location replaces the one that waits, so it is always taken.
        if claim not in self._waiting and self._claim_count(peer) >= CLAIMS_MAX:
            outcome.refuse(probe.key, f"{CLAIMS_MAX} values of this peer are incomplete already")
            return
        if self._hosting is not None and self._consider_hosted(claim, probe, outcome):
            return
        before = self._waiting.get(claim)
        if before is not None and incoming.absent is not None:
            # It would be fetched from its top again. If each value replaced the one before, a peer
            # that writes faster than a fetch takes would never be merged.
            self._replace_next(claim, probe.key, outcome)
            if before.key != probe.key:
                self._next[claim] = probe
            return
        cells: Mapping[bytes, bytes] = incoming.cells.encodings()
        if incoming.absent is not None:
            waiting = Waiting(probe.key, incoming.path, incoming.absent, True, False)
        else:
            try:
                value, is_wrapped = self._frame(incoming.path, incoming.value, peer), True
            except (MissingData, BadFormat):
                # It is wrapped, and so checked, once it is complete.
                value, is_wrapped = incoming.value, False
            except UsageError as error:
                outcome.refuse(probe.key, f"value at {brief(incoming.path)} not taken: {error}")
                return
            # What wrapping made is only in memory; all other cells came with the message.
            made = {hash: data for hash, data, _ in novelty(value, incoming.cells)}
            cells = {**cells, **made} if made else cells
            waiting = Waiting.of(value, probe.key, incoming.path, is_wrapped=is_wrapped)
        self._proceed(self._wait(claim, waiting, cells, outcome), peer, outcome)

    def _wait(
        self, claim: Claim, waiting: Waiting, cells: Mapping[bytes, bytes], outcome: Absorption
    ) -> Completion:
        """Wait for the cells of a value, which replaces the one before it; `cells` came with it."""
        before = self._waiting.get(claim)
        if before is not None:
            # A peer's newer value contains its older one; the cells fetched so far serve both.
            _supersede(outcome, before.key, waiting.key)
            self._replace_next(claim, waiting.key, outcome)
            self._incomplete.release(claim)
        self._waiting[claim] = waiting
        bare = b"" if waiting.is_hash else waiting.top
        refs = references(bare) if bare else [waiting.top]
        return self._incomplete.claim(claim, refs, cells, bare, claim.peer)

    def _consider_hosted(self, claim: Claim, probe: Probe, outcome: Absorption) -> bool:
        """Consider a value under a policy: find out whose data it has, cut off what is refused.

        False: its upper cells are malformed, so it is cut around its holes once all of it is here.
        """
        incoming, hosting, approach = probe.data, self._hosting, self._approach
        assert isinstance(incoming, Incoming)
        assert hosting is not None
        before = self._waiting.get(claim)
        # Finding out whose data it has takes time, too, which its sender pays for.
        work = self._charges.open(claim.peer)
        try:
            value, loader = approach.open(incoming)
            value = self._frame(incoming.path, value, claim.peer, work)
            limited = hosting.limited(self._state.root, value, claim.peer, work)
        except MissingData as error:
            is_new = claim not in approach or approach.probe_of(claim) is probe
            if before is None and is_new:
                outcome.need(approach.look(claim, probe, error.hashes), claim.peer)
                return True
            # What is being fetched comes first, or a peer that writes quickly is never merged.
            self._replace_next(claim, probe.key, outcome)
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
            self._charges.close(claim.peer, work)
        if before is None and claim not in approach and same(value, self._state.zero):
            self._note_held(claim, probe.key, Probe(value_hash(value), value), outcome)
            return True  # nothing of it is hosted here, so there is nothing to merge
        cells = approach.cells(incoming, {hash: data for hash, data, _ in novelty(value, loader)})
        passed = approach.forget(claim)
        if passed is not None:
            _supersede(outcome, passed.key, probe.key)
        waiting = Waiting.of(value, probe.key, incoming.path, is_wrapped=True)
        progress = self._wait(claim, waiting, cells, outcome)
        self._stated[claim] = probe
        self._slots.follow(limited, cells, progress.missing)
        self._proceed(progress, claim.peer, outcome)
        return True

    def _continue_approach(self, parts: Sequence[Part], outcome: Absorption) -> None:
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
        # "Held in memory (16 MB in all, `AHEAD_BYTES_MAX`)" (docs/node.md, Hosting).
        if self._approach.size_bytes > AHEAD_BYTES_MAX:
            self._give_up_approach(self._approach.claims(), outcome)

    def _give_up_approach(self, claims: Iterable[Claim], outcome: Absorption) -> None:
        """Give up values whose upper cells are fetched."""
        for claim in claims:
            probe = self._approach.forget(claim)
            if probe is not None:
                outcome.dropped.append(probe.key)
            if claim in self._next:
                outcome.dropped.append(self._next.pop(claim).key)

    def _stop_slot(self, slot: OwnerSlot, size: int, outcome: Absorption) -> None:
        """If what came for a slot has no room here, fetch the rest of the value without it."""
        hosting, slots = self._hosting, self._slots
        waits = slots.waits_for(slot)

        def claims() -> list[Claim]:
            return [one for one in self._incomplete.claims_above(waits) if isinstance(one, Claim)]

        # "From there on every cell that arrives lies in a known slot": the quota holds while a
        # value still comes (docs/design/foreign-data.md, Room).
        if hosting is None or hosting.quotas.has_room_for(
            slot, self._state.root, size, outcome, lambda: [claim.peer for claim in claims()]
        ):
            return
        stopped = claims()
        slots.drop(slot)
        for claim in stopped:
            del self._waiting[claim]
        slots.leave(self._incomplete.drop(stopped))
        for claim in stopped:
            self._consider(self._stated.pop(claim), claim.peer, outcome)
        outcome.unwanted += [hash for hash in waits if not self._incomplete.is_wanted(hash)]

    def _replace_next(self, claim: Claim, newer: bytes, outcome: Absorption) -> None:
        """Let the value with the key `newer` replace the one that was to be claimed next."""
        if claim in self._next:
            _supersede(outcome, self._next.pop(claim).key, newer)

    def _claim_count(self, peer: str) -> int:
        return sum(claim.peer == peer for claim in self._waiting) + self._approach.count(peer)

    def _frame(self, path: ValuePath, value: Value, peer: str, work: Work | None = None) -> Value:
        """Return a foreign value as a root, without what is not replicated or not hosted here.

        Raises: as `Views.frame`. MissingData: a cell that decides about it is not here yet.
                WorkExceeded: `work` does not pay for finding the owners of its parts.
        """
        value = self._views.frame(path, value, peer)
        if self._hosting is not None:
            value = self._hosting.cut(value, self._state.root, peer, work)
            if path and get_in(value, path) is None:
                raise NoSuchPath("this node does not host it")
        return value

    def _proceed(self, progress: Completion, peer: str, outcome: Absorption) -> None:
        """Store complete cells, note missing ones, join the values that became complete."""
        if progress.stored:
            self._state.make_writable()
            try:
                if progress.tree is None:
                    self._store.put_encodings(progress.stored)
                else:
                    self._store.put_tree(progress.tree, progress.stored)
            except MissingData:  # a collection removed cells below them; they are offered again
                self._give_up(list(self._waiting), outcome)
                return
        if progress.missing:
            outcome.need(progress.missing, peer)
        # "A bad part costs the smallest unit": the cell is not stored, and what needs it is left
        # out when the value is merged (docs/design/foreign-data.md, Holes).
        for hash, reason, sender in progress.unsound:
            text = f"cell 0x{hash.hex()} is not stored: {reason}"
            outcome.remark(UNSOUND_CELLS, text)
            if self._charges.blame(sender):
                count = self._charges.limits.unsound_max
                outcome.breaches.append((sender, f"{count} cells that do not fit together: {text}"))
        for claim in progress.complete:
            assert isinstance(claim, Claim)
            waiting = self._waiting.pop(claim)
            self._stated.pop(claim, None)
            refusal = progress.refused.get(claim)
            if refusal is None:
                holes = progress.holes.get(claim, NO_HOLES)
                in_full = self._join(claim, waiting, holes, outcome)
            else:
                text = f"a value at {brief(waiting.path)} is not taken: {refusal}"
                outcome.refuse(waiting.key, text)
                in_full = False
            outcome.ended.append((claim.peer, in_full))
            after = self._next.pop(claim, None)
            if after is not None:
                self._consider(after, claim.peer, outcome)

    def _join(self, claim: Claim, waiting: Waiting, holes: Holes, outcome: Absorption) -> bool:
        """Join a complete value into the root, around its holes; return whether all was taken."""
        peer, loader = claim.peer, holes.loader(self._store)
        outcome.finished.append(waiting.key)

        def read(work: Work) -> Value:
            value = loader.load(waiting.top) if waiting.is_hash else decode(waiting.top, loader)
            return value if waiting.is_wrapped else self._frame(waiting.path, value, peer, work)

        joined = self._state.join(read, waiting.key, holes, peer, outcome)
        if joined.error is not None:
            if isinstance(joined.error, MissingData):
                self._state.lost(joined.error.hashes)  # the foreign value is complete: it is ours
            text = f"a value at {brief(waiting.path)} is not taken: {joined.error}"
            outcome.refused[waiting.key] = text
            outcome.remark(VALUE_REFUSED, text)
            return False
        taken = Probe(value_hash(joined.value), joined.value)
        # Of a value with holes the peer has more than was taken.
        if not holes:
            held = outcome.parts_of if waiting.path else outcome.holds
            held.append((peer, taken))
        if joined.is_cut and taken.key != waiting.key:
            self._remember_cut(claim, waiting, taken)
        for slot in joined.slots:
            self._slots.drop(slot)
        return joined.in_full

    def _remember_cut(self, claim: Claim, waiting: Waiting, taken: Probe) -> None:
        """Remember that all hosted parts of a peer's state are here: it may state it for hours."""
        if self._hosting is None or waiting.path:
            return
        # "The node remembers what it took" (docs/node.md, Hosting): the next statement is cheap.
        self._cuts.pop(claim, None)
        self._cuts[claim] = (waiting.key, self._hosting.rules.epoch, taken)
        # The oldest is dropped: that peer's next statement is looked at again.
        if len(self._cuts) > CUTS_MAX:
            del self._cuts[next(iter(self._cuts))]

    def _is_here(self, claim: Claim, probe: Probe, outcome: Absorption) -> bool:
        """Return whether all that a peer states is known to be here by its hash alone.

        Such are the zero, our own state, and a value of which all hosted parts were taken before.
        """
        if claim in self._waiting or claim in self._approach:
            return False
        for value in (self._state.zero, self._views.of(claim.peer)):
            if value_hash(value) == probe.key:
                self._note_held(claim, probe.key, Probe(probe.key, value), outcome)
                return True
        key, epoch, taken = self._cuts.get(claim, (b"", None, None))
        if taken is None or key != probe.key or self._hosting is None:
            return False
        # Another policy may host what was cut off.
        if epoch != self._hosting.rules.epoch:
            return False
        self._note_held(claim, probe.key, taken, outcome)
        return True

    def _note_held(self, claim: Claim, key: bytes, taken: Probe, outcome: Absorption) -> None:
        """Note that all of what a peer stated is here, as `taken`."""
        outcome.finished.append(key)
        outcome.holds.append((claim.peer, taken))
        outcome.ended.append((claim.peer, True))

    def _give_up(self, claims: Iterable[object], outcome: Absorption) -> None:
        for claim in claims:
            assert isinstance(claim, Claim)
            outcome.dropped.append(self._waiting.pop(claim).key)
            self._stated.pop(claim, None)
            if claim in self._next:
                outcome.dropped.append(self._next.pop(claim).key)
        self._slots.leave(self._incomplete.drop(claims))


def _supersede(outcome: Absorption, key: bytes, newer: bytes) -> None:
    """Note that a peer's newer value replaces an older one, which it contains."""
    if key != newer:
        outcome.superseded.append((key, newer))
