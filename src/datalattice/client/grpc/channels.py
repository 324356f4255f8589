"""Channels: how a client reaches the gRPC door, who it says it is, and what an error means."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import grpc

from datalattice.client.control import error_of
from datalattice.errors import (
    DataLatticeError,
    LimitExceeded,
    PeerUnavailable,
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
"""Trailing metadata of a failed call: milliseconds after which the same call may succeed."""

AUTHORIZATION: Final = "authorization"

MESSAGE_SIZES: Final = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
)
"""Options of both ends: a message is as long as one between nodes, at most."""

OPTIONS: Final = (
    *MESSAGE_SIZES,
    # "retries nothing by itself": whether a call may be repeated depends on the action.
    ("grpc.enable_retries", 0),
    # Without it, a new client waits as long as an earlier one of this process had to.
    ("grpc.use_local_subchannel_pool", 1),
    # A reader that stops holds the server back after 100 kB, not after some megabytes.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 1 << 16),
)

Token = str | Callable[[], str]
"""A bearer token, or what returns one that has not ended, asked for at each call."""


class DoorAddress(NamedTuple):
    """Where a door is. certificate: of TLS, as PEM; None without TLS."""

    target: str
    certificate: bytes | None
    token: Token | None

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Return what each call shows of the caller."""
        if self.token is None:
            return ()
        token = self.token if isinstance(self.token, str) else self.token()
        return ((AUTHORIZATION, f"Bearer {token}"),)

    def channel(self, kind: Any) -> Any:
        """Return a channel. kind: `grpc` for a blocking one, `grpc.aio` for the event loop."""
        if self.certificate is None:
            return kind.insecure_channel(self.target, options=OPTIONS)
        credentials = grpc.ssl_channel_credentials(self.certificate)
        return kind.secure_channel(self.target, credentials, options=OPTIONS)


def route_to(
    target: str | os.PathLike[str], token: Token | None, certificate: bytes | None
) -> DoorAddress:
    """Return how to reach a door.

    target: the file of a socket, or `host:port`.
    Raises: UsageError: it is neither.
    """
    text = os.fspath(target)
    if isinstance(target, Path) or "/" in text:
        return DoorAddress(f"unix:{Path(text).absolute()}", certificate, token)
    if not text.rpartition(":")[2].isdigit():
        raise UsageError(f"a door is the file of a socket, or host:port, got {text!r:.80}")
    return DoorAddress(f"dns:///{text}", certificate, token)


_BY_STATUS: Final[dict[str, type[DataLatticeError]]] = {
    "CANCELLED": Unavailable,
    "DEADLINE_EXCEEDED": Timeout,
    "INVALID_ARGUMENT": UsageError,
    "PERMISSION_DENIED": Unauthorized,
    "RESOURCE_EXHAUSTED": LimitExceeded,
    "UNAUTHENTICATED": Unauthenticated,
    "UNAVAILABLE": PeerUnavailable,
    "UNIMPLEMENTED": UnsupportedOperation,
}
"""What a status means that no service of ours gave: gRPC itself did, or another server."""


def error_from(error: grpc.RpcError) -> DataLatticeError:
    """Return the error of a service that made a call fail, as the same class."""
    text = error.details() or "no reason was given"
    said = {str(key): value for key, value in error.trailing_metadata() or ()}
    code = said.get(CODE_KEY)
    if code is None:
        status = error.code().name
        return _BY_STATUS.get(status, Unavailable)(f"{status.lower()}: {text}")
    found = error_of(str(code), text)
    retry_ms = str(said.get(RETRY_KEY, ""))
    if isinstance(found, RateLimited) and retry_ms.isascii() and retry_ms.isdigit():
        found.retry_s = int(retry_ms[:9]) / 1_000
    return found
