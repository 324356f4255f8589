"""Source: the Spark format `lattice.files`: the files of a drive as rows, in batches."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

import datalattice.apps  # noqa: F401 - registers the sections of the root lattice
from datalattice.pipeline.files.options import FilesOptions, parse_options
from datalattice.pipeline.files.plan import Task, plan
from datalattice.pipeline.files.rows import rows
from datalattice.pipeline.frames import Planned, read_part, root_at
from datalattice.pipeline.leasing import Snapshot
from datalattice.pipeline.places import Source, open_place
from datalattice.pipeline.tables import batches, check_schema, ddl

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

FORMAT: Final = "lattice.files"


class FilesSource(DataSource):
    """Files of a drive: where they are, how long, and what they hold.

    Rows, one for each file (`columns` picks among them):

    | column | type | what |
    |---|---|---|
    | owner | STRING | whose drive; only on demand |
    | drive | STRING | its name; only on demand |
    | path | STRING | the path in the drive, from `/` on |
    | size | BIGINT | bytes |
    | modified | TIMESTAMP | when the file was last written |
    | chunk | BIGINT | number of the chunk, from 0; with chunkBytes |
    | content | BINARY | what the file, or the chunk, holds; only on demand |

    Options (names are case-insensitive):

    * `store` or `node`: the folder of a store or of a node (also as the argument of `load()`), or
      the address of a running node. `nodeKey`, `asOf` and `leaseSeconds` as in
      `datalattice.pipeline.queue.source`.
    * `drive`: one drive or several; names separated by commas or a JSON array. May be left out
      where there is only one.
    * `owner`: whose drives. Default: all owners'.
    * `glob`: which files: a path with `*`, `?` and `[abc]` in its names, `**` for any number of
      names. A path without these is a file, or a directory with all below it. Default: all.
    * `includeContent`: true adds the column content.
    * `maxContentBytes`: a longer file is an error. Default: 16m.
    * `chunkBytes`: gives contents in chunks of so many bytes, a row for each: files of any length,
      long ones read by several tasks. An empty file has one chunk.
    * `columns`: the columns to read, in this order. Default: path, size and modified, and what the
      other options add.
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
        return open_place(self._options.place).planned(self._tasks)

    def _tasks(self, snapshot: Snapshot) -> list[Planned]:
        root = root_at(open_place(self._options.place), snapshot.root_hash)
        tasks = plan(root, self._options)
        return [Planned(f"drive {one.drive!r} of {one.owner}", one, snapshot) for one in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task."""
        return read_part(partition, self._options.place, self._schema, self._batches)

    def _batches(self, task: Task, source: Source, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        return batches(rows(task, self._options, source), schema)
