"""Text: the printed form of values, JSON in and JSON out."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from typing import Final

from datalattice.cells.blobs import Blob, Text
from datalattice.cells.cell import Value, encode
from datalattice.cells.index import Index
from datalattice.cells.scalars import Address, Char, Keyword, NanBits, Scalar, Symbol
from datalattice.cells.tagged import Record, Signed, Syntax
from datalattice.cells.trie import Map, Set
from datalattice.cells.vectors import List, Vector
from datalattice.errors import BadFormat, UsageError
from datalattice.limits import INTEGER_TEXT_DIGITS_MAX, TEXT_DEPTH_MAX

_PRINT_ESCAPES: Final = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_JSON_ESCAPES: Final = {**{chr(i): f"\\u{i:04x}" for i in range(32)}, **_PRINT_ESCAPES}
_PRINT_TABLE: Final = str.maketrans(_PRINT_ESCAPES)
_JSON_TABLE: Final = str.maketrans(_JSON_ESCAPES)


def integer_text(number: int) -> str:
    """Return the decimal digits of an integer of any size.

    Source: CAD032.
    """
    if -(10**4000) < number < 10**4000:
        return str(number)
    # The interpreter refuses long conversions by default, against attacks; ours are bounded at 4,096 bytes.
    high, low = divmod(abs(number), 10**4000)
    return ("-" if number < 0 else "") + integer_text(high) + str(low).rjust(4000, "0")


def parse_integer(digits: str) -> int:
    """Return the integer of decimal digits, with or without a sign.

    Raises: BadFormat: more digits than an integer can have.
    Source: CAD032.
    """
    sign = -1 if digits.startswith("-") else 1
    plain = digits.lstrip("+-").lstrip("0") or "0"
    if len(plain) > INTEGER_TEXT_DIGITS_MAX:
        raise BadFormat(
            f"an integer has at most {INTEGER_TEXT_DIGITS_MAX} digits, got {len(plain)}"
        )
    value = 0
    for at in range(0, len(plain), 4000):
        part = plain[at : at + 4000]
        value = value * 10 ** len(part) + int(part)
    if value.bit_length() > 32767:
        raise BadFormat("an integer has at most 4096 bytes")
    return sign * value


def double_text(number: float) -> str:
    """Return the shortest decimal text of a finite double: plain from 1e-3 to 1e7, else with an exponent `E`.

    Source: CAD032; docs/cells.md "JSON mapping".
    """
    if number == 0:
        return "-0.0" if math.copysign(1, number) < 0 else "0.0"
    sign, digits, exponent = Decimal(repr(number)).as_tuple()
    text = "".join(map(str, digits)).rstrip("0") or "0"
    point = len(digits) + int(exponent)  # the value is 0.DIGITS * 10**point
    if len(text) == 1:
        text = _two_digits(abs(number), text, point)
    head = "-" if sign else ""
    if 1e-3 <= abs(number) < 1e7:
        if point <= 0:
            return f"{head}0.{'0' * -point}{text}"
        text = text.ljust(point + 1, "0")
        return f"{head}{text[:point]}.{text[point:]}"
    return f"{head}{text[0]}.{text[1:] or '0'}E{point - 1}"


def _two_digits(number: float, text: str, point: int) -> str:
    """Return the nearest two-digit decimal that reads back equal: the smallest double prints 4.9E-324, not 5e-324."""
    exact = Decimal(number)
    best = text + "0"
    unit = Decimal(1).scaleb(point - 2)
    middle = int(text) * 10
    for candidate in range(max(middle - 9, 10), min(middle + 10, 100)):
        value = candidate * unit
        if float(value) == number and abs(value - exact) < abs(int(best) * unit - exact):
            best = str(candidate)
    return best.rstrip("0") or "0"


def to_text(value: Value) -> str:
    """Return the printed form of a value, as the reference's reader would accept it.

    Raises: UsageError: nested more than 500 levels; MissingData: a part of it is not here.
    Source: CAD032.
    """
    out: list[str] = []
    _print(value, out, 0)
    return "".join(out)


def _print(value: Value, out: list[str], depth: int) -> None:
    if depth > TEXT_DEPTH_MAX:
        raise UsageError(f"values are printed down to {TEXT_DEPTH_MAX} levels")
    if isinstance(value, Signed) and value.public_key:
        out.append(
            f"#Signed {{:public-key 0x{value.public_key.hex()},:signature 0x{value.signature.hex()},:value "
        )
        _print(value.value, out, depth + 1)
        out.append("}")
    elif isinstance(value, Syntax):
        out.append("^")
        _print(value.meta if value.meta is not None else Map(), out, depth + 1)
        out.append(" ")
        _print(value.value, out, depth + 1)
    elif isinstance(value, Vector):
        _print_items("[", value, "]", out, depth)
    elif isinstance(value, List):
        _print_items("(", value, ")", out, depth)
    elif isinstance(value, Map):
        _print_entries("{", value, out, depth)
    elif isinstance(value, Index):
        _print_entries("#Index {", value, out, depth)
    elif isinstance(value, Set):
        _print_items("#{", value, "}", out, depth, ",")
    else:
        out.append(_print_leaf(value))


def _print_leaf(value: Value) -> str:
    if value is None:
        return "nil"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return integer_text(value)
    if isinstance(value, float):
        if math.isfinite(value):
            return double_text(value)
        return "##NaN" if value != value else "##Inf" if value > 0 else "##-Inf"
    if isinstance(value, (str, Text)):
        return '"' + str(value).translate(_PRINT_TABLE) + '"'
    if isinstance(value, (bytes, Blob)):
        return "0x" + bytes(value).hex()
    if isinstance(value, Scalar):
        return value.text()
    return "#[" + encode(value).hex() + "]"


def _print_items(
    head: str, items: Vector | List | Set, tail: str, out: list[str], depth: int, gap: str = " "
) -> None:
    out.append(head)
    for i, item in enumerate(items):
        if i:
            out.append(gap)
        _print(item, out, depth + 1)
    out.append(tail)


def _print_entries(head: str, entries: Map | Index, out: list[str], depth: int) -> None:
    out.append(head)
    for i, (key, item) in enumerate(entries.entries()):
        if i:
            out.append(",")
        _print(key, out, depth + 1)
        out.append(" ")
        _print(item, out, depth + 1)
    out.append("}")


def to_json(value: Value, *, json5: bool = False) -> str:
    """Return the JSON text of a value, without blanks; `json5` writes NaN and infinities, which plain JSON gives as null.

    Lossy where JSON has no counterpart: keywords become strings, blobs "0x.." strings, sets arrays.
    Raises: UsageError: nested more than 500 levels; MissingData: a part of it is not here.
    Source: CAD044.
    """
    out: list[str] = []
    _write_json(value, out, 0, json5)
    return "".join(out)


def _write_json(value: Value, out: list[str], depth: int, json5: bool) -> None:
    if depth > TEXT_DEPTH_MAX:
        raise UsageError(f"values are written as JSON down to {TEXT_DEPTH_MAX} levels")
    if isinstance(value, (Vector, List, Set)):
        out.append("[")
        for i, item in enumerate(value):
            if i:
                out.append(",")
            _write_json(item, out, depth + 1, json5)
        out.append("]")
    elif isinstance(value, (Map, Index, Record)):
        pairs = (
            value.entries()
            if not isinstance(value, Record)
            else ((str(i), item) for i, item in enumerate(value))
        )
        out.append("{")
        for i, (key, item) in enumerate(pairs):
            out.append(("," if i else "") + _quote(_json_key(key)) + ":")
            _write_json(item, out, depth + 1, json5)
        out.append("}")
    else:
        out.append(_json_leaf(value, json5))


def _json_leaf(value: Value, json5: bool) -> str:
    if value is None:
        return "null"
    if isinstance(value, (bool, int)):
        return _print_leaf(value)
    if isinstance(value, (float, NanBits)):
        if isinstance(value, float) and math.isfinite(value):
            return double_text(value)
        if not json5:
            return "null"
        return (
            "NaN"
            if isinstance(value, NanBits) or value != value
            else "Infinity"
            if value > 0
            else "-Infinity"
        )
    if isinstance(value, (str, Text)):
        return _quote(str(value))
    if isinstance(value, Char):
        return _quote(chr(value.code))
    if isinstance(value, (Keyword, Symbol)):
        return _quote(value.name)
    if isinstance(value, (bytes, Blob)):
        return _quote("0x" + bytes(value).hex())
    if isinstance(value, Address):
        return str(value.number)
    return _quote(to_text(value))


def _json_key(key: Value) -> str:
    if isinstance(key, (str, Text)):
        return str(key)
    if isinstance(key, (Keyword, Symbol)):
        return key.name
    return to_text(key)


def _quote(text: str) -> str:
    return '"' + text.translate(_JSON_TABLE) + '"'


def _refuse(token: str) -> object:
    raise BadFormat(f"not JSON: {token}")


def from_json(text: str) -> Value:
    """Return the value of a JSON text: objects to Map (the last of equal keys wins), arrays to Vector, numbers to Integer or Double.

    Raises: BadFormat: not JSON by RFC 8259, or nested more than 500 levels.
    Source: CAD044.
    """
    if _depth_of(text) > TEXT_DEPTH_MAX:
        raise BadFormat(f"JSON is read down to {TEXT_DEPTH_MAX} levels")
    try:
        return _decoder.decode(text)
    except ValueError as error:
        if isinstance(error, BadFormat):
            raise
        raise BadFormat(f"not JSON: {error}") from error


def _depth_of(text: str) -> int:
    depth = deepest = 0
    quoted = escaped = False
    for char in text:
        if quoted:
            if escaped:
                escaped = False
            elif char == "\\":
                escaped = True
            elif char == '"':
                quoted = False
        elif char == '"':
            quoted = True
        elif char in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif char in "]}":
            depth -= 1
    return deepest


class _Decoder(json.JSONDecoder):
    """The standard decoder, with arrays and objects made into values."""

    def decode(self, s: str, *_: object) -> Value:
        return _admit_json(super().decode(s))


def _admit_json(tree: object) -> Value:
    if isinstance(tree, list):
        return Vector.of([_admit_json(item) for item in tree])
    if isinstance(tree, dict):
        return Map.of([(key, _admit_json(item)) for key, item in tree.items()])
    return tree


_decoder: Final = _Decoder(parse_int=parse_integer, parse_constant=_refuse, strict=True)
