"""Operations: the actions that a running node does itself, mostly because only it may write.

A store has one writer, and while a node runs that is the node. So another process that wants to
write asks the node. Each action returns when its effect is durable. The actions are declared in
`datalattice.actions`, with a description each; the service given to the node, if any, does those
that are not here.

`SwapSlots` sets all slots, or none if one of them has another value by now (compare and set). If
one swap has too many cells, `StageValues` sends some of them first. `AppendRecords` appends to the
queue as it is at that moment, so it never fails because of another write; offers wait while an edit
is redone. A long operation is a task (`tasks`).

Source: docs/node.md "Control socket"; docs/design/control.md.

Length: one short method for each action.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from datalattice.actions import (
    ActionRequest,
    AddPeer,
    AppendedRecords,
    AppendRecords,
    CancelTask,
    DecideHosting,
    DrainNode,
    Empty,
    ForgetOwner,
    ForgetRoots,
    ForgottenOwner,
    ForgottenRoots,
    GetHosting,
    GetNodeHealth,
    GetPresence,
    GetTask,
    HostingInfo,
    JoinedStore,
    JoinStore,
    ListTasks,
    NodeHealth,
    NodeRoot,
    PeerSync,
    PresentPeer,
    PresentPeers,
    PullPeers,
    ReloadedSettings,
    ReloadSettings,
    RemovePeer,
    ResolvedFork,
    ResolveFork,
    StageValues,
    StartTask,
    StopNode,
    SwapSlots,
    Synced,
    SyncStore,
    TaskInfo,
    TaskList,
    WaitForRoot,
    WatchTask,
    WrittenSlots,
)
from datalattice.apps.queue import Topics
from datalattice.cells import (
    Cell,
    Index,
    Map,
    Value,
    Vector,
    brief,
    decode_parts,
    to_cell,
    to_text,
    value_hash,
)
from datalattice.client import (
    NO_KEY,
    OFFER_RECORDS_MAX,
    Slot,
    SlotMoved,
    WantedSlot,
    parse_key,
    present_slots,
    read_slots,
    with_slots,
)
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
from datalattice.node.control import OfferedActions
from datalattice.node.decisions import decide_hosting, hosting_info, refuse_for_good, resolve_fork
from datalattice.node.maintenance import Maintenance
from datalattice.node.server import NodeServer
from datalattice.node.weaverhosts import WeaverHosts
from datalattice.node.weaverpeers import SYNC_TIMEOUT_S_MAX
from datalattice.protobuf import Message
from datalattice.store import CheckedCells
from datalattice.version import VERSION
from datalattice.weaver import InviteToken

_KEY: Final = re.compile(r"[0-9a-fA-F]{64}")

# "The node keeps it while it runs, and stores it once there is room" (docs/node.md "Room").
KEPT: Final = (
    "the edit is not acknowledged: the node keeps it while it runs and stores it once it can, so "
    "make room and do not repeat the edit; if the node stops before, the edit is lost"
)

GIVE_WAY_S: Final = 1.0  # offers wait this long after a failed swap, so that its edit can be redone

# Both are shorter than the 60 s after which a client gives up.
FENCE_WAIT_S: Final = 45.0
_WAIT_MS_MAX: Final = 30_000

T = TypeVar("T")
_M = TypeVar("_M", bound=Callable[..., Awaitable[Message]])

_OWN: Final[dict[type[ActionRequest[Any]], Callable[..., Awaitable[Message]]]] = {}
"""The method that does each action; a client can have no other one called."""

_FOR_CALLERS: Final[dict[type[ActionRequest[Any]], Callable[..., Awaitable[Message]]]] = {}
"""The same for actions that depend on who asks."""


def _does(request: type[ActionRequest[Any]], table: dict[Any, Any] = _OWN) -> Callable[[_M], _M]:
    """Register the method that it decorates as the one that does an action."""

    def register(method: _M) -> _M:
        table[request] = method
        return method

    return register


class NodeOperations:
    """The actions of one node. offered: does those that need no node."""

    def __init__(
        self,
        node: NodeServer,
        stop: Callable[[], None],
        weaver: WeaverHosts | None = None,
        offered: OfferedActions | None = None,
        reload: Callable[[], Awaitable[list[str]]] | None = None,
        drain: Callable[[], object] = lambda: None,
    ) -> None:
        self._node = node
        self._weaver = weaver
        self._stop = stop
        self._offered = offered
        self._reload = reload
        self._drain = drain
        self._started_ms = node.clock.now_ms()
        self._maintenance = Maintenance(node, self._stores, self._reporting_faults)
        self._is_behind = False  # whether the last write could not be stored
        self._is_clear = asyncio.Event()  # cleared while a failed swap is redone
        self._is_clear.set()

    async def perform(
        self, request: ActionRequest[Any], caller: str = "", request_id: str | None = None
    ) -> Message:
        """Do an action; return its result once it is durable.

        caller: the DID of the caller, "" for the owner of the folder. request_id: passed on to the
        service; actions of the node itself ignore it.
        Raises: what the action raises. UnsupportedOperation: it needs a service; none was given.
                Unavailable: a fault of the node, which is degraded from then on.
        """
        kind = type(request)
        with self._reporting_faults():
            if kind in _OWN:
                return await _OWN[kind](self, request)
            if kind in _FOR_CALLERS:
                return await _FOR_CALLERS[kind](self, request, caller)
            return await self._offering(request).perform(request, caller, request_id)

    async def follow(
        self, request: ActionRequest[Any], caller: str = ""
    ) -> AsyncGenerator[Message, None]:
        """Begin a stream, and return its items. Raises: as `perform`."""
        with self._reporting_faults():
            if isinstance(request, WatchTask):
                tasks = self._maintenance.tasks
                return tasks.watch(tasks.get(request.id, caller))
            return await self._offering(request).follow(request, caller)

    def _offering(self, request: ActionRequest[Any]) -> OfferedActions:
        if self._offered is None:
            raise UnsupportedOperation(
                f"a program runs this node, without the service that does {request.action.name}; "
                "`lattice node start` and `lattice daemon` have it"
            )
        return self._offered

    @contextlib.contextmanager
    def _reporting_faults(self) -> Iterator[None]:
        try:
            yield
        except DataLatticeError:
            raise
        except Exception as error:  # a bug of ours, which the client must not take for its own
            self._node.observer.failed(error)
            raise Unavailable(f"a fault of the running node: {error!r}") from error

    def _unpacked(self, data: bytes) -> Value:
        """Return a value; cells that did not come with it are in the store. Raises: BadFormat."""
        return decode_parts(data, self._node.store)[0]

    # --- any section --------------------------------------------------------------------------

    @_does(StageValues)
    async def _stage(self, request: StageValues) -> WrittenSlots:
        values = _vector(self._unpacked(request.packed), "values")

        def stage() -> bool:
            try:
                self._node.stage(values)
            except MissingData:
                return False
            return True

        return WrittenSlots(done=await asyncio.to_thread(stage))

    @_does(SwapSlots)
    async def _swap(self, request: SwapSlots) -> WrittenSlots:
        node = self._node
        await self._writable()
        wanted = read_slots(self._unpacked(request.packed))

        def swap() -> bool:
            # Cells from a client are checked like those of a peer: nothing malformed is stored.
            checked = CheckedCells(node.store, scanned=True)
            try:
                for _, _, after in wanted:
                    checked.check_value(after)  # every cell is here, and well formed
            except MissingData:
                node.cursor.sync()
                return False
            return self._set(wanted)

        done = await asyncio.to_thread(swap)
        self._clear_the_way(is_clear=done)
        return WrittenSlots(done=done)

    def _set(self, wanted: Sequence[WantedSlot]) -> bool:
        """Set slots durably; return False, with none set, if one has moved."""
        cursor = self._node.cursor
        lattice = cursor.lattice
        assert lattice is not None
        try:
            self._durably(
                lambda: cursor.update(
                    lambda live: with_slots(lattice, live, present_slots(live, wanted))
                )
            )
        except (SlotMoved, MissingData):
            # The client redoes its edit on the durable value, so the live value that was ahead of
            # it has to become durable first.
            cursor.sync()
            return False
        return True

    def swap(self, slots: Sequence[Slot], loop: asyncio.AbstractEventLoop) -> bool:
        """Set slots that a thread of this process made, as `ServingNode.swap`.

        loop: the node's, which runs in another thread.
        """
        if self._node.identity is None or not self._node.is_writable:
            asyncio.run_coroutine_threadsafe(self._writable(), loop).result()
        done = self._set([(one.path, value_hash(one.before), one.after) for one in slots])
        if not done or not self._is_clear.is_set():
            loop.call_soon_threadsafe(partial(self._clear_the_way, is_clear=done))
        return done

    @_does(AppendRecords)
    async def _append(self, request: AppendRecords) -> AppendedRecords:
        if not is_public_key(request.owner):
            raise UsageError(f"owner is a public key, got {brief(request.owner)}")
        if request.partition is None:
            raise UsageError("records are appended to a partition, got nil for its id")
        topics = Topics.at(self._node.cursor, request.owner, self._node.clock)
        queue = topics.partition(request.topic, request.partition)
        given = _vector(self._unpacked(request.packed), "records")
        if len(given) != 3:
            raise UsageError(f"records are [values keys headers], got {brief(given)}")
        values = _records(given[0], "values")
        keys, headers = (
            None if column is None else _records(column, name)
            for column, name in ((given[1], "keys"), (given[2], "headers"))
        )
        await self._writable()
        # A slot that moved makes an edit fail but never an offer, so offers wait for a failed edit.
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
        return AppendedRecords(first=offsets.start, count=len(offsets))

    def _clear_the_way(self, *, is_clear: bool) -> None:
        """Let offers pass, or hold them back while the client of a failed swap redoes its edit.

        One flag is enough: edits take turns, so one is in progress at a time (`EditTurn`).
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
            raise Unfenced("peers are being asked for writes made elsewhere") from error

    # --- the node -----------------------------------------------------------------------------

    @_does(GetNodeHealth)
    async def _health(self, request: GetNodeHealth) -> NodeHealth:
        node = self._node
        status = await node.monitor.status()
        sections = await asyncio.to_thread(_sections, node.root)
        return NodeHealth(
            pid=os.getpid(),
            version=VERSION,
            started_ms=self._started_ms,
            address=node.address,
            http=node.monitor.address,
            public_key=_key_of(node.identity),
            owner=_key_of(node.owner),
            fenced=node.is_fenced,
            root_hash=status.root_hash,
            unchanged_ms=round(status.unchanged_s * 1_000),
            health="draining" if node.monitor.is_draining else node.observer.health,
            reasons=to_cell(dict(status.reasons)),
            damage=status.damage,
            over_quota=status.lane.over_quota,
            connections=status.inbound + status.outbound,
            bytes_in=status.traffic.bytes_in,
            bytes_out=status.traffic.bytes_out,
            missing_cells=status.lane.missing_count,
            store_bytes=status.store_bytes,
            memory_bytes=status.process.memory_bytes,
            sections=to_cell(sections),
            peers=tuple([one.described() for one in status.peers]),
            guests=tuple([one.described() for one in status.guests]),
            counters=to_cell(dict(status.counters)),
        )

    @_does(WaitForRoot)
    async def _wait(self, request: WaitForRoot) -> NodeRoot:
        if request.timeout_ms > _WAIT_MS_MAX:
            raise UsageError(f"timeout_ms: 0 to {_WAIT_MS_MAX}, got {request.timeout_ms}")
        # Without a change the old hash is the answer: the client compares it and asks again.
        with contextlib.suppress(Timeout):
            await self._node.wait_until(
                lambda node: node.root_hash != request.known, request.timeout_ms / 1e3
            )
        return NodeRoot(root_hash=self._node.root_hash)

    @_does(AddPeer)
    async def _add_peer(self, request: AddPeer) -> Empty:
        address, key = _peer(request.address)
        self._node.add_peer(address, public_key=key)
        return Empty()

    @_does(RemovePeer)
    async def _remove_peer(self, request: RemovePeer) -> Empty:
        address, key = _peer(request.address)
        await self._node.remove_peer(address, public_key=key)
        return Empty()

    @_does(PullPeers)
    async def _pull(self, request: PullPeers) -> NodeRoot:
        await self._node.pull(request.address)
        return NodeRoot(root_hash=self._node.root_hash)

    @_does(ForgetRoots)
    async def _forget(self, request: ForgetRoots) -> ForgottenRoots:
        history = self._node.store.history
        return ForgottenRoots(count=await asyncio.to_thread(history.forget, request.before_ms))

    @_does(ReloadSettings)
    async def _reload_node(self, request: ReloadSettings) -> ReloadedSettings:
        waiting = [] if self._reload is None else await self._reload()
        return ReloadedSettings(waiting=tuple(waiting))

    @_does(StopNode)
    async def _stop_node(self, request: StopNode) -> Empty:
        self._stop()
        return Empty()

    @_does(DrainNode)
    async def _drain_node(self, request: DrainNode) -> Empty:
        self._drain()
        return Empty()

    # --- tasks ----------------------------------------------------------------------------------

    @_does(StartTask, _FOR_CALLERS)
    async def _start_task(self, request: StartTask, caller: str) -> TaskInfo:
        return self._maintenance.start(request, caller).info()

    @_does(ListTasks, _FOR_CALLERS)
    async def _list_tasks(self, request: ListTasks, caller: str) -> TaskList:
        tasks = self._maintenance.tasks.list(caller)
        return TaskList(tasks=tuple([task.info() for task in tasks]))

    @_does(GetTask, _FOR_CALLERS)
    async def _get_task(self, request: GetTask, caller: str) -> TaskInfo:
        return self._maintenance.tasks.get(request.id, caller).info()

    @_does(CancelTask, _FOR_CALLERS)
    async def _cancel_task(self, request: CancelTask, caller: str) -> Empty:
        self._maintenance.tasks.get(request.id, caller).cancel()
        return Empty()

    # --- decisions of the operator --------------------------------------------------------------

    @_does(GetHosting)
    async def _show_hosting(self, request: GetHosting) -> HostingInfo:
        return await self._node.housekeeper.ask(hosting_info)

    @_does(DecideHosting)
    async def _decide_hosting(self, request: DecideHosting) -> HostingInfo:
        made = await self._node.housekeeper.ask(lambda replica: decide_hosting(replica, request))
        if request.rule in ("allow", "host"):
            self._node.look_for_more()  # peers may have what was refused until now
        return made

    @_does(ForgetOwner)
    async def _forget_owner(self, request: ForgetOwner) -> ForgottenOwner:
        gone = await self._node.housekeeper.ask(lambda replica: refuse_for_good(replica, request))
        await self._node.housekeeper.forget()
        return gone

    @_does(ResolveFork)
    async def _resolve_fork(self, request: ResolveFork) -> ResolvedFork:
        clock = self._node.clock
        if request.how == "append":
            # Not in the lane: the answers of peers that open the fence come through the lane.
            await self._node.fenced()
        return await self._node.housekeeper.ask(
            lambda replica: resolve_fork(replica, request, clock)
        )

    # --- Weaver stores --------------------------------------------------------------------------

    @_does(JoinStore)
    async def _join(self, request: JoinStore) -> JoinedStore:
        store = await self._stores().join(InviteToken.from_text(request.token))
        return JoinedStore(store_id=store.id)

    @_does(GetPresence)
    async def _presence(self, request: GetPresence) -> PresentPeers:
        known = await self._stores().presence(request.id)
        return PresentPeers(
            peers=tuple(
                PresentPeer(
                    key=one.public_key,
                    equal=one.is_equal,
                    dirty=one.is_dirty,
                    lag=one.lag,
                    compared_s=one.compared_s,
                    agreed_s=one.agreed_s,
                )
                for one in known
            )
        )

    @_does(SyncStore)
    async def _sync_store(self, request: SyncStore) -> Synced:
        most = round(SYNC_TIMEOUT_S_MAX * 1_000)
        if not 1 <= request.timeout_ms <= most:
            raise UsageError(f"a comparison may take 1 to {most} ms, got {request.timeout_ms!r}")
        synced = await self._stores().sync(request.id, request.timeout_ms / 1e3)
        return Synced(
            peers=tuple(
                PeerSync(public_key=one.public_key, error=one.error or "") for one in synced
            )
        )

    def _stores(self) -> WeaverHosts:
        if self._weaver is None:
            raise NoSigningKey("a node without a key has no Weaver stores")
        return self._weaver


def _sections(root: Value) -> dict[str, str]:
    """Return the hash of what is below each top key of the announced value."""
    if not isinstance(root, (Index, Map)):
        return {}
    try:
        return {to_text(key): value_hash(value).hex() for key, value in root.entries()}
    except (Corruption, MissingData):
        return {}  # the store is damaged, which its health reports


def _key_of(key_pair: KeyPair | None) -> bytes | None:
    return None if key_pair is None else key_pair.public_key


def _peer(text: str) -> tuple[str | None, bytes | None]:
    """Return (address, key): one of the two names a peer."""
    if _KEY.fullmatch(text):
        return None, parse_key(text)
    if ":" not in text:
        raise UsageError(
            f"a peer is an address (host:port) or a key of 64 hex digits, got {text!r}"
        )
    return text, None


def _vector(value: Value, name: str) -> Vector:
    if not isinstance(value, Vector):
        raise UsageError(f"{name} is a vector, got {value!r:.80}")
    return value


def _records(value: Value, name: str) -> Vector:
    column = _vector(value, name)
    if not 0 < len(column) <= OFFER_RECORDS_MAX:
        raise UsageError(f"{name} are 1 to {OFFER_RECORDS_MAX} in one offer, got {len(column)}")
    return column
