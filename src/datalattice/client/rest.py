"""REST client: calls the actions of a service over HTTP, blocking.

    with RestClient("http://127.0.0.1:18080") as client:
        client.call(OfferRecords(topic="log", values=("hello",)))

Errors of the service are raised as the same class. `written_request`, `read_result` and
`EventReader` do no input or output, so `AsyncRestClient` uses them too.

Length: the client, and the forms of requests and answers that both clients use.
"""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import json
import select
import socket
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, Final, Generic, NamedTuple, TypeVar
from urllib.parse import quote, urlencode, urlsplit
from weakref import WeakSet

from datalattice.actions import (
    CELL_FORMAT,
    CHUNK_BYTES_MAX,
    ActionRequest,
    ContentInfo,
    FileInfo,
    FilePiece,
    GetContent,
    GetFile,
    from_document,
    is_plain_text,
    to_document,
    write_text,
)
from datalattice.cells import decode_message, encode_message
from datalattice.client.calling import Token, body_pieces, check_answer_kind, check_upload
from datalattice.client.control import CALL_TIMEOUT_S, error_of
from datalattice.client.credentials import delegation_headers
from datalattice.client.network import (
    DoorPin,
    pin_of,
    read_statements,
    split_door,
    tls_reason,
    unverified,
)
from datalattice.client.remote import RemoteClient
from datalattice.client.results import ResultStream
from datalattice.client.resumption import RESUME_S, Resumption
from datalattice.client.retrying import (
    IDEMPOTENCY_KEY,
    RETRY_POLICY,
    ConnectionLost,
    RetryPolicy,
    unreached_error,
)
from datalattice.clock import Clock
from datalattice.crypto import Entropy
from datalattice.errors import (
    DataLatticeError,
    LimitExceeded,
    MissingData,
    PeerUnavailable,
    ProtocolViolation,
    Timeout,
    UsageError,
)
from datalattice.limits import MESSAGE_BYTES_MAX
from datalattice.protobuf import FieldInfo, Message

R = TypeVar("R", bound=Message)

REST_BASE: Final = "/api/v1"
_RAW: Final = "application/cvx-raw"
_OCTETS: Final = "application/octet-stream"

INFO_HEADER: Final = "x-file-info"
"""Header of an answer that is the bytes of a file: the file's size and hash as a document."""

SILENCE_S: Final = 45.0  # three missing comments: "a comment comes every 15 s" (docs/rest.md)
"""Longest silence of a stream before its service counts as ended."""

LARGER: Final = "send fewer values at once, and large content as a file (PutFile, up to 4 GiB)"
"""The remedy for a request that is too long."""

PLAIN_HINT: Final = "; if it has TLS, connect by https://"

NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})

_HASHES: Final = {"hash": "x-value-id", "root_hash": "x-root-hash"}
"""The headers in which the other fields of a result with a value arrive."""


