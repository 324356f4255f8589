"""Room: reads bodies of requests into memory, within a limit for all of them.

    room = BodyRoom(BODIES_BYTES_MAX)
    with room.request() as grow:
        body = await read_body(request, BODY_BYTES_MAX, grow)

Files are not read here: they are stored as they arrive. A request that is refused by its head is
answered before its body arrives; `UnreadBody` closes such a connection without losing the answer.
Source: docs/rest.md "Requests".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from starlette.requests import Request
from starlette.types import Message, Receive, Send

from datalattice.api.rest.requests import declared_length
from datalattice.errors import Backpressure, LimitExceeded
from datalattice.limits import MESSAGE_BYTES_MAX

BODY_BYTES_MAX: Final = MESSAGE_BYTES_MAX
"""Longest body, in bytes."""

BODIES_BYTES_MAX: Final = 256 * 1024 * 1024
"""Most bytes of bodies that a door holds at once, counting those above `SMALL_BODY_BYTES`."""

SMALL_BODY_BYTES: Final = 64 * 1024
"""Size up to which a body is not counted, so that others' long bodies never block small ones."""

DRAINED_BYTES_MAX: Final = BODY_BYTES_MAX
DRAINED_S_MAX: Final = 2.0
"""Most bytes and seconds of a refused request's body that are read and dropped, so that a client
that sends its whole body before it reads gets the answer."""

LONGER_BODY: Final = "large content goes as a file of up to 4 GiB: PUT /drives/{drive}/files/{path}"


class BodyRoom:
    """The memory for the long bodies of one door. For one event loop."""

    def __init__(self, most: int) -> None:
        self._most: Final = most
        self._held = 0

    @contextmanager
    def request(self) -> Iterator[Callable[[int], None]]:
        """Yield a function that reserves room for a body; call it with the size as it grows.

        Raises, from that function: Backpressure: other bodies take the room.
        """
        held = 0

        def grow(size: int) -> None:
            nonlocal held
            # From its first byte, once it is longer than a small one.
            more = size - held if size > SMALL_BODY_BYTES else 0
            if self._held + more > self._most:
                raise Backpressure(
                    f"bodies of other requests fill the {self._most} bytes of this door; try "
                    f"again; a body of up to {SMALL_BODY_BYTES} bytes always has room"
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
    """Return the body. grow: called with its size as it grows; it may raise.

    Raises: LimitExceeded: the body has more than `most` bytes.
    """
    declared = declared_length(request) or 0
    # Refused by its declared length, before a byte of the body is read.
    if declared > most:
        raise LimitExceeded(f"a body has at most {most} bytes, got {declared}; {LONGER_BODY}")
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > most:
            raise LimitExceeded(f"a body has at most {most} bytes; {LONGER_BODY}")
        grow(size)
        parts.append(part)
    return b"".join(parts)


class UnreadBody:
    """Receives and sends for a request whose body may be unread when it is answered.

    Closing a connection with unread bytes resets it, and the caller may lose the answer. So uvicorn
    reads the rest of a short body and keeps the connection; of a longer body a limited part is read
    here, and then the connection is closed.
    """

    def __init__(self, request: Request, send: Send) -> None:
        declared = declared_length(request)
        # A caller that waits for `100 Continue` need not send its body after another answer.
        self._is_short: Final = (
            declared is not None
            and declared <= SMALL_BODY_BYTES
            and "expect" not in request.headers
        )
        self._from_caller: Final[Receive] = request.receive
        self._to_caller: Final = send
        self._is_read = False
        self._is_ending = False

    async def receive(self) -> Message:
        """Return the next part of the body."""
        message = await self._from_caller()
        self._is_read = not message.get("more_body", False)
        return message

    async def send(self, message: Message) -> None:
        """Send a part of the answer."""
        if message["type"] == "http.response.start" and not (self._is_read or self._is_short):
            names = [name.lower() for name, _ in message["headers"]]
            # Without a length only the last part shows the end, so it is sent at once.
            self._is_ending = b"content-length" in names
            message = {**message, "headers": [*message["headers"], (b"connection", b"close")]}
        elif self._is_ending and not message.get("more_body", False):
            await self._to_caller({**message, "more_body": True})
            await self._drain()
            message = {"type": "http.response.body", "body": b""}
        await self._to_caller(message)

    async def _drain(self) -> None:
        size = 0
        try:
            async with asyncio.timeout(DRAINED_S_MAX):
                while not self._is_read and size <= DRAINED_BYTES_MAX:
                    size += len((await self.receive()).get("body", b""))
        except TimeoutError:
            return  # the caller is too slow, and may lose the answer
