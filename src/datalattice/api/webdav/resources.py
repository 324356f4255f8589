"""Resources: the files and directories at URLs that a caller may see, and conditions of writes.

Source: docs/webdav.md; RFC 4918; RFC 9110 section 13.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from datalattice.actions import (
    ActionRequest,
    FileInfo,
    ListDirectory,
    ListDrives,
    ListLocks,
    LockInfo,
    StatFile,
)
from datalattice.api.webdav.properties import (
    Resource,
    entity_tag,
)
from datalattice.api.webdav.requests import (
    DavPath,
    IfHeader,
    destination,
    entity_tags,
)
from datalattice.clock import Clock
from datalattice.errors import (
    Conflict,
    FileLocked,
    NoSigningKey,
    NoSuchPath,
    Unauthorized,
    UsageError,
)
from datalattice.protobuf import Message
from datalattice.service import Service
from datalattice.service.access import Principal

R = TypeVar("R", bound=Message)

PAGE_ENTRIES: Final = 1_000
"""Most entries of a directory that are in memory at once."""

Children = list[tuple[DavPath, FileInfo | None]]
"""Paths with their files' infos; None above the drives."""


class DavError(Exception):
    """An error answer with an HTTP status. condition: the failed precondition of RFC 4918."""

    def __init__(self, status: int, text: str, condition: str = "") -> None:
        super().__init__(text)
        self.status = status
        self.condition = condition


@dataclass(frozen=True, slots=True)
class DavAsked:
    """One request. lists: of its If header. body: empty until it is read.

    seen: the infos of the paths looked at so far. Each path is looked at once, so that all checks
    of the request see the same state.
    """

    method: str
    headers: Mapping[str, str]
    path: DavPath
    caller: Principal
    lists: IfHeader
    body: bytes = b""
    seen: dict[DavPath, FileInfo | None] = field(default_factory=dict)

    @property
    def target(self) -> dict[str, Any]:
        """The fields that name its path in actions."""
        return {"owner": self.path.owner, "drive": self.path.drive, "path": self.path.path}


