"""Plan: which subtrees of which databases each task reads. Pure: no Spark, no store.

What is equal on both sides is left out on the way down. How many keys differ below two subtrees is
not known before they are looked at, so those of a difference are cut finer than those of one
database: a few changes in a large database then make few and small tasks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from datalattice.cells import EMPTY_INDEX, Index, IndexPart, Loader, decode, encode, is_embedded
from datalattice.errors import BadFormat
from datalattice.limits import HASH_BYTES
from datalattice.pipeline.kv.view import DatabaseName, Pair

KEYS_PER_TASK_MAX: Final = 131_072
"""More keys become several tasks, so that one large database keeps all cores busy."""

PIECES_PER_TASK: Final = 8
"""Subtrees of one task, at least about: the finer they are, the more alike are the tasks."""

PIECES_MAX: Final = 262_144
"""Subtrees of one plan; where there would be more they stay as large as they are."""

FINE_PIECES_MAX: Final = 4_096
"""Up to so many subtrees those with two sides are cut finer than their size asks for."""

FINE_KEYS_MIN: Final = 512
"""Subtrees with two sides and no more keys than this are not cut for that."""

_ONE_KEY: Final = 2
"""Size of a part with one key on both sides, which cannot be cut."""

_REF: Final = b"\x20"
"""Begins a subtree that is known by its hash, as it does in a cell."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A subtree of a database as it was and as it is. It stands for itself: no root is looked up.

    before, after: the encoding, or a reference to a cell of its own; empty where there is nothing.
    stores: the same of the stores that they are parts of: a name longer than 32 bytes may stand in
            two parts.
    """

    name: DatabaseName
    before: bytes
    after: bytes
    stores: tuple[bytes, bytes] = (b"", b"")

    def part(self, loader: Loader) -> IndexPart:
        """Return the subtrees.

        Raises: MissingData. BadFormat: one is no subtree of an index.
        """
        return IndexPart(_opened(self.before, loader), _opened(self.after, loader))

    def store_before(self, loader: Loader) -> Index:
        """Return the store of which a part was there. Raises: as `part`."""
        return _opened(self.stores[0], loader) or EMPTY_INDEX

    def store_after(self, loader: Loader) -> Index:
        """Return the store of which a part is there. Raises: as `part`."""
        return _opened(self.stores[1], loader) or EMPTY_INDEX

    def now(self, loader: Loader) -> IndexPart:
        """Return the subtree as it is, as if nothing had been before.

        Raises: as `part`.
        """
        return IndexPart(None, _opened(self.after, loader))


Task = tuple[Piece, ...]
"""What one task reads, in the order of the keys."""


def plan(pairs: Iterable[Pair], min_tasks: int | None = None) -> list[Task]:
    """Return the tasks that read what differs, of about the same size, in the order of the keys.

    Cost:   loads the nodes above the pieces.
    Raises: MissingData: a node is not here. BadFormat: it is none.
    """
    parts = [(pair, IndexPart(pair.before, pair.after)) for pair in pairs]
    parts = _cut(parts, KEYS_PER_TASK_MAX // PIECES_PER_TASK)
    if not parts:
        return []
    total = sum(part.size for _, part in parts)
    count = max(-(-total // KEYS_PER_TASK_MAX), min(min_tasks or 1, total))
    if min_tasks is not None:
        parts = _cut(parts, max(1, total // (count * PIECES_PER_TASK)))
    # No more than there are pieces to share out: an index may claim to hold 2**62 keys.
    count = min(count, len(parts))
    tasks: list[list[Piece]] = [[] for _ in range(count)]
    before = 0
    stores = {id(pair): _stores(pair) for pair, _ in parts}
    for pair, part in parts:
        # By the middle of a piece, so that no task is more than half a piece off.
        place = (2 * before + part.size) * count // (2 * total)
        sides = _closed(part.own), _closed(part.other)
        tasks[place].append(Piece(pair.name, *sides, stores[id(pair)]))
        before += part.size
    return [tuple(pieces) for pieces in tasks if pieces]


_Part = tuple[Pair, IndexPart]


def _cut(parts: list[_Part], size_max: int) -> list[_Part]:
    """Return the parts, each cut until it is no larger than `size_max`, bounds permitting."""
    is_done = False
    while not is_done:
        is_done = True
        finer: list[_Part] = []
        for position, (pair, part) in enumerate(parts):
            if _is_cut(part, size_max, len(finer) + len(parts) - position):
                finer.extend((pair, below) for below in part.split())
                is_done = False
            else:
                finer.append((pair, part))
        parts = finer
    return [(pair, part) for pair, part in parts if part.size]


def _is_cut(part: IndexPart, size_max: int, pieces: int) -> bool:
    size = part.size
    if size <= _ONE_KEY:
        return False
    if size > size_max:
        return pieces < PIECES_MAX
    has_two_sides = part.own is not None and part.other is not None
    return has_two_sides and size > FINE_KEYS_MIN and pieces < FINE_PIECES_MAX


def _stores(pair: Pair) -> tuple[bytes, bytes]:
    before, after = pair.stores or (pair.before, pair.after)
    return _closed(before), _closed(after)


def _closed(index: Index | None) -> bytes:
    """Return a subtree as its parent holds it."""
    if index is None:
        return b""
    encoding = encode(index)
    # The entry of a node was made an index by itself, and is no cell of any store.
    if len(index) == 1 or is_embedded(index):
        return encoding
    return _REF + index.hash


def _opened(closed: bytes, loader: Loader) -> Index | None:
    if not closed:
        return None
    is_ref = closed[:1] == _REF and len(closed) == 1 + HASH_BYTES
    found = loader.load(closed[1:]) if is_ref else decode(closed, loader)
    if not isinstance(found, Index):
        raise BadFormat("a subtree of a database is no index")
    return found
