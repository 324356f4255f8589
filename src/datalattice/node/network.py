"""Network: the connections that a node makes, and those that it accepts.

It decides who may connect, how many connections there may be, how many bytes they may make the node
hold together, and how other nodes are discovered. It does not look into messages.

Source: docs/node.md "Peers", "Finding peers"; docs/protocol.md "Limits".
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Final

from datalattice.client import parse_address, parse_key, parse_ticket
from datalattice.client.settings import DEFAULT_PORT, NodeConfig
from datalattice.clock import Clock
from datalattice.crypto import Entropy
from datalattice.errors import UsageError
from datalattice.node.admission import (
    FILES_RESERVED,
    Admission,
    InboundPeer,
    NotAdmitted,
    files_max,
)
from datalattice.node.bounds import source_of_remote
from datalattice.node.connection import WANTED_FRAMES_MAX, Connection, Traffic, streams_over
from datalattice.node.directory import Changed, FoundNode, Look, follow_directory, is_near
from datalattice.node.hosts import Host, Hosts, PeerIdentity, connection_of
from datalattice.node.logs import log_event
from datalattice.node.mdns import Mdns
from datalattice.node.observe import Observer
from datalattice.node.peers import INBOUND, OutboundLink, PeerInfo, Peers
from datalattice.node.transport import Endpoint, Link, Listener, Transport
from datalattice.sync import Effects, Note, Replica
from datalattice.wire import MAIN_STREAM, ErrorCode, encode_failure

# Bytes that wait to be received, handled or sent, over all connections, however many there are:
# five messages of the largest size.
_HELD_BYTES_MAX: Final = 256_000_000

UNUSED_MAX: Final = 1_024  # unused claims of discovered nodes that are kept

REFUSAL_TIMEOUT_S: Final = 1.0  # for the reason of a refusal to leave
_REFUSALS_MAX: Final = 32  # refusals with a reason at a time; more links end without one


class Network:
    """The connections of one node. Lives on the event loop.

    linked: called when a connection to a wanted peer has ended.
    """

    linked: Callable[[], None]

    def __init__(
        self,
        config: NodeConfig,
        transport: Transport,
        own_key: bytes,
        observer: Observer,
        clock: Clock,
        entropy: Entropy,
    ) -> None:
        self._config = config
        self._transport = transport
        self.own_key = own_key
        self.observer = observer
        self.clock = clock
        self._entropy = entropy
        self.peers = Peers(
            transport,
            self._serve_outbound,
            entropy,
            close=self._close_connection,
            own_key=own_key,
            clock=clock,
        )
        self._mdns: Mdns | None = None
        self._unused: dict[bytes, FoundNode] = {}  # the last claim of each key that was not used
        self._following: asyncio.Task[None] | None = None
        self.connections: dict[str, Connection] = {}
        self._numbers = itertools.count(1)
        self._guests: dict[str, InboundPeer] = {}
        self._refusing = 0
        observer.name_of = self.name_of
        self._allowed = frozenset(parse_key(one) for one in config.allow)
        self._admission = Admission(
            min(config.connections_max, max(1, files_max() - FILES_RESERVED)),
            config.connections_per_address_max,
            self._is_named,
            time.monotonic,
        )
        self.held_bytes = 0
        self.past_traffic = Traffic()  # of connections that ended
        self._serving: set[asyncio.Task[Any]] = set()
        self._listener: Listener | None = None
        self._closing = False

    # --- life ---------------------------------------------------------------------------------

    @property
    def port(self) -> int | None:
        """The port that others dial, None when the node does not listen."""
        return None if self._listener is None else self._listener.port

    async def listen(self, hosts: Hosts) -> None:
        """Accept connections, if configured; `hosts` get their frames.

        Raises: UsageError: the port is in use.
        """
        self._loop = asyncio.get_running_loop()
        self._hosts = hosts
        port = self._config.port
        if port is None:
            try:  # the default port if it is free, else any
                self._listener = await self._listen_at(DEFAULT_PORT)
            # "At port 18888, or any free one when that is taken."
            except UsageError:
                self._listener = await self._listen_at(0)
        elif port >= 0:
            self._listener = await self._listen_at(port)

    async def _listen_at(self, port: int) -> Listener:
        listen = self._transport.listen
        return await listen(self._config.bind, port, self._accept, self._turned_away)

    async def connect(
        self, look: Look, changed: Changed, watching: Callable[[], AbstractContextManager[None]]
    ) -> None:
        """Dial the configured peers, and discover others if configured.

        look: returns the root value. changed: returns at its next change. watching: while it lasts,
        no change between a look and the call of `changed` after it is missed.
        Raises: UsageError: mDNS is not available here.
        """
        for ticket in self._config.peers:
            self.want(ticket)
        bind, discover = self._config.bind, self._config.discover
        if discover in ("mdns", "all"):
            interfaces = self._config.mdns_interfaces
            self._mdns = Mdns(
                self.own_key, self._learn, self.clock, self.observer.failed, interfaces
            )
            await self._mdns.start(bind, self.port)
        if discover in ("p2p", "all"):
            near = is_near(bind)
            work = follow_directory(
                look, changed, self._learn, lambda: self.peers.keys, self.own_key, near=near
            )
            self._following = asyncio.ensure_future(self._guard(work, watching))

    async def _guard(
        self, work: Coroutine[Any, Any, None], watching: Callable[[], AbstractContextManager[None]]
    ) -> None:
        try:
            with watching():
                await work
        except Exception as error:  # noqa: BLE001 - the node goes on without it, degraded
            self.observer.failed(error)

    async def close(self) -> None:
        """End all connections and accept no more."""
        self._closing = True
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
        if self._mdns is not None:
            await self._mdns.close()
        if self._listener is not None:
            await self._listener.close()
        await self.peers.close()
        for connection in list(self.connections.values()):
            connection.close("this node is closing")
        if self._serving:
            await asyncio.gather(*self._serving, return_exceptions=True)
        await self._transport.close()

    def to_peers(self, address: str | None = None) -> list[Connection]:
        """Return the connection to the wanted peer with an address, or one to each of them."""
        peer = None if address is None else self.peers.find(address)
        if address is not None and peer is None:
            return []
        return self._connections_of(self.peers.connection_ids(peer))

    def _connections_of(self, ids: list[str]) -> list[Connection]:
        return [self.connections[id] for id in ids if id in self.connections]

    def link_to(self, info: PeerInfo) -> Connection | None:
        """Return the connection with a wanted peer, in either direction."""
        peer = self.peers.find(info.address, public_key=info.public_key)
        ids = [] if peer is None else self.peers.connection_ids(peer)
        return next(iter(self._connections_of(ids)), None)

    @property
    def guests(self) -> list[tuple[PeerInfo, Connection]]:
        """The inbound connections of other than wanted peers, and who they are."""
        wanted = set(self.peers.keys)
        found = []
        for id, guest in self._guests.items():
            key = guest.public_key
            if key not in wanted and id in self.connections:
                info = PeerInfo(
                    guest.remote,
                    key,
                    connected=True,
                    proved=key is not None,
                    reason="connected",
                    source=INBOUND,
                    connected_since_ms=guest.since_ms,
                    last_seen_ms=self.clock.now_ms(),
                )
                found.append((info, self.connections[id]))
        return found

    @property
    def ticket(self) -> str | None:
        """Where others dial, with the key of this node; None when it does not listen."""
        if self._listener is None:
            return None
        found: list[Endpoint] = [self._transport.endpoint(one) for one in self._listener.addresses]
        if self._config.url is not None:
            found.insert(0, parse_address(self._config.url))
        return ",".join(dict.fromkeys(str(one.with_key(self.own_key)) for one in found))

    def want(self, ticket: str, public_key: bytes | None = None) -> None:
        """Stay connected to the node of a ticket, at those of its addresses that are dialled here.

        Raises: UsageError: as `Peers.add`, or none of them is dialled here.
        """
        # One address may be of a kind that only the transport can read.
        addresses = [str(one) for one in parse_ticket(ticket)] if "," in ticket else [ticket]
        refused, usable = None, []
        for address in addresses:
            try:
                self._transport.endpoint(address)
                usable.append(address)
            except UsageError as error:  # the package of its transport is not installed
                refused = error
        if refused is not None and not usable:
            raise refused
        for address in usable:
            self.peers.add(address, public_key=public_key)

    def expect_peers(self, is_expected: Callable[[bytes], bool]) -> None:
        """Dial discovered nodes with expected keys, even if many others were found.

        is_expected: whether a replica names a key as one of its peers. Call this again when its
        result may have changed: expected nodes that were found meanwhile are dialled then.
        """
        self.peers.is_expected = is_expected
        for key in [one for one in self._unused if is_expected(one)]:
            self._learn(self._unused.pop(key))

    def _learn(self, found: FoundNode) -> None:
        try:
            self._transport.endpoint(str(found.address))
        except UsageError:  # of a transport that this node does not have
            return
        if self.peers.learn(found.public_key, found.address, found.stamp, found.source):
            self.observer.count(f"peers-found-{found.source}")
            return
        # Kept: a replica may name the node as a peer later, and the node does not announce itself
        # again.
        self._unused.pop(found.public_key, None)
        if len(self._unused) >= UNUSED_MAX:
            del self._unused[next(iter(self._unused))]
        self._unused[found.public_key] = found

    # --- connections --------------------------------------------------------------------------

    async def _accept(self, link: Link) -> None:
        if self._closing:  # it was accepted before the listener closed
            link.abort()
            return
        key = link.public_key
        is_own = key == self.own_key
        if is_own:
            # Served nevertheless: two nodes with one identity exchange their starts, and so find
            # out that a folder was copied.
            self._turned_away("own-key-refused", link.remote)
        elif self._allowed and key not in self._allowed:
            who = "no key" if key is None else key.hex()
            self._turned_away("peers-not-allowed", f"{link.remote} with {who}")
            link.abort()
            return
        # The id names the direction, the remote address and a number that is never used again.
        id = f"in {link.remote} #{next(self._numbers)}"
        try:
            guest = self._admission.admit(link.remote, key, lambda why: self._evict(id, why))
        except NotAdmitted as refusal:
            self._turned_away(refusal.counter, link.remote)
            await self._refuse(link, str(refusal))
            return
        guest.since_ms = self.clock.now_ms()
        self._guests[id] = guest
        try:
            if key is not None and not is_own:
                self.peers.arrived(id, key)
            await self._serve(id, link.remote, link)
        finally:
            self._admission.release(self._guests.pop(id))
            if key is not None and not is_own:
                self.peers.gone(id, key)

    async def _refuse(self, link: Link, text: str) -> None:
        """End a link, with the reason if the peer takes it at once and few are being refused."""
        # Bounded: during a flood, telling each caller the reason would cost more than serving it.
        if self._refusing < _REFUSALS_MAX:
            self._refusing += 1
            with contextlib.suppress(TimeoutError, OSError):
                async with asyncio.timeout(REFUSAL_TIMEOUT_S):
                    await link.write(self._last_words(link, text))
                    await link.close()
            self._refusing -= 1
        link.abort()

    def _last_words(self, link: Link, text: str) -> bytes:
        """Return the bytes that tell a new peer why its link ends."""
        streams = streams_over(link, self._hosts.framings, self._entropy, dialled=False)
        streams.send(MAIN_STREAM, encode_failure(None, ErrorCode.LOAD, text))
        return streams.take()[1]

    def _evict(self, id: str, reason: str) -> None:
        self.observer.count("connections-evicted")
        connection = self.connections.get(id)
        if connection is not None:
            connection.cut(reason)

    def carry_out(self, host: Host[Replica], effects: Effects) -> None:
        """Carry out the effects of a replicator: send, close, count and log."""
        for note in effects.notes:
            self.observer.note(note)
        if effects.push_count:
            self.observer.count("pushes", effects.push_count)
        self._hosts.carry_out(host, effects)
        for partner in effects.useful:
            guest = self._guests.get(connection_of(partner))
            if guest is not None:
                self._admission.used(guest)
        if host is self._hosts.lattice:
            self._take_note(effects)

    def _take_note(self, effects: Effects) -> None:
        """Record what peers proved and did, as the replicator of the lattice reports."""
        for id, public_key in effects.identified:
            self.peers.identified(id, public_key)
            self._proved(id, public_key)
        for id, refusal in effects.taken:
            for info in self.peers.at(id):
                info.taken(refusal, self.clock.now_ms())
        # A breach is what no honest peer does, so all connections of the key end.
        for id in effects.breaches:
            if id in self._guests:
                self._admission.ban(self._guests[id])
                self._cut_others(self._guests[id])
        for id, reason in effects.suspects:
            for info in self.peers.at(id):
                info.suspicion, info.suspected_ms = reason, self.clock.now_ms()
            self.observer.note(Note("unsound-wanted", id, reason))

    def _is_named(self, public_key: bytes) -> bool:
        """Return whether the operator named a key, as a peer or in `allow`."""
        # A discovered peer does not count: anybody can publish any key.
        return public_key in self._allowed or public_key in self.peers.added_keys

    def _proved(self, id: str, public_key: bytes) -> None:
        """Note the proved key of a connection; a named peer is served before strangers now."""
        guest = self._guests.get(id)
        if guest is None or id not in self.connections:
            return
        guest.public_key = public_key  # by its link, or by a challenge on a plain one
        if not self._is_named(public_key):
            return
        # From here on a key that a challenge has proved counts like one that TLS has proved.
        self.connections[id].frames_max = WANTED_FRAMES_MAX
        is_wanted = public_key in self.peers.added_keys
        self._hosts.proved(id, public_key, is_wanted=is_wanted)

    def name_of(self, id: str) -> str:
        """Return a name of the peer that outlives the connection: its key, or its address."""
        guest = self._guests.get(connection_of(id))
        if guest is not None and guest.public_key is not None:
            return guest.public_key.hex()
        return id.partition(" #")[0]

    def _cut_others(self, banned: InboundPeer) -> None:
        for id, guest in self._guests.items():
            if guest is not banned and guest.public_key == banned.public_key is not None:
                connection = self.connections.get(id)
                if connection is not None:
                    connection.cut("another connection with the same key was cut")

    def _turned_away(self, name: str, text: str) -> None:
        """Count and log a refused connection."""
        self.observer.count(name)
        log_event(logging.DEBUG, "refused", why=name, text=text)

    async def _serve_outbound(self, made: OutboundLink) -> str:
        return await self._serve(
            made.id, str(made.address), made.link, made.address, is_added=made.is_added
        )

    def _close_connection(self, id: str, reason: str) -> None:
        connection = self.connections.get(id)
        if connection is not None:
            connection.close(reason)

    async def _serve(
        self,
        id: str,
        name: str,
        link: Link,
        dialled: Endpoint | None = None,
        *,
        is_added: bool = False,
    ) -> str:
        """Run a connection until it ends, an inbound one unless `dialled`; return why it ended."""
        outbound = dialled is not None
        bounds = self._config.bounds
        streams = streams_over(link, self._hosts.framings, self._entropy, dialled=outbound)
        slowed = partial(self.observer.count, "peers-slowed")
        connection = Connection(id, name, link, self._hosts, bounds, streams, self._held, slowed)
        self.connections[id] = connection
        direction, level = ("out", logging.INFO) if outbound else ("in", logging.DEBUG)
        log_event(level, "connected", peer=id, direction=direction)
        task = asyncio.current_task()
        if task is not None and not outbound:
            self._serving.add(task)
            task.add_done_callback(self._serving.discard)
        # TLS has proved the key by now; a plain link proves it later, by a challenge.
        key, pinned = link.public_key, None if dialled is None else dialled.public_key
        is_wanted = is_added or key in self.peers.added_keys
        is_known = is_wanted or (key is not None and self._is_named(key))
        # Strangers get one frame at a time into the lane, so that their answers stay bounded.
        if is_known:
            connection.frames_max = WANTED_FRAMES_MAX
        sender = key or source_of_remote(link.remote) or link.remote
        # Messages are charged to the key, so that reconnecting does not reset a peer's share.
        who = PeerIdentity(id, outbound, key, pinned, sender, is_wanted, is_known)
        self._hosts.connected(connection, who)
        try:
            await connection.run()
        finally:
            del self.connections[id]
            self._hosts.disconnected(id)
            self.observer.count("connections-closed")
            if connection.cause is not None:  # the peer is to blame: it shows in the metrics
                self.observer.note(Note(f"closed-{connection.cause}", id, connection.reason))
            self.past_traffic.add(connection.traffic)
            if outbound:
                self.linked()
            log_event(level, "disconnected", peer=id, reason=connection.reason or "closed here")
        return connection.reason

    def _held(self, change: int) -> None:
        """Bound what all peers together make the node hold, by cutting the largest holder."""
        self.held_bytes += change
        # "256 MB; the largest holder is cut", even if another peer sent the last byte.
        while change > 0 and self.held_bytes > _HELD_BYTES_MAX:
            largest = max(self.connections.values(), key=lambda one: one.held_bytes)
            waiting = largest.held_bytes
            if not largest.cut(
                f"{waiting} bytes of its frames wait here, and others need the room"
            ):
                return  # the rest belongs to connections that are ending already
            self.observer.count("connections-cut")
