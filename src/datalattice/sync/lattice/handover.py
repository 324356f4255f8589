"""Hand-over: the branches that a node keeps of an owner go to the nodes that can join them.

A node without the owner's key chooses one branch of a slot, so the other one may exist only in its
evidence. A node that holds a key of the owner asks for it with the query path `[:forks owner]`. The
answer is a Vector of `[path cell]`, each cell to be merged at its path. It is never stored, and it
is not part of the announced value.

Source: docs/design/forks.md "Hand-over".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from datalattice.cells import (
    EMPTY_VECTOR,
    Index,
    Map,
    Signed,
    Value,
    Vector,
    arriving_names,
    same,
)
from datalattice.errors import MissingData
from datalattice.lattice import ValuePath, get_in, is_bare_did, public_key_of
from datalattice.sync.lattice.forkrecords import FORKS_KEY, ForkRecord

_HANDED_MAX: Final = 8
"""Greatest number of cells in one answer."""

HANDED_BYTES: Final = 4_000
"""Bytes of cells that come with an answer: its entries. The asker fetches the branches' cells."""

OWNERS_ASKED_MAX: Final = 8
"""Owners that one peer is asked about in one round; the next round goes on with the others."""

DIDS_MAX: Final = 64
"""Most DIDs that one call checks, and that it returns. Any peer may add any number of DIDs, and may
name a key of this node in the document of each."""


def is_fork_query(path: ValuePath) -> bool:
    """Return whether a query path asks for a hand-over."""
    return len(path) == 2 and same(path[0], FORKS_KEY)


def fork_queries(owners: Sequence[Value], turn: int) -> list[ValuePath]:
    """Return the query paths for one peer in its round number `turn`."""
    # Bounded for each round; the turn moves on, so every owner is asked for in time.
    count = min(len(owners), OWNERS_ASKED_MAX)
    first = turn * OWNERS_ASKED_MAX
    return [(FORKS_KEY, owners[(first + at) % len(owners)]) for at in range(count)]


def handed(
    records: Iterable[ForkRecord], owner: Value, is_shared: Callable[[ValuePath], bool]
) -> Vector:
    """Return the answer: the kept branches of an owner in slots that the asker may see."""
    found: list[Vector] = []
    # "At most 8 entries `[path cell]`" (docs/design/forks.md, Hand-over).
    for record in records:
        if record.loser is None or not same(record.owner, owner) or not is_shared(record.path):
            continue
        found.append(Vector.of((Vector.of(record.path), record.loser)))
        if len(found) == _HANDED_MAX:
            break
    return Vector.of(found) if found else EMPTY_VECTOR


def one_handed(
    answer: Value, owner: Value, turn: int
) -> tuple[ValuePath, Value, bytes | None] | None:
    """Return (path, cell, None) of an entry of an answer, or (path, None, hash) of an absent cell.

    None: the answer has none, or is malformed.
    """
    # One entry each turn: a second value at one path would replace the first while that still
    # waits for cells.
    if not isinstance(answer, Vector) or not 0 < len(answer) <= _HANDED_MAX:
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


class MetOwners:
    """The DIDs among a root's owners that this node may sign for, kept up as the root changes.

    A `did:key` names its key and is left out. Another DID is known only once it stands in the root.
    One thread uses it.

    paths: the containers of owners.
    signs: whether a key of this node may sign for a DID; the answer may change.
    """

    def __init__(self, paths: Sequence[ValuePath], signs: Callable[[str], bool]) -> None:
        self._signs = signs
        self._seen: dict[ValuePath, Map | Index] = dict.fromkeys(paths, Map())
        self._known: set[str] = set()
        self._named: deque[str] = deque()  # the known ones, longest unjudged first
        self._ours: dict[str, None] = {}

    def ours(self, root: Value) -> list[str]:
        """Return the DIDs that keys here may sign for, 64 at most, of the owners in a root.

        With more than 64 DIDs each call judges the next 64.
        Cost: what changed in the containers of owners since the last call.
        """
        # Only the owners that are new since the last call are looked at.
        for path, seen in self._seen.items():
            owners = get_in(root, path)
            if isinstance(owners, (Map, Index)) and owners is not seen:
                self._meet(seen, owners)
                self._seen[path] = owners
        for _ in range(min(len(self._named), DIDS_MAX)):
            did = self._named[0]
            self._named.rotate(-1)
            # The verifier may have learnt of another document since.
            if not self._signs(did):
                self._ours.pop(did, None)
            elif len(self._ours) < DIDS_MAX:
                self._ours[did] = None
        return list(self._ours)

    def _meet(self, seen: Map | Index, owners: Map | Index) -> None:
        for owner, _ in arriving_names(seen, owners):
            if not isinstance(owner, str) or owner in self._known or not is_bare_did(owner):
                continue
            # A DID that names its key is among `LatticeState.owners` already.
            if public_key_of(owner) is None:
                self._known.add(owner)
                self._named.append(owner)
