"""Guarding: one history for the logs of a node's owners.

It asks peers before it writes (`fencing`), notes where its store lies, so that a copy is noticed,
accepts that commits of the store are lost once a peer has said what it knows of them, and hears of
another node that runs with its identity.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from datalattice.client.fence import OwnHistory, Path
from datalattice.client.settings import NodeConfig
from datalattice.clock import Clock
from datalattice.crypto import Entropy, KeyPair
from datalattice.errors import DataLoss, StoreError
from datalattice.node.fencing import UNFENCED, WROTE_UNASKED, Acceptance, Fence, FenceTerms, Links
from datalattice.node.observe import Observer
from datalattice.store import CellStore, Store
from datalattice.sync import Start

CLONED: Final = "identity-cloned"


class Guard:
    """The fence of one node and the place of its store. Lives on the event loop."""

    def __init__(
        self,
        config: NodeConfig,
        observer: Observer,
        clock: Clock,
        entropy: Entropy,
        identity: KeyPair | None,
        paths: Sequence[Path],
        links: Links,
    ) -> None:
        self._config = config
        self._observer = observer
        self._history = OwnHistory(identity, clock, entropy, is_writer=bool(paths))
        self.start = self._history.start
        """This start, by which peers tell it from those of another node with this identity."""
        self.fence = Fence(links, observer, paths, self._settled)
        self._noting: asyncio.Task[None] | None = None

    async def look(self, store: Store) -> None:
        """Note the start, and see whether the store is where it was."""
        if isinstance(store, CellStore):
            try:
                await asyncio.to_thread(self._history.look, store)
            except StoreError as error:
                self._observer.failed(error)  # a full disk must not keep a node from its start

    @property
    def copy_id(self) -> str:
        """What tells this copy of a folder from others; empty where it was not copied."""
        return self._history.copy_id

    def begin(self) -> None:
        """Begin to ask the peers, which are known by now."""
        config, history = self._config, self._history
        doubt = None if config.accept_unfenced else history.doubt()
        if isinstance(doubt, DataLoss):
            self.fence.refuse(UNFENCED, doubt)  # without any peer, too
        if history.was_written_unasked and config.peers:
            self._observer.degrade(UNFENCED, WROTE_UNASKED)
        self.fence.begin(FenceTerms(history.wait_s(config), config.fence_again_ms / 1e3, doubt))

    def _settled(self, outcome: Acceptance) -> None:
        """Note that the store belongs where it is, and has what peers know of what it lost."""

        def note() -> None:
            try:
                self._history.settle(
                    asked=outcome is Acceptance.ASKED, unasked=outcome is Acceptance.UNASKED
                )
            except StoreError as error:
                self._observer.failed(error)

        self._noting = asyncio.ensure_future(asyncio.to_thread(note))

    def cloned(self, twin: Start) -> None:
        """Hear of a start that was signed with the identity of this node."""
        error = self._history.twin(twin)
        if error is not None:
            self._observer.count("identity-cloned")
            self.fence.refuse(CLONED, error)

    async def close(self) -> None:
        """Ask no more."""
        await self.fence.close()
        if self._noting is not None:
            await self._noting
