"""Backup: further stores that are kept at a node's latest value.

A backup has a thread and a place for one value. The node puts each value that it has committed
there, where it takes the place of one that still waits: a slow backup falls behind and then takes
the latest. What fails is tried again, later and later, and degrades the node until it succeeds; the
node itself goes on. The value is copied cell by cell, children first, without what the backup has
already, and committed at the end; so a backup is a complete store at every moment, and a node can
be started on it.

A backup never goes back: one with data that its node does not have is left as it is. So a node that
begins anew, after its disk was lost, does not empty the copy that was made for this case.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from datalattice.cells import Value, decode, encode, novelty, references, same, value_hash
from datalattice.errors import MissingData, UsageError
from datalattice.lattice import KeyedLattice, Lattice, replicable
from datalattice.node.observe import Observer
from datalattice.store import CellStore, Store

RETRY_FIRST_S: Final = 1.0
RETRY_MAX_S: Final = 30.0

CLOSE_TIMEOUT_S: Final = 10.0
"""How long a closing node waits for a backup to take the last value."""

LACKING: Final = (
    "it has data that this node does not have, and stays as it is; recover from it, or have the "
    "node back up to another folder"
)

BATCH_CELLS: Final = 512
"""Cells that are handed to a backup's store at a time."""

Filter = Callable[[Value], Value]
"""Returns a value without what is not to be kept; applied to its own result it changes nothing."""


class Backup:
    """One further store of a node: `open_node(..., backups=[Backup("copy")])`.

    store:  a folder, which the backup opens and closes; or an open store, which stays open.
    filter: takes out of each value what the backup must not have. Without it the backup has all,
            `:local` too: it is the node's own.
    """

    def __init__(self, store: str | os.PathLike[str] | Store, filter: Filter | None = None) -> None:
        if isinstance(store, Store):
            self._store: Store | None = store
            self._path = None
            self.name = str(getattr(store, "path", "a store in memory"))
        else:
            self._store = None
            self._path = Path(store)
            self.name = str(self._path)
        self._filter = filter
        self._changed = threading.Condition()
        self._waiting: list[Value] = []  # one at most
        self._is_busy = False
        self._is_closing = False
        self._source: Store | None = None
        self._observer: Observer | None = None
        self._lattice: Lattice | None = None
        self._was_looked_at = False
        self._thread: threading.Thread | None = None

    @property
    def key(self) -> str:
        """Key of the trouble that this backup is not what it should be."""
        return f"backup {self.name}"

    def start(self, source: Store, observer: Observer, lattice: Lattice) -> None:
        """Begin to take values of `lattice` whose cells are in `source`.

        Raises: UsageError: it serves another node already.
        """
        if self._thread is not None:
            raise UsageError(f"the {self.key} belongs to a node that is running")
        self._source = source
        self._observer = observer
        self._lattice = lattice
        self._was_looked_at = False
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="datalattice-backup", daemon=True)
        self._thread.start()

    def offer(self, value: Value) -> None:
        """Have a value backed up soon, instead of one that still waits."""
        with self._changed:
            self._waiting[:] = [value]
            self._changed.notify_all()

    def wait(self, timeout_s: float) -> bool:
        """Return whether everything offered so far is in the backup, waiting for it for a while."""
        with self._changed:
            return self._changed.wait_for(lambda: self.is_current, timeout_s)

    @property
    def is_current(self) -> bool:
        """Whether everything offered so far is in the backup."""
        return not (self._waiting or self._is_busy)

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Take what still waits, for a while, and end; `is_current` tells whether it was taken."""
        thread = self._thread
        if thread is None:
            return
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        thread.join(timeout_s)
        if not thread.is_alive():
            self._thread = None

    # --- on the thread ------------------------------------------------------------------------

    def _run(self) -> None:
        retry_s = RETRY_FIRST_S
        while (value := self._next()) is not None:
            if self._try(value[0]):
                retry_s = RETRY_FIRST_S
                continue
            with self._changed:
                if not self._waiting:
                    self._waiting[:] = value
                if self._is_closing:
                    break
                self._changed.wait_for(lambda: self._is_closing, retry_s)
            retry_s = min(2 * retry_s, RETRY_MAX_S)
        if self._path is not None and self._store is not None:
            store, self._store = self._store, None
            self._guard(store.close)

    def _next(self) -> list[Value] | None:
        """Return the value that is to be taken, in a list, None at the end."""
        with self._changed:
            self._is_busy = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: bool(self._waiting) or self._is_closing)
            taken = self._waiting[:]
            self._waiting.clear()
            self._is_busy = bool(taken)
            return taken or None

    def _try(self, value: Value) -> bool:
        if not self._guard(lambda: self._take(value)):
            return False
        assert self._observer is not None
        self._observer.count("backups")
        self._observer.recover(self.key)
        return True

    def _guard(self, work: Callable[[], None]) -> bool:
        """Do something; return whether it succeeded, and say so when it did not."""
        assert self._observer is not None
        try:
            work()
        except Exception as error:  # noqa: BLE001 - a filter of the user may raise anything
            self._observer.count("backup-failures")
            self._observer.degrade(self.key, f"{self.key}: {type(error).__name__}: {error}")
            return False
        return True

    def _take(self, value: Value) -> None:
        assert self._source is not None
        assert self._lattice is not None
        store = self._store
        if store is None:
            assert self._path is not None
            store = self._store = CellStore.open(self._path)
        if store.has_failed:
            store.resume()
        if not self._was_looked_at:
            is_new = store.root_hash() is None
            if not is_new and not contains(value, store.root(), self._lattice):
                raise UsageError(LACKING)
            self._was_looked_at = True
        if self._filter is not None:
            value = self._filter(value)
            if not same(self._filter(value), value):
                raise UsageError("the filter changes its own result")
        copy_value(value, self._source, store)


def contains(value: Value, other: Value, lattice: Lattice) -> bool:
    """Return whether a value of the lattice has all that `other` has, `:local` apart.

    Cost: that of a merge, which follows what differs.
    """
    if isinstance(lattice, KeyedLattice):
        value, other = replicable(value), replicable(other)
    return same(lattice.merge(value, other), value)


def copy_value(value: Value, source: Store, target: Store) -> None:
    """Make `value`, whose cells are in `source` or in memory, the root of `target`.

    Raises: MissingData, Corruption: a cell cannot be had. StoreError: it cannot be written.
    Cost:   reads the cells that `target` does not have.
    """
    if target.root_hash() == value_hash(value):
        return
    made = {hash: encoding for hash, encoding, _ in novelty(value, source)}
    top = encode(value)
    batch: dict[bytes, bytes] = {}
    # A cell is stored after all below it: what is there is there with all below.
    stack: list[tuple[bytes, bytes | None]] = [(hash, None) for hash in references(top)]
    while stack:
        hash, encoding = stack.pop()
        if hash in batch or target.has(hash):
            continue
        if encoding is None:
            encoding = made.get(hash) or source.get_encoding(hash)
            if encoding is None:
                raise MissingData([hash])
            stack.append((hash, encoding))
            stack.extend((below, None) for below in references(encoding))
            continue
        batch[hash] = encoding
        if len(batch) >= BATCH_CELLS:
            target.put_encodings(batch.items())
            batch.clear()
    target.put_encodings(batch.items())
    target.commit(decode(top, target))
