"""Actions on access: rules that give rights, tokens, and the audit of what was decided."""

from __future__ import annotations

from typing import Annotated

from datalattice.actions.action import DELETE, GET, POST, PUT, ActionKind, ActionRequest, action
from datalattice.actions.common import RESUME_NUMBER, Empty
from datalattice.actions.events import LaggedEvents
from datalattice.protobuf import Field, Message

_RULE = "{scope}"


class RightHolders(Message, name="datalattice.v1.RightHolders"):
    """The holders of a right: one of r, w, p, x and a. who: DIDs, `authenticated` or `public`.

    scope: in an answer, the scope whose rule this is.
    """

    right: Annotated[str, Field(1)] = ""
    who: Annotated[tuple[str, ...], Field(2)] = ()
    scope: Annotated[str, Field(3)] = ""


class AccessRule(Message, name="datalattice.v1.AccessRule"):
    """The rule of a scope. inherited: the rights that the rules of scopes above it decide.

    version: the rule's version, for `if_match`; "" if the scope has no rule of its own.
    """

    scope: Annotated[str, Field(1)] = ""
    rights: Annotated[tuple[RightHolders, ...], Field(2)] = ()
    inherited: Annotated[tuple[RightHolders, ...], Field(3)] = ()
    version: Annotated[str, Field(4)] = ""


# `a` to read it, too: a rule names who may do what.
@action("policy.get", ActionKind.QUERY, "a", _RULE, GET("/access/{scope...}"))
class GetPolicy(ActionRequest[AccessRule], name="datalattice.v1.GetPolicyRequest"):
    """Return the rule of a scope, such as `lattice/kv/DID/shop`, and what it inherits.

    Admins read and set rules; an owner whose key the folder holds does so for its own data.
    """

    scope: Annotated[str, Field(1)] = ""


# The right `a` on the scope itself and not on `admin`: "An owner whose key the folder has makes
# rules on its own data" (docs/rest.md).
@action("policy.put", ActionKind.EFFECT, "a", _RULE, PUT("/access/{scope...}"))
class PutPolicy(ActionRequest[AccessRule], name="datalattice.v1.PutPolicyRequest"):
    """Set the rule of a scope: the holders of each right that it names. On disk when it returns.

    No holders: the right is given to no caller. The scopes above decide rights that are not named.
    if_match: the version that the rule must have, "" for no rule. Raises: Conflict: it has another.
    """

    scope: Annotated[str, Field(1)] = ""
    rights: Annotated[tuple[RightHolders, ...], Field(2)] = ()
    if_match: Annotated[str | None, Field(3)] = None


# EFFECT: a repeated call finds no rule and answers NoSuchPath; nothing else changes.
@action("policy.delete", ActionKind.EFFECT, "a", _RULE, DELETE("/access/{scope...}"))
class DeletePolicy(ActionRequest[Empty], name="datalattice.v1.DeletePolicyRequest"):
    """Remove the rule of a scope: the scopes above decide again. Raises: NoSuchPath; Conflict."""

    scope: Annotated[str, Field(1)] = ""
    if_match: Annotated[str | None, Field(2)] = None


class IssuedToken(Message, name="datalattice.v1.IssuedToken"):
    """A token, its id, and when it ends."""

    token: Annotated[str, Field(1)] = ""
    token_id: Annotated[str, Field(2)] = ""
    ends_ms: Annotated[int, Field(3, "int64")] = 0

    def __repr__(self) -> str:
        # A token is a secret until it ends.
        return f"IssuedToken(token='***', token_id={self.token_id!r}, ends_ms={self.ends_ms})"


# EFFECT and not ONCE: results of ONCE are kept for repeats, which would put a secret on disk.
@action("tokens.issue", ActionKind.EFFECT, "a", "admin", POST("/tokens", 201))
class IssueToken(ActionRequest[IssuedToken], name="datalattice.v1.IssueTokenRequest"):
    """Make a token with which its holder acts as `subject`, a DID, at this node alone.

    scopes: the grants that narrow it, such as `rw lattice/kv`; none: it has all rights of the
    subject. It ends after `life_s` seconds, 3,600 at most, or earlier with the caller's credential.
    Raises: Unauthorized: the token would grant more than the caller's credential.
    """

    subject: Annotated[str, Field(1)] = ""
    scopes: Annotated[tuple[str, ...], Field(2)] = ()
    life_s: Annotated[int, Field(3, "uint32")] = 600


# EFFECT: a revoked token stays revoked.
@action("tokens.revoke", ActionKind.EFFECT, "a", "admin", DELETE("/tokens/{token_id}"))
class RevokeToken(ActionRequest[Empty], name="datalattice.v1.RevokeTokenRequest"):
    """Refuse the token with this id (`jti`) from now on. issuer: its `iss`; "" for this node."""

    token_id: Annotated[str, Field(1)] = ""
    issuer: Annotated[str, Field(2)] = ""


class AuditEntry(Message, name="datalattice.v1.AuditEntry"):
    """The decision about a call. how: the kind of credential. code: of the error in the answer."""

    time_ms: Annotated[int, Field(1, "int64")] = 0
    door: Annotated[str, Field(2)] = ""
    action: Annotated[str, Field(3)] = ""
    request: Annotated[int, Field(4, "uint64")] = 0
    did: Annotated[str | None, Field(5)] = None
    how: Annotated[str, Field(6)] = ""
    key_id: Annotated[str | None, Field(7)] = None
    right: Annotated[str, Field(8)] = ""
    scope: Annotated[str, Field(9)] = ""
    is_allowed: Annotated[bool, Field(10)] = False
    reason: Annotated[str, Field(11)] = ""
    code: Annotated[str | None, Field(12)] = None


class AuditEvent(Message, name="datalattice.v1.AuditEvent"):
    """A decision, or the number of decisions that a slow reader missed."""

    record: Annotated[AuditEntry | None, Field(1, oneof="event")] = None
    lagged: Annotated[LaggedEvents | None, Field(2, oneof="event")] = None
    resume: Annotated[str, Field(RESUME_NUMBER)] = ""


# `a` and not `r`: the records say who reads what.
@action("node.audit", ActionKind.STREAM, "a", "admin", GET("/audit"))
class WatchAudit(ActionRequest[AuditEvent], name="datalattice.v1.WatchAuditRequest"):
    """Return the decisions from now on: on effects, refusals, and reads of admins.

    A reader that falls behind by 1,024 records gets `lagged`, and the stream ends.
    Raises: StaleToken: `resume` is of an earlier start.
    """

    resume: Annotated[str, Field(RESUME_NUMBER)] = ""
