"""Load files into a queue or a database, each row as a map of its columns.

    load(spark, ["flights.csv"], store="data/node", topic="flights", key="tailnum")
    load(spark, ["planes.parquet"], store="data/node", database="planes", key="tailnum")

Spark parses CSV and Parquet. `cells.from_json` parses JSON lines, so numbers keep all digits. The
sinks of `lattice.queue` and `lattice.kv` write all rows in one edit, or none.

Source: docs/spark-jobs.md "Load".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from datalattice.arrow import ValueFormat, row_batches, to_column_value
from datalattice.cells import (
    CellList,
    Map,
    MessageCells,
    Value,
    decode,
    decode_message,
    encode_message,
    from_json,
    may_refer,
    to_json,
)
from datalattice.errors import DataLatticeError, UsageError
from datalattice.pipeline.arrow_rows import MapPlan, column_values, maps_of
from datalattice.pipeline.columns import checked_texts
from datalattice.pipeline.jobs.report import JobReport, with_count
from datalattice.pipeline.options import bad_option
from datalattice.pipeline.spark.progress import OnStep, watching_tasks

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_FORMATS: Final = ("csv", "json", "parquet")
"""Formats of files; `json` has one value on each line."""

_SUFFIXES: Final = {
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".parquet": "parquet",
}
_PACKED: Final = (".gz", ".bz2", ".zst", ".lz4", ".snappy", ".deflate")

# A malformed line fails the load: loading part of a file would go unnoticed.
_CSV: Final = {"header": "true", "inferSchema": "true", "mode": "FAILFAST"}

_ROWS_MAX: Final = 1_024
"""Most rows converted at a time."""


@dataclass(frozen=True, slots=True)
class LoadReport(JobReport):
    """What a load wrote."""

    store: str
    target: str
    """`topic` or `database`, and its name."""
    rows: int
    """Rows read; a database keeps one of the rows with the same key."""


def load(
    spark: SparkSession,
    paths: Sequence[str],
    *,
    store: str,
    topic: str | None = None,
    database: str | None = None,
    format: str | None = None,
    key: str | None = None,
    schema: str | None = None,
    options: Mapping[str, str] | None = None,
    partitions: int | None = None,
    drop_nulls: bool = False,
    write_id: str | None = None,
    progress: OnStep | None = None,
) -> LoadReport:
    """Write the rows of files to a topic or a database of the node in the folder `store`.

    paths: files or folders that tasks can open.
    format: csv, json or parquet; by default from the suffixes of the names.
    key: the column with the record's key, or with the key in the database.
    schema: the columns of CSV in Spark's DDL; by default inferred by reading the file once more.
    options: for Spark's reader, such as {"sep": ";"}; for JSON `lineSep` and the options that
        select files.
    partitions: number of partitions of a new topic.
    drop_nulls: leave NULLs out of the map; otherwise they become nil.
    write_id: a load with a name happens once, however often it is started.

    Raises: UsageError: an argument is malformed, a row is not a map or has no key, or a column has
            no counterpart among values. Spark's errors about files pass unchanged.
    """
    check_load_target(topic, database, key, partitions)
    # Options that are not given keep the sink's defaults.
    chosen = {
        "topic": topic,
        "database": database,
        "writeId": write_id,
        "numPartitions": None if partitions is None else str(partitions),
    }
    sink = {"store": store} | {name: one for name, one in chosen.items() if one}
    format = checked_format(paths, format)
    # JSON lines come as text: with our own parser "integers keep all digits" (docs, Load).
    frame = _read(spark, paths, format, schema, dict(options or {}))
    plan = _plan(frame, format, key, drop_nulls=drop_nulls, text_key=database is not None)
    # Rows for a topic need no conversion first: the sink makes maps of columns (`rows=map`).
    if database is None and not plan.is_text:
        sink |= {"rows": "map", "dropNulls": str(drop_nulls)}
        sink |= {} if key is None else {"keyColumn": key}
    else:
        columns = "value BINARY"
        sink |= {"valueFormat": "cell"}
        if key is not None:
            columns += ", key STRING" if plan.text_key else ", key BINARY"
            sink |= {} if plan.text_key else {"keyFormat": "cell"}
        frame = frame.mapInArrow(partial(made_rows, plan), columns)
    rows, count = with_count(frame)
    writer = rows.write.format("lattice.queue" if database is None else "lattice.kv")
    with watching_tasks(spark, "load", progress):
        writer.options(**sink).mode("append").save()
    target = f"topic {topic}" if database is None else f"database {database}"
    return LoadReport(store, target, count())


def check_load_target(
    topic: str | None, database: str | None, key: str | None, partitions: int | None
) -> None:
    """Check where rows are loaded to. Raises: UsageError: arguments contradict each other."""
    if (topic is None) == (database is None):
        raise UsageError("give either a topic or a database to load into")
    if database is not None and key is None:
        raise UsageError("key is missing: a database needs the column that names each row")
    # An option without effect is an error.
    if database is not None and partitions is not None:
        raise UsageError("partitions are for a topic; a database has none")


def checked_format(paths: Sequence[str], format: str | None) -> str:
    """Return the format of the files: the given one, else the one of their suffixes.

    Raises: UsageError: there is no path, or the format is unknown or not clear from the names.
    """
    if not paths:
        raise UsageError("paths is empty: name at least one file")
    if format is not None:
        if format.lower() not in _FORMATS:
            raise bad_option("format", format, f"one of {', '.join(_FORMATS)}")
        return format.lower()
    found = {_format_of(path) for path in paths}
    # One reader reads all files; guessing would parse some of them wrongly.
    if len(found) > 1 or None in found:
        raise UsageError(
            f"the format is not clear from the names of the files: give the format, one of "
            f"{', '.join(_FORMATS)}"
        )
    return str(found.pop())


def _format_of(path: str) -> str | None:
    name = Path(path.lower())
    # Spark decompresses these files itself, so the suffix before it names the format.
    suffix = Path(name.stem).suffix if name.suffix in _PACKED else name.suffix
    return _SUFFIXES.get(suffix)


def _read(
    spark: SparkSession,
    paths: Sequence[str],
    format: str,
    schema: str | None,
    options: dict[str, str],
) -> DataFrame:
    reader = spark.read
    if schema is not None:
        if format != "csv":
            raise UsageError(f"schema is for csv; {format} has its own types")
        reader = reader.schema(schema)
    if format == "json":
        return reader.options(**options).format("text").load(list(paths))
    if format == "csv":
        given = {name.lower() for name in options}
        # Spark's options are case-insensitive: `Header` replaces the default of `header`.
        defaults = {name: value for name, value in _CSV.items() if name.lower() not in given}
        if schema is not None:
            # Inferring reads the files once more, for a schema that is given.
            defaults.pop("inferSchema", None)
        options = defaults | options
    return reader.options(**options).format(format).load(list(paths))


# --- rows to values, in tasks ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """How rows become values. Plain data: every task gets a copy."""

    is_text: bool
    """Whether the only column contains lines of JSON."""
    key: str | None
    text_key: bool
    """Whether keys become texts; otherwise values."""
    variants: tuple[str, ...]
    """Columns that hold variants."""
    drop_nulls: bool


def _plan(
    frame: DataFrame, format: str, key: str | None, *, drop_nulls: bool, text_key: bool
) -> LoadPlan:
    types = {field.name: field.dataType.simpleString() for field in frame.schema.fields}
    if format == "json":
        return LoadPlan(True, key, text_key, (), drop_nulls)
    if key is not None and key not in types:
        raise bad_option("key", key, f"the files have the columns {', '.join(types)}")
    # A map has each key once: one of the two columns would be lost.
    if len(types) < len(frame.columns):
        raise UsageError("two columns have the same name; give them others with a schema")
    variants = tuple(name for name, kind in types.items() if kind == "variant")
    return LoadPlan(False, key, text_key, variants, drop_nulls)


def made_rows(plan: LoadPlan, read_batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield rows of value and key for the sinks, from rows of files.

    Raises: UsageError: a row is not a map, or its key is missing or unsuitable.
    """
    import pyarrow as pa

    fields = [("value", pa.binary())]
    if plan.key is not None:
        fields.append(("key", pa.string() if plan.text_key else pa.binary()))
    rows = (row[: len(fields)] for row in _rows(plan, read_batches))
    yield from row_batches(rows, pa.schema(fields))


