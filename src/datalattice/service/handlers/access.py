"""Handlers of the actions on access."""

from __future__ import annotations

from datalattice import actions
from datalattice.cursors import EventsMissed
from datalattice.errors import NoSuchPath, Unauthorized, UnsupportedOperation, UsageError
from datalattice.service.access import NO_VERSION, AccessControl, owned_part
from datalattice.service.handlers.rings import events_of
from datalattice.service.registry import ServiceCall, Streamed, handles


def _access(call: ServiceCall) -> AccessControl:
    if call.access is None:
        raise UnsupportedOperation(
            "this program has no rules: its caller is the owner; call a node, `lattice node start`"
        )
    return call.access


def _for_rules(call: ServiceCall, scope: str) -> AccessControl:
    """Return the access control, if the caller may read and set the rule of a scope."""
    owned = owned_part(scope)
    # "An owner whose key the folder has makes rules on its own data" (docs/rest.md): DIDs cost
    # nothing, and a folder has room for few rules.
    is_own = owned is not None and owned.owner == call.caller and not call.is_operator
    if is_own and call.caller not in [str(owner.did) for owner in call.node.keys]:
        raise Unauthorized("only an owner whose key this folder holds sets rules on its own data")
    return _access(call)


def _rule(access: AccessControl, scope: str) -> actions.AccessRule:
    try:
        version = access.policies.get(scope).version
    except NoSuchPath:
        version = NO_VERSION
    held = [
        actions.RightHolders(right=right, who=one.rule[right], scope=one.scope)
        for right, one in access.policies.inherited(scope).items()
    ]
    return actions.AccessRule(
        scope=scope,
        rights=tuple(one for one in held if one.scope == scope),
        inherited=tuple(one for one in held if one.scope != scope),
        version=version,
    )


@handles(actions.GetPolicy)
def get_policy(call: ServiceCall, request: actions.GetPolicy) -> actions.AccessRule:
    """Return the rule of a scope."""
    return _rule(_for_rules(call, request.scope), request.scope)


@handles(actions.PutPolicy)
def put_policy(call: ServiceCall, request: actions.PutPolicy) -> actions.AccessRule:
    """Set the rule of a scope."""
    access = _for_rules(call, request.scope)
    rights = {one.right: one.who for one in request.rights}
    # A rule without rights would decide nothing; DELETE removes one.
    if not rights or len(rights) != len(request.rights):
        raise UsageError(
            f"rights: one or more, each named once, got {[one.right for one in request.rights]}"
        )
    misplaced = [one.scope for one in request.rights if one.scope not in ("", request.scope)]
    if misplaced:
        raise UsageError(f"rights: their scope is {request.scope}, got {misplaced[0]!r:.80}")
    access.policies.put(request.scope, rights, request.if_match)
    return _rule(access, request.scope)


@handles(actions.DeletePolicy)
def delete_policy(call: ServiceCall, request: actions.DeletePolicy) -> actions.Empty:
    """Remove the rule of a scope."""
    _for_rules(call, request.scope).policies.delete(request.scope, request.if_match)
    return actions.Empty()


@handles(actions.IssueToken)
def issue_token(call: ServiceCall, request: actions.IssueToken) -> actions.IssuedToken:
    """Make a token for a subject."""
    return _access(call).issue(
        request.subject, request.scopes, request.life_s, issued_for=call.principal
    )


@handles(actions.RevokeToken)
def revoke_token(call: ServiceCall, request: actions.RevokeToken) -> actions.Empty:
    """Refuse a token from now on."""
    _access(call).revoke(request.issuer, request.token_id)
    return actions.Empty()


@handles(actions.WatchAudit)
def watch_audit(call: ServiceCall, request: actions.WatchAudit) -> Streamed[actions.AuditEvent]:
    """Return the decisions from now on."""
    return events_of(_access(call).audit.ring, request, _audit_event)


def _audit_event(record: actions.AuditEntry | EventsMissed) -> actions.AuditEvent:
    if isinstance(record, EventsMissed):
        return actions.AuditEvent(lagged=actions.LaggedEvents(count=record.count))
    return actions.AuditEvent(record=record)
