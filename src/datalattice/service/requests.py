"""Requests: what came of requests with an id, so that a repeated one has no second effect.

    (principal, id) -> (hash of the request, result)

A row is written in the commit of the effect: in the node's `:local` slot for what changes the
lattice, in a table of the stores' engine for what changes a Weaver store. So a caller whose answer
was lost sends the same request again, and it is done once. Neither ever leaves the node.

Rows of one principal are numbered in the order they were written, and the oldest go first.

Source: docs/design/service.md "Repeating an effect".
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from struct import Struct
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from datalattice.actions import ActionRequest, check_request_id
from datalattice.cells import EMPTY_MAP, Blob, Keyword, Map, Value
from datalattice.client import Node
from datalattice.clock import Clock, next_stamp, present_ms
from datalattice.cursors import LatticeCursor
from datalattice.engine import GroupCommit, GroupTxn, WriteTxn
from datalattice.errors import NoSigningKey, RequestReused
from datalattice.lattice import LOCAL_KEY, TIMESTAMP, VALUE, map_timestamp
from datalattice.protobuf import Message
from datalattice.service.access import Principal
from datalattice.weaver import REQUESTS, Once

T = TypeVar("T")

REQUESTS_KEY: Final = Keyword("requests")
_BOOKS: Final = Keyword("books")


class RequestLimits(NamedTuple):
    """What is kept.

    kept_ms: how long. requests, result_bytes: of one principal. principals: who have rows; where
    there would be more, the one whose last request is oldest loses its rows.
    """

    kept_ms: int = 24 * 60 * 60 * 1_000
    requests: int = 10_000
    result_bytes: int = 16_000_000
    principals: int = 256


REQUEST_LIMITS: Final = RequestLimits()

EXPIRED_AT_ONCE: Final = 16
"""Rows that one write removes because their time is over: a pause must not make it slow."""


class RequestMark(NamedTuple):
    """A request that carries an id. The three are hashes: whose it is, its id, what it asks for."""

    principal: bytes
    id: bytes
    request: bytes


def mark_of(request: ActionRequest[Any], caller: Principal, id: str) -> RequestMark:
    """Return the mark of a request. Raises: UsageError: the id cannot be one."""
    check_request_id(id)
    # All programs of the folder's owner are one caller, whichever socket they use.
    who = "owner" if caller.is_local else caller.did or ""
    asked = hashlib.sha256(f"{request.action.name}\0".encode() + request.encode())
    return RequestMark(_short(who), _short(id), asked.digest())


def _short(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()[:16]


class RequestRows(Protocol):
    """Where rows are kept: bytes by principal and key; the row at the key b"" is its head."""

    def get(self, principal: bytes, key: bytes) -> bytes | None:
        """Return a row, or None."""

    def put(self, principal: bytes, key: bytes, value: bytes) -> None:
        """Set a row."""

    def delete(self, principal: bytes, key: bytes) -> None:
        """Remove a row."""

    def heads(self) -> Iterable[tuple[bytes, bytes]]:
        """Return the principals that have rows, with their heads."""

    def drop(self, principal: bytes) -> None:
        """Remove all rows of a principal."""


class _Head(NamedTuple):
    """Of a principal: its rows have the numbers first <= n < next."""

    first: int = 0
    next: int = 0
    result_bytes: int = 0
    last_ms: int = 0


_HEAD: Final = Struct(">QQQQ")
_RESULT: Final = Struct(">QQ32s")  # number, when it was written, hash of the request
_NUMBER: Final = Struct(">16sQQ")  # id, when it was written, bytes of the result


def _numbered(number: int) -> bytes:
    return b"n" + number.to_bytes(8, "big")


class RequestTable:
    """The kept results, as they are in one transaction."""

    def __init__(
        self, rows: RequestRows, now_ms: int, limits: RequestLimits = REQUEST_LIMITS
    ) -> None:
        self._rows: Final = rows
        self._now_ms: Final = now_ms
        self._limits: Final = limits

    def find(self, mark: RequestMark) -> bytes | None:
        """Return the result of the same request; None: it was not done, or too long ago.

        Raises: RequestReused: the id came with another request.
        """
        row = self._rows.get(mark.principal, b"i" + mark.id)
        if row is None:
            return None
        _, time_ms, request = _RESULT.unpack_from(row)
        if self._is_over(time_ms):
            return None
        if request != mark.request:
            raise RequestReused("this id came with another request before; each needs its own")
        return row[_RESULT.size :]

    def _is_over(self, time_ms: int) -> bool:
        # A clock that was put back makes no row older.
        return self._now_ms - time_ms >= self._limits.kept_ms

    def keep(self, mark: RequestMark, result: bytes) -> None:
        """Keep the result of a request that `find` did not find."""
        head = self._room(mark.principal, len(result))
        row = _RESULT.pack(head.next, self._now_ms, mark.request) + result
        self._rows.put(mark.principal, b"i" + mark.id, row)
        numbered = _NUMBER.pack(mark.id, self._now_ms, len(result))
        self._rows.put(mark.principal, _numbered(head.next), numbered)
        made = _Head(head.first, head.next + 1, head.result_bytes + len(result), self._now_ms)
        self._rows.put(mark.principal, b"", _HEAD.pack(*made))

    def _room(self, principal: bytes, size: int) -> _Head:
        """Make room for one more row of a principal; return its head."""
        found = self._rows.get(principal, b"")
        if found is None:
            self._room_for_principal()
            return _Head()
        head = _Head(*_HEAD.unpack(found))
        if self._is_over(head.last_ms):  # all of them
            self._rows.drop(principal)
            return _Head()
        first, held, expired = head.first, head.result_bytes, 0
        while first < head.next:
            number = self._rows.get(principal, _numbered(first))
            assert number is not None
            id, time_ms, length = _NUMBER.unpack(number)
            is_full = (
                head.next - first >= self._limits.requests
                or held + size > self._limits.result_bytes
            )
            if not is_full:
                expired += 1
                if expired > EXPIRED_AT_ONCE or not self._is_over(time_ms):
                    break
            self._remove(principal, id, first)
            held -= length
            first += 1
        return head._replace(first=first, result_bytes=held)

    def _remove(self, principal: bytes, id: bytes, number: int) -> None:
        self._rows.delete(principal, _numbered(number))
        row = self._rows.get(principal, b"i" + id)
        # The id may have come again once its time was over: that row is a later one.
        if row is not None and _RESULT.unpack_from(row)[0] == number:
            self._rows.delete(principal, b"i" + id)

    def _room_for_principal(self) -> None:
        last = {who: _HEAD.unpack(head)[3] for who, head in self._rows.heads()}
        if len(last) < self._limits.principals:
            return
        idle = [who for who, time_ms in last.items() if self._is_over(time_ms)]
        for who in idle or [min(last, key=lambda one: (last[one], one))]:
            self._rows.drop(who)


# --- where rows are -------------------------------------------------------------------------------


class CellRows:
    """Rows in a Map of Maps, for `:local`."""

    def __init__(self, books: Value) -> None:
        self._books: Map = books if isinstance(books, Map) else EMPTY_MAP
        self._changed: dict[bytes, Map] = {}

    @property
    def books(self) -> Map:
        """The Map with the rows that were set."""
        return self._books.put_many(self._changed)

    def _book(self, principal: bytes) -> Map:
        found = self._changed.get(principal, self._books.get(principal))
        return found if isinstance(found, Map) else EMPTY_MAP

    def get(self, principal: bytes, key: bytes) -> bytes | None:
        """Return a row, or None."""
        found = self._book(principal).get(key)
        return bytes(found) if isinstance(found, bytes | Blob) else None  # a long one is a Blob

    def put(self, principal: bytes, key: bytes, value: bytes) -> None:
        """Set a row."""
        self._changed[principal] = self._book(principal).put(key, value)

    def delete(self, principal: bytes, key: bytes) -> None:
        """Remove a row."""
        self._changed[principal] = self._book(principal).remove(key)

    def heads(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield the principals that have rows, with their heads."""
        for principal, book in self.books.entries():
            head = book.get(b"") if isinstance(book, Map) else None
            if isinstance(principal, bytes) and isinstance(head, bytes):
                yield principal, head

    def drop(self, principal: bytes) -> None:
        """Remove all rows of a principal."""
        self._changed.pop(principal, None)
        self._books = self._books.remove(principal)


