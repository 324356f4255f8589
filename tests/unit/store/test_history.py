"""History: which root was when, thinned and bounded, and never wrong."""

from __future__ import annotations

import errno
import gc
from collections.abc import Callable
from contextlib import AbstractContextManager
from itertools import pairwise

import pytest

from datalattice.cells import Value, Vector, value_hash
from datalattice.crypto import SeededEntropy
from datalattice.errors import UsageError
from datalattice.store import CellStore, MemoryStore
from datalattice.store.kept import KEEP_NOTHING, Moment, Retention, history
from datalattice.store.kept.history import (
    DAY_MS,
    HOUR_MS,
    MINUTE_MS,
    RECENT_MAX,
    RETENTION,
    SECOND_MS,
    SLOT_BYTES,
    parse_history,
)
from datalattice.testing.clocks import StoppedClock
from datalattice.testing.disk import SimDisk, SimFile

FOLDER = "store"
PATH = f"{FOLDER}/history"
START_MS = 1_800_000_000_000


def open_store(
    disk: SimDisk, clock: StoppedClock, *, read_only: bool = False, retention: Retention = RETENTION
) -> CellStore:
    return CellStore.open(
        FOLDER,
        disk=disk,
        entropy=SeededEntropy(1),
        clock=clock,
        read_only=read_only,
        retention=retention,
    )


def commit(store: CellStore, clock: StoppedClock, number: int, after_ms: int = 1_000) -> Moment:
    clock.now += after_ms
    return Moment(clock.now, store.commit(Vector.of([number])).root_hash)


def test_remembered_roots_are_no_work_for_the_cycle_collector() -> None:
    def count() -> int:
        gc.collect()
        return sum(isinstance(one, Moment) for one in gc.get_objects())

    before = count()
    store = MemoryStore()
    for number in range(100):
        store.commit(Vector.of([number]))
    assert count() == before
    assert len(store.history.entries()) == 100


def test_each_durable_root_is_remembered_with_its_time() -> None:
    disk, clock = SimDisk(1), StoppedClock(START_MS)
    with open_store(disk, clock) as store, open_store(disk, clock, read_only=True) as reader:
        done = [commit(store, clock, number) for number in range(5)]
        store.commit(Vector.of([4]))  # the same root again is no entry
        assert store.history.entries() == done == reader.history.entries()
        assert store.history.at(done[2].time_ms) == done[2]
        assert store.history.at(done[3].time_ms - 1) == done[2]
        assert store.history.at(done[4].time_ms + DAY_MS) == done[4]
        assert store.history.at(done[0].time_ms - 1) is None
        assert reader.as_of(done[1].time_ms) == Vector.of([1])
        with pytest.raises(UsageError, match=r"nothing is known of .* the history begins at"):
            reader.as_of(0)
    with open_store(disk, clock) as store:
        assert store.history.entries() == done


class Contended:
    """A lock that another thread takes first, for `work`."""

    def __init__(self, lock: AbstractContextManager[bool], work: Callable[[], None]) -> None:
        self._lock = lock
        self._work = work

    def __enter__(self) -> None:
        work, self._work = self._work, lambda: None
        work()
        self._lock.__enter__()

    def __exit__(self, *raised: object) -> None:
        self._lock.__exit__(None, None, None)


def test_entries_that_another_thread_wrote_are_not_written_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk, clock = SimDisk(1), StoppedClock(START_MS)
    with open_store(disk, clock) as store, open_store(disk, clock, read_only=True) as reader:
        done = [commit(store, clock, number) for number in range(5)]
        store.history.note(done[0].root_hash)
        lock = store.history._lock
        monkeypatch.setattr(store.history, "_lock", Contended(lock, store.history.flush))
        store.history.flush()
        assert store.history.entries() == reader.history.entries()
        assert reader.history.damage == ()


def test_a_root_may_come_back() -> None:
    disk, clock = SimDisk(1), StoppedClock(START_MS)
    with open_store(disk, clock) as store:
        done = [commit(store, clock, number) for number in (1, 2, 1)]
        assert store.history.entries() == done
        assert store.history.roots() == [done[0].root_hash, done[1].root_hash]


def test_times_never_go_back() -> None:
    disk, clock = SimDisk(1), StoppedClock(START_MS)
    with open_store(disk, clock) as store:
        first = commit(store, clock, 1)
        clock.now -= HOUR_MS
        second = Moment(first.time_ms, store.commit(Vector.of([2])).root_hash)
        assert store.history.entries() == [first, second]
        assert store.history.at(first.time_ms) == second
    with open_store(disk, clock) as store:
        third = Moment(first.time_ms, store.commit(Vector.of([3])).root_hash)
        assert store.history.entries() == [first, second, third]


