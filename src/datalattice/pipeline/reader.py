"""The Spark reader of a format: planning under a lease, and reading one task's share of the plan.

A planner leases a root and divides the work into parts. Each task receives one part in a `Planned`
and reads it from that root, even if others are committed meanwhile.

Source: docs/spark.md "Where to read".
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

import datalattice.apps  # noqa: F401 - registers the sections of the root lattice
from datalattice.arrow import Row, row_batches
from datalattice.cells import Value
from datalattice.clock import Clock, SystemClock
from datalattice.errors import DataLoss, MissingData
from datalattice.pipeline.leasing import LeasedRoot
from datalattice.pipeline.read_targets import OpenTarget, ReadTarget, open_target
from datalattice.pipeline.schemas import arrow_schema, check_schema, ddl
from datalattice.pipeline.spark.workers import freeze_objects

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

MakeBatches = Callable[[Any, OpenTarget, "pa.Schema"], "Iterator[pa.RecordBatch]"]
"""Yields the rows of a part as Arrow batches; each format has its own."""


class Planned(InputPartition):
    """What one task reads, and the root it belongs to. `name` appears in error texts."""

    def __init__(self, name: str, part: object, snapshot: LeasedRoot) -> None:
        super().__init__(name)
        self.part: Any = part
        self.snapshot = snapshot


TaskInput = tuple[str, Any]
"""The name of a part in error texts, and the part that its task reads."""


class ColumnOptions(Protocol):
    """The options of any format that reads."""

    @property
    def types(self) -> dict[str, str]:
        """Type of each column in Spark's DDL, in the order of the rows."""
        ...


class ReadOptions(ColumnOptions, Protocol):
    """The options of any format that reads one root."""

    @property
    def target(self) -> ReadTarget:
        """Where to read."""
        ...


ColumnOptionsT = TypeVar("ColumnOptionsT", bound=ColumnOptions)
OptionsT = TypeVar("OptionsT", bound=ReadOptions)


class Format(DataSource, Generic[ColumnOptionsT]):
    """Base of the formats that read: the name, and the options of reading."""

    format: ClassVar[str]
    never_null: ClassVar[Collection[str]] = ()
    """The columns that have no NULL in any row."""

    @staticmethod
    def parse(_given: Mapping[str, str], /) -> ColumnOptionsT:
        """Parse the options. Raises: UsageError: one is not accepted or missing."""
        raise TypeError("a format implements parse()")

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return cls.format

    @cached_property
    def parsed(self) -> ColumnOptionsT:
        """The options for reading.

        Parsed when something is read, because a sink has other options.
        """
        return self.parse(dict(self.options))

    def schema(self) -> str:
        """Return the columns in Spark's DDL. Raises: as `parse`."""
        return ddl(self.parsed.types, self.never_null)


class FormatReader(Generic[OptionsT]):
    """Base of the readers of a format; a format adds `rows`.

    Spark sends a copy to each task. A copy has the options and the schema; open stores, leases and
    positions belong to the process that plans.
    """

    format: ClassVar[str]
    shaping_options: ClassVar[str]
    """The names of the options that choose columns and types, for an error text."""

    def __init__(self, options: OptionsT, schema: StructType, clock: Clock | None = None) -> None:
        # Spark passes a schema that a user may have given to `load`.
        check_schema(schema, options.types, self.format, self.shaping_options)
        self.options = options
        self.schema = schema
        self.clock = clock or SystemClock()

    def __reduce__(self) -> tuple[type[Any], tuple[Any, ...]]:
        return type(self), (self.options, self.schema)

    def source(self) -> OpenTarget:
        """Return the open target."""
        return open_target(self.options.target, self.clock)

    def root(self, root_hash: bytes | None) -> Value:
        """Return the root with this hash; None for None.

        Raises: MissingData: the root's cell is not in the store.
        """
        # A store without a commit has no root; it is read like an empty root.
        return None if root_hash is None else self.source().load(root_hash)

    def rows(self, part: Any, source: OpenTarget) -> Iterable[Row]:
        """Return the rows of a part. Runs in the task's process."""
        raise TypeError(f"{type(self).__name__} does not implement rows()")

    def batches(self, part: Any, source: OpenTarget, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a part as Arrow batches."""
        return row_batches(self.rows(part, source), schema)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task. Raises: as `read_part`."""
        return read_part(partition, self.options.target, self.schema, self.batches, self.clock)


class BatchReader(FormatReader[OptionsT], DataSourceReader):
    """Base of the readers of a batch query; a format adds `parts`."""

    def parts(self, root: Value) -> Iterable[TaskInput]:
        """Return what each task reads of a root."""
        raise TypeError(f"{type(self).__name__} does not implement parts()")

    def planned(self, snapshot: LeasedRoot) -> list[Planned]:
        """Return the tasks that read a leased root."""
        root = self.root(snapshot.root_hash)
        return [Planned(name, part, snapshot) for name, part in self.parts(root)]

    def partitions(self) -> Sequence[Planned]:
        """Return the tasks. Raises: as `OpenTarget.planned` and `parts`."""
        # "A batch sees exactly one root, whatever is committed meanwhile" (docs/spark.md). The root
        # is chosen here, once.
        return self.source().planned(self.planned)


def read_part(
    partition: InputPartition,
    target: ReadTarget,
    schema: StructType,
    make: MakeBatches,
    clock: Clock | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task, and renew its lease meanwhile. Runs in the task's process.

    Raises: DataLoss: the store or node does not have a needed cell. Whatever `make` raises.
    """
    if not isinstance(partition, Planned):
        return  # Spark plans an empty partition of its own if there are no tasks
    source = open_target(target, clock)
    freeze_objects()
    try:
        with source.keeping(partition.snapshot) as keeper:
            # The lease is renewed between batches: a task may take long, but a batch does not.
            for batch in make(partition.part, source, arrow_schema(schema)):
                yield batch
                keeper.touch()
    except MissingData as error:
        raise DataLoss(
            f"{partition.value}: {error}, which {target} does not have; if they were collected "
            "since the plan was made, a longer leaseSeconds keeps them"
        ) from error
