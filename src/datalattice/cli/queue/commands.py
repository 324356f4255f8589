"""Commands `lattice queue ...`: append to topics, read, follow and truncate them."""

from __future__ import annotations

import heapq
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import Annotated, Any, Final, TypeVar

import typer

from datalattice.apps.queue import (
    QUEUE_SECTION,
    Queue,
    QueueEntry,
    Topic,
    Topics,
    entry_stamp_ms,
    partition_of,
)
from datalattice.cells import Map, Value, from_json
from datalattice.cli.command import READS, WRITES, Call, command
from datalattice.cli.queue import consuming
from datalattice.cli.queue.consuming import taken
from datalattice.cli.queue.offering import BATCH, batches, offsets_text, values_of
from datalattice.cli.render import (
    CommandResult,
    Listing,
    ProgressBar,
    Records,
    is_json,
    listed,
    progress_bars,
)
from datalattice.cli.units import duration_s, moment_text
from datalattice.cli.values import (
    InOption,
    check_form,
    listed_json,
    value_json,
    value_text,
)
from datalattice.client import Editor, open_store_reader, parse_path_key, section_owners
from datalattice.cursors import RootLattice
from datalattice.errors import AlreadyExists, DataLatticeError, NoSuchPath, UsageError
from datalattice.lattice import root_lattice

T = TypeVar("T")

app = typer.Typer(
    help="Topics: append, read, follow and truncate records. Every write is signed and on disk."
)
app.registered_commands += consuming.app.registered_commands

_LOOK_S: Final = 0.1
"""Pause between two looks of `tail -f` for a new root."""

_TAIL_COUNT: Final = 10

_LISTING: Final = "lattice queue list"

TopicArgument = Annotated[str, typer.Argument(help="The topic's name.")]
PartitionOption = Annotated[
    str | None,
    typer.Option("--partition", "-p", help="The partition's id. Default: 0.", show_default=False),
]
LongOption = Annotated[bool, typer.Option("--long", "-l", help="Offset, time and key too.")]


def _holders(cursor: RootLattice, name: Value) -> list[bytes]:
    owners = section_owners(cursor.get(), QUEUE_SECTION)
    # `topics` leaves out malformed names, which foreign owners may have stored.
    return [owner for owner in owners if name in Topics.at(cursor, owner).topics()]


def _topic(call: Call, topic: str) -> tuple[bytes, Topic]:
    """Return the owner of the topic to read, and the topic."""
    cursor, name = call.cursor(), parse_path_key(topic)
    owner = call.holder(_holders(cursor, name), f"topic {topic!r}", _LISTING)
    return owner, Topics.at(cursor, owner).topic(name)


def _queue(call: Call, topic: str, partition: str | None) -> Queue:
    """Return the partition to read. Raises: NoSuchPath: the topic has no such partition."""
    _, found = _topic(call, topic)
    id = 0 if partition is None else parse_path_key(partition)
    return found.partition(_checked_id(found, topic, id))


def _checked_id(found: Topic, topic: str, id: Value) -> Value:
    held = found.partitions()
    if id not in held:
        ids = ", ".join(value_text(one) for one in held) or "none"
        raise NoSuchPath(f"topic {topic} has no partition {value_text(id)}; it has: {ids}")
    return id


def _change(call: Call, topic: str, change: Callable[[Topic], T]) -> T:
    """Make one change of a topic of our own."""
    name = parse_path_key(topic)
    return call.edit(lambda cursor, keys: change(Topics.at(cursor, keys.public_key).topic(name)))


_ValueEntry = QueueEntry[Value]


def _document(entry: _ValueEntry) -> dict[str, object]:
    assert entry.owner is not None
    return {
        "topic": value_text(entry.topic),
        "owner": entry.owner.hex,
        "partition": value_json(entry.partition),
        "offset": entry.offset,
        "time_ms": entry_stamp_ms(entry.cell),
        "key": value_json(entry.key),
        "value": value_json(entry.value),
        "headers": value_json(entry.headers) or None,
    }


def _row(entry: _ValueEntry) -> dict[str, object]:
    return {
        "owner": str(entry.owner),
        "partition": value_text(entry.partition),
        "offset": entry.offset,
        "time": moment_text(entry_stamp_ms(entry.cell)),
        "key": "" if entry.key is None else value_text(entry.key),
        "value": _short(entry),
    }


def _short(entry: _ValueEntry) -> str:
    return value_text(entry.value)


def _long(entry: _ValueEntry) -> str:
    key = "" if entry.key is None else value_text(entry.key)
    time = moment_text(entry_stamp_ms(entry.cell))
    return "\t".join((str(entry.offset), time, key, _short(entry)))


