"""Consumers: what is done, when it is stored, what comes again, and what is refused."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime

import pytest

from datalattice.apps.kv import Database
from datalattice.apps.queue import CONSUMERS_DATABASE, Consumer, PartitionId, Queue
from datalattice.apps.queue.consumer import field_of, is_within
from datalattice.cells import Keyword, Value, value_hash
from datalattice.crypto import KeyPair
from datalattice.errors import (
    ConsumerBusy,
    DataLoss,
    ReadOnly,
    StoreFull,
    Unavailable,
    UsageError,
)
from datalattice.lattice import RecordsSkipped
from datalattice.testing.bindings import MemoryBinding
from datalattice.testing.clocks import StoppedClock
from datalattice.testing.polling import LIMIT_S

KEYS = KeyPair(bytes(range(32)))
OTHER = KeyPair(bytes(range(1, 33)))
LOG = f"log/{KEYS.public_key.hex()}/0"


def node(*values: object) -> MemoryBinding:
    here = MemoryBinding(KEYS, StoppedClock(), OTHER)
    here.queue("log").offer_many(values)
    return here


def robot(here: MemoryBinding, **options: object) -> Consumer:
    settings = {"wait": False, "commit_every": 0.0, **options}
    return here.queue("log").consumer("robot", **settings)  # type: ignore[arg-type]


def stored(here: MemoryBinding, name: str = "robot") -> dict[Value, Value]:
    database = Database.at(here.base, here.own, CONSUMERS_DATABASE)
    return {field: list(value) for field, value in database.hgetall(name).entries()}  # type: ignore[call-overload]


def values_of(entries: object) -> list[object]:
    return [entry.value for entry in entries]  # type: ignore[attr-defined]


# --- done ---


def test_asking_for_the_next_entry_says_that_the_one_before_is_done() -> None:
    here = node("a", "b", "c")
    with robot(here) as tasks:
        assert next(tasks).value == "a"
        assert (tasks.committed, tasks.lag()) == ({}, 3)
        assert next(tasks).value == "b"
        assert (set(tasks.committed.values()), tasks.lag()) == ({1}, 2)
        assert set(tasks.position.values()) == {2}
    with robot(here) as tasks:  # "b" was delivered, and is not done
        assert values_of(tasks) == ["b", "c"]
        assert (tasks.lag(), set(tasks.committed.values())) == (0, {3})
    assert values_of(robot(here)) == []


def test_an_entry_that_is_left_by_break_or_an_error_comes_again() -> None:
    here = node("a", "b", "c")
    with robot(here) as tasks:
        for task in tasks:
            if task.value == "b":
                break
        for task in tasks:
            assert task.value == "b"
            break
    assert stored(here)[LOG] == [1, value_hash(here.queue("log").peek_entry(0))]
    with suppress(ZeroDivisionError), robot(here) as tasks:
        for task in tasks:
            assert task.value in "bc"
            if task.value == "c":
                raise ZeroDivisionError
    with robot(here) as tasks:
        assert values_of(tasks) == ["c"]


def test_take_gives_a_list_and_the_next_request_says_that_it_is_done() -> None:
    here = node(*range(5))
    with robot(here) as tasks:
        assert values_of(tasks.take(2)) == [0, 1]
        assert values_of(tasks.take(2)) == [2, 3]
        assert tasks.lag() == 3
        assert values_of(tasks.take(9)) == [4]
        assert tasks.take(9) == []
        assert tasks.lag() == 0
        with pytest.raises(UsageError, match="`count` is 1 or more"):
            tasks.take(0)


def test_a_block_of_taken_entries_is_done_when_it_ends_well() -> None:
    here = node(*range(4))
    with robot(here) as tasks:
        with tasks.take(2) as entries:
            assert values_of(entries) == [0, 1]
        assert tasks.lag() == 2
        with pytest.raises(ZeroDivisionError), tasks.take(2):
            raise ZeroDivisionError
        assert values_of(tasks.take(1)) == [2]
    assert stored(here)[LOG][0] == 2  # type: ignore[index]


def test_take_waits_for_the_first_entry() -> None:
    here = node()
    with robot(here) as tasks:
        begun_s = time.monotonic()
        assert tasks.take(1, timeout=0.02) == []
        assert time.monotonic() - begun_s >= 0.02
        writer = threading.Thread(target=here.queue("log").offer_many, args=(["a", "b"],))
        writer.start()
        assert values_of(tasks.take(5, timeout=LIMIT_S)) == ["a", "b"]
        writer.join()


def test_polling_is_a_request_too() -> None:
    here = node("a", "b")
    with robot(here) as tasks:
        assert values_of(tasks.poll()) == ["a", "b"]
        assert tasks.lag() == 2
        assert tasks.poll() == []
        assert tasks.lag() == 0


def test_more_than_a_chunk_can_be_taken_at_once() -> None:
    here = node(*range(5_000))
    with robot(here) as tasks:
        assert values_of(tasks.take(4_000)) == list(range(4_000))
        assert values_of(tasks.take(4_000)) == list(range(4_000, 5_000))


# --- commits ---


def test_done_is_stored_every_so_often_before_waiting_and_at_the_end() -> None:
    here = node("a", "b", "c")
    with robot(here, commit_every=60.0) as tasks:
        assert [next(tasks).value for _ in range(3)] == ["a", "b", "c"]
        assert stored(here) == {}
        assert next(tasks, None) is None
        assert stored(here)[LOG][0] == 3  # type: ignore[index]
        count = len(here.edit_threads)
        assert next(tasks, None) is None
        assert len(here.edit_threads) == count  # nothing new is done
        here.queue("log").offer_many(["d", "e"])
        assert [next(tasks).value for _ in range(2)] == ["d", "e"]
    assert stored(here)[LOG][0] == 4  # type: ignore[index]


def test_commit_says_that_all_delivered_entries_are_done() -> None:
    here = node("a", "b")
    with robot(here, commit_every=60.0) as tasks:
        next(tasks)
        tasks.commit()
        assert stored(here)[LOG][0] == 1  # type: ignore[index]
        assert set(tasks.committed.values()) == {1}
        assert next(tasks).value == "b"


def test_a_commit_inside_a_batch_is_part_of_it() -> None:
    here = node(*range(4))
    with robot(here, commit_every=60.0) as sales:
        with here.batch():
            assert values_of(sales.take(2)) == [0, 1]
            sales.commit()
            assert stored(here) == {}
        assert stored(here)[LOG][0] == 2  # type: ignore[index]


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("way", ["error in the block", "end of the batch"])
def test_a_batch_that_fails_puts_the_consumer_back(commits: bool, way: str) -> None:
    here = node(*range(4))
    with robot(here, commit_every=60.0) as sales:
        assert values_of(sales.take(1)) == [0]
        sales.commit()
        if way == "end of the batch":
            here.fails = StoreFull("full")
        with suppress(StoreFull, ZeroDivisionError), here.batch():
            assert values_of(sales.take(2)) == [1, 2]
            if commits:
                sales.commit()
                assert values_of(sales.take(1)) == [3]
            if way == "error in the block":
                raise ZeroDivisionError
        here.fails = None
        assert set(sales.position.values()) == set(sales.committed.values()) == {1}
        assert sales.lag() == 3
        assert values_of(sales.take(9)) == [1, 2, 3]
    assert stored(here)[LOG][0] == 1  # type: ignore[index]


def test_a_consumer_that_is_closed_after_a_failed_batch_stores_nothing_of_it() -> None:
    here = node(*range(4))
    with suppress(ZeroDivisionError), robot(here) as sales, here.batch():
        sales.take(2)
        sales.commit()
        raise ZeroDivisionError
    assert stored(here) == {}


def test_an_event_loop_takes_entries_and_commits_in_another_thread() -> None:
    here = node("a", "b", "c")

    async def take() -> list[object]:
        got = []
        async with robot(here) as tasks:
            async for task in tasks:
                got.append(task.value)
                if task.value == "b":
                    break
            async for task in tasks:
                got.append(task.value)
        return got

    assert asyncio.run(take()) == ["a", "b", "b", "c"]
    assert here.edit_threads
    assert threading.current_thread() not in here.edit_threads
    assert stored(here)[LOG][0] == 3  # type: ignore[index]


# --- positions ---


def test_positions_are_stored_as_agreed() -> None:
    here = node("a", "b")
    with robot(here) as tasks:
        next(tasks)
        tasks.commit()
    assert stored(here) == {LOG: [1, value_hash(here.queue("log").peek_entry(0))]}


def test_fields_of_unusual_names_are_unambiguous() -> None:
    names: list[Value] = ["a", "a/b", "a%2Fb", "%=3", 3, "3", Keyword("a"), "", b"x"]
    partitions: list[Value] = [0, "0", "a/b", Keyword("p")]
    fields = {field_of((name, None, part)) for name in names for part in partitions}
    assert len(fields) == len(names) * len(partitions)
    assert all(field.count("/") == 2 for field in fields)
    assert is_within(field_of(("a", None, 0)), ("a", None, None))
    assert not is_within(field_of(("a/b", None, 0)), ("a", None, None))


def test_seek_moves_and_stores() -> None:
    here = node(*range(5))
    with robot(here) as tasks:
        assert len(values_of(tasks)) == 5
        tasks.seek(2)
        assert stored(here)[LOG][0] == 2  # type: ignore[index]
        assert values_of(tasks) == [2, 3, 4]
        tasks.seek("start")
        assert next(tasks).value == 0
        tasks.seek("end")
        assert values_of(tasks) == []
        tasks.seek(datetime.fromtimestamp(0, UTC))
        assert values_of(tasks) == list(range(5))
        (id,) = tasks.position
        tasks.seek({id: 3})
        assert values_of(tasks) == [3, 4]
        tasks.seek(1)
        rewound = tasks.committed
    with robot(here) as tasks:
        assert tasks.committed == rewound
        assert values_of(tasks) == [1, 2, 3, 4]


def test_a_start_at_the_end_holds_for_later_sittings() -> None:
    here = node("old")
    with robot(here, start="end") as tasks:
        assert values_of(tasks) == []
    here.queue("log").offer("new")
    with robot(here, start="end") as tasks:
        assert values_of(tasks) == ["new"]


def test_a_start_at_the_end_of_a_topic_without_partitions_holds_too() -> None:
    here = node()
    with here.topic("t").consumer("late", start="end", wait=False) as tasks:
        assert values_of(tasks) == []
    here.topic("t").offer("first", partition=4)
    with here.topic("t").consumer("late", start="end", wait=False) as tasks:
        assert values_of(tasks) == ["first"]


def test_a_topic_and_a_feed_have_a_position_for_each_partition() -> None:
    here = node()
    here.topic("t", 2).offer_many(range(10), keys=[f"k{n}" for n in range(10)])
    Queue.at(here.root, OTHER.public_key, "t", 7, clock=here.clock).offer("theirs")
    with here.topic("t").consumer("both", wait=False) as tasks:
        assert sorted(values_of(tasks)) == list(range(10))  # type: ignore[type-var]
        assert {id.partition for id in tasks.committed} == {0, 1}
    with here.feed("t").consumer("all", wait=False) as tasks:
        assert len(values_of(tasks)) == 11
        assert len(tasks.committed) == 3
        assert repr(tasks) == "<Consumer 'all' of t//>"
    with here.feed("t").consumer("all", wait=False) as tasks:
        assert values_of(tasks) == []
        here.topic("t").offer("new", partition=9)
        assert values_of(tasks) == ["new"]
        with pytest.raises(UsageError, match="needs one partition"):
            tasks.seek(3)


def test_a_log_that_is_not_here_yet_is_waited_for() -> None:
    here, there = node(), node(*range(5))
    with robot(there) as tasks:
        assert len(values_of(tasks)) == 5
    here.base.path("kv").merge(there.base.get(Keyword("kv")))
    assert stored(here) == stored(there)
    with robot(here) as tasks:
        assert values_of(tasks) == []
        here.base.path("queue").merge(there.base.get(Keyword("queue")))
        here.queue("log").offer("next")
        assert values_of(tasks) == ["next"]


# --- losses ---


def test_truncation_behind_the_position_is_a_loss_until_a_seek() -> None:
    here = node(*range(10))
    queue = here.queue("log")
    with robot(here) as tasks:
        next(tasks)
        next(tasks)
    queue.truncate(6)
    with robot(here) as tasks:
        for _ in range(2):
            with pytest.raises(DataLoss, match="entries 1 to 5 of") as caught:
                next(tasks)
            assert caught.value.lost == {queue.id: range(1, 6)}
        assert set(tasks.committed.values()) == {1}
        assert tasks.lag() == 4
        tasks.seek("start")
        assert values_of(tasks) == [6, 7, 8, 9]


def test_a_loss_while_entries_are_taken_loses_no_other_entry() -> None:
    here = node()
    here.topic("t").offer_many(range(1_500), partition=0)
    with here.topic("t").consumer("c", wait=False) as tasks:
        assert len(tasks.take(1_000)) == 1_000
        here.topic("t")[0].truncate(1_400)
        assert values_of(tasks.take(1_000)) == list(range(1_000, 1_024))
        with pytest.raises(DataLoss, match="entries 1024 to 1399"):
            tasks.take(1_000)


def test_a_loss_can_be_skipped_and_is_reported() -> None:
    here = node(*range(10))
    queue = here.queue("log")
    with robot(here) as tasks:
        tasks.take(1)
        tasks.commit()
    queue.truncate(6)
    with robot(here, on_loss="skip") as tasks:
        assert values_of(tasks) == [6, 7, 8, 9]
    assert here.reports == [RecordsSkipped(queue.cursor.context.path, 1, 6)]


def test_a_log_that_forked_below_the_position_is_a_loss() -> None:
    here = node("a", "b")
    queue = here.queue("log")
    with robot(here) as tasks:
        assert values_of(tasks) == ["a", "b"]
    there = node("a", "x", "y", "z")
    queue.cursor.merge(there.queue("log").cursor.get())
    with robot(here) as tasks:
        with pytest.raises(DataLoss, match="has forked") as caught:
            next(tasks)
        assert caught.value.forked == {queue.id: 2}
        assert caught.value.lost == {}
        tasks.seek(1)
        assert values_of(tasks) == ["x", "y", "z"]


# --- refusals and ends ---


def test_a_name_is_used_once_at_a_time() -> None:
    here = node("a")
    first = robot(here)
    with pytest.raises(ConsumerBusy, match="'robot' is in use") as caught:
        robot(here)
    assert isinstance(caught.value, Unavailable)
    other = here.queue("log").consumer("other", wait=False)
    assert values_of(other) == values_of(first) == ["a"]
    first.close()
    robot(here).close()
    assert here.held == {f"consumer other of {KEYS.public_key.hex()}"}


def test_a_consumer_needs_a_node_that_can_be_written() -> None:
    with pytest.raises(UsageError, match="a consumer needs a node"):
        Queue.create().consumer("robot")
    here = node("a")
    here.is_read_only = True
    with pytest.raises(ReadOnly, match="this node is read only; use follow"):
        robot(here)
    here.is_read_only = False
    with pytest.raises(UsageError, match="`commit_every` is not 0 or more"):
        robot(here, commit_every=-1.0)
    with pytest.raises(UsageError, match="start"):
        robot(here, start="middle")
    assert not here.held


def test_a_closed_consumer_gives_nothing_and_stores_nothing() -> None:
    here = node("a", "b")
    tasks = robot(here)
    next(tasks)
    tasks.close()
    tasks.close()
    assert next(tasks, None) is None
    assert tasks.take(5) == []
    with pytest.raises(UsageError, match="is closed"):
        tasks.commit()
    with pytest.raises(UsageError, match="is closed"):
        tasks.seek("start")


def test_an_abandoned_consumer_gives_its_name_back() -> None:
    here = node("a")
    assert next(robot(here)).value == "a"
    gc.collect()
    assert not here.held
    assert here.listener_count == 0
    assert values_of(robot(here)) == ["a"]


def test_a_position_names_the_partition() -> None:
    here = node("a")
    with robot(here) as tasks:
        (id,) = tasks.position
    assert id == PartitionId("log", here.owner(KEYS.public_key), 0)
    assert str(id) == f"'log'[0] of {KEYS.public_key.hex()[:8]}"
