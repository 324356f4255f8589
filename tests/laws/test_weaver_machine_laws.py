"""The state of a machine is a function of the set of its operations.

Histories are made by one to seven authors, each with a replica of their own that receives the
others' operations late and in part. The models are dicts, sorted lists, and a fold that knows
nothing of heads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple, cast

import pytest
from hypothesis import given, strategies as st

from datalattice.clock import Hlc
from datalattice.engine import Engine, MemoryEngine
from datalattice.testing.disk import SimDisk, SimulatedCrash
from datalattice.testing.journal import JournalEngine
from datalattice.testing.machine_kit import (
    KIT_AUTHORS,
    CrashingEngine,
    MachineReplica,
    legal_order,
    unsigned,
)
from datalattice.weaver.appendlog import AppendRequest, LogMachine, ReadRequest, ReadResponse
from datalattice.weaver.heads import HeadReader
from datalattice.weaver.intention import ZERO_HASH, SignedIntention
from datalattice.weaver.kv import (
    BatchRequest,
    DeleteOp,
    DeleteRequest,
    GetRequest,
    GetResponse,
    KvMachine,
    ListRequest,
    ListResponse,
    Operation,
    PutOp,
    PutRequest,
    written_by,
)
from datalattice.weaver.machine import Machine
from datalattice.weaver.state import State
from datalattice.weaver.tables import STATE_DATA, STATE_META, STATE_SYSTEM, STATE_TABLES

KEYS = st.sampled_from([b"a", b"b", b"c", b"\xff"])
VALUES = st.binary(max_size=3)
CHANGES = st.one_of(
    st.builds(lambda key, value: Operation(put=PutOp(key, value)), KEYS, VALUES),
    st.builds(lambda key: Operation(delete=DeleteOp(key)), KEYS),
)


class Step(NamedTuple):
    """An author receives from another one, then writes.

    is_careless: it stamps without regard for what it has seen, as a foreign program may.
    """

    author: int
    source: int
    share: float
    ops: tuple[Operation, ...]
    now_ms: int
    is_careless: bool = False


STEPS = st.lists(
    st.builds(
        Step,
        st.integers(0, 6),
        st.integers(0, 6),
        st.floats(0, 1),
        st.lists(CHANGES, min_size=1, max_size=3).map(tuple),
        # Few different times, so that stamps of several authors are equal.
        st.integers(0, 3),
        st.booleans(),
    ),
    max_size=18,
)


def run(machine: type[Machine], steps: Sequence[Step], authors: int) -> list[SignedIntention]:
    """Return the operations that the authors made."""
    replicas = [MachineReplica(machine()) for _ in range(authors)]
    for step in steps:
        author, source = step.author % authors, step.source % authors
        mine, other = replicas[author], replicas[source]
        entries = other.log.entries[: round(len(other.log.entries) * step.share)]
        receive(mine, [entry.signed for entry in entries])
        mine.now_ms = 1_000 + step.now_ms
        stamp = Hlc(mine.now_ms, 0) if step.is_careless else None
        if machine is LogMachine:
            mine.execute(
                KIT_AUTHORS[author], "Append", AppendRequest(repr(step.ops).encode()), stamp
            )
        else:
            mine.execute(KIT_AUTHORS[author], "Batch", BatchRequest(step.ops), stamp)
    everything = {entry.signed.hash: entry.signed for one in replicas for entry in one.log.entries}
    return list(everything.values())


def receive(replica: MachineReplica, operations: Sequence[SignedIntention]) -> None:
    """Deliver what a replica does not have; a prefix of another log can always be delivered."""
    for signed in operations:
        if signed.hash not in replica.log.seqs:
            replica.deliver(signed)


@pytest.mark.parametrize("machine", [KvMachine, LogMachine])
@given(steps=STEPS, authors=st.integers(1, 7), random=st.randoms(use_true_random=False))
def test_every_legal_order_gives_the_same_bytes(
    machine: type[Machine], steps: list[Step], authors: int, random: Random
) -> None:
    operations = run(machine, steps, authors)
    states = set()
    for _ in range(3):
        replica = MachineReplica(machine())
        for signed in legal_order(operations, random.randrange):
            replica.log.append(signed)
            # Applied at once, or several together: it makes no difference.
            if random.random() < 0.5:
                assert replica.project().stall is None
        assert replica.project().stall is None
        tips = {k: v for k, v in replica.rows(STATE_META).items() if k.startswith(b"tip/")}
        states.add(repr((sorted(replica.rows(STATE_DATA).items()), sorted(tips.items()))))
    assert len(states) == 1


class KeyModel(NamedTuple):
    """What a fold without heads says of a key."""

    value: bytes | None
    heads: list[bytes]


def fold(operations: Sequence[SignedIntention]) -> dict[bytes, KeyModel]:
    """Return, for every key, the operations that no later one on it names, and the greatest."""
    heights: dict[bytes, int] = {}
    by_hash = {signed.hash: signed for signed in operations}
    for signed in operations:
        height, prev = 1, signed.intention.store_prev
        while prev != ZERO_HASH:
            height, prev = height + 1, by_hash[prev].intention.store_prev
        heights[signed.hash] = height
    found: dict[bytes, list[SignedIntention]] = {}
    for signed in operations:
        for key in written_by(signed.intention.payload):
            found.setdefault(key, []).append(signed)
    model = {}
    for key, writers in found.items():
        named = {dep for signed in writers for dep in signed.intention.deps}
        heads = [signed for signed in writers if signed.hash not in named]
        heads.sort(
            key=lambda s: (s.intention.stamp, s.intention.author, heights[s.hash]), reverse=True
        )
        value = written_by(heads[0].intention.payload)[key]
        model[key] = KeyModel(value, [signed.hash for signed in heads])
    return model


@given(steps=STEPS, authors=st.integers(1, 7), random=st.randoms(use_true_random=False))
def test_heads_and_winners_are_those_of_a_fold(
    steps: list[Step], authors: int, random: Random
) -> None:
    operations = run(KvMachine, steps, authors)
    replica = MachineReplica(KvMachine())
    for signed in legal_order(operations, random.randrange):
        replica.deliver(signed)
    with replica.engine.read() as txn:
        table = HeadReader(replica.state.reader(txn))
        got = {key: KeyModel(table.get(key), table.heads(key)) for key, _, _ in table.scan()}
    assert got == fold(operations)


@given(st.lists(st.tuples(st.sampled_from(KIT_AUTHORS), KEYS, st.none() | VALUES), max_size=30))
def test_writes_that_see_each_other_make_a_dict(
    writes: list[tuple[bytes, bytes, bytes | None]],
) -> None:
    replica = MachineReplica(KvMachine())
    model: dict[bytes, bytes] = {}
    for author, key, value in writes:
        if value is None:
            replica.execute(author, "Delete", DeleteRequest(key))
            model.pop(key, None)
        else:
            replica.execute(author, "Put", PutRequest(key, value))
            model[key] = value
        assert replica.query("Get", GetRequest(key)) == GetResponse(model.get(key))
    for prefix in (b"", b"a", b"\xff"):
        items = cast("ListResponse", replica.query("List", ListRequest(prefix))).items
        assert [(item.key, item.value) for item in items] == sorted(
            (key, value) for key, value in model.items() if key.startswith(prefix)
        )
        assert not any(item.conflicted for item in items)


@given(
    st.lists(
        st.tuples(st.sampled_from(KIT_AUTHORS), st.integers(0, 2), st.integers(0, 1), VALUES),
        max_size=30,
    ),
    st.none() | st.integers(0, 40),
)
def test_a_log_is_a_list_sorted_by_stamp_and_author(
    appended: list[tuple[bytes, int, int, bytes]], tail: int | None
) -> None:
    replica = MachineReplica(LogMachine())
    keys = set()
    model = []
    for author, wall, counter, content in appended:
        # Stamps of one author are unequal here; equal ones are kept in an order of their own.
        if (wall, counter, author) not in keys:
            keys.add((wall, counter, author))
            replica.write(author, content, stamp=Hlc(wall, counter))
            if content:
                model.append((wall, counter, author, content))
    expected = [content for *_, content in sorted(model)]
    if tail is not None:
        expected = expected[len(expected) - tail if tail <= len(expected) else 0 :]
    got = cast("ReadResponse", replica.query("Read", ReadRequest(tail)))
    assert list(got.items) == expected


@given(steps=STEPS, authors=st.integers(1, 7))
def test_projection_is_replay_and_restoring_gives_the_same_bytes(
    steps: list[Step], authors: int
) -> None:
    operations = run(KvMachine, steps, authors)
    replica = MachineReplica(KvMachine())
    for signed in legal_order(operations, Random(1).randrange):
        replica.deliver(signed)
    before = {table: replica.rows(table) for table in STATE_TABLES}
    snapshot = replica.snapshot()
    with replica.engine.write() as txn:
        replica.state.rebuild(txn)
    assert {table: replica.rows(table) for table in STATE_TABLES} == before
    with replica.engine.write() as txn:
        txn.put(STATE_SYSTEM, b"left over", b"x")
        assert replica.state.restore(txn, [snapshot]).fits
    assert replica.snapshot() == snapshot
    again = MachineReplica(KvMachine())
    for entry in replica.log.entries:
        again.log.append(entry.signed)
    again.project()
    assert again.snapshot() == snapshot


def test_a_hostile_batch_costs_time_in_proportion_to_its_size() -> None:
    """An operation that promotes thousands of heads reads the winner's payload once."""
    replica = MachineReplica(KvMachine())
    first, second = KIT_AUTHORS[:2]
    ops = tuple(Operation(put=PutOp(b"%05d" % number, b"v")) for number in range(5_000))
    batch = BatchRequest(ops)
    payload = batch.encode()  # a batch and a payload have the same fields
    replaced = replica.write(second, payload)
    replica.deliver(unsigned(first, payload, stamp=Hlc(1, 0)))
    replica.write(second, payload, [replaced.hash], stamp=Hlc(0, 0))
    assert replica.project().stall is None
    assert len(cast("ListResponse", replica.query("List", ListRequest())).items) == 5_000


