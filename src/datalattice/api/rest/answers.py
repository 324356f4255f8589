"""Answers: values and files as HTTP bodies, whole or in ranges, and uploads of files.

A large body is read and written in pieces. A thread is occupied only while it handles one piece, so
a slow caller occupies none.

Source: docs/rest.md "Representations", "Files".
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import replace
from typing import Any, Final, TypeVar
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from datalattice.actions import (
    UPLOAD_BYTES_MAX,
    AccessRule,
    Action,
    ContentInfo,
    FileInfo,
    GetContent,
    GetFile,
    JobRecord,
    RegisteredAsset,
    Route,
    is_plain_text,
    to_document,
)
from datalattice.api.rest.bodies import OCTETS, RAW, REPRESENTATIONS, accepted
from datalattice.api.rest.requests import asked_range, declared_length
from datalattice.client import INFO_HEADER
from datalattice.clock import SystemClock
from datalattice.errors import IsADirectory, LimitExceeded, UsageError
from datalattice.protobuf import Message
from datalattice.service import Service, Streamed, Upload
from datalattice.service.access import Credentials, Principal

T = TypeVar("T")

BASE_PATH: Final = "/api/v1"

IMMUTABLE: Final = "max-age=31536000, immutable"
"""Cache-Control of a value that is named by its hash, which never changes."""

_WRITE_BYTES: Final = 1 << 20
"""Bytes of an upload that are passed to a thread at once."""


async def take_upload(
    request: Request,
    run: Callable[..., Awaitable[Any]],
    begin: Callable[[], Upload[Any]],
    shown: Credentials,
    service: Service,
) -> Any:
    """Store a body as it arrives; return the result. run: runs a function in a thread.

    Raises: UsageError: a Content-Range. LimitExceeded: the body is too long. As the action.
            Unauthenticated: the signature is of another body.
    """
    upload = await run(begin)
    digest = hashlib.sha256()
    is_signed = shown.is_unread and shown.is_signed

    def write(piece: bytes) -> None:
        if is_signed:
            digest.update(piece)
        upload.write(piece)

    try:
        if "content-range" in request.headers:
            raise UsageError("Content-Range is not supported: send the whole file")
        declared = declared_length(request) or 0
        if declared > UPLOAD_BYTES_MAX:
            raise LimitExceeded(f"a file has at most {UPLOAD_BYTES_MAX} bytes, got {declared}")
        waiting = bytearray()
        async for part in request.stream():
            waiting += part
            if len(waiting) >= _WRITE_BYTES:
                await run(write, bytes(waiting))
                waiting.clear()
        await run(write, bytes(waiting))
        # "A body is checked at its end against the digest that was signed, before it is used"
        # (docs/design/access.md).
        if is_signed:
            await run(service.check_body, shown, digest.digest())
        return await run(upload.finish)
    finally:
        # "An abandoned upload leaves nothing."
        await asyncio.shield(asyncio.ensure_future(run(upload.close)))


def file_answer(
    service: Service,
    asked: GetFile | GetContent,
    caller: Principal,
    request: Request,
    threads: Executor,
) -> Response:
    """Return a file, or one range of it. threads: to read its pieces. Raises: as the action."""
    about: Any = asked.about()
    info: FileInfo | ContentInfo = service.call(about, caller)
    if isinstance(info, FileInfo) and info.is_directory:
        raise IsADirectory(f"{info.path} is a directory; list it instead")
    tag = f'"{info.hash.hex()}"'
    headers = {
        "etag": tag,
        "accept-ranges": "bytes",
        # Kept by browsers, and asked for again by its tag.
        "cache-control": "no-cache",
        INFO_HEADER: json.dumps(to_document(info)),
    }
    media = OCTETS
    if isinstance(info, ContentInfo):
        media = info.media_type or OCTETS
        # A stranger chose type and content: browsers must neither guess another type nor run it.
        headers["x-content-type-options"] = "nosniff"
        headers["content-security-policy"] = "sandbox"
        is_inline = isinstance(asked, GetContent) and asked.inline
        headers["content-disposition"] = _disposition(info.file_name, is_inline=is_inline)
    if tag in [one.strip() for one in request.headers.get("if-none-match", "").split(",")]:
        return Response(status_code=304, headers=headers)
    span = asked_range(request.headers, tag, info.size)
    if span is not None and span.start >= info.size:
        headers["content-range"] = f"bytes */{info.size}"
        return Response(status_code=416, headers=headers)
    status = 200 if span is None else 206
    if span is None:
        stop = min(asked.start + asked.count, info.size) if asked.count else info.size
        span = range(min(asked.start, stop), stop)
    else:
        headers["content-range"] = f"bytes {span.start}-{span.stop - 1}/{info.size}"
    headers["content-length"] = str(len(span))
    if request.method == "HEAD" or not span:
        return Response(None, status, headers, media)
    # With the hash, a version that is written meanwhile is refused instead of mixed in.
    wanted = replace(asked, start=span.start, count=len(span), hash=asked.hash or info.hash)
    stream = service.stream(wanted, caller)
    return StreamingResponse(file_pieces(stream, caller, threads), status, headers, media)


def _disposition(file_name: str, *, is_inline: bool) -> str:
    kind = "inline" if is_inline else "attachment"
    return f"{kind}; filename*=UTF-8''{quote(file_name, safe='')}" if file_name else kind


async def file_pieces(
    stream: Streamed[Any], caller: Principal, threads: Executor
) -> AsyncIterator[bytes]:
    """Yield the bytes of a file until the caller's credential expires. threads: to read pieces."""
    clock, loop = SystemClock(), asyncio.get_running_loop()
    reading: asyncio.Future[list[Any]] | None = loop.run_in_executor(threads, stream.take)
    try:
        while reading is not None:
            pieces = await reading
            # Read ahead while these are sent: checking the hashes of the cells takes most time.
            reading = None if stream.closed else loop.run_in_executor(threads, stream.take)
            for piece in pieces:
                caller.check_live(clock.now_ms())
                yield piece.data
    finally:
        if reading is not None:
            reading.cancel()
        stream.close()


