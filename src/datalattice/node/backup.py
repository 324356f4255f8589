"""Backup: further stores that are kept at a node's latest value.

A backup has a thread and room for one waiting value. Each committed value of the node replaces the
value that still waits, so a slow backup skips values and then takes the latest. After a failure the
node is degraded and continues; the backup tries again after a growing pause. A value is copied cell
by cell, children first, without the cells that the backup has, and committed at the end. So a
backup is a complete store at every moment, and a node can be started on it.

A backup never loses data: if it has data that its node lacks, it is left as it is. So a node that
starts empty after its disk was lost does not empty its backup.

Source: docs/node.md "Backups".
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from datalattice.cells import Value, same
from datalattice.client.backups import LACKING, copy_value, has_all_of
from datalattice.errors import UsageError
from datalattice.lattice import Lattice
from datalattice.node.observe import Observer
from datalattice.store import CellStore, Store

_RETRY_FIRST_S: Final = 1.0
_RETRY_MAX_S: Final = 30.0

LAST_VALUE_S: Final = 10.0  # a closing node waits this long for a backup to store the last value

# Returns a value without the parts that must not be kept. Applied to its own result it changes
# nothing.
Filter = Callable[[Value], Value]


class Backup:
    """One further store of a node: `open_node(..., backups=[Backup("copy")])`.

    store:  a folder, which the backup opens and closes; or an open store, which stays open.
    filter: maps each value to the part that the backup may have. Without it the backup gets
            everything, also `:local`.
    """

    def __init__(self, store: str | os.PathLike[str] | Store, filter: Filter | None = None) -> None:
        if isinstance(store, Store):
            self._store: Store | None = store
            self._path = None
            self.name = store.path or "a store in memory"
        else:
            self._store = None
            self._path = Path(store)
            self.name = str(self._path)
        self._filter = filter
        self._changed = threading.Condition()
        self._waiting: list[Value] = []  # one at most
        self._is_busy = False
        self._is_closing = False
        self._is_checked = False
        self._thread: threading.Thread | None = None

    @property
    def key(self) -> str:
        """The health key of a failing backup."""
        return f"backup {self.name}"

    def start(self, source: Store, observer: Observer, lattice: Lattice) -> None:
        """Begin to store values of `lattice` whose cells are in `source`.

        Raises: UsageError: it serves another node already.
        """
        if self._thread is not None:
            raise UsageError(f"the {self.key} belongs to a node that is running")
        self._is_checked = self._is_closing = False
        arguments = (source, observer, lattice)
        self._thread = threading.Thread(
            target=self._run, args=arguments, name="datalattice-backup", daemon=True
        )
        self._thread.start()

    def offer(self, value: Value) -> None:
        """Store a value soon, instead of one that still waits."""
        with self._changed:
            self._waiting[:] = [value]
            self._changed.notify_all()

    def wait(self, timeout_s: float) -> bool:
        """Wait up to `timeout_s` until everything offered is stored; return whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: self.is_current, timeout_s)

    @property
    def is_current(self) -> bool:
        """Whether everything offered so far is stored."""
        return not (self._waiting or self._is_busy)

    def close(self, timeout_s: float = LAST_VALUE_S) -> None:
        """End within `timeout_s`, and store the waiting value first if there is time."""
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

    def _run(self, source: Store, observer: Observer, lattice: Lattice) -> None:
        retry_s = _RETRY_FIRST_S
        while (value := self._next()) is not None:
            if self._try(lambda: self._take(value[0], source, lattice), observer):
                observer.count("backups")
                observer.recover(self.key)
                retry_s = _RETRY_FIRST_S
                continue
            with self._changed:
                if not self._waiting:  # a newer value replaces the one that failed
                    self._waiting[:] = value
                if self._is_closing:
                    break
                self._changed.wait_for(lambda: self._is_closing, retry_s)
            retry_s = min(2 * retry_s, _RETRY_MAX_S)
        if self._path is not None and self._store is not None:
            store, self._store = self._store, None
            self._try(store.close, observer)

    def _next(self) -> list[Value] | None:
        """Return the value to store, in a list, None at the end."""
        with self._changed:
            self._is_busy = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: bool(self._waiting) or self._is_closing)
            taken = self._waiting[:]
            self._waiting.clear()
            self._is_busy = bool(taken)
            return taken or None

    def _try(self, work: Callable[[], None], observer: Observer) -> bool:
        """Run `work`; return whether it succeeded, and degrade the node if not."""
        try:
            work()
        except Exception as error:  # noqa: BLE001 - a filter of the user may raise anything
            observer.count("backup-failures")
            observer.degrade(self.key, f"{self.key}: {type(error).__name__}: {error}")
            return False
        return True

    def _take(self, value: Value, source: Store, lattice: Lattice) -> None:
        store = self._store
        if store is None:
            assert self._path is not None
            store = self._store = CellStore.open(self._path)
        if store.has_failed:  # after a failed write a store refuses more until it is resumed
            store.resume()
        if not self._is_checked:
            # "If a backup has data that the node lacks ... is left as it is". Checked once: from
            # the first value on only this node writes here.
            is_new = store.root_hash() is None
            if not is_new and not has_all_of(value, store.root(), lattice):
                raise UsageError(LACKING)  # it degrades the node, and is checked again
            self._is_checked = True
        if self._filter is not None:
            value = self._filter(value)
            if not same(self._filter(value), value):
                raise UsageError("the filter changes its own result")
        copy_value(value, source, store)
