"""Changes: what happens to the value of a cursor, for those who wait for it.

A watcher remembers the value it saw last and compares. Changes that come faster than it looks are
seen as one; the last one is never missed, because a wake comes after the swap and the watcher
clears its flag before it reads.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, NamedTuple, Self

from datalattice.cells import Value, same
from datalattice.cursors.base import Cursor, Wake
from datalattice.errors import UsageError


class Change(NamedTuple):
    """The value of a cursor before and after one or more writes."""

    before: Value
    after: Value


def _always(_change: Change) -> bool:
    return True


class Changes:
    """The changes of a cursor's value from now on; an iterator that waits.

    Threads that write are never held up. Use `with`, or `close` it: until then the cursor keeps
    waking it. One thread takes the changes; any thread may close.

    Source: docs/cursors.md "Changes".
    """

    __slots__ = ("_closed", "_cursor", "_end", "_flag", "_seen", "_wakes")

    def __init__(self, cursor: Cursor) -> None:
        self._cursor: Final = cursor
        self._flag: Final = threading.Event()
        self._wakes: tuple[Wake, ...] = ()
        self._closed = False
        self._end: Final = cursor.subscribe(self._wake)
        try:
            self._seen = cursor.get()
        except BaseException:
            self._end()
            raise

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def poll(self) -> Change | None:
        """Return the change since the last one returned, None when the value is the same.

        Source: docs/cursors.md "Changes".
        """
        self._flag.clear()
        before, after = self._seen, self._cursor.get()
        if after is before:
            return None
        self._seen = after
        return None if same(before, after) else Change(before, after)

    def wait(
        self, timeout_s: float | None = None, counts: Callable[[Change], bool] = _always
    ) -> Change | None:
        """Return the next change that `counts`; None when there was none in time, or on `close`.

        Units:  timeout_s: seconds, None waits without end.
        Raises: UsageError: the timeout is negative.
        Source: docs/cursors.md "Changes".
        """
        if timeout_s is not None and timeout_s < 0:
            raise UsageError(f"timeout_s is 0 or more seconds, or None, got {timeout_s!r}")
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._closed:
            change = self.poll()
            if change is not None:
                if counts(change):
                    return change
                continue
            if self._ended():
                break  # before the flag was cleared: nobody would set it again
            if deadline is None:
                self._flag.wait()
            elif not self._flag.wait(max(deadline - time.monotonic(), 0.0)):
                return None
        return None

    def _ended(self) -> bool:
        return self._closed

    def on_wake(self, wake: Wake) -> None:
        """Call `wake` too whenever something may have changed, and on `close`.

        It runs in the thread that writes, is quick and does not raise: event loops hand over there.

        Source: docs/cursors.md "Changes".
        """
        self._wakes = (*self._wakes, wake)

    def close(self) -> None:
        """Stop watching; a thread that waits returns. A second call does nothing.

        Source: docs/cursors.md "Changes".
        """
        if not self._closed:
            self._closed = True
            self._end()
            self._wake()

    def _wake(self) -> None:
        self._flag.set()
        for wake in self._wakes:
            wake()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Change:
        change = self.wait()
        if change is None:
            raise StopIteration
        return change

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
