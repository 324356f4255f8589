"""Options of reading `lattice.kv`, parsed into a frozen record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from datalattice.pipeline.changes import EARLIEST, start_option
from datalattice.pipeline.options import (
    Given,
    choice_option,
    columns_option,
    flag_option,
    min_partitions_option,
    names_option,
    owners_option,
    text_option,
)
from datalattice.pipeline.read_targets import READ_TARGET_OPTIONS, ReadTarget, read_target_option
from datalattice.pipeline.values import ValueFormat, column_type

FORMAT: Final = "lattice.kv"

COLUMNS: Final = ("owner", "database", "key", "type", "value", "updated", "expires")
"""Every column, in order."""

HIDDEN_DATABASE: Final = ".pipeline"
"""Where sinks store their marks; it is read only if the option `database` names it."""

ACCEPTED: Final = (
    *READ_TARGET_OPTIONS,
    "owner",
    "database",
    "prefix",
    "columns",
    "valueFormat",
    "startingOffsets",
    "minPartitions",
    "failOnDataLoss",
)
"""Names of all options of reading."""


@dataclass(frozen=True, slots=True)
class KVOptions:
    """The options of `lattice.kv`; `KVSource` documents them."""

    target: ReadTarget
    owners: tuple[str, ...]
    databases: tuple[str, ...]
    prefix: str
    columns: tuple[str, ...]
    value_format: ValueFormat
    starting: str
    min_partitions: int | None
    fail_on_data_loss: bool

    def selects_owner(self, owner: str) -> bool:
        """Return whether the options select this owner."""
        return not self.owners or owner in self.owners

    def selects_database(self, database: str) -> bool:
        """Return whether the options select databases of this name."""
        return database in self.databases if self.databases else database != HIDDEN_DATABASE

    @property
    def types(self) -> dict[str, str]:
        """Type of each column in Spark's DDL, in the order of the rows."""
        special = {
            "value": column_type(self.value_format),
            "updated": "TIMESTAMP",
            "expires": "TIMESTAMP",
        }
        return {name: special.get(name, "STRING") for name in self.columns}


def parse_options(given: Mapping[str, str]) -> KVOptions:
    """Parse the options. Raises: UsageError: one is not accepted or missing."""
    options = Given(given, ACCEPTED)
    return KVOptions(
        target=read_target_option(options),
        owners=options.get("owner", owners_option, ()),
        databases=options.get("database", names_option, ()),
        prefix=options.get("prefix", text_option, "", exact=True),
        columns=options.get("columns", columns_option(COLUMNS), COLUMNS),
        value_format=options.get("valueFormat", choice_option(ValueFormat), ValueFormat.CELL),
        starting=options.get("startingOffsets", start_option, EARLIEST),
        min_partitions=options.get("minPartitions", min_partitions_option, None),
        fail_on_data_loss=options.get("failOnDataLoss", flag_option, True),
    )
