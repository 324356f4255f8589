"""Lattice data as Arrow columns. Needs the extra `arrow`; Spark uses the same readers.

Source: docs/design/columns.md.
"""

from __future__ import annotations

from datalattice.arrow.batches import (
    BATCH_BYTES_MAX as BATCH_BYTES_MAX,
    BATCH_RECORDS_MAX as BATCH_RECORDS_MAX,
    Row as Row,
    micros as micros,
    record_batch as record_batch,
    row_batches as row_batches,
    row_bytes as row_bytes,
)
from datalattice.arrow.cells import (
    CELL_TYPES as CELL_TYPES,
    cell_row as cell_row,
    store_cells as store_cells,
)
from datalattice.arrow.entries import (
    Convert as Convert,
    value_maker as value_maker,
)
from datalattice.arrow.grid import (
    GRID_COLUMNS as GRID_COLUMNS,
    GridRows as GridRows,
    GridTable as GridTable,
    grid_types as grid_types,
)
from datalattice.arrow.leaves import Unfit as Unfit
from datalattice.arrow.log import (
    RECORD_COLUMNS as RECORD_COLUMNS,
    LogColumns as LogColumns,
    LogRange as LogRange,
    log_batches as log_batches,
)
from datalattice.arrow.tables import (
    Table as Table,
    loaded_rows as loaded_rows,
    reader_of as reader_of,
    table_of as table_of,
)
from datalattice.arrow.values import (
    CONTENT_BYTES_LIMIT as CONTENT_BYTES_LIMIT,
    FIELD_BYTES_MAX as FIELD_BYTES_MAX,
    NotBytes as NotBytes,
    ValueFormat as ValueFormat,
    accepted_types as accepted_types,
    bytes_range as bytes_range,
    check_content_size as check_content_size,
    column_type as column_type,
    name_text as name_text,
    parse as parse,
    plain as plain,
    to_column_value as to_column_value,
    variant_parts as variant_parts,
)
