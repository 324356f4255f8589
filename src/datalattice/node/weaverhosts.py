"""Weaver hosts: the Weaver stores of a node on its network, and how it joins others.

Every open store is a replica of its own, with the peers that its data names. A node with an invite
asks to join on a further stream, which is only for joining.

    stores -> on_ready -> host       a store that is opened, created or joined is replicated
    system event -> all hosts        peers may have changed, also those that a child inherits
    commit -> publish                writes of this process are pushed at once, those of another
                                     process within 50 ms, and within 5 where they follow others

Source: Weaver specification "NetworkService"; docs/weaver.md "On the network".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from datalattice.actions import JoinFailed, NodeEvent, StoreReady, StoreSynced
from datalattice.client import WeaverFolder, parse_address
from datalattice.crypto import Entropy
from datalattice.cursors import EventRing
from datalattice.errors import (
    DataLatticeError,
    IdentityCloned,
    NoSuchPath,
    Timeout,
    Unauthorized,
    Unfenced,
    UsageError,
)
from datalattice.node.hosts import Host
from datalattice.node.logs import log_event
from datalattice.node.server import NodeServer
from datalattice.node.weavercells import MISSING_CELLS, NamedCells
from datalattice.node.weaverpeers import on_finished, presences, synchronise
from datalattice.sync import Absorbed, Pull, Replicator
from datalattice.sync.weaver import (
    FRAMING,
    JOIN_PROTOCOL,
    WEAVER_PROTOCOL,
    Application,
    JoinReplica,
    WeaverProtocol,
    WeaverReplica,
)
from datalattice.weaver import (
    Doubt,
    InviteToken,
    PeerPresence,
    Stores,
    SyncedPeer,
    WeaverStore,
    store_id_text,
)

WEAVER_WRITES: Final = "weaver-writes"
"""Health key: own writes of a store are refused, or forked, or made without asking a peer."""

_LOOK_S: Final = 0.05
"""How often the node checks whether another process has written to a store or created one."""

QUICK_LOOK_S: Final = 0.002
"""How often it checks for `QUICK_S` after a commit, since further ones may follow. An idle node
checks less often."""

QUICK_S: Final = 1.0

LOOK_SHARE: Final = 10
"""A look at all stores takes a tenth of the time at most."""

OWN_FORK: Final = (
    "your key wrote two histories of store {store}; one of them is not in its log: run `lattice "
    "store forks {store}`"
)

JOIN_TIMEOUT_S: Final = 30.0
"""How long a node waits for the answer to an invite, including the time to connect."""


class WeaverHosts:
    """The stores of one node on its network. Used in the node's event loop."""

    def __init__(
        self,
        node: NodeServer,
        folder: WeaverFolder,
        entropy: Entropy,
        events: EventRing[NodeEvent] | None = None,
    ) -> None:
        """events: gets what happens to the stores."""
        self._folder = folder
        self._events: Final = events or EventRing()
        self._node = node
        self._entropy = entropy
        self._hosts: dict[bytes, Host[WeaverReplica]] = {}
        self._sources: dict[bytes, bytes] = {}
        """Inviters of stores that are not copied yet: trusted until then."""
        self._ends: list[Callable[[], object]] = []
        self._looking: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._is_begun = self._is_cloned = False
        self._quick_until_s = 0.0
        self._beginning = asyncio.Lock()
        self._cells: Final = NamedCells(
            node.store, node.fetch_cells, node.clock, lambda: node.observer.count("values-pinned")
        )
        joining = JoinReplica(_JoinPolicy(folder, node))
        self._joining: Final = node.host(
            JOIN_PROTOCOL, b"", joining, WeaverProtocol(None), framing=FRAMING
        )

    @property
    def stores(self) -> Stores:
        """The stores; the first use creates the folder of their engine."""
        return self._folder.stores()

    async def start(self) -> None:
        """Replicate all stores, once there are any."""
        if self._folder.exists:
            await self._begin()
        self._looking = asyncio.create_task(self._look())

    async def _begin(self) -> None:
        async with self._beginning:  # later callers wait until all stores are replicated
            if not self._is_begun:
                await self._begin_now()
                self._is_begun = True

    async def _begin_now(self) -> None:
        stores = await asyncio.to_thread(self._folder.stores)
        # "Until the next start": whether another node runs with this key must be found out again.
        await asyncio.to_thread(stores.suspect_all, Doubt.BEHIND, only=Doubt.CLONED)
        if self._node.config.accept_unfenced:
            await asyncio.to_thread(stores.accept_unasked)
        origins = await asyncio.to_thread(stores.joined)
        self._node.observer.checks[WEAVER_WRITES] = self._trouble
        self._node.observer.checks[MISSING_CELLS] = lambda: self._cells.trouble
        self._ends += [
            stores.on_ready.add(lambda store: self._call(self._replicate, store)),
            stores.on_ready.add(self._tell_ready),
            stores.on_warning.add(lambda text: self._call(_warn, text)),
        ]
        for id, joined in origins.items():
            try:
                self._add_inviter(joined.inviter, joined.addresses)
            except UsageError as error:  # it was joined with a package that is gone
                _warn(f"the inviter of {store_id_text(id)} is not dialled: {error}")
            if not joined.is_copied:
                self._sources[id] = joined.inviter
        for store in await asyncio.to_thread(stores.open_all):
            self._replicate(store)
        self._node.expect_peers(self._is_named)

    def _tell_ready(self, store: WeaverStore) -> None:
        root = store.id
        while (parent := self.stores.parent_of(root)) is not None:
            root = parent
        self._events.add(NodeEvent(store_ready=StoreReady(root_id=root, store_id=store.id)))

    def _add_inviter(self, inviter: bytes, addresses: tuple[str, ...]) -> None:
        """Stay connected to an inviter, at its known addresses or where it is discovered.

        Raises: UsageError: no address, or none of a transport that this node has.
        """
        # The inviter's key must be proved, even if an address names another.
        found = (str(parse_address(one).with_key(inviter)) for one in addresses)
        self._node.add_peer(",".join(found) or None, public_key=inviter)

    async def stop(self) -> None:
        """Stop watching the stores. Call it before the node is closed, which ends the hosts."""
        self._node.observer.checks.pop(WEAVER_WRITES, None)
        self._node.observer.checks.pop(MISSING_CELLS, None)
        for end in self._ends:
            end()
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    def close(self) -> None:
        """Free the resources of open comparisons. Call it after the node is closed."""
        for host in self._hosts.values():
            host.replica.close()

    def _call(self, what: Callable[..., None], *arguments: object) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(what, *arguments)

    # --- replication --------------------------------------------------------------------------

    def _replicate(self, store: WeaverStore) -> None:
        if store.id in self._hosts or store.is_closed:
            return
        source = self._sources.get(store.id)
        if source is not None:
            self.stores.peers.policy(store.id).bootstrap.add(source)
        replica = WeaverReplica(
            store,
            lambda: self._peers_of(store.id),
            self._entropy,
            source,
            on_copied=lambda: self._copied(store.id),
        )
        host = self._node.host(
            WEAVER_PROTOCOL,
            store.id,
            replica,
            WeaverProtocol(store.id, replica.gaps),
            framing=FRAMING,
            on_loop=on_finished,
        )
        self._hosts[store.id] = host
        self._ends += [
            store.on_change(lambda _seq: host.lane.submit(Replicator.publish)),
            store.on_system(lambda _event: self._call(self._ask_again)),
        ]
        host.lane.submit(
            Replicator.publish
        )  # another thread may have written before these listened

    def _peers_of(self, store_id: bytes) -> Iterable[bytes]:
        """Return the keys that may connect; none if they cannot be read."""
        try:
            return self.stores.peers.policy(store_id).authors()
        except DataLatticeError as error:
            self._call(_warn, f"the peers of {store_id_text(store_id)} were not read: {error}")
            return ()

    def _copied(self, store_id: bytes) -> None:
        """End the trust in an inviter: from now on the store itself says who its peers are.

        In the lane of the store.
        """
        source = self._sources.pop(store_id, None)
        if source is not None:
            self.stores.copied(store_id)
            self.stores.peers.policy(store_id).bootstrap.discard(source)
            self._call(self._ask_again)

    def _is_named(self, key: bytes) -> bool:
        """Return whether a store here names a node as its peer."""
        return any(key in self._peers_of(id) for id in self._hosts)

    def _ask_again(self) -> None:
        """Have every store check again whom it admits, and the network whom it dials."""
        self._node.expect_peers(self._is_named)
        for host in self._hosts.values():
            # With a `done`, so that the effects are delivered even if nothing is sent: the store is
            # offered again to peers that it has refused.
            host.lane.submit(partial(_readmit, host.replica), lambda: None)

    async def _look(self) -> None:
        """Notice what other processes write, and stop replicating what was closed."""
        took_s = 0.0
        while True:
            try:
                await self._rest(took_s)
                began_s = self._loop.time()
                if self._is_begun:
                    await self._look_once()
                elif self._folder.exists:  # another process has made the first store
                    await self._begin()
                took_s = self._loop.time() - began_s
            except DataLatticeError as error:  # a full disk, say: the next look goes on
                self._node.observer.failed(error)
                took_s = _LOOK_S

    async def _rest(self, took_s: float) -> None:
        """Return once a process has committed since the last look, or after `_LOOK_S`.

        took_s: how long that look took: opening a view of each store for each commit takes long.
        """
        until_s = self._loop.time() + _LOOK_S
        await asyncio.sleep(min(_LOOK_S, LOOK_SHARE * took_s))
        while (left_s := until_s - self._loop.time()) > 0:
            if self._is_begun and self.stores.has_news:
                self._quick_until_s = self._loop.time() + QUICK_S
                return
            is_quick = self._loop.time() < self._quick_until_s
            await asyncio.sleep(QUICK_LOOK_S if is_quick else left_s)

    async def _look_once(self) -> None:
        if self._node.is_cloned and not self._is_cloned:
            await asyncio.to_thread(self.stores.suspect_all, Doubt.CLONED)
            self._is_cloned = True
        await asyncio.to_thread(self._look_at_stores)
        for id, host in list(self._hosts.items()):
            if self.stores.get(id) is None:
                del self._hosts[id]
                await self._node.unhost(host)

    def _look_at_stores(self) -> None:
        if self.stores.look() and self.stores.has_more():
            self.stores.open_all()
        self.stores.tick()
        self._cells.look(self.stores.opened())

    def _trouble(self) -> str | None:
        """Return why own writes of a store are not safe, for the health of the node."""
        try:
            for id, doubt in self.stores.doubts().items():
                return f"store {store_id_text(id)}: {doubt.text}"
            for store in self.stores.opened():
                if store.own_forks():
                    return OWN_FORK.format(store=store_id_text(store.id))
        except DataLatticeError as error:
            return f"weaver stores: {error}"  # damage is a reason too
        return None

    # --- peers --------------------------------------------------------------------------------

    async def presence(self, store_id: bytes) -> list[PeerPresence]:
        """Return the state of the connected peers of a store. Raises: NoSuchPath."""
        host = await self._host_of(store_id)
        return await host.act(partial(presences, host.replica))

    async def sync(self, store_id: bytes, timeout_s: float) -> list[SyncedPeer]:
        """Compare a store with every connected peer. Raises: NoSuchPath, Timeout."""
        host = await self._host_of(store_id)
        sent, received = host.replica.sent, host.replica.received
        found = await synchronise(host, timeout_s)
        result = StoreSynced(
            store_id=store_id,
            peers_synced=sum(one.error is None for one in found),
            entries_sent=host.replica.sent - sent,
            entries_received=host.replica.received - received,
        )
        self._events.add(NodeEvent(sync_result=result))
        return found

    async def _host_of(self, store_id: bytes) -> Host[WeaverReplica]:
        await self._begin()
        if store_id not in self._hosts:  # another process has made it just now
            self._replicate(await asyncio.to_thread(self.stores.open, store_id))
        return self._hosts[store_id]

    async def join(self, token: InviteToken, timeout_s: float = JOIN_TIMEOUT_S) -> WeaverStore:
        """Become a peer of the store of an invite; return the store, which is then fetched.

        Raises: Unauthorized: the inviter refuses. Timeout: it did not answer. UsageError: the store
                is here already, or the token names no address and the inviter is not connected.
        """
        try:
            return await self._join(token, timeout_s)
        except DataLatticeError as error:
            failed = JoinFailed(root_id=token.store_id, reason=str(error))
            self._events.add(NodeEvent(join_failed=failed))
            raise

    async def _join(self, token: InviteToken, timeout_s: float) -> WeaverStore:
        await self._begin()
        # A copied folder with a new key joins the stores that it has again.
        if self.stores.get(token.store_id) is not None and self._is_peer(token.store_id):
            raise UsageError(f"the store {store_id_text(token.store_id)} is on this node already")
        self._add_inviter(token.inviter, token.addresses)
        kind = await self._apply(token, timeout_s)
        self._sources[token.store_id] = token.inviter
        return await asyncio.to_thread(self.stores.adopt, token.store_id, kind, None, token)

    def _is_peer(self, store_id: bytes) -> bool:
        return self.stores.open(store_id).author in self._peers_of(store_id)

    async def _apply(self, token: InviteToken, timeout_s: float) -> str:
        answer: asyncio.Future[str] = self._loop.create_future()

        def ended(kind: str | None, refused: str | None) -> None:
            if answer.done():
                return
            if kind is None:
                answer.set_exception(Unauthorized(refused or ""))
            else:
                answer.set_result(kind)

        application = Application(
            token.store_id,
            token.secret,
            token.inviter,
            lambda kind, refused: self._call(ended, kind, refused),
        )

        def ask(replicator: Replicator, now_ms: int) -> None:
            self._joining.replica.apply(application)
            for standing in replicator.standings:
                if standing.public_key == token.inviter:
                    replicator.pull(standing.id, Pull(application), now_ms)

        await self._joining.act(ask)
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError:
            raise Timeout(
                f"the node that made the invite did not answer within {timeout_s:g} s; it has to "
                "run, at one of the addresses in the invite or as a peer of this node"
            ) from None


