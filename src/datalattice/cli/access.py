"""Access: how commands reach the data of a node's folder.

Reading opens the store read-only, beside a node that may be running. Writing goes through the
running node when there is one, since a store has one writer; otherwise the store is opened for
writing.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Protocol

# Importing the applications registers their sections in the root lattice.
from datalattice.apps.queue import QUEUE_SECTION, LatticeMQ
from datalattice.cells import Index, Map, Value
from datalattice.cli.folder import Folder, read_key
from datalattice.cli.render import print_notice
from datalattice.clock import SystemClock
from datalattice.crypto import KeyPair
from datalattice.cursors import RootLattice
from datalattice.errors import (
    Corruption,
    MissingData,
    StoreError,
    StoreFailed,
    StoreLocked,
    UsageError,
)
from datalattice.lattice import MergeContext, root_lattice
from datalattice.store import CellStore, Store

if TYPE_CHECKING:
    from datalattice.node import ControlClient

LOCK_WAIT_S: Final = 10.0
"""How long a write waits for another process to finish its own."""

LOCK_POLL_S: Final = 0.02


class Writer(Protocol):
    """What changes the queues of one owner. Every call is durable when it returns."""

    @property
    def owner(self) -> bytes:
        """The public key that signs."""
        ...

    def offer_many(
        self,
        topic: Value,
        partition: Value,
        values: Sequence[Value],
        keys: Sequence[Value] | None = None,
        headers: Sequence[Value] | None = None,
    ) -> range:
        """Append records and return their offsets."""
        ...

    def truncate(self, topic: Value, partition: Value, start: int) -> int:
        """Remove the records before `start` and return how many."""
        ...

    def num_partitions(self, topic: Value) -> int:
        """Return how many partitions keys of a topic are spread over; 0 when not set."""
        ...


class StoreWriter:
    """A writer on a store that this process has opened."""

    def __init__(self, store: Store, key_pair: KeyPair) -> None:
        self._key_pair = key_pair
        root = store.root()
        lattice = root_lattice()
        self._cursor = RootLattice(
            lattice,
            lattice.zero() if root is None else root,
            MergeContext(key_pair=key_pair),
            on_sync=lambda value: _committed(store, value),
        )
        self._topics = LatticeMQ.at(self._cursor, key_pair.public_key, SystemClock())

    @property
    def owner(self) -> bytes:
        """The public key that signs."""
        return self._key_pair.public_key

    def offer_many(
        self,
        topic: Value,
        partition: Value,
        values: Sequence[Value],
        keys: Sequence[Value] | None = None,
        headers: Sequence[Value] | None = None,
    ) -> range:
        """Append records and return their offsets."""
        offsets = self._topics.partition(topic, partition).offer_many(values, keys, headers)
        self._cursor.sync()
        return offsets

    def truncate(self, topic: Value, partition: Value, start: int) -> int:
        """Remove the records before `start` and return how many."""
        removed = self._topics.partition(topic, partition).truncate(start)
        self._cursor.sync()
        return removed

    def num_partitions(self, topic: Value) -> int:
        """Return how many partitions keys of a topic are spread over; 0 when not set."""
        return self._topics.topic(topic).num_partitions


def _committed(store: Store, value: Value) -> Value:
    store.commit(value)
    return value


@contextmanager
def writing(folder: Folder) -> Iterator[Writer]:
    """Give a writer for the folder's own queues: the running node, or the store itself.

    Raises: NoSigningKey: the folder has no key. StoreLocked: a process that is no node goes on
            writing.
    """
    found = _node_or_store(folder)
    if not isinstance(found, CellStore):
        from datalattice.node import NodeWriter

        with found:
            yield NodeWriter(found)
        return
    with found as store, _whole(folder):
        for damage in store.damage:
            print_notice(f"{damage}; what was there is missing")
        yield StoreWriter(store, read_key(folder.key_path))


def _node_or_store(folder: Folder) -> ControlClient | CellStore:
    """Return the running node, or else the store; wait for whoever else is writing."""
    from datalattice.node import connect

    give_up_s = time.monotonic() + LOCK_WAIT_S
    while True:
        client = connect(folder.path)
        if client is not None:
            return client
        read_key(folder.key_path)  # before a store is made for nothing
        try:
            return CellStore.open(folder.store_path)
        except StoreLocked as error:
            if time.monotonic() >= give_up_s:
                raise StoreLocked(f"waited {LOCK_WAIT_S:g} s in vain: {error}") from error
        time.sleep(LOCK_POLL_S)


@contextmanager
def _whole(folder: Folder) -> Iterator[None]:
    """Say what it means when cells are missing below the root of a store of ours."""
    try:
        yield
    except MissingData as error:
        raise Corruption(
            f"{folder.store_path} is damaged ({error}); put it back from a copy, or begin in an "
            "empty folder and pull from a node that has the data"
        ) from error


def open_reader(folder: Folder) -> CellStore:
    """Return the folder's store, open for reading beside whoever writes.

    Where its index must be made again first, as after a copy of the folder, that is done.
    Raises: StoreError: it cannot be read.
    """
    give_up_s = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            return CellStore.open(folder.store_path, read_only=True)
        except (StoreFailed, Corruption) as error:
            first = error
        try:
            CellStore.open(folder.store_path).close()
        except StoreLocked:
            # Another process is at it already, or is just making the store.
            if time.monotonic() >= give_up_s:
                raise first from None
            time.sleep(LOCK_POLL_S)
        except StoreError:
            raise first from None  # it cannot be written either: the reader's trouble is the one


@contextmanager
def reading(folder: Folder) -> Iterator[Value]:
    """Give the root value of the folder's store as it is now."""
    with open_reader(folder) as store, _whole(folder):
        yield store.root()


def queue_owners(root: Value) -> list[bytes]:
    """Return the owners that have a section of queues, in order; owners are public keys here."""
    section = root.get(QUEUE_SECTION) if isinstance(root, Index) else None
    owners = [key for key, _ in section.entries()] if isinstance(section, Map) else []
    return sorted(owner for owner in owners if isinstance(owner, bytes))


def topics_of(root: Value, owner: bytes) -> LatticeMQ:
    """Return the topics of an owner in a root value, to read from."""
    return LatticeMQ.at(RootLattice(root_lattice(), root), owner)


def choose_owner(folder: Folder, root: Value, wanted: bytes | None, topic: Value) -> bytes:
    """Return the owner whose topic is meant: the named one, else our own, else the only one.

    Raises: UsageError: nobody has such a topic, or several do.
    """
    holders = [owner for owner in queue_owners(root) if topic in topics_of(root, owner).topics()]
    if wanted is not None:
        if wanted in holders:
            return wanted
        raise UsageError(f"owner {wanted.hex()} has no topic {topic!r} here")
    if folder.key_path.exists():
        own = read_key(folder.key_path).public_key
        if own in holders:
            return own
    if len(holders) == 1:
        return holders[0]
    if not holders:
        raise UsageError(f"there is no topic {topic!r} here; `lattice queue topics` lists them")
    names = ", ".join(owner.hex()[:16] for owner in holders)
    raise UsageError(
        f"{len(holders)} owners have a topic {topic!r} ({names}); name one with --owner"
    )
