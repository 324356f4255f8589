"""Sketches: reconcile two sets of 32-byte hashes by keyed rateless invertible Bloom lookup tables.

The bytes sent grow with the difference alone, not with the sets: 12 bytes a cell, about 1.4 cells a
difference. The sender opens and sends cells of its set; the receiver takes away those of its own
set and recovers the ids in which the sets differ.

    sender                          receiver
    opening: nonce, set         ->
                                <-  estimate: nonce, set, attempt, sums
    cells: the first window     ->
                                <-  more, until the cells are enough: an eighth more each time
    cells                       ->
                                <-  result: ids that it lacks, hashes that the sender lacks
    hashes: those of the ids    ->  both know what they need

An attempt fails if the cells do not come to zero within the limits, or if the two sets without the
difference are not equal. The receiver then sends an estimate for the next attempt with new keys,
or because the sender says retry. After the second attempt, or where cells would be longer, the
sender sends all its ids. If these are too many, `SketchStep.by_ranges` says that ranges follow.

With regions, the first estimate has a fingerprint of each of 256 regions of hashes in place of the
sums. Only the regions that differ are sketched, which makes a small difference of large sets
cheap to find for 800 bytes more.

Source: Yang, Gilad and Alizadeh, "Practical Rateless Set Reconciliation" (SIGCOMM 2024);
docs/design/reconcile.md.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from math import ceil, log
from typing import Final, NamedTuple

from datalattice.crypto import blake3
from datalattice.limits import HASH_BYTES
from datalattice.sync.reconcile.ranges import HASH_END, HASH_START, HashSet
from datalattice.sync.reconcile.sketchcells import SketchAborted, SketchDecoder
from datalattice.sync.reconcile.sketchmessages import (
    SketchCells,
    SketchEstimate,
    SketchMessage,
    SketchOpening,
    SketchResult,
    illegal,
    read_hashes,
    read_ids,
)
from datalattice.sync.reconcile.sketchset import (
    ID_BYTES,
    SKETCH_CELL_BYTES,
    SUMS,
    SketchedSet,
    SketchKey,
    combine,
    estimate,
    has_arrays,
    pack_cells,
    pack_integers,
    unpack_cells,
    unpack_integers,
)

SKETCH_NONCE_BYTES: Final = 16

_REGIONS: Final = 256
_REGION_BYTES: Final = 4
_REGIONS_DIFFERENT_MAX: Final = _REGIONS // 2
"""Beyond this many different regions their number tells little about the number of items."""


class SketchLimits(NamedTuple):
    """Bounds of one session."""

    items_min: int = 256
    """Items of the larger set from which sketches are shorter and quicker than ranges."""
    items: int = 2_000_000
    """Most items of either set: a side holds 60 bytes for each during a session."""
    items_alone: int = 200_000
    """Most items where NumPy is not installed: each takes about 20 microseconds."""
    cells: int = 131_072
    """Most cells of an attempt."""
    listed: int = 131_072
    """Most items of either set of which all ids are sent."""
    windows: int = 32
    """Most windows of cells in an attempt."""
    attempts: int = 2
    """Attempts before the ids are listed; one by regions comes before these."""
    steps: int = 64
    """Steps that the decoder may take for each cell."""
    messages: int = 256
    """Most messages of the peer."""
    regions_from: int = 1 << 62
    """Items of the receiver from which it first looks for the regions that differ."""


SKETCH_LIMITS: Final = SketchLimits()
FIRST_CELLS_MIN: Final = 24
"""Cells of a first window beyond 1.4 for each difference."""


class SketchStep(NamedTuple):
    """What follows from a message.

    say:       messages to be sent, each on its own.
    needs:     hashes of the peer that are not here.
    is_done:   this side knows all that it needs.
    by_ranges: of the sender: sketches cannot go on, so ranges follow; `say` is empty.
    """

    say: tuple[SketchMessage, ...] = ()
    needs: tuple[bytes, ...] = ()
    is_done: bool = False
    by_ranges: bool = False


@dataclass(frozen=True, slots=True)
class _Sides:
    """Number and XOR of all hashes, of this side and of the peer."""

    own: int
    own_xor: int
    peer: int
    peer_xor: int

    def are_equal_without(self, ours: Collection[bytes], theirs: Collection[bytes]) -> bool:
        """Return whether the sets are equal without the hashes that only one of them has."""
        return self.own - len(ours) == self.peer - len(theirs) and self.own_xor ^ _xor(
            ours
        ) == self.peer_xor ^ _xor(theirs)


class _SketchSession:
    """What both sides keep of a session."""

    def __init__(self, own: HashSet, nonce: bytes, limits: SketchLimits) -> None:
        self._is_done = False
        self._own = own
        self._nonce = nonce
        self._limits = limits
        self._count = own.count(HASH_START, HASH_END)
        self._fingerprint = own.fingerprint(HASH_START, HASH_END)
        self._messages = 0
        self._attempt = 0
        self._attempts = limits.attempts
        self._windows = 0

    def _heard(self, message: SketchMessage) -> None:
        self._messages += 1
        # A peer that never ends a session would have 60 bytes for each hash held here.
        if self._messages > self._limits.messages:
            raise illegal(f"more than {self._limits.messages} messages")
        if not any(value is not None for value in vars(message).values()):
            raise illegal("a message without a kind")

    def _sides(self, theirs: SketchOpening | SketchEstimate) -> _Sides:
        if len(theirs.nonce) != SKETCH_NONCE_BYTES or len(theirs.fingerprint) != HASH_BYTES:
            raise illegal(f"a nonce has {SKETCH_NONCE_BYTES} bytes, the XOR of hashes {HASH_BYTES}")
        own, peer = (int.from_bytes(one, "big") for one in (self._fingerprint, theirs.fingerprint))
        return _Sides(self._count, own, theirs.count, peer)

    def _sketch(self, key: SketchKey, regions: Iterable[int] | None) -> SketchedSet:
        """Return the sketch of all hashes, or of those in some regions."""
        if regions is None:
            return SketchedSet(key, self._own.iter_hashes(HASH_START, HASH_END))
        sketch = SketchedSet(key)
        for region in regions:
            sketch.add(self._own.iter_hashes(*_region(region)))
        return sketch

    def _region_prints(self, key: SketchKey) -> bytes:
        """Return 4 bytes for each region, which cannot be computed without the key."""
        prints = []
        for region in range(_REGIONS):
            span = _region(region)
            count = self._own.count(*span).to_bytes(8, "big")
            prints.append(blake3(key.key + count + self._own.fingerprint(*span))[:_REGION_BYTES])
        return b"".join(prints)


class SketchSender(_SketchSession):
    """The side that opens and sends cells: `start`, then `receive`."""

    def __init__(self, own: HashSet, nonce: bytes, limits: SketchLimits = SKETCH_LIMITS) -> None:
        """nonce: 16 random bytes of this session."""
        super().__init__(own, nonce, limits)
        self._both: _Sides | None = None  # not known before the estimate
        self._set = SketchedSet(SketchKey(bytes(16), 0, 0, 0))
        self._sent = 0  # cells of this attempt
        self._more = 0  # windows of it that were not enough
        self._is_listed = False
        self._awaits_estimate = True

    def start(self) -> SketchMessage:
        """Return the message that opens the session."""
        return SketchMessage(opening=SketchOpening(self._nonce, self._count, self._fingerprint))

    def receive(self, message: SketchMessage) -> SketchStep:
        """Take in a message of the receiver.

        Raises: ProtocolViolation: it does not follow from what was sent.
        """
        self._heard(message)
        if self._is_done:
            raise illegal("a message after the result")
        if message.estimate is not None:
            return self._begin(message.estimate)
        if self._awaits_estimate or self._both is None:
            raise illegal("an estimate comes first")
        if message.result is not None:
            return self._end(message.result, self._both)
        if message.more is None:
            raise illegal("the receiver sends estimates, `more` and a result")
        return self._go_on()

    def _begin(self, theirs: SketchEstimate) -> SketchStep:
        self._both = self._sides(theirs)
        # After `retry` this side has counted the attempt already; one that the receiver begins by
        # itself is the next.
        if theirs.attempt != self._attempt + (not self._awaits_estimate):
            raise illegal(f"attempt {theirs.attempt} after attempt {self._attempt}")
        if theirs.attempt > self._attempts:
            raise illegal(f"more than {self._attempts} attempts")
        self._attempt = theirs.attempt
        self._awaits_estimate = False
        self._sent = self._more = self._windows = 0  # each attempt begins with its first cell
        key = SketchKey.derive((self._nonce, theirs.nonce), self._attempt)
        if theirs.regions and self._attempt == 0:
            self._attempts += 1  # it comes before the others
            return self._begin_by_regions(key, theirs.regions)
        self._set = self._sketch(key, None)
        if not theirs.sums:
            return self._list(theirs.count)
        if len(theirs.sums) != 4 * SUMS:
            raise illegal(f"{len(theirs.sums)} bytes of sums; {4 * SUMS} are accepted")
        different = estimate(self._set.sums, unpack_integers("i", theirs.sums))
        first = _first_window(different)
        # "When 12 bytes x cells would exceed 8 bytes x N, send the plain id list."
        if first > self._limits.cells or first * SKETCH_CELL_BYTES > self._count * ID_BYTES:
            return self._list(theirs.count)
        return SketchStep((self._window(first),))

    def _begin_by_regions(self, key: SketchKey, theirs: bytes) -> SketchStep:
        if len(theirs) != _REGIONS * _REGION_BYTES:
            raise illegal(
                f"{len(theirs)} bytes of regions; {_REGIONS * _REGION_BYTES} are accepted"
            )
        ours = self._region_prints(key)
        different = [
            region
            for region in range(_REGIONS)
            if ours[4 * region : 4 * region + 4] != theirs[4 * region : 4 * region + 4]
        ]
        if not 1 <= len(different) <= _REGIONS_DIFFERENT_MAX:
            return self._retry()  # too many or none: regions tell nothing here
        self._set = self._sketch(key, different)
        bits = sum(1 << region for region in different).to_bytes(_REGIONS // 8, "little")
        # The number of items at random that would be expected to touch that many regions.
        count = ceil(-_REGIONS * log(1 - len(different) / _REGIONS))
        return SketchStep((self._window(_first_window(count), bits),))

    def _list(self, peer_count: int) -> SketchStep:
        if max(self._count, peer_count) > self._limits.listed:
            return SketchStep(by_ranges=True)
        self._is_listed = True
        return SketchStep((SketchMessage(ids=pack_integers(self._set.ids)),))

    def _window(self, size: int, regions: bytes = b"") -> SketchMessage:
        start, self._sent = self._sent, self._sent + size
        self._windows += 1
        cells = pack_cells(*self._set.cells(start, self._sent))
        return SketchMessage(cells=SketchCells(self._attempt, start, cells, regions))

    def _go_on(self) -> SketchStep:
        self._more += 1
        if self._is_listed or self._more > self._windows:
            raise illegal("`more` for cells that were not sent")
        say: list[SketchMessage] = []
        # "Streamed one window ahead": from the second on, one more is under way.
        while self._windows < self._more + 2:
            size = _next_window(self._sent, self._windows, self._limits)
            if not size:
                break  # the receiver begins the next attempt
            say.append(self._window(size))
        return SketchStep(tuple(say))

    def _retry(self) -> SketchStep:
        self._attempt += 1
        self._awaits_estimate = True
        return SketchStep((SketchMessage(retry=True),))

    def _end(self, result: SketchResult, both: _Sides) -> SketchStep:
        wanted, given = read_ids(result.wanted), read_hashes(result.given)
        # A decoder recovers at most one id from each cell, so an honest result is no longer.
        if not self._is_listed and len(wanted) + len(given) > self._sent:
            raise illegal(f"a result of more than {self._sent} differences, as many as cells")
        found = self._set.find(wanted)
        ours = [found[id] for id in wanted if id in found]
        # "Done means: equal set fingerprints after the exchange."
        if len(ours) < len(wanted) or not both.are_equal_without(ours, given):
            # Two hashes may share an id. After the list no attempt is left, and ranges have no ids.
            if self._is_listed:
                return SketchStep(by_ranges=True)
            return self._retry()
        self._is_done = True
        return SketchStep((SketchMessage(hashes=b"".join(ours)),), given, is_done=True)


class SketchReceiver(_SketchSession):
    """The side that answers an opening and recovers the difference: `start`, then `receive`."""

    def __init__(
        self,
        own: HashSet,
        opening: SketchOpening,
        nonce: bytes,
        limits: SketchLimits = SKETCH_LIMITS,
    ) -> None:
        """nonce: 16 random bytes of this session.

        Raises: ProtocolViolation: the opening is malformed.
        """
        super().__init__(own, nonce, limits)
        self._both = self._sides(opening)
        self._nonces = (opening.nonce, nonce)
        self._key = SketchKey.derive(self._nonces, 0)
        self._set: SketchedSet | None = None
        self._decoder = SketchDecoder((0, 0), 0)
        self._have = 0  # cells of this attempt
        self._wanted: list[int] | None = None
        self._given: tuple[bytes, ...] = ()
        self._by_regions = self._count >= limits.regions_from
        self._attempts += self._by_regions

    @staticmethod
    def accepts(larger: int, limits: SketchLimits = SKETCH_LIMITS) -> bool:
        """Return whether two sets are sketched if the larger one has `larger` items."""
        is_sized = limits.items_min <= larger <= limits.items
        # To ask loads NumPy: 0.2 s in which news would wait, and 30 MB of a node of small stores.
        return is_sized and (larger <= limits.items_alone or has_arrays())

    def start(self) -> SketchMessage:
        """Return the first estimate."""
        return self._estimate()

    def _estimate(self) -> SketchMessage:
        self._key = SketchKey.derive(self._nonces, self._attempt)
        salts = (self._key.checks, self._key.places)
        self._decoder = SketchDecoder(salts, self._limits.steps)
        self._have = self._windows = 0
        self._wanted = None
        sums = regions = b""
        if self._is_by_regions:
            regions = self._region_prints(self._key)
        else:
            self._set = self._sketch(self._key, None)
            if self._attempt < self._attempts:
                sums = pack_integers(self._set.sums)
        return SketchMessage(
            estimate=SketchEstimate(
                self._nonce, self._count, self._fingerprint, self._attempt, sums, regions
            )
        )

    @property
    def _is_by_regions(self) -> bool:
        return self._by_regions and self._attempt == 0

    def receive(self, message: SketchMessage) -> SketchStep:
        """Take in a message of the sender.

        Raises: ProtocolViolation: it does not follow from what was sent.
        """
        self._heard(message)
        if self._is_done:
            raise illegal("a message after the hashes")
        if message.cells is not None:
            return self._take_cells(message.cells)
        if message.ids is not None:
            return self._take_list(message.ids)
        if message.hashes is not None:
            return self._take_hashes(message.hashes)
        if message.retry is None:
            raise illegal("the sender sends cells, ids, hashes and `retry`")
        if self._wanted is None and not self._is_by_regions:
            raise illegal("`retry` before a result")
        return self._next_attempt()

    def _next_attempt(self) -> SketchStep:
        if self._attempt >= self._attempts:
            raise illegal(f"more than {self._attempts} attempts")
        self._attempt += 1  # a new key, so other collisions
        return SketchStep((self._estimate(),))

    def _take_cells(self, window: SketchCells) -> SketchStep:
        if window.attempt < self._attempt or self._wanted is not None:
            return SketchStep()  # sent ahead, before the sender knew
        size = len(window.cells) // SKETCH_CELL_BYTES
        expected = _next_window(self._have, self._windows, self._limits)
        # Only the sender knows how many differences it expects, so its first window may have any
        # size from the least on; the sizes of the others follow from it.
        is_first = self._have == 0
        if (
            window.attempt != self._attempt
            or self._attempt >= self._attempts
            or window.start != self._have
            or len(window.cells) % SKETCH_CELL_BYTES
            or (size != expected if not is_first else size < FIRST_CELLS_MIN)
            or self._have + size > self._limits.cells
        ):
            raise illegal(
                f"{len(window.cells)} bytes of cells from {window.start} on in attempt "
                f"{window.attempt}, after {self._have} cells of attempt {self._attempt}"
            )
        if is_first and self._is_by_regions:
            self._set = self._sketch(self._key, _regions_of(window.regions))
        assert self._set is not None
        theirs = unpack_cells(window.cells)
        ours = self._set.cells(self._have, self._have + size)
        self._have += size
        self._windows += 1
        try:
            self._decoder.add(combine(ours[0], theirs[0]), combine(ours[1], theirs[1]))
        except SketchAborted:
            return self._next_attempt()  # cells that no honest sender makes, or bad luck
        if self._decoder.is_complete:
            return self._result(self._decoder.ids, self._set)
        if not _next_window(self._have, self._windows, self._limits):
            return self._next_attempt()  # the sender stops at the same window
        return SketchStep((SketchMessage(more=True),))

    def _take_list(self, ids: bytes) -> SketchStep:
        if self._wanted is not None or self._set is None or len(ids) != ID_BYTES * self._both.peer:
            raise illegal(f"a list of {len(ids)} bytes; {self._both.peer} ids were announced, once")
        if max(self._both.peer, self._count) > self._limits.listed:
            raise illegal(f"a list of sets with more than {self._limits.listed} items")
        different = set(unpack_integers("q", ids)).symmetric_difference(self._set.ids)
        self._attempt = self._attempts  # "then the plain list": nothing is tried after it
        return self._result(different, self._set)

    def _result(self, different: Collection[int], own: SketchedSet) -> SketchStep:
        found = own.find(different)
        wanted = [id for id in different if id not in found]
        if self._both.own - len(found) != self._both.peer - len(wanted) and self._have:
            return self._next_attempt()  # the counts disagree: an id was recovered wrongly
        self._wanted = wanted
        self._given = tuple(found.values())
        packed = pack_integers(array("q", wanted))
        return SketchStep((SketchMessage(result=SketchResult(packed, b"".join(self._given))),))

    def _take_hashes(self, data: bytes) -> SketchStep:
        hashes = read_hashes(data)
        # "Every received item is checked against the id it was asked by."
        if self._wanted is None or [self._key.id_of(hash) for hash in hashes] != self._wanted:
            raise illegal("hashes that are not those of the wanted ids")
        if not self._both.are_equal_without(self._given, hashes):
            raise illegal("what is left of both sets is not equal")
        self._is_done = True
        return SketchStep(needs=hashes, is_done=True)


def _first_window(different: int) -> int:
    """Return the cells of the first window for about `different` differences."""
    return ceil(1.4 * different) + FIRST_CELLS_MIN


def _next_window(have: int, windows: int, limits: SketchLimits) -> int:
    """Return the cells of the window after `have` cells; 0: the limits allow none."""
    size = -(-have // 8)  # an eighth more each time
    return size if windows < limits.windows and have + size <= limits.cells else 0


def _region(region: int) -> tuple[bytes, bytes]:
    """Return the range of the hashes whose first byte is `region`."""
    tail = bytes(HASH_BYTES - 1)
    return bytes([region]) + tail, HASH_END if region == 255 else bytes([region + 1]) + tail


def _regions_of(bits: bytes) -> list[int]:
    if len(bits) != _REGIONS // 8:
        raise illegal(f"{len(bits)} bytes of regions; {_REGIONS // 8} are accepted")
    number = int.from_bytes(bits, "little")
    return [region for region in range(_REGIONS) if number >> region & 1]


def _xor(hashes: Iterable[bytes]) -> int:
    total = 0
    for hash in hashes:
        total ^= int.from_bytes(hash, "big")
    return total
