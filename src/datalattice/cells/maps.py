"""Map and Set: the two public types of trie.

Source: CAD002 "Set", "Map"; CAD003 "Set", "Map"; docs/cells.md "Map and Set".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set as AbstractSet
from typing import Any, Final

from datalattice.cells.cell import NO_KIDS, Loader, Value, deref, encode, to_value, value_hash
from datalattice.cells.parse import wrappers
from datalattice.cells.scalars import require_type
from datalattice.cells.trie import (
    TAG_MAP,
    TAG_SET,
    Rows,
    Trie,
    build_trie,
    close,
    leaf_of_rows,
    pair_of,
    pairs_of,
    put_entry,
    remove_entry,
)
from datalattice.cells.triejoin import JoinEntries, Joiner, differing
from datalattice.cells.work import Work
from datalattice.crypto import sha3_256
from datalattice.errors import TypeMismatch
from datalattice.limits import EMBEDDED_BYTES_MAX, MAP_LEAF_MAX

NAMES_KNOWN_MAX: Final = 4_096
"""Most names whose hash and encoding are cached while many maps are built."""

KEY_CACHED_MAX: Final = 40
"""Longest text or bytes whose hash is cached when it is looked up in a small map."""

_key_hashes: Final[dict[object, bytes]] = {}
"""The hashes of keys that were looked up in small maps: paths and records have the same few."""


def _key_hash(map: Trie, key: Value) -> bytes:
    """Return the hash of a key that is looked up in a map."""
    if map._count > MAP_LEAF_MAX or not _is_cached(key):
        return value_hash(key)
    found = _key_hashes.get(key)
    if found is None:
        found = sha3_256(encode(key))
        if len(_key_hashes) >= NAMES_KNOWN_MAX:
            _key_hashes.clear()
        _key_hashes[key] = found
    return found


def _is_cached(key: Value) -> bool:
    kind = type(key)
    if isinstance(key, (str, bytes)):
        return (kind is str or kind is bytes) and len(key) <= KEY_CACHED_MAX
    # The type decides: a bool and a float may equal an integer in Python.
    return isinstance(key, int) and kind is int and 0 <= key < NAMES_KNOWN_MAX


class Map(Trie):
    """An immutable mapping, iterated in the order of its keys' hashes.

    Keys are distinguished by hash, so `True`, `1` and `1.0` are three keys.
    Cost:   get, put and remove touch one path, O(log16 n).
    """

    __slots__ = ()

    def __init__(
        self, entries: Mapping[Any, object] | Iterable[tuple[object, object]] | None = None
    ) -> None:
        super().__init__()
        self._kids = NO_KIDS
        if entries is not None:
            self._become(_map_of(entries))

    def _fresh(self) -> Trie:
        return Map()

    @classmethod
    def of(cls, entries: Mapping[Any, object] | Iterable[tuple[object, object]]) -> Map:
        """Return the map of `entries`, built in bulk; the last of equal keys wins."""
        return _map_of(entries)

    def get(self, key: object, default: Value = None) -> Value:
        """Return the value under `key`, or `default`."""
        leaf, at = self._find(_key_hash(self, to_value(key)))
        return default if leaf is None else deref(leaf._value(at))

    def __getitem__(self, key: object) -> Value:
        leaf, at = self._find(_key_hash(self, to_value(key)))
        if leaf is None:
            raise KeyError(key)
        return deref(leaf._value(at))

    def put(self, key: object, value: object) -> Map:
        """Return this map with an entry added or replaced; itself if `unchanged`."""
        key, value = to_value(key), to_value(value)
        made = self._with_put(key, value)
        if made is None:
            self._settle()
            # "Keys of Maps and elements of Sets are compared and ordered by it" (docs/cells.md
            # "Hashes"): the SHA3-256 of the encoding.
            made = put_entry(self, _key_hash(self, key), key, value, 0)
        assert isinstance(made, Map)
        return made

    def put_many(self, entries: Mapping[Any, object] | Iterable[tuple[object, object]]) -> Map:
        """Return this map with all of `entries` put one by one; the last of equal keys wins."""
        made = self
        # An empty map is built in bulk, each node once.
        if not self._count:
            return _map_of(entries)
        for pair in pairs_of(entries):
            key, value = pair if type(pair) is tuple and len(pair) == 2 else pair_of(pair)
            made = made.put(key, value)
        return made

    def remove(self, key: object) -> Map:
        """Return this map without `key`; itself if the key is absent."""
        self._settle()
        made = remove_entry(self, value_hash(to_value(key)))
        assert isinstance(made, Map)
        return made

    def entries(self, work: Work | None = None) -> Iterator[tuple[Value, Value]]:
        """Yield (key, value) in the order of key hashes.

        Raises: WorkExceeded: the nodes on the way exceed the budget `work`.
        """
        for leaf in self._leaves(work):
            kids = leaf._open()
            for i in range(0, len(kids), 2):
                value = deref(kids[i + 1])
                if work is not None:
                    work.meet(kids[i + 1], value)
                yield deref(kids[i]), value

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

    def merge_with(self, other: Map, join: JoinEntries, work: Work | None = None) -> Map:
        """Return the merge of two maps by `join(key, own, other, own present, other present)`.

        `join` is called only for entries of `other` that this map lacks or has with another value.
        It returns the value to keep, or `ABSENT`. The result is this map itself if nothing changes,
        and `other` itself if it equals that.
        Cost:   proportional to the entries that differ, charged to `work`.
        Raises: BadFormat: `other` is not a canonical tree. WorkExceeded: the budget is spent.
        """
        require_type(other, Map, "a map is merged with a Map")
        # An empty other changes nothing, so it costs nothing.
        made = self if not other._count else Joiner(self, join, work).nodes(self, other, b"")
        assert isinstance(made, Map)
        return made

    def differences(
        self, other: Map, work: Work | None = None
    ) -> Iterator[tuple[Value, bool, Value, bool, Value]]:
        """Yield (key, own present, own value, other present, other value) for differing entries."""
        for _digest, key, has, mine, had, theirs in differing(self, other, work):
            yield deref(key), has, deref(mine), had, deref(theirs)


class Set(Trie):
    """An immutable set, iterated in the order of its elements' hashes."""

    __slots__ = ()

    def __init__(self, items: Iterable[object] | None = None) -> None:
        super().__init__()
        self._tag = TAG_SET
        self._kids = NO_KIDS
        if items is not None:
            self._become(_set_of(items))

    def _fresh(self) -> Trie:
        return Set()

    @classmethod
    def of(cls, items: Iterable[object]) -> Set:
        """Return the set of `items`, built in bulk."""
        return _set_of(items)

    def add(self, item: object) -> Set:
        """Return this set with `item`; itself if it is already there."""
        item = to_value(item)
        made = self._with_put(item, None)
        if made is None:
            self._settle()
            # "A Set has keys and no values" (docs/cells.md "Map and Set").
            made = put_entry(self, value_hash(item), item, None, 0)
        assert isinstance(made, Set)
        return made

    def remove(self, item: object) -> Set:
        """Return this set without `item`; itself if it is absent."""
        self._settle()
        made = remove_entry(self, value_hash(to_value(item)))
        assert isinstance(made, Set)
        return made

    def union(self, other: Set, work: Work | None = None) -> Set:
        """Return the elements of both; this set or `other` itself if it has all of them."""
        require_type(other, Set, "a set is united with a Set")
        made = self if not other._count else Joiner(self, None, work).nodes(self, other, b"")
        assert isinstance(made, Set)
        return made

    def differences(self, other: Set) -> Iterator[tuple[Value, bool, bool]]:
        """Yield (element, own has it, other has it) for differing elements."""
        for _digest, key, has, _mine, had, _theirs in differing(self, other):
            yield deref(key), has, had

    def isdisjoint(self, other: Iterable[object]) -> bool:
        """Return whether the two have no element in common."""
        return not any(item in self for item in other)

    def __le__(self, other: Set) -> bool:
        require_type(other, Set, "a set is compared with a Set")
        # Counted first: a larger set is no subset, and nothing is loaded.
        return self._count <= other._count and all(item in other for item in self)

    def __ge__(self, other: Set) -> bool:
        require_type(other, Set, "a set is compared with a Set")
        return other.__le__(self)

    def __lt__(self, other: Set) -> bool:
        require_type(other, Set, "a set is compared with a Set")
        return self._count < other._count and self.__le__(other)

    def __gt__(self, other: Set) -> bool:
        require_type(other, Set, "a set is compared with a Set")
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


