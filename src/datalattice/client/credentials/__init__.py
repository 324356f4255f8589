"""Credentials: texts by which a caller proves its DID to a service, and its rights to others' data.

The service reads them by the same rules and checks them; nothing here checks a signature.
"""

from datalattice.client.credentials.delegating import (
    ABILITIES as ABILITIES,
    DELEGATION_LIFE_S_MAX as DELEGATION_LIFE_S_MAX,
    DELEGATIONS as DELEGATIONS,
    RESOURCES_MAX as RESOURCES_MAX,
    delegation_headers as delegation_headers,
    make_delegation as make_delegation,
)
from datalattice.client.credentials.forms import (
    ALGORITHMS as ALGORITHMS,
    CLOCK_SKEW_S as CLOCK_SKEW_S,
    CONTENT_DIGEST as CONTENT_DIGEST,
    CREDENTIAL_CHARACTERS_MAX as CREDENTIAL_CHARACTERS_MAX,
    ID_CHARACTERS_MAX as ID_CHARACTERS_MAX,
    METHOD as METHOD,
    SIGNED_AGE_S_MAX as SIGNED_AGE_S_MAX,
    TARGET as TARGET,
    TOKEN_LIFE_S_MAX as TOKEN_LIFE_S_MAX,
    TOKEN_TYPE as TOKEN_TYPE,
    RequestSignature as RequestSignature,
    TokenParts as TokenParts,
    content_digest as content_digest,
    digest_in as digest_in,
    encode_part as encode_part,
    is_token as is_token,
    join_token as join_token,
    multikey_of as multikey_of,
    parse_request_signature as parse_request_signature,
    signature_base as signature_base,
    signature_params as signature_params,
    split_token as split_token,
)
from datalattice.client.credentials.issuing import (
    make_token as make_token,
    sign_request as sign_request,
)
