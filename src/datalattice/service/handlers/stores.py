"""Handlers of the actions on Weaver stores.

Length: a function for each of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Final

from datalattice.actions import (
    PAGE_MAX,
    ArchiveStore,
    AuthorTip,
    AuthorTips,
    BranchInspection,
    BranchPath,
    CausalDeps,
    Condition,
    CreateStore,
    Empty,
    ExecMethod,
    ExecResult,
    FloatingIntention,
    FloatingPage,
    FollowStore,
    GetAuthorTips,
    GetDescriptor,
    GetIntention,
    GetStore,
    GetStoreDetails,
    GetStoreName,
    GetStrategy,
    InspectBranch,
    IntentionAnswer,
    IntentionClock,
    IntentionInfo,
    IntentionPage,
    InvitePeer,
    JoinedStore,
    JoinStore,
    ListFloating,
    ListMethods,
    ListStorePeers,
    ListStores,
    ListStreams,
    ListSystem,
    MachineDescriptor,
    MethodInfo,
    MethodList,
    NameStore,
    PeerSync,
    QueryAnswer,
    QueryStore,
    ReadHistory,
    ReadWitnessLog,
    RebuildStore,
    RevokePeer,
    SExprList,
    SExprMessage,
    StoreDetails,
    StoreInvite,
    StoreList,
    StoreMeta,
    StoreName,
    StorePeerInfo,
    StorePeers,
    StoreRef,
    StrategyInfo,
    StreamEvent,
    StreamInfo,
    StreamList,
    SubscribeStream,
    Synced,
    SyncStore,
    SystemEntries,
    SystemEntry,
    WitnessedIntention,
    WitnessInfo,
    WitnessPage,
)
from datalattice.cells import Value, Vector
from datalattice.client import Folder, read_node_name
from datalattice.errors import (
    BadFormat,
    Conflict,
    DataLatticeError,
    DataLoss,
    NoSuchPath,
    PeerUnavailable,
    RequestReused,
    StaleToken,
    UsageError,
)
from datalattice.protobuf import Message
from datalattice.service.handlers.plain import message_of, value_of
from datalattice.service.registry import ServiceCall, Streamed, handles, page
from datalattice.service.resuming import not_a_position, read_token, stream_name
from datalattice.weaver import (
    EVENTS_MAX,
    START,
    Machine,
    MethodKind,
    Position,
    SExpr,
    SignedIntention,
    StoreHandle,
    StoreInfo,
    StoreView,
    Subscription,
    SymbolWord,
    SystemBatch,
    UnknownMethod,
    WeaverStore,
    WitnessEntry,
    store_id_text,
    summarize,
)

# Codes of `ExecResponse`, as in the reference.
UNKNOWN: Final = 0
NO_STORE: Final = 1
NO_METHOD: Final = 2
BAD_ARGUMENT: Final = 3
FAILED: Final = 4


def _handle(call: ServiceCall, id: bytes) -> StoreHandle:
    """Return a store. Raises: NoSuchPath."""
    found: StoreHandle = call.node.store(store_id_text(id))
    return found


def _info(call: ServiceCall, id: bytes) -> StoreInfo:
    found = call.node.weaver.find(store_id_text(id))
    if found is None:
        raise NoSuchPath(f"there is no store {store_id_text(id)} here")
    return found


@contextmanager
def _view(call: ServiceCall, id: bytes) -> Iterator[StoreView]:
    """Give what is in a store; nothing is opened, so a foreign kind can be read, too."""
    _info(call, id)
    with call.node.weaver.view(id) as view:
        yield view


def _machine(call: ServiceCall, id: bytes) -> Machine | None:
    """Return the machine of a store, None of a kind that this program does not have."""
    kind, stores = _info(call, id).kind, call.node.weaver
    return stores.machine(kind)() if kind in stores.kinds() else None


def _ref(info: StoreInfo) -> StoreRef:
    return StoreRef(
        id=info.id, store_type=info.kind, name=info.name or "", archived=info.is_archived
    )


@handles(CreateStore)
def create_store(call: ServiceCall, request: CreateStore) -> StoreRef:
    """Make a store."""
    stores = call.node.weaver
    kind = stores.machine(request.store_type).kind
    name = request.name or None
    path = call.node.path
    peer_name = None if path is None else read_node_name(Folder(path)) or None

    def answer(made: WeaverStore) -> StoreRef:
        return StoreRef(id=made.id, store_type=kind, name=name or "")

    made = stores.create(kind, name, request.parent_id, peer_name=peer_name, once=call.once(answer))
    return answer(made)


@handles(ListStores)
def list_stores(call: ServiceCall, request: ListStores) -> StoreList:
    """List stores."""
    if not call.node.stores() and request.parent_id is None:
        return StoreList()
    if request.parent_id is not None:
        _info(call, request.parent_id)
    found = call.node.weaver.list(request.parent_id)
    return StoreList(
        items=tuple(_ref(info) for info in sorted(found, key=lambda one: one.name or ""))
    )


@handles(GetStore)
def get_store(call: ServiceCall, request: GetStore) -> StoreMeta:
    """Return the kind of a store."""
    info, machine = _info(call, request.id), _machine(call, request.id)
    return StoreMeta(
        id=info.id, store_type=info.kind, schema_version=0 if machine is None else machine.schema
    )


@handles(GetStoreDetails)
def get_details(call: ServiceCall, request: GetStoreDetails) -> StoreDetails:
    """Return how far a store is."""
    with _view(call, request.id) as view:
        status, applied, head = view.progress(), view.applied(), view.position(view.last_seq())
    return StoreDetails(
        author_count=status.authors,
        intention_count=status.intentions,
        witness_count=status.intentions,
        last_applied_seq=applied.seq,
        last_applied_hash=applied.content_hash,
        witness_head_seq=status.intentions,
        witness_head_hash=b"" if head is None else head.content_hash,
    )


@handles(ArchiveStore)
def archive_store(call: ServiceCall, request: ArchiveStore) -> Empty:
    """Take a child out of use."""
    _info(call, request.store_id)
    call.node.weaver.archive(request.store_id, request.child_id)
    return Empty()


@handles(RebuildStore)
def rebuild_store(call: ServiceCall, request: RebuildStore) -> Empty:
    """Make the state again from the log."""
    _handle(call, request.id).store.rebuild()
    return Empty()


@handles(GetStoreName)
def get_name(call: ServiceCall, request: GetStoreName) -> StoreName:
    """Return the name of a store."""
    return StoreName(name=_info(call, request.id).name)


@handles(NameStore)
def name_store(call: ServiceCall, request: NameStore) -> Empty:
    """Name a store."""
    _handle(call, request.store_id).store.write_system(SystemBatch().set_name(request.name))
    return Empty()


@handles(SyncStore)
def sync_store(call: ServiceCall, request: SyncStore) -> Synced:
    """Compare a store with all connected peers."""
    found = _handle(call, request.id).sync(request.timeout_ms / 1_000)
    return Synced(
        peers=tuple(PeerSync(public_key=one.public_key, error=one.error or "") for one in found)
    )


@handles(GetAuthorTips)
def get_tips(call: ServiceCall, request: GetAuthorTips) -> AuthorTips:
    """Return the newest intention of each author."""
    with _view(call, request.id) as view:
        peers = view.system.peers()
        tips = []
        for author, hash in sorted(view.tips().items()):
            peer = peers.get(author)
            tips.append(
                AuthorTip(
                    public_key=author,
                    hash=hash,
                    witness_seq=view.seq_of(hash),
                    peer_status=None if peer is None else peer.status.name.lower(),
                    peer_name=None if peer is None else peer.name,
                )
            )
    return AuthorTips(items=tuple(tips))


@handles(ReadWitnessLog)
def read_witness_log(call: ServiceCall, request: ReadWitnessLog) -> WitnessPage:
    """Return records of the witness log."""
    limit = page(request.limit, PAGE_MAX)
    with _view(call, request.store_id) as view:
        records = [
            WitnessInfo(
                seq=entry.seq,
                intention_hash=entry.signed.hash,
                signature=entry.record.signature,
                hash=entry.content_hash,
                wall_time=entry.wall_ms,
                prev_hash=entry.prev_hash,
            )
            for entry in view.entries(max(1, request.start_seq), limit)
        ]
    return WitnessPage(items=tuple(records))


@handles(GetIntention)
def get_intention(call: ServiceCall, request: GetIntention) -> IntentionAnswer:
    """Return the intention whose hash begins so."""
    if not request.hash_prefix:
        raise UsageError("hash_prefix: one byte or more")
    machine = _machine(call, request.store_id)
    with _view(call, request.store_id) as view:
        found = view.find(request.hash_prefix)
    if not found:
        raise NoSuchPath(f"no intention has a hash that begins with {request.hash_prefix.hex()}")
    if len(found) > 1:
        listed = ", ".join(one.hash.hex() for one in islice(found, 10))
        raise Conflict(f"{len(found)} intentions begin so: {listed}")
    return IntentionAnswer(intention=_intention(found[0], machine))


@handles(ListFloating)
def list_floating(call: ServiceCall, request: ListFloating) -> FloatingPage:
    """Return what waits."""
    limit, machine = page(request.limit, PAGE_MAX), _machine(call, request.id)
    with _view(call, request.id) as view:
        found = view.floating()[:limit]
    return FloatingPage(
        items=tuple(
            FloatingIntention(
                intention=_intention(one.signed, machine), received_at=one.received_ms
            )
            for one in found
        )
    )


def _intention(signed: SignedIntention, machine: Machine | None) -> IntentionInfo:
    intention = signed.intention
    summary = summarize(intention.payload, signed.hash, machine)
    return IntentionInfo(
        hash=signed.hash,
        author=intention.author,
        clock=IntentionClock(wall_time=intention.stamp.wall, counter=intention.stamp.counter),
        store_prev=intention.store_prev,
        condition=Condition(v1=CausalDeps(hashes=tuple(intention.deps))),
        operations=(_expression(summary.expression),),
    )


def _expression(expr: SExpr) -> SExprMessage:
    if isinstance(expr, SymbolWord):
        return SExprMessage(symbol=expr.name)
    if isinstance(expr, str):
        return SExprMessage(str=expr)
    if isinstance(expr, bytes):
        return SExprMessage(raw=expr)
    if isinstance(expr, int):
        # The message has no negative numbers: they are shown as they are written.
        return SExprMessage(num=expr) if expr >= 0 else SExprMessage(symbol=str(int(expr)))
    return SExprMessage(list=SExprList(items=tuple(_expression(one) for one in expr)))


@handles(ReadHistory)
def read_history(call: ServiceCall, request: ReadHistory) -> IntentionPage:
    """Return the intentions of a store in log order."""
    limit = page(request.limit, PAGE_MAX)
    machine = _machine(call, request.id)
    with _view(call, request.id) as view:
        entries = list(view.entries(max(1, request.start_seq), limit))
        last = view.last_seq()
    end = entries[-1].seq if entries else last
    return IntentionPage(
        items=tuple(_intention(entry.signed, machine) for entry in entries),
        next_seq=end + 1 if end < last else 0,
    )


@handles(ListSystem)
def list_system(call: ServiceCall, request: ListSystem) -> SystemEntries:
    """Return the store's own table."""
    with _view(call, request.id) as view:
        rows = [
            SystemEntry(key=key, value=value)
            for key, value, _ in view.system.table.scan()
            if value is not None  # a deleted key
        ]
    return SystemEntries(items=tuple(rows))


