"""Results: what every client returns for an action that answers with a stream."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, Self, TypeVar

T_co = TypeVar("T_co", covariant=True)


class ResultStream(Protocol[T_co]):
    """Results that come over time. Use it in `with`, or `close` it, from any thread.

    Iteration waits for each result, raises the service's error as the same class, and ends when the
    stream is closed.
    """

    def __iter__(self) -> Iterator[T_co]: ...

    def close(self) -> None:
        """End it, here and in the service; who waits for it is woken."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