def value_answer(result: Any, request: Request) -> Response:
    """Return a value in the form that the request accepts."""
    kind = accepted(request.headers.get("accept", ""), RAW, tuple(REPRESENTATIONS))
    shown = REPRESENTATIONS[kind]
    hash = result.hash.hex()
    tag = f'"{hash}{shown.mark}"'
    # Only a value addressed by its hash may be cached for ever; a path may change.
    is_fixed = request.path_params.get("hash") == hash and not request.query_params.get("path")
    headers = {
        "etag": tag,
        "vary": "Accept",
        "x-value-id": hash,
        "cache-control": f"private, {IMMUTABLE}" if is_fixed else "no-cache",
    }
    root = getattr(result, "root_hash", None)
    if root is not None:
        headers["x-root-hash"] = root.hex()
    if tag in [one.strip() for one in request.headers.get("if-none-match", "").split(",")]:
        return Response(status_code=304, headers=headers)
    body = shown.write(result.value)
    if kind != OCTETS:
        return Response(body, media_type=kind, headers=headers)
    headers["accept-ranges"] = "bytes"
    return _ranged(body, request, headers, tag)


def _ranged(body: bytes, request: Request, headers: dict[str, str], tag: str) -> Response:
    """Return one range of bytes; for several ranges, or those of another version, the whole."""
    span = asked_range(request.headers, tag, len(body))
    if span is None:
        return Response(body, media_type=OCTETS, headers=headers)
    if span.start >= len(body):
        return Response(
            status_code=416, headers={**headers, "content-range": f"bytes */{len(body)}"}
        )
    headers["content-range"] = f"bytes {span.start}-{span.stop - 1}/{len(body)}"
    return Response(body[span.start : span.stop], 206, headers, OCTETS)


def document_answer(action: Action, route: Route, result: Message) -> Response:
    """Return the result of an action as a document, or only the field that the route names."""
    status, headers = route.success, _headers(action, result)
    # "201; 200 if already there", and "200 if waited and complete".
    if status == 201 and (
        getattr(result, "is_new", True) is False
        or (isinstance(result, JobRecord) and result.status == "COMPLETE")
    ):
        status = 200
    if status == 204 or not result.declared():
        return Response(status_code=201 if status == 201 else 204)
    document: Any = to_document(result)
    if route.answer:
        field = next(one for one in result.declared() if one.name == route.answer)
        if is_plain_text(field):
            return Response(getattr(result, field.name), status, headers, route.media)
        document = document[field.json]
    return Response(json.dumps(document), status, headers, route.media)


def _headers(action: Action, result: Message) -> dict[str, str]:
    """Return the headers with the location and the version of a result."""
    if isinstance(result, RegisteredAsset):
        return {"location": f"{BASE_PATH}/assets/{result.id.hex()}"}
    if isinstance(result, JobRecord) and action.name == "venue.invoke":
        return {"location": f"{BASE_PATH}/jobs/{result.id.hex()}"}
    if isinstance(result, AccessRule):
        return {"etag": f'"{result.version}"'}
    hash = getattr(result, "hash", None)
    if action.name == "values.put" and isinstance(hash, bytes):
        return {"location": f"{BASE_PATH}/values/{hash.hex()}", "x-value-id": hash.hex()}
    return {}
