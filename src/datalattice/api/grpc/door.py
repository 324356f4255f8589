"""Door: an asyncio gRPC server for every action of a service.

    door = GrpcDoor(service)
    await door.listen_socket(folder / "grpc.sock")
    ...
    await door.stop()

gRPC passes messages as bytes both ways. Requests are decoded here, so that malformed bytes are the
caller's error. Authentication, decoding, the handler and encoding run in one of a few threads,
because handlers wait for the disk; the event loop only moves bytes.

A waiting stream occupies no thread. Its next items are read when gRPC has accepted the last ones,
so a slow reader costs only its position.

Length: calls, streams and uploads share the threads, the limits and the errors of a door.

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
"""Longest text of an error, in bytes. gRPC sends it in a header, where some bytes take three, and
drops answers with headers longer than 8 kB."""

_REQUEST_BYTES_MAX: Final = PIECE_BYTES_MAX + (1 << 16)
"""Longest message of a caller: a piece of a file, and the fields that name it. gRPC holds messages
in memory before the caller is authenticated, one for each call and stream."""

_ANSWER_BYTES_MAX: Final = 4 << 20
"""Longest message of an answer. Longer data is sent in pieces, by a stream."""

_SOCKET_PATH_BYTES_MAX: Final = 107
"""Longest path of a Unix socket on Linux."""


_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GrpcLimits:
    """Limits of one door.

    threads: handlers that run at once. calls: calls that run or wait for a thread. streams: open
    streams and uploads. request_bytes, answer_bytes: longest message. on_connection: calls and
    streams of one connection. stall_s: longest time in which the reader of a stream accepts
    nothing, or the writer of an upload sends nothing.
    """

    threads: int = 16
    calls: int = 256
    streams: int = 512
    request_bytes: int = _REQUEST_BYTES_MAX
    answer_bytes: int = _ANSWER_BYTES_MAX
    on_connection: int = 128
    stall_s: float = 30.0


GrpcAuthenticate = Callable[[Mapping[str, str], str | None], Principal]
"""A function that authenticates a caller by metadata and address (None: a socket). It may wait for
the disk. Raises: Unauthenticated, RateLimited, UsageError."""


def socket_caller(metadata: Mapping[str, str], _address: str | None) -> Principal:
    """Return the caller of a socket that only our user can open.

    Raises: Unauthenticated: the caller shows a credential, which this socket cannot check.
    """
    # "A credential that is shown and not valid is refused everywhere ... on sockets too".
    if AUTHORIZATION in metadata:
        raise Unauthenticated("this socket accepts no credentials: it belongs to its user")
    return Principal(None, "socket")


@dataclass(slots=True)
class _LastToken:
    """The last resume token of a stream; "": it has none."""

    token: str = ""

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Return the token as metadata."""
        return ((RESUME_KEY, self.token),) if self.token else ()


class _Slots:
    """A limit on how many calls or streams run at once, each in `with`.

    Raises: Backpressure: all slots are in use.
    """

    def __init__(self, most: int, what: str) -> None:
        self._most: Final = most
        self._what: Final = what
        self.used = 0

    def __enter__(self) -> None:
        if self.used >= self._most:
            raise Backpressure(
                f"{self._most} {self._what} are open, as many as this door takes; try again"
            )
        self.used += 1

    def __exit__(self, *exc: object) -> None:
        self.used -= 1


