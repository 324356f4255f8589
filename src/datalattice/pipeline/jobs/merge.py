"""Merge many replicas into one on Spark, with the result of merging them one after another.

    report = merge(spark, ["a.archive", "b/node", "c/store@release"], into="data/hq")

The result has the hash that one process gets by merging the inputs in their order. A node's folder
takes it like data from a peer, and the node's key signs the joins of values that devices of its
owner wrote concurrently. In a new store or archive a given key signs them. Without the owner's key,
concurrent values of an owner are treated as on any other node, and counted.

Source: docs/spark-jobs.md "Merge".
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from datalattice.cells import (
    Index,
    Map,
    Signed,
    Value,
    Vector,
    encode,
    index_bounds,
    index_joined,
    to_text,
)
from datalattice.client import read_key_pairs
from datalattice.crypto import KeyPair, KeyRing, SystemEntropy
from datalattice.errors import UsageError
from datalattice.lattice import (
    IndexLattice,
    Lattice,
    SignedLattice,
    replicable,
    root_lattice,
)
from datalattice.pipeline.jobs.inputs import (
    CACHE_BYTES,
    JobInput,
    leased,
    open_stores,
    resolve_input,
    root_of,
    staged_stores,
)
from datalattice.pipeline.jobs.output import MergeResult, Output
from datalattice.pipeline.jobs.partials import (
    KeyRange,
    OwnerBucket,
    Partial,
    Tally,
    Unit,
    UnitMerger,
    slots_of,
    united,
    with_databases,
)
from datalattice.pipeline.jobs.reduction import (
    NAME_BYTES,
    Reduction,
    add_tally,
    admit_input,
    input_document,
    read_input,
    read_partial,
    reduce_some,
)
from datalattice.pipeline.jobs.report import JobReport
from datalattice.pipeline.jobs.tasks import run_tasks
from datalattice.pipeline.signatures import signer_of
from datalattice.pipeline.spark.progress import OnStep, ignore_progress
from datalattice.store import CellStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FAN_IN: Final = 64
"""Most inputs, or partials, that one task merges."""

RANGE_KEYS: Final = 16_384
"""Larger databases are merged in ranges of about this many keys, which bounds a task's memory."""

_BUCKETS_MAX: Final = 64
"""Most buckets for everything else."""

SAMPLE_MAX: Final = 16
"""Number of inputs that are inspected to learn the sizes of databases."""


@dataclass(frozen=True, slots=True)
class MergeJobReport(JobReport):
    """The result of a merge."""

    root: str
    """Hash of the result in hex; for a node, of its root that contains the result."""
    output: str
    """Path of the output."""
    inputs: int
    tasks: int
    rounds: int
    """How often inputs or partials were merged by tasks."""
    staged_cells: int
    """Cells that tasks wrote."""
    output_cells: int
    """Cells that the output did not have before."""
    owner_forks: tuple[str, ...]
    """Paths of concurrent values of one owner whose key is not available; the first was kept."""
    queue_forks: int
    """Queues written by two leaders."""
    dropped: int
    """Entries left out because they are invalid or not signed by their owner."""
    dropped_at: tuple[str, ...]
    """Paths of the first of them."""
    refused: tuple[str, ...]
    """Inputs, or parts of one, left out because they are malformed, with the reasons."""
    seconds: float


def merge(
    spark: SparkSession,
    inputs: Sequence[str],
    *,
    into: str | None = None,
    store: str | None = None,
    archive: str | None = None,
    key: KeyPair | None = None,
    staging: str | None = None,
    fan_in: int = FAN_IN,
    progress: OnStep | None = None,
) -> MergeJobReport:
    """Merge replicas in their order into one root; return when the result is durable.

    inputs: archives, stores, or folders of nodes; a folder may be followed by `@` and a root.
    into, store, archive: one of the three: the folder of a node, running or not; the folder of a
        new store; a new file.
    key: signs for its owner in a new store or archive; a node's folder has its own.
    staging: a folder that the driver and all tasks can reach; by default beside the output.
    fan_in: inputs that one task merges.
    Malformed parts of an input are left out and reported; the rest is merged.
    Raises: UsageError: an input or output is not accepted. BadFormat: an archive is damaged.
            MissingData, Corruption: an input is incomplete. Nothing is written to the output then.
    Cost:   reads each input once to check it, except the target node; then the differences between
            inputs; for a new store or archive, the complete result once.
    """
    began = time.monotonic()
    output = Output.of(into, store, archive)
    # With one input for each task the number of inputs would never shrink.
    if not 2 <= fan_in <= FAN_IN:
        raise UsageError(f"fan_in is a number of 2 to {FAN_IN}, got {fan_in!r}")
    if not inputs:
        raise UsageError("inputs is empty: name archives, stores or folders of nodes")
    ring = KeyRing()
    if output.folder is not None:
        if key is not None:
            raise UsageError("into names a node's folder, whose own key signs: leave out key")
        # The node's own keys sign joins of its owners' devices, as in its own merges.
        keys = read_key_pairs(output.folder)
        ring = KeyRing(*keys.ring, keys.identity, keys.owner)
    elif key is not None:
        ring = KeyRing(key)
    on_progress = progress or ignore_progress
    sources = [resolve_input(one) for one in inputs]
    parent = output.staging if staging is None else Path(staging).expanduser().absolute()
    with _staging_folder(parent) as folder:
        job = _Merge(spark, folder, output, ring, fan_in, on_progress, Tally())
        return replace(job.run(sources), seconds=round(time.monotonic() - began, 3))


