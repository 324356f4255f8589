"""Group: many threads share one write transaction, and so one sync.

Each thread hands in a piece of work. The first one there becomes the leader: it runs its own piece
and all that have come in meanwhile in one transaction, commits it, runs the callbacks and wakes
their threads. Pieces that arrive during the commit wait for the next one, whose leader is the first
thread in the queue. So nothing waits for a timer, and no thread runs besides those of the callers.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from datalattice.engine.base import Engine, ReadTxn, Snapshot, WriteTxn
from datalattice.errors import StoreError, UsageError

Item = TypeVar("Item")
T = TypeVar("T")


class GroupTxn:
    """The write transaction as one piece of work uses it; over when the piece returns."""

    __slots__ = ("_callbacks", "_raw", "_undo")

    def __init__(self, raw: WriteTxn, undo: dict[tuple[str, bytes], bytes | None] | None) -> None:
        self._raw: WriteTxn | None = raw
        self._undo = undo
        self._callbacks: list[Callable[[], object]] = []

    def after_commit(self, callback: Callable[[], object]) -> None:
        """Call `callback` once the transaction is durable, in the order of these calls.

        It is dropped if this piece of work is rolled back or the commit fails. It runs before `run`
        returns, on the thread of any caller, and may call `run` itself.
        """
        self._live()
        self._callbacks.append(callback)

    @property
    def reader(self) -> ReadTxn:
        """The transaction that this piece shares, for a view that only reads."""
        return self._live()

    @property
    def writer(self) -> WriteTxn:
        """The object to write through: the transaction itself if no old values are kept."""
        raw = self._live()
        return raw if self._undo is None else self

    def get(self, table: str, key: bytes) -> bytes | None:
        return self._live().get(table, key)

    def get_many(self, table: str, keys: Iterable[bytes]) -> list[bytes | None]:
        return self._live().get_many(table, keys)

    def scan(
        self, table: str, start: bytes = b"", end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield `(key, value)` for start <= key < end; sees changes made ahead of its position."""
        return self._live().scan(table, start, end, reverse=reverse)

    def count(self, table: str) -> int:
        return self._live().count(table)

    def put(self, table: str, key: bytes, value: bytes) -> None:
        raw = self._live()
        # The old value first: a piece that fails is rolled back alone.
        if self._undo is not None:
            self._remember(raw, table, [key])
        raw.put(table, key, value)

    def put_many(self, table: str, items: Iterable[tuple[bytes, bytes]]) -> None:
        raw = self._live()
        if self._undo is not None:
            items = list(items)  # read twice: an iterator would be empty the second time
            self._remember(raw, table, [key for key, _ in items])
        raw.put_many(table, items)

    def delete(self, table: str, key: bytes) -> bool:
        raw = self._live()
        if self._undo is not None:
            self._remember(raw, table, [key])
        return raw.delete(table, key)

    def delete_range(self, table: str, start: bytes = b"", end: bytes | None = None) -> int:
        raw = self._live()
        if self._undo is not None:
            # The old values of all keys in the range, which a rollback puts back.
            self._remember(raw, table, [key for key, _ in raw.scan(table, start, end)])
        return raw.delete_range(table, start, end)

    def _live(self) -> WriteTxn:
        raw = self._raw
        if raw is None:  # a piece may not write after its part of the transaction
            raise UsageError("the transaction is over")
        return raw

    def _remember(self, raw: WriteTxn, table: str, keys: list[bytes]) -> None:
        undo = self._undo
        assert undo is not None
        # Only the value before the first write counts; later writes of the piece have replaced it.
        new = [key for key in keys if (table, key) not in undo]
        for key, value in zip(new, raw.get_many(table, new), strict=True):
            undo[table, key] = value

    def finish(self) -> list[Callable[[], object]]:
        """End the piece of work; return its callbacks."""
        self._raw = None
        return self._callbacks

    def roll_back(self) -> None:
        """End the piece of work and give every key the value that it had before."""
        raw = self._live()
        self._raw = None
        # Any order: each key has one old value.
        for (table, key), value in (self._undo or {}).items():
            if value is None:
                raw.delete(table, key)
            else:
                raw.put(table, key, value)


