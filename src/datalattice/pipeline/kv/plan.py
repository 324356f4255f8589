"""Which subtrees of which databases each task reads. Uses neither Spark nor a store.

The planner skips equal subtrees on the way down. It does not know how many keys differ below a pair
of subtrees until a task reads them. So it cuts such pairs finer than the subtrees of a single root:
a few changes in a large database then make few and small tasks.

Source: docs/spark-kv.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from datalattice.cells import EMPTY_INDEX, Index, IndexPart, Loader, decode, encode, is_embedded
from datalattice.errors import BadFormat
from datalattice.limits import HASH_BYTES
from datalattice.pipeline.kv.view import DatabaseName, DatabasePair

KEYS_PER_TASK_MAX: Final = 131_072
"""A database with more keys becomes several tasks, so that it uses all cores."""

PIECES_PER_TASK: Final = 8
"""Least number of subtrees for a task, approximately; finer subtrees make more equal tasks."""

_PIECES_MAX: Final = 262_144
"""Most subtrees of a plan. When it has as many, the planner stops cutting."""

FINE_PIECES_MAX: Final = 4_096
"""Up to this many subtrees, pairs are cut finer than their size requires."""

FINE_KEYS_MIN: Final = 512
"""Pairs with at most this many keys are not cut finer."""

_ONE_KEY: Final = 2
"""Size of a part that has the same single key on both sides; it cannot be cut."""

_REF: Final = b"\x20"
"""Tag of a reference to a cell, as in an encoding."""


@dataclass(frozen=True, slots=True)
class DatabaseSubtrees:
    """A subtree of a database before and now; a task needs no root to read it.

    before, after: an encoding, or a reference to a cell; empty if absent.
    stores: the same for the stores that contain them, since a name longer than 32 bytes may be
            stored in two subtrees.
    """

    name: DatabaseName
    before: bytes
    after: bytes
    stores: tuple[bytes, bytes] = (b"", b"")

    def part(self, loader: Loader) -> IndexPart:
        """Return the pair of subtrees.

        Raises: MissingData. BadFormat: one is not a subtree of an Index.
        """
        return IndexPart(_opened(self.before, loader), _opened(self.after, loader))

    def store_before(self, loader: Loader) -> Index:
        """Return the store before. Raises: as `part`."""
        return _opened(self.stores[0], loader) or EMPTY_INDEX

    def store_after(self, loader: Loader) -> Index:
        """Return the store now. Raises: as `part`."""
        return _opened(self.stores[1], loader) or EMPTY_INDEX

    def now(self, loader: Loader) -> IndexPart:
        """Return the present subtree paired with nothing. Raises: as `part`."""
        return IndexPart(None, _opened(self.after, loader))


Task = tuple[DatabaseSubtrees, ...]
"""What one task reads, in key order."""


def plan(pairs: Iterable[DatabasePair], min_tasks: int | None = None) -> list[Task]:
    """Return tasks of about the same size that read the differences, in key order.

    Cost:   loads the nodes above the pieces.
    Raises: MissingData: a node is missing. BadFormat: it is not an Index.
    """
    parts = [(pair, IndexPart(pair.before, pair.after)) for pair in pairs]
    # Finer than a task, so that tasks of several subtrees come out about equal.
    parts = _cut(parts, KEYS_PER_TASK_MAX // PIECES_PER_TASK)
    # No difference: Spark plans an empty partition of its own.
    if not parts:
        return []
    total = sum(part.size for _, part in parts)
    # At least as many as asked for, but none without a key.
    count = max(-(-total // KEYS_PER_TASK_MAX), min(min_tasks or 1, total))
    if min_tasks is not None:
        parts = _cut(parts, max(1, total // (count * PIECES_PER_TASK)))
    # At most one task for each piece: an index may claim to hold 2**62 keys.
    count = min(count, len(parts))
    tasks: list[list[DatabaseSubtrees]] = [[] for _ in range(count)]
    before = 0
    stores = {id(pair): _stores(pair) for pair, _ in parts}
    for pair, part in parts:
        # A piece goes to the task of its middle, so sizes differ by half a piece at most.
        number = (2 * before + part.size) * count // (2 * total)
        sides = _closed(part.own), _closed(part.other)
        tasks[number].append(DatabaseSubtrees(pair.name, *sides, stores[id(pair)]))
        before += part.size
    return [tuple(pieces) for pieces in tasks if pieces]


_Part = tuple[DatabasePair, IndexPart]


def _cut(parts: list[_Part], size_max: int) -> list[_Part]:
    """Return the parts, cut to at most `size_max` keys each, within the bounds above."""
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
    # The limit bounds the driver's memory: an index may claim to hold 2**62 keys.
    if size > size_max:
        return pieces < _PIECES_MAX
    # The size of a pair says little about how much differs, so pairs are cut further.
    has_two_sides = part.own is not None and part.other is not None
    return has_two_sides and size > FINE_KEYS_MIN and pieces < FINE_PIECES_MAX


def _stores(pair: DatabasePair) -> tuple[bytes, bytes]:
    before, after = pair.stores or (pair.before, pair.after)
    return _closed(before), _closed(after)


def _closed(index: Index | None) -> bytes:
    """Return a subtree as its parent contains it: an encoding or a reference."""
    if index is None:
        return b""
    encoding = encode(index)
    # A single entry was split out of a node, so no store has a cell for it.
    if len(index) == 1 or is_embedded(index):
        return encoding
    return _REF + index.hash


def _opened(closed: bytes, loader: Loader) -> Index | None:
    if not closed:
        return None
    is_ref = closed[:1] == _REF and len(closed) == 1 + HASH_BYTES
    found = loader.load(closed[1:]) if is_ref else decode(closed, loader)
    if not isinstance(found, Index):
        raise BadFormat("a subtree of a database is not an Index")
    return found