@contextmanager
def _staging_folder(parent: Path) -> Iterator[str]:
    """Yield a new folder for staged data; it is removed after the block."""
    is_new = not parent.exists()
    folder = parent / f"merge-{SystemEntropy().bytes(NAME_BYTES).hex()}"
    try:
        folder.mkdir(mode=0o700, parents=True)
    except OSError as error:
        raise UsageError(
            f"the staging folder {parent} cannot be written to ({error.strerror})"
        ) from None
    try:
        yield str(folder)
    finally:
        open_stores.close()
        staged_stores.close()
        # Also after an error: the staged data of an unfinished merge is useless.
        shutil.rmtree(folder, ignore_errors=True)
        if is_new:
            shutil.rmtree(parent, ignore_errors=True)


@dataclass(slots=True)
class _Merge:
    """The state of one merge."""

    spark: SparkSession
    staging: str
    output: Output
    keys: KeyRing
    fan_in: int
    progress: OnStep
    tally: Tally
    tasks: int = 0
    rounds: int = 0
    staged: int = 0
    refused: list[str] = field(default_factory=list)
    has_root: bool = False
    """Whether the target node has a root; it is the first input then."""

    def run(self, sources: list[JobInput]) -> MergeJobReport:
        count = len(sources)
        if self.output.folder is not None and self.output.has_root():
            self.has_root = True
            # The node's own root comes first, as in its merge of data from a peer.
            sources = [resolve_input(str(self.output.folder.path)), *sources]
        # Leased until the result is written, so that no collection removes cells of an input.
        with leased(sources):
            sources = self._admitted(sources)
            ranges = self._ranges(sources)
            # Buckets carry everything that no range does, so together they are the whole root.
            units: list[Unit] = [*self._buckets(sources), *ranges]
            public_keys = tuple(pair.public_key for pair in self.keys)
            reduction = Reduction(self.staging, sources[0].path, public_keys, tuple(units))
            documents = self._reduced(reduction, sources)
            with CellStore.open(reduction.base, read_only=True, cache_bytes=CACHE_BYTES) as base:
                partials = [read_partial(document, base) for document in documents]
                merger = UnitMerger(public_keys, ranges)
                root, forks = self._whole(merger, list(zip(units, partials, strict=True)))
                result = MergeResult(root, merger, self.keys)
                if self.has_root:
                    result = replace(result, base=base, origin=root_of(sources[0]))
                hash, cells = self.output.write(result, self.staging, self._on_written)
        return MergeJobReport(
            root=hash,
            output=str(self.output.path),
            inputs=count,
            tasks=self.tasks,
            rounds=self.rounds,
            staged_cells=self.staged,
            output_cells=cells,
            owner_forks=forks,
            queue_forks=self.tally.queue_forks,
            dropped=self.tally.dropped,
            dropped_at=tuple(map(_shown, self.tally.dropped_at)),
            refused=tuple(self.refused),
            seconds=0.0,
        )

    # --- planning ---

    def _admitted(self, sources: list[JobInput]) -> list[JobInput]:
        """Return the inputs as sound stores: tasks unpack archives and check every input.

        The target node's store counts as sound.
        Raises: UsageError: no input can be merged.
        """
        # The node's intake has checked the cells of its own store.
        own = sources[:1] if self.has_root else []
        sound = own[0].path if own else ""
        # Payloads are JSON, because Spark carries rows, not objects of ours.
        payloads = [json.dumps(input_document(one)).encode() for one in sources[len(own) :]]
        made = list(own)
        # "A task checks each input before it is merged" (docs/spark-jobs.md, Merge).
        for answer in self._run(partial(admit_input, self.staging, sound), payloads, "check"):
            document = json.loads(answer)
            one = read_input(document)
            self.refused += [f"{one.name}: {text}" for text in document["left_out"]]
            self.tally.dropped += document["count"]
            if one.root:
                made.append(one)
        if len(made) == len(own):
            raise UsageError(f"no input can be merged; {'; '.join(self.refused)}")
        return made

    def _ranges(self, sources: list[JobInput]) -> list[KeyRange]:
        """Return the key ranges of the large databases whose owner's key is available."""
        largest: dict[tuple[bytes, ...], tuple[tuple[Value, ...], Value, Index]] = {}
        for one in sources[:SAMPLE_MAX]:
            # Only with the owner's key: without it a join of ranges could not be signed again.
            for slot, cell in self._own_slots(root_of(one)):
                databases = cell.value
                if not isinstance(databases, Map):
                    continue
                for name, index in databases.entries():
                    known = largest.get((_name(*slot), _name(name)))
                    # Small databases stay in their buckets: a task costs more than their merge.
                    if not isinstance(index, Index) or len(index) <= RANGE_KEYS:
                        continue
                    # The bounds of the largest one divide the others well enough; any bounds give
                    # the same result.
                    if known is None or len(known[2]) < len(index):
                        largest[_name(*slot), _name(name)] = slot, name, index
        return [
            KeyRange(slot, name, low, high)
            for slot, name, index in largest.values()
            for low, high in pairwise(
                [None, *index_bounds(index, -(-len(index) // RANGE_KEYS)), None]
            )
        ]

    def _own_slots(self, root: Value) -> Iterator[tuple[tuple[Value, ...], Signed]]:
        """Yield the signed values whose databases can be divided into ranges."""
        for path, cell in slots_of(replicable(root)):
            lattice = root_lattice().path(*path)
            if _is_cut(lattice) and signer_of(self.keys, path[-1]) is not None:
                yield path, cell

    def _buckets(self, sources: list[JobInput]) -> list[OwnerBucket]:
        slots = {_name(*path) for one in sources[:SAMPLE_MAX] for path, _ in slots_of(root_of(one))}
        # More buckets than signed values would be empty.
        count = max(1, min(_BUCKETS_MAX, len(slots)))
        return [OwnerBucket(number, count) for number in range(count)]

    # --- merging ---

    def _reduced(self, reduction: Reduction, sources: list[JobInput]) -> list[dict[str, Any]]:
        """Return the partial of each unit; partials are merged until one is left."""
        waiting = [[input_document(one) for one in sources] for _ in reduction.units]
        while self.rounds == 0 or any(len(parts) > 1 for parts in waiting):
            self.rounds += 1
            payloads: list[bytes] = []
            owners: list[int] = []
            for i, parts in enumerate(waiting):
                # The first round also merges a single input, since the checks of intake run in
                # merges.
                if self.rounds > 1 and len(parts) == 1:
                    continue
                for first in range(0, len(parts), self.fan_in):
                    some = parts[first : first + self.fan_in]
                    payloads.append(json.dumps({"unit": i, "of": some}).encode())
                    owners.append(i)
            step = "merge" if self.rounds == 1 else f"merge, round {self.rounds}"
            answers = self._run(partial(reduce_some, reduction), payloads, step)
            # Answers replace the parts that were merged, in their order: joins are not commutative
            # for forks.
            for i in set(owners):
                waiting[i] = []
            for i, answer in zip(owners, answers, strict=True):
                document = json.loads(answer)
                self.staged += document["staged"]
                waiting[i].append(document)
                # Counted once: a dropped entry is in no partial.
                if self.rounds == 1:  # later rounds see no entries that this one dropped
                    add_tally(self.tally, document)
        return [parts[0] for parts in waiting]

    def _run(self, work: Any, payloads: list[bytes], step: str) -> list[bytes]:
        if not payloads:
            return []
        self.tasks += len(payloads)
        return run_tasks(self.spark, work, payloads, step, self.progress)

    def _whole(
        self, merger: UnitMerger, partials: list[tuple[Unit, Partial]]
    ) -> tuple[Value, tuple[str, ...]]:
        """Return the root of all units, signed, and the paths of forked owners."""
        buckets = [made for unit, made in partials if isinstance(unit, OwnerBucket)]
        root = united(merger.finished(made, self.keys) for made in buckets)
        forks = tuple(_shown(path) for made in buckets for path in made.forks)
        for slot, names in merger.split.items():
            databases: dict[Value, Index] = {}
            for name in names:
                # Ranges are in key order and do not overlap, so they are joined without a merge.
                parts = [
                    made.value
                    for unit, made in partials
                    if isinstance(unit, KeyRange)
                    and (_name(*unit.slot), _name(unit.name)) == (_name(*slot), _name(name))
                    and isinstance(made.value, Index)
                ]
                if parts:
                    databases[name] = index_joined(parts)
            seals = {seal for made in buckets for seal in made.seals.get(slot, ())}
            if databases:
                root = with_databases(root, slot, databases, seals, self.keys)
        return root, forks

    def _on_written(self, count: int) -> None:
        self.progress("write", count, None)


def _is_cut(lattice: Lattice | None) -> bool:
    """Return whether a lattice holds signed Maps of Indexes that are joined key by key."""
    if not isinstance(lattice, SignedLattice):
        return False
    child = lattice.inner.child("any")
    # Other lattices join more than the entries of one key, so ranges would change the result.
    return isinstance(child, IndexLattice)


def _name(*keys: Value) -> bytes:
    """Return a path as a dictionary key."""
    return encode(Vector.of(keys))


def _shown(path: tuple[Value, ...]) -> str:
    return " ".join(key if isinstance(key, str) else to_text(key) for key in path)