class _JoinPolicy:
    """Decides who may join."""

    def __init__(self, folder: WeaverFolder, node: NodeServer) -> None:
        self._folder = folder
        self._node = node

    @property
    def node(self) -> bytes:
        """The public key of this node."""
        identity = self._node.identity
        return b"" if identity is None else identity.public_key

    def admit(self, store_id: bytes, peer: bytes, secret: bytes) -> str | None:
        """Make a peer with a valid secret a peer of the store; return the store's kind."""
        if not self._folder.exists:
            return None
        try:
            store = self._folder.stores().open(store_id)
            self._folder.stores().peers.accept_join(store_id, peer, secret)
        except (IdentityCloned, NoSuchPath, Unauthorized, Unfenced, UsageError) as error:
            # "An unknown store and a forbidden one must be indistinguishable": only the log says
            # which.
            log_event(logging.WARNING, "join-refused", peer=peer.hex(), reason=str(error))
            return None
        return store.kind


def _readmit(replica: WeaverReplica, replicator: Replicator, now_ms: int) -> None:
    replica.peers_changed()
    # `changed`: the store is offered again to peers on open connections.
    replicator.settle(Absorbed(readmits=True, changed=True), "", now_ms)


def _warn(text: str) -> None:
    log_event(logging.WARNING, "weaver", text=text)
