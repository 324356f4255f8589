"""Which offsets of which partitions to read, in how many tasks. Uses neither Spark nor a store.

A *view* lists the queue partitions of one root, a `PartitionLog` each. A stream's position is an
absolute offset for each partition. It stays valid when records are appended or truncated, and when
partitions are added. If a log loses records that the stream has not read yet, the stream fails with
`DataLoss`, or reports the loss and skips them.

Source: docs/spark.md "Offsets", "Streaming", "Data loss".
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

RECORDS_PER_TASK_MAX: Final = 1_048_576
"""A longer range is divided into several tasks, so that one long partition uses all cores. As many
records of 100 bytes are what Spark gives one task of a Parquet file; `minPartitions` asks for more
tasks. Each costs Spark and Python 40 ms, a twentieth of the time of so many small records."""

TASKS_MAX: Final = 262_144
"""Approximate most tasks that a driver can plan; if there would be more, tasks get longer. A log
of a few cells may claim to hold 2**62 records."""

ALIGNED_RECORDS_MIN: Final = 4 * FAN_OUT
"""Ranges of at least this length are cut at leaf boundaries, so that two tasks never read the same
leaf."""

OFFSETS_VERSION: Final = 1
"""Version of the checkpointed form of a stream's position."""


class PartitionName(NamedTuple):
    """A queue partition, by the texts in its rows."""

    owner: str
    topic: str
    partition: str

    def __str__(self) -> str:
        return f"partition {self.partition} of topic {self.topic!r} of owner {self.owner}"


class PartitionLog(NamedTuple):
    """A partition in one root."""

    start: int
    """Absolute offset of the first record that was not truncated."""
    end: int
    """Absolute offset of the next record to be appended."""
    entries: bytes
    """Encoding of the vector of entries; its branches are in the store."""


TopicLogs = Mapping[PartitionName, PartitionLog]
Offsets = dict[PartitionName, int]


@dataclass(frozen=True, slots=True)
class Slice:
    """The range of one partition that one task reads.

    It has the log's encoding, so the task needs no root.
    """

    name: PartitionName
    log: PartitionLog
    first: int
    stop: int


@dataclass(frozen=True, slots=True)
class LostRecords:
    """Requested records that the root does not have."""

    name: PartitionName
    first: int
    stop: int
    reason: str

    def __str__(self) -> str:
        return f"{self.name}: records {self.first} to {self.stop - 1} are not there: {self.reason}"


OnLostRecords = Callable[[LostRecords], None]


def refuse_loss(loss: LostRecords) -> None:
    """Raise a loss, as `failOnDataLoss=true` requires. Raises: DataLoss: always."""
    raise DataLoss(f"{loss}; set failOnDataLoss=false to continue with the records that are there")


def ordered(names: Iterable[PartitionName]) -> list[PartitionName]:
    """Return names sorted by owner, topic and partition, numeric partitions by value."""

    def key(name: PartitionName) -> tuple[str, str, int, str]:
        # Another owner may name the partitions of a topic with any value; such names come last.
        number = int(name.partition) if name.partition.isdecimal() else COUNT_MAX
        return name.owner, name.topic, number, name.partition

    return sorted(names, key=key)


def resolve_positions(view: TopicLogs, positions: Positions, option: str) -> Offsets:
    """Return the offset that the given positions mean in each partition.

    An offset before the log's start is returned unchanged; `usable_start` treats it as data loss.

    Raises: UsageError: a named partition does not exist, or an offset is past the end of its log.
    """
    _check_named(view, positions, option)
    offsets: Offsets = {}
    for name in ordered(view):
        log = view[name]
        position = positions.of(*name)
        if isinstance(position, Edge):
            offsets[name] = log.start if position is Edge.EARLIEST else log.end
        # "An offset past its end is an error" (docs/spark.md, Offsets).
        elif position > log.end:
            raise bad_option(option, position, f"{name} has the offsets {log.start} to {log.end}")
        else:
            offsets[name] = position
    return offsets


def _check_named(view: TopicLogs, positions: Positions, option: str) -> None:
    for tail in positions.named:
        # "A named partition that does not exist is an error" (docs/spark.md): a misspelt one would
        # begin at the default.
        if not any(name[-len(tail) :] == tail for name in view):
            there = "; ".join(str(name) for name in ordered(view)) or "none"
            raise bad_option(option, "/".join(tail), f"no such partition; there are: {there}")


def check_range(view: TopicLogs, starting: Positions, start: Offsets, end: Offsets) -> None:
    """Check that no partition ends before the offset that the user gave for its start.

    Raises: UsageError: a partition does.
    """
    # An empty result would hide the mistake.
    for name in ordered(view):
        if isinstance(starting.of(*name), int) and start[name] > end[name]:
            raise bad_option(
                "endingOffsets", end[name], f"startingOffsets reads {name} from {start[name]} on"
            )


def usable_start(
    view: TopicLogs, start: Offsets, selects: Callable[[str, str], bool], lost: OnLostRecords
) -> Offsets:
    """Return the offset from which each partition can be read, given a stream's position `start`.

    Truncated records are reported to `lost` and skipped. If a log is gone, or shorter than its
    position, the position stays, and only later records will be read. A new partition starts at its
    first record.
    """
    usable: Offsets = {}
    for name in ordered({*view, *start}):
        log = view.get(name)
        at = start.get(name)
        if log is None:
            usable[name] = start[name]
            # Topics may be missing because the user changed an option since the checkpoint; then
            # nothing is lost.
            if selects(name.owner, name.topic) and start[name] > 0:
                lost(LostRecords(name, 0, start[name], "the partition is no longer in the store"))
        # "A new partition joins with its first records and is read from its start".
        elif at is None:
            usable[name] = log.start
        elif at < log.start:
            usable[name] = log.start
            lost(
                LostRecords(name, at, log.start, f"the log was truncated and starts at {log.start}")
            )
        else:
            # "The position stays, and only records after it are read" (docs/spark.md, Data loss):
            # moving back would read offsets again that now name other records.
            usable[name] = at
            if at > log.end:
                lost(LostRecords(name, log.end, at, f"the log ends at {log.end}"))
    return usable


