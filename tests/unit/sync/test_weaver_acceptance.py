"""Acceptance of Weaver's replication, under the names of the reference: over memory links."""

from __future__ import annotations

import pytest

import datalattice.sync.conversation as talk
from datalattice.clock import Hlc
from datalattice.crypto import KeyPair
from datalattice.sync import BROADCAST_DELAY_MS, ROOT_SYNC_INTERVAL_MS
from datalattice.sync.weaver import SEND_LIMITS, SILENCE_MS, SendLimits
from datalattice.testing.mesh_kit import MESH_STORE, WeaverMesh, message_name
from datalattice.weaver import ZERO_HASH, Intention, SignedIntention

AUTHOR = KeyPair(b"one who writes, and has no node.")


def mesh_of(size: int, limits: SendLimits = SEND_LIMITS) -> WeaverMesh:
    mesh = WeaverMesh(size, limits=limits)
    mesh.connect_all()
    return mesh


def lose_news(mesh: WeaverMesh, receiver: int, count: int) -> None:
    """Lose the next frames with intentions to a node."""
    left = count

    def lose(_sender: int, to: int, payload: bytes) -> bool:
        nonlocal left
        if to != receiver or left == 0 or message_name(payload) != "news":
            return False
        left -= 1
        return True

    mesh.lose = lose


def chain(length: int) -> list[SignedIntention]:
    made: list[SignedIntention] = []
    for number in range(length):
        prev = made[-1].hash if made else ZERO_HASH
        stamp = Hlc(1_000 + number, 0)
        intention = Intention(AUTHOR.public_key, stamp, MESH_STORE, prev, (), b"%d" % number)
        made.append(intention.sign(AUTHOR))
    return made


# --- causal_sync ------------------------------------------------------------------------------


def test_sync_preserves_causal_order_in_witness_log() -> None:
    mesh = WeaverMesh(2)
    hashes = [mesh.nodes[0].store.submit(b"first")]
    for number in range(2):
        hashes.append(mesh.nodes[0].store.submit(b"%d" % number, hashes[-1:]))
    mesh.connect_all()
    assert mesh.nodes[1].log() == hashes


# --- gap_fill, gap_handling -------------------------------------------------------------------


def test_explicit_sync() -> None:
    mesh = mesh_of(2)
    lose_news(mesh, 1, 1)
    hash = mesh.write(0, b"one")
    assert mesh.nodes[1].get(hash) is None
    mesh.reconcile(1, 0)
    assert mesh.nodes[1].get(hash) is not None
    assert mesh.nodes[1].finished == [(0, None)]


def test_sync_multiple_entries() -> None:
    mesh = mesh_of(2)
    lose_news(mesh, 1, 7)
    for number in range(7):
        mesh.write(0, b"%d" % number)
        mesh.pass_time(BROADCAST_DELAY_MS)
    mesh.reconcile(1, 0)
    assert mesh.is_equal()
    assert len(mesh.nodes[1].log()) == 7


def test_single_gap() -> None:
    """The third without the second is fetched as a chain, in one request."""
    mesh = mesh_of(2)
    mesh.write(0, b"first")
    mesh.pass_time(500)
    lose_news(mesh, 1, 1)
    mesh.write(0, b"second")
    mesh.pass_time(500)
    mesh.sent.clear()
    mesh.write(0, b"third")
    mesh.pass_time(500)
    assert mesh.is_equal()
    assert mesh.sent["fetch_chain"] == 1
    assert mesh.sent["fetch_intentions"] == 0


@pytest.mark.parametrize(
    ("gap", "chains"), [(9, 1), (31, 1)], ids=["longer_gap", "as long as a chain"]
)
def test_longer_gap(gap: int, chains: int) -> None:
    mesh = mesh_of(2)
    mesh.lose = lambda _sender, _receiver, payload: message_name(payload) == "news"
    for number in range(gap):
        mesh.write(0, b"%d" % number)
        mesh.pass_time(BROADCAST_DELAY_MS)
    mesh.lose = lambda *_: False
    mesh.sent.clear()
    mesh.write(0, b"arrives")
    mesh.pass_time(500)
    assert mesh.is_equal()
    assert mesh.sent["fetch_chain"] == chains


