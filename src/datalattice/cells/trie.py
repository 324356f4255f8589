"""Map and set: tries over the hex digits of key hashes, one shape for each set of keys.

Up to 15 entries are a leaf, ordered by key hash. More are a node: the digit position at which its
keys first differ (`shift`), a mask of the digits that occur, and one child for each. Map and Set
share this code; a set is a map without values.

Most nodes of a large trie are leaves of one or two entries. So a leaf has its key hashes as one
byte string, and is closed from the start if its entries have no kids. A closed leaf is one object
to the cycle collector, and an entry is added to it by splicing bytes.

Length: one structure with its single and bulk updates; they share the tree's private shape.

Source: CAD003 "Map", "Set"; docs/cells.md "Map and Set".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64, u8

from datalattice.cells.cell import (
    TAG_REF,
    Cell,
    Loader,
    Ref,
    Value,
    admit,
    broken,
    deref,
    kid_hash,
    put_kids,
    put_plain,
    put_vlq,
    unchanged,
    value_hash,
)
from datalattice.cells.parse import read_kids, read_value
from datalattice.cells.scan import bit_count, kid_hashes, read_vlq, skip_kid
from datalattice.cells.work import Work
from datalattice.errors import TypeMismatch, UsageError
from datalattice.limits import HASH_BYTES, MAP_LEAF_MAX

TAG_MAP: Final = 0x82
TAG_SET: Final = 0x83


_PAIRS: Final = "the entries are a mapping, or an iterable of (key, value) pairs"


def pairs_of(entries: object) -> Iterable[object]:
    """Return the pairs of a mapping, or an iterable of pairs unchanged.

    Raises: TypeMismatch: it is neither.
    """
    if isinstance(entries, Mapping):
        return entries.items()
    if not isinstance(entries, Iterable):
        raise TypeMismatch(f"{_PAIRS}, got {type(entries).__name__}")
    return entries


def pair_of(pair: object) -> tuple[object, object]:
    """Return (key, value) of a pair given as any sequence.

    Raises: TypeMismatch: it does not have two elements.
    """
    # A text of two characters is no pair, although Python could unpack it.
    if isinstance(pair, Sequence) and not isinstance(pair, (str, bytes)) and len(pair) == 2:
        return pair[0], pair[1]
    raise TypeMismatch(f"{_PAIRS}; got one that is not a pair: {type(pair).__name__}")


def digit_at(digest: bytes, position: i64) -> i64:
    """Return hex digit `position` of a hash, high half of each byte first."""
    # The high half of a byte is the earlier digit.
    byte: i64 = digest[position >> 1]
    return byte & 15 if position & 1 else byte >> 4


def common_digits(a: bytes, b: bytes, start: i64) -> i64:
    """Return the first digit from `start` on at which two hashes differ, 64 if none."""
    position: i64 = start
    # A hash has 64 hex digits.
    while position < 64 and digit_at(a, position) == digit_at(b, position):
        position += 1
    return position


def agree(a: bytes, b: bytes, digits: i64) -> bool:
    """Return whether two keys both have `digits` digits and share them."""
    size: i64 = digits >> 1
    # An even number of digits is whole bytes, which Python compares at once.
    if not digits & 1:
        return len(a) >= size and len(b) >= size and a[:size] == b[:size]
    if len(a) <= size or len(b) <= size:
        return False
    return a[size] >> 4 == b[size] >> 4 and a[:size] == b[:size]


def key_at(hashes: bytes, entry: i64) -> bytes:
    """Return the key hash of entry `entry` from a leaf's joined hashes."""
    return hashes[32 * entry : 32 * entry + 32]


def place(hashes: bytes, digest: bytes) -> i64:
    """Return the position p of `digest` in a leaf's joined key hashes; -1 - p if it is absent."""
    base: i64 = 0
    total: i64 = len(hashes)
    while base < total:
        at: i64 = 0
        while at < 32:
            own: i64 = hashes[base + at]
            new: i64 = digest[at]
            # Compared byte by byte: slices would make two objects for each entry.
            if own != new:
                break
            at += 1
        if at == 32:
            return base >> 5
        # In order: behind a greater hash the wanted one cannot stand.
        if own > new:
            break
        base += 32
    return -1 - (base >> 5)


