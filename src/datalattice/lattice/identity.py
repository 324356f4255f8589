"""Identity: owners named by a DID.

A `did:key` carries its Ed25519 public key in its text, so nobody has to look it up. What keys any
other DID stands for, a resolver says; this package opens no connection to find out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from itertools import islice
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


DID_PREFIX: Final = "did:"
KEY_PREFIX: Final = "did:key:"

DID_CHARACTERS_MAX: Final = 2_048
"""Longest DID that a resolver is asked about."""

KEYS_MAX: Final = 100
"""Keys of one DID that are looked at."""

_BARE_DID: Final = re.compile(
    r"did:[a-z0-9]+:(?:[A-Za-z0-9._:-]|%[0-9A-Fa-f]{2})*(?:[A-Za-z0-9._-]|%[0-9A-Fa-f]{2})"
)


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
    # A leading 1 is a leading zero byte: more than the 34, and a second name for one key.
    if not 0 < len(digits) <= DIGITS_MAX or digits.startswith(ALPHABET[0]):
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


def is_bare_did(owner: Value) -> bool:
    """Return whether a key is a DID as it names an owner: a String, no path, query or fragment.

    Whether the method is known, and what its part of the text must look like, is not asked.

    Source: CAD043 "DID URLs"; docs/lattices.md "Owners".
    """
    if not isinstance(owner, str) or len(owner) > DID_CHARACTERS_MAX:
        return False
    return _BARE_DID.fullmatch(owner) is not None


class DIDVerifier:
    """A verifier for owners that are DIDs: the key of a `did:key` is in its text.

    `others` is asked about every other method; without it nobody may write for one.

    Source: CAD038 "DID owners"; docs/lattices.md "Owners".
    """

    def __init__(self, others: Callable[[Value, bytes], bool] | None = None) -> None:
        self._others: Final = others

    def __call__(self, owner: Value, signer: bytes) -> bool:
        """Return whether `signer` may write for the bare DID that `owner` is."""
        if not is_bare_did(owner) or not isinstance(owner, str):
            return False
        if owner.startswith(KEY_PREFIX):
            return verify_did(owner, signer)
        others = self._others
        return others is not None and others(owner, signer)

    def __repr__(self) -> str:
        return f"DIDVerifier({self._others!r})"


Resolver = Callable[[str], Iterable[bytes]]
"""Returns the Ed25519 public keys that a DID stands for, none for one that stands for nothing.

It may raise: then nobody may write for that owner just now. It is asked once for each entry that is
judged, on the thread that merges, so whoever looks keys up elsewhere keeps what was found.
"""


class ResolvingVerifier:
    """A verifier that asks a resolver about every DID but `did:key`, whose key is in its text.

    failures: how often the resolver raised; last_failure: why, the last time.

    Source: CAD038 "DID owners"; docs/lattices.md "Owners".
    """

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver
        self.failures = 0
        self.last_failure: str | None = None

    def __call__(self, owner: Value, signer: bytes) -> bool:
        """Return whether `signer` is a key of the DID that `owner` is."""
        if not isinstance(owner, str) or not owner.startswith(DID_PREFIX):
            return False
        if owner.startswith(KEY_PREFIX):
            return verify_did(owner, signer)
        if len(owner) > DID_CHARACTERS_MAX:
            return False
        try:
            return signer in islice(self._resolver(owner), KEYS_MAX)
        except Exception as error:  # noqa: BLE001 - whatever a resolver meets, nobody is authorised
            self.failures += 1
            self.last_failure = f"{owner}: {type(error).__name__}: {error}"
            return False

    def __repr__(self) -> str:
        return f"ResolvingVerifier({self._resolver!r})"


def resolving_verifier(resolver: Resolver) -> ResolvingVerifier:
    """Return a verifier for owners that are DIDs of any method, `did:key` built in.

    Source: CAD038 "DID owners"; docs/lattices.md "Owners".
    """
    return ResolvingVerifier(resolver)
