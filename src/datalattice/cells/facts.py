"""Facts: the properties of children that the check of a cell needs, and where they come from.

Source: docs/design/foreign-data.md "Structure".
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from itertools import islice
from typing import Final

from mypy_extensions import i64, mypyc_attr

from datalattice.cells.cell import broken
from datalattice.cells.scan import bit_count, key_hash_at, read_vlq, skip
from datalattice.errors import MissingData
from datalattice.limits import CHUNK_BYTES, INDEX_KEY_BYTES, MAP_LEAF_MAX

FACTS_MAX: Final = 32_768
"""Most facts kept in memory, about 300 bytes each."""

_TEXT: Final = 0x30
_BLOB: Final = 0x31
_SYMBOL: Final = 0x32
_KEYWORD: Final = 0x33
_MAP: Final = 0x82
_INDEX: Final = 0x84
_REF: Final = 0x20


class Fact:
    """The properties of a sound child that the check of a cell needs.

    kind:  its tag.
    count: its entries, elements or bytes; -1 for types without a count.
    low, high: its first and last key: key hashes of a map or set, key bytes of an index. `low` of a
           blob or string is its first 32 bytes. None: there is none, or a cell on the way to it is
           missing.
    fork:  the digit at which the keys of a map, set or index node differ; -1 for all else.
    """

    __slots__ = ("count", "fork", "high", "kind", "low")

    def __init__(
        self, kind: int, count: int, low: bytes | None, high: bytes | None, fork: int
    ) -> None:
        self.kind: Final[i64] = kind
        self.count: Final[i64] = count
        self.fork: Final[i64] = fork
        self.low: Final[bytes | None] = low
        self.high: Final[bytes | None] = high

    def __repr__(self) -> str:
        low = None if self.low is None else self.low.hex()
        high = None if self.high is None else self.high.hex()
        return f"Fact(kind={self.kind:#04x}, count={self.count}, low={low}, high={high})"


@mypyc_attr(allow_interpreted_subclasses=True)
class Facts:
    """Gives `check_cell` the facts of children, which are sound: checked before, or stored."""

    @abstractmethod
    def of(self, hash: bytes) -> Fact:
        """Return the fact of the cell with this hash.

        Raises: MissingData: it, or a cell that its keys are read from, is missing or damaged.
        """

    def has_count(self, hash: bytes, kind: i64, count: i64) -> bool:
        """Return whether the cell with this hash is of this kind and has this count.

        Raises: MissingData: it is missing or damaged.
        """
        fact = self.of(hash)
        return fact.kind == kind and fact.count == count


LoadEncoding = Callable[[bytes], "bytes | None"]
"""Returns the encoding of a cell, or None if it is missing."""


class KnownFacts(Facts):
    """Facts of cells checked recently, and of stored cells.

    load: returns the encoding of a stored cell, which is sound; None if it is missing.
    """

    def __init__(self, load: LoadEncoding, facts_max: int = FACTS_MAX) -> None:
        self._load: Final = load
        self._max: Final = facts_max
        self._facts: dict[bytes, Fact] = {}
        self._leaves: dict[bytes, bytes] = {}  # encodings; their facts are read when asked for

    def of(self, hash: bytes) -> Fact:
        """Return the fact of a cell: remembered, else read from the stored encoding.

        Raises: MissingData: it, or a cell that its keys are read from, is missing.
        Cost:   one cell for vectors and blobs; for tries the chains of first and last children.
        """
        fact = self._facts.get(hash)
        if fact is not None:
            return fact
        leaf = self._leaves.get(hash)
        fact = self._stored(hash) if leaf is None else self._read(leaf)
        self._facts[hash] = fact
        return fact

    def has_count(self, hash: bytes, kind: i64, count: i64) -> bool:
        """Return whether a cell is of this kind and has this count.

        Raises: MissingData: it is missing.
        Cost:   one cell; its fact is not remembered.
        """
        data = self._leaves.get(hash)
        if data is None:
            fact = self._facts.get(hash)
            if fact is not None:
                return fact.kind == kind and fact.count == count
            data = self._encoding(hash)
        return data[0] == kind and read_vlq(data, 1, len(data))[0] == count

    def add(self, hash: bytes, fact: Fact) -> None:
        """Remember the fact of a checked cell."""
        if fact.count >= 0:  # types without a count are never structural
            self._facts[hash] = fact

    def add_leaf(self, hash: bytes, encoding: bytes) -> None:
        """Remember a sound leaf until `trim`, by when it must be stored.

        Most leaves are never asked for, so facts are made on demand.
        """
        self._leaves[hash] = encoding

    def trim(self) -> None:
        """Forget all leaves, and if there are too many facts the older ones, down to half."""
        if self._leaves:
            self._leaves = {}
        facts = self._facts
        if len(facts) > self._max:
            # Deleting one by one from the front of a dict would scan the deleted entries each time.
            self._facts = dict(islice(facts.items(), len(facts) - self._max // 2, None))

    def __len__(self) -> int:
        return len(self._facts)

    def _stored(self, hash: bytes) -> Fact:
        return self._read(self._encoding(hash))

    def _read(self, data: bytes) -> Fact:
        """Return the fact of a sound cell."""
        kind: i64 = data[0]
        is_counted = _TEXT <= kind <= _BLOB or 0x80 <= kind <= _INDEX
        # Tags 80 to 84 and d0 to df (records) have a count, and the strings and blobs 30 and 31.
        if not is_counted and (kind & 0xF0) != 0xD0:
            return Fact(kind, -1, None, None, -1)
        count, at = read_vlq(data, 1, len(data))
        low: bytes | None = None
        high: bytes | None = None
        fork: i64 = -1
        if _TEXT <= kind <= _BLOB:
            low = self._edge(data, False)
        elif count and _MAP <= kind <= _INDEX:
            low = self._edge(data, False)
            high = self._edge(data, True)
            if kind != _INDEX:
                # [82 or 83][n][shift][mask 2 bytes][refs]; a leaf has no shift.
                fork = data[at] if count > MAP_LEAF_MAX else -1
            elif count > 1:
                # [84][n][00, or 80 and an entry][depth][mask 2 bytes][refs].
                fork = data[at + 1 if data[at] != 0x80 else _after(data, at + 1, 2)]
        return Fact(kind, count, low, high, fork)

    def _encoding(self, hash: bytes) -> bytes:
        data = self._load(hash)
        if data is None:
            raise MissingData([hash])
        return data

    def _edge(self, data: bytes, is_last: bool) -> bytes:
        """Return the first or last key of a sound cell; for a blob its first bytes."""
        pos: i64 = 0
        while True:
            kind: i64 = data[pos]
            count, at = read_vlq(data, pos + 1, len(data))
            if _TEXT <= kind <= _BLOB:
                if count <= CHUNK_BYTES:
                    # "Only the first 32 bytes count" (docs/cells.md "Index").
                    return data[at : at + min(count, INDEX_KEY_BYTES)]
                pos = at
            elif _MAP <= kind < _INDEX and 0 < count <= MAP_LEAF_MAX:
                if is_last:
                    at = _after(data, at, (count - 1) * (2 if kind == _MAP else 1))
                return key_hash_at(data, at, _after(data, at, 1))
            elif _MAP <= kind < _INDEX and count:
                pos = _child_at(data, at, is_last)
            elif kind == _INDEX and count:
                has_entry = count == 1 or data[at] == 0x80
                # A single entry has no mark byte before it.
                at = at if count == 1 else at + 1
                if count == 1 or (has_entry and not is_last):
                    key = name_at(data, at)
                    if key is not None:
                        return key
                    pos = at
                else:
                    pos = _child_at(data, _after(data, at, 2 if has_entry else 0), is_last)
            else:
                raise broken("a cell that was stored unchecked is not sound")
            if data[pos] == _REF:
                data = self._encoding(data[pos + 1 : pos + 33])
                pos = 0


def name_at(data: bytes, pos: i64) -> bytes | None:
    """Return the key bytes of a Keyword, Symbol or Extension; None for another key."""
    tag: i64 = data[pos]
    if _SYMBOL <= tag <= _KEYWORD:
        length: i64 = data[pos + 1]
        return data[pos + 2 : pos + 2 + min(length, INDEX_KEY_BYTES)]
    if (tag & 0xF0) == 0xE0:
        number: int = read_vlq(data, pos + 1, len(data))[0]
        # "Extension values (as 8 bytes big-endian)" (docs/cells.md "Index").
        return number.to_bytes(8, "big")
    return None


def _after(data: bytes, pos: i64, kids: i64) -> i64:
    """Return the position after `kids` kids of a sound cell."""
    at: i64 = pos
    for _ in range(kids):
        at = at + 33 if data[at] == _REF else skip(data, at)
    return at


def _child_at(data: bytes, pos: i64, is_last: bool) -> i64:
    """Return the position of the first or last child of a trie node; `pos` is at its digit."""
    high: i64 = data[pos + 1]
    low: i64 = data[pos + 2]
    children: i64 = bit_count((high << 8) | low)
    return _after(data, pos + 3, children - 1 if is_last else 0)
