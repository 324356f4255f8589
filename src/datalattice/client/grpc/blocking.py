"""Blocking: the client for programs without an event loop. Any thread may use it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Any, Final, TypeVar

import grpc

from datalattice.actions import ActionKind, ActionRequest
from datalattice.client.calling import Token, check_answer_kind, check_upload, upload_messages
from datalattice.client.control import CALL_TIMEOUT_S
from datalattice.client.grpc.channels import (
    CALLS_MAX,
    DoorAddress,
    token_in,
)
from datalattice.client.remote import RemoteClient
from datalattice.client.results import ResultStream
from datalattice.client.resumption import RESUME_S, Resumption
from datalattice.client.retrying import RETRY_POLICY, RetryPolicy
from datalattice.clock import Clock
from datalattice.crypto import Entropy
from datalattice.errors import DataLatticeError, PeerUnavailable
from datalattice.protobuf import Message

R = TypeVar("R", bound=Message)


class GrpcStream(ResultStream[R]):
    """The results of a stream; iteration waits for each. Close it, or use it in `with`.

    After a lost connection iteration resumes behind the last result. It raises the service's error
    as the same class.
    """

    def __init__(
        self,
        begin: Callable[[ActionRequest[R]], Any],
        error: Callable[[grpc.RpcError], DataLatticeError],
        going: Resumption[Any],
    ) -> None:
        self._begin: Final = begin
        self._error: Final = error
        self._going: Final = going
        self._closed: Final = threading.Event()
        self._has_begun = False
        self._call = begin(going.request)

    def __iter__(self) -> Iterator[R]:
        return self

    def __next__(self) -> R:
        while True:
            try:
                if not self._has_begun:
                    self._going.reached(token_in(self._call.initial_metadata()))
                    self._has_begun = True
                data: bytes = next(self._call)
            except grpc.RpcError as error:
                if self._closed.is_set():  # closed by another thread
                    raise StopIteration from None
                if self._closed.wait(self._going.pause_s(self._error(error))):
                    raise StopIteration from None
                self._call, self._has_begun = self._begin(self._going.request), False
                if self._closed.is_set():  # `close` has cancelled the call before this one
                    self._call.cancel()
                continue
            result: R = self._going.request.action.result.decode(data)
            self._going.reached(getattr(result, "resume", ""))
            return result

    def close(self) -> None:
        """End the stream, here and in the service; a thread that waits for a result returns."""
        self._closed.set()
        self._call.cancel()


class GrpcClient(RemoteClient):
    """Calls the actions of a service through its gRPC door.

    target:      the file of a socket, `host:port`, or `did:key:...@host:port`.
    token:       a bearer token, or a function that returns one.
    delegations: owners' permissions for that caller, as `make_delegation` returns them.
    certificate: the door's certificate or its issuer's, as PEM; None without TLS.
    did:         the DID that the node must prove over TLS, whoever signed its certificate;
                 BadSignature if it does not, before a request is sent.
    timeout_s:   longest wait for the answer to a call.
    entropy:     makes the ids of requests. retry: how often a request with an id is sent again.
    resume_s:    how long a stream tries to resume after a lost connection; 0: not at all.
    """

    def __init__(
        self,
        target: str | os.PathLike[str],
        *,
        token: Token | None = None,
        delegations: Sequence[str] = (),
        certificate: bytes | None = None,
        did: str | None = None,
        timeout_s: float = CALL_TIMEOUT_S,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
        retry: RetryPolicy = RETRY_POLICY,
        resume_s: float = RESUME_S,
    ) -> None:
        super().__init__(timeout_s, entropy, retry, resume_s)
        self._route: Final = DoorAddress(target, token, certificate, did, clock, delegations)
        self._calls: Final = threading.Semaphore(CALLS_MAX)
        self._lock: Final = threading.Lock()
        self._shown = b""
        self._channel: Any = None if self._route.pin else self._route.channel(grpc)

    def _open(self) -> Any:
        """Return the channel, once the door has proved its identity. Raises: as `call`."""
        pin = self._route.pin
        if pin is None:
            return self._channel
        with self._lock:
            if self._channel is None or not pin.knows(self._shown):
                shown = self._route.proved(self._timeout_s)
                self._channel, self._shown = self._route.channel(grpc, shown), shown
            return self._channel

    def _error(self, error: grpc.RpcError) -> DataLatticeError:
        found = self._route.error(error)
        if self._route.pin is not None and isinstance(found, PeerUnavailable):
            self._channel = None  # the door may have a new certificate: prove it again
        return found

    def upload(self, request: ActionRequest[R], body: Iterable[bytes] | IO[bytes]) -> R:
        """Perform an action with a long body; as `Client.upload`."""
        check_upload(request)
        method = self._open().stream_unary(f"/{request.action.method}")
        try:
            data: bytes = method(upload_messages(request, body), metadata=self._route.metadata())
        except grpc.RpcError as error:
            raise self._error(error) from error
        result: R = request.action.result.decode(data)  # type: ignore[assignment]
        return result

    def _call(self, request: ActionRequest[R], request_id: str | None = None) -> R:
        action = request.action
        if action.kind is ActionKind.UPLOAD:
            return self.upload(request, ())
        method = self._open().unary_unary(f"/{action.method}")
        metadata = self._route.metadata(request_id)
        try:
            # A door refuses calls beyond its limit for a connection, so they wait here.
            with self._calls:
                data: bytes = method(request.encode(), timeout=self._timeout_s, metadata=metadata)
        except grpc.RpcError as error:
            raise self._error(error) from error
        result: R = action.result.decode(data)  # type: ignore[assignment]
        return result

    def stream(self, request: ActionRequest[R]) -> GrpcStream[R]:
        """Begin a stream; iterating it raises its errors."""
        check_answer_kind(request, stream=True)
        going = Resumption(request, self._resume_s, renews=self._route.renews_token)

        def begin(asked: ActionRequest[R]) -> Any:
            # For each attempt anew: after a lost connection the door proves its identity again.
            method = self._open().unary_stream(f"/{asked.action.method}")
            return method(asked.encode(), metadata=self._route.metadata())

        return GrpcStream(begin, self._error, going)

    def close(self) -> None:
        """End all calls and streams of this client."""
        if self._channel is not None:
            self._channel.close()
