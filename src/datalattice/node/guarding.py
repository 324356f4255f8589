"""Guarding: what a node does so that its owners' logs have one history.

It asks peers before it writes (`fencing`), notes where its store lies, so that a copy is noticed,
and hears of another node that runs with its identity.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from datalattice.clock import Clock
from datalattice.crypto import Entropy, KeyPair
from datalattice.errors import IdentityCloned, StoreError
from datalattice.node.config import NodeConfig
from datalattice.node.fencing import UNFENCED, WITHOUT_ASKING, Fence, Links, Outcome, Pace
from datalattice.node.fencing import Path as SlotPath
from datalattice.node.observe import Observer
from datalattice.store import START_BYTES, CellStore, PlaceFile, Store
from datalattice.sync import Start, sign_start

CLONED: Final = "identity-cloned"
TWIN_TEXT: Final = (
    "another node runs with the identity {key} of this one, so writes below owners are refused; "
    "stop one of them and run `lattice key identity new` in its folder, then start both again"
)


class Guard:
    """The fence of one node and the place of its store. Lives on the event loop."""

    def __init__(
        self,
        config: NodeConfig,
        observer: Observer,
        clock: Clock,
        entropy: Entropy,
        identity: KeyPair | None,
        paths: Sequence[SlotPath],
        links: Links,
    ) -> None:
        self._config = config
        self._observer = observer
        self._clock = clock
        number = int.from_bytes(entropy.bytes(START_BYTES), "big")
        self._number = number
        self.start = None if identity is None else sign_start(identity, number, clock.now_ms())
        """This start, by which peers tell it from those of another node with this identity."""
        self.fence = Fence(links, observer, paths, self._settled)
        self._place: PlaceFile | None = None
        self._noting: asyncio.Task[None] | None = None

    async def look(self, store: Store) -> None:
        """Note the start, and see whether the store is where it was."""
        if isinstance(store, CellStore):
            self._place = await asyncio.to_thread(self._begun, store)

    def _begun(self, store: CellStore) -> PlaceFile:
        place = store.place()
        try:
            place.begun(self._number)
        except StoreError as error:
            self._observer.failed(error)  # a full disk must not keep a node from its start
        return place

    def begin(self) -> None:
        """Begin to ask the peers, which are known by now."""
        config, place = self._config, self._place
        is_moved = place is not None and place.moved
        if place is not None and place.unfenced_ms is not None and config.peers:
            self._observer.degrade(UNFENCED, WITHOUT_ASKING)
        wait_ms = config.fence_moved_wait_ms if is_moved else config.fence_wait_ms
        refuses = is_moved and not config.accept_unfenced
        self.fence.begin(Pace(wait_ms / 1e3, config.fence_again_ms / 1e3, refuses))

    def _settled(self, outcome: Outcome) -> None:
        """Note that the store belongs where it is."""
        place = self._place
        if place is None:
            return
        unfenced_ms = self._clock.now_ms() if outcome is Outcome.UNASKED else None

        async def note() -> None:
            try:
                await asyncio.to_thread(place.settle, unfenced_ms)
            except StoreError as error:
                self._observer.failed(error)

        self._noting = asyncio.ensure_future(note())

    def cloned(self, twin: Start) -> None:
        """Hear of a start that was signed with the identity of this node.

        A former start of this folder says nothing: it may be sent again by whoever kept it. Any
        other one is of another node that runs.
        """
        own, place = self.start, self._place
        if own is None or twin.number == own.number:
            return
        is_former = twin.time_ms < own.time_ms if place is None else place.has_begun(twin.number)
        if is_former:
            return
        self._observer.count("identity-cloned")
        self.fence.refuse(CLONED, IdentityCloned(TWIN_TEXT.format(key=own.public_key.hex())))

    async def close(self) -> None:
        """Ask no more."""
        await self.fence.close()
        if self._noting is not None:
            await self._noting
