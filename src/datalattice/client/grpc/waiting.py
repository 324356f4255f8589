"""Waiting: the client for programs with an event loop."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final, Self, TypeVar

import grpc
from grpc import aio

from datalattice.actions import ActionRequest
from datalattice.client.calling import check_answer
from datalattice.client.control import CALL_TIMEOUT_S
from datalattice.client.grpc.channels import Token, error_from, route_to
from datalattice.client.methods import AsyncStoreMethods
from datalattice.protobuf import Message

R = TypeVar("R", bound=Message)


class AsyncGrpcClient:
    """As `GrpcClient`, for one event loop."""

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
        self._channel: Final = self._route.channel(aio)

    async def call(self, request: ActionRequest[R]) -> R:
        """Have an action done; as `GrpcClient.call`."""
        check_answer(request, stream=False)
        action = request.action
        method = self._channel.unary_unary(f"/{action.method}")
        try:
            data: bytes = await method(
                request.encode(), timeout=self._timeout_s, metadata=self._route.metadata()
            )
        except grpc.RpcError as error:
            raise error_from(error) from error
        result: R = action.result.decode(data)  # type: ignore[assignment]
        return result

    def stream(self, request: ActionRequest[R]) -> aclosing[AsyncGenerator[R, None]]:
        """Begin a stream: `async with client.stream(request) as items: async for item in items`.

        It ends with the block; errors are raised by the iteration.
        """
        check_answer(request, stream=True)
        return aclosing(self._items(request))

    async def _items(self, request: ActionRequest[R]) -> AsyncGenerator[R, None]:
        action = request.action
        method = self._channel.unary_stream(f"/{action.method}")
        call = method(request.encode(), metadata=self._route.metadata())
        try:
            async for data in call:
                yield action.result.decode(data)  # type: ignore[misc]
        except grpc.RpcError as error:
            raise error_from(error) from error
        finally:
            call.cancel()

    async def store(self, id: bytes | str) -> AsyncStoreMethods:
        """Return a Weaver store; as `GrpcClient.store`."""
        return await AsyncStoreMethods.open(self, id)

    async def close(self) -> None:
        """End all calls and streams of this client."""
        await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()
