"""The journal of a simulated disk: an engine by the kit, and atomic under crashes."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from itertools import count

import pytest

from datalattice.engine import Engine
from datalattice.errors import StoreFailed
from datalattice.testing.disk import SimDisk, SimulatedCrash
from datalattice.testing.engine_kit import check_engine
from datalattice.testing.journal import JournalEngine

seeds: Iterator[int] = count()


def test_it_is_an_engine() -> None:
    check_engine(lambda: JournalEngine(SimDisk(next(seeds)), "tables", ("one", "two")))


def contents(engine: Engine) -> dict[bytes, bytes]:
    with engine.read() as view:
        return dict(view.scan("one"))


def opened(disk: SimDisk) -> JournalEngine:
    return JournalEngine(disk, "tables", ("one",))


def write(engine: Engine, number: int) -> None:
    with engine.write() as txn:
        for key in range(3):
            txn.put("one", b"%d" % key, b"%d" % number * number)
        txn.delete("one", b"%d" % (number % 3))


COMMITS = range(9, 0, -1)  # shorter ones last: remains of a longer one may stand behind them


def expected() -> list[dict[bytes, bytes]]:
    """Return the contents after each number of commits."""
    engine = opened(SimDisk(0))
    states = [contents(engine)]
    for number in COMMITS:
        write(engine, number)
        states.append(contents(engine))
    return states


@pytest.mark.parametrize("power_failure", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_a_crash_at_any_write_keeps_what_returned(seed: int, power_failure: bool) -> None:
    states = expected()
    for step in range(1, 30):
        disk = SimDisk(seed)
        returned = 0
        disk.crash_at = disk.steps + step
        try:
            engine = opened(disk)
            for number in COMMITS:
                write(engine, number)
                returned += 1
        except SimulatedCrash:
            assert returned < len(COMMITS)
        disk.restart(power_failure=power_failure)
        engine = opened(disk)
        assert contents(engine) in states[returned : returned + 2]
        write(engine, 5)
        assert contents(opened(disk)) == contents(engine)


def test_a_copy_of_the_folder_has_nothing_of_a_write_that_failed() -> None:
    disk = SimDisk(0)
    engine = opened(disk)
    write(engine, 9)
    kept = contents(engine)
    disk.fail_at = disk.steps + 2  # the sync: all bytes of the record are in the file by then
    with pytest.raises(StoreFailed):
        write(engine, 8)
    double = copy.deepcopy(disk)
    double.restart(power_failure=False)
    disk.restart(power_failure=True)
    # Else the copy would go on behind a write that the original does not know of.
    assert contents(opened(double)) == contents(opened(disk)) == kept
