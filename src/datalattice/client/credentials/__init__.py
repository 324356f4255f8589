"""Credentials: how a caller proves who it is to a service, as text, and the making of both forms.

The service reads what is written here by the same rules; it checks, and nothing here does.
"""

from datalattice.client.credentials.forms import (
    ALGORITHMS,
    CLOCK_SKEW_S,
    CONTENT_DIGEST,
    CREDENTIAL_CHARACTERS_MAX,
    ID_CHARACTERS_MAX,
    METHOD,
    SIGNED_AGE_S_MAX,
    TARGET,
    TOKEN_LIFE_S_MAX,
    TOKEN_TYPE,
    RequestSignature,
    TokenParts,
    content_digest,
    digest_in,
    encode_part,
    is_token,
    join_token,
    multikey_of,
    parse_request_signature,
    signature_base,
    signature_params,
    split_token,
)
from datalattice.client.credentials.issuing import make_token, sign_request

__all__ = [
    "ALGORITHMS",
    "CLOCK_SKEW_S",
    "CONTENT_DIGEST",
    "CREDENTIAL_CHARACTERS_MAX",
    "ID_CHARACTERS_MAX",
    "METHOD",
    "SIGNED_AGE_S_MAX",
    "TARGET",
    "TOKEN_LIFE_S_MAX",
    "TOKEN_TYPE",
    "RequestSignature",
    "TokenParts",
    "content_digest",
    "digest_in",
    "encode_part",
    "is_token",
    "join_token",
    "make_token",
    "multikey_of",
    "parse_request_signature",
    "sign_request",
    "signature_base",
    "signature_params",
    "split_token",
]
