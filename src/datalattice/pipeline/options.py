"""Options: what a user tells the source as strings, parsed once into a frozen record.

Names are case-insensitive, as everywhere in Spark. Whatever is wrong names the option, its value
and what is accepted.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeVar

from datalattice.errors import UsageError
from datalattice.limits import COUNT_MAX

COLUMNS: Final = ("owner", "topic", "partition", "offset", "timestamp", "key", "value", "headers")
"""Every column, in order. `headers` is there on demand (`includeHeaders`, `columns`)."""

DEFAULT_COLUMNS: Final[tuple[str, ...]] = COLUMNS[:-1]


class ValueFormat(Enum):
    """How a value (or key) becomes a column."""

    CELL = "cell"
    """BINARY: the canonical encoding, branches included; exact for every value."""
    BYTES = "bytes"
    """BINARY: the content of a Blob, the UTF-8 of a String; other values are refused."""
    STRING = "string"
    """STRING: what JSON writes as a string without its quotes, every other value as JSON."""
    JSON = "json"
    """STRING: the value as JSON."""


class PartitionFormat(Enum):
    """How a partition id becomes a column."""

    LONG = "long"
    """BIGINT; ids that are no 64-bit integers are refused."""
    STRING = "string"
    """STRING: the text of any id."""


class Edge(Enum):
    """A position that every partition has."""

    EARLIEST = "earliest"
    LATEST = "latest"


Position = Edge | int
"""Where to start or stop in one partition: an edge or an absolute offset."""


@dataclass(frozen=True, slots=True)
class Positions:
    """Positions by partition: the longest matching name counts, then the default.

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
        """Return whether some partition has this position."""
        return self.default is edge or edge in self.named.values()


@dataclass(frozen=True, slots=True)
class QueueOptions:
    """The options of `lattice.queue`; the docstring of the source says what each means."""

    store: str
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

    def selects(self, owner: str, topic: str) -> bool:
        """Return whether the options `owner` and `topic` ask for this topic."""
        return (not self.owners or owner in self.owners) and (
            not self.topics or topic in self.topics
        )


ACCEPTED: Final = (
    "store",
    "path",
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
)
"""Every option's name. `path` is what Spark passes for `load(path)`; it means `store`."""

_T = TypeVar("_T")


def parse_options(given: Mapping[str, str]) -> QueueOptions:
    """Return the options as a record.

    Raises: UsageError: an option is unknown, missing, not of its form, or at odds with another.
    """
    options = _Given(given)
    value_format = options.get("valueFormat", _choice(ValueFormat), ValueFormat.CELL)
    return QueueOptions(
        store=_store(options),
        owners=options.get("owner", lambda text: tuple(map(owner_name, _names(text))), ()),
        topics=options.get("topic", _names, ()),
        columns=_columns(options),
        value_format=value_format,
        key_format=options.get("keyFormat", _choice(ValueFormat), value_format),
        partition_format=options.get(
            "partitionFormat", _choice(PartitionFormat), PartitionFormat.LONG
        ),
        starting=options.get(
            "startingOffsets", _positions(Edge.EARLIEST), _everywhere(Edge.EARLIEST)
        ),
        starting_timestamp_ms=_starting_timestamp(options),
        ending=options.get("endingOffsets", _positions(Edge.LATEST), _everywhere(Edge.LATEST)),
        max_offsets_per_trigger=options.get("maxOffsetsPerTrigger", _positive, None),
        min_partitions=options.get("minPartitions", _positive, None),
        fail_on_data_loss=options.get("failOnDataLoss", _flag, True),
    )


def bad_option(name: str, value: object, accepted: str) -> UsageError:
    """Return the error for an option whose value is not accepted."""
    return UsageError(f"option {name}={value!r} is not accepted: {accepted}")


class _Refused(Exception):
    """A value is not of its option's form; the text says what is."""


class _Given:
    """The options as given, by their names in lower case."""

    def __init__(self, given: Mapping[str, str]) -> None:
        names = {name.lower(): name for name in ACCEPTED}
        for name in given:
            if name.lower() not in names:
                near = difflib.get_close_matches(name.lower(), names, n=1)
                hint = f" (did you mean {names[near[0]]}?)" if near else ""
                raise UsageError(
                    f"unknown option {name}={given[name]!r}{hint}; "
                    f"accepted are: {', '.join(ACCEPTED)}"
                )
        self._values = {name.lower(): str(value) for name, value in given.items()}

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._values

    def get(self, name: str, parse: Callable[[str], _T], default: _T) -> _T:
        """Return the parsed value of an option, or `default` when it is not given."""
        text = self._values.get(name.lower())
        if text is None:
            return default
        try:
            return parse(text.strip())
        except _Refused as refused:
            raise bad_option(name, text, str(refused)) from None


