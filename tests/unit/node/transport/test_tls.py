"""TLS: keys are proved by both ends, and who proves none gets nothing."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand
from cryptography.x509.oid import NameOID

import datalattice.client.network.tls as network_tls
import datalattice.node.transport.strangers as strangers_module
import datalattice.node.transport.tcp as tcp_module
from datalattice.client.network import HandshakeFailed, TlsIdentity, open_stream
from datalattice.client.network.tls import AUTHORITY, PLAIN_ALPN
from datalattice.crypto import KeyPair
from datalattice.errors import LimitExceeded
from datalattice.node import TcpTransport
from datalattice.node.transport import Link
from datalattice.node.transport.tcp import TcpLink
from datalattice.node.transport.tls import SILENT_BYTES_MAX, TlsLink
from datalattice.testing.polling import LIMIT_S
from datalattice.wire import PLAIN_PROTOCOL

KEYS = KeyPair(b"t" * 32)
MINE = KeyPair(b"m" * 32)

PrivateKey = ed25519.Ed25519PrivateKey | rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey


class Host:
    """A listener that echoes, with what it refused."""

    def __init__(self) -> None:
        self.refused: Counter[str] = Counter()
        self.keys: list[bytes | None] = []
        self.changed = asyncio.Condition()
        self.port = 0

    async def accept(self, link: Link) -> None:
        self.keys.append(link.public_key)
        while data := await link.read():
            await link.write(data)
        await link.close()

    def refuse(self, name: str, _text: str) -> None:
        self.refused[name] += 1

    async def is_well(self) -> bool:
        link = await TcpTransport(MINE).dial(f"127.0.0.1:{self.port}")
        await link.write(b"well?")
        answer = await link.read()
        await link.close()
        return answer == b"well?" and self.keys[-1] == MINE.public_key

    async def connect(
        self, context: ssl.SSLContext | None = None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(
            "127.0.0.1", self.port, ssl=context, server_hostname="" if context else None
        )


@asynccontextmanager
async def host(*, plain: bool = False) -> AsyncIterator[Host]:
    found = Host()
    async with asyncio.timeout(LIMIT_S):
        listener = await TcpTransport(KEYS, plain=plain).listen(
            "127.0.0.1", 0, found.accept, found.refuse
        )
        found.port = listener.port
        yield found
        await listener.close()
        while len(asyncio.all_tasks()) > 1:  # noqa: ASYNC110 - links that are about to end
            await asyncio.sleep(0)


async def end_of(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """Return what comes up to the end of a stream, however it ends."""
    try:
        return await reader.read(-1)
    except OSError:
        return b""
    finally:
        writer.transport.abort()


# --- strangers ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "counter"),
    [
        (b"\x16\x03", "handshakes-failed"),
        (b"\x16\x03\x01\x00\x05hello", "handshakes-failed"),
        (b"\x16\x03\x01\xff\xff" + bytes(70_000), "handshakes-failed"),
        (b"\x16\x03\x03" + os.urandom(500), "handshakes-failed"),
        (b"\x16\x04", "plain-refused"),
        (b"\x00", "plain-refused"),
        (b"GET / HTTP/1.1\r\n\r\n", "plain-refused"),
    ],
)
def test_garbage_is_cut_and_counted(said: bytes, counter: str) -> None:
    async def work() -> None:
        async with host() as one:
            reader, writer = await one.connect()
            writer.write(said)
            writer.write_eof()
            answer = await end_of(reader, writer)
            assert len(answer) < 100, "at most an alert"
            assert one.refused == {counter: 1}
            assert await one.is_well()

    asyncio.run(work())


def test_a_first_byte_alone_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """0x16 begins TLS, and a plain frame of 22 bytes as well."""
    seen = bytearray()
    read = TcpLink.read

    async def reading(link: TcpLink) -> bytes:
        data = await read(link)
        seen.extend(data)
        return data

    monkeypatch.setattr(TcpLink, "read", reading)

    async def work() -> None:
        async with host(plain=True) as one:
            reader, writer = await one.connect()
            for piece in (b"\x16", b"\x80" + bytes(21), b"more"):
                writer.write(piece)
                while not seen.endswith(piece):  # noqa: ASYNC110 - it comes by the network
                    await asyncio.sleep(0)
            assert await reader.readexactly(27) == b"\x16\x80" + bytes(21) + b"more"
            assert one.keys == [None]
            writer.close()
            assert await one.is_well(), "and TLS is spoken on the same port"
            reader, writer = await one.connect()
            writer.write_eof()
            assert await end_of(reader, writer) == b""
            assert not one.refused

    asyncio.run(work())


def test_silent_strangers_are_bounded_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        for plain in (False, True):
            async with host(plain=plain) as one:
                with monkeypatch.context() as patch:
                    patch.setattr(tcp_module, "HANDSHAKE_TIMEOUT_S", 0.2)
                    patch.setattr(tcp_module, "SILENCE_PLAIN_S", 0.2)
                    reader, writer = await one.connect()
                    assert await end_of(reader, writer) == b""
                    assert one.refused == {"strangers-silent": 1}
                    reader, writer = await one.connect()
                    writer.write(b"\x16\x03\x01\x02")
                    assert await end_of(reader, writer) == b""
                    assert one.refused == {"strangers-silent": 2}
                assert await one.is_well(), "an honest peer has the usual time"

    asyncio.run(work())


def test_silent_strangers_are_bounded_in_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strangers_module, "STRANGERS_MAX", 8)

    async def work() -> None:
        async with host() as one:
            crowd = [await one.connect() for _ in range(7)]
            assert await one.is_well(), "the eighth has its place"
            assert not one.refused
            for _ in range(5):
                crowd.append(await one.connect())
                assert await one.is_well(), "whoever comes next gets the place of the oldest"
            assert one.refused["strangers-evicted"] == 5
            for reader, writer in crowd[:5]:
                assert await end_of(reader, writer) == b""
            for _, writer in crowd[5:]:
                writer.transport.abort()

    asyncio.run(work())


# --- certificates ---------------------------------------------------------------------------------


def named(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def certificate(
    key: PrivateKey,
    signer: PrivateKey,
    issuer: str,
    *,
    subject: str = "somebody",
    is_authority: bool = False,
) -> x509.Certificate:
    algorithm = None if isinstance(signer, ed25519.Ed25519PrivateKey) else hashes.SHA256()
    return (
        x509.CertificateBuilder()
        .subject_name(named(subject))
        .issuer_name(named(issuer))
        .public_key(key.public_key())
        .serial_number(7)
        .not_valid_before(datetime(2000, 1, 1, tzinfo=UTC))
        .not_valid_after(datetime(2100, 1, 1, tzinfo=UTC))
        .add_extension(x509.BasicConstraints(is_authority, None), True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), False
        )
        .sign(signer, algorithm)
    )


def context_of(key: PrivateKey | None, *chain: x509.Certificate) -> ssl.SSLContext:
    """Return a client that accepts everybody and shows a chain."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(PLAIN_ALPN)
    if key is not None:
        pem = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ) + b"".join(one.public_bytes(serialization.Encoding.PEM) for one in chain)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "chain.pem"
            path.write_bytes(pem)
            context.load_cert_chain(path)
    return context


