"""Keys: what may be the key of a store or the field of a hash.

Source: docs/kv.md "Limits".
"""

from __future__ import annotations

from typing import Final

from datalattice.errors import TypeMismatch, UsageError
from datalattice.lattice import NAME_BYTES_MAX

KEY_BYTES_MAX: Final = NAME_BYTES_MAX
"""Longest key or field in UTF-8."""


def checked_text(text: object, what: str) -> str:
    """Return a name that can be stored as a String.

    Raises: TypeMismatch: it is no str. UsageError: it is no Unicode text (a lone surrogate).
    """
    if not isinstance(text, str):
        raise TypeMismatch(f"{what} is a str, got {type(text).__name__}")
    try:
        if not text.isascii():
            text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{what} is Unicode text, got {text!r}") from error
    return text


def checked_key(key: object, what: str) -> str:
    """Return a key or field that may be written.

    Raises: as `checked_text`. UsageError: it is too long.
    """
    text = checked_text(key, what)
    size = len(text) if text.isascii() else len(text.encode())
    if size > KEY_BYTES_MAX:
        raise UsageError(f"{what} has at most {KEY_BYTES_MAX} bytes of UTF-8, got {size}")
    return text
