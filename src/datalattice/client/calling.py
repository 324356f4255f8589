"""Calling: what every client of a service has, whatever way it takes to it.

    def last(client: Client) -> Value:
        return client.call(ReadRecords(topic="log", start=-1)).records[0].value

    with RestClient("data/rest.sock") as client:      # or GrpcClient, or LocalClient
        last(client)

A program that is written for `Client` or `AsyncClient` runs in the process of the node, over REST
and over gRPC. Source: docs/clients.md.
"""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager
from itertools import chain
from typing import IO, TYPE_CHECKING, Any, Protocol, Self, TypeVar, cast

from datalattice.actions import CHUNK_BYTES_MAX, ActionKind, ActionRequest
from datalattice.client.results import ResultStream
from datalattice.errors import UsageError
from datalattice.protobuf import Message

if TYPE_CHECKING:
    from datalattice.client.methods import AsyncStoreMethods, StoreMethods

R = TypeVar("R", bound=Message)

Token = str | Callable[[], str]
"""A bearer token, or what returns one that has not ended, asked for at each call."""


def check_answer(request: ActionRequest[Any], *, stream: bool) -> None:
    """Raise UsageError for an action that answers in the other way: once, or with a stream."""
    action = request.action
    # Here, before anything is sent: each way answers a wrong call with the same words.
    if (action.kind is ActionKind.STREAM) is not stream:
        raise UsageError(
            f"{action.name} answers once: use `call`"
            if stream
            else f"{action.name} answers with a stream: use `stream`"
        )


def check_upload(request: ActionRequest[Any]) -> None:
    """Raise UsageError for an action that takes no body in pieces."""
    if request.action.kind is not ActionKind.UPLOAD:
        raise UsageError(f"{request.action.name} takes no body in pieces: use `call`")


def body_pieces(body: Iterable[bytes] | IO[bytes]) -> Iterator[bytes]:
    """Yield a body in pieces of `CHUNK_BYTES_MAX` bytes at most. body: pieces, or an open file."""
    read = getattr(body, "read", None)
    if read is not None:
        while piece := read(CHUNK_BYTES_MAX):
            yield piece
        return
    for piece in body:
        for at in range(0, len(piece), CHUNK_BYTES_MAX):
            yield piece[at : at + CHUNK_BYTES_MAX]


def upload_messages(
    request: ActionRequest[Any], body: Iterable[bytes] | IO[bytes]
) -> Iterator[bytes]:
    """Yield the messages of an upload: the request, then requests with nothing but `data`."""
    kind: Any = type(request)
    first = request.data  # type: ignore[attr-defined]
    yield dataclasses.replace(cast("Any", request), data=b"").encode()
    for piece in chain(body_pieces([first]), body_pieces(body)):
        yield kind(data=piece).encode()


class Client(Protocol):
    """A way to a service, for programs without an event loop."""

    def call(self, request: ActionRequest[R], /, *, request_id: str | None = None) -> R:
        """Have an action done; return its result, durable if it writes.

        An action of kind ONCE is sent with an id, and again if the connection was lost: it is done
        once. request_id: one that was given to an earlier call, to learn what became of it.
        Raises: the service's error, as the same class. PeerUnavailable: no service answers.
                Timeout: it did not answer; done twice, the action has the effect of once.
                OutcomeUnknown: an action of kind ONCE was sent several times without an answer.
        """

    def upload(self, request: ActionRequest[R], body: Iterable[bytes] | IO[bytes], /) -> R:
        """Have an action done whose body is long; return its result, durable.

        body: pieces, or an open file, sent behind the request's own `data`.
        Raises: as `call`. UsageError: the action takes no body in pieces.
        """

    def stream(self, request: ActionRequest[R], /) -> ResultStream[R]:
        """Begin a stream."""

    def store(self, id: bytes | str, /) -> StoreMethods:
        """Return a Weaver store, whose methods are called by name.

        id: 16 bytes, their hex, or a UUID.
        Raises: as `call`. UsageError: the id is malformed.
        """
        from datalattice.client.methods import StoreMethods

        return StoreMethods(self, id)

    def close(self) -> None:
        """End all calls and streams of this client."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class AsyncClient(Protocol):
    """A way to a service, for one event loop."""

    async def call(self, request: ActionRequest[R], /, *, request_id: str | None = None) -> R:
        """Have an action done; as `Client.call`."""

    async def upload(self, request: ActionRequest[R], body: Iterable[bytes] | IO[bytes], /) -> R:
        """Have an action done whose body is long; as `Client.upload`."""

    def stream(self, request: ActionRequest[R], /) -> AbstractAsyncContextManager[AsyncIterator[R]]:
        """Begin a stream: `async with client.stream(request) as items: async for item in items`."""

    async def store(self, id: bytes | str, /) -> AsyncStoreMethods:
        """Return a Weaver store; as `Client.store`."""
        from datalattice.client.methods import AsyncStoreMethods

        return await AsyncStoreMethods.open(self, id)

    async def close(self) -> None:
        """End all calls and streams of this client."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()
