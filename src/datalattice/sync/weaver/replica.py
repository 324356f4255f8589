"""Replica: a Weaver store as something that replicates.

Its parts are signed intentions, its state is the set of witnessed ones: XOR and count of their
hashes. News are pushed as they are accepted; what was missed is found by comparing ranges of
hashes; predecessors and dependencies that an intention names are fetched by hash.

Source: Weaver specification "Gossip", "Reconciliation"; docs/design/conversation.md section 3.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Final, NamedTuple, Protocol

from datalattice.crypto import Entropy
from datalattice.errors import UnsupportedOperation
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
from datalattice.weaver import (
    Head,
    Ingested,
    IntentionRefused,
    SignedIntention,
    admit,
)

ARRIVALS_MAX: Final = 4_096
"""Newest intentions that are pushed to a peer that has missed some; further back it is compared."""

BATCH_INTENTIONS: Final = 50
BATCH_BYTES: Final = 4 * 1024 * 1024
"""Most intentions, and bytes of them, in one reply or push: a frame has at most 8 MiB."""


class WitnessedSet(HashSet, Protocol):
    """The witnessed hashes as they were at one moment, in the order of the log, too."""

    def in_log_order(self, hashes: Sequence[bytes]) -> list[bytes]:
        """Return those of `hashes` that are witnessed, dependencies first."""
        ...

    def envelope(self, hash: bytes) -> bytes | None:
        """Return a stored intention, signed; None if it is not here."""
        ...


class ReplicatedStore(Protocol):
    """What a replica needs of a store."""

    id: bytes

    def head(self) -> Head:
        """Return where the log stands."""
        ...

    def take(self, signed: Sequence[SignedIntention]) -> Ingested:
        """Take in verified intentions; durable on return."""
        ...

    def view(self) -> AbstractContextManager[WitnessedSet]:
        """Give the log as it is now."""
        ...

    def can_connect(self, key: bytes | None) -> bool:
        """Return whether a peer with this key may ask for the store."""
        ...

    def can_accept_gossip(self, author: bytes) -> bool:
        """Return whether news of an author is taken as it is written."""
        ...


class _Arrival(NamedTuple):
    """An intention that was accepted for the first time, and the connection that brought it."""

    part: Part
    connection: str


class WeaverReplica:
    """See the module. `noticed` may be called by any thread; all else in one."""

    def __init__(self, store: ReplicatedStore, entropy: Entropy) -> None:
        self._store = store
        self._entropy = entropy
        self._arrivals: deque[_Arrival] = deque(maxlen=ARRIVALS_MAX)
        self._arrived = 0
        """Arrivals so far; probes of this replica carry it, so that news can begin behind it."""
        self._written: deque[SignedIntention] = deque()
        self._open: set[RangeComparison] = set()

    def noticed(self, signed: SignedIntention) -> None:
        """Note an intention that was written here and is durable; `publish` sends it."""
        self._written.append(signed)

    # --- what a replicator needs --------------------------------------------------------------

    @property
    def probe(self) -> Probe:
        """The witnessed set."""
        head = self._store.head()
        return Probe(probe_key(head.fingerprint, head.count), self._arrived)

    def publish(self) -> bool:
        """Queue for the peers what was written here; return whether there was anything."""
        is_news = bool(self._written)
        while self._written:
            self._arrive(self._written.popleft(), "")
        return is_news

    def _arrive(self, signed: SignedIntention, connection: str) -> None:
        self._arrivals.append(_Arrival(Part(signed.hash, signed.encode()), connection))
        self._arrived += 1

    def absorb(self, offer: Offer, peer: Peer, *, asked: bool = False) -> Absorbed:
        """Take in intentions; one that is refused costs itself alone."""
        absorbed = Absorbed()
        fresh = self._admitted(offer, absorbed, asked=asked)
        if fresh:
            ingested = self._store.take(fresh)
            # What floats is passed on, too: the other peers may have what it waits for.
            absorbed.changed = True
            for signed in fresh:
                self._arrive(signed, peer.connection)
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
        with self._store.view() as held:
            # "Duplicates are dropped by hash before any signature is checked."
            new = [part for part in offer.parts if held.envelope(part.hash) is None]
        admitted = []
        for part in new:
            try:
                (signed,) = admit([part.data], self._store.id)
            except IntentionRefused as error:
                absorbed.reports.append(Remark("intention-refused", str(error), is_refusal=True))
                continue
            # "A revoked author is refused in gossip only": its history goes on spreading.
            if not asked and not self._store.can_accept_gossip(signed.intention.author):
                text = f"news of {signed.intention.author.hex()}, which is no peer of the store"
                absorbed.reports.append(Remark("author-refused", text, is_refusal=True))
                continue
            admitted.append(signed)
        return admitted

    def news(self, peer: Peer, known: Sequence[Probe]) -> News | None:
        """Return what arrived since the peer was last equal or pushed to, from others than it."""
        places = [probe.data for probe in known if isinstance(probe.data, int)]
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
        batches = list(_batches(parts))
        offers = [Offer(None, batch) for batch in batches[:-1]]
        return News((*offers, Offer(probe, batches[-1])))

    def serve(self, peer: Peer, request: object) -> Iterator[Reply]:
        """Answer a `Want` in the order of the log, so that little floats at the other side."""
        assert isinstance(request, Want)
        hashes = request.hashes
        with self._store.view() as held:
            ordered = held.in_log_order(hashes)
        for start in range(0, max(1, len(ordered)), BATCH_INTENTIONS):
            chunk = ordered[start : start + BATCH_INTENTIONS]
            with self._store.view() as held:  # one read transaction a reply
                found = [(hash, held.envelope(hash)) for hash in chunk]
            parts = [Part(hash, data) for hash, data in found if data is not None]
            batches = list(_batches(parts)) or [()]
            is_end = start + BATCH_INTENTIONS >= len(ordered)
            for batch in batches[:-1]:
                yield Reply(list(batch), last=False)
            yield Reply(list(batches[-1]), last=is_end)

    def compare(self, peer: Peer, why: Why, path: Sequence[object] = ()) -> RangeComparison | None:
        """Begin to compare: the side that dialled does, when they meet and from time to time."""
        begins = why is Why.PULL or (peer.dialled and why in (Why.MEETING, Why.DUE))
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
        is_peer = self._store.can_connect(peer.public_key)
        return Regard.STRANGER if is_peer else Regard.REFUSED

    def hear(self, peer: Peer) -> None:
        """Count nothing."""

    def forget(self, peer: Peer) -> None:
        """Forget nothing: what is known of a connection is its conversation's."""

    def close(self) -> None:
        """Release the views of open comparisons."""
        for comparison in list(self._open):
            comparison.ended()


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
        self._view = store.view()
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
        need = tuple([one for one in step.needs if self._held.envelope(one) is None])
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
        with self._store.view() as now:
            if len(now.in_log_order(list(self._needs))) < len(self._needs):
                return None  # some of it floats, or is the other branch of a fork
        for each in self._needs:
            fingerprint ^= int.from_bytes(each, "big")
        key = probe_key(fingerprint.to_bytes(len(HASH_START), "big"), count)
        return Probe(key, self._arrived)


def _batches(parts: Sequence[Part]) -> Iterator[tuple[Part, ...]]:
    """Yield the parts in lots of at most 50 and 4 MiB; a larger part goes alone."""
    batch: list[Part] = []
    size = 0
    for part in parts:
        if batch and (len(batch) >= BATCH_INTENTIONS or size + len(part.data) > BATCH_BYTES):
            yield tuple(batch)
            batch, size = [], 0
        batch.append(part)
        size += len(part.data)
    if batch:
        yield tuple(batch)
