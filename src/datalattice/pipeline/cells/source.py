"""The Spark format `lattice.cells`: reads every cell of a store as a row, and writes cells."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceWriter,
    InputPartition,
)

from datalattice.arrow import row_batches
from datalattice.pipeline.cells.options import CellReadOptions, read_options
from datalattice.pipeline.cells.rows import SegmentsTask, plan, rows
from datalattice.pipeline.options import documents
from datalattice.pipeline.schemas import arrow_schema, check_schema, ddl

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

CELLS_FORMAT: Final = "lattice.cells"


@documents(CellReadOptions)
class CellsSource(DataSource):
    """Every cell of a store, reachable or not; and writing cells into a store.

    | column | type | what |
    |---|---|---|
    | hash | BINARY | SHA3-256 of the encoding |
    | encoding | BINARY | canonical encoding |
    | refs | ARRAY<BINARY> | hashes of the cells it refers to, each once, in order |

    Cells committed after planning are left out. If cells are removed meanwhile, the read fails and
    has to be repeated.

    Writing (mode append) takes the columns encoding and, for comparison, hash; refs are ignored.
    All cells below the root must be among the rows or in the store; then the value becomes visible.
    Writing it again changes nothing. `WriteOptions` describes the options of writing. Those of
    reading are:
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self.given = dict(options)

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return CELLS_FORMAT

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
        super().__init__(part.partition.number)
        self.part = part


class CellsReader(DataSourceReader):
    """Reads every cell once."""

    def __init__(self, options: CellReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        check_schema(schema, options.types, CELLS_FORMAT, "columns")

    def partitions(self) -> Sequence[CellsPartition]:
        """Return the tasks."""
        return [CellsPartition(part) for part in plan(self._options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the cells of a task. Runs in a task's process."""
        if isinstance(partition, CellsPartition):  # otherwise Spark's own empty partition
            yield from row_batches(rows(partition.part, self._options), arrow_schema(self._schema))
