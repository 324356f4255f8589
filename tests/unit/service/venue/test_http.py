"""Adapter `http`: what it asks, what it refuses, and what a hostile server cannot do."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import ssl
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpcore
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from datalattice.client.settings import VenueHttpConfig
from datalattice.errors import DataLatticeError, LimitExceeded, PeerUnavailable, UsageError
from datalattice.service.venue import Json, OperationFailed, OperationMetadata
from datalattice.service.venue.adapters.guarded import (
    ADDRESSES_MAX,
    ANSWER_FIELDS_MAX,
    AddressRefused,
)
from datalattice.service.venue.adapters.http import (
    FIELD_CHARS_MAX,
    FIELDS_MAX,
    REDIRECTS_MAX,
    URL_CHARS_MAX,
    HttpAdapter,
)
from datalattice.testing.polling import LIMIT_S
from datalattice.testing.venue_kit import LoneJob

LOOPBACK = VenueHttpConfig(allow=("api.test", "other.test"), private=True)
SECRET = "s3cr3t-value"
BODY_BYTES = LOOPBACK.body_bytes
ANSWER_BYTES = LOOPBACK.answer_bytes


def meta(kind: str = "any") -> OperationMetadata:
    return {"operation": {"adapter": f"http:{kind}"}}


class Server:
    """A server on loopback that answers with what the test gives, and keeps what it was asked."""

    def __init__(self, *answers: bytes, tls: ssl.SSLContext | None = None) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, dict[str, str], bytes]] = []
        self.begun = asyncio.Event()
        self.ended = asyncio.Event()
        self._tls = tls
        self.port = 0

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            fields = dict(line.lower().split(": ", 1) for line in head[1:] if line)
            body = await reader.readexactly(int(fields.get("content-length", "0")))
            self.asked.append((head[0], fields, body))
            self.begun.set()
            writer.write(self.answers.pop(0))
            await writer.drain()
            if not self.answers and fields.get("x-hold"):
                await reader.read()  # until the client goes
        except (OSError, asyncio.IncompleteReadError):
            pass  # the client has gone, which some tests are about
        finally:
            writer.close()
            self.ended.set()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Server]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        self.port = server.sockets[0].getsockname()[1]
        async with server:
            yield self


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a machine that stands still while a client connects change no error."""
    monkeypatch.setattr("datalattice.service.venue.adapters.guarded.CONNECT_S", LIMIT_S)


class Names:
    """A resolver: each name has a list of answers, the last of which stays."""

    def __init__(self, **answers: Sequence[Sequence[str]]) -> None:
        self.answers = {name.replace("_", "."): list(given) for name, given in answers.items()}
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        given = self.answers.get(host, [["127.0.0.1"]])
        return given.pop(0) if len(given) > 1 else given[0]


class Dialled(httpcore.AsyncNetworkBackend):
    """Connections that all fail, and which addresses were dialled."""

    def __init__(self) -> None:
        self.addresses: list[str] = []

    async def connect_tcp(self, host: str, *args: Any, **kwargs: Any) -> Any:
        self.addresses.append(host)
        raise httpcore.ConnectError("refused")


def answer(body: bytes = b"", *fields: str, status: str = "200 OK") -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *fields, "", ""]
    return "\r\n".join(lines).encode() + body


def ask(
    server: Server,
    given: dict[str, Json],
    kind: str = "any",
    *,
    config: VenueHttpConfig = LOOPBACK,
    tls: ssl.SSLContext | None = None,
    url: str = "http://api.test:{port}/x",
) -> Any:
    async def run() -> Any:
        async with server.running():
            adapter = HttpAdapter(config, resolve=Names(), tls=tls)
            server.answers = [
                a.replace(b"{port}", str(server.port).encode()) for a in server.answers
            ]
            request = {"url": url.format(port=server.port), **given}
            adapter.check(meta(kind), request)
            return await adapter.run(LoneJob(), meta(kind), request)

    return asyncio.run(run())


def test_a_get_shows_status_body_and_headers() -> None:
    server = Server(answer(b"hello", "X-A: 1", "x-a: 2", "Content-Type: text/plain"))
    made = ask(server, {"queryParams": {"q": "a b", "n": [1, True]}}, "get")
    assert (made["status"], made["body"]) == (200, "hello")
    assert made["headers"]["x-a"] == "1, 2"
    line, fields, body = server.asked[0]
    assert (line, body) == ("GET /x?q=a+b&n=1&n=true HTTP/1.1", b"")
    assert fields["host"] == f"api.test:{server.port}"


