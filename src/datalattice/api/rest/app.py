"""App: the REST door, an ASGI application over a service.

    app = rest_app(service, authenticate)

Every action with a route is served below `/api/v1`. A request is handled in one of a few threads,
because handlers wait for the disk; the event loop only moves bytes.

Source: docs/rest.md.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import count
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, TypeVar, cast
from urllib.parse import unquote

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from datalattice.actions import (
    ACTIONS,
    CELL_FORMAT,
    Action,
    ActionKind,
    ActionRequest,
    DoorStatements,
    GetContent,
    GetFile,
    Route,
    to_document,
    with_resume,
)
from datalattice.api.rest.answers import (
    BASE_PATH,
    document_answer,
    file_answer,
    take_upload,
    value_answer,
)
from datalattice.api.rest.bodies import (
    JSON,
    OCTETS,
    event_id,
    sse_event,
)
from datalattice.api.rest.description import describe, page_of
from datalattice.api.rest.problems import problem_answer, problem_body
from datalattice.api.rest.requests import Arguments, has_body, shown_credentials
from datalattice.api.rest.room import (
    BODIES_BYTES_MAX,
    BODY_BYTES_MAX,
    BodyRoom,
    UnreadBody,
    read_body,
)
from datalattice.client import IDEMPOTENCY_KEY
from datalattice.client.network import WELL_KNOWN
from datalattice.clock import SystemClock
from datalattice.errors import DataLatticeError, Draining, NoSuchPath, UsageError
from datalattice.service import Service, Streamed, Upload
from datalattice.service.access import Credentials, Origin, Principal

T = TypeVar("T")

HEARTBEAT_S: Final = 15.0
"""Longest silence of a stream of events: proxies close connections that are silent for longer."""

_THREADS: Final = 16
"""Most handlers that run at once."""

LOCAL_HOSTS: Final = ("localhost", "127.0.0.1", "[::1]")
"""Accepted names in Host and Origin of a door on a loopback address."""

NO_MOUNTS: Final[Mapping[str, ASGIApp]] = MappingProxyType({})

_log = logging.getLogger(__name__)


Enter = Callable[[Credentials], Principal]
"""A function that authenticates a caller. Raises: Unauthenticated, RateLimited, UsageError."""


def rest_app(
    service: Service,
    enter: Enter,
    *,
    local: Literal["socket"] | None = None,
    hosts: tuple[str, ...] = (),
    body_bytes_max: int = BODY_BYTES_MAX,
    bodies_bytes_max: int = BODIES_BYTES_MAX,
    heartbeat_s: float = HEARTBEAT_S,
    mounts: Mapping[str, ASGIApp] = NO_MOUNTS,
) -> tuple[ASGIApp, RestDoor]:
    """Return the application, and its door.

    enter: authenticates callers. local: `socket`: only our user can open the listener.
    hosts: accepted names in Host and Origin; (): any. body_bytes_max: of one body.
    bodies_bytes_max: of all long bodies that are held at once.
    mounts: further applications of this listener, by the first segment of their paths: `/mcp`.
    """
    door = RestDoor(service, enter, local, body_bytes_max, bodies_bytes_max, heartbeat_s)
    routes = _Routes()
    for action in ACTIONS.values():
        for route in action.routes:
            routes.add(route.target(BASE_PATH), route.verb, _Resource(action, route))
    document = describe(BASE_PATH)
    pages = {
        f"{BASE_PATH}/openapi.json": (json.dumps(document).encode(), JSON),
        f"{BASE_PATH}/": (page_of(document).encode(), "text/html; charset=utf-8"),
    }
    return _RestApplication(door, routes, pages, hosts, mounts), door


class _Routes:
    """Finds a resource by path and verb, in a tree of path segments.

    A list of some sixty patterns would have to be tried one after the other.
    """

    def __init__(self) -> None:
        self._words: dict[str, _Routes] = {}
        self._field: _Routes | None = None
        self._rest: dict[str, _Resource] = {}
        self._verbs: dict[str, _Resource] = {}

    def add(self, template: str, verb: str, resource: _Resource) -> None:
        """Add the resource of a verb; `{field}` is one segment, `{field...}` all that follow."""
        at = self
        for part in template.split("/"):
            if part.endswith("...}"):
                at._rest[verb] = resource
                return
            if part.startswith("{"):
                # Without its name: routes of one shape may name the field differently.
                at._field = at._field or _Routes()
                at = at._field
            else:
                at = at._words.setdefault(part, _Routes())
        at._verbs[verb] = resource

    def find(self, path: str) -> tuple[dict[str, _Resource], tuple[str, ...]]:
        """Return a path's resources by verb, and its fields undecoded; both empty: unknown."""
        return self._found(path.split("/"), 0) or ({}, ())

    def _found(
        self, parts: list[str], at: int
    ) -> tuple[dict[str, _Resource], tuple[str, ...]] | None:
        if at == len(parts):
            return (self._verbs, ()) if self._verbs else None
        # A fixed word wins over a field, and a field over `{field...}`.
        word = self._words.get(parts[at])
        found = None if word is None else word._found(parts, at + 1)
        if found is None and self._field is not None and parts[at]:
            below = self._field._found(parts, at + 1)
            found = None if below is None else (below[0], (parts[at], *below[1]))
        if found is None and self._rest:
            found = (self._rest, ("/".join(parts[at:]),))
        return found


