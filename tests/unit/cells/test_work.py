"""Work: walks pay for what they enter and earn by what they read for the first time."""

from __future__ import annotations

import pytest

from datalattice.cells import (
    EMPTY_INDEX,
    EMPTY_MAP,
    EMPTY_SET,
    Index,
    Map,
    Set,
    SlotPairs,
    Value,
    Vector,
    Work,
    vector_fork_offset,
)
from datalattice.errors import WorkExceeded
from datalattice.limits import WORK_LIMITS, WorkLimits
from datalattice.testing.bombs import repeated_log
from datalattice.testing.cells_kit import CellDict

LEVELS = 5
"""Of a vector whose every block is one cell sixteen times: 16 ** 6 elements in a kilobyte."""


def keep(_key: Value, own: Value, other: Value, has: bool, _had: bool) -> object:
    return own if has else other


def kept(value: Value) -> Value:
    return CellDict().kept(value)


def repeated(element: Value, levels: int = LEVELS) -> Vector:
    return repeated_log(element, levels)


def test_an_account_pays_until_it_is_empty_and_a_cell_earns_once() -> None:
    work = Work(WorkLimits(start=10))
    work.spend(10)
    assert work.left == 0
    with pytest.raises(WorkExceeded, match="more work than its size allows"):
        work.spend(1)
    assert work.spent == 11
    work.earn(b"a", 100)
    work.earn(b"a", 100)
    assert work.left == 99
    assert work.memo("x") is work.memo("x") is not work.memo("y")


@pytest.mark.parametrize(("earn_max", "left"), [(0, 10), (149, 159), (150, 160), (151, 160)])
def test_an_account_earns_no_more_than_was_brought(earn_max: int, left: int) -> None:
    work = Work(WorkLimits(start=10), earn_max=earn_max)
    assert work.offered == 10 + earn_max
    work.earn(b"a", 100)
    work.earn(b"b", 50)
    assert work.left == left


def fail(work: Work, own: Value, other: Value, ticks: int) -> None:
    """Attempt a merge that costs so many ticks, which is more than there is."""

    def step() -> Value:
        work.spend(ticks)
        return own

    with pytest.raises(WorkExceeded):
        work.attempt(own, other, step)


@pytest.mark.parametrize(("start", "spent"), [(4_999, 0), (5_000, 0), (5_001, 9_000)])
def test_a_pair_that_failed_is_tried_again_with_more_ticks_only(start: int, spent: int) -> None:
    pairs = SlotPairs()
    fail(Work(WorkLimits(start=5_000), pairs=pairs), "own", "other", 9_000)
    work = Work(WorkLimits(start=start), pairs=pairs)
    fail(work, "own", "other", 9_000)
    assert work.spent == spent
    for own, other in (("own", "another"), ("other", "own")):
        fail(Work(WorkLimits(start=start), pairs=pairs), own, other, 9_000)


@pytest.mark.parametrize(("left", "count"), [(1_999, 0), (2_000, 1), (2_001, 1)])
def test_a_pair_that_began_with_less_than_a_grant_is_not_remembered(left: int, count: int) -> None:
    pairs = SlotPairs()
    work = Work(WorkLimits(start=left), pairs=pairs)
    fail(work, "own", "other", left + 1)
    assert len(pairs) == count
    assert (work.left, work.grants) == (2_000, 1)


def test_what_comes_after_a_failure_has_a_grant_so_many_times() -> None:
    work = Work(WorkLimits(start=0, grants_max=2))
    for left in (2_000, 2_000, -1):
        fail(work, "own", "other", work.left + 1)
        assert work.left == left


def test_pairs_are_bounded_and_the_oldest_go() -> None:
    pairs = SlotPairs(2)
    hashes = [bytes([n]) * 32 for n in range(3)]
    for hash in hashes:
        pairs.failed(hash, hash, 1)
        pairs.forked(hash, hash)
    assert [pairs.fails(hash, hash, 1) for hash in hashes] == [False, True, True]
    assert [pairs.forks(hash, hash) for hash in hashes] == [False, True, True]
    assert len(pairs) == 4


