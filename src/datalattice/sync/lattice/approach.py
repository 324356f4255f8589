"""Approach: the upper cells of foreign roots are fetched first; the rest is charged to owners.

Whose data a value has is known once the containers that lead to its owners are here: the root and
the maps of owners, which are few cells. `Approach` fetches them first and holds them in memory.
Then what is refused is cut off, and only the rest is claimed and fetched.

A cell of the rest is fetched because a cell above it names it, so `SlotFetches` knows in whose slot
each one lies. Cells are charged as they arrive, and a slot without room for them is cut off long
before it is complete.

Source: docs/design/foreign-data.md "Room".
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from datalattice.cells import (
    Map,
    UncachedLoader,
    Value,
    decode,
    decode_trusted,
    encode,
    references,
)
from datalattice.errors import BadFormat
from datalattice.limits import MAP_LEAF_MAX
from datalattice.store import Store
from datalattice.sync.lattice.incoming import Claim, Incoming
from datalattice.sync.lattice.usage import OwnerSlot
from datalattice.sync.replica import Part, Probe

AHEAD_BYTES_MAX: Final = 16_000_000
"""Most bytes of upper cells in memory; a thousand owners have some 200 kB. Beyond it, the values
that wait for upper cells are given up."""


class Ahead(UncachedLoader):
    """Loads cells that came with a message, were fetched ahead, or are stored."""

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


@dataclass(slots=True)
class _Fetched:
    """What is fetched for a slot: the hashes that are missing, and the bytes that came."""

    slot: OwnerSlot
    hashes: dict[bytes, None] = field(default_factory=dict)
    size: int = 0


class Approach:
    """The values of one replica whose upper cells are fetched. One thread uses it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._ahead: dict[bytes, bytes] = {}
        self._looks: dict[Claim, _Look] = {}
        self._above: dict[bytes, dict[Claim, None]] = {}  # upper cell -> the values that want it
        self.size_bytes = 0

    def __contains__(self, claim: Claim) -> bool:
        return claim in self._looks

    def __len__(self) -> int:
        return len(self._looks)

    def claims(self) -> list[Claim]:
        """Return the values whose upper cells are fetched."""
        return list(self._looks)

    def count(self, peer: str) -> int:
        """Return for how many values of a peer upper cells are fetched."""
        return sum(claim.peer == peer for claim in self._looks)

    def open(self, incoming: Incoming) -> tuple[Value, Ahead]:
        """Return (a stated value, what loads its cells).

        Raises: MissingData: its own cell is not here.
        """
        loader = Ahead(incoming.cells.encodings(), self._ahead, self._store)
        if incoming.absent is not None:
            return loader.load(incoming.absent), loader
        # Decoded anew: only `loader` finds the cells below that were fetched separately.
        return decode(encode(incoming.value), loader), loader

    def cells(self, incoming: Incoming, more: dict[bytes, bytes]) -> Mapping[bytes, bytes]:
        """Return the cells of a stated value in memory: those that came, `more`, and upper ones."""
        brought = incoming.cells.encodings()
        # The upper cells of all values may be many: they are not copied.
        if self._ahead:
            return ChainMap(more, brought, self._ahead)
        return brought | more

    def probe_of(self, claim: Claim) -> Probe:
        """Return the statement whose upper cells are fetched."""
        return self._looks[claim].probe

    def look(self, claim: Claim, probe: Probe, hashes: Iterable[bytes]) -> list[bytes]:
        """Wait for upper cells of a value; return those to be requested. Fetched ones are kept."""
        self._stop(claim)
        look = self._looks[claim] = _Look(probe)
        wanted = list(dict.fromkeys(hashes))
        self._want(claim, look, wanted)
        return wanted

    def _want(self, claim: Claim, look: _Look, hashes: Iterable[bytes]) -> None:
        for hash in hashes:
            look.wanted.add(hash)
            self._above.setdefault(hash, {})[claim] = None

    def forget(self, claim: Claim) -> Probe | None:
        """Stop waiting for the upper cells of a value; return its statement."""
        found = self._stop(claim)
        if not self._looks:
            self._ahead = {}  # a new dict: a loader may still use the former one
            self.size_bytes = 0
        return found

    def _stop(self, claim: Claim) -> Probe | None:
        found = self._looks.pop(claim, None)
        if found is None:
            return None
        # An upper cell may be wanted by several values.
        for hash in found.wanted:
            above = self._above[hash]
            del above[claim]
            if not above:
                del self._above[hash]
        return found.probe

    def take(self, parts: Iterable[Part]) -> tuple[list[bytes], list[Claim]]:
        """Take upper cells; return (hashes to be requested, claims that have all of theirs)."""
        missing: dict[bytes, None] = {}
        touched: dict[Claim, None] = {}
        for part in parts:
            waiting = self._above.pop(part.hash, None)
            if waiting is None:
                continue
            if part.hash not in self._ahead:
                self._ahead[part.hash] = part.data
                self.size_bytes += len(part.data)
            # All are requested at once: a large map takes as many rounds as it has levels.
            below = [one for one in _nodes_below(part.data) if one not in self._ahead]
            absent = set(self._store.missing(below))
            for claim in waiting:
                look = self._looks[claim]
                look.wanted.discard(part.hash)
                self._want(claim, look, absent)
                touched[claim] = None
            missing.update(dict.fromkeys(one for one in below if one in absent))
        return list(missing), [claim for claim in touched if not self._looks[claim].wanted]

    def lost(self, hashes: Iterable[bytes]) -> list[Claim]:
        """Return the claims that wait for one of these cells."""
        return list(dict.fromkeys(claim for hash in hashes for claim in self._above.get(hash, ())))