def test_query_parameters_follow_those_of_the_url() -> None:
    server = Server(answer())
    ask(server, {"queryParams": {"b": 2}}, url="http://api.test:{port}/x?a=1#part")
    assert server.asked[0][0] == "GET /x?a=1&b=2 HTTP/1.1"


def test_a_post_sends_json_and_the_effect_key() -> None:
    server = Server(answer(status="201 Created"))
    made = ask(server, {"body": {"a": "é"}, "headers": {"X-Key": SECRET}}, "post")
    assert made["status"] == 201
    line, fields, body = server.asked[0]
    assert line == "POST /x HTTP/1.1"
    assert json.loads(body) == {"a": "é"}
    assert fields["content-type"] == "application/json"
    assert fields["x-key"] == SECRET
    assert fields["idempotency-key"] == LoneJob().effect_key().hex()


@pytest.mark.parametrize("status", ["404 Not Found", "500 Oops"])
def test_an_error_status_is_a_result(status: str) -> None:
    assert ask(Server(answer(b"no", status=status)), {})["status"] == int(status[:3])


def test_a_body_is_read_in_its_charset() -> None:
    text = Server(answer(b"\xe9", "Content-Type: text/plain; charset=latin-1"))
    assert ask(text, {})["body"] == "é"
    for charset in ("zlib", "no-such", "base64"):
        other = Server(answer("é".encode(), f"Content-Type: text/plain; charset={charset}"))
        assert ask(other, {})["body"] == "é"


# --- refused before there is a job ------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({}, "`url` is a text"),
        ({"url": "ftp://api.test/"}, "begins with http:// or https://"),
        ({"url": "file:///etc/passwd"}, "begins with http:// or https://"),
        ({"url": "http:///x"}, "begins with http:// or https://"),
        ({"url": "http://u:p@api.test/"}, "contains user or password"),
        ({"url": "http://api.test@evil.org/"}, "contains user or password"),
        ({"url": "http://api.test\\@evil.org/"}, "without blanks"),
        ({"url": "http://api.test/a b"}, "without blanks"),
        ({"url": "http://api.test/\r\nX: y"}, "without blanks"),
        ({"url": "http://api.test:99999/"}, "`url` is malformed"),
        ({"url": "http://[::1/"}, "`url` is malformed"),
        ({"url": "http://evil.org/"}, "does not allow the host evil.org"),
        ({"url": "http://api.test.evil.org/"}, "does not allow the host"),
        ({"url": "http://127.0.0.1/"}, "does not allow the host"),
        ({"url": "http://api.test%00.evil.org/"}, "not a valid name of DNS"),
        ({"method": "TRACE"}, "`method` of http:any is GET, POST"),
        ({"headers": []}, "`headers` is an object"),
        ({"headers": {"Host": "evil.org"}}, "'Host' is set by the venue"),
        ({"headers": {"Transfer-Encoding": "chunked"}}, "'Transfer-Encoding' is set"),
        ({"headers": {"Proxy-Authorization": "x"}}, "'Proxy-Authorization' is set"),
        ({"headers": {"Idempotency-Key": "x"}}, "'Idempotency-Key' is set"),
        ({"headers": {"a b": "x"}}, "'a b' is set by the venue"),
        ({"headers": {"X": 1}}, "`headers.X` is one line"),
        ({"headers": {"X": f"{SECRET}\r\nY: z"}}, "`headers.X` is one line of Latin-1 text"),
        ({"headers": {"X": f" {SECRET}"}}, "without blanks at its ends"),
        ({"queryParams": {"a": {}}}, "`queryParams.a`"),
        ({"queryParams": "a"}, "`queryParams` is an object"),
        ({"body": 1}, "a GET has no body"),
        ({"more": 1}, "unknown member 'more'"),
    ],
)
def test_a_bad_request_makes_no_job(given: dict[str, Json], named: str) -> None:
    request = {} if given == {} else {"url": "http://api.test/", **given}
    with pytest.raises(UsageError, match=named) as caught:
        HttpAdapter(LOOPBACK).check(meta(), request)
    assert SECRET not in str(caught.value)


def test_get_and_post_keep_their_method() -> None:
    for kind in ("get", "post"):
        with pytest.raises(UsageError, match=f"`method` of http:{kind} is {kind.upper()}"):
            HttpAdapter(LOOPBACK).check(meta(kind), {"url": "http://api.test/", "method": "DELETE"})


