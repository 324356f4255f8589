"""Rows of the node: two nodes in two processes, bytes of a change, lanes, and taking pushes in."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import peers
from figures import Row, row
from node_pair import (
    MEMORY,
    OWNER,
    Pair,
    Write,
    first_sync,
    until_equal,
    visibility,
)
from rows_cells import raw_sha3

from datalattice.apps.kv import Database
from datalattice.apps.queue import Topics
from datalattice.cells import Index, Keyword, Map, Set, value_hash
from datalattice.clock import SystemClock
from datalattice.crypto import KeyPair, verify
from datalattice.lattice import (
    VALUE_KEY,
    Lattice,
    MapLattice,
    MaxLattice,
    MergeContext,
    OwnerLattice,
    root_lattice,
)
from datalattice.node import NodeServer
from datalattice.node.lanes import Lane, LanePool
from datalattice.store import CellStore, MemoryStore
from datalattice.sync import Effects, LatticeProtocol, LatticeReplica, Replicator
from datalattice.wire import encode_frame, encode_ping

BATCH = 1_000
RECORD_BYTES = 100
BLOCK_BYTES = 200
GAP_S = 0.060  # longer than the pace of pushes (50 ms), so that no write waits for the one before
LANES = 500
REFERENCE = "reference, same machine kind"


def pushes(batches: int) -> list[bytes]:
    """Return the frames by which a leader tells a peer of signed batches, one frame a batch."""
    keys = KeyPair(b"q" * 32)
    replica = LatticeReplica(MemoryStore(), root_lattice(), MergeContext(key_pair=keys))
    node = Replicator(replica, LatticeProtocol(SystemClock()))
    node.open("peer", 0, outbound=False)
    node.receive("peer", encode_ping(1, Keyword("PEER")), 0)  # from now on it is told what changes
    node.take_effects()
    queue = Topics.at(replica.cursor, keys.public_key).partition("bench", 0)
    frames: list[bytes] = []
    for number in range(batches):
        queue.offer_many([f"{number}-{i}".ljust(RECORD_BYTES, "x").encode() for i in range(BATCH)])
        node.publish((number + 1) * 1_000)
        frames.extend(payload for _, payload in node.take_effects().sends)
        node.written("peer", 100, 0)
    # Two batches in one frame would be one commit, and the rate would be of another work.
    assert len(frames) == batches
    return frames


def apply_rate(frames: list[bytes]) -> float:
    """Return records a second at which a replica on disk takes them in, each frame durable."""
    with tempfile.TemporaryDirectory() as folder, CellStore.open(folder) as store:
        replica = LatticeReplica(store, root_lattice())
        node = Replicator(replica, LatticeProtocol(SystemClock()))
        node.open("leader", 0, outbound=False)
        begin = time.perf_counter()
        for now_ms, frame in enumerate(frames):
            node.receive("leader", frame, now_ms)
            node.take_effects()
        took = time.perf_counter() - begin
        owner = KeyPair(b"q" * 32).public_key
        queue = Topics.at(replica.cursor, owner).partition("bench", 0)
        assert queue.size() == len(frames) * BATCH
    return len(frames) * BATCH / took


def floor_rate(frames: list[bytes]) -> float:
    """Return the rate of the least that a push needs: hash the bytes, verify a signature, sync."""
    keys = KeyPair(b"q" * 32)
    message = b"m" * 33
    signature = keys.sign(message)
    with tempfile.TemporaryDirectory() as folder, Path(folder, "log").open("wb") as log:
        begin = time.perf_counter()
        for frame in frames:
            for start in range(0, len(frame), 2_048):  # cells of such a queue have about this size
                hashlib.sha3_256(frame[start : start + 2_048]).digest()
            verify(keys.public_key, signature, message)
            log.write(frame)
            log.flush()
            os.fdatasync(log.fileno())
        took = time.perf_counter() - begin
    return len(frames) * BATCH / took


# --- two processes ------------------------------------------------------------------------------


def insert(count: int) -> Write:
    """Return a writer of so many set entries, each one committed."""

    def write(node: NodeServer) -> None:
        for number in range(count):
            node.cursor.merge(Set([number]))
            node.cursor.sync()

    return write


def offer(count: int) -> Write:
    """Return a writer of so many queue records, each one signed and committed."""

    def write(node: NodeServer) -> None:
        for number in range(count):
            offer_one(node, number)

    return write


def offer_one(node: NodeServer, number: int) -> None:
    """Write one signed record and commit it."""
    queue = Topics.at(node.cursor, OWNER.public_key).partition("bench", 0)
    queue.offer_many([f"value-{number}"])
    node.cursor.sync()


def put(count: int) -> Write:
    """Return a writer of so many keys of a database, each one signed and committed."""

    def write(node: NodeServer) -> None:
        database = Database.at(node.cursor, OWNER.public_key, "bench")
        for number in range(count):
            database.set(f"key-{number}", f"value-{number}")
            database.sync()

    return write


WRITES: dict[str, tuple[str, Callable[[int], Write], dict[int, tuple[float, float] | None]]] = {
    # name: lattice, writer, {count: (milliseconds, kilobytes) of the reference, if it was measured}
    "set": ("set", insert, {1_000: (37.0, 62.0), 10_000: (2_300.0, 1_700.0)}),
    "signed": ("root", offer, {1_000: None, 10_000: None}),
    "kv": ("root", put, {1_000: (188.0, 600.0), 10_000: (1_800.0, 9_000.0)}),
}
VARIANTS: list[tuple[str, bool, str]] = [
    # name, on disk, scheme
    ("", False, "tcp"),
    ("-tls", False, "tls"),
    ("-disk-tls", True, "tls"),
]


@contextlib.contextmanager
def pair(lattice: str, disk: bool, scheme: str) -> Iterator[Pair]:
    """Yield a pair in memory or in fresh folders."""
    if not disk:
        yield Pair(MEMORY, MEMORY, lattice, scheme)
        return
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        yield Pair(one, other, lattice, scheme)


def raw_sha3_ms() -> float:
    """Return the milliseconds of hashing 100,000 small cells with hashlib."""
    hash_all = raw_sha3(100_000, 12)
    begin = time.perf_counter()
    hash_all()
    return (time.perf_counter() - begin) * 1e3


def converge_rows(quick: bool) -> Iterator[Row]:
    """Yield time and bytes until the second process has what the first one wrote.

    Raw SHA3 of the same run stands beside the reference's figures, which are from another machine.
    """
    sha3 = statistics.median(raw_sha3_ms() for _ in range(1 if quick else 5))
    for name, (lattice, make, references) in WRITES.items():
        for count, reference in references.items():
            if quick and count > 1_000:
                continue
            for variant, disk, scheme in VARIANTS:
                outcomes = []
                # Short runs differ more from each other than long ones.
                for _ in range(1 if quick else 3 if count > 1_000 else 7):
                    with pair(lattice, disk, scheme) as both:
                        outcomes.append(asyncio.run(until_equal(both, make(count))))
                label = f"{name}-{count // 1000}k{variant}"
                took_s = statistics.median(one.seconds for one in outcomes)
                size = statistics.median(one.bytes for one in outcomes)
                times = {"raw-sha3-100k-small": sha3}
                if reference is not None:
                    times[REFERENCE] = reference[0]
                sizes = {} if reference is None else {REFERENCE: reference[1]}
                yield row(label, took_s * 1e3, "ms", times)
                yield row(f"{label}-bytes", size / 1e3, "kB", sizes)


def visibility_rows(quick: bool) -> Iterator[Row]:
    """Yield the time from a single write, apart from others, until the second process has it."""
    for variant, disk, scheme in VARIANTS:
        with pair("root", disk, scheme) as both:
            found = asyncio.run(visibility(both, offer_one, 50 if quick else 200, GAP_S))
        parts = statistics.quantiles(found, n=100)
        for name, value, reference in ((50, parts[49], 6.5), (99, parts[98], 17.5)):
            yield row(f"visible{variant}-p{name}", value * 1e3, "ms", {REFERENCE: reference})


def first_sync_rows(quick: bool) -> Iterator[Row]:
    """Yield time and bytes of an empty node's first sync of many blocks, beside a git clone."""
    count = 10_000 if quick else 100_000
    chance = random.Random(1)
    blocks = [chance.randbytes(BLOCK_BYTES) for _ in range(count)]

    def fill(node: NodeServer) -> None:
        found = Index.of({value_hash(block): block for block in blocks})
        node.cursor.path(Keyword("data")).merge(found)
        node.cursor.sync()

    cloned = peers.git_clone(blocks)
    times = {} if cloned is None else {"git clone": cloned[0] * 1e3}
    sizes = {} if cloned is None else {"git clone, packed": cloned[1] / 1e6}
    for variant, disk, scheme in VARIANTS[1:]:
        outcomes = []
        for _ in range(1 if quick else 3):
            with pair("root", disk, scheme) as both:
                outcomes.append(asyncio.run(first_sync(both, fill)))
        label = f"first-sync-{count // 1000}k{variant}"
        took_s = statistics.median(one.seconds for one in outcomes)
        yield row(label, took_s * 1e3, "ms", times)
        yield row(f"{label}-bytes", outcomes[0].bytes / 1e6, "MB", sizes)


