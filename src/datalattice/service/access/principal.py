"""Principal: an authenticated caller, and the error for an invalid credential."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final, Literal, NamedTuple

from datalattice.errors import Unauthenticated, Unauthorized
from datalattice.service.access.scopes import Delegated, Grant, covering

How = Literal["process", "socket", "token", "signature", "anonymous"]
"""How a caller was authenticated: it is this process; by a socket that only our user can open; by a
bearer token; by a signed request; not at all."""

BAD_CREDENTIAL: Final = "the credential is not valid"
"""The text for every invalid credential, so that a caller cannot learn which check failed."""


class BadCredential(Unauthenticated):
    """A credential is invalid. `reason`: one of a few fixed words, for the audit alone."""

    def __init__(self, reason: str) -> None:
        super().__init__(BAD_CREDENTIAL)
        self.reason = reason

    def __reduce__(self) -> tuple[type[BadCredential], tuple[str]]:
        # By default an exception is made again from its text, which is not the reason.
        return BadCredential, (self.reason,)


class Origin(NamedTuple):
    """The origin of a call: the door, the number of the request there, the caller's address."""

    door: str = ""
    request: int = 0
    address: str | None = None


UNKNOWN_ORIGIN: Final = Origin()


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller.

    did:        the DID that the caller acts as; None: it is anonymous.
    how:        how it was authenticated.
    scopes:     the grants that narrow its credential; None: it is not narrowed.
    expires_ms: the end of the credential and of streams begun with it; None: it has none.
    key_id:     the DID whose key signed; it differs from `did` in a token that this node issued.
    delegated:  rights on data of others that their owners gave it.
    origin:     of this call; not part of the identity.
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
        return self.how in ("process", "socket")

    def check_live(self, now_ms: int) -> None:
        """Raise BadCredential if the credential has ended."""
        # Doors call this for each call and each reading of a stream.
        if self.expires_ms is not None and now_ms >= self.expires_ms:
            raise BadCredential("expired")

    def narrowed(self, scopes: Iterable[Grant]) -> Principal:
        """Return this principal with grants in place of its own, for tests and delegates."""
        return replace(self, scopes=tuple(scopes))

    def is_granted(self, right: str, scope: str) -> bool:
        """Return whether the grants of the credential allow a right on a scope."""
        if self.scopes is None:
            return True
        granted = {grant.scope: grant.rights for grant in self.scopes}
        # "longest scope wins": a grant below another one replaces it.
        found = next((granted[one] for one in covering(scope) if one in granted), "")
        return right in found

    def check_grants(self, grants: tuple[Grant, ...]) -> None:
        """Raise Unauthorized if a credential with these grants would allow more than this one.

        No grants: a credential that is not narrowed.
        """
        if self.scopes is None:
            return
        if not grants:
            raise Unauthorized("your credential is narrowed to scopes: name those of the token")
        for rights, scope in grants:
            # "a grant below another one replaces it", so grants below the scope may take rights.
            below = [one.rights for one in self.scopes if scope in covering(one.scope)]
            for right in rights:
                if not self.is_granted(right, scope) or any(right not in one for one in below):
                    raise Unauthorized(f"your credential does not grant {right} on all of {scope}")


ANONYMOUS: Final = Principal(None, "anonymous")
