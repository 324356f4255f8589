"""Rows of Weaver on the network: reconciliation, gossip and the first copy of a store.

- sketch: two sets in memory with half of the difference each, by sketches. Bytes of all messages of
  both sides, payloads to and fro, processor time of a side. Beside them the same by ranges of sets
  that are known to differ; for the bytes the least that tells both sides their hashes, and what
  negentropy's C++ needs, as published. Medians of several keys; the goal is 1.5 times the
  figures in docs/design/reconcile.md.
- sketch regions: processor time and bytes where the regions that differ are found first.
- range fingerprint: one fingerprint and count of a range in a set of a million, beside that in a
  hundredth of it.
- gossip: from a submit to the moment the other node, a process of its own, has it, both on disk.
  Over TLS and, where it is installed, over iroh.
- bootstrap: intentions a second of a new copy in a process of its own, beside the strict
  verification of the same signatures and nothing else; and the memory that the copying process
  takes beyond that of files, beside that for a quarter of the intentions. For one larger copy and
  its course: `python bench/rows_weaver_net.py 1000000`.
"""

from __future__ import annotations

import importlib.util
import math
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from figures import Row, row
from rows_weaver import AUTHORS, PAYLOAD, written
from weaver_pair import Copied, home

from datalattice.crypto import SeededEntropy, verify_strict
from datalattice.protobuf import Message
from datalattice.sync.reconcile import (
    HASH_END,
    HASH_START,
    SKETCH_LIMITS,
    RangeLimits,
    RangeMessage,
    RangeReconciliation,
    SketchLimits,
    SketchMessage,
    SketchReceiver,
    SketchSender,
    SortedHashes,
    first_cut,
)

GAP_S = 0.05  # longer than a delivery takes, so that none waits for the one before
BATCH = 500

PUBLISHED = {
    (100_000, 10): 13_500,
    (100_000, 1_000): 779_000,
    (100_000, 10_000): 3_180_000,
    (1_000_000, 10): 18_500,
    (1_000_000, 1_000): 1_340_000,
    (1_000_000, 10_000): 10_500_000,
}
"""Bytes that negentropy's C++ needs for items and differences, as published."""

GOALS = {10: 910, 1_000: 38_000, 10_000: 376_000}
"""Bytes of a simulation of sketches with 32-byte hashes, by differences."""


def rows(quick: bool) -> Iterator[Row]:
    """Yield the rows."""
    for items in (100_000,) if quick else (100_000, 1_000_000):
        for different in (10, 1_000) if quick else (10, 1_000, 10_000):
            yield from _reconciled(items, different, 3 if quick else 5)
        yield from _regions(items)
    yield _fingerprint(10_000 if quick else 1_000_000)
    yield from _gossip(50 if quick else 500)
    yield from _bootstrap(250 if quick else 10_000, _schemes()[: 1 if quick else 2])


def _size(items: int) -> str:
    for unit, name in ((1_000_000, "m"), (1_000, "k")):
        if items >= unit:
            return f"{items // unit}{name}"
    return str(items)


# --- reconciliation -----------------------------------------------------------------------------


