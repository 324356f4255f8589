"""One partition: appends, reads, truncation, metadata, forks, and what bad arguments say."""

from __future__ import annotations

import pytest

from datalattice.apps.queue import (
    NewRecords,
    Queue,
    QueueLattice,
    entry_headers,
    entry_key,
    entry_stamp_ms,
    entry_value,
    is_entry,
    make_entry,
    read_state,
)
from datalattice.cells import EMPTY_MAP, Keyword, Map, Vector, novelty, same, to_cell, value_hash
from datalattice.clock import SystemClock
from datalattice.errors import TypeMismatch, UsageError
from datalattice.testing.clocks import StoppedClock

STAMPS = Keyword("meta-stamps")


def queue_of(*values: object, clock: StoppedClock | None = None) -> Queue:
    queue = Queue.create(clock or StoppedClock())
    for value in values:
        queue.offer(value)
    return queue


def state_of(queue: Queue) -> Vector:
    state = queue.cursor.get()
    assert isinstance(state, Vector)
    return state


def contents(queue: Queue) -> list[object]:
    return list(queue)


def test_an_empty_queue_reads_as_nothing() -> None:
    queue = queue_of()
    assert queue.peek(0) is None
    assert queue.peek_entry(0) is None
    assert queue.peek_first() is queue.peek_last() is None
    assert queue.peek_first_entry() is queue.peek_last_entry() is None
    assert (queue.start_offset(), queue.end_offset(), queue.size()) == (0, 0, 0)
    assert queue.is_empty()
    assert len(queue.range(0, 10)) == 0
    assert queue  # an empty queue is a queue all the same


def test_offsets_count_from_zero() -> None:
    queue = Queue.create(StoppedClock())
    assert [queue.offer(v) for v in ("a", "b", "c")] == [0, 1, 2]
    assert [queue.peek(i) for i in range(-1, 4)] == [None, "a", "b", "c", None]
    assert (queue.peek_first(), queue.peek_last()) == ("a", "c")
    assert len(queue) == 3


def test_a_record_carries_key_value_time_and_headers() -> None:
    queue = Queue.create(StoppedClock(77))
    queue.offer("v", key="k", headers={"h": 1})
    entry = queue.peek_entry(0)
    assert is_entry(entry)
    assert entry_key(entry) == "k"
    assert entry_value(entry) == "v"
    assert entry_stamp_ms(entry) == 77
    assert same(entry_headers(entry), Map.of({"h": 1}))


def test_what_is_no_record_reads_as_nothing() -> None:
    for value in (
        None,
        5,
        Vector.of((1, 2, 3)),
        Vector.of((1, 2, None, 3)),
        Vector.of([0, 1, True, 0]),
    ):
        assert not is_entry(value)
        assert entry_key(value) is None
        assert entry_value(value) is None
        assert entry_stamp_ms(value) is None
        assert same(entry_headers(value), EMPTY_MAP)


def test_the_system_clock_stamps_a_record_between_two_readings() -> None:
    clock = SystemClock()
    before = clock.now_ms()
    queue = Queue.create()
    queue.offer("x")
    stamp = entry_stamp_ms(queue.peek_entry(0))
    assert stamp is not None
    assert before <= stamp <= clock.now_ms()


def test_a_clock_that_steps_back_never_lowers_the_time_slot() -> None:
    clock = StoppedClock(100)
    queue = queue_of("a", clock=clock)
    clock.now = 40
    queue.offer("b")
    assert read_state(queue.cursor.get()).stamp_ms == 100
    assert entry_stamp_ms(queue.peek_entry(1)) == 40
    queue.set_meta("k", 1)
    queue.truncate(1)
    assert read_state(queue.cursor.get()).stamp_ms == 100


def test_range_includes_both_ends_and_is_clamped() -> None:
    queue = queue_of(*range(10))
    queue.truncate(3)
    assert list(queue.range(4, 6)) == [4, 5, 6]
    assert list(queue.range(-5, 4)) == [3, 4]
    assert list(queue.range(8, 100)) == [8, 9]
    assert list(queue.range(6, 5)) == []
    assert list(queue.range(0, 2)) == []
    assert [entry.value for entry in queue.entries(4, 7)] == [4, 5, 6]
    assert contents(queue) == list(range(3, 10))


def test_truncate_removes_the_oldest_and_keeps_offsets() -> None:
    queue = queue_of("a", "b", "c")
    assert queue.truncate(2) == 2
    assert (queue.peek(0), queue.peek(1), queue.peek(2)) == (None, None, "c")
    assert (queue.start_offset(), queue.end_offset(), queue.size()) == (2, 3, 1)
    assert queue.offer("d") == 3


def test_truncate_past_the_end_moves_the_next_offset() -> None:
    queue = queue_of("a", "b")
    assert queue.truncate(10) == 2
    assert (queue.start_offset(), queue.end_offset()) == (10, 10)
    assert queue.offer("c") == 10
    empty = queue_of()
    assert empty.truncate(7) == 0
    assert empty.offer("x") == 7


