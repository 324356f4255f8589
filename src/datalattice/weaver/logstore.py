"""Log store: the handle of a log, a sequence that several nodes append to, and its readers.

    diary = node.store("diary", kind="log")
    diary.append("rain"); diary[-1]; diary.tail(20)
    with diary.consumer("printer") as records:      # goes on where it was left, at least once
        for record in records:
            print(record.value)

Source: docs/weaver.md "Logs"; docs/design/front-door.md "Handles"
"""

from __future__ import annotations

import operator
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final, Generic, Self, TypeVar, overload

from datalattice.cells import counted
from datalattice.cursors import Stream, Taken
from datalattice.errors import ConsumerBusy, StoreLocked, TypeMismatch, UsageError
from datalattice.weaver.appendlog import AppendRequest, entries
from datalattice.weaver.handles import (
    SCAN_ENTRIES_MAX,
    TEXT_CODEC,
    Codec,
    LogStream,
    StoreHandle,
    StoreSource,
    WrittenValue,
)
from datalattice.weaver.intention import ZERO_HASH
from datalattice.weaver.log import WitnessEntry
from datalattice.weaver.store import StoreView
from datalattice.weaver.system import app_payload

T = TypeVar("T")

COMMIT_EVERY_S: Final = 1.0  # at least once: at most a second of records comes again after a crash
"""How often a consumer stores its position while it is busy."""


class LogRecord(WrittenValue[T]):
    """One entry of a log."""

    __slots__ = ()


class LogStore(StoreHandle, Sequence[T]):
    """Entries of several authors in the order of their times: read as a sequence, append, follow.

    An entry that arrives late takes its place by its time, so positions move while nodes are
    apart. `follow` yields entries in the order of their arrival and misses none.
    """

    def __init__(self, source: StoreSource, codec: Codec[T] = TEXT_CODEC) -> None:
        super().__init__(source)
        self._codec = codec

    def append(self, value: T) -> bytes:
        """Append an entry; return the hash of its intention.

        Raises: UsageError: it is empty.
        """
        return self.extend([value])[0]

    def extend(self, values: Iterable[T]) -> list[bytes]:
        """Append entries, all or none, with one sync; return the hashes of their intentions.

        Raises: UsageError: one is empty.
        """
        requests = [AppendRequest(self._codec.encode(value)) for value in values]
        # The machine would sign an empty payload and store nothing: a lost entry without an error.
        if not all(request.content for request in requests):
            raise UsageError("an entry of a log is not empty")
        # One transaction, one sync.
        answers = self._source.writable().execute_all("Append", requests)
        return [answer.hash for answer in answers]  # type: ignore[attr-defined]

    def __len__(self) -> int:
        with self._source.store().read() as view:
            return sum(1 for _ in entries(view.data))

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        """Return an entry, or a list for a slice. Cost: the entries up to it, from either end."""
        if isinstance(index, slice):
            return self._slice(index)
        index = _number(index)
        with self._source.store().read() as view:
            found = entries(view.data, reverse=index < 0)
            at = index if index >= 0 else -1 - index
            entry = next(islice(found, at, None), None)
        if entry is None:
            raise IndexError(f"the log has no entry {index}")
        return self._codec.decode(entry[1])

    def _slice(self, index: slice) -> list[T]:
        # Positions move while nodes are apart, so a step is nearly always a mistake.
        if index.step not in (None, 1):
            raise UsageError(f"a slice of a log has no step, got {index.step!r}; slice the list")
        start = _number(index.start or 0)
        stop = None if index.stop is None else _number(index.stop)
        with self._source.store().read() as view:
            if start < 0 and stop is None:  # the last entries alone are read, not the log
                last = [content for _, content in islice(entries(view.data, reverse=True), -start)]
                return [self._codec.decode(content) for content in reversed(last)]
            count = None
            if start < 0 or (stop is not None and stop < 0):
                # Counted in the same view as it is sliced.
                count = sum(1 for _ in entries(view.data))
                start, stop, _ = index.indices(count)
            found = islice(entries(view.data), start, stop)
            return [self._codec.decode(content) for _, content in found]

    def __iter__(self) -> Iterator[T]:
        # In lots, so that a slow loop keeps no snapshot: the engine cannot reuse what one shows.
        start = b""
        while True:
            with self._source.store().read() as view:
                lot = list(islice(entries(view.data, start), SCAN_ENTRIES_MAX))
            if not lot:
                return
            yield from (self._codec.decode(content) for _, content in lot)
            start = lot[-1][0] + b"\0"  # the next possible key

    def __reversed__(self) -> Iterator[T]:
        end: bytes | None = None
        while True:
            with self._source.store().read() as view:
                lot = list(islice(entries(view.data, end=end, reverse=True), SCAN_ENTRIES_MAX))
            if not lot:
                return
            yield from (self._codec.decode(content) for _, content in lot)
            end = lot[-1][0]

    def tail(self, count: int) -> list[T]:
        """Return the last entries, the oldest first."""
        return self[-count:] if count > 0 else []

    def follow(
        self, start: str | bytes = "start", *, wait: bool = True, timeout: float | None = None
    ) -> Stream[LogRecord[T]]:
        """Yield entries in the order of their arrival here, also those of other processes.

        start: "start": all entries, then new ones; "end": new ones only; the hash of a record:
               those that arrived after it.
        Raises: NoSuchPath: no record here has this hash.
        """
        return _Follow(self._source, self._codec, start, wait=wait, timeout=timeout)

    def consumer(
        self,
        name: str,
        *,
        start: str | bytes = "start",
        wait: bool = True,
        timeout: float | None = None,
        commit_every: float = COMMIT_EVERY_S,
    ) -> LogConsumer[T]:
        """Return a reader that continues where the last one of this name in this folder stopped.

        A record is done when the next one is asked for, `commit` is called, or the loop ends; one
        that was left by `break` or an exception comes again. start: where a new name begins.
        commit_every: seconds after which what is done is stored.
        Raises: ConsumerBusy: another program of this machine reads by this name. ReadOnly.
        """
        return LogConsumer(self._source, self._codec, name, start, wait, timeout, commit_every)

    def __repr__(self) -> str:
        return f"<LogStore {self.name!r}: {counted(len(self), 'entry', 'entries')}>"


