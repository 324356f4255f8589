"""Scopes: the names of what rights are given on, and the grants that narrow a credential.

A scope is a path of segments with `/` between them: `values`, `pins/DID`, `lattice/kv/DID/shop`,
`stores/ID`, `venue/jobs/DID`, `admin`. It covers itself and every scope below it. In a segment `/`
is written `%2F` and `%` is written `%25`, so that each scope has one text.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from datalattice.errors import UsageError

RIGHTS: Final = "rwpxa"
"""Read, write, pin, invoke, administer; none of them includes another one."""

ROOMS: Final = ("admin", "lattice", "pins", "stores", "values", "venue")
"""First segments of scopes."""

ROOMS_OF_OWNERS: Final = ("lattice", "pins", "venue")
"""Those with scopes that are one owner's."""

UNOWNED: Final = ("data",)
"""Sections of the root whose entries belong to no owner."""

SCOPE_CHARACTERS_MAX: Final = 4_096  # a DID may have half of it
SCOPE_SEGMENTS_MAX: Final = 64
GRANTS_MAX: Final = 64
"""Most grants of one credential."""

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
_ESCAPE: Final = re.compile(r"%(25|2F)")


def join_scope(*segments: str) -> str:
    """Return the scope with these segments. Raises: UsageError: there is no such scope."""
    text = "/".join([one.replace("%", "%25").replace("/", "%2F") for one in segments])
    split_scope(text)
    return text


def split_scope(text: str) -> tuple[str, ...]:
    """Return the segments of a scope.

    Raises: UsageError: it begins with no known word, has an empty segment, control characters or
            `%` other than in %25 and %2F, or is too long.
    """
    if len(text) > SCOPE_CHARACTERS_MAX:
        raise UsageError(f"a scope has at most {SCOPE_CHARACTERS_MAX} characters, got {len(text)}")
    parts = text.split("/")
    if parts[0] not in ROOMS:
        raise UsageError(f"a scope begins with {', '.join(ROOMS)}, got {parts[0][:40]!r}")
    if len(parts) > SCOPE_SEGMENTS_MAX:
        raise UsageError(f"a scope has at most {SCOPE_SEGMENTS_MAX} segments, got {len(parts)}")
    for part in parts:
        # One text for each scope: a second spelling would be another scope to a rule.
        if not part or _CONTROL.search(part) or "%" in _ESCAPE.sub("", part):
            raise UsageError(
                "a segment of a scope is not empty, and has no control characters and no % except "
                f"%25 and %2F, got {part[:40]!r}"
            )
    return tuple([part.replace("%2F", "/").replace("%25", "%") for part in parts])


def covering(text: str) -> list[str]:
    """Return a scope and those that cover it, the longest first."""
    parts = text.split("/")
    return ["/".join(parts[:count]) for count in range(len(parts), 0, -1)]


class Owned(NamedTuple):
    """A scope that is one owner's: its text, and the owner as the scope names it."""

    scope: str
    owner: str


def owned_part(text: str) -> Owned | None:
    """Return the scope that holds all data of the owner whose data a scope is, None without one."""
    match split_scope(text):
        case ("lattice", section, owner, *_) if section not in UNOWNED:
            return Owned(join_scope("lattice", section, owner), owner)
        case ("pins", owner, *_):
            return Owned(join_scope("pins", owner), owner)
        case ("venue", "jobs", owner, *_):
            return Owned(join_scope("venue", "jobs", owner), owner)
    return None


class Delegated(NamedTuple):
    """Data of an owner that others may use. path: below the owner, such as `kv`, `shop`.

    A path begins with a section of the root, `pins` or `jobs`; the empty one is all of it.
    """

    owner: str
    path: tuple[str, ...]
    rights: str

    def covers(self, right: str, scope: str) -> bool:
        """Return whether it lets a right on a scope through."""
        match split_scope(scope):
            # Entries of `:data` have no owner, so no one can give them away.
            case ("lattice", section, owner, *rest) if section not in UNOWNED:
                path = (section, *rest)
            case ("pins", owner, *rest):
                path = ("pins", *rest)
            case ("venue", "jobs", owner, *rest):
                path = ("jobs", *rest)
            case _:
                return False
        return right in self.rights and owner == self.owner and path[: len(self.path)] == self.path


def path_segments(text: str) -> tuple[str, ...] | None:
    """Return the segments of a path below an owner, None if it is malformed.

    It is written as a scope is: see `split_scope`.
    """
    try:
        return split_scope(f"lattice/{text}")[1:]
    except UsageError:
        return None


def checked_right(right: str) -> str:
    """Return a right. Raises: UsageError: there is no such right."""
    if len(right) != 1 or right not in RIGHTS:
        raise UsageError(f"a right is one of {', '.join(RIGHTS)}, got {right[:40]!r}")
    return right


class Grant(NamedTuple):
    """What a credential allows on a scope: some of `rwpxa`. Written `rw lattice/kv`."""

    rights: str
    scope: str

    def __str__(self) -> str:
        return f"{self.rights} {self.scope}"


def parse_grant(text: str) -> Grant:
    """Return a grant.

    Raises: UsageError: it is not rights in the order `rwpxa`, a space, and a scope.
    """
    rights, space, scope = text.partition(" ")
    # One order, so that one grant has one text.
    if not space or rights != "".join(right for right in RIGHTS if right in rights) or not rights:
        raise UsageError(f"a grant is rights of {RIGHTS} in this order and a scope: 'rw lattice'")
    split_scope(scope)
    return Grant(rights, scope)


def parse_grants(texts: list[str]) -> tuple[Grant, ...]:
    """Return the grants of a credential.

    Raises: UsageError: one is malformed, two name the same scope, or there are too many.
    """
    if len(texts) > GRANTS_MAX:
        raise UsageError(f"a credential has at most {GRANTS_MAX} grants, got {len(texts)}")
    grants = tuple(map(parse_grant, texts))
    # Two grants of one scope would need a rule which of them counts.
    if len({grant.scope for grant in grants}) != len(grants):
        raise UsageError("a credential names each scope once")
    return grants