class Trie(Cell):
    """What Map and Set share."""

    __slots__ = ("_count", "_hashes", "_mask", "_sample", "_shift", "_tag")

    _tag: i64
    _count: i64
    _shift: i64
    _mask: i64
    _hashes: bytes | None
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
        """Return a new empty trie of the same type."""
        raise UsageError("a trie is a map or a set")

    def _width(self) -> i64:
        """Return the number of kids of a leaf entry: key and value, or key alone."""
        # "A Set has keys and no values".
        return 2 if self._tag == TAG_MAP else 1

    def _build(self, depth: int) -> bytes:
        out = BytesWriter()
        out.append(u8(self._tag))
        put_vlq(out, self._count)
        # "The number of leading hex digits that all key hashes share (1 byte), a mask of the digits
        # that follow (2 bytes, bit d for digit d), and a child for each" (docs/cells.md "Map and
        # Set").
        if self._count > MAP_LEAF_MAX:
            out.append(u8(self._shift))
            out.append(u8(self._mask >> 8))
            out.append(u8(self._mask & 0xFF))
        kids = self._open()
        put_kids(out, kids, 0, len(kids), depth)
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

    def _keys(self) -> bytes:
        """Return the joined key hashes of a leaf, in order."""
        hashes = self._hashes
        if hashes is None:
            width: i64 = self._width()
            found: list[bytes] = []
            if self._kids is None:
                data = self._encoding
                assert data is not None
                # Behind the tag and the count, which is below 128 in a leaf.
                at: i64 = 2
                for _ in range(self._count):
                    after: i64 = skip_kid(data, at)
                    found.append(data[at:after])
                    at = skip_kid(data, after) if width == 2 else after
                found = kid_hashes(found)
            else:
                kids = self._kids
                found = [kid_hash(kids[i]) for i in range(0, len(kids), width)]
            for i in range(1, len(found)):
                # "Keys of a Map or Set leaf that are not in strictly increasing order of their
                # hashes" are refused (docs/cells.md "Decoding"); referenced keys are hashed only
                # here.
                if found[i - 1] >= found[i]:
                    raise broken("the keys of a map or set are not in order")
            hashes = b"".join(found)
            self._hashes = hashes
        return hashes

    def _first_key(self) -> bytes:
        """Return the first key hash of a leaf that is not empty, without computing the others."""
        hashes = self._hashes
        return kid_hash(self._open()[0]) if hashes is None else hashes[:32]

    def _value(self, entry: i64) -> object:
        """Return the value kid of entry `entry` of a leaf.

        A plain value is read from the encoding of a closed leaf, which stays closed.
        """
        if self._kids is None:
            data = self._encoding
            assert data is not None
            at: i64 = entry_offset(data, entry, 2)
            at = skip_kid(data, at)
            # Tags below 80 are plain values; a reference needs the loader of this cell.
            if data[at] < 0x80 and data[at] != TAG_REF:
                return read_value(data, at, skip_kid(data, at), self._loader)
        return self._open()[2 * entry + 1]

    def _any(self) -> bytes:
        """Return the hash of some key below this node; all share the digits before `shift`."""
        sample = self._sample
        if sample is None:
            sample = (
                self._first_key()
                if self._count <= MAP_LEAF_MAX
                else trie_of(self._open()[0], self._tag, self._count, self._shift)._any()
            )
            self._sample = sample
        return sample

    def _slot(self, digit: i64) -> i64:
        """Return the position of the child for `digit`, or of its insertion."""
        # Children stand in the order of their digits, so the smaller digits that occur are counted.
        return bit_count(self._mask & ((1 << digit) - 1))

    def _find(self, digest: bytes) -> tuple[Trie | None, i64]:
        """Return (leaf, entry number) of the key with this hash, or (None, 0)."""
        node = self
        while node._count > MAP_LEAF_MAX:
            digit: i64 = digit_at(digest, node._shift)
            # "A mask of the digits that follow": without the bit there is no such key.
            if not node._mask & (1 << digit):
                return None, 0
            kid = node._open()[node._slot(digit)]
            node = trie_of(kid, self._tag, node._count, node._shift)
        at: i64 = place(node._keys(), digest)
        return (node, at) if at >= 0 else (None, 0)

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

    def _leaves(self, work: Work | None = None) -> Iterator[Trie]:
        """Yield the leaves in order.

        Each must start after the previous one. Otherwise a few shared cells could make the walk
        endless.
        """
        last = b""
        stack: list[tuple[object, int, int]] = [(self, 0, -1)]
        while stack:
            kid, above, shift = stack.pop()
            node = self if kid is self else trie_of(kid, self._tag, above, shift)
            if work is not None:
                work.enter(node)
            if node._count > MAP_LEAF_MAX:
                kids = node._open()
                # The last is pushed first, so that the first is visited first.
                for i in range(len(kids) - 1, -1, -1):
                    stack.append((kids[i], node._count, node._shift))
                continue
            if node._count:
                first = node._first_key()
                # "Reading a value with such a fault always ends: it raises `BadFormat`"
                # (docs/cells.md "Decoding").
                if first <= last:
                    raise broken("the keys of a map or set are not in order")
                last = first
            yield node

    def __reversed__(self) -> Iterator[Value]:
        return reversed(list(self))


