"""Checks: small comparisons with a reason, shared by all runners.

Everything in a vector file is checked for its exact form (lower-case hex, no unknown field,
integers that are integers), because a vector that was changed by one byte must not pass unnoticed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from datalattice.conformance.registry import Fields, Mismatch

SHOWN_CHARACTERS: Final = 160
"""Longest piece of a value in a reason."""

INTEGER_DIGITS_AT_ONCE: Final = 4000
"""Python converts at most 4300 decimal digits in one go."""


def expect(what: str, wanted: object, got: object) -> None:
    """Raise `Mismatch` unless `got` equals `wanted` and has the same type."""
    if type(wanted) is not type(got) or wanted != got:
        raise Mismatch(f"{what}: expected {shown(wanted)}, got {shown(got)}")


def shown(value: object) -> str:
    """Return `value` as text that fits on a line."""
    text = value.hex() if isinstance(value, (bytes, bytearray)) else repr(value)
    if len(text) > SHOWN_CHARACTERS:
        return f"{text[:SHOWN_CHARACTERS]}... ({len(text)} characters)"
    return text


def only_fields(fields: Fields, allowed: Iterable[str]) -> None:
    """Raise `Mismatch` when a vector has a field this kind does not know.

    Fields about the reference implementation (`java_...`, `..._java`) and rejected variants
    (`merged_...`) are comments to us.
    """
    known = set(allowed)
    for name in fields:
        if name in known or name.startswith(("java_", "merged_")) or name.endswith("_java"):
            continue
        raise Mismatch(f"unknown field {name!r}; known: {', '.join(sorted(known))}")


def need(fields: Fields, name: str) -> Any:
    """Return a field that must be there (it may be null)."""
    if name not in fields:
        raise Mismatch(f"field {name!r} is missing")
    return fields[name]


def need_text(fields: Fields, name: str) -> str:
    """Return a field that must be a string."""
    return as_text(need(fields, name), name)


def need_int(fields: Fields, name: str) -> int:
    """Return a field that must be an integer."""
    return as_int(need(fields, name), name)


def need_bool(fields: Fields, name: str) -> bool:
    """Return a field that must be true or false."""
    value = need(fields, name)
    if not isinstance(value, bool):
        raise Mismatch(f"field {name!r}: true or false is needed, got {shown(value)}")
    return value


def need_list(fields: Fields, name: str) -> list[Any]:
    """Return a field that must be an array."""
    return as_list(need(fields, name), name)


def need_fields(fields: Fields, name: str) -> Fields:
    """Return a field that must be an object."""
    return as_fields(need(fields, name), name)


def need_hex(fields: Fields, name: str) -> bytes:
    """Return the bytes of a field that must be lower-case hex."""
    return as_hex(need(fields, name), name)


def as_text(value: object, name: str) -> str:
    """Return `value`, which must be a string."""
    if not isinstance(value, str):
        raise Mismatch(f"{name}: a string is needed, got {shown(value)}")
    return value


def as_int(value: object, name: str) -> int:
    """Return `value`, which must be an integer (true and false are none)."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise Mismatch(f"{name}: an integer is needed, got {shown(value)}")
    return value


def as_list(value: object, name: str, length: int | None = None) -> list[Any]:
    """Return `value`, which must be an array (of `length` elements, when given)."""
    if not isinstance(value, list) or (length is not None and len(value) != length):
        size = "" if length is None else f" of {length}"
        raise Mismatch(f"{name}: an array{size} is needed, got {shown(value)}")
    return value


def as_fields(value: object, name: str) -> Fields:
    """Return `value`, which must be an object."""
    if not isinstance(value, Mapping):
        raise Mismatch(f"{name}: an object is needed, got {shown(value)}")
    return value


def as_hex(value: object, name: str) -> bytes:
    """Return the bytes of `value`, which must be lower-case hex."""
    text = as_text(value, name)
    try:
        data = bytes.fromhex(text)
    except ValueError:
        raise Mismatch(f"{name}: not hex: {shown(text)}") from None
    if data.hex() != text:
        raise Mismatch(f"{name}: hex must be lower case without blanks: {shown(text)}")
    return data


def as_decimal(value: object, name: str) -> int:
    """Return the integer written in `value`: decimal digits without leading zeros, any number."""
    text = as_text(value, name)
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()) or (digits[0] == "0" and text != "0"):
        raise Mismatch(f"{name}: not a plain decimal number: {shown(text)}")
    number = 0
    for start in range(0, len(digits), INTEGER_DIGITS_AT_ONCE):
        piece = digits[start : start + INTEGER_DIGITS_AT_ONCE]
        number = number * 10 ** len(piece) + int(piece)
    return -number if text.startswith("-") else number
