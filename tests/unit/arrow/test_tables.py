"""Tables: what DuckDB and pandas read in place is what the handles give, of one kept root."""

from __future__ import annotations

import datetime as dt
import gc
import itertools
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import datalattice
from datalattice.apps.queue import Topics
from datalattice.arrow import table_of
from datalattice.arrow.values import VARIANT_BYTES_MAX
from datalattice.cells import CellRange, Map, Value, Vector
from datalattice.client import Node
from datalattice.crypto import KeyPair
from datalattice.cursors import RootLattice
from datalattice.errors import (
    LimitExceeded,
    MissingData,
    StoreClosed,
    TypeMismatch,
    UnsupportedOperation,
    UsageError,
)
from datalattice.lattice import MergeContext, root_lattice

duckdb = pytest.importorskip("duckdb")
pa = pytest.importorskip("pyarrow")
ds = pytest.importorskip("pyarrow.dataset")
pd = pytest.importorskip("pandas")


@pytest.fixture(params=["folder", "memory", "sync"])
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Node]:
    path = ":memory:" if request.param == "memory" else tmp_path / "data"
    durable = "sync" if request.param == "sync" else "each"
    with datalattice.open(path, durable=durable) as opened:
        yield opened


def leases(node: Node) -> int:
    store = node._data.store()
    assert store is not None
    gc.collect()
    return len(store.pins.leases())


# --- logs ---


def test_rows_of_a_queue_are_its_entries(node: Node) -> None:
    log = node.queue("log")
    values: list[Any] = ["a", {"n": 1}, b"\x01", [1, 2], None]
    log.offer_many(values, keys=["k", None, "l", 7, None])
    rows = log.to_arrow().read_all().to_pylist()
    assert [row["offset"] for row in rows] == [0, 1, 2, 3, 4]
    assert [row["key"] for row in rows] == ["k", None, "l", "7", None]
    assert [row["timestamp"] for row in rows] == [entry.time for entry in log.entries()]
    assert [row["value"] for row in rows] == [
        None if value is None else datalattice.to_json(value) for value in values
    ]


def test_columns_are_chosen_and_ordered(node: Node) -> None:
    node.queue("log").offer("a", headers={"h": 1})
    names = ["headers", "value", "topic", "owner"]
    reader = node.queue("log").to_arrow(columns=names, values="string")
    assert reader.schema.names == names
    (row,) = reader.read_all().to_pylist()
    owner = "0x" + node.owner.hex
    assert row == {"headers": [("h", "1")], "value": "a", "topic": "log", "owner": owner}


@pytest.mark.parametrize(
    ("start", "stop"), [(None, None), (3, 7), (-4, None), (None, -4), (5, 5), (8, 2), (0, 99)]
)
def test_a_range_of_offsets_is_that_of_the_list(
    node: Node, start: int | None, stop: int | None
) -> None:
    log = node.queue("log")
    log.offer_many(range(40))
    log.truncate(2)
    read = log.to_arrow(start=start, stop=stop, values="string").read_all()["value"].to_pylist()
    assert [int(text) for text in read] == log[start:stop]


def test_a_topic_and_a_feed_say_whose_rows_and_of_which_partition(node: Node) -> None:
    topic = node.topic("spread", 3)
    topic.offer_many(range(20), keys=[str(n) for n in range(20)])
    table = topic.to_arrow().read_all()
    assert table.schema.names == ["partition", "offset", "timestamp", "key", "value"]
    for id in topic.partitions():
        part = table.filter(pa.compute.equal(table["partition"], id))
        assert [int(text) for text in part["value"].to_pylist()] == list(topic[id])
    feed = node.feed("spread").to_arrow().read_all()
    assert feed.drop(["owner"]).equals(table)
    assert set(feed["owner"].to_pylist()) == {"0x" + node.owner.hex}


