"""Functions that read lattice data as DataFrames, for notebooks and scripts.

    from datalattice.pipeline.reading import read_queue

    delays = read_queue(spark, "data/node", topic="flights", value_format="variant")

Each function registers the formats if necessary and sets the options of one of them. An omitted
argument means the format's own default (see `datalattice.pipeline.queue.source` and so on).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final, Literal
from weakref import WeakSet

from datalattice.errors import UsageError
from datalattice.pipeline.formats import register

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Where = str | os.PathLike[str]
"""The folder of a store or of a node."""

Names = str | Sequence[str]
"""One name or several."""

Offsets = str | Mapping[str, object]
"""`earliest`, `latest`, or offsets by partition: `{"0": 5}`, `{"topic": {"0": 5}}`."""

ValueFormatName = Literal["cell", "bytes", "string", "json", "variant"]
RecordFormatName = Literal["cell", "string", "json", "variant"]
PartitionFormatName = Literal["long", "string"]
TableName = Literal["assets", "jobs", "meta", "storage"]

_registered: Final[WeakSet[SparkSession]] = WeakSet()
"""Sessions in which the formats are registered."""


def read_queue(
    spark: SparkSession,
    store: Where | None = None,
    *,
    topic: Names | None = None,
    owner: Names | None = None,
    node: str | None = None,
    node_key: Where | None = None,
    as_of: str | datetime | None = None,
    lease_seconds: int | None = None,
    columns: Names | None = None,
    include_headers: bool | None = None,
    value_format: ValueFormatName | None = None,
    key_format: ValueFormatName | None = None,
    partition_format: PartitionFormatName | None = None,
    starting_offsets: Offsets | None = None,
    starting_timestamp: datetime | int | None = None,
    ending_offsets: Offsets | None = None,
    max_offsets_per_trigger: int | None = None,
    min_partitions: int | None = None,
    fail_on_data_loss: bool | None = None,
    verify: bool | None = None,
    stream: bool = False,
) -> DataFrame:
    """Return records of queues: owner, topic, partition, offset, timestamp, key, value.

        flights = read_queue(spark, "data/node", topic="flights", value_format="json")
        flights.groupBy("topic").count().show()

        live = read_queue(spark, node="tcp://site-1:18888", topic="flights", stream=True)
        live.writeStream.format("console").start()

    store is the folder of a store or of a node; node is the address of a running node instead.
    as_of, for batches only, is a time, a pin or the hash of a root.

    Units:  starting_timestamp: a datetime, or Unix milliseconds. lease_seconds: seconds.
    Raises: UsageError: an option is missing or malformed, or two options contradict each other.
    """
    return _frame(
        spark,
        "lattice.queue",
        stream=stream,
        store=store,
        topic=topic,
        owner=owner,
        node=node,
        node_key=node_key,
        as_of=as_of,
        lease_seconds=lease_seconds,
        columns=columns,
        include_headers=include_headers,
        value_format=value_format,
        key_format=key_format,
        partition_format=partition_format,
        starting_offsets=starting_offsets,
        starting_timestamp=_milliseconds(starting_timestamp),
        ending_offsets=ending_offsets,
        max_offsets_per_trigger=max_offsets_per_trigger,
        min_partitions=min_partitions,
        fail_on_data_loss=fail_on_data_loss,
        verify=verify,
    )


def read_kv(
    spark: SparkSession,
    store: Where | None = None,
    *,
    database: Names | None = None,
    owner: Names | None = None,
    node: str | None = None,
    node_key: Where | None = None,
    as_of: str | datetime | None = None,
    lease_seconds: int | None = None,
    prefix: str | None = None,
    columns: Names | None = None,
    value_format: ValueFormatName | None = None,
    starting_offsets: str | None = None,
    min_partitions: int | None = None,
    fail_on_data_loss: bool | None = None,
    stream: bool = False,
) -> DataFrame:
    """Return keys of databases: owner, database, key, type, value, updated, expires.

        settings = read_kv(spark, "data/node", database="settings", value_format="json")
        yesterday = read_kv(spark, "data/node", database="settings", as_of="@1d")
        changes = read_kv(spark, "data/node", database="settings", stream=True)

    A stream returns the keys that were written or deleted since the previous batch.

    starting_offsets is `earliest`, `latest` (streams only) or the hash of a root. Other arguments
    are those of `read_queue`.

    Raises: UsageError: an option is missing or malformed, or two options contradict each other.
    """
    return _frame(
        spark,
        "lattice.kv",
        stream=stream,
        store=store,
        database=database,
        owner=owner,
        node=node,
        node_key=node_key,
        as_of=as_of,
        lease_seconds=lease_seconds,
        prefix=prefix,
        columns=columns,
        value_format=value_format,
        starting_offsets=starting_offsets,
        min_partitions=min_partitions,
        fail_on_data_loss=fail_on_data_loss,
    )


def read_grid(
    spark: SparkSession,
    store: Where | None = None,
    *,
    table: TableName,
    venue: Names | None = None,
    node: str | None = None,
    node_key: Where | None = None,
    as_of: str | datetime | None = None,
    lease_seconds: int | None = None,
    columns: Names | None = None,
    value_format: RecordFormatName | None = None,
    include_content: bool | None = None,
    include_hidden: bool | None = None,
    max_content_bytes: int | str | None = None,
    starting_offsets: str | None = None,
    fail_on_data_loss: bool | None = None,
    stream: bool = False,
) -> DataFrame:
    """Return a table of the grid's venues: assets, jobs, meta or storage.

        jobs = read_grid(spark, "data/node", table="jobs", value_format="variant")
        jobs.where("status = 'FAILED'").show()
        changes = read_grid(spark, "data/node", table="jobs", stream=True)

    Only jobs can be streamed: each batch returns the records added or changed since the previous
    one.

    venue takes DIDs; max_content_bytes a number or a text such as `64m`. starting_offsets and
    fail_on_data_loss are for streams. Other arguments are those of `read_queue`.

    Raises: UsageError: an option is missing or malformed, or two options contradict each other.
    """
    return _frame(
        spark,
        "lattice.grid",
        stream=stream,
        store=store,
        table=table,
        venue=venue,
        node=node,
        node_key=node_key,
        as_of=as_of,
        lease_seconds=lease_seconds,
        columns=columns,
        value_format=value_format,
        include_content=include_content,
        include_hidden=include_hidden,
        max_content_bytes=max_content_bytes,
        starting_offsets=starting_offsets,
        fail_on_data_loss=fail_on_data_loss,
    )


def read_files(
    spark: SparkSession,
    store: Where | None = None,
    *,
    drive: Names | None = None,
    owner: Names | None = None,
    node: str | None = None,
    node_key: Where | None = None,
    as_of: str | datetime | None = None,
    lease_seconds: int | None = None,
    glob: str | None = None,
    columns: Names | None = None,
    include_content: bool | None = None,
    max_content_bytes: int | str | None = None,
    chunk_bytes: int | str | None = None,
) -> DataFrame:
    """Return the files of drives: path, size, modified, and on demand the content.

        files = read_files(spark, "data/node", drive="docs", glob="/reports/**/*.csv")
        small = read_files(spark, "data/node", drive="docs", include_content=True)
        parts = read_files(spark, "data/node", drive="video", chunk_bytes="4m")

    glob is a path with `*`, `?`, `[abc]` and `**`. max_content_bytes and chunk_bytes are numbers or
    texts such as `64m`. Other arguments are those of `read_queue`.

    Raises: UsageError: an option is missing or malformed, or two options contradict each other.
    """
    return _frame(
        spark,
        "lattice.files",
        stream=False,
        store=store,
        drive=drive,
        owner=owner,
        node=node,
        node_key=node_key,
        as_of=as_of,
        lease_seconds=lease_seconds,
        glob=glob,
        columns=columns,
        include_content=include_content,
        max_content_bytes=max_content_bytes,
        chunk_bytes=chunk_bytes,
    )


def read_cells(
    spark: SparkSession,
    store: Where,
    *,
    columns: Names | None = None,
    verify: bool | None = None,
    min_partitions: int | None = None,
) -> DataFrame:
    """Return every cell of a store: hash, encoding, refs.

        cells = read_cells(spark, "data/node")
        cells.selectExpr("count(*)", "sum(length(encoding))").show()

    store is the folder of a store or of a node; a running node cannot list its cells.

    Raises: UsageError: an option is malformed.
    """
    return _frame(
        spark,
        "lattice.cells",
        stream=False,
        store=store,
        columns=columns,
        verify=verify,
        min_partitions=min_partitions,
    )


def _frame(spark: SparkSession, format: str, *, stream: bool, **options: object) -> DataFrame:
    if spark not in _registered:
        register(spark)
        _registered.add(spark)
    given = {
        _camel(name): text_of(name, value) for name, value in options.items() if value is not None
    }
    if stream:
        return spark.readStream.format(format).options(**given).load()
    return spark.read.format(format).options(**given).load()


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.title() for part in rest)


def text_of(name: str, value: object) -> str:
    """Return an option's value as Spark's text.

    Raises: UsageError: the value's type cannot be an option.
    """
    if isinstance(value, bool):  # before int: a bool is an int in Python
        return str(value).lower()
    if isinstance(value, (str, int)):
        return str(value)
    if isinstance(value, os.PathLike):
        return str(os.fspath(value))
    if isinstance(value, datetime):
        return f"@{_milliseconds(value)}"
    if isinstance(value, Mapping):
        return json.dumps(value)
    if isinstance(value, Sequence) and all(isinstance(one, str) for one in value):
        return json.dumps(list(value))
    raise UsageError(f"{name} cannot be of the type {type(value).__name__}")


def _milliseconds(when: datetime | int | None) -> int | None:
    """Return a time as Unix milliseconds; a datetime without a zone is local time, as in Spark."""
    return int(when.timestamp() * 1_000) if isinstance(when, datetime) else when
