"""Weaver peers: the state of the peers of a store, and comparisons on request.

Source: Weaver specification "NetworkService"; docs/weaver.md "On the network".
"""

from __future__ import annotations

import asyncio
from typing import Final

from datalattice.errors import Timeout
from datalattice.node.hosts import Host
from datalattice.sync import Effects, Pull, Replicator, Standing
from datalattice.sync.weaver import WeaverReplica, probed_count
from datalattice.weaver import PeerPresence, SyncedPeer

SYNC_TIMEOUT_S_MAX: Final = 50.0
"""Longest wait for a comparison that was requested; a client gives up after 60 s."""


def presences(replica: WeaverReplica, replicator: Replicator, now_ms: int) -> list[PeerPresence]:
    """Return the state of each connected and admitted peer, in key order."""
    own = probed_count(replica.probe)
    found: dict[bytes, PeerPresence] = {}
    for one in _admitted(replica, replicator):
        assert one.public_key is not None
        lag = None if one.stated is None else own - probed_count(one.stated)
        made = PeerPresence(
            one.public_key,
            one.equal,
            one.is_dirty,
            lag,
            _since(one.compared_ms, now_ms),
            _since(one.agreed_ms, now_ms),
        )
        # Two nodes that dialled each other have two connections; the one with the better state
        # counts.
        known = found.setdefault(one.public_key, made)
        if (made.is_equal, not made.is_dirty) > (known.is_equal, not known.is_dirty):
            found[one.public_key] = made
    return [found[key] for key in sorted(found)]


def _admitted(replica: WeaverReplica, replicator: Replicator) -> list[Standing]:
    allowed = replica.allowed
    return [one for one in replicator.standings if one.joined and one.public_key in allowed]


def _since(then_ms: int | None, now_ms: int) -> float | None:
    return None if then_ms is None else max(0, now_ms - then_ms) / 1e3


class _Request:
    """A requested comparison with one peer. The object itself is the token of the pull."""

    def __init__(self, public_key: bytes, done: asyncio.Event) -> None:
        self.public_key: Final = public_key
        self.done: Final = done
        self.is_over = False
        self.error: str | None = None


def on_finished(effects: Effects) -> None:
    """Wake the callers of comparisons that are over. On the event loop."""
    for token, error in effects.finished:
        if isinstance(token, _Request):
            token.is_over, token.error = True, error
            token.done.set()


async def synchronise(host: Host[WeaverReplica], timeout_s: float) -> list[SyncedPeer]:
    """Compare a store with every connected peer; return the results in key order.

    Raises: Timeout: no peer has finished in that time.
    """
    done = asyncio.Event()

    def ask(replicator: Replicator, now_ms: int) -> list[_Request]:
        made = []
        for standing in _admitted(host.replica, replicator):
            assert standing.public_key is not None
            made.append(_Request(standing.public_key, done))
            replicator.pull(standing.id, Pull(made[-1]), now_ms)
        return made

    requests = await host.act(ask)
    try:
        async with asyncio.timeout(timeout_s):
            while not all(one.is_over for one in requests):
                await done.wait()
                done.clear()
    except TimeoutError:
        if not any(one.is_over for one in requests):
            raise Timeout(f"no peer has finished a comparison within {timeout_s:g} s") from None
    late = f"it has not finished within {timeout_s:g} s"
    results: dict[bytes, SyncedPeer] = {}
    for one in requests:
        error = one.error if one.is_over else late
        # If one of two connections with a peer succeeded, that one counts.
        if one.public_key not in results or error is None:
            results[one.public_key] = SyncedPeer(one.public_key, error)
    return [results[key] for key in sorted(results)]
