"""Join: what the driver does with the records that tasks gathered: it appends them, in their order.

It cuts them into leaves, without looking into them; cells that they refer to are stored as tasks
made them. The logs as they will be are made and stored ahead, piece by piece, so that memory holds
a piece of them only. The change itself puts them in place: if the logs are still those that were
continued, and the mark of the batch is in none of its topics. It leaves the mark in the metadata of
each, so log, mark and signature are one update.
"""

from __future__ import annotations

from typing import Final

from datalattice.apps.queue import LatticeMQ, QueueState, Topic
from datalattice.cells import Value, Vector, decode_message
from datalattice.client import Change, Editor
from datalattice.clock import Clock
from datalattice.crypto import KeyPair
from datalattice.cursors import RootLattice
from datalattice.errors import UsageError
from datalattice.lattice import root_lattice
from datalattice.pipeline.parcels import CELLS, Parcel, cells_of, misshapen
from datalattice.pipeline.queue.gather import RECORDS
from datalattice.pipeline.staging import STAGE_BYTES_MAX, Mark, Moved, Staged, StagedTasks, reopened


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
        cursor = RootLattice(lattice, lattice.zero() if root is None else root, editor.context)
        self._present: Final = LatticeMQ.at(cursor, editor.key_pair.public_key, clock)
        self._editor: Final = editor
        self._mark: Final = mark
        self.logs: Final[dict[str, dict[Value, _Log]]] = {}
        self.counts: Final[dict[str, int]] = {}
        self._changed: Final[list[_Log]] = []
        self._pending = 0

    def has(self, tasks: StagedTasks) -> bool:
        """Return whether the batch is there already, as far as that is seen without its files.

        A driver that was thought to be dead finds them gone when another one wrote the batch.
        """
        names = {staged.place for staged in tasks}
        return any(self._is_marked(self._present.topic(name)) for name in names if name)

    def _is_marked(self, topic: Topic) -> bool:
        return self._mark.is_in(topic.get_meta(self._mark.key))

    def take(self, staged: Staged) -> bool:
        """Append what one task staged; return False when the batch is there already.

        Raises: UsageError: the number of a topic's partitions was changed.
        """
        for parcel in staged.parcels():
            if parcel.kind == CELLS:
                self._editor.stage_cells(cells_of(parcel))
                continue
            if parcel.kind != RECORDS:
                raise misshapen()
            name, partition, count = _head_of(parcel)
            topic = self._present.topic(name)
            if name not in self.logs:
                if self._is_marked(topic):
                    return False
                self.logs[name] = {}
            if count is not None and name not in self.counts:
                check_count(topic, name, count)
                self.counts[name] = count
            self._extend(topic, self.logs[name], partition, parcel)
        return True

    def _extend(
        self, topic: Topic, logs: dict[Value, _Log], partition: int, parcel: Parcel
    ) -> None:
        if partition not in logs:
            logs[partition] = _Log(topic.partition(partition).state())
        log = logs[partition]
        log.entries, cells = log.entries.extend_packed(
            parcel.data, parcel.ends, self._editor.loader
        )
        if cells:
            self._editor.stage_cells(cells)
        self._changed.append(log)
        self._pending += len(parcel.data)
        if self._pending >= STAGE_BYTES_MAX:
            self.settle()

    def settle(self) -> None:
        """Store what the logs have become, and free the memory of it."""
        for log in dict.fromkeys(self._changed):
            self._editor.stage(log.entries)
            log.entries = reopened(log.entries, self._editor.loader)
        self._changed.clear()
        self._pending = 0


def appending(
    editor: Editor, tasks: StagedTasks, mark: Mark, clock: Clock, count: int | None = None
) -> Change[None] | None:
    """Prepare the change that appends what tasks gathered. See `staging.Join`.

    count: the number of partitions of a topic that has none, though no row was spread by its key.
    Raises: UsageError: the number of a topic's partitions was changed while the tasks ran.
    """
    joined = _Joined(editor, clock, mark)
    if joined.has(tasks):
        return None
    for staged in tasks:
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


def _head_of(parcel: Parcel) -> tuple[str, int, int | None]:
    """Return (topic, partition, number of partitions where that was reckoned with)."""
    head = decode_message(parcel.head)
    if isinstance(head, Vector) and len(head) == 3:
        name, partition, count = head
        if (
            isinstance(name, str)
            and isinstance(partition, int)
            and (count is None or isinstance(count, int))
        ):
            return name, partition, count
    raise misshapen()
