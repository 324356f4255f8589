"""Queue vectors: recorded sequences on a queue or a topic map, and the routing of keys."""

from __future__ import annotations

from typing import Any, Final

from datalattice.apps.queue import (
    Queue,
    QueueLattice,
    TopicLattice,
    Topics,
    partition_of,
)
from datalattice.cells import value_hash
from datalattice.conformance.checks import (
    Fields,
    Mismatch,
    as_decimal,
    expect,
)
from datalattice.conformance.notation import (
    expect_cell,
    need_cell,
    plain_type,
    register_lattice_type,
)
from datalattice.conformance.registry import register_kind
from datalattice.conformance.sequences import (
    SEQUENCE_FIELDS,
    SequenceRun,
    operation,
    returned,
    returned_cell,
)

LONG_BITS: Final = 64


class _Queues(SequenceRun[Queue]):
    """One sequence on queues."""

    what = "a queue"

    @operation(silent=True)
    def create(self, step: Fields) -> None:
        self.add(step, "on", Queue.create(self.clock))

    @operation("from", silent=True)
    def merge(self, step: Fields) -> None:
        self.on(step).cursor.merge(self.on(step, "from").cursor.get())

    @operation("clock", "key", "value", "headers")
    def offer(self, step: Fields) -> None:
        # `perform` sets the clock; here the field is only required.
        step.integer("clock")
        key, value, headers = (need_cell(step, name) for name in ("key", "value", "headers"))
        returned(step, self.on(step).offer(value, key=key, headers=headers))

    @operation("offset")
    def peek(self, step: Fields) -> None:
        returned_cell(step, self.on(step).peek(step.integer("offset")))

    @operation("from", "to")
    def range(self, step: Fields) -> None:
        values = self.on(step).range(step.integer("from"), step.integer("to"))
        returned_cell(step, values)

    @operation()
    def info(self, step: Fields) -> None:
        wanted = step.fields("returns")
        # Every recorded figure is compared: a further one would pass unseen.
        wanted.only("start", "end", "size", "empty", "first", "last")
        queue = self.on(step)
        wanted.expect("start", queue.start_offset())
        wanted.expect("end", queue.end_offset())
        wanted.expect("size", queue.size())
        wanted.expect("empty", queue.is_empty())
        expect_cell("first", need_cell(wanted, "first"), queue.peek_first())
        expect_cell("last", need_cell(wanted, "last"), queue.peek_last())

    @operation("clock", "start")
    def truncate(self, step: Fields) -> None:
        step.integer("clock")
        returned(step, self.on(step).truncate(step.integer("start")))

    @operation("clock", "key", "value", silent=True)
    def set_meta(self, step: Fields) -> None:
        step.integer("clock")
        self.on(step).set_meta(need_cell(step, "key"), need_cell(step, "value"))


class _TopicMaps(SequenceRun[Topics]):
    """One sequence on a topic map."""

    what = "a topic map"

    @operation(silent=True)
    def create(self, step: Fields) -> None:
        self.add(step, "on", Topics.create(self.clock))

    @operation("topic", "n", "clock", silent=True)
    def set_num_partitions(self, step: Fields) -> None:
        topic = self.on(step).topic(step.text("topic"))
        topic.set_num_partitions(step.integer("n"))

    @operation("topic", "partition", "clock", "value")
    def offer_partition(self, step: Fields) -> None:
        step.integer("clock")
        topic = self.on(step).topic(step.text("topic"))
        queue = topic.partition(step.integer("partition"))
        returned(step, queue.offer(need_cell(step, "value")))

    @operation("topic", "key", "value", "clock", silent=True)
    def set_topic_meta(self, step: Fields) -> None:
        topic = self.on(step).topic(step.text("topic"))
        topic.set_meta(need_cell(step, "key"), need_cell(step, "value"))


def run_queue_sequence(fields: Fields) -> None:
    """Check a recorded sequence of operations on queues, or on a topic map."""
    fields.only(*SEQUENCE_FIELDS, "level")
    level = fields.text("level")
    levels: dict[str, type[SequenceRun[Any]]] = {"queue": _Queues, "mq": _TopicMaps}
    if level not in levels:
        raise Mismatch(f"unknown level {level!r}; known: {', '.join(levels)}")
    levels[level]().run(fields)


def run_route(fields: Fields) -> None:
    """Check the partition that a key goes to, and the numbers on the way."""
    known = ("id", "kind", "key", "partitions", "hash_low_64", "floor_mod", "java_abs", "decision")
    fields.only(*known)
    key = need_cell(fields, "key")
    count = fields.integer("partitions")
    # The last 64 bits of the hash, signed, as a Java long.
    low = int.from_bytes(value_hash(key)[-LONG_BITS // 8 :], "big", signed=True)
    expect("hash_low_64", as_decimal(fields.need("hash_low_64"), "hash_low_64"), low)
    fields.expect("floor_mod", partition_of(key, count))
    if "java_abs" in fields:
        # What `Math.abs` of Java gives, as a comment of the vector: it differs for negative
        # numbers.
        fields.expect("java_abs", abs(low) % count)


register_lattice_type("queue", plain_type(QueueLattice))
register_lattice_type("topic", plain_type(TopicLattice))
register_kind("queue-sequence", run_queue_sequence)
register_kind("route", run_route)