def _map_of(entries: Mapping[Any, object] | Iterable[tuple[object, object]]) -> Map:
    rows = Rows(TAG_MAP)
    key: object = None
    try:
        for pair in pairs_of(entries):
            key, value = pair if type(pair) is tuple and len(pair) == 2 else pair_of(pair)
            # "True, 1 and 1.0 differ" (docs/cells.md "Python values"), since the hash of the
            # encoding identifies a key and not Python's `==`.
            rows.add(to_value(key), to_value(value))
    except TypeMismatch as error:
        raise error.below(key) from None
    made = build_trie(EMPTY_MAP, rows)
    assert isinstance(made, Map)
    return made


def map_of_names(entries: list[tuple[str, Value]], known: dict[str, bytes]) -> Map:
    """Return the map of admitted values by name; the last of equal names wins.

    known: a cache of each name's hash and encoding, filled here.
    """
    # "Up to 15 entries are one leaf, in the order of the key hashes" (docs/cells.md "Map and Set").
    if not 0 < len(entries) <= MAP_LEAF_MAX:
        return _map_of(entries)
    rows: dict[bytes, tuple[object, object]] = {}
    for name, value in entries:
        row = known.get(name)
        if row is None:
            encoding = encode(name)
            # The leaf has a reference to a longer name, so its encoding cannot be copied there.
            if len(encoding) > EMBEDDED_BYTES_MAX:
                return _map_of(entries)
            row = sha3_256(encoding) + encoding
            # Names come from foreign JSON: without a bound they could fill the memory.
            if len(known) < NAMES_KNOWN_MAX:
                known[name] = row
        rows[row] = (name, value)
    made = leaf_of_rows(EMPTY_MAP, rows)
    assert isinstance(made, Map)
    return made


def _set_of(items: Iterable[object]) -> Set:
    require_type(items, Iterable, "the elements are an iterable")
    rows = Rows(TAG_SET)
    for item in items:
        rows.add(to_value(item), None)
    made = build_trie(EMPTY_SET, rows)
    assert isinstance(made, Set)
    return made


def closed_map(data: bytes, loader: Loader | None) -> Trie:
    """Return the closed map with this encoding (tag 82)."""
    return close(Map(), data, loader)


def closed_set(data: bytes, loader: Loader | None) -> Trie:
    """Return the closed set with this encoding (tag 83)."""
    return close(Set(), data, loader)


EMPTY_MAP: Final = Map()
EMPTY_SET: Final = Set()
wrappers[TAG_MAP] = closed_map
wrappers[TAG_SET] = closed_set
Mapping.register(Map)
AbstractSet.register(Set)
