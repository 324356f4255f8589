"""Daemon: a node as a foreground process with a folder of its own.

    DIR/store/          the cells and the root; its lock keeps a second node out
    DIR/running.json    who runs here and how it is reached; gone after an orderly end
    DIR/control.sock    how the owner's other processes use it

SIGTERM and SIGINT end it in order: last writes durable, peers told, sockets closed. After a kill
the next start finds the store at the last acknowledged write, and takes the leftover files over.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import datalattice
from datalattice.clock import Clock
from datalattice.crypto import Entropy, KeyPair
from datalattice.errors import PeerUnavailable, UsageError
from datalattice.node.config import NodeConfig
from datalattice.node.control import ControlClient, ControlServer
from datalattice.node.files import FILES_RESERVED, allow_files
from datalattice.node.node import Node
from datalattice.node.operations import Operations
from datalattice.node.transport import Transport

_log = logging.getLogger("datalattice.node")

STORE_NAME: Final = "store"
RUNNING_NAME: Final = "running.json"


@dataclass(frozen=True, slots=True)
class Running:
    """A running node: its process, where peers reach it, where its owner reaches it."""

    pid: int
    address: str | None
    control: str
    public_key: str | None
    started_ms: int
    version: str


class Daemon:
    """One node over one folder, until a signal or `node.stop` ends it."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        config: NodeConfig,
        *,
        key_pair: KeyPair | None = None,
        ready: Callable[[Running, Node], None] | None = None,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
        transport: Transport | None = None,
    ) -> None:
        self._folder = Path(folder)
        self._ready = ready
        allow_files(config.connections_max + FILES_RESERVED)
        self._node = Node(
            self._folder / STORE_NAME,
            config,
            key_pair=key_pair,
            clock=clock,
            entropy=entropy,
            transport=transport,
        )

    def run(self) -> None:
        """Run until told to stop; `ready` is called once it serves.

        Raises: StoreError: the store cannot be used. UsageError: the port or folder cannot.
        """
        asyncio.run(self.serve())

    async def serve(self) -> None:
        """Run in an event loop that is there already."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"cannot make the folder {self._folder}: {error.strerror}") from error
        stopping = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(_log_fault)
        async with self._node as node:
            control = await ControlServer.start(self._folder, Operations(node, stopping.set))
            try:
                running = self._describe(node, control)
                _write(self._folder / RUNNING_NAME, running)
                for number in (signal.SIGTERM, signal.SIGINT):
                    # Outside the main thread there are no signals to handle.
                    with contextlib.suppress(ValueError, RuntimeError):
                        loop.add_signal_handler(number, stopping.set)
                if self._ready is not None:
                    self._ready(running, node)
                await stopping.wait()
            finally:
                (self._folder / RUNNING_NAME).unlink(missing_ok=True)
                await control.close()

    def _describe(self, node: Node, control: ControlServer) -> Running:
        key_pair = node.key_pair
        return Running(
            pid=os.getpid(),
            address=node.address,
            control=control.path,
            public_key=None if key_pair is None else key_pair.public_key.hex(),
            started_ms=node.clock.now_ms(),
            version=datalattice.__version__,
        )


def _log_fault(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log in one line what asyncio would print with a traceback, again and again."""
    _log.error("%s: %s", context.get("message"), context.get("exception"))


def _write(path: Path, running: Running) -> None:
    """Replace the file in one step: a reader sees the old one or the new one."""
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(asdict(running), indent=1) + "\n", encoding="utf-8")
    fresh.replace(path)


def running(folder: str | os.PathLike[str]) -> Running | None:
    """Return the node that runs in a folder, None when none does.

    A file left by a killed node does not count: somebody must answer.
    """
    found = _read(Path(folder) / RUNNING_NAME)
    if found is None:
        return None
    try:
        ControlClient(found.control).close()
    except PeerUnavailable:
        return None
    return found


def connect(folder: str | os.PathLike[str]) -> ControlClient | None:
    """Return a client of the node that runs in a folder, None when none does."""
    found = _read(Path(folder) / RUNNING_NAME)
    if found is None:
        return None
    try:
        return ControlClient(found.control)
    except PeerUnavailable:
        return None


def _read(path: Path) -> Running | None:
    try:
        return Running(**json.loads(path.read_text("utf-8")))
    except (OSError, ValueError, TypeError):
        # No file, or none of ours: then no node of ours is running.
        return None
