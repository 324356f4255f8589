"""Replica: replicates a Weaver store.

Its parts are signed intentions; its state is the set of witnessed ones, stated as XOR and count of
their hashes. Newly witnessed intentions are pushed; comparisons find missed ones. Dependencies that
an intention names are fetched by hash, and missing predecessors as a chain.

Length: accepting, pushing and answering share one count of arrivals.
Source: Weaver specification "Gossip", "Reconciliation"; docs/design/conversation.md section 3.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Final, NamedTuple

from datalattice.crypto import Entropy
from datalattice.errors import LimitExceeded, UnsupportedOperation
from datalattice.sync.reconcile import SKETCH_LIMITS, SKETCH_NONCE_BYTES, SketchLimits, first_cut
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
    Want,
    Why,
)
from datalattice.sync.weaver.comparisons import (
    LogComparison,
    RangeComparison,
    ReplicatedStore,
    SketchComparison,
)
from datalattice.sync.weaver.conversation import SKETCHES, probe_key, probed_count
from datalattice.sync.weaver.gaps import CHAIN_MAX, ChainGaps
from datalattice.sync.weaver.gossip import ANNOUNCED_MAX, GossipOffer, Neighbours
from datalattice.sync.weaver.messages import BootstrapRequest, BootstrapResponse, FetchChain
from datalattice.weaver import (
    ZERO_HASH,
    Appended,
    Doubt,
    IntentionRefused,
    NotInChain,
    SignedIntention,
    WitnessEntry,
    admission,
    admit,
)


class SendLimits(NamedTuple):
    """Bounds of what one store sends, and of what it takes in at once."""

    arrivals: int = 4_096  # bounds memory for peers that read slowly
    """Newest intentions that are kept to be pushed; a peer further behind is compared. Also the
    number of floating intentions whose connection is remembered."""
    arrival_bytes: int = 16 * 1024 * 1024  # an intention may have a MiB
    """Most bytes of intentions that are kept to be pushed."""
    batch: int = 50  # "batches of at most 50 intentions"
    """Most intentions in one reply or push."""
    batch_bytes: int = 4 * 1024 * 1024  # "and at most 4 MiB"
    """Most bytes of a batch of several intentions: a frame has at most 8 MiB."""
    log_request: int = 1_000  # "limit 0: 1000"
    """Records of the witness log that a request without a limit gets."""
    log_request_max: int = 10_000  # "at most 10 000 per request"
    """Most records that a request of a peer gets, and that a request of ours asks for."""
    log_batch: int = 100  # "in batches of 100"
    """Most records of one reply."""
    verified: int = 1_000  # verifying 1,000 takes much longer than a commit waits for the disk
    """Intentions that are committed together, while the next ones are verified."""


SEND_LIMITS: Final = SendLimits()


class _Stated(int):
    """The count of arrivals when a peer stated our state, which we have not stated to it."""


WEAVER_SKETCHES: Final = SKETCH_LIMITS._replace(regions_from=100_000)
"""Reading and hashing a log of 100,000 intentions takes longer than sending a kilobyte more."""


class _Arrival(NamedTuple):
    """A newly witnessed intention, and the connection that brought it; "" for one written here."""

    part: Part
    connection: str


class WeaverReplica:
    """The replica of one Weaver store.

    peers:     returns the keys that may connect and whose news are taken, as the store says now.
    source:    the peer whose witness log is copied first, for a store that was just joined.
    on_copied: called once that log is here.
    sketches:  when sets are compared by sketches, and their bounds.
    """

    def __init__(
        self,
        store: ReplicatedStore,
        peers: Callable[[], Iterable[bytes]],
        entropy: Entropy,
        source: bytes | None = None,
        *,
        on_copied: Callable[[], None] | None = None,
        limits: SendLimits = SEND_LIMITS,
        sketches: SketchLimits = WEAVER_SKETCHES,
    ) -> None:
        self.source = source
        self._on_copied = on_copied
        self.limits: Final = limits
        self._sketches = sketches
        self._store = store
        self._peers = peers
        self._allowed: frozenset[bytes] | None = None
        self._entropy = entropy
        with store.read() as log:
            self._seq = log.head().seq
        """Sequence number up to which the log was read: older entries are no arrivals."""
        self._brought: dict[bytes, str] = {}
        """Connections that brought intentions which are not arrivals yet, by hash."""
        self._arrivals: deque[_Arrival] = deque()
        self._arrival_bytes = 0
        self._arrived = 0
        """Arrivals so far. Probes of this replica carry it: news are the arrivals after it."""
        self._copied: dict[str, int] = {}
        """Arrivals when the log was streamed to a connection to its end."""
        self._open: set[RangeComparison] = set()
        self._copying: dict[LogComparison, str] = {}
        """Copies of the source's log that have not ended, each with its connection."""
        self._abandoned: set[str] = set()
        """Connections on which a session of sketches was not ended by the peer. Each costs this
        side a scan of its log, and the peer a message, so later ones there go by ranges."""
        self._neighbours = Neighbours(entropy)
        self.sent = self.received = 0  # intentions given to peers, and taken in from them
        self.gaps: Final = ChainGaps()
        """Missing predecessors, for the conversations that ask for them."""

    # --- what a replicator needs --------------------------------------------------------------

    @property
    def probe(self) -> Probe:
        """The witnessed set."""
        with self._store.read() as log:
            head = log.head()
        return Probe(probe_key(head.fingerprint, head.count), self._arrived)

    def publish(self) -> bool:
        """Read what any process wrote into the store here; return whether there was anything."""
        before = self._arrived
        self._read_log()
        return self._arrived > before

    def _read_log(
        self, appended: Appended | None = None, fresh: Sequence[SignedIntention] = ()
    ) -> None:
        """Add new intentions of the log to the arrivals.

        appended: what this process has just added to the log. fresh: decoded intentions that may be
                  among them.
        """
        if appended is not None and appended.start == self._seq:
            # Intentions in memory are not read back: that would decode and hash them again.
            by_hash = {signed.hash: signed for signed in fresh}
            for op in appended.ops:
                if op.hash not in by_hash:  # it had floated here, and is read from the log
                    break
                self._arrive(by_hash[op.hash], self._seq + 1)
        with self._store.read() as log:
            for entry in log.entries(self._seq + 1):
                self._arrive(entry.signed, entry.seq)

    def _arrive(self, signed: SignedIntention, seq: int) -> None:
        """Keep an intention for pushes, and drop the oldest beyond the limits."""
        self._allowed = None  # it may change who the peers of the store are
        # Encoded anew: the envelope that came may hold unsigned fields.
        part = Part(signed.hash, signed.encode())
        self._arrivals.append(_Arrival(part, self._brought.pop(part.hash, "")))
        self._arrival_bytes += len(part.data)
        self._arrived += 1
        self._seq = seq
        limits = self.limits
        while len(self._arrivals) > limits.arrivals or self._arrival_bytes > limits.arrival_bytes:
            self._arrival_bytes -= len(self._arrivals.popleft().part.data)

    def absorb(self, offer: Offer, peer: Peer, *, asked: bool = False) -> Absorbed:
        """Take in intentions; one that is refused costs itself alone."""
        absorbed = Absorbed()
        new = self._unknown(offer, peer, asked=asked)
        if isinstance(offer, GossipOffer):
            self._heed(offer, peer, absorbed)
        for verified in self._verified(new, absorbed):
            self._take(verified, absorbed, peer, asked=asked)
        if len(new) > self.limits.verified:
            # A later lot of this offer may have brought what an earlier one lacked.
            brought = {part.hash for part in new}
            absorbed.missing = [hash for hash in absorbed.missing if hash not in brought]
        if offer.probe is not None:
            absorbed.finished.append(offer.probe.key)
            own = self.probe
            if own.key == offer.probe.key:  # both sides are equal: news are what arrives later
                same = replace(own, data=_Stated(self._arrived))
                absorbed.holds.append((peer.connection, same))
        return absorbed

    def _take(
        self, verified: Sequence[SignedIntention], absorbed: Absorbed, peer: Peer, *, asked: bool
    ) -> None:
        """Take in verified intentions, durably, and note the results in `absorbed`."""
        fresh = []
        for signed in verified:
            # "A revoked author is refused in gossip only": comparisons still spread its history.
            if not asked and signed.intention.author not in self.allowed:
                text = f"news of {signed.intention.author.hex()}, which is no peer of the store"
                absorbed.reports.append(Remark("author-refused", text, is_refusal=True))
                continue
            fresh.append(signed)
        if not fresh:
            return
        if any(one.intention.author == self._store.author for one in fresh):
            # The folder was restored from a backup, or a copy of it is in use: a write before all
            # own intentions have come back would be a second branch.
            self._store.suspect(Doubt.BEHIND)
            remark = Remark(
                "own-elsewhere", "a peer has intentions of this node that were not here"
            )
            if remark not in absorbed.reports:  # once an offer
                absorbed.reports.append(remark)
        # Requested intentions may float beyond the bound that holds for pushed ones.
        ingested = self._store.take(fresh, bounded=not asked)
        self.received += len(fresh)
        self._brought.update((one.hash, peer.connection) for one in fresh)
        self.gaps.forget([one.hash for one in fresh])
        self.gaps.add(ingested.missing)
        before = self._arrived
        self._read_log(ingested.appended, fresh)
        # Floating intentions keep their connection, too: pushed back there they would be redundant,
        # and only hashes would be announced from then on. The oldest are forgotten.
        while len(self._brought) > self.limits.arrivals:
            del self._brought[next(iter(self._brought))]
        absorbed.changed = absorbed.changed or self._arrived > before
        # "For each missing dependency run gap repair with the sender."
        absorbed.missing += [one.prev for one in ingested.missing]
        absorbed.missing += ingested.missing_condition
        for fork in ingested.forks:  # reported once, and never retried
            text = f"author {fork.author.hex()} wrote two intentions after one"
            absorbed.reports.append(Remark("author-forked", text))
        for hash in ingested.futures:
            text = f"intention {hash.hex()} is stamped far in the future"
            absorbed.reports.append(Remark("future-stamp", text))

    def _heed(self, offer: GossipOffer, peer: Peer, absorbed: Absorbed) -> None:
        """Act on gossip: send hashes alone, or fetch announced intentions that have not come."""
        if offer.is_redundant:
            self._neighbours.set_eager(peer.connection, is_eager=False)
        if offer.announced:
            with self._store.read() as log:
                lacking = [hash for hash in offer.announced if log.get(hash) is None]
            if lacking:
                self._neighbours.set_eager(peer.connection, is_eager=True)
            absorbed.missing += lacking

    def _unknown(self, offer: Offer, peer: Peer, *, asked: bool) -> list[Part]:
        """Return the parts of an offer that are not stored."""
        with self._store.read() as log:
            # "Duplicates are dropped by hash before any signature is checked."
            known = set(log.in_log_order([part.hash for part in offer.parts]))
            new = [part for part in offer.parts if part.hash not in known]
            if new and log.head().floating_count:
                new = [part for part in new if log.get(part.hash) is None]
        if not asked and len(new) < len(offer.parts) - len(new):
            self._neighbours.found_redundant(peer.connection)
        return new

    def _verified(
        self, parts: Sequence[Part], absorbed: Absorbed
    ) -> Iterator[list[SignedIntention]]:
        """Yield the intentions that pass `admit`, in lots; each part is checked at most twice.

        While the caller takes in a lot, the signatures of the next one are verified.
        """
        verified: list[SignedIntention] = []
        for start in range(0, len(parts), self.limits.verified):
            finish = self._begun(parts[start : start + self.limits.verified], absorbed)
            if verified:
                yield verified
            verified = finish()
        yield verified

    def _begun(
        self, parts: Sequence[Part], absorbed: Absorbed
    ) -> Callable[[], list[SignedIntention]]:
        """Begin to verify some parts together; return what waits for it and gives the good ones."""
        try:
            finish = admission([part.data for part in parts], self._store.id)
        except IntentionRefused:
            return partial(self._admitted, parts, absorbed)

        def finished() -> list[SignedIntention]:
            try:
                return finish()
            except IntentionRefused:
                return self._admitted(parts, absorbed)

        return finished

    def _admitted(self, parts: Sequence[Part], absorbed: Absorbed) -> list[SignedIntention]:
        """Return the intentions that pass `admit`, each checked by itself."""
        found = []
        for part in parts:  # one that is refused costs itself alone
            try:
                found += admit([part.data], self._store.id)
            except IntentionRefused as error:
                text = str(error)
                absorbed.reports.append(Remark("intention-refused", text, is_refusal=True))
        return found

    def news(self, peer: Peer, known: Sequence[Probe]) -> News | None:
        """Return what arrived, from others, since the peer was last equal or pushed to.

        Without arrivals it is our state alone, unless the peer was sent that already.
        """
        places = [probe.data for probe in known if isinstance(probe.data, int)]
        if peer.connection in self._copied:
            places.append(self._copied[peer.connection])  # the log was streamed to it up to here
        self._neighbours.meet(peer.connection)
        if not places:
            return None  # it has not been compared yet
        if peer.connection not in self._neighbours:
            # It is compared only, but it may push to this node, so it is told what is redundant.
            # No probe: it is not sent what arrived.
            is_redundant = self._neighbours.take_redundant(peer.connection)
            notice = GossipOffer(is_redundant=True)
            return News((notice,), is_whole=False) if is_redundant else None
        behind = self._arrived - max(places)  # from the newest state that both had
        if behind > len(self._arrivals):
            # "A neighbour that overflows is marked dirty and reconciled."
            return News(is_behind=True)
        probe = self.probe
        if probed_count(probe) > self._seq:
            return (
                None  # another process has just written: `publish` reads that before it is stated
            )
        recent = islice(self._arrivals, len(self._arrivals) - behind, None)
        # Never back to the connection that brought it.
        parts = [one.part for one in recent if one.connection != peer.connection]
        is_redundant = self._neighbours.take_redundant(peer.connection)
        is_told = any(one.key == probe.key and not isinstance(one.data, _Stated) for one in known)
        if is_told and not (parts or is_redundant):
            return None
        *offers, last = self._gossip(parts, peer) or [GossipOffer()]
        last = replace(last, probe=probe, is_redundant=is_redundant)
        # `is_whole=False`: constant pushes must not put off the comparison that finds losses.
        return News((*offers, last), is_whole=False)

    def _gossip(self, parts: Sequence[Part], peer: Peer) -> list[GossipOffer]:
        """Return offers of parts to a neighbour, or of their hashes."""
        if self._neighbours.is_eager(peer.connection):
            return [GossipOffer(None, batch) for batch in self._batches(parts)]
        hashes = [part.hash for part in parts]
        return [
            GossipOffer(announced=tuple(hashes[start : start + ANNOUNCED_MAX]))
            for start in range(0, len(hashes), ANNOUNCED_MAX)
        ]

    def serve(self, peer: Peer, request: object) -> Iterator[Reply]:
        """Answer a request for intentions by hash, for a chain, or for a part of the log."""
        if isinstance(request, BootstrapRequest):
            return self._serve_log(peer, request)
        if isinstance(request, Want):
            # The tree did not bring it these, so its connection is part of the tree again.
            self._neighbours.set_eager(peer.connection, is_eager=True)
            return self._serve_intentions(request.hashes)
        if isinstance(request, FetchChain):
            return self._serve_chain(request)
        return iter((Reply(None),))  # a request to join goes to `JoinReplica`

    def _serve_chain(self, request: FetchChain) -> Iterator[Reply]:
        # "Empty since means down to the author's first intention."
        since = request.since_hash or ZERO_HASH
        try:
            with self._store.read() as log:
                chain = log.chain(request.target_hash, since, CHAIN_MAX)
        except (NotInChain, LimitExceeded):
            yield Reply(None)  # "Errors (unknown, fork, too long) close the stream."
            return
        batches = list(self._batches([Part(one.hash, one.encode()) for one in chain])) or [()]
        for number, batch in enumerate(batches, 1):
            yield Reply(list(batch), last=number == len(batches))

    def _serve_intentions(self, hashes: Sequence[bytes]) -> Iterator[Reply]:
        # "In its own witness order, so that little floats at the receiver."
        with self._store.read() as log:
            ordered = log.in_log_order(hashes)
        most = self.limits.batch
        # An empty request, too, "is answered with an empty done"
        for start in range(0, max(1, len(ordered)), most):
            chunk = ordered[start : start + most]
            with self._store.read() as log:  # a short view a reply: a slow peer holds no pages
                found = [log.get(hash) for hash in chunk]
            parts = [Part(one.hash, one.encode()) for one in found if one is not None]
            batches = list(self._batches(parts)) or [()]
            is_end = start + most >= len(ordered)
            for batch in batches[:-1]:
                yield Reply(list(batch), last=False)
            yield Reply(list(batches[-1]), last=is_end)

    def _serve_log(self, peer: Peer, request: BootstrapRequest) -> Iterator[Reply]:
        seq = max(1, request.start_seq)  # "start_seq (0 = 1)"
        limits = self.limits
        left = min(request.limit or limits.log_request, limits.log_request_max)
        while True:
            entries: list[WitnessEntry] = []
            intentions: list[bytes] = []
            size = 0
            with self._store.read() as log:
                for entry in log.entries(seq, min(left, limits.log_batch)):
                    envelope = entry.signed.encode()
                    # "split by size as well as by count"; the first is sent whatever its size.
                    if intentions and size + len(envelope) > limits.batch_bytes:
                        break
                    entries.append(entry)
                    intentions.append(envelope)
                    size += len(envelope)
                    seq += 1
                is_end = seq > log.head().seq
            if is_end:
                self._copied[peer.connection] = self._arrived  # later arrivals are pushed
            self.sent += len(entries)
            left -= len(entries)
            is_last = is_end or left == 0
            # "That of the last record will do": signing is most of what a record costs here.
            bare = len(entries) - 1 if request.one_signature else 0
            records = [one.unsigned_record.encode() for one in entries[:bare]]
            records += [one.record.encode() for one in entries[bare:]]
            sent = tuple(records), tuple(intentions)
            yield Reply(BootstrapResponse(self._store.id, *sent, is_end, seq - 1), last=is_last)
            if is_last:
                return

    def _batches(self, parts: Sequence[Part]) -> Iterator[tuple[Part, ...]]:
        """Yield the parts in batches; a part larger than the bound of bytes is one alone."""
        limits = self.limits
        self.sent += len(parts)
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
        """Begin to compare: the side that dialled does so at the meeting and at each interval."""
        # Not both sides: they would compare the same sets twice. But only one may know of a loss.
        begins = why in (Why.PULL, Why.DIRTY) or (peer.dialled and why in (Why.MEETING, Why.DUE))
        # A comparison would fetch a second time what the log is about to bring. And one copy at a
        # time: copying a large log takes longer than the interval of comparisons.
        if peer.connection in self._copying.values() and why is not Why.PULL:
            return None
        if begins and peer.public_key is not None and peer.public_key == self.source:
            copied = partial(self._copied_from, self._arrived)
            limit = self.limits.log_request_max  # the source pauses between two requests
            # Only here are the inviter's records verified one by one: a comparison has no records.
            copy = LogComparison(self._store.id, peer.public_key, limit, copied, self._end_copying)
            self._copying[copy] = peer.connection
            return copy
        if not (begins or why is Why.ASKED):
            return None
        # "cut at 8 random bytes": only where this side opens.
        cut = first_cut(self._entropy) if begins else None
        # A comparison lists all missing hashes, so none needs to be fetched as the end of a chain,
        # which the peer may refuse as too long.
        on_need, on_end = self.gaps.forget, partial(self._compared, peer.connection)
        begun = (self._store, self._arrived, cut, on_need, on_end)
        comparison: RangeComparison
        if SKETCHES in peer.features:
            nonce = self._entropy.bytes(SKETCH_NONCE_BYTES)
            limits = self._sketches
            if peer.connection in self._abandoned:
                limits = limits._replace(items=-1)  # no set is small enough: ranges alone
            comparison = SketchComparison(*begun, nonce, limits)
        else:
            comparison = RangeComparison(*begun, differs=why is Why.DIRTY)
        self._open.add(comparison)
        return comparison

    def _compared(self, connection: str, comparison: RangeComparison) -> None:
        """Note the end of a comparison."""
        self._open.discard(comparison)
        if isinstance(comparison, SketchComparison) and comparison.is_abandoned:
            self._abandoned.add(connection)
        if comparison.is_complete:
            self._store.settle(asked=True)

    def equals(self, peer: Peer, stated: Probe | None) -> bool:
        """Return whether a peer that stated `stated` has the set that is here."""
        return stated is not None and stated.key == self.probe.key

    def repair(self, parts: Sequence[Part]) -> None:
        """Refuse: a damaged row is found and replaced by `lattice store fsck`."""
        raise UnsupportedOperation("the log of a store is not repaired through replication")

    def regard(self, peer: Peer) -> Regard:
        """Return whether the policy of the store lets a peer connect."""
        return Regard.STRANGER if peer.public_key in self.allowed else Regard.REFUSED

    @property
    def allowed(self) -> frozenset[bytes]:
        """The keys that may connect and whose news are taken."""
        if self._allowed is None:
            self._allowed = frozenset(self._peers())
        return self._allowed

    def _end_copying(self, copy: LogComparison) -> None:
        self._copying.pop(copy, None)

    def _copied_from(self, arrived: int) -> Probe:
        """Note that the log of the source is here; return the state that both sides have."""
        self.source = None  # from now on it is compared like any other peer
        self._store.settle(asked=True)
        if self._on_copied is not None:
            self._on_copied()
        return replace(self.probe, data=arrived)

    def peers_changed(self) -> None:
        """Read again who the peers are: those of a parent store may have changed."""
        self._allowed = None

    def hear(self, peer: Peer) -> None:
        """Count nothing."""

    def forget(self, peer: Peer) -> None:
        """Forget where news begin for a connection that has ended, and replace the neighbour."""
        self._neighbours.leave(peer.connection)
        self._copied.pop(peer.connection, None)
        self._abandoned.discard(peer.connection)

    def close(self) -> None:
        """Release the views of open comparisons."""
        for comparison in list(self._open):
            comparison.ended()