def test_truncate_at_or_before_the_start_changes_nothing_at_all() -> None:
    clock = StoppedClock(5)
    queue = queue_of("a", "b", clock=clock)
    queue.truncate(1)
    before = queue.cursor.get()
    clock.now = 9
    for start in (-3, 0, 1):
        assert queue.truncate(start) == 0
    assert queue.cursor.get() is before


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 1_000])
def test_offer_many_equals_single_offers(count: int) -> None:
    values = [b"%d" % i * 20 for i in range(count)]
    keys = [f"k{i % 7}" for i in range(count)]
    headers = [{"n": i} if i % 3 else None for i in range(count)]
    singly, bulk = queue_of("first"), queue_of("first")
    for value, key, header in zip(values, keys, headers, strict=True):
        singly.offer(value, key=key, headers=header)
    assert bulk.offer_many(values, keys=keys, headers=headers) == range(1, count + 1)
    assert value_hash(bulk.cursor.get()) == value_hash(singly.cursor.get())


def test_offer_many_without_keys_equals_single_offers() -> None:
    singly, bulk = queue_of(), queue_of()
    for value in ("a", 1, True, b"x" * 5_000, [1, 2]):
        singly.offer(value)
    bulk.offer_many(["a", 1, True, b"x" * 5_000, [1, 2]])
    assert value_hash(bulk.cursor.get()) == value_hash(singly.cursor.get())


def test_none_is_a_tombstone_that_reads_as_none() -> None:
    queue = queue_of("a")
    assert queue.offer(None, key="k") == 1
    assert queue.offer_many([1, None] * 20, keys=["k"] * 40) == range(2, 42)
    assert list(queue)[:4] == ["a", None, 1, None]
    assert queue.peek(1) is None
    entry = queue.peek_entry(1)
    assert entry is not None
    assert (entry_key(entry), entry_value(entry)) == ("k", None)
    singly = queue_of("a")
    singly.offer(None, key="k")
    for _ in range(20):
        singly.offer(1, key="k")
        singly.offer(None, key="k")
    assert value_hash(singly.cursor.get()) == value_hash(queue.cursor.get())


def test_offer_many_of_nothing_writes_nothing() -> None:
    queue = queue_of("a")
    before = queue.cursor.get()
    assert queue.offer_many([]) == range(1, 1)
    assert queue.cursor.get() is before


def test_a_bad_record_in_a_batch_appends_nothing() -> None:
    queue = queue_of("a")
    before = queue.cursor.get()
    with pytest.raises(UsageError, match="`keys` has 1 elements for 2 values"):
        queue.offer_many(["b", "c"], keys=["k"])
    with pytest.raises(UsageError, match="`headers` has 3 elements for 2 values"):
        queue.offer_many(["b", "c"], headers=[None] * 3)
    assert queue.cursor.get() is before


def test_bad_arguments_say_what_is_accepted() -> None:
    queue = queue_of("a")
    with pytest.raises(TypeMismatch, match="mapping or None"):
        queue.offer("x", headers=[1])
    for offset in (True, 1.0, "1", 2**63):
        with pytest.raises(UsageError, match="offset"):
            queue.peek(offset)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="start"):
        queue.truncate(2**63)
    assert queue.truncate(2**63 - 1) == 1
    assert queue.size() == 0


def test_metadata_first_value_has_no_stamp_a_replacement_has() -> None:
    clock = StoppedClock(50)
    queue = queue_of(clock=clock)
    queue.set_meta("owner", "ann")
    assert same(state_of(queue)[1], Map.of({"owner": "ann"}))
    assert queue.get_meta("owner") == "ann"
    queue.set_meta("owner", "ann")
    assert same(state_of(queue)[1], Map.of({"owner": "ann"}))
    queue.set_meta("owner", "bob")
    assert same(state_of(queue)[1], Map.of({"owner": "bob", STAMPS: {"owner": 50}}))
    queue.set_meta("owner", "cy")
    assert same(state_of(queue)[1], Map.of({"owner": "cy", STAMPS: {"owner": 51}}))
    clock.now = 90
    queue.set_meta("owner", None)
    assert queue.get_meta("owner") is None
    assert same(state_of(queue)[1], Map.of({"owner": None, STAMPS: {"owner": 90}}))
    assert len(state_of(queue)) == 4
    queue.set_meta(Keyword("other"), 1)
    assert same(queue.state().meta.stamps, Map.of({"owner": 90}))


def test_values_that_python_calls_equal_are_different_metadata() -> None:
    queue = queue_of()
    queue.set_meta("k", 1)
    queue.set_meta("k", True)
    assert queue.get_meta("k") is True
    assert same(queue.state().meta.stamps, Map.of({"k": 1_000}))


