"""Checks: comparisons and readers of fields, shared by all runners. Errors name the field.

The form of a vector file is checked exactly (lower-case hex, no unknown field, integers that are
integers), so that a vector changed by one byte is noticed.
"""

from __future__ import annotations

from typing import Any, Final

SHOWN_CHARACTERS: Final = 160
"""Longest text of a value in an error."""

INTEGER_DIGITS_AT_ONCE: Final = 4000
"""Digits converted in one step: Python refuses more than 4,300."""


class Mismatch(Exception):
    """A vector does not hold here; the text says what was expected and what was found."""


def expect(what: str, wanted: object, got: object) -> None:
    """Raise `Mismatch` unless `got` equals `wanted` and has the same type."""
    # The types count, because True == 1 == 1.0 in Python.
    if type(wanted) is not type(got) or wanted != got:
        raise Mismatch(f"{what}: expected {shown(wanted)}, got {shown(got)}")


def shown(value: object) -> str:
    """Return `value` as text that fits on a line."""
    text = value.hex() if isinstance(value, (bytes, bytearray)) else repr(value)
    if len(text) > SHOWN_CHARACTERS:
        return f"{text[:SHOWN_CHARACTERS]}... ({len(text)} characters)"
    return text


def as_text(value: object, name: str) -> str:
    """Return `value`, which must be a string."""
    if not isinstance(value, str):
        raise Mismatch(f"{name}: a string is needed, got {shown(value)}")
    return value


def as_int(value: object, name: str) -> int:
    """Return `value`, which must be an integer; true and false are refused."""
    if not isinstance(value, int) or isinstance(value, bool):  # a bool is an int in Python
        raise Mismatch(f"{name}: an integer is needed, got {shown(value)}")
    return value


def as_bool(value: object, name: str) -> bool:
    """Return `value`, which must be true or false."""
    if not isinstance(value, bool):
        raise Mismatch(f"{name}: true or false is needed, got {shown(value)}")
    return value


def as_list(value: object, name: str, length: int | None = None) -> list[Any]:
    """Return `value`, which must be an array (of `length` elements, when given)."""
    # The length is part of the form: a missing element would shift the meaning of the others.
    if not isinstance(value, list) or (length is not None and len(value) != length):
        size = "" if length is None else f" of {length}"
        raise Mismatch(f"{name}: an array{size} is needed, got {shown(value)}")
    return value


def as_fields(value: object, name: str) -> Fields:
    """Return `value`, which must be an object."""
    if not isinstance(value, dict):
        raise Mismatch(f"{name}: an object is needed, got {shown(value)}")
    return value if isinstance(value, Fields) else Fields(value)


def as_hex(value: object, name: str) -> bytes:
    """Return the bytes of `value`, which must be lower-case hex."""
    text = as_text(value, name)
    try:
        data = bytes.fromhex(text)
    except ValueError:
        raise Mismatch(f"{name}: not hex: {shown(text)}") from None
    if data.hex() != text:  # `fromhex` also takes upper case and blanks
        raise Mismatch(f"{name}: hex must be lower case without blanks: {shown(text)}")
    return data


def as_decimal(value: object, name: str) -> int:
    """Return the integer written in `value`: decimal digits without leading zeros, any number."""
    text = as_text(value, name)
    digits = text.removeprefix("-")
    # `isdigit` also takes digits of other scripts; a leading zero would be a second spelling.
    if not (digits.isascii() and digits.isdigit()) or (digits[0] == "0" and text != "0"):
        raise Mismatch(f"{name}: not a plain decimal number: {shown(text)}")
    number = 0
    for start in range(0, len(digits), INTEGER_DIGITS_AT_ONCE):
        piece = digits[start : start + INTEGER_DIGITS_AT_ONCE]
        number = number * 10 ** len(piece) + int(piece)
    return -number if text.startswith("-") else number


class Fields(dict[str, Any]):
    """An object of a vector file. Its readers raise `Mismatch` for an absent or malformed field."""

    def only(self, *allowed: str) -> None:
        """Raise `Mismatch` if there is a field that its kind does not know."""
        # Fields about the reference (`java_...`) and rejected variants (`merged_...`) are comments.
        for name in self:
            if name in allowed or name.startswith(("java_", "merged_")) or name.endswith("_java"):
                continue
            raise Mismatch(f"unknown field {name!r}; known: {', '.join(sorted(set(allowed)))}")

    def need(self, name: str) -> Any:
        """Return a field, which may be null."""
        if name not in self:
            raise Mismatch(f"field {name!r} is missing")
        return self[name]

    def text(self, name: str) -> str:
        """Return a field that is a string."""
        return as_text(self.need(name), name)

    def integer(self, name: str) -> int:
        """Return a field that is an integer."""
        return as_int(self.need(name), name)

    def truth(self, name: str) -> bool:
        """Return a field that is true or false."""
        return as_bool(self.need(name), name)

    def array(self, name: str) -> list[Any]:
        """Return a field that is an array."""
        return as_list(self.need(name), name)

    def fields(self, name: str) -> Fields:
        """Return a field that is an object."""
        return as_fields(self.need(name), name)

    def hex(self, name: str) -> bytes:
        """Return the bytes of a field that is lower-case hex."""
        return as_hex(self.need(name), name)

    def expect(self, name: str, got: object) -> None:
        """Raise `Mismatch` unless a field is `got`; bytes stand as hex."""
        # JSON has no bytes: files write them in hex.
        expect(name, self.hex(name) if isinstance(got, bytes) else self.need(name), got)
