"""Stores: all stores of a node, in one engine, and the tree that they form.

    stores = Stores(GroupCommit(engine), key, SystemClock(), SystemEntropy())
    team = stores.create("kv", "team")
    notes = stores.create("kv", "notes", parent=team.id)

A store may declare others as its children, and a declaration is replicated as any other data: each
node opens the children of the stores it has, and closes those that were archived. The inventory
says which stores this node has; it is local and never sent.

Length: one object a node, whose parts (life, tree, inventory) change the same three dictionaries.

Source: docs/weaver.md "Stores and their children"; docs/design/weaver.md "Tables of a store"
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Annotated, Final, NamedTuple

from datalattice.clock import Clock
from datalattice.crypto import Entropy, KeyPair
from datalattice.cursors import Listeners
from datalattice.engine import GroupCommit, GroupTxn, ReadTxn, WriteTxn, section
from datalattice.errors import (
    AlreadyExists,
    DataLatticeError,
    NoSuchPath,
    StoreClosed,
    UsageError,
)
from datalattice.protobuf import Field, Message
from datalattice.weaver.appendlog import LogMachine
from datalattice.weaver.events import EVENTS
from datalattice.weaver.fence import FENCE, Doubt, arrive, doubt_of, is_at, settle, suspect
from datalattice.weaver.intention import LOG_LIMITS, LogLimits
from datalattice.weaver.invite import InviteToken
from datalattice.weaver.kv import KvMachine
from datalattice.weaver.log import IntentionLog
from datalattice.weaver.machine import Machine, Proposal
from datalattice.weaver.null import NullMachine
from datalattice.weaver.policy import PeerManager, PeerPolicy, activation
from datalattice.weaver.rows import HEAD_KEY, LOG_META, LOG_TABLES, read_head
from datalattice.weaver.state import State
from datalattice.weaver.store import (
    CONSUMERS_TABLE,
    REQUESTS,
    Once,
    StoreView,
    WeaverStore,
    run_once,
    store_prefix,
)
from datalattice.weaver.storeid import new_store_id, parse_store_id, store_id_text
from datalattice.weaver.system import (
    Child,
    SystemBatch,
    SystemEvent,
    SystemEventKind,
    SystemLayer,
    SystemReader,
)
from datalattice.weaver.systemops import (
    INDEPENDENT,
    INHERITED,
    ChildStatus,
    PeerStrategy,
    genesis_payload,
    synthetic_genesis,
)
from datalattice.weaver.tables import STATE_SYSTEM, STATE_TABLES, TableReader

INVENTORY: Final = "stores"

STORE_TABLES: Final = (
    *LOG_TABLES,
    *STATE_TABLES,
    CONSUMERS_TABLE,
    EVENTS,
    INVENTORY,
    FENCE,
    REQUESTS,
)
"""The tables that the engine of a node needs."""

STORE_NAME_BYTES_MAX: Final = 255
"""Longest name of a store that is made here; those of other nodes are shown as they are."""

# A declaration may be a peer's: without a bound a tree could grow without end.
STORE_TREE_DEPTH_MAX: Final = 32
"""Most stores from a root down to a child, both counted."""

_PREFIX_DIGITS_MIN: Final = 4
"""Fewest digits of an id that name a store."""

CORE_MACHINES: Final[tuple[type[Machine], ...]] = (KvMachine, LogMachine, NullMachine)

_WATCHED: Final = (
    SystemEventKind.CHILD_LINK_UPDATED,
    SystemEventKind.CHILD_LINK_REMOVED,
    SystemEventKind.CHILD_STATUS_UPDATED,
    SystemEventKind.BOOTSTRAP_COMPLETE,
)


_log = logging.getLogger("datalattice.weaver")


class _Record(Message, name="lattice.meta.StoreRecord"):
    """A row of the inventory, by store id.

    number: begins all keys of the store. inviter, addresses: those of the invite by which this node
    joined it. is_copied: its log was copied from the inviter, so its system table has its peers.
    """

    parent_id: Annotated[bytes, Field(1)] = b""
    created_at: Annotated[int, Field(2, "uint64")] = 0
    store_type: Annotated[str, Field(3)] = ""
    number: Annotated[int, Field(4, "uint32")] = 0
    created_here: Annotated[bool, Field(5)] = False
    inviter: Annotated[bytes, Field(6)] = b""
    addresses: Annotated[tuple[str, ...], Field(7)] = ()
    is_copied: Annotated[bool, Field(8)] = False


class StoreOrigin(NamedTuple):
    """How this node joined a store: by whose invite, at which addresses, and whether as a copy."""

    inviter: bytes
    addresses: tuple[str, ...]
    is_copied: bool


@dataclass(frozen=True, slots=True)
class StoreInfo:
    """A store of this node, or a child that it declares. parent: None for a root."""

    id: bytes
    kind: str
    name: str | None
    parent: bytes | None
    created_at_ms: int
    is_archived: bool = False


class Stores:
    """The stores of a node. Any thread may use it."""

    def __init__(
        self,
        commits: GroupCommit,
        key: KeyPair,
        clock: Clock,
        entropy: Entropy,
        *,
        machines: Iterable[type[Machine]] = CORE_MACHINES,
        limits: LogLimits = LOG_LIMITS,
    ) -> None:
        """Use an engine with the tables `STORE_TABLES`, by its `commits`. key: of this node."""
        self._commits = commits
        self._key = key
        self._clock = clock
        self._entropy = entropy
        self._limits = limits
        self._machines: dict[str, type[Machine]] = {}
        self._aliases: dict[str, str] = {}
        self._open: dict[bytes, WeaverStore] = {}
        self._unknown_kinds: set[bytes] = set()
        self._looked = -1
        self.peers: Final = PeerManager(self, commits, key, clock, entropy)
        """Who may do what, and invites."""
        self.on_ready: Final[Listeners[[WeaverStore]]] = Listeners()
        """Called with each store that was opened; the network serves it from then on."""
        self.on_warning: Final[Listeners[[str]]] = Listeners()
        """Called with the reason why a child was not opened; without a listener it is logged."""
        for machine in machines:
            self._add_machine(machine)

    def _warn(self, text: str) -> None:
        if self.on_warning:
            self.on_warning.tell(text)
        else:
            _log.warning(text)

    # --- kinds ------------------------------------------------------------------------------

    def register(self, machine: type[Machine]) -> None:
        """Add a kind of store; children of that kind that waited for it are opened.

        Raises: UsageError: another machine has the kind or an alias of it.
        """
        self._add_machine(machine)
        # The set is emptied first: what still fails is added again.
        waiting, self._unknown_kinds = self._unknown_kinds, set()
        for id in waiting:
            self._reconcile_quietly(id)

    def _add_machine(self, machine: type[Machine]) -> None:
        for name in (machine.kind, *machine.aliases):
            # Two machines under one name would fold one log differently.
            known = self._machines.get(self._aliases.get(name, name))
            if known is not None and known is not machine:
                raise UsageError(f"there is a machine of kind {name!r} already: {known.__name__}")
        self._machines[machine.kind] = machine
        self._aliases |= dict.fromkeys(machine.aliases, machine.kind)

    def kinds(self) -> list[str]:
        """Return the kinds of stores that can be opened, sorted."""
        return sorted(self._machines)

    def machine(self, kind: str) -> type[Machine]:
        """Return the machine of a kind or alias.

        Raises: UsageError: the kind is unknown; the text lists the known ones.
        """
        found = self._machines.get(self._aliases.get(kind, kind))
        if found is None:
            raise UsageError(
                f"no machine of kind {kind!r} is registered; there are {', '.join(self.kinds())}"
            )
        return found

    # --- life -------------------------------------------------------------------------------

    def create(
        self,
        kind: str,
        name: str | None = None,
        parent: bytes | None = None,
        *,
        peers_of: bytes | None = None,
        peer_name: str | None = None,
        exclusive: bool = False,
        once: Once | None = None,
    ) -> WeaverStore:
        """Make a store and return it open: a root, or a child of `parent` that shares its peers.

        peers_of: copy the peers of this store once, instead of sharing or beginning anew.
        peer_name: this node's name among the peers of a root.
        exclusive: refuse a name that another root, or child of the parent, has on this node.
        once: makes it unless it was made before.
        Raises: UsageError: the kind is unknown, the name has `/` or is too long, or the tree would
                be deeper than 32. AlreadyExists.
        """
        machine = self.machine(kind)
        if name is not None:
            _check_name(name)
        # "depth limit 32": here for own stores, in `_reconcile_quietly` for those of peers.
        if parent is not None and self._depth(parent) >= STORE_TREE_DEPTH_MAX:
            raise UsageError(f"stores are nested at most {STORE_TREE_DEPTH_MAX} deep")
        id = new_store_id(self._entropy)
        now_ms = self._clock.now_ms()
        # Opened before the transaction: opening writes, too.
        parent_store = None if parent is None else self.open(parent)
        source = None if peers_of is None else self.open(peers_of)
        nonce = int.from_bytes(self._entropy.bytes(4), "big")

        def work(txn: GroupTxn) -> WeaverStore:
            # In the transaction: of two processes that make a name at once, one finds it there.
            if exclusive and any(
                info.name == name for info in self._infos(txn, _records(txn), parent)
            ):
                raise AlreadyExists(f"there is a store {name!r} already")
            record = self._add_record(txn, id, machine.kind, parent, now_ms, created_here=True)
            store = self._store(id, record)
            store.open_in(txn)
            # "A new store's first intention carries GenesisOp{store_type, random nonce}."
            store.write_in(txn, Proposal(genesis_payload(machine.kind, nonce)))
            batch = SystemBatch() if name is None else SystemBatch().set_name(name)
            if source is not None:
                _copy_peers(source.system_in(txn), batch, source.id)
            elif parent is not None:
                batch.set_strategy(INHERITED)
            else:
                self._begin_peers(batch, peer_name, now_ms)
            store.write_system_in(txn, lambda _: batch)  # name, peers and strategy in one intention
            if parent_store is not None:
                declared = SystemBatch().add_child(id, name or "", machine.kind)
                declared.set_child_status(id, ChildStatus.ACTIVE)
                parent_store.write_system_in(txn, lambda _: declared)
            return store

        # One transaction: no crash leaves a child without its declaration, or the other way round.
        return self._opened(run_once(self._commits, work, once))

    def _begin_peers(self, batch: SystemBatch, peer_name: str | None, now_ms: int) -> None:
        """Make this node the first peer of a new root."""
        own = self._key.public_key
        activation(batch, own, by=own, now_ms=now_ms)
        if peer_name is not None:
            batch.set_peer_name(own, peer_name)
        batch.set_strategy(INDEPENDENT)

    def adopt(
        self, id: bytes, kind: str, parent: bytes | None = None, invite: InviteToken | None = None
    ) -> WeaverStore:
        """Take a store that another node made, empty until its intentions come.

        invite: the token by which this node joined it; it is stored, and `joined` returns it.
        Raises: UsageError: the kind is unknown.
        """
        machine = self.machine(kind)

        def work(txn: GroupTxn) -> None:
            made = _read_record(txn, id)
            if made is None:
                # No genesis: only the creator writes one.
                now_ms = self._clock.now_ms()
                made = self._add_record(txn, id, machine.kind, parent, now_ms, created_here=False)
            if invite is not None:
                made = replace(made, inviter=invite.inviter, addresses=invite.addresses)
                txn.put(INVENTORY, id, made.encode())

        self._commits.run(work)  # durable before it is opened and served
        return self.open(id)

    def joined(self) -> dict[bytes, StoreOrigin]:
        """Return the stores that this node joined by invite, by id."""
        with self._commits.read() as snapshot:
            records = _records(snapshot)
        return {
            id: StoreOrigin(record.inviter, record.addresses, record.is_copied)
            for id, record in records.items()
            if record.inviter  # roots made here and children have no inviter
        }

    def copied(self, id: bytes) -> None:
        """Note that the log of a joined store was copied from the inviter."""

        def work(txn: GroupTxn) -> None:
            record = _read_record(txn, id)
            if record is not None:
                txn.put(INVENTORY, id, replace(record, is_copied=True).encode())

        self._commits.run(work)

    def open(self, id: bytes) -> WeaverStore:
        """Return a store, opened if it is not open yet, with its children.

        Raises: NoSuchPath: this node has no such store. UsageError: its kind is not registered.
                StoreClosed: it, or a store above it, is archived. StoreIdMismatch,
                StoreTypeMismatch, StoreVersion.
        """
        found = self._open.get(id)
        if found is not None:
            return found
        record = self._record(id)
        self._check_in_use(id)
        store = self._store(id, record)
        # A reader takes the state as it is, and writes nothing.
        if not self._commits.engine.read_only:
            store.open()
            if record.created_here:
                self._complete_genesis(store)
        return self._opened(store)

    def _check_in_use(self, id: bytes) -> None:
        # "Archived stores are not offered to the network", and every open store is.
        child = id
        with self._commits.read() as snapshot:
            for parent in self._ancestors(id):
                record = _read_record(snapshot, parent)
                declared = {} if record is None else self._system(snapshot, record).children()
                if child in declared and declared[child].status is ChildStatus.ARCHIVED:
                    raise StoreClosed(
                        f"store {declared[child].name!r} is archived; `lattice store archive "
                        f"{store_id_text(parent)} {store_id_text(child)} --restore` brings it back"
                    )
                child = parent

    def _opened(self, store: WeaverStore) -> WeaverStore:
        # Of two threads that open one store, both get the store of the first.
        kept = self._open.setdefault(store.id, store)
        if kept is store:
            store.on_system(lambda event: self._watch(store, event))
            self.on_ready.tell(store)
            self._reconcile_quietly(store.id)
        return kept

    def _complete_genesis(self, store: WeaverStore) -> None:
        """Add the genesis to a store that was made before there was one."""
        with store.read() as view:
            is_old = view.last_seq() > 0 and view.genesis() is None
        if is_old:  # an empty store has still to be filled: its genesis comes from the creator
            store.ingest([synthetic_genesis(store.id, store.kind).encode()])

    def open_all(self) -> list[WeaverStore]:
        """Open every root with all below it; a store that cannot be opened is a warning."""
        for info in self.list():
            try:
                self.open(info.id)
            except DataLatticeError as error:
                self._warn(f"store {store_id_text(info.id)} was not opened: {error}")
        return list(self._open.values())

    @property
    def has_news(self) -> bool:
        """Whether any process has committed since the last look. Cost: one number of the engine."""
        return self._last_commit != self._looked

    @property
    def _last_commit(self) -> int:
        try:
            return self._commits.engine.last_commit
        except StoreClosed:
            return self._looked  # another thread has closed the engine: nothing waits any more

    def look(self) -> bool:
        """Wake what waits for changes of open stores if any process has committed.

        Children that another process has declared, archived or restored are opened or closed.

        Returns: whether anything was committed since the last look.
        Cost:    one number of the engine if not, however many stores are open.
        """
        number = self._last_commit
        if number == self._looked:
            return False
        self._looked = number  # a commit after this line is met by the next look
        for store in self.opened():
            if store.look():
                # "Every node that has the parent opens the child": also one that another process
                # has declared (docs/weaver.md); only the process that commits hears the event.
                self._reconcile_quietly(store.id)
        return True

    def has_more(self) -> bool:
        """Return whether the inventory has a root that is not open: another process made it."""
        with self._commits.read() as snapshot:
            return any(
                id not in self._open and not _Record.decode(row).parent_id
                for id, row in snapshot.scan(INVENTORY)
            )

    @contextmanager
    def view(self, id: bytes) -> Iterator[StoreView]:
        """Give a store as it is now, open or not, also one whose kind is not registered.

        Raises: NoSuchPath: this node has no such store.
        """
        record = self._record(id)
        log = IntentionLog(id, self._key, self._clock, self._limits)
        state = State(id, SystemLayer(NullMachine()), log)  # reading does not ask the machine
        with self._commits.read() as snapshot:
            yield StoreView(section(snapshot, store_prefix(record.number)), log, state)

    def get(self, id: bytes) -> WeaverStore | None:
        """Return a store if it is open."""
        return self._open.get(id)

    def opened(self) -> list[WeaverStore]:
        """Return the open stores: what a network may serve."""
        return list(self._open.values())

    def close(self, id: bytes) -> None:
        """Close a store and all below it; its data stays."""
        # Children first: a child without its parent has no policy.
        for child in self._children_open(id):
            self.close(child)
        store = self._open.pop(id, None)
        self.peers.forget(id)
        if store is not None:
            store.close()

    def close_all(self) -> None:
        """Close every store."""
        for store in list(self._open.values()):
            store.close()
        self._open.clear()

    def tick(self) -> None:
        """Write the acknowledgements that are due; call it regularly."""
        for store in list(self._open.values()):
            with suppress(StoreClosed):  # another thread has closed it just now
                store.tick()

    # --- the fence --------------------------------------------------------------------------

    def arrive(self, place: str) -> None:
        """Store where the engine's file is; if it was copied, restored or moved, refuse own writes.

        They are refused in each store that has other peers, until one of these was asked.
        place: a text that differs in a copy, and after a move to another disk.
        """
        # Looked up first: nearly every start finds it in place, and then commits nothing.
        with self._commits.read() as snapshot:
            if is_at(snapshot, self._key.public_key, place):
                return

        def work(txn: GroupTxn) -> None:
            if arrive(txn, self._key.public_key, place, lambda: self._shared(txn)):
                for _, row in list(txn.scan(INVENTORY)):
                    _seal_again(section(txn, store_prefix(_Record.decode(row).number)), self._key)

        self._commits.run(work)

    def doubts(self) -> dict[bytes, Doubt]:
        """Return the stores in which intentions of this node may be missing, and why."""
        with self._commits.read() as snapshot:
            found = {id: doubt_of(snapshot, id) for id, _ in snapshot.scan(INVENTORY)}
        return {id: doubt for id, doubt in found.items() if doubt is not None}

    def accept_unasked(self) -> None:
        """Allow writes to all stores before a peer was asked.

        If this node has written elsewhere, its next write is a fork.
        """

        def work(txn: GroupTxn) -> None:
            for id in doubts:
                settle(txn, id, asked=False)

        doubts = [id for id, doubt in self.doubts().items() if doubt.refuses]
        if doubts:
            self._commits.run(work)

    def suspect_all(self, doubt: Doubt, *, only: Doubt | None = None) -> None:
        """Refuse own writes in all stores that have other peers. only: those in this doubt."""

        def work(txn: GroupTxn) -> None:
            for id in list(self._shared(txn)):
                if only is None or doubt_of(txn, id) is only:
                    suspect(txn, id, doubt)

        self._commits.run(work)
        for store in self.opened():
            store.tell_doubt()

    def _shared(self, txn: GroupTxn) -> Iterator[bytes]:
        """Yield the stores that have other peers than this node, open or not."""
        records = _records(txn)
        for id in records:
            holder = self._peer_holder(txn, records, id)
            if set(PeerPolicy(self._system(txn, holder).peers).authors()) - {self._key.public_key}:
                yield id

    def _peer_holder(self, txn: GroupTxn, records: dict[bytes, _Record], id: bytes) -> _Record:
        """Return the record of the store whose peers a store has, as `PeerManager` finds it."""
        record = records[id]
        for _ in range(STORE_TREE_DEPTH_MAX):
            part = section(txn, store_prefix(record.number))
            # A child whose log has not come yet has no strategy; only peers of its parent send it.
            inherits = self._system(txn, record).strategy().inherited or read_head(part).seq == 0
            above = records.get(record.parent_id)
            if above is None or not inherits:
                break
            record = above
        return record

    # --- the tree ---------------------------------------------------------------------------

    def archive(self, parent: bytes, child: bytes) -> None:
        """Take a child out of use on all nodes. Its data stays; `restore` brings it back.

        Raises: NoSuchPath: the parent declares no such child.
        """
        self._set_child_status(parent, child, ChildStatus.ARCHIVED)

    def restore(self, parent: bytes, child: bytes) -> None:
        """Bring an archived child back, with all below it."""
        self._set_child_status(parent, child, ChildStatus.ACTIVE)

    def _set_child_status(self, parent: bytes, child: bytes, status: ChildStatus) -> None:
        store = self.open(parent)
        with store.read() as view:
            # A status without a declaration would make a child of nothing.
            if child not in view.system.children():
                raise NoSuchPath(
                    f"store {store_id_text(parent)} has no child {store_id_text(child)}"
                )
        if status is ChildStatus.ARCHIVED:
            # "first close all descendants locally depth first, then write status archived"
            self.close(child)
        store.write_system(SystemBatch().set_child_status(child, status))

    def _watch(self, store: WeaverStore, event: SystemEvent) -> None:
        """React to a committed change of a store's children."""
        if event.kind in _WATCHED:
            self._reconcile_quietly(store.id)

    def _reconcile_quietly(self, id: bytes) -> None:
        """Open and close children as they are declared; what fails is a warning.

        It runs after the commit that changed the declaration, whose writer must not fail for it.
        """
        store = self._open.get(id)
        if store is None:
            return
        try:
            with store.read() as view:
                children = view.system.children()
        except DataLatticeError as error:
            self._warn(f"the children of {store_id_text(id)} were not read: {error}")
            return
        for open_child in self._children_open(id):
            child = children.get(open_child)
            if child is None or child.status is ChildStatus.ARCHIVED:
                self.close(open_child)
        line = {id, *self._ancestors(id)}
        for child in children.values():
            # A peer may declare anything: itself, a store above, or a tree without end.
            is_loop = child.store_id in line
            if child.status is ChildStatus.ARCHIVED or is_loop or len(line) >= STORE_TREE_DEPTH_MAX:
                continue
            if child.store_id not in self._open:
                self._open_child(id, child)

    def _open_child(self, parent: bytes, child: Child) -> None:
        # A reader cannot add it to the inventory.
        if self._commits.engine.read_only and not self.has(child.store_id):
            return
        try:
            if self.has(child.store_id):
                self.open(child.store_id)
            else:
                self.adopt(child.store_id, child.kind, parent)
        except DataLatticeError as error:
            # Decided by the registered kinds: the error's text is for people.
            if self._aliases.get(child.kind, child.kind) not in self._machines:
                self._unknown_kinds.add(parent)  # tried again when a machine is registered
            text = store_id_text(child.store_id)
            self._warn(f"child {child.name!r} ({text}) was not opened: {error}")

    def _children_open(self, parent: bytes) -> list[bytes]:
        return [id for id, store in self._open.items() if store.parent == parent]

    def parent_of(self, id: bytes) -> bytes | None:
        """Return the store that a store is a child of, None for a root."""
        store = self._open.get(id)
        if store is not None:
            return store.parent
        with self._commits.read() as snapshot:
            record = _read_record(snapshot, id)
        return (record.parent_id or None) if record is not None else None

    def _ancestors(self, id: bytes) -> Iterator[bytes]:
        """Yield the stores above one, the nearest first."""
        for _ in range(STORE_TREE_DEPTH_MAX):  # a loop in damaged records ends here
            parent = self.parent_of(id)
            if parent is None:
                return
            yield parent
            id = parent

    def _depth(self, id: bytes) -> int:
        return 1 + sum(1 for _ in self._ancestors(id))

    # --- inventory --------------------------------------------------------------------------

    def list(self, parent: bytes | None = None) -> Sequence[StoreInfo]:
        """Return the roots, or the children that a store declares, archived ones included."""
        with self._commits.read() as snapshot:
            return self._infos(snapshot, _records(snapshot), parent)

    def _infos(
        self, txn: ReadTxn, records: dict[bytes, _Record], parent: bytes | None
    ) -> Sequence[StoreInfo]:
        if parent is None:
            return [
                _info(id, record, self._system(txn, record).name())
                for id, record in records.items()
                if not record.parent_id
            ]
        if parent not in records:
            raise NoSuchPath(f"there is no store {store_id_text(parent)} here")
        return [
            _info(
                child.store_id,
                # Not in the inventory if this node could not adopt it: its kind may be unknown.
                records.get(child.store_id, _Record(parent, 0, child.kind)),
                child.name,
                is_archived=child.status is ChildStatus.ARCHIVED,
            )
            for child in self._system(txn, records[parent]).children().values()
        ]

    def find(self, name: str, parent: bytes | None = None) -> StoreInfo | None:
        """Return the root, or the child of `parent`, with a name; None if it is missing.

        name: the name; an id, or its first 4 or more digits where no store has that name, which
            find a store at any depth; or names from a root down, with `/` between.
        Raises: UsageError: several have it; the text lists their ids.
        """
        there = self.list(parent)
        # Names first: a name that looks like an id is what its owner called the store.
        found: Sequence[StoreInfo] = [info for info in there if info.name == name]
        if not found:
            found = self._with_id(name)
        if not found and "/" in name:
            front, _, rest = name.partition("/")
            above_info = self.find(front, parent)
            return None if above_info is None else self.find(rest, above_info.id)
        if not found:
            digits = name.replace("-", "").lower()
            if len(digits) >= _PREFIX_DIGITS_MIN:
                found = there if parent is not None else self._anywhere()
                found = [info for info in found if info.id.hex().startswith(digits)]
        if len(found) > 1:  # "use the id": a guess would open the wrong store
            ids = ", ".join(store_id_text(info.id) for info in found)
            raise UsageError(f"{len(found)} stores are called {name!r}; use the id: {ids}")
        return found[0] if found else None

    def missing(self, name: str, hint: str) -> NoSuchPath:
        """Return the error for a name that finds no store; it lists the children with that name.

        hint: what the error says instead if there are none.
        """
        paths = self.children_named(name)
        if paths:
            hint = f"a child is named with its parents, or by its id: {', '.join(paths)}"
        return NoSuchPath(f"there is no store {name!r}; {hint}")

    def children_named(self, name: str) -> Sequence[str]:
        """Return the children with a name, at any depth, as `find` takes them: 'TEAM/NAME'."""
        by_id = {info.id: info for info in self._anywhere()}

        def path(info: StoreInfo) -> str:
            text = info.name or store_id_text(info.id)
            above = None if info.parent is None else by_id.get(info.parent)
            return text if above is None else f"{path(above)}/{text}"

        named = [info for info in by_id.values() if info.name == name and info.parent is not None]
        return sorted(path(info) for info in named)

    def _anywhere(self) -> Sequence[StoreInfo]:
        with self._commits.read() as snapshot:
            records = _records(snapshot)
            parents = {None} | {record.parent_id or None for record in records.values()}
            return [
                info
                for parent in parents
                if parent is None or parent in records
                for info in self._infos(snapshot, records, parent)
            ]

    def _with_id(self, text: str) -> Sequence[StoreInfo]:
        """Return the store whose full id a text is, none for any other text."""
        try:
            id = parse_store_id(text)
        except UsageError:
            return []
        if not self.has(id):
            return []
        above = self._record(id).parent_id or None
        return [info for info in self.list(above) if info.id == id]

    def _add_record(
        self,
        txn: GroupTxn,
        id: bytes,
        kind: str,
        parent: bytes | None,
        now_ms: int,
        *,
        created_here: bool,
    ) -> _Record:
        # Records are never removed, so their count is the last number in use.
        number = txn.count(INVENTORY) + 1
        record = _Record(parent or b"", now_ms, kind, number, created_here)
        txn.put(INVENTORY, id, record.encode())
        return record

    def _record(self, id: bytes) -> _Record:
        with self._commits.read() as snapshot:
            record = _read_record(snapshot, id)
        if record is None:
            raise NoSuchPath(f"there is no store {store_id_text(id)} here")
        return record

    def _system(self, txn: ReadTxn, record: _Record) -> SystemReader:
        return SystemReader(TableReader(section(txn, store_prefix(record.number)), STATE_SYSTEM))

    def ids(self) -> Sequence[bytes]:
        """Return the ids of all stores in the inventory, open or not."""
        with self._commits.read() as snapshot:
            return [id for id, _ in snapshot.scan(INVENTORY)]

    def has(self, id: bytes) -> bool:
        """Return whether the inventory has a store, open or not."""
        with self._commits.read() as snapshot:
            return _read_record(snapshot, id) is not None

    def _store(self, id: bytes, record: _Record) -> WeaverStore:
        return WeaverStore(
            self._commits,
            record.number,
            id,
            self.machine(record.store_type)(),
            self._key,
            self._clock,
            self._limits,
            parent=record.parent_id or None,
        )


