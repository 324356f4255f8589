"""Paths: reading and writing a place deep inside a value.

Reading never fails: a step that cannot be made gives nil. Writing rebuilds the containers on the
way, and asks the lattice what to create where nothing is; it never guesses.
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
    """Return the value at the end of `keys`, nil when a step is missing or not a data structure.

    Steps:  the key of a Map or Index, the Integer position of a Vector or List; in a Set, whether
            the key is a member.
    Source: CAD035 "Paths"; docs/lattices.md "Keys and paths".
    """
    for key in keys:
        if value is None:
            return None
        value = step(value, key)
    return value


def step(container: Value, key: Value) -> Value:
    """Return the value one key further, nil when it is missing or there is no data structure.

    Source: CAD035 "Paths"; docs/lattices.md "Keys and paths".
    """
    if isinstance(container, Index):
        return None if name_bytes(key) is None else look_up(container, key)
    if isinstance(container, Map):
        return container.get(key)
    if isinstance(container, (Vector, List)):
        position = as_integer(key)
        if position is None or not 0 <= position < len(container):
            return None
        return container[position]
    if isinstance(container, Set):
        return key in container
    return None


def select(value: Value, paths: Sequence[Sequence[Value]]) -> Value:
    """Return what of `value` lies at `paths`, in the containers that lead there.

    Nil when nothing does. A path of no keys selects the whole value, which is returned itself.
    Only Maps and Indexes are entered: a Vector or a Signed value has no meaning without its rest.
    Source: docs/node.md "Partial replication".
    """
    if any(not path for path in paths):
        return value
    if not isinstance(value, (Map, Index)):
        return None
    kept: Value = None
    for position, path in enumerate(paths):
        key = path[0]
        if any(same(key, earlier[0]) for earlier in paths[:position]):
            continue
        below = [other[1:] for other in paths if same(other[0], key)]
        part = select(step(value, key), below)
        if part is None:
            continue
        if isinstance(value, Index):
            stored = value.key_cell(key)
            kept = (kept if isinstance(kept, Index) else EMPTY_INDEX).put(stored, part)
        else:
            kept = (kept if isinstance(kept, Map) else EMPTY_MAP).put(key, part)
    return kept


def canonical_path(lattice: Lattice, path: Sequence[object]) -> tuple[Value, ...]:
    """Return the keys of a path from the root as they stand in a value of `lattice`.

    Raises: NoSuchPath: a key that the lattice does not have. UsageError: one inside a signed value.
    Source: docs/node.md "Partial replication".
    """
    keys: list[Value] = []
    below: Lattice | None = lattice
    for given in path:
        if isinstance(below, SignedLattice):
            raise UsageError(f"{path!r} enters a signed value, which is replicated as a whole")
        key = to_cell(given)
        key = key if below is None else below.canonical_key(key)
        below = None if below is None else below.child(key)
        if below is None:
            raise NoSuchPath(f"the lattice has nothing at {brief(key)} of {brief(tuple(path))}")
        keys.append(key)
    return tuple(keys)


def assoc_in(
    value: Value, keys: Sequence[Value], new: Value, lattice: Lattice | None = None
) -> Value:
    """Return `value` with `new` at the end of `keys`.

    Containers on the way that are nil become their lattice's zero.

    Where `new` is already there the result is `value` itself. No keys: `new`.
    Raises: NoSuchPath: a step leads through nothing, and no lattice says what to create.
            TypeMismatch: a step leads through something that is not a data structure, or a key does
            not fit one.
    Source: CAD035 "Writes through a path"; docs/cursors.md "Writes through a path";
            docs/design/decisions.md "D10".
    """
    if not keys:
        return new
    containers: list[Value] = []
    places: list[Value] = []
    current = value
    for depth, given in enumerate(keys):
        if current is None:
            current = _create(lattice, keys, depth)
        if not isinstance(current, (Map, Index, Vector, List, Set)):
            raise TypeMismatch(
                f"cannot write through a {type(current).__name__} at depth {depth} of "
                f"{_show(keys)}: a {KINDS} is needed"
            )
        key = given if lattice is None else lattice.canonical_key(given)
        containers.append(current)
        places.append(key)
        current = step(current, key)
        lattice = None if lattice is None else lattice.child(key)
    result = new
    for depth in range(len(places) - 1, -1, -1):
        result = assoc(containers[depth], places[depth], result)
    return result


def assoc(container: Value, key: Value, new: Value) -> Value:
    """Return a container with `new` at `key`: the container itself when it is there already.

    A Vector takes positions 0 to its length; a List 0 to its length - 1; a Set takes True (a
    member) and False (none).
    Raises: TypeMismatch: the key or value does not fit the container.
    Source: CAD035 "Writes through a path"; docs/cursors.md "Writes through a path".
    """
    if isinstance(container, Map):
        return container.put(key, new)
    if isinstance(container, Index):
        if name_bytes(key) is None:
            raise TypeMismatch(
                f"a key of an Index is bytes, str, Keyword, Symbol or Address, got {brief(key)}"
            )
        return container.put(key, new)
    if isinstance(container, Vector):
        at = _position(key, len(container) + 1)
        return container.append(new) if at == len(container) else container.set(at, new)
    if isinstance(container, List):
        items = list(container)
        at = _position(key, len(items))
        if same(items[at], new):
            return container
        items[at] = new
        return List.of(items)
    if isinstance(container, Set):
        if new is True:
            return container.add(key)
        if new is False:
            return container.remove(key)
        raise TypeMismatch(f"a Set holds True (member) or False at a key, got {brief(new)}")
    raise TypeMismatch(f"cannot write into a {type(container).__name__}: a {KINDS} is needed")


def _position(key: Value, end: int) -> int:
    position = as_integer(key)
    if position is not None and 0 <= position < end:
        return position
    raise TypeMismatch(f"a position here is an int from 0 to {end - 1}, got {brief(key)}")


def _create(lattice: Lattice | None, keys: Sequence[Value], depth: int) -> Value:
    place = f"nothing is there at depth {depth} of {_show(keys)}"
    if lattice is None:
        raise NoSuchPath(f"{place}, and no lattice says what to create")
    zero = lattice.zero()
    if zero is None:
        raise NoSuchPath(f"{place}, and {lattice!r} has nothing to create")
    return zero


def _show(keys: Sequence[Value]) -> str:
    return "[" + brief(tuple(keys))[1:-1].rstrip(",") + "]"