def _printed(entries: Iterable[_ValueEntry], *, long: bool, is_live: bool = False) -> Records:
    return Records(entries, _document, _long if long else _short, is_live, _row)


# --- writing --------------------------------------------------------------------------------------


@command(app, "create", WRITES)
def create(
    call: Call,
    topic: TopicArgument,
    partitions: Annotated[
        int, typer.Option("--partitions", help="Their number; a record's key chooses one.")
    ],
) -> CommandResult:
    """Make a topic of your own with a number of partitions, which cannot be changed later."""

    def change(found: Topic) -> None:
        # A key's partition depends on the number: changing it would split the key's records.
        # Checked inside the change, where no other writer can make the topic.
        if found.partitions() or found.num_partitions not in (0, partitions):
            count = found.num_partitions or len(found.partitions())
            raise AlreadyExists(
                f"topic {topic} exists; its number of partitions is {count}, set once; "
                f"got {partitions}"
            )
        found.set_num_partitions(partitions)

    _change(call, topic, change)
    done = {"topic": topic, "partitions": partitions}
    return CommandResult(done, [f"{topic}: {partitions} partitions"])


@command(app, "offer", WRITES)
def offer(
    call: Call,
    topic: TopicArgument,
    values: Annotated[
        list[str] | None,
        typer.Argument(help="The values. Default: the lines of standard input."),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option("--key", "-k", help="The records' key, which chooses the partition."),
    ] = None,
    headers: Annotated[
        str | None, typer.Option("--headers", help="The records' headers: a JSON object.")
    ] = None,
    partition: PartitionOption = None,
    form: InOption = "text",
) -> CommandResult:
    """Append records to a topic of your own; they are signed and on disk when this returns.

    Lines of standard input are written as they arrive: `tail -f log | lattice queue offer log`.
    With `--in json` the value null is a tombstone: a compaction removes its key.
    """
    # Arguments and the first batch are read first: a wrong one must not make a folder and a key.
    check_form(form)
    name = parse_path_key(topic)
    key_cell = None if key is None else parse_path_key(key)
    header_cell = None if headers is None else _parse_headers(headers)
    named = None if partition is None else parse_path_key(partition)
    given = batches(values_of(values, form))
    begun = list(islice(given, 1))
    if not begun:
        raise UsageError("no values: give some as arguments or as lines of standard input")
    offsets: list[range] = []
    with call.editing() as editor, progress_bars(transient=True) as bars:
        id = _route(editor, name, key_cell) if named is None else named
        bar = bars.add(f"offer to {topic}", None if not values else len(values))
        try:
            for batch in chain(begun, given):
                keys = None if key_cell is None else [key_cell] * len(batch)
                all_headers = None if header_cell is None else [header_cell] * len(batch)
                # Each batch is durable before the next is read, so a broken pipe loses no batch.
                offsets.append(editor.offer_many(name, id, batch, keys, all_headers))
                bar.advance(len(batch))
        except DataLatticeError as error:
            if offsets:
                # The user must not offer these again.
                error.args = (f"{error}; on disk: {offsets_text(offsets)}",)
            raise
    first, count = offsets[0].start, sum(map(len, offsets))
    done = {"topic": topic, "partition": value_json(id), "offset": first, "count": count}
    return CommandResult(done, [f"{topic} {value_text(id)}: {offsets_text(offsets)}"])


def _parse_headers(text: str) -> Value:
    try:
        value = from_json(text)
    except DataLatticeError as error:
        raise UsageError(f"--headers is a JSON object: {error}") from error
    if not isinstance(value, Map):
        raise UsageError(f"--headers is a JSON object, got {text}")
    return value


def _route(editor: Editor, topic: Value, key: Value) -> Value:
    """Return the partition of records for which none is named: the key's, else 0."""
    # "Without a key: partition 0"; with one its hash, so that a key's records keep their order.
    if key is None:
        return 0
    cursor = RootLattice(root_lattice(), editor.root())
    count = Topics.at(cursor, editor.key_pair.public_key).topic(topic).num_partitions
    return partition_of(key, count) if count > 0 else 0


@command(app, "truncate", WRITES)
def truncate(
    call: Call,
    topic: TopicArgument,
    start: Annotated[int, typer.Argument(help="Records before this offset are removed.")],
    partition: PartitionOption = None,
) -> CommandResult:
    """Remove the oldest records of a topic of your own. Their offsets are never used again."""
    if start < 0:
        raise UsageError(f"START is the offset of the first record to keep, got {start}")
    id = 0 if partition is None else parse_path_key(partition)
    # The first write makes a topic; truncating a misspelled one must not.
    own, cursor, name = call.own(), call.cursor(), parse_path_key(topic)
    if own is None or own not in _holders(cursor, name):
        raise NoSuchPath(f"you have no topic {topic!r} here; `{_LISTING}` lists them")
    _checked_id(Topics.at(cursor, own).topic(name), topic, id)
    removed = _change(call, topic, lambda found: found.partition(id).truncate(start))
    done = {"topic": topic, "partition": value_json(id), "start": start, "removed": removed}
    return CommandResult(done, [f"{topic} {value_text(id)}: {removed} removed"])