def _number(index: Any) -> int:
    try:
        return operator.index(index)
    except TypeError as error:
        raise TypeMismatch(f"a position in a log is a number, got {index!r}") from error


class _Follow(LogStream, Generic[T]):
    def __init__(
        self,
        source: StoreSource,
        codec: Codec[Any],
        start: str | bytes,
        *,
        wait: bool,
        timeout: float | None,
    ) -> None:
        self._codec = codec
        super().__init__(source, start, wait=wait, timeout=timeout)

    def _items(self, view: StoreView, batch: list[WitnessEntry]) -> Iterable[LogRecord[Any]]:
        for entry in batch:
            intention = entry.signed.intention
            content = app_payload(intention.payload)
            if content:  # acks and system operations are no entries
                value = self._codec.decode(content)
                yield LogRecord(value, intention.author, intention.stamp, entry.signed.hash)


class LogConsumer(_Follow[T], Generic[T]):
    """A named reader of a log in the order of arrival; each record comes at least once.

    As the consumer of a queue: asking for the next record says that the one before is done. What is
    done becomes durable every `commit_every` seconds, before waiting, and on leaving `with`. A
    record that is left by `break` or an error is not done: the next iteration begins with it.
    """

    def __init__(
        self,
        source: StoreSource,
        codec: Codec[T],
        name: str,
        start: str | bytes,
        wait: bool,
        timeout: float | None,
        commit_every: float,
    ) -> None:
        """Use `LogStore.consumer`."""
        store = source.writable()
        self._source, self._codec = source, codec
        try:
            # One reader of a name on this machine: two would skip each other's records.
            self._release = source.hold(f"weaver/{store.id.hex()}/{name}")
        except StoreLocked as error:
            raise ConsumerBusy(f"consumer {name!r}: {error}") from error
        self.name: Final = name
        self._every_s = commit_every
        self._stored_s = time.monotonic()
        try:
            self._committed = store.consumed(name)
            # Where a new name begins is stored as well, so that "end" means the same next time.
            begin = self._hash_at(start) if self._committed is None else self._committed
            self._done = self._delivered = begin
            first = "start" if begin == ZERO_HASH else begin
            super().__init__(source, codec, first, wait=wait, timeout=timeout)
        except BaseException:  # any failure gives the lock back
            self._release()
            raise

    def _hash_at(self, to: str | bytes) -> bytes:
        """Return the hash of the record behind which reading begins, ZERO for the first."""
        seq = self._seq_at(to)
        if not seq:
            return ZERO_HASH
        with self._source.store().read() as view:
            return next(view.entries(seq, 1)).signed.hash

    # --- taking records -----------------------------------------------------------------------

    def __iter__(self) -> Self:
        self.rewind()  # a loop begins here, `next` alone does not
        return self

    def __aiter__(self) -> Self:
        self.rewind()  # as `__iter__`
        return self

    def __next__(self) -> LogRecord[T]:
        self.finish()  # "asking for the next entry says that the one before is done"
        return self._deliver(super().__next__())

    async def __anext__(self) -> LogRecord[T]:
        self.finish()  # as `__next__`
        return self._deliver(await super().__anext__())

    def poll(self) -> list[LogRecord[T]]:
        """Return the next records without waiting; those of the call before are done."""
        self.finish()
        found = super().poll()
        # The last one stands for all: done is a position in the log, not a set of records.
        for record in found[-1:]:
            self._deliver(record)
        return found

    def take(self, count: int, timeout: float = 0.0) -> Taken[LogRecord[T]]:
        """Return up to `count` records; those delivered before are done.

        Waits up to `timeout` seconds for the first one; the list is empty if none came.
        """
        self.finish()
        found = self._take_up_to(count, timeout)
        for record in found[-1:]:
            self._deliver(record)
        return Taken(self, found)

    def _deliver(self, record: LogRecord[T]) -> LogRecord[T]:
        self._delivered = record.hash
        return record

    # --- what is done -------------------------------------------------------------------------

    def finish(self) -> None:
        """Say that all delivered records are done; unlike `commit`, it writes nothing."""
        with self._flush_lock:
            self._done = self._delivered

    def rewind(self) -> None:
        """Go back to the first record that is not done, so that it is delivered again."""
        # Only then: moving also drops the records that were read ahead.
        if self._delivered != self._done:
            self._move(self._done)

    def commit(self) -> None:
        """Say that all delivered records are done, and make that durable."""
        self.finish()
        self._flush()

    def seek(self, to: str | bytes) -> None:
        """Move to another position, and make that durable.

        to: as `start` of `LogStore.follow`; or what `position` and `committed` give.
        Raises: UsageError: it is none of these. NoSuchPath: no record here has this hash.
        """
        hash = self._hash_at(to)
        with self._flush_lock:
            self._done = hash
            self._move(hash)
            self._flush()  # at once: a seek that a crash undoes would surprise

    def _move(self, hash: bytes) -> None:
        self._ready.clear()
        self._delivered = hash
        self._next_seq = 1 + self._seq_of(hash)

    def _seq_of(self, hash: bytes) -> int:
        return 0 if hash == ZERO_HASH else self._seq_at(hash)

    def _is_flush_due(self, *, idle: bool) -> bool:
        if self._done == self._committed:
            return False  # nothing new to store
        return idle or time.monotonic() - self._stored_s >= self._every_s

    def _flush(self) -> None:
        with self._flush_lock:
            # By hash, so that the position means the same record after the log was rebuilt.
            if self._done != self._committed:
                self._source.store().set_consumed(self.name, self._done)
                self._committed = self._done
            self._stored_s = time.monotonic()

    def close(self) -> None:
        """Store what is done, and let others read by this name. Closing twice is allowed."""
        if not self.closed:
            try:
                self._flush()
            finally:  # even when the position could not be stored
                self._release()
        super().close()

    # --- where it is --------------------------------------------------------------------------

    @property
    def position(self) -> bytes | None:
        """The hash of the last record that was delivered; None before the first."""
        return None if self._delivered == ZERO_HASH else self._delivered

    @property
    def committed(self) -> bytes | None:
        """The hash of the last record that is stored as done; None before the first."""
        return None if self._committed == ZERO_HASH else self._committed

    def lag(self) -> int:
        """Return how many records that are there now are not done. Cost: a pass over them."""
        seq = self._seq_of(self._done)
        with self._source.store().read() as view:
            # Acks and system operations are in the log as well, and no consumer gets them.
            entries = view.entries(seq + 1)
            return sum(1 for one in entries if app_payload(one.signed.intention.payload))
