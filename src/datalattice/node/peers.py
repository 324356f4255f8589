"""Peers: the nodes this one wants to be connected to, and the effort to stay so.

A peer is a node, and a node is its key. It is wanted by an address, by its key, or both; what is
not given is learnt: the key when it is proved on connecting, an address from those who publish it.
Two addresses at which the same key answers are one peer with two addresses.

A wanted peer stays wanted when its connection dies: it is dialled again, after one second at first,
later up to thirty, each time a random part of that, so that many nodes do not dial it together.

Two nodes that want each other need one connection, not two. The one dialled by the smaller key
stays; its other end, knowing both keys as well, ends its own and dials no more while that lives.
Only who dialled a connection ends it for this reason, so that never both are ended.
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
STABLE_S: Final = 5.0
"""A connection that lived this long starts the back-off anew."""

OWN_KEY_PAUSE_MS: Final = 600_000
"""How long an address is left alone at which this node itself, or its twin, answered."""

DISCOVERED_MAX: Final = 32
"""Peers that nobody asked for but were found: more are not dialled."""

DISCOVERED_FAILURES_MAX: Final = 5
"""Failures in a row after which a peer that was found is forgotten, until it is heard of anew."""

FORGOTTEN_MAX: Final = 1_024
"""Peers of which it is remembered that they were forgotten."""

ADDED: Final = "added"
INBOUND: Final = "inbound"
"""Sources of a peer: it was asked for, or it is not wanted and connected by itself."""

OWN_KEY: Final = "this node's own key answers there: of this node, or one on a copy of its folder"
THEIRS_STAYS: Final = "the connection that it made stays"


def backoff_ms(attempt: int, entropy: Entropy) -> int:
    """Return how long to wait after so many failures: doubling, random in [half, full]."""
    full_ms = min(BACKOFF_MS_MAX, BACKOFF_MS_MIN << min(attempt, 16))
    share = int.from_bytes(entropy.bytes(4), "big") / 2**32
    return round(full_ms / 2 + share * full_ms / 2)


@dataclass(slots=True)
class PeerInfo:
    """A wanted peer, or one that connected by itself, and how it stands with it.

    address:            where it is dialled, None while no address is known.
    public_key:         its key, None until it was proved or given.
    connected, proved: whether there is a connection in either direction, and its key was proved.
    failures:           attempts in a row that came to nothing.
    reason:             how the last attempt went, in words.
    source:             `added`, who told of it: `p2p`, `mdns`; or `inbound`: it is not wanted.
    connected_since_ms, last_seen_ms: Unix milliseconds, None when it never was.
    refusal:            why its last value was not taken, or not in full; None when it was.
    refused_since_ms:   since when none was taken in full, Unix milliseconds.
    suspicion:          what it sent that no honest peer sends, and when that was; None: nothing.
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


@dataclass(eq=False, slots=True)
class WantedPeer:
    """A wanted peer with what is needed to reach it.

    addresses: those that were given; `learnt` the one that others tell, newest by `stamp`.
    pinned:    whether the key was given, so that no other will do.
    """

    info: PeerInfo
    addresses: list[Endpoint] = field(default_factory=list)
    learnt: Endpoint | None = None
    stamp: int = -1
    pinned: bool = False
    turn: int = 0
    connection_id: str | None = None
    pause_ms: int = 0
    news: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None

    @property
    def places(self) -> list[Endpoint]:
        """Every address to try, each with the key it has to prove."""
        known = [*self.addresses, *([] if self.learnt is None else [self.learnt])]
        key = self.info.public_key if self.pinned else None
        return [one if key is None else one.with_key(key) for one in known]

    def has(self, address: Endpoint) -> bool:
        """Return whether it is one of its addresses, whatever key is named with it."""
        return any(_is_same(one, address) for one in self.places)

    def show(self) -> None:
        """Let `info` name the address whose turn it is."""
        places = self.places
        self.info.address = str(places[self.turn % len(places)]) if places else None


