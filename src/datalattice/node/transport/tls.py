"""TLS: links that are encrypted, and whose two ends prove the Ed25519 keys they go by.

Mutual TLS 1.3, no earlier version, no resumption, no early data. There is no authority to trust: a
node is its key. But the checks that `ssl` offers are made for authorities, and without one it does
not even ask a client for a certificate. So all nodes share an authority whose private key stands
below. It vouches for nothing, since everybody has it; it only makes both sides present a
certificate, and TLS itself then proves that each holds the private key of the one it presented.
That key is what the link reports.

Certificates are valid for ever: nothing depends on clocks, and there is nothing to renew. What a
key may do, and whether it is the one expected, is decided above.

Decided in: docs/design/identity.md.
"""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.x509.oid import NameOID

from datalattice.crypto import KeyPair
from datalattice.errors import LimitExceeded
from datalattice.node.transport.base import READ_BYTES, Link

ALPN: Final = "lattice/1"
"""The protocol that both sides have to name in the handshake."""

RECORD_START: Final = b"\x16\x03"
"""How TLS begins: a handshake record of version 3. No plain stream begins so: there 0x16 would be
the length of a frame of 22 bytes, whose first, the tag of a cell, would be 0x03; no cell has it."""

AUTHORITY: Final = Ed25519PrivateKey.from_private_bytes(b"datalattice: a key everybody has")
"""The private key of the authority. It is public on purpose, and proves nothing."""

SILENT_BYTES_MAX: Final = 65_536
"""Bytes of a stream that may come with no data among them: renewed keys and the like. A stranger
can renew keys without end, and each renewal costs as much as a small message."""

_BEGIN: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FOR_EVER: Final = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)  # RFC 5280: no end


class HandshakeFailed(ConnectionError):
    """The other end did not prove to be a node, or not the one that was expected."""


class TlsIdentity:
    """A node's side of every handshake: its key, and a certificate for it."""

    def __init__(self, key_pair: KeyPair) -> None:
        self.public_key: Final = key_pair.public_key
        private = Ed25519PrivateKey.from_private_bytes(key_pair.seed)
        leaf = _certificate(self.public_key.hex(), private.public_key(), is_authority=False)
        pem = private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ) + leaf.public_bytes(serialization.Encoding.PEM)
        with _file_of(pem) as path:
            self.client: Final = _context(ssl.PROTOCOL_TLS_CLIENT, path)
            self.server: Final = _context(ssl.PROTOCOL_TLS_SERVER, path)


class TlsLink:
    """TLS on top of a plain link. Made by `shake_hands`."""

    public_key: bytes

    def __init__(
        self, link: Link, identity: TlsIdentity, *, dialled: bool, begun: bytes = b""
    ) -> None:
        self._link = link
        self.remote = link.remote
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._incoming.write(begun)
        context = identity.client if dialled else identity.server
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=not dialled)

    async def shake_hands(self, expected: bytes | None = None) -> None:
        """Exchange proofs; return when both sides have given theirs.

        A client's proof is looked at by the server after the client is done: a client that is
        refused finds out at its first read.

        Raises: HandshakeFailed: the other end proved nothing, or another key than `expected`.
                OSError: the link broke.
        """
        while True:
            try:
                self._tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                await self._flush()
                await self._feed()
            except ssl.SSLError as error:
                with suppress(OSError):
                    await self._flush()  # the alert that tells the other end why
                raise HandshakeFailed(explain(error, self.remote)) from error
        # Looked at before our own proof leaves: who is not the one expected does not get it.
        self.public_key = proven_key(self._tls, self.remote, expected)
        await self._flush()

    async def read(self) -> bytes:
        """Return some bytes, none at the end of the stream, be it orderly or not.

        Raises: LimitExceeded: much came, and no data.
        """
        pieces: list[bytes] = []
        size = silent = 0
        while size < READ_BYTES:
            try:
                piece = self._tls.read(READ_BYTES - size)
            except ssl.SSLWantReadError:
                if pieces:
                    break
                if silent > SILENT_BYTES_MAX:
                    raise LimitExceeded(f"{silent} bytes of TLS came, and no data") from None
                count = await self._more()
                if not count:
                    break
                silent += count
                continue
            except ssl.SSLError:
                break  # a forged or cut stream; what was read before it is genuine
            if not piece:
                break
            pieces.append(piece)
            size += len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def write(self, data: bytes) -> None:
        """Take bytes to be sent; return when there is room for more."""
        sent = 0
        while sent < len(data):
            sent += self._tls.write(data[sent:] if sent else data)
        await self._flush()

    async def close(self) -> None:
        """Send what was taken and the mark of an orderly end, then end the stream."""
        with suppress(OSError):
            # It goes on to wait for the other end's mark, which nobody here needs.
            with suppress(ssl.SSLError):
                self._tls.unwrap()
            await self._flush()
        await self._link.close()

    def abort(self) -> None:
        """End the stream at once."""
        self._link.abort()

    async def _more(self) -> int:
        """Wait for more of the stream, answering what the protocol itself asked.

        Returns how many bytes came; none at its end, or when it broke.
        """
        try:
            await self._flush()
        except OSError:
            return 0
        return await self._feed()

    async def _feed(self) -> int:
        data = await self._link.read()
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()
        return len(data)

    async def _flush(self) -> None:
        # Nothing can come between the two, so records leave in the order they were made.
        data = self._outgoing.read()
        if data:
            await self._link.write(data)


