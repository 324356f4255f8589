"""Actions on Weaver stores: signed operations that nodes replicate, and the state made of them.

The messages and methods of package `lattice.daemon.v1` have the names and numbers of the reference,
so that its clients can call them.

Length: one declaration for each method of the reference.

Source: docs/design/service.md "Decisions".
"""

from __future__ import annotations

from typing import Annotated

from datalattice.actions.action import DELETE, GET, POST, PUT, ActionKind, ActionRequest, action
from datalattice.actions.common import PAGE, RESUME_NUMBER, Empty
from datalattice.actions.formats import CELL_FORMAT, HASH_FORMAT, KEY_FORMAT, STORE_ID_FORMAT
from datalattice.cells import Value
from datalattice.protobuf import Field, Message

_STORE = "stores/{id}"
_SERVICE = "lattice.daemon.v1.StoreService"
_DYNAMIC = "lattice.daemon.v1.DynamicStoreService"

_Text = str  # a field of `SExprMessage` is called `str`


class StoreRef(Message, name="lattice.daemon.v1.StoreRef"):
    """A store: its id, kind and name. archived: a child that is out of use."""

    id: Annotated[bytes, Field(1, codec=STORE_ID_FORMAT)] = b""
    store_type: Annotated[str, Field(2)] = ""
    name: Annotated[str, Field(3)] = ""
    archived: Annotated[bool, Field(4)] = False


# ONCE: each call without an id makes a further store.
@action(
    "stores.create",
    ActionKind.ONCE,
    "w",
    "stores",
    POST("/stores", 201),
    method=f"{_SERVICE}/Create",
)
class CreateStore(ActionRequest[StoreRef], name="lattice.daemon.v1.CreateStoreRequest"):
    """Create a store; with a parent, as its child. store_type: such as `core:kvstore`."""

    parent_id: Annotated[bytes | None, Field(1, codec=STORE_ID_FORMAT)] = None
    name: Annotated[str, Field(2)] = ""
    store_type: Annotated[str, Field(3)] = ""


class StoreList(Message, name="lattice.daemon.v1.StoreList"):
    """Stores, in the order of their names."""

    items: Annotated[tuple[StoreRef, ...], Field(1)] = ()


@action(
    "stores.list",
    ActionKind.QUERY,
    "r",
    "stores",
    GET("/stores"),
    method=f"{_SERVICE}/List",
    is_tool=True,
)
class ListStores(ActionRequest[StoreList], name="lattice.daemon.v1.ListStoresRequest"):
    """List the Weaver stores without a parent, or the children of one, archived ones too.

    A Weaver store is a database or log that several nodes write by signed operations.
    """

    parent_id: Annotated[bytes | None, Field(1, codec=STORE_ID_FORMAT)] = None


class StoreMeta(Message, name="lattice.daemon.v1.StoreMeta"):
    """The kind of a store, and the version of its schema."""

    id: Annotated[bytes, Field(1, codec=STORE_ID_FORMAT)] = b""
    store_type: Annotated[str, Field(2)] = ""
    schema_version: Annotated[int, Field(4, "uint64")] = 0


@action(
    "stores.get", ActionKind.QUERY, "r", _STORE, GET("/stores/{id}"), method=f"{_SERVICE}/GetStatus"
)
class GetStore(ActionRequest[StoreMeta], name="lattice.daemon.v1.GetStoreRequest"):
    """Return the kind of a store. Raises: NoSuchPath."""

    id: Annotated[bytes, Field(1, codec=STORE_ID_FORMAT)] = b""


class StoreDetails(Message, name="lattice.daemon.v1.StoreDetails"):
    """Counts of a store: what its witness log holds, and the last record that its state has."""

    author_count: Annotated[int, Field(1, "uint64")] = 0
    intention_count: Annotated[int, Field(2, "uint64")] = 0
    witness_count: Annotated[int, Field(3, "uint64")] = 0
    last_applied_seq: Annotated[int, Field(4, "uint64")] = 0
    last_applied_hash: Annotated[bytes, Field(5)] = b""
    witness_head_seq: Annotated[int, Field(6, "uint64")] = 0
    witness_head_hash: Annotated[bytes, Field(7)] = b""


