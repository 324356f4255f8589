"""Handlers of the actions on Weaver stores.

Length: one function for each action.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Final

from datalattice import actions
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
    LOG_START,
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
        raise NoSuchPath(f"this node has no store {store_id_text(id)}")
    return found


@contextmanager
def _view(call: ServiceCall, id: bytes) -> Iterator[StoreView]:
    """Give a view of a store without its machine, so stores of unknown kinds can be read, too."""
    _info(call, id)
    with call.node.weaver.view(id) as view:
        yield view


def _machine(call: ServiceCall, id: bytes) -> Machine | None:
    """Return the machine of a store; None: this program has no machine of its kind."""
    kind, stores = _info(call, id).kind, call.node.weaver
    return stores.machine(kind)() if kind in stores.kinds() else None


def _ref(info: StoreInfo) -> actions.StoreRef:
    return actions.StoreRef(
        id=info.id, store_type=info.kind, name=info.name or "", archived=info.is_archived
    )


@handles(actions.CreateStore)
def create_store(call: ServiceCall, request: actions.CreateStore) -> actions.StoreRef:
    """Create a store."""
    stores = call.node.weaver
    # Before anything is made: an unknown kind is refused.
    kind = stores.machine(request.store_type).kind
    name = request.name or None
    path = call.node.path
    peer_name = None if path is None else read_node_name(Folder(path)) or None

    def answer(made: WeaverStore) -> actions.StoreRef:
        return actions.StoreRef(id=made.id, store_type=kind, name=name or "")

    made = stores.create(kind, name, request.parent_id, peer_name=peer_name, once=call.once(answer))
    return answer(made)


@handles(actions.ListStores)
def list_stores(call: ServiceCall, request: actions.ListStores) -> actions.StoreList:
    """List stores."""
    # Listing must not make the engine of a folder without stores.
    if not call.node.stores() and request.parent_id is None:
        return actions.StoreList()
    if request.parent_id is not None:
        _info(call, request.parent_id)
    found = call.node.weaver.list(request.parent_id)
    return actions.StoreList(
        items=tuple(_ref(info) for info in sorted(found, key=lambda one: one.name or ""))
    )


@handles(actions.GetStore)
def get_store(call: ServiceCall, request: actions.GetStore) -> actions.StoreMeta:
    """Return the kind of a store."""
    info, machine = _info(call, request.id), _machine(call, request.id)
    return actions.StoreMeta(
        id=info.id, store_type=info.kind, schema_version=0 if machine is None else machine.schema
    )


@handles(actions.GetStoreDetails)
def get_details(call: ServiceCall, request: actions.GetStoreDetails) -> actions.StoreDetails:
    """Return the counts of a store and the last record that its state has."""
    with _view(call, request.id) as view:
        # One view, so the counts and both positions are of one moment.
        status, applied, head = view.progress(), view.applied(), view.position(view.last_seq())
    return actions.StoreDetails(
        author_count=status.authors,
        intention_count=status.intentions,
        witness_count=status.intentions,
        last_applied_seq=applied.seq,
        last_applied_hash=applied.content_hash,
        witness_head_seq=status.intentions,
        witness_head_hash=b"" if head is None else head.content_hash,
    )


@handles(actions.ArchiveStore)
def archive_store(call: ServiceCall, request: actions.ArchiveStore) -> actions.Empty:
    """Archive a child."""
    _info(call, request.store_id)
    call.node.weaver.archive(request.store_id, request.child_id)
    return actions.Empty()


@handles(actions.RebuildStore)
def rebuild_store(call: ServiceCall, request: actions.RebuildStore) -> actions.Empty:
    """Rebuild the state from the log."""
    _handle(call, request.id).store.rebuild()
    return actions.Empty()


@handles(actions.GetStoreName)
def get_name(call: ServiceCall, request: actions.GetStoreName) -> actions.StoreName:
    """Return the name of a store."""
    return actions.StoreName(name=_info(call, request.id).name)


@handles(actions.NameStore)
def name_store(call: ServiceCall, request: actions.NameStore) -> actions.Empty:
    """Name a store."""
    _handle(call, request.store_id).store.write_system(SystemBatch().set_name(request.name))
    return actions.Empty()


@handles(actions.SyncStore)
def sync_store(call: ServiceCall, request: actions.SyncStore) -> actions.Synced:
    """Compare a store with all connected peers."""
    found = _handle(call, request.id).sync(request.timeout_ms / 1_000)
    return actions.Synced(
        peers=tuple(
            actions.PeerSync(public_key=one.public_key, error=one.error or "") for one in found
        )
    )


@handles(actions.GetAuthorTips)
def get_tips(call: ServiceCall, request: actions.GetAuthorTips) -> actions.AuthorTips:
    """Return the newest intention of each author."""
    with _view(call, request.id) as view:
        peers = view.system.peers()
        tips = []
        for author, hash in sorted(view.tips().items()):
            peer = peers.get(author)
            tips.append(
                actions.AuthorTip(
                    public_key=author,
                    hash=hash,
                    witness_seq=view.seq_of(hash),
                    # A store keeps the operations of authors that are no longer peers.
                    peer_status=None if peer is None else peer.status.name.lower(),
                    peer_name=None if peer is None else peer.name,
                )
            )
    return actions.AuthorTips(items=tuple(tips))


@handles(actions.ReadWitnessLog)
def read_witness_log(call: ServiceCall, request: actions.ReadWitnessLog) -> actions.WitnessPage:
    """Return records of the witness log."""
    limit = page(request.limit, actions.PAGE_MAX)
    with _view(call, request.store_id) as view:
        records = [
            actions.WitnessInfo(
                seq=entry.seq,
                intention_hash=entry.signed.hash,
                signature=entry.record.signature,
                hash=entry.content_hash,
                wall_time=entry.wall_ms,
                prev_hash=entry.prev_hash,
            )
            # 0, the default of the field, is record 1.
            for entry in view.entries(max(1, request.start_seq), limit)
        ]
    return actions.WitnessPage(items=tuple(records))


@handles(actions.GetIntention)
def get_intention(call: ServiceCall, request: actions.GetIntention) -> actions.IntentionAnswer:
    """Return the intention whose hash has a prefix."""
    # An empty prefix would read the whole store.
    if not request.hash_prefix:
        raise UsageError("hash_prefix is empty; it needs one byte or more")
    machine = _machine(call, request.store_id)
    with _view(call, request.store_id) as view:
        found = view.find(request.hash_prefix)
    if not found:
        raise NoSuchPath(f"no intention has a hash that begins with {request.hash_prefix.hex()}")
    # Several: the caller gets the hashes, ten at most, to choose one.
    if len(found) > 1:
        listed = ", ".join(one.hash.hex() for one in islice(found, 10))
        raise Conflict(f"{len(found)} intentions begin with {request.hash_prefix.hex()}: {listed}")
    return actions.IntentionAnswer(intention=_intention(found[0], machine))


@handles(actions.ListFloating)
def list_floating(call: ServiceCall, request: actions.ListFloating) -> actions.FloatingPage:
    """Return the waiting intentions."""
    limit, machine = page(request.limit, actions.PAGE_MAX), _machine(call, request.id)
    with _view(call, request.id) as view:
        found = view.floating()[:limit]
    return actions.FloatingPage(
        items=tuple(
            actions.FloatingIntention(
                intention=_intention(one.signed, machine), received_at=one.received_ms
            )
            for one in found
        )
    )


def _intention(signed: SignedIntention, machine: Machine | None) -> actions.IntentionInfo:
    intention = signed.intention
    summary = summarize(intention.payload, signed.hash, machine)
    return actions.IntentionInfo(
        hash=signed.hash,
        author=intention.author,
        clock=actions.IntentionClock(
            wall_time=intention.stamp.wall, counter=intention.stamp.counter
        ),
        store_prev=intention.store_prev,
        condition=actions.Condition(v1=actions.CausalDeps(hashes=tuple(intention.deps))),
        operations=(_expression(summary.expression),),
    )


def _expression(expr: SExpr) -> actions.SExprMessage:
    if isinstance(expr, SymbolWord):
        return actions.SExprMessage(symbol=expr.name)
    if isinstance(expr, str):
        return actions.SExprMessage(str=expr)
    if isinstance(expr, bytes):
        return actions.SExprMessage(raw=expr)
    if isinstance(expr, int):
        # The message has only unsigned numbers: negative ones are symbols of their digits.
        return (
            actions.SExprMessage(num=expr)
            if expr >= 0
            else actions.SExprMessage(symbol=str(int(expr)))
        )
    return actions.SExprMessage(
        list=actions.SExprList(items=tuple(_expression(one) for one in expr))
    )


@handles(actions.ReadHistory)
def read_history(call: ServiceCall, request: actions.ReadHistory) -> actions.IntentionPage:
    """Return the intentions of a store in log order."""
    limit = page(request.limit, actions.PAGE_MAX)
    machine = _machine(call, request.id)
    with _view(call, request.id) as view:
        entries = list(view.entries(max(1, request.start_seq), limit))
        last = view.last_seq()
    # Without entries the start was behind the log: there is no next page.
    end = entries[-1].seq if entries else last
    return actions.IntentionPage(
        items=tuple(_intention(entry.signed, machine) for entry in entries),
        next_seq=end + 1 if end < last else 0,
    )


@handles(actions.ListSystem)
def list_system(call: ServiceCall, request: actions.ListSystem) -> actions.SystemEntries:
    """Return the system table of a store."""
    with _view(call, request.id) as view:
        rows = [
            actions.SystemEntry(key=key, value=value)
            for key, value, _ in view.system.table.scan()
            if value is not None  # a deleted key
        ]
    return actions.SystemEntries(items=tuple(rows))


@handles(actions.ListStorePeers)
def list_store_peers(call: ServiceCall, request: actions.ListStorePeers) -> actions.StorePeers:
    """Return the peers of a store."""
    handle = _handle(call, request.id)
    try:
        online = {one.public_key: one for one in handle.presence()}
    except PeerUnavailable:
        online = {}  # no node runs, so no peer is connected
    own = handle.store.author
    found = []
    for peer in handle.peers():
        seen = online.get(peer.public_key)
        found.append(
            actions.StorePeerInfo(
                public_key=peer.public_key,
                status=peer.status.name.lower(),
                # "This node among them": it is online to itself.
                online=seen is not None or peer.public_key == own,
                name=peer.name or "",
                last_seen_ms=round((seen.compared_s or 0.0) * 1_000) if seen else 0,
                added_at=peer.added_at_ms or 0,
            )
        )
    return actions.StorePeers(items=tuple(found))


@handles(actions.RevokePeer)
def revoke_peer(call: ServiceCall, request: actions.RevokePeer) -> actions.Empty:
    """Exclude a peer."""
    _handle(call, request.store_id).revoke(request.peer_key)
    return actions.Empty()


@handles(actions.GetStrategy)
def get_strategy(call: ServiceCall, request: actions.GetStrategy) -> actions.StrategyInfo:
    """Return how a store gets its peers."""
    with _view(call, request.id) as view:
        found = view.system.strategy()
    if found.inherited:
        return actions.StrategyInfo(strategy="inherited")
    return actions.StrategyInfo(strategy="independent" if found.snapshot is None else "snapshot")


@handles(actions.InspectBranch)
def inspect_branch(call: ServiceCall, request: actions.InspectBranch) -> actions.BranchInspection:
    """Return the common ancestor of heads."""
    if len(request.heads) < 2:
        raise UsageError(f"heads: two or more, got {len(request.heads)}")
    with _view(call, request.store_id) as view:
        found = view.branches(request.heads)
    return actions.BranchInspection(
        lca=found[0].path[0],
        branches=tuple(
            actions.BranchPath(head=one.head, hashes=tuple(one.path[1:])) for one in found
        ),
    )


@handles(actions.JoinStore)
def join_store(call: ServiceCall, request: actions.JoinStore) -> actions.JoinedStore:
    """Join the store of an invite."""
    return actions.JoinedStore(store_id=call.node.join(request.token).store.id)


@handles(actions.InvitePeer)
def invite_peer(call: ServiceCall, request: actions.InvitePeer) -> actions.StoreInvite:
    """Create an invite."""
    once = call.once(lambda made: actions.StoreInvite(token=made.to_text()))
    return actions.StoreInvite(token=_handle(call, request.id).invite(once=once))


# --- methods of the machine -----------------------------------------------------------------------


@handles(actions.ExecMethod)
def exec_method(call: ServiceCall, request: actions.ExecMethod) -> actions.ExecResult:
    """Call a method of a store."""
    try:
        handle = _handle(call, request.store_id)
    except NoSuchPath as error:
        return actions.ExecResult(error=str(error), error_code=NO_STORE)
    # "An error of a method is in the answer of `Exec`" (docs/grpc.md "Weaver stores").
    try:
        method = handle.machine.find_method(request.method)
        once = call.once(lambda answer: actions.ExecResult(result=answer.encode()))
        answer = handle.call(method.name, method.request.decode(request.payload), once)
    except RequestReused:
        raise  # an error of the call; those of the method are in the answer
    # Before UsageError, which it is, too.
    except UnknownMethod as error:
        return actions.ExecResult(error=str(error), error_code=NO_METHOD)
    except (UsageError, BadFormat) as error:
        return actions.ExecResult(error=str(error), error_code=BAD_ARGUMENT)
    except DataLatticeError as error:
        return actions.ExecResult(error=str(error), error_code=FAILED)
    return actions.ExecResult(result=answer.encode())


@handles(actions.QueryStore)
def query_store(call: ServiceCall, request: actions.QueryStore) -> actions.QueryAnswer:
    """Call a query of a store."""
    handle = _handle(call, request.store_id)
    method = handle.machine.find_method(request.method)
    # "`stores.query` is for readers: `stores.exec` needs the right to write"
    # (docs/design/service.md).
    if method.kind is not MethodKind.QUERY:
        raise UsageError(f"method: {method.name} is a command; call it with stores.exec")
    answer = handle.call(method.name, message_of(method.request, request.arguments))
    return actions.QueryAnswer(answer=value_of(answer))


def _known_machine(call: ServiceCall, id: bytes) -> Machine:
    machine = _machine(call, id)
    if machine is None:
        raise NoSuchPath(f"this node has no machine for stores of kind {_info(call, id).kind}")
    return machine


@handles(actions.GetDescriptor)
def get_descriptor(call: ServiceCall, request: actions.GetDescriptor) -> actions.MachineDescriptor:
    """Return the messages and methods of a machine."""
    machine = _known_machine(call, request.id)
    return actions.MachineDescriptor(
        file_descriptor_set=machine.descriptor_set(), service_name=machine.service_name()
    )


@handles(actions.ListMethods)
def list_methods(call: ServiceCall, request: actions.ListMethods) -> actions.MethodList:
    """Return the commands and queries of a store."""
    return actions.MethodList(
        items=tuple(
            actions.MethodInfo(name=one.name, description=one.description, kind=int(one.kind))
            for one in _known_machine(call, request.id).methods()
        )
    )


@handles(actions.ListStreams)
def list_streams(call: ServiceCall, request: actions.ListStreams) -> actions.StreamList:
    """Return the streams of a store."""
    return actions.StreamList(
        items=tuple(
            actions.StreamInfo(
                name=one.name,
                description=one.description,
                param_schema=one.params.full_name,
                event_schema=one.event.full_name,
            )
            for one in _known_machine(call, request.id).streams()
        )
    )


@handles(actions.SubscribeStream)
def subscribe_stream(
    call: ServiceCall, request: actions.SubscribeStream
) -> Streamed[actions.StreamEvent]:
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
        lambda event: actions.StreamEvent(payload=event.encode()),
        name=name,
        positions=_EventPositions(handle, stream),
        is_resumed=bool(request.resume),
    )


def _event_number(handle: StoreHandle, position: Value) -> int:
    """Return the event of a position. Raises: StaleToken: it is no longer kept. UsageError."""
    number, mark = list(position) if isinstance(position, Vector) and len(position) == 2 else (0, 0)
    if type(number) is not int or number < 0 or type(mark) is not bytes:
        raise not_a_position(position)
    with handle.store.read() as view:
        # The mark must be equal: another copy of the store may have other events by this number.
        # Number 0, the beginning, has a mark for ever, and event 1 is dropped with event 1,025.
        if view.event_mark(number) != mark or (not number and view.last_event > EVENTS_MAX):
            raise StaleToken(f"the store no longer keeps event {number}; begin without a token")
    return number


class _EventPositions:
    """Positions: the number of an event, and its mark, which differs in other copies of a store."""

    def __init__(self, handle: StoreHandle, stream: Subscription) -> None:
        self._handle, self._stream = handle, stream

    def now(self) -> Value:
        return next(self._positions([self._stream.seen]))

    def after(self, items: Sequence[Message]) -> Iterator[Value]:
        if self._stream.skipped:
            # `Streamed` turns it into a StaleToken that says where to begin again.
            raise DataLoss(f"the store no longer keeps {self._stream.skipped} of the next events")
        return self._positions(self._stream.numbers)

    def _positions(self, numbers: Sequence[int]) -> Iterator[Value]:
        with self._handle.store.read() as view:
            marks = [view.event_mark(number) or b"" for number in numbers]
        return (Vector.of(pair) for pair in zip(numbers, marks, strict=True))

    def fresh_start(self) -> str:
        return "with the state of the store, and a stream without a token"


@handles(actions.FollowStore)
def follow_store(
    call: ServiceCall, request: actions.FollowStore
) -> Streamed[actions.WitnessedIntention]:
    """Return the intentions of a store, then new ones."""
    if request.start not in ("start", "end"):
        raise UsageError(f'start: "start" or "end", got {request.start!r:.80}')
    handle = _handle(call, request.id)
    name = stream_name(request.action.name, request.id)
    # "resume: ... replaces `start`" (`FollowStore`).
    if request.resume:
        start = _log_position(read_token(request.resume, name))
    elif request.start == "start":
        start = LOG_START
    else:
        with handle.store.read() as view:
            start = view.position(view.last_seq()) or LOG_START
    try:
        stream = handle.witnessed(start)
    except NoSuchPath as error:
        raise StaleToken(f"{error}; a fresh start begins at record 1") from error
    machine = handle.machine
    return Streamed(
        stream,
        lambda entry: actions.WitnessedIntention(
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
    """Positions: the number of a record, and the hash of its content."""

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