def test_large_gap_detection() -> None:
    """A gap beyond what a chain may have is filled from its end, or by a comparison."""
    mesh = mesh_of(2)
    mesh.lose = lambda _sender, _receiver, payload: message_name(payload) == "news"
    for number in range(49):
        mesh.write(0, b"%d" % number)
        mesh.pass_time(BROADCAST_DELAY_MS)
    mesh.lose = lambda *_: False
    mesh.write(0, b"arrives")
    mesh.pass_time(3_000)
    assert mesh.is_equal()
    assert len(mesh.nodes[1].log()) == 50


def test_network_healing_via_alternative_peer() -> None:
    """The origin is gone when its gap is noticed; another peer has the chain."""
    mesh = mesh_of(3)
    lost = mesh.nodes[0].store.submit(b"reaches one peer alone")
    mesh.lose = lambda _sender, receiver, _payload: receiver == 1
    mesh.publish(0)
    mesh.pass_time(500)
    assert mesh.nodes[2].get(lost) is not None
    assert mesh.nodes[1].get(lost) is None
    mesh.lose = lambda sender, receiver, payload: (
        {sender, receiver} == {0, 1} and message_name(payload) == "fetch_chain"
    )
    mesh.write(0, b"the next one")
    mesh.isolate(0)
    mesh.pass_time(2 * SILENCE_MS)
    assert mesh.nodes[1].get(lost) is not None
    assert mesh.is_equal([1, 2])


def test_tip_zero_fallback() -> None:
    """A node that knows nothing of an author recovers its chain from its first intention on."""
    made = chain(6)
    mesh = mesh_of(2)
    for node in mesh.nodes:
        node.admits.add(AUTHOR.public_key)
        node.replica.peers_changed()
    mesh.lose = lambda *_: True
    mesh.nodes[0].store.ingest([one.encode() for one in made[:-1]])
    mesh.publish(0)
    mesh.pass_time(200)
    mesh.lose = lambda *_: False
    mesh.nodes[0].store.ingest([made[-1].encode()])
    mesh.sent.clear()
    mesh.publish(0)
    mesh.pass_time(200)
    assert mesh.nodes[1].log() == [one.hash for one in made]
    assert mesh.sent["fetch_chain"] == 1


def test_native_gossip_gap_recovery() -> None:
    mesh = mesh_of(3)
    lose_news(mesh, 2, 1)
    lost = mesh.write(0, b"dropped")
    mesh.pass_time(60)
    mesh.write(0, b"the next one")
    mesh.pass_time(1_000)
    assert mesh.nodes[2].get(lost) is not None
    assert mesh.is_equal()


# --- gossip_join ------------------------------------------------------------------------------


def test_broadcast_gossip_bidirectional() -> None:
    mesh = mesh_of(2)
    for sender, receiver in ((0, 1), (1, 0)):
        hash = mesh.write(sender, b"by %d" % sender)
        mesh.pass_time(BROADCAST_DELAY_MS)
        assert mesh.nodes[receiver].get(hash) is not None


def test_dynamic_peer_joining_via_gossip() -> None:
    mesh = WeaverMesh(3)
    mesh.connect_all([0, 1])
    mesh.write(0, b"before")
    mesh.connect(2, 0)
    mesh.pass_time(500)
    hash = mesh.write(1, b"by one that it has no connection to")
    mesh.pass_time(500)
    assert mesh.nodes[2].get(hash) is not None
    assert mesh.is_equal()


# --- gossip_lag: what was missed is known until a comparison was complete ---------------------


def test_initial_state() -> None:
    mesh = mesh_of(2)
    for node in mesh.nodes:
        (standing,) = node.standings.values()
        assert not standing.is_dirty
        assert standing.equal


def overflowing() -> WeaverMesh:
    """Return two nodes, one of which has missed more than is kept to be pushed."""
    mesh = mesh_of(2, limits=SendLimits(arrivals=8))
    for number in range(9):
        mesh.nodes[0].store.submit(b"%d" % number)
    mesh.nodes[0].replicator.publish(mesh.now_ms)
    mesh.nodes[0].replicator.tick(mesh.now_ms + BROADCAST_DELAY_MS)
    return mesh


def test_after_drop() -> None:
    mesh = overflowing()
    (standing,) = mesh.nodes[0].standings.values()
    assert standing.is_dirty
    assert not standing.equal