@action(
    "stores.details",
    ActionKind.QUERY,
    "r",
    _STORE,
    GET("/stores/{id}/details"),
    method=f"{_SERVICE}/GetDetails",
    is_tool=True,
)
class GetStoreDetails(ActionRequest[StoreDetails], name="lattice.daemon.v1.GetStoreDetailsRequest"):
    """Return the numbers of intentions and authors of a store, and how far its state is."""

    id: Annotated[bytes, Field(1, codec=STORE_ID_FORMAT)] = b""


# EFFECT: to archive a child again changes nothing. `a`: it holds on all nodes of the store.
@action(
    "stores.archive",
    ActionKind.EFFECT,
    "a",
    "stores/{store_id}",
    DELETE("/stores/{store_id}/children/{child_id}"),
    method=f"{_SERVICE}/Delete",
)
class ArchiveStore(ActionRequest[Empty], name="lattice.daemon.v1.DeleteStoreRequest"):
    """Archive a child with all below it, on all nodes. Its data stays."""

    store_id: Annotated[bytes, Field(1, codec=STORE_ID_FORMAT)] = b""
    child_id: Annotated[bytes, Field(2, codec=STORE_ID_FORMAT)] = b""


# EFFECT: the same log gives the same state.
@action(
    "stores.rebuild",
    ActionKind.EFFECT,
    "a",
    _STORE,
    POST("/stores/{id}/rebuild"),
    method=f"{_SERVICE}/Rebuild",
)
class RebuildStore(ActionRequest[Empty], name="lattice.daemon.v1.RebuildStoreRequest"):
    """Rebuild the state of a store from its log."""

    id: Annotated[bytes, Field(1, codec=STORE_ID_FORMAT)] = b""


class StoreName(Message, name="lattice.daemon.v1.StoreName"):
    """The name of a store, if it has one."""

    name: Annotated[str | None, Field(1)] = None


@action(
    "stores.get_name",
    ActionKind.QUERY,
    "r",
    _STORE,
    GET("/stores/{id}/name"),
    method=f"{_SERVICE}/GetName",
)
class GetStoreName(ActionRequest[StoreName], name="lattice.daemon.v1.GetStoreNameRequest"):
    """Return the name of a store."""

    id: Annotated[bytes, Field(1, codec=STORE_ID_FORMAT)] = b""


@action(
    "stores.set_name",
    ActionKind.EFFECT,
    "w",
    "stores/{store_id}",
    PUT("/stores/{store_id}/name"),
    method=f"{_SERVICE}/SetName",
)
class NameStore(ActionRequest[Empty], name="lattice.daemon.v1.SetStoreNameRequest"):
    """Name a store on all nodes that have it."""

    store_id: Annotated[bytes, Field(1, codec=STORE_ID_FORMAT)] = b""
    name: Annotated[str, Field(2)] = ""


class PeerSync(Message, name="datalattice.v1.SyncedPeer"):
    """A peer, and why the comparison with it is incomplete; "" if it is complete."""

    public_key: Annotated[bytes, Field(1, codec=KEY_FORMAT)] = b""
    error: Annotated[str, Field(2)] = ""


class Synced(Message, name="datalattice.v1.Synced"):
    """The result of the comparison with each connected peer."""

    peers: Annotated[tuple[PeerSync, ...], Field(1)] = ()


@action(
    "stores.sync",
    ActionKind.EFFECT,
    "w",
    _STORE,
    POST("/stores/{id}/sync"),
    method=f"{_SERVICE}/Sync",
)
class SyncStore(ActionRequest[Synced], name="lattice.daemon.v1.SyncStoreRequest"):
    """Compare a store with all connected peers and exchange what is missing; return at the end."""

    id: Annotated[bytes, Field(1, codec=STORE_ID_FORMAT)] = b""
    timeout_ms: Annotated[int, Field(2, "uint32")] = 30_000


class AuthorTip(Message, name="lattice.daemon.v1.AuthorTip"):
    """The newest intention of an author on this node."""

    public_key: Annotated[bytes, Field(1, codec=KEY_FORMAT)] = b""
    hash: Annotated[bytes, Field(2, codec=HASH_FORMAT)] = b""
    witness_seq: Annotated[int | None, Field(3, "uint64")] = None
    peer_status: Annotated[str | None, Field(4)] = None
    peer_name: Annotated[str | None, Field(5)] = None


