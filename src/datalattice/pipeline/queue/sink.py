"""Write rows to queues of a node's folder, each batch once.

`pipeline.exactly_once` explains the protocol. Tasks stage records (`stage`), and the driver appends
them in the order of the tasks (`append`).

Source: docs/spark-writing.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from datalattice.apps.queue import PARTITIONS_MAX, Topics
from datalattice.arrow import ValueFormat
from datalattice.client import Folder, open_store_reader, read_key
from datalattice.clock import SystemClock
from datalattice.cursors import RootLattice
from datalattice.errors import UsageError
from datalattice.lattice import MergeContext, root_lattice
from datalattice.pipeline.arrow_rows import MapPlan
from datalattice.pipeline.columns import (
    check_known,
    check_name_length,
    check_type,
    column_types,
    ddl_type,
    value_format,
)
from datalattice.pipeline.exactly_once.job import (
    SPARK_OPTIONS,
    Job,
    WriteTarget,
    write_target_option,
)
from datalattice.pipeline.exactly_once.writers import FormatSink, RowWriter
from datalattice.pipeline.options import (
    Given,
    bad_option,
    choice_option,
    flag_option,
    option,
    parse_option_record,
    positive_option,
    text_option,
)
from datalattice.pipeline.queue.append import appending
from datalattice.pipeline.queue.stage import RecordPlan, RecordStager

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_SINK_COLUMNS: Final = ("value", "key", "headers", "topic", "partition", "timestamp")
"""Columns that are written."""

_IGNORED_COLUMNS: Final = ("owner", "offset")
"""Columns of the source that a write ignores: the queue sets them."""

_INTEGERS: Final = ("TINYINT", "SMALLINT", "INT", "BIGINT")
_HEADERS: Final = (
    "MAP<STRING,STRING>",
    "MAP<STRING,BINARY>",
    "ARRAY<STRUCT<KEY:STRING,VALUE:BINARY>>",
    "ARRAY<STRUCT<KEY:STRING,VALUE:STRING>>",
)


class RowsAs(Enum):
    """How a row becomes a record."""

    COLUMNS = "columns"
    """The columns of the row are those of the record."""
    MAP = "map"
    """The record's value is the map of all columns, whatever their names."""


@dataclass(frozen=True, slots=True)
class QueueSinkOptions:
    """The options for writing to `lattice.queue`; docs/spark-writing.md describes the rows.

    | option | meaning | default |
    |---|---|---|
    | `topic` | the topic of all rows | the column topic |
    | `valueFormat` | how value is read | by the column's type |
    | `keyFormat` | how key is read | by the column's type |
    | `rows` | `map`: the value of each record is the map of all columns of its row, whatever their
      names, and the table above does not apply; requires `topic` | `columns` |
    | `keyColumn` | with `rows=map`, the column whose value is the record's key as well | no key |
    | `dropNulls` | with `rows=map`, `true` leaves NULLs out of the map; otherwise they become nil |
      `false` |
    | `numPartitions` | number of partitions of a topic that has not set one, also if rows name
      their partitions | 1 |
    """

    target: WriteTarget
    topic: str | None = option("topic", text_option, None)
    value_format: ValueFormat | None = option("valueFormat", choice_option(ValueFormat), None)
    key_format: ValueFormat | None = option("keyFormat", choice_option(ValueFormat), None)
    rows: RowsAs = option("rows", choice_option(RowsAs), RowsAs.COLUMNS)
    key_column: str | None = option("keyColumn", text_option, None)
    drop_nulls: bool = option("dropNulls", flag_option, False)
    num_partitions: int | None = option("numPartitions", positive_option(PARTITIONS_MAX), None)


def sink_options(given: Mapping[str, str], *, streaming: bool) -> QueueSinkOptions:
    """Parse the options. Raises: UsageError: one is not accepted or missing."""
    options = Given.of(given, WriteTarget, QueueSinkOptions, also=SPARK_OPTIONS)
    target = write_target_option(options, streaming=streaming)
    made = parse_option_record(QueueSinkOptions, options, target=target)
    check_name_length(made.topic or "", "topic")
    _check_agreed(options, made.rows)
    return made