def test_a_store_without_a_history_begins_one_with_its_root() -> None:
    disk, clock = SimDisk(1), StoppedClock(START_MS)
    with open_store(disk, clock) as store:
        root = commit(store, clock, 1).root_hash
    disk.drop(PATH)
    clock.now += 7
    with open_store(disk, clock) as store:
        assert store.history.entries() == [Moment(clock.now, root)]


def test_entries_that_were_lost_leave_no_wrong_ones() -> None:
    disk, clock = SimDisk(1), StoppedClock(START_MS)
    with open_store(disk, clock) as store:
        done = [commit(store, clock, number) for number in range(4)]
    disk.cut(PATH, disk.size(PATH) - SLOT_BYTES - 1)
    with open_store(disk, clock, read_only=True) as reader:
        assert reader.history.entries() == done[:2]
        assert reader.history.damage == ()
    clock.now += 5
    with open_store(disk, clock) as store:  # the present root is, from now on
        assert store.history.entries() == [*done[:2], Moment(clock.now, done[3].root_hash)]


def test_one_flipped_bit_costs_one_entry_and_is_told() -> None:
    disk, clock = SimDisk(1), StoppedClock(START_MS)
    with open_store(disk, clock) as store:
        done = [commit(store, clock, number) for number in range(4)]
    size = disk.size(PATH)
    for offset in range(16, size):
        disk.flip(PATH, offset, 4)
        with open_store(disk, clock, read_only=True) as reader:
            found = reader.history.entries()
            lost = (offset - 16) // SLOT_BYTES
            assert found == done[:lost] + done[lost + 1 :]
            is_last = lost == 3  # may have been on its way when the power failed
            assert [one.file for one in reader.history.damage] == ([] if is_last else [PATH])
        disk.flip(PATH, offset, 4)
    disk.flip(PATH, 0)
    with open_store(disk, clock, read_only=True) as reader:
        assert reader.history.entries() == []
        assert [one.offset for one in reader.history.damage] == [0]


def test_entries_out_of_order_are_left_out() -> None:
    slots = [history._slot(ms, bytes([ms]) * 32) for ms in (5, 9, 7, 9, 11)]
    entries, bad = parse_history(history._HEAD + b"".join(slots))
    assert [one.time_ms for one in entries] == [5, 9, 9, 11]
    assert bad == [16 + 2 * SLOT_BYTES]


def test_roots_that_are_not_here_are_forgotten() -> None:
    disk, clock = SimDisk(1), StoppedClock(START_MS)
    with open_store(disk, clock) as store:
        done = [commit(store, clock, number) for number in range(3)]
        store.discard([done[1].root_hash])
    with open_store(disk, clock) as store:
        assert store.history.entries() == [done[0], done[2]]


def test_what_roots_does_not_name_never_comes_back() -> None:
    disk, clock = SimDisk(1), StoppedClock(START_MS)
    with open_store(disk, clock, retention=KEEP_NOTHING) as store:
        done = [commit(store, clock, number) for number in range(5)]
        assert len(store.history.entries()) == 5  # thinned when it is looked at for good
        assert store.history.roots() == [done[-1].root_hash]
        disk.restart(power_failure=True)
    with open_store(disk, clock) as store:
        assert store.history.entries() == [done[-1]]


def test_forgetting_is_durable_and_spares_the_present_root() -> None:
    disk, clock = SimDisk(1), StoppedClock(START_MS)
    with open_store(disk, clock) as store:
        done = [commit(store, clock, number) for number in range(5)]
        assert store.history.forget(done[2].time_ms) == 2
        assert store.history.forget(done[2].time_ms) == 0
        disk.restart(power_failure=True)
    with open_store(disk, clock) as store:
        assert store.history.entries() == done[2:]
        assert store.history.forget(clock.now + DAY_MS) == 2
        assert store.history.entries() == done[4:]


