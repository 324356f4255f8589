"""Scopes: names of the parts of a node on which rights are given, and grants of credentials.

A scope is a path of segments with `/` between them: `values`, `pins/DID`, `lattice/kv/DID/shop`,
`stores/ID`, `venue/jobs/DID`, `admin`. It covers itself and every scope below it. In a segment `/`
is written `%2F` and `%` is written `%25`, so that each scope has one text.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from datalattice.errors import UsageError

RIGHTS: Final = "rwpxa"
"""Read, write, pin, invoke, administer; no right includes another."""

ROOMS: Final = ("admin", "lattice", "pins", "stores", "values", "venue")
"""First segments of scopes."""

ROOMS_OF_OWNERS: Final = ("lattice", "pins", "venue")
"""First segments of scopes that belong to one owner."""

UNOWNED: Final = ("data",)
"""Sections of the root whose entries have no owner."""

SCOPE_CHARACTERS_MAX: Final = 4_096  # a DID may have half of it
SCOPE_SEGMENTS_MAX: Final = 64
GRANTS_MAX: Final = 64
"""Most grants of one credential."""

# Surrogates too: scopes are written to files and logs as UTF-8.
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
_ESCAPE: Final = re.compile(r"%(25|2F)")


def join_scope(*segments: str) -> str:
    """Return the scope of these segments. Raises: UsageError: the scope is invalid."""
    text = "/".join([one.replace("%", "%25").replace("/", "%2F") for one in segments])
    split_scope(text)
    return text


def split_scope(text: str) -> tuple[str, ...]:
    """Return the segments of a scope.

    Raises: UsageError: the first segment is unknown, a segment is empty, has control characters or
            a `%` other than in %25 and %2F, or the scope is too long.
    """
    if len(text) > SCOPE_CHARACTERS_MAX:
        raise UsageError(f"a scope has at most {SCOPE_CHARACTERS_MAX} characters, got {len(text)}")
    parts = text.split("/")
    if parts[0] not in ROOMS:
        raise UsageError(f"a scope begins with {', '.join(ROOMS)}, got {parts[0][:40]!r}")
    if len(parts) > SCOPE_SEGMENTS_MAX:
        raise UsageError(f"a scope has at most {SCOPE_SEGMENTS_MAX} segments, got {len(parts)}")
    for part in parts:
        # "So that each scope has one text": no rule would match a second spelling.
        if not part or _CONTROL.search(part) or "%" in _ESCAPE.sub("", part):
            raise UsageError(
                "a segment of a scope has at least one character, no control characters, and % "
                f"only in %25 and %2F, got {part[:40]!r}"
            )
    return tuple([part.replace("%2F", "/").replace("%25", "%") for part in parts])


def covering(text: str) -> list[str]:
    """Return a scope and the scopes above it, the longest first."""
    parts = text.split("/")
    return ["/".join(parts[:count]) for count in range(len(parts), 0, -1)]


class Owned(NamedTuple):
    """The scope of all data of an owner: its text, and the owner's segment in it."""

    scope: str
    owner: str


def owned_part(text: str) -> Owned | None:
    """Return the scope of all data of a scope's owner; None: the scope has no owner."""
    match split_scope(text):
        case ("lattice", section, owner, *_) if section not in UNOWNED:
            return Owned(join_scope("lattice", section, owner), owner)
        case ("pins", owner, *_):
            return Owned(join_scope("pins", owner), owner)
        case ("venue", "jobs", owner, *_):
            return Owned(join_scope("venue", "jobs", owner), owner)
    return None


class Delegated(NamedTuple):
    """Rights on a part of an owner's data. path: below the owner, such as (`kv`, `shop`).

    A path begins with a section of the root, `pins` or `jobs`; the empty one is all data.
    """

    owner: str
    path: tuple[str, ...]
    rights: str

    def covers(self, right: str, scope: str) -> bool:
        """Return whether it gives a right on a scope."""
        match split_scope(scope):
            # Entries of `:data` have no owner who could give rights on them.
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
    """Return the segments of a path below an owner, written as a scope; None: it is malformed."""
    try:
        return split_scope(f"lattice/{text}")[1:]
    except UsageError:
        return None


def checked_right(right: str) -> str:
    """Return `right`. Raises: UsageError: it is not one of `RIGHTS`."""
    if len(right) != 1 or right not in RIGHTS:
        raise UsageError(f"a right is one of {', '.join(RIGHTS)}, got {right[:40]!r}")
    return right


class Grant(NamedTuple):
    """Rights of a credential on a scope, written `rw lattice/kv`."""

    rights: str
    scope: str

    def __str__(self) -> str:
        return f"{self.rights} {self.scope}"


def parse_grant(text: str) -> Grant:
    """Return the grant of a text.

    Raises: UsageError: it is not rights in the order `rwpxa`, a space, and a scope.
    """
    rights, space, scope = text.partition(" ")
    # One order, so that one grant has one text.
    if not space or rights != "".join(right for right in RIGHTS if right in rights) or not rights:
        raise UsageError(
            f"a grant is rights in the order {RIGHTS}, a space and a scope, such as 'rw lattice', "
            f"got {text[:80]!r}"
        )
    split_scope(scope)
    return Grant(rights, scope)


def parse_grants(texts: list[str]) -> tuple[Grant, ...]:
    """Return the grants of a credential.

    Raises: UsageError: one is malformed, two name the same scope, or there are too many.
    """
    if len(texts) > GRANTS_MAX:
        raise UsageError(f"a credential has at most {GRANTS_MAX} grants, got {len(texts)}")
    grants = tuple(map(parse_grant, texts))
    # Refused: no rule says which of two grants on one scope counts.
    if len({grant.scope for grant in grants}) != len(grants):
        raise UsageError(f"a credential names each scope once, got {', '.join(texts)[:80]!r}")
    return grants
