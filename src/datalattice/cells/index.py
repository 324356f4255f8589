"""Index: an ordered map, a radix tree over the bytes of its keys.

Keys are byte-like values, of which only the first 32 bytes count; keys with equal bytes are the
same key, whatever their types. A node has the position where its keys first differ (`depth`, in hex
digits), the entry whose key ends there, if any, and one child for each digit.

Length: one structure with all its operations; they share the tree's private shape.

Source: CAD002 "Index"; CAD003 "Index"; docs/cells.md "Index".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from librt.strings import BytesWriter
from mypy_extensions import i64, u8

from datalattice.cells.blobs import TAG_BLOB, Chunked
from datalattice.cells.cell import (
    NO_KIDS,
    TAG_REF,
    Cell,
    CellSink,
    Loader,
    Ref,
    UncachedLoader,
    Value,
    broken,
    deref,
    hash_kids,
    kid_hash,
    put_kid,
    put_kids,
    put_plain,
    put_vlq,
    same,
    same_kid,
    surely_same,
    text_bytes,
    to_value,
    unchanged,
    value_hash,
)
from datalattice.cells.parse import kids_in, wrappers
from datalattice.cells.scalars import Scalar, require_type
from datalattice.cells.scan import bit_count, read_vlq, skip_kid
from datalattice.cells.trie import agree, digit_at, pair_of, pairs_of
from datalattice.cells.triejoin import ABSENT, JoinEntries
from datalattice.cells.vectors import Vector
from datalattice.cells.work import Work
from datalattice.crypto import sha3_256
from datalattice.errors import TypeMismatch
from datalattice.limits import EMBEDDED_BYTES_MAX, HASH_BYTES, INDEX_KEY_BYTES

TAG_INDEX: Final = 0x84

_LOW_MAX: Final = 32
"""A node of at most so many entries is low in its tree: it opens without a look at its child."""

ADDRESSED_TOGETHER: Final = 64
"""Most nodes that a merge reads together while it compares keys with the hashes of values."""

Rival = Callable[[Value, Value, Value, Value], tuple[Value, object]]
"""(own key, own value, other key, other value) -> the key and value (or ABSENT) to keep, of two
keys with the same first 32 bytes."""


def key_bytes(key: Value) -> bytes:
    """Return the bytes of `key` that an index compares: at most the first 32.

    Raises: TypeMismatch: the key is not byte-like.
    """
    # "Keys with equal bytes share one entry, even if their kinds differ" (docs/cells.md "Index").
    if isinstance(key, bytes):
        return key[:INDEX_KEY_BYTES]
    if isinstance(key, str):
        return text_bytes(key[:INDEX_KEY_BYTES])[:INDEX_KEY_BYTES]
    if isinstance(key, Scalar):
        raw = key.key_bytes()
        if raw is not None:
            return raw[:INDEX_KEY_BYTES]
    # A longer blob or string, of which the first chunk is loaded.
    elif isinstance(key, Chunked):
        return key.read(0, INDEX_KEY_BYTES)
    raise TypeMismatch(
        "an index key is bytes, str, Keyword, Symbol, Address or Extension, got "
        + type(key).__name__
    )


def common_key_digits(a: bytes, b: bytes, start: i64) -> i64:
    """Return the first digit position from `start` on where two keys differ or one ends."""
    limit: i64 = 2 * min(len(a), len(b))
    position: i64 = start
    # A key that is a prefix of the other ends first, so its end is the fork.
    while position < limit and digit_at(a, position) == digit_at(b, position):
        position += 1
    return min(position, limit)


class Edit:
    """The children of an index node that differ from those of a stored node with the same digits.

    A write to a stored node parses, encodes and compares only the children on its way; the bytes of
    all others are copied from the stored encoding.

    Shapes: base: encoding of the stored node, whose references `loader` loads. digits: the mask of
            `kids`, the children that replace those in `base` or are added to them.
    """

    __slots__ = ("base", "digits", "kids", "loader")

    def __init__(self, base: bytes, loader: Loader, digits: i64, kids: list[object]) -> None:
        self.base: Final = base
        self.loader: Final = loader
        self.digits: Final[i64] = digits
        self.kids: Final = kids


class Index(Cell):
    """An immutable mapping ordered by the bytes of its keys.

    Keys are bytes, str, Keyword, Symbol, Address or Extension. Get, put and remove touch one path.
    """

    __slots__ = ("_count", "_depth", "_edit", "_has_entry", "_mask", "_passed", "_sample")

    _count: i64
    _depth: i64
    _edit: Edit | None
    """With `_kids` None: how the children differ from stored ones. None: the node is closed."""
    _mask: i64
    _has_entry: bool
    _passed: i64
    """A bit for each digit that a look-up followed while the node was closed, as in `_mask`."""
    _sample: bytes | None

    def __init__(
        self, entries: Mapping[Any, object] | Iterable[tuple[object, object]] | None = None
    ) -> None:
        super().__init__()
        self._count = 0
        self._depth = 0
        self._edit = None
        self._mask = 0
        self._has_entry = False
        self._passed = 0
        self._sample = None
        self._kids = NO_KIDS
        if entries is not None:
            built = _index_of(entries)
            self._count, self._depth, self._mask = built._count, built._depth, built._mask
            self._has_entry, self._sample, self._kids = built._has_entry, built._sample, built._kids
            self._encoding = built._encoding  # of one entry that was made from its encoding

    @classmethod
    def of(cls, entries: Mapping[Any, object] | Iterable[tuple[object, object]]) -> Index:
        """Return the index of `entries`, built in bulk; the last of equal keys wins."""
        return _index_of(entries)

    def _build(self, depth: int) -> bytes:
        out = BytesWriter()
        out.append(u8(TAG_INDEX))
        put_vlq(out, self._count)
        edit = self._edit
        if edit is not None:
            self._build_edited(out, edit, depth)
            return out.getvalue()
        kids = self._open()
        start: i64 = 0
        # [84][n][00, or 80 and the entry whose key ends here][depth][mask 2 bytes][refs]; one entry
        # is [84][1][key][value].
        if self._count > 1:
            out.append(u8(0x80 if self._has_entry else 0))
            # "Or `80` and the entry whose key ends here" (docs/cells.md "Index").
            if self._has_entry:
                put_kids(out, kids, 0, 2, depth)
                start = 2
            out.append(u8(self._depth))
            out.append(u8(self._mask >> 8))
            out.append(u8(self._mask & 0xFF))
        put_kids(out, kids, start, len(kids), depth)
        return out.getvalue()

    def _build_edited(self, out: BytesWriter, edit: Edit, depth: int) -> None:
        """Append all after the count; the bytes of children that did not change are copied."""
        base, kids = edit.base, edit.kids
        hash_kids(kids, 0, len(kids), depth)
        at: i64 = read_vlq(base, 1, len(base))[1]
        fork: i64 = _fork_at(base, self._has_entry)
        out.write(base[at : fork + 1])
        out.append(u8(self._mask >> 8))
        out.append(u8(self._mask & 0xFF))
        known: i64 = (base[fork + 1] << 8) | base[fork + 2]
        at = fork + 3
        copied: i64 = at
        fresh: i64 = 0
        rest: i64 = edit.digits
        # Digit by digit of the edit: the bytes of the base up to there, then the new child.
        while rest:
            bit: i64 = rest & -rest
            rest &= rest - 1
            while known and (known & -known) < bit:
                known &= known - 1
                at = skip_kid(base, at)
            if at > copied:
                out.write(base[copied:at])
            if known & bit:
                known &= known - 1
                at = skip_kid(base, at)
            copied = at
            put_kid(out, kids, fresh, depth)
            fresh += 1
        out.write(base[copied:])

    def _parse(self) -> list[object]:
        edit = self._edit
        data, loader = self._encoding, self._loader
        if edit is not None:
            data, loader = edit.base, edit.loader
        assert data is not None
        at: i64 = read_vlq(data, 1, len(data))[1]
        if self._count == 0:
            return []
        if self._count == 1:
            return kids_in(data, at, 2, loader)[0]
        start: i64 = 2 if self._has_entry else 0
        kids = kids_in(data, at + 1, start, loader)[0]
        at = _fork_at(data, self._has_entry)
        mask: i64 = (data[at + 1] << 8) | data[at + 2]
        kids.extend(kids_in(data, at + 3, bit_count(mask), loader)[0])
        return kids if edit is None else _overlaid(kids, mask, start, edit.digits, edit.kids)

    def _close(self, loader: Loader) -> None:
        # In this order: another thread that finds no kids finds the edit, or else the loader.
        self._loader = loader
        self._kids = None
        self._edit = None

    def _is_closed(self) -> bool:
        return self._kids is None and self._edit is None

    def _is_stored(self) -> bool:
        """Return whether the cells that the encoding refers to come from a loader with a cache."""
        loader = self._loader
        return loader is not None and not isinstance(loader, UncachedLoader)

    def _edited_child(self, edit: Edit, digit: i64) -> object:
        """Return the child under a digit of the mask of an edited node."""
        bit: i64 = 1 << digit
        if edit.digits & bit:
            return edit.kids[bit_count(edit.digits & (bit - 1))]
        return _child_in(edit.base, self._has_entry, digit, edit.loader)

    def _peek_child(self, digit: i64) -> object:
        """Return the child under a digit of the mask, and leave a closed node closed."""
        kids = self._kids
        if kids is not None:
            return kids[self._slot(digit)]
        edit = self._edit
        if edit is not None:
            return self._edited_child(edit, digit)
        data = self._encoding
        assert data is not None
        return _child_in(data, self._has_entry, digit, self._loader)

    def _child(self, digit: i64) -> object:
        """Return the child under a digit of the mask.

        Of a stored node only this child is made, without its siblings: so a look-up leaves one
        object for each node on its path, where Python's cycle collector would visit all children of
        all of them. The second look-up of a key opens its entry and the lowest node above it, and
        each later one the next node above. A node of few entries is opened by the second look-up
        below the same child.
        """
        if self._kids is None and (self._edit is not None or self._is_stored()):
            bit: i64 = 1 << digit
            if self._count > _LOW_MAX or not self._passed & bit:
                child = self._peek_child(digit)
                if type(child) is Ref:
                    child = child.resolve()
                if not self._passed & bit:
                    self._passed |= bit
                    return child
                # Still closed: perhaps each look-up was for another key below it.
                if isinstance(child, Index) and child._count > 1 and child._kids is None:
                    return child
            self._open_passed()
        return self._open()[self._slot(digit)]

    def _open_passed(self) -> None:
        """Open the node, and let the next look-up of an entry that was looked up open the entry."""
        kids = self._open()
        rest: i64 = self._passed
        while rest:
            bit: i64 = rest & -rest
            rest &= rest - 1
            kid = kids[(2 if self._has_entry else 0) + bit_count(self._mask & (bit - 1))]
            # The entries read before were other objects, which are gone.
            if isinstance(kid, Index) and kid._count == 1:
                kid._passed = 1

    def _held(self) -> Value:
        """Return the value of the node's own entry; the second call opens a stored node."""
        data = self._encoding
        if self._count > 1 or self._passed or self._kids is not None or data is None:
            return deref(self._open()[1])
        if not self._is_stored():
            return deref(self._open()[1])
        self._passed = 1
        return deref(kids_in(data, skip_kid(data, 2), 1, self._loader)[0][0])

    def _peek(self) -> list[object]:
        """Return the kids without opening a closed node: a write needs them once, for a new one."""
        kids = self._kids
        return self._parse() if kids is None else kids

    def _key(self) -> bytes:
        """Return the key bytes of this node's own entry."""
        if self._count == 1 and self._sample is not None:
            return self._sample
        kids, edit = self._kids, self._edit
        data = self._encoding if edit is None else edit.base
        if data is not None:
            at: i64 = read_vlq(data, 1, len(data))[1]
            if self._count > 1:
                at += 1
            size: i64 = data[at + 1]
            # Nearly all keys are short strings or blobs, whose bytes are those of the key.
            if (data[at] == 0x30 or data[at] == 0x31) and size < 0x80:
                return data[at + 2 : at + 2 + min(size, INDEX_KEY_BYTES)]
            if kids is None:
                loader = self._loader if edit is None else edit.loader
                kids = kids_in(data, at, 1, loader)[0]
        return key_bytes(deref(self._open()[0] if kids is None else kids[0]))

    def _any(self) -> bytes:
        """Return the key bytes of some entry below this node."""
        sample = self._sample
        if sample is None:
            if self._has_entry:
                sample = self._key()
                fits = self._count == 1 or 2 * len(sample) == self._depth
            else:
                first: i64 = bit_count((self._mask & -self._mask) - 1)
                sample = index_node(self._peek_child(first), self._count, self._depth)._any()
                fits = 2 * len(sample) > self._depth
            # Checked where it is read first: a foreign tree may have any key anywhere.
            if not fits:
                raise broken("a key of an index node has a length that does not match its position")
            self._sample = sample
        return sample

    def _slot(self, digit: i64) -> i64:
        # Key and value of the own entry come before the children.
        first: i64 = 2 if self._has_entry else 0
        return first + bit_count(self._mask & ((1 << digit) - 1))

    def _find(self, wanted: bytes) -> Index | None:
        """Return the node whose own entry has this key."""
        node = self
        length: i64 = 2 * len(wanted)
        while node._count > 1:
            # The key ends here or before, so only the own entry of this node can have it.
            if length <= node._depth:
                break
            digit: i64 = digit_at(wanted, node._depth)
            if not node._mask & (1 << digit):
                return None
            kids = node._kids
            kid = node._child(digit) if kids is None else kids[node._slot(digit)]
            node = index_node(kid, node._count, node._depth)
        if node._count and node._has_entry and node._key() == wanted:
            return node
        return None

    def __len__(self) -> int:
        return self._count

    def get(self, key: object, default: Value = None) -> Value:
        """Return the value under `key`, or `default`; a key that is not byte-like is absent."""
        try:
            wanted = key_bytes(to_value(key))
        except TypeMismatch:
            return default  # such a key cannot be stored
        node = self._find(wanted)
        return default if node is None else node._held()

    def __getitem__(self, key: object) -> Value:
        node = self._find(key_bytes(to_value(key)))
        if node is None:
            raise KeyError(key)
        return node._held()

    def get_many(self, keys: Iterable[object]) -> list[Value]:
        """Return the values under `keys`, None for each key that is absent.

        Cost: each node on the way to several keys is read once.
        Raises: TypeMismatch: a key is not byte-like.
        """
        wanted = [key_bytes(to_value(key)) for key in keys]
        found: dict[bytes, Value] = {}
        raws = sorted(wanted)
        _find_all(self, raws, 0, len(raws), found)
        return [found.get(raw) for raw in wanted]

    def __contains__(self, key: object) -> bool:
        try:
            return self._find(key_bytes(to_value(key))) is not None
        except TypeMismatch:
            return False  # such a key cannot be stored

    def key_cell(self, key: object) -> Value:
        """Return the stored key with the bytes of `key`, or None."""
        node = self._find(key_bytes(to_value(key)))
        return None if node is None else deref(node._open()[0])

    def put(self, key: object, value: object) -> Index:
        """Return this index with an entry, key included, put or replaced; itself if `unchanged`."""
        held = to_value(key)
        return _put(self, _entry(key_bytes(held), held, to_value(value)), 0)

    def put_many(self, entries: Mapping[Any, object] | Iterable[tuple[object, object]]) -> Index:
        """Return this index with all of `entries` put; the last of equal keys wins.

        Returns itself if nothing changes. Each node on the way to a new entry is made once.
        """
        # Built in bulk and united: each node on the way to new entries is made once.
        return _union(self, _index_of(entries), 0)

    def remove(self, key: object) -> Index:
        """Return this index without `key`; itself if the key is absent."""
        return _remove(self, key_bytes(to_value(key)))

    def under(self, prefix: object) -> Index:
        """Return the entries whose keys start with the bytes of `prefix`, as a shared subtree."""
        wanted = key_bytes(to_value(prefix))
        length: i64 = 2 * len(wanted)
        node = self
        while node._count > 1 and node._depth < length:
            digit: i64 = digit_at(wanted, node._depth)
            if not node._mask & (1 << digit):
                return EMPTY_INDEX
            node = index_node(node._child(digit), node._count, node._depth)
        return node if node._count and node._any().startswith(wanted) else EMPTY_INDEX

    def _nodes(self, work: Work | None = None) -> Iterator[Index]:
        """Yield the nodes with an entry of their own, in key order.

        Each key must come after the previous one. Otherwise a few shared cells could make the walk
        endless.
        """
        last: bytes | None = None
        stack: list[tuple[object, int, int]] = [(self, 0, -1)] if self._count else []
        while stack:
            kid, above, depth = stack.pop()
            node = self if kid is self else index_node(kid, above, depth)
            if work is not None:
                work.enter(node)
            kids = node._open()
            if node._has_entry:
                key = node._key()
                # "Reading a value with such a fault always ends: it raises `BadFormat`"
                # (docs/cells.md "Decoding").
                if last is not None and key <= last:
                    raise broken("the keys of an index are not in order")
                last = key
                yield node
            first: i64 = 2 if node._has_entry else 0
            for i in range(len(kids) - 1, first - 1, -1):
                stack.append((kids[i], node._count, node._depth))

    def entries(self, work: Work | None = None) -> Iterator[tuple[Value, Value]]:
        """Yield (key, value) in the order of key bytes; a prefix comes first.

        Raises: WorkExceeded: the nodes on the way exceed the budget `work`.
        """
        for node in self._nodes(work):
            kids = node._open()
            value = deref(kids[1])
            if work is not None:
                work.meet(kids[1], value)
            yield deref(kids[0]), value

    def items(self) -> Iterator[tuple[Value, Value]]:
        """Yield (key, value), like a mapping."""
        return self.entries()

    def keys(self) -> Iterator[Value]:
        """Yield the keys."""
        return iter(self)

    def values(self) -> Iterator[Value]:
        """Yield the values."""
        for _key, value in self.entries():
            yield value

    def __iter__(self) -> Iterator[Value]:
        for node in self._nodes():
            yield deref(node._open()[0])

    def __reversed__(self) -> Iterator[Value]:
        return reversed(list(self))

    def merge_with(
        self,
        other: Index,
        join: JoinEntries,
        *,
        addressed: bool = False,
        own_keys: bool = False,
        rival: Rival | None = None,
        work: Work | None = None,
    ) -> Index:
        """Return the merge of two indexes by `join`, which is called as in `Map.merge_with`.

        addressed: an entry that only `other` has, and whose key is the hash of its value, is
            accepted without a call and without loading the value.
        own_keys, rival: of two different keys with the same first 32 bytes, the one with the
            greater hash is kept and passed to `join`. With `own_keys` this index's key is kept, and
            `join` gets the other one to judge, even if the values are equal. `rival` decides
            instead if given.
        Cost:   proportional to the entries that differ, charged to `work`.
        Raises: BadFormat: `other` is not a canonical tree. WorkExceeded: the budget is spent.
        """
        require_type(other, Index, "an index is merged with an Index")
        joined: list[tuple[bytes, bool, object, object]] = []
        theirs_too = True
        accepted: list[Index] = []  # subtrees of `other`
        found_nodes = differing_nodes(
            self, other, own_alone=False, work=work, addressed=accepted if addressed else None
        )
        for raw, mine, theirs in found_nodes:
            if theirs is None:
                theirs_too = False  # an entry that only this index has stays
                continue
            key, value = deref(theirs._open()[0]), theirs._open()[1]
            given = key
            alone = addressed and mine is None and value is not None
            if work is not None:
                work.spend(work.limits.joined)
            # The hash of the reference proves the key, so the value need not be loaded.
            if alone and isinstance(key, bytes) and kid_hash(value) == key:
                joined.append((raw, False, key, value))
                continue
            own: object = None
            result: object
            if mine is not None:
                held, own = deref(mine._open()[0]), mine._open()[1]
                if rival is not None and not same(key, held):
                    kept, taken = _met(own, value, work)
                    key, result = rival(held, kept, key, taken)
                    joined.append((raw, True, key, result))
                    theirs_too = theirs_too and _is_entry(theirs, key, result)
                    continue
                # "Of two Index keys with equal bytes the greater hash stays"
                # (docs/design/decisions.md "Law domain").
                if not same(key, held) and (own_keys or value_hash(held) > value_hash(key)):
                    key = held
                    given = given if own_keys else held
            if mine is not None and same_kid(own, value) and same(given, key):
                result = own
            else:
                kept, taken = _met(own, value, work)
                result = join(given, kept, taken, mine is not None, True)
            joined.append((raw, mine is not None, key, result))
            theirs_too = theirs_too and _is_entry(theirs, key, result)
        # Every entry is as `other` has it, so `other` is the result, if its counts are right.
        if theirs_too and (joined or accepted):
            more: i64 = sum([subtree._count for subtree in accepted])
            if other._count != self._count + more + sum([not has for _, has, _, _ in joined]):
                raise broken("the counts of an index do not add up")
            return other
        made = self
        found: dict[bytes, tuple[object, object]] = {}
        for raw, present, key, result in joined:
            if result is not ABSENT:
                found[raw] = (key, result)
            elif present:
                made = _remove(made, raw)
        for subtree in accepted:
            made = _union(made, subtree, 0)
        return _union(made, _build_sorted(found), 0)

    def differences(
        self, other: Index, work: Work | None = None
    ) -> Iterator[tuple[Value, bool, Value, bool, Value]]:
        """Yield (key, own present, own value, other present, other value) for differing entries.

        In key order within subtrees.
        """
        found = differing_nodes(self, other, work=work)
        return iter([_shown(mine, theirs) for _raw, mine, theirs in found])


