"""Comparing: what differs between two values, path by path, touching only what differs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from datalattice.cells.cell import Ref, Value, deref, encode, kid_hash, same
from datalattice.cells.index import Index, differing_nodes
from datalattice.cells.indexparts import IndexPart
from datalattice.cells.maps import Map, Set
from datalattice.cells.message import references
from datalattice.cells.scalars import Keyword
from datalattice.cells.tagged import Record, Signed
from datalattice.cells.triejoin import ABSENT, differing
from datalattice.cells.vectors import Vector

Change = tuple[tuple[Value, ...], object, object]
"""(path, value before, value after); `ABSENT` where there is none."""

SIGNED_VALUE: Final = Keyword("value")
SIGNED_KEY: Final = Keyword("public-key")
SIGNED_SIGNATURE: Final = Keyword("signature")
"""The steps of a path into a Signed cell."""


def changes(before: Value, after: Value) -> Iterator[Change]:
    """Yield what differs between two values, as deep as both are containers of one kind.

    Keys lead into a Map or Index, positions into a Vector or Record, elements into a Set, and
    `:value` into a Signed cell, whose `:signature` is a change only where its value is none. What
    was added or removed is one change with all below it. Any other pair is one change at its path.
    Raises: MissingData: a cell known by hash only is not at hand.
    Cost:   proportional to what differs; equal subtrees are neither loaded nor entered.
    Source: docs/history.md "Differences".
    """
    if same(before, after):
        return
    waiting: list[Iterator[Change]] = [iter([((), before, after)])]
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


def _below(change: Change) -> Iterator[Change] | None:
    """Return the changes one step below a change, None when it is one as a whole."""
    path, a, b = change
    if isinstance(a, Map) and isinstance(b, Map):
        return _entries(path, a.differences(b))
    if isinstance(a, Index) and isinstance(b, Index):
        return _entries(path, IndexPart(a, b).differences(apart=True))
    if isinstance(a, Vector) and isinstance(b, Vector):
        return _positions(path, a, b)
    if isinstance(a, Set) and isinstance(b, Set):
        return _elements(path, a, b)
    if isinstance(a, Signed) and isinstance(b, Signed):
        return _signed(path, a, b)
    if isinstance(a, Record) and isinstance(b, Record) and a.digit == b.digit:
        return _positions(path, a.fields, b.fields)
    return None


def _entries(
    path: tuple[Value, ...], found: Iterator[tuple[Value, bool, Value, bool, Value]]
) -> Iterator[Change]:
    for key, has, mine, had, theirs in found:
        yield (*path, key), mine if has else ABSENT, theirs if had else ABSENT


def _positions(path: tuple[Value, ...], a: Vector, b: Vector) -> Iterator[Change]:
    for at, has, mine, had, theirs in a.differences(b):
        yield (*path, at), mine if has else ABSENT, theirs if had else ABSENT


def _elements(path: tuple[Value, ...], a: Set, b: Set) -> Iterator[Change]:
    for element, has, had in a.differences(b):
        yield (*path, element), element if has else ABSENT, element if had else ABSENT


def _signed(path: tuple[Value, ...], a: Signed, b: Signed) -> Iterator[Change]:
    if a.public_key != b.public_key:
        yield (*path, SIGNED_KEY), a.public_key, b.public_key
    if not same(a.value, b.value):
        yield (*path, SIGNED_VALUE), a.value, b.value
    elif a.signature != b.signature:
        yield (*path, SIGNED_SIGNATURE), a.signature, b.signature


def differing_entries(
    own: Map | Index, other: Map | Index
) -> Iterator[tuple[Value, bytes | None, bytes | None, list[bytes]]]:
    """Yield (key, hash of own value, hash of the other's, names) where two containers differ.

    A hash is nil where there is no entry. `names` are the hashes that lead to the cells of the
    other's value: its own, or those it refers to when it stands inside its parent. Values are not
    loaded.
    Raises: MissingData: a node of a container, or a long key, is not at hand.
            BadFormat: the other is malformed.
    Cost:   as `Map.differences`.
    Source: docs/history.md "Differences".
    """
    if isinstance(other, Map):
        for _, key, has, mine, had, theirs in differing(
            own if isinstance(own, Map) else Map(), other
        ):
            yield (
                deref(key),
                kid_hash(mine) if has else None,
                kid_hash(theirs) if had else None,
                _names(theirs) if had else [],
            )
        return
    for _, own_node, node in differing_nodes(own if isinstance(own, Index) else Index(), other):
        shown = own_node if node is None else node
        assert shown is not None
        kid = None if node is None else node._open()[1]
        yield (
            deref(shown._open()[0]),
            None if own_node is None else kid_hash(own_node._open()[1]),
            None if node is None else kid_hash(kid),
            [] if node is None else _names(kid),
        )


def _names(kid: object) -> list[bytes]:
    return [kid.hash] if isinstance(kid, Ref) else references(encode(kid))
