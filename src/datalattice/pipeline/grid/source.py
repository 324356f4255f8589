"""The Spark format `lattice.grid`: tables of the grid in batches, its jobs as a stream.

The planner chooses a root, checks the venues' signatures, and divides their collections into
pieces; a task reads one of them. A stream's position is a root; a batch is the difference of two.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader

from datalattice.arrow import GridTable, Row
from datalattice.cells import Value
from datalattice.errors import UsageError
from datalattice.pipeline.changes import ChangeReader, ReadPosition
from datalattice.pipeline.grid.options import GridOptions, parse_options
from datalattice.pipeline.grid.rows import GridTask, check_venues, plan, rows
from datalattice.pipeline.options import documents
from datalattice.pipeline.read_targets import OpenTarget, ReadTarget
from datalattice.pipeline.reader import BatchReader, Format, FormatReader, TaskInput

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

GRID_FORMAT: Final = "lattice.grid"


@documents(ReadTarget, GridOptions)
class GridSource(Format[GridOptions]):
    """The venues' data, as rows of one of four tables.

    | table | columns |
    |---|---|
    | assets | venue, asset, name, content (the declared SHA-256), metadata (the exact text) |
    | jobs | venue, job, status, created, updated, record |
    | meta | asset, metadata: the texts of all venues' assets |
    | storage | venue, hash, size, content (only on demand) |

    `created` and `updated` are TIMESTAMP, `size` BIGINT, `content` of storage BINARY, `record` as
    valueFormat says, all others STRING. Ids and hashes are lower-case hex.

    The table jobs can be read as a stream: each batch has the last version of every record that is
    new or changed since the previous batch. A restarted stream continues from its checkpoint. Only
    a store knows what is hidden; a node does not reveal it. The options are:
    """

    format = GRID_FORMAT
    parse = staticmethod(parse_options)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch. Raises: UsageError: an option is for streams."""
        # An option without effect is an error.
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
        # A stream follows the current root; a past one has no later changes.
        if self.parsed.target.as_of:
            raise UsageError(
                "option asOf is for batches; a stream begins at a root with startingOffsets"
            )
        return GridStreamReader(self.parsed, schema)


class _GridReader(FormatReader[GridOptions]):
    """What both readers share: the names and rows of tasks."""

    format = GRID_FORMAT
    shaping_options = "table, columns, includeContent and valueFormat"

    def named(self, before: Value, after: Value) -> Iterable[TaskInput]:
        """Yield what each task reads of a root, or of what is new in it since `before`."""
        where = f"the grid's {self.options.table.value}"
        for task in plan(after, self.options, before=before):
            yield f"{where} of {task.venue}" if task.venue else where, task

    def rows(self, part: GridTask, source: OpenTarget) -> Iterable[Row]:
        """Return the rows of a task."""
        return rows(part, self.options, source)


class GridReader(_GridReader, BatchReader[GridOptions]):
    """Reads a table once."""

    def parts(self, root: Value) -> Iterable[TaskInput]:
        """Return what each task reads. Raises: UsageError: a named venue does not exist."""
        check_venues(root, self.options)
        return self.named(None, root)


class GridStreamReader(_GridReader, ChangeReader[GridOptions]):
    """Reads jobs that are new or changed, from one root to the next."""

    rows_are = "jobs"

    def differences(
        self, before: Value, after: Value, start: ReadPosition, end: ReadPosition
    ) -> Iterable[TaskInput]:
        """Return what each task reads."""
        return self.named(before, after)