# --- reading --------------------------------------------------------------------------------------


@command(app, "peek", READS)
def peek(
    call: Call,
    topic: TopicArgument,
    offset: Annotated[
        int | None,
        typer.Argument(help="The record's offset. Default: the oldest.", show_default=False),
    ] = None,
    last: Annotated[bool, typer.Option("--last", help="The newest record.")] = False,
    partition: PartitionOption = None,
) -> CommandResult:
    """Print the value of one record. Exit code 1 if there is no such record."""
    if last and offset is not None:
        raise UsageError("give an offset or --last, not both")
    queue = _queue(call, topic, partition)
    state = queue.state()
    wanted = state.end - 1 if last else state.start if offset is None else offset
    if queue.peek_entry(wanted) is None:
        there = f"{state.start} to {state.end - 1}" if state.entries else "none"
        raise NoSuchPath(f"there is no record at offset {wanted}; offsets here: {there}")
    # The record is still there: the cursor of a command stays at one root, whoever truncates now.
    (entry,) = queue.entries(wanted, wanted + 1)
    return CommandResult(_document(entry), [_short(entry)])


@command(app, "range", READS)
def range_(
    call: Call,
    topic: TopicArgument,
    first: Annotated[int | None, typer.Argument(help="First offset.", show_default=False)] = None,
    last: Annotated[
        int | None, typer.Argument(help="Last offset, included.", show_default=False)
    ] = None,
    long: LongOption = False,
    partition: PartitionOption = None,
) -> Records:
    """Print the values of records in order, one on each line. Without offsets: all records."""
    queue = _queue(call, topic, partition)
    state = queue.state()
    # Truncated records are left out.
    begin = state.start if first is None else max(first, state.start)
    end = state.end if last is None else min(last + 1, state.end)
    # No bar if the records themselves go to the terminal.
    watched = progress_bars(quiet=sys.stdout.isatty(), transient=True)
    bar = call.enter(watched).add(f"read {topic}", max(0, end - begin))
    entries = queue.entries(begin, None if last is None else max(last + 1, 0))
    return _printed(_watched(entries, bar), long=long)


def _watched(entries: Iterable[_ValueEntry], bar: ProgressBar) -> Iterator[_ValueEntry]:
    for count, entry in enumerate(entries, 1):
        yield entry
        if count % BATCH == 0:
            bar.advance(BATCH)


@command(app, "tail", READS)
def tail(
    call: Call,
    topic: TopicArgument,
    lines: Annotated[
        int, typer.Option("-n", "--lines", min=0, help="Number of last records.")
    ] = _TAIL_COUNT,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Wait for further records, until Ctrl-C.")
    ] = False,
    span: Annotated[
        str | None, typer.Option("--for", help="End after this time: 90s, 2h.", show_default=False)
    ] = None,
    count: Annotated[
        int | None, typer.Option("--count", help="End after this many records.", min=1)
    ] = None,
    consumer: Annotated[
        str | None,
        typer.Option("--consumer", help="Go on at the stored position of this consumer."),
    ] = None,
    long: LongOption = False,
    partition: PartitionOption = None,
) -> Records:
    """Print the last records of a topic's partitions, by time; with -f also new ones.

    With `--owner all` the records of all owners of the topic. `-f` also waits for a missing topic.
    A new consumer begins with the oldest record; the position after the last printed is stored.
    """
    end_s = None if span is None else time.monotonic() + duration_s(span)
    if call.as_of is not None and (follow or consumer is not None):
        raise UsageError("a former root gets no new records: -f and --consumer read the present")
    if consumer is not None:
        entries = taken(call, topic, partition, consumer, follow=follow, end_s=end_s, count=count)
        # Live, so that a line is written before its record counts as done.
        is_live = follow or not is_json()
        return _printed(entries, long=long, is_live=is_live)
    tailed = _Tail(call, topic, None if partition is None else parse_path_key(partition), lines)
    records = tailed.records(follow=follow, end_s=end_s)
    return _printed(records if count is None else _first(records, count), long=long, is_live=follow)


def _first(records: Iterator[_ValueEntry], count: int) -> Iterator[_ValueEntry]:
    """Yield `count` records without asking for another one, which may never come."""
    for record in records:
        yield record
        count -= 1
        if count == 0:
            return


