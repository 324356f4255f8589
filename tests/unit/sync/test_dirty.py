"""A peer is dirty until a comparison with it was complete, and is compared soon while it is."""

from __future__ import annotations

from functools import partial

import pytest

from datalattice.sync import Pace, Pull, Standing
from datalattice.sync.partner import AGAIN_MS, Partner
from datalattice.sync.reconcile import RangeLimits, RangeReconciliation
from datalattice.sync.weaver import SILENCE_MS, SendLimits, comparisons
from datalattice.testing.mesh_kit import MeshNode, WeaverMesh

ARRIVALS = 64


def pair_of() -> WeaverMesh:
    mesh = WeaverMesh(2, limits=SendLimits(arrivals=ARRIVALS))
    mesh.connect_all()
    return mesh


def standing(node: MeshNode) -> Standing:
    (found,) = node.replicator.standings
    return found


def partner_of(node: MeshNode) -> Partner:
    (found,) = node.replicator._partners.values()
    return found


def standings(pair: WeaverMesh) -> list[Standing]:
    return [standing(node) for node in pair.nodes]


def test_a_new_connection_is_dirty_until_it_was_compared() -> None:
    pair = WeaverMesh(2)
    pair.connect(0, 1)
    assert all(one.is_dirty and one.compared_ms is None for one in standings(pair))
    pair.carry()
    assert not any(one.is_dirty for one in standings(pair))
    pair.connect(0, 1)  # what was lost with the old connection is not known
    assert all(one.is_dirty for one in standings(pair))


def test_a_comparison_that_ends_early_is_repeated_after_a_rest() -> None:
    pair = WeaverMesh(2)
    pair.nodes[0].store.submit(b"written apart")
    pair.connect(0, 1)
    pair.lose = lambda *_: True
    pair.carry()
    pair.lose = lambda *_: False
    pair.pass_time(SILENCE_MS + AGAIN_MS + 100)
    assert pair.is_equal()
    assert not any(one.is_dirty for one in standings(pair))


def test_the_rest_before_a_dirty_peer_is_compared_again_doubles() -> None:
    partner = partner_of(pair_of().nodes[0])
    rests = []
    for _ in range(7):
        partner.doubt(0, Pace())
        assert partner.again_ms is not None
        rests.append(partner.again_ms)
        partner.again_ms = None
    assert rests == [1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000]
    partner.compared(5)
    assert not partner.is_dirty
    assert partner.compared_ms == 5


@pytest.mark.parametrize("missed", [ARRIVALS, ARRIVALS + 1])
def test_a_peer_beyond_what_is_kept_to_be_pushed_is_compared_soon(missed: int) -> None:
    pair = pair_of()
    for number in range(missed):
        pair.nodes[0].store.submit(b"%d" % number)
    pair.publish(0)
    pair.pass_time(100)
    assert standing(pair.nodes[0]).is_dirty == (missed > ARRIVALS)
    pair.pass_time(AGAIN_MS)
    assert pair.is_equal()
    assert not standing(pair.nodes[0]).is_dirty


def test_what_is_lost_during_a_comparison_is_compared_again() -> None:
    pair = pair_of()
    node = pair.nodes[0]
    partner = partner_of(node)
    pair.nodes[0].replicator.tick(pair.now_ms)
    partner.compare_after_ms = pair.now_ms
    node.replicator._touched.add(partner.id)
    node.replicator.tick(pair.now_ms)
    assert partner.comparisons
    partner.doubt(pair.now_ms, Pace())
    pair.carry()
    assert not partner.comparisons
    assert partner.is_dirty  # what was compared may be older than the loss
    pair.pass_time(AGAIN_MS + 100)
    assert not partner.is_dirty


def test_it_is_known_since_when_a_peer_has_another_state() -> None:
    pair = pair_of()
    pair.pass_time(5_000)
    own = standing(pair.nodes[0])
    assert own.equal
    assert own.agreed_ms is not None
    pair.pass_time(2_000)
    assert standing(pair.nodes[0]).agreed_ms == own.agreed_ms  # since then
    pair.lose = lambda *_: True
    pair.write(0, b"news")
    behind = standing(pair.nodes[0])
    assert not behind.equal
    assert behind.agreed_ms == pair.now_ms  # until then


def test_a_comparison_that_leaves_some_out_is_followed_by_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits = RangeLimits(answer_bytes=4_000, session_bytes=8_000, session_hash_bytes=0)
    made = partial(RangeReconciliation, limits=limits)
    monkeypatch.setattr(comparisons, "RangeReconciliation", made)
    pair = WeaverMesh(2)
    for number in range(600):
        pair.nodes[0].store.submit(b"%d" % number)
    pair.connect(1, 0)
    pair.carry()
    assert 0 < len(pair.nodes[1].log()) < 600
    assert standing(pair.nodes[1]).is_dirty
    pair.pass_time(5_000)
    assert pair.is_equal()
    assert not standing(pair.nodes[1]).is_dirty


def test_a_store_that_is_written_to_all_the_time_is_compared_all_the_same() -> None:
    pair = pair_of()
    pair.lose = lambda *_: True
    lost = pair.write(0, b"lost, and nothing of its author follows")
    pair.pass_time(100)
    pair.lose = lambda *_: False
    for number in range(70):
        pair.write(1, b"%d" % number)
        pair.pass_time(500)
    assert pair.nodes[1].get(lost) is not None


def test_a_side_that_gave_something_goes_on_at_once() -> None:
    pair = pair_of()
    partner = partner_of(pair.nodes[0])
    pair.nodes[0].store.submit(b"lacking there")
    pair.reconcile(1, 0)
    assert pair.is_equal()
    pair.lose = lambda *_: True
    lost = pair.write(0, b"lacking there, too")
    pair.lose = lambda *_: False
    partner.compare_after_ms = pair.now_ms
    pair.nodes[0].replicator._touched.add(partner.id)
    pair.nodes[0].replicator.tick(pair.now_ms)
    if not partner.comparisons:  # the other side dialled, and begins
        pair.nodes[1].replicator.pull("link 1", Pull("asked"), pair.now_ms)
    moved = []
    for node in pair.nodes:
        (one,) = node.replicator._partners.values()
        moved += list(one.comparisons.values())
    pair.carry()
    assert pair.nodes[1].get(lost) is not None
    assert any(one.has_moved for one in moved)
