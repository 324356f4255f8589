"""Consumer: a named reader that continues at its stored position; it gets each entry at least once.

Theory of operation: an entry is delivered, then done, then committed. Delivered and done entries
are noted in memory; a commit writes the position after the done entries to the database
`.consumers` of the folder's owner, in one edit for all partitions. So a position is never ahead of
the work, and an entry that was not done is delivered again: after a crash, after `break` or an
error in the loop, and after a failed batch of the node.

Source: docs/queue.md "Consumers"; docs/design/front-door.md "Handles".

Length: one object takes, marks and commits entries; most lines are documentation.
"""

from __future__ import annotations

import time
import weakref
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Final, Generic, Self

from datalattice.apps.binding import Binding, Owner, Tabular, bound
from datalattice.apps.kv import Database, checked_key
from datalattice.apps.queue.following import (
    Bookmark,
    Follow,
    OnLoss,
    PartitionId,
    PartitionSet,
    QueueEntry,
    Start,
    bookmark_at,
)
from datalattice.apps.queue.state import QueueState
from datalattice.apps.valuetypes import T
from datalattice.cells import Value, Vector, to_text, value_hash
from datalattice.clock import Clock, present_ms
from datalattice.cursors import LatticeCursor, Stream, Taken
from datalattice.errors import ConsumerBusy, DataLoss, ReadOnly, StoreLocked, UsageError

CONSUMERS_DATABASE: Final = ".consumers"
"""The database of an owner that holds the positions of consumers."""

Reach = tuple[Value, Owner | None, Value]
"""The topic, owner and partition that a consumer reads; None means all owners or partitions."""


