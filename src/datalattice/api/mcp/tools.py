"""Tools: actions as tools of a language model, with JSON in and out.

    tools = McpTools(service, "read")
    tools.call("kv_get", {"database": "shop", "key": "tea"}, caller)

A model reads text and pays for each character, so UTF-8 bytes are shown as text, answers have a
limit, and a longer value is given as its beginning and its hash.

Source: docs/mcp.md "Answers".
"""

from __future__ import annotations

import base64
import codecs
import json
import logging
import re
from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import unquote

from datalattice.actions import (
    ACTIONS,
    CELL_FORMAT,
    PAGE_MAX,
    Action,
    ActionKind,
    ActionRequest,
    GetPath,
    GetValue,
    InvokeOperation,
    JobRecord,
    ListOperations,
    OfferedOperation,
    from_document,
    schema_of,
    to_document,
)
from datalattice.apps.grid import TERMINAL
from datalattice.cells import Blob, Value, render, write_json
from datalattice.errors import (
    LimitExceeded,
    OperationFailed,
    PeerUnavailable,
    Unauthenticated,
    Unauthorized,
    UnsupportedOperation,
    UsageError,
)
from datalattice.protobuf import Message
from datalattice.service import Service, answer_to
from datalattice.service.access import Principal

ToolSet = Literal["read", "all"]
"""The tools of a model: only those that change nothing, or all."""

RESULT_CHARACTERS_MAX: Final = 1 << 20
"""Longest JSON text of one answer, in characters."""

RESULT_DEPTH_MAX: Final = 100
"""Most levels of arrays and objects in one answer: readers of JSON have a similar limit."""

RESOURCE_CHARACTERS_MAX: Final = 16 << 20
"""Longest JSON text in characters, and most bytes, of one resource."""

OPERATION_PREFIX: Final = "op_"
"""Prefix of the names of tools that run operations of the venue."""

TOOL_NAME_MAX: Final = 64
"""Longest name of a tool that clients accept."""

VALUE_URI: Final = "lattice://value/"
PATH_URI: Final = "lattice://path/"

_BLOB: Final = "$blob"  # as marked JSON writes bytes (docs/json.md)

_BYTES_SCHEMA: Final = {
    "description": 'a text, which is stored as UTF-8, or {"$blob": "hex"} for any bytes',
    "anyOf": [
        {"type": "string"},
        {
            "type": "object",
            "properties": {_BLOB: {"type": "string", "pattern": "^([0-9a-fA-F]{2})*$"}},
            "required": [_BLOB],
            "additionalProperties": False,
        },
    ],
}

_log = logging.getLogger(__name__)


class ToolAnswer(NamedTuple):
    """A tool's answer. link: the URI of the whole value, if the document has its beginning only."""

    document: dict[str, Any]
    is_error: bool = False
    link: str | None = None


class ToolResource(NamedTuple):
    """The content of a resource: a JSON text, or bytes in base64."""

    text: str | None
    blob: str | None


class McpTool:
    """One action as a tool. name: without dots, as clients require: `kv_get`."""

    def __init__(self, action: Action) -> None:
        self.action: Final = action
        self.name: Final = action.name.replace(".", "_")
        fields = {field.name: field for field in action.request.declared()}
        body = fields.get("" if action.route is None else action.route.body)
        # A body of plain bytes is content, which a model writes and reads as text.
        self._bytes: Final = (
            body.name if body is not None and body.kind == "bytes" and body.codec is None else None
        )
        self.schema: Final[dict[str, Any]] = self._schema()

    @property
    def is_read_only(self) -> bool:
        """Whether it changes nothing."""
        return self.action.kind is ActionKind.QUERY

    @property
    def is_repeatable(self) -> bool:
        """Whether two calls have the effect of one."""
        return self.action.kind is not ActionKind.ONCE

    def _schema(self) -> dict[str, Any]:
        """Return the JSON Schema of the arguments, with defaults."""
        request, route = self.action.request, self.action.route
        definitions: dict[str, Any] = {}
        schema_of(request, definitions, "#/$defs/")
        made: dict[str, Any] = definitions.pop(request.full_name.rpartition(".")[2])
        for name, value in to_document(request()).items():
            if value:
                made["properties"][name] = {**made["properties"][name], "default": value}
        if self._bytes is not None:
            made["properties"][self._bytes] = _BYTES_SCHEMA
        if route is not None:
            # A field in a URL's path is always required, as a segment cannot be empty.
            needed = re.findall(r"\{(\w+)\}", route.path)
            made["required"] = [*needed, *([route.body] if route.body else [])]
        if definitions:
            made["$defs"] = definitions
        return made

    def request(self, arguments: Mapping[str, Any]) -> ActionRequest[Any]:
        """Return the request of a call. Raises: UsageError: an argument is wrong or missing."""
        # Models often pass null for an argument that they leave out.
        given = {name: value for name, value in arguments.items() if value is not None}
        lacking = [name for name in self.schema.get("required", ()) if name not in arguments]
        if lacking:
            raise UsageError(f"{self.name} needs {', '.join(lacking)}")
        if self._bytes is not None and self._bytes in given:
            given[self._bytes] = _hex_of(given[self._bytes], self._bytes)
        return from_document(self.action.request, given)


