"""Keyed: lattices of a fixed set of names, each with its own lattice.

Names are bytes: `:data`, `"data"` and the blob of those bytes address the same child. Merges and
cursors write entries under the Keyword (in a string-keyed map: the string), so that equal content
has equal hashes.

Source: CAD024 "String keyed lattice", "Keyed lattice"; docs/lattices.md "Named sections";
    docs/design/decisions.md "D4", "D9", "D10"; docs/design/forks.md "The order"; CAD003 "Index";
    docs/cells.md "Index".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, cast

from mypy_extensions import mypyc_attr

from datalattice.cells import (
    ABSENT,
    EMPTY_INDEX,
    EMPTY_MAP,
    Index,
    Keyword,
    Map,
    Scalar,
    Value,
    same,
)
from datalattice.errors import TypeMismatch, UsageError
from datalattice.lattice.base import Lattice, as_operand, child_latest, join_entry
from datalattice.lattice.containers import latest_of_indexes, latest_of_maps, need_lattice
from datalattice.lattice.context import EMPTY_CONTEXT, MergeContext
from datalattice.lattice.isolation import isolated
from datalattice.lattice.order import (
    EntryOrder,
    Latest,
    Walk,
    contrast,
    malformed,
    step_of,
)
from datalattice.limits import INDEX_KEY_BYTES

Container = Map | Index


def name_bytes(key: Value) -> bytes | None:
    """Return the leading bytes of a key that an Index compares, None if it is not an Index key."""
    if isinstance(key, bytes):
        return key[:INDEX_KEY_BYTES]
    if isinstance(key, str):
        return key.encode("utf-8", "surrogateescape")[:INDEX_KEY_BYTES]
    if isinstance(key, Scalar):
        found = key.key_bytes()
        # Only scalars with bytes can be keys of an Index.
        return None if found is None else found[:INDEX_KEY_BYTES]
    return None


def _need_mapping(children: object) -> None:
    if not isinstance(children, Mapping):
        raise TypeMismatch(
            f"the children of a keyed lattice are not a mapping of names to lattices: "
            f"{type(children).__name__}"
        )


class NamedOrder(EntryOrder):
    """The order elements of named parts, each with its own lattice; other names are malformed."""

    def __init__(self, lattice: Lattice) -> None:
        super().__init__()
        self._lattice: Final = lattice

    def step(self, key: Value) -> bytes:
        """Return the step of the canonical key."""
        return step_of(self._lattice.canonical_key(key))

    def entry(
        self,
        key: Value,
        own: Value,
        other: Value,
        own_present: bool,
        other_present: bool,
        walk: Walk,
    ) -> Latest:
        """Return the answer of the key's lattice."""
        child = self._lattice.child(key)
        if child is not None:
            return child_latest(child, own, other, own_present, other_present, walk)
        return contrast(  # a name without a lattice: "other names are malformed"
            malformed(own) if own_present else None, malformed(other) if other_present else None
        )


@mypyc_attr(allow_interpreted_subclasses=True)
class KeyedLattice(Lattice):
    """An Index with fixed Keyword keys, each with its own lattice.

    `children` maps Keywords, or names, to lattices. Names must differ in their first 32 bytes.
    """

    def __init__(self, children: Mapping[Keyword, Lattice] | Mapping[str, Lattice]) -> None:
        self._keys: Final[dict[bytes, Keyword]] = {}
        self._children: Final[dict[bytes, Lattice]] = {}
        # Untyped, so that wrong arguments get the errors below.
        given: Mapping[object, object] = cast("Mapping[object, object]", children)
        _need_mapping(given)
        for name, child in given.items():
            if not isinstance(name, (Keyword, str)):
                raise TypeMismatch(
                    f"a key of a KeyedLattice is not a Keyword or a str: {type(name).__name__}"
                )
            key = Keyword(name) if isinstance(name, str) else name
            lattice = need_lattice(child, f"the child {key.text()} of a KeyedLattice")
            raw = name_bytes(key)
            assert raw is not None
            # An Index could hold only one of the two.
            if raw in self._keys:
                raise UsageError(
                    f"{self._keys[raw].text()} and {key.text()} are the same key: an Index "
                    f"compares only the first {INDEX_KEY_BYTES} bytes"
                )
            # "Names are bytes": `:data` and `"data"` address the same child.
            self._children[raw] = lattice
            self._keys[raw] = key
        self._order: Final = NamedOrder(self)

    def has_order(self) -> bool:
        return all(child.has_order() for child in self._children.values())

    def within(self) -> tuple[Lattice, ...]:
        return tuple(self._children.values())

    def latest(self, own: Value, other: Value, walk: Walk) -> Latest:
        return latest_of_indexes(self._order, own, other, walk)

    def add_lattice(self, key: Keyword, child: Lattice) -> KeyedLattice:
        """Return a lattice with `key` added or replaced."""
        return KeyedLattice({**self.children(), key: child})

    def children(self) -> dict[Keyword, Lattice]:
        """Return the configured keys and their lattices."""
        return dict(self._fixed())

    def _fixed(self) -> list[tuple[Keyword, Lattice]]:
        return [(self._keys[raw], child) for raw, child in self._children.items()]

    def merge(self, own: Value, other: Value, context: MergeContext = EMPTY_CONTEXT) -> Value:
        """Return own merged with each configured entry of other.

        Unknown keys of other are ignored; those of own stay.
        """
        if other is None or own is other or not self.accepts(other, context):
            return own
        assert isinstance(other, Index)
        base = own if isinstance(own, Index) else EMPTY_INDEX
        result = _join_fixed(base, other, self._fixed(), context)
        # "If the result equals an operand, a merge returns that operand itself" (docs/grid.md).
        return own if result is own else as_operand(result, own, other)

    def zero(self) -> Value:
        return EMPTY_INDEX

    def check_foreign(self, value: Value) -> bool:
        return isinstance(value, Index)

    def child(self, key: Value) -> Lattice | None:
        """Return the child whose name has the bytes of `key`, else None."""
        raw = name_bytes(key)
        # By its bytes, since an Index cannot tell a Keyword from a String of the same bytes.
        return None if raw is None else self._children.get(raw)

    def resolve_key(self, key: Value) -> Value:
        """Return the configured Keyword with the bytes of `key`, or None."""
        raw = name_bytes(key)
        return None if raw is None else self._keys.get(raw)

    def canonical_key(self, key: Value) -> Value:
        """Return the configured Keyword with the bytes of `key`; an unknown key unchanged."""
        found = self.resolve_key(key)
        return key if found is None else found

    def _arguments(self) -> tuple[object, ...]:
        return (self.children(),)


