"""Registry: the handlers of actions, the calls that they get, streams and uploads.

    @handles(OfferRecords)
    def offer(call: ServiceCall, request: OfferRecords) -> OfferedRecords: ...

A handler is independent of doors: of HTTP, protobuf bytes and sockets. It may wait for the disk, so
a thread runs it. Its errors reach the caller unchanged.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Final, Generic, Self, TypeVar

from datalattice.actions import ActionRequest, DoorStatement, NodeEvent, with_resume
from datalattice.apps.grid import Storage
from datalattice.cells import Value
from datalattice.client import Node, ResultStream
from datalattice.cursors import EventRing, Stream, Wake
from datalattice.errors import DataLoss, LimitExceeded, MissingData, StaleToken, UsageError
from datalattice.protobuf import Message
from datalattice.service.access import (
    ANYBODY,
    AccessControl,
    Policy,
    Principal,
    decide,
)
from datalattice.service.filelocks import FileLocks
from datalattice.service.resuming import StreamPositions, write_token
from datalattice.service.venue import VenueHost
from datalattice.weaver import Once

T = TypeVar("T")
R = TypeVar("R", bound=Message)
_H = TypeVar("_H", bound=Callable[..., Any])

POLL_MAX: Final = 64
"""Most items that one `take` of a stream returns."""


@dataclass(frozen=True, slots=True)
class ServiceCall:
    """What a handler may use besides its request: the node, the caller and the policy.

    locks: on files of drives. doors: returns the node's statements on the certificates of its
    doors. access: rules, tokens and the audit; None: only the owner calls. events: of the running
    node.
    """

    node: Node
    principal: Principal
    policy: Policy
    locks: FileLocks
    doors: Callable[[], tuple[DoorStatement, ...]] = tuple
    access: AccessControl | None = None
    events: EventRing[NodeEvent] | None = None
    once: Callable[[Callable[[Any], Message]], Once | None] = lambda _answer: None
    """For actions of the kind ONCE on Weaver stores: takes the function that makes the action's
    result from what the transaction wrote, and returns the `Once` that runs the transaction; None:
    the request has no id."""
    venue: VenueHost | None = None
    """The venue of the node, if it runs one."""
    urls: Callable[[], tuple[str, ...]] = tuple
    """Returns the URLs of the doors."""
    contents: Storage | None = None
    """Stores the contents of the venue's assets; None: the lattice does."""
    request_id: str | None = None
    """For actions of the kind ONCE on the venue, which finds repeated requests itself."""

    @property
    def caller(self) -> str:
        """The DID of the caller; "" if it is anonymous."""
        return self.principal.did or ""

    @property
    def holder(self) -> str:
        """The name under which the caller holds locks on files."""
        who = self.principal
        # Anonymous callers are one holder: nothing tells them apart.
        return who.did or ("local" if who.is_local else who.how)

    @property
    def asker(self) -> str:
        """The caller in requests to the running node: a DID, or "" for the owner of the folder."""
        # "" would make an anonymous caller the owner of the folder.
        return "" if self.principal.is_local else self.caller or ANYBODY

    @property
    def is_operator(self) -> bool:
        """Whether the caller has all rights of the folder's owner."""
        return decide(self.policy, self.principal, "a", "admin").is_allowed

    def owner(self, given: str) -> bytes:
        """Return the key of the owner that a request names.

        Raises: UsageError: no owner or several match. NoSigningKey: "own", and there is no key.
        """
        found = self.node.owner_key(given)
        if not isinstance(found, bytes):
            raise UsageError(f"owner: {given!r:.80} has no public key")
        return found


