"""Ranges of a log as Arrow batches with the columns of the source.

Source: docs/spark.md "Columns", "Values as columns".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from datalattice.arrow import RECORD_COLUMNS, LogColumns, LogRange, Unfit, log_batches
from datalattice.cells import FetchCell, FetchCells
from datalattice.errors import BadFormat, UsageError
from datalattice.pipeline.options import bad_option
from datalattice.pipeline.queue.options import PartitionFormat, QueueOptions
from datalattice.pipeline.queue.plan import Slice

if TYPE_CHECKING:
    import pyarrow as pa

_LONG: Final = re.compile(r"-?[0-9]{1,19}")


def slice_batches(
    part: Slice,
    options: QueueOptions,
    schema: pa.Schema,
    fetch: FetchCell,
    many: FetchCells | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the records of a slice as Arrow batches with this schema (that of `options.types`).

    many, Cost: as `log_batches`.
    Raises: UsageError: a value does not fit its format, or a partition id is not an integer.
            BadFormat. MissingData.
    """
    constants = {
        name: _name_value(part, options, name)
        for name in options.columns
        if name not in RECORD_COLUMNS
    }
    wanted = LogColumns(schema, options.key_format, options.value_format, constants)
    try:
        range = LogRange(part.log.entries, part.log.start, part.first, part.stop)
        yield from log_batches(range, wanted, fetch, many)
    except Unfit as unfit:
        raise _refused(part, options, unfit) from None
    except (IndexError, UsageError) as error:  # UsageError: a reference is cut off
        # A verified cell has its hash, so the cause is an error of this program.
        if options.verify:
            raise
        raise BadFormat(
            f"{part.name}: a cell of records {part.first} to {part.stop - 1} is damaged; "
            "verify=true, the default, names it"
        ) from error


def _refused(part: Slice, options: QueueOptions, unfit: Unfit) -> UsageError:
    what, option, chosen = (
        ("value", "valueFormat", options.value_format)
        if unfit.is_value
        else ("key", "keyFormat", options.key_format)
    )
    return bad_option(
        option,
        chosen.value,
        f"the {what} of record {unfit.offset} in {part.name} is neither Blob nor String; "
        "cell, string and json take every value",
    )


def _name_value(part: Slice, options: QueueOptions, name: str) -> str | int:
    text = str(getattr(part.name, name))
    if name != "partition" or options.partition_format is PartitionFormat.STRING:
        return text
    # Another node may use any value as a partition's id; a BIGINT holds integers only.
    if not _LONG.fullmatch(text) or not -(2**63) <= int(text) < 2**63:
        raise bad_option(
            "partitionFormat",
            options.partition_format.value,
            f"{part.name} has an id that is not a 64-bit integer; string takes every id",
        )
    return int(text)
