"""Spelling out: what a plain peer lacks, in values that are complete in themselves.

Such a peer takes a value with the cells that came with it and fetches nothing, so it is sent values
with everything below them. They are small parts of the root: the entry of one owner, or entries of
a content store, each in a container of the same kind, which merges into the peer's. Entries that
the peer has already are not sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeGuard

from datalattice.cells import (
    EMPTY_INDEX,
    EMPTY_MAP,
    Index,
    Map,
    Value,
    Vector,
    encode,
    is_embedded,
    novelty,
    references,
    same,
    to_text,
    value_hash,
)
from datalattice.errors import MissingData
from datalattice.lattice import CASLattice, DataLattice, KeyedLattice, Lattice, SignedLattice
from datalattice.limits import EMBEDDED_BYTES_MAX
from datalattice.store import Store
from datalattice.sync.lattice.delta import FETCH_MAX, LoadAll

BUNDLE_BYTES: Final = 1_000_000
"""Entries of a content store are bundled in values of about this size."""

FRAME_RESERVE_BYTES: Final = 1_000
"""Room in a frame for the message around the cells, and the path."""

_LENGTH_BYTES: Final = 3
"""Greatest size of the length before a cell in a message."""

_Container = Map | Index
_Path = tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class CompleteValue:
    """A value at a path, and every cell at or below it that is not embedded."""

    path: tuple[Value, ...]
    value: Value
    cells: dict[bytes, bytes]

    @property
    def size_bytes(self) -> int:
        """Bytes of its cells."""
        return sum(map(len, self.cells.values()))


@dataclass(slots=True)
class Spelling:
    """Values to send to a peer now.

    told:      a root of all values sent so far, these pieces included, and nothing else.
    is_all:    after these pieces the peer has everything.
    too_large: paths of entries that do not fit into one frame; they count as sent.
    missing:   cells that the peer lacks and this store does not have.
    """

    told: Value
    pieces: list[CompleteValue] = field(default_factory=list)
    is_all: bool = True
    too_large: list[str] = field(default_factory=list)
    missing: list[bytes] = field(default_factory=list)


class Speller:
    """Spells out one root value.

    frame_max: largest payload that a peer takes, in bytes.
    room:      bytes of pieces after which no further piece is begun.
    """

    def __init__(
        self,
        lattice: Lattice,
        view: Value,
        store: Store,
        fetch: LoadAll,
        frame_max: int,
        room: int,
    ) -> None:
        self._lattice = lattice
        self._view = view
        self._store = store
        self._fetch = fetch
        self._bytes_max = frame_max - FRAME_RESERVE_BYTES
        self._room = room

    def spell_out(self, heard: Sequence[Value], told: Value) -> Spelling:
        """Return what a peer lacks that holds all of `heard`, and was sent `told`.

        Cost: the entries that differ from the first of these, and the cells of those returned.
        """
        self._made = Spelling(told)
        known = [value for value in (*heard, told) if value is not None]
        self._walk(self._lattice, self._view, known, ())
        return self._made

    def _walk(self, lattice: Lattice, value: Value, known: list[Value], path: _Path) -> None:
        """Spell out the value at a path of the root, where the peer has `known`."""
        # The peer has it already: equal hashes, so nothing below is visited.
        if any(same(value, one) for one in known):
            return
        if not _is_container(value):
            self._tell(path, value)
        elif not len(value):
            if not any(_is_like(one, value) for one in known):
                self._tell(path, value)
        elif isinstance(lattice, (DataLattice, CASLattice)):
            self._bundle(value, known, path)
        else:
            self._entries(lattice, value, known, path)

    def _entries(
        self, lattice: Lattice, value: _Container, known: list[Value], path: _Path
    ) -> None:
        """Spell out a container entry by entry."""
        first = next(iter(value.entries()))[0]
        # Without lattices for its entries the container merges as one value.
        if lattice.child(first) is None and not isinstance(lattice, KeyedLattice):
            self._tell(path, value)
            return
        for key, entry in _lacking(value, known):
            below = lattice.child(key)
            # "At most 8 MB at a time" (docs/protocol.md): the rest comes with later news.
            if self._room <= 0:
                self._made.is_all = False
                return
            # What one signature covers is sent in one piece.
            if below is not None and not isinstance(below, SignedLattice):
                there = [one.get(key) for one in known if _is_like(one, value) and key in one]
                self._walk(below, entry, there, (*path, key))
            elif below is not None:
                self._tell(path, _part(value, [(key, entry)]))

    def _bundle(self, value: _Container, known: list[Value], path: _Path) -> None:
        """Spell out entries that merge independently, many in one value."""
        entries: list[tuple[Value, Value]] = []
        bundle_max = min(BUNDLE_BYTES, self._bytes_max)
        size = 0
        for key, entry in _lacking(value, known):
            if self._room <= size:
                self._made.is_all = False
                break
            cells = self._cells(entry, (*path, key))
            # What cannot be sent counts as sent, or it would be tried for ever.
            if cells is None:
                self._note(path, _part(value, [(key, entry)]))
                continue
            # An entry takes no more than two embedded cells in the container above it.
            added = sum(len(cell) + _LENGTH_BYTES for cell in cells.values())
            added += 2 * EMBEDDED_BYTES_MAX
            # A value of one entry may be larger than a bundle, up to the frame limit.
            if entries and size + added > bundle_max:
                self._tell(path, _part(value, entries))
                entries, size = [], 0
            entries.append((key, entry))
            size += added
        if entries:
            self._tell(path, _part(value, entries))

    def _tell(self, path: _Path, value: Value) -> None:
        """Make a piece of a value."""
        cells = self._cells(value, path)
        if cells is not None:
            piece = CompleteValue(path, value, cells)
            self._made.pieces.append(piece)
            self._room -= piece.size_bytes + FRAME_RESERVE_BYTES
        self._note(path, value)

    def _note(self, path: _Path, value: Value) -> None:
        self._made.told = _joined(self._made.told, self._view, path, value)

    def _cells(self, value: Value, path: _Path) -> dict[bytes, bytes] | None:
        """Return the cells at and below a value; None, and a note, if it cannot be sent."""
        try:
            found = self._closure(value)
        except MissingData as error:
            self._made.missing.extend(error.hashes)
            return None
        if found is None:
            keys = list(path)
            if _is_container(value) and len(value) == 1:
                keys.append(next(iter(value.entries()))[0])
            self._made.too_large.append(to_text(Vector.of(keys)))
        return found

    def _closure(self, value: Value) -> dict[bytes, bytes] | None:
        """Return the cells at and below a value; None: too many bytes for a frame.

        Raises: MissingData: one of them is not here.
        """
        top = encode(value)
        # Cells that only exist in memory come from the value itself, all others from the store.
        found = {hash: encoding for hash, encoding, _ in novelty(value, self._store)}
        if not is_embedded(value):
            found[value_hash(value)] = top
        size = sum(len(encoding) + _LENGTH_BYTES for encoding in found.values())
        level = [ref for cell in (top, *found.values()) for ref in references(cell)]
        while level and size <= self._bytes_max:
            fresh = [hash for hash in dict.fromkeys(level) if hash not in found]
            level = []
            for start in range(0, len(fresh), FETCH_MAX):
                some = fresh[start : start + FETCH_MAX]
                for hash, encoding in zip(some, self._fetch(some), strict=True):
                    if encoding is None:
                        raise MissingData([hash])
                    size += len(encoding) + _LENGTH_BYTES
                    found[hash] = encoding
                    level.extend(references(encoding))
                if size > self._bytes_max:
                    return None
        return found if size <= self._bytes_max else None


def _is_container(value: Value) -> TypeGuard[_Container]:
    return isinstance(value, (Map, Index))


def _is_like(value: Value, other: Value) -> TypeGuard[_Container]:
    """Return whether both are containers of one kind."""
    if isinstance(value, Map):
        return isinstance(other, Map)
    return isinstance(value, Index) and isinstance(other, Index)


def _part(like: _Container, entries: list[tuple[Value, Value]]) -> _Container:
    return _empty(like).put_many(entries)


def _empty(like: Value) -> _Container:
    return EMPTY_MAP if isinstance(like, Map) else EMPTY_INDEX


def _lacking(value: _Container, known: list[Value]) -> Iterator[tuple[Value, Value]]:
    """Yield the entries of a container that none of `known` has with the same value."""
    alike = [one for one in known if _is_like(one, value)]
    base = alike[0] if alike else _empty(value)
    for key, has, entry, _, _ in value.differences(base):  # type: ignore[arg-type]
        if has and not any(key in one and same(one.get(key), entry) for one in alike[1:]):
            yield key, entry


def _joined(told: Value, view: Value, path: _Path, value: Value) -> Value:
    """Return `told`, the root of what a peer was sent, with `value` added at a path."""
    if not path:
        if _is_container(value) and _is_like(told, value):
            return told.put_many(list(value.entries()))
        return value
    assert _is_container(view)
    key = path[0]
    base = told if _is_like(told, view) else _empty(view)
    below = base.get(key) if key in base else None
    return base.put(key, _joined(below, view.get(key), path[1:], value))