def _sets(items: int, different: int) -> tuple[SortedHashes, SortedHashes, int]:
    """Return two sets and the number of hashes in which they differ."""
    chosen = random.Random(items + different)
    common = [chosen.randbytes(32) for _ in range(items - different // 2)]
    a, b = ([chosen.randbytes(32) for _ in range(different // 2)] for _ in range(2))
    return SortedHashes(common + a), SortedHashes(common + b), different


class _Cost:
    """The cost of a session: bytes, payloads, seconds of a processor for a side."""

    def __init__(self) -> None:
        self.bytes = 0
        self.payloads = 0
        self.needs = 0
        self._begun = time.process_time()
        self.seconds = 0.0

    def say(self, messages: Sequence[Message]) -> None:
        self.payloads += 1
        self.bytes += sum(len(message.encode()) for message in messages)

    def end(self, different: int) -> None:
        # Both sides run in this process.
        self.seconds = (time.process_time() - self._begun) / 2
        assert self.needs == different, "a side has not learned what it lacks"


def _by_sketches(
    sets: tuple[SortedHashes, SortedHashes, int], seed: int, limits: SketchLimits
) -> _Cost:
    entropy = SeededEntropy(seed)
    cost = _Cost()
    sender = SketchSender(sets[0], entropy.bytes(16), limits)
    opened = sender.start()
    assert opened.opening is not None
    receiver = SketchReceiver(sets[1], opened.opening, entropy.bytes(16), limits)
    cost.say([opened])
    waiting: list[tuple[int, SketchMessage]] = [(0, receiver.start())]
    while waiting:
        to, message = waiting.pop(0)
        cost.say([message])
        step = (sender, receiver)[to].receive(message)
        assert not step.by_ranges
        cost.needs += len(step.needs)
        waiting += [(1 - to, each) for each in step.say]
    cost.end(sets[2])
    return cost


def _by_ranges(sets: tuple[SortedHashes, SortedHashes, int], seed: int) -> _Cost:
    cost = _Cost()
    limits = RangeLimits(answer_bytes=2**30, session_bytes=2**30)  # so that one session ends it
    sides = [RangeReconciliation(each, limits) for each in sets[:2]]
    payload: Sequence[RangeMessage] = sides[0].start(first_cut(SeededEntropy(seed)), differs=True)
    to = 1
    while payload:
        cost.say(payload)
        step = sides[to].receive(payload)
        cost.needs += len(step.needs)
        payload, to = step.answer, 1 - to
    assert not any(side.partial for side in sides)
    cost.end(sets[2])
    return cost


def _bound(different: int) -> float:
    """Return the fewest bytes in which each side can tell the other its half of the difference."""
    half = different // 2
    return 2 * (256 * half - math.lgamma(half + 1) / math.log(2)) / 8


def _reconciled(items: int, different: int, turns: int) -> Iterator[Row]:
    sets = _sets(items, different)
    costs = [_by_sketches(sets, seed, SKETCH_LIMITS) for seed in range(turns)]
    ranges = _by_ranges(sets, 0)
    name = f"sketch-{_size(items)}-{different}"
    median = _median_of(costs)
    peers = {
        "least": _bound(different),
        "goal": 1.5 * GOALS[different],
        "ranges": ranges.bytes,
        "negentropy, published": PUBLISHED[items, different],
    }
    yield row(f"{name}-bytes", median(lambda cost: cost.bytes), "B", peers)
    most = math.log2(items / 16) + 4
    peers = {"ranges": ranges.payloads, "goal of ranges": most}
    yield row(f"{name}-payloads", median(lambda cost: cost.payloads), "payloads", peers)
    peers = {"ranges": 1_000 * ranges.seconds}
    yield row(f"{name}-cpu", 1_000 * median(lambda cost: cost.seconds), "ms/side", peers)


def _median_of(costs: Sequence[_Cost]) -> Callable[[Callable[[_Cost], float]], float]:
    return lambda figure: statistics.median(map(figure, costs))


def _regions(items: int) -> Iterator[Row]:
    sets = _sets(items, 10)
    found = SKETCH_LIMITS._replace(regions_from=0)
    costs = [_by_sketches(sets, seed, found) for seed in range(3)]
    alone = _by_sketches(sets, 0, SKETCH_LIMITS)
    median = _median_of(costs)
    name = f"sketch-regions-{_size(items)}-10"
    peers = {"without regions": 1_000 * alone.seconds}
    yield row(f"{name}-cpu", 1_000 * median(lambda cost: cost.seconds), "ms/side", peers)
    peers = {"without regions": alone.bytes}
    yield row(f"{name}-bytes", median(lambda cost: cost.bytes), "B", peers)


def _fingerprint(items: int) -> Row:
    def each(count: int) -> float:
        chosen = random.Random(count)
        held = SortedHashes([chosen.randbytes(32) for _ in range(count)])
        bounds = [sorted(chosen.randbytes(32) for _ in range(2)) for _ in range(2_000)]
        held.fingerprint(HASH_START, HASH_END)
        begun = time.process_time()
        for start, end in bounds:
            held.fingerprint(start, end)
            held.count(start, end)
        return 1e6 * (time.process_time() - begun) / len(bounds)

    peers = {_size(items // 10): each(items // 10)}
    return row(f"range-fingerprint-{_size(items)}", each(items), "us", peers)


# --- two nodes ----------------------------------------------------------------------------------


def _schemes() -> tuple[str, ...]:
    return ("tls",) if importlib.util.find_spec("iroh") is None else ("tls", "iroh")


def _gossip(count: int) -> Iterator[Row]:
    found: dict[str, dict[str, float]] = {"p50": {}, "p99": {}}
    for scheme in _schemes():
        delays = sorted(_delays(scheme, count))
        found["p50"][scheme] = 1_000 * delays[len(delays) // 2]
        found["p99"][scheme] = 1_000 * delays[len(delays) * 99 // 100]
    for name, each in found.items():
        yield row(f"weaver-gossip-{name}", each.pop("tls"), "ms", each)


def _delays(scheme: str, count: int) -> list[float]:
    """Return the seconds from each submit to the moment when the other node has the intention."""
    with home("direct" if scheme == "iroh" else "off") as here:
        store = here.stores.create("core:nullstore")
        with here.guest(store, scheme) as guest:
            with store.read() as view:
                before = view.last_seq()
            guest.until(before)
            time.sleep(1)  # until the guest's news that it has joined are here
            with store.read() as view:
                before = view.last_seq()
            begun = []
            for _ in range(count):
                begun.append(time.monotonic())
                store.submit(PAYLOAD)
                time.sleep(GAP_S)
            copied = guest.until(before + count)
        ends = [copied.time(number) for number in range(before + 1, before + count + 1)]
        return [end - start for start, end in zip(begun, ends, strict=True)]


def _bootstrap(count: int, schemes: Sequence[str]) -> Iterator[Row]:
    few, _ = _copied("tls", count, 1)
    found = {scheme: _copied(scheme, 4 * count, 2) for scheme in schemes}
    rates = {scheme: _rate(copied, 4 * count) for scheme, (copied, _) in found.items()}
    tls, alone = rates.pop("tls"), found["tls"][1]
    yield row("weaver-bootstrap", tls, "ops/s", {"verification alone": alone, **rates})
    yield row("weaver-bootstrap-ratio", tls / alone, "", {})
    peers = {f"for {_size(count)}": few.memory(count) / 2**20}
    most = found["tls"][0].memory(4 * count)
    yield row("weaver-bootstrap-memory", most / 2**20, "MiB", peers)


def _rate(copied: Copied, count: int) -> float:
    return count / (copied.time(count) - copied.begun)


def _copied(scheme: str, count: int, seed: int) -> tuple[Copied, float]:
    """Return a copy of a store by a second node, and the rate of verification alone."""
    with home("direct" if scheme == "iroh" else "off") as here:
        store = here.stores.create("core:nullstore")
        signed = written(store, AUTHORS, seed)
        seconds = 0.0
        for start in range(0, count, BATCH):
            lot = list(islice(signed, min(BATCH, count - start)))
            store.ingest([one.encode() for one in lot])
            begun = time.perf_counter()
            for one in lot:
                assert verify_strict(one.intention.author, one.signature, one.hash)
            seconds += time.perf_counter() - begun
        with here.guest(store, scheme) as guest:
            return guest.until(count), count / seconds


def main() -> None:
    """Copy a store of a number of intentions once, and print how that went."""
    count = int(sys.argv[1])
    copied, alone = _copied("tls", count, 3)
    rate = _rate(copied, count)
    print(f"{rate:.0f} a second, {rate / alone:.3f} of verification alone")
    for tenth in range(1, 11):
        at = count * tenth // 10
        seconds = copied.time(at) - copied.begun
        most = copied.memory(at) / 2**20
        print(f"{at} after {seconds:.1f} s, with {most:.1f} MiB at most so far")


if __name__ == "__main__":
    main()
