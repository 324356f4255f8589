"""Requests: parses paths and headers of WebDAV strictly.

Source: RFC 4918 sections 8.3, 9.8, 10; RFC 9110 sections 13, 14.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote_to_bytes, urlsplit

from datalattice.actions import LOCK_S
from datalattice.api.webdav.documents import XMLElement, read_xml, write_children
from datalattice.errors import BadFormat, NoSuchPath, UsageError

HEADER_CHARACTERS_MAX: Final = 8_192
"""Longest `If` header, in characters."""

CONDITIONS_MAX: Final = 100
"""Most conditions of an `If` header."""

_OWNER: Final = re.compile(r"own|did:[!-~]+|[0-9a-f]{64}")
_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_IF_PART: Final = re.compile(
    r"\s*(?:(?P<tag><[^>]*>)|(?P<open>\()|(?P<close>\))|(?P<not>not\b)|(?P<etag>\[[^\]]*\]))",
    re.IGNORECASE,
)
_TAG: Final = re.compile(r'\s*(W/)?("[^"]*")\s*')


class DavPath(NamedTuple):
    """The owner, the drive and the path in it that a URL names.

    owner, drive: ""; names: (): the URL ends before that part. is_slashed: it ends with a slash.
    """

    owner: str = ""
    drive: str = ""
    names: tuple[str, ...] = ()
    is_slashed: bool = False

    @classmethod
    def parse(cls, raw: str, base: str) -> DavPath:
        """Return the path that a percent-encoded text names below `base`.

        Raises: UsageError: it has an empty name, `.`, `..`, an encoded slash, NUL, or a `%` that
                begins no escape. NoSuchPath: its first segment is not an owner.
        """
        inner = raw.removeprefix(base).removeprefix("/")
        is_slashed = inner.endswith("/") or not inner
        parts = inner.removesuffix("/").split("/") if inner.removesuffix("/") else []
        # Padded, so that a short path has an empty owner or drive.
        owner, drive, *names = [*map(_segment, parts), "", ""][: max(len(parts), 2)]
        if owner and not _OWNER.fullmatch(owner):
            raise NoSuchPath(f"{owner[:80]!r}: an owner is own, a DID or a key in hex")
        return cls(owner, drive, tuple(names), is_slashed)

    @property
    def path(self) -> str:
        """The path in the drive."""
        return "/" + "/".join(self.names)

    @property
    def parent(self) -> DavPath:
        """The directory that contains it."""
        return self._replace(names=self.names[:-1], is_slashed=True)

    @property
    def drive_root(self) -> tuple[str, str]:
        """Owner and drive."""
        return self.owner, self.drive

    def child(self, name: str) -> DavPath:
        """Return the path of its entry with a name."""
        if not self.owner:
            return DavPath(name)
        if not self.drive:
            return DavPath(self.owner, name)
        return self._replace(names=(*self.names, name), is_slashed=False)

    def href(self, base: str, *, is_directory: bool) -> str:
        """Return it percent-encoded below `base`; a directory's ends with a slash."""
        parts = [one for one in (self.owner, self.drive, *self.names) if one]
        text = "/".join([base, *map(_escaped, parts)])
        return f"{text}/" if is_directory else text


def _segment(part: str) -> str:
    if not part:
        raise UsageError("the path has an empty name: two slashes in a row")
    if _ESCAPE.search(part):
        raise UsageError(f"the path has a % without two hex digits in {part[:80]!r}")
    # Names in a drive may have bytes that are not UTF-8, kept as surrogates.
    name = unquote_to_bytes(part).decode("utf-8", "surrogateescape")
    if name in (".", "..") or "/" in name or "\0" in name:
        raise UsageError("a name in the path is . or .., or has an encoded slash or NUL")
    return name


def _escaped(name: str) -> str:
    return quote(name.encode("utf-8", "surrogateescape"), safe="!$'()*+,;:@~")


def destination(headers: Mapping[str, str], base: str) -> DavPath | None:
    """Return the path in the header Destination; None: it is on another server.

    Raises: UsageError: the header is missing or malformed.
    """
    text = headers.get("destination", "")
    try:
        parts = urlsplit(text)
    except ValueError as error:
        raise UsageError(f"Destination: {text[:80]!r} is not a URL") from error
    if not parts.path.startswith("/") or parts.query or parts.fragment:
        raise UsageError(f"Destination: a URL without query and fragment, got {text[:80]!r}")
    # RFC 4918, 9.8.5: the caller refuses a copy to another server with 502.
    if parts.netloc and parts.netloc.lower() != headers.get("host", "").lower():
        return None
    if parts.path != base and not parts.path.startswith(f"{base}/"):
        return None
    return DavPath.parse(parts.path, base)


def depth(headers: Mapping[str, str], allowed: tuple[str, ...]) -> str:
    """Return the Depth of a request; without one, `infinity`. Raises: UsageError: another depth."""
    found = headers.get("depth", "infinity").lower()
    if found not in allowed:
        raise UsageError(f"Depth: {' or '.join(allowed)} here, got {found[:80]!r}")
    return found


def is_overwriting(headers: Mapping[str, str]) -> bool:
    """Return whether the target may be replaced. Raises: UsageError: it is not T or F."""
    # RFC 4918, 10.6: without the header, as with T.
    found = headers.get("overwrite", "T").upper()
    if found not in ("T", "F"):
        raise UsageError(f"Overwrite: T or F, got {found[:80]!r}")
    return found == "T"


