"""Plain: messages of a store's methods as values that people and language models write.

In a document of a message, bytes are hex. Here, printable bytes are texts, as in the expressions of
operations.
"""

from __future__ import annotations

import typing
from collections.abc import Callable
from typing import Any, Final, TypeVar

from datalattice.actions import CELL_FORMAT, from_document, to_document
from datalattice.cells import Value
from datalattice.errors import UsageError
from datalattice.protobuf import FieldInfo, Message

M = TypeVar("M", bound=Message)

_BLOB: Final = "$blob"


def message_of(cls: type[M], value: Value) -> M:
    """Return the message of a map of its fields; nil is the empty map.

    Raises: UsageError: a field is wrong; the text names it.
    """
    return from_document(
        cls, _mapped(cls, {} if value is None else CELL_FORMAT.document(value), _hex)
    )


def value_of(message: Message) -> Value:
    """Return a message as a map of its fields."""
    return CELL_FORMAT.read(_mapped(type(message), to_document(message), _text))


def _mapped(cls: type[Message], document: Any, change: Callable[[Any, str], Any]) -> Any:
    """Return a document of a message with `change` applied to each field of bytes."""
    if not isinstance(document, dict):
        return document  # `from_document` refuses it
    fields = {field.name: field for field in cls.declared()}
    return {
        name: item if name not in fields else _field(fields[name], item, change)
        for name, item in document.items()
    }


def _field(field: FieldInfo, item: Any, change: Callable[[Any, str], Any]) -> Any:
    if field.repeated and isinstance(item, list):
        return [_one(field, each, change) for each in item]
    return _one(field, item, change)


def _one(field: FieldInfo, item: Any, change: Callable[[Any, str], Any]) -> Any:
    if field.kind == "message":
        return _mapped(typing.cast("type[Message]", field.type), item, change)
    return (
        change(item, field.name)
        if field.kind == "bytes" and field.codec is not CELL_FORMAT
        else item
    )


def _hex(item: Any, where: str) -> Any:
    if isinstance(item, str):
        return item.encode().hex()
    # The mark of a blob holds hex already, which the reader of bytes takes.
    if isinstance(item, dict) and list(item) == [_BLOB]:
        return item[_BLOB]
    if item is None:
        return None
    raise UsageError(f"{where} is a text or a blob, got {item!r:.80}")


def _text(item: Any, _where: str) -> Any:
    if item is None:
        return None
    try:
        text = bytes.fromhex(item).decode()
    except UnicodeDecodeError:
        return {_BLOB: item}
    return text if text.isprintable() else {_BLOB: item}
