"""Inputs of jobs: stores, folders of nodes and archives, each at one root.

    data/node            the current root of a node's folder
    data/store@release   a pin of a store; any reference of `lattice show` may follow the @
    backup.archive       a file of `lattice disk export`

A resolved input names its root by hash, so the driver and all tasks read the same root, even if
others are committed meanwhile.

Source: docs/spark-jobs.md; docs/history.md.
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

_HOLD_SECONDS: Final = 24 * 60 * 60
"""Duration of the lease on an input's root; it is released when the job ends."""

_OPEN_MAX: Final = 96
"""Most stores that a process keeps open; the least recently used is closed. The address space holds
the indexes of about 127 stores of a terabyte each."""

STAGED_MAX: Final = 16
"""Most stores of tasks that are kept open in addition."""

CACHE_BYTES: Final = 4 * 1024 * 1024
"""Cache of decoded cells of each open store."""


@dataclass(frozen=True, slots=True)
class JobInput:
    """A path, and the hash of the root to read there."""

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
    """Return the input of a text: a path, optionally followed by `@` and a root.

    Raises: UsageError: there is no store, node or archive, no such root, or the store is empty.
            StoreError: the store cannot be read.
    """
    found = _find(name)
    ref = "HEAD"
    if found is None and "@" in name:
        # The last one: a folder's name may contain `@` as well.
        path, _, ref = name.rpartition("@")
        found = _find(path)
        if found is None and path.endswith("@"):  # "path@@time", a time of `lattice show`
            found = _find(path[:-1])
        # An archive contains one root only.
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
        # An empty store would merge without an effect, which would hide a wrong path.
        if store.root_hash() is None:
            raise UsageError(f"{name}: nothing was ever committed there")
        return JobInput(name, path, root_named(store, ref))


def _find(name: str) -> Path | None:
    """Return the folder of a store, or the file, at a path; None if there is neither."""
    # The operating system refuses such paths with errors of its own.
    if not name or "\0" in name:
        return None
    path = Path(name).expanduser()
    # A file can only be an archive: a store and a node are folders.
    return store_in(path) or (path if path.is_file() else None)


@contextmanager
def leased(inputs: Sequence[JobInput]) -> Iterator[None]:
    """Keep the roots of inputs from being collected during the block.

    A folder that is not writable has no writer that collects, so it needs no lease.
    Raises: MissingData: a root is incomplete.
    """
    with ExitStack() as held:
        for one in inputs:
            # Nothing collects the cells of an archive.
            if one.is_archive or not os.access(one.path, os.W_OK):
                continue
            with CellStore.open(one.path, read_only=True, cache_bytes=CACHE_BYTES) as store:
                held.enter_context(store.lease(one.root, _HOLD_SECONDS))
        yield


class OpenStores:
    """A cache of about `most` stores open for reading; the least recently used is closed.

    A Spark process runs many tasks, most of which need the same stores. A store stays open at least
    until the task that requested it calls `done`.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._process = os.getpid()
        self._stores: OrderedDict[str, CellStore] = OrderedDict()
        self._needed: set[str] = set()

    def get(self, path: str) -> CellStore:
        """Return the store at a path, open for reading until `done`."""
        if self._process != os.getpid():  # after a fork the parent still uses its stores
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
        # A needed store stays open beyond the limit: its values load cells on access.
        idle = [path for path in self._stores if path not in self._needed]
        for path in idle[: max(0, len(self._stores) - self._most + 1)]:
            self._stores.pop(path).close()

    def done(self) -> None:
        """Allow closing: no value of any store is in use any more."""
        self._needed.clear()

    def close(self) -> None:
        """Close all stores."""
        self.done()
        while self._stores:
            self._stores.popitem()[1].close()


open_stores: Final = OpenStores(_OPEN_MAX)
"""Inputs and base of this process's jobs."""

staged_stores: Final = OpenStores(STAGED_MAX)
"""Stores that tasks made; requested for each cell, so any number of them can be read."""


def staged_encoding(path: str, hash: bytes) -> bytes | None:
    """Return the encoding of a cell from a store that a task made."""
    # Each call needs its store for a single cell, so any store may be closed afterwards.
    found = staged_stores.get(path).get_encoding(hash)
    staged_stores.done()
    return found


def root_of(one: JobInput) -> Value:
    """Return the root of an input, from a store of `open_stores`."""
    return open_stores.get(one.path).load(one.root)
