"""Compare two roots: the keys that differ, found by walking both along their lattices.

A row is a key as applications see it: a key of a database, a partition of a topic, a file of a
drive, or an entry of any other lattice with named or keyed children. Equal subtrees are not read.
`planned` divides the top among tasks, `row_pairs` walks the pairs of a task.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import datalattice.apps  # noqa: F401 - registers the sections of the root lattice
from datalattice.apps.dlfs import DLFSLattice, read_node
from datalattice.apps.queue import TopicLattice
from datalattice.cells import (
    ABSENT,
    EMPTY_INDEX,
    EMPTY_MAP,
    Index,
    IndexPart,
    Map,
    Signed,
    Value,
    same,
)
from datalattice.lattice import (
    CASLattice,
    DataLattice,
    KeyedLattice,
    Lattice,
    MapLattice,
    OwnerLattice,
    SignedLattice,
    replicable,
    root_lattice,
    shown_key,
)
from datalattice.pipeline.index_partitions import split

PART_KEYS: Final = 65_536
"""Keys on both sides together that one task compares, if the pair can be divided."""

_ADDED: Final = "added"
REMOVED: Final = "removed"
CHANGED: Final = "changed"
SIGNED_AGAIN: Final = "signed again"
"""The same value under another signature."""


_TOP: Final = (KeyedLattice, OwnerLattice, SignedLattice, MapLattice)
"""Lattices with few keys and large values; the planner divides them."""

_KEYED: Final = (KeyedLattice, TopicLattice, DataLattice, CASLattice)
"""Lattices whose entries are rows although the entries have no lattice of their own."""


class Signers(NamedTuple):
    """The signers of the value that a row belongs to; None: unsigned or absent."""

    before: bytes | None = None
    after: bytes | None = None
    valid: bool | None = None
    """Whether the signature is valid: that of the later side, otherwise of the only one."""


NO_SIGNERS: Final = Signers()


@dataclass(frozen=True, slots=True)
class ValuePair:
    """The values at one path of two roots; `ABSENT` where there is none."""

    path: tuple[Value, ...]
    before: object
    after: object
    lattice: Lattice | None
    signers: Signers = NO_SIGNERS
    owner: Value = None
    change: str = ""
    """The kind of change, if it does not follow from the two values."""

    @property
    def size(self) -> int:
        """Approximate work to compare the pair: entries on both sides."""
        sides = (self.before, self.after)
        return max(1, sum(len(one) for one in sides if isinstance(one, (Map, Index))))

    @property
    def kind(self) -> str:
        """The kind of change in the pair's row."""
        if self.change:
            return self.change
        if self.before is ABSENT:
            return _ADDED
        return REMOVED if self.after is ABSENT else CHANGED


def planned(before: Value, after: Value) -> Iterator[ValuePair]:
    """Yield pairs that together contain all differences, divided to `PART_KEYS` where possible.

    Raises: MissingData: a visited cell is missing.
    Cost:   the differing cells above the pairs.
    """
    # `:local` is the node's own and is not compared.
    waiting = [iter([ValuePair((), replicable(before), replicable(after), root_lattice())])]
    while waiting:
        pair = next(waiting[-1], None)
        if pair is None:
            waiting.pop()
            continue
        # These have few keys with large values, so the values are divided.
        if isinstance(pair.lattice, _TOP) and (below := _below(pair)) is not None:
            waiting.append(below)
        # Only an Index can be divided by keys without reading all of its entries.
        elif pair.size > PART_KEYS and _is_index(pair.before) and _is_index(pair.after):
            for part in split(_index(pair.before), _index(pair.after), PART_KEYS):
                own, other = part.own or EMPTY_INDEX, part.other or EMPTY_INDEX
                yield replace(pair, before=own, after=other)
        else:
            yield pair


def row_pairs(pair: ValuePair) -> Iterator[ValuePair]:
    """Yield the differences of a pair, as deep as the lattice has keys.

    Raises: as `planned`.
    Cost:   proportional to the differences.
    """
    waiting = [iter([pair])]
    while waiting:
        one = next(waiting[-1], None)
        if one is None:
            waiting.pop()
            continue
        below = _below(one)
        if below is not None:
            waiting.append(below)
        else:
            yield one


