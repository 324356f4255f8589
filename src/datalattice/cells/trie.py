"""Map and set: tries over the hex digits of key hashes, one shape for each set of keys.

Up to 15 entries are a leaf, ordered by key hash. More are a node: the digit position at which its
keys first differ (`shift`), a mask of the digits that occur, and one child for each. Map and Set
share this code; a set is a map without values.

Most nodes of a large trie are leaves of one or two entries. So a leaf has its key hashes as one
byte string, and is closed from the start if its entries have no kids. A *packed node* is closed
from the start as well: at most 48 such entries in leaves that are all embedded, with the key hashes
of all entries. A closed node is one object to the cycle collector, and an entry is added to it by
splicing bytes.

Entries that are put one after another into a full leaf are collected, and built in bulk when they
are first read: see `PutRun`.

Length: one structure with its single and bulk updates; they share the tree's private shape.

Source: CAD003 "Map", "Set"; docs/cells.md "Map and Set".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from librt.strings import BytesWriter, read_i64_le, write_i64_le
from mypy_extensions import i64, u8

from datalattice.cells.cell import (
    TAG_REF,
    Cell,
    Loader,
    Ref,
    Value,
    broken,
    deref,
    encode,
    kid_hash,
    put_kids,
    put_plain,
    put_vlq,
    to_value,
    unchanged,
    value_hash,
)
from datalattice.cells.parse import kids_in, value_in
from datalattice.cells.scan import bit_count, kid_hashes, read_vlq, skip_kid
from datalattice.cells.work import Work
from datalattice.crypto import sha3_256, sha3_256_sorted
from datalattice.errors import TypeMismatch, UsageError
from datalattice.limits import EMBEDDED_BYTES_MAX, HASH_BYTES, MAP_LEAF_MAX

TAG_MAP: Final = 0x82
TAG_SET: Final = 0x83
PACKED_MAX: Final = 48  # most entries of a packed node; copying more takes longer than a new node
_PACKED_HEAD: Final = 5  # bytes of its tag, count (below 128), shift and mask

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
    # A text of two characters is refused, although Python could unpack it.
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


def position_of(hashes: bytes, digest: bytes, start: i64 = 0, stop: i64 = -1) -> i64:
    """Return the position p of `digest` in joined key hashes; -1 - p if it is absent.

    start, stop: the entries to look through; all by default.
    """
    low: i64 = start
    high: i64 = stop if stop >= 0 else len(hashes) >> 5
    while low < high:
        middle: i64 = (low + high) >> 1
        base: i64 = middle << 5
        at: i64 = 0
        # Compared byte by byte: slices would make two objects for each entry.
        while at < 32 and hashes[base + at] == digest[at]:
            at += 1
        if at == 32:
            return middle
        if hashes[base + at] < digest[at]:
            low = middle + 1
        else:
            high = middle
    return -1 - low


class PutRun:
    """Plain entries put one after another into a map or set; the tries made so share them.

    The trie of n entries has the first n. Its tree is made when it is first read: in bulk, or from
    the nearest tree that was made before, since a program may keep earlier tries and read them.
    """

    def __init__(self) -> None:
        self.keys: Final[list[bytes]] = []  # the encodings of different keys
        self.values: Final[dict[bytes, object]] = {}
        self._trees: Final[list[Trie]] = []  # trees made so far, the smallest first
        self._most: i64 = 2 * MAP_LEAF_MAX  # entries of this run

    def with_room(self, count: i64) -> PutRun:
        """Return the run that takes entry number `count`: this one, or a copy once it is full.

        So an early trie that is kept and never read holds at most twice its own entries in memory.
        """
        if count < self._most:
            return self
        made = PutRun()
        made._most = 2 * count
        made.keys.extend(self.keys[:count])
        for key in made.keys:
            made.values[key] = self.values[key]
        made._trees.extend([tree for tree in self._trees[-1:] if tree._count <= count])
        return made

    def begin(self, leaf: bytes) -> bool:
        """Add the entries of a full leaf; return False if one of them may not be plain."""
        width: i64 = 2 if leaf[0] == TAG_MAP else 1
        at: i64 = 2
        for i in range(MAP_LEAF_MAX):
            end: i64 = skip_kid(leaf, at)
            after: i64 = skip_kid(leaf, end) if width == 2 else end
            if not _is_plain(leaf, at) or (width == 2 and not _is_plain(leaf, end)):
                return False
            value = value_in(leaf, end, after, None) if width == 2 else None
            self.collect(i, leaf[at:end], value)
            at = after
        return True

    def collect(self, count: i64, key: bytes, value: object) -> bool:
        """Add entry number `count`; return False if the run has another there, or the key."""
        keys = self.keys
        if len(keys) != count or key in self.values:
            return False
        keys.append(key)
        if len(keys) != count + 1:  # another thread has added one, too
            return False
        self.values[key] = value
        return True

    def tree(self, like: Trie, count: i64) -> Trie:
        """Return the trie of the first `count` entries."""
        trees = self._trees
        at: i64 = 0
        high: i64 = len(trees)
        while at < high:
            middle: i64 = (at + high) >> 1
            if trees[middle]._count < count:
                at = middle + 1
            else:
                high = middle
        size: int = count
        made = like._fresh()
        for near in trees[max(at - 1, 0) : at + 1]:
            if abs(len(near) - size) < abs(len(made) - size):
                made = near
        # In bulk, an entry takes about a fourth of the time.
        if 4 * abs(len(made) - size) > size:
            rows = Rows(like._tag)
            for key in self.keys[:count]:
                rows.add(value_in(key, 0, len(key), None), self.values[key])
            made = build_trie(like, rows)
        for key in self.keys[made._count : count]:
            name = value_in(key, 0, len(key), None)
            made = put_entry(made, sha3_256(key), name, self.values[key], 0)
        for key in self.keys[count : made._count]:
            made = remove_entry(made, sha3_256(key))
        trees.insert(at, made)
        return made


class Trie(Cell):
    """Base of Map and Set."""

    __slots__ = ("_count", "_hashes", "_mask", "_run", "_sample", "_shift", "_tag")

    _run: PutRun | None
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
        self._run = None

    def _fresh(self) -> Trie:
        """Return a new empty trie of the same type."""
        raise UsageError("a trie is a map or a set")

    def _width(self) -> i64:
        """Return the number of kids of a leaf entry: key and value, or key alone."""
        # "A Set has keys and no values".
        return 2 if self._tag == TAG_MAP else 1

    def _with_put(self, key: object, value: object) -> Trie | None:
        """Return this trie with an entry added to its `PutRun`; None if it needs a tree for it."""
        held = self._run
        leaf = self._encoding
        # A run begins with a full leaf. One that was hashed is read between writes: collecting
        # would only delay its tree.
        if held is None and (self._count != MAP_LEAF_MAX or self._hash is not None or leaf is None):
            return None
        encoding = BytesWriter()
        if not put_plain(encoding, key):
            return None
        found = encoding.getvalue()
        # The value is written only to learn whether it is plain.
        if self._tag == TAG_MAP and not put_plain(encoding, value):
            return None
        if held is None:
            # The bytes of the key anywhere in the leaf: it is a key already, or part of another.
            if leaf is None or found in leaf:
                return None
            held = PutRun()
            if not held.begin(leaf):
                return None
        held = held.with_room(self._count)
        if not held.collect(self._count, found, value):
            return None
        made = self._fresh()
        made._count = self._count + 1
        made._kids = None
        made._run = held
        return made

    def _settle(self) -> None:
        """Make the tree of the collected entries, if this trie has none yet."""
        held = self._run
        if held is not None:
            self._become(held.tree(self, self._count))

    def _become(self, built: Trie) -> None:
        """Take over the content of another trie of this type."""
        self._count, self._shift, self._mask = built._count, built._shift, built._mask
        self._hashes, self._sample = built._hashes, built._sample
        self._encoding = built._encoding  # the only content of a node closed from the start
        self._kids = built._kids
        self._run = None

    def _build(self, depth: int) -> bytes:
        self._settle()
        encoding = self._encoding
        if encoding is not None:
            return encoding
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
        self._settle()
        data = self._encoding
        if data is None:
            assert self._kids is not None
            return self._kids
        at: i64 = read_vlq(data, 1, len(data))[1]
        if self._count <= MAP_LEAF_MAX:
            return kids_in(data, at, self._count * self._width(), self._loader)[0]
        if self._hashes is not None:
            return self._open_like([])
        return kids_in(data, at + 3, bit_count(self._mask), self._loader)[0]

    def _open_like(self, others: list[object]) -> list[object]:
        """Return the kids. A packed node reuses equal ones of `others`, kids of the same mask."""
        hashes = self._hashes
        data = self._encoding
        if self._kids is not None or hashes is None or data is None:
            return self._open()
        kids: list[object] = []
        start: i64 = _PACKED_HEAD
        entry: i64 = 0
        for i in range(bit_count(self._mask)):
            size: i64 = data[start + 1]
            end: i64 = entry_offset(data, start, size, self._width())
            leaf = data[start:end]
            other = others[i] if others else None
            if isinstance(other, Trie) and other._encoding == leaf:
                kids.append(other)
            else:
                kids.append(_closed_leaf(self, hashes[32 * entry : 32 * (entry + size)], leaf))
            entry += size
            start = end
        self._kids = kids
        self._hashes = None
        return kids

    def _close(self, loader: Loader) -> None:
        self._loader = loader
        self._kids = None
        self._hashes = None

    def _keys(self) -> bytes:
        """Return the joined key hashes of a leaf, in order."""
        self._settle()
        hashes = self._hashes
        if hashes is None:
            width: i64 = self._width()
            found: list[bytes] = []
            if self._kids is None:
                data = self._encoding
                assert data is not None
                # After the tag and the count, which is below 128 in a leaf.
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
        """Return the value kid of an entry that `_find` returned.

        A plain value is read from the encoding of a closed leaf or node, which stays closed.
        """
        is_node = self._count > MAP_LEAF_MAX
        # `_find` returned a packed node. Another thread may have opened it; its encoding stays.
        if is_node or self._kids is None:
            data = self._encoding
            assert data is not None
            start: i64 = 0
            at: i64 = entry
            if is_node:
                start = _PACKED_HEAD
                while at >= data[start + 1]:
                    at -= data[start + 1]
                    start = entry_offset(data, start, data[start + 1], 2)
            at = skip_kid(data, entry_offset(data, start, at, 2))
            if is_node or _is_plain(data, at):
                return value_in(data, at, skip_kid(data, at), self._loader)
        return self._open()[2 * entry + 1]

    def _any(self) -> bytes:
        """Return the hash of some key below this node; all share the digits before `shift`."""
        self._settle()
        sample = self._sample
        if sample is None:
            hashes = self._hashes
            if self._count <= MAP_LEAF_MAX:
                sample = self._first_key()
            elif hashes is not None:
                sample = hashes[:32]
            else:
                sample = trie_of(self._open()[0], self._tag, self._count, self._shift)._any()
            self._sample = sample
        return sample

    def _slot(self, digit: i64) -> i64:
        """Return the position of the child for `digit`, or of its insertion."""
        # Children are in the order of their digits, so the smaller digits in the mask are counted.
        return bit_count(self._mask & ((1 << digit) - 1))

    def _find(self, digest: bytes) -> tuple[Trie | None, i64]:
        """Return (leaf or packed node, entry number) of a key hash, or (None, 0)."""
        self._settle()
        node = self
        # Read once: another thread may open a packed node meanwhile.
        hashes = node._hashes
        while node._count > MAP_LEAF_MAX and hashes is None:
            digit: i64 = digit_at(digest, node._shift)
            # "A mask of the digits that follow": without the bit there is no such key.
            if not node._mask & (1 << digit):
                return None, 0
            kid = node._open()[node._slot(digit)]
            node = trie_of(kid, self._tag, node._count, node._shift)
            hashes = node._hashes
        at: i64 = position_of(node._keys() if hashes is None else hashes, digest)
        return (node, at) if at >= 0 else (None, 0)

    def __len__(self) -> int:
        return self._count

    def __contains__(self, key: object) -> bool:
        return self._find(value_hash(to_value(key)))[0] is not None

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
        self._settle()
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


def _is_plain(data: bytes, at: i64) -> bool:
    """Return whether the kid at `at` is surely plain: a reference needs the loader of its cell."""
    return data[at] < 0x80 and data[at] != TAG_REF


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


def entry_offset(data: bytes, start: i64, entry: i64, width: i64) -> i64:
    """Return the position of entry `entry` of the leaf whose encoding starts at `start`."""
    at: i64 = start + 2  # after the tag and a count below 128
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
    """Entries to be built into a new trie, in any order.

    A row is the encoding of the key, followed by that of the value if both are plain. The kids of
    other entries are held by the number of their row.
    """

    def __init__(self, tag: i64) -> None:
        self.tag: i64 = tag
        self.count: int = 0
        self.data: BytesWriter = BytesWriter()
        self.spans: BytesWriter = BytesWriter()
        self.kids: dict[int, list[object]] = {}

    def add(self, key: object, value: object) -> None:
        """Add an entry; sets ignore `value`."""
        data = self.data
        is_plain = put_plain(data, key)
        if not is_plain:
            data.write(encode(key))
        write_i64_le(self.spans, len(data))
        if not is_plain or (self.tag == TAG_MAP and not put_plain(data, value)):
            self.kids[self.count] = [key, value] if self.tag == TAG_MAP else [key]
        write_i64_le(self.spans, len(data))
        self.count += 1


class Entries:
    """Entries in the order of their key hashes: `data` has those of plain kids as a leaf does."""

    def __init__(
        self, hashes: bytes, data: bytes, ends: bytes, kids: dict[int, list[object]]
    ) -> None:
        self.hashes: Final = hashes
        self.data: Final = data
        self.ends: Final = ends  # of each in `data`
        self.kids: Final = kids  # of those that are not plain, by number

    def digit(self, entry: i64, position: i64) -> i64:
        """Return hex digit `position` of the key hash of an entry."""
        byte: i64 = self.hashes[32 * entry + (position >> 1)]
        return byte & 15 if position & 1 else byte >> 4

    def digit_end(self, start: i64, stop: i64, position: i64) -> i64:
        """Return the end of the entries that share hex digit `position` with entry `start`."""
        digit: i64 = self.digit(start, position)
        end: i64 = start + 1
        while end < stop and self.digit(end, position) == digit:
            end += 1
        return end

    def encoded(self, low: i64, high: i64) -> bytes:
        """Return the entries `low` .. `high - 1` as a leaf holds them."""
        begin: i64 = read_i64_le(self.ends, 8 * low - 8) if low else 0
        return self.data[begin : read_i64_le(self.ends, 8 * high - 8)]


def build_trie(like: Trie, rows: Rows) -> Trie:
    """Return the trie of entries; the last of equal keys wins."""
    if not rows.count:
        return like._fresh()
    hashes, data, ends, numbers = sha3_256_sorted(rows.data.getvalue(), rows.spans.getvalue())
    kids: dict[int, list[object]] = {}
    if rows.kids:
        for i in range(len(hashes) >> 5):
            number: int = read_i64_le(numbers, 8 * i)
            if number in rows.kids:
                kids[i] = rows.kids[number]
    return _range(like, Entries(hashes, data, ends, kids), 0, len(hashes) >> 5, 0)


def _range(like: Trie, entries: Entries, low: i64, high: i64, known: i64) -> Trie:
    """Return the trie of the entries `low` .. `high - 1`; their hashes agree before `known`."""
    if high - low <= MAP_LEAF_MAX:
        return _leaf_of(like, entries, low, high)
    hashes = entries.hashes
    first = key_at(hashes, low)
    # The hashes are in order, so digits that the first and the last share are shared by all.
    shift: i64 = common_digits(first, key_at(hashes, high - 1), known)
    if high - low <= PACKED_MAX and not entries.kids:
        packed = _packed(like, entries, low, high, shift)
        if packed is not None:
            return packed
    mask: i64 = 0
    children: list[object] = []
    at: i64 = low
    while at < high:
        end: i64 = entries.digit_end(at, high, shift)
        mask |= 1 << entries.digit(at, shift)
        children.append(_range(like, entries, at, end, shift + 1))
        at = end
    return new_node(like, high - low, shift, mask, children, first)


def _packed(like: Trie, entries: Entries, low: i64, high: i64, shift: i64) -> Trie | None:
    """Return the packed node of plain entries; None if a leaf below would not be embedded."""
    mask: i64 = 0
    body = BytesWriter()
    at: i64 = low
    while at < high:
        end: i64 = entries.digit_end(at, high, shift)
        leaf = entries.encoded(at, end)
        if end - at > MAP_LEAF_MAX or len(leaf) > EMBEDDED_BYTES_MAX - 2:
            return None
        body.append(u8(like._tag))
        body.append(u8(end - at))
        body.write(leaf)
        mask |= 1 << entries.digit(at, shift)
        at = end
    return _packed_node(like, shift, mask, entries.hashes[32 * low : 32 * high], body.getvalue())


def _leaf_of(like: Trie, entries: Entries, low: i64, high: i64) -> Trie:
    """Return the leaf of the entries `low` .. `high - 1`."""
    hashes = entries.hashes[32 * low : 32 * high]
    if entries.kids:
        kids: list[object] = []
        is_plain = True
        for i in range(low, high):
            entry = entries.kids.get(i)
            is_plain = is_plain and entry is None
            data = b"" if entry is not None else entries.encoded(i, i + 1)
            kids += entry or kids_in(data, 0, like._width(), None)[0]
        if not is_plain:
            made = like._fresh()
            made._count = high - low
            made._hashes = hashes
            made._kids = kids
            return made
    out = BytesWriter()
    out.append(u8(like._tag))
    out.append(u8(high - low))
    out.write(entries.encoded(low, high))
    return _closed_leaf(like, hashes, out.getvalue())


def _split(like: Trie, hashes: bytes, kids: list[object]) -> Trie:
    """Return the node of the entries of a leaf that is too long, in the order of `hashes`."""
    data = BytesWriter()
    ends = BytesWriter()
    others: dict[int, list[object]] = {}
    width: i64 = like._width()
    for i in range(len(hashes) >> 5):
        begin: i64 = len(data)
        for at in range(width * i, width * (i + 1)):
            if not put_plain(data, kids[at]):
                data.truncate(begin)
                others[i] = kids[width * i : width * (i + 1)]
                break
        write_i64_le(ends, len(data))
    entries = Entries(hashes, data.getvalue(), ends.getvalue(), others)
    return _range(like, entries, 0, len(hashes) >> 5, 0)


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


def _packed_node(like: Trie, shift: i64, mask: i64, hashes: bytes, body: bytes) -> Trie:
    """Return the node above embedded leaves of plain entries, whose encodings are `body`."""
    count: i64 = len(hashes) >> 5
    out = BytesWriter()
    out.append(u8(like._tag))
    out.append(u8(count))
    out.append(u8(shift))
    out.append(u8(mask >> 8))
    out.append(u8(mask & 0xFF))
    out.write(body)
    made = like._fresh()
    made._count = count
    made._shift = shift
    made._mask = mask
    made._hashes = hashes
    made._kids = None
    made._encoding = out.getvalue()
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


def put_entry(node: Trie, digest: bytes, key: object, value: object, known: i64) -> Trie:
    """Return `node` with an entry; itself if `unchanged`. Digits before `known` agree."""
    tag: i64 = node._tag
    if node._count <= MAP_LEAF_MAX:
        return _put_leaf(node, digest, key, value)
    shift: i64 = node._shift
    # The digits between were never compared with this key.
    if shift > known:
        fork: i64 = common_digits(digest, node._any(), known)
        # The new key differs before this node's digit: a node of two children goes above it.
        if fork < shift:
            fresh = new_leaf(node, digest, _entry(node, key, value))
            own: i64 = digit_at(node._any(), fork)
            new: i64 = digit_at(digest, fork)
            pair: list[object] = [node, fresh] if own < new else [fresh, node]
            return new_node(node, node._count + 1, fork, (1 << own) | (1 << new), pair, digest)
    digit: i64 = digit_at(digest, shift)
    hashes = node._hashes
    if hashes is not None:
        made = _put_packed(node, hashes, digit, digest, key, value)
        if made is not None:
            return made
    slot: i64 = node._slot(digit)
    kids = node._open()
    if node._mask & (1 << digit):
        kid = kids[slot]
        child = trie_of(kid, tag, node._count, shift)
        grown = put_entry(child, digest, key, value, shift + 1)
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
    at: i64 = position_of(hashes, digest)
    # An element that is there already: a Set has no value to replace.
    if at >= 0 and node._tag == TAG_SET:
        return node
    if at >= 0 or node._count < MAP_LEAF_MAX:
        data = node._encoding
        if node._kids is None and data is not None:
            grown = _spliced(node._tag, data, node._count, at, key, value)
            if grown is data:
                return node
            if grown is not None:
                if at < 0:
                    at = -1 - at
                    hashes = hashes[: 32 * at] + digest + hashes[32 * at :]
                made = _closed_leaf(node, hashes, grown)
                made._loader = node._loader
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
    # A full leaf: with one entry more it becomes a node.
    at = -1 - at
    hashes = hashes[: 32 * at] + digest + hashes[32 * at :]
    kids = node._open()
    first = node._width() * at
    return _split(node, hashes, kids[:first] + _entry(node, key, value) + kids[first:])


def _put_packed(
    node: Trie, hashes: bytes, digit: i64, digest: bytes, key: object, value: object
) -> Trie | None:
    """Return a packed node with an entry put; None if the result would not be packed."""
    data = node._encoding
    assert data is not None
    width: i64 = node._width()
    entry: i64 = 0
    start: i64 = _PACKED_HEAD
    for _ in range(node._slot(digit)):
        entry += data[start + 1]
        start = entry_offset(data, start, data[start + 1], width)
    is_new_leaf = not node._mask & (1 << digit)
    size: i64 = 0 if is_new_leaf else data[start + 1]
    end: i64 = start if is_new_leaf else entry_offset(data, start, size, width)
    at: i64 = position_of(hashes, digest, entry, entry + size)
    leaf = data[start:end]
    # The position in the leaf; -1 - p becomes -1 - (p - entry).
    in_leaf: i64 = at - entry if at >= 0 else at + entry
    grown = _spliced(node._tag, leaf, size, in_leaf, key, value)
    if grown is leaf:
        return node
    if grown is None or len(grown) > EMBEDDED_BYTES_MAX:
        return None
    if at < 0:
        if size == MAP_LEAF_MAX or node._count == PACKED_MAX:
            return None
        at = -1 - at
        hashes = hashes[: 32 * at] + digest + hashes[32 * at :]
    body = data[_PACKED_HEAD:start] + grown + data[end:]
    return _packed_node(node, node._shift, node._mask | (1 << digit), hashes, body)


def _spliced(
    tag: i64, data: bytes, count: i64, at: i64, key: object, value: object
) -> bytes | None:
    """Return the encoding of a leaf with an entry put; None if the entry is not plain.

    data: the encoding of the leaf, of `count` entries, returned itself if nothing changes.
    at: the position in the leaf, as `position_of` returns it.
    """
    width: i64 = 2 if tag == TAG_MAP else 1
    out = BytesWriter()
    if at >= 0:
        # An element that is there already: "a Set has keys and no values".
        if width == 1:
            return data
        start: i64 = skip_kid(data, entry_offset(data, 0, at, width))
        if not put_plain(out, value):
            return None
        fresh = out.getvalue()
        end: i64 = skip_kid(data, start)
        return data if data[start:end] == fresh else data[:start] + fresh + data[end:]
    out.append(u8(tag))
    out.append(u8(count + 1))
    start = entry_offset(data, 0, -1 - at, width) if count else 2
    out.write(data[2:start])
    if not put_plain(out, key) or (width == 2 and not put_plain(out, value)):
        return None
    out.write(data[start:])
    return out.getvalue()


def remove_entry(node: Trie, digest: bytes) -> Trie:
    """Return `node` without the key of this hash; itself if the key is absent."""
    tag: i64 = node._tag
    if node._count <= MAP_LEAF_MAX:
        hashes = node._keys()
        at: i64 = position_of(hashes, digest)
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
    less = remove_entry(child, digest)
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
