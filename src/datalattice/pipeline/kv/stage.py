"""Task side of the kv sink: stage rows as the new values of keys, by database.

A task stages *runs*. A run has keys of one database in order, each once, with the value of its last
row. It is a sequence of parcels with the head `[database run]`, where `run` counts the runs of the
task. Its items are encodings of `[key type value expires]`; the type nil deletes the key. Cells
that items reference come before them. The driver sets the times of writing.

Source: docs/spark-kv.md "Writing", "Exactly once".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from datalattice.apps.kv import TYPE_TAGS, checked_key, checked_shown
from datalattice.arrow import ValueFormat
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
from datalattice.pipeline.columns import (
    cell,
    check_name_length,
    entries_or_nulls,
    lower_names,
    row_slices,
    stamps_ms,
)
from datalattice.pipeline.exactly_once.job import STAGE_BYTES_MAX, Stage
from datalattice.pipeline.kv.options import HIDDEN_DATABASE

if TYPE_CHECKING:
    import pyarrow as pa

_ROWS_MAX: Final = 4_096
"""Most rows taken from a batch at a time."""

RUN_KEYS_MAX: Final = 65_536
"""Most keys that a task holds in memory before it stages them."""

_RUN_BYTES_MAX: Final = 16 * 1024 * 1024
"""Approximate most bytes of rows that a task holds in memory before it stages them."""

ITEMS: Final = 2
"""Kind of the parcels of a run."""

ITEMS_BYTES: Final = 128 * 1024
"""Approximate size of a parcel's items. The driver holds one parcel of each run that it merges."""

DATABASES_MAX: Final = 1_024
"""Most databases that one task writes to: the driver keeps the top node of each in memory."""

EntryUpdate = tuple[Value, Value, Value]
"""The new type, value and expiry of a key."""

DELETED: Final[EntryUpdate] = (None, None, None)
"""Marks a key to be deleted."""

_PLAIN: Final = TYPE_TAGS["value"]
_SHOWN_CHARS: Final = 100


@dataclass(frozen=True, slots=True)
class KeyPlan:
    """How rows become keys. Plain data: every task gets a copy."""

    database: str | None
    """The database of all rows; None: the column database."""
    value_format: ValueFormat | None
    """Format of the column value; None: numbers or booleans."""
    has_type: bool
    """Whether there is a column type; otherwise all values are plain."""
    overwrite: bool
    """Whether all keys of the written databases are deleted first; also without any row."""


