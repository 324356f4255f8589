"""Pulls: callers that wait until this replica contains the state of a peer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from datalattice.sync.effects import Effects, Pull
from datalattice.sync.replica import Absorbed

DISPUTED: Final = "its value has data under an owner of this node that the owner did not sign"
PARTS_LOST: Final = "cells of the peer's value are missing, and no peer has them"

Exchange = tuple[str, int]
"""A comparison: its connection, and its number there."""


@dataclass(slots=True, eq=False)
class _Waiting:
    """A pull and the keys of probes that it waits for; `is_open`: more may be offered."""

    pull: Pull
    is_open: bool = True
    keys: set[bytes] = field(default_factory=set)
    error: str | None = None


class Pulls:
    """The pulls of one replicator.

    A pull ends when its comparison is over and all that was offered in it is contained here.
    """

    def __init__(self) -> None:
        self._open: dict[Exchange, _Waiting] = {}
        self._waiting: dict[bytes, list[_Waiting]] = {}

    def begin(self, exchange: Exchange, pull: Pull) -> None:
        """Have a pull wait for a comparison."""
        self._open[exchange] = _Waiting(pull)

    def wait(self, exchange: Exchange, key: bytes) -> None:
        """Have the pull of a comparison wait for a probe that was offered in it."""
        waiting = self._open.get(exchange)
        if waiting is not None:
            self._wait(waiting, key)

    def _wait(self, waiting: _Waiting, key: bytes) -> None:
        if key not in waiting.keys:
            waiting.keys.add(key)
            self._waiting.setdefault(key, []).append(waiting)

    def failed(self, exchange: Exchange, error: str) -> None:
        """Note that a part which the pull of a comparison needs will not arrive."""
        waiting = self._open.get(exchange)
        if waiting is not None:
            waiting.error = waiting.error or error

    def ended(self, exchange: Exchange, effects: Effects) -> None:
        """Note that a comparison is over."""
        # It may still wait for probes that were offered in the comparison.
        waiting = self._open.pop(exchange, None)
        if waiting is not None:
            waiting.is_open = False
            _end(waiting, effects)

    def settle(self, absorbed: Absorbed, effects: Effects) -> None:
        """End the pulls whose probes need nothing more, or were given up."""
        if not self._waiting:
            return
        for key, newer in absorbed.superseded:
            # The peer's newer value contains the one that was waited for, and is not here yet.
            for waiting in self._waiting.pop(key, ()):
                waiting.keys.discard(key)
                self._wait(waiting, newer)
        # "Strict": data of an owner of this node that it did not sign makes the pull fail.
        for key in absorbed.finished:
            refused = absorbed.refused.get(key)
            for waiting in self._waiting.pop(key, ()):
                is_disputed = waiting.pull.is_strict and key in absorbed.disputed
                self._found(waiting, key, refused or (DISPUTED if is_disputed else None), effects)
        # No peer has what they need: the pull fails rather than waits.
        for key in absorbed.dropped:
            for waiting in self._waiting.pop(key, ()):
                self._found(waiting, key, PARTS_LOST, effects)

    def _found(self, waiting: _Waiting, key: bytes, error: str | None, effects: Effects) -> None:
        waiting.keys.discard(key)
        waiting.error = waiting.error or error
        _end(waiting, effects)


def _end(waiting: _Waiting, effects: Effects) -> None:
    if not waiting.is_open and not waiting.keys:
        effects.finish(waiting.pull, waiting.error)