def test_drop_then_broadcast() -> None:
    """A push that succeeds later hides no loss: the peer stays dirty until it was compared."""
    mesh = overflowing()
    mesh.lose = lambda _sender, _receiver, payload: message_name(payload) == "reconcile_payload"
    mesh.write(0, b"this one arrives or not")
    mesh.pass_time(500)
    (standing,) = mesh.nodes[0].standings.values()
    assert standing.is_dirty
    mesh.lose = lambda *_: False
    mesh.pass_time(SILENCE_MS + 5_000)
    (standing,) = mesh.nodes[0].standings.values()
    assert not standing.is_dirty
    assert mesh.is_equal()


def test_cumulative_drops() -> None:
    mesh = overflowing()
    for number in range(20):
        mesh.nodes[0].store.submit(b"more %d" % number)
    mesh.publish(0)
    (standing,) = mesh.nodes[0].standings.values()
    assert standing.is_dirty
    mesh.pass_time(5_000)
    (standing,) = mesh.nodes[0].standings.values()
    assert not standing.is_dirty
    assert len(mesh.nodes[1].log()) == 29


def test_stats_tracked_on_successful_broadcast() -> None:
    mesh = mesh_of(2)
    mesh.write(0, b"arrives")
    mesh.pass_time(200)
    (standing,) = mesh.nodes[0].standings.values()
    assert not standing.is_dirty
    assert standing.equal
    assert standing.compared_ms is not None


def test_consistent_under_burst_writes() -> None:
    mesh = mesh_of(3, limits=SendLimits(arrivals=16))
    for number in range(300):
        mesh.nodes[number % 3].store.submit(b"%d" % number)
        if number % 7 == 0:
            mesh.publish(number % 3)
    for writer in range(3):
        mesh.publish(writer)
    mesh.pass_time(10_000)
    assert mesh.is_equal()
    for node in mesh.nodes:
        assert len(node.log()) == 300
        assert not any(one.is_dirty for one in node.standings.values())


# --- revocation -------------------------------------------------------------------------------


def test_revoked_peer_rejected_by_gossip_check() -> None:
    mesh = mesh_of(3)
    before = mesh.write(2, b"before")
    mesh.pass_time(500)
    assert mesh.nodes[0].get(before) is not None
    for node in mesh.nodes[:2]:
        node.admits.discard(mesh.keys[2])
        node.replica.peers_changed()
    after = mesh.write(2, b"after")
    mesh.pass_time(2 * ROOT_SYNC_INTERVAL_MS)
    assert mesh.nodes[0].get(after) is None
    assert mesh.nodes[1].get(after) is None
    assert mesh.nodes[0].notes["not-admitted"] > 0
    assert mesh.keys[2] not in mesh.nodes[0].replica.allowed


def test_bootstrap_includes_revoked_peer_history() -> None:
    mesh = WeaverMesh(3)
    mesh.connect_all([0, 1])
    before = mesh.write(1, b"written before the revocation")
    mesh.pass_time(500)
    for node in (mesh.nodes[0], mesh.nodes[2]):
        node.admits.discard(mesh.keys[1])
        node.replica.peers_changed()
    mesh.nodes[2].replica.source = mesh.keys[0]
    mesh.connect(2, 0)
    mesh.pass_time(1_000)
    assert mesh.nodes[2].get(before) is not None


def test_bootstrap_clone_flow() -> None:
    """Ten records of the source's witness log, verified, in their order."""
    mesh = WeaverMesh(2)
    hashes = [mesh.nodes[0].store.submit(b"%d" % number) for number in range(10)]
    mesh.nodes[1].replica.source = mesh.keys[0]
    mesh.connect(1, 0)
    mesh.carry()
    assert mesh.sent["bootstrap_request"] == 1
    assert mesh.nodes[1].log() == hashes
    assert mesh.nodes[1].replica.source is None


# --- sync_channel, sync_stress ----------------------------------------------------------------


def apart(*counts: int) -> WeaverMesh:
    """Return nodes that have written so much without a connection."""
    mesh = WeaverMesh(len(counts))
    for node, count in enumerate(counts):
        for number in range(count):
            mesh.nodes[node].store.submit(b"%d by %d" % (number, node))
    return mesh


@pytest.mark.parametrize(
    "counts", [(5, 0), (5, 7), (300, 0)], ids=["one_way", "bidirectional", "large"]
)
def test_sync_channel(counts: tuple[int, int]) -> None:
    mesh = apart(*counts)
    mesh.connect_all()
    assert mesh.is_equal()
    assert len(mesh.nodes[0].log()) == sum(counts)


