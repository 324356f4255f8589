"""Sink: writes rows to databases of the node whose folder is named, batch by batch, each once.

Theory of operation: `pipeline.staging`. A task gathers what its keys are to show (`gather`), the
driver writes that in the order of the tasks (`join`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from datalattice.clock import SystemClock
from datalattice.errors import UsageError
from datalattice.pipeline.columns import check_known, check_type, column_types, value_format
from datalattice.pipeline.kv.gather import Gatherer, RowPlan, checked_database
from datalattice.pipeline.kv.join import upserting
from datalattice.pipeline.options import Given, choice_option, text_option
from datalattice.pipeline.staging import TARGET_OPTIONS, Job, Target, target_option
from datalattice.pipeline.values import ValueFormat
from datalattice.pipeline.writers import Sink, Writing

if TYPE_CHECKING:
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


class KVSink(Sink):
    """What a format needs to write to databases; docs/spark-kv.md tells rows and options."""

    def writing(self, schema: StructType, *, overwrite: bool, streaming: bool) -> Writing:
        """Return how rows are written.

        Raises: UsageError: an option or a column is not accepted.
        """
        options = sink_options(dict(self.options), streaming=streaming)
        format = check_columns(schema, options)
        plan = RowPlan(options.database, format, "type" in column_types(schema), overwrite)
        join = partial(
            upserting, clock=SystemClock(), database=plan.database, overwrite=plan.overwrite
        )
        job = Job.begin(options.target, streaming=streaming)
        return Writing(job, partial(Gatherer, plan), join)


def check_columns(schema: StructType, options: SinkOptions) -> ValueFormat | None:
    """Return the format of the values, when the columns are those of keys.

    Raises: UsageError: a column is missing, unknown or not of a type that is written.
    """
    types = column_types(schema)
    check_known(types, "key", SINK_COLUMNS, IGNORED_COLUMNS)
    for name in ("key", "value"):
        if name not in types:
            raise UsageError(
                f"column {name} is missing: rows of a database have {', '.join(SINK_COLUMNS)}"
            )
    if options.database is None and "database" not in types:
        raise UsageError("no database is named: give the option database, or a column database")
    check_type(types, "key", ("STRING",))
    check_type(types, "type", ("STRING",))
    check_type(types, "database", ("STRING",))
    check_type(types, "expires", ("TIMESTAMP",))
    return value_format(types["value"], "value", options.value_format)