class KeyStager:
    """Stages the keys of one task."""

    def __init__(self, plan: KeyPlan, stage: Stage) -> None:
        self.count = 0
        self._plan: Final = plan
        self._stage: Final = stage
        self._databases: Final[set[str]] = set()
        self._runs = 0
        self._waiting: Final[dict[str, dict[str, EntryUpdate]]] = {}
        self._waiting_keys = 0
        self._waiting_bytes = 0
        if plan.overwrite and plan.database is not None:
            # An empty run: "in the same update, even without any row" (docs/spark-kv.md, Writing).
            self._waiting[plan.database] = {}

    def take(self, batch: pa.RecordBatch) -> None:
        """Take the rows of an Arrow batch; of two rows with one key the later counts.

        Raises: UsageError: a row cannot become a key. LimitExceeded: too many databases.
        """
        for rows in row_slices(lower_names(batch), _ROWS_MAX, STAGE_BYTES_MAX):
            self._note(rows)
            self.count += rows.num_rows
            self._waiting_bytes += rows.nbytes
            # "Runs of at most 65,536 keys or 16 MB of rows" (docs/spark-kv.md, Exactly once).
            if self._waiting_bytes >= _RUN_BYTES_MAX or self._waiting_keys >= RUN_KEYS_MAX:
                self.finish()

    @property
    def records(self) -> int:
        """Number of rows taken and of databases to be emptied."""
        return self.count + len(self._databases)

    def _note(self, rows: pa.RecordBatch) -> None:
        plan = self._plan
        databases = entries_or_nulls(rows, "database") if plan.database is None else None
        values = entries_or_nulls(rows, "value")
        types = entries_or_nulls(rows, "type")
        expires = stamps_ms(rows, "expires")
        for row, given in enumerate(entries_or_nulls(rows, "key")):
            name = plan.database if databases is None else databases[row]
            key = _key(given)
            # "NULL, and `null` in JSON, deletes the key" (docs/spark-kv.md, Writing).
            is_deleted = values[row] is None or (plan.has_type and types[row] is None)
            if is_deleted:
                wanted = DELETED
            else:
                wanted = self._wanted(key, types[row], values[row], expires[row])
            waiting = self._database(name)
            if key not in waiting:
                self._waiting_keys += 1
            # "Of several rows with one key the last counts, in the order of tasks and rows".
            waiting[key] = wanted

    def _wanted(
        self, key: str, type_name: object, value: object, expire: int | None
    ) -> EntryUpdate:
        tag = _PLAIN
        if self._plan.has_type:
            found = TYPE_TAGS.get(str(type_name))
            if found is None:
                raise UsageError(
                    f"the column type is {type_name!r} for key {key[:_SHOWN_CHARS]!r}; it takes "
                    f"{', '.join(TYPE_TAGS)}, or NULL for a key that is deleted"
                )
            tag = found
        held = cell(value, "value", self._plan.value_format)
        # The text `null` in a JSON column deletes the key as well.
        if held is None:
            return DELETED
        try:
            # Checked in the task: on the driver the error would come after all tasks have run.
            return tag, checked_shown(tag, held), expire
        except DataLatticeError as error:
            raise UsageError(f"key {key[:_SHOWN_CHARS]!r} of type {type_name}: {error}") from None

    def _database(self, name: object) -> dict[str, EntryUpdate]:
        waiting = self._waiting.get(name) if isinstance(name, str) else None
        if waiting is not None:
            return waiting
        database = checked_sink_database(name)
        named = self._databases | self._waiting.keys()
        # The driver keeps the top of each database in memory until the edit.
        if database not in named and len(named) >= DATABASES_MAX:
            raise LimitExceeded(
                f"a task writes to at most {DATABASES_MAX} databases; repartition the rows by "
                "database first"
            )
        return self._waiting.setdefault(database, {})

    def finish(self) -> None:
        """Stage the keys that are still buffered."""
        for name, waiting in self._waiting.items():
            self._databases.add(name)
            self._runs += 1
            self._put(encode_message(Vector.of((name, self._runs))), waiting)
        self._waiting.clear()
        self._waiting_keys = self._waiting_bytes = 0

    def _put(self, head: bytes, waiting: dict[str, EntryUpdate]) -> None:
        parcels = self._stage.parcels
        items: list[bytes] = []
        cells: list[tuple[bytes, bytes]] = []
        size = below = 0
        # In store order: the driver merges runs by key and touches each leaf once.
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
                # Children before parents: the driver stores cells as it reads them.
                parcels.put_cells(cells)
                parcels.put_items(ITEMS, head, items)
                items, cells, size, below = [], [], 0, 0
        parcels.put_cells(cells)
        parcels.put_items(ITEMS, head, items)


def store_order(key: str) -> bytes:
    """Return the sort key of keys in store order."""
    return key_bytes(key_of(key))


def checked_sink_database(name: object) -> str:
    """Return the name of a database that rows may be written to.

    Raises: UsageError: it is empty, or the sinks' own database.
    """
    if not isinstance(name, str) or not name:
        raise UsageError(
            "a row has no database: give the column database a name in every row, or the option "
            "database"
        )
    # Rows there could forge a mark, and a batch would be skipped.
    if name == HIDDEN_DATABASE:
        raise UsageError(
            f"the database {HIDDEN_DATABASE} stores the sinks' marks; give another name"
        )
    check_name_length(name, "database")
    return name


def _key(given: object) -> str:
    if given is None:
        raise UsageError("the column key is NULL in a row: every row needs a key")
    return checked_key(given, "the column key")
