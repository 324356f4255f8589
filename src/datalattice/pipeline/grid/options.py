"""Options of `lattice.grid`, parsed into a frozen record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from datalattice.errors import UsageError
from datalattice.pipeline.byte_limits import CONTENT_BYTES_LIMIT, CONTENT_BYTES_MAX, bytes_option
from datalattice.pipeline.changes import EARLIEST, start_option
from datalattice.pipeline.options import (
    Given,
    bad_option,
    check_agreed,
    choice_option,
    columns_option,
    flag_option,
    names_option,
)
from datalattice.pipeline.read_targets import READ_TARGET_OPTIONS, ReadTarget, read_target_option
from datalattice.pipeline.values import ValueFormat, column_type


class GridTable(Enum):
    """The part of the grid whose entries become rows."""

    ASSETS = "assets"
    JOBS = "jobs"
    META = "meta"
    STORAGE = "storage"


COLUMNS: Final[dict[GridTable, tuple[str, ...]]] = {
    GridTable.ASSETS: ("venue", "asset", "name", "content", "metadata"),
    GridTable.JOBS: ("venue", "job", "status", "created", "updated", "record"),
    GridTable.META: ("asset", "metadata"),
    GridTable.STORAGE: ("venue", "hash", "size", "content"),
}
"""Every column of each table, in order."""

_STREAM_ONLY: Final = ("startingOffsets", "failOnDataLoss")

ACCEPTED: Final = (
    *READ_TARGET_OPTIONS,
    "table",
    "venue",
    "columns",
    "valueFormat",
    "includeContent",
    "includeHidden",
    "maxContentBytes",
    *_STREAM_ONLY,
)


@dataclass(frozen=True, slots=True)
class GridOptions:
    """The options of `lattice.grid`; `GridSource` documents them."""

    target: ReadTarget
    table: GridTable
    venues: tuple[str, ...]
    columns: tuple[str, ...]
    value_format: ValueFormat
    include_hidden: bool
    content_bytes_max: int
    starting: str
    fail_on_data_loss: bool
    stream_only: tuple[str, ...]
    """Given options that are for streams only."""

    @property
    def types(self) -> dict[str, str]:
        """Type of each column in Spark's DDL, in the order of the rows."""
        special = {
            "created": "TIMESTAMP",
            "updated": "TIMESTAMP",
            "record": column_type(self.value_format),
            "size": "BIGINT",
        }
        if self.table is GridTable.STORAGE:
            special["content"] = "BINARY"
        return {name: special.get(name, "STRING") for name in self.columns}


def parse_options(given: Mapping[str, str]) -> GridOptions:
    """Parse the options. Raises: UsageError: one is not accepted or missing."""
    options = Given(given, ACCEPTED)
    table = options.get("table", choice_option(GridTable), None)
    if table is None:
        tables = ", ".join(table.value for table in GridTable)
        raise UsageError(f"option table is missing: one of {tables}")
    venues: tuple[str, ...] = options.get("venue", names_option, ())
    if venues and table is GridTable.META:
        raise bad_option("venue", ",".join(venues), "the table meta is not divided by venues")
    return GridOptions(
        target=read_target_option(options),
        table=table,
        venues=venues,
        columns=_columns(options, table),
        value_format=options.get("valueFormat", choice_option(ValueFormat), ValueFormat.JSON),
        include_hidden=options.get("includeHidden", flag_option, False),
        content_bytes_max=options.get(
            "maxContentBytes", bytes_option(CONTENT_BYTES_LIMIT), CONTENT_BYTES_MAX
        ),
        starting=options.get("startingOffsets", start_option, EARLIEST),
        fail_on_data_loss=options.get("failOnDataLoss", flag_option, True),
        stream_only=tuple(name for name in _STREAM_ONLY if name in options),
    )


def _columns(options: Given, table: GridTable) -> tuple[str, ...]:
    known: tuple[str, ...] = COLUMNS[table]
    content = options.get("includeContent", flag_option, None)
    if content is not None and table is not GridTable.STORAGE:
        raise bad_option(
            "includeContent", str(content).lower(), "only the table storage has contents"
        )
    if "columns" in options:
        columns = options.get("columns", columns_option(known), known)
        check_agreed("includeContent", content, "content", columns)
        return columns
    return known if table is not GridTable.STORAGE or content else known[:-1]
