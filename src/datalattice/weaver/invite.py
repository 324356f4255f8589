"""Invite: the token with which a node may join a store, as text to be passed on.

    token = Base58(version 0x4c, InviteToken, checksum)
    checksum = first 4 bytes of SHA-256(SHA-256(version, InviteToken))

The store keeps only the BLAKE3 of the secret. Source: Weaver specification "Join and bootstrap".
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Final

from datalattice.crypto import PUBLIC_KEY_BYTES, blake3
from datalattice.errors import BadFormat, UsageError
from datalattice.protobuf import Field, Message
from datalattice.weaver.storeid import STORE_ID_BYTES

SECRET_BYTES: Final = 32
TOKEN_CHARACTERS_MAX: Final = 4_096
"""Longest token that is read: Base58 costs the square of its length."""

_VERSION: Final = 0x4C
_CHECKSUM_BYTES: Final = 4
# Without 0, O, I and l, which people confuse.
_ALPHABET: Final = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_DIGITS: Final = {character: digit for digit, character in enumerate(_ALPHABET)}


class InviteToken(Message, name="lattice.storage.InviteToken"):
    """Which store, the secret, who invites, and where to reach it.

    Shapes: store_id: 16 bytes. secret: 32 bytes when made here. inviter: 32 bytes. addresses:
            `tls://host:port`, `iroh://KEY@host:port`; readers that do not know the field skip it.
    """

    store_id: Annotated[bytes, Field(1)] = b""
    secret: Annotated[bytes, Field(2)] = b""
    inviter: Annotated[bytes, Field(3)] = b""
    addresses: Annotated[tuple[str, ...], Field(4)] = ()

    @property
    def secret_hash(self) -> bytes:
        """The 32-byte BLAKE3 of the secret, which the store keeps in its place."""
        return blake3(self.secret)

    def to_text(self) -> str:
        """Return the token as text.

        Raises: UsageError: store_id or inviter has the wrong length.
        """
        if len(self.store_id) != STORE_ID_BYTES or len(self.inviter) != PUBLIC_KEY_BYTES:
            raise UsageError(
                f"an invite names a store by {STORE_ID_BYTES} bytes and the inviter by "
                f"{PUBLIC_KEY_BYTES}, got {len(self.store_id)} and {len(self.inviter)}"
            )
        body = bytes((_VERSION,)) + self.encode()  # the version is under the checksum, too
        return _base58(body + _checksum(body))

    @classmethod
    def from_text(cls, text: str) -> InviteToken:
        """Return the token that `text` spells.

        Raises: BadFormat: the text is not a token; the reason says which check failed.
        """
        if len(text) > TOKEN_CHARACTERS_MAX:
            raise BadFormat(f"an invite token has at most {TOKEN_CHARACTERS_MAX} characters")
        if "://" in text:
            raise BadFormat("this is a ticket, the addresses of a node; an invite names a store")
        data = _unbase58(text)
        if len(data) <= _CHECKSUM_BYTES:  # "fewer than 5 bytes"
            raise BadFormat("the invite token is too short")
        body, checksum = data[:-_CHECKSUM_BYTES], data[-_CHECKSUM_BYTES:]
        if checksum != _checksum(body):  # before the version: a typing error must be named as one
            raise BadFormat("the checksum of the invite token is wrong: a character is mistyped")
        if body[0] != _VERSION:
            raise BadFormat(f"the invite token has version {body[0]}, not {_VERSION}")
        token = cls.decode(body[1:])
        if len(token.store_id) != STORE_ID_BYTES or len(token.inviter) != PUBLIC_KEY_BYTES:
            raise BadFormat(
                f"an invite token names a store by {STORE_ID_BYTES} bytes and the inviter by "
                f"{PUBLIC_KEY_BYTES}, got {len(token.store_id)} and {len(token.inviter)}"
            )
        return token


def _checksum(body: bytes) -> bytes:
    # As in Bitcoin's Base58Check.
    return hashlib.sha256(hashlib.sha256(body).digest()).digest()[:_CHECKSUM_BYTES]


def _base58(data: bytes) -> str:
    """Return `data` in Base58: a number in 58 digits, a leading "1" for each leading zero byte."""
    number, out = int.from_bytes(data, "big"), ""
    while number:
        number, digit = divmod(number, len(_ALPHABET))
        out = _ALPHABET[digit] + out
    return _ALPHABET[0] * (len(data) - len(data.lstrip(b"\0"))) + out


def _unbase58(text: str) -> bytes:
    number = 0
    for character in text:
        digit = _DIGITS.get(character)
        if digit is None:
            raise BadFormat(f"{character!r} is not a character of an invite token (Base58)")
        number = number * len(_ALPHABET) + digit
    zeros = len(text) - len(text.lstrip(_ALPHABET[0]))  # zero bytes have no digits of their own
    return bytes(zeros) + number.to_bytes((number.bit_length() + 7) // 8, "big")
