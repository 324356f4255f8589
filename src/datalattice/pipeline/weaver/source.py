"""The Spark format `lattice.weaver`: tables of a weaver store in batches, new records in streams.

A position is the number of a record in the witness log, with the hash of its content. That hash
also depends on all earlier records. The planner divides the records after a position into ranges.
Each task reads one range, and finds the same records even if others are written meanwhile.

Source: docs/spark-weaver.md.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from datalattice.arrow import row_batches
from datalattice.errors import UsageError
from datalattice.pipeline.options import bad_option, documents, hash_of
from datalattice.pipeline.reader import Format
from datalattice.pipeline.schemas import arrow_schema, check_schema
from datalattice.pipeline.spark.workers import freeze_objects
from datalattice.pipeline.weaver.opening import open_weaver_stores
from datalattice.pipeline.weaver.options import (
    WEAVER_FORMAT,
    WeaverOptions,
    WeaverTable,
    parse_options,
)
from datalattice.pipeline.weaver.rows import RecordsTask, plan, rebuilt, rows, table_end
from datalattice.weaver import LOG_START, Position, StoreView, store_id_text

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_POSITION_VERSION: Final = 1
"""Version of the checkpointed form of a position."""

_log: Final = logging.getLogger("datalattice.pipeline")


@documents(WeaverOptions)
class WeaverSource(Format[WeaverOptions]):
    """A weaver store, as rows of one of three tables.

    | table | columns |
    |---|---|
    | intentions | seq, hash, author, time, counter, witnessed, store_prev, condition, kind, op,
      payload, size |
    | state, of keys | key, value, author, time, counter, hash, conflicts |
    | state, of a log | seq, value, author, time, counter, hash |
    | conflicts | key, rank, value, author, time, counter, hash |

    Hashes and authors are lower-case hex. `time` and `counter` are the author's stamp.

    Intentions and state can be read as a stream. Each batch of the state has the keys that were
    written since the previous batch, with their values at its end, or the new entries of a log. A
    restarted stream continues from its checkpoint. The options are:
    """

    format = WEAVER_FORMAT
    parse = staticmethod(parse_options)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch. Raises: UsageError: an option is for streams."""
        options = self.parsed
        if options.stream_only:
            raise UsageError(f"option {options.stream_only[0]} is for streams")
        if options.starting is None:
            raise bad_option("startingOffsets", "latest", "a batch would read nothing from there")
        return WeaverReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        """Return the reader of a stream.

        Raises: UsageError: the table is conflicts, or an option is for batches.
        """
        options = self.parsed
        if options.table is WeaverTable.CONFLICTS:
            raise UsageError(
                "the table conflicts is for batches; a stream of the state has a column conflicts"
            )
        if options.ending is not None:
            raise UsageError("option endingOffsets is for batches: a stream has no end")
        return WeaverStreamReader(replace(options, is_stream=True), schema)


class RecordsPartition(InputPartition):
    """What one task reads."""

    def __init__(self, task: RecordsTask) -> None:
        super().__init__(str(task))
        self.task = task


class _WeaverReader:
    """What both readers share."""

    def __init__(self, options: WeaverOptions, schema: StructType) -> None:
        shaping = "table, columns, keyFormat and valueFormat"
        check_schema(schema, options.types, WEAVER_FORMAT, shaping)
        self._options: Final = options
        self._schema: Final = schema

    def _planned(self, view: StoreView, start: Position, end: Position) -> list[RecordsPartition]:
        return [
            RecordsPartition(task) for task in plan(view, start, end, self._options.min_partitions)
        ]

    def _before(self, view: StoreView, option: str, number: int) -> Position:
        """Return the position before a record. Raises: UsageError: the log does not reach there."""
        end = table_end(view, self._options)
        found = view.position(number - 1)
        # The state of a stalled store ends before its log, and has no rows of later records.
        if found is None or found.seq > end.seq:
            accepted = f"the log has {end.seq} records; the next one has the number {end.seq + 1}"
            raise bad_option(option, number, accepted)
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task. Runs in the task's process."""
        if isinstance(partition, RecordsPartition):  # otherwise Spark's own empty partition
            freeze_objects()
            yield from row_batches(rows(partition.task, self._options), arrow_schema(self._schema))


class WeaverReader(_WeaverReader, DataSourceReader):
    """Reads a table once."""

    def partitions(self) -> Sequence[RecordsPartition]:
        """Return the tasks. Raises: UsageError: a given record is after the end of the log."""
        options = self._options
        with open_weaver_stores(options.folder) as stores, stores.view(options.id) as view:
            start, end = LOG_START, table_end(view, options)
            if options.starting is not None:
                start = self._before(view, "startingOffsets", options.starting)
            if options.ending is not None:
                end = self._before(view, "endingOffsets", options.ending)
            return self._planned(view, start, end)


