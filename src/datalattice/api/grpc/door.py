"""Door: an asyncio gRPC server for every action of a service.

    door = GrpcDoor(service)
    await door.listen_socket(folder / "grpc.sock")
    ...
    await door.stop()

gRPC hands over the bytes of a message and takes bytes: requests are decoded here, so that bytes
that are no request are the caller's mistake. Authentication, decoding, the handler and encoding run
in one of a few threads, since handlers wait for the disk; the event loop only moves bytes.

A stream holds no thread while it waits. Its next items are taken when gRPC has accepted the last
one, so a slow reader holds nothing but its position.

Length: calls, streams and uploads share the threads, the room and the errors of a door.

Source: docs/design/service.md; docs/grpc.md.
"""

from __future__ import annotations

import asyncio
import logging
import os
import stat
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar
from urllib.parse import unquote

import grpc
from grpc import aio

from datalattice.actions import ACTIONS, PIECE_BYTES_MAX, Action, ActionKind
from datalattice.api.grpc.reflection import REFLECTION_METHODS, Reflection
from datalattice.client.grpc import (
    AUTHORIZATION,
    CODE_KEY,
    REQUEST_ID_KEY,
    RESUME_KEY,
    RETRY_KEY,
)
from datalattice.clock import Clock, SystemClock
from datalattice.errors import (
    Backpressure,
    DataLatticeError,
    Draining,
    LimitExceeded,
    Timeout,
    Unauthenticated,
    UsageError,
)
from datalattice.service import Service, Streamed, Upload, answer_to
from datalattice.service.access import Principal
from datalattice.store import FOLDER_MODE

T = TypeVar("T")

_TEXT_BYTES_MAX: Final = 2_000
"""Longest text of an error. gRPC sends it in a header, where some bytes take three; it drops
answers whose headers are longer than 8 kB."""

_REQUEST_BYTES_MAX: Final = PIECE_BYTES_MAX + (1 << 16)
"""Longest message of a caller: a piece of a file, and what names it. gRPC keeps messages in memory
before it is known who sends them, as many as there may be calls and streams."""

_ANSWER_BYTES_MAX: Final = 4 << 20
"""Longest message of an answer. What is longer comes in pieces, by a stream."""

_SOCKET_PATH_BYTES_MAX: Final = 107
"""Longest path of a Unix socket on Linux."""


_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GrpcLimits:
    """Bounds of one door.

    threads: handlers that run at once. calls: calls that run or wait for a thread. streams: open
    streams, also those of uploads. request_bytes, answer_bytes: longest message. on_connection:
    calls and streams of one connection. stall_s: longest that a reader of a stream may take
    nothing, and the writer of an upload send nothing.
    """

    threads: int = 16
    calls: int = 256
    streams: int = 512
    request_bytes: int = _REQUEST_BYTES_MAX
    answer_bytes: int = _ANSWER_BYTES_MAX
    on_connection: int = 128
    stall_s: float = 30.0


GrpcAuthenticate = Callable[[Mapping[str, str], str | None], Principal]
"""Returns who asks, from the metadata and the address, which is None for a socket. It may wait for
the disk. Raises: Unauthenticated, RateLimited, UsageError."""


def socket_caller(metadata: Mapping[str, str], _address: str | None) -> Principal:
    """Return the caller of a socket that only our user can open.

    Raises: Unauthenticated: it shows a credential, which nothing here can check.
    """
    # "A credential that is shown and not valid is refused everywhere ... on sockets too".
    if AUTHORIZATION in metadata:
        raise Unauthenticated("this socket takes no credentials: it belongs to its user")
    return Principal(None, "socket")


