"""Ingest: one call's work on the log: what becomes witnessed, what waits, what is a fork.

An intention is witnessed when its `store_prev` is its author's tip and all its dependencies are
witnessed. The rule is tested at that moment and per author: two branches of one chain, or a
predecessor that is another author's, would make every projection stop.

Order: a queue of candidates, at first the new intentions in the order given. A candidate that is
ready is witnessed, and those that wait for it join the end of the queue: first its author's next
ones, then those that depend on it, each in order of arrival. One that is not ready waits below its
`store_prev`, and below the first of its dependencies that is missing. When that one arrives it
moves below the next, so an intention with a thousand missing dependencies has one row, and is
tested once for each that arrives.

Rows are collected and written at the end; a batch that depends on nothing that is missing writes no
waiting row.

Length: one call's work: all of its parts share the rows that were collected.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from datalattice.clock import HLC_DRIFT_MS, HLC_ZERO, Hlc, clamp_future, tick, update
from datalattice.crypto import KeyPair
from datalattice.engine import WriteTxn, successor
from datalattice.errors import BadFormat, Corruption, LimitExceeded, UsageError
from datalattice.limits import HASH_BYTES
from datalattice.protobuf import read_fields, varint
from datalattice.weaver.append import Appender
from datalattice.weaver.intention import (
    ZERO_HASH,
    Intention,
    LogLimits,
    PayloadTooLarge,
    SignedIntention,
    TooManyCausalDeps,
)
from datalattice.weaver.op import Appended, Op
from datalattice.weaver.rows import (
    FLOATING,
    FLOATING_BY_DEP,
    FLOATING_BY_PREV,
    FORK_PREFIX,
    HEAD_KEY,
    LOG_META,
    FloatingRow,
    Head,
    line_key,
    read_floating,
    read_head,
    seq_key,
    waiting_rows,
)

_LOAD_FACTOR: Final = 2  # at two to one a scan reads fewer pages than three look-ups an intention
"""Waiting intentions for each new one up to which reading all of them is the cheaper way."""


class FloatingFull(LimitExceeded):
    """More intentions would wait than the store keeps. The call stored nothing."""

    code = "floating-full"


class Fork(NamedTuple):
    """Two branches of one author: both signed, both after the same predecessor.

    `witnessed` is the one this node has in its log, `other` the one that stays out of it. Encoded
    it proves the fork to anyone, without access to this node.
    """

    author: bytes
    store_prev: bytes
    witnessed: SignedIntention
    other: SignedIntention

    def encode(self) -> bytes:
        """Return the evidence: protobuf, the envelopes of both as fields 1 and 2."""
        out = bytearray()
        # Wire order of the two envelopes; the hashes are left to the reader to compute
        for tag, branch in ((b"\x0a", self.witnessed), (b"\x12", self.other)):
            envelope = branch.encode()
            out += tag + varint(len(envelope)) + envelope
        return bytes(out)

    @classmethod
    def decode(cls, evidence: bytes) -> Fork:
        """Return the fork that `evidence` proves.

        Raises: BadFormat: it is not two different intentions of one author and store after the same
                predecessor, both correctly signed.
        """
        parts = {number: value for number, _, value in read_fields(evidence)}
        envelopes = (parts.get(1), parts.get(2))
        first, second = [
            SignedIntention.decode(part if isinstance(part, bytes) else b"") for part in envelopes
        ]
        one, other = first.intention, second.intention
        # Same author, store and predecessor, different hash: nothing less proves a fork.
        if (one.author, one.store_id, one.store_prev) != (
            other.author,
            other.store_id,
            other.store_prev,
        ) or first.hash == second.hash:
            raise BadFormat("the intentions are not two branches of one author")
        if not (first.verify() and second.verify()):  # strict: evidence must convince a third party
            raise BadFormat("the author did not sign both branches")
        return cls(one.author, one.store_prev, first, second)


class MissingPrev(NamedTuple):
    """A predecessor to fetch, and the last intention of its author that is here."""

    prev: bytes
    since: bytes
    author: bytes  # in this order: "sorted by (prev, since, author)"


class Ingested(NamedTuple):
    """What a call did.

    witnessed: the new seqs. floating: hashes of the call that wait now. missing: predecessors to
    fetch, in order. missing_condition: dependencies to fetch, in order. forks: branches that were
    found to be forks, each reported once. futures: hashes stamped later than the clock allows.
    appended: what became witnessed, for the projection, which need not read it back.
    """

    witnessed: tuple[int, ...]
    floating: tuple[bytes, ...]
    missing: tuple[MissingPrev, ...]
    missing_condition: tuple[bytes, ...]
    forks: tuple[Fork, ...]
    futures: tuple[bytes, ...]
    appended: Appended | None = None

    @property
    def result(self) -> str:
        """Return "missing" when a predecessor has to be fetched, else "applied"."""
        # A missing condition alone leaves the result at "applied": look at `missing_condition`.
        return "missing" if self.missing else "applied"


class Ingest:
    """The work of one call: `run`, or any number of `submit` and then `finish`."""

    def __init__(
        self, txn: WriteTxn, store_id: bytes, signer: KeyPair, limits: LogLimits, now_ms: int
    ) -> None:
        self._txn = txn
        self._signer = signer
        self._limits = limits
        self._now = now_ms
        self._head = read_head(txn)
        self._store_id = store_id
        self._log = Appender(txn, store_id, self._head)
        self._key: KeyPair | None = None
        self._arrival = self._head.arrival
        self._fresh: list[bytes] = []  # what this call brought
        self._futures: list[bytes] = []  # those stamped later than the clock allows
        self.own: list[SignedIntention] = []
        """What `submit` wrote; signed once `finish` returns."""
        # What waits: intentions of this call, and rows of the tables that were looked up.
        self._new: dict[bytes, FloatingRow] = {}
        self._woken: dict[bytes, FloatingRow] = {}
        self._by_prev: dict[bytes, dict[int, bytes]] = {}  # arrival to hash, for each key
        self._by_dep: dict[bytes, dict[int, bytes]] = {}
        self._loaded: dict[str, dict[bytes, dict[int, bytes]]] = {}  # whole tables, like _by_prev
        self._gone: list[FloatingRow] = []  # of the tables, witnessed now
        self._come: list[bytes] = []  # dependencies with rows in the tables, witnessed now

    @property
    def head(self) -> Head:
        """Where the log stood before this call."""
        return self._head

    @property
    def seq(self) -> int:
        """Where the log stands now."""
        return self._log.seq

    @property
    def appended(self) -> list[Op]:
        """What became witnessed, in order."""
        return self._log.appended

    def operation(self, hash: bytes) -> tuple[int, Op] | None:
        """Return what became witnessed in this call: its seq, and the operation."""
        return self._log.operation(hash)

    def run(self, signed: Iterable[SignedIntention], *, bounded: bool = True) -> Ingested:
        """Process admitted intentions; those that are stored already are skipped.

        Raises: FloatingFull: too many would wait, and `bounded`. UsageError: one is of another
                store.
        """
        self._take(signed)
        return self.finish(bounded=bounded)

    def _take(self, signed: Iterable[SignedIntention], local: bytes = ZERO_HASH) -> None:
        # A queue and no recursion: one arrival may wake any number, one after the other.
        following = self._follow(signed, local)
        if not following:
            return
        fresh = self._insert(following)
        self._fresh += fresh
        for new in fresh.values():
            self._note_future(new.signed)
        queue = deque(fresh)
        while queue:
            row = self._candidate(queue.popleft())
            if row is None:  # witnessed meanwhile, by an earlier candidate
                continue
            if self._is_ready(row):
                self._witness(row, local=row.signed.hash == local)
                queue.extend(self._waiters(row.signed))

    def _follow(self, signed: Iterable[SignedIntention], local: bytes) -> Sequence[SignedIntention]:
        """Witness intentions in order until one has to wait; return that one and all behind it.

        The usual case, without look-ups by hash: the log has an author's chain up to its tip, so an
        intention that follows the tip is new. Returns all of them if any intention waits already.
        """
        left = list(signed)
        authors: set[bytes] = set()
        wanted: list[bytes] = []
        for each in left:
            author, _, store_id, _, deps, _ = each.intention
            # Rows leave the store's id out, so another store's would come back with another hash.
            if store_id != self._store_id:
                raise UsageError("an intention of another store; pass what `admit` accepted")
            authors.add(author)
            if deps:
                wanted += deps
        if self._new or self._head.floating_count:
            return left
        log = self._log
        log.read_tips(authors)
        log.read_places(wanted)
        for at, each in enumerate(left):
            author, _, _, prev, deps, _ = each.intention
            if prev == log.tip_hash(author) and log.first_missing(deps) is None:
                self._arrival += 1
                self._note_future(each)
                log.append(each, self._now, local=each.hash == local)
            elif log.place(each.hash) is None:
                return left[at:]
        return ()

    def _note_future(self, signed: SignedIntention) -> None:
        if signed.intention.stamp.wall > self._now + HLC_DRIFT_MS:
            self._futures.append(signed.hash)

    def finish(self, *, bounded: bool = True) -> Ingested:
        """Sign what was submitted, write all rows, and return what the call did.

        Raises: FloatingFull: too many would wait, and `bounded`.
        """
        self._sign()
        # Only this call's: an older one was reported by its own call
        floating = [hash for hash in self._fresh if hash in self._new]
        missing, missing_condition = self._missing(floating)
        forks = self._forks(floating)
        # Counted before anything is written, so a call over the bound leaves nothing behind.
        count = self._head.floating_count + len(self._new) - len(self._gone)
        size = self._head.floating_bytes + sum(row.signed.size for row in self._new.values())
        size -= sum(row.signed.size for row in self._gone)
        if bounded:
            self._check_bound(count, size)  # raises: the caller rolls the transaction back
        ops = self._log.appended
        self._write(count, size, forks)
        return Ingested(
            tuple(range(self._head.seq + 1, self._log.seq + 1)),
            tuple(floating),
            missing,
            missing_condition,
            forks,
            tuple(self._futures),
            Appended(self._head.seq, self._head.content_hash, ops, self._log.content_hash),
        )

    def submit(self, key: KeyPair, payload: bytes, deps: Iterable[bytes]) -> bytes:
        """Write an intention of the author with this key; return its hash.

        One call may submit several, each after the one before; `finish` signs them.
        Raises: PayloadTooLarge, TooManyCausalDeps. UsageError: a dependency is not a hash, or is
                stamped with the end of time. Nothing was changed then.
        """
        # The layout keeps equal hashes, but a repeat says nothing: own intentions have none.
        deps = sorted(set(deps)) if deps else ()
        # "Check size and count limits", before anything is signed.
        if len(payload) > self._limits.own_payload_bytes:
            raise PayloadTooLarge(len(payload), self._limits.own_payload_bytes)
        if len(deps) > self._limits.deps:
            raise TooManyCausalDeps(len(deps), self._limits.deps)
        for dep in deps:
            if len(dep) != HASH_BYTES:
                raise UsageError(f"a dependency is a hash of {HASH_BYTES} bytes")
        # "verify own signature", once a key pair: each time would be a quarter of a submit.
        if not key.is_sound:
            raise UsageError("the signing key is damaged: its own signature does not verify")
        prev, last = self._chain_end(key.public_key)
        if deps:
            self._log.read_places(deps)
        # "every local intention takes tick"
        stamp = tick(self._log.clock, self._now)
        # A write outranks what it replaces, and an author's stamps strictly increase, even when a
        # stamp from the future could not move the store's clock.
        for seen in [last] + [self._stamp_of(dep) for dep in deps]:
            if seen >= stamp:
                stamp = update(stamp, seen, self._now)
        author, store_id = key.public_key, self._store_id
        # "Build with store_prev = own tip": of the chain that floats, too, or this would be a fork.
        signed = Intention(author, stamp, store_id, prev, tuple(deps), payload).unsigned()
        # It may float: its stamp is used up all the same.
        stamp = clamp_future(stamp, self._log.clock, self._now)
        self._log.clock = max(self._log.clock, stamp)
        self.own.append(signed)
        self._key = key
        waits = self._new or self._head.floating_count  # others here, or the chain before it
        if waits or self._log.first_missing(signed.intention.deps) is not None:
            self._take((signed,), local=signed.hash)
            return signed.hash
        # The usual case: it follows the tip, and nothing can wait for it.
        self._arrival += 1
        self._note_future(signed)
        self._log.append(signed, self._now, local=True)
        return signed.hash

    def _sign(self) -> None:
        """Sign what was submitted. The next one names the hash alone, so this can be done last."""
        for at, unsigned in enumerate(self.own):
            assert self._key is not None, "something was submitted"
            intention, borsh, _, hash = unsigned
            signature = self._key.sign(hash)
            # Made anew: `_replace` costs ten times as much.
            signed = self.own[at] = SignedIntention(intention, borsh, signature, hash)
            place = self._log.place(hash)
            if place is None:
                self._new[hash].signed = signed
            else:
                self._log.row(place.seq).signature = signature

    def _chain_end(self, author: bytes) -> tuple[bytes, Hlc]:
        """Return hash and stamp of the author's last intention here, one that floats included."""
        tip = self._log.tip(author)
        end, stamp = (ZERO_HASH, HLC_ZERO) if tip is None else (tip.hash, tip.stamp)
        # Empty unless own intentions float, so nearly always one look-up
        while self._by_prev or self._head.floating_count:
            following = self._after(line_key(end, author))
            if not following:
                break
            end = following[min(following)]  # the first to come, which the log would take
            stamp = max(stamp, self._stamp_of(end))
        return end, stamp

    def _stamp_of(self, hash: bytes) -> Hlc:
        """Return the stamp of an intention; the least one if it is not here."""
        place = self._log.place(hash)
        if place is not None:
            return self._log.row(place.seq).stamp
        floating = self._new.get(hash)
        if floating is None and self._head.floating_count:
            floating = read_floating(self._txn, hash)
        # Unknown: there is no stamp to exceed
        return HLC_ZERO if floating is None else floating.signed.intention.stamp

    # --- taking in ----------------------------------------------------------------------------

    def _insert(self, signed: Iterable[SignedIntention]) -> dict[bytes, FloatingRow]:
        """Return the new intentions by hash, in the order given; read the rows that they name."""
        # "Skip hashes already present": a repeat in the call too
        unique = {each.hash: each for each in signed}
        self._log.read_places(
            [hash for each in unique.values() for hash in (each.hash, *each.intention.deps)]
        )
        absent = [
            hash for hash in unique if self._log.place(hash) is None and hash not in self._new
        ]
        if self._head.floating_count:
            stored = self._txn.get_many(FLOATING, absent)
            absent = [hash for hash, row in zip(absent, stored, strict=True) if row is None]
        for hash in absent:
            # Floating first; `_witness` takes it out again
            self._new[hash] = FloatingRow(self._arrival, self._now, unique[hash])
            self._arrival += 1  # "waiters … each in received order"
        # The branch of a fork that is not in the log waits for ever, so waiting rows are common.
        if not self._loaded and 0 < self._head.floating_count <= _LOAD_FACTOR * len(absent):
            self._load_waiting()
        self._log.read_tips(row.signed.intention.author for row in self._new.values())
        return {hash: self._new[hash] for hash in absent}

    def _candidate(self, hash: bytes) -> FloatingRow | None:
        """Return a waiting intention; None: it was witnessed meanwhile."""
        row = self._new.get(hash) or self._woken.get(hash)
        if row is None and self._log.place(hash) is None:
            row = read_floating(self._txn, hash)
            if row is None:
                raise Corruption(f"{FLOATING} {hash.hex()}: the row is missing")
            self._woken[hash] = row
            self._log.read_places(row.signed.intention.deps)
        return row

    def _is_ready(self, row: FloatingRow) -> bool:
        """Return whether an intention can be witnessed; if not, note what it waits for."""
        intention = row.signed.intention
        # Rules (a) and (b) of witnessing, "tested at the moment of witnessing and per author".
        missing = self._log.first_missing(intention.deps)
        # A second branch never becomes ready, as the tip has moved on; `_forks` reports it.
        if missing is None and intention.store_prev == self._log.tip_hash(intention.author):
            return True
        if missing is not None:
            self._by_dep.setdefault(missing, {})[row.arrival] = row.signed.hash
        if row.signed.hash in self._new:
            # This row stays until the intention is witnessed: it reveals a second branch.
            self._by_prev.setdefault(_line(row.signed), {})[row.arrival] = row.signed.hash
        return False

    def _witness(self, row: FloatingRow, *, local: bool) -> None:
        self._log.append(row.signed, self._now, local=local)
        if self._new.pop(row.signed.hash, None) is None:
            del self._woken[row.signed.hash]
            # A row of the tables to delete; one of this call was never written
            self._gone.append(row)

    def _waiters(self, signed: SignedIntention) -> list[bytes]:
        """Return what waits for an intention, and end its list of dependents."""
        # The usual case: nothing waits, so nothing is looked up
        if not (self._by_prev or self._by_dep or self._head.floating_count):
            return []
        by_prev = self._after(line_key(signed.hash, signed.intention.author))
        by_dep = self._by_dep.pop(signed.hash, {})
        stored = self._stored(FLOATING_BY_DEP, signed.hash)
        if stored:
            self._come.append(signed.hash)
            by_dep |= stored
        # "floating_by_prev[its hash], then floating_by_dep[its hash], each in received order"
        return [by_prev[arrival] for arrival in sorted(by_prev)] + [
            by_dep[arrival] for arrival in sorted(by_dep)
        ]

    def _after(self, line: bytes) -> dict[int, bytes]:
        """Return what waits on one author's chain after one predecessor, by arrival."""
        return self._by_prev.get(line, {}) | self._stored(FLOATING_BY_PREV, line)

    def _stored(self, table: str, prefix: bytes) -> dict[int, bytes]:
        """Return what waits below a key of the tables, by arrival."""
        if not self._head.floating_count:
            return {}
        loaded = self._loaded.get(table)
        return (
            dict(waiting_rows(self._txn, table, prefix))
            if loaded is None
            else loaded.get(prefix, {})
        )

    def _load_waiting(self) -> None:
        """Read every waiting row at once: cheaper than three look-ups an intention."""
        for table in (FLOATING_BY_PREV, FLOATING_BY_DEP):
            loaded: dict[bytes, dict[int, bytes]] = {}
            for key, hash in self._txn.scan(table):
                arrival = int.from_bytes(key[-8:], "big")
                loaded.setdefault(key[:-8], {})[arrival] = hash
            self._loaded[table] = loaded

    # --- reporting ----------------------------------------------------------------------------

    def _missing(
        self, floating: Sequence[bytes]
    ) -> tuple[tuple[MissingPrev, ...], tuple[bytes, ...]]:
        prevs: set[MissingPrev] = set()
        conditions: set[bytes] = set()
        for hash in floating:
            intention = self._new[hash].signed.intention
            # "Present means stored, floating included": what floats need not be fetched.
            if not self._is_present(intention.store_prev):
                # Where the chain ends here: the sender walks back to it
                since = self._log.tip_hash(intention.author)
                prevs.add(MissingPrev(intention.store_prev, since, intention.author))
            conditions.update(dep for dep in intention.deps if not self._is_present(dep))
        # Sorted, so that every node reports alike
        return tuple(sorted(prevs)), tuple(sorted(conditions))

    def _is_present(self, hash: bytes) -> bool:
        """Return whether an intention is stored, waiting ones included."""
        if hash == ZERO_HASH or hash in self._new or self._log.place(hash) is not None:
            return True
        return self._head.floating_count > 0 and self._txn.get(FLOATING, hash) is not None

    def _forks(self, floating: Sequence[bytes]) -> tuple[Fork, ...]:
        """Return the forks that this call revealed, in order of arrival.

        A waiting intention is a fork's other branch if the log has its author's chain beyond the
        same predecessor, by an intention of this call or an older one.
        """
        suspects = dict.fromkeys(floating)
        # A new witness may also show that an older, waiting intention is the second branch.
        if self._new or self._head.floating_count:
            for op in self._log.appended:
                suspects |= dict.fromkeys(self._after(line_key(op.prev, op.author)).values())
        forks = []
        for hash in suspects:
            row = self._candidate(hash)
            if row is None:
                continue
            intention = row.signed.intention
            witnessed = self._log.successor(intention.author, intention.store_prev)
            if witnessed is not None:
                forks.append(Fork(intention.author, intention.store_prev, witnessed, row.signed))
        return tuple(forks)

    def _check_bound(self, count: int, size: int) -> None:
        limits, head = self._limits, self._head
        # A fetch may have gone beyond the bound: then a call may only lessen what waits.
        if (count > limits.floating_entries and count > head.floating_count) or (
            size > limits.floating_bytes and size > head.floating_bytes
        ):
            raise FloatingFull(
                f"{count} intentions of {size} bytes would wait for others; at most "
                f"{limits.floating_entries} of {limits.floating_bytes} bytes may"
            )

    # --- writing ------------------------------------------------------------------------------

    def _write(self, floating_count: int, floating_bytes: int, forks: Sequence[Fork]) -> None:
        txn, log = self._txn, self._log
        log.write()
        # "keep both signed branches as evidence", in the commit that found them.
        for fork in forks:
            txn.put(LOG_META, FORK_PREFIX + fork.other.hash, fork.witnessed.hash)
        # Those that still wait come back below their next missing dependency, with `_by_dep`.
        for dep in self._come:
            txn.delete_range(FLOATING_BY_DEP, dep, successor(dep))
        for row in self._gone:
            txn.delete(FLOATING, row.signed.hash)
            txn.delete(FLOATING_BY_PREV, _line(row.signed) + seq_key(row.arrival))
        for hash, row in self._new.items():
            txn.put(FLOATING, hash, row.encode())
            txn.put(FLOATING_BY_PREV, _line(row.signed) + seq_key(row.arrival), hash)
        for dep, waiters in self._by_dep.items():
            for arrival, hash in waiters.items():
                txn.put(FLOATING_BY_DEP, dep + seq_key(arrival), hash)
        seal = self._head.seal
        if log.seq != self._head.seq:
            # The newest record names all before it, so its seal covers the log. Records are signed
            # when they are read: Ed25519 gives the same bytes each time.
            seal = self._signer.seal(log.content_hash)
        head = Head(
            log.seq,
            log.authors,
            floating_count,
            floating_bytes,
            self._arrival,
            log.clock,
            log.content_hash,
            log.fingerprint,
            seal,
        )
        if log.seq != self._head.seq or head != self._head:
            # An unchanged head is not written: a call that brought nothing new costs no commit.
            txn.put(LOG_META, HEAD_KEY, head.encode())


def _line(signed: SignedIntention) -> bytes:
    return line_key(signed.intention.store_prev, signed.intention.author)
