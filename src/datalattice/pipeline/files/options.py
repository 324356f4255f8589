"""Options of `lattice.files`, parsed into a frozen record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from datalattice.errors import UsageError
from datalattice.pipeline.byte_limits import CONTENT_BYTES_LIMIT, CONTENT_BYTES_MAX, bytes_option
from datalattice.pipeline.files.globs import EVERYTHING, Glob, glob_option
from datalattice.pipeline.options import (
    Given,
    bad_option,
    check_agreed,
    columns_option,
    flag_option,
    names_option,
    owners_option,
)
from datalattice.pipeline.read_targets import READ_TARGET_OPTIONS, ReadTarget, read_target_option

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

ACCEPTED: Final = (
    *READ_TARGET_OPTIONS,
    "owner",
    "drive",
    "glob",
    "columns",
    "includeContent",
    "maxContentBytes",
    "chunkBytes",
)


@dataclass(frozen=True, slots=True)
class FilesOptions:
    """The options of `lattice.files`; `FilesSource` documents them."""

    target: ReadTarget
    owners: tuple[str, ...]
    drives: tuple[str, ...]
    glob: Glob
    columns: tuple[str, ...]
    content_bytes_max: int
    chunk_bytes: int | None

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
    options = Given(given, ACCEPTED)
    chunk_bytes = options.get("chunkBytes", bytes_option(CONTENT_BYTES_LIMIT), None)
    columns = _columns(options, chunk_bytes)
    if chunk_bytes is not None and "maxContentBytes" in options:
        raise UsageError(
            "options maxContentBytes and chunkBytes exclude each other: in chunks a file may have "
            "any length"
        )
    return FilesOptions(
        target=read_target_option(options),
        owners=options.get("owner", owners_option, ()),
        drives=options.get("drive", names_option, ()),
        glob=options.get("glob", glob_option, EVERYTHING),
        columns=columns,
        content_bytes_max=options.get(
            "maxContentBytes", bytes_option(CONTENT_BYTES_LIMIT), CONTENT_BYTES_MAX
        ),
        chunk_bytes=chunk_bytes,
    )


def _columns(options: Given, chunk_bytes: int | None) -> tuple[str, ...]:
    content = options.get("includeContent", flag_option, None)
    if "columns" not in options:
        if chunk_bytes is not None:
            if content is False:
                raise bad_option("includeContent", "false", "chunkBytes asks for contents")
            return _WITH_CHUNKS
        return _WITH_CONTENT if content else _LISTED
    columns = options.get("columns", columns_option(tuple(TYPES)), _LISTED)
    check_agreed("includeContent", content, "content", columns)
    if chunk_bytes is None and "chunk" in columns:
        raise bad_option("columns", ",".join(columns), "the column chunk needs chunkBytes")
    if chunk_bytes is not None and "content" not in columns:
        raise bad_option(
            "columns", ",".join(columns), "with chunkBytes the columns must contain content"
        )
    return columns
