"""Sound: checks that one cell is well formed, from its bytes and a few facts about its children.

A cell is sound if its bytes are canonical, its parts are consistent and everything below it is
sound. Every subtree of a map, set, index, vector or blob is itself a canonical value of that type,
because shifts and depths are absolute. So soundness depends on the hash alone, not on the position,
and is decided one level at a time: by the bytes of the cell, and by type, count, first and last key
of each structural child. The first and last key enclose all others: if both lie under a digit, all
keys of the child do.

Elements of vector leaves, map values, index values and signed values are not structural: any type
is sound there, and lattices decide which types they accept.

`validate` checks all cells of a value in this way, children first.

Source: docs/design/foreign-data.md "Structure"; docs/cells.md "Decoding".
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Final

from mypy_extensions import i64

from datalattice.cells.cell import Ref, Value, broken, encode, value_hash
from datalattice.cells.facts import Fact, Facts, KnownFacts, name_at
from datalattice.cells.message import branch_kids
from datalattice.cells.scan import (
    block_size,
    branch_hashes,
    chunk_span,
    is_leaf_vector,
    kid_hashes,
    read_vlq,
    scan_top,
    skip,
)
from datalattice.cells.trie import digit_at
from datalattice.errors import BadFormat, MissingData
from datalattice.limits import CHUNK_BYTES, EMBEDDED_BYTES_MAX, INDEX_KEY_BYTES, MAP_LEAF_MAX

NOTHING_SHORT: Final[frozenset[bytes]] = frozenset()

_TEXT: Final = 0x30
_BLOB: Final = 0x31
_VECTOR: Final = 0x80
_MAP: Final = 0x82
_SET: Final = 0x83
_INDEX: Final = 0x84
_REF: Final = 0x20


def check_cell(encoding: bytes, facts: Facts, short: AbstractSet[bytes] = NOTHING_SHORT) -> Fact:
    """Return the fact of a sound cell, whose children are sound and known to `facts`.

    The encoding was scanned (`decode`); the order of map keys is checked here.
    Args:   short: hashes of cells of at most 140 bytes, which must not be referenced.
    Raises: BadFormat: the cell is not sound. MissingData: children are missing, and no fault was
            found without them.
    Cost:   a fact for each structural child, a hash for each map key.
    """
    fact, absent = _examine(encoding, facts, short)
    # Last: faults that are visible without the missing children were raised before.
    if absent:
        raise MissingData(absent)
    return fact


def learn_cell(hash: bytes, encoding: bytes, facts: KnownFacts) -> None:
    """Check a cell like `check_cell`, and remember its fact."""
    if _is_plain_leaf(encoding):
        facts.add_leaf(hash, encoding)
    else:
        facts.add(hash, check_cell(encoding, facts))


def learn_cells(cells: list[tuple[bytes, bytes]], facts: KnownFacts) -> int:
    """Check (hash, encoding) cells, children first, up to a bad one; return how many passed.

    Blobs are not remembered, since few are asked for: `facts` must be able to load them.
    `learn_cell` gives the error of the first bad cell.
    """
    found: i64 = 0
    for hash, encoding in cells:
        if not _is_plain_leaf(encoding):
            try:
                facts.add(hash, check_cell(encoding, facts))
            except (BadFormat, MissingData):
                break
        elif encoding[0] == _VECTOR:  # the vector above it comes soon, and asks for its count
            facts.add_leaf(hash, encoding)
        found += 1
    return found


def _is_plain_leaf(data: bytes) -> bool:
    """Return whether a scanned cell is a leaf that is sound without further checks.

    Most cells are: blobs of one chunk, and vectors of plain values and references.
    """
    kind: i64 = data[0]
    if kind in (_BLOB, _TEXT):
        return data[1] < 0x80 or read_vlq(data, 1, len(data))[0] <= CHUNK_BYTES
    return kind == _VECTOR and is_leaf_vector(data)


def _examine(
    encoding: bytes, facts: Facts, short: AbstractSet[bytes] = NOTHING_SHORT
) -> tuple[Fact, list[bytes]]:
    """Return (fact, missing hashes) like `check_cell`; without them the fact is incomplete."""
    # "If the encoding of a child has at most 140 bytes, its parent contains that encoding"
    # (docs/cells.md "Embedding"): any other form would give equal values two hashes.
    if short and not short.isdisjoint(branch_hashes(encoding)):
        raise broken("a child that fits inside its parent is referenced by hash")
    check = _Check(encoding, facts)
    check.inline(0, True)
    return Fact(check.kind, check.count, check.low, check.high, check.fork), check.absent


class _Check:
    """The check of one cell. Its fields are the `Fact` of the part that was checked last."""

    def __init__(self, data: bytes, facts: Facts) -> None:
        self.data: Final = data
        self.facts: Final = facts
        self.absent: Final[list[bytes]] = []
        self.kind: i64 = 0
        self.count: i64 = -1
        self.low: bytes | None = None
        self.high: bytes | None = None
        self.fork: i64 = -1

    def kids(self, pos: i64, number: i64) -> i64:
        """Check kids of any type; return the position after them."""
        data = self.data
        at: i64 = pos
        for _ in range(number):
            if data[at] == _REF:
                at += 33
            else:
                at = self.inline(at, False)
        return at

    def inline(self, pos: i64, keyed: bool) -> i64:
        """Check an embedded value; return the position after it.

        keyed: note its first and last key.
        """
        tag: i64 = self.data[pos]
        if _TEXT <= tag <= _BLOB:
            return self._blob(pos, keyed)
        if tag == _VECTOR or tag == 0x81 or (tag & 0xF0) == 0xD0:
            return self._vector(pos)
        if _MAP <= tag <= _SET:
            return self._trie(pos, keyed)
        if tag == _INDEX:
            return self._index(pos)
        at: i64 = pos
        if (tag & 0xF0) == 0xC0:
            # [c0 + digit][ref][ref] (docs/cells.md "Encoding table").
            at = self.kids(pos + 1, 2)
        elif tag == 0x90:
            # [90][key 32][signature 64][ref].
            at = self.kids(pos + 97, 1)
        elif tag == 0x91:
            # [91][signature 64][ref].
            at = self.kids(pos + 65, 1)
        elif tag == 0x88:
            # [88][ref of the value][00, or the metadata Map].
            at = self.kids(self.kids(pos + 1, 1), 1)
        else:
            at = skip(self.data, pos)
        self._note(tag, -1, None, None)
        return at

    def _note(
        self, kind: i64, count: i64, low: bytes | None, high: bytes | None, fork: i64 = -1
    ) -> None:
        self.kind = kind
        self.count = count
        self.low = low
        self.high = high
        self.fork = fork

    def _part(self, pos: i64) -> i64:
        """Check a structural kid; return the position after it.

        A missing kid is noted, and has kind -1.
        """
        data = self.data
        if data[pos] != _REF:
            return self.inline(pos, True)
        hash = data[pos + 1 : pos + 33]
        try:
            fact = self.facts.of(hash)
        except MissingData as error:
            self.absent.extend(error.hashes)
            self._note(-1, -1, None, None)
        else:
            self._note(fact.kind, fact.count, fact.low, fact.high, fact.fork)
        return pos + 33

    def _counted(self, pos: i64, kind: i64, count: i64) -> i64:
        """Check a structural kid; return the position after it, -1 if its kind or count is another.

        A missing kid is noted.
        """
        data = self.data
        if data[pos] != _REF:
            at: i64 = self.inline(pos, False)
            return at if self.kind == kind and self.count == count else -1
        try:
            fits = self.facts.has_count(data[pos + 1 : pos + 33], kind, count)
        except MissingData as error:
            self.absent.extend(error.hashes)
            fits = True
        return pos + 33 if fits else -1

    def _blob(self, pos: i64, keyed: bool) -> i64:
        data = self.data
        tag: i64 = data[pos]
        length, at = read_vlq(data, pos + 1, len(data))
        low: bytes | None = None
        if length <= CHUNK_BYTES:
            if keyed:
                low = data[at : at + min(length, INDEX_KEY_BYTES)]
            self._note(tag, length, low, None)
            return at + length
        span: i64 = chunk_span(length)
        base: i64 = 0
        while base < length:
            size: i64 = min(span, length - base)
            # Chunks of texts are Blobs, too: each has exactly min(span, rest) bytes.
            if base or not keyed:
                at = self._counted(at, _BLOB, size)
            else:
                at = self._part(at)
                low = self.low
                if self.kind >= 0 and (self.kind != _BLOB or self.count != size):
                    at = -1
            if at < 0:
                raise broken(f"a blob chunk is not a blob of {size} bytes")
            base += span
        self._note(tag, length, low, None)
        return at

    def _vector(self, pos: i64) -> i64:
        data = self.data
        tag: i64 = data[pos]
        count, at = read_vlq(data, pos + 1, len(data))
        # A leaf: its elements are not structural, so any type may be among them.
        if count <= 16:
            at = self.kids(at, count)
        # "The last `count mod 16` elements come first, and then the Vector of all elements before
        # them" (docs/cells.md "Vector and List").
        elif count & 15:
            at = self.kids(at, count & 15)
            at = self._vector_part(at, count - (count & 15))
        else:
            block: i64 = block_size(count)
            base: i64 = 0
            while base < count:
                at = self._vector_part(at, min(block, count - base))
                base += block
        self._note(tag, count, None, None)
        return at

    def _vector_part(self, pos: i64, count: i64) -> i64:
        # The count of the parent alone decides the count of each child.
        at: i64 = self._counted(pos, _VECTOR, count)
        if at < 0:
            raise broken(f"a vector child is not a vector of {count} elements")
        return at

    def _trie(self, pos: i64, keyed: bool) -> i64:
        data = self.data
        tag: i64 = data[pos]
        count, at = read_vlq(data, pos + 1, len(data))
        if count > MAP_LEAF_MAX:
            return self._trie_node(at, tag, count)
        keys: list[bytes] = []
        for _ in range(count):
            start: i64 = at
            at = self.kids(at, 1)
            keys.append(data[start:at])
            if tag == _MAP:
                at = self.kids(at, 1)
        first: bytes | None = None
        last: bytes | None = None
        if keyed or count > 1:
            hashes = kid_hashes(keys)
            # CAD003: entries are ordered by the hashes of their keys.
            for i in range(1, len(hashes)):
                if hashes[i] <= hashes[i - 1]:
                    raise broken("map keys are not in strictly increasing order of their hashes")
            if hashes:
                first, last = hashes[0], hashes[len(hashes) - 1]
        self._note(tag, count, first, last)
        return at

    def _trie_node(self, pos: i64, tag: i64, count: i64) -> i64:
        data = self.data
        shift: i64 = data[pos]
        high: i64 = data[pos + 1]
        low: i64 = data[pos + 2]
        mask: i64 = (high << 8) | low
        range_ = _Range(shift)
        at: i64 = pos + 3
        for digit in range(16):
            if not mask & (1 << digit):
                continue
            at = self._part(at)
            # A child forks later than its parent, so no path has more than 64 nodes.
            if self.kind >= 0 and (self.kind != tag or self.count < 1 or 0 <= self.fork <= shift):
                raise broken("a map or set node has a wrong type, size or digit")
            range_.add(digit, self.count, self.low, self.high, "a map")
        range_.check(count, "a map")
        self._note(tag, count, range_.low, range_.high, shift)
        return at

    def _index(self, pos: i64) -> i64:
        data = self.data
        count, at = read_vlq(data, pos + 1, len(data))
        if count == 0:
            self._note(_INDEX, 0, None, None)
            return at
        if count == 1:
            at = self._key(at)
            key = self.low
            at = self.kids(at, 1)
            self._note(_INDEX, 1, key, key)
            return at
        has_entry = data[at] == 0x80
        at += 1
        own: bytes | None = None
        if has_entry:
            at = self._key(at)
            own = self.low
            at = self.kids(at, 1)
        depth: i64 = data[at]
        high: i64 = data[at + 1]
        low: i64 = data[at + 2]
        mask: i64 = (high << 8) | low
        at += 3
        range_ = _Range(depth)
        if has_entry:
            # "`80` and the entry whose key ends here" (docs/cells.md "Index").
            if own is not None and 2 * len(own) != depth:
                raise broken("the entry of an index node does not end at its depth")
            range_.begin(own)
        for digit in range(16):
            if not mask & (1 << digit):
                continue
            at = self._part(at)
            if self.kind >= 0 and (
                self.kind != _INDEX or self.count < 1 or 0 <= self.fork <= depth
            ):
                raise broken("an index node has a wrong type or size")
            range_.add(digit, self.count, self.low, self.high, "an index")
        range_.check(count, "an index")
        self._note(_INDEX, count, range_.low, range_.high, depth)
        return at

    def _key(self, pos: i64) -> i64:
        """Check the key of an index entry, set `low` to its bytes; return the position after."""
        data = self.data
        at: i64 = self._part(pos)
        name = name_at(data, pos)
        if name is not None:
            self.low = name
        elif self.kind >= 0 and not _TEXT <= self.kind <= _BLOB:
            raise broken("an index key that is referenced by hash is neither blob nor string")
        return at


class _Range:
    """The keys below a node of a map, set or index, child by child."""

    def __init__(self, position: i64) -> None:
        self._position: Final[i64] = position  # of the digit that distinguishes the children
        self._total: i64 = 0
        self._unknown: i64 = 0
        self._is_begun = False
        self.low: bytes | None = None
        self.high: bytes | None = None
        self._last: bytes | None = None  # the greatest key known so far
        self._first: bytes | None = None

    def begin(self, key: bytes | None) -> None:
        """Add an index node's own entry, which precedes its children."""
        self._total = 1
        self._is_begun = True
        self.low = self.high = self._first = self._last = key

    def add(self, digit: i64, count: i64, low: bytes | None, high: bytes | None, what: str) -> None:
        """Add the child under `digit`; a negative count means that it is missing."""
        if count < 0:
            self._unknown += 1
        else:
            self._total += count
        if low is not None:
            self._check_key(low, digit, what)
            # Children are in the order of their digits, and so are the keys below them.
            if self._last is not None and low <= self._last:
                raise broken(f"the keys of {what} are not in order")
            self._last = low
            if self._first is None:
                self._first = low
        if high is not None:
            self._check_key(high, digit, what)
            self._last = high
        if not self._is_begun:
            self._is_begun = True
            self.low = low
        self.high = high

    def _check_key(self, key: bytes, digit: i64, what: str) -> None:
        # A key that ends before the digit cannot be under it.
        if 2 * len(key) <= self._position or digit_at(key, self._position) != digit:
            raise broken(f"a key is under the wrong digit of {what}")

    def check(self, count: i64, what: str) -> None:
        """Check all children together: their number of keys, and the digits these share."""
        # Each missing child has at least one key, so the known total is a lower bound.
        if self._total + self._unknown > count or (not self._unknown and self._total != count):
            raise broken(f"{what} node of {count} entries holds {self._total}")
        first = self._first
        last = self._last
        if first is None or last is None:
            return
        # All keys lie between the first and the last, so they share the digits that these share.
        half: i64 = self._position >> 1
        if first[:half] != last[:half] or (
            self._position & 1
            and digit_at(first, self._position - 1) != digit_at(last, self._position - 1)
        ):
            raise broken(f"the keys of {what} node share fewer digits than it says")


