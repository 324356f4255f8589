"""The Spark format `lattice.files`: the files of drives as rows, in batches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceReader

from datalattice.arrow import Row
from datalattice.cells import Value
from datalattice.pipeline.files.options import FilesOptions, parse_options
from datalattice.pipeline.files.plan import FilesTask, plan
from datalattice.pipeline.files.rows import rows
from datalattice.pipeline.options import documents
from datalattice.pipeline.read_targets import OpenTarget, ReadTarget
from datalattice.pipeline.reader import BatchReader, Format, TaskInput

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

FILES_FORMAT: Final = "lattice.files"


@documents(ReadTarget, FilesOptions)
class FilesSource(Format[FilesOptions]):
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

    A path without wildcards is a file, or a directory with everything below it. Several tasks read
    a long file in chunks. An empty file has one chunk. The options are:
    """

    format = FILES_FORMAT
    parse = staticmethod(parse_options)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch."""
        return FilesReader(self.parsed, schema)


class FilesReader(BatchReader[FilesOptions]):
    """Reads files once."""

    format = FILES_FORMAT
    shaping_options = "columns, includeContent and chunkBytes"

    def parts(self, root: Value) -> Iterable[TaskInput]:
        """Yield what each task reads."""
        for task in plan(root, self.options):
            yield f"drive {task.drive!r} of {task.owner}", task

    def rows(self, part: FilesTask, source: OpenTarget) -> Iterable[Row]:
        """Return the rows of a task."""
        return rows(part, self.options, source)