@handles(ListStorePeers)
def list_peers(call: ServiceCall, request: ListStorePeers) -> StorePeers:
    """Return the peers of a store."""
    handle = _handle(call, request.id)
    try:
        online = {one.public_key: one for one in handle.presence()}
    except PeerUnavailable:
        online = {}  # no node runs, so nobody is connected
    own = handle.store.author
    found = []
    for peer in handle.peers():
        seen = online.get(peer.public_key)
        found.append(
            StorePeerInfo(
                public_key=peer.public_key,
                status=peer.status.name.lower(),
                online=seen is not None or peer.public_key == own,
                name=peer.name or "",
                last_seen_ms=round((seen.compared_s or 0.0) * 1_000) if seen else 0,
                added_at=peer.added_at_ms or 0,
            )
        )
    return StorePeers(items=tuple(found))


@handles(RevokePeer)
def revoke_peer(call: ServiceCall, request: RevokePeer) -> Empty:
    """Shut a peer out."""
    _handle(call, request.store_id).revoke(request.peer_key)
    return Empty()


@handles(GetStrategy)
def get_strategy(call: ServiceCall, request: GetStrategy) -> StrategyInfo:
    """Return whose peers a store has."""
    with _view(call, request.id) as view:
        found = view.system.strategy()
    if found.inherited:
        return StrategyInfo(strategy="inherited")
    return StrategyInfo(strategy="independent" if found.snapshot is None else "snapshot")


