"""Rows of the benchmark that measure the doors of a service, beside bare libraries and servers.

- grpc-N: calls a second of N clients, each with one call at a time, that read a key of a database
  over a Unix socket. Beside it a grpcio.aio method without a service that reads the same key in a
  thread. Clients and server share one process and its processors.
- rest-N: the same over HTTP on a loopback port. Beside it a bare Starlette route that reads the key
  in a thread, and where they are installed redis (GET) and etcd (a range, over its JSON gateway).
  Clients are N connections of one process, the server is another.
- rest-put-N: durable writes of one key each by N clients, beside redis that syncs every write
  (`appendfsync always`) and etcd. Ours are signed.
- rest-upload, rest-download, webdav-*: one large file, beside a plain file server, and the most
  memory of both (transfers.py).
- NAME-p50, NAME-p99: the time of one call in the same run, while N - 1 others wait as well.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import shutil
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import grpc
from figures import Row, row
from grpc import aio
from transfers import transfer_rows

import datalattice
from datalattice.actions import GetKey
from datalattice.api.grpc import GrpcDoor
from datalattice.client.grpc import AsyncGrpcClient
from datalattice.service import Service

TURNS = 5
CLIENTS = (1, 50, 500)
REQUEST = GetKey(database="shop", key="tea")


def rows(quick: bool) -> Iterator[Row]:
    """Yield the rows."""
    for clients in CLIENTS:
        yield from asyncio.run(_grpc(clients, 500 if quick else 2_000))
    for clients in CLIENTS:
        yield from _http(f"rest-{clients}", READERS, clients, 1_000 if quick else 5_000)
    for clients in CLIENTS:
        yield from _http(f"rest-put-{clients}", WRITERS, clients, 500 if quick else 2_000)
    yield from transfer_rows(quick)


# --- measuring ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Measured:
    """The calls of one run: how many a second, and how long one of them took, in ms."""

    rate: float
    p50_ms: float
    p99_ms: float


def _summary(name: str, runs: dict[str, list[Measured]]) -> Iterator[Row]:
    """Yield the rows of a measurement: medians of its runs, those of "ours" beside the others."""
    for suffix, unit, read in (
        ("", "calls/s", lambda run: run.rate),
        ("-p50", "ms", lambda run: run.p50_ms),
        ("-p99", "ms", lambda run: run.p99_ms),
    ):
        values = {who: statistics.median(map(read, done)) for who, done in runs.items()}
        yield row(f"service/{name}{suffix}", values.pop("ours"), unit, values)


async def _measure(clients: Sequence[Callable[[], Awaitable[object]]], calls: int) -> Measured:
    """Return the rate and times of clients that share `calls`, each with one at a time."""
    times: list[float] = []

    async def some(call: Callable[[], Awaitable[object]]) -> None:
        for _ in range(max(1, calls // len(clients))):
            begun = time.perf_counter()
            await call()
            times.append(time.perf_counter() - begun)

    for _ in range(20):  # the first calls load modules and start threads
        await clients[0]()
    begun = time.perf_counter()
    await asyncio.gather(*map(some, clients))
    seconds = time.perf_counter() - begun
    times.sort()
    p50, p99 = times[len(times) // 2], times[len(times) * 99 // 100]
    return Measured(len(times) / seconds, 1000 * p50, 1000 * p99)


# --- gRPC ---------------------------------------------------------------------------------------


async def _grpc(clients: int, calls: int) -> list[Row]:
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

            runs: dict[str, list[Measured]] = {"ours": [], "grpcio.aio": []}
            for _ in range(TURNS):  # side by side: other programs slow both
                runs["ours"].append(await _measure([lambda: client.call(REQUEST)] * clients, calls))
                runs["grpcio.aio"].append(await _measure([one_bare] * clients, calls))
        await door.stop()
        await bare.stop(None)
    return list(_summary(f"grpc-{clients}", runs))


async def _bare(path: Path, read: Callable[[], bytes]) -> Any:
    """Return a server whose only method reads in a thread, as the door does."""
    pool = ThreadPoolExecutor(16)  # as many as the door has

    async def get(_data: bytes, _context: Any) -> bytes:
        return await asyncio.get_running_loop().run_in_executor(pool, read)

    server = aio.server()
    handlers = {"Get": grpc.unary_unary_rpc_method_handler(get)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bare", handlers),))
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    return server


# --- HTTP, and servers beside it ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Server:
    """A server in a process of its own. start: from a folder; a context that gives its port."""

    start: Callable[[Path], Any]
    request: bytes
    is_http: bool = True


def _http(name: str, servers: dict[str, Server], clients: int, calls: int) -> Iterator[Row]:
    runs: dict[str, list[Measured]] = {who: [] for who in servers}
    for _ in range(TURNS):
        for who, server in servers.items():
            with tempfile.TemporaryDirectory() as folder, server.start(Path(folder)) as port:
                runs[who].append(asyncio.run(_connections(port, server, clients, calls)))
    yield from _summary(name, runs)


async def _connections(port: int, server: Server, clients: int, calls: int) -> Measured:
    connections = [await asyncio.open_connection("127.0.0.1", port) for _ in range(clients)]
    ask = _ask_http if server.is_http else _ask_redis

    def caller(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Any:
        return lambda: ask(reader, writer, server.request)

    try:
        return await _measure([caller(*each) for each in connections], calls)
    finally:
        for _, writer in connections:
            writer.close()


async def _ask_http(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes
) -> None:
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 20"), head
    # The least that a client has to do, the same for each server: a real one would be most of the
    # time.
    size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    await reader.readexactly(size)


async def _ask_redis(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes
) -> None:
    writer.write(request)
    line = await reader.readline()
    assert line[:1] in b"+$", line
    # A read is answered with its length first, a write with one line.
    if line.startswith(b"$"):
        await reader.readexactly(int(line[1:]) + 2)


def _get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: application/json\r\n\r\n".encode()


def _post(path: str, body: bytes) -> bytes:
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAccept: application/json\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def _command(*words: bytes) -> bytes:
    """Return a command of redis."""
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words)


@contextmanager
def _python(kind: str, folder: Path) -> Iterator[int]:
    """Serve with a server of this file, until the end."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    server = context.Process(target=_serve_http, args=(kind, folder, there), daemon=True)
    server.start()
    try:
        yield here.recv()
    finally:
        server.kill()
        server.join()


