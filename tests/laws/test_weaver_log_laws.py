"""Laws of the log: against a naive model, in any order of arrival, with forks, after failures."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from datalattice.engine import GroupCommit, MemoryEngine, WriteTxn, section
from datalattice.testing.disk import SimDisk, SimulatedCrash
from datalattice.testing.log_kit import (
    KIT_NODE,
    KIT_STORE,
    Author,
    FailingTxn,
    InjectedFailure,
    LogFixture,
    NaiveLog,
    author,
    cut_at,
)
from datalattice.weaver import (
    LOG_TABLES,
    ZERO_HASH,
    SignedIntention,
    ack_deps,
    check_chain,
    frontier,
    observations,
    unacknowledged,
)

HISTORIES = st.tuples(
    st.integers(1, 7),  # authors
    st.integers(1, 40),  # intentions
    st.sampled_from([0, 0, 10]),  # per cent of forks
    st.integers(0, 2**32),
)
CUTS = st.lists(st.integers(0, 100), max_size=6)


def history(authors: int, count: int, forks: int, seed: int) -> list[SignedIntention]:
    """Return intentions of several authors in an order in which each could have been written."""
    dice = Random(seed)
    writers = [Author(n) for n in range(authors)]
    written: list[SignedIntention] = []
    for n in range(count):
        writer = dice.choice(writers)
        deps = dice.sample([s.hash for s in written], min(len(written), dice.choice([0, 0, 1, 3])))
        prev = None
        mine = [s.intention.store_prev for s in written if s.intention.author == writer.public_key]
        if mine and dice.randrange(100) < forks:
            prev = dice.choice(mine)
        payload = b"" if dice.randrange(4) == 0 else b"%d" % n
        written.append(writer.write(payload, deps, prev=prev))
    return written


def shuffled(signed: list[SignedIntention], seed: int) -> list[SignedIntention]:
    order = list(signed)
    Random(seed).shuffle(order)
    return order


def check_against_model(store: LogFixture, model: NaiveLog) -> None:
    """Compare everything a log tells with what follows from the model's list."""
    assert store.witnessed() == model.hashes
    assert list(store.floating()) == [s.hash for s in model.waiting]
    head = store.head()
    assert (head.seq, head.floating_count) == (len(model.witnessed), len(model.waiting))
    assert head.floating_bytes == sum(s.size for s in model.waiting)
    fingerprint = 0
    for hash in model.hashes:
        fingerprint ^= int.from_bytes(hash, "big")
    assert head.fingerprint == fingerprint.to_bytes(32, "big")
    tips = {key: tip.hash for key, tip in store.read(store.log.tips).items()}
    authors = {s.intention.author for s in model.witnessed}
    assert tips == {key: model.tip(key) for key in authors}
    by_hash = {s.hash: s.intention for s in model.witnessed}
    chained = {(i.author, i.store_prev) for i in by_hash.values()}
    forks = {
        s.hash for s in model.waiting if (s.intention.author, s.intention.store_prev) in chained
    }
    assert {fork.other.hash for fork in store.read(store.log.forks)} == forks
    assert {hash for hash, reason in store.floating().items() if reason == "fork"} == forks
    for fork in store.read(store.log.forks):
        assert fork.witnessed.intention.store_prev == fork.other.intention.store_prev
        assert fork.witnessed.hash in by_hash


@settings(max_examples=150, deadline=None)
@given(HISTORIES, CUTS, st.integers(0, 2**32))
def test_a_log_is_the_fold_by_a_naive_model(
    shape: tuple[int, int, int, int], cuts: list[int], seed: int
) -> None:
    store, model = LogFixture(), NaiveLog()
    signed = shuffled(history(*shape), seed)
    for batch in cut_at(signed, cuts):
        store.ingest(*batch)
        model.ingest(batch)
        check_against_model(store, model)
    assert store.fsck(3) == []


@settings(max_examples=100, deadline=None)
@given(HISTORIES, CUTS, CUTS, st.integers(0, 2**32))
def test_the_witnessed_set_does_not_depend_on_the_order_of_arrival(
    shape: tuple[int, int, int, int], cuts: list[int], others: list[int], seed: int
) -> None:
    authors, count, _, history_seed = shape
    signed = history(authors, count, 0, history_seed)
    one, other = LogFixture(), LogFixture()
    for batch in cut_at(signed, cuts):
        one.ingest(*batch)
    for batch in cut_at(shuffled(signed, seed), others):
        other.ingest(*batch)
    assert set(one.witnessed()) == set(other.witnessed()) == {s.hash for s in signed}
    assert one.head().fingerprint == other.head().fingerprint
    assert one.floating() == other.floating() == {}
    tips = [{k: t.hash for k, t in s.read(s.log.tips).items()} for s in (one, other)]
    assert tips[0] == tips[1]
    # Every order is one in which dependencies come first.
    for store in (one, other):
        before = {ZERO_HASH}
        for hash in store.witnessed():
            intention = store.read(store.log.get, hash).intention
            assert before.issuperset((intention.store_prev, *intention.deps))
            before.add(hash)


