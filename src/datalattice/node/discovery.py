"""Discovery: how a node makes itself known and hears of others, as its configuration says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from datalattice.client.settings import NodeConfig
from datalattice.clock import Clock
from datalattice.node.directory import Changed, Directory, Found, Look, is_near
from datalattice.node.mdns import Mdns

Learn = Callable[[Found], object]
"""Called with each node that was heard of."""


class Discovery:
    """The ways that one node uses. Lives on the event loop.

    learn: takes what is heard. wanted: returns the keys of peers whose address is of interest.
    failed: is told when listening came to an end by a fault.
    """

    def __init__(
        self,
        config: NodeConfig,
        public_key: bytes,
        clock: Clock,
        learn: Learn,
        wanted: Callable[[], Collection[bytes]],
        failed: Callable[[Exception], None],
    ) -> None:
        self._config = config
        self._public_key = public_key
        self._clock = clock
        self._learn = learn
        self._wanted = wanted
        self._failed = failed
        self._mdns: Mdns | None = None
        self._following: asyncio.Task[None] | None = None

    async def start(self, port: int | None, look: Look, changed: Changed) -> None:
        """Begin.

        port: what others dial. look: returns the root value; changed: waits for another.
        Raises: UsageError: a way is not available here.
        """
        config = self._config
        if config.discover in ("mdns", "all"):
            self._mdns = Mdns(
                self._public_key, self._learn, self._clock, self._failed, config.mdns_interfaces
            )
            await self._mdns.start(config.bind, port)
        if config.discover in ("p2p", "all"):
            near = is_near(config.bind)
            directory = Directory(
                look, changed, self._learn, self._wanted, self._public_key, near=near
            )
            self._following = asyncio.ensure_future(self._follow(directory))

    async def _follow(self, directory: Directory) -> None:
        try:
            await directory.follow()
        except Exception as error:  # noqa: BLE001 - the node goes on and says what happened
            self._failed(error)

    async def close(self) -> None:
        """Listen no more, and take back what was registered."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
        if self._mdns is not None:
            await self._mdns.close()
