"""Venues: the other venues that this one may call, and requests to them.

Callers choose the venue, so the operator must have listed it or allowed its host. Each request is
signed with this venue's own key. Answers are read within limits; references in them are not
followed.

Source: docs/grid.md "Several venues".
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from datalattice.actions import ActionRequest, GetOperation, from_document
from datalattice.apps.grid import CONTENT_BYTES_MAX, document_url
from datalattice.client import IDEMPOTENCY_KEY, REST_BASE, problem_error, written_request
from datalattice.client.credentials import delegation_headers, make_token
from datalattice.client.network import DoorPin, pin_of, proved_door, split_door, trusting_context
from datalattice.clock import Clock, SystemClock
from datalattice.crypto import KeyPair
from datalattice.errors import (
    BadFormat,
    DataLatticeError,
    NoSuchPath,
    PeerUnavailable,
    ProtocolViolation,
    UsageError,
)
from datalattice.limits import HASH_BYTES
from datalattice.protobuf import Message
from datalattice.service.venue import JSON_BYTES_MAX, JobCaller
from datalattice.service.venue.adapters.hosts import HostRules, HostUnreached

if TYPE_CHECKING:
    import httpcore

    from datalattice.service.venue.adapters.guarded import HttpAnswer, ResolveHost

R = TypeVar("R", bound=Message)

ANSWER_MAX: Final = 4 * JSON_BYTES_MAX
"""Longest answer of another venue, in bytes: a record has an input, an output and steps."""

DEFINITION_MAX: Final = 1 << 20
"""Longest metadata of an operation of another venue, in bytes."""

TOKEN_S: Final = 120
"""Life of the token of one request, in seconds."""

_IN_THREAD: Final = 1 << 16
"""Longer answers are parsed in a thread, in bytes."""

_PORTS: Final = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class VenueDoor:
    """The address at which another venue takes calls.

    did: of the venue, "" if it is unknown. pin: the node that it must prove over TLS to be.
    is_listed: the operator listed it, which also allows its address.
    """

    scheme: str
    host: str
    port: int
    did: str = ""
    pin: DoorPin | None = None
    is_listed: bool = False

    @property
    def url(self) -> str:
        """Its URL as in the audience of tokens: without the default port of the scheme."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port == _PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{host}{port}"

    def __str__(self) -> str:
        """Return its name in records: the DID, or the URL if that is unknown."""
        return self.did or self.url