class GrpcDoor:
    """The gRPC door of a service. All methods belong to one event loop.

    authenticate: authenticates callers; by default only a socket can be served.
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
        self._calls: Final = _Slots(self._limits.calls, "calls")
        self._streams: Final = _Slots(self._limits.streams, "streams")

    @property
    def calls(self) -> int:
        """The number of calls that run or wait for a thread."""
        return self._calls.used

    @property
    def streams(self) -> int:
        """The number of open streams."""
        return self._streams.used

    # --- start and stop -------------------------------------------------------------------------

    async def listen_socket(self, path: str | os.PathLike[str]) -> None:
        """Serve on a Unix socket; its folder must be ours, with the mode `FOLDER_MODE`.

        Raises: UsageError: others can enter the folder, or the path is too long. OSError: the
                socket cannot be bound.
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

        key_and_certificate: returns those of TLS, as PEM, for each new connection; None: no TLS.
        The key must not be Ed25519. insecure: whether any address may be without TLS; otherwise
        only a numeric loopback address.
        Raises: UsageError: the door has no `authenticate`, or TLS is needed. OSError: the port
                cannot be bound.
        """
        # `socket_caller` gives the owner's rights, which only the mode of a socket's folder
        # justifies: any process can connect over TCP.
        if self._authenticate is socket_caller:
            raise UsageError("a door on TCP needs `authenticate`: any process can connect to it")
        if key_and_certificate is not None:
            newest = key_and_certificate

            def configuration() -> Any:
                return grpc.ssl_server_certificate_configuration([newest()])

            # Called at each handshake, so that a renewed certificate is used without a restart.
            credentials = grpc.dynamic_ssl_server_credentials(configuration(), configuration)
            return await self._listen(
                lambda server: server.add_secure_port(address, credentials), address
            )
        host = address.rpartition(":")[0].strip("[]")
        # Only numbers count as loopback: a name such as `localhost` may resolve to another address.
        if not insecure and host != "::1" and not host.startswith("127."):
            raise UsageError(f"{address}: tokens would cross the network in the clear; use TLS")
        return await self._listen(lambda server: server.add_insecure_port(address), address)

    async def _listen(self, bind: Callable[[aio.Server], int], where: str) -> int:
        server = aio.server(
            options=(
                ("grpc.max_receive_message_length", self._limits.request_bytes),
                ("grpc.max_concurrent_streams", self._limits.on_connection),
                ("grpc.max_send_message_length", self._limits.answer_bytes),
                # With it a second daemon on the same port would receive half of the calls.
                ("grpc.so_reuseport", 0),
            ),
            # gRPC refuses calls beyond this before it reads their messages.
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
        """Accept no new calls, end the streams, and give calls `grace_s` seconds to finish."""
        self._is_draining = True
        for news in self._waiting:
            news.set()
        if self._server is not None:
            await self._server.stop(grace_s)
        # A handler that still runs finishes in its thread, so its write is complete; its caller
        # gets no answer.
        self._pool.shutdown(wait=False, cancel_futures=True)

    # --- calls ----------------------------------------------------------------------------------

    async def unary(self, action: Action, context: Any) -> bytes:
        """Answer a call of an action that answers once."""
        try:
            # Read before the call takes a slot: a caller that sends slowly holds none.
            data = await self._request(context)
            with self._calls:
                return await self._run(self._call, action, data, *_shown(context))
        except Exception as error:  # noqa: BLE001 - answered to the caller; a fault is logged
            await self._refuse(context, error, action.right)

    async def upload(self, action: Action, context: Any) -> bytes:
        """Answer an upload: its first message has the request's fields, each message has `data`."""
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
                        raise UsageError("the upload has no message; the first has its fields")
                    return await self._run(lambda: made.finish().encode())
                finally:
                    if made is not None:
                        # Shielded, so that the pieces are freed also if the caller leaves.
                        await asyncio.shield(asyncio.ensure_future(self._run(made.close)))
        except Exception as error:  # noqa: BLE001 - answered to the caller; a fault is logged
            await self._refuse(context, error, action.right)

    async def _request(self, context: Any) -> bytes:
        """Return the one message of a call. Raises: UsageError: it has none. Timeout."""
        data = await self._next(context)
        if data is None:
            raise UsageError("the call has no message")
        return data

    async def _next(self, context: Any) -> bytes | None:
        """Return the caller's next message, None at the end. Raises: Timeout: none came."""
        try:
            async with asyncio.timeout(self._limits.stall_s):
                # Everything awaited from gRPC is shielded: see `GrpcLoop`.
                data = await asyncio.shield(context.read())
        except TimeoutError:
            raise Timeout(f"the caller sent nothing for {self._limits.stall_s} s") from None
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
        # Checked here, so that the error names size and limit; gRPC's own names neither.
        if len(answer) > self._limits.answer_bytes:
            raise LimitExceeded(
                f"the answer has {len(answer)} bytes, {self._limits.answer_bytes} at most over "
                "gRPC; ask for less, or ask over REST"
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
        """Run `serve` as one of the door's streams; answer its errors."""
        try:
            with self._streams:
                await serve()
        except Exception as error:  # noqa: BLE001 - answered to the caller; a fault is logged
            await self._refuse(context, error, right, last.metadata())

    async def _pump(
        self,
        begin: Callable[[], tuple[Streamed[Any], Principal]],
        context: Any,
        last: _LastToken,
    ) -> None:
        """Begin a stream in a thread, and send its items until it ends."""
        opening = asyncio.ensure_future(self._run(begin))
        try:
            stream, caller = await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_close_begun)  # its thread runs on: close the stream then
            raise
        loop, news = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            # Called by writers, which must not fail if this door's loop has ended.
            if not loop.is_closed():
                loop.call_soon_threadsafe(news.set)

        stream.on_wake(wake)
        self._waiting.add(news)
        last.token = stream.resume
        try:
            # Sent before any item, so that a reader cut off now can resume without a gap.
            await asyncio.shield(context.send_initial_metadata(last.metadata()))
            while not stream.closed:
                if self._is_draining:
                    raise Draining("the service is being stopped")
                # Cleared before `take`: a change after it sets the event again, so none is missed.
                news.clear()
                items = await self._run(
                    lambda: [(one.encode(), getattr(one, "resume", "")) for one in stream.take()]
                )
                # Checked after `take`, which may wait: no item is sent with an expired credential.
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
            raise Timeout(f"the reader accepted nothing for {self._limits.stall_s} s") from None
        except aio.InternalError as gone:
            # gRPC raises this if the caller has left: the call counts as cancelled.
            raise asyncio.CancelledError from gone

    async def _until(self, news: asyncio.Event, caller: Principal) -> None:
        """Wait for news, at most until the caller's credential expires, which raises."""
        left_s = None
        if caller.expires_ms is not None:
            left_s = max(0, caller.expires_ms - self._clock.now_ms()) / 1_000
        try:
            async with asyncio.timeout(left_s):
                await news.wait()
        except TimeoutError:
            caller.check_live(self._clock.now_ms())

    async def reflect(self, _requests: Any, context: Any) -> None:
        """Answer the reflection requests of a client."""
        metadata, address = _shown(context)

        def answer(data: bytes) -> bytes:
            # For each request: the credential may end, or the rules change, during the stream.
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
        """End a call with an error. also: further trailing metadata."""
        # The call was aborted already; a second `abort` would replace its error.
        if isinstance(error, aio.AbortError):
            raise error
        if not isinstance(error, DataLatticeError):
            _log.error("a call by gRPC failed", exc_info=error)
        code, text, status = answer_to(error, right)
        trailing = [(CODE_KEY, code), *also]
        if status.retry_s is not None:
            trailing.append((RETRY_KEY, str(round(status.retry_s * 1_000))))
        # Headers are limited in bytes, so the text is cut there, without half a character.
        short = text.encode(errors="replace")[:_TEXT_BYTES_MAX].decode(errors="ignore")
        await context.abort(grpc.StatusCode[status.grpc], short, tuple(trailing))
        raise AssertionError("abort raises")