class AuthorTips(Message, name="lattice.daemon.v1.AuthorTips"):
    """The tips of all authors, in the order of their keys."""

    items: Annotated[tuple[AuthorTip, ...], Field(1)] = ()


@action(
    "stores.tips",
    ActionKind.QUERY,
    "r",
    _STORE,
    GET("/stores/{id}/tips"),
    method=f"{_SERVICE}/GetAuthorTips",
)
class GetAuthorTips(ActionRequest[AuthorTips], name="lattice.daemon.v1.GetAuthorTipsRequest"):
    """Return the newest intention of each author."""

    id: Annotated[bytes, Field(1, codec=STORE_ID_FORMAT)] = b""


class WitnessInfo(Message, name="lattice.daemon.v1.WitnessInfo"):
    """A record of the witness log: an intention, and its position `seq` in the log of this node."""

    seq: Annotated[int, Field(1, "uint64")] = 0
    intention_hash: Annotated[bytes, Field(2, codec=HASH_FORMAT)] = b""
    signature: Annotated[bytes, Field(3)] = b""
    hash: Annotated[bytes, Field(4, codec=HASH_FORMAT)] = b""
    wall_time: Annotated[int, Field(5, "uint64")] = 0
    prev_hash: Annotated[bytes, Field(6, codec=HASH_FORMAT)] = b""


class WitnessPage(Message, name="lattice.daemon.v1.WitnessPage"):
    """Records of the witness log, in order."""

    items: Annotated[tuple[WitnessInfo, ...], Field(1)] = ()


@action(
    "stores.witness_log",
    ActionKind.QUERY,
    "r",
    "stores/{store_id}",
    GET("/stores/{store_id}/log"),
    method=f"{_SERVICE}/WitnessLog",
)
class ReadWitnessLog(ActionRequest[WitnessPage], name="lattice.daemon.v1.WitnessLogRequest"):
    """Return records of the witness log from a sequence number on; the first record is 1."""

    store_id: Annotated[bytes, Field(1, codec=STORE_ID_FORMAT)] = b""
    start_seq: Annotated[int, Field(2, "uint64")] = 1
    limit: Annotated[int, Field(3, "uint32")] = PAGE


class IntentionClock(Message, name="lattice.daemon.v1.HLC"):
    """The stamp of an intention: Unix milliseconds, and a counter within one of them."""

    wall_time: Annotated[int, Field(1, "uint64")] = 0
    counter: Annotated[int, Field(2, "uint32")] = 0


class CausalDeps(Message, name="lattice.daemon.v1.CausalDeps"):
    """Hashes of the intentions that another depends on."""

    hashes: Annotated[tuple[bytes, ...], Field(1, codec=HASH_FORMAT)] = ()


class Condition(Message, name="lattice.daemon.v1.Condition"):
    """The intentions that must be witnessed before another."""

    v1: Annotated[CausalDeps | None, Field(1)] = None


class SExprList(Message, name="lattice.daemon.v1.SExprList"):
    """The elements of an expression."""

    items: Annotated[tuple[SExprMessage, ...], Field(1)] = ()


class SExprMessage(Message, name="lattice.daemon.v1.SExpr"):
    """An expression: a symbol, a text, bytes, a number or a list."""

    symbol: Annotated[_Text | None, Field(1, oneof="kind")] = None
    str: Annotated[_Text | None, Field(2, oneof="kind")] = None
    raw: Annotated[bytes | None, Field(3, oneof="kind")] = None
    num: Annotated[int | None, Field(4, "uint64", oneof="kind")] = None
    list: Annotated[SExprList | None, Field(5, oneof="kind")] = None


class IntentionInfo(Message, name="lattice.daemon.v1.Intention"):
    """A signed intention, with its operations as expressions."""

    hash: Annotated[bytes, Field(1, codec=HASH_FORMAT)] = b""
    author: Annotated[bytes, Field(2, codec=KEY_FORMAT)] = b""
    clock: Annotated[IntentionClock | None, Field(4)] = None
    store_prev: Annotated[bytes, Field(6, codec=HASH_FORMAT)] = b""
    condition: Annotated[Condition | None, Field(7)] = None
    operations: Annotated[tuple[SExprMessage, ...], Field(8)] = ()


