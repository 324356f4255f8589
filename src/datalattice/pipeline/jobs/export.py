"""Export the rows of a format into files of Parquet or a table of Delta Lake.

    export(spark, "lattice.queue", "flights.parquet", options={"store": "data/node"})
    export(spark, "lattice.kv", "tables/users", to="delta", options={"store": "data/node"})

Spark writes Parquet. A Delta table needs no jars: tasks write its Parquet files, and the driver
commits them as the table's next version with the package `deltalake`, all or none.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from datalattice.clock import SystemClock
from datalattice.crypto import SystemEntropy
from datalattice.errors import UsageError
from datalattice.pipeline.jobs.report import JobReport, with_count
from datalattice.pipeline.options import bad_option
from datalattice.pipeline.spark.progress import OnStep, watching_tasks

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, Row, SparkSession

_FORMATS: Final = ("parquet", "delta")
_MODES: Final = ("error", "append", "overwrite")

GROUP_BYTES_MAX: Final = 64 * 1024 * 1024
"""Size in memory at which a row group of a Delta table's file is written."""

_FILE_BYTES_MAX: Final = 512 * 1024 * 1024
"""Size of a file at which a task begins another one."""

_NAME_BYTES: Final = 8
_FILES: Final = "path STRING, size BIGINT, rows BIGINT, modified BIGINT"


@dataclass(frozen=True, slots=True)
class ExportReport(JobReport):
    """What an export wrote."""

    source: str
    """The format that was read."""
    target: str
    format: str
    rows: int


def export(
    spark: SparkSession,
    source: str,
    target: str,
    *,
    to: str = "parquet",
    options: Mapping[str, str] | None = None,
    mode: str = "error",
    progress: OnStep | None = None,
) -> ExportReport:
    """Write the rows of a format such as "lattice.queue" to `target`.

    to: parquet or delta. A Delta table is a folder that the driver and all tasks can reach.
    options: of the format that is read.
    mode: what to do with an existing target: error, append or overwrite.

    Raises: UsageError: an argument is malformed, the target exists, or Delta has no type for a
            column. Other errors of Spark and deltalake pass unchanged.
    """
    to, mode = _chosen("to", to, _FORMATS), _chosen("mode", mode, _MODES)
    # Checked before anything is read: an export may take hours.
    if mode == "error" and _is_there(target):
        raise UsageError(f"{target} exists; name another target, or the mode append or overwrite")
    frame = spark.read.format(source).options(**dict(options or {})).load()
    with watching_tasks(spark, "export", progress):
        if to == "delta":
            rows = write_delta(frame, target, mode)
        else:
            frame, count = with_count(frame)
            # Spark writes Parquet itself; its commit makes the files visible together.
            frame.write.mode(mode).parquet(target)
            rows = count()
    return ExportReport(source, target, to, rows)


def _chosen(name: str, given: str, accepted: tuple[str, ...]) -> str:
    if given.lower() not in accepted:
        raise bad_option(name, given, f"one of {', '.join(accepted)}")
    return given.lower()


def _is_there(target: str) -> bool:
    path = Path(target)
    # An empty folder has nothing that an export could overwrite.
    return path.exists() and not (path.is_dir() and not any(path.iterdir()))


# --- Delta ----------------------------------------------------------------------------------


def write_delta(frame: DataFrame, target: str, mode: str) -> int:
    """Write a frame as the next version of a Delta table; return the number of rows.

    Raises: UsageError: deltalake is not installed; the target is not a local folder, or exists and
            is not a table; its columns differ; or Delta has no type for a column.
    """
    deltalake = _deltalake()
    folder = _folder(target)
    schema = _delta_schema(deltalake, frame)
    is_table = deltalake.DeltaTable.is_deltatable(str(folder))
    # Delta would accept other columns in an append and show NULLs for the missing ones.
    if is_table and mode == "append":
        _check_columns(target, deltalake.DeltaTable(str(folder)).schema(), schema)
    elif not is_table and _is_there(target):
        raise UsageError(f"{target} exists and is not a Delta table")
    folder.mkdir(parents=True, exist_ok=True)
    # Names the files of this export, so that leftovers of others stay.
    name = SystemEntropy().bytes(_NAME_BYTES).hex()
    try:
        files = frame.mapInArrow(partial(_write_files, str(folder), name), _FILES).collect()
    except BaseException:  # also an interrupt: no table names these files
        _remove(folder, name, keep=set())
        raise
    # If the commit fails, the files stay: it may have reached the table.
    _commit(deltalake, folder, schema, [_action(deltalake, file) for file in files], mode)
    _remove(folder, name, keep={file.path for file in files})
    return sum(file.rows for file in files)


