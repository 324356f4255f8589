"""Rows of the cell kernel: building, hashing, merging and decoding in memory."""

from __future__ import annotations

import gc
import hashlib
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial

import peers
from figures import Row, row

from datalattice.cells import (
    Map,
    Value,
    Vector,
    decode_message,
    decode_parts,
    encode_message,
    value_hash,
)
from datalattice.crypto import HASH_LANES, sha3_256, sha3_256_many
from datalattice.lattice import MapLattice, MaxLattice

RUN_S = 0.05
"""Least time of a run: short work is repeated until a run takes so long."""


def median_ms(work: Callable[[], object], runs: int) -> float:
    """Return the median milliseconds of a call in `runs` runs, after one that is not counted.

    Short work is called many times in a run, so that cold caches after the collection of garbage
    before it do not count.
    """
    begin = time.perf_counter()
    work()
    calls = max(1, int(RUN_S / (time.perf_counter() - begin)))
    times = []
    for _ in range(runs):
        gc.collect()  # else a run would pay for the garbage of the one before
        begin = time.perf_counter()
        for _ in range(calls):
            work()
        times.append((time.perf_counter() - begin) * 1000 / calls)
    return statistics.median(times)


def append_vector(count: int) -> bytes:
    """Append integers one by one; return the hash."""
    vector = Vector()
    for i in range(count):
        vector = vector.append(i)
    return value_hash(vector)


def put_map(keys: list[str]) -> bytes:
    """Put keys one by one; return the hash."""
    made = Map()
    for i, key in enumerate(keys):
        made = made.put(key, i)
    return value_hash(made)


def number_map(count: int) -> Map:
    """Return a map of `count` string keys to integers."""
    return Map.of([(f"key-{i}", i) for i in range(count)])


def changed(base: Map, count: int) -> Map:
    """Return `base` with `count` keys changed, spread over it."""
    made = base
    step = len(base) // count
    for i in range(count):
        made = made.put(f"key-{i * step}", 10**9 + i)
    return made


def raw_sha3(cells: int, size: int) -> Callable[[], None]:
    """Return the work of hashing `cells` strings of `size` bytes."""
    data = b"x" * size

    def work() -> None:
        for _ in range(cells):
            hashlib.sha3_256(data).digest()

    return work


def hashing(runs: int) -> Iterator[Row]:
    """Yield the time that a message of each length takes in a batch, and alone, beside hashlib."""
    for size in (50, 300, 4_000):
        messages = [number.to_bytes(4, "big") * (size // 4) for number in range(2_000)]

        def us(work: Callable[[], object], count: int = len(messages)) -> float:
            return median_ms(work, runs) * 1_000 / count

        lanes = {
            f"{one} lanes": us(partial(sha3_256_many, messages, one))
            for one in HASH_LANES
            if one > 1
        }
        alone = us(lambda these=messages: [sha3_256(one) for one in these])  # type: ignore[misc]
        plain = us(lambda these=messages: [hashlib.sha3_256(one).digest() for one in these])  # type: ignore[misc]
        beside = {"hashlib": plain, "alone": alone, **lanes}
        yield row(f"hash-{size}", us(partial(sha3_256_many, messages)), "us", beside)


def merges(runs: int) -> Iterator[Row]:
    """Yield the rows of merging maps that differ in 100 keys; shared: they have cells in common."""
    lattice = MapLattice(MaxLattice())
    shared = {}

    def merging(own: Value, other: Value) -> Callable[[], object]:
        return lambda: lattice.merge(own, other)

    for count in (10_000, 100_000, 1_000_000):
        base = number_map(count)
        value_hash(base)
        newer = changed(base, 100)
        value_hash(newer)
        shared[count] = median_ms(merging(base, newer), runs)
        if count == 100_000:  # through bytes, so that the two share no cell
            apart = [decode_message(encode_message(value)) for value in (base, newer)]
            unshared = median_ms(merging(*apart), runs)
    others = peers.merges_ms([f"key-{i}" for i in range(100_000)], runs)
    yield row("merge-shared-100", shared[100_000], "ms", others)
    yield row("merge-unshared-100", unshared, "ms")
    yield row("merge-growth", shared[1_000_000] / shared[10_000], "x")


def rows(quick: bool) -> Iterator[Row]:
    """Yield the rows; `quick` takes fewer runs of each."""
    runs = 3 if quick else 7
    numbers = list(range(1_000_000))
    keys = [f"key-{i}" for i in range(100_000)]
    pairs = [(key, i) for i, key in enumerate(keys)]
    sha3 = {"raw-sha3-100k-small": median_ms(raw_sha3(100_000, 12), runs)}
    yield from hashing(runs)
    yield row("vector-append-1m", median_ms(lambda: append_vector(1_000_000), runs), "ms")
    yield row("vector-bulk-1m", median_ms(lambda: value_hash(Vector.of(numbers)), runs), "ms")
    puts = sha3 | peers.puts_ms(keys, runs)
    yield row("map-put-100k", median_ms(lambda: put_map(keys), runs), "ms", puts)
    yield row("map-bulk-100k", median_ms(lambda: value_hash(Map.of(pairs)), runs), "ms", sha3)
    yield from merges(runs)
    message = encode_message(Vector.of([b"%0150d" % i for i in range(95_000)]))

    cells = 1 + len(decode_parts(message)[1])
    took = median_ms(lambda: decode_message(message), runs)
    yield row("decode-101k", cells / took * 1000, "cells/s")
