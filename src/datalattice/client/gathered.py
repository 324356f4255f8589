"""Gathered: writes that are made first and become durable together.

A batch gathers them in a `Draft`; a node with `durable="sync"` in the draft of its `DelayedWrites`.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

from datalattice.cells import Value, same
from datalattice.client.edits import Editor, EditRoot
from datalattice.client.folder import OwnKeys
from datalattice.client.opendata import OpenData
from datalattice.client.openfolder import LOOK_S
from datalattice.cursors import LatticeCursor, RootLattice
from datalattice.forking import begins_anew, check_process
from datalattice.lattice import MergeContext, root_lattice

T = TypeVar("T")

RootWork = Callable[[LatticeCursor], T]
"""Reads and writes below a root cursor. It may run several times, on newer roots."""

FLUSH_S: Final = 1.0
"""Longest time until a write of a node with `durable="sync"` is on disk."""


ZERO_ROOT: Final = root_lattice().zero()


class Draft:
    """Writes on a copy of a root. Threads may share it."""

    def __init__(self, root: Value, context: MergeContext) -> None:
        self._cursor = RootLattice(root_lattice(), ZERO_ROOT if root is None else root, context)
        self._works: list[RootWork[object]] = []
        self._undo: list[Callable[[], None]] = []
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self.is_over = False
        self.target: EditRoot | None = None
        """The root of the edit that this draft is a change of; None: a batch of its own."""

    @property
    def is_open(self) -> bool:
        """Whether it still gathers writes: before its end, and in the process that began it."""
        return not self.is_over and self._pid == os.getpid()

    def check_process(self) -> None:
        """Raise UsageError in a forked child: the writes are its parent's."""
        check_process(self._pid, "a batch or write that had begun")

    @property
    def has_writes(self) -> bool:
        """Whether something was written."""
        return bool(self._works)

    def root(self) -> Value:
        """Return the root with the writes made so far."""
        return self._cursor.get()

    def perform(self, work: RootWork[T]) -> T:
        """Do `work` on the draft; if it raises, the draft is unchanged."""
        with self._lock:
            before = self._cursor.get()
            try:
                result = work(self._cursor)
            except BaseException:
                self._cursor.adopt(lambda _current: before)
                raise
            self.check_process()  # the work may fork
            # Reads need no repetition on a newer root.
            if self._cursor.get() is not before:
                self._works.append(work)
            return result

    def write_to(self, cursor: LatticeCursor) -> None:
        """Make the writes below another root cursor.

        If its root is the one that the draft began with, it adopts the draft's root. Otherwise the
        writes are made again on its root, so that the writes of both stay.
        """
        if same(cursor.get(), self._cursor.initial_value):
            result = self._cursor.get()
            cursor.adopt(lambda _current: result)  # without checks: the draft made them
            return
        for work in self._works:
            work(cursor)

    def on_undo(self, undo: Callable[[], None]) -> None:
        """Call `undo` once if the writes are given up, however often it is registered."""
        if undo not in self._undo:
            self._undo.append(undo)

    def give_up(self) -> None:
        """Forget the writes."""
        self._works.clear()
        for undo in reversed(self._undo):
            undo()


class DelayedWrites:
    """The writes of a node with `durable="sync"`: durable at `sync`, or after `FLUSH_S` at most.

    While some are pending, a thread holds the write turn, so that the offsets they returned stay
    right. It makes them durable at once if another writer waits.
    """

    def __init__(self, data: OpenData, keys: OwnKeys, context: MergeContext, wait_s: float) -> None:
        self._data = data
        self._keys = keys
        self._context = context
        self._wait_s = wait_s
        self.begin_in_child()
        begins_anew(self)

    def begin_in_child(self) -> None:
        """Begin without writes: the parent of a forked child makes its own durable."""
        self._changed = threading.Condition()
        self._draft: Draft | None = None
        self._is_gathering = False  # the thread has the turn, and the draft takes writes
        self._is_wanted = False  # `sync` waits for the writes to be durable
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None

    @property
    def has_writes(self) -> bool:
        """Whether a write is not durable yet."""
        draft = self._draft
        return draft is not None and draft.has_writes

    def present(self) -> Value:
        """Return the root with all writes of this node."""
        draft = self._draft
        return self._data.root() if draft is None else draft.root()

    def perform(self, work: RootWork[T]) -> T:
        """Do `work` on the draft.

        Raises: the error of the last background flush. StoreLocked: as `OpenData.turn`.
        """
        with self.held() as draft:
            return draft.perform(work)

    @contextmanager
    def held(self) -> Iterator[Draft]:
        """Yield the draft, and keep other threads from writing to it and from flushing it."""
        with self._changed:
            self._raise_failure()
            while not self._is_gathering:
                self._start()
                self._changed.wait()
                self._raise_failure()
            assert self._draft is not None
            yield self._draft

    def _raise_failure(self) -> None:
        # "A failed background flush is raised by the next write, `sync` or `close`", once.
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._gather, name="delayed writes", daemon=True)
            self._thread.start()

    def sync(self) -> None:
        """Return when all writes are durable.

        Raises: the error that kept them from being written; the next call tries again.
        """
        with self._changed:
            while self._draft is not None or self._thread is not None:
                self._is_wanted = True
                self._start()
                self._changed.notify_all()
                self._changed.wait()
                self._raise_failure()
            self._raise_failure()

    def _gather(self) -> None:
        """Take the write turn, gather writes, and make them durable."""
        failure: BaseException | None = None
        try:
            with self._data.turn(self._keys, self._wait_s) as editor:
                draft = self._gathered(editor)
                self._data.edit(self._keys, lambda cursor, _: draft.write_to(cursor), self._wait_s)
        except BaseException as error:  # noqa: BLE001 - raised by whoever writes or syncs next
            failure = error
        with self._changed:
            self._is_gathering = self._is_wanted = False
            self._thread = None
            self._failure = failure
            if failure is None or (self._draft is not None and not self._draft.has_writes):
                self._draft = None
            self._changed.notify_all()

    def _gathered(self, editor: Editor) -> Draft:
        with self._changed:
            # After a failed flush its writes are made again, on the newest root.
            kept, draft = self._draft, Draft(editor.root(), self._context)
            if kept is not None:
                draft.perform(kept.write_to)
            self._draft = draft
            self._is_gathering = True
            self._changed.notify_all()
            # "And at most 1 s later": no stream of writes prolongs the turn.
            until_s = time.monotonic() + FLUSH_S
            while not self._is_wanted and time.monotonic() < until_s:
                self._changed.wait(LOOK_S)  # releases the lock, so that waiting threads can write
                if self._data.is_awaited():
                    break
            self._is_gathering = False
            return draft