class WeaverStreamReader(_WeaverReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the records of a log, batch by batch.

    Spark keeps the position. After a restart it requests the same records again, and the hash in
    the position shows whether the log still has them.
    """

    def __init__(self, options: WeaverOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._target: int | None = None  # where the trigger availableNow ends

    def initialOffset(self) -> dict[str, object]:  # noqa: N802 - Spark's
        """Return the position where a new stream begins."""
        options = self._options
        with open_weaver_stores(options.folder) as stores, stores.view(options.id) as view:
            if options.starting is None:
                return self._write(table_end(view, options))
            return self._write(self._before(view, "startingOffsets", options.starting))

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's
        """End the stream at the present end of the log."""
        self._target = self._reach().seq

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's
        """Return the limit of `maxOffsetsPerTrigger`."""
        limit = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def latestOffset(self, start: dict[str, object], limit: ReadLimit) -> dict[str, object]:  # noqa: N802 - Spark's
        """Return where the next batch ends; `start` itself if nothing was written.

        Raises: DataLoss: the log is another one, and failOnDataLoss.
        """
        options = self._options
        with open_weaver_stores(options.folder) as stores, stores.view(options.id) as view:
            begin = self._begin(view, self._read(start))
            last = table_end(view, options).seq
            if self._target is not None:
                last = min(last, self._target)
            if isinstance(limit, ReadMaxRows):
                # "most records that one batch of a stream reads" (docs/spark-weaver.md, Options).
                last = min(last, begin.seq + limit.max_rows)
            # Never before the start: Spark takes any other offset as a batch to be read.
            end = view.position(max(last, begin.seq))
            assert end is not None, "it is between two records that are there"
            return self._write(end)

    def reportLatestOffset(self) -> dict[str, object]:  # noqa: N802 - Spark's
        """Return the end of the log, for the progress report."""
        return self._write(self._reach())

    def partitions(
        self, start: dict[str, object], end: dict[str, object]
    ) -> Sequence[RecordsPartition]:
        """Return the tasks of a batch.

        Raises: DataLoss: the log is another one, and failOnDataLoss.
        """
        options = self._options
        with open_weaver_stores(options.folder) as stores, stores.view(options.id) as view:
            last = self._read(end)
            if view.position(last.seq) != last:
                # This batch is empty. The next one begins at the same lost position, and so reads
                # the complete log.
                self._lost(last)
                return []
            return self._planned(view, self._begin(view, self._read(start)), last)

    def commit(self, end: dict[str, object]) -> None:
        """Do nothing: a log keeps its records."""

    def _begin(self, view: StoreView, position: Position) -> Position:
        """Return a position, or the beginning if the log does not have it."""
        if view.position(position.seq) == position:
            return position
        self._lost(position)
        return LOG_START

    def _lost(self, position: Position) -> None:
        """Raise or log a loss, as failOnDataLoss says."""
        loss = rebuilt(self._options, position)
        if self._options.fail_on_data_loss:
            raise loss
        _log.warning("%s; reading it from the beginning (failOnDataLoss=false)", loss)

    def _reach(self) -> Position:
        with (
            open_weaver_stores(self._options.folder) as stores,
            stores.view(self._options.id) as view,
        ):
            return table_end(view, self._options)

    def _write(self, position: Position) -> dict[str, object]:
        """Return the form of a position that Spark keeps as JSON."""
        return {
            "version": _POSITION_VERSION,
            "store": store_id_text(self._options.id),
            "seq": position.seq,
            "hash": position.content_hash.hex(),
        }

    def _read(self, form: Mapping[str, object]) -> Position:
        """Return the position in a checkpoint.

        Raises: UsageError: the checkpoint is of another version, format or store.
        """
        seq, text = form.get("seq"), form.get("hash")
        hash = hash_of(text) if isinstance(text, str) else None
        is_ours = form == self._write(LOG_START) | {"seq": seq, "hash": text}
        # JSON's true is an int in Python.
        if is_ours and hash is not None and type(seq) is int and seq >= 0:
            return Position(seq, hash)
        raise UsageError(
            f"the checkpoint holds no position of {self._options} (version {_POSITION_VERSION}, "
            f"store {store_id_text(self._options.id)}): {json.dumps(dict(form))[:200]}; use "
            "another checkpointLocation"
        )
