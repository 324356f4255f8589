"""Divide an Index, or the difference of two, into pieces for tasks.

A piece has the encodings of its subtrees, so a task reads the root that the planner read, even if
other roots are committed meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from datalattice.cells import Index, IndexPart, Loader, Value, decode, encode
from datalattice.errors import BadFormat

ENTRIES_PER_TASK_MAX: Final = 16_384
"""Approximate entries per task, enough to make the start of a task cheap in comparison."""

EncodedSubtrees = tuple[tuple[bytes | None, bytes | None], ...]
"""Neighbouring subtrees: for each the encoding before and the encoding now; None if absent."""


def split(before: Index | None, after: Index | None, entries_max: int) -> Iterator[IndexPart]:
    """Yield the difference of two indexes in parts of at most `entries_max` entries, in key order.

    Entries on both sides count. A part of one key is not split, however small `entries_max` is.

    Cost:   loads the nodes above the parts; equal subtrees are not loaded.
    Raises: MissingData: a node is not in the store.
    """
    # Equal hashes mean equal trees, so nothing is loaded.
    if before is not None and after is not None and before.hash == after.hash:
        return
    waiting = [IndexPart(before, after)]
    while waiting:
        part = waiting.pop()
        are_both = part.own is not None and part.other is not None
        # One key on both sides counts twice and cannot be divided.
        if part.size > max(entries_max, _ONE_KEY if are_both else 1):
            waiting.extend(reversed(part.split()))
        elif part.size:
            yield part


def cut(before: Index | None, after: Index | None, entries_max: int) -> Iterator[EncodedSubtrees]:
    """Yield the difference of two indexes as pieces of about `entries_max` entries, in key order.

    before: None yields all of `after`. Cost, Raises: as `split`.
    """
    piece: list[tuple[bytes | None, bytes | None]] = []
    size = 0
    for part in split(before, after, entries_max):
        # Neighbours share a task, since many small subtrees would make tasks too small.
        if piece and size + part.size > entries_max:
            yield tuple(piece)
            piece, size = [], 0
        piece.append((_encoding(part.own), _encoding(part.other)))
        size += part.size
    if piece:
        yield tuple(piece)


_ONE_KEY: Final = 2
"""Size of a part with one key on both sides; it cannot be split."""


def _encoding(index: Index | None) -> bytes | None:
    return None if index is None else encode(index)


def changed_entries(piece: EncodedSubtrees, loader: Loader) -> Iterator[tuple[Value, Value]]:
    """Yield (key, value) of the entries that are new or changed in a piece, in key order.

    Deleted keys produce no entry. Runs in tasks.
    Raises: MissingData. BadFormat: a subtree is not an Index.
    """
    for before, after in piece:
        part = IndexPart(_decoded(before, loader), _decoded(after, loader))
        for key, _, _, is_there, value in part.differences():
            # "A batch has the last version of each record" (docs/spark-formats.md, Grid): removed
            # records have no version.
            if is_there:
                yield key, value


def _decoded(encoding: bytes | None, loader: Loader) -> Index | None:
    if encoding is None:
        return None
    found = decode(encoding, loader)
    if not isinstance(found, Index):
        raise BadFormat("a partition of an index is not an Index")
    return found