class RestClient(RemoteClient):
    """One connection to a service; for one thread at a time.

    url:   `http://host:port`, `https://host:port`, `did:key:...@host:port`, or the path of a Unix
           socket.
    token: a bearer token, or a function that returns one for each request; without it the caller is
           anonymous, or the owner of the socket.
    delegations: owners' permissions for that caller, as `make_delegation` returns them.
    did:   the DID that the node must prove, whoever signed its certificate; BadSignature if it does
           not, before a request is sent. tls: verifies certificates in place of `did`.
    entropy: makes the ids of requests. retry: how often a request with an id is sent again.
    resume_s: how long a stream tries to resume after a lost connection; 0: not at all.
    """

    def __init__(
        self,
        url: str,
        *,
        token: Token | None = None,
        delegations: Sequence[str] = (),
        timeout_s: float = CALL_TIMEOUT_S,
        tls: ssl.SSLContext | None = None,
        did: str | None = None,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
        retry: RetryPolicy = RETRY_POLICY,
        resume_s: float = RESUME_S,
    ) -> None:
        super().__init__(timeout_s, entropy, retry, resume_s)
        self._token = token
        self._shown = delegation_headers(delegations)
        self._make = _connector(DoorLocation.parse(url, tls, did, clock), timeout_s, tls)
        self._connection = self._make()
        self._streams: WeakSet[RestStream[Any]] = WeakSet()

    def upload(self, request: ActionRequest[R], body: Iterable[bytes] | IO[bytes]) -> R:
        """Perform an action with a long body; as `Client.upload`."""
        check_upload(request)
        pieces = chain([request.data], body_pieces(body))  # type: ignore[attr-defined]
        answer = self._send(self._connection, request, body=pieces)
        return read_result(request, answer.headers.get, self._read(answer))

    def _call(self, request: ActionRequest[R], request_id: str | None = None) -> R:
        headers = {} if request_id is None else {IDEMPOTENCY_KEY: request_id}
        answer = self._send(self._connection, request, headers)
        return read_result(request, answer.headers.get, self._read(answer))

    def stream(self, request: ActionRequest[R]) -> RestStream[R]:
        """Return the results of a streaming action; the request is sent when iteration begins.

        The stream resumes behind the last result after a lost connection, and with a new token
        after its token has expired.
        Raises: from the iteration, as `call`. StaleToken: the results after the last one are gone.
        """
        check_answer_kind(request, stream=True)
        stream = RestStream(self, request)
        self._streams.add(stream)
        return stream

    def _send(
        self,
        connection: http.client.HTTPConnection,
        request: ActionRequest[Any],
        more: Mapping[str, str] = NO_HEADERS,
        *,
        body: Iterable[bytes] | None = None,
    ) -> http.client.HTTPResponse:
        """Send a request, with `body` in place of its own; return its answer. Raises: as `call`."""
        verb, target, own, headers = written_request(request, self._token, {**self._shown, **more})
        _connect(connection)
        try:
            try:
                connection.request(verb, target, own if body is None else body, headers)
            except (BrokenPipeError, ConnectionResetError):
                if body is None and not own:
                    raise
                # The service refused the request before all was sent: its answer says why.
            answer = connection.getresponse()
        except TimeoutError as error:
            connection.close()  # a late answer would be read as the answer to the next request
            raise Timeout(f"no answer to {request.action.name} in {self._timeout_s} s") from error
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            reason = tls_reason(error)
            # A door with TLS answers plain text like this.
            is_plain = type(connection) is http.client.HTTPConnection
            if is_plain and isinstance(error, (http.client.BadStatusLine, ConnectionResetError)):
                reason += PLAIN_HINT
            raise ConnectionLost(f"the service cannot be reached: {reason}") from error
        except BaseException:
            connection.close()  # KeyboardInterrupt: as for a timeout
            raise
        if answer.status >= 400:
            # Read to its end, so that the connection can carry the next request.
            raise problem_error(answer.status, self._read(answer))
        return answer

    def _read(self, answer: http.client.HTTPResponse) -> bytes:
        try:
            return answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise ConnectionLost(f"the service went away while it answered: {error}") from error
        except BaseException:
            answer.close()
            self._connection.close()
            raise

    def close(self) -> None:
        """End the connection, and all streams of this client."""
        self._connection.close()
        for stream in list(self._streams):
            stream.close()


