"""Pinning: a client that knows the DID of a node accepts only that node's door.

A door's certificate has another key than the node, because many TLS libraries refuse Ed25519. So
the node signs a statement that the key in the certificate is its own until a given time. The
statements are public: a client reads them from the door, and compares them with the certificate
that the handshake proved. The signed text is

    datalattice door certificate, version 1
    did:key:z6Mk...                             the DID of the node
    5f1c...                                     SHA-256 of SubjectPublicKeyInfo in DER, hex
    1767225600000                               the last valid millisecond, Unix time

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
"""The path of the statements in REST."""

STATEMENTS_BYTES_MAX: Final = 16_384
"""Longest accepted document of statements."""

STATEMENTS_MAX: Final = 16
"""Most statements that a client examines: each may cost the check of a signature."""

# The first line separates statements from everything else that the node's key signs.
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
    """Return (DID, `host:port`) of `did:key:...@host:port`; without a DID, (None, `text`).

    Raises: UsageError: the DID is not a `did:key`.
    """
    did, at, rest = text.rpartition("@")
    if not at or not did.startswith("did:"):
        return None, text
    return did_with_key(did), rest


def did_with_key(did: str) -> str:
    """Return `did` if it contains an Ed25519 key. Raises: UsageError: it does not."""
    if public_key_of(did) is None:
        raise UsageError(f"a door is pinned by a did:key of Ed25519, got {did!r:.100}")
    return did


def pin_of(did: str | None, named: str | None, clock: Clock | None) -> DoorPin | None:
    """Return the pin for `did`, or for the DID `named` in an address; None without either.

    Raises: UsageError: they differ, or the DID contains no key.
    """
    if did is not None and named not in (None, did):
        raise UsageError(f"the address names {named}, and did is {did!r:.100}")
    found = did or named
    return None if found is None else DoorPin(found, clock)


class DoorPin:
    """The check that a door belongs to the node of a DID.

    Raises: UsageError: the DID contains no key.
    """

    def __init__(self, did: str, clock: Clock | None = None) -> None:
        self.did: Final = did_with_key(did)
        self._key: Final = public_key_of(did) or b""
        self._clock: Final = clock or SystemClock()
        self._known: dict[bytes, int] = {}

    def knows(self, shown: bytes) -> bool:
        """Return whether a certificate, as DER, was proved before and is still valid."""
        # Compared byte for byte, so that a new connection costs no signature check.
        return self._known.get(shown, -1) >= self._clock.now_ms()

    def check(self, shown: bytes, statements: Iterable[DoorStatement], where: str) -> None:
        """Check the certificate, as DER, and the statements that a door shows.

        Raises: BadSignature: no statement proves that the certificate is the node's; with a reason.
        """
        # The reason of the last statement about this certificate counts: others say nothing of it.
        spki, reason = spki_sha256(_parsed(shown)), "it has no statement about its certificate"
        # The door chooses the statements, so their number is limited here.
        for one in list(statements)[:STATEMENTS_MAX]:
            if one.spki_sha256 != spki:  # about another certificate, or replayed
                continue
            text = statement_text(one.did, one.spki_sha256, one.not_after_ms)
            if one.did != self.did:
                reason = f"its statement is of {one.did!r:.100}"
            elif not verify_strict(self._key, one.signature, text):
                reason = "its statement is not signed by that node"
            # A statement ends with its certificate, so a stolen key is useless afterwards.
            elif one.not_after_ms < self._clock.now_ms():
                reason = "its statement has ended; is the clock of this machine right?"
            else:
                self._known = {shown: one.not_after_ms}  # only the newest is kept
                return
        raise BadSignature(f"{where} does not prove to be {self.did}: {reason}")


def read_certificate(shown: bytes) -> ShownCertificate:
    """Return a certificate from its DER. Raises: BadSignature: it cannot be read."""
    certificate = _parsed(shown)
    return ShownCertificate(certificate.public_bytes(Encoding.PEM), _names(certificate))


def shown_certificate(host: str, port: int, timeout_s: float) -> bytes:
    """Return the certificate that a door shows, as DER; nothing about it is verified.

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
    """Return the statements that a door serves. They are signed, so the connection is unverified.

    Raises: PeerUnavailable: no door with TLS answers there. BadSignature: it has no statements.
    """
    connection = http.client.HTTPSConnection(host, port, timeout=timeout_s, context=unverified())
    try:
        connection.request("GET", WELL_KNOWN)
        answer = connection.getresponse()
        # One byte more than accepted shows that the document is too long.
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
    """Return the certificate, as DER, of a door of HTTP after it proved to be the pinned node's.

    Raises: PeerUnavailable: no door with TLS answers there. BadSignature: it is another node's.
    """
    shown = shown_certificate(host, port, timeout_s)
    pin.check(shown, read_statements(host, port, timeout_s), f"{host}:{port}")
    return shown


def trusting_context(shown: bytes) -> ssl.SSLContext:
    """Return a context for a client that accepts only this certificate, for any host name."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    # A self-signed certificate is its own trust anchor.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(cadata=shown)
    return context


def unverified(protocols: tuple[str, ...] = ()) -> ssl.SSLContext:
    """Return a context for a client that compares the certificate itself."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    # No authority signed the node's certificate: `DoorPin` checks it before a request is sent.
    context.verify_mode = ssl.CERT_NONE
    if protocols:
        context.set_alpn_protocols(protocols)
    return context


def tls_reason(error: Exception) -> str:
    """Return why a door cannot be reached, with a hint if it is a door without TLS."""
    if isinstance(error, ssl.SSLError) and error.reason == "WRONG_VERSION_NUMBER":
        return "it does not speak TLS: connect without it (http://)"
    return str(error) or type(error).__name__


def _parsed(shown: bytes) -> x509.Certificate:
    """Return a certificate from its DER. Raises: BadSignature: it or its key cannot be read."""
    try:
        certificate = x509.load_der_x509_certificate(shown)
        certificate.public_key()
    except (ValueError, UnsupportedAlgorithm, x509.InvalidVersion) as error:
        raise BadSignature(f"the door's certificate cannot be read: {error}") from error
    return certificate


def _names(certificate: x509.Certificate) -> tuple[str, ...]:
    """Return the host names and addresses in a certificate."""
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return ()
    addresses = [str(one) for one in found.get_values_for_type(x509.IPAddress)]
    return (*found.get_values_for_type(x509.DNSName), *addresses)
