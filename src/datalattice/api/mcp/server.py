"""Server: the tools of a service in the Model Context Protocol, over a pipe and over HTTP.

    await serve_stdio(McpTools(service), OPERATOR)  # for the program that started us
    door = McpDoor(McpTools(service))               # or: at `/mcp` of the REST door
    async with door.serving():
        ...

The package `mcp` implements the protocol. Each call runs in one of a few threads, because actions
wait for the disk. Over HTTP each request has its own credential and no session, which another
caller could take over.

Source: docs/mcp.md.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, Final, Literal

import anyio
import mcp_types as types
from anyio import to_thread
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from datalattice.api.mcp.tools import (
    PATH_URI,
    VALUE_URI,
    McpTool,
    McpTools,
    OperationTool,
    ToolAnswer,
    ToolResource,
)
from datalattice.api.rest import (
    BODIES_BYTES_MAX,
    BodyRoom,
    Enter,
    problem_answer,
    read_body,
    shown_credentials,
)
from datalattice.errors import DataLatticeError
from datalattice.service import answer_to
from datalattice.service.access import Origin, Principal
from datalattice.version import VERSION

MCP_REQUEST_BYTES_MAX: Final = 4 << 20
"""Longest request over HTTP: a file of 1 MiB in hex, and as much again for the rest."""

_THREADS: Final = 8
"""Most tools that run at once."""

INSTRUCTIONS: Final = """\
The data of one datalattice folder: topics with records (queue_*), databases with keys (kv_*),
drives with files (drive_*), Weaver stores (stores_*), and the lattice that holds all of these
(lattice_*). Begin with node_status, kv_databases, queue_topics, drive_drives or stores_list to see
what is there. Leave `owner` out for the data of the folder's own owner.
Values are JSON; where JSON lacks a type, an object with one name that begins with $ stands for it:
{"$blob": "00ff"} is bytes. Lists come in pages: the description of the tool says how to ask for
more. An answer with an error has a `code`, and an `error` that says what is wrong."""

CallerOf = Callable[[Any], Principal]
"""A function that returns the sender of an HTTP request; over a pipe the request is None."""


class _Answers:
    """The handlers of a server of the protocol."""

    def __init__(self, tools: McpTools, caller_of: CallerOf) -> None:
        self._tools = tools
        self._caller_of = caller_of
        # A model may call many tools at once, and each waits for the disk in a thread.
        self._threads = anyio.CapacityLimiter(_THREADS)
        self._listed = [_described(tool) for tool in tools.tools.values()]

    async def list_tools(self, ctx: Any, params: Any) -> types.ListToolsResult:
        caller = self._caller_of(ctx.request)
        found = await to_thread.run_sync(self._tools.operations, caller, limiter=self._threads)
        return types.ListToolsResult(tools=[*self._listed, *map(_operation, found.values())])

    async def call_tool(
        self, ctx: Any, params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        caller = self._caller_of(ctx.request)
        answer = await to_thread.run_sync(
            self._tools.call, params.name, params.arguments or {}, caller, limiter=self._threads
        )
        return _result(answer)

    async def list_resources(self, ctx: Any, params: Any) -> types.ListResourcesResult:
        return types.ListResourcesResult(resources=[])

    async def list_templates(self, ctx: Any, params: Any) -> types.ListResourceTemplatesResult:
        return types.ListResourceTemplatesResult(resource_templates=_TEMPLATES)

    async def read_resource(
        self, ctx: Any, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        uri, caller = str(params.uri), self._caller_of(ctx.request)
        try:
            found = await to_thread.run_sync(self._tools.read, uri, caller, limiter=self._threads)
        except DataLatticeError as error:
            answer = answer_to(error)
            # Unlike a tool, a resource can report an error only as one of the protocol.
            raise MCPError(types.INVALID_PARAMS, answer.text, {"code": answer.code}) from None
        return types.ReadResourceResult(contents=[_contents(uri, found)])


def mcp_server(tools: McpTools, caller_of: CallerOf) -> Server[Any]:
    """Return a server of the protocol. caller_of: returns the sender of a request."""
    answers = _Answers(tools, caller_of)
    return Server(
        "datalattice",
        version=VERSION,
        instructions=INSTRUCTIONS,
        on_list_tools=answers.list_tools,
        on_call_tool=answers.call_tool,
        on_list_resources=answers.list_resources,
        on_list_resource_templates=answers.list_templates,
        on_read_resource=answers.read_resource,
    )


def _contents(
    uri: str, found: ToolResource
) -> types.TextResourceContents | types.BlobResourceContents:
    if found.blob is not None:
        return types.BlobResourceContents(
            uri=uri, mime_type="application/octet-stream", blob=found.blob
        )
    assert found.text is not None
    return types.TextResourceContents(uri=uri, mime_type="application/json", text=found.text)


_TEMPLATES: Final = [
    types.ResourceTemplate(
        name="value",
        uri_template=f"{VALUE_URI}{{hash}}",
        description="The value of a hash of 64 hex digits, as marked JSON, or its bytes.",
    ),
    types.ResourceTemplate(
        name="path",
        uri_template=f"{PATH_URI}{{+path}}",
        description="The value at a path of the lattice, such as kv/0x.../value/shop.",
    ),
]


def _described(tool: McpTool) -> types.Tool:
    return types.Tool(
        name=tool.name,
        description=tool.action.doc,
        input_schema=tool.schema,
        annotations=types.ToolAnnotations(
            read_only_hint=tool.is_read_only,
            destructive_hint=not tool.is_read_only,
            idempotent_hint=tool.is_repeatable,
            open_world_hint=False,
        ),
    )


def _operation(tool: OperationTool) -> types.Tool:
    return types.Tool(
        name=tool.name,
        description=tool.description,
        input_schema=tool.schema,
        annotations=types.ToolAnnotations(
            # The worst of each, as what an operation does is not known here; it may call other
            # systems.
            read_only_hint=False,
            destructive_hint=True,
            idempotent_hint=False,
            open_world_hint=True,
        ),
    )


def _result(answer: ToolAnswer) -> types.CallToolResult:
    text = json.dumps(answer.document, ensure_ascii=False)
    # As a text, too, for clients that know no structured content.
    content: list[Any] = [types.TextContent(text=text)]
    if answer.link is not None:
        content.append(types.ResourceLink(name="value", uri=answer.link))
    return types.CallToolResult(
        content=content, structured_content=answer.document, is_error=answer.is_error
    )


async def serve_stdio(tools: McpTools, caller: Principal) -> None:
    """Serve through standard input and output, until the input ends."""
    server = mcp_server(tools, lambda _: caller)
    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())


class McpDoor:
    """The tools over HTTP. `app` returns the application of a listener; `serving` runs them all."""

    def __init__(self, tools: McpTools) -> None:
        # JSON and stateless: each request has one answer and its own credential.
        self._manager: Final = StreamableHTTPSessionManager(
            mcp_server(tools, lambda request: request.state.caller),
            json_response=True,
            stateless=True,
            max_request_body_size=MCP_REQUEST_BYTES_MAX,
        )
        self._numbers: Final = count(1)
        self._room: Final = BodyRoom(BODIES_BYTES_MAX)
        self._service: Final = tools.service

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Serve during the `with` block, in the event loop of the applications."""
        async with self._manager.run():
            yield

    def app(self, enter: Enter, local: Literal["socket"] | None = None) -> ASGIApp:
        """Return the application of a listener; arguments as of `rest_app`."""

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            request = Request(scope, receive)
            if request.method != "POST":
                # GET would open an event stream, DELETE end a session: there are none.
                refused = Response(status_code=405, headers={"allow": "POST"})
                await refused(scope, receive, send)
                return
            with self._room.request() as grow:
                try:
                    caller, body = await self._taken(request, enter, local, grow)
                except ClientDisconnect:
                    return
                except DataLatticeError as error:
                    await problem_answer(error, "w")(scope, receive, send)
                    return
                scope = {**scope, "state": {"caller": caller}}
                await self._manager.handle_request(scope, _again(body, receive), send)

        return answer

    async def _taken(
        self,
        request: Request,
        enter: Enter,
        local: Literal["socket"] | None,
        grow: Callable[[int], None],
    ) -> tuple[Principal, bytes]:
        """Authenticate the caller, then read the body; return both."""
        shown = shown_credentials(request, Origin("mcp", next(self._numbers)), local=local)
        # In a thread, because nonces are written to the disk.
        caller = await to_thread.run_sync(enter, shown)
        body = await read_body(request, MCP_REQUEST_BYTES_MAX, grow)
        if shown.is_unread and shown.is_signed:
            digest = hashlib.sha256(body).digest()
            await to_thread.run_sync(self._service.check_body, shown, digest)
        return caller, body


def _again(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that delivers a body that was read already, then further messages."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return waiting.pop() if waiting else await receive()

    return replay
