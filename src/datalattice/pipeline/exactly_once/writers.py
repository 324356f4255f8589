"""Spark's writer classes, shared by every format that stages rows in tasks.

A format supplies a `RowStager` for its tasks and a `Join` for the driver; the rest is the same for
every format.
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
from datalattice.pipeline.exactly_once.job import Job, PrepareChange, Stage, Staged

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


class RowWriter(DataSourceArrowWriter, DataSourceStreamArrowWriter):
    """Writes one save, or the batches of a stream, each once. Tasks get copies."""

    def __init__(self, job: Job, stager: Callable[[Stage], RowStager], join: PrepareChange) -> None:
        self._job = job
        self._stager = stager
        self._join = join

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stage the rows of a task. Runs in the task's process."""
        with self._job.stage() as stage:
            stager = self._stager(stage)
            for batch in iterator:
                # Converted rows contain no reference cycles; the collector would only walk them.
                with collector_paused:
                    stager.take(batch)
            # Rows are buffered over batches, so the last ones are staged here.
            stager.finish()
            return stage.done(stager.records)

    def commit(self, messages: Messages, batchId: int | None = None) -> None:  # noqa: N803 - Spark's
        """Write what all tasks staged, all or nothing, unless the batch was written before."""
        self._job.commit(messages, batchId, self._join)

    def abort(self, messages: Messages, batchId: int | None = None) -> None:  # noqa: N803 - Spark's
        """Remove what the tasks staged."""
        self._job.abort(messages)


class FormatSink(DataSource):
    """Base of formats that can be written; each implements `writing`."""

    def writing(self, schema: StructType, *, overwrite: bool, streaming: bool) -> RowWriter:
        """Return the writer of rows of this schema.

        Raises: UsageError: an option or a column is not accepted.
        """
        raise TypeError(f"{type(self).__name__} does not implement writing()")

    def writer(self, schema: StructType, overwrite: bool) -> RowWriter:
        """Return the writer of a batch query. Raises: as `writing`."""
        return self.writing(schema, overwrite=overwrite, streaming=False)

    def streamWriter(self, schema: StructType, overwrite: bool) -> RowWriter:  # noqa: N802 - Spark's
        """Return the writer of a streaming query. Raises: as `writing`."""
        return self.writing(schema, overwrite=overwrite, streaming=True)
