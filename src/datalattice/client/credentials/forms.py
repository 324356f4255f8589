"""Forms: the text of the two credentials, a compact JWS and a signature of an HTTP request.

A token is `header.claims.signature`, each in base64url without padding (RFC 7515), signed by
Ed25519 over the ASCII text of the first two. A signed request has `Signature-Input` and `Signature`
(RFC 9421) in one profile: one label, plain components, and the parameters below.

Each value has one text, so that what was signed is what is read: base64 with stray bits, a member
named twice, or a second signature is refused. No error here quotes a credential.

Source: docs/design/access.md "Tokens", "Signed requests".
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from datalattice.crypto import SIGNATURE_BYTES
from datalattice.errors import BadFormat
from datalattice.lattice import did_of

ALGORITHMS: Final = ("EdDSA", "Ed25519")
"""Names of the one signature algorithm: of RFC 8037, and of RFC 9864, which replaces it."""

TOKEN_TYPE: Final = "JWT"  # noqa: S105 - the name of a form
TOKEN_LIFE_S_MAX: Final = 3_600
CLOCK_SKEW_S: Final = 60
"""Greatest allowed difference between the clocks of caller and service, in seconds."""

SIGNED_AGE_S_MAX: Final = 60
"""Seconds after which a signed request is too old."""

CREDENTIAL_CHARACTERS_MAX: Final = 8_192  # what HTTP servers take as one header
"""Longest header with a credential, in characters."""

ID_CHARACTERS_MAX: Final = 128
"""Longest `jti` or nonce."""

BRACKETS_MAX: Final = 64  # a token has 2 objects and a few arrays; no nesting can be deeper
"""Most opening brackets in the JSON of a token."""

METHOD: Final = "@method"
TARGET: Final = "@target-uri"
CONTENT_DIGEST: Final = "content-digest"
_COMPONENTS: Final = (METHOD, TARGET, CONTENT_DIGEST)
_ED25519: Final = "ed25519"
_LABEL: Final = "sig"

_JWS: Final = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
_PLAIN: Final = r'"([\x20\x21\x23-\x5b\x5d-\x7e]*)"'  # a string of RFC 8941 without escapes
_INPUT: Final = re.compile(rf"[a-z*][a-z0-9_.*-]*=(\(({_PLAIN}(?: {_PLAIN})*)?\)(.*))")
_PARAMETER: Final = re.compile(rf";([a-z]+)=(?:{_PLAIN}|([0-9]{{1,12}}))")
_BYTES: Final = r":([A-Za-z0-9+/]*={0,2}):"
_SIGNATURE: Final = re.compile(rf"([a-z*][a-z0-9_.*-]*)={_BYTES}")
_DIGEST: Final = re.compile(rf"([a-z*][a-z0-9_.*-]*)={_BYTES}")
_SHA256: Final = "sha-256"
_LONG: Final = f"a header has at most {CREDENTIAL_CHARACTERS_MAX} characters"
_SHA256_BYTES: Final = 32


def multikey_of(public_key: bytes) -> str:
    """Return an Ed25519 public key (32 bytes) as a multikey: the last part of its `did:key`."""
    return did_of(public_key).removeprefix("did:key:")


class TokenParts(NamedTuple):
    """A token that was read; its signature is unchecked. signed: the bytes that it covers."""

    header: dict[str, Any]
    claims: dict[str, Any]
    signed: bytes
    signature: bytes


def join_token(header: Mapping[str, object], claims: Mapping[str, object]) -> str:
    """Return the signed part of a token's text: `header.claims`."""
    parts = [json.dumps(part, separators=(",", ":")).encode() for part in (header, claims)]
    return ".".join([encode_part(part) for part in parts])


def is_token(text: str) -> bool:
    """Return whether a text has the form of a token, and so may be a secret."""
    return _JWS.fullmatch(text) is not None


def split_token(text: str) -> TokenParts:
    """Return the parts of a token. Raises: BadFormat: the text has another form."""
    if len(text) > CREDENTIAL_CHARACTERS_MAX:
        raise BadFormat(f"a token has at most {CREDENTIAL_CHARACTERS_MAX} characters")
    if not is_token(text):
        raise BadFormat("a token is three parts in base64url with dots between them")
    signed, _, signature = text.rpartition(".")
    header, _, claims = signed.partition(".")
    found = decode_part(signature)
    if len(found) != SIGNATURE_BYTES:
        raise BadFormat(f"a signature has {SIGNATURE_BYTES} bytes")
    return TokenParts(_object(header), _object(claims), signed.encode(), found)


def encode_part(data: bytes) -> str:
    """Return bytes in base64url without padding."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def decode_part(text: str) -> bytes:
    """Return the bytes of base64url without padding.

    Raises: BadFormat: `encode_part` would give these bytes another text.
    """
    try:
        data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (binascii.Error, ValueError) as error:
        raise BadFormat("not base64url") from error
    if encode_part(data) != text:  # stray bits at the end would give one token several texts
        raise BadFormat("base64url with surplus bits that are not zero")
    return data


def _object(part: str) -> dict[str, Any]:
    try:
        text = _shallow(decode_part(part).decode("utf-8"))
        found = json.loads(text, object_pairs_hook=_members, parse_constant=_refuse)
    except ValueError:
        # Without its cause: the decoder's error carries the text.
        raise BadFormat("a part of a token is not JSON in UTF-8") from None
    if not isinstance(found, dict):
        raise BadFormat("a part of a token is not a JSON object")
    return found


def _shallow(text: str) -> str:
    if text.count("[") + text.count("{") > BRACKETS_MAX:  # before the decoder recurses
        raise BadFormat("the JSON of a token is nested too deeply")
    return text


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    # Readers differ in which of two members with one name they take.
    if len(found) != len(pairs):
        raise BadFormat("a JSON object of a token names a member twice")
    return found


def _refuse(_name: str) -> Any:
    raise BadFormat("JSON has no NaN and no Infinity")


class RequestSignature(NamedTuple):
    """A request's signature that was read; it is unchecked.

    covered: the names of the signed components. params: the text of these names and of the
    parameters, which is signed unchanged.
    """

    covered: tuple[str, ...]
    params: str
    created_s: int
    expires_s: int | None
    key_id: str
    nonce: str
    signature: bytes


def signature_params(covered: tuple[str, ...], created_s: int, key_id: str, nonce: str) -> str:
    """Return the text of a signature's parameters."""
    names = " ".join([f'"{name}"' for name in covered])
    return f'({names});created={created_s};keyid="{key_id}";nonce="{nonce}";alg="{_ED25519}"'


