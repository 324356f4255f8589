"""Policy: decides which rights callers have on which scopes; a pure function of its arguments.

Source: docs/design/access.md "What is allowed".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

from datalattice.errors import Unauthenticated, Unauthorized, UsageError
from datalattice.lattice import is_bare_did
from datalattice.service.access.principal import Principal
from datalattice.service.access.scopes import (
    ROOMS_OF_OWNERS,
    checked_right,
    covering,
    owned_part,
    split_scope,
)

PUBLIC: Final = "public"
AUTHENTICATED: Final = "authenticated"

ASSETS: Final = ("venue", "assets")
OPERATIONS: Final = ("venue", "operations")

OTHER_VENUES: Final = "venue/grid"
"""The scope of calls to other venues by jobs that run here."""

ANYBODY: Final = "anybody"
"""The segment of a scope for an anonymous caller."""

OPEN_VENUE: Final = frozenset(
    {
        ("r", "venue/operations"),
        ("r", f"venue/jobs/{ANYBODY}"),
        ("x", f"venue/jobs/{ANYBODY}"),
    }
)
"""The rights of anonymous callers of an open venue; they share their jobs."""

WHO_MAX: Final = 1_000
"""Most names in one list of a rule."""

PolicyRule = Mapping[str, tuple[str, ...]]
"""The holders of some rights: DIDs, `authenticated`, `public`. The scope above decides a right that
is not named; a right with an empty list has only administrators."""

NO_RULES: Final[Mapping[str, PolicyRule]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Policy:
    """The rules by which rights are decided.

    admins:     DIDs with every right everywhere, from the settings.
    reading:    who may read where no rule decides: `public` or `authenticated`.
    rules:      by scope.
    open_venue: whether anonymous callers may list operations of the venue and run jobs.
    """

    admins: frozenset[str] = frozenset()
    reading: Literal["public", "authenticated"] = PUBLIC
    rules: Mapping[str, PolicyRule] = field(default_factory=lambda: NO_RULES)
    open_venue: bool = False


class AccessDecision(NamedTuple):
    """Whether a caller has a right on a scope, and which part of the policy decided.

    reason: `local`, `admin`, `rule`, `owner`, `default` or `delegated`; `token` where the
    credential is narrower than the right; `policy` for other refusals.
    """

    is_allowed: bool
    right: str
    scope: str
    reason: str
    is_anonymous: bool = False

    def require(self) -> None:
        """Raise if the right was refused.

        Raises: Unauthenticated: the caller is anonymous. Unauthorized: it is not.
        """
        if self.is_allowed:
            return
        # "That depends on the scope alone, so it does not reveal what exists"
        # (docs/design/access.md).
        if self.is_anonymous:
            raise Unauthenticated("a credential is required: a token or a signed request")
        raise Unauthorized(f"the caller does not have the right {self.right} on {self.scope}")


def decide(policy: Policy, caller: Principal, right: str, scope: str) -> AccessDecision:
    """Decide whether a caller has a right on a scope: by policy and within its credential.

    Raises: UsageError: the right or the scope is invalid.
    """
    checked_right(right)
    split_scope(scope)
    allowed, reason = _by_policy(policy, caller, right, scope)
    if not allowed and any(
        # An owner gives at most its own rights: a rule that refuses it refuses its delegates.
        one.covers(right, scope)
        and _by_policy(policy, Principal(one.owner, "token"), right, scope)[0]
        for one in caller.delegated
    ):
        allowed, reason = True, "delegated"
    # "intersected with the token's scopes": a credential never adds a right.
    if allowed and not caller.is_granted(right, scope):
        allowed, reason = False, "token"
    return AccessDecision(allowed, right, scope, reason, caller.did is None)


def could_allow(policy: Policy, caller: Principal, right: str, scope: str) -> bool:
    """Return whether a caller may have a right on a scope or on a scope below it.

    Use it while only the first segments of the scope are known: False means that it has the right
    on none of them; True, that the complete scope decides.
    """
    below = f"{scope}/"
    is_granted = caller.is_granted(right, scope) or any(
        right in one.rights for one in caller.scopes or () if one.scope.startswith(below)
    )
    if not is_granted or _by_policy(policy, caller, right, scope)[0]:
        return is_granted
    # "the owner has all rights", and every DID may own data.
    if caller.did is not None and split_scope(scope)[0] in ROOMS_OF_OWNERS:
        return True
    return any(
        _is_among(caller, rule.get(right, ()))
        for one, rule in policy.rules.items()
        if one.startswith(below)
    )


def _by_policy(policy: Policy, caller: Principal, right: str, scope: str) -> tuple[bool, str]:
    if caller.is_local:  # the owner of the folder
        return True, "local"
    if caller.did in policy.admins:
        return True, "admin"
    owned = owned_part(scope)
    is_open = policy.open_venue and (right, scope) in OPEN_VENUE
    is_runner = False
    for one in covering(scope):
        who = policy.rules.get(one, {}).get(right)
        if who is not None:  # "longest scope wins"
            return (True, "rule") if _is_among(caller, who) else (False, "policy")
        # "The owner has all rights", unless a rule names that owner's scope: a rule on a whole
        # section gives other callers no right to write with the owner's key.
        if owned is not None and one == owned.scope:
            if caller.did == owned.owner:
                if right != "x":
                    return True, "owner"
                # DIDs cost nothing, so a rule on the venue may restrict which of them run jobs.
                is_runner = True
                continue
            if right != "r" and not is_open:
                return False, "policy"
    if is_runner:
        return True, "owner"
    allowed = is_open or _is_among(caller, _default(policy, right, split_scope(scope)))
    return allowed, "default" if allowed else "policy"


def _default(policy: Policy, right: str, segments: tuple[str, ...]) -> tuple[str, ...]:
    if right == "r" and (segments[0] in ("values", "lattice") or segments[:2] == ASSETS):
        return (policy.reading,)
    if right in ("w", "p") and segments[0] in ("values", "lattice", "pins"):
        return (AUTHENTICATED,)
    # Each DID may run operations as jobs of its own, so it may list them.
    if right == "r" and segments == OPERATIONS:
        return (AUTHENTICATED,)
    # "The other venue sees the DID of this venue" (docs/grid.md): not for anonymous callers.
    if right == "x" and segments == split_scope(OTHER_VENUES):
        return (AUTHENTICATED,)
    return ()


def _is_among(caller: Principal, who: tuple[str, ...]) -> bool:
    if PUBLIC in who:
        return True
    return caller.did is not None and (AUTHENTICATED in who or caller.did in who)


def checked_rule(rights: Mapping[str, object]) -> PolicyRule:
    """Return a rule, its lists sorted and without repetitions.

    Raises: UsageError: a right is unknown, or a list is too long or has anything other than DIDs,
            `authenticated` and `public`.
    """
    rule: dict[str, tuple[str, ...]] = {}
    for right, who in rights.items():
        if not isinstance(who, list | tuple):
            raise UsageError(f"the right {checked_right(right)} has a list of names")
        if len(who) > WHO_MAX:
            raise UsageError(f"a right has at most {WHO_MAX} names, got {len(who)}")
        for one in who:
            # Refused: a key or a local name would match no caller, without an error.
            if one not in (PUBLIC, AUTHENTICATED) and not is_bare_did(one):
                raise UsageError(
                    f"the holders of the right {right} are DIDs, {AUTHENTICATED!r} or {PUBLIC!r}, "
                    f"got {str(one)[:80]!r}"
                )
        rule[checked_right(right)] = tuple(sorted(set(who)))
    return rule
