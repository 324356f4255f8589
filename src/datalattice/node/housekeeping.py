"""Housekeeping: a node watches the free space of its disk, counts usage and collects garbage.

Every 30 s it checks the free space and saves what each owner uses. Garbage is collected when the
store has doubled since the last collection and has grown by at least `collect_after_bytes`. So each
byte is read about once for each doubling. On a disk that is short of space, 8 MB written since the
last collection are enough. After each collection usage is counted exactly.

Source: docs/node.md "Room", "Hosting".
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Final, TypeVar

from datalattice.cells import Value, Vector, decode, encode
from datalattice.client.settings import NodeConfig
from datalattice.errors import BadFormat, DataLatticeError, StoreClosed, UsageError
from datalattice.node.hosts import Host
from datalattice.node.logs import log_event
from datalattice.node.observe import Observer
from datalattice.store import Store
from datalattice.store.gc import GRACE_MS, Collected
from datalattice.sync import (
    DISK_LOW,
    IMPORTED,
    Absorbed,
    Count,
    LatticeReplica,
    Offer,
    Replicator,
    absorb_import,
)

T = TypeVar("T")

ROOM: Final = "room"  # health key: the disk cannot be checked, or garbage not be collected

_LOOK_S: Final = 30.0  # between two checks of the disk

LOW_GROWTH_BYTES: Final = 8_000_000  # written since the last collection, on a disk short of room
LOW_GRACE_MS: Final = 60_000  # younger cells survive it; a write in progress may need them

_LAST_KEY: Final = b"collected"


class Housekeeper:
    """Keeps the store of one node small enough. Lives on its event loop."""

    def __init__(
        self,
        store: Store,
        host: Host[LatticeReplica],
        observer: Observer,
        config: NodeConfig,
    ) -> None:
        self._store = store
        self._host = host
        self._replica = host.replica
        self._observer = observer
        self._config = config
        self._task: asyncio.Task[None] | None = None
        self._collecting = threading.Lock()
        self._closed = threading.Event()

    def start(self) -> None:
        """Begin to check, at once and then every `_LOOK_S`."""
        self._task = asyncio.ensure_future(self._run())

    async def close(self) -> None:
        """Stop; a collection in progress is abandoned, which loses nothing."""
        self._closed.set()
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await asyncio.to_thread(self._wait)

    def _wait(self) -> None:
        with self._collecting:
            return

    def save(self) -> None:
        """Save what owners use. In the lane, or after its end."""
        hosting = self._replica.hosting
        if hosting is not None:
            hosting.quotas.usage.save()

    async def ask(self, question: Callable[[LatticeReplica], T]) -> T:
        """Return what `question` returns for the replica, in its lane; raise what it raises."""
        return await self._host.ask(question)

    async def forget(self) -> bool:
        """Drop the data of forgotten owners from the root, and send that to the peers."""

        def forget(replicator: Replicator, now_ms: int) -> bool:
            # Durable first, then announced: peers must not be told of a root that may be lost.
            is_changed = self._replica.state.drop_refused()
            if is_changed:
                replicator.settle(Absorbed(changed=True), "", now_ms)
            return is_changed

        return await self._host.act(forget)

    async def merge_import(self, offer: Offer, *, is_known: bool) -> Absorbed:
        """Merge what the operator imports, and send it to the peers.

        Raises: as `LatticeReplica.absorb`.
        """

        def absorb(replicator: Replicator, now_ms: int) -> Absorbed:
            absorbed = absorb_import(self._replica, offer, is_known=is_known)
            replicator.settle(absorbed, IMPORTED, now_ms)
            return absorbed

        return await self._host.act(absorb)

    # --- looking --------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            self._observer.log_checks()
            try:
                await self.look()
                self._observer.recover(ROOM)
            except (DataLatticeError, OSError) as error:
                self._observer.degrade(ROOM, f"the store's room cannot be checked: {error}")
            await asyncio.sleep(_LOOK_S)

    async def look(self) -> None:
        """Check the disk once, save usage, and collect garbage if that is due."""
        is_low = self._look_at_disk()
        # Usage is saved in the lane, which alone changes it.
        await self.ask(lambda _replica: self.save())
        if await asyncio.to_thread(self.is_due, is_low):
            grace_ms = LOW_GRACE_MS if is_low else GRACE_MS
            try:
                done = await asyncio.to_thread(self._collect, grace_ms)
            except (StoreClosed, UsageError):
                return  # the node is closing, or another collection is in progress
            self._observer.count("collections")
            freed = done.bytes_before - done.bytes_after
            log_event(logging.INFO, "collected", freed_bytes=freed, seconds=round(done.seconds, 3))
            await self.collected(done)
            self._look_at_disk()

    def _look_at_disk(self) -> bool:
        """Return whether the disk is short of room, and degrade the node if so."""
        free = self._store.free_bytes(ask=True)
        reserve = self._config.hosting.reserve_bytes
        # "Values of others are refused (`disk-low`), and the node is degraded for that; own writes
        # and collections go on."
        if free is None or free >= reserve:
            self._observer.recover(DISK_LOW)
            return False
        self._observer.degrade(
            DISK_LOW,
            f"fewer than {reserve} bytes are free on the disk: data of others is not taken",
        )
        return True

    # --- collecting -----------------------------------------------------------------------------

    def is_due(self, is_low: bool) -> bool:
        """Return whether a collection is due."""
        after = self._config.collect_after_bytes
        last = self._last_bytes()
        grown = self._store.size_bytes() - last
        # "As soon as 8 MB were written since the last time", whatever the setting says.
        if is_low:
            return grown >= LOW_GROWTH_BYTES
        return after > 0 and grown >= max(after, last)  # 0 turns automatic collections off

    def _last_bytes(self) -> int:
        """Return the size of the store after the last collection, 0 if there was none."""
        row = self._store.notes.rows().get(_LAST_KEY)
        try:
            value = None if row is None else decode(row)
        except BadFormat:
            value = None
        size: Value = value[0] if isinstance(value, Vector) and len(value) == 1 else 0
        return size if type(size) is int else 0

    def _collect(self, grace_ms: int) -> Collected:
        with self._collecting:
            return self._store.collect(grace_ms=grace_ms, progress=self._go_on)

    def _go_on(self, _what: str, _done: int, _total: int) -> None:
        if self._closed.is_set():
            raise StoreClosed("the node is closing")

    async def collected(self, done: Collected) -> None:
        """Note a collection, automatic or requested, and count usage exactly."""
        self._store.notes.keep({_LAST_KEY: encode(Vector.of((done.bytes_after,)))})
        hosting = self._replica.hosting
        if hosting is None:
            return
        # Counting reads many cells, so it runs outside the lane, a slot at a time.
        found = await self.ask(lambda replica: hosting.quotas.inexact(replica.root))
        counts: list[Count] = []
        for slot, value in found:
            if self._closed.is_set():
                return
            counts.append(await asyncio.to_thread(hosting.quotas.usage.exactly, slot, value))
        await self.ask(lambda replica: hosting.quotas.recounted(replica.root, counts))
        await self.ask(lambda _replica: self.save())
