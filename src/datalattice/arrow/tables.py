"""The data of a handle as Arrow batches: a queue, topic or feed, a database, a venue, a store.

A `Table` is made of one state of the handle: its rows show no later write. Its batches are read
when they are requested.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import singledispatch
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

from datalattice.apps.grid import Venue
from datalattice.apps.kv import Database, shown_value
from datalattice.apps.queue import Feed, Followable, PartitionId, Queue, QueueState, held_offsets
from datalattice.arrow.batches import Row, micros, row_batches
from datalattice.arrow.cells import CELL_TYPES, cell_row, store_cells
from datalattice.arrow.entries import Misfit, plain_column, struct_array
from datalattice.arrow.grid import GRID_COLUMNS, GridRows, GridTable, grid_types
from datalattice.arrow.leaves import Unfit
from datalattice.arrow.log import LogColumns, LogRange, log_batches
from datalattice.arrow.values import (
    FIELD_BYTES_MAX,
    NotBytes,
    ValueFormat,
    column_type,
    name_text,
    parse,
    to_column_value,
)
from datalattice.cells import CellRange, encode, none_missing, to_python
from datalattice.errors import BadFormat, LimitExceeded, TypeMismatch, UsageError
from datalattice.limits import COUNT_MAX
from datalattice.store import CellStore
from datalattice.store.gc import extent_of

if TYPE_CHECKING:
    import pyarrow as pa

LOG_COLUMNS: Final = (
    "owner",
    "topic",
    "partition",
    "offset",
    "timestamp",
    "key",
    "value",
    "headers",
)
_DATABASE_COLUMNS: Final = ("owner", "database", "key", "type", "value", "updated", "expires")

Values = Any
"""The name of a `ValueFormat`, or the `pyarrow.Schema` of the fields of each value."""


class ReadCells(Protocol):
    """Reads the cells of a table."""

    def __call__(
        self, hashes: list[bytes], *, verify: bool = True, below: int = 0
    ) -> list[CellRange | None]:
        """Return cells as `Store.get_cells` does."""
        ...


class KeptRoot(Protocol):
    """Keeps the cells of a table in the store while they are read."""

    def renew(self) -> None:
        """Extend the time for which they are kept."""

    def release(self) -> None:
        """Allow the store to remove them."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows that are read when their batches are requested."""

    schema: pa.Schema
    batches: Callable[[ReadCells], Iterator[pa.RecordBatch]]


@singledispatch
def table_of(handle: object, **_options: Any) -> Table:
    """Return the rows of a handle as it is now. The options are those of its `to_arrow`.

    Raises: UsageError: an option is not accepted.
    """
    raise UsageError(f"{handle!r} has no rows")


class _KeptBatches:
    """The batches of a table; its root is kept until they are read or this object is dropped."""

    def __init__(self, table: Table, source: ReadCells, kept: KeptRoot | None) -> None:
        self._batches = _one_at_least(table, source)
        self._kept = kept
        # Released also if nothing is read, and at the end of the process.
        self._release = weakref.finalize(self, kept.release) if kept is not None else None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> pa.RecordBatch:
        try:
            batch = next(self._batches)
        except BaseException:  # also StopIteration at the end
            if self._release is not None:
                self._release()
            raise
        if self._kept is not None:
            self._kept.renew()
        return batch


