"""Plans which entries of the grid a task reads, and makes rows of them. No Spark.

Source: docs/spark-formats.md "Grid".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from datalattice.apps.grid import (
    GRID_SECTION,
    asset_id,
    check_content,
    declared_hash,
    hidden_entries,
    job_time,
    read_metadata,
)
from datalattice.arrow import NotBytes, Row, check_size, micros, part_of, render
from datalattice.cells import (
    Blob,
    Index,
    Keyword,
    Loader,
    Map,
    Set,
    Signed,
    Text,
    Value,
    Vector,
    blob_length,
    decode,
    encode,
)
from datalattice.errors import BadSignature, Corruption, LimitExceeded, UsageError
from datalattice.lattice import public_key_of
from datalattice.pipeline.grid.options import GridOptions, GridTable
from datalattice.pipeline.index_partitions import ENTRIES_PER_TASK_MAX, Piece, cut, entries
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
    piece: Piece
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
    return found if isinstance(found, Index) and len(found) else None


def rows(part: GridTask, options: GridOptions, loader: Loader) -> Iterator[Row]:
    """Yield the rows of a task. Runs in tasks.

    Raises: Corruption: an entry does not match its key. LimitExceeded: a content is too long, or a
            record too long for its format. UsageError: the format takes no records. MissingData.
    """
    make = {
        GridTable.ASSETS: _asset,
        GridTable.JOBS: _job,
        GridTable.META: _meta,
        GridTable.STORAGE: _content,
    }[options.table]
    hidden = [decode(cell, loader) for cell in part.hidden]
    key_of_part = _PARTS.get(options.table)
    for key, value in entries(part.piece, loader):
        # "Malformed entries are skipped" (docs/spark-formats.md, Grid).
        if not isinstance(key, bytes):
            continue
        # Hidden entries are listed as [venue part key].
        entry = Vector.of([part.venue, key_of_part, key]) if hidden else None
        if entry is not None and any(isinstance(one, Set) and entry in one for one in hidden):
            continue
        columns = make(part.venue, key, value, options)
        if columns is not None:
            yield [columns[name] for name in options.columns]


_Columns = dict[str, object]
"""Entries of a row by column; columns that are costly are there only if they are selected."""


def _asset(venue: str, key: bytes, record: Value, options: GridOptions) -> _Columns | None:
    text = record.get("metadata") if isinstance(record, Map) else None
    if not isinstance(text, (str, Text)):
        return None
    metadata = _checked(key, str(text))
    columns: _Columns = {"venue": venue, "asset": key.hex(), "metadata": str(text)}
    if "name" in options.columns or "content" in options.columns:
        found = read_metadata(metadata)
        name = found.get("name")
        columns["name"] = str(name) if isinstance(name, (str, Text)) else None
        columns["content"] = _declared(found)
    return columns


def _meta(_venue: str, key: bytes, value: Value, _options: GridOptions) -> _Columns | None:
    if not isinstance(value, (str, Text)):
        return None
    return {"asset": key.hex(), "metadata": _checked(key, str(value))}


def _checked(key: bytes, text: str) -> str:
    """Return a metadata text after comparing it with its id."""
    try:
        found = asset_id(text)
    except (UsageError, UnicodeEncodeError):
        found = b""
    # An asset's id is the hash of its exact text.
    if found != key:
        raise Corruption(f"the asset {key.hex()} is damaged: its text has another hash")
    return text


def _declared(metadata: Map) -> str | None:
    try:
        return declared_hash(metadata).hex()
    except UsageError:
        return None


def _job(venue: str, key: bytes, record: Value, options: GridOptions) -> _Columns | None:
    if not isinstance(record, Map):
        return None
    status, created = record.get("status"), record.get("created")
    columns: _Columns = {
        "venue": venue,
        "job": key.hex(),
        "status": str(status) if isinstance(status, (str, Text)) else None,
        "updated": micros(job_time(record)),
        "created": micros(created) if type(created) is int else None,
    }
    if "record" in options.columns:
        try:
            columns["record"] = render(record, options.value_format)
        except NotBytes:
            raise bad_option(
                "valueFormat",
                options.value_format.value,
                "a job's record is a Map; cell, string, json and variant take it",
            ) from None
        # Too long or too deep for the format; `cell` takes every record.
        except (LimitExceeded, UsageError) as error:
            raise LimitExceeded(
                f"the record of the job {key.hex()} of {venue} cannot be read as "
                f"{options.value_format.value}: {error}; valueFormat=cell takes every record, and "
                "columns leaves it out"
            ) from None
    return columns


def _content(venue: str, key: bytes, value: Value, options: GridOptions) -> _Columns | None:
    if not isinstance(value, (bytes, Blob)):
        return None
    size = blob_length(value)
    columns: _Columns = {"venue": venue, "hash": key.hex(), "size": size}
    if "content" in options.columns:
        # Checked before it is loaded: a few cells may represent a content of any length.
        check_size(f"the content {key.hex()}", size, options.content_bytes_max)
        columns["content"] = _whole(key, part_of(value, 0, size))
    return columns


def _whole(key: bytes, data: bytes) -> bytes:
    declared = Map.of({"content": Map.of({"sha256": key.hex()})})
    try:
        check_content(declared, data)
    except UsageError as error:
        raise Corruption(f"the content {key.hex()} is damaged: {error}") from None
    return data