# --- all cells of a value ---------------------------------------------------------------------


def validate(value: Value) -> list[bytes]:
    """Check that `value` and all below it is canonical; return the hashes of missing branches.

    Faults that are visible are raised even if branches are missing.
    Raises: BadFormat: a part has a wrong type, length, order or position.
    """
    found = _Found()
    # Kids to visit, and encodings of cells whose kids are done. Chains can be millions long.
    stack: list[tuple[bytes, object, bytes]] = [(value_hash(value), value, b"")]
    entered: set[bytes] = set()
    while stack:
        hash, kid, encoding = stack.pop()
        if encoding:
            found.check(hash, encoding)
            continue
        if hash in entered:
            continue
        entered.add(hash)
        try:
            cell = kid.resolve() if isinstance(kid, Ref) else kid
        except MissingData as error:
            found.absent.update(dict.fromkeys(error.hashes))
            continue
        encoding = encode(cell)
        scan_top(encoding)
        # "A reference to a short child" is a fault (docs/cells.md "Decoding"): its parent must
        # embed it.
        if isinstance(kid, Ref) and len(encoding) <= EMBEDDED_BYTES_MAX:
            found.short.add(hash)
        stack.append((hash, None, encoding))
        stack.extend((below, child, b"") for below, child in branch_kids(cell))
    return list(found.absent)


class _Found(Facts):
    """The facts of the cells of one value, checked so far."""

    def __init__(self) -> None:
        self.absent: Final[dict[bytes, None]] = {}
        self.short: Final[set[bytes]] = set()
        self._facts: Final[dict[bytes, Fact]] = {}

    def check(self, hash: bytes, encoding: bytes) -> None:
        """Check a cell after all cells below it."""
        fact, _absent = _examine(encoding, self, self.short)
        self._facts[hash] = fact

    def of(self, hash: bytes) -> Fact:
        """Return the fact of a checked cell."""
        fact = self._facts.get(hash)
        if fact is None:
            raise MissingData([hash])
        return fact
