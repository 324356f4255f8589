"""The example of a machine of one's own: what one node, and several apart, do with one stock."""

from __future__ import annotations

import importlib.util
import itertools
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

import datalattice
from datalattice.errors import UsageError
from datalattice.testing.stores_kit import WeaverNode, envelopes_of, exchange, state_of
from datalattice.weaver import CORE_MACHINES, WeaverStore

FILE = Path(__file__).resolve().parents[2] / "examples" / "inventory.py"


def _load() -> Any:
    spec = importlib.util.spec_from_file_location("example_inventory", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["example_inventory"] = module
    spec.loader.exec_module(module)
    return module


inventory = _load()


@pytest.fixture
def stock(tmp_path: Path) -> Iterator[Any]:
    with datalattice.open(tmp_path / "data") as node:
        handle = node.store("stock", kind=inventory.Inventory)
        handle.count(item="tea", count=5)
        yield handle


def test_it_runs_as_a_program() -> None:
    ran = subprocess.run(
        [sys.executable, str(FILE)], capture_output=True, text=True, timeout=50, check=True
    )
    assert "south refuses: 3 of 'kettle' cannot be reserved: 2 are free" in ran.stdout
    assert "free -2" in ran.stdout
    assert ran.stdout.splitlines()[-1].endswith("free 0")


def test_no_more_is_reserved_than_there_is(stock: Any) -> None:
    stock.reserve(item="tea", count=3, customer="Ann")
    for count in (0, 3):
        with pytest.raises(UsageError, match="2 are free"):
            stock.reserve(item="tea", count=count, customer="Bob")
    stock.reserve(item="tea", count=2, customer="Bob")
    level = stock.level(item="tea")
    assert (level.free, [one.customer for one in level.held]) == (0, ["Ann", "Bob"])
    with pytest.raises(UsageError, match="0 are free"):
        stock.reserve(item="milk", count=1, customer="Ann")
    with pytest.raises(UsageError, match="name"):
        stock.reserve(item="", count=1)


def test_threads_of_one_node_never_oversell(stock: Any) -> None:
    refused = []

    def buy(customer: str) -> None:
        try:
            stock.reserve(item="tea", count=1, customer=customer)
        except UsageError:
            refused.append(customer)

    threads = [threading.Thread(target=buy, args=(str(number),)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    level = stock.level(item="tea")
    assert (level.free, len(level.held), len(refused)) == (0, 5, 7)


def test_reservations_are_released_and_only_those_there_are(stock: Any) -> None:
    hash = stock.reserve(item="tea", count=3, customer="Ann").hash
    with pytest.raises(UsageError, match="no such reservation"):
        stock.release(item="tea", reservations=(bytes(32),))
    stock.release(item="tea", reservations=(hash,))
    assert stock.level(item="tea").free == 5
    with pytest.raises(UsageError, match="no such reservation"):
        stock.release(item="tea", reservations=(hash,))
    with pytest.raises(UsageError, match="not oversold"):
        stock.settle(item="tea")


def test_the_stream_yields_the_level_after_each_change(stock: Any) -> None:
    with stock.subscribe("levels", wait=False, item="tea") as levels:
        stock.reserve(item="tea", count=1, customer="Ann")
        stock.count(item="milk", count=1)
        assert [level.free for level in levels.poll()] == [4]


def replicas(count: int) -> list[WeaverStore]:
    machines = (*CORE_MACHINES, inventory.Inventory)
    nodes = [WeaverNode(number, machines=machines) for number in range(1, count + 1)]
    first = nodes[0].stores.create("example:inventory")
    found = [first, *(node.join(first) for node in nodes[1:])]
    exchange(*found)
    return found


def level(store: WeaverStore, item: str = "tea") -> Any:
    return store.query("Level", inventory.Item(item))


def test_what_was_sold_apart_shows_up_and_is_settled_by_the_latest_reservations() -> None:
    one, two = replicas(2)
    one.execute("Count", inventory.Stock("tea", 5))
    exchange(one, two)
    one.execute("Reserve", inventory.Reservation("tea", 5, "Ann"))
    two.execute("Reserve", inventory.Reservation("tea", 3, "Bob"))
    exchange(one, two)
    assert level(one) == level(two)
    assert level(one).free == -3
    assert [found.item for found in one.query("Oversold", inventory.Item()).items] == ["tea"]  # type: ignore[attr-defined]
    last = level(one).held[-1].customer
    two.execute("Settle", inventory.Item("tea"))
    exchange(one, two)
    assert last not in [held.customer for held in level(one).held]
    assert level(one).free >= 0
    assert one.query("Oversold", inventory.Item()) == inventory.Levels()


def test_counts_at_the_same_time_are_a_conflict_until_the_next() -> None:
    one, two = replicas(2)
    one.execute("Count", inventory.Stock("tea", 4))
    two.execute("Count", inventory.Stock("tea", 6))
    exchange(one, two)
    assert {count.count for count in level(one).counts} == {4, 6}
    assert level(one) == level(two)
    two.execute("Count", inventory.Stock("tea", 5))
    exchange(one, two)
    assert [count.count for count in level(one).counts] == [5]


ACTIONS = st.tuples(
    st.integers(0, 2),
    st.sampled_from(["count", "reserve", "release", "settle", "meet"]),
    st.integers(1, 6),
)


@given(st.lists(ACTIONS, max_size=25))
def test_replicas_agree_whatever_is_done_and_a_command_never_oversells(
    actions: list[tuple[int, str, int]],
) -> None:
    stores = replicas(3)
    for at, action, count in actions:
        store = stores[at]
        before = level(store)
        try:
            if action == "count":
                store.execute("Count", inventory.Stock("tea", count))
            elif action == "reserve":
                store.execute("Reserve", inventory.Reservation("tea", count, "Ann"))
                assert level(store).free >= 0
            elif action == "release":
                held = tuple(one.hash for one in before.held[:count])
                store.execute("Release", inventory.Release("tea", held))
            elif action == "settle":
                store.execute("Settle", inventory.Item("tea"))
                assert level(store).free >= 0
            else:
                store.ingest(envelopes_of(stores[(at + 1) % 3]))
        except UsageError:
            assert level(store) == before
    exchange(*stores)
    assert all(state_of(one) == state_of(two) for one, two in itertools.pairwise(stores))
    assert all(store.status().stall is None for store in stores)
