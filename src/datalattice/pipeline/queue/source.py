"""Source: the Spark format `lattice.queue`, in batches and as a stream.

Spark calls three kinds of processes here. The driver's planner reads a root and decides the ranges;
tasks read one range each. All open the store read-only beside the one process that writes to it, or
fetch cells from a running node. A task is given the encoding of the log it reads, so it reads the
same records whatever is committed meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from datalattice.errors import MissingData, UsageError
from datalattice.pipeline.frames import Planned, read_part, root_at
from datalattice.pipeline.leasing import Snapshot, StreamLeases
from datalattice.pipeline.options import bad_option
from datalattice.pipeline.places import Source, encodings, many_encodings, open_place
from datalattice.pipeline.queue.options import Edge, Positions, QueueOptions, parse_options
from datalattice.pipeline.queue.plan import (
    Loss,
    Offsets,
    Slice,
    View,
    check_range,
    next_offsets,
    read_offsets,
    refuse_loss,
    resolve,
    slices,
    usable_start,
    write_offsets,
)
from datalattice.pipeline.queue.rows import batches
from datalattice.pipeline.queue.sink import QueueSink
from datalattice.pipeline.queue.view import Views, offsets_since, read_view
from datalattice.pipeline.tables import check_schema, ddl

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

FORMAT: Final = "lattice.queue"

_OPTIONS: Final = "columns, valueFormat, keyFormat and partitionFormat"

T = TypeVar("T")

_log: Final = logging.getLogger("datalattice.pipeline")


class QueueSource(QueueSink):
    """Records of queues in a store or of a running node, as rows.

    Rows (`columns` picks among them):

    | column | type | what |
    |---|---|---|
    | owner | STRING | whose queue: 0x and the public key in hex |
    | topic | STRING | its topic |
    | partition | BIGINT or STRING | the partition's id, see partitionFormat |
    | offset | BIGINT | absolute offset of the record |
    | timestamp | TIMESTAMP | when the record was appended |
    | key | as keyFormat says | its key; NULL when it has none |
    | value | as valueFormat says | its value |
    | headers | MAP<STRING, STRING> | its headers; only on demand |

    Options (names are case-insensitive):

    * `store`: the folder of a store or of a node; or as the argument of `load()`.
    * `node`: instead, the address of a running node, from which tasks fetch cells.
    * `nodeKey`: the file of the private key that is proved to it. Default: a throw-away key.
    * `asOf`: read the root as of a time, a pin or a hash (of a node: a hash); for batches.
    * `leaseSeconds`: how long the root that a batch reads stays at least. Default: 3600.
    * `owner`, `topic`: which to read; names separated by commas or a JSON array. Default: all.
    * `columns`: the columns to read, in this order. Default: all but headers. Spark does not tell a
      source which columns a query needs; what is left out here is not decoded.
    * `includeHeaders`: true adds the column headers.
    * `valueFormat`: `cell` (default; BINARY: the canonical encoding with all branches, exact for
      every value, read back by `decode_message`), `bytes` (BINARY: the content of a Blob, the UTF-8
      of a String; other values are refused), `string` (STRING: Strings as they are, all others as
      JSON), `json` (STRING: all as JSON), `variant` (VARIANT: what that JSON means).
    * `keyFormat`: the same for the key. Default: as valueFormat.
    * `partitionFormat`: `long` (default; BIGINT) or `string`, for ids that are no integers.
    * `startingOffsets`: where to begin: `earliest` (default), `latest` (streams only) or JSON with
      offsets by partition: `{"0": 5}`, `{"topic": {"0": 5}}`, `{"owner": {"topic": {"0": 5}}}`,
      where -2 is earliest and -1 latest. A stream that restarts goes on from its checkpoint.
    * `startingTimestamp`: begin with records of this time or later, in Unix milliseconds.
    * `endingOffsets`: where a batch ends (exclusive), in the same forms. Default: latest.
    * `maxOffsetsPerTrigger`: most records in one batch of a stream. Default: no limit.
    * `minPartitions`: least number of tasks, records permitting. Long ranges are cut anyway.
    * `verify`: false: cells of a folder are not compared with their hashes when they are read. What
      the disk damaged becomes wrong records then, or an error. Default: true.
    * `failOnDataLoss`: false: records that were truncated before they were read are skipped, with
      a warning. Default: true, they are an error.
    """

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return FORMAT

    @cached_property
    def parsed(self) -> QueueOptions:
        """The options of reading; those of writing are `sink.SINK_OPTIONS`."""
        return parse_options(dict(self.options))

    def schema(self) -> str:
        """Return the columns in Spark's DDL."""
        return ddl(self.parsed.types)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch.

        Raises: UsageError: an option does not fit a batch.
        """
        if self.parsed.starting.has(Edge.LATEST):
            raise bad_option(
                "startingOffsets", Edge.LATEST.value, "a batch has nothing to read from there"
            )
        if self.parsed.ending.has(Edge.EARLIEST):
            raise bad_option(
                "endingOffsets", Edge.EARLIEST.value, "a batch has nothing to read up to there"
            )
        return QueueReader(self.parsed, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        """Return the reader of a stream.

        Raises: UsageError: an option does not fit a stream.
        """
        if self.parsed.place.as_of:
            raise UsageError("option asOf is for batches: a stream reads what comes")
        if self.parsed.ending != Positions(Edge.LATEST, {}):
            raise UsageError("option endingOffsets is for batches: a stream has no end")
        return QueueStreamReader(self.parsed, schema)


class _Reading:
    """What both readers do: look into a root for a view, and read slices of it."""

    def __init__(self, options: QueueOptions, schema: StructType) -> None:
        self.options = options
        self.schema = schema
        check_schema(schema, options.types, FORMAT, _OPTIONS)

    def source(self) -> Source:
        """Return the open place."""
        return open_place(self.options.place)

    def lost(self, loss: Loss) -> None:
        """Do with a loss what failOnDataLoss says."""
        if self.options.fail_on_data_loss:
            refuse_loss(loss)
        _log.warning("%s; going on without them (failOnDataLoss=false)", loss)

    def start(self, view: View) -> Offsets:
        """Return where the options say to begin."""
        if self.options.starting_timestamp_ms is None:
            return resolve(view, self.options.starting, "startingOffsets")
        return offsets_since(view, self.options.starting_timestamp_ms, self.source())

    def plan(self, view: View, start: Offsets, end: Offsets, snapshot: Snapshot) -> list[Planned]:
        """Return the tasks that read from `start` to `end`."""
        usable = usable_start(view, start, self.options.selects, self.lost)
        fewest, selects = self.options.min_partitions, self.options.selects
        parts = slices(view, usable, end, self.lost, fewest, selects=selects)
        return [Planned(str(part.name), part, snapshot) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of a task."""
        return read_part(partition, self.options.place, self.schema, self._batches)

    def _batches(self, part: Slice, source: Source, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        verify = self.options.verify
        fetch, many = encodings(source, verify=verify), many_encodings(source, verify=verify)
        return batches(part, self.options, schema, fetch, many)


class QueueReader(DataSourceReader):
    """Reads a range of each partition once."""

    def __init__(self, options: QueueOptions, schema: StructType) -> None:
        self._reading = _Reading(options, schema)

    def partitions(self) -> Sequence[Planned]:
        """Return the tasks."""
        return self._reading.source().planned(self._tasks)

    def _tasks(self, snapshot: Snapshot) -> list[Planned]:
        reading = self._reading
        root = root_at(reading.source(), snapshot.root_hash)
        view = read_view(root, reading.options, must_exist=True)
        end = resolve(view, reading.options.ending, "endingOffsets")
        start = reading.start(view)
        if reading.options.starting_timestamp_ms is None:
            check_range(view, reading.options.starting, start, end)
        return reading.plan(view, start, end, snapshot)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of a task."""
        return self._reading.read(partition)


class _Seen(NamedTuple):
    """A root that was looked into."""

    root_hash: bytes | None
    view: View

    def ends(self) -> Offsets:
        """Return the end of each partition."""
        return {name: log.end for name, log in self.view.items()}

    def covers(self, end: Offsets) -> bool:
        """Return whether all records before these offsets were there."""
        return all(name in self.view and self.view[name].end >= at for name, at in end.items())


class QueueStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads what is new in each partition, batch by batch.

    Spark keeps the position: after a restart it asks for the same ranges again, and an offset
    always means the same record, so nothing is lost and nothing comes twice. A batch is read from
    the root that its end was found in, whatever is truncated or collected meanwhile: that root is
    leased until Spark says that the batch is done.
    """

    def __init__(self, options: QueueOptions, schema: StructType) -> None:
        self._reading = _Reading(options, schema)
        self._views = Views(options)
        self._target: Offsets | None = None
        self._last: _Seen | None = None
        self._next: _Seen | None = None
        self._leases: StreamLeases | None = None
        self._told: list[Loss] = []

    def __reduce__(self) -> tuple[type[QueueStreamReader], tuple[QueueOptions, StructType]]:
        # What a stream remembers belongs to the one process that plans it.
        return type(self), (self._reading.options, self._reading.schema)

    def initialOffset(self) -> dict[str, object]:  # noqa: N802 - Spark's
        """Return where a new stream begins."""
        begin = self._settled(lambda seen: self._reading.start(seen.view))
        return write_offsets(begin)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's
        """Note what is there now: the stream ends when that is read."""
        self._target = self._settled(_Seen.ends)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's
        """Return what `maxOffsetsPerTrigger` allows."""
        limit = self._reading.options.max_offsets_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def latestOffset(self, start: dict[str, object], limit: ReadLimit) -> dict[str, object]:  # noqa: N802 - Spark's
        """Return where the next batch ends."""
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        begin = read_offsets(start)
        return write_offsets(self._settled(lambda seen: self._next_ends(seen, begin, most)))

    def _next_ends(self, seen: _Seen, begin: Offsets, limit: int | None) -> Offsets:
        """Return where the next batch ends, with the root that it is read from held."""
        options = self._reading.options
        losses: list[Loss] = []
        ends = next_offsets(
            seen.view,
            begin,
            options.selects,
            refuse_loss if options.fail_on_data_loss else losses.append,
            limit=limit,
            target=self._target,
        )
        if ends != begin:
            self._hold(seen)  # losses are logged when the batch is planned
        elif losses != self._told:
            for loss in losses:
                _log.warning("%s; waiting for what comes past them (failOnDataLoss=false)", loss)
            self._told = losses
        return ends

    def reportLatestOffset(self) -> dict[str, object]:  # noqa: N802 - Spark's
        """Return the ends of all partitions, for the progress report."""
        return write_offsets(self._settled(_Seen.ends))

    def partitions(self, start: dict[str, object], end: dict[str, object]) -> Sequence[Planned]:
        """Return the tasks of a batch."""
        ends = read_offsets(end)
        seen = self._next
        if seen is not None and seen.covers(ends):
            try:
                snapshot = self._hold(seen)
            except MissingData:
                seen = None  # its lease had ended; what was not truncated is in the root of now
        else:
            seen = None  # the query was started again
        if seen is None:
            seen, snapshot = self._settled(lambda now: (now, self._hold(now)))
        return self._reading.plan(seen.view, read_offsets(start), ends, snapshot)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of a task."""
        return self._reading.read(partition)

    def commit(self, end: dict[str, object]) -> None:
        """Give back what batches before the next one were read from."""
        if self._leases is not None:
            self._leases.done()

    def stop(self) -> None:
        """Give everything back."""
        if self._leases is not None:
            self._leases.release()

    def _settled(self, work: Callable[[_Seen], T]) -> T:
        """Return what `work` makes of the root as it is now; one that is known is not read again.

        Raises: as `Source.settled`.
        """

        def look(root_hash: bytes | None) -> T:
            if self._last is None or self._last.root_hash != root_hash:
                view = self._views.read(root_at(self._reading.source(), root_hash))
                self._last = _Seen(root_hash, view)
            return work(self._last)

        return self._reading.source().settled(look)

    def _hold(self, seen: _Seen) -> Snapshot:
        """Keep a root for the next batch.

        Raises: MissingData: it is not here any more.
        """
        source = self._reading.source()
        if self._leases is None:
            self._leases = source.stream_leases()
        snapshot = Snapshot(None, 0)
        if seen.root_hash is not None:
            snapshot = self._leases.hold(source, seen.root_hash)
        self._next = seen
        return snapshot
