"""Channels: the address and credentials of a gRPC client, and the errors of failed calls."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import grpc

from datalattice.actions import GetNodeStatus, NodeInfo
from datalattice.client.calling import Token
from datalattice.client.control import error_of
from datalattice.client.credentials import delegation_headers
from datalattice.client.network import pin_of, read_certificate, shown_certificate, split_door
from datalattice.client.retrying import ConnectionLost, unreached_error
from datalattice.clock import Clock
from datalattice.errors import (
    DataLatticeError,
    LimitExceeded,
    RateLimited,
    Timeout,
    Unauthenticated,
    Unauthorized,
    Unavailable,
    UnsupportedOperation,
    UsageError,
)
from datalattice.limits import MESSAGE_BYTES_MAX

CODE_KEY: Final = "lattice-code"
"""Trailing metadata of a failed call: the code of the error's class."""

RETRY_KEY: Final = "lattice-retry-ms"
"""Trailing metadata of a failed call: the milliseconds after which the same call may succeed."""

REQUEST_ID_KEY: Final = "lattice-request-id"
"""Metadata of a call: the request's id, with which it may be sent again."""

RESUME_KEY: Final = "lattice-resume"
"""Metadata of a stream, at its beginning and its end: the resume token."""

AUTHORIZATION: Final = "authorization"

MESSAGE_SIZES: Final = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
)
"""Options of both ends: the longest message is that between nodes."""

OPTIONS: Final = (
    # A restarted service is found within a second; by default a channel waits up to 2 minutes
    # before it tries again.
    ("grpc.initial_reconnect_backoff_ms", 100),
    # gRPC gives one attempt this long, and a busy service needs more than 100 ms to answer.
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    *MESSAGE_SIZES,
    # Whether a call may be repeated depends on the action, so the client decides it.
    ("grpc.enable_retries", 0),
    # A shared pool would make a new client wait out the pause of an earlier one of this process.
    ("grpc.use_local_subchannel_pool", 1),
    # A reader that stops reading holds the server back after 100 kB, not after some megabytes.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 1 << 16),
)

CALLS_MAX: Final = 64
"""Most concurrent calls of one client; further ones wait. A door accepts 128 on a connection,
streams included, and refuses those beyond."""


class DoorAddress:
    """The address of a door, the caller's credentials, and the node that must answer.

    target:      the file of a socket, `host:port`, or `did:key:...@host:port`.
    certificate: of TLS, as PEM; None without TLS, or with a DID.
    Raises: UsageError: the target has another form, or contradicts the other arguments.
    """

    def __init__(
        self,
        target: str | os.PathLike[str],
        token: Token | None,
        certificate: bytes | None,
        did: str | None = None,
        clock: Clock | None = None,
        delegations: Sequence[str] = (),
    ) -> None:
        text = os.fspath(target)
        named, self._host_port = split_door(text)
        self.pin: Final = pin_of(did, named, clock)
        self._token: Final = token
        self._shown: Final = tuple(delegation_headers(delegations).items())
        self._certificate: Final = certificate
        # `host:port` has no slash, so a slash marks the path of a socket.
        if isinstance(target, Path) or "/" in text:
            self._target = f"unix:{Path(text).absolute()}"
            if self.pin is not None:
                raise UsageError(f"{self.pin.did} is proved over TLS: host:port, got {text!r:.80}")
            return
        port = self._host_port.rpartition(":")[2]
        if not (port.isascii() and port.isdecimal()):
            raise UsageError(f"a door is the file of a socket, or host:port, got {text!r:.80}")
        if self.pin is not None and certificate is not None:
            raise UsageError("give either certificate or did: each verifies the door by itself")
        self._target = f"dns:///{self._host_port}"

    @property
    def renews_token(self) -> bool:
        """Whether a new token is made for each request."""
        return callable(self._token)

    def metadata(self, request_id: str | None = None) -> tuple[tuple[str, str], ...]:
        """Return the metadata of a call: the caller's credentials and the request's id."""
        found = self._shown
        if request_id is not None:
            found = (*found, (REQUEST_ID_KEY, request_id))
        if self._token is None:
            return found
        token = self._token if isinstance(self._token, str) else self._token()
        return ((AUTHORIZATION, f"Bearer {token}"), *found)

    def proved(self, timeout_s: float) -> bytes:
        """Return the certificate of the door, as DER, after it proved to be the pinned node's.

        Raises: PeerUnavailable: no door with TLS answers. BadSignature: it is another node's.
        """
        assert self.pin is not None
        host, _, port = self._host_port.rpartition(":")
        shown = shown_certificate(host.strip("[]"), int(port), timeout_s)
        try:
            with self.channel(grpc, shown) as channel:
                answer = channel.unary_unary(ASK_STATUS)(b"", timeout=timeout_s)
        except grpc.RpcError as error:
            raise self.error(error) from error
        self.pin.check(shown, NodeInfo.decode(answer).doors, self._host_port)
        return shown

    def channel(self, kind: Any, shown: bytes | None = None) -> Any:
        """Return a channel. kind: `grpc` for a blocking one, `grpc.aio` for the event loop.

        shown: the certificate, as DER, that the door must have; None: any trusted one.
        Raises: BadSignature: `shown` cannot be read.
        """
        pem = self._certificate
        options: tuple[tuple[str, object], ...] = OPTIONS
        if shown is not None:
            pem, names = read_certificate(shown)
            # The node's statement proves it, so its host name need not be in the certificate.
            options = (*OPTIONS, *(("grpc.ssl_target_name_override", one) for one in names[:1]))
        if pem is None:
            return kind.insecure_channel(self._target, options=options)
        credentials = grpc.ssl_channel_credentials(pem)
        return kind.secure_channel(self._target, credentials, options=options)

    def error(self, error: grpc.RpcError) -> DataLatticeError:
        """Return the error that a failed call stands for, of the same class as in the service."""
        found = error_from(error)
        is_tcp = not self._target.startswith("unix:")
        is_plain = is_tcp and self._certificate is None and self.pin is None
        if isinstance(found, ConnectionLost) and is_plain:
            text = f"{found}; if it has TLS, give its `did` or `certificate`"
            return ConnectionLost(text) if found.was_sent else unreached_error(text)
        return found


