"""Writers: what Spark calls to write, the same for each format whose rows are staged and joined.

A format says how rows are gathered in a task and how the driver joins what tasks gathered; the rest
is `pipeline.staging`.
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
from datalattice.pipeline.staging import Job, Join, Stage, Staged

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

Messages = Sequence[WriterCommitMessage | None]


class Gathering(Protocol):
    """Stages the rows of a task."""

    @property
    def records(self) -> int:
        """How many there are."""
        ...

    def take(self, batch: pa.RecordBatch) -> None:
        """Take rows."""
        ...

    def finish(self) -> None:
        """Stage what is still waiting."""
        ...


class Writing:
    """One save, or the writing of one stream: made at planning, tasks get copies."""

    def __init__(self, job: Job, gathering: Callable[[Stage], Gathering], join: Join) -> None:
        self._job = job
        self._gathering = gathering
        self._join = join

    def write(self, batches: Iterator[pa.RecordBatch]) -> Staged:
        """Gather the rows of a task. Runs in the task's process."""
        with self._job.stage() as stage:
            gathering = self._gathering(stage)
            for batch in batches:
                with collector_paused:
                    gathering.take(batch)
            gathering.finish()
            return stage.done(gathering.records)

    def commit(self, messages: Messages, batch: int | None) -> None:
        """Write what all tasks gathered, all or nothing, unless it is there already."""
        self._job.commit(messages, batch, self._join)

    def abort(self, messages: Messages) -> None:
        """Throw away what tasks gathered."""
        self._job.abort(messages)


class BatchWriter(DataSourceArrowWriter):
    """Writes the rows of a batch query."""

    def __init__(self, writing: Writing) -> None:
        self._writing = writing

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Gather the rows of a task."""
        return self._writing.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Write what all tasks gathered, all or nothing."""
        self._writing.commit(messages, None)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Throw away what tasks gathered."""
        self._writing.abort(messages)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a streaming query, each once."""

    def __init__(self, writing: Writing) -> None:
        self._writing = writing

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Gather the rows of a task."""
        return self._writing.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's
        """Write what all tasks gathered, all or nothing, unless the batch is there already."""
        self._writing.commit(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's
        """Throw away what tasks gathered."""
        self._writing.abort(messages)


class Sink(DataSource):
    """A format that is written to; `writing` is its own."""

    def writing(self, schema: StructType, *, overwrite: bool, streaming: bool) -> Writing:
        """Return how rows of this schema are written, by the format's options.

        Raises: UsageError: an option or a column is not accepted.
        """
        raise TypeError(f"{type(self).__name__} does not say how it is written to")

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Return the writer of a batch query.

        Raises: UsageError: an option or a column is not accepted.
        """
        return BatchWriter(self.writing(schema, overwrite=overwrite, streaming=False))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802 - Spark's
        """Return the writer of a streaming query.

        Raises: UsageError: an option or a column is not accepted.
        """
        return StreamWriter(self.writing(schema, overwrite=overwrite, streaming=True))
