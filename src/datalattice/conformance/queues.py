"""Queue vectors: recorded sequences on a queue or a topic map, and the routing of keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from datalattice.apps.queue import (
    Queue,
    QueueLattice,
    TopicLattice,
    Topics,
    partition_of,
)
from datalattice.cells import Value, value_hash
from datalattice.conformance.checks import (
    as_decimal,
    expect,
    need,
    need_bool,
    need_fields,
    need_int,
    need_text,
    only_fields,
)
from datalattice.conformance.notation import (
    expect_cell,
    plain_type,
    read_cell,
    register_lattice_type,
)
from datalattice.conformance.registry import Fields, Mismatch, register_kind
from datalattice.conformance.sequences import (
    SEQUENCE_FIELDS,
    StepClock,
    handle_of,
    new_name,
    operation_of,
    returned,
    returned_cell,
    returns_nothing,
    run_steps,
    step_fields,
)

LONG_BITS: Final = 64


class _QueueRun:
    """One sequence on queues."""

    def __init__(self) -> None:
        self.clock = StepClock()
        self.queues: dict[str, Queue] = {}

    def states(self) -> dict[str, Value]:
        return {name: queue.cursor.get() for name, queue in self.queues.items()}

    def perform(self, step: Fields) -> None:
        operation = need_text(step, "op")
        known = operation_of(_QUEUE_OPERATIONS, operation, "a queue")
        if "clock" in step:
            self.clock.time_ms = need_int(step, "clock")
        known(self, step)

    def _queue(self, step: Fields, field: str = "on") -> Queue:
        return handle_of(self.queues, need_text(step, field))

    def create(self, step: Fields) -> None:
        step_fields(step)
        returns_nothing(step)
        self.queues[new_name(self.queues, need_text(step, "on"))] = Queue.create(self.clock)

    def fork(self, step: Fields) -> None:
        step_fields(step, "as")
        returns_nothing(step)
        name = new_name(self.queues, need_text(step, "as"))
        self.queues[name] = self._queue(step).fork()

    def sync(self, step: Fields) -> None:
        step_fields(step)
        returns_nothing(step)
        self._queue(step).sync()

    def merge(self, step: Fields) -> None:
        step_fields(step, "from")
        returns_nothing(step)
        self._queue(step).cursor.merge(self._queue(step, "from").cursor.get())

    def offer(self, step: Fields) -> None:
        step_fields(step, "clock", "key", "value", "headers")
        need_int(step, "clock")
        key, value, headers = (
            read_cell(need(step, name), name) for name in ("key", "value", "headers")
        )
        returned(step, self._queue(step).offer(value, key=key, headers=headers))

    def peek(self, step: Fields) -> None:
        step_fields(step, "offset")
        returned_cell(step, self._queue(step).peek(need_int(step, "offset")))

    def range(self, step: Fields) -> None:
        step_fields(step, "from", "to")
        values = self._queue(step).range(need_int(step, "from"), need_int(step, "to"))
        returned_cell(step, values)

    def info(self, step: Fields) -> None:
        step_fields(step)
        wanted = need_fields(step, "returns")
        only_fields(wanted, ("start", "end", "size", "empty", "first", "last"))
        queue = self._queue(step)
        expect("start", need_int(wanted, "start"), queue.start_offset())
        expect("end", need_int(wanted, "end"), queue.end_offset())
        expect("size", need_int(wanted, "size"), queue.size())
        expect("empty", need_bool(wanted, "empty"), queue.is_empty())
        expect_cell("first", read_cell(need(wanted, "first"), "first"), queue.peek_first())
        expect_cell("last", read_cell(need(wanted, "last"), "last"), queue.peek_last())

    def truncate(self, step: Fields) -> None:
        step_fields(step, "clock", "start")
        need_int(step, "clock")
        returned(step, self._queue(step).truncate(need_int(step, "start")))

    def set_meta(self, step: Fields) -> None:
        step_fields(step, "clock", "key", "value")
        returns_nothing(step)
        need_int(step, "clock")
        key, value = (read_cell(need(step, name), name) for name in ("key", "value"))
        self._queue(step).set_meta(key, value)


_QUEUE_OPERATIONS: Final[dict[str, Callable[[_QueueRun, Fields], None]]] = {
    "create": _QueueRun.create,
    "fork": _QueueRun.fork,
    "sync": _QueueRun.sync,
    "merge": _QueueRun.merge,
    "offer": _QueueRun.offer,
    "peek": _QueueRun.peek,
    "range": _QueueRun.range,
    "info": _QueueRun.info,
    "truncate": _QueueRun.truncate,
    "set_meta": _QueueRun.set_meta,
}


class _TopicsRun:
    """One sequence on a topic map."""

    def __init__(self) -> None:
        self.clock = StepClock()
        self.maps: dict[str, Topics] = {}

    def states(self) -> dict[str, Value]:
        return {name: topics.cursor.get() for name, topics in self.maps.items()}

    def perform(self, step: Fields) -> None:
        operation = need_text(step, "op")
        known = operation_of(_TOPICS_OPERATIONS, operation, "a topic map")
        if "clock" in step:
            self.clock.time_ms = need_int(step, "clock")
        known(self, step)

    def _topics(self, step: Fields) -> Topics:
        return handle_of(self.maps, need_text(step, "on"))

    def create(self, step: Fields) -> None:
        step_fields(step)
        returns_nothing(step)
        self.maps[new_name(self.maps, need_text(step, "on"))] = Topics.create(self.clock)

    def set_num_partitions(self, step: Fields) -> None:
        step_fields(step, "topic", "n", "clock")
        returns_nothing(step)
        topic = self._topics(step).topic(need_text(step, "topic"))
        topic.set_num_partitions(need_int(step, "n"))

    def offer_partition(self, step: Fields) -> None:
        step_fields(step, "topic", "partition", "clock", "value")
        need_int(step, "clock")
        queue = (
            self._topics(step)
            .topic(need_text(step, "topic"))
            .partition(need_int(step, "partition"))
        )
        returned(step, queue.offer(read_cell(need(step, "value"), "value")))

    def set_topic_meta(self, step: Fields) -> None:
        step_fields(step, "topic", "key", "value", "clock")
        returns_nothing(step)
        key, value = (read_cell(need(step, name), name) for name in ("key", "value"))
        self._topics(step).topic(need_text(step, "topic")).set_meta(key, value)


_TOPICS_OPERATIONS: Final[dict[str, Callable[[_TopicsRun, Fields], None]]] = {
    "create": _TopicsRun.create,
    "set_num_partitions": _TopicsRun.set_num_partitions,
    "offer_partition": _TopicsRun.offer_partition,
    "set_topic_meta": _TopicsRun.set_topic_meta,
}


def run_queue_sequence(fields: Fields) -> None:
    """Check a recorded sequence of operations on queues, or on a topic map."""
    only_fields(fields, (*SEQUENCE_FIELDS, "level"))
    level = need_text(fields, "level")
    runs: dict[str, type[_QueueRun | _TopicsRun]] = {"queue": _QueueRun, "mq": _TopicsRun}
    if level not in runs:
        raise Mismatch(f"unknown level {level!r}; known: {', '.join(runs)}")
    run = runs[level]()
    run_steps(fields, run.states, run.perform)


def run_route(fields: Fields) -> None:
    """Check the partition that a key goes to, and the numbers on the way."""
    known = ("id", "kind", "key", "partitions", "hash_low_64", "floor_mod", "java_abs", "decision")
    only_fields(fields, known)
    key = read_cell(need(fields, "key"), "key")
    count = need_int(fields, "partitions")
    low = int.from_bytes(value_hash(key)[-LONG_BITS // 8 :], "big", signed=True)
    expect("hash_low_64", as_decimal(need(fields, "hash_low_64"), "hash_low_64"), low)
    expect("floor_mod", need_int(fields, "floor_mod"), partition_of(key, count))
    if "java_abs" in fields:
        expect("java_abs", need_int(fields, "java_abs"), abs(low) % count)


register_lattice_type("queue", plain_type(QueueLattice))
register_lattice_type("topic", plain_type(TopicLattice))
register_kind("queue-sequence", run_queue_sequence)
register_kind("route", run_route)
