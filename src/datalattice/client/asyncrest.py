"""Async REST: the REST client for programs with an event loop. It needs the extra `doors`.

async with AsyncRestClient("http://127.0.0.1:18080") as client:
    await client.call(OfferRecords(topic="log", values=("hello",)))
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from contextlib import aclosing
from itertools import chain
from typing import IO, Any, Final, TypeVar

try:
    import httpx
except ImportError as missing:
    raise ImportError(
        f"AsyncRestClient is not usable ({missing}): pip install 'datalattice[doors]'",
        name=missing.name,
    ) from missing

from datalattice.actions import CHUNK_BYTES_MAX, ActionRequest
from datalattice.client.asyncremote import AsyncRemoteClient
from datalattice.client.calling import Token, body_pieces, check_answer_kind, check_upload
from datalattice.client.control import CALL_TIMEOUT_S
from datalattice.client.credentials import delegation_headers
from datalattice.client.network import proved_door, trusting_context
from datalattice.client.rest import (
    INFO_HEADER,
    NO_HEADERS,
    PLAIN_HINT,
    SILENCE_S,
    DoorLocation,
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
    ConnectionLost,
    RetryPolicy,
    unreached_error,
)
from datalattice.clock import Clock
from datalattice.crypto import Entropy
from datalattice.errors import DataLatticeError, PeerUnavailable, Timeout
from datalattice.protobuf import Message

R = TypeVar("R", bound=Message)

HTTPS_PORT: Final = 443


class AsyncRestClient(AsyncRemoteClient):
    """As `RestClient`, for one event loop; calls may run concurrently."""

    def __init__(
        self,
        url: str,
        *,
        token: Token | None = None,
        delegations: Sequence[str] = (),
        timeout_s: float = CALL_TIMEOUT_S,
        tls: ssl.SSLContext | None = None,
        did: str | None = None,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
        retry: RetryPolicy = RETRY_POLICY,
        resume_s: float = RESUME_S,
    ) -> None:
        super().__init__(timeout_s, entropy, retry, resume_s)
        self._token: Final = token
        self._shown: Final = delegation_headers(delegations)
        self._location: Final = DoorLocation.parse(url, tls, did, clock)
        self._certificate = b""
        self._opening: Final = asyncio.Lock()
        self._http = None if self._location.pin else self._made(True if tls is None else tls)

    def _made(self, verify: ssl.SSLContext | bool) -> httpx.AsyncClient:
        transport = httpx.AsyncHTTPTransport(verify=verify, uds=self._location.path or None)
        # Proxies of the environment are ignored: the caller gave the service's own address.
        return httpx.AsyncClient(transport=transport, timeout=self._timeout_s, trust_env=False)

    async def _open(self) -> httpx.AsyncClient:
        """Return the connections, once the door has proved its identity. Raises: as `call`."""
        pin, location = self._location.pin, self._location
        async with self._opening:
            if self._http is None or not (pin is None or pin.knows(self._certificate)):
                assert pin is not None
                # The door proves its identity before a request, with the caller's token, is sent.
                self._certificate = await asyncio.to_thread(
                    proved_door, pin, location.host, location.port or HTTPS_PORT, self._timeout_s
                )
                await self.close()
                self._http = self._made(trusting_context(self._certificate))
            return self._http

    async def upload(self, request: ActionRequest[R], body: Iterable[bytes] | IO[bytes]) -> R:
        """Perform an action with a long body; as `RestClient.upload`."""
        check_upload(request)

        async def pieces() -> AsyncIterator[bytes]:
            for piece in chain([request.data], body_pieces(body)):  # type: ignore[attr-defined]
                yield piece

        answer = await self._send(request, is_stream=False, body=pieces())
        return read_result(request, answer.headers.get, answer.content)

    async def _call(self, request: ActionRequest[R], request_id: str | None = None) -> R:
        headers = {} if request_id is None else {IDEMPOTENCY_KEY: request_id}
        answer = await self._send(request, headers, is_stream=False)
        return read_result(request, answer.headers.get, answer.content)

    def stream(self, request: ActionRequest[R]) -> aclosing[AsyncGenerator[R, None]]:
        """Begin a stream: `async with client.stream(request) as items: async for item in items`.

        It ends with the block. It resumes and raises as `RestClient.stream`.
        """
        check_answer_kind(request, stream=True)
        return aclosing(self._items(request))

    async def _items(self, request: ActionRequest[R]) -> AsyncGenerator[R, None]:
        going = Resumption(request, self._resume_s, renews=callable(self._token))
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
        """Yield the results that one connection delivers."""
        answer = await self._send(going.request, is_stream=True)
        events = EventReader[Any](going)
        try:
            info = answer.headers.get(INFO_HEADER)  # only the bytes of a file have this header
            if info is not None:
                pieces = PieceReader(going, info)
                async for data in answer.aiter_bytes(CHUNK_BYTES_MAX):
                    yield pieces.read(data)
                pieces.check_over()
                return
            async for line in answer.aiter_lines():
                item = events.read(line)
                if item is not None:
                    yield item
        except httpx.HTTPError as error:
            raise PeerUnavailable(f"the service closed an unfinished answer: {error}") from error
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
        """Send a request; return the answer, read unless it is a stream. Raises: as `call`."""
        verb, target, own, headers = written_request(request, self._token, {**self._shown, **more})
        http = await self._open()
        made = http.build_request(
            verb,
            f"{self._location.url}{target}",
            content=own if body is None else body,
            headers=headers,
            timeout=httpx.Timeout(
                self._timeout_s, read=SILENCE_S if is_stream else self._timeout_s
            ),
        )
        try:
            answer = await http.send(made, stream=is_stream)
            if answer.status_code >= 400:
                raise problem_error(answer.status_code, await answer.aread())
        except httpx.TimeoutException as error:
            raise Timeout(f"no answer to {request.action.name} in {self._timeout_s} s") from error
        # Nothing was sent, so the action did not happen.
        except httpx.ConnectError as error:
            if self._certificate:  # the door may have a new one: prove it again
                self._certificate = b""
                return await self._send(request, more, is_stream=is_stream, body=body)
            raise unreached_error(f"the service cannot be reached: {error}") from error
        except httpx.HTTPError as error:
            hint = "" if self._location.is_tls or self._location.path else PLAIN_HINT
            raise ConnectionLost(f"the service went away: {error}{hint}") from error
        return answer

    async def close(self) -> None:
        """End all calls and streams of this client."""
        if self._http is not None:
            await self._http.aclose()
