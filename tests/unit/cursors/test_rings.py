"""Rings of events: readers have a position, the newest stay, a slow reader is told and ends."""

from __future__ import annotations

import threading

import pytest

from datalattice.cursors import RING_EVENTS, EventRing, EventsMissed, EventStream


def test_a_reader_gets_what_comes_after_it_began() -> None:
    ring: EventRing[int] = EventRing()
    ring.add(0)
    with EventStream(ring) as stream:
        assert stream.poll() == []
        ring.add(1)
        ring.add(2)
        assert stream.poll() == [1, 2]
        assert stream.poll() == []


@pytest.mark.parametrize("more", [0, 1, 5])
def test_a_reader_that_is_too_slow_is_told_how_many_and_ends(more: int) -> None:
    ring: EventRing[int] = EventRing()
    slow, quick = EventStream(ring), EventStream(ring)
    for number in range(RING_EVENTS + more):
        ring.add(number)
        assert quick.poll() == [number]
    taken = slow.poll()
    if more:
        assert taken == [EventsMissed(more)]
        assert slow.poll() == []
    else:
        assert taken == list(range(RING_EVENTS))
    assert slow.closed is (more > 0)
    assert not quick.closed
    quick.close()
    slow.close()


def test_a_reader_that_waits_is_woken_and_one_that_left_costs_nothing() -> None:
    ring: EventRing[str] = EventRing()
    with EventStream(ring) as stream:
        writer = threading.Thread(target=lambda: ring.add("news"))
        writer.start()
        assert next(stream) == "news"
        writer.join()
    assert not ring._listeners


def test_a_reader_begins_at_a_number_and_a_ring_tells_itself_apart() -> None:
    ring: EventRing[int] = EventRing()
    for number in range(5):
        ring.add(number)
    with EventStream(ring, 2) as stream:
        assert stream.poll() == [2, 3, 4]
        assert stream.next == 5
    assert ring.id != EventRing[int]().id