def signature_headers(params: str, signature: bytes) -> dict[str, str]:
    """Return the two headers of a signed request."""
    return {
        "signature-input": f"{_LABEL}={params}",
        "signature": f"{_LABEL}=:{base64.b64encode(signature).decode()}:",
    }


def signature_base(covered: tuple[str, ...], values: Mapping[str, str], params: str) -> bytes:
    """Return the bytes that are signed: a line for each component, then the parameters.

    Raises: BadFormat: a value is missing, or is not printable ASCII.
    """
    lines = []
    for name in covered:
        value = values.get(name)
        # A line end inside a value would begin another component.
        if value is None or not (value.isascii() and value.isprintable()):
            raise BadFormat(f"{name} is missing or is not printable ASCII")
        lines.append(f'"{name}": {value}\n')
    return f'{"".join(lines)}"@signature-params": {params}'.encode()


def parse_request_signature(signature_input: str, signature: str) -> RequestSignature:
    """Return the signature in the two headers of a request.

    Raises: BadFormat: it is malformed or outside the profile: it has several signatures, an unknown
            or repeated component or parameter, or another algorithm.
    """
    # Checked before the patterns run: the text comes from a stranger and may have any length.
    if max(len(signature_input), len(signature)) > CREDENTIAL_CHARACTERS_MAX:
        raise BadFormat(_LONG)
    found, given = _INPUT.fullmatch(signature_input), _SIGNATURE.fullmatch(signature)
    if found is None or given is None:
        raise BadFormat("Signature-Input and Signature have one signature of plain components")
    if signature_input.partition("=")[0] != given[1]:
        raise BadFormat("Signature and Signature-Input have different labels")
    covered = tuple((found[2] or "").replace('"', "").split())
    # Components outside the profile are refused: a service could not say what they protect.
    if len(set(covered)) != len(covered) or not set(covered) <= set(_COMPONENTS):
        raise BadFormat(f"components are {', '.join(_COMPONENTS)}, each once")
    texts, numbers = _parameters(found[5])
    if not {"keyid", "nonce"} <= set(texts) <= {"keyid", "nonce", "alg"}:
        raise BadFormat("a signature has the parameters keyid and nonce, and may have alg")
    if not {"created"} <= set(numbers) <= {"created", "expires"}:
        raise BadFormat("a signature has the parameter created, and may have expires")
    if texts.get("alg", _ED25519) != _ED25519:
        raise BadFormat(f"the algorithm is {_ED25519}")
    if not 0 < len(texts["nonce"]) <= ID_CHARACTERS_MAX:
        raise BadFormat(f"a nonce has 1 to {ID_CHARACTERS_MAX} characters")
    raw = _base64(given[2])
    if len(raw) != SIGNATURE_BYTES:
        raise BadFormat(f"a signature has {SIGNATURE_BYTES} bytes")
    created, expires = numbers["created"], numbers.get("expires")
    return RequestSignature(
        covered, found[1], created, expires, texts["keyid"], texts["nonce"], raw
    )


def _parameters(text: str) -> tuple[dict[str, str], dict[str, int]]:
    texts: dict[str, str] = {}
    numbers: dict[str, int] = {}
    at = 0
    while at < len(text):
        found = _PARAMETER.match(text, at)
        # Readers differ in which of two parameters with one name they take.
        if found is None or found[1] in texts or found[1] in numbers:
            raise BadFormat("a parameter of a signature is malformed or repeated")
        if found[3] is None:
            texts[found[1]] = found[2]
        else:
            numbers[found[1]] = int(found[3])
        at = found.end()
    return texts, numbers


def content_digest(sha256: bytes) -> str:
    """Return the header Content-Digest (RFC 9530) for a body with this SHA-256."""
    return f"{_SHA256}=:{base64.b64encode(sha256).decode()}:"


def digest_in(header: str) -> bytes:
    """Return the SHA-256 in a header Content-Digest.

    Raises: BadFormat: it is malformed, has no sha-256, or repeats an algorithm.
    """
    if len(header) > CREDENTIAL_CHARACTERS_MAX:
        raise BadFormat(_LONG)
    found: dict[str, bytes] = {}
    for part in header.split(","):
        member = _DIGEST.fullmatch(part.strip(" \t"))
        # Other algorithms are allowed beside it (RFC 9530), each once.
        if member is None or member[1] in found:
            raise BadFormat("Content-Digest is not a list of digests, each once")
        found[member[1]] = _base64(member[2])
    if len(found.get(_SHA256, b"")) != _SHA256_BYTES:
        raise BadFormat(f"Content-Digest has no {_SHA256} of {_SHA256_BYTES} bytes")
    return found[_SHA256]


def _base64(text: str) -> bytes:
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadFormat("not base64") from error
    if base64.b64encode(data).decode() != text:
        raise BadFormat("base64 with surplus bits that are not zero")
    return data
