"""Commands `lattice queue ...`: append to topics, read them, cut them."""

from __future__ import annotations

import codecs
import os
import select
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final

import typer

from datalattice.apps.queue import (
    Queue,
    entry_headers,
    entry_key,
    entry_stamp_ms,
    entry_value,
    partition_of,
)
from datalattice.cells import Blob, Map, Text, Value, from_json
from datalattice.cli.folder import (
    SHORT_KEY,
    DirOption,
    JsonOption,
    existing_folder,
    folder_of,
    read_key,
)
from datalattice.cli.render import (
    Step,
    print_json_list,
    print_lines,
    progress_bars,
    results,
    show,
    table,
)
from datalattice.cli.topics import choose_owner, own_topic, queue_owners, topics_of
from datalattice.cli.values import (
    Form,
    listed_json,
    parse_key,
    parse_owner,
    parse_value,
    value_json,
    value_text,
)
from datalattice.client import Editor, edit, editing, reading
from datalattice.errors import DataLatticeError, UsageError

app = typer.Typer(help="Append to topics, read them, cut them. Every write is signed and on disk.")

BATCH: Final = 1_000
"""Records of one commit at most."""

BATCH_LENGTH: Final = 4_000_000
"""Characters or bytes of one commit, after which it takes no more records."""

PAUSE_S: Final = 0.2
"""A record of a pipe that waits for others this long is committed without them."""

READ_BYTES: Final = 1 << 16

TopicArgument = Annotated[str, typer.Argument(help="The topic's name.")]
PartitionOption = Annotated[
    str | None,
    typer.Option("--partition", "-p", help="The partition's id. Default: 0.", show_default=False),
]
OwnerOption = Annotated[
    str | None,
    typer.Option(
        "--owner",
        "-o",
        help="Whose topic: a public key in hex. Default: your own, else the only one there is.",
        show_default=False,
    ),
]
FormOption = Annotated[Form, typer.Option("--as", help="How values are written.")]


@dataclass(frozen=True, slots=True)
class _Reading:
    owner: bytes
    queue: Queue
    partition: Value


@contextmanager
def _open(
    directory: Path | None, topic: str, partition: str | None, owner: str | None
) -> Iterator[_Reading]:
    folder = existing_folder(directory)
    name = parse_key(topic)
    with reading(folder) as root:
        chosen = choose_owner(folder, root, parse_owner(owner) if owner else None, name)
        place = 0 if partition is None else parse_key(partition)
        found = topics_of(root, chosen).topic(name)
        held = found.partitions()
        if place not in held:
            ids = ", ".join(value_text(one) for one in held) or "none"
            raise UsageError(f"topic {topic} has no partition {value_text(place)}; it has: {ids}")
        yield _Reading(chosen, found.partition(place), place)


def _record(offset: int, entry: Value) -> dict[str, object]:
    return {
        "offset": offset,
        "time_ms": entry_stamp_ms(entry),
        "key": value_json(entry_key(entry)),
        "value": value_json(entry_value(entry)),
        "headers": value_json(entry_headers(entry)) or None,
    }


def _time(stamp_ms: int | None) -> str:
    if stamp_ms is None:
        return ""
    try:
        return datetime.fromtimestamp(stamp_ms / 1_000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError):
        return f"{stamp_ms} ms"  # a leader may write any 64-bit number


@app.command("offer")
def offer(
    topic: TopicArgument,
    values: Annotated[
        list[str] | None,
        typer.Argument(help="The values. Without any: one record for each line of standard input."),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option("--key", "-k", help="The records' key; routes when the topic has partitions."),
    ] = None,
    headers: Annotated[
        str | None, typer.Option("--headers", help="The records' headers: a JSON object.")
    ] = None,
    partition: PartitionOption = None,
    form: FormOption = Form.TEXT,
    dir: DirOption = None,
    json: JsonOption = False,
) -> None:
    """Append records to a topic of your own, sign them and put them on disk.

    Lines of standard input are put on disk as they come: `tail -f log | lattice queue offer log`.
    With `--as json` the value null is a tombstone: a compaction removes its key.
    """
    folder = folder_of(dir)
    name = parse_key(topic)
    key_cell = None if key is None else parse_key(key)
    header_cell = None if headers is None else _parse_headers(headers)
    offsets: list[range] = []
    with editing(folder) as editor, progress_bars(quiet=json, transient=True) as bars:
        place = _place(editor, name, key_cell, partition)
        bar = bars.add(f"offer to {topic}", None if not values else len(values))
        try:
            for batch in _batches(_values(values, form)):
                keys = None if key_cell is None else [key_cell] * len(batch)
                all_headers = None if header_cell is None else [header_cell] * len(batch)
                offsets.append(editor.offer_many(name, place, batch, keys, all_headers))
                bar.advance(len(batch))
        except DataLatticeError as error:
            if offsets:
                error.args = (f"{error}; on disk: {_offsets_text(offsets)}",)
            raise
    if not offsets:
        raise UsageError("no values: name some, or give one on each line of standard input")
    first, count = offsets[0].start, sum(map(len, offsets))
    done = {"topic": topic, "partition": value_json(place), "offset": first, "count": count}
    text = f"{topic} {value_text(place)}: {_offsets_text(offsets)}"
    show(json, done, lambda: print_lines([text]))


