"""Load, export and shipping, as far as they go without Spark: rows to values, files, settings."""

from __future__ import annotations

import datetime as dt
import decimal
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

import pyarrow as pa
import pyarrow.parquet as pq

from datalattice.apps.queue import Topics
from datalattice.arrow import batches as arrow_batches, value_maker
from datalattice.cells import decode_message, to_json
from datalattice.clock import Clock
from datalattice.cursors import RootLattice
from datalattice.errors import UsageError
from datalattice.pipeline.jobs import Keyless, compact, export, load
from datalattice.pipeline.jobs.compact import partition_count
from datalattice.pipeline.jobs.export import _write_files
from datalattice.pipeline.jobs.load import (
    LoadPlan,
    checked_format,
    made_rows,
)
from datalattice.pipeline.spark.session import package_settings, spark_session
from datalattice.testing.replicas import ALICE, BOB, SampleRoot

LINES = LoadPlan(is_text=True, key=None, text_key=False, variants=(), drop_nulls=False)


def rows_of(batches: Iterator[pa.RecordBatch]) -> list[dict[str, Any]]:
    rows = [row for batch in batches for row in batch.to_pylist()]
    for row in rows:
        row["value"] = json.loads(to_json(decode_message(row["value"])))
    return rows


def lines(*texts: str) -> list[pa.RecordBatch]:
    return [pa.record_batch({"value": pa.array(texts, pa.string())})]


# --- load -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("paths", "given", "expected"),
    [
        (["a.csv"], None, "csv"),
        (["A.CSV", "b.csv.gz"], None, "csv"),
        (["a.jsonl", "b.json", "c.ndjson.zst"], None, "json"),
        (["a.parquet"], None, "parquet"),
        (["a.snappy.parquet"], None, "parquet"),
        (["a.txt"], "JSON", "json"),
    ],
)
def test_the_format_is_given_or_what_the_names_end_with(
    paths: list[str], given: str | None, expected: str
) -> None:
    assert checked_format(paths, given) == expected


@pytest.mark.parametrize(
    ("paths", "given", "says"),
    [
        ([], None, "paths is empty"),
        (["a.txt"], None, "give the format, one of csv, json, parquet"),
        (["a.csv", "b.json"], None, "give the format"),
        (["folder"], None, "give the format"),
        (["a.csv"], "avro", "option format='avro' is not accepted: one of csv, json, parquet"),
    ],
)
def test_a_format_that_is_not_clear_is_said(paths: list[str], given: str | None, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        checked_format(paths, given)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({}, "give either a topic or a database"),
        ({"topic": "t", "database": "d"}, "give either a topic or a database"),
        ({"database": "d"}, "key is missing"),
        ({"database": "d", "key": "k", "partitions": 2}, "partitions are for a topic"),
    ],
)
def test_what_cannot_be_loaded_is_said_before_spark_is_asked(
    arguments: dict[str, Any], says: str
) -> None:
    nothing: Any = None
    with pytest.raises(UsageError, match=says):
        load(nothing, ["a.csv"], store="nowhere", **arguments)


def test_lines_become_maps_and_empty_ones_nothing() -> None:
    made = rows_of(made_rows(LINES, lines('{"a": 1}', "", '  {"b": [null]}', "   ")))
    assert made == [{"value": {"a": 1}}, {"value": {"b": [None]}}]
    assert list(made_rows(LINES, lines(""))) == []


