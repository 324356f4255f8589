"""Views: read-only cursors that apply a function or cache a value for a time.

Source: CAD035 "Time cache", "Transformer", "Views"; docs/cursors.md "Views".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from datalattice.cells import Value, to_cell
from datalattice.clock import Clock, SystemClock
from datalattice.cursors.base import ChangeFunction, Cursor, Watched
from datalattice.errors import ReadOnly, TypeMismatch, UsageError

Transform = Callable[[Value], object]


class View(Cursor):
    """A cursor on a value derived from that of `source`. Every write raises ReadOnly."""

    __slots__ = ("_source",)

    def __init__(self, source: Cursor) -> None:
        if not isinstance(source, Cursor):
            raise TypeMismatch(f"the source of a view is not a Cursor: {type(source).__name__}")
        self._source: Final = source

    def merge(self, value: object) -> Value:
        """Raise ReadOnly."""
        raise self._refusal()

    def _watched(self) -> Watched:
        return self._source._watched()

    def _apply(self, change: ChangeFunction, *, is_checked: bool = False) -> tuple[Value, Value]:
        # A derived value cannot say which source value would give it.
        raise self._refusal()

    def _refusal(self) -> ReadOnly:
        return ReadOnly(f"a {type(self).__name__} is read only: write to its source")


class Transformer(View):
    """A view that applies a function on every read. None and the function's errors pass through."""

    __slots__ = ("_function",)

    def __init__(self, source: Cursor, function: Transform) -> None:
        super().__init__(source)
        if not callable(function):
            raise TypeMismatch(f"a Transformer needs a function, got {type(function).__name__}")
        self._function: Final = function

    def _read(self) -> Value:
        return to_cell(self._function(self._source.get()))


class TimeCache(View):
    """A view that reads its source at most once in `ttl_ms` milliseconds; 0 reads every time.

    Concurrent reads may fetch the source twice.
    """

    __slots__ = ("_cached", "_clock", "_ttl_ms")

    def __init__(self, source: Cursor, ttl_ms: int, clock: Clock | None = None) -> None:
        super().__init__(source)
        if ttl_ms < 0:
            raise UsageError(f"ttl_ms is 0 or more, got {ttl_ms}")
        self._ttl_ms: Final = ttl_ms
        self._clock: Final[Clock] = SystemClock() if clock is None else clock
        self._cached: tuple[int, Value] | None = None

    @property
    def ttl_ms(self) -> int:
        """How long a cached value is valid, in milliseconds."""
        return self._ttl_ms

    @property
    def last_update_ms(self) -> int:
        """Unix milliseconds of the last read of the source, -1 if there is no cached value."""
        cached = self._cached
        return -1 if cached is None else cached[0]

    def has_valid_cache(self) -> bool:
        """Return whether the next read uses the cache."""
        return self._valid(self._cached, self._clock.now_ms())

    def invalidate(self) -> None:
        """Forget the cached value."""
        self._cached = None

    def _read(self) -> Value:
        # Read once: another thread may replace or clear the cache meanwhile.
        cached, now_ms = self._cached, self._clock.now_ms()
        if cached is not None and self._valid(cached, now_ms):
            return cached[1]
        value = self._source.get()
        # One tuple, so that readers in other threads see time and value together.
        self._cached = (now_ms, value)
        return value

    def _valid(self, cached: tuple[int, Value] | None, now_ms: int) -> bool:
        # "`get()` returns the cached value while now < last_update + ttl"; "ttl 0 always
        # refetches".
        return cached is not None and now_ms < cached[0] + self._ttl_ms


def chain(source: Cursor, *functions: Transform) -> Cursor:
    """Return a view that applies the functions in order, the first one first."""
    cursor = source
    for function in functions:
        cursor = Transformer(cursor, function)
    return cursor


def cached_transform(
    source: Cursor, function: Transform, ttl_ms: int, clock: Clock | None = None
) -> TimeCache:
    """Return a view that applies `function` at most once in `ttl_ms` milliseconds."""
    return TimeCache(Transformer(source, function), ttl_ms, clock)