class FloatingIntention(Message, name="lattice.daemon.v1.FloatingIntention"):
    """An intention that waits for one that it depends on."""

    intention: Annotated[IntentionInfo | None, Field(1)] = None
    received_at: Annotated[int, Field(2, "uint64")] = 0


class FloatingPage(Message, name="lattice.daemon.v1.FloatingIntentions"):
    """Waiting intentions, in order of arrival."""

    items: Annotated[tuple[FloatingIntention, ...], Field(1)] = ()


@action(
    "stores.floating",
    ActionKind.QUERY,
    "r",
    _STORE,
    GET("/stores/{id}/floating"),
    method=f"{_SERVICE}/FloatingIntentions",
)
class ListFloating(ActionRequest[FloatingPage], name="lattice.daemon.v1.FloatingIntentionsRequest"):
    """Return the intentions that wait for one that they depend on, in order of arrival.

    limit: 1,000 at most.
    """

    id: Annotated[bytes, Field(1, codec=STORE_ID_FORMAT)] = b""
    limit: Annotated[int, Field(2, "uint32")] = PAGE


class IntentionAnswer(Message, name="lattice.daemon.v1.IntentionAnswer"):
    """The intention of a `GetIntention`."""

    intention: Annotated[IntentionInfo | None, Field(1)] = None


@action(
    "stores.intention",
    ActionKind.QUERY,
    "r",
    "stores/{store_id}",
    GET("/stores/{store_id}/intentions/{hash_prefix}"),
    method=f"{_SERVICE}/GetIntention",
)
class GetIntention(ActionRequest[IntentionAnswer], name="lattice.daemon.v1.GetIntentionRequest"):
    """Return the intention whose hash has this prefix. Raises: NoSuchPath; Conflict: several do."""

    store_id: Annotated[bytes, Field(1, codec=STORE_ID_FORMAT)] = b""
    hash_prefix: Annotated[bytes, Field(2)] = b""


class IntentionPage(Message, name="datalattice.v1.IntentionPage"):
    """Intentions in log order. next_seq: `start_seq` of the next page; 0 on the last page."""

    items: Annotated[tuple[IntentionInfo, ...], Field(1)] = ()
    next_seq: Annotated[int, Field(2, "uint64")] = 0


@action(
    "stores.history",
    ActionKind.QUERY,
    "r",
    _STORE,
    GET("/stores/{id}/history"),
    method=f"{_SERVICE}/History",
    is_tool=True,
)
class ReadHistory(ActionRequest[IntentionPage], name="datalattice.v1.ReadHistoryRequest"):
    """Return the signed operations of a store in the order in which this node accepted them.

    If `next_seq` is not 0, ask again with it as `start_seq`.
    """

    id: Annotated[bytes, Field(1, codec=STORE_ID_FORMAT)] = b""
    start_seq: Annotated[int, Field(2, "uint64")] = 1
    limit: Annotated[int, Field(3, "uint32")] = PAGE


class WitnessedIntention(Message, name="datalattice.v1.WitnessedIntention"):
    """An intention, and its number in the log of this node."""

    seq: Annotated[int, Field(1, "uint64")] = 0
    intention: Annotated[IntentionInfo | None, Field(2)] = None
    resume: Annotated[str, Field(RESUME_NUMBER)] = ""


@action("stores.follow", ActionKind.STREAM, "r", _STORE, GET("/stores/{id}/follow"))
class FollowStore(ActionRequest[WitnessedIntention], name="datalattice.v1.FollowStoreRequest"):
    """Return the intentions of a store in the order in which this node accepts them, then new ones.

    start: "start" or "end". resume: of the last intention received; it replaces `start`.
    Raises: StaleToken: the log of this node was replaced.
    """

    id: Annotated[bytes, Field(1, codec=STORE_ID_FORMAT)] = b""
    start: Annotated[str, Field(2)] = "start"
    resume: Annotated[str, Field(RESUME_NUMBER)] = ""


