"""Doors with TLS: the node's own certificate, its statement, and clients that pin the node."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Self

import pytest

import datalattice
from datalattice.actions import DoorStatement, GetNodeStatus, ListTopics
from datalattice.clock import SystemClock
from datalattice.crypto import KeyPair
from datalattice.errors import BadSignature, PeerUnavailable, UsageError
from datalattice.lattice import did_of
from datalattice.testing.polling import until
from datalattice.testing.ports import held_port

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
grpc = pytest.importorskip("datalattice.client.grpc")

from datalattice.api import doors as doors_module  # noqa: E402
from datalattice.api.certificates import (  # noqa: E402 - behind what may be missing
    DOOR_FILE,
    RENEW_BEFORE,
    VALID,
    DoorCertificate,
)
from datalattice.api.doors import Doors  # noqa: E402
from datalattice.client.asyncrest import AsyncRestClient  # noqa: E402
from datalattice.client.credentials import make_token  # noqa: E402
from datalattice.client.network import (  # noqa: E402
    DoorPin,
    shown_certificate,
    statement_text,
    trusting_context,
)
from datalattice.client.rest import RestClient  # noqa: E402
from datalattice.client.settings import DoorConfig, NodeConfig  # noqa: E402
from datalattice.service import FolderService  # noqa: E402

ON = "127.0.0.1:0"


class SetClock:
    """A clock that tells what it is set to."""

    def __init__(self, ahead: timedelta = timedelta()) -> None:
        self.ahead = ahead

    def now_ms(self) -> int:
        return SystemClock().now_ms() + round(self.ahead.total_seconds() * 1_000)


class Served:
    """Doors of a folder. rest, grpc: where they are, without a scheme."""

    def __init__(self, folder: Path, grpc_port: int, **options: Any) -> None:
        self.folder = folder
        self.identity = KeyPair.generate()
        self.did = did_of(self.identity.public_key)
        listener = DoorConfig(f"127.0.0.1:{grpc_port}", **{"tls": "on", **options})
        config = NodeConfig(rest=DoorConfig(ON, **{"tls": "on", **options}), grpc=listener)
        self.service = FolderService(folder, self.identity, config)
        self.doors = Doors(folder, config, self.identity, self.service)
        addresses = self.doors.bind()
        self.rest = addresses["rest"].partition("://")[2]
        self.grpc = addresses["grpc"]
        self.socket = addresses["socket"]

    def token(self) -> str:
        return make_token(self.identity, self.did, SystemClock().now_ms())


@contextmanager
def serving(folder: Path, **options: Any) -> Iterator[Served]:
    datalattice.open(folder).close()
    with held_port() as port:
        served = Served(folder, port, **options)
        try:
            served.doors.start()
            yield served
        finally:
            served.doors.stop()
            served.service.close()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("tls") / "n") as made:
        yield made


class Waiting:
    """An asynchronous client, called from a thread without an event loop of its own."""

    def __init__(self, kind: Any, *args: Any, **options: Any) -> None:
        self.kind, self.args, self.options = kind, args, options

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None: ...

    def call(self, request: Any) -> Any:
        async def run() -> Any:
            async with self.kind(*self.args, **self.options) as client:
                return await client.call(request)

        return asyncio.run(run())


KINDS: dict[str, Any] = {
    "rest": RestClient,
    "rest waiting": partial(Waiting, AsyncRestClient),
    "grpc": grpc.GrpcClient,
    "grpc waiting": partial(Waiting, grpc.AsyncGrpcClient),
}


def client(kind: str, served: Served, **options: Any) -> AbstractContextManager[Any]:
    place = f"https://{served.rest}" if kind.startswith("rest") else served.grpc
    made: AbstractContextManager[Any] = KINDS[kind](place, token=served.token, **options)
    return made


def refused(kind: str, served: Served, **options: Any) -> str:
    with client(kind, served, **options) as made, pytest.raises(BadSignature) as caught:
        made.call(GetNodeStatus())
    return str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_who_knows_the_did_needs_nothing_else(kind: str, served: Served) -> None:
    with client(kind, served, did=served.did) as made:
        status = made.call(GetNodeStatus())
        assert made.call(ListTopics()).topics == ()
    assert [one.did for one in status.doors] == [served.did]
    place = served.rest if kind.startswith("rest") else served.grpc
    with KINDS[kind](f"{served.did}@{place}") as made:
        assert made.call(GetNodeStatus()).doors == status.doors


@pytest.mark.parametrize("kind", KINDS)
def test_another_node_is_refused_and_gets_no_token(kind: str, served: Served) -> None:
    other = did_of(KeyPair.generate().public_key)
    text = refused(kind, served, did=other)
    assert other in text
    assert served.did in text


@pytest.mark.parametrize("kind", KINDS)
def test_a_statement_ends(kind: str, served: Served) -> None:
    late = SetClock(VALID + timedelta(hours=1))
    assert "has ended" in refused(kind, served, did=served.did, clock=late)


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_did_an_own_certificate_is_refused(kind: str, served: Served) -> None:
    with client(kind, served) as made, pytest.raises(PeerUnavailable):
        made.call(GetNodeStatus())


@pytest.mark.parametrize("kind", KINDS)
def test_a_plain_client_learns_that_there_is_tls(kind: str, served: Served) -> None:
    made = KINDS[kind](f"http://{served.rest}" if kind.startswith("rest") else served.grpc)
    with made, pytest.raises(PeerUnavailable, match=r"https://|if it has TLS"):
        made.call(GetNodeStatus())


@pytest.mark.parametrize("kind", KINDS)
def test_a_client_of_tls_learns_that_there_is_none(kind: str, tmp_path: Path) -> None:
    with (
        serving(tmp_path / "n", tls="off") as plain,
        client(kind, plain, did=plain.did) as made,
        pytest.raises(PeerUnavailable, match="does not speak TLS"),
    ):
        made.call(GetNodeStatus())


@contextmanager
def relay(context: ssl.SSLContext, target: str) -> Iterator[str]:
    """Yield where another node's TLS stands before a door: whoever sits between them."""
    ready, end = threading.Event(), threading.Event()
    found: list[int] = []
    host, _, port = target.rpartition(":")

    open_ones: set[Any] = set()

    async def both(reader: Any, writer: Any) -> None:
        inner_reader, inner_writer = await asyncio.open_connection(
            host, int(port), ssl=unverified_for(writer)
        )
        open_ones.update((writer, inner_writer))
        await asyncio.gather(pump(reader, inner_writer), pump(inner_reader, writer))

    async def pump(reader: Any, writer: Any) -> None:
        with suppress(OSError):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(both, "127.0.0.1", 0, ssl=context)
        found.append(server.sockets[0].getsockname()[1])
        ready.set()
        await asyncio.to_thread(end.wait)
        server.close()
        for writer in open_ones:
            writer.transport.abort()
            with suppress(OSError):
                await writer.wait_closed()

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    assert ready.wait(60)
    try:
        yield f"127.0.0.1:{found[0]}"
    finally:
        end.set()
        thread.join(60)


