"""Control: access as a daemon puts it together, for its doors and its service.

access = AccessControl(authenticator, policies, limits, audit, clock)
service = Service(node, policy=access.policy, witness=access.witness)
caller = access.enter(credentials)          # a door, for each request
service.call(request, caller)
"""

from __future__ import annotations

from dataclasses import replace

from datalattice.actions import Action
from datalattice.clock import Clock
from datalattice.errors import DataLatticeError, Unauthenticated, Unauthorized
from datalattice.service.access.audit import Audit, AuditRecord, is_audited
from datalattice.service.access.authenticating import Authenticator, Credentials
from datalattice.service.access.limits import RateLimits
from datalattice.service.access.policies import Policies
from datalattice.service.access.policy import AccessDecision, Policy
from datalattice.service.access.principal import ANONYMOUS, BadCredential, Principal


class AccessControl:
    """Tells who asks, counts calls and records decisions. Any thread may call a method."""

    def __init__(
        self,
        authenticator: Authenticator,
        policies: Policies,
        limits: RateLimits,
        audit: Audit,
        clock: Clock,
    ) -> None:
        self._authenticator = authenticator
        self._policies = policies
        self._limits = limits
        self._audit = audit
        self._clock = clock

    def policy(self) -> Policy:
        """Return the present policy."""
        return self._policies.policy

    def enter(self, credentials: Credentials) -> Principal:
        """Return who a caller is; a refusal is recorded.

        Raises: as `Authenticator.authenticate`.
        """
        now_ms = self._clock.now_ms()
        try:
            return self._authenticator.authenticate(credentials, now_ms)
        except DataLatticeError as error:
            nobody = replace(ANONYMOUS, origin=credentials.origin)
            self._record(now_ms, "authenticate", nobody, _refused(error), error.code)
            raise

    def witness(self, action: Action, caller: Principal, decision: AccessDecision | None) -> None:
        """Count a call, then record what was decided about it; None: all callers may.

        Raises: RateLimited: too many calls. Unauthenticated: the credential has ended meanwhile.
        """
        now_ms = self._clock.now_ms()
        # Counted first: a flood of refusals does not become a flood of records.
        self._limits.take("reads" if action.right == "r" else "effects", caller, now_ms)
        try:
            caller.check_live(now_ms)
        except BadCredential as error:
            self._record(now_ms, action.name, caller, _refused(error))
            raise
        if decision is not None:
            refusal = Unauthenticated if decision.is_anonymous else Unauthorized
            code = None if decision.is_allowed else refusal.code
            self._record(now_ms, action.name, caller, decision, code)

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
        self._audit.add(
            AuditRecord(
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


def _refused(error: DataLatticeError) -> AccessDecision:
    """Return the refusal of a credential: it is of no right, since no action was asked for yet."""
    reason = error.reason if isinstance(error, BadCredential) else error.code
    return AccessDecision(False, "", "", reason, is_anonymous=True)