def _met(own: object, value: object, work: Work | None) -> tuple[Value, Value]:
    """Return the two values of an entry, earning their bytes for `work`."""
    kept, taken = deref(own), deref(value)
    if work is not None:
        work.meet(own, kept)
        work.meet(value, taken)
    return kept, taken


def _is_entry(node: Index, key: object, value: object) -> bool:
    """Return whether the node's own entry has this key and value."""
    kids = node._open()
    return value is not ABSENT and same_kid(value, kids[1]) and same_kid(key, kids[0])


def need_place(key: bytes, like: bytes, depth: i64, digit: i64) -> None:
    """Check that a key has the first `depth` digits of `like`, then `digit`.

    Raises: BadFormat: it is under digits that are not its own.
    """
    if not agree(key, like, depth) or 2 * len(key) <= depth or digit_at(key, depth) != digit:
        raise broken("a key of an index is under digits that are not its own")


def _shown(mine: Index | None, theirs: Index | None) -> tuple[Value, bool, Value, bool, Value]:
    """Return (key, own present, own value, other present, other value) of a pair of nodes."""
    shown = theirs if mine is None else mine
    assert shown is not None
    return (
        deref(shown._open()[0]),
        mine is not None,
        None if mine is None else deref(mine._open()[1]),
        theirs is not None,
        None if theirs is None else deref(theirs._open()[1]),
    )