def unverified_for(writer: Any) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    chosen = writer.get_extra_info("ssl_object").selected_alpn_protocol()
    if chosen:
        context.set_alpn_protocols([chosen])
    return context


@pytest.mark.parametrize("kind", KINDS)
def test_whoever_sits_between_shows_another_key(kind: str, served: Served, tmp_path: Path) -> None:
    between = DoorCertificate(tmp_path, KeyPair.generate(), SystemClock())
    between.context.set_alpn_protocols(["h2"])
    target = served.rest if kind.startswith("rest") else served.grpc
    with (
        relay(between.context, target) as place,
        KINDS[kind](f"{served.did}@{place}") as made,
        # The statements that come through are the node's own; they are of another key.
        pytest.raises(BadSignature, match="has no statement about its certificate"),
    ):
        made.call(GetNodeStatus())


def test_statements_are_checked_to_the_last_field(served: Served) -> None:
    host, _, port = served.rest.rpartition(":")
    shown = shown_certificate(host, int(port), 60)
    (true,) = served.doors.statements()
    pin = DoorPin(served.did)
    pin.check(shown, [true], "there")
    assert pin.knows(shown)
    other = KeyPair.generate()

    def stating(signer: KeyPair | None, **changed: Any) -> DoorStatement:
        fields = {one.name: getattr(true, one.name) for one in DoorStatement.declared()} | changed
        text = statement_text(fields["did"], fields["spki_sha256"], fields["not_after_ms"])
        return DoorStatement(**{**fields, **({"signature": signer.sign(text)} if signer else {})})

    later = stating(None, not_after_ms=true.not_after_ms + 1)
    foreign = stating(other, did=did_of(other.public_key))
    elsewhere = stating(served.identity, spki_sha256=bytes(32))
    for wrong in (stating(other), later, foreign, elsewhere):
        fresh = DoorPin(served.did)
        with pytest.raises(BadSignature, match=r"does not prove to be did:key"):
            fresh.check(shown, [wrong], "there")
        assert not fresh.knows(shown)
    with pytest.raises(BadSignature, match="cannot be read"):
        pin.check(b"no certificate", [true], "there")
    # A true one is found among others, but not behind any number of them.
    DoorPin(served.did).check(shown, [*[later] * 15, true], "there")
    with pytest.raises(BadSignature):
        DoorPin(served.did).check(shown, [*[later] * 16, true], "there")


