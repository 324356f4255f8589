"""Map and set: tries over the hex digits of key hashes, one shape for each set of keys.

Up to 15 entries are a leaf, ordered by key hash. More are a node: the digit position where its keys
first differ (`shift`), a mask of
the digits that occur, and one child for each. Both kinds share this code; a set is a map without
values.
"""

from __future__ import annotations

from collections.abc import Iterator
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
    kid_hash,
    put_kid,
    put_vlq,
    same_kid,
    value_hash,
)
from datalattice.cells.parse import read_kids
from datalattice.cells.scan import bit_count, read_vlq
from datalattice.errors import UsageError
from datalattice.limits import MAP_LEAF_MAX

TAG_MAP: Final = 0x82
TAG_SET: Final = 0x83


def digit_at(digest: bytes, position: i64) -> i64:
    """Return hex digit `position` of a hash, high half of each byte first."""
    byte: i64 = digest[position >> 1]
    return byte & 15 if position & 1 else byte >> 4


def common_digits(a: bytes, b: bytes, start: i64) -> i64:
    """Return the first digit from `start` on where two hashes differ, 64 for none."""
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

    def _fresh(self) -> Trie:
        """Return a new empty trie of the same kind."""
        raise UsageError("a trie is a map or a set")

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
        """Return the hash of some key below this node.

        All of them share the digits before `shift`.
        """
        sample = self._sample
        if sample is None:
            sample = (
                self._keys()[0]
                if self._count <= MAP_LEAF_MAX
                else trie_of(self._open()[0], self._tag, self._count, self._shift)._any()
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
            kid = node._open()[node._slot(digit)]
            node = trie_of(kid, self._tag, node._count, node._shift)
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
        """Yield the leaves in order.

        Each must begin after the one before: a few cells that refer to one another many times
        over could otherwise make a walk without end.
        """
        last = b""
        stack: list[tuple[object, int, int]] = [(self, 0, -1)]
        while stack:
            kid, above, shift = stack.pop()
            node = self if kid is self else trie_of(kid, self._tag, above, shift)
            kids = node._open()
            if node._count > MAP_LEAF_MAX:
                for i in range(len(kids) - 1, -1, -1):
                    stack.append((kids[i], node._count, node._shift))
                continue
            if node._count:
                hashes = node._hashes
                first = kid_hash(kids[0]) if hashes is None else hashes[0]
                if first <= last:
                    raise broken("the keys of a map or set are not in order")
                last = first
            yield node

    def __reversed__(self) -> Iterator[Value]:
        return reversed(list(self))


def trie_of(kid: object, tag: i64, above: i64, shift: i64) -> Trie:
    """Return a child node, checked to be of the right kind and smaller than its parent.

    above: the entries of the parent, 0 for any; shift: the digit at which the parent's keys part,
    -1 for none. A child's keys part later, so that no path has more than 64 nodes.
    Raises: BadFormat: the tree is not canonical; MissingData: the node is not here.
    """
    node = kid.resolve() if isinstance(kid, Ref) else kid
    if (
        not isinstance(node, Trie)
        or node._tag != tag
        or node._count == 0
        or (above and node._count >= above)
        or (node._count > MAP_LEAF_MAX and node._shift <= shift)
    ):
        raise broken("a map or set node is something else")
    return node


def new_leaf(like: Trie, hashes: list[bytes], kids: list[object]) -> Trie:
    """Return a leaf of the kind of `like`; kids in the order of their hashes."""
    made = like._fresh()
    made._count = len(hashes)
    made._hashes = hashes
    made._kids = kids
    return made


def new_node(
    like: Trie, count: i64, shift: i64, mask: i64, kids: list[object], sample: bytes | None
) -> Trie:
    """Return a tree node of the kind of `like`."""
    made = like._fresh()
    made._count = count
    made._shift = shift
    made._mask = mask
    made._kids = kids
    made._sample = sample
    return made


def close(made: Trie, data: bytes, loader: Loader | None) -> Trie:
    """Return `made`, a fresh map or set, as the closed one with this encoding."""
    count, at = read_vlq(data, 1, len(data))
    made._count = count
    if count > MAP_LEAF_MAX:
        high: i64 = data[at + 1]
        low: i64 = data[at + 2]
        made._shift = data[at]
        made._mask = (high << 8) | low
    made._kids = None
    made._encoding = data
    made._loader = loader
    return made


# --- building -------------------------------------------------------------------------------


def build(like: Trie, digests: list[bytes], keys: list[object], values: list[object]) -> Trie:
    """Return the trie of entries in any order; of two entries with one key the later wins.

    Shapes: `values` is used for maps only. Cost: each entry is moved once for each digit that
    it takes to tell it from the others.
    """
    if not digests:
        return like._fresh()
    last = {digest: i for i, digest in enumerate(digests)}
    return _spread(like, digests, keys, values, list(last.values()), 0)


def _spread(
    like: Trie,
    digests: list[bytes],
    keys: list[object],
    values: list[object],
    chosen: list[int],
    start: i64,
) -> Trie:
    """Return the trie of the `chosen` entries, whose hashes agree before digit `start`."""
    total: i64 = len(chosen)
    if total <= MAP_LEAF_MAX:
        return _sorted_leaf(like, digests, keys, values, chosen)
    shift: i64 = start
    while True:
        buckets: list[list[int]] = [[] for _ in range(16)]
        for i in chosen:
            buckets[digit_at(digests[i], shift)].append(i)
        if len(buckets[digit_at(digests[chosen[0]], shift)]) < total:
            break
        shift += 1  # all in one bucket: this digit does not tell them apart
    mask: i64 = 0
    kids: list[object] = []
    for digit in range(16):
        bucket = buckets[digit]
        if bucket:
            mask |= 1 << digit
            kids.append(_spread(like, digests, keys, values, bucket, shift + 1))
    return new_node(like, total, shift, mask, kids, digests[chosen[0]])


def _sorted_leaf(
    like: Trie, digests: list[bytes], keys: list[object], values: list[object], chosen: list[int]
) -> Trie:
    hashes: list[bytes] = []
    order: list[int] = []
    for i in chosen:  # insertion: at most 15 entries, and often one or two
        digest = digests[i]
        at: i64 = len(hashes)
        while at > 0 and hashes[at - 1] > digest:
            at -= 1
        hashes.insert(at, digest)
        order.insert(at, i)
    kids: list[object] = []
    if like._tag == TAG_MAP:
        for i in order:
            kids.append(keys[i])
            kids.append(values[i])
    else:
        for i in order:
            kids.append(keys[i])
    return new_leaf(like, hashes, kids)


def assemble(like: Trie, count: i64, shift: i64, slots: list[object]) -> Trie:
    """Return the canonical trie of what stands under each of 16 digits at `shift` (None: nothing).

    Shapes: `count` is the sum of the entries below.
    """
    mask: i64 = 0
    kids: list[object] = []
    for digit in range(16):
        if slots[digit] is not None:
            mask |= 1 << digit
            kids.append(slots[digit])
    if not kids:
        return like._fresh()
    if len(kids) == 1:
        return trie_of(kids[0], like._tag, 0, shift)
    if count > MAP_LEAF_MAX:
        return new_node(like, count, shift, mask, kids, None)
    return _gather(like, kids)


def _gather(like: Trie, kids: list[object]) -> Trie:
    """Return the leaf that holds the entries of several leaves.

    The canonical shape up to 15 entries.
    """
    hashes: list[bytes] = []
    entries: list[object] = []
    for kid in kids:
        leaf = trie_of(kid, like._tag, 0, -1)
        if leaf._count > MAP_LEAF_MAX:
            raise broken("a map or set node has fewer entries than its child")
        hashes.extend(leaf._keys())
        entries.extend(leaf._open())
    return new_leaf(like, hashes, entries)


def put(node: Trie, digest: bytes, key: object, value: object, known: i64) -> Trie:
    """Return `node` with an entry; digits before `known` are known to agree.

    Returns `node` itself when nothing changes.
    """
    tag: i64 = node._tag
    if node._count <= MAP_LEAF_MAX:
        return _put_leaf(node, digest, key, value)
    shift: i64 = node._shift
    if shift > known:
        fork: i64 = common_digits(digest, node._any(), known)
        if fork < shift:
            fresh = new_leaf(node, [digest], [key, value] if tag == TAG_MAP else [key])
            own: i64 = digit_at(node._any(), fork)
            new: i64 = digit_at(digest, fork)
            pair: list[object] = [node, fresh] if own < new else [fresh, node]
            return new_node(node, node._count + 1, fork, (1 << own) | (1 << new), pair, digest)
    digit: i64 = digit_at(digest, shift)
    slot: i64 = node._slot(digit)
    kids = node._open()
    if node._mask & (1 << digit):
        kid = kids[slot]
        child = trie_of(kid, tag, node._count, shift)
        grown = put(child, digest, key, value, shift + 1)
        if grown is child:
            return node
        fresh_kids = kids[:]
        fresh_kids[slot] = grown
        return new_node(
            node,
            node._count + grown._count - child._count,
            shift,
            node._mask,
            fresh_kids,
            node._sample or digest,
        )
    fresh_kids = kids[:]
    fresh_kids.insert(slot, new_leaf(node, [digest], [key, value] if tag == TAG_MAP else [key]))
    return new_node(
        node, node._count + 1, shift, node._mask | (1 << digit), fresh_kids, node._sample or digest
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
        return new_leaf(node, hashes, kids)
    hashes = hashes[:]
    hashes.insert(at, digest)
    kids = kids[:]
    kids.insert(at * width, key)
    if width == 2:
        kids.insert(2 * at + 1, value)
    if count < MAP_LEAF_MAX:
        return new_leaf(node, hashes, kids)
    return build(node, hashes, kids[::width], kids[1::width])


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
        return new_leaf(
            node, hashes[:at] + hashes[at + 1 :], kids[: at * width] + kids[(at + 1) * width :]
        )
    digit: i64 = digit_at(digest, node._shift)
    if not node._mask & (1 << digit):
        return node
    slot: i64 = node._slot(digit)
    kids = node._open()
    child = trie_of(kids[slot], tag, node._count, node._shift)
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
            return trie_of(fresh[0], tag, 0, node._shift)
    if count > MAP_LEAF_MAX:
        return new_node(node, count, node._shift, mask, fresh, None)
    return _gather(node, fresh)
