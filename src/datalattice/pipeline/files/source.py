"""The Spark format `lattice.files`: the files of drives as rows, in batches."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

import datalattice.apps  # noqa: F401 - registers the sections of the root lattice
from datalattice.pipeline.arrow_batches import batches, check_schema, ddl
from datalattice.pipeline.files.options import FilesOptions, parse_options
from datalattice.pipeline.files.plan import FilesTask, plan
from datalattice.pipeline.files.rows import rows
from datalattice.pipeline.frames import Planned, read_part, root_at
from datalattice.pipeline.leasing import LeasedRoot
from datalattice.pipeline.read_targets import OpenTarget, open_target

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

FORMAT: Final = "lattice.files"


class FilesSource(DataSource):
    """Files of drives: path, size, time and content.

    Rows, one for each file (`columns` selects among them):

    | column | type | what |
    |---|---|---|
    | owner | STRING | owner of the drive; only on demand |
    | drive | STRING | name of the drive; only on demand |
    | path | STRING | path in the drive, beginning with `/` |
    | size | BIGINT | bytes |
    | modified | TIMESTAMP | time of the last write |
    | chunk | BIGINT | number of the chunk, from 0; with chunkBytes |
    | content | BINARY | content of the file or chunk; only on demand |

    Options (names are case-insensitive):

    * `store` or `node`: the folder of a store or of a node (also as the argument of `load()`), or
      the address of a running node. `nodeKey`, `asOf` and `leaseSeconds` as in
      `datalattice.pipeline.queue.source`.
    * `drive`: names separated by commas or a JSON array. Optional if there is only one drive.
    * `owner`: owners of the drives. Default: all.
    * `glob`: a path with `*`, `?` and `[abc]` in its names, and `**` for any number of names. A
      path without these is a file, or a directory with everything below it. Default: all.
    * `includeContent`: true adds the column content.
    * `maxContentBytes`: a longer file is an error. Default: 16m.
    * `chunkBytes`: return contents in chunks of this size, one row each. Files may have any length;
      several tasks read a long one. An empty file has one chunk.
    * `columns`: the columns to read, in this order. Default: path, size and modified, and those
      that the other options add.
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
        """Return the reader of a batch."""
        return FilesReader(self.parsed, schema)


class FilesReader(DataSourceReader):
    """Reads files once."""

    def __init__(self, options: FilesOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        check_schema(schema, options.types, FORMAT, "columns, includeContent and chunkBytes")

    def partitions(self) -> Sequence[Planned]:
        """Return the tasks."""
        return open_target(self._options.target).planned(self._tasks)

    def _tasks(self, snapshot: LeasedRoot) -> list[Planned]:
        root = root_at(open_target(self._options.target), snapshot.root_hash)
        tasks = plan(root, self._options)
        return [Planned(f"drive {one.drive!r} of {one.owner}", one, snapshot) for one in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task."""
        return read_part(partition, self._options.target, self._schema, self._batches)

    def _batches(
        self, task: FilesTask, source: OpenTarget, schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        return batches(rows(task, self._options, source), schema)