@dataclass(frozen=True, slots=True)
class Call:
    """A connection that was made to a peer: its id here, the address, the stream.

    is_added: the operator named this peer.
    """

    id: str
    address: Endpoint
    link: Link
    is_added: bool = False


Serve = Callable[[Call], Awaitable[str]]
"""Runs a connection until it ends; returns why it ended."""

Close = Callable[[str, str], None]
"""Ends the connection with an id, for a reason."""


class Peers:
    """The wanted peers. Lives on the event loop."""

    def __init__(
        self,
        transport: Transport,
        serve: Serve,
        entropy: Entropy | None = None,
        *,
        close: Close | None = None,
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
        self._forgotten: dict[bytes, int] = {}  # key -> stamp up to which it is not heard of
        self.changed: Callable[[], None] = lambda: None
        """Called when a wanted peer was connected, or lost, or could not be reached."""

    @property
    def infos(self) -> list[PeerInfo]:
        """The wanted peers, in the order they were added."""
        return [peer.info for peer in self._peers]

    def keys(self) -> list[bytes]:
        """Return the keys of the wanted peers, as far as they are known."""
        return [info.public_key for info in self.infos if info.public_key is not None]

    def is_added(self, public_key: bytes) -> bool:
        """Return whether the peer with this key was added, and not merely found."""
        peer = self._with_key(public_key)
        return peer is not None and peer.info.source == ADDED

    # --- wanting ------------------------------------------------------------------------------

    def add(self, address: str | None = None, *, public_key: bytes | None = None) -> None:
        """Stay connected to a node from now on; adding it again changes nothing.

        Raises: UsageError: neither address nor key, not an address, not a key, two different keys,
                or the key of this node itself.
        """
        place = None if address is None else self._transport.endpoint(address)
        key = public_key
        if place is not None and place.public_key is not None:
            if key not in (None, place.public_key):
                raise UsageError(f"{address} names another key than {key.hex() if key else ''}")
            key = place.public_key
        if key is None and place is None:
            raise UsageError("a peer has an address, a public key, or both; got neither")
        if key is not None and len(key) != PUBLIC_KEY_BYTES:
            raise UsageError(f"a public key is {PUBLIC_KEY_BYTES} bytes, got {len(key)}")
        if key is not None and key == self._own_key:
            raise UsageError(f"{key.hex()} is the key of this node itself")
        peer = self._with_key(key) if key is not None else None
        if peer is None and place is not None:
            peer = next((one for one in self._peers if one.has(place)), None)
            if peer is not None and key is not None and peer.info.public_key not in (None, key):
                peer = None  # somebody else answered there until now
        if peer is None:
            peer = self._start(PeerInfo(None, key))
        peer.info.source = ADDED
        if key is not None:
            peer.info.public_key, peer.pinned = key, True
        if place is not None and not any(one == place for one in peer.addresses):
            if not peer.has(place):
                peer.news.set()
            peer.addresses = [one for one in peer.addresses if not _is_same(one, place)]
            peer.addresses.append(place)
        peer.show()

    async def remove(self, address: str | None = None, *, public_key: bytes | None = None) -> None:
        """Close the connections to a peer and want it no more; one of its addresses will do.

        Raises: UsageError: it is not wanted.
        """
        peer = self.find(address, public_key=public_key)
        if peer is None:
            named = [one.address or (one.public_key or b"").hex() for one in self.infos]
            known = ", ".join(named) or "none"
            what = address if public_key is None else public_key.hex()
            raise UsageError(f"{what} is not a peer of this node; its peers: {known}")
        await self._end(peer)

    def find(
        self, address: str | None = None, *, public_key: bytes | None = None
    ) -> WantedPeer | None:
        """Return the wanted peer with an address or a key."""
        if public_key is None and address is not None:
            place = self._transport.endpoint(address)
            if (named := next((one for one in self._peers if one.has(place)), None)) is not None:
                return named
            public_key = place.public_key
        return None if public_key is None else self._with_key(public_key)

    def connection_ids(self, peer: WantedPeer | None = None) -> list[str]:
        """Return the ids of the connections to a wanted peer, or to all of them: one for each."""
        found = []
        for one in self._peers if peer is None else [peer]:
            if one.connection_id is not None:
                found.append(one.connection_id)
            elif theirs := self._inbound.get(one.info.public_key or b""):
                found.append(theirs[-1])
        return found

    async def close(self) -> None:
        """Close all connections and dial no more."""
        for peer in list(self._peers):
            await self._end(peer)

    # --- hearing of peers ---------------------------------------------------------------------

    def learn(self, public_key: bytes, address: Endpoint, stamp: int, source: str) -> bool:
        """Take in where a node is said to be; return whether that is of use.

        A newer `stamp` replaces what an older one said. Nodes that nobody added are dialled, too,
        up to a limit, and forgotten when they cannot be reached.
        """
        if public_key == self._own_key or self._forgotten.get(public_key, -1) >= stamp:
            return False
        peer = self._with_key(public_key)
        if peer is None:
            if sum(one.info.source != ADDED for one in self._peers) >= DISCOVERED_MAX:
                return False
            peer = self._start(PeerInfo(None, public_key, source=source))
            peer.pinned = True
        if stamp <= peer.stamp:
            return False
        peer.stamp = stamp
        if not peer.has(address):
            peer.learnt = address
            peer.info.failures = 0
            peer.news.set()
            peer.show()
        return True

    def arrived(self, id: str, public_key: bytes) -> None:
        """Note a connection that the holder of a key made to us."""
        self._inbound.setdefault(public_key, []).append(id)
        peer = self._with_key(public_key)
        if peer is None:
            return
        self._seen(peer, proved=True)
        if peer.connection_id is not None and self._theirs_stays(public_key):
            self._drop(peer.connection_id, THEIRS_STAYS)

    def gone(self, id: str, public_key: bytes) -> None:
        """Note that such a connection has ended."""
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
        """Note that the other end of a connection we made has proved its key on it."""
        peer = next((one for one in self._peers if one.connection_id == id), None)
        if peer is None:
            return
        place = next((one for one in peer.places if str(one) == peer.info.address), None)
        reason = self._proved(peer, place, public_key)
        if reason is None:
            self._seen(peer, proved=True)
        else:
            self._drop(id, reason)

    def taken(self, id: str, refusal: str | None) -> None:
        """Note that a value of a peer was taken in full, or why it was not."""
        for info in self._at(id):
            info.refusal = refusal
            if refusal is None:
                info.refused_since_ms = None
            elif info.refused_since_ms is None:
                info.refused_since_ms = self._clock.now_ms()

    def suspected(self, id: str, reason: str) -> None:
        """Note that a peer sent what no honest peer sends."""
        for info in self._at(id):
            info.suspicion, info.suspected_ms = reason, self._clock.now_ms()

    def _at(self, id: str) -> list[PeerInfo]:
        """Return the peer with a connection, if it is a wanted one."""
        theirs = [key for key, ids in self._inbound.items() if id in ids]
        return [p.info for p in self._peers if p.connection_id == id or p.info.public_key in theirs]

    # --- the effort ---------------------------------------------------------------------------

    def _start(self, info: PeerInfo) -> WantedPeer:
        peer = WantedPeer(info)
        self._peers.append(peer)
        peer.task = asyncio.ensure_future(self._keep(peer))
        return peer

    async def _end(self, peer: WantedPeer) -> None:
        """Want a peer no more."""
        if peer not in self._peers:
            return
        self._peers.remove(peer)
        for id in self._inbound.get(peer.info.public_key or b"", ()):
            self._drop(id, "it is not wanted any more")
        task = peer.task
        if task is not None and task is not asyncio.current_task():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _keep(self, peer: WantedPeer) -> None:
        # That a cancellation gets lost on its way must not keep the effort alive.
        while peer in self._peers:
            peer.news.clear()
            if self._inbound.get(peer.info.public_key or b""):
                self._seen(peer, proved=True)
                peer.info.reason, peer.info.failures = "it is connected to us", 0
                await peer.news.wait()
                await asyncio.sleep(backoff_ms(0, self._entropy) / 1_000)
                continue
            places = peer.places
            if not places:
                peer.info.reason = "no address of it is known yet"
                await peer.news.wait()
                continue
            place = places[peer.turn % len(places)]
            peer.info.address = str(place)
            peer.pause_ms = 0
            await self._attempt(peer, place)
            if peer not in self._peers:
                return
            failures = peer.info.failures + 1
            if failures >= DISCOVERED_FAILURES_MAX and peer.info.source != ADDED:
                self._forget(peer)
                return
            pause_ms = peer.pause_ms or backoff_ms(peer.info.failures, self._entropy)
            peer.info.failures = failures
            self.changed()
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_ms / 1_000):
                    await peer.news.wait()

    async def _attempt(self, peer: WantedPeer, place: Endpoint) -> None:
        """Dial once, and serve the connection until it ends."""
        try:
            link = await self._transport.dial(str(place))
        except OSError as error:
            peer.info.reason = error.strerror or str(error) or type(error).__name__
            peer.turn += 1
            return
        key = link.public_key
        reason = None if key is None else self._proved(peer, place, key)
        if reason is not None:
            peer.info.reason = reason
            if reason == OWN_KEY:  # the two tell each other of their starts, and end it
                await self._serve(Call(f"out {place} #{next(self._numbers)}", place, link, False))
            link.abort()
            return
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        id = peer.connection_id = f"out {place} #{next(self._numbers)}"
        self._seen(peer, proved=key is not None)
        peer.info.reason, reason = "connected", "ended"
        try:
            reason = await self._serve(Call(id, place, link, peer.info.source == ADDED))
        finally:
            peer.connection_id = None
            peer.info.reason = reason
            if not self._inbound.get(peer.info.public_key or b""):
                self._unseen(peer, reason)
        if loop.time() - began_s >= STABLE_S:
            peer.info.failures = 0
        else:
            peer.turn += 1

    def _proved(self, peer: WantedPeer, place: Endpoint | None, key: bytes) -> str | None:
        """Take in the key that answers at a peer's address; return why not to go on, if so."""
        if key == self._own_key:
            peer.pause_ms = OWN_KEY_PAUSE_MS
            return OWN_KEY
        known = peer.info.public_key
        if known != key:
            other = self._with_key(key)
            if other is not None and other is not peer:
                self._hand_over(peer, place, other)
                return f"the same node as {other.info.address}"
            if peer.pinned:
                return f"it proved the key {key.hex()}, not {(known or b'').hex()}"
            peer.info.public_key = key
        if self._inbound.get(key) and self._theirs_stays(key):
            return THEIRS_STAYS
        return None

    def _hand_over(self, peer: WantedPeer, place: Endpoint | None, other: WantedPeer) -> None:
        """Give an address to the peer whose key answers there."""
        moved = [one for one in peer.addresses if place is None or _is_same(one, place)]
        peer.addresses = [one for one in peer.addresses if one not in moved]
        other.addresses.extend(one for one in moved if not other.has(one))
        if peer.info.source == ADDED:
            other.info.source = ADDED
        if not peer.addresses and not peer.pinned:
            self._peers.remove(peer)  # its effort ends when it finds itself unwanted
        else:
            peer.show()
        if other.connection_id is None:
            other.news.set()

    def _forget(self, peer: WantedPeer) -> None:
        """Want a peer no more that was found and is not there."""
        self._peers.remove(peer)
        if len(self._forgotten) >= FORGOTTEN_MAX:
            del self._forgotten[next(iter(self._forgotten))]
        self._forgotten[peer.info.public_key or b""] = peer.stamp

    def _theirs_stays(self, key: bytes) -> bool:
        return self._own_key is not None and key < self._own_key

    def _with_key(self, key: bytes) -> WantedPeer | None:
        return next((one for one in self._peers if one.info.public_key == key), None)

    def _drop(self, id: str, reason: str) -> None:
        if self._close is not None:
            self._close(id, reason)

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
    """Return whether two places are one, whatever key is named with it."""
    return one.with_key(None) == other.with_key(None)