def _serve_http(kind: str, folder: Path, told: Connection) -> None:
    """Serve in a process of its own until it is killed."""
    import uvicorn
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    from datalattice.api.rest import rest_app
    from datalattice.service import OPERATOR

    with datalattice.open(folder if kind == "durable" else ":memory:") as node:
        database = node.database("shop")
        database["tea"] = 3
        pool = ThreadPoolExecutor(16)  # as many as the door has

        async def read(_request: Any) -> JSONResponse:
            run = asyncio.get_running_loop().run_in_executor
            return JSONResponse({"value": await run(pool, database.get, "tea")})

        app: Any = Starlette(routes=[Route("/tea", read)])
        if kind != "bare":
            app, _ = rest_app(Service(node), lambda _: OPERATOR)
        listening = socket.socket(proto=socket.IPPROTO_TCP)  # as the daemon's
        listening.bind(("127.0.0.1", 0))
        listening.listen(512)  # the most clients connect before any of them is accepted
        told.send(listening.getsockname()[1])
        config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off")
        uvicorn.Server(config).run(sockets=[listening])


@contextmanager
def _program(command: Callable[[Path, int], list[str]], folder: Path) -> Iterator[int]:
    """Run another server on a free port until the end, with the key in it."""
    port = _free_port()
    with subprocess.Popen(
        command(folder, port), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as program:
        try:
            asyncio.run(_fill(port, command is _redis))
            yield port
        finally:
            program.kill()


async def _fill(port: int, is_redis: bool) -> None:
    """Write the key, once the server answers."""
    server = WRITERS["redis" if is_redis else "etcd"]
    ask = _ask_redis if is_redis else _ask_http
    for attempt in range(100):
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            await ask(reader, writer, server.request)
            writer.close()
            break
        except (OSError, AssertionError, asyncio.IncompleteReadError):
            if attempt == 99:
                raise
            await asyncio.sleep(0.1)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        assert isinstance(port, int)
        return port


def _redis(folder: Path, port: int) -> list[str]:
    return [
        *("redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder)),
        # As durable as the others: each write is synced before its answer.
        *("--save", "", "--appendonly", "yes", "--appendfsync", "always"),
    ]


def _etcd(folder: Path, port: int) -> list[str]:
    peers = f"http://127.0.0.1:{_free_port()}"
    return [
        *("etcd", "--data-dir", str(folder), "--log-level", "error"),
        *("--listen-client-urls", f"http://127.0.0.1:{port}"),
        *("--advertise-client-urls", f"http://127.0.0.1:{port}"),
        *("--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers),
        *("--initial-cluster", f"default={peers}"),
    ]


def _installed(servers: dict[str, Server]) -> dict[str, Server]:
    # Those of Python need no program; `sh` is always there.
    programs = {"redis": "redis-server", "etcd": "etcd"}
    return {who: one for who, one in servers.items() if shutil.which(programs.get(who, "sh"))}


_KEYS = "/api/v1/databases/shop"
_TEA = b'{"key":"dGVh"}'

READERS = _installed(
    {
        "ours": Server(lambda folder: _python("ours", folder), _get(f"{_KEYS}/keys/tea")),
        "starlette": Server(lambda folder: _python("bare", folder), _get("/tea")),
        "redis": Server(lambda folder: _program(_redis, folder), _command(b"GET", b"tea"), False),
        "etcd": Server(lambda folder: _program(_etcd, folder), _post("/v3/kv/range", _TEA)),
    }
)

WRITERS = _installed(
    {
        "ours": Server(
            lambda folder: _python("durable", folder),
            _post(f"{_KEYS}/writes", b'{"writes":[{"key":"tea","operation":"set","value":4}]}'),
        ),
        "redis": Server(
            lambda folder: _program(_redis, folder), _command(b"SET", b"tea", b"4"), False
        ),
        "etcd": Server(
            lambda folder: _program(_etcd, folder),
            _post("/v3/kv/put", b'{"key":"dGVh","value":"NA=="}'),
        ),
    }
)