class SystemEntry(Message, name="lattice.daemon.v1.SystemEntry"):
    """A key and value of a store's system table."""

    key: Annotated[bytes, Field(1)] = b""
    value: Annotated[bytes, Field(2)] = b""


class SystemEntries(Message, name="lattice.daemon.v1.SystemEntries"):
    """The system table of a store, in the order of its keys."""

    items: Annotated[tuple[SystemEntry, ...], Field(1)] = ()


@action(
    "stores.system",
    ActionKind.QUERY,
    "r",
    _STORE,
    GET("/stores/{id}/system"),
    method=f"{_SERVICE}/SystemList",
)
class ListSystem(ActionRequest[SystemEntries], name="lattice.daemon.v1.SystemListRequest"):
    """Return the system table of a store: its peers, children, name and invites."""

    id: Annotated[bytes, Field(1, codec=STORE_ID_FORMAT)] = b""


class StorePeerInfo(Message, name="lattice.daemon.v1.PeerInfo"):
    """A peer of a store. last_seen_ms: time since the last comparison with it."""

    public_key: Annotated[bytes, Field(1, codec=KEY_FORMAT)] = b""
    status: Annotated[str, Field(2)] = ""
    online: Annotated[bool, Field(3)] = False
    name: Annotated[str, Field(4)] = ""
    last_seen_ms: Annotated[int, Field(5, "uint64")] = 0
    added_at: Annotated[int, Field(6, "uint64")] = 0


class StorePeers(Message, name="lattice.daemon.v1.PeerList"):
    """The peers of a store, in the order of their keys."""

    items: Annotated[tuple[StorePeerInfo, ...], Field(1)] = ()


@action(
    "stores.peers",
    ActionKind.QUERY,
    "r",
    _STORE,
    GET("/stores/{id}/peers"),
    method=f"{_SERVICE}/ListPeers",
)
class ListStorePeers(ActionRequest[StorePeers], name="lattice.daemon.v1.ListPeersRequest"):
    """Return the peers of a store, this node among them."""

    id: Annotated[bytes, Field(1, codec=STORE_ID_FORMAT)] = b""


# `a`, as for an invite: it decides who shares the store.
@action(
    "stores.revoke",
    ActionKind.EFFECT,
    "a",
    "stores/{store_id}",
    DELETE("/stores/{store_id}/peers/{peer_key}"),
    method=f"{_SERVICE}/RevokePeer",
)
class RevokePeer(ActionRequest[Empty], name="lattice.daemon.v1.RevokePeerRequest"):
    """Exclude a peer from a store: it gets and gives nothing new; what it wrote before stays."""

    store_id: Annotated[bytes, Field(1, codec=STORE_ID_FORMAT)] = b""
    peer_key: Annotated[bytes, Field(2, codec=KEY_FORMAT)] = b""


class StrategyInfo(Message, name="lattice.daemon.v1.PeerStrategy"):
    """How a store gets its peers: independent, inherited, or snapshot."""

    strategy: Annotated[str | None, Field(1)] = None


@action(
    "stores.strategy",
    ActionKind.QUERY,
    "r",
    _STORE,
    GET("/stores/{id}/strategy"),
    method=f"{_SERVICE}/GetPeerStrategy",
)
class GetStrategy(ActionRequest[StrategyInfo], name="lattice.daemon.v1.GetPeerStrategyRequest"):
    """Return how a store gets its peers: its own, those of its parent, or a copy of them."""

    id: Annotated[bytes, Field(1, codec=STORE_ID_FORMAT)] = b""


class BranchPath(Message, name="lattice.daemon.v1.BranchPath"):
    """The intentions from the common ancestor to a head, in order."""

    head: Annotated[bytes, Field(1, codec=HASH_FORMAT)] = b""
    hashes: Annotated[tuple[bytes, ...], Field(2, codec=HASH_FORMAT)] = ()


class BranchInspection(Message, name="lattice.daemon.v1.BranchInspection"):
    """The lowest common ancestor of heads, and the path from it to each."""

    lca: Annotated[bytes, Field(1, codec=HASH_FORMAT)] = b""
    branches: Annotated[tuple[BranchPath, ...], Field(2)] = ()


