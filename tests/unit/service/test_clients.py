"""One program, typed for `Client` or `AsyncClient`, in the process, over REST and over gRPC."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.unit.api.serving import serving
from tests.unit.service.cases import NO_STORE, World
from tests.unit.service.test_suite import listening

from datalattice.actions import (
    FollowTopic,
    GetKey,
    GetStoreName,
    ListTopics,
    OfferRecords,
    PutValue,
    ReadRecords,
)
from datalattice.cells import Map
from datalattice.client import AsyncClient, Client
from datalattice.client.asyncrest import AsyncRestClient
from datalattice.client.grpc import AsyncGrpcClient, GrpcClient
from datalattice.client.rest import RestClient
from datalattice.errors import MissingData, NoSuchPath, PeerUnavailable, UsageError
from datalattice.service import AsyncLocalClient, LocalClient
from datalattice.weaver import UnknownMethod

NO_HASH = b"\x07" * 32


@contextmanager
def local(world: World) -> Iterator[Client]:
    with LocalClient(world.service) as client:
        yield client


@contextmanager
def rest(world: World) -> Iterator[Client]:
    with listening(world) as url, RestClient(url) as client:
        yield client


@contextmanager
def grpc(world: World) -> Iterator[Client]:
    with serving(world.service) as served, GrpcClient(served.path) as client:
        yield client


CLIENTS: dict[str, Callable[[World], AbstractContextManager[Client]]] = {
    "process": local,
    "rest": rest,
    "grpc": grpc,
}


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


@pytest.fixture(params=list(CLIENTS))
def client(request: pytest.FixtureRequest, world: World) -> Iterator[Client]:
    with CLIENTS[request.param](world) as made:
        yield made


def test_a_call_has_its_typed_result_or_raises_the_same_error(client: Client) -> None:
    offered = client.call(OfferRecords(topic="log", values=("c", 7)))
    assert [(one.start, one.end) for one in offered.spans] == [(2, 4)]
    assert client.call(ReadRecords(topic="log", start=-1)).records[0].value == 7
    assert client.call(PutValue(value=Map.of({"a": 1}))).is_new
    with pytest.raises(NoSuchPath, match="no key"):
        client.call(GetKey(database="shop", key="none"))
    with pytest.raises(UsageError, match="stream"):
        client.call(FollowTopic(topic="log"))
    with pytest.raises(UsageError, match="answers once"):
        client.stream(ListTopics())


def test_a_stream_ends_when_another_thread_closes_it(client: Client) -> None:
    seen: list[Any] = []
    second = threading.Event()

    def read() -> None:
        for record in stream:
            seen.append(record.value)
            if len(seen) == 2:
                second.set()

    with client.stream(FollowTopic(topic="log")) as stream:
        reader = threading.Thread(target=read)
        reader.start()
        assert second.wait(60)
        stream.close()
        reader.join(60)
        assert not reader.is_alive()
    assert seen == ["a", "b"]


def test_a_stream_raises_the_error_of_the_service(client: Client) -> None:
    with pytest.raises(UsageError), client.stream(FollowTopic(topic="log", start="soon")) as items:
        next(iter(items))


def test_methods_of_a_store_take_and_return_plain_values(client: Client, world: World) -> None:
    store = client.store(world.store)
    written = store.call("Put", key=b"a", value=b"b")
    assert len(written["hash"]) == 32
    assert store.call("get", key=b"a") == store.get(key=b"a")
    assert store.get(key=b"a")["value"] == b"b"
    assert store.get(key=b"none")["value"] is None
    listed = store.call("List", prefix=b"a")
    assert [dict(one, hash=b"")["key"] for one in listed["items"]] == [b"a"]
    assert client.store(world.store.hex()).names() == store.names()
    with pytest.raises(NoSuchPath):
        client.store(NO_STORE)
    with pytest.raises(UsageError, match=r"PutRequest: .*its fields are: key, value"):
        store.put(key=7)
    with pytest.raises(UnknownMethod, match="it has Put"):
        store.call("Sell")
    with pytest.raises(UsageError, match="use `stream`"):
        store.call("Watch")
    with pytest.raises(UsageError, match="use `call`"):
        store.stream("Get")


def test_methods_of_a_store_are_described(client: Client, world: World) -> None:
    methods = {one.name: one for one in client.store(world.store).methods()}
    assert (methods["Put"].kind, methods["Get"].kind, methods["Watch"].kind) == (
        "command",
        "query",
        "stream",
    )
    assert methods["Put"].description
    assert [one.name for one in methods["Put"].request.declared()] == ["key", "value"]


def test_a_stream_of_a_store_has_plain_events(client: Client, world: World) -> None:
    store = client.store(world.store)
    seen: list[dict[str, Any]] = []
    begun, ended = threading.Event(), threading.Event()

    def read() -> None:
        with store.stream("Watch", prefix=b"w") as events:
            begun.set()
            seen.append(next(iter(events)))
        ended.set()

    threading.Thread(target=read, daemon=True).start()
    assert begun.wait(60)
    while not ended.wait(0.01):  # until the service has the subscription, nobody is told
        store.put(key=b"w1", value=b"x")
    assert (seen[0]["key"], seen[0]["value"]) == (b"w1", b"x")


def test_nobody_there_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(PeerUnavailable):
        RestClient(str(tmp_path / "none.sock"))
    with pytest.raises(PeerUnavailable):
        AsyncRestClient(str(tmp_path / "none.sock"))
    with pytest.raises(UsageError):
        AsyncRestClient("ftp://127.0.0.1:1")
    with RestClient("http://127.0.0.1:1") as client, pytest.raises(PeerUnavailable):
        next(iter(client.stream(FollowTopic(topic="log"))))


# --- with an event loop ---------------------------------------------------------------------------


async def over_local(world: World, act: Callable[[AsyncClient], Awaitable[None]]) -> None:
    async with AsyncLocalClient(world.service) as client:
        await act(client)


async def over_rest(world: World, act: Callable[[AsyncClient], Awaitable[None]]) -> None:
    with listening(world) as url:
        async with AsyncRestClient(url) as client:
            await act(client)


async def over_grpc(world: World, act: Callable[[AsyncClient], Awaitable[None]]) -> None:
    with serving(world.service) as served:
        async with AsyncGrpcClient(served.path) as client:
            await act(client)


@pytest.mark.parametrize("way", [over_local, over_rest, over_grpc])
def test_an_async_client_does_the_same(world: World, way: Any) -> None:
    async def act(client: AsyncClient) -> None:
        await client.call(OfferRecords(topic="log", values=("c",)))
        async with client.stream(FollowTopic(topic="log", start="1")) as records:
            taken = []
            async for record in records:
                taken.append(record.value)
                if len(taken) == 2:
                    await client.call(OfferRecords(topic="log", values=("d",)))
                if len(taken) == 3:
                    break
        assert taken == ["b", "c", "d"]
        found = await client.call(PutValue(value=Map.of({"a": 1})))
        assert found.is_new
        with pytest.raises(NoSuchPath):
            await client.call(GetStoreName(id=NO_STORE))
        with pytest.raises(UsageError):
            async with client.stream(FollowTopic(topic="log", start="soon")) as records:
                await anext(records)
        await use_store(client, world)

    asyncio.run(way(world, act))


async def use_store(client: AsyncClient, world: World) -> None:
    store = await client.store(world.store)
    await store.put(key=b"a", value=b"b")
    assert (await store.call("Get", key=b"a"))["value"] == b"b"
    assert [one.kind for one in await store.methods() if one.name == "Get"] == ["query"]
    with pytest.raises(UnknownMethod):
        await store.call("Sell")

    async def write() -> None:
        while True:
            await store.put(key=b"w1", value=b"x")

    writer = asyncio.create_task(write())
    async with store.stream("Watch", prefix=b"w") as events:
        assert (await anext(events))["key"] == b"w1"
    writer.cancel()


def test_calls_of_an_async_client_go_on_side_by_side(world: World) -> None:
    async def act(client: AsyncClient) -> None:
        await asyncio.gather(
            *(client.call(OfferRecords(topic="log", values=(n,))) for n in range(8))
        )
        page = await client.call(ReadRecords(topic="log"))
        assert sorted(one.value for one in page.records[2:]) == list(range(8))  # type: ignore[type-var]

    asyncio.run(over_rest(world, act))


def test_missing_cells_are_named_over_rest_with_an_event_loop(world: World) -> None:
    async def act(client: AsyncClient) -> None:
        from datalattice.actions import PutPin

        with pytest.raises(MissingData) as caught:
            await client.call(PutPin(label="x", hash=NO_HASH))
        assert tuple(caught.value.hashes) == (NO_HASH,)

    asyncio.run(over_rest(world, act))
