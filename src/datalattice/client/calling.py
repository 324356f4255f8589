"""Calling: the interface of every client of a service.

    def last(client: Client) -> Value:
        return client.call(ReadRecords(topic="log", start=-1)).records[0].value

    with RestClient("data/rest.sock") as client:      # or GrpcClient, or LocalClient
        last(client)

A program written for `Client` or `AsyncClient` runs in the node's process, over REST and over gRPC.
Source: docs/clients.md.
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
"""A bearer token, or a function that returns a valid one, called for each request."""


def check_answer_kind(request: ActionRequest[Any], *, stream: bool) -> None:
    """Raise UsageError unless the action answers as the method expects: once, or with a stream."""
    action = request.action
    # Checked before anything is sent, so that all clients give the same error.
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
    # The request's own bytes follow as pieces, too: they may be more than one message holds.
    yield dataclasses.replace(cast("Any", request), data=b"").encode()
    for piece in chain(body_pieces([first]), body_pieces(body)):
        yield kind(data=piece).encode()


class Client(Protocol):
    """A client of a service, for programs without an event loop."""

    def call(self, request: ActionRequest[R], /, *, request_id: str | None = None) -> R:
        """Perform an action; return its result, durable if it writes.

        An action of kind ONCE is sent with an id, and again if the connection is lost: the service
        performs it once. request_id: the id of an earlier call, to learn its outcome.
        Raises: the service's error, as the same class. PeerUnavailable: no service answers.
                Timeout: no answer came in time; the action may be sent again, because performing it
                twice has the effect of once.
                OutcomeUnknown: an action of kind ONCE was sent several times without an answer.
        """

    def upload(self, request: ActionRequest[R], body: Iterable[bytes] | IO[bytes], /) -> R:
        """Perform an action with a long body; return its result, durable.

        body: pieces, or an open file, sent after the request's own `data`.
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
    """A client of a service, for one event loop."""

    async def call(self, request: ActionRequest[R], /, *, request_id: str | None = None) -> R:
        """Perform an action; as `Client.call`."""

    async def upload(self, request: ActionRequest[R], body: Iterable[bytes] | IO[bytes], /) -> R:
        """Perform an action with a long body; as `Client.upload`."""

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
