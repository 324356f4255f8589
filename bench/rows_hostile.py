"""Rows of the benchmark about foreign data: what checks cost, and what strangers can cost.

`check-share`: the processor time of checking cells, as a share of what another row measures: taking
queue frames in, a first sync, decoding. For taking in, a second run tells which cells are checked.
`cpu-per-kb-worst`: the processor time of a stranger's messages for each kB of them and of their
answers, by kind, once the sender has used up its allowance: what is left to it are the bytes that
it sends and the credit that time brings. An exchange counts as at least 100 bytes: a smaller one
costs little beyond the fixed cost of a turn.
`cpu-small-message`: the cost of each message of kinds below that minimum.
`cpu-per-kb-small`: their cost for each kB on the wire. Many fit into one segment, so this is the
cost of a flood; a stranger is charged 40 ticks for each message, and 100 for a commit.
`cpu-per-kb-asked`: of kinds with long answers, the cost for each kB sent, without the answers.
`cpu-allowance`: the credit that time brings a stranger; `cpu-message-worst`: the worst message of
any kind, also of a sender with all of its allowance.
`tick`: the time of a tick of each kind of step, which should be within a factor of two of 1 us.
"""

from __future__ import annotations

import gc
import itertools
import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple
from unittest.mock import patch

from figures import Row, row
from hostile_messages import KINDS, Kind, planted
from rows_node import BLOCK_BYTES, pushes

from datalattice.apps.dlfs import make_directory, make_file
from datalattice.apps.dlfs.lattice import DRIVES
from datalattice.apps.grid.assets import content_hash
from datalattice.apps.grid.lattice import STORAGE_LATTICE
from datalattice.apps.kv.lattice import KVStoreLattice
from datalattice.apps.queue.lattice import topic_map_lattice
from datalattice.cells import (
    UNBOUNDED,
    Blob,
    Index,
    Keyword,
    KnownFacts,
    Map,
    Set,
    Signed,
    Value,
    Vector,
    Work,
    decode_message,
    decode_parts,
    encode_message,
    learn_cell,
    learn_cells,
    novelty,
    value_hash,
)
from datalattice.clock import SystemClock
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
from datalattice.limits import CHARGE_LIMITS, WORK_LIMITS
from datalattice.store import MemoryStore, Store
from datalattice.sync import (
    HostingPolicy,
    LatticeProtocol,
    LatticeReplica,
    Replicator,
)
from datalattice.sync.lattice import incomplete
from datalattice.sync.lattice.delta import growth
from datalattice.testing.bombs import queue_state, topics
from datalattice.testing.cells_kit import CellDict
from datalattice.testing.clocks import StoppedClock
from datalattice.wire import encode_complete, encode_frame

ENTRIES = 101_000
RUNS = 3
GOAL = 0.10
CPU_GOAL_MS = 2.0
EXCHANGE_BYTES_MIN = 100
FIRST_MESSAGES = 4
TICK_S = 1e-6


Batch = list[tuple[bytes, bytes]]
"""(hash, encoding) of cells, children first."""


def _checked(work: Callable[[], object]) -> list[Batch]:
    """Return the cells that are checked meanwhile, in order, as they are checked together."""
    found: list[Batch] = []

    def one(hash: bytes, encoding: bytes, facts: KnownFacts) -> None:
        found.append([(hash, encoding)])
        learn_cell(hash, encoding, facts)

    def many(cells: Batch, facts: KnownFacts) -> int:
        found.append(cells)
        return learn_cells(cells, facts)

    # Where they are used, not where they are defined: it has imported their names.
    with patch.multiple(incomplete, learn_cell=one, learn_cells=many):
        work()
    return found


def _check_seconds(batches: list[Batch], stored: Callable[[bytes], bytes | None]) -> float:
    """Return the processor time of checking cells, each found sound, and of remembering that."""
    passing: dict[bytes, bytes] = {}

    def load(hash: bytes) -> bytes | None:
        return passing.get(hash) or stored(hash)

    facts = KnownFacts(load)
    seconds = 0.0
    for batch in batches:
        passing = dict(batch)  # as `IncompleteCells` has them at hand
        begin = time.process_time()
        sound = learn_cells(batch, facts)
        facts.trim()
        seconds += time.process_time() - begin
        if sound < len(batch):
            raise AssertionError("a cell of an honest message is not sound")
    return seconds


def _cpu_seconds(work: Callable[[], object]) -> float:
    gc.collect()
    begin = time.process_time()
    work()
    return time.process_time() - begin


def _node(store: Store) -> Replicator:
    context = MergeContext(key_pair=KeyPair(b"b" * 32))
    replica = LatticeReplica(store, root_lattice(), context)
    node = Replicator(replica, LatticeProtocol(SystemClock()))
    node.open("peer", 0, outbound=False)
    return node


