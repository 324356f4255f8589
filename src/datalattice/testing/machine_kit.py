"""Machine kit: runs state machines without signatures and without a network.

    replica = MachineReplica(KvMachine())
    replica.execute(KIT_AUTHORS[0], "Put", PutRequest(b"k", b"v"))
    replica.query("Get", GetRequest(b"k"))

A `MachineReplica` is a witness log and a state in memory. Operations travel between replicas as
objects: `replica.deliver(signed)`. Authors are plain bytes and nothing is verified.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from datalattice.clock import HLC_ZERO, Hlc, tick
from datalattice.crypto import blake3
from datalattice.engine import Engine, MemoryEngine, ReadTxn, Snapshot, WriteTxn
from datalattice.protobuf import Message
from datalattice.testing.disk import SimulatedCrash
from datalattice.weaver import (
    STATE_TABLES,
    ZERO_HASH,
    DagNode,
    Event,
    Intention,
    Machine,
    Op,
    PlainLayer,
    Projection,
    SignedIntention,
    State,
)

KIT_STORE_ID: Final = bytes(range(16))  # any fixed id

KIT_AUTHORS: Final = tuple(bytes([number]) * 32 for number in range(1, 8))
"""Seven authors, in ascending order."""


class MemoryEntry(NamedTuple):
    """One record of a `MemoryLog`."""

    seq: int
    signed: SignedIntention
    content_hash: bytes
    height: int


class MemoryHead(NamedTuple):
    """The end of a `MemoryLog`."""

    seq: int
    content_hash: bytes


class MemoryLog:
    """A witness log in a list, as `State` reads it."""

    def __init__(self) -> None:
        self.entries: list[MemoryEntry] = []
        self.seqs: dict[bytes, int] = {}
        self.tips: dict[bytes, MemoryEntry] = {}

    def head(self, txn: ReadTxn | None = None) -> MemoryHead:
        """Return number and hash of the last record."""
        if not self.entries:
            return MemoryHead(0, ZERO_HASH)
        return MemoryHead(self.entries[-1].seq, self.entries[-1].content_hash)

    def entry(self, txn: ReadTxn | None, seq: int) -> MemoryEntry:
        return self.entries[seq - 1]

    def content_hash(self, txn: ReadTxn | None, seq: int) -> bytes | None:
        return self.entries[seq - 1].content_hash if 1 <= seq <= len(self.entries) else None

    def seq_of(self, txn: ReadTxn | None, hash: bytes) -> int | None:
        return self.seqs.get(hash)

    def operations(self, txn: ReadTxn | None, start_seq: int, limit: int) -> Iterator[Op]:
        return (_op_of(entry) for entry in self.entries[start_seq - 1 : start_seq - 1 + limit])

    def operation(self, txn: ReadTxn | None, hash: bytes) -> Op | None:
        seq = self.seqs.get(hash)
        return None if seq is None else _op_of(self.entries[seq - 1])

    def node(self, txn: ReadTxn | None, hash: bytes) -> DagNode | None:
        op, seq = self.operation(txn, hash), self.seqs.get(hash)
        return None if op is None or seq is None else DagNode(hash, op.deps, op.stamp, seq)

    def can_append(self, signed: SignedIntention) -> bool:
        """Return whether an intention may be witnessed now."""
        intention = signed.intention
        tip = self.tips.get(intention.author)
        # Rule (a), of witnessing.
        follows = intention.store_prev == (ZERO_HASH if tip is None else tip.signed.hash)
        return follows and all(dep in self.seqs for dep in intention.deps)

    def append(self, signed: SignedIntention) -> None:
        """Witness an intention, whether or not it may be."""
        author = signed.intention.author
        tip = self.tips.get(author)
        height = 1 if tip is None else tip.height + 1
        # A chain, so that positions of another log do not resolve.
        content_hash = blake3(self.head().content_hash + signed.hash)
        entry = MemoryEntry(len(self.entries) + 1, signed, content_hash, height)
        self.entries.append(entry)
        self.seqs[signed.hash] = entry.seq
        self.tips[author] = entry


def _op_of(entry: MemoryEntry) -> Op:
    intention = entry.signed.intention
    return Op(
        entry.signed.hash,
        intention.payload,
        intention.stamp,
        intention.author,
        intention.deps,
        intention.store_prev,
        entry.height,
    )


def unsigned(
    author: bytes,
    payload: bytes,
    *,
    stamp: Hlc,
    prev: bytes = ZERO_HASH,
    deps: Iterable[bytes] = (),
    store_id: bytes = KIT_STORE_ID,
) -> SignedIntention:
    """Return an intention with an empty signature."""
    intention = Intention.build(author, stamp, store_id, prev, deps, payload)
    borsh = intention.encode()
    # Unsigned: machines look at no signature.
    return SignedIntention(intention, borsh, bytes(64), blake3(borsh))


def legal_order(
    operations: Sequence[SignedIntention], choose: Callable[[int], int]
) -> list[SignedIntention]:
    """Return operations in an order in which they can be witnessed.

    choose: returns an index below a number of candidates: `Random(1).randrange`.
    """
    log = MemoryLog()
    left = list(operations)
    order = []
    while left:
        ready = [signed for signed in left if log.can_append(signed)]
        chosen = ready[choose(len(ready))]  # any order that the rules allow
        log.append(chosen)
        order.append(chosen)
        left.remove(chosen)
    return order


class MachineReplica:
    """One node's copy of a store: its log, its state, and the events since the last look."""

    def __init__(self, machine: Machine, engine: Engine | None = None) -> None:
        self.machine = machine
        self.engine = engine or MemoryEngine(STATE_TABLES)
        self.log = MemoryLog()
        self.state = State(KIT_STORE_ID, PlainLayer(machine), self.log)
        self.events: list[Event] = []
        self.now_ms = 1_000
        self._clock = HLC_ZERO
        with self.engine.write() as txn:
            self.state.open(txn)

    def execute(
        self, author: bytes, name: str, request: Message, stamp: Hlc | None = None
    ) -> Message:
        """Run a command, as the author's next operation, and apply it."""
        with self.engine.read() as txn:
            proposal = self.machine.execute(  # read and written apart: one thread
                name, request, self.state.reader(txn), self.state.dag(txn)
            )
        signed = self.write(author, proposal.payload, proposal.deps, stamp)
        return proposal.answer(signed.hash)

    def query(self, name: str, request: Message) -> Message:
        with self.engine.read() as txn:
            return self.machine.query(name, request, self.state.reader(txn), self.state.dag(txn))

    def write(
        self,
        author: bytes,
        payload: bytes,
        deps: Iterable[bytes] = (),
        stamp: Hlc | None = None,
    ) -> SignedIntention:
        """Witness and apply an operation of an author of this node; the clock ticks."""
        # A given stamp may be any, like those of foreign authors.
        self._clock = tick(self._clock, self.now_ms) if stamp is None else stamp
        tip = self.log.tips.get(author)
        prev = ZERO_HASH if tip is None else tip.signed.hash
        signed = unsigned(author, payload, stamp=self._clock, prev=prev, deps=deps)
        self.deliver(signed)
        return signed

    def deliver(self, signed: SignedIntention) -> Projection:
        """Witness an operation, whether or not it may be, and apply it."""
        self.log.append(signed)
        self._clock = max(self._clock, signed.intention.stamp)  # never backwards
        return self.project()

    def project(self, limit: int | None = None) -> Projection:
        """Apply the operations of the log that are not applied yet, at most `limit`."""
        with self.engine.write() as txn:
            done = self.state.project(txn, limit)
        self.events += done.events
        return done

    def take_events(self) -> list[Message]:
        """Return the events since the last call."""
        found = [event.message for event in self.events]
        self.events.clear()
        return found

    def rows(self, table: str) -> dict[bytes, bytes]:
        with self.engine.read() as txn:
            return dict(txn.scan(table))

    def snapshot(self) -> bytes:
        with self.engine.read() as txn:
            return b"".join(self.state.snapshot(txn))


class CrashingEngine:
    """An engine that crashes at one call of a write transaction, or right after its commit.

    crash_at: the number of the call, from 0; the commit is the last one. calls: how many were made.
    """

    def __init__(self, engine: Engine, crash_at: int | None = None) -> None:
        self.engine = engine
        self.crash_at = crash_at
        self.calls = 0

    def read(self) -> Snapshot:
        return self.engine.read()

    @contextmanager
    def write(self) -> Iterator[WriteTxn]:
        with self.engine.write() as txn:
            yield _CrashingTxn(txn, self)  # each call may be the last
            self.count()  # before the commit
        # The commit has happened, and its caller does not know.
        self.count()  # behind it

    def count(self) -> None:
        """Count one call.

        Raises: SimulatedCrash: it is the one to crash at.
        """
        self.calls += 1
        if self.calls - 1 == self.crash_at:  # counted from 0
            raise SimulatedCrash(f"call {self.crash_at}")


class _CrashingTxn:
    def __init__(self, txn: WriteTxn, owner: CrashingEngine) -> None:
        self._txn = txn
        self._owner = owner

    def __getattr__(self, name: str) -> Any:
        self._owner.count()
        return getattr(self._txn, name)