def test_large_dataset() -> None:
    mesh = apart(1_500, 0)
    mesh.connect_all()
    assert mesh.is_equal()


def test_bidirectional() -> None:
    mesh = apart(400, 350)
    mesh.connect_all()
    assert mesh.is_equal()
    assert len(mesh.nodes[1].log()) == 750


def test_interleaved_modifications() -> None:
    mesh = apart(50, 50)
    mesh.connect(0, 1)
    for number in range(60):
        mesh.write(number % 2, b"while they compare %d" % number)
        mesh.pass_time(7)
    mesh.pass_time(1_000)
    assert mesh.is_equal()
    assert len(mesh.nodes[0].log()) == 160


def test_partition_recovery() -> None:
    mesh = mesh_of(3)
    mesh.isolate(2)
    for number in range(30):
        mesh.write(number % 3, b"%d" % number)
        mesh.pass_time(20)
    assert mesh.is_equal([0, 1])
    assert not mesh.is_equal()
    mesh.connect(2, 0)
    mesh.connect(1, 2)
    mesh.pass_time(2_000)
    assert mesh.is_equal()


# --- sync_termination, witnessed_only ---------------------------------------------------------


@pytest.mark.parametrize(
    "counts",
    [(50, 0), (100, 0), (200, 5)],
    ids=["fanout_single_split", "deep_recursion", "bidirectional_both_sides_complete"],
)
def test_sync_termination(counts: tuple[int, int]) -> None:
    mesh = apart(*counts)
    mesh.connect_all()
    assert mesh.is_equal()
    assert mesh.sent["sync_done"] >= 2
    for node in mesh.nodes:
        (standing,) = node.standings.values()
        assert standing.pending_count == 0
        assert node.notes["comparison-failed"] == 0


def test_disconnect_before_sync_done_is_error() -> None:
    mesh = apart(50, 50)
    mesh.connect_all()
    mesh.lose = lambda _sender, _receiver, payload: message_name(payload) == "sync_done"
    mesh.reconcile(0, 1)
    assert mesh.nodes[0].finished == []
    mesh.cut(0, 1)
    mesh.carry()
    assert mesh.nodes[0].finished == [(1, talk.CLOSED)]


def test_floating_intention_excluded_from_negentropy_sync() -> None:
    made = chain(3)
    mesh = WeaverMesh(2)
    mesh.nodes[0].store.ingest([made[0].encode(), made[2].encode()])
    assert mesh.nodes[0].store.status().floating == 1
    mesh.connect_all()
    mesh.pass_time(ROOT_SYNC_INTERVAL_MS)
    assert mesh.nodes[1].log() == [made[0].hash]
    assert mesh.nodes[1].get(made[2].hash) is None


# --- service and sessions: who is compared when -----------------------------------------------


def test_auto_sync_when_a_peer_comes_again() -> None:
    mesh = mesh_of(2)
    mesh.isolate(1)
    hash = mesh.write(0, b"while it was away")
    mesh.connect(1, 0)
    mesh.carry()
    assert mesh.nodes[1].get(hash) is not None


def test_a_stranger_is_not_compared() -> None:
    mesh = WeaverMesh(2)
    for node in mesh.nodes:
        node.admits -= set(mesh.keys)
        node.replica.peers_changed()
    mesh.nodes[0].store.submit(b"secret")
    mesh.connect_all()
    mesh.pass_time(2 * ROOT_SYNC_INTERVAL_MS)
    assert mesh.nodes[1].log() == []
    assert not mesh.sent


def test_auto_reconnect_keeps_channel_alive() -> None:
    mesh = mesh_of(2)
    for number in range(5):
        mesh.connect(number % 2, 1 - number % 2)
        mesh.carry()
        hash = mesh.write(0, b"on connection %d" % number)
        assert mesh.nodes[1].get(hash) is not None


def test_broadcast_works_after_reconnect() -> None:
    mesh = mesh_of(3)
    mesh.isolate(1)
    mesh.write(0, b"meanwhile")
    mesh.connect(1, 0)
    mesh.connect(1, 2)
    mesh.pass_time(500)
    hash = mesh.write(1, b"afterwards")
    mesh.pass_time(500)
    assert all(node.get(hash) is not None for node in mesh.nodes)