def index_node(kid: object, above: i64, depth: i64) -> Index:
    """Return a child node, checked to be a smaller and deeper index than its parent.

    above: the entries of the parent, 0 for any. depth: the parent's, -1 for none. Depths increase
    on the way down, so no path has more than 64 nodes.
    Raises: BadFormat: the tree is not canonical. MissingData: the node is missing.
    """
    node = kid.resolve() if isinstance(kid, Ref) else kid
    if not isinstance(node, Index) or node._count == 0 or (above and node._count >= above):
        raise broken("an index node has a wrong type or size")
    # Depths must increase, which bounds the path to 64 nodes in a malformed tree, too.
    if node._count > 1 and node._depth <= depth:
        raise broken("an index node is not deeper than its parent")
    return node


def _entry(raw: bytes, key: object, value: object) -> Index:
    made = Index()
    made._count = 1
    made._has_entry = True
    made._sample = raw
    # A small vector that was made from its encoding needs no list of kids beside it. Other cells
    # stay the very object: a signed one knows that it was verified.
    if isinstance(value, Vector) and value._loader is None and value._kids is None:
        encoding = value._encoding
        if encoding is not None and len(encoding) <= EMBEDDED_BYTES_MAX:
            out = BytesWriter()
            out.append(u8(TAG_INDEX))
            out.append(u8(1))
            if put_plain(out, key):
                out.write(encoding)
                made._encoding = out.getvalue()
                made._kids = None
                return made
    made._kids = [key, value]
    return made


