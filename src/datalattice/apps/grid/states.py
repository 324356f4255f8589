"""States: the parts of grids and venues, and the differences between two of them.

Source: COG-4 "Synchronisation"; docs/grid.md "Merge".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from datalattice.apps.grid.lattice import (
    ASSETS_KEY,
    JOBS_KEY,
    STORAGE_KEY,
    VENUES_KEY,
    Rejection,
    as_index,
    venue_state,
)
from datalattice.cells import EMPTY_INDEX, Index, Keyword, Value
from datalattice.errors import UsageError
from datalattice.lattice import Lattice


@dataclass(frozen=True, slots=True)
class MergeReport:
    """What a merge changed and refused.

    Shapes: changed: the DIDs whose state changed. jobs: the ids of changed jobs by DID. rejected:
            (path, reason) of each part that was left out.
    """

    changed: tuple[str, ...]
    jobs: Mapping[str, tuple[bytes, ...]]
    rejected: tuple[Rejection, ...]


def with_all_parts(state: Index | None, lattice: Lattice) -> Index:
    """Return a state with all parts of the lattice's zero; absent ones are empty."""
    zero = as_index(lattice.zero()) or EMPTY_INDEX
    if state is None:
        return zero
    for key, part in zero.entries():
        if as_index(state.get(key)) is None:  # "absent becomes empty": a state in normal form
            state = state.put(key, part)
    return state


def part_of(state: Index | None, key: Keyword) -> Index:
    """Return a part of a state; an empty Index if it is absent."""
    return EMPTY_INDEX if state is None else as_index(state.get(key)) or EMPTY_INDEX


def part_key(part: str) -> Keyword:
    """Return the key of a part of a venue by its name.

    Raises: UsageError: a venue has no such part.
    """
    keys = {key.name: key for key in (ASSETS_KEY, JOBS_KEY, STORAGE_KEY)}
    if part not in keys:
        raise UsageError(f"`part` is not one of {', '.join(keys)}: {part!r}")
    return keys[part]


def changes_of(before: Value, after: Value) -> dict[str, tuple[bytes, ...]]:
    """Return the DIDs whose state differs between two grids, with the ids of their changed jobs.

    Cost:   proportional to the venues and jobs that differ.
    """
    old, new = part_of(as_index(before), VENUES_KEY), part_of(as_index(after), VENUES_KEY)
    found: dict[str, tuple[bytes, ...]] = {}
    for did, _, mine, _, theirs in old.differences(new):
        if isinstance(did, str):
            jobs = part_of(venue_state(mine), JOBS_KEY)
            differing = jobs.differences(part_of(venue_state(theirs), JOBS_KEY))
            # Foreign keys may be any cell.
            found[did] = tuple(key for key, *_ in differing if isinstance(key, bytes))
    return found
