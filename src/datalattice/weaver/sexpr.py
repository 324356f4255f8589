r"""S-expressions: how operations and messages are shown.

An expression is a `SymbolWord`, a string, bytes, a number or a tuple of expressions:

    sexpr_text((SymbolWord("put"), "k", b"\x00\xff")) # (put "k" 00ff)

`message_to_sexpr` shows a protobuf message. Source: docs/design/weaver.md "S-expressions".
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, TypeAlias

from datalattice.errors import UsageError
from datalattice.protobuf import FieldInfo, Message

RAW_BYTES_SHOWN: Final = 8  # enough to tell hashes apart by eye
"""Bytes of a raw value that a short text shows."""

_BREAKS: Final = frozenset('()" \t\r\n')


@dataclass(frozen=True, slots=True)
class SymbolWord:
    """A bare word.

    Raises: UsageError: the name is empty, or has blanks, quotes or parentheses.
    """

    name: str

    def __post_init__(self) -> None:
        if not self.name or not _BREAKS.isdisjoint(self.name):  # it would read as several
            raise UsageError(
                f"a symbol is not empty and has no blanks, quotes or parentheses, got {self.name!r}"
            )


SExpr: TypeAlias = "SymbolWord | str | bytes | int | tuple[SExpr, ...]"
"""One expression."""

_OK: Final = SymbolWord("ok")
"""How a message without fields is shown."""


def sexpr_text(expr: SExpr, raw_bytes_max: int | None = None) -> str:
    """Return an expression as text on one line, as long as its strings have no line breaks.

    raw_bytes_max: longer raw values are cut to this many bytes and `…`; None: none is cut.
    """
    if isinstance(expr, SymbolWord):
        return expr.name
    if isinstance(expr, str):
        # Escaped, so that a string ends where its quote does.
        return '"' + expr.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(expr, bytes):
        cut = raw_bytes_max is not None and len(expr) > raw_bytes_max
        return expr[:raw_bytes_max].hex() + "…" if cut else expr.hex()
    if isinstance(expr, int):
        return str(int(expr))  # `int`: an enum prints as its number
    return f"({' '.join([sexpr_text(one, raw_bytes_max) for one in expr])})"


def pretty(expr: SExpr, raw_bytes_max: int | None = None) -> str:
    """Return an expression with every element after the first on a line of its own.

    The lines are indented by two spaces; deeper lists stay on one line.
    """
    if not isinstance(expr, tuple) or len(expr) < 2:  # one line is clearer for an atom
        return sexpr_text(expr, raw_bytes_max)
    return "(" + "\n  ".join([sexpr_text(element, raw_bytes_max) for element in expr]) + ")"


# --- messages -----------------------------------------------------------------------------------


def message_to_sexpr(message: Message) -> SExpr:
    """Return a message as `(TypeName (field value) ...)`.

    Unset members of a oneof are left out, other fields are shown with their defaults. A message
    that only wraps one oneof, or one repeated field, is shown as what it wraps; a message without
    fields as `ok`. Bytes that are printable UTF-8 are shown as a string.
    """
    fields = message.declared()
    if not fields:
        return _OK
    values = [(field, getattr(message, field.name)) for field in fields]
    if len(fields) == 1 and fields[0].repeated:  # a wrapper adds nothing for the reader
        return tuple([_shown(item) for item in values[0][1]])
    present = [(field, value) for field, value in values if value is not None]
    if _is_oneof(fields) and len(present) == 1:
        return _shown(present[0][1])
    parts: list[SExpr] = [SymbolWord(message.full_name.rpartition(".")[2])]
    for field, value in present:
        shown = tuple([_shown(item) for item in value]) if field.repeated else _shown(value)
        parts.append((SymbolWord(field.name), shown))
    return tuple(parts)


def _is_oneof(fields: tuple[FieldInfo, ...]) -> bool:
    """Return whether all fields are members of one oneof."""
    return bool(fields[0].oneof) and len({field.oneof for field in fields}) == 1


def _shown(value: Any) -> SExpr:
    if isinstance(value, Message):
        return message_to_sexpr(value)
    if isinstance(value, bytes):
        return printable(value)
    if isinstance(value, bool):
        return SymbolWord("true" if value else "false")
    if isinstance(value, IntEnum):
        return SymbolWord(value.name)
    if isinstance(value, float):
        return SymbolWord(repr(value))
    shown: SExpr = value
    return shown


def printable(data: bytes) -> str | bytes:
    """Return bytes as a string if they are printable UTF-8, else unchanged."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return data
    return text if text.isprintable() else data  # control characters could rewrite a terminal
