"""Authenticating: from what a caller shows to who it is.

Source: docs/design/access.md "Who asks", "Tokens", "Signed requests".
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import parse_qsl

from datalattice.client.credentials import (
    ALGORITHMS,
    CLOCK_SKEW_S,
    CONTENT_DIGEST,
    ID_CHARACTERS_MAX,
    METHOD,
    SIGNED_AGE_S_MAX,
    TARGET,
    TOKEN_LIFE_S_MAX,
    TOKEN_TYPE,
    digest_in,
    is_token,
    multikey_of,
    parse_request_signature,
    signature_base,
    split_token,
)
from datalattice.clock import LAST_MS
from datalattice.crypto import verify_strict
from datalattice.errors import BadFormat, UsageError
from datalattice.lattice import is_bare_did, public_key_of
from datalattice.service.access.limits import RateLimits
from datalattice.service.access.principal import (
    ANONYMOUS,
    NOWHERE,
    BadCredential,
    Origin,
    Principal,
)
from datalattice.service.access.scopes import Grant, parse_grants
from datalattice.service.access.spent import SpentIds

TOKENS_MAX: Final = 10_000
"""Most verified tokens that are known again."""

AUDIENCES_MAX: Final = 16
"""Most audiences of one token."""

_BEARER: Final = "bearer"
_ID: Final = re.compile(rf"[\x20-\x7e]{{1,{ID_CHARACTERS_MAX}}}")
_NO_BODY: Final = hashlib.sha256().digest()
_QUERY_NAMES: Final = ("access_token", "authorization")
_OBJECT: Final = "eyJ"  # `{"` in base64url: how every token begins
_ORIGIN: Final = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*://[^/?#@]+)")


@dataclass(frozen=True, slots=True, repr=False)
class Credentials:
    """What a door knows of a caller before it knows who that is.

    method, url: of the request, the URL whole as the caller sent it; empty where there is none.
    headers:     by name, in any case; a header that came twice has its values with `, ` between.
    body_sha256: of the body, None without one. is_unread: there is a body, and it comes later: call
                 `check_body` at its end, before anything is done with it.
    local:       `process`, or `socket` where the door has checked that only our user can open it.
    origin:      where the call came in.
    """

    method: str = ""
    url: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    body_sha256: bytes | None = None
    is_unread: bool = False
    local: Literal["process", "socket"] | None = None
    origin: Origin = NOWHERE

    def __repr__(self) -> str:
        # Neither headers nor the query: both may hold secrets.
        return f"Credentials({self.method} {self.url.partition('?')[0]})"

    def credential_headers(self) -> dict[str, str]:
        """Return the headers that matter here, by their names in lower case."""
        found: dict[str, str] = {}
        for name, value in self.headers.items():
            key = name.lower()
            if key in ("authorization", "signature", "signature-input", CONTENT_DIGEST):
                found[key] = f"{found[key]}, {value}" if key in found else value
        return found


class _Verified(NamedTuple):
    """A token that was verified, with what is checked again each time."""

    principal: Principal
    begins_ms: int
    token_id: str


class Authenticator:
    """Tells who a caller is. A method may be called by any thread.

    did:      of this node; also the owner of the folder, for local callers.
    urls:     under which this node is reached; requests are signed for one of them.
    spent:    remembers nonces and revoked tokens.
    failures: counts credentials that are not valid by address; None: they are not counted.
    """

    def __init__(
        self,
        did: str,
        urls: Iterable[str],
        spent: SpentIds,
        failures: RateLimits | None = None,
    ) -> None:
        self.did = did
        bare = [url.rstrip("/") for url in urls]
        self._audiences = frozenset([did, *bare, *(f"{url}/" for url in bare)])
        self._origins = frozenset(filter(None, map(_origin, bare)))
        self._spent = spent
        self._failures = failures
        self._tokens: OrderedDict[bytes, _Verified] = OrderedDict()
        self._lock = threading.Lock()

    def authenticate(self, credentials: Credentials, now_ms: int) -> Principal:
        """Return who a caller is.

        Raises: Unauthenticated: the credential is not valid, of class `BadCredential`, which has
                the reason for the audit record. UsageError: several credentials, or a token in the
                URL. RateLimited: too many from this address were not valid, or there is no room to
                remember the nonce.
        """
        return replace(self._proved(credentials, now_ms), origin=credentials.origin)

    def _proved(self, credentials: Credentials, now_ms: int) -> Principal:
        _refuse_query(credentials.url)
        headers = credentials.credential_headers()
        bearer = headers.get("authorization")
        is_signed = "signature" in headers or "signature-input" in headers
        if bearer is None and not is_signed:
            local = credentials.local
            return ANONYMOUS if local is None else Principal(self.did, local)
        # "several credentials | 400": a proxy and this service could take different ones.
        if (bearer is not None and is_signed) or "," in (bearer or ""):
            raise UsageError("a request has one credential, a token or a signature; got several")
        token = None if bearer is None else _token_of(bearer)
        known = None if token is None else self._known(token, now_ms)
        if known is not None:
            return known
        if self._failures is not None:
            self._failures.check_failures(credentials.origin.address, now_ms)
        try:
            if is_signed:
                return self._signed(credentials, headers, now_ms)
            return self._token(token, now_ms)
        except (BadCredential, BadFormat) as error:
            if self._failures is not None:
                self._failures.count_failure(credentials.origin.address, now_ms)
            if isinstance(error, BadCredential):
                raise
            # Texts of BadFormat here are fixed: none quotes the credential.
            raise BadCredential(f"malformed: {error}") from None

    def revoke(self, did: str, token_id: str, ends_ms: int, now_ms: int) -> None:
        """Refuse a token from now on, by its issuer and `jti`, until it ends itself.

        Raises: RateLimited: there is no room to remember it.
        """
        self._spent.revoke(did, token_id, ends_ms, now_ms)
        with self._lock:
            for key, found in list(self._tokens.items()):
                if (found.principal.key_id, found.token_id) == (did, token_id):
                    del self._tokens[key]

    # --- tokens -----------------------------------------------------------------------------

    def _known(self, token: str, now_ms: int) -> Principal | None:
        key = _token_key(token)
        with self._lock:
            found = self._tokens.get(key)
            if found is None:
                return None
            ends_ms = found.principal.expires_ms
            assert ends_ms is not None
            # The clock may have been set back: then it is checked anew.
            if not found.begins_ms <= now_ms < ends_ms:
                del self._tokens[key]
                return None
            self._tokens.move_to_end(key)
            return found.principal

    def _token(self, text: str | None, now_ms: int) -> Principal:
        if text is None:
            raise BadCredential("scheme")
        parts = split_token(text)
        issuer = _did_key(parts.claims.get("iss"))
        _check_header(parts.header, issuer)
        key = public_key_of(issuer)
        if key is None or not verify_strict(key, parts.signature, parts.signed):
            raise BadCredential("signature")
        found = self._verified(parts.claims, issuer, now_ms)
        key = _token_key(text)
        with self._lock:
            self._tokens[key] = found
            if len(self._tokens) > TOKENS_MAX:
                self._tokens.popitem(last=False)
        # After it is known: a revocation from now on removes it there.
        if self._spent.is_revoked(issuer, found.token_id):
            with self._lock:
                self._tokens.pop(key, None)
            raise BadCredential("revoked")
        return found.principal

    def _verified(self, claims: Mapping[str, Any], issuer: str, now_ms: int) -> _Verified:
        """Check the claims of a token whose signature holds."""
        subject = claims.get("sub")
        # "sub == iss"; this node itself vouches for others.
        if not is_bare_did(subject) or (subject != issuer and issuer != self.did):
            raise BadCredential("subject")
        self._check_audience(claims.get("aud"))
        issued_ms, ends_ms = _time_ms(claims, "iat"), _time_ms(claims, "exp")
        if not 0 < ends_ms - issued_ms <= TOKEN_LIFE_S_MAX * 1_000:
            raise BadCredential("life")
        begins_ms = max(issued_ms, _time_ms(claims, "nbf")) if "nbf" in claims else issued_ms
        skew_ms = CLOCK_SKEW_S * 1_000
        if now_ms >= ends_ms + skew_ms:
            raise BadCredential("expired")
        if now_ms < begins_ms - skew_ms:
            raise BadCredential("not-yet-valid")
        token_id = claims.get("jti")
        if not isinstance(token_id, str) or not _ID.fullmatch(token_id):
            raise BadCredential("token-id")
        principal = Principal(
            str(subject), "token", _grants(claims), ends_ms + skew_ms, key_id=issuer
        )
        return _Verified(principal, begins_ms - skew_ms, token_id)

    def _check_audience(self, audience: object) -> None:
        named = audience if isinstance(audience, list) else [audience]
        if len(named) > AUDIENCES_MAX or not all(isinstance(one, str) for one in named):
            raise BadCredential("audience")
        if self._audiences.isdisjoint(named):
            raise BadCredential("audience")

    # --- signed requests --------------------------------------------------------------------

    def _signed(
        self, credentials: Credentials, headers: Mapping[str, str], now_ms: int
    ) -> Principal:
        found = parse_request_signature(
            headers.get("signature-input", ""), headers.get("signature", "")
        )
        needed = {METHOD, TARGET}
        if credentials.body_sha256 is not None or credentials.is_unread:
            needed.add(CONTENT_DIGEST)
        if not needed <= set(found.covered):
            raise BadCredential("components")
        # A request that was signed for another service could be sent here.
        if _origin(credentials.url) not in self._origins:
            raise BadCredential("target")
        created_ms = found.created_s * 1_000
        ends_ms = created_ms + SIGNED_AGE_S_MAX * 1_000
        if found.expires_s is not None:
            ends_ms = min(ends_ms, found.expires_s * 1_000)
        if now_ms > ends_ms:
            raise BadCredential("expired")
        if created_ms > now_ms + CLOCK_SKEW_S * 1_000:
            raise BadCredential("not-yet-valid")
        did = _did_key(found.key_id)
        values = {**headers, METHOD: credentials.method.upper(), TARGET: credentials.url}
        base = signature_base(found.covered, values, found.params)
        key = public_key_of(did)
        if key is None or not verify_strict(key, found.signature, base):
            raise BadCredential("signature")
        if CONTENT_DIGEST in found.covered and not credentials.is_unread:
            check_body(credentials, credentials.body_sha256 or _NO_BODY)
        # Last: whoever cannot sign for a key cannot spend its nonces.
        self._spent.spend(did, found.nonce, ends_ms + 1, now_ms)
        # A stream that was asked for by one request ends as one of a token does.
        return Principal(did, "signature", None, created_ms + TOKEN_LIFE_S_MAX * 1_000, did)


def check_body(credentials: Credentials, body_sha256: bytes) -> None:
    """Check the body of a request against the digest that was signed, if it was signed.

    Raises: Unauthenticated: it is another body.
    """
    headers = credentials.credential_headers()
    if "signature-input" in headers and digest_in(headers.get(CONTENT_DIGEST, "")) != body_sha256:
        raise BadCredential("digest")


def _token_of(bearer: str) -> str | None:
    scheme, _, token = bearer.partition(" ")
    return token.strip(" ") if scheme.lower() == _BEARER else None


def _token_key(token: str) -> bytes:
    # A header may hold what is no text; it is hashed as it came.
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def _check_header(header: Mapping[str, Any], issuer: str) -> None:
    if header.get("alg") not in ALGORITHMS:
        raise BadCredential("algorithm")
    # RFC 7515: what `crit` names must be understood, and no extension is.
    if "crit" in header:
        raise BadCredential("critical")
    # Another kind of signed text of the same key is no token.
    if "typ" in header and str(header["typ"]).upper() != TOKEN_TYPE:
        raise BadCredential("type")
    if "kid" in header:
        key = public_key_of(issuer)
        multikey = "" if key is None else multikey_of(key)
        # "header kid = multikey of the signer"; the DID and its key URL are other names of it.
        if header["kid"] not in (multikey, issuer, f"{issuer}#{multikey}"):
            raise BadCredential("key")


def _did_key(did: object) -> str:
    if not isinstance(did, str) or public_key_of(did) is None:
        raise BadCredential("key")
    return did


def _time_ms(claims: Mapping[str, Any], name: str) -> int:
    value: Any = claims.get(name)
    # `type`: True is a number to Python. NumericDate may have a fraction (RFC 7519).
    if type(value) not in (int, float) or not 0 <= value <= LAST_MS // 1_000:
        raise BadCredential("time")
    return int(value * 1_000)


def _grants(claims: Mapping[str, Any]) -> tuple[Grant, ...] | None:
    if "scopes" not in claims:
        return None
    texts = claims["scopes"]
    if not isinstance(texts, list) or not all(isinstance(one, str) for one in texts):
        raise BadCredential("scopes")
    try:
        return parse_grants(texts)
    except UsageError:
        # A grant that is not understood cannot be left out: the rest would be another credential.
        raise BadCredential("scopes") from None


def _origin(url: str) -> str | None:
    found = _ORIGIN.match(url)
    return None if found is None else found[1].lower()


def _refuse_query(url: str) -> None:
    """Refuse a credential in the query of a URL: servers and proxies log URLs."""
    query = url.partition("#")[0].partition("?")[2]
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name.lower() in _QUERY_NAMES or (value.startswith(_OBJECT) and is_token(value)):
            raise UsageError(
                "a credential in the query of a URL is refused; send it as the header Authorization"
            )
