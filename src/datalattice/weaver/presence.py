"""Presence: what a running node knows of the peers of a store, and who has seen what.

Two sources: the connections of the node say what each peer last stated; the frontiers of the log
say which contents the newest intention of each author has seen, also of those not connected.
"""

from __future__ import annotations

from typing import NamedTuple


class PeerPresence(NamedTuple):
    """A peer of a store, as the node that serves the folder sees it.

    is_equal:   it last stated the state that is here.
    is_dirty:   something may have been lost since the last complete comparison with it.
    lag:        how many intentions it has less than this node, by what it last stated, negative if
                it has more; None: it stated nothing.
    compared_s: seconds since a comparison with it was last complete, None: there was none.
    agreed_s:   while `is_equal`, seconds since the states became equal; else since they last were.
    """

    public_key: bytes
    is_equal: bool
    is_dirty: bool
    lag: int | None
    compared_s: float | None
    agreed_s: float | None


class SyncedPeer(NamedTuple):
    """The result of a comparison with a peer. error: why it is not complete, None if it is."""

    public_key: bytes
    error: str | None


class SeenMatrix(NamedTuple):
    """How many contents of each author the newest intention of each other author has seen.

    totals: the contents of each author here. seen: by observer, by author; what is missing is 0.
    """

    totals: dict[bytes, int]
    seen: dict[bytes, dict[bytes, int]]

    def behind(self, observer: bytes) -> int:
        """Return how many contents an observer has not acknowledged."""
        seen = self.seen.get(observer, {})
        return sum(count - seen.get(author, 0) for author, count in self.totals.items())
