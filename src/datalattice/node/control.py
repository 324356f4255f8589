"""Control: the local socket through which other processes of the owner use a running node.

It takes frames of the node protocol: in a request the name of an action with its protobuf bytes, in
the answer the bytes of the result, or an error's code and text. By its file permissions only the
owner can connect. A stream ends with its connection.

Source: docs/node.md "Control socket".
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import tempfile
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, Self

from datalattice.actions import ActionKind, ActionRequest, NodeEvent, action_named
from datalattice.client import REQUEST_BYTES_MAX, ControlAnswer, ControlRequest
from datalattice.client.settings import NodeConfig
from datalattice.cursors import EventRing, Wake
from datalattice.errors import DataLatticeError, LimitExceeded, PeerError, UsageError
from datalattice.node.systemd import take_socket
from datalattice.protobuf import Message
from datalattice.wire import FRAME_READ_BYTES, FrameBuffer, encode_frame

SOCKET_NAME: Final = "control.sock"
SOCKET_PATH_BYTES_MAX: Final = 100  # sun_path has 104 bytes on macOS and BSD, 108 on Linux
SOCKET_MODE: Final = 0o600  # the owner alone

OFFERED_THREADS: Final = 16
"""Requests that the service does at the same time. It has threads of its own: a request that writes
comes back to the node, and waits for one of the node's threads."""

ACCEPT_TURNS: Final = 4
"""Turns of the event loop until an accepted connection is a client."""


class Acting(Protocol):
    """Does the actions of the requests."""

    async def perform(
        self, request: ActionRequest[Any], caller: str, request_id: str | None
    ) -> Message:
        """Do an action; return its result once it is durable."""

    async def follow(
        self, request: ActionRequest[Any], caller: str
    ) -> AsyncGenerator[Message, None]:
        """Begin a stream, and return its items."""


class OfferedStream(Protocol):
    """Items that a service gives over time."""

    @property
    def closed(self) -> bool:
        """Whether no more items come."""

    def take(self) -> list[Any]:
        """Return the next items; none if none have come yet."""

    def on_wake(self, wake: Wake, /) -> None:
        """Call `wake` when there may be more."""

    def close(self) -> None:
        """End the stream."""


class OfferedService(Protocol):
    """Does the actions for which a node is not needed. Any thread may use it."""

    def call(self, request: ActionRequest[Any], /, *, request_id: str | None = None) -> Message:
        """Do an action; one with the id of an earlier one is not done again."""

    def stream(self, request: ActionRequest[Any], /) -> OfferedStream:
        """Begin a stream."""

    def close(self) -> None:
        """Free its resources."""


class NodeService(OfferedService, Protocol):
    """The service of a running node."""

    @property
    def events(self) -> EventRing[NodeEvent]:
        """The ring to which the node adds its events."""

    def prepare(self, config: NodeConfig, /) -> Callable[[], None]:
        """Read the settings that may change while it runs; return what puts them in force.

        Raises: UsageError: one cannot be used.
        """


class OfferedActions:
    """The actions of a service, done in threads of its own."""

    def __init__(self, service: OfferedService) -> None:
        self._service = service
        self._pool = ThreadPoolExecutor(OFFERED_THREADS, "offered")

    async def _run(self, function: Any, *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._pool, function, *arguments)

    async def perform(
        self, request: ActionRequest[Any], _caller: str, request_id: str | None
    ) -> Message:
        """Do an action. Raises: what the action raises."""
        call = partial(self._service.call, request, request_id=request_id)
        result: Message = await self._run(call)
        return result

    async def follow(
        self, request: ActionRequest[Any], _caller: str = ""
    ) -> AsyncGenerator[Message, None]:
        """Begin a stream, and return its items. Raises: what the action raises."""
        return self._items(await self._run(self._service.stream, request))

    async def _items(self, stream: OfferedStream) -> AsyncGenerator[Message, None]:
        loop, rung = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            # A writer must not fail because this loop has ended.
            if not loop.is_closed():
                loop.call_soon_threadsafe(rung.set)

        stream.on_wake(wake)
        try:
            while not stream.closed:
                # Cleared before looking: a change after this sets it again, so none is missed.
                rung.clear()
                items = await self._run(stream.take)
                for item in items:
                    yield item
                if not items:
                    await rung.wait()
        finally:
            stream.close()

    def close(self) -> None:
        """Free the threads and the resources of the service."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._service.close()


class ControlServer:
    """The listening side, in the node's process. Make it with `start`."""

    def __init__(
        self,
        path: str,
        owned_folder: str | None,
        acting: Acting,
        *,
        is_given: bool = False,
    ) -> None:
        self.path = path
        self._is_given = is_given
        self._owned_folder = owned_folder
        self._acting = acting
        self._server: asyncio.Server | None = None
        self._clients: set[asyncio.Task[None]] = set()

    @classmethod
    async def start(cls, folder: Path, acting: Acting) -> Self:
        """Listen in `folder`, or in a private short folder if its path is too long for a socket.

        The caller holds the store's lock, so a socket that exists already is a dead node's.
        """
        given = take_socket("control")
        if given is None:
            listening, path, owned_folder = bind_socket(folder, SOCKET_NAME)
        else:
            # The service manager keeps it: a client that comes early waits for the node.
            listening, path, owned_folder = given, str(given.getsockname()), None
        control = cls(path, owned_folder, acting, is_given=given is not None)
        try:
            control._server = await asyncio.start_unix_server(
                control._accept, sock=listening, limit=FRAME_READ_BYTES
            )
        except BaseException:
            listening.close()
            raise
        return control

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = asyncio.ensure_future(_serve(reader, writer, self._acting))
        self._clients.add(client)

        def ended(client: asyncio.Task[None]) -> None:
            self._clients.discard(client)
            writer.transport.abort()  # it may have been cancelled before it began

        client.add_done_callback(ended)

    async def close(self) -> None:
        """Accept no more and drop the clients; an operation that has begun may still complete."""
        loop = asyncio.get_running_loop()
        for listening in [] if self._server is None else self._server.sockets:
            loop.remove_reader(listening.fileno())  # none is accepted any more
        # A connection that was just accepted is a client some turns of the loop later. A server
        # that is closed meanwhile would drop it without closing it.
        for _ in range(ACCEPT_TURNS):
            await asyncio.sleep(0)
        if self._server is not None:
            self._server.close()
        for client in list(self._clients):
            client.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)
        await asyncio.sleep(0)  # the turn in which their transports are closed
        if not self._is_given:
            remove_socket(self.path, self._owned_folder)


