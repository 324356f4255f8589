"""Unwritten: what a node that stops takes with it, because its store could not keep it."""

from __future__ import annotations

from collections.abc import Iterator

from datalattice.apps.queue import QUEUE_SECTION, Topics
from datalattice.cells import Value, brief, same
from datalattice.client import Slot, differing
from datalattice.cursors import RootLattice
from datalattice.errors import DataLatticeError
from datalattice.lattice import Lattice


def unwritten(lattice: Lattice, durable: Value, live: Value) -> list[str]:
    """Return in words what a live value has and the durable one lacks: records by partition."""
    before, after = RootLattice(lattice, durable), RootLattice(lattice, live)
    lost: list[str] = []
    for slot in differing(lattice, durable, live):
        try:
            records = list(_records(before, after, slot))
        except DataLatticeError as error:  # of a damaged store not every count can be read
            records = [f"records below {brief(slot.path)}, which cannot be counted ({error})"]
        lost += records or [f"an edit below {brief(slot.path)}"]
    return lost


def _records(before: RootLattice, after: RootLattice, slot: Slot) -> Iterator[str]:
    if len(slot.path) < 2 or not same(slot.path[0], QUEUE_SECTION):
        return
    owner = slot.path[1]
    old, new = Topics.at(before, owner), Topics.at(after, owner)
    for name in new.topics():
        for partition in new.topic(name).partitions():
            first = old.partition(name, partition).end_offset()
            end = new.partition(name, partition).end_offset()
            if end > first:
                count = "1 record" if end - first == 1 else f"{end - first} records"
                yield f"{count} of {name} {partition} from offset {first} on"
