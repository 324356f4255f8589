"""Stream: items that arrive over time, taken with `for`, with `async for`, or by polling.

A stream subscribes to changes of a cursor and looks for items when one happens. It owns no thread
and no file. It clears its flag before it looks, and a change sets the flag after it was made, so
the last change is never missed.

Source: docs/cursors.md "Streams", "Changes"; docs/design/front-door.md "Async and waiting".
"""

from __future__ import annotations

import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from itertools import count
from typing import Final, Generic, NamedTuple, ParamSpec, Protocol, Self, TypeVar

from datalattice.cells import Value, same
from datalattice.cursors.base import Cursor, Wake
from datalattice.errors import UsageError
from datalattice.forking import check_process, freed_in_child, this_process

T = TypeVar("T")
P = ParamSpec("P")


class _Bell:
    """Wakes those who wait for a stream. It has no reference to the stream."""

    def __init__(self) -> None:
        self.flag: Final = freed_in_child(threading.Event())
        self.listeners: tuple[Wake, ...] = ()

    def ring(self) -> None:
        self.flag.set()
        for wake in self.listeners:
            wake()

    def remove(self, wake: Wake) -> None:
        self.listeners = tuple([held for held in self.listeners if held is not wake])


class Listeners(Generic[P]):
    """Functions that are called at an event, in the order in which they were added.

    It has no lock: the garbage collector may end a stream, and its subscription, at any moment.
    """

    def __init__(self) -> None:
        self._held: dict[int, Callable[P, object]] = {}
        self._numbers = count()

    def __bool__(self) -> bool:
        return bool(self._held)

    def add(self, listener: Callable[P, object]) -> Wake:
        """Call `listener` from now on; return a function that ends this."""
        number = next(self._numbers)
        self._held[number] = listener

        def end() -> None:
            self._held.pop(number, None)

        return end

    def tell(self, *args: P.args, **named: P.kwargs) -> None:
        """Call all listeners."""
        # A copy: a listener may end itself or add others.
        for listener in list(self._held.values()):
            listener(*args, **named)


class Source(Protocol):
    """Reports the changes that a stream waits for; most often a cursor."""

    def subscribe(self, wake: Wake) -> Wake:
        """Call `wake` after every change from now on; return a function that ends this."""
        ...


