"""Requests: the kept results of requests with an id, so that a repeated one has no second effect.

    (principal, id) -> (hash of the request, result)

A row is written in the commit of the effect: in the node's `:local` slot for changes of the
lattice, in a table of the stores' engine for changes of a Weaver store. So a caller whose answer
was lost sends the same request again, and it is done once. Rows stay on this node.

Source: docs/design/service.md "Repeating an effect".
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from struct import Struct
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from datalattice.actions import ActionRequest, check_request_id
from datalattice.cells import EMPTY_MAP, Blob, Keyword, Map, Value, Vector
from datalattice.client import Node
from datalattice.clock import Clock, next_stamp, present_ms
from datalattice.cursors import LatticeCursor
from datalattice.engine import GroupCommit, GroupTxn, WriteTxn
from datalattice.errors import NoSigningKey, RequestReused
from datalattice.lattice import LOCAL_KEY, TIMESTAMP, VALUE_KEY, map_timestamp
from datalattice.protobuf import Message
from datalattice.service.access import Principal
from datalattice.weaver import REQUESTS, Once

T = TypeVar("T")

REQUESTS_KEY: Final = Keyword("requests")
_BOOKS: Final = Keyword("books")


class RequestLimits(NamedTuple):
    """Bounds of the kept results.

    kept_ms: time that a result is kept. requests, result_bytes: upper bounds for one principal; the
    newest results up to half of them are always there. principals: most that have rows; a further
    one takes the place of the one whose last request is oldest.
    """

    # "24 hours, 10,000 requests and 16 MB of results a principal, 256 principals; the oldest are
    # dropped" (docs/design/service.md).
    kept_ms: int = 24 * 60 * 60 * 1_000
    requests: int = 10_000
    result_bytes: int = 16_000_000
    principals: int = 256


REQUEST_LIMITS: Final = RequestLimits()


class RequestMark(NamedTuple):
    """The hashes of a request with an id: of its principal, of the id, of action and arguments."""

    principal: bytes
    id: bytes
    request: bytes


def mark_of(request: ActionRequest[Any], caller: Principal, id: str) -> RequestMark:
    """Return the mark of a request. Raises: UsageError: the id is invalid."""
    check_request_id(id)
    # All programs of the folder's owner are one principal, on every socket.
    who = "owner" if caller.is_local else caller.did or ""
    # With the action: requests of two actions may have equal bytes.
    asked = hashlib.sha256(f"{request.action.name}\0".encode() + request.encode())
    return RequestMark(_short(who), _short(id), asked.digest())


def _short(text: str) -> bytes:
    # 16 bytes: keys of one size in tables, and no caller can aim at another's row.
    return hashlib.sha256(text.encode()).digest()[:16]


class RequestRows(Protocol):
    """The storage of rows: for each principal a head, and two tables of rows by id (parts 0, 1)."""

    def heads(self) -> Iterable[tuple[bytes, bytes]]:
        """Return the principals that have rows, with their heads."""

    def head(self, principal: bytes) -> bytes | None:
        """Return a head, or None."""

    def set_head(self, principal: bytes, head: bytes) -> None:
        """Set a head."""

    def get(self, principal: bytes, part: int, id: bytes) -> bytes | None:
        """Return a row, or None."""

    def put(self, principal: bytes, part: int, id: bytes, row: bytes) -> None:
        """Set a row."""

    def clear(self, principal: bytes, part: int) -> None:
        """Remove the rows of a part."""

    def drop(self, principal: bytes) -> None:
        """Remove the head and the rows of a principal."""


class _Head(NamedTuple):
    """The head of a principal: the part that grows, its counts, and the time of its last row."""

    part: int = 0
    requests: int = 0
    result_bytes: int = 0
    last_ms: int = 0


_HEAD: Final = Struct(">QQQQ")
_RESULT: Final = Struct(">Q32s")  # the time it was written, the hash of the request


class RequestTable:
    """The kept results in one transaction.

    Each principal has two parts. When one has half of the bounds, the other is emptied and grows
    next: this drops the oldest rows without a search for them.
    """

    def __init__(
        self, rows: RequestRows, now_ms: int, limits: RequestLimits = REQUEST_LIMITS
    ) -> None:
        self._rows: Final = rows
        self._now_ms: Final = now_ms
        self._limits: Final = limits

    def find(self, mark: RequestMark) -> bytes | None:
        """Return the result of the same request; None: it was not done, or its row has expired.

        Raises: RequestReused: the id came with another request.
        """
        for part in (0, 1):
            row = self._rows.get(mark.principal, part, mark.id)
            if row is None:
                continue
            time_ms, request = _RESULT.unpack_from(row)
            # An expired id may have come again: its newer row is in the other part.
            if self._is_over(time_ms):
                continue
            if request != mark.request:
                raise RequestReused(
                    "this id came with another request before; each request needs an id of its own"
                )
            return row[_RESULT.size :]
        return None

    def _is_over(self, time_ms: int) -> bool:
        # With a clock that was set back the difference is negative: the row counts as new.
        return self._now_ms - time_ms >= self._limits.kept_ms

    def keep(self, mark: RequestMark, result: bytes) -> None:
        """Keep the result of a request that `find` did not find."""
        head = self._head_with_room(mark.principal, len(result))
        row = _RESULT.pack(self._now_ms, mark.request) + result
        self._rows.put(mark.principal, head.part, mark.id, row)
        made = _Head(head.part, head.requests + 1, head.result_bytes + len(result), self._now_ms)
        self._rows.set_head(mark.principal, _HEAD.pack(*made))

    def _head_with_room(self, principal: bytes, size: int) -> _Head:
        """Return the head of a principal with room in its part for a result of `size` bytes."""
        found = self._rows.head(principal)
        if found is None:
            self._make_room_for_principal()
            return _Head()
        head = _Head(*_HEAD.unpack(found))
        if self._is_over(head.last_ms):  # the newest row has expired, so all have
            self._rows.drop(principal)
            return _Head()
        most = self._limits
        is_full = (
            head.requests >= most.requests // 2
            # A result longer than this is alone in its part.
            or head.result_bytes + size > most.result_bytes // 2
        )
        if not is_full:
            return head
        self._rows.clear(principal, 1 - head.part)
        return _Head(1 - head.part)

    def _make_room_for_principal(self) -> None:
        last = {who: _Head(*_HEAD.unpack(head)).last_ms for who, head in self._rows.heads()}
        if len(last) < self._limits.principals:
            return
        idle = [who for who, time_ms in last.items() if self._is_over(time_ms)]
        # The principal breaks ties, so that simulations repeat.
        for who in idle or [min(last, key=lambda one: (last[one], one))]:
            self._rows.drop(who)


# --- storages of rows -----------------------------------------------------------------------------


class CellRows:
    """Rows in a Map from principal to its book, a Vector [head, part 0, part 1], for `:local`."""

    def __init__(self, books: Value) -> None:
        self._books: Map = books if isinstance(books, Map) else EMPTY_MAP
        self._read: dict[bytes, list[Value]] = {}  # books as lists, by principal
        self._fresh: dict[tuple[bytes, int], dict[bytes, bytes]] = {}  # rows not yet in a book
        self.has_changed = False

    @property
    def books(self) -> Map:
        """The Map with all changes."""
        for (principal, part), fresh in self._fresh.items():
            book = self._book(principal)
            rows = book[1 + part]
            book[1 + part] = (rows if isinstance(rows, Map) else EMPTY_MAP).put_many(fresh)
        self._fresh.clear()
        for principal, book in self._read.items():
            # Without a head it was only read.
            if book[0]:
                self._books = self._books.put(principal, Vector.of(book))
        self._read.clear()
        return self._books

    def _book(self, principal: bytes) -> list[Value]:
        """Return the book of a principal, to be changed in place."""
        known = self._read.get(principal)
        if known is not None:
            return known
        found = self._books.get(principal)
        # A malformed book reads as empty: the slot may have been written by another version.
        if not isinstance(found, Vector) or len(found) != len(_NO_BOOK):
            found = Vector.of(_NO_BOOK)
        made = self._read[principal] = list(found)
        return made

    def heads(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield the principals that have rows, with their heads."""
        for principal in list(self.books.keys()):
            assert isinstance(principal, bytes)
            head = self.head(principal)
            if head is not None:
                yield principal, head

    def head(self, principal: bytes) -> bytes | None:
        """Return a head, or None."""
        found = self._book(principal)[0]
        return found if isinstance(found, bytes) and found else None

    def set_head(self, principal: bytes, head: bytes) -> None:
        """Set a head."""
        self.has_changed = True
        self._book(principal)[0] = head

    def get(self, principal: bytes, part: int, id: bytes) -> bytes | None:
        """Return a row, or None."""
        fresh = self._fresh.get((principal, part))
        if fresh is not None and id in fresh:
            return fresh[id]
        rows = self._book(principal)[1 + part]
        found = rows.get(id) if isinstance(rows, Map) else None
        return bytes(found) if isinstance(found, bytes | Blob) else None  # long rows are Blobs

    def put(self, principal: bytes, part: int, id: bytes, row: bytes) -> None:
        """Set a row."""
        self._fresh.setdefault((principal, part), {})[id] = row

    def clear(self, principal: bytes, part: int) -> None:
        """Remove the rows of a part."""
        self._fresh.pop((principal, part), None)
        self._book(principal)[1 + part] = EMPTY_MAP

    def drop(self, principal: bytes) -> None:
        """Remove the head and the rows of a principal."""
        for part in (0, 1):
            self._fresh.pop((principal, part), None)
        self._read.pop(principal, None)
        self._books = self._books.remove(principal)


