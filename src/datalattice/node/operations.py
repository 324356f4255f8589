"""Operations: what the owner of a node may ask of it while it runs, by name.

A store has one writer, and while a node runs that is the node. So whoever wants to write from
another process asks the node to: each operation returns when its effect is durable. An operation is
a name and a Map of arguments; its result is a value.

    root.put             values                                   whether all below them is here
    root.swap            slots: [[path hash value] ...]           whether they were set
    queue.offer_many     owner topic partition values keys? headers?   [first offset, count]
    node.status                                                   Map
    node.wait            root_hash timeout_ms                     root hash, once it is another one
    node.add_peer        address, or a key in hex                 nil
    node.remove_peer     address, or a key in hex                 nil
    node.pull            address?                                 root hash
    node.stop                                                     nil
    store.heal           addresses? folder?                       task: Map of what it did
    store.gc             grace_ms? dry_run? list?                 task: Map of what it did
    store.import         path pin? merge? known?                  task: Map of what it did
    task.wait            task timeout_ms                          Map: done, result or count total
    store.forget         before_ms                                former roots that were forgotten
    hosting.show                                                  Map: policy, decisions, usage
    hosting.decide       rule owner limit? reason?                the same, after it
    owner.forget         owner section? own? reason?              Map of what went
    forks.resolve        id action: append or drop                Map of what was done

`root.swap` sets all slots, or none when one of them has another value by now (see `slots`);
`root.put` brings cells ahead that are too many for it. `queue.offer_many` appends to a queue as it
is then, so nobody can be faster; offers wait for an edit that is made again. A long operation
answers at once with the id of its task; `task.wait` says how far that is or what came of it (see
`tasks`).

Length: one operation after the other, each of a few lines.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import asdict
from typing import Final, TypeVar

from datalattice.apps.queue import Topics
from datalattice.cells import (
    Cell,
    Index,
    Loader,
    Map,
    Value,
    Vector,
    brief,
    to_cell,
    to_text,
    value_hash,
)
from datalattice.client import (
    NO_KEY,
    OFFER_RECORDS_MAX,
    SlotMoved,
    collect,
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
from datalattice.lattice import is_public_key
from datalattice.node import forks, hosting
from datalattice.node.server import NodeServer
from datalattice.node.tasks import Task, Tasks, Work
from datalattice.store import CellStore, CheckedCells
from datalattice.store.gc import GRACE_MS
from datalattice.sync import Absorbed, Offer
from datalattice.version import VERSION

_KEY: Final = re.compile(r"[0-9a-fA-F]{64}")

KEPT: Final = (
    "the edit is not acknowledged: while it runs the node keeps it and stores it once it can, so "
    "make room and do not make it again; if it stops before, it is lost"
)
"""What is true of an edit whose sync failed: it is in the live value (docs/node.md)."""

GIVE_WAY_S: Final = 1.0
"""How long offers wait, after a swap in vain, for its edit to be made again."""

FENCE_WAIT_S: Final = 45.0
"""Longest wait for the fence: shorter than the time after which a client gives up."""

WAIT_MS_MAX: Final = 30_000
"""Longest `node.wait`: shorter than the time after which a client gives up."""

T = TypeVar("T")

Operation = Callable[["Operations", Map], Awaitable[Value]]


class Operations:
    """The operations of one node."""

    def __init__(self, node: NodeServer, stop: Callable[[], None]) -> None:
        self._node = node
        self._stop = stop
        self._started_ms = node.clock.now_ms()
        self._tasks = Tasks()
        self._is_behind = False  # whether the store could not keep what was written
        self._is_clear = asyncio.Event()  # whether no edit is made again meanwhile
        self._is_clear.set()

    async def perform(self, name: str, arguments: Map) -> Value:
        """Do what `name` says; return its result when that is durable.

        Raises: UnsupportedOperation: there is no such operation. UsageError: wrong arguments.
                Unavailable: a fault of the node, which is degraded from then on.
        """
        operation = _OPERATIONS.get(name)
        if operation is None:
            known = ", ".join(sorted(_OPERATIONS))
            raise UnsupportedOperation(f"this node has no operation {name!r}; it has: {known}")
        with self._telling_faults():
            return await operation(self, arguments)

    @contextlib.contextmanager
    def _telling_faults(self) -> Iterator[None]:
        try:
            yield
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
        await self._writable()
        wanted = read_slots(_need(arguments, "slots"))

        def swap() -> bool:
            cursor = node.cursor
            lattice = cursor.lattice
            assert lattice is not None
            try:
                door = CheckedCells(node.store, scanned=True)
                for _, _, after in wanted:
                    door.check_value(after)  # all of it is at hand, and sound
                self._durably(
                    lambda: cursor.update(
                        lambda live: with_slots(lattice, live, present_slots(live, wanted))
                    )
                )
            except (SlotMoved, MissingData):
                # Whoever is ahead in the live value may not be durable yet, and what an edit is
                # made on is what is durable.
                cursor.sync()
                return False
            return True

        done = await asyncio.to_thread(swap)
        self._clear_the_way(is_clear=done)
        return done

    async def _offer_many(self, arguments: Map) -> Value:
        owner = _need(arguments, "owner")
        if not is_public_key(owner):
            raise UsageError(f"owner is a public key, got {brief(owner)}")
        topics = Topics.at(self._node.cursor, owner, self._node.clock)
        queue = topics.partition(_need(arguments, "topic"), _need(arguments, "partition"))
        values = _records(arguments, "values")
        keys, headers = (
            None if arguments.get(name) is None else _records(arguments, name)
            for name in ("keys", "headers")
        )
        await self._writable()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GIVE_WAY_S):
                await self._is_clear.wait()

        def offer() -> range:
            rows = list(values)
            key_row, header_row = (None if one is None else list(one) for one in (keys, headers))
            # Whatever is no cell is sound as it was decoded, and all of it at hand.
            columns = (rows, key_row, header_row)
            cells = [one for row in columns for one in row or () if isinstance(one, Cell)]
            if cells:
                CheckedCells(self._node.store, scanned=True).check_value(Vector.of(cells))
            return self._durably(lambda: queue.offer_many(rows, keys=key_row, headers=header_row))

        offsets = await asyncio.to_thread(offer)
        return Vector.of((offsets.start, len(offsets)))

    def _clear_the_way(self, *, is_clear: bool) -> None:
        """Let offers pass, or have them wait: an edit is made again and must not be late again.

        Edits take turns, so there is one of them at a time (`NodeEditor`).
        """
        if is_clear:
            self._is_clear.set()
        elif self._is_clear.is_set():
            self._is_clear.clear()
            # Whoever made the edit may have given it up.
            asyncio.get_running_loop().call_later(GIVE_WAY_S, self._is_clear.set)

    def _durably(self, write: Callable[[], T]) -> T:
        """Write to the live value; return what `write` does, when that is durable.

        Raises: StoreFull, StoreFailed: nothing was written, since there was no room for what was
                written before; or it was, and is kept as the text says.
        """
        if self._is_behind:
            # What nobody has stored must not become ever more.
            self._node.cursor.sync()
            self._is_behind = False
        written = write()
        try:
            self._node.cursor.sync()
        except (StoreFull, StoreFailed) as error:
            self._is_behind = True
            raise type(error)(f"{error}; {KEPT}") from error
        return written

    async def _writable(self) -> None:
        """Return when owners may be written for.

        Raises: NoSigningKey: the node has no key. Unfenced: as `_fenced`.
        """
        if self._node.identity is None:
            raise NoSigningKey(NO_KEY)
        await self._fenced()

    async def _fenced(self) -> None:
        """Return when writes are accepted.

        Raises: Unfenced: it is not decided in time, or refused.
        """
        try:
            async with asyncio.timeout(FENCE_WAIT_S):
                await self._node.fenced()
        except TimeoutError as error:
            raise Unfenced("peers are being asked for what was written elsewhere") from error

    # --- the node -----------------------------------------------------------------------------

    async def _status(self, arguments: Map) -> Value:
        node = self._node
        reading = await node.monitor.reading()
        sections = await asyncio.to_thread(_sections, node.root)
        return to_cell(
            {
                "pid": os.getpid(),
                "version": VERSION,
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

    async def _forget(self, arguments: Map) -> Value:
        before_ms = _need(arguments, "before_ms")
        if type(before_ms) is not int:
            raise UsageError(f"before_ms is a time in milliseconds, got {before_ms!r}")
        store = self._cell_store("remembers no former roots")
        return await asyncio.to_thread(store.history.forget, before_ms)

    # --- long operations ----------------------------------------------------------------------

    def _begin(self, name: str, arguments: Map, work: Work) -> Value:
        async def run(task: Task) -> Value:
            with self._telling_faults():
                return await work(task)

        return self._tasks.begin(name, arguments, run)

    async def _wait_for_task(self, arguments: Map) -> Value:
        return await self._tasks.wait(_need(arguments, "task"), _timeout_ms(arguments) / 1e3)

    async def _heal(self, arguments: Map) -> Value:
        addresses = _optional_vector(arguments, "addresses")
        folder = _text(arguments, "folder") if arguments.get("folder") is not None else None

        async def work(task: Task) -> Value:
            with HealingSources([str(one) for one in addresses or ()], folder) as sources:
                healing = await self._node.heal(sources, task.told)
                return to_cell(healing_document(healing, sources))

        return self._begin("store.heal", arguments, work)

    async def _gc(self, arguments: Map) -> Value:
        plan = arguments.get("list")
        if not (plan is None or (isinstance(plan, str) and plan)):
            raise UsageError(f"list is the path of a sweep list, got {plan!r}")
        grace_ms = arguments.get("grace_ms", GRACE_MS)
        if type(grace_ms) is not int or grace_ms < 0:
            raise UsageError(f"grace_ms is a number from 0, got {grace_ms!r}")
        is_dry = arguments.get("dry_run") is True
        store = self._cell_store("has no garbage to collect")

        async def work(task: Task) -> Value:
            done = await asyncio.to_thread(
                collect, store, task.told, grace_ms=grace_ms, plan=plan, is_dry=is_dry
            )
            if not is_dry:
                await self._node.house.collected(done)
            return to_cell(asdict(done))

        return self._begin("store.gc", arguments, work)

    async def _import(self, arguments: Map) -> Value:
        """Import a file or store of this machine."""
        path = _text(arguments, "path")
        pin, merge = str(arguments.get("pin") or ""), arguments.get("merge") is True
        is_known = arguments.get("known") is True
        house, store = self._node.house, self._cell_store("takes no import")
        loop = asyncio.get_running_loop()

        def taking(offer: Offer) -> Absorbed:
            taken = house.bring(offer, is_known=is_known)
            return asyncio.run_coroutine_threadsafe(taken, loop).result()

        async def work(task: Task) -> Value:
            return to_cell(
                await asyncio.to_thread(
                    import_into,
                    store,
                    path,
                    pin=pin,
                    merge=merge,
                    taking=taking,
                    progress=task.told,
                )
            )

        return self._begin("store.import", arguments, work)

    def _cell_store(self, without: str) -> CellStore:
        """Return the store on disk.

        Raises: UsageError: it is in memory; the text ends with `without`.
        """
        store = self._node.store
        if not isinstance(store, CellStore):
            raise UsageError(f"this node keeps its data in memory and {without}")
        return store

    # --- others -------------------------------------------------------------------------------

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
    "root.put": Operations._put,
    "root.swap": Operations._swap,
    "queue.offer_many": Operations._offer_many,
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
    "task.wait": Operations._wait_for_task,
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


def _records(arguments: Map, name: str) -> Vector:
    column = _vector(arguments, name)
    if not 0 < len(column) <= OFFER_RECORDS_MAX:
        raise UsageError(f"{name} are 1 to {OFFER_RECORDS_MAX} in one offer, got {len(column)}")
    return column


def _optional_vector(arguments: Map, name: str) -> Vector | None:
    return None if arguments.get(name) is None else _vector(arguments, name)