@settings(max_examples=100, deadline=None)
@given(HISTORIES, CUTS, st.integers(0, 2**32))
def test_one_order_of_arrival_gives_the_same_log_however_it_is_cut_or_repeated(
    shape: tuple[int, int, int, int], cuts: list[int], seed: int
) -> None:
    signed = shuffled(history(*shape), seed)
    one, other = LogFixture(), LogFixture()
    for batch in cut_at(signed, cuts):
        one.ingest(*batch)
        other.ingest(*batch)
        other.ingest(*batch)
    assert one.rows() == other.rows()


@settings(max_examples=100, deadline=None)
@given(HISTORIES, CUTS, st.integers(0, 2**32))
def test_a_rebuild_gives_identical_bytes(
    shape: tuple[int, int, int, int], cuts: list[int], seed: int
) -> None:
    store = LogFixture()
    for number, batch in enumerate(cut_at(shuffled(history(*shape), seed), cuts)):
        store.clock.now += 1000
        store.ingest(*batch)
        if number % 2:
            store.submit(author(100 + number % 4), b"here")
    rows = store.rows()
    store.rebuild()
    assert store.rows() == rows
    assert store.fsck(3) == []


@settings(max_examples=100, deadline=None)
@given(HISTORIES, CUTS, st.integers(0, 2**32))
def test_frontiers_equal_a_naive_computation(
    shape: tuple[int, int, int, int], cuts: list[int], seed: int
) -> None:
    store, model = LogFixture(), NaiveLog()
    for batch in cut_at(shuffled(history(*shape), seed), cuts):
        store.ingest(*batch)
        model.ingest(batch)
    naive = {hash: model.frontier(hash) for hash in model.hashes}
    for hash in model.hashes:
        assert store.read(frontier, hash) == dict(sorted(naive[hash].items()))
    contents = {s.hash: bool(s.intention.payload) for s in model.witnessed}
    names = list(enumerate(model.hashes, 1))
    authors = {s.hash: s.intention.author for s in model.witnessed}

    def seen(observer: bytes, observed: bytes) -> int:
        last = naive[model.tip(observer)].get(observed, 0)
        return sum(1 for seq, h in names if seq <= last and authors[h] == observed and contents[h])

    keys = sorted(set(authors.values()))
    wanted = [(a, b, seen(a, b)) for a in keys for b in keys if seen(a, b)]
    assert [tuple(each) for each in store.read(observations)] == wanted
    for key in keys:
        missing = [
            b
            for b in keys
            if b != key
            and seen(key, b) < sum(1 for h in contents if contents[h] and authors[h] == b)
        ]
        found = store.read(unacknowledged, key)
        assert [each.author for each in found] == missing
    if not store.floating():
        for number in range(shape[0]):
            writer = author(number)
            deps = store.read(ack_deps, writer.public_key, 1024)
            if deps:
                store.submit(writer, b"", deps)
            assert store.read(unacknowledged, writer.public_key) == []


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 5), st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=25))
def test_local_writes_of_nodes_that_exchange_all_agree(
    nodes: int, steps: list[tuple[int, bool]]
) -> None:
    """Each node writes with its own key, after what it saw; now and then one tells all others."""
    stores = [LogFixture() for _ in range(nodes)]
    for number, (chosen, tells) in enumerate(steps):
        at = chosen % nodes
        store = stores[at]
        store.clock.now += number % 3
        heads = [tip.hash for tip in store.read(store.log.tips).values()]
        signed = store.submit(author(at), b"%d" % number, heads[:2])
        assert signed.intention.stamp > max(
            (store.read(store.log.get, hash).intention.stamp for hash in heads[:2]),
            default=(0, 0),
        )
        if tells:
            for other in stores:
                other.ingest(*all_of(store))
    for store in stores:
        for other in stores:
            other.ingest(*all_of(store))
    for store in stores:
        assert set(store.witnessed()) == set(stores[0].witnessed())
        assert store.floating() == {}
        assert store.read(store.log.forks) == []
        records = [entry.record for entry in store.entries()]
        assert check_chain(records, KIT_STORE, KIT_NODE.public_key).seq == len(steps)


