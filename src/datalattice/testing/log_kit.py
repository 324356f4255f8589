"""Log kit: authors that write, stores with a log, a naive model, and transactions that fail."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

from datalattice.clock import Hlc
from datalattice.crypto import KeyPair, blake3
from datalattice.engine import Engine, MemoryEngine, WriteTxn, section
from datalattice.testing.clocks import StoppedClock
from datalattice.weaver import (
    LOG_LIMITS,
    LOG_TABLES,
    ZERO_HASH,
    Head,
    Ingested,
    Intention,
    IntentionLog,
    LogFault,
    LogLimits,
    SignedIntention,
    WitnessEntry,
    fsck,
    rebuild,
)

KIT_STORE = bytes(range(16))
KIT_NODE = KeyPair(blake3(b"node"))
NOW = 1_700_000_000_000  # a fixed time: stamps repeat in every run


def author(number: int) -> KeyPair:
    """Return the key of an author; equal numbers, equal keys."""
    return KeyPair(blake3(b"author %d" % number))


class Author:
    """Writes a chain of intentions: stamped one after the other, from `NOW` on."""

    def __init__(self, number: int = 1, store_id: bytes = KIT_STORE) -> None:
        self.key = author(number)
        self.store_id = store_id
        self.last = ZERO_HASH
        self.stamp = Hlc(NOW, 0)

    @property
    def public_key(self) -> bytes:
        return self.key.public_key

    def write(
        self,
        payload: bytes = b"x",
        deps: Iterable[bytes] = (),
        *,
        prev: bytes | None = None,
        stamp: Hlc | None = None,
    ) -> SignedIntention:
        """Return the next intention; after `prev` instead of the last one, to make a fork."""
        # A chain's stamps increase unless a test says otherwise.
        self.stamp = self.stamp.after() if stamp is None else stamp
        before = self.last if prev is None else prev  # `prev` makes the second branch of a fork
        signed = Intention.build(
            self.public_key, self.stamp, self.store_id, before, deps, payload
        ).sign(self.key)
        self.last = signed.hash
        return signed

    def chain(self, count: int) -> list[SignedIntention]:
        return [self.write(b"%d" % number) for number in range(count)]


class LogFixture:
    """A log in an engine, one call a transaction, the way a store uses it."""

    def __init__(
        self,
        engine: Engine | None = None,
        *,
        limits: LogLimits = LOG_LIMITS,
        store_id: bytes = KIT_STORE,
        prefix: bytes = b"\0\0\0\1",  # not the first section: keys of others would show
    ) -> None:
        self.engine = MemoryEngine(LOG_TABLES) if engine is None else engine
        self.clock = StoppedClock(NOW)
        self.log = IntentionLog(store_id, KIT_NODE, self.clock, limits)
        self.store_id = store_id
        self.prefix = prefix

    def write(self, work: Callable[[WriteTxn], Any]) -> Any:
        """Call `work` with this store's section of a transaction, and commit it."""
        with self.engine.write() as txn:
            return work(section(txn, self.prefix))  # as a store does: behind its prefix

    def read(self, work: Callable[..., Any], *arguments: object) -> Any:
        """Call `work` with this store's section of a snapshot and the arguments."""
        with self.engine.read() as txn:
            return work(section(txn, self.prefix), *arguments)

    def ingest(self, *signed: SignedIntention, bounded: bool = True) -> Ingested:
        with self.engine.write() as txn:
            return self.log.ingest(section(txn, self.prefix), signed, bounded=bounded)

    def submit(
        self, key: KeyPair, payload: bytes = b"x", deps: Iterable[bytes] = ()
    ) -> SignedIntention:
        with self.engine.write() as txn:
            return self.log.submit(section(txn, self.prefix), key, payload, deps)[0]

    def entries(self, start_seq: int = 1, limit: int | None = None) -> list[WitnessEntry]:
        with self.engine.read() as txn:
            return list(self.log.scan(section(txn, self.prefix), start_seq, limit))

    def witnessed(self) -> list[bytes]:
        """Return the hashes of the log in order."""
        return [entry.signed.hash for entry in self.entries()]

    def floating(self) -> dict[bytes, str]:
        """Return what waits, by hash in order of arrival, with the reason."""
        with self.engine.read() as txn:
            waiting = self.log.floating(section(txn, self.prefix))
            return {each.signed.hash: each.reason for each in waiting}

    def head(self) -> Head:
        with self.engine.read() as txn:
            return self.log.head(section(txn, self.prefix))

    def fsck(self, level: int = 3) -> list[LogFault]:
        with self.engine.read() as txn:
            return fsck(section(txn, self.prefix), self.store_id, KIT_NODE, level)

    def rebuild(self) -> Head:
        with self.engine.write() as txn:
            return rebuild(section(txn, self.prefix), self.store_id, KIT_NODE)

    def plant(self, table: str, key: bytes, value: bytes | None) -> None:
        """Set a row without the log, or delete it (None), as damage does."""
        with self.engine.write() as txn:
            view = section(txn, self.prefix)
            if value is None:
                view.delete(table, key)
            else:
                view.put(table, key, value)

    def empty(self, table: str) -> None:
        with self.engine.write() as txn:
            section(txn, self.prefix).delete_range(table)

    def rows(self) -> dict[tuple[str, bytes], bytes]:
        with self.engine.read() as txn:
            view = section(txn, self.prefix)
            return {(t, key): value for t in LOG_TABLES for key, value in view.scan(t)}


