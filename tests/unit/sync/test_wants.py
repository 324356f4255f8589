"""The want-list: one peer at a time, the next on failure, three rounds, then given up."""

from __future__ import annotations

import tracemalloc

import pytest

from datalattice.sync.wants import LINE_MS, WantList
from datalattice.testing.steps import steps_of

A, B, C = (bytes([n]) * 32 for n in (1, 2, 3))


def test_the_source_is_asked_first_and_once() -> None:
    wants = WantList()
    wants.add_helper("h")
    wants.add([A, B], "s")
    assert wants.take("h", 10) == []
    assert wants.take("s", 10) == [B, A]
    assert wants.take("s", 10) == []
    assert len(wants) == 2


def test_the_newest_want_is_asked_first_and_batches_are_bounded() -> None:
    wants = WantList()
    wants.add([A, B, C], "s")
    assert wants.take("s", 2) == [C, B]
    assert wants.take("s", 2) == [A]


def test_what_is_found_is_not_asked_for() -> None:
    wants = WantList()
    wants.add([A, B], "s")
    wants.found([B])
    assert B not in wants
    assert wants.take("s", 10) == [A]


def test_wanting_twice_asks_once() -> None:
    wants = WantList()
    wants.add([A], "s")
    wants.add([A], "s")
    wants.add([A], "t")
    assert wants.take("s", 10) == [A]
    assert wants.take("t", 10) == []


def test_what_is_asked_of_a_peer_that_never_delivered_is_asked_of_the_next_that_states_it() -> None:
    wants = WantList()
    wants.add([A], "mute")
    assert wants.take("mute", 1) == [A]
    wants.add([A], "s")
    assert wants.take("s", 1) == [A]
    wants.failed([A], "mute", 0)  # it is in flight at another one by now
    assert wants.take("mute", 1) == []
    wants.add([A], "mute")
    assert wants.take("mute", 1) == [A]
    for peer in ("s", "mute", "s", "mute"):  # "once in each round"
        wants.add([A], peer)
    assert [wants.take(peer, 1) for peer in ("s", "mute")] == [[A], []]


def test_what_is_asked_of_a_peer_that_delivers_is_asked_of_it_alone_until_it_is_late() -> None:
    wants = WantList()
    wants.found([], "s")
    wants.add([A], "s")
    assert wants.take("s", 1) == [A]
    wants.add([A], "t")
    assert wants.take("t", 1) == []
    wants.failed([], "s", 0, is_silent=True)
    wants.add([A], "t")
    assert wants.take("t", 1) == [A]


def test_who_states_it_is_asked_although_it_did_not_have_it_before() -> None:
    wants = WantList()
    for helper in ("honest", "mute", "last"):
        wants.add_helper(helper)
    wants.found([], "honest")
    wants.add([A], "forger")  # who knew the hash before the owner wrote it
    assert wants.take("forger", 1) == [A]
    wants.failed([A], "forger", 0)
    assert wants.take("honest", 1) == [A]
    wants.failed([A], "honest", 0)
    assert wants.take("mute", 1) == [A]
    wants.add([A], "honest")
    assert wants.take("honest", 1) == [A]
    wants.failed([A], "honest", 0)  # what it states again and again it is asked for once
    wants.add([A], "honest")
    assert wants.take("honest", 1) == []


def test_who_stated_it_first_is_asked_again_when_it_states_it_again_once_in_a_round() -> None:
    wants = WantList()
    for peer in ("s", "mute"):
        wants.add_helper(peer)
    wants.add([A], "s")
    now_ms = 0
    for _ in range(2):
        assert wants.take("s", 1) == [A]
        wants.failed([A], "s", now_ms)
        assert wants.take("mute", 1) == [A]
        wants.add([A], "s")
        assert wants.take("s", 1) == [A]
        wants.add_helper("late")
        wants.failed([A], "s", now_ms)
        assert wants.take("late", 1) == [A]
        wants.add([A], "s")
        assert wants.take("s", 1) == []
        wants.remove_peer("late", now_ms)
        now_ms = wants.next_wake_ms or 0
        wants.wake(now_ms)  # the next round


def test_who_is_just_asked_is_not_asked_again_for_stating_it() -> None:
    wants = WantList()
    wants.add_helper("h")
    wants.add([A], "s")
    assert wants.take("s", 1) == [A]
    wants.failed([A], "s", 0)
    assert wants.take("h", 1) == [A]
    wants.add([A], "h")
    assert wants.take("h", 1) == []


def test_who_states_it_is_asked_before_those_who_never_did() -> None:
    wants = WantList()
    for helper in ("h1", "h2", "late"):
        wants.add_helper(helper)
    wants.found([], "s")
    wants.add([A], "s")
    assert wants.take("s", 1) == [A]
    wants.add([A], "late")  # it is asked of `s` alone, which delivers as a rule
    assert wants.take("late", 1) == []
    wants.failed([A], "s", 0)
    assert wants.take("h1", 1) == []
    assert wants.take("late", 1) == [A]


