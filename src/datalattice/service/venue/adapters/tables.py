"""Tables for SQL: topics and databases of a node as rows, if the caller may read them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, Protocol

from datalattice.actions import OWN_NAME, ActionRequest, ReadKeys, ReadRecords
from datalattice.apps.kv import shown_value
from datalattice.apps.queue import Topic
from datalattice.cells import Value, to_json
from datalattice.client import Node
from datalattice.errors import NoSuchPath, UsageError
from datalattice.pipeline import Row, micros
from datalattice.service.venue import JobCaller, Json
from datalattice.service.venue.adapters.inputs import members, text_member

TOPIC_COLUMNS: Final = "partition STRING, offset BIGINT, time TIMESTAMP, key STRING, value STRING"
_DATABASE_COLUMNS: Final = "key STRING, type STRING, value STRING"


class TableRows(NamedTuple):
    """A table: names and types of its columns, and its rows."""

    columns: str
    rows: Iterator[Row]


class TableSource(Protocol):
    """Opens the tables of a query."""

    def check(self, source: Json) -> None:
        """Check a source. Raises: UsageError: it is malformed."""
        ...

    def open(self, caller: JobCaller, source: Json) -> TableRows:
        """Return the table in its state at the call.

        Raises: Unauthorized: the caller may not read it. NoSuchPath: it does not exist.
        """
        ...


MayDo = Callable[[JobCaller, ActionRequest[Any]], None]
"""Raises Unauthorized unless the caller of a job may do the action."""


class LatticeTables:
    """Tables of a node: `{"topic": name}` and `{"database": name}`, each with `owner` if not "own".

    Keys that are not text, and all values, are JSON. may: called with the action that reads the
    same data over other doors.
    """

    def __init__(self, node: Node, may: MayDo) -> None:
        self._node: Final = node
        self._may: Final = may

    def check(self, source: Json) -> None:
        """Refuse a source unless it has exactly one of `topic` and `database`."""
        _request(source)

    def open(self, caller: JobCaller, source: Json) -> TableRows:
        """Return the records of a topic in all partitions, or the live keys of a database."""
        request = _request(source)
        # Checked when the table is opened, not when the job was made: rules may have changed.
        self._may(caller, request)
        owner = self._node.owner_key(request.owner)
        if isinstance(request, ReadRecords):
            topic = self._node.topic(request.topic, owner=owner)
            # A topic with a fixed number of partitions exists before its first record.
            if not topic.partitions() and not topic.num_partitions:
                raise NoSuchPath(f"there is no topic {request.topic}")
            return TableRows(TOPIC_COLUMNS, _records(topic))
        if request.database not in self._node.databases(owner=owner):
            raise NoSuchPath(f"there is no database {request.database}")
        database = self._node.database(request.database, owner=owner)
        return TableRows(
            _DATABASE_COLUMNS,
            ((key, entry.type_name, to_json(shown_value(entry))) for key, entry in database.scan()),
        )


def _request(source: Json) -> ReadRecords | ReadKeys:
    given = members(source, ["topic", "database", "owner"])
    topic, database = text_member(given, "topic", ""), text_member(given, "database", "")
    if bool(topic) == bool(database):
        raise UsageError("a table has either `topic` or `database`")
    owner = text_member(given, "owner", OWN_NAME)
    # "The rights of `queue.range` and `kv.range` are asked for when the job runs"
    # (docs/venue-operations.md "SQL over lattice data").
    if topic:
        return ReadRecords(topic=topic, owner=owner)
    return ReadKeys(database=database, owner=owner)


def _records(topic: Topic) -> Iterator[Row]:
    for id in topic.partitions():
        partition = _name(id)
        for entry in topic.partition(id).entries():
            key, value = _name(entry.key), to_json(entry.value)
            yield partition, entry.offset, micros(entry.time_ms), key, value


def _name(value: Value) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return to_json(value)