def lock_seconds(headers: Mapping[str, str], most: int) -> int:
    """Return the seconds of a lock: the first valid time in the header Timeout, else `LOCK_S`."""
    for one in headers.get("timeout", "").split(","):
        kind, _, number = one.strip().lower().partition("-")
        # RFC 4918, 10.7: the times are wishes, the preferred one first; the server decides.
        if kind == "infinite":
            return most
        if kind == "second" and number.isascii() and number.isdigit() and len(number) < 12:
            return min(max(int(number), 1), most)
    return LOCK_S


def lock_token(headers: Mapping[str, str]) -> str:
    """Return the token of the header Lock-Token. Raises: UsageError: it is malformed."""
    found = headers.get("lock-token", "").strip()
    if not (found.startswith("<") and found.endswith(">") and len(found) > 2):
        raise UsageError(f"Lock-Token: a URI in <>, got {found[:80]!r}")
    return found[1:-1]


def entity_tags(header: str) -> list[str]:
    """Return the tags of If-Match or If-None-Match: `"x"`, or `W/"x"` for a weak one.

    Raises: UsageError: the header is malformed.
    """
    found: list[str] = []
    for one in header.split(","):
        match = _TAG.fullmatch(one)
        if match is None:
            raise UsageError(f"an entity tag is in quotes, got {one[:80]!r}")
        found.append(f"{match[1] or ''}{match[2]}")
    return found


class IfCondition(NamedTuple):
    """One condition of an `If` header: a lock token, or an entity tag."""

    is_not: bool
    is_token: bool
    text: str


class ConditionList(NamedTuple):
    """Conditions that must hold together. tag: the URL they are about; "": the request's own."""

    tag: str
    conditions: tuple[IfCondition, ...]


class IfHeader(NamedTuple):
    """The lists of an `If` header, one of which must hold."""

    lists: tuple[ConditionList, ...] = ()

    @classmethod
    def parse(cls, text: str) -> IfHeader:
        """Return the parsed header. Raises: UsageError: it is malformed or too long."""
        if len(text) > HEADER_CHARACTERS_MAX:
            raise UsageError(f"If: at most {HEADER_CHARACTERS_MAX} characters, got {len(text)}")
        lists: list[ConditionList] = []
        tag, inside, is_not, at, count = "", None, False, 0, 0
        text = text.rstrip()
        current: list[IfCondition] = []
        while at < len(text):
            match = _IF_PART.match(text, at)
            if match is None:
                raise UsageError(f"If: {text[at : at + 40]!r} is not a list, tag or condition")
            at, kind, found = match.end(), match.lastgroup, match[0].strip()
            if inside is None and kind == "tag":
                tag = found[1:-1]
            elif inside is None and kind == "open":
                inside, current = True, []
            elif inside and kind == "not" and not is_not:
                is_not = True
            elif inside and kind in ("tag", "etag"):
                current.append(IfCondition(is_not, kind == "tag", found[1:-1]))
                is_not, count = False, count + 1
            elif inside and kind == "close" and current and not is_not:
                lists.append(ConditionList(tag, tuple(current)))
                inside = None
            else:
                raise UsageError(f"If: {found!r} is not allowed there")
        # Limited, because each condition costs a look at a file or its locks.
        if inside or not lists or count > CONDITIONS_MAX:
            raise UsageError(f"If: complete lists of 1 to {CONDITIONS_MAX} conditions in all")
        return cls(tuple(lists))

    @property
    def tokens(self) -> tuple[str, ...]:
        """All lock tokens in it, which the caller submits (RFC 4918, 6.5)."""
        return tuple(one.text for found in self.lists for one in found.conditions if one.is_token)

    @property
    def has_tags(self) -> bool:
        """Whether it has conditions on entity tags."""
        return any(not one.is_token for found in self.lists for one in found.conditions)

    def holds(self, state: Callable[[str], tuple[str | None, frozenset[str]]]) -> bool:
        """Return whether one of the lists holds.

        state: returns the entity tag of a URL, or None, and the tokens of its locks.
        """
        # RFC 4918, 10.4: the lists are alternatives; all conditions of one list must hold.
        return any(_all_hold(one, *state(one.tag)) for one in self.lists)


def _all_hold(found: ConditionList, tag: str | None, tokens: frozenset[str]) -> bool:
    return all(
        (one.text in tokens if one.is_token else one.text == tag) != one.is_not
        for one in found.conditions
    )


def lock_wish(body: bytes) -> dict[str, Any]:
    """Return the fields of `TakeLock` in a lockinfo. Raises: BadFormat: it is malformed."""
    root = read_xml(body)
    scope, kind = root.named("{DAV:}lockscope"), root.named("{DAV:}locktype")
    is_shared = scope is not None and scope.named("{DAV:}shared") is not None
    is_exclusive = scope is not None and scope.named("{DAV:}exclusive") is not None
    is_write = kind is not None and kind.named("{DAV:}write") is not None
    if root.name != "{DAV:}lockinfo" or is_shared == is_exclusive or not is_write:
        raise BadFormat("the body must be a lockinfo with one lockscope and the locktype write")
    owner = root.named("{DAV:}owner") or XMLElement("")
    return {"is_shared": is_shared, "owner_note": write_children(owner)}