class SlotFetches:
    """The cells that are fetched for owners' slots, and the bytes that came for each."""

    def __init__(self) -> None:
        self._fetched: dict[bytes, _Fetched] = {}  # by the key of the slot
        self._slots: dict[bytes, _Fetched] = {}  # missing hash -> where it lies

    def follow(
        self,
        slots: Iterable[tuple[OwnerSlot, list[bytes]]],
        cells: Mapping[bytes, bytes],
        missing: Iterable[bytes],
    ) -> None:
        """Note in which slots the cells lie that a claim waits for.

        slots:   with the hashes that lead into each.
        cells:   encodings in memory, by hash.
        missing: the hashes of the cells that are not here.
        """
        absent = set(missing)
        # A cell that several slots of one value share is charged once, to the first of them.
        for slot, names in slots:
            if not absent:
                return
            found: list[bytes] = []
            seen = set(names)
            front = list(names)
            while front:
                hash = front.pop()
                if hash in absent:
                    found.append(hash)
                    absent.discard(hash)
                elif hash in cells:
                    fresh = [one for one in references(cells[hash]) if one not in seen]
                    seen.update(fresh)
                    front += fresh
            if found:
                fetched = self._fetched.setdefault(slot.key, _Fetched(slot))
                for hash in found:
                    self._assign(hash, fetched)

    def _assign(self, hash: bytes, fetched: _Fetched) -> None:
        # A cell that two slots share is charged to the one that asked last.
        before = self._slots.get(hash)
        if before is not None:
            del before.hashes[hash]
        self._slots[hash] = fetched
        fetched.hashes[hash] = None

    def arrived(
        self, parts: Iterable[Part], missing: Iterable[bytes]
    ) -> list[tuple[OwnerSlot, int]]:
        """Charge cells to their slots; return (slot, bytes so far) of those that got some.

        missing: hashes that are waited for because of these cells.
        """
        absent = set(missing)
        touched: dict[bytes, _Fetched] = {}
        for part in parts:
            fetched = self._slots.pop(part.hash, None)
            if fetched is None:
                continue
            # "Each cell that arrives is charged to the owner in whose slot it lies."
            del fetched.hashes[part.hash]
            fetched.size += len(part.data)
            touched[fetched.slot.key] = fetched
            # What a cell of a slot refers to lies in that slot, too.
            for hash in references(part.data):
                if hash in absent and hash not in self._slots:
                    self._assign(hash, fetched)
        return [(fetched.slot, fetched.size) for fetched in touched.values()]

    def waits_for(self, slot: OwnerSlot) -> list[bytes]:
        """Return the missing hashes of a slot."""
        fetched = self._fetched.get(slot.key)
        return [] if fetched is None else list(fetched.hashes)

    def drop(self, slot: OwnerSlot) -> None:
        """Stop charging a slot: it was taken, or is refused."""
        fetched = self._fetched.pop(slot.key, None)
        for hash in () if fetched is None else fetched.hashes:
            del self._slots[hash]

    def leave(self, hashes: Iterable[bytes]) -> None:
        """Stop charging cells: nothing waits for them any more."""
        for hash in hashes:
            fetched = self._slots.pop(hash, None)
            if fetched is not None:
                del fetched.hashes[hash]


def _nodes_below(encoding: bytes) -> list[bytes]:
    """Return the hashes of the nodes below an inner node of a map, none for any other cell."""
    try:
        cell = decode(encoding)
    except BadFormat:
        return []
    is_inner = isinstance(cell, Map) and len(cell) > MAP_LEAF_MAX
    return references(encoding) if is_inner else []
