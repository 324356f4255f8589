"""Log: the witness log of one store, and the intentions that wait to enter it.

    log = IntentionLog(store_id, node_key, clock)
    with engine.write() as txn:
        log.ingest(txn, admit(envelopes, store_id))
        signed, done = log.submit(txn, author_key, payload, deps)
    for entry in log.scan(snapshot, start_seq=1, limit=100): entry.signed, entry.record

An author's intentions form a chain (`store_prev`) and name what they depend on. Once predecessor
and dependencies are witnessed, the node witnesses an intention: it gets the next `seq`. Until then
it floats. An `IntentionLog` holds no data: every method reads the tables, in the section of the
transaction that it takes, so nothing is read when a store is opened.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from datalattice.clock import Clock, present_ms
from datalattice.crypto import KeyPair, blake3
from datalattice.engine import ReadTxn, WriteTxn, successor
from datalattice.errors import BadFormat, Corruption, LimitExceeded, UsageError
from datalattice.limits import HASH_BYTES
from datalattice.weaver.dag import DagNode
from datalattice.weaver.ingest import Fork, Ingest, Ingested
from datalattice.weaver.intention import LOG_LIMITS, ZERO_HASH, LogLimits, SignedIntention
from datalattice.weaver.op import Op
from datalattice.weaver.replay import read_operation, read_operations
from datalattice.weaver.rows import (
    AUTHOR_TIPS,
    FLOATING,
    FLOATING_BY_PREV,
    FORK_END,
    FORK_PREFIX,
    LOG_META,
    WITNESS,
    WITNESS_INDEX,
    Head,
    RangeSum,
    Tip,
    WitnessRow,
    decode_floating,
    decode_place,
    decode_range,
    decode_tip,
    decode_witness,
    line_key,
    range_key,
    read_author,
    read_floating,
    read_head,
    read_place,
    read_tip,
    read_witness,
    seq_key,
    waiting_rows,
    witness_content,
)
from datalattice.weaver.witness import WitnessRecord

LISTED_HASHES_MAX: Final = 2048  # a list of 64 KiB, far below a frame
"""Most hashes of a range that are listed: reconciliation splits larger ranges."""


class NotInChain(UsageError):
    """A walk along an author's chain did not reach `since`."""

    code = "not-in-chain"


class Floating(NamedTuple):
    """An intention that waits, since when, and for what.

    reason: "prev": its predecessor is missing; "condition": a dependency is missing; "fork": the
    author's chain went on another way, so it waits for ever.
    """

    signed: SignedIntention
    received_ms: int
    reason: str


class WitnessEntry:
    """One witnessed intention: its place, and what the record says.

    height: position in the author's chain, from 1. wall_ms: when it was witnessed. content_hash:
    the hash of what the record says, which the next record names; prev_hash: that of the record
    before, ZERO for the first.
    """

    __slots__ = (
        "_content",
        "_log",
        "content_hash",
        "height",
        "prev_hash",
        "seq",
        "signed",
        "wall_ms",
    )

    def __init__(self, log: IntentionLog, seq: int, row: WitnessRow, author: bytes) -> None:
        self._log = log
        self.seq = seq
        self.height = row.height
        self.wall_ms = row.wall
        # The name is recomputed from the stored bytes, never stored beside them.
        try:
            self.signed = row.signed(log.store_id, author)
        except BadFormat as error:
            raise Corruption(f"{WITNESS} {seq}: {error}") from error
        self._content = witness_content(log.store_id, self.signed.hash, row.wall, row.before)
        self.content_hash = blake3(self._content)
        self.prev_hash = row.before

    @property
    def record(self) -> WitnessRecord:
        """The record, signed by this node. Cost: a signature each time."""
        # Deterministic Ed25519: the same bytes each time
        return WitnessRecord(self._content, self._log.signer.sign(self.content_hash))

    @property
    def unsigned_record(self) -> WitnessRecord:
        """The record without its signature, for a chain that ends with one that has it."""
        return WitnessRecord(self._content)


