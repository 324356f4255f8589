"""Peers with the habits of the reference node, over payloads passed by hand."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from datalattice.apps.kv import Database
from datalattice.apps.queue import Queue, QueueLattice, Topics
from datalattice.cells import (
    Index,
    Keyword,
    Map,
    Signed,
    Value,
    Vector,
    decode_message,
    same,
    to_cell,
    value_hash,
)
from datalattice.crypto import KeyPair
from datalattice.cursors import RootLattice
from datalattice.lattice import Lattice, MergeContext, get_in, root_lattice
from datalattice.limits import MESSAGE_BYTES_MAX
from datalattice.store import MemoryStore
from datalattice.sync import (
    BROADCAST_DELAY_MS,
    ROOT_SYNC_INTERVAL_MS,
    Dialect,
    LatticeProtocol,
    LatticeReplica,
    Pull,
    ReplicaLimits,
    Replicator,
    Standing,
)
from datalattice.sync.partner import COMPLETE_BYTES_PER_S
from datalattice.testing.clocks import StoppedClock, TickingClock
from datalattice.testing.reference import ReferencePeer, ReferenceQueue
from datalattice.wire import (
    Announcement,
    DataRequest,
    Query,
    decode_payload,
    encode_ping,
)

OWN, THEIRS, OTHER = (KeyPair(bytes([n]) * 32) for n in (1, 2, 3))
DATA, QUEUE, STAMPS = Keyword("data"), Keyword("queue"), Keyword("meta-stamps")
VECTORS = Path(__file__).parents[2] / "vectors" / "lattice-queue.json"
MADE, ACCEPTED = "theirs", "ours"
"""Connections: the one that the reference made, the one that our node made to it."""


class Pair:
    """Our node and a reference peer. Frames wait in `to_us` until `run` passes them on."""

    def __init__(
        self,
        *,
        frame_max: int = MESSAGE_BYTES_MAX,
        lattice: Lattice | None = None,
        limits: ReplicaLimits | None = None,
    ) -> None:
        self.clock = TickingClock(1_000)
        self.peer = ReferencePeer(THEIRS, self.clock.now_ms)
        self.store = MemoryStore()
        context = MergeContext(key_pair=OWN)
        lattice = lattice or root_lattice()
        self.replica = LatticeReplica(
            self.store, lattice, context, frame_max=frame_max, limits=limits
        )
        dialect = Dialect(message_bytes_max=frame_max)
        self.node = Replicator(self.replica, LatticeProtocol(self.clock, dialect, identity=OWN))
        self.now = 0
        self.said: list[bytes] = []
        self.open: set[str] = set()
        self.deaf = False
        self.notes: list[str] = []
        self.finished: list[tuple[object, str | None]] = []

    def dial(self) -> None:
        self.open.add(ACCEPTED)
        self.node.open(ACCEPTED, self.now, outbound=True)
        self.run()

    def be_dialled(self) -> None:
        self.open.add(MADE)
        self.node.open(MADE, self.now, outbound=False)
        self.hear(MADE, self.peer.challenge())

    def hear(self, connection: str, payload: bytes) -> None:
        self.node.receive(connection, payload, self.now)
        self.run()

    def run(self) -> None:
        """Pass on what is said until nobody says anything."""
        while True:
            effects = self.node.take_effects()
            self.notes += [note.kind for note in effects.notes]
            self.finished += effects.finished
            assert effects.closes == []
            if not effects.sends:
                return
            for connection, payload in effects.sends:
                self.said.append(payload)
                self.node.written(connection, 1, self.now)
                if self.deaf:
                    continue
                answers, broadcast = self.peer.heard(payload, accepted=connection == ACCEPTED)
                for answer in answers:
                    self.node.receive(connection, answer, self.now)
                self._broadcast(broadcast)

    def _broadcast(self, payloads: list[bytes]) -> None:
        if MADE in self.open:
            for payload in payloads:
                self.node.receive(MADE, payload, self.now)

    def pass_time(self, ms: int) -> None:
        end = self.now + ms
        while (due := self.node.deadline_ms) is not None and due <= end:
            self.now = max(self.now, due)
            self.node.tick(self.now)
            self.run()
        self.now = end

    def publish(self) -> None:
        self.node.publish(self.now)
        self.run()

    def write_there(self, change: Callable[[Value], Value]) -> None:
        self._broadcast(self.peer.write(change))
        self.run()

    @property
    def topics(self) -> Topics:
        return Topics.at(self.replica.cursor, OWN.public_key, self.clock)

    @property
    def values(self) -> list[Announcement]:
        messages = [decode_payload(payload)[0] for payload in self.said]
        return [one for one in messages if isinstance(one, Announcement)]

    @property
    def queries(self) -> list[tuple[Value, ...]]:
        messages = [decode_payload(payload)[0] for payload in self.said]
        return [one.path for one in messages if isinstance(one, Query)]

    @property
    def standing(self) -> Standing:
        standings = self.node.standings
        return next(one for one in standings if one.id == ACCEPTED)

    def assert_equal(self) -> None:
        assert self.peer.incomplete == []
        assert self.peer.bare == []
        assert self.peer.announced_hash == self.replica.announced_hash
        assert self.peer.queues.foreign == []


def noise(seed: int, size: int) -> bytes:
    return random.Random(seed).randbytes(size)


def content(*values: object) -> Callable[[Value], Value]:
    entries = Index.of([(value_hash(to_cell(v)), to_cell(v)) for v in values])

    def put(root: Value) -> Value:
        return root_lattice().merge(root, Index.of([(DATA, entries)]))

    return put


def offering(keys: KeyPair, *values: object) -> Callable[[Value], Value]:
    """Return what a user of the reference does: append to a queue of its own, replace metadata."""

    def write(root: Value) -> Value:
        cursor = RootLattice(root_lattice(), root, MergeContext(key_pair=keys))
        topics = Topics.at(cursor, keys.public_key, StoppedClock(500))
        topics.partition("theirs", 0).offer_many(values)
        topics.topic("theirs").set_meta("writer", "reference")
        return cursor.get()

    return write


def test_it_is_told_everything_in_values_that_need_nothing_else() -> None:
    pair = Pair()
    pair.topics.partition("t", 0).offer_many([f"record {i}" * 20 for i in range(500)])
    Database.at(pair.replica.cursor, OWN.public_key, "shop", pair.clock)["k"] = "v" * 500
    pair.replica.cursor.update(content(b"x" * 9_000, b"y"))
    pair.publish()
    pair.dial()
    pair.assert_equal()


def test_it_is_never_told_a_root_alone() -> None:
    pair = Pair()
    pair.topics.partition("t", 0).offer_many(["r" * 50] * 100)
    pair.publish()
    pair.dial()
    for _ in range(20):
        pair.topics.partition("t", 0).offer("more")
        pair.publish()
        pair.pass_time(ROOT_SYNC_INTERVAL_MS // 10)
    assert pair.values
    assert pair.peer.incomplete == []
    assert pair.peer.bare == []
    pair.assert_equal()


def test_what_it_has_is_asked_at_every_root_sync() -> None:
    pair = Pair()
    pair.dial()
    pair.write_there(offering(THEIRS, "a", "b"))
    pair.pass_time(ROOT_SYNC_INTERVAL_MS - 1)
    assert pair.queries == [()]
    pair.pass_time(1)
    assert pair.queries == [(), ()]
    pair.assert_equal()
    pair.pass_time(BROADCAST_DELAY_MS)
    assert pair.standing.equal
    pair.write_there(offering(THEIRS, "c"))
    pair.pass_time(ROOT_SYNC_INTERVAL_MS)
    pair.assert_equal()


def test_a_busy_writer_asks_all_the_same() -> None:
    pair = Pair()
    pair.dial()
    pair.write_there(offering(THEIRS, "a"))
    for _ in range(40):
        pair.topics.partition("t", 0).offer("more")
        pair.publish()
        pair.pass_time(1_000)
    pair.publish()
    pair.pass_time(ROOT_SYNC_INTERVAL_MS)
    pair.assert_equal()


def test_only_what_it_lacks_is_sent_slot_by_slot() -> None:
    pair = Pair()
    pair.topics.partition("t", 0).offer_many(["r" * 50] * 100)
    pair.replica.cursor.update(content(*(bytes([n]) * 200 for n in range(200))))
    pair.publish()
    pair.dial()
    pair.pass_time(1_000)
    del pair.said[:]
    pair.replica.cursor.update(content(b"one more" * 30))
    pair.publish()
    pair.pass_time(1_000)
    (message,) = pair.values
    assert message.path == (DATA,)
    assert isinstance(message.value, Index)
    assert len(message.value) == 1
    assert sum(map(len, pair.said)) < 500


def test_what_it_did_not_take_is_told_again_after_it_was_asked() -> None:
    pair = Pair()
    pair.dial()
    pair.deaf = True
    pair.topics.partition("t", 0).offer("lost on its way")
    pair.publish()
    pair.pass_time(1_000)
    assert not pair.standing.equal
    pair.deaf = False
    pair.pass_time(ROOT_SYNC_INTERVAL_MS)
    pair.assert_equal()
    assert not pair.standing.equal  # nothing but its own word says that it took it
    pair.pass_time(ROOT_SYNC_INTERVAL_MS)
    assert pair.standing.equal


def test_its_broadcasts_are_taken_and_gaps_asked_where_it_answers() -> None:
    pair = Pair()
    pair.dial()
    pair.be_dialled()
    before = len(pair.said)
    pair.write_there(offering(THEIRS, *(f"long {i}" * 30 for i in range(50))))
    pair.assert_equal()
    # A root alone, as it says it now and then: the cells are asked for on our connection.
    fresh = Pair()
    fresh.be_dialled()
    fresh.dial()
    fresh.peer.write(offering(THEIRS, *(f"long {i}" * 30 for i in range(50))))
    (root,) = fresh.peer.root_sync()
    fresh.hear(MADE, root)
    fresh.assert_equal()
    kinds = [type(decode_payload(one)[0]) for one in fresh.said]
    assert DataRequest in kinds
    assert DataRequest not in [type(decode_payload(one)[0]) for one in pair.said[:before]]


def test_a_bare_value_of_anybody_else_is_no_message() -> None:
    pair = Pair()
    pair.dial()
    stranger = ReferencePeer(OTHER, pair.clock.now_ms)
    (root,) = stranger.write(offering(OTHER, "a"))
    pair.open.add(MADE)
    pair.node.open(MADE, 0, outbound=False)
    for payload in (root, stranger.challenge(), root):
        pair.hear(MADE, payload)
    assert pair.notes.count("ignored") == 2
    assert get_in(pair.replica.root, [QUEUE, OTHER.public_key]) is None


def test_whoever_claims_its_key_and_proves_nothing_stays_a_stranger() -> None:
    pair = Pair()
    pair.dial()
    liar = ReferencePeer(OTHER, pair.clock.now_ms)
    (root,) = liar.write(offering(OTHER, "a"))
    pair.node.open("liar", 0, outbound=False)
    pair.node.receive("liar", pair.peer.challenge(), 0)  # seen elsewhere, and said again
    pair.node.take_effects()
    pair.node.receive("liar", root, 0)
    assert [note.kind for note in pair.node.take_effects().notes] == ["ignored"]


def test_its_merge_of_our_states_is_the_newer_one_metadata_included() -> None:
    pair = Pair()
    pair.dial()
    pair.be_dialled()
    topic = pair.topics.topic("t")
    for step in range(12):
        topic.set_meta("position", step)
        topic.partition(0).set_meta("owner", f"worker {step % 3}")
        topic.partition(0).offer(step)
        pair.publish()
        if step % 4 == 0:
            pair.write_there(offering(THEIRS, step))
        pair.pass_time(BROADCAST_DELAY_MS)
    pair.pass_time(ROOT_SYNC_INTERVAL_MS)
    pair.assert_equal()
    slot = get_in(pair.peer.root, [QUEUE, OWN.public_key])
    assert isinstance(slot, Signed)
    assert slot.public_key == OWN.public_key
    assert STAMPS in get_in(slot.value, ["t", Keyword("meta")])  # type: ignore[operator]


def test_large_values_go_in_several_messages_below_the_frame_limit() -> None:
    pair = Pair(frame_max=100_000)
    blobs = [noise(n, 30_000) for n in range(40)]
    pair.replica.cursor.update(content(*blobs))
    pair.publish()
    pair.dial()
    pair.pass_time(10_000)
    sizes = [len(one) for one in pair.said if isinstance(decode_payload(one)[0], Announcement)]
    assert len(sizes) >= 12
    assert max(sizes) <= 100_000
    pair.assert_equal()


def test_what_does_not_fit_into_a_frame_is_named_and_the_rest_goes() -> None:
    pair = Pair(frame_max=100_000)
    pair.replica.cursor.update(content(noise(1, 200_000), noise(2, 500)))
    pair.topics.partition("t", 0).offer_many(["long record " * 20] * 2 + list(range(5)))
    pair.publish()
    pair.dial()
    pair.pass_time(1_000)
    assert pair.notes.count("too-large") == 1
    there = get_in(pair.peer.root, [DATA])
    assert isinstance(there, Index)
    assert len(there) == 1
    assert get_in(pair.peer.root, [QUEUE, OWN.public_key]) is not None
    pair.pass_time(ROOT_SYNC_INTERVAL_MS)
    assert pair.notes.count("too-large") == 2  # once for each time that it was asked


def test_more_than_one_push_goes_on_where_it_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datalattice.sync.lattice.spelling.BUNDLE_BYTES", 50_000)
    pair = Pair(limits=ReplicaLimits(push_bytes_max=100_000))
    pair.replica.cursor.update(content(*(noise(n, 30_000) for n in range(40))))
    pair.publish()
    pair.dial()
    first = len(pair.values)
    assert 1 <= first < 40
    pair.pass_time(40 * BROADCAST_DELAY_MS)
    pair.assert_equal()
    assert len(pair.values) == 40


def test_long_values_wait_in_proportion() -> None:
    pair = Pair()
    pair.dial()
    pair.pass_time(1_000)
    pair.topics.partition("t", 0).offer(noise(1, 5_000_000))
    pair.publish()
    sent = sum(len(one) for one in pair.said)
    pair.topics.partition("t", 0).offer("behind it")
    del pair.said[:]
    pair.publish()
    pair.pass_time(1_000 * 5_000_000 // COMPLETE_BYTES_PER_S - 1)
    assert sent > 5_000_000
    assert pair.values == []
    pair.pass_time(1_000)
    assert len(pair.values) == 1
    pair.assert_equal()


def test_a_small_frame_limit_asks_section_by_section() -> None:
    pair = Pair(frame_max=200_000)
    pair.peer.write(content(*(noise(n, 15_000) for n in range(10))))
    pair.peer.write(offering(THEIRS, *("long" * 40 for _ in range(500))))
    pair.dial()
    assert () not in pair.queries
    assert {(DATA,), (QUEUE,)} < set(pair.queries)
    assert (Keyword("local"),) not in pair.queries
    pair.pass_time(1_000)
    pair.assert_equal()
    assert pair.standing.equal
    asked = len(pair.queries)
    pair.node.pull(ACCEPTED, Pull("pull"), pair.now)
    pair.run()
    assert len(pair.queries) == 2 * asked
    assert pair.finished == [("pull", None)]


def test_a_pull_ends_when_all_is_here() -> None:
    pair = Pair()
    pair.dial()
    pair.peer.write(offering(THEIRS, "a"))
    pair.node.pull(ACCEPTED, Pull("pull"), pair.now)
    pair.run()
    assert pair.finished == [("pull", None)]
    assert get_in(pair.replica.root, [QUEUE, THEIRS.public_key]) is not None


def test_who_says_that_it_is_a_peer_of_our_kind_is_told_like_one() -> None:
    pair = Pair()
    pair.topics.partition("t", 0).offer("a")
    pair.publish()
    pair.node.open("one", 0, outbound=True)
    pair.node.receive("one", encode_ping(7, Keyword("PEER"), Keyword("LP")), 0)
    messages = [decode_payload(payload)[0] for _, payload in pair.node.take_effects().sends]
    (root,) = [one for one in messages if isinstance(one, Announcement)]
    assert root.path == ()


def queue_merges() -> list[dict[str, Any]]:
    vectors = json.loads(VECTORS.read_text())["vectors"]
    return [one for one in vectors if one["kind"] == "merge" and one["lattice"]["type"] == "queue"]


@pytest.mark.parametrize("vector", queue_merges(), ids=lambda one: one["id"])
def test_the_script_merges_queues_as_the_reference_does(vector: dict[str, Any]) -> None:
    own, other = (
        None if vector[side] is None else decode_message(bytes.fromhex(vector[side]["enc"]))
        for side in ("own", "other")
    )
    expected = vector.get("merged_java", vector["merged"])
    if QueueLattice().check_foreign(other):
        assert value_hash(ReferenceQueue().merge(own, other)).hex() == expected["hash"]


def test_the_reference_takes_a_leaders_newer_state_as_it_is() -> None:
    clock = TickingClock(1_000)
    queue = Queue.create(clock)
    states = [queue.cursor.get()]
    for step in range(30):
        if step % 3 == 0:
            queue.offer(step)
        elif step % 7 == 0:
            queue.truncate(step // 3)
        else:
            queue.set_meta(f"key {step % 4}", step)
        states.append(queue.cursor.get())
    for older, newer in pairwise(states):
        assert same(ReferenceQueue().merge(older, newer), newer)
        assert same(QueueLattice().merge(older, newer), newer)
    newest = states[-1]
    assert isinstance(newest, Vector)
    assert isinstance(newest[1], Map)
    assert STAMPS in newest[1]