def _rows(plan: LoadPlan, read_batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[bytes, object]]:
    """Yield the map of each row as a message, with its key."""
    make = _lines if plan.is_text else _maps
    for batch in read_batches:
        for first in range(0, batch.num_rows, _ROWS_MAX):
            yield from make(plan, batch.slice(first, _ROWS_MAX))


def _maps(plan: LoadPlan, rows: pa.RecordBatch) -> Iterator[tuple[bytes, object]]:
    maps = MapPlan(plan.key, plan.variants, plan.drop_nulls)
    cells: CellList = []
    values = maps_of(checked_texts(rows), maps, cells)
    if cells:
        # A sink takes complete values: the cells below travel with each row.
        values = _messages(values, cells)
    keys = [None] * len(values) if plan.key is None else column_values(rows, plan.key, maps)
    for value, key in zip(values, keys, strict=True):
        yield value, None if plan.key is None else _key(plan, key, value)


def _messages(values: list[bytes], cells: CellList) -> list[bytes]:
    """Return encodings as messages, with the cells below them."""
    below = MessageCells(None)
    below.add([encoding for _, encoding in cells])
    return [encode_message(decode(value, below)) if may_refer(value) else value for value in values]


def _lines(plan: LoadPlan, rows: pa.RecordBatch) -> Iterator[tuple[bytes, object]]:
    for row in rows.to_pylist():
        made = _line(row)
        # An empty line, as at the end of a file, gives no row.
        if made is None:
            continue
        if plan.drop_nulls:
            # Only the columns themselves: a nil inside a value is data.
            made = Map.of({name: item for name, item in made.entries() if item is not None})
        value = encode_message(made)
        yield value, None if plan.key is None else _key(plan, made.get(plan.key), value)


def _line(row: dict[str, Any]) -> Map | None:
    """Return the map in a line of JSON; None for an empty line."""
    line = row["value"]
    if not line.strip():
        return None
    try:
        made = from_json(line)
    except DataLatticeError as error:
        raise UsageError(f"a line is not JSON: {error}, in {line[:200]!r}") from None
    # A row is a map of columns, and only an object has columns.
    if not isinstance(made, Map):
        raise UsageError(f"a line of JSON is an object, got {line[:200]!r}")
    return made


def _key(plan: LoadPlan, found: Value, row: bytes) -> object:
    if not plan.text_key:
        return None if found is None else encode_message(found)
    # A database entry without a key could not be read or replaced.
    if found is None:
        shown = to_json(decode_message(row))[:200]
        raise UsageError(f"a row has no value in the key column {plan.key!r}: {shown}")
    return to_column_value(found, ValueFormat.STRING)