class _Piece:
    """A piece of work: what it returned or raised, and a lock that its thread waits for.

    shared: the function of `run_shared`, in place of `work`.
    """

    __slots__ = (
        "callbacks",
        "error",
        "is_alone",
        "is_done",
        "item",
        "leads",
        "shared",
        "value",
        "wake",
        "work",
    )

    def __init__(
        self, work: Callable[[GroupTxn], Any] | None, shared: Any = None, item: Any = None
    ) -> None:
        self.work = work
        self.shared = shared
        self.item = item
        self.is_alone = work is not None
        self.is_done = False
        self.value: Any = None
        self.error: BaseException | None = None
        self.callbacks: list[Callable[[], object]] = []
        self.leads = False
        self.wake = threading.Lock()
        self.wake.acquire()

    def end(self, value: Any, error: BaseException | None = None) -> None:
        """Store the result, or the exception that its thread gets."""
        self.is_done = True
        self.value = value
        self.error = error

    def fail(self, error: BaseException) -> None:
        """Note that the commit failed; an exception of the piece itself stays."""
        if self.error is None:  # the piece's own error says more than the commit's
            self.error = error
        self.callbacks = []  # nothing was committed, so nothing may be announced

    def result(self) -> Any:
        error = self.error
        if error is None:
            return self.value
        self.error = None  # an exception holds its frames, which hold this piece
        raise error


class _Abandoned(Exception):
    """The first piece of a transaction failed: nothing else is in it, so it is rolled back."""


def _together(piece: _Piece, pieces: list[_Piece], at: int) -> list[_Piece]:
    """Return the pieces that are run by one call with `piece`: it and others from `at` on."""
    found = [piece]
    if not piece.is_alone:
        # Their callers wait at the same time, so any order of them is right.
        for other in pieces[at:]:
            if not other.is_alone and not other.is_done and other.shared == piece.shared:
                found.append(other)
    return found


def _call(txn: GroupTxn, pieces: list[_Piece]) -> list[Any]:
    work = pieces[0].work
    if work is not None:
        return [work(txn)]
    return list(pieces[0].shared(txn, [piece.item for piece in pieces]))


