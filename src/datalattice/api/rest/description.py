"""Description: the REST door as OpenAPI 3.1, and as a page for people.

Both are made from the declarations of the actions, so they always agree with what is served.
"""

from __future__ import annotations

import html
from typing import Any, Final

from datalattice.actions import (
    ACTIONS,
    REQUEST_ID_CHARS_MAX,
    Action,
    ActionKind,
    Route,
    field_schema,
    is_plain_text,
    schema_of,
)
from datalattice.api.rest.bodies import JSON, OCTETS, REPRESENTATIONS, TEXTS
from datalattice.api.rest.requests import Arguments
from datalattice.protobuf import FieldInfo
from datalattice.version import VERSION

PROBLEM: Final = "application/problem+json"

_PROBLEM_SCHEMA: Final = {
    "type": "object",
    "required": ["type", "title", "status", "detail", "code"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "code": {"type": "string"},
        "error": {"type": "string"},
        "missing": {"type": "array", "items": {"type": "string"}},
    },
}

_REASONS: Final = {
    400: "the request is malformed",
    401: "the credential is missing or invalid",
    403: "the caller lacks the right for this",
    404: "the resource does not exist, or the caller may not read it",
    406: "none of the accepted media types is available",
    409: "the resource is not in the state that the call expects",
    410: "the requested data was removed",
    412: "the resource is not the version that the call expects",
    413: "the request is too large",
    415: "the media type of the body is unsupported",
    416: "the range begins after the end",
    421: "the Host header names another service",
    422: "cells are missing",
    423: "another caller holds a lock",
    429: "too many calls",
    499: "the caller closed the connection",
    500: "a fault of the service or its store",
    502: "a peer failed",
    503: "the service is busy, stopping or waiting for a peer",
    504: "no answer in time",
    507: "the store is full",
}


def describe(base: str) -> dict[str, Any]:
    """Return the OpenAPI document of all routes below `base`."""
    schemas: dict[str, Any] = {"Problem": _PROBLEM_SCHEMA}
    paths: dict[str, dict[str, Any]] = {}
    for action in ACTIONS.values():
        for number, route in enumerate(action.routes):
            path = route.target(base).replace("...}", "}")
            one = _operation(action, route, schemas)
            if number:
                one["operationId"] += f".{number + 1}"  # OpenAPI requires unique ids
            paths.setdefault(path, {})[route.verb.lower()] = one
    return {
        "openapi": "3.1.0",
        "info": {"title": "datalattice", "version": VERSION},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}
            },
        },
        # The empty one: callers of a socket, or of public data, need no credential.
        "security": [{}, {"bearer": []}],
    }


def _operation(action: Action, route: Route, schemas: dict[str, Any]) -> dict[str, Any]:
    arguments = Arguments(action, route)
    fields = {field.name: field for field in action.request.declared()}
    # "Where the body is one field ..., the other fields are in the query string" (docs/rest.md).
    in_query = not arguments.has_body or arguments.body is not None
    parameters = [_parameter(fields[name], "path", schemas, required=True) for name in route.fields]
    parameters += [
        _parameter(field, "query", schemas)
        for name, field in fields.items()
        if (in_query and name not in route.fields and name != route.body) or name in route.query
    ]
    if action.kind is ActionKind.ONCE:
        schema = {"type": "string", "minLength": 1, "maxLength": REQUEST_ID_CHARS_MAX}
        parameters.append(
            {"name": "Idempotency-Key", "in": "header", "required": False, "schema": schema}
        )
    operation: dict[str, Any] = {
        "operationId": action.name,
        "summary": action.summary,
        "description": action.doc,
        "tags": [action.name.partition(".")[0]],
        "parameters": parameters,
        "responses": {**_success(action, route, schemas), **_failures()},
    }
    if arguments.has_body:
        operation["requestBody"] = _request_body(action, arguments, schemas)
    return operation


def _parameter(
    field: FieldInfo, location: str, schemas: dict[str, Any], *, required: bool = False
) -> dict[str, Any]:
    schema = _field_schema(field, schemas)
    return {"name": field.name, "in": location, "required": required, "schema": schema}


