"""Pulls: who waits until what a peer states is contained here."""

from __future__ import annotations

from typing import Final

from datalattice.sync.effects import Effects, Pull
from datalattice.sync.replica import Absorbed

DISPUTED: Final = "its value has data under an owner of this node that the owner did not sign"
DROPPED: Final = "cells of the peer's value are missing, and no peer has them"


class Pulls:
    """The pulls of one replicator, by the key of the probe that each waits for."""

    def __init__(self) -> None:
        self._waiting: dict[bytes, list[Pull]] = {}

    def wait(self, key: bytes, pull: Pull) -> None:
        """Have a pull wait for a probe."""
        self._waiting.setdefault(key, []).append(pull)

    def settle(self, absorbed: Absorbed, effects: Effects) -> None:
        """End the pulls whose probes need nothing more, or were given up."""
        for key, newer in absorbed.superseded:
            # The peer's newer value contains the one that was waited for, and is not here yet.
            for pull in self._waiting.pop(key, ()):
                self.wait(newer, pull)
        for key in absorbed.finished:
            refused = absorbed.refused.get(key)
            for pull in self._waiting.pop(key, ()):
                is_disputed = pull.is_strict and key in absorbed.disputed
                effects.finish(pull, refused or (DISPUTED if is_disputed else None))
        for key in absorbed.dropped:
            for pull in self._waiting.pop(key, ()):
                effects.finish(pull, DROPPED)
