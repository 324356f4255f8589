"""Keys: how the keys of a store and the fields of a hash are named, found and kept apart.

An Index tells keys apart by their first 32 bytes. Longer ones are kept whole and are found under
their full name only; two that an Index cannot tell apart are not both stored.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from datalattice.cells import Index, Scalar, Value, key_bytes
from datalattice.errors import TypeMismatch, UsageError
from datalattice.limits import CHUNK_BYTES, INDEX_KEY_BYTES

KEY_BYTES_MAX: Final = CHUNK_BYTES
"""Longest key or field in UTF-8: what one cell holds."""

SHOWN_CHARS: Final = 100
"""Most of a key that an error shows."""


def key_text(cell: Value) -> str | None:
    """Return a stored key as text, None when its bytes are no text or too many.

    Source: docs/kv.md "Layout".
    """
    if isinstance(cell, str):
        return cell if _bytes_of(cell) is not None else None
    raw = cell if isinstance(cell, bytes) else None
    if isinstance(cell, Scalar):
        raw = cell.key_bytes()
    if raw is None or len(raw) > KEY_BYTES_MAX:
        return None
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None  # such a key cannot be named here


def _bytes_of(text: str) -> int | None:
    """Return the length of a key in UTF-8, None when it has none or is too long."""
    if len(text) > KEY_BYTES_MAX:
        return None
    if text.isascii():
        return len(text)
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        return None  # bytes that are not UTF-8, as surrogate escapes
    return size if size <= KEY_BYTES_MAX else None


def stored_entry(index: Index, key: str) -> Value:
    """Return what is stored under exactly this key, nil when there is nothing.

    Source: docs/kv.md "Limits".
    """
    stored = index.get(key)
    if stored is not None and len(key_bytes(key)) == INDEX_KEY_BYTES:
        return stored if key_text(index.key_cell(key)) == key else None
    return stored


def check_room(index: Index, keys: Iterable[str], what: str) -> None:
    """Refuse a key that an Index could not tell from a stored one, or from another one given.

    Raises: UsageError: it begins with the same 32 bytes.
    Source: docs/kv.md "Limits".
    """
    given: dict[bytes, str] = {}
    for key in keys:
        raw = key_bytes(key)
        if len(raw) < INDEX_KEY_BYTES:
            continue
        held: Value = given.setdefault(raw, key)
        if held == key:
            held = index.key_cell(key)
            if held is None or key_text(held) == key:
                continue
        raise UsageError(
            f"{what} {_shown(key)} cannot be told from {_shown(held)}: "
            f"the first {INDEX_KEY_BYTES} bytes are the same"
        )


def _shown(key: Value) -> str:
    text = repr(key if isinstance(key, (bytes, Scalar)) else key_text(key) or key)
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}..."


def checked_text(text: object, what: str) -> str:
    """Return a name that can be stored as a String.

    Raises: TypeMismatch: it is no str. UsageError: it is no Unicode text (a lone surrogate).
    Source: docs/kv.md "Limits".
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
    Source: docs/kv.md "Limits".
    """
    text = checked_text(key, what)
    if _bytes_of(text) is None:
        size = len(text.encode())
        raise UsageError(f"{what} has at most {KEY_BYTES_MAX} bytes of UTF-8, got {size}")
    return text
