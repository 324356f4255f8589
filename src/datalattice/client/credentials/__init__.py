"""Credentials: how a caller proves to a service who it is and what others let it do, as text.

The service reads what is written here by the same rules; it checks, and nothing here does.
"""

from datalattice.client.credentials.delegating import (
    ABILITIES,
    DELEGATION_LIFE_S_MAX,
    DELEGATIONS,
    RESOURCES_MAX,
    make_delegation,
)
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
    "ABILITIES",
    "ALGORITHMS",
    "CLOCK_SKEW_S",
    "CONTENT_DIGEST",
    "CREDENTIAL_CHARACTERS_MAX",
    "DELEGATIONS",
    "DELEGATION_LIFE_S_MAX",
    "ID_CHARACTERS_MAX",
    "METHOD",
    "RESOURCES_MAX",
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
    "make_delegation",
    "make_token",
    "multikey_of",
    "parse_request_signature",
    "sign_request",
    "signature_base",
    "signature_params",
    "split_token",
]
