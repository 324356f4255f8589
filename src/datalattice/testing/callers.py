"""Callers: keys, a node, tokens with chosen claims and signed requests, for tests of a service."""

from __future__ import annotations

from typing import Any

from datalattice.client.credentials import encode_part, join_token, make_token, sign_request
from datalattice.crypto import KeyPair, SeededEntropy
from datalattice.engine import MemoryEngine
from datalattice.lattice import did_of
from datalattice.service.access import SPENT_TABLE, Authenticator, Credentials, RateLimits, SpentIds

NODE, ALICE, BOB = (KeyPair(letter * 32) for letter in (b"n", b"a", b"b"))
NODE_DID, ALICE_DID, BOB_DID = (did_of(one.public_key) for one in (NODE, ALICE, BOB))
URL = "https://node.example:18080"
CALL_TARGET = f"{URL}/api/v1/values?form=raw"
NOW_MS = 1_700_000_000_000
NOW_S = NOW_MS // 1_000


def authenticator(failures: RateLimits | None = None) -> Authenticator:
    """Return an authenticator of the node with an empty memory."""
    return Authenticator(NODE_DID, [URL], SpentIds(MemoryEngine([SPENT_TABLE])), failures)


def bearer(token: str) -> Credentials:
    """Return a request with a token."""
    return Credentials("GET", CALL_TARGET, {"Authorization": f"Bearer {token}"})


def token_of(key: KeyPair = ALICE, **settings: Any) -> str:
    """Return a token as a client makes it."""
    settings = {"entropy": SeededEntropy(1), **settings}
    return make_token(key, settings.pop("audience", NODE_DID), NOW_MS, **settings)


def chosen_token(
    claims: dict[str, Any] | None = None,
    header: dict[str, Any] | None = None,
    *,
    key: KeyPair = ALICE,
    without: str = "",
) -> str:
    """Return a token with chosen members, signed by `key`."""
    named = {
        "iss": ALICE_DID,
        "sub": ALICE_DID,
        "aud": NODE_DID,
        "iat": NOW_S,
        "exp": NOW_S + 600,
        "jti": "one",
        **(claims or {}),
    }
    named.pop(without, None)
    return signed_token({"alg": "EdDSA", **(header or {})}, named, key)


def signed_token(header: dict[str, Any], claims: dict[str, Any], key: KeyPair = ALICE) -> str:
    """Return a token of any header and claims."""
    text = join_token(header, claims)
    return f"{text}.{encode_part(key.sign(text.encode()))}"


def raw_token(header: str, claims: str, key: KeyPair = ALICE) -> str:
    """Return a token of any two texts."""
    text = f"{encode_part(header.encode())}.{encode_part(claims.encode())}"
    return f"{text}.{encode_part(key.sign(text.encode()))}"


def signed_call(
    key: KeyPair = ALICE,
    *,
    method: str = "GET",
    url: str = CALL_TARGET,
    body_sha256: bytes | None = None,
    now_ms: int = NOW_MS,
    seed: int = 1,
    is_unread: bool = False,
) -> Credentials:
    """Return a signed request as a client makes it."""
    headers = sign_request(
        key, method, url, now_ms, body_sha256=body_sha256, entropy=SeededEntropy(seed)
    )
    return Credentials(method, url, headers, body_sha256, is_unread)
