"""TLS: blocking streams to nodes, and the handshake that proves the Ed25519 keys of both ends.

Mutual TLS 1.3, no earlier version, no resumption, no early data. A node is its key, so no authority
is trusted. But `ssl` requests a client's certificate only if there is an authority. So all nodes
share one, whose private key is public, below: it vouches for nothing, and makes both sides present
a certificate. TLS proves that each side holds the private key of its certificate, which is the
node's key.

Certificates never expire, so nothing depends on clocks or renewal. The callers decide what a key
may do and which key they expect.

Source: docs/design/identity.md.
"""

from __future__ import annotations

import os
import socket
import ssl
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from typing import Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.x509.oid import NameOID

from datalattice.client.addresses import IROH, PLAIN_SCHEME, parse_address
from datalattice.crypto import KeyPair
from datalattice.wire import MUX_PROTOCOL, PLAIN_PROTOCOL

PLAIN_ALPN: Final = (PLAIN_PROTOCOL,)
"""Protocols of a client program: one stream of frames."""

NODE_ALPN: Final = (MUX_PROTOCOL, PLAIN_PROTOCOL)
"""Protocols of a node, the preferred one first."""

AUTHORITY: Final = Ed25519PrivateKey.from_private_bytes(b"datalattice: a key everybody has")
"""The private key of the authority. It is public on purpose and proves nothing."""

_BEGIN: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FOR_EVER: Final = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)  # RFC 5280: no end


class HandshakeFailed(ConnectionError):
    """The other end did not prove to be a node, or proved another key than the expected one."""


class TlsIdentity:
    """One side of every handshake: its key, a certificate for it, and its protocols."""

    def __init__(self, key_pair: KeyPair, protocols: Sequence[str] = PLAIN_ALPN) -> None:
        self.public_key: Final = key_pair.public_key
        self.protocols: Final = tuple(protocols)
        private = Ed25519PrivateKey.from_private_bytes(key_pair.seed)
        leaf = _certificate(self.public_key.hex(), private.public_key(), is_authority=False)
        pem = private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ) + leaf.public_bytes(serialization.Encoding.PEM)
        with _file_of(pem) as path:
            self.client: Final = _context(ssl.PROTOCOL_TLS_CLIENT, path, self.protocols)
            self.server: Final = _context(ssl.PROTOCOL_TLS_SERVER, path, self.protocols)


def proven_key(
    tls: ssl.SSLObject | ssl.SSLSocket,
    remote: str,
    expected: bytes | None = None,
    protocols: Collection[str] = PLAIN_ALPN,
) -> bytes:
    """Return the public key that the other end of a finished handshake proved.

    protocols: what this side offered; the handshake must have agreed on one of them.
    Raises: HandshakeFailed: the protocol, the kind of certificate or the key is not as expected.
    """
    # TLS finishes a handshake also without a common protocol.
    if tls.selected_alpn_protocol() not in protocols:
        raise HandshakeFailed(f"{remote} does not speak {' or '.join(protocols)}")
    shown = tls.getpeercert(binary_form=True)
    if shown is None:
        raise HandshakeFailed(f"{remote} showed no certificate")
    try:
        certificate = x509.load_der_x509_certificate(shown)
        key, issuer = certificate.public_key(), certificate.issuer
    except (ValueError, UnsupportedAlgorithm, x509.InvalidVersion) as error:
        raise HandshakeFailed(f"the certificate of {remote} cannot be read: {error}") from error
    if not isinstance(key, Ed25519PublicKey):
        raise HandshakeFailed(f"{remote} has a certificate with another key than Ed25519")
    # The authority signs node certificates directly: one in between could vouch for another key.
    if issuer != _name(_AUTHORITY_NAME):
        raise HandshakeFailed(
            f"{remote} has a certificate that the common authority did not sign directly"
        )
    found = key.public_bytes_raw()
    # The authority's private key is public, so it identifies no node.
    if found == AUTHORITY.public_key().public_bytes_raw():
        raise HandshakeFailed(f"{remote} shows the public default key")
    if expected is not None and found != expected:
        raise HandshakeFailed(f"{remote} proved the key {found.hex()}, not {expected.hex()}")
    return found


def explain(error: ssl.SSLError, remote: str) -> str:
    """Return a sentence that says why a handshake failed."""
    why = (error.reason or "the stream ended").lower().replace("_", " ")
    return f"no TLS handshake with {remote}: {why}"


# "If the other end vanishes without closing, the connection ends after two minutes at most"
# (docs/node.md "Peers").
_KEEP_ALIVE: Final = (
    ("TCP_KEEPIDLE", 30),  # seconds of silence before the first probe
    ("TCP_KEEPINTVL", 10),
    ("TCP_KEEPCNT", 3),
    ("TCP_USER_TIMEOUT", 120_000),  # milliseconds that sent bytes may stay unacknowledged
)


def tune(raw: socket.socket) -> None:
    """Set a TCP socket to send without delay and to detect a vanished peer."""
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEP_ALIVE:
        option = getattr(socket, name, None)  # some systems lack some of these options
        if option is not None:
            raw.setsockopt(socket.IPPROTO_TCP, option, value)


def open_stream(address: str, timeout_s: float, key_pair: KeyPair | None = None) -> socket.socket:
    """Return a blocking stream to a node, for a caller without an event loop.

    key_pair: the key that this side proves over TLS; default: a new one.
    Raises: UsageError: `address` is malformed. OSError: the node cannot be reached, or proved
            another key than the address names.
    """
    target = parse_address(address)
    if target.scheme == IROH:
        # "Commands that work without a running node do not dial iroh addresses." (docs/node.md
        # "Iroh")
        raise OSError("only a running node dials iroh addresses")
    with ExitStack() as opened:  # closes the socket if a later step fails
        stream = opened.enter_context(
            socket.create_connection((target.host, target.port), timeout_s)
        )
        tune(stream)  # with delay, the first request would wait 40 ms for an acknowledgement
        if target.scheme != PLAIN_SCHEME:
            client = TlsIdentity(key_pair or KeyPair.generate()).client
            try:
                stream = opened.enter_context(client.wrap_socket(stream))
            except ssl.SSLError as error:
                raise HandshakeFailed(explain(error, address)) from error
            proven_key(stream, address, target.public_key)
        opened.pop_all()
        return stream


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


def _context(protocol: int, path: str, offered: Sequence[str]) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    # "Only TLS 1.3 is spoken, without session tickets, resumption or early data: each connection
    # proves the keys anew." (docs/design/identity.md)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # a node is its key, at any address
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    authority = _certificate(_AUTHORITY_NAME, AUTHORITY.public_key(), is_authority=True)
    context.load_verify_locations(cadata=authority.public_bytes(serialization.Encoding.DER))
    context.load_cert_chain(path)
    context.set_alpn_protocols(offered)
    if protocol == ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0  # no resumption: each connection proves both keys anew
    return context


@contextmanager
def _file_of(secret: bytes) -> Iterator[str]:
    """Yield the path of a file with a secret, because `ssl` reads keys from files only."""
    # "in an anonymous file in memory where the system has them (Linux), otherwise in a file that
    # only its user can read and that is removed at once" (docs/design/identity.md)
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
