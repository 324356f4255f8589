"""Partner: when the next push may leave."""

from __future__ import annotations

from datalattice.sync import LatticeProtocol, Pace, Peer, Probe
from datalattice.sync.partner import CROWDED_MS, QUIET_MS, Partner
from datalattice.sync.replica import FETCHES, REPLICATES

PACE = Pace()
DELAY_MS = PACE.broadcast_delay_ms


def partner(*, alike: bool) -> Partner:
    features = frozenset({FETCHES, REPLICATES} if alike else {FETCHES})
    conversation = LatticeProtocol().converse(Peer("p", features=features), None)
    return Partner(conversation, joined=True, met=True)


def tell(one: Partner, now_ms: int) -> None:
    one.pushed(Probe(b"state"), now_ms, PACE)
    one.has_news = False


def test_after_a_rest_a_change_is_told_at_once() -> None:
    for alike in (False, True):
        one = partner(alike=alike)
        tell(one, 0)
        one.changed(DELAY_MS)
        assert one.has_news
        assert one.push_after_ms <= DELAY_MS


def test_a_burst_is_told_when_it_is_over() -> None:
    one = partner(alike=True)
    tell(one, 1_000)
    for now_ms in range(1_001, 1_020):
        one.changed(now_ms)
        assert one.push_after_ms == now_ms + QUIET_MS


def test_a_burst_that_does_not_end_is_told_at_the_end_of_the_window() -> None:
    one = partner(alike=True)
    tell(one, 1_000)
    for now_ms in range(1_001, 1_000 + DELAY_MS):
        one.changed(now_ms)
        assert one.push_after_ms <= 1_000 + DELAY_MS
    assert one.push_after_ms == 1_000 + DELAY_MS


def test_a_change_says_whether_it_makes_the_push_due_at_another_time() -> None:
    one = partner(alike=True)
    tell(one, 1_000)
    for now_ms in range(1_001, 1_000 + 2 * DELAY_MS):
        before_ms = one.due_ms
        assert one.changed(now_ms) == (one.due_ms != before_ms)
        assert not one.changed(now_ms)


def test_other_peers_are_told_once_in_a_window() -> None:
    one = partner(alike=False)
    tell(one, 1_000)
    one.changed(1_001)
    assert one.push_after_ms == 1_000 + DELAY_MS


def test_only_so_many_come_early_in_a_row_and_a_rest_makes_up_for_them() -> None:
    one = partner(alike=True)
    now_ms = early_count = 0
    while early_count <= PACE.burst_max:
        tell(one, now_ms)
        one.changed(now_ms)
        if one.push_after_ms == now_ms + DELAY_MS:
            break
        early_count += 1
        now_ms = one.push_after_ms
    assert early_count == PACE.burst_max - 1
    rested_ms = now_ms + PACE.burst_max * DELAY_MS
    tell(one, rested_ms)
    one.changed(rested_ms)
    assert one.push_after_ms == rested_ms + QUIET_MS


def test_on_average_the_window_holds() -> None:
    one = partner(alike=True)
    now_ms = count = 0
    while now_ms < 20_000:
        tell(one, now_ms)
        count += 1
        one.changed(now_ms)
        now_ms = one.push_after_ms
    assert count <= 20_000 // DELAY_MS + PACE.burst_max


def test_what_strangers_changed_waits_while_more_of_them_do_and_goes_with_other_changes() -> None:
    for alike in (False, True):
        one = partner(alike=alike)
        tell(one, 0)
        one.changed(1_000, crowded=True)
        one.changed(1_100, crowded=True)
        assert one.push_after_ms == 1_000 + CROWDED_MS
        one.changed(1_200)
        assert one.push_after_ms <= 1_200
        one.changed(1_201, crowded=True)
        assert one.push_after_ms <= 1_200


def test_a_connection_that_is_closing_has_nothing_due() -> None:
    one = partner(alike=True)
    one.has_news = True
    assert one.due_ms == 0
    one.closing = True
    assert one.due_ms is None
