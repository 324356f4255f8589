"""Sealing: encrypts private parts with secrets with a key that only the venue can derive.

Nonce and ciphertext replace the part. Each is bound to its venue and its entry: moved to another
entry, it does not open.

Source: docs/design/venue.md "Secrets".
"""

from __future__ import annotations

from typing import Final

from nacl.exceptions import CryptoError
from nacl.secret import Aead

from datalattice.cells import Map, Value, decode_message, encode_message
from datalattice.crypto import Entropy, KeyPair

SEALED: Final = "sealed"
SECRET: Final = "secret"  # noqa: S105 - a name
"""The member of a part that is true if the part is to be sealed."""

_KEY_CONTEXT: Final = b"datalattice 2026 venue secrets"
_BYTES_MAX: Final = 1 << 31


class PartSealer:
    """Seals and opens parts of one venue."""

    def __init__(self, key_pair: KeyPair, did: str, entropy: Entropy) -> None:
        # A key derived for this purpose alone.
        self._box: Final = Aead(key_pair.seal(_KEY_CONTEXT + did.encode()))
        self._did: Final = did.encode()
        self._entropy: Final = entropy

    def sealed(self, entry: bytes, part: Map) -> Map:
        """Return a part in its form on disk. entry: the key of its entry."""
        if part.get(SECRET) is not True:
            return part
        # "A secret input is sealed with a key derived from the venue key".
        text = encode_message(part, limit=_BYTES_MAX)
        # Random nonces of 24 bytes (XChaCha20-Poly1305) need no counter on disk.
        nonce = self._entropy.bytes(Aead.NONCE_SIZE)
        return Map.of({SEALED: bytes(self._box.encrypt(text, self._did + entry, nonce))})

    def opened(self, entry: bytes, part: Value) -> Value:
        """Return the original of a part; None: it was sealed with another key or entry."""
        text = part.get(SEALED) if isinstance(part, Map) else None
        if not isinstance(text, bytes):
            return part
        try:
            return decode_message(self._box.decrypt(text, self._did + entry), limit=_BYTES_MAX)
        except CryptoError:
            # "A venue with another key cannot, and a job that it finds is FAILED"
            # (docs/design/venue.md).
            return None