class _Tail:
    """Reads the partitions of a topic, first their last records, then those of newer roots."""

    def __init__(self, call: Call, topic: str, partition: Value, lines: int) -> None:
        self._call = call
        self._topic = topic
        self._partition = partition
        self._lines = lines
        self._next: dict[tuple[bytes, Value], int] = {}
        self._is_begun = False

    def records(self, *, follow: bool, end_s: float | None) -> Iterator[_ValueEntry]:
        """Yield the last records; with `follow` also new ones, until `end_s`.

        Raises: NoSuchPath: there is no such topic; not with `follow`.
        """
        name = parse_path_key(self._topic)
        cursor = self._call.cursor()
        owners = self._owners(cursor, name, must_be=not follow)
        found = self._new(cursor, name, owners)
        self._is_begun = True
        # `found` has up to `_lines` records of each partition.
        yield from found[max(0, len(found) - self._lines) :]
        store = self._call.enter(open_store_reader(self._call.existing)) if follow else None
        while store is not None:
            left_s = _LOOK_S if end_s is None else min(_LOOK_S, end_s - time.monotonic())
            if left_s <= 0:
                return
            time.sleep(left_s)
            cursor = RootLattice(root_lattice(), store.root())
            # For `all`, owners that appear later are read too; a chosen owner stays the same.
            if not owners or self._call.owner == "all":
                owners = self._owners(cursor, name, must_be=False)
            yield from self._new(cursor, name, owners)

    def _owners(self, cursor: RootLattice, name: Value, *, must_be: bool) -> list[bytes]:
        holders = _holders(cursor, name)
        # `--owner all` reads the records of all owners.
        if self._call.owner == "all" and (holders or not must_be):
            return holders
        try:
            return [self._call.holder(holders, f"topic {self._topic!r}", _LISTING)]
        except NoSuchPath:
            if must_be:
                raise
            return []

    def _new(self, cursor: RootLattice, name: Value, owners: list[bytes]) -> list[_ValueEntry]:
        """Return the records that were not read yet, by time across partitions."""
        parts = []
        for owner in owners:
            topic = Topics.at(cursor, owner).topic(name)
            ids = topic.partitions() if self._partition is None else [self._partition]
            parts += [self._part(owner, id, topic.partition(id)) for id in ids]
        # Ordered by offset within a partition, and by the writers' clocks across partitions.
        return list(heapq.merge(*parts, key=lambda one: one.time_ms))

    def _part(self, owner: bytes, id: Value, queue: Queue) -> list[_ValueEntry]:
        state = queue.state()
        # All records of a partition that appears later are new.
        first = state.start if self._is_begun else state.end - self._lines
        begin = max(self._next.get((owner, id), first), state.start)
        self._next[owner, id] = state.end
        return list(queue.entries(begin, state.end))


@command(app, "info", READS)
def info(call: Call, topic: TopicArgument) -> CommandResult:
    """Print a topic's owner, metadata and partitions."""
    owner, found = _topic(call, topic)
    partitions = [_partition_info(id, found.partition(id)) for id in found.partitions()]
    meta = value_json(found.metadata())
    document = {"topic": topic, "owner": owner.hex(), "meta": meta, "partitions": partitions}
    columns = ("partition", "start", "end", "records", "first", "last")
    rows = [
        (
            *(one[name] for name in columns[:4]),
            moment_text(one["first_ms"]),
            moment_text(one["last_ms"]),
        )
        for one in partitions
    ]
    lines = [f"topic  {topic}", f"owner  {owner.hex()}", f"meta   {value_text(found.metadata())}"]
    return CommandResult(document, [*lines, Listing(columns, rows)])


def _partition_info(id: Value, queue: Queue) -> dict[str, Any]:
    state = queue.state()
    return {
        "partition": value_json(id),
        "start": state.start,
        "end": state.end,
        "records": len(state.entries),
        "first_ms": entry_stamp_ms(queue.peek_first_entry()),
        "last_ms": entry_stamp_ms(queue.peek_last_entry()),
        "meta": value_json(state.meta.values),
    }


@command(app, "list", READS)
def list_(call: Call) -> CommandResult:
    """List the topics of all owners here, or of one."""
    cursor = call.cursor()
    rows: list[dict[str, Any]] = []
    for owner in call.chosen_owners(call.owners(QUEUE_SECTION)):
        mine = Topics.at(cursor, owner)
        for name in mine.topics():
            topic = mine.topic(name)
            ids = topic.partitions()
            rows.append(
                {
                    "owner": owner.hex(),
                    "topic": listed_json(name),
                    # A topic has its number of partitions before their first records.
                    "partitions": max(topic.num_partitions, len(ids)),
                    "records": sum(topic.partition(id).size() for id in ids),
                }
            )
    return listed(rows, ("owner", "topic", "partitions", "records"), owner=call.short_owner)
