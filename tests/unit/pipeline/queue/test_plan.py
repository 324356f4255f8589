"""Plans: positions, limits, losses and the cutting of ranges into tasks."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, strategies as st

from datalattice.errors import DataLoss, UsageError
from datalattice.pipeline.queue import plan
from datalattice.pipeline.queue.options import Edge, Positions
from datalattice.pipeline.queue.plan import (
    RECORDS_PER_TASK_MAX,
    LostRecords,
    Offsets,
    PartitionLog,
    PartitionName,
    Slice,
    check_range,
    next_offsets,
    ordered,
    read_offsets,
    refuse_loss,
    resolve_positions,
    share,
    task_slices,
    usable_start,
    write_offsets,
)


def name(partition: int | str, topic: str = "t", owner: str = "0xaa") -> PartitionName:
    return PartitionName(owner, topic, str(partition))


def log(start: int, end: int) -> PartitionLog:
    return PartitionLog(start, end, b"")


def everything(owner: str, topic: str) -> bool:
    return bool(owner and topic)


class Losses(list[LostRecords]):
    def __call__(self, loss: LostRecords) -> None:
        self.append(loss)


A, B, C = name(0), name(1), name(2)


# --- positions ------------------------------------------------------------------------------


def test_edges_and_numbers_become_offsets() -> None:
    view = {A: log(3, 10), B: log(0, 5), C: log(7, 7)}
    positions = Positions(Edge.EARLIEST, {("1",): 4, ("t", "2"): Edge.LATEST})
    assert resolve_positions(view, positions, "x") == {A: 3, B: 4, C: 7}
    assert resolve_positions(view, Positions(Edge.LATEST, {}), "x") == {A: 10, B: 5, C: 7}


def test_an_offset_at_the_end_is_fine_and_past_it_is_refused() -> None:
    view = {A: log(3, 10)}
    assert resolve_positions(view, Positions(Edge.EARLIEST, {("0",): 10}), "startingOffsets") == {
        A: 10
    }
    assert resolve_positions(view, Positions(Edge.EARLIEST, {("0",): 1}), "startingOffsets") == {
        A: 1
    }
    with pytest.raises(UsageError, match=r"option startingOffsets=11 .* has the offsets 3 to 10"):
        resolve_positions(view, Positions(Edge.EARLIEST, {("0",): 11}), "startingOffsets")


def test_an_end_before_a_start_of_one_s_own_is_refused() -> None:
    view = {A: log(0, 10), B: log(6, 10)}
    starting = Positions(Edge.EARLIEST, {("0",): 5})
    for end in (5, 6):
        check_range(view, starting, {A: 5, B: 6}, {A: end, B: 10})
    with pytest.raises(UsageError, match=r"option endingOffsets=4 .* partition 0 .* from 5 on"):
        check_range(view, starting, {A: 5, B: 6}, {A: 4, B: 10})
    # The start of a log that was truncated is not the user's choice.
    check_range(view, starting, {A: 5, B: 6}, {A: 10, B: 2})


@pytest.mark.parametrize("named", [("9",), ("u", "0"), ("0xbb", "t", "0")])
def test_a_named_partition_must_be_there(named: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match=r"option endingOffsets=.* no such partition"):
        resolve_positions({A: log(0, 1)}, Positions(Edge.LATEST, {named: 0}), "endingOffsets")


def test_partitions_are_in_the_order_of_their_numbers() -> None:
    names = [name("10"), name("x"), name("9"), name("2"), name("0", "a"), name("0", "z", "0x0")]
    expected = [name("0", "z", "0x0"), name("0", "a"), name("2"), name("9"), name("10"), name("x")]
    assert ordered(names) == expected


# --- the position of a stream ---------------------------------------------------------------


def test_offsets_survive_a_checkpoint() -> None:
    offsets = {name(10): 5, name(9): 2**62, name('"x"', "u", "did:1"): 0}
    form = write_offsets(offsets)
    text = json.dumps(form)
    assert read_offsets(json.loads(text)) == offsets
    assert json.dumps(write_offsets(dict(reversed(offsets.items())))) == text


@pytest.mark.parametrize(
    "form",
    [
        {},
        {"version": 2, "offsets": {}},
        {"version": 1},
        {"t": {}},
        {"version": 1, "offsets": {"owner": 5}},
        {"version": 1, "offsets": {"owner": {"t": {"0": "x"}}}},
        {"version": 1, "offsets": {"owner": {"t": {"0": None}}}},
    ],
)
def test_foreign_checkpoints_are_refused(form: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="checkpointLocation"):
        read_offsets(form)


def test_a_stream_goes_on_to_the_ends() -> None:
    view = {A: log(0, 10), B: log(0, 4)}
    assert next_offsets(view, {A: 3, B: 4}, everything, refuse_loss) == {A: 10, B: 4}


def test_nothing_new_gives_the_start_back() -> None:
    view = {A: log(0, 10), B: log(0, 0)}
    assert next_offsets(view, {A: 10}, everything, refuse_loss) == {A: 10}


def test_a_new_partition_joins_with_its_first_records() -> None:
    assert next_offsets({A: log(0, 1), B: log(5, 8)}, {A: 1}, everything, refuse_loss) == {
        A: 1,
        B: 8,
    }


def test_with_a_target_nothing_past_it_is_read() -> None:
    view = {A: log(0, 10), B: log(0, 10), C: log(0, 10)}
    target = {A: 6, B: 2}
    ends = next_offsets(view, {A: 3, B: 5}, everything, refuse_loss, target=target)
    assert ends == {A: 6, B: 5}
    assert next_offsets(view, ends, everything, refuse_loss, target=target) == ends


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 500)), min_size=1, max_size=8),
    st.integers(1, 300),
)
def test_limited_batches_reach_the_target_and_no_record_is_left_out(
    logs: list[tuple[int, int]], limit: int
) -> None:
    view = {name(i): log(start, start + size) for i, (start, size) in enumerate(logs)}
    target = {each: found.end for each, found in view.items()}
    at: Offsets = {each: found.start for each, found in view.items()}
    for _ in range(sum(size for _, size in logs) // limit + 2):
        ends = next_offsets(view, at, everything, refuse_loss, limit=limit, target=target)
        taken = sum(ends.values()) - sum(at.values())
        assert taken == min(limit, sum(target.values()) - sum(at.values()))
        assert all(at[each] <= ends[each] <= target[each] for each in view)
        at = ends
    assert at == target


@given(st.lists(st.integers(0, 2**40), max_size=10), st.integers(1, 2**40) | st.none())
def test_shares_add_up_to_the_limit(sizes: list[int], limit: int | None) -> None:
    taken = share(sizes, limit)
    assert all(0 <= part <= size for part, size in zip(taken, sizes, strict=True))
    assert sum(taken) == (sum(sizes) if limit is None else min(limit, sum(sizes)))


def test_shares_are_in_proportion() -> None:
    assert share([900, 100], 100) == [90, 10]
    assert share([1, 1, 1], 2) == [1, 1, 0]
    assert share([1_000, 1], 1) == [1, 0]


# --- losses ---------------------------------------------------------------------------------


def test_what_was_truncated_is_reported_and_jumped_over() -> None:
    lost = Losses()
    view = {A: log(8, 10)}
    assert usable_start(view, {A: 3}, everything, lost) == {A: 8}
    assert lost == [LostRecords(A, 3, 8, "the log was truncated and starts at 8")]
    assert next_offsets(view, {A: 3}, everything, lost) == {A: 10}


def test_a_log_truncated_past_its_end_moves_the_stream_too() -> None:
    lost = Losses()
    assert next_offsets({A: log(20, 20)}, {A: 3}, everything, lost) == {A: 20}
    assert [(loss.first, loss.stop) for loss in lost] == [(3, 20)]


def test_a_log_that_became_shorter_waits_where_it_was() -> None:
    lost = Losses()
    assert next_offsets({A: log(0, 5)}, {A: 9}, everything, lost) == {A: 9}
    assert [(loss.first, loss.stop) for loss in lost] == [(5, 9)]


def test_a_partition_that_is_gone_is_reported_unless_it_was_empty_or_not_asked_for() -> None:
    lost = Losses()
    assert next_offsets({}, {A: 9, B: 0}, everything, lost) == {A: 9, B: 0}
    assert [loss.name for loss in lost] == [A]
    other = Losses()
    assert next_offsets({}, {A: 9}, lambda *names: names[1] == "u", other) == {A: 9}
    assert other == []


def test_a_refused_loss_says_all_that_is_needed() -> None:
    with pytest.raises(DataLoss) as caught:
        usable_start({A: log(8, 10)}, {A: 3}, everything, refuse_loss)
    assert str(caught.value) == (
        "partition 0 of topic 't' of owner 0xaa: records 3 to 7 are not there: the log was "
        "truncated and starts at 8; set failOnDataLoss=false to continue with the records that are "
        "there"
    )


def test_a_batch_that_is_asked_for_again_and_is_partly_gone() -> None:
    lost = Losses()
    view = {A: log(0, 5)}
    parts = task_slices(view, {A: 2}, {A: 9, B: 4}, lost)
    assert [(part.first, part.stop) for part in parts] == [(2, 5)]
    assert [(loss.name, loss.first, loss.stop) for loss in lost] == [(A, 5, 9), (B, 0, 4)]


def test_a_partition_that_is_gone_before_its_first_batch_is_reported() -> None:
    for start in ({}, {A: 0}):  # nothing of it was read, so that its position tells nothing
        lost = Losses()
        assert task_slices({}, usable_start({}, start, everything, lost), {A: 3}, lost) == []
        assert [(loss.name, loss.first, loss.stop) for loss in lost] == [(A, 0, 3)]
        with pytest.raises(DataLoss, match=r"records 0 to 2 .* no longer in the store"):
            task_slices({}, start, {A: 3}, refuse_loss)
        assert task_slices({}, start, {A: 3}, refuse_loss, selects=lambda *_: False) == []


# --- tasks ----------------------------------------------------------------------------------


def ranges(parts: list[Slice]) -> list[tuple[PartitionName, int, int]]:
    return [(part.name, part.first, part.stop) for part in parts]


def test_each_partition_with_records_is_a_task() -> None:
    view = {A: log(0, 10), B: log(3, 3), C: log(5, 6)}
    start = {A: 2, B: 3, C: 5}
    end = {A: 9, B: 3, C: 6}
    assert ranges(task_slices(view, start, end, refuse_loss)) == [(A, 2, 9), (C, 5, 6)]


def test_a_partition_without_a_start_is_read_from_its_own() -> None:
    assert ranges(task_slices({A: log(4, 9)}, {}, {A: 9}, refuse_loss)) == [(A, 4, 9)]


@pytest.mark.parametrize(
    ("count", "tasks"),
    [
        (RECORDS_PER_TASK_MAX - 1, 1),
        (RECORDS_PER_TASK_MAX, 1),
        (RECORDS_PER_TASK_MAX + 1, 2),
        (10 * RECORDS_PER_TASK_MAX, 10),
    ],
)
def test_long_ranges_are_cut(count: int, tasks: int) -> None:
    assert len(task_slices({A: log(0, count)}, {}, {A: count}, refuse_loss)) == tasks


@pytest.mark.parametrize(
    ("count", "asked", "tasks"),
    [
        (10 * RECORDS_PER_TASK_MAX, None, 10),
        (100 * RECORDS_PER_TASK_MAX, None, 100),
        (100 * RECORDS_PER_TASK_MAX + 1, None, 100),
        (1_000, 99, 99),
        (1_000, 100, 100),
        (1_000, 101, 100),
        (2**62, None, 100),
        (2**62, 2**62, 100),
    ],
)
def test_however_long_a_log_says_it_is_a_plan_is_bounded(
    monkeypatch: pytest.MonkeyPatch, count: int, asked: int | None, tasks: int
) -> None:
    monkeypatch.setattr(plan, "TASKS_MAX", 100)
    parts = task_slices({A: log(0, count)}, {}, {A: count}, refuse_loss, asked)
    assert len(parts) == tasks
    assert (parts[0].first, parts[-1].stop) == (0, count)


@given(
    st.lists(st.tuples(st.integers(0, 100), st.integers(0, 3_000)), min_size=1, max_size=5),
    st.integers(1, 40),
)
def test_tasks_cover_every_record_once_and_are_as_many_as_asked_for(
    logs: list[tuple[int, int]], wanted: int
) -> None:
    view = {name(i): log(start, start + size) for i, (start, size) in enumerate(logs)}
    end = {each: found.end for each, found in view.items()}
    parts = task_slices(view, {}, end, refuse_loss, wanted)
    for each, found in view.items():
        if found.start == found.end:
            continue
        mine = [part for part in parts if part.name == each]
        edges = [part.first for part in mine] + [found.end]
        assert edges[0] == found.start
        assert all(part.stop == then for part, then in zip(mine, edges[1:], strict=True))
        assert all(part.first < part.stop for part in mine)
    total = sum(size for _, size in logs)
    assert len(parts) >= min(wanted, total)


def test_long_ranges_are_cut_between_leaves() -> None:
    parts = task_slices({A: log(5, 1_005)}, {}, {A: 1_005}, refuse_loss, 3)
    assert len(parts) == 3
    assert all((part.first - 5) % 16 == 0 for part in parts)
