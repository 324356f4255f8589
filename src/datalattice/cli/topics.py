"""Topics: which one a command means, and how one of our own is changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from datalattice.apps.queue import QUEUE_SECTION, Topic, Topics
from datalattice.cells import Index, Map, Value
from datalattice.cli.folder import choose_holder
from datalattice.client import Change, Folder
from datalattice.cursors import RootLattice
from datalattice.lattice import root_lattice

T = TypeVar("T")


def queue_owners(root: Value) -> list[bytes]:
    """Return the owners that have a section of queues, in order; owners are public keys here."""
    section = root.get(QUEUE_SECTION) if isinstance(root, Index) else None
    owners = [key for key, _ in section.entries()] if isinstance(section, Map) else []
    return sorted(owner for owner in owners if isinstance(owner, bytes))


def topics_of(root: Value, owner: bytes) -> Topics:
    """Return the topics of an owner in a root value, to read from."""
    return Topics.at(RootLattice(root_lattice(), root), owner)


def choose_owner(folder: Folder, root: Value, wanted: bytes | None, topic: Value) -> bytes:
    """Return the owner whose topic is meant: the named one, else our own, else the only one.

    Raises: UsageError: nobody has such a topic, or several do.
    """
    holders = [owner for owner in queue_owners(root) if topic in topics_of(root, owner).topics()]
    return choose_holder(folder, holders, wanted, f"topic {topic!r}", "lattice queue list")


def own_topic(name: Value, change: Callable[[Topic], T]) -> Change[T]:
    """Return the edit that makes a change of a topic of our own, which need not be there yet."""
    return lambda cursor, keys: change(Topics.at(cursor, keys.public_key).topic(name))
