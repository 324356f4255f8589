"""Rows of the grid: which entries a task reads, and what becomes of each. No Spark."""

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
from datalattice.pipeline.contents import check_size, part_of
from datalattice.pipeline.grid.options import GridOptions, Table
from datalattice.pipeline.options import bad_option, check_there
from datalattice.pipeline.pieces import ENTRIES_PER_TASK_MAX, Piece, cut, entries
from datalattice.pipeline.tables import Row, micros
from datalattice.pipeline.values import NotBytes, render

CONTENTS_PER_TASK_MAX: Final = 256
"""Entries that one task reads when their contents are asked for, too."""

_VENUES: Final = Keyword("venues")
_META: Final = Keyword("meta")
_PARTS: Final = {
    Table.ASSETS: Keyword("assets"),
    Table.JOBS: Keyword("jobs"),
    Table.STORAGE: Keyword("storage"),
}


@dataclass(frozen=True, slots=True)
class Part:
    """What one task reads. It stands for itself: no root is looked up."""

    venue: str
    """The DID; empty for the table meta."""
    piece: Piece
    hidden: tuple[bytes, ...]
    """Encodings of the Sets of what is hidden."""


def plan(root: Value, options: GridOptions, before: Value = None) -> Iterator[Part]:
    """Yield the tasks that read a table of `root`, or what is new in it since `before`.

    Shapes: root, before: nil or the Index of a lattice's sections.
    Cost:   one signature check for each venue that differs; the entries themselves are not read.
    Raises: BadSignature: a venue's state is not signed by its key. UsageError: a venue that is
            named is not there; not where there is a `before`, since it may come later. MissingData.
    """
    hidden: tuple[bytes, ...] = ()
    if not options.include_hidden and options.table is not Table.META:
        hidden = tuple(encode(listed) for listed in hidden_entries(root))
    many = ENTRIES_PER_TASK_MAX
    if options.table is Table.STORAGE and "content" in options.columns:
        many = CONTENTS_PER_TASK_MAX
    grid, old = _index(root, GRID_SECTION), _index(before, GRID_SECTION)
    if options.table is Table.META:
        for piece in cut(_index(old, _META), _index(grid, _META), many):
            yield Part("", piece, ())
        return
    key = _PARTS[options.table]
    for did, own, other in _venues(_index(old, _VENUES), _index(grid, _VENUES), options):
        for piece in cut(_index(own, key), _index(other, key), many):
            yield Part(did, piece, hidden)


def check_venues(root: Value, options: GridOptions) -> None:
    """Check that the venues which the options name are there.

    Raises: UsageError: one is not.
    """
    venues = _index(_index(root, GRID_SECTION), _VENUES)
    check_there("venue", options.venues, {did for did in venues or () if isinstance(did, str)})


def _venues(
    before: Index | None, after: Index | None, options: GridOptions
) -> Iterator[tuple[str, Value, Value]]:
    """Yield (DID, state before, state now) of the venues that differ and are asked for."""
    if after is None:
        return
    known = Index() if before is None else before
    for did, _, own, is_there, other in known.differences(after):
        if not is_there or not isinstance(did, str):
            continue
        if options.venues and did not in options.venues:
            continue
        yield did, _state(did, own), _state(did, other, check=True)


def _state(did: str, entry: Value, *, check: bool = False) -> Value:
    """Return the state that a venue signed.

    Whether its key may speak for a DID that does not carry it was decided when it came in.
    """
    if not isinstance(entry, Signed):
        return entry
    if check:
        named = public_key_of(did)
        if (named is not None and named != entry.public_key) or not entry.verify():
            raise BadSignature(f"the state of the venue {did} is not signed by its key")
    return entry.value


def _index(value: Value, key: Keyword) -> Index | None:
    found = value.get(key) if isinstance(value, Index) else None
    return found if isinstance(found, Index) and len(found) else None


