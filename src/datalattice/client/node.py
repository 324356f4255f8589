"""Node: one owner's key, the data of a folder, and the copies of others' data in it.

    with datalattice.open("data") as node:
        node.queue("log").offer("hello")                   # signed, and on disk when it returns
        node.database("shop")["opened"] = True

All of it works the same whether or not a process serves the folder meanwhile.

Length: one method for each kind of data and operation; most lines are documentation.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Literal,
    NamedTuple,
    ParamSpec,
    Self,
    TypeVar,
    overload,
)

from datalattice.actions import (
    ActionRequest,
    AddPeer,
    GetNodeHealth,
    JoinStore,
    PullPeers,
    ReloadSettings,
    RemovePeer,
    whole_document,
)
from datalattice.apps import Owner, T
from datalattice.apps.dlfs import FS_SECTION, Drive
from datalattice.apps.grid import Storage, Venue
from datalattice.apps.kv import KV_SECTION, Database
from datalattice.apps.queue import Feed, Queue, Topic, Topics
from datalattice.cells import Index, Map, Value, html_table, to_cell, value_hash
from datalattice.client.bound import Events, FormerRoot, NodeBinding, Options, close_abandoned
from datalattice.client.control import (
    ControlClient,
    ControlStream,
    Running,
    connect,
    running,
)
from datalattice.client.folder import Folder, OwnKeys, folder_of
from datalattice.client.identity import keys_of
from datalattice.client.opendata import MemoryFolder, OpenData
from datalattice.client.openfolder import OpenFolder
from datalattice.client.opening import root_named
from datalattice.client.owners import owners_in
from datalattice.crypto import KeyPair
from datalattice.cursors import LatticeCursor
from datalattice.errors import (
    MissingData,
    NoSuchPath,
    PeerUnavailable,
    Timeout,
    UnsupportedOperation,
    UsageError,
)
from datalattice.forking import begins_anew
from datalattice.lattice import VALUE_KEY, did_of, is_public_key
from datalattice.protobuf import Message
from datalattice.store import CACHE_BYTES_MAX, CellStore, Store
from datalattice.store.kept import Pin

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor
    from pathlib import Path

    from datalattice.client.forks import Forks
    from datalattice.client.uploads import ContentUpload
    from datalattice.client.weaverfolder import NodeStores
    from datalattice.weaver import KVStore, LogStore, Machine, MachineStore, StoreHandle, Stores

P = ParamSpec("P")
R = TypeVar("R")
M = TypeVar("M", bound=Message)

_MEMORY: Final = ":memory:"
"""The path of a node whose data is in memory, for tests and documentation."""

EACH: Final = "each"
SYNC: Final = "sync"

# "seconds to wait for the write turn, then `StoreLocked`, naming the process that holds it"
# (docs/design/front-door.md "Open")
_WAIT_S: Final = 10.0

# "writes wait for the disk, so use `run`, which has 8 threads" (docs/design/front-door.md "Async
# and waiting")
_THREADS: Final = 8
"""Threads of `Node.run`."""

EQUAL_LOOK_S: Final = 0.05
"""Pause between two questions of `wait_equal` to the running node."""


class Past(NamedTuple):
    """A former root: its name for `as_of`, when it became the root, and its hash."""

    ref: str
    time: datetime
    hash: bytes


def open(
    path: str | os.PathLike[str] | None = None,
    *,
    key: str | os.PathLike[str] | KeyPair | None = None,
    create: bool = True,
    read_only: bool = False,
    as_of: str | bytes | datetime | None = None,
    durable: str = EACH,
    wait: float = _WAIT_S,
    cache_bytes: int = CACHE_BYTES_MAX,
) -> Node:
    """Open a folder to read its data, and to write data that its owner signs.

    path:      the folder. None: the variable DATALATTICE_HOME, else `~/.datalattice`. ":memory:":
               a node with a fresh key and data in memory, for tests.
    key:       the default owner: the name of a key of the folder (`keys/NAME.key`), the path of a
               key file (with a separator), or a KeyPair. None: the folder's own.
    create:    False: a missing folder raises `NoSuchPath`.
    read_only: every write raises `ReadOnly`; no key is needed, and none is made.
    as_of:     show a former root: "HEAD~1", the name of a pin, a hash, a time as text, or a
               datetime with a zone. Implies `read_only`.
    durable:   "each": a write is on disk when it returns. "sync": at `sync`, at `close`, or after
               1 s at most; only then other processes see it.
    wait:      seconds that a write waits for other writers before it raises `StoreLocked`.
    cache_bytes: memory for decoded cells, as charged. The first open of a folder in a process sets
               it for all.
    Raises: NoSuchPath, UsageError. NoSigningKey: there is no such key.
    """
    _check_options(path, key, durable, wait)
    close_abandoned()
    options = Options(key, create, read_only, as_of, durable, wait)
    # "A throw-away node with a fresh key, for tests and docs" (docs/design/front-door.md "Open").
    if path is not None and os.fspath(path) == _MEMORY:
        return _memory_node(options)
    folder = folder_of(path)
    # "Implies `read_only`": the past cannot be written to.
    is_read_only = read_only or as_of is not None
    if not folder.path.is_dir() and (is_read_only or not create):
        raise NoSuchPath(
            f"there is no folder {folder.path}; to make it, open it for writing with create=True"
        )
    # "Needs and makes no key": a reader leaves nothing behind in the folder.
    keys = keys_of(folder, key, create=not is_read_only)
    # "`open` never locks": the store is opened at the first use, and locked for writes only.
    return Node(OpenFolder.at(folder, cache_bytes), folder, keys, options)


def _check_options(path: object, key: object, durable: object, wait: object) -> None:
    if path is not None and not isinstance(path, (str, os.PathLike)):
        raise UsageError(f"path is a folder, as text or a Path, got {path!r}")
    if key is not None and not isinstance(key, (str, os.PathLike, KeyPair)):
        raise UsageError(f"key is a name, the path of a key file, or a KeyPair, got {key!r}")
    if durable not in (EACH, SYNC):
        raise UsageError(f'durable is "each" or "sync", got {durable!r}')
    if not isinstance(wait, (int, float)) or not wait >= 0:  # NaN compares as false
        raise UsageError(f"wait is 0 or more seconds, got {wait!r}")


def _memory_node(options: Options) -> Node:
    if options.key is None:
        pair = KeyPair.generate()
    elif isinstance(options.key, KeyPair):
        pair = options.key
    else:
        raise UsageError("a node in memory has no key files: give a KeyPair, or no key")
    return Node(MemoryFolder(), None, OwnKeys.of(pair), options)


class Node:
    """The data of a folder, or in memory. `datalattice.open` returns it; use it in `with`.

    Threads may share it and its handles. Reads see the newest durable data of all processes.
    """

    def __init__(
        self, data: OpenData, folder: Folder | None, keys: OwnKeys | None, options: Options
    ) -> None:
        """Use `datalattice.open`."""
        self._data = data
        self._folder = folder
        self._options = options
        self.begin_in_child()
        begins_anew(self)
        past = None
        if options.as_of is not None:
            try:
                ref = _ref_text(options.as_of)
                store = self._past_store()
                # "A lease keeps the root until `close`": garbage collection meanwhile spares it.
                past = FormerRoot(store, root_named(store, ref))
            except BaseException:
                data.close()
                raise
        self._binding = NodeBinding(
            data,
            folder,
            keys,
            past=past,
            is_read_only=options.read_only or options.as_of is not None,
            is_delayed=options.durable == SYNC,
            wait_s=options.wait,
        )
        self._stores: NodeStores | None = None
        if folder is not None:
            self._binding.origin = str(folder.path.absolute()), options

    def begin_in_child(self) -> None:
        """Begin without threads: a forked child has none of its parent's."""
        self._pool: ThreadPoolExecutor | None = None

    # --- handles ---

    # Without `of`, `T` is its default, Any: values come as stored.

    def queue(
        self,
        name: object,
        partition: object = 0,
        *,
        owner: object = None,
        of: type[T] | None = None,
    ) -> Queue[T]:
        """Return one partition of a topic: a log of values. The first write makes it.

        of: the type of values.
        """
        place = self._place(owner)
        return Queue.at(*place, name, partition, of=of, binding=self._binding)

    def topic(
        self,
        name: object,
        partitions: int | None = None,
        *,
        owner: object = None,
        of: type[T] | None = None,
    ) -> Topic[T]:
        """Return a topic: logs over which records are spread by key.

        partitions: their number, which the first write stores. of: the type of values.
        """
        return Topic.at(*self._place(owner), name, partitions, of=of, binding=self._binding)

    def feed(
        self,
        name: object,
        owners: Iterable[object] | None = None,
        *,
        of: type[T] | None = None,
    ) -> Feed[T]:
        """Return all owners' copies of a topic, or those of `owners`, to read together."""
        chosen = None if owners is None else [self._binding.owner_named(one) for one in owners]
        return Feed(self._binding.root, name, chosen, of=of, binding=self._binding)

    def database(
        self, name: str, *, owner: object = None, of: type[T] | None = None
    ) -> Database[T]:
        """Return a database: a mutable mapping with hashes, sets, lists and counters."""
        return Database.at(*self._place(owner), name, of=of, binding=self._binding)

    def drive(self, name: str, *, owner: object = None) -> Drive:
        """Return a drive: a file system."""
        return Drive.at(*self._place(owner), name, binding=self._binding)

    def venue(self, did: str | None = None, *, storage: Storage | None = None) -> Venue:
        """Return a venue of the grid; by default that of the default owner's DID.

        storage: where contents are stored; by default the lattice.
        """
        keys = self._binding.keys
        # "`node.venue()`, own DID by default" (docs/design/front-door.md "Handles").
        if did is None:
            did = did_of(self._binding.own)
        # Only the default owner's venue can be written to; others are opened without a key.
        is_own = keys is not None and did == did_of(keys.owner.public_key)
        pair = keys.owner if keys is not None and is_own else None
        return Venue.at(
            self._binding.root,
            did,
            key_pair=pair,
            binding=self._binding,
            storage=storage,
            staging=self._binding.upload,
        )

    @overload
    def store(
        self, name: str, kind: Literal["kv"], *, parent: StoreHandle | None = None
    ) -> KVStore[str]: ...
    @overload
    def store(
        self, name: str, kind: Literal["kv"], *, of: type[T], parent: StoreHandle | None = None
    ) -> KVStore[T]: ...
    @overload
    def store(
        self, name: str, kind: Literal["log"], *, parent: StoreHandle | None = None
    ) -> LogStore[str]: ...
    @overload
    def store(
        self, name: str, kind: Literal["log"], *, of: type[T], parent: StoreHandle | None = None
    ) -> LogStore[T]: ...
    @overload
    def store(
        self, name: str, kind: type[Machine], *, parent: StoreHandle | None = None
    ) -> MachineStore: ...
    @overload
    def store(
        self,
        name: str,
        kind: str | None = None,
        *,
        of: Any = None,
        parent: StoreHandle | None = None,
    ) -> Any: ...
    def store(
        self,
        name: str,
        kind: str | type[Machine] | None = None,
        *,
        of: Any = None,
        parent: StoreHandle | None = None,
    ) -> Any:
        """Return a weaver store: operations that nodes replicate, and the state they give.

        name:   its name, its id, or the first digits of the id.
        kind:   makes a missing store: "kv" (a `KVStore`), "log" (a `LogStore`), or a class of
                `weaver.Machine` (a `MachineStore`). It must be the kind of an existing store.
                With the full id of another node's store, that store is added here, empty until its
                intentions arrive.
        of:     the type of values; None: text. parent: the store whose child it is.
        Writes are signed with the node's identity and durable when they return, also in a node
        that is opened with durable="sync"; `batch` of the node does not gather them.
        Raises: NoSuchPath: the store is missing, and `kind` is None. UsageError: it is of another
                kind.
        """
        return self._weaver().open(name, kind, of, parent)

    def _weaver(self) -> NodeStores:
        if self._stores is None:
            # Imported on first use: most programs use no weaver stores.
            from datalattice.client.weaverfolder import NodeStores

            if self._options.as_of is not None:
                raise UnsupportedOperation(
                    "as_of shows no weaver stores, which have their own history: history(key), or "
                    "`lattice weave history`"
                )
            self._stores = NodeStores(self._binding, self._folder, self._options, _reopen_store)
        return self._stores

    def cursor(self, *keys: object) -> LatticeCursor:
        """Return the cursor on the value at `keys`; without keys, on the root."""
        return self._binding.root.path(*keys)

    def _place(self, owner: object) -> tuple[LatticeCursor, Value]:
        return self._binding.root, self._binding.owner_named(owner)

    # --- names and owners ---

    def topics(self, *, owner: object = None) -> list[Value]:
        """Return the names of the topics of an owner, in order."""
        return Topics.at(*self._place(owner)).topics()

    def databases(self, *, owner: object = None) -> list[str]:
        """Return the names of the databases of an owner, in order."""
        return self._names(KV_SECTION, owner)

    def drives(self, *, owner: object = None) -> list[str]:
        """Return the names of the drives of an owner, in order."""
        return self._names(FS_SECTION, owner)

    def join(self, token: str) -> Any:
        """Join the store of an invite through the running node; return its handle, as `store`.

        The store's intentions arrive afterwards: follow the store, or read its `status()`.
        Raises: PeerUnavailable: no node runs in the folder. Unauthorized: the inviter refuses.
                BadFormat: the token is mistyped. Timeout: the inviter cannot be reached.
        """
        with self._control() as client:
            joined = client.call(JoinStore(token=token))
        from datalattice.weaver import store_id_text

        return self.store(store_id_text(joined.store_id))

    @property
    def weaver(self) -> Stores:
        """All weaver stores of the node: their tree, their peers and the kinds known here."""
        return self._weaver().weaver.stores()

    def stores(self, parent: StoreHandle | None = None) -> list[str]:
        """Return the names of the weaver stores, or of the children of one, in order."""
        return self._weaver().names(parent)

    def _names(self, section: Value, owner: object) -> list[str]:
        held = self._binding.root.path(section, self._binding.owner_named(owner), VALUE_KEY).get()
        keys = held.keys() if isinstance(held, (Map, Index)) else ()
        # Names with a leading dot are internal, such as those of consumers' positions.
        return sorted(str(key) for key in keys if not str(key).startswith("."))

    @property
    def owner(self) -> Owner:
        """The default owner. Raises: NoSigningKey: the node has no key."""
        return self._binding.owner(self._binding.own)

    @property
    def keys(self) -> tuple[Owner, ...]:
        """The owners whose keys are here, the default owner first."""
        keys = self._binding.keys
        pairs = () if keys is None else keys.in_order()
        return tuple(self._binding.owner(pair.public_key) for pair in pairs)

    def owner_key(self, given: object) -> Value:
        """Return the key of an owner: "own", a local name, a DID, a key or its first digits.

        Raises: UsageError: `given` names no owner, or several. NoSigningKey: "own", without a key.
        """
        return self._binding.owner_named(None if given == "own" else given)

    def owners(self) -> list[Owner]:
        """Return the owners that have data here, the default owner first."""
        here = owners_in(self._binding.present())
        own = None if self._binding.keys is None else self._binding.own
        return [self._binding.owner(key) for key in sorted(here, key=lambda key: key != own)]

    # --- batches, durability and the past ---

    def batch(self) -> AbstractContextManager[None]:
        """Gather the writes of this thread or task in a `with` block into one durable root.

            with node.batch():
                node.database("totals").incr("sum", 3)
                node.queue("log").offer("three more")

        Reads inside see them. An exception that leaves the block undoes all. A nested batch joins
        the outer one. Other writers of the folder wait meanwhile; a running node goes on merging.
        """
        return self._binding.batch()

    def atomically(self, work: Callable[[], R]) -> R:
        """Do `work`, whose writes become one durable root; return what it returned.

            offsets = node.atomically(lambda: node.queue("log").offer_many(["a", "b"]))

        As a batch, but if another writer came first, `work` runs again on the newer root, so that
        its result fits the durable root. So it must do nothing but read and write this node.
        """
        return self._binding.atomically(work)

    def share(self, key: object, begin: Callable[[], R], finish: Callable[[R], object]) -> R | None:
        """Return an object that all `atomically` calls of one commit share under a key.

        begin: makes the object, for the first call. finish: writes its content, after the last
        call and in the same commit. The result is None inside a batch, which shares nothing. What
        `work` puts into the object stays there if `work` fails later, so that comes last in `work`.
        """
        return self._binding.share(key, begin, finish)

    def sync(self) -> None:
        """Return when all writes of this node are on disk; a batch's are at its end.

        Raises: the error that kept them from being written.
        """
        self._binding.sync()

    def as_of(self, ref: str | bytes | datetime) -> Node:
        """Return a read-only node that shows a former root; see `datalattice.open`."""
        self._binding.check_open()
        if self._folder is not None:
            # A second use of the open folder: the two nodes are closed independently.
            data: OpenData = OpenFolder.at(self._folder)
        else:
            data = self._data
        return Node(data, self._folder, self._binding.keys, self._options._replace(as_of=ref))

    def history(self) -> list[Past]:
        """Return the recorded roots, the newest first."""
        store = self._data.store()
        if store is None:
            return []
        entries = self._past_store().history.entries()
        return [
            Past(f"HEAD~{at}" if at else "HEAD", _time(moment.time_ms), moment.root_hash)
            for at, moment in enumerate(reversed(entries))
        ]

    def forks(self) -> Forks:
        """Return the forks that this node keeps as evidence."""
        from datalattice.client.forks import Forks

        return Forks(self._binding.present(), self._data.store(), self._binding.context)

    # --- values by their hashes ---

    def value(self, hash: bytes) -> Value:
        """Return the value with a hash. Raises: MissingData: the folder lacks it."""
        store = self._data.store()
        if store is None:
            raise MissingData([hash])
        return store.load(hash)

    def has_value(self, hash: bytes) -> bool:
        """Return whether the folder has the value with a hash."""
        store = self._data.store()
        return store is not None and bool(store.has_many([hash]))

    def cells_to_arrow(self, *, columns: Sequence[str] | None = None, verify: bool = True) -> Any:
        """Return every cell of the folder, reachable or not, as a `pyarrow.RecordBatchReader`.

        They come in the order of storage. If cells are removed meanwhile, reading raises and has
        to be repeated.

        columns: some of hash, encoding and refs; by default without refs. verify: False skips the
                comparison of each encoding with its hash.
        Raises: UnsupportedOperation: the node is in memory. Corruption: from the reader, for a
                damaged cell.
        """
        store = self._past_store()
        if not isinstance(store, CellStore):
            raise UnsupportedOperation("a node in memory has no cells on disk to list")
        return self._binding.to_arrow(store, columns=columns, verify=verify)

    def upload(self) -> ContentUpload:
        """Return an upload, which stores a byte string piece by piece.

        Raises: ReadOnly, NoSigningKey.
        """
        return self._binding.upload()

    def keep(self, name: str, value: object, *, owner: str = "") -> bytes:
        """Store a value outside the lattice, and pin it under a name; return its hash.

        It is not replicated: peers that know its hash can fetch it. owner: a note on who wants it.
        Raises: UsageError: the name is pinned to another value. ReadOnly.
        """
        cell = to_cell(value)
        # In one turn: a collection between the steps would remove the value, which is not pinned.
        with self._binding.turn() as editor:
            editor.stage(cell)
            self.pin(name, value_hash(cell), owner=owner)
        return value_hash(cell)

    def pin(self, name: str, hash: bytes, *, owner: str = "") -> Pin:
        """Keep the value with a hash, and all its cells, under a name, until it is unpinned.

        owner: a note on who wants it.
        Raises: UsageError: the name is pinned to another value. MissingData: cells are missing.
        """
        return self._past_store().pins.pin(hash, name, owner)

    def unpin(self, name: str) -> None:
        """Remove the pin with a name. Raises: UsageError: there is none."""
        self._past_store().pins.unpin(name)

    def pins(self) -> list[Pin]:
        """Return the pins, by name."""
        store = self._data.store()
        return [] if store is None else store.pins.all()

    def _past_store(self) -> Store:
        store = self._data.store()
        if store is None:
            raise NoSuchPath("nothing was written yet, so there is no former root")
        return store

    def events(self, *, wait: bool = True, timeout: float | None = None) -> Events:
        """Return the reports of merges in this process: superseded writes, dropped entries, forks.

        The last 10,000 are kept. wait: whether iteration waits for new ones, `timeout` s at most.
        """
        return Events(self._binding.reports, wait=wait, timeout=timeout)

    # --- the running node ---

    @property
    def path(self) -> Path | None:
        """The folder; None: the node is in memory."""
        return None if self._folder is None else self._folder.path

    @property
    def running(self) -> Running | None:
        """The node that runs in this folder; None: none does."""
        return None if self._folder is None else running(self._folder.path)

    @property
    def address(self) -> str | None:
        """The address at which the running node listens for peers; None: none."""
        found = self.running
        return None if found is None else found.address

    @property
    def ticket(self) -> str | None:
        """The addresses of the running node with its key, for `add_peer` of another node."""
        found = self.running
        return None if found is None else found.ticket

    def peers(self) -> list[dict[str, Any]]:
        """Return the running node's peers with their state.

        Raises: PeerUnavailable: no node runs in the folder.
        """
        return [whole_document(peer) for peer in self.ask(GetNodeHealth()).peers]

    def add_peer(self, address: str) -> None:
        """Connect the running node to a peer: `host:port` or a ticket. Raises: as `peers`."""
        self.ask(AddPeer(address=address))

    def remove_peer(self, address: str) -> None:
        """Disconnect the running node from a peer. Raises: as `peers`."""
        self.ask(RemovePeer(address=address))

    def reload(self) -> list[str]:
        """Make the running node read its settings again.

        Return the changed settings that take effect at its next start.
        Raises: as `peers`. UsageError: a setting is wrong, and nothing was changed.
        """
        return list(self.ask(ReloadSettings()).waiting)

    def wait_equal(self, timeout: float = 30.0) -> None:
        """Return when the running node and all its peers have the same data.

        The data that a peer had when this was called is then here.

        Raises: PeerUnavailable: no node runs in the folder. Timeout: they still differ after
                `timeout` s.
        """
        give_up_s = time.monotonic() + timeout
        is_asked = False
        while True:
            peers = self.peers()
            # A node without peers has nothing to be equal to: it waits for the first.
            if peers and all(peer.get("equal") is True for peer in peers):
                if is_asked:
                    return
                # A peer's last announced root may be old, so the node asks for the present ones.
                with contextlib.suppress(PeerUnavailable, Timeout):
                    self.ask(PullPeers())
                    is_asked = True
                    continue  # compared once more, with the roots that the peers stated now
            if time.monotonic() >= give_up_s:
                behind = [
                    str(peer.get("address")) for peer in peers if peer.get("equal") is not True
                ]
                raise Timeout(f"not equal after {timeout:g} s: {', '.join(behind) or 'no peers'}")
            time.sleep(EQUAL_LOOK_S)

    def ask(
        self, request: ActionRequest[M], caller: str = "", *, request_id: str | None = None
    ) -> M:
        """Perform an action in the running node; return its result.

        caller: the DID for which it is asked; "": the owner of the folder.
        request_id: as `ControlClient.call`.
        Raises: what the action raises. PeerUnavailable: no node runs in the folder.
        """
        with self._control() as client:
            return client.call(request, caller, request_id=request_id)

    def follow(self, request: ActionRequest[M], caller: str = "") -> ControlStream[M]:
        """Begin a stream of the running node; close it. Raises: as `ask`."""
        with self._control() as client:
            return client.stream(request, caller)

    def _control(self) -> ControlClient:
        client = None if self._folder is None else connect(self._folder.path)
        if client is None:
            where = "memory" if self._folder is None else str(self._folder.path)
            raise PeerUnavailable(f"no node runs in {where}; start one with `lattice node start`")
        return client

    # --- threads, closing and printing ---

    async def run(self, call: Callable[P, R], /, *args: P.args, **named: P.kwargs) -> R:
        """Await a call that may wait for the disk: `await node.run(queue.offer, "x")`.

        It runs in one of 8 threads, and its writes join the batch of the task.
        """
        import asyncio
        from concurrent.futures import ThreadPoolExecutor
        from contextvars import copy_context

        if self._pool is None:
            self._pool = ThreadPoolExecutor(_THREADS, "datalattice")
        # The batch is a context variable, so the call runs in a copy of the task's context.
        context = copy_context()

        def in_context() -> R:
            return context.run(call, *args, **named)

        return await asyncio.wrap_future(self._pool.submit(in_context))

    def close(self) -> None:
        """Make all writes durable and release everything. Closing twice is allowed.

        Values that were read stay readable. Handles raise `StoreClosed` from now on.
        Raises: the error that kept a write from being durable.
        """
        pool, self._pool = self._pool, None
        if pool is not None:
            # Not waited for: one of its threads may be running this (`__aexit__`).
            pool.shutdown(wait=False)
        self._binding.held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.run(self.close)

    def __reduce__(self) -> tuple[object, ...]:
        # "`Node` and handles pickle as (path, options, owner, name) and reopen; `":memory:"` does
        # not".
        if self._binding.origin is None:
            raise UsageError("a node in memory cannot be pickled: its data is in this process")
        return _reopen, self._binding.origin

    def __repr__(self) -> str:
        where = _MEMORY if self._folder is None else str(self._folder.path)
        if self._binding.held.is_closed:
            return f"<Node {where}, closed>"
        own = "no key" if self._binding.keys is None else f"own {self.owner}"
        # Only own data is counted, which a node without a key does not have.
        parts = [] if self._binding.keys is None else self._parts()
        found = self.running
        served = "" if found is None else f"; served at {found.address or found.control}"
        return f"<Node {where}, {own}: {', '.join(parts) or 'empty'}{served}>"

    def _parts(self) -> list[str]:
        counts = {
            "topic": len(self.topics()),
            "database": len(self.databases()),
            "drive": len(self.drives()),
            "store": len(self._store_names()),
        }
        return [f"{count} {name}{'s' * (count > 1)}" for name, count in counts.items() if count]

    def _store_names(self) -> list[str]:
        """Return the names of the stores; the engine is not made for this."""
        unseen = self._stores is None and (
            self._folder is None or not (self._folder.path / "weaver").is_dir()
        )
        return [] if unseen or self._options.as_of is not None else self.stores()

    def _repr_html_(self) -> str:
        """Return the table that a notebook shows: all topics, databases, drives and stores."""
        rows: list[tuple[object, ...]] = []
        for owner in self.owners():
            # An owner by DID has a venue only, which is not listed.
            if is_public_key(owner.key):
                for kind, names in (
                    ("topic", self.topics(owner=owner)),
                    ("database", self.databases(owner=owner)),
                    ("drive", self.drives(owner=owner)),
                ):
                    rows += [(str(owner), kind, str(name)) for name in names]
        rows += [("", "store", name) for name in self._store_names()]
        where = _MEMORY if self._folder is None else str(self._folder.path)
        return html_table(f"Node {where}", ("owner", "kind", "name"), rows, len(rows))


def _reopen(path: str, options: Options) -> Node:
    return open(path, **options._asdict())


def _reopen_store(
    path: str, options: Options, id: str, kind: type[Machine] | None, of: Any
) -> StoreHandle:
    return open(path, **options._asdict())._weaver().open(id, kind, of, None)


def _ref_text(ref: object) -> str:
    if isinstance(ref, datetime):
        if ref.tzinfo is None:
            raise UsageError(f"a time needs a zone, as in datetime.now(UTC); got {ref!r}")
        return f"@{round(ref.timestamp() * 1_000)}"
    if not isinstance(ref, (str, bytes)):
        raise UsageError(f"as_of is a root's name, its hash or a datetime, got {ref!r}")
    return f"0x{ref.hex()}" if isinstance(ref, bytes) else ref


def _time(time_ms: int) -> datetime:
    return datetime.fromtimestamp(time_ms / 1e3, UTC)
