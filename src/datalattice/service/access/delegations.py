"""Delegations: an owner's signed permissions for a caller to use part of its data.

A delegation gives data of its issuer, or a part of what one of its proofs gives to the issuer.
Every signature in a chain is verified, and the audience of each link is the issuer of the next.

Source: docs/design/access.md "Delegations".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from datalattice.client.credentials import (
    CLOCK_SKEW_S,
    DELEGATION_LIFE_S_MAX,
    RESOURCES_MAX,
)
from datalattice.service.access.principal import BadCredential
from datalattice.service.access.reading import claim_id, claim_ms, read_signed
from datalattice.service.access.scopes import Delegated, path_segments

LINKS_MAX: Final = 16  # each costs a signature
"""Most delegations of one request, with their proofs."""

_SKEW_MS: Final = CLOCK_SKEW_S * 1_000
_LIFE_MS_MAX: Final = DELEGATION_LIFE_S_MAX * 1_000 + _SKEW_MS

# The parts of each ability: one ability covers another if it has all parts of the other.
_PARTS: Final[Mapping[str, frozenset[str]]] = {
    "*": frozenset({"read", "write", "delete", "other"}),
    "crud": frozenset({"read", "write", "delete"}),
    "crud/read": frozenset({"read"}),
    "crud/write": frozenset({"write"}),
    "crud/delete": frozenset({"delete"}),
}


class Chain(NamedTuple):
    """A valid delegation with its proofs.

    given: the data and rights. ids: (issuer, id) of each link; revoking one ends the chain.
    """

    given: tuple[Delegated, ...]
    begins_ms: int
    ends_ms: int
    ids: tuple[tuple[str, str], ...]


class _DelegatedPart(NamedTuple):
    owner: str
    path: tuple[str, ...]
    abilities: frozenset[str]

    def covers(self, other: _DelegatedPart) -> bool:
        return (
            # "The same owner, a path at or above, all of the abilities. Abilities of several proofs
            # do not add up" (docs/design/access.md).
            self.owner == other.owner
            and other.path[: len(self.path)] == self.path
            and other.abilities <= self.abilities
        )


class ChainReader:
    """Reads the delegations of one request: together at most `LINKS_MAX` links."""

    def __init__(self) -> None:
        self._links = 0

    def read(self, text: str, audience: str | None, now_ms: int) -> Chain:
        """Return the delegation of a text to `audience`, the DID of the caller.

        Raises: BadCredential, BadFormat: it or one of its proofs is invalid now.
        """
        parts, begins_ms, ends_ms, ids = self._link(text, audience, now_ms)
        given = [Delegated(one.owner, one.path, _rights(one.abilities)) for one in parts]
        return Chain(tuple([one for one in given if one.rights]), begins_ms, ends_ms, tuple(ids))

    def _link(
        self, text: str, audience: str | None, now_ms: int
    ) -> tuple[list[_DelegatedPart], int, int, list[tuple[str, str]]]:
        self._links += 1
        if self._links > LINKS_MAX:
            raise BadCredential("links")
        issuer, claims = read_signed(text)
        # "aud": a delegation is for one DID, and a copy of it is of no use to other callers.
        if audience is None or claims.get("aud") != audience:
            raise BadCredential("audience")
        ends_ms = claim_ms(claims, "exp")
        begins_ms = claim_ms(claims, "nbf") if "nbf" in claims else 0
        if now_ms >= ends_ms + _SKEW_MS:
            raise BadCredential("expired")
        if now_ms < begins_ms - _SKEW_MS:
            raise BadCredential("not-yet-valid")
        if ends_ms - now_ms > _LIFE_MS_MAX:  # it would outlast its revocation, kept for this long
            raise BadCredential("life")
        ids = [(issuer, claim_id(claims, "nnc"))]
        held: list[_DelegatedPart] = []
        begins_ms, ends_ms = begins_ms - _SKEW_MS, ends_ms + _SKEW_MS
        # The caller chooses the depth of this recursion; LINKS_MAX bounds it.
        for proof in _proofs(claims):
            parts, begins, ends, above = self._link(proof, issuer, now_ms)
            held += parts
            ids += above
            begins_ms, ends_ms = max(begins_ms, begins), min(ends_ms, ends)
        # "Each link narrower than its parent"; an issuer gives its own data without a proof.
        given = _given(claims)
        if not all(part.owner == issuer or any(one.covers(part) for one in held) for part in given):
            raise BadCredential("wider")
        return given, begins_ms, ends_ms, ids


def _proofs(claims: Mapping[str, Any]) -> list[str]:
    proofs = claims.get("prf", [])
    if not isinstance(proofs, list) or not all(isinstance(one, str) for one in proofs):
        raise BadCredential("proofs")
    return proofs


def _given(claims: Mapping[str, Any]) -> list[_DelegatedPart]:
    """Return the data and abilities that a delegation lists, without unknown abilities."""
    listed = claims.get("att")
    # Bounded before it is read: the text is the caller's.
    if not isinstance(listed, list) or len(listed) > RESOURCES_MAX:
        raise BadCredential("resources")
    found = []
    for one in listed:
        match one:
            case {"with": str(resource), "can": str(ability)}:
                owner, slash, path = resource.partition("/")
                segments = path_segments(path) if slash else ()
                if segments is None:
                    raise BadCredential("resources")
                # "Unknown abilities give nothing, since tokens for other services may carry them"
                # (docs/design/access.md).
                if ability in _PARTS:
                    found.append(_DelegatedPart(owner, segments, _PARTS[ability]))
            case _:
                raise BadCredential("resources")
    return found


def _rights(abilities: frozenset[str]) -> str:
    """Return the rights of abilities, in the order of `RIGHTS`."""
    rights = "r" if "read" in abilities else ""
    # The right `w` includes deleting, so it takes both abilities.
    if {"write", "delete"} <= abilities:
        rights += "w"
    # Never `a`: only owners whose key the folder holds set rules on their data.
    return rights + "px" if "other" in abilities else rights
