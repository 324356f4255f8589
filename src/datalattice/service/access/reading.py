"""Reading: signatures, headers and common claims of tokens and delegations.

Source: docs/design/access.md "Tokens".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from datalattice.client.credentials import (
    ALGORITHMS,
    ID_CHARACTERS_MAX,
    TOKEN_TYPE,
    multikey_of,
    split_token,
)
from datalattice.clock import LAST_MS
from datalattice.crypto import verify_strict
from datalattice.lattice import public_key_of
from datalattice.service.access.principal import BadCredential

_ID: Final = re.compile(rf"[\x20-\x7e]{{1,{ID_CHARACTERS_MAX}}}")


def read_signed(text: str) -> tuple[str, Mapping[str, Any]]:
    """Return the issuer, a `did:key`, and the claims of a text that the issuer signed.

    Raises: BadCredential: the header or the signature is invalid. BadFormat: it is malformed.
    """
    parts = split_token(text)
    # "The key comes from `iss`, a `did:key`, never from the header" (docs/design/access.md
    # "Tokens").
    issuer = did_key(parts.claims.get("iss"))
    _check_header(parts.header, issuer)
    key = public_key_of(issuer)
    if key is None or not verify_strict(key, parts.signature, parts.signed):
        raise BadCredential("signature")
    return issuer, parts.claims


def _check_header(header: Mapping[str, Any], issuer: str) -> None:
    # "With one algorithm none can be mistaken for another" (docs/design/access.md "Tokens").
    if header.get("alg") not in ALGORITHMS:
        raise BadCredential("algorithm")
    # Extensions in `crit` must be understood (RFC 7515), and this package knows none.
    if "crit" in header:
        raise BadCredential("critical")
    # The same key signs texts of other types, which must not pass as tokens.
    if "typ" in header and str(header["typ"]).upper() != TOKEN_TYPE:
        raise BadCredential("type")
    if "kid" in header:
        key = public_key_of(issuer)
        multikey = "" if key is None else multikey_of(key)
        # "header kid = multikey of the signer"; the DID and its key URL name the same key.
        if header["kid"] not in (multikey, issuer, f"{issuer}#{multikey}"):
            raise BadCredential("key")


def did_key(did: object) -> str:
    """Return a `did:key`; raise BadCredential for any other text."""
    if not isinstance(did, str) or public_key_of(did) is None:
        raise BadCredential("key")
    return did


def claim_ms(claims: Mapping[str, Any], name: str) -> int:
    """Return a time of the claims in ms; raise BadCredential if it is absent or invalid."""
    value: Any = claims.get(name)
    # `type`: in Python, True is an int. NumericDate may have a fraction (RFC 7519).
    if type(value) not in (int, float) or not 0 <= value <= LAST_MS // 1_000:
        raise BadCredential("time")
    return int(value * 1_000)


def claim_id(claims: Mapping[str, Any], name: str) -> str:
    """Return an id of the claims; raise BadCredential if it is absent or invalid."""
    found = claims.get(name)
    if not isinstance(found, str) or not _ID.fullmatch(found):
        raise BadCredential("token-id")
    return found