def _hex_of(document: object, where: str) -> str:
    if isinstance(document, str):
        try:
            return document.encode().hex()
        except UnicodeEncodeError as error:
            raise UsageError(f"{where}: the text has a lone surrogate: {error.reason}") from error
    if isinstance(document, dict) and list(document) == [_BLOB]:
        return document[_BLOB]  # type: ignore[no-any-return] # `from_document` checks the hex
    raise UsageError(f'{where} is a text, or {{"{_BLOB}": "hex"}} for bytes')


class OperationTool(NamedTuple):
    """An operation of the venue as a tool. path: its catalogue path. schema: of its input."""

    name: str
    path: str
    description: str
    schema: dict[str, Any]


def _operation_tool(offered: OfferedOperation) -> OperationTool | None:
    """Return an operation as a tool; None if its input is not an object of arguments."""
    schema: Any = to_document(offered).get("input")
    if not isinstance(schema, dict):
        schema = {"type": "object"}
    # "Operations whose input is not an object are left out" (docs/mcp.md).
    if schema.setdefault("type", "object") != "object":
        return None
    words = offered.path.removeprefix("v/ops/")
    name = OPERATION_PREFIX + re.sub(r"[^A-Za-z0-9]+", "_", words)
    text = f"{offered.name}. {offered.description}".strip(". ")
    text = f"{text or words}. Runs the operation {offered.path} of the venue as a job."
    return OperationTool(name[:TOOL_NAME_MAX], offered.path, text, schema)


def _job_answer(record: JobRecord) -> ToolAnswer:
    """Return the output or error of a job; while it runs, its id and status."""
    job = {"job": record.id.hex(), "status": record.status}
    if record.status == "COMPLETE":
        return ToolAnswer({**job, "output": CELL_FORMAT.document(record.output)})
    if record.status in TERMINAL:
        error = {"code": OperationFailed.code, "error": record.error, **job}
        return ToolAnswer(error, is_error=True)
    waits = f"; it asks: {record.message}" if record.message else ""
    return ToolAnswer({**job, "note": f"the job goes on: venue_job shows its state{waits}"})


class McpTools:
    """The tools and resources of a service. Any thread may call them; calls wait for the disk."""

    def __init__(self, service: Service, tools: ToolSet = "read") -> None:
        """tools: `read`: only tools that change nothing; `all`: writing tools too."""
        self.service: Final = service
        self._has_operations: Final = tools == "all"  # running a job is a write
        made = [McpTool(action) for action in ACTIONS.values() if action.is_tool]
        self.tools: Final[Mapping[str, McpTool]] = {
            tool.name: tool for tool in made if tools == "all" or tool.is_read_only
        }

    def operations(self, caller: Principal) -> dict[str, OperationTool]:
        """Return the operations that the caller may see, by the name of the tool."""
        if not self._has_operations:
            return {}
        try:
            offered = self.service.call(ListOperations(count=PAGE_MAX), caller).operations
        except (UnsupportedOperation, PeerUnavailable, Unauthorized, Unauthenticated):
            return {}  # no venue runs here, or this caller may not use it
        found: dict[str, OperationTool] = {}
        for one in map(_operation_tool, offered):
            if one is not None:
                # Two paths may give one name: the first keeps it.
                found.setdefault(one.name, one)
        return found

    def _run(self, name: str, arguments: Mapping[str, Any], caller: Principal) -> ToolAnswer:
        try:
            operation = self.operations(caller).get(name)
            if operation is None:
                return _refused(UsageError(f"there is no operation {name[:80]!r}; list the tools"))
            # "If the job takes longer than 10 s or asks a question, the answer has its id"
            # (docs/mcp.md).
            document = {"operation": operation.path, "input": dict(arguments), "wait": True}
            request = from_document(InvokeOperation, document)
            answer = _job_answer(self.service.call(request, caller))
            _check_size(answer.document)
        except Exception as error:  # noqa: BLE001 - our fault ends one call, not the session
            return _refused(error, "x", name)
        return answer

    def call(self, name: str, arguments: Mapping[str, Any], caller: Principal) -> ToolAnswer:
        """Call a tool; return its answer. Errors are answers too, for the model to read."""
        if name.startswith(OPERATION_PREFIX):
            return self._run(name, arguments, caller)
        tool = self.tools.get(name)
        if tool is None:
            known = ", ".join(self.tools)
            return _refused(UsageError(f"there is no tool {name[:80]!r}; there are: {known}"))
        try:
            return _answer(self.service.call(tool.request(arguments), caller))
        except Exception as error:  # noqa: BLE001 - our fault ends one call, not the session
            return _refused(error, tool.action.right, name)

    def read(self, uri: str, caller: Principal) -> ToolResource:
        """Return the value that a URI names, `lattice://value/HASH` or `lattice://path/PATH`.

        Raises: UsageError: the URI is malformed. LimitExceeded: the value is too long. As
                `values.get` and `lattice.get`.
        """
        if uri.startswith(VALUE_URI):
            request = from_document(GetValue, {"hash": uri.removeprefix(VALUE_URI)})
            value: Value = self.service.call(request, caller).value
        elif uri.startswith(PATH_URI):
            path = unquote(uri.removeprefix(PATH_URI))
            value = self.service.call(GetPath(path=path), caller).value
        else:
            raise UsageError(f"a resource is {VALUE_URI}HASH or {PATH_URI}PATH, got {uri[:80]!r}")
        if isinstance(value, (bytes, Blob)):
            # A resource is read as a whole, without the ranges of REST, so it has a limit.
            if len(value) > RESOURCE_CHARACTERS_MAX:
                raise LimitExceeded(
                    f"the blob has {len(value)} bytes, a resource at most "
                    f"{RESOURCE_CHARACTERS_MAX}: read it over REST"
                )
            return ToolResource(None, base64.b64encode(bytes(value)).decode())
        text = _json_text(value, RESOURCE_CHARACTERS_MAX)
        if text is None:
            raise LimitExceeded(
                "the value is too long for a resource: read its parts by their paths"
            )
        return ToolResource(text, None)