class GroupCommit:
    """Write transactions of one engine, shared by the threads that come at the same time."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._lock = threading.Lock()
        self._queue: deque[_Piece] = deque()
        self._busy = False
        self._leader: int | None = None
        self._in_work = False
        self._callbacks: deque[tuple[_Piece, Callable[[], object]]] = deque()
        self._owner: _Piece | None = None  # the piece whose callback runs

    def run(self, work: Callable[[GroupTxn], T]) -> T:
        """Call `work` with a write transaction; return its result once the commit is durable.

        Other pieces of work may be in the same transaction, before and after this one. An exception
        of `work` rolls back this piece alone and is raised here. An exception of a callback is
        raised here too; the work stays committed and the other callbacks run.

        Raises: UsageError: called within a piece of work of this thread.
                StoreError: the commit failed; every caller whose work it held gets the error, and
                nothing of their work is kept.
        """
        return self._take_part(_Piece(work))  # type: ignore[no-any-return]

    def run_shared(
        self, shared: Callable[[GroupTxn, list[Item]], Iterable[T | Exception]], item: Item
    ) -> T:
        """Call `shared` with the items of all threads that wait with it; return this one's result.

        For work that costs less for many at once than for each alone. It returns a result for each
        item, in their order; an exception there is raised to the caller of that item alone. Where
        `shared` itself raises, nothing of the call is kept, and it is called for each item alone.

        Raises: as `run`.
        """
        return self._take_part(_Piece(None, shared, item))  # type: ignore[no-any-return]

    def _take_part(self, piece: _Piece) -> Any:
        """Have a piece committed with others; return its result."""
        if self._leader == threading.get_ident():
            # A piece that waited for the commit it is part of would wait for ever.
            if self._in_work:
                raise UsageError("run was called within a piece of work; use its transaction")
            # A callback writes: its thread leads already, so it commits at once.
            self._commit([piece])
            self._collect(piece, self._owner or piece)  # after those of earlier commits
            return piece.result()
        try:
            with self._lock:
                self._queue.append(piece)
                piece.leads = not self._busy  # the first thread there leads, the others wait
                self._busy = True
            if not piece.leads:
                piece.wake.acquire()
            if piece.leads:
                self._lead()
        except BaseException:  # a signal, such as KeyboardInterrupt: no other exception comes here
            self._withdraw(piece)
            raise
        return piece.result()

    def read(self) -> Snapshot:
        """Begin a read transaction on the newest committed state."""
        return self.engine.read()

    def _withdraw(self, piece: _Piece) -> None:
        """Take a piece whose thread is interrupted out of the queue, if it still waits there."""
        with self._lock:
            if piece in self._queue:
                self._queue.remove(piece)
        if piece.leads:
            self._hand_over()

    def _lead(self) -> None:
        """Commit what is in the queue, wake its threads and hand over to the next leader."""
        self._leader = threading.get_ident()  # callbacks may call `run` in this thread
        pieces: list[_Piece] = []
        try:
            self._commit(pieces)
            # After the commit, before any thread wakes: `run` returns once callbacks have run.
            for piece in pieces:
                self._collect(piece, piece)
            self._call_back()
        finally:
            self._leader = None  # before waking: a woken thread may lead at once
            for piece in pieces:
                piece.leads = False
                piece.wake.release()
            self._hand_over()

    def _take(self) -> list[_Piece]:
        with self._lock:
            pieces = list(self._queue)
            self._queue.clear()
        return pieces

    def _hand_over(self) -> None:
        with self._lock:
            if self._queue:
                self._queue[0].leads = True  # the first in the queue: no thread waits for ever
                self._queue[0].wake.release()
            else:
                self._busy = False  # the next thread leads by itself

    def _commit(self, pieces: list[_Piece]) -> None:
        """Run the pieces in one transaction; a failed commit is the error of all that it held.

        Without pieces it takes the queue, and all that comes in before the commit: `pieces` grows.
        """
        takes_queue = not pieces
        if takes_queue:
            # The queue first: if the transaction cannot begin, all who wait get the error.
            pieces.extend(self._take())
        while True:
            try:
                with self.engine.write() as raw:
                    self._run_all(raw, pieces, takes_queue=takes_queue)
            except _Abandoned:
                if not all(piece.is_done for piece in pieces):
                    continue  # the first piece failed: the others are tried without it
            except BaseException as error:  # noqa: BLE001 - raised in the threads of the pieces
                for piece in pieces:
                    piece.fail(error)
            return

    def _run_all(self, raw: WriteTxn, pieces: list[_Piece], *, takes_queue: bool) -> None:
        is_first = True
        at = 0
        while True:
            if at == len(pieces) and takes_queue:
                pieces.extend(self._take())
            if at == len(pieces):
                return
            piece = pieces[at]
            at += 1
            if not piece.is_done:
                self._run(raw, _together(piece, pieces, at), is_first=is_first)
                is_first = False

    def _run(self, raw: WriteTxn, pieces: list[_Piece], *, is_first: bool) -> None:
        """Run one piece, or several by one call."""
        # If the first piece fails, the transaction is rolled back, so it needs no old values.
        txn = GroupTxn(raw, None if is_first else {})
        self._in_work = True
        try:
            outcomes = _call(txn, pieces)
        except BaseException as error:  # noqa: BLE001 - raised in the thread of the piece
            for piece in pieces:
                # Pieces that failed in one call are tried again one by one, except after a signal.
                if len(pieces) == 1 or not isinstance(error, Exception):
                    piece.end(None, error)  # other pieces go on; this one's thread gets it
                piece.is_alone = True
            if is_first:
                txn.finish()
                raise _Abandoned from None
            try:
                txn.roll_back()
            except StoreError:
                if isinstance(error, StoreError):
                    raise error from None  # it broke the transaction, so all pieces get it
                raise
        else:
            for piece, outcome in zip(pieces, outcomes, strict=True):
                is_error = piece.work is None and isinstance(outcome, Exception)
                piece.end(outcome, outcome if is_error else None)
            pieces[0].callbacks = txn.finish()
        finally:
            self._in_work = False
        for piece in pieces:
            if not piece.is_done:  # the call failed for several: each is tried alone
                self._run(raw, [piece], is_first=False)

    def _collect(self, piece: _Piece, owner: _Piece) -> None:
        self._callbacks.extend((owner, callback) for callback in piece.callbacks)

    def _call_back(self) -> None:
        while self._callbacks:
            self._owner, callback = self._callbacks.popleft()
            try:
                callback()
            except BaseException as error:  # noqa: BLE001 - raised in the thread of its piece
                if self._owner.error is None:  # the first exception counts; the commit stays
                    self._owner.error = error
        self._owner = None
