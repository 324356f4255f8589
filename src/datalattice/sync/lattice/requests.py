"""Lattice requests: what a lattice replica and its conversations say to each other.

A comparison says `State` and `Question`, and is given a `Content` for each question. What a peer
asks comes to the replica as a `Lookup`, and the answer is `LookupResult`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Final

from datalattice.cells import MessageCells, Value, Vector, encode, value_hash
from datalattice.crypto import sha3_256
from datalattice.sync.lattice.incoming import Incoming
from datalattice.sync.lattice.patch import Load
from datalattice.sync.replica import FETCHES, REPLICATES, Offer, Probe

PATCHES: Final = "patches"
"""Feature of a peer that reads patches."""

ALIKE: Final = frozenset({FETCHES, REPLICATES, PATCHES})
"""Features of a peer that speaks both extensions."""


@dataclass(frozen=True, slots=True)
class State:
    """Of a comparison: tell the peer our state."""

    offer: Offer


@dataclass(frozen=True, slots=True)
class Question:
    """Of a comparison: ask what the peer has at a path, with so many bytes of cells.

    is_optional: it is left out when too many wait for an answer already.
    """

    path: tuple[Value, ...]
    cells_bytes: int
    is_optional: bool = False


@dataclass(frozen=True, slots=True)
class Content:
    """What the peer has at the path of a question: a value with its cells, or why there is none.

    absent:    the hash of the value, where its own cell was left out.
    is_absent: the error says that the peer has no such place.
    """

    path: tuple[Value, ...]
    value: Value = None
    parts: MessageCells = field(default_factory=partial(MessageCells, None))
    absent: bytes | None = None
    error: str | None = None
    is_absent: bool = False


@dataclass(frozen=True, slots=True)
class Lookup:
    """A peer asks what is announced at a path.

    is_strict: a section that the lattice does not have is an error, not None.
    """

    path: tuple[Value, ...]
    is_strict: bool


@dataclass(frozen=True, slots=True)
class LookupResult:
    """The answer to a `Lookup`: a value and what loads cells below it, or why there is none."""

    value: Value = None
    load: Load | None = None
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
    if path:
        key = sha3_256(encode(Vector.of(path)) + key)
    return Offer(Probe(key, Incoming(path, value, parts, absent, is_branch)), is_aside=is_branch)