class Consumer(Stream[QueueEntry[T]]):
    """A named reader of a queue, topic or feed; each entry is delivered at least once.

    Requesting the next entry marks the one before as done. Done entries are committed every
    `commit_every` seconds, before waiting, and at the end of `with`. If `break` or an error ends an
    iteration, its last entry is not done: the next iteration begins with it.

        with node.queue("todo").consumer("robot") as tasks:
            for task in tasks: ...

    Iteration and `take` raise DataLoss, and keep the position, if entries were truncated before
    they were done (`.lost`), or if the log no longer has the entry before the position (`.forked`).
    `seek` continues at another position.
    """

    def __init__(
        self,
        partitions: PartitionSet[T],
        binding: Binding | None,
        name: str,
        reach: Reach,
        *,
        start: Start,
        clock: Clock,
        wait: bool,
        timeout: float | None,
        commit_every: float,
    ) -> None:
        self._binding: Final = bound(binding, "a consumer")
        if self._binding.is_read_only:  # `follow` needs no position
            raise ReadOnly("a consumer stores its position, and this node is read only; use follow")
        self.name: Final = checked_key(name, "a consumer's name")
        if commit_every < 0:
            raise UsageError(f"`commit_every` is not 0 or more seconds: {commit_every!r}")
        self._partitions: Final = partitions
        self._reach: Final = reach
        self._clock: Final = clock
        self._commit_every_s: Final = commit_every
        self._done: dict[PartitionId, Bookmark] = {}
        self._stored: dict[str, Bookmark] = {}
        self._delivered: list[QueueEntry[T]] = []
        self._begins: dict[PartitionId, Bookmark] = {}
        self._is_dirty = False
        self._is_stale = False
        self._notes_start = False
        self._committed_s = time.monotonic()
        try:
            # A name has one reader: two would overwrite each other's position.
            release = self._binding.hold(f"consumer {self.name} of {self._binding.own.hex()}")
        except StoreLocked as error:
            raise ConsumerBusy(
                f"the consumer {self.name!r} is in use by a program on this machine; close it "
                "there, or read with another name"
            ) from error
        # The lock is also released when the object is collected.
        self._release = weakref.finalize(self, release)
        super().__init__(partitions.root, wait=wait, timeout=timeout)
        try:
            self._begin(start)
        except BaseException:
            super().close()  # ends the subscription that the stream has made
            self._release()
            raise

    # --- taking entries ---

    def __iter__(self) -> Self:
        # "An entry that is left by `break` or an exception is not done: it comes again": a loop
        # begins here, `next` alone does not.
        self.rewind()
        return self

    def __aiter__(self) -> Self:
        self.rewind()  # as `__iter__`
        return self

    def __next__(self) -> QueueEntry[T]:
        self._request()
        entry = super().__next__()
        self._delivered.append(entry)
        return entry

    async def __anext__(self) -> QueueEntry[T]:
        self._request()
        entry = await super().__anext__()
        self._delivered.append(entry)
        return entry

    def poll(self) -> list[QueueEntry[T]]:
        """Return the available entries; those delivered before are done."""
        self._request()
        self._delivered += (entries := super().poll())
        return entries

    def take(self, count: int, timeout: float = 0.0) -> Taken[QueueEntry[T]]:
        """Return up to `count` entries; those delivered before are done.

        Waits up to `timeout` seconds for the first one; the list is empty if none came.
        """
        self._request()
        entries = self._take_up_to(count, timeout)
        self._delivered += entries
        return Taken(self, entries)

    def _take_ready(self, count: int) -> list[QueueEntry[T]]:
        entries: list[QueueEntry[T]] = []
        try:
            while len(entries) < count and self._refill():
                entries.append(self._ready.popleft())
        except DataLoss:
            # Entries before the loss are returned first; the next request raises again.
            if not entries:
                raise
        return entries

    def _fetch(self) -> list[QueueEntry[T]]:
        return self._partitions.fetch()

    # --- what is done ---

    def finish(self) -> None:
        """Mark all delivered entries as done; unlike `commit`, write nothing."""
        self._check_process()
        with self._flush_lock:
            last = {entry.id: entry for entry in self._delivered}
            for id, entry in last.items():
                # The record's hash reveals a later fork of the log.
                self._done[id] = Bookmark(entry.offset + 1, value_hash(entry.cell))
            self._is_dirty = self._is_dirty or bool(last)
            self._delivered.clear()

    def rewind(self) -> None:
        """Deliver again the entries that were delivered and are not done."""
        if self._is_inherited:
            return  # the error that leaves a `with` block of the parent is the one to see
        self._refresh()
        if self._delivered or self._ready:
            self._move(self._marks())

    def commit(self) -> None:
        """Mark all delivered entries as done, and make the position durable.

        Inside `node.batch()` the position becomes durable with the batch.
        """
        self._request()
        self._flush()

    def seek(self, to: Start | Mapping[PartitionId, int]) -> None:
        """Move to another position, and make it durable.

        Args:   to: as `start` of `Queue.follow`; or an offset for each partition, as `position`
                and `committed` return them.
        Raises: UsageError: one offset for several partitions.
        """
        self._refresh()
        if isinstance(to, Mapping):
            readers = self._partitions.readers
            marks = {
                id: bookmark_at(readers[id].state(), at) if id in readers else Bookmark(at)
                for id, at in to.items()
            }
        else:
            marks = self._partitions.starts(to, present_ms(self._clock))
        with self._flush_lock:
            self._done |= marks
            self._move(self._marks())
            self._flush()  # durable at the return, as a caller expects of an explicit move

    def close(self) -> None:
        """Commit the done entries and release the name. Closing twice is allowed."""
        # "Before waiting, and at the end of `with`, also after an error" (docs/queue.md
        # "Consumers").
        if self.closed:
            return
        try:
            # In a forked child the parent commits.
            if not self._is_inherited:
                self._refresh()
                if self._is_dirty:
                    self._flush()
        finally:
            self._delivered.clear()  # they are not done, so the next reader gets them
            super().close()
            self._release()

    # --- where it is ---

    @property
    def position(self) -> dict[PartitionId, int]:
        """The offset of the next entry to deliver of each partition."""
        self._refresh()
        # Delivered entries count here, though they are not done yet.
        offsets = {id: mark.next for id, mark in self._marks().items()}
        for entry in self._delivered:
            offsets[entry.id] = entry.offset + 1
        return offsets

    @property
    def committed(self) -> dict[PartitionId, int]:
        """The stored offset of each partition that has one."""
        self._refresh()
        ids = self._marks()
        fields = {id: field_of(id) for id in ids}
        return {id: self._stored[at].next for id, at in fields.items() if at in self._stored}

    def lag(self) -> int:
        """Return how many of the present entries are not done."""
        self._refresh()
        marks, count = self._marks(), 0
        for id, reader in self._partitions.readers.items():
            state = reader.state()
            # Truncated records can no longer be done.
            count += max(state.end - max(marks[id].next, state.start), 0)
        return count

    def _marks(self) -> dict[PartitionId, Bookmark]:
        """Return the position of each partition: its first entry that is not done."""
        self._partitions.refresh()
        # A done position is ahead of the position at which the partition was begun.
        return {**self._begins, **self._done}

    def _move(self, marks: dict[PartitionId, Bookmark]) -> None:
        self._delivered.clear()
        self._ready.clear()
        self._partitions.move(marks)

    # --- stored positions ---

    def _request(self) -> None:
        self._refresh()
        self.finish()

    def _refresh(self) -> None:
        """Go back to the stored positions if a batch failed since the last call."""
        self._check_process()
        self._binding.on_undo(self._undo)
        if self._is_stale:
            self._is_stale = False
            begun = self._load()  # without the positions that the failed batch had stored
            self._done = {id: self._first_of(id, mark) for id, mark in self._begins.items()}
            self._is_dirty = self._notes_start and not begun
            self._move(self._marks())

    def _undo(self) -> None:
        self._is_stale = True

    def _begin(self, start: Start) -> None:
        self._binding.on_undo(self._undo)
        begun = self._load()
        self._partitions.first = self._first
        self._partitions.refresh()
        self._notes_start = start != "start" and not begun
        if self._notes_start:
            self._begins |= self._partitions.starts(start, present_ms(self._clock))
            self._done |= self._begins
            self._partitions.move(self._done)
            # Stored at once: "end" and times mean the moment at which the consumer was first made,
            # so a restart must not skip entries that were appended meanwhile.
            self._flush()

    def _first(self, id: PartitionId, state: QueueState) -> Bookmark:
        """Return the position at which a newly found partition begins."""
        mark = self._begins[id] = self._first_of(id, Bookmark(state.start))
        return mark

    def _first_of(self, id: PartitionId, default: Bookmark) -> Bookmark:
        return self._stored.get(field_of(id), default)

    def _load(self) -> bool:
        """Read the stored positions; return whether this consumer has been used before."""
        held = _database(self._binding.root, self._binding).hgetall(self.name)
        self._stored = {
            field: Bookmark(offset, before if isinstance(before, bytes) else None)
            for field, value in held.entries()
            if isinstance(field, str) and isinstance(value, Vector) and len(value) == 2
            for offset, before in [value.to_list()]
            if isinstance(offset, int) and is_within(field, self._reach)
        }
        # A consumer that has read nothing yet has the field that notes its start.
        return bool(self._stored)

    def _is_flush_due(self, *, idle: bool) -> bool:
        is_late = time.monotonic() - self._committed_s >= self._commit_every_s
        return self._is_dirty and (idle or is_late)

    def _flush(self) -> None:
        with self._flush_lock:
            if not self._release.alive:
                raise UsageError(f"the consumer {self.name!r} is closed")
            changed = {field_of(id): mark for id, mark in self._done.items()}
            if self._notes_start:
                # A field for the start itself: after a restart, a partition found later is read
                # from its start, not from "end".
                changed.setdefault(field_of(self._reach), Bookmark(0))
            # Only changed positions are written: an idle consumer makes no roots.
            changed = {at: mark for at, mark in changed.items() if self._stored.get(at) != mark}
            values = {at: Vector.of((mark.next, mark.before)) for at, mark in changed.items()}

            def store(root: LatticeCursor) -> None:
                _database(root, self._binding).hset_many(self.name, values)

            # Inside a batch this is part of it: "so results and position are one root".
            if values:
                self._binding.edit(store)
            self._stored |= changed
            self._is_dirty = False  # after the edit: if it fails, the next call tries again
            self._committed_s = time.monotonic()

    def __repr__(self) -> str:
        return f"<Consumer {self.name!r} of {field_of(self._reach)}>"


