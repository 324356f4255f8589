"""The timetable: the same answers as from a table that is searched."""

from __future__ import annotations

import random

import pytest

from datalattice.sync.partner import STALE_MAX, Timetable


@pytest.mark.parametrize("seed", range(20))
def test_the_first_is_the_least_of_the_times_that_are_set(seed: int) -> None:
    chance = random.Random(seed)
    table, expected = Timetable(), dict[str, int]()
    for _ in range(2_000):
        name, time_ms = str(chance.randrange(12)), chance.randrange(50)
        kind = chance.randrange(10)
        if kind == 0:
            table.put(name, None)
            expected.pop(name, None)
        elif kind == 1:
            due = {one for one, ms in expected.items() if ms <= time_ms}
            assert table.take(time_ms) == due
            expected = {one: ms for one, ms in expected.items() if one not in due}
        else:
            table.put(name, time_ms)
            expected[name] = time_ms
        assert table.first_ms == min(expected.values(), default=None)


def test_times_that_are_set_anew_do_not_fill_the_memory() -> None:
    table = Timetable()
    table.put("other", 10**9)
    for time_ms in range(10_000):
        table.put("one", time_ms + 10**6)
        assert len(table._heap) <= 4 + STALE_MAX
    assert table.first_ms == 9_999 + 10**6