def test_a_request_has_its_limits() -> None:
    adapter, url = HttpAdapter(LOOPBACK), "http://api.test/"

    def check(**given: Json) -> None:
        adapter.check(meta(), {"url": url, "method": "PUT", **given})

    check(url=url + "x" * (URL_CHARS_MAX - len(url)))
    check(body="x" * (BODY_BYTES - 2))
    check(headers={f"x{n}": "v" for n in range(FIELDS_MAX)})
    check(headers={"x": "v" * (FIELD_CHARS_MAX - 1)})
    for given in (
        {"url": url + "x" * (URL_CHARS_MAX - len(url) + 1)},
        {"body": "x" * (BODY_BYTES - 1)},
        {"headers": {f"x{n}": "v" for n in range(FIELDS_MAX + 1)}},
        {"headers": {"x": "v" * FIELD_CHARS_MAX}},
    ):
        with pytest.raises(UsageError, match="at most"):
            check(**given)


# --- addresses --------------------------------------------------------------------------------


def dial(names: Names, rules: VenueHttpConfig, url: str) -> tuple[Dialled, BaseException]:
    connections = Dialled()
    adapter = HttpAdapter(rules, resolve=names, connections=connections)
    with pytest.raises(DataLatticeError) as caught:
        asyncio.run(adapter.run(LoneJob(), meta(), {"url": url}))
    return connections, caught.value


def test_a_name_with_a_private_address_is_not_dialled() -> None:
    for address in ("127.0.0.1", "10.0.0.1", "169.254.169.254", "::1", "::ffff:127.0.0.1"):
        names = Names(api_test=[[address]])
        dialled, error = dial(names, VenueHttpConfig(allow=("*",)), "http://api.test/")
        assert dialled.addresses == []
        assert isinstance(error, AddressRefused)


def test_a_number_that_stands_for_an_address_is_checked_as_one() -> None:
    for host in ("2130706433", "0x7f.1", "127.1", "127.0.0.1"):
        connections = Dialled()
        adapter = HttpAdapter(VenueHttpConfig(allow=("*",)), connections=connections)
        with pytest.raises((AddressRefused, PeerUnavailable)):
            asyncio.run(adapter.run(LoneJob(), meta(), {"url": f"http://{host}/"}))
        assert connections.addresses == []


def test_the_address_that_was_checked_is_the_one_dialled() -> None:
    # The second answer of the resolver is what an attacker would have connected to.
    names = Names(api_test=[["93.184.216.34"], ["127.0.0.1"]])
    dialled, error = dial(names, VenueHttpConfig(allow=("*",)), "http://api.test/")
    assert names.asked == ["api.test"]
    assert dialled.addresses == ["93.184.216.34"]
    assert isinstance(error, PeerUnavailable)


def test_only_the_allowed_of_several_addresses_are_dialled() -> None:
    names = Names(api_test=[["10.0.0.1", "93.184.216.34", "::1", "93.184.216.34"]])
    dialled, _ = dial(names, VenueHttpConfig(allow=("*",)), "http://api.test/")
    assert dialled.addresses == ["93.184.216.34"]


def test_so_many_addresses_of_a_name_are_tried() -> None:
    names = Names(api_test=[[f"93.184.216.{n}" for n in range(20)]])
    dialled, _ = dial(names, VenueHttpConfig(allow=("*",)), "http://api.test/")
    assert len(dialled.addresses) == ADDRESSES_MAX


def test_a_name_without_addresses_is_unavailable() -> None:
    _, error = dial(Names(api_test=[[]]), LOOPBACK, "http://api.test/")
    assert "api.test has no address" in str(error)