def _one_at_least(table: Table, source: ReadCells) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a table, or an empty one for no rows."""
    import pyarrow as pa

    is_empty = True
    for batch in table.batches(source):
        is_empty = False
        yield batch
    if is_empty:  # Polars and `pyarrow.dataset` take the columns from the first batch
        yield pa.RecordBatch.from_pylist([], schema=table.schema)


def reader_of(table: Table, source: ReadCells, kept: KeptRoot | None) -> pa.RecordBatchReader:
    """Return the reader of a table, which keeps its root until it is read or dropped."""
    import pyarrow as pa

    return pa.RecordBatchReader.from_batches(table.schema, _KeptBatches(table, source, kept))


# --- logs -----------------------------------------------------------------------------------------


@table_of.register
def _log_table(
    handle: Followable,
    *,
    start: int | None = None,
    stop: int | None = None,
    columns: Sequence[str] | None = None,
    values: Values = "json",
    keys: str = "string",
    verify: bool = True,
) -> Table:
    import pyarrow as pa

    # Columns with one value for the handle are left out: the caller has named that value.
    varying: tuple[str, ...] = () if isinstance(handle, Queue) else ("partition",)
    if isinstance(handle, Feed):
        varying = ("owner", "partition")
    default = (*varying, "offset", "timestamp", "key", "value")
    names = _chosen(columns, LOG_COLUMNS, default)
    fields = _checked_fields(values) if isinstance(values, pa.Schema) else None
    schemas = ", or a pyarrow.Schema"
    value_format = ValueFormat.CELL if fields is not None else _format(values, "values", schemas)
    key_format = _format(keys, "keys")
    types = {
        "partition": "BIGINT",
        "offset": "BIGINT",
        "timestamp": "TIMESTAMP",
        "key": column_type(key_format),
        "value": column_type(value_format),
        "headers": "MAP<STRING, STRING>",
    }
    schema = _schema({name: types.get(name, "STRING") for name in names})
    ranges = [
        (id, _range(state, start, stop), _constants(id, names))
        for id, state in handle.snapshot().items()
    ]

    def read(source: ReadCells) -> Iterator[pa.RecordBatch]:
        def many(hashes: list[bytes], below: int) -> list[CellRange]:
            return none_missing(hashes, source(hashes, verify=verify, below=below))

        def fetch(hash: bytes) -> bytes:
            return many([hash], 0)[0].encoding()

        for id, part, constants in ranges:
            wanted, first = LogColumns(schema, key_format, value_format, constants), part.first
            try:
                for batch in log_batches(part, wanted, fetch, many):
                    yield batch if fields is None else _structured(batch, fields)
                    first += batch.num_rows
            except Unfit as unfit:
                what = "value" if unfit.is_value else "key"
                raise _not_bytes(f"the {what} of record {unfit.offset} in {id}", what) from None
            except Misfit as misfit:
                raise TypeMismatch(
                    f"the value of record {first + misfit.at} in {id} does not fit the schema: "
                    f"{misfit}"
                ) from None
            except UsageError as error:  # too deep for text
                raise _too_deep(f"a record of {id}, from offset {first} on", error) from None
            except LimitExceeded as error:
                raise LimitExceeded(f"a record of {id}, from offset {first} on: {error}") from None
            except IndexError as error:
                # Without verification, damaged bytes may point anywhere.
                if verify:  # a verified cell has its hash, so the cause is an error of this program
                    raise
                raise BadFormat(f"{id}: a cell is damaged; verify=True names it") from error

    shown = schema if fields is None else _structured_schema(schema, fields)
    return Table(shown, read)


def _range(state: QueueState, start: int | None, stop: int | None) -> LogRange:
    held = held_offsets(state, start, stop)
    # The column offset is a BIGINT.
    if state.end - 1 > COUNT_MAX:
        raise BadFormat(f"a log has offsets up to {state.end - 1}; the greatest is {COUNT_MAX}")
    return LogRange(encode(state.entries), state.start, held.start, held.stop)


def _constants(id: PartitionId, names: Sequence[str]) -> Mapping[str, object]:
    found: dict[str, object] = {
        "owner": None if id.owner is None else name_text(id.owner.key),
        "topic": name_text(id.topic),
        "partition": id.partition,
    }
    # Another node may use any value as a partition's id; the column holds integers only.
    is_long = type(id.partition) is int and -COUNT_MAX - 1 <= id.partition <= COUNT_MAX
    if "partition" in names and not is_long:
        raise UsageError(f"{id} has an id that is not a 64-bit integer; columns leaves it out")
    return found


def _checked_fields(fields: pa.Schema) -> pa.Schema:
    """Return a schema. Raises: UsageError: no value can become a struct of its fields."""
    import pyarrow as pa

    if not len(fields):
        raise UsageError("the schema `values` needs one field or more")
    twice = _repeated(fields.names)
    if twice:
        raise UsageError(f"the fields of `values` need different names, got twice: {twice}")
    for field in fields:
        try:
            pa.array([], pa.struct([field]))
        except pa.ArrowException:
            raise UsageError(
                f"the field {field.name!r} of `values` has the type {field.type}, which pyarrow "
                "cannot make of Python values"
            ) from None
    return fields


def _structured(batch: pa.RecordBatch, fields: pa.Schema) -> pa.RecordBatch:
    """Return a batch whose values, given as cells, are structs. Raises: Misfit."""
    import pyarrow as pa

    schema = _structured_schema(batch.schema, fields)
    at = schema.get_field_index("value")
    if at < 0:
        return batch
    values = [to_python(parse(cell, ValueFormat.CELL)) for cell in batch.column(at).to_pylist()]
    made = struct_array(values, schema.field(at).type)
    return pa.RecordBatch.from_arrays(
        [made if one == at else column for one, column in enumerate(batch.columns)], schema=schema
    )


def _structured_schema(schema: pa.Schema, fields: pa.Schema) -> pa.Schema:
    import pyarrow as pa

    at = schema.get_field_index("value")
    return schema if at < 0 else schema.set(at, pa.field("value", pa.struct(list(fields))))


def _not_bytes(what: str, option: str = "value") -> TypeMismatch:
    return TypeMismatch(
        f"{what} is neither Blob nor String; {option}s='json', 'string' and 'cell' take every value"
    )


def _too_deep(what: str, error: UsageError) -> TypeMismatch:
    return TypeMismatch(f"{what}: {error}; 'cell' takes every value")


# --- databases and venues -------------------------------------------------------------------------


@table_of.register
def _database_table(
    handle: Database,
    *,
    prefix: str = "",
    start: str | None = None,
    stop: str | None = None,
    columns: Sequence[str] | None = None,
    values: str = "json",
) -> Table:
    names = _chosen(columns, _DATABASE_COLUMNS, _DATABASE_COLUMNS[2:])
    format = _format(values, "values")
    types = {"value": column_type(format), "updated": "TIMESTAMP", "expires": "TIMESTAMP"}
    owner = None if handle.owner is None else name_text(handle.owner)
    # `scan` takes its snapshot here, so that all rows show one state of the database.
    live = handle.scan(prefix, start=start, stop=stop)

    def rows() -> Iterator[Row]:
        for key, entry in live:
            columns: dict[str, object] = {
                "owner": owner,
                "database": handle.name,
                "key": key,
                "type": entry.type_name,
                "updated": micros(entry.utime),
                "expires": micros(entry.expire),
            }
            if "value" in names:
                try:
                    columns["value"] = to_column_value(shown_value(entry), format)
                except NotBytes:
                    raise _not_bytes(f"the value of key {key!r}") from None
                except UsageError as error:
                    raise _too_deep(f"the value of key {key!r}", error) from None
                except LimitExceeded as error:
                    raise LimitExceeded(f"the value of key {key!r}: {error}") from None
            yield [columns[name] for name in names]

    return _row_table({name: types.get(name, "STRING") for name in names}, rows)


@table_of.register
def _venue_table(
    handle: Venue,
    *,
    table: str = "assets",
    columns: Sequence[str] | None = None,
    values: str = "json",
    content_bytes_max: int = FIELD_BYTES_MAX,
) -> Table:
    # `meta` has the texts of all venues' assets, so it is not a table of one venue.
    tables = [one.value for one in GridTable if one is not GridTable.META]
    if table not in tables:
        raise UsageError(f"`table` is one of {', '.join(tables)}, got {table!r}")
    chosen, format = GridTable(table), _format(values, "values")
    known = GRID_COLUMNS[chosen]
    # Contents only on request: each may have 16 MiB.
    names = _chosen(columns, known, known[:-1] if chosen is GridTable.STORAGE else known)
    make = GridRows(chosen, names, format, content_bytes_max)
    entries = handle.entries(chosen.value)

    def rows() -> Iterator[Row]:
        for key, value in entries:
            try:
                row = make.row(handle.did, key, value)
            except NotBytes:
                raise _not_bytes(f"the record of the job {key.hex()}") from None
            if row is not None:  # malformed entries are skipped, as by Spark
                yield row

    return _row_table(grid_types(chosen, names, format), rows)


@table_of.register
def _store_table(
    handle: CellStore, *, columns: Sequence[str] | None = None, verify: bool = True
) -> Table:
    # References are computed from the encodings, so only on request.
    names = _chosen(columns, tuple(CELL_TYPES), tuple(CELL_TYPES)[:2])
    # Fixed here: "Cells committed after planning are left out" (docs/spark-formats.md, Cells).
    extent = extent_of(handle)

    def rows() -> Iterator[Row]:
        for partition in extent.partitions(1) if extent.segments else ():
            for hash, encoding in store_cells(handle, extent, partition, verify=verify):
                yield cell_row(hash, encoding, names)

    return _row_table({name: CELL_TYPES[name] for name in names}, rows)


def _row_table(types: Mapping[str, str], rows: Callable[[], Iterator[Row]]) -> Table:
    schema = _schema(types)
    return Table(schema, lambda _: row_batches(rows(), schema))


# --- columns --------------------------------------------------------------------------------------


def _chosen(columns: object, known: Sequence[str], default: Sequence[str]) -> tuple[str, ...]:
    if columns is None:
        return tuple(default)
    several = tuple(columns) if isinstance(columns, Iterable) else ()
    names = (columns,) if isinstance(columns, str) else several
    if not names or not all(name in known for name in names) or _repeated(names):
        raise UsageError(
            f"`columns` is one or more of {', '.join(known)}, each once, got {columns!r}"
        )
    return names


def _repeated(names: Sequence[str]) -> str:
    """Return the names that occur more than once, separated by commas."""
    return ", ".join(sorted(name for name, count in Counter(names).items() if count > 1))


def _format(given: object, name: str, more: str = "") -> ValueFormat:
    formats = [one.value for one in ValueFormat]
    if given not in formats:
        raise UsageError(f"`{name}` is one of {', '.join(formats)}{more}, got {given!r}")
    # Checked here, because the first row is read later.
    if given == ValueFormat.VARIANT.value and find_spec("pyspark") is None:
        raise UsageError(f"{name}='variant' needs pyspark: pip install 'datalattice[spark]'")
    return ValueFormat(given)


def _schema(types: Mapping[str, str]) -> pa.Schema:
    import pyarrow as pa

    variant = pa.struct([("value", pa.binary()), ("metadata", pa.binary())])
    kinds = {
        "STRING": pa.string(),
        "BINARY": pa.binary(),
        "BIGINT": pa.int64(),
        "TIMESTAMP": pa.timestamp("us", tz="UTC"),
        "MAP<STRING, STRING>": pa.map_(pa.string(), pa.string()),
        "VARIANT": variant,
        "ARRAY<BINARY>": pa.list_(pa.binary()),
    }
    return pa.schema([(name, kinds[kind]) for name, kind in types.items()])


# --- loading --------------------------------------------------------------------------------------


def loaded_rows(
    table: object, key: str | None, value: str | None, rows_max: int
) -> Iterator[tuple[list[object] | None, list[object]]]:
    """Yield the keys and values of up to `rows_max` rows at a time; keys are None without `key`.

    table: a pyarrow table, batch or reader, or another source of an Arrow stream, such as a data
           frame of pandas or Polars or a result of DuckDB.
    value: the column of values; None: each value is a dict of all columns.
    Raises: UsageError: `table` is of another type, lacks a named column, or has two columns of one
            name. TypeMismatch: an entry cannot be a value.
    """
    import pyarrow as pa

    if not hasattr(table, "__arrow_c_stream__"):
        raise UsageError(
            "`table` is a pyarrow table or reader, a data frame, a result of DuckDB "
            "(duckdb.read_csv for a file), or another source of an Arrow stream, got "
            f"{type(table).__name__}; a list goes to offer_many, a dict to update"
        )
    try:
        reader = pa.RecordBatchReader.from_stream(table)
    except pa.ArrowException as error:
        raise UsageError(f"`table` cannot be read as columns: {error}") from None
    unnamed = _unnamed_indexes(reader.schema)
    names = [name for name in reader.schema.names if name not in unnamed]
    if twice := _repeated(names):  # a Map would keep one of them
        raise UsageError(f"the columns need different names, got twice: {twice}")
    for name in (key, value):
        if name is not None and name not in names:
            raise UsageError(
                f"there is no column {name!r}; the table has: {', '.join(names) or 'none'}"
            )
    for batch in reader:
        if batch.num_rows and not names:
            raise UsageError(f"the table has {batch.num_rows} rows, but no columns")
        # The caller writes each group of rows in one edit, whose size is bounded.
        for first in range(0, batch.num_rows, rows_max):
            rows = batch.slice(first, rows_max)
            if value is None:
                columns = [plain_column(rows, name) for name in names]
                values: list[object] = [
                    dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)
                ]
            else:
                values = plain_column(rows, value)
            yield None if key is None else plain_column(rows, key), values


def _unnamed_indexes(schema: pa.Schema) -> set[str]:
    """Return the columns that pandas makes of the labels of rows, where the index has no name.

    A frame has them once rows are left out or sorted: they are no data of a row.
    """
    columns = (schema.pandas_metadata or {}).get("columns", ())
    fields = {one.get("field_name") for one in columns if one.get("name") is None}
    return {name for name in fields if str(name).startswith("__index_level_")}
