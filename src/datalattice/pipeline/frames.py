"""Reading one task's share of a planned read, the same for every format.

A planner leases a root and cuts the work into parts. Each task receives one `Planned` part and
runs `read_part`, which renews the lease while it reads and reports collected cells as `DataLoss`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import InputPartition

from datalattice.cells import Value
from datalattice.clock import Clock
from datalattice.errors import DataLoss, MissingData
from datalattice.pipeline.arrow_batches import arrow_schema
from datalattice.pipeline.leasing import LeasedRoot
from datalattice.pipeline.read_targets import OpenTarget, ReadTarget, open_target
from datalattice.pipeline.spark.workers import settle

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

Batches = Callable[[Any, OpenTarget, "pa.Schema"], "Iterator[pa.RecordBatch]"]
"""Yields the rows of a part as Arrow batches; each format has its own."""


class Planned(InputPartition):
    """What one task reads, and the root it belongs to. `name` appears in error texts."""

    def __init__(self, name: str, part: object, snapshot: LeasedRoot) -> None:
        super().__init__(name)
        self.part: Any = part
        self.snapshot = snapshot


def root_at(source: OpenTarget, root_hash: bytes | None) -> Value:
    """Return the root with this hash; None for None.

    Raises: MissingData: the root's cell is not in the store.
    """
    return None if root_hash is None else source.load(root_hash)


def read_part(
    partition: InputPartition,
    target: ReadTarget,
    schema: StructType,
    batches: Batches,
    clock: Clock | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task. Runs in the task's process.

    Raises: DataLoss: the store or node does not have a needed cell. Whatever `batches` raises.
    """
    if not isinstance(partition, Planned):
        return  # Spark plans an empty partition of its own if there are no tasks
    source = open_target(target, clock)
    settle()
    try:
        with source.keeping(partition.snapshot) as keeper:
            for batch in batches(partition.part, source, arrow_schema(schema)):
                yield batch
                keeper.touch()
    except MissingData as error:
        raise DataLoss(
            f"{partition.value}: {error}, which {target} does not have; if they were collected "
            "since the plan was made, a longer leaseSeconds keeps them"
        ) from error