class DavResources:
    """Reads and writes drives for requests. base, clock: as of the door."""

    def __init__(self, service: Service, base: str, clock: Clock) -> None:
        self._service: Final = service
        self._base: Final = base
        self._clock: Final = clock

    def call(self, asked: DavAsked, request: ActionRequest[R]) -> R:
        """Perform an action for the caller."""
        return self._service.call(request, asked.caller)

    def state(self, asked: DavAsked, tag: str) -> tuple[str | None, frozenset[str]]:
        """Return the entity tag of a URL of the If header, and the tokens of its locks."""
        path: DavPath | None = asked.path
        if tag:
            try:
                path = destination(
                    {"destination": tag, "host": asked.headers.get("host", "")}, self._base
                )
            # A condition about a URL of another service does not hold.
            except (UsageError, NoSuchPath):
                path = None
        if path is None or not path.drive:
            return None, frozenset()
        locks = self.call(asked, ListLocks(owner=path.owner, drive=path.drive, path=path.path))
        tokens = [one.token for one in locks.locks if covers(one, path)]
        return entity_tag(self.stat(asked, path)), frozenset(tokens)

    def stat(self, asked: DavAsked, path: DavPath) -> FileInfo | None:
        """Return the info of a path in a drive at the request's first look; None: no such file."""
        # One entry for both spellings of a path.
        path = path._replace(is_slashed=False)
        if path not in asked.seen:
            request = StatFile(owner=path.owner, drive=path.drive, path=path.path)
            try:
                asked.seen[path] = self.call(asked, request)
            except NoSuchPath:
                asked.seen[path] = None
        return asked.seen[path]

    def expected(self, asked: DavAsked, held: FileInfo | None) -> dict[str, Any]:
        """Check the conditions of a write; return the fields that make the action check them again.

        Raises: DavError: 412: a condition does not hold.
        """
        tag = entity_tag(held)
        # RFC 9110, 13.1: `*` stands for any version of an existing file.
        match, none = asked.headers.get("if-match"), asked.headers.get("if-none-match")
        if match is not None and not (
            held is not None and (match.strip() == "*" or tag in entity_tags(match))
        ):
            raise DavError(412, "If-Match: the file has another entity tag or does not exist")
        if (
            none is not None
            and held is not None
            and (none.strip() == "*" or tag in entity_tags(none))
        ):
            raise DavError(412, "If-None-Match: the file has this entity tag")
        if match is None and none is None and not asked.lists.has_tags:
            return {}
        # The action refuses the write if another one came between this look and it.
        return {"is_new": True} if held is None else {"if_match": held.hash}

    def children(self, asked: DavAsked, start: bytes = b"") -> tuple[Children, bytes]:
        """Return up to `PAGE_ENTRIES` entries from `start`, and the next start; b"": the end."""
        path = asked.path
        if path.drive:
            listed = self.call(
                asked, ListDirectory(**asked.target, count=PAGE_ENTRIES, start=start)
            )
            entries = listed.entries
            return [(path.child(one.path.rpartition("/")[2]), one) for one in entries], listed.next
        if path.owner:
            drives = self.call(asked, ListDrives(owner=path.owner)).drives
            return [(one, self.stat(asked, one)) for one in map(path.child, drives)], b""
        found = []
        try:
            self.call(asked, ListDrives())
            found.append(path.child("own"))
        except (NoSigningKey, Unauthorized):
            pass  # the folder has no own key, or this caller may not list its drives
        if asked.caller.did is not None and not asked.caller.is_local:
            found.append(path.child(asked.caller.did))
        return [(one, None) for one in found], b""

    def check_inside(self, asked: DavAsked, *, is_root: bool = False) -> None:
        """Raise DavError 403 for a path above the drives, or without `is_root` for a drive."""
        if not asked.path.drive or (not is_root and not asked.path.names):
            raise DavError(
                403,
                "this works on files and directories in a drive, not on drives and their owners",
            )

    def need_parent(self, asked: DavAsked, path: DavPath) -> None:
        """Raise DavError 409 unless the parent of a path is a directory."""
        held = self.stat(asked, path.parent)
        if held is None or not held.is_directory:
            raise DavError(409, f"there is no directory {path.parent.path}")

    def change(self, asked: DavAsked, request: ActionRequest[R], *, missing: int = 404) -> R:
        """Perform an action that writes. missing: the status of NoSuchPath."""
        try:
            return self.call(asked, request)
        # A Conflict, too, which the door answers with 423 and not with 412.
        except FileLocked:
            raise
        except Conflict as error:
            raise DavError(412, str(error)) from error
        except NoSuchPath as error:
            raise DavError(missing, str(error)) from error

    def resource(
        self, path: DavPath, info: FileInfo | None, locks: tuple[LockInfo, ...]
    ) -> Resource:
        """Return a path for PROPFIND, with those of the locks that cover it."""
        is_directory = info is None or info.is_directory
        return Resource(
            path.href(self._base, is_directory=is_directory),
            last_name(path),
            info,
            tuple((one, self.lock_root(path, one)) for one in locks if covers(one, path)),
            self._clock.now_ms(),
        )

    def lock_root(self, path: DavPath, lock: LockInfo) -> str:
        """Return the URL of the file or directory that a lock is on, in the drive of `path`."""
        names = tuple(one for one in lock.path.split("/") if one)
        return path._replace(names=names).href(self._base, is_directory=not names)


def covers(lock: LockInfo, path: DavPath) -> bool:
    """Return whether a lock in the same drive covers a path."""
    names = tuple(one for one in lock.path.split("/") if one)
    # A lock of depth infinity also covers every path below its own.
    return names == path.names or (lock.is_deep and names == path.names[: len(names)])


def last_name(path: DavPath) -> str:
    """Return the last name of a path; of the base, "dlfs"."""
    return path.names[-1] if path.names else path.drive or path.owner or "dlfs"