def _node(
    count: i64, has_entry: bool, depth: i64, mask: i64, kids: list[object], sample: bytes | None
) -> Index:
    made = Index()
    made._count = count
    made._has_entry = has_entry
    made._depth = depth
    made._mask = mask
    made._kids = kids
    made._sample = sample
    return made


def _fork_at(data: bytes, has_entry: bool) -> i64:
    """Return where the depth is in the encoding of a node with children."""
    at: i64 = read_vlq(data, 1, len(data))[1] + 1
    return skip_kid(data, skip_kid(data, at)) if has_entry else at


def _child_in(data: bytes, has_entry: bool, digit: i64, loader: Loader | None) -> object:
    """Return the child under a digit of the mask in the encoding of a node."""
    at: i64 = _fork_at(data, has_entry)
    mask: i64 = (data[at + 1] << 8) | data[at + 2]
    at += 3
    for _ in range(bit_count(mask & ((1 << digit) - 1))):
        at = skip_kid(data, at)
    if data[at] == TAG_REF and loader is not None:
        return loader.load(data[at + 1 : at + 1 + HASH_BYTES])  # all callers would resolve the Ref
    return kids_in(data, at, 1, loader)[0][0]


def _with_kids(node: Index, digits: i64, fresh: list[object], count: i64) -> Index:
    """Return a node with `fresh` as its children under the digits of a mask.

    count: the entries that it has then.
    """
    mask: i64 = node._mask | digits
    edit, data, loader = node._edit, node._encoding, node._loader
    if edit is None and data is not None and loader is not None and node._is_stored():
        edit = Edit(data, loader, 0, NO_KIDS)
    if edit is not None:
        changed = _overlaid(edit.kids, edit.digits, 0, digits, fresh)
        made = _node(count, node._has_entry, node._depth, mask, changed, node._any())
        made._edit = Edit(edit.base, edit.loader, edit.digits | digits, changed)
        made._kids = None
        return made
    start: i64 = 2 if node._has_entry else 0
    kids = _overlaid(node._peek(), node._mask, start, digits, fresh)
    return _node(count, node._has_entry, node._depth, mask, kids, node._any())


