"""Source: the Spark format `lattice.cells`: every cell of a store as a row, and the way back."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceWriter,
    InputPartition,
)

from datalattice.pipeline.cells.options import ReadOptions, read_options
from datalattice.pipeline.cells.rows import Part, plan, rows
from datalattice.pipeline.tables import arrow_schema, batches, check_schema, ddl

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

FORMAT: Final = "lattice.cells"


class CellsSource(DataSource):
    """Every cell of a store, whether anything reaches it or not; and cells into a store.

    | column | type | what |
    |---|---|---|
    | hash | BINARY | the cell's name: the SHA3-256 of its encoding |
    | encoding | BINARY | its canonical bytes |
    | refs | ARRAY<BINARY> | the hashes of the cells that it refers to, each once, in order |

    Options of reading (names are case-insensitive):

    * `store`: the folder of a store, or of a node; or as the argument of `load()`.
    * `columns`: the columns to read, in this order. Default: all.
    * `verify`: false leaves the hashes unchecked. Default: true; damage is an error.
    * `minPartitions`: least number of tasks, segments (of 64 MiB) permitting.

    What is committed while it is read is left out; if cells are removed meanwhile, reading fails
    and has to begin again.

    Writing (mode append) takes the column encoding, and hash, which is then compared; refs are
    ignored. Options:

    * `store`: the folder of a node, running or not, or of a store, which is made if need be.
    * `root`: the hash of the value that is written. Cells that are not below it are left out; all
      that are have to be among the rows or in the store already.
    * `pin`: the name of a pin that keeps the value. `merge`: true merges it into the root, as what
      a peer sends: without `:local`, and only what its owners have signed. One of them is needed.
    * `staging`: a folder that the driver and all tasks reach. Default: `staging` in the folder of
      the node, or beside that of the store.

    Nothing is visible before all cells are there. Writing again changes nothing.
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
        from datalattice.pipeline.cells.sink import CellsWriter  # it needs what belongs to nodes

        return CellsWriter(self.given, schema, overwrite=overwrite)


class CellsPartition(InputPartition):
    """What one task reads."""

    def __init__(self, part: Part) -> None:
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
        if isinstance(partition, CellsPartition):  # else Spark's own empty one
            yield from batches(rows(partition.part, self._options), arrow_schema(self._schema))
