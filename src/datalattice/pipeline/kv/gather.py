"""Gather: what a task does with the rows it is to write: what each key is to show, by database.

A task stages runs: keys of one database in their order, each with what it is to show. Of several
rows of a run with one key the last stays. A run is some parcels whose head is the Vector
`[database run]`; their items are encodings of `[key type value expires]`, the type nil for a key
that is to be deleted. Cells that they refer to come before them. Times of writing are not among it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from datalattice.apps.kv import TYPE_TAGS, checked_key, checked_shown
from datalattice.cells import (
    Value,
    Vector,
    encode,
    encode_message,
    key_bytes,
    novelty,
)
from datalattice.errors import DataLatticeError, LimitExceeded, UsageError
from datalattice.lattice import key_of
from datalattice.pipeline.columns import cell, check_name, listed, lower_names, slices, stamps_ms
from datalattice.pipeline.kv.options import HIDDEN_DATABASE
from datalattice.pipeline.parcels import ParcelWriter
from datalattice.pipeline.staging import STAGE_BYTES_MAX
from datalattice.pipeline.values import ValueFormat

if TYPE_CHECKING:
    import pyarrow as pa

ROWS_MAX: Final = 4_096
"""Rows that are taken from a batch at a time, at most."""

RUN_KEYS_MAX: Final = 65_536
"""Keys that wait in memory before they are written as runs, at most."""

RUN_BYTES_MAX: Final = 16 * 1024 * 1024
"""Rows that do so, about."""

ITEMS: Final = 2
"""Kind of the parcels of a run."""

ITEMS_BYTES: Final = 128 * 1024
"""Items that make a parcel, about: the driver holds one of each run that it reads."""

DATABASES_MAX: Final = 1_024
"""Databases that one task writes to, at most: the top of each stays in memory."""

Wanted = tuple[Value, Value, Value]
"""What a key is to show: type, value and expiry."""

DELETED: Final[Wanted] = (None, None, None)
"""What stands for a key that is to be deleted."""

_PLAIN: Final = TYPE_TAGS["value"]
_SHOWN_CHARS: Final = 100


@dataclass(frozen=True, slots=True)
class RowPlan:
    """How rows become keys. Made at planning; plain, for it goes to every task."""

    database: str | None
    """The database of all rows; None: the column says."""
    value_format: ValueFormat | None
    """How to read the column value; None: it holds numbers or truth values as they are."""
    has_type: bool
    """Whether the column type is there; without, all values are plain ones."""
    overwrite: bool
    """Whether what was there before goes, also of databases that no row names."""


class Putting(Protocol):
    """Whatever takes what a task stages: its stage."""

    @property
    def parcels(self) -> ParcelWriter:
        """The file of parcels, made with the first."""
        ...


class Gatherer:
    """Collects the keys of one task."""

    def __init__(self, plan: RowPlan, stage: Putting) -> None:
        self.count = 0
        self._plan: Final = plan
        self._stage: Final = stage
        self._databases: Final[set[str]] = set()
        self._runs = 0
        self._waiting: Final[dict[str, dict[str, Wanted]]] = {}
        self._waiting_keys = 0
        self._waiting_bytes = 0
        if plan.overwrite and plan.database is not None:
            self._waiting[plan.database] = {}

    def take(self, batch: pa.RecordBatch) -> None:
        """Take the rows of an Arrow batch; of two with one key the later counts.

        Raises: UsageError: a row that cannot be a key. LimitExceeded: too many databases.
        """
        for rows in slices(lower_names(batch), ROWS_MAX, STAGE_BYTES_MAX):
            self._note(rows)
            self.count += rows.num_rows
            self._waiting_bytes += rows.nbytes
            if self._waiting_bytes >= RUN_BYTES_MAX or self._waiting_keys >= RUN_KEYS_MAX:
                self.finish()

    @property
    def records(self) -> int:
        """How much there is to join: rows, and databases that are to become empty."""
        return self.count + len(self._databases)

    def _note(self, rows: pa.RecordBatch) -> None:
        plan = self._plan
        databases = listed(rows, "database") if plan.database is None else None
        values = listed(rows, "value")
        types = listed(rows, "type")
        expires = stamps_ms(rows, "expires")
        for row, given in enumerate(listed(rows, "key")):
            name = plan.database if databases is None else databases[row]
            key = _key(given)
            is_deleted = values[row] is None or (plan.has_type and types[row] is None)
            if is_deleted:
                wanted = DELETED
            else:
                wanted = self._wanted(key, types[row], values[row], expires[row])
            waiting = self._database(name)
            if key not in waiting:
                self._waiting_keys += 1
            waiting[key] = wanted

    def _wanted(self, key: str, type_name: object, value: object, expire: int | None) -> Wanted:
        tag = _PLAIN
        if self._plan.has_type:
            found = TYPE_TAGS.get(str(type_name))
            if found is None:
                raise UsageError(
                    f"the column type is {type_name!r} for key {key[:_SHOWN_CHARS]!r}; it is "
                    f"{', '.join(TYPE_TAGS)}, or NULL for a key that is deleted"
                )
            tag = found
        held = cell(value, "value", self._plan.value_format)
        if held is None:
            return DELETED
        try:
            return tag, checked_shown(tag, held), expire
        except DataLatticeError as error:
            raise UsageError(f"key {key[:_SHOWN_CHARS]!r} of type {type_name}: {error}") from None

    def _database(self, name: object) -> dict[str, Wanted]:
        waiting = self._waiting.get(name) if isinstance(name, str) else None
        if waiting is not None:
            return waiting
        database = checked_database(name)
        named = self._databases | self._waiting.keys()
        if database not in named and len(named) >= DATABASES_MAX:
            raise LimitExceeded(
                f"a task writes to at most {DATABASES_MAX} databases; repartition the rows by "
                "database first"
            )
        return self._waiting.setdefault(database, {})

    def finish(self) -> None:
        """Stage what is still waiting."""
        for name, waiting in self._waiting.items():
            self._databases.add(name)
            self._runs += 1
            self._put(encode_message(Vector.of((name, self._runs))), waiting)
        self._waiting.clear()
        self._waiting_keys = self._waiting_bytes = 0

    def _put(self, head: bytes, waiting: dict[str, Wanted]) -> None:
        parcels = self._stage.parcels
        items: list[bytes] = []
        cells: list[tuple[bytes, bytes]] = []
        size = below = 0
        for key in sorted(waiting, key=store_order):
            item = Vector.of((key, *waiting[key]))
            encoding = encode(item)
            for hash, cell_encoding, value in novelty(item):
                if value is not item:
                    cells.append((hash, cell_encoding))
                    below += len(cell_encoding)
            items.append(encoding)
            size += len(encoding)
            if size >= ITEMS_BYTES or below >= STAGE_BYTES_MAX:
                parcels.put_cells(cells)
                parcels.put_items(ITEMS, head, items)
                items, cells, size, below = [], [], 0, 0
        parcels.put_cells(cells)
        parcels.put_items(ITEMS, head, items)


def store_order(key: str) -> bytes:
    """Return by what keys come in the order in which they stand in a store."""
    return key_bytes(key_of(key))


def checked_database(name: object) -> str:
    """Return the name of a database that rows may be written to.

    Raises: UsageError: it is none, or that of the sinks' own.
    """
    if not isinstance(name, str) or not name:
        raise UsageError(
            "a row has no database: give the column database a name in every row, or the option "
            "database"
        )
    if name == HIDDEN_DATABASE:
        raise UsageError(
            f"the database {HIDDEN_DATABASE} keeps which batches were written; give another name"
        )
    check_name(name, "database")
    return name


def _key(given: object) -> str:
    if given is None:
        raise UsageError("the column key is NULL in a row: every row needs a key")
    return checked_key(given, "the column key")
