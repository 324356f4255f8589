"""Grouped: edits of threads that come at the same time, made durable by one commit.

Each thread hands in its change. The first one there leads: it takes the write turn, makes its own
change and all that wait by then on one copy of the root, one after the other, and commits the
result. So a commit costs one sync, and one signature for each owner and section, however many
changes it has. Changes that come in during a commit are in the next one, which the first of them
leads: nothing waits for a timer, and no thread runs besides those of the callers.

Source: docs/design/service.md "Commits".
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from typing import Any, Final, TypeVar

from datalattice.client.edits import Change, ThreadTurn
from datalattice.client.folder import OwnKeys
from datalattice.crypto import KeyPair
from datalattice.cursors import RootLattice
from datalattice.errors import (
    Corruption,
    MissingData,
    OutcomeUnknown,
    StoreError,
    StoreLocked,
    Unavailable,
)

T = TypeVar("T")

GROUP_MAX: Final = 256
"""Most changes of one commit, so that the first of them does not wait for ever."""

_OF_ALL: Final = (StoreError, Unavailable)
"""Why a commit fails through no fault of a single change."""


class _WaitingEdit:
    """A change with its result or error, and a lock that its thread waits for."""

    __slots__ = (
        "_change",
        "_context",
        "damage",
        "error",
        "is_alone",
        "is_done",
        "keys",
        "leads",
        "value",
        "wake",
    )

    def __init__(self, keys: OwnKeys, change: Change[Any]) -> None:
        self.keys: Final = keys
        self._change: Final = change
        # The batch, and what else its caller is in, are those of a context.
        self._context: Final = copy_context()
        self.is_alone = False
        self.damage: Corruption | None = None  # that it met among others
        self.is_done = False
        self.value: Any = None
        self.error: BaseException | None = None
        self.leads = False
        self.wake = threading.Lock()
        self.wake.acquire()

    def make(self, cursor: RootLattice, own: KeyPair) -> Any:
        """Make the change; return its result."""
        return self._context.run(self._change, cursor, own)

    def make_among(self, cursor: RootLattice, own: KeyPair) -> None:
        """Make the change between others: if it fails, nothing of it stays."""
        before = cursor.get()
        self.error = None
        try:
            self.value = self.make(cursor, own)
        except (MissingData, Corruption) as error:
            # "The root moved on, and what it no longer needs may be gone already": it is made
            # again, on the newest root.
            self.is_alone = True
            self.damage = error if isinstance(error, Corruption) else None
        except Exception as error:  # noqa: BLE001 - raised in the thread of this change
            self.error = error
        if self.is_alone or self.error is not None:
            cursor.adopt(lambda _current: before)

    def end(self, error: BaseException | None = None) -> None:
        """Note that it is committed, or why not: an error of its own, else the commit's."""
        self.is_done = True
        if self.error is None:
            self.error = error

    def result(self) -> Any:
        error, self.error = self.error, None  # it holds its frames, which hold this
        self.damage = None
        if error is not None:
            raise error
        return self.value