_NO_BOOK: Final[tuple[Value, ...]] = (b"", EMPTY_MAP, EMPTY_MAP)


class EngineRows:
    """Rows in a table of an engine, in a transaction."""

    def __init__(self, txn: GroupTxn | WriteTxn) -> None:
        self._txn: Final = txn

    def heads(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield the principals that have rows, with their heads."""
        # Keys of heads begin with `h` and those of rows with `r`, so this reads no rows.
        for key, head in self._txn.scan(REQUESTS, b"h", b"i"):
            yield key[1:], head

    def head(self, principal: bytes) -> bytes | None:
        """Return a head, or None."""
        return self._txn.get(REQUESTS, b"h" + principal)

    def set_head(self, principal: bytes, head: bytes) -> None:
        """Set a head."""
        self._txn.put(REQUESTS, b"h" + principal, head)

    def get(self, principal: bytes, part: int, id: bytes) -> bytes | None:
        """Return a row, or None."""
        return self._txn.get(REQUESTS, _part_key(principal, part) + id)

    def put(self, principal: bytes, part: int, id: bytes, row: bytes) -> None:
        """Set a row."""
        self._txn.put(REQUESTS, _part_key(principal, part) + id, row)

    def clear(self, principal: bytes, part: int) -> None:
        """Remove the rows of a part."""
        start, end = _part_key(principal, part), _part_key(principal, part + 1)
        self._txn.delete_range(REQUESTS, start, end)

    def drop(self, principal: bytes) -> None:
        """Remove the head and the rows of a principal."""
        self._txn.delete(REQUESTS, b"h" + principal)
        self.clear(principal, 0)
        self.clear(principal, 1)


def _part_key(principal: bytes, part: int) -> bytes:
    return b"r" + principal + bytes([part])


# --- doing a request once -------------------------------------------------------------------------


class RequestRepeated(Exception):
    """The request was done before. `result`: its encoded result."""

    def __init__(self, result: bytes) -> None:
        super().__init__("the request was done before")
        self.result = result


class KeptResults:
    """The kept results of one node."""

    def __init__(self, node: Node, clock: Clock, limits: RequestLimits = REQUEST_LIMITS) -> None:
        self._node: Final = node
        self._clock: Final = clock
        self._limits: Final = limits

    def in_lattice(self, mark: RequestMark, work: Callable[[], Message]) -> Message:
        """Do `work`, which changes the lattice; return its result, durable and kept.

        Raises: RequestRepeated, RequestReused; what `work` raises: then nothing is kept.
        """

        def once() -> tuple[Message | None, bytes | None]:
            # Concurrent requests write their rows in one commit.
            shared = self._node.share(REQUESTS_KEY, self._read, self._write)
            rows = self._read() if shared is None else shared
            table = RequestTable(rows, present_ms(self._clock), self._limits)
            kept = table.find(mark)
            if kept is not None:
                return None, kept
            made = work()
            # After the work: a failed change keeps no result.
            table.keep(mark, made.encode())
            if shared is None:
                self._write(rows)
            return made, None

        return _done(self._node.atomically(once))

    def _read(self) -> CellRows:
        held = self._cursor().get()
        return CellRows(held.get(_BOOKS) if isinstance(held, Map) else None)

    def _write(self, rows: CellRows) -> None:
        if not rows.has_changed:
            return
        cursor = self._cursor()
        held = cursor.get()
        register = held if isinstance(held, Map) else EMPTY_MAP
        # "The registers of `:local` are last-write-wins" (docs/design/forks.md "Evidence").
        stamp = next_stamp(present_ms(self._clock), map_timestamp(register))
        cursor.set(register.put(_BOOKS, rows.books).put(TIMESTAMP, stamp))

    def _cursor(self) -> LatticeCursor:
        pair = self._node.cursor().context.key_pair
        if pair is None:
            raise NoSigningKey("a write needs a key; make one with `lattice key new`")
        return self._node.cursor(LOCAL_KEY, pair.public_key, VALUE_KEY, REQUESTS_KEY)

    def in_stores(self, mark: RequestMark, answer: Callable[[Any], Message]) -> Once:
        """Return the `Once` that runs a transaction of the stores; it raises as `in_lattice`.

        answer: makes the result of the action from what the transaction wrote.
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

            # Raised after the commit: the earlier request may be in the same group of transactions.
            return _done(commits.run(guarded))

        return once


def _done(outcome: tuple[T | None, bytes | None]) -> T:
    made, kept = outcome
    if kept is not None:
        raise RequestRepeated(kept)
    return made  # type: ignore[return-value]