@dataclass(slots=True)
class _LastToken:
    """The token from which a reader goes on with a stream; "" of a stream without tokens."""

    token: str = ""

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Return the token as metadata."""
        return ((RESUME_KEY, self.token),) if self.token else ()


class _Room:
    """Room for a number of things at once, each in `with`. Raises: Backpressure: it is full."""

    def __init__(self, most: int, what: str) -> None:
        self._most: Final = most
        self._what: Final = what
        self.used = 0

    def __enter__(self) -> None:
        if self.used >= self._most:
            raise Backpressure(f"{self._most} {self._what} are open here; try again")
        self.used += 1

    def __exit__(self, *exc: object) -> None:
        self.used -= 1


class GrpcDoor:
    """The gRPC door of a service. All methods belong to one event loop.

    authenticate: who asks; without it the door is for a socket alone.
    """

    def __init__(
        self,
        service: Service,
        authenticate: GrpcAuthenticate = socket_caller,
        *,
        limits: GrpcLimits | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._service: Final = service
        self._authenticate: Final = authenticate
        self._limits: Final = limits or GrpcLimits()
        self._clock: Final = clock or SystemClock()
        self._pool: Final = ThreadPoolExecutor(self._limits.threads, "grpc-door")
        self._reflection: Final = Reflection(service)
        self._waiting: Final[set[asyncio.Event]] = set()
        self._server: aio.Server | None = None
        self._is_draining = False
        self._calls: Final = _Room(self._limits.calls, "calls")
        self._streams: Final = _Room(self._limits.streams, "streams")

    @property
    def calls(self) -> int:
        """Calls that run or wait for a thread."""
        return self._calls.used

    @property
    def streams(self) -> int:
        """Open streams."""
        return self._streams.used

    # --- start and stop -------------------------------------------------------------------------

    async def listen_socket(self, path: str | os.PathLike[str]) -> None:
        """Serve on a Unix socket; its folder must be ours, with the mode `FOLDER_MODE`.

        Raises: UsageError: the folder is open to others, or the path is too long. OSError.
        """
        target = _socket_target(path)
        await self._listen(lambda server: server.add_insecure_port(target), target)

    async def listen_tcp(
        self,
        address: str,
        key_and_certificate: Callable[[], tuple[bytes, bytes]] | None = None,
        *,
        insecure: bool = False,
    ) -> int:
        """Serve on `host:port` and return the port; port 0 takes a free one.

        key_and_certificate: returns those of TLS, as PEM, for each new connection; the key is not
        Ed25519. insecure: without TLS on any address; else a loopback address given as a number.
        Raises: UsageError: the door has no `authenticate`, or TLS is needed. OSError.
        """
        # `socket_caller` gives all rights of the owner, which the modes of the socket's
        # folder prove. TCP proves nothing.
        if self._authenticate is socket_caller:
            raise UsageError("a door on TCP needs `authenticate`: any process can connect to it")
        if key_and_certificate is not None:
            newest = key_and_certificate

            def configuration() -> Any:
                return grpc.ssl_server_certificate_configuration([newest()])

            # Asked at each handshake: a renewed certificate is in force without a restart.
            credentials = grpc.dynamic_ssl_server_credentials(configuration(), configuration)
            return await self._listen(
                lambda server: server.add_secure_port(address, credentials), address
            )
        host = address.rpartition(":")[0].strip("[]")
        # A name such as `localhost` may resolve to anything, so only loopback addresses as numbers
        # count.
        if not insecure and host != "::1" and not host.startswith("127."):
            raise UsageError(f"{address}: tokens would cross the network in the clear; use TLS")
        return await self._listen(lambda server: server.add_insecure_port(address), address)

    async def _listen(self, bind: Callable[[aio.Server], int], where: str) -> int:
        server = aio.server(
            options=(
                ("grpc.max_receive_message_length", self._limits.request_bytes),
                ("grpc.max_concurrent_streams", self._limits.on_connection),
                ("grpc.max_send_message_length", self._limits.answer_bytes),
                # Else a second daemon on the same port would take half of the calls.
                ("grpc.so_reuseport", 0),
            ),
            # Refused before the message is read; the finer bounds are our own.
            maximum_concurrent_rpcs=self._limits.calls + self._limits.streams,
        )
        server.add_generic_rpc_handlers((_Methods(self),))
        try:
            port = bind(server)
        except RuntimeError as error:
            raise OSError(f"{where}: {error}") from error
        await server.start()
        self._server = server
        return port

    async def stop(self, grace_s: float = 10.0) -> None:
        """Take no new calls, end the streams, and give calls `grace_s` seconds to finish."""
        self._is_draining = True
        for news in self._waiting:
            news.set()
        if self._server is not None:
            await self._server.stop(grace_s)
        # A handler that still runs finishes in its thread: what it writes is whole, and its caller
        # gets no answer.
        self._pool.shutdown(wait=False, cancel_futures=True)

    # --- calls ----------------------------------------------------------------------------------

    async def unary(self, action: Action, context: Any) -> bytes:
        """Answer a call of an action that answers once."""
        try:
            data = await self._request(context)
            with self._calls:
                return await self._run(self._call, action, data, *_shown(context))
        except Exception as error:  # noqa: BLE001 - told to the caller; a fault is logged
            await self._refuse(context, error, action.right)

    async def upload(self, action: Action, context: Any) -> bytes:
        """Answer a call whose request comes in parts: the first has its fields, all have `data`."""
        metadata, address = _shown(context)

        def begin(data: bytes) -> Upload[Any]:
            caller = self._authenticate(metadata, address)
            request: Any = action.request.decode(data)
            made = self._service.upload(request, caller)
            made.write(request.data)
            return made

        def write(data: bytes) -> None:
            part: Any = action.request.decode(data)
            assert made is not None
            made.write(part.data)

        made: Upload[Any] | None = None
        try:
            with self._streams:
                try:
                    while (part := await self._next(context)) is not None:
                        if made is None:
                            made = await self._run(begin, part)
                        else:
                            await self._run(write, part)
                        if self._is_draining:
                            raise Draining("the service is being stopped")
                    if made is None:
                        raise UsageError("an upload has a first message with its fields")
                    return await self._run(lambda: made.finish().encode())
                finally:
                    if made is not None:
                        # Shielded: a caller that goes away must not leave the pieces of its upload
                        # behind.
                        await asyncio.shield(asyncio.ensure_future(self._run(made.close)))
        except Exception as error:  # noqa: BLE001 - told to the caller; a fault is logged
            await self._refuse(context, error, action.right)

    async def _request(self, context: Any) -> bytes:
        """Return the request of a call that has one."""
        data = await self._next(context)
        if data is None:
            raise UsageError("the call has no message")
        return data

    async def _next(self, context: Any) -> bytes | None:
        """Return the next message of the caller, None at the end."""
        try:
            async with asyncio.timeout(self._limits.stall_s):
                # Shielded, as all that is awaited of gRPC: see `GrpcLoop`.
                data = await asyncio.shield(context.read())
        except TimeoutError:
            raise Timeout(f"no message came for {self._limits.stall_s} s") from None
        return None if data is aio.EOF else data

    async def _run(self, function: Callable[..., T], *args: Any) -> T:
        """Run a function in a thread of this door."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, function, *args)

    def _call(
        self, action: Action, data: bytes, metadata: Mapping[str, str], address: str | None
    ) -> bytes:
        caller = self._authenticate(metadata, address)
        request, id = action.request.decode(data), metadata.get(REQUEST_ID_KEY)
        return self._encoded(self._service.call(request, caller, request_id=id).encode())

    def _encoded(self, answer: bytes) -> bytes:
        # Here, so that the caller learns the size and the bound; gRPC would name neither.
        if len(answer) > self._limits.answer_bytes:
            raise LimitExceeded(
                f"the answer has {len(answer)} bytes, {self._limits.answer_bytes} at most over "
                "gRPC; ask for less, or over REST"
            )
        return answer

    # --- streams --------------------------------------------------------------------------------

    async def stream(self, action: Action, context: Any) -> None:
        """Answer a call of an action that answers with a stream."""

        def begin() -> tuple[Streamed[Any], Principal]:
            caller = self._authenticate(metadata, address)
            return self._service.stream(action.request.decode(data), caller), caller

        metadata, address = _shown(context)
        last, data = _LastToken(), b""

        async def serve() -> None:
            nonlocal data
            data = await self._request(context)
            await self._pump(begin, context, last)

        await self._streaming(context, action.right, serve, last)

    async def _streaming(
        self,
        context: Any,
        right: str,
        serve: Callable[[], Coroutine[Any, Any, None]],
        last: _LastToken,
    ) -> None:
        """Serve something that stays open, if there is room for it."""
        try:
            with self._streams:
                await serve()
        except Exception as error:  # noqa: BLE001 - told to the caller; a fault is logged
            await self._refuse(context, error, right, last.metadata())

    async def _pump(
        self,
        begin: Callable[[], tuple[Streamed[Any], Principal]],
        context: Any,
        last: _LastToken,
    ) -> None:
        opening = asyncio.ensure_future(self._run(begin))
        try:
            stream, caller = await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_close_begun)  # the thread cannot be stopped
            raise
        loop, news = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            # A writer must not fail because this door's loop has ended.
            if not loop.is_closed():
                loop.call_soon_threadsafe(news.set)

        stream.on_wake(wake)
        self._waiting.add(news)
        last.token = stream.resume
        try:
            # Before any item: a reader that is cut off now has missed nothing.
            await asyncio.shield(context.send_initial_metadata(last.metadata()))
            while not stream.closed:
                if self._is_draining:
                    raise Draining("the service is being stopped")
                # Cleared before looking: a change after this sets it again, so none is missed.
                news.clear()
                items = await self._run(
                    lambda: [(one.encode(), getattr(one, "resume", "")) for one in stream.take()]
                )
                # After the look: an item is sent only while the credential lives.
                caller.check_live(self._clock.now_ms())
                for item, token in items:
                    await self._write(context, self._encoded(item))
                    last.token = token
                if not items:
                    last.token = stream.resume
                    await self._until(news, caller)
            context.set_trailing_metadata(last.metadata())
        finally:
            self._waiting.discard(news)
            stream.close()

    async def _write(self, context: Any, item: bytes) -> None:
        try:
            async with asyncio.timeout(self._limits.stall_s):
                await asyncio.shield(context.write(item))
        except TimeoutError:
            raise Timeout(f"the reader took nothing for {self._limits.stall_s} s") from None
        except aio.InternalError as gone:
            # gRPC raises this when the caller has left; the call ends as if it were cancelled.
            raise asyncio.CancelledError from gone

    async def _until(self, news: asyncio.Event, caller: Principal) -> None:
        """Wait for news, at most until the caller's credential ends."""
        left_s = None
        if caller.expires_ms is not None:
            left_s = max(0, caller.expires_ms - self._clock.now_ms()) / 1_000
        try:
            async with asyncio.timeout(left_s):
                await news.wait()
        except TimeoutError:
            caller.check_live(self._clock.now_ms())

    async def reflect(self, _requests: Any, context: Any) -> None:
        """Answer what a client asks about the services."""
        metadata, address = _shown(context)

        def answer(data: bytes) -> bytes:
            caller = self._authenticate(metadata, address)
            return self._encoded(self._reflection.answer(data, caller))

        async def serve() -> None:
            while (data := await self._next(context)) is not None:
                await self._write(context, await self._run(answer, data))

        await self._streaming(context, "r", serve, _LastToken())

    # --- errors ---------------------------------------------------------------------------------

    async def _refuse(
        self,
        context: Any,
        error: Exception,
        right: str,
        also: tuple[tuple[str, str], ...] = (),
    ) -> NoReturn:
        """End a call with an error. also: further metadata of its end."""
        # It was ended with an error already; a second `abort` would replace it.
        if isinstance(error, aio.AbortError):
            raise error
        if not isinstance(error, DataLatticeError):
            _log.error("a call by gRPC failed", exc_info=error)
        code, text, status = answer_to(error, right)
        trailing = [(CODE_KEY, code), *also]
        if status.retry_s is not None:
            trailing.append((RETRY_KEY, str(round(status.retry_s * 1_000))))
        # Cut by bytes, since headers are counted in bytes; half a character at the end goes.
        short = text.encode(errors="replace")[:_TEXT_BYTES_MAX].decode(errors="ignore")
        await context.abort(grpc.StatusCode[status.grpc], short, tuple(trailing))
        raise AssertionError("abort raises")


