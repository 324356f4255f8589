"""View: find the databases in a root, or those that differ between two."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple, TypeVar

from datalattice.apps.kv import KV_SECTION
from datalattice.cells import Index, Map, Signed, Value, same, to_text
from datalattice.errors import BadFormat, BadSignature
from datalattice.pipeline.kv.options import KVOptions
from datalattice.pipeline.options import bad_option

T = TypeVar("T")

NAMED_MAX: Final = 20
"""Most names that an error lists."""


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
    Cost:   one signature check for each owner that differs; reads no keys.
    Raises: BadSignature: what is under an owner is not signed by the key it names. BadFormat: two
            different names have the same text. MissingData.
    """
    old, new = _owners(before), _owners(after)
    for owner in sorted({*old, *new}):
        was, now = old.get(owner), new.get(owner)
        if not options.selects_owner(owner) or (was and now and same(was, now)):
            continue
        if now is not None and not now.verify():
            raise BadSignature(f"the databases of owner {owner} are not signed by their key")
        ours = _stores(was, owner, options.selects_database)
        theirs = _stores(now, owner, options.selects_database)
        for database in sorted({*ours, *theirs}):
            pair = Pair(
                DatabaseName(owner, database),
                _below(ours.get(database), options.prefix),
                _below(theirs.get(database), options.prefix),
            )
            if not same(pair.before, pair.after):
                yield pair


def check_named(root: Value, options: KVOptions) -> None:
    """Check that the owners and databases which the options name are there.

    Raises: UsageError: one is not; reading nothing in silence would hide the mistake.
    """
    owners = _owners(root)
    _check("owner", options.owners, owners)
    there: dict[str, None] = {}
    for owner, signed in owners.items():
        if options.databases and options.selects_owner(owner):
            there |= dict.fromkeys(_stores(signed, owner, lambda _name: True))
    _check("database", options.databases, there)


def _check(option: str, named: tuple[str, ...], there: Iterable[str]) -> None:
    known = sorted(there)
    for name in named:
        if name not in known:
            listed = ", ".join(known[:NAMED_MAX]) or "none at all"
            raise bad_option(option, name, f"the store has no such {option}; it has: {listed}")


def _owners(root: Value) -> dict[str, Signed]:
    section = root.get(KV_SECTION) if isinstance(root, Index) else None
    found: dict[str, Signed] = {}
    for owner, signed in section.entries() if isinstance(section, Map) else ():
        if isinstance(signed, Signed):
            _add(found, _text(owner), signed, "owners")
    return found


def _stores(signed: Signed | None, owner: str, selects: Callable[[str], bool]) -> dict[str, Index]:
    databases = None if signed is None else signed.value
    found: dict[str, Index] = {}
    for cell, store in databases.entries() if isinstance(databases, Map) else ():
        name = _text(cell)
        if isinstance(store, Index) and selects(name):
            _add(found, name, store, f"databases of owner {owner}")
    return found


def _add(found: dict[str, T], name: str, value: T, what: str) -> None:
    if name in found:
        raise BadFormat(f"two {what} have names that read the same: {name}")
    found[name] = value


def _text(name: Value) -> str:
    return name if isinstance(name, str) else to_text(name)


def _below(store: Index | None, prefix: str) -> Index | None:
    """Return the entries whose keys begin with the bytes of a prefix, as far as those count."""
    found = store.under(prefix) if store is not None and prefix else store
    return found or None
