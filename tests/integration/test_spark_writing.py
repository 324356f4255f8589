"""Spark writes queues: batches, streams over restarts, and commits that fail when all is done."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from datalattice.apps.queue import Topics
from datalattice.client import Folder, edit, reading, write_key
from datalattice.crypto import KeyPair
from datalattice.cursors import RootLattice
from datalattice.errors import UsageError
from datalattice.lattice import root_lattice
from datalattice.pipeline import clear_errors

pytest.importorskip("pyspark")
pytestmark = [pytest.mark.once, pytest.mark.spark, pytest.mark.timeout(120)]

KEYS = KeyPair(bytes(32))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return a node's folder."""
    write_key(tmp_path / "home" / "key", KEYS)
    return tmp_path / "home"


def offer(home: Path, topic: str, values: range) -> None:
    def change(cursor: RootLattice, keys: KeyPair) -> None:
        Topics.at(cursor, keys.public_key).partition(topic, 0).offer_many(values)

    edit(Folder(home), change)


def values(home: Path, topic: str, partition: int = 0) -> list[Any]:
    with reading(Folder(home)) as root:
        mine = Topics.at(RootLattice(root_lattice(), root), KEYS.public_key)
        return list(mine.partition(topic, partition))


def test_a_batch_is_appended_and_reads_back(spark: Any, home: Path) -> None:
    rows = spark.range(0, 1_000, 1, 3).selectExpr(
        "id AS value", "CAST(id % 2 AS INT) AS partition", "map('n', CAST(id AS STRING)) AS headers"
    )
    for _ in range(2):
        rows.write.format("lattice.queue").option("topic", "t").mode("append").save(str(home))
    for partition in range(2):
        assert values(home, "t", partition) == [*range(partition, 1_000, 2)] * 2
    found = spark.read.format("lattice.queue").option("valueFormat", "json").load(str(home))
    assert found.selectExpr("sum(CAST(value AS BIGINT))").collect()[0][0] == 999_000
    assert not list((home / "staging").iterdir())


def test_a_queue_read_and_written_is_the_same_queue(spark: Any, home: Path) -> None:
    offer(home, "t", range(100))
    read = spark.read.format("lattice.queue").option("includeHeaders", "true")
    rows = read.option("topic", "t").load(str(home))
    rows.write.format("lattice.queue").option("topic", "copy").mode("append").save(str(home))
    columns = ("partition", "offset", "timestamp", "key", "value", "headers")
    first, second = (
        read.option("topic", topic).load(str(home)).select(*columns).orderBy("offset").collect()
        for topic in ("t", "copy")
    )
    assert len(first) == 100
    assert first == second


@pytest.mark.parametrize(
    ("mode", "columns", "says"),
    [
        ("overwrite", ["id AS value"], "a queue only grows"),
        ("append", ["id AS value", "id AS colour"], "column colour is not one of a record"),
        ("append", ["nullif(id, 3) AS value"], "the column value is NULL in a row"),
    ],
)
def test_a_mistake_is_one_clear_line(
    spark: Any, home: Path, mode: str, columns: list[str], says: str
) -> None:
    rows = spark.range(5).selectExpr(*columns).write.format("lattice.queue")
    with pytest.raises(UsageError, match=says), clear_errors():
        rows.option("topic", "t").mode(mode).save(str(home))
    assert not (home / "store").exists()


class Copy:
    """A query that copies a topic; each `run` is a new start of it."""

    def __init__(self, spark: Any, home: Path, checkpoint: Path) -> None:
        self.spark = spark
        self.home = home
        self.checkpoint = checkpoint

    def run(self, format: str = "lattice.queue") -> None:
        query = (
            self.spark.readStream.format("lattice.queue")
            .option("topic", "t")
            .option("maxOffsetsPerTrigger", "40")
            .load(str(self.home))
            .writeStream.format(format)
            .option("topic", "copy")
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
            .start(str(self.home))
        )
        try:
            query.awaitTermination()
        finally:
            query.stop()


@pytest.fixture
def copy(spark: Any, home: Path, tmp_path: Path) -> Copy:
    offer(home, "t", range(100))
    return Copy(spark, home, tmp_path / "checkpoint")


def test_a_stream_goes_on_after_a_restart_and_a_new_checkpoint_begins_anew(
    copy: Copy, home: Path, tmp_path: Path
) -> None:
    copy.run()
    assert values(home, "copy") == [*range(100)]
    offer(home, "t", range(100, 130))
    copy.run()
    assert values(home, "copy") == [*range(130)]
    copy.checkpoint = tmp_path / "another"
    copy.run()
    assert values(home, "copy") == [*range(130)] * 2


@pytest.fixture
def failing(spark: Any) -> str:
    """Return the name of a format whose commits fail when all is written, while a file says so."""
    from datalattice.pipeline.queue.source import QueueSource

    class Failing(QueueSource):
        """The queue's format with a bad end."""

        @classmethod
        def name(cls) -> str:
            return "lattice.queue.failing"

        def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802 - Spark's
            writer = super().streamWriter(schema, overwrite)
            commit: Any = writer.commit
            flag = Path(self.options["path"]) / "fail"

            def fails(messages: Any, batch: int) -> None:
                commit(messages, batch)
                if batch == 1 and flag.exists():
                    raise RuntimeError("the end of a driver")

            setattr(writer, "commit", fails)  # noqa: B010 - mypy minds a plain one
            return writer

    spark.dataSource.register(Failing)
    return "lattice.queue.failing"


def test_a_batch_that_was_written_is_not_written_again(
    copy: Copy, home: Path, failing: str
) -> None:
    flag = home / "fail"
    flag.touch()
    with pytest.raises(Exception, match="the end of a driver"):
        copy.run(failing)
    assert values(home, "copy") == [*range(80)]
    flag.unlink()
    copy.run(failing)
    assert values(home, "copy") == [*range(100)]
    assert not list((home / "staging").iterdir())