def certificate(folder: Path, name: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return what a server with a certificate for a name uses, and what a client trusts."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(subject, subject, key.public_key(), 7)
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    pem = folder / "server.pem"
    pem.write_bytes(private + made.public_bytes(serialization.Encoding.PEM))
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(pem)
    return server, ssl.create_default_context(cafile=str(pem))


def test_tls_and_host_have_the_name_though_the_address_is_dialled(tmp_path: Path) -> None:
    own, trusted = certificate(tmp_path, "api.test")
    shown: list[str | None] = []
    own.sni_callback = lambda _link, name, _context: shown.append(name)
    server = Server(answer(b"secure"), tls=own)
    made = ask(server, {}, tls=trusted, url="https://api.test:{port}/")
    assert made["body"] == "secure"
    assert shown == ["api.test"]
    assert server.asked[0][1]["host"] == f"api.test:{server.port}"


def test_a_certificate_of_another_name_is_refused(tmp_path: Path) -> None:
    own, trusted = certificate(tmp_path, "evil.test")
    with pytest.raises(PeerUnavailable, match=r"https://api\.test"):
        ask(Server(answer(), tls=own), {}, tls=trusted, url="https://api.test:{port}/")


# --- redirects --------------------------------------------------------------------------------


def moved(place: str, status: str = "302 Found") -> bytes:
    return answer(b"", f"Location: {place}", status=status)


def test_a_redirect_is_followed() -> None:
    server = Server(moved("/y?a=1"), answer(b"there"))
    assert ask(server, {"headers": {"X-Key": SECRET}})["body"] == "there"
    assert [line for line, *_ in server.asked] == ["GET /x HTTP/1.1", "GET /y?a=1 HTTP/1.1"]
    assert server.asked[1][1]["x-key"] == SECRET  # the same origin


def test_another_origin_does_not_get_the_callers_fields() -> None:
    server = Server(moved("http://other.test:{port}/y"), answer(b"there"))
    made = ask(server, {"headers": {"Authorization": SECRET, "Cookie": SECRET, "X-Key": SECRET}})
    assert made["body"] == "there"
    assert SECRET not in str(server.asked[1])


@pytest.mark.parametrize(
    ("status", "method"),
    [("301 M", "GET"), ("302 F", "GET"), ("303 S", "GET"), ("307 T", "POST"), ("308 P", "POST")],
)
def test_a_post_is_redirected_as_its_status_says(status: str, method: str) -> None:
    server = Server(moved("/y", status), answer())
    ask(server, {"body": {"a": 1}}, "post")
    line, _, body = server.asked[1]
    assert (line, body != b"") == (f"{method} /y HTTP/1.1", method == "POST")


def test_a_redirect_to_a_host_that_is_not_allowed_is_refused() -> None:
    with pytest.raises(AddressRefused, match=r"does not allow the host evil.org"):
        ask(Server(moved("http://evil.org/")), {})


def test_a_redirect_to_a_private_address_is_refused() -> None:
    async def run() -> None:
        async with Server(moved("http://other.test/")).running() as server:
            names = Names(other_test=[["169.254.169.254"]])
            adapter = HttpAdapter(LOOPBACK, resolve=names)
            url = f"http://api.test:{server.port}/"
            await adapter.run(LoneJob(), meta(), {"url": url})

    with pytest.raises(AddressRefused, match="credentials"):
        asyncio.run(run())


@pytest.mark.parametrize(
    "place", ["file:///etc/passwd", "gopher://x/", "http://u:p@api.test/", "http://["]
)
def test_a_redirect_to_no_http_url_is_refused(place: str) -> None:
    with pytest.raises(OperationFailed, match="redirects to a text that is not"):
        ask(Server(moved(place)), {})


def test_a_redirect_away_from_tls_is_refused(tmp_path: Path) -> None:
    own, trusted = certificate(tmp_path, "api.test")
    server = Server(moved("http://api.test:{port}/"), tls=own)
    with pytest.raises(OperationFailed, match="not encrypted"):
        ask(server, {}, tls=trusted, url="https://api.test:{port}/")


def test_redirects_are_limited() -> None:
    chain = [moved("/x")] * REDIRECTS_MAX
    assert ask(Server(*chain, answer(b"end")), {})["body"] == "end"
    with pytest.raises(OperationFailed, match=f"after {REDIRECTS_MAX} redirects"):
        ask(Server(*chain, moved("/x")), {})


# --- hostile answers --------------------------------------------------------------------------


def test_an_answer_has_so_many_bytes() -> None:
    for size in (ANSWER_BYTES - 1, ANSWER_BYTES):
        assert len(ask(Server(answer(b"x" * size)), {})["body"]) == size
    with pytest.raises(LimitExceeded, match=f"more than {ANSWER_BYTES} bytes"):
        ask(Server(answer(b"x" * (ANSWER_BYTES + 1))), {})


def test_a_body_without_end_is_cut() -> None:
    piece = b"10000\r\n" + b"x" * 65_536 + b"\r\n"
    endless = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + piece * 64
    with pytest.raises(LimitExceeded):
        ask(Server(endless), {"headers": {"X-Hold": "1"}})


def test_an_answer_has_so_many_fields() -> None:
    fields = [f"X-{n}: v" for n in range(ANSWER_FIELDS_MAX - 1)]  # and Content-Length
    assert ask(Server(answer(b"", *fields)), {})["status"] == 200
    with pytest.raises(LimitExceeded, match="header fields"):
        ask(Server(answer(b"", *fields, "X: v")), {})


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhi",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 200_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_an_answer_that_is_no_http_fails_the_job(reply: bytes) -> None:
    with pytest.raises(PeerUnavailable, match=r"http://api\.test"):
        ask(Server(reply), {})


def test_a_compressed_body_is_not_read() -> None:
    with pytest.raises(OperationFailed, match="compressed"):
        ask(Server(answer(b"x", "Content-Encoding: gzip")), {})


def test_a_server_that_does_not_answer_is_left() -> None:
    with pytest.raises(OperationFailed, match=r"did not answer within 0.05 s"):
        ask(
            Server(b"HTTP/1.1 200 OK\r\n"),
            {"headers": {"X-Hold": "1"}},
            config=replace(LOOPBACK, time_s=0.05),
        )


def test_the_operator_sets_the_limits() -> None:
    small = replace(LOOPBACK, body_bytes=4, answer_bytes=3)
    assert ask(Server(answer(b"abc")), {"method": "PUT", "body": 1234}, config=small)["body"]
    with pytest.raises(UsageError, match="at most 4 bytes, got 5"):
        ask(Server(answer()), {"method": "PUT", "body": 12345}, config=small)
    with pytest.raises(LimitExceeded, match="more than 3 bytes"):
        ask(Server(answer(b"abcd")), {}, config=small)
    for wrong in ({"time_s": 0.0}, {"body_bytes": 0}, {"answer_bytes": -1}):
        with pytest.raises(UsageError, match=f"{next(iter(wrong))} is greater than 0"):
            VenueHttpConfig(**wrong)
    for name, given, kind in (
        ("body_bytes", 0.5, "an integer"),
        ("answer_bytes", True, "an integer"),
        ("time_s", "3", "a number of seconds"),
    ):
        with pytest.raises(UsageError, match=f"{name} is {kind}, got {given!r}"):
            VenueHttpConfig(**dict[str, Any]({name: given}))


def test_cancelling_the_job_closes_the_connection() -> None:
    async def run() -> None:
        async with Server(b"HTTP/1.1 200 OK\r\n").running() as server:
            adapter = HttpAdapter(LOOPBACK, resolve=Names())
            request: Json = {"url": f"http://api.test:{server.port}/", "headers": {"X-Hold": "1"}}
            running = asyncio.create_task(adapter.run(LoneJob(), meta(), request))
            await server.begun.wait()
            running.cancel()
            await server.ended.wait()
            with pytest.raises(asyncio.CancelledError):
                await running

    asyncio.run(run())


# --- secrets ----------------------------------------------------------------------------------


def test_secrets_are_in_no_result_log_or_error(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    server = Server(answer(b"ok", f"Set-Cookie: id={SECRET}"))
    given: dict[str, Json] = {"headers": {"Authorization": SECRET}, "queryParams": {"key": SECRET}}
    made = ask(server, given)
    assert "set-cookie" not in made["headers"]
    assert SECRET in server.asked[0][1]["authorization"]
    with pytest.raises(PeerUnavailable) as caught:
        ask(Server(b""), given)
    assert SECRET not in str(made) + str(caught.value)
    sent = [record.getMessage() for record in caplog.records]
    assert not [text for text in sent if SECRET in text and "Set-Cookie" not in text]


def test_records_hide_the_headers() -> None:
    for operation in HttpAdapter(LOOPBACK).operations():
        fields: Any = operation.metadata["operation"]
        assert fields["secretFields"] == ["headers"]


def test_without_the_package_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    import builtins

    def absent(name: str, *args: Any, **kwargs: Any) -> Any:
        if "guarded" in (args[2] if len(args) > 2 and args[2] else ()):
            raise ModuleNotFoundError("No module named 'httpcore'", name="httpcore")
        return found(name, *args, **kwargs)

    found = builtins.__import__
    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(UsageError, match=r"need httpcore: pip install 'datalattice\[venue\]'"):
        HttpAdapter(LOOPBACK)