# --- bytes of a small change ---------------------------------------------------------------------


def overhead_rows(quick: bool) -> Iterator[Row]:
    """Yield the bytes that tell a peer of 100 changed keys in a large map."""
    count = 10_000 if quick else 100_000
    keys = [f"key-{i}" for i in range(count)]
    entries = MapLattice(MaxLattice())
    beside = peers.update_bytes(keys)
    for name, lattice, path in (
        ("plain", entries, ()),
        ("signed", OwnerLattice(entries), (OWNER.public_key, VALUE_KEY)),
    ):
        yield row(f"changed-100-{name}", change_bytes(lattice, path, keys), "bytes", beside)


def change_bytes(lattice: Lattice, path: tuple[object, ...], keys: list[str]) -> int:
    """Return the bytes that two replicas exchange for 100 changed keys."""
    context = MergeContext(key_pair=OWNER)
    replicas = [LatticeReplica(MemoryStore(), lattice, context) for _ in range(2)]
    nodes = [Replicator(one, LatticeProtocol(SystemClock())) for one in replicas]
    cursor = replicas[0].cursor.path(*path)
    cursor.set(Map.of([(key, i) for i, key in enumerate(keys)]))
    nodes[0].publish(0)
    nodes[0].open("peer", 0, outbound=False)
    nodes[1].open("peer", 0, outbound=True)
    exchange(nodes, 0)
    assert replicas[0].announced_hash == replicas[1].announced_hash
    values = cursor.get()
    assert isinstance(values, Map)
    changed = [(key, 10**9 + i) for i, key in enumerate(keys[:: len(keys) // 100])]
    cursor.set(values.put_many(changed))
    nodes[0].publish(1_000)
    size = exchange(nodes, 1_000)
    assert replicas[0].announced_hash == replicas[1].announced_hash
    return size


def exchange(nodes: list[Replicator], now_ms: int) -> int:
    """Carry frames between two replicators until both are silent; return their bytes."""
    size = 0
    for _ in range(1_000):
        quiet = True
        for near, far in (nodes, nodes[::-1]):
            for _, payload in near.take_effects().sends:
                size += len(encode_frame(payload))
                far.receive("peer", payload, now_ms)
                near.written("peer", 1, now_ms)
                quiet = False
            near.tick(now_ms)
        if quiet:
            return size
        # Time moves, so that what waits for the pace of pushes leaves.
        now_ms += 10
    raise AssertionError("the replicas never fell silent")


# --- lanes ---------------------------------------------------------------------------------------


def lane_rows(quick: bool) -> Iterator[Row]:
    """Yield the time from submitting an action to its end, and how many a second many lanes do."""
    hand_overs, actions = (2_000, 20) if quick else (20_000, 200)
    told = threading.Semaphore(0)

    def deliver(_effects: Effects, done: Callable[[], None] | None) -> None:
        if done is not None:
            done()

    def fail(error: Exception) -> None:
        raise error

    def nothing(_replicator: Replicator, _now_ms: int) -> None:
        pass

    pool = LanePool()
    lanes = []
    for _ in range(LANES):
        replica = LatticeReplica(MemoryStore(), root_lattice())
        replicator = Replicator(replica, LatticeProtocol(SystemClock()))
        lanes.append(Lane(pool, replicator, deliver, fail))
        lanes[-1].start()
    try:
        times = []
        for _ in range(hand_overs):
            begin = time.perf_counter()
            lanes[0].submit(nothing, told.release)
            told.acquire()
            times.append(time.perf_counter() - begin)
        yield row("lane-hand-over", statistics.median(times) * 1e6, "us")
        begin = time.perf_counter()
        for _ in range(actions):
            for lane in lanes:
                lane.submit(nothing, told.release)
        for _ in range(actions * LANES):
            told.acquire()
        took = time.perf_counter() - begin
        yield row(f"lanes-{LANES}", actions * LANES / took, "actions/s")
    finally:
        pool.close()


def rows(quick: bool) -> Iterator[Row]:
    """Yield the rows of the node."""
    yield from converge_rows(quick)
    yield from visibility_rows(quick)
    yield from first_sync_rows(quick)
    yield from overhead_rows(quick)
    yield from lane_rows(quick)
    frames = pushes(20 if quick else 200)
    runs = 1 if quick else 3
    rates = [apply_rate(frames) for _ in range(runs)]
    floor = statistics.median(floor_rate(frames) for _ in range(runs))
    beside = {"hash, verify and fdatasync alone": floor}
    yield row("queue-apply", statistics.median(rates), "records/s", beside)


if __name__ == "__main__":
    for found in rows(quick=True):
        print(found)
