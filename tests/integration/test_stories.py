"""The stories of the front door: each runs twice in one folder, alone and beside a running node."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import duckdb
import pandas as pd
import pytest

import datalattice
from datalattice.client import Node
from datalattice.errors import TypeMismatch
from datalattice.node import serve
from datalattice.testing.folders import running_node

TWICE = [1, 2]


@pytest.fixture(params=["embedded", "served"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """Give a folder, in which a node may run."""
    path = tmp_path / "data"
    datalattice.open(path).close()
    with running_node(path) if request.param == "served" else nullcontext():
        yield path


@pytest.fixture
def nodes(folder: Path) -> Iterator[tuple[int, Node]]:
    """Give the node of a folder twice, opened anew, with the number of the run."""

    def opened() -> Iterator[tuple[int, Node]]:
        for run in TWICE:
            with datalattice.open(folder) as node:
                yield run, node

    return opened()


Nodes = Iterator[tuple[int, Node]]


def test_1_a_log(nodes: Nodes) -> None:
    for run, node in nodes:
        log = node.queue("steps")
        log.offer_many(["a", "b"])
        assert log[-2:] == ["a", "b"]
        assert log.peek(log.start_offset()) == "a"
        assert log.end_offset() == 2 * run


def test_2_a_database(nodes: Nodes) -> None:
    for run, node in nodes:
        shop = node.database("shop")
        shop["config"] = {"open": [9, 17]}
        shop.incr("visits")
        shop.hset("user/1", "name", "Ada")
        assert shop["config"] == {"open": [9, 17]}
        assert shop.count("visits") == run


def test_3_work_that_survives_an_error(nodes: Nodes) -> None:
    for run, node in nodes:
        todo = node.queue("todo")
        todo.offer_many([f"{run} first", f"{run} second"])
        done: list[object] = []

        def work(node: Node = node, done: list[object] = done, *, fail: bool = False) -> None:
            with node.queue("todo").consumer("robot", wait=False) as tasks:
                for task in tasks:
                    if fail and str(task.value).endswith("second"):
                        raise ZeroDivisionError
                    done.append(task.value)

        with pytest.raises(ZeroDivisionError):
            work(fail=True)
        assert done == [f"{run} first"]
        work()
        assert done == [f"{run} first", f"{run} second"], "the task that failed comes again"


def test_4_exactly_once(nodes: Nodes) -> None:
    for run, node in nodes:
        node.queue("sales").offer_many([1, 2, 3])
        totals = node.database("totals")

        def add(node: Node = node, *, fail: bool = False) -> None:
            with node.queue("sales").consumer("sum") as sales, node.batch():
                for sale in sales.take(1000):
                    node.database("totals").incr("sum", sale.value)
                sales.commit()
                if fail:
                    raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            add(fail=True)
        assert totals.count("sum") == 6 * (run - 1)
        add()
        add()
        assert totals.count("sum") == 6 * run, "totals and position are one root"


def test_5_the_past(nodes: Nodes) -> None:
    for _, node in nodes:
        prices = node.database("prices")
        prices["tea"] = 3
        prices["tea"] = 4
        assert node.as_of("HEAD~1").database("prices")["tea"] == 3


def test_6_files(nodes: Nodes) -> None:
    for _, node in nodes:
        papers = node.drive("papers")
        papers.write("/plan.csv", b"city,price\nOslo,3\n")
        with papers.open("/plan.csv", "r") as file:
            frame = pd.read_csv(file)
        assert frame.to_dict("records") == [{"city": "Oslo", "price": 3}]
        papers.fs.pipe_file("notes/today.txt", b"rain")
        assert papers.fs.ls("notes", detail=False) == ["notes/today.txt"]
        assert node.drive("papers").read("/notes/today.txt") == b"rain"


@dataclass
class Order:
    """What the typed queue of story 7 holds."""

    id: UUID
    total: Decimal
    at: datetime


def test_7_a_dataclass(nodes: Nodes) -> None:
    for run, node in nodes:
        orders = node.queue("orders", of=Order)
        order = Order(UUID(int=run), Decimal("9.90"), datetime.now(UTC))
        orders.offer(order)
        assert orders[-1] == order
        assert isinstance(orders[-1].total, Decimal)
        assert node.queue("orders")[-1]["total"] == "9.90"
        with pytest.raises(TypeMismatch, match=r'value\["total"\]: float is not Decimal'):
            orders.offer(replace(order, total=9.9))  # type: ignore[arg-type]
        kept = node.database("kept", of=Order)
        kept["last"] = order
        assert node.database("kept", of=Order)["last"].at == order.at
        assert len(orders) == run


def test_8_two_sites(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("north", "south")]
    for run in TWICE:
        with serve(paths[0]) as north, serve(paths[1], peers=[north.address]) as south:
            north.queue("log").offer("cold")
            south.queue("log").offer("warm")
            south.wait_equal()
            found = [(entry.owner, entry.value) for entry in south.feed("log").follow(wait=False)]
            assert sorted(found, key=str) == sorted(
                [(north.owner, "cold"), (south.owner, "warm")] * run, key=str
            )


def test_what_a_peer_had_is_here_when_the_wait_ends(tmp_path: Path) -> None:
    with serve(tmp_path / "a") as north, serve(tmp_path / "b", peers=[north.address]) as south:
        for number in range(10):
            north.queue("log").offer(number)
            south.wait_equal()
            assert list(south.feed("log")) == list(range(number + 1))


def test_9_live_in_an_event_loop(folder: Path) -> None:
    async def story() -> list[object]:
        found: list[object] = []
        async with datalattice.open(folder) as node, node.queue("ticks").follow("end") as ticks:
            await node.run(node.queue("ticks").offer, 7)
            async for tick in ticks:
                found.append(tick.value)
                break
        return found

    for _ in TWICE:
        assert asyncio.run(story()) == [7]


def test_10_sql_in_place(nodes: Nodes) -> None:
    for run, node in nodes:
        sales = node.queue("sales")
        sales.offer_many([3, 4])
        reader = sales.to_arrow(columns=["value"])
        assert reader.schema.names == ["value"]
        with duckdb.connect() as database:
            found = database.sql("select count(*), sum(value::int) from reader").fetchall()
        assert found == [(2 * run, 7 * run)]
