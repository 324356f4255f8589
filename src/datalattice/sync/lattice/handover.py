"""Hand-over: the branches that a node keeps of an owner, for the nodes that can join them.

A node without the owner's key chooses one branch of a slot, so the other one may be nowhere but in
its evidence. A node that holds a key of the owner asks for it with the query path `[:forks owner]`;
the answer is a Vector of `[path cell]`, each cell to be merged at its path. It is never stored, and
no part of the announced value.

Source: docs/design/forks.md "Hand-over".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from datalattice.cells import EMPTY_VECTOR, Signed, Value, Vector, same
from datalattice.errors import MissingData
from datalattice.sync.lattice.forkrecords import FORKS_KEY, ForkRecord, Path

HANDED_MAX: Final = 8
"""Cells of one answer."""

HANDED_BYTES: Final = 4_000
"""Bytes of cells that come along with an answer: its entries; of branches what differs is asked."""

OWNERS_ASKED_MAX: Final = 8
"""Owners that one peer is asked for in one round; of more, the next ones in the next round."""


def is_fork_query(path: Path) -> bool:
    """Return whether a query path is that of a hand-over."""
    return len(path) == 2 and same(path[0], FORKS_KEY)


def fork_queries(owners: Sequence[Value], turn: int) -> list[Path]:
    """Return what one peer is asked in its round number `turn`."""
    count = min(len(owners), OWNERS_ASKED_MAX)
    first = turn * OWNERS_ASKED_MAX
    return [(FORKS_KEY, owners[(first + at) % len(owners)]) for at in range(count)]


def handed(
    records: Iterable[ForkRecord], owner: Value, is_shared: Callable[[Path], bool]
) -> Vector:
    """Return the answer: the branches of an owner that are kept, of slots that are shared."""
    found: list[Vector] = []
    for record in records:
        if record.loser is None or not same(record.owner, owner) or not is_shared(record.path):
            continue
        found.append(Vector.of((Vector.of(record.path), record.loser)))
        if len(found) == HANDED_MAX:
            break
    return Vector.of(found) if found else EMPTY_VECTOR


def one_handed(answer: Value, owner: Value, turn: int) -> tuple[Path, Value, bytes | None] | None:
    """Return (path, cell, nil) of one entry of an answer, or (path, nil, hash) of an absent cell.

    One at a time, another one each turn: of several values at one path a newer one would take the
    place of one that still waits for cells. None: there is none, or the answer is not one.
    """
    if not isinstance(answer, Vector) or not 0 < len(answer) <= HANDED_MAX:
        return None
    try:
        entry = answer[turn % len(answer)]
        path = entry[0] if isinstance(entry, Vector) and len(entry) == 2 else None
        if not isinstance(path, Vector) or not len(path) or not same(path[-1], owner):
            return None
        steps = tuple(path)
    except MissingData:
        return None
    assert isinstance(entry, Vector)
    try:
        cell = entry[1]
    except MissingData as error:
        return steps, None, error.hashes[0]
    return (steps, cell, None) if isinstance(cell, Signed) else None