def test_a_disk_that_refuses_the_history_costs_no_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    disk, clock = SimDisk(1), StoppedClock(START_MS)
    with open_store(disk, clock) as store:
        commit(store, clock, 1)
        write = SimFile.write
        refusing = True

        def refuse(file: SimFile, offset: int, data: bytes) -> None:
            if refusing and len(data) == SLOT_BYTES:
                raise OSError(errno.ENOSPC, "full")
            write(file, offset, data)

        monkeypatch.setattr(SimFile, "write", refuse)
        commit(store, clock, 2)
        assert "no room" in str(store.history.failure)
        refusing = False
        commit(store, clock, 3)
        assert store.history.failure is None
        assert len(store.history.entries()) == 3
    with open_store(disk, clock, read_only=True) as reader:
        assert len(reader.history.entries()) == 3


def thinned(times: list[int], now_ms: int, retention: Retention = RETENTION) -> list[int]:
    entries = [Moment(ms, ms.to_bytes(32, "big")) for ms in times]
    return [one.time_ms for one in retention.thin(entries, now_ms)]


def test_the_recent_past_is_kept_as_it_is_up_to_a_number() -> None:
    now = START_MS
    times = [now - MINUTE_MS + 10 * n for n in range(RECENT_MAX + 1)]
    assert thinned(times, now) == times
    more = [times[0] - 10, *times]  # it was replaced too long ago, and answers for no second
    assert thinned(more, now) == times
    dense = [now - 2 * RECENT_MAX + n for n in range(2 * RECENT_MAX)]
    kept = thinned(dense, now)
    assert kept[-RECENT_MAX - 1 :] == dense[-RECENT_MAX - 1 :]
    assert len(kept) <= RECENT_MAX + 3


@pytest.mark.parametrize(
    ("span", "interval"),
    [(10 * MINUTE_MS, SECOND_MS), (DAY_MS, MINUTE_MS), (30 * DAY_MS, HOUR_MS)],
)
def test_older_questions_are_answered_for_each_full_interval(span: int, interval: int) -> None:
    now = START_MS + 123
    times = list(range(now - span, now, max(interval // 3 - 7, span // 40_000)))
    kept = thinned(times, now)
    for asked in range(-(-(now - span) // interval + 1) * interval, now, interval):
        exact = max((ms for ms in times if ms <= asked), default=None)
        answer = max((ms for ms in kept if ms <= asked), default=None)
        assert answer == exact, "the root at a full interval is remembered"
        if asked > now - span + 300 * interval:
            break


def test_a_history_is_bounded_and_thinning_twice_changes_nothing() -> None:
    now = START_MS
    times = sorted({now - age for n in range(4_000) for age in (n * 37, n * 611_003, n * 7_001)})
    kept = thinned(times, now)
    bound = RECENT_MAX + 600 + 1_440 + 720 + 4
    assert len(kept) <= bound < len(times)
    assert thinned(kept, now) == kept
    assert kept[-1] == times[-1]
    assert thinned([5], now) == [5], "the present root stays, however old it is"


def test_thinning_as_time_goes_keeps_what_thinning_at_once_keeps() -> None:
    retention = Retention(3, 50, ((200, 10), (2_000, 100)))
    entries: list[Moment] = []
    for ms in range(1_000, 2_500, 3):
        entries.append(Moment(ms, ms.to_bytes(32, "big")))
        entries = retention.thin(entries, ms)
    everything = [Moment(ms, ms.to_bytes(32, "big")) for ms in range(1_000, 2_500, 3)]
    kept = {one.time_ms for one in entries}
    assert {one.time_ms for one in retention.thin(everything, 2_497)} <= kept
    assert all(a.time_ms < b.time_ms for a, b in pairwise(entries))


@pytest.mark.parametrize(
    "steps", [((1, 1), (1, 1)), ((9, 2), (99, 3)), ((0, 1),), ((9, 0),), ((9, 1), (5, 2))]
)
def test_a_retention_that_cannot_be_kept_is_refused(steps: tuple[tuple[int, int], ...]) -> None:
    with pytest.raises(UsageError, match="Retention"):
        Retention(steps=steps)


def test_the_file_is_written_anew_before_it_grows_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "COMPACT_ENTRIES", 20)
    disk, clock = SimDisk(1), StoppedClock(START_MS)
    retention = Retention(5, DAY_MS, ())
    value: Value = None
    with open_store(disk, clock, retention=retention) as store:
        for number in range(100):
            commit(store, clock, number)
            value = store.root()
            assert disk.size(PATH) <= 16 + 26 * SLOT_BYTES
        assert store.history.entries()[-1].root_hash == value_hash(value)
    with open_store(disk, clock, read_only=True) as reader:
        assert reader.history.entries()[-1].root_hash == value_hash(value)
        assert 6 <= len(reader.history.entries()) <= 26