@action(
    "stores.branch",
    ActionKind.QUERY,
    "r",
    "stores/{store_id}",
    GET("/stores/{store_id}/branch"),
    method=f"{_SERVICE}/InspectBranch",
)
class InspectBranch(ActionRequest[BranchInspection], name="lattice.daemon.v1.InspectBranchRequest"):
    """Return the lowest common ancestor of two or more intentions, and the path to each."""

    store_id: Annotated[bytes, Field(1, codec=STORE_ID_FORMAT)] = b""
    heads: Annotated[tuple[bytes, ...], Field(2, codec=HASH_FORMAT)] = ()


class JoinedStore(Message, name="lattice.daemon.v1.JoinedStore"):
    """The store that was joined; its data arrives afterwards."""

    store_id: Annotated[bytes, Field(1, codec=STORE_ID_FORMAT)] = b""


# `a`: from then on the node holds the data of that store.
@action(
    "stores.join",
    ActionKind.EFFECT,
    "a",
    "stores",
    POST("/stores/join", 201),
    method=f"{_SERVICE}/Join",
)
class JoinStore(ActionRequest[JoinedStore], name="lattice.daemon.v1.JoinRequest"):
    """Join the store of an invite. Raises: Unauthorized: the inviter refused. Timeout."""

    token: Annotated[str, Field(1)] = ""


class StoreInvite(Message, name="lattice.daemon.v1.InviteToken"):
    """An invite: one node that has it may join the store, once."""

    token: Annotated[str, Field(1)] = ""


# ONCE: each call without an id makes a further invite. `a`: who has it becomes a peer of the store.
@action(
    "stores.invite",
    ActionKind.ONCE,
    "a",
    _STORE,
    POST("/stores/{id}/invites", 201),
    method=f"{_SERVICE}/Invite",
)
class InvitePeer(ActionRequest[StoreInvite], name="lattice.daemon.v1.InviteRequest"):
    """Create an invite to a store, for one node."""

    id: Annotated[bytes, Field(1, codec=STORE_ID_FORMAT)] = b""


class ExecResult(Message, name="lattice.daemon.v1.ExecResponse"):
    """The encoded result of a method of a store, or its error.

    error_code: 0 unknown, 1 no such store, 2 no such method, 3 wrong argument, 4 failed.
    """

    result: Annotated[bytes, Field(1)] = b""
    error: Annotated[str, Field(2)] = ""
    error_code: Annotated[int, Field(3, "uint32")] = 0


# ONCE and `w`, though a method may be a query: the store alone knows which ones are.
@action(
    "stores.exec",
    ActionKind.ONCE,
    "w",
    "stores/{store_id}",
    POST("/stores/{store_id}/methods/{method}", body="payload"),
    method=f"{_DYNAMIC}/Exec",
)
class ExecMethod(ActionRequest[ExecResult], name="lattice.daemon.v1.ExecRequest"):
    """Call a command or query of a store's machine. payload: its encoded request.

    An error of the method is in the answer, as in the reference.
    """

    store_id: Annotated[bytes, Field(1, codec=STORE_ID_FORMAT)] = b""
    method: Annotated[str, Field(2)] = ""
    payload: Annotated[bytes, Field(3)] = b""


class QueryAnswer(Message, name="datalattice.v1.QueryAnswer"):
    """The answer of a query: a map by field names."""

    answer: Annotated[Value, Field(1, codec=CELL_FORMAT)] = None


# POST, though nothing changes: the arguments are a document in the body.
@action(
    "stores.query",
    ActionKind.QUERY,
    "r",
    "stores/{store_id}",
    POST("/stores/{store_id}/queries/{method}", body="arguments"),
    is_tool=True,
)
class QueryStore(ActionRequest[QueryAnswer], name="datalattice.v1.QueryStoreRequest"):
    """Call a query of a Weaver store, listed by `stores.methods`, with a map of arguments.

    An argument of bytes accepts a text, as UTF-8: the query `Get` of a `core:kvstore` takes
    {"key": "tea"}, and `List` {"prefix": ""}. In the answer, printable bytes are a text.
    Raises: NoSuchPath; UsageError: there is no such query, or the error names the wrong argument.
    """

    store_id: Annotated[bytes, Field(1, codec=STORE_ID_FORMAT)] = b""
    method: Annotated[str, Field(2)] = ""
    arguments: Annotated[Value, Field(3, codec=CELL_FORMAT)] = None


