"""Blocking: the client for programs without an event loop. Any thread may use it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Final, Generic, Self, TypeVar

import grpc

from datalattice.actions import ActionRequest
from datalattice.client.calling import check_answer
from datalattice.client.control import CALL_TIMEOUT_S
from datalattice.client.grpc.channels import Token, error_from, route_to
from datalattice.client.methods import StoreMethods
from datalattice.protobuf import Message

R = TypeVar("R", bound=Message)


class GrpcStream(Generic[R]):
    """The results of a stream, waiting for each. Close it, or use it in `with`.

    Iteration raises the service's error as the same class.
    """

    def __init__(self, call: Any, result: type[R]) -> None:
        self._call: Final = call
        self._result: Final = result

    def __iter__(self) -> Iterator[R]:
        return self

    def __next__(self) -> R:
        try:
            data: bytes = next(self._call)
        except grpc.RpcError as error:
            if self._call.cancelled():  # by `close`: a waiting thread leaves its loop
                raise StopIteration from None
            raise error_from(error) from error
        return self._result.decode(data)

    def close(self) -> None:
        """End it, here and in the service; who waits for it is woken."""
        self._call.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class GrpcClient:
    """Calls the actions of a service through its gRPC door. It retries nothing by itself.

    target:      the file of a socket, or `host:port`.
    token:       a bearer token, or what returns one.
    certificate: the door's own, as PEM, or that of who signed it; None without TLS.
    timeout_s:   the longest that a call waits for its answer.
    """

    def __init__(
        self,
        target: str | os.PathLike[str],
        *,
        token: Token | None = None,
        certificate: bytes | None = None,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> None:
        self._route: Final = route_to(target, token, certificate)
        self._timeout_s: Final = timeout_s
        self._channel: Final = self._route.channel(grpc)

    def call(self, request: ActionRequest[R]) -> R:
        """Have an action done; return its result, durable if it writes.

        Raises: the service's error, as the same class. PeerUnavailable: no service answers.
                Timeout: it did not answer; the action may have happened.
        """
        check_answer(request, stream=False)
        action = request.action
        method = self._channel.unary_unary(f"/{action.method}")
        try:
            data: bytes = method(
                request.encode(), timeout=self._timeout_s, metadata=self._route.metadata()
            )
        except grpc.RpcError as error:
            raise error_from(error) from error
        result: R = action.result.decode(data)  # type: ignore[assignment]
        return result

    def stream(self, request: ActionRequest[R]) -> GrpcStream[R]:
        """Begin a stream; its errors are raised by the iteration."""
        check_answer(request, stream=True)
        action = request.action
        method = self._channel.unary_stream(f"/{action.method}")
        call = method(request.encode(), metadata=self._route.metadata())
        return GrpcStream(call, action.result)  # type: ignore[arg-type]

    def store(self, id: bytes | str) -> StoreMethods:
        """Return a Weaver store, whose methods are called by name.

        id: 16 bytes, their hex, or a UUID.
        Raises: as `call`. UsageError: it is no id.
        """
        return StoreMethods(self, id)

    def close(self) -> None:
        """End all calls and streams of this client."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
