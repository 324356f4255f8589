"""A node for the tests of handles: one root in memory, with batches and locks, and no folder."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import fsspec

from datalattice.apps import Owner
from datalattice.apps.queue import Feed, Queue, Topic
from datalattice.arrow import loaded_rows
from datalattice.cells import Value
from datalattice.clock import Clock
from datalattice.crypto import KeyPair, KeyRing
from datalattice.cursors import LatticeCursor, RootLattice
from datalattice.errors import StoreLocked, UsageError
from datalattice.lattice import MergeContext, MergeNotice, root_lattice

T = TypeVar("T")

_LOADED_ROWS_MAX: Final = 1_000


class MemoryBinding:
    """A `Binding` over a root in memory. `fails` is raised by the end of a batch, if it is set."""

    def __init__(self, key_pair: KeyPair, clock: Clock, *others: KeyPair) -> None:
        context = MergeContext(key_pair=key_pair, keys=KeyRing(key_pair, *others))
        self.clock: Final = clock
        self.base: Final = RootLattice(root_lattice(), None, context)
        self.reports: Final[list[MergeNotice]] = []
        self.held: Final[set[str]] = set()
        self.fails: Exception | None = None
        self.is_read_only = False
        self.edit_threads: Final[list[threading.Thread]] = []
        self._key_pair: Final = key_pair
        self._draft: LatticeCursor | None = None
        self._undos: list[Callable[[], None]] = []

    @property
    def root(self) -> LatticeCursor:
        return self.base if self._draft is None else self._draft

    @property
    def own(self) -> bytes:
        return self._key_pair.public_key

    def owner(self, key: Value) -> Owner:
        return Owner(key)

    def edit(self, change: Callable[[LatticeCursor], T]) -> T:
        fork = self.root.fork()
        result = change(fork)
        fork.sync()
        self.edit_threads.append(threading.current_thread())  # tests see which thread wrote
        return result

    def on_undo(self, undo: Callable[[], None]) -> bool:
        if self._draft is not None and undo not in self._undos:
            self._undos.append(undo)
        return self._draft is not None

    @contextmanager
    def batch(self) -> Iterator[None]:
        self._draft = self.base.fork()
        is_done = False
        try:
            yield
            self._publish(self._draft)
            is_done = True
        finally:
            self._draft = None
            undos, self._undos = self._undos, []
            for undo in [] if is_done else undos:
                undo()

    def _publish(self, draft: LatticeCursor) -> None:
        if self.fails is not None:
            raise self.fails
        draft.sync()

    @property
    def listener_count(self) -> int:
        return len(self.base._reference._listeners)

    def hold(self, name: str) -> Callable[[], None]:
        if name in self.held:
            raise StoreLocked(f"{name} is taken")
        self.held.add(name)
        return lambda: self.held.discard(name)

    def file_system(self, drive: object) -> Any:
        return fsspec.filesystem("dlfs", drive=drive)

    def report(self, event: MergeNotice) -> None:
        self.reports.append(event)

    def to_arrow(self, handle: object, **options: Any) -> Any:
        raise UsageError("tables are read from a store, and a root in memory has none")

    def rows_of(
        self, table: object, key: str | None, value: str | None
    ) -> Iterator[tuple[Any, list[Any]]]:
        return iter(loaded_rows(table, key, value, _LOADED_ROWS_MAX))

    def queue(self, name: str, partition: object = 0) -> Queue:
        return Queue.at(self.root, self.own, name, partition, clock=self.clock, binding=self)

    def topic(self, name: str, partitions: int | None = None) -> Topic:
        return Topic.at(self.root, self.own, name, partitions, clock=self.clock, binding=self)

    def feed(self, name: str) -> Feed:
        return Feed(self.root, name, clock=self.clock, binding=self)
