"""Plan: which offsets of which partitions to read, and in how many tasks. Pure: no Spark, no store.

A *view* is what one root of a store holds: a `Log` for each queue partition. A stream's position is
an absolute queue offset for each partition. It survives everything a log may go through: records
appended, records truncated, partitions that appear later. What it cannot survive is a log that lost
what the stream has not read yet: that is a `DataLoss`, or a jump that is reported.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from datalattice.errors import DataLoss, UsageError
from datalattice.limits import COUNT_MAX, FAN_OUT
from datalattice.pipeline.options import bad_option
from datalattice.pipeline.queue.options import Edge, Positions

RECORDS_PER_TASK_MAX: Final = 262_144
"""A longer range becomes several tasks, so that one long partition keeps all cores busy. A task of
small records then takes a quarter of a second, ten times as long as Spark takes to start it."""

TASKS_MAX: Final = 262_144
"""Where there would be more tasks than about this, they are longer. No driver plans more, and a log
of a few cells may claim to hold 2**62 records."""

ALIGNED_RECORDS_MIN: Final = 4 * FAN_OUT
"""Ranges this long are cut where a leaf of the log ends, so that no leaf is read by two tasks."""

OFFSETS_VERSION: Final = 1
"""Version of the form in which a stream's position is kept in checkpoints."""


class PartitionName(NamedTuple):
    """A queue partition, by the texts that its rows show."""

    owner: str
    topic: str
    partition: str

    def __str__(self) -> str:
        return f"partition {self.partition} of topic {self.topic!r} of owner {self.owner}"


class Log(NamedTuple):
    """A partition as it is in one root."""

    start: int
    """Absolute offset of the first record still there."""
    end: int
    """Absolute offset that the next record will get."""
    entries: bytes
    """Encoding of the vector of entries; its branches are in the store."""


View = Mapping[PartitionName, Log]
Offsets = dict[PartitionName, int]


@dataclass(frozen=True, slots=True)
class Slice:
    """A range of one partition: what one task reads. It stands for itself: no root is looked up."""

    name: PartitionName
    log: Log
    first: int
    stop: int


@dataclass(frozen=True, slots=True)
class Loss:
    """Records that were asked for and are not there any more."""

    name: PartitionName
    first: int
    stop: int
    reason: str

    def __str__(self) -> str:
        return f"{self.name}: records {self.first} to {self.stop - 1} are not there: {self.reason}"


OnLoss = Callable[[Loss], None]


def refuse_loss(loss: Loss) -> None:
    """Raise for a loss: what `failOnDataLoss=true` means.

    Raises: DataLoss: always.
    """
    raise DataLoss(f"{loss}; set failOnDataLoss=false to go on with the records that are there")


def ordered(names: Iterable[PartitionName]) -> list[PartitionName]:
    """Return names by owner, topic and partition, numbers by their value."""

    def key(name: PartitionName) -> tuple[str, str, int, str]:
        number = int(name.partition) if name.partition.isdecimal() else COUNT_MAX
        return name.owner, name.topic, number, name.partition

    return sorted(names, key=key)


def resolve(view: View, positions: Positions, option: str) -> Offsets:
    """Return the offset that a user's positions mean in each partition.

    An offset before a log's start is kept as it is: reading from there is a matter of data loss.

    Raises: UsageError: a named partition is not there, or an offset is past the end of its log.
    """
    _check_named(view, positions, option)
    offsets: Offsets = {}
    for name in ordered(view):
        log = view[name]
        position = positions.of(*name)
        if isinstance(position, Edge):
            offsets[name] = log.start if position is Edge.EARLIEST else log.end
        elif position > log.end:
            raise bad_option(option, position, f"{name} has the offsets {log.start} to {log.end}")
        else:
            offsets[name] = position
    return offsets


def _check_named(view: View, positions: Positions, option: str) -> None:
    for tail in positions.named:
        if not any(name[-len(tail) :] == tail for name in view):
            there = "; ".join(str(name) for name in ordered(view)) or "none"
            raise bad_option(option, "/".join(tail), f"no such partition; there are: {there}")


def check_range(view: View, starting: Positions, start: Offsets, end: Offsets) -> None:
    """Check that no partition's end lies before the offset that the user gave for its start.

    Raises: UsageError: one does; reading nothing in silence would hide the mistake.
    """
    for name in ordered(view):
        if isinstance(starting.of(*name), int) and start[name] > end[name]:
            raise bad_option(
                "endingOffsets", end[name], f"startingOffsets reads {name} from {start[name]} on"
            )


def usable_start(
    view: View, start: Offsets, selects: Callable[[str, str], bool], lost: OnLoss
) -> Offsets:
    """Return from where each partition can be read on, given where a stream or query stands.

    What was truncated since is reported to `lost` and jumped over. A log that is gone, or shorter
    than what was read of it, keeps its position: its next records will be those past it. A
    partition not known yet is read from its start.
    """
    usable: Offsets = {}
    for name in ordered({*view, *start}):
        log = view.get(name)
        at = start.get(name)
        if log is None:
            usable[name] = start[name]
            if selects(name.owner, name.topic) and start[name] > 0:
                lost(Loss(name, 0, start[name], "the partition is not in the store any more"))
        elif at is None:
            usable[name] = log.start
        elif at < log.start:
            usable[name] = log.start
            lost(Loss(name, at, log.start, f"the log was truncated and starts at {log.start}"))
        else:
            usable[name] = at
            if at > log.end:
                lost(Loss(name, log.end, at, f"the log ends at {log.end}"))
    return usable