AUTHORITY_NAME = "datalattice: proves nothing"


def strangers() -> dict[str, ssl.SSLContext]:
    ours = ed25519.Ed25519PrivateKey.generate()
    other = ed25519.Ed25519PrivateKey.generate()
    old = rsa.generate_private_key(65_537, 2_048)
    curve = ec.generate_private_key(ec.SECP256R1())
    middle = certificate(other, AUTHORITY, AUTHORITY_NAME, subject="middle", is_authority=True)
    no_alpn = context_of(ours, certificate(ours, AUTHORITY, AUTHORITY_NAME))
    no_alpn.set_alpn_protocols(["h2"])
    earlier = context_of(ours, certificate(ours, AUTHORITY, AUTHORITY_NAME))
    earlier.maximum_version = ssl.TLSVersion.TLSv1_2
    return {
        "no certificate": context_of(None),
        "RSA": context_of(old, certificate(old, AUTHORITY, AUTHORITY_NAME)),
        "another curve": context_of(curve, certificate(curve, AUTHORITY, AUTHORITY_NAME)),
        "another authority": context_of(ours, certificate(ours, other, AUTHORITY_NAME)),
        "its own authority": context_of(ours, certificate(ours, ours, "somebody")),
        "others in between": context_of(ours, certificate(ours, other, "middle"), middle),
        "the key everybody has": context_of(
            AUTHORITY, certificate(AUTHORITY, AUTHORITY, AUTHORITY_NAME)
        ),
        "another protocol": no_alpn,
        "an earlier version": earlier,
    }


def test_who_does_not_prove_an_ed25519_key_is_cut_and_counted() -> None:
    async def work() -> None:
        async with host() as one:
            for number, (name, context) in enumerate(strangers().items(), 1):
                try:
                    reader, writer = await one.connect(context)
                    writer.write(b"let me in")
                    assert await end_of(reader, writer) == b"", name
                except (ssl.SSLError, ConnectionError):
                    pass  # the handshake itself was refused
                assert await one.is_well()
                assert one.refused["handshakes-failed"] == number, name
            assert set(one.keys) == {MINE.public_key}

    asyncio.run(work())


