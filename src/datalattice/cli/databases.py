"""Databases: which one a command means, how it is read and written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from datalattice.apps.kv import KV_SECTION, Database
from datalattice.cells import Index, Map, Signed, Value
from datalattice.cli.folder import choose_holder, existing_folder, folder_of
from datalattice.cli.values import parse_owner
from datalattice.client import Folder, edit, reading
from datalattice.crypto import KeyPair
from datalattice.cursors import RootLattice
from datalattice.lattice import root_lattice

T = TypeVar("T")


def databases_of(root: Value) -> list[tuple[bytes, str]]:
    """Return (owner, name) of the databases in a root value; owners are public keys here.

    What foreign owners filed under a name that no database has is left out.
    """
    section = root.get(KV_SECTION) if isinstance(root, Index) else None
    found: list[tuple[bytes, str]] = []
    for owner, cell in section.entries() if isinstance(section, Map) else ():
        stores = cell.value if isinstance(cell, Signed) else None
        if isinstance(owner, bytes) and isinstance(stores, Map):
            found += [(owner, name) for name in stores if isinstance(name, str) and name]
    return sorted(found)


def choose_database(folder: Folder, root: Value, name: str, owner: str | None) -> bytes:
    """Return the owner whose database is meant: the named one, else our own, else the only one."""
    holders = [one for one, held in databases_of(root) if held == name]
    wanted = None if owner is None else parse_owner(owner)
    return choose_holder(folder, holders, wanted, f"database {name!r}", "lattice db list")


@contextmanager
def reading_database(directory: Path | None, name: str, owner: str | None) -> Iterator[Database]:
    """Give a database to read from, as it is on disk now."""
    folder = existing_folder(directory)
    with reading(folder) as root:
        chosen = choose_database(folder, root, name, owner)
        yield Database.at(RootLattice(root_lattice(), root), chosen, name)


def edit_database(directory: Path | None, name: str, change: Callable[[Database], T]) -> T:
    """Make one change of a database of our own; return what it returned, when it is on disk."""

    def run(cursor: RootLattice, keys: KeyPair) -> T:
        return change(Database.at(cursor, keys.public_key, name))

    return edit(folder_of(directory), run)
