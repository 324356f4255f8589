"""Background: a node in a thread of its own, for tests whose calls to it block."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Self, TypeVar

from datalattice.client.settings import NodeConfig
from datalattice.crypto import KeyPair
from datalattice.cursors import RootLattice
from datalattice.node import NodeServer, open_node
from datalattice.testing.polling import LIMIT_S
from datalattice.testing.ports import held_port

T = TypeVar("T")

_WAIT_S: Final = LIMIT_S


class BackgroundNode:
    """A node over a store's folder that listens on the loopback and runs in a `with` block.

    allow: public keys in hex, one of which a connection must prove; empty: plain connections.
    """

    def __init__(
        self, folder: str | Path, key_pair: KeyPair | None = None, allow: tuple[str, ...] = ()
    ) -> None:
        self._folder = folder
        self._allow = allow
        self._key_pair = key_pair
        self._holding = ExitStack()  # so that it starts again at the port it had
        self._port = 0
        self._thread: threading.Thread | None = None
        self._ready = threading.Event()
        self._failure: BaseException | None = None

    @property
    def address(self) -> str:
        return f"{'tls' if self._allow else 'tcp'}://127.0.0.1:{self._port}"

    def edit(self, change: Callable[[RootLattice], T]) -> T:
        """Change the node's value; return the change's result once it is durable and announced."""
        result = change(self.node.cursor)
        self.call(self.node.sync)
        return result

    def call(self, work: Callable[[], object]) -> object:
        """Run a function or coroutine function on the node's event loop; return its result."""

        async def run() -> object:
            found = work()
            return await found if asyncio.iscoroutine(found) else found

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(_WAIT_S)

    def start(self) -> None:
        """Start the node, at the port of its last run."""
        self._ready.clear()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._thread.start()
        if not self._ready.wait(_WAIT_S):
            raise TimeoutError("the node did not start")
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Stop the node. Stopping twice is allowed."""
        if self._thread is not None:
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join(_WAIT_S)
            self._thread = None

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        config = NodeConfig(port=self._port, plain=not self._allow, allow=self._allow)
        try:
            self.node: NodeServer = open_node(
                str(self._folder), key_pair=self._key_pair, config=config
            )
            async with self.node:
                self._ready.set()
                await self._stopping.wait()
        except BaseException as failure:
            self._failure = failure
            self._ready.set()
            raise

    def __enter__(self) -> Self:
        self._port = self._holding.enter_context(held_port())
        try:
            self.start()
        except BaseException:
            self._holding.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()
        self._holding.close()
