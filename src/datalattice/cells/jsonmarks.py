"""JSON marks: a notation for values without a counterpart in JSON, so that they read back exactly.

An object whose only member has a name that starts with `$` is a mark: `{"$keyword":"name"}`. A Map
key that is not a string is a name with its type: `"$keyword:name"`. So every value has a JSON text
that reads back as exactly that value.

Source: docs/json.md "Marks", "Streams".
"""

from __future__ import annotations

import codecs
import math
import re
from collections.abc import Callable, Iterator
from typing import Final

from datalattice.cells.blobs import Blob, Chunked, Text, make_blob, make_text
from datalattice.cells.cell import Cell, Value, encode, text_bytes
from datalattice.cells.index import Index
from datalattice.cells.maps import Map, Set
from datalattice.cells.message import decode
from datalattice.cells.scalars import Address, Char, Keyword, Symbol
from datalattice.cells.scan import branch_hashes
from datalattice.cells.tagged import Coded, Record, Signed, Syntax
from datalattice.cells.text import (
    Inner,
    TextPiece,
    brief,
    double_text,
    integer_text,
    parse_integer,
    quote_json,
)
from datalattice.cells.vectors import List, Vector
from datalattice.errors import BadFormat, DataLatticeError, UsageError
from datalattice.limits import CHUNK_BYTES

SAFE_INTEGER_MAX: Final = 2**53 - 1
"""Greatest integer that every JSON reader keeps exactly; larger ones are marked."""

_PIECE_BYTES: Final = 16 * CHUNK_BYTES
"""Bytes of a long string or blob converted to text at once."""

_SIMPLE: Final = re.compile(r"[ !#%-\[\]-~]*")  # strings and names that need no escape
_HEX: Final = re.compile(r"(?:[0-9a-fA-F]{2})*")


# --- writing ----------------------------------------------------------------------------------


def marked_pieces(value: Value) -> Iterator[TextPiece]:
    """Return the marked JSON text of one value in pieces; inner containers come as `Inner`."""
    if isinstance(value, Vector):
        return _items("[", value, "]")
    if isinstance(value, Map):
        return _members("{", value, "}")
    if isinstance(value, Index):
        return _members('{"$index":{', value, "}}")
    if isinstance(value, Set):
        return _items('{"$set":[', value, "]}")
    if isinstance(value, List):
        return _items('{"$list":[', value, "]}")
    if isinstance(value, Record):
        return _items(f'{{"$record":[{value.digit},[', value, "]]}")
    if isinstance(value, Chunked):
        return _chunked(value)
    return _other_pieces(value)


def _other_pieces(value: Value) -> Iterator[TextPiece]:
    if isinstance(value, Coded):
        yield f'{{"$coded":[{value.digit},'
        yield Inner(value.code)
        yield ","
        yield Inner(value.value)
        yield "]}"
    elif isinstance(value, Syntax):
        yield '{"$syntax":['
        yield Inner(value.value)
        yield ","
        yield Inner(value.meta)
        yield "]}"
    elif isinstance(value, Signed):
        yield f'{{"$signed":{{"public-key":"{value.public_key.hex()}"'
        yield f',"signature":"{value.signature.hex()}","value":'
        yield Inner(value.value)
        yield "}}"
    else:
        yield marked_leaf(value)


def _items(head: str, items: Vector | List | Set | Record, tail: str) -> Iterator[TextPiece]:
    gap = head
    for item in items:
        if isinstance(item, Cell):
            yield gap
            yield Inner(item)
        else:
            yield gap + marked_leaf(item)
        gap = ","
    yield tail if gap == "," else head + tail


def _members(head: str, entries: Map | Index, tail: str) -> Iterator[TextPiece]:
    gap = head
    for key, item in entries.entries():
        # Nearly all names need no escape, and none of these begins with `$`.
        if isinstance(key, str) and _SIMPLE.fullmatch(key):
            name = f'"{key}"'
        else:
            name = quote_json(_key_name(key))
        if isinstance(item, Cell):
            yield f"{gap}{name}:"
            yield Inner(item)
        else:
            yield f"{gap}{name}:{marked_leaf(item)}"
        gap = ","
    yield tail if gap == "," else head + tail


def _chunked(value: Chunked) -> Iterator[TextPiece]:
    """Yield a long string or blob in parts, so that it is never in memory as a whole."""
    length = value.byte_length()
    parts = range(0, length, _PIECE_BYTES)
    # A JSON string is Unicode: other bytes are written as hex under `$utf8`.
    if isinstance(value, Text) and _is_utf8(value):
        decoder = codecs.getincrementaldecoder("utf-8")()
        yield '"'
        for start in parts:
            # Incremental: a piece may end inside a character.
            text = decoder.decode(value.read(start, start + _PIECE_BYTES))
            yield quote_json(text)[1:-1]
        yield '"'
        return
    yield '{"$blob":"' if isinstance(value, Blob) else '{"$utf8":"'
    for start in parts:
        yield value.read(start, start + _PIECE_BYTES).hex()
    yield '"}'


