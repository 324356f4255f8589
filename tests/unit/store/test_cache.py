"""The cell cache is bounded and keeps what is used."""

from __future__ import annotations

import pytest

from datalattice.store.cache import (
    CELL_OVERHEAD_BYTES,
    ENCODING_FACTOR,
    TRIAL_BYTES,
    CellCache,
)

CHARGE = CELL_OVERHEAD_BYTES + 100 * ENCODING_FACTOR


def name(number: int) -> bytes:
    return number.to_bytes(32, "big")


@pytest.mark.parametrize("trial_bytes", [0, 3 * CHARGE])
def test_the_bound_is_kept(trial_bytes: int) -> None:
    cache = CellCache(20 * CHARGE, trial_bytes)
    for number in range(1000):
        cache.add(name(number), number, 100)
        assert cache.charged_bytes <= 20 * CHARGE
    assert cache.get(name(999)) == 999
    assert cache.get(name(0), "gone") == "gone"


@pytest.mark.parametrize("trial_bytes", [0, 3 * CHARGE])
def test_what_is_used_stays(trial_bytes: int) -> None:
    cache = CellCache(20 * CHARGE, trial_bytes)
    cache.add(name(0), "kept", 100)
    for number in range(1, 1000):
        cache.add(name(number), number, 100)
        assert cache.get(name(0)) == "kept"


def test_cells_that_are_loaded_once_stay_for_a_short_while() -> None:
    cache = CellCache(trial_bytes=TRIAL_BYTES)
    for number in range(10_000):
        cache.add(name(number), number, 100)
        assert cache.charged_bytes <= TRIAL_BYTES + CHARGE
    assert cache.get(name(9_999)) == 9_999
    assert cache.get(name(9_000)) is None


def test_a_cell_that_is_loaded_again_stays() -> None:
    cache = CellCache(trial_bytes=TRIAL_BYTES)
    for _ in range(2):
        cache.add(name(0), "again", 100)
        for number in range(1, 1_000):
            cache.add(name(number), number, 100)
    for number in range(1_000, 2_000):
        cache.add(name(number), number, 100)
    assert cache.get(name(0)) == "again"
    assert cache.charged_bytes <= 1_000 * CHARGE + TRIAL_BYTES + CHARGE


def test_a_cell_is_charged_once() -> None:
    cache = CellCache()
    cache.add_many([(name(1), b"x" * 100, "one"), (name(1), b"x" * 100, "one")])
    assert cache.charged_bytes == CHARGE


def test_cells_can_be_forgotten() -> None:
    cache = CellCache()
    cache.add(name(1), "one", 1)
    cache.add(name(2), "two", 1)
    cache.forget(name(1))
    cache.forget(name(3))
    assert (cache.get(name(1)), cache.get(name(2))) == (None, "two")
    cache.clear()
    assert cache.get(name(2)) is None
    assert cache.charged_bytes == 0
