"""Identity: owners named by a DID.

A `did:key` contains its Ed25519 public key. For other DIDs a resolver returns the keys; this
package opens no connection to look them up.

Source: CAD038 "DID owners"; docs/lattices.md "Owners"; CAD043 "DID URLs".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Final

from datalattice.cells import Value
from datalattice.crypto import PUBLIC_KEY_BYTES
from datalattice.errors import UsageError

_PREFIX: Final = "did:key:z"
"""`z` is multibase for base 58 in the Bitcoin alphabet."""

CODE: Final = b"\xed\x01"
"""Multicodec of an Ed25519 public key."""

ALPHABET: Final = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
DIGITS_MAX: Final = 48
"""Most base 58 digits of 34 bytes, plus one; longer text is rejected without parsing."""

DID_PREFIX: Final = "did:"
_KEY_PREFIX: Final = "did:key:"

DID_CHARACTERS_MAX: Final = 2_048
"""Longest DID that is passed to a resolver."""

KEYS_MAX: Final = 100
"""Most keys of one DID that are checked."""

_BARE_DID: Final = re.compile(
    r"did:[a-z0-9]+:(?:[A-Za-z0-9._:-]|%[0-9A-Fa-f]{2})*(?:[A-Za-z0-9._-]|%[0-9A-Fa-f]{2})"
)


def did_of(public_key: bytes) -> str:
    """Return the `did:key` of an Ed25519 public key (32 bytes).

    Raises: UsageError: it has another length.
    """
    if len(public_key) != PUBLIC_KEY_BYTES:
        raise UsageError(f"a public key is {PUBLIC_KEY_BYTES} bytes, got {len(public_key)}")
    # [ed 01][key 32] in base 58, after the `z` of multibase.
    number = int.from_bytes(CODE + public_key, "big")
    digits = ""
    while number:
        number, digit = divmod(number, 58)
        digits = ALPHABET[digit] + digits
    return _PREFIX + digits


def public_key_of(did: Value) -> bytes | None:
    """Return the Ed25519 public key in a `did:key` String, None for anything else."""
    if not isinstance(did, str) or not did.startswith(_PREFIX):
        return None
    digits = did[len(_PREFIX) :]
    # A leading 1 stands for a leading zero byte: it would give one key a second name.
    if not 0 < len(digits) <= DIGITS_MAX or digits.startswith(ALPHABET[0]):
        return None
    number = 0
    for digit in digits:
        value = ALPHABET.find(digit)
        if value < 0:
            return None
        number = number * 58 + value
    size = len(CODE) + PUBLIC_KEY_BYTES
    # 48 digits can stand for more than 34 bytes.
    if number.bit_length() > 8 * size:
        return None
    raw = number.to_bytes(size, "big")
    # [ed 01][key 32]: any other multicodec is another kind of key.
    return raw[len(CODE) :] if raw.startswith(CODE) else None


def verify_did(owner: Value, signer: bytes) -> bool:
    """Return whether `owner` is the `did:key` of `signer`: a verifier for a `MergeContext`."""
    return public_key_of(owner) == signer


def is_bare_did(owner: Value) -> bool:
    """Return whether an owner is a bare DID: a String without path, query or fragment.

    The method and its specific syntax are not checked.
    """
    if not isinstance(owner, str) or len(owner) > DID_CHARACTERS_MAX:
        return False
    # A path, query or fragment would give one owner many names.
    return _BARE_DID.fullmatch(owner) is not None


class DIDVerifier:
    """A verifier for owners that are DIDs.

    A `did:key` contains its key. `others` verifies every other method; without it no signer is
    accepted for one.
    """

    def __init__(self, others: Callable[[Value, bytes], bool] | None = None) -> None:
        self._others: Final = others

    def __call__(self, owner: Value, signer: bytes) -> bool:
        """Return whether `signer` may write for the bare DID `owner`."""
        # A DID with a path or query would be a second name of one owner.
        if not is_bare_did(owner) or not isinstance(owner, str):
            return False
        if owner.startswith(_KEY_PREFIX):
            return verify_did(owner, signer)
        others = self._others
        return others is not None and others(owner, signer)

    def __repr__(self) -> str:
        return f"DIDVerifier({self._others!r})"


Resolver = Callable[[str], Iterable[bytes]]
"""Returns the Ed25519 public keys of a DID, none for an unknown one.

It may raise, which rejects the signer for now. It is called once per checked entry, on the merging
thread, so a resolver that looks keys up elsewhere should cache them.
"""


class ResolvingVerifier:
    """A verifier that asks a resolver about every DID except `did:key`.

    failures: number of times the resolver raised. last_failure: the last error.
    """

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver
        self.failures = 0
        self.last_failure: str | None = None

    def __call__(self, owner: Value, signer: bytes) -> bool:
        """Return whether `signer` is a key of the DID `owner`."""
        if not isinstance(owner, str) or not owner.startswith(DID_PREFIX):
            return False
        if owner.startswith(_KEY_PREFIX):
            return verify_did(owner, signer)
        # Foreign text is bounded before it reaches a resolver.
        if len(owner) > DID_CHARACTERS_MAX:
            return False
        try:
            # A foreign document may list any number of keys.
            return signer in islice(self._resolver(owner), KEYS_MAX)
        except Exception as error:  # noqa: BLE001 - a resolver's error, of any type, is a refusal
            self.failures += 1
            self.last_failure = f"{owner}: {type(error).__name__}: {error}"
            return False

    def __repr__(self) -> str:
        return f"ResolvingVerifier({self._resolver!r})"