@handles(InspectBranch)
def inspect_branch(call: ServiceCall, request: InspectBranch) -> BranchInspection:
    """Return the common ancestor of heads."""
    if len(request.heads) < 2:
        raise UsageError("heads: two intentions or more")
    with _view(call, request.store_id) as view:
        found = view.branches(request.heads)
    return BranchInspection(
        lca=found[0].path[0],
        branches=tuple(BranchPath(head=one.head, hashes=tuple(one.path[1:])) for one in found),
    )


@handles(JoinStore)
def join_store(call: ServiceCall, request: JoinStore) -> JoinedStore:
    """Join the store of an invite."""
    return JoinedStore(store_id=call.node.join(request.token).store.id)


@handles(InvitePeer)
def invite_peer(call: ServiceCall, request: InvitePeer) -> StoreInvite:
    """Make an invite."""
    once = call.once(lambda made: StoreInvite(token=made.to_text()))
    return StoreInvite(token=_handle(call, request.id).invite(once=once))


# --- methods of the state machine -----------------------------------------------------------------


@handles(ExecMethod)
def exec_method(call: ServiceCall, request: ExecMethod) -> ExecResult:
    """Call a method of a store."""
    try:
        handle = _handle(call, request.store_id)
    except NoSuchPath as error:
        return ExecResult(error=str(error), error_code=NO_STORE)
    try:
        method = handle.machine.find_method(request.method)
        once = call.once(lambda answer: ExecResult(result=answer.encode()))
        answer = handle.call(method.name, method.request.decode(request.payload), once)
    except RequestReused:
        raise  # of the call, not of the method
    except UnknownMethod as error:
        return ExecResult(error=str(error), error_code=NO_METHOD)
    except (UsageError, BadFormat) as error:
        return ExecResult(error=str(error), error_code=BAD_ARGUMENT)
    except DataLatticeError as error:
        return ExecResult(error=str(error), error_code=FAILED)
    return ExecResult(result=answer.encode())


