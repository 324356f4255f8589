"""Text: the printed form of values, and their JSON form.

Source: CAD044; docs/cells.md "JSON mapping", "Printed form"; CAD032.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Final

from datalattice.cells.blobs import Blob, Chunked, Text
from datalattice.cells.cell import Value, encode, to_value
from datalattice.cells.index import Index
from datalattice.cells.maps import Map, Set
from datalattice.cells.scalars import Address, Char, Keyword, NanBits, Scalar, Symbol
from datalattice.cells.tagged import Record, Signed, Syntax
from datalattice.cells.vectors import List, Vector
from datalattice.errors import BadFormat, LimitExceeded, UsageError
from datalattice.limits import (
    HASH_BYTES,
    INTEGER_BYTES_MAX,
    INTEGER_TEXT_DIGITS_MAX,
    TEXT_DEPTH_MAX,
    TEXT_MAX,
)

_PRINT_ESCAPES: Final = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_JSON_ESCAPES: Final = {**{chr(i): f"\\u{i:04x}" for i in range(32)}, **_PRINT_ESCAPES}
_PRINT_TABLE: Final = str.maketrans(_PRINT_ESCAPES)
_JSON_TABLE: Final = str.maketrans(_JSON_ESCAPES)
_JSON_ESCAPED: Final = re.compile(r'["\\\x00-\x1f]')
JOINED_PIECES: Final = 10_000  # pieces that are joined into one string
PIECE_MIN: Final = 8  # least number of characters that a piece counts as
_SHORT_DIGITS: Final = 600  # int() converts this many whatever limit the interpreter has
PLAIN_BITS_MAX: Final = 13_000  # an integer of this many bits has fewer than 4,000 digits
BRIEF_ITEMS_MAX: Final = 16  # elements of a tuple
BRIEF_LENGTH_MAX: Final = 100  # characters of a text, bytes of a blob
BRIEF_BITS_MAX: Final = 256  # of an integer


def brief(value: object) -> str:
    """Return a short text of a value, or of a tuple of values, for errors and logs.

    A foreign value may be as long as a cell can be, so the text is cut.
    """
    if isinstance(value, tuple):
        shown = [brief(one) for one in value[:BRIEF_ITEMS_MAX]]
        if len(value) > BRIEF_ITEMS_MAX:
            shown.append(f"... {len(value)} in all")
        return "(" + ", ".join(shown) + ("," if len(value) == 1 else "") + ")"
    if isinstance(value, int) and value.bit_length() > BRIEF_BITS_MAX:
        return f"<Integer of {value.bit_length()} bits>"
    if isinstance(value, bytes) and len(value) == HASH_BYTES:  # a hash, or a public key
        return "0x" + value.hex()
    if isinstance(value, (str, bytes)) and len(value) > BRIEF_LENGTH_MAX:
        return f"{value[:BRIEF_LENGTH_MAX]!r}... of {len(value)}"
    return repr(value)


def integer_text(number: int) -> str:
    """Return the decimal digits of an integer of any size."""
    # Python refuses conversions of more than 4,300 digits.
    if number.bit_length() < PLAIN_BITS_MAX or -(10**4000) < number < 10**4000:
        return str(number)
    # The interpreter refuses long conversions by default; integers here have at most 4,096 bytes.
    high, low = divmod(abs(number), 10**4000)
    return ("-" if number < 0 else "") + integer_text(high) + str(low).rjust(4000, "0")


def parse_integer(digits: str) -> int:
    """Return the integer of decimal digits, with or without a sign.

    Raises: BadFormat: more digits than the largest integer has.
    """
    # Python takes quadratic time for long integers, and refuses them by default.
    if len(digits) <= _SHORT_DIGITS:
        return int(digits)
    sign = -1 if digits.startswith("-") else 1
    plain = digits.lstrip("+-").lstrip("0") or "0"
    # Before the conversion, whose cost grows with the square of the length.
    if len(plain) > INTEGER_TEXT_DIGITS_MAX:
        raise BadFormat(
            f"an integer has at most {INTEGER_TEXT_DIGITS_MAX} digits, got {len(plain)}"
        )
    value = 0
    for at in range(0, len(plain), 4000):
        part = plain[at : at + 4000]
        value = value * 10 ** len(part) + int(part)
    value *= sign
    # Two's complement needs one bit more, for the sign.
    if (value if value >= 0 else ~value).bit_length() >= 8 * INTEGER_BYTES_MAX:
        raise BadFormat(f"an integer has at most {INTEGER_BYTES_MAX} bytes")
    return value


def double_text(number: float) -> str:
    """Return the shortest decimal text of a double: plain from 1e-3 to 1e7, else with `E`."""
    # Minus zero is a value of its own, with another encoding.
    if number == 0:
        return "-0.0" if math.copysign(1, number) < 0 else "0.0"
    # "Plain from 10^-3 to below 10^7, else like `1.0E7`" (docs/cells.md "JSON mapping").
    if 1e-3 <= number < 1e7 or -1e7 < number <= -1e-3:
        return repr(number)
    sign, digits, exponent = Decimal(repr(number)).as_tuple()
    text = "".join(map(str, digits)).rstrip("0") or "0"
    point = len(digits) + int(exponent)  # the value is 0.DIGITS * 10**point
    if len(text) == 1:
        text = _two_digits(abs(number), text, point)
    head = "-" if sign else ""
    return f"{head}{text[0]}.{text[1:] or '0'}E{point - 1}"


def _two_digits(number: float, text: str, point: int) -> str:
    """Return the nearest two-digit decimal that reads back equal: 4.9E-324 instead of 5e-324."""
    exact = Decimal(number)
    best = text + "0"
    unit = Decimal(1).scaleb(point - 2)
    middle = int(text) * 10
    for candidate in range(max(middle - 9, 10), min(middle + 10, 100)):
        value = candidate * unit
        # Of the decimals that read back equal, the nearest to the exact value.
        if float(value) == number and abs(value - exact) < abs(int(best) * unit - exact):
            best = str(candidate)
    return best.rstrip("0") or "0"


class Inner:
    """A nested container in a stream of pieces of text."""

    __slots__ = ("value",)

    def __init__(self, value: Value) -> None:
        self.value = value


TextPiece = str | Inner
Writer = Callable[[Value], Iterator[TextPiece]]
"""Yields the pieces of one value: text, and containers still to be written."""


def _written(value: Value, pieces: Writer) -> str:
    """Return the text of a value. Open containers are kept in a list, so nesting uses no stack."""
    done: list[str] = []
    out: list[str] = []
    room = TEXT_MAX
    opened: list[Iterator[TextPiece]] = [pieces(value)]
    while opened:
        piece = next(opened[-1], None)
        if piece is None:
            opened.pop()
        elif isinstance(piece, str):
            out.append(piece)
            # Small pieces count as PIECE_MIN characters, since each costs memory as an object.
            room -= max(len(piece), PIECE_MIN)
            if room < 0:
                raise _too_long()
            if len(out) > JOINED_PIECES:  # small strings take far more memory than their text
                done.append("".join(out))
                out.clear()
        elif len(opened) >= TEXT_DEPTH_MAX:
            raise UsageError(f"values are written as text down to {TEXT_DEPTH_MAX} levels")
        else:
            opened.append(pieces(piece.value))
    return encodable("".join(done) + "".join(out))


def _too_long() -> LimitExceeded:
    return LimitExceeded(f"a value is written as text of at most {TEXT_MAX} characters")


def _within_limit(value: Value) -> None:
    """Raise LimitExceeded if a string or blob is longer than any text may be."""
    # By the length alone: no chunk is loaded for it.
    if isinstance(value, Chunked) and value.byte_length() > TEXT_MAX:
        raise _too_long()


def encodable(text: str) -> str:
    r"""Return `text` with surrogates (bytes that are not UTF-8) written as `\udc80`.

    Otherwise encoding would fail much later, at the terminal or file it is written to.
    """
    # Most texts are ASCII, and `isascii` only reads a flag of the string.
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode()
    return text


def to_text(value: Value) -> str:
    """Return the printed form of a value, which the reference's reader accepts.

    Raises: UsageError: nested more than 500 levels. LimitExceeded: more than 100,000,000
            characters. MissingData: a cell is missing.
    """
    return _written(value, _print)


def _print(value: Value) -> Iterator[TextPiece]:
    # Without a key it is printed as hex: the printed form of a Signed value has a key.
    if isinstance(value, Signed) and value.public_key:
        yield f"#Signed {{:public-key 0x{value.public_key.hex()}"
        yield f",:signature 0x{value.signature.hex()},:value "
        yield _printed(value.value)
        yield "}"
    elif isinstance(value, Syntax):
        yield "^"
        yield _printed(value.meta if value.meta is not None else Map())
        yield " "
        yield _printed(value.value)
    elif isinstance(value, Vector):
        yield from _print_items("[", value, "]", " ")
    elif isinstance(value, List):
        yield from _print_items("(", value, ")", " ")
    elif isinstance(value, Set):
        yield from _print_items("#{", value, "}", ",")
    elif isinstance(value, (Map, Index)):
        yield "{" if isinstance(value, Map) else "#Index {"
        gap = ""
        for key, item in value.entries():
            yield gap
            yield _printed(key)
            yield " "
            yield _printed(item)
            gap = ","
        yield "}"
    else:
        yield _print_leaf(value)


def _print_items(
    head: str, items: Vector | List | Set, tail: str, between: str
) -> Iterator[TextPiece]:
    yield head
    gap = ""
    for item in items:
        yield gap
        yield _printed(item)
        gap = between
    yield tail


def _printed(value: Value) -> TextPiece:
    if isinstance(value, (Vector, List, Set, Map, Index, Syntax, Signed)):
        return Inner(value)
    return _print_leaf(value)


def _print_leaf(value: Value) -> str:
    _within_limit(value)
    if value is None:
        return "nil"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return integer_text(value)
    if isinstance(value, float):
        if math.isfinite(value):
            return double_text(value)
        return "##NaN" if math.isnan(value) else "##Inf" if value > 0 else "##-Inf"
    if isinstance(value, (str, Text)):
        return '"' + str(value).translate(_PRINT_TABLE) + '"'
    if isinstance(value, (bytes, Blob)):
        return "0x" + bytes(value).hex()
    if isinstance(value, Scalar):
        return value.text()
    return "#[" + encode(value).hex() + "]"


def to_json(value: Value, *, json5: bool = False) -> str:
    """Return the JSON text of a value, or of a Python object that has one, without blanks.

    `json5` writes NaN and infinities, which plain JSON writes as null. Types without a counterpart
    are lost: keywords become strings, blobs "0x.." strings, sets arrays.
    Raises: UsageError: nested more than 500 levels. LimitExceeded: more than 100,000,000
            characters. MissingData: a cell is missing. TypeMismatch: as `to_cell`.
    """
    return _written(to_value(value), _write_json5 if json5 else json_pieces)


def _write_json5(value: Value) -> Iterator[TextPiece]:
    return json_pieces(value, json5=True)


def json_pieces(value: Value, *, json5: bool = False) -> Iterator[TextPiece]:
    """Yield the JSON text of one value in pieces; containers inside it are yielded as `Inner`."""
    if isinstance(value, (Vector, List, Set)):
        gap = "["
        for item in value:
            piece = _json_piece(item, json5)
            if isinstance(piece, str):
                yield gap + piece
            else:
                yield gap
                yield piece
            gap = ","
        yield "]" if gap == "," else "[]"
    elif isinstance(value, (Map, Index, Record)):
        gap = "{"
        for key, item in enumerate(value) if isinstance(value, Record) else value.entries():
            piece = _json_piece(item, json5)
            name = quote_json(_json_key(key))
            if isinstance(piece, str):
                yield f"{gap}{name}:{piece}"
            else:
                yield f"{gap}{name}:"
                yield piece
            gap = ","
        yield "}" if gap == "," else "{}"
    else:
        yield _json_leaf(value, json5)


def _json_piece(value: Value, json5: bool) -> TextPiece:
    if isinstance(value, (Vector, List, Set, Map, Index, Record)):
        return Inner(value)
    return _json_leaf(value, json5)


def _json_leaf(value: Value, json5: bool) -> str:
    _within_limit(value)
    if value is None:
        return "null"
    if isinstance(value, bool):  # separate: compiled code would treat "bool or int" as an int
        return "true" if value else "false"
    if isinstance(value, int):
        return integer_text(value)
    if isinstance(value, (float, NanBits)):
        if isinstance(value, float) and math.isfinite(value):
            return double_text(value)
        # "NaN and infinities: null" (docs/cells.md "JSON mapping"): JSON has no such numbers.
        if not json5:
            return "null"
        return (
            "NaN"
            if isinstance(value, NanBits) or math.isnan(value)
            else "Infinity"
            if value > 0
            else "-Infinity"
        )
    if isinstance(value, (str, Text)):
        return quote_json(str(value))
    if isinstance(value, Char):
        return quote_json(chr(value.code))
    if isinstance(value, (Keyword, Symbol)):
        return quote_json(value.name)
    if isinstance(value, (bytes, Blob)):
        return quote_json("0x" + bytes(value).hex())
    if isinstance(value, Address):
        return str(value.number)
    return quote_json(to_text(value))


def _json_key(key: Value) -> str:
    """Return the text of an object's key; the keys of a Record are its field numbers."""
    _within_limit(key)
    if isinstance(key, (str, Text)):
        return str(key)
    if isinstance(key, (Keyword, Symbol)):
        return key.name
    return to_text(key)


def quote_json(text: str) -> str:
    """Return a text as a JSON string."""
    # Most texts need no escape, and are not copied for it.
    if _JSON_ESCAPED.search(text) is None:
        return f'"{text}"'
    return '"' + text.translate(_JSON_TABLE) + '"'


def refuse_json(token: str) -> object:
    """Raise BadFormat for a word that Python's decoder accepts, such as NaN."""
    raise BadFormat(f"not JSON: {token}")


def whole_json(text: str) -> str:
    """Return `text`, a string of a JSON text; raise BadFormat if it has a lone surrogate."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise BadFormat("not JSON: a string holds half of a character pair") from None
    return text
