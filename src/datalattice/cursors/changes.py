"""Changes: waiting for changes of a cursor's value.

A watcher compares the value with the one it saw last, so several quick changes may appear as one.
The last change is never missed: a wake comes after the swap, and the watcher clears its flag before
it reads.

Source: docs/cursors.md "Changes".
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

    Writers are never blocked. Use `with`, or `close` it, to end the subscription. One thread takes
    the changes; any thread may close.
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
            # The cursor could not be read: without this the subscription would stay for ever.
            self._end()
            raise

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def poll(self) -> Change | None:
        """Return the change since the last one returned, None if the value is the same."""
        # Cleared before the read: a swap after the read sets it again, so no change is missed.
        self._flag.clear()
        before, after = self._seen, self._cursor.get()
        if after is before:
            return None
        self._seen = after
        # A write elsewhere below the root wakes, too: only another value counts.
        return None if same(before, after) else Change(before, after)

    def wait(
        self, timeout_s: float | None = None, counts: Callable[[Change], bool] = _always
    ) -> Change | None:
        """Return the next change for which `counts` is true; None after the timeout or `close`.

        Args:   timeout_s: seconds; None waits without limit.
        Raises: UsageError: the timeout is negative.
        """
        if timeout_s is not None and timeout_s < 0:
            raise UsageError(f"timeout_s is not 0 or more seconds, or None: {timeout_s!r}")
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._closed:
            change = self.poll()
            if change is not None:
                # What does not count is skipped; the time limit goes on.
                if counts(change):
                    return change
                continue
            if self._ended():
                break  # closed before poll cleared the flag: it would not be set again
            if deadline is None:
                self._flag.wait()
            elif not self._flag.wait(max(deadline - time.monotonic(), 0.0)):
                return None
        return None

    def _ended(self) -> bool:
        return self._closed

    def on_wake(self, wake: Wake) -> None:
        """Also call `wake` whenever the value may have changed, and on `close`.

        Runs in the writing thread, so it must be quick and not raise: hand over to an event loop.
        """
        self._wakes = (*self._wakes, wake)

    def close(self) -> None:
        """Stop watching; a waiting thread returns. Closing twice is allowed."""
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