def _field_schema(field: FieldInfo, schemas: dict[str, Any]) -> Any:
    """Return the schema of one field, as in the schema of its message."""
    one = field_schema(field, schemas)
    return {"type": "array", "items": one} if field.repeated else one


def _request_body(action: Action, arguments: Arguments, schemas: dict[str, Any]) -> dict[str, Any]:
    if arguments.is_value:
        # `cells=1` is a form of answers: a body is a complete value.
        content: dict[str, Any] = {kind: {} for kind in REPRESENTATIONS if "cells" not in kind}
    elif arguments.is_octets:
        content = {OCTETS: {}}
    elif arguments.is_text:
        content = {kind: {} for kind in TEXTS}
    elif arguments.body is not None:
        content = {JSON: {"schema": _field_schema(arguments.body, schemas)}}
    else:
        inside = {
            field.name: _field_schema(field, schemas)
            for field in action.request.declared()
            if field.name not in arguments.route.fields
        }
        content = {
            JSON: {
                "schema": {"type": "object", "properties": inside, "additionalProperties": False}
            }
        }
    return {"content": content, "required": arguments.body is not None}


def _success(action: Action, route: Route, schemas: dict[str, Any]) -> dict[str, Any]:
    fields = {field.name: field for field in action.result.declared()}
    if action.kind is ActionKind.STREAM and {"data", "size"} <= fields.keys():
        content: dict[str, Any] = {OCTETS: {"schema": {"type": "string", "format": "binary"}}}
        return {
            "200": {"description": "the file", "content": content},
            "206": {"description": "one range of it", "content": content},
            "304": {"description": "the caller has this version already"},
        }
    if action.kind is ActionKind.STREAM:
        return {
            "200": {
                "description": f"events; the data of each is a {action.result.__name__}",
                "content": {"text/event-stream": {"schema": {"type": "string"}}},
            }
        }
    if not fields or route.success == 204:
        return {"201" if route.success == 201 else "204": {"description": "done"}}
    if action.kind is ActionKind.QUERY and {"value", "hash"} <= fields.keys():
        content = {kind: {} for kind in REPRESENTATIONS}
        answer = {"description": "the value; its hash is in X-Value-Id", "content": content}
        unchanged = {"description": "the caller has this value already"}
        return {"200": answer, "206": answer, "304": unchanged}
    shown = fields.get(route.answer)
    if shown is None:
        content = {JSON: {"schema": schema_of(action.result, schemas)}}
    elif is_plain_text(shown):
        content = {route.media: {}}
    else:
        content = {route.media: {"schema": _field_schema(shown, schemas)}}
    if "data" in fields:
        content[OCTETS] = {}
    answer = {"description": action.result.__doc__ or "", "content": content}
    found = {str(route.success): answer}
    if route.success == 201:
        # Where nothing was made: `document_answer` decides it.
        found["200"] = answer
    return found


def _failures() -> dict[str, Any]:
    content = {PROBLEM: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {
        str(status): {"description": reason, "content": content}
        for status, reason in _REASONS.items()
    }


def page_of(document: dict[str, Any]) -> str:
    """Return the page: each action with its route, description and parameters."""
    rows = []
    for path, operations in document["paths"].items():
        for verb, one in operations.items():
            given = ", ".join(parameter["name"] for parameter in one["parameters"]) or "none"
            rows.append(
                f"<section><h2><code>{verb.upper()} {html.escape(path)}</code></h2>"
                f"<p>{html.escape(one['description'])}</p>"
                f"<p>Parameters: {html.escape(given)}. "
                f"Action <code>{one['operationId']}</code>.</p>"
                "</section>"
            )
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><title>datalattice REST</title>"
        "<style>body{font:16px sans-serif;max-width:50em;margin:2em auto;padding:0 1em}"
        "h2{font-size:1em;margin-top:2em}p{white-space:pre-line}</style>"
        f"<h1>datalattice {html.escape(VERSION)}: REST</h1>"
        '<p>Machine readable: <a href="openapi.json">openapi.json</a>.</p>'
        + "".join(rows)
        + "</html>"
    )
