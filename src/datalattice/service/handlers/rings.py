"""Rings: streams of the events in a shared ring. A position is [ring id, number of the event]."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

from datalattice.cells import Value, Vector
from datalattice.cursors import EventRing, EventsMissed, EventStream
from datalattice.errors import StaleToken
from datalattice.protobuf import Message
from datalattice.service.registry import Streamed
from datalattice.service.resuming import not_a_position, read_token, stream_name

T = TypeVar("T")
R = TypeVar("R", bound=Message)


def events_of(
    ring: EventRing[T], request: Any, convert: Callable[[T | EventsMissed], R]
) -> Streamed[R]:
    """Return the events of a ring from now on, or from the token of the request on.

    Raises: StaleToken: the token is of another ring, such as one before a restart. UsageError.
    """
    name = stream_name(request.action.name)
    begins = _number(ring, read_token(request.resume, name)) if request.resume else None
    stream = EventStream(ring, begins)
    return Streamed(
        stream,
        convert,
        name=name,
        positions=_RingPositions(stream),
        is_resumed=bool(request.resume),
    )


def _number(ring: EventRing[Any], position: Value) -> int:
    if not isinstance(position, Vector) or len(position) != 2:
        raise not_a_position(position)
    id, number = position
    if not isinstance(id, bytes) or type(number) is not int:
        raise not_a_position(position)
    if id != ring.id:
        raise StaleToken(
            f"resume: the token is of an earlier start of the node; a fresh start begins {_FRESH}"
        )
    # No event of this ring has had a greater number.
    if not 0 <= number <= ring.after(0)[0]:
        raise not_a_position(position)
    return number


_FRESH: Final = "with the next event"


class _RingPositions:
    """Positions of a stream of events."""

    def __init__(self, stream: EventStream[Any]) -> None:
        self._stream = stream

    def now(self) -> Value:
        """Return the position behind all events read so far."""
        return self._at(self._stream.next)

    def after(self, items: Sequence[object]) -> Iterable[Value]:
        """Yield the position behind each event of the last reading."""
        end = self._stream.next
        return (self._at(end - left) for left in range(len(items) - 1, -1, -1))

    def fresh_start(self) -> str:
        """Return where a fresh start begins, as the end of a sentence."""
        return _FRESH

    def _at(self, number: int) -> Value:
        return Vector.of([self._stream.ring.id, number])
