"""Vector and list: a 16-way tree, one shape for each length.

A vector of n elements is a leaf (n <= 16), a tail before a prefix whose length is a multiple of 16,
or a tree of full blocks. Appending shares everything but the tail. Vectors made one after another
by appending share even the tail's Python list, of which each uses only its own first part, and that
of the leaves after the last block of 256 elements (`_UnjoinedLeaves`).

Length: one structure with all its operations; they share the tree's private shape.

Source: CAD002 "List", "Vector"; CAD003 "List", "Vector"; docs/cells.md "Vector and List";
    docs/design/decisions.md "D-Q2".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from types import NoneType
from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64, u8

from datalattice.cells.cell import (
    NO_KIDS,
    Cell,
    CellSink,
    Loader,
    Ref,
    Value,
    broken,
    deref,
    deref_many,
    put_kid,
    put_kids,
    put_plain,
    put_vlq,
    same,
    same_kid,
    surely_same,
    to_value,
    to_values,
)
from datalattice.cells.parse import kids_in, wrappers
from datalattice.cells.scalars import require_type
from datalattice.cells.scan import block_size, read_vlq, skip_kid
from datalattice.cells.work import Work
from datalattice.crypto import sha3_256_many
from datalattice.errors import ReadOnly, TypeMismatch
from datalattice.limits import CHUNK_BYTES, EMBEDDED_BYTES_MAX

TAG_VECTOR: Final = 0x80
TAG_LIST: Final = 0x81
_ITEMS: Final = "the elements are an iterable"
_POSITION: Final = "a vector position is an int"
MOVED_ELEMENTS: Final = 4096  # elements in memory at a time while a vector is rebuilt
OVERLAP_ELEMENTS: Final = 4096  # elements in memory at a time while two ranges are compared
PACKED_STRING_MAX: Final = 32  # longer strings are not copied into a closed leaf


class _UnjoinedLeaves:
    """The leaves after the last block of 256 elements, and the blocks before, as a kid.

    The `_prefix` of a vector of 256 * n + 16 * k elements that grew by appending and was not opened
    since. So the path above the leaves is copied once per block, not once per leaf. Later vectors
    share the list of leaves, so it may be longer than the k leaves of this one.
    """

    __slots__ = ("blocks", "leaves")

    def __init__(self, blocks: object, leaves: list[object]) -> None:
        self.blocks: Final = blocks
        self.leaves: Final = leaves


class Vector(Cell):
    """An immutable sequence of up to 2**63 - 1 values.

    Cost:   append, set and get touch one path, O(log16 n); hashing touches only what is new.
    """

    __slots__ = ("_count", "_prefix")

    _count: i64
    _prefix: object

    def __init__(self, items: Iterable[object] | None = None) -> None:
        super().__init__()
        self._count = 0
        self._prefix = None
        self._kids = NO_KIDS
        if items is not None:
            require_type(items, Iterable, _ITEMS)
            built = _bulk(to_values(items))
            self._count = built._count
            self._prefix = built._prefix
            self._kids = built._kids
            self._encoding = built._encoding  # 256 small elements are closed

    @classmethod
    def of(cls, items: Iterable[object]) -> Vector:
        """Return the vector of `items`, built in bulk."""
        if not isinstance(items, (list, tuple)):  # the usual ones, known sooner
            require_type(items, Iterable, _ITEMS)
        return _bulk(to_values(items))

    # --- encoding ---

    def _used(self) -> i64:
        """Return how many kids belong to this vector; a shared list may be longer."""
        count = self._count
        if count <= 16:
            return count
        tail: i64 = count & 15
        # "The last `count mod 16` elements come first, and then the Vector of all elements before
        # them" (docs/cells.md "Vector and List").
        if tail:
            return tail
        # "If it is a multiple, the children are Vectors of B elements each (the last may be
        # shorter), where B is the largest power of 16 below the count" (docs/cells.md "Vector and
        # List").
        block: i64 = block_size(count)
        return (count - 1) // block + 1

    def _build(self, depth: int) -> bytes:
        out = BytesWriter()
        out.append(u8(TAG_VECTOR))
        put_vlq(out, self._count)
        kids = self._open()
        used: i64 = self._used()
        put_kids(out, kids, 0, used, depth)
        if self._prefix is not None:
            prefix: list[object] = [self._prefix]
            put_kid(out, prefix, 0, depth)
        return out.getvalue()

    def _parse(self) -> list[object]:
        prefix = self._prefix
        if isinstance(prefix, _UnjoinedLeaves):
            kids = _joined(prefix, self._count)
            self._kids = kids
            self._prefix = None
            return kids
        data = self._encoding
        if data is None:  # another thread has joined them just now
            return self._open()
        start: i64 = read_vlq(data, 1, len(data))[1]
        kids, at = kids_in(data, start, self._used(), self._loader)
        if at < len(data):
            self._prefix = kids_in(data, at, 1, self._loader)[0][0]
        return kids

    def _children(self) -> list[object]:
        kids = self._open()
        used: i64 = self._used()
        if len(kids) > used:
            kids = kids[:used]
        if self._prefix is not None:
            return [*kids, self._prefix]
        return kids

    def _close(self, loader: Loader) -> None:
        self._loader = loader
        prefix = self._prefix
        if isinstance(prefix, Ref):
            prefix.loader = loader
        elif isinstance(prefix, Cell):
            # A branch is loaded again by its hash; an embedded prefix is a part of this encoding.
            if len(prefix.encoding) > EMBEDDED_BYTES_MAX:
                self._prefix = Ref(prefix.hash, loader)
            else:
                prefix._close(loader)
        self._kids = None

    # --- reading ---

    def __len__(self) -> int:
        return self._count

    def _leaf(self, index: i64) -> tuple[Vector, i64]:
        """Return (the node that holds element `index` as a kid, its position there)."""
        node = self
        while True:
            count = node._count
            if count <= 16:
                return node, index
            tail: i64 = count & 15
            if tail:
                base: i64 = count - tail
                if index >= base:
                    return node, index - base
                node._open()
                node = node_of(node._prefix, base)
            else:
                block: i64 = block_size(count)
                child: i64 = index // block
                start: i64 = child * block
                size: i64 = min(block, count - start)
                node = node_of(node._open()[child], size)
                index -= start

    def _kid(self, index: i64) -> object:
        node, position = self._leaf(index)
        return node._open()[position]

    def __getitem__(self, index: int | slice) -> Value:
        if isinstance(index, slice):
            start, stop, step = index.indices(self._count)
            if step == 1:
                return _bulk(self.to_list(start, stop))
            return _bulk([self[i] for i in range(start, stop, step)])
        if not isinstance(index, int):
            raise TypeMismatch(
                f"a vector position is an int or a slice, got {type(index).__name__}"
            )
        size: int = self._count  # an int, since `index` may exceed an i64
        if not -size <= index < size:
            raise IndexError(f"position {index} of a vector of {size} elements")
        return deref(self._kid(index if index >= 0 else index + self._count))

    def get(self, index: int, default: Value = None) -> Value:
        """Return the element at `index`, or `default` if it is out of range or negative."""
        require_type(index, int, _POSITION)
        size: int = self._count
        if 0 <= index < size:
            return deref(self._kid(index))
        return default

    def to_list(self, start: int = 0, stop: int | None = None) -> list[Value]:
        """Return the elements `start` .. `stop - 1` as a Python list; visits each node once."""
        require_type(start, int, _POSITION)
        require_type(stop, (int, NoneType), "the end of a range is an int or None")
        out: list[Value] = []
        size: int = self._count
        last: i64 = size if stop is None else min(stop, size)
        first: i64 = min(max(start, 0), size)
        if first < last:
            _collect(self, first, last, out)
        return out

    def iter_range(self, start: int, stop: int, work: Work | None = None) -> Iterator[Value]:
        """Yield the elements `start` .. `stop - 1`, loading at most 16 leaves ahead.

        Raises: WorkExceeded: the nodes on the way exceed the budget `work`.
        """
        require_type(start, int, _POSITION)
        require_type(stop, int, _POSITION)
        size: int = self._count
        at: int = max(start, 0)
        last: int = min(stop, size)
        while at < last:
            # Up to the next multiple of 256: 16 leaves, one node above them.
            upto = min((at | 255) + 1, last)
            out: list[Value] = []
            _collect(self, at, upto, out, True, work)
            yield from out
            at = upto

    def __iter__(self) -> Iterator[Value]:
        return self.iter_range(0, self._count)

    def __reversed__(self) -> Iterator[Value]:
        for i in range(self._count - 1, -1, -1):
            yield deref(self._kid(i))

    def __contains__(self, value: object) -> bool:
        wanted = to_value(value)
        return any(same(item, wanted) for item in self)

    def index(self, value: object, start: int = 0, stop: int | None = None) -> int:
        """Return the first position of `value` in `start` .. `stop - 1`.

        Raises: ValueError: it is absent.
        """
        wanted = to_value(value)
        at = max(start, 0)
        for item in self.iter_range(start, self._count if stop is None else stop):
            if same(item, wanted):
                return at
            at += 1
        raise ValueError("the value is not in the vector")

    def count(self, value: object) -> int:
        """Return how often `value` occurs."""
        wanted = to_value(value)
        return sum(1 for item in self if same(item, wanted))

    # --- new vectors ---

    def append(self, value: object) -> Vector:
        """Return this vector with one element added at the end."""
        value = to_value(value)
        count: i64 = self._count
        tail: i64 = count & 15
        # A full vector becomes the prefix; the new element starts a tail.
        if tail == 0:
            return _vector(count + 1, [value], self if count else None)
        kids = self._open()
        # The list ends with this vector's own part, so it may grow; older vectors do not see the
        # new element.
        if len(kids) == tail:
            kids.append(value)
        if kids[tail] is not value:  # another vector grew the shared list first: copy the own part
            kids = kids[:tail]
            kids.append(value)
        # Still a tail, or the first leaf, which needs no tree above it.
        if tail < 15 or count < 16:
            return _vector(count + 1, kids, self._prefix)
        return _with_leaf(self._prefix, count - 15, _full_leaf(kids, 0))

    def extend(self, items: Iterable[object]) -> Vector:
        """Return this vector with `items` added at the end, in bulk."""
        require_type(items, Iterable, _ITEMS)
        return self._extend(to_values(items))

    def _extend(self, fresh: list[object]) -> Vector:
        if self._count == 0:
            return _bulk(fresh)
        total: i64 = len(fresh)
        tail: i64 = self._count & 15
        at: i64 = 0
        whole: Vector = self
        if tail or self._count < 16:
            kids = self._open()[:tail]
            at = min(16 - tail, total)
            kids.extend(fresh[:at])
            if len(kids) < 16:
                return _vector(self._count + at, kids, self._prefix)
            full = _full_leaf(kids, 0)
            if self._prefix is None:
                whole = full
            else:
                whole = _with_leaf(self._prefix, self._count - tail, full)
        while total - at >= 16:
            whole = _with_leaf(whole, whole._count, _full_leaf(fresh, at))
            at += 16
        if at < total:
            return _vector(whole._count + total - at, fresh[at:], whole)
        return whole

    def extend_encoded(self, rows: bytes, ends: list[int]) -> Vector:
        """Return this vector extended by elements given as encodings, in bulk.

        `rows` has the elements end to end, `ends` the end of each. An element is the canonical
        encoding of an embedded value (at most 140 bytes) without references. They are not checked:
        the caller must know the layout.
        Cost: no object per element; full leaves are cut out of `rows`.
        """
        total: i64 = len(ends)
        tail: i64 = self._count & 15
        at: i64 = 0
        begin: i64 = 0
        whole: Vector = self
        if tail and total:
            at = min(16 - tail, total)
            begin = ends[at - 1]
            data = self._encoding
            if self._kids is None and data is not None:
                whole = self._spliced(data, rows[:begin], at)
            else:
                whole = self._extend(kids_in(rows, 0, at, None)[0])
        while total - at >= 16:
            stop: i64 = ends[at + 15]
            # [80][10, the count of 16][the elements]: a full leaf.
            leaf = closed_vector(b"\x80\x10" + rows[begin:stop], None)
            whole = _with_leaf(whole, whole._count, leaf) if whole._count else leaf
            at += 16
            begin = stop
        if at < total:
            whole = whole._extend(kids_in(rows, begin, total - at, None)[0])
        return whole

    def _spliced(self, data: bytes, rows: bytes, number: i64) -> Vector:
        """Return this closed vector, which has a tail, with elements put into it.

        data: its encoding. rows: `number` elements, at most as many as the tail has room for.
        Cost:   the elements of the tail are copied, not parsed.
        """
        count: i64 = self._count
        tail: i64 = count & 15
        start: i64 = read_vlq(data, 1, len(data))[1]
        end: i64 = start
        for _ in range(tail):
            end = skip_kid(data, end)
        if tail + number == 16:
            leaf = closed_vector(b"\x80\x10" + data[start:end] + rows, self._loader)
            if count < 16:
                return leaf
            return _with_leaf(kids_in(data, end, 1, self._loader)[0][0], count - tail, leaf)
        out = BytesWriter()
        out.append(u8(TAG_VECTOR))
        put_vlq(out, count + number)
        out.write(data[start:end])
        out.write(rows)
        out.write(data[end:])  # the elements before the tail
        return closed_vector(out.getvalue(), self._loader)

    def extend_packed(
        self, data: bytes, ends: list[int], loader: Loader
    ) -> tuple[Vector, list[tuple[bytes, bytes]]]:
        """Return (this vector extended, the cells of its new leaves as (hash, encoding)).

        `data` has the elements as a leaf holds them, end to end: the encoding of each, or the
        reference to it; `ends` has the end of each. They are not checked, as in `extend_encoded`.
        New leaves and referenced elements are known by hash and load through `loader`, except
        perhaps the first and the last leaf.
        Cost: no object per element; full leaves are cut out of `data`.
        """
        cells: list[tuple[bytes, bytes]] = []
        total: i64 = len(ends)
        tail: i64 = self._count & 15
        at: i64 = 0
        begin: i64 = 0
        whole: Vector = self
        if tail:
            at = min(16 - tail, total)
            kids, begin = kids_in(data, 0, at, loader)
            whole = self._extend(kids)
        encodings: list[bytes] = []
        while total - at >= 16:
            stop: i64 = ends[at + 15]
            encodings.append(b"\x80\x10" + data[begin:stop])
            at += 16
            begin = stop
        digests = sha3_256_many(encodings)
        for i in range(len(encodings)):
            encoding = encodings[i]
            leaf: object = None
            if len(encoding) > EMBEDDED_BYTES_MAX:
                cells.append((digests[i], encoding))
                leaf = Ref(digests[i], loader)
            if leaf is None or not whole._count:
                leaf = closed_vector(encoding, loader)
            whole = _with_leaf(whole, whole._count, leaf) if whole._count else node_of(leaf, 16)
        if at < total:
            whole = whole._extend(kids_in(data, begin, total - at, loader)[0])
        return whole, cells

    def concat(self, other: Vector) -> Vector:
        """Return the elements of both vectors."""
        require_type(other, Vector, "a vector is joined to a Vector")
        return self._extend(other.to_list())

    def set(self, index: int, value: object) -> Vector:
        """Return this vector with `value` at `index` (0 .. len - 1)."""
        require_type(index, int, _POSITION)
        size: int = self._count
        if not 0 <= index < size:
            raise IndexError(f"position {index} of a vector of {size} elements")
        return _set(self, index, to_value(value))

    def drop(self, number: int, work: Work | None = None) -> Vector:
        """Return this vector without its first `number` elements.

        Cost: a multiple of 16 reuses all leaves without loading them. Any other number moves every
              later element; finished leaves of a stored vector are spilled into its store, which
              bounds the memory. Charged to `work`.
        Raises: WorkExceeded: the budget is spent.
        """
        require_type(number, int, "the number of elements to drop is an int")
        size: int = self._count
        if number <= 0:
            return self
        if number >= size:
            return EMPTY_VECTOR
        # Leaves begin at multiples of 16: any other number shifts every element to another leaf.
        if number & 15:
            return _moved(self, number, work)
        tail: i64 = self._count & 15
        full: i64 = self._count - tail
        kids = self._open()  # also reads the prefix
        body = EMPTY_VECTOR
        if full > number:
            levels: list[list[object]] = []
            _leaves(node_of(self._prefix, full) if tail else self, full, number, levels, work)
            body = _top_of(levels)
        return body._extend(kids[:tail]) if tail else body

    def take(self, number: int) -> Vector:
        """Return the first `number` elements; this vector itself if it has no more.

        Cost: one path; the leaves are shared.
        """
        require_type(number, int, "the number of elements to take is an int")
        size: int = self._count  # an int, since `number` may exceed an i64
        if number >= size:
            return self
        if number <= 0:
            return EMPTY_VECTOR
        wanted: i64 = number
        full: i64 = wanted & ~15
        tail: i64 = wanted & 15
        body = _head(self, full) if full else EMPTY_VECTOR
        return body._extend(self.to_list(full, number)) if tail else body

    def __add__(self, other: Iterable[object]) -> Vector:
        return self.extend(other)

    # --- comparing ---

    def differences(
        self, other: Vector, work: Work | None = None
    ) -> Iterator[tuple[int, bool, Value, bool, Value]]:
        """Yield (position, own present, own value, other present, other value) where two differ.

        Cost: proportional to the differing blocks; equal subtrees are not loaded.
        """
        require_type(other, Vector, "a vector is compared with a Vector")
        shared: int = min(self._count, other._count)
        for i, mine, theirs in _differing(self, other, shared, work):
            yield i, True, deref(mine), True, deref(theirs)
        at = shared
        for item in self.iter_range(shared, self._count, work):
            yield at, True, item, False, None
            at += 1
        for item in other.iter_range(shared, other._count, work):
            yield at, False, None, True, item
            at += 1

    def merge_with(
        self,
        other: Vector,
        join: Callable[[int, Value, Value], Value],
        work: Work | None = None,
    ) -> Vector:
        """Return the merge of two vectors, by `join(position, own, other)` where they differ.

        The result has the greater length; a missing position counts as None. Returns this vector
        itself if nothing changes, and `other` itself if the result equals it.
        Cost:   proportional to the differing blocks, charged to `work`.
        Raises: WorkExceeded: the budget is spent.
        """
        require_type(other, Vector, "a vector is merged with a Vector")
        made: Vector = self
        theirs_too = other._count >= self._count
        for i, _has, mine, had, theirs in self.differences(other, work):
            # Positions come in order, so from here on only this vector has elements.
            if not had:
                break
            if work is not None:
                work.spend(work.limits.joined)
            # `join` is a lattice: what it returns is checked like any value.
            result = to_value(join(i, mine, theirs))
            made = made.set(i, result) if i < made._count else made.append(result)
            theirs_too = theirs_too and same(result, theirs)
        return other if theirs_too and made is not self else made


def _vector(count: i64, kids: list[object] | None, prefix: object) -> Vector:
    made = Vector()
    made._count = count
    made._kids = kids
    made._prefix = prefix
    return made


def _full_leaf(items: list[object], start: i64) -> Vector:
    """Return the leaf of 16 `items` from `start` on, closed if all are small and without kids.

    A closed leaf takes a third of the memory, and is one object to the cycle collector, not two.
    """
    first = items[start]
    # A closed leaf copies its strings; long ones would be in memory twice. Only the first element
    # is looked at: the records of a log are of one kind.
    if isinstance(first, (bytes, str)) and len(first) > PACKED_STRING_MAX:
        return _vector(16, items[start : start + 16], None)
    out = BytesWriter()
    out.append(u8(TAG_VECTOR))
    out.append(u8(16))
    for i in range(start, start + 16):
        if not put_plain(out, items[i]):
            return _vector(16, items[start : start + 16], None)
    return closed_vector(out.getvalue(), None)


def closed_vector(data: bytes, loader: Loader | None) -> Vector:
    """Return the closed vector with this encoding (tag 80)."""
    made = Vector()
    made._count = read_vlq(data, 1, len(data))[0]
    made._kids = None
    made._encoding = data
    made._loader = loader
    return made


def packed_vector(parts: tuple[object, ...]) -> Vector | None:
    """Return the vector of up to 16 small scalars, made from its encoding.

    None if an element has another type, or the vector is too long to be embedded.
    """
    count = len(parts)
    if count > 16:
        return None
    out = BytesWriter()
    out.append(u8(TAG_VECTOR))
    out.append(u8(count))
    for part in parts:
        if not put_plain(out, part):
            return None
    if len(out) > EMBEDDED_BYTES_MAX:
        return None
    return closed_vector(out.getvalue(), None)


def node_of(kid: object, count: i64) -> Vector:
    """Return a tree node, checked to be a vector of `count` elements.

    Raises: BadFormat: the tree is not canonical. MissingData: the node is missing.
    """
    node = kid.resolve() if isinstance(kid, Ref) else kid
    # "The shape depends on the count only", so a node with another count is not canonical.
    if not isinstance(node, Vector) or node._count != count:
        raise broken(f"a vector node is not a vector of {count} elements")
    return node


def _with_leaf(kid: object, count: i64, leaf: object) -> Vector:
    """Return the vector `kid`, of `count` elements, with a full leaf, as a kid.

    `count` is a positive multiple of 16.
    """
    body = node_of(kid, count)
    unjoined = body._prefix
    number: i64 = (count & 255) >> 4
    if isinstance(unjoined, _UnjoinedLeaves):
        leaves = unjoined.leaves
        # As with the list of a tail: the list ends with this vector's own part, or is copied.
        if len(leaves) == number:
            leaves.append(leaf)
        if leaves[number] is not leaf:
            unjoined = _UnjoinedLeaves(unjoined.blocks, [*leaves[:number], leaf])
    elif number:
        return _push(body, kid, leaf, 16, 16)
    else:
        _push(body, kid, leaf, 16, 256)  # raises MissingData now, not when the vector is opened
        unjoined = _UnjoinedLeaves(kid, [leaf])
    if number < 15:
        return _vector(count + 16, None, unjoined)
    blocks: i64 = count & ~255
    # A part of the list: another thread may be about to add to it.
    block = _block(256, unjoined.leaves[:16])
    return _push(node_of(unjoined.blocks, blocks), unjoined.blocks, block, 256, 256)


def _joined(unjoined: _UnjoinedLeaves, count: i64) -> list[object]:
    """Return the kids of the vector of `count` elements."""
    last: i64 = count & 255
    leaves = unjoined.leaves[: last >> 4]
    block = leaves[0] if last == 16 else _vector(last, leaves, None)
    return _push(node_of(unjoined.blocks, count - last), unjoined.blocks, block, last, 256)._open()


def _push(body: Vector, kid: object, part: object, size: i64, unit: i64) -> Vector:
    """Return `body` with one more block, a kid of `size` elements, at most `unit`, a power of 16.

    `body` has a positive multiple of `unit` elements; `kid` is `body` as a kid.
    """
    count: i64 = body._count
    # Two blocks are the smallest tree: B is `unit` for up to 16 of them.
    if count == unit:
        return _vector(unit + size, [kid, part], None)
    block: i64 = block_size(count)
    # The tree is full: one level more, with the old tree as its first child.
    if count == block * 16:
        return _vector(count + size, [kid, part], None)
    kids = body._open()[:]
    last: i64 = len(kids) - 1
    rest: i64 = count - last * block
    child = kids[last]
    # The last child is full, so the new block begins another one.
    if rest == block:
        kids.append(part)
    elif rest == unit:  # a block is not opened: it may be known by hash only
        kids[last] = _vector(unit + size, [child, part], None)
    else:
        kids[last] = _push(node_of(child, rest), child, part, size, unit)
    return _block(count + size, kids)


def _block(count: i64, kids: list[object]) -> Vector:
    """Return the tree node of `kids`; closed if they are 16 embedded leaves without kids.

    A closed node takes a third of the memory, and is one object to the cycle collector, not 18.
    """
    if count != 256:
        return _vector(count, kids, None)
    parts = [b"\x80\x82\x00"]  # the tag and the count
    for kid in kids:
        if not isinstance(kid, Vector) or kid._kids is not None or kid._loader is not None:
            return _vector(count, kids, None)
        data = kid._encoding
        if data is None or len(data) > EMBEDDED_BYTES_MAX:
            return _vector(count, kids, None)
        parts.append(data)
    return closed_vector(b"".join(parts), None)


def _bulk(items: list[object]) -> Vector:
    total: i64 = len(items)
    if total <= 16:
        return _vector(total, items, None)
    tail: i64 = total & 15
    levels: list[list[object]] = []
    at: i64 = 0
    while at < total - tail:
        _add_leaf(levels, _full_leaf(items, at), None)
        at += 16
    body = _top_of(levels)
    return _vector(total, items[at:], body) if tail else body


def _leaves(
    node: Vector, count: i64, start: i64, levels: list[list[object]], work: Work | None
) -> None:
    """Add the leaves of `node` from element `start` on, as kids, to a tree under construction."""
    if work is not None:
        work.enter(node)
    if count == 16:
        _add_leaf(levels, node, None)
        return
    block: i64 = block_size(count)
    at: i64 = 0
    for kid in node._open():
        size: i64 = min(block, count - at)
        if at + size > start:
            # A leaf is shared by its reference, without loading it.
            if size == 16:
                if work is not None:
                    work.spend(work.limits.compared)
                _add_leaf(levels, kid, None)
            else:
                _leaves(node_of(kid, size), size, max(start - at, 0), levels, work)
        at += size


def _head(node: Vector, wanted: i64) -> Vector:
    """Return the tree of the first `wanted` elements of `node`, a positive multiple of 16."""
    while True:
        count: i64 = node._count
        if count == wanted:
            return node
        tail: i64 = count & 15
        if tail:
            node._open()  # also reads the prefix
            node = node_of(node._prefix, count - tail)
            continue
        block: i64 = block_size(count)
        whole: i64 = wanted // block
        rest: i64 = wanted - whole * block
        kids = node._open()[: whole + 1]
        if not whole:
            node = node_of(kids[0], block)
            continue
        if rest:
            below = node_of(kids[whole], min(block, count - whole * block))
            kids[whole] = _head(below, rest)
        else:
            kids.pop()
        return _vector(wanted, kids, None) if len(kids) > 1 else node_of(kids[0], wanted)


def _moved(whole: Vector, number: i64, work: Work | None) -> Vector:
    """Return `whole` without its first `number` elements; all others move to other leaves."""
    home = _home_of(whole)
    full: i64 = (whole._count - number) & ~15
    levels: list[list[object]] = []
    done: i64 = 0
    while done < full:
        kids: list[object] = []
        step: i64 = min(full - done, MOVED_ELEMENTS)
        _collect(whole, number + done, number + done + step, kids, False, work)
        if work is not None:
            work.spend(work.limits.moved * (step >> 4))
        leaves: list[object] = []
        for at in range(0, step, 16):
            leaves.append(_full_leaf(kids, at))
        # Spilled into the store of the vector, which bounds the memory.
        for leaf in _spilled(leaves, home):
            _add_leaf(levels, leaf, home)
        done += step
    rest: list[object] = []
    if number + full < whole._count:
        _collect(whole, number + full, whole._count, rest, False, work)
    if not full:
        return _vector(len(rest), rest, None)
    body = _top_of(levels)
    return _vector(full + len(rest), rest, body) if rest else body


def _add_leaf(levels: list[list[object]], leaf: object, home: CellSink | None) -> None:
    """Add a leaf at the end; 16 blocks of a level become one of the next."""
    kid = leaf
    level: i64 = 0
    span: i64 = 16
    while True:
        if level == len(levels):
            levels.append([])
        row = levels[level]
        row.append(kid)
        # Sixteen of one level are one of the next: B is a power of 16.
        if len(row) < 16:
            return
        span *= 16
        levels[level] = []
        kid = _spilled([_block(span, row)], home)[0]
        level += 1


def _top_of(levels: list[list[object]]) -> Vector:
    """Return the vector of the blocks on all levels; lower levels hold later elements."""
    top: object = None
    count: i64 = 0
    span: i64 = 16
    # From the leaves up: the blocks left on a level come after those of the levels above.
    for row in levels:
        count += span * len(row)
        group = row if top is None else [*row, top]
        if len(group) > 1:
            top = _vector(count, group, None)
        elif group:
            top = group[0]
        span *= 16
    return node_of(top, count)


def _home_of(vector: Vector) -> CellSink | None:
    """Return the loader of a vector if it can store cells."""
    prefix = vector._prefix
    loader = vector._loader
    if loader is None and isinstance(prefix, (Ref, Vector)):
        loader = prefix.loader if isinstance(prefix, Ref) else prefix._loader
    return loader if isinstance(loader, CellSink) else None


def _spilled(made: list[object], home: CellSink | None) -> list[object]:
    """Return nodes as kids, after storing in `home` those that fit there, then known by hash."""
    if home is None:
        return made
    taken: dict[bytes, bytes] = {}
    for node in made:
        if (
            isinstance(node, Vector)
            and len(node.encoding) > EMBEDDED_BYTES_MAX
            and _is_complete_in(node, home)
        ):
            taken[node.hash] = node.encoding
    try:
        home.put_encodings(list(taken.items()))
    except ReadOnly:  # a read-only store: keep everything in memory
        return made
    return [
        Ref(node.hash, home) if isinstance(node, Vector) and node.hash in taken else node
        for node in made
    ]


def _is_complete_in(node: Vector, home: CellSink) -> bool:
    """Return whether `home` surely has every branch below a node just encoded."""
    if node._kids is None:
        return True  # a leaf of plain elements
    for kid in node._kids:
        if isinstance(kid, Ref):  # encoded long strings and integers are Refs, too
            if kid.loader is not home:
                return False
        elif isinstance(kid, Cell):
            if (
                kid._kids is not None
                or kid._loader is not home
                or len(kid.encoding) > EMBEDDED_BYTES_MAX
            ):
                return False
        elif isinstance(kid, (str, bytes)) and len(kid) > CHUNK_BYTES // 4:
            return False  # perhaps an embedded tree of few chunks, whose chunks are not stored
    return True


def _collect(
    node: Vector,
    start: i64,
    stop: i64,
    out: list[object],
    resolve: bool = True,
    work: Work | None = None,
) -> None:
    """Append the elements `start` .. `stop - 1` of `node`, at least one, to `out`.

    resolve: load elements known by hash; otherwise they are returned as Refs.
    """
    if work is not None:
        work.enter(node)
    count: i64 = node._count
    kids = node._open()
    tail: i64 = count if count <= 16 else count & 15
    base: i64 = count - tail
    if tail:
        if start < base:
            _collect(node_of(node._prefix, base), start, min(stop, base), out, resolve, work)
        for i in range(max(start - base, 0), stop - base):
            kid = kids[i]
            out.append(kid.resolve() if resolve and isinstance(kid, Ref) else kid)
        return
    block: i64 = block_size(count)
    child: i64 = start // block
    begin: i64 = child * block
    # Up to 16 siblings, which lie together in a store.
    for kid in deref_many(kids[child : (stop - 1) // block + 1], cached=True):
        size: i64 = min(block, count - begin)
        below = node_of(kid, size)
        _collect(below, max(start - begin, 0), min(stop - begin, size), out, resolve, work)
        begin += block


def _set(node: Vector, index: i64, value: Value) -> Vector:
    count: i64 = node._count
    kids = node._open()
    used: i64 = node._used()
    tail: i64 = count & 15
    if count <= 16 or (tail and index >= count - tail):
        position: i64 = index if count <= 16 else index - (count - tail)
        # Unchanged: the very vector, by which callers see that nothing was written.
        if same_kid(kids[position], value):
            return node
        fresh = kids[:used]
        fresh[position] = value
        return _vector(count, fresh, node._prefix)
    if tail:
        old = node_of(node._prefix, count - tail)
        new = _set(old, index, value)
        return node if new is old else _vector(count, kids[:used], new)
    block: i64 = block_size(count)
    child: i64 = index // block
    size: i64 = min(block, count - child * block)
    old = node_of(kids[child], size)
    new = _set(old, index - child * block, value)
    if new is old:
        return node
    fresh = kids[:used]
    fresh[child] = new
    return _vector(count, fresh, None)


ElementDifference = tuple[int, object, object]
"""(position, own kid, other kid)."""


class _Block:
    """The kids of two vectors at `start`, with their counts: at most 16 parts of size `part`."""

    __slots__ = ("other", "other_count", "own", "own_count", "part", "start")

    def __init__(
        self, own: object, own_count: i64, other: object, other_count: i64, start: i64, part: i64
    ) -> None:
        self.own: Final = own
        self.own_count: Final[i64] = own_count
        self.other: Final = other
        self.other_count: Final[i64] = other_count
        self.start: Final[i64] = start
        self.part: Final[i64] = part


def _full(vector: Vector) -> object:
    """Return the tree of a vector's full leaves as a kid."""
    if vector._count <= 16 or not vector._count & 15:
        return vector
    vector._open()  # also reads the prefix
    return vector._prefix


