"""Commands `lattice queue consumers` and `seek`, and `tail` with a consumer.

Source: docs/queue.md "Consumers"
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer

from datalattice.apps.kv import Database
from datalattice.apps.queue import CONSUMERS_DATABASE, Consumer, QueueEntry
from datalattice.cells import Value, Vector, from_text
from datalattice.cli.command import PAST, WRITES, Call, command
from datalattice.cli.render import CommandResult, listed
from datalattice.cli.units import time_ms
from datalattice.cli.values import value_text
from datalattice.client import parse_path_key
from datalattice.clock import SystemClock
from datalattice.errors import NoSuchPath

app = typer.Typer()

_WAIT_S = 0.5  # short enough for `--for`, long enough to cost little
"""Longest single wait of a consumer for records; after it, `--for` is checked."""


def taken(
    call: Call,
    topic: str,
    partition: str | None,
    name: str,
    *,
    follow: bool,
    end_s: float | None,
    count: int | None,
) -> Iterator[QueueEntry[Value]]:
    """Yield the records after a consumer's position; asking for the next one commits it."""
    key = parse_path_key(topic)
    id = None if partition is None else parse_path_key(partition)
    # It stores positions, but a reading command makes no folder.
    node = call.node_handle(makes_folder=False)
    if id is not None:
        source = node.queue(key, id, owner=call.owner)
        consumer: Consumer[Value] = source.consumer(name)
    elif call.owner == "all":
        consumer = node.feed(key).consumer(name)
    else:
        consumer = node.topic(key, owner=call.owner).consumer(name)
    call.enter(consumer)
    seen = 0
    while count is None or seen < count:
        left_s = _WAIT_S if end_s is None else min(_WAIT_S, max(0.0, end_s - time.monotonic()))
        # One by one, so that only a record that was not written is delivered again.
        entries = consumer.take(1, timeout=left_s if follow else 0.0)
        if not entries and (not follow or left_s == 0.0):
            return
        for entry in entries:
            yield entry
            consumer.finish()  # "it commits after the line was written out": here it was
            seen += 1


def _positions(call: Call, name: str | None = None) -> list[tuple[str, str, int]]:
    """Return (consumer, field of the partition, next offset) of the stored positions, in order."""
    own, cursor = call.own(), call.cursor()
    held = Database.at(cursor, own, CONSUMERS_DATABASE) if own is not None else {}
    return [
        (consumer, str(field), int(str(mark.to_list()[0])))
        for consumer in sorted(held)
        if name in (None, consumer) and isinstance(held, Database)
        for field, mark in held.hgetall(consumer).entries()
        # A position has the name TOPIC/OWNER/PARTITION, in which a `/` of a name is escaped.
        if isinstance(mark, Vector) and str(field).count("/") == 2
    ]


def _topic_of(field: str) -> Value:
    part = field.partition("/")[0]
    # %25 last: it stands for the % of other escapes.
    plain = part.removeprefix("%=").replace("%2F", "/").replace("%25", "%")
    return from_text(plain) if part.startswith("%=") else plain


@command(app, "consumers", PAST)
def consumers(call: Call) -> CommandResult:
    """List the consumers of this folder, with the next offset of each."""
    columns = ("consumer", "topic", "owner", "partition", "next")
    rows = []
    for consumer, field, offset in _positions(call):
        _, owner, partition = field.split("/")
        if owner and partition:  # other fields are the consumer's own state
            row = (consumer, value_text(_topic_of(field)), owner, partition, offset)
            rows.append(dict(zip(columns, row, strict=True)))
    return listed(rows, columns, owner=call.short_owner)


@command(app, "seek", WRITES)
def seek(
    call: Call,
    name: Annotated[str, typer.Argument(help="The consumer.")],
    to: Annotated[
        str, typer.Argument(help="start, end, an offset, or a time: ISO 8601, or 2h ago.")
    ],
) -> CommandResult:
    """Move a consumer to another position, in all partitions that it has read."""
    found = {  # a set: `seek` moves all partitions of a topic
        (_topic_of(field), owner)
        for _, field, _ in _positions(call, name)
        if (owner := field.split("/")[1])
    }
    if not found:  # a misspelled name must not make a consumer
        raise NoSuchPath(f"there is no consumer {name!r}; `lattice queue consumers` lists them")
    start = _start_of(to)
    node = call.node_handle()
    moved: list[dict[str, object]] = []
    for topic, owner in found:
        # "Last write wins, so a rewind is an ordinary write" (docs/design/front-door.md "Handles").
        with node.topic(topic, owner=owner).consumer(name, wait=False) as consumer:
            consumer.seek(start)
            moved += [
                {
                    "topic": value_text(topic),
                    "owner": owner,
                    "partition": value_text(id.partition),
                    "next": at,
                }
                for id, at in consumer.committed.items()
            ]
    return CommandResult(
        moved, [f"{one['topic']} {one['partition']}: {one['next']}" for one in moved]
    )


def _start_of(text: str) -> Any:
    """Return a position for `Consumer.seek`."""
    if text in ("start", "end"):
        return text
    if text.lstrip("-").isdecimal() and len(text) < 9:  # nine digits and more are times
        return int(text)
    stamp_ms = time_ms(text, SystemClock().now_ms())
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=stamp_ms)
