"""Weaver folder: the weaver stores of a folder in this process, shared with other processes.

They are in one LMDB engine, `DIR/weaver/`. LMDB admits one writer at a time over all processes, so
any number of processes may write; a read sees the last commit. A process has one `WeaverFolder` for
each folder and key, shared by all nodes that opened it, so that their writes share commits.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

from datalattice.actions import ActionRequest, GetPresence, SyncStore
from datalattice.apps import value_type
from datalattice.cells import decode_message, encode_message
from datalattice.client.addresses import IROH, parse_ticket
from datalattice.client.bound import NodeBinding, Options
from datalattice.client.control import connect, running
from datalattice.client.folder import Folder
from datalattice.client.opening import accepts_unasked, moved_wait_s
from datalattice.clock import SystemClock
from datalattice.crypto import KeyPair, SystemEntropy
from datalattice.cursors import Wake
from datalattice.engine import DATA_FILE, Engine, GroupCommit, MemoryEngine, open_engine
from datalattice.errors import (
    AlreadyExists,
    BadFormat,
    NoSuchPath,
    PeerUnavailable,
    ReadOnly,
    TypeMismatch,
    UsageError,
)
from datalattice.forking import begins_anew, freed_in_child
from datalattice.protobuf import Message
from datalattice.store import RealDisk
from datalattice.weaver import (
    CORE_MACHINES,
    RAW_CODEC,
    STORE_TABLES,
    TEXT_CODEC,
    Codec,
    Doubt,
    KvMachine,
    KVStore,
    LogMachine,
    LogStore,
    Machine,
    MachineStore,
    PeerManager,
    PeerPresence,
    StoreHandle,
    StoreInfo,
    Stores,
    SyncedPeer,
    WeaverStore,
    parse_store_id,
    store_id_text,
)

M = TypeVar("M", bound=Message)

_LOOK_S: Final = 0.01
"""Pause between two looks for commits of other processes, while readers wait for changes."""

WEAVER_FOLDER: Final = "weaver"
"""Name of the engine's folder inside the node's."""


class WeaverFolder:
    """The weaver stores of a folder, or in memory. Get it from `at` or `in_memory`; `close` it.

    Any thread may use it; a forked child opens the engine anew.
    """

    def __init__(self, path: Path | None, key: KeyPair | None, *, read_only: bool) -> None:
        self._path: Final = path
        self._key: Final = key
        self._read_only: Final = read_only
        self._users = 0
        self._machines: dict[str, type[Machine]] = {}
        self._memory: MemoryEngine | None = None if path is not None else MemoryEngine(STORE_TABLES)
        self.begin_in_child()
        begins_anew(self)

    def begin_in_child(self) -> None:
        """Set the initial state, also in a forked child."""
        self._lock = threading.RLock()  # reentrant: opening a store may open others
        self._stores: Stores | None = None
        self._engine: Engine | None = None
        self._waiting: set[object] = set()
        self._watcher: threading.Thread | None = None

    @classmethod
    def at(cls, folder: Folder, key: KeyPair | None, *, read_only: bool) -> WeaverFolder:
        """Return this process's stores of a folder. key: of the node; None: for reading only."""
        # By real path, because a process may open an LMDB folder only once.
        path = Path(os.path.realpath(folder.path)) / WEAVER_FOLDER
        name = (path, None if key is None else key.public_key, read_only)
        with _opening:
            found = _open.get(name)
            if found is None:
                found = _open[name] = cls(path, key, read_only=read_only)
            found._users += 1
            return found

    @classmethod
    def in_memory(cls, key: KeyPair) -> WeaverFolder:
        """Return stores in memory, for one node."""
        found = cls(None, key, read_only=False)
        found._users = 1
        return found

    @property
    def exists(self) -> bool:
        """Whether the engine was ever made."""
        return self._path is None or self._path.is_dir()

    def stores(self) -> Stores:
        """Open the engine, if it is not open; return its stores.

        Raises: NoSuchPath: there is no engine, and this object is for reading only.
        """
        found = self._stores
        if found is not None:  # without the lock, for speed
            return found
        with self._lock:
            if self._stores is None:
                engine = self._open_engine()
                # A reader signs nothing, so any key does.
                key = self._key or KeyPair.generate()
                made = Stores(GroupCommit(engine), key, SystemClock(), SystemEntropy())
                for machine in self._machines.values():
                    made.register(machine)
                self._arrive(made)
                self._engine, self._stores = engine, made
            return self._stores

    def _arrive(self, stores: Stores) -> None:
        """Compare the engine's location with the recorded one; if moved, own writes are refused.

        They are accepted if the user accepts writes before a peer was asked.
        """
        if self._path is None or self._read_only:
            return
        # The file's location: restoring a backup replaces the file and may keep the folder.
        stores.arrive(RealDisk().place(str(self._path / DATA_FILE)))
        if stores.doubts() and accepts_unasked(Folder(self._path.parent)):
            stores.accept_unasked()

    def await_fence(self, store: WeaverStore) -> None:
        """Wait until the fence allows own writes of a store, while a running node asks its peers.

        Returns after the time that writes of the lattice wait; the write then raises.
        """
        doubt = store.doubt()
        if doubt is None or not doubt.refuses or self._path is None:
            return
        if running(self._path.parent) is None:
            return  # no node asks: the write raises the error with the remedy
        give_up_s = time.monotonic() + moved_wait_s(Folder(self._path.parent))
        while time.monotonic() < give_up_s:
            time.sleep(_LOOK_S)
            doubt = store.doubt()
            if doubt is None or not doubt.refuses or doubt is Doubt.CLONED:
                return

    def _open_engine(self) -> Engine:
        if self._memory is not None:
            return self._memory
        assert self._path is not None
        if not self._path.is_dir():
            if self._read_only:
                raise NoSuchPath(f"there are no stores in {self._path.parent}")
            # Readable by the user only: the stores contain invites.
            self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return open_engine(self._path, STORE_TABLES, read_only=self._read_only)

    def register(self, machine: type[Machine]) -> None:
        """Add a kind of store."""
        with self._lock:
            # Kept, because a forked child opens the stores anew and registers all kinds.
            self._machines[machine.kind] = machine
            self.stores().register(machine)

    def close(self) -> None:
        """End one use; the last use closes the engine."""
        with _opening:
            self._users -= 1
            if self._users > 0:
                return
            for name, held in list(_open.items()):
                if held is self:
                    del _open[name]
        with self._lock:
            # Closed after the lock is released: closing wakes readers, which may take it.
            stores, self._stores = self._stores, None
            engine, self._engine = self._engine, None
        if stores is not None:
            stores.close_all()
        if engine is not None and self._memory is None:
            engine.close()

    # --- changes ----------------------------------------------------------------------------

    def subscribe(self, store: WeaverStore, wake: Wake) -> Wake:
        """Call `wake` after each change of a store; return a function that stops this.

        Changes of this process wake at once, those of others within `_LOOK_S`.
        """
        end = store.on_change(lambda _seq: wake())
        if self._memory is not None:  # in memory no other process can write
            return end
        waits = object()
        with self._lock:
            self._waiting.add(waits)
            if self._watcher is None:
                self._watcher = threading.Thread(target=self._watch, name="weaver", daemon=True)
                self._watcher.start()  # one thread for the folder, while there are subscribers

        def leave() -> None:
            end()
            # Without the lock: Python may free a stream anywhere, also in a thread that holds it.
            self._waiting.discard(waits)

        return leave

    def _watch(self) -> None:
        me, pause = self._watcher, threading.Event()
        while True:
            with self._lock:
                stores = self._stores
                # The thread ends with the last subscriber; a forked child starts its own.
                if stores is None or not self._waiting or self._watcher is not me:
                    if self._watcher is me:
                        self._watcher = None
                    return
            pause.wait(_LOOK_S)
            stores.look()


