"""Directory: nodes publish their addresses under `:p2p :nodes`, each below its own key.

A node with a public address writes its entry when it starts. A node that discovers others this way
reads the entries after every change of the section. Anybody with a key may write there, so an entry
is only a claim. Addresses that no node can have are skipped. The others are dialled, and count only
if the key that published them answers.

Source: docs/node.md "Finding peers".
"""

from __future__ import annotations

import asyncio
import heapq
import ipaddress
import itertools
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Final

from datalattice.cells import Keyword, Map, Signed, Value, Vector, value_hash
from datalattice.client import IROH, PeerAddress, parse_address
from datalattice.clock import Clock
from datalattice.crypto import PUBLIC_KEY_BYTES, sha3_256
from datalattice.cursors import RootLattice
from datalattice.errors import UsageError
from datalattice.lattice import NODES_KEY, P2P_KEY, get_in, node_info
from datalattice.version import VERSION

# Bounds on the work that strangers cause by writing entries.
NODES_READ_MAX: Final = 10_000  # entries among which the candidates are chosen
CANDIDATES_MAX: Final = 256  # entries read in one turn, beside those of wanted peers
TRANSPORTS_MAX: Final = 8  # addresses read of one entry
TRANSPORT_CHARS_MAX: Final = 400  # of one address: a host name, a key, and some room

READ_PAUSE_S: Final = 0.25  # between two readings, however often the section changes
REFILL_S: Final = 60.0  # read again without a change: forgotten peers leave room for others

P2P_SOURCE: Final = "p2p"
NODE_TYPE: Final = "datalattice"  # `:type` of this node's own entry

_TIMESTAMP: Final = Keyword("timestamp")
_TRANSPORTS: Final = Keyword("transports")


@dataclass(frozen=True, slots=True)
class FoundNode:
    """A node at an address, as `source` says; `stamp` is the time of the claim, Unix ms."""

    public_key: bytes
    address: PeerAddress
    stamp: int
    source: str


def publish(cursor: RootLattice, public_key: bytes, url: str, clock: Clock) -> None:
    """Write a node's own entry; durable on return."""
    address = parse_address(url)
    # The entry lies below its key, so its address need not name the key; an iroh address must.
    text = str(address.with_key(public_key if address.scheme == IROH else None))
    entry_cursor = cursor.path(P2P_KEY, NODES_KEY, public_key, Keyword("value"))
    last = _stamp_of(entry_cursor.get())
    entry = node_info(
        max(clock.now_ms(), last + 1),  # the later entry wins: a clock set back must not undo it
        [text if "://" in text else f"{address.scheme}://{text}"],
        NODE_TYPE,
        VERSION,
    )
    entry_cursor.set(entry)
    cursor.sync()


def published(
    nodes: Value, own_key: bytes, wanted: Collection[bytes] = (), *, near: bool, turn: int = 0
) -> list[FoundNode]:
    """Return the claims of nodes with a `wanted` key, and of some others.

    near: whether this node is reached from this machine only, so that loopback addresses count.
    """
    if not isinstance(nodes, Map):
        return []
    # "If there are very many entries, each node dials its own choice of them, which changes from
    # time to time": chosen by a hash that differs for each node and turn, so an attacker cannot
    # place keys that all nodes read.
    salt = own_key + turn.to_bytes(8, "big")
    few = islice(nodes, NODES_READ_MAX)
    keys = [key for key in few if isinstance(key, bytes) and len(key) == PUBLIC_KEY_BYTES]
    others = heapq.nsmallest(CANDIDATES_MAX, keys, key=lambda one: sha3_256(salt + one))
    found = []
    for public_key in dict.fromkeys([*wanted, *others]):
        slot = nodes.get(public_key)
        entry = slot.value if isinstance(slot, Signed) and public_key != own_key else None
        address = _first_usable(get_in(entry, [_TRANSPORTS]), public_key, near=near)
        if address is not None:
            found.append(FoundNode(public_key, address, _stamp_of(entry), P2P_SOURCE))
    return found


def _stamp_of(entry: Value) -> int:
    stamp = get_in(entry, [_TIMESTAMP])
    return stamp if type(stamp) is int else 0


def _first_usable(transports: Value, public_key: bytes, *, near: bool) -> PeerAddress | None:
    if not isinstance(transports, Vector):
        return None
    for text in islice(transports, TRANSPORTS_MAX):
        # Strangers write entries, so each part may have any type and size.
        if not isinstance(text, str) or len(text) > TRANSPORT_CHARS_MAX:
            continue
        with suppress(UsageError):  # of a kind that is not known here
            one = parse_address(text)
            # An entry may name an address only for its own key.
            is_own = one.public_key in (None, public_key)
            if is_own and one.host and is_usable(one.host, near=near):
                return one.with_key(public_key)
    return None


def is_usable(host: str, *, near: bool) -> bool:
    """Return whether this node may dial a host that a stranger claims to be a node."""
    # Security: "Not usable are addresses of this machine (unless the node itself is bound to one),
    # link-local, multicast, unspecified and reserved ones." A claim must not make a node talk to
    # services of its own machine.
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        local = host.lower().rstrip(".")
        return near or not (local == "localhost" or local.endswith(".localhost"))
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    if address.is_loopback:
        return near
    return not (
        address.is_unspecified
        or address.is_multicast
        or address.is_link_local
        or address.is_reserved
    )


def is_near(bind: str) -> bool:
    """Return whether a listener at a local address is reached from this machine only."""
    try:
        return ipaddress.ip_address(bind).is_loopback
    except ValueError:
        return bind in ("localhost", "memory")


Look = Callable[[], Value]  # returns the root value
Changed = Callable[[], Awaitable[None]]  # returns at its next change


async def follow_directory(
    look: Look,
    changed: Changed,
    learn: Callable[[FoundNode], object],
    wanted: Callable[[], Collection[bytes]],
    own_key: bytes,
    *,
    near: bool,
) -> None:
    """Read the section now and after every change, for ever.

    learn: called with each claim. wanted: returns the keys of wanted peers.
    """

    def nodes_now() -> Value:
        return get_in(look(), [P2P_KEY, NODES_KEY])

    for turn in itertools.count():
        nodes = nodes_now()
        read = partial(published, near=near, turn=turn)
        for found in await asyncio.to_thread(read, nodes, own_key, wanted()):
            learn(found)
        known = value_hash(nodes)
        with suppress(TimeoutError):
            async with asyncio.timeout(REFILL_S):
                while value_hash(nodes_now()) == known:
                    await changed()
        await asyncio.sleep(READ_PAUSE_S)