def _offsets_text(ranges: list[range]) -> str:
    """Return the offsets of batches as text; other writers may have come between two batches."""
    joined: list[range] = []
    for one in ranges:
        if joined and joined[-1].stop == one.start:
            joined[-1] = range(joined[-1].start, one.stop)
        else:
            joined.append(one)
    texts = [f"{one.start} to {one.stop - 1}" if len(one) > 1 else f"{one.start}" for one in joined]
    return ("offset " if texts == [f"{ranges[0].start}"] else "offsets ") + ", ".join(texts)


def _parse_headers(text: str) -> Value:
    try:
        value = from_json(text)
    except DataLatticeError as error:
        raise UsageError(f"--headers is a JSON object: {error}") from error
    if not isinstance(value, Map):
        raise UsageError(f"--headers is a JSON object, got {text}")
    return value


def _place(editor: Editor, topic: Value, key: Value, partition: str | None) -> Value:
    if partition is not None:
        return parse_key(partition)
    if key is None:
        return 0
    count = topics_of(editor.root(), editor.key_pair.public_key).topic(topic).num_partitions
    return partition_of(key, count) if count > 0 else 0


def _values(values: list[str] | None, form: Form) -> Iterator[Value | _Pause]:
    if values:
        return iter([parse_value(value, form) for value in values])
    return _parsed(form)


class _Pause:
    """Nothing more of the input is there just now."""


def _parsed(form: Form) -> Iterator[Value | _Pause]:
    number = 0
    for line in _lines():
        if line is None:
            yield _Pause()
            continue
        number += 1
        try:
            yield parse_value(line.rstrip("\r\n"), form)
        except UsageError as error:
            raise UsageError(f"line {number} of standard input: {error}") from error


def _lines() -> Iterator[str | None]:
    """Yield the lines of standard input as they come, and None while none does."""
    try:
        source = sys.stdin.fileno()
    except (OSError, ValueError):  # a program put something else in its place
        yield from sys.stdin
        return
    decode = codecs.getdecoder(sys.stdin.encoding)
    pieces: list[bytes] = []
    while True:
        if not select.select([source], [], [], PAUSE_S)[0]:
            yield None
            continue
        data = os.read(source, READ_BYTES)
        *ended, rest = data.split(b"\n")
        for line in ended:
            yield decode(b"".join((*pieces, line)), sys.stdin.errors or "strict")[0]
            pieces.clear()
        pieces.append(rest)
        if not data:
            if last := b"".join(pieces):
                yield decode(last, sys.stdin.errors or "strict")[0]
            return


def _batches(
    values: Iterable[Value | _Pause], now_s: Callable[[], float] = time.monotonic
) -> Iterator[list[Value]]:
    """Group values into commits: none waits long for others, and none grows large."""
    batch: list[Value] = []
    length = 0
    began_s = 0.0
    for value in values:
        if not isinstance(value, _Pause):
            if not batch:
                began_s = now_s()
            batch.append(value)
            length += len(value) if isinstance(value, (str, bytes, Text, Blob)) else 0
        is_full = len(batch) == BATCH or length >= BATCH_LENGTH
        if batch and (is_full or now_s() - began_s >= PAUSE_S):
            yield batch
            batch, length = [], 0
    if batch:
        yield batch


@app.command("peek")
def peek(
    topic: TopicArgument,
    offset: Annotated[
        int | None, typer.Argument(help="Which record. Default: the oldest.", show_default=False)
    ] = None,
    last: Annotated[bool, typer.Option("--last", help="The newest record.")] = False,
    partition: PartitionOption = None,
    owner: OwnerOption = None,
    dir: DirOption = None,
    json: JsonOption = False,
) -> None:
    """Print the value of one record."""
    if last and offset is not None:
        raise UsageError("give an offset or --last, not both")
    with _open(dir, topic, partition, owner) as reading:
        state = reading.queue.state()
        wanted = state.end - 1 if last else state.start if offset is None else offset
        entry = reading.queue.peek_entry(wanted)
        if entry is None:
            there = f"{state.start} to {state.end - 1}" if state.entries else "none"
            raise UsageError(f"there is no record at offset {wanted}; offsets here: {there}")
        record = _record(wanted, entry)
        text = value_text(entry_value(entry))
        show(json, record, lambda: print_lines([text]))


