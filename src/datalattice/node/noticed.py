"""Noticed: which peers did what of late that an operator may want to know, for the health page.

A counter says that something happened, not who did it. Strangers come and go with new keys, so
what is kept is bounded: the peers that were noticed last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from datalattice.sync import Note

PEERS_MAX: Final = 64
"""Peers that are remembered; who was quiet for longest goes."""

KEPT_S: Final = 600.0
"""How long a peer is remembered that does nothing more."""


@dataclass(slots=True)
class _Offender:
    """What one peer did: how often, by word, and the circumstances of the last."""

    kinds: Counter[str] = field(default_factory=Counter)
    text: str = ""
    last_s: float = 0.0


class Noticed:
    """What peers did of late. The caller sees to it that one thread at a time is here."""

    def __init__(self, now_s: Callable[[], float], peers_max: int = PEERS_MAX) -> None:
        self._now_s = now_s
        self._max = peers_max
        self._peers: dict[str, _Offender] = {}

    def add(self, name: str, note: Note) -> None:
        """Take in a note about the peer with a name."""
        peer = self._peers.pop(name, None) or _Offender()
        peer.kinds[note.kind] += note.count
        peer.text, peer.last_s = note.text, self._now_s()
        self._peers[name] = peer
        if len(self._peers) > self._max:
            del self._peers[next(iter(self._peers))]

    def reading(self) -> dict[str, dict[str, object]]:
        """Return by name what peers did: `kinds` with counts, `text` of the last; latest last."""
        since_s = self._now_s() - KEPT_S
        self._peers = {name: one for name, one in self._peers.items() if one.last_s > since_s}
        return {
            name: {"kinds": dict(one.kinds), "text": one.text} for name, one in self._peers.items()
        }
