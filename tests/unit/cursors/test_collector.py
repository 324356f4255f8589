"""Collector: it stands still while somebody is inside, and is left as it was found."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from datalattice.cursors import collector_paused
from datalattice.cursors.collector import OVERLAPS_MAX


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    was_enabled = gc.isenabled()
    yield
    gc.enable() if was_enabled else gc.disable()


def test_it_runs_again_when_the_last_one_has_left() -> None:
    gc.enable()
    with collector_paused:
        assert not gc.isenabled()
        with collector_paused:
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_an_error_does_not_leave_it_off() -> None:
    gc.enable()
    with pytest.raises(ZeroDivisionError), collector_paused:
        raise ZeroDivisionError
    assert gc.isenabled()


def test_who_had_switched_it_off_finds_it_off() -> None:
    gc.disable()
    with collector_paused:
        pass
    assert not gc.isenabled()


@pytest.mark.parametrize("ended", [OVERLAPS_MAX - 1, OVERLAPS_MAX, OVERLAPS_MAX + 1])
def test_it_has_its_turn_although_somebody_is_always_inside(ended: int) -> None:
    gc.enable()
    with collector_paused:
        for _ in range(ended):
            with collector_paused:
                assert not gc.isenabled()
        assert gc.isenabled() == (ended == OVERLAPS_MAX)
    assert gc.isenabled()