@handles(QueryStore)
def query_store(call: ServiceCall, request: QueryStore) -> QueryAnswer:
    """Call a query of a store."""
    handle = _handle(call, request.store_id)
    method = handle.machine.find_method(request.method)
    if method.kind is not MethodKind.QUERY:
        raise UsageError(f"method: {method.name} is a command, which is called by stores.exec")
    answer = handle.call(method.name, message_of(method.request, request.arguments))
    return QueryAnswer(answer=value_of(answer))


def _known_machine(call: ServiceCall, id: bytes) -> Machine:
    machine = _machine(call, id)
    if machine is None:
        raise NoSuchPath(f"this node has no machine for stores of kind {_info(call, id).kind}")
    return machine


@handles(GetDescriptor)
def get_descriptor(call: ServiceCall, request: GetDescriptor) -> MachineDescriptor:
    """Return the messages and methods of a machine."""
    machine = _known_machine(call, request.id)
    return MachineDescriptor(
        file_descriptor_set=machine.descriptor_set(), service_name=machine.service_name()
    )


@handles(ListMethods)
def list_methods(call: ServiceCall, request: ListMethods) -> MethodList:
    """Return the commands and queries of a store."""
    return MethodList(
        items=tuple(
            MethodInfo(name=one.name, description=one.description, kind=int(one.kind))
            for one in _known_machine(call, request.id).methods()
        )
    )


@handles(ListStreams)
def list_streams(call: ServiceCall, request: ListStreams) -> StreamList:
    """Return the streams of a store."""
    return StreamList(
        items=tuple(
            StreamInfo(
                name=one.name,
                description=one.description,
                param_schema=one.params.full_name,
                event_schema=one.event.full_name,
            )
            for one in _known_machine(call, request.id).streams()
        )
    )


