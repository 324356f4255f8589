"""Rows of the benchmark that measure the doors of a service, each beside the bare library.

- grpc-N: calls a second of N clients, each with one call at a time, that read a key of a database
  over a Unix socket. Beside it a grpcio.aio method without a service that reads the same key in a
  thread. Clients and server share one process and its processors.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
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