def _overlaid(
    kids: list[object], mask: i64, start: i64, digits: i64, fresh: list[object]
) -> list[object]:
    """Return `kids` with `fresh`, the children under `digits`, put in or replacing others.

    kids: from `start` on the children under `mask`.
    """
    if not digits & (digits - 1):  # a single digit, as in nearly all writes
        made = kids[:]
        at: i64 = start + bit_count(mask & (digits - 1))
        if mask & digits:
            made[at] = fresh[0]
        else:
            made.insert(at, fresh[0])
        return made
    made = kids[:start]
    at = start
    new: i64 = 0
    for digit in range(16):
        bit: i64 = 1 << digit
        if digits & bit:
            made.append(fresh[new])
            new += 1
        elif mask & bit:
            made.append(kids[at])
        if mask & bit:
            at += 1
    return made


def closed_index(data: bytes, loader: Loader | None) -> Index:
    """Return the closed index with this encoding (tag 84)."""
    count, at = read_vlq(data, 1, len(data))
    made = Index()
    made._count = count
    made._has_entry = count == 1 or (count > 1 and data[at] == 0x80)
    made._kids = None
    made._encoding = data
    made._loader = loader
    if count > 1:
        fork: i64 = _fork_at(data, made._has_entry)
        made._depth = data[fork]
        made._mask = (data[fork + 1] << 8) | data[fork + 2]
    return made


def _find_all(
    node: Index, raws: list[bytes], low: i64, high: i64, found: dict[bytes, Value]
) -> None:
    """Add the values of the entries with the keys `raws[low:high]`, which are sorted."""
    depth: i64 = node._depth
    own = node._key() if node._has_entry else b""
    at: i64 = low
    while at < high:
        raw = raws[at]
        at += 1
        # The key ends here or before, so only the own entry can have it.
        if node._count == 1 or 2 * len(raw) <= depth:
            if node._has_entry and raw == own:
                found[raw] = node._held()
            continue
        digit: i64 = digit_at(raw, depth)
        begin: i64 = at - 1
        # Sorted, so the keys below one child follow one another, and the child is read once.
        while at < high and 2 * len(raws[at]) > depth and digit_at(raws[at], depth) == digit:
            at += 1
        if node._mask & (1 << digit):
            child = index_node(node._peek_child(digit), node._count, depth)
            _find_all(child, raws, begin, at, found)


