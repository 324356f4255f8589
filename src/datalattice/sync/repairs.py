"""Repairs: cells that peers are asked for to replace damaged ones, and the result of each."""

from __future__ import annotations

from collections.abc import Iterable

from datalattice.errors import DataLatticeError
from datalattice.sync.effects import Effects
from datalattice.sync.replica import Part, Replica


class Repairs:
    """The parts of a replica that peers are asked for although it should have them."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._wanted: set[bytes] = set()

    def __contains__(self, hash: object) -> bool:
        return hash in self._wanted

    def want(self, hashes: Iterable[bytes]) -> None:
        """Wait for these parts."""
        self._wanted.update(hashes)

    def take(self, parts: Iterable[Part], effects: Effects) -> None:
        """Put those parts that are waited for where they belong.

        Raises: BadFormat, StoreError: as `Replica.repair`; they count as not healed.
        """
        wanted = [part for part in parts if part.hash in self._wanted]
        if not wanted:
            return
        hashes = [part.hash for part in wanted]
        self._wanted.difference_update(hashes)
        try:
            self._replica.repair(wanted)
        except DataLatticeError:
            effects.unhealed += hashes
            raise
        effects.healed += hashes

    def lose(self, hashes: Iterable[bytes], effects: Effects) -> None:
        """Note parts that no peer has."""
        effects.unhealed += (hash for hash in hashes if hash in self._wanted)
        self._wanted.difference_update(hashes)
