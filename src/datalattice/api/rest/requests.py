"""Requests: makes the request of an action from path, query, headers and body.

Source: docs/rest.md "Requests".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, Literal

from starlette.requests import Request

from datalattice.actions import (
    CELL_FORMAT,
    Action,
    ActionRequest,
    Route,
    from_document,
    is_plain_text,
    read_text,
)
from datalattice.api.rest.bodies import (
    JSON,
    OCTETS,
    TEXTS,
    UnknownType,
    media_type,
    read_body_text,
    read_document,
    read_value,
)
from datalattice.errors import UsageError
from datalattice.protobuf import FieldInfo
from datalattice.service import Service
from datalattice.service.access import Credentials, Origin, Principal

_TAG: Final = re.compile(r'"([^"]*)"')

POSITION_DIGITS_MAX: Final = 20
"""Most digits of a position or length in a file: it has 64 bits."""

_FIELDS_MAX: Final = 1_000
"""Most values in one query string."""


def has_body(request: Request) -> bool:
    """Return whether the request has a body."""
    return (
        "transfer-encoding" in request.headers or request.headers.get("content-length", "0") != "0"
    )


def declared_length(request: Request) -> int | None:
    """Return the Content-Length in bytes; None: it is absent, or other than a decimal number."""
    text = request.headers.get("content-length", "")
    return int(text) if text and _is_position(text) else None


def merged_headers(request: Request) -> dict[str, str]:
    """Return the headers; the values of a repeated one are joined by commas."""
    found: dict[str, str] = {}
    for name, value in request.headers.items():
        # "Both values of a header that came twice, since two credentials must not look like one"
        # (docs/design/access.md).
        found[name] = f"{found[name]}, {value}" if name in found else value
    return found


def shown_credentials(
    request: Request,
    origin: Origin,
    *,
    local: Literal["socket"] | None,
    headers: Mapping[str, str] | None = None,
) -> Credentials:
    """Return the credentials in the head of a request.

    origin: without the address, which is taken from the connection. headers: in place of the
    request's own.
    """
    address = None if request.client is None else request.client.host
    return Credentials(
        request.method,
        # "The URL as the caller wrote it, percent-escapes included, since it is signed"
        # (docs/design/access.md).
        str(request.url),
        merged_headers(request) if headers is None else headers,
        is_unread=has_body(request),
        local=local,
        origin=origin._replace(address=address),
    )


class Arguments:
    """Where the fields of one action are at one route: in path, query or body."""

    def __init__(self, action: Action, route: Route) -> None:
        self._request: Final[type[ActionRequest[Any]]] = action.request
        self.route: Final = route
        self._fields: Final[dict[str, FieldInfo]] = {
            field.name: field for field in action.request.declared()
        }
        self.body: Final[FieldInfo | None] = self._fields.get(self.route.body)
        self.has_body: Final = self.route.verb in ("POST", "PUT")
        self._unread: Final[frozenset[str]] = (
            frozenset({self.route.body})
            if self.body is not None
            else frozenset(self._fields if self.has_body else ()) - {*self.route.fields}
        )

    @property
    def is_value(self) -> bool:
        """Whether the body is one value of the lattice, in any representation."""
        body = self.body
        return body is not None and body.codec is CELL_FORMAT and not body.repeated

    @property
    def is_octets(self) -> bool:
        """Whether the body is the bytes of one field."""
        return self.body is not None and self.body.kind == "bytes" and self.body.codec is None

    @property
    def is_text(self) -> bool:
        """Whether the body is the text of one field."""
        return self.body is not None and is_plain_text(self.body)

    def head(self, path: dict[str, str], query: list[tuple[str, str]]) -> dict[str, Any]:
        """Return the fields in path and query, by name.

        Raises: UsageError: a field is unknown or repeated. BadFormat: a value is malformed.
        """
        if len(query) > _FIELDS_MAX:
            raise UsageError(f"a query string has at most {_FIELDS_MAX} values, got {len(query)}")
        values: dict[str, Any] = {}
        for name, text in path.items():
            values[name] = read_text(self._fields[name], text)
        # A body that is not one field has all fields but those that the route puts in the query.
        in_query = not self.has_body or self.body is not None
        for name, text in query:
            field = self._fields.get(name)
            may_stand = in_query or name in self.route.query
            if not may_stand or field is None or name in path or name == self.route.body:
                known = [one for one in self._fields if in_query and one not in path]
                known += [] if in_query else self.route.query
                raise UsageError(
                    f"there is no query value {name[:80]!r}; known: {', '.join(known) or 'none'}"
                )
            one = read_text(field, text)
            if field.repeated:
                values[name] = (*values.get(name, ()), one)
            elif name in values:
                raise UsageError(f"{name} is given twice")
            else:
                values[name] = one
        return values

    def check_head(self, known: Mapping[str, Any], service: Service, caller: Principal) -> None:
        """Refuse a call before its body is read. Raises: as `Service.check_head`."""
        service.check_head(self._request(**known), caller, self._unread)

    def read(
        self, known: Mapping[str, Any], body: bytes, content_type: str, if_match: str = ""
    ) -> ActionRequest[Any]:
        """Return the request. known: the result of `head`. if_match: the header; "": none.

        Raises: UsageError, BadFormat, LimitExceeded, UnknownType.
        """
        values = dict(known)
        if self.body is not None:
            values[self.body.name] = self._body(body, content_type)
        elif self.has_body and body:
            document = read_document(body, content_type)
            # With two values of a field, a proxy and this service could act on different ones.
            if isinstance(document, dict) and not document.keys().isdisjoint(known):
                both = ", ".join(document.keys() & known.keys())
                raise UsageError(f"{both}: given in the body and in the path or query; give one")
            given = from_document(self._request, document)
            for name in document:
                values[name] = getattr(given, name)
        expected = self._fields.get("if_match")
        if if_match and expected is not None:
            if "if_match" in values:
                raise UsageError("if_match is given twice: as a value and as a header")
            # `*`, lists and weak tags do not name the one version that the write expects.
            tag = _TAG.fullmatch(if_match)
            if tag is None:
                raise UsageError(f"If-Match: one tag in double quotes, got {if_match!r:.80}")
            values["if_match"] = read_text(expected, tag[1])
        return self._request(**values)

    def _body(self, body: bytes, content_type: str) -> Any:
        field = self.body
        assert field is not None
        if self.is_value:
            return read_value(body, content_type or JSON)
        if self.is_octets:
            if media_type(content_type) not in ("", OCTETS):
                raise UnknownType(f"Content-Type: {content_type[:80]!r}; supported: {OCTETS}")
            return body
        if self.is_text:
            # "the exact metadata text": the text is hashed, so it is not parsed and rewritten.
            if media_type(content_type or JSON) not in TEXTS:
                raise UnknownType(
                    f"Content-Type: {content_type[:80]!r}; supported: {', '.join(TEXTS)}"
                )
            return read_body_text(body)
        document = {field.name: read_document(body, content_type or JSON)}
        return getattr(from_document(self._request, document), field.name)


def asked_range(headers: Mapping[str, str], tag: str | None, size: int) -> range | None:
    """Return the positions of the one range that a request asks for; None: it gets all.

    tag: of the present version; a range of another one (If-Range) is not given.
    A range that begins at `size` or later has no bytes: the answer is 416.
    """
    if headers.get("if-range", tag) != tag:
        return None
    unit, _, text = headers.get("range", "").partition("=")
    first, dash, last = text.partition("-")
    if unit != "bytes" or not dash or not all(map(_is_position, (first, last))):
        return None
    if first == "":
        return range(max(0, size - int(last)), size) if last else None
    end = min(int(last) + 1, size) if last else size
    # A range whose end comes before its beginning is ignored (RFC 9110, 14.1.1).
    return range(int(first), end) if not last or int(last) >= int(first) else None


def _is_position(text: str) -> bool:
    # `isdigit` alone accepts "²" too, which `int` refuses.
    return text == "" or (text.isascii() and text.isdigit() and len(text) <= POSITION_DIGITS_MAX)
