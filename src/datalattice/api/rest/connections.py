"""Connections: HTTP with bounds on what a caller may keep a connection waiting for.

The parser is strict (llhttp): obsolete folding, two lengths, or a length beside chunks are refused.
Here stand the bounds that it lacks: the time and size of a head, progress of a body, progress of a
reader, the number of connections. What a caller does costs its own connection alone.

Source: docs/rest.md "Bounds".
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Bounds of the connections of one listener.

    head_s: for the head of a request, from its first byte, or from the connection's beginning.
    stall_s: longest that a body may bring nothing, or a reader take nothing. head_bytes: of the
    first line and all headers. headers: how many. connections: at once.
    """

    head_s: float = 10.0
    stall_s: float = 30.0
    head_bytes: int = 65_536
    headers: int = 100
    connections: int = 512


HTTP_LIMITS: Final = HttpLimits()


class RefusedHead(Exception):
    """A head is wrong or too large; its text is the answer."""


class BoundedHttp(HttpToolsProtocol):
    """One connection."""

    def __init__(self, limits: HttpLimits, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._limits: Final = limits
        self._head_bytes = 0
        self._is_head = True  # of the first request, which is awaited
        self._is_body = False
        self._heard_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None

    # --- the caller's side ---

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for a head."""
        super().connection_made(transport)
        if len(self.connections) > self._limits.connections:
            transport.abort()
            return
        self._wait(self._limits.head_s, self._head_is_late)

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing more."""
        self._wait(0, None)
        self.resume_writing()
        # uvicorn leaves the timer of a connection that was reset, and so keeps it for 5 s.
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take bytes of a head or a body."""
        self._heard_s = self.loop.time()
        self._head_bytes += len(data)
        super().data_received(data)
        # A header that has not ended is kept by the parser, however long it is.
        if self._is_head and self._head_bytes > self._limits.head_bytes:
            self._refuse(431, f"a head has at most {self._limits.head_bytes} bytes")

    def on_message_begin(self) -> None:
        """Begin a head."""
        super().on_message_begin()
        self._head_bytes = 0
        if not self._is_head:
            self._is_head = True
            self._wait(self._limits.head_s, self._head_is_late)

    def on_headers_complete(self) -> None:
        """Check the head; its request begins to be answered."""
        self._is_head, self._is_body = False, True
        self._check_head()
        self._wait(self._limits.stall_s, self._body_is_late)
        super().on_headers_complete()

    def _check_head(self) -> None:
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > self._limits.head_bytes or len(self.headers) > self._limits.headers:
            raise RefusedHead("the head is too large")
        names = [name for name, _ in self.headers]
        # Two readers that differ in where a body ends take part of it for another request.
        lengths = names.count(b"content-length")
        if lengths + names.count(b"transfer-encoding") > 1 or names.count(b"host") > 1:
            raise RefusedHead("the head says twice how long the body is, or whom it is for")

    def on_message_complete(self) -> None:
        """Wait for nothing more of this request."""
        self._is_body = False
        self._wait(0, None)
        super().on_message_complete()

    # --- times ---

    def _wait(self, seconds: float, late: Any) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if late is None else self.loop.call_later(seconds, late)

    def _head_is_late(self) -> None:
        self._refuse(408, f"a head comes within {self._limits.head_s:g} s")

    def _body_is_late(self) -> None:
        left_s = self._heard_s + self._limits.stall_s - self.loop.time()
        # While nothing is read, because the service is busy, the caller cannot send more.
        if left_s > 0 or self.flow.read_paused:
            self._wait(max(left_s, self._limits.stall_s / 4), self._body_is_late)
        else:
            self._refuse(408, f"a body brings something within {self._limits.stall_s:g} s")

    def pause_writing(self) -> None:
        """Begin to watch a reader that takes nothing."""
        super().pause_writing()
        self._watch_reader()

    def _watch_reader(self) -> None:
        size = self.transport.get_write_buffer_size()

        def late() -> None:
            if self.transport.get_write_buffer_size() < size:
                self._watch_reader()
            else:
                self.transport.abort()

        self._stalled = self.loop.call_later(self._limits.stall_s, late)

    def resume_writing(self) -> None:
        """Watch no more: the reader has taken something."""
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None
        super().resume_writing()

    def _refuse(self, status: int, text: str) -> None:
        """Answer, if nothing has been answered yet, and end the connection."""
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