def test_no_records_are_no_rows_with_all_columns(node: Node) -> None:
    assert node.queue("none").to_arrow().read_all().num_rows == 0
    # A batch even so: Polars and datasets take the columns from the first one.
    (batch,) = node.queue("none").to_arrow(columns=["value"])
    assert (batch.num_rows, batch.schema.names) == (0, ["value"])
    assert ds.dataset(node.database("none").to_arrow()).schema.names[0] == "key"
    assert node.topic("none").to_arrow().schema.names[0] == "partition"


def test_values_become_structs_of_a_schema(node: Node) -> None:
    log = node.queue("log")
    log.offer_many([{"n": 1, "more": True}, {"city": "Oslo"}, None])
    fields = pa.schema([("n", pa.int64()), ("city", pa.string())])
    reader = log.to_arrow(values=fields, columns=["value"])
    assert reader.schema.field("value").type == pa.struct(list(fields))
    assert reader.read_all()["value"].to_pylist() == [
        {"n": 1, "city": None},
        {"n": None, "city": "Oslo"},
        None,
    ]
    log.offer({"n": "many"})
    misfit = r"^the value of record 3 in 'log'\[0\] of .* does not fit the schema: 'n' is int64: C"
    with pytest.raises(TypeMismatch, match=misfit):
        log.to_arrow(values=fields, start=1).read_all()
    log.offer_many([{"n": 1, "city": "Oslo"}, None, {"city": "Oslo"}])
    needed = pa.schema([pa.field("n", pa.int64(), nullable=False)])
    read = log.to_arrow(values=needed, start=4, stop=6, columns=["value"]).read_all()
    assert read["value"].to_pylist() == [{"n": 1}, None]
    with pytest.raises(TypeMismatch, match=r"record 6 in .*: 'n' is int64 not null: it is absent$"):
        log.to_arrow(values=needed, start=4).read_all()


@pytest.mark.parametrize(
    ("kind", "value", "reason"),
    [
        (pa.int64(), 1.5, "1.5 is not a whole number"),
        (pa.int64(), float("nan"), "nan is not a whole number"),
        (pa.list_(pa.int8()), [1, 2.5], "2.5 is not a whole number"),
        (pa.map_(pa.string(), pa.int8()), {"a": 0.5}, "0.5 is not a whole number"),
        (pa.date32(), 1.5, "1.5 is not a whole number"),
        (pa.date32(), "today", "Failed to parse string: 'today'"),
        (pa.timestamp("us"), "2026-01-01T00:00:00Z", ".* expected no zone offset"),
        (pa.timestamp("s"), "2026-01-01T00:00:00.5", "Failed to parse string"),
        (pa.time64("us"), "noon", "Invalid isoformat string: 'noon'"),
        (pa.time64("ns"), "12:00:00.123456789", "'12:00:00.123456789' is not a time such as"),
        (pa.time32("s"), "12:00:00.500000", ".* would lose data"),
        (pa.decimal128(4, 2), 0.125, ".* would cause data loss"),
        (pa.decimal128(4, 2), "many", "'many' is not a number"),
        (pa.string(), "\udcff", ".* surrogates not allowed"),
    ],
)
def test_nothing_of_a_value_is_cut_off_to_fit_a_schema(
    node: Node, kind: Any, value: object, reason: str
) -> None:
    log = node.queue("log")
    log.offer_many([{"n": None}, {"n": value}])
    with pytest.raises(TypeMismatch, match=f"^the value of record 1 .*: 'n' is .*: {reason}"):
        log.to_arrow(values=pa.schema([("n", kind)])).read_all()


def test_what_is_no_map_has_no_fields(node: Node) -> None:
    node.queue("log").offer_many([{"n": 1}, "n"])
    with pytest.raises(TypeMismatch, match=r"a struct is made of a Map, got str$"):
        node.queue("log").to_arrow(values=pa.schema([("n", pa.int64())])).read_all()


