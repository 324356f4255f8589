"""The Spark format `lattice.kv`: databases in batches, their changes as a stream, and the sink.

The planner chooses a root, checks the databases' signatures, and divides their key trees into
subtrees; a task reads some of them. A stream's position is a root. A batch is the difference of two
roots, found by comparing hashes from the top down.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader

from datalattice.arrow import Row
from datalattice.cells import Value
from datalattice.errors import UsageError
from datalattice.pipeline.changes import (
    EARLIEST,
    LATEST,
    ChangePlanner,
    ChangeReader,
    ReadPosition,
)
from datalattice.pipeline.kv.options import KV_FORMAT, KVOptions, parse_options
from datalattice.pipeline.kv.plan import Task, plan
from datalattice.pipeline.kv.rows import Times, rows
from datalattice.pipeline.kv.sink import KVSink
from datalattice.pipeline.kv.view import check_named, differing_databases
from datalattice.pipeline.leasing import LeasedRoot
from datalattice.pipeline.options import bad_option, documents, hash_of
from datalattice.pipeline.read_targets import OpenTarget, ReadTarget
from datalattice.pipeline.reader import BatchReader, Format, Planned, TaskInput

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


@documents(ReadTarget, KVOptions)
class KVSource(Format[KVOptions], KVSink):
    """Keys of databases in a store, as rows.

    Rows (`columns` selects among them):

    | column | type | what |
    |---|---|---|
    | owner | STRING | owner of the database: 0x and the public key in hex |
    | database | STRING | name of the database |
    | key | STRING | the key |
    | type | STRING | value, hash, set, zset, list or counter; NULL: the key was deleted |
    | value | see valueFormat | what the key holds, as one value |
    | updated | TIMESTAMP | time of the last write |
    | expires | TIMESTAMP | when it expires; NULL: never |

    A batch has a row for each live key. A stream has a row for each key that was written or deleted
    since the previous batch, with its last value.

    A batch with `startingOffsets` at a root has the changes since then. A restarted stream
    continues from its checkpoint. `KVSinkOptions` describes the options for writing. The options
    for reading are:
    """

    format = KV_FORMAT
    parse = staticmethod(parse_options)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch. Raises: UsageError: an option does not fit a batch."""
        options = self.parsed
        # "For streams, `latest`" (docs/spark-kv.md).
        if options.starting == LATEST:
            raise bad_option("startingOffsets", LATEST, "a batch would read nothing from there")
        return KVReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        """Return the reader of a stream of changes.

        Raises: UsageError: an option does not fit a stream.
        """
        options = self.parsed
        # A stream follows the current root; a past one has no later changes.
        if options.target.as_of:
            raise UsageError(
                "option asOf is for batches; a stream begins at a root with startingOffsets"
            )
        return KVStreamReader(options, schema)


class _KVPlanner(ChangePlanner[KVOptions]):
    """What both readers share: the tasks for the difference of two roots, and their rows."""

    format = KV_FORMAT
    shaping_options = "columns and valueFormat"
    rows_are = "keys"
    has_time = True

    def differences(
        self, before: Value, after: Value, start: ReadPosition, end: ReadPosition
    ) -> Iterable[TaskInput]:
        """Return what each task reads, with the times that decide which entries have expired."""
        assert start.time_ms is not None
        assert end.time_ms is not None
        times = Times(start.time_ms, end.time_ms)
        tasks = plan(differing_databases(before, after, self.options), self.options.min_partitions)
        return [(_name(task), (task, times)) for task in tasks]

    def differs(self, before: Value, after: Value) -> bool:
        """Return whether two roots differ in a selected database."""
        return next(differing_databases(before, after, self.options), None) is not None

    def rows(self, part: tuple[Task, Times], source: OpenTarget) -> Iterable[Row]:
        """Return the rows of a task."""
        return rows(part[0], self.options, part[1], source)


def _name(task: Task) -> str:
    return " to ".join(dict.fromkeys(str(task[index].name) for index in (0, -1)))


class KVReader(_KVPlanner, BatchReader[KVOptions]):
    """Reads the keys once, or what changed since a root."""

    def planned(self, snapshot: LeasedRoot) -> list[Planned]:
        """Return the tasks.

        Raises: UsageError: a named owner or database does not exist. DataLoss: the root of
                startingOffsets is gone, and failOnDataLoss.
        """
        check_named(self.root(snapshot.root_hash), self.options)
        starting = self.options.starting
        # A batch since a root is computed as a stream's batch: as the difference of two roots.
        since = None if starting == EARLIEST else hash_of(starting)
        # Both sides have the same time, so an entry that only expired since then makes no row.
        now_ms = self.clock.now_ms()
        start, end = ReadPosition(since, now_ms), ReadPosition(snapshot.root_hash, now_ms)
        return self.difference(start, end, snapshot)


class KVStreamReader(_KVPlanner, ChangeReader[KVOptions]):
    """Reads changes from one root to the next."""
