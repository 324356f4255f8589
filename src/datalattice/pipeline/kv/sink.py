"""Sink: writes rows to databases of the node whose folder is named, batch by batch, each once.

Theory of operation: `pipeline.staging`. A task gathers what its keys are to show (`gather`), the
driver writes that in the order of the tasks (`join`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from datalattice.clock import Clock, SystemClock
from datalattice.errors import UsageError
from datalattice.pipeline.columns import check_type, column_types, value_format
from datalattice.pipeline.kv.gather import Gatherer, RowPlan, checked_database
from datalattice.pipeline.kv.join import upserting
from datalattice.pipeline.options import Given, choice_option, text_option
from datalattice.pipeline.staging import TARGET_OPTIONS, Job, Staged, Target, target_option
from datalattice.pipeline.values import ValueFormat

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

SINK_OPTIONS: Final = (*TARGET_OPTIONS, "database", "valueFormat")
"""The name of every option of the sink."""

SINK_COLUMNS: Final = ("key", "value", "type", "expires", "database")
"""Columns that are written."""

IGNORED_COLUMNS: Final = ("owner", "updated")
"""Columns of the source that a write decides anew."""


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The options of writing to `lattice.kv`; docs/spark-kv.md says what each means."""

    target: Target
    database: str | None
    value_format: ValueFormat | None


def sink_options(given: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """Return the options as a record.

    Raises: UsageError: an option is unknown, missing or not of its form.
    """
    options = Given(given, SINK_OPTIONS)
    database = options.get("database", text_option, None)
    return SinkOptions(
        target=target_option(options, streaming=streaming),
        database=None if database is None else checked_database(database),
        value_format=options.get("valueFormat", choice_option(ValueFormat), None),
    )


class _Writing:
    """What both writers do."""

    def __init__(
        self,
        given: Mapping[str, str],
        schema: StructType,
        overwrite: bool,
        *,
        streaming: bool,
        clock: Clock | None = None,
    ) -> None:
        options = sink_options(given, streaming=streaming)
        format = check_columns(schema, options)
        self._job = Job.begin(options.target, streaming=streaming)
        has_type = "type" in column_types(schema)
        self._plan = RowPlan(options.database, format, has_type, overwrite)
        self._clock = clock or SystemClock()

    def write(self, batches: Iterator[pa.RecordBatch]) -> Staged:
        """Gather the rows of a task. Runs in the task's process."""
        with self._job.stage() as stage:
            gatherer = Gatherer(self._plan, stage)
            for batch in batches:
                gatherer.take(batch)
            return stage.done(gatherer.value(), gatherer.records)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batch: int | None) -> None:
        """Write what all tasks gathered."""
        plan = self._plan
        join = partial(
            upserting, clock=self._clock, database=plan.database, overwrite=plan.overwrite
        )
        self._job.commit(messages, batch, join)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Throw away what tasks gathered."""
        self._job.abort(messages)


class KVWriter(DataSourceArrowWriter):
    """Writes the rows of a batch query to databases."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        self._writing = _Writing(options, schema, overwrite, streaming=False)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Gather the rows of a task."""
        return self._writing.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Write what all tasks gathered, all or nothing."""
        self._writing.commit(messages, None)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Throw away what tasks gathered."""
        self._writing.abort(messages)


class KVStreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a streaming query to databases, each once."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        self._writing = _Writing(options, schema, overwrite, streaming=True)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Gather the rows of a task."""
        return self._writing.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's
        """Write what all tasks gathered, all or nothing, unless the batch is there already."""
        self._writing.commit(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's
        """Throw away what tasks gathered."""
        self._writing.abort(messages)


class KVSink(DataSource):
    """What a format needs to write to databases; docs/spark-kv.md tells rows and options."""

    def writer(self, schema: StructType, overwrite: bool) -> KVWriter:
        """Return the writer of a batch query.

        Raises: UsageError: an option or a column is not accepted.
        """
        return KVWriter(dict(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> KVStreamWriter:  # noqa: N802 - Spark's
        """Return the writer of a streaming query.

        Raises: UsageError: an option or a column is not accepted.
        """
        return KVStreamWriter(dict(self.options), schema, overwrite)


def check_columns(schema: StructType, options: SinkOptions) -> ValueFormat | None:
    """Return the format of the values, when the columns are those of keys.

    Raises: UsageError: a column is missing, unknown or not of a type that is written.
    """
    types = column_types(schema)
    columns = ", ".join(SINK_COLUMNS)
    for name in types:
        if name not in SINK_COLUMNS and name not in IGNORED_COLUMNS:
            raise UsageError(
                f"column {name} is not one of a key: {columns}; rename it, or make it a part of "
                "value, as with to_json(struct(...))"
            )
    for name in ("key", "value"):
        if name not in types:
            raise UsageError(f"column {name} is missing: rows of a database have {columns}")
    if options.database is None and "database" not in types:
        raise UsageError("no database is named: give the option database, or a column database")
    check_type(types, "key", ("STRING",))
    check_type(types, "type", ("STRING",))
    check_type(types, "database", ("STRING",))
    check_type(types, "expires", ("TIMESTAMP",))
    return value_format(types["value"], "value", options.value_format)
