"""Concurrent topic: many producer threads, one worker per partition, one commit per batch.

Theory of operation: each partition has one worker, which appends batches to its own fork of the
topic and syncs the fork into the primary topic. Workers write disjoint partitions, so syncs do not
conflict: every other partition of a stale fork is a prefix of the primary's, and the longer log
wins. A producer waits while the inbox of its partition is full.

Source: CAD040 "Concurrent topic"; docs/queue.md "Many producers".
"""

from __future__ import annotations

import queue
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Self

from datalattice.apps.queue.entries import checked_headers
from datalattice.apps.queue.topic import Topic, checked_count, partition_of
from datalattice.cells import Value, counted, to_cell
from datalattice.errors import Timeout, UsageError

INBOX_CAPACITY: Final = 4_096  # "inbox capacity = 4096"
"""Records in the inbox of one worker; producers wait while it is full."""

BATCH_MAX: Final = 1_000  # "batch size = 1000"
"""Most records in one commit."""

_POLL_S: Final = 0.1  # "poll 100 ms"
"""How long a worker waits for a record before it checks whether to stop."""

JOIN_S: Final = 5.0  # "stop, join (5 s each)"
"""How long `close` waits for each worker."""


@dataclass(frozen=True, slots=True)
class _Item:
    key: Value
    value: Value
    headers: Value


@dataclass(slots=True)
class _Flush:
    done: threading.Event = field(default_factory=threading.Event)


class _Worker:
    """One partition's inbox, fork and thread."""

    def __init__(self, topic: Topic, partition: int, capacity: int, batch_max: int) -> None:
        self.inbox: queue.Queue[_Item | _Flush] = queue.Queue(capacity)
        self.failure: Exception | None = None
        self._topic = topic
        self._fork: Topic | None = None
        self._partition = partition
        self._batch_max = batch_max
        self._stop = threading.Event()
        name = f"queue-partition-{partition}"
        # Daemon: a program that forgets `close` still ends.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.ident is not None:  # a worker that was never started cannot be joined
            self._thread.join(JOIN_S)

    def alive(self) -> bool:
        return self._thread.is_alive()

    def drain(self) -> None:
        """Commit the records left in the inbox; call it only after the thread has ended."""
        while batch := self._take(wait_s=0.0):
            self._commit(batch)

    def _run(self) -> None:
        while not self._stop.is_set():
            batch = self._take(_POLL_S)
            if batch:
                self._commit(batch)

    def _take(self, wait_s: float) -> list[_Item | _Flush]:
        batch: list[_Item | _Flush] = []
        # Only the first record is waited for; a batch need not be full.
        with suppress(queue.Empty):
            batch.append(self.inbox.get(timeout=wait_s) if wait_s else self.inbox.get_nowait())
            while len(batch) < self._batch_max:
                batch.append(self.inbox.get_nowait())
        return batch

    def _commit(self, batch: list[_Item | _Flush]) -> None:
        """Append the records of a batch; set each flush marker after the records before it."""
        items: list[_Item] = []
        for item in batch:
            if isinstance(item, _Item):
                items.append(item)
                continue
            self._append(items)
            # Before the marker is set: "returns after everything offered before it is visible".
            items = []
            item.done.set()
        self._append(items)

    def _append(self, items: list[_Item]) -> None:
        if not items or self.failure is not None:
            return
        # "its own fork of the whole topic", made by the thread that writes it.
        if self._fork is None:
            self._fork = self._topic.fork()
        try:
            self._fork.partition(self._partition).offer_many(
                [item.value for item in items],
                keys=[item.key for item in items],
                headers=[item.headers for item in items],
            )
            self._fork.sync()  # "one fork.sync per batch"
        except Exception as error:  # noqa: BLE001 - no error of a thread may stay unseen
            # Producers get this error from `offer` and `flush`. The worker stops here, because
            # appending later records could lose or reorder records.
            self.failure = error