def _below(pair: ValuePair) -> Iterator[ValuePair] | None:
    """Return the differing pairs one key below a pair; None if the pair is a row."""
    lattice, before, after = pair.lattice, _there(pair.before), _there(pair.after)
    if lattice is None:
        return None
    if isinstance(lattice, SignedLattice):
        return _signed(pair, lattice, before, after)
    # Directories nest without limit, unlike the keys of other lattices.
    if isinstance(lattice, DLFSLattice):
        return _in_drive(pair, lattice, before, after)
    found: Iterator[tuple[Value, bool, Value, bool, Value]]
    if _is_map(before) and _is_map(after) and (before is not None or after is not None):
        found = _map(before).differences(_map(after))
    elif _is_index(before) and _is_index(after) and (before is not None or after is not None):
        found = IndexPart(_index(before), _index(after)).differences(apart=True)
    else:
        return None
    first = next(found, None)
    if first is None:
        return iter(())
    # The lattice of a register has no keys, so a Map in it is one row.
    if not isinstance(lattice, _KEYED) and lattice.child(first[0]) is None:
        return None
    return (
        replace(
            pair,
            path=(*pair.path, shown_key(key)),
            before=mine if has else ABSENT,
            after=theirs if had else ABSENT,
            lattice=lattice.child(key),
            owner=key if isinstance(lattice, OwnerLattice) else pair.owner,
        )
        for key, has, mine, had, theirs in itertools.chain([first], found)
    )


def _signed(
    pair: ValuePair, lattice: SignedLattice, before: Value, after: Value
) -> Iterator[ValuePair] | None:
    """Return the pair of the signed values; None if the pair is a row."""
    sides = (before, after)
    # Anything other than signed values on both sides is one row: no signature covers what is below.
    if not any(isinstance(one, Signed) for one in sides) or not all(
        one is None or isinstance(one, Signed) for one in sides
    ):
        return None
    mine = before if isinstance(before, Signed) else None
    theirs = after if isinstance(after, Signed) else None
    last = theirs or mine
    signers = Signers(
        None if mine is None else mine.public_key,
        None if theirs is None else theirs.public_key,
        # The signature of the later side, which other nodes check.
        last is not None and last.verify(),
    )
    # The same value under two signatures is one row: nothing below it differs.
    if mine is not None and theirs is not None and same(mine.value, theirs.value):
        return iter([replace(pair, lattice=None, signers=signers, change=SIGNED_AGAIN)])
    return iter(
        [
            replace(
                pair,
                before=ABSENT if mine is None else mine.value,
                after=ABSENT if theirs is None else theirs.value,
                lattice=lattice.inner,
                signers=signers,
            )
        ]
    )


def _in_drive(
    pair: ValuePair, lattice: DLFSLattice, before: Value, after: Value
) -> Iterator[ValuePair] | None:
    """Return the pairs of the names in two directories; None for a file or a malformed node.

    A directory on both sides is not a row, since its time follows from its entries.
    """
    nodes = [read_node(one) for one in (before, after)]
    entries = [None if node is None else node.entries for node in nodes]
    # No names on either side: a file, an empty directory, or no node at all.
    if not any(one is not None and len(one) for one in entries):
        both = all(one is not None for one in entries)
        return iter(()) if both else None
    found = IndexPart(entries[0], entries[1]).differences(apart=True)
    below = (
        replace(
            pair,
            path=(*pair.path, shown_key(name)),
            before=mine if has else ABSENT,
            after=theirs if had else ABSENT,
            lattice=lattice,
        )
        for name, has, mine, had, theirs in found
    )
    if all(one is not None for one in entries):
        return below
    # An added or removed directory is a row, and so is everything in it.
    return itertools.chain([replace(pair, lattice=None)], below)


def _there(side: object) -> Value:
    return None if side is ABSENT else side


def _is_map(side: object) -> bool:
    return side is None or side is ABSENT or isinstance(side, Map)


def _is_index(side: object) -> bool:
    return side is None or side is ABSENT or isinstance(side, Index)


def _map(side: object) -> Map:
    return side if isinstance(side, Map) else EMPTY_MAP


def _index(side: object) -> Index | None:
    return side if isinstance(side, Index) else None
