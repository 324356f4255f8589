"""Replicas: sample roots that several owners write to, as stores and archives.

`merged` merges them in one process, and `run_here` runs the tasks of a job without Spark.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from pathlib import Path

from datalattice.apps.kv import Database
from datalattice.apps.queue import Topics
from datalattice.cells import Value, decode_message, encode_message, value_hash
from datalattice.crypto import KeyPair
from datalattice.cursors import RootLattice
from datalattice.lattice import MergeContext, replicable, root_lattice, verify_did
from datalattice.store import CellStore, export_cells
from datalattice.testing.clocks import TickingClock

ALICE, BOB, CAROL = (KeyPair(bytes([number]) * 32) for number in (1, 2, 3))


class SampleRoot:
    """A root that owners write to, and its independent forks."""

    def __init__(self, root: Value = None, now: int = 1_000) -> None:
        self.root = root
        self.clock = TickingClock(now)

    def fork(self, now: int) -> SampleRoot:
        """Return an independent copy with another clock."""
        return SampleRoot(self.root, now)

    def write(
        self, keys: KeyPair, change: Callable[[RootLattice, TickingClock], object]
    ) -> SampleRoot:
        """Have an owner change the root."""
        context = MergeContext(key_pair=keys, verifier=verify_did)
        cursor = RootLattice(root_lattice(), self.root, context)
        change(cursor, self.clock)
        self.root = cursor.get()
        return self

    def set(self, keys: KeyPair, entries: dict[str, object], name: str = "main") -> SampleRoot:
        def change(cursor: RootLattice, clock: TickingClock) -> None:
            Database.at(cursor, keys.public_key, name, clock).update(entries)

        return self.write(keys, change)

    def offer(self, keys: KeyPair, values: list[object], topic: str = "t") -> SampleRoot:
        def change(cursor: RootLattice, clock: TickingClock) -> None:
            Topics.at(cursor, keys.public_key, clock).partition(topic, 0).offer_many(values)

        return self.write(keys, change)

    def save(self, folder: Path) -> str:
        with CellStore.open(folder) as store:
            store.commit(_copy(self.root))
        return str(folder)

    def export(self, file: Path, scratch: Path) -> str:
        with CellStore.open(scratch) as store, file.open("wb") as out:
            store.commit(_copy(self.root))
            export_cells(store, value_hash(self.root), out.write)
        return str(file)


def _copy(value: Value) -> Value:
    """Return a copy in own cells: a store changes the cells it commits to load from it."""
    return decode_message(encode_message(value))


def merged(roots: Sequence[Value], key: KeyPair | None = None, own: Value = None) -> Value:
    """Return the merge of roots, one after the other, in one process."""
    lattice = root_lattice()
    made = lattice.zero() if own is None else own
    for root in roots:
        context = MergeContext(key_pair=key, verifier=verify_did)
        made = lattice.merge(made, replicable(root), context)
    return made


def run_here(
    _spark: object,
    work: Callable[[bytes], bytes],
    payloads: Sequence[bytes],
    step: str,
    progress: Callable[[str, int, int | None], object] | None = None,
) -> list[bytes]:
    """Run the tasks of a job in this process, in place of `pipeline.jobs.tasks.run_tasks`.

    The work travels as bytes, as it does to the processes of Spark.
    """
    work = pickle.loads(pickle.dumps(work))  # noqa: S301 - made on this very line
    answers: list[bytes] = []
    for payload in payloads:
        answers.append(work(payload))
        if progress is not None:
            progress(step, len(answers), len(payloads))
    return answers
