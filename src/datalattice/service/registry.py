"""Registry: which function does an action, and what it is given.

    @handles(OfferRecords)
    def offer(call: ServiceCall, request: OfferRecords) -> OfferedRecords: ...

A handler knows no door: no HTTP, no protobuf bytes, no socket. It may wait for the disk, so a
thread runs it. What it raises reaches the caller as it is.
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
    LOCAL_DOORS,
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
"""Items of a stream that are taken at once."""


@dataclass(frozen=True, slots=True)
class ServiceCall:
    """What a handler may use besides its request: the node, and who asks under which policy.

    locks: on files of drives. doors: what the node states about the certificates of its doors.
    access: rules, tokens and records, of a service with callers. events: of the running node.
    """

    node: Node
    principal: Principal
    policy: Policy
    locks: FileLocks
    doors: Callable[[], tuple[DoorStatement, ...]] = tuple
    access: AccessControl | None = None
    events: EventRing[NodeEvent] | None = None
    once: Callable[[Callable[[Any], Message]], Once | None] = lambda _answer: None
    """Of an action on Weaver stores: given what makes its result from what was written, it
    returns what has a transaction done once; None: the request carries no id."""
    venue: VenueHost | None = None
    """The venue of the node, if it runs one."""
    urls: Callable[[], tuple[str, ...]] = tuple
    """Under which the doors may be asked for."""
    contents: Storage | None = None
    """Where contents of the venue's assets are; None: in the lattice."""
    request_id: str | None = None
    """Of an action on the venue, which knows its repeated requests itself."""

    @property
    def caller(self) -> str:
        """The DID of the caller; "" of an anonymous one."""
        return self.principal.did or ""

    @property
    def holder(self) -> str:
        """Whose the locks of the caller are."""
        who = self.principal
        return who.did or ("local" if who.how in LOCAL_DOORS else who.how)

    @property
    def asker(self) -> str:
        """For whom the running node is asked: a DID, or "" for the owner of the folder."""
        return "" if self.principal.how in LOCAL_DOORS else self.caller or ANYBODY

    @property
    def is_operator(self) -> bool:
        """Whether the caller may do all that the owner of the folder may."""
        return decide(self.policy, self.principal, "a", "admin").is_allowed

    def owner(self, given: str) -> bytes:
        """Return the key of the owner that a request names.

        Raises: UsageError: it names none, or several. NoSigningKey: "own", and there is no key.
        """
        found = self.node.owner_key(given)
        if not isinstance(found, bytes):
            raise UsageError(f"owner: {given!r:.80} has no public key")
        return found


class Streamed(ResultStream[R]):
    """The items of a stream, as results of an action. Close it, or use it in `with`.

    It reads from its source when it is asked for items, so a slow reader keeps a position and the
    items of one look at the source. With `positions`, each item has the token of its position in
    the field `resume`.
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
        """first: items that come before those of the stream. name: of the stream in its tokens.

        token: writes a position as a token, with the name.
        is_resumed: it begins at the position of a token, which is looked at now. at_once: how many
        items are taken at once.
        Raises: StaleToken: what is behind that position is gone.
        """
        self._stream: Final[Stream[Any]] = stream
        self._convert: Final[Callable[[Any], R]] = convert
        self._name: Final = name
        self._write: Final = token
        self._at_once: Final = at_once
        self._positions: Final[StreamPositions[Any] | None] = positions
        self._waiting: Iterator[R] = iter(list(first))
        self.resume = "" if positions is None else token(name, positions.now())
        """The token of the last item that was taken, or of the beginning; "" without tokens."""
        self._has_more = False
        # Looked at now, so that a token of what is gone is refused before the stream begins.
        if is_resumed:
            try:
                self._waiting = chain(self._waiting, self._look())
                self._peek()
            except BaseException:
                stream.close()
                raise

    def take(self) -> list[R]:
        """Return some of the next items that are there; it does not wait for more.

        Raises: StaleToken: the next items are gone.
        """
        taken = list(islice(self._waiting, self._at_once))
        if not taken:
            self._waiting = self._look()
            taken = list(islice(self._waiting, self._at_once))
        self._peek()
        if self._positions is not None:
            now = getattr(taken[-1], "resume", "") if taken else ""
            self.resume = now or self._write(self._name, self._positions.now())
        return taken

    def _peek(self) -> None:
        """Find out whether items wait that the source has given already."""
        following = list(islice(self._waiting, 1))
        self._has_more = bool(following)
        if following:
            self._waiting = chain(following, self._waiting)

    def _look(self) -> Iterator[R]:
        """Look at the source; return what is there."""
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
            # Cleared before looking: a change after this sets it again, so none is missed.
            news.clear()
            items = self.take()
            yield from items
            if not items and not self.closed:
                news.wait()

    @property
    def closed(self) -> bool:
        """Whether no more items come."""
        return self._stream.closed and not self._has_more

    def close(self) -> None:
        """End it; who waits for it is woken."""
        self._waiting, self._has_more = iter(()), False
        self._stream.close()


class Upload(ABC, Generic[R]):
    """A body that arrives in pieces. One thread at a time may use it; `close` it."""

    @abstractmethod
    def write(self, piece: bytes) -> None:
        """Add bytes at the end. Raises: LimitExceeded: they are too many. StoreFull."""

    @abstractmethod
    def finish(self) -> R:
        """Do the action with all that was written, and return its result, which is durable."""

    @abstractmethod
    def close(self) -> None:
        """Drop what was written, unless it was finished."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


ActionHandler = Callable[[ServiceCall, Any], Message | Streamed[Any] | Upload[Any]]

HANDLERS: Final[dict[type[ActionRequest[Any]], ActionHandler]] = {}
"""The handler of each request."""


def handles(request: type[ActionRequest[Any]]) -> Callable[[_H], _H]:
    """Register the function that it decorates as the handler of a request."""

    def register(handler: _H) -> _H:
        assert request not in HANDLERS, request
        HANDLERS[request] = handler
        return handler

    return register


def page(count: int, most: int) -> int:
    """Return how many items are wanted.

    Raises: LimitExceeded: more than `most`. UsageError: fewer than 1.
    """
    if count < 1:
        raise UsageError(f"count: 1 to {most}, got {count}")
    if count > most:
        raise LimitExceeded(f"count: at most {most} in one answer, got {count}; ask for the rest")
    return count
