"""The options for reading `lattice.weaver`, parsed into a frozen record.

Source: docs/spark-weaver.md "Options".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Final

from datalattice.arrow import ValueFormat, column_type
from datalattice.errors import UsageError
from datalattice.pipeline.changes import EARLIEST, LATEST
from datalattice.pipeline.options import (
    Given,
    bad_option,
    check_there,
    choice_option,
    columns_option,
    count_option,
    flag_option,
    folder_option,
    min_partitions_option,
    names_option,
    option,
    parse_option_record,
    positive_option,
    text_option,
)
from datalattice.pipeline.weaver.opening import open_weaver_stores
from datalattice.weaver import KvMachine, LogMachine

WEAVER_FORMAT: Final = "lattice.weaver"


class WeaverTable(Enum):
    """The tables of a store."""

    INTENTIONS = "intentions"
    STATE = "state"
    CONFLICTS = "conflicts"


class KeyFormat(Enum):
    """The form of a key in a column."""

    STRING = "string"
    BYTES = "bytes"


_TYPES: Final = {
    "seq": "BIGINT",
    "counter": "BIGINT",
    "size": "BIGINT",
    "rank": "BIGINT",
    "conflicts": "BIGINT",
    "time": "TIMESTAMP",
    "witnessed": "TIMESTAMP",
    "condition": "ARRAY<STRING>",
    "payload": "BINARY",
}
"""Types of the columns that are not STRING; options choose the types of `key` and `value`."""

_ANY: Final = "any"

WEAVER_COLUMNS: Final[dict[WeaverTable, dict[str, tuple[str, ...]]]] = {
    WeaverTable.INTENTIONS: {
        _ANY: (
            *("seq", "hash", "author", "time", "counter", "witnessed"),
            *("store_prev", "condition", "kind", "op", "payload", "size"),
        )
    },
    WeaverTable.STATE: {
        KvMachine.kind: ("key", "value", "author", "time", "counter", "hash", "conflicts"),
        LogMachine.kind: ("seq", "value", "author", "time", "counter", "hash"),
    },
    WeaverTable.CONFLICTS: {
        KvMachine.kind: ("key", "rank", "value", "author", "time", "counter", "hash")
    },
}
"""Every column of each table, in order, by the kind of the store."""

_STREAM_ONLY: Final = ("maxOffsetsPerTrigger", "failOnDataLoss")


_FIRST: Final[int | None] = 1
"""Number of the first record of a log."""


def _start_option(text: str) -> int | None:
    """Parse the number of the first record to read, from 1; None: the next record to be written."""
    # Case-insensitive, like Spark's own options.
    if text.lower() in (EARLIEST, LATEST):
        return _FIRST if text.lower() == EARLIEST else None
    return _record_option(text)


def _end_option(text: str) -> int | None:
    """Parse the number of the record before which to stop; None: read to the end."""
    return None if text.lower() == LATEST else _record_option(text)


def _record_option(text: str) -> int:
    accepted = f"{EARLIEST}, {LATEST}, or the number of a record, from 1"
    return count_option(accepted, 1)(text)


@dataclass(frozen=True, slots=True)
class WeaverOptions:
    """The options of `lattice.weaver`.

    | option | meaning | default |
    |---|---|---|
    | `store` | the folder of a node, running or not; also the argument of `load` | required |
    | `name` | the weaver store: its name, its id, or names from a root down with `/` | required |
    | `table` | `intentions`, `state` or `conflicts` | `intentions` |
    | `columns` | the columns to read, in this order; omitted ones are not decoded | all |
    | `keyFormat` | `string` or `bytes` | `string` |
    | `valueFormat` | `string` or `bytes`; `json`, `variant` or `cell` for values of `of=` types |
      `string` |
    | `startingOffsets` | the first record to read: `earliest`, its number, or, for streams,
      `latest` | `earliest` |
    | `endingOffsets` | the record before which a batch ends | `latest` |
    | `maxOffsetsPerTrigger` | most records that one batch of a stream reads | no limit |
    | `minPartitions` | least number of tasks, if there are enough records; up to 262,144 | |
    | `failOnDataLoss` | `false` reads the log from its beginning, with a warning, if it is another
      one than before | `true` |
    | `verify` | `false` skips the signatures of the authors | `true` |
    """

    folder: str = option("store", text_option, "")
    name: str = option("name", text_option, "")
    table: WeaverTable = option("table", choice_option(WeaverTable), WeaverTable.INTENTIONS)
    columns: tuple[str, ...] = option("columns", names_option, ())
    key_format: KeyFormat = option("keyFormat", choice_option(KeyFormat), KeyFormat.STRING)
    value_format: ValueFormat = option(
        "valueFormat", choice_option(ValueFormat), ValueFormat.STRING
    )
    starting: int | None = option("startingOffsets", _start_option, _FIRST)
    ending: int | None = option("endingOffsets", _end_option, None)
    max_offsets_per_trigger: int | None = option("maxOffsetsPerTrigger", positive_option(), None)
    min_partitions: int = option("minPartitions", min_partitions_option, 1)
    fail_on_data_loss: bool = option("failOnDataLoss", flag_option, True)
    verify: bool = option("verify", flag_option, True)
    id: bytes = b""
    """Of the store."""
    kind: str = ""
    """The kind of the store's machine."""
    is_stream: bool = False
    stream_only: tuple[str, ...] = ()
    """Given options that are for streams only."""

    @property
    def types(self) -> dict[str, str]:
        """Type of each column in Spark's DDL, in the order of the rows."""
        key = "STRING" if self.key_format is KeyFormat.STRING else "BINARY"
        known = {**_TYPES, "key": key, "value": column_type(self.value_format)}
        return {name: known.get(name, "STRING") for name in self.columns}

    @property
    def is_change(self) -> bool:
        """Whether rows are changes since a record, so that deleted keys have rows."""
        return self.is_stream or self.starting != 1

    def __str__(self) -> str:
        return f"the weaver store {self.name!r} of {self.folder}"


def parse_options(given: Mapping[str, str]) -> WeaverOptions:
    """Parse the options, and find the store.

    Raises: UsageError: an option is not accepted or missing, or there is no such store.
    """
    options = Given.of(given, WeaverOptions)
    made = parse_option_record(WeaverOptions, options)
    folder = folder_option(options)
    if not folder:
        raise UsageError(
            "option store is missing: give the folder of a node, as store or to load()"
        )
    if not made.name:
        raise UsageError("option name is missing: the name or id of a weaver store")
    # Found on the driver: the kind of the store decides which columns a table has.
    with open_weaver_stores(folder) as stores:
        found = stores.find(made.name)
        if found is None:
            check_there(
                "name", (made.name,), {info.name or info.id.hex() for info in stores.list()}
            )
        assert found is not None
    known = WEAVER_COLUMNS[made.table]
    columns = known.get(_ANY) or known.get(found.kind)
    if columns is None:
        accepted = f"only stores of kind {' or '.join(known)} have it; this one is {found.kind}"
        raise bad_option("table", made.table.value, accepted)
    return replace(
        made,
        # Absolute, because workers of Spark have another working directory.
        folder=str(Path(folder).expanduser().absolute()),
        columns=options.get("columns", columns_option(columns), columns),
        id=found.id,
        kind=found.kind,
        stream_only=tuple(name for name in _STREAM_ONLY if name in options),
    )
