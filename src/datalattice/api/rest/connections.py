"""Connections: HTTP with limits on the time and memory that a caller can make a connection take.

The parser (llhttp) is strict: it refuses obsolete folding, two lengths, or a length beside chunks.
This module adds the missing limits: time and size of a head, progress of a body, progress of a
reader, and the number of connections. A caller that breaks one loses only its own connection.

Source: docs/rest.md "Bounds".
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Limits of the connections of one listener.

    head_s: longest time for a request's head, from its first byte or the connection's beginning.
    stall_s: longest time in which a body brings nothing, or a reader accepts nothing. head_bytes:
    of the first line and all headers. headers: their number. connections: open at once.
    """

    head_s: float = 10.0
    stall_s: float = 30.0
    head_bytes: int = 65_536
    headers: int = 100
    connections: int = 512


HTTP_LIMITS: Final = HttpLimits()


class RefusedHead(Exception):
    """The head of a request is malformed or too large; the server answers with 400."""


class BoundedHttp(HttpToolsProtocol):
    """One HTTP connection with limits."""

    def __init__(self, limits: HttpLimits, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._limits: Final = limits
        self._head_bytes = 0
        self._is_head = True  # the first head is awaited
        self._is_body = False
        self._heard_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None

    # --- the caller's side ---

    def connection_made(self, transport: Any) -> None:
        """Start the timer of the first head."""
        super().connection_made(transport)
        # "Connections of a listener | 512 | further ones are ended" (docs/rest.md "Bounds").
        if len(self.connections) > self._limits.connections:
            transport.abort()
            return
        self._wait(self._limits.head_s, self._head_is_late)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all timers."""
        self._wait(0, None)
        self.resume_writing()
        # uvicorn keeps the timer of a reset connection, and with it the connection, for 5 s.
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count the bytes of a head, and pass all to the parser."""
        self._heard_s = self.loop.time()
        self._head_bytes += len(data)
        super().data_received(data)
        # The parser itself would buffer an unfinished header of any length.
        if self._is_head and self._head_bytes > self._limits.head_bytes:
            self._refuse(431, f"a head has at most {self._limits.head_bytes} bytes")

    def on_message_begin(self) -> None:
        """Start the timer of a further head."""
        super().on_message_begin()
        self._head_bytes = 0
        if not self._is_head:
            self._is_head = True
            self._wait(self._limits.head_s, self._head_is_late)

    def on_headers_complete(self) -> None:
        """Check the head, and start the timer of the body."""
        self._is_head, self._is_body = False, True
        # Its error goes through the parser, so uvicorn answers and closes the connection.
        self._check_head()
        self._wait(self._limits.stall_s, self._body_is_late)
        super().on_headers_complete()

    def _check_head(self) -> None:
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > self._limits.head_bytes or len(self.headers) > self._limits.headers:
            raise RefusedHead("the head is too large")
        names = [name for name, _ in self.headers]
        # A proxy that reads another length than we do would see other requests (smuggling).
        lengths = names.count(b"content-length")
        if lengths + names.count(b"transfer-encoding") > 1 or names.count(b"host") > 1:
            raise RefusedHead(
                "the head has more than one of Content-Length and Transfer-Encoding, or of Host"
            )

    def on_message_complete(self) -> None:
        """Stop the timer of the body."""
        self._is_body = False
        self._wait(0, None)
        super().on_message_complete()

    # --- times ---

    def _wait(self, seconds: float, late: Any) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if late is None else self.loop.call_later(seconds, late)

    def _head_is_late(self) -> None:
        self._refuse(408, f"the head was not complete within {self._limits.head_s:g} s")

    def _body_is_late(self) -> None:
        left_s = self._heard_s + self._limits.stall_s - self.loop.time()
        # While uvicorn pauses reading, because the service is busy, the caller cannot send.
        if left_s > 0 or self.flow.read_paused:
            self._wait(max(left_s, self._limits.stall_s / 4), self._body_is_late)
        else:
            self._refuse(408, f"no byte of the body came for {self._limits.stall_s:g} s")

    def pause_writing(self) -> None:
        """Start the timer of a reader that accepts nothing."""
        super().pause_writing()
        self._watch_reader()

    def _watch_reader(self) -> None:
        size = self.transport.get_write_buffer_size()

        def late() -> None:
            # "The reader takes something every 30 s" (docs/rest.md "Bounds"), however little.
            if self.transport.get_write_buffer_size() < size:
                self._watch_reader()
            else:
                self.transport.abort()

        self._stalled = self.loop.call_later(self._limits.stall_s, late)

    def resume_writing(self) -> None:
        """Stop the timer of the reader, which has accepted something."""
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None
        super().resume_writing()

    def _refuse(self, status: int, text: str) -> None:
        """Send an answer, unless one has begun, and close the connection."""
        self._wait(0, None)
        if self.transport.is_closing():
            return
        cycle: Any = self.cycle  # None before the first request
        if cycle is not None and not cycle.response_complete and cycle.response_started:
            self.transport.abort()
            return
        body = text.encode()
        self.transport.write(
            b"HTTP/1.1 %d Refused\r\ncontent-type: text/plain; charset=utf-8\r\n"
            b"content-length: %d\r\nconnection: close\r\n\r\n%b" % (status, len(body), body)
        )
        self.transport.close()
