"""Access: how commands reach the data of a node's folder.

Reading opens the store read-only, beside a node that may be running. Writing goes through the
running node when there is one, since a store has one writer; otherwise the store is opened for
writing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeVar

from datalattice import client
from datalattice.apps.queue import QUEUE_SECTION, LatticeMQ
from datalattice.cells import Index, Map, Value
from datalattice.cli.folder import Folder, read_key, read_keys
from datalattice.cli.render import print_notice
from datalattice.client import Change, Editor, OwnKeys, open_reader, reading
from datalattice.clock import SystemClock
from datalattice.cursors import RootLattice
from datalattice.errors import UsageError
from datalattice.lattice import root_lattice
from datalattice.store import CellStore, Store

__all__ = [
    "Change",
    "Editor",
    "StoreWriter",
    "Writer",
    "choose_owner",
    "edit",
    "editing",
    "open_reader",
    "queue_owners",
    "reading",
    "topics_of",
    "writing",
]

T = TypeVar("T")


@contextmanager
def editing(folder: Folder) -> Iterator[Editor]:
    """Give whoever makes changes of the folder's data durable: its store, or the running node.

    Raises: NoSigningKey: the folder has no key. StoreLocked: a process that is no node goes on
            writing.
    """
    with client.editing(folder) as editor:
        _tell(editor.damage)
        yield editor


def edit(folder: Folder, change: Change[T]) -> T:
    """Make one change of the folder's data; return what it returned, when it is durable.

    It runs on a cursor over the present root, with the folder's key, and again when somebody else
    changed the same places meanwhile: see `datalattice.client.edit`.
    Raises: as `editing`; Backpressure: others were faster each time; and what the change raises,
            with nothing written.
    """
    with editing(folder) as editor:
        return editor.edit(change)


def _tell(damages: Sequence[object]) -> None:
    for damage in damages:
        print_notice(f"{damage}; what was there is missing")


class Writer(Protocol):
    """What changes the queues of one owner. Every call is durable when it returns."""

    @property
    def owner(self) -> bytes:
        """The owner of the queues: the key that signs."""
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

    def __init__(self, store: Store, keys: OwnKeys) -> None:
        self._owner = keys.owner.public_key
        root = store.root()
        lattice = root_lattice()
        self._cursor = RootLattice(
            lattice,
            lattice.zero() if root is None else root,
            keys.context(),
            on_sync=lambda value: _committed(store, value),
        )
        self._topics = LatticeMQ.at(self._cursor, self._owner, SystemClock())

    @property
    def owner(self) -> bytes:
        """The owner of the queues: the key that signs."""
        return self._owner

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
    found = client.node_or_store(folder, fenced=True)
    if not isinstance(found, CellStore):
        from datalattice.client import NodeWriter

        with found:
            yield NodeWriter(found)
        return
    with found as store, client.whole(folder):
        _tell(store.damage)
        yield StoreWriter(store, read_keys(folder))


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
