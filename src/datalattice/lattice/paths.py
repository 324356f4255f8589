"""Paths: reading and writing deep inside a value.

Reading never fails: an impossible step gives None. Writing rebuilds the containers on the way, and
creates missing ones as the lattice defines them; without a lattice it raises.

Source: CAD035 "Writes through a path", "Paths"; docs/cursors.md "Writes through a path";
    docs/design/decisions.md "D10"; docs/node.md "Partial replication"; docs/lattices.md "Keys and
    paths".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from datalattice.cells import (
    EMPTY_INDEX,
    EMPTY_MAP,
    Index,
    List,
    Map,
    Set,
    Value,
    Vector,
    brief,
    same,
    to_cell,
)
from datalattice.errors import NoSuchPath, TypeMismatch, UsageError
from datalattice.lattice.base import Lattice, as_integer
from datalattice.lattice.exactkeys import look_up
from datalattice.lattice.keyed import name_bytes
from datalattice.lattice.owned import SignedLattice

KINDS: Final = "Map, Index, Vector, List or Set"


def get_in(value: Value, keys: Sequence[Value]) -> Value:
    """Return the value at the end of `keys`, None if a step is missing or not possible.

    Steps:  the key of a Map or Index; the Integer position of a Vector or List; in a Set, whether
            the key is a member.
    """
    for key in keys:
        if value is None:
            return None
        value = value_below(value, key)
    return value


def values_along(value: Value, keys: Sequence[Value]) -> list[Value]:
    """Return `value` and, for each key, the value there, None once a step leads nowhere.

    The last one is what `get_in` returns; `assoc_in` takes them all, and reads none again.
    """
    found = [value]
    for key in keys:
        value = None if value is None else value_below(value, key)
        found.append(value)
    return found


def value_below(container: Value, key: Value) -> Value:
    """Return the value one key further, None if it is missing or not possible."""
    if isinstance(container, Index):
        # An Index has byte-like keys only; any other key cannot be in it.
        return None if name_bytes(key) is None else look_up(container, key)
    if isinstance(container, Map):
        return container.get(key)
    if isinstance(container, (Vector, List)):
        # Python's negative positions are refused: paths mean the same in every language.
        position = as_integer(key)
        if position is None or not 0 <= position < len(container):
            return None
        return container[position]
    if isinstance(container, Set):
        return key in container
    return None


def select(value: Value, paths: Sequence[Sequence[Value]]) -> Value:
    """Return the parts of `value` at `paths`, in their containers; None if there are none.

    An empty path selects the entire value, which is returned itself. Only Maps and Indexes are
    entered, since a part of a Vector or a Signed value has no meaning alone.
    """
    # An empty path selects the complete value, with the parts at all other paths.
    if any(not path for path in paths):
        return value
    if not isinstance(value, (Map, Index)):
        return None
    kept: Value = None
    for position, path in enumerate(paths):
        key = path[0]
        # All paths with the same first key were selected together.
        if any(same(key, earlier[0]) for earlier in paths[:position]):
            continue
        below = [other[1:] for other in paths if same(other[0], key)]
        part = select(value_below(value, key), below)
        if part is None:
            continue
        if isinstance(value, Index):
            # Under the stored key cell, so that the part has the hash that it has in the root.
            stored = value.key_cell(key)
            kept = (kept if isinstance(kept, Index) else EMPTY_INDEX).put(stored, part)
        else:
            kept = (kept if isinstance(kept, Map) else EMPTY_MAP).put(key, part)
    return kept


def checked_path(lattice: Lattice, path: Sequence[object]) -> tuple[Value, ...]:
    """Return the keys of a path from the root, in the canonical form of `lattice`.

    Raises: NoSuchPath: the lattice has no such key. UsageError: the path enters a signed value.
    """
    keys: list[Value] = []
    below: Lattice | None = lattice
    for given in path:
        # A part of a signed value cannot be verified, so it cannot be replicated alone.
        if isinstance(below, SignedLattice):
            raise UsageError(
                f"{path!r} enters a signed value, which is replicated as a unit: end the path at it"
            )
        key = to_cell(given)
        key = key if below is None else below.canonical_key(key)
        below = None if below is None else below.child(key)
        if below is None:
            raise NoSuchPath(f"the lattice has nothing at {brief(key)} of {brief(tuple(path))}")
        keys.append(key)
    return tuple(keys)


def assoc_in(
    value: Value,
    keys: Sequence[Value],
    new: Value,
    lattice: Lattice | None = None,
    along: Sequence[Value] = (),
) -> Value:
    """Return `value` with `new` at the end of `keys`; with no keys, `new`.

    Missing containers on the way become their lattice's zero. If `new` is already there, the result
    is `value` itself.
    along:  `values_along(value, keys)` if the caller has it.
    Raises: NoSuchPath: a container is missing and no lattice defines it. TypeMismatch: a step leads
            through something other than a container, or a key does not fit one.
    """
    if not keys:
        return new
    containers: list[Value] = []
    places: list[Value] = []
    current = value
    for depth, given in enumerate(keys):
        if current is None:
            # The lattice decides whether a missing container is a Map or an Index.
            current = _create(lattice, keys, depth)
        if not isinstance(current, (Map, Index, Vector, List, Set)):
            raise TypeMismatch(
                f"cannot write through a {type(current).__name__} at depth {depth} of "
                f"{_show(keys)}: a {KINDS} is required"
            )
        # "`"data"` and `:data` write the same cell" (docs/design/decisions.md "D10").
        key = given if lattice is None else lattice.canonical_key(given)
        containers.append(current)
        places.append(key)
        # A container that was created here, or another form of the key, was not read before.
        if along and key is given and current is along[depth]:
            current = along[depth + 1]
        else:
            current = value_below(current, key)
        lattice = None if lattice is None else lattice.child(key)
    result = new
    # From the innermost container outwards: each is rebuilt around the one below.
    for depth in range(len(places) - 1, -1, -1):
        result = assoc(containers[depth], places[depth], result)
    return result


def assoc(container: Value, key: Value, new: Value) -> Value:
    """Return the container with `new` at `key`; the container itself if it is there already.

    A Vector takes positions 0 to its length, a List 0 to its length - 1. A Set takes True to add
    the key and False to remove it.
    Raises: TypeMismatch: the key or value does not fit the container.
    """
    if isinstance(container, Map):
        return container.put(key, new)
    if isinstance(container, Index):
        if name_bytes(key) is None:
            raise TypeMismatch(
                f"a key of an Index is not bytes, str, Keyword, Symbol or Address: {brief(key)}"
            )
        return container.put(key, new)
    if isinstance(container, Vector):
        at = _position(key, len(container) + 1)
        # A Vector grows at its end, so the position after the last element is allowed.
        return container.append(new) if at == len(container) else container.set(at, new)
    if isinstance(container, List):
        # A List is rebuilt, since it has no operation that replaces one element.
        items = list(container)
        at = _position(key, len(items))
        if same(items[at], new):
            return container
        items[at] = new
        return List.of(items)
    if isinstance(container, Set):
        # By identity: in Python 1 equals True, but here it is another value.
        if new is True:
            return container.add(key)
        if new is False:
            return container.remove(key)
        raise TypeMismatch(f"a Set takes True (add) or False (remove) at a key, got {brief(new)}")
    raise TypeMismatch(f"cannot write into a {type(container).__name__}: a {KINDS} is required")


def _position(key: Value, end: int) -> int:
    position = as_integer(key)
    if position is not None and 0 <= position < end:
        return position
    raise TypeMismatch(f"a position is not an int from 0 to {end - 1}: {brief(key)}")


def _create(lattice: Lattice | None, keys: Sequence[Value], depth: int) -> Value:
    found = f"there is no value at depth {depth} of {_show(keys)}"
    if lattice is None:
        raise NoSuchPath(f"{found}, and no lattice defines what to create")
    zero = lattice.zero()
    # A lattice of leaves has no container to create.
    if zero is None:
        raise NoSuchPath(f"{found}, and {lattice!r} has no container to create")
    return zero


def _show(keys: Sequence[Value]) -> str:
    return "[" + brief(tuple(keys))[1:-1].rstrip(",") + "]"
