"""Options of `lattice.files`, parsed into a frozen record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from datalattice.arrow import CONTENT_BYTES_LIMIT, FIELD_BYTES_MAX
from datalattice.errors import UsageError
from datalattice.pipeline.files.globs import EVERYTHING, Glob, glob_option
from datalattice.pipeline.options import (
    Given,
    bad_option,
    bytes_option,
    check_agreed,
    columns_option,
    flag_option,
    names_option,
    option,
    owners_option,
    parse_option_record,
)
from datalattice.pipeline.read_targets import ReadTarget, read_target_option

TYPES: Final = {
    "owner": "STRING",
    "drive": "STRING",
    "path": "STRING",
    "size": "BIGINT",
    "modified": "TIMESTAMP",
    "chunk": "BIGINT",
    "content": "BINARY",
}
"""Every column, in order, with its type in Spark's DDL."""

_LISTED: Final[tuple[str, ...]] = ("path", "size", "modified")
_WITH_CONTENT: Final = (*_LISTED, "content")
_WITH_CHUNKS: Final = (*_LISTED, "chunk", "content")


@dataclass(frozen=True, slots=True)
class FilesOptions:
    """The options of `lattice.files`.

    | option | meaning | default |
    |---|---|---|
    | `drive` | drives to read: names separated by commas, or a JSON array | the only drive |
    | `owner` | owners of the drives | all |
    | `glob` | which files: a path that may contain `*`, `?`, `[abc]` and `**` | all |
    | `includeContent` | `true` adds the column content | `false` |
    | `maxContentBytes` | a longer file is an error | `16m` |
    | `chunkBytes` | contents in chunks of this size, a row for each | |
    | `columns` | the columns to read, in this order | path, size, modified, and those of other
      options |
    """

    target: ReadTarget
    drives: tuple[str, ...] = option("drive", names_option, ())
    owners: tuple[str, ...] = option("owner", owners_option, ())
    glob: Glob = option("glob", glob_option, EVERYTHING)
    include_content: bool | None = option("includeContent", flag_option, None)
    content_bytes_max: int = option(
        "maxContentBytes", bytes_option(CONTENT_BYTES_LIMIT), FIELD_BYTES_MAX
    )
    chunk_bytes: int | None = option("chunkBytes", bytes_option(CONTENT_BYTES_LIMIT), None)
    columns: tuple[str, ...] = option("columns", columns_option(tuple(TYPES)), ())

    @property
    def types(self) -> dict[str, str]:
        """Each column's type in the order of the rows."""
        return {name: TYPES[name] for name in self.columns}

    @property
    def with_content(self) -> bool:
        """Whether the column content is selected."""
        return "content" in self.columns


def parse_options(given: Mapping[str, str]) -> FilesOptions:
    """Parse the options. Raises: UsageError: one is not accepted or missing."""
    options = Given.of(given, ReadTarget, FilesOptions)
    made = parse_option_record(FilesOptions, options, target=read_target_option(options))
    # "In chunks a file may have any length" (docs/spark-formats.md, Files).
    if made.chunk_bytes is not None and "maxContentBytes" in options:
        raise UsageError(
            "options maxContentBytes and chunkBytes exclude each other: in chunks a file may have "
            "any length"
        )
    return replace(made, columns=_columns(made))


def _columns(options: FilesOptions) -> tuple[str, ...]:
    content, columns = options.include_content, options.columns
    is_chunked = options.chunk_bytes is not None
    if not columns:
        if is_chunked and content is False:
            raise bad_option("includeContent", "false", "chunkBytes asks for contents")
        if is_chunked:
            return _WITH_CHUNKS
        return _WITH_CONTENT if content else _LISTED
    check_agreed("includeContent", content, "content", columns)
    # Without chunks a file has one row and no chunk number.
    if not is_chunked and "chunk" in columns:
        raise bad_option("columns", ",".join(columns), "the column chunk needs chunkBytes")
    # Rows of chunks that differ in their number only would multiply the files.
    if is_chunked and "content" not in columns:
        raise bad_option(
            "columns", ",".join(columns), "with chunkBytes the columns must contain content"
        )
    return columns
