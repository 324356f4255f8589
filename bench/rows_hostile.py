"""Rows of the benchmark about foreign data: what it costs to check that cells are sound.

The share is the time within `check_cell` of the time in which a replica takes the same data in.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from unittest.mock import patch

from datalattice.apps.queue import LatticeMQ
from datalattice.cells import (
    Facts,
    Index,
    Keyword,
    Map,
    Set,
    Value,
    cell,
    check_cell,
    decode_parts,
    encode_message,
    value_hash,
)
from datalattice.crypto import KeyPair
from datalattice.lattice import MergeContext, root_lattice
from datalattice.store import MemoryStore
from datalattice.sync import LatticeReplica, Offer, Probe, incomplete
from datalattice.sync.incoming import Incoming

Row = dict[str, object]
COMPILED = not str(cell.__file__).endswith(".py")
ENTRIES = 101_000
FRAME_RECORDS = 1_000
GOAL = 0.10


class _Timed:
    """Adds up the time within the checks of cells."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self, encoding: bytes, facts: Facts) -> object:
        begin = time.perf_counter()
        try:
            return check_cell(encoding, facts)
        finally:
            self.seconds += time.perf_counter() - begin


def _share(work: Callable[[], object]) -> tuple[float, float]:
    """Return (seconds, share of them within checks)."""
    timed = _Timed()
    with patch.object(incomplete, "check_cell", timed):
        begin = time.perf_counter()
        work()
        seconds = time.perf_counter() - begin
    return seconds, timed.seconds / seconds


def _node() -> LatticeReplica:
    return LatticeReplica(MemoryStore(), root_lattice(), MergeContext(key_pair=KeyPair(b"b" * 32)))


def _take(messages: Sequence[bytes]) -> tuple[float, float]:
    """Return (seconds, share of them within checks) of a new node that takes messages in."""
    node = _node()

    def work() -> None:
        for message in messages:
            value, parts = decode_parts(message, ordered=False)
            node.absorb(Offer(Probe(value_hash(value), Incoming((), value, parts))), "peer")

    return _share(work)


def _content(value: Value) -> bytes:
    section = Index.of([(value_hash(value), value)])
    return encode_message(Index.of([(Keyword("data"), section)]))


def _queue_frames(frames: int) -> list[bytes]:
    keys = KeyPair(b"k" * 32)
    source = LatticeReplica(MemoryStore(), root_lattice(), MergeContext(key_pair=keys))
    log = LatticeMQ.at(source.cursor, keys.public_key).partition("log", 0)
    messages = []
    for number in range(frames):
        log.offer_many([f"record {number} {one}" for one in range(FRAME_RECORDS)])
        source.publish()
        messages.append(encode_message(source.announced))
    return messages


def rows(quick: bool) -> Iterator[Row]:
    """Yield the rows: the share of checks in taking in sets, maps, indexes and queue frames."""
    count = ENTRIES // 10 if quick else ENTRIES
    values: list[tuple[str, Value]] = [
        ("first-sync-set", Set.of(range(count))),
        ("decode-101k-map", Map.of([(n, f"value {n}") for n in range(count)])),
        ("decode-101k-index", Index.of([(f"key-{n:08}", f"value {n}") for n in range(count)])),
    ]
    for name, value in values:
        yield _row(f"check-share-{name}", *_take([_content(value)]))
    yield _row("check-share-queue", *_take(_queue_frames(6 if quick else 20)))


def _row(name: str, seconds: float, share: float) -> Row:
    return {
        "row": name,
        "value": 100 * share,
        "unit": "%",
        "peers": {"goal": 100 * GOAL, "seconds": seconds},
        "compiled": COMPILED,
    }