def bind_socket(folder: Path, name: str) -> tuple[socket.socket, str, str | None]:
    """Return (bound socket, its path, the private folder made for it or None).

    Only our user can open it. If the path is too long, it is in a private short folder.
    """
    path = str(folder.absolute() / name)
    owned_folder = None
    if len(os.fsencode(path)) > SOCKET_PATH_BYTES_MAX:
        owned_folder = _short_folder(path)
        path = str(Path(owned_folder) / name)
    Path(path).unlink(missing_ok=True)  # bind refuses a path that exists
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # Security: set before the path exists, so that no other user can connect at any moment.
        os.fchmod(listening.fileno(), SOCKET_MODE)
        listening.bind(path)
        Path(path).chmod(SOCKET_MODE)
    except OSError as error:
        listening.close()
        if owned_folder is not None:
            remove_socket(path, owned_folder)
        raise UsageError(f"cannot make the socket {path}: {error.strerror}") from error
    return listening, path, owned_folder


def _short_folder(path: str) -> str:
    """Return a new private folder whose path is short enough for a socket in it.

    Raises: UsageError: none can be made.
    """
    reasons: list[str] = []
    for base in (None, "/tmp"):  # noqa: S108 - mkdtemp makes it for us alone
        try:
            made = tempfile.mkdtemp(prefix="lattice-", dir=base)
        except OSError as error:
            reasons.append(str(error))
            continue
        if len(os.fsencode(f"{made}/{SOCKET_NAME}")) <= SOCKET_PATH_BYTES_MAX:
            return made
        Path(made).rmdir()
        reasons.append(f"{made} is too long too")
    raise UsageError(
        f"the path of the socket {path} has more than {SOCKET_PATH_BYTES_MAX} bytes, and "
        f"no short one could be made ({'; '.join(reasons)}): set TMPDIR to a folder with a short "
        "path"
    )


def remove_socket(path: str, owned_folder: str | None) -> None:
    """Remove what `bind_socket` made."""
    Path(path).unlink(missing_ok=True)
    if owned_folder is not None:
        shutil.rmtree(owned_folder, ignore_errors=True)


async def _serve(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, acting: Acting
) -> None:
    """Answer one client, request by request."""
    buffer = FrameBuffer()
    try:
        while data := await reader.read(FRAME_READ_BYTES):
            buffer.feed(data)
            # One request at a time, so answers come in the order of the requests.
            while (payload := buffer.next_payload()) is not None:
                await _Answering(reader, writer, acting).answer(payload)
    except (OSError, PeerError):
        return  # the client disconnected, or does not speak this protocol
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


class _Answering:
    """The answer to one request."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, acting: Acting
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._acting = acting
        self._id = 0  # until the request is decoded

    async def answer(self, payload: bytes) -> None:
        """Do the action of a request, and send its result or error. Raises: OSError: no client."""
        try:
            asked = ControlRequest.decode(payload)
            self._id = asked.id
            action = action_named(asked.action)
            request = action.request.decode(asked.request)
            if action.kind is ActionKind.STREAM:
                await self._stream(await self._acting.follow(request, asked.caller))
            else:
                await self._send(
                    await self._acting.perform(request, asked.caller, asked.request_id)
                )
        except DataLatticeError as error:
            await self._write(ControlAnswer(id=self._id, code=error.code, text=str(error)))

    async def _send(self, result: Message, *, more: bool = False) -> None:
        data = result.encode()
        if len(data) > REQUEST_BYTES_MAX:
            raise LimitExceeded(f"the answer has more than {REQUEST_BYTES_MAX} bytes; ask for less")
        await self._write(ControlAnswer(id=self._id, result=data, more=more))

    async def _write(self, answer: ControlAnswer) -> None:
        self._writer.write(encode_frame(answer.encode()))
        await self._writer.drain()

    async def _stream(self, items: AsyncGenerator[Message, None]) -> None:
        async def pump() -> None:
            async for item in items:
                await self._send(item, more=True)

        await self._write(ControlAnswer(id=self._id, more=True))  # it has begun
        # The client sends nothing more, so this read returns when it disconnects.
        pumping, gone = asyncio.ensure_future(pump()), asyncio.ensure_future(self._reader.read(1))
        try:
            await asyncio.wait([pumping, gone], return_when=asyncio.FIRST_COMPLETED)
            if not pumping.done():
                raise ConnectionResetError("the client has ended the stream")
            await pumping
            await self._write(ControlAnswer(id=self._id))
        finally:
            for task in (pumping, gone):
                task.cancel()
            await asyncio.gather(pumping, gone, return_exceptions=True)
            await items.aclose()
