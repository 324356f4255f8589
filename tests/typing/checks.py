"""A program that must check: handles of any value, and handles of a type."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, assert_type

import datalattice
from datalattice.actions import (
    FollowTopic,
    GetKey,
    OfferedRecords,
    OfferRecords,
    QueueRecord,
)
from datalattice.apps.kv import Database, KeyChange
from datalattice.apps.queue import Queue
from datalattice.client import AsyncClient, Client, Node
from datalattice.client.asyncrest import AsyncRestClient
from datalattice.client.grpc import AsyncGrpcClient, GrpcClient
from datalattice.client.rest import RestClient
from datalattice.service import AsyncLocalClient, LocalClient
from datalattice.weaver import KVStore, LogStore, MachineStore, NullMachine


@dataclass
class Order:
    """A value."""

    total: int


def any_values(node: Node) -> None:
    """Without a type, values are Any: a program subscripts them as it likes."""
    shop = node.database("shop")
    assert_type(shop, Database[Any])
    shop["config"] = {"open": [9, 17]}
    first: int = shop["config"]["open"][0]
    shop.set("session", first, ttl=60)
    shop.set("session", first, ttl=timedelta(minutes=1))
    assert_type(shop.ttl("session"), timedelta | None)
    name: str = shop.hget("user/1", "name")
    log = node.queue("log")
    assert_type(log, Queue[Any])
    log.offer(name, key="k", headers={"a": 1})
    assert log[-1]["x"] in (log[-2:], node.topic("t").partitions(), node.feed("log"))


def stores(node: Node) -> None:
    """Take the handle that the kind gives, with values of a type; text without one."""
    notes = node.store("notes", "kv")
    assert_type(notes, KVStore[str])
    assert_type(notes["title"], str)
    assert_type(notes.history("title")[0].value, str | None)
    assert_type(node.store("orders", kind="kv", of=Order)["a"], Order)
    diary = node.store("diary", kind="log")
    assert_type(diary, LogStore[str])
    assert_type(diary[-2:], list[str])
    assert_type(next(diary.follow()).value, str)
    assert_type(node.store("raw", kind="log", of=bytes)[0], bytes)
    stock: MachineStore = node.store("stock", kind=NullMachine)
    stock.write(data=b"x")


def typed_values(node: Node) -> None:
    """With a type, values have it wherever they are read or written."""
    orders = node.queue("orders", of=Order)
    assert_type(orders, Queue[Order])
    orders.offer(Order(1))
    orders.offer_many([Order(1), Order(2)])
    assert_type(orders[-1], Order)
    assert_type([entry.value for entry in orders.follow(wait=False)], list[Order])
    kept = node.database("kept", of=Order)
    assert_type(kept, Database[Order])
    kept["a"] = Order(3)
    assert_type(kept["a"].total, int)
    assert_type(kept.modify("a", lambda order: Order(order.total + 1)), Order)
    assert_type(list(kept.items()), list[tuple[str, Order]])
    with kept.watch("a") as watch:
        assert_type(watch.poll(), list[KeyChange[Order]])
    with kept.batch() as batch:
        batch["b"] = Order(4)


def files(node: Node) -> None:
    """Open a file as text or as bytes."""
    papers = node.drive("papers")
    with papers.open("/plan", "r") as text:
        assert_type(text.read(), str)
    with papers.open("/plan") as file:
        assert_type(file.read(), bytes)


def service(client: Client) -> None:
    """Call actions: each result has the type that its request names, on every way to a service."""
    offered = client.call(OfferRecords(topic="log", values=("hello",)))
    assert_type(offered, OfferedRecords)
    assert_type(offered.spans[0].start, int)
    assert_type(client.call(GetKey(database="shop", key="tea")).ttl_ms, int | None)
    with client.stream(FollowTopic(topic="log")) as records:
        for record in records:
            assert_type(record, QueueRecord)
    store = client.store(b"\x01" * 16)
    assert_type(store.call("Get", key=b"a"), dict[str, Any])
    with store.stream("Watch", prefix=b"a") as events:
        assert_type(next(iter(events)), dict[str, Any])


async def awaited(client: AsyncClient) -> None:
    """Call the same actions with an event loop."""
    assert_type(await client.call(OfferRecords(topic="log", values=(1,))), OfferedRecords)
    async with client.stream(FollowTopic(topic="log")) as records:
        async for record in records:
            assert_type(record, QueueRecord)
    store = await client.store("0" * 32)
    assert_type(await store.call("Get", key=b"a"), dict[str, Any])


def ways(node: Node) -> list[Client]:
    """Take any way to a service where one is wanted."""
    return [LocalClient(node), RestClient("http://127.0.0.1:1"), GrpcClient("127.0.0.1:1")]


def awaited_ways(node: Node) -> list[AsyncClient]:
    """Take any way with an event loop."""
    made: list[AsyncClient] = [AsyncLocalClient(node), AsyncRestClient("http://127.0.0.1:1")]
    return [*made, AsyncGrpcClient("127.0.0.1:1")]


if __name__ == "__main__":
    with datalattice.open(":memory:") as opened:
        any_values(opened)
