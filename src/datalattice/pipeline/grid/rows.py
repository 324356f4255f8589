"""Plans which entries of the grid a task reads, and makes rows of them. No Spark.

Source: docs/spark-formats.md "Grid".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from datalattice.apps.grid import (
    GRID_SECTION,
    hidden_entries,
)
from datalattice.arrow import (
    GridRows,
    GridTable,
    NotBytes,
    Row,
)
from datalattice.cells import (
    Index,
    Keyword,
    Loader,
    Set,
    Signed,
    Value,
    Vector,
    decode,
    encode,
)
from datalattice.errors import BadSignature
from datalattice.lattice import public_key_of
from datalattice.pipeline.grid.options import GridOptions
from datalattice.pipeline.index_partitions import (
    ENTRIES_PER_TASK_MAX,
    EncodedSubtrees,
    changed_entries,
    cut,
)
from datalattice.pipeline.options import bad_option, check_there

CONTENTS_PER_TASK_MAX: Final = 256
"""Entries that one task reads if their contents are selected."""

_VENUES: Final = Keyword("venues")
_META: Final = Keyword("meta")
_PARTS: Final = {
    GridTable.ASSETS: Keyword("assets"),
    GridTable.JOBS: Keyword("jobs"),
    GridTable.STORAGE: Keyword("storage"),
}


@dataclass(frozen=True, slots=True)
class GridTask:
    """What one task reads; no root is needed to read it."""

    venue: str
    """The DID; empty for the table meta."""
    piece: EncodedSubtrees
    hidden: tuple[bytes, ...]
    """Encodings of the Sets of hidden entries."""


def plan(root: Value, options: GridOptions, before: Value = None) -> Iterator[GridTask]:
    """Yield the tasks that read a table of `root`, or what is new in it since `before`.

    root, before: None or the Index of a lattice's sections.
    Cost:   verifies one signature for each venue that differs; the entries are not read.
    Raises: BadSignature: a venue's state is not signed by its key. MissingData.
    """
    hidden: tuple[bytes, ...] = ()
    # `meta` has the texts of all venues, but a venue hides entries of its own list only.
    if not options.include_hidden and options.table is not GridTable.META:
        hidden = tuple(encode(listed) for listed in hidden_entries(root))
    many = ENTRIES_PER_TASK_MAX
    if options.table is GridTable.STORAGE and "content" in options.columns:
        # Contents make tasks long; without them entries are small.
        many = CONTENTS_PER_TASK_MAX
    grid, old = _index(root, GRID_SECTION), _index(before, GRID_SECTION)
    if options.table is GridTable.META:
        for piece in cut(_index(old, _META), _index(grid, _META), many):
            yield GridTask("", piece, ())
        return
    key = _PARTS[options.table]
    for did, own, other in _venues(_index(old, _VENUES), _index(grid, _VENUES), options):
        for piece in cut(_index(own, key), _index(other, key), many):
            yield GridTask(did, piece, hidden)


def check_venues(root: Value, options: GridOptions) -> None:
    """Check that the venues named in the options exist. Raises: UsageError: one does not."""
    venues = _index(_index(root, GRID_SECTION), _VENUES)
    check_there("venue", options.venues, {did for did in venues or () if isinstance(did, str)})


def _venues(
    before: Index | None, after: Index | None, options: GridOptions
) -> Iterator[tuple[str, Value, Value]]:
    """Yield (DID, state before, state now) of the selected venues that differ."""
    if after is None:
        return
    known = Index() if before is None else before
    for did, _, own, is_there, other in known.differences(after):
        # A venue that is gone has no rows; other keys are "malformed entries", which are skipped.
        if not is_there or not isinstance(did, str):
            continue
        if options.venues and did not in options.venues:
            continue
        # The state before was checked when it was read.
        yield did, _state(did, own), _state(did, other, check=True)


def _state(did: str, entry: Value, *, check: bool = False) -> Value:
    """Return the state that a venue signed.

    If the DID does not contain the key, intake has already decided whether the key may sign for it.
    """
    if not isinstance(entry, Signed):
        return entry
    if check:
        named = public_key_of(did)
        # "It is an error if a venue's state is not signed by its key" (docs/spark-formats.md,
        # Grid).
        if (named is not None and named != entry.public_key) or not entry.verify():
            raise BadSignature(f"the state of the venue {did} is not signed by its key")
    return entry.value


def _index(value: Value, key: Keyword) -> Index | None:
    found = value.get(key) if isinstance(value, Index) else None
    # An empty Index is like an absent one: there is nothing to read.
    return found if isinstance(found, Index) and len(found) else None


def rows(part: GridTask, options: GridOptions, loader: Loader) -> Iterator[Row]:
    """Yield the rows of a task. Runs in tasks.

    Raises: Corruption: an entry does not match its key. LimitExceeded: a content is too long, or a
            record too long for its format. UsageError: the format takes no records. MissingData.
    """
    make = GridRows(options.table, options.columns, options.value_format, options.content_bytes_max)
    hidden = [decode(cell, loader) for cell in part.hidden]
    key_of_part = _PARTS.get(options.table)
    for key, value in changed_entries(part.piece, loader):
        # "Malformed entries are skipped" (docs/spark-formats.md, Grid).
        if not isinstance(key, bytes):
            continue
        # Hidden entries are listed as [venue part key].
        entry = Vector.of([part.venue, key_of_part, key]) if hidden else None
        if entry is not None and any(isinstance(one, Set) and entry in one for one in hidden):
            continue
        try:
            row = make.row(part.venue, key, value)
        except NotBytes:
            raise bad_option(
                "valueFormat",
                options.value_format.value,
                "a job's record is a Map; cell, string, json and variant take it",
            ) from None
        if row is not None:
            yield row