class RestStream(ResultStream[R]):
    """The results of a stream, on its own connection. Close it, or use it in `with`.

    Iteration raises the service's error as the same class.
    """

    def __init__(self, client: RestClient, request: ActionRequest[R]) -> None:
        self._client: Final = client
        self._going: Final = Resumption(request, client._resume_s, renews=callable(client._token))
        self._socket: socket.socket | None = None
        self._closed: Final = threading.Event()
        self._items: Final = self._read()

    def _read(self) -> Iterator[R]:
        while not self._closed.is_set():
            try:
                yield from self._connected()
            except DataLatticeError as error:
                if not self._closed.is_set():
                    self._closed.wait(self._going.pause_s(error))
            else:
                return

    def _connected(self) -> Iterator[R]:
        """Yield the results that one connection delivers."""
        events: EventReader[R] = EventReader(self._going)
        connection = self._client._make()
        try:
            connection.connect()
            # Before the request, so that `close` in another thread ends the wait for its answer.
            self._socket = connection.sock
            answer = self._client._send(connection, self._going.request)
            if self._socket is not None:
                self._socket.settimeout(SILENCE_S)
            info = answer.getheader(INFO_HEADER)  # only the bytes of a file have this header
            if info is not None:
                pieces = PieceReader(self._going, info)
                while not self._closed.is_set() and (data := answer.read(CHUNK_BYTES_MAX)):
                    yield pieces.read(data)  # type: ignore[misc]
                return pieces.check_over()
            while not self._closed.is_set() and (line := answer.readline()):
                item = events.read(line.decode())
                if item is not None:
                    yield item
        except (OSError, http.client.HTTPException) as error:
            raise PeerUnavailable(f"the service cannot be reached: {error}") from error
        finally:
            connection.close()
        events.check_over()

    def __iter__(self) -> Iterator[R]:
        return self

    def __next__(self) -> R:
        return next(self._items)

    def close(self) -> None:
        """End the stream, here and in the service; a thread that waits for a result returns."""
        self._closed.set()
        if self._socket is not None:
            # `close` would not wake a thread that waits in `recv`; `shutdown` does.
            with contextlib.suppress(OSError):  # the service has ended the connection
                self._socket.shutdown(socket.SHUT_RDWR)


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class _PinnedConnection(http.client.HTTPSConnection):
    """HTTP over TLS to a node that proves its DID."""

    def __init__(self, host: str, port: int | None, timeout_s: float, pin: DoorPin) -> None:
        super().__init__(host, port, timeout=timeout_s, context=unverified())
        self._pin = pin
        self._timeout_s = timeout_s

    def connect(self) -> None:
        """Connect. Raises: OSError. BadSignature: another node answers."""
        super().connect()
        shown = self.sock.getpeercert(binary_form=True) or b""
        # The node proves its DID before a request, with the caller's token, is sent.
        if not self._pin.knows(shown):
            statements = read_statements(self.host, self.port, self._timeout_s)
            self._pin.check(shown, statements, f"{self.host}:{self.port}")


def _connect(connection: http.client.HTTPConnection) -> None:
    """Connect, unless already connected. Raises: ConnectionLost: nothing was sent."""
    held = connection.sock
    # Between requests a service sends nothing, so a readable socket has reached its end. (With TLS
    # it may be a message of TLS itself.)
    if held is not None and not isinstance(held, ssl.SSLSocket):
        look = select.poll()
        look.register(held, select.POLLIN)
        if look.poll(0):
            connection.close()
    if connection.sock is None:
        try:
            connection.connect()
        except OSError as error:
            connection.close()
            raise unreached_error(f"the service cannot be reached: {tls_reason(error)}") from error
        except BaseException:
            connection.close()
            raise


class DoorLocation(NamedTuple):
    """The location of an HTTP door. path: of a Unix socket, else "". pin: of the node there."""

    path: str = ""
    host: str = ""
    port: int | None = None
    is_tls: bool = False
    pin: DoorPin | None = None

    @classmethod
    def parse(
        cls, url: str, tls: ssl.SSLContext | None, did: str | None, clock: Clock | None
    ) -> DoorLocation:
        """Return the location that the arguments of `RestClient` give.

        Raises: UsageError: the URL is malformed, or contradicts `did` or `tls`. PeerUnavailable:
                there is no socket.
        """
        named, target = split_door(url)
        pin = pin_of(did, named, clock)
        if pin is not None and tls is not None:
            raise UsageError("give either tls or did: each verifies the door by itself")
        url = target if named is None else f"https://{target}"
        if pin is not None and not url.startswith("https://"):
            raise UsageError(f"{pin.did} is proved over TLS: https://host:port, got {url!r}")
        if "://" not in url:
            if not Path(url).is_socket():
                raise PeerUnavailable(f"there is no socket at {url}")
            return cls(url)
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(f"a service is at http://host:port or https://host:port, got {url!r}")
        return cls("", parts.hostname, parts.port, parts.scheme == "https", pin)

    @property
    def url(self) -> str:
        """The URL to which the targets of requests are appended."""
        host = f"[{self.host}]" if ":" in self.host else self.host or "localhost"
        port = "" if self.port is None else f":{self.port}"
        return f"{'https' if self.is_tls else 'http'}://{host}{port}"


