r"""S-expressions: how operations and messages are shown, and how arguments of commands are read.

An expression is a `SymbolWord`, a string, bytes, a number or a tuple of expressions:

    render((Symbol("put"), "k", b"\x00\xff"))     # (put "k" 00ff)
    parse('(put "k" 7)')                           # (Symbol("put"), "k", 7)

Rendered text parses back, except that bytes come back as a symbol or a number: their hex digits
carry no mark. `message_to_sexpr` shows a protobuf message, `message_from_sexprs` makes one from the
arguments of a command. Source: docs/design/weaver.md "S-expressions".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, TypeAlias, TypeVar

from datalattice.errors import UsageError
from datalattice.protobuf import FieldInfo, Message

RAW_BYTES_SHOWN: Final = 8  # enough to tell hashes apart by eye
"""Bytes of a raw value that the compact form shows."""

DEPTH_MAX: Final = 100  # far below Python's own limit, whatever the text
"""Deepest nesting of lists that is parsed."""

STYLES: Final = {
    "symbol": "blue",
    "string": "green",
    "number": "yellow",
    "raw": "magenta",
    "paren": "dim",
}
"""Terminal style of each kind of token."""

_BREAKS: Final = frozenset('()" \t\r\n')


@dataclass(frozen=True, slots=True)
class SymbolWord:
    """A bare word.

    Raises: UsageError: the name is empty, or has blanks, quotes or parentheses.
    """

    name: str

    def __post_init__(self) -> None:
        if not self.name or not _BREAKS.isdisjoint(self.name):  # rendered text must parse back
            raise UsageError(
                f"a symbol has no blanks, quotes and parentheses and is not empty: {self.name!r}"
            )


SExpr: TypeAlias = "SymbolWord | str | bytes | int | tuple[SExpr, ...]"
"""One expression."""

OK: Final = SymbolWord("ok")
"""How a message without fields is shown."""


def tokens(expr: SExpr, raw_bytes_max: int | None = None) -> Iterator[tuple[str, str]]:
    """Yield the text of an expression on one line as `(kind, text)`; kinds are those of `STYLES`.

    Blanks between elements have the kind "paren". raw_bytes_max: longest raw value shown in full.
    """
    if isinstance(expr, SymbolWord):
        yield "symbol", expr.name
    elif isinstance(expr, str):
        # Escaped, so that the text parses back.
        yield "string", '"' + expr.replace("\\", "\\\\").replace('"', '\\"') + '"'
    elif isinstance(expr, bytes):
        cut = raw_bytes_max is not None and len(expr) > raw_bytes_max
        yield "raw", expr[:raw_bytes_max].hex() + "…" if cut else expr.hex()
    elif isinstance(expr, int):
        yield "number", str(int(expr))  # `int`: an enum prints as its number
    else:
        yield "paren", "("
        for index, element in enumerate(expr):
            if index:
                yield "paren", " "
            yield from tokens(element, raw_bytes_max)
        yield "paren", ")"


def render(expr: SExpr, raw_bytes_max: int | None = None) -> str:
    """Return an expression as text on one line, as long as its strings have no line breaks."""
    return "".join([text for _, text in tokens(expr, raw_bytes_max)])


def compact(expr: SExpr, raw_bytes_max: int = RAW_BYTES_SHOWN) -> str:
    """Return an expression as text; longer raw values are cut to `raw_bytes_max` bytes and `…`."""
    return render(expr, raw_bytes_max)


def pretty(expr: SExpr, raw_bytes_max: int | None = None) -> str:
    """Return an expression with every element after the first on a line of its own.

    The lines are indented by two spaces; deeper lists stay on one line.
    """
    if not isinstance(expr, tuple) or len(expr) < 2:  # one line is clearer for an atom
        return render(expr, raw_bytes_max)
    return "(" + "\n  ".join([render(element, raw_bytes_max) for element in expr]) + ")"


def table(exprs: Sequence[SExpr], raw_bytes_max: int | None = RAW_BYTES_SHOWN) -> str | None:
    """Return records `(T (field value) ...)` as an aligned table with upper-case headers.

    None: fewer than two, or not all have the same T and the same fields in the same order.
    """
    rows = [_record(expr) for expr in exprs]
    if len(rows) < 2 or rows[0] is None:
        return None
    head, names, _ = rows[0]
    lines = [[name.upper() for name in names]]
    for row in rows:
        if row is None or row[0] != head or row[1] != names:
            return None  # one odd record: no table, rather than empty cells
        lines.append([render(value, raw_bytes_max) for value in row[2]])
    widths = [max(len(line[column]) for line in lines) for column in range(len(names))]
    return "\n".join(
        [
            "  ".join([cell.ljust(widths[i]) for i, cell in enumerate(line)]).rstrip()
            for line in lines
        ]
    )


def _record(expr: SExpr) -> tuple[str, tuple[str, ...], tuple[SExpr, ...]] | None:
    """Return the type, field names and values of a record; None for any other expression."""
    if not isinstance(expr, tuple) or len(expr) < 2 or not isinstance(expr[0], SymbolWord):
        return None
    names = []
    values = []
    for part in expr[1:]:
        if not (isinstance(part, tuple) and len(part) == 2 and isinstance(part[0], SymbolWord)):
            return None
        names.append(part[0].name)
        values.append(part[1])
    return expr[0].name, tuple(names), tuple(values)


# --- reading ------------------------------------------------------------------------------------


def parse(text: str, *, numbers: bool = True) -> SExpr:
    """Return the one expression of a text.

    numbers: read a word of decimal digits as a number; otherwise every bare word is a symbol.
    Raises: UsageError: the text holds none, or more than one, or a quote or parenthesis is open.
    """
    found = parse_many(text, numbers=numbers)
    if len(found) != 1:
        raise UsageError(f"expected one expression, got {len(found)}")
    return found[0]


def parse_many(text: str, *, numbers: bool = True) -> list[SExpr]:
    """Return the expressions of a text, which may be none.

    Raises: UsageError: a quote or a parenthesis does not match, or lists nest deeper than 100.
    """
    stack: list[list[SExpr]] = [[]]
    position = 0
    while position < len(text):
        char = text[position]
        if char == "(":
            if len(stack) > DEPTH_MAX:
                raise UsageError(f"lists nest deeper than {DEPTH_MAX}")
            stack.append([])
            position += 1
        elif char == ")":
            if len(stack) == 1:
                raise UsageError(f"a ')' without its '(' at character {position + 1}")
            closed = tuple(stack.pop())
            stack[-1].append(closed)
            position += 1
        elif char == '"':
            string, position = _quoted(text, position)
            stack[-1].append(string)
        elif char in _BREAKS:
            position += 1
        else:
            end = position
            while end < len(text) and text[end] not in _BREAKS:
                end += 1
            word = text[position:end]
            # Only ASCII digits: other Unicode digits are words.
            digits = numbers and word.isascii() and word.isdigit()
            stack[-1].append(int(word) if digits else SymbolWord(word))
            position = end
    if len(stack) > 1:
        raise UsageError("a '(' without its ')'")
    return stack[0]


def _quoted(text: str, start: int) -> tuple[str, int]:
    """Return the string whose opening quote is at `start`, and the position after it."""
    characters: list[str] = []
    position = start + 1
    while position < len(text):
        char = text[position]
        if char == '"':
            return "".join(characters), position + 1
        if char == "\\":
            position += 1
            # Two escapes only: any other text needs none.
            if text[position : position + 1] not in {'"', "\\"}:
                raise UsageError(f'after a backslash a string has " or \\, at character {position}')
            char = text[position]
        characters.append(char)
        position += 1
    raise UsageError(f"a string without its closing quote, from character {start + 1}")


def read_words(words: Sequence[str]) -> list[SExpr]:
    """Return the arguments that a shell has split, each as one expression.

    A word that begins with `(` or `"` is parsed, as is `name=` followed by one of them; any other
    word is a string, whatever its characters.
    Raises: UsageError: as `parse`.
    """
    found: list[SExpr] = []
    for word in words:
        name, equals, value = word.partition("=")
        if word[:1] in {"(", '"'}:
            found.append(parse(word, numbers=False))
        elif equals and value[:1] in {"(", '"'} and _BREAKS.isdisjoint(name):
            found += [SymbolWord(f"{name}="), parse(value, numbers=False)]
        else:
            found.append(SymbolWord(word) if word and _BREAKS.isdisjoint(word) else word)
    return found


# --- messages -----------------------------------------------------------------------------------


def message_to_sexpr(message: Message) -> SExpr:
    """Return a message as `(TypeName (field value) ...)`.

    Unset members of a oneof are left out, other fields are shown with their defaults. A message
    that only wraps one oneof, or one repeated field, is shown as what it wraps; a message without
    fields as `ok`. Bytes that are printable UTF-8 are shown as a string.
    """
    fields = message.declared()
    if not fields:
        return OK
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


_M = TypeVar("_M", bound=Message)

_NUMBER: Final = re.compile(r"-?[0-9]+")


def message_from_sexprs(cls: type[_M], arguments: Sequence[SExpr]) -> _M:
    """Return the message that the arguments of a command describe.

    Arguments are given in the order of the fields' declaration, or as `name=value`; a list stands
    for a repeated field or a message, `()` for an unset field. A message that is one oneof begins
    with the name of its member: `(put k v)`. Bytes are the UTF-8 of the text.
    Raises: UsageError: an argument does not fit; the text names the field.
    """
    fields = {field.name: field for field in cls.declared()}
    values: dict[str, Any] = {}
    if fields and _is_oneof(tuple(fields.values())) and arguments:
        name = _text(arguments[0]) or ""
        if name not in fields:
            raise UsageError(
                f"{_name(cls)} begins with one of {', '.join(fields)}, got {render(arguments[0])}"
            )
        values[name] = _member(cls, fields[name], arguments[1:])
    else:
        for field, given in _assigned(cls, fields, arguments):
            if field.name in values:
                raise UsageError(f"{_name(cls)}.{field.name} is given twice")
            values[field.name] = _value(cls, field, given)
    made = cls(**{name: value for name, value in values.items() if value is not None})
    made.encode()  # checks the ranges of numbers
    return made


def _assigned(
    cls: type[Message], fields: dict[str, FieldInfo], arguments: Sequence[SExpr]
) -> Iterator[tuple[FieldInfo, SExpr]]:
    """Yield every argument with the field it is for."""
    # Members of a oneof only by name: their order says nothing.
    positional = [field for field in fields.values() if not field.oneof]
    taken = 0
    rest = list(reversed(arguments))
    while rest:
        given = rest.pop()
        name, equals, value = (
            given.name.partition("=") if isinstance(given, SymbolWord) else ("", "", "")
        )
        # Only the name of a field makes `a=b` a named argument; in quotes it is always a value.
        if equals and name in fields:
            if value:
                yield fields[name], SymbolWord(value)
            elif rest:
                yield fields[name], rest.pop()
            else:
                raise UsageError(f"{_name(cls)}.{name}: a value follows the '='")
        elif taken < len(positional):
            yield positional[taken], given
            taken += 1
        else:
            raise UsageError(
                f"{_name(cls)} takes {len(positional)} arguments"
                f"{''.join([f' {field.name}' for field in positional])}; "
                f"{render(given)} is one too many"
            )


def _member(cls: type[Message], field: FieldInfo, arguments: Sequence[SExpr]) -> Any:
    """Return the value of a member of a oneof, given behind its name."""
    if field.type is not None and field.kind == "message":
        return message_from_sexprs(field.type, arguments)
    if len(arguments) != 1:
        raise UsageError(f"{_name(cls)}.{field.name} takes one value, got {len(arguments)}")
    return _value(cls, field, arguments[0])


def _value(cls: type[Message], field: FieldInfo, given: SExpr) -> Any:
    """Return an argument as the value of a field; None leaves it unset."""
    if given == ():  # "()" leaves a field unset, which an empty string cannot say
        return None
    if not field.repeated:
        return _single(cls, field, given)
    if not isinstance(given, tuple):
        raise UsageError(f"{_name(cls)}.{field.name} takes a list, got {render(given)}")
    return tuple([_single(cls, field, item) for item in given])


def _single(cls: type[Message], field: FieldInfo, given: SExpr) -> Any:
    where = f"{_name(cls)}.{field.name}"
    if field.kind == "message" and field.type is not None:
        if not isinstance(given, tuple):
            raise UsageError(f"{where} takes a list, got {render(given)}")
        return message_from_sexprs(field.type, given)
    if isinstance(given, bytes) and field.kind == "bytes":
        return given
    text = _text(given)
    if text is None:
        raise UsageError(f"{where} takes a single value, got {render(given)}")
    if field.kind == "bytes":
        return text.encode()
    if field.kind == "string":
        return text
    if field.kind == "bool":
        if text.lower() not in {"true", "false"}:
            raise UsageError(f"{where} is true or false, got {text!r}")
        return text.lower() == "true"
    if field.kind == "double":
        try:
            return float(text)
        except ValueError as error:
            raise UsageError(f"{where} takes a number, got {text!r}") from error
    return _number(where, field, text)


def _number(where: str, field: FieldInfo, text: str) -> int:
    """Return the text of an int or enum field, the latter also by the member's name."""
    if field.kind == "enum" and field.type is not None:
        members: dict[str, int] = dict(field.type.__members__)
        if text.upper() in members:
            return members[text.upper()]
        if not _NUMBER.fullmatch(text):
            raise UsageError(f"{where} is one of {', '.join(members)}, got {text!r}")
    # Refused, where the reference takes 0.
    # 20 digits: a longer one fits no 64-bit field.
    if not _NUMBER.fullmatch(text) or len(text) > 20:
        raise UsageError(f"{where} takes a decimal number of 64 bits, got {text!r}")
    return int(text)


def _text(given: SExpr) -> str | None:
    """Return the text of a single value; None for a list and for bytes that are not UTF-8."""
    if isinstance(given, SymbolWord):
        return given.name
    if isinstance(given, bytes):
        shown = printable(given)
        return shown if isinstance(shown, str) else None
    return None if isinstance(given, tuple) else str(given)


def _name(cls: type[Message]) -> str:
    return cls.full_name.rpartition(".")[2]
