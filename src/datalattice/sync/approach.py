"""Approach: the upper cells of foreign roots, fetched ahead of the rest, and what follows for whom.

Whose data a value has is known once the containers that lead to its owners are here: the root and
the maps of owners, which are few cells. So these are fetched first and held in memory. Then what is
refused is cut off, and only the rest is claimed.

Of the cells that are fetched for the rest it is known in whose slot they lie, from the top down. So
they are charged to their owner as they arrive, and a slot that has no room for them is cut off,
too, long before it is complete.

Source: docs/design/foreign-data.md "Room".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from datalattice.cells import (
    Keeping,
    Map,
    Value,
    decode,
    decode_trusted,
    encode,
    references,
)
from datalattice.errors import BadFormat
from datalattice.limits import MAP_LEAF_MAX
from datalattice.store import Store
from datalattice.sync.incoming import Claim, Incoming
from datalattice.sync.replica import Part, Probe
from datalattice.sync.usage import Slot

AHEAD_BYTES_MAX: Final = 16_000_000
"""Cells held in memory that lead to owners, of all values on their way; a thousand owners have some
200 kB. With more, those of the peers' values that wait are given up."""


class Ahead(Keeping):
    """Loads what came with a message, or was fetched ahead, or is stored."""

    def __init__(
        self, message: Mapping[bytes, bytes], ahead: Mapping[bytes, bytes], store: Store
    ) -> None:
        self._message = message
        self._ahead = ahead
        self._store = store

    def load(self, hash: bytes) -> Value:
        """Return the cell with this hash.

        Raises: MissingData: it is in none of the three.
        """
        encoding = self._message.get(hash) or self._ahead.get(hash)
        return self._store.load(hash) if encoding is None else decode_trusted(encoding, hash, self)


@dataclass(slots=True)
class _Look:
    """A value whose upper cells are fetched."""

    probe: Probe
    wanted: set[bytes] = field(default_factory=set)


class Approach:
    """The values of one replica that are on their way. One thread uses it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._ahead: dict[bytes, bytes] = {}
        self._looks: dict[Claim, _Look] = {}
        self._slots: dict[bytes, Slot] = {}  # hash that is waited for -> where it lies
        self._arrived: dict[bytes, tuple[Slot, int]] = {}  # slot's key -> bytes that came for it
        self.size_bytes = 0

    # --- the upper cells ------------------------------------------------------------------------

    def __contains__(self, claim: Claim) -> bool:
        return claim in self._looks

    def __len__(self) -> int:
        return len(self._looks)

    def claims(self, peer: str | None = None) -> list[Claim]:
        """Return the values whose upper cells are fetched, all or those of one peer."""
        return [claim for claim in self._looks if peer in (None, claim.peer)]

    def open(self, incoming: Incoming) -> tuple[Value, Ahead]:
        """Return (the value of a statement, what loads its cells).

        Raises: MissingData: its own cell is not here.
        """
        loader = Ahead(incoming.cells.encodings(), self._ahead, self._store)
        if incoming.absent is not None:
            return loader.load(incoming.absent), loader
        return decode(encode(incoming.value), loader), loader

    def cells(self, incoming: Incoming) -> dict[bytes, bytes]:
        """Return the cells at hand of a statement, and the upper ones that were fetched."""
        return {**self._ahead, **incoming.cells.encodings()}

    def probe_of(self, claim: Claim) -> Probe:
        """Return the statement whose upper cells are fetched."""
        return self._looks[claim].probe

    def look(self, claim: Claim, probe: Probe, hashes: Iterable[bytes]) -> list[bytes]:
        """Wait for upper cells of a value; return those to be asked for."""
        wanted = set(hashes)
        self._looks[claim] = _Look(probe, wanted)
        return list(wanted)

    def forget(self, claim: Claim) -> Probe | None:
        """Wait no more for the upper cells of a value; return its statement."""
        found = self._looks.pop(claim, None)
        if not self._looks:
            self._ahead.clear()
            self.size_bytes = 0
        return None if found is None else found.probe

    def take(self, parts: Iterable[Part]) -> tuple[list[bytes], list[Claim]]:
        """Take upper cells; return (hashes to be asked for, claims that wait for none any more)."""
        missing: dict[bytes, None] = {}
        touched: dict[Claim, None] = {}
        for part in parts:
            waiting = [claim for claim, look in self._looks.items() if part.hash in look.wanted]
            if not waiting:
                continue
            if part.hash not in self._ahead:
                self._ahead[part.hash] = part.data
                self.size_bytes += len(part.data)
            below = [one for one in _nodes_below(part.data) if one not in self._ahead]
            absent = set(self._store.missing(below))
            for claim in waiting:
                wanted = self._looks[claim].wanted
                wanted.discard(part.hash)
                wanted |= absent
                touched[claim] = None
            missing.update(dict.fromkeys(one for one in below if one in absent))
        return list(missing), [claim for claim in touched if not self._looks[claim].wanted]

    def lost(self, hashes: Iterable[bytes]) -> list[Claim]:
        """Return the claims that wait for one of these cells."""
        gone = set(hashes)
        return [claim for claim, look in self._looks.items() if not gone.isdisjoint(look.wanted)]

    # --- the rest ---------------------------------------------------------------------------------

    def follow(
        self,
        slots: Iterable[tuple[Slot, list[bytes]]],
        cells: Mapping[bytes, bytes],
        missing: Iterable[bytes],
    ) -> None:
        """Note in which slots the cells lie that a claim waits for.

        slots: with the hashes that lead into each. cells: those at hand. missing: what is not.
        """
        absent = set(missing)
        for slot, names in slots:
            if not absent:
                return
            seen = set(names)
            front = list(names)
            while front:
                hash = front.pop()
                if hash in absent:
                    self._slots[hash] = slot
                    absent.discard(hash)
                elif hash in cells:
                    fresh = [one for one in references(cells[hash]) if one not in seen]
                    seen.update(fresh)
                    front += fresh

    def arrived(self, parts: Iterable[Part], missing: Iterable[bytes]) -> list[tuple[Slot, int]]:
        """Charge cells to their slots; return (slot, bytes so far) of those that got some.

        missing: what is waited for because of these cells.
        """
        absent = set(missing)
        touched: dict[bytes, None] = {}
        for part in parts:
            slot = self._slots.pop(part.hash, None)
            if slot is None:
                continue
            key = slot.key
            _, before = self._arrived.get(key, (slot, 0))
            self._arrived[key] = slot, before + len(part.data)
            touched[key] = None
            for hash in references(part.data):
                if hash in absent:
                    self._slots.setdefault(hash, slot)
        return [self._arrived[key] for key in touched]

    def waits_for(self, slot: Slot) -> list[bytes]:
        """Return the hashes of a slot that are waited for."""
        key = slot.key
        return [hash for hash, one in self._slots.items() if one.key == key]

    def drop(self, slot: Slot) -> None:
        """Charge nothing more to a slot: it was taken, or is refused."""
        self._arrived.pop(slot.key, None)
        for hash in self.waits_for(slot):
            del self._slots[hash]

    def settle(self) -> None:
        """Forget everything about cells: nothing waits for any."""
        self._slots.clear()
        self._arrived.clear()


def _nodes_below(encoding: bytes) -> list[bytes]:
    """Return the hashes of the nodes below an inner node of a map, none for any other cell.

    All of them are asked for at once: a large map takes as many rounds as it has levels.
    """
    try:
        cell = decode(encoding)
    except BadFormat:
        return []
    is_inner = isinstance(cell, Map) and len(cell) > MAP_LEAF_MAX
    return references(encoding) if is_inner else []