def advance(
    view: View, start: Offsets, limit: int | None = None, target: Offsets | None = None
) -> Offsets:
    """Return how far the next batch goes from a usable start: to the ends, or `limit` records on.

    The limit is shared out by how much each partition has. With a target nothing past it is read,
    and partitions that it does not know wait.
    """
    sizes: list[int] = []
    for name, at in start.items():
        end = view[name].end if name in view else at
        if target is not None:
            end = min(end, target.get(name, at))
        sizes.append(max(0, end - at))
    shares = share(sizes, limit)
    return {name: at + taken for (name, at), taken in zip(start.items(), shares, strict=True)}


def next_offsets(
    view: View,
    start: Offsets,
    selects: Callable[[str, str], bool],
    lost: OnLoss,
    *,
    limit: int | None = None,
    target: Offsets | None = None,
) -> Offsets:
    """Return how far a stream that stands at `start` goes with its next batch; `start` if nowhere.

    A partition joins a stream's position with its first records, not before: an empty one would
    cause a batch of nothing.
    """
    usable = usable_start(view, start, selects, lost)
    ends = advance(view, usable, limit, target)
    return {name: end for name, end in ends.items() if name in start or end > usable[name]}


def share(sizes: list[int], limit: int | None) -> list[int]:
    """Return how much to take of each size so that all is `limit`, in proportion to the sizes.

    What rounding leaves goes to the largest remainders, the first of equals.
    """
    total = sum(sizes)
    if limit is None or total <= limit:
        return sizes
    taken = [size * limit // total for size in sizes]
    by_remainder = sorted(range(len(sizes)), key=lambda i: -(sizes[i] * limit % total))
    for i in by_remainder[: limit - sum(taken)]:
        taken[i] += 1
    return taken


def slices(
    view: View,
    start: Offsets,
    end: Offsets,
    lost: OnLoss,
    min_partitions: int | None = None,
    *,
    selects: Callable[[str, str], bool] | None = None,
) -> list[Slice]:
    """Return the ranges to read from a usable start to `end`, cut into tasks.

    A log that is gone or ends before `end` has lost records: reported to `lost`, what is there is
    read.

    selects: whether an owner and topic is asked for: of others no log is missed. Default: all are.
    """
    ranges: list[Slice] = []
    for name in ordered(end):
        log = view.get(name)
        if log is None:
            first = start.get(name, 0)
            if first < end[name] and (selects is None or selects(name.owner, name.topic)):
                reason = "the partition is not in the store any more"
                lost(Loss(name, first, end[name], reason))
            continue
        stop = min(end[name], log.end)
        first = start.get(name, log.start)
        if stop < end[name] and first <= log.end:
            lost(Loss(name, stop, end[name], f"the log ends at {log.end}"))
        if first < stop:
            ranges.append(Slice(name, log, first, stop))
    total = sum(part.stop - part.first for part in ranges)
    wanted = min(min_partitions or 1, total, TASKS_MAX)
    longest = max(RECORDS_PER_TASK_MAX, -(-total // TASKS_MAX))
    return [piece for part in ranges for piece in _cut(part, wanted, total, longest)]


def _cut(whole: Slice, wanted: int, total: int, longest: int) -> Iterator[Slice]:
    """Yield a range in as many pieces as its part of the `wanted` tasks for `total` records.

    More, where they would be longer than `longest`.
    """
    size = whole.stop - whole.first
    count = max(-(-size * wanted // total), -(-size // longest))
    first = whole.first
    for i in range(1, count + 1):
        stop = whole.first + size * i // count
        if i < count and size >= count * ALIGNED_RECORDS_MIN:
            stop -= (stop - whole.log.start) % FAN_OUT
        yield Slice(whole.name, whole.log, first, stop)
        first = stop


def write_offsets(offsets: Offsets) -> dict[str, object]:
    """Return offsets in the form that Spark keeps as JSON. Equal offsets give equal text."""
    tree: dict[str, dict[str, dict[str, int]]] = {}
    for name in ordered(offsets):
        topics = tree.setdefault(name.owner, {})
        topics.setdefault(name.topic, {})[name.partition] = offsets[name]
    return {"version": OFFSETS_VERSION, "offsets": tree}


def read_offsets(form: Mapping[str, object]) -> Offsets:
    """Return the offsets in a checkpoint.

    Raises: UsageError: another version of this package wrote it, or something else did.
    """
    tree = form.get("offsets") if form.get("version") == OFFSETS_VERSION else None
    try:
        return {
            PartitionName(owner, topic, partition): int(offset)
            for owner, topics in _object(tree)
            for topic, partitions in _object(topics)
            for partition, offset in _object(partitions)
        }
    except (TypeError, ValueError):
        raise UsageError(
            f"the checkpoint holds no offsets of this source (version {OFFSETS_VERSION}): "
            f"{json.dumps(form)[:200]}; use another checkpointLocation"
        ) from None


def _object(value: object) -> Iterable[tuple[str, Any]]:
    if not isinstance(value, dict):
        raise TypeError("no object")
    return value.items()
