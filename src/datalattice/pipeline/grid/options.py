"""Options of `lattice.grid`, parsed into a frozen record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from datalattice.arrow import (
    CONTENT_BYTES_LIMIT,
    FIELD_BYTES_MAX,
    GRID_COLUMNS,
    GridTable,
    ValueFormat,
    grid_types,
)
from datalattice.errors import UsageError
from datalattice.pipeline.changes import EARLIEST, start_option
from datalattice.pipeline.options import (
    Given,
    bad_option,
    bytes_option,
    check_agreed,
    choice_option,
    columns_option,
    flag_option,
    names_option,
    option,
    parse_option_record,
)
from datalattice.pipeline.read_targets import ReadTarget, read_target_option

_STREAM_ONLY: Final = ("startingOffsets", "failOnDataLoss")


@dataclass(frozen=True, slots=True)
class GridOptions:
    """The options of `lattice.grid`.

    | option | meaning | default |
    |---|---|---|
    | `table` | `assets`, `jobs`, `meta` or `storage` | required |
    | `venue` | venues to read: DIDs separated by commas, or a JSON array | all |
    | `columns` | the columns to read, in this order | all but the content of storage |
    | `valueFormat` | form of a job's record: `json`, `string`, `variant` or `cell` | `json` |
    | `includeContent` | `true` adds the content of storage | `false` |
    | `maxContentBytes` | a longer content is an error | `16m` |
    | `includeHidden` | `true` also reads entries that a venue's own node hides | `false` |
    | `startingOffsets` | for streams: `earliest`, `latest` or the hash of a root | `earliest` |
    | `failOnDataLoss` | for streams: `false` reads all jobs again if the root of the position is
      gone | `true` |
    """

    target: ReadTarget
    table: GridTable = option("table", choice_option(GridTable), GridTable.JOBS)
    venues: tuple[str, ...] = option("venue", names_option, ())
    columns: tuple[str, ...] = option("columns", names_option, ())
    value_format: ValueFormat = option("valueFormat", choice_option(ValueFormat), ValueFormat.JSON)
    include_content: bool | None = option("includeContent", flag_option, None)
    content_bytes_max: int = option(
        "maxContentBytes", bytes_option(CONTENT_BYTES_LIMIT), FIELD_BYTES_MAX
    )
    include_hidden: bool = option("includeHidden", flag_option, False)
    starting: str = option("startingOffsets", start_option, EARLIEST)
    fail_on_data_loss: bool = option("failOnDataLoss", flag_option, True)
    stream_only: tuple[str, ...] = ()
    """Given options that are for streams only."""

    @property
    def types(self) -> dict[str, str]:
        """Type of each column in Spark's DDL, in the order of the rows."""
        return grid_types(self.table, self.columns, self.value_format)


def parse_options(given: Mapping[str, str]) -> GridOptions:
    """Parse the options. Raises: UsageError: one is not accepted or missing."""
    options = Given.of(given, ReadTarget, GridOptions)
    if "table" not in options:
        tables = ", ".join(table.value for table in GridTable)
        raise UsageError(f"option table is missing: one of {tables}")
    stream_only = tuple(name for name in _STREAM_ONLY if name in options)
    target = read_target_option(options)
    made = parse_option_record(GridOptions, options, target=target, stream_only=stream_only)
    # `meta` has the texts of all venues together.
    if made.venues and made.table is GridTable.META:
        venues = ",".join(made.venues)
        raise bad_option("venue", venues, "the table meta is not divided by venues")
    return replace(made, columns=_columns(options, made.table, made.include_content))


def _columns(options: Given, table: GridTable, content: bool | None) -> tuple[str, ...]:
    known = GRID_COLUMNS[table]
    if content is not None and table is not GridTable.STORAGE:
        raise bad_option(
            "includeContent", str(content).lower(), "only the table storage has contents"
        )
    default = known if table is not GridTable.STORAGE or content else known[:-1]
    columns = options.get("columns", columns_option(known), default)
    check_agreed("includeContent", content, "content", columns)
    return columns
