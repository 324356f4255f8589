"""Tools: actions as a language model calls them, with JSON in and out.

    tools = McpTools(service, "read")
    tools.call("kv_get", {"database": "shop", "key": "tea"}, caller)

A model reads text and pays for each character, so bytes that are UTF-8 are shown as text, an answer
has a bound, and what is larger is named by its hash.

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
"""Which tools a model has: those that change nothing, or also those that write."""

RESULT_CHARACTERS_MAX: Final = 1 << 20
"""Longest JSON text of one answer."""

RESULT_DEPTH_MAX: Final = 100
"""Levels of arrays and objects in one answer: readers of JSON have such a bound, too."""

RESOURCE_CHARACTERS_MAX: Final = 16 << 20
"""Longest JSON text, and most bytes, of one resource."""

OPERATION_PREFIX: Final = "op_"
"""How the names of tools begin that are operations of the venue."""

TOOL_NAME_MAX: Final = 64
"""Characters of a tool's name: clients take no longer ones."""

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
    """What a tool says. link: the URI of the whole, where the document has only its beginning."""

    document: dict[str, Any]
    is_error: bool = False
    link: str | None = None


class ToolResource(NamedTuple):
    """What a resource holds: a JSON text, or bytes in base64."""

    text: str | None
    blob: str | None


class McpTool:
    """One action as a tool. name: as clients allow it, `kv_get`."""

    def __init__(self, action: Action) -> None:
        self.action: Final = action
        self.name: Final = action.name.replace(".", "_")
        fields = {field.name: field for field in action.request.declared()}
        body = fields.get("" if action.route is None else action.route.body)
        # Bytes without a format are content: a model writes and reads text.
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
            # What stands in the path of a URL as one segment is always needed.
            needed = re.findall(r"\{(\w+)\}", route.path)
            made["required"] = [*needed, *([route.body] if route.body else [])]
        if definitions:
            made["$defs"] = definitions
        return made

    def request(self, arguments: Mapping[str, Any]) -> ActionRequest[Any]:
        """Return the request of a call. Raises: UsageError: an argument is wrong or lacking."""
        # Models write null for what they leave out.
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
            raise UsageError(f"{where}: the text has half a character: {error.reason}") from error
    if isinstance(document, dict) and list(document) == [_BLOB]:
        return document[_BLOB]  # type: ignore[no-any-return] # checked as hex by its format
    raise UsageError(f'{where} is a text, or {{"{_BLOB}": "hex"}} for bytes')


class OperationTool(NamedTuple):
    """An operation of the venue as a tool. path: in the catalogue. schema: of its input."""

    name: str
    path: str
    description: str
    schema: dict[str, Any]


def _operation_tool(offered: OfferedOperation) -> OperationTool | None:
    """Return an operation as a tool; None if its input is not an object, as arguments are."""
    schema: Any = to_document(offered).get("input")
    if not isinstance(schema, dict):
        schema = {"type": "object"}
    if schema.setdefault("type", "object") != "object":
        return None
    words = offered.path.removeprefix("v/ops/")
    name = OPERATION_PREFIX + re.sub(r"[^A-Za-z0-9]+", "_", words)
    text = f"{offered.name}. {offered.description}".strip(". ")
    text = f"{text or words}. Runs the operation {offered.path} of the venue as a job."
    return OperationTool(name[:TOOL_NAME_MAX], offered.path, text, schema)


def _job_answer(record: JobRecord) -> ToolAnswer:
    """Return the output of a job, or its id while it goes on."""
    job = {"job": record.id.hex(), "status": record.status}
    if record.status == "COMPLETE":
        return ToolAnswer({**job, "output": CELL_FORMAT.document(record.output)})
    if record.status in TERMINAL:
        error = {"code": OperationFailed.code, "error": record.error, **job}
        return ToolAnswer(error, is_error=True)
    waits = f"; it asks: {record.message}" if record.message else ""
    return ToolAnswer({**job, "note": f"the job goes on: venue_job tells its state{waits}"})


