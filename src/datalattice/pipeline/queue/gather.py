"""Gather: what a task does with the rows it is to write: logs by topic and partition.

Records are made by the queue's own `Batch`, with one time for the whole job, so what comes out is
what the same records offered one after another would give. Logs are put into the task's store as
they grow; memory holds their ends only.

A task stages the Vector `[counts logs]`: `counts` is a Map of each topic whose partitions were
chosen by key to the number of partitions that was reckoned with, `logs` a Map of topics to a Map of
partition ids to Vectors of entries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from datalattice.apps.queue import PARTITIONS_MAX, Batch, make_entry, partition_of
from datalattice.cells import EMPTY_VECTOR, Map, Value, Vector, to_cell
from datalattice.errors import LimitExceeded, UsageError
from datalattice.pipeline.columns import cell, check_name, lower_names, slices, stamps_ms
from datalattice.pipeline.staging import STAGE_BYTES_MAX
from datalattice.pipeline.values import ValueFormat

if TYPE_CHECKING:
    import pyarrow as pa

RECORDS_MAX: Final = 4_096
"""Rows that are turned into records at a time, at most."""

LOGS_MAX: Final = 65_536
"""Partitions that one task writes to, at most: the end of each log stays in memory."""


@dataclass(frozen=True, slots=True)
class RowPlan:
    """How rows become records. Made at planning; plain, for it goes to every task."""

    topic: str | None
    """The topic of all rows; None: the column says."""
    value_format: ValueFormat | None
    """How to read the column value; None: it holds numbers or truth values as they are."""
    key_format: ValueFormat | None
    counts: Mapping[str, int]
    """Number of partitions by topic, where it is set."""
    default_count: int
    """Number of partitions of all other topics."""
    stamp_ms: int
    """The time of records without one of their own."""

    def count_of(self, topic: str) -> int:
        """Return how many partitions keys of a topic are spread over."""
        return self.counts.get(topic, self.default_count)


class Putting(Protocol):
    """Whatever takes cells: a task's store."""

    @property
    def task(self) -> int:
        """Number of the task."""
        ...

    def put(self, value: Value) -> None:
        """Keep the cells of a value, and free their memory."""
        ...


class _Rows:
    """Rows as Python columns; a column that is not there is None."""

    def __init__(self, rows: pa.RecordBatch, plan: RowPlan) -> None:
        self.count: Final[int] = rows.num_rows
        names = rows.schema.names

        def column(name: str) -> pa.Array | None:
            return rows.column(names.index(name)) if name in names else None

        self.values: Final = _cells(column("value"), "value", plan.value_format) or []
        self.keys: Final = _cells(column("key"), "key", plan.key_format)
        self.topics: Final = None if plan.topic is not None else _list(column("topic"))
        self.partitions: Final = _list(column("partition"))
        self.headers: Final = _headers(column("headers"))
        stamps = stamps_ms(rows, "timestamp") if "timestamp" in names else []
        self.stamps: Final = stamps if any(at is not None for at in stamps) else None


def _list(column: pa.Array | None) -> list[Any] | None:
    if column is None or column.null_count == len(column):
        return None
    found: list[Any] = column.to_pylist()
    return found


def _cells(
    column: pa.Array | None, name: str, format: ValueFormat | None
) -> Sequence[object] | None:
    """Return a column as values; what `Batch` takes as it is stays as it is."""
    given = _list(column)
    if given is None:
        return None
    if format in (None, ValueFormat.STRING) or (
        format is ValueFormat.BYTES and isinstance(next(filter(None, given), b""), bytes)
    ):
        return given
    return [cell(item, name, format) for item in given]


def _headers(column: pa.Array | None) -> list[object] | None:
    """Return headers as mappings, from a MAP or from an ARRAY of key and value, as Kafka has it."""
    given = _list(column)
    if given is None:
        return None
    return [None if row is None else dict(map(_header, row)) for row in given]


def _header(pair: Any) -> tuple[object, object]:
    name, value = pair.values() if isinstance(pair, Mapping) else pair or (None, None)
    if name is None:
        raise UsageError("the column headers has a header that is NULL, or whose key is")
    return name, value