def all_of(store: LogFixture) -> list[SignedIntention]:
    return [entry.signed for entry in store.entries()]


# --- failures -----------------------------------------------------------------------------------


def _prepared(engine: Any) -> LogFixture:
    """Return a store where all kinds of intentions wait."""
    store = LogFixture(engine)
    a, b, c = Author(1), Author(2), Author(3)
    a1 = a.write(b"a1")
    b.write(b"lost")
    waiting = [
        c.write(b"c1", [a1.hash, b.last]),
        c.write(b"c2"),
        b.write(b"b2"),
        a.write(b"a2"),
        a.write(b"fork", prev=a1.hash),
    ]
    store.ingest(*waiting)
    return store


def _arrivals() -> list[SignedIntention]:
    """Return what wakes them: two chains, a fork, and one that waits on."""
    a1 = Author(1).write(b"a1")
    lost = Author(2).write(b"lost")
    return [Author(4).chain(2)[1], lost, a1]


def _works(store: LogFixture) -> dict[str, Any]:
    return {
        "ingest": lambda txn: store.log.ingest(txn, _arrivals()),
        "submit": lambda txn: store.log.submit(txn, author(1), b"mine"),
        "submit after": lambda txn: store.log.submit(
            txn, author(9), b"mine", [Author(1).write(b"a1").hash]
        ),
    }


def _failing(work: Callable[[Any], Any], fail_at: int, txn: WriteTxn) -> Any:
    return work(FailingTxn(txn, fail_at))


def _sectioned(store: LogFixture, work: Callable[[Any], Any], txn: WriteTxn) -> Any:
    return work(section(txn, store.prefix))


@pytest.mark.parametrize("name", ["ingest", "submit", "submit after"])
def test_a_failure_at_any_call_leaves_nothing_behind(name: str) -> None:
    """Alone in a transaction that rolls back, and among others in a shared one."""
    wanted = _prepared(MemoryEngine(LOG_TABLES))
    before = wanted.rows()
    counting: list[FailingTxn] = []

    def counted(txn: Any) -> Any:
        counting.append(FailingTxn(txn))
        return _works(wanted)[name](counting[0])

    wanted.write(counted)
    after = wanted.rows()
    assert after != before
    assert counting[0].calls > 5
    for fail_at in range(1, counting[0].calls + 1):
        store = _prepared(MemoryEngine(LOG_TABLES))
        work = _works(store)[name]
        with pytest.raises(InjectedFailure):
            store.write(partial(_failing, work, fail_at))
        assert store.rows() == before
        group = GroupCommit(store.engine)
        with pytest.raises(InjectedFailure):
            group.run(partial(_sectioned, store, partial(_failing, work, fail_at)))
        assert store.rows() == before
        assert store.fsck(3) == []
        group.run(partial(_sectioned, store, work))
        assert store.rows() == after
        assert store.fsck(3) == []


def test_a_crash_at_any_step_leaves_a_prefix_of_what_was_done() -> None:
    """Every commit is all or nothing, and what a call returned from is still there."""

    def run(disk: SimDisk, crash_at: int | None) -> int:
        """Return how many calls returned."""
        disk.crash_at = crash_at
        done = 0
        try:
            engine = disk.engine("log", LOG_TABLES, read_only=False)
            store = LogFixture(engine)
            for signed in _history():
                store.ingest(signed)
                engine.sync()
                done += 1
            store.submit(author(5), b"mine")
            engine.sync()
            done += 1
        except SimulatedCrash:
            return done
        return done

    whole = SimDisk(1)
    calls = run(whole, None)
    last = LogFixture(whole.engine("log", LOG_TABLES, read_only=False)).rows()
    for crash_at in range(1, whole.steps + 1):
        disk = SimDisk(crash_at)
        done = run(disk, crash_at)
        disk.restart(power_failure=False)
        store = LogFixture(disk.engine("log", LOG_TABLES, read_only=False))
        assert store.fsck(3) == []
        kept = store.head().seq + store.head().floating_count
        assert done <= kept <= done + 1
        # What was under way is done again, from peers: what is there already is skipped.
        if kept < calls:
            store.ingest(*_history())
            store.submit(author(5), b"mine")
        assert store.rows().keys() == last.keys()
        assert store.fsck(3) == []


def _history() -> Iterable[SignedIntention]:
    a, b = Author(1), Author(2)
    chain = [*a.chain(3), b.write(b"b", [a.last])]
    return [chain[3], chain[2], chain[0], chain[1], a.write(b"fork", prev=chain[0].hash)]
