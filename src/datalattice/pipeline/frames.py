"""Frames: what lies between Spark and the rows of every format that reads from a place.

A planner leases a root and cuts what is to be read of it into parts. A task is given one of them in
a `Planned`, and `read_part` is its work: it keeps what it reads where it is, and says what became
of it when it is gone all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import InputPartition

from datalattice.cells import Value
from datalattice.clock import Clock
from datalattice.errors import DataLoss, MissingData
from datalattice.pipeline.leasing import Snapshot
from datalattice.pipeline.places import Place, Source, open_place
from datalattice.pipeline.tables import arrow_schema
from datalattice.pipeline.workers import settle

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

Batches = Callable[[Any, Source, "pa.Schema"], "Iterator[pa.RecordBatch]"]
"""Yields the rows of a part, as its format makes them."""


class Planned(InputPartition):
    """What one task reads, and the root that it is part of. `name` is for people."""

    def __init__(self, name: str, part: object, snapshot: Snapshot) -> None:
        super().__init__(name)
        self.part: Any = part
        self.snapshot = snapshot


def root_at(source: Source, root_hash: bytes | None) -> Value:
    """Return the root with this hash, nil for none.

    Raises: MissingData: it is not here.
    """
    return None if root_hash is None else source.load(root_hash)


def read_part(
    partition: InputPartition,
    place: Place,
    schema: StructType,
    batches: Batches,
    clock: Clock | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task. Runs in the task's process.

    Raises: DataLoss: cells are not here any more. What `batches` raises otherwise.
    """
    if not isinstance(partition, Planned):
        return  # Spark's own empty partition, when there is nothing to read
    source = open_place(place, clock)
    settle()
    try:
        with source.keeping(partition.snapshot) as keeper:
            for batch in batches(partition.part, source, arrow_schema(schema)):
                yield batch
                keeper.touch()
    except MissingData as error:
        raise DataLoss(
            f"{partition.value}: {error}, which {place} does not have; if they were collected "
            "since the plan was made, a longer leaseSeconds keeps them"
        ) from error
