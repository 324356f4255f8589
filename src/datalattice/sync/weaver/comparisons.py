"""Comparisons: how two copies of a Weaver store find out what each of them lacks.

They compare their sets by ranges of hashes or by sketches. A node that has just joined first copies
the witness log of the node that invited it, and verifies its records.

Source: Weaver specification "Session", "Join and bootstrap".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Final, Protocol

from datalattice.errors import BadFormat, ProtocolViolation
from datalattice.sync.reconcile import (
    HASH_END,
    HASH_START,
    SKETCH_LIMITS,
    HashSet,
    RangeMessage,
    RangeReconciliation,
    SketchLimits,
    SketchMessage,
    SketchOpening,
    SketchReceiver,
    SketchSender,
)
from datalattice.sync.replica import Offer, Part, Probe, Step
from datalattice.sync.weaver.conversation import probe_key
from datalattice.sync.weaver.messages import BootstrapRequest, BootstrapResponse
from datalattice.weaver import (
    ZERO_HASH,
    ChainEnd,
    Doubt,
    Head,
    Ingested,
    SignedIntention,
    WitnessEntry,
    WitnessRecord,
    check_chain,
    envelope_hash,
)


class LogView(HashSet, Protocol):
    """The log of a store as it was at one moment."""

    def head(self) -> Head:
        """Return its end: sequence number, count, fingerprint."""

    def get(self, hash: bytes) -> SignedIntention | None:
        """Return an intention, witnessed or floating, or None."""

    def chain(self, target: bytes, since: bytes, limit: int) -> list[SignedIntention]:
        """Return an author's chain from `target` back to just after `since`, newest first.

        Raises: NotInChain, LimitExceeded: it does not lie here, or is longer.
        """

    def in_log_order(self, hashes: Sequence[bytes]) -> list[bytes]:
        """Return those of `hashes` that are witnessed, dependencies first."""

    def entries(self, start_seq: int, limit: int | None = None) -> Iterator[WitnessEntry]:
        """Yield the witness log from a sequence number on."""


class ReplicatedStore(Protocol):
    """What a replica needs of a store: `datalattice.weaver.WeaverStore` has it."""

    @property
    def id(self) -> bytes:
        """Its id."""

    @property
    def author(self) -> bytes:
        """The key that this node writes under."""

    def suspect(self, doubt: Doubt) -> None:
        """Refuse own writes until a peer was asked for what this node lacks."""

    def settle(self, *, asked: bool) -> None:
        """Note that a peer was asked, and that all it has is here."""

    def take(self, signed: Sequence[SignedIntention], *, bounded: bool = True) -> Ingested:
        """Take in verified intentions; durable on return."""

    def read(self) -> AbstractContextManager[LogView]:
        """Open a view of the log as it is now."""


LOT_RECORDS: Final = 4_000
"""Records of a copied log that are taken in together: while one lot is committed, the signatures of
the next one are verified."""

LOT_BYTES: Final = 4 * 1024 * 1024
"""Bytes of records and intentions from which a lot has fewer records."""


class LogComparison:
    """The first copy of a store: the witness log of one peer, verified on the way.

    node:      the peer's public key. limit: records of one request.
    on_copied: called once all of the log is here; returns the state that both sides have.
    on_end:    called at the end of the comparison, even if the log is not complete.
    """

    probe: Final = None

    def __init__(
        self,
        store_id: bytes,
        node: bytes,
        limit: int,
        on_copied: Callable[[], Probe],
        on_end: Callable[[LogComparison], None],
    ) -> None:
        self._store_id = store_id
        self._node = node
        self._limit = limit
        self._on_copied = on_copied
        self._on_end = on_end
        self._chain = ChainEnd(0, ZERO_HASH)
        self._asked_to = 0
        self._is_copied = False
        # Received and not verified yet.
        self._records: list[WitnessRecord] = []
        self._parts: list[Part] = []
        self._bytes = 0

    def start(self) -> Step:
        """Ask for the log from its first record on."""
        return self._ask()

    def _ask(self) -> Step:
        self._asked_to = self._chain.seq + self._limit
        begin = self._chain.seq + 1
        return Step((BootstrapRequest(self._store_id, begin, self._limit, one_signature=True),))

    def receive(self, message: object) -> Step:
        """Take in records and their intentions, and offer them once they make up a lot.

        Raises: ChainBroken, ProtocolViolation: the peer did not sign a record, or it names an
                intention that was not sent.
        """
        # The conversation gives this comparison no other message.
        assert isinstance(message, BootstrapResponse)
        # Empty answers would keep the comparison open for ever.
        if not (message.records or message.done):
            raise ProtocolViolation("witness log: no record, and not the end")
        self._collect(message)
        is_answered = self._chain.seq + len(self._records) >= self._asked_to
        is_full = len(self._records) >= LOT_RECORDS or self._bytes >= LOT_BYTES
        if not (message.done or is_answered or is_full):
            return Step()  # more of this answer follows
        # "Verify every witness signature with the server's key", and the chain across batches. Of
        # our own nodes each response has one signature, which covers all of its records.
        self._chain = check_chain(self._records, self._store_id, self._node, self._chain)
        offers = (Offer(None, tuple(self._parts)),) if self._parts else ()
        self._records, self._parts, self._bytes = [], [], 0
        if message.done:
            self._is_copied = True
            # "Clear the bootstrap set, reconcile with all peers": the source may lack some, too.
            return Step(offers=offers, is_done=True, is_partial=True)
        # "Joiner continues from last_seq + 1"
        return replace(self._ask(), offers=offers) if is_answered else Step(offers=offers)

    def _collect(self, message: BootstrapResponse) -> None:
        """Add records, and the intentions that they name, to those to be verified."""
        try:
            # Their names alone: they are decoded when they are admitted.
            found = [Part(envelope_hash(envelope), envelope) for envelope in message.intentions]
            parts = {part.hash: part for part in found}
            records = [WitnessRecord.decode(record) for record in message.records]
            # "Intentions without a record are ignored"; the others are in witness order.
            named = [parts.get(record.read().intention_hash) for record in records]
        except BadFormat as error:
            raise ProtocolViolation(f"witness log: {error}") from error
        for record, part in zip(records, named, strict=True):
            if part is None:  # "every record must name an intention of the batch"
                raise ProtocolViolation("witness log: a record without its intention")
            self._records.append(record)
            self._parts.append(part)
            # A content may hold fields that are unknown here, of any length.
            self._bytes += len(record.content) + len(part.data)

    def ended(self) -> Probe | None:
        """Return the copied state; None if the log did not come to its end."""
        self._on_end(self)
        # A copy that is not complete begins anew at the next meeting.
        return self._on_copied() if self._is_copied else None


class RangeComparison:
    """A comparison by ranges of hashes. It answers from the log as it was when it began."""

    probe: Final = None
    """None: ranges state no set from which news could begin."""

    def __init__(
        self,
        store: ReplicatedStore,
        arrived: int,
        cut: bytes | None,
        on_need: Callable[[Sequence[bytes]], None],
        on_end: Callable[[RangeComparison], None],
        *,
        differs: bool = False,
    ) -> None:
        self._store = store
        self._arrived = arrived
        self._cut = cut
        self._differs = differs
        self._on_need = on_need
        self._on_end = on_end
        # "A side answers a whole session from the witnessed set as it was when the session began."
        self._view = store.read()
        self._held = self._view.__enter__()
        self._ranges = RangeReconciliation(self._held)
        self._needs: set[bytes] = set()
        self._is_open = True
        self._is_done = False
        self.is_complete = False
        """Whether it has ended and all that the peer has is here."""

    def start(self) -> Step:
        """State two ranges around a random cut, or 16 where it is known that the sets differ."""
        return Step(self._ranges.start(self._cut, differs=self._differs))

    def receive(self, message: object) -> Step:
        """Answer each range.

        Raises: ProtocolViolation: the payload does not follow from the last one.
        """
        assert isinstance(message, tuple)
        ranges: tuple[RangeMessage, ...] = message
        step = self._ranges.receive(ranges)
        need = self._lacking(step.needs)
        self._is_done = all(one.done is not None for one in step.answer)
        partial = self._ranges.partial
        return Step(step.answer, need=need, is_done=self._is_done, is_partial=partial)

    def _lacking(self, hashes: Sequence[bytes]) -> tuple[bytes, ...]:
        """Return those of the peer's hashes that are not stored."""
        self._needs.update(hashes)  # the union has these once all have come
        # "A hash that is stored, floating or as the loser of a fork, is not fetched again."
        lacking = tuple([one for one in hashes if self._held.get(one) is None])
        self._on_need(lacking)
        return lacking

    def ended(self) -> Probe | None:
        """Return what both sides have: the union; None when some range was left out."""
        if not self._is_open:  # a second call: the view is closed already
            return None
        self._is_open = False
        try:
            # Some range was answered `done` without a look: the union is unknown.
            if self._ranges.partial or not self._is_done:
                return None
            return self._union()
        finally:
            # The engine cannot reuse pages that an open view shows.
            self._view.__exit__(None, None, None)
            self._on_end(self)

    def _union(self) -> Probe | None:
        fingerprint = int.from_bytes(self._held.fingerprint(HASH_START, HASH_END), "big")
        count = self._held.count(HASH_START, HASH_END) + len(self._needs)
        with self._store.read() as now:
            self.is_complete = all(now.get(each) is not None for each in self._needs)
            if len(now.in_log_order(list(self._needs))) < len(self._needs):
                return None  # some of it floats, or is the other branch of a fork
        for each in self._needs:
            # XOR: adding a hash is the same operation as taking it out.
            fingerprint ^= int.from_bytes(each, "big")
        key = probe_key(fingerprint.to_bytes(len(HASH_START), "big"), count)
        return Probe(key, self._arrived)


