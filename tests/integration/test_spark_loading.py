"""Jobs that move rows: files into a lattice, the latest of each key, and out into other formats."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from datalattice.apps.kv import Database
from datalattice.apps.queue import (
    Topics,
    entry_key,
    entry_stamp_ms,
    entry_value,
    make_entry,
    partition_of,
)
from datalattice.cells import (
    Value,
    decode_message,
    encode,
    encode_message,
    to_cell,
    to_json,
)
from datalattice.client import Folder, edit, reading, write_key
from datalattice.crypto import KeyPair
from datalattice.cursors import RootLattice
from datalattice.errors import UsageError
from datalattice.lattice import MergeContext, root_lattice
from datalattice.pipeline import clear_errors

pytest.importorskip("pyspark")
pytestmark = [pytest.mark.once, pytest.mark.spark, pytest.mark.timeout(120)]

KEYS = KeyPair(bytes([7]) * 32)


class Home:
    """A node's folder, without a node."""

    def __init__(self, path: Path) -> None:
        write_key(path / "key", KEYS)
        self.path = str(path)
        self.folder = Folder(path)

    @contextmanager
    def root(self) -> Iterator[RootLattice]:
        with reading(self.folder) as root:
            yield RootLattice(root_lattice(), root, MergeContext(key_pair=KEYS))

    def entries(self, topic: str) -> dict[Any, list[Value]]:
        with self.root() as root:
            found = Topics.at(root, KEYS.public_key).topic(topic)
            logs = {
                name: [one.cell for one in found.partition(name).entries()]
                for name in found.partitions()
            }
            return {n: [decode_message(encode_message(e)) for e in log] for n, log in logs.items()}

    def values(self, topic: str) -> list[Any]:
        """Return the JSON of all values, partition by partition."""
        logs = self.entries(topic)
        return [json.loads(to_json(entry_value(e))) for name in sorted(logs) for e in logs[name]]

    def database(self, name: str) -> dict[str, Any]:
        with self.root() as root:
            found = Database.at(root, KEYS.public_key, name)
            return {key: json.loads(to_json(found[key])) for key in found}

    def append(self, topic: str, partition: int, entries: list[Any]) -> None:
        def change(cursor: RootLattice, keys: KeyPair) -> None:
            queue = Topics.at(cursor, keys.public_key).partition(topic, partition)
            before = queue.state()
            assert queue.advance(before, before.entries.extend(entries))

        edit(self.folder, change)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    folder = tmp_path / "node"
    folder.mkdir()
    return Home(folder)


# --- load -----------------------------------------------------------------------------------


def test_rows_of_csv_become_maps_in_a_topic(spark: Any, home: Home, tmp_path: Path) -> None:
    from datalattice.pipeline.jobs import load

    file = tmp_path / "rows.csv"
    rows: list[dict[str, Any]] = [
        {"name": f"k{i % 5}", "n": i, "when": f"2013-01-0{1 + i % 9}"} for i in range(40)
    ]
    lines = ["name,n,when", *(",".join(map(str, row.values())) for row in rows), "last,,"]
    file.write_text("\n".join(lines) + "\n")
    steps: list[str] = []
    report = load(
        spark,
        [str(file)],
        store=home.path,
        topic="t",
        key="name",
        partitions=3,
        write_id="once",
        progress=lambda step, _done, _total: steps.append(step),
    )
    assert report.as_json() == {"store": home.path, "target": "topic t", "rows": 41}
    assert set(steps) == {"load"}
    expected = [*rows, {"name": "last", "n": None, "when": None}]
    logs = home.entries("t")
    for partition in range(3):
        chosen = [row for row in expected if partition_of(row["name"], 3) == partition]
        found = [json.loads(to_json(entry_value(e))) for e in logs.get(partition, [])]
        assert found == chosen  # of one file, in its order
        assert [entry_key(e) for e in logs.get(partition, [])] == [row["name"] for row in chosen]
    load(spark, [str(file)], store=home.path, topic="t", key="name", write_id="once")
    assert home.entries("t").keys() == logs.keys()
    assert len(home.values("t")) == 41  # a load with a name happens once


def test_lines_of_json_keep_every_digit(spark: Any, home: Home, tmp_path: Path) -> None:
    from datalattice.pipeline.jobs import load

    rows = [{"id": i, "big": 10**30 + i, "no": None, "in": {"l": [1, 2.5]}} for i in range(20)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + "\n  \n")
    report = load(spark, [str(tmp_path / "a.jsonl")], store=home.path, topic="t", drop_nulls=True)
    assert report.rows == 20
    assert home.values("t") == [{k: v for k, v in row.items() if k != "no"} for row in rows]
    (tmp_path / "b.json").write_text('{"a": 1}\n[1]\n')
    refused = pytest.raises(UsageError, match=r"a line of JSON is an object, got '\[1\]'")
    with refused, clear_errors():
        load(spark, [str(tmp_path / "b.json")], store=home.path, topic="u")
    assert home.entries("u") == {}  # all or nothing


