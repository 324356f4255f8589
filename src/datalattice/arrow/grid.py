"""Entries of the grid as rows: assets, jobs, metadata and contents.

Source: docs/spark-formats.md "Grid".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from datalattice.apps.grid import (
    asset_id,
    check_content,
    declared_hash,
    job_time,
    read_metadata,
)
from datalattice.arrow.batches import Row, micros
from datalattice.arrow.values import (
    ValueFormat,
    bytes_range,
    check_content_size,
    column_type,
    to_column_value,
)
from datalattice.cells import Blob, Map, Text, Value, blob_length
from datalattice.errors import Corruption, LimitExceeded, UsageError


class GridTable(Enum):
    """The part of the grid whose entries become rows."""

    ASSETS = "assets"
    JOBS = "jobs"
    META = "meta"
    STORAGE = "storage"


GRID_COLUMNS: Final[dict[GridTable, tuple[str, ...]]] = {
    GridTable.ASSETS: ("venue", "asset", "name", "content", "metadata"),
    GridTable.JOBS: ("venue", "job", "status", "created", "updated", "record"),
    GridTable.META: ("asset", "metadata"),
    GridTable.STORAGE: ("venue", "hash", "size", "content"),
}
"""Every column of each table, in order."""


def grid_types(table: GridTable, columns: Sequence[str], format: ValueFormat) -> dict[str, str]:
    """Return the type of each column in Spark's DDL, in the order of the rows."""
    special = {
        "created": "TIMESTAMP",
        "updated": "TIMESTAMP",
        "record": column_type(format),
        "size": "BIGINT",
    }
    if table is GridTable.STORAGE:
        special["content"] = "BINARY"
    return {name: special.get(name, "STRING") for name in columns}


@dataclass(frozen=True, slots=True)
class GridRows:
    """How the entries of a table become rows."""

    table: GridTable
    columns: Sequence[str]
    value_format: ValueFormat
    """The form of a job's record."""
    content_bytes_max: int

    def row(self, venue: str, key: bytes, value: Value) -> Row | None:
        """Return the row of an entry; None if the entry is malformed.

        Raises: Corruption: the entry does not match its key. LimitExceeded: a content is too long,
                or a record for its format. NotBytes: the format takes no records. MissingData.
        """
        found = _MAKERS[self.table](venue, key, value, self)
        return None if found is None else [found[name] for name in self.columns]


_Columns = dict[str, object]
"""Entries of a row by column; costly ones only if their column is selected."""


def _asset(venue: str, key: bytes, record: Value, wanted: GridRows) -> _Columns | None:
    text = record.get("metadata") if isinstance(record, Map) else None
    # "Malformed entries are skipped" (docs/spark-formats.md, Grid).
    if not isinstance(text, (str, Text)):
        return None
    metadata = _checked_text(key, str(text))
    columns: _Columns = {"venue": venue, "asset": key.hex(), "metadata": str(text)}
    if "name" in wanted.columns or "content" in wanted.columns:
        found = read_metadata(metadata)
        name = found.get("name")
        columns["name"] = str(name) if isinstance(name, (str, Text)) else None
        columns["content"] = _declared(found)
    return columns


def _meta(_venue: str, key: bytes, value: Value, _wanted: GridRows) -> _Columns | None:
    if not isinstance(value, (str, Text)):
        return None
    return {"asset": key.hex(), "metadata": _checked_text(key, str(value))}


def _checked_text(key: bytes, text: str) -> str:
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
        # An asset without content, or with a malformed hash, has no declared hash: the column is
        # NULL.
        return declared_hash(metadata).hex()
    except UsageError:
        return None


def _job(venue: str, key: bytes, record: Value, wanted: GridRows) -> _Columns | None:
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
    if "record" in wanted.columns:
        try:
            columns["record"] = to_column_value(record, wanted.value_format)
        # Too long or too deep for the format; `cell` takes every record.
        except (LimitExceeded, UsageError) as error:
            raise LimitExceeded(
                f"the record of the job {key.hex()} of {venue} cannot be read as "
                f"{wanted.value_format.value}: {error}; the format cell takes every record, and "
                "columns leaves it out"
            ) from None
    return columns


def _content(venue: str, key: bytes, value: Value, wanted: GridRows) -> _Columns | None:
    if not isinstance(value, (bytes, Blob)):
        return None
    size = blob_length(value)
    columns: _Columns = {"venue": venue, "hash": key.hex(), "size": size}
    if "content" in wanted.columns:
        # Checked before it is loaded: a few cells may represent a content of any length.
        check_content_size(f"the content {key.hex()}", size, wanted.content_bytes_max)
        columns["content"] = _checked_content(key, bytes_range(value, 0, size))
    return columns


def _checked_content(key: bytes, data: bytes) -> bytes:
    """Return a content after comparing it with its hash."""
    declared = Map.of({"content": Map.of({"sha256": key.hex()})})
    try:
        check_content(declared, data)
    except UsageError as error:
        raise Corruption(f"the content {key.hex()} is damaged: {error}") from None
    return data


_MAKERS: Final[dict[GridTable, Callable[[str, bytes, Value, GridRows], _Columns | None]]] = {
    GridTable.ASSETS: _asset,
    GridTable.JOBS: _job,
    GridTable.META: _meta,
    GridTable.STORAGE: _content,
}