def test_a_signature_is_paid_once_in_a_merge() -> None:
    work = Work()
    for _ in range(2):
        work.verify(b"a")
    work.verify(b"b")
    assert work.spent == 2 * WORK_LIMITS.signature


def test_a_step_beyond_any_account_is_refused_and_the_sum_stays_exact() -> None:
    work = Work()
    with pytest.raises(WorkExceeded):
        work.spend(1 << 200)
    with pytest.raises(WorkExceeded):
        work.spend(1 << 200)


@pytest.mark.parametrize("count", [3, 300, 3_000])
def test_joins_of_data_that_was_stored_earn_more_than_they_cost(count: int) -> None:
    rows = [(f"key {n}", f"value {n}") for n in range(count)]
    more = [(f"other {n}", f"value {n}") for n in range(count)]
    changed = [(f"key {n}", f"changed {n}") for n in range(count)]
    for others in (more, changed):
        for own, other in (
            (kept(Map.of(rows)), kept(Map.of(others))),
            (EMPTY_MAP, kept(Map.of(others))),
        ):
            assert isinstance(own, Map)
            assert isinstance(other, Map)
            work = Work()
            own.merge_with(other, keep, work)
            assert work.spent > 0
            assert work.left > WORK_LIMITS.start // 2
        for first, second in (
            (kept(Index.of(rows)), kept(Index.of(others))),
            (EMPTY_INDEX, kept(Index.of(others))),
        ):
            assert isinstance(first, Index)
            assert isinstance(second, Index)
            work = Work()
            first.merge_with(second, keep, work=work)
            assert work.spent > 0
            assert work.left > WORK_LIMITS.start // 2
    left, right = kept(Set.of([key for key, _ in rows])), kept(Set.of([key for key, _ in more]))
    assert isinstance(left, Set)
    assert isinstance(right, Set)
    for one in (left, EMPTY_SET):
        work = Work()
        one.union(right, work)
        assert work.spent > 0
        assert work.left > WORK_LIMITS.start // 2


def test_equal_subtrees_cost_nothing() -> None:
    value = kept(Map.of([(n, n) for n in range(3_000)]))
    assert isinstance(value, Map)
    work = Work()
    value.merge_with(value.put("new", 1), keep, work)
    assert 0 < work.spent < 100


def test_a_vector_of_few_cells_and_many_elements_is_not_walked() -> None:
    a, b = repeated(1), repeated(2)
    for walk in (
        lambda work: a.drop(5, work),
        lambda work: a.drop(16 * 7, work),
        lambda work: sum(1 for _ in a.iter_range(3, len(a), work)),
        lambda work: sum(1 for _ in a.differences(b, work)),
        lambda work: a.merge_with(b, lambda _at, _own, other: other, work),
        lambda work: Vector().merge_with(b, lambda _at, _own, other: other, work),
    ):
        work = Work()
        with pytest.raises(WorkExceeded):
            walk(work)
        assert work.spent < 3 * WORK_LIMITS.start
    assert vector_fork_offset(a, b, Work()) == 0


def test_reading_and_cutting_a_log_of_distinct_records_earns_what_it_costs() -> None:
    log = kept(Vector.of([f"record number {n}" for n in range(20_000)]))
    assert isinstance(log, Vector)
    for number in (5, 16, 160, 1_600):
        work = Work()
        log.drop(number, work)
        assert work.left > 0
    work = Work()
    assert sum(1 for _ in log.iter_range(0, len(log), work)) == 20_000
    assert work.left > 0


def test_a_difference_far_to_the_right_of_a_shared_log_is_found_in_few_steps() -> None:
    log = kept(Vector.of(list(range(5_000))))
    assert isinstance(log, Vector)
    work = Work()
    assert vector_fork_offset(log.append("a"), log.append("b"), work) == 5_000
    assert work.spent < 100