def _socket_target(path: str | os.PathLike[str]) -> str:
    """Return where to listen. Raises: as `listen_socket`."""
    found = Path(path).absolute()
    if len(os.fsencode(found)) > _SOCKET_PATH_BYTES_MAX:
        raise UsageError(
            f"the path of a socket has at most {_SOCKET_PATH_BYTES_MAX} bytes: {found}"
        )
    about = found.parent.stat()
    # gRPC makes the socket with the modes of the umask, and does not say who calls: the folder
    # keeps others out.
    if stat.S_IMODE(about.st_mode) != FOLDER_MODE or about.st_uid != os.getuid():
        raise UsageError(f"{found.parent}: the folder of a socket has the mode 0700 and is ours")
    return f"unix:{found}"


class GrpcLoop(asyncio.SelectorEventLoop):
    """An event loop in which `grpc.aio` frees what it sends and receives for callers that leave.

    It frees a batch of operations only where its end is awaited and is no failure: a request cost
    100 bytes, and an item of a stream 400 (grpc/grpc issue 43360). So the door shields what it
    awaits, and a batch that fails here ends like one that succeeds: a message that was awaited is
    missing, and the call is cancelled, which gRPC tells by a batch of its own.
    """

    def create_future(self) -> asyncio.Future[Any]:
        """Return a future of this loop."""
        return _BatchFuture(loop=self)


