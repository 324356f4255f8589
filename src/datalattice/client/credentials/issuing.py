"""Issuing: tokens and signatures of requests, made with a key pair.

Source: docs/design/access.md "Tokens", "Signed requests".
"""

from __future__ import annotations

from collections.abc import Sequence

from datalattice.client.credentials.forms import (
    ALGORITHMS,
    CONTENT_DIGEST,
    METHOD,
    TARGET,
    TOKEN_LIFE_S_MAX,
    TOKEN_TYPE,
    content_digest,
    encode_part,
    join_token,
    multikey_of,
    signature_base,
    signature_headers,
    signature_params,
)
from datalattice.crypto import Entropy, KeyPair, SystemEntropy
from datalattice.errors import UsageError
from datalattice.lattice import did_of

_ID_BYTES = 16  # 128 random bits: unique without coordination


def make_token(
    key_pair: KeyPair,
    audience: str,
    now_ms: int,
    *,
    subject: str | None = None,
    scopes: Sequence[str] | None = None,
    life_s: int = 600,
    entropy: Entropy | None = None,
) -> str:
    """Return a bearer token of a key pair for one service; it is a secret until it ends.

    audience: the DID of the service, or one of its URLs.
    subject:  the DID that it speaks for; None: the key's own. Only a service names another one.
    scopes:   the rights that it is narrowed to, such as `rw lattice/kv`; None: all of the subject.
    life_s:   seconds until it ends, up to an hour.
    Raises: UsageError: `life_s` is out of range.
    """
    # "There is no list of revoked keys, so a token must end soon" (docs/design/access.md).
    if not 0 < life_s <= TOKEN_LIFE_S_MAX:
        raise UsageError(f"a token lives 1 to {TOKEN_LIFE_S_MAX} s, got {life_s}")
    issuer = did_of(key_pair.public_key)
    issued = now_ms // 1_000
    header = {"alg": ALGORITHMS[0], "typ": TOKEN_TYPE, "kid": multikey_of(key_pair.public_key)}
    claims: dict[str, object] = {
        "iss": issuer,
        "sub": issuer if subject is None else subject,
        "aud": audience,
        "iat": issued,
        "exp": issued + life_s,
        "jti": encode_part((entropy or SystemEntropy()).bytes(_ID_BYTES)),
    }
    if scopes is not None:
        claims["scopes"] = list(scopes)
    signed = join_token(header, claims)
    return f"{signed}.{encode_part(key_pair.sign(signed.encode()))}"


def sign_request(
    key_pair: KeyPair,
    method: str,
    url: str,
    now_ms: int,
    *,
    body_sha256: bytes | None = None,
    entropy: Entropy | None = None,
) -> dict[str, str]:
    """Return the headers that sign one request; a service accepts them once, within a minute.

    url: the whole URL as sent, without fragment. body_sha256: of the body; None without a body.
    Raises: BadFormat: method or URL has characters that are not printable ASCII.
    """
    values = {METHOD: method.upper(), TARGET: url}
    headers: dict[str, str] = {}
    if body_sha256 is not None:
        values[CONTENT_DIGEST] = headers[CONTENT_DIGEST] = content_digest(body_sha256)
    covered = tuple(values)
    nonce = encode_part((entropy or SystemEntropy()).bytes(_ID_BYTES))
    params = signature_params(covered, now_ms // 1_000, did_of(key_pair.public_key), nonce)
    signature = key_pair.sign(signature_base(covered, values, params))
    return {**headers, **signature_headers(params, signature)}