def test_what_does_not_go_together_is_refused() -> None:
    one, other = (did_of(KeyPair.generate().public_key) for _ in range(2))
    makes: list[Callable[[], object]] = [
        lambda: RestClient("https://127.0.0.1:1", did="did:web:node.example"),
        lambda: RestClient("http://127.0.0.1:1", did=one),
        lambda: RestClient("did:key:zAB@127.0.0.1:1"),
        lambda: AsyncRestClient("http://127.0.0.1:1", did=one),
        lambda: AsyncRestClient("https://127.0.0.1:1", did=one, tls=ssl.create_default_context()),
        lambda: AsyncRestClient(f"{one}@127.0.0.1:1", did=other),
        lambda: AsyncRestClient("ftp://127.0.0.1:1"),
        lambda: grpc.GrpcClient("folder/socket", did=one),
        lambda: grpc.GrpcClient("127.0.0.1:1", did=one, certificate=b"x"),
        lambda: grpc.GrpcClient(f"{one}@127.0.0.1:1", did=other),
    ]
    for make in makes:
        with pytest.raises(UsageError):
            make()


# --- the node's own certificate -------------------------------------------------------------------


def test_it_is_made_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    identity = KeyPair.generate()
    made = DoorCertificate(tmp_path, identity, SystemClock())
    assert stat.S_IMODE((tmp_path / DOOR_FILE).stat().st_mode) == 0o600
    again = DoorCertificate(tmp_path, identity, SystemClock())
    assert (again.key, again.chain) == (made.key, made.chain)
    (tmp_path / DOOR_FILE).chmod(0o640)
    with pytest.raises(UsageError, match="read by others"):
        DoorCertificate(tmp_path, identity, SystemClock())
    (tmp_path / DOOR_FILE).chmod(0o600)
    (tmp_path / DOOR_FILE).write_text("no certificate")
    with pytest.raises(UsageError, match="is not a certificate"):
        DoorCertificate(tmp_path, identity, SystemClock())