def _take(frames: Sequence[bytes], store: Store) -> Callable[[], object]:
    """Return a step in which a new node takes frames in."""

    def work() -> None:
        node = _node(store)
        for now_ms, frame in enumerate(frames):
            node.receive("peer", frame, now_ms)
            node.take_effects()

    return work


def _share_of_frames(name: str, frames: Sequence[bytes], *, goal: bool = True) -> Row:
    """Return the share of checks in taking frames in, in memory: on a disk there is more beside."""
    store = MemoryStore()
    batches = _checked(_take(frames, store))
    seconds = min(_cpu_seconds(_take(frames, MemoryStore())) for _ in range(RUNS))
    checks = min(_check_seconds(batches, store.get_encoding) for _ in range(RUNS))
    return _share(name, checks, seconds, sum(map(len, batches)), goal=goal)


def _share(name: str, checks: float, seconds: float, cells: int, *, goal: bool = True) -> Row:
    share = 100 * checks / seconds
    beside = {"cells": float(cells), "seconds": seconds, "checks": checks}
    peers = {**_judged(share, 100 * GOAL), **beside} if goal else beside
    return row(f"check-share-{name}", share, "%", peers)


def _judged(value: float, goal: float) -> dict[str, float]:
    """Return the goal of a row, under a name that says whether it is met."""
    return {"goal" if value <= goal else "GOAL MISSED, it is": goal}


def _value_frame(section: Keyword, value: Value) -> bytes:
    return encode_complete([section], value, [data for _, data, _ in novelty(value)])


def rows(quick: bool) -> Iterator[Row]:
    """Yield the rows: the share of checks in what other rows measure, and what strangers cost."""
    yield _share_of_frames("queue-apply", pushes(20 if quick else 100))
    chance = random.Random(1)
    blocks = [chance.randbytes(BLOCK_BYTES) for _ in range(10_000 if quick else 100_000)]
    content = Index.of({value_hash(block): block for block in blocks})
    yield _share_of_frames("first-sync-100k", [_value_frame(Keyword("data"), content)])
    yield _decode_share()
    count = ENTRIES // 10 if quick else ENTRIES
    # Most of these is the hashing of keys, of which the order is checked; decoding leaves it out.
    for name, value in (
        ("set", Set.of(range(count))),
        ("map", Map.of([(n, f"value {n}") for n in range(count)])),
        ("index", Index.of([(f"key-{n:08}", f"value {n}") for n in range(count)])),
    ):
        held = Index.of([(value_hash(value), value)])
        yield _share_of_frames(name, [_value_frame(Keyword("data"), held)], goal=False)
    yield from _attacks(20 if quick else 60)
    yield from _ticks(1 if quick else 4)


def _decode_share() -> Row:
    message = encode_message(Vector.of([b"%0150d" % number for number in range(95_000)]))
    known = decode_parts(message)[1].encodings()
    cells = list(known.items())[::-1]  # a message has them parents first; a claim turns them round
    seconds = min(_cpu_seconds(lambda: decode_message(message)) for _ in range(RUNS))
    checks = min(_check_seconds([cells], known.get) for _ in range(RUNS))
    return _share("decode-101k", checks, seconds, len(cells))


# --- what strangers cost --------------------------------------------------------------------------


class _Cost(NamedTuple):
    """The cost of messages of one kind: processor time, their bytes with answers, the worst one."""

    seconds: float
    messages: int
    sent: int
    exchanged: int
    worst_s: float

    @property
    def is_small(self) -> bool:
        return self.exchanged < EXCHANGE_BYTES_MIN * self.messages

    @property
    def ms_per_kb(self) -> float:
        return 1e6 * self.seconds / max(self.exchanged, EXCHANGE_BYTES_MIN * self.messages)


def _attacks(count: int) -> Iterator[Row]:
    """Yield the cost of each kind of message, and the worst of them."""
    found: dict[str, _Cost] = {}
    for kind in KINDS:
        # The least of several runs: the machine may do other things.
        runs = [_attack(kind, count) for _ in range(RUNS)]
        least = min(runs, key=lambda run: run.seconds)
        found[kind.__name__] = least._replace(worst_s=min(run.worst_s for run in runs))
    by_kb = {name: one.ms_per_kb for name, one in found.items()}
    yield _worst("cpu-per-kb-worst", "ms/kB", by_kb, CPU_GOAL_MS)
    small = {name: one for name, one in found.items() if one.is_small}
    by_message = {name: 1e6 * one.seconds / one.messages for name, one in small.items()}
    yield _worst("cpu-small-message", "us", by_message)
    bare = {name: 1e6 * one.seconds / one.exchanged for name, one in small.items()}
    yield _worst("cpu-per-kb-small", "ms/kB", bare)
    asked = {
        name: 1e6 * one.seconds / one.sent
        for name, one in found.items()
        if one.exchanged > 2 * one.sent
    }
    yield _worst("cpu-per-kb-asked", "ms/kB", asked)
    at_once = {"s at once": CHARGE_LIMITS.burst_s * CHARGE_LIMITS.per_s * TICK_S}
    yield row("cpu-allowance", 100 * CHARGE_LIMITS.per_s * TICK_S, "%", at_once)
    yield _worst("cpu-message-worst", "ms", {n: 1e3 * one.worst_s for n, one in found.items()})


