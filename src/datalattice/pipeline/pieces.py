"""Pieces: an Index, or what differs between two, cut into parts for tasks.

A piece stands for itself: it holds encodings of subtrees, so a task reads what the planner saw,
whatever is committed meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from datalattice.cells import Index, IndexPart, Loader, Value, decode, encode
from datalattice.errors import BadFormat

ENTRIES_PER_TASK_MAX: Final = 16_384
"""Entries that one task reads, about: enough to make the start of a task small beside them."""

Piece = tuple[tuple[bytes | None, bytes | None], ...]
"""Neighbouring subtrees, each as the encodings of what was there before and of what is now."""


def cut(before: Index | None, after: Index | None, entries_max: int) -> Iterator[Piece]:
    """Yield what differs between two indexes in pieces of about `entries_max` entries, in order.

    Shapes: before: nil where all of `after` is asked for.
    Cost:   loads the nodes above the pieces; what is equal on both sides is not looked into.
    Raises: MissingData: a node is not here.
    """
    if before is not None and after is not None and before.hash == after.hash:
        return
    waiting = [IndexPart(before, after)]
    piece: list[tuple[bytes | None, bytes | None]] = []
    size = 0
    while waiting:
        part = waiting.pop()
        are_both = part.own is not None and part.other is not None
        if part.size > max(entries_max, _ONE_KEY if are_both else 1):
            waiting.extend(reversed(part.split()))
            continue
        if piece and size + part.size > entries_max:
            yield tuple(piece)
            piece, size = [], 0
        if part.size:
            piece.append((_encoding(part.own), _encoding(part.other)))
            size += part.size
    if piece:
        yield tuple(piece)


_ONE_KEY: Final = 2
"""Size of a part with one key on both sides, which cannot be split."""


def _encoding(index: Index | None) -> bytes | None:
    return None if index is None else encode(index)


def entries(piece: Piece, loader: Loader) -> Iterator[tuple[Value, Value]]:
    """Yield (key, value) of what a piece has now and had not before, in order.

    A key that is gone is not told. Runs in tasks.
    Raises: MissingData. BadFormat: a subtree is none.
    """
    for before, after in piece:
        part = IndexPart(_decoded(before, loader), _decoded(after, loader))
        for key, _, _, is_there, value in part.differences():
            if is_there:
                yield key, value


def _decoded(encoding: bytes | None, loader: Loader) -> Index | None:
    if encoding is None:
        return None
    found = decode(encoding, loader)
    if not isinstance(found, Index):
        raise BadFormat("a piece of an index is no index")
    return found
