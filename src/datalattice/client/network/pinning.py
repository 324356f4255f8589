"""Pinning: a client that knows the DID of a node takes no other node for it.

A door's certificate is made for TLS alone: its key is not that of the node, because TLS libraries
refuse Ed25519. So the node signs a statement that the key in the certificate is its own, and until
when. The statements are public; a client reads them from the door itself, and compares them with
the certificate that the handshake proved.

    datalattice door certificate, version 1
    did:key:z6Mk...                             the DID of the node
    5f1c...                                     SHA-256 of SubjectPublicKeyInfo in DER, hex
    1767225600000                               the last millisecond of it, Unix time

Source: docs/rest.md "TLS".
"""

from __future__ import annotations

import hashlib
import http.client
import json
import socket
import ssl
from collections.abc import Iterable
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from datalattice.actions import DoorStatement, DoorStatements, from_document
from datalattice.clock import Clock, SystemClock
from datalattice.crypto import KeyPair, verify_strict
from datalattice.errors import BadSignature, DataLatticeError, PeerUnavailable, UsageError
from datalattice.lattice import did_of, public_key_of

WELL_KNOWN: Final = "/.well-known/lattice-door"
"""Where REST has the statements."""

STATEMENTS_BYTES_MAX: Final = 16_384
"""Longest document of statements."""

STATEMENTS_MAX: Final = 16
"""Most statements that a client looks at: each costs a signature."""

# Keeps it apart from all else that the node's key signs.
_DOMAIN: Final = "datalattice door certificate, version 1"


class ShownCertificate(NamedTuple):
    """The certificate of a door, as PEM, and the names of hosts in it."""

    pem: bytes
    names: tuple[str, ...]


def statement_text(did: str, spki_sha256: bytes, not_after_ms: int) -> bytes:
    """Return the bytes that a node signs about the key of a certificate."""
    return f"{_DOMAIN}\n{did}\n{spki_sha256.hex()}\n{not_after_ms}\n".encode()


def state_door(identity: KeyPair, certificate: x509.Certificate) -> DoorStatement:
    """Return the statement of a node that the key in a certificate is its own."""
    did, spki = did_of(identity.public_key), spki_sha256(certificate)
    not_after_ms = int(certificate.not_valid_after_utc.timestamp() * 1_000)
    return DoorStatement(
        did=did,
        spki_sha256=spki,
        not_after_ms=not_after_ms,
        signature=identity.sign(statement_text(did, spki, not_after_ms)),
    )


def spki_sha256(certificate: x509.Certificate) -> bytes:
    """Return the SHA-256 of a certificate's SubjectPublicKeyInfo."""
    key = certificate.public_key()
    return hashlib.sha256(
        key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    ).digest()


def split_door(text: str) -> tuple[str | None, str]:
    """Return (DID, the rest) of `did:key:...@host:port`; the DID is None where there is none.

    Raises: UsageError: the DID is not a `did:key`.
    """
    did, at, rest = text.rpartition("@")
    if not at or not did.startswith("did:"):
        return None, text
    return did_with_key(did), rest


def did_with_key(did: str) -> str:
    """Return a DID that contains its key. Raises: UsageError: another one."""
    if public_key_of(did) is None:
        raise UsageError(f"a door is pinned by a did:key of Ed25519, got {did!r:.100}")
    return did


def pin_of(did: str | None, named: str | None, clock: Clock | None) -> DoorPin | None:
    """Return the pin of the DID that is given, or named in an address; None without one.

    Raises: UsageError: they differ, or have no key.
    """
    if did is not None and named not in (None, did):
        raise UsageError(f"the address names {named}, and did is {did!r:.100}")
    found = did or named
    return None if found is None else DoorPin(found, clock)


class DoorPin:
    """What a client takes for the node of a DID. Raises: UsageError: the DID has no key in it."""

    def __init__(self, did: str, clock: Clock | None = None) -> None:
        self.did: Final = did_with_key(did)
        self._key: Final = public_key_of(did) or b""
        self._clock: Final = clock or SystemClock()
        self._known: dict[bytes, int] = {}

    def knows(self, shown: bytes) -> bool:
        """Return whether a certificate, as DER, was proved before and has not ended."""
        # By the certificate as it came: the comparison of bytes is cheaper than a signature, at
        # each connection.
        return self._known.get(shown, -1) >= self._clock.now_ms()

    def check(self, shown: bytes, statements: Iterable[DoorStatement], where: str) -> None:
        """Check the certificate, as DER, and the statements that a door shows.

        Raises: BadSignature: none of them says that it is the node's; the text says why.
        """
        spki, reason = spki_sha256(_parsed(shown)), "it states nothing of its certificate"
        # The door chooses what it shows, so the cost of looking is bounded here.
        for one in list(statements)[:STATEMENTS_MAX]:
            if one.spki_sha256 != spki:  # of another door, or replayed beside another key
                continue
            text = statement_text(one.did, one.spki_sha256, one.not_after_ms)
            if one.did != self.did:
                reason = f"it says that it is {one.did!r:.100}"
            elif not verify_strict(self._key, one.signature, text):
                reason = "its statement is not signed by that node"
            # A statement ends with its certificate: a key that was stolen later on proves nothing
            # by an old one.
            elif one.not_after_ms < self._clock.now_ms():
                reason = "its statement has ended; is the clock of this machine right?"
            else:
                self._known = {shown: one.not_after_ms}  # the newest alone
                return
        raise BadSignature(f"{where} does not prove to be {self.did}: {reason}")


