"""Channels: how a client reaches the gRPC door, who it says it is, and what an error means."""

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
from datalattice.client.retrying import ConnectionLost, unreached
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
"""Trailing metadata of a failed call: milliseconds after which the same call may succeed."""

REQUEST_ID_KEY: Final = "lattice-request-id"
"""Metadata of a call: the id of the request, which may be sent again with it."""

RESUME_KEY: Final = "lattice-resume"
"""Metadata of a stream, at its beginning and its end: the token with which a reader goes on."""

AUTHORIZATION: Final = "authorization"

MESSAGE_SIZES: Final = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
)
"""Options of both ends: a message is as long as one between nodes, at most."""

OPTIONS: Final = (
    # A service that starts again is found within a second; by default a channel waits up to 2
    # minutes before it tries again.
    ("grpc.initial_reconnect_backoff_ms", 100),
    # Also the longest that one attempt may take: a busy service needs more than 100 ms to answer.
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    *MESSAGE_SIZES,
    # Whether a call may be repeated depends on the action, so the client decides it.
    ("grpc.enable_retries", 0),
    # Without it, a new client waits as long as an earlier one of this process had to.
    ("grpc.use_local_subchannel_pool", 1),
    # A reader that stops holds the server back after 100 kB, not after some megabytes.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 1 << 16),
)

CALLS_MAX: Final = 64
"""Calls of one client that are under way; further ones wait here. A door takes 128 on a connection,
streams included, and would refuse some of those above."""


class DoorAddress:
    """Where a door is, who the caller says it is, and which node must answer.

    target:      the file of a socket, `host:port`, or `did:key:...@host:port`.
    certificate: of TLS, as PEM; None without TLS, or with a DID.
    Raises: UsageError: the target is none of these, or the rest does not go with it.
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
        named, self._place = split_door(text)
        self.pin: Final = pin_of(did, named, clock)
        self._token: Final = token
        self._shown: Final = tuple(delegation_headers(delegations).items())
        self._certificate: Final = certificate
        # A slash makes it a file: no host and port has one.
        if isinstance(target, Path) or "/" in text:
            self._target = f"unix:{Path(text).absolute()}"
            if self.pin is not None:
                raise UsageError(f"{self.pin.did} is proved over TLS: host:port, got {text!r:.80}")
            return
        if not self._place.rpartition(":")[2].isdigit():
            raise UsageError(f"a door is the file of a socket, or host:port, got {text!r:.80}")
        if self.pin is not None and certificate is not None:
            raise UsageError("certificate and did: a certificate is verified in one way")
        self._target = f"dns:///{self._place}"

    @property
    def renews_token(self) -> bool:
        """Whether each request has a token of its own."""
        return callable(self._token)

    def metadata(self, request_id: str | None = None) -> tuple[tuple[str, str], ...]:
        """Return what a call shows of the caller, and the id of its request."""
        found = self._shown
        if request_id is not None:
            found = (*found, (REQUEST_ID_KEY, request_id))
        if self._token is None:
            return found
        token = self._token if isinstance(self._token, str) else self._token()
        return ((AUTHORIZATION, f"Bearer {token}"), *found)

    def proved(self, timeout_s: float) -> bytes:
        """Return the certificate of the door, as DER, once that proved to be the pinned node.

        Raises: PeerUnavailable: no door with TLS answers. BadSignature: it is another node's.
        """
        assert self.pin is not None
        host, _, port = self._place.rpartition(":")
        shown = shown_certificate(host.strip("[]"), int(port), timeout_s)
        try:
            with self.channel(grpc, shown) as channel:
                answer = channel.unary_unary(ASK_STATUS)(b"", timeout=timeout_s)
        except grpc.RpcError as error:
            raise self.error(error) from error
        self.pin.check(shown, NodeInfo.decode(answer).doors, self._place)
        return shown

    def channel(self, kind: Any, shown: bytes | None = None) -> Any:
        """Return a channel. kind: `grpc` for a blocking one, `grpc.aio` for the event loop.

        shown: the certificate, as DER, of the only door that it connects to.
        Raises: BadSignature: that cannot be read.
        """
        pem = self._certificate
        options: tuple[tuple[str, object], ...] = OPTIONS
        if shown is not None:
            pem, names = read_certificate(shown)
            # The node is proved by its statement, wherever it is.
            options = (*OPTIONS, *(("grpc.ssl_target_name_override", one) for one in names[:1]))
        if pem is None:
            return kind.insecure_channel(self._target, options=options)
        credentials = grpc.ssl_channel_credentials(pem)
        return kind.secure_channel(self._target, credentials, options=options)

    def error(self, error: grpc.RpcError) -> DataLatticeError:
        """Return the error of a service that made a call fail, as the same class."""
        found = error_from(error)
        is_tcp = not self._target.startswith("unix:")
        is_plain = is_tcp and self._certificate is None and self.pin is None
        if isinstance(found, ConnectionLost) and is_plain:
            text = f"{found}; if it has TLS, give its `did` or `certificate`"
            return ConnectionLost(text) if found.was_sent else unreached(text)
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
"""What a status means that no service of ours gave: gRPC itself did, or another server."""


_LOST: Final = ("UNAVAILABLE", "INTERNAL", "UNKNOWN")
"""What gRPC itself says of a connection that ended, or was reset."""

_TOO_LONG: Final = re.compile(r"message larger than max \((\d+) vs\. (\d+)\)")
"""What gRPC itself says of a message that is longer than the other end takes."""

UNREACHED: Final = "failed to connect to all addresses"
"""How the text begins that gRPC gives for a call that was not sent."""


def token_in(metadata: Any) -> str:
    """Return the token with which a stream goes on, "" if the metadata has none."""
    return next((str(value) for key, value in metadata or () if key == RESUME_KEY), "")


def error_from(error: grpc.RpcError) -> DataLatticeError:
    """Return the error of a service that made a call fail, as the same class."""
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
            # Said of a call for which there was no connection; of another one it may have begun.
            is_unsent = text.startswith(UNREACHED)
            return unreached(text) if is_unsent else ConnectionLost(f"{status.lower()}: {text}")
        return _BY_STATUS.get(status, Unavailable)(f"{status.lower()}: {text}")
    found = error_of(str(code), text)
    retry_ms = str(said.get(RETRY_KEY, ""))
    if isinstance(found, RateLimited) and retry_ms.isascii() and retry_ms.isdigit():
        found.retry_s = int(retry_ms[:9]) / 1_000
    return found