class _BatchFuture(asyncio.Future[Any]):
    __slots__ = ()

    def set_exception(self, exception: type[BaseException] | BaseException, /) -> None:
        if isinstance(exception, aio.InternalError) and _FAILED_BATCH in str(exception):
            self.set_result(None)
        else:
            super().set_exception(exception)


_FAILED_BATCH: Final = 'Failed "execute_batch"'


class _Methods(grpc.GenericRpcHandler):  # type: ignore[misc]
    """The methods of a door, by their full names."""

    def __init__(self, door: GrpcDoor) -> None:
        self._known: Final = {f"/{one.method}": _handler(door, one) for one in ACTIONS.values()}
        for method in REFLECTION_METHODS:
            self._known[f"/{method}"] = grpc.stream_stream_rpc_method_handler(door.reflect)

    def service(self, details: Any) -> Any:
        """Return what handles a method; None: UNIMPLEMENTED."""
        return self._known.get(details.method)


def _handler(door: GrpcDoor, action: Action) -> Any:
    # Without functions that decode and encode, gRPC hands over bytes: what its own raise would be
    # UNKNOWN to the caller.
    # The request, too, is read here: gRPC would not shield it. See `GrpcLoop`.
    if action.kind is ActionKind.STREAM:

        async def stream(_requests: Any, context: Any) -> None:
            await door.stream(action, context)

        return grpc.stream_stream_rpc_method_handler(stream)

    answer = door.upload if action.kind is ActionKind.UPLOAD else door.unary

    async def once(_requests: Any, context: Any) -> bytes:
        return await answer(action, context)

    return grpc.stream_unary_rpc_method_handler(once)


def _close_begun(opening: asyncio.Future[tuple[Streamed[Any], Principal]]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result()[0].close()


def _shown(context: Any) -> tuple[dict[str, str], str | None]:
    """Return what a caller shows: its metadata that is text, and its address."""
    metadata: dict[str, str] = {}
    for key, value in context.invocation_metadata() or ():
        if isinstance(value, str):
            # As a header that came twice: two credentials must not look like one.
            metadata[key] = f"{metadata[key]}, {value}" if key in metadata else value
    kind, _, rest = unquote(context.peer()).partition(":")
    if kind == "unix":
        return metadata, None
    return metadata, rest.rpartition(":")[0].strip("[]")
