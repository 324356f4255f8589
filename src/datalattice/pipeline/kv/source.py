"""Source: the Spark format `lattice.kv`: databases in batches, and their changes as a stream.

The planner chooses a root, checks who signed the databases, and cuts the trees of their keys into
subtrees; a task reads some of them. A stream's position is a root: a batch is what differs between
two, found by comparing hashes from the top down.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    SupportsTriggerAvailableNow,
)

import datalattice.apps  # noqa: F401 - registers the sections of the root lattice
from datalattice.cells import Value
from datalattice.clock import Clock, SystemClock
from datalattice.errors import DataLoss, MissingData, UsageError
from datalattice.pipeline.frames import Planned, read_part, root_at
from datalattice.pipeline.kv.options import FORMAT, KVOptions, parse_options
from datalattice.pipeline.kv.plan import Task, plan
from datalattice.pipeline.kv.position import Position
from datalattice.pipeline.kv.rows import Times, rows
from datalattice.pipeline.kv.sink import KVSink
from datalattice.pipeline.kv.view import check_named, differing
from datalattice.pipeline.leasing import Snapshot
from datalattice.pipeline.options import bad_option
from datalattice.pipeline.places import Source, open_place
from datalattice.pipeline.roots import EARLIEST, LATEST, Roots
from datalattice.pipeline.tables import batches, check_schema, ddl

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

POSITION_AGE_MAX_MS: Final = 10 * 60 * 1_000
"""A stream moves on to the present root after this time although nothing changed for it: else it
would keep what everybody else has long thrown away."""

_OPTIONS: Final = "columns and valueFormat"

_log: Final = logging.getLogger("datalattice.pipeline")


class KVSource(KVSink):
    """Keys of databases in a store, as rows.

    Rows (`columns` picks among them):

    | column | type | what |
    |---|---|---|
    | owner | STRING | whose database: 0x and the public key in hex |
    | database | STRING | its name |
    | key | STRING | the key |
    | type | STRING | value, hash, set, zset, list or counter; NULL: the key was deleted |
    | value | as valueFormat says | what the key holds, as one value |
    | updated | TIMESTAMP | when it was written last |
    | expires | TIMESTAMP | when it expires; NULL: never |

    A batch has a row for each live key, a stream one for each key that was written or deleted since
    the batch before; of several writes in between, the last.

    Options (names are case-insensitive):

    * `store` or `node`: the folder of a store or of a node (also as the argument of `load()`), or
      the address of a running node. `nodeKey`, `asOf` (batches only) and `leaseSeconds` as in
      `datalattice.pipeline.queue.source`.
    * `owner`, `database`: which to read; names separated by commas or a JSON array. Default: all.
    * `prefix`: only keys that begin with this; others are not visited.
    * `columns`: the columns to read, in this order. Default: all. What is left out is not decoded.
    * `valueFormat`: `cell` (default), `bytes`, `string`, `json` or `variant`.
    * `startingOffsets`: `earliest` (default: everything that is there comes first), `latest`
      (streams only: changes from now on), or the hash of a root: changes since then, in a batch,
      too. A stream that restarts goes on from its checkpoint.
    * `minPartitions`: least number of tasks, keys permitting. Large databases are cut anyway.
    * `failOnDataLoss`: false: when the root that changes are told since is gone, everything that is
      there is told again, with a warning. Default: true, that is an error.

    Writing (`datalattice.pipeline.kv.sink` says how) takes the columns key and value, and maybe
    database, type and expires.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self.given = dict(options)

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return FORMAT

    def schema(self) -> str:
        """Return the columns in Spark's DDL.

        Raises: UsageError: an option is none of reading.
        """
        return ddl(parse_options(self.given).types)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch.

        Raises: UsageError: an option does not fit a batch.
        """
        options = parse_options(self.given)
        if options.starting == LATEST:
            raise bad_option("startingOffsets", LATEST, "a batch has nothing to read from there")
        return KVReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        """Return the reader of a stream of changes.

        Raises: UsageError: an option does not fit a stream.
        """
        options = parse_options(self.given)
        if options.place.as_of:
            raise UsageError(
                "option asOf is for batches; a stream begins at a root with startingOffsets"
            )
        return KVStreamReader(options, schema)


class _Reading:
    """What both readers do: plan what differs between two roots, and read the tasks."""

    def __init__(self, options: KVOptions, schema: StructType, clock: Clock) -> None:
        self.options = options
        self.schema = schema
        self.clock = clock
        self.roots = Roots(options.place, clock)
        check_schema(schema, options.types, FORMAT, _OPTIONS)

    def source(self) -> Source:
        """Return the open place."""
        return open_place(self.options.place, self.clock)

    def value(self, root_hash: bytes | None) -> Value:
        """Return a root, nil where there is none."""
        return root_at(self.source(), root_hash)

    def plan(self, start: Position, end: Position, snapshot: Snapshot) -> list[Planned]:
        """Return the tasks that read what differs.

        Raises: DataLoss: the start is gone, and failOnDataLoss.
        """
        root = self.value(end.root_hash)
        try:
            before = self._held(start.root_hash)
            tasks = self._tasks(before, root)
        except (DataLoss, MissingData) as loss:
            if start.root_hash is None:
                raise
            if self.options.fail_on_data_loss:
                raise _gone(start.root_hash, self.options) from loss
            _log.warning("%s; reading all keys again (failOnDataLoss=false)", loss)
            tasks = self._tasks(None, root)
        times = Times(start.time_ms, end.time_ms)
        return [Planned(_name(task), (task, times), snapshot) for task in tasks]

    def _held(self, root_hash: bytes | None) -> Value:
        if root_hash is not None:
            self.roots.hold(root_hash)
        return self.value(root_hash)

    def _tasks(self, before: Value, after: Value) -> list[Task]:
        return plan(differing(before, after, self.options), self.options.min_partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task."""
        return read_part(partition, self.options.place, self.schema, self._batches, self.clock)

    def _batches(
        self, part: tuple[Task, Times], source: Source, schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        return batches(rows(part[0], self.options, part[1], source), schema)


def _name(task: Task) -> str:
    return " to ".join(dict.fromkeys(str(task[place].name) for place in (0, -1)))


def _gone(root_hash: bytes, options: KVOptions) -> DataLoss:
    return DataLoss(
        f"changes since the root 0x{root_hash.hex()} cannot be told: it is not in "
        f"{options.place} any more; longer leaseSeconds, a pin or a longer history keep it, and "
        "failOnDataLoss=false tells everything that is there again"
    )


class KVReader(DataSourceReader):
    """Reads the keys once, or what changed since a root."""

    def __init__(self, options: KVOptions, schema: StructType, clock: Clock | None = None) -> None:
        self._reading = _Reading(options, schema, clock or SystemClock())

    def __reduce__(self) -> tuple[type[KVReader], tuple[KVOptions, StructType]]:
        # What was opened and leased belongs to the process that plans.
        return type(self), (self._reading.options, self._reading.schema)

    def partitions(self) -> Sequence[Planned]:
        """Return the tasks.

        Raises: UsageError: an owner or database that is named is not there. DataLoss: the root of
                startingOffsets is gone, and failOnDataLoss.
        """
        return self._reading.source().planned(self._tasks)

    def _tasks(self, snapshot: Snapshot) -> list[Planned]:
        reading = self._reading
        now_ms = reading.clock.now_ms()
        check_named(reading.value(snapshot.root_hash), reading.options)
        starting = reading.options.starting
        since = None if starting == EARLIEST else bytes.fromhex(starting.removeprefix("0x"))
        # Whether what changed had expired before is judged by the same time.
        start, end = Position(since, now_ms), Position(snapshot.root_hash, now_ms)
        return reading.plan(start, end, snapshot)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task."""
        return self._reading.read(partition)


class KVStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads what changed, from one root to the next.

    Spark keeps the position: after a restart it asks for the same pairs of roots again. The roots
    of the batch in work are leased until Spark says that it is done.
    """

    def __init__(self, options: KVOptions, schema: StructType, clock: Clock | None = None) -> None:
        self._reading = _Reading(options, schema, clock or SystemClock())
        self._target: Position | None = None
        self._known: tuple[bytes | None, bytes | None] | None = None

    def __reduce__(self) -> tuple[type[KVStreamReader], tuple[KVOptions, StructType]]:
        # What a stream remembers belongs to the one process that plans it.
        return type(self), (self._reading.options, self._reading.schema)

    def initialOffset(self) -> dict[str, object]:  # noqa: N802 - Spark's
        """Return where a new stream begins.

        Raises: DataLoss: the root of startingOffsets is not there.
        """
        root_hash = self._reading.roots.first(self._reading.options.starting)
        return Position(root_hash, self._reading.clock.now_ms()).write()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's
        """Note the present root: the stream ends when that is read."""
        self._target = self._hold(self._present())

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's
        """Return that a batch takes all that differs."""
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, object], limit: ReadLimit) -> dict[str, object]:  # noqa: N802 - Spark's
        """Return where the next batch ends: the start itself where nothing changed."""
        begin = Position.read(start)
        self._renew(begin.root_hash)
        end = self._present() if self._target is None else self._target
        if end.root_hash is None or end.root_hash == begin.root_hash:
            return start
        is_old = end.time_ms - begin.time_ms > POSITION_AGE_MAX_MS
        if self._is_unchanged(begin.root_hash, end.root_hash) and not is_old:
            return start
        return self._hold(end).write()

    def reportLatestOffset(self) -> dict[str, object]:  # noqa: N802 - Spark's
        """Return the present root, for the progress report."""
        return self._present().write()

    def partitions(self, start: dict[str, object], end: dict[str, object]) -> Sequence[Planned]:
        """Return the tasks of a batch.

        Raises: DataLoss: a root of the batch is gone, and failOnDataLoss.
        """
        reading = self._reading
        last = Position.read(end)
        if last.root_hash is None:
            return []
        try:
            snapshot = reading.roots.hold(last.root_hash)
        except DataLoss as loss:
            # Only after a restart: a batch that was planned holds its roots.
            if reading.options.fail_on_data_loss:
                raise
            _log.warning("%s; reading the present root instead (failOnDataLoss=false)", loss)
            present = self._hold(self._present())
            if present.root_hash is None:
                return []
            last = Position(present.root_hash, last.time_ms)
            snapshot = reading.roots.hold(present.root_hash)
        return reading.plan(Position.read(start), last, snapshot)

    def commit(self, end: dict[str, object]) -> None:
        """Let go of the roots before `end`."""
        self._reading.roots.commit(Position.read(end).root_hash)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task."""
        return self._reading.read(partition)

    def _present(self) -> Position:
        return Position(self._reading.source().root_hash(), self._reading.clock.now_ms())

    def _hold(self, position: Position) -> Position:
        """Hold a position's root; where it is gone before that, the one that came after it."""
        roots = self._reading.roots
        if position.root_hash is not None:
            try:
                roots.hold(position.root_hash)
            except DataLoss:
                return Position(roots.present(), self._reading.clock.now_ms())
        return position

    def _renew(self, root_hash: bytes | None) -> None:
        """Hold on to where the stream stands, however long nothing changes."""
        if root_hash is not None:
            with suppress(DataLoss):  # it is told when it matters: with the next change
                self._reading.roots.hold(root_hash)

    def _is_unchanged(self, before: bytes | None, after: bytes) -> bool:
        """Return whether two roots have nothing to tell of; False where that cannot be found out.

        A pair that was looked at once is not looked at again.
        """
        if self._known == (before, after):
            return True
        reading = self._reading
        try:
            old = reading.value(before)
            found = next(differing(old, reading.value(after), reading.options), None)
        except MissingData:
            return False
        if found is None:
            self._known = (before, after)
        return found is None
