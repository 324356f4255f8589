"""Spark's writer classes, shared by every format that stages rows in tasks.

A format supplies a `RowStager` for its tasks and a `Join` for the driver; `pipeline.exactly_once`
does the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from datalattice.cursors import collector_paused
from datalattice.pipeline.exactly_once.job import Job, Join, Stage, Staged

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

Messages = Sequence[WriterCommitMessage | None]


class RowStager(Protocol):
    """Stages the rows of one task."""

    @property
    def records(self) -> int:
        """How many rows were taken."""
        ...

    def take(self, batch: pa.RecordBatch) -> None:
        """Add the rows of an Arrow batch."""
        ...

    def finish(self) -> None:
        """Stage the rows that are still buffered."""
        ...


class Writing:
    """One save, or the writing of one stream. Made at planning; tasks get copies."""

    def __init__(self, job: Job, gathering: Callable[[Stage], RowStager], join: Join) -> None:
        self._job = job
        self._gathering = gathering
        self._join = join

    def write(self, batches: Iterator[pa.RecordBatch]) -> Staged:
        """Stage the rows of a task. Runs in the task's process."""
        with self._job.stage() as stage:
            gathering = self._gathering(stage)
            for batch in batches:
                with collector_paused:
                    gathering.take(batch)
            gathering.finish()
            return stage.done(gathering.records)

    def commit(self, messages: Messages, batch: int | None) -> None:
        """Write what all tasks staged, all or nothing, unless the batch was written before."""
        self._job.commit(messages, batch, self._join)

    def abort(self, messages: Messages) -> None:
        """Remove what the tasks staged."""
        self._job.abort(messages)


class BatchWriter(DataSourceArrowWriter):
    """Writes the rows of a batch query."""

    def __init__(self, writing: Writing) -> None:
        self._writing = writing

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of a task."""
        return self._writing.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Write what all tasks staged, all or nothing."""
        self._writing.commit(messages, None)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Remove what the tasks staged."""
        self._writing.abort(messages)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a streaming query, each once."""

    def __init__(self, writing: Writing) -> None:
        self._writing = writing

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of a task."""
        return self._writing.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's
        """Write what all tasks staged, all or nothing, unless the batch was written before."""
        self._writing.commit(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's
        """Remove what the tasks staged."""
        self._writing.abort(messages)


class FormatSink(DataSource):
    """Base of formats that can be written; each implements `writing`."""

    def writing(self, schema: StructType, *, overwrite: bool, streaming: bool) -> Writing:
        """Return the plan for writing rows of this schema.

        Raises: UsageError: an option or a column is not accepted.
        """
        raise TypeError(f"{type(self).__name__} does not implement writing()")

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Return the writer of a batch query. Raises: as `writing`."""
        return BatchWriter(self.writing(schema, overwrite=overwrite, streaming=False))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802 - Spark's
        """Return the writer of a streaming query. Raises: as `writing`."""
        return StreamWriter(self.writing(schema, overwrite=overwrite, streaming=True))
