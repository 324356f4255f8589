"""Documents of did:web: where they are fetched, and what no host may do to a node."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from datalattice.apps.grid import assertion_keys, venue_document
from datalattice.crypto import KeyPair, SeededEntropy
from datalattice.errors import DataLatticeError, LimitExceeded, PeerUnavailable, UsageError
from datalattice.node import WebResolver
from datalattice.node.grids import DOCUMENT_BYTES_MAX
from datalattice.testing.ports import held_port

KEY = KeyPair.generate(SeededEntropy(1)).public_key
Serve = Callable[[Callable[[BaseHTTPRequestHandler], None]], str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Serve with a function that answers; return the DID whose document lies there."""
    servers: list[ThreadingHTTPServer] = []

    def serve(answer: Callable[[BaseHTTPRequestHandler], None]) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                answer(self)

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        servers.append(server)
        return f"did:web:127.0.0.1%3A{server.server_port}:venues:a"

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


def say(request: BaseHTTPRequestHandler, body: bytes, status: int = 200) -> None:
    request.send_response(status)
    request.send_header("Location", "/elsewhere")
    request.send_header("Content-Length", str(len(body)))
    request.end_headers()
    request.wfile.write(body)


def test_a_document_is_fetched_from_where_the_did_says(serve: Serve) -> None:
    paths: list[str] = []

    def answer(request: BaseHTTPRequestHandler) -> None:
        paths.append(request.path)
        say(request, json.dumps(venue_document(did, KEY)).encode())

    did = serve(answer)
    document = WebResolver(allow_http=True).resolve(did)
    assert paths == ["/venues/a/did.json"]
    assert assertion_keys(did, document) == {KEY}


@pytest.mark.parametrize("status", [204, 301, 302, 404, 500])
def test_only_the_document_itself_is_an_answer(serve: Serve, status: int) -> None:
    did = serve(lambda request: say(request, b"" if status == 204 else b"{}", status))
    with pytest.raises(PeerUnavailable, match=f"answered {status}"):
        WebResolver(allow_http=True).resolve(did)


def test_a_host_that_no_resolver_takes_is_not_there() -> None:
    for host in ("a" * 64, "a." * 100 + "a", "nothing.invalid"):
        with pytest.raises(PeerUnavailable):
            WebResolver().resolve(f"did:web:{host}")


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"\xff", b"[" * 100_000])
def test_what_is_no_document_is_refused(serve: Serve, body: bytes) -> None:
    with pytest.raises(DataLatticeError, match=r"not JSON|is an object"):
        WebResolver(allow_http=True).resolve(serve(lambda request: say(request, body)))


@pytest.mark.parametrize("over", [-1, 0, 1])
def test_a_document_has_a_limit(serve: Serve, over: int) -> None:
    text = b'{"a":"' + b"x" * (DOCUMENT_BYTES_MAX - 8 + over) + b'"}'
    resolver, did = WebResolver(allow_http=True), serve(lambda request: say(request, text))
    if over > 0:
        with pytest.raises(LimitExceeded, match="at most"):
            resolver.resolve(did)
    else:
        assert len(resolver.resolve(did)) == 1


def test_a_host_that_goes_on_for_ever_is_left(serve: Serve) -> None:
    ended = threading.Event()

    def drip(request: BaseHTTPRequestHandler) -> None:
        request.wfile.write(b"HTTP/1.1 200 OK\r\n")
        while not ended.wait(0.02):
            request.wfile.write(b"x")

    try:
        with pytest.raises(PeerUnavailable):
            WebResolver(allow_http=True, timeout_s=0.2).resolve(serve(drip))
    finally:
        ended.set()


def test_nobody_there_and_no_such_host_are_unavailable() -> None:
    with held_port() as port, pytest.raises(PeerUnavailable, match="refused"):
        WebResolver(allow_http=True).resolve(f"did:web:127.0.0.1%3A{port}")
    with pytest.raises(UsageError, match="a did:web is"):
        WebResolver().resolve("did:key:z6Mk")


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "10.0.0.1", "169.254.169.254", "192.168.1.1", "0.0.0.0"]
)
def test_addresses_that_are_not_public_are_not_asked(host: str) -> None:
    with pytest.raises(PeerUnavailable, match="not a public address"):
        WebResolver().resolve(f"did:web:{host}")
    if host not in {"127.0.0.1", "localhost"}:
        with pytest.raises(PeerUnavailable, match="not a public address"):
            WebResolver(allow_http=True).resolve(f"did:web:{host}")
