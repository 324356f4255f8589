"""Lattice data as Arrow columns. Needs the extra `arrow`; Spark uses the same readers.

Source: docs/design/columns.md.
"""

from __future__ import annotations

from datalattice.arrow.batches import (
    BATCH_BYTES_MAX,
    BATCH_RECORDS_MAX,
    Row,
    micros,
    record_batch,
    row_batches,
    row_bytes,
)
from datalattice.arrow.leaves import Unfit
from datalattice.arrow.log import RECORD_COLUMNS, LogColumns, LogRange, log_batches
from datalattice.arrow.values import (
    CONTENT_BYTES_LIMIT,
    CONTENT_BYTES_MAX,
    NotBytes,
    ValueFormat,
    accepted_types,
    check_size,
    column_type,
    parse,
    part_of,
    plain,
    render,
    variant_parts,
)

__all__ = [
    "BATCH_BYTES_MAX",
    "BATCH_RECORDS_MAX",
    "CONTENT_BYTES_LIMIT",
    "CONTENT_BYTES_MAX",
    "RECORD_COLUMNS",
    "LogColumns",
    "LogRange",
    "NotBytes",
    "Row",
    "Unfit",
    "ValueFormat",
    "accepted_types",
    "check_size",
    "column_type",
    "log_batches",
    "micros",
    "parse",
    "part_of",
    "plain",
    "record_batch",
    "render",
    "row_batches",
    "row_bytes",
    "variant_parts",
]
