"""Documents: requests and results as JSON, and the JSON Schema of each.

to_document(OfferedRecords(...))                  # a dict that json.dumps accepts
from_document(OfferRecords, {"topic": "t", ...})  # checked; an error names the wrong part
"""

from __future__ import annotations

import json
import typing
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Any, Final, NamedTuple, TypeVar

from datalattice.actions.formats import CELL_FORMAT, HEX_FORMAT
from datalattice.errors import DataLatticeError, UsageError
from datalattice.protobuf import INT_RANGES, FieldInfo, Message

M = TypeVar("M", bound=Message)

OPENAPI_SCHEMAS: Final = "#/components/schemas/"
"""The prefix of references to schemas in an OpenAPI document."""


def to_document(message: Message) -> dict[str, Any]:
    """Return a message as a JSON object, without the absent fields."""
    document: dict[str, Any] = {}
    for attribute, name, write, repeated, presence in _writers_of(type(message)):
        value = getattr(message, attribute)
        if repeated:
            document[name] = [write(item) for item in value]
        elif not presence or value is not None:
            document[name] = write(value)
    return document


def whole_document(message: Message) -> dict[str, Any]:
    """Return a message as a JSON object, with null for each absent field."""
    found = to_document(message)
    document: dict[str, Any] = {}
    for field in message.declared():
        value = found.get(field.json)
        if field.kind == "message" and value is not None:
            inner = getattr(message, field.name)
            value = (
                [whole_document(one) for one in inner] if field.repeated else whole_document(inner)
            )
        document[field.json] = value
    return document


def from_document(cls: type[M], document: object, where: str = "") -> M:
    """Return the message of a JSON object; fields that the object lacks have their defaults.

    where: the name of the object in errors.
    Raises: UsageError: a name is unknown or a value has the wrong type; the text names the field.
    """
    if not isinstance(document, dict):
        raise UsageError(f"{where or cls.__name__} is an object, got {_kind_of(document)}")
    readers = _readers_of(cls)
    values: dict[str, Any] = {}
    for name, item in document.items():
        found = readers.get(name)
        if found is None:
            # Refused: if a mistyped name were skipped, its field would keep the default.
            known = ", ".join(readers) or "none"
            raise UsageError(f"{_join(where, str(name))}: unknown; there are: {known}")
        values[found.attribute] = _read(found, item, _join(where, name))
    return cls(**values)


def read_text(field: FieldInfo, text: str) -> Any:
    """Return the value of a field from text: of a path, a query string or a command.

    Raises: UsageError: the text is not a value of the field; the error names the field.
    """
    if field.kind in INT_RANGES:
        try:
            document: object = int(text)
        except ValueError as error:
            raise UsageError(f"{field.name} is a whole number, got {text!r:.80}") from error
    elif field.kind == "bool":
        document = {"true": True, "1": True, "false": False, "0": False}.get(text.lower(), text)
    elif field.kind == "double":
        try:
            document = float(text)
        except ValueError as error:
            raise UsageError(f"{field.name} is a number, got {text!r:.80}") from error
    elif field.codec is CELL_FORMAT:
        # As JSON if it is JSON: `7` is a number, `"7"` a text, and `seven` needs no quotes.
        try:
            document = json.loads(text)
        except ValueError:
            document = text
        except RecursionError as error:
            raise UsageError(f"{field.name} is nested deeper than Python reads JSON") from error
    else:
        document = text
    return _reader(field)(document, field.name)


def write_text(field: FieldInfo, value: Any) -> str:
    """Return a value of a field as text for `read_text`."""
    document = _writer(field)(value)
    if field.codec is CELL_FORMAT or type(document) is bool:
        return json.dumps(document)
    return str(document)


def schema_of(
    cls: type[Message], definitions: dict[str, Any], at: str = OPENAPI_SCHEMAS
) -> dict[str, Any]:
    """Add the JSON Schema of a message to `definitions` and return a reference to it.

    at: the prefix of the reference: the path of the definitions in the whole document.
    """
    name = cls.full_name.rpartition(".")[2]
    if name not in definitions:
        definitions[name] = {}  # before its fields are visited: a message may contain itself
        properties: dict[str, Any] = {}
        for field in cls.declared():
            one = field_schema(field, definitions, at)
            properties[field.json] = {"type": "array", "items": one} if field.repeated else one
        definitions[name] = {
            "type": "object",
            "properties": properties,
            "additionalProperties": False,
        }
    return {"$ref": f"{at}{name}"}


def field_schema(
    field: FieldInfo, definitions: dict[str, Any], at: str = OPENAPI_SCHEMAS
) -> dict[str, Any]:
    """Return the JSON Schema of a field, or of one item of a repeated one."""
    if field.codec is not None:
        return dict(_format(field).schema)
    if field.kind == "message":
        return schema_of(typing.cast("type[Message]", field.type), definitions, at)
    if field.kind == "enum":
        return {"type": "string", "enum": [one.name.lower() for one in _enum(field)]}
    if field.kind in INT_RANGES:
        low, high = INT_RANGES[field.kind]
        return {"type": "integer", "minimum": low, "maximum": high}
    if field.kind == "bytes":
        return dict(HEX_FORMAT.schema)
    return {"type": {"string": "string", "bool": "boolean", "double": "number"}[field.kind]}


