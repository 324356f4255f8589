"""Rows of the benchmark about foreign data: what checks cost, and what strangers can cost.

`check-share`: the time within `check_cell` of the time in which a replica takes the same data in.
`cpu-per-kb`: what one stranger's messages cost, kind by kind; the row is the worst of them. It is
read later when it is in debt, so the time that passes meanwhile is not counted as work.
`tick`: what a tick of each kind of step takes, which is to be within a factor of two of 1 us.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator, Sequence
from unittest.mock import patch

from hostile_messages import KINDS, Kind, planted

from datalattice.apps.dlfs import make_directory, make_file
from datalattice.apps.dlfs.lattice import DRIVES
from datalattice.apps.grid.assets import content_hash
from datalattice.apps.grid.lattice import STORAGE
from datalattice.apps.kv.lattice import KVStoreLattice
from datalattice.apps.queue import LatticeMQ
from datalattice.apps.queue.lattice import topic_map_lattice
from datalattice.cells import (
    UNBOUNDED,
    Blob,
    Facts,
    Index,
    Keyword,
    Map,
    Set,
    Signed,
    Value,
    Vector,
    Work,
    cell,
    check_cell,
    decode_parts,
    encode_message,
    novelty,
    value_hash,
)
from datalattice.crypto import KeyPair
from datalattice.lattice import (
    Lattice,
    MapLattice,
    MaxLattice,
    MergeContext,
    OwnerLattice,
    SetLattice,
    discard,
    root_lattice,
)
from datalattice.limits import WORK_LIMITS
from datalattice.store import MemoryStore
from datalattice.sync import (
    HostingPolicy,
    LatticeCodec,
    LatticeReplica,
    Offer,
    Probe,
    Replicator,
    incomplete,
)
from datalattice.sync.delta import growth
from datalattice.sync.incoming import Incoming
from datalattice.testing.bombs import queue_state, topics
from datalattice.testing.cells_kit import Cells
from datalattice.testing.clocks import StoppedClock
from datalattice.wire import encode_frame

Row = dict[str, object]
COMPILED = not str(cell.__file__).endswith(".py")
ENTRIES = 101_000
FRAME_RECORDS = 1_000
GOAL = 0.10
CPU_GOAL_MS = 2.0
FIRST_MESSAGES = 4


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
    yield from _attacks(20 if quick else 60)
    yield from _ticks(1 if quick else 4)


# --- what strangers cost --------------------------------------------------------------------------


def _attacks(count: int) -> Iterator[Row]:
    """Yield the cost of each kind of message, and the worst of them."""
    found: dict[str, float] = {}
    first: dict[str, float] = {}
    for kind in KINDS:
        found[kind.__name__], first[kind.__name__] = _attack(kind, count)
        assert found[kind.__name__] > 0
    yield {
        "row": "cpu-per-kb-worst",
        "value": max(found.values()),
        "unit": "ms/kB",
        "peers": {"goal": CPU_GOAL_MS, **found},
        "compiled": COMPILED,
    }
    yield {
        "row": "cpu-message-worst",
        "value": max(first.values()),
        "unit": "ms",
        "peers": first,
        "compiled": COMPILED,
    }


def _attack(kind: Kind, count: int) -> tuple[float, float]:
    """Return (ms for each kB of messages and their answers, ms of the worst message).

    The first messages are left out of the one: they use up the credit of a sender in good standing.
    Answers count, since the next message is looked at when the answer to the last one was read.
    """
    clock = StoppedClock(1_800_000_000_000)
    context = MergeContext(key_pair=KeyPair(b"n" * 32))
    replica = LatticeReplica(
        MemoryStore(), root_lattice(), context, hosting=HostingPolicy(), clock=clock
    )
    node = Replicator(replica, LatticeCodec(replica, clock), identity=KeyPair(b"n" * 32))
    for peer in ("planter", "attacker"):
        replica.introduce(peer, peer, is_wanted=False, is_known=False)
        node.open(peer, 0, outbound=False)
    for message in planted():
        node.receive("planter", message, 0)
    known = [hash for hash, _, _ in novelty(replica.announced)]
    node.take_effects()
    seconds, size, worst, now_ms = 0.0, 0, 0.0, 1
    payloads = itertools.islice(kind(random.Random(1), known), FIRST_MESSAGES + count)
    for number, payload in enumerate(payloads):
        # Who is in debt is read later; pushes keep to a pace.
        wait_ms = 100 + replica.wait_ms("attacker")
        now_ms += wait_ms
        clock.now += wait_ms
        begin = time.process_time()
        node.receive("attacker", payload, now_ms)
        node.tick(now_ms)
        took = time.process_time() - begin
        effects = node.take_effects()
        worst = max(worst, took)
        if number == FIRST_MESSAGES:
            seconds, size = 0.0, 0
        seconds += took
        size += len(encode_frame(payload)) + sum(len(answer) for _, answer in effects.sends)
        if effects.closes:
            break
    return 1e6 * seconds / size, 1e3 * worst


# --- what ticks are -------------------------------------------------------------------------------


def _ticks(scale: int) -> Iterator[Row]:
    """Yield the time of a tick where one kind of step is most of the work."""
    for name, (work, step) in _steps(scale).items():
        begin = time.process_time()
        step()
        seconds = time.process_time() - begin
        nanoseconds = 1e9 * seconds / work.spent
        yield {
            "row": f"tick-{name}",
            "value": nanoseconds,
            "unit": "ns/tick",
            "peers": {"least": 500.0, "most": 2_000.0, "ticks": float(work.spent)},
            "compiled": COMPILED,
        }


def _steps(scale: int) -> dict[str, tuple[Work, Callable[[], object]]]:
    """Return an account and a step that is paid from it, by kind of step."""
    found: dict[str, tuple[Work, Callable[[], object]]] = {}

    def add(name: str, step: Callable[[MergeContext], object]) -> None:
        work = Work(WORK_LIMITS._replace(start=UNBOUNDED // 2))
        context = MergeContext().for_foreign(discard, work)
        found[name] = work, lambda: step(context)

    def joined(name: str, lattice: Lattice, own: Value, other: Value) -> None:
        mine, theirs = kept(own), kept(other)
        add(name, lambda context: lattice.merge(mine, theirs, context))

    count = 10_000 * scale
    rows = [(f"key {n}", f"value {n}") for n in range(count)]
    more = [(f"other {n}", f"value {n}") for n in range(count)]
    joined("node", SetLattice(), Set.of([k for k, _ in rows]), Set.of([k for k, _ in more]))
    changed = [(key, 2 * number) for number, (key, _) in enumerate(rows)]
    counted = [(key, number) for number, (key, _) in enumerate(rows)]
    joined("joined", MapLattice(MaxLattice()), Map.of(counted), Map.of(changed))
    database = KVStoreLattice()
    joined("entry", database, _database(count, "a"), _database(count, "b"))
    joined("directory", DRIVES, _drive(count // 5, "a"), _drive(count // 5, "b"))
    log = Vector.of([f"record {n}" for n in range(8 * count)])
    queues = topic_map_lattice()
    own = topics(dict.fromkeys(range(20 * scale), queue_state(log, 0, 5)))
    later = queue_state(log.drop(5), 5, 6)
    joined("leaf", queues, own, topics(dict.fromkeys(range(20 * scale), later)))
    shorter = queue_state(log.drop(5).take(6 * count), 5, 4)
    joined("moved", queues, topics({0: queue_state(log, 0, 5)}), topics({0: shorter}))
    keys = [KeyPair(number.to_bytes(32, "big")) for number in range(1, 200 * scale)]
    slots = Map.of([(key.public_key, Signed.sign(key, Set.of([1]))) for key in keys])
    joined("signature", OwnerLattice(SetLattice()), Map.of([]), slots)
    content = Blob.of(bytes(range(256)) * 8_192 * scale)
    joined("hashed", STORAGE, Index(), Index.of([(content_hash(content), content)]))
    store = MemoryStore()
    store.commit(Map.of(rows))
    root = store.root()
    add("counted", lambda context: growth(None, root, store.get_encodings, 1 << 40, context.work))
    return found


def kept(value: Value) -> Value:
    """Return a value whose cells are loaded one by one, as those of a store are."""
    return Cells().kept(value)


def _database(count: int, tag: str) -> Value:
    time = ord(tag)
    return Index.of([(f"key {n}", Vector.of((f"{tag} {n}", 0, time, None))) for n in range(count)])


def _drive(count: int, tag: str) -> Value:
    folders: list[tuple[Value, Value]] = []
    for number in range(count):
        files = [(f"{i}", make_file(f"{tag}{number}{i}".encode(), number + i)) for i in range(3)]
        folders.append((f"d{number}", make_directory(Index.of(files), number + 5)))
    return Map.of([("home", make_directory(Index.of(folders), count + 9))])


# --- shares ---------------------------------------------------------------------------------------


def _row(name: str, seconds: float, share: float) -> Row:
    return {
        "row": name,
        "value": 100 * share,
        "unit": "%",
        "peers": {"goal": 100 * GOAL, "seconds": seconds},
        "compiled": COMPILED,
    }
