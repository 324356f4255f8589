"""Rows of Arrow batches as maps of their columns, for any columns.

Columns of numbers, booleans, texts and binaries are encoded straight from Arrow's buffers
(`cells.Shape`); in columns of other types each distinct entry becomes a value first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final

from datalattice.arrow import Convert, ValueFormat, parse, value_maker
from datalattice.cells import (
    CellList,
    Column,
    DoubleColumn,
    IntegerColumn,
    KidColumn,
    Map,
    StringColumn,
    TruthColumn,
    Value,
    as_kid,
    encode,
    novelty,
    shape_of,
    to_cell,
)
from datalattice.errors import DataLatticeError, UsageError
from datalattice.pipeline.columns import python_entries

if TYPE_CHECKING:
    import pyarrow as pa

_NUMBER_BYTES: Final = 8
_OFFSET_BYTES: Final = 4
_SHAPES: Final = 64
_NIL: Final = b"\x00"


@dataclass(frozen=True, slots=True)
class MapPlan:
    """How rows become maps. Plain data: every task gets a copy."""

    key: str | None
    """The column of keys, which the map contains as well; None: rows have no keys."""
    variants: tuple[str, ...]
    """Columns that hold variants."""
    drop_nulls: bool
    """Whether NULLs are left out of the map; otherwise they become nil."""

    def converter(self, field: pa.Field) -> Convert:
        """Return the function that converts an Arrow entry of this column for `to_cell`."""
        return _variant if field.name in self.variants else value_maker(field.type)


def maps_of(rows: pa.RecordBatch, plan: MapPlan, cells: CellList) -> list[bytes]:
    """Return the encoding of each row's map.

    Cells below the maps are appended to `cells`, children before parents; the maps are not.
    Raises: UsageError: an entry has no counterpart among values.
    """
    names = tuple(rows.schema.names)
    shape = _shape(names)
    # If NULLs are left out, rows with NULLs have fewer keys than there are columns.
    dropped = plan.drop_nulls and any(column.null_count for column in rows.columns)
    # Then a map that is larger than one cell has a different tree of keys in each row.
    if shape is None or (dropped and not shape.is_leaf):
        return _one_by_one(rows, plan, cells)
    columns = [shape_column(rows, name, plan, cells) for name in names]
    return shape.encodings(columns, rows.num_rows, cells, drop_nils=dropped)


_shape: Final = lru_cache(_SHAPES)(shape_of)


def _one_by_one(rows: pa.RecordBatch, plan: MapPlan, cells: CellList) -> list[bytes]:
    names = rows.schema.names
    columns = [column_values(rows, name, plan) for name in names]
    made: list[bytes] = []
    for row in zip(*columns, strict=True):
        pairs = zip(names, row, strict=True)
        value = Map.of([pair for pair in pairs if not plan.drop_nulls or pair[1] is not None])
        cells += [(hash, below) for hash, below, part in novelty(value) if part is not value]
        made.append(encode(value))
    return made


def column_values(rows: pa.RecordBatch, name: str, plan: MapPlan) -> list[Value]:
    """Return the entries of a column as values.

    Raises: UsageError: an entry has no counterpart among values.
    """
    field = rows.schema.field(name)
    given = python_entries(rows.column(name), name)
    return _values(given, name, plan.converter(field))


def _values(given: Sequence[Any], name: str, convert: Convert) -> list[Value]:
    try:
        return [None if item is None else to_cell(convert(item)) for item in given]
    except DataLatticeError as error:
        raise UsageError(f"column {name}: {error}") from None


# --- columns --------------------------------------------------------------------------------


def shape_column(rows: pa.RecordBatch, name: str, plan: MapPlan, cells: CellList) -> Column:
    """Return a column of rows in the form that `Shape` encodes. Raises: as `column_values`."""
    import pyarrow as pa

    field = rows.schema.field(name)
    column = rows.column(name)
    kind = field.type
    # Unsigned 64-bit integers may not fit into the signed columns of a shape: converted one by one.
    if pa.types.is_integer(kind) and not pa.types.is_uint64(kind):
        return IntegerColumn(_fixed(column.cast(pa.int64()), _NUMBER_BYTES), _valid(column))
    # Floats widen to Doubles without loss.
    if pa.types.is_floating(kind):
        return DoubleColumn(_fixed(column.cast(pa.float64()), _NUMBER_BYTES), _valid(column))
    if pa.types.is_boolean(kind):
        return TruthColumn(_fixed(column.cast(pa.uint8()), 1), _valid(column))
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return _strings(column, is_text=pa.types.is_string(kind))
    return _any(column, name, plan.converter(field), cells)


def _fixed(column: pa.Array, width: int) -> bytes:
    # A slice of a batch shares the buffer of the batch, so its own bytes begin at its offset.
    data: bytes = column.buffers()[1].slice(column.offset * width, len(column) * width).to_pybytes()
    return data


def _valid(column: pa.Array) -> bytes | None:
    import pyarrow as pa

    return _fixed(column.is_valid().cast(pa.uint8()), 1) if column.null_count else None


def _strings(column: pa.Array, *, is_text: bool) -> Column:
    _, ends, data = column.buffers()
    bounds = ends.slice(column.offset * _OFFSET_BYTES, (len(column) + 1) * _OFFSET_BYTES)
    marks = memoryview(bounds).cast("i")
    first, last = marks[0], marks[-1]
    # A slice of a batch shares the buffer of the batch: only its own bytes are copied.
    raw = b"" if data is None else data.slice(first, last - first).to_pybytes()
    return StringColumn(raw, bounds.to_pybytes(), first, _valid(column), is_text=is_text)


def _any(column: pa.Array, name: str, convert: Convert, cells: CellList) -> Column:
    import pyarrow as pa

    kind = column.type
    codes: list[int | None] | None = None
    if pa.types.is_temporal(kind) or pa.types.is_decimal(kind):  # entries often repeat
        coded = column.dictionary_encode()
        column, codes = coded.dictionary, coded.indices.to_pylist()
    values = _values(python_entries(column, name), name, convert)
    kids = [as_kid(value, cells) for value in values]
    if codes is not None:
        # A dictionary has no entry for NULL.
        kids = [_NIL if code is None else kids[code] for code in codes]
    return KidColumn(kids)


_variant: Final = partial(parse, format=ValueFormat.VARIANT)