def trie_of(kid: object, tag: i64, above: i64, shift: i64) -> Trie:
    """Return a child node, checked to have the right type and to be smaller than its parent.

    above: the entries of the parent, 0 for any. shift: the digit at which the parent's keys differ,
    -1 for none. A child's keys differ later, so no path has more than 64 nodes.
    Raises: BadFormat: the tree is not canonical. MissingData: the node is missing.
    """
    node = kid.resolve() if isinstance(kid, Ref) else kid
    if (
        not isinstance(node, Trie)
        or node._tag != tag
        or node._count == 0
        # A canonical node has two children or more, so each child has fewer entries.
        or (above and node._count >= above)
        # "A key under the wrong digit": digits before the parent's are shared by all keys below.
        or (node._count > MAP_LEAF_MAX and node._shift <= shift)
    ):
        raise broken("a map or set node has a wrong type, size or digit")
    return node


def entry_offset(data: bytes, entry: i64, width: i64) -> i64:
    """Return the position of entry `entry` in the encoding of a leaf."""
    at: i64 = 2  # the tag and a count below 128
    for _ in range(entry * width):
        at = skip_kid(data, at)
    return at


def new_leaf(like: Trie, hashes: bytes, kids: list[object]) -> Trie:
    """Return a leaf like `like`, of kids in the order of `hashes`; closed if all are plain."""
    count: i64 = len(hashes) // HASH_BYTES
    out = BytesWriter()
    out.append(u8(like._tag))
    out.append(u8(count))
    for kid in kids:
        # A leaf with a kid that is a cell stays open: its encoding depends on what is embedded.
        if not put_plain(out, kid):
            made = like._fresh()
            made._count = count
            made._hashes = hashes
            made._kids = kids
            return made
    return _closed_leaf(like, hashes, out.getvalue())


def new_node(
    like: Trie, count: i64, shift: i64, mask: i64, kids: list[object], sample: bytes | None
) -> Trie:
    """Return a tree node like `like`."""
    made = like._fresh()
    made._count = count
    made._shift = shift
    made._mask = mask
    made._kids = kids
    made._sample = sample
    return made


def close(made: Trie, data: bytes, loader: Loader | None) -> Trie:
    """Return `made`, a new map or set, as the closed one with this encoding."""
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


class Rows:
    """Entries to be built into a new trie.

    A row is a key hash, followed by the encoding of the entry if it is plain. Other entries have a
    row of the hash alone, by which their kids are found. One object per entry keeps the sort of
    many entries within the processor's caches.
    """

    def __init__(self, tag: i64) -> None:
        self.tag: i64 = tag
        self.rows: list[bytes] = []
        self.kids: dict[bytes, list[object]] = {}

    def add(self, digest: bytes, key: object, value: object) -> None:
        """Add an entry; sets ignore `value`."""
        out = BytesWriter()
        out.write(digest)
        if put_plain(out, key) and (self.tag == TAG_SET or put_plain(out, value)):
            self.rows.append(out.getvalue())
        else:
            self.rows.append(digest)
            self.kids[digest] = [key, value] if self.tag == TAG_MAP else [key]


def build(like: Trie, entries: Rows) -> Trie:
    """Return the trie of entries in any order; the last of equal keys wins.

    Cost: each entry moves once for each digit needed to distinguish it from the others.
    """
    return _spread(like, entries, entries.rows, 0) if entries.rows else like._fresh()


