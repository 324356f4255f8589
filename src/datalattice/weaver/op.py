"""Op: one operation as machines see it, in a module of its own because it is compiled.

Source: docs/design/weaver.md "Machines".
"""

from __future__ import annotations

from typing import Final

from datalattice.clock import Hlc

_NO_PREDECESSOR: Final = bytes(32)


class Op:
    """One operation: an intention whose dependencies have all been applied.

    height: position in the author's chain, from 1. deps: hashes in ascending order.
    """

    __slots__ = ("author", "deps", "hash", "height", "payload", "prev", "stamp")

    def __init__(
        self,
        hash: bytes,
        payload: bytes,
        stamp: Hlc,
        author: bytes,
        deps: tuple[bytes, ...] = (),
        prev: bytes = _NO_PREDECESSOR,
        height: int = 1,
    ) -> None:
        self.hash = hash
        self.payload = payload
        self.stamp = stamp
        self.author = author
        self.deps = deps
        self.prev = prev
        self.height = height

    def with_payload(self, payload: bytes) -> Op:
        """Return the operation with another payload."""
        return Op(self.hash, payload, self.stamp, self.author, self.deps, self.prev, self.height)

    def __eq__(self, other: object) -> bool:
        return (  # a hash names the rest; payload and height differ in views of one operation
            isinstance(other, Op)
            and self.hash == other.hash
            and self.payload == other.payload
            and self.height == other.height
        )

    def __hash__(self) -> int:
        return hash(self.hash)

    def __repr__(self) -> str:
        return f"Op({self.hash.hex()}, {len(self.payload)} bytes of {self.author.hex()})"


class Appended:
    """Operations that a transaction has added to a log, in its order.

    start: number of the record before them. before, end: content hashes of that record and of the
    last one.
    """

    __slots__ = ("before", "end", "ops", "start")

    def __init__(self, start: int, before: bytes, ops: list[Op], end: bytes) -> None:
        self.start = start
        self.before = before
        self.ops = ops
        self.end = end

    @property
    def last(self) -> int:
        """The number of the last record of the log."""
        return self.start + len(self.ops)
