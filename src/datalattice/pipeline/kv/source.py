"""The Spark format `lattice.kv`: databases in batches, their changes as a stream, and the sink.

The planner chooses a root, checks the databases' signatures, and divides their key trees into
subtrees; a task reads some of them. A stream's position is a root. A batch is the difference of two
roots, found by comparing hashes from the top down.
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
from datalattice.pipeline.arrow_batches import batches, check_schema, ddl
from datalattice.pipeline.frames import Planned, read_part, root_at
from datalattice.pipeline.kv.options import FORMAT, KVOptions, parse_options
from datalattice.pipeline.kv.plan import Task, plan
from datalattice.pipeline.kv.position import ReadPosition
from datalattice.pipeline.kv.rows import Times, rows
from datalattice.pipeline.kv.sink import KVSink
from datalattice.pipeline.kv.view import check_named, differing
from datalattice.pipeline.leasing import LeasedRoot
from datalattice.pipeline.options import bad_option
from datalattice.pipeline.read_targets import OpenTarget, open_target
from datalattice.pipeline.roots import EARLIEST, LATEST, LeasedRoots

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

POSITION_AGE_MAX_MS: Final = 10 * 60 * 1_000
"""A stream without changes for this long moves on to the current root; otherwise its lease would
keep collected data in the store for ever."""

_OPTIONS: Final = "columns and valueFormat"

_log: Final = logging.getLogger("datalattice.pipeline")


class KVSource(KVSink):
    """Keys of databases in a store, as rows.

    Rows (`columns` selects among them):

    | column | type | what |
    |---|---|---|
    | owner | STRING | owner of the database: 0x and the public key in hex |
    | database | STRING | name of the database |
    | key | STRING | the key |
    | type | STRING | value, hash, set, zset, list or counter; NULL: the key was deleted |
    | value | see valueFormat | what the key holds, as one value |
    | updated | TIMESTAMP | time of the last write |
    | expires | TIMESTAMP | when it expires; NULL: never |

    A batch has a row for each live key. A stream has a row for each key that was written or deleted
    since the previous batch, with its last value.

    Options (names are case-insensitive):

    * `store` or `node`: the folder of a store or of a node (also as the argument of `load()`), or
      the address of a running node. `nodeKey`, `asOf` (batches only) and `leaseSeconds` as in
      `datalattice.pipeline.queue.source`.
    * `owner`, `database`: what to read; names separated by commas or a JSON array. Default: all.
    * `prefix`: only keys that begin with this; others are not visited.
    * `columns`: the columns to read, in this order. Default: all. Omitted columns are not decoded.
    * `valueFormat`: `cell` (default), `bytes`, `string`, `json` or `variant`.
    * `startingOffsets`: `earliest` (default: all present keys first), `latest` (streams only: only
      later changes), or the hash of a root: changes since then, also in a batch. A restarted stream
      continues from its checkpoint.
    * `minPartitions`: least number of tasks, if there are enough keys. Large databases are always
      divided.
    * `failOnDataLoss`: true (default) fails if the root that a stream stands at is gone; false
      reads every present key again, with a warning.

    Writing (`datalattice.pipeline.kv.sink` says how) takes the columns key and value, and
    optionally database, type and expires.
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

        Raises: UsageError: an option is not for reading.
        """
        return ddl(parse_options(self.given).types)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch.

        Raises: UsageError: an option does not fit a batch.
        """
        options = parse_options(self.given)
        if options.starting == LATEST:
            raise bad_option("startingOffsets", LATEST, "a batch would read nothing from there")
        return KVReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        """Return the reader of a stream of changes.

        Raises: UsageError: an option does not fit a stream.
        """
        options = parse_options(self.given)
        if options.target.as_of:
            raise UsageError(
                "option asOf is for batches; a stream begins at a root with startingOffsets"
            )
        return KVStreamReader(options, schema)


class _FormatReader:
    """What both readers share: the tasks for a difference of two roots, and reading a task."""

    def __init__(self, options: KVOptions, schema: StructType, clock: Clock) -> None:
        self.options = options
        self.schema = schema
        self.clock = clock
        self.roots = LeasedRoots(options.target, clock)
        check_schema(schema, options.types, FORMAT, _OPTIONS)

    def source(self) -> OpenTarget:
        """Return the open target."""
        return open_target(self.options.target, self.clock)

    def value(self, root_hash: bytes | None) -> Value:
        """Return a root's value; None for None."""
        return root_at(self.source(), root_hash)

    def plan(self, start: ReadPosition, end: ReadPosition, snapshot: LeasedRoot) -> list[Planned]:
        """Return the tasks that read the difference of two positions.

        Raises: DataLoss: the root of `start` is gone, and failOnDataLoss.
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
        return read_part(partition, self.options.target, self.schema, self._batches, self.clock)

    def _batches(
        self, part: tuple[Task, Times], source: OpenTarget, schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        return batches(rows(part[0], self.options, part[1], source), schema)


def _name(task: Task) -> str:
    return " to ".join(dict.fromkeys(str(task[place].name) for place in (0, -1)))


def _gone(root_hash: bytes, options: KVOptions) -> DataLoss:
    return DataLoss(
        f"changes since the root 0x{root_hash.hex()} are unknown: it is no longer in "
        f"{options.target}; longer leaseSeconds, a pin or a longer history keep it, and "
        "failOnDataLoss=false reads everything again"
    )


class KVReader(DataSourceReader):
    """Reads the keys once, or what changed since a root."""

    def __init__(self, options: KVOptions, schema: StructType, clock: Clock | None = None) -> None:
        self._reading = _FormatReader(options, schema, clock or SystemClock())

    def __reduce__(self) -> tuple[type[KVReader], tuple[KVOptions, StructType]]:
        # Open stores and leases belong to the process that plans.
        return type(self), (self._reading.options, self._reading.schema)

    def partitions(self) -> Sequence[Planned]:
        """Return the tasks.

        Raises: UsageError: a named owner or database does not exist. DataLoss: the root of
                startingOffsets is gone, and failOnDataLoss.
        """
        return self._reading.source().planned(self._tasks)

    def _tasks(self, snapshot: LeasedRoot) -> list[Planned]:
        reading = self._reading
        now_ms = reading.clock.now_ms()
        check_named(reading.value(snapshot.root_hash), reading.options)
        starting = reading.options.starting
        since = None if starting == EARLIEST else bytes.fromhex(starting.removeprefix("0x"))
        # One time for both sides: only entries that differ, not those that expired, make rows.
        start, end = ReadPosition(since, now_ms), ReadPosition(snapshot.root_hash, now_ms)
        return reading.plan(start, end, snapshot)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task."""
        return self._reading.read(partition)


class KVStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads changes from one root to the next.

    Spark keeps the position: after a restart it requests the same pairs of roots again. The roots
    of the current batch are leased until Spark commits it.
    """

    def __init__(self, options: KVOptions, schema: StructType, clock: Clock | None = None) -> None:
        self._reading = _FormatReader(options, schema, clock or SystemClock())
        self._target: ReadPosition | None = None
        self._known: tuple[bytes | None, bytes | None] | None = None

    def __reduce__(self) -> tuple[type[KVStreamReader], tuple[KVOptions, StructType]]:
        # The state belongs to the process that plans the stream; tasks need the options only.
        return type(self), (self._reading.options, self._reading.schema)

    def initialOffset(self) -> dict[str, object]:  # noqa: N802 - Spark's
        """Return the position where a new stream begins.

        Raises: DataLoss: the store does not have the root of startingOffsets.
        """
        root_hash = self._reading.roots.first(self._reading.options.starting)
        return ReadPosition(root_hash, self._reading.clock.now_ms()).write()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's
        """Remember the current root; the stream ends there."""
        self._target = self._hold(self._present())

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's
        """Return that a batch reads the complete difference."""
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, object], limit: ReadLimit) -> dict[str, object]:  # noqa: N802 - Spark's
        """Return where the next batch ends; `start` itself if nothing changed."""
        begin = ReadPosition.read(start)
        self._renew(begin.root_hash)
        end = self._present() if self._target is None else self._target
        if end.root_hash is None or end.root_hash == begin.root_hash:
            return start
        is_old = end.time_ms - begin.time_ms > POSITION_AGE_MAX_MS
        if self._is_unchanged(begin.root_hash, end.root_hash) and not is_old:
            return start
        return self._hold(end).write()

    def reportLatestOffset(self) -> dict[str, object]:  # noqa: N802 - Spark's
        """Return the current root, for the progress report."""
        return self._present().write()

    def partitions(self, start: dict[str, object], end: dict[str, object]) -> Sequence[Planned]:
        """Return the tasks of a batch.

        Raises: DataLoss: a root of the batch is gone, and failOnDataLoss.
        """
        reading = self._reading
        last = ReadPosition.read(end)
        if last.root_hash is None:
            return []
        try:
            snapshot = reading.roots.hold(last.root_hash)
        except DataLoss as loss:
            # Happens after a restart only: a planned batch holds leases on its roots.
            if reading.options.fail_on_data_loss:
                raise
            _log.warning("%s; reading the current root instead (failOnDataLoss=false)", loss)
            present = self._hold(self._present())
            if present.root_hash is None:
                return []
            last = ReadPosition(present.root_hash, last.time_ms)
            snapshot = reading.roots.hold(present.root_hash)
        return reading.plan(ReadPosition.read(start), last, snapshot)

    def commit(self, end: dict[str, object]) -> None:
        """Release the roots before `end`."""
        self._reading.roots.commit(ReadPosition.read(end).root_hash)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task."""
        return self._reading.read(partition)

    def _present(self) -> ReadPosition:
        return ReadPosition(self._reading.source().root_hash(), self._reading.clock.now_ms())

    def _hold(self, position: ReadPosition) -> ReadPosition:
        """Lease a position's root; if it is gone already, lease and return the current one."""
        roots = self._reading.roots
        if position.root_hash is not None:
            try:
                roots.hold(position.root_hash)
            except DataLoss:
                return ReadPosition(roots.present(), self._reading.clock.now_ms())
        return position

    def _renew(self, root_hash: bytes | None) -> None:
        """Renew the lease on the root where the stream stands."""
        if root_hash is not None:
            with suppress(DataLoss):  # the next batch reports it
                self._reading.roots.hold(root_hash)

    def _is_unchanged(self, before: bytes | None, after: bytes) -> bool:
        """Return whether two roots differ in no selected database; False if cells are missing.

        The last equal pair is remembered, since an idle stream compares it again and again.
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
