"""Comparing: which keys differ between two roots, walked as their lattices say, in parts.

A row is a key of the application: a key of a database, a partition of a topic, a file of a drive,
an entry of any other lattice with named or keyed children. Below what two roots share nothing is
read. `planned` takes the top apart, `rows_of` walks what is left to a task.
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

PART_KEYS: Final = 65_536
"""Keys of both sides together that one task looks at, where they can be parted."""

ADDED: Final = "added"
REMOVED: Final = "removed"
CHANGED: Final = "changed"
SIGNED_AGAIN: Final = "signed again"
"""The same value under another signature."""


_TOP: Final = (KeyedLattice, OwnerLattice, SignedLattice, MapLattice)
"""Lattices of few keys, with large values below them: taken apart where the work is planned."""

_KEYED: Final = (KeyedLattice, TopicLattice, DataLattice, CASLattice)
"""Lattices whose entries are rows, though they have no lattice of their own."""


class Signers(NamedTuple):
    """Who signed what a row is part of; nil: nobody, or the side has nothing there."""

    before: bytes | None = None
    after: bytes | None = None
    valid: bool | None = None
    """Whether the signature holds: that of the later side, else of the one that is there."""


NO_SIGNERS: Final = Signers()


@dataclass(frozen=True, slots=True)
class ValuePair:
    """Two values at one place of two roots; `ABSENT` where there is none."""

    path: tuple[Value, ...]
    before: object
    after: object
    lattice: Lattice | None
    signers: Signers = NO_SIGNERS
    owner: Value = None
    change: str = ""
    """The kind of change, where it does not follow from the two values."""

    @property
    def size(self) -> int:
        """What there is to look at, about: entries on both sides."""
        sides = (self.before, self.after)
        return max(1, sum(len(one) for one in sides if isinstance(one, (Map, Index))))

    @property
    def kind(self) -> str:
        """The kind of change that a row of this pair is."""
        if self.change:
            return self.change
        if self.before is ABSENT:
            return ADDED
        return REMOVED if self.after is ABSENT else CHANGED


def planned(before: Value, after: Value) -> Iterator[ValuePair]:
    """Yield pairs that together hold all that differs, none of them large that can be parted.

    Raises: MissingData: a cell that is looked at is not at hand.
    Cost:   the cells above what is yielded, of them those that differ.
    """
    waiting = [iter([ValuePair((), replicable(before), replicable(after), root_lattice())])]
    while waiting:
        pair = next(waiting[-1], None)
        if pair is None:
            waiting.pop()
            continue
        if isinstance(pair.lattice, _TOP) and (below := _below(pair)) is not None:
            waiting.append(below)
        elif pair.size > PART_KEYS and _is_index(pair.before) and _is_index(pair.after):
            yield from _parted(pair)
        else:
            yield pair


def rows_of(pair: ValuePair) -> Iterator[ValuePair]:
    """Yield what differs in a pair: each as deep as the lattice has keys for it.

    Raises: as `planned`.
    Cost:   what differs.
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


def _parted(pair: ValuePair) -> Iterator[ValuePair]:
    """Yield the parts of two indexes that differ, each small or of one key."""
    stack = [IndexPart(_index(pair.before), _index(pair.after))]
    while stack:
        part = stack.pop()
        if part.size <= PART_KEYS:
            own, other = part.own or EMPTY_INDEX, part.other or EMPTY_INDEX
            yield replace(pair, before=own, after=other)
        else:
            below = part.split()
            below.reverse()
            stack.extend(below)


def _below(pair: ValuePair) -> Iterator[ValuePair] | None:
    """Return the pairs one key below a pair, without those that are equal; None: it is a row."""
    lattice, before, after = pair.lattice, _there(pair.before), _there(pair.after)
    if lattice is None:
        return None
    if isinstance(lattice, SignedLattice):
        return _signed(pair, lattice, before, after)
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
    # A register that happens to hold a Map is a row: its lattice knows no keys.
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
    """Return the pair of the values that are signed, None where it is a row."""
    sides = (before, after)
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
        last is not None and last.verify(),
    )
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
    """Return the pairs of the names in two directories, None for a file, or what is no directory.

    The directory itself is no row where both sides have it: its time follows what is in it.
    """
    nodes = [read_node(one) for one in (before, after)]
    entries = [None if node is None else node.entries for node in nodes]
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
