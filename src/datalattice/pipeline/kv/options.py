"""The options for reading `lattice.kv`, parsed into a frozen record.

Source: docs/spark-kv.md "Options for reading".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from datalattice.arrow import ValueFormat, column_type
from datalattice.pipeline.changes import EARLIEST, start_option
from datalattice.pipeline.options import (
    Given,
    choice_option,
    columns_option,
    flag_option,
    min_partitions_option,
    names_option,
    option,
    owners_option,
    parse_option_record,
    text_option,
)
from datalattice.pipeline.read_targets import ReadTarget, read_target_option

KV_FORMAT: Final = "lattice.kv"

KV_COLUMNS: Final = ("owner", "database", "key", "type", "value", "updated", "expires")
"""Every column, in order."""

HIDDEN_DATABASE: Final = ".pipeline"
"""The database in which sinks store their marks; read only if the option `database` names it."""


@dataclass(frozen=True, slots=True)
class KVOptions:
    """The options for reading `lattice.kv`.

    | option | meaning | default |
    |---|---|---|
    | `owner` | owners of the databases to read: names separated by commas, or a JSON array | all |
    | `database` | databases to read, in the same form | all |
    | `prefix` | only keys that begin with this; others are not visited | |
    | `columns` | the columns to read, in this order; omitted ones are not decoded | all |
    | `valueFormat` | `cell`, `bytes`, `string`, `json` or `variant` | `cell` |
    | `startingOffsets` | `earliest`, the hash of a root, or, for streams, `latest` | `earliest` |
    | `minPartitions` | least number of tasks, if there are enough keys; up to 262,144 | |
    | `failOnDataLoss` | `false` reads everything again if the root of the stream's position is gone
      | `true` |
    """

    target: ReadTarget
    owners: tuple[str, ...] = option("owner", owners_option, ())
    databases: tuple[str, ...] = option("database", names_option, ())
    prefix: str = option("prefix", text_option, "", exact=True)
    columns: tuple[str, ...] = option("columns", columns_option(KV_COLUMNS), KV_COLUMNS)
    value_format: ValueFormat = option("valueFormat", choice_option(ValueFormat), ValueFormat.CELL)
    starting: str = option("startingOffsets", start_option, EARLIEST)
    min_partitions: int | None = option("minPartitions", min_partitions_option, None)
    fail_on_data_loss: bool = option("failOnDataLoss", flag_option, True)

    def selects_owner(self, owner: str) -> bool:
        """Return whether the options select this owner."""
        return not self.owners or owner in self.owners

    def selects_database(self, database: str) -> bool:
        """Return whether the options select databases of this name."""
        # "Readers skip that database unless they name it" (docs/spark-kv.md, Exactly once).
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
    options = Given.of(given, ReadTarget, KVOptions)
    return parse_option_record(KVOptions, options, target=read_target_option(options))
