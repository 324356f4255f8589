"""Authenticating: from the credentials of a request to the principal of its caller.

Source: docs/design/access.md "Who asks", "Tokens", "Signed requests", "Delegations".
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final, Generic, Literal, NamedTuple, TypeVar
from urllib.parse import parse_qsl

from datalattice.client.credentials import (
    CLOCK_SKEW_S,
    CONTENT_DIGEST,
    CREDENTIAL_CHARACTERS_MAX,
    DELEGATIONS,
    METHOD,
    SIGNED_AGE_S_MAX,
    TARGET,
    TOKEN_LIFE_S_MAX,
    digest_in,
    is_token,
    parse_request_signature,
    signature_base,
)
from datalattice.crypto import verify_strict
from datalattice.errors import BadFormat, UsageError
from datalattice.lattice import is_bare_did, public_key_of
from datalattice.service.access.delegations import Chain, ChainReader
from datalattice.service.access.limits import RateLimits
from datalattice.service.access.principal import (
    ANONYMOUS,
    UNKNOWN_ORIGIN,
    BadCredential,
    Origin,
    Principal,
)
from datalattice.service.access.reading import claim_id, claim_ms, did_key, read_signed
from datalattice.service.access.scopes import Delegated, Grant, parse_grants
from datalattice.service.access.spent import SpentIds

TOKENS_MAX: Final = 10_000
"""Most verified tokens that are cached, and most delegations."""

AUDIENCES_MAX: Final = 16
"""Most audiences of one token."""

T = TypeVar("T")

_BEARER: Final = "bearer"
_SHOWN: Final = ("authorization", "signature", "signature-input", CONTENT_DIGEST, DELEGATIONS)
_NO_BODY: Final = hashlib.sha256().digest()
_QUERY_NAMES: Final = ("access_token", "authorization")
_OBJECT: Final = "eyJ"  # `{"` in base64url, with which every token begins
_ORIGIN: Final = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*://[^/?#@]+)")


@dataclass(frozen=True, slots=True, repr=False)
class Credentials:
    """The data of a request from which its caller is authenticated.

    method, url: of the request; the URL in full as the caller sent it. Empty outside of HTTP.
    headers:     by name, in any case; the values of a repeated header are joined with `, `.
    body_sha256: of the body; None: there is none. is_unread: the body comes later; if the request
                 `is_signed`, call `check_body` at its end, before the body is used.
    local:       `process`, or `socket` if the door has checked that only our user can open it.
    origin:      the door, number and address of the call.
    """

    method: str = ""
    url: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    body_sha256: bytes | None = None
    is_unread: bool = False
    local: Literal["process", "socket"] | None = None
    origin: Origin = UNKNOWN_ORIGIN

    def __repr__(self) -> str:
        # Without headers and query: both may hold secrets.
        return f"Credentials({self.method} {self.url.partition('?')[0]})"

    @property
    def is_signed(self) -> bool:
        """Whether the credential is a signature."""
        return "signature-input" in self.credential_headers()

    def credential_headers(self) -> dict[str, str]:
        """Return the headers that carry credentials, by their names in lower case."""
        found: dict[str, str] = {}
        for name, value in self.headers.items():
            key = name.lower()
            # One name in two cases is one header: "two credentials must not look like one"
            # (docs/design/access.md).
            if key in _SHOWN:
                found[key] = f"{found[key]}, {value}" if key in found else value
        return found


class _Verified(NamedTuple, Generic[T]):
    """The content of a verified text, its time of validity, and the (issuer, id) that revoke it."""

    found: T
    begins_ms: int
    ends_ms: int
    ids: tuple[tuple[str, str], ...]


class _Known(Generic[T]):
    """A cache of verified texts by key; a full one drops the text unused for longest."""

    def __init__(self) -> None:
        self._held: OrderedDict[bytes, _Verified[T]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: bytes, now_ms: int) -> T | None:
        """Return the content of a text; None: it is not cached, or not valid now."""
        with self._lock:
            known = self._held.get(key)
            if known is None:
                return None
            # Both ends: after the clock was set back, the text is verified again.
            if not known.begins_ms <= now_ms < known.ends_ms:
                del self._held[key]
                return None
            self._held.move_to_end(key)
            return known.found

    def add(self, key: bytes, verified: _Verified[T], spent: SpentIds) -> T:
        """Cache a verified text and return its content.

        Raises: BadCredential: it was revoked.
        """
        with self._lock:
            self._held[key] = verified
            if len(self._held) > TOKENS_MAX:
                self._held.popitem(last=False)
        # After it is cached, where a concurrent revocation finds and removes it.
        if any(spent.is_revoked(*one) for one in verified.ids):
            with self._lock:
                self._held.pop(key, None)
            raise BadCredential("revoked")
        return verified.found

    def forget(self, did: str, token_id: str) -> None:
        """Drop the texts that one id revokes."""
        with self._lock:
            for key, known in list(self._held.items()):
                if (did, token_id) in known.ids:
                    del self._held[key]


class Authenticator:
    """Authenticates callers. Any thread may call a method.

    did:      of this node; local callers, the owner of the folder, act as it.
    urls:     of the doors of this node; callers sign requests for one of them.
    spent:    stores used nonces and revoked tokens.
    failures: counts invalid credentials by address; None: they are not counted.
    """

    def __init__(
        self,
        did: str,
        urls: Iterable[str],
        spent: SpentIds,
        failures: RateLimits | None = None,
    ) -> None:
        self.did = did
        self.reached_at(urls)
        self._spent = spent
        self._failures = failures
        self._tokens = _Known[Principal]()
        self._chains = _Known[Chain]()

    def reached_at(self, urls: Iterable[str]) -> None:
        """Accept requests for these URLs in place of the earlier ones."""
        # A client may write the URL of a door with a slash at its end or without.
        bare = [url.rstrip("/") for url in urls]
        self._audiences = frozenset([self.did, *bare, *(f"{url}/" for url in bare)])
        self._origins = frozenset(filter(None, map(_origin, bare)))

    def authenticate(self, credentials: Credentials, now_ms: int) -> Principal:
        """Return the principal of a caller.

        Raises: BadCredential: the credential is invalid; it has the reason for the audit.
                UsageError: several credentials, or a token in the URL. RateLimited: too many
                invalid ones came from this address, or the table of nonces is full.
        """
        # A cached principal has no origin: it serves many calls.
        caller = replace(self._proved(credentials, now_ms), origin=credentials.origin)
        # "It is not a credential: a caller proves its identity by a token or a signature and shows
        # its delegations beside that" (docs/design/access.md "Delegations").
        shown = credentials.credential_headers().get(DELEGATIONS)
        return caller if shown is None else self._delegate(caller, shown, now_ms)

    def _proved(self, credentials: Credentials, now_ms: int) -> Principal:
        _refuse_query(credentials.url)
        headers = credentials.credential_headers()
        bearer = headers.get("authorization")
        is_signed = "signature" in headers or "signature-input" in headers
        # A bad credential "is refused everywhere, on open calls and on sockets too"
        # (docs/design/access.md): a local caller is one that shows none.
        if bearer is None and not is_signed:
            local = credentials.local
            return ANONYMOUS if local is None else Principal(self.did, local)
        # "several credentials | 400": a proxy and this service could choose different ones.
        if (bearer is not None and is_signed) or "," in (bearer or ""):
            raise UsageError("a request has one credential, a token or a signature; got several")
        token = None if bearer is None else _token_of(bearer)
        # "An address with too many failures may still use a token that was verified before"
        # (docs/design/access.md "Limits").
        known = None if token is None else self._tokens.get(_key(token), now_ms)
        if known is not None:
            return known
        with self._counting_failures(credentials.origin, now_ms):
            if is_signed:
                return self._signed(credentials, headers, now_ms)
            return self._token(token, now_ms)

    @contextmanager
    def _counting_failures(self, origin: Origin, now_ms: int) -> Iterator[None]:
        if self._failures is not None:
            self._failures.check_failures(origin.address, now_ms)
        try:
            yield
        except (BadCredential, BadFormat) as error:
            if self._failures is not None:
                self._failures.count_failure(origin.address, now_ms)
            if isinstance(error, BadCredential):
                raise
            # Texts of BadFormat here are fixed: none quotes the credential.
            raise BadCredential(f"malformed: {error}") from None

    def check_body(self, credentials: Credentials, body_sha256: bytes, now_ms: int) -> None:
        """Check a body that came after its head; count a mismatch as a failure.

        Raises: Unauthenticated: another body was signed.
        """
        try:
            check_body(credentials, body_sha256)
        except BadCredential:
            if self._failures is not None:
                self._failures.count_failure(credentials.origin.address, now_ms)
            raise

    def revoke(self, did: str, token_id: str, ends_ms: int, now_ms: int) -> None:
        """Refuse the token or delegation of this issuer and id from now on, until `ends_ms`.

        Raises: RateLimited: the table of revoked ids is full.
        """
        # The row comes first: a token that is verified meanwhile finds it.
        self._spent.revoke(did, token_id, ends_ms, now_ms)
        self._tokens.forget(did, token_id)
        self._chains.forget(did, token_id)

    # --- tokens -----------------------------------------------------------------------------

    def _token(self, text: str | None, now_ms: int) -> Principal:
        # Another scheme, such as Basic, is a bad credential: "The caller meant to act under its own
        # name" (docs/design/access.md).
        if text is None:
            raise BadCredential("scheme")
        issuer, claims = read_signed(text)
        return self._tokens.add(_key(text), self._verified(claims, issuer, now_ms), self._spent)

    def _verified(
        self, claims: Mapping[str, Any], issuer: str, now_ms: int
    ) -> _Verified[Principal]:
        """Check the claims of a token whose signature is verified."""
        subject = claims.get("sub")
        # "sub == iss"; only this node issues tokens for others.
        if not is_bare_did(subject) or (subject != issuer and issuer != self.did):
            raise BadCredential("subject")
        self._check_audience(claims.get("aud"))
        issued_ms, ends_ms = claim_ms(claims, "iat"), claim_ms(claims, "exp")
        # "There is no list of revoked keys, so a token must end soon" (docs/design/access.md).
        if not 0 < ends_ms - issued_ms <= TOKEN_LIFE_S_MAX * 1_000:
            raise BadCredential("life")
        begins_ms = max(issued_ms, claim_ms(claims, "nbf")) if "nbf" in claims else issued_ms
        skew_ms = CLOCK_SKEW_S * 1_000
        if now_ms >= ends_ms + skew_ms:
            raise BadCredential("expired")
        if now_ms < begins_ms - skew_ms:
            raise BadCredential("not-yet-valid")
        ids = ((issuer, claim_id(claims, "jti")),)
        # `Principal.check_live` and the cache know no skew.
        ends_ms += skew_ms
        principal = Principal(str(subject), "token", _grants(claims), ends_ms, key_id=issuer)
        return _Verified(principal, begins_ms - skew_ms, ends_ms, ids)

    def _check_audience(self, audience: object) -> None:
        named = audience if isinstance(audience, list) else [audience]
        # "aud": a token for another service must not open this one.
        if len(named) > AUDIENCES_MAX or not all(isinstance(one, str) for one in named):
            raise BadCredential("audience")
        if self._audiences.isdisjoint(named):
            raise BadCredential("audience")

    # --- delegations ------------------------------------------------------------------------

    def _delegate(self, caller: Principal, shown: str, now_ms: int) -> Principal:
        """Return the caller with the rights of its delegations. shown: the header's value."""
        given: list[Delegated] = []
        ends_ms = [] if caller.expires_ms is None else [caller.expires_ms]
        reader = ChainReader()
        with self._counting_failures(caller.origin, now_ms):
            if len(shown) > CREDENTIAL_CHARACTERS_MAX:
                raise BadCredential("length")
            for text in shown.split(","):
                chain = self._chain(reader, text.strip(" \t"), caller.did, now_ms)
                given += chain.given
                ends_ms.append(chain.ends_ms)
        # A stream ends when the first of its caller's credentials ends.
        return replace(caller, delegated=tuple(given), expires_ms=min(ends_ms))

    def _chain(self, reader: ChainReader, text: str, audience: str | None, now_ms: int) -> Chain:
        # The audience is part of the key: a delegation is verified for one caller.
        key = _key(f"{audience}\n{text}")
        known = self._chains.get(key, now_ms)
        if known is not None:
            return known
        chain = reader.read(text, audience, now_ms)
        verified = _Verified(chain, chain.begins_ms, chain.ends_ms, chain.ids)
        return self._chains.add(key, verified, self._spent)

    # --- signed requests --------------------------------------------------------------------

    def _signed(
        self, credentials: Credentials, headers: Mapping[str, str], now_ms: int
    ) -> Principal:
        found = parse_request_signature(
            headers.get("signature-input", ""), headers.get("signature", "")
        )
        # "over `@method`, `@target-uri` and, where there is a body, `content-digest`"
        # (docs/design/access.md "Signed requests").
        needed = {METHOD, TARGET}
        if credentials.body_sha256 is not None or credentials.is_unread:
            needed.add(CONTENT_DIGEST)
        if not needed <= set(found.covered):
            raise BadCredential("components")
        # Else a request signed for another service could be sent here.
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
        did = did_key(found.key_id)
        values = {**headers, METHOD: credentials.method.upper(), TARGET: credentials.url}
        base = signature_base(found.covered, values, found.params)
        key = public_key_of(did)
        if key is None or not verify_strict(key, found.signature, base):
            raise BadCredential("signature")
        if CONTENT_DIGEST in found.covered and not credentials.is_unread:
            # A digest that was signed without a body is that of no bytes.
            check_body(credentials, credentials.body_sha256 or _NO_BODY)
        # Last, so that only the holder of a key can use up its nonces.
        # A request is accepted in the millisecond of its end, so its nonce is kept for one more.
        self._spent.spend(did, found.nonce, ends_ms + 1, now_ms)
        # A stream begun by a signed request lasts as long as one of a token.
        return Principal(did, "signature", None, created_ms + TOKEN_LIFE_S_MAX * 1_000, did)


def check_body(credentials: Credentials, body_sha256: bytes) -> None:
    """Check the body of a signed request against its signed digest; accept an unsigned request.

    Raises: Unauthenticated: another body was signed.
    """
    headers = credentials.credential_headers()
    if credentials.is_signed and digest_in(headers.get(CONTENT_DIGEST, "")) != body_sha256:
        raise BadCredential("digest")


def _token_of(bearer: str) -> str | None:
    scheme, _, token = bearer.partition(" ")
    return token.strip(" ") if scheme.lower() == _BEARER else None


def _key(text: str) -> bytes:
    # Headers may hold lone surrogates, in place of bytes that are not UTF-8.
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def _grants(claims: Mapping[str, Any]) -> tuple[Grant, ...] | None:
    if "scopes" not in claims:
        return None
    texts = claims["scopes"]
    if not isinstance(texts, list) or not all(isinstance(one, str) for one in texts):
        raise BadCredential("scopes")
    try:
        return parse_grants(texts)
    except UsageError:
        # The whole token is refused: without one grant it would be another credential.
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
