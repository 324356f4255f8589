"""Waiting: the client for programs with an event loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from typing import IO, Any, Final, TypeVar

import grpc
from grpc import aio

from datalattice.actions import ActionKind, ActionRequest
from datalattice.client.asyncremote import AsyncRemoteClient
from datalattice.client.calling import Token, check_answer_kind, check_upload, upload_messages
from datalattice.client.control import CALL_TIMEOUT_S
from datalattice.client.grpc.channels import CALLS_MAX, DoorAddress, token_in
from datalattice.client.resumption import RESUME_S, Resumption
from datalattice.client.retrying import RETRY_POLICY, RetryPolicy
from datalattice.clock import Clock
from datalattice.crypto import Entropy
from datalattice.errors import DataLatticeError, PeerUnavailable
from datalattice.protobuf import Message

R = TypeVar("R", bound=Message)


class AsyncGrpcClient(AsyncRemoteClient):
    """As `GrpcClient`, for one event loop."""

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
        self._calls: Final = asyncio.Semaphore(CALLS_MAX)
        self._shown = b""
        self._opening: Final = asyncio.Lock()
        self._channel: Any = None if self._route.pin else self._route.channel(aio)

    async def _open(self) -> Any:
        """Return the channel, once the door has proved its identity. Raises: as `call`."""
        pin = self._route.pin
        if pin is None:
            return self._channel
        async with self._opening:
            if self._channel is None or not pin.knows(self._shown):
                shown = await asyncio.to_thread(self._route.proved, self._timeout_s)
                self._channel, self._shown = self._route.channel(aio, shown), shown
            return self._channel

    def _error(self, error: grpc.RpcError) -> DataLatticeError:
        found = self._route.error(error)
        if self._route.pin is not None and isinstance(found, PeerUnavailable):
            self._channel = None  # the door may have a new certificate: prove it again
        return found

    async def upload(self, request: ActionRequest[R], body: Iterable[bytes] | IO[bytes]) -> R:
        """Perform an action with a long body; as `GrpcClient.upload`."""
        check_upload(request)
        method = (await self._open()).stream_unary(f"/{request.action.method}")
        try:
            data: bytes = await method(
                upload_messages(request, body), metadata=self._route.metadata()
            )
        except grpc.RpcError as error:
            raise self._error(error) from error
        result: R = request.action.result.decode(data)  # type: ignore[assignment]
        return result

    async def _call(self, request: ActionRequest[R], request_id: str | None = None) -> R:
        action = request.action
        if action.kind is ActionKind.UPLOAD:
            return await self.upload(request, ())
        method = (await self._open()).unary_unary(f"/{action.method}")
        metadata = self._route.metadata(request_id)
        try:
            # A door refuses calls beyond its limit for a connection, so they wait here.
            async with self._calls:
                data: bytes = await method(
                    request.encode(), timeout=self._timeout_s, metadata=metadata
                )
        except grpc.RpcError as error:
            raise self._error(error) from error
        result: R = action.result.decode(data)  # type: ignore[assignment]
        return result

    def stream(self, request: ActionRequest[R]) -> aclosing[AsyncGenerator[R, None]]:
        """Begin a stream: `async with client.stream(request) as items: async for item in items`.

        It ends with the block. It resumes and raises as `GrpcClient.stream`.
        """
        check_answer_kind(request, stream=True)
        return aclosing(self._items(request))

    async def _items(self, request: ActionRequest[R]) -> AsyncGenerator[R, None]:
        going = Resumption(request, self._resume_s, renews=self._route.renews_token)
        while True:
            # For each attempt anew: after a lost connection the door proves its identity again.
            method = (await self._open()).unary_stream(f"/{request.action.method}")
            call = method(going.request.encode(), metadata=self._route.metadata())
            try:
                going.reached(token_in(await call.initial_metadata()))
                async for data in call:
                    result: Any = request.action.result.decode(data)
                    # An item counts as read when the reader asks for the next one: an item that it
                    # did not get is sent again.
                    yield result
                    going.reached(getattr(result, "resume", ""))
            except grpc.RpcError as error:
                found = self._error(error)
            else:
                return
            finally:
                # Also if the reader leaves its loop early: ends the stream in the service.
                call.cancel()
            await asyncio.sleep(going.pause_s(found))

    async def close(self) -> None:
        """End all calls and streams of this client."""
        if self._channel is not None:
            await self._channel.close()