def _put(node: Index, leaf: Index, known: i64) -> Index:
    """Return `node` with the entry of `leaf`, a node of one entry, put or replaced.

    known: digits that all keys of both share.
    """
    count: i64 = node._count
    if count == 0:
        return leaf
    raw, sample = leaf._key(), node._any()
    length: i64 = 2 * len(raw)
    end: i64 = 2 * len(sample) if count == 1 else node._depth
    fork: i64 = min(common_key_digits(raw, sample, known), end)
    if fork < end:
        own: i64 = digit_at(sample, fork)
        # The new key is a prefix of all keys here: a new node above holds it as its own entry.
        if fork == length:
            return _node(count + 1, True, fork, 1 << own, [*leaf._peek(), node], raw)
        new: i64 = digit_at(raw, fork)
        pair: list[object] = [node, leaf] if own < new else [leaf, node]
        return _node(count + 1, False, fork, (1 << own) | (1 << new), pair, sample)
    if length == end:  # the new key is that of this node's own entry
        kids, entry = node._peek(), leaf._peek()
        if not node._has_entry:
            return _node(count + 1, True, node._depth, node._mask, entry + kids, raw)
        if same_kid(kids[0], entry[0]) and unchanged(kids[1], entry[1]):
            return node
        if count == 1:
            return leaf
        return _node(count, True, node._depth, node._mask, entry + kids[2:], raw)
    digit: i64 = digit_at(raw, end)
    if count == 1:
        return _node(2, True, end, 1 << digit, [*node._peek(), leaf], sample)
    if not node._mask & (1 << digit):
        return _with_kids(node, 1 << digit, [leaf], count + 1)
    child = index_node(node._peek_child(digit), count, end)
    grown = _put(child, leaf, end + 1)
    if grown is child:
        return node
    return _with_kids(node, 1 << digit, [grown], count + grown._count - child._count)


def _union(own: Index, new: Index, known: i64) -> Index:
    """Return `own` with the entries of `new`, which win; `own` itself if nothing changes.

    known: digits that all keys of both share.
    """
    if new._count == 0:
        return own
    if own._count == 0:
        return new
    if new._count == 1:
        return _put(own, new, known)
    if own._count == 1:
        return _put(new, own, known) if new._find(own._key()) is None else new
    own_end: i64 = own._depth
    new_end: i64 = new._depth
    low: i64 = min(own_end, new_end)
    fork: i64 = common_key_digits(own._any(), new._any(), known)
    # They differ before either node forks: a node of two children goes above both.
    if fork < low:
        first: i64 = digit_at(own._any(), fork)
        second: i64 = digit_at(new._any(), fork)
        pair: list[object] = [own, new] if first < second else [new, own]
        mask: i64 = (1 << first) | (1 << second)
        return _node(own._count + new._count, False, fork, mask, pair, own._any())
    # The one that forks later lies entirely below one digit of the other.
    if own_end < new_end:
        return _with_below(own, digit_at(new._any(), low), new, True)
    if new_end < own_end:
        return _with_below(new, digit_at(own._any(), low), own, False)
    return _side_by_side(own, new)


def _side_by_side(own: Index, new: Index) -> Index:
    """Return the union of two nodes of one depth whose keys agree up to there."""
    fresh: list[object] = []
    digits: i64 = 0
    count: i64 = own._count
    for digit in range(16):
        bit: i64 = 1 << digit
        if not new._mask & bit:
            continue
        grown = index_node(new._peek_child(digit), new._count, new._depth)
        if own._mask & bit:
            child = index_node(own._peek_child(digit), own._count, own._depth)
            grown = _union(child, grown, own._depth + 1)
            if grown is child:
                continue
            count -= child._count
        count += grown._count
        digits |= bit
        fresh.append(grown)
    made = _with_kids(own, digits, fresh, count) if digits else own
    if not new._has_entry:
        return made
    kids, entry = own._peek(), new._peek()[:2]
    if own._has_entry and same_kid(kids[0], entry[0]) and same_kid(kids[1], entry[1]):
        return made
    if not own._has_entry:
        count += 1
    children = made._peek()[2 if own._has_entry else 0 :]
    return _node(count, True, own._depth, made._mask, entry + children, own._any())


def _with_below(node: Index, digit: i64, below: Index, wins: bool) -> Index:
    """Return a node with the entries of `below` added, whose keys continue with `digit`.

    wins: whether they replace equal keys of the node.
    """
    grown = below
    more: i64 = below._count
    if node._mask & (1 << digit):
        child = index_node(node._peek_child(digit), node._count, node._depth)
        if wins:
            grown = _union(child, below, node._depth + 1)
            if grown is child:
                return node
        else:
            grown = _union(below, child, node._depth + 1)
        more = grown._count - child._count
    return _with_kids(node, 1 << digit, [grown], node._count + more)


def _remove(node: Index, raw: bytes) -> Index:
    if node._count == 0:
        return node
    kids = node._open()
    if node._count == 1:
        return EMPTY_INDEX if node._key() == raw else node
    # The key ends at or before this node's digit, so only its own entry can have it.
    if 2 * len(raw) <= node._depth:
        if not node._has_entry or node._key() != raw:
            return node
        # An entry and one child: without the entry the child is the canonical node.
        if len(kids) == 3:
            return index_node(kids[2], node._count, node._depth)
        return _node(node._count - 1, False, node._depth, node._mask, kids[2:], None)
    digit: i64 = digit_at(raw, node._depth)
    if not node._mask & (1 << digit):
        return node
    slot: i64 = node._slot(digit)
    child = index_node(kids[slot], node._count, node._depth)
    less = _remove(child, raw)
    if less is child:
        return node
    fresh = kids[:]
    mask: i64 = node._mask
    if less._count:
        fresh[slot] = less
    else:
        fresh.pop(slot)
        mask &= ~(1 << digit)
        # "A single entry is written as its key and value" (docs/cells.md "Index").
        if node._has_entry and len(fresh) == 2:
            return _entry(node._key(), fresh[0], fresh[1])
        # A node has two parts or more; with one child the child takes its position.
        if not node._has_entry and len(fresh) == 1:
            return index_node(fresh[0], 0, node._depth)
    return _node(node._count - 1, node._has_entry, node._depth, mask, fresh, None)


def _index_of(entries: Mapping[Any, object] | Iterable[tuple[object, object]]) -> Index:
    found: dict[bytes, tuple[object, object]] = {}
    key: object = None
    try:
        for pair in pairs_of(entries):
            key, value = pair if type(pair) is tuple and len(pair) == 2 else pair_of(pair)
            held = to_value(key)
            # "Keys with equal bytes share one entry, even if their kinds differ; `put` replaces the
            # key as well" (docs/cells.md "Index").
            found[key_bytes(held)] = (held, to_value(value))
    except TypeMismatch as error:
        raise error.below(key) from None
    return _build_sorted(found)