def _is_utf8(value: Text) -> bool:
    decoder = codecs.getincrementaldecoder("utf-8")()
    length = value.byte_length()
    try:
        for start in range(0, length, _PIECE_BYTES):
            stop = start + _PIECE_BYTES
            decoder.decode(value.read(start, stop), stop >= length)
    except UnicodeDecodeError:
        return False
    return True


def _is_whole(text: str) -> bool:
    """Return whether a text has no surrogates, which stand for bytes that are not UTF-8."""
    return text.isascii() or not any(0xD800 <= ord(char) <= 0xDFFF for char in text)


def marked_leaf(value: Value) -> str:
    """Return the marked JSON text of a value without children."""
    if isinstance(value, str):
        if _SIMPLE.fullmatch(value):
            return f'"{value}"'
        if _is_whole(value):
            return quote_json(value)
        return f'{{"$utf8":"{text_bytes(value).hex()}"}}'
    if value is None:
        return "null"
    if isinstance(value, bool):  # separate: compiled code would treat "bool or int" as an int
        return "true" if value else "false"
    if isinstance(value, int):
        # Beyond 2^53 - 1 many JSON readers round, so the digits are written as a string.
        text = integer_text(value)
        return text if -SAFE_INTEGER_MAX <= value <= SAFE_INTEGER_MAX else f'{{"$int":"{text}"}}'
    if isinstance(value, float):
        if math.isfinite(value):
            return double_text(value)
        # RFC 8259 has no such numbers.
        name = "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        return f'{{"$double":"{name}"}}'
    if isinstance(value, bytes):
        return f'{{"$blob":"{value.hex()}"}}'
    if isinstance(value, (Keyword, Symbol)) and _is_whole(value.name):
        kind = "keyword" if isinstance(value, Keyword) else "symbol"
        return f'{{"${kind}":{quote_json(value.name)}}}'
    if isinstance(value, Char) and _is_whole(chr(value.code)):
        return f'{{"$char":{quote_json(chr(value.code))}}}'
    if isinstance(value, Address):
        return f'{{"$address":"{value.number}"}}'
    # Flags, extension values, other NaNs, and names and characters that are not Unicode.
    return f'{{"$cell":"{encode(value).hex()}"}}'


def _key_name(key: Value) -> str:
    """Return the member name of the key `key`."""
    if isinstance(key, (str, Text)):
        text = key if isinstance(key, str) else str(key)
        if _is_whole(text):
            # A name of its own that starts with `$` would read back as a mark.
            return "$string:" + text if text.startswith("$") else text
    elif isinstance(key, (Keyword, Symbol)):
        if _is_whole(key.name):
            return ("$keyword:" if isinstance(key, Keyword) else "$symbol:") + key.name
    elif isinstance(key, (bytes, Blob)):
        return "$blob:" + bytes(key).hex()
    # A bool is an int in Python and another key here: `$json:true`.
    elif isinstance(key, int) and not isinstance(key, bool):
        return "$int:" + integer_text(key)
    elif isinstance(key, Address):
        return f"$address:{key.number}"
    return "$json:" + marked_text(key)


def marked_text(value: Value) -> str:
    """Return the marked JSON text of a value, in memory; used for keys, which are short."""
    return "".join(flat_pieces(value, marked_pieces, None))


def flat_pieces(
    value: Value, pieces: Callable[[Value], Iterator[TextPiece]], depth_max: int | None
) -> Iterator[str]:
    """Yield the text of a value and of all containers inside, without using the stack.

    Raises: UsageError: nested deeper than `depth_max`.
    """
    opened = [pieces(value)]
    while opened:
        piece = next(opened[-1], None)
        if piece is None:
            opened.pop()
        elif isinstance(piece, Inner):
            # Readers of JSON have such a bound too: a deeper text could not be read back.
            if depth_max is not None and len(opened) >= depth_max:
                raise UsageError(f"values are written as text down to {depth_max} levels")
            opened.append(pieces(piece.value))
        else:
            yield piece


# --- reading ----------------------------------------------------------------------------------


