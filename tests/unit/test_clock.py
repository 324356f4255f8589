"""Clock: hybrid logical stamps."""

from __future__ import annotations

from hypothesis import given, strategies as st

from datalattice.clock import (
    HLC_DRIFT_MS,
    HLC_ZERO,
    Hlc,
    clamp_future,
    is_future,
    tick,
    update,
)

stamps = st.builds(Hlc, st.integers(0, 50), st.integers(0, 3) | st.just(2**32 - 1))
walls = st.integers(0, 50)


@given(stamps, stamps, walls)
def test_a_clock_moves_past_everything_it_has_seen(last: Hlc, received: Hlc, now: int) -> None:
    assert tick(last, now) > last
    assert update(last, received, now) > max(last, received)
    assert update(last, received, now) == update(received, last, now)


@given(stamps, walls)
def test_a_clock_shows_the_wall_time_when_that_is_later(last: Hlc, now: int) -> None:
    assert tick(last, now).wall >= now
    assert tick(last, last.wall + 1) == Hlc(last.wall + 1, 0)


def test_a_full_counter_moves_the_wall_time() -> None:
    assert tick(Hlc(100, 2**32 - 2), 50) == Hlc(100, 2**32 - 1)
    assert tick(Hlc(100, 2**32 - 1), 50) == Hlc(101, 0)


def test_the_limit_of_drift_is_not_yet_future() -> None:
    stamp = Hlc(HLC_DRIFT_MS + 10, 3)
    assert not is_future(stamp, 10)
    assert is_future(stamp, 9)
    assert clamp_future(stamp, HLC_ZERO, 10) == stamp
    assert clamp_future(stamp, HLC_ZERO, 9) == Hlc(0, 1)
