"""Join: what the driver does with the logs that tasks gathered: it appends them, in their order.

The logs as they will be are made and stored ahead, piece by piece, so that memory holds a piece of
them only. The change itself puts them in place: if the logs are still those that were continued,
and the mark of the batch is in none of its topics. It leaves the mark in the metadata of each, so
log, mark and signature are one update.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from datalattice.apps.queue import LatticeMQ, QueueState, Topic
from datalattice.cells import (
    Loader,
    Map,
    Value,
    Vector,
    decode,
    encode,
    novelty,
)
from datalattice.clock import Clock
from datalattice.crypto import KeyPair
from datalattice.cursors import RootLattice
from datalattice.errors import BadFormat, UsageError
from datalattice.home import Change, Editor
from datalattice.lattice import MergeContext, root_lattice
from datalattice.pipeline.places import Fetch
from datalattice.pipeline.queue.leaves import runs
from datalattice.pipeline.queue.splice import take_small
from datalattice.pipeline.staging import (
    STAGE_BYTES_MAX,
    Mark,
    Moved,
    StagedValue,
    StagedValues,
)

RECORDS_MAX: Final = 8_192
"""Small entries that are appended at a time."""


class _Log:
    """One partition's log while it grows."""

    __slots__ = ("before", "entries")

    def __init__(self, before: QueueState) -> None:
        self.before: Final = before
        self.entries = before.entries


class _Joined:
    """The logs of one batch. `logs` has them by topic and partition."""

    def __init__(self, editor: Editor, clock: Clock, mark: Mark) -> None:
        lattice = root_lattice()
        root = editor.root()
        context = MergeContext(key_pair=editor.key_pair)
        cursor = RootLattice(lattice, lattice.zero() if root is None else root, context)
        self._present: Final = LatticeMQ.at(cursor, editor.key_pair.public_key, clock)
        self._editor: Final = editor
        self._mark: Final = mark
        self.logs: Final[dict[str, dict[Value, _Log]]] = {}
        self.counts: Final[dict[str, int]] = {}
        self._changed: Final[list[_Log]] = []
        self._pending = 0

    def take(self, staged: StagedValue) -> bool:
        """Append what one task staged; return False when the batch is there already.

        Raises: UsageError: the number of a topic's partitions was changed.
        """
        counts, logs = _parts_of(staged.value)
        for name, below in logs.entries():
            if not isinstance(name, str) or not isinstance(below, Map):
                raise _misshapen()
            topic = self._present.topic(name)
            if name not in self.logs:
                if self._mark.is_in(topic.get_meta(self._mark.key)):
                    return False
                self.logs[name] = {}
            count = counts.get(name)
            if isinstance(count, int):
                check_count(topic, name, count)
                self.counts[name] = count
            for partition, fresh in below.entries():
                if not isinstance(fresh, Vector):
                    raise _misshapen()
                self._extend(topic, self.logs[name], partition, fresh, staged.fetch)
        return True

    def _extend(
        self,
        topic: Topic,
        logs: dict[Value, _Log],
        partition: Value,
        fresh: Vector,
        fetch: Fetch,
    ) -> None:
        if partition not in logs:
            logs[partition] = _Log(topic.partition(partition).state())
        log = logs[partition]
        self._changed.append(log)
        for piece in _pieces(fresh, fetch):
            log.entries = piece.append_to(log.entries)
            self._pending += piece.size
            if self._pending >= STAGE_BYTES_MAX:
                self.settle()
                self._changed.append(log)

    def settle(self) -> None:
        """Store what the logs have become; from then on nothing of a task's store is needed."""
        for log in dict.fromkeys(self._changed):
            self._editor.stage(log.entries)
            log.entries = _reopened(log.entries, self._editor.loader)
        self._changed.clear()
        self._pending = 0


def appending(
    editor: Editor, values: StagedValues, mark: Mark, clock: Clock, count: int | None = None
) -> Change[None] | None:
    """Prepare the change that appends what tasks gathered. See `staging.Join`.

    count: the number of partitions of a topic that has none, though no row was spread by its key.
    Raises: UsageError: the number of a topic's partitions was changed while the tasks ran.
    """
    joined = _Joined(editor, clock, mark)
    for staged in values():
        if not joined.take(staged):
            return None
        joined.settle()

    def change(cursor: RootLattice, keys: KeyPair) -> None:
        work = LatticeMQ.at(cursor, keys.public_key, clock).fork()  # one signature for all of it
        for name, logs in joined.logs.items():
            topic = work.topic(name)
            stored = topic.get_meta(mark.key)
            if mark.is_in(stored):
                return
            if name in joined.counts:
                check_count(topic, name, joined.counts[name])
                topic.set_num_partitions(joined.counts[name])
            elif count is not None and not topic.num_partitions:
                topic.set_num_partitions(count)
            for partition, log in logs.items():
                if not topic.partition(partition).advance(log.before, log.entries):
                    raise Moved
            topic.set_meta(mark.key, mark.over(stored))
        work.sync()

    return change


def check_count(topic: Topic, name: str, count: int) -> None:
    """Check that a topic has the number of partitions that keys were spread over, or none set.

    Raises: UsageError: it has another one.
    """
    if topic.num_partitions not in (0, count):
        raise UsageError(
            f"topic {name!r} has {topic.num_partitions} partitions now, and had {count} when this "
            "batch was begun; nothing of it was written, write it again"
        )


def _parts_of(value: Value) -> tuple[Map, Map]:
    if isinstance(value, Vector) and len(value) == 2:
        counts, logs = value[0], value[1]
        if isinstance(counts, Map) and isinstance(logs, Map):
            return counts, logs
    raise _misshapen()


def _misshapen() -> BadFormat:
    return BadFormat("what a task staged is not what this version of the sink stages")


class _Piece:
    """Some entries of a log: as their encodings while all are small, else as values."""

    def __init__(self, *, is_small: bool) -> None:
        self.is_small: Final = is_small
        self.rows: Final[list[bytes]] = []
        self.entries: Final[list[Value]] = []
        self.size = 0

    def is_full(self) -> bool:
        """Return whether it is to be appended before it grows."""
        return self.size >= STAGE_BYTES_MAX or len(self.rows) >= RECORDS_MAX

    def append_to(self, log: Vector) -> Vector:
        """Return a log that goes on with these entries."""
        return log.extend_encoded(self.rows) if self.is_small else log.extend(self.entries)


def _pieces(log: Vector, fetch: Fetch) -> Iterator[_Piece]:
    """Yield the entries of a log, in order, in pieces of bounded size."""
    piece = _Piece(is_small=True)
    at = 0
    for run in runs(encode(log), 0, len(log), fetch):
        rows: list[bytes] = []
        size = take_small(run, rows)
        if piece.is_small != (size >= 0) or piece.is_full():
            yield piece
            piece = _Piece(is_small=size >= 0)
        if size >= 0:
            piece.rows.extend(rows)
            piece.size += size
        else:
            for entry in log.to_list(at, at + run.count):
                if piece.is_full():
                    yield piece
                    piece = _Piece(is_small=False)
                piece.entries.append(entry)
                piece.size += len(encode(entry)) + _size_below(entry)
        at += run.count
    yield piece


def _size_below(entry: Value) -> int:
    """Return the bytes of the cells below an entry; they are in memory from then on."""
    return sum(len(encoding) for _, encoding, _ in novelty(entry))


def _reopened(log: Vector, loader: Loader) -> Vector:
    """Return a stored log, its cells to be had from `loader` alone."""
    found = decode(encode(log), loader)
    if not isinstance(found, Vector):
        raise _misshapen()
    return found
