"""Incoming: what the lattice's conversation and replica hand to each other about foreign values.

The conversation knows messages, the replica knows the lattice. Between them go questions and their
answers, and statements: a value at a path, or its hash, or a patch that makes it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

from datalattice.cells import (
    LoadEncoding,
    MessageCells,
    Value,
    Vector,
    decode_parts,
    encode,
    is_embedded,
    join_cells,
    value_hash,
)
from datalattice.crypto import sha3_256
from datalattice.errors import BadFormat, LimitExceeded, MissingData
from datalattice.sync.lattice.delta import LoadAll
from datalattice.sync.lattice.forkrecords import FORKS_KEY
from datalattice.sync.lattice.patch import cells_worth, read_patch
from datalattice.sync.replica import FETCHES, REPLICATES, Absorbed, Offer, Probe, Undecodable
from datalattice.wire import PATCH_BYTES_MAX, Patched

PATCHES: Final = "patches"
"""Feature of a peer that reads patches."""

ALIKE: Final = frozenset({FETCHES, REPLICATES, PATCHES})
"""Features of a peer that speaks both extensions."""
_ROOT_LOCATION: Final = sha3_256(encode(Vector.of(())))
"""The location of a root, which nearly all values of peers have."""


@dataclass(frozen=True, slots=True)
class Incoming:
    """A foreign value at a path, or its hash when its own cell was left out of the message.

    is_branch: it is evidence that the peer keeps of a fork, not what the peer has at the path.
    sent: the bytes that came, where they are fewer than those of the cells: the length of a patch.
    """

    path: tuple[Value, ...]
    value: Value
    cells: MessageCells
    absent: bytes | None = None
    is_branch: bool = False
    sent: int | None = None

    @property
    def location(self) -> bytes:
        """The hash of its path: of one peer's values at a location the newer contains the older."""
        # A branch has a location of its own, since it does not contain what the peer has there.
        path = (FORKS_KEY, *self.path) if self.is_branch else self.path
        return sha3_256(encode(Vector.of(path))) if path else _ROOT_LOCATION

    @property
    def size_bytes(self) -> int:
        """Bytes that came for the cells."""
        # A patch counts as the bytes of its message, however many cells it makes.
        if self.sent is not None:
            return self.sent
        top = 0 if self.absent is not None else len(encode(self.value))
        return top + sum(map(len, self.cells.encodings().values()))


@dataclass(frozen=True, slots=True)
class PatchedRoot:
    """A root that came as a patch of another one.

    size_bytes: of its message. bytes_max: of the longest message that could have brought it all.
    """

    message: Patched
    size_bytes: int
    bytes_max: int


class Claim(NamedTuple):
    """A foreign value that waits for cells; a newer one of that peer and location replaces it."""

    peer: str
    location: bytes


@dataclass(frozen=True, slots=True)
class Waiting:
    """A claimed value.

    key:        under which it was offered.
    top:        its hash, or its encoding when it has no cell of its own.
    is_wrapped: it is a root already. Otherwise wrapping needs cells that are not here yet.
    """

    key: bytes
    path: tuple[Value, ...]
    top: bytes
    is_hash: bool
    is_wrapped: bool

    @staticmethod
    def of(value: Value, key: bytes, path: tuple[Value, ...], *, is_wrapped: bool) -> Waiting:
        """Return the claim of a value whose own cell is here, offered under `key`."""
        is_hash = not is_embedded(value)
        top = value_hash(value) if is_hash else encode(value)
        return Waiting(key, path, top, is_hash, is_wrapped)


@dataclass(frozen=True, slots=True)
class StatedRoot:
    """What a comparison says: our state."""

    offer: Offer


@dataclass(frozen=True, slots=True)
class Question:
    """What a comparison asks: the peer's value at a path, with up to `cells_bytes` of its cells.

    is_optional: it is left out when too many requests wait for an answer already.
    """

    path: tuple[Value, ...]
    cells_bytes: int
    is_optional: bool = False


@dataclass(frozen=True, slots=True)
class QueriedValue:
    """The answer to a `Question`: the peer's value at the path with its cells, or an error.

    absent:    the hash of the value, where its own cell was left out.
    is_absent: the error says that the peer has no such path.
    """

    path: tuple[Value, ...]
    value: Value = None
    parts: MessageCells = field(default_factory=partial(MessageCells, None))
    absent: bytes | None = None
    error: str | None = None
    is_absent: bool = False


@dataclass(frozen=True, slots=True)
class Lookup:
    """A question of a peer: what is announced at a path.

    is_strict: a section that the lattice does not have is an error, not None.
    """

    path: tuple[Value, ...]
    is_strict: bool


@dataclass(frozen=True, slots=True)
class LookupResult:
    """The answer to a `Lookup`: a value and a function that loads cells below it, or an error."""

    value: Value = None
    load_all: LoadAll | None = None
    error: str | None = None


def stated(
    path: tuple[Value, ...],
    value: Value,
    parts: MessageCells,
    absent: bytes | None = None,
    *,
    is_branch: bool = False,
) -> Offer:
    """Return the offer of a value at a path; `absent`: its hash, where its own cell is left out."""
    key = value_hash(value) if absent is None else absent
    # The key names the path, too: a value below the root differs from the same value as a root.
    if path:
        key = sha3_256(encode(Vector.of(path)) + key)
    return Offer(Probe(key, Incoming(path, value, parts, absent, is_branch)), is_aside=is_branch)


def unpatched(offer: Offer, load: LoadEncoding, outcome: Absorbed) -> Offer:
    """Return the value that a patch makes, or its hash alone where that is known or unreadable.

    load:    returns a cell of the store.
    outcome: records that the patch was unreadable.
    Raises: Undecodable: the patch is malformed.
    """
    patched = None if offer.probe is None else offer.probe.data
    if not isinstance(patched, PatchedRoot):
        return offer
    message, size = patched.message, patched.size_bytes
    patch = message.patch
    # The base travels by its hash, unless it is short enough to be embedded.
    base = encode(message.base) if message.absent is None else load(message.absent)
    top = Probe(message.hash, Incoming((), None, MessageCells(None), message.hash, sent=size))
    # "It is read when it is no longer than its message, its value is not here"
    # (foreign-data.md, Charges): to read it again would earn for cells that are here.
    if load(message.hash) is not None:
        return Offer(top)
    outcome.unread = True
    # A patch may be a blob of a few cells that repeat, so of any length.
    if base is None or len(patch) > size:
        return Offer(top)
    # "A patch, and the cells that it makes: 8,000,000 bytes each" (docs/protocol.md, Limits).
    limit = min(patched.bytes_max, PATCH_BYTES_MAX)
    try:
        cells = read_patch(bytes(patch), base, load, limit, cells_worth(len(patch)))
        hash, cell = cells.popitem()
        # What it makes is not what it says: "it counts as a statement of the root".
        if hash != message.hash:
            return Offer(top)
        made = join_cells(cell, cells.values())
        value, parts = decode_parts(made, None, patched.bytes_max, ordered=False)
    except (MissingData, LimitExceeded):
        return Offer(top)
    except BadFormat as error:
        raise Undecodable(str(error)) from error
    outcome.unread = False
    return Offer(Probe(hash, Incoming((), value, parts, sent=size)))
