"""Spent: ids that are refused until they end: used nonces of requests, and revoked tokens.

    id  [i][digest 32] -> [end, ms, 8]      finds an id
    end [e][end, ms, 8][digest 32] -> []    lists the ids in the order of their ends

A table of an engine has them, so that they survive a restart.
"""

from __future__ import annotations

from itertools import islice
from typing import Final

from datalattice.crypto import blake3
from datalattice.engine import Engine, WriteTxn
from datalattice.errors import RateLimited
from datalattice.service.access.principal import BadCredential

SPENT_TABLE: Final = "spent"

SPENT_MAX: Final = 100_000
"""Most ids in the table."""

SWEPT: Final = 64  # more than one, so that the table shrinks to the ids that have not ended
"""Most ended ids that are removed with each new id."""

_NONCE: Final = "nonce"
_TOKEN: Final = "token"  # noqa: S105 - a kind of id


class SpentIds:
    """The ids in the table `spent` of an engine. Any thread may call a method."""

    def __init__(self, engine: Engine, ids_max: int = SPENT_MAX) -> None:
        self._engine = engine
        self._ids_max = ids_max

    def spend(self, did: str, nonce: str, ends_ms: int, now_ms: int) -> None:
        """Add a nonce of a caller until `ends_ms`.

        Raises: BadCredential: it was used before. RateLimited: the table is full.
        """
        digest = _digest(_NONCE, did, nonce)
        # One transaction: of two requests with one nonce, one is refused.
        with self._engine.write() as txn:
            known = txn.get(SPENT_TABLE, b"i" + digest)
            if known is not None and int.from_bytes(known, "big") > now_ms:
                raise BadCredential("replayed")
            self._add(txn, digest, ends_ms, now_ms)

    def revoke(self, did: str, token_id: str, ends_ms: int, now_ms: int) -> None:
        """Refuse the token of this issuer and id until `ends_ms`.

        Raises: RateLimited: the table is full.
        """
        digest = _digest(_TOKEN, did, token_id)
        with self._engine.write() as txn:
            self._add(txn, digest, ends_ms, now_ms)

    def is_revoked(self, did: str, token_id: str) -> bool:
        """Return whether a token has been revoked."""
        with self._engine.read() as txn:
            # Without a look at the end: the token has ended before its revocation does.
            return txn.get(SPENT_TABLE, b"i" + _digest(_TOKEN, did, token_id)) is not None

    def _add(self, txn: WriteTxn, digest: bytes, ends_ms: int, now_ms: int) -> None:
        ended = list(islice(txn.scan(SPENT_TABLE, b"e", b"e" + _time(now_ms + 1)), SWEPT))
        for key, _ in ended:
            txn.delete(SPENT_TABLE, key)
            # An id that was renewed has a later end, which stays.
            if txn.get(SPENT_TABLE, b"i" + key[9:]) == key[1:9]:
                txn.delete(SPENT_TABLE, b"i" + key[9:])
        # "full: 429 for that principal": an id removed before its end could be used again.
        if txn.count(SPENT_TABLE) >= 2 * self._ids_max:  # two rows an id
            raise RateLimited("the table of used nonces and revoked tokens is full; use a token")
        end = _time(ends_ms)
        txn.put(SPENT_TABLE, b"i" + digest, end)
        txn.put(SPENT_TABLE, b"e" + end + digest, b"")


def _digest(kind: str, did: str, name: str) -> bytes:
    # Kind and DID contain no line end, so the text of a triple is unambiguous.
    return blake3(f"{kind}\n{did}\n{name}".encode())


def _time(ms: int) -> bytes:
    return ms.to_bytes(8, "big")
