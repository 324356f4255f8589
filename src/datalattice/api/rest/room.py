"""Room: bodies of requests in memory, and what all of them may take.

    room = BodyRoom(BODIES_BYTES_MAX)
    with room.request() as grow:
        body = await read_body(request, BODY_BYTES_MAX, grow)

Files do not pass through here: they are stored as they come. A request that is refused by its head
is answered while its body is still to come; `UnreadBody` ends such a connection in order.
Source: docs/rest.md "Requests".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from starlette.requests import Request
from starlette.types import Message, Receive, Send

from datalattice.errors import Backpressure, LimitExceeded
from datalattice.limits import MESSAGE_BYTES_MAX

BODY_BYTES_MAX: Final = MESSAGE_BYTES_MAX
"""Bytes of one body."""

BODIES_BYTES_MAX: Final = 256 * 1024 * 1024
"""Bytes of all bodies that a door holds at once, of those longer than `SMALL_BODY_BYTES`."""

SMALL_BODY_BYTES: Final = 64 * 1024
"""A body up to here always has room, so that long ones of others keep no ordinary request out."""

DRAINED_BYTES_MAX: Final = BODY_BYTES_MAX
DRAINED_S_MAX: Final = 2.0
"""How much of a body is thrown away, and for how long, once its request was refused: a client that
sends all of a body before it reads the answer learns why, unless its line is slow."""

LONGER_BODY: Final = "large content goes as a file of up to 4 GiB: PUT /drives/{drive}/files/{path}"


class BodyRoom:
    """What the long bodies of one door may take in memory. For one event loop."""

    def __init__(self, most: int) -> None:
        self._most: Final = most
        self._held = 0

    @contextmanager
    def request(self) -> Iterator[Callable[[int], None]]:
        """Give room to the body of one request; the function takes its size, as it grows."""
        held = 0

        def grow(size: int) -> None:
            nonlocal held
            # Small bodies always have room, so that long uploads do not stop other callers.
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
    """Return the body. grow: called with its size as it grows; may refuse it.

    Raises: LimitExceeded: as soon as it is known to be too large.
    """
    declared = request.headers.get("content-length", "0")
    # Refused by its head, before a byte of the body is read.
    if declared.isdigit() and int(declared) > most:
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

    The server reads the rest of a short body and keeps the connection. It reads a bounded part of a
    longer one and closes the connection then. A connection that is closed with unread bytes is
    reset, and its caller may lose the answer.
    """

    def __init__(self, request: Request, send: Send) -> None:
        declared = request.headers.get("content-length", "")
        # Whoever waits for `100 Continue` and gets an answer instead may leave its body out.
        self._is_short: Final = (
            declared.isdigit()
            and int(declared) <= SMALL_BODY_BYTES
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
            # Without a length the answer ends with its last part, which cannot wait.
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
            return  # it sends nothing: there is nothing to read