class EngineRows:
    """Rows in a table of an engine, in a transaction."""

    def __init__(self, txn: GroupTxn | WriteTxn) -> None:
        self._txn: Final = txn

    def get(self, principal: bytes, key: bytes) -> bytes | None:
        """Return a row, or None."""
        return self._txn.get(REQUESTS, _engine_key(principal, key))

    def put(self, principal: bytes, key: bytes, value: bytes) -> None:
        """Set a row."""
        self._txn.put(REQUESTS, _engine_key(principal, key), value)

    def delete(self, principal: bytes, key: bytes) -> None:
        """Remove a row."""
        self._txn.delete(REQUESTS, _engine_key(principal, key))

    def heads(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield the principals that have rows, with their heads."""
        for key, head in self._txn.scan(REQUESTS, b"h", b"i"):
            yield key[1:], head

    def drop(self, principal: bytes) -> None:
        """Remove all rows of a principal."""
        self.delete(principal, b"")
        self._txn.delete_range(REQUESTS, b"r" + principal, b"r" + principal + b"\xff")


def _engine_key(principal: bytes, key: bytes) -> bytes:
    # Heads lie together: they are read without the rows.
    return (b"r" if key else b"h") + principal + key


# --- doing a request once -------------------------------------------------------------------------


class RequestRepeated(Exception):
    """The request was done before. `result`: that of then, encoded."""

    def __init__(self, result: bytes) -> None:
        super().__init__("the request was done before")
        self.result = result


class Requests:
    """The kept results of one node."""

    def __init__(self, node: Node, clock: Clock, limits: RequestLimits = REQUEST_LIMITS) -> None:
        self._node: Final = node
        self._clock: Final = clock
        self._limits: Final = limits

    def in_lattice(self, mark: RequestMark, work: Callable[[], Message]) -> Message:
        """Do what changes the lattice; return its result, durable and kept.

        Raises: RequestRepeated, RequestReused; what `work` raises, and nothing is kept then.
        """

        def once() -> tuple[Message | None, bytes | None]:
            cursor = self._cursor()
            held = cursor.get()
            register = held if isinstance(held, Map) else EMPTY_MAP
            rows = CellRows(register.get(_BOOKS))
            now_ms = present_ms(self._clock)
            table = RequestTable(rows, now_ms, self._limits)
            kept = table.find(mark)
            if kept is not None:
                return None, kept
            made = work()
            table.keep(mark, made.encode())
            # "The registers of `:local` are last-write-wins" (docs/design/forks.md "Evidence").
            stamp = next_stamp(now_ms, map_timestamp(register))
            cursor.set(register.put(_BOOKS, rows.books).put(TIMESTAMP, stamp))
            return made, None

        return _done(self._node.atomically(once))

    def _cursor(self) -> LatticeCursor:
        pair = self._node.cursor().context.key_pair
        if pair is None:
            raise NoSigningKey("a write needs a key; make one with `lattice key new`")
        return self._node.cursor(LOCAL_KEY, pair.public_key, VALUE, REQUESTS_KEY)

    def in_stores(self, mark: RequestMark, answer: Callable[[Any], Message]) -> Once:
        """Return what does a transaction of the stores once; it raises as `in_lattice`.

        answer: makes the result of the action from what was written.
        """

        def once(commits: GroupCommit, work: Callable[[GroupTxn], T]) -> T:
            def guarded(txn: GroupTxn) -> tuple[T | None, bytes | None]:
                table = RequestTable(EngineRows(txn), present_ms(self._clock), self._limits)
                kept = table.find(mark)
                if kept is not None:
                    return None, kept
                made = work(txn)
                table.keep(mark, answer(made).encode())
                return made, None

            # Raised behind the commit: the kept result may be of the same transaction.
            return _done(commits.run(guarded))

        return once


def _done(outcome: tuple[T | None, bytes | None]) -> T:
    made, kept = outcome
    if kept is not None:
        raise RequestRepeated(kept)
    return made  # type: ignore[return-value]
