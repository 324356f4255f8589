"""Log machine, `core:logstore`: append, read, tail and follow.

Entries are ordered by time, then author:

    key   = wall (8, big-endian) | counter (4) | author (32) [| intention hash (32)]
    value = content length (8, little-endian) | content

A payload is the content itself. An author's stamps increase, so keys differ; where a foreign author
stamps two entries alike, the later one of its chain has its hash appended to the key.

Source: docs/design/weaver.md "Shipped machines".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Annotated, Final

from datalattice.protobuf import Field, Message
from datalattice.weaver.machine import (
    Dag,
    Machine,
    Proposal,
    StateReader,
    StateWriter,
    Written,
    command,
    query,
    stream,
)
from datalattice.weaver.op import Op
from datalattice.weaver.sexpr import SExpr, SymbolWord, printable

SUMMARY_BYTES: Final = 50
"""Bytes of an entry that a summary shows."""

_LENGTH_BYTES: Final = 8  # fixed width, so a value's length is known without decoding it


class AppendRequest(Message, name="lattice.log.AppendRequest"):
    """Append an entry."""

    content: Annotated[bytes, Field(1)] = b""


class ReadRequest(Message, name="lattice.log.ReadRequest"):
    """Read all entries, or the last `tail`."""

    tail: Annotated[int | None, Field(1, "uint64")] = None


class ReadResponse(Message, name="lattice.log.ReadResponse"):
    """Entries, the oldest first."""

    items: Annotated[tuple[bytes, ...], Field(1)] = ()


class FollowParams(Message, name="lattice.log.FollowParams"):
    """No parameters."""


class LogEvent(Message, name="lattice.log.LogEvent"):
    """An entry that arrived."""

    content: Annotated[bytes, Field(1)] = b""


class LogMachine(Machine):
    """Entries of bytes in the order of their stamps."""

    kind = "core:logstore"
    aliases = ("log",)
    service = "lattice.log.LogStore"

    def apply(self, op: Op, state: StateWriter, dag: Dag) -> Iterable[Message]:
        """Store the entry; an empty payload stores nothing."""
        if not op.payload:  # "Empty payload: accepted, nothing stored"
            return ()
        key = log_entry_key(op)
        if state.get(key) is not None:
            # Both stay: a foreign author whose stamps do not increase must not stop this node.
            key += op.hash
        state.put(key, len(op.payload).to_bytes(_LENGTH_BYTES, "little") + op.payload)
        return (LogEvent(op.payload),)

    @command
    def append(self, request: AppendRequest, state: StateReader, dag: Dag) -> Proposal[Written]:
        """Append an entry."""
        # Without dependencies: entries do not replace each other.
        return Proposal(request.content)

    @query
    def read(self, request: ReadRequest, state: StateReader, dag: Dag) -> ReadResponse:
        """Read all entries or the last few, the oldest first."""
        if request.tail is None:
            return ReadResponse(tuple(content for _, content in entries(state)))
        # From the end: the cost is that of the tail, not of the log.
        last = [content for _, content in islice(entries(state, reverse=True), request.tail)]
        return ReadResponse(tuple(reversed(last)))

    @stream
    def follow(self, params: FollowParams) -> Callable[[Message], LogEvent | None]:
        """Follow the entries in the order of their arrival."""
        return lambda event: event if isinstance(event, LogEvent) else None

    def summarize(self, payload: bytes) -> tuple[SExpr, ...]:
        """Return `(append "first 50 bytes")`."""
        return ((SymbolWord("append"), printable(payload[:SUMMARY_BYTES])),)


def log_entry_key(op: Op) -> bytes:
    """Return the key of an entry: 44 bytes that sort by time, then author."""
    # The counter keeps the entries of one author and one millisecond apart.
    return op.stamp.wall.to_bytes(8, "big") + op.stamp.counter.to_bytes(4, "big") + op.author


def entries(
    state: StateReader, start: bytes = b"", end: bytes | None = None, *, reverse: bool = False
) -> Iterator[tuple[bytes, bytes]]:
    """Yield key and content of the entries with start <= key < end, oldest first or in reverse."""
    for key, value in state.scan(start, end, reverse=reverse):
        yield key, value[_LENGTH_BYTES:]  # past the length in front