def _store(options: _Given) -> str:
    store = options.get("store", _text, "")
    path = options.get("path", _text, "")
    if store and path and store != path:
        raise bad_option("path", path, f"load() names another store than store={store!r}; give one")
    if not store and not path:
        raise UsageError(
            "option store is missing: give the folder of a store, as store or to load()"
        )
    return store or path


def _columns(options: _Given) -> tuple[str, ...]:
    headers = options.get("includeHeaders", _flag, None)
    if "columns" not in options:
        return COLUMNS if headers else DEFAULT_COLUMNS
    columns = options.get("columns", _column_names, DEFAULT_COLUMNS)
    if headers is not None and headers != ("headers" in columns):
        raise bad_option(
            "includeHeaders",
            str(headers).lower(),
            f"columns={','.join(columns)!r} says otherwise; give one of them",
        )
    return columns


def _column_names(text: str) -> tuple[str, ...]:
    names = tuple(name.lower() for name in _names(text))
    if not names or len(set(names)) != len(names) or not set(names) <= set(COLUMNS):
        raise _Refused(f"one or more of {', '.join(COLUMNS)}, each once, separated by commas")
    return names


def _starting_timestamp(options: _Given) -> int | None:
    if "startingTimestamp" in options and "startingOffsets" in options:
        raise UsageError(
            "options startingOffsets and startingTimestamp exclude each other; give one"
        )
    return options.get("startingTimestamp", _count("Unix milliseconds, 0 or more"), None)


def _text(text: str) -> str:
    if not text:
        raise _Refused("a text that is not empty")
    return text


def _names(text: str) -> tuple[str, ...]:
    """Parse names: separated by commas, or a JSON array for names that hold commas."""
    accepted = "names separated by commas, or a JSON array of names"
    if text.startswith("["):
        names = _json(text, accepted)
        if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
            raise _Refused(accepted)
        found = tuple(names)
    else:
        found = tuple(name.strip() for name in text.split(","))
    if not found or not all(found):
        raise _Refused(accepted)
    return found


def owner_name(text: str) -> str:
    """Return an owner's name as rows have it: a public key as 0x and lower-case hex."""
    found = re.fullmatch(r"(?:0x)?([0-9a-f]{64})", text, re.IGNORECASE)
    return "0x" + found[1].lower() if found else text


def _flag(text: str) -> bool:
    if text.lower() not in {"true", "false"}:
        raise _Refused("true or false")
    return text.lower() == "true"


def _count(accepted: str, least: int = 0) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,19}", text) or not least <= int(text) <= COUNT_MAX:
            raise _Refused(accepted)
        return int(text)

    return parse


_positive: Final = _count("a whole number of at least 1", 1)


_Choice = TypeVar("_Choice", bound=Enum)


def _choice(kind: type[_Choice]) -> Callable[[str], _Choice]:
    def parse(text: str) -> _Choice:
        for member in kind:
            if member.value == text.lower():
                return member
        raise _Refused("one of " + ", ".join(str(member.value) for member in kind))

    return parse


def _everywhere(edge: Edge) -> Positions:
    return Positions(edge, {})


_POSITIONS_ACCEPTED: Final = (
    'earliest, latest, or JSON such as {"0": 5}, {"topic": {"0": 5}} or '
    '{"owner": {"topic": {"0": 5}}}, '
    "where an offset is a whole number, "
    '-2 or "earliest", -1 or "latest"'
)
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
        tree = _json(text, _POSITIONS_ACCEPTED)
        if not isinstance(tree, dict) or not tree:
            raise _Refused(_POSITIONS_ACCEPTED)
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
            raise _Refused(_POSITIONS_ACCEPTED)


def _canonical(name: tuple[str, ...]) -> tuple[str, ...]:
    return (owner_name(name[0]), *name[1:]) if len(name) == _NAME_PARTS_MAX else name


def _json(text: str, accepted: str) -> object:
    try:
        found: object = json.loads(text)
    except (ValueError, RecursionError):
        raise _Refused(accepted) from None
    return found