class Followable(Tabular, Generic[T]):
    """Base of queues, topics and feeds: following, consumers, and tables."""

    __slots__ = ()

    _binding: Binding | None
    _clock: Clock

    @abstractmethod
    def _partitions(self, on_loss: OnLoss) -> PartitionSet[T]:
        """Return the partitions to read."""

    @abstractmethod
    def _reach(self) -> Reach:
        """Return what a consumer of this reads."""

    def snapshot(self) -> dict[PartitionId, QueueState]:
        """Return the present state of each partition, in the order of owners and partitions."""
        found = self._partitions("raise")
        found.refresh()
        return {id: reader.state() for id, reader in found.readers.items()}

    def to_arrow(
        self,
        *,
        start: int | None = None,
        stop: int | None = None,
        columns: Sequence[str] | None = None,
        values: Any = "json",
        keys: str = "string",
        verify: bool = True,
    ) -> Any:
        """Return the records as they are now, as a `pyarrow.RecordBatchReader`.

            reader = queue.to_arrow(columns=["offset", "value"])
            duckdb.sql("select count(*) from reader")

        The root is kept until the reader is read to its end or dropped. Records are decoded when
        they are read, and every cell is compared with its hash.

        Args:   start, stop: offsets of each partition, clamped like those of a list; negative ones
                count from its end. columns: of owner, topic, partition, offset, timestamp, key,
                value and headers; by default those that differ within this handle, without headers.
                values: "json", "string", "bytes", "cell" or "variant", or a `pyarrow.Schema`: then
                each value is a struct of its fields. keys: the form of keys, by name. verify: False
                skips the comparison with the hash.
        Raises: UsageError: an argument is not accepted, this is not a handle of a node, or it is
                called inside a batch. TypeMismatch: while it is read, a value of another form.
        """
        options = {"start": start, "stop": stop, "columns": columns, "values": values}
        reader = bound(self._binding, "to_arrow").to_arrow
        return reader(self, **options, keys=keys, verify=verify)

    def follow(
        self,
        start: Start | Mapping[Value, Bookmark] = "start",
        *,
        wait: bool = True,
        timeout: float | None = None,
        on_loss: OnLoss = "raise",
    ) -> Follow[T]:
        """Return the entries from `start` on, and then each new one as it is appended.

            for entry in queue.follow("end"): ...
            async for entry in queue.follow(timeout=5.0): ...

        Entries of one partition come in order, those of several by time. A partition that appears
        later is read from its start.

        Args:   start: "start", "end", an offset (a negative one counts from the end), an aware
                datetime, a timedelta back from now, or a position for each partition; one without
                a position is read from its start. wait: False ends at the end of the log.
                timeout: seconds without a new entry after which iteration ends. on_loss: "skip"
                reports entries that were truncated before they were read, and continues after them.
        Raises: UsageError: an offset for several partitions. DataLoss: during the iteration,
                entries were truncated before they were read.
        """
        now_ms = present_ms(self._clock)
        return Follow(self._partitions(on_loss), start, now_ms, wait=wait, timeout=timeout)

    def consumer(
        self,
        name: str,
        *,
        start: Start = "start",
        wait: bool = True,
        timeout: float | None = None,
        commit_every: float = 1.0,
        on_loss: OnLoss = "raise",
    ) -> Consumer[T]:
        """Return the consumer `name`, which continues from its stored position: see `Consumer`.

        Args:   start: where it begins without a stored position. commit_every: seconds. The others
                are those of `follow`.
        Raises: ConsumerBusy: a program on this machine uses the name. ReadOnly: the node is read
                only. UsageError: this is not a handle of a node.
        """
        return Consumer(
            self._partitions(on_loss),
            self._binding,
            name,
            self._reach(),
            start=start,
            clock=self._clock,
            wait=wait,
            timeout=timeout,
            commit_every=commit_every,
        )


def _database(root: LatticeCursor, binding: Binding) -> Database:
    return Database.at(root, binding.own, CONSUMERS_DATABASE)


def field_of(reach: Reach) -> str:
    """Return the field of a position, `topic/owner/partition`; an empty part means all.

    A slash or percent sign in a part is written %2F or %25; names other than strings, and
    partitions other than integers, are written in printed form after `%=`.
    """
    topic, owner, partition = reach
    parts = (
        _escaped(topic) if isinstance(topic, str) else _printed(topic),
        "" if owner is None else _escaped(owner.hex),
        str(partition) if type(partition) is int else _printed(partition),
    )
    return "/".join(parts)


def _printed(value: Value) -> str:
    return "" if value is None else "%=" + _escaped(to_text(value))


def _escaped(text: str) -> str:
    # "%" first, or the slash's escape would be escaped.
    return text.replace("%", "%25").replace("/", "%2F")


def is_within(field: str, reach: Reach) -> bool:
    """Return whether a consumer with this reach reads the partition of a field."""
    parts, wanted = field.split("/"), field_of(reach).split("/")
    return len(parts) == len(wanted) and all(
        # "" in the reach means all.
        want in ("", part)
        for part, want in zip(parts, wanted, strict=True)
    )
