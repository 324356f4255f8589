"""Task side of the queue sink: stage rows as records by topic and partition.

The records are the same as if each were offered to the queue, except that all have the job's time.
A task does not build logs, because leaf boundaries depend on the records that are already there,
and only the driver knows those. A task stages parcels of cells, and parcels of records in the form
that leaves contain. The head of a parcel of records is the Vector `[topic partition count]`. If
keys chose the partitions, `count` is the number of partitions that the task assumed, otherwise nil.

Source: docs/spark-writing.md "Columns", "Staging".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from datalattice.apps.queue import PARTITIONS_MAX, partition_of
from datalattice.arrow import ValueFormat
from datalattice.cells import CellList, Vector, encode_message
from datalattice.errors import LimitExceeded, UsageError
from datalattice.pipeline.arrow_rows import MapPlan, column_values
from datalattice.pipeline.columns import (
    check_name_length,
    checked_texts,
    entries_or_none,
    entries_or_nulls,
    lower_names,
    present_column,
    row_slices,
)
from datalattice.pipeline.exactly_once.job import STAGE_BYTES_MAX, Stage
from datalattice.pipeline.queue.records import (
    record_values,
    records_of_maps,
    records_of_rows,
)

if TYPE_CHECKING:
    import pyarrow as pa

RECORDS_MAX: Final = 16_384
"""Most rows converted at a time."""

LOGS_MAX: Final = 65_536
"""Most partitions that one task writes to: a piece of each log may be in memory."""

RECORDS_PARCEL: Final = 2
"""Kind of parcels that contain records."""

_END_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class RecordPlan:
    """How rows become records. Plain data: every task gets a copy."""

    topic: str | None
    """The topic of all rows; None: the column topic."""
    value_format: ValueFormat | None
    """Format of the column value; None: numbers or booleans."""
    key_format: ValueFormat | None
    counts: Mapping[str, int]
    """Number of partitions of the topics that have one."""
    default_count: int
    """Number of partitions of all other topics."""
    stamp_ms: int
    """Time of records without a timestamp, Unix milliseconds."""
    maps: MapPlan | None = None
    """How each row becomes a map that is the value; None: the column `value` has the values."""

    def count_of(self, topic: str) -> int:
        """Return the number of partitions among which keys choose in a topic."""
        return self.counts.get(topic, self.default_count)


class _Routing:
    """The columns that decide where rows go."""

    def __init__(self, rows: pa.RecordBatch, plan: RecordPlan) -> None:
        self.rows: Final = rows
        self.topics: Final = None if plan.topic is not None else entries_or_nulls(rows, "topic")
        self.partitions: Final = None if plan.maps else entries_or_none(rows, "partition")
        key = plan.maps.key if plan.maps else "key"
        self.has_keys: Final = key is not None and present_column(rows, key) is not None

    def keys(self, plan: RecordPlan) -> Sequence[object] | None:
        """Return the keys as values; None if there are none."""
        if not self.has_keys:
            return None
        if plan.maps and plan.maps.key is not None:
            return column_values(self.rows, plan.maps.key, plan.maps)
        return record_values(self.rows, "key", plan.key_format)


class RecordStager:
    """Stages the records of one task."""

    def __init__(self, plan: RecordPlan, stage: Stage) -> None:
        self.records = 0
        self._plan: Final = plan
        self._stage: Final = stage
        self._logs: Final[set[tuple[str, int]]] = set()
        self._counts: Final[dict[str, int]] = {}
        self._waiting: Final[dict[tuple[str, int], list[pa.Array]]] = {}
        self._pending = 0

    def take(self, batch: pa.RecordBatch) -> None:
        """Stage the rows of an Arrow batch.

        Raises: UsageError: a row cannot become a record. LimitExceeded: too many partitions.
        """
        batch = checked_texts(batch) if self._plan.maps else lower_names(batch)
        for rows in row_slices(batch, RECORDS_MAX, STAGE_BYTES_MAX):
            self._append(rows)
            self.records += rows.num_rows

    def finish(self) -> None:
        """Stage the rows that are still buffered."""
        import pyarrow as pa

        for (topic, partition), waiting in self._waiting.items():
            made = waiting[0] if len(waiting) == 1 else pa.concat_arrays(waiting)
            _, ends, data = made.buffers()
            # Without the first offset, which is the beginning; the rest are the ends of the
            # records.
            ends = ends.slice(_END_BYTES * (made.offset + 1), _END_BYTES * len(made))
            head = encode_message(Vector.of((topic, partition, self._counts.get(topic))))
            self._stage.parcels.put(RECORDS_PARCEL, head, ends, data)
        self._waiting.clear()
        self._pending = 0

    def _append(self, rows: pa.RecordBatch) -> None:
        import pyarrow as pa

        plan = self._plan
        cells: CellList = []
        if plan.maps is not None:
            made = records_of_maps(rows, plan.maps, plan.stamp_ms, cells)
        else:
            made = records_of_rows(rows, plan.value_format, plan.key_format, plan.stamp_ms, cells)
        for name, chosen in self._by_log(_Routing(rows, plan)).items():
            if name not in self._logs:
                check_name_length(name[0], "topic")
                # "A task writes to at most 65,536 partitions" (docs/spark-writing.md, Staging).
                if len(self._logs) >= LOGS_MAX:
                    raise LimitExceeded(
                        f"a task writes to at most {LOGS_MAX} partitions; "
                        "repartition the rows by topic or key first"
                    )
                self._logs.add(name)
                self._stage.destination = name[0]
            part = made if chosen is None else made.take(pa.array(chosen))
            self._waiting.setdefault(name, []).append(part)
        if cells:
            # Before the records that refer to them: the driver stores children first.
            self._stage.parcels.put_cells(cells)
        self._pending += made.nbytes
        if self._pending >= STAGE_BYTES_MAX:
            self.finish()

    def _by_log(self, rows: _Routing) -> dict[tuple[str, int], list[int] | None]:
        """Return the row numbers of each log, in order; None for all rows."""
        plan = self._plan
        if plan.topic is not None and rows.partitions is None:
            # The usual case: no list of row numbers is made.
            only = self._only_partition(plan.topic, rows)
            if only is not None:
                return {(plan.topic, only): None}
        found: dict[tuple[str, int], list[int] | None] = {}
        topic = plan.topic
        keys = rows.keys(plan)
        for row in range(rows.rows.num_rows):
            if rows.topics is not None:
                topic = rows.topics[row]
            # "Required without the option `topic`" (docs/spark-writing.md, Columns).
            if not topic:
                raise UsageError(
                    "a row has no topic: give the column topic a value in every row, or the option "
                    "topic"
                )
            given = None if rows.partitions is None else rows.partitions[row]
            # "If it is NULL or absent, the key decides" (docs/spark-writing.md, Columns).
            if given is None:
                given = self._routed(topic, None if keys is None else keys[row])
            elif not 0 <= given < PARTITIONS_MAX:
                raise UsageError(
                    f"the column partition is {given} in a row; it takes 0 to {PARTITIONS_MAX - 1}"
                )
            members = found.setdefault((topic, given), [])
            assert members is not None
            members.append(row)
        return found

    def _only_partition(self, topic: str, rows: _Routing) -> int | None:
        """Return the partition of all rows of a topic; None if each row chooses its own."""
        # Without keys, or with one partition, all rows of a batch go to the same partition.
        if not rows.has_keys or self._plan.count_of(topic) == 1:
            return self._routed(topic, None)
        return None

    def _routed(self, topic: str, key: object) -> int:
        """Return the partition of a key; without a key the task's number chooses it."""
        count = self._counts.setdefault(topic, self._plan.count_of(topic))
        if count == 1:
            return 0
        # "Rows without a key go to partition t mod n, where t is the number of their task"
        # (docs/spark-writing.md, Columns): keyless rows spread without a shuffle.
        return self._stage.task % count if key is None else partition_of(key, count)
