"""Policy: which rights callers have on which scopes, decided without any input or output.

Source: docs/design/access.md "What is allowed".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

from datalattice.errors import Unauthenticated, Unauthorized, UsageError
from datalattice.lattice import is_bare_did
from datalattice.service.access.principal import LOCAL_DOORS, Principal
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
"""Scope of what other venues do for jobs that run here."""

ANYBODY: Final = "anybody"
"""In a scope, the caller that showed no credential."""

OPEN_VENUE: Final = frozenset(
    {
        ("r", "venue/operations"),
        ("r", f"venue/jobs/{ANYBODY}"),
        ("x", f"venue/jobs/{ANYBODY}"),
    }
)
"""What anonymous callers of an open venue may do; each of them sees the jobs of all of them."""

WHO_MAX: Final = 1_000
"""Most names in one list of a rule."""

PolicyRule = Mapping[str, tuple[str, ...]]
"""For some rights those who have them: DIDs, `authenticated`, `public`. A right that is not named
is as in the scope above; one with an empty list is left to administrators."""

NO_RULES: Final[Mapping[str, PolicyRule]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Policy:
    """Who may do what.

    admins:  DIDs with every right everywhere, from the configuration.
    reading: who reads what no rule speaks of: `public` or `authenticated`.
    open_venue: whether anonymous callers may list operations of the venue and run jobs.
    rules:   by scope.
    """

    admins: frozenset[str] = frozenset()
    reading: Literal["public", "authenticated"] = PUBLIC
    rules: Mapping[str, PolicyRule] = field(default_factory=lambda: NO_RULES)
    open_venue: bool = False


class AccessDecision(NamedTuple):
    """Whether a caller has a right on a scope, and which part of the policy said so.

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

        Raises: Unauthenticated: a credential might help. Unauthorized: the caller has shown one.
        """
        if self.is_allowed:
            return
        if self.is_anonymous:
            raise Unauthenticated("a credential is required: a token or a signed request")
        raise Unauthorized(f"the caller does not have the right {self.right} on {self.scope}")


def decide(policy: Policy, caller: Principal, right: str, scope: str) -> AccessDecision:
    """Decide whether a caller has a right on a scope: by policy and within its credential.

    Raises: UsageError: there is no such right or scope.
    """
    checked_right(right)
    split_scope(scope)
    allowed, reason = _by_policy(policy, caller, right, scope)
    if not allowed and any(
        # An owner gives what it has: a rule that refuses the owner refuses its delegates.
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
    """Return whether a caller may have a right on a scope or on one that it covers.

    False only where it has it on none of them: it is asked while the scope is known in part.
    """
    below = f"{scope}/"
    is_granted = caller.is_granted(right, scope) or any(
        right in one.rights for one in caller.scopes or () if one.scope.startswith(below)
    )
    if not is_granted or _by_policy(policy, caller, right, scope)[0]:
        return is_granted
    # "the owner has all rights", and any DID may be an owner.
    if caller.did is not None and split_scope(scope)[0] in ROOMS_OF_OWNERS:
        return True
    return any(
        _is_among(caller, rule.get(right, ()))
        for one, rule in policy.rules.items()
        if one.startswith(below)
    )


def _by_policy(policy: Policy, caller: Principal, right: str, scope: str) -> tuple[bool, str]:
    if caller.how in LOCAL_DOORS:  # the owner of the folder
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
        # An owner's data is the owner's, unless a rule speaks of that owner: a rule on a section
        # lets no caller write with the key of an owner.
        if owned is not None and one == owned.scope:
            if caller.did == owned.owner:
                if right != "x":
                    return True, "owner"
                is_runner = True  # a rule above says which DIDs run jobs: a DID costs nothing
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
    # Whoever has a key runs operations as jobs of its own, so it may see which there are.
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

    Raises: UsageError: there is no such right, or a list has anything but DIDs, `authenticated` and
            `public`, or is too long.
    """
    rule: dict[str, tuple[str, ...]] = {}
    for right, who in rights.items():
        if not isinstance(who, list | tuple):
            raise UsageError(f"the right {checked_right(right)} is given to a list of names")
        if len(who) > WHO_MAX:
            raise UsageError(f"a right is given to at most {WHO_MAX} names, got {len(who)}")
        for one in who:
            # A key or a local name would never match a caller, in silence.
            if one not in (PUBLIC, AUTHENTICATED) and not is_bare_did(one):
                raise UsageError(
                    f"the right {right} is given to DIDs, {AUTHENTICATED!r} or {PUBLIC!r}, got "
                    f"{str(one)[:80]!r}"
                )
        rule[checked_right(right)] = tuple(sorted(set(who)))
    return rule