def proven_key(
    tls: ssl.SSLObject | ssl.SSLSocket, remote: str, expected: bytes | None = None
) -> bytes:
    """Return the public key that the other end of a finished handshake proved to hold.

    Raises: HandshakeFailed: it is no key of a node, or not the `expected` one.
    """
    if tls.selected_alpn_protocol() != ALPN:
        raise HandshakeFailed(f"{remote} does not speak {ALPN}")
    shown = tls.getpeercert(binary_form=True)
    if shown is None:
        raise HandshakeFailed(f"{remote} showed no certificate")
    try:
        certificate = x509.load_der_x509_certificate(shown)
        key, issuer = certificate.public_key(), certificate.issuer
    except (ValueError, UnsupportedAlgorithm, x509.InvalidVersion) as error:
        raise HandshakeFailed(f"the certificate of {remote} cannot be read: {error}") from error
    if not isinstance(key, Ed25519PublicKey):
        raise HandshakeFailed(f"{remote} has a certificate of another kind than Ed25519")
    if issuer != _name(_AUTHORITY_NAME):
        raise HandshakeFailed(f"{remote} has a certificate with others in between")
    found = key.public_bytes_raw()
    if found == AUTHORITY.public_key().public_bytes_raw():
        raise HandshakeFailed(f"{remote} shows the key that everybody has")
    if expected is not None and found != expected:
        raise HandshakeFailed(f"{remote} proved the key {found.hex()}, not {expected.hex()}")
    return found


def explain(error: ssl.SSLError, remote: str) -> str:
    """Return in words why a handshake failed."""
    why = (error.reason or "the stream ended").lower().replace("_", " ")
    return f"no TLS handshake with {remote}: {why}"


# --- certificates ---------------------------------------------------------------------------------

_AUTHORITY_NAME: Final = "datalattice: proves nothing"


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _certificate(name: str, key: Ed25519PublicKey, *, is_authority: bool) -> x509.Certificate:
    usage = x509.KeyUsage(
        digital_signature=not is_authority,
        key_cert_sign=is_authority,
        crl_sign=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    authority = AUTHORITY.public_key()
    return (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .issuer_name(_name(_AUTHORITY_NAME))
        .public_key(key)
        .serial_number(1 if is_authority else 2)
        .not_valid_before(_BEGIN)
        .not_valid_after(_FOR_EVER)
        .add_extension(x509.BasicConstraints(is_authority, 0 if is_authority else None), True)
        .add_extension(usage, True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority), False)
        .sign(AUTHORITY, None)
    )


def _context(protocol: int, path: str) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # a node is its key, wherever it is
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    authority = _certificate(_AUTHORITY_NAME, AUTHORITY.public_key(), is_authority=True)
    context.load_verify_locations(cadata=authority.public_bytes(serialization.Encoding.DER))
    context.load_cert_chain(path)
    context.set_alpn_protocols([ALPN])
    if protocol == ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0
    return context


@contextmanager
def _file_of(secret: bytes) -> Iterator[str]:
    """Yield a path at which `ssl` reads a secret: it takes keys from files only.

    In memory where the system has such files; else private to this user and gone at once.
    """
    if hasattr(os, "memfd_create"):
        handle = os.memfd_create("identity", os.MFD_CLOEXEC)
        path = f"/proc/self/fd/{handle}"
        if not os.path.exists(path):  # noqa: PTH110 - no proc file system in this container
            os.close(handle)
            handle, path = tempfile.mkstemp()
    else:
        handle, path = tempfile.mkstemp()
    try:
        os.write(handle, secret)
        yield path
    finally:
        os.close(handle)
        if not path.startswith("/proc/"):
            os.unlink(path)  # noqa: PTH108 - a path that is a text