def read_certificate(shown: bytes) -> ShownCertificate:
    """Return a certificate from its DER. Raises: BadSignature: it cannot be read."""
    certificate = _parsed(shown)
    return ShownCertificate(certificate.public_bytes(Encoding.PEM), _names(certificate))


def shown_certificate(host: str, port: int, timeout_s: float) -> bytes:
    """Return the certificate that a door shows, as DER; nothing is known of it yet.

    Raises: PeerUnavailable: no door with TLS answers there.
    """
    try:
        with (
            socket.create_connection((host, port), timeout_s) as stream,
            unverified(("h2",)).wrap_socket(stream, server_hostname=host) as tls,
        ):
            return tls.getpeercert(binary_form=True) or b""
    except (OSError, ValueError) as error:
        raise PeerUnavailable(f"{host}:{port}: {tls_reason(error)}") from error


def read_statements(host: str, port: int, timeout_s: float) -> tuple[DoorStatement, ...]:
    """Return the statements that a door serves over HTTP; each is signed, so any way will do.

    Raises: PeerUnavailable: no door with TLS answers there. BadSignature: it has no statements.
    """
    connection = http.client.HTTPSConnection(host, port, timeout=timeout_s, context=unverified())
    try:
        connection.request("GET", WELL_KNOWN)
        answer = connection.getresponse()
        # One byte more than is accepted tells a longer document from one of full length.
        body = answer.read(STATEMENTS_BYTES_MAX + 1)
    except (OSError, http.client.HTTPException) as error:
        raise PeerUnavailable(f"{host}:{port}: {tls_reason(error)}") from error
    finally:
        connection.close()
    try:
        if answer.status != 200 or len(body) > STATEMENTS_BYTES_MAX:
            raise UsageError(f"status {answer.status}, {len(body)} bytes")
        return from_document(DoorStatements, json.loads(body)).doors
    except (DataLatticeError, ValueError, RecursionError) as error:
        raise BadSignature(f"{host}:{port} has no statements at {WELL_KNOWN}: {error}") from error


def proved_door(pin: DoorPin, host: str, port: int, timeout_s: float) -> bytes:
    """Return the certificate, as DER, of a door of HTTP that proved to be the pinned node.

    Raises: PeerUnavailable: no door with TLS answers there. BadSignature: it is another node's.
    """
    shown = shown_certificate(host, port, timeout_s)
    pin.check(shown, read_statements(host, port, timeout_s), f"{host}:{port}")
    return shown


def trusting(shown: bytes) -> ssl.SSLContext:
    """Return a context for a client that takes this certificate alone, whatever names it has."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    # It signed itself, so it is its own anchor.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(cadata=shown)
    return context


def unverified(protocols: tuple[str, ...] = ()) -> ssl.SSLContext:
    """Return a context for a client that compares the certificate itself."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    # The node's own certificate has no authority: `DoorPin` decides, before anything else is sent.
    context.verify_mode = ssl.CERT_NONE
    if protocols:
        context.set_alpn_protocols(protocols)
    return context


def tls_reason(error: Exception) -> str:
    """Return why a door cannot be reached, naming a mix-up of TLS and plain connections."""
    if isinstance(error, ssl.SSLError) and error.reason == "WRONG_VERSION_NUMBER":
        return "it does not speak TLS: connect without it (http://)"
    return str(error) or type(error).__name__


def _parsed(shown: bytes) -> x509.Certificate:
    """Return a certificate. Raises: BadSignature: the bytes are none that can be read."""
    try:
        certificate = x509.load_der_x509_certificate(shown)
        certificate.public_key()
    except (ValueError, UnsupportedAlgorithm, x509.InvalidVersion) as error:
        raise BadSignature(f"the door's certificate cannot be read: {error}") from error
    return certificate


def _names(certificate: x509.Certificate) -> tuple[str, ...]:
    """Return the names of hosts in a certificate."""
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return ()
    addresses = [str(one) for one in found.get_values_for_type(x509.IPAddress)]
    return (*found.get_values_for_type(x509.DNSName), *addresses)
