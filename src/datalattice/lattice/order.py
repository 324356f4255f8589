"""Order: which of two forked values of one owner every node takes.

A value is a set of elements `(time, key path, tail)`. Of two values, the one that has the greatest
element that the other lacks is the greater. This is a total order, like that of binary numbers with
the elements as digits, so it has no cycles whatever was signed. A value that contains another has
elements that the other lacks, so it is the greater one.

Only differences are visited. The greatest element of a large subtree present on one side only is
cached by the hash of the subtree.

Source: docs/design/forks.md "The order"; docs/design/foreign-data.md "Work".
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import mypyc_attr

from datalattice.cells import Cell, Index, IndexPart, Map, Value, Work, same, value_hash
from datalattice.errors import BadFormat
from datalattice.limits import WORK_LIMITS

Element = tuple[int, int, bytes, bytes]
"""(1, or 0 if malformed; time; key path; tail), compared in this order."""

Latest = tuple[Element | None, Element | None]
"""The greatest element that only the first value has, and that only the second value has."""

NO_LATEST: Final[Latest] = (None, None)

UNTIMED: Final = -1
"""Time of elements without a time: less than every time."""

PRESENT: Final = -2
"""Time of the element that stands for the presence of a container."""

NIL_TIME: Final = -3
"""Time of the element that stands for the presence of a None."""

REMEMBERED_MIN: Final = 64
"""Least entries of a subtree whose greatest element is cached."""

_REMEMBERED_MAX: Final = 4_096
"""Most subtrees in one container's cache; a full cache is cleared."""

_STEP: Final = b"\x00"
_END: Final = b"\x01"
"""Ends a path, above every step: a parent ranks above its children."""


class Walk:
    """One comparison: its budget, if any, and its intermediate results.

    pairs: results by depth and the hashes of both subtrees. times: of subtrees by hash.
    """

    def __init__(self, work: Work | None = None) -> None:
        self.work: Final = work
        self.pairs: Final[dict[tuple[int, bytes, bytes], Latest]] = {}
        self.times: Final[dict[bytes, int]] = {}

    def spend(self, ticks: int) -> None:
        """Charge a step on foreign data.

        Raises: WorkExceeded: the budget is spent.
        """
        work = self.work
        if work is not None:
            work.spend(ticks)

    def enter(self, node: Cell) -> None:
        """Charge a node that is visited; a new node adds credit for its bytes.

        Raises: WorkExceeded: the budget is spent.
        """
        work = self.work
        if work is not None:
            work.enter(node)


def element(time: int, tail: bytes = b"") -> Element:
    """Return the element of a value itself, with an empty key path."""
    return 1, time, _END, tail


def malformed(value: Value) -> Element:
    """Return the element of a value of the wrong type, which lowers the rank of its owner."""
    # First field 0: "the side that has the greatest differing bad element is the lesser one".
    return 0, 0, _END, value_hash(value)


def number_tail(number: int) -> bytes:
    """Return bytes that sort like integers of any size."""
    size = (abs(number).bit_length() + 7) // 8
    if number >= 0:
        # [sign][length 8 bytes][digits]: byte order is number order, since more bytes are a greater
        # number.
        return b"\x01" + size.to_bytes(8, "big") + number.to_bytes(size, "big")
    # A negative number with more digits is less, so length and digits are complemented.
    positive = size.to_bytes(8, "big") + (-number).to_bytes(size, "big")
    return b"\x00" + bytes([255 - byte for byte in positive])


def step_of(key: Value) -> bytes:
    """Return one step of a key path."""
    return _STEP + value_hash(key)


def below(step: bytes, found: Latest) -> Latest:
    """Return the elements with `step` put before their key paths."""
    return _under(step, found[0]), _under(step, found[1])


def _under(step: bytes, found: Element | None) -> Element | None:
    return None if found is None else (found[0], found[1], step + found[2], found[3])


def later(a: Element | None, b: Element | None) -> Element | None:
    """Return the greater of two elements; None is absent."""
    if a is None or b is None:
        return b if a is None else a
    return max(a, b)


def wider(a: Latest, b: Latest) -> Latest:
    """Return the greatest elements of two parts of the values together."""
    return later(a[0], b[0]), later(a[1], b[1])


def contrast(own: Element | None, other: Element | None) -> Latest:
    """Return the elements unique to each of two values with at most one element."""
    return NO_LATEST if own == other else (own, other)


def contrast_all(own: list[Element], other: list[Element]) -> Latest:
    """Return the greatest elements unique to each of two values with a few elements."""
    mine: Element | None = None
    theirs: Element | None = None
    for one in own:
        # The greatest element that the other lacks decides (docs/design/forks.md "The order").
        if one not in other:
            mine = later(mine, one)
    for one in other:
        if one not in own:
            theirs = later(theirs, one)
    return mine, theirs


def verdict(found: Latest) -> int:
    """Return 1 if the first value is the greater, -1 if the second is, 0 for equal elements."""
    own, other = found
    if own == other:
        return 0
    greatest = later(own, other)
    assert greatest is not None
    # "The side that has the greatest differing bad element is the lesser one."
    has = 1 if greatest == own else -1
    return has if greatest[0] else -has


