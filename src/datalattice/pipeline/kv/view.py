"""View: find the databases in a root, or those that differ between two."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

from datalattice.apps.kv import KV_SECTION
from datalattice.cells import EMPTY_INDEX, Index, Map, Signed, Value, same
from datalattice.errors import BadFormat
from datalattice.lattice import parts
from datalattice.pipeline.kv.options import KVOptions
from datalattice.pipeline.options import check_there
from datalattice.pipeline.owners import check_signed, name_text

T = TypeVar("T")


class DatabaseName(NamedTuple):
    """A database, by the texts that its rows show."""

    owner: str
    database: str

    def __str__(self) -> str:
        return f"database {self.database!r} of owner {self.owner}"


class Stores(NamedTuple):
    """The stores of a database before and after; nil where there is none."""

    before: Index | None
    after: Index | None


class Pair(NamedTuple):
    """A database as it was and as it is; nil where it is not there."""

    name: DatabaseName
    before: Index | None
    after: Index | None
    stores: Stores | None = None
    """The stores of which `before` and `after` are parts; None: they are all there is."""


def differing(before: Value, after: Value, options: KVOptions) -> Iterator[Pair]:
    """Yield the databases that the options ask for and two roots do not have alike, by name.

    Shapes: before, after: nil or the Index of a lattice's sections.
    Cost:   what differs of owners and databases, and one signature check for each such owner;
            reads no keys.
    Raises: BadSignature: what is under an owner is not signed by their key. BadFormat: two
            different names have the same text. MissingData.
    """
    owners = _unlike(_section(before), _section(after), Signed, options.selects_owner, "owners")
    for owner, cell, was, now in owners:
        if now is not None:
            check_signed(cell, now, "databases")
        databases = _unlike(
            None if was is None else was.value,
            None if now is None else now.value,
            Index,
            options.selects_database,
            f"databases of owner {owner}",
        )
        for database, _, old, new in databases:
            name, stores = DatabaseName(owner, database), Stores(old, new)
            sides = zip(_below(old, options.prefix), _below(new, options.prefix), strict=True)
            for part, other in sides:
                if not same(part, other):
                    yield Pair(name, part, other, stores)


def _unlike(
    before: Value, after: Value, kind: type[T], selects: Callable[[str], bool], what: str
) -> list[tuple[str, Value, T | None, T | None]]:
    """Return (text, name, value before, value after) of what two maps do not have alike, by name.

    Where one name took the place of another with the same text, it is the later.
    """
    found: dict[str, tuple[Value, T | None, T | None]] = {}
    sides = [value if isinstance(value, Map) else Map.of(()) for value in (before, after)]
    for cell, _, old, _, new in sides[0].differences(sides[1]):
        name = name_text(cell)
        was, now = old if isinstance(old, kind) else None, new if isinstance(new, kind) else None
        if not selects(name) or (was is None and now is None):
            continue
        if name in found:  # one took the place of the other, or both are there
            first, first_was, first_now = found[name]
            if (was is None) == (first_was is None) or (now is None) == (first_now is None):
                raise _ambiguous(name, what)
            if now is None:
                found[name] = first, was, first_now
            else:
                found[name] = cell, first_was, now
            continue
        found[name] = cell, was, now
    return [(name, *found[name]) for name in sorted(found)]


def check_named(root: Value, options: KVOptions) -> None:
    """Check that the owners and databases which the options name are there.

    Raises: UsageError: one is not.
    """
    owners = _named(_section(root), Signed, "owners")
    check_there("owner", options.owners, owners)
    there: dict[str, None] = {}
    for owner, signed in owners.items():
        if options.databases and options.selects_owner(owner):
            there |= dict.fromkeys(_named(signed.value, Index, f"databases of owner {owner}"))
    check_there("database", options.databases, there)


def _section(root: Value) -> Value:
    return root.get(KV_SECTION) if isinstance(root, Index) else None


def _named(values: Value, kind: type[T], what: str) -> dict[str, T]:
    """Return the values of a map by the texts of their keys."""
    found: dict[str, T] = {}
    for cell, value in values.entries() if isinstance(values, Map) else ():
        if isinstance(value, kind):
            name = name_text(cell)
            if name in found:
                raise _ambiguous(name, what)
            found[name] = value
    return found


def _ambiguous(name: str, what: str) -> BadFormat:
    return BadFormat(f"two {what} have names that read the same: {name}")


def _below(store: Index | None, prefix: str) -> list[Index | None]:
    """Return the parts of a store in which the keys that begin with a prefix are."""
    return [part or None for part in parts(store or EMPTY_INDEX, prefix)]
