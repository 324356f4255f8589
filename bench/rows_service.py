"""Rows of the benchmark that measure the doors of a service, each beside the bare library.

- grpc-N: calls a second of N clients, each with one call at a time, that read a key of a database
  over a Unix socket. Beside it a grpcio.aio method without a service that reads the same key in a
  thread. Clients and server share one process and its processors.
- rest-N: the same over HTTP on a loopback port. Beside it a bare Starlette route that reads the key
  in a thread. Clients are N connections of one process, the server is another.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import socket
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import grpc
from grpc import aio

import datalattice
from datalattice.actions import GetKey
from datalattice.api.grpc import GrpcDoor
from datalattice.cells import cell
from datalattice.client.grpc import AsyncGrpcClient
from datalattice.service import Service

Row = dict[str, object]
COMPILED = not str(cell.__file__).endswith(".py")
TURNS = 5
REQUEST = GetKey(database="shop", key="tea")


def rows(quick: bool) -> Iterator[Row]:
    """Yield the rows."""
    for clients in (1, 50):
        yield asyncio.run(_grpc(clients, 300 if quick else 1_000))
    for clients in (1, 50):
        yield _rest(clients, 1_000 if quick else 5_000)


async def _grpc(clients: int, calls: int) -> Row:
    with datalattice.open(":memory:") as node, tempfile.TemporaryDirectory() as private:
        database = node.database("shop")
        database["tea"] = 3
        path, bare_path = Path(private, "grpc.sock"), Path(private, "bare.sock")
        door = GrpcDoor(Service(node))
        await door.listen_socket(path)
        bare = await _bare(bare_path, lambda: bytes([database["tea"]]))
        async with (
            AsyncGrpcClient(path) as client,
            aio.insecure_channel(f"unix:{bare_path}") as channel,
        ):
            method = channel.unary_unary("/bare/Get")
            data = REQUEST.encode()

            async def one_bare() -> object:
                return await method(data)

            pairs = []
            for _ in range(TURNS):  # side by side: other programs slow both
                ours = await _rate(clients, calls, lambda: client.call(REQUEST))
                pairs.append((ours, await _rate(clients, calls, one_bare)))
            ours, theirs = (statistics.median(column) for column in zip(*pairs, strict=True))
        await door.stop()
        await bare.stop(None)
    return {
        "row": f"service/grpc-{clients}",
        "value": ours,
        "unit": "calls/s",
        "peers": {"grpcio.aio": theirs},
        "compiled": COMPILED,
    }


async def _bare(path: Path, read: Callable[[], bytes]) -> Any:
    """Return a server whose only method reads in a thread, as the door does."""
    pool = ThreadPoolExecutor(16)

    async def get(_data: bytes, _context: Any) -> bytes:
        return await asyncio.get_running_loop().run_in_executor(pool, read)

    server = aio.server()
    handlers = {"Get": grpc.unary_unary_rpc_method_handler(get)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bare", handlers),))
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    return server


async def _rate(clients: int, calls: int, call: Callable[[], Awaitable[object]]) -> float:
    """Return the calls a second of clients that make `calls` in all."""

    async def some(count: int) -> None:
        for _ in range(count):
            await call()

    await some(20)  # connections and threads are there
    begun = time.perf_counter()
    await asyncio.gather(*[some(calls // clients) for _ in range(clients)])
    return calls // clients * clients / (time.perf_counter() - begun)


def _rest(clients: int, calls: int) -> Row:
    """Return the rate of reads over HTTP, beside that of a bare route."""
    pairs = []
    for _ in range(TURNS):
        pairs.append([_http_rate(kind, clients, calls) for kind in ("ours", "bare")])
    ours, theirs = (statistics.median(column) for column in zip(*pairs, strict=True))
    return {
        "row": f"service/rest-{clients}",
        "value": ours,
        "unit": "calls/s",
        "peers": {"starlette": theirs},
        "compiled": COMPILED,
    }


def _http_rate(kind: str, clients: int, calls: int) -> float:
    """Return the calls a second that a server of one kind answers."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    server = context.Process(target=_serve_http, args=(kind, there), daemon=True)
    server.start()
    port = here.recv()
    path = b"/api/v1/databases/shop/keys/tea" if kind == "ours" else b"/tea"
    request = b"GET %s HTTP/1.1\r\nHost: localhost\r\nAccept: application/json\r\n\r\n" % path
    try:
        return asyncio.run(_http_clients(port, request, clients, calls))
    finally:
        server.kill()
        server.join()


async def _http_clients(port: int, request: bytes, clients: int, calls: int) -> float:
    async def one(count: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(count):
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200")
            size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            await reader.readexactly(size)
        writer.close()

    await one(50)  # the first calls load modules
    begun = time.perf_counter()
    await asyncio.gather(*(one(calls // clients) for _ in range(clients)))
    return calls // clients * clients / (time.perf_counter() - begun)


def _serve_http(kind: str, told: Connection) -> None:
    """Serve in a process of its own until it is killed."""
    import uvicorn
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    from datalattice.api.rest import rest_app
    from datalattice.service import OPERATOR

    with datalattice.open(":memory:") as node:
        database = node.database("shop")
        database["tea"] = 3
        pool = ThreadPoolExecutor(16)

        async def read(_request: Any) -> JSONResponse:
            run = asyncio.get_running_loop().run_in_executor
            return JSONResponse({"value": await run(pool, database.get, "tea")})

        app: Any = Starlette(routes=[Route("/tea", read)])
        if kind == "ours":
            app, _ = rest_app(Service(node), lambda _: OPERATOR)
        listening = socket.socket(proto=socket.IPPROTO_TCP)  # as the daemon's
        listening.bind(("127.0.0.1", 0))
        listening.listen(512)
        told.send(listening.getsockname()[1])
        config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off")
        uvicorn.Server(config).run(sockets=[listening])