def test_a_self_made_certificate_for_a_proved_key_is_as_good_as_ours() -> None:
    """The authority is public: what counts is who holds the key."""

    async def work() -> None:
        async with host() as one:
            key = ed25519.Ed25519PrivateKey.generate()
            context = context_of(key, certificate(key, AUTHORITY, AUTHORITY_NAME))
            reader, writer = await one.connect(context)
            writer.write(b"hello")
            assert await reader.readexactly(5) == b"hello"
            assert one.keys == [key.public_key().public_bytes_raw()]
            writer.transport.abort()

    asyncio.run(work())


def test_a_server_that_proves_nothing_is_not_spoken_to() -> None:
    async def work() -> None:
        key = rsa.generate_private_key(65_537, 2_048)
        context = context_of(key, certificate(key, AUTHORITY, AUTHORITY_NAME))
        server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "chain.pem"
            path.write_bytes(
                key.private_bytes(
                    serialization.Encoding.PEM,
                    serialization.PrivateFormat.PKCS8,
                    serialization.NoEncryption(),
                )
                + certificate(key, AUTHORITY, AUTHORITY_NAME).public_bytes(
                    serialization.Encoding.PEM
                )
            )
            server_side.load_cert_chain(path)
        server_side.set_alpn_protocols(PLAIN_ALPN)
        heard = bytearray()

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            heard.extend(await end_of(reader, writer))

        server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=server_side)
        port = server.sockets[0].getsockname()[1]
        for dial in (
            TcpTransport(MINE).dial(f"127.0.0.1:{port}"),
            asyncio.to_thread(open_stream, f"127.0.0.1:{port}", 5.0),
        ):
            with pytest.raises(HandshakeFailed, match="Ed25519"):
                await dial
        server.close()
        assert not heard
        assert context.verify_mode is ssl.CERT_NONE

    asyncio.run(work())


def test_a_wrong_key_is_named_and_does_not_learn_ours() -> None:
    async def work() -> None:
        async with host() as one:
            wanted = "ab" * 32
            with pytest.raises(HandshakeFailed, match=f"{KEYS.public_key.hex()}, not {wanted}"):
                await TcpTransport(MINE).dial(f"{wanted}@127.0.0.1:{one.port}")
            with pytest.raises(HandshakeFailed, match=wanted):
                await asyncio.to_thread(open_stream, f"{wanted}@127.0.0.1:{one.port}", 5.0)
            assert MINE.public_key not in one.keys

    asyncio.run(work())


def test_streams_of_callers_without_a_loop_send_at_once() -> None:
    async def work() -> None:
        async with host() as one:
            with await asyncio.to_thread(open_stream, f"127.0.0.1:{one.port}", 5.0) as stream:
                assert stream.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

    asyncio.run(work())


def test_a_stream_that_cannot_be_set_up_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_raw: socket.socket) -> None:
        raise OSError("no such option")

    monkeypatch.setattr(network_tls, "tune", fail)
    with socket.create_server(("127.0.0.1", 0)) as server:
        # The exception that is held here holds the frame, and the frame the stream.
        with pytest.raises(OSError, match="no such option") as caught:
            open_stream(f"tcp://127.0.0.1:{server.getsockname()[1]}", 10.0)
        stream, _ = server.accept()
        with stream:
            stream.settimeout(10.0)
            assert stream.recv(1) == b""
        assert str(caught.value) == "no such option"


def test_a_plain_listener_and_a_dead_one_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async def talk(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"220 mail.example\r\n")
            writer.close()

        async def hush(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await end_of(reader, writer)

        for serve, match, timeout_s in (
            (talk, "no TLS handshake", tcp_module._DIAL_TIMEOUT_S),
            (hush, "no answer", 0.5),
        ):
            monkeypatch.setattr(tcp_module, "_DIAL_TIMEOUT_S", timeout_s)
            server = await asyncio.start_server(serve, "127.0.0.1", 0)
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(OSError, match=match):
                await TcpTransport(MINE).dial(f"127.0.0.1:{port}")
            server.close()
        while len(asyncio.all_tasks()) > 1:  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0)

    asyncio.run(work())


def test_the_private_key_is_read_from_a_file_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    real = tempfile.mkstemp

    def mkstemp() -> tuple[int, str]:
        handle, path = real()
        assert Path(path).stat().st_mode & 0o077 == 0
        made.append(path)
        return handle, path

    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.setattr(tempfile, "mkstemp", mkstemp)
    TlsIdentity(KEYS)
    assert len(made) == 1
    assert not Path(made[0]).exists()
    monkeypatch.undo()
    monkeypatch.setattr(tempfile, "mkstemp", mkstemp)
    TlsIdentity(KEYS)
    assert len(made) == 1, "in memory where that can be"


