"""Doors: the ways in which users reach the service of a running node, in a thread of their own.

    rest.sock     REST, for our own user
    grpc/         gRPC, in a folder that only our user can enter
    host:port     both, on request, for callers with credentials
    /dlfs         of REST: the drives, over WebDAV
    /mcp          of REST, on request: tools for language models

They have an event loop of their own: requests of users do not delay the node's peers.

Source: docs/design/service.md "Doors".
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, cast

import uvicorn
from starlette.types import ASGIApp

from datalattice.actions import DoorStatement, NodeEvent
from datalattice.api.certificates import DoorCertificate
from datalattice.api.grpc import FOLDER_MODE, GrpcAuthenticate, GrpcDoor
from datalattice.api.rest import HTTP_LIMITS, LOCAL_HOSTS, BoundedHttp, RestDoor, rest_app
from datalattice.api.webdav import WEBDAV_BASE, WebDavDoor
from datalattice.client import Node
from datalattice.client import open as open_node
from datalattice.client.settings import DoorConfig, NodeConfig, split_listen
from datalattice.clock import Clock, SystemClock
from datalattice.crypto import KeyPair
from datalattice.cursors import EventRing
from datalattice.engine import Engine, open_engine
from datalattice.errors import DataLatticeError, UnsupportedOperation, UsageError
from datalattice.lattice import did_of
from datalattice.node import SOCKET_PATH_BYTES_MAX, bind_socket, remove_socket
from datalattice.service import Service
from datalattice.service.access import (
    SPENT_TABLE,
    AccessControl,
    Audit,
    Authenticator,
    Credentials,
    Origin,
    Policies,
    Policy,
    Principal,
    RateLimits,
    SpentIds,
)

if TYPE_CHECKING:
    from datalattice.api.mcp import McpDoor

_log = logging.getLogger("datalattice.access")

ACCESS_FOLDER: Final = "access"
"""The folder of the ids that credentials have used up, below that of the node."""

REST_SOCKET: Final = "rest.sock"
GRPC_FOLDER: Final = "grpc"
GRPC_SOCKET: Final = "grpc.sock"

MCP_PATH: Final = "/mcp"
"""Where the REST listeners have the tools for language models."""

DRAIN_S: Final = 10.0
"""How long requests in flight may take when the doors close."""

BACKLOG: Final = 512
"""Connections that wait to be taken."""

RENEW_EVERY_S: Final = 3_600.0
"""How often certificates are looked at."""

UNNAMED: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104 - not to bind: not names of a host


class Doors:
    """The doors of one node. Call `bind`, `start` once the node serves, and `stop`."""

    def __init__(
        self, folder: Path, config: NodeConfig, identity: KeyPair, clock: Clock | None = None
    ) -> None:
        self._folder = folder
        self._config = config
        self._identity = identity
        self._clock = clock or SystemClock()
        self._certificates: dict[DoorConfig, DoorCertificate] = {}
        self._sockets: list[tuple[socket.socket, DoorConfig | None]] = []
        self._made: tuple[str, str | None] | None = None
        self._addresses: dict[str, str] = {}
        self._grpc_path = ""
        self._temporary: list[str] = []
        self._node: Node | None = None
        self._engine: Engine | None = None
        self._servers: list[uvicorn.Server] = []
        self._rest: list[RestDoor] = []
        self._webdav: list[WebDavDoor] = []
        self._thread: threading.Thread | None = None
        self._end: Callable[[], object] | None = None

    def bind(self) -> dict[str, str]:
        """Take the addresses, and return them by the names of the doors.

        Raises: UsageError: one is taken.
        """
        listening, path, owned = bind_socket(self._folder, REST_SOCKET)
        self._made = (path, owned)
        self._sockets.append((listening, None))
        self._addresses["socket"] = path
        rest, grpc = self._config.rest, self._config.grpc
        self._make_certificates(rest, grpc)
        if rest.listen is not None:
            self._sockets.append((_bound(rest.listen), rest))
            host, port = self._sockets[-1][0].getsockname()[:2]
            scheme = "https" if rest.has_tls else "http"
            self._addresses["rest"] = f"{scheme}://{_written(host)}:{port}"
            if self._config.webdav:
                self._addresses["webdav"] = f"{self._addresses['rest']}{WEBDAV_BASE}/"
            if self._config.mcp != "off":
                self._addresses["mcp"] = self._addresses["rest"] + MCP_PATH
        self._grpc_path = self._grpc_socket()
        self._addresses["grpc socket"] = self._grpc_path
        if grpc.listen is not None:
            self._addresses["grpc"] = grpc.listen
        for one, _ in self._sockets:
            one.listen(BACKLOG)  # whoever reads the address can connect at once
        return dict(self._addresses)

    def _make_certificates(self, *doors: DoorConfig) -> None:
        """Make or read the certificates of the doors with TLS. Raises: UsageError."""
        using = [door for door in doors if door.listen is not None and door.has_tls]
        hosts = tuple(sorted({one for door in using for one in _hosts_of(door)} - UNNAMED))
        made: dict[object, DoorCertificate] = {}  # two doors may have the same one
        for door in using:
            files = None
            if door.cert is not None and door.key is not None:
                files = (self._folder / door.cert, self._folder / door.key)
            if files not in made:
                made[files] = DoorCertificate(
                    self._folder, self._identity, self._clock, files, hosts
                )
            self._certificates[door] = made[files]

    def statements(self) -> tuple[DoorStatement, ...]:
        """Return what the node states about the certificates of its doors."""
        found = dict.fromkeys(self._certificates.values())  # two doors may have one
        return tuple(one for certificate in found for one in certificate.statements)

    async def _renew(self) -> None:
        """Take newer certificates as they come, for ever."""
        while True:
            await asyncio.sleep(RENEW_EVERY_S)
            for certificate in self._certificates.values():
                try:
                    await asyncio.to_thread(certificate.refresh)
                except DataLatticeError as error:
                    _log.error("a door keeps its certificate: %s", error)

    def _grpc_socket(self) -> str:
        """Return where the socket of gRPC is to be, in a folder that only our user can enter."""
        # gRPC makes its socket itself, so the folder has to keep others out.
        inside = self._folder.absolute() / GRPC_FOLDER
        if len(os.fsencode(inside / GRPC_SOCKET)) > SOCKET_PATH_BYTES_MAX:
            made = tempfile.mkdtemp(prefix="lattice-")
            self._temporary.append(made)
            inside = Path(made)
        inside.mkdir(mode=FOLDER_MODE, exist_ok=True)
        inside.chmod(FOLDER_MODE)
        (inside / GRPC_SOCKET).unlink(missing_ok=True)  # left by a node that was killed
        return str(inside / GRPC_SOCKET)

    def start(self, events: EventRing[NodeEvent] | None = None) -> None:
        """Open the folder and serve. events: of the node.

        Raises: UsageError: the rules of access cannot be read.
        """
        self._node = open_node(self._folder)
        access = self._access()
        service = Service(self._node, access=access, doors=self.statements, events=events)
        mcp = None if self._config.mcp == "off" else _mcp_door(service, self._config.mcp)
        for _, listener in self._sockets:
            hosts: tuple[str, ...] = ()
            if listener is not None and (listener.is_local or listener.hosts):
                hosts = (*LOCAL_HOSTS, *listener.hosts)
            local: Literal["socket"] | None = "socket" if listener is None else None
            mounts: dict[str, ASGIApp] = {}
            if mcp is not None:
                mounts[MCP_PATH] = mcp.app(access.enter, local)
            if self._config.webdav:
                self._webdav.append(WebDavDoor(service, access.enter, local=local))
                mounts[WEBDAV_BASE] = self._webdav[-1]
            app, door = rest_app(service, access.enter, local=local, hosts=hosts, mounts=mounts)
            certificate = None if listener is None else self._certificates.get(listener)
            self._servers.append(_server(app, certificate))
            self._rest.append(door)
        begun: Future[Callable[[], object]] = Future()
        work = self._serve(service, access, begun)
        if mcp is not None:
            work = _within(mcp.serving(), work)
        self._thread = threading.Thread(target=lambda: asyncio.run(work), name="doors")
        self._thread.start()
        self._end = begun.result()

    async def _serve(
        self, service: Service, access: AccessControl, begun: Future[Callable[[], object]]
    ) -> None:
        """Serve until what it gives to `begun` is called, from any thread."""
        loop, ending = asyncio.get_running_loop(), asyncio.Event()
        doors: list[GrpcDoor] = []
        try:
            doors.append(GrpcDoor(service))
            await doors[0].listen_socket(self._grpc_path)
            if self._config.grpc.listen is not None:
                doors.append(GrpcDoor(service, _entering(access)))
                await self._listen(doors[1], self._config.grpc)
        except Exception as error:  # noqa: BLE001 - raised in the thread that waits
            begun.set_exception(UsageError(str(error)) if isinstance(error, OSError) else error)
            await asyncio.gather(*(door.stop(0.0) for door in doors))
            return
        begun.set_result(lambda: loop.call_soon_threadsafe(ending.set))
        servers = [
            asyncio.ensure_future(server.serve(sockets=[one]))
            for server, (one, _) in zip(self._servers, self._sockets, strict=True)
        ]
        renewing = asyncio.ensure_future(self._renew())
        await ending.wait()
        renewing.cancel()
        for server in self._servers:
            server.should_exit = True
        for rest in self._rest:
            rest.drain()
        # Side by side: all doors have the same time for the requests in flight.
        await asyncio.gather(*servers, *(door.stop(DRAIN_S) for door in doors))

    async def _listen(self, door: GrpcDoor, listener: DoorConfig) -> None:
        certificate = self._certificates.get(listener)
        newest = None if certificate is None else lambda: (certificate.key, certificate.chain)
        assert listener.listen is not None
        await door.listen_tcp(listener.listen, newest, insecure=listener.insecure)

    def _access(self) -> AccessControl:
        clock, limits = self._clock, RateLimits()
        reading: Any = self._config.reading
        policies = Policies(self._folder, Policy(frozenset(self._config.admins), reading))
        # On disk: a request that was signed once is not taken again after a restart.
        self._engine = open_engine(self._folder / ACCESS_FOLDER, (SPENT_TABLE,))
        spent = SpentIds(self._engine)
        urls = [
            f"{scheme}://{_written(host)}:{port}"
            for scheme, port, hosts in self._listeners()
            for host in hosts
        ]
        did = did_of(self._identity.public_key)
        authenticator = Authenticator(did, urls, spent, limits)
        audit = Audit(lambda record: _log.info("%s", record.line()))
        return AccessControl(authenticator, policies, limits, audit, clock, self._identity)

    def _listeners(self) -> Iterator[tuple[str, str, tuple[str, ...]]]:
        """Yield the scheme, the port, and all names under which each may be asked for."""
        for name, listener in (("rest", self._config.rest), ("grpc", self._config.grpc)):
            if listener.listen is not None:
                scheme = "https" if listener.has_tls else "http"
                port = self._addresses[name].rpartition(":")[2]
                yield scheme, port, (*LOCAL_HOSTS, *_hosts_of(listener))

    def stop(self) -> None:
        """End what is being served; requests in flight get some seconds."""
        if self._end is not None:
            self._end()
        if self._thread is not None:
            self._thread.join()
        for rest in self._rest:
            rest.close()
        for webdav in self._webdav:
            webdav.close()
        for one, _ in self._sockets:
            one.close()
        if self._made is not None:
            remove_socket(*self._made)
        if self._grpc_path:
            Path(self._grpc_path).unlink(missing_ok=True)
        for made in self._temporary:
            shutil.rmtree(made, ignore_errors=True)
        if self._node is not None:
            self._node.close()
        if self._engine is not None:
            self._engine.close()


def _mcp_door(service: Service, tools: str) -> McpDoor:
    try:
        # Loaded where it is wanted: it takes a second, and 60 MB.
        from datalattice.api.mcp import McpDoor, McpTools  # noqa: PLC0415
    except ImportError as error:
        raise UnsupportedOperation(
            f"the package {error.name} is not installed: pip install 'datalattice[mcp]'"
        ) from error
    chosen: Any = tools  # one of the words that its setting takes
    return McpDoor(McpTools(service, chosen))


async def _within(context: AbstractAsyncContextManager[None], work: Awaitable[None]) -> None:
    async with context:
        await work


def _entering(access: AccessControl) -> GrpcAuthenticate:
    """Return what tells a gRPC door who asks."""
    numbers = count(1)

    def enter(metadata: Mapping[str, str], address: str | None) -> Principal:
        origin = Origin("grpc", next(numbers), address)
        return access.enter(Credentials(headers=metadata, origin=origin))

    return enter


def _hosts_of(listener: DoorConfig) -> tuple[str, ...]:
    """Return the names under which a listener may be asked for."""
    assert listener.listen is not None
    return (split_listen(listener.listen)[0], *listener.hosts)


def _written(host: str) -> str:
    """Return a host as it stands in a URL."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def _server(app: Any, certificate: DoorCertificate | None) -> uvicorn.Server:
    config = uvicorn.Config(
        app,
        http=cast("Any", partial(BoundedHttp, HTTP_LIMITS)),  # it is called, like a class
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        server_header=False,
        timeout_graceful_shutdown=round(DRAIN_S),
        backlog=BACKLOG,
        # One context for all connections: it shows a renewed certificate to new ones.
        ssl_context_factory=None if certificate is None else lambda *_: certificate.context,
    )
    return uvicorn.Server(config)


def _bound(text: str) -> socket.socket:
    """Return a socket that is bound to `host:port`."""
    host, port = split_listen(text)
    with contextlib.ExitStack() as stack:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        # The protocol is named: only then asyncio sends an answer's head and body without a pause.
        made = stack.enter_context(socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP))
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            made.bind((host, port))
        except OSError as error:
            raise UsageError(f"cannot listen at {text}: {error.strerror}") from error
        stack.pop_all()
        return made
