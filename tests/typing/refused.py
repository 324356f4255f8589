"""A program with mistakes: a type checker must report each line that is marked, and no other."""

from __future__ import annotations

from dataclasses import dataclass

from datalattice.actions import GetKey, ListTopics, OfferRecords
from datalattice.client import Client, Node


@dataclass
class Order:
    """A value."""

    total: int


def mistakes(node: Node) -> None:
    """Give values of another type, and use values as another type."""
    orders = node.queue("orders", of=Order)
    orders.offer("one")  # mistake
    orders.offer_many([1, 2])  # mistake
    total = orders[-1].price  # mistake
    orders.offer(Order(1), "key")  # mistake
    kept = node.database("kept", of=Order)
    kept["a"] = 3  # mistake
    kept.set("a", Order(1), ttl="60")  # mistake
    kept.set("a", Order(1), ttl_ms=60)  # mistake
    assert kept["a"].price == total  # mistake
    kept[5]  # mistake
    node.database("shop").ttl("k") + 5  # mistake
    node.drive("papers").open("/plan", "r").write(b"bytes")  # mistake


def wrong_requests(client: Client) -> None:
    """Give a field another type, and read a field that the result does not have."""
    client.call(OfferRecords(topic=1))  # mistake
    client.call(OfferRecords(values=["hello"]))  # mistake
    spans = client.call(GetKey(database="shop")).spans  # mistake
    client.call("queue.offer", spans)  # mistake
    client.store(b"").call(key=b"")  # mistake
    with client.stream(ListTopics()) as items:
        next(items)  # mistake