class Gatherer:
    """Collects the records of one task."""

    def __init__(self, plan: RowPlan, stage: Putting) -> None:
        self.records = 0
        self._plan: Final = plan
        self._stage: Final = stage
        self._logs: Final[dict[tuple[str, int], Vector]] = {}
        self._counts: Final[dict[str, int]] = {}
        self._changed: Final[set[tuple[str, int]]] = set()
        self._pending = 0

    def take(self, batch: pa.RecordBatch) -> None:
        """Append the rows of an Arrow batch.

        Raises: UsageError: a row that cannot be a record. LimitExceeded: too many partitions.
        """
        for rows in slices(lower_names(batch), RECORDS_MAX, STAGE_BYTES_MAX):
            self._append(_Rows(rows, self._plan))
            self.records += rows.num_rows
            self._pending += rows.nbytes
            if self._pending >= STAGE_BYTES_MAX:
                self._put()

    def value(self) -> Value:
        """Return what the task stages."""
        self._put()
        logs: dict[str, dict[int, Vector]] = {}
        for (topic, partition), log in self._logs.items():
            logs.setdefault(topic, {})[partition] = log
        return Vector.of((Map.of(self._counts), Map.of({t: Map.of(p) for t, p in logs.items()})))

    def _put(self) -> None:
        for name in self._changed:
            self._stage.put(self._logs[name])
        self._changed.clear()
        self._pending = 0

    def _append(self, rows: _Rows) -> None:
        for name, chosen in self._by_log(rows).items():
            log = self._logs.get(name)
            if log is None:
                check_name(name[0], "topic")
                log = EMPTY_VECTOR
                if len(self._logs) >= LOGS_MAX:
                    raise LimitExceeded(
                        f"a task writes to at most {LOGS_MAX} partitions; "
                        "repartition the rows by topic or key first"
                    )
            pick = _picker(chosen, rows.count)
            values, keys = pick(rows.values), pick(rows.keys)
            if not values or any(value is None for value in values):
                raise UsageError(
                    "the column value is NULL in a row: a record needs a value; "
                    "leave such rows out, or give them a value that says so"
                )
            headers = pick(rows.headers)
            stamps = pick(rows.stamps)
            if stamps is None:
                made = Batch(values, self._plan.stamp_ms, keys, headers)
                self._logs[name] = made.append_to(log)
            else:
                self._logs[name] = log.extend(
                    _timed(values, keys, headers, stamps, self._plan.stamp_ms)
                )
            self._changed.add(name)

    def _by_log(self, rows: _Rows) -> dict[tuple[str, int], list[int] | None]:
        """Return the rows of each log by their numbers, in order; None: all of them."""
        plan = self._plan
        if rows.topics is None:
            if plan.topic is None:
                raise _no_topic()
            if rows.partitions is None:
                only = self._only_partition(plan.topic, rows)
                if only is not None:
                    return {(plan.topic, only): None}
        found: dict[tuple[str, int], list[int] | None] = {}
        topic = plan.topic
        for row in range(rows.count):
            if rows.topics is not None:
                topic = rows.topics[row]
            if not topic:
                raise _no_topic()
            given = None if rows.partitions is None else rows.partitions[row]
            if given is None:
                given = self._routed(topic, None if rows.keys is None else rows.keys[row])
            elif not 0 <= given < PARTITIONS_MAX:
                raise UsageError(
                    f"the column partition is {given} in a row; it is 0 to {PARTITIONS_MAX - 1}"
                )
            members = found.setdefault((topic, given), [])
            assert members is not None
            members.append(row)
        return found

    def _only_partition(self, topic: str, rows: _Rows) -> int | None:
        """Return the partition that all rows of a topic go to; None when that is not clear."""
        if rows.keys is None or self._plan.count_of(topic) == 1:
            return self._routed(topic, None)
        return None

    def _routed(self, topic: str, key: object) -> int:
        """Return the partition of a key; what has none goes to one that the task's number says."""
        count = self._counts.setdefault(topic, self._plan.count_of(topic))
        if count == 1:
            return 0
        return self._stage.task % count if key is None else partition_of(key, count)


_Pick = Callable[[Sequence[Any] | None], Sequence[Any] | None]


def _picker(chosen: list[int] | None, count: int) -> _Pick:
    """Return the function that takes the chosen rows out of a column."""
    if chosen is None or len(chosen) == count:
        return lambda column: column
    return lambda column: None if column is None else [column[row] for row in chosen]


def _timed(
    values: Sequence[Any],
    keys: Sequence[Any] | None,
    headers: Sequence[Any] | None,
    stamps: Sequence[int | None],
    otherwise_ms: int,
) -> Iterator[Vector]:
    for row, value in enumerate(values):
        stamp_ms = stamps[row]
        yield make_entry(
            None if keys is None else to_cell(keys[row]),
            to_cell(value),
            otherwise_ms if stamp_ms is None else stamp_ms,
            None if headers is None else to_cell(headers[row]),
        )


def _no_topic() -> UsageError:
    return UsageError(
        "a row has no topic: give the column topic a value in every row, or the option topic"
    )
