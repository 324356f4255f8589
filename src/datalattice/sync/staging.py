"""Staging: cells of a value that is not complete yet, held until all below them is here.

A cell moves on to the store as soon as everything below it is stored, so the store never holds a
cell whose children are missing ("here" then means "here with all below"), and a huge value streams
through: only cells above the gaps are kept in memory, in a 16-way tree a few in a hundred.

A *claim* is a value that somebody waits for: the references of its top. When the last of them is
stored the claim is complete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from datalattice.cells import references

REFERENCE_BYTES: Final = 400
"""What a reference of a waiting cell takes in memory, measured: a hash, its gap, who waits for it,
and that it is wanted."""


class Home(Protocol):
    """Where complete cells live."""

    def has_many(self, hashes: Iterable[bytes]) -> set[bytes]:
        """Return those of `hashes` that are here, with all below them."""
        ...


@dataclass(slots=True)
class Progress:
    """What an addition brought: cells to store (children first), gaps, complete claims."""

    stored: list[tuple[bytes, bytes]] = field(default_factory=list)
    missing: list[bytes] = field(default_factory=list)
    complete: list[object] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Cell:
    """A cell and the hashes it refers to."""

    encoding: bytes
    below: list[bytes]

    @property
    def size_bytes(self) -> int:
        """About what it takes in memory while it waits, with the bookkeeping of its references."""
        return len(self.encoding) + REFERENCE_BYTES * len(self.below)


class Staging:
    """Cells above gaps, and who waits for what."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._cells: dict[bytes, _Cell] = {}
        self._gaps: dict[object, int] = {}  # cell hash or claim -> references not stored yet
        self._waiting: dict[
            bytes, list[object]
        ] = {}  # hash not stored yet -> cells and claims above it
        self._claims: dict[object, list[bytes]] = {}
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._cells)

    def is_wanted(self, hash: bytes) -> bool:
        """Return whether something waits for this cell and it is not here."""
        return hash in self._waiting and hash not in self._cells

    def claim(self, claim: object, hashes: list[bytes], cells: Mapping[bytes, bytes]) -> Progress:
        """Wait for `hashes` on behalf of `claim`, with these cells at hand.

        Cells that are not below the hashes are not kept.
        """
        reached: dict[bytes, _Cell] = {}
        outside: dict[bytes, None] = {}  # in order of first occurrence
        front = hashes
        while front:
            at_hand = [hash for hash in front if hash in cells and hash not in self._cells]
            stored = self._home.has_many(at_hand)  # a peer may send what is here already
            below: list[bytes] = []
            for hash in front:
                if hash in reached:
                    continue
                if hash in cells and hash not in stored and hash not in self._cells:
                    cell = reached[hash] = _Cell(cells[hash], references(cells[hash]))
                    below.extend(cell.below)
                elif hash not in stored:
                    outside[hash] = None
            front = below
        is_alone = self._waiting.keys().isdisjoint(outside)
        if is_alone and len(self._home.has_many(outside)) == len(outside):
            return self._pass(claim, hashes, reached)
        self._claims[claim] = hashes
        return self._add(reached, claim, hashes)

    def _pass(self, claim: object, hashes: list[bytes], cells: Mapping[bytes, _Cell]) -> Progress:
        """Pass on a claim that has no gap below it, and what these cells complete."""
        progress = Progress(stored=_upwards(hashes, cells), complete=[claim])
        ready: list[object] = []
        if self._waiting:
            for hash in cells:
                self._fill(hash, ready)
        self._advance(ready, progress)
        return progress

    def add(self, cells: Mapping[bytes, bytes]) -> Progress:
        """Take cells that something waits for; others are not kept."""
        wanted = {
            hash: _Cell(encoding, references(encoding))
            for hash, encoding in cells.items()
            if self.is_wanted(hash)
        }
        return self._add(wanted, None, [])

    def _add(self, fresh: dict[bytes, _Cell], claim: object, hashes: list[bytes]) -> Progress:
        above: list[tuple[object, list[bytes]]] = [(h, cell.below) for h, cell in fresh.items()]
        if claim is not None:
            above.append((claim, hashes))
        waiting = self._waiting
        # In order of first occurrence, so that the same messages lead to the same requests.
        outside = dict.fromkeys(
            ref for _, refs in above for ref in refs if ref not in fresh and ref not in waiting
        )
        stored = self._home.has_many(outside)
        absent = dict.fromkeys(ref for ref in outside if ref not in stored)
        progress = Progress(missing=list(absent))
        ready: list[object] = []
        for key, refs in above:
            gaps = 0
            for ref in refs:
                if ref in fresh or ref in absent or ref in waiting:
                    if ref in waiting and ref not in fresh and self.is_wanted(ref):
                        # Whoever sent this is one more to be asked for it.
                        progress.missing.append(ref)
                    waiting.setdefault(ref, []).append(key)
                    gaps += 1
            self._gaps[key] = gaps
            if not gaps:
                ready.append(key)
        self._cells.update(fresh)
        self.size_bytes += sum(cell.size_bytes for cell in fresh.values())
        self._advance(ready, progress)
        return progress

    def _advance(self, ready: list[object], progress: Progress) -> None:
        """Pass on what has no gap below it, and what that completes in turn."""
        while ready:
            key = ready.pop()
            del self._gaps[key]
            if not isinstance(key, bytes):
                del self._claims[key]
                progress.complete.append(key)
                continue
            cell = self._cells.pop(key)
            self.size_bytes -= cell.size_bytes
            progress.stored.append((key, cell.encoding))
            self._fill(key, ready)

    def _fill(self, hash: bytes, ready: list[object]) -> None:
        """Close the gaps that a cell leaves which is stored now."""
        for parent in self._waiting.pop(hash, ()):
            self._gaps[parent] -= 1
            if not self._gaps[parent]:
                ready.append(parent)

    def claims_above(self, hashes: Iterable[bytes]) -> list[object]:
        """Return the claims that cannot complete without these cells."""
        found: dict[object, None] = {}
        seen: set[bytes] = set()
        front = list(hashes)
        while front:
            hash = front.pop()
            if hash in seen:
                continue
            seen.add(hash)
            for parent in self._waiting.get(hash, ()):
                if isinstance(parent, bytes):
                    front.append(parent)
                else:
                    found[parent] = None
        return list(found)

    def heaviest(self, group: Callable[[object], object]) -> list[object]:
        """Return the claims of those groups that hold most, until they make up a quarter of all.

        A quarter, so that this need not be asked again at once: it looks at every cell.
        """
        weights: dict[object, int] = {}
        members: dict[object, list[object]] = {}
        for claim, hashes in self._claims.items():
            name = group(claim)
            members.setdefault(name, []).append(claim)
            weights[name] = weights.get(name, 0) + self._weight(hashes)
        found: list[object] = []
        room = self.size_bytes / 4
        for name in sorted(weights, key=lambda name: weights[name], reverse=True):
            found += members[name]
            room -= weights[name]
            if room <= 0:
                break
        return found

    def _weight(self, hashes: list[bytes]) -> int:
        """Return what the cells below these take in memory."""
        seen = set(hashes)
        front = list(hashes)
        weight = 0
        while front:
            cell = self._cells.get(front.pop())
            if cell is not None:
                weight += cell.size_bytes
                fresh = [hash for hash in cell.below if hash not in seen]
                seen.update(fresh)
                front += fresh
        return weight

    def release(self, claim: object) -> None:
        """Forget a claim that a newer one replaces; the cells fetched for it stay."""
        for hash in self._claims.pop(claim, ()):
            above = self._waiting.get(hash)
            if above is not None:
                self._waiting[hash] = [key for key in above if key != claim]
        self._gaps.pop(claim, None)

    def drop(self, claims: Iterable[object]) -> None:
        """Forget claims, and every cell that only they waited for."""
        for claim in claims:
            self._claims.pop(claim, None)
        kept: set[bytes] = set()
        front = [hash for hashes in self._claims.values() for hash in hashes]
        while front:
            hash = front.pop()
            if hash in self._waiting and hash not in kept:
                kept.add(hash)
                cell = self._cells.get(hash)
                if cell is not None:
                    front.extend(cell.below)
        self._cells = {hash: cell for hash, cell in self._cells.items() if hash in kept}
        alive = self._cells.keys() | self._claims.keys()
        self._gaps = {key: gaps for key, gaps in self._gaps.items() if key in alive}
        self._waiting = {
            hash: [key for key in above if key in alive]
            for hash, above in self._waiting.items()
            if hash in kept
        }
        self.size_bytes = sum(cell.size_bytes for cell in self._cells.values())


def _upwards(hashes: list[bytes], cells: Mapping[bytes, _Cell]) -> list[tuple[bytes, bytes]]:
    """Return the cells below `hashes`, each after those that it refers to."""
    found: dict[bytes, bytes] = {}
    stack = [(hash, cells[hash], False) for hash in hashes if hash in cells]
    while stack:
        hash, cell, is_done = stack.pop()
        if is_done:
            found[hash] = cell.encoding
        elif hash not in found:
            stack.append((hash, cell, True))
            for ref in cell.below:
                child = cells.get(ref)
                if child is None or ref in found:
                    continue
                if child.below:
                    stack.append((ref, child, False))
                else:
                    found[ref] = child.encoding
    return list(found.items())