def test_it_is_renewed_before_it_ends_and_the_one_before_stays_stated(tmp_path: Path) -> None:
    clock = SetClock()
    made = DoorCertificate(tmp_path, KeyPair.generate(), clock)
    first, chain = made.statements, made.chain
    clock.ahead = VALID - RENEW_BEFORE - timedelta(hours=1)
    made.refresh()
    assert made.chain == chain
    clock.ahead = VALID - RENEW_BEFORE + timedelta(hours=1)
    made.refresh()
    assert made.chain != chain
    assert made.statements[1:] == first
    assert made.statements[0].not_after_ms > first[0].not_after_ms


@pytest.mark.parametrize("kind", KINDS)
def test_a_renewed_certificate_is_taken_without_a_restart(kind: str, tmp_path: Path) -> None:
    with serving(tmp_path / "n") as served, client(kind, served, did=served.did) as made:
        before = made.call(GetNodeStatus()).doors
        (served.folder / DOOR_FILE).unlink()
        for certificate in set(served.doors._certificates.values()):
            certificate.refresh()
        with client(kind, served, did=served.did) as other:
            now = other.call(GetNodeStatus()).doors
        assert now[1:] == before
        assert made.call(GetNodeStatus()).doors == now  # its connection stays


def test_a_token_is_given_as_text_too(served: Served) -> None:
    async def waiting() -> None:
        door = f"{served.did}@{served.rest}"
        async with AsyncRestClient(door, token=served.token()) as client:
            await client.call(GetNodeStatus())

    with RestClient(f"{served.did}@{served.rest}", token=served.token()) as client:
        client.call(GetNodeStatus())
    asyncio.run(waiting())


def test_a_client_with_a_loop_proves_a_door_again_whose_certificate_is_another(
    served: Served,
) -> None:
    async def run() -> None:
        async with AsyncRestClient(f"{served.did}@{served.rest}", token=served.token) as client:
            await client.call(GetNodeStatus())
            known = client._certificate
            # As if it had been proved before the door's present certificate was made.
            other = DoorCertificate(served.folder / "other", KeyPair.generate(), SystemClock())
            assert client._http is not None
            await client._http.aclose()
            client._http = client._made(
                trusting_context(ssl.PEM_cert_to_DER_cert(other.chain.decode()))
            )
            status = await client.call(GetNodeStatus())
            assert ([one.did for one in status.doors], client._certificate) == ([served.did], known)

    (served.folder / "other").mkdir()
    asyncio.run(run())


def test_files_of_the_operator_are_verified_in_the_ordinary_way(tmp_path: Path) -> None:
    given = DoorCertificate(tmp_path, KeyPair.generate(), SystemClock())
    (tmp_path / "c.pem").write_bytes(given.chain)
    (tmp_path / "k.pem").write_bytes(given.key)
    files = {"cert": str(tmp_path / "c.pem"), "key": str(tmp_path / "k.pem")}
    with serving(tmp_path / "n", **files) as served:
        assert not (served.folder / DOOR_FILE).exists()
        trusting = ssl.create_default_context(cafile=str(tmp_path / "c.pem"))
        with client("rest", served, tls=trusting) as made:
            assert made.call(ListTopics()).topics == ()
        port = served.grpc.rpartition(":")[2]
        with grpc.GrpcClient(f"localhost:{port}", certificate=given.chain) as made:
            assert len(made.call(GetNodeStatus()).doors) == 1
        for kind in KINDS:  # and who has the DID pins these as well
            with client(kind, served, did=served.did) as made:
                assert made.call(ListTopics()).topics == ()


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    made = DoorCertificate(tmp_path, KeyPair.generate(), SystemClock())
    chain, key, wrong = (tmp_path / name for name in ("c.pem", "k.pem", "w.pem"))
    chain.write_bytes(made.chain)
    key.write_bytes(made.key)
    wrong.write_bytes(DoorCertificate(tmp_path / "..", made._identity, SystemClock()).key)

    def use(*files: Path, clock: Any = None) -> None:
        DoorCertificate(tmp_path, made._identity, clock or SystemClock(), files)  # type: ignore[arg-type]

    use(chain, key)
    with pytest.raises(UsageError, match="not a certificate and its key"):
        use(chain, wrong)
    with pytest.raises(UsageError, match="is not a certificate"):
        use(key, key)
    with pytest.raises(UsageError, match="is not a private key"):
        use(chain, chain)
    with pytest.raises(UsageError, match="cannot be read"):
        use(tmp_path / "absent", key)
    with pytest.raises(UsageError, match="has expired"):
        use(chain, key, clock=SetClock(VALID + timedelta(days=1)))