def test_a_value_that_its_form_does_not_take_is_named(node: Node) -> None:
    node.queue("log").offer_many([b"a", 5])
    with pytest.raises(TypeMismatch, match=r"the value of record 1 in 'log'\[0\] of"):
        node.queue("log").to_arrow(values="bytes").read_all()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"columns": ["offset", "size"]}, "`columns` is one or more of owner, topic, partition"),
        ({"columns": []}, "`columns` is one or more of"),
        ({"values": "xml"}, "`values` is one of cell, bytes, string, json, variant"),
        ({"keys": "xml"}, "`keys` is one of cell"),
        ({"columns": 5}, "`columns` is one or more of .* got 5"),
        ({"columns": [["offset"]]}, "`columns` is one or more of"),
        ({"start": "first"}, "`start` is not an integer"),
        ({"stop": 2**63}, "`stop` is not an integer of at most 64 bits"),
        ({"values": pa.schema([("n", pa.int64())] * 2)}, "got twice: n"),
        ({"values": pa.schema([])}, "the schema `values` needs one field or more"),
        ({"values": pa.schema([("n", pa.uuid())])}, "the field 'n' of `values` has the type"),
    ],
)
def test_bad_options_are_named(node: Node, options: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        node.queue("log").to_arrow(**options)


def test_a_value_that_is_too_deep_for_text_is_named(node: Node) -> None:
    value: Value = 1
    for _ in range(600):
        value = Vector([value])
    node.queue("log").offer_many(["a", value])
    node.database("shop").update(a=1, b=value)
    deep = r".* down to 500 levels; 'cell' takes every value"
    with pytest.raises(TypeMismatch, match=r"'log'\[0\] of .*, from offset 1 on: " + deep):
        node.queue("log").to_arrow(start=1).read_all()
    with pytest.raises(TypeMismatch, match="the value of key 'b': " + deep):
        node.database("shop").to_arrow().read_all()
    assert node.queue("log").to_arrow(values="cell").read_all().num_rows == 2
    assert node.database("shop").to_arrow(values="cell").read_all().num_rows == 2


def test_a_value_that_is_too_long_for_a_variant_is_named(node: Node) -> None:
    pytest.importorskip("pyspark")
    long = "x" * VARIANT_BYTES_MAX
    node.queue("log").offer_many(["a", long])
    node.database("shop").update(a=1, b=long)
    with pytest.raises(LimitExceeded, match=r"'log'\[0\] of .*, from offset 1 on: a value of"):
        node.queue("log").to_arrow(start=1, values="variant").read_all()
    with pytest.raises(LimitExceeded, match="the value of key 'b': a value of"):
        node.database("shop").to_arrow(values="variant").read_all()


def test_options_that_a_table_does_not_take_are_not_offered(node: Node) -> None:
    fields = pa.schema([("n", pa.int64())])
    with pytest.raises(UsageError, match=r"json, variant, got n: int64"):
        node.database("shop").to_arrow(values=fields)
    with pytest.raises(UsageError, match="`table` is one of assets, jobs, storage"):
        node.venue().to_arrow(table=["jobs"])  # type: ignore[arg-type]


def test_a_program_that_is_missing_is_named(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pyspark", "pandas"):
        monkeypatch.setitem(sys.modules, name, None)
    node.queue("log").offer("a")
    with pytest.raises(UsageError, match="values='variant' needs pyspark: pip install"):
        node.queue("log").to_arrow(values="variant")
    with pytest.raises(UsageError, match="to_pandas needs pandas: pip install"):
        node.queue("log").to_pandas()


def test_an_id_that_is_no_number_is_left_out_or_an_error(node: Node) -> None:
    log = node.queue("log", partition="laptop")
    log.offer("a")
    assert log.to_arrow(columns=["value"]).read_all().num_rows == 1
    with pytest.raises(UsageError, match="not a 64-bit integer; columns leaves it out"):
        node.topic("log").to_arrow()


# --- one root, kept ---


def test_rows_are_of_one_root(node: Node) -> None:
    log = node.queue("log")
    log.offer_many(range(20_000))
    reader = log.to_arrow(values="string", columns=["value"])
    first = reader.read_next_batch()
    log.offer_many(range(100))
    log.truncate(15_000)
    assert first.num_rows + reader.read_all().num_rows == 20_000


def test_a_collection_leaves_what_is_being_read(tmp_path: Path) -> None:
    with datalattice.open(tmp_path / "data") as node:
        log = node.queue("log")
        log.offer_many([f"record {n}" for n in range(30_000)])
        reader = log.to_arrow(values="string", columns=["value"])
        log.truncate(30_000)
        with node._binding.turn():
            store = node._data.store()
            assert store is not None
            store.collect(grace_ms=0)
        assert reader.read_all()["value"].to_pylist()[-1] == "record 29999"


def test_the_lease_ends_with_the_reading_or_with_the_reader(node: Node) -> None:
    log = node.queue("log")
    log.offer_many(range(100))
    reader = log.to_arrow()
    assert leases(node) == 1
    reader.read_all()
    assert leases(node) == 0
    unread = log.to_arrow()
    assert leases(node) == 1
    del unread
    assert leases(node) == 0


def test_a_node_of_the_past_shows_rows_of_the_past(tmp_path: Path) -> None:
    with datalattice.open(tmp_path / "data") as node:
        node.queue("log").offer("a")
        node.queue("log").offer("b")
        with node.as_of("HEAD~1") as past:
            assert past.queue("log").to_arrow().read_all().num_rows == 1


def test_rows_are_read_beside_a_running_node(tmp_path: Path) -> None:
    with (
        datalattice.serve(tmp_path / "data") as served,
        datalattice.open(tmp_path / "data") as node,
    ):
        served.queue("log").offer_many(range(50))
        node.queue("log").offer_many(range(50, 60))
        assert node.queue("log").to_arrow().read_all().num_rows == 60
        assert served.queue("log").to_arrow(start=-10).read_all().num_rows == 10


def test_what_cannot_be_kept_is_refused(node: Node) -> None:
    with (
        node.batch(),
        pytest.raises(UsageError, match="can be read once the batch is done"),
    ):
        node.queue("log").to_arrow()
    keys = KeyPair(bytes(32))
    root = RootLattice(root_lattice(), None, MergeContext(key_pair=keys))
    with pytest.raises(UsageError, match="to_arrow needs a node"):
        Topics.at(root, keys.public_key).partition("log", 0).to_arrow()


def test_a_reader_of_a_closed_node_says_so(tmp_path: Path) -> None:
    with datalattice.open(tmp_path / "data") as node:
        node.queue("log").offer_many(range(20_000))
        reader = node.queue("log").to_arrow()
    with pytest.raises(StoreClosed):
        reader.read_all()


@pytest.mark.parametrize("verify", [True, False])
def test_cells_are_compared_with_their_hashes_unless_told_otherwise(
    node: Node, verify: bool
) -> None:
    node.queue("log").offer_many(range(1_000))
    node.sync()
    asked: list[bool] = []

    def read(hashes: list[bytes], *, verify: bool = True, below: int = 0) -> list[CellRange | None]:
        asked.append(verify)
        return node._binding.get_cells(hashes, verify=verify, below=below)

    table = table_of(node.queue("log"), verify=verify)
    assert sum(batch.num_rows for batch in table.batches(read)) == 1_000
    assert set(asked) == {verify}


def test_a_missing_cell_is_named(node: Node) -> None:
    node.queue("log").offer_many(range(1_000))
    table = table_of(node.queue("log"))

    def nothing(
        hashes: list[bytes], *, verify: bool = True, below: int = 0
    ) -> list[CellRange | None]:
        assert verify
        assert not below
        return [None] * len(hashes)

    with pytest.raises(MissingData):
        list(table.batches(nothing))


# --- databases, venues, cells ---


def test_rows_of_a_database_are_its_live_keys(node: Node) -> None:
    shop = node.database("shop")
    shop["a"], shop["b/1"], shop["b/2"] = {"n": 1}, "text", None
    shop.incr("hits", 4)
    del shop["a"]
    rows = shop.to_arrow().read_all().to_pylist()
    assert {row["key"]: (row["type"], row["value"]) for row in rows} == {
        "b/1": ("value", '"text"'),
        "b/2": ("value", None),
        "hits": ("counter", "4"),
    }
    assert shop.to_arrow(prefix="b/", columns=["key"]).read_all().num_rows == 2
    for limits, keys in (
        ({"start": "b/2"}, ["b/2", "hits"]),
        ({"start": "b/1", "stop": "b/2"}, ["b/1"]),
        ({"prefix": "b/", "stop": "b/2"}, ["b/1"]),
        ({"start": "c", "stop": "b"}, []),
    ):
        table = shop.to_arrow(**limits, columns=["key"]).read_all()
        assert table["key"].to_pylist() == keys
    with pytest.raises(TypeMismatch, match="`start`, a key, is not a str: int"):
        shop.to_arrow(start=1)  # type: ignore[arg-type]
    with pytest.raises(TypeMismatch, match="the value of key 'hits' is neither"):
        shop.to_arrow(values="bytes").read_all()


def test_tables_of_a_venue(node: Node) -> None:
    venue = node.venue()
    asset = venue.register('{"name": "a chart"}')
    job = venue.create_job({"status": "PENDING"})
    (row,) = venue.to_arrow().read_all().to_pylist()
    assert (row["asset"], row["name"]) == (asset.hex(), "a chart")
    (row,) = venue.to_arrow(table="jobs", columns=["job", "status"]).read_all().to_pylist()
    assert row == {"job": job.hex(), "status": "PENDING"}
    venue.hide("jobs", job)
    assert venue.to_arrow(table="jobs").read_all().num_rows == 0
    assert venue.to_arrow(table="storage").schema.names == ["venue", "hash", "size"]
    with pytest.raises(UsageError, match="`table` is one of assets, jobs, storage"):
        venue.to_arrow(table="meta")
    venue.unhide("jobs", job)
    with pytest.raises(TypeMismatch, match="the record of the job"):
        venue.to_arrow(table="jobs", values="bytes").read_all()


def test_cells_of_a_folder(tmp_path: Path) -> None:
    with datalattice.open(tmp_path / "data") as node:
        node.queue("log").offer_many(range(100))
        root = node.history()[0].hash
        table = node.cells_to_arrow(columns=["hash", "refs"]).read_all()
        cells = dict(zip(table["hash"].to_pylist(), table["refs"].to_pylist(), strict=True))
        assert set(cells[root]) <= set(cells)
        assert node.cells_to_arrow().schema.names == ["hash", "encoding"]
    with datalattice.open(":memory:") as node:
        node.database("a")["b"] = 1
        with pytest.raises(UnsupportedOperation, match="a node in memory"):
            node.cells_to_arrow()


# --- loading, and other programs ---


def test_a_table_is_loaded_and_read_back(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datalattice.client.bound._LOADED_ROWS_MAX", 7)
    numbers = list(range(20))
    table = pa.table(
        {
            "id": [f"k{n}" for n in numbers],
            "n": numbers,
            "price": pa.array([Decimal(n) / 4 for n in numbers], pa.decimal128(10, 2)),
        }
    )
    rows = [{"id": f"k{n}", "n": n, "price": n / 4} for n in numbers]
    log = node.queue("log")
    assert log.load(table, key="id") == 20
    assert [datalattice.to_python(value) for value in log] == rows
    assert [entry.key for entry in log.entries()] == [row["id"] for row in rows]
    assert log.load(table, value="n") == 20
    assert log[-20:] == numbers
    topic = node.topic("spread", 2)
    with duckdb.connect() as database:
        assert topic.load(database.from_arrow(table), key="id") == 20
    assert sorted(value["n"] for value in topic) == numbers
    shop = node.database("shop")
    assert shop.load(table.to_reader(), key="id", value="n") == 20
    assert dict(shop) == {f"k{n}": n for n in numbers}


@pytest.mark.parametrize(
    ("kind", "entry"),
    [
        (pa.int64(), 2**62),
        (pa.float64(), 2.0),
        (pa.string(), "\u00e9"),
        (pa.binary(), b"\xff"),
        (pa.bool_(), True),
        (pa.date32(), dt.date(2026, 1, 1)),
        (pa.date64(), dt.date(2026, 1, 1)),
        (pa.timestamp("s"), 1_700_000_000),
        (pa.timestamp("ns"), 1_700_000_000_000_000_001),
        (pa.timestamp("us", "Europe/Oslo"), 1_700_000_000_000_001),
        (pa.time32("s"), dt.time(1, 2, 3)),
        (pa.time64("us"), dt.time(1, 2, 3, 4)),
        (pa.time64("ns"), dt.time(1, 2, 3, 4)),
        (pa.decimal128(10, 2), Decimal("1.25")),
        (pa.decimal128(30, 0), Decimal(10**25)),
        (pa.list_(pa.date32()), [dt.date(2026, 1, 1), None]),
        (pa.large_list(pa.int8()), [1]),
        (pa.struct([("t", pa.time64("us")), ("n", pa.int8())]), {"t": dt.time(1), "n": None}),
        (pa.map_(pa.string(), pa.decimal128(4, 1)), [("a", Decimal("0.5"))]),
        (pa.map_(pa.int64(), pa.string()), [(7, "a")]),
        (pa.map_(pa.string(), pa.int64()), []),
        (pa.dictionary(pa.int8(), pa.string()), "a"),
    ],
)
def test_a_table_comes_back_by_its_schema(node: Node, kind: Any, entry: object) -> None:
    table = pa.table({"n": pa.array([entry, None, entry], kind)})
    log = node.queue("log")
    assert log.load(table) == 3
    (read,) = log.to_arrow(values=table.schema, columns=["value"]).read_all()["value"].chunks
    assert pa.Table.from_struct_array(read).equals(table)


@dataclass
class Order:
    id: str
    day: dt.date
    at: dt.datetime
    n: int = 0


def test_a_handle_with_a_type_reads_rows_as_that_type(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("datalattice.client.bound._LOADED_ROWS_MAX", 2)
    day, at = dt.date(2026, 1, 1), dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
    ids = ["a", "b", "c"]
    columns: dict[str, Any] = {"id": ids, "day": [day] * 3, "at": [at] * 3, "more": [1] * 3}
    log, topic = node.queue("log", of=Order), node.topic("spread", 2, of=Order)
    shop = node.database("shop", of=Order)
    expected = [Order(one, day, at) for one in ids]
    for handle in (log, topic, shop):
        assert handle.load(pa.table(columns), key="id") == 3
    assert log[:] == expected
    assert sorted(topic, key=lambda order: order.id) == expected
    assert list(shop.values()) == expected
    wrong = pa.table({**columns, "n": ["1", "2", "3"]})
    for handle, name in ((log, "0"), (topic, "0"), (shop, '"a"')):
        with pytest.raises(TypeMismatch, match=rf"^value\[{name}\].*: '1' does not read as int"):
            handle.load(wrong, key="id")
    late = pa.table({**columns, "n": [1, 2, None]})
    with pytest.raises(TypeMismatch, match=r'^value\[2\]\["n"\]: None does not read as int'):
        log.load(late, key="id")
    numbers = node.database("numbers", of=int)
    assert numbers.load(pa.table({"id": ids, "n": [1, 2, 3]}), key="id", value="n") == 3
    assert numbers["c"] == 3


def test_a_map_with_keys_of_any_type_is_a_map(node: Node) -> None:
    kind = pa.map_(pa.list_(pa.int8()), pa.date32())
    day = dt.date(2026, 1, 1)
    log = node.queue("log")
    log.load(pa.table({"m": pa.array([[([1], day), ([], None)]], kind)}), value="m")
    assert log[0] == Map.of([(Vector([1]), "2026-01-01"), (Vector([]), None)])


def test_labels_of_rows_are_loaded_if_they_have_a_name(node: Node) -> None:
    frame = pd.DataFrame({"id": ["a", "b", "c"], "n": [1, 2, 3]})
    log = node.queue("log")
    log.load(frame[frame["n"] > 1])
    assert [datalattice.to_python(value) for value in log] == [
        {"id": "b", "n": 2},
        {"id": "c", "n": 3},
    ]
    log.load(frame.set_index("id"), key="id")
    assert log[-1] == {"id": "c", "n": 3}
    assert log.load(frame.iloc[:0][[]]) == 0
    with pytest.raises(UsageError, match="the table has 2 rows, but no columns"):
        log.load(frame.iloc[[2, 0]][[]])


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ([1, 2], "`table` is a pyarrow table or reader, a data frame, .* got list; a list goes to"),
        ("columns", "there is no column 'id'; the table has: n"),
    ],
)
def test_what_cannot_be_loaded_is_named(node: Node, table: object, text: str) -> None:
    given = pa.table({"n": [1]}) if table == "columns" else table
    with pytest.raises(UsageError, match=text):
        node.database("shop").load(given, key="id")


@pytest.mark.parametrize(
    ("made", "error", "text"),
    [
        (lambda: pa.chunked_array([[1]]), UsageError, "`table` cannot be read as columns"),
        (
            lambda: pa.table([pa.array(["a"]), pa.array(["b"]), pa.array([1])], list("iin")),
            UsageError,
            "the columns need different names, got twice: i",
        ),
        (
            lambda: pa.table({"n": pa.array([2**62], pa.timestamp("s"))}),
            TypeMismatch,
            r"the column 'n' of the type timestamp\[s\] has an entry that cannot be a value",
        ),
        (
            lambda: pa.table({"n": pa.array([0], pa.timestamp("s", "Far/Away"))}),
            TypeMismatch,
            "the column 'n' of .* its time zone is unknown: .*Far/Away",
        ),
        (
            lambda: pa.table({"n": pa.array([1], pa.time64("ns"))}),
            TypeMismatch,
            r"the column 'n' of the type time64\[ns\] .* would lose data: 1",
        ),
        (
            lambda: pa.table(
                {"n": pa.array([[("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int8()))}
            ),
            TypeMismatch,
            r"the column 'n' of the type map<.* a map has a key twice: \[\('a', 1\)",
        ),
        (
            lambda: pa.table({"n": pa.array([b"\xff"]).view(pa.string())}),
            TypeMismatch,
            "the column 'n' of the type string has an entry",
        ),
    ],
)
def test_a_table_that_would_be_read_wrongly_is_refused(
    node: Node, made: Callable[[], object], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        node.queue("log").load(made())
    assert len(node.queue("log")) == 0


def test_keys_of_a_database_are_texts_each_once(node: Node) -> None:
    shop = node.database("shop")
    for keys in ([1], ["a", None], [b"a"]):
        with pytest.raises(TypeMismatch, match="a key in the column 'id' is not a str"):
            shop.load(pa.table({"id": keys}), key="id")
    with pytest.raises(TypeMismatch, match="the column of keys, is not a str"):
        shop.load(pa.table({"id": ["a"]}), key=None)  # type: ignore[arg-type]
    assert not shop
    for _ in range(2):
        shop.load(pa.table({"id": ["a", "a"], "n": [1, 2]}), key="id", value="n")
        assert dict(shop) == {"a": 2}


def test_duckdb_and_pandas_read_a_handle_in_place(node: Node) -> None:
    log = node.queue("log")
    log.offer_many([{"city": city, "n": n} for n, city in enumerate(["Oslo", "Rome"] * 50)])
    with duckdb.connect() as database:
        found = database.sql(
            "select value->>'city' as city, count(*) as n from log group by 1 order by 1"
        )
        assert found.fetchall() == [("Oslo", 50), ("Rome", 50)]
        reader = log.to_arrow(columns=["offset"], start=10)  # noqa: F841 - found by its name
        assert database.sql('select min("offset"), count(*) from reader').fetchall() == [(10, 90)]
    frame = log.to_pandas(columns=["offset"])
    assert list(itertools.chain(frame["offset"])) == list(range(100))
