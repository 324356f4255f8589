"""A stream of changes for every format: a position is a root, a batch the difference of two roots.

Spark keeps the position in its checkpoint, and after a restart requests the same pairs of roots
again. The roots of the current batch are leased until Spark commits it, so the batch can be read
even if the store has dropped these roots from its history.

Source: docs/spark-kv.md "Changes as a stream"; docs/spark.md "Streaming".
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Final, Protocol, Self, TypeVar

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    SupportsTriggerAvailableNow,
)

from datalattice.cells import Value
from datalattice.clock import Clock
from datalattice.errors import DataLoss, MissingData, UsageError
from datalattice.limits import HASH_BYTES
from datalattice.pipeline.leasing import LeasedRoot, StreamLeases
from datalattice.pipeline.options import Refused, hash_of
from datalattice.pipeline.read_targets import MOVED_MAX, ReadTarget
from datalattice.pipeline.reader import FormatReader, Planned, ReadOptions, TaskInput

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

EARLIEST: Final = "earliest"
LATEST: Final = "latest"

STAND_MS: Final = 10 * 60 * 1_000
"""Time without changes after which a stream moves to the current root with an empty batch.
Otherwise its lease would keep the cells of an old root in the store for ever."""

_POSITION_VERSION: Final = 1
"""Version of the checkpointed form of a position."""

_log: Final = logging.getLogger("datalattice.pipeline")


def start_option(text: str) -> str:
    """Parse the start of a change stream: `earliest`, `latest`, or the hash of a root."""
    # Case-insensitive, like Spark's own options.
    if text.lower() in {EARLIEST, LATEST}:
        return text.lower()
    found = hash_of(text)
    if found is None:
        raise Refused(
            f"{EARLIEST} (everything there is), {LATEST} (only later changes), or the hash of a "
            f"root, 0x and {2 * HASH_BYTES} hex digits"
        )
    return "0x" + found.hex()


@dataclass(frozen=True, slots=True)
class ReadPosition:
    """The root that was read last; None: before the first root.

    time_ms: the time at which expired entries were left out, in Unix milliseconds; None for a
    format without expiry. It is part of the position, so that a batch that Spark runs again has the
    same rows.
    """

    root_hash: bytes | None
    time_ms: int | None = None

    def write(self) -> dict[str, object]:
        """Return the form that Spark keeps as JSON."""
        root = None if self.root_hash is None else "0x" + self.root_hash.hex()
        form: dict[str, object] = {"version": _POSITION_VERSION, "root": root}
        return form if self.time_ms is None else form | {"time": self.time_ms}

    @classmethod
    def read(cls, form: Mapping[str, object], *, has_time: bool) -> Self:
        """Return the position in a checkpoint.

        Raises: UsageError: the checkpoint is of another version or another source.
        """
        root, time_ms = form.get("root"), form.get("time")
        # Whether there is a time distinguishes the checkpoints of formats with and without expiry.
        if form.get("version") == _POSITION_VERSION and isinstance(time_ms, int) is has_time:
            found = hash_of(root) if isinstance(root, str) and root.startswith("0x") else None
            if found is not None or (root is None and "root" in form):
                return cls(found, time_ms if isinstance(time_ms, int) else None)
        raise UsageError(
            f"the checkpoint holds no position of this source (version {_POSITION_VERSION}): "
            f"{json.dumps(dict(form))[:200]}; use another checkpointLocation"
        )


class ChangeOptions(ReadOptions, Protocol):
    """The options of a format whose changes are read."""

    @property
    def starting(self) -> str:
        """Where to begin; see `start_option`."""
        ...

    @property
    def fail_on_data_loss(self) -> bool:
        """Whether a lost root is an error."""
        ...


OptionsT = TypeVar("OptionsT", bound=ChangeOptions)


class ChangePlanner(FormatReader[OptionsT]):
    """Base of readers that plan the difference of two roots; a format adds `differences`."""

    rows_are: ClassVar[str]
    """The plural noun for the rows in warnings, such as "keys"."""
    has_time: ClassVar[bool] = False
    """Whether entries of the format expire, so that positions contain a time."""

    def __init__(self, options: OptionsT, schema: StructType, clock: Clock | None = None) -> None:
        super().__init__(options, schema, clock)
        self._leases: Final = StreamLeases(options.target.lease_seconds, self.clock)

    def differences(
        self, before: Value, after: Value, start: ReadPosition, end: ReadPosition
    ) -> Iterable[TaskInput]:
        """Return what each task reads of the difference of two roots; None for an absent root."""
        raise TypeError(f"{type(self).__name__} does not implement differences()")

    def differs(self, before: Value, after: Value) -> bool:
        """Return whether two roots differ in what the options select."""
        nowhere = ReadPosition(None)
        return next(iter(self.differences(before, after, nowhere, nowhere)), None) is not None

    def difference(
        self, start: ReadPosition, end: ReadPosition, snapshot: LeasedRoot
    ) -> list[Planned]:
        """Return the tasks that read the difference of two positions; `snapshot`: the later root.

        Raises: DataLoss: the root of `start` is gone, and failOnDataLoss.
        """
        root = self.root(end.root_hash)
        try:
            if start.root_hash is not None:
                self.hold(start.root_hash)
            parts = list(self.differences(self.root(start.root_hash), root, start, end))
        except (DataLoss, MissingData) as loss:
            if start.root_hash is None:
                raise
            if self.options.fail_on_data_loss:
                raise _gone(start.root_hash, self.options.target) from loss
            _log.warning("%s; reading all %s again (failOnDataLoss=false)", loss, self.rows_are)
            # "Every present key is read again; deletions are unknown then" (docs/spark-kv.md).
            parts = list(self.differences(None, root, start, end))
        return [Planned(name, part, snapshot) for name, part in parts]

    def hold(self, root_hash: bytes) -> LeasedRoot:
        """Lease a root until a later one is committed.

        Raises: DataLoss: cells of the root are missing.
        """
        source = self.source()
        try:
            # Taking a lease checks that the root is complete; without a lease only its top cell is
            # looked up.
            source.load(root_hash)  # with leaseSeconds=0 it may be collected at any time
            return self._leases.hold(source, root_hash)
        except MissingData:
            self._leases.forget(root_hash)
            raise _gone(root_hash, self.options.target) from None

    def at_present(self) -> ReadPosition:
        """Return the current root, not leased."""
        return self._position(self.source().root_hash())

    def _position(self, root_hash: bytes | None) -> ReadPosition:
        return ReadPosition(root_hash, self.clock.now_ms() if self.has_time else None)


class ChangeReader(ChangePlanner[OptionsT], DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Base of the readers of a stream of changes."""

    def __init__(self, options: OptionsT, schema: StructType, clock: Clock | None = None) -> None:
        super().__init__(options, schema, clock)
        self._last: ReadPosition | None = None  # where the trigger availableNow ends
        self._equal: tuple[bytes | None, bytes] | None = None  # two roots without a difference
        self._stands: tuple[bytes | None, int] = None, 0  # where the stream is, and since when

    def initialOffset(self) -> dict[str, object]:  # noqa: N802 - Spark's
        """Return the position where a new stream begins.

        Raises: DataLoss: the store does not have the root of startingOffsets.
        """
        starting = self.options.starting
        root_hash = None
        # Leased, so that the first batch can read from it.
        if starting == LATEST:
            root_hash = self._hold_current()
        elif starting != EARLIEST:
            root_hash = hash_of(starting)
            assert root_hash is not None
            self.hold(root_hash)
        return self._position(root_hash).write()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's
        """End the stream at the current root."""
        # "`availableNow` ends when the records present at its start have been read".
        self._last = self._held(self.at_present())

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's
        """Return that a batch reads the complete difference."""
        # "Rows cannot be limited, because a position is a root" (docs/spark-kv.md, Changes).
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, object], limit: ReadLimit) -> dict[str, object]:  # noqa: N802 - Spark's
        """Return where the next batch ends; `start` itself if nothing changed."""
        begin = self._read(start)
        if begin.root_hash is not None:
            with suppress(DataLoss):  # the next batch reports it
                self.hold(begin.root_hash)
        end = self.at_present() if self._last is None else self._last
        if end.root_hash is None or end.root_hash == begin.root_hash:
            return start
        # Changes outside of the selected data make no batch, except after `STAND_MS`.
        if self._are_equal(begin, end) and not self._stands_long(begin):
            return start
        return self._held(end).write()

    def reportLatestOffset(self) -> dict[str, object]:  # noqa: N802 - Spark's
        """Return the current root, for the progress report."""
        return self.at_present().write()

    def partitions(self, start: dict[str, object], end: dict[str, object]) -> Sequence[Planned]:
        """Return the tasks of a batch.

        Raises: DataLoss: a root of the batch is gone, and failOnDataLoss.
        """
        last = self._read(end)
        # A store without a commit has nothing to read yet.
        if last.root_hash is None:
            return []
        try:
            snapshot = self.hold(last.root_hash)
        except DataLoss as loss:
            # Only possible after a restart: a planned batch holds leases on its roots.
            current = None if self.options.fail_on_data_loss else self._hold_current()
            if current is None:
                raise
            _log.warning("%s; reading the current root instead (failOnDataLoss=false)", loss)
            last = replace(last, root_hash=current)
            snapshot = self.hold(current)
        # A restarted stream continues from its checkpoint: the same roots give the same rows.
        return self.difference(self._read(start), last, snapshot)

    def commit(self, end: dict[str, object]) -> None:
        """Release the roots before `end`."""
        # Not released when the stream stops: the next run of the query begins at the committed
        # root.
        self._leases.done(self._read(end).root_hash)

    def _read(self, form: dict[str, object]) -> ReadPosition:
        return ReadPosition.read(form, has_time=self.has_time)

    def _held(self, position: ReadPosition) -> ReadPosition:
        """Lease a position's root; if it is gone already, lease and return the current one."""
        if position.root_hash is not None:
            try:
                self.hold(position.root_hash)
            except DataLoss:
                return self._position(self._hold_current())
        return position

    def _hold_current(self) -> bytes | None:
        """Return the current root, leased; None for an empty store."""
        found = None
        # A root may be collected before it is leased, if its writer commits and collects then.
        for _ in range(MOVED_MAX):
            found = self.source().root_hash()
            if found is None:
                return None
            try:
                self.hold(found)
            except DataLoss:
                if self.source().root_hash() == found:
                    raise  # the root did not move: its cells are lost, not collected
            else:
                return found
        return found

    def _stands_long(self, begin: ReadPosition) -> bool:
        """Return whether the stream has stood at a position for more than `STAND_MS`."""
        now_ms = self.clock.now_ms()
        if self._stands[0] != begin.root_hash or not self._stands[1]:
            self._stands = begin.root_hash, now_ms
        # A position with a time carries its own age, also after a restart.
        since_ms = self._stands[1] if begin.time_ms is None else begin.time_ms
        return now_ms - since_ms > STAND_MS

    def _are_equal(self, begin: ReadPosition, end: ReadPosition) -> bool:
        """Return whether two roots have no difference for this stream; False if cells are missing.

        The last equal pair is remembered, since an idle stream compares it again and again.
        """
        assert end.root_hash is not None
        pair = begin.root_hash, end.root_hash
        if self._equal == pair:
            return True
        try:
            is_equal = not self.differs(self.root(begin.root_hash), self.root(end.root_hash))
        except MissingData:
            return False  # the batch reports the missing cells
        if is_equal:
            self._equal = pair
        return is_equal


def _gone(root_hash: bytes, target: ReadTarget) -> DataLoss:
    return DataLoss(
        f"changes since the root 0x{root_hash.hex()} are unknown: it is no longer in {target}; "
        "longer leaseSeconds, a pin or a longer history keep it, and failOnDataLoss=false reads "
        "everything again"
    )