class _RestApplication:
    """The ASGI application: finds the resource of a request by its undecoded path."""

    def __init__(
        self,
        door: RestDoor,
        routes: _Routes,
        pages: dict[str, tuple[bytes, str]],
        hosts: tuple[str, ...],
        mounts: Mapping[str, ASGIApp],
    ) -> None:
        self._door = door
        self._routes = routes
        self._pages = pages
        self._hosts = hosts
        self._mounts = mounts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http", "the server accepts no other kind of connection"
        # Undecoded: an escaped `/` in a name must not split it, and signatures cover the escapes.
        raw: bytes = scope.get("raw_path") or scope["path"].encode()
        scope = {**scope, "path": raw.partition(b"?")[0].decode("latin-1")}
        request = Request(scope, receive)
        if has_body(request):
            body = UnreadBody(request, send)
            receive, send = body.receive, body.send
            request = Request(scope, receive)
        if self._hosts and not self._is_known(request.headers):
            problem = problem_answer(
                UsageError("Host or Origin is not a name of this door (setting `hosts`)"), "w"
            )
            problem.status_code = 421  # "Misdirected Request" (RFC 9110, 15.5.20)
            answer: ASGIApp = problem
        else:
            first = "/".join(scope["path"].split("/", 2)[:2])
            answer = self._mounts.get(first) or await self._answer(request)
        await answer(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        path: str = request.scope["path"]
        verb = "GET" if request.method == "HEAD" else request.method
        if path == WELL_KNOWN and verb == "GET":
            return Response(self._door.statements(), media_type=JSON)
        page = self._pages.get(path)
        if page is not None and verb == "GET":
            return Response(page[0], media_type=page[1])
        resources, fields = self._routes.find(path)
        resource = resources.get(verb)
        if resource is not None:
            names = resource.arguments.route.fields
            request.scope["path_params"] = dict(zip(names, fields, strict=True))
            return await self._door.answer(request, resource)
        # An unknown path is 404; a known one without this verb is 405, with its verbs in `allow`.
        if not resources and page is None:
            return problem_answer(
                NoSuchPath(f"there is no resource {path[:200]}; see {BASE_PATH}/"), "w"
            )
        allowed = ", ".join(resources or ("GET",))
        problem = problem_answer(
            UsageError(f"{request.method} is not supported here; supported: {allowed}"), "w"
        )
        problem.status_code = 405
        problem.headers["allow"] = allowed
        return problem

    def _is_known(self, headers: Headers) -> bool:
        """Return whether Host and Origin name this door.

        A web page whose host name resolves to this machine must not reach it (DNS rebinding).
        """
        origin = headers.get("origin", "")
        # The origin `null`, of a page without one, is no name of this door.
        named = [headers.get("host", ""), *([origin.partition("://")[2]] if origin else [])]
        return all(_name_of(one) in self._hosts for one in named)


def _name_of(host: str) -> str:
    """Return a host without its port."""
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdigit() else host


class _Resource:
    """One action at a route."""

    def __init__(self, action: Action, route: Route) -> None:
        self.action: Final = action
        self.arguments: Final = Arguments(action, route)
        fields = {field.name: field for field in action.result.declared()}
        value = fields.get("value")
        # A value with its hash is answered as the value itself.
        self.is_value: Final = (
            action.kind is ActionKind.QUERY
            and value is not None
            and value.codec is CELL_FORMAT
            and "hash" in fields
        )
        self.is_piece: Final = "data" in fields and "size" in fields
        # A stream of pieces of a file is answered as bytes, not as events.
        self.is_file: Final = self.is_piece and action.kind is ActionKind.STREAM


class _Asked(NamedTuple):
    """One request. caller, known: the caller and the fields of path and query, once proved."""

    request: Request
    resource: _Resource
    shown: Credentials
    caller: Principal | None = None
    known: Mapping[str, Any] = MappingProxyType({})
    body: bytes = b""


class RestDoor:
    """Answers requests. `drain` ends its streams, `close` ends its threads."""

    def __init__(
        self,
        service: Service,
        enter: Enter,
        local: Literal["socket"] | None,
        body_bytes_max: int,
        bodies_bytes_max: int,
        heartbeat_s: float,
    ) -> None:
        self._service = service
        self._enter = enter
        self._local: Final = local
        self._clock: Final = SystemClock()
        self._wakes: Final[set[Callable[[], None]]] = set()
        self.is_draining = False
        self._numbers = count(1)
        self._body_bytes_max = body_bytes_max
        self._room: Final = BodyRoom(bodies_bytes_max)
        self._heartbeat_s = heartbeat_s
        self._pool = ThreadPoolExecutor(_THREADS, "rest")

    def statements(self) -> bytes:
        """Return the node's statements about its doors' certificates, as a document."""
        return json.dumps(to_document(DoorStatements(doors=self._service.doors()))).encode()

    async def answer(self, request: Request, resource: _Resource) -> Response:
        """Answer a request at a resource; never raises."""
        right = resource.action.right
        try:
            return await self._answer(request, resource)
        except ClientDisconnect:
            return Response(status_code=499)  # for the log: the client is gone
        except DataLatticeError as error:
            has_condition = any(one in request.headers for one in ("if-match", "if-none-match"))
            return problem_answer(error, right, if_match=has_condition)
        except Exception as error:  # noqa: BLE001 - our fault ends one request, not the door
            _log.exception("a fault of the service in %s", resource.action.name)
            return problem_answer(error, right)

    async def _answer(self, request: Request, resource: _Resource) -> Response:
        origin = Origin("rest", next(self._numbers))
        asked = _Asked(request, resource, shown_credentials(request, origin, local=self._local))
        if resource.action.kind is ActionKind.UPLOAD or not asked.shown.is_unread:
            return await self._answer_body(asked)
        # "Who asks is known by the head alone" (docs/rest.md): no memory for a stranger's body.
        asked = await self._run(self._proved, asked)
        with self._room.request() as grow:
            body = await read_body(request, self._body_bytes_max, grow)
            return await self._answer_body(asked._replace(body=body))

    async def _answer_body(self, asked: _Asked) -> Response:
        request, resource = asked.request, asked.resource
        if resource.action.kind is ActionKind.UPLOAD:
            begun = partial(self._begin_upload, asked)
            result = await take_upload(request, self._run, begun, asked.shown, self._service)
            return document_answer(resource.action, resource.arguments.route, result)
        if resource.is_file:
            return await self._run(self._file, asked)
        if resource.action.kind is ActionKind.STREAM:
            stream, caller = await self._run(self._begin, asked)
            return StreamingResponse(
                self._events(stream, caller, resource.arguments.route.event),
                media_type="text/event-stream",
                # Tells proxies not to buffer events.
                headers={"cache-control": "no-store", "x-accel-buffering": "no"},
            )
        return await self._run(self._call, asked)

    def _run(self, function: Callable[..., T], *arguments: Any) -> Awaitable[T]:
        return asyncio.get_running_loop().run_in_executor(self._pool, function, *arguments)

    # --- in a thread ---

    def _proved(self, asked: _Asked) -> _Asked:
        """Authenticate the caller, and refuse a call that no body could make allowed."""
        # Authentication first, so that a bad credential learns nothing about the request.
        caller = self._enter(asked.shown)
        path = {name: unquote(text) for name, text in asked.request.path_params.items()}
        arguments = asked.resource.arguments
        known = arguments.head(path, asked.request.query_params.multi_items())
        if asked.shown.is_unread:
            arguments.check_head(known, self._service, caller)
        return asked._replace(caller=caller, known=known)

    def _read(self, asked: _Asked) -> tuple[ActionRequest[Any], Principal]:
        if asked.caller is None:
            asked = self._proved(asked)
        # The signature was checked with the head, which has the digest.
        elif asked.shown.is_signed:
            self._service.check_body(asked.shown, hashlib.sha256(asked.body).digest())
        assert asked.caller is not None
        headers = asked.request.headers
        made = asked.resource.arguments.read(
            asked.known, asked.body, headers.get("content-type", ""), headers.get("if-match", "")
        )
        return made, asked.caller

    def _begin(self, asked: _Asked) -> tuple[Streamed[Any], Principal]:
        made, caller = self._read(asked)
        # A browser that reconnects repeats the URL, with its position in this header.
        token = asked.request.headers.get("last-event-id")
        if token:
            made = with_resume(made, token)
        return self._service.stream(made, caller), caller

    def _begin_upload(self, asked: _Asked) -> Upload[Any]:
        made, caller = self._read(asked)
        # "If-None-Match: *" means that the file must not exist (RFC 9110, 13.1.2).
        if asked.request.headers.get("if-none-match", "").strip() == "*":
            made = replace(cast("Any", made), is_new=True)
        return self._service.upload(made, caller)

    def _file(self, asked: _Asked) -> Response:
        made, caller = self._read(asked)
        assert isinstance(made, (GetFile, GetContent))
        return file_answer(self._service, made, caller, asked.request, self._pool)

    def _call(self, asked: _Asked) -> Response:
        made, caller = self._read(asked)
        request_id = asked.shown.headers.get(IDEMPOTENCY_KEY)
        result = self._service.call(made, caller, request_id=request_id)
        request = asked.request
        if asked.resource.is_value:
            return value_answer(result, request)
        if asked.resource.is_piece and request.headers.get("accept", "").startswith(OCTETS):
            return Response(
                result.data, media_type=OCTETS, headers={"etag": f'"{result.hash.hex()}"'}
            )
        return document_answer(asked.resource.action, asked.resource.arguments.route, result)

    # --- streams ---

    def _idle_s(self, caller: Principal) -> float:
        """Return how many seconds a stream may wait: to the heartbeat or the credential's end."""
        if caller.expires_ms is None:
            return self._heartbeat_s
        left_s = (caller.expires_ms - self._clock.now_ms()) / 1_000
        return min(self._heartbeat_s, max(left_s, 0.0))

    def drain(self) -> None:
        """End the streams. Any thread may call it."""
        self.is_draining = True
        for wake in list(self._wakes):
            wake()

    def close(self) -> None:
        """End the threads, once the server has ended."""
        self._pool.shutdown(wait=False)

    async def _events(
        self, stream: Streamed[Any], caller: Principal, name: str
    ) -> AsyncIterator[bytes]:
        """Yield server-sent events: items as documents, and comments while there are none.

        name: of the events.

        `id` is the resume token of an item. The stream ends with the caller's credential, or when
        the door closes; the last event, `end`, has the reason and the last token.
        """
        loop, rung = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            # Called by writers, which must not fail if this door's loop has ended.
            if not loop.is_closed():
                loop.call_soon_threadsafe(rung.set)

        stream.on_wake(wake)
        self._wakes.add(wake)
        token, end = stream.resume, dict[str, Any](reason="done")
        try:
            # Sent before any item, so that a reader cut off now can resume without a gap.
            yield event_id(token) + b": begun\n\n"
            while not stream.closed:
                rung.clear()
                # In a thread, because it reads from the store.
                items = await loop.run_in_executor(self._pool, stream.take)
                # Checked after `take`, which may wait: no item is sent with an expired credential.
                caller.check_live(self._clock.now_ms())
                if self.is_draining:
                    raise Draining("the service is being stopped")
                if items:
                    yield b"".join(sse_event(item, name) for item in items)
                    token = stream.resume
                    continue
                token = stream.resume
                try:
                    async with asyncio.timeout(self._idle_s(caller)):
                        await rung.wait()
                except TimeoutError:
                    yield event_id(token) + b": alive\n\n"
        except DataLatticeError as error:
            end = {"reason": error.code, **json.loads(problem_body(error, "r")[1])}
        finally:
            self._wakes.discard(wake)
            stream.close()
        yield b"event: end\ndata: " + json.dumps({**end, "resume": token}).encode() + b"\n\n"