class Stream(ABC, Generic[T]):
    """Items that arrive over time. Use it in `with` or `async with`, or `close` it.

    One thread or task takes the items; any thread may close. An iteration that was left, by `break`
    or because its task was cancelled, can be taken up again.

    wait:    False: iteration ends when there are no more items.
    timeout: iteration ends after this many seconds without a new item; None waits without limit.
    """

    def __init__(self, source: Source, *, wait: bool = True, timeout: float | None = None) -> None:
        if timeout is not None and timeout < 0:
            raise UsageError(f"`timeout` is 0 or more seconds, or None; got {timeout!r}")
        self._pid: Final = this_process.id
        self._waits: Final = wait
        self._timeout: Final = timeout
        self._ready: Final[deque[T]] = deque()
        self._bell: Final = _Bell()
        # A flush goes on in its thread after the task that waited for it was cancelled.
        self._flush_lock: Final = threading.RLock()
        # The source refers to the bell alone, so a stream that is dropped without `close` is
        # collected, and this ends its subscription.
        self._end = weakref.finalize(self, source.subscribe(self._bell.ring))
        self._end.atexit = False

    @abstractmethod
    def _fetch(self) -> Iterable[T]:
        """Return the new items without waiting, possibly none."""

    def _is_flush_due(self, *, idle: bool) -> bool:
        """Return whether to call `_flush` before the next item or, if idle, before waiting."""
        return False

    def _flush(self) -> None:
        """Do the work of the stream that may block: `__anext__` calls it in another thread."""

    def poll(self) -> list[T]:
        """Return the next items without waiting, a few thousand at most."""
        self._check_process()
        items = list(self._ready) if self._refill() else []
        # A stream returns each item once.
        self._ready.clear()
        return items

    def _take_up_to(self, count: int, timeout: float) -> list[T]:
        """Return up to `count` items, waiting up to `timeout` seconds for the first one.

        Raises: UsageError: `count` is less than 1.
        """
        if count < 1:
            raise UsageError(f"`count` is 1 or more, got {count!r}")
        self._check_process()
        # Monotonic: a clock set back must not prolong the wait.
        ends_s = time.monotonic() + timeout
        while True:
            self._bell.flag.clear()  # before looking: an item that comes meanwhile sets it again
            if self._is_flush_due(idle=False):
                self._flush()
            items = self._take_ready(count)
            if items or self.closed or time.monotonic() >= ends_s:
                return items
            # Before waiting: marks of items that are done become durable while there is time.
            if self._is_flush_due(idle=True):
                self._flush()
            self._bell.flag.wait(max(ends_s - time.monotonic(), 0.0))

    def _take_ready(self, count: int) -> list[T]:
        """Return up to `count` items without waiting."""
        items: list[T] = []
        while len(items) < count and self._refill():
            items.append(self._ready.popleft())
        return items

    def on_wake(self, wake: Wake) -> None:
        """Also call `wake` when `poll` may have something new, and on `close`.

        It runs in the writing thread, so it must be quick and not raise.
        """
        self._bell.listeners = (*self._bell.listeners, wake)

    @property
    def closed(self) -> bool:
        """Whether the stream is closed."""
        return not self._end.alive

    def close(self) -> None:
        """End the stream; a waiting thread or task leaves its loop. Closing twice is allowed.

        In a forked child the parent's stream goes on.
        """
        if self._is_inherited:
            self._end.detach()
            return
        self._end()
        # Waiters wake and find the stream closed.
        self._bell.ring()

    @property
    def _is_inherited(self) -> bool:
        """Whether this process is a forked child of the one that began the stream."""
        return self._pid != this_process.id

    def _check_process(self) -> None:
        check_process(self._pid, "a stream that was begun")

    def _refill(self) -> bool:
        if self.closed:
            return False
        if not self._ready:
            self._ready.extend(self._fetch())
        return bool(self._ready)

    def _seconds_left(self, begun_s: float) -> float | None:
        if self._timeout is None:
            return None
        # For each item anew: the timeout is the longest silence, not the length of the iteration.
        return max(begun_s + self._timeout - time.monotonic(), 0.0)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        self._check_process()
        begun_s = time.monotonic()
        while not self.closed:
            # Cleared before looking: a change after this sets it again, so none is missed.
            self._bell.flag.clear()
            if self._is_flush_due(idle=False):
                self._flush()
            if self._refill():
                return self._ready.popleft()
            if self._is_flush_due(idle=True):
                self._flush()
            if not self._waits or self.closed:
                break
            # False: the time is over and nothing changed.
            if not self._bell.flag.wait(self._seconds_left(begun_s)):
                break
        raise StopIteration

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        import asyncio  # noqa: PLC0415 - programs without an event loop do not load it

        self._check_process()
        loop, rung, begun_s = asyncio.get_running_loop(), asyncio.Event(), time.monotonic()

        def wake() -> None:
            # A writer must not fail because the program that waited has ended its loop.
            if not loop.is_closed():
                loop.call_soon_threadsafe(rung.set)

        self.on_wake(wake)
        try:
            while not self.closed:
                # Cleared before looking, as in `__next__`.
                rung.clear()
                if self._is_flush_due(idle=False):
                    await asyncio.to_thread(self._flush)
                if self._refill():
                    return self._ready.popleft()
                if self._is_flush_due(idle=True):
                    await asyncio.to_thread(self._flush)
                if not self._waits or self.closed:
                    break
                try:
                    async with asyncio.timeout(self._seconds_left(begun_s)):
                        await rung.wait()
                except TimeoutError:
                    break
        finally:
            self._bell.remove(wake)
        raise StopAsyncIteration

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        import asyncio  # noqa: PLC0415 - as above

        try:
            if not self.closed and self._is_flush_due(idle=True):
                await asyncio.to_thread(self._flush)
        finally:
            self.close()


class Consuming(Protocol):
    """A named reader. Items that it delivered and that are not marked done are delivered again."""

    def finish(self) -> None:
        """Mark every delivered item as done."""

    def rewind(self) -> None:
        """Deliver the items that are not done again."""


class Taken(list[T], Generic[T]):
    """The items that a consumer's `take` delivered.

    A `with` block without an error marks them done.
    """

    def __init__(self, consumer: Consuming, items: list[T]) -> None:
        super().__init__(items)
        self._consumer: Final = consumer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: type[BaseException] | None, *rest: object) -> None:
        # "They are done when the block ends well" (docs/design/front-door.md "Handles").
        if error is None:
            self._consumer.finish()
        else:
            self._consumer.rewind()


class ValueChange(NamedTuple):
    """The value of a cursor before and after one or more writes."""

    before: Value
    after: Value


class Changes(Stream[ValueChange]):
    """The changes of a cursor's value from now on. Several quick changes may appear as one."""

    def __init__(self, cursor: Cursor, *, wait: bool = True, timeout: float | None = None) -> None:
        super().__init__(cursor, wait=wait, timeout=timeout)
        self._cursor: Final = cursor
        self._seen = cursor.get()

    def _fetch(self) -> list[ValueChange]:
        before, after = self._seen, self._cursor.get()
        self._seen = after
        # A write elsewhere below the root wakes this stream too, so the values are compared.
        return [] if same(before, after) else [ValueChange(before, after)]
