"""Transfers: one large file to and from the daemon, beside a plain file server.

Both are processes of their own on a loopback port, asked in turn by one blocking socket. The plain
server answers with Starlette's FileResponse, and writes an upload to a file that it syncs. Ours is
`lattice daemon`: an upload is hashed cell by cell, stored, named by a signed edit, and synced. The
content of an asset is a file there: an upload is hashed, synced and renamed, a download checked.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from figures import Row, row

import datalattice
from datalattice.client import VenueClient

TURNS = 3
TAKEN_BYTES = 1 << 20
WAIT_S = 120
PLAIN = "file server"


CONTENT = "content"


class FileServer(NamedTuple):
    """A server: its process, its port, a header of each request, and the socket of its owner."""

    pid: int
    port: int
    header: str = ""
    socket: str = ""


def transfer_rows(quick: bool) -> Iterator[Row]:
    """Yield the rows: MB/s each way, and the most memory of the processes in MB."""
    size = (256 if quick else 1_024) << 20
    targets = {
        "rest": "/api/v1/drives/d/files/f",
        "webdav": "/dlfs/own/d/f",
        CONTENT: "",
        PLAIN: "/f",
    }
    rates: dict[str, dict[str, list[float]]] = {"upload": {}, "download": {}}
    with tempfile.TemporaryDirectory() as folder, _daemon(Path(folder, "node")) as ours:
        source = Path(folder, "source")
        with _plain(Path(folder)) as plain:
            for _ in range(TURNS):
                targets[CONTENT] = _registered(ours, source, size)
                for way, found in rates.items():
                    for who, path in targets.items():
                        server = plain if who == PLAIN else ours
                        sent = source if way == "upload" else None
                        seconds = _transferred(server, path, size, sent)
                        found.setdefault(who, []).append(size / seconds / 1e6)
            memory = {PLAIN: _most_mb(plain.pid)}
        most_mb = _most_mb(ours.pid)
    for way, found in rates.items():
        middle = {who: statistics.median(each) for who, each in found.items()}
        for door in ("rest", "webdav", CONTENT):
            name = f"service/{door}-{way}"
            yield row(name, middle[door], "MB/s", {PLAIN: middle[PLAIN]})
    yield row("service/transfer-memory", most_mb, "MB", memory)


def _registered(server: FileServer, source: Path, size: int) -> str:
    """Write a new file and register it as an asset; return the path of its content."""
    with source.open("wb") as file:
        for _ in range(size // TAKEN_BYTES):
            file.write(os.urandom(TAKEN_BYTES))  # random: a store keeps equal chunks once
    with source.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    with VenueClient.connect(server.socket) as venue:
        asset = venue.register({"content": {"sha256": digest}})
    return f"/api/v1/assets/{asset.hex()}/content"


def _most_mb(pid: int) -> float:
    """Return the peak memory of a process in MB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (found,) = (line.split()[1] for line in lines if line.startswith("VmHWM:"))
    return int(found) / 1_000


def _transferred(server: FileServer, path: str, size: int, sent: Path | None) -> float:
    """Send or fetch a file of `size` bytes; return the seconds until the answer is complete."""
    verb = "GET" if sent is None else "PUT"
    # The connection is closed after the answer, so its end is found without reading its head.
    head = f"{verb} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n{server.header}connection: close\r\n"
    if sent is not None:
        head += f"content-type: application/octet-stream\r\ncontent-length: {size}\r\n"
    begun = time.perf_counter()
    with socket.create_connection(("127.0.0.1", server.port), WAIT_S) as connection:
        connection.sendall(f"{head}\r\n".encode())
        if sent is not None:
            with sent.open("rb") as file:
                connection.sendfile(file)
        buffer, taken, first = bytearray(TAKEN_BYTES), 0, b""
        while got := connection.recv_into(buffer):
            first = first or bytes(buffer[:got])
            taken += got
    assert first.startswith(b"HTTP/1.1 20"), first
    assert sent is not None or taken > size
    return time.perf_counter() - begun


@contextmanager
def _daemon(folder: Path) -> Iterator[FileServer]:
    with datalattice.open(folder) as node:
        node.drive("d").ensure()
        did = node.venue().did
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
    lattice = (sys.executable, "-m", "datalattice.cli")
    command = [*lattice, "daemon", "--dir", str(folder), "--rest", f"127.0.0.1:{port}"]
    command += ["--admin", did]
    quiet: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    chosen = {"LATTICE_VENUE_STORAGE": "file", "LATTICE_VENUE_CONTENT_BYTES_MAX": str(1 << 32)}
    with subprocess.Popen(command, env={**os.environ, **chosen}, **quiet) as program:
        try:
            _wait_for(port)
            url = f"http://127.0.0.1:{port}"
            ask = [*lattice, "key", "token", url, "--dir", str(folder)]
            token = subprocess.run(ask, capture_output=True, check=True, text=True).stdout.strip()
            header = f"authorization: Bearer {token}\r\n"
            yield FileServer(program.pid, port, header, str(folder / "rest.sock"))
        finally:
            program.terminate()


def _wait_for(port: int) -> None:
    ends_s = time.monotonic() + WAIT_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), WAIT_S).close()
        except OSError:
            if time.monotonic() > ends_s:
                raise
            time.sleep(0.05)
        else:
            return


@contextmanager
def _plain(folder: Path) -> Iterator[FileServer]:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    server = context.Process(target=_serve_files, args=(folder / "plain", there), daemon=True)
    server.start()
    try:
        assert server.pid is not None
        yield FileServer(server.pid, here.recv())
    finally:
        server.kill()
        server.join()


def _serve_files(path: Path, told: Connection) -> None:
    """Serve one file in a process of its own until it is killed."""
    import uvicorn
    from starlette.applications import Starlette
    from starlette.responses import FileResponse, Response
    from starlette.routing import Route

    async def get(_request: Any) -> Response:
        return FileResponse(path)

    async def put(request: Any) -> Response:
        with path.open("wb") as file:
            async for piece in request.stream():
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())  # an upload to ours is durable when it is answered
        return Response(status_code=201)

    app = Starlette(routes=[Route("/f", get), Route("/f", put, methods=["PUT"])])
    listening = socket.create_server(("127.0.0.1", 0))
    told.send(listening.getsockname()[1])
    config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off")
    uvicorn.Server(config).run(sockets=[listening])
