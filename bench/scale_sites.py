"""Cost model of sites that sync: traffic of each, and storage and processor time of their hub.

Calibrated with ten sites and checked with 4 and 16 times as many, for `bench/scale.py`. Each site
has a queue of its own and pushes its appends to the hub; the hub stores each push durably. All run
in this process without sockets: the cost of TCP and TLS comes on top.
"""

from __future__ import annotations

import hashlib
import math
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from datalattice.apps.queue import Topics
from datalattice.clock import SystemClock
from datalattice.crypto import KeyPair
from datalattice.lattice import MergeContext, root_lattice
from datalattice.limits import FAN_OUT, HASH_BYTES
from datalattice.store import CellStore, MemoryStore
from datalattice.sync import LatticeProtocol, LatticeReplica, Replicator

SITES = 10
GROWTH = (4, 16)
SYNCS = 20
WARM_SYNCS = 4
"""First syncs of a site, left out: they also build its empty queue."""
RECORDS = 100
RECORD_BYTES = 100
SECOND_MS = 1_000
TABLE_SITES = 1_000
NODE_BYTES = 3 + FAN_OUT * (1 + HASH_BYTES) + 2 + HASH_BYTES
"""Bytes of a node of the owners' map in a segment."""


@dataclass(frozen=True)
class Push:
    """The cost of one sync of one site."""

    wire: float
    """Bytes of its messages."""
    stored: float
    """Bytes in the hub's segments."""
    seconds: float
    """Of the hub's processor, until the push is durable."""


class _Site:
    def __init__(self, number: int) -> None:
        self.number = number
        self.keys = KeyPair(hashlib.sha3_256(b"site %d" % number).digest())
        self.replica = LatticeReplica(
            MemoryStore(), root_lattice(), MergeContext(key_pair=self.keys)
        )
        self.replicator = Replicator(self.replica, LatticeProtocol(SystemClock()))
        self.replicator.open("hub", 0, outbound=True)
        self.replicator.take_effects()

    def frames(self, sync: int) -> list[bytes]:
        """Append the records of a sync; return the messages that push them."""
        queue = Topics.at(self.replica.cursor, self.keys.public_key).partition("bench", 0)
        first = (self.number * SYNCS + sync) * RECORDS
        queue.offer_many(
            [
                hashlib.shake_128(b"%d" % i).digest(RECORD_BYTES)
                for i in range(first, first + RECORDS)
            ]
        )
        self.replicator.publish((sync + 1) * SECOND_MS)
        found = [payload for _, payload in self.replicator.take_effects().sends]
        self.replicator.written("hub", 100, 0)
        return found


def measured(sites: int) -> Push:
    """Return the mean cost of a push among `sites` sites, without their first syncs."""
    # Two runs, as the bytes that are stored are known only once the store is closed.
    warm, all_ = _run(sites, WARM_SYNCS), _run(sites, SYNCS)
    pushes = sites * (SYNCS - WARM_SYNCS)
    return Push(
        (all_.wire - warm.wire) / pushes,
        (all_.stored - warm.stored) / pushes,
        (all_.seconds - warm.seconds) / pushes,
    )


def _run(sites: int, syncs: int) -> Push:
    """Have `sites` sites sync `syncs` times; return the cost of all pushes together."""
    wire, seconds = 0, 0.0
    with tempfile.TemporaryDirectory() as folder:
        with CellStore.open(folder) as store:
            hub = LatticeReplica(store, root_lattice())
            replicator = Replicator(hub, LatticeProtocol(SystemClock()))
            members = [_Site(number) for number in range(sites)]
            for site in members:
                replicator.open(f"{site.number}", 0, outbound=False)
            for sync in range(syncs):
                for site in members:
                    for frame in site.frames(sync):
                        wire += len(frame)
                        # Only the hub's part: the sites share this process.
                        began = time.process_time()
                        replicator.receive(f"{site.number}", frame, (sync + 1) * SECOND_MS)
                        replicator.take_effects()
                        seconds += time.process_time() - began
            for site in members:
                queue = Topics.at(hub.cursor, site.keys.public_key).partition("bench", 0)
                assert queue.size() == syncs * RECORDS, f"site {site.number} has not arrived"
        # A closed store has no room reserved at the end of its last segment.
        stored = sum(path.stat().st_size for path in Path(folder, "segments").iterdir())
    return Push(wire, stored, seconds)


def predicted(base: Push, sites: int) -> Push:
    """Return what the model says of a push among `sites` sites.

    A site's own part does not depend on the others. The hub rewrites the path to the owner, which
    is one node longer for 16 times as many owners.
    """
    levels = math.log(sites / SITES, FAN_OUT)
    return Push(base.wire, base.stored + levels * NODE_BYTES, base.seconds)


def checks(base: Push) -> Iterator[tuple[int, Push, Push]]:
    """Yield (sites, predicted, measured) for numbers of sites larger than that of `base`."""
    for times in GROWTH:
        sites = times * SITES
        yield sites, predicted(base, sites), measured(sites)


def table(base: Push) -> None:
    """Print the cost of a thousand sites that all sync once a second, or once a minute."""
    push = predicted(base, TABLE_SITES)
    print(
        f"\n{TABLE_SITES:,} sites, {RECORDS} records of {RECORD_BYTES} bytes in each sync: "
        f"{push.wire:,.0f} bytes sent, {push.stored:,.0f} stored, {push.seconds * 1e3:.2f} ms"
    )
    for name, pause_s in (("second", 1), ("minute", 60)):
        rate = TABLE_SITES / pause_s
        print(
            f"  a sync each {name}: {rate * push.wire / 1e6:.3g} MB/s to the hub, "
            f"{rate * push.stored * 86_400 / 1e9:,.0f} GB a day in its store, "
            f"{rate * push.seconds:.2g} of its cores"
        )
