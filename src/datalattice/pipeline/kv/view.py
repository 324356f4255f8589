"""Find the databases in a root, or those that differ between two roots.

Source: docs/spark-kv.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

from datalattice.apps.kv import KV_SECTION
from datalattice.arrow import name_text
from datalattice.cells import EMPTY_INDEX, Index, Map, Signed, Value, same
from datalattice.errors import BadFormat
from datalattice.lattice import parts
from datalattice.pipeline.kv.options import KVOptions
from datalattice.pipeline.options import check_there
from datalattice.pipeline.signatures import check_signed

T = TypeVar("T")


class DatabaseName(NamedTuple):
    """A database, by the texts in its rows."""

    owner: str
    database: str

    def __str__(self) -> str:
        return f"database {self.database!r} of owner {self.owner}"


class DatabasePair(NamedTuple):
    """A database, or a part of one, before and after; None if absent."""

    name: DatabaseName
    before: Index | None
    after: Index | None
    stores: tuple[Index | None, Index | None] | None = None
    """The complete databases, if `before` and `after` are parts of them; otherwise None."""


def differing_databases(before: Value, after: Value, options: KVOptions) -> Iterator[DatabasePair]:
    """Yield the selected databases that differ between two roots, sorted by name.

    before, after: None or the Index of a lattice's sections.
    Cost:   loads the owners and databases that differ, and verifies one signature for each such
            owner; reads no keys.
    Raises: BadSignature: an owner's databases are not signed by their key. BadFormat: two
            different names have the same text. MissingData.
    """
    owners = _unlike(_section(before), _section(after), Signed, options.selects_owner, "owners")
    for owner, cell, was, now in owners:
        # The value before was checked when it was read. If the owner's value is gone, there is
        # nothing to check.
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
            name = DatabaseName(owner, database)
            sides = zip(_below(old, options.prefix), _below(new, options.prefix), strict=True)
            for part, other in sides:
                # The parts with the prefix may be equal although the databases differ elsewhere.
                if not same(part, other):
                    yield DatabasePair(name, part, other, (old, new))


def _unlike(
    before: Value, after: Value, kind: type[T], selects: Callable[[str], bool], what: str
) -> list[tuple[str, Value, T | None, T | None]]:
    """Return (text, name, value before, value after) of the differences of two maps, by text.

    If a name replaced another name with the same text, the later one is returned.
    """
    found: dict[str, tuple[Value, T | None, T | None]] = {}
    sides = [value if isinstance(value, Map) else Map.of(()) for value in (before, after)]
    for cell, _, old, _, new in sides[0].differences(sides[1]):
        name = name_text(cell)
        was, now = old if isinstance(old, kind) else None, new if isinstance(new, kind) else None
        # A name that is not selected may hold anything, so it is not examined further.
        if not selects(name) or (was is None and now is None):
            continue
        if name in found:  # either one name replaced the other, or both exist
            first, first_was, first_now = found[name]
            # Both exist in the same root: rows could not tell them apart.
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
    """Check that the owners and databases named in the options exist.

    Raises: UsageError: one does not.
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
    """Return a map's values of type `kind` by the texts of their keys."""
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
    """Return the parts of a store that contain the keys with a prefix."""
    return [part or None for part in parts(store or EMPTY_INDEX, prefix)]