def rows(part: Part, options: GridOptions, loader: Loader) -> Iterator[Row]:
    """Yield the rows of a part. Runs in tasks.

    Raises: Corruption: an entry is not what its key says. LimitExceeded: a content is too long, or
            a record for its format. UsageError: a format that takes no record. MissingData.
    """
    make = {
        Table.ASSETS: _asset,
        Table.JOBS: _job,
        Table.META: _meta,
        Table.STORAGE: _content,
    }[options.table]
    hidden = [decode(cell, loader) for cell in part.hidden]
    key_of_part = _PARTS.get(options.table)
    for key, value in entries(part.piece, loader):
        if not isinstance(key, bytes):
            continue
        entry = Vector.of([part.venue, key_of_part, key]) if hidden else None
        if entry is not None and any(isinstance(one, Set) and entry in one for one in hidden):
            continue
        made = make(part.venue, key, value, options)
        if made is not None:
            yield made


def _asset(venue: str, key: bytes, record: Value, options: GridOptions) -> Row | None:
    text = record.get("metadata") if isinstance(record, Map) else None
    if not isinstance(text, (str, Text)):
        return None
    metadata = _checked(key, str(text))
    columns: dict[str, object] = {"venue": venue, "asset": key.hex(), "metadata": str(text)}
    if "name" in options.columns or "content" in options.columns:
        found = read_metadata(metadata)
        name = found.get("name")
        columns["name"] = str(name) if isinstance(name, (str, Text)) else None
        columns["content"] = _declared(found)
    return [columns[name] for name in options.columns], len(metadata)


def _meta(_venue: str, key: bytes, value: Value, options: GridOptions) -> Row | None:
    if not isinstance(value, (str, Text)):
        return None
    columns: dict[str, object] = {"asset": key.hex(), "metadata": _checked(key, str(value))}
    return [columns[name] for name in options.columns], len(str(value))


def _checked(key: bytes, text: str) -> str:
    """Return a metadata text that has the id under which it stands."""
    try:
        found = asset_id(text)
    except (UsageError, UnicodeEncodeError):
        found = b""
    if found != key:
        raise Corruption(f"the asset {key.hex()} is damaged: its text has another hash")
    return text


def _declared(metadata: Map) -> str | None:
    try:
        return declared_hash(metadata).hex()
    except UsageError:
        return None


def _job(venue: str, key: bytes, record: Value, options: GridOptions) -> Row | None:
    if not isinstance(record, Map):
        return None
    status, created = record.get("status"), record.get("created")
    columns: dict[str, object] = {
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
        except (LimitExceeded, UsageError) as error:
            raise LimitExceeded(
                f"the record of the job {key.hex()} of {venue} cannot be read as "
                f"{options.value_format.value}: {error}; valueFormat=cell takes every record, and "
                "columns leaves it out"
            ) from None
    return [columns[name] for name in options.columns], _JOB_BYTES + _length(columns.get("record"))


_JOB_BYTES: Final = 128


def _length(column: object) -> int:
    if isinstance(column, dict):
        return sum(len(part) for part in column.values())
    return len(column) if isinstance(column, (bytes, str)) else 0


def _content(venue: str, key: bytes, value: Value, options: GridOptions) -> Row | None:
    if not isinstance(value, (bytes, Blob)):
        return None
    size = blob_length(value)
    columns: dict[str, object] = {"venue": venue, "hash": key.hex(), "size": size}
    if "content" in options.columns:
        check_size(f"the content {key.hex()}", size, options.content_bytes_max)
        columns["content"] = _whole(key, part_of(value, 0, size))
        return [columns[name] for name in options.columns], size
    return [columns[name] for name in options.columns], _JOB_BYTES


def _whole(key: bytes, data: bytes) -> bytes:
    declared = Map.of({"content": Map.of({"sha256": key.hex()})})
    try:
        check_content(declared, data)
    except UsageError as error:
        raise Corruption(f"the content {key.hex()} is damaged: {error}") from None
    return data