class McpTools:
    """The tools and resources of a service. Any thread may call them, and waits for the disk."""

    def __init__(self, service: Service, tools: ToolSet = "read") -> None:
        """tools: `read` for those that change nothing, `all` for those that write, too."""
        self.service: Final = service
        self._has_operations: Final = tools == "all"  # a job is an effect
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
            return {}  # no venue runs here, or not for this caller
        found: dict[str, OperationTool] = {}
        for one in map(_operation_tool, offered):
            if one is not None:
                found.setdefault(one.name, one)
        return found

    def _run(self, name: str, arguments: Mapping[str, Any], caller: Principal) -> ToolAnswer:
        try:
            operation = self.operations(caller).get(name)
            if operation is None:
                return _refused(UsageError(f"there is no operation {name[:80]!r}; list the tools"))
            document = {"operation": operation.path, "input": dict(arguments), "wait": True}
            request = from_document(InvokeOperation, document)
            answer = _job_answer(self.service.call(request, caller))
            _check_size(answer.document)
        except Exception as error:  # noqa: BLE001 - a fault of ours ends one call, not the session
            return _refused(error, "x", name)
        return answer

    def call(self, name: str, arguments: Mapping[str, Any], caller: Principal) -> ToolAnswer:
        """Return what a tool answers; never raises: a model reads what was wrong."""
        if name.startswith(OPERATION_PREFIX):
            return self._run(name, arguments, caller)
        tool = self.tools.get(name)
        if tool is None:
            known = ", ".join(self.tools)
            return _refused(UsageError(f"there is no tool {name[:80]!r}; there are: {known}"))
        try:
            return _answer(self.service.call(tool.request(arguments), caller))
        except Exception as error:  # noqa: BLE001 - a fault of ours ends one call, not the session
            return _refused(error, tool.action.right, name)

    def read(self, uri: str, caller: Principal) -> ToolResource:
        """Return the value that a URI names, `lattice://value/HASH` or `lattice://path/PATH`.

        Raises: UsageError: the URI is malformed. LimitExceeded: it is too long. What
                `values.get` and `lattice.get` raise.
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
            # A resource is read as a whole, so it has a limit where REST has ranges.
            if len(value) > RESOURCE_CHARACTERS_MAX:
                raise LimitExceeded(f"the blob has {len(value)} bytes: read it over REST")
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
    # "More than 100 levels" (docs/mcp.md): clients that read JSON by recursion would end at it.
    if not _is_shallow(document):
        raise LimitExceeded(
            f"a value in the answer is nested deeper than {RESULT_DEPTH_MAX} levels"
        )


def _is_shallow(document: object) -> bool:
    level: list[Any] = [document]
    for _ in range(RESULT_DEPTH_MAX):
        inside = [one.values() if isinstance(one, dict) else one for one in level]
        level = [one for items in inside for one in items if isinstance(one, (dict, list))]
        if not level:
            return True
    return False


def _content(piece: Any) -> dict[str, Any]:
    """Return the bytes of a piece of a file as text if they are; `next` is where more begins."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        # A character that the end of the piece cuts belongs to the next one.
        text = decoder.decode(piece.data)
        shown: dict[str, Any] = {"data": text}
        end = piece.start + len(piece.data) - len(decoder.getstate()[0])
    except UnicodeDecodeError:
        # Not UTF-8: bytes in hex lose nothing, and a model can hand them back as they are.
        shown = {"data": {_BLOB: piece.data.hex()}}
        end = piece.start + len(piece.data)
    if piece.start < end < piece.size:
        shown["next"] = end
    return shown


def _value_answer(result: Any) -> ToolAnswer:
    """Return a value, or what is known of one that is too long."""
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
    # A long value would fill the memory of a language model: it gets the beginning and a link.
    document["beginning"] = render(result.value)
    document["note"] = "the value is too long, or too deep: read its parts by their paths"
    return ToolAnswer(document, link=f"{VALUE_URI}{hash}")


class _Full(Exception):
    """A text has become longer than is wanted."""


class _Bounded:
    """A file in memory that takes so many characters."""

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

    Cost: what is read of a longer value is about as much as the bound.
    """
    sink = _Bounded(most)
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
