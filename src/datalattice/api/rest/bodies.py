"""Bodies: values and documents as HTTP bodies, in each representation.

| media type | body |
|---|---|
| application/cvx-raw | the complete encoding of a value; `cells=1`: only its top cell |
| application/json | marked JSON of a value; the document of a request or result |
| application/cvx | the printed form of a value |
| application/octet-stream | the bytes of a blob or string |

Source: docs/rest.md "Representations".
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from datalattice.actions import CELL_FORMAT, to_document
from datalattice.cells import (
    Blob,
    Text,
    Value,
    decode_message,
    encode,
    encode_message,
    from_text,
    to_text,
)
from datalattice.errors import BadFormat, LimitExceeded, UsageError
from datalattice.protobuf import Message

RAW: Final = "application/cvx-raw"
TOP: Final = "application/cvx-raw; cells=1"
JSON: Final = "application/json"
PRINTED: Final = "application/cvx"
OCTETS: Final = "application/octet-stream"
TEXTS: Final = (JSON, "text/plain")
"""Media types of a body that is an uninterpreted text."""

JSON_DEPTH_MAX: Final = 32
"""Most levels of arrays and objects in a JSON body."""

JSON_ELEMENTS_MAX: Final = 100_000
"""Most members and elements in a JSON body, in all."""

# A string without its end matches too, and nothing backtracks: else the scan would take quadratic
# time for one that has escaped quotes.
_BRACKETS: Final = re.compile(r'"(?:[^"\\]|\\.)*+"?|([\[{])|([\]}])|(,)', re.DOTALL)


class UnknownType(UsageError):
    """The body has an unsupported media type. HTTP: 415."""

    code = "unsupported-media-type"


class NotAcceptable(UsageError):
    """None of the accepted media types is available. HTTP: 406."""

    code = "not-acceptable"


class Representation(NamedTuple):
    """One representation of a value. mark: the suffix of its entity tag after the hash."""

    type: str
    mark: str
    write: Callable[[Value], bytes]


def _octets(value: Value) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, (bytes, Blob, Text)):
        return bytes(value)
    raise NotAcceptable(f"{OCTETS} is for blobs and strings; ask for {RAW} or {JSON}")


def _json(value: Value) -> bytes:
    return json.dumps(CELL_FORMAT.document(value), ensure_ascii=False).encode()


REPRESENTATIONS: Final = {
    one.type: one
    for one in (
        Representation(RAW, "", encode_message),
        Representation(TOP, ";top", encode),
        Representation(JSON, ";json", _json),
        Representation(PRINTED, ";cvx", lambda value: to_text(value).encode()),
        Representation(OCTETS, ";bytes", _octets),
    )
}


def accepted(header: str, default: str, offered: tuple[str, ...]) -> str:
    """Return the media type of `offered` that an Accept header prefers; ties go to the first.

    Raises: NotAcceptable: the header accepts none of them.
    """
    if not header:
        return default
    best, best_quality = "", 0.0
    for part in header.split(","):
        kind, *parameters = [one.strip() for one in part.split(";")]
        named = "; ".join([kind, *(one for one in parameters if not one.startswith("q="))])
        quality = next((_quality(one[2:]) for one in parameters if one.startswith("q=")), 1.0)
        # A quality of 0 refuses a type (RFC 9110, 12.4.2), as `best_quality` begins at 0.
        if quality <= best_quality:
            continue
        if named in ("*/*", "application/*"):
            best, best_quality = default, quality
        elif named in offered:
            best, best_quality = named, quality
    if not best:
        raise NotAcceptable(f"Accept: {header[:80]}; available: {', '.join(offered)}")
    return best


def _quality(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        return 0.0
    # An invalid quality refuses its type, as 0 does.
    return found if 0.0 <= found <= 1.0 else 0.0


def media_type(header: str) -> str:
    """Return the media type of a Content-Type header, without parameters, in lower case."""
    return header.partition(";")[0].strip().lower()


def read_value(body: bytes, content_type: str) -> Value:
    """Return the value in a body.

    Raises: BadFormat: the body does not fit its type. UnknownType: the type is unsupported.
            LimitExceeded: as `read_json_body`.
    """
    kind = media_type(content_type)
    if kind == RAW:
        return decode_message(body)
    if kind == JSON:
        return CELL_FORMAT.read(read_json_body(body))
    if kind == PRINTED:
        return from_text(read_body_text(body))
    if kind == OCTETS:  # untyped bytes are a blob
        return body
    raise UnknownType(
        f"Content-Type: {content_type[:80]!r}; supported: {RAW}, {JSON}, {PRINTED}, {OCTETS}"
    )


def read_document(body: bytes, content_type: str) -> Any:
    """Return the JSON of a body. Raises: as `read_value`."""
    if media_type(content_type) != JSON:
        raise UnknownType(f"Content-Type: {content_type[:80]!r}; supported: {JSON}")
    return read_json_body(body)


def read_body_text(body: bytes) -> str:
    """Return the text of a body. Raises: BadFormat: it is not UTF-8."""
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise BadFormat("the body is not UTF-8") from error


def read_json_body(body: bytes) -> Any:
    """Return the document of a JSON body from a stranger.

    Raises: BadFormat: it is not JSON, or an object has a name twice. LimitExceeded: it is nested
            too deeply, or has too many elements.
    """
    text = read_body_text(body)
    depth = count = 0
    # Counted before it is parsed, so that a refused body costs one pass and no objects.
    for match in _BRACKETS.finditer(text):
        opening, closing, comma = match.groups()
        if opening:
            depth += 1
            count += 1
            if depth > JSON_DEPTH_MAX:
                raise LimitExceeded(f"JSON is nested deeper than {JSON_DEPTH_MAX} levels")
        elif closing:
            depth -= 1
        # An element has a comma before it, or the bracket of its list or object.
        elif comma:
            count += 1
        if count > JSON_ELEMENTS_MAX:
            raise LimitExceeded(f"JSON has more than {JSON_ELEMENTS_MAX} elements")
    try:
        return json.loads(text, object_pairs_hook=_object, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise BadFormat(f"the body is not JSON: {error}") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    # "duplicate names refused": readers differ in which of the two they take.
    if len(made) != len(pairs):
        raise ValueError("an object has a name twice")
    return made


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def event_id(token: str) -> bytes:
    """Return the `id` line of an event; empty without a token."""
    return b"id: " + token.encode() + b"\n" if token else b""


def sse_event(item: Message, name: str = "") -> bytes:
    """Return an item as an event; its resume token is the event's id instead of a field.

    name: of the event; "": none.
    """
    document = to_document(item)
    token = document.pop("resume", "")
    named = b"event: " + name.encode() + b"\n" if name else b""
    # JSON on one line, since a line end would end the data.
    return named + event_id(token) + b"data: " + json.dumps(document).encode() + b"\n\n"
