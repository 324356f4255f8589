"""Rows of the node: a replica that takes in what another one pushes."""

from __future__ import annotations

import hashlib
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from datalattice.apps.queue import LatticeMQ
from datalattice.cells import cell as kernel
from datalattice.clock import SystemClock
from datalattice.crypto import KeyPair, verify
from datalattice.lattice import MergeContext, root_lattice
from datalattice.store import CellStore, MemoryStore
from datalattice.sync import LatticeCodec, LatticeReplica, Replicator

COMPILED = not kernel.__file__.endswith(".py")
BATCH = 1_000
RECORD_BYTES = 100
Row = dict[str, Any]


def pushes(batches: int) -> list[bytes]:
    """Return the frames by which a leader tells a peer of signed batches, one frame a batch."""
    keys = KeyPair(b"q" * 32)
    replica = LatticeReplica(MemoryStore(), root_lattice(), MergeContext(key_pair=keys))
    node = Replicator(replica, LatticeCodec(replica, SystemClock()))
    node.open("peer", 0, outbound=True)
    node.take_effects()
    queue = LatticeMQ.at(replica.cursor, keys.public_key).partition("bench", 0)
    frames: list[bytes] = []
    for number in range(batches):
        queue.offer_many([f"{number}-{i}".ljust(RECORD_BYTES, "x").encode() for i in range(BATCH)])
        node.publish((number + 1) * 1_000)
        frames.extend(payload for _, payload in node.take_effects().sends)
        node.written("peer", 100, 0)
    assert len(frames) == batches
    return frames


def apply_rate(frames: list[bytes]) -> float:
    """Return records a second at which a replica on disk takes them in, each frame durable."""
    with tempfile.TemporaryDirectory() as folder, CellStore.open(folder) as store:
        replica = LatticeReplica(store, root_lattice())
        node = Replicator(replica, LatticeCodec(replica, SystemClock()))
        node.open("leader", 0, outbound=False)
        begin = time.perf_counter()
        for now_ms, frame in enumerate(frames):
            node.receive("leader", frame, now_ms)
            node.take_effects()
        took = time.perf_counter() - begin
        owner = KeyPair(b"q" * 32).public_key
        queue = LatticeMQ.at(replica.cursor, owner).partition("bench", 0)
        assert queue.size() == len(frames) * BATCH
    return len(frames) * BATCH / took


def floor_rate(frames: list[bytes]) -> float:
    """Return the rate of what cannot be left out: hash the bytes, verify one signature, sync."""
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


def rows(quick: bool) -> Iterator[Row]:
    """Yield the rows of the node."""
    frames = pushes(20 if quick else 200)
    runs = 1 if quick else 3
    rates = [apply_rate(frames) for _ in range(runs)]
    floor = statistics.median(floor_rate(frames) for _ in range(runs))
    yield {
        "row": "queue-apply",
        "value": statistics.median(rates),
        "unit": "records/s",
        "peers": {"hash, verify and fdatasync alone": floor},
        "compiled": COMPILED,
    }


if __name__ == "__main__":
    for found in rows(quick=True):
        print(found)