def _join_fixed(
    base: Container,
    other: Container,
    children: Iterable[tuple[Keyword | str, Lattice]],
    context: MergeContext,
) -> Container:
    """Return `base` merged with the entries of `other` under the keys of `children`."""
    result = base
    for key, child in children:
        theirs = other.get(key, ABSENT)
        mine = base.get(key, ABSENT)
        # Only configured names are read: "unknown keys of other are ignored", so a peer cannot fill
        # a root with sections that no lattice checks.
        if theirs is ABSENT or mine is theirs:
            continue
        merged = _join_named(child, context, key, mine, theirs)
        if merged is ABSENT:
            # The merge left nothing of the entry, so its name goes, too.
            result = result.remove(key) if mine is not ABSENT else result
        # Written under the configured key, so that equal content has equal hashes.
        elif merged is not mine:
            result = result.put(key, merged)
    return result


def _join_named(
    child: Lattice, context: MergeContext, key: Value, own: object, other: Value
) -> object:
    """Return the merge of the entry under a fixed key: a value, or ABSENT."""
    present = own is not ABSENT
    value = own if present else None

    def joined() -> Value:
        if present and same(value, other):  # an equal value changes nothing: it is not checked
            return own
        return join_entry(child, context, key, value, other, own_present=present)

    # A part that raises is left out; the other parts are merged.
    return isolated(context.child(key), own, other, joined)


class StringKeyedLattice(Lattice):
    """A Map with fixed String keys, each with its own lattice; its states are JSON objects."""

    def __init__(self, children: Mapping[str, Lattice]) -> None:
        self._by_name: Final[dict[str, Lattice]] = {}
        _need_mapping(children)
        for name, child in cast("Mapping[object, object]", children).items():
            if not isinstance(name, str):
                raise TypeMismatch(
                    f"a key of a StringKeyedLattice is not a str: {type(name).__name__}"
                )
            what = f"the child {name!r} of a StringKeyedLattice"
            self._by_name[name] = need_lattice(child, what)
        self._order: Final = NamedOrder(self)

    def has_order(self) -> bool:
        return all(child.has_order() for child in self._by_name.values())

    def within(self) -> tuple[Lattice, ...]:
        return tuple(self._by_name.values())

    def latest(self, own: Value, other: Value, walk: Walk) -> Latest:
        return latest_of_maps(self._order, own, other, walk)

    def merge(self, own: Value, other: Value, context: MergeContext = EMPTY_CONTEXT) -> Value:
        """Return own merged with each configured entry of other.

        Unknown keys of other are ignored; those of own stay.
        """
        if other is None or own is other or not self.accepts(other, context):
            return own
        assert isinstance(other, Map)
        base = own if isinstance(own, Map) else EMPTY_MAP
        result = _join_fixed(base, other, self._by_name.items(), context)
        return own if result is own else as_operand(result, own, other)

    def zero(self) -> Value:
        return EMPTY_MAP

    def check_foreign(self, value: Value) -> bool:
        return isinstance(value, Map)

    def child(self, key: Value) -> Lattice | None:
        """Return the child of a String key, else None."""
        # A Map tells keys apart by their hashes, so only the String is the key.
        return self._by_name.get(key) if isinstance(key, str) else None

    def resolve_key(self, key: Value) -> Value:
        """Return a configured String key as it is, None for any other key."""
        return key if isinstance(key, str) and key in self._by_name else None

    def _arguments(self) -> tuple[object, ...]:
        return (self._by_name,)