class ConcurrentTopic:
    """A topic for many producer threads of one process; call `start` and `close`, or use `with`."""

    def __init__(
        self,
        topic: Topic,
        partitions: int,
        inbox_capacity: int = INBOX_CAPACITY,
        batch_max: int = BATCH_MAX,
    ) -> None:
        for name, bound in (("inbox_capacity", inbox_capacity), ("batch_max", batch_max)):
            if type(bound) is not int or bound < 1:
                raise UsageError(f"`{name}` is not a positive integer: {bound!r}")
        checked_count(partitions)
        # Set before any worker runs: routing depends on it.
        if topic.num_partitions != partitions:
            topic.set_num_partitions(partitions)
        self._topic = topic
        self._workers = [
            _Worker(topic, partition, inbox_capacity, batch_max) for partition in range(partitions)
        ]
        self._started = False
        self._closed = False
        self._drained = False
        self._draining = threading.Lock()

    @property
    def topic(self) -> Topic:
        """The primary topic, from which readers read."""
        return self._topic

    def start(self) -> Self:
        """Start the workers; a second call does nothing.

        Raises: UsageError: the topic is closed.
        """
        self._check_open()
        if not self._started:  # "start() (idempotent)"
            self._started = True
            for worker in self._workers:
                worker.start()
        return self

    def offer(
        self,
        value: object,
        *,
        key: object = None,
        headers: object = None,
        partition: int | None = None,
    ) -> None:
        """Append a record to the partition of its key, or to `partition`.

        Waits while the inbox of that partition is full.
        Raises: UsageError: there is neither a key nor a partition, the partition does not exist,
                or the topic is closed.
        """
        count = len(self._workers)
        cell = to_cell(key)
        if partition is None:
            partition = partition_of(cell, count)
        elif type(partition) is not int or not 0 <= partition < count:
            raise UsageError(f"`partition` is not 0 to {count - 1}: {partition!r}")
        self._put(partition, cell, value, headers)

    def _put(self, partition: int, key: Value, value: object, headers: object) -> None:
        # Converted here: a bad value is the producer's error, not the worker's.
        item = _Item(key, to_cell(value), checked_headers(headers))
        worker = self._workers[partition]
        while True:
            self._check_open()
            self._check(worker)
            try:
                worker.inbox.put(item, timeout=_POLL_S)
            except queue.Full:
                continue  # checks for a close or a failure every _POLL_S
            break
        if self._closed:
            with self._draining:
                # `close` emptied the inbox just before: it never looks there again.
                if self._drained:
                    worker.drain()
            self._check(worker)

    def flush(self) -> None:
        """Wait until all records offered before this call are in the primary topic.

        Raises: UsageError: the workers are not started. Also the error of a failed worker.
        """
        self._check_open()
        if not self._started:
            raise UsageError("the workers are not started; call start before flush")
        self._flush()

    def _flush(self) -> None:
        markers = [(worker, _Flush()) for worker in self._workers]
        # All get their marker before the first is waited for: the workers commit at the same time.
        for worker, marker in markers:
            self._hand_over(worker, marker)
        for worker, marker in markers:
            while not marker.done.wait(_POLL_S):
                if not worker.alive():  # a dead worker sets no marker
                    break
            self._check(worker)

    def _hand_over(self, worker: _Worker, marker: _Flush) -> None:
        while True:
            try:
                worker.inbox.put(marker, timeout=_POLL_S)
            except queue.Full:
                if worker.alive():
                    continue
                marker.done.set()  # a dead worker would never set it
            return

    def close(self) -> None:
        """Commit all offered records and stop the workers; once that is done, a call does nothing.

        Raises: Timeout: a worker did not stop in time, so records may be uncommitted; call it
                again. Also the error of a failed worker.
        """
        if self._drained:
            return
        self._closed = True  # first: producers that wait see it and stop
        if self._started:
            deadline = time.monotonic() + JOIN_S * len(self._workers)
            for worker in self._workers:
                worker.stop()
                if worker.alive() and time.monotonic() > deadline:
                    break
        stuck = [worker for worker in self._workers if worker.alive()]
        if stuck:
            raise Timeout(
                f"{counted(len(stuck), 'queue worker')} did not stop within {JOIN_S:.0f} s each; "
                "call close again to commit the remaining records"
            )
        # "drain leftovers": records offered before `close` are committed.
        with self._draining:
            for worker in self._workers:
                worker.drain()
            self._drained = True
        for worker in self._workers:  # after all are drained, so that one failure stops no other
            self._check(worker)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError("the concurrent topic is closed")

    def _check(self, worker: _Worker) -> None:
        if worker.failure is not None:
            raise worker.failure
