"""Adapter `sql`: what a query reads, what it cannot reach, and when it ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import datalattice
from datalattice.actions import ActionRequest, ReadKeys, ReadRecords
from datalattice.client import Node
from datalattice.client.settings import VenueSqlConfig as Limits
from datalattice.errors import LimitExceeded, NoSuchPath, Unauthorized, UsageError
from datalattice.service.venue import JobCaller, Json, OperationFailed, OperationMetadata
from datalattice.service.venue.adapters.sql import (
    QUERY_CHARS_MAX,
    SQL_TABLES_MAX,
    SqlAdapter,
)
from datalattice.service.venue.adapters.tables import LatticeTables, TableRows
from datalattice.testing.venue_kit import LoneJob

duckdb = pytest.importorskip("duckdb")

META: OperationMetadata = {"operation": {"adapter": "sql:query"}}
CALLER = LoneJob().caller


class Numbers:
    """Tables of numbers: the source says how many."""

    def __init__(self) -> None:
        self.reading = threading.Event()

    def check(self, source: Json) -> None:
        if not isinstance(source, dict):
            raise UsageError("not a source")

    def open(self, caller: JobCaller, source: Json) -> TableRows:
        assert isinstance(source, dict)
        count = source["count"]
        assert isinstance(count, int)
        return TableRows("n BIGINT, text STRING", self._rows(count))

    def _rows(self, count: int) -> Iterator[tuple[int, str]]:
        for n in range(count):
            yield n, str(n)
            self.reading.set()


def ask(query: str, tables: Json = None, *, limits: Limits | None = None, **more: Json) -> Any:
    adapter = SqlAdapter(Numbers(), limits)
    given: dict[str, Json] = {"query": query, "tables": tables, **more}
    try:
        adapter.check(META, given)
        return asyncio.run(adapter.run(LoneJob(), META, given))
    finally:
        adapter.close()


def test_a_query_answers_columns_and_rows() -> None:
    made = ask(
        "SELECT a.n, b.text FROM a JOIN b USING (n) ORDER BY n",
        {"a": {"count": 2}, "b": {"count": 3}},
    )
    assert made == {
        "columns": [{"name": "n", "type": "BIGINT"}, {"name": "text", "type": "VARCHAR"}],
        "rows": [[0, "0"], [1, "1"]],
        "truncated": False,
    }


def test_an_empty_table_has_its_columns() -> None:
    assert ask("SELECT count(*), sum(n) FROM t", {"t": {"count": 0}})["rows"] == [[0, None]]


def test_a_table_of_several_batches_is_whole() -> None:
    made = ask("SELECT count(*), max(n) FROM t", {"t": {"count": 20_000}})
    assert made["rows"] == [[20_000, 19_999]]


def test_parameters_are_no_part_of_the_text() -> None:
    assert ask("SELECT ? AS a, ?", parameters=["x'; --", 2])["rows"] == [["x'; --", 2]]
    assert ask("SELECT $a", parameters={"a": None})["rows"] == [[None]]
    with pytest.raises(OperationFailed, match="SQL:"):
        ask("SELECT ?", parameters=[])


def test_values_of_each_type_are_json() -> None:
    made = ask(
        "SELECT true, 1.5::DECIMAL(4,2), 'nan'::DOUBLE, 1.5::DOUBLE, DATE '2020-01-02', "
        "TIMESTAMP '2020-01-02 03:04:05', INTERVAL 1 MINUTE, 'ab'::BLOB, [1, NULL], {'a': 1}, "
        "MAP {'k': 2}, '00000000-0000-0000-0000-000000000001'::UUID, TIME '10:00'"
    )
    assert made["rows"] == [
        [
            True,
            "1.50",
            "nan",
            1.5,
            "2020-01-02",
            "2020-01-02T03:04:05",
            60.0,
            "6162",
            [1, None],
            {"a": 1},
            {"k": 2},
            "00000000-0000-0000-0000-000000000001",
            "10:00:00",
        ]
    ]


# --- what it cannot reach ---------------------------------------------------------------------

OUTSIDE = [
    "SELECT * FROM read_text('{file}')",
    "SELECT * FROM read_blob('{file}')",
    "SELECT * FROM read_csv('{file}')",
    "SELECT * FROM read_json('{file}')",
    "SELECT * FROM read_parquet('{file}')",
    "SELECT * FROM parquet_metadata('{file}')",
    "SELECT * FROM sniff_csv('{file}')",
    "SELECT * FROM glob('{folder}/*')",
    "SELECT * FROM '{file}'",
    "SELECT * FROM read_csv('http://127.0.0.1:9/x')",
    "SELECT * FROM query('SELECT * FROM read_text(''{file}'')')",
    "SELECT * FROM duckdb_secrets()",
    "SELECT getenv('HOME')",
    "SELECT * FROM query",  # a variable of the adapter
    "SELECT * FROM request",
    "SELECT * FROM columns",
    "SELECT * FROM _loaded",
]

OTHERS = [
    "",
    "SELECT 1; SELECT 2",
    "SELECT 1; COPY t TO '{file}'",
    "COPY (SELECT 1) TO '{file}'",
    "COPY t FROM '{file}'",
    "ATTACH '{file}'",
    "INSTALL httpfs",
    "LOAD httpfs",
    "SET memory_limit='100GB'",
    "RESET lock_configuration",
    "PRAGMA threads=64",
    "EXPORT DATABASE '{folder}'",
    "IMPORT DATABASE '{folder}'",
    "CREATE TABLE x (a INT)",
    "INSERT INTO t VALUES (1, '1')",
    "DROP TABLE t",
    "CALL pragma_version()",
    "EXPLAIN ANALYZE SELECT 1",
    "CREATE SECRET (TYPE s3)",
    "USE memory",
    "PREPARE a AS SELECT 1",
    "SELEC 1",
]


@pytest.mark.parametrize("query", OUTSIDE)
def test_a_query_reaches_nothing_outside(query: str, tmp_path: Path) -> None:
    file = tmp_path / "file.csv"
    file.write_text("secret\n1\n")
    text = query.format(file=file, folder=tmp_path)
    with pytest.raises(OperationFailed) as caught:
        ask(text, {"t": {"count": 1}})
    assert "secret" not in str(caught.value).replace("duckdb_secrets", "")
    assert str(Path.home()) not in str(caught.value)


def test_a_text_that_is_parsed_reads_no_file_and_leaves_the_connection_of_the_program(
    tmp_path: Path, ending: ExitStack
) -> None:
    for name in ("schema.sql", "load.sql"):
        (tmp_path / name).write_text("secret")
    ending.callback(duckdb.set_default_connection, duckdb.default_connection())
    own = ending.enter_context(duckdb.connect())
    duckdb.set_default_connection(own)
    assert own.execute("SELECT * FROM range(1_000_000)").fetchone() == (0,)  # a transaction goes on
    for folder in (tmp_path, tmp_path / "absent"):
        with pytest.raises(UsageError, match="`query`") as caught:
            ask(f"IMPORT DATABASE '{folder}'")
        assert "secret" not in str(caught.value)
    assert own.execute("SELECT 1").fetchall() == [(1,)]


@pytest.mark.parametrize("query", OTHERS)
def test_all_but_one_select_makes_no_job(query: str, tmp_path: Path) -> None:
    text = query.format(file=tmp_path / "file.csv", folder=tmp_path)
    with pytest.raises(UsageError, match=r"`query`"):
        ask(text, {"t": {"count": 1}})
    assert list(tmp_path.iterdir()) == []


def test_settings_are_locked_when_the_query_runs() -> None:
    names = "'enable_external_access', 'lock_configuration', 'temp_directory', 'threads'"
    made = ask(f"SELECT name, value FROM duckdb_settings() WHERE name IN ({names}) ORDER BY name")
    assert made["rows"] == [
        ["enable_external_access", "false"],
        ["lock_configuration", "true"],
        ["temp_directory", ""],
        ["threads", "1"],
    ]


# --- limits -----------------------------------------------------------------------------------


def test_a_result_has_so_many_rows() -> None:
    limits = Limits(rows=10)
    for count, shown, truncated in ((9, 9, False), (10, 10, False), (11, 10, True)):
        made = ask(f"SELECT * FROM range({count})", limits=limits)
        assert (len(made["rows"]), made["truncated"]) == (shown, truncated)
    made = ask("SELECT * FROM range(5)", limits=limits, maxRows=2)
    assert (len(made["rows"]), made["truncated"]) == (2, True)


@pytest.mark.parametrize("rows", [0, -1, 11, 1.0, True, "1"])
def test_a_wrong_number_of_rows_makes_no_job(rows: Json) -> None:
    with pytest.raises(UsageError, match="`maxRows` is 1 to 10"):
        ask("SELECT 1", limits=Limits(rows=10), maxRows=rows)


def test_a_result_has_so_many_characters() -> None:
    with pytest.raises(LimitExceeded, match="characters as JSON"):
        ask("SELECT repeat('x', 5_000_000)")


def test_tables_have_so_many_rows() -> None:
    limits = Limits(table_rows=10)
    for tables in (
        {"t": {"count": 10}},
        {"t": {"count": 9}},
        {"t": {"count": 5}, "u": {"count": 5}},
    ):
        ask("SELECT * FROM t", tables, limits=limits)  # type: ignore[arg-type]
    for tables in ({"t": {"count": 11}}, {"t": {"count": 5}, "u": {"count": 6}}):
        with pytest.raises(LimitExceeded, match="at most 10 rows in all"):
            ask("SELECT * FROM t", tables, limits=limits)  # type: ignore[arg-type]


def test_tables_have_so_many_bytes() -> None:
    row = 65  # of one digit
    for limit in (row * 3, row * 3 + 1):
        ask("SELECT * FROM t", {"t": {"count": 3}}, limits=Limits(table_bytes=limit))
    with pytest.raises(LimitExceeded, match="bytes in all"):
        ask("SELECT * FROM t", {"t": {"count": 3}}, limits=Limits(table_bytes=row * 3 - 1))


def test_memory_is_limited() -> None:
    with pytest.raises(OperationFailed, match="Out of Memory"):
        ask(
            "SELECT list(range) FROM range(100_000_000)",
            limits=Limits(memory_bytes=64 << 20),
        )


def test_an_input_has_its_limits() -> None:
    query = "SELECT 1 --" + "x" * (QUERY_CHARS_MAX - len("SELECT 1 --"))
    assert ask(query)["rows"] == [[1]]
    with pytest.raises(UsageError, match=f"at most {QUERY_CHARS_MAX} characters"):
        ask(query + "x")
    tables: dict[str, Json] = {f"t{n}": {"count": 1} for n in range(SQL_TABLES_MAX)}
    ask("SELECT 1", tables)
    with pytest.raises(UsageError, match=f"at most {SQL_TABLES_MAX} tables"):
        ask("SELECT 1", {**tables, "more": {"count": 1}})


ENDLESS = "SELECT count(DISTINCT hash(range) % 7) FROM range(1_000_000_000_000_000)"
"""It needs little memory, which would end it otherwise."""


def test_time_is_limited() -> None:
    with pytest.raises(OperationFailed, match=r"took more than 0.2 s"):
        ask(ENDLESS, limits=Limits(time_s=0.2))
    with pytest.raises(OperationFailed, match=r"took more than 0.2 s"):
        ask(
            "SELECT 1",
            {"t": {"count": 1 << 40}},
            limits=Limits(time_s=0.2, table_rows=1 << 41),
        )


def test_cancelling_the_job_interrupts_the_query() -> None:
    tables = Numbers()

    async def run() -> None:
        adapter = SqlAdapter(tables)
        given: Json = {"query": ENDLESS, "tables": {"t": {"count": 2}}}
        running = asyncio.create_task(adapter.run(LoneJob(), META, given))
        await asyncio.to_thread(tables.reading.wait)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        adapter.close()

    asyncio.run(run())
    # The query has ended, so its thread does: else the test ends by its time limit.
    for thread in threading.enumerate():
        if thread.name.startswith("venue-sql"):
            thread.join()


# --- inputs -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({}, "`query` is a text"),
        ({"query": 1}, "`query` is a text"),
        ({"query": "SELECT 1", "more": 1}, "unknown member 'more'"),
        ({"query": "SELECT 1", "tables": []}, ""),
        ({"query": "SELECT 1", "tables": "t"}, "`tables` is an object"),
        ({"query": "SELECT 1", "tables": {'a"b': {"count": 1}}}, "the name of a table"),
        ({"query": "SELECT 1", "tables": {"": {"count": 1}}}, "the name of a table"),
        ({"query": "SELECT 1", "tables": {"a" * 64: {"count": 1}}}, "the name of a table"),
        ({"query": "SELECT 1", "tables": {"a": {"count": 1}, "A": {"count": 1}}}, "only in case"),
        ({"query": "SELECT 1", "tables": {"a": 1}}, "not a source"),
        ({"query": "SELECT 1", "parameters": "a"}, "`parameters` is a list"),
    ],
)
def test_a_malformed_input_makes_no_job(given: Any, named: str) -> None:
    adapter = SqlAdapter(Numbers())
    if not named:  # an empty list stands for no tables
        adapter.check(META, given)
        return
    with pytest.raises(UsageError, match=named):
        adapter.check(META, given)


@pytest.mark.parametrize("name", [one for one in Limits.__slots__ if one != "enabled"])
def test_a_limit_of_zero_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=f"{name} is greater than 0"):
        Limits(**dict[str, Any]({name: 0}))


def test_without_the_package_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    for package in ("duckdb", "pyarrow"):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, package, None)
            with pytest.raises(
                UsageError, match=rf"need {package}: pip install 'datalattice\[venue\]'"
            ):
                SqlAdapter(Numbers())


# --- lattice data -----------------------------------------------------------------------------


class Policy:
    """What a caller may read, and what was asked."""

    def __init__(self, *allowed: ActionRequest[Any]) -> None:
        self.allowed = allowed
        self.asked: list[tuple[JobCaller, ActionRequest[Any]]] = []

    def __call__(self, caller: JobCaller, request: ActionRequest[Any]) -> None:
        self.asked.append((caller, request))
        if request not in self.allowed:
            raise Unauthorized("not for you")


@pytest.fixture(name="node")
def _node(tmp_path: Path) -> Iterator[Node]:
    with datalattice.open(tmp_path / "data") as node:
        topic = node.topic("orders", partitions=1)
        topic.offer({"item": "nut", "count": 3}, key="a")
        topic.offer({"item": "bolt", "count": 4}, key=7)
        node.database("prices")["nut"] = 0.5
        node.database("prices")["bolt"] = 2
        yield node


def lattice(node: Node, policy: Policy, query: str, tables: Json) -> Any:
    adapter = SqlAdapter(LatticeTables(node, policy))
    given: dict[str, Json] = {"query": query, "tables": tables}
    try:
        adapter.check(META, given)
        return asyncio.run(adapter.run(LoneJob(), META, given))
    finally:
        adapter.close()


def test_a_query_joins_a_topic_and_a_database(node: Node) -> None:
    policy = Policy(ReadRecords(topic="orders"), ReadKeys(database="prices"))
    query = (
        "SELECT o.value->>'item' AS item, (o.value->>'count')::INT * p.value::DOUBLE AS price "
        "FROM o JOIN p ON p.key = (o.value->>'item') ORDER BY price"
    )
    made = lattice(node, policy, query, {"o": {"topic": "orders"}, "p": {"database": "prices"}})
    assert made["rows"] == [["nut", 1.5], ["bolt", 8.0]]
    assert [caller for caller, _ in policy.asked] == [JobCaller(CALLER)] * 2


def test_a_topic_has_its_columns(node: Node) -> None:
    policy = Policy(ReadRecords(topic="orders"))
    query = "SELECT partition, \"offset\", time > TIMESTAMP '2020-01-01', key FROM o ORDER BY 2"
    made = lattice(node, policy, query, {"o": {"topic": "orders"}})
    assert made["rows"] == [["0", 0, True, "a"], ["0", 1, True, "7"]]


def test_a_caller_without_the_right_reads_nothing(node: Node) -> None:
    for source in ({"topic": "orders"}, {"database": "prices"}):
        with pytest.raises(OperationFailed, match="not for you"):
            lattice(node, Policy(), "SELECT * FROM t", {"t": source})  # type: ignore[dict-item]


def test_what_is_not_there_is_named(node: Node) -> None:
    policy = Policy(ReadRecords(topic="none"), ReadKeys(database="none"))
    for kind in ("topic", "database"):
        with pytest.raises(NoSuchPath, match=f"there is no {kind} none"):
            lattice(node, policy, "SELECT 1", {"t": {kind: "none"}})


@pytest.mark.parametrize(
    "source", [{}, {"topic": "a", "database": "b"}, {"topic": ""}, {"topic": 1}, {"file": "x"}, "a"]
)
def test_a_source_is_a_topic_or_a_database(node: Node, source: Json) -> None:
    with pytest.raises(UsageError):
        LatticeTables(node, Policy()).check(source)
