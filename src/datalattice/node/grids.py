"""Grids: the documents of `did:web` venues, fetched over HTTPS beside a node.

A merge asks nobody: it is judged by what `KnownKeys` holds. What it had no keys for is looked up
here; when keys were found the wanted peers are asked for their state again, which brings what was
refused before.
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
from collections.abc import Mapping
from typing import Any, Final, Protocol, Self

from datalattice.apps.grid import KnownKeys, document_url, is_loopback
from datalattice.clock import Clock
from datalattice.errors import DataLatticeError, LimitExceeded, PeerUnavailable, Timeout

RESOLVE_TIMEOUT_S: Final = 5.0
"""For a connection, and again for all of the answer."""

DOCUMENT_BYTES_MAX: Final = 1 << 18
"""Longest DID document that is read."""

AT_ONCE: Final = 8
"""Documents fetched at the same time."""

AGAIN_MAX: Final = 1_000
"""DIDs without keys that are looked up again; the one that was tried longest ago is forgotten."""

AGAIN_S_MAX: Final = 300.0
"""Longest time between two tries of one DID; it doubles from one to the next."""

WATCH_INTERVAL_S: Final = 5.0
"""How often DIDs without keys are looked up."""


class WebResolver:
    """Documents of `did:web`, over HTTPS; over HTTP from this machine, when that is allowed.

    A DID may come from anybody, so nothing is asked of addresses that are not public, redirects are
    not followed, and neither length nor time of an answer is up to the host.
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

        Raises: UsageError: no `did:web`. PeerUnavailable: the document cannot be had.
                LimitExceeded: it is too long. DataLatticeError: it is no JSON object.
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
        """Return a connection to an address that may be asked; the very one that was looked at."""
        refused = ""
        for *_, place in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            text = str(place[0])
            address = ipaddress.ip_address(text)
            own = self._allow_http and is_loopback(host) and address.is_loopback
            if address.is_global or own:
                try:
                    return socket.create_connection((text, port), timeout=self._timeout_s)
                except OSError as error:
                    refused = str(error)
            else:
                refused = f"{text} is no public address"
        raise OSError(refused or "the host has no address")


def _end(link: socket.socket, late: threading.Event) -> None:
    """End a connection whose time is over: whoever reads from it comes to its end."""
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
    """Return the keys of `did:web` venues as the setting `did_web` wants them; None: not at all."""
    if did_web == "none":
        return None
    return KnownKeys(WebResolver(allow_http=did_web == "loopback"), clock)


class Pulling(Protocol):
    """What an `AuthorityWatch` needs of a node."""

    async def pull(self) -> None:
        """Take over all that the connected peers have."""
        ...


class AuthorityWatch:
    """Looks up, beside a node, the DIDs whose values it refused for want of keys.

    Used by `async with`, inside the node's own.
    """

    def __init__(
        self, node: Pulling, keys: KnownKeys, interval_s: float = WATCH_INTERVAL_S
    ) -> None:
        self._node = node
        self._keys = keys
        self._interval_s = interval_s
        self._again: dict[str, tuple[float, float]] = {}  # when it is due, after how long a wait
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def start(self) -> None:
        """Begin; what is to be looked up then is so until the end."""
        self._task = asyncio.create_task(self._watch())

    async def close(self) -> None:
        """End; fine when it has not begun."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def look_up(self) -> bool:
        """Look up what is wanted, and ask the peers again if keys were found; return whether."""
        now_s, some = time.monotonic(), False
        due = [did for did, (due_s, _) in self._again.items() if due_s <= now_s]
        wanted = list(dict.fromkeys([*self._keys.take_wanted(), *due]))
        for at in range(0, len(wanted), AT_ONCE):  # a slow host holds up few others
            dids = wanted[at : at + AT_ONCE]
            work = [asyncio.to_thread(self._keys.find, did) for did in dids]
            for did, found in zip(dids, await asyncio.gather(*work), strict=True):
                self._keys.learn(did, found)
                if found and not isinstance(found, str):
                    self._again.pop(did, None)
                    some = True
                else:
                    self._try_again(did)
        if some:
            with contextlib.suppress(PeerUnavailable, Timeout):
                await self._node.pull()
        return some

    def _try_again(self, did: str) -> None:
        """Remember a DID without keys: its value was refused, and is not sent again by itself."""
        _, wait_s = self._again.pop(did, (0.0, self._interval_s / 2))
        wait_s = min(2 * wait_s, AGAIN_S_MAX)
        self._again[did] = (time.monotonic() + wait_s, wait_s)
        if len(self._again) > AGAIN_MAX:
            del self._again[next(iter(self._again))]

    async def _watch(self) -> None:
        while True:
            await self.look_up()
            await asyncio.sleep(self._interval_s)