def test_a_fork_is_invisible_until_synced() -> None:
    queue = queue_of("a")
    fork = queue.fork()
    fork.offer("b")
    assert contents(queue) == ["a"]
    fork.sync()
    assert contents(queue) == ["a", "b"]
    assert queue.cursor.get() is fork.cursor.get()


def test_of_two_forks_the_longer_log_wins_as_a_whole() -> None:
    queue = queue_of("a")
    long, short = queue.fork(), queue.fork()
    long.offer_many(["x", "y", "z"])
    short.offer("other")
    long.sync()
    short.sync()
    assert contents(queue) == ["a", "x", "y", "z"]
    assert contents(short) == ["a", "x", "y", "z"]


def test_reading_takes_nil_slots_as_zero() -> None:
    queue = queue_of()
    for state in (None, Vector.of((None, None, None, None)), Vector.of((None, None, 0, 0, None))):
        queue.cursor.set(state)
        assert (queue.start_offset(), queue.end_offset(), queue.get_meta("k")) == (0, 0, None)
    queue.cursor.set(Vector.of((None, None, None, 4)))
    assert queue.offer("x") == 4


def test_a_state_of_the_wrong_shape_reads_as_empty() -> None:
    queue = queue_of()
    for state in (7, Vector.of((1, 2)), Vector.of(("x", "y", -1, 0)), Vector.of(("x", 1, 2, "z"))):
        queue.cursor.set(state)
        assert queue.size() == 0
        assert queue.start_offset() == 0
    assert read_state(Vector.of((1, 2, 3, 4, 5))).start == 4


def test_a_bad_record_inside_a_log_keeps_its_place() -> None:
    queue = queue_of("a")
    state = state_of(queue)
    records = state[0]
    assert isinstance(records, Vector)
    queue.cursor.set(state.set(0, records.append(5)))
    queue.offer("c")
    assert list(queue.range(0, 2)) == ["a", None, "c"]
    assert queue.peek(1) is None


def test_positions_past_the_fourth_stay() -> None:
    queue = queue_of()
    queue.cursor.set(to_cell([[], {}, 0, 0, None, "x", "y"]))
    queue.offer("a")
    assert list(state_of(queue))[4:] == [None, "x", "y"]


def test_a_queue_prints_its_bounds() -> None:
    assert repr(queue_of("a", "b")) == "<Queue: 2 records, 0 to 1, last 'b'>"


def test_the_lattice_of_a_new_queue_is_the_queue_lattice() -> None:
    assert isinstance(queue_of().cursor.lattice, QueueLattice)


# --- logs that were made ahead --------------------------------------------------------------


def test_a_log_that_was_made_ahead_takes_its_place() -> None:
    clock = StoppedClock()
    queue, other = (queue_of(*range(20), clock=clock) for _ in range(2))
    for one in (queue, other):
        one.truncate(3)
    clock.now = 2_000
    before = queue.state()
    made = NewRecords(["a", "b"], clock.now).append_to(before.entries)
    assert queue.advance(before, made)
    other.offer_many(["a", "b"])
    assert same(queue.cursor.get(), other.cursor.get())
    assert queue.end_offset() == 22


@pytest.mark.parametrize("meanwhile", ["offer", "truncate"])
def test_a_log_that_changed_meanwhile_stays(meanwhile: str) -> None:
    queue = queue_of(*range(20))
    before = queue.state()
    made = NewRecords(["a"], 5).append_to(before.entries)
    if meanwhile == "offer":
        queue.offer("b")
    else:
        queue.truncate(16)
    present = queue.cursor.get()
    assert not queue.advance(before, made)
    assert queue.cursor.get() is present


def test_metadata_set_meanwhile_is_kept_by_a_log_made_ahead() -> None:
    queue = queue_of("a")
    before = queue.state()
    queue.set_meta("k", 1)
    assert queue.advance(before, NewRecords(["b"], 5).append_to(before.entries))
    assert contents(queue) == ["a", "b"]
    assert queue.get_meta("k") == 1


def test_a_log_does_not_go_on_as_a_shorter_one() -> None:
    queue = queue_of("a", "b")
    before = queue.state()
    with pytest.raises(UsageError, match="`entries` has 1 records, the log it extends 2"):
        queue.advance(before, before.entries.take(1))


@pytest.mark.parametrize("length", [140, 141, 4_096, 4_097, 12_000, 100_000])
@pytest.mark.parametrize("part", ["value", "key"])
def test_many_long_records_in_one_go_keep_all_their_cells(length: int, part: str) -> None:
    long = [bytes([number]) * length for number in range(32)]
    short = list(range(32))
    values, keys = (long, short) if part == "value" else (short, long)
    one_by_one = [make_entry(to_cell(k), to_cell(v), 7) for k, v in zip(keys, values, strict=True)]
    log = NewRecords(values, 7, keys).append_to(Vector.of([]))
    assert novelty_hashes(log) == novelty_hashes(Vector.of(one_by_one))


def novelty_hashes(value: Vector) -> set[bytes]:
    return {hash for hash, _, _ in novelty(value)}