def _remove(folder: Path, name: str, *, keep: set[str]) -> None:
    """Remove files that the commit does not name, such as those of failed task attempts."""
    for path in folder.glob(f"part-{name}-*"):
        if path.name not in keep:
            path.unlink(missing_ok=True)
    with suppress(OSError):
        folder.rmdir()  # succeeds only if it is empty


def _action(deltalake: Any, file: Row) -> Any:
    return deltalake.transaction.AddAction(
        path=file.path,
        size=file.size,
        partition_values={},
        modification_time=file.modified,
        data_change=True,
        stats=json.dumps({"numRecords": file.rows}),
    )


def _deltalake() -> Any:
    try:
        import deltalake
        import deltalake.transaction
    except ImportError as error:
        raise UsageError(
            f"deltalake is not usable ({error}): pip install 'datalattice[delta]'"
        ) from error
    return deltalake


def _folder(target: str) -> Path:
    text = target.removeprefix("file://")
    # Tasks write files with Python, which has no access to object stores here.
    if "://" in text:
        raise bad_option("target", target, "the folder of a Delta table, which all tasks reach")
    return Path(text).expanduser().absolute()


def _delta_schema(deltalake: Any, frame: DataFrame) -> Any:
    for field in frame.schema.fields:
        if field.dataType.typeName() == "variant":
            raise UsageError(
                f"column {field.name} is a VARIANT, which deltalake does not write; "
                "read it in the format json"
            )
    return deltalake.Schema.from_json(frame.schema.json())


def _check_columns(target: str, there: Any, ours: Any) -> None:
    found, wanted = ({f.name: str(f.type) for f in schema.fields} for schema in (there, ours))
    if found != wanted:
        raise UsageError(
            f"{target} has the columns {', '.join(found)}, of other names or types than those to "
            f"append: {', '.join(wanted)}"
        )


def _commit(deltalake: Any, folder: Path, schema: Any, actions: list[Any], mode: str) -> None:
    # The first version of a table, and one that replaces all rows, also sets the columns.
    if deltalake.DeltaTable.is_deltatable(str(folder)) and mode == "append":
        table = deltalake.DeltaTable(str(folder))
        table.create_write_transaction(actions=actions, mode="append", schema=schema)
    else:
        deltalake.transaction.create_table_with_add_actions(
            table_uri=str(folder), schema=schema, add_actions=actions, mode=mode
        )


def _write_files(
    folder: str, name: str, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Write the rows of a task to files of a folder; yield a row for each file. Runs in tasks."""
    import pyarrow as pa

    files: list[dict[str, object]] = []
    file: _ExportFile | None = None
    for batch in batches:
        if batch.num_rows:
            file = file or _ExportFile(Path(folder), name, batch.schema)
            file.take(batch)
            # Readers divide a table by files.
            if file.size >= _FILE_BYTES_MAX:
                files.append(file.close())
                file = None
    if file is not None:
        files.append(file.close())
    yield from pa.Table.from_pylist(files).to_batches()


class _ExportFile:
    """A file that is being written; rows are buffered until they fill a row group."""

    def __init__(self, folder: Path, name: str, schema: pa.Schema) -> None:
        import pyarrow.parquet as pq

        own = SystemEntropy().bytes(_NAME_BYTES).hex()  # attempts of a task use different files
        self._path = folder / f"part-{name}-{own}.parquet"
        self._file = self._path.open("wb")
        self._writer = pq.ParquetWriter(self._file, schema, compression="zstd")
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        self._rows = 0

    @property
    def size(self) -> int:
        """Bytes written so far."""
        return self._file.tell()

    def take(self, batch: pa.RecordBatch) -> None:
        """Append rows."""
        self._waiting.append(batch)
        self._waiting_bytes += batch.nbytes
        self._rows += batch.num_rows
        # Readers load a row group at once; larger ones compress better.
        if self._waiting_bytes >= GROUP_BYTES_MAX:
            self._write()

    def _write(self) -> None:
        import pyarrow as pa

        if self._waiting:
            self._writer.write_table(pa.Table.from_batches(self._waiting))
        self._waiting, self._waiting_bytes = [], 0

    def close(self) -> dict[str, object]:
        """Finish the file; return its row for the driver."""
        self._write()
        self._writer.close()
        # After the writer has closed, which writes the footer.
        size = self._file.tell()
        self._file.close()
        now_ms = SystemClock().now_ms()
        return {"path": self._path.name, "size": size, "rows": self._rows, "modified": now_ms}
