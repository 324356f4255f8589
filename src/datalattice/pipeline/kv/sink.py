"""Write rows to databases of a node's folder, each batch once.

`pipeline.exactly_once` explains the protocol. Tasks stage the values of keys (`stage`); the driver
writes them in the order of the tasks (`upsert`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from datalattice.arrow import ValueFormat
from datalattice.clock import SystemClock
from datalattice.errors import UsageError
from datalattice.pipeline.columns import check_known, check_type, column_types, value_format
from datalattice.pipeline.exactly_once.job import (
    SPARK_OPTIONS,
    Job,
    WriteTarget,
    write_target_option,
)
from datalattice.pipeline.exactly_once.writers import FormatSink, RowWriter
from datalattice.pipeline.kv.stage import KeyPlan, KeyStager, checked_sink_database
from datalattice.pipeline.kv.upsert import upserting
from datalattice.pipeline.options import (
    Given,
    choice_option,
    option,
    parse_option_record,
    text_option,
)

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_SINK_COLUMNS: Final = ("key", "value", "type", "expires", "database")
"""Columns that are written."""

_IGNORED_COLUMNS: Final = ("owner", "updated")
"""Columns of the source that a write determines anew."""


@dataclass(frozen=True, slots=True)
class KVSinkOptions:
    """The options of writing to `lattice.kv`; docs/spark-kv.md describes the rows.

    | option | meaning | default |
    |---|---|---|
    | `database` | the database of all rows | the column database |
    | `valueFormat` | how value is read | by the column's type |
    """

    target: WriteTarget
    database: str | None = option("database", text_option, None)
    value_format: ValueFormat | None = option("valueFormat", choice_option(ValueFormat), None)


def sink_options(given: Mapping[str, str], *, streaming: bool) -> KVSinkOptions:
    """Parse the options. Raises: UsageError: one is not accepted or missing."""
    options = Given.of(given, WriteTarget, KVSinkOptions, also=SPARK_OPTIONS)
    target = write_target_option(options, streaming=streaming)
    made = parse_option_record(KVSinkOptions, options, target=target)
    if made.database is not None:
        checked_sink_database(made.database)
    return made


class KVSink(FormatSink):
    """Sink part of `lattice.kv`; docs/spark-kv.md documents rows and options."""

    def writing(self, schema: StructType, *, overwrite: bool, streaming: bool) -> RowWriter:
        """Return the writer of rows of this schema."""
        options = sink_options(dict(self.options), streaming=streaming)
        format = check_columns(schema, options)
        plan = KeyPlan(options.database, format, "type" in column_types(schema), overwrite)
        join = partial(
            upserting, clock=SystemClock(), database=plan.database, overwrite=plan.overwrite
        )
        # The job begins when Spark plans, so that all tasks stage under the same name.
        job = Job.begin(options.target, streaming=streaming)
        return RowWriter(job, partial(KeyStager, plan), join)


def check_columns(schema: StructType, options: KVSinkOptions) -> ValueFormat | None:
    """Return the format of the values of rows that have a key's columns.

    Raises: UsageError: a column is missing, unknown or of a type that cannot be written.
    """
    types = column_types(schema)
    check_known(types, "key", _SINK_COLUMNS, _IGNORED_COLUMNS)
    for name in ("key", "value"):
        if name not in types:
            raise UsageError(
                f"column {name} is missing: rows of a database have {', '.join(_SINK_COLUMNS)}"
            )
    # Checked at planning; otherwise the first row would fail in a task.
    if options.database is None and "database" not in types:
        raise UsageError("no database is named: give the option database, or a column database")
    # Keys and names of databases are Strings; other types would need a rule for their text.
    check_type(types, "key", ("STRING",))
    check_type(types, "type", ("STRING",))
    check_type(types, "database", ("STRING",))
    check_type(types, "expires", ("TIMESTAMP",))
    return value_format(types["value"], "value", options.value_format)
