"""The Spark format `lattice.grid`: tables of the grid in batches, its jobs as a stream.

The planner chooses a root, checks the venues' signatures, and divides their collections into
pieces; a task reads one of them. A stream's position is a root; a batch is the difference of two.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, MutableMapping, Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    SupportsTriggerAvailableNow,
)

import datalattice.apps  # noqa: F401 - registers the sections of the root lattice
from datalattice.errors import DataLoss, UsageError
from datalattice.pipeline.arrow_batches import batches, check_schema, ddl
from datalattice.pipeline.frames import Planned, read_part, root_at
from datalattice.pipeline.grid.options import GridOptions, GridTable, parse_options
from datalattice.pipeline.grid.rows import GridTask, check_venues, plan, rows
from datalattice.pipeline.leasing import LeasedRoot
from datalattice.pipeline.read_targets import OpenTarget, open_target
from datalattice.pipeline.roots import LeasedRoots, read_offset, write_offset

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

FORMAT: Final = "lattice.grid"

_log: Final = logging.getLogger("datalattice.pipeline")


class GridSource(DataSource):
    """The venues' data, as rows of one of four tables.

    | table | columns |
    |---|---|
    | assets | venue, asset, name, content (the declared SHA-256), metadata (the exact text) |
    | jobs | venue, job, status, created, updated, record |
    | meta | asset, metadata: the texts of all venues' assets |
    | storage | venue, hash, size, content (only on demand) |

    `created` and `updated` are TIMESTAMP, `size` BIGINT, `content` of storage BINARY, `record` as
    valueFormat says, all others STRING. Ids and hashes are lower-case hex.

    Options (names are case-insensitive):

    * `store` or `node`: the folder of a store or of a node (also as the argument of `load()`), or
      the address of a running node. `nodeKey`, `asOf` (batches only) and `leaseSeconds` as in
      `datalattice.pipeline.queue.source`.
    * `table`: assets, jobs, meta or storage.
    * `venue`: whose entries to read; DIDs separated by commas or a JSON array. Default: all.
    * `columns`: the columns to read, in this order. Default: all but the content of storage.
    * `includeContent`: true adds the column content of storage.
    * `maxContentBytes`: a longer content is an error. Default: 16m.
    * `valueFormat`: the form of a job's record: `json` (default), `string`, `variant` or `cell`.
    * `includeHidden`: true also reads entries that a venue's own node hides. Default: false. Only a
      store knows what is hidden; a node does not reveal it.

    The table jobs can be read as a stream: each batch has the last version of every record that is
    new or changed since the previous batch. Further options of streams:

    * `startingOffsets`: `earliest` (default: all jobs first), `latest` (only later changes), or the
      hash of a root. A restarted stream continues from its checkpoint.
    * `failOnDataLoss`: true (default) fails if the root that a stream stands at is gone; false
      reads all jobs again, with a warning.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self.parsed = parse_options(dict(options))

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return FORMAT

    def schema(self) -> str:
        """Return the columns in Spark's DDL."""
        return ddl(self.parsed.types)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch.

        Raises: UsageError: an option is for streams.
        """
        if self.parsed.stream_only:
            raise UsageError(f"option {self.parsed.stream_only[0]} is for streams")
        return GridReader(self.parsed, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        """Return the reader of a stream of jobs.

        Raises: UsageError: the table is not jobs, or an option is for batches.
        """
        if self.parsed.table is not GridTable.JOBS:
            raise UsageError(
                f"the table {self.parsed.table.value} is for batches; only jobs can be streamed"
            )
        if self.parsed.target.as_of:
            raise UsageError(
                "option asOf is for batches; a stream begins at a root with startingOffsets"
            )
        return GridStreamReader(self.parsed, schema)


class _FormatReader:
    """What both readers share: the tasks for a difference of two roots, and reading a task."""

    def __init__(self, options: GridOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        check_schema(
            schema, options.types, FORMAT, "table, columns, includeContent and valueFormat"
        )

    def _parts(self, before: bytes | None, after: bytes | None) -> Iterator[GridTask]:
        source = open_target(self._options.target)
        return plan(root_at(source, after), self._options, before=root_at(source, before))

    def _planned(self, before: bytes | None, snapshot: LeasedRoot) -> list[Planned]:
        where = f"the grid's {self._options.table.value}"
        return [
            Planned(f"{where} of {part.venue}" if part.venue else where, part, snapshot)
            for part in self._parts(before, snapshot.root_hash)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task."""
        return read_part(partition, self._options.target, self._schema, self._batches)

    def _batches(
        self, part: GridTask, source: OpenTarget, schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        return batches(rows(part, self._options, source), schema)


class GridReader(_FormatReader, DataSourceReader):
    """Reads a table once."""

    def partitions(self) -> Sequence[Planned]:
        """Return the tasks."""
        return open_target(self._options.target).planned(self._tasks)

    def _tasks(self, snapshot: LeasedRoot) -> list[Planned]:
        check_venues(root_at(open_target(self._options.target), snapshot.root_hash), self._options)
        return self._planned(None, snapshot)


class GridStreamReader(_FormatReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads jobs that are new or changed, from one root to the next.

    Spark keeps the position: after a restart it requests the same pairs of roots again.
    """

    def __init__(self, options: GridOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._roots = LeasedRoots(options.target)

    def __reduce__(self) -> tuple[type[GridStreamReader], tuple[GridOptions, StructType]]:
        # Leases belong to the process that plans.
        return type(self), (self._options, self._schema)

    def initialOffset(self) -> dict[str, object]:  # noqa: N802 - Spark's
        """Return the position where a new stream begins."""
        return write_offset(self._roots.first(self._options.starting))

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's
        """End the stream at the current root."""
        self._roots.bound()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's
        """Return that a batch reads the complete difference."""
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, object], limit: ReadLimit) -> dict[str, object]:  # noqa: N802 - Spark's
        """Return where the next batch ends; `start` itself if no job changed."""
        return write_offset(self._roots.next(read_offset(start), self._differ))

    def reportLatestOffset(self) -> dict[str, object]:  # noqa: N802 - Spark's
        """Return the current root, for the progress report."""
        return write_offset(open_target(self._options.target).root_hash())

    def _differ(self, before: bytes | None, after: bytes) -> bool:
        return next(self._parts(before, after), None) is not None

    def partitions(self, start: dict[str, object], end: dict[str, object]) -> Sequence[Planned]:
        """Return the tasks of a batch.

        Raises: DataLoss: a root of the batch is gone, and failOnDataLoss.
        """
        before, last = read_offset(start), read_offset(end)
        if last is None:
            return []
        try:
            if before is not None:
                self._roots.hold(before)
            snapshot = self._roots.hold(last)
        except DataLoss as loss:
            present = None if self._options.fail_on_data_loss else self._roots.present()
            if present is None:
                raise
            _log.warning("%s; reading all jobs again (failOnDataLoss=false)", loss)
            before, snapshot = None, self._roots.hold(present)
        return self._planned(before, snapshot)

    def commit(self, end: dict[str, object]) -> None:
        """Release the roots before `end`."""
        self._roots.commit(read_offset(end))
