"""One store: commands and queries, ingest, events, acknowledgements, stall."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import Annotated, Any

import pytest
from hypothesis import given, strategies as st

from datalattice.clock import Hlc
from datalattice.crypto import KeyPair
from datalattice.errors import StoreClosed, TypeMismatch, UsageError
from datalattice.protobuf import Field, Message
from datalattice.testing.engine_kit import call_together
from datalattice.testing.log_kit import FailingTxn
from datalattice.testing.polling import LIMIT_S
from datalattice.testing.stores_kit import WeaverNode, envelopes_of, exchange, state_of
from datalattice.weaver import (
    Dag,
    HeadReader,
    Intention,
    IntentionRefused,
    Machine,
    Op,
    PayloadTooLarge,
    Proposal,
    SignedIntention,
    SnapshotRefused,
    StateReader,
    StateWriter,
    TooManyCausalDeps,
    UnknownMethod,
    WeaverStore,
    Written,
    admit,
    command,
    heads_at,
    query,
)
from datalattice.weaver.appendlog import AppendRequest, FollowParams, LogEvent
from datalattice.weaver.events import EVENTS_MAX
from datalattice.weaver.intention import ZERO_HASH
from datalattice.weaver.kv import (
    BatchRequest,
    GetRequest,
    GetResponse,
    Operation,
    PutOp,
    PutRequest,
    WatchEvent,
    WatchParams,
)
from datalattice.weaver.null import WriteRequest
from datalattice.weaver.state import BATCH_RECORDS
from datalattice.weaver.store import ACK_DELAY_MS, StoreView
from datalattice.weaver.systemops import UniversalOp


class Echo(Message, name="test.Echo"):
    text: Annotated[str, Field(1)] = ""


class Routes(Machine):
    """Tells which of its parts was called, and with what kind of DAG."""

    kind = "test:routes"

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.fails = False

    def apply(self, op: Op, state: StateWriter, dag: Dag) -> Iterable[Message]:
        if self.fails:
            raise UsageError("this node cannot read it")
        state.put(op.payload, op.hash)
        return (Echo(op.payload.decode()),)

    @command
    def say(self, request: Echo, state: StateReader, dag: Dag) -> Proposal[Written]:
        self.calls.append(("command", type(dag).__name__))
        if not request.text:
            raise UsageError("say something")
        return Proposal(request.text.encode())

    @query
    def count(self, request: Echo, state: StateReader, dag: Dag) -> Echo:
        self.calls.append(("query", type(dag).__name__))
        return Echo(str(sum(1 for _ in state.scan())))


def routes() -> tuple[WeaverStore, Routes]:
    node = WeaverNode(1, machines=(Routes,))
    store = node.stores.create("test:routes")
    machine = store.machine
    assert isinstance(machine, Routes)
    return store, machine


def test_command_routed_to_handle_command() -> None:
    store, machine = routes()
    answer = store.execute("Say", Echo("hello"))
    assert isinstance(answer, Written)
    assert machine.calls == [("command", "ScopedDag")]
    with store.read() as view:
        assert view.find(answer.hash)[0].hash == answer.hash


def test_the_sum_of_all_hashes_is_one_row() -> None:
    store, _ = routes()
    for text in ("one", "two", "three"):
        store.execute("Say", Echo(text))
    first, middle, last = bytes(32), b"\x80" + bytes(31), b"\xff" * 32
    with store.read() as view:
        halves = [(first, middle), (middle, last)]
        xors = [int.from_bytes(view.fingerprint(*half), "big") for half in halves]
        counting = FailingTxn(view._txn)  # type: ignore[arg-type]
        seen = StoreView(counting, view._log, view._state)
        assert seen.count(first, last) == sum(view.count(*half) for half in halves) > 3
        assert int.from_bytes(seen.fingerprint(first, last), "big") == xors[0] ^ xors[1]
        assert counting.calls == 1


def test_query_routed_to_handle_query() -> None:
    store, machine = routes()
    store.execute("say", Echo("hello"))
    assert store.query("Count", Echo()) == Echo("1")
    assert machine.calls[-1] == ("query", "ScopedDag")


def test_unknown_method_rejected() -> None:
    store, _ = routes()
    with pytest.raises(UnknownMethod, match="'Shout'"):
        store.execute("Shout", Echo())
    with pytest.raises(UnknownMethod, match="is a query"):
        store.execute("Count", Echo())
    with pytest.raises(UnknownMethod, match="is a command"):
        store.query("Say", Echo())


def test_a_command_that_refuses_writes_nothing() -> None:
    store, _ = routes()
    before = store.status()
    with pytest.raises(UsageError, match="say something"):
        store.execute("Say", Echo())
    assert store.status() == before


def test_a_stall_stops_the_state_and_not_the_log_and_is_resumed() -> None:
    store, machine = routes()
    store.execute("Say", Echo("one"))
    machine.fails = True
    store.execute("Say", Echo("two"))
    store.execute("Say", Echo("three"))
    status = store.status()
    assert (status.intentions, status.applied) == (5, 3)
    assert status.stall == "this node cannot read it"
    machine.fails = False
    store.execute("Say", Echo("four"))
    assert store.status().stall is None
    assert store.query("Count", Echo()) == Echo("4")


def kv(number: int = 1) -> tuple[WeaverNode, WeaverStore]:
    node = WeaverNode(number)
    return node, node.stores.create("kv")


def test_kv_handle_strict_updates() -> None:
    _, store = kv()
    first = store.execute("Put", PutRequest(b"k", b"v")).hash  # type: ignore[attr-defined]
    again = store.execute("Put", PutRequest(b"k", b"v")).hash  # type: ignore[attr-defined]
    assert first != again
    found = store.query("Get", GetRequest(b"k"))
    assert found == GetResponse(b"v", False)
    with store.read() as view:
        assert view.dag.intention(again).deps == (first,)


def test_dispatch_log() -> None:
    store = WeaverNode(1).stores.create("log")
    hashes = [
        store.execute("Append", AppendRequest(content)).hash  # type: ignore[attr-defined]
        for content in (b"one", b"two")
    ]
    assert [len(hash) for hash in hashes] == [32, 32]
    from datalattice.weaver.appendlog import ReadRequest, ReadResponse

    assert store.query("Read", ReadRequest()) == ReadResponse((b"one", b"two"))
    assert store.query("Read", ReadRequest(1)) == ReadResponse((b"two",))


def test_scan_witness_log_streaming() -> None:
    anna, ours = kv()
    for at in range(10):
        ours.execute("Put", PutRequest(b"%d" % at, b"v"))
    theirs = WeaverNode(2).join(ours)
    envelopes = envelopes_of(ours)
    theirs.ingest(envelopes)
    assert envelopes_of(theirs) == envelopes
    with theirs.read() as view:
        assert [entry.seq for entry in view.entries(3, 4)] == [3, 4, 5, 6]
        assert set(view.tips()) == {anna.key.public_key}


def test_submit_returns_the_hash_and_counts() -> None:
    store = WeaverNode(1).stores.create("core:nullstore")
    before = store.status().intentions
    hash = store.submit(b"data")
    assert store.status().intentions == before + 1
    with store.read() as view:
        assert view.seq_of(hash) == before + 1
        assert view.find(hash[:4])[0].hash == hash


def test_limits_are_checked_before_signing() -> None:
    store = WeaverNode(1).stores.create("core:nullstore")
    before = store.status()
    with pytest.raises(PayloadTooLarge) as large:
        store.submit(bytes(1 << 20))
    assert large.value.max == 1 << 20
    with pytest.raises(TooManyCausalDeps):
        store.submit(b"x", [number.to_bytes(32, "big") for number in range(1, 1026)])
    assert store.status() == before


def test_a_refused_member_refuses_the_call() -> None:
    _, ours = kv()
    theirs = WeaverNode(2).join(ours)
    envelopes = envelopes_of(ours)
    with pytest.raises(IntentionRefused) as refused:
        theirs.ingest([*envelopes, b"garbage"])
    assert (refused.value.index, refused.value.stage) == (len(envelopes), "decode")
    assert theirs.status().intentions == 0


def test_out_of_order_ingest_reports_what_is_missing_and_wakes() -> None:
    _, ours = kv()
    ours.execute("Put", PutRequest(b"k", b"v"))
    theirs = WeaverNode(2).join(ours)
    *first, last = envelopes_of(ours)
    assert theirs.ingest([last]).result == "missing"
    assert theirs.status().floating == 1
    assert theirs.ingest(first).result == "applied"
    assert theirs.status().floating == 0
    assert state_of(theirs) == state_of(ours)


def test_the_collector_of_cycles_does_not_run_while_intentions_are_taken_in() -> None:
    _, ours = kv()
    for number in range(400):
        ours.execute("Put", PutRequest(b"%d" % number, b"v"))
    theirs = WeaverNode(2).join(ours)
    signed = admit(envelopes_of(ours), ours.id)
    runs: list[str] = []

    def note(phase: str, _about: dict[str, int]) -> None:
        runs.append(phase)

    gc.callbacks.append(note)
    try:
        theirs.take(signed)
    finally:
        gc.callbacks.remove(note)
    # Before and behind it may run; without a pause it does about once in a hundred intentions.
    assert runs.count("start") <= 2


def test_a_large_call_gives_the_state_that_a_rebuild_gives() -> None:
    _, ours = kv()
    for number in range(2 * BATCH_RECORDS + 3):
        ours.execute("Put", PutRequest(b"%d" % (number % 7), b"%d" % number))
    theirs = WeaverNode(2).join(ours)
    theirs.ingest(envelopes_of(ours)[:9])
    theirs.ingest(envelopes_of(ours))
    status = theirs.status()
    assert status.applied == status.intentions == ours.status().intentions
    found = state_of(theirs)
    theirs.rebuild()
    assert (theirs.status(), state_of(theirs)) == (status, found)
    assert found == state_of(ours)


# --- events ---------------------------------------------------------------------------------------


def events(subscription: Iterable[Message]) -> list[Message]:
    return list(subscription)


def test_subscribe_stream_tombstone_should_not_resurrect() -> None:
    from datalattice.weaver.kv import DeleteRequest

    _, store = kv()
    with store.subscribe("watch", WatchParams(), wait=False) as watch:
        store.execute("Put", PutRequest(b"k", b"v"))
        store.execute("Delete", DeleteRequest(b"k"))
        assert watch.poll() == [WatchEvent(b"k", b"v"), WatchEvent(b"k", deleted=True)]
        assert watch.poll() == []


def test_watch_basic_prefix_filtering_multiple_watchers() -> None:
    _, store = kv()
    with (
        store.subscribe("watch", WatchParams(b"a"), wait=False) as some,
        store.subscribe("watch", WatchParams(), wait=False) as all_keys,
    ):
        for key in (b"a1", b"b1", b"\xff\x00"):
            store.execute("Put", PutRequest(key, b"v"))
        assert [event.key for event in events(some)] == [b"a1"]  # type: ignore[attr-defined]
        found = [event.key for event in events(all_keys)]  # type: ignore[attr-defined]
        assert found == [b"a1", b"b1", b"\xff\x00"]


def test_watch_gap_race() -> None:
    """What is written after `subscribe` returned is delivered, whatever thread writes it."""
    _, store = kv()
    with store.subscribe("watch", WatchParams(), timeout=LIMIT_S) as watch:
        writer = threading.Thread(target=store.execute, args=("Put", PutRequest(b"k", b"v")))
        writer.start()
        assert next(watch) == WatchEvent(b"k", b"v")
        writer.join()


def test_follow_delivers_what_others_wrote() -> None:
    ours = WeaverNode(1).stores.create("log")
    theirs = WeaverNode(2).join(ours)
    ours.execute("Append", AppendRequest(b"rain"))
    with theirs.subscribe("follow", FollowParams(), wait=False) as follow:
        exchange(ours, theirs)
        assert follow.poll() == [LogEvent(b"rain")]


def test_a_slow_subscriber_skips_the_oldest_and_counts_them() -> None:
    store = WeaverNode(1).stores.create("log")
    with store.subscribe("follow", FollowParams(), wait=False) as follow:
        for at in range(EVENTS_MAX + 3):
            store.submit(b"%d" % at)
        found = follow.poll()
        assert follow.skipped == 3
    assert found[0] == LogEvent(b"3")
    assert len(found) == EVENTS_MAX


def test_an_own_intention_is_announced_once_and_a_foreign_one_is_not() -> None:
    _, ours = kv()
    theirs = WeaverNode(2).join(ours)
    announced: list[SignedIntention] = []
    end = theirs.on_intention(announced.append)
    theirs.ingest(envelopes_of(ours))
    assert announced == []
    hash = theirs.submit(b"")
    assert [signed.hash for signed in announced] == [hash]
    end()
    theirs.submit(b"")
    assert len(announced) == 1


def test_a_change_of_another_process_is_seen_by_looking() -> None:
    node, store = kv()
    beside = WeaverNode(1, node.engine).stores.open(store.id)
    changes: list[int] = []
    beside.on_change(changes.append)
    beside.look()
    changes.clear()
    assert not beside.look()
    store.execute("Put", PutRequest(b"k", b"v"))
    assert beside.look()
    assert len(changes) == 1
    assert beside.query("Get", GetRequest(b"k")) == GetResponse(b"v", False)


def test_a_closed_store_refuses() -> None:
    node, store = kv()
    node.stores.close(store.id)
    for call in (
        store.status,
        lambda: store.submit(b"x"),
        lambda: store.query("Get", GetRequest(b"k")),
    ):
        with pytest.raises(StoreClosed):
            call()


# --- acknowledgements -----------------------------------------------------------------------------


def pair() -> tuple[WeaverNode, WeaverStore, WeaverNode, WeaverStore]:
    anna, ours = kv()
    bert = WeaverNode(2)
    theirs = bert.join(ours)
    exchange(ours, theirs)
    return anna, ours, bert, theirs


def test_an_ack_names_what_was_seen_and_mutual_acks_end() -> None:
    _, ours, _, theirs = pair()
    hash = theirs.acknowledge()
    assert hash is not None
    with theirs.read() as view:
        ack = view.dag.intention(hash)
        assert ack.payload == b""
        assert len(ack.deps) == 1
    assert theirs.acknowledge() is None
    exchange(ours, theirs)
    assert ours.acknowledge() is None  # an ack is no content


def test_a_burst_gives_one_ack_five_seconds_after_its_last_intention() -> None:
    _, ours, bert, theirs = pair()
    for at in range(5):
        ours.execute("Put", PutRequest(b"%d" % at, b"v"))
        theirs.ingest(envelopes_of(ours))
        bert.clock.now += ACK_DELAY_MS // 2
        assert theirs.tick() is None
    bert.clock.now += ACK_DELAY_MS
    assert theirs.tick() is not None
    assert theirs.tick() is None


def test_a_pending_ack_is_remembered_over_a_restart() -> None:
    _, _, bert, theirs = pair()
    again = bert.restarted()
    store = again.stores.open(theirs.id)
    again.clock.now += 2 * ACK_DELAY_MS
    again.stores.tick()
    assert store.status().authors == 2


def test_an_own_write_arms_no_timer() -> None:
    node, store = kv()
    node.clock.now += 2 * ACK_DELAY_MS
    assert store.tick() is None


# --- forks and stamps -----------------------------------------------------------------------------


def test_two_first_intentions_of_one_author_are_a_fork_and_no_stall() -> None:
    _, store = kv()
    author = KeyPair(b"\x55" * 32)
    branches = [
        Intention(
            author.public_key,
            Hlc(1_000, at),
            store.id,
            ZERO_HASH,
            (),
            UniversalOp(app_data=b"").encode(),
        ).sign(author)
        for at in range(2)
    ]
    store.ingest([signed.encode() for signed in branches])
    status = store.status()
    assert (status.forks, status.floating) == (1, 1)
    assert status.applied == status.intentions
    with store.read() as view:
        (fork,) = view.forks()
    assert {fork.witnessed.hash, fork.other.hash} == {signed.hash for signed in branches}


def test_1000_submissions_under_a_frozen_clock_have_increasing_stamps() -> None:
    class Frozen:
        def now_ms(self) -> int:
            return 5_000

    from datalattice.crypto import SeededEntropy
    from datalattice.engine import GroupCommit, MemoryEngine
    from datalattice.weaver import STORE_TABLES, Stores

    stores = Stores(
        GroupCommit(MemoryEngine(STORE_TABLES)),
        KeyPair(b"\1" * 32),
        Frozen(),
        SeededEntropy(1),
    )
    store = stores.create("log")
    for at in range(1_000):
        store.submit(b"%d" % at)
    with store.read() as view:
        stamps = [entry.signed.intention.stamp for entry in view.entries()]
        assert stamps == sorted(set(stamps))
        assert sum(1 for _ in view.data.scan()) == 1_000


def test_threads_that_write_at_once_lose_nothing() -> None:
    store = WeaverNode(1).stores.create("core:nullstore")
    before = store.status().intentions
    failed: list[BaseException] = []

    def write(number: int) -> None:
        try:
            for at in range(25):
                store.execute("Write", WriteRequest(b"%d-%d" % (number, at)))
        except BaseException as error:  # noqa: BLE001 - reported by the test
            failed.append(error)

    threads: list[Any] = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    status = store.status()
    assert status.intentions == before + 200
    assert status.applied == status.intentions
    assert status.forks == 0


def say(store: WeaverStore, *texts: str) -> Callable[[], Any]:
    return partial(store.execute_all, "Say", [Echo(text) for text in texts])


def test_writes_that_come_together_are_written_one_after_the_other() -> None:
    node, store = kv()
    puts = [partial(store.execute, "Put", PutRequest(b"k", b"%d" % i)) for i in range(3)]
    other = KeyPair(b"\x09" * 32)
    awaited = Intention.build(other.public_key, Hlc(1, 0), store.id, ZERO_HASH, [], b"").sign(other)
    answers = call_together(node.commits, [*puts, partial(store.submit, b""), puts[0]])
    hashes = [getattr(answer, "hash", answer) for answer in answers]
    with store.read() as view:
        found = [entry.signed for entry in view.entries(view.last_seq() - 4)]
        # Each command saw what the one before had written: no conflict, and one chain.
        assert [signed.hash for signed in found] == hashes
        assert [signed.intention.deps for signed in found[1:3]] == [(hashes[0],), (hashes[1],)]
        assert all(signed.verify() for signed in found)
        assert HeadReader(view.data).heads(b"k") == [hashes[4]]
        assert view.fsck(3) == []
    rows = state_of(store)
    store.rebuild()
    assert state_of(store) == rows
    # What waits for another intention waits with all that its author writes behind it.
    waiting: list[Any] = [partial(store.submit, b"", [awaited.hash]), puts[1], puts[2]]
    for outcome in call_together(node.commits, waiting):
        assert not isinstance(outcome, Exception)
    assert (store.status().floating, store.status().intentions) == (3, 7)
    store.ingest([awaited.encode()])
    status = store.status()
    assert (status.floating, status.intentions, status.applied, status.forks) == (0, 11, 11, 0)
    with store.read() as view:
        assert view.fsck(3) == []


def test_a_write_that_fails_is_no_one_elses() -> None:
    store, machine = routes()
    before = store.status().intentions
    told: list[SignedIntention] = []
    store.on_intention(told.append)
    group = store._commits
    for calls in (
        [say(store, "a"), say(store, ""), say(store, "b")],  # refused before anything is written
        [say(store, "c"), say(store, "d", ""), say(store, "e")],  # and after
    ):
        first, refused, last = call_together(group, calls)
        assert isinstance(refused, UsageError)
        assert (len(first), len(last)) == (1, 1)
    status = store.status()
    assert (status.intentions, status.applied) == (before + 4, before + 4)
    assert [one.intention.payload[2:] for one in told] == [b"a", b"b", b"c", b"e"]
    machine.fails = True  # a state that stalls stops no one's write
    assert all(
        not isinstance(one, Exception) for one in call_together(group, [say(store, "f")] * 2)
    )
    assert (store.status().intentions, store.status().applied) == (before + 6, before + 4)
    machine.fails = False
    call_together(group, [say(store, "g")] * 2)
    assert store.status().applied == before + 8


class Replies(Machine):
    """Each command looks at what the one before it wrote."""

    kind = "test:replies"

    def apply(self, op: Op, state: StateWriter, dag: Dag) -> Iterable[Message]:
        state.put(b"last", op.hash)
        return ()

    @command
    def reply(self, request: Echo, state: StateReader, dag: Dag) -> Proposal[Written]:
        last = state.get(b"last")
        if last is None:
            return Proposal(b"0")
        assert not hasattr(state, "put")  # a command reads
        before = dag.intention(last)
        deps = [*before.deps, last]
        assert dag.path(deps[0], last) == ([] if deps[0] == last else [last])
        return Proposal(b"%d" % (int(before.payload) + 1), [last])


def test_a_command_sees_the_operations_that_were_written_in_its_transaction() -> None:
    node = WeaverNode(1, machines=[Replies])
    store = node.stores.create("test:replies")
    call_together(node.commits, [partial(store.execute, "Reply", Echo())] * 3)
    store.execute_all("Reply", [Echo()] * 3)
    with store.read() as view:
        payloads = [entry.signed.intention.payload[2:] for entry in view.entries()]
    assert payloads[-6:] == [b"%d" % i for i in range(6)]


# --- the past -----------------------------------------------------------------------------------

_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, 2), st.sets(st.sampled_from(b"ab"), min_size=1)),
        st.tuples(st.just("send"), st.integers(0, 2), st.integers(0, 2)),
    ),
    max_size=14,
)


@given(_STEPS)
def test_the_heads_of_a_key_at_a_record_are_found_after_later_ones(steps: list[Any]) -> None:
    nodes = [WeaverNode(number) for number in (1, 2, 3)]
    first = nodes[0].stores.create("kv")
    replicas = [first, *[node.join(first) for node in nodes[1:]]]
    watcher = WeaverNode(4).join(first)
    heads: dict[tuple[bytes, int], list[bytes]] = {}
    for kind, who, what in steps:
        if kind == "send":
            replicas[what].ingest(envelopes_of(replicas[who]))
            continue
        ops = tuple(Operation(put=PutOp(bytes([key]), b"v")) for key in sorted(what))
        replicas[who].execute("Batch", BatchRequest(ops))
        watcher.ingest(envelopes_of(replicas[who]))
        with watcher.read() as view:
            for key in (b"a", b"b"):
                heads[key, view.last_seq()] = HeadReader(view.data).heads(key)
    with watcher.read() as view:
        for (key, seq), expected in heads.items():
            assert [op.hash for op in heads_at(view, key, seq)] == expected


def test_events_of_what_another_process_writes_are_delivered_in_order() -> None:
    node, store = kv()
    other = WeaverNode(1, node.engine).stores.open(store.id)
    with store.subscribe("watch", WatchParams(), timeout=LIMIT_S) as watch:
        other.execute("Put", PutRequest(b"theirs", b"1"))
        store.execute("Put", PutRequest(b"ours", b"2"))
        other.execute("Put", PutRequest(b"theirs", b"3"))
        assert watch.poll() == [
            WatchEvent(b"theirs", b"1"),
            WatchEvent(b"ours", b"2"),
            WatchEvent(b"theirs", b"3"),
        ]
        other.execute("Put", PutRequest(b"theirs", b"4"))
        store.look()  # as the watcher of a folder does
        assert next(watch) == WatchEvent(b"theirs", b"4")


def test_events_are_recorded_from_the_first_subscription_on_and_the_newest_are_kept() -> None:
    node, store = kv()
    store.execute("Put", PutRequest(b"k", b"before"))
    with node.stores.view(store.id) as view:
        assert (view.has_events, view.last_event) == (False, 0)
    store.subscribe("watch", WatchParams(), wait=False).close()
    store.execute_all("Put", [PutRequest(b"k", b"%d" % at) for at in range(EVENTS_MAX + 7)])
    with node.stores.view(store.id) as view:
        found = list(view.events(0, ""))
    assert [number for number, _ in found] == list(range(8, EVENTS_MAX + 8))
    assert found[-1][1] == WatchEvent(b"k", b"%d" % (EVENTS_MAX + 6))


# --- snapshots ------------------------------------------------------------------------------------


def test_a_restored_snapshot_is_brought_up_to_the_log_without_events() -> None:
    store = WeaverNode(1).stores.create("kv")
    store.execute("Put", PutRequest(b"a", b"1"))
    with store.read() as view:
        saved = list(view.snapshot())
    store.execute("Put", PutRequest(b"b", b"2"))
    before = state_of(store)
    events = store.subscribe("watch", WatchParams(), wait=False)
    assert store.restore(saved).fits
    assert state_of(store) == before
    assert list(events) == []
    damaged = b"".join(saved)[:-1] + b"?"
    with pytest.raises(SnapshotRefused):
        store.restore([damaged])
    assert state_of(store) == before


def test_a_snapshot_of_another_node_is_dropped_and_the_state_made_from_the_log() -> None:
    store = WeaverNode(1).stores.create("kv")
    store.execute("Put", PutRequest(b"a", b"1"))
    other = WeaverNode(2).join(store)
    exchange(store, other)
    other.execute("Put", PutRequest(b"b", b"2"))
    with other.read() as view:
        saved = list(view.snapshot())
    before = state_of(store)
    assert not store.restore(saved).fits
    assert state_of(store) == before


# --- wrong calls ----------------------------------------------------------------------------------


@pytest.mark.parametrize("envelopes", [["text"], [None], b"one envelope"])
def test_what_is_not_an_envelope_is_refused_by_its_type(envelopes: Any) -> None:
    store = WeaverNode(1).stores.create("kv")
    with pytest.raises(TypeMismatch, match="an envelope is bytes, got"):
        store.ingest(envelopes)


@pytest.mark.parametrize(("payload", "deps"), [("text", []), (b"", ["a" * 32]), (b"", b"a" * 32)])
def test_what_is_not_bytes_is_not_submitted(payload: Any, deps: Any) -> None:
    store = WeaverNode(1).stores.create("core:nullstore")
    with pytest.raises(TypeMismatch, match="a payload or dependency is bytes, got"):
        store.submit(payload, deps)
    assert store.status().floating == 0
