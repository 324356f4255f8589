"""The want-list: one peer at a time, the next on failure, three rounds, then given up."""

from __future__ import annotations

from datalattice.sync import WantList

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
    wants.found(B)
    assert B not in wants
    assert wants.take("s", 10) == [A]


def test_wanting_twice_asks_once() -> None:
    wants = WantList()
    wants.add([A], "s")
    wants.add([A], "s")
    wants.add([A], "t")
    assert wants.take("s", 10) == [A]
    assert wants.take("t", 10) == []


def test_failure_passes_on_to_helpers_in_order() -> None:
    wants = WantList()
    for helper in ("h1", "h2"):
        wants.add_helper(helper)
    wants.add([A], "s")
    assert wants.take("s", 1) == [A]
    wants.failed(A, "h1", 0)  # not asked of it: no effect
    assert wants.take("h1", 1) == []
    wants.failed(A, "s", 0)
    assert wants.take("h2", 1) == []
    assert wants.take("h1", 1) == [A]
    wants.failed(A, "h1", 0)
    assert wants.take("h2", 1) == [A]


def test_rounds_end_with_a_rest_and_the_third_is_the_last() -> None:
    wants = WantList(rounds_max=3, rest_ms=100)
    wants.add([A], "s")
    now_ms = 0
    for rest_ms in (100, 200):
        assert wants.take("s", 1) == [A]
        wants.failed(A, "s", now_ms)
        assert wants.take("s", 1) == []
        assert wants.next_wake_ms() == now_ms + rest_ms
        wants.wake(now_ms + rest_ms - 1)
        assert wants.take("s", 1) == []
        now_ms += rest_ms
        wants.wake(now_ms)
    assert wants.take("s", 1) == [A]
    wants.failed(A, "s", now_ms)
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
    wants.failed(A, "s", 0)
    wants.add([A], "t")
    assert wants.take("t", 1) == [A]