class EditGroups:
    """The edits of one folder's data by the threads of this process.

    turn: of these threads. edit: makes one durable edit, as `OpenFolder.edit`.
    """

    def __init__(
        self, turn: ThreadTurn, edit: Callable[[OwnKeys, Change[Any], float], Any]
    ) -> None:
        self._turn: Final = turn
        self._edit: Final = edit
        self._lock: Final = threading.Lock()
        self._queue: deque[_WaitingEdit] = deque()
        self._is_led = False

    @property
    def waiting(self) -> int:
        """How many changes wait for a commit."""
        return len(self._queue)

    def edit(self, keys: OwnKeys, change: Change[T], wait_s: float) -> T:
        """Make a change, on its own or with others; return what it returned, once it is durable.

        It may run on the thread of another caller. If it raises, nothing of it is written, and the
        other changes are.
        Raises: as `edit`. StoreLocked: it did not get its turn in `wait_s`.
        """
        # A thread that has the turn, for a batch, would wait for itself.
        if self._turn.is_mine:
            return self._edit(keys, change, wait_s)  # type: ignore[no-any-return]
        mine = _WaitingEdit(keys, change)
        began_s = time.monotonic()
        try:
            with self._lock:
                self._queue.append(mine)
                mine.leads = not self._is_led  # the first thread there leads, the others wait
                self._is_led = True
            if not mine.leads:
                self._wait(mine, wait_s)
                wait_s = max(0.0, wait_s - (time.monotonic() - began_s))
            if mine.leads:
                self._lead(mine, wait_s)
        except BaseException:
            self._withdraw(mine)
            raise
        return mine.result()  # type: ignore[no-any-return]

    def _wait(self, mine: _WaitingEdit, wait_s: float) -> None:
        """Return when a change is done, or leads."""
        if mine.wake.acquire(timeout=wait_s):
            return
        with self._lock:
            if mine in self._queue and not mine.leads:
                self._queue.remove(mine)
                raise StoreLocked(f"waited {wait_s:g} s in vain for other threads that write")
        mine.wake.acquire()  # its commit is under way

    def _withdraw(self, mine: _WaitingEdit) -> None:
        """Take a change out whose thread gives up, if it still waits."""
        with self._lock:
            if mine in self._queue:
                self._queue.remove(mine)
        if mine.leads:
            self._hand_over(mine)

    def _hand_over(self, leader: _WaitingEdit) -> None:
        """Let the first one that waits lead."""
        leader.leads = False
        with self._lock:
            if self._queue:
                self._queue[0].leads = True
                self._queue[0].wake.release()
            else:
                self._is_led = False  # the next thread leads by itself

    def _take(self, keys: OwnKeys, count: int) -> list[_WaitingEdit]:
        """Take changes that are signed with the same keys."""
        with self._lock:
            found = [one for one in self._queue if one.keys == keys][:count]
            for one in found:
                self._queue.remove(one)
        return found

    def _lead(self, mine: _WaitingEdit, wait_s: float) -> None:
        """Commit what waits by the time that the turn comes; raise what keeps it from coming."""
        group: list[_WaitingEdit] = []
        is_made = False

        def together(cursor: RootLattice, own: KeyPair) -> None:
            nonlocal is_made
            is_made = False
            # Taken now, since those who wait may give up until the turn is there. Where another
            # writer came first, all are made again on the newer root.
            for one in group:
                if not one.is_alone:
                    one.make_among(cursor, own)
            while found := self._take(mine.keys, GROUP_MAX - len(group)):
                group.extend(found)
                for one in found:
                    one.make_among(cursor, own)
            is_made = True

        try:
            try:
                self._edit(mine.keys, together, wait_s)
            except Exception as error:
                if not group:
                    raise
                self._fail(group, error)
            except BaseException:  # a signal, such as KeyboardInterrupt
                if not is_made:
                    self._put_back(group, mine)
                raise
            for one in group:
                if one.is_alone:
                    self._edit_alone(one, wait_s)
                else:
                    one.end()
        finally:
            for one in group:
                if not one.is_done:
                    one.end(OutcomeUnknown("the thread that wrote for several was interrupted"))
                if one is not mine:
                    one.wake.release()
            self._hand_over(mine)

    def _fail(self, group: list[_WaitingEdit], error: Exception) -> None:
        """Note what a failed commit means for each of its changes."""
        for one in group:
            if len(group) == 1 or isinstance(error, _OF_ALL):
                one.is_alone = False
                one.end(error)
            elif one.error is None:
                one.is_alone = True  # one of them is to blame: each is tried by itself

    def _edit_alone(self, one: _WaitingEdit, wait_s: float) -> None:
        try:
            one.value = self._edit(one.keys, one.make, wait_s)
        except (MissingData, Corruption) as error:
            # A store offers no cell that it found damaged, so the second time it is missing. What
            # was said first names the place.
            one.end(one.damage or error)
        except Exception as error:  # noqa: BLE001 - raised in the thread of this change
            one.end(error)
        else:
            one.end()

    def _put_back(self, group: list[_WaitingEdit], mine: _WaitingEdit) -> None:
        """Have others lead those whose changes were not written."""
        with self._lock:
            self._queue.extendleft(one for one in reversed(group) if one is not mine)
        group.clear()
