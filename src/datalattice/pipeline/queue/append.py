"""Driver side of the queue sink: append the records that tasks staged, in task order.

The driver divides records into leaves without decoding them, and stores the cells that they
reference unchanged. It builds and stores the new logs before the edit, in pieces, which bounds
memory. The edit itself only replaces each log by the longer one, if no other writer appended to the
log and no topic has the batch's mark. It also puts the mark into each topic's metadata. So logs,
marks and signature change in one update.

Source: docs/spark-writing.md "Exactly once", "Staging".
"""

from __future__ import annotations

from typing import Final

from datalattice.apps.queue import QueueState, Topic, Topics
from datalattice.cells import Value, Vector, decode_message
from datalattice.client import Change, Editor
from datalattice.clock import Clock
from datalattice.crypto import KeyPair
from datalattice.cursors import RootLattice
from datalattice.errors import UsageError
from datalattice.lattice import root_lattice
from datalattice.pipeline.exactly_once.job import (
    STAGE_BYTES_MAX,
    Mark,
    RootMoved,
    Staged,
    StagedTasks,
    reopened,
)
from datalattice.pipeline.exactly_once.task_files import CELLS, Parcel, misshapen, parcel_cells
from datalattice.pipeline.queue.stage import RECORDS_PARCEL


class _GrowingLog:
    """The log of one partition, before the batch and with the records appended so far."""

    __slots__ = ("before", "entries")

    def __init__(self, before: QueueState) -> None:
        self.before: Final = before
        self.entries = before.entries


class _BatchLogs:
    """The logs of one batch, by topic and partition."""

    def __init__(self, editor: Editor, clock: Clock, mark: Mark) -> None:
        lattice = root_lattice()
        root = editor.root()
        cursor = RootLattice(lattice, lattice.zero() if root is None else root, editor.context)
        self._present: Final = Topics.at(cursor, editor.key_pair.public_key, clock)
        self._editor: Final = editor
        self._mark: Final = mark
        self.logs: Final[dict[str, dict[Value, _GrowingLog]]] = {}
        self.counts: Final[dict[str, int]] = {}
        self._changed: Final[list[_GrowingLog]] = []
        self._pending = 0

    def has(self, tasks: StagedTasks) -> bool:
        """Return whether the batch is already written, as far as the tasks' messages show it.

        If this driver was wrongly taken for dead, another one wrote the batch and removed the
        staged files, so this one must not open them.
        """
        # One topic of each task is enough: an edit marks all topics of a batch, or none.
        names = {staged.destination for staged in tasks}
        return any(self._is_marked(self._present.topic(name)) for name in names if name)

    def _is_marked(self, topic: Topic) -> bool:
        return self._mark.is_in(topic.get_meta(self._mark.key))

    def take(self, staged: Staged) -> bool:
        """Append what one task staged; return False if the batch is already written.

        Raises: UsageError: the number of a topic's partitions was changed.
        """
        for parcel in staged.parcels():
            if parcel.kind == CELLS:
                self._editor.stage_cells(parcel_cells(parcel))
                continue
            if parcel.kind != RECORDS_PARCEL:
                raise misshapen()
            name, partition, count = _head_of(parcel)
            topic = self._present.topic(name)
            # Done once for each topic, at its first records.
            if name not in self.logs:
                # Another driver wrote the batch, and may be removing the staged files just now.
                if self._is_marked(topic):
                    return False
                self.logs[name] = {}
            # Tasks chose partitions by this number. With another number a reader would look for the
            # same key in another partition.
            if count is not None and name not in self.counts:
                check_count(topic, name, count)
                self.counts[name] = count
            self._extend(topic, self.logs[name], partition, parcel)
        return True

    def _extend(
        self, topic: Topic, logs: dict[Value, _GrowingLog], partition: int, parcel: Parcel
    ) -> None:
        if partition not in logs:
            logs[partition] = _GrowingLog(topic.partition(partition).state())
        log = logs[partition]
        log.entries, cells = log.entries.extend_packed(
            parcel.data, parcel.ends, self._editor.loader
        )
        if cells:
            # The extended vector references these leaves, so they are stored first.
            self._editor.stage_cells(cells)
        self._changed.append(log)
        self._pending += len(parcel.data)
        # Bounds the driver's memory for a batch of any size.
        if self._pending >= STAGE_BYTES_MAX:
            self.settle()

    def settle(self) -> None:
        """Store the grown logs and free their memory."""
        for log in dict.fromkeys(self._changed):
            self._editor.stage(log.entries)
            # Its cells are loaded again on access, so the ones built here can be freed.
            log.entries = reopened(log.entries, self._editor.loader)
        self._changed.clear()
        self._pending = 0


def appending(
    editor: Editor, tasks: StagedTasks, mark: Mark, clock: Clock, count: int | None = None
) -> Change[None] | None:
    """Prepare the change that appends what tasks staged; a `PrepareChange` of `exactly_once`.

    count: number of partitions to set on a topic without one, if no row was placed by its key.
    Raises: UsageError: the number of a topic's partitions was changed while the tasks ran.
    """
    joined = _BatchLogs(editor, clock, mark)
    if joined.has(tasks):
        return None
    for staged in tasks:
        if not joined.take(staged):
            return None
    joined.settle()

    def change(cursor: RootLattice, keys: KeyPair) -> None:
        work = Topics.at(cursor, keys.public_key, clock).fork()  # one signature for all logs
        for name, logs in joined.logs.items():
            topic = work.topic(name)
            stored = topic.get_meta(mark.key)
            # "A batch whose number, or a greater one, is there is skipped" (docs/spark-writing.md).
            # Checked inside the edit: another driver may have written the batch meanwhile.
            if mark.is_in(stored):
                return
            if name in joined.counts:
                check_count(topic, name, joined.counts[name])
                topic.set_num_partitions(joined.counts[name])
            elif count is not None and not topic.num_partitions:
                topic.set_num_partitions(count)
            for partition, log in logs.items():
                # Refused if the log is not the one that was continued: records that others appended
                # meanwhile must not vanish.
                if not topic.partition(partition).advance(log.before, log.entries):
                    raise RootMoved
            topic.set_meta(mark.key, mark.over(stored))
        work.sync()

    return change


def check_count(topic: Topic, name: str, count: int) -> None:
    """Check that a topic's number of partitions is unset, or the one by which tasks placed keys.

    Raises: UsageError: it is another number.
    """
    if topic.num_partitions not in (0, count):
        raise UsageError(
            f"topic {name!r} has {topic.num_partitions} partitions now, and had {count} when this "
            "batch began; nothing was written, write it again"
        )


def _head_of(parcel: Parcel) -> tuple[str, int, int | None]:
    """Return (topic, partition, number of partitions that keys were placed by, or None)."""
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
