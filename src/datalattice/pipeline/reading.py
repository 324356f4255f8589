"""Functions that read lattice data as DataFrames, for notebooks and scripts.

    from datalattice.pipeline.reading import read_queue

    delays = read_queue(spark, "data/node", topic="flights", value_format="variant")

Each function registers the formats if necessary and sets the options of one format. The classes of
options (such as `pipeline.queue.options.QueueOptions`) describe the options with their defaults.

Source: docs/spark.md, docs/spark-kv.md, docs/spark-formats.md, docs/spark-weaver.md.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final, Literal, Required, TypedDict, Unpack
from weakref import WeakSet

from datalattice.errors import UsageError
from datalattice.pipeline.formats import register

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Where = str | os.PathLike[str]
"""The folder of a store or of a node."""

OneOrMoreNames = str | Sequence[str]
"""One name or several."""

OffsetsArgument = str | Mapping[str, object]
"""`earliest`, `latest`, or offsets by partition: `{"0": 5}`, `{"topic": {"0": 5}}`."""

ValueFormatName = Literal["cell", "bytes", "string", "json", "variant"]
RecordFormatName = Literal["cell", "string", "json", "variant"]
PartitionFormatName = Literal["long", "string"]
TableName = Literal["assets", "jobs", "meta", "storage"]
WeaverTableName = Literal["intentions", "state", "conflicts"]
KeyFormatName = Literal["string", "bytes"]

_registered: Final[WeakSet[SparkSession]] = WeakSet()  # weak, so that a stopped session is not kept
"""Sessions in which the formats are registered."""


class RootArguments(TypedDict, total=False):
    """Which node, and which root; `as_of` is for batches."""

    node: str
    node_key: Where
    as_of: str | datetime
    lease_seconds: int


class QueueArguments(RootArguments, total=False):
    """The options of `lattice.queue`, described by `QueueOptions`."""

    topic: OneOrMoreNames
    owner: OneOrMoreNames
    columns: OneOrMoreNames
    include_headers: bool
    value_format: ValueFormatName
    key_format: ValueFormatName
    partition_format: PartitionFormatName
    starting_offsets: OffsetsArgument
    starting_timestamp: datetime | int
    ending_offsets: OffsetsArgument
    max_offsets_per_trigger: int
    min_partitions: int
    fail_on_data_loss: bool
    verify: bool


class KVArguments(RootArguments, total=False):
    """The options of `lattice.kv`, described by `KVOptions`."""

    database: OneOrMoreNames
    owner: OneOrMoreNames
    prefix: str
    columns: OneOrMoreNames
    value_format: ValueFormatName
    starting_offsets: str
    min_partitions: int
    fail_on_data_loss: bool


class GridArguments(RootArguments, total=False):
    """The options of `lattice.grid`, described by `GridOptions`."""

    table: Required[TableName]
    venue: OneOrMoreNames
    columns: OneOrMoreNames
    value_format: RecordFormatName
    include_content: bool
    include_hidden: bool
    max_content_bytes: int | str
    starting_offsets: str
    fail_on_data_loss: bool


class FilesArguments(RootArguments, total=False):
    """The options of `lattice.files`, described by `FilesOptions`."""

    drive: OneOrMoreNames
    owner: OneOrMoreNames
    glob: str
    columns: OneOrMoreNames
    include_content: bool
    max_content_bytes: int | str
    chunk_bytes: int | str


class CellsArguments(TypedDict, total=False):
    """The options of `lattice.cells`, described by `ReadOptions`."""

    columns: OneOrMoreNames
    verify: bool
    min_partitions: int


class WeaverArguments(TypedDict, total=False):
    """The options of `lattice.weaver`, described by `WeaverOptions`."""

    name: Required[str]
    table: WeaverTableName
    columns: OneOrMoreNames
    key_format: KeyFormatName
    value_format: ValueFormatName
    starting_offsets: int | str
    ending_offsets: int | str
    max_offsets_per_trigger: int
    min_partitions: int
    fail_on_data_loss: bool
    verify: bool


def read_queue(
    spark: SparkSession,
    store: Where | None = None,
    *,
    stream: bool = False,
    **options: Unpack[QueueArguments],
) -> DataFrame:
    """Return records of queues: owner, topic, partition, offset, timestamp, key, value.

        flights = read_queue(spark, "data/node", topic="flights", value_format="json")
        flights.groupBy("topic").count().show()

        live = read_queue(spark, node="tcp://site-1:18888", topic="flights", stream=True)
        live.writeStream.format("console").start()

    store is the folder of a store or of a node; node is the address of a running node instead.
    Keyword arguments are the options of `lattice.queue` in Python's spelling.

    Units:  starting_timestamp: a datetime, or Unix milliseconds. lease_seconds: seconds.
    Raises: UsageError: an option is missing or malformed, or two options contradict each other.
    """
    when = options.get("starting_timestamp")
    if isinstance(when, datetime):
        options["starting_timestamp"] = _milliseconds(when)
    return _frame(spark, "lattice.queue", stream, store, options)


def read_kv(
    spark: SparkSession,
    store: Where | None = None,
    *,
    stream: bool = False,
    **options: Unpack[KVArguments],
) -> DataFrame:
    """Return keys of databases: owner, database, key, type, value, updated, expires.

        settings = read_kv(spark, "data/node", database="settings", value_format="json")
        yesterday = read_kv(spark, "data/node", database="settings", as_of="@1d")
        changes = read_kv(spark, "data/node", database="settings", stream=True)

    A stream returns the keys that were written or deleted since the previous batch. Keyword
    arguments are the options of `lattice.kv` in Python's spelling.

    Raises: UsageError: an option is missing or malformed, or two options contradict each other.
    """
    return _frame(spark, "lattice.kv", stream, store, options)


def read_grid(
    spark: SparkSession,
    store: Where | None = None,
    *,
    stream: bool = False,
    **options: Unpack[GridArguments],
) -> DataFrame:
    """Return a table of the grid's venues: assets, jobs, meta or storage.

        jobs = read_grid(spark, "data/node", table="jobs", value_format="variant")
        jobs.where("status = 'FAILED'").show()
        changes = read_grid(spark, "data/node", table="jobs", stream=True)

    Only jobs can be streamed: each batch returns the records added or changed since the previous
    one. Keyword arguments are the options of `lattice.grid` in Python's spelling.

    Raises: UsageError: an option is missing or malformed, or two options contradict each other.
    """
    return _frame(spark, "lattice.grid", stream, store, options)


def read_files(
    spark: SparkSession, store: Where | None = None, **options: Unpack[FilesArguments]
) -> DataFrame:
    """Return the files of drives: path, size, modified, and on demand the content.

        files = read_files(spark, "data/node", drive="docs", glob="/reports/**/*.csv")
        small = read_files(spark, "data/node", drive="docs", include_content=True)
        parts = read_files(spark, "data/node", drive="video", chunk_bytes="4m")

    glob is a path with `*`, `?`, `[abc]` and `**`. max_content_bytes and chunk_bytes are numbers or
    texts such as `64m`. Keyword arguments are the options of `lattice.files` in Python's spelling.

    Raises: UsageError: an option is missing or malformed, or two options contradict each other.
    """
    return _frame(spark, "lattice.files", False, store, options)


def read_cells(spark: SparkSession, store: Where, **options: Unpack[CellsArguments]) -> DataFrame:
    """Return every cell of a store: hash, encoding, refs.

        cells = read_cells(spark, "data/node")
        cells.selectExpr("count(*)", "sum(length(encoding))").show()

    store is the folder of a store or of a node; a running node cannot list its cells. Keyword
    arguments are the options of `lattice.cells` in Python's spelling.

    Raises: UsageError: an option is malformed.
    """
    return _frame(spark, "lattice.cells", False, store, options)


def read_weaver(
    spark: SparkSession, store: Where, *, stream: bool = False, **options: Unpack[WeaverArguments]
) -> DataFrame:
    """Return a table of a weaver store: intentions, state or conflicts.

        notes = read_weaver(spark, "data/node", name="notes", table="state")
        written = read_weaver(spark, "data/node", name="notes", stream=True)

    store is the folder of a node, name the weaver store. A stream of the state returns the keys
    written since the previous batch. Keyword arguments are the options of `lattice.weaver` in
    Python's spelling.

    Raises: UsageError: an option is missing or malformed, or there is no such store.
    """
    return _frame(spark, "lattice.weaver", stream, store, options)


def _frame(
    spark: SparkSession,
    format: str,
    stream: bool,
    store: Where | None,
    options: Mapping[str, object],
) -> DataFrame:
    # Done once for each session, because registering sends every class to Spark's planner.
    if spark not in _registered:
        register(spark)
        _registered.add(spark)
    named = {"store": store, **options}
    given = {  # options without a value are left to the format's default
        _camel(name): text_of(name, value) for name, value in named.items() if value is not None
    }
    reader = spark.readStream if stream else spark.read
    return reader.format(format).options(**given).load()


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.title() for part in rest)  # Spark's spelling: `valueFormat`


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
        # `@` and milliseconds, the form of `asOf` that needs no zone.
        return f"@{_milliseconds(value)}"
    if isinstance(value, Mapping):
        return json.dumps(value)
    if isinstance(value, Sequence) and all(isinstance(one, str) for one in value):
        # JSON, because names may contain commas.
        return json.dumps(list(value))
    raise UsageError(f"{name} cannot be of the type {type(value).__name__}")


def _milliseconds(when: datetime) -> int:
    """Return a time as Unix milliseconds; one without a zone is local time, as in Spark."""
    # `timestamp` takes a time without a zone as local time.
    return int(when.timestamp() * 1_000)