def batch_ends(
    view: TopicLogs, start: Offsets, limit: int | None = None, target: Offsets | None = None
) -> Offsets:
    """Return where the next batch ends: at the ends of the logs, or after `limit` records.

    start: as `usable_start` returns it. Partitions share the limit in proportion to their new
    records. target: where the batch stops at the latest; partitions that it lacks are not read.
    """
    sizes: list[int] = []
    for name, at in start.items():
        end = view[name].end if name in view else at
        if target is not None:
            # Trigger.AvailableNow reads up to the ends that were seen at its start.
            end = min(end, target.get(name, at))
        sizes.append(max(0, end - at))
    shares = share(sizes, limit)
    return {name: at + taken for (name, at), taken in zip(start.items(), shares, strict=True)}


def next_offsets(
    view: TopicLogs,
    start: Offsets,
    selects: Callable[[str, str], bool],
    lost: OnLostRecords,
    *,
    limit: int | None = None,
    target: Offsets | None = None,
) -> Offsets:
    """Return where the next batch of a stream at `start` ends; `start` itself if there is none.

    A new partition becomes part of the position with its first record. An empty one would change
    the position and so cause an empty batch.
    """
    usable = usable_start(view, start, selects, lost)
    ends = batch_ends(view, usable, limit, target)
    return {name: end for name, end in ends.items() if name in start or end > usable[name]}


def share(sizes: list[int], limit: int | None) -> list[int]:
    """Return shares of `sizes` that add up to `limit`, in proportion to the sizes.

    What rounding down leaves goes to the shares with the largest remainders, one for each.
    """
    total = sum(sizes)
    # Without a limit, and below it, a batch takes all new records.
    if limit is None or total <= limit:
        return sizes
    # "Partitions share `maxOffsetsPerTrigger` in proportion to their new records".
    taken = [size * limit // total for size in sizes]
    # sorted() is stable, which makes the first of equal remainders win.
    by_remainder = sorted(range(len(sizes)), key=lambda i: -(sizes[i] * limit % total))
    for i in by_remainder[: limit - sum(taken)]:
        taken[i] += 1
    return taken


def task_slices(
    view: TopicLogs,
    start: Offsets,
    end: Offsets,
    lost: OnLostRecords,
    min_partitions: int | None = None,
    *,
    selects: Callable[[str, str], bool] | None = None,
) -> list[Slice]:
    """Return the ranges from a usable start to `end`, divided into tasks.

    Records missing from a log that is gone or ends before `end` are reported to `lost`.

    selects: tells whether an owner and topic is selected; others report no loss. Default: all are.
    """
    ranges: list[Slice] = []
    for name in ordered(end):
        log = view.get(name)
        if log is None:
            first = start.get(name, 0)
            if first < end[name] and (selects is None or selects(name.owner, name.topic)):
                reason = "the partition is no longer in the store"
                lost(LostRecords(name, first, end[name], reason))
            continue
        stop = min(end[name], log.end)
        first = start.get(name, log.start)
        # If `first` is past the end, `usable_start` has already reported the loss.
        if stop < end[name] and first <= log.end:
            lost(LostRecords(name, stop, end[name], f"the log ends at {log.end}"))
        if first < stop:
            ranges.append(Slice(name, log, first, stop))
    total = sum(part.stop - part.first for part in ranges)
    # With more tasks than records, some tasks would be empty.
    wanted = min(min_partitions or 1, total, TASKS_MAX)
    # Tasks get longer only if there would be more than `TASKS_MAX`.
    longest = max(RECORDS_PER_TASK_MAX, -(-total // TASKS_MAX))
    return [piece for part in ranges for piece in _cut(part, wanted, total, longest)]


def _cut(whole: Slice, wanted: int, total: int, longest: int) -> Iterator[Slice]:
    """Yield a range in pieces: its share of `wanted` tasks for `total` records, rounded up.

    There are more pieces if they would be longer than `longest`.
    """
    size = whole.stop - whole.first
    count = max(-(-size * wanted // total), -(-size // longest))
    first = whole.first
    for i in range(1, count + 1):
        stop = whole.first + size * i // count
        # Moved back to a leaf boundary: if the cut is inside a leaf, two tasks read that leaf.
        if i < count and size >= count * ALIGNED_RECORDS_MIN:
            stop -= (stop - whole.log.start) % FAN_OUT
        yield Slice(whole.name, whole.log, first, stop)
        first = stop


def write_offsets(offsets: Offsets) -> dict[str, object]:
    """Return offsets in the form that Spark keeps as JSON; equal offsets give equal text."""
    tree: dict[str, dict[str, dict[str, int]]] = {}
    # Spark compares offsets as text, so the order must not depend on the view.
    for name in ordered(offsets):
        topics = tree.setdefault(name.owner, {})
        topics.setdefault(name.topic, {})[name.partition] = offsets[name]
    return {"version": OFFSETS_VERSION, "offsets": tree}


def read_offsets(form: Mapping[str, object]) -> Offsets:
    """Return the offsets in a checkpoint.

    Raises: UsageError: the checkpoint is of another version or another source.
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
        raise TypeError("not an object")
    return value.items()