class SketchComparison(RangeComparison):
    """A comparison that opens with ranges and a sketch; the peer answers one or the other.

    The peer answers by ranges if the sets are equal or small, or if it does not know sketches. A
    session of sketches that has failed starts again by ranges.
    """

    def __init__(
        self,
        store: ReplicatedStore,
        arrived: int,
        cut: bytes | None,
        on_need: Callable[[Sequence[bytes]], None],
        on_end: Callable[[RangeComparison], None],
        nonce: bytes,
        limits: SketchLimits = SKETCH_LIMITS,
    ) -> None:
        super().__init__(store, arrived, cut, on_need, on_end)
        self._nonce = nonce
        self._limits = limits
        self._sketch: SketchSender | SketchReceiver | None = None
        self._may_open = True  # the peer may, with its first message

    def start(self) -> Step:
        """State two ranges around a random cut, and open a session of sketches."""
        step = super().start()
        self._may_open = False
        if not SketchReceiver.accepts(self._count, self._limits):
            return step
        self._sketch = SketchSender(self._held, self._nonce, self._limits)
        return replace(step, say=(*step.say, self._sketch.start()))

    @property
    def is_abandoned(self) -> bool:
        """Whether a session of sketches is open, or ended before its end."""
        return self._sketch is not None and not self._is_done

    @property
    def _count(self) -> int:
        return self._held.count(HASH_START, HASH_END)

    def receive(self, message: object) -> Step:
        """Take in ranges or a sketch.

        Raises: ProtocolViolation: the message does not follow from what was said.
        """
        assert isinstance(message, tuple)
        sketch = message[-1] if message else None
        may_open, self._may_open = self._may_open, False
        if not isinstance(sketch, SketchMessage):
            self._sketch = None  # the peer goes on by ranges
            return super().receive(message)
        if may_open and sketch.opening is not None:
            return self._answer(message[:-1], sketch.opening)
        if self._sketch is None or len(message) > 1:
            raise ProtocolViolation("reconciliation: a sketch in a session of ranges")
        step = self._sketch.receive(sketch)
        if step.by_ranges:
            self._sketch, self._ranges = None, RangeReconciliation(self._held)
            self._differs = True  # equal sets would be answered `done`
            return super().start()
        self._is_done = step.is_done
        return Step(step.say, need=self._lacking(step.needs), is_done=step.is_done)

    def _answer(self, ranges: tuple[RangeMessage, ...], opening: SketchOpening) -> Step:
        """Answer the first message: by ranges if they are equal or the sets small."""
        step = super().receive(ranges)
        larger = max(opening.count, self._count)
        if step.is_done or not SketchReceiver.accepts(larger, self._limits):
            return step
        self._ranges = RangeReconciliation(self._held)
        self._sketch = SketchReceiver(self._held, opening, self._nonce, self._limits)
        return Step((self._sketch.start(),))
