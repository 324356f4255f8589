"""Replica: a Weaver store as something that replicates.

Its parts are signed intentions, its state is the set of witnessed ones: XOR and count of their
hashes. News are pushed as they are accepted; what was missed is found by comparing ranges of
hashes; predecessors and dependencies that an intention names are fetched by hash.

Source: Weaver specification "Gossip", "Reconciliation"; docs/design/conversation.md section 3.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Final, NamedTuple, Protocol

from datalattice.crypto import Entropy
from datalattice.errors import BadFormat, ProtocolViolation, UnsupportedOperation
from datalattice.sync.reconcile import (
    HASH_END,
    HASH_START,
    HashSet,
    RangeMessage,
    RangeReconciliation,
    first_cut,
)
from datalattice.sync.replica import (
    Absorbed,
    News,
    Offer,
    Part,
    Peer,
    Probe,
    Regard,
    Remark,
    Reply,
    Step,
    Want,
    Why,
)
from datalattice.sync.weaver.conversation import probe_key
from datalattice.sync.weaver.messages import BootstrapRequest, BootstrapResponse
from datalattice.weaver import (
    ZERO,
    ChainEnd,
    Entry,
    Head,
    Ingested,
    IntentionRefused,
    SignedIntention,
    WitnessRecord,
    admit,
    check_chain,
)


class ReplicaLimits(NamedTuple):
    """Bounds of what one store sends."""

    arrivals: int = 4_096
    """Newest intentions that are kept to be pushed; a peer further behind is compared."""
    batch: int = 50
    """Most intentions in one reply or push."""
    batch_bytes: int = 4 * 1024 * 1024
    """Most bytes of them, one large intention apart: a frame has at most 8 MiB."""
    log_request: int = 1_000
    """Records of the witness log that one request asks for, and that one without a limit gets."""
    log_request_max: int = 10_000
    """Most records that a request gets."""
    log_batch: int = 100
    """Most records of one reply."""


REPLICA_LIMITS: Final = ReplicaLimits()


class LogView(HashSet, Protocol):
    """The log of a store as it was at one moment."""

    def head(self) -> Head:
        """Return where it stands."""
        ...

    def get(self, hash: bytes) -> SignedIntention | None:
        """Return an intention, witnessed or floating, or None."""
        ...

    def in_log_order(self, hashes: Sequence[bytes]) -> list[bytes]:
        """Return those of `hashes` that are witnessed, dependencies first."""
        ...

    def entries(self, start_seq: int, limit: int | None = None) -> Iterator[Entry]:
        """Yield the witness log from a sequence number on."""
        ...


class ReplicatedStore(Protocol):
    """What a replica needs of a store: `datalattice.weaver.Store` has it."""

    @property
    def id(self) -> bytes:
        """Its id."""
        ...

    def take(self, signed: Sequence[SignedIntention], *, bounded: bool = True) -> Ingested:
        """Take in verified intentions; durable on return."""
        ...

    def read(self) -> AbstractContextManager[LogView]:
        """Give the log as it is now."""
        ...


class _Arrival(NamedTuple):
    """A newly witnessed intention, and the connection that brought it; "" for one written here."""

    part: Part
    connection: str


class WeaverReplica:
    """See the module.

    peers:  gives the keys that may connect and whose news are taken, as the store says now.
    source: the peer whose witness log is fetched first, for a store that was just joined.
    on_copied: called once that is done.
    """

    def __init__(
        self,
        store: ReplicatedStore,
        peers: Callable[[], Iterable[bytes]],
        entropy: Entropy,
        source: bytes | None = None,
        *,
        on_copied: Callable[[], None] | None = None,
        limits: ReplicaLimits = REPLICA_LIMITS,
    ) -> None:
        self.source = source
        self._on_copied = on_copied
        self.limits: Final = limits
        self._store = store
        self._peers = peers
        self._allowed: frozenset[bytes] | None = None
        self._entropy = entropy
        with store.read() as log:
            self._seq = log.head().seq
        """Up to here the log is among the arrivals, or was there before this replica."""
        self._brought: dict[bytes, str] = {}
        """Connections that brought what is not yet among the arrivals, by hash."""
        self._arrivals: deque[_Arrival] = deque(maxlen=limits.arrivals)
        self._arrived = 0
        """Arrivals so far; probes of this replica carry it, so that news can begin behind it."""
        self._copied: dict[str, int] = {}
        """Where news begin for a connection to which the log was streamed."""
        self._open: set[RangeComparison] = set()

    # --- what a replicator needs --------------------------------------------------------------

    @property
    def probe(self) -> Probe:
        """The witnessed set."""
        with self._store.read() as log:
            head = log.head()
        return Probe(probe_key(head.fingerprint, head.count), self._arrived)

    def publish(self) -> bool:
        """Note what was written here, by any process; return whether there was anything."""
        before = self._arrived
        self._read_log()
        return self._arrived > before

    def _read_log(self) -> None:
        """Add to the arrivals what is new in the log."""
        with self._store.read() as log:
            for entry in log.entries(self._seq + 1):
                self._allowed = None  # it may be about the peers of the store
                signed = entry.signed
                connection = self._brought.pop(signed.hash, "")
                self._arrivals.append(_Arrival(Part(signed.hash, signed.encode()), connection))
                self._arrived += 1
                self._seq = entry.seq

    def absorb(self, offer: Offer, peer: Peer, *, asked: bool = False) -> Absorbed:
        """Take in intentions; one that is refused costs itself alone."""
        absorbed = Absorbed()
        fresh = self._admitted(offer, absorbed, asked=asked)
        if fresh:
            ingested = self._store.take(fresh, bounded=not asked)
            self._brought.update((one.hash, peer.connection) for one in fresh)
            for hash in ingested.floating:
                # It is news once it is witnessed, to whoever brought it, too.
                self._brought.pop(hash, None)
            before = self._arrived
            self._read_log()
            absorbed.changed = self._arrived > before
            absorbed.missing += [one.prev for one in ingested.missing]
            absorbed.missing += ingested.missing_condition
            for fork in ingested.forks:
                text = f"author {fork.author.hex()} wrote two intentions after one"
                absorbed.reports.append(Remark("author-forked", text))
            for hash in ingested.futures:
                text = f"intention {hash.hex()} is stamped far in the future"
                absorbed.reports.append(Remark("future-stamp", text))
        if offer.probe is not None:
            absorbed.finished.append(offer.probe.key)
            own = self.probe
            if own.key == offer.probe.key:
                absorbed.holds.append((peer.connection, own))
        return absorbed

    def _admitted(self, offer: Offer, absorbed: Absorbed, *, asked: bool) -> list[SignedIntention]:
        """Return the new intentions of an offer that pass every check."""
        with self._store.read() as log:
            # "Duplicates are dropped by hash before any signature is checked."
            new = [part for part in offer.parts if log.get(part.hash) is None]
        admitted = []
        for part in new:
            try:
                (signed,) = admit([part.data], self._store.id)
            except IntentionRefused as error:
                absorbed.reports.append(Remark("intention-refused", str(error), is_refusal=True))
                continue
            # "A revoked author is refused in gossip only": its history goes on spreading.
            if not asked and signed.intention.author not in self._keys():
                text = f"news of {signed.intention.author.hex()}, which is no peer of the store"
                absorbed.reports.append(Remark("author-refused", text, is_refusal=True))
                continue
            admitted.append(signed)
        return admitted

    def news(self, peer: Peer, known: Sequence[Probe]) -> News | None:
        """Return what arrived since the peer was last equal or pushed to, from others than it."""
        places = [probe.data for probe in known if isinstance(probe.data, int)]
        if peer.connection in self._copied:
            places.append(self._copied[peer.connection])
        if not places:
            return None  # it has not been compared yet
        behind = self._arrived - max(places)
        if behind > len(self._arrivals):
            return None  # too far behind: a comparison is cheaper
        probe = self.probe
        recent = [
            self._arrivals[i] for i in range(len(self._arrivals) - behind, len(self._arrivals))
        ]
        parts = [one.part for one in recent if one.connection != peer.connection]
        if not parts:
            return None
        batches = list(self._batches(parts))
        offers = [Offer(None, batch) for batch in batches[:-1]]
        return News((*offers, Offer(probe, batches[-1])))

    def serve(self, peer: Peer, request: object) -> Iterator[Reply]:
        """Answer a `Want`, or stream a part of the witness log for a `BootstrapRequest`."""
        if isinstance(request, BootstrapRequest):
            return self._serve_log(peer, request)
        if isinstance(request, Want):
            return self._serve_intentions(request.hashes)
        return iter((Reply(None),))  # joining is not asked of a store

    def _serve_intentions(self, hashes: Sequence[bytes]) -> Iterator[Reply]:
        # "In its own witness order, so that little floats at the receiver."
        with self._store.read() as log:
            ordered = log.in_log_order(hashes)
        most = self.limits.batch
        for start in range(0, max(1, len(ordered)), most):
            chunk = ordered[start : start + most]
            with self._store.read() as log:  # one read transaction a reply
                found = [log.get(hash) for hash in chunk]
            parts = [Part(one.hash, one.encode()) for one in found if one is not None]
            batches = list(self._batches(parts)) or [()]
            is_end = start + most >= len(ordered)
            for batch in batches[:-1]:
                yield Reply(list(batch), last=False)
            yield Reply(list(batches[-1]), last=is_end)

    def _serve_log(self, peer: Peer, request: BootstrapRequest) -> Iterator[Reply]:
        seq = max(1, request.start_seq)
        limits = self.limits
        left = min(request.limit or limits.log_request, limits.log_request_max)
        while True:
            records: list[bytes] = []
            intentions: list[bytes] = []
            size = 0
            with self._store.read() as log:
                for entry in log.entries(seq, min(left, limits.log_batch)):
                    envelope = entry.signed.encode()
                    if intentions and size + len(envelope) > limits.batch_bytes:
                        break
                    records.append(entry.record.encode())
                    intentions.append(envelope)
                    size += len(envelope)
                    seq += 1
                is_end = seq > log.head().seq
            if is_end:
                self._copied[peer.connection] = self._arrived
            left -= len(records)
            is_last = is_end or left == 0
            yield Reply(
                BootstrapResponse(
                    self._store.id, tuple(records), tuple(intentions), is_end, seq - 1
                ),
                last=is_last,
            )
            if is_last:
                return

    def _batches(self, parts: Sequence[Part]) -> Iterator[tuple[Part, ...]]:
        """Yield the parts in lots; a part larger than the bound of bytes goes alone."""
        limits = self.limits
        batch: list[Part] = []
        size = 0
        for part in parts:
            is_full = len(batch) >= limits.batch or size + len(part.data) > limits.batch_bytes
            if batch and is_full:
                yield tuple(batch)
                batch, size = [], 0
            batch.append(part)
            size += len(part.data)
        if batch:
            yield tuple(batch)

    def compare(
        self, peer: Peer, why: Why, path: Sequence[object] = ()
    ) -> RangeComparison | LogComparison | None:
        """Begin to compare: the side that dialled does, when they meet and from time to time."""
        begins = why is Why.PULL or (peer.dialled and why in (Why.MEETING, Why.DUE))
        if begins and peer.public_key is not None and peer.public_key == self.source:
            return LogComparison(self, self._store.id, peer.public_key, self._arrived)
        if not (begins or why is Why.ASKED):
            return None
        cut = first_cut(self._entropy) if begins else None
        comparison = RangeComparison(self._store, self._arrived, cut, self._open.discard)
        self._open.add(comparison)
        return comparison

    def equals(self, peer: Peer, stated: Probe | None) -> bool:
        """Return whether a peer that states this has the set that is here."""
        return stated is not None and stated.key == self.probe.key

    def repair(self, parts: Sequence[Part]) -> None:
        """Refuse: a damaged row is found and replaced by `lattice store fsck`."""
        raise UnsupportedOperation("the log of a store is not repaired through replication")

    def regard(self, peer: Peer) -> Regard:
        """Return whether the policy of the store lets a peer connect."""
        return Regard.STRANGER if peer.public_key in self._keys() else Regard.REFUSED

    def _keys(self) -> frozenset[bytes]:
        if self._allowed is None:
            self._allowed = frozenset(self._peers())
        return self._allowed

    def copied(self) -> None:
        """Note that the log of the source is here."""
        self.source = None
        if self._on_copied is not None:
            self._on_copied()

    def peers_changed(self) -> None:
        """Ask again who the peers are: they are those of another store, which has changed."""
        self._allowed = None

    def hear(self, peer: Peer) -> None:
        """Count nothing."""

    def forget(self, peer: Peer) -> None:
        """Forget where news begin for a connection that has ended."""
        self._copied.pop(peer.connection, None)

    def close(self) -> None:
        """Release the views of open comparisons."""
        for comparison in list(self._open):
            comparison.ended()


class LogComparison:
    """The first copy of a store: the witness log of one peer, verified on the way."""

    probe: Final = None

    def __init__(self, replica: WeaverReplica, store_id: bytes, node: bytes, arrived: int) -> None:
        self._replica = replica
        self._store_id = store_id
        self._node = node
        self._arrived = arrived
        self._chain = ChainEnd(0, ZERO)
        self._asked_to = 0
        self._is_copied = False

    def start(self) -> Step:
        """Ask from the beginning."""
        return self._ask()

    def _ask(self) -> Step:
        limit = self._replica.limits.log_request
        self._asked_to = self._chain.seq + limit
        return Step((BootstrapRequest(self._store_id, self._chain.seq + 1, limit),))

    def receive(self, message: object) -> Step:
        """Take in records and their intentions.

        Raises: ChainBroken, ProtocolViolation: the peer did not sign a record, or it names an
                intention that was not sent.
        """
        assert isinstance(message, BootstrapResponse)
        parts = {part.hash: part for part in map(_part_of, message.intentions)}
        try:
            records = [WitnessRecord.decode(record) for record in message.records]
        except BadFormat as error:
            raise ProtocolViolation(f"witness log: {error}") from error
        self._chain = check_chain(records, self._store_id, self._node, self._chain)
        named = [record.read().intention_hash for record in records]
        lacking = [hash for hash in named if hash not in parts]
        if lacking or not (records or message.done):
            raise ProtocolViolation("witness log: a record without its intention, or none at all")
        # "Intentions without a record are ignored"; the others are in witness order.
        offer = Offer(None, tuple([parts[hash] for hash in named]))
        offers = (offer,) if named else ()
        if message.done:
            self._is_copied = True
            return Step(offers=offers, is_done=True)
        if self._chain.seq < self._asked_to:
            return Step(offers=offers)  # more of this answer follows
        return replace(self._ask(), offers=offers)

    def ended(self) -> Probe | None:
        """Return the copied state; None if the log did not come to its end."""
        if not self._is_copied:
            return None
        self._replica.copied()
        return replace(self._replica.probe, data=self._arrived)


def _part_of(envelope: bytes) -> Part:
    try:
        return Part(SignedIntention.decode(envelope).hash, envelope)
    except BadFormat as error:
        raise ProtocolViolation(f"witness log: {error}") from error


class RangeComparison:
    """A comparison by ranges of hashes. It answers from the log as it was when it began."""

    probe: Final = None
    """Ranges tell a peer nothing that news could begin at."""

    def __init__(
        self,
        store: ReplicatedStore,
        arrived: int,
        cut: bytes | None,
        on_end: Callable[[RangeComparison], None],
    ) -> None:
        self._store = store
        self._arrived = arrived
        self._cut = cut
        self._on_end = on_end
        self._view = store.read()
        self._held = self._view.__enter__()
        self._ranges = RangeReconciliation(self._held)
        self._needs: set[bytes] = set()
        self._is_open = True

    def start(self) -> Step:
        """State two ranges around a random cut."""
        return Step(self._ranges.start(self._cut))

    def receive(self, message: object) -> Step:
        """Answer each range.

        Raises: ProtocolViolation: the payload does not follow from the last one.
        """
        assert isinstance(message, tuple)
        ranges: tuple[RangeMessage, ...] = message
        step = self._ranges.receive(ranges)
        self._needs.update(step.needs)
        # "A hash that is stored, floating or as the loser of a fork, is not fetched again."
        need = tuple([one for one in step.needs if self._held.get(one) is None])
        is_done = all(one.done is not None for one in step.answer)
        return Step(step.answer, need=need, is_done=is_done)

    def ended(self) -> Probe | None:
        """Return what both sides have: the union; None when some range was left out."""
        if not self._is_open:
            return None
        self._is_open = False
        self._on_end(self)
        try:
            if self._ranges.partial:
                return None
            return self._union()
        finally:
            self._view.__exit__(None, None, None)

    def _union(self) -> Probe | None:
        fingerprint = int.from_bytes(self._held.fingerprint(HASH_START, HASH_END), "big")
        count = self._held.count(HASH_START, HASH_END) + len(self._needs)
        with self._store.read() as now:
            if len(now.in_log_order(list(self._needs))) < len(self._needs):
                return None  # some of it floats, or is the other branch of a fork
        for each in self._needs:
            fingerprint ^= int.from_bytes(each, "big")
        key = probe_key(fingerprint.to_bytes(len(HASH_START), "big"), count)
        return Probe(key, self._arrived)