class MachineDescriptor(Message, name="lattice.daemon.v1.DescriptorResponse"):
    """The protobuf files of a store's machine, and the name of its service."""

    file_descriptor_set: Annotated[bytes, Field(1)] = b""
    service_name: Annotated[str, Field(2)] = ""


@action(
    "stores.descriptor",
    ActionKind.QUERY,
    "r",
    _STORE,
    GET("/stores/{id}/descriptor"),
    method=f"{_DYNAMIC}/GetDescriptor",
)
class GetDescriptor(
    ActionRequest[MachineDescriptor], name="lattice.daemon.v1.GetDescriptorRequest"
):
    """Return the messages and methods of a store's machine."""

    id: Annotated[bytes, Field(1, codec=STORE_ID_FORMAT)] = b""


class MethodInfo(Message, name="lattice.daemon.v1.MethodInfo"):
    """A method of a machine. kind: 0 a command, 1 a query."""

    name: Annotated[str, Field(1)] = ""
    description: Annotated[str, Field(2)] = ""
    kind: Annotated[int, Field(3, "uint32")] = 0


class MethodList(Message, name="lattice.daemon.v1.MethodList"):
    """The methods of a machine, in the order of their declaration."""

    items: Annotated[tuple[MethodInfo, ...], Field(1)] = ()


@action(
    "stores.methods",
    ActionKind.QUERY,
    "r",
    _STORE,
    GET("/stores/{id}/methods"),
    method=f"{_DYNAMIC}/ListMethods",
    is_tool=True,
)
class ListMethods(ActionRequest[MethodList], name="lattice.daemon.v1.ListMethodsRequest"):
    """List the commands and queries of a store."""

    id: Annotated[bytes, Field(1, codec=STORE_ID_FORMAT)] = b""


class StreamInfo(Message, name="lattice.daemon.v1.StreamInfo"):
    """A stream of a machine. param_schema, event_schema: messages of its request and events."""

    name: Annotated[str, Field(1)] = ""
    description: Annotated[str, Field(2)] = ""
    param_schema: Annotated[str, Field(3)] = ""
    event_schema: Annotated[str, Field(4)] = ""


class StreamList(Message, name="lattice.daemon.v1.StreamList"):
    """The streams of a machine."""

    items: Annotated[tuple[StreamInfo, ...], Field(1)] = ()


@action(
    "stores.streams",
    ActionKind.QUERY,
    "r",
    _STORE,
    GET("/stores/{id}/streams"),
    method=f"{_DYNAMIC}/ListStreams",
)
class ListStreams(ActionRequest[StreamList], name="lattice.daemon.v1.ListStreamsRequest"):
    """List the streams of a store."""

    id: Annotated[bytes, Field(1, codec=STORE_ID_FORMAT)] = b""


class StreamEvent(Message, name="lattice.daemon.v1.StreamEvent"):
    """An event of a stream, encoded."""

    payload: Annotated[bytes, Field(1)] = b""
    resume: Annotated[str, Field(RESUME_NUMBER)] = ""


@action(
    "stores.subscribe",
    ActionKind.STREAM,
    "r",
    "stores/{store_id}",
    GET("/stores/{store_id}/streams/{stream_name}"),
    method=f"{_DYNAMIC}/Subscribe",
)
class SubscribeStream(ActionRequest[StreamEvent], name="lattice.daemon.v1.SubscribeRequest"):
    """Return the events of a stream of a store, from now on. params: its encoded request.

    resume: of the last event received. Raises: StaleToken: the store had more than 1,024 events
    since then, and some are gone.
    """

    store_id: Annotated[bytes, Field(1, codec=STORE_ID_FORMAT)] = b""
    stream_name: Annotated[str, Field(2)] = ""
    params: Annotated[bytes, Field(3)] = b""
    resume: Annotated[str, Field(RESUME_NUMBER)] = ""