def test_a_file_that_many_tasks_read_keeps_its_order(
    spark: Any, home: Home, tmp_path: Path
) -> None:
    from datalattice.pipeline.jobs import load

    file = tmp_path / "a.jsonl"
    file.write_text("".join(json.dumps({"n": n, "x": "x" * (n % 70)}) + "\n" for n in range(300)))
    spark.conf.set("spark.sql.files.maxPartitionBytes", 2_000)
    try:
        load(spark, [str(file)], store=home.path, topic="t")
    finally:
        spark.conf.unset("spark.sql.files.maxPartitionBytes")
    assert [value["n"] for value in home.values("t")] == list(range(300))


def test_every_type_of_parquet_has_a_value(spark: Any, home: Home, tmp_path: Path) -> None:
    from datalattice.pipeline.jobs import load

    file = str(tmp_path / "rows.parquet")
    spark.range(4).selectExpr(
        "concat('k', id % 3) AS key",
        "id",
        "map('a', id) AS m",
        "timestamp'2013-01-01 05:00:00.25' AS t",
        "date'2013-01-02' AS d",
        "1.50BD AS dec",
        "7BD AS whole",
        "parse_json('{\"x\": [1, null]}') AS v",
        "named_struct('q', array(1, null)) AS s",
        "X'0102' AS b",
        "id > 1 AS yes",
    ).coalesce(1).write.parquet(file)
    report = load(spark, [file], store=home.path, database="d", key="key")
    assert (report.target, report.rows) == ("database d", 4)
    found = home.database("d")
    assert sorted(found) == ["k0", "k1", "k2"]
    assert found["k0"] == {  # the later row of two with one key
        "key": "k0",
        "id": 3,
        "m": {"a": 3},
        "t": "2013-01-01T05:00:00.250000+00:00",
        "d": "2013-01-02",
        "dec": 1.5,
        "whole": 7,
        "v": {"x": [1, None]},
        "s": {"q": [1, None]},
        "b": json.loads(to_json(to_cell(b"\x01\x02"))),
        "yes": True,
    }
    with pytest.raises(UsageError, match="the files have the columns key, id"):
        load(spark, [file], store=home.path, database="d", key="name")


# --- compact --------------------------------------------------------------------------------


def answer(logs: dict[int, list[Value]]) -> tuple[dict[bytes, tuple[int, int, Value]], int]:
    """Return for each key its latest record and where it was, and how many keys are deleted."""
    latest: dict[bytes, tuple[tuple[int, int], int, Value]] = {}
    for partition, entries in logs.items():
        own: dict[bytes, tuple[int, Value]] = {}
        for offset, entry in enumerate(entries):
            if entry_stamp_ms(entry) is not None and entry_key(entry) is not None:
                own[encode(entry_key(entry))] = (offset, entry)
        for key, (offset, entry) in own.items():
            stamp = entry_stamp_ms(entry)
            assert stamp is not None
            if key not in latest or latest[key][0] < (stamp, partition):
                latest[key] = ((stamp, partition), offset, entry)
    live = {
        key: (partition, offset, entry)
        for key, ((_, partition), offset, entry) in latest.items()
        if entry_value(entry) is not None
    }
    return live, len(latest) - len(live)


def random_logs(seed: int) -> dict[int, list[Any]]:
    dice = random.Random(seed)
    keys: list[object] = [None, 1, "1", b"1", "a", "b", *range(10, 40), (1, 2), "long" * 300]
    logs: dict[int, list[Any]] = {0: [], 1: [], 2: []}
    for number in range(600):
        value = None if dice.random() < 0.3 else {"n": number, "more": "x" * dice.randrange(300)}
        stamp = 1_000 + number // 7 - dice.randrange(40)  # times stand still and go back
        entry = make_entry(to_cell(dice.choice(keys)), to_cell(value), stamp, to_cell({"h": "1"}))
        logs[dice.randrange(3)].append(entry)
    logs[1].insert(5, to_cell("no record"))
    return logs


@pytest.mark.parametrize("keyless", ["drop", "keep"])
def test_a_compacted_topic_is_what_plain_python_makes_of_it(
    spark: Any, home: Home, keyless: str
) -> None:
    from datalattice.pipeline.jobs import compact

    logs = random_logs(1)
    for partition, entries in logs.items():
        home.append("t", partition, entries)
    report = compact(spark, store=home.path, topic="t", into_topic="c", keyless=keyless)
    live, deleted = answer(logs)
    stay = {(partition, offset): entry for partition, offset, entry in live.values()}
    plain = {
        (partition, offset): entry
        for partition, entries in logs.items()
        for offset, entry in enumerate(entries)
        if entry_key(entry) is None and entry_value(entry) is not None
    }
    assert plain
    if keyless == "keep":
        stay |= plain
    for partition in logs:
        expected = [stay[at] for at in sorted(stay) if at[0] == partition]
        found = home.entries("c")[partition]
        assert [encode(entry) for entry in found] == [encode(entry) for entry in expected]
    with home.root() as root:  # producers know where a key belongs
        assert Topics.at(root, KEYS.public_key).topic("c").num_partitions == len(logs)
    assert (report.keys, report.deleted) == (len(live), deleted)
    assert report.keyless == (len(plain) if keyless == "keep" else 0)
    with pytest.raises(UsageError, match="it has records; name a new topic"):
        compact(spark, store=home.path, topic="t", into_topic="c")