class Renewing:
    """A TLS client that renews its keys as often as told, which `ssl` does not offer."""

    def __init__(self, tls: ssl.SSLObject, keys: Path) -> None:
        name = tls.cipher()
        assert name is not None
        self._hash = hashes.SHA384() if "SHA384" in name[0] else hashes.SHA256()
        self._cipher = ChaCha20Poly1305 if "CHACHA20" in name[0] else AESGCM
        self._key_bytes = 16 if "AES_128" in name[0] else 32
        line = next(line for line in keys.read_text().splitlines() if "CLIENT_TRAFFIC" in line)
        self._secret = bytes.fromhex(line.split()[2])
        self._count = 0

    def record(self, kind: int, data: bytes) -> bytes:
        key, place = self._derived(b"key", self._key_bytes), self._derived(b"iv", 12)
        nonce = (int.from_bytes(place, "big") ^ self._count).to_bytes(12, "big")
        self._count += 1
        head = b"\x17\x03\x03" + (len(data) + 17).to_bytes(2, "big")
        return head + self._cipher(key).encrypt(nonce, data + bytes([kind]), head)

    def renewal(self) -> bytes:
        sent = self.record(22, b"\x18\x00\x00\x01\x00")
        self._secret, self._count = self._derived(b"traffic upd", self._hash.digest_size), 0
        return sent

    def _derived(self, label: bytes, length: int) -> bytes:
        name = b"tls13 " + label
        info = length.to_bytes(2, "big") + bytes([len(name)]) + name + b"\x00"
        return HKDFExpand(self._hash, length, info).derive(self._secret)


class Fed:
    """A link that gives what it is told to, in one piece each."""

    remote = "fed:1"
    public_key = None
    protocol = PLAIN_PROTOCOL

    def __init__(self) -> None:
        self.given: list[bytes] = []
        self.written = bytearray()

    async def read(self) -> bytes:
        return self.given.pop(0) if self.given else b""

    async def write(self, data: bytes) -> None:
        self.written += data

    async def close(self) -> None:
        pass

    def abort(self) -> None:
        pass


async def shaken(tmp_path: Path) -> tuple[TlsLink, Fed, Renewing]:
    """Return a server's link over a stream, and the client at its other end."""
    stream = Fed()
    link = TlsLink(stream, TlsIdentity(KEYS), dialled=False)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = TlsIdentity(KEYS).client
    context.keylog_filename = str(tmp_path / "keys")
    client = context.wrap_bio(incoming, outgoing)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    stream.given.append(outgoing.read())

    async def read() -> bytes:
        if not stream.given:  # the server has answered
            incoming.write(bytes(stream.written))
            client.do_handshake()
            stream.given.append(outgoing.read())
        return stream.given.pop(0)

    stream.read, plain_read = read, stream.read  # type: ignore[method-assign]
    await link.shake_hands()
    stream.read = plain_read  # type: ignore[method-assign]
    return link, stream, Renewing(client, tmp_path / "keys")


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_keys_are_not_renewed_without_end(tmp_path: Path, more: int) -> None:
    async def work() -> None:
        link, stream, client = await shaken(tmp_path)
        for _ in range(2):  # data in between begins it anew
            renewal = client.renewal()
            count = SILENT_BYTES_MAX // len(renewal)
            pieces = [renewal, *(client.renewal() for _ in range(count - 1))]
            data = client.record(23, b"data")
            rest = SILENT_BYTES_MAX + more - sum(map(len, pieces))
            # A beginning of the next record makes up the bytes.
            stream.given += [b"".join(pieces) + data[:rest], data[rest:]]
            if more > 0:
                with pytest.raises(LimitExceeded, match="65537 bytes of TLS came, and no data"):
                    await link.read()
                return
            assert await link.read() == b"data"

    asyncio.run(work())


@pytest.mark.parametrize(
    "error",
    [
        ValueError("a broken name"),
        UnsupportedAlgorithm("a curve that nobody knows"),
        x509.InvalidVersion("no such version", 7),
    ],
)
def test_a_certificate_that_cannot_be_read_is_cut_and_counted(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refuse(_data: bytes) -> x509.Certificate:
        raise error

    async def work() -> None:
        async with host() as there:
            stream = await there.connect(TlsIdentity(MINE).client)
            assert await end_of(*stream) == b""
            assert there.refused == {"handshakes-failed": 1}

    monkeypatch.setattr(x509, "load_der_x509_certificate", refuse)
    asyncio.run(work())


def test_a_fault_in_a_handshake_does_not_leave_the_stream_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def fail(*_: object) -> None:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(TlsLink, "shake_hands", fail)

    async def work() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        async with host() as there:
            reader, writer = await asyncio.open_connection("127.0.0.1", there.port)
            writer.write(b"\x16\x03\x01")
            async with asyncio.timeout(LIMIT_S):
                assert await end_of(reader, writer) == b""

    asyncio.run(work())
