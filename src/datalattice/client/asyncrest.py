"""Async REST: the REST client for programs with an event loop. It needs the extra `doors`.

async with AsyncRestClient("http://127.0.0.1:18080") as client:
    await client.call(OfferRecords(topic="log", values=("hello",)))
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from itertools import chain
from pathlib import Path
from typing import IO, Any, Final, Self, TypeVar

try:
    import httpx
except ImportError as missing:
    raise ImportError(
        f"REST with an event loop is not usable ({missing}): pip install 'datalattice[doors]'",
        name=missing.name,
    ) from missing

from datalattice.actions import CHUNK_BYTES_MAX, ActionKind, ActionRequest
from datalattice.client.calling import body_pieces, check_answer, check_upload
from datalattice.client.control import CALL_TIMEOUT_S
from datalattice.client.credentials import delegation_headers
from datalattice.client.methods import AsyncStoreMethods
from datalattice.client.rest import (
    INFO_HEADER,
    NO_HEADERS,
    OCTETS,
    SILENCE_S,
    EventReader,
    PieceReader,
    problem_error,
    read_result,
    written_request,
)
from datalattice.client.resumption import RESUME_S, Resumption
from datalattice.client.retrying import (
    IDEMPOTENCY_KEY,
    RETRY_POLICY,
    Attempts,
    ConnectionLost,
    RetryPolicy,
    unreached,
)
from datalattice.crypto import Entropy, SystemEntropy
from datalattice.errors import DataLatticeError, PeerUnavailable, Timeout, UsageError
from datalattice.protobuf import Message

R = TypeVar("R", bound=Message)


class AsyncRestClient:
    """As `RestClient`, for one event loop; calls may go on side by side."""

    def __init__(
        self,
        url: str,
        *,
        token: Callable[[], str] | None = None,
        delegations: Sequence[str] = (),
        timeout_s: float = CALL_TIMEOUT_S,
        tls: ssl.SSLContext | None = None,
        entropy: Entropy | None = None,
        retry: RetryPolicy = RETRY_POLICY,
        resume_s: float = RESUME_S,
    ) -> None:
        self._resume_s: Final = resume_s
        self._token: Final = token
        self._shown: Final = delegation_headers(delegations)
        self._entropy: Final = entropy or SystemEntropy()
        self._retry: Final = retry
        self._timeout_s: Final = timeout_s
        if "://" not in url:
            if not Path(url).is_socket():
                raise PeerUnavailable(f"there is no socket at {url}")
            transport = httpx.AsyncHTTPTransport(uds=url)
            self._base = "http://localhost"
        elif url.startswith(("http://", "https://")):
            transport = httpx.AsyncHTTPTransport(verify=True if tls is None else tls)
            self._base = url.rstrip("/")
        else:
            raise UsageError(f"a service is at http://host:port or https://host:port, got {url!r}")
        # No proxy of the environment: the service is named by its address.
        self._http: Final = httpx.AsyncClient(
            transport=transport, timeout=timeout_s, trust_env=False
        )

    async def call(self, request: ActionRequest[R], *, request_id: str | None = None) -> R:
        """Have the service do an action; as `RestClient.call`."""
        check_answer(request, stream=False)
        action = request.action
        if action.kind is not ActionKind.ONCE:
            return await self._call(request)
        attempts = Attempts(self._retry, self._entropy, action.name, request_id)
        while True:
            try:
                return await self._call(request, {IDEMPOTENCY_KEY: attempts.id})
            except DataLatticeError as error:
                pause_s = attempts.pause_after(error)
            await asyncio.sleep(pause_s)

    async def upload(self, request: ActionRequest[R], body: Iterable[bytes] | IO[bytes]) -> R:
        """Have an action done whose body is long; as `RestClient.upload`."""
        check_upload(request)

        async def pieces() -> AsyncIterator[bytes]:
            for piece in chain([request.data], body_pieces(body)):  # type: ignore[attr-defined]
                yield piece

        answer = await self._send(request, is_stream=False, body=pieces())
        return read_result(request, answer.headers.get, answer.content)

    async def _call(self, request: ActionRequest[R], headers: Mapping[str, str] = NO_HEADERS) -> R:
        answer = await self._send(request, headers, is_stream=False)
        return read_result(request, answer.headers.get, answer.content)

    def stream(self, request: ActionRequest[R]) -> aclosing[AsyncGenerator[R, None]]:
        """Begin a stream: `async with client.stream(request) as items: async for item in items`.

        It ends with the block; it goes on and raises as `RestClient.stream`.
        """
        check_answer(request, stream=True)
        return aclosing(self._items(request))

    async def _items(self, request: ActionRequest[R]) -> AsyncGenerator[R, None]:
        going = Resumption(request, self._resume_s, renews=self._token is not None)
        while True:
            try:
                async with aclosing(self._connected(going)) as items:
                    async for item in items:
                        yield item
            except DataLatticeError as error:
                await asyncio.sleep(going.pause_s(error))
            else:
                return

    async def _connected(self, going: Resumption[Any]) -> AsyncGenerator[Any, None]:
        """Yield the results that come on one connection."""
        answer = await self._send(going.request, is_stream=True)
        events = EventReader[Any](going)
        try:
            if answer.headers.get("content-type", "") == OCTETS:
                pieces = PieceReader(going, answer.headers.get(INFO_HEADER, ""))
                async for data in answer.aiter_bytes(CHUNK_BYTES_MAX):
                    yield pieces.read(data)
                pieces.check_over()
                return
            async for line in answer.aiter_lines():
                item = events.read(line)
                if item is not None:
                    yield item
        except httpx.HTTPError as error:
            raise PeerUnavailable(f"the service went away while it answered: {error}") from error
        finally:
            await answer.aclose()
        events.check_over()

    async def _send(
        self,
        request: ActionRequest[Any],
        more: Mapping[str, str] = NO_HEADERS,
        *,
        is_stream: bool,
        body: AsyncIterator[bytes] | None = None,
    ) -> httpx.Response:
        """Send a request; return the answer, read if it is no stream. Raises: as `call`."""
        verb, target, own, headers = written_request(request, self._token, {**self._shown, **more})
        made = self._http.build_request(
            verb,
            f"{self._base}{target}",
            content=own if body is None else body,
            headers=headers,
            timeout=httpx.Timeout(
                self._timeout_s, read=SILENCE_S if is_stream else self._timeout_s
            ),
        )
        try:
            answer = await self._http.send(made, stream=is_stream)
            if answer.status_code >= 400:
                raise problem_error(answer.status_code, await answer.aread())
        except httpx.TimeoutException as error:
            raise Timeout(f"no answer to {request.action.name} in {self._timeout_s} s") from error
        except httpx.ConnectError as error:
            raise unreached(f"the service cannot be reached: {error}") from error
        except httpx.HTTPError as error:
            raise ConnectionLost(f"the service went away: {error}") from error
        return answer

    async def store(self, id: bytes | str) -> AsyncStoreMethods:
        """Return a Weaver store; as `RestClient.store`."""
        return await AsyncStoreMethods.open(self, id)

    async def close(self) -> None:
        """End all calls and streams of this client."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()