@mypyc_attr(allow_interpreted_subclasses=True)
class EntryOrder:
    """The elements of a container's entries; subclasses define those of one entry."""

    def __init__(self) -> None:
        # The greatest element of subtrees of one side, by hash: it depends on the subtree alone.
        self._known: Final[dict[bytes, Element | None]] = {}

    def entry(
        self,
        key: Value,
        own: Value,
        other: Value,
        own_present: bool,
        other_present: bool,
        walk: Walk,
    ) -> Latest:
        """Return the greatest elements unique to each side's value of one key."""
        return NO_LATEST

    def step(self, key: Value) -> bytes:
        """Return the step of a key path to an entry."""
        return step_of(key)

    def of_index(self, own: Index | None, other: Index | None, walk: Walk) -> Latest:
        """Return the greatest elements unique to the entries of each Index.

        Cost:   entries that differ.
        Raises: MissingData: a differing cell is missing. BadFormat: malformed across cells.
        """
        found = NO_LATEST
        waiting = [IndexPart(own, other)]
        while waiting:
            part = waiting.pop()
            mine, theirs = part.own, part.other
            if mine is not None:
                walk.enter(mine)
            if theirs is not None:
                walk.enter(theirs)
            # A subtree of one side only: its greatest element may be cached.
            if mine is None or theirs is None:
                if mine is not None:
                    found = later(found[0], self._alone(mine, walk)), found[1]
                elif theirs is not None:
                    found = found[0], later(found[1], self._alone(theirs, walk))
                continue
            pair = part.one_key()
            if pair is None:
                # Equal subtrees are left out by the split, so only differences are visited.
                waiting.extend(part.split())
            else:
                key, value, other_key, other_value = pair
                found = wider(found, self._one_key(key, value, other_key, other_value, walk))
        return found

    def _one_key(
        self, key: Value, own: Value, other_key: Value, other: Value, walk: Walk
    ) -> Latest:
        """Compare two entries of one position; their keys may differ after 32 bytes."""
        step = self.step(key)
        # Keys of one position are one key if they are equal, or name the same part in two
        # spellings.
        if same(key, other_key) or step == self.step(other_key):
            if same(own, other):
                return NO_LATEST
            return below(step, self.entry(key, own, other, True, True, walk))
        return wider(
            below(step, self.entry(key, own, None, True, False, walk)),
            below(self.step(other_key), self.entry(other_key, None, other, False, True, walk)),
        )

    def of_map(self, own: Map | None, other: Map | None, walk: Walk) -> Latest:
        """Return the greatest elements unique to the entries of each Map.

        Cost:   entries that differ.
        Raises: MissingData: a differing cell is missing. BadFormat: malformed across cells.
        """
        if own is None or other is None or not own or not other:
            mine = self._alone(own, walk) if own is not None else None
            return mine, self._alone(other, walk) if other is not None else None
        found = NO_LATEST
        for key, has, mine_value, had, theirs in own.differences(other, walk.work):
            made = self.entry(key, mine_value, theirs, has, had, walk)
            found = wider(found, below(self.step(key), made))
        return found

    def _alone(self, entries: Map | Index, walk: Walk) -> Element | None:
        """Return the greatest element of entries present on one side only."""
        # Small subtrees are cheaper to walk than to hash and cache.
        if len(entries) < REMEMBERED_MIN:
            return self._walked(entries, walk)
        known = self._known
        hash = value_hash(entries)
        if hash in known:
            return known[hash]
        if isinstance(entries, Map):
            return self._remember(hash, self._walked(entries, walk))
        stack = [_Subtree(entries)]
        while True:
            top = stack[-1]
            if not top.waiting:
                found = self._remember(value_hash(top.index), top.greatest)
                stack.pop()
                if not stack:
                    return found
                stack[-1].greatest = later(stack[-1].greatest, found)
                continue
            child = top.waiting.pop()
            walk.enter(child)
            if len(child) < REMEMBERED_MIN:
                top.greatest = later(top.greatest, self._walked(child, walk))
            elif value_hash(child) in known:
                top.greatest = later(top.greatest, known[value_hash(child)])
            else:
                stack.append(_Subtree(child))

    def _remember(self, hash: bytes, found: Element | None) -> Element | None:
        # Cleared at once: dropping one entry at a time from the front of a dict would scan dropped
        # ones.
        if len(self._known) >= _REMEMBERED_MAX:
            self._known.clear()
        self._known[hash] = found
        return found

    def _walked(self, entries: Map | Index, walk: Walk) -> Element | None:
        found: Element | None = None
        left = len(entries)
        for key, value in entries.entries(walk.work):
            # Shared cells could otherwise make the walk endless: the count bounds it.
            left -= 1
            if left < 0:
                raise BadFormat("a container has more entries than it counts")
            walk.spend(WORK_LIMITS.compared)
            made = self.entry(key, value, None, True, False, walk)[0]
            found = later(found, _under(self.step(key), made))
        return found


class _Subtree:
    """A subtree of an Index during descent, with the children still to visit."""

    def __init__(self, index: Index) -> None:
        self.index: Final = index
        parts = [part.own for part in IndexPart(index, None).split()]
        self.waiting: Final = [part for part in parts if part is not None]
        self.greatest: Element | None = None
        if sum([len(part) for part in self.waiting]) != len(index):
            raise BadFormat("an index has a count that differs from the number of its entries")