def is_plain_text(field: FieldInfo) -> bool:
    """Return whether a field is one text, which REST sends without quotes as body or answer."""
    return field.kind == "string" and not field.repeated


# --- built once for each message -----------------------------------------------------------------


class _FieldWriter(NamedTuple):
    """How one field is written. presence: None is left out."""

    attribute: str
    name: str
    write: Callable[[Any], Any]
    repeated: bool
    presence: bool


class _FieldReader(NamedTuple):
    """How one field is read. presence: null is accepted and means absent."""

    attribute: str
    read: Callable[[Any, str], Any]
    repeated: bool
    presence: bool


# Filled by any thread: two threads make equal entries.
_writers: Final[dict[type[Message], tuple[_FieldWriter, ...]]] = {}
_readers: Final[dict[type[Message], Mapping[str, _FieldReader]]] = {}


def _writers_of(cls: type[Message]) -> tuple[_FieldWriter, ...]:
    found = _writers.get(cls)
    if found is None:
        found = _writers[cls] = tuple(
            # In a field of any value, None is the value nil: it is written as null.
            _FieldWriter(
                field.name,
                field.json,
                _writer(field),
                field.repeated,
                field.presence and field.codec is not CELL_FORMAT,
            )
            for field in cls.declared()
        )
    return found


def _readers_of(cls: type[Message]) -> Mapping[str, _FieldReader]:
    found = _readers.get(cls)
    if found is None:
        found = _readers[cls] = {
            field.json: _FieldReader(field.name, _reader(field), field.repeated, field.presence)
            for field in cls.declared()
        }
    return found


def _writer(field: FieldInfo) -> Callable[[Any], Any]:
    if field.codec is not None:
        return typing.cast("Callable[[Any], Any]", _format(field).document)
    if field.kind == "message":
        return to_document
    if field.kind == "bytes":
        return HEX_FORMAT.document
    if field.kind == "enum":
        # Enums are open: a number that this version has no name for is written as a number.
        return lambda value: value.name.lower() if isinstance(value, IntEnum) else int(value)
    return lambda value: value


def _reader(field: FieldInfo) -> Callable[[Any, str], Any]:
    if field.kind == "message":
        kind = typing.cast("type[Message]", field.type)
        return lambda document, where: from_document(kind, document, where)
    if field.codec is not None or field.kind == "bytes":
        read = HEX_FORMAT.read if field.codec is None else _format(field).read

        def formatted(document: Any, where: str) -> Any:
            try:
                return read(document)
            except DataLatticeError as error:
                raise UsageError(f"{where}: {error}") from error

        return formatted
    if field.kind == "enum":
        names = {one.name.lower(): one for one in _enum(field)}

        def named(document: Any, where: str) -> Any:
            found = names.get(document) if isinstance(document, str) else None
            if found is None:
                raise UsageError(f"{where} is one of {', '.join(names)}, got {document!r:.80}")
            return found

        return named
    if field.kind in INT_RANGES:
        low, high = INT_RANGES[field.kind]

        def number(document: Any, where: str) -> int:
            # `type`, not `isinstance`: in Python, True is an int.
            if type(document) is not int or not low <= document <= high:
                raise UsageError(
                    f"{where} is a whole number from {low} to {high}, got {document!r:.80}"
                )
            return document

        return number
    if field.kind == "double":

        def double(document: Any, where: str) -> float:
            if type(document) not in (int, float):
                raise UsageError(f"{where} is a number, got {_kind_of(document)}")
            try:
                return float(document)
            except OverflowError as error:
                raise UsageError(f"{where} is a number of 64 bits, got a larger one") from error

        return double
    return _truth if field.kind == "bool" else _text


def _truth(document: Any, where: str) -> bool:
    if type(document) is not bool:
        raise UsageError(f"{where} is true or false, got {_kind_of(document)}")
    return document


def _text(document: Any, where: str) -> str:
    # JSON has no kind for bytes or enums: those fields have readers of their own.
    if type(document) is not str:
        raise UsageError(f"{where} is a text, got {_kind_of(document)}")
    return document


def _read(reader: _FieldReader, document: object, where: str) -> Any:
    _, read, repeated, presence = reader
    if not repeated:
        return None if document is None and presence else read(document, where)
    # A single item is not accepted for a list of one: each request has one form.
    if not isinstance(document, list):
        raise UsageError(f"{where} is an array, got {_kind_of(document)}")
    return tuple([read(item, f"{where}[{at}]") for at, item in enumerate(document)])


def _format(field: FieldInfo) -> Any:
    return field.codec


def _enum(field: FieldInfo) -> type[IntEnum]:
    return typing.cast("type[IntEnum]", field.type)


def _join(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _kind_of(document: object) -> str:
    names = {dict: "an object", list: "an array", str: "a text", bool: "true or false"}
    if document is None:
        return "null"
    return names.get(type(document), "a number")
