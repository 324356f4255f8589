"""REST client: calls the actions of a service over HTTP, blocking.

    with RestClient("http://127.0.0.1:18080") as client:
        client.call(OfferRecords(topic="log", values=("hello",)))

Errors of the service are raised as the class that raised them there.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, Self, TypeVar
from urllib.parse import quote, urlencode, urlsplit

from datalattice.actions import (
    CELL,
    ActionKind,
    ActionRequest,
    from_document,
    to_document,
    write_text,
)
from datalattice.cells import decode_message, encode_message
from datalattice.client.control import CALL_TIMEOUT_S, error_of
from datalattice.errors import MissingData, PeerUnavailable, ProtocolViolation, Timeout, UsageError
from datalattice.protobuf import FieldInfo, Message

R = TypeVar("R", bound=Message)

BASE: Final = "/api/v1"
RAW: Final = "application/cvx-raw"

_HASHES: Final = {"hash": "x-value-id", "root_hash": "x-root-hash"}
"""Fields of a result that is a value, and the headers that they come in."""


class RestClient:
    """One connection to a service; for one thread at a time.

    url:   `http://host:port`, `https://host:port`, or the path of a Unix socket.
    token: makes the bearer token of each request; without it the caller is anonymous, or the owner
           of the socket.
    """

    def __init__(
        self,
        url: str,
        *,
        token: Callable[[], str] | None = None,
        timeout_s: float = CALL_TIMEOUT_S,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._token = token
        self._timeout_s = timeout_s
        self._make = _connector(url, timeout_s, tls)
        self._connection = self._make()

    def call(self, request: ActionRequest[R]) -> R:
        """Have the service do an action; return its result, durable if it writes.

        Raises: what the action raises. PeerUnavailable: the service cannot be reached. Timeout: it
                did not answer; the action may have happened.
        """
        action = request.action
        if action.kind is ActionKind.STREAM:
            raise UsageError(f"{action.name} answers with a stream: use `stream`")
        answer = self._send(self._connection, request)
        body = self._read(answer)
        fields = {field.name: field for field in action.result.declared()}
        value = fields.get("value")
        if answer.getheader("content-type", "").startswith(RAW) and value is not None:
            found: dict[str, Any] = {"value": decode_message(body)}
            for name in fields.keys() - found.keys():
                found[name] = bytes.fromhex(answer.getheader(_HASHES[name], ""))
            return action.result(**found)  # type: ignore[return-value]
        document = json.loads(body) if body else {}
        return from_document(action.result, document)  # type: ignore[return-value]

    def stream(self, request: ActionRequest[R]) -> Iterator[R]:
        """Yield the results of a streaming action as they come; closing it ends the stream.

        Raises: as `call`.
        """
        action = request.action
        if action.kind is not ActionKind.STREAM:
            raise UsageError(f"{action.name} answers once: use `call`")
        connection = self._make()  # its own: it stays open
        try:
            answer = self._send(connection, request)
            event = ""
            while line := answer.readline():
                text = line.decode().rstrip("\n")
                if text.startswith("event: "):
                    event = text[7:]
                elif text.startswith("data: "):
                    document = json.loads(text[6:])
                    if event == "error":
                        raise error_of(document["code"], document["detail"])
                    yield from_document(action.result, document)  # type: ignore[misc]
                elif text == "":
                    event = ""
        finally:
            connection.close()

    def _send(
        self, connection: http.client.HTTPConnection, request: ActionRequest[Any]
    ) -> http.client.HTTPResponse:
        """Send a request; return the answer to it. Raises: as `call`."""
        target, body, kind = _written(request)
        headers = {"accept": f"application/json, {RAW}", "user-agent": "datalattice"}
        if {"value", "hash"} <= {field.name for field in request.action.result.declared()}:
            headers["accept"] = f"{RAW}, application/json;q=0.5"
        if kind:
            headers["content-type"] = kind
        if self._token is not None:
            headers["authorization"] = f"Bearer {self._token()}"
        route = request.action.route
        assert route is not None
        try:
            connection.request(route.verb, target, body, headers)
            answer = connection.getresponse()
        except TimeoutError as error:
            connection.close()  # the answer may come yet, and would be taken for another one
            raise Timeout(f"no answer to {request.action.name} in {self._timeout_s} s") from error
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise PeerUnavailable(f"the service cannot be reached: {error}") from error
        if answer.status >= 400:
            raise _error_of(answer, self._read(answer))
        return answer

    def _read(self, answer: http.client.HTTPResponse) -> bytes:
        try:
            return answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise PeerUnavailable(f"the service went away while it answered: {error}") from error

    def close(self) -> None:
        """End the connection."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _connector(
    url: str, timeout_s: float, tls: ssl.SSLContext | None
) -> Callable[[], http.client.HTTPConnection]:
    if "://" not in url:
        if not Path(url).is_socket():
            raise PeerUnavailable(f"there is no socket at {url}")
        return lambda: _UnixConnection(url, timeout_s)
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"a service is at http://host:port or https://host:port, got {url!r}")
    host, port = parts.hostname, parts.port
    if parts.scheme == "https":
        return lambda: http.client.HTTPSConnection(host, port, timeout=timeout_s, context=tls)
    return lambda: http.client.HTTPConnection(host, port, timeout=timeout_s)


def _written(request: ActionRequest[Any]) -> tuple[str, bytes | None, str]:
    """Return (target, body, content type) of a request."""
    route = request.action.route
    if route is None:
        raise UsageError(f"{request.action.name} has no route in REST")
    fields = {field.name: field for field in request.declared()}
    path = f"{BASE}{route.path}"
    for name in route.fields:
        text = write_text(fields[name], getattr(request, name))
        if not text and "..." not in path:  # a path has no empty part
            raise UsageError(f"{name}: it is empty")
        is_long = f"{{{name}...}}" in path
        path = path.replace(
            f"{{{name}...}}" if is_long else f"{{{name}}}", quote(text, "/" if is_long else "")
        )
    rest = [field for name, field in fields.items() if name not in (*route.fields, route.body)]
    has_body = route.verb in ("POST", "PUT")
    if has_body and not route.body:
        document = {
            name: one for name, one in to_document(request).items() if name not in route.fields
        }
        return path, json.dumps(document).encode(), "application/json"
    query = [pair for field in rest for pair in _query(field, getattr(request, field.name))]
    target = f"{path}?{urlencode(query)}" if query else path
    if not has_body:
        return target, None, ""
    body = fields[route.body]
    value = getattr(request, route.body)
    if body.codec is CELL and not body.repeated:
        return target, encode_message(value), RAW
    if body.kind == "bytes" and body.codec is None:
        return target, value, "application/octet-stream"
    return target, json.dumps(to_document(request)[route.body]).encode(), "application/json"


def _query(field: FieldInfo, value: Any) -> Iterator[tuple[str, str]]:
    if value is not None:
        for one in value if field.repeated else (value,):
            yield field.name, write_text(field, one)


def _error_of(answer: http.client.HTTPResponse, body: bytes) -> Exception:
    """Return the error that a problem document stands for."""
    try:
        problem = json.loads(body)
        code, text = str(problem["code"]), str(problem["detail"])
    except (ValueError, KeyError, TypeError):
        return ProtocolViolation(f"the service answered {answer.status} without a problem document")
    if code == MissingData.code:
        return MissingData(bytes.fromhex(one) for one in problem.get("missing", ()))
    return error_of(code, text)