def _spread(like: Trie, entries: Rows, rows: list[bytes], shift: i64) -> Trie:
    """Return the trie of `rows`, later ones winning; their hashes agree before `shift`."""
    # More rows than a leaf takes may be left after 64 digits: they all have the same key.
    if len(rows) <= MAP_LEAF_MAX or shift == 2 * HASH_BYTES:
        return _sorted_leaf(like, entries, rows)
    buckets: list[list[bytes] | None] = [None] * 16
    for row in rows:
        # A row begins with its hash.
        digit: i64 = digit_at(row, shift)
        bucket = buckets[digit]
        if bucket is None:
            buckets[digit] = [row]
        else:
            bucket.append(row)
    count: i64 = 0
    slots: list[object] = [None] * 16
    for digit in range(16):
        bucket = buckets[digit]
        if bucket is not None:
            child = _spread(like, entries, bucket, shift + 1)
            count += child._count
            slots[digit] = child
    return assemble(like, count, shift, slots)


def leaf_of_rows(like: Trie, rows: dict[bytes, tuple[object, object]]) -> Trie:
    """Return the map leaf of at most 15 entries, by the hash and encoding of their plain keys."""
    order = sorted(rows)
    hashes = b"".join([row[:HASH_BYTES] for row in order])
    out = BytesWriter()
    out.append(u8(like._tag))
    out.append(u8(len(order)))
    for row in order:
        out.write(row[HASH_BYTES:])
        if not put_plain(out, rows[row][1]):
            break
    else:
        return _closed_leaf(like, hashes, out.getvalue())
    made = like._fresh()
    made._count = len(order)
    made._hashes = hashes
    made._kids = [part for row in order for part in rows[row]]
    return made


def _sorted_leaf(like: Trie, entries: Rows, rows: list[bytes]) -> Trie:
    """Return the leaf of rows with at most 15 different keys."""
    if len(rows) > 1:
        hashes = b""
        order: list[bytes] = []
        for row in rows:  # insertion: often two or three
            at: i64 = place(hashes, row)
            if at >= 0:
                order[at] = row
            else:
                at = -1 - at
                hashes = hashes[: 32 * at] + row[:32] + hashes[32 * at :]
                order.insert(at, row)
        rows = order
    else:
        hashes = rows[0][:32]
    out = BytesWriter()
    out.append(u8(like._tag))
    out.append(u8(len(rows)))
    for row in rows:
        if len(row) == HASH_BYTES:
            return _mixed_leaf(like, entries, hashes, rows)
        out.write(row[32:])
    return _closed_leaf(like, hashes, out.getvalue())


def _mixed_leaf(like: Trie, entries: Rows, hashes: bytes, rows: list[bytes]) -> Trie:
    """Return a leaf with entries that are not plain; rows in the order of their hashes."""
    kids: list[object] = []
    for row in rows:
        if len(row) == HASH_BYTES:
            kids.extend(entries.kids[row])
        else:
            kids.extend(read_kids(row, HASH_BYTES, like._width(), None)[0])
    made = like._fresh()
    made._count = len(rows)
    made._hashes = hashes
    made._kids = kids
    return made


def _closed_leaf(like: Trie, hashes: bytes, data: bytes) -> Trie:
    """Return the leaf with this encoding."""
    made = like._fresh()
    made._count = len(hashes) // HASH_BYTES
    made._hashes = hashes
    made._kids = None
    made._encoding = data
    return made


def assemble(like: Trie, count: i64, shift: i64, slots: list[object]) -> Trie:
    """Return the canonical trie of 16 children by digit at `shift` (None: no child).

    `count` is the number of entries below.
    """
    mask: i64 = 0
    kids: list[object] = []
    for digit in range(16):
        if slots[digit] is not None:
            mask |= 1 << digit
            kids.append(slots[digit])
    if not kids:
        return like._fresh()
    # A node needs two digits that occur; with one, the child is the canonical shape.
    if len(kids) == 1:
        return trie_of(kids[0], like._tag, 0, shift)
    if count > MAP_LEAF_MAX:
        return new_node(like, count, shift, mask, kids, None)
    return _gather(like, kids)


def _gather(like: Trie, kids: list[object]) -> Trie:
    """Return the leaf with the entries of several leaves: the canonical shape up to 15 entries."""
    hashes: list[bytes] = []
    entries: list[object] = []
    for kid in kids:
        leaf = trie_of(kid, like._tag, 0, -1)
        # A child with more entries than its parent states: the count of the parent is forged.
        if leaf._count > MAP_LEAF_MAX:
            raise broken("a map or set node has fewer entries than its child")
        hashes.append(leaf._keys())
        entries.extend(leaf._open())
    return new_leaf(like, b"".join(hashes), entries)


