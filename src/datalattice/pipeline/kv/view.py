"""View: find the databases in a root, or those that differ between two."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

from datalattice.apps.kv import KV_SECTION
from datalattice.cells import Index, Map, Signed, Value, same, to_text
from datalattice.errors import BadFormat, BadSignature
from datalattice.pipeline.kv.options import KVOptions
from datalattice.pipeline.options import check_there

T = TypeVar("T")


class DatabaseName(NamedTuple):
    """A database, by the texts that its rows show."""

    owner: str
    database: str

    def __str__(self) -> str:
        return f"database {self.database!r} of owner {self.owner}"


class Pair(NamedTuple):
    """A database as it was and as it is; nil where it is not there."""

    name: DatabaseName
    before: Index | None
    after: Index | None


def differing(before: Value, after: Value, options: KVOptions) -> Iterator[Pair]:
    """Yield the databases that the options ask for and two roots do not have alike, by name.

    Shapes: before, after: nil or the Index of a lattice's sections.
    Cost:   what differs of owners and databases, and one signature check for each such owner;
            reads no keys.
    Raises: BadSignature: what is under an owner is not signed by the key it names. BadFormat: two
            different names have the same text. MissingData.
    """
    owners = _unlike(_section(before), _section(after), Signed, options.selects_owner, "owners")
    for owner, was, now in owners:
        if now is not None and not now.verify():
            raise BadSignature(f"the databases of owner {owner} are not signed by their key")
        databases = _unlike(
            None if was is None else was.value,
            None if now is None else now.value,
            Index,
            options.selects_database,
            f"databases of owner {owner}",
        )
        for database, old, new in databases:
            pair = Pair(
                DatabaseName(owner, database),
                _below(old, options.prefix),
                _below(new, options.prefix),
            )
            if not same(pair.before, pair.after):
                yield pair


def _unlike(
    before: Value, after: Value, kind: type[T], selects: Callable[[str], bool], what: str
) -> list[tuple[str, T | None, T | None]]:
    """Return (name, value before, value after) of what two maps do not have alike, by name."""
    found: dict[str, tuple[T | None, T | None]] = {}
    sides = [value if isinstance(value, Map) else Map.of(()) for value in (before, after)]
    for cell, _, old, _, new in sides[0].differences(sides[1]):
        name = _text(cell)
        was, now = old if isinstance(old, kind) else None, new if isinstance(new, kind) else None
        if not selects(name) or (was is None and now is None):
            continue
        if name in found:  # one took the place of the other, or both are there
            first_was, first_now = found[name]
            if (was is None) == (first_was is None) or (now is None) == (first_now is None):
                raise _ambiguous(name, what)
            was, now = first_was if was is None else was, first_now if now is None else now
        found[name] = was, now
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
            name = _text(cell)
            if name in found:
                raise _ambiguous(name, what)
            found[name] = value
    return found


def _ambiguous(name: str, what: str) -> BadFormat:
    return BadFormat(f"two {what} have names that read the same: {name}")


def _text(name: Value) -> str:
    return name if isinstance(name, str) else to_text(name)


def _below(store: Index | None, prefix: str) -> Index | None:
    """Return the entries whose keys begin with the bytes of a prefix, as far as those count."""
    found = store.under(prefix) if store is not None and prefix else store
    return found or None