class NaiveLog:
    """A log written from the rules alone: lists that are searched from the front each time."""

    def __init__(self) -> None:
        self.witnessed: list[SignedIntention] = []
        self.waiting: list[SignedIntention] = []
        # As the tables: one row, below the first that is missing.
        self._watched: dict[bytes, bytes] = {}  # the first dependency that was found missing

    @property
    def hashes(self) -> list[bytes]:
        return [signed.hash for signed in self.witnessed]

    def tip(self, author: bytes) -> bytes:
        """Return the hash of an author's newest intention in the log."""
        return next(
            (s.hash for s in reversed(self.witnessed) if s.intention.author == author), ZERO_HASH
        )

    def ingest(self, signed: Iterable[SignedIntention]) -> None:
        known = {s.hash for s in (*self.witnessed, *self.waiting)}
        queue = []
        for each in signed:
            if each.hash not in known:  # a repeat in the call is skipped, too
                known.add(each.hash)
                self.waiting.append(each)
                queue.append(each)
        # Intentions that wait already were tested by the call that brought them.
        examined = {s.hash for s in self.waiting if s not in queue}
        while queue:
            each = queue.pop(0)
            if each not in self.waiting:
                continue
            examined.add(each.hash)
            intention = each.intention
            # Rule (b): all dependencies witnessed.
            missing = [d for d in intention.deps if d != ZERO_HASH and d not in self.hashes]
            self._watched.pop(each.hash, None)
            if missing:
                self._watched[each.hash] = missing[0]
            elif self.tip(intention.author) == intention.store_prev:  # rule (a): the author's tip
                self.waiting.remove(each)
                self.witnessed.append(each)
                queue += [  # first the author's next ones, then those with the dependency
                    s
                    for s in self.waiting
                    if s.hash in examined
                    and s.intention.store_prev == each.hash
                    and s.intention.author == intention.author
                ]
                queue += [s for s in self.waiting if self._watched.get(s.hash) == each.hash]

    def frontier(self, hash: bytes) -> dict[bytes, int]:
        """Return the greatest seq of each author that is reachable from an intention."""
        by_hash = {s.hash: (seq, s.intention) for seq, s in enumerate(self.witnessed, 1)}
        found: dict[bytes, int] = {}
        reached, stack = {hash}, [hash]
        while stack:
            seq, intention = by_hash[stack.pop()]
            found[intention.author] = max(seq, found.get(intention.author, 0))
            for other in (intention.store_prev, *intention.deps):
                if other != ZERO_HASH and other not in reached:
                    reached.add(other)
                    stack.append(other)
        return found


class InjectedFailure(Exception):
    """The failure that a `FailingTxn` was made for."""


class FailingTxn:
    """A write transaction whose call number `fail_at`, counted from 1, fails; None: none does."""

    def __init__(self, txn: WriteTxn, fail_at: int | None = None) -> None:
        self._txn = txn
        self._fail_at = fail_at
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        self.calls += 1
        if self.calls == self._fail_at:  # before the call: nothing of it has happened
            raise InjectedFailure
        return getattr(self._txn, name)


def cut_at(items: Sequence[SignedIntention], cuts: Iterable[int]) -> list[list[SignedIntention]]:
    """Return `items` cut behind each of the positions `cuts`."""
    # Cuts beyond the end wrap around.
    edges = sorted({0, len(items), *(cut % (len(items) + 1) for cut in cuts)})
    return [list(items[i:j]) for i, j in pairwise(edges)]