# --- crashes ------------------------------------------------------------------------------------


def history() -> list[SignedIntention]:
    """Return operations of three authors, with a conflict and a promoted head."""
    steps = [
        Step(0, 0, 0, (Operation(put=PutOp(b"a", b"1")),), 0),
        Step(1, 1, 0, (Operation(put=PutOp(b"a", b"2")), Operation(put=PutOp(b"b", b"3"))), 0),
        Step(2, 1, 1, (Operation(delete=DeleteOp(b"a")),), 1),
        Step(0, 2, 1, (Operation(put=PutOp(b"c", b"4")),), 2),
    ]
    return legal_order(run(KvMachine, steps, 3), Random(2).randrange)


Crash = Callable[[State, CrashingEngine], None]


def project(state: State, engine: CrashingEngine) -> None:
    with engine.write() as txn:
        state.project(txn, 2)
    with engine.write() as txn:
        state.project(txn)


def rebuild(state: State, engine: CrashingEngine) -> None:
    with engine.write() as txn:
        state.rebuild(txn)


def snapshot_and_restore(state: State, engine: CrashingEngine) -> None:
    with engine.write() as txn:
        parts = list(state.snapshot(txn))
    with engine.write() as txn:
        state.restore(txn, parts)


class Folds:
    """The states after each number of operations, as snapshots."""

    def __init__(self) -> None:
        replica = MachineReplica(KvMachine())
        self.counts = {replica.snapshot(): 0}
        for signed in history():
            replica.deliver(signed)
            self.counts[replica.snapshot()] = len(self.counts)
        self.last = replica.snapshot()

    def check(self, replica: MachineReplica) -> None:
        """Check that a replica is at one of them, with its position, and goes on from there."""
        prefix = self.counts[replica.snapshot()]
        with replica.engine.read() as txn:
            assert replica.state.position(txn).seq == prefix
        with replica.engine.write() as txn:
            replica.state.open(txn)
        assert replica.project().applied == len(self.counts) - 1 - prefix
        assert replica.snapshot() == self.last