_opening: Final = freed_in_child(threading.Lock())
_open: Final[dict[tuple[Path, bytes | None, bool], WeaverFolder]] = {}


# --- handles --------------------------------------------------------------------------------------


class _TypedValues:
    """Values of a Python type, stored as cells."""

    def __init__(self, of: Any) -> None:
        self._type = value_type(of)

    def encode(self, value: Any) -> bytes:  # canonical bytes: equal values are equal entries
        return encode_message(self._type.to_cell(value))

    def decode(self, data: bytes) -> Any:
        try:
            return self._type.from_cell(decode_message(data))
        except BadFormat as error:  # most often text or bytes, which are stored as they are
            raise BadFormat(f"{data[:20]!r} was not written with this of=: {error}") from error


def codec_of(of: Any) -> Codec[Any]:
    """Return the codec for values of a type: text and bytes are stored raw, others as cells."""
    if of is None or of is str:
        return TEXT_CODEC
    return RAW_CODEC if of is bytes else _TypedValues(of)


class NodeStores:
    """The weaver stores of one open node."""

    def __init__(
        self,
        binding: NodeBinding,
        folder: Folder | None,
        options: Options,
        reopen: Callable[..., StoreHandle],
    ) -> None:
        """folder: None: in memory. reopen: opens a store in another process."""
        self.reopen: Final = reopen
        self.binding: Final = binding
        self.read_only: Final = options.read_only
        self.folder: Final = folder
        self._held: WeaverFolder | None = None

    @property
    def weaver(self) -> WeaverFolder:
        """The stores of the folder, shared with other nodes of this process."""
        self.binding.check_open()
        if self._held is None:
            keys = self.binding.keys
            key = None if keys is None else keys.identity
            if self.folder is None:
                assert key is not None, "a node in memory has a key"
                self._held = WeaverFolder.in_memory(key)
            else:
                self._held = WeaverFolder.at(self.folder, key, read_only=self.read_only)
            # Registered before it is used, so that the node always closes it.
            self.binding.held.also_close(self._held.close)
        return self._held

    def open(
        self,
        name: str,
        kind: str | type[Machine] | None,
        of: Any,
        parent: StoreHandle | None,
    ) -> StoreHandle:
        """Return the handle of a store; `kind` makes a missing one.

        Raises: NoSuchPath: it is missing, and `kind` is None. ReadOnly: it is missing, and this
                node can only read. UsageError: it is of another kind.
        """
        is_machine = isinstance(kind, type) and issubclass(kind, Machine)
        if not isinstance(name, str):
            raise TypeMismatch(f"a store is named by text, got {name!r}")
        if not (kind is None or isinstance(kind, str) or is_machine):
            raise TypeMismatch(f"kind= is 'kv', 'log' or a class of Machine, got {kind!r}")
        if not (parent is None or isinstance(parent, StoreHandle)):
            raise TypeMismatch(f"parent= is a store, as node.store(name) gives it, got {parent!r}")
        weaver = self.weaver
        if isinstance(kind, type):
            weaver.register(kind)
        above = None if parent is None else parent.store.id
        stores = weaver.stores()
        wanted = None
        if kind is not None:
            wanted = stores.machine(kind if isinstance(kind, str) else kind.kind)
        found = stores.find(name, above)
        if found is None:
            if wanted is None:
                raise stores.missing(
                    name, "the first open makes it, with kind='kv', kind='log' or a machine"
                )
            found = self._made(stores, wanted.kind, name, above)
        elif wanted is not None and found.kind != wanted.kind:
            # A log read as a store of keys would look empty.
            raise UsageError(f"the store {name!r} is of kind {found.kind}, not {wanted.kind}")
        elif not (self.read_only or found.is_archived or stores.has(found.id)):
            # The parent declares this child, which is not here yet.
            stores.adopt(found.id, found.kind, found.parent)
        return self._handle(found, of)

    def _made(self, stores: Stores, kind: str, name: str, parent: bytes | None) -> StoreInfo:
        if self.read_only:
            raise ReadOnly(f"there is no store {name!r}, and this node can only read")
        id = _id_of(name)  # a full id is that of another node's store: a new store gets a new id
        if id is not None:
            return self._adopted(stores, kind, id, parent)
        # `exclusive` refuses a second store of this name, which another process may make now.
        with contextlib.suppress(AlreadyExists):
            stores.create(kind, name, parent, exclusive=True)
        found = stores.find(name, parent)
        assert found is not None
        return found

    def _adopted(self, stores: Stores, kind: str, id: bytes, parent: bytes | None) -> StoreInfo:
        """Add the store of another node, empty until its intentions arrive."""
        stores.adopt(id, kind, parent)
        found = stores.find(store_id_text(id))
        assert found is not None
        return found

    def _handle(self, info: StoreInfo, of: Any) -> StoreHandle:
        source = NodeStore(self, info.id, info.name or store_id_text(info.id), of)
        machine = source.store().machine
        if isinstance(machine, KvMachine):
            return KVStore(source, codec_of(of))
        if isinstance(machine, LogMachine):
            return LogStore(source, codec_of(of))
        if of is not None:  # a machine encodes its values itself
            raise UsageError(
                f"of= is for stores of kind kv and log; {info.name!r} is of kind {info.kind}"
            )
        return MachineStore(source)

    def names(self, parent: StoreHandle | None) -> list[str]:
        """Return the names of the top stores, or of a store's children, except archived ones."""
        if not self.weaver.exists:  # a listing makes no engine
            return []
        above = None if parent is None else parent.store.id
        infos = self.weaver.stores().list(above)
        return sorted(info.name or store_id_text(info.id) for info in infos if not info.is_archived)