def test_the_statement_is_served_to_anybody_over_http(served: Served) -> None:
    context = ssl.create_default_context(cafile=str(served.folder / DOOR_FILE))
    host, _, port = served.rest.rpartition(":")
    with (
        socket.create_connection((host, int(port)), 60) as stream,
        context.wrap_socket(stream, server_hostname="localhost") as tls,
    ):
        tls.sendall(
            b"GET /.well-known/lattice-door HTTP/1.1\r\nhost: localhost\r\n"
            b"connection: close\r\n\r\n"
        )
        body = b"".join(iter(lambda: tls.recv(65_536), b"")).partition(b"\r\n\r\n")[2]
    (door,) = json.loads(body)["doors"]
    assert door["did"] == served.did
    assert set(door) == {"did", "spki_sha256", "not_after_ms", "signature"}


# --- where TLS is needed --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("listen", "tls", "has_tls"),
    [
        ("127.0.0.1:1", "auto", False),
        ("127.9.9.9:1", "auto", False),
        ("[::1]:1", "auto", False),
        ("localhost:1", "on", True),
        ("0.0.0.0:1", "auto", True),
        ("192.0.2.1:1", "auto", True),
        ("127.example.org:1", "auto", True),
        ("node.example:1", "on", True),
    ],
)
def test_others_reach_a_door_over_tls(listen: str, tls: str, has_tls: bool) -> None:
    assert DoorConfig(listen, tls).has_tls is has_tls


def test_without_tls_others_reach_a_door_only_if_that_is_said() -> None:
    with pytest.raises(UsageError, match="set insecure = true"):
        DoorConfig("0.0.0.0:1", "off")
    assert not DoorConfig("0.0.0.0:1", "off", insecure=True).has_tls
    assert DoorConfig("0.0.0.0:1", insecure=True).has_tls  # it is allowed, not asked for


# --- doors that fail ------------------------------------------------------------------------------


def test_a_door_that_fails_while_it_serves_is_begun_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doors_module, "_RETRY_FIRST_S", 0.01)
    made: list[Any] = []
    real = doors_module._server

    def noted(*args: Any) -> Any:
        made.append(real(*args))
        if len(made) in (3, 4):  # the first two serve; then it fails twice
            raise RuntimeError("it broke")
        return made[-1]

    monkeypatch.setattr(doors_module, "_server", noted)
    with serving(tmp_path / "n", tls="off") as served:
        assert served.doors.trouble() is None
        with RestClient(f"http://{served.rest}") as client:
            client.call(GetNodeStatus())
        for server in made:  # whatever ends them
            server.should_exit = True
        until(lambda: len(made) == 6 and served.doors.trouble() is None)
        for place in (served.socket, served.grpc):
            kind = RestClient if place == served.socket else grpc.GrpcClient
            with kind(place) as client:
                client.call(GetNodeStatus())


def test_a_certificate_that_cannot_be_read_keeps_that_door_alone_closed(tmp_path: Path) -> None:
    files = {"cert": str(tmp_path / "absent.pem"), "key": str(tmp_path / "absent.pem")}
    with serving(tmp_path / "n", **files) as served:
        trouble = served.doors.trouble() or ""
        assert "rest: " in trouble
        assert "grpc: " in trouble
        assert "absent.pem cannot be read" in trouble
        with RestClient(served.socket) as made:
            assert made.call(ListTopics()).topics == ()
