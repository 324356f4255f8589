"""Identity: owners named by a `did:key`.

Such a name carries its Ed25519 public key in its text, so nobody has to look it up.
"""

from __future__ import annotations

from typing import Final

from datalattice.cells import Value
from datalattice.crypto import PUBLIC_KEY_BYTES
from datalattice.errors import UsageError

PREFIX: Final = "did:key:z"
"""`z` is multibase for base 58 in the Bitcoin alphabet."""

CODE: Final = b"\xed\x01"
"""Multicodec of an Ed25519 public key."""

ALPHABET: Final = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
DIGITS_MAX: Final = 48
"""Base 58 digits that 34 bytes can need, with one to spare; longer text is refused unread."""


def did_of(public_key: bytes) -> str:
    """Return the `did:key` of an Ed25519 public key (32 bytes).

    Source: CAD038 "DID owners"; docs/lattices.md "Owners".
    """
    if len(public_key) != PUBLIC_KEY_BYTES:
        raise UsageError(f"a public key is {PUBLIC_KEY_BYTES} bytes")
    number = int.from_bytes(CODE + public_key, "big")
    digits = ""
    while number:
        number, digit = divmod(number, 58)
        digits = ALPHABET[digit] + digits
    return PREFIX + digits


def public_key_of(did: Value) -> bytes | None:
    """Return the Ed25519 public key inside a `did:key` String, nil for anything else.

    Source: CAD038 "DID owners"; docs/lattices.md "Owners".
    """
    if not isinstance(did, str) or not did.startswith(PREFIX):
        return None
    digits = did[len(PREFIX) :]
    if not 0 < len(digits) <= DIGITS_MAX:
        return None
    number = 0
    for digit in digits:
        place = ALPHABET.find(digit)
        if place < 0:
            return None
        number = number * 58 + place
    size = len(CODE) + PUBLIC_KEY_BYTES
    if number.bit_length() > 8 * size:
        return None
    raw = number.to_bytes(size, "big")
    return raw[len(CODE) :] if raw.startswith(CODE) else None


def verify_did(owner: Value, signer: bytes) -> bool:
    """Return whether `signer` is the key inside the `did:key` that `owner` is.

    A verifier for a `MergeContext`.

    Source: CAD038 "DID owners"; docs/lattices.md "Owners".
    """
    return public_key_of(owner) == signer
