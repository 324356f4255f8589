"""TLS: encrypted streams whose two ends prove the Ed25519 keys they go by.

Mutual TLS 1.3, no earlier version, no resumption, no early data. There is no authority to trust: a
node is its key. But the checks that `ssl` offers are made for authorities, and without one it does
not even ask a client for a certificate. So all nodes share an authority whose private key stands
below. It vouches for nothing, since everybody has it; it only makes both sides present a
certificate, and TLS itself then proves that each holds the private key of the one it presented.
That key is what a link reports.

Certificates are valid for ever: nothing depends on clocks, and there is nothing to renew. What a
key may do, and whether it is the one expected, is decided above.

Decided in: docs/design/identity.md.
"""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.x509.oid import NameOID

from datalattice.crypto import KeyPair
from datalattice.wire import MUX_PROTOCOL, PLAIN_PROTOCOL

PLAIN_ALPN: Final = (PLAIN_PROTOCOL,)
"""What a client program speaks: one stream of frames."""

NODE_ALPN: Final = (MUX_PROTOCOL, PLAIN_PROTOCOL)
"""What a node speaks, what it likes better first."""

AUTHORITY: Final = Ed25519PrivateKey.from_private_bytes(b"datalattice: a key everybody has")
"""The private key of the authority. It is public on purpose, and proves nothing."""

_BEGIN: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FOR_EVER: Final = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)  # RFC 5280: no end


class HandshakeFailed(ConnectionError):
    """The other end did not prove to be a node, or not the one that was expected."""


class TlsIdentity:
    """One side of every handshake: its key, a certificate for it, and what it speaks."""

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
    """Return the public key that the other end of a finished handshake proved to hold.

    protocols: what this side offered; one of them was agreed on.
    Raises: HandshakeFailed: it is no key of a node, or not the `expected` one.
    """
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


def _context(protocol: int, path: str, offered: Sequence[str]) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # a node is its key, wherever it is
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    authority = _certificate(_AUTHORITY_NAME, AUTHORITY.public_key(), is_authority=True)
    context.load_verify_locations(cadata=authority.public_bytes(serialization.Encoding.DER))
    context.load_cert_chain(path)
    context.set_alpn_protocols(offered)
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
