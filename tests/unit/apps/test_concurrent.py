"""The concurrent topic: nothing lost, per-key order kept, waits and failures."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import datalattice.apps.queue.concurrent as concurrent_module
from datalattice.apps.queue import ConcurrentTopic, Topic, Topics, partition_of
from datalattice.cells import Value
from datalattice.crypto import KeyPair
from datalattice.cursors import RootLattice
from datalattice.errors import NoSigningKey, Timeout, UsageError
from datalattice.lattice import MergeContext, root_lattice
from datalattice.testing.polling import LIMIT_S

KEYS = KeyPair(bytes(range(32)))


def records(topic: Topic) -> list[Value]:
    return [value for p in topic.partitions() for value in topic.partition(p)]


def test_everything_offered_is_there_after_a_flush() -> None:
    topic = Topic.create()
    with ConcurrentTopic(topic, 3) as concurrent:
        for i in range(500):
            concurrent.offer(i, key=f"k{i % 11}")
        concurrent.flush()
        assert sorted(records(topic)) == list(range(500))  # type: ignore[type-var]
    assert topic.num_partitions == 3


def test_a_key_stays_in_one_partition_and_in_order() -> None:
    topic = Topic.create()
    with ConcurrentTopic(topic, 4, inbox_capacity=8, batch_max=5) as concurrent:
        for i in range(300):
            concurrent.offer(f"k{i % 7}:{i:03}", key=f"k{i % 7}")
    for k in range(7):
        home = topic.partition(partition_of(f"k{k}", 4))
        mine = [v for v in home if isinstance(v, str) and v.startswith(f"k{k}:")]
        assert mine == [f"k{k}:{i:03}" for i in range(k, 300, 7)]


def test_many_producers_lose_nothing() -> None:
    topic = Topic.create()
    with ConcurrentTopic(topic, 2, inbox_capacity=16) as concurrent:

        def produce(number: int) -> None:
            for i in range(100):
                concurrent.offer(number * 1_000 + i, key=f"p{number}")

        threads = [threading.Thread(target=produce, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    expected = sorted(n * 1_000 + i for n in range(4) for i in range(100))
    assert sorted(records(topic)) == expected  # type: ignore[type-var]


def test_records_without_a_key_go_where_they_are_sent() -> None:
    topic = Topic.create()
    with ConcurrentTopic(topic, 2) as concurrent:
        concurrent.offer("x", partition=1)
        with pytest.raises(UsageError, match="0 to 1"):
            concurrent.offer("y", partition=2)
    assert list(topic.partition(1)) == ["x"]


def test_what_was_offered_before_the_start_is_committed() -> None:
    started, never = Topic.create(), Topic.create()
    concurrent = ConcurrentTopic(started, 1)
    concurrent.offer("early", key="k")
    concurrent.start().start()
    concurrent.flush()
    concurrent.flush()
    assert records(started) == ["early"]
    concurrent.close()
    concurrent.close()
    unstarted = ConcurrentTopic(never, 1)
    unstarted.offer("left over", key="k")
    unstarted.close()
    assert records(never) == ["left over"]


def test_a_tombstone_is_offered_like_any_value() -> None:
    topic = Topic.create()
    with ConcurrentTopic(topic, 1) as concurrent:
        concurrent.offer("x", key="k")
        concurrent.offer(None, key="k")
    assert records(topic) == ["x", None]


def test_use_out_of_order_is_refused() -> None:
    concurrent = ConcurrentTopic(Topic.create(), 1)
    with pytest.raises(UsageError, match="start"):
        concurrent.flush()
    with pytest.raises(UsageError, match="`key` is None"):
        concurrent.offer("x", key=None)
    concurrent.close()
    for call in (concurrent.flush, concurrent.start, lambda: concurrent.offer(1, key="k")):
        with pytest.raises(UsageError, match="closed"):
            call()


@pytest.mark.parametrize("arguments", [(0,), (1, 0), (1, 1, 0), (1, True), ("1",)])
def test_bounds_are_checked(arguments: tuple[object, ...]) -> None:
    with pytest.raises(UsageError):
        ConcurrentTopic(Topic.create(), *arguments)  # type: ignore[arg-type]


def test_below_an_owner_each_batch_is_signed_once() -> None:
    root = RootLattice(root_lattice(), context=MergeContext(key_pair=KEYS))
    topic = Topics.at(root, KEYS.public_key).topic("t")
    with ConcurrentTopic(topic, 2) as concurrent:
        for i in range(200):
            concurrent.offer(i, key=i)
    assert sorted(records(topic)) == list(range(200))  # type: ignore[type-var]


def test_a_failed_worker_tells_its_producers() -> None:
    root = RootLattice(root_lattice(), context=MergeContext(key_pair=KEYS))
    topic = Topics.at(root, KEYS.public_key).topic("t")
    topic.set_num_partitions(1)
    keyless = Topics.at(RootLattice(root_lattice(), root.get()), KEYS.public_key).topic("t")
    concurrent = ConcurrentTopic(keyless, 1).start()
    concurrent.offer("x", key="k")
    with pytest.raises(NoSigningKey):
        concurrent.flush()
    with pytest.raises(NoSigningKey):
        concurrent.offer("y", key="k")
    with pytest.raises(NoSigningKey):
        concurrent.close()


def test_a_close_that_ran_out_of_time_is_finished_by_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    began, may_go_on = threading.Event(), threading.Event()
    commit = concurrent_module._Worker._commit

    def slow(worker: Any, batch: Any) -> None:
        began.set()
        assert may_go_on.wait(LIMIT_S)
        commit(worker, batch)

    monkeypatch.setattr(concurrent_module._Worker, "_commit", slow)
    topic = Topic.create()
    concurrent = ConcurrentTopic(topic, 1).start()
    concurrent.offer("first", partition=0)
    assert began.wait(LIMIT_S)
    concurrent.offer("second", partition=0)
    monkeypatch.setattr(concurrent_module, "JOIN_S", 0.01)
    with pytest.raises(Timeout, match="1 queue worker did not stop within"):
        concurrent.close()
    with pytest.raises(UsageError, match="closed"):
        concurrent.offer("third", partition=0)
    may_go_on.set()
    monkeypatch.setattr(concurrent_module, "JOIN_S", LIMIT_S)
    concurrent.close()
    assert list(topic.partition(0)) == ["first", "second"]


def test_any_error_of_a_worker_reaches_its_producers(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_topic: Topic) -> None:
        raise OSError("no disk")

    monkeypatch.setattr(Topic, "sync", fails)
    concurrent = ConcurrentTopic(Topic.create(), 1).start()
    concurrent.offer("x", partition=0)
    with pytest.raises(OSError, match="no disk"):
        concurrent.flush()
    with pytest.raises(OSError, match="no disk"):
        concurrent.offer("y", partition=0)
    with pytest.raises(OSError, match="no disk"):
        concurrent.close()


def test_a_record_that_meets_a_close_is_committed() -> None:
    topic = Topic.create()
    concurrent = ConcurrentTopic(topic, 1).start()
    inbox = concurrent._workers[0].inbox
    put = inbox.put

    def late(item: Any, timeout: float) -> None:
        concurrent.close()  # between the check of the producer and its put
        put(item, timeout=timeout)

    inbox.put = late  # type: ignore[method-assign,assignment]
    concurrent.offer("late", partition=0)
    assert list(topic.partition(0)) == ["late"]
    with pytest.raises(UsageError, match="closed"):
        concurrent.offer("later", partition=0)
