"""Peers: the nodes that this node wants to be connected to, and how it stays connected.

A peer is a node, identified by its key. The operator names an address, a key, or both; the node
learns the other: the key when it is proved on connecting, the address from those who publish it. If
the same key answers at two addresses, that is one peer with two addresses.

A wanted peer stays wanted when its connection ends. It is dialled again after one second, later
after up to thirty seconds; each pause is shortened at random, so that many nodes do not dial a peer
at the same moment.

Two nodes that want each other need one connection, not two. The connection that the smaller key
dialled stays. The node with the larger key ends its own, and does not dial while the other lives.
Only the dialler ends a connection for this reason, so both are never ended at once.

Source: docs/node.md "Peers", "Finding peers".

Length: wishes, claims, connections and dialling change one state of each peer.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from datalattice.clock import Clock, SystemClock
from datalattice.crypto import PUBLIC_KEY_BYTES, Entropy, SystemEntropy
from datalattice.errors import UsageError
from datalattice.node.transport import Endpoint, Link, Transport

BACKOFF_MS_MIN: Final = 1_000
BACKOFF_MS_MAX: Final = 30_000
STABLE_S: Final = 5.0  # a connection that lived this long starts the back-off anew

OWN_KEY_PAUSE_MS: Final = 600_000  # pause at an address where this node or its twin answers

DISCOVERED_MAX: Final = 32  # discovered peers that are dialled
EXPECTED_MAX: Final = 256  # and of those that a replica names as its peers
DISCOVERED_FAILURES_MAX: Final = 5  # failures in a row before a discovered peer is forgotten
FORGOTTEN_MAX: Final = 1_024  # forgotten peers remembered, so that old claims do not revive them

# Sources of a peer: the operator added it; or it is not wanted, and connected to us.
ADDED: Final = "added"
INBOUND: Final = "inbound"

OWN_KEY_ANSWERED: Final = "this node answers there, or a node on a copy of its folder: same key"
THEIRS_STAYS: Final = "the connection that it made stays"


def backoff_ms(attempt: int, entropy: Entropy) -> int:
    """Return the pause after `attempt` failures: doubling, random in [half, full]."""
    full_ms = min(BACKOFF_MS_MAX, BACKOFF_MS_MIN << min(attempt, 16))
    share = int.from_bytes(entropy.bytes(4), "big") / 2**32
    return round(full_ms / 2 + share * full_ms / 2)


@dataclass(slots=True)
class PeerInfo:
    """A wanted peer, or one that connected to us, and its state.

    address:            where it is dialled, None while no address is known.
    public_key:         its key, None until it was proved or given.
    connected, proved: whether there is a connection in either direction, and its key was proved.
    failures:           attempts in a row that failed.
    reason:             the outcome of the last attempt, for people.
    source:             `added`, `p2p` or `mdns` (discovered), or `inbound`: it is not wanted.
    connected_since_ms, last_seen_ms: Unix milliseconds, None for never.
    refusal:            why its last value was not merged in full; None: it was.
    refused_since_ms:   since when no value was merged in full, Unix milliseconds.
    suspicion:          its breach of the protocol, which no honest peer commits; None: none.
    """

    address: str | None
    public_key: bytes | None = None
    connected: bool = False
    proved: bool = False
    failures: int = 0
    reason: str = "not dialled yet"
    source: str = ADDED
    connected_since_ms: int | None = None
    last_seen_ms: int | None = None
    refusal: str | None = None
    refused_since_ms: int | None = None
    suspicion: str | None = None
    suspected_ms: int | None = None

    @property
    def name(self) -> str:
        """Its address, or its key in hex while no address is known."""
        return self.address or (self.public_key or b"").hex()

    def taken(self, refusal: str | None, now_ms: int) -> None:
        """Note that its last value was taken in full, or why not."""
        self.refusal = refusal
        if refusal is None:
            self.refused_since_ms = None
        elif self.refused_since_ms is None:
            self.refused_since_ms = now_ms


@dataclass(eq=False, slots=True)
class WantedPeer:
    """A wanted peer with what is needed to reach it.

    addresses: given by the operator. learnt: the discovered address, claimed at time `stamp`.
    pinned:    the key was given, so no other is accepted.
    is_expected: it was discovered in a crowd, and a replica names it as a peer.
    turn:      counts the attempts; it selects the address to dial.
    news:      set when it is worth dialling before the pause is over.
    """

    info: PeerInfo
    addresses: list[Endpoint] = field(default_factory=list)
    learnt: Endpoint | None = None
    stamp: int = -1
    pinned: bool = False
    is_expected: bool = False
    turn: int = 0
    connection_id: str | None = None
    pause_ms: int = 0
    news: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None

    @property
    def endpoints(self) -> list[Endpoint]:
        """Every address to try, each with the key that must answer there."""
        known = [*self.addresses, *([] if self.learnt is None else [self.learnt])]
        key = self.info.public_key if self.pinned else None
        return [one if key is None else one.with_key(key) for one in known]

    def has(self, address: Endpoint) -> bool:
        """Return whether an address is one of its own, whatever key is named with it."""
        return any(_is_same(one, address) for one in self.endpoints)

    def show(self) -> None:
        """Show the address whose turn it is in `info`."""
        endpoints = self.endpoints
        self.info.address = str(endpoints[self.turn % len(endpoints)]) if endpoints else None


@dataclass(frozen=True, slots=True)
class OutboundLink:
    """A dialled link, and the id of its connection. is_added: the operator named the peer."""

    id: str
    address: Endpoint
    link: Link
    is_added: bool = False


Serve = Callable[[OutboundLink], Awaitable[str]]  # runs a connection; returns why it ended
Close = Callable[[str, str], None]  # ends the connection with an id, for a reason


class Peers:
    """The wanted peers. Lives on the event loop."""

    def __init__(
        self,
        transport: Transport,
        serve: Serve,
        entropy: Entropy | None = None,
        *,
        close: Close = lambda _id, _reason: None,
        own_key: bytes | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._transport = transport
        self._serve = serve
        self._entropy = entropy or SystemEntropy()
        self._close = close
        self._own_key = own_key
        self._clock = clock or SystemClock()
        self._numbers = itertools.count(1)
        self._peers: list[WantedPeer] = []
        self._inbound: dict[bytes, list[str]] = {}  # proven key -> ids of connections they made
        self._forgotten: dict[bytes, int] = {}  # key -> stamp up to which claims are ignored
        # Returns whether a replica names a key as one of its peers.
        self.is_expected: Callable[[bytes], bool] = lambda _key: False
        # Called when a wanted peer was connected, or lost, or could not be reached.
        self.changed: Callable[[], None] = lambda: None

    @property
    def infos(self) -> list[PeerInfo]:
        """The wanted peers, in the order they were added."""
        return [peer.info for peer in self._peers]

    @property
    def keys(self) -> list[bytes]:
        """The known keys of the wanted peers."""
        return [info.public_key for info in self.infos if info.public_key is not None]

    @property
    def added_keys(self) -> list[bytes]:
        """The known keys of the peers that the operator added, without the discovered ones."""
        known = (info for info in self.infos if info.source == ADDED)
        return [info.public_key for info in known if info.public_key is not None]

    # --- wanting ------------------------------------------------------------------------------

    def add(self, address: str | None = None, *, public_key: bytes | None = None) -> None:
        """Stay connected to a node from now on; adding it again changes nothing.

        Raises: UsageError: neither address nor key, not an address, not a key, two different keys,
                or the key of this node itself.
        """
        # Each transport reads addresses of its own kind, and refuses others.
        endpoint = None if address is None else self._transport.endpoint(address)
        key = public_key
        # A key in the address (`key@host:port`) pins it as `public_key` does; both must agree.
        if endpoint is not None and endpoint.public_key is not None:
            if key not in (None, endpoint.public_key):
                raise UsageError(f"{address} names another key than {key.hex() if key else ''}")
            key = endpoint.public_key
        if key is None and endpoint is None:
            raise UsageError("a peer has an address, a public key, or both; got neither")
        if key is not None and len(key) != PUBLIC_KEY_BYTES:
            raise UsageError(f"a public key is {PUBLIC_KEY_BYTES} bytes, got {len(key)}")
        if key is not None and key == self._own_key:
            raise UsageError(f"{key.hex()} is the key of this node itself")
        peer = self._with_key(key) if key is not None else None
        if peer is None and endpoint is not None:
            peer = next((one for one in self._peers if one.has(endpoint)), None)
            if peer is not None and key is not None and peer.info.public_key not in (None, key):
                peer = None  # another node answered at this address until now
        if peer is None:
            peer = self._start(PeerInfo(None, key))
        peer.info.source = ADDED
        if key is not None:
            peer.info.public_key, peer.pinned = key, True
        if endpoint is not None and not any(one == endpoint for one in peer.addresses):
            if not peer.has(endpoint):
                peer.news.set()
            peer.addresses = [one for one in peer.addresses if not _is_same(one, endpoint)]
            peer.addresses.append(endpoint)
        peer.show()

    async def remove(self, address: str | None = None, *, public_key: bytes | None = None) -> None:
        """Close the connections to a peer, named by any of its addresses, and stop dialling it.

        Raises: UsageError: it is not wanted.
        """
        peer = self.find(address, public_key=public_key)
        if peer is None:
            known = ", ".join(one.name for one in self.infos) or "none"
            what = address if public_key is None else public_key.hex()
            raise UsageError(f"{what} is not a peer of this node; its peers: {known}")
        await self._end(peer)

    def find(
        self, address: str | None = None, *, public_key: bytes | None = None
    ) -> WantedPeer | None:
        """Return the wanted peer with an address or a key."""
        if public_key is None and address is not None:
            endpoint = self._transport.endpoint(address)
            if (named := next((one for one in self._peers if one.has(endpoint)), None)) is not None:
                return named
            public_key = endpoint.public_key
        return None if public_key is None else self._with_key(public_key)

    def connection_ids(self, peer: WantedPeer | None = None) -> list[str]:
        """Return the id of one connection to a wanted peer, or to each of them."""
        found = []
        for one in self._peers if peer is None else [peer]:
            if one.connection_id is not None:
                found.append(one.connection_id)
            elif theirs := self._inbound.get(one.info.public_key or b""):
                found.append(theirs[-1])
        return found

    async def close(self) -> None:
        """Close all connections, and stop dialling."""
        for peer in list(self._peers):
            await self._end(peer)

    # --- events -------------------------------------------------------------------------------

    def learn(self, public_key: bytes, address: Endpoint, stamp: int, source: str) -> bool:
        """Learn a claim of where a node is; return whether it was used.

        A newer `stamp` replaces an older claim. Nodes that the operator did not add are dialled
        too, up to a limit, and forgotten if they cannot be reached. Nodes that a replica expects
        have a limit of their own, so a crowd of other claims does not keep them out.
        """
        if public_key == self._own_key or self._forgotten.get(public_key, -1) >= stamp:
            return False
        peer = self._with_key(public_key)
        if peer is None:
            # "32, and 256 that a Weaver store here names as its peers": anybody can publish any
            # number of entries.
            is_expected = not self._has_room(is_expected=False)
            if is_expected and not (
                self.is_expected(public_key) and self._has_room(is_expected=True)
            ):
                return False
            peer = self._start(PeerInfo(None, public_key, source=source))
            peer.is_expected = is_expected
            peer.pinned = True  # a claim counts only if the claimed key answers
        if stamp <= peer.stamp:  # the latest claim of a node counts
            return False
        peer.stamp = stamp
        if not peer.has(address):
            peer.learnt = address
            peer.info.failures = 0
            peer.news.set()
            peer.show()
        return True

    def _has_room(self, *, is_expected: bool) -> bool:
        """Return whether one more of the discovered peers may be dialled."""
        found = (one for one in self._peers if one.info.source != ADDED)
        count = sum(one.is_expected == is_expected for one in found)
        return count < (EXPECTED_MAX if is_expected else DISCOVERED_MAX)

    def arrived(self, id: str, public_key: bytes) -> None:
        """Note an inbound connection whose key was proved."""
        self._inbound.setdefault(public_key, []).append(id)
        peer = self._with_key(public_key)
        if peer is None:
            return
        self._seen(peer, proved=True)
        # Both sides dialled: "Of two connections between two nodes, the one dialled by the smaller
        # key stays."
        if peer.connection_id is not None and self._theirs_stays(public_key):
            self._close(peer.connection_id, THEIRS_STAYS)

    def gone(self, id: str, public_key: bytes) -> None:
        """Note that an inbound connection has ended."""
        # A key may have several inbound connections; the peer is gone when the last one ends.
        ids = self._inbound.get(public_key, [])
        if id in ids:
            ids.remove(id)
        if not ids:
            self._inbound.pop(public_key, None)
        peer = self._with_key(public_key)
        if peer is not None and not ids and peer.connection_id is None:
            self._unseen(peer, "the connection that it made has ended")
            peer.news.set()

    def identified(self, id: str, public_key: bytes) -> None:
        """Note the key that the other end of a dialled connection has proved."""
        peer = next((one for one in self._peers if one.connection_id == id), None)
        if peer is None:
            return
        endpoint = next((one for one in peer.endpoints if str(one) == peer.info.address), None)
        reason = self._proved(peer, endpoint, public_key)
        if reason is None:
            self._seen(peer, proved=True)
        else:
            self._close(id, reason)

    def at(self, id: str) -> list[PeerInfo]:
        """Return the wanted peers at the other end of a connection."""
        theirs = [key for key, ids in self._inbound.items() if id in ids]
        return [p.info for p in self._peers if p.connection_id == id or p.info.public_key in theirs]

    # --- dialling -----------------------------------------------------------------------------

    def _start(self, info: PeerInfo) -> WantedPeer:
        peer = WantedPeer(info)
        self._peers.append(peer)
        peer.task = asyncio.ensure_future(self._keep(peer))
        return peer

    async def _end(self, peer: WantedPeer) -> None:
        """Stop wanting a peer."""
        if peer not in self._peers:
            return
        self._peers.remove(peer)
        for id in self._inbound.get(peer.info.public_key or b"", ()):
            self._close(id, "it is not wanted any more")
        task = peer.task
        if task is not None and task is not asyncio.current_task():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _keep(self, peer: WantedPeer) -> None:
        # Checked each time: a lost cancellation must not keep this task alive.
        while peer in self._peers:
            peer.news.clear()
            # One connection is enough, in either direction.
            if self._inbound.get(peer.info.public_key or b""):
                self._seen(peer, proved=True)
                peer.info.reason, peer.info.failures = "it is connected to us", 0
                await peer.news.wait()
                await asyncio.sleep(backoff_ms(0, self._entropy) / 1_000)
                continue
            endpoints = peer.endpoints
            if not endpoints:
                peer.info.reason = "no address of it is known yet"
                await peer.news.wait()
                continue
            endpoint = endpoints[peer.turn % len(endpoints)]
            peer.info.address = str(endpoint)
            peer.pause_ms = 0
            await self._attempt(peer, endpoint)
            if peer not in self._peers:
                return
            # "Forgotten after five failures in a row until there is a newer entry"; an added peer
            # is dialled for ever.
            failures = peer.info.failures + 1
            if failures >= DISCOVERED_FAILURES_MAX and peer.info.source != ADDED:
                self._forget(peer)
                return
            # "A wanted peer is dialled again after 1 s, then after twice as long each time, up to
            # 30 s; a wait is shortened at random, to half at most."
            pause_ms = peer.pause_ms or backoff_ms(peer.info.failures, self._entropy)
            peer.info.failures = failures
            self.changed()
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_ms / 1_000):
                    await peer.news.wait()

    async def _attempt(self, peer: WantedPeer, endpoint: Endpoint) -> None:
        """Dial once, and run the connection until it ends."""
        try:
            link = await self._transport.dial(str(endpoint))
        except OSError as error:
            peer.info.reason = error.strerror or str(error) or type(error).__name__
            peer.turn += 1  # the next attempt tries the next address
            return
        key = link.public_key
        reason = None if key is None else self._proved(peer, endpoint, key)
        if reason is not None:
            peer.info.reason = reason
            # Both report their starts, which shows whether the folder was copied.
            if reason == OWN_KEY_ANSWERED:
                await self._serve(OutboundLink(self._new_id(endpoint), endpoint, link))
            link.abort()
            return
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        id = peer.connection_id = self._new_id(endpoint)
        self._seen(peer, proved=key is not None)
        peer.info.reason, reason = "connected", "ended"
        try:
            reason = await self._serve(OutboundLink(id, endpoint, link, peer.info.source == ADDED))
        finally:
            # In a `finally`: a cancelled attempt must not count as connected.
            peer.connection_id = None
            peer.info.reason = reason
            if not self._inbound.get(peer.info.public_key or b""):
                self._unseen(peer, reason)
        # "After a connection of five seconds the waits start at 1 s again": a peer that accepts and
        # ends connections at once must not be dialled every second.
        if loop.time() - began_s >= STABLE_S:
            peer.info.failures = 0
        else:
            peer.turn += 1

    def _new_id(self, endpoint: Endpoint) -> str:
        return f"out {endpoint} #{next(self._numbers)}"

    def _proved(self, peer: WantedPeer, endpoint: Endpoint | None, key: bytes) -> str | None:
        """Note the key that answers at an address; return why the link must end, or None."""
        if key == self._own_key:
            peer.pause_ms = OWN_KEY_PAUSE_MS
            return OWN_KEY_ANSWERED
        known = peer.info.public_key
        if known != key:
            # One node with two addresses: the second becomes an address of the first peer.
            other = self._with_key(key)
            if other is not None and other is not peer:
                self._hand_over(peer, endpoint, other)
                return f"the same node as {other.info.address}"
            if peer.pinned:
                return f"it proved the key {key.hex()}, not {(known or b'').hex()}"
            peer.info.public_key = key
        if self._inbound.get(key) and self._theirs_stays(key):
            return THEIRS_STAYS
        return None

    def _hand_over(self, peer: WantedPeer, endpoint: Endpoint | None, other: WantedPeer) -> None:
        """Move an address to the peer whose key answers there."""
        moved = [one for one in peer.addresses if endpoint is None or _is_same(one, endpoint)]
        peer.addresses = [one for one in peer.addresses if one not in moved]
        other.addresses.extend(one for one in moved if not other.has(one))
        if peer.info.source == ADDED:
            other.info.source = ADDED
        if not peer.addresses and not peer.pinned:
            self._peers.remove(peer)  # its task ends when it finds itself unwanted
        else:
            peer.show()
        if other.connection_id is None:
            other.news.set()

    def _forget(self, peer: WantedPeer) -> None:
        """Forget a discovered peer that cannot be reached."""
        self._peers.remove(peer)
        # Bounded: strangers publish keys for free.
        if len(self._forgotten) >= FORGOTTEN_MAX:
            del self._forgotten[next(iter(self._forgotten))]
        self._forgotten[peer.info.public_key or b""] = peer.stamp

    def _theirs_stays(self, key: bytes) -> bool:
        # Of two connections between two nodes, the one dialled by the smaller key stays.
        return self._own_key is not None and key < self._own_key

    def _with_key(self, key: bytes) -> WantedPeer | None:
        return next((one for one in self._peers if one.info.public_key == key), None)

    def _seen(self, peer: WantedPeer, *, proved: bool) -> None:
        now_ms, info = self._clock.now_ms(), peer.info
        if not info.connected:
            info.connected_since_ms = now_ms
        info.connected, info.last_seen_ms = True, now_ms
        info.proved = info.proved or proved
        self.changed()
        asyncio.get_running_loop().call_soon(self.changed)  # and once the connection is listed

    def _unseen(self, peer: WantedPeer, reason: str) -> None:
        info = peer.info
        if info.connected:
            info.last_seen_ms = self._clock.now_ms()
        info.connected = info.proved = False
        info.connected_since_ms, info.reason = None, reason
        self.changed()


def _is_same(one: Endpoint, other: Endpoint) -> bool:
    """Return whether two endpoints have one address, whatever keys are named with them."""
    return one.with_key(None) == other.with_key(None)