def _worst(name: str, unit: str, found: dict[str, float], goal: float | None = None) -> Row:
    worst = max(found.values())
    peers = found if goal is None else {**_judged(worst, goal), **found}
    return row(name, worst, unit, peers)


def _attack(kind: Kind, count: int) -> _Cost:
    """Return the cost of messages without the first ones, which use up the sender's start credit.

    The credit of time is used up before, so the sender waits until it is out of debt. Answers
    count: the next message is read once the answer to the last one has left.
    """
    clock = StoppedClock(1_800_000_000_000)
    context = MergeContext(key_pair=KeyPair(b"n" * 32))
    replica = LatticeReplica(
        MemoryStore(), root_lattice(), context, hosting=HostingPolicy(), clock=clock
    )
    node = Replicator(replica, LatticeProtocol(clock, identity=KeyPair(b"n" * 32)))
    for peer in ("planter", "attacker"):
        # A peer that the operator named plants, so that limits for strangers keep nothing out.
        replica.charges.introduce(peer, peer, is_wanted=peer == "planter", is_known=False)
        node.open(peer, 0, outbound=False)
    for message in planted():
        node.receive("planter", message, 0)
    known = [hash for hash, _, _ in novelty(replica.announced)]
    node.take_effects()
    limits = replica.charges.limits
    spent = Work(WORK_LIMITS._replace(start=UNBOUNDED))
    spent.spend(limits.per_s * limits.burst_s)
    replica.charges.close("attacker", spent)
    seconds, sent, answered, worst, now_ms = 0.0, 0, 0, 0.0, 1
    payloads = itertools.islice(kind(random.Random(1), known), FIRST_MESSAGES + count)
    number = 0
    gc.collect()  # else the worst message is where the garbage of the others is looked for
    for number, payload in enumerate(payloads):
        wait_ms = replica.charges.wait_ms("attacker")
        now_ms += 100 + wait_ms  # pushes keep to a pace
        clock.now += wait_ms
        begin = time.process_time()
        node.receive("attacker", payload, now_ms)
        deadline_ms = node.deadline_ms
        if deadline_ms is not None and deadline_ms <= now_ms:
            node.tick(now_ms)
        took = time.process_time() - begin
        effects = node.take_effects()
        worst = max(worst, took)
        if number == FIRST_MESSAGES:
            seconds, sent, answered = 0.0, 0, 0
        seconds += took
        sent += len(encode_frame(payload))
        answered += sum(len(encode_frame(answer)) for _, answer in effects.sends)
        if effects.closes:
            break  # the node would read no further message
    messages = number + 1 - (FIRST_MESSAGES if number >= FIRST_MESSAGES else 0)
    return _Cost(seconds, messages, sent, sent + answered, worst)


# --- what ticks are -------------------------------------------------------------------------------


def _ticks(scale: int) -> Iterator[Row]:
    """Yield the time of a tick where one kind of step is most of the work."""
    for name, (work, step) in _steps(scale).items():
        begin = time.process_time()
        step()
        seconds = time.process_time() - begin
        beside = {"least": 500.0, "most": 2_000.0, "ticks": float(work.spent)}
        yield row(f"tick-{name}", 1e9 * seconds / work.spent, "ns/tick", beside)


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
    joined("hashed", STORAGE_LATTICE, Index(), Index.of([(content_hash(content), content)]))
    store = MemoryStore()
    store.commit(Map.of(rows))
    root = store.root()
    add("counted", lambda context: growth(None, root, store.get_encodings, 1 << 40, context.work))
    return found


def kept(value: Value) -> Value:
    """Return a value whose cells are loaded one by one, as those of a store are."""
    return CellDict().kept(value)


def _database(count: int, tag: str) -> Value:
    time = ord(tag)
    return Index.of([(f"key {n}", Vector.of((f"{tag} {n}", 0, time, None))) for n in range(count)])


def _drive(count: int, tag: str) -> Value:
    folders: list[tuple[Value, Value]] = []
    for number in range(count):
        files = [(f"{i}", make_file(f"{tag}{number}{i}".encode(), number + i)) for i in range(3)]
        folders.append((f"d{number}", make_directory(Index.of(files), number + 5)))
    return Map.of([("home", make_directory(Index.of(folders), count + 9))])
