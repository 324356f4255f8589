"""Gather: what a task does with the rows it is to write: what each key is to show, by database.

A task stages a Map of database names to an Index of keys to `[type value expires]`; the type is nil
for a key that is to be deleted. Of several rows with one key the last stays. Times of writing are
not among it, so rows that come again are staged as the same cells.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from datalattice.apps.kv import TYPE_TAGS, check_room, checked_key, checked_shown
from datalattice.cells import EMPTY_INDEX, Index, Map, Value, Vector
from datalattice.errors import DataLatticeError, LimitExceeded, UsageError
from datalattice.pipeline.columns import cell, check_name, listed, lower_names, slices, stamps_ms
from datalattice.pipeline.kv.options import HIDDEN_DATABASE
from datalattice.pipeline.staging import STAGE_BYTES_MAX
from datalattice.pipeline.values import ValueFormat

if TYPE_CHECKING:
    import pyarrow as pa

ROWS_MAX: Final = 4_096
"""Rows that are taken from a batch at a time, at most."""

KEYS_PENDING_MAX: Final = 16_384
"""Keys that wait in memory before they are put among the others, at most."""

DATABASES_MAX: Final = 1_024
"""Databases that one task writes to, at most: the top of each stays in memory."""

DELETED: Final = Vector.of((None, None, None))
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
    """Whatever takes cells: a task's store."""

    def put(self, value: Value) -> None:
        """Keep the cells of a value, and free their memory."""
        ...


class Gatherer:
    """Collects the keys of one task."""

    def __init__(self, plan: RowPlan, stage: Putting) -> None:
        self.count = 0
        self._plan: Final = plan
        self._stage: Final = stage
        self._kept: Final[dict[str, Index]] = {}
        self._waiting: Final[dict[str, dict[str, Value]]] = {}
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
            if self._waiting_bytes >= STAGE_BYTES_MAX or self._waiting_keys >= KEYS_PENDING_MAX:
                self._put()

    def value(self) -> Map:
        """Return what the task stages."""
        self._put()
        return Map.of(self._kept)

    @property
    def records(self) -> int:
        """How much there is to join: rows, and databases that are to become empty."""
        return self.count + len(self._kept)

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

    def _wanted(self, key: str, type_name: object, value: object, expire: int | None) -> Vector:
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
            return Vector.of((tag, checked_shown(tag, held), expire))
        except DataLatticeError as error:
            raise UsageError(f"key {key[:_SHOWN_CHARS]!r} of type {type_name}: {error}") from None

    def _database(self, name: object) -> dict[str, Value]:
        waiting = self._waiting.get(name) if isinstance(name, str) else None
        if waiting is not None:
            return waiting
        database = checked_database(name)
        if database not in self._kept and len(self._kept) + len(self._waiting) >= DATABASES_MAX:
            raise LimitExceeded(
                f"a task writes to at most {DATABASES_MAX} databases; repartition the rows by "
                "database first"
            )
        return self._waiting.setdefault(database, {})

    def _put(self) -> None:
        for name, waiting in self._waiting.items():
            kept = self._kept.get(name, EMPTY_INDEX)
            check_room(kept, waiting, "the key")
            kept = kept.put_many(waiting)
            self._stage.put(kept)
            self._kept[name] = kept
        self._waiting.clear()
        self._waiting_keys = self._waiting_bytes = 0


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