def test_a_database_gets_the_latest_and_loses_what_was_deleted(spark: Any, home: Home) -> None:
    from datalattice.pipeline.jobs import compact

    def entry(key: str, value: object, stamp: int) -> Any:
        return make_entry(key, to_cell(value), stamp)

    home.append("t", 0, [entry("a", 1, 5), entry("b", 1, 5), entry("a", 2, 5)])
    report = compact(spark, store=home.path, topic="t", into_database="d")
    assert home.database("d") == {"a": 2, "b": 1}
    assert (report.keys, report.deleted) == (2, 0)
    home.append("t", 0, [entry("b", None, 6), entry("c", [3], 6)])
    report = compact(spark, store=home.path, topic="t", into_database="d")
    assert home.database("d") == {"a": 2, "c": [3]}
    assert (report.keys, report.deleted) == (2, 1)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"into_topic": "c", "into_database": "d"}, "give either a topic or a database"),
        ({}, "give either a topic or a database"),
        ({"into_database": "d", "keyless": "keep"}, "cannot hold records without a key"),
        ({"into_topic": "c", "keyless": "some"}, "'some' is not accepted: drop or keep"),
        ({"into_topic": "t"}, "it has records"),
        ({"into_topic": "c", "topic": "nowhere"}, "the store has no such topic"),
    ],
)
def test_what_cannot_be_compacted_is_said(
    spark: Any, home: Home, arguments: dict[str, Any], says: str
) -> None:
    from datalattice.pipeline.jobs import compact

    home.append("t", 0, [make_entry("a", 1, 5)])
    with pytest.raises(UsageError, match=says), clear_errors():
        compact(spark, **{"store": home.path, "topic": "t"} | arguments)


# --- export ---------------------------------------------------------------------------------


@pytest.fixture
def filled(home: Home) -> Home:
    for partition in range(2):
        rows = [{"n": n, "p": partition} for n in range(300)]
        home.append(
            "t", partition, [make_entry(f"k{n}", to_cell(r), n) for n, r in enumerate(rows)]
        )
    return home


def rows_of(table: Any) -> list[tuple[Any, ...]]:
    found = table.to_pylist()
    return sorted(
        (r["partition"], r["offset"], r["key"], json.loads(r["value"])["n"]) for r in found
    )


EXPECTED = [(partition, n, f"k{n}", n) for partition in range(2) for n in range(300)]


def test_records_are_exported_to_parquet(spark: Any, filled: Home, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    from datalattice.pipeline.jobs import export

    target = tmp_path / "out"
    options = {"store": filled.path, "valueFormat": "json", "keyFormat": "string"}
    report = export(spark, "lattice.queue", str(target), options=options)
    assert report.as_json() == {
        "source": "lattice.queue",
        "target": str(target),
        "format": "parquet",
        "rows": 600,
    }
    assert rows_of(pq.read_table(target)) == EXPECTED
    with pytest.raises(UsageError, match="exists; name another target"):
        export(spark, "lattice.queue", str(target), options=options)


def test_records_are_exported_to_versions_of_a_delta_table(
    spark: Any, filled: Home, tmp_path: Path
) -> None:
    deltalake = pytest.importorskip("deltalake")
    from datalattice.pipeline.jobs import export

    target = tmp_path / "table"
    options = {"store": filled.path, "valueFormat": "json", "keyFormat": "string"}

    def run(mode: str = "error", **more: str) -> int:
        with clear_errors():
            return export(
                spark,
                "lattice.queue",
                str(target),
                to="delta",
                options=options | {"includeHeaders": "true"} | more,
                mode=mode,
            ).rows

    def read() -> Any:
        return deltalake.DeltaTable(str(target))

    assert run() == 600
    assert rows_of(read().to_pyarrow_table()) == EXPECTED
    with pytest.raises(UsageError, match="exists; name another target"):
        run()
    run("append", endingOffsets='{"t": {"0": 10, "1": 0}}')
    assert (read().version(), read().to_pyarrow_table().num_rows) == (1, 610)
    with pytest.raises(UsageError, match="of other names or types than those to append"):
        run("append", includeHeaders="false")
    with pytest.raises(UsageError, match="column value is a VARIANT"):
        run("overwrite", valueFormat="variant")
    with pytest.raises(UsageError, match="neither Blob nor String"):
        run("overwrite", valueFormat="bytes")
    assert read().version() == 1
    run("overwrite")
    assert rows_of(read().to_pyarrow_table()) == EXPECTED
    assert rows_of(deltalake.DeltaTable(str(target), version=0).to_pyarrow_table()) == EXPECTED
    # Whatever is in the folder belongs to a version: what failed left nothing.
    files = {path.name for path in target.glob("*.parquet")}
    used = {
        Path(uri).name
        for version in range(3)
        for uri in deltalake.DeltaTable(str(target), version=version).file_uris()
    }
    assert files == used