def _build_sorted(found: dict[bytes, tuple[object, object]]) -> Index:
    keys = sorted(found)
    if not keys:
        return EMPTY_INDEX
    return _build_range(keys, found, 0, len(keys), 0)


def _build_range(
    keys: list[bytes], found: dict[bytes, tuple[object, object]], low: i64, high: i64, start: i64
) -> Index:
    first = keys[low]
    key, value = found[first]
    if high - low == 1:
        return _entry(first, key, value)
    depth: i64 = common_key_digits(first, keys[high - 1], start)
    kids: list[object] = []
    at: i64 = low
    # Sorted, so a key that is a prefix of the others comes first: "a key comes before the keys that
    # begin with it" (docs/cells.md "Index").
    has_entry = 2 * len(first) == depth
    if has_entry:
        kids = [key, value]
        at += 1
    mask: i64 = 0
    while at < high:
        digit: i64 = digit_at(keys[at], depth)
        begin: i64 = at
        while at < high and digit_at(keys[at], depth) == digit:
            at += 1
        mask |= 1 << digit
        kids.append(_build_range(keys, found, begin, at, depth + 1))
    return _node(high - low, has_entry, depth, mask, kids, first)


ChangedChild = tuple[bytes, "Index | None", "Index | None"]


class _Pair:
    """Two different subtrees at one position, None for no subtree; `known`: shared key digits."""

    __slots__ = ("known", "other", "own")

    def __init__(self, own: Index | None, other: Index | None, known: i64) -> None:
        self.own: Final = own
        self.other: Final = other
        self.known: Final[i64] = known


def differing_nodes(
    own: Index,
    other: Index,
    *,
    own_alone: bool = True,
    work: Work | None = None,
    addressed: list[Index] | None = None,
) -> list[ChangedChild]:
    """Return (key bytes, own node, other node) for each key in which two indexes differ.

    Equal subtrees are not loaded. Without `own_alone`, a subtree that only own has is returned as
    the node above it. A subtree that only other has goes into `addressed` in place of its keys, if
    this is given and each of them is the hash of its value.
    Raises: BadFormat: a key is under digits that are not its own, so pairing by digits would mix it
            up with another key; or counts are inconsistent.
    """
    found: list[ChangedChild] = []
    stack: list[_Pair] = []
    if own is not other and (own._count or other._count):
        stack.append(_Pair(own if own._count else None, other if other._count else None, 0))
    while stack:
        pair = stack.pop()
        mine, theirs = pair.own, pair.other
        if theirs is None:
            if mine is not None and own_alone:
                _add_alone(mine, False, found, work)
            elif mine is not None:
                found.append((b"", mine, None))
            continue
        if mine is None:
            if addressed is not None and _is_addressed(theirs, work):
                addressed.append(theirs)
            else:
                _add_alone(theirs, True, found, work)
            continue
        # Equal hashes: nothing below differs, and nothing is loaded.
        if surely_same(mine, theirs):
            continue
        if work is not None:
            work.enter(mine)
            work.enter(theirs)
        # One key of each side is compared up to the digits reached; all keys below either node
        # are then compared with that key.
        if not agree(mine._any(), theirs._any(), pair.known):
            raise broken("a key of an index is under digits that are not its own")
        _pair_nodes(mine, theirs, pair.known, stack, found, own_alone)
    return found


def _add_alone(top: Index, is_other: bool, found: list[ChangedChild], work: Work | None) -> None:
    """Add the entries of a subtree present on one side only; each key must be in its position."""
    stack: list[Index] = [top]
    while stack:
        node = stack.pop()
        if work is not None:
            work.enter(node)
        if node._has_entry:
            found.append((node._key(), None, node) if is_other else (node._key(), node, None))
        if node._count == 1:
            continue
        # `need_place` accepts a subtree in one position only, so the walk ends, and the keys come
        # in order.
        kids = node._open()
        at: i64 = len(kids)
        count: i64 = 1 if node._has_entry else 0
        for digit in range(15, -1, -1):
            if node._mask & (1 << digit):
                at -= 1
                below = index_node(kids[at], node._count, node._depth)
                need_place(below._any(), node._any(), node._depth, digit)
                count += below._count
                stack.append(below)
        if count != node._count:
            raise broken("the counts of an index do not add up")


class _Above:
    """A node of which children are read later: what each has to fit into."""

    __slots__ = ("count", "depth", "left", "like", "waiting")

    def __init__(self, count: i64, depth: i64, like: bytes) -> None:
        self.count: Final[i64] = count
        self.depth: Final[i64] = depth
        self.like: Final = like  # a key below it
        self.left: i64 = count  # entries that no child read so far has
        self.waiting: i64 = 0  # children that are not read yet

    def child(self, kid: object, digit: i64) -> Index:
        """Return the child under a digit, after checking that it fits.

        Raises: as `differing_nodes`.
        """
        node = index_node(kid, self.count, self.depth)
        need_place(_some_key(node), self.like, self.depth, digit)
        self.left -= node._count
        return node

    def check(self) -> None:
        """Check the count, once all children were read. Raises: BadFormat: it is wrong."""
        if not self.waiting and self.left:
            raise broken("the counts of an index do not add up")


def _is_addressed(top: Index, work: Work | None) -> bool:
    """Return whether each key of a stored subtree is the hash of its value, and none is of None.

    Entries are compared in the encoding of the node above them: a cell, a list and a reference for
    each would take most of the time of a first sync. False also for a tree that is not stored, and
    for keys that other keys begin with.
    Raises: as `differing_nodes`.
    """
    store = top._loader
    if not isinstance(store, CellSink):
        return False
    nodes: list[Index] = [top]
    later: list[tuple[bytes, _Above, int]] = []  # hash of a child, its parent, its digit
    while nodes or later:
        if not nodes:
            # Read and hashed together, yet few are in memory.
            batch = later[-ADDRESSED_TOGETHER:]
            del later[-ADDRESSED_TOGETHER:]
            kids = store.get_many([hash for hash, _, _ in batch])
            for (_, above, digit), kid in zip(batch, kids, strict=True):
                nodes.append(above.child(kid, digit))
                above.waiting -= 1
                above.check()
        node = nodes.pop()
        if work is not None:
            work.enter(node)
        data = node._encoding
        if data is None or node._edit is not None or node._loader is not store:
            return False
        entries = _addressed_entries(node, data, store, nodes, later)
        if entries < 0:
            return False
        if work is not None:
            below: i64 = 0 if node._count == 1 else work.limits.node
            work.spend(entries * (work.limits.joined + below))
    return True


