"""Operations: the requests that other processes of the owner may make to a running node, by name.

A store has one writer, and while a node runs that is the node. So another process that wants to
write asks the node. Each operation returns when its effect is durable. An operation is a name and a
Map of arguments; its result is a value.

    root.put             values                                   whether all cells below are here
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
    weaver.join          token                                    Map: store and kind
    weaver.peers         store                                    Maps: what is known of each peer
    weaver.sync          store timeout_ms                         Maps: how each peer's ended

`root.swap` sets all slots, or none if one of them has another value by now (compare and set). If
one
swap has too many cells, `root.put` sends some of them first. `queue.offer_many` appends to the
queue as it is at that moment, so it never fails because of another write; offers wait while an edit
is redone. A long operation returns the id of its task at once; `task.wait` returns the progress or
the result (`tasks`).

Source: docs/node.md "Control socket"; docs/design/control.md.


Length: one short method for each operation.
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
from datalattice.node.decisions import (
    decide,
    hosting_document,
    refuse_for_good,
    resolve_fork,
)
from datalattice.node.server import NodeServer
from datalattice.node.tasks import NodeTask, NodeTasks, Work
from datalattice.node.weaverhosts import WeaverHosts
from datalattice.node.weaverpeers import SYNC_TIMEOUT_S_MAX
from datalattice.store import CheckedCells
from datalattice.store.gc import GRACE_MS
from datalattice.sync import Absorbed, Offer
from datalattice.version import VERSION
from datalattice.weaver import InviteToken, parse_store_id, store_id_text

_KEY: Final = re.compile(r"[0-9a-fA-F]{64}")

# "The node keeps it while it runs, and stores it once there is room" (docs/node.md "Room").
KEPT: Final = (
    "the edit is not acknowledged: while it runs the node keeps it and stores it once it can, so "
    "make room and do not make it again; if it stops before, it is lost"
)

GIVE_WAY_S: Final = 1.0  # offers wait this long after a failed swap, so that its edit can be redone

# Both are shorter than the 60 s after which a client gives up.
FENCE_WAIT_S: Final = 45.0
WAIT_MS_MAX: Final = 30_000

T = TypeVar("T")

Operation = Callable[["NodeOperations", Map], Awaitable[Value]]


class NodeOperations:
    """The operations of one node."""

    def __init__(
        self, node: NodeServer, stop: Callable[[], None], weaver: WeaverHosts | None = None
    ) -> None:
        self._node = node
        self._weaver = weaver
        self._stop = stop
        self._started_ms = node.clock.now_ms()
        self._tasks = NodeTasks()
        self._is_behind = False  # whether the last write could not be stored
        self._is_clear = asyncio.Event()  # cleared while a failed swap is redone
        self._is_clear.set()

    async def perform(self, name: str, arguments: Map) -> Value:
        """Run an operation; return its result once it is durable.

        Raises: UnsupportedOperation: an unknown name. UsageError: wrong arguments.
                Unavailable: a fault of the node, which is degraded from then on.
        """
        # A table, not a lookup of methods: a client can call nothing else.
        operation = _OPERATIONS.get(name)
        if operation is None:
            known = ", ".join(sorted(_OPERATIONS))
            raise UnsupportedOperation(f"this node has no operation {name!r}; it has: {known}")
        with self._reporting_faults():
            return await operation(self, arguments)

    @contextlib.contextmanager
    def _reporting_faults(self) -> Iterator[None]:
        try:
            yield
        except DataLatticeError:
            raise
        except Exception as error:  # a bug of ours, which the client must not take for its own
            self._node.observer.failed(error)
            raise Unavailable(f"a fault of the running node: {error!r}") from error

    @property
    def loader(self) -> Loader:
        """Loads the cells that a request refers to but does not contain."""
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
                # Cells from a client are checked like those of a peer: nothing malformed is stored.
                checked = CheckedCells(node.store, scanned=True)
                for _, _, after in wanted:
                    checked.check_value(after)  # every cell is here, and well formed
                self._durably(
                    lambda: cursor.update(
                        lambda live: with_slots(lattice, live, present_slots(live, wanted))
                    )
                )
            except (SlotMoved, MissingData):
                # The client redoes its edit on the durable value, so the live value that was
                # ahead of it has to become durable first.
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
        # A slot that moved makes an edit fail but never an offer, so offers wait a while for the
        # edit.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GIVE_WAY_S):
                await self._is_clear.wait()

        def offer() -> range:
            rows = list(values)
            key_row, header_row = (None if one is None else list(one) for one in (keys, headers))
            # Values other than cells were checked when they were decoded.
            columns = (rows, key_row, header_row)
            cells = [one for row in columns for one in row or () if isinstance(one, Cell)]
            if cells:
                CheckedCells(self._node.store, scanned=True).check_value(Vector.of(cells))
            return self._durably(lambda: queue.offer_many(rows, keys=key_row, headers=header_row))

        offsets = await asyncio.to_thread(offer)
        return Vector.of((offsets.start, len(offsets)))

    def _clear_the_way(self, *, is_clear: bool) -> None:
        """Let offers pass, or hold them back while the client of a failed swap redoes its edit.

        One flag is enough: edits take turns, so one is in progress at a time (`NodeEditor`).
        """
        if is_clear:
            self._is_clear.set()
        elif self._is_clear.is_set():
            self._is_clear.clear()
            # The client may have given up, so offers wait for a bounded time.
            asyncio.get_running_loop().call_later(GIVE_WAY_S, self._is_clear.set)

    def _durably(self, write: Callable[[], T]) -> T:
        """Write to the live value; return the result of `write` once it is durable.

        Raises: StoreFull, StoreFailed: nothing was written because an earlier write is not stored
                yet; or it was written and is kept in memory, as the text says.
        """
        if self._is_behind:
            # "Later edits and offers are refused until then, and not kept": memory stays bounded.
            self._node.cursor.sync()
            self._is_behind = False
        # The live value has the edit before the disk does. If the sync fails, the edit is kept, not
        # undone.
        written = write()
        try:
            self._node.cursor.sync()
        except (StoreFull, StoreFailed) as error:
            self._is_behind = True
            raise type(error)(f"{error}; {KEPT}") from error
        return written

    async def _writable(self) -> None:
        """Return when writes below owners are accepted.

        Raises: NoSigningKey: the node has no key. Unfenced: not decided in time, or refused.
        """
        # Without a key nothing below an owner can be signed.
        if self._node.identity is None:
            raise NoSigningKey(NO_KEY)
        try:
            async with asyncio.timeout(FENCE_WAIT_S):
                await self._node.fenced()
        except TimeoutError as error:
            raise Unfenced("peers are being asked for what was written elsewhere") from error

    # --- the node -----------------------------------------------------------------------------

    async def _status(self, arguments: Map) -> Value:
        node = self._node
        status = await node.monitor.status()
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
                "root_hash": status.root_hash.hex(),
                "unchanged_ms": round(status.unchanged_s * 1_000),
                "health": node.observer.health,
                "reasons": dict(status.reasons),
                "damage": list(status.damage),
                "over_quota": list(status.lane.over_quota),
                "connections": status.inbound + status.outbound,
                "bytes_in": status.traffic.bytes_in,
                "bytes_out": status.traffic.bytes_out,
                "missing_cells": status.lane.missing_count,
                "store_bytes": status.store_bytes,
                "memory_bytes": status.process.memory_bytes,
                "sections": sections,
                "peers": [one.document() for one in status.peers],
                "guests": [one.document() for one in status.guests],
                "counters": dict(status.counters),
            }
        )

    async def _wait(self, arguments: Map) -> Value:
        known, timeout_ms = _text(arguments, "root_hash"), _timeout_ms(arguments)
        # Without a change the old hash is the answer: the client compares it and asks again.
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
        await self._node.pull(_optional_text(arguments, "address"))
        return self._node.root_hash

    async def _forget(self, arguments: Map) -> Value:
        # Arguments come from another process: each is checked before it is used.
        before_ms = _need(arguments, "before_ms")
        if type(before_ms) is not int:
            raise UsageError(f"before_ms is a time in milliseconds, got {before_ms!r}")
        store = self._node.store
        return await asyncio.to_thread(store.history.forget, before_ms)

    # --- long operations ----------------------------------------------------------------------

    def _begin(self, name: str, arguments: Map, work: Work) -> Value:
        async def run(task: NodeTask) -> Value:
            with self._reporting_faults():
                return await work(task)

        return self._tasks.begin(name, arguments, run)

    async def _wait_for_task(self, arguments: Map) -> Value:
        return await self._tasks.wait(_need(arguments, "task"), _timeout_ms(arguments) / 1e3)

    async def _heal(self, arguments: Map) -> Value:
        given = arguments.get("addresses") is not None
        addresses = [str(one) for one in _vector(arguments, "addresses")] if given else []
        folder = _optional_text(arguments, "folder")

        async def work(task: NodeTask) -> Value:
            with HealingSources(addresses, folder) as sources:
                healing = await self._node.heal(sources, task.on_progress)
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
        store = self._node.store

        async def work(task: NodeTask) -> Value:
            done = await asyncio.to_thread(
                collect, store, task.on_progress, grace_ms=grace_ms, plan=plan, is_dry=is_dry
            )
            if not is_dry:
                await self._node.housekeeper.collected(done)
            return to_cell(asdict(done))

        return self._begin("store.gc", arguments, work)

    async def _import(self, arguments: Map) -> Value:
        path = _text(arguments, "path")
        pin, merge = str(arguments.get("pin") or ""), arguments.get("merge") is True
        is_known = arguments.get("known") is True
        housekeeper, store = self._node.housekeeper, self._node.store
        loop = asyncio.get_running_loop()

        def absorb(offer: Offer) -> Absorbed:  # called on the thread of the import
            work = housekeeper.merge_import(offer, is_known=is_known)
            return asyncio.run_coroutine_threadsafe(work, loop).result()

        async def work(task: NodeTask) -> Value:
            return to_cell(
                await asyncio.to_thread(
                    import_into,
                    store,
                    path,
                    pin=pin,
                    merge=merge,
                    taking=absorb,
                    progress=task.on_progress,
                )
            )

        return self._begin("store.import", arguments, work)

    # --- decisions of the operator --------------------------------------------------------------

    async def _show_hosting(self, arguments: Map) -> Value:
        return to_cell(await self._node.housekeeper.ask(hosting_document))

    async def _decide_hosting(self, arguments: Map) -> Value:
        rule, owner = _text(arguments, "rule"), _text(arguments, "owner")
        limit = arguments.get("limit")
        if limit is not None and (type(limit) is not int or limit < 0):
            raise UsageError(f"limit is a number of bytes, got {limit!r}")
        size = limit if type(limit) is int else None
        reason = str(arguments.get("reason") or "")
        await self._node.housekeeper.ask(
            lambda replica: decide(replica, rule, owner, limit=size, reason=reason)
        )
        if rule in ("allow", "host"):
            self._node.look_for_more()  # peers may have what was refused until now
        return await self._show_hosting(arguments)

    async def _forget_owner(self, arguments: Map) -> Value:
        owner, section = _text(arguments, "owner"), _optional_text(arguments, "section")
        own, reason = arguments.get("own") is True, str(arguments.get("reason") or "")
        document = await self._node.housekeeper.ask(
            lambda replica: refuse_for_good(replica, owner, section, own=own, reason=reason)
        )
        await self._node.housekeeper.forget()
        return to_cell(document)

    async def _resolve_fork(self, arguments: Map) -> Value:
        id, action, clock = _text(arguments, "id"), _text(arguments, "action"), self._node.clock
        if action == "append":
            # Not in the lane: the answers of peers that open the fence come through the lane.
            await self._node.fenced()
        return to_cell(
            await self._node.housekeeper.ask(
                lambda replica: resolve_fork(replica, id, action, clock)
            )
        )

    async def _join(self, arguments: Map) -> Value:
        token = InviteToken.from_text(_text(arguments, "token"))
        store = await self._stores().join(token)
        return to_cell({"store": store_id_text(store.id), "kind": store.kind})

    async def _store_peers(self, arguments: Map) -> Value:
        known = await self._stores().presence(parse_store_id(_text(arguments, "store")))
        return to_cell(
            [
                {
                    "key": one.public_key.hex(),
                    "equal": one.is_equal,
                    "dirty": one.is_dirty,
                    "lag": one.lag,
                    "compared_s": one.compared_s,
                    "agreed_s": one.agreed_s,
                }
                for one in known
            ]
        )

    async def _sync_store(self, arguments: Map) -> Value:
        timeout_ms, store = _need(arguments, "timeout_ms"), _text(arguments, "store")
        most = round(SYNC_TIMEOUT_S_MAX * 1_000)
        if type(timeout_ms) is not int or not 1 <= timeout_ms <= most:
            raise UsageError(f"a comparison may take 1 to {most} ms, got {timeout_ms!r}")
        synced = await self._stores().sync(parse_store_id(store), timeout_ms / 1e3)
        return to_cell([{"key": one.public_key.hex(), "error": one.error} for one in synced])

    def _stores(self) -> WeaverHosts:
        if self._weaver is None:
            raise NoSigningKey("a node without a key has no Weaver stores")
        return self._weaver

    async def _stop_node(self, arguments: Map) -> Value:
        self._stop()
        return None


_OPERATIONS: Final[dict[str, Operation]] = {
    "root.put": NodeOperations._put,
    "root.swap": NodeOperations._swap,
    "queue.offer_many": NodeOperations._offer_many,
    "node.status": NodeOperations._status,
    "node.wait": NodeOperations._wait,
    "node.add_peer": NodeOperations._add_peer,
    "node.remove_peer": NodeOperations._remove_peer,
    "node.pull": NodeOperations._pull,
    "node.stop": NodeOperations._stop_node,
    "store.heal": NodeOperations._heal,
    "store.gc": NodeOperations._gc,
    "store.forget": NodeOperations._forget,
    "store.import": NodeOperations._import,
    "task.wait": NodeOperations._wait_for_task,
    "hosting.show": NodeOperations._show_hosting,
    "hosting.decide": NodeOperations._decide_hosting,
    "owner.forget": NodeOperations._forget_owner,
    "forks.resolve": NodeOperations._resolve_fork,
    "weaver.join": NodeOperations._join,
    "weaver.peers": NodeOperations._store_peers,
    "weaver.sync": NodeOperations._sync_store,
}


def _sections(root: Value) -> dict[str, str]:
    """Return the hash of what is below each top key of the announced value."""
    if not isinstance(root, (Index, Map)):
        return {}
    try:
        return {to_text(key): value_hash(value).hex() for key, value in root.entries()}
    except (Corruption, MissingData):
        return {}  # the store is damaged, which its health reports


def _hex(key_pair: KeyPair | None) -> str | None:
    return None if key_pair is None else key_pair.public_key.hex()


def _need(arguments: Map, name: str) -> Value:
    value = arguments.get(name)
    if value is None:
        raise UsageError(f"the operation needs {name}")
    return value


def _timeout_ms(arguments: Map) -> int:
    timeout_ms = _need(arguments, "timeout_ms")
    # `type`, not `isinstance`: True is an int in Python and another value in a cell.
    if type(timeout_ms) is not int or not 0 <= timeout_ms <= WAIT_MS_MAX:
        raise UsageError(f"timeout_ms is a number from 0 to {WAIT_MS_MAX}, got {timeout_ms!r}")
    return timeout_ms


def _text(arguments: Map, name: str) -> str:
    value = _need(arguments, name)
    if not isinstance(value, str):
        raise UsageError(f"{name} is a text, got {value!r}")
    return value


def _optional_text(arguments: Map, name: str) -> str | None:
    return None if arguments.get(name) is None else _text(arguments, name)


def _peer(arguments: Map) -> tuple[str | None, bytes | None]:
    """Return (address, key): one of the two names a peer."""
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
