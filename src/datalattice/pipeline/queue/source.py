"""The Spark format `lattice.queue`, as batch source, stream source and sink.

The planner reads a root and divides the offsets into ranges; each task reads one range. Both open
the store read-only beside its writer, or fetch cells from a running node. A task receives the
encoding of its log, so it reads the same records even if others are committed meanwhile.

Source: docs/spark.md.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from datalattice.cells import Value
from datalattice.clock import Clock
from datalattice.errors import MissingData, UsageError
from datalattice.pipeline.leasing import LeasedRoot, StreamLeases
from datalattice.pipeline.options import bad_option, documents
from datalattice.pipeline.queue.options import Edge, Positions, QueueOptions, parse_options
from datalattice.pipeline.queue.plan import (
    LostRecords,
    Offsets,
    Slice,
    TopicLogs,
    check_range,
    next_offsets,
    read_offsets,
    refuse_loss,
    resolve_positions,
    task_slices,
    usable_start,
    write_offsets,
)
from datalattice.pipeline.queue.rows import slice_batches
from datalattice.pipeline.queue.sink import QueueSink
from datalattice.pipeline.queue.view import QueueViews, offsets_since, read_view
from datalattice.pipeline.read_targets import OpenTarget, ReadTarget, encodings, many_encodings
from datalattice.pipeline.reader import BatchReader, Format, FormatReader, Planned, TaskInput

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

QUEUE_FORMAT: Final = "lattice.queue"

T = TypeVar("T")

_log: Final = logging.getLogger("datalattice.pipeline")


@documents(ReadTarget, QueueOptions)
class QueueSource(Format[QueueOptions], QueueSink):
    """Records of queues in a store or of a running node, as rows.

    Rows (`columns` selects among them):

    | column | type | what |
    |---|---|---|
    | owner | STRING | owner of the queue: 0x and the public key in hex |
    | topic | STRING | topic |
    | partition | BIGINT or STRING | partition id, see partitionFormat |
    | offset | BIGINT | absolute offset of the record |
    | timestamp | TIMESTAMP | when the record was appended |
    | key | see keyFormat | key; NULL if the record has none |
    | value | see valueFormat | value |
    | headers | MAP<STRING, STRING> | headers; only on demand |

    Offsets in JSON are by partition: `{"0": 5}`, `{"topic": {"0": 5}}`,
    `{"owner": {"topic": {"0": 5}}}`, where -2 is earliest and -1 latest. A restarted stream
    continues from its checkpoint. `QueueSinkOptions` describes the options for writing. The options
    for reading are:
    """

    format = QUEUE_FORMAT
    # "NULL in all columns from timestamp on" (docs/spark.md, Columns): not in those before it.
    never_null = ("owner", "topic", "partition", "offset")
    parse = staticmethod(parse_options)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch. Raises: UsageError: an option does not fit a batch."""
        # "A batch may not begin at latest or end at earliest" (docs/spark.md, Offsets).
        if self.parsed.starting.has(Edge.LATEST):
            raise bad_option(
                "startingOffsets", Edge.LATEST.value, "a batch would read nothing from there"
            )
        if self.parsed.ending.has(Edge.EARLIEST):
            raise bad_option(
                "endingOffsets", Edge.EARLIEST.value, "a batch would read nothing up to there"
            )
        return QueueReader(self.parsed, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        """Return the reader of a stream. Raises: UsageError: an option does not fit a stream."""
        if self.parsed.target.as_of:
            raise UsageError("option asOf is for batches: a stream reads new records")
        # `Trigger.AvailableNow` ends a stream instead.
        if self.parsed.ending != Positions(Edge.LATEST, {}):
            raise UsageError("option endingOffsets is for batches: a stream has no end")
        return QueueStreamReader(self.parsed, schema)


class _QueueReader(FormatReader[QueueOptions]):
    """What both readers share: the ranges that tasks read, and their rows."""

    format = QUEUE_FORMAT
    shaping_options = "columns, valueFormat, keyFormat and partitionFormat"

    def lost(self, loss: LostRecords) -> None:
        """Raise or log a loss, as failOnDataLoss says."""
        if self.options.fail_on_data_loss:
            refuse_loss(loss)
        _log.warning("%s; continuing without them (failOnDataLoss=false)", loss)

    def start(self, view: TopicLogs) -> Offsets:
        """Return the starting offsets that the options name."""
        if self.options.starting_timestamp_ms is None:
            return resolve_positions(view, self.options.starting, "startingOffsets")
        return offsets_since(view, self.options.starting_timestamp_ms, self.source())

    def ranges(self, view: TopicLogs, start: Offsets, end: Offsets) -> list[TaskInput]:
        """Return what each task reads from `start` to `end`."""
        usable = usable_start(view, start, self.options.selects, self.lost)
        fewest, selects = self.options.min_partitions, self.options.selects
        parts = task_slices(view, usable, end, self.lost, fewest, selects=selects)
        return [(str(part.name), part) for part in parts]

    def batches(
        self, part: Slice, source: OpenTarget, schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records of a task."""
        verify = self.options.verify
        fetch, many = encodings(source, verify=verify), many_encodings(source, verify=verify)
        return slice_batches(part, self.options, schema, fetch, many)


class QueueReader(_QueueReader, BatchReader[QueueOptions]):
    """Reads a range of each partition once."""

    def parts(self, root: Value) -> list[TaskInput]:
        """Return what each task reads."""
        view = read_view(root, self.options, must_exist=True)
        end = resolve_positions(view, self.options.ending, "endingOffsets")
        start = self.start(view)
        # An offset found by time may be past a given end; then the range is empty.
        if self.options.starting_timestamp_ms is None:
            check_range(view, self.options.starting, start, end)
        return self.ranges(view, start, end)


class _SeenRoot(NamedTuple):
    """A root and the partitions found in it."""

    root_hash: bytes | None
    view: TopicLogs

    def ends(self) -> Offsets:
        """Return the end offset of each partition."""
        return {name: log.end for name, log in self.view.items()}

    def covers(self, end: Offsets) -> bool:
        """Return whether the root holds all records before these offsets."""
        return all(name in self.view and self.view[name].end >= at for name, at in end.items())


class QueueStreamReader(_QueueReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads what was appended to each partition, batch by batch.

    Spark keeps the position. After a restart it requests the same ranges again, and an offset
    always names the same record, so no record is lost or repeated. A batch reads the root in which
    its end was found; that root is leased until Spark commits the batch, so truncations and
    collections meanwhile do not affect it.
    """

    def __init__(
        self, options: QueueOptions, schema: StructType, clock: Clock | None = None
    ) -> None:
        super().__init__(options, schema, clock)
        self._views = QueueViews(options)
        self._target: Offsets | None = None
        self._last: _SeenRoot | None = None
        self._next: _SeenRoot | None = None
        self._leases = StreamLeases(options.target.lease_seconds, self.clock)
        self._reported: list[LostRecords] = []

    def initialOffset(self) -> dict[str, object]:  # noqa: N802 - Spark's
        """Return the offsets where a new stream begins."""
        return write_offsets(self._settled(lambda seen: self.start(seen.view)))

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's
        """Remember the present ends; the stream stops there."""
        self._target = self._settled(_SeenRoot.ends)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's
        """Return the limit of `maxOffsetsPerTrigger`."""
        limit = self.options.max_offsets_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def latestOffset(self, start: dict[str, object], limit: ReadLimit) -> dict[str, object]:  # noqa: N802 - Spark's
        """Return the offsets where the next batch ends."""
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        begin = read_offsets(start)
        return write_offsets(self._settled(lambda seen: self._next_ends(seen, begin, most)))

    def _next_ends(self, seen: _SeenRoot, begin: Offsets, limit: int | None) -> Offsets:
        """Return where the next batch ends, and lease the root it reads."""
        options = self.options
        losses: list[LostRecords] = []
        ends = next_offsets(
            seen.view,
            begin,
            options.selects,
            refuse_loss if options.fail_on_data_loss else losses.append,
            limit=limit,
            target=self._target,
        )
        # Only a batch needs its root, so an idle stream holds no lease.
        if ends != begin:
            self._hold(seen)  # partitions() logs the losses
        elif losses != self._reported:
            for loss in losses:
                _log.warning("%s; waiting for records after them (failOnDataLoss=false)", loss)
            self._reported = losses
        return ends

    def reportLatestOffset(self) -> dict[str, object]:  # noqa: N802 - Spark's
        """Return the ends of all partitions, for the progress report."""
        return write_offsets(self._settled(_SeenRoot.ends))

    def partitions(self, start: dict[str, object], end: dict[str, object]) -> Sequence[Planned]:
        """Return the tasks of a batch."""
        ends = read_offsets(end)
        seen = self._next
        # "A batch reads the root in which its end was found" (docs/spark.md, Streaming).
        if seen is not None and seen.covers(ends):
            try:
                snapshot = self._hold(seen)
            # Happens with leaseSeconds=0, or if the driver was suspended for longer than the lease.
            except MissingData:
                seen = None  # the lease expired; the current root has what was not truncated
        else:
            seen = None  # the query was restarted
        if seen is None:
            seen, snapshot = self._settled(lambda now: (now, self._hold(now)))
        parts = self.ranges(seen.view, read_offsets(start), ends)
        return [Planned(name, part, snapshot) for name, part in parts]

    def commit(self, end: dict[str, object]) -> None:
        """Release the roots of batches before the next one."""
        if self._next is not None:
            self._leases.done(self._next.root_hash)

    def stop(self) -> None:
        """Release all leases."""
        self._leases.release()

    def _settled(self, work: Callable[[_SeenRoot], T]) -> T:
        """Return `work` of the current root. Raises: as `OpenTarget.settled`."""

        def look(root_hash: bytes | None) -> T:
            # The partitions of the last root are kept.
            # "While nothing changes, a poll reads only the root's hash" (docs/spark.md, Streaming).
            if self._last is None or self._last.root_hash != root_hash:
                view = self._views.read(self.root(root_hash))
                self._last = _SeenRoot(root_hash, view)
            return work(self._last)

        return self.source().settled(look)

    def _hold(self, seen: _SeenRoot) -> LeasedRoot:
        """Lease a root for the next batch. Raises: MissingData: the root was collected."""
        snapshot = LeasedRoot(None, 0)
        if seen.root_hash is not None:
            snapshot = self._leases.hold(self.source(), seen.root_hash)
        self._next = seen
        return snapshot