def _socket_target(path: str | os.PathLike[str]) -> str:
    """Return gRPC's target for a socket path. Raises: as `listen_socket`."""
    found = Path(path).absolute()
    if len(os.fsencode(found)) > _SOCKET_PATH_BYTES_MAX:
        raise UsageError(
            f"the path of a socket has at most {_SOCKET_PATH_BYTES_MAX} bytes, got {found}"
        )
    about = found.parent.stat()
    # gRPC makes the socket with the umask's mode and does not identify callers, so only the folder
    # keeps others out.
    mode = stat.S_IMODE(about.st_mode)
    if mode != FOLDER_MODE or about.st_uid != os.getuid():
        raise UsageError(
            f"{found.parent}: the folder of a socket is ours with mode 0700, got mode {mode:04o} "
            f"of user {about.st_uid}"
        )
    return f"unix:{found}"


class GrpcLoop(asyncio.SelectorEventLoop):
    """An event loop in which `grpc.aio` leaks no memory for callers that leave.

    gRPC frees a batch of operations only if its end is awaited and is not a failure; otherwise a
    request leaks 100 bytes, and an item of a stream 400 (grpc/grpc issue 43360). So the door
    shields everything that it awaits from gRPC, and a failed batch ends like a successful one: its
    message is missing, and gRPC reports the cancelled call by another batch.
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
        """Return the handler of a method; None makes gRPC answer UNIMPLEMENTED."""
        return self._known.get(details.method)


def _handler(door: GrpcDoor, action: Action) -> Any:
    # Without functions to decode and encode, gRPC passes bytes: an error in such a function would
    # reach the caller as UNKNOWN. All handlers are `stream_*`, so that the door itself reads the
    # request, shielded: see `GrpcLoop`.
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
    """Return the caller's text metadata, and its address; None: a socket."""
    metadata: dict[str, str] = {}
    for key, value in context.invocation_metadata() or ():
        if isinstance(value, str):
            # Joined, as repeated headers are: two credentials must not pass as one.
            metadata[key] = f"{metadata[key]}, {value}" if key in metadata else value
    kind, _, rest = unquote(context.peer()).partition(":")
    if kind == "unix":
        return metadata, None
    return metadata, rest.rpartition(":")[0].strip("[]")
