"""Door: WebDAV over the actions on drives, an ASGI application.

    /dlfs/                      the owners that the caller sees
    /dlfs/OWNER/                the drives of an owner
    /dlfs/OWNER/DRIVE/a/b.txt   a file in a drive

A request is handled in one of a few threads, because actions wait for the disk. Headers and body
become requests of actions, so the service's rights, rates and audit records apply.

Source: docs/webdav.md; RFC 4918; RFC 9110 sections 13, 14.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Final, Literal

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from datalattice.api.rest import (
    Enter,
    merged_headers,
    problem_answer,
    read_body,
    shown_credentials,
    take_upload,
)
from datalattice.api.webdav.documents import XML_BYTES_MAX
from datalattice.api.webdav.methods import PUT_METHOD, XML, DavMethods
from datalattice.api.webdav.properties import entity_tag
from datalattice.api.webdav.resources import DavAsked, DavError
from datalattice.clock import Clock, SystemClock
from datalattice.errors import Conflict, DataLatticeError, FileLocked, NoSuchPath, NotADirectory
from datalattice.service import Service
from datalattice.service.access import Credentials, Origin

WEBDAV_BASE: Final = "/dlfs"

_THREADS: Final = 16
"""Most requests that are handled at once."""


_log = logging.getLogger(__name__)


class WebDavDoor:
    """Answers WebDAV requests below a base path. `close` ends its threads."""

    def __init__(
        self,
        service: Service,
        enter: Enter,
        *,
        local: Literal["socket"] | None = None,
        base: str = WEBDAV_BASE,
        clock: Clock | None = None,
    ) -> None:
        """enter, local: as of `rest_app`."""
        self._service: Final = service
        self._enter: Final = enter
        self._local: Final = local
        self._numbers = count(1)
        self._pool = ThreadPoolExecutor(_THREADS, "webdav")
        self._methods: Final = DavMethods(service, base, clock or SystemClock(), self._pool)

    def close(self) -> None:
        """End the threads, once the server has ended."""
        self._pool.shutdown(wait=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, whose path is still percent-encoded."""
        answer = await self._answer(Request(scope, receive))
        await answer(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        run = partial(asyncio.get_running_loop().run_in_executor, self._pool)
        headers = merged_headers(request)
        try:
            origin = Origin("webdav", next(self._numbers))
            shown = shown_credentials(request, origin, local=self._local, headers=_bearing(headers))
            # The caller is authenticated before the body is read.
            asked = await run(self._enter_with, request, headers, shown)
            if request.method != PUT_METHOD:
                body = await read_body(request, XML_BYTES_MAX) if shown.is_unread else b""
                return await run(self._answer_body, asked, body, shown)
            wanted, is_new = await run(self._methods.put, asked)
            begin = partial(self._service.upload, wanted, asked.caller)
            info = await take_upload(request, run, begin, shown, self._service)
            status = 201 if is_new else 204
            return Response(status_code=status, headers={"etag": str(entity_tag(info))})
        except ClientDisconnect:
            return Response(status_code=499)  # for the log: the client is gone
        except DavError as error:
            return _refusal(error)
        except DataLatticeError as error:
            return self._problem(error, request.method)
        except Exception as error:  # noqa: BLE001 - our fault ends one request, not the door
            _log.exception("a fault of the service in %s", request.method)
            return problem_answer(error, "r")

    def _problem(self, error: DataLatticeError, method: str) -> Response:
        if isinstance(error, FileLocked):
            condition = "no-conflicting-lock" if method == "LOCK" else "lock-token-submitted"
            return _refusal(DavError(423, str(error), condition))
        if method == PUT_METHOD and isinstance(error, Conflict | NoSuchPath):
            # "409: no such directory" (docs/webdav.md "Methods").
            return _refusal(DavError(412 if isinstance(error, Conflict) else 409, str(error)))
        if isinstance(error, NotADirectory):
            return _refusal(DavError(404, str(error)))  # a path below a file does not exist
        answer = problem_answer(
            error, "r" if method in ("GET", "HEAD", "PROPFIND", "OPTIONS") else "w"
        )
        if answer.status_code == 401:
            # Many clients support only Basic: they send the token as the password.
            answer.headers.append("www-authenticate", 'Basic realm="datalattice", charset="UTF-8"')
        return answer

    # --- in a thread ---

    def _enter_with(
        self, request: Request, headers: Mapping[str, str], shown: Credentials
    ) -> DavAsked:
        caller = self._enter(shown)
        return self._methods.asked(request.method, request.scope["path"], headers, caller)

    def _answer_body(self, asked: DavAsked, body: bytes, shown: Credentials) -> Response:
        if shown.is_unread and shown.is_signed:
            self._service.check_body(shown, hashlib.sha256(body).digest())
        return self._methods.answer(replace(asked, body=body))


def _bearing(headers: Mapping[str, str]) -> Mapping[str, str]:
    """Return the headers, with the password of Basic as a bearer token."""
    scheme, _, text = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return headers
    try:
        _, colon, password = base64.b64decode(text.strip(), validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return headers  # authentication refuses it as any malformed credential
    return {**headers, "authorization": f"Bearer {password}"} if colon else headers


def _refusal(error: DavError) -> Response:
    if not error.condition:
        return Response(f"{error}\n", error.status, media_type="text/plain; charset=utf-8")
    body = (
        '<?xml version="1.0" encoding="utf-8"?>\n'
        f'<D:error xmlns:D="DAV:"><D:{error.condition}/></D:error>'
    )
    return Response(body, error.status, media_type=XML)
