"""Guarding: one history for the logs of a node's owners.

It asks peers before it writes (`fencing`), notes where its store lies, so that a copy is noticed,
accepts that commits of the store are lost once a peer has said what it knows of them, and hears of
another node that runs with its identity.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from datalattice.clock import Clock
from datalattice.crypto import Entropy, KeyPair
from datalattice.errors import DataLoss, IdentityCloned, StoreError, Unfenced
from datalattice.node.config import NodeConfig
from datalattice.node.fencing import MOVED, UNFENCED, WROTE_UNASKED, Fence, Links, Outcome, Pace
from datalattice.node.fencing import Path as SlotPath
from datalattice.node.observe import Observer
from datalattice.store import START_BYTES, CellStore, PlaceFile, Store
from datalattice.sync import Start, sign_start

CLONED: Final = "identity-cloned"
TWIN_TEXT: Final = (
    "another node runs with the identity {key} of this one, so writes below owners are refused; "
    "stop one of them and run `lattice key identity new` in its folder, then start both again"
)
LOST: Final = (
    "{loss}; what owners write next would take the offsets of what is lost, so a peer has to be "
    "reached first; without one: lattice store heal --accept-loss --offline"
)


class Guard:
    """The fence of one node and the place of its store. Lives on the event loop.

    hurries: see `Pace`.
    """

    def __init__(
        self,
        config: NodeConfig,
        observer: Observer,
        clock: Clock,
        entropy: Entropy,
        identity: KeyPair | None,
        paths: Sequence[SlotPath],
        links: Links,
        hurries: bool,
    ) -> None:
        self._config = config
        self._hurries = hurries
        self._is_writer = bool(paths)
        self._observer = observer
        self._clock = clock
        number = int.from_bytes(entropy.bytes(START_BYTES), "big")
        self._number = number
        self.start = None if identity is None else sign_start(identity, number, clock.now_ms())
        """This start, by which peers tell it from those of another node with this identity."""
        self.fence = Fence(links, observer, paths, self._settled)
        self._store: CellStore | None = None
        self._place: PlaceFile | None = None
        self._noting: asyncio.Task[None] | None = None

    async def look(self, store: Store) -> None:
        """Note the start, and see whether the store is where it was."""
        if isinstance(store, CellStore):
            self._store = store
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
        refusal = None if config.accept_unfenced else self._reason()
        if isinstance(refusal, DataLoss):
            self.fence.refuse(UNFENCED, refusal)  # without any peer, too
        if place is not None and place.unfenced_ms is not None and config.peers:
            self._observer.degrade(UNFENCED, WROTE_UNASKED)
        is_changed = self._reason() is not None
        wait_ms = config.fence_moved_wait_ms if is_changed else config.fence_wait_ms
        self.fence.begin(
            Pace(wait_ms / 1e3, config.fence_again_ms / 1e3, refusal, hurries=self._hurries)
        )

    def _reason(self) -> DataLoss | Unfenced | None:
        """Return why nothing is to be written here before a peer was asked."""
        loss = None if self._store is None else self._store.loss
        if loss is not None and self._is_writer:
            return DataLoss(LOST.format(loss=loss))
        return Unfenced(MOVED) if self._place is not None and self._place.moved else None

    def _settled(self, outcome: Outcome) -> None:
        """Note that the store belongs where it is, and has what peers know of what it lost."""
        place, store = self._place, self._store
        if place is None or store is None:
            return
        unfenced_ms = self._clock.now_ms() if outcome is Outcome.UNASKED else None

        async def note() -> None:
            try:
                if outcome is Outcome.ASKED and store.loss is not None:
                    await asyncio.to_thread(store.accept_loss)
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
