"""Spark reads and writes databases: in batches, as streams, over restarts, beside others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from datalattice.apps.kv import Database
from datalattice.client import Folder, edit, reading, write_key
from datalattice.crypto import KeyPair
from datalattice.cursors import RootLattice
from datalattice.errors import UsageError
from datalattice.lattice import root_lattice
from datalattice.pipeline import clear_errors

pytest.importorskip("pyspark")
pytestmark = [pytest.mark.once, pytest.mark.spark, pytest.mark.timeout(120)]

KEYS = KeyPair(bytes([1]) * 32)


class Home:
    """A node's folder without a node."""

    def __init__(self, path: Path) -> None:
        self.path = path
        write_key(path / "key", KEYS)

    def write(self, change: Callable[[Database], object], name: str = "shop") -> None:
        edit(Folder(self.path), lambda root, _: change(Database.at(root, KEYS.public_key, name)))

    def shown(self, name: str = "shop") -> dict[str, Any]:
        with reading(Folder(self.path)) as root:
            return dict(Database.at(RootLattice(root_lattice(), root), KEYS.public_key, name))


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def read(spark: Any, home: Home, **options: str) -> Any:
    frame = spark.read.format("lattice.kv").option("valueFormat", "string")
    return frame.options(**options).load(str(home.path))


def test_a_database_is_read_transformed_and_written_to_another_one(spark: Any, home: Home) -> None:
    home.write(lambda db: db.set_many({f"user/{i:03}": i for i in range(200)}))
    home.write(lambda db: db.set("admin", {"name": "Ada"}))
    frame = read(spark, home, prefix="user/", minPartitions="2")
    assert frame.count() == 200
    doubled = frame.selectExpr("key", "2 * cast(value AS BIGINT) AS value", "type", "expires")
    writer = doubled.repartition(3).write.format("lattice.kv").option("database", "double")
    writer.mode("append").save(str(home.path))
    assert home.shown("double") == {f"user/{i:03}": 2 * i for i in range(200)}
    assert len(home.shown()) == 201
    frame.limit(1).write.format("lattice.kv").mode("overwrite").option("database", "double").save(
        str(home.path)
    )
    assert home.shown("double") == {"user/000": "0"}


def test_variants_can_be_asked_for_their_parts(spark: Any, home: Home) -> None:
    home.write(lambda db: db.hset_many("user/1", {"name": "Ada", "age": 36}))
    frame = read(spark, home, valueFormat="variant")
    (row,) = frame.selectExpr("type", "variant_get(value, '$.age', 'int') AS age").collect()
    assert (row.type, row.age) == ("hash", 36)


def test_changes_flow_from_one_database_to_another_over_restarts(
    spark: Any, home: Home, tmp_path: Path
) -> None:
    def run() -> None:
        changes = spark.readStream.format("lattice.kv").option("database", "shop")
        query = (
            changes.load(str(home.path))
            .writeStream.format("lattice.kv")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .option("database", "mirror")
            .trigger(availableNow=True)
            .start(str(home.path))
        )
        try:
            query.awaitTermination()
        finally:
            query.stop()

    home.write(lambda db: db.set_many({"a": 1, "b": {"n": 2}, "c": 3}))
    run()
    assert home.shown("mirror") == home.shown()
    home.write(lambda db: db.set("b", "new"))
    home.write(lambda db: db.delete("a"))
    home.write(lambda db: db.set("own", 1), "mirror")
    run()
    assert home.shown("mirror") == {"b": "new", "c": 3, "own": 1}
    (mark,) = home.shown(".pipeline").values()
    assert mark == 1


def test_an_error_of_a_task_is_raised_as_what_it_is_and_nothing_is_written(
    spark: Any, home: Home
) -> None:
    rows = spark.createDataFrame([("a", "1"), (None, "2")], "key string, value string")
    writer = rows.write.format("lattice.kv").mode("append").option("database", "shop")
    with pytest.raises(UsageError, match="key is NULL"), clear_errors():
        writer.save(str(home.path))
    assert not (home.path / "store").exists() or home.shown() == {}