def put(node: Trie, digest: bytes, key: object, value: object, known: i64) -> Trie:
    """Return `node` with an entry; itself if `unchanged`. Digits before `known` agree."""
    tag: i64 = node._tag
    if node._count <= MAP_LEAF_MAX:
        return _put_leaf(node, digest, key, value)
    shift: i64 = node._shift
    # The digits between were never compared with this key.
    if shift > known:
        fork: i64 = common_digits(digest, node._any(), known)
        # The new key leaves before this node's digit: a node of two children goes above it.
        if fork < shift:
            fresh = new_leaf(node, digest, _entry(node, key, value))
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
    fresh_kids.insert(slot, new_leaf(node, digest, _entry(node, key, value)))
    return new_node(
        node, node._count + 1, shift, node._mask | (1 << digit), fresh_kids, node._sample or digest
    )


def _entry(like: Trie, key: object, value: object) -> list[object]:
    """Return the kids of one entry."""
    return [key, value] if like._tag == TAG_MAP else [key]


def _put_leaf(node: Trie, digest: bytes, key: object, value: object) -> Trie:
    hashes = node._keys()
    at: i64 = place(hashes, digest)
    # An element that is there already: a Set has no value to replace.
    if at >= 0 and node._tag == TAG_SET:
        return node
    if at >= 0 or node._count < MAP_LEAF_MAX:
        if node._kids is None:
            made = _spliced(node, hashes, at, digest, key, value)
            if made is not None:
                return made
        kids = node._open()
        if at >= 0:
            # Equal content gives the very object back, by which callers see that nothing changed.
            if unchanged(kids[2 * at + 1], value):
                return node
            kids = kids[:]
            kids[2 * at + 1] = value
            return new_leaf(node, hashes, kids)
        at = -1 - at
        hashes = hashes[: 32 * at] + digest + hashes[32 * at :]
        first: i64 = node._width() * at
        return new_leaf(node, hashes, kids[:first] + _entry(node, key, value) + kids[first:])
    rows = Rows(node._tag)
    kids = node._open()
    # A full leaf: with one entry more it becomes a node.
    for i in range(MAP_LEAF_MAX):
        if node._tag == TAG_MAP:
            rows.add(key_at(hashes, i), kids[2 * i], kids[2 * i + 1])
        else:
            rows.add(key_at(hashes, i), kids[i], None)
    rows.add(digest, key, value)
    return build(node, rows)


def _spliced(
    node: Trie, hashes: bytes, at: i64, digest: bytes, key: object, value: object
) -> Trie | None:
    """Return a closed leaf with an entry put, spliced from its bytes; None if it is not plain.

    at: the position that `place` returned.
    """
    data = node._encoding
    assert data is not None
    width: i64 = node._width()
    out = BytesWriter()
    if at >= 0:
        start: i64 = skip_kid(data, entry_offset(data, at, width))
        if not put_plain(out, value):
            return None
        fresh = out.getvalue()
        end: i64 = skip_kid(data, start)
        if data[start:end] == fresh:
            return node
        fresh = data[:start] + fresh + data[end:]
    else:
        at = -1 - at
        start = entry_offset(data, at, width)
        out.append(u8(node._tag))
        out.append(u8(node._count + 1))
        out.write(data[2:start])
        if not put_plain(out, key) or (width == 2 and not put_plain(out, value)):
            return None
        out.write(data[start:])
        fresh = out.getvalue()
        hashes = hashes[: 32 * at] + digest + hashes[32 * at :]
    made = _closed_leaf(node, hashes, fresh)
    made._loader = node._loader
    return made


def remove(node: Trie, digest: bytes) -> Trie:
    """Return `node` without the key of this hash; itself if the key is absent."""
    tag: i64 = node._tag
    if node._count <= MAP_LEAF_MAX:
        hashes = node._keys()
        at: i64 = place(hashes, digest)
        if at < 0:
            return node
        width: i64 = node._width()
        kids = node._open()
        return new_leaf(
            node,
            hashes[: 32 * at] + hashes[32 * at + 32 :],
            kids[: at * width] + kids[(at + 1) * width :],
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
        # A node has two children or more; the only one left takes its position.
        if len(fresh) == 1:
            return trie_of(fresh[0], tag, 0, node._shift)
    # "The shape depends only on the keys" (docs/cells.md "Map and Set"): with 15 entries a node
    # becomes a leaf again, as if the removed key had never been there.
    if count > MAP_LEAF_MAX:
        return new_node(node, count, node._shift, mask, fresh, None)
    return _gather(node, fresh)
