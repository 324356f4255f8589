"""Store id: 16 bytes that name a store everywhere, written as a UUID."""

from __future__ import annotations

from typing import Final

from datalattice.crypto import Entropy
from datalattice.errors import UsageError

STORE_ID_BYTES: Final = 16

_GROUPS: Final = (8, 4, 4, 4, 12)
"""Hex digits of the five groups of a UUID."""

_HEX_DIGITS: Final = frozenset("0123456789abcdef")


def new_store_id(entropy: Entropy) -> bytes:
    """Return a random store id, a UUID of version 4."""
    raw = bytearray(entropy.bytes(STORE_ID_BYTES))
    raw[6] = raw[6] & 0x0F | 0x40  # version 4
    raw[8] = raw[8] & 0x3F | 0x80  # variant of RFC 4122
    return bytes(raw)


def store_id_text(store_id: bytes) -> str:
    """Return the id as a hyphenated, lower-case UUID."""
    digits, parts = store_id.hex(), []
    for size in _GROUPS:
        parts.append(digits[:size])
        digits = digits[size:]
    return "-".join(parts)


def parse_store_id(text: str) -> bytes:
    """Return the store id that `text`, a UUID, names.

    Raises: UsageError: the text is not 32 hex digits in groups of 8, 4, 4, 4 and 12.
    """
    digits = text.replace("-", "").lower()
    # All five groups: other texts without hyphens are names, not ids.
    is_uuid = tuple(map(len, text.split("-"))) == _GROUPS and set(digits) <= _HEX_DIGITS
    if not is_uuid:
        raise UsageError(f"a store id is a UUID such as {store_id_text(bytes(16))}, got {text!r}")
    return bytes.fromhex(digits)