class IntentionLog:
    """The log of one store. Every method takes the store's section of a transaction first."""

    def __init__(
        self, store_id: bytes, signer: KeyPair, clock: Clock, limits: LogLimits = LOG_LIMITS
    ) -> None:
        """Make the log; `signer` is the key of the node, which signs its records."""
        self.store_id = store_id
        self.signer = signer
        self.limits = limits
        self._clock = clock

    # --- writing ------------------------------------------------------------------------------

    def ingest(
        self, txn: WriteTxn, signed: Iterable[SignedIntention], *, bounded: bool = True
    ) -> Ingested:
        """Take in what `admit` accepted, and witness all that can be.

        bounded: False for what was fetched on purpose, which may wait beyond the bound.

        Raises: FloatingFull: more would wait than is kept; roll the transaction's work back.
        """
        return self.begin(txn).run(signed, bounded=bounded)

    def submit(
        self, txn: WriteTxn, author: KeyPair, payload: bytes, deps: Iterable[bytes] = ()
    ) -> tuple[SignedIntention, Ingested]:
        """Sign and take in a local intention, stamped later than all it depends on.

        With a dependency that is unknown here it floats, and so does what the author writes next:
        a chain that went on without it would be a fork.

        Raises: PayloadTooLarge, TooManyCausalDeps, FloatingFull. UsageError: a dependency is not a
                hash, or is stamped with the end of time.
        """
        call = self.begin(txn)
        call.submit(author, payload, deps)
        ingested = call.finish()
        return call.own[0], ingested

    def begin(self, txn: WriteTxn) -> Ingest:
        """Begin one call's work: any number of intentions of this node, then `finish`."""
        # Wall time is read once a call: its records carry one time
        return Ingest(txn, self.store_id, self.signer, self.limits, present_ms(self._clock))

    # --- one intention ------------------------------------------------------------------------

    def head(self, txn: ReadTxn) -> Head:
        """Return where the log stands. Cost: one row."""
        return read_head(txn)

    def get(self, txn: ReadTxn, hash: bytes) -> SignedIntention | None:
        """Return an intention, witnessed or floating, or None."""
        place = read_place(txn, hash)
        if place is None:
            floating = read_floating(txn, hash)
            return None if floating is None else floating.signed
        signed = self._entry(txn, place.seq).signed
        # The hash is computed from the stored bytes, so damage never passes as another intention.
        if signed.hash != hash:
            raise Corruption(f"{WITNESS} {place.seq}: it holds {signed.hash.hex()}")
        return signed

    def seq_of(self, txn: ReadTxn, hash: bytes) -> int | None:
        """Return the place of an intention in the log, or None while it is not witnessed."""
        place = read_place(txn, hash)
        return None if place is None else place.seq

    def node(self, txn: ReadTxn, hash: bytes) -> DagNode | None:
        """Return a witnessed intention for the questions of `dag`, or None."""
        seq = self.seq_of(txn, hash)
        if seq is None:
            return None
        intention = self._entry(txn, seq).signed.intention
        return DagNode(hash, intention.deps, intention.stamp, seq)

    def by_prefix(self, txn: ReadTxn, prefix: bytes) -> list[SignedIntention]:
        """Return the intentions whose hash begins with 1 to 32 bytes; other lengths give none."""
        if not 1 <= len(prefix) <= HASH_BYTES:  # "empty or longer than 32 gives nothing"
            return []
        end = successor(prefix)
        hashes = [  # a floating intention is found by its prefix, too
            hash for table in (WITNESS_INDEX, FLOATING) for hash, _ in txn.scan(table, prefix, end)
        ]
        return [found for hash in sorted(hashes) if (found := self.get(txn, hash)) is not None]

    # --- the log in order ---------------------------------------------------------------------

    def entry(self, txn: ReadTxn, seq: int) -> WitnessEntry:
        """Return the entry at `seq`.

        Raises: UsageError: the log has no such entry.
        """
        # A seq of the caller, not of the tables: its error, not damage
        last = read_head(txn).seq
        if not 1 <= seq <= last:
            raise UsageError(f"the log has no entry {seq}; its last is {last}")
        return self._entry(txn, seq)

    def content_hash(self, txn: ReadTxn, seq: int) -> bytes | None:
        """Return the hash of the record at `seq`, None where the log has none.

        It stands in the head and in the record after it, so nothing is hashed.
        """
        head = read_head(txn)
        if not 1 <= seq <= head.seq:
            return None
        return head.content_hash if seq == head.seq else read_witness(txn, seq + 1).before

    def _entry(self, txn: ReadTxn, seq: int) -> WitnessEntry:
        row = read_witness(txn, seq)
        return WitnessEntry(self, seq, row, row.new_author or read_author(txn, row.number))

    def scan(
        self, txn: ReadTxn, start_seq: int = 1, limit: int | None = None
    ) -> Iterator[WitnessEntry]:
        """Yield entries from `start_seq` on, `limit` at most.

        Raises: Corruption: a row is missing or damaged, or does not name the record before it.
        """
        head = read_head(txn)
        seq = first = max(start_seq, 1)
        last = head.seq if limit is None else min(head.seq, first + limit - 1)
        authors: dict[int, bytes] = {}
        entry: WitnessEntry | None = None
        # Records are signed when they are read: none before its successor, or the head, names it.
        # One row more than asked: the one behind the last, which names it.
        for key, value in txn.scan(WITNESS, seq_key(first), seq_key(max(last + 2, first))):
            if key != seq_key(seq):
                break
            row = decode_witness(value, seq)
            if entry is not None:
                if row.before != entry.content_hash:
                    raise Corruption(f"{WITNESS} {seq}: it does not name the record before it")
                yield entry
            if seq > last:  # the row behind the last has confirmed it
                return
            author = authors.get(row.number)
            if author is None:
                author = row.new_author or read_author(txn, row.number)
                authors[row.number] = author
            entry = WitnessEntry(self, seq, row, author)
            seq += 1
        if seq <= last:
            raise Corruption(f"{WITNESS} {seq}: the row is missing")
        if entry is not None:
            # The log's end: the signed head confirms it
            if head.content_hash != entry.content_hash:
                raise Corruption(f"{WITNESS} {seq - 1}: the head names another record")
            yield entry

    def operations(self, txn: ReadTxn, start_seq: int, limit: int) -> Iterator[Op]:
        """Yield entries from `start_seq` on as operations, without what their records say.

        Raises: Corruption: a row is missing or damaged.
        """
        return read_operations(txn, self.store_id, start_seq, limit)

    def operation(self, txn: ReadTxn, hash: bytes) -> Op | None:
        """Return a witnessed intention as an operation, or None."""
        seq = self.seq_of(txn, hash)
        return None if seq is None else read_operation(txn, self.store_id, seq)

    def walk_back_until(
        self, txn: ReadTxn, target: bytes, since: bytes = ZERO_HASH, limit: int = 32
    ) -> list[SignedIntention]:
        """Return an author's chain from `target` back to just after `since`, newest first.

        ZERO as `since` means down to the author's first. Exactly `limit` intentions are allowed.

        Raises: NotInChain: one is missing, or `since` is not below `target`. LimitExceeded: it is
                further away than `limit`.
        """
        found: list[SignedIntention] = []
        hash = target
        while hash != since:
            if hash == ZERO_HASH:  # "reached ZERO first"
                raise NotInChain(f"{since.hex()} is not below {target.hex()}")
            # "a limit of n must allow n items"
            if len(found) >= limit:
                raise LimitExceeded(f"more than {limit} intentions lie between")
            signed = self.get(txn, hash)
            if signed is None:
                raise NotInChain(f"intention {hash.hex()} is not here")
            found.append(signed)
            # store_prev only: dependencies lead to other authors
            hash = signed.intention.store_prev
        return found

    # --- authors and what waits ---------------------------------------------------------------

    def tip(self, txn: ReadTxn, author: bytes) -> Tip | None:
        """Return the author's newest witnessed intention: hash, seq, height, contents."""
        return read_tip(txn, author)

    def tips(self, txn: ReadTxn) -> dict[bytes, Tip]:
        """Return the tip of every author, by public key."""
        return {author: decode_tip(value) for author, value in txn.scan(AUTHOR_TIPS)}

    def floating(self, txn: ReadTxn) -> list[Floating]:
        """Return what waits, in order of arrival."""
        # Marks of forks were written when the fork was found; nothing is searched here.
        forks = {key[len(FORK_PREFIX) :] for key, _ in txn.scan(LOG_META, FORK_PREFIX, FORK_END)}
        rows = [decode_floating(value) for _, value in txn.scan(FLOATING)]
        tips: dict[bytes, bytes] = {}
        found = []
        for row in sorted(rows, key=lambda row: row.arrival):
            intention = row.signed.intention
            if intention.author not in tips:
                tip = read_tip(txn, intention.author)
                tips[intention.author] = ZERO_HASH if tip is None else tip.hash
            # One whose predecessor is another author's waits for good; it proves no second branch.
            reason = "prev"
            if row.signed.hash in forks:
                reason = "fork"
            elif intention.store_prev == tips[intention.author]:
                reason = "condition"
            found.append(Floating(row.signed, row.received_ms, reason))
        return found

    def other_branch(self, txn: ReadTxn, fork: Fork) -> list[SignedIntention]:
        """Return what waits behind the branch of a fork that is not in the log, oldest first."""
        found = [fork.other]
        while rows := waiting_rows(txn, FLOATING_BY_PREV, line_key(found[-1].hash, fork.author)):
            row = read_floating(txn, rows[0][1])  # the first to come, which the log would take
            if row is None:
                raise Corruption(f"{FLOATING} {rows[0][1].hex()}: the row is missing")
            found.append(row.signed)
        return found

    def forks(self, txn: ReadTxn) -> list[Fork]:
        """Return every fork found so far, with both signed branches."""
        found = []
        for key, witnessed in txn.scan(LOG_META, FORK_PREFIX, FORK_END):
            other, kept = self.get(txn, key[len(FORK_PREFIX) :]), self.get(txn, witnessed)
            if other is None or kept is None:
                # Evidence is never deleted, so a missing branch is damage
                raise Corruption(f"{LOG_META}: a fork names intentions that are not here")
            intention = other.intention
            found.append(Fork(intention.author, intention.store_prev, kept, other))
        return found

    # --- ranges of hashes, for reconciliation ---------------------------------------------------

    def sum_range(self, txn: ReadTxn, start: bytes, end: bytes) -> RangeSum:
        """Return the number and XOR of the witnessed hashes in start <= hash < end.

        Cost: a row for each first byte that the range covers, a scan at both of its ends.
        """
        # low: the first byte whose hashes are all in the range; high: the first behind it whose
        # hashes are not.
        low = (start[0] if start else 0) + bool(start[1:].strip(b"\0"))
        # Inside one first byte no stored sum helps.
        high = end[0] if end else 0
        if low >= high:
            return self._scan_sum(txn, start, end)
        keys = [range_key(first) for first in range(low, high)]
        sums = [decode_range(row) for row in txn.get_many(LOG_META, keys)]
        sums.append(self._scan_sum(txn, start, bytes([low])))
        sums.append(self._scan_sum(txn, bytes([high]), end))
        count = xor = 0
        for each in sums:
            count += each.size
            xor ^= each.xor
        return RangeSum(count, xor)

    def _scan_sum(self, txn: ReadTxn, start: bytes, end: bytes) -> RangeSum:
        count = xor = 0
        for hash, _ in txn.scan(WITNESS_INDEX, start, end):
            count += 1
            xor ^= int.from_bytes(hash, "big")
        return RangeSum(count, xor)

    def hashes_in_range(self, txn: ReadTxn, start: bytes, end: bytes) -> list[bytes]:
        """Return the witnessed hashes in a range, ascending.

        Raises: LimitExceeded: they are more than 2,048.
        """
        found: list[bytes] = []
        for hash, _ in txn.scan(WITNESS_INDEX, start, end):
            # Refused while it is collected: the list never grows beyond
            if len(found) >= LISTED_HASHES_MAX:
                raise LimitExceeded(f"a range lists at most {LISTED_HASHES_MAX} hashes")
            found.append(hash)
        return found

    def iter_hashes(self, txn: ReadTxn, start: bytes, end: bytes) -> Iterator[bytes]:
        """Yield the witnessed hashes in a range, ascending."""
        return (hash for hash, _ in txn.scan(WITNESS_INDEX, start, end))

    def in_log_order(self, txn: ReadTxn, hashes: Sequence[bytes]) -> list[bytes]:
        """Return those of `hashes` that are witnessed, dependencies first."""
        places = zip(txn.get_many(WITNESS_INDEX, hashes), hashes, strict=True)
        seqs = [(decode_place(value).seq, hash) for value, hash in places if value is not None]
        # "The server sends in its own witness order, so that little floats at the receiver"
        return [hash for _, hash in sorted(seqs)]