def _addressed_entries(
    node: Index,
    data: bytes,
    store: Loader,
    nodes: list[Index],
    later: list[tuple[bytes, _Above, int]],
) -> i64:
    """Return the number of entries in an encoded node, -1 if one is not addressed.

    Children that are embedded go into `nodes`, others into `later`.
    """
    if node._count == 1:
        return 1 if _addressed_end(data, 0) else -1
    if node._has_entry:
        return -1
    above = _Above(node._count, node._depth, _some_key(node))
    entries: i64 = 0
    at: i64 = _fork_at(data, False) + 3
    for digit in range(16):
        if not node._mask & (1 << digit):
            continue
        if data[at] == TAG_REF:
            later.append((data[at + 1 : at + 1 + HASH_BYTES], above, digit))
            above.waiting += 1
            at += 1 + HASH_BYTES
        elif _has_hash_key(data, at):
            need_place(data[at + 4 : at + 4 + HASH_BYTES], above.like, above.depth, digit)
            at = _addressed_end(data, at)
            if not at:
                return -1
            entries += 1
            above.left -= 1
        else:
            nodes.append(above.child(kids_in(data, at, 1, store)[0][0], digit))
            at = skip_kid(data, at)
    above.check()
    return entries


def _has_hash_key(data: bytes, at: i64) -> bool:
    """Return whether an index of one entry is at a position, and its key a blob of 32 bytes."""
    # [84][1][31][32][key 32][value]
    return (
        data[at] == TAG_INDEX
        and data[at + 1] == 1
        and data[at + 2] == TAG_BLOB
        and data[at + 3] == HASH_BYTES
    )


def _addressed_end(data: bytes, at: i64) -> i64:
    """Return the end of an index of one entry whose key is the hash of its value; 0: it is not."""
    if not _has_hash_key(data, at):
        return 0
    key = data[at + 4 : at + 4 + HASH_BYTES]
    at += 4 + HASH_BYTES
    if data[at] == TAG_REF:
        return at + 1 + HASH_BYTES if data[at + 1 : at + 1 + HASH_BYTES] == key else 0
    end = skip_kid(data, at)
    # The merge adds values, and nil stands for an absent one.
    return end if data[at] and sha3_256(data[at:end]) == key else 0


def _some_key(node: Index) -> bytes:
    """Return the key bytes of some entry below a node, one that is in its encoding if it can be."""
    data = node._encoding
    if node._sample is None and data is not None and node._edit is None:
        at: i64 = 0
        rest: i64 = 0
        if node._count > 1 and not node._has_entry:
            at = _fork_at(data, False) + 3
            rest = node._mask & (node._mask - 1)
        while True:
            if _has_hash_key(data, at):
                return data[at + 4 : at + 4 + HASH_BYTES]
            if not rest:
                break
            rest &= rest - 1
            at = skip_kid(data, at)
    return node._any()


def _pair_nodes(
    a: Index, b: Index, known: i64, stack: list[_Pair], found: list[ChangedChild], own_alone: bool
) -> None:
    """Add the nodes' own entries; push the pairs of subtrees that can share keys."""
    a_end: i64 = _reach(a)
    b_end: i64 = _reach(b)
    low: i64 = min(a_end, b_end)
    like = a._any()
    # No key in common: each side is looked at alone.
    if common_key_digits(like, b._any(), known) < low:
        stack.append(_Pair(a, None, known))
        stack.append(_Pair(None, b, known))
        return
    more: i64 = 0  # entries that b has more than a, in the parts that differ
    covers = b_end == low
    mine = a if a_end == low and a._has_entry else None
    theirs = b if b_end == low and b._has_entry else None
    if mine is not None and theirs is not None:
        left, right = mine._open(), theirs._open()
        if not (same_kid(left[0], right[0]) and same_kid(left[1], right[1])):
            found.append((mine._key(), mine, theirs))
    elif mine is not None:
        covers = False
        found.append((mine._key(), mine, None))
    elif theirs is not None:
        more = 1
        found.append((theirs._key(), None, theirs))
    for digit in range(15, -1, -1):
        own_kid = _below(a, a_end, low, digit)
        other_kid = _below(b, b_end, low, digit)
        if other_kid is None:
            if own_kid is None:
                continue
            covers = False
            if own_alone:
                stack.append(_Pair(index_node(own_kid, 0, low), None, low + 1))
            else:
                found.append((b"", a, None))
        elif own_kid is None:
            other = index_node(other_kid, 0 if other_kid is b else b._count, low)
            need_place(other._any(), like, low, digit)
            more += other._count
            stack.append(_Pair(None, other, low + 1))
        elif not surely_same(own_kid, other_kid):
            own = index_node(own_kid, 0, low)
            other = index_node(other_kid, 0 if other_kid is b else b._count, low)
            more += other._count - own._count
            stack.append(_Pair(own, other, low + 1))
    # Equal parts have equal counts, so only the parts that differ are counted.
    if covers and more != b._count - a._count:
        raise broken("the counts of an index do not add up")


def _reach(node: Index) -> int:
    """Return the number of digits that all keys share: the depth, or all of a single key."""
    return 2 * len(node._key()) if node._count == 1 else node._depth


def _below(node: Index, reach: int, low: int, digit: int) -> object:
    """Return the child under `digit` at position `low`, or the node itself if it forks later."""
    # A node that forks later than `low` is the only child there, under the digit of its keys.
    if reach > low:
        return node if digit_at(node._any(), low) == digit else None
    if node._count == 1 or not node._mask & (1 << digit):
        return None
    return node._open()[node._slot(digit)]


wrappers[TAG_INDEX] = closed_index
EMPTY_INDEX: Final = Index()
Mapping.register(Index)
