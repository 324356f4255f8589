"""Local: clients of a service in the same process, with all rights by default.

    with datalattice.open("data") as node, LocalClient(node) as client:
        client.call(OfferRecords(topic="log", values=("hello",)))

A program works the same with one of these clients as with one of REST or gRPC.
Source: docs/clients.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from typing import IO, Final, TypeVar

from datalattice.actions import ActionRequest
from datalattice.client import AsyncClient, Client, Node, body_pieces
from datalattice.protobuf import Message
from datalattice.service.access import Principal
from datalattice.service.registry import Streamed
from datalattice.service.service import OPERATOR, Service

R = TypeVar("R", bound=Message)


class LocalClient(Client):
    """Calls the actions of an open node. Any thread may use it; closing it leaves the node open.

    node: a node, or a service with a policy. caller: the principal whose rights it has.
    """

    def __init__(self, node: Node | Service, caller: Principal = OPERATOR) -> None:
        self._service: Final = node if isinstance(node, Service) else Service(node)
        self._caller: Final = caller

    def call(self, request: ActionRequest[R], *, request_id: str | None = None) -> R:
        """Do an action; return its result, durable if it writes. Raises: what the action raises.

        request_id: for the kind ONCE: a request with the id of an earlier one is not done again.
        """
        return self._service.call(request, self._caller, request_id=request_id)

    def upload(self, request: ActionRequest[R], body: Iterable[bytes] | IO[bytes]) -> R:
        """Do an action with a long body; as `Client.upload`."""
        with self._service.upload(request, self._caller) as upload:
            # The bytes of the field `data` come before those of the body.
            upload.write(request.data)  # type: ignore[attr-defined]
            for piece in body_pieces(body):
                upload.write(piece)
            return upload.finish()

    def stream(self, request: ActionRequest[R]) -> Streamed[R]:
        """Begin a stream. Raises: as `call`."""
        return self._service.stream(request, self._caller)

    def close(self) -> None:
        """Do nothing: the node belongs to the program."""


class AsyncLocalClient(AsyncClient):
    """As `LocalClient`, for one event loop: what waits for the disk runs in a thread."""

    def __init__(self, node: Node | Service, caller: Principal = OPERATOR) -> None:
        self._local: Final = LocalClient(node, caller)

    async def call(self, request: ActionRequest[R], *, request_id: str | None = None) -> R:
        """Do an action; as `LocalClient.call`."""
        return await asyncio.to_thread(self._local.call, request, request_id=request_id)

    async def upload(self, request: ActionRequest[R], body: Iterable[bytes] | IO[bytes]) -> R:
        """Do an action with a long body; as `Client.upload`."""
        return await asyncio.to_thread(self._local.upload, request, body)

    def stream(self, request: ActionRequest[R]) -> aclosing[AsyncGenerator[R, None]]:
        """Begin a stream: `async with client.stream(request) as items: async for item in items`.

        It ends with the block; errors are raised by the iteration.
        """
        return aclosing(self._items(request))

    async def _items(self, request: ActionRequest[R]) -> AsyncGenerator[R, None]:
        loop, rung = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            # A writer calls this, and must not fail because the waiting program ended its loop.
            if not loop.is_closed():
                loop.call_soon_threadsafe(rung.set)

        with await asyncio.to_thread(self._local.stream, request) as stream:
            stream.on_wake(wake)
            while not stream.closed:
                rung.clear()  # before reading: a change after this sets it again
                items = await asyncio.to_thread(stream.take)
                for item in items:
                    yield item
                if not items:
                    await rung.wait()

    async def close(self) -> None:
        """Do nothing: the node belongs to the program."""
