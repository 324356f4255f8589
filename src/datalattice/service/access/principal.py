"""Principal: who asks, as it was proved, and the error for a credential that proves nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final, Literal, NamedTuple

from datalattice.errors import Unauthenticated, Unauthorized
from datalattice.service.access.scopes import Delegated, Grant, covering

How = Literal["process", "socket", "token", "signature", "anonymous"]
"""In this process; a socket that only our user can open; a bearer token; a signed request; none."""

LOCAL_DOORS: Final = ("process", "socket")

BAD_CREDENTIAL: Final = "the credential is not valid"
"""The text of every refusal of a credential: a caller learns nothing from it."""


class BadCredential(Unauthenticated):
    """A credential that is not valid. `reason`: why, for the audit record alone.

    A reason is one of a few fixed words and never has a part of the credential.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(BAD_CREDENTIAL)
        self.reason = reason

    def __reduce__(self) -> tuple[type[BadCredential], tuple[str]]:
        return BadCredential, (self.reason,)


class Origin(NamedTuple):
    """Where a call came in: the door, the number of the request there, the caller's address."""

    door: str = ""
    request: int = 0
    address: str | None = None


UNKNOWN_ORIGIN: Final = Origin()


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks.

    did:        the DID for which the caller speaks, None for an anonymous one.
    how:        by what it was proved.
    scopes:     what the credential is narrowed to, None if to nothing.
    expires_ms: when the credential ends, None if it does not. A stream ends with it.
    key_id:     the DID whose key signed; it differs from `did` in a token that this node made.
    delegated:  what owners let it use of their data, beside its own rights.
    origin:     where this call came in; it does not say who asks.
    """

    did: str | None
    how: How
    scopes: tuple[Grant, ...] | None = None
    expires_ms: int | None = None
    key_id: str | None = None
    delegated: tuple[Delegated, ...] = ()
    origin: Origin = field(default=UNKNOWN_ORIGIN, compare=False)

    @property
    def is_local(self) -> bool:
        """Whether it is a program of the folder's owner, on this machine."""
        return self.how in LOCAL_DOORS

    def check_live(self, now_ms: int) -> None:
        """Raise BadCredential if the credential has ended."""
        # Asked at each call and each look of a stream: a credential that has ended opens nothing
        # further.
        if self.expires_ms is not None and now_ms >= self.expires_ms:
            raise BadCredential("expired")

    def narrowed(self, scopes: Iterable[Grant]) -> Principal:
        """Return this principal with grants in place of its own, for tests and delegates."""
        return replace(self, scopes=tuple(scopes))

    def is_granted(self, right: str, scope: str) -> bool:
        """Return whether the credential itself lets a right on a scope through."""
        if self.scopes is None:
            return True
        granted = {grant.scope: grant.rights for grant in self.scopes}
        # "longest scope wins": a grant below another one replaces it.
        found = next((granted[one] for one in covering(scope) if one in granted), "")
        return right in found

    def check_grants(self, grants: tuple[Grant, ...]) -> None:
        """Raise Unauthorized if a credential with these grants allows what this one does not.

        No grants: a credential that is narrowed to nothing.
        """
        if self.scopes is None:
            return
        if not grants:
            raise Unauthorized("your credential is narrowed to scopes: name those of the token")
        for rights, scope in grants:
            # "a grant below another one replaces it": those below the wanted scope count, too.
            below = [one.rights for one in self.scopes if scope in covering(one.scope)]
            for right in rights:
                if not self.is_granted(right, scope) or any(right not in one for one in below):
                    raise Unauthorized(f"your credential does not grant {right} on all of {scope}")


ANONYMOUS: Final = Principal(None, "anonymous")
