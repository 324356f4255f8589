"""Doors: the network interfaces of a running node for its users, in one thread of their own.

    rest.sock     REST, for our own user
    grpc/         gRPC, in a folder that only our user can enter
    host:port     both, if configured, for callers with credentials
    /dlfs         of REST: the drives, over WebDAV
    /mcp          of REST, if configured: tools for language models

They have their own event loop, so that users' requests do not delay the node's peers.

Length: the doors of one node share their addresses, certificates, access control and shutdown.

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
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, cast

import uvicorn
from starlette.types import ASGIApp

from datalattice.actions import DoorStatement
from datalattice.api.certificates import DoorCertificate
from datalattice.api.grpc import GrpcAuthenticate, GrpcDoor, GrpcLoop
from datalattice.api.rest import HTTP_LIMITS, LOCAL_HOSTS, BoundedHttp, rest_app
from datalattice.api.webdav import WEBDAV_BASE, WebDavDoor
from datalattice.client.settings import DoorConfig, NodeConfig, split_listen
from datalattice.clock import Clock, SystemClock
from datalattice.crypto import KeyPair
from datalattice.errors import DataLatticeError, Unavailable, UnsupportedOperation, UsageError
from datalattice.node import SOCKET_PATH_BYTES_MAX, bind_socket, take_socket
from datalattice.service import FolderService, Service
from datalattice.service.access import AccessControl, Credentials, Origin, Principal
from datalattice.store import FOLDER_MODE

if TYPE_CHECKING:
    from datalattice.api.mcp import McpDoor

_log = logging.getLogger("datalattice.access")

REST_SOCKET: Final = "rest.sock"
GRPC_FOLDER: Final = "grpc"
GRPC_SOCKET: Final = "grpc.sock"

MCP_PATH: Final = "/mcp"
"""The path of the tools for language models, on the REST listeners."""

_RETRY_FIRST_S: Final = 1.0
RETRY_MOST_S: Final = 60.0
"""Pause before a failed door is tried again; it doubles from `_RETRY_FIRST_S` up to this."""

BEAT_S: Final = 1.0
"""Seconds between two signs that the doors' event loop runs."""

_BACKLOG: Final = 512
"""Most connections that wait to be accepted."""

RENEW_EVERY_S: Final = 3_600.0
"""Seconds between two checks whether a certificate needs renewal."""

UNNAMED: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104 - compared with, not bound
"""Addresses that name no host, and so are in no certificate."""


