"""The options for reading `lattice.queue`, parsed into a frozen record.

Source: docs/spark.md "Options", "Offsets".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from datalattice.arrow import ValueFormat, column_type
from datalattice.errors import UsageError
from datalattice.limits import COUNT_MAX
from datalattice.pipeline.options import (
    Given,
    Refused,
    bad_option,
    check_agreed,
    choice_option,
    columns_option,
    count_option,
    flag_option,
    json_option,
    min_partitions_option,
    names_option,
    option,
    owner_name,
    owners_option,
    parse_option_record,
    positive_option,
)
from datalattice.pipeline.read_targets import ReadTarget, read_target_option

QUEUE_COLUMNS: Final = (
    "owner",
    "topic",
    "partition",
    "offset",
    "timestamp",
    "key",
    "value",
    "headers",
)
"""Every column, in order. `headers` is optional (`includeHeaders`, `columns`)."""

DEFAULT_COLUMNS: Final[tuple[str, ...]] = QUEUE_COLUMNS[:-1]


class PartitionFormat(Enum):
    """The form of a partition id in a column."""

    LONG = "long"
    """BIGINT; ids that are not 64-bit integers are refused."""
    STRING = "string"
    """STRING: the text of any id."""


class Edge(Enum):
    """A position that exists in every partition."""

    EARLIEST = "earliest"
    LATEST = "latest"


ReadBound = Edge | int
"""Where to start or stop in one partition: an edge or an absolute offset."""


@dataclass(frozen=True, slots=True)
class Positions:
    """Positions by partition: that of the longest matching name, else the default.

    A name is (owner, topic, partition), (topic, partition) or (partition,).
    """

    default: Edge
    named: Mapping[tuple[str, ...], ReadBound]

    def of(self, owner: str, topic: str, partition: str) -> ReadBound:
        """Return the position for one partition."""
        name = (owner, topic, partition)
        for first in range(len(name)):
            # "The longest matching name counts" (docs/spark.md, Offsets).
            position = self.named.get(name[first:])
            if position is not None:
                return position
        return self.default

    def has(self, edge: Edge) -> bool:
        """Return whether the default or a named position is `edge`."""
        return self.default is edge or edge in self.named.values()


def _everywhere(edge: Edge) -> Positions:
    return Positions(edge, {})


_POSITIONS_ACCEPTED: Final = (
    'earliest, latest, or JSON such as {"0": 5}, {"topic": {"0": 5}} or '
    '{"owner": {"topic": {"0": 5}}}, '
    "where an offset is a whole number, "
    '-2 or "earliest", -1 or "latest"'
)
# -2 and -1 as in the options of Spark's Kafka source.
_EDGES: Final = {
    "earliest": Edge.EARLIEST,
    "latest": Edge.LATEST,
    -2: Edge.EARLIEST,
    -1: Edge.LATEST,
}
_NAME_PARTS_MAX: Final = 3


def _positions(default: Edge) -> Callable[[str], Positions]:
    def parse(text: str) -> Positions:
        edge = _EDGES.get(text.lower())
        if edge is not None:
            return _everywhere(edge)
        tree = json_option(text, _POSITIONS_ACCEPTED)
        if not isinstance(tree, dict) or not tree:
            raise Refused(_POSITIONS_ACCEPTED)
        named = dict(_leaves(tree, ()))
        return Positions(default, {_canonical(name): at for name, at in named.items()})

    return parse


def _leaves(
    tree: dict[str, object], name: tuple[str, ...]
) -> Iterable[tuple[tuple[str, ...], ReadBound]]:
    for part, below in tree.items():
        here = (*name, part)
        if isinstance(below, dict) and below and len(here) < _NAME_PARTS_MAX:
            yield from _leaves(below, here)
        elif isinstance(below, str) and below in _EDGES:
            yield here, _EDGES[below]
        # JSON's true and false are ints in Python.
        elif isinstance(below, int) and not isinstance(below, bool) and -2 <= below <= COUNT_MAX:
            yield here, _EDGES.get(below, below)
        else:
            raise Refused(_POSITIONS_ACCEPTED)


def _canonical(name: tuple[str, ...]) -> tuple[str, ...]:
    return (owner_name(name[0]), *name[1:]) if len(name) == _NAME_PARTS_MAX else name


_VALUES: Final = choice_option(ValueFormat)


@dataclass(frozen=True, slots=True)
class QueueOptions:
    """The options for reading `lattice.queue`.

    | option | meaning | default |
    |---|---|---|
    | `owner` | owners of the queues to read: names separated by commas, or a JSON array | all |
    | `topic` | topics to read, in the same form | all |
    | `columns` | the columns to read, in this order; omitted ones are not decoded | all but headers
      |
    | `includeHeaders` | `true` adds the headers | `false` |
    | `valueFormat` | `cell`, `bytes`, `string`, `json` or `variant` | `cell` |
    | `keyFormat` | the same for keys | as `valueFormat` |
    | `partitionFormat` | `long`, or `string` for ids that are not integers | `long` |
    | `startingOffsets` | where to begin: `earliest`, `latest` (streams only), or offsets by
      partition in JSON | `earliest` |
    | `startingTimestamp` | begin at this time, in Unix milliseconds; instead of `startingOffsets` |
      |
    | `endingOffsets` | where a batch ends, exclusive; not before a given start | `latest` |
    | `maxOffsetsPerTrigger` | most records of one batch of a stream | no limit |
    | `minPartitions` | least number of tasks, if there are enough records; up to 262,144 | |
    | `failOnDataLoss` | `false` skips missing records with a warning | `true` |
    | `verify` | `false` reads cells of a folder without comparing them with their hashes | `true` |
    """

    target: ReadTarget
    owners: tuple[str, ...] = option("owner", owners_option, ())
    topics: tuple[str, ...] = option("topic", names_option, ())
    columns: tuple[str, ...] = option("columns", columns_option(QUEUE_COLUMNS), ())
    include_headers: bool | None = option("includeHeaders", flag_option, None)
    value_format: ValueFormat = option("valueFormat", _VALUES, ValueFormat.CELL)
    key_format: ValueFormat = option("keyFormat", _VALUES, ValueFormat.CELL)
    partition_format: PartitionFormat = option(
        "partitionFormat", choice_option(PartitionFormat), PartitionFormat.LONG
    )
    starting: Positions = option(
        "startingOffsets", _positions(Edge.EARLIEST), _everywhere(Edge.EARLIEST)
    )
    starting_timestamp_ms: int | None = option(
        "startingTimestamp", count_option(f"Unix milliseconds, 0 to {COUNT_MAX}"), None
    )
    ending: Positions = option("endingOffsets", _positions(Edge.LATEST), _everywhere(Edge.LATEST))
    max_offsets_per_trigger: int | None = option("maxOffsetsPerTrigger", positive_option(), None)
    min_partitions: int | None = option("minPartitions", min_partitions_option, None)
    fail_on_data_loss: bool = option("failOnDataLoss", flag_option, True)
    verify: bool = option("verify", flag_option, True)

    @property
    def types(self) -> dict[str, str]:
        """Type of each column in Spark's DDL, in the order of the rows."""
        types = {
            "owner": "STRING",
            "topic": "STRING",
            "partition": "BIGINT" if self.partition_format is PartitionFormat.LONG else "STRING",
            "offset": "BIGINT",
            "timestamp": "TIMESTAMP",
            "key": column_type(self.key_format),
            "value": column_type(self.value_format),
            "headers": "MAP<STRING, STRING>",
        }
        return {name: types[name] for name in self.columns}

    def selects(self, owner: str, topic: str) -> bool:
        """Return whether the options select this owner and topic."""
        return (not self.owners or owner in self.owners) and (
            not self.topics or topic in self.topics
        )


def parse_options(given: Mapping[str, str]) -> QueueOptions:
    """Parse the options. Raises: UsageError: one is not accepted or missing."""
    options = Given.of(given, ReadTarget, QueueOptions)
    made = parse_option_record(QueueOptions, options, target=read_target_option(options))
    # "Every cell is compared with its hash" (docs/spark.md): a node may send anything.
    if made.target.node and not made.verify:
        raise bad_option("verify", "false", "cells from a node are always compared with their hash")
    # Both say where every partition begins, so they could contradict each other.
    if "startingTimestamp" in options and "startingOffsets" in options:
        raise UsageError(
            "options startingOffsets and startingTimestamp exclude each other; give one"
        )
    # "All but headers": they are maps, and few queries need them.
    columns = made.columns or (QUEUE_COLUMNS if made.include_headers else DEFAULT_COLUMNS)
    check_agreed("includeHeaders", made.include_headers, "headers", columns)
    # "As `valueFormat`" unless it is given.
    key_format = made.key_format if "keyFormat" in options else made.value_format
    return replace(made, columns=columns, key_format=key_format)