def _answer(result: Message) -> ToolAnswer:
    fields = {field.name: field for field in result.declared()}
    value = fields.get("value")
    if value is not None and value.codec is CELL_FORMAT and "hash" in fields:
        return _value_answer(result)
    document = to_document(result)
    if {"data", "start", "size"} <= fields.keys():
        return ToolAnswer({**document, **_content(result)})
    _check_size(document)
    return ToolAnswer(document)


def _check_size(document: dict[str, Any]) -> None:
    """Raise LimitExceeded for a document that is longer or deeper than an answer may be."""
    length = len(json.dumps(document, ensure_ascii=False))
    if length > RESULT_CHARACTERS_MAX:
        raise LimitExceeded(
            f"the answer has {length} characters, at most {RESULT_CHARACTERS_MAX}: ask for fewer "
            "items (count, limit), or for one of them"
        )
    # "More than 100 levels" (docs/mcp.md): clients that read JSON by recursion would fail.
    if not _is_shallow(document):
        raise LimitExceeded(
            f"a value in the answer is nested deeper than {RESULT_DEPTH_MAX} levels"
        )


def _is_shallow(document: object) -> bool:
    # Level by level: recursion over a deep value would exhaust Python's stack.
    level: list[Any] = [document]
    for _ in range(RESULT_DEPTH_MAX):
        inside = [one.values() if isinstance(one, dict) else one for one in level]
        level = [one for items in inside for one in items if isinstance(one, (dict, list))]
        if not level:
            return True
    return False


def _content(piece: Any) -> dict[str, Any]:
    """Return the bytes of a piece of a file, as text if they are UTF-8; `next`: the next start."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        # A character that is cut at the end belongs to the next piece.
        text = decoder.decode(piece.data)
        shown: dict[str, Any] = {"data": text}
        end = piece.start + len(piece.data) - len(decoder.getstate()[0])
    except UnicodeDecodeError:
        # Not UTF-8: hex keeps every byte, and a model can pass it back unchanged.
        shown = {"data": {_BLOB: piece.data.hex()}}
        end = piece.start + len(piece.data)
    if piece.start < end < piece.size:
        shown["next"] = end
    return shown


def _value_answer(result: Any) -> ToolAnswer:
    """Return a value; of one that is too long or deep, its beginning and its URI."""
    hash = result.hash.hex()
    document = {
        field.name: getattr(result, field.name).hex()
        for field in result.declared()
        if field.name != "value"
    }
    text = _json_text(result.value, RESULT_CHARACTERS_MAX)
    if text is not None:
        shown = {"value": json.loads(text), **document}
        if _is_shallow(shown):
            return ToolAnswer(shown)
    # A long value would fill the model's context, so it gets the beginning and a link.
    document["beginning"] = render(result.value)
    document["note"] = "the value is too long, or too deep: read its parts by their paths"
    return ToolAnswer(document, link=f"{VALUE_URI}{hash}")


class _Full(Exception):
    """A text is longer than its limit."""


class _BoundedText:
    """A text file in memory with a limit on its characters."""

    def __init__(self, most: int) -> None:
        self._room = most
        self.parts: list[str] = []

    def write(self, text: str) -> int:
        self._room -= len(text)
        if self._room < 0:
            raise _Full
        self.parts.append(text)
        return len(text)


def _json_text(value: Value, most: int) -> str | None:
    """Return a value as marked JSON; None if that has more than `most` characters.

    Cost: of a longer value only about `most` characters are written.
    """
    sink = _BoundedText(most)
    try:
        write_json(value, sink)
    except _Full:
        return None
    return "".join(sink.parts)


def _refused(error: Exception, right: str = "r", name: str = "") -> ToolAnswer:
    answer = answer_to(error, right)
    if answer.status.http == 500:
        _log.error("a fault of the service in the tool %s", name, exc_info=error)
    document: dict[str, Any] = {"code": answer.code, "error": answer.text}
    if answer.status.retry_s is not None:
        document["retry_s"] = answer.status.retry_s
    return ToolAnswer(document, is_error=True)