class Doors:
    """The doors of one node. Call `bind`, `start` once the node serves, and `stop`.

    served: the service behind the doors.

    A door that cannot start, or fails while it serves, is tried again after 1 to 60 s, while the
    other doors serve. `trouble` says which doors do not serve, and why.
    """

    def __init__(
        self,
        folder: Path,
        config: NodeConfig,
        identity: KeyPair,
        served: FolderService,
        clock: Clock | None = None,
    ) -> None:
        self._folder = folder
        self._config = config
        self._identity = identity
        self._served = served
        self._clock = clock or SystemClock()
        self._certificates: dict[object, DoorCertificate] = {}  # by the operator's files, or None
        self._making = threading.Lock()
        self._bound: dict[str, socket.socket] = {}  # bound sockets that are not served yet
        self._failures: dict[str, str] = {}
        self._addresses: dict[str, str] = {}
        self._grpc_path = ""
        self._made: list[str] = []  # sockets in the folder, deleted by `stop`
        self._temporary: list[str] = []  # folders deleted by `stop`
        self._mounts: dict[str, dict[str, ASGIApp]] = {}  # by REST listener
        self._awaited: set[str] = set()  # doors that were not tried yet
        self._tried = threading.Event()
        self._beat_s = 0.0
        self._ending: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def _listeners(self) -> dict[str, DoorConfig | None]:
        """Return the listener of each door; None: a socket in the folder."""
        found: dict[str, DoorConfig | None] = {"socket": None, "grpc socket": None}
        both = {"rest": self._config.rest, "grpc": self._config.grpc}
        return found | {name: one for name, one in both.items() if one.listen is not None}

    def bind(self) -> dict[str, str]:
        """Bind the addresses; return them by the names of the doors.

        An address in use is listed too: `start` tries to bind it again.
        """
        for name, listener in self._listeners().items():
            try:
                self._bind(name, listener)
            # A door whose address is in use must not keep the others from serving.
            except UsageError as error:
                self._fail(name, error)
                if listener is not None and listener.listen is not None:
                    self._addresses[name] = _address(name, listener, split_listen(listener.listen))
        rest = self._addresses.get("rest")
        if rest is not None and self._config.webdav:
            self._addresses["webdav"] = f"{rest}{WEBDAV_BASE}/"
        if rest is not None and self._config.mcp != "off":
            self._addresses["mcp"] = rest + MCP_PATH
        return dict(self._addresses)

    def _bind(self, name: str, listener: DoorConfig | None) -> None:
        """Bind the address of a door. Raises: UsageError: it cannot be bound."""
        if name == "grpc socket":
            self._grpc_path = self._addresses[name] = self._grpc_socket()
            self._made.append(self._grpc_path)
            return
        if name == "grpc":  # gRPC binds its port itself
            assert listener is not None
            assert listener.listen is not None
            self._addresses[name] = listener.listen
            return
        made = take_socket(name)
        if listener is None:
            if made is None:
                made, self._addresses[name], owned = bind_socket(self._folder, REST_SOCKET)
                self._made.append(self._addresses[name])
                self._temporary += [owned] if owned else []
            else:
                self._addresses[name] = str(made.getsockname())
        else:
            assert listener.listen is not None
            made = made or _bound(listener.listen)
            self._addresses[name] = _address(name, listener, made.getsockname()[:2])
        made.listen(_BACKLOG)  # from now on clients can connect, and wait to be served
        self._bound[name] = made

    def _certificate(self, listener: DoorConfig) -> DoorCertificate | None:
        """Return the certificate of a listener, None without TLS. Raises: UsageError."""
        if not listener.has_tls:
            return None
        files = self._files_of(listener)
        using = [one for one in self._listeners().values() if one is not None and one.has_tls]
        hosts = tuple(sorted({name for one in using for name in _hosts_of(one)} - UNNAMED))
        with self._making:  # two doors may ask for the same certificate at the same time
            if files not in self._certificates:
                self._certificates[files] = DoorCertificate(
                    self._folder, self._identity, self._clock, files, hosts
                )
            return self._certificates[files]

    def _files_of(self, listener: DoorConfig) -> tuple[Path, Path] | None:
        """Return the operator's certificate and key of a listener; None: the node's own."""
        if listener.cert is None or listener.key is None:
            return None
        return self._folder / listener.cert, self._folder / listener.key

    def statements(self) -> tuple[DoorStatement, ...]:
        """Return the node's statements about the certificates of its doors."""
        found = list(self._certificates.values())
        return tuple(one for certificate in found for one in certificate.statements)

    def _grpc_socket(self) -> str:
        """Return the path for gRPC's socket, in a folder that only our user can enter."""
        # gRPC makes the socket with its own mode, so the folder has to keep others out.
        inside = self._folder.absolute() / GRPC_FOLDER
        if len(os.fsencode(inside / GRPC_SOCKET)) > SOCKET_PATH_BYTES_MAX:
            made = tempfile.mkdtemp(prefix="lattice-")
            self._temporary.append(made)
            inside = Path(made)
        inside.mkdir(mode=FOLDER_MODE, exist_ok=True)
        inside.chmod(FOLDER_MODE)
        (inside / GRPC_SOCKET).unlink(missing_ok=True)  # left by a killed node
        return str(inside / GRPC_SOCKET)

    def start(self) -> None:
        """Start serving; return when every door serves or has failed once."""
        service, access = self._served.at_doors(self._urls(), self.statements)
        self._thread = threading.Thread(target=lambda: self._run(service, access), name="doors")
        self._thread.start()
        self._tried.wait()

    def stop(self) -> None:
        """Stop serving; running requests get `drain_s` to finish."""
        if self._loop is not None and self._ending is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._ending.set)
        if self._thread is not None:
            self._thread.join()
        for bound in self._bound.values():
            bound.close()
        for path in self._made:
            Path(path).unlink(missing_ok=True)
        for made in self._temporary:
            shutil.rmtree(made, ignore_errors=True)

    # --- from other threads -----------------------------------------------------------------------

    def trouble(self) -> str | None:
        """Return which doors do not serve, and why; None if all do."""
        return "; ".join(f"{name}: {why}" for name, why in sorted(self._failures.items())) or None

    def silent_s(self) -> float:
        """Return how long the event loop of the doors has been busy or stuck."""
        return time.monotonic() - self._beat_s

    def prepare(self, config: NodeConfig) -> Callable[[], None]:
        """Read the certificates anew; return a function that puts them in use.

        Raises: UsageError: one of them, or one that the next start needs, cannot be used.
        """
        for listener in (config.rest, config.grpc):
            if listener.listen is not None and listener.has_tls:
                files = self._files_of(listener)
                if files is not None and files not in self._certificates:
                    # Made to be checked: other files of a listener take effect at the next start.
                    DoorCertificate(self._folder, self._identity, self._clock, files)
        # All are read before any is put in use, so that an error changes no door.
        newer = [one.prepare() for one in list(self._certificates.values())]

        def take() -> None:
            for one in newer:
                one()

        return take

    # --- in the loop of the doors -----------------------------------------------------------------

    def _run(self, service: Service, access: AccessControl) -> None:
        with asyncio.Runner(loop_factory=GrpcLoop) as runner:
            runner.run(self._serve(service, access))

    async def _serve(self, service: Service, access: AccessControl) -> None:
        """Keep all doors until `stop`."""
        self._ending = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        kept: dict[str, Callable[[], Awaitable[None]]] = {}
        if self._config.mcp != "off":
            kept["mcp"] = lambda: self._serve_mcp(service, access)
        for name, listener in self._listeners().items():
            serve = self._serve_grpc if name.startswith("grpc") else self._serve_rest
            kept[name] = partial(serve, name, listener, service, access)
        self._awaited = set(kept)
        beating = [asyncio.ensure_future(self._beat()), asyncio.ensure_future(self._renew())]
        # Concurrently, so that at the end all doors drain in the same `drain_s`.
        await asyncio.gather(*(self._keep(name, serve) for name, serve in kept.items()))
        for one in beating:
            one.cancel()

    async def _keep(self, name: str, serve: Callable[[], Awaitable[None]]) -> None:
        """Serve a door until `stop`, again after each failure."""
        assert self._ending is not None
        pause_s = _RETRY_FIRST_S
        while not self._ending.is_set():
            try:
                await serve()
            except Exception as error:  # noqa: BLE001 - reported by `trouble`; other doors serve on
                # "Fails while it serves, it is tried again after 1 to 60 s" (docs/node.md): first
                # after 1 s.
                was_serving = name not in self._failures and name not in self._awaited
                pause_s = _RETRY_FIRST_S if was_serving else min(2 * pause_s, RETRY_MOST_S)
                self._fail(name, error)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await self._ending.wait()
        self._tell_tried(name)  # if `stop` came before the first attempt

    def _fail(self, name: str, error: Exception) -> None:
        reason = str(error) or type(error).__name__
        if self._failures.get(name) != reason:  # logged once, not at each attempt
            _log.error("the door %s does not serve: %s", name, reason)
        self._failures[name] = reason
        self._tell_tried(name)

    def _began(self, name: str) -> None:
        if self._failures.pop(name, None) is not None:
            _log.warning("the door %s serves", name)
        self._tell_tried(name)

    def _tell_tried(self, name: str) -> None:
        if name in self._awaited:
            self._awaited.discard(name)
            if not self._awaited:
                self._tried.set()

    async def _serve_rest(
        self, name: str, listener: DoorConfig | None, service: Service, access: AccessControl
    ) -> None:
        assert self._ending is not None
        if name not in self._bound:
            self._bind(name, listener)
        bound = self._bound.pop(name)
        local: Literal["socket"] | None = "socket" if listener is None else None
        # Held by the application, so that `/mcp` is added when its door begins to serve.
        mounts = self._mounts.setdefault(name, {})
        closing: list[Callable[[], None]] = [bound.close]
        try:
            hosts: tuple[str, ...] = ()
            # A web page's own host name may resolve to this machine (DNS rebinding), so a local
            # door answers only to its known names.
            if listener is not None and (listener.is_local or listener.hosts):
                hosts = (*LOCAL_HOSTS, *listener.hosts)
            certificate = None
            if listener is not None:
                certificate = await asyncio.to_thread(self._certificate, listener)
            if self._config.webdav:
                webdav = WebDavDoor(service, access.enter, local=local)
                closing.append(webdav.close)
                mounts[WEBDAV_BASE] = webdav
            app, door = rest_app(service, access.enter, local=local, hosts=hosts, mounts=mounts)
            closing.append(door.close)
            server = _server(app, certificate, self._config.drain_s)
            serving = asyncio.ensure_future(server.serve(sockets=[bound]))
            ending = asyncio.ensure_future(self._ending.wait())
            self._began(name)
            await asyncio.wait((serving, ending), return_when=asyncio.FIRST_COMPLETED)
            ending.cancel()
            server.should_exit = True
            # Streams end at once, so that the time left is for running requests.
            door.drain()
            await serving
            if not self._ending.is_set():
                raise Unavailable("the HTTP server ended by itself")
        finally:
            for close in closing:
                close()

    async def _serve_grpc(
        self, name: str, listener: DoorConfig | None, service: Service, access: AccessControl
    ) -> None:
        assert self._ending is not None
        door = GrpcDoor(service) if listener is None else GrpcDoor(service, _entering(access))
        # A door that failed has no calls that could finish.
        grace_s = 0.0
        try:
            if listener is None:
                await door.listen_socket(self._grpc_path)
            else:
                await self._listen(door, listener)
            self._began(name)
            await self._ending.wait()
            grace_s = self._config.drain_s
        finally:
            await door.stop(grace_s)

    async def _listen(self, door: GrpcDoor, listener: DoorConfig) -> None:
        certificate = await asyncio.to_thread(self._certificate, listener)
        newest = None if certificate is None else lambda: (certificate.key, certificate.chain)
        assert listener.listen is not None
        await door.listen_tcp(listener.listen, newest, insecure=listener.insecure)

    async def _serve_mcp(self, service: Service, access: AccessControl) -> None:
        assert self._ending is not None
        door = _mcp_door(service, self._config.mcp)
        async with door.serving():
            for name in self._listeners():
                if not name.startswith("grpc"):
                    app = door.app(access.enter, "socket" if name == "socket" else None)
                    self._mounts.setdefault(name, {})[MCP_PATH] = app
            self._began("mcp")
            await self._ending.wait()

    async def _beat(self) -> None:
        """Record every `BEAT_S` that this loop runs, for `silent_s`."""
        while True:
            self._beat_s = time.monotonic()
            await asyncio.sleep(BEAT_S)

    async def _renew(self) -> None:
        """Refresh the certificates every `RENEW_EVERY_S`."""
        while True:
            await asyncio.sleep(RENEW_EVERY_S)
            for certificate in list(self._certificates.values()):
                try:
                    await asyncio.to_thread(certificate.refresh)
                except DataLatticeError as error:
                    _log.error("a door keeps its certificate: %s", error)

    def _urls(self) -> Iterator[str]:
        """Yield the URLs of the doors, with every name of this machine."""
        for name, listener in self._listeners().items():
            if listener is not None:
                scheme = "https" if listener.has_tls else "http"
                port = self._addresses[name].rpartition(":")[2]
                for host in (*LOCAL_HOSTS, *_hosts_of(listener)):
                    yield f"{scheme}://{_url_host(host)}:{port}"