class VenueRules:
    """The venues that may be called: by default none.

    venues: URLs by name, which may be a DID. A URL is `http://host:port`, `https://host:port`, or
    `did:key:...@host:port`, where the venue proves over TLS that it is the node of that DID. hosts:
    the rules for other venues, which callers name by URL or `did:web`.
    Raises: UsageError: a URL has another form.
    """

    def __init__(
        self,
        venues: Mapping[str, str],
        hosts: HostRules | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.hosts: Final = hosts or HostRules()
        self._listed: Final[dict[str, VenueDoor]] = {}
        for name, url in venues.items():
            did = name if name.startswith("did:") else ""
            self._listed[name] = door_at(url, did=did, is_listed=True, clock=clock)
        doors = list(self._listed.values())
        for door in doors:
            for other in (door.did, door.url):
                if other:
                    # A name that the operator gave is never replaced.
                    self._listed.setdefault(other, door)

    def find(self, given: str) -> VenueDoor:
        """Return the door of a venue. given: its name in the list, its DID or its URL.

        Raises: UsageError: it is unknown or may not be called.
        """
        found = self._listed.get(given)
        if found is None and given.startswith("did:web:"):
            found = _web_door(given)
        elif found is None and "://" in given:
            found = door_at(given)
            found = self._listed.get(found.url, found)
        if found is None:
            raise UsageError(
                f"`venue`: this venue knows no venue {given!r:.100}; give a URL, a did:web, or a "
                "name of its settings"
            )
        # "A venue to be called is one that the operator has listed ... or its host is allowed"
        # (docs/design/venue.md).
        why = None if found.is_listed else self.hosts.refused_name(found.host)
        if why is not None:
            raise UsageError(f"`venue`: {why}")
        return found


def door_at(
    url: str, *, did: str = "", is_listed: bool = False, clock: Clock | None = None
) -> VenueDoor:
    """Return the door at a URL. did: of the venue. Raises: UsageError: the URL is malformed."""
    named, place = split_door(url)
    # Only a DID before "@" is a pin; `did` is a name, which proves nothing.
    pin = None if named is None else pin_of(None, named, clock)
    if named is not None and did not in {"", named}:
        raise UsageError(f"a venue with the DID {did} is listed at {url!r:.100}")
    text = f"https://{place}" if named is not None else place
    try:
        parts = urllib.parse.urlsplit(text)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        host, port, parts = "", None, urllib.parse.urlsplit("")
    rest = (parts.path.rstrip("/"), parts.query, parts.fragment, parts.username)
    if parts.scheme not in _PORTS or rest != ("", "", "", None):
        raise UsageError(
            "a venue is at http://host:port, https://host:port or did:key:...@host:port, got "
            f"{url!r:.100}"
        )
    HostRules(allow=(host,))  # "a name in lower case, without a port"
    return VenueDoor(parts.scheme, host, port or _PORTS[parts.scheme], named or did, pin, is_listed)


def _web_door(did: str) -> VenueDoor:
    """Return the door of a `did:web`. Raises: UsageError: it is malformed."""
    # "`did:web` (to `https://host`, loopback `http`)"
    parts = urllib.parse.urlsplit(document_url(did, allow_http=True))
    return door_at(f"{parts.scheme}://{parts.netloc}", did=did)


MayCall = Callable[[JobCaller], None]
"""Raises Unauthorized for a caller on whose behalf no other venue is called."""


def anybody(_caller: JobCaller) -> None:
    """Call other venues on behalf of every caller."""


class VenueCalls(Protocol):
    """Calls other venues, for an adapter."""

    def find(self, given: str) -> VenueDoor:
        """Return the door of a venue. Raises: UsageError: it may not be called."""
        ...

    async def call(
        self,
        door: VenueDoor,
        request: ActionRequest[R],
        *,
        request_id: str | None = None,
        delegations: Sequence[str] = (),
    ) -> R:
        """Call an action of another venue.

        Raises: the error of its answer, as the same class. HostUnreached: nothing was sent.
                PeerUnavailable: it did not answer. AddressRefused: the rules refuse its address.
                ProtocolViolation, LimitExceeded: its answer is malformed, or too long.
        """
        ...


class RemoteVenues:
    """Calls other venues over REST, with this venue's key.

    It implements `VenueCalls`, `Definitions` and `AssetSource`.
    resolve, connections: for tests; by default those of the operating system. tls: the certificates
    that are trusted for doors without a pin.
    Raises: UsageError: the package httpcore is not installed.
    """

    def __init__(
        self,
        key_pair: KeyPair,
        rules: VenueRules,
        *,
        clock: Clock | None = None,
        resolve: ResolveHost | None = None,
        connections: httpcore.AsyncNetworkBackend | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        try:
            from datalattice.service.venue.adapters import guarded
        except ModuleNotFoundError as error:
            raise UsageError(
                f"calls of other venues need {error.name}: pip install 'datalattice[venue]'"
            ) from error
        self._guarded: Final = guarded
        self._key_pair: Final = key_pair
        self._rules: Final = rules
        self._clock: Final = clock or SystemClock()
        self._tls: Final = tls or ssl.create_default_context()
        self._network: Final = partial(
            guarded.GuardedNetwork,
            resolve=resolve or guarded.resolve_host,
            connections=connections,
        )
        self._certificates: Final[dict[VenueDoor, bytes]] = {}
        self.find: Final = rules.find

    async def call(
        self,
        door: VenueDoor,
        request: ActionRequest[R],
        *,
        request_id: str | None = None,
        delegations: Sequence[str] = (),
    ) -> R:
        """As `VenueCalls.call`."""
        more = delegation_headers(delegations)
        if request_id is not None:
            more[IDEMPOTENCY_KEY] = request_id
        verb, target, body, fields = written_request(request, partial(self._token, door), more)
        answer = await self._ask(door, verb, target, fields, body or b"", ANSWER_MAX)
        kind: type[R] = request.action.result  # type: ignore[assignment]
        # Parsing a long answer would hold up the event loop.
        if len(answer.body) < _IN_THREAD:
            return _result(kind, door, answer)
        return await asyncio.to_thread(_result, kind, door, answer)

    async def named(self, did: str, path: str) -> bytes:
        """Return the asset that a path of a venue's catalogue names now; `Definitions.named`."""
        with _there(did):
            found = await self.call(self.find(did), GetOperation(path=path))
        if len(found.asset) != HASH_BYTES:
            raise BadFormat(f"{did} answered for {path!r:.100} without a valid asset id")
        return found.asset

    async def metadata(self, did: str, asset: bytes) -> str:
        """Return the metadata text of an asset, from its venue; `Definitions.metadata`."""
        door = self.find(did)
        with _there(did):
            answer = await self._get(door, f"assets/{asset.hex()}", DEFINITION_MAX)
        try:
            return answer.decode()
        except UnicodeDecodeError as error:
            raise BadFormat(f"{door} sent metadata that is not UTF-8") from error

    async def content(self, did: str, asset: bytes) -> bytes:
        """Return the content of an asset, from its venue; `AssetSource.content`."""
        path = f"assets/{asset.hex()}/content"
        with _there(did):
            return await self._get(self.find(did), path, CONTENT_BYTES_MAX)

    async def _get(self, door: VenueDoor, path: str, body_max: int) -> bytes:
        """Return the answer to a GET of a path below the base. Raises: as `call`."""
        fields = {"authorization": f"Bearer {self._token(door)}", "user-agent": "datalattice"}
        answer = await self._ask(door, "GET", f"{REST_BASE}/{path}", fields, b"", body_max)
        if answer.status != 200:
            raise _error(door, answer)
        return answer.body

    def _token(self, door: VenueDoor) -> str:
        # The key if it is known, so that an impostor at the URL cannot use the token elsewhere. The
        # node behind a `did:web` knows only its key and its URLs.
        audience = door.did if door.did.startswith("did:key:") else door.url
        return make_token(self._key_pair, audience, self._clock.now_ms(), life_s=TOKEN_S)

    async def _ask(
        self,
        door: VenueDoor,
        verb: str,
        target: str,
        fields: Mapping[str, str],
        body: bytes,
        body_max: int,
    ) -> HttpAnswer:
        """Send a request; once more if a pinned door may have changed its certificate."""
        try:
            return await self._ask_once(door, verb, target, fields, body, body_max)
        except HostUnreached:
            # Nothing was sent, so the request is not made twice.
            if self._certificates.pop(door, None) is None:
                raise
            return await self._ask_once(door, verb, target, fields, body, body_max)

    async def _ask_once(
        self,
        door: VenueDoor,
        verb: str,
        target: str,
        fields: Mapping[str, str],
        body: bytes,
        body_max: int,
    ) -> HttpAnswer:
        # The operator has listed this host, so it may have a private address.
        rules = HostRules(allow=(door.host,), private=True) if door.is_listed else self._rules.hosts
        to = self._guarded.HttpTarget(door.scheme, door.host, door.port, target.encode("ascii"))
        sent = [*fields.items(), ("accept-encoding", "identity")]
        try:
            async with asyncio.timeout(self._guarded.WHOLE_S):
                tls = await self._trusted(door)
                # "Redirects are not followed": they are answers without a problem document.
                return await self._guarded.fetch(
                    self._network(rules), tls, verb, to, sent, body, body_max
                )
        except TimeoutError:
            raise PeerUnavailable(
                f"{door} did not answer within {self._guarded.WHOLE_S:g} s"
            ) from None

    async def _trusted(self, door: VenueDoor) -> ssl.SSLContext:
        """Return the TLS context: for a pinned door, it trusts only the proved certificate."""
        if door.pin is None:
            return self._tls
        shown = self._certificates.get(door, b"")
        if not door.pin.knows(shown):
            shown = self._certificates[door] = await asyncio.to_thread(
                proved_door, door.pin, door.host, door.port, self._guarded.CONNECT_S
            )
        return trusting_context(shown)


def _result(kind: type[R], door: VenueDoor, answer: HttpAnswer) -> R:
    """Return the result in an answer. Raises: as `VenueCalls.call`."""
    if not 200 <= answer.status < 300:
        raise _error(door, answer)
    try:
        document = json.loads(answer.body)
        if not isinstance(document, dict):
            raise UsageError("the document is not an object")
        known = {field.json for field in kind.declared()}
        # Unknown members are left out: a later version may have added them.
        return from_document(kind, {name: one for name, one in document.items() if name in known})
    except (ValueError, RecursionError, DataLatticeError) as error:
        raise ProtocolViolation(f"{door} sent no valid {kind.__name__}: {error}"[:400]) from None


@contextlib.contextmanager
def _there(did: str) -> Iterator[None]:
    """Add the venue's DID to a NoSuchPath: its text may say "this node", meaning that venue."""
    try:
        yield
    except NoSuchPath as error:
        raise NoSuchPath(f"{did}: {error}") from error


def _error(door: VenueDoor, answer: HttpAnswer) -> Exception:
    """Return the error in an answer."""
    try:
        found = problem_error(answer.status, answer.body)
    except (TypeError, ValueError, RecursionError, DataLatticeError) as error:
        found = ProtocolViolation(f"its problem document is invalid: {error}"[:400])
    if not isinstance(found, ProtocolViolation):
        return found
    # A gateway before a venue that restarts answers with 5xx: the request may be repeated.
    kind = PeerUnavailable if answer.status >= 500 else ProtocolViolation
    return kind(f"{door}: {found}")