def prepared(work: Crash, engine: Engine) -> MachineReplica:
    """Return a replica whose log is full, and whose state too unless `work` is to fill it."""
    replica = MachineReplica(KvMachine(), engine)
    for signed in history():
        replica.log.append(signed)
    if work is not project:
        replica.project()
    return replica


WORKS = [project, rebuild, snapshot_and_restore]


@pytest.mark.parametrize("work", WORKS)
def test_a_crash_at_any_call_leaves_the_fold_of_a_prefix(work: Crash) -> None:
    folds = Folds()
    crashes = 0
    while True:
        replica = prepared(work, MemoryEngine(STATE_TABLES))
        try:
            work(replica.state, CrashingEngine(replica.engine, crashes))
        except SimulatedCrash:
            crashes += 1
        else:
            break
        folds.check(replica)
    assert crashes >= 15


@pytest.mark.parametrize("power_failure", [False, True])
@pytest.mark.parametrize("work", WORKS)
def test_a_crash_at_any_step_of_the_disk_leaves_the_fold_of_a_prefix(
    work: Crash, power_failure: bool
) -> None:
    folds = Folds()
    crashes = 0
    while True:
        disk = SimDisk(crashes)
        replica = prepared(work, JournalEngine(disk, "state", STATE_TABLES))
        disk.crash_at = disk.steps + crashes + 1
        try:
            work(replica.state, CrashingEngine(replica.engine))
        except SimulatedCrash:
            crashes += 1
        else:
            break
        disk.restart(power_failure=power_failure)
        replica.engine = JournalEngine(disk, "state", STATE_TABLES)
        folds.check(replica)
    assert crashes >= 2
