"""Certificates: the certificates of a node's TLS doors, and the node's statements about them.

The folder's own certificate is made at the first use: a new key of P-256, valid for 90 days and
replaced when 30 are left. No authority signs it, so it proves nothing by itself; the node's
statement does (`client.network`). The operator can give files instead.

Source: docs/rest.md "TLS".
"""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from datalattice.actions import DoorStatement
from datalattice.client.network import state_door
from datalattice.clock import Clock
from datalattice.crypto import KeyPair
from datalattice.errors import UsageError
from datalattice.store import RealDisk, replace_file

DOOR_FILE: Final = "door.pem"
"""The file with key and certificate of a folder's doors, readable by its user only."""

VALID: Final = timedelta(days=90)
RENEW_BEFORE: Final = timedelta(days=30)
"""Remaining validity at which a certificate is replaced: clients may hold an older statement."""

DOOR_NAME: Final = "lattice-door"
"""The host name in every certificate that a node makes, besides its addresses."""

_SKEW: Final = timedelta(hours=1)  # a client's clock may be slow
_PEM_BYTES_MAX: Final = 1_000_000


class DoorCertificate:
    """A key with its certificate, for the TLS of doors. One thread at a time may use it.

    files: the operator's certificate and key; None: the folder's own. hosts: names and addresses in
    the folder's own certificate, besides those of this machine.
    Raises: UsageError: the files cannot be used.
    """

    def __init__(
        self,
        folder: Path,
        identity: KeyPair,
        clock: Clock,
        files: tuple[Path, Path] | None = None,
        hosts: tuple[str, ...] = (),
    ) -> None:
        self._path: Final = folder / DOOR_FILE
        self._identity: Final = identity
        self._clock: Final = clock
        self._files: Final = files
        self._hosts: Final = ("localhost", "127.0.0.1", "::1", *hosts)
        self.context: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        """The context of new connections; it always has the newest certificate."""
        self.key = b""
        """The key, as PEM."""
        self.chain = b""
        """The certificate and its issuers', as PEM."""
        self.statements: tuple[DoorStatement, ...] = ()
        """The newest statement and the one before, which an open connection may need."""
        self.refresh()

    def refresh(self) -> None:
        """Load a newer certificate: changed files, or a new own one if the present expires soon.

        Raises: UsageError: the files cannot be used; the present certificate stays in use.
        """
        self.prepare()()

    def prepare(self) -> Callable[[], None]:
        """Read a newer certificate; return a function that puts it in use. Raises: UsageError."""
        key, chain = self._read() if self._files else self._own()
        if (key, chain) == (self.key, self.chain):
            return lambda: None
        certificate = x509.load_pem_x509_certificates(chain)[0]
        # Loaded into a new context first: files that do not match must not break a serving door.
        self._load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))

        def take() -> None:
            self._load(self.context)
            self.key, self.chain = key, chain
            # The former statement stays: a client may have just connected with that certificate.
            self.statements = (state_door(self._identity, certificate), *self.statements[:1])

        return take

    def _load(self, context: ssl.SSLContext) -> None:
        certificate, key = self._files or (self._path, self._path)
        try:
            context.load_cert_chain(certificate, key)
        except (OSError, ssl.SSLError) as error:
            raise UsageError(
                f"{certificate} and {key} are not a certificate and its key: {error}"
            ) from error

    def _read(self) -> tuple[bytes, bytes]:
        """Return (key, chain) of the operator's files."""
        assert self._files is not None
        chain, key = (_read(path) for path in self._files)
        # Refused here: callers would see no more than a failed handshake.
        if _ends(chain, self._files[0]) < self._now():
            raise UsageError(f"the certificate {self._files[0]} has expired; replace it")
        try:
            private = serialization.load_pem_private_key(key, None)
        except (ValueError, TypeError) as error:
            raise UsageError(
                f"{self._files[1]} is not a private key in PEM without a password: {error}"
            ) from error
        if isinstance(private, ed25519.Ed25519PrivateKey):
            raise UsageError(f"{self._files[1]}: clients of gRPC refuse Ed25519; use P-256 or RSA")
        return key, chain

    def _own(self) -> tuple[bytes, bytes]:
        """Return (key, chain) of the folder's own certificate; make a new one if it ends soon."""
        both = b""
        if self._path.exists():
            if self._path.stat().st_mode & 0o077:  # others may have copied the key
                raise UsageError(f"{self._path} can be read by others; delete it for a new one")
            both = _read(self._path)
        if not both or _ends(both, self._path) - RENEW_BEFORE < self._now():
            both = b"".join(self._make())
            replace_file(RealDisk(), str(self._path), [both])
        # As `_make` writes them: the key first.
        key, mark, chain = both.partition(b"-----BEGIN CERTIFICATE")
        return key, mark + chain

    def _make(self) -> tuple[bytes, bytes]:
        key, now = ec.generate_private_key(ec.SECP256R1()), self._now()
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, DOOR_NAME)])
        usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
        names = [x509.DNSName(DOOR_NAME), *dict.fromkeys(map(_name, self._hosts))]
        made = (
            x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
            .not_valid_before(now - _SKEW)
            .not_valid_after(now + VALID)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            # A client that trusts it must not trust what its key would sign.
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(usage, critical=False)
            .sign(key, hashes.SHA256())
        )
        private = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        return private, made.public_bytes(serialization.Encoding.PEM)

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock.now_ms() / 1_000, UTC)


def _name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_PEM_BYTES_MAX)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error


def _ends(chain: bytes, path: Path) -> datetime:
    try:
        return x509.load_pem_x509_certificates(chain)[0].not_valid_after_utc
    except ValueError as error:
        raise UsageError(f"{path} is not a certificate in PEM: {error}") from error
