"""Gaps: predecessors that a store lacks, each fetched with the chain before it in one request.

Source: Weaver specification "Gap repair".
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from datalattice.weaver import MissingPrev

CHAIN_MAX: Final = 32
"""Most intentions of a chain that is fetched at once; a longer gap is left to a comparison."""

_GAPS_MAX: Final = 4_096
"""Most gaps that are remembered; any other predecessor is fetched by its hash alone."""

_REFUSALS_MAX: Final = 2
"""Peers that may refuse a chain before its last intention is asked for by its hash alone."""


class ChainGaps:
    """The missing predecessors of one store, each with the last intention before the gap."""

    def __init__(self) -> None:
        self._since: dict[bytes, bytes] = {}
        self._refusals: dict[bytes, int] = {}

    def add(self, missing: Iterable[MissingPrev]) -> None:
        """Note that these are missing."""
        for one in missing:
            self._since.pop(one.prev, None)
            self._since[one.prev] = one.since
        while len(self._since) > _GAPS_MAX:
            self.forget((next(iter(self._since)),))

    def since(self, prev: bytes) -> bytes | None:
        """Return the stored intention after which the chain to `prev` begins.

        Zeros: the chain begins with the author's first. None: `prev` is not a remembered gap.
        """
        return self._since.get(prev)

    def refused(self, prev: bytes) -> None:
        """Note that a peer does not have the chain, or that it is longer than `CHAIN_MAX`."""
        self._refusals[prev] = self._refusals.get(prev, 0) + 1
        if self._refusals[prev] >= _REFUSALS_MAX:
            self.forget((prev,))

    def forget(self, hashes: Iterable[bytes]) -> None:
        """Forget gaps whose predecessors are here, or are asked for one by one."""
        for hash in hashes:
            self._since.pop(hash, None)
            self._refusals.pop(hash, None)
