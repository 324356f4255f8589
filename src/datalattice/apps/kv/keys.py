"""Keys: checks of the keys of a store and the fields of a hash.

Source: docs/kv.md "Limits".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from datalattice.cells import Value
from datalattice.errors import TypeMismatch, UsageError
from datalattice.lattice import EXACT_NAME_BYTES_MAX

KEY_BYTES_MAX: Final = EXACT_NAME_BYTES_MAX
"""Most bytes of a key or field in UTF-8."""


def checked_text(text: object, what: str) -> str:
    """Return `text` if it can be stored as a String.

    Raises: TypeMismatch: it is not a str. UsageError: it has a lone surrogate.
    """
    if not isinstance(text, str):
        raise TypeMismatch(f"{what} is not a str: {type(text).__name__}")
    try:
        if not text.isascii():
            text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{what} is not Unicode text: {text!r}") from error
    return text


def checked_key(key: object, what: str) -> str:
    """Return `key` if it can be written as a key or field.

    Raises: as `checked_text`. UsageError: it is too long.
    """
    text = checked_text(key, what)
    # Counted as it is stored: UTF-8, of which ASCII has one byte a character.
    size = len(text) if text.isascii() else len(text.encode())
    if size > KEY_BYTES_MAX:
        raise UsageError(f"{what} has {size} bytes of UTF-8; at most {KEY_BYTES_MAX} bytes fit")
    return text


def checked_values(
    values: Mapping[Any, object], what: str, convert: Callable[[Any], Value]
) -> dict[str, Value]:
    """Return values as cells by checked key; an error's path begins with the key.

    Raises: TypeMismatch: as `convert`, or a key is not a str. UsageError: a key is too long.
    """
    made: dict[str, Value] = {}
    for key, value in values.items():
        name = checked_key(key, what)
        try:
            made[name] = convert(value)
        except TypeMismatch as error:
            raise error.below(key) from None  # the path of the error begins at the key
    return made