@pytest.mark.parametrize(
    ("line", "says"),
    [("{", "a line is not JSON"), ("1", "is an object, got '1'"), ("null", "is an object")],
)
def test_a_line_that_is_not_an_object_is_said(line: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        list(made_rows(LINES, lines('{"a": 1}', line)))


def test_keys_are_values_for_topics_and_texts_for_databases() -> None:
    batches = lines('{"k": "x"}', '{"k": 7}', '{"k": [1]}')
    keyed = LoadPlan(True, "k", False, (), False)
    assert [decode_message(row["key"]) for row in rows_of(made_rows(keyed, batches))][:2] == [
        "x",
        7,
    ]
    named = LoadPlan(True, "k", True, (), False)
    assert [row["key"] for row in rows_of(made_rows(named, batches))] == ["x", "7", "[1]"]
    missing = lines('{"k": null}')
    assert rows_of(made_rows(keyed, missing)) == [{"value": {"k": None}, "key": None}]
    with pytest.raises(UsageError, match="a row has no value in the key column 'k'"):
        list(made_rows(named, missing))


def test_nulls_may_be_left_out() -> None:
    columns = pa.record_batch({"a": [1, None], "b": ["x", "y"]})
    for drop, expected in ((False, {"a": None, "b": "y"}), (True, {"b": "y"})):
        made = rows_of(made_rows(LoadPlan(False, None, False, (), drop), [columns]))
        assert [row["value"] for row in made] == [{"a": 1, "b": "x"}, expected]


def test_columns_become_what_values_are_made_of() -> None:
    day, time = dt.date(2013, 1, 2), dt.datetime(2013, 1, 2, 5, tzinfo=dt.UTC)
    kinds: list[tuple[pa.DataType, object, object]] = [
        (pa.int64(), 7, 7),
        (pa.string(), "x", "x"),
        (pa.binary(), b"x", b"x"),
        (pa.date32(), day, "2013-01-02"),
        (pa.timestamp("us", tz="UTC"), time, "2013-01-02T05:00:00+00:00"),
        (pa.decimal128(10, 0), decimal.Decimal(7), 7),
        (pa.decimal128(10, 2), decimal.Decimal("1.50"), 1.5),
        (pa.list_(pa.date32()), [day, None], ["2013-01-02", None]),
        (
            pa.map_(pa.string(), pa.date32()),
            [("a", day), ("b", None)],
            {"a": "2013-01-02", "b": None},
        ),
        (pa.struct([("d", pa.date32())]), {"d": day}, {"d": "2013-01-02"}),
    ]
    for kind, given, expected in kinds:
        assert value_maker(kind)(given) == expected


def test_a_column_that_no_value_can_hold_is_named() -> None:
    column = pa.record_batch({"took": pa.array([dt.timedelta(1)], pa.duration("us"))})
    with pytest.raises(UsageError, match="column took: "):
        list(made_rows(LoadPlan(False, None, False, (), False), [column]))


def test_batches_are_bounded_by_rows_and_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    most = arrow_batches.BATCH_RECORDS_MAX
    many = lines(*['{"a": 1}'] * (most + 1))
    assert [batch.num_rows for batch in made_rows(LINES, many)] == [most, 1]
    exact = lines(*['{"a": 1}'] * most)
    assert [batch.num_rows for batch in made_rows(LINES, exact)] == [most]
    monkeypatch.setattr(arrow_batches, "BATCH_BYTES_MAX", 1_000)
    large = lines(*[json.dumps({"a": "x" * 600})] * 5)
    assert [batch.num_rows for batch in made_rows(LINES, large)] == [2, 2, 1]


# --- compact and export ---------------------------------------------------------------------


def test_what_keyless_records_may_become() -> None:
    nothing: Any = None
    assert {member.value for member in Keyless} == {"drop", "keep"}
    with pytest.raises(UsageError, match="option keyless='some' is not accepted: drop or keep"):
        compact(nothing, store="nowhere", topic="t", into_topic="c", keyless="some")


def test_keys_are_spread_over_as_many_partitions_as_before(tmp_path: Path) -> None:
    replica = SampleRoot()

    def spread(cursor: RootLattice, clock: Clock) -> None:
        topics = Topics.at(cursor, ALICE.public_key, clock)
        topics.topic("keyed").set_num_partitions(4)
        topics.topic("keyed").offer(1, key="k")
        topics.partition("by hand", 0).offer(1)
        topics.partition("by hand", 6).offer(1)
        topics.partition("named", "x").offer(1)

    place = {"store": replica.write(ALICE, spread).save(tmp_path / "s")}
    owner = "0x" + ALICE.public_key.hex()
    counts = {"keyed": 4, "by hand": 7, "named": None}
    assert {name: partition_count(place, owner, name) for name in counts} == counts
    for who, name in ((owner, "other"), ("0x" + BOB.public_key.hex(), "keyed"), ("0xzz", "keyed")):
        with pytest.raises(UsageError, match=r"the store has no such (topic|owner)"):
            partition_count(place, who, name)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"to": "avro"}, "option to='avro' is not accepted: one of parquet, delta"),
        ({"mode": "ignore"}, "option mode='ignore' is not accepted: one of error, append"),
        ({}, "exists; name another target"),
    ],
)
def test_what_cannot_be_exported_is_said_before_spark_is_asked(
    tmp_path: Path, arguments: dict[str, Any], says: str
) -> None:
    (tmp_path / "file").write_text("")
    nothing: Any = None
    with pytest.raises(UsageError, match=says):
        export(nothing, "lattice.queue", str(tmp_path), **arguments)


def test_a_task_writes_files_of_bounded_groups_and_sizes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        for first in range(0, 100, 10):
            yield pa.record_batch({"n": pa.array(range(first, first + 10), pa.int64())})

    def written() -> list[dict[str, Any]]:
        made = _write_files(str(tmp_path), "x", batches())
        return [row for batch in made for row in batch.to_pylist()]

    (one,) = written()
    file = pq.ParquetFile(tmp_path / one["path"])
    assert (one["rows"], file.metadata.num_rows, file.metadata.num_row_groups) == (100, 100, 1)
    assert one["size"] == (tmp_path / one["path"]).stat().st_size
    monkeypatch.setitem(_write_files.__globals__, "GROUP_BYTES_MAX", 2 * 10 * 8)
    (two,) = written()
    assert pq.ParquetFile(tmp_path / two["path"]).metadata.num_row_groups == 5
    monkeypatch.setitem(
        _write_files.__globals__, "_FILE_BYTES_MAX", 5
    )  # more than the head of a file
    several = written()
    assert [row["rows"] for row in several] == [20] * 5
    assert len({row["path"] for row in (one, two, *several)}) == 7
    assert [row for batch in _write_files(str(tmp_path), "x", iter(())) for row in batch] == []


# --- shipping -------------------------------------------------------------------------------


def test_a_package_is_unpacked_where_python_looks_first(tmp_path: Path) -> None:
    archive = tmp_path / "p.tar.gz"
    archive.touch()
    settings = package_settings(archive)
    assert settings["spark.archives"] == f"{archive.as_uri()}#datalattice-package"
    assert settings["spark.executorEnv.PYTHONPATH"] == "datalattice-package:../datalattice-package"
    with pytest.raises(UsageError, match=r"a package is a file .tar.gz, .tgz, .tar, .zip, got"):
        package_settings(tmp_path / "p.whl")
    with pytest.raises(UsageError, match="does not exist"):
        package_settings(tmp_path / "other.zip")


@pytest.mark.parametrize("master", [None, "local[2]", "sc://127.0.0.1:1"])
def test_a_package_is_for_a_cluster(tmp_path: Path, master: str | None) -> None:
    archive = tmp_path / "p.zip"
    archive.touch()
    with pytest.raises(UsageError, match="a package is for the workers of a cluster"):
        spark_session("n", master=master, package=archive)