def test_failure_passes_on_to_helpers_in_order() -> None:
    wants = WantList()
    for helper in ("h1", "h2"):
        wants.add_helper(helper)
    wants.add([A], "s")
    assert wants.take("s", 1) == [A]
    wants.failed([A], "h1", 0)  # not asked of it: no effect
    assert wants.take("h1", 1) == []
    wants.failed([A], "s", 0)
    assert wants.take("h2", 1) == []
    assert wants.take("h1", 1) == [A]
    wants.failed([A], "h1", 0)
    assert wants.take("h2", 1) == [A]


def test_rounds_end_with_a_rest_and_the_third_is_the_last() -> None:
    wants = WantList(rounds_max=3, rest_ms=100)
    wants.add([A], "s")
    now_ms = 0
    for rest_ms in (100, 200):
        assert wants.take("s", 1) == [A]
        wants.failed([A], "s", now_ms)
        assert wants.take("s", 1) == []
        assert wants.next_wake_ms == now_ms + rest_ms
        wants.wake(now_ms + rest_ms - 1)
        assert wants.take("s", 1) == []
        now_ms += rest_ms
        wants.wake(now_ms)
    assert wants.take("s", 1) == [A]
    wants.failed([A], "s", now_ms)
    assert wants.take_lost() == (A,)
    assert wants.take_lost() == ()
    assert len(wants) == 0


def test_a_peer_that_leaves_hands_its_wants_on() -> None:
    wants = WantList()
    wants.add([A, B], "s")
    wants.add_helper("h")
    assert wants.take("s", 1) == [B]
    wants.remove_peer("s", 0)
    assert sorted(wants.take("h", 10)) == [A, B]


def test_without_any_peer_a_want_is_lost_at_once() -> None:
    wants = WantList()
    wants.add([A], "s")
    wants.remove_peer("s", 0)
    assert wants.take_lost() == (A,)


def test_another_source_may_serve_what_rests() -> None:
    wants = WantList()
    wants.add([A], "s")
    wants.take("s", 1)
    wants.failed([A], "s", 0)
    wants.add([A], "t")
    assert wants.take("t", 1) == [A]


def test_a_want_leaves_the_line_of_a_peer_that_takes_only_its_own() -> None:
    wants = WantList()
    for peer in ("honest", "mute"):
        wants.add_helper(peer)
    wants.add([A], "honest")
    assert wants.take("honest", 1) == [A]
    wants.failed([A], "honest", 0)  # the answer was lost: now it is in the line of the mute peer
    wants.wake(LINE_MS - 1)
    assert wants.take("honest", 1) == []
    assert wants.next_wake_ms == LINE_MS
    wants.wake(LINE_MS)
    assert wants.take("honest", 1) == [A]
    wants.found([A])
    assert wants.take("mute", 1) == []


def test_waiting_in_line_for_the_only_peer_costs_no_round() -> None:
    wants = WantList()
    wants.add_helper("busy")
    wants.add([A], "gone")
    wants.remove_peer("gone", 0)
    for turn in range(1, 20):
        wants.wake(turn * LINE_MS)
    assert wants.take_lost() == ()
    assert wants.take("busy", 9) == [A]
    assert wants.take("busy", 9) == []


def test_lines_are_changed_among_all_that_were_not_asked_before_anybody_is_asked_again() -> None:
    wants = WantList()
    for peer in ("first", "second", "third"):
        wants.add_helper(peer)
    wants.add([A], "first")
    wants.take("first", 1)
    wants.failed([A], "first", 0)
    wants.wake(LINE_MS)
    assert wants.take("first", 1) == []
    wants.wake(2 * LINE_MS)
    assert wants.take("first", 1) == [A]


def test_wants_are_counted_by_who_made_them() -> None:
    wants = WantList()
    wants.add_helper("q")
    wants.add([A, B], "p")
    wants.add([B, C], "q")
    assert (wants.count("p"), wants.count("q"), wants.count("r")) == (2, 1, 0)
    wants.found([A])
    wants.found([A])
    assert wants.count("p") == 1
    wants.found([B])
    assert (wants.count("p"), wants.count("q")) == (0, 1)


@pytest.mark.parametrize("others", [10, 1_000])
def test_a_peer_that_leaves_costs_what_was_asked_of_it(others: int) -> None:
    wants = WantList()
    for peer in ("a", "b"):
        wants.add_helper(peer)
    wants.add([number.to_bytes(32, "big") for number in range(others)], "a")
    wants.add([bytes(32 * [255 - number]) for number in range(3)], "b")
    assert len(wants.take("a", 5)) == 5
    assert len(wants.take("b", 2)) == 2
    steps = steps_of(lambda: wants.remove_peer("b", 0))
    assert steps < 200
    assert len(wants.take("a", others + 3)) == others - 2


def test_a_wanted_part_takes_little_memory() -> None:
    hashes = [number.to_bytes(32, "big") for number in range(2_000)]
    wants = WantList()
    wants.add_helper("a")
    tracemalloc.start()
    try:
        wants.add(hashes, "a")
        wants.take("a", len(hashes))
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken / len(hashes) < 400
