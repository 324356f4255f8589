"""Operations: what the owner of a node may ask of it while it runs, by name.

A store has one writer, and while a node runs that is the node. So whoever wants to write from
another process asks the node to: each operation returns when its effect is durable. An operation is
a name and a Map of arguments; its result is a value.

    queue.offer_many     topic partition values keys? headers?    [first offset, count]
    queue.truncate       topic partition start                    records removed
    queue.set_meta       topic partition key value                nil
    queue.meta           topic                                    Map of the topic's metadata
    topic.set_meta       topic key value                          nil
    root.put             values                                   whether all below them is here
    root.swap            slots: [[path hash value] ...]           whether they were set
    node.status                                                   Map
    node.wait            root_hash timeout_ms                     root hash, once it is another one
    node.add_peer        address, or a key in hex                 nil
    node.remove_peer     address, or a key in hex                 nil
    node.pull            address?                                 root hash
    node.stop                                                     nil
    store.heal           addresses? folder? timeout_ms            Map of what it did; nil: not yet
    store.gc             grace_ms? dry_run? list? timeout_ms       Map of what it did, or of how far
                                                                  it is, by `done`
    store.forget         before_ms                                former roots that were forgotten
    hosting.show                                                  Map: policy, decisions, usage
    hosting.decide       rule owner limit? reason?                the same, after it
    owner.forget         owner section? own? reason?              Map of what went
    forks.resolve        id action: append or drop                Map of what was done
    store.import         path pin? merge? timeout_ms              Map of what it did; nil: not yet

Queues are those of the first owner's key that the node was given. `root.swap` sets all slots, or
none when one of them has another value by now (see `slots`); `root.put` brings cells ahead that are
too many for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import Awaitable, Callable
from typing import Final

import datalattice
from datalattice.apps.queue import LatticeMQ
from datalattice.cells import (
    Index,
    Loader,
    Map,
    Value,
    Vector,
    to_cell,
    to_text,
    value_hash,
)
from datalattice.client import (
    NO_KEY,
    SlotMoved,
    parse_key,
    present_slots,
    read_slots,
    with_slots,
)
from datalattice.client.network import HealingSources, healing_document
from datalattice.client.replicas import import_into
from datalattice.crypto import KeyPair
from datalattice.errors import (
    Corruption,
    DataLatticeError,
    MissingData,
    NoSigningKey,
    StoreFailed,
    StoreFull,
    Timeout,
    Unavailable,
    Unfenced,
    UnsupportedOperation,
    UsageError,
)
from datalattice.node import forks, hosting
from datalattice.node.garbage import Collection
from datalattice.node.node import Node
from datalattice.store import CellStore, CheckedCells
from datalattice.sync import Absorbed, Offer

_KEY: Final = re.compile(r"[0-9a-fA-F]{64}")

KEPT: Final = (
    "the records are not acknowledged: while it runs the node keeps them and stores them once it "
    "can, so make room and do not offer them again; if it stops before, they are lost"
)
"""What is true of an offer whose sync failed: it is in the live value (docs/node.md)."""

KEPT_EDIT: Final = (
    "the edit is not acknowledged: while it runs the node keeps it and stores it once it can, so "
    "make room and do not make it again; if it stops before, it is lost"
)
"""What is true of an edit whose sync failed, likewise."""

FENCE_WAIT_S: Final = 45.0
"""Longest wait for the fence: shorter than the time after which a client gives up."""

WAIT_MS_MAX: Final = 30_000
"""Longest `node.wait`: shorter than the time after which a client gives up."""

Operation = Callable[["Operations", Map], Awaitable[Value]]


class Operations:
    """The operations of one node."""

    def __init__(self, node: Node, stop: Callable[[], None]) -> None:
        self._node = node
        self._stop = stop
        self._started_ms = node.clock.now_ms()
        self._healing: asyncio.Task[Value] | None = None
        self._collection = Collection(node)
        self._importing: dict[str, asyncio.Task[Value]] = {}

    async def perform(self, name: str, arguments: Map) -> Value:
        """Do what `name` says; return its result when that is durable.

        Raises: UnsupportedOperation: there is no such operation. UsageError: wrong arguments.
                Unavailable: a fault of the node, which is degraded from then on.
        """
        operation = _OPERATIONS.get(name)
        if operation is None:
            known = ", ".join(sorted(_OPERATIONS))
            raise UnsupportedOperation(f"this node has no operation {name!r}; it has: {known}")
        try:
            return await operation(self, arguments)
        except DataLatticeError:
            raise
        except Exception as error:  # whoever asked must learn that it was our fault
            self._node.observer.failed(error)
            raise Unavailable(f"a fault of the running node: {error!r}") from error

    @property
    def loader(self) -> Loader:
        """What has the cells that a request refers to and does not bring."""
        return self._node.store

    # --- any section --------------------------------------------------------------------------

    async def _put(self, arguments: Map) -> Value:
        values = _vector(arguments, "values")

        def put() -> bool:
            try:
                self._node.stage(values)
            except MissingData:
                return False
            return True

        return await asyncio.to_thread(put)

    async def _swap(self, arguments: Map) -> Value:
        node = self._node
        if node.identity is None:
            raise NoSigningKey(NO_KEY)
        await self._fenced()
        wanted = read_slots(_need(arguments, "slots"))

        def swap() -> bool:
            cursor = node.cursor
            lattice = cursor.lattice
            assert lattice is not None
            try:
                door = CheckedCells(node.store, scanned=True)
                for _, _, after in wanted:
                    door.check_value(after)  # all of it is at hand, and sound
                cursor.update(lambda live: with_slots(lattice, live, present_slots(live, wanted)))
            except (SlotMoved, MissingData):
                # Whoever is ahead in the live value may not be durable yet, and what an edit is
                # made on is what is durable.
                cursor.sync()
                return False
            try:
                cursor.sync()
            except (StoreFull, StoreFailed) as error:
                raise type(error)(f"{error}; {KEPT_EDIT}") from error
            return True

        return await asyncio.to_thread(swap)

    # --- queues -------------------------------------------------------------------------------

    async def _fenced(self) -> None:
        """Return when writes are accepted.

        Raises: Unfenced: it is not decided in time, or refused.
        """
        try:
            async with asyncio.timeout(FENCE_WAIT_S):
                await self._node.fenced()
        except TimeoutError as error:
            raise Unfenced("peers are being asked for what was written elsewhere") from error

    def _topics(self) -> LatticeMQ:
        owner = self._node.owner
        if owner is None:
            raise NoSigningKey(NO_KEY)
        return LatticeMQ.at(self._node.cursor, owner.public_key, self._node.clock)

    async def _offer_many(self, arguments: Map) -> Value:
        await self._fenced()
        queue = self._topics().partition(_need(arguments, "topic"), _need(arguments, "partition"))
        values = _vector(arguments, "values")
        keys = _optional_vector(arguments, "keys")
        headers = _optional_vector(arguments, "headers")

        def offer() -> range:
            offsets = queue.offer_many(values, keys, headers)
            try:
                self._node.cursor.sync()
            except (StoreFull, StoreFailed) as error:
                raise type(error)(f"{error}; {KEPT}") from error
            return offsets

        offsets = await asyncio.to_thread(offer)
        return Vector.of((offsets.start, len(offsets)))

    async def _truncate(self, arguments: Map) -> Value:
        await self._fenced()
        queue = self._topics().partition(_need(arguments, "topic"), _need(arguments, "partition"))
        start = _need(arguments, "start")
        if type(start) is not int:
            raise UsageError(f"start is an offset, got {start!r}")

        def truncate() -> int:
            removed = queue.truncate(start)
            self._node.cursor.sync()
            return removed

        return await asyncio.to_thread(truncate)

    async def _set_queue_meta(self, arguments: Map) -> Value:
        await self._fenced()
        queue = self._topics().partition(_need(arguments, "topic"), _need(arguments, "partition"))
        queue.set_meta(_need(arguments, "key"), arguments.get("value"))
        await self._node.sync()
        return None

    async def _set_topic_meta(self, arguments: Map) -> Value:
        await self._fenced()
        topic = self._topics().topic(_need(arguments, "topic"))
        topic.set_meta(_need(arguments, "key"), arguments.get("value"))
        await self._node.sync()
        return None

    async def _meta(self, arguments: Map) -> Value:
        return self._topics().topic(_need(arguments, "topic")).metadata()

    # --- the node -----------------------------------------------------------------------------

    async def _status(self, arguments: Map) -> Value:
        node = self._node
        reading = await node.monitor.reading()
        sections = await asyncio.to_thread(_sections, node.root)
        return to_cell(
            {
                "pid": os.getpid(),
                "version": datalattice.__version__,
                "started_ms": self._started_ms,
                "address": node.address,
                "http": node.monitor.address,
                "public_key": _hex(node.identity),
                "owner": _hex(node.owner),
                "fenced": node.is_fenced,
                "root_hash": reading.root_hash.hex(),
                "unchanged_ms": round(reading.unchanged_s * 1_000),
                "health": node.observer.health,
                "reasons": dict(reading.reasons),
                "damage": list(reading.damage),
                "over_quota": list(reading.inside.over_quota),
                "connections": reading.inbound + reading.outbound,
                "bytes_in": reading.traffic.bytes_in,
                "bytes_out": reading.traffic.bytes_out,
                "missing_cells": reading.inside.missing_count,
                "store_bytes": reading.store_bytes,
                "memory_bytes": reading.process.memory_bytes,
                "sections": sections,
                "peers": [one.document() for one in reading.peers],
                "guests": [one.document() for one in reading.guests],
                "counters": dict(reading.counters),
            }
        )

    async def _wait(self, arguments: Map) -> Value:
        known, timeout_ms = _text(arguments, "root_hash"), _timeout_ms(arguments)
        # Not having changed is an answer: whoever asked looks at the hash and asks again.
        with contextlib.suppress(Timeout):
            await self._node.wait_until(
                lambda node: node.root_hash.hex() != known, timeout_ms / 1e3
            )
        return self._node.root_hash.hex()

    async def _add_peer(self, arguments: Map) -> Value:
        address, key = _peer(arguments)
        self._node.add_peer(address, public_key=key)
        return None

    async def _remove_peer(self, arguments: Map) -> Value:
        address, key = _peer(arguments)
        await self._node.remove_peer(address, public_key=key)
        return None

    async def _pull(self, arguments: Map) -> Value:
        has_address = arguments.get("address") is not None
        await self._node.pull(_text(arguments, "address") if has_address else None)
        return self._node.root_hash

    async def _heal(self, arguments: Map) -> Value:
        """Begin to heal the store, or wait for the end of what was begun."""
        timeout_ms = _timeout_ms(arguments)
        if self._healing is None:
            addresses = _optional_vector(arguments, "addresses")
            folder = _text(arguments, "folder") if arguments.get("folder") is not None else None
            sources = HealingSources([str(one) for one in addresses or ()], folder)
            self._healing = asyncio.ensure_future(self._heal_with(sources))
        task = self._healing
        done, _ = await asyncio.wait([task], timeout=timeout_ms / 1e3)
        if not done:
            return None
        self._healing = None
        return task.result()

    async def _heal_with(self, sources: HealingSources) -> Value:
        with sources:
            healing = await self._node.heal(sources)
            return to_cell(healing_document(healing, sources))

    async def _import(self, arguments: Map) -> Value:
        """Begin to import a file of this machine, or wait for the end of what was begun."""
        timeout_ms = _timeout_ms(arguments)
        path = _text(arguments, "path")
        task = self._importing.get(path)
        if task is None:
            pin, merge = str(arguments.get("pin") or ""), arguments.get("merge") is True
            is_known = arguments.get("known") is True
            loop = asyncio.get_running_loop()
            work = asyncio.to_thread(self._import_now, path, pin, merge, is_known, loop)
            task = self._importing[path] = asyncio.ensure_future(work)
        done, _ = await asyncio.wait([task], timeout=timeout_ms / 1e3)
        if not done:
            return None
        del self._importing[path]
        return task.result()

    async def _forget(self, arguments: Map) -> Value:
        before_ms, store = _need(arguments, "before_ms"), self._node.store
        if type(before_ms) is not int:
            raise UsageError(f"before_ms is a time in milliseconds, got {before_ms!r}")
        if not isinstance(store, CellStore):
            raise UsageError("this node keeps its data in memory, and remembers no former roots")
        return await asyncio.to_thread(store.history.forget, before_ms)

    def _import_now(
        self, path: str, pin: str, merge: bool, is_known: bool, loop: asyncio.AbstractEventLoop
    ) -> Value:
        house, store = self._node.house, self._node.store
        if not isinstance(store, CellStore):
            raise UsageError("this node keeps its data in memory, so nothing can be imported")

        def taking(offer: Offer) -> Absorbed:
            taken = house.bring(offer, is_known=is_known)
            return asyncio.run_coroutine_threadsafe(taken, loop).result()

        return to_cell(import_into(store, path, pin=pin, merge=merge, taking=taking))

    async def _gc(self, arguments: Map) -> Value:
        """Begin to collect garbage, or tell how far it is."""
        return await self._collection.perform(arguments, _timeout_ms(arguments))

    async def _show_hosting(self, arguments: Map) -> Value:
        return await hosting.show(self._node)

    async def _decide_hosting(self, arguments: Map) -> Value:
        return await hosting.change(self._node, arguments)

    async def _forget_owner(self, arguments: Map) -> Value:
        return await hosting.forget(self._node, arguments)

    async def _resolve_fork(self, arguments: Map) -> Value:
        return await forks.resolve(self._node, arguments)

    async def _stop_node(self, arguments: Map) -> Value:
        self._stop()
        return None


_OPERATIONS: Final[dict[str, Operation]] = {
    "queue.offer_many": Operations._offer_many,
    "queue.truncate": Operations._truncate,
    "queue.set_meta": Operations._set_queue_meta,
    "queue.meta": Operations._meta,
    "topic.set_meta": Operations._set_topic_meta,
    "root.put": Operations._put,
    "root.swap": Operations._swap,
    "node.status": Operations._status,
    "node.wait": Operations._wait,
    "node.add_peer": Operations._add_peer,
    "node.remove_peer": Operations._remove_peer,
    "node.pull": Operations._pull,
    "node.stop": Operations._stop_node,
    "store.heal": Operations._heal,
    "store.gc": Operations._gc,
    "store.forget": Operations._forget,
    "store.import": Operations._import,
    "hosting.show": Operations._show_hosting,
    "hosting.decide": Operations._decide_hosting,
    "owner.forget": Operations._forget_owner,
    "forks.resolve": Operations._resolve_fork,
}


def _sections(root: Value) -> dict[str, str]:
    """Return the hash of what is below each top key of the announced value."""
    if not isinstance(root, (Index, Map)):
        return {}
    try:
        return {to_text(key): value_hash(value).hex() for key, value in root.entries()}
    except (Corruption, MissingData):
        return {}  # of a damaged store; its health says so


def _hex(key_pair: KeyPair | None) -> str | None:
    return None if key_pair is None else key_pair.public_key.hex()


def _need(arguments: Map, name: str) -> Value:
    value = arguments.get(name)
    if value is None:
        raise UsageError(f"the operation needs {name}")
    return value


def _timeout_ms(arguments: Map) -> int:
    timeout_ms = _need(arguments, "timeout_ms")
    if type(timeout_ms) is not int or not 0 <= timeout_ms <= WAIT_MS_MAX:
        raise UsageError(f"timeout_ms is a number from 0 to {WAIT_MS_MAX}, got {timeout_ms!r}")
    return timeout_ms


def _text(arguments: Map, name: str) -> str:
    value = _need(arguments, name)
    if not isinstance(value, str):
        raise UsageError(f"{name} is a text, got {value!r}")
    return value


def _peer(arguments: Map) -> tuple[str | None, bytes | None]:
    """Return the address or the key that names a peer."""
    text = _text(arguments, "address")
    if _KEY.fullmatch(text):
        return None, parse_key(text)
    if ":" not in text:
        raise UsageError(
            f"a peer is an address (host:port) or a key of 64 hex digits, got {text!r}"
        )
    return text, None


def _vector(arguments: Map, name: str) -> Vector:
    value = _need(arguments, name)
    if not isinstance(value, Vector):
        raise UsageError(f"{name} is a vector, got {value!r}")
    return value


def _optional_vector(arguments: Map, name: str) -> Vector | None:
    return None if arguments.get(name) is None else _vector(arguments, name)


"""First element of a control request: [:DO id name arguments]."""