@handles(SubscribeStream)
def subscribe_stream(call: ServiceCall, request: SubscribeStream) -> Streamed[StreamEvent]:
    """Return the events of a stream."""
    handle = _handle(call, request.store_id)
    method = handle.machine.find_stream(request.stream_name)
    params = method.params.decode(request.params)
    name = stream_name(request.action.name, request.store_id, method.name, request.params)
    after = None
    if request.resume:
        after = _event_number(handle, read_token(request.resume, name))
    stream = handle.subscribe(method.name, params, after=after)
    return Streamed(
        stream,
        lambda event: StreamEvent(payload=event.encode()),
        name=name,
        positions=_EventPositions(handle, stream),
        is_resumed=bool(request.resume),
    )


def _event_number(handle: StoreHandle, position: Value) -> int:
    """Return the event of a position. Raises: StaleToken: it is not kept any more. UsageError."""
    number, mark = list(position) if isinstance(position, Vector) and len(position) == 2 else (0, 0)
    if type(number) is not int or number < 0 or type(mark) is not bytes:
        raise not_a_position(position)
    with handle.store.read() as view:
        # What tells it from others is asked for: another copy of the store has the numbers, too.
        if view.event_mark(number) != mark or (not number and view.last_event > EVENTS_MAX):
            raise StaleToken(f"event {number} is not kept any more; begin without a token")
    return number


class _EventPositions:
    """An event's number, and what tells it from others with this number."""

    def __init__(self, handle: StoreHandle, stream: Subscription) -> None:
        self._handle, self._stream = handle, stream

    def now(self) -> Value:
        return next(self._positions([self._stream.seen]))

    def after(self, items: Sequence[Message]) -> Iterator[Value]:
        if self._stream.skipped:
            raise DataLoss(f"{self._stream.skipped} events are not kept any more")
        return self._positions(self._stream.numbers)

    def _positions(self, numbers: Sequence[int]) -> Iterator[Value]:
        with self._handle.store.read() as view:
            marks = [view.event_mark(number) or b"" for number in numbers]
        return (Vector.of(pair) for pair in zip(numbers, marks, strict=True))

    def fresh_start(self) -> str:
        return "with the state of the store, and a stream without a token"


@handles(FollowStore)
def follow_store(call: ServiceCall, request: FollowStore) -> Streamed[WitnessedIntention]:
    """Return the intentions of a store as they come."""
    if request.start not in ("start", "end"):
        raise UsageError(f'start: "start" or "end", got {request.start!r:.80}')
    handle = _handle(call, request.id)
    name = stream_name(request.action.name, request.id)
    if request.resume:
        start = _log_position(read_token(request.resume, name))
    elif request.start == "start":
        start = START
    else:
        with handle.store.read() as view:
            start = view.position(view.last_seq()) or START
    try:
        stream = handle.witnessed(start)
    except NoSuchPath as error:
        raise StaleToken(f"{error}; a fresh start begins at record 1") from error
    machine = handle.machine
    return Streamed(
        stream,
        lambda entry: WitnessedIntention(
            seq=entry.seq, intention=_intention(entry.signed, machine)
        ),
        name=name,
        positions=_LogPositions(start),
        is_resumed=bool(request.resume),
    )


def _log_position(position: Value) -> Position:
    """Return a position of the witness log. Raises: UsageError."""
    seq, hash = list(position) if isinstance(position, Vector) and len(position) == 2 else (0, 0)
    if type(seq) is not int or seq < 0 or type(hash) is not bytes:
        raise not_a_position(position)
    return Position(seq, hash)


class _LogPositions:
    """The number of a record, and the hash of its content."""

    def __init__(self, start: Position) -> None:
        self._last = start

    def now(self) -> Value:
        return Vector.of(self._last)

    def after(self, items: Sequence[WitnessEntry]) -> Iterator[Value]:
        for entry in items:
            self._last = Position(entry.seq, entry.content_hash)
            yield self.now()

    def fresh_start(self) -> str:
        return "at record 1"
