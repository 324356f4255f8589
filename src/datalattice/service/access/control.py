"""Control: access control of a node: authentication, rates, rules and audit in one object.

access = AccessControl(authenticator, policies, limits, audit, clock)
service = Service(node, access=access)
caller = access.enter(credentials)          # a door, for each request
service.call(request, caller)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar

from datalattice.actions import Action, AuditEntry, IssuedToken
from datalattice.client.credentials import (
    CLOCK_SKEW_S,
    DELEGATION_LIFE_S_MAX,
    ID_CHARACTERS_MAX,
    TOKEN_LIFE_S_MAX,
    make_token,
    split_token,
)
from datalattice.clock import Clock
from datalattice.crypto import Entropy, KeyPair
from datalattice.errors import (
    DataLatticeError,
    NoSigningKey,
    Unauthenticated,
    Unauthorized,
    UsageError,
)
from datalattice.lattice import did_of, is_bare_did
from datalattice.service.access.audit import Audit, is_audited
from datalattice.service.access.authenticating import Authenticator, Credentials
from datalattice.service.access.limits import RateLimits, Use
from datalattice.service.access.policies import Policies
from datalattice.service.access.policy import AccessDecision, Policy
from datalattice.service.access.principal import ANONYMOUS, BadCredential, Principal
from datalattice.service.access.scopes import parse_grants

T = TypeVar("T")


class AccessControl:
    """Authenticates callers, counts calls and audits decisions. Any thread may call a method.

    key_pair: of this node, to sign tokens; None: it issues none.
    """

    def __init__(
        self,
        authenticator: Authenticator,
        policies: Policies,
        limits: RateLimits,
        audit: Audit,
        clock: Clock,
        key_pair: KeyPair | None = None,
        entropy: Entropy | None = None,
    ) -> None:
        self._authenticator = authenticator
        self.policies: Final = policies
        self._limits = limits
        self.audit: Final = audit
        self._clock = clock
        self._key_pair = key_pair
        self._entropy = entropy

    def policy(self) -> Policy:
        """Return the present policy."""
        return self.policies.policy

    def reached_at(self, urls: Iterable[str]) -> None:
        """Accept tokens and signed requests for these URLs, in place of the earlier ones."""
        self._authenticator.reached_at(urls)

    def enter(self, credentials: Credentials) -> Principal:
        """Return the principal of a caller; audit a refusal.

        Raises: as `Authenticator.authenticate`.
        """
        return self._proved(credentials, partial(self._authenticator.authenticate, credentials))

    def check_body(self, credentials: Credentials, body_sha256: bytes) -> None:
        """Check a body that came after its head; audit a refusal.

        Raises: Unauthenticated: another body was signed.
        """
        check = partial(self._authenticator.check_body, credentials, body_sha256)
        self._proved(credentials, check)

    def _proved(self, credentials: Credentials, prove: Callable[[int], T]) -> T:
        now_ms = self._clock.now_ms()
        try:
            return prove(now_ms)
        except DataLatticeError as error:
            # Anonymous in the record: the caller has not proved the DID that it claims.
            nobody = replace(ANONYMOUS, origin=credentials.origin)
            self._record(now_ms, "authenticate", nobody, _refused(error), error.code)
            raise

    def check_rate(self, action: Action, caller: Principal) -> None:
        """Raise RateLimited if `witness` would; count nothing."""
        self._limits.check(_use_of(action), caller, self._clock.now_ms())

    def witness(self, action: Action, caller: Principal, decision: AccessDecision | None) -> None:
        """Count a call, then audit the decision on it; None: the action is open to all.

        Raises: RateLimited: too many calls. Unauthenticated: the credential has ended.
        """
        now_ms = self._clock.now_ms()
        # Counted first, so that a flood of refused calls makes no flood of records.
        self._limits.take(_use_of(action), caller, now_ms)
        try:
            caller.check_live(now_ms)
        except BadCredential as error:
            self._record(now_ms, action.name, caller, _refused(error))
            raise
        if decision is not None:
            refusal = Unauthenticated if decision.is_anonymous else Unauthorized
            code = None if decision.is_allowed else refusal.code
            self._record(now_ms, action.name, caller, decision, code)

    def issue(
        self, subject: str, scopes: Sequence[str], life_s: int, *, issued_for: Principal
    ) -> IssuedToken:
        """Return a token of this node, with which its holder acts as a DID at this node.

        scopes: the grants that narrow it; none: it has all rights of the subject.
        Raises: UsageError: the subject is not a DID, a scope is malformed, or the life is too long.
                Unauthorized: the token would grant more than the credential of `issued_for`.
                NoSigningKey: the node has no key.
        """
        if self._key_pair is None:
            raise NoSigningKey("this node has no key to sign a token with")
        if not is_bare_did(subject):
            raise UsageError(f"subject: a DID such as did:key:z6Mk..., got {subject!r:.80}")
        # "There is no list of revoked keys, so a token must end soon" (docs/design/access.md).
        if not 0 < life_s <= TOKEN_LIFE_S_MAX:
            raise UsageError(f"life_s: 1 to {TOKEN_LIFE_S_MAX} s, got {life_s}")
        # "Else a narrow token with `a admin` could make a wide one, or renew itself for ever"
        # (docs/design/access.md).
        issued_for.check_grants(parse_grants(list(scopes)))
        now_ms, ends_ms = self._clock.now_ms(), issued_for.expires_ms
        if ends_ms is not None:
            # "narrower": a token ends with the credential it was issued for, at the latest.
            # Less the skew, by which a token is accepted after its end.
            life_s = max(1, min(life_s, (ends_ms - now_ms) // 1_000 - CLOCK_SKEW_S))
        node = did_of(self._key_pair.public_key)
        text = make_token(
            self._key_pair,
            node,
            now_ms,
            subject=subject,
            scopes=list(scopes) or None,
            life_s=life_s,
            entropy=self._entropy,
        )
        claims = split_token(text).claims
        return IssuedToken(token=text, token_id=claims["jti"], ends_ms=claims["exp"] * 1_000)

    def revoke(self, issuer: str, token_id: str) -> None:
        """Refuse the token or delegation of this issuer and id from now on.

        issuer: "" for this node.
        Raises: UsageError: the issuer or the id is invalid. RateLimited: the table of ids is full.
        """
        if issuer and not is_bare_did(issuer):
            raise UsageError(f"issuer: a DID such as did:key:z6Mk..., got {issuer!r:.80}")
        if not token_id or len(token_id) > ID_CHARACTERS_MAX:
            raise UsageError(f"token_id: 1 to {ID_CHARACTERS_MAX} characters, got {len(token_id)}")
        now_ms = self._clock.now_ms()
        # Its end is unknown, so the latest that a credential made today can have.
        ends_ms = now_ms + (DELEGATION_LIFE_S_MAX + 2 * CLOCK_SKEW_S) * 1_000
        self._authenticator.revoke(issuer or self._authenticator.did, token_id, ends_ms, now_ms)

    def _record(
        self,
        now_ms: int,
        action: str,
        caller: Principal,
        decision: AccessDecision,
        code: str | None = Unauthenticated.code,
    ) -> None:
        right, scope = decision.right, decision.scope
        if not is_audited(right, scope, is_allowed=decision.is_allowed):
            return
        self.audit.add(
            AuditEntry(
                time_ms=now_ms,
                door=caller.origin.door,
                action=action,
                request=caller.origin.request,
                did=caller.did,
                how=caller.how,
                key_id=caller.key_id,
                right=right,
                scope=scope,
                is_allowed=decision.is_allowed,
                reason=decision.reason,
                code=code,
            )
        )


def _use_of(action: Action) -> Use:
    # By the right and not by the kind, so that a stream that reads counts as a read.
    return "reads" if action.right == "r" else "effects"


def _refused(error: DataLatticeError) -> AccessDecision:
    """Return the decision for a refused credential: it has no right, as no action is known yet."""
    reason = error.reason if isinstance(error, BadCredential) else error.code
    return AccessDecision(False, "", "", reason, is_anonymous=True)
