r"""Language: the text of a command, typed at the prompt or read from a script.

    queue.offer log hello                       by the order of the fields
    queue.offer topic=log values=(a 7 "b c")    by name; a list has parentheses
    (queue.offer :topic "log" :values ("a"))    an s-expression
    kv.write shop ((key=n operation=incr) (key=k value={"open": [9, 17]}))

A text in double quotes has the escapes of JSON, one in single quotes none; other words need no
quotes. A part that begins with `{` or `[` is JSON. A bare word for a value of the lattice is read
as JSON if it is JSON: `7` is a number, `"7"` a text. Bytes are text, or hex after `0x`; hashes,
keys and ids are hex.

Source: docs/repl.md "Commands".
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

from datalattice.actions import CELL_FORMAT, from_document, read_text, write_text
from datalattice.errors import UsageError
from datalattice.protobuf import FieldInfo, Message

COMMAND_DEPTH_MAX: Final = 32  # each level takes frames of Python's bounded stack
"""Deepest nesting of lists; JSON has its own limit."""

_BREAKS: Final = frozenset("()\"' \t\r\n")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NAMED: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=")
_BARE: Final = re.compile(r"[A-Za-z0-9_./@+~-][A-Za-z0-9_./@+~:%,-]*")
"""Texts that `write_word` writes without quotes."""

_JSON: Final = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class BareWord:
    """A word without quotes."""

    text: str


@dataclass(frozen=True, slots=True)
class JsonPart:
    """A document of JSON: an object or an array."""

    document: Any


@dataclass(frozen=True, slots=True)
class NamedPart:
    """A value with the name of its field: `name=value` or `:name value`."""

    name: str
    value: CommandPart


CommandPart = BareWord | str | JsonPart | NamedPart | tuple["CommandPart", ...]
"""A part of a command; a `str` was quoted."""


class Incomplete(UsageError):
    """A quote, a parenthesis or JSON is not closed; the prompt asks for another line."""


def parse_command(text: str) -> tuple[CommandPart, ...]:
    """Return the parts of a command: its name and arguments; () of a blank line or a comment.

    Raises: UsageError: the text is malformed; Incomplete: another line may complete it.
    """
    if text.lstrip().startswith("#"):
        return ()
    reader = _CommandReader(text)
    parts = reader.parts(0)
    if len(parts) == 1 and isinstance(parts[0], tuple):  # "(queue.offer ...)"
        return parts[0]
    return parts


class _CommandReader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def parts(self, depth: int) -> tuple[CommandPart, ...]:
        """Return the parts up to the end of the text, or of the list."""
        found: list[CommandPart] = []
        while True:
            self._skip()
            if self._at == len(self._text):
                if depth:
                    raise Incomplete("a '(' has no ')'")
                return tuple(found)
            if self._text[self._at] == ")":
                if not depth:
                    raise UsageError(f"the ')' at character {self._at + 1} has no '('")
                self._at += 1
                return tuple(found)
            found.append(self._part(depth))

    def _skip(self) -> None:
        while self._at < len(self._text) and self._text[self._at].isspace():
            self._at += 1

    def _part(self, depth: int) -> CommandPart:
        named = _NAMED.match(self._text, self._at)
        if named is not None:
            self._at = named.end()
            is_empty = self._at == len(self._text) or self._text[self._at] in ") \t\r\n"
            return NamedPart(named[1], "" if is_empty else self._value(depth))
        keyword = _NAME.match(self._text, self._at + 1) if self._text[self._at] == ":" else None
        if keyword is not None:
            self._at = keyword.end()
            self._skip()
            if self._at == len(self._text) or self._text[self._at] == ")":
                raise UsageError(f"there is no value after :{keyword[0]}")
            return NamedPart(keyword[0], self._value(depth))
        return self._value(depth)

    def _value(self, depth: int) -> CommandPart:
        character = self._text[self._at]
        if character == "(":
            if depth == COMMAND_DEPTH_MAX:
                raise UsageError(f"lists may be nested {COMMAND_DEPTH_MAX} deep; this is deeper")
            self._at += 1
            return self.parts(depth + 1)
        if character in "\"'":
            return self._quoted(character)
        if character in "{[":
            return self._json()
        start = self._at
        while self._at < len(self._text) and self._text[self._at] not in _BREAKS:
            self._at += 1
        return BareWord(self._text[start : self._at])

    def _quoted(self, quote: str) -> str:
        start = self._at
        end = start + 1
        while end < len(self._text) and self._text[end] != quote:
            end += 2 if quote == '"' and self._text[end] == "\\" else 1
        if end >= len(self._text):
            raise Incomplete(f"the text from character {start + 1} has no closing {quote}")
        self._ends(end + 1)
        if quote == "'":
            return self._text[start + 1 : end]
        try:
            # Not strict: line ends and tabs need no escape in a text.
            found: str = json.loads(self._text[start : end + 1], strict=False)
        except ValueError as error:
            raise UsageError(f"the text from character {start + 1}: {error}") from error
        return found

    def _json(self) -> JsonPart:
        try:
            document, end = _JSON.raw_decode(self._text, self._at)
        except json.JSONDecodeError as error:
            first = self._text[self._at]
            text = f"text that begins with {first} is JSON: {error.msg}, character {error.pos + 1}"
            # If the text ends too early, the next line may have the rest.
            kind = Incomplete if error.pos >= len(self._text.rstrip()) else UsageError
            raise kind(f"{text}; any other text needs quotes") from error
        except RecursionError as error:
            raise UsageError("the JSON is nested too deep") from error
        self._ends(end)
        return JsonPart(document)

    def _ends(self, end: int) -> None:
        """Continue at `end`, where a part ends. Raises: UsageError: another follows at once."""
        if end < len(self._text) and self._text[end] not in ") \t\r\n":
            raise UsageError(f"a space is missing before character {end + 1}")
        self._at = end


# --- arguments ------------------------------------------------------------------------------------


class MessageShape(Protocol):
    """A message class, or a message type that a store described."""

    @property
    def full_name(self) -> str:
        """The name with its package."""

    def declared(self) -> tuple[FieldInfo, ...]:
        """Return the fields by ascending number."""


ReadWord = Callable[[FieldInfo, str], Any]
"""Returns the value of a field that a word gives, or None if it reads no such field."""

Q = TypeVar("Q", bound=Message)


def read_message(
    cls: type[Q],
    parts: Sequence[CommandPart],
    given: dict[str, Any] | None = None,
    read_word: ReadWord | None = None,
) -> Q:
    """Return the message that arguments describe.

    given: values of fields that arguments set only by name. read_word: asked before `read_value`.
    Raises: UsageError: an argument does not fit; the text names its field.
    """
    made: Q = cls(**{**(given or {}), **read_words(cls, parts, set(given or ()), read_word)})
    made.encode()  # checks the lengths of hashes and the ranges of numbers
    return made


def read_words(
    shape: MessageShape | type[Message],
    parts: Sequence[CommandPart],
    by_name: set[str] | frozenset[str] = frozenset(),
    read_word: ReadWord | None = None,
) -> dict[str, Any]:
    """Return values of fields by name, as `read_message`. by_name: fields without a position."""
    fields = {field.name: field for field in shape.declared()}
    if parts and fields and _is_oneof(fields):
        return _member(shape, fields, parts, read_word)
    # Fields that the prompt sets itself (owner, store) are given by name only.
    positions = [field for field in fields.values() if field.name not in by_name]
    values: dict[str, Any] = {}
    taken = 0
    for part in parts:
        if isinstance(part, NamedPart):
            field = fields.get(part.name)
            if field is None:
                known = ", ".join(fields) or "none"
                raise UsageError(
                    f"{_short(shape)} has no field {part.name!r}; its fields: {known}. A text with "
                    "= or : needs quotes"
                )
            value = part.value
        elif taken < len(positions):
            field, value = positions[taken], part
            taken += 1
        else:
            named = "".join(
                f"; {name} is given as {name}=" for name in sorted(by_name & set(fields))
            )
            raise UsageError(
                f"{_short(shape)} takes {len(positions)} arguments: "
                f"{' '.join(one.name for one in positions) or 'none'}; there is one more{named}"
            )
        # Once by position and once by name is refused too: it is unclear which one is meant.
        if field.name in values:
            raise UsageError(f"{field.name} is given twice")
        values[field.name] = _read_value(field, value, read_word)
    return values


def _is_oneof(fields: dict[str, FieldInfo]) -> bool:
    found = {field.oneof for field in fields.values()}
    return len(found) == 1 and found != {""}


def _member(
    shape: MessageShape | type[Message],
    fields: dict[str, FieldInfo],
    parts: Sequence[CommandPart],
    read_word: ReadWord | None,
) -> dict[str, Any]:
    """Return the member of a message that is one oneof: `put k v`, or `put=(k v)`."""
    first, *rest = parts
    name = first.name if isinstance(first, NamedPart) else _text_of(first)
    field = fields.get(name or "")
    if field is None:
        raise UsageError(
            f"{_short(shape)} begins with one of {', '.join(fields)}, got {name or 'no word'!r:.80}"
        )
    if isinstance(first, NamedPart):
        rest = [first.value, *rest]
    # `put k v` is short for `put (k v)`: the rest of the line is the fields of the member.
    elif field.kind == "message" and not (len(rest) == 1 and isinstance(rest[0], tuple)):
        rest = [tuple(rest)]
    if len(rest) != 1:
        raise UsageError(f"{field.name} takes one value, got {len(rest)}")
    return {field.name: _read_value(field, rest[0], read_word)}


def _read_value(field: FieldInfo, part: CommandPart, read_word: ReadWord | None) -> Any:
    if not field.repeated:
        return _read_single(field, part, read_word)
    if isinstance(part, JsonPart) and isinstance(part.document, list):
        return tuple([_read_single(field, JsonPart(one), read_word) for one in part.document])
    # A list of one value needs no parentheses.
    items = part if isinstance(part, tuple) else (part,)
    return tuple([_read_single(field, one, read_word) for one in items])


def _read_single(field: FieldInfo, part: CommandPart, read_word: ReadWord | None) -> Any:
    if isinstance(part, NamedPart):
        raise UsageError(
            f"{field.name} takes a value without a name, got {part.name}=; a text with = or : "
            "needs quotes"
        )
    if isinstance(part, JsonPart):
        return _read_document(field, part.document)
    if field.kind == "message":
        if not isinstance(part, tuple):
            raise UsageError(
                f"{field.name} is a list of its fields in parentheses, such as (name=value)"
            )
        of: Any = field.type
        return of(**read_words(of, part, frozenset(), read_word))
    if isinstance(part, tuple):
        hint = ", or JSON: [1, 2]" if field.codec is CELL_FORMAT else ""
        raise UsageError(f"{field.name} is one value, got a list{hint}")
    text = part if isinstance(part, str) else part.text
    found = read_word(field, text) if read_word is not None else None
    return read_field(field, text, quoted=isinstance(part, str)) if found is None else found


def read_field(field: FieldInfo, text: str, *, quoted: bool = False) -> Any:
    """Return the value of a field that one word gives. Raises: UsageError."""
    if field.codec is CELL_FORMAT:
        return text if quoted else read_text(field, text)
    if field.codec is not None:
        return read_text(field, text.removeprefix("0x"))
    if field.kind == "bytes":
        return _read_bytes(field, text, quoted=quoted)
    if field.kind == "enum":
        members: Any = field.type
        names = {name.lower(): member for name, member in members.__members__.items()}
        numbers = {str(int(member)): member for member in names.values()}
        if text.lower() not in names | numbers:
            raise UsageError(f"{field.name} is one of {', '.join(names)}, got {text!r:.80}")
        return (names | numbers)[text.lower()]
    return read_text(field, text)


def _read_bytes(field: FieldInfo, text: str, *, quoted: bool) -> bytes:
    if quoted or not text.startswith("0x"):
        return text.encode(errors="surrogateescape")  # any argument of a shell can be written
    try:
        return bytes.fromhex(text[2:])
    except ValueError as error:
        raise UsageError(
            f"{field.name}: pairs of hex digits follow 0x, got {text!r:.80}"
        ) from error


def _read_document(field: FieldInfo, document: Any) -> Any:
    if field.kind == "message" and isinstance(field.type, type):
        return from_document(field.type, document, field.name)
    if field.codec is CELL_FORMAT:
        return CELL_FORMAT.read(document)
    raise UsageError(f"{field.name} takes no JSON; write it in quotes if it is a text")


def _text_of(part: CommandPart) -> str | None:
    if isinstance(part, BareWord):
        return part.text
    return part if isinstance(part, str) else None


def _short(shape: MessageShape | type[Message]) -> str:
    return str(shape.full_name).rpartition(".")[2].removesuffix("Request")


# --- writing --------------------------------------------------------------------------------------


def write_command(name: str, message: Message) -> str:
    """Return the text of a command that `read_message` reads, without fields at their default."""
    return " ".join([name, *_write_fields(message)])


def _write_fields(message: Message) -> list[str]:
    unset = type(message)()
    return [
        f"{field.name}={_write_value(field, getattr(message, field.name))}"
        for field in message.declared()
        if _differs(getattr(message, field.name), getattr(unset, field.name))
    ]


def _differs(value: Any, default: Any) -> bool:
    # By type and text: True, 1 and 1.0 are equal in Python and are three values of the lattice.
    return type(value) is not type(default) or repr(value) != repr(default)


def _write_value(field: FieldInfo, value: Any) -> str:
    if field.repeated:
        return f"({' '.join([_write_single(field, one) for one in value])})"
    return _write_single(field, value)


def _write_single(field: FieldInfo, value: Any) -> str:
    if field.kind == "message":
        return f"({' '.join(_write_fields(value))})"
    if field.codec is CELL_FORMAT:
        return json.dumps(CELL_FORMAT.document(value), ensure_ascii=False)
    if field.codec is None and field.kind == "bytes":
        return write_bytes(value)
    return write_word(write_text(field, value))


def write_word(text: str) -> str:
    """Return a text as a word, in quotes if it needs them."""
    return text if _BARE.fullmatch(text) else json.dumps(text, ensure_ascii=False)


def write_bytes(data: bytes) -> str:
    """Return bytes as a word: as text if they are printable, else as hex after `0x`."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return f"0x{data.hex()}"
    if not text.isprintable():
        return f"0x{data.hex()}"
    # Without quotes, a text that begins with 0x would be read as hex.
    return json.dumps(text, ensure_ascii=False) if text.startswith("0x") else write_word(text)