class Streamed(ResultStream[R]):
    """The items of a stream, as results of an action. Close it, or use it in `with`.

    It reads its source only in `take`, so a slow reader costs a position and the items of one
    reading. With `positions`, each item has the token of its position in the field `resume`.
    """

    def __init__(
        self,
        stream: Stream[T],
        convert: Callable[[T], R],
        first: Iterable[R] = (),
        *,
        name: bytes = b"",
        positions: StreamPositions[T] | None = None,
        is_resumed: bool = False,
        at_once: int = POLL_MAX,
        token: Callable[[bytes, Value], str] = write_token,
    ) -> None:
        """first: items before those of the stream. name: of the stream in its tokens.

        is_resumed: it begins at the position of a token; the first items are read now. at_once:
        most items of one `take`. token: makes the token of a name and a position.
        Raises: StaleToken: the items behind that position are gone.
        """
        self._stream: Final[Stream[Any]] = stream
        self._convert: Final[Callable[[Any], R]] = convert
        self._name: Final = name
        self._write: Final = token
        self._at_once: Final = at_once
        self._positions: Final[StreamPositions[Any] | None] = positions
        self._waiting: Iterator[R] = iter(list(first))
        self.resume = "" if positions is None else token(name, positions.now())
        """The token of the last item returned, or of the beginning; "" without tokens."""
        self._has_more = False
        # Read now, so that a stale token is an error of the call and not of the running stream.
        if is_resumed:
            try:
                self._waiting = chain(self._waiting, self._look())
                self._peek()
            except BaseException:
                stream.close()
                raise

    def take(self) -> list[R]:
        """Return the next items without waiting, `at_once` at most; empty if there are none yet.

        Raises: StaleToken: the next items are gone.
        """
        taken = list(islice(self._waiting, self._at_once))
        if not taken:
            self._waiting = self._look()
            taken = list(islice(self._waiting, self._at_once))
        self._peek()
        if self._positions is not None:
            # Without items the position moves, too: over changes that are not of this stream.
            now = getattr(taken[-1], "resume", "") if taken else ""
            self.resume = now or self._write(self._name, self._positions.now())
        return taken

    def _peek(self) -> None:
        """Set `_has_more`: whether items of the last reading wait."""
        following = list(islice(self._waiting, 1))
        self._has_more = bool(following)
        if following:
            self._waiting = chain(following, self._waiting)

    def _look(self) -> Iterator[R]:
        """Read the source; return its new items."""
        positions = self._positions
        if positions is None:
            return map(self._convert, self._stream.poll())
        try:
            items = self._stream.poll()
            pairs = zip(items, positions.after(items), strict=True)
        except (DataLoss, MissingData) as error:
            # "A position that was collected or truncated is stale-token; the answer says where a
            # fresh start begins."
            raise StaleToken(f"{error}; a fresh start begins {positions.fresh_start()}") from error
        return (
            with_resume(self._convert(item), self._write(self._name, position))
            for item, position in pairs
        )

    def on_wake(self, wake: Wake) -> None:
        """Call `wake` when `take` may have something new."""
        self._stream.on_wake(wake)

    def __iter__(self) -> Iterator[R]:
        """Return the items as they come, waiting for each."""
        news = threading.Event()
        self.on_wake(news.set)
        while not self.closed:
            # Cleared before reading: a change after this sets it again, so none is missed.
            news.clear()
            items = self.take()
            yield from items
            if not items and not self.closed:
                news.wait()

    @property
    def closed(self) -> bool:
        """Whether the stream has ended and all items were returned."""
        return self._stream.closed and not self._has_more

    def close(self) -> None:
        """End the stream and wake its readers."""
        self._waiting, self._has_more = iter(()), False
        self._stream.close()


class Upload(ABC, Generic[R]):
    """A body that arrives in pieces. One thread at a time may use it; `close` it."""

    @abstractmethod
    def write(self, piece: bytes) -> None:
        """Append bytes. Raises: LimitExceeded: the body is too long. StoreFull."""

    @abstractmethod
    def finish(self) -> R:
        """Do the action with the written body, and return its result, which is durable."""

    @abstractmethod
    def close(self) -> None:
        """Drop the written body, unless `finish` was called."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


ActionHandler = Callable[[ServiceCall, Any], Message | Streamed[Any] | Upload[Any]]

HANDLERS: Final[dict[type[ActionRequest[Any]], ActionHandler]] = {}
"""The handler of each request."""


def handles(request: type[ActionRequest[Any]]) -> Callable[[_H], _H]:
    """Register the decorated function as the handler of a request."""

    def register(handler: _H) -> _H:
        # Two handlers of one action would make the order of imports decide.
        assert request not in HANDLERS, request
        HANDLERS[request] = handler
        return handler

    return register


def page(count: int, most: int) -> int:
    """Return `count`, the number of items of one answer.

    Raises: LimitExceeded: it is above `most`. UsageError: it is below 1.
    """
    if count < 1:
        raise UsageError(f"count: 1 to {most}, got {count}")
    if count > most:
        raise LimitExceeded(f"count: at most {most} in one answer, got {count}; ask for the rest")
    return count
