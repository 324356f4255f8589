"""Map and set: tries over the hex digits of key hashes, one shape for each set of keys.

Up to 15 entries are a leaf, ordered by key hash. More are a node: the digit position where its keys first differ (`shift`), a mask of
the digits that occur, and one child for each. Both kinds share this code; a set is a map without values.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64, u8

from datalattice.cells.cell import (
    Cell,
    Loader,
    Ref,
    Value,
    admit,
    broken,
    deref,
    encode,
    kid_hash,
    put_kid,
    put_vlq,
    same_kid,
    surely_same,
    value_hash,
)
from datalattice.cells.parse import read_kids, wrappers
from datalattice.cells.scan import bit_count, read_vlq
from datalattice.limits import EMBEDDED_BYTES_MAX, MAP_LEAF_MAX

TAG_MAP: Final = 0x82
TAG_SET: Final = 0x83
_sha3: Final = hashlib.sha3_256


class AbsentType:
    """The type of `ABSENT`."""

    def __repr__(self) -> str:
        return "ABSENT"


def digit_at(digest: bytes, position: i64) -> i64:
    """Return hex digit `position` of a hash, high half of each byte first."""
    byte: i64 = digest[position >> 1]
    return byte & 15 if position & 1 else byte >> 4


def common_digits(a: bytes, b: bytes, start: i64) -> i64:
    """Return the first digit position from `start` on where two hashes differ (64 when they do not)."""
    position: i64 = start
    while position < 64 and digit_at(a, position) == digit_at(b, position):
        position += 1
    return position


class Trie(Cell):
    """What map and set have in common.

    Source: CAD003 "Map", "Set".
    """

    __slots__ = ("_count", "_hashes", "_mask", "_sample", "_shift", "_tag")

    _tag: i64
    _count: i64
    _shift: i64
    _mask: i64
    _hashes: list[bytes] | None
    _sample: bytes | None

    def __init__(self) -> None:
        super().__init__()
        self._tag = TAG_MAP
        self._count = 0
        self._shift = 0
        self._mask = 0
        self._hashes = None
        self._sample = None

    def _width(self) -> i64:
        """Return the kids of one leaf entry: key and value, or key alone."""
        return 2 if self._tag == TAG_MAP else 1

    def _build(self, depth: int) -> bytes:
        out = BytesWriter()
        out.append(u8(self._tag))
        put_vlq(out, self._count)
        if self._count > MAP_LEAF_MAX:
            out.append(u8(self._shift))
            out.append(u8(self._mask >> 8))
            out.append(u8(self._mask & 0xFF))
        kids = self._open()
        for i in range(len(kids)):
            put_kid(out, kids, i, depth)
        return out.getvalue()

    def _parse(self) -> list[object]:
        data = self._encoding
        assert data is not None
        at: i64 = read_vlq(data, 1, len(data))[1]
        if self._count > MAP_LEAF_MAX:
            return read_kids(data, at + 3, bit_count(self._mask), self._loader)[0]
        return read_kids(data, at, self._count * self._width(), self._loader)[0]

    def _close(self, loader: Loader) -> None:
        self._loader = loader
        self._kids = None
        self._hashes = None

    def _keys(self) -> list[bytes]:
        """Return the key hashes of a leaf, in order."""
        hashes = self._hashes
        if hashes is None:
            kids = self._open()
            hashes = [kid_hash(kids[i]) for i in range(0, len(kids), self._width())]
            self._hashes = hashes
        return hashes

    def _any(self) -> bytes:
        """Return the hash of some key below this node; all of them share the digits before `shift`."""
        sample = self._sample
        if sample is None:
            sample = (
                self._keys()[0]
                if self._count <= MAP_LEAF_MAX
                else trie_of(self._open()[0], self._tag, 0)._any()
            )
            self._sample = sample
        return sample

    def _slot(self, digit: i64) -> i64:
        """Return the position of the child for `digit`, or where it would stand."""
        return bit_count(self._mask & ((1 << digit) - 1))

    def _find(self, digest: bytes) -> tuple[Trie | None, i64]:
        """Return (leaf, entry number) of the key with this hash, (None, 0) when it is absent."""
        node = self
        while node._count > MAP_LEAF_MAX:
            digit: i64 = digit_at(digest, node._shift)
            if not node._mask & (1 << digit):
                return None, 0
            node = trie_of(node._open()[node._slot(digit)], self._tag, node._count)
        hashes = node._keys()
        for i in range(len(hashes)):
            if hashes[i] == digest:
                return node, i
        return None, 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, key: object) -> bool:
        return self._find(value_hash(admit(key)))[0] is not None

    def __iter__(self) -> Iterator[Value]:
        width = self._width()
        for leaf in self._leaves():
            kids = leaf._open()
            for i in range(0, len(kids), width):
                yield deref(kids[i])

    def _leaves(self) -> Iterator[Trie]:
        stack: list[Trie] = [self]
        while stack:
            node = stack.pop()
            if node._count <= MAP_LEAF_MAX:
                yield node
            else:
                kids = node._open()
                for i in range(len(kids) - 1, -1, -1):
                    stack.append(trie_of(kids[i], node._tag, node._count))

    def __reversed__(self) -> Iterator[Value]:
        return reversed(list(self))


def trie_of(kid: object, tag: i64, above: i64) -> Trie:
    """Return a child node, checked to be of the right kind and smaller than its parent.

    Raises: BadFormat: the tree is not canonical; MissingData: the node is not here.
    """
    node = kid.resolve() if isinstance(kid, Ref) else kid
    if (
        not isinstance(node, Trie)
        or node._tag != tag
        or node._count == 0
        or (above and node._count >= above)
    ):
        raise broken("a map or set node is something else")
    return node


def _make(tag: i64, count: i64) -> Trie:
    made: Trie = Map() if tag == TAG_MAP else Set()
    made._count = count
    return made


def _leaf(tag: i64, hashes: list[bytes], kids: list[object]) -> Trie:
    made = _make(tag, len(hashes))
    made._hashes = hashes
    made._kids = kids
    return made


def _node(tag: i64, count: i64, shift: i64, mask: i64, kids: list[object], sample: bytes) -> Trie:
    made = _make(tag, count)
    made._shift = shift
    made._mask = mask
    made._kids = kids
    made._sample = sample
    return made


def closed_trie(data: bytes, loader: Loader | None) -> Trie:
    """Return the closed map or set with this encoding (tag 82 or 83)."""
    count, at = read_vlq(data, 1, len(data))
    made = _make(data[0], count)
    if count > MAP_LEAF_MAX:
        made._shift = data[at]
        made._mask = (data[at + 1] << 8) | data[at + 2]
    made._kids = None
    made._encoding = data
    made._loader = loader
    return made


# --- building -------------------------------------------------------------------------------


def build(tag: i64, hashes: list[bytes], kids: list[object]) -> Trie:
    """Return the trie of entries already ordered by hash, without repeats (kids in entry order)."""
    return _build_range(tag, hashes, kids, 0, len(hashes), 0)


def _build_range(
    tag: i64, hashes: list[bytes], kids: list[object], low: i64, high: i64, start: i64
) -> Trie:
    width: i64 = 2 if tag == TAG_MAP else 1
    if high - low <= MAP_LEAF_MAX:
        return _leaf(tag, hashes[low:high], kids[low * width : high * width])
    shift: i64 = common_digits(hashes[low], hashes[high - 1], start)
    mask: i64 = 0
    children: list[object] = []
    at: i64 = low
    while at < high:
        digit: i64 = digit_at(hashes[at], shift)
        first: i64 = at
        # Gallop, then bisect, to the end of the run with this digit.
        step: i64 = 1
        while at + step < high and digit_at(hashes[at + step], shift) == digit:
            at += step
            step *= 2
        while step > 0:
            if at + step < high and digit_at(hashes[at + step], shift) == digit:
                at += step
            else:
                step //= 2
        at += 1
        mask |= 1 << digit
        children.append(_build_range(tag, hashes, kids, first, at, shift + 1))
    return _node(tag, high - low, shift, mask, children, hashes[low])


def sort_entries(tag: i64, digests: list[bytes], keys: list[object], values: list[object]) -> Trie:
    """Return the trie of entries in any order; of two entries with one key the later wins."""
    order = sorted(range(len(digests)), key=digests.__getitem__)
    hashes: list[bytes] = []
    kids: list[object] = []
    last = b""
    for i in order:
        digest = digests[i]
        if digest == last:
            if tag == TAG_MAP:
                kids[-1] = values[i]
            continue
        last = digest
        hashes.append(digest)
        kids.append(keys[i])
        if tag == TAG_MAP:
            kids.append(values[i])
    return build(tag, hashes, kids)


def put(node: Trie, digest: bytes, key: object, value: object, known: i64) -> Trie:
    """Return `node` with an entry; digits before `known` are known to agree. Returns `node` itself when nothing changes."""
    tag: i64 = node._tag
    if node._count <= MAP_LEAF_MAX:
        return _put_leaf(node, digest, key, value)
    shift: i64 = node._shift
    if shift > known:
        fork: i64 = common_digits(digest, node._any(), known)
        if fork < shift:
            fresh = _leaf(tag, [digest], [key, value] if tag == TAG_MAP else [key])
            own: i64 = digit_at(node._any(), fork)
            new: i64 = digit_at(digest, fork)
            pair: list[object] = [node, fresh] if own < new else [fresh, node]
            return _node(tag, node._count + 1, fork, (1 << own) | (1 << new), pair, digest)
    digit: i64 = digit_at(digest, shift)
    slot: i64 = node._slot(digit)
    kids = node._open()
    if node._mask & (1 << digit):
        kid = kids[slot]
        child = trie_of(kid, tag, node._count)
        grown = put(child, digest, key, value, shift + 1)
        if grown is child:
            return node
        fresh_kids = kids[:]
        fresh_kids[slot] = grown
        return _node(
            tag,
            node._count + grown._count - child._count,
            shift,
            node._mask,
            fresh_kids,
            node._sample or digest,
        )
    fresh_kids = kids[:]
    fresh_kids.insert(slot, _leaf(tag, [digest], [key, value] if tag == TAG_MAP else [key]))
    return _node(
        tag, node._count + 1, shift, node._mask | (1 << digit), fresh_kids, node._sample or digest
    )


def _put_leaf(node: Trie, digest: bytes, key: object, value: object) -> Trie:
    tag: i64 = node._tag
    width: i64 = 2 if tag == TAG_MAP else 1
    hashes = node._keys()
    kids = node._open()
    at: i64 = 0
    count: i64 = len(hashes)
    while at < count and hashes[at] < digest:
        at += 1
    if at < count and hashes[at] == digest:
        if width == 1 or same_kid(kids[2 * at + 1], value):
            return node
        kids = kids[:]
        kids[2 * at + 1] = value
        return _leaf(tag, hashes, kids)
    hashes = hashes[:]
    hashes.insert(at, digest)
    kids = kids[:]
    kids.insert(at * width, key)
    if width == 2:
        kids.insert(2 * at + 1, value)
    if count < MAP_LEAF_MAX:
        return _leaf(tag, hashes, kids)
    return build(tag, hashes, kids)


def remove(node: Trie, digest: bytes) -> Trie:
    """Return `node` without the key of this hash: itself when the key is absent."""
    tag: i64 = node._tag
    if node._count <= MAP_LEAF_MAX:
        hashes = node._keys()
        if digest not in hashes:
            return node
        at: i64 = hashes.index(digest)
        width: i64 = 2 if tag == TAG_MAP else 1
        kids = node._open()
        return _leaf(
            tag, hashes[:at] + hashes[at + 1 :], kids[: at * width] + kids[(at + 1) * width :]
        )
    digit: i64 = digit_at(digest, node._shift)
    if not node._mask & (1 << digit):
        return node
    slot: i64 = node._slot(digit)
    kids = node._open()
    child = trie_of(kids[slot], tag, node._count)
    less = remove(child, digest)
    if less is child:
        return node
    count: i64 = node._count - 1
    mask: i64 = node._mask
    fresh = kids[:]
    if less._count:
        fresh[slot] = less
    else:
        fresh.pop(slot)
        mask &= ~(1 << digit)
        if len(fresh) == 1:
            return trie_of(fresh[0], tag, 0)
    made = _node(tag, count, node._shift, mask, fresh, b"")
    made._sample = None
    if count > MAP_LEAF_MAX:
        return made
    # At 15 entries the canonical shape is a leaf.
    hashes = []
    entries: list[object] = []
    for kid in fresh:
        leaf = trie_of(kid, tag, 0)
        hashes.extend(leaf._keys())
        entries.extend(leaf._open())
    return _leaf(tag, hashes, entries)


# --- comparing ------------------------------------------------------------------------------

Entry = tuple[bytes, object, bool, object, bool, object]
"""(key hash, key kid, own present, own value kid, other present, other value kid)."""


def differing(own: Trie, other: Trie) -> Iterator[Entry]:
    """Yield the entries in which two tries of one tag differ; equal subtrees are neither loaded nor descended."""
    stack: list[tuple[object, object, int]] = [(own, other, 0)]
    while stack:
        a_kid, b_kid, known = stack.pop()
        if surely_same(a_kid, b_kid):
            continue
        a = None if a_kid is None else trie_of(a_kid, own._tag, 0) if a_kid is not own else own
        b = None if b_kid is None else trie_of(b_kid, own._tag, 0) if b_kid is not other else other
        if a is None or b is None or a._count <= MAP_LEAF_MAX or b._count <= MAP_LEAF_MAX:
            yield from _differing_entries(a, b)
        else:
            _pair_children(a, b, known, stack)


def _pair_children(a: Trie, b: Trie, known: i64, stack: list[tuple[object, object, int]]) -> None:
    """Push the pairs of subtrees of two nodes that can hold the same keys."""
    low: i64 = min(a._shift, b._shift)
    if low > known and common_digits(a._any(), b._any(), known) < low:
        stack.append((a, None, known))  # no key in common
        stack.append((None, b, known))
        return
    for digit in range(15, -1, -1):
        bit: i64 = 1 << digit
        left: object = None
        right: object = None
        if a._shift == low:
            if a._mask & bit:
                left = a._open()[a._slot(digit)]
        elif digit_at(a._any(), low) == digit:
            left = a
        if b._shift == low:
            if b._mask & bit:
                right = b._open()[b._slot(digit)]
        elif digit_at(b._any(), low) == digit:
            right = b
        if left is not None or right is not None:
            stack.append((left, right, low + 1))


def _entries(node: Trie) -> Iterator[tuple[bytes, object, object]]:
    for leaf in node._leaves():
        hashes = leaf._keys()
        kids = leaf._open()
        if leaf._tag == TAG_MAP:
            for i in range(len(hashes)):
                yield hashes[i], kids[2 * i], kids[2 * i + 1]
        else:
            for i in range(len(hashes)):
                yield hashes[i], kids[i], None


def _differing_entries(a: Trie | None, b: Trie | None) -> Iterator[Entry]:
    if b is None:
        if a is not None:
            for digest, key, value in _entries(a):
                yield digest, key, True, value, False, None
        return
    if a is None:
        for digest, key, value in _entries(b):
            yield digest, key, False, None, True, value
        return
    mine = {digest: (key, value) for digest, key, value in _entries(a)}
    for digest, key, value in _entries(b):
        found = mine.pop(digest, None)
        if found is None:
            yield digest, key, False, None, True, value
        elif not same_kid(found[1], value):
            yield digest, found[0], True, found[1], True, value
    for digest, (key, value) in mine.items():
        yield digest, key, True, value, False, None


Join = Callable[[Value, Value, Value, bool, bool], object]
ABSENT: Final = AbsentType()
"""What a join returns to keep no entry."""


class Map(Trie):
    """An immutable mapping, iterated in the order of its keys' hashes.

    Shapes: keys and values are any values; keys are told apart by hash, so `True`, `1` and `1.0` are three keys.
    Cost:   get, put and remove touch one path, O(log16 n).
    Source: CAD002 "Map"; CAD003 "Map".
    """

    __slots__ = ()

    def __init__(
        self, entries: Mapping[object, object] | Iterable[tuple[object, object]] = ()
    ) -> None:
        super().__init__()
        self._kids = []
        if entries != ():
            built = _map_of(entries)
            self._count, self._shift, self._mask = built._count, built._shift, built._mask
            self._kids, self._hashes, self._sample = built._kids, built._hashes, built._sample

    @classmethod
    def of(cls, entries: Mapping[object, object] | Iterable[tuple[object, object]]) -> Map:
        """Return the map of `entries`, built in bulk; of two entries with one key the later wins."""
        return _map_of(entries)

    def get(self, key: object, default: Value = None) -> Value:
        """Return the value under `key`, or `default`."""
        leaf, at = self._find(value_hash(admit(key)))
        return default if leaf is None else deref(leaf._open()[2 * at + 1])

    def __getitem__(self, key: object) -> Value:
        leaf, at = self._find(value_hash(admit(key)))
        if leaf is None:
            raise KeyError(key)
        return deref(leaf._open()[2 * at + 1])

    def put(self, key: object, value: object) -> Map:
        """Return this map with one entry more, or replaced; itself when that changes nothing."""
        key = admit(key)
        made = put(self, _sha3(encode(key)).digest(), key, admit(value), 0)
        assert isinstance(made, Map)
        return made

    def put_many(self, entries: Mapping[object, object] | Iterable[tuple[object, object]]) -> Map:
        """Return this map with all of `entries` put one after another."""
        made = self
        pairs = entries.items() if isinstance(entries, Mapping) else entries
        if not self._count:
            return _map_of(pairs)
        for key, value in pairs:
            made = made.put(key, value)
        return made

    def remove(self, key: object) -> Map:
        """Return this map without `key`; itself when the key is absent."""
        made = remove(self, value_hash(admit(key)))
        assert isinstance(made, Map)
        return made

    def entries(self) -> Iterator[tuple[Value, Value]]:
        """Yield (key, value) in the order of key hashes."""
        for leaf in self._leaves():
            kids = leaf._open()
            for i in range(0, len(kids), 2):
                yield deref(kids[i]), deref(kids[i + 1])

    def items(self) -> Iterator[tuple[Value, Value]]:
        """Yield (key, value), as a mapping does."""
        return self.entries()

    def keys(self) -> Iterator[Value]:
        """Yield the keys."""
        return iter(self)

    def values(self) -> Iterator[Value]:
        """Yield the values."""
        for _key, value in self.entries():
            yield value

    def merge_with(self, other: Map, join: Join) -> Map:
        """Return the join of two maps by `join(key, own, other, own present, other present)`, called only where they differ.

        `join` returns the value to keep, or `ABSENT` to have none. Returns this map itself when nothing changes, and `other` itself
        when the result equals it.
        Cost:   proportional to the entries that differ.
        """
        made: Trie = self
        theirs_too = True
        for digest, key, has, mine, had, theirs in differing(self, other):
            result = join(deref(key), deref(mine), deref(theirs), has, had)
            if result is ABSENT:
                if has:
                    made = remove(made, digest)
                theirs_too = theirs_too and not had
                continue
            made = put(made, digest, key, result, 0)
            theirs_too = theirs_too and had and same_kid(result, theirs)
        if theirs_too and made is not self:
            return other
        assert isinstance(made, Map)
        return made

    def differences(self, other: Map) -> Iterator[tuple[Value, bool, Value, bool, Value]]:
        """Yield (key, own present, own value, other present, other value) where the two differ."""
        for _digest, key, has, mine, had, theirs in differing(self, other):
            yield deref(key), has, deref(mine), had, deref(theirs)

    def __repr__(self) -> str:
        return f"<Map of {self._count}>"


class Set(Trie):
    """An immutable set, iterated in the order of its elements' hashes.

    Source: CAD002 "Set"; CAD003 "Set".
    """

    __slots__ = ()

    def __init__(self, items: Iterable[object] = ()) -> None:
        super().__init__()
        self._tag = TAG_SET
        self._kids = []
        if items != ():
            built = _set_of(items)
            self._count, self._shift, self._mask = built._count, built._shift, built._mask
            self._kids, self._hashes, self._sample = built._kids, built._hashes, built._sample

    @classmethod
    def of(cls, items: Iterable[object]) -> Set:
        """Return the set of `items`, built in bulk."""
        return _set_of(items)

    def add(self, item: object) -> Set:
        """Return this set with `item`; itself when it is already there."""
        item = admit(item)
        made = put(self, value_hash(item), item, None, 0)
        assert isinstance(made, Set)
        return made

    def remove(self, item: object) -> Set:
        """Return this set without `item`; itself when it is absent."""
        made = remove(self, value_hash(admit(item)))
        assert isinstance(made, Set)
        return made

    def union(self, other: Set) -> Set:
        """Return the elements of both: this set itself when `other` adds nothing, `other` itself when this one adds nothing."""
        made: Trie = self
        alone = False
        for digest, key, has, _mine, had, _theirs in differing(self, other):
            if had and not has:
                made = put(made, digest, key, None, 0)
            elif has and not had:
                alone = True
        result = other if made is not self and not alone else made
        assert isinstance(result, Set)
        return result

    def differences(self, other: Set) -> Iterator[tuple[Value, bool, bool]]:
        """Yield (element, own has it, other has it) where the two differ."""
        for _digest, key, has, _mine, had, _theirs in differing(self, other):
            yield deref(key), has, had

    def isdisjoint(self, other: Iterable[object]) -> bool:
        """Return whether the two have no element in common."""
        return not any(item in self for item in other)

    def __le__(self, other: Set) -> bool:
        return self._count <= other._count and all(item in other for item in self)

    def __ge__(self, other: Set) -> bool:
        return other.__le__(self)

    def __lt__(self, other: Set) -> bool:
        return self._count < other._count and self.__le__(other)

    def __gt__(self, other: Set) -> bool:
        return other.__lt__(self)

    def __or__(self, other: Iterable[object]) -> Set:
        return self.union(other if isinstance(other, Set) else _set_of(other))

    def __and__(self, other: Iterable[object]) -> Set:
        return _set_of([item for item in other if item in self])

    def __sub__(self, other: Iterable[object]) -> Set:
        made = self
        for item in other:
            made = made.remove(item)
        return made

    def __xor__(self, other: Iterable[object]) -> Set:
        theirs = other if isinstance(other, Set) else _set_of(other)
        return _set_of([item for item, _has, _had in self.differences(theirs)])

    def __repr__(self) -> str:
        return f"<Set of {self._count}>"


def _map_of(entries: Mapping[object, object] | Iterable[tuple[object, object]]) -> Map:
    digests: list[bytes] = []
    keys: list[object] = []
    values: list[object] = []
    for key, value in entries.items() if isinstance(entries, Mapping) else entries:
        held = admit(key)
        digests.append(_sha3(encode(held)).digest())
        keys.append(held)
        values.append(admit(value))
    made = sort_entries(TAG_MAP, digests, keys, values)
    assert isinstance(made, Map)
    return made


def _set_of(items: Iterable[object]) -> Set:
    keys = [admit(item) for item in items]
    made = sort_entries(TAG_SET, [value_hash(key) for key in keys], keys, [])
    assert isinstance(made, Set)
    return made


wrappers[TAG_MAP] = closed_trie
wrappers[TAG_SET] = closed_trie
EMPTY_MAP: Final = Map()
EMPTY_SET: Final = Set()
Mapping.register(Map)
AbstractSet.register(Set)
assert EMBEDDED_BYTES_MAX > 2
