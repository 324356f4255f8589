"""Results: the streams that clients return for actions with many results."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, Self, TypeVar

T_co = TypeVar("T_co", covariant=True)


class ResultStream(Protocol[T_co]):
    """Results that arrive over time. Use it in `with`, or `close` it, from any thread.

    Iteration waits for each result, raises the service's error as the same class, and ends when the
    stream is closed.
    """

    def __iter__(self) -> Iterator[T_co]: ...

    def close(self) -> None:
        """End the stream, here and in the service; a thread that waits for a result returns."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