def _check_agreed(options: Given, rows: RowsAs) -> None:
    # An option that would have no effect is an error, because the user expects an effect.
    if rows is RowsAs.COLUMNS:
        for name in ("keyColumn", "dropNulls"):
            if name in options:
                raise UsageError(f"option {name} is for rows=map")
        return
    for name in ("valueFormat", "keyFormat"):
        if name in options:
            raise UsageError(f"option {name} is not for rows=map: the value is the map of the row")
    # The map has every column, so none is left to name the topic.
    if "topic" not in options:
        raise UsageError("rows=map needs the option topic: a column topic is part of the map")


class QueueSink(FormatSink):
    """Sink part of `lattice.queue`; docs/spark-writing.md documents rows and options."""

    def writing(self, schema: StructType, *, overwrite: bool, streaming: bool) -> RowWriter:
        """Return the writer of rows of this schema."""
        # "A queue cannot be overwritten" (docs/spark-writing.md).
        if overwrite:
            raise UsageError(
                "a queue only grows: write with mode append (a stream: outputMode append)"
            )
        options = sink_options(dict(self.options), streaming=streaming)
        formats: dict[str, ValueFormat | None] = {"value": None}
        maps = None
        if options.rows is RowsAs.MAP:
            maps = map_plan(schema, options)
        else:
            formats = check_columns(schema, options)
        job = Job.begin(options.target, streaming=streaming)
        plan = RecordPlan(
            options.topic,
            formats["value"],
            formats.get("key"),
            # Read when Spark plans. If the number changes meanwhile, the driver refuses the batch.
            partition_counts(options.target.folder, options.topic),
            options.num_partitions or 1,
            job.stamp_ms,
            maps,
        )
        join = partial(appending, clock=SystemClock(), count=options.num_partitions)
        return RowWriter(job, partial(RecordStager, plan), join)


def partition_counts(folder: str, topic: str | None) -> dict[str, int]:
    """Return the set numbers of partitions by topic; `topic` None means all topics."""
    home = Folder(Path(folder))
    keys = read_key(home.key_path)
    # There is no store before the first write.
    if not home.store_path.exists():
        return {}
    with open_store_reader(home) as store:
        cursor = RootLattice(root_lattice(), store.root(), MergeContext(key_pair=keys))
        mine = Topics.at(cursor, keys.public_key)
        names = [name for name in mine.topics() if isinstance(name, str) and topic in (None, name)]
        counts = {name: mine.topic(name).num_partitions for name in names}
    return {name: count for name, count in counts.items() if count}


# --- columns --------------------------------------------------------------------------------


def map_plan(schema: StructType, options: QueueSinkOptions) -> MapPlan:
    """Return how rows become maps.

    Raises: UsageError: two columns have the same name, or the column of keys does not exist.
    """
    types = {field.name: ddl_type(field.dataType) for field in schema.fields}
    # A map has each key only once, so one of the two would be lost.
    if len(types) < len(schema.fields):
        raise UsageError("two columns have the same name; rename one of them")
    if options.key_column is not None and options.key_column not in types:
        what = f"the rows have the columns {', '.join(types)}"
        raise bad_option("keyColumn", options.key_column, what)
    variants = tuple(name for name, kind in types.items() if kind == "VARIANT")
    return MapPlan(options.key_column, variants, options.drop_nulls)


def check_columns(schema: StructType, options: QueueSinkOptions) -> dict[str, ValueFormat | None]:
    """Return the formats of value and key of rows that have a record's columns.

    Raises: UsageError: a column is missing, unknown or of a type that cannot be written.
    """
    types = column_types(schema)
    check_known(types, "record", _SINK_COLUMNS, _IGNORED_COLUMNS)
    if "value" not in types:
        raise UsageError(
            f"column value is missing: rows of a queue have {', '.join(_SINK_COLUMNS)}"
        )
    if options.topic is None and "topic" not in types:
        raise UsageError("no topic is named: give the option topic, or a column topic")
    check_type(types, "topic", ("STRING",))
    check_type(types, "partition", _INTEGERS)
    check_type(types, "timestamp", ("TIMESTAMP",))
    check_type(types, "headers", _HEADERS)
    formats = {"value": value_format(types["value"], "value", options.value_format)}
    if "key" in types:
        formats["key"] = value_format(types["key"], "key", options.key_format)
    return formats