ASK_STATUS: Final = f"/{GetNodeStatus.action.method}"
"""The call that every door answers without a token."""


_BY_STATUS: Final[dict[str, type[DataLatticeError]]] = {
    "CANCELLED": Unavailable,
    "DEADLINE_EXCEEDED": Timeout,
    "INVALID_ARGUMENT": UsageError,
    "PERMISSION_DENIED": Unauthorized,
    "RESOURCE_EXHAUSTED": LimitExceeded,
    "UNAUTHENTICATED": Unauthenticated,
    "UNIMPLEMENTED": UnsupportedOperation,
}
"""Error classes for a status without our code: gRPC itself or another server gave it."""

_LOST: Final = ("UNAVAILABLE", "INTERNAL", "UNKNOWN")
"""Statuses that gRPC itself gives for a connection that ended or was reset."""

_TOO_LONG: Final = re.compile(r"message larger than max \((\d+) vs\. (\d+)\)")
"""gRPC's own text for a message longer than the other end accepts."""

UNREACHED: Final = "failed to connect to all addresses"
"""Beginning of gRPC's own text for a call that was not sent."""


def token_in(metadata: Any) -> str:
    """Return the resume token of a stream, "" if the metadata has none."""
    return next((str(value) for key, value in metadata or () if key == RESUME_KEY), "")


def error_from(error: grpc.RpcError) -> DataLatticeError:
    """Return the error that a failed call stands for, of the same class as in the service."""
    text = error.details() or "no reason was given"
    too_long = _TOO_LONG.search(text)
    if too_long is not None:
        return LimitExceeded(
            f"a message over gRPC has at most {too_long[2]} bytes, this one has {too_long[1]}; "
            f"REST takes up to {MESSAGE_BYTES_MAX}, and `upload` files of up to 4 GiB (PutFile)"
        )
    said = {str(key): value for key, value in error.trailing_metadata() or ()}
    code = said.get(CODE_KEY)
    if code is None:
        status = error.code().name
        if status in _LOST:
            # gRPC gives this text if there was no connection; otherwise the call may have begun.
            is_unsent = text.startswith(UNREACHED)
            return (
                unreached_error(text) if is_unsent else ConnectionLost(f"{status.lower()}: {text}")
            )
        return _BY_STATUS.get(status, Unavailable)(f"{status.lower()}: {text}")
    found = error_of(str(code), text)
    retry_ms = str(said.get(RETRY_KEY, ""))
    if isinstance(found, RateLimited) and retry_ms.isascii() and retry_ms.isdigit():
        found.retry_s = int(retry_ms[:9]) / 1_000
    return found
