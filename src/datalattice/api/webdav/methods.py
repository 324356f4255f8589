"""Methods: the methods of WebDAV, by the actions on drives.

Source: docs/webdav.md; RFC 4918; RFC 9110 sections 13, 14.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from starlette.responses import Response, StreamingResponse

from datalattice import actions
from datalattice.api.rest import asked_range, file_pieces
from datalattice.api.webdav.documents import directory_link, directory_page
from datalattice.api.webdav.properties import (
    PROTECTED,
    RequestedProperties,
    active_lock,
    changes_in,
    content_type,
    entity_tag,
    http_date,
    multistatus,
    patched,
    response,
)
from datalattice.api.webdav.requests import (
    DavPath,
    IfHeader,
    depth,
    destination,
    entity_tags,
    is_overwriting,
    lock_seconds,
    lock_token,
    lock_wish,
)
from datalattice.api.webdav.resources import (
    Children,
    DavAsked,
    DavError,
    DavResources,
    last_name,
)
from datalattice.clock import Clock
from datalattice.errors import (
    AlreadyExists,
    NoSuchPath,
    RateLimited,
    UsageError,
)
from datalattice.protobuf import Message
from datalattice.service import Service
from datalattice.service.access import Principal

R = TypeVar("R", bound=Message)

XML: Final = "application/xml; charset=utf-8"

PUT_METHOD: Final = "PUT"
"""The method whose body may have any length."""

_RETRY_S: Final = 1.0
"""Pause of a begun answer whose caller exceeds its rate, if the error names no pause."""

SANDBOX: Final = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src 'self'"
"""Policy of pages on a drive: any writer may have stored them, so they cannot act as the reader."""

ACTION_OF: Final[Mapping[str, type[actions.ActionRequest[Any]]]] = {
    "PROPFIND": actions.StatFile,
    "PROPPATCH": actions.SetProperties,
    "LOCK": actions.TakeLock,
    "MKCOL": actions.MakeDirectory,
    PUT_METHOD: actions.PutFile,
}
"""The action of each method with a body, which is checked before the body is read."""


class DavMethods(DavResources):
    """The methods, called in a thread. base, clock, pool: as of the door."""

    def __init__(self, service: Service, base: str, clock: Clock, pool: ThreadPoolExecutor) -> None:
        super().__init__(service, base, clock)
        self._pool: Final = pool
        self._methods: Final[dict[str, Callable[[DavAsked], Response]]] = {
            "OPTIONS": self._options,
            "GET": self._get,
            "HEAD": self._get,
            "DELETE": self._delete,
            "MKCOL": self._mkcol,
            "PROPFIND": self._propfind,
            "PROPPATCH": self._proppatch,
            "COPY": self._copy,
            "MOVE": self._copy,
            "LOCK": self._lock,
            "UNLOCK": self._unlock,
        }

    def asked(
        self, method: str, path: str, headers: Mapping[str, str], caller: Principal
    ) -> DavAsked:
        """Return a request whose head was checked; its body is unread. path: percent-encoded.

        Raises: DavError: the method is unknown, or no list of its If header holds. RateLimited,
                Unauthenticated, Unauthorized: the caller may not make it, whatever its body has.
        """
        if method not in self._methods and method != PUT_METHOD:
            raise DavError(405, f"{method[:20]} is not supported here")
        lists = IfHeader.parse(headers["if"]) if "if" in headers else IfHeader()
        asked = DavAsked(method, headers, DavPath.parse(path, self._base), caller, lists)
        made = ACTION_OF.get(method)
        if made is not None and asked.path.drive:
            self._service.check_head(made(**asked.target), caller)
        # After the right was checked, since the answer says what is there.
        if lists.lists and not lists.holds(lambda tag: self.state(asked, tag)):
            raise DavError(412, "If: none of its lists holds")
        return asked

    def answer(self, asked: DavAsked) -> Response:
        """Answer a request other than PUT. Raises: DavError; as the actions."""
        return self._methods[asked.method](asked)

    # --- reading ---

    def _options(self, asked: DavAsked) -> Response:
        headers = {
            "dav": "1, 2",  # 2: with locks (RFC 4918, 18.2)
            "allow": ", ".join((*self._methods, PUT_METHOD)),
            "ms-author-via": "DAV",
        }
        return Response(headers=headers)

    def _get(self, asked: DavAsked) -> Response:
        if not asked.path.drive:
            return self._index(asked)
        info = self.call(asked, actions.StatFile(**asked.target))
        if info.is_directory:
            return self._index(asked)
        tag = entity_tag(info)
        headers = {
            "etag": str(tag),
            "accept-ranges": "bytes",
            "last-modified": http_date(info.modified_ms),
            "content-type": content_type(asked.path.names[-1]),
            "cache-control": "no-cache",
            "content-security-policy": SANDBOX,
            "x-content-type-options": "nosniff",
        }
        match, none = asked.headers.get("if-match"), asked.headers.get("if-none-match")
        if match is not None and match.strip() != "*" and tag not in entity_tags(match):
            raise DavError(412, "If-Match: the file has another entity tag")
        if none is not None and (none.strip() == "*" or tag in _weakly(none)):
            return Response(status_code=304, headers=headers)
        part, status = range(info.size), 200
        span = asked_range(asked.headers, tag, info.size)
        if span is not None and span.start >= info.size:
            headers["content-range"] = f"bytes */{info.size}"
            return Response(status_code=416, headers=headers)
        if span is not None:
            part, status = span, 206
            headers["content-range"] = f"bytes {part.start}-{part.stop - 1}/{info.size}"
        headers["content-length"] = str(len(part))
        if asked.method == "HEAD" or not part:
            return Response(status_code=status, headers=headers)
        # With the hash, a version that is written meanwhile is refused instead of mixed in.
        wanted = actions.GetFile(**asked.target, start=part.start, count=len(part), hash=info.hash)
        stream = self._service.stream(wanted, asked.caller)
        return StreamingResponse(file_pieces(stream, asked.caller, self._pool), status, headers)

    def _index(self, asked: DavAsked) -> Response:
        """Return a directory as a page for browsers."""

        def links(children: Children) -> str:
            shown = []
            for path, info in children:
                is_directory = info is None or info.is_directory
                href = path.href(self._base, is_directory=is_directory)
                shown.append(directory_link(href, last_name(path) + "/" * is_directory))
            return "".join(shown)

        head, end = directory_page(asked.path.href(self._base, is_directory=True))
        headers = {"cache-control": "no-cache", "content-security-policy": SANDBOX}
        answer = self._listed(asked, head, links, end, 200, "text/html; charset=utf-8")
        answer.headers.update(headers)
        return answer

    def _listed(
        self,
        asked: DavAsked,
        head: str,
        shown: Callable[[Children], str],
        end: str,
        status: int,
        kind: str,
    ) -> Response:
        """Answer with the entries of a directory, page by page. shown: writes some entries."""
        children, start = self.children(asked)
        first = head + shown(children)
        if not start:
            return Response(first + end, status, media_type=kind)

        def following(start: bytes) -> tuple[bytes, bytes]:
            children, start = self.children(asked, start)
            return shown(children).encode(), start

        async def pages(start: bytes) -> AsyncIterator[bytes]:
            yield first.encode()
            loop = asyncio.get_running_loop()
            while start:
                try:
                    page, start = await loop.run_in_executor(self._pool, following, start)
                except RateLimited as error:  # the status is sent already, so wait and go on
                    await asyncio.sleep(error.retry_s or _RETRY_S)
                else:
                    yield page
            yield end.encode()

        return StreamingResponse(pages(start), status, media_type=kind)

    # --- writing ---

    def put(self, asked: DavAsked) -> tuple[actions.PutFile, bool]:
        """Return the action of a PUT, and whether it makes a new file; the body is read later."""
        if not asked.path.names or asked.path.is_slashed:
            raise DavError(405, "a directory has no content")
        held = self.stat(asked, asked.path)
        if held is not None and held.is_directory:
            raise DavError(405, "a directory has no content")
        expected = self.expected(asked, held)
        # RFC 4918, 9.7.1: a PUT below a missing directory is refused, and makes none.
        if held is None:
            self.need_parent(asked, asked.path)
        return actions.PutFile(
            **asked.target, lock_tokens=asked.lists.tokens, **expected
        ), held is None

    def _delete(self, asked: DavAsked) -> Response:
        # "Not a drive (403), which other copies would bring back" (docs/webdav.md "Methods").
        self.check_inside(asked)
        # RFC 4918, 9.6.1: a directory is removed with all that is below it.
        depth(asked.headers, ("infinity",))
        held = self.stat(asked, asked.path)
        if held is None:
            raise DavError(404, f"there is no {asked.path.path}")
        expected = self.expected(asked, held)
        tokens = asked.lists.tokens
        self.change(
            asked,
            actions.RemoveFile(**asked.target, is_recursive=True, lock_tokens=tokens, **expected),
        )
        return Response(status_code=204)

    def _mkcol(self, asked: DavAsked) -> Response:
        # RFC 4918, 9.3.1: a body that is not understood is refused with 415.
        if asked.body:
            raise DavError(415, "a MKCOL has no body")
        path = asked.path
        if not path.drive or self.stat(asked, path) is not None:
            raise DavError(405, f"{path.path} exists already")
        if path.names:
            self.need_parent(asked, path)
        request = actions.MakeDirectory(
            owner=path.owner,
            drive=path.drive,
            path=path.path if path.names else "",
            lock_tokens=asked.lists.tokens,
        )
        try:
            self.change(asked, request, missing=409)
        except AlreadyExists as error:
            raise DavError(405, str(error)) from error
        location = path.href(self._base, is_directory=True)
        return Response(status_code=201, headers={"location": location})

    def _copy(self, asked: DavAsked) -> Response:
        """COPY and MOVE."""
        self.check_inside(asked)
        is_move = asked.method == "MOVE"
        how = depth(asked.headers, ("infinity",) if is_move else ("0", "infinity"))
        overwrite = is_overwriting(asked.headers)
        target = destination(asked.headers, self._base)
        if target is None or target.drive_root != asked.path.drive_root:
            raise DavError(502, "Destination: only URLs in the same drive are supported")
        if not target.names:
            raise DavError(403, "Destination: a whole drive cannot be replaced")
        source = asked.path.names
        if source[: len(target.names)] == target.names or target.names[: len(source)] == source:
            raise DavError(403, "source and destination are the same, or one is in the other")
        origin = self.stat(asked, asked.path)
        if origin is None:
            raise DavError(404, f"there is no {asked.path.path}")
        expected = self.expected(asked, origin)
        held = self.stat(asked, target)
        if held is not None and not overwrite:
            raise DavError(412, f"Overwrite: F, and {target.path} exists")
        if held is None:
            self.need_parent(asked, target)
        if asked.lists.has_tags:  # a condition may be about the destination
            expected["target_if_match"] = None if held is None else held.hash
            overwrite = held is not None
        fields: dict[str, Any] = {
            **asked.target,
            **expected,
            "target": target.path,
            "overwrite": overwrite,
            "is_recursive": True,
            "lock_tokens": asked.lists.tokens,
        }
        request: actions.ActionRequest[Any] = (
            actions.MoveFile(**fields)
            if is_move
            else actions.CopyFile(**fields, is_shallow=how == "0")
        )
        try:
            self.change(asked, request, missing=409)
        except AlreadyExists as error:
            raise DavError(412, str(error)) from error
        return Response(status_code=201 if held is None else 204)

    # --- properties ---

    def _propfind(self, asked: DavAsked) -> Response:
        wanted = RequestedProperties.parse(asked.body)
        how = asked.headers.get("depth", "infinity").lower()
        # "`infinity`, the meaning of a missing header, is 403" (docs/webdav.md "Methods").
        if how == "infinity":
            raise DavError(403, "Depth: 0 or 1, got infinity", "propfind-finite-depth")
        depth(asked.headers, ("0", "1"))
        path = asked.path
        info = self.call(asked, actions.StatFile(**asked.target)) if path.drive else None
        is_directory = info is None or info.is_directory
        locks: tuple[actions.LockInfo, ...] = ()
        if path.drive and wanted.needs_locks:
            locks = self.call(asked, actions.ListLocks(**asked.target)).locks

        def shown(found: Children) -> str:
            return "".join(response(self.resource(*one, locks), wanted) for one in found)

        head, end = multistatus()
        head += shown([(path, info)])
        if how == "1" and is_directory:
            return self._listed(asked, head, shown, end, 207, XML)
        if not path.drive:
            self.children(asked)  # raises if this caller may not see the owner
        return Response(head + end, 207, media_type=XML)

    def _proppatch(self, asked: DavAsked) -> Response:
        self.check_inside(asked, is_root=True)
        changes = changes_in(asked.body)
        info = self.call(asked, actions.StatFile(**asked.target))
        # "Properties of your own; all of a request or none" (docs/webdav.md "Methods").
        if PROTECTED.isdisjoint(changes):
            request = actions.SetProperties(
                **asked.target,
                set=tuple(
                    actions.FileProperty(name=name, value=value)
                    for name, value in changes.items()
                    if value is not None
                ),
                remove=tuple(name for name, value in changes.items() if value is None),
                lock_tokens=asked.lists.tokens,
            )
            self.change(asked, request)
        href = asked.path.href(self._base, is_directory=info.is_directory)
        head, end = multistatus()
        return Response(head + patched(href, changes) + end, 207, media_type=XML)

    # --- locks ---

    def _lock(self, asked: DavAsked) -> Response:
        self.check_inside(asked, is_root=True)
        how = depth(asked.headers, ("0", "infinity"))
        fields: dict[str, Any] = {
            **asked.target,
            "timeout_s": lock_seconds(asked.headers, actions.LOCK_S_MAX),
        }
        # RFC 4918, 9.10.2: without a body it refreshes the lock whose token the If header has.
        if not asked.body:
            if len(asked.lists.tokens) != 1:
                raise UsageError(
                    "a LOCK without a body refreshes the lock whose token If has; got "
                    f"{len(asked.lists.tokens)} tokens"
                )
            fields["token"] = asked.lists.tokens[0]
            lock = self.change(asked, actions.TakeLock(**fields), missing=412)
        else:
            lock = self.change(
                asked,
                actions.TakeLock(
                    **fields,
                    is_deep=how == "infinity",
                    lock_tokens=asked.lists.tokens,
                    **lock_wish(asked.body),
                ),
                missing=409,
            )
        text = active_lock(lock, self.lock_root(asked.path, lock), self._clock.now_ms())
        body = (
            '<?xml version="1.0" encoding="utf-8"?>\n<D:prop xmlns:D="DAV:">'
            f"<D:lockdiscovery>{text}</D:lockdiscovery></D:prop>"
        ).encode()
        headers = {"lock-token": f"<{lock.token}>"}
        return Response(body, 201 if lock.is_new else 200, headers, XML)

    def _unlock(self, asked: DavAsked) -> Response:
        self.check_inside(asked, is_root=True)
        token = lock_token(asked.headers)
        try:
            self.call(asked, actions.UnlockFile(**asked.target, token=token))
        except NoSuchPath as error:
            raise DavError(409, str(error), "lock-token-matches-request-uri") from error
        return Response(status_code=204)


def _weakly(header: str) -> list[str]:
    # "the weak comparison" of If-None-Match (RFC 9110 section 13.1.2)
    return [one.removeprefix("W/") for one in entity_tags(header)]
