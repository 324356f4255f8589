"""Other venues: which may be called, what is sent to them, and what a hostile one cannot do."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

from datalattice.actions import GetJob, InvokeOperation, JobRecord
from datalattice.client.credentials import split_token
from datalattice.clock import SystemClock
from datalattice.crypto import KeyPair
from datalattice.errors import (
    BadFormat,
    BadSignature,
    DataLatticeError,
    LimitExceeded,
    NoSuchPath,
    PeerUnavailable,
    ProtocolViolation,
    TypeMismatch,
    Unavailable,
    UsageError,
)
from datalattice.lattice import did_of
from datalattice.service.venue import OperationFailed
from datalattice.service.venue.adapters import (
    HostRules,
    HostUnreached,
    RemoteVenues,
    VenueRules,
    guarded,
    venues,
)
from datalattice.testing.polling import LIMIT_S

KEY = KeyPair(bytes(range(32)))
DID = did_of(KeyPair(bytes(range(1, 33))).public_key)


@pytest.mark.parametrize(
    ("given", "shown", "is_listed"),
    [
        ("south", "http://127.0.0.1:81", True),
        ("http://127.0.0.1:81/", "http://127.0.0.1:81", True),
        (DID, DID, True),
        ("https://10.0.0.1:444", DID, True),
        ("https://one.example.com", "https://one.example.com", False),
        ("HTTPS://ONE.example.com:443", "https://one.example.com", False),
        ("did:web:one.example.com%3A8443", "did:web:one.example.com%3A8443", False),
    ],
)
def test_a_venue_is_found_by_name_did_and_url(given: str, shown: str, is_listed: bool) -> None:
    rules = VenueRules(
        {"south": "http://127.0.0.1:81", DID: "https://10.0.0.1:444"},
        HostRules(allow=("*.example.com",)),
    )
    found = rules.find(given)
    assert (str(found), found.is_listed) == (shown, is_listed)


def test_a_pinned_venue_is_found_by_its_did() -> None:
    found = VenueRules({"east": f"{DID}@127.0.0.1:8443"}).find(DID)
    assert (found.url, found.did) == ("https://127.0.0.1:8443", DID)
    assert found.pin is not None
    assert VenueRules({DID: "https://[::1]:8443"}).find(DID).url == "https://[::1]:8443"


def test_a_web_venue_is_asked_over_tls_unless_it_is_on_this_machine() -> None:
    rules = VenueRules({}, HostRules(allow=("*",), private=True))
    assert rules.find("did:web:127.0.0.1%3A81").url == "http://127.0.0.1:81"
    assert rules.find("did:web:a.example:b").url == "https://a.example"


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("west", "this venue knows no venue 'west'"),
        (did_of(KEY.public_key), "this venue knows no venue"),
        ("http://127.0.0.1:82", "this venue does not allow the host 127.0.0.1"),
        ("did:web:other.example", "this venue does not allow the host other.example"),
        ("did:web:../x", "a did:web is did:web:<host>"),
        ("ftp://127.0.0.1", "a venue is at http"),
        ("http://me:pw@127.0.0.1:81", "a venue is at http"),
        ("http://127.0.0.1:81/path", "a venue is at http"),
        ("http://127.0.0.1:81?q", "a venue is at http"),
        ("http://127.0.0.1:99999", "a venue is at http"),
        ("http://", "a host is a name in lower case"),
        ("http://a b", "a host is a name in lower case"),
    ],
)
def test_a_venue_that_may_not_be_called_is_refused(given: str, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        VenueRules({"south": "http://127.0.0.1:81"}, HostRules(allow=("one.test",))).find(given)


@pytest.mark.parametrize("url", ["", "south", "http:/x", f"{DID}@", "did:web:a@127.0.0.1:1"])
def test_a_list_with_another_url_is_refused(url: str) -> None:
    with pytest.raises(UsageError):
        VenueRules({"south": url})


def test_a_did_and_another_one_in_its_url_are_refused() -> None:
    with pytest.raises(UsageError, match="is listed at"):
        VenueRules({did_of(KEY.public_key): f"{DID}@127.0.0.1:1"})


# --- a venue on loopback --------------------------------------------------------------------------


def answer(
    document: object, status: str = "200 OK", fields: Mapping[str, str] | None = None
) -> bytes:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    head = {"content-type": "application/json", "content-length": str(len(body)), **(fields or {})}
    lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
    return f"HTTP/1.1 {status}\r\n{lines}\r\n".encode() + body


class Door:
    """Answers with what the test gives, and keeps what it was asked."""

    def __init__(self, *answers: bytes) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, dict[str, str], bytes]] = []
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            fields = dict(line.split(": ", 1) for line in head[1:] if line)
            fields = {name.lower(): value for name, value in fields.items()}
            body = await reader.readexactly(int(fields.get("content-length", "0")))
            self.asked.append((head[0], fields, body))
            writer.write(self.answers.pop(0))
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass  # the client has enough, which some tests are about
        finally:
            writer.close()


def call(door: Door, request: Any, **more: Any) -> Any:
    """Call a venue at a door."""

    async def work() -> Any:
        server = await asyncio.start_server(door.serve, "127.0.0.1", 0)
        door.port = server.sockets[0].getsockname()[1]
        async with server, asyncio.timeout(LIMIT_S):
            remote = RemoteVenues(KEY, VenueRules({"south": f"http://127.0.0.1:{door.port}"}))
            return await remote.call(remote.find("south"), request, **more)

    return asyncio.run(work())


RECORD = {"id": "00ff", "status": "STARTED", "later": [1]}


def test_a_request_is_signed_and_has_its_id_and_delegations() -> None:
    door = Door(answer(RECORD, "201 Created"))
    request = InvokeOperation(operation="v/ops/echo/back")
    found = call(door, request, request_id="ab12", delegations=["a.b.c"])
    # What a later version tells beside is passed over.
    assert found == JobRecord(id=b"\x00\xff", status="STARTED")
    ((line, fields, body),) = door.asked
    assert line == "POST /api/v1/invoke HTTP/1.1"
    assert (fields["idempotency-key"], fields["ucans"]) == ("ab12", "a.b.c")
    assert json.loads(body)["operation"] == "v/ops/echo/back"
    claims = split_token(fields["authorization"].removeprefix("Bearer ")).claims
    assert claims["iss"] == claims["sub"] == did_of(KEY.public_key)
    assert claims["aud"] == f"http://127.0.0.1:{door.port}"
    assert claims["exp"] - claims["iat"] == venues.TOKEN_S
    assert abs(claims["iat"] - SystemClock().now_ms() / 1_000) < 60


PROBLEM = {"code": "no-such-path", "detail": "there is no job 00 here"}


@pytest.mark.parametrize(
    ("given", "kind", "text"),
    [
        (answer(PROBLEM, "404 Not Found"), NoSuchPath, "there is no job 00 here"),
        (
            answer({"code": "nobody-knows", "detail": "x"}, "400 Bad"),
            Unavailable,
            "nobody-knows: x",
        ),
        (answer(b"<html>", "502 Bad Gateway"), PeerUnavailable, "answered 502 without"),
        (answer(b"<html>", "404 Not Found"), ProtocolViolation, "answered 404 without"),
        (
            answer(b"", "302 Found", {"location": "http://127.0.0.1:1/"}),
            ProtocolViolation,
            "answered 302 without",
        ),
        (answer(b"", "304 Not Modified"), ProtocolViolation, "answered 304 without"),
        (
            answer({"code": "missing-data", "missing": ["zz"]}, "404 No"),
            ProtocolViolation,
            "404 without",
        ),
        (answer({"code": "type-mismatch", "detail": "x"}, "400 Bad"), TypeMismatch, "x"),
        (answer(b"[" * 100_000, "400 Bad"), ProtocolViolation, "problem document is invalid"),
        (answer(b"[" * 100_000), ProtocolViolation, "no valid JobRecord"),
        (answer(b"nothing"), ProtocolViolation, "no valid JobRecord"),
        (answer([]), ProtocolViolation, "the document is not an object"),
        (answer({"id": 7}), ProtocolViolation, "no valid JobRecord: .*hex"),
        (answer({"created": 1 << 70}), ProtocolViolation, "no valid JobRecord"),
        (answer({"status": None}), ProtocolViolation, "no valid JobRecord"),
        (
            answer(gzip.compress(b"{}"), fields={"content-encoding": "gzip"}),
            OperationFailed,
            "compressed body",
        ),
        (b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 200 + b"\r\n", LimitExceeded, "200 header fields"),
        (b"SSH-2.0-hello\r\n", PeerUnavailable, "127.0.0.1"),
        (b"", PeerUnavailable, "127.0.0.1"),
    ],
)
def test_what_a_hostile_venue_answers_is_an_error(
    given: bytes, kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=text) as caught:
        call(Door(given), GetJob(id=b"\0"))
    assert isinstance(caught.value, DataLatticeError)
    assert len(str(caught.value)) < 1_000


def test_an_answer_has_a_longest_length(monkeypatch: pytest.MonkeyPatch) -> None:
    body = json.dumps(RECORD).encode()
    monkeypatch.setattr(venues, "ANSWER_MAX", len(body))
    assert call(Door(answer(body)), GetJob(id=b"\0")).status == "STARTED"
    monkeypatch.setattr(venues, "ANSWER_MAX", len(body) - 1)
    with pytest.raises(LimitExceeded, match="more than"):
        call(Door(answer(body)), GetJob(id=b"\0"))


def test_a_long_answer_is_read_as_a_short_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(venues, "_IN_THREAD", 1)
    assert call(Door(answer(RECORD)), GetJob(id=b"\0")).status == "STARTED"


def served(given: bytes, ask: Callable[[RemoteVenues], Awaitable[Any]]) -> tuple[Any, Door]:
    """Ask a venue of the DID `DID`, which answers once."""
    door = Door(given)

    async def work() -> Any:
        server = await asyncio.start_server(door.serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server, asyncio.timeout(LIMIT_S):
            return await ask(RemoteVenues(KEY, VenueRules({DID: f"http://127.0.0.1:{port}"})))

    return asyncio.run(work()), door


def test_metadata_and_names_are_asked_for_by_did() -> None:
    text, door = served(answer(b'{"a": 1}'), lambda venues: venues.metadata(DID, bytes(32)))
    assert text == '{"a": 1}'
    assert door.asked[0][0] == f"GET /api/v1/assets/{'00' * 32} HTTP/1.1"
    claims = split_token(door.asked[0][1]["authorization"].removeprefix("Bearer ")).claims
    assert claims["aud"] == DID
    found, door = served(
        answer({"path": "v/ops/a/b", "asset": "11" * 32}),
        lambda venues: venues.named(DID, "v/ops/a/b"),
    )
    assert found == b"\x11" * 32
    assert door.asked[0][0].startswith("GET /api/v1/operations/v/ops/a/b")


def test_metadata_and_names_that_are_none_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadFormat, match="metadata that is not UTF-8"):
        served(answer(b"\xff"), lambda venues: venues.metadata(DID, bytes(32)))
    with pytest.raises(NoSuchPath, match=f"{DID}: there is no job"):
        served(answer(PROBLEM, "404 Not"), lambda venues: venues.metadata(DID, bytes(32)))
    with pytest.raises((BadFormat, ProtocolViolation)):
        served(answer({"asset": "11"}), lambda venues: venues.named(DID, "v/ops/a"))
    monkeypatch.setattr(venues, "DEFINITION_MAX", 8)
    assert served(answer(b'{"a": 1}'), lambda venues: venues.metadata(DID, bytes(32)))[0]
    with pytest.raises(LimitExceeded):
        served(answer(b'{"a": 11}'), lambda venues: venues.metadata(DID, bytes(32)))


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(LIMIT_S):
            await work()

    asyncio.run(bounded())


def test_a_venue_that_is_not_there_and_one_that_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarded, "WHOLE_S", 0.1)

    async def work() -> None:
        held = asyncio.Event()

        async def silent(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await held.wait()
            writer.close()

        server = await asyncio.start_server(silent, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        remote = RemoteVenues(KEY, VenueRules({"south": f"http://127.0.0.1:{port}"}))
        async with server:
            with pytest.raises(PeerUnavailable, match=r"within 0\.1 s") as caught:
                await remote.call(remote.find("south"), GetJob(id=b"\0"))
            assert not isinstance(caught.value, HostUnreached)
            held.set()
        with pytest.raises(HostUnreached):
            await remote.call(remote.find("south"), GetJob(id=b"\0"))

    run(work)


def test_a_host_that_is_allowed_by_name_may_not_have_a_private_address() -> None:
    async def resolve(_host: str, _port: int) -> list[str]:
        return ["10.0.0.1"]

    async def work() -> None:
        rules = VenueRules({}, HostRules(allow=("one.test",)))
        remote = RemoteVenues(KEY, rules, resolve=resolve)
        with pytest.raises(guarded.AddressRefused, match="not a public address"):
            await remote.call(remote.find("https://one.test"), GetJob(id=b"\0"))

    run(work)


def test_a_pinned_venue_without_a_proof_is_sent_nothing() -> None:
    sent: list[bytes] = []

    async def no_tls(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sent.append(await reader.read(5))
        writer.close()

    async def work() -> None:
        server = await asyncio.start_server(no_tls, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server:
            remote = RemoteVenues(KEY, VenueRules({"south": f"{DID}@127.0.0.1:{port}"}))
            with pytest.raises((PeerUnavailable, BadSignature)):
                await remote.call(remote.find("south"), GetJob(id=b"\0"))

    run(work)
    assert {first[:1] for first in sent} == {b"\x16"}  # a handshake of TLS, and no request
