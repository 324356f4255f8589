"""Node server: a running node, with a store, a lattice and a network.

    async with open_node("data", key_pair=key, port=0, peers=["10.0.0.7:18888"]) as node:
        node.cursor.path(...).set(...)
        await node.sync()                 # durable here, on its way to the peers

Threads: the event loop moves bytes and keeps connections. A lane, on a small pool of threads, uses
the replicator and the store. Any thread may change the cursor; `cursor.sync()` returns when the
writes are durable.

Source: docs/node.md.
Length: the parts of a node are combined, started and closed in order here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final, Self, TypedDict, TypeVar, Unpack

import datalattice.apps  # noqa: F401 - registers the sections of the root lattice
from datalattice.cells import Value
from datalattice.client import Progress, parse_ticket
from datalattice.client.fence import OwnHistory, owned_paths
from datalattice.client.settings import NodeConfig, parse_owner, partial_paths
from datalattice.clock import Clock, SystemClock
from datalattice.crypto import Entropy, KeyPair, KeyRing, SystemEntropy
from datalattice.cursors import RootLattice
from datalattice.errors import (
    NoSigningKey,
    PeerUnavailable,
    StoreError,
    StoreFailed,
    StoreFull,
    Timeout,
    UsageError,
)
from datalattice.lattice import Lattice, MergeContext, Verifier, root_lattice
from datalattice.node.backup import Backup
from datalattice.node.connection import Connection
from datalattice.node.directory import publish
from datalattice.node.fencing import Fence, FencePeers
from datalattice.node.grids import AuthorityWatch, web_keys
from datalattice.node.heal import Healer
from datalattice.node.hosts import Host, Hosts
from datalattice.node.housekeeping import Housekeeper
from datalattice.node.latticehost import LatticeLedger, PullWaiters, read_lane, unwritten
from datalattice.node.logs import log_event
from datalattice.node.monitor import Monitor
from datalattice.node.network import Network
from datalattice.node.observe import Observer
from datalattice.node.peers import PeerInfo
from datalattice.node.status import FORKS, LaneStatus, fork_trouble
from datalattice.node.transport import NodeTransport, Transport, host_port
from datalattice.store import CellStore, CheckedCells, Fetch, Healing, Store
from datalattice.sync import (
    Effects,
    LatticeProtocol,
    LatticeReplica,
    NodeStart,
    Replica,
    Replicator,
    WireProtocol,
    owner_text,
)
from datalattice.wire import LATTICE, Framing

PULL_TIMEOUT_S: Final = 30.0
LAST_PUBLICATION_S: Final = 10.0  # a closing node waits this long for its last writes to be durable
LAST_FRAMES_S: Final = 1.0  # and this long for its last frames to leave
CONDITION_S: Final = 0.05  # `wait_until` checks its condition this often without a change
_WRITER_WAIT_S: Final = 5.0  # a writing program yields after its write, on a slow disk as well

R = TypeVar("R", bound=Replica)


class NodeParts(TypedDict, total=False):
    """The parts of a node beside its store and its settings; all have defaults.

    identity: the key that this node proves to peers, and that owns its `:local` slot.
    keys:     the keys of the owners that it writes for. Its own operations write under the first
              key, or under the identity if there is none.
    key_pair: one key for both. Without any key, writes below owners fail.
    lattice:  the lattice of the root value; by default the standard root lattice.
    verifier: decides which keys may sign for an owner, in place of the keys of `did:web`.
    backups:  further stores that are kept at the latest value.
    """

    key_pair: KeyPair | None
    identity: KeyPair | None
    keys: Iterable[KeyPair]
    lattice: Lattice | None
    verifier: Verifier | None
    clock: Clock | None
    entropy: Entropy | None
    transport: Transport | None
    backups: Iterable[Backup]


def open_node(
    store: str | os.PathLike[str] | Store,
    *,
    port: int | None = None,
    bind: str = "127.0.0.1",
    peers: Iterable[str] = (),
    accept_unfenced: bool = False,
    config: NodeConfig | None = None,
    **parts: Unpack[NodeParts],
) -> NodeServer:
    """Return a node, to be started by `async with`.

    store:  a folder, which the node opens and closes; or an open store, which stays open.
    accept_unfenced: write in a copied, restored or moved folder although no peer can be asked.
    config: all settings; it replaces port, bind, peers and accept_unfenced.
    Raises: UsageError: an option is wrong. Errors of the folder are raised by the start.
    """
    config = config or NodeConfig(
        port=port, bind=bind, peers=tuple(peers), accept_unfenced=accept_unfenced
    )
    return NodeServer(store, config, **parts)


class NodeServer:
    """A running node.

    Methods belong to the event loop it was started in; the cursor may be used on any thread.
    """

    def __init__(
        self,
        store: str | os.PathLike[str] | Store,
        config: NodeConfig,
        *,
        key_pair: KeyPair | None = None,
        identity: KeyPair | None = None,
        keys: Iterable[KeyPair] = (),
        lattice: Lattice | None = None,
        verifier: Verifier | None = None,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
        transport: Transport | None = None,
        backups: Iterable[Backup] = (),
    ) -> None:
        self.identity, self.owner, ring = _node_keys(key_pair, identity, keys)
        # An entry of `:p2p :nodes` counts only with the signature of its own key.
        if config.url is not None and self.identity is None:
            raise NoSigningKey("a node signs the url it publishes, so it needs a key pair")
        self.config = config
        self.clock = clock or SystemClock()
        self._entropy = entropy or SystemEntropy()
        self.observer = Observer()
        self._given = store
        self._lattice = lattice or root_lattice()
        # A verifier given by the program replaces the look-up of `did:web` keys.
        known = None if verifier is not None else web_keys(config.did_web, self.clock)
        self._authority = None if known is None else AuthorityWatch(self.pull, known)
        self._context = MergeContext(key_pair=self.identity, verifier=verifier or known, keys=ring)
        # A node without a key encrypts its links under a key made for this run.
        proved = self.identity or KeyPair.generate()
        self._network = Network(
            config,
            transport or NodeTransport(proved, plain=config.plain, iroh=config.iroh),
            proved.public_key,
            self.observer,
            self.clock,
            self._entropy,
        )
        self._partial = partial_paths(config, self._lattice)
        self._hosts = Hosts(self.observer)
        self.backups = tuple(backups)
        for one in self.backups:
            if not isinstance(one, Backup):
                raise UsageError(f"backups are Backup(store) each, got {one!r}")
        self._watched_owners = frozenset(map(parse_owner, config.watched_owners))
        self._backing: list[Backup] = []  # those that were started
        self._pulls = PullWaiters()
        paths = owned_paths(self._lattice, self._context, has_venue=config.venue)
        self._fence = Fence(
            config,
            self.observer,
            OwnHistory(self.identity, self.clock, self._entropy, is_writer=bool(paths)),
            paths,
            FencePeers(lambda: self.peers, self._network.to_peers, self._ask_for),
        )
        self._network.peers.changed = self._fence.woken
        self._changed = asyncio.Event()
        self._watcher_count = 0
        self._closing = False
        self.monitor = Monitor(self, self._network, time.monotonic)
        self._network.linked = self.monitor.linked

    # --- life ---------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self.start()
        try:
            await self._fence.settled()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Open the store, announce its value, listen, and dial the peers.

        Writes below owners wait until peers were asked (see `fenced`); `async with` waits for that.
        Raises: StoreError: the store cannot be opened. UsageError: the port is in use.
        """
        self._owned: CellStore | None = None
        if isinstance(self._given, Store):
            self._store: Store = self._given
        else:
            path, cache_bytes = Path(self._given), self.config.cache_bytes
            self._store = self._owned = await asyncio.to_thread(
                CellStore.open, path, cache_bytes=cache_bytes, wait_s=_WRITER_WAIT_S
            )
        try:
            await self._fence.look(self._store)
            self._host = await self._lattice_host()
            # Noted one by one, so that a failing start ends the backups that were started.
            for backup in self.backups:
                backup.start(self._store, self.observer, self._lattice)
                self._backing.append(backup)
            self._back_up()  # before the lane begins, so that its later commits replace this one
            await self._network.listen(self._hosts)
            await self.monitor.start(self.config)
        except BaseException:
            await self._network.close()
            await self._end_backups()
            if self._owned is not None:
                self._owned.close()
            raise
        # Effects may reach the network from here on: it listens and knows the hosts.
        self._host.start(self._network.carry_out)
        self._healer.start()
        self.housekeeper.start()
        if self._authority is not None:
            self._authority.start()
        try:
            if self.config.url is not None:
                key = self._network.own_key
                # A node on a full disk still serves; its healer retries the write.
                with contextlib.suppress(StoreFull):
                    await asyncio.to_thread(publish, self.cursor, key, self.config.url, self.clock)
            await self._network.connect(lambda: self.root, self.changed, self._watching)
            self._fence.begin()  # after `connect`, which adds the wanted peers
        except BaseException:
            await self.close()
            raise

    async def _lattice_host(self) -> Host[LatticeReplica]:
        """Return the host of the lattice in the store; make its healer and housekeeper."""
        self._replica = await asyncio.to_thread(
            LatticeReplica,
            self._store,
            self._lattice,
            self._context.of_copy(self._fence.copy_id),
            self._on_sync,
            self.config.hosting,
            self.clock,
            None,
            lambda owner: owner_text(owner) in self._watched_owners,
            self._fence.check,
            self.config.message_bytes_max,
        )
        self.observer.checks[FORKS] = lambda: fork_trouble(self._replica.evidence)

        def failed(error: Exception) -> None:
            self._healer.failed(error)  # made below: it needs the lane of the host

        start, pace = self._fence.start, self.config.pace
        protocol = LatticeProtocol(
            self.clock, self.config.dialect, pace, self.identity, self._entropy, start
        )
        host = Host(
            (LATTICE, b""),
            self._replica,
            Replicator(self._replica, protocol, pace),
            failed,
            self._hosts.pool,
            ledger=LatticeLedger(self._replica, self._partial),
            in_lane=self._in_lane,
            on_loop=self._on_loop,
        )
        self._hosts.add(host, Framing(self.config.bounds.message_bytes_max))
        self._healer = Healer(
            self._store, host.lane, self.observer, self.config.check_interval_ms / 1_000
        )
        self._replica.state.on_loss = self._healer.note
        self.housekeeper = Housekeeper(self._store, host, self.observer, self.config)
        hosting = self._replica.hosting
        assert hosting is not None
        # "A peer that was found counts as a stranger: its data has quotas"; the added peers have
        # none.
        hosting.rules.wanted = lambda: self._network.peers.added_keys
        return host

    async def close(self) -> None:
        """Make the last local writes durable, send them to the peers, and end.

        Raises: StoreError: the last writes could not be made durable; the text names the loss.
        """
        if self._closing:
            return
        self._closing = True
        # In this order: accept no more writes, make local writes durable, send them to peers, end
        # links, finish the lanes, close the store. Each step is made even if an earlier one fails.
        failure: StoreError | TimeoutError | None = None
        log_event(logging.INFO, "stopping", root_hash=self.root_hash)
        try:
            await self._fence.close()
            if self._authority is not None:
                await self._authority.close()
            await self.monitor.close()
            await asyncio.to_thread(self._host.lane.publish, LAST_PUBLICATION_S)
        except (StoreError, TimeoutError) as error:
            failure = error
        finally:
            await self._send_last()
            await self._network.close()
            await self._healer.close()
            await self.housekeeper.close()
            failure = failure or await self._end_hosts()
            await asyncio.to_thread(self._hosts.pool.close)
            lost = [] if failure is None else await asyncio.to_thread(self._unwritten)
            with contextlib.suppress(StoreError):  # usage is counted anew at the next start
                await asyncio.to_thread(self.housekeeper.save)
            await self._end_backups()
            for backup in self._backing:
                if not backup.is_current:
                    log_event(logging.ERROR, "backup-behind", backup=backup.name)
            try:
                if self._owned is not None:
                    await asyncio.to_thread(self._owned.close)
            finally:
                if lost:
                    text = f"{failure}; lost with this stop: {'; '.join(lost)}"
                    kind = StoreFull if isinstance(failure, StoreFull) else StoreFailed
                    raise kind(text) from failure
                if failure is not None:
                    raise failure

    def _unwritten(self) -> list[str]:
        """Return the edits that were never stored, and log them."""
        lost = unwritten(self._lattice, self._replica.root, self.cursor.get())
        for what in lost:
            log_event(logging.ERROR, "lost-unwritten", what=what)
        return lost

    async def _end_backups(self) -> None:
        await asyncio.gather(*(asyncio.to_thread(one.close) for one in self._backing))

    async def _end_hosts(self) -> StoreError | TimeoutError | None:
        """End the replicas beside the lattice; return the first error that lost writes."""
        first: StoreError | TimeoutError | None = None
        for host in self._hosts:
            if host is not self._host:
                try:
                    await self.unhost(host)
                except (StoreError, TimeoutError) as error:
                    log_event(logging.ERROR, "lost-unwritten", what=f"{host.name}: {error}")
                    first = first or error
        return first

    async def _send_last(self) -> None:
        """Send what peers have not received yet, for a short while."""
        hurry = partial(Replicator.publish, at_once=True)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_FRAMES_S):
                sent = (host.act(hurry) for host in self._hosts)
                await asyncio.gather(*sent, return_exceptions=True)
                await asyncio.gather(*(one.drained() for one in self.connections))

    # --- the fence ----------------------------------------------------------------------------

    async def fenced(self) -> None:
        """Return when writes below owners are accepted: peers have answered, or none did in time.

        Raises: Unfenced: the folder was copied, restored or moved, and no peer could be asked.
                IdentityCloned: another node runs with the identity of this one.
        """
        await self._fence.settled()
        self._fence.raise_refusal()

    @property
    def is_fenced(self) -> bool:
        """Whether a peer has answered since the start, so that writes made elsewhere are known."""
        return self._fence.is_asked

    @property
    def is_writable(self) -> bool:
        """Whether writes below owners are accepted at once; if not, `fenced` waits or raises."""
        return self._fence.is_passable

    @property
    def is_cloned(self) -> bool:
        """Whether another node runs with the identity of this one."""
        return self._fence.is_cloned

    async def _ask_for(self, connection: Connection, path: tuple[Value, ...]) -> str | None:
        return await self._pulls.ask(self._host, connection, path, is_strict=True)

    # --- the value ----------------------------------------------------------------------------

    @property
    def cursor(self) -> RootLattice:
        """The live value. Its `sync()` returns when what was written is durable."""
        return self._replica.cursor

    @property
    def root_hash(self) -> bytes:
        """The hash of the announced value: equal on nodes that have converged."""
        return self._replica.announced_hash

    @property
    def root(self) -> Value:
        """The announced value: durable, and without `:local`."""
        return self._replica.announced

    @property
    def damage(self) -> tuple[str, ...]:
        """Damaged locations of the store found so far, with file and byte."""
        return tuple(str(one) for one in self._store.damage)

    async def sync(self) -> None:
        """Make local writes durable, without blocking the event loop.

        Raises: StoreError: it could not be written.
        """
        await asyncio.to_thread(self.cursor.sync)

    def stage(self, values: Iterable[Value]) -> None:
        """Store the cells of values durably, so that a later write can refer to them.

        Raises: MissingData: a cell below them is neither here nor among them. BadFormat: one is
                malformed.
        """
        values = list(values)
        # Checked before anything is stored: the store holds no cell whose parts are missing.
        checked = CheckedCells(self._store, scanned=True)
        for value in values:
            checked.check_value(value)
        # A store that failed before may have room by now.
        self._healer.make_writable()
        self._store.put(*values)
        self._store.sync()

    async def heal(self, others: Fetch | None = None, progress: Progress | None = None) -> Healing:
        """Check every cell of the store; fetch damaged ones from the peers, then from `others`.

        Raises: UsageError: the store is in memory. StoreError: it cannot be written.
        """
        return await asyncio.to_thread(self._healer.heal, others, progress)

    async def changed(self) -> None:
        """Return at the next change of the announced value."""
        with self._watching():
            await self._changed.wait()

    @contextlib.contextmanager
    def _watching(self) -> Iterator[None]:
        # Changes wake the event loop only while something waits for them.
        self._watcher_count += 1
        try:
            yield
        finally:
            self._watcher_count -= 1

    async def wait_until(
        self, condition: Callable[[NodeServer], bool], timeout_s: float = 30.0
    ) -> None:
        """Return when `condition` holds; it is checked after every change, and every 50 ms.

        Raises: Timeout: it did not hold in time.
        """
        try:
            with self._watching():
                async with asyncio.timeout(timeout_s):
                    # Checked without a change too: a condition may depend on the state of a peer.
                    while not condition(self):
                        with contextlib.suppress(TimeoutError):
                            async with asyncio.timeout(CONDITION_S):
                                await self._changed.wait()
        except TimeoutError as error:
            raise Timeout(f"the condition was not met in {timeout_s} s") from error

    def _on_sync(self, value: Value) -> Value:
        began_s = time.perf_counter()
        self._host.lane.publish()
        self.observer.measure("publish", time.perf_counter() - began_s)
        return value

    # --- addresses and connections ------------------------------------------------------------

    @property
    def port(self) -> int | None:
        """The port that others dial, None when the node does not listen."""
        return self._network.port

    @property
    def address(self) -> str | None:
        """`host:port` that others dial."""
        return None if self.port is None else host_port(self.config.bind, self.port)

    @property
    def ticket(self) -> str | None:
        """The addresses that others dial, each with this node's key; `add_peer` takes it."""
        return self._network.ticket

    @property
    def peers(self) -> list[PeerInfo]:
        """The peers this node wants to be connected to."""
        return self._network.peers.infos

    @property
    def connection_count(self) -> int:
        """Connections in either direction."""
        return len(self._network.connections)

    @property
    def connections(self) -> list[Connection]:
        """The connections in either direction."""
        return list(self._network.connections.values())

    @property
    def held_bytes(self) -> int:
        """Bytes that wait to be received, handled or sent, over all connections."""
        return self._network.held_bytes

    @property
    def store(self) -> Store:
        """The store of a node that was started. Its root is the node's to move."""
        return self._store

    @property
    def store_folder(self) -> str | None:
        """The folder of the store, None for one in memory."""
        return self._store.path

    async def read_lane(self) -> LaneStatus:
        """Return what only the lane knows, once it has a turn."""
        return await read_lane(self._host, self._pulls, self._network.connections)

    # --- further replicas ---------------------------------------------------------------------

    def host(
        self,
        protocol: str,
        store_id: bytes,
        replica: R,
        wire: WireProtocol,
        *,
        framing: Framing | None = None,
        on_loop: Callable[[Effects], None] | None = None,
    ) -> Host[R]:
        """Replicate a further replica with the peers that it admits and that admit this node.

        It uses streams of its own, which only multiplexed connections (`tls://`) have.
        protocol, store_id: its name on every node: 1 to 64 ASCII characters, and up to 64 bytes.
        wire:    makes its conversations.
        framing: how its frames are divided.
        on_loop: as in `Host`.
        Raises: UsageError: the name is taken or too long.
                StoreClosed: the node is closed, or was not started.
        """
        host = Host(
            (protocol, store_id),
            replica,
            Replicator(replica, wire, self.config.pace),
            self.observer.failed,
            self._hosts.pool,
            on_loop=on_loop,
        )
        self._hosts.add(host, framing or Framing())
        host.start(self._network.carry_out)
        return host

    async def unhost(self, host: Host[R]) -> None:
        """Stop replicating a replica; everything written to it is durable on return.

        Raises: UsageError: it is not here. StoreError: the last writes could not be made durable.
        """
        self._hosts.remove(host)
        await host.close()

    # --- wanted peers -------------------------------------------------------------------------

    def add_peer(self, address: str | None = None, *, public_key: bytes | None = None) -> None:
        """Stay connected to a node from now on: at an address or by a ticket, with a key, or both.

        Without an address it is dialled once one is discovered. `docs/node.md` has the forms.

        Raises: UsageError: not an address, not a key, or neither.
        """
        if address is None:
            self._network.peers.add(public_key=public_key)
        else:
            self._network.want(address, public_key)

    def expect_peers(self, is_expected: Callable[[bytes], bool]) -> None:
        """Dial discovered nodes that a replica names as its peers; see `Network`."""
        self._network.expect_peers(is_expected)

    async def remove_peer(
        self, address: str | None = None, *, public_key: bytes | None = None
    ) -> None:
        """Close the connections to a peer, and stop connecting to it.

        Raises: UsageError: it is not a peer.
        """
        if address is not None and "," in address:
            address = str(parse_ticket(address)[0])
        await self._network.peers.remove(address, public_key=public_key)

    async def pull(self, address: str | None = None, timeout_s: float = PULL_TIMEOUT_S) -> None:
        """Merge everything that one connected peer has, or all of them; durable on return.

        Raises: PeerUnavailable: not connected, or it did not deliver. Timeout: it took too long.
        """
        # Only connected peers are asked: a peer that is dialled later states its root by itself.
        chosen = self._network.to_peers(address)
        if not chosen:
            whom = "any peer" if address is None else address
            raise PeerUnavailable(f"not connected to {whom}")
        await self._pulls.pull(self._host, chosen, timeout_s)

    def fetch_cells(self, hashes: Sequence[bytes]) -> None:
        """Ask every peer for cells by hash, and store them. Any thread may call it."""
        self._host.lane.submit(lambda replicator, now_ms: replicator.acquire(hashes, now_ms))

    def look_for_more(self) -> None:
        """Ask every peer for its root: values that were refused before may be accepted now."""
        ids = [connection.id for connection in self._network.to_peers()]

        def ask(replicator: Replicator, now_ms: int) -> None:
            for id in ids:
                replicator.pull(id, None, now_ms)

        self._host.lane.submit(ask)

    # --- effects of the lattice ---------------------------------------------------------------

    def _in_lane(self, effects: Effects) -> bool:
        """Handle effects in the lane; return whether something on the loop waits for a change."""
        if effects.changed:  # committed: effects are delivered when they are durable
            self.observer.changed()
            self._back_up()
        self._healer.settle(effects)
        return bool(self._watcher_count) and effects.changed

    def _back_up(self) -> None:
        for backup in self._backing:
            backup.offer(self._replica.root)

    def _on_loop(self, effects: Effects) -> None:
        """Handle effects on the event loop, after they were carried out."""
        for token, error in effects.finished:  # pulls: durable here, or why not
            self._pulls.finished(token, error)
        for twin in effects.twins:
            assert isinstance(twin, NodeStart)
            self._fence.cloned(twin)
        if effects.changed:
            # A new event each time, so that each waiter sees one change and then waits again.
            self._changed.set()
            self._changed = asyncio.Event()


def _node_keys(
    key_pair: KeyPair | None, identity: KeyPair | None, keys: Iterable[KeyPair]
) -> tuple[KeyPair | None, KeyPair | None, KeyRing]:
    """Return (identity, key that the node's own operations write under, ring of owners' keys)."""
    given = tuple(keys)
    if key_pair is not None:
        if identity is not None or given:
            raise UsageError("key_pair stands for identity and keys: give it, or these two")
        return key_pair, key_pair, KeyRing(key_pair)
    if given and identity is None:
        # A generated identity would count as a new device at each start.
        raise UsageError("a node with owners' keys needs an identity of its own: give identity=")
    return identity, given[0] if given else identity, KeyRing(*given)
