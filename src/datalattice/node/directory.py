"""Directory: where nodes say they are reached, under `:p2p :nodes`, each below its own key.

A node with a public address writes its entry when it starts. A node that looks for others there
reads all entries after every change of the section. Who may write there is anybody with a key, so
what is read is a claim: an address that no node can have is passed over, the others are dialled for
the key that published them and count for nothing unless that key answers.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Final

import datalattice
from datalattice.cells import Keyword, Map, Signed, Value, Vector, value_hash
from datalattice.clock import Clock
from datalattice.crypto import PUBLIC_KEY_BYTES, sha3_256
from datalattice.cursors import RootLattice
from datalattice.errors import UsageError
from datalattice.lattice import NODES_KEY, P2P_KEY, get_in, node_info
from datalattice.node.transport import Address, parse_address

NODES_READ_MAX: Final = 10_000
"""Entries that are looked at."""

TRANSPORTS_MAX: Final = 8
"""Addresses of one entry that are looked at."""

TRANSPORT_CHARS_MAX: Final = 400
"""Longest address that is looked at: a host name, a key, and room for the rest."""

READ_PAUSE_S: Final = 0.25
"""Time between two readings, however often the section changes."""

REFILL_S: Final = 60.0
"""How often it is read without a change: peers may have been forgotten, and others have room."""

P2P_SOURCE: Final = "p2p"
KIND: Final = "datalattice"

_TIMESTAMP: Final = Keyword("timestamp")
_TRANSPORTS: Final = Keyword("transports")


@dataclass(frozen=True, slots=True)
class Found:
    """A node and where it says it is, at `stamp` (Unix milliseconds); `source` is who told."""

    public_key: bytes
    address: Address
    stamp: int
    source: str


def publish(cursor: RootLattice, public_key: bytes, url: str, clock: Clock) -> None:
    """Write a node's own entry, later than any it wrote before; durable on return."""
    address = parse_address(url)
    text = str(Address(address.scheme, address.host, address.port))
    place = cursor.path(P2P_KEY, NODES_KEY, public_key, Keyword("value"))
    last = _stamp_of(place.get())
    entry = node_info(
        max(clock.now_ms(), last + 1),
        [text if "://" in text else f"{address.scheme}://{text}"],
        KIND,
        datalattice.__version__,
    )
    place.set(entry)
    cursor.sync()


def published(nodes: Value, own_key: bytes, *, near: bool) -> list[Found]:
    """Return who published where they are, without this node.

    Every node gets another order: which of very many are dialled is not for them to say.

    near: whether this node itself can be reached from this machine only, so that others here count.
    """
    if not isinstance(nodes, Map):
        return []
    found = []
    for key, slot in islice(nodes.items(), NODES_READ_MAX):
        public_key = bytes(key) if isinstance(key, bytes) else b""
        if len(public_key) != PUBLIC_KEY_BYTES or public_key == own_key:
            continue
        entry = slot.value if isinstance(slot, Signed) else None
        address = _first_usable(get_in(entry, [_TRANSPORTS]), public_key, near=near)
        if address is not None:
            found.append(Found(public_key, address, _stamp_of(entry), P2P_SOURCE))
    return sorted(found, key=lambda one: sha3_256(own_key + one.public_key))


def _stamp_of(entry: Value) -> int:
    stamp = get_in(entry, [_TIMESTAMP])
    return stamp if type(stamp) is int else 0


def _first_usable(transports: Value, public_key: bytes, *, near: bool) -> Address | None:
    if not isinstance(transports, Vector):
        return None
    for text in islice(transports, TRANSPORTS_MAX):
        if not isinstance(text, str) or len(text) > TRANSPORT_CHARS_MAX:
            continue
        with suppress(UsageError):  # of a kind that is not known here
            one = parse_address(text)
            if one.public_key in (None, public_key) and is_usable(one.host, near=near):
                return Address(one.scheme, one.host, one.port, public_key)
    return None


def is_usable(host: str, *, near: bool) -> bool:
    """Return whether a stranger's word is enough to dial a host.

    Not this machine, unless it is where this node lives for others; and nothing that is no place.
    """
    try:
        place = ipaddress.ip_address(host)
    except ValueError:
        local = host.lower().rstrip(".")
        return near or not (local == "localhost" or local.endswith(".localhost"))
    if isinstance(place, ipaddress.IPv6Address) and place.ipv4_mapped is not None:
        place = place.ipv4_mapped
    if place.is_loopback:
        return near
    return not (
        place.is_unspecified or place.is_multicast or place.is_link_local or place.is_reserved
    )


def is_near(bind: str) -> bool:
    """Return whether what listens at a local address is reached from this machine only."""
    try:
        return ipaddress.ip_address(bind).is_loopback
    except ValueError:
        return bind in ("localhost", "memory")


Look = Callable[[], Value]
Changed = Callable[[], Awaitable[None]]


class Directory:
    """Follows the section of a running node. Lives on the event loop."""

    def __init__(
        self,
        look: Look,
        changed: Changed,
        learn: Callable[[Found], object],
        own_key: bytes,
        *,
        near: bool,
    ) -> None:
        self._look = look
        self._changed = changed
        self._learn = learn
        self._own_key = own_key
        self._near = near

    async def follow(self) -> None:
        """Read it now and after every change, for ever."""
        while True:
            nodes = self._nodes()
            for found in await asyncio.to_thread(published, nodes, self._own_key, near=self._near):
                self._learn(found)
            known = value_hash(nodes)
            with suppress(TimeoutError):
                async with asyncio.timeout(REFILL_S):
                    while value_hash(self._nodes()) == known:
                        await self._changed()
            await asyncio.sleep(READ_PAUSE_S)

    def _nodes(self) -> Value:
        return get_in(self._look(), [P2P_KEY, NODES_KEY])
