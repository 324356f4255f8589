"""Daemon: a node as a foreground process with a folder of its own.

    DIR/store/          the cells and the root; its lock keeps a second node out
    DIR/format.json     the versions of its parts; older ones are raised before anything is written
    DIR/running.json    the process and its addresses; removed after an orderly end
    DIR/control.sock    the socket for the owner's other processes

SIGTERM and SIGINT end it in order: it takes no more requests of its owner, makes the last writes
durable, sends them to peers, and closes sockets and store. A second signal, a second later or more,
ends it at once, like a kill: the next start finds the store at the last acknowledged write, and
replaces leftover files. On SIGHUP it reads its settings again; `RELOADED` change at once.

Source: docs/node.md "Operations", "Files in a node's folder".
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from selectors import BaseSelector
from typing import Any, Final, NamedTuple, Protocol, Unpack

from datalattice.actions import NodeEvent
from datalattice.client import (
    RUNNING_NAME,
    Folder,
    OpenFolder,
    Running,
    Slot,
    WeaverFolder,
    folder_id,
    guard_folder,
    parse_ticket,
)
from datalattice.client.settings import NodeConfig, changed_settings
from datalattice.crypto import SystemEntropy
from datalattice.cursors import EventRing
from datalattice.errors import DataLatticeError, UsageError
from datalattice.forking import begins_anew
from datalattice.node.admission import FILES_RESERVED, allow_files
from datalattice.node.control import ControlServer, NodeService, OfferedActions
from datalattice.node.logs import log_event, logging_to, set_level
from datalattice.node.operations import NodeOperations
from datalattice.node.server import NodeParts, NodeServer
from datalattice.node.systemd import notify, watchdog_s
from datalattice.node.weaverhosts import WeaverHosts
from datalattice.store import FILE_MODE, CellStore, RealDisk
from datalattice.version import VERSION

STORE_NAME: Final = "store"

RELOADED: Final = frozenset(
    {
        "node.peers",
        "log.level",
        "limits.reads_per_s",
        "limits.effects_per_s",
        "access.admins",
        "access.reading",
        "venue.public",
    }
)
"""Settings that take effect when they are read again; the others wait for the next start."""

# Signals closer together than this count as one: a shell and a supervisor may both send it.
SIGNAL_REST_S: Final = 1.0


def _descriptors() -> list[int]:
    """Return the open descriptors of this process; none if the system does not list them."""
    try:
        return [int(one.name) for one in Path("/dev/fd").iterdir()]
    except OSError:
        return []


def _stream_name(fd: int) -> int | str | bytes | None:
    """Return the local TCP port or path of a stream socket; None if `fd` is not one or has none."""
    try:
        one = socket.socket(fileno=fd)
    except OSError:  # no socket
        return None
    try:
        name = one.getsockname() if one.type == socket.SOCK_STREAM else None
    finally:
        one.detach()
    return (name[1] if isinstance(name, tuple) else name) or None


class Beside(Protocol):
    """The doors that a daemon serves beside its peers, for users of the folder."""

    def bind(self) -> dict[str, str]:
        """Bind the addresses; return them by the names of the doors."""

    def start(self) -> None:
        """Begin to serve. Raises: DataLatticeError: it cannot."""

    def stop(self) -> None:
        """End the requests being served, and free the addresses; also if it did not start."""

    def trouble(self) -> str | None:
        """Return which door does not serve, and why; None: all do. From any thread."""

    def silent_s(self) -> float:
        """Return how long its event loop has been busy or stuck."""

    def prepare(self, config: NodeConfig) -> Callable[[], None]:
        """Read the settings that may change while it serves; return what puts them in force.

        Raises: UsageError: one cannot be used.
        """


class _Serving(NamedTuple):
    """The node, for the reads and writes of a service in this process."""

    node: NodeServer
    operations: NodeOperations
    loop: asyncio.AbstractEventLoop

    @property
    def store(self) -> CellStore:
        store = self.node.store
        assert isinstance(store, CellStore), "the store of a folder"
        return store

    def swap(self, slots: Sequence[Slot]) -> bool:
        return self.operations.swap(slots, self.loop)


class Daemon:
    """One node over one folder, until a signal, `stop` or the action `node.stop` ends it.

    ready:  called once it serves.
    beside: serves others than peers while the node runs, and ends before it.
    service: does the actions that need no node, for other processes of the owner.
    reload: reads the settings again, on request and, with `hangup`, on SIGHUP; None: only rules of
            access and certificates are read again.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        config: NodeConfig,
        *,
        ready: Callable[[Running, NodeServer], None] | None = None,
        beside: Beside | None = None,
        service: NodeService | None = None,
        reload: Callable[[], NodeConfig] | None = None,
        hangup: bool = True,
        **parts: Unpack[NodeParts],
    ) -> None:
        self._folder = Path(folder)
        self._started = self._config = config
        self._ready = ready
        self._beside = beside
        self._service = service
        self._reload = reload
        self._events: Final = EventRing[NodeEvent]() if service is None else service.events
        self._running: Running | None = None
        self._drained: asyncio.Future[None] | None = None
        self._rereading = asyncio.Lock()
        self._has_hangup = hangup
        self._loop: asyncio.AbstractEventLoop | None = None
        self._selector: BaseSelector | None = None
        self._stopping = asyncio.Event()
        self._reloading: asyncio.Task[None] | None = None  # the loop alone would not keep it
        self._signalled_s: float | None = None  # when the first signal to end arrived
        allow_files(config.connections_max + FILES_RESERVED)
        self._node = NodeServer(self._folder / STORE_NAME, config, **parts)

    def run(self) -> None:
        """Run until it is stopped, logging to standard error.

        Raises: StoreError: the store cannot be used. UsageError: the port or folder cannot.
        """
        with logging_to(sys.stderr, self._config.log_level, self._config.log_format):
            asyncio.run(self.serve())

    def begin_in_child(self) -> None:
        """Give up the node's sockets in a forked child, where they would outlast the node."""
        if self._selector is None:
            return
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        own = {key.fd for key in (self._selector.get_map() or {}).values()}
        # A connection that was accepted just before the fork, or whose reading is paused, is not in
        # the selector. It has the local name of the socket that listens.
        names = {_stream_name(fd) for fd in own} - {None}
        own.update(fd for fd in _descriptors() if _stream_name(fd) in names)
        # Replaced, not closed: objects in the child still name these descriptors.
        for fd in own:
            os.dup2(null, fd, inheritable=False)
        os.close(null)

    def stop(self) -> bool:
        """Have it end in order, from any thread; return False if it does not serve yet."""
        loop = self._loop
        if loop is None:
            return False
        with contextlib.suppress(RuntimeError):  # it has ended
            loop.call_soon_threadsafe(self._stopping.set)
        return True

    async def serve(self) -> None:
        """Run in the running event loop."""
        try:
            RealDisk().create_folder(str(self._folder))
        except OSError as error:
            raise UsageError(f"cannot make the folder {self._folder}: {error.strerror}") from error
        for step in await asyncio.to_thread(guard_folder, self._folder):
            log_event(logging.WARNING, "migrated", part=step.part, version=step.version)
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(_log_fault)
        self._selector = getattr(loop, "_selector", None)  # asyncio has no public name for it
        begins_anew(self)
        node = self._node
        await node.start()  # not `async with`: the owner may read while the fence is still closed
        if self._beside is not None:
            node.observer.checks["doors"] = self._beside.trouble
        async with contextlib.AsyncExitStack() as stack:
            # Ended in this order: new work for the stores, the node with their hosts, their engine.
            weaver = self._weaver_hosts(stack)
            stack.push_async_exit(node)
            if weaver is not None:
                stack.push_async_callback(weaver.stop)
                await weaver.start()
            offered = None if self._service is None else OfferedActions(self._service)
            operations = NodeOperations(
                node, self._stopping.set, weaver, offered, self._read_again, self._drain
            )
            if offered is not None:
                # Left before the node ends: later writes of this process take the store's lock.
                data = stack.enter_context(
                    closing(OpenFolder.at(Folder(self._folder), self._config.cache_bytes))
                )
                stack.enter_context(data.served_by(_Serving(node, operations, loop)))
                stack.callback(offered.close)
            control = await ControlServer.start(self._folder, operations)
            try:
                running = self._describe(node, control)
                if self._beside is not None:
                    running = replace(running, doors=self._beside.bind())
                _write(self._folder / RUNNING_NAME, running)
                self._running = running
                if self._beside is not None:
                    # After the file is written: the doors find the node by it.
                    await asyncio.to_thread(self._beside.start)
                self._take_signals(loop)
                self._loop = loop
                log_event(
                    logging.INFO,
                    "serving",
                    address=running.address,
                    http=running.http,
                    pid=running.pid,
                    public_key=running.public_key,
                    root_hash=node.root_hash,
                )
                if self._ready is not None:
                    self._ready(running, node)
                notify("READY=1")
                watching = asyncio.ensure_future(self._feed_watchdog())
                await self._stopping.wait()
                watching.cancel()
            finally:
                notify("STOPPING=1")
                await self._drain()
                # Before the socket closes: while this file is there, the node listens.
                (self._folder / RUNNING_NAME).unlink(missing_ok=True)
                await control.close()

    def _drain(self) -> asyncio.Future[None]:
        """Have the doors end, once; return a future that is done when they have ended."""
        if self._drained is None:
            self._node.monitor.is_draining = True
            if self._running is not None:  # readers of the file ask at no door any more
                _write(self._folder / RUNNING_NAME, replace(self._running, doors=None))
            ending = (lambda: None) if self._beside is None else self._beside.stop
            # New requests get 503, and requests in flight have `limits.drain_s`.
            self._drained = asyncio.ensure_future(asyncio.to_thread(ending))
        return self._drained

    def _weaver_hosts(self, stack: contextlib.AsyncExitStack) -> WeaverHosts | None:
        """Return the hosts of the folder's Weaver stores; None for a node without a key."""
        identity = self._node.identity
        if identity is None:
            return None
        folder = WeaverFolder.at(Folder(self._folder), identity, read_only=False)
        stack.callback(folder.close)
        weaver = WeaverHosts(self._node, folder, SystemEntropy(), self._events)
        stack.callback(weaver.close)
        return weaver

    def _take_signals(self, loop: asyncio.AbstractEventLoop) -> None:
        # Signal handlers can be set on the main thread only; tests run daemons on others.
        with contextlib.suppress(ValueError, RuntimeError):
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self._on_end_signal, number, loop)
            if self._reload is not None and self._has_hangup:
                loop.add_signal_handler(signal.SIGHUP, self._on_reload_signal)

    def _on_end_signal(self, number: signal.Signals, loop: asyncio.AbstractEventLoop) -> None:
        # "A second signal, a second or more later, ends it at once."
        if self._signalled_s is None:
            self._signalled_s = loop.time()
            self._stopping.set()
        elif loop.time() - self._signalled_s >= SIGNAL_REST_S:
            log_event(logging.WARNING, "ended-at-once", signal=number.name)
            os._exit(128 + number)

    async def _feed_watchdog(self) -> None:
        """Tell the service manager that both event loops run, as often as it expects it."""
        within_s = watchdog_s()
        while within_s is not None:
            # Stuck doors are restarted, too: they are what users of the service see.
            beside = None if self._drained is not None else self._beside
            if beside is None or beside.silent_s() < within_s:
                notify("WATCHDOG=1")
            await asyncio.sleep(within_s / 3)

    def _on_reload_signal(self) -> None:
        self._reloading = asyncio.ensure_future(self._on_reload())

    async def _on_reload(self) -> None:
        with contextlib.suppress(DataLatticeError):  # logged
            await self._read_again()

    async def _read_again(self) -> list[str]:
        """Read the settings again; return the changed ones that wait for the next start.

        Raises: UsageError: they are wrong or cannot be used, and nothing was changed.
        """
        async with self._rereading:
            notify(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1_000}")
            try:
                fresh = await self._take_settings()
            except DataLatticeError as error:
                log_event(logging.ERROR, "reload-refused", reason=str(error))
                raise
            finally:
                notify("READY=1")
        # Compared with the start: a setting that an earlier reload changed still waits.
        waiting = [one for one in changed_settings(self._started, fresh) if one not in RELOADED]
        log_event(
            logging.INFO,
            "reloaded",
            peers=len(fresh.peers),
            log_level=fresh.log_level,
            restart=",".join(waiting) or "none",
        )
        return waiting

    async def _take_settings(self) -> NodeConfig:
        """Read the settings again and put them in force, all or none. Raises: UsageError."""
        fresh = self._config if self._reload is None else self._reload()
        # Certificates first: a file that is replaced meanwhile can still be refused.
        takers = [
            await asyncio.to_thread(one.prepare, fresh)
            for one in (self._beside, self._service)
            if one is not None
        ]
        # Parsed, since an address may be written in several ways.
        old, new = (
            {str(address) for peer in one.peers for address in parse_ticket(peer)}
            for one in (self._config, fresh)
        )
        wanted = {one.address for one in self._node.peers}  # the owner may have added it
        try:
            for address in sorted(new - old):
                self._node.add_peer(address)
            for take in takers:
                take()
        except UsageError:
            for address in new - old - wanted:
                with contextlib.suppress(UsageError):  # it was not added yet
                    await self._node.remove_peer(address)
            raise
        self._config = fresh
        set_level(fresh.log_level)
        for address in sorted(old - new):
            with contextlib.suppress(UsageError):  # the owner removed it meanwhile
                await self._node.remove_peer(address)
        return fresh

    def _describe(self, node: NodeServer, control: ControlServer) -> Running:
        identity = node.identity
        return Running(
            pid=os.getpid(),
            address=node.address,
            ticket=node.ticket,
            http=node.monitor.address,
            control=control.path,
            public_key=None if identity is None else identity.public_key.hex(),
            started_ms=node.clock.now_ms(),
            version=VERSION,
            folder=folder_id(self._folder),
        )


def _log_fault(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log a fault of the event loop in one line, where asyncio would print a traceback."""
    text = f"{context.get('message')}: {context.get('exception')}"
    log_event(logging.ERROR, "loop-fault", text=text)


def _write(path: Path, running: Running) -> None:
    """Replace the file in one step: a reader sees the old one or the new one."""
    # Security: O_NOFOLLOW, since another user might place a link where the folder is shared.
    fresh = path.with_suffix(".new")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(fresh, flags, FILE_MODE), "w", encoding="utf-8") as file:
        file.write(json.dumps(asdict(running), indent=1) + "\n")
    fresh.replace(path)
