"""Room: bodies of requests in memory, and what all of them may take.

    room = BodyRoom(BODIES_BYTES_MAX)
    with room.request() as grow:
        body = await read_body(request, BODY_BYTES_MAX, grow)

Files do not pass through here: they are stored as they come.
Source: docs/rest.md "Requests".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from starlette.requests import Request

from datalattice.errors import Backpressure, LimitExceeded
from datalattice.limits import MESSAGE_BYTES_MAX

BODY_BYTES_MAX: Final = MESSAGE_BYTES_MAX
"""Bytes of one body."""

BODIES_BYTES_MAX: Final = 256 * 1024 * 1024
"""Bytes of all bodies that a door holds at once, of those longer than `SMALL_BODY_BYTES`."""

SMALL_BODY_BYTES: Final = 64 * 1024
"""A body up to here always has room, so that nobody's long ones keep out ordinary requests."""


class BodyRoom:
    """What the long bodies of one door may take in memory. For one event loop."""

    def __init__(self, most: int) -> None:
        self._most: Final = most
        self._held = 0

    @contextmanager
    def request(self) -> Iterator[Callable[[int], None]]:
        """Give room to the body of one request; the function is told its size, as it grows."""
        held = 0

        def grow(size: int) -> None:
            nonlocal held
            more = size - held if size > SMALL_BODY_BYTES else 0
            if self._held + more > self._most:
                raise Backpressure(
                    f"the bodies of other requests fill the {self._most} bytes that are held at "
                    f"once; a body of up to {SMALL_BODY_BYTES} bytes has room"
                )
            held += more
            self._held += more

        try:
            yield grow
        finally:
            self._held -= held


async def read_body(
    request: Request, most: int, grow: Callable[[int], None] = lambda _size: None
) -> bytes:
    """Return the body. grow: is told its size as it grows, and may refuse it.

    Raises: LimitExceeded: as soon as it is known to be too large.
    """
    declared = request.headers.get("content-length", "0")
    if declared.isdigit() and int(declared) > most:
        raise LimitExceeded(f"a body has at most {most} bytes, got {declared}")
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > most:
            raise LimitExceeded(f"a body has at most {most} bytes")
        grow(size)
        parts.append(part)
    return b"".join(parts)
