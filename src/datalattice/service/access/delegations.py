"""Delegations: what owners let a caller use of their data, read from the texts that it shows.

A delegation gives what its issuer owns, or a part of what one of its proofs gives to the issuer.
Every signature in a chain is checked, and each link is addressed to the issuer of the next.

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
from datalattice.service.access.reading import id_in, read_signed, time_ms
from datalattice.service.access.scopes import Delegated, path_segments

LINKS_MAX: Final = 16  # each costs a signature
"""Most delegations of one request, with their proofs."""

_SKEW_MS: Final = CLOCK_SKEW_S * 1_000
_LIFE_MS_MAX: Final = DELEGATION_LIFE_S_MAX * 1_000 + _SKEW_MS

# What each ability consists of: one covers another by having all of its parts.
_PARTS: Final[Mapping[str, frozenset[str]]] = {
    "*": frozenset({"read", "write", "delete", "other"}),
    "crud": frozenset({"read", "write", "delete"}),
    "crud/read": frozenset({"read"}),
    "crud/write": frozenset({"write"}),
    "crud/delete": frozenset({"delete"}),
}


class Chain(NamedTuple):
    """A delegation that holds, with its proofs.

    ids: (issuer, id) of each link, by which it may be revoked.
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
            self.owner == other.owner
            and other.path[: len(self.path)] == self.path
            and other.abilities <= self.abilities
        )


class ChainReader:
    """Reads the delegations of one request; together they have at most `LINKS_MAX` links."""

    def __init__(self) -> None:
        self._links = 0

    def read(self, text: str, audience: str | None, now_ms: int) -> Chain:
        """Return what a delegation to `audience` gives.

        Raises: BadCredential, BadFormat: it or one of its proofs is not valid now.
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
        # A text that was given to another caller is of no use to this one.
        if audience is None or claims.get("aud") != audience:
            raise BadCredential("audience")
        ends_ms = time_ms(claims, "exp")
        begins_ms = time_ms(claims, "nbf") if "nbf" in claims else 0
        if now_ms >= ends_ms + _SKEW_MS:
            raise BadCredential("expired")
        if now_ms < begins_ms - _SKEW_MS:
            raise BadCredential("not-yet-valid")
        if ends_ms - now_ms > _LIFE_MS_MAX:  # a revocation would be forgotten before
            raise BadCredential("life")
        ids = [(issuer, id_in(claims, "nnc"))]
        held: list[_DelegatedPart] = []
        begins_ms, ends_ms = begins_ms - _SKEW_MS, ends_ms + _SKEW_MS
        for proof in _proofs(claims):
            parts, begins, ends, above = self._link(proof, issuer, now_ms)
            held += parts
            ids += above
            begins_ms, ends_ms = max(begins_ms, begins), min(ends_ms, ends)
        # "Each link narrower than its parent"; the first link is the owner's.
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
    """Return what a delegation lists. Abilities that other services know give nothing here."""
    listed = claims.get("att")
    # Bounded before anything is read: the text comes from whoever shows it.
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
    """Return the rights, in their order, that abilities give."""
    rights = "r" if "read" in abilities else ""
    # Our right to write includes deleting: one without the other gives neither.
    if {"write", "delete"} <= abilities:
        rights += "w"
    # Never `a`: rules of an owner's data are set by owners of the folder.
    return rights + "px" if "other" in abilities else rights