def _check_name(name: str) -> None:
    if not name or "/" in name:
        # `find` reads a slash as the way from a store to its child.
        raise UsageError(f"a store's name is not empty and has no '/', got {name!r}")
    try:
        size = len(name.encode())
    except UnicodeEncodeError as error:
        raise UsageError(f"a store's name is text that UTF-8 can encode, got {name!r}") from error
    if size > STORE_NAME_BYTES_MAX:
        raise UsageError(f"a store's name has at most {STORE_NAME_BYTES_MAX} bytes, got {size}")


def _seal_again(part: WriteTxn, key: KeyPair) -> None:
    """Seal the newest record of a log with the new key of the node."""
    head = read_head(part)
    if head.seq:
        part.put(LOG_META, HEAD_KEY, replace(head, seal=key.seal(head.content_hash)).encode())


def _copy_peers(source: SystemReader, batch: SystemBatch, source_id: bytes) -> None:
    """Add the peers of another store as they are now."""
    for peer in source.peers().values():
        batch.set_peer_status(peer.public_key, peer.status)
        if peer.name is not None:
            batch.set_peer_name(peer.public_key, peer.name)
    batch.set_strategy(PeerStrategy(snapshot=source_id))


def _records(txn: ReadTxn) -> dict[bytes, _Record]:
    return {id: _Record.decode(row) for id, row in txn.scan(INVENTORY)}


def _read_record(txn: ReadTxn, id: bytes) -> _Record | None:
    row = txn.get(INVENTORY, id)
    return None if row is None else _Record.decode(row)


def _info(id: bytes, record: _Record, name: str | None, *, is_archived: bool = False) -> StoreInfo:
    return StoreInfo(
        id, record.store_type, name, record.parent_id or None, record.created_at, is_archived
    )
