"""Actions on access: rules of who may do what, tokens, and the records of what was decided."""

from __future__ import annotations

from typing import Annotated

from datalattice.actions.action import DELETE, GET, POST, PUT, ActionKind, ActionRequest, action
from datalattice.actions.common import RESUME_NUMBER, Empty
from datalattice.actions.events import LaggedEvents
from datalattice.protobuf import Field, Message

_RULE = "{scope}"


class RightHolders(Message, name="datalattice.v1.RightHolders"):
    """Who has a right: one of r, w, p, x and a. who: DIDs, `authenticated` or `public`.

    scope: of an answer: where the rule stands.
    """

    right: Annotated[str, Field(1)] = ""
    who: Annotated[tuple[str, ...], Field(2)] = ()
    scope: Annotated[str, Field(3)] = ""


class AccessRule(Message, name="datalattice.v1.AccessRule"):
    """The rule of a scope, and for the other rights the rules above it that decide.

    version: names the rule, for `if_match`; "" where the scope has no rule of its own.
    """

    scope: Annotated[str, Field(1)] = ""
    rights: Annotated[tuple[RightHolders, ...], Field(2)] = ()
    inherited: Annotated[tuple[RightHolders, ...], Field(3)] = ()
    version: Annotated[str, Field(4)] = ""


@action("policy.get", ActionKind.QUERY, "a", _RULE, GET("/access/{scope...}"))
class GetPolicy(ActionRequest[AccessRule], name="datalattice.v1.GetPolicyRequest"):
    """Return the rule of a scope, such as `lattice/kv/DID/shop`, and what it has from those above.

    Rules are read and set by admins, and for its own data by an owner whose key the folder holds.
    """

    scope: Annotated[str, Field(1)] = ""


# The right `a` on the scope itself and not on `admin`: "An owner whose key the folder has makes
# rules on its own data" (docs/rest.md).
@action("policy.put", ActionKind.EFFECT, "a", _RULE, PUT("/access/{scope...}"))
class PutPolicy(ActionRequest[AccessRule], name="datalattice.v1.PutPolicyRequest"):
    """Set the rule of a scope: for each right that it names, who has it. On disk when it returns.

    Nobody has a right whose holders are empty. The rule of the scope above decides the others.
    if_match: the version that the rule must have, "" for no rule. Raises: Conflict: it has another.
    """

    scope: Annotated[str, Field(1)] = ""
    rights: Annotated[tuple[RightHolders, ...], Field(2)] = ()
    if_match: Annotated[str | None, Field(3)] = None


@action("policy.delete", ActionKind.EFFECT, "a", _RULE, DELETE("/access/{scope...}"))
class DeletePolicy(ActionRequest[Empty], name="datalattice.v1.DeletePolicyRequest"):
    """Remove the rule of a scope: those above decide again. Raises: NoSuchPath; Conflict."""

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


# No id makes it a repeat of before: a result that is kept for that would be a secret on the disk.
@action("tokens.issue", ActionKind.EFFECT, "a", "admin", POST("/tokens", 201))
class IssueToken(ActionRequest[IssuedToken], name="datalattice.v1.IssueTokenRequest"):
    """Make a token with which its holder speaks for `subject`, a DID, at this node alone.

    scopes: what it is narrowed to, such as `rw lattice/kv`; none: to nothing. It ends after
    `life_s` seconds, 3,600 at most, and with the caller's own credential.
    Raises: Unauthorized: the caller's credential does not grant what the token would.
    """

    subject: Annotated[str, Field(1)] = ""
    scopes: Annotated[tuple[str, ...], Field(2)] = ()
    life_s: Annotated[int, Field(3, "uint32")] = 600


@action("tokens.revoke", ActionKind.EFFECT, "a", "admin", DELETE("/tokens/{token_id}"))
class RevokeToken(ActionRequest[Empty], name="datalattice.v1.RevokeTokenRequest"):
    """Refuse a token from now on, whose id (`jti`) this is. issuer: its `iss`; "" for this node."""

    token_id: Annotated[str, Field(1)] = ""
    issuer: Annotated[str, Field(2)] = ""


class AuditEntry(Message, name="datalattice.v1.AuditEntry"):
    """What was decided about a call. code: of the error that was answered."""

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
    """A record, or how many were missed."""

    record: Annotated[AuditEntry | None, Field(1, oneof="event")] = None
    lagged: Annotated[LaggedEvents | None, Field(2, oneof="event")] = None
    resume: Annotated[str, Field(RESUME_NUMBER)] = ""


# `a` and not `r`: the records say who reads what.
@action("node.audit", ActionKind.STREAM, "a", "admin", GET("/audit"))
class WatchAudit(ActionRequest[AuditEvent], name="datalattice.v1.WatchAuditRequest"):
    """Return what is decided from now on: about effects, refusals, and reads of admins.

    A reader that falls behind by 1,024 records gets `lagged`, and the stream ends.
    Raises: StaleToken: `resume` is of an earlier start.
    """

    resume: Annotated[str, Field(RESUME_NUMBER)] = ""
