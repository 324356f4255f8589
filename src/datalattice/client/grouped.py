"""Grouped: simultaneous edits of several threads, made durable by one commit.

Each thread queues its change. The first thread leads: it takes the write turn, makes its own change
and all queued ones on one copy of the root, one after the other, and commits the result. So a
commit costs one sync, and one signature for each owner and section, however many changes it has.
Changes queued during a commit are made by the next one, led by the first of their threads: there is
no timer, and no thread besides the callers'.

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
from datalattice.forking import begins_anew, freed_in_child

T = TypeVar("T")

GROUP_MAX: Final = 256
"""Most changes of one commit, so that the first thread does not wait for an endless queue."""

_OF_ALL: Final = (StoreError, Unavailable)
"""Errors of a commit that no single change causes."""


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
        # The leader's thread runs the change in the caller's context, with the caller's batch.
        self._context: Final = copy_context()
        self.is_alone = False
        self.damage: Corruption | None = None  # found in the group; reported if it fails alone too
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
        """Make the change in a group: if it fails, the cursor is unchanged."""
        before = cursor.get()
        self.error = None
        try:
            self.value = self.make(cursor, own)
        except (MissingData, Corruption) as error:
            # The root may have been replaced and its cells collected: made again, alone, on the
            # newest root.
            self.is_alone = True
            self.damage = error if isinstance(error, Corruption) else None
        except Exception as error:  # noqa: BLE001 - raised in the thread of this change
            self.error = error
        if self.is_alone or self.error is not None:
            cursor.adopt(lambda _current: before)

    def end(self, error: BaseException | None = None) -> None:
        """Note the end of its commit; an error of the change itself stays."""
        self.is_done = True
        if self.error is None:
            self.error = error

    def result(self) -> Any:
        error, self.error = self.error, None  # breaks the cycle through the error's frames
        self.damage = None
        if error is not None:
            raise error
        return self.value


class EditGroups:
    """The edits of one folder's data by the threads of this process.

    turn: the write turn of these threads. edit: makes one durable edit, as `OpenFolder.edit`.
    """

    def __init__(
        self, turn: ThreadTurn, edit: Callable[[OwnKeys, Change[Any], float], Any]
    ) -> None:
        self._turn: Final = turn
        self._edit: Final = edit
        self._lock: Final = freed_in_child(threading.Lock())
        begins_anew(self)
        self.begin_in_child()

    def begin_in_child(self) -> None:
        """Forget the changes of other threads, which a forked child does not have."""
        self._queue: deque[_WaitingEdit] = deque()
        self._is_led = False

    @property
    def waiting(self) -> int:
        """The number of changes that wait for a commit, or whose thread commits for all."""
        return len(self._queue) + self._is_led

    def edit(self, keys: OwnKeys, change: Change[T], wait_s: float) -> T:
        """Make a change, alone or with others; return what it returned, once it is durable.

        It may run on the thread of another caller. If it raises, it writes nothing, and the other
        changes of its commit are made.
        Raises: as `edit`. StoreLocked: it did not get its turn in `wait_s`.
        """
        # In a batch this thread holds the turn: a leader would wait for it for ever.
        if self._turn.is_mine:
            return self._edit(keys, change, wait_s)  # type: ignore[no-any-return]
        mine = _WaitingEdit(keys, change)
        began_s = time.monotonic()
        try:
            with self._lock:
                if self._is_led:
                    self._queue.append(mine)
                else:
                    self._is_led = mine.leads = True
            if mine.leads:
                self._lead(mine, [mine], wait_s)
            elif self._is_to_lead(mine, wait_s):
                self._lead(mine, [], max(0.0, wait_s - (time.monotonic() - began_s)))
        except BaseException:
            self._withdraw(mine)
            raise
        return mine.result()  # type: ignore[no-any-return]

    def _is_to_lead(self, mine: _WaitingEdit, wait_s: float) -> bool:
        """Wait until a change is done (False) or its thread is to lead. Raises: StoreLocked."""
        if mine.wake.acquire(timeout=wait_s):
            return mine.leads
        with self._lock:
            if mine in self._queue and not mine.leads:
                self._queue.remove(mine)
                raise StoreLocked(f"waited {wait_s:g} s in vain for other threads that write")
        mine.wake.acquire()  # it left the queue: its commit has begun, and ends by itself
        return mine.leads

    def _withdraw(self, mine: _WaitingEdit) -> None:
        """Remove a change whose thread gives up, if it is still queued."""
        with self._lock:
            if mine in self._queue:
                self._queue.remove(mine)
        if mine.leads:
            self._hand_over(mine)

    def _hand_over(self, leader: _WaitingEdit) -> None:
        """Let the first queued thread lead."""
        leader.leads = False
        with self._lock:
            if self._queue:
                self._queue[0].leads = True
                self._queue[0].wake.release()
            else:
                self._is_led = False  # the next thread leads by itself

    def _take(self, keys: OwnKeys, count: int) -> list[_WaitingEdit]:
        """Remove and return up to `count` queued changes that are signed with the same keys."""
        with self._lock:
            found = [one for one in self._queue if one.keys == keys][:count]
            for one in found:
                self._queue.remove(one)
        return found

    def _lead(self, mine: _WaitingEdit, group: list[_WaitingEdit], wait_s: float) -> None:
        """Commit `group` and all that is queued when the turn comes; raise if it does not come."""
        is_made = False

        def together(cursor: RootLattice, own: KeyPair) -> None:
            nonlocal is_made
            is_made = False
            # Taken only now, because waiting threads may give up until the turn comes. If another
            # writer came first, this runs again and makes the same changes on the newer root.
            for one in group:
                if not one.is_alone:
                    one.make_among(cursor, own)
            while self._queue and (found := self._take(mine.keys, GROUP_MAX - len(group))):
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
        """Decide for each change of a failed commit: failed too, or to be tried alone."""
        for one in group:
            if len(group) == 1 or isinstance(error, _OF_ALL):
                one.is_alone = False
                one.end(error)
            elif one.error is None:
                one.is_alone = True  # one change is at fault: each is tried alone

    def _edit_alone(self, one: _WaitingEdit, wait_s: float) -> None:
        try:
            one.value = self._edit(one.keys, one.make, wait_s)
        except (MissingData, Corruption) as error:
            # A store treats a damaged cell as missing from the second read on; the first error
            # names its location.
            one.end(one.damage or error)
        except Exception as error:  # noqa: BLE001 - raised in the thread of this change
            one.end(error)
        else:
            one.end()

    def _put_back(self, group: list[_WaitingEdit], mine: _WaitingEdit) -> None:
        """Queue the unwritten changes of other threads again, in their order."""
        with self._lock:
            self._queue.extendleft(one for one in reversed(group) if one is not mine)
        group.clear()
