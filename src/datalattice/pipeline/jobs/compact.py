"""Compact a topic: copy the latest record of each key into another topic or a database.

    compact(spark, store="data/node", topic="orders", into_topic="orders-latest")
    compact(spark, store="data/node", topic="orders", into_database="orders")

Within a partition the record with the greatest offset is the latest. A key may be in several
partitions, because their number may have changed: then the record with the latest time is the
latest. If the times are equal, it is the record of the greatest partition. A record with value nil
deletes its key. Keys are equal if their encodings are equal.

Source: docs/spark-jobs.md "Compact".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Final

from datalattice.apps.queue import PARTITIONS_MAX, Topics
from datalattice.client import Folder, open_store_reader, read_key
from datalattice.crypto import KeyPair
from datalattice.cursors import RootLattice
from datalattice.errors import UsageError
from datalattice.lattice import MergeContext, root_lattice
from datalattice.pipeline.jobs.report import JobReport
from datalattice.pipeline.options import bad_option, hash_of, owner_name
from datalattice.pipeline.queue.options import parse_options
from datalattice.pipeline.queue.view import read_view
from datalattice.pipeline.read_targets import open_target
from datalattice.pipeline.spark.progress import OnStep, watching_tasks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Keyless(Enum):
    """What happens to records without a key."""

    DROP = "drop"
    KEEP = "keep"


_ORDER: Final = ("partition", "offset")
_RECORD: Final = ("offset", "timestamp", "value", "headers")


@dataclass(frozen=True, slots=True)
class CompactReport(JobReport):
    """What a compaction read and wrote."""

    store: str
    source: str
    target: str
    """`topic` or `database`, and its name."""
    keys: int
    """Keys with a value: the number of records or entries written."""
    deleted: int
    """Keys whose latest record deletes them."""
    keyless: int
    """Kept records without a key."""


def compact(
    spark: SparkSession,
    *,
    store: str,
    topic: str,
    into_topic: str | None = None,
    into_database: str | None = None,
    source: str | None = None,
    node: str | None = None,
    as_of: str | None = None,
    owner: str | None = None,
    keyless: Keyless | str = Keyless.DROP,
    write_id: str | None = None,
    progress: OnStep | None = None,
) -> CompactReport:
    """Write the latest record of each key of `topic`.

    store: the folder of the node that writes, and reads if neither `source` nor `node` is given.
    source, node, as_of: what to read: a folder, the address of a node, a past root.
    owner: owner of the topic; by default the node that writes.
    into_topic: records keep key, value, time, partition and, as texts, headers, ordered by
        partition and offset. Without a `write_id` the topic must not have records.
    into_database: keys are the texts of the records' keys. Keys deleted in the topic are deleted
        there as well; other keys of the database stay.
    keyless: drop records without a key, or keep them (in a topic only).
    write_id: a compaction with a name happens once, however often it is started.

    Cost:   reads every record once, and one or two shuffles; the latest records are kept on the
            executors' disks meanwhile.
    Raises: UsageError: an argument is malformed, the topic does not exist, the target topic is not
            empty, or a partition's id is not a number.
    """
    from pyspark import StorageLevel

    keyless = _keyless(keyless)
    if (into_topic is None) == (into_database is None):
        raise UsageError("give either a topic or a database to compact into")
    # An entry of a database is found by its key only.
    if keyless is Keyless.KEEP and into_database is not None:
        raise bad_option("keyless", "keep", "a database cannot hold records without a key")
    folder = Folder(Path(store))
    key_pair = read_key(folder.key_path)
    # "`owner` defaults to the folder's own key" (docs/spark-jobs.md, Compact).
    owner = owner_name(owner or key_pair.public_key.hex())
    # Without a name a second start would append everything again.
    if into_topic is not None and write_id is None and _has_records(folder, key_pair, into_topic):
        raise bad_option("into_topic", into_topic, "it has records; name a new topic")
    asked = {"store": (source or store) if node is None else None, "node": node, "asOf": as_of}
    source_options = {name: value for name, value in asked.items() if value is not None}
    count = None if into_topic is None else partition_count(source_options, owner, topic)
    reader = spark.read.format("lattice.queue").options(
        topic=topic, owner=owner, includeHeaders="true", valueFormat="cell", **source_options
    )
    reader = reader.option("keyFormat", "cell" if into_database is None else "string")
    # Persisted, because the counts and the write both read it, and only one shuffle is needed.
    latest = latest_records(reader.load(), keyless).persist(StorageLevel.DISK_ONLY)
    try:
        with watching_tasks(spark, "latest records", progress):
            keys, deleted, kept = _counts(latest)
        with watching_tasks(spark, "write", progress):
            _write(latest, store, into_topic, into_database, write_id, count)
    finally:
        latest.unpersist()
    target = f"database {into_database}" if into_topic is None else f"topic {into_topic}"
    return CompactReport(store, f"topic {topic} of {owner}", target, keys, deleted, kept)


def _keyless(given: Keyless | str) -> Keyless:
    try:
        return Keyless(given)
    except ValueError:
        raise bad_option("keyless", given, "drop or keep") from None


def _has_records(folder: Folder, key_pair: KeyPair, topic: str) -> bool:
    if not folder.store_path.exists():
        return False
    with open_store_reader(folder) as reader:
        root = RootLattice(root_lattice(), reader.root(), MergeContext(key_pair=key_pair))
        found = Topics.at(root, key_pair.public_key).topic(topic)
        return any(found.partition(name).end_offset() for name in found.partitions())


def partition_count(source_options: Mapping[str, str], owner: str, topic: str) -> int | None:
    """Return the number of partitions of a topic, or None for a topic without numbered partitions.

    A topic that never set the number counts as having one more than its greatest partition id.

    source_options: the options of `lattice.queue` that name the store or the node.
    Raises: as `lattice.queue` for these options. UsageError: no such owner or topic.
    """
    options = parse_options({**source_options, "owner": owner, "topic": topic})

    def counted(hash: bytes | None) -> int | None:
        root = None if hash is None else source.load(hash)
        cursor = RootLattice(root_lattice(), root, MergeContext())
        # "Its keys are spread over as many partitions", so producers can continue with the target.
        number = Topics.at(cursor, hash_of(owner) or owner).topic(topic).num_partitions
        if number:
            return number
        view = read_view(root, options, must_exist=True)
        ids = [int(name.partition) for name in view if name.partition.isdecimal()]
        return max(ids) + 1 if ids and max(ids) < PARTITIONS_MAX else None

    source = open_target(options.target)
    return source.settled(counted)


def latest_records(records: DataFrame, keyless: Keyless) -> DataFrame:
    """Return the latest record of each key, deletions included, of records of `lattice.queue`.

    records: of one topic of one owner, with headers. Records without a key: all, or none.
    """
    from pyspark.sql import functions as F  # noqa: N812 - its usual name in Spark

    # An entry that is not a record has NULL in every column.
    is_record = F.coalesce(
        F.col("timestamp").cast("string"), F.hex("key"), F.hex("value")
    ).isNotNull()
    # "An entry that is not a record gives a row with NULL" (docs/spark.md, Columns): it has no key.
    present = records.where(is_record)
    # Records without a key have no latest one among them.
    keyed = present.where("key IS NOT NULL")
    record = F.struct(*_RECORD)
    by_partition = keyed.groupBy("partition", "key").agg(F.max_by(record, "offset").alias("record"))
    # "if the times are equal, it is the record of the greatest partition" (docs/spark-jobs.md,
    # Compact): a struct compares by time first, then by partition.
    later = F.struct(F.col("record.timestamp"), F.col("partition"))
    by_key = by_partition.groupBy("key").agg(
        F.max_by(F.struct("partition", "record"), later).alias("last")
    )
    latest = by_key.select("key", "last.partition", "last.record.*")
    if keyless is Keyless.DROP:
        return latest
    return latest.unionByName(present.where("key IS NULL").select(latest.columns))


def _counts(latest: DataFrame) -> tuple[int, int, int]:
    from pyspark.sql import functions as F  # noqa: N812 - its usual name in Spark

    counts = latest.agg(
        F.count_if(F.expr("key IS NOT NULL AND value IS NOT NULL")),
        F.count_if(F.expr("key IS NOT NULL AND value IS NULL")),
        F.count_if(F.expr("key IS NULL AND value IS NOT NULL")),
    ).collect()[0]
    return counts[0], counts[1], counts[2]


def _write(
    latest: DataFrame,
    store: str,
    topic: str | None,
    database: str | None,
    write_id: str | None,
    partition_count: int | None,
) -> None:
    if topic is not None:
        # A record with value nil deletes its key: a new topic need not have it.
        rows = latest.where("value IS NOT NULL").orderBy(*_ORDER)
        writer = rows.drop("offset").write.format("lattice.queue").option("topic", topic)
        writer = writer.option("keyFormat", "cell")
        if partition_count is not None:
            writer = writer.option("numPartitions", str(partition_count))
    else:
        # A NULL value deletes the key there, too (docs/spark-kv.md, Writing).
        writer = latest.select("key", "value").write.format("lattice.kv")
        writer = writer.option("database", str(database))
    if write_id is not None:
        writer = writer.option("writeId", write_id)
    writer.option("store", store).option("valueFormat", "cell").mode("append").save()