def _address(name: str, listener: DoorConfig, bound: tuple[str, int]) -> str:
    """Return the address of a listener for users: a URL of REST, `host:port` of gRPC."""
    host_port = f"{_url_host(bound[0])}:{bound[1]}"
    if name == "grpc":
        return host_port
    return f"{'https' if listener.has_tls else 'http'}://{host_port}"


def _mcp_door(service: Service, tools: str) -> McpDoor:
    try:
        # Imported only if configured: it takes a second and 60 MB.
        from datalattice.api.mcp import McpDoor, McpTools  # noqa: PLC0415
    except ImportError as error:
        raise UnsupportedOperation(
            f"the package {error.name} is not installed: pip install 'datalattice[mcp]'"
        ) from error
    chosen: Any = tools  # `NodeConfig` has checked it
    return McpDoor(McpTools(service, chosen))


def _entering(access: AccessControl) -> GrpcAuthenticate:
    """Return the function with which a gRPC door authenticates callers."""
    numbers = count(1)

    def enter(metadata: Mapping[str, str], address: str | None) -> Principal:
        origin = Origin("grpc", next(numbers), address)
        return access.enter(Credentials(headers=metadata, origin=origin))

    return enter


def _hosts_of(listener: DoorConfig) -> tuple[str, ...]:
    """Return the host names of a listener: of its address, and the configured ones."""
    assert listener.listen is not None
    return (split_listen(listener.listen)[0], *listener.hosts)


def _url_host(host: str) -> str:
    """Return a host in the form of URLs: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def _server(app: Any, certificate: DoorCertificate | None, drain_s: int) -> uvicorn.Server:
    config = uvicorn.Config(
        app,
        http=cast("Any", partial(BoundedHttp, HTTP_LIMITS)),  # uvicorn calls it like a class
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        server_header=False,
        timeout_graceful_shutdown=drain_s,
        backlog=_BACKLOG,
        # One context for all connections, into which a renewed certificate is loaded.
        ssl_context_factory=None if certificate is None else lambda *_: certificate.context,
    )
    return uvicorn.Server(config)


def _bound(text: str) -> socket.socket:
    """Return a socket bound to `host:port`. Raises: UsageError: it cannot be bound."""
    host, port = split_listen(text)
    with contextlib.ExitStack() as stack:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        # With the protocol named, asyncio sets TCP_NODELAY: no pause between head and body.
        made = stack.enter_context(socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP))
        # A restart binds while connections of the earlier process linger.
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            made.bind((host, port))
        except OSError as error:
            raise UsageError(f"cannot listen at {text}: {error.strerror}") from error
        stack.pop_all()
        return made