def _connector(
    location: DoorLocation, timeout_s: float, tls: ssl.SSLContext | None
) -> Callable[[], http.client.HTTPConnection]:
    path, host, port, is_tls, pin = location
    if path:
        return lambda: _UnixConnection(path, timeout_s)
    if pin is not None:
        return lambda: _PinnedConnection(host, port, timeout_s, pin)
    if is_tls:
        return lambda: http.client.HTTPSConnection(host, port, timeout=timeout_s, context=tls)
    return lambda: http.client.HTTPConnection(host, port, timeout=timeout_s)


def written_request(
    request: ActionRequest[Any],
    token: Token | None,
    more: Mapping[str, str] = NO_HEADERS,
) -> tuple[str, str, bytes | None, dict[str, str]]:
    """Return (verb, target, body, headers) of a request.

    Raises: UsageError: the action has no route in REST. LimitExceeded: the body is too long.
    """
    target, body, kind = _written(request)
    headers = {"accept": f"application/json, {_RAW}", "user-agent": "datalattice", **more}
    if {"value", "hash"} <= {field.name for field in request.action.result.declared()}:
        # A value is asked for as its cells, which are shorter than JSON and need no marks.
        headers["accept"] = f"{_RAW}, application/json;q=0.5"
    if kind:
        headers["content-type"] = kind
    if token is not None:
        headers["authorization"] = f"Bearer {token if isinstance(token, str) else token()}"
    route = request.action.route
    assert route is not None
    return route.verb, target, body, headers


def read_result(request: ActionRequest[R], header: Callable[[str, str], str], body: bytes) -> R:
    """Return the result in an answer. header: returns a header by name, or its second argument.

    Raises: ProtocolViolation: the answer is not JSON. BadFormat, UsageError: it does not fit the
            result.
    """
    result = request.action.result
    fields = {field.name: field for field in result.declared()}
    if header("content-type", "").startswith(_RAW) and "value" in fields:
        found: dict[str, Any] = {"value": decode_message(body)}
        for name in fields.keys() - found.keys():
            found[name] = bytes.fromhex(header(_HASHES[name], ""))
        return result(**found)  # type: ignore[return-value]
    route = request.action.route
    shown = None if route is None else fields.get(route.answer)
    if shown is not None and is_plain_text(shown):
        return result(**{shown.name: _text(body)})  # type: ignore[return-value]
    document = _json(body) if body else {}
    if shown is not None:
        document = {shown.json: document}
    return from_document(result, document)  # type: ignore[return-value]


class EventReader(Generic[R]):
    """Reads server-sent events line by line, and notes their resume tokens."""

    def __init__(self, going: Resumption[Any]) -> None:
        self._going: Final = going
        self._result: Final[type[R]] = going.request.action.result
        self._event = self._token = ""
        self._is_over = False

    def read(self, line: str) -> R | None:
        """Return the result in a line, None if it has none.

        Raises: the service's error, as the same class.
        """
        name, _, text = line.rstrip("\r\n").partition(": ")
        if name == "event":
            self._event = text
        elif name == "id":
            self._token = text
        elif name == "data":
            return self._item(_json(text))
        elif not name and not text:  # an empty line ends an event; ": text" is a comment
            self._going.reached(self._token)
            self._event = self._token = ""
        return None

    def _item(self, document: Any) -> R | None:
        token, self._token = self._token, ""
        if self._event == "end":
            self._is_over = True
            self._going.reached(document["resume"])
            if document["reason"] == "done":
                return None
            raise error_of(document["code"], document["detail"])
        if token:
            document["resume"] = token
        self._going.reached(token)
        return from_document(self._result, document)

    def check_over(self) -> None:
        """Raise PeerUnavailable unless the service sent the event `end`."""
        if not self._is_over:
            raise PeerUnavailable("the service closed the connection in the middle of a stream")


