"""Delegating: an owner's signed permission for another DID to use part of its data, as a text.

The text is a UCAN in the form of a token: `iss` gives, `aud` receives, `att` lists the rights,
`prf` has the delegations from which the issuer holds them, if the data is not its own.

Source: docs/design/access.md "Delegations".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from datalattice.client.credentials.forms import (
    ALGORITHMS,
    CREDENTIAL_CHARACTERS_MAX,
    TOKEN_TYPE,
    encode_part,
    join_token,
    multikey_of,
)
from datalattice.crypto import Entropy, KeyPair, SystemEntropy
from datalattice.errors import LimitExceeded, UsageError
from datalattice.lattice import did_of, is_bare_did

DELEGATIONS: Final = "ucans"
"""Name of the header, or gRPC metadata, with a request's delegations, separated by `,`."""

DELEGATION_LIFE_S_MAX: Final = 30 * 24 * 3_600
"""Longest life of a delegation, in seconds: a service remembers a revocation as long."""

ABILITIES: Final = ("*", "crud", "crud/read", "crud/write", "crud/delete")
"""The rights that can be given: all, reading and writing, or one part of these."""

RESOURCES_MAX: Final = 24
"""Most resources of one delegation."""

_NONCE_BYTES = 16


def delegation_headers(delegations: Sequence[str]) -> dict[str, str]:
    """Return the header, or metadata, that carries delegations; empty if there are none.

    Raises: UsageError: `delegations` is a single text, or one of them has a `,`.
    """
    # A single text would pass as a list of its characters.
    if isinstance(delegations, str) or any("," in one for one in delegations):
        raise UsageError("delegations: a list of texts as `lattice key delegate` prints them")
    return {DELEGATIONS: ",".join(delegations)} if delegations else {}


def make_delegation(
    key_pair: KeyPair,
    audience: str,
    given: Mapping[str, str],
    now_ms: int,
    *,
    life_s: int = 24 * 3_600,
    proofs: Sequence[str] = (),
    entropy: Entropy | None = None,
) -> str:
    """Return a delegation of rights from the holder of `key_pair` to the DID `audience`.

    given:  abilities by resource: a DID, or a DID and a path below it, such as
            `did:key:z6Mk.../kv/shop`.
    life_s: seconds until it ends, up to 30 days.
    proofs: delegations to the key pair, for resources that are not its own.
    Raises: UsageError: `audience` is not a DID, a resource or ability is unknown, or `life_s` is
            out of range. LimitExceeded: with its proofs it is longer than a header may be.
    """
    # Checked here, because a service refuses a bad delegation without saying why.
    if not is_bare_did(audience):
        raise UsageError(f"audience: a DID such as did:key:z6Mk..., got {audience!r:.80}")
    if not 0 < life_s <= DELEGATION_LIFE_S_MAX:
        raise UsageError(f"a delegation lives 1 to {DELEGATION_LIFE_S_MAX} s, got {life_s}")
    if not 0 < len(given) <= RESOURCES_MAX:
        raise UsageError(
            f"given: 1 to {RESOURCES_MAX} resources, each with its ability, got {len(given)}"
        )
    for resource, ability in given.items():
        if not is_bare_did(resource.partition("/")[0]):
            raise UsageError(f"a resource is a DID, or one and a path, got {resource!r:.80}")
        if ability not in ABILITIES:
            raise UsageError(f"an ability is one of {', '.join(ABILITIES)}, got {ability!r:.80}")
    issued = now_ms // 1_000
    header = {"alg": ALGORITHMS[0], "typ": TOKEN_TYPE, "kid": multikey_of(key_pair.public_key)}
    claims = {
        "iss": did_of(key_pair.public_key),
        "aud": audience,
        "nbf": issued,
        "exp": issued + life_s,
        # "Links are revoked by `iss` and `nnc`" (docs/design/access.md "Delegations"): each has its
        # own.
        "nnc": encode_part((entropy or SystemEntropy()).bytes(_NONCE_BYTES)),
        "att": [{"with": resource, "can": ability} for resource, ability in given.items()],
        "prf": list(proofs),
    }
    signed = join_token(header, claims)
    text = f"{signed}.{encode_part(key_pair.sign(signed.encode()))}"
    # It is sent in one header and contains its proofs, so the chain has a limited length.
    if len(text) > CREDENTIAL_CHARACTERS_MAX:
        raise LimitExceeded(
            f"a delegation with its proofs has at most {CREDENTIAL_CHARACTERS_MAX} characters, "
            f"this one has {len(text)}"
        )
    return text
