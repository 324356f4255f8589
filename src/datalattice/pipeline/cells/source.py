"""The Spark format `lattice.cells`: every cell of a store as a row, and a writer of cells."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceWriter,
    InputPartition,
)

from datalattice.pipeline.arrow_batches import arrow_schema, batches, check_schema, ddl
from datalattice.pipeline.cells.options import ReadOptions, read_options
from datalattice.pipeline.cells.rows import SegmentsTask, plan, rows

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

FORMAT: Final = "lattice.cells"


class CellsSource(DataSource):
    """Every cell of a store, reachable or not; and writing cells into a store.

    | column | type | what |
    |---|---|---|
    | hash | BINARY | SHA3-256 of the encoding |
    | encoding | BINARY | canonical encoding |
    | refs | ARRAY<BINARY> | hashes of the cells it refers to, each once, in order |

    Options of reading (names are case-insensitive):

    * `store`: the folder of a store, or of a node; or as the argument of `load()`.
    * `columns`: the columns to read, in this order. Default: all.
    * `verify`: false skips the comparison with the hash. Default: true; damage is an error.
    * `minPartitions`: least number of tasks, if there are enough segments (of 64 MiB).

    Cells committed after planning are left out. If cells are removed meanwhile, the read fails and
    has to be repeated.

    Writing (mode append) takes the columns encoding and, for comparison, hash; refs are ignored.
    Options:

    * `store`: the folder of a node, running or not, or of a store, which is made if necessary.
    * `root`: the hash of the value to write. All cells below it must be among the rows or in the
      store; other cells are left out.
    * `pin`: the name of a pin that keeps the value. `merge`: true merges it into the root like data
      from a peer: without `:local`, and only what its owners signed. One of the two is required.
    * `staging`: a folder that the driver and all tasks can reach. Default: `staging` in the node's
      folder, or beside that of the store.

    The value becomes visible when all cells are there. Writing it again changes nothing.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self.given = dict(options)

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return FORMAT

    def schema(self) -> str:
        """Return the columns in Spark's DDL."""
        return ddl(read_options(self.given).types)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch."""
        return CellsReader(read_options(self.given), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a batch.

        Raises: UsageError: overwriting, or a column or option that is not accepted.
        """
        from datalattice.pipeline.cells.sink import CellsWriter  # imports the node's client

        return CellsWriter(self.given, schema, overwrite=overwrite)


class CellsPartition(InputPartition):
    """What one task reads."""

    def __init__(self, part: SegmentsTask) -> None:
        super().__init__(part.stretch.number)
        self.part = part


class CellsReader(DataSourceReader):
    """Reads every cell once."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        check_schema(schema, options.types, FORMAT, "columns")

    def partitions(self) -> Sequence[CellsPartition]:
        """Return the tasks."""
        return [CellsPartition(part) for part in plan(self._options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the cells of a task. Runs in a task's process."""
        if isinstance(partition, CellsPartition):  # otherwise Spark's own empty partition
            yield from batches(rows(partition.part, self._options), arrow_schema(self._schema))