def _part_of(node: Vector, part: i64, number: i64) -> tuple[object, i64]:
    """Return the kid with part `number` of a node, and its count; a small node is part 0."""
    count: i64 = node._count
    if count <= part:
        return node, count
    return node._open()[number], min(part, count - number * part)


def _differing(
    a: Vector, b: Vector, shared: i64, work: Work | None, *, backwards: bool = False
) -> Iterator[ElementDifference]:
    """Yield where two vectors differ before position `shared`, in order."""
    # Full leaves in common are compared as trees, the rest element by element.
    limit: i64 = shared & ~15
    stack: list[_Block] = []
    if limit:
        own_count: i64 = a._count & ~15
        other_count: i64 = b._count & ~15
        top = max(own_count, other_count)
        part: i64 = block_size(top) if top > 16 else 1
        stack.append(_Block(_full(a), own_count, _full(b), other_count, 0, part))
    if backwards:
        yield from _differing_tail(a, b, limit, shared, backwards)
    while stack:
        block = stack.pop()
        # Equal hashes prove equal elements, so neither side is loaded.
        if block.own_count == block.other_count and surely_same(block.own, block.other):
            continue
        own, other = node_of(block.own, block.own_count), node_of(block.other, block.other_count)
        if work is not None:
            work.enter(own)
            work.enter(other)
        part = block.part
        if part == 1:
            if work is not None:
                work.spend(work.limits.leaf)
            mine, theirs = own._open(), other._open()
            for i in range(15, -1, -1) if backwards else range(16):
                if not same_kid(mine[i], theirs[i]):
                    yield block.start + i, mine[i], theirs[i]
            continue
        last: i64 = min(15, (limit - 1 - block.start) // part)
        for number in range(last + 1) if backwards else range(last, -1, -1):
            left, left_count = _part_of(own, part, number)
            right, right_count = _part_of(other, part, number)
            start: i64 = block.start + number * part
            stack.append(_Block(left, left_count, right, right_count, start, part >> 4))
    if not backwards:
        yield from _differing_tail(a, b, limit, shared, backwards)


def _differing_tail(
    a: Vector, b: Vector, limit: i64, shared: i64, backwards: bool
) -> Iterator[ElementDifference]:
    """Yield where two vectors differ after their last full leaf in common."""
    for i in range(shared - 1, limit - 1, -1) if backwards else range(limit, shared):
        left, right = a._kid(i), b._kid(i)
        if not same_kid(left, right):
            yield i, left, right


def vector_fork_offset(a: Vector, b: Vector, work: Work | None = None) -> int | None:
    """Return the first common position at which two vectors differ, None if one extends the other.

    Cost:   equal blocks are not loaded; charged to `work`.
    Raises: WorkExceeded: the budget is spent.
    """
    return _first_of(a, b, work, backwards=False)


def vector_last_difference(a: Vector, b: Vector, work: Work | None = None) -> int | None:
    """Return the last common position at which two vectors differ, or None.

    Cost:   equal blocks are not loaded; charged to `work`.
    Raises: WorkExceeded: the budget is spent.
    """
    return _first_of(a, b, work, backwards=True)


def _first_of(a: Vector, b: Vector, work: Work | None, *, backwards: bool) -> int | None:
    require_type(a, Vector, "a log is a Vector")
    require_type(b, Vector, "a log is a Vector")
    if a is b:
        return None
    for position, _mine, _theirs in _differing(
        a, b, min(len(a), len(b)), work, backwards=backwards
    ):
        return position
    return None


def vector_overlap_differences(
    a: Vector, skip_a: int, b: Vector, skip_b: int, count: int, work: Work | None = None
) -> Iterator[int]:
    """Yield where `count` elements of two vectors differ, after skipping the first ones of each.

    Positions count from the first compared element. Both vectors must have all of them.
    Cost:   if the skips differ by a multiple of 16, equal leaves are not loaded; otherwise every
            leaf is. Charged to `work`.
    Raises: WorkExceeded: the budget is spent.
    """
    at: i64 = 0
    last: i64 = count
    first_a: i64 = skip_a
    first_b: i64 = skip_b
    # Only if both ranges start at the same position in a leaf can leaves be compared by hash.
    lines_up = not (first_a - first_b) & 15
    while at < last:
        step: i64 = min(last - at, OVERLAP_ELEMENTS)
        if lines_up and (first_a + at) & 15:
            step = min(step, 16 - ((first_a + at) & 15))
        elif lines_up and step >= 16:
            step &= ~15
            leaves: list[object] = []
            others: list[object] = []
            _leaves_between(a, first_a + at, first_a + at + step, leaves, work)
            _leaves_between(b, first_b + at, first_b + at + step, others, work)
            for number in range(step >> 4):
                if not surely_same(leaves[number], others[number]):
                    own, other = node_of(leaves[number], 16), node_of(others[number], 16)
                    if work is not None:
                        work.enter(own)
                        work.enter(other)
                    mine, theirs = own._open(), other._open()
                    for i in range(16):
                        if not same_kid(mine[i], theirs[i]):
                            yield at + 16 * number + i
            at += step
            continue
        ours: list[object] = []
        more: list[object] = []
        _collect(a, first_a + at, first_a + at + step, ours, False, work)
        _collect(b, first_b + at, first_b + at + step, more, False, work)
        for i in range(step):
            if not same_kid(ours[i], more[i]):
                yield at + i
        at += step


def _leaves_between(
    node: Vector, start: i64, stop: i64, out: list[object], work: Work | None
) -> None:
    """Append the full leaves of elements `start` .. `stop - 1`, multiples of 16, as kids."""
    if work is not None:
        work.enter(node)
    count: i64 = node._count
    if count == 16:
        out.append(node)
        return
    if count & 15:
        node._open()  # also reads the prefix
        _leaves_between(node_of(node._prefix, count & ~15), start, stop, out, work)
        return
    block: i64 = block_size(count)
    kids = node._open()
    child: i64 = start // block
    begin: i64 = child * block
    while begin < stop:
        if block == 16:
            if work is not None:
                work.spend(work.limits.leaf)
            out.append(kids[child])
        else:
            size: i64 = min(block, count - begin)
            below = node_of(kids[child], size)
            _leaves_between(below, max(start - begin, 0), min(stop - begin, size), out, work)
        child += 1
        begin += block


class List(Cell):
    """An immutable sequence that grows at its front: a vector in reverse."""

    __slots__ = ("_body",)

    _body: Vector

    def __init__(self, items: Iterable[object] | None = None) -> None:
        super().__init__()
        require_type(items, (Iterable, NoneType), _ITEMS)
        self._body = EMPTY_VECTOR if items is None else _bulk(to_values(items)[::-1])
        self._kids = NO_KIDS

    @classmethod
    def of(cls, items: Iterable[object]) -> List:
        """Return the list of `items`, first element first."""
        return List(items)

    def _build(self, depth: int) -> bytes:
        # "A List is written as the Vector of its elements in reverse, with its own tag at the top"
        # (docs/cells.md "Vector and List").
        return b"\x81" + self._body._encode(depth)[1:]

    def _parse(self) -> list[object]:
        return []

    def _children(self) -> list[object]:
        return self._body._children()

    def _close(self, loader: Loader) -> None:
        self._loader = loader
        self._body._encode(0)
        self._body._close(loader)

    def __len__(self) -> int:
        return self._body._count

    def __getitem__(self, index: int | slice) -> Value:
        if isinstance(index, slice):
            return List(list(self)[index])
        require_type(index, int, "a list position is an int or a slice")
        # The first element of a List is the last one of its Vector.
        return self._body[-1 - index]

    def get(self, index: int, default: Value = None) -> Value:
        """Return the element at `index`, or `default` if it is out of range."""
        require_type(index, int, "a list position is an int")
        size: int = len(self)
        return self._body.get(size - 1 - index, default) if index >= 0 else default

    def __iter__(self) -> Iterator[Value]:
        return reversed(self._body)

    def __reversed__(self) -> Iterator[Value]:
        return iter(self._body)

    def __contains__(self, value: object) -> bool:
        return value in self._body

    def prepend(self, value: object) -> List:
        """Return this list with one element added in front."""
        made = List()
        made._body = self._body.append(value)
        return made


def closed_list(data: bytes, loader: Loader | None) -> List:
    """Return the list with this encoding (tag 81)."""
    made = List()
    made._body = closed_vector(b"\x80" + data[1:], loader)
    made._encoding = data
    made._loader = loader
    return made


wrappers[TAG_VECTOR] = closed_vector
wrappers[TAG_LIST] = closed_list
EMPTY_VECTOR: Final = Vector()
EMPTY_LIST: Final = List()
Sequence.register(Vector)
Sequence.register(List)