def _id_of(name: str) -> bytes | None:
    """Return the id if a name is a full store id, else None."""
    try:
        return parse_store_id(name)
    except UsageError:
        return None


class NodeStore:
    """How a handle finds its store in the process that uses it, which may be a forked child."""

    def __init__(self, stores: NodeStores, id: bytes, name: str, of: Any) -> None:
        self.stores: Final = stores
        self.id: Final = id
        self.name: Final = name
        self.of: Final = of

    def store(self) -> WeaverStore:
        """Return the store, open."""
        return self.stores.weaver.stores().open(self.id)

    def writable(self) -> WeaverStore:
        """Return the store for a write. Raises: ReadOnly: the node can only read."""
        if self.stores.read_only:
            raise ReadOnly(f"the store {self.name!r} cannot be written to: the node can only read")
        store = self.store()
        self.stores.weaver.await_fence(store)
        return store

    def subscribe(self, wake: Wake) -> Wake:
        """Call `wake` after changes of the store, also those of other processes."""
        return self.stores.weaver.subscribe(self.store(), wake)

    def peers(self) -> PeerManager:
        """Return the manager of the stores' peers."""
        return self.stores.weaver.stores().peers

    def addresses(self) -> tuple[str, ...]:
        """Return the addresses of the node that serves the folder; empty: none does."""
        served = None if self.stores.folder is None else running(self.stores.folder.path)
        if served is None or served.ticket is None:
            return ()
        # An invite has the key beside the addresses; only an iroh address needs it inside.
        found = parse_ticket(served.ticket)
        keyless = [one if one.scheme == IROH else one.with_key(None) for one in found]
        return tuple(one if "://" in one else f"tls://{one}" for one in map(str, keyless))

    def presence(self) -> list[PeerPresence]:
        """Return the running node's state of the connected peers."""
        found = self._ask(GetPresence(id=self.id))
        return [
            PeerPresence(one.key, one.equal, one.dirty, one.lag, one.compared_s, one.agreed_s)
            for one in found.peers
        ]

    def sync(self, timeout_s: float) -> list[SyncedPeer]:
        """Compare the store with its peers, through the running node, for `timeout_s` at most."""
        found = self._ask(SyncStore(id=self.id, timeout_ms=round(timeout_s * 1_000)))
        return [SyncedPeer(one.public_key, one.error or None) for one in found.peers]

    def _ask(self, request: ActionRequest[M]) -> M:
        """Perform an action in the node that serves the folder.

        Raises: PeerUnavailable: no node runs.
        """
        folder = self.stores.folder
        client = None if folder is None else connect(folder.path)
        if client is None:
            where = "memory" if folder is None else str(folder.path)
            raise PeerUnavailable(f"no node runs in {where}; start one with `lattice node start`")
        with client:
            return client.call(request)

    def hold(self, name: str) -> Callable[[], None]:
        """Take the lock with this name on this machine; return its release."""
        return self.stores.binding.hold(name)

    def reopening(self) -> tuple[Callable[..., StoreHandle], tuple[Any, ...]]:
        """Return a function and its arguments that make this handle in another process.

        Raises: UsageError: the node is in memory.
        """
        origin = self.stores.binding.origin
        if origin is None:
            raise UsageError("a store in memory cannot be pickled: its data is in this process")
        machine = type(self.store().machine)
        # Machines of this package are found by the stored kind; others are pickled as classes.
        kind = None if machine in CORE_MACHINES else machine
        return self.stores.reopen, (*origin, store_id_text(self.id), kind, self.of)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NodeStore) and (self.id, self.stores) == (other.id, other.stores)

    def __hash__(self) -> int:
        return hash(self.id)