@app.command("range")
def range_(
    topic: TopicArgument,
    first: Annotated[int | None, typer.Argument(help="First offset.", show_default=False)] = None,
    last: Annotated[
        int | None, typer.Argument(help="Last offset, included.", show_default=False)
    ] = None,
    long: Annotated[bool, typer.Option("--long", "-l", help="Offset, time and key too.")] = False,
    partition: PartitionOption = None,
    owner: OwnerOption = None,
    dir: DirOption = None,
    json: JsonOption = False,
) -> None:
    """Print the values of records in order, one a line. Without offsets: all of them."""
    # Records that go to a terminal are their own sign of progress.
    watched = progress_bars(quiet=sys.stdout.isatty(), transient=True)
    with _open(dir, topic, partition, owner) as reading, watched as bars:
        state = reading.queue.state()
        begin = state.start if first is None else max(first, state.start)
        end = state.end if last is None else min(last + 1, state.end)
        bar = bars.add(f"read {topic}", max(0, end - begin))
        entries = _watched(enumerate(reading.queue.iter_entries(begin, last), begin), bar)
        if json:
            print_json_list(_record(offset, entry) for offset, entry in entries)
        elif long:
            print_lines(_long(offset, entry) for offset, entry in entries)
        else:
            print_lines(value_text(entry_value(entry)) for _, entry in entries)


def _watched(entries: Iterable[tuple[int, Value]], bar: Step) -> Iterator[tuple[int, Value]]:
    for count, entry in enumerate(entries, 1):
        yield entry
        if count % BATCH == 0:
            bar.advance(BATCH)


def _long(offset: int, entry: Value) -> str:
    key = entry_key(entry)
    key_text = "" if key is None else value_text(key)
    columns = (str(offset), _time(entry_stamp_ms(entry)), key_text, value_text(entry_value(entry)))
    return "\t".join(columns)


@app.command("info")
def info(
    topic: TopicArgument,
    owner: OwnerOption = None,
    dir: DirOption = None,
    json: JsonOption = False,
) -> None:
    """Print a topic's owner, metadata and partitions."""
    folder = existing_folder(dir)
    name = parse_key(topic)
    with reading(folder) as root:
        chosen = choose_owner(folder, root, parse_owner(owner) if owner else None, name)
        found = topics_of(root, chosen).topic(name)
        partitions = [
            _partition_info(place, found.partition(place)) for place in found.partitions()
        ]
        meta = value_json(found.metadata())
    document = {"topic": topic, "owner": chosen.hex(), "meta": meta, "partitions": partitions}

    def text() -> None:
        print_lines([f"topic  {topic}", f"owner  {chosen.hex()}", f"meta   {meta}"])
        columns = ("partition", "start", "end", "records", "first", "last")
        rows = [
            (
                str(one["partition"]),
                one["start"],
                one["end"],
                one["records"],
                _time(_stamp(one["first_ms"])),
                _time(_stamp(one["last_ms"])),
            )
            for one in partitions
        ]
        results().print(table(columns, rows))

    show(json, document, text)


def _stamp(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _partition_info(place: Value, queue: Queue) -> dict[str, object]:
    state = queue.state()
    return {
        "partition": value_json(place),
        "start": state.start,
        "end": state.end,
        "records": len(state.entries),
        "first_ms": entry_stamp_ms(queue.peek_first_entry()),
        "last_ms": entry_stamp_ms(queue.peek_last_entry()),
        "meta": value_json(state.meta.values),
    }


@app.command("truncate")
def truncate(
    topic: TopicArgument,
    start: Annotated[int, typer.Argument(help="Records before this offset are removed.")],
    partition: PartitionOption = None,
    dir: DirOption = None,
    json: JsonOption = False,
) -> None:
    """Remove the oldest records of a topic of your own. Offsets never come back."""
    folder = existing_folder(dir)
    if start < 0:
        raise UsageError(f"START is the offset of the first record to keep, got {start}")
    name, place = parse_key(topic), 0 if partition is None else parse_key(partition)
    # A topic is made by the first write; a misspelled one is not to be made by cutting it.
    own = read_key(folder.key_path).public_key
    with _open(dir, topic, partition, own.hex()):
        pass
    removed = edit(folder, own_topic(name, lambda found: found.partition(place).truncate(start)))
    done = {"topic": topic, "partition": value_json(place), "start": start, "removed": removed}
    show(json, done, lambda: print_lines([f"{topic} {value_text(place)}: {removed} removed"]))


@app.command("list")
def list_(
    owner: OwnerOption = None,
    dir: DirOption = None,
    json: JsonOption = False,
) -> None:
    """List topics: everybody's that are here, or one owner's."""
    folder = existing_folder(dir)
    found: list[dict[str, object]] = []
    with reading(folder) as root:
        for one in queue_owners(root):
            if owner is not None and one != parse_owner(owner):
                continue
            mine = topics_of(root, one)
            for name in mine.topics():
                topic = mine.topic(name)
                ids = topic.partitions()
                found.append(
                    {
                        "owner": one.hex(),
                        "topic": listed_json(name),
                        "partitions": len(ids),
                        "records": sum(topic.partition(place).size() for place in ids),
                    }
                )

    def text() -> None:
        rows = [
            (str(one["owner"])[:SHORT_KEY], one["topic"], one["partitions"], one["records"])
            for one in found
        ]
        results().print(table(("owner", "topic", "partitions", "records"), rows))

    show(json, found, text)