def key_of_member(name: str, parse: Callable[[str], Value]) -> Value:
    """Return the key of a member name.

    parse: reads the marked JSON text of a key that has no shorter name.
    Raises: BadFormat: the name starts with `$` and is not a key.
    """
    # A name without the mark is the text itself.
    if not name.startswith("$"):
        return make_text(name)
    kind, colon, rest = name.partition(":")
    if colon and kind == "$json":
        return parse(rest)
    if colon and kind == "$string":
        return make_text(rest)
    # Marks of containers are no key names; such keys are written as `$json:`.
    if colon and kind in _SCALARS:
        return marked_value(kind, rest)
    raise BadFormat(
        f"unknown mark {name[:40]!r}; a key that begins with $ is written as "
        f"{('$string:' + name)[:48]!r}"
    )


def is_mark(name: str) -> bool:
    """Return whether a member name makes its object a mark."""
    return name in _SCALARS or name in _TREES


def marked_value(mark: str, value: Value) -> Value:
    """Return the value of a mark.

    Raises: BadFormat: the mark holds a value of another type than it requires.
    """
    maker = _SCALARS.get(mark) or _TREES[mark]
    try:
        return maker(value)
    except (DataLatticeError, ValueError) as error:
        raise BadFormat(f"the mark {mark} has a wrong value: {error}") from error


def _text_of(value: Value) -> str:
    if not isinstance(value, (str, Text)):
        raise UsageError(f"a string is needed, got {brief(value)}")
    return str(value)


def _hex_of(value: Value) -> bytes:
    text = _text_of(value)
    # `bytes.fromhex` would take blanks too, and a value would have several texts.
    if not _HEX.fullmatch(text):
        raise UsageError(f"an even number of hex digits is needed, got {brief(text)}")
    return bytes.fromhex(text)


def _integer_of(value: Value) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    text = _text_of(value)
    # `int` would also take blanks, a plus and underscores: one value would have several texts.
    if not re.fullmatch(r"-?[0-9]+", text):
        raise UsageError(f"decimal digits are needed, got {brief(text)}")
    return parse_integer(text)


def _vector_of(value: Value, count: int | None = None) -> Vector:
    if not isinstance(value, Vector) or (count is not None and len(value) != count):
        size = "" if count is None else f" of {count}"
        raise UsageError(f"an array{size} is needed, got {brief(value)}")
    return value


def _map_of(value: Value) -> Map:
    if not isinstance(value, Map):
        raise UsageError(f"an object is needed, got {brief(value)}")
    return value


def _double(value: Value) -> Value:
    text = _text_of(value)
    # Finite doubles are JSON numbers; under the mark they would be a second text.
    if text not in ("NaN", "Infinity", "-Infinity"):
        raise UsageError(f"NaN, Infinity or -Infinity is needed, got {brief(text)}")
    return float(text)


def _cell(value: Value) -> Value:
    data = _hex_of(value)
    made = decode(data)
    # The text has this one cell only, so a reference could never be loaded.
    if branch_hashes(data):
        raise UsageError("a cell without references is needed")
    return made


def _utf8(value: Value) -> Value:
    return make_text(_hex_of(value).decode("utf-8", "surrogateescape"))


def _record(value: Value) -> Value:
    digit, fields = _vector_of(value, 2)
    return Record(_integer_of(digit), _vector_of(fields))


def _coded(value: Value) -> Value:
    digit, code, content = _vector_of(value, 3)
    return Coded(_integer_of(digit), code, content)


def _syntax(value: Value) -> Value:
    content, meta = _vector_of(value, 2)
    return Syntax(content, meta)


def _signed(value: Value) -> Value:
    fields = _map_of(value)
    names = ("public-key", "signature", "value")
    # Exactly these members, so that every text of a mark has one meaning.
    if len(fields) != len(names) or any(name not in fields for name in names):
        raise UsageError(f"the members {', '.join(names)} are needed")
    return Signed(_hex_of(fields["public-key"]), _hex_of(fields["signature"]), fields["value"])


_SCALARS: Final[dict[str, Callable[[Value], Value]]] = {
    "$keyword": lambda value: Keyword(_text_of(value)),
    "$symbol": lambda value: Symbol(_text_of(value)),
    "$blob": lambda value: make_blob(_hex_of(value)),
    "$int": _integer_of,
    "$address": lambda value: Address(_integer_of(value)),
    "$double": _double,
    "$char": lambda value: Char(_text_of(value)),
    "$utf8": _utf8,
    "$cell": _cell,
}
_TREES: Final[dict[str, Callable[[Value], Value]]] = {
    "$set": lambda value: Set.of(_vector_of(value)),
    "$list": lambda value: List.of(_vector_of(value)),
    "$index": lambda value: Index.of(_map_of(value).entries()),
    "$record": _record,
    "$coded": _coded,
    "$syntax": _syntax,
    "$signed": _signed,
}
