"""Incoming: foreign values on their way in, and what is noted of those that wait for cells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from datalattice.cells import MessageCells, Value, Vector, encode, is_embedded, value_hash
from datalattice.crypto import sha3_256
from datalattice.sync.lattice.forkrecords import FORKS_KEY
from datalattice.wire import Patched

_ROOT_PLACE: Final = sha3_256(encode(Vector.of(())))
"""Where a root stands, as nearly every value that peers send does."""


@dataclass(frozen=True, slots=True)
class Incoming:
    """What a message brought: a value at a path, or its hash when its own cell was left out.

    is_branch: it is evidence that the peer keeps of a fork, and not what the peer has at the path.
    sent: the bytes that came, where they are fewer than those of the cells: the length of a patch.
    """

    path: tuple[Value, ...]
    value: Value
    cells: MessageCells
    absent: bytes | None = None
    is_branch: bool = False
    sent: int | None = None

    @property
    def place(self) -> bytes:
        """The hash of where it stands: of values of one peer there, the newer contains the older.

        A branch stands apart, for it does not contain what the peer has at its path.
        """
        path = (FORKS_KEY, *self.path) if self.is_branch else self.path
        return sha3_256(encode(Vector.of(path))) if path else _ROOT_PLACE

    @property
    def size_bytes(self) -> int:
        """Bytes that came for the cells."""
        if self.sent is not None:
            return self.sent
        top = 0 if self.absent is not None else len(encode(self.value))
        return top + sum(map(len, self.cells.encodings().values()))


@dataclass(frozen=True, slots=True)
class PatchedRoot:
    """What a patch brought: a root, as what differs from another one.

    size_bytes: of its message. bytes_max: of the longest message that could have brought it all.
    """

    message: Patched
    size_bytes: int
    bytes_max: int


class Claim(NamedTuple):
    """A foreign root that waits for cells.

    One peer has one for each path; a newer one replaces it.
    """

    peer: str
    place: bytes


@dataclass(frozen=True, slots=True)
class Waiting:
    """A claimed value: the key it was offered under, its path, and its top.

    `top` is its hash, or its encoding when it has no cell of its own. It is `wrapped` already
    unless that took cells that are not here yet.
    """

    key: bytes
    path: tuple[Value, ...]
    top: bytes
    is_hash: bool
    is_wrapped: bool

    @staticmethod
    def of(value: Value, key: bytes, path: tuple[Value, ...], *, is_wrapped: bool) -> Waiting:
        """Return the claim of a value that is here, offered under `key`."""
        is_hash = not is_embedded(value)
        top = value_hash(value) if is_hash else encode(value)
        return Waiting(key, path, top, is_hash, is_wrapped)
