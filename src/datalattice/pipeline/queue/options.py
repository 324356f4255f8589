"""Options of `lattice.queue`, parsed into a frozen record."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

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
    owner_name,
    owners_option,
    positive_option,
)
from datalattice.pipeline.read_targets import READ_TARGET_OPTIONS, ReadTarget, read_target_option
from datalattice.pipeline.values import ValueFormat, column_type

COLUMNS: Final = ("owner", "topic", "partition", "offset", "timestamp", "key", "value", "headers")
"""Every column, in order. `headers` is optional (`includeHeaders`, `columns`)."""

DEFAULT_COLUMNS: Final[tuple[str, ...]] = COLUMNS[:-1]


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


Position = Edge | int
"""Where to start or stop in one partition: an edge or an absolute offset."""


@dataclass(frozen=True, slots=True)
class Positions:
    """Positions by partition: that of the longest matching name, else the default.

    A name is the tail of (owner, topic, partition): three parts, two or one.
    """

    default: Edge
    named: Mapping[tuple[str, ...], Position]

    def of(self, owner: str, topic: str, partition: str) -> Position:
        """Return the position for one partition."""
        name = (owner, topic, partition)
        for first in range(len(name)):
            position = self.named.get(name[first:])
            if position is not None:
                return position
        return self.default

    def has(self, edge: Edge) -> bool:
        """Return whether the default or a named position is `edge`."""
        return self.default is edge or edge in self.named.values()


@dataclass(frozen=True, slots=True)
class QueueOptions:
    """The options of `lattice.queue`; `QueueSource` documents them."""

    target: ReadTarget
    owners: tuple[str, ...]
    topics: tuple[str, ...]
    columns: tuple[str, ...]
    value_format: ValueFormat
    key_format: ValueFormat
    partition_format: PartitionFormat
    starting: Positions
    starting_timestamp_ms: int | None
    ending: Positions
    max_offsets_per_trigger: int | None
    min_partitions: int | None
    fail_on_data_loss: bool
    verify: bool

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


ACCEPTED: Final = (
    *READ_TARGET_OPTIONS,
    "owner",
    "topic",
    "columns",
    "includeHeaders",
    "valueFormat",
    "keyFormat",
    "partitionFormat",
    "startingOffsets",
    "startingTimestamp",
    "endingOffsets",
    "maxOffsetsPerTrigger",
    "minPartitions",
    "failOnDataLoss",
    "verify",
)
"""Names of all options."""


def parse_options(given: Mapping[str, str]) -> QueueOptions:
    """Parse the options. Raises: UsageError: one is not accepted or missing."""
    options = Given(given, ACCEPTED)
    value_format = options.get("valueFormat", choice_option(ValueFormat), ValueFormat.CELL)
    target = read_target_option(options)
    return QueueOptions(
        target=target,
        owners=options.get("owner", owners_option, ()),
        topics=options.get("topic", names_option, ()),
        columns=_columns(options),
        value_format=value_format,
        key_format=options.get("keyFormat", choice_option(ValueFormat), value_format),
        partition_format=options.get(
            "partitionFormat", choice_option(PartitionFormat), PartitionFormat.LONG
        ),
        starting=options.get(
            "startingOffsets", _positions(Edge.EARLIEST), _everywhere(Edge.EARLIEST)
        ),
        starting_timestamp_ms=_starting_timestamp(options),
        ending=options.get("endingOffsets", _positions(Edge.LATEST), _everywhere(Edge.LATEST)),
        max_offsets_per_trigger=options.get("maxOffsetsPerTrigger", positive_option(), None),
        min_partitions=options.get("minPartitions", min_partitions_option, None),
        fail_on_data_loss=options.get("failOnDataLoss", flag_option, True),
        verify=_verify(options, target),
    )


def _verify(options: Given, target: ReadTarget) -> bool:
    verify = options.get("verify", flag_option, True)
    if target.node and not verify:
        raise bad_option("verify", "false", "cells from a node are always compared with their hash")
    return verify


def _columns(options: Given) -> tuple[str, ...]:
    headers = options.get("includeHeaders", flag_option, None)
    if "columns" not in options:
        return COLUMNS if headers else DEFAULT_COLUMNS
    columns = options.get("columns", columns_option(COLUMNS), DEFAULT_COLUMNS)
    check_agreed("includeHeaders", headers, "headers", columns)
    return columns


def _starting_timestamp(options: Given) -> int | None:
    if "startingTimestamp" in options and "startingOffsets" in options:
        raise UsageError(
            "options startingOffsets and startingTimestamp exclude each other; give one"
        )
    return options.get(
        "startingTimestamp", count_option(f"Unix milliseconds, 0 to {COUNT_MAX}"), None
    )


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
) -> Iterable[tuple[tuple[str, ...], Position]]:
    for part, below in tree.items():
        here = (*name, part)
        if isinstance(below, dict) and below and len(here) < _NAME_PARTS_MAX:
            yield from _leaves(below, here)
        elif isinstance(below, str) and below in _EDGES:
            yield here, _EDGES[below]
        elif isinstance(below, int) and not isinstance(below, bool) and -2 <= below <= COUNT_MAX:
            yield here, _EDGES.get(below, below)
        else:
            raise Refused(_POSITIONS_ACCEPTED)


def _canonical(name: tuple[str, ...]) -> tuple[str, ...]:
    return (owner_name(name[0]), *name[1:]) if len(name) == _NAME_PARTS_MAX else name
