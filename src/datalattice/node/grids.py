"""Grids: fetches the documents of `did:web` venues over HTTPS for a node.

A merge never fetches: it checks signatures by the keys in `KnownKeys`. This module looks up the
DIDs that have no keys there. When keys were found, the wanted peers are asked for their state
again, which brings the values that were refused before.

Source: docs/grid.md "Who may write"; W3C did:web.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import ipaddress
import json
import socket
import ssl
import threading
import time
import urllib.parse
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Self

from datalattice.apps.grid import KnownKeys, document_url, is_loopback
from datalattice.clock import Clock
from datalattice.errors import DataLatticeError, LimitExceeded, PeerUnavailable, Timeout

RESOLVE_TIMEOUT_S: Final = 5.0  # for a connection, and again for the answer
DOCUMENT_BYTES_MAX: Final = 1 << 18  # longest DID document that is read
AT_ONCE: Final = 8  # documents fetched at a time: a slow host holds up few others

# DIDs without keys are looked up again after a time that doubles. Strangers choose DIDs, so their
# number is bounded: the one tried longest ago is forgotten.
AGAIN_MAX: Final = 1_000
AGAIN_S_MAX: Final = 300.0
WATCH_INTERVAL_S: Final = 5.0


class WebResolver:
    """Fetches documents of `did:web` over HTTPS, or over HTTP from this machine if allowed.

    Strangers choose the DIDs. So only public addresses are connected to, redirects are not
    followed, and the length and time of an answer are bounded.
    """

    def __init__(
        self,
        *,
        allow_http: bool = False,
        timeout_s: float = RESOLVE_TIMEOUT_S,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._allow_http = allow_http
        self._timeout_s = timeout_s
        self._tls = tls or ssl.create_default_context()

    def resolve(self, did: str) -> Mapping[str, Any]:
        """Return the document of a DID.

        Raises: UsageError: not a `did:web`. PeerUnavailable: the document cannot be fetched.
                LimitExceeded: it is too long. DataLatticeError: it is not a JSON object.
        """
        address = document_url(did, allow_http=self._allow_http)
        try:
            return _document(address, self._fetch(urllib.parse.urlsplit(address)))
        except (OSError, UnicodeError, http.client.HTTPException) as error:
            reason = str(error) or type(error).__name__
            raise PeerUnavailable(f"{address}: {reason}") from error

    def _fetch(self, parts: urllib.parse.SplitResult) -> bytes:
        host, secure = parts.hostname or "", parts.scheme == "https"
        port = parts.port or (http.client.HTTPS_PORT if secure else http.client.HTTP_PORT)
        plain = self._connect(host, port)
        # A timer bounds the whole answer: a socket time-out bounds each read alone, and a slow host
        # could send a byte at a time for ever.
        late = threading.Event()
        watch = threading.Timer(self._timeout_s, _end, [plain, late])
        watch.start()
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        link = kind(host, parts.port, timeout=self._timeout_s)
        try:
            link.sock = self._tls.wrap_socket(plain, server_hostname=host) if secure else plain
            link.request("GET", parts.path, headers={"Accept": "application/did+json, */*"})
            answer = link.getresponse()
            if answer.status != http.HTTPStatus.OK:
                raise http.client.HTTPException(f"it answered {answer.status}")
            text = answer.read(DOCUMENT_BYTES_MAX + 1)
            if late.is_set():
                raise TimeoutError(f"it did not answer within {self._timeout_s:g} s")
            return text
        finally:
            watch.cancel()
            link.close()
            plain.close()

    def _connect(self, host: str, port: int) -> socket.socket:
        """Return a connection to a public address of a host."""
        # Security: the address that was checked is the one connected to. Resolving the name again
        # would let DNS answer with an address of the local network (rebinding).
        refused = ""
        for *_, address_info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            text = str(address_info[0])
            address = ipaddress.ip_address(text)
            own = self._allow_http and is_loopback(host) and address.is_loopback
            if address.is_global or own:
                try:
                    return socket.create_connection((text, port), timeout=self._timeout_s)
                except OSError as error:
                    refused = str(error)
            else:
                refused = f"{text} is not a public address"
        raise OSError(refused or "the host has no address")


def _end(link: socket.socket, late: threading.Event) -> None:
    """End a connection that took too long, which wakes its reader."""
    late.set()
    with contextlib.suppress(OSError):
        link.shutdown(socket.SHUT_RDWR)


def _document(address: str, text: bytes) -> Mapping[str, Any]:
    if len(text) > DOCUMENT_BYTES_MAX:
        raise LimitExceeded(f"{address}: a document has at most {DOCUMENT_BYTES_MAX} bytes")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataLatticeError(f"{address}: not JSON: {error}") from None
    if not isinstance(document, dict):
        raise DataLatticeError(f"{address}: a DID document is an object")
    return document


def web_keys(did_web: str, clock: Clock | None = None) -> KnownKeys | None:
    """Return the keys of `did:web` venues for a setting `did_web`; None: they are not looked up."""
    if did_web == "none":
        return None
    return KnownKeys(WebResolver(allow_http=did_web == "loopback"), clock)


class AuthorityWatch:
    """Looks up the DIDs whose values a node refused because their keys are unknown.

    pull: merges everything that the connected peers have.
    Use it in `async with`, inside the node's own.
    """

    def __init__(
        self,
        pull: Callable[[], Awaitable[None]],
        keys: KnownKeys,
        interval_s: float = WATCH_INTERVAL_S,
    ) -> None:
        self._pull = pull
        self._keys = keys
        self._interval_s = interval_s
        self._again: dict[str, tuple[float, float]] = {}  # DID -> (when it is due, the wait before)
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def start(self) -> None:
        """Begin to look up, at once and then at intervals."""
        self._task = asyncio.create_task(self._watch())

    async def close(self) -> None:
        """Stop; does nothing if it has not begun."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def look_up(self) -> bool:
        """Look up the DIDs that are due; pull if keys were found. Return whether any were."""
        now_s, is_found = time.monotonic(), False
        due = [did for did, (due_s, _) in self._again.items() if due_s <= now_s]
        wanted = list(dict.fromkeys([*self._keys.take_wanted(), *due]))
        for at in range(0, len(wanted), AT_ONCE):
            dids = wanted[at : at + AT_ONCE]
            work = [asyncio.to_thread(self._keys.find, did) for did in dids]
            for did, found in zip(dids, await asyncio.gather(*work), strict=True):
                self._keys.learn(did, found)
                if found and not isinstance(found, str):
                    self._again.pop(did, None)
                    is_found = True
                else:
                    self._try_again(did)
        if is_found:
            with contextlib.suppress(PeerUnavailable, Timeout):
                await self._pull()
        return is_found

    def _try_again(self, did: str) -> None:
        # Peers do not send the refused value of this DID again unless they are asked.
        _, wait_s = self._again.pop(did, (0.0, self._interval_s / 2))
        wait_s = min(2 * wait_s, AGAIN_S_MAX)
        self._again[did] = (time.monotonic() + wait_s, wait_s)
        if len(self._again) > AGAIN_MAX:
            del self._again[next(iter(self._again))]

    async def _watch(self) -> None:
        while True:
            await self.look_up()
            await asyncio.sleep(self._interval_s)