class PieceReader:
    """Reads a file that arrives as bytes, and notes the range that is left."""

    def __init__(self, going: Resumption[Any], info: str) -> None:
        """info: the header `INFO_HEADER`."""
        self._going: Final = going
        asked: GetFile | GetContent = going.request
        about: Any = from_document(asked.about().action.result, _json(info))
        self._info: Final[FileInfo | ContentInfo] = about
        self._at = asked.start
        size = self._info.size
        self._stop: Final = min(asked.start + asked.count, size) if asked.count else size

    def read(self, data: bytes) -> FilePiece:
        """Return some bytes as a piece of the file."""
        info, start = self._info, self._at
        self._at += len(data)
        asked: GetFile | GetContent = self._going.request
        if self._at < self._stop:
            # With the hash: the rest must be of this content, also if the file is replaced
            # meanwhile.
            rest = {"start": self._at, "count": self._stop - self._at, "hash": info.hash}
            self._going.go_on(dataclasses.replace(asked, **rest))
        return FilePiece(data=data, start=start, size=info.size, hash=info.hash)

    def check_over(self) -> None:
        """Raise PeerUnavailable unless all bytes have arrived."""
        if self._at < self._stop:
            raise PeerUnavailable("the service closed the connection in the middle of a file")


def _text(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise ProtocolViolation("the service's answer is not UTF-8 text") from error


def _json(body: bytes | str) -> Any:
    try:
        return json.loads(body)
    except ValueError as error:
        raise ProtocolViolation("the service's answer is not JSON") from error


def _written(request: ActionRequest[Any]) -> tuple[str, bytes | None, str]:
    """Return (target, body, content type) of a request."""
    route = request.action.route
    if route is None:
        raise UsageError(f"{request.action.name} has no route in REST")
    fields = {field.name: field for field in request.declared()}
    path = route.target(REST_BASE)
    for name in route.fields:
        text = write_text(fields[name], getattr(request, name))
        if not text and "..." not in path:  # a path has no empty segments
            raise UsageError(f"{name} is empty; it has at least one character")
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
        return path, _bounded(document), "application/json"
    query = [pair for field in rest for pair in _query(field, getattr(request, field.name))]
    target = f"{path}?{urlencode(query)}" if query else path
    if not has_body:
        return target, None, ""
    body = fields[route.body]
    value = getattr(request, route.body)
    if body.codec is CELL_FORMAT and not body.repeated:
        return target, encode_message(value), _RAW
    if body.kind == "bytes" and body.codec is None:
        return target, value, "application/octet-stream"
    if is_plain_text(body):
        return target, value.encode(), "application/json"
    return target, _bounded(to_document(request)[route.body]), "application/json"


def _bounded(document: Any) -> bytes:
    """Return a document as the body of a request. Raises: LimitExceeded: it is too long."""
    body = json.dumps(document).encode()
    if len(body) > MESSAGE_BYTES_MAX:
        raise LimitExceeded(
            f"the request has {len(body)} bytes as JSON, {MESSAGE_BYTES_MAX} at most; {LARGER}"
        )
    return body


def _query(field: FieldInfo, value: Any) -> Iterator[tuple[str, str]]:
    if value is not None:
        for one in value if field.repeated else (value,):
            yield field.name, write_text(field, one)


def problem_error(status: int, body: bytes) -> Exception:
    """Return the error that a problem document stands for. status: the answer's HTTP status."""
    try:
        problem = json.loads(body)
        code, text = str(problem["code"]), str(problem["detail"])
    except (ValueError, KeyError, TypeError):
        return ProtocolViolation(f"the service answered {status} without a problem document")
    if code == MissingData.code:
        return MissingData(bytes.fromhex(one) for one in problem.get("missing", ()))
    return error_of(code, text)
