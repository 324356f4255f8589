"""Inputs: what a job works on - stores, folders of nodes, archives - each at a root of its own.

    data/node            the present root of the folder of a node
    data/store@release   that pin of a store; what `lattice show` takes may follow the @
    backup.archive       what `lattice store export` wrote

An input that was resolved names its root by hash, so whatever is committed meanwhile, the driver
and all tasks read the same.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from datalattice.cells import Value
from datalattice.client import root_named
from datalattice.errors import UsageError
from datalattice.store import CellStore, store_in

HOLD_SECONDS: Final = 24 * 60 * 60
"""How long the root of an input is leased; the lease is given back when the job is done."""

OPEN_MAX: Final = 96
"""Stores that one process of a job keeps open; the one used longest ago goes. The address space of
a process has room for the indexes of about 127, at a terabyte each."""

STAGED_MAX: Final = 16
"""Stores of tasks that are kept open besides."""

CACHE_BYTES: Final = 4 * 1024 * 1024
"""Decoded cells kept of each of them."""


@dataclass(frozen=True, slots=True)
class JobInput:
    """One input: where it is, and the hash of its root."""

    name: str
    """As it was given."""
    path: str
    """The folder of its store, or the file of an archive."""
    root: bytes = b""
    """Hash of its root; empty for an archive that was not unpacked."""

    @property
    def is_archive(self) -> bool:
        """Whether its cells are not in a store yet."""
        return not self.root


def resolve_input(name: str) -> JobInput:
    """Return the input that a text names: a path, and perhaps `@` and which root is meant.

    Raises: UsageError: there is no store, node or archive, no such root, or nothing in it.
            StoreError: the store cannot be read.
    """
    found = _find(name)
    ref = "HEAD"
    if found is None and "@" in name:
        path, _, ref = name.rpartition("@")
        found = _find(path)
        if found is None and path.endswith("@"):  # a time, written as `lattice show` takes it
            found = _find(path[:-1])
        if found is not None and found.is_file():
            raise UsageError(f"{name}: an archive has one root; leave out @{ref}")
    if found is None:
        raise UsageError(
            f"{name}: no store, folder of a node, or archive here; "
            "name one, a folder perhaps with @ and a root: HEAD~2, a pin, a time or a hash"
        )
    path = str(found.absolute())
    if found.is_file():
        return JobInput(name, path)
    with CellStore.open(path, read_only=True) as store:
        if store.root_hash() is None:
            raise UsageError(f"{name}: nothing was ever committed there")
        return JobInput(name, path, root_named(store, ref))


def _find(name: str) -> Path | None:
    """Return the folder of a store, or the file, at a path; None: there is neither."""
    if not name or "\0" in name:
        return None
    path = Path(name).expanduser()
    return store_in(path) or (path if path.is_file() else None)


@contextmanager
def leased(inputs: Sequence[JobInput]) -> Iterator[None]:
    """Keep the roots of inputs while the block runs, whatever their writers collect.

    A folder that cannot be written to has no writer either, and needs no lease.
    Raises: MissingData: a root is not whole.
    """
    with ExitStack() as held:
        for one in inputs:
            if one.is_archive or not os.access(one.path, os.W_OK):
                continue
            with CellStore.open(one.path, read_only=True, cache_bytes=CACHE_BYTES) as store:
                held.enter_context(store.lease(one.root, HOLD_SECONDS))
        yield


class OpenStores:
    """Stores open for reading, by path: about `most`, the one used longest ago is closed.

    A process of Spark runs many tasks, and most of them need the same stores. What a task has asked
    for stays open until it says that it is done.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._process = os.getpid()
        self._stores: OrderedDict[str, CellStore] = OrderedDict()
        self._needed: set[str] = set()

    def get(self, path: str) -> CellStore:
        """Return the store at a path, opened read-only, for the work that is going on."""
        if self._process != os.getpid():  # what was inherited through a fork is not ours
            self._process, self._stores, self._needed = os.getpid(), OrderedDict(), set()
        store = self._stores.get(path)
        if store is None:
            self._make_room()
            store = CellStore.open(path, read_only=True, cache_bytes=CACHE_BYTES)
            self._stores[path] = store
        self._stores.move_to_end(path)
        self._needed.add(path)
        return store

    def _make_room(self) -> None:
        idle = [path for path in self._stores if path not in self._needed]
        for path in idle[: max(0, len(self._stores) - self._most + 1)]:
            self._stores.pop(path).close()

    def done(self) -> None:
        """Take note that no value is in use any more, of any of them."""
        self._needed.clear()

    def close(self) -> None:
        """Close all."""
        self.done()
        while self._stores:
            self._stores.popitem()[1].close()


open_stores: Final = OpenStores(OPEN_MAX)
"""Those of this process that jobs are given."""

staged_stores: Final = OpenStores(STAGED_MAX)
"""Those that tasks made. They are asked for at each cell, so that any number can be read from."""


def staged_encoding(path: str, hash: bytes) -> bytes | None:
    """Return the encoding of a cell of a store that a task made."""
    found = staged_stores.get(path).get_encoding(hash)
    staged_stores.done()
    return found


def root_of(one: JobInput) -> Value:
    """Return the root of an input, from the store that this process keeps open."""
    return open_stores.get(one.path).load(one.root)
