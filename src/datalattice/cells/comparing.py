"""Comparing: the differences between two values, path by path, visiting only what differs.

Source: docs/design/foreign-data.md "Work"; docs/history.md "Differences".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from datalattice.cells.cell import Ref, Value, deref, encode, same
from datalattice.cells.index import Index, differing_nodes
from datalattice.cells.indexparts import IndexPart
from datalattice.cells.maps import Map, Set
from datalattice.cells.message import references
from datalattice.cells.scalars import Keyword
from datalattice.cells.tagged import Record, Signed
from datalattice.cells.triejoin import ABSENT, arriving
from datalattice.cells.vectors import Vector
from datalattice.cells.work import Work

PathChange = tuple[tuple[Value, ...], object, object]
"""(path, value before, value after); `ABSENT` for a missing value."""

SIGNED_VALUE: Final = Keyword("value")
SIGNED_KEY: Final = Keyword("public-key")
SIGNED_SIGNATURE: Final = Keyword("signature")
"""The path steps into a Signed cell."""


def changes(before: Value, after: Value) -> Iterator[PathChange]:
    """Yield the differences between two values, descending where both are containers of one type.

    Path steps are keys of a Map or Index, positions of a Vector or Record, elements of a Set, and
    `:value` of a Signed cell, whose `:signature` is compared only if the values are equal. An added
    or removed subtree is one change, and so is any other pair of values.
    Raises: MissingData: a cell is missing.
    Cost:   proportional to the difference; equal subtrees are not loaded.
    """
    if same(before, after):
        return
    waiting: list[Iterator[PathChange]] = [iter([((), before, after)])]
    while waiting:
        found = next(waiting[-1], None)
        if found is None:
            waiting.pop()
            continue
        below = _below(found)
        if below is None:
            yield found
        else:
            waiting.append(below)


def _below(change: PathChange) -> Iterator[PathChange] | None:
    """Return the changes one step below a change, None if it has no steps."""
    path, a, b = change
    if isinstance(a, Map) and isinstance(b, Map):
        return _entries(path, a.differences(b))
    if isinstance(a, Index) and isinstance(b, Index):
        # Apart: of two keys with the same first 32 bytes one was removed and the other added.
        return _entries(path, IndexPart(a, b).differences(apart=True))
    if isinstance(a, Vector) and isinstance(b, Vector):
        return _positions(path, a, b)
    if isinstance(a, Set) and isinstance(b, Set):
        return _elements(path, a, b)
    if isinstance(a, Signed) and isinstance(b, Signed):
        return _signed(path, a, b)
    # The digit gives the fields their meaning, so fields of two digits are not compared.
    if isinstance(a, Record) and isinstance(b, Record) and a.digit == b.digit:
        return _positions(path, a.fields, b.fields)
    return None


def _entries(
    path: tuple[Value, ...], found: Iterator[tuple[Value, bool, Value, bool, Value]]
) -> Iterator[PathChange]:
    for key, has, mine, had, theirs in found:
        yield (*path, key), mine if has else ABSENT, theirs if had else ABSENT


def _positions(path: tuple[Value, ...], a: Vector, b: Vector) -> Iterator[PathChange]:
    for at, has, mine, had, theirs in a.differences(b):
        yield (*path, at), mine if has else ABSENT, theirs if had else ABSENT


def _elements(path: tuple[Value, ...], a: Set, b: Set) -> Iterator[PathChange]:
    for element, has, had in a.differences(b):
        yield (*path, element), element if has else ABSENT, element if had else ABSENT


def _signed(path: tuple[Value, ...], a: Signed, b: Signed) -> Iterator[PathChange]:
    # Another signer is a change by itself, whatever was signed.
    if a.public_key != b.public_key:
        yield (*path, SIGNED_KEY), a.public_key, b.public_key
    if not same(a.value, b.value):
        yield (*path, SIGNED_VALUE), a.value, b.value
    # Another value needs another signature, so only a signature that differs alone is news.
    elif a.signature != b.signature:
        yield (*path, SIGNED_SIGNATURE), a.signature, b.signature


def arrivals(
    own: Map | Index, other: Map | Index, work: Work | None = None
) -> Iterator[tuple[Value, Value, Value]]:
    """Yield (key, own value, other value) of entries that own lacks or has with another value.

    The own value is None if absent. Entries that only own has are not loaded.
    Raises: MissingData: a cell is missing. BadFormat: other is malformed. WorkExceeded: the budget
            is spent.
    Cost:   the part of other that differs, charged to `work`.
    """
    for key, held, kid in _arriving(own, other, work):
        yield key, None if held is ABSENT else deref(held), deref(kid)


def arriving_names(
    own: Map | Index, other: Map | Index, work: Work | None = None
) -> Iterator[tuple[Value, list[bytes]]]:
    """Yield (key, hashes) of entries that own lacks or has with another value.

    The hashes name the cells of other's value: its own hash, or for an embedded value those that it
    references. Values are not loaded. Raises and costs as `arrivals`.
    """
    for key, _, kid in _arriving(own, other, work):
        # A branch is named by its hash; an embedded value by what it refers to.
        yield key, [kid.hash] if isinstance(kid, Ref) else references(encode(kid))


def _arriving(
    own: Map | Index, other: Map | Index, work: Work | None
) -> Iterator[tuple[Value, object, object]]:
    if isinstance(other, Map):
        # Own of another type has no entry in common, and counts as empty.
        for key, held, kid in arriving(own if isinstance(own, Map) else Map(), other, work):
            yield deref(key), held, kid
        return
    base = own if isinstance(own, Index) else Index()
    for _, own_node, node in differing_nodes(base, other, own_alone=False, work=work):
        if node is not None:
            entry = node._open()
            yield deref(entry[0]), ABSENT if own_node is None else own_node._open()[1], entry[1]
