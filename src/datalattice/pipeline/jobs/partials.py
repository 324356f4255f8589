"""Divide a merge among tasks so that the result has the hash of a merge by one process.

The lattices do all merging; this module divides the work and combines the results.
*Units.* A root is divided into `OwnerBucket`s, each with some of its signed values and sections.
Large databases of owners whose key is available are divided further, into `KeyRange`s of their
keys. Units do not overlap, so each is merged alone and the results need no merge.

*Groups.* A task merges some inputs into a `Partial`; further tasks merge partials until one is left
for each unit. Joins are associative, so grouping does not change the result.

*Signatures.* A join of values of one owner must be signed again, but private keys never leave the
driver. In tasks a `Deputy` signs with zeros, and the driver replaces these signatures. If an
owner's key is not available, a node keeps its own of two concurrent values, so the order of merging
matters. Partials carry such values as `forks` in the order of the inputs, and the driver decides
them in that order.

*Staging.* A task writes the cells that it made, and those that the `base` lacks, into a store of
its own. Cells that all inputs share are neither read nor written.

Length: dividing a root, merging its units and joining the results use one division into units.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import datalattice.apps  # noqa: F401 - registers the sections of the root lattice
from datalattice.cells import (
    EMPTY_INDEX,
    EMPTY_MAP,
    Index,
    Map,
    Ref,
    Signed,
    Value,
    Vector,
    branch_kids,
    decode_trusted,
    encode,
    index_between,
    same,
    value_hash,
)
from datalattice.crypto import SIGNATURE_BYTES, KeyPair, KeyRing
from datalattice.lattice import (
    EntryDropped,
    KeyedLattice,
    Lattice,
    MergeContext,
    MergeNotice,
    OwnerForked,
    OwnerLattice,
    QueueForked,
    SignedLattice,
    ValuePath,
    assoc_in,
    get_in,
    replicable,
    root_lattice,
    verify_did,
)
from datalattice.pipeline.signatures import signer_of
from datalattice.store import CellStore

_BATCH_CELLS: Final = 1_024
"""Cells that are written at a time."""

PATHS_MAX: Final = 20
"""Most paths of dropped entries that a report names."""

_PROVISIONAL: Final = bytes(SIGNATURE_BYTES)


class Deputy(KeyPair):
    """Stands in for a key outside the driver: signs with zeros, which the driver replaces."""

    __slots__ = ()

    def __init__(self, public_key: bytes) -> None:
        # No seed: "the owner's key, which never leaves the driver" (docs/spark-jobs.md, Merge).
        self.public_key = public_key
        self.seed = b""

    def sign(self, message: bytes) -> bytes:
        """Return 64 zeros."""
        return _PROVISIONAL

    def __reduce__(self) -> tuple[type[KeyPair], tuple[bytes]]:
        return Deputy, (self.public_key,)


@dataclass(frozen=True, slots=True)
class OwnerBucket:
    """One of `count` shares of a root: the owners' values and sections whose hash falls into it."""

    number: int
    count: int


@dataclass(frozen=True, slots=True)
class KeyRange:
    """The keys from `low` to before `high` of one database of one owner."""

    slot: ValuePath
    """Path of the owner's signed value."""
    name: Value
    """Name of the database."""
    low: bytes | None
    high: bytes | None


Unit = OwnerBucket | KeyRange


@dataclass(slots=True)
class Tally:
    """Counts of the merge reports."""

    dropped: int = 0
    queue_forks: int = 0
    dropped_at: list[ValuePath] = field(default_factory=list)
    forked_at: set[ValuePath] = field(default_factory=set)

    def note(self, report: MergeNotice) -> None:
        """Count a report."""
        if isinstance(report, OwnerForked):
            self.forked_at.add(report.path)
        elif isinstance(report, QueueForked):
            self.queue_forks += 1
        elif isinstance(report, EntryDropped):
            self.dropped += 1
            # All are counted, the first few are named: an input may have millions of bad entries.
            if len(self.dropped_at) < PATHS_MAX:
                self.dropped_at.append(report.path)


@dataclass(frozen=True, slots=True)
class Seal:
    """The signature of a Signed cell, without its value."""

    public_key: bytes
    signature: bytes
    message: bytes
    """The signed message, which identifies the value."""

    @classmethod
    def of(cls, cell: Signed) -> Seal:
        """Return the seal of a cell."""
        return cls(cell.public_key, cell.signature, cell.message())


@dataclass(slots=True)
class Partial:
    """The result of merging some inputs of one unit."""

    value: Value
    """A root with the unit's share; for a key range the Index, None if no input has the
    database."""
    forks: dict[ValuePath, list[Value]] = field(default_factory=dict)
    """Concurrent values of owners whose key is not available, in the order of the inputs."""
    seals: dict[ValuePath, set[Seal]] = field(default_factory=dict)
    """For owners whose databases are merged by ranges: the signatures of the inputs' values."""


class UnitMerger:
    """Merges units.

    public_keys: of the keys that the driver signs with.
    ranges: all key ranges that are merged separately.
    """

    def __init__(self, public_keys: Iterable[bytes], ranges: Sequence[KeyRange]) -> None:
        self.deputies = KeyRing(*map(Deputy, public_keys))
        self.split: dict[ValuePath, list[Value]] = {}
        for one in ranges:
            names = self.split.setdefault(one.slot, [])
            # A database of several ranges is split once.
            if not any(same(one.name, name) for name in names):
                names.append(one.name)
        self.lattice = root_lattice()
        self.tally = Tally()

    # --- one input ---

    def take(self, root: Value, unit: Unit) -> Partial:
        """Return one input's share of a unit."""
        if isinstance(unit, KeyRange):
            databases = self.databases(_cell_at(root, unit.slot), unit.slot)
            index = None if databases is None else databases.get(unit.name)
            # An input without the database adds nothing to its ranges; the bucket keeps any other
            # type.
            if not isinstance(index, Index):
                return Partial(None)
            return Partial(index_between(index, unit.low, unit.high))
        made = self._share(replicable(root), unit)
        seals: dict[ValuePath, set[Seal]] = {}
        for slot in self.split:
            cell = _cell_at(made, slot)
            databases = self.databases(cell, slot)
            if databases is not None:
                assert isinstance(cell, Signed)
                seals[slot] = {Seal.of(cell)}
                # The ranges carry these databases; a bucket that kept them would merge them twice.
                for name in self.split[slot]:
                    databases = databases.remove(name)
                deputy = self._context().signer(slot[-1])
                assert deputy is not None
                # A provisional signature, because the changed value has lost its valid one.
                made = assoc_in(made, slot, Signed.sign(deputy, databases), self.lattice)
        return Partial(made, seals=seals)

    def databases(self, cell: Value, slot: ValuePath) -> Map | None:
        """Return the databases in a signed value; None if a merge would reject it."""
        # The rules of a node's intake: an owner's value counts only if signed by a key of the
        # owner.
        if not isinstance(cell, Signed) or not cell.verify():
            return None
        if not self._context().verify_owner(slot[-1], cell.public_key):
            return None
        found = cell.value
        return found if isinstance(found, Map) else None

    def _share(self, root: Value, bucket: OwnerBucket) -> Value:
        """Return a root with only the content of a bucket."""
        # One bucket is everything; a root of another type has nothing to divide.
        if bucket.count == 1 or not isinstance(root, Index):
            return root
        made = EMPTY_INDEX
        for key, section in root.entries():
            if isinstance(self.lattice.child(key), OwnerLattice) and isinstance(section, Map):
                own = Map.of(
                    (owner, value)
                    for owner, value in section.entries()
                    if _falls_in((key, owner), bucket)
                )
                # An empty section belongs to one bucket, so that the result has it exactly once.
                if len(own) or _falls_in((key,), bucket):
                    made = made.put(key, own)
            elif _falls_in((key,), bucket):
                made = made.put(key, section)
        return made

    # --- several ---

    def merge(self, unit: Unit, partials: Iterable[Partial]) -> Partial:
        """Return the merge of partials of one unit, in their order."""
        if isinstance(unit, KeyRange):
            return self._merge_range(unit, partials)
        # Merging onto zero applies the checks of intake to the first input as well.
        own = Partial(self.lattice.zero())
        for other in partials:
            own = self._join(own, other)
        return own

    def _merge_range(self, unit: KeyRange, partials: Iterable[Partial]) -> Partial:
        lattice = self.lattice.path(*unit.slot)
        assert isinstance(lattice, SignedLattice)
        child = lattice.inner.child(unit.name)
        assert child is not None
        context = self._context().at((*unit.slot, unit.name), unit.slot[-1])

        def joined(own: Value, other: Value) -> Value:
            return (
                own if other is None else other if own is None else child.merge(own, other, context)
            )

        return Partial(in_pairs(joined, (other.value for other in partials)))

    def _join(self, own: Partial, other: Partial) -> Partial:
        forked: set[ValuePath] = set()
        # Forks of this join only: those of earlier joins are in `own.forks` and `other.forks`.
        self.tally.forked_at = forked
        value = self.lattice.merge(own.value, other.value, self._context())
        seals = {slot: own.seals.get(slot, set()) | found for slot, found in other.seals.items()}
        forks = {**own.forks, **other.forks}
        for path in forked | forks.keys():
            # In the order of the inputs: the driver decides forks in that order.
            candidates = [
                *own.forks.get(path, _present(own.value, path)),
                *other.forks.get(path, _present(other.value, path)),
            ]
            forks[path] = self._without_covered(path, candidates)
        # A later value may cover both sides: then the fork is over.
        forks = {path: found for path, found in forks.items() if len(found) > 1}
        return Partial(value, forks, {**own.seals, **seals})

    def _without_covered(self, path: ValuePath, candidates: Sequence[Value]) -> list[Value]:
        """Return concurrent values without those that a neighbour covers.

        Merging a value and then one that covers it gives the same as merging the greater alone.
        This holds for neighbours only: between others, a third value may be concurrent to both.
        """
        lattice = self.lattice.path(*path)
        assert lattice is not None
        kept: list[Value] = []
        for value in candidates:
            # A value that intake would drop decides nothing.
            if not self._is_owners(path, value):
                continue
            if not kept:
                kept.append(value)
                continue
            joined, is_fork = self._join_two(lattice, path, kept[-1], value)
            if is_fork:
                # The same value twice is one candidate: deciding it again changes nothing.
                if not any(same(value, one) for one in kept):
                    kept.append(value)
            else:
                kept[-1] = joined
        return kept

    def _is_owners(self, path: ValuePath, value: Value) -> bool:
        return (
            isinstance(value, Signed)
            and value.verify()
            and self._context().verify_owner(path[-1], value.public_key)
        )

    def _join_two(
        self, lattice: Lattice, path: ValuePath, own: Value, other: Value
    ) -> tuple[Value, bool]:
        tally = Tally()
        context = MergeContext(verifier=verify_did, report=tally.note).at(path, path[-1])
        return lattice.merge(own, other, context), bool(tally.forked_at)

    def _context(self) -> MergeContext:
        return MergeContext(keys=self.deputies, verifier=verify_did, report=self.tally.note)

    # --- what is staged ---

    def resealed(self, root: Value) -> Value:
        """Return a staged root in which the signatures of deputies count as verified."""
        return self._signed_by(root, self.deputies)

    def finished(self, partial: Partial, keys: KeyRing) -> Value:
        """Return the root of a bucket, signed, with forks decided in the order of the inputs."""
        root = self._signed_by(partial.value, keys)
        for path, candidates in partial.forks.items():
            lattice = self.lattice.path(*path)
            assert lattice is not None
            kept = candidates[0]
            # As a node that receives the inputs one after another.
            for value in candidates[1:]:
                kept, _ = self._join_two(lattice, path, kept, value)
            root = assoc_in(root, path, kept, self.lattice)
        return root

    def _signed_by(self, root: Value, keys: KeyRing) -> Value:
        for path, cell in slots_of(root):
            pair = keys.get(cell.public_key) if cell.signature == _PROVISIONAL else None
            if pair is not None:
                root = _replaced(root, path, Signed.sign(pair, cell.value))
        return root


def in_pairs(joined: Callable[[Value, Value], Value], values: Iterable[Value]) -> Value:
    """Return the join of values in their order, joining neighbours first; None for no values.

    A join reads everything in which its operands differ. Joining each value to all before it would
    read the changes of the first ones again for every later one.

    Cost:   holds log2(values) values in memory.
    """
    waiting: list[tuple[int, Value]] = []
    for one in values:
        count, value = 1, one
        # Like a binary counter: only results of equally many values are joined.
        while waiting and waiting[-1][0] == count:
            value = joined(waiting.pop()[1], value)
            count *= 2
        waiting.append((count, value))
    made = waiting.pop()[1] if waiting else None
    while waiting:
        made = joined(waiting.pop()[1], made)
    return made


def slots_of(
    root: Value, lattice: Lattice | None = None, path: ValuePath = ()
) -> Iterator[tuple[ValuePath, Signed]]:
    """Yield the paths and cells of the signed values in a root, below names and owners."""
    if lattice is None:
        lattice = root_lattice()
    if isinstance(root, Signed):
        yield path, root
    elif (isinstance(lattice, KeyedLattice) and isinstance(root, Index)) or (
        isinstance(lattice, OwnerLattice) and isinstance(root, Map)
    ):
        for key, value in root.entries():
            below = lattice.child(key)
            if below is not None:
                yield from slots_of(value, below, (*path, key))


def _cell_at(root: Value, slot: ValuePath) -> Value:
    """Return an owner's value; None if the section is of a type that a merge rejects."""
    return get_in(root, slot) if isinstance(get_in(root, slot[:-1]), Map) else None


def with_databases(
    root: Value,
    slot: ValuePath,
    databases: Mapping[Value, Index],
    seals: Iterable[Seal],
    keys: KeyRing,
) -> Value:
    """Return a root with these databases added to an owner's, signed.

    seals: the signatures of the inputs' values. If one is for the same value as the result, it is
        reused, as a node would; of several, that of the cell with the greatest hash.
    """
    below = get_in(root, slot)
    inner = below.value if isinstance(below, Signed) else EMPTY_MAP
    assert isinstance(inner, Map)
    value = inner.put_many(databases.items())
    key = signer_of(keys, slot[-1])
    assert key is not None
    made = Signed.sign(key, value)
    # Reusing a signature keeps the hash that a merge by one process gives.
    message = made.message()
    equal = [
        Signed(one.public_key, one.signature, value) for one in seals if one.message == message
    ]
    return assoc_in(root, slot, max(equal, key=value_hash, default=made), root_lattice())


def united(roots: Iterable[Value]) -> Value:
    """Return one root with the contents of several buckets."""
    made = EMPTY_INDEX
    for root in roots:
        assert isinstance(root, Index)
        for key, section in root.entries():
            known = made.get(key)
            # Buckets do not overlap: the owners of a section are disjoint.
            if isinstance(known, Map) and isinstance(section, Map):
                made = made.put(key, known.put_many(section.entries()))
            else:
                made = made.put(key, section)
    return made


def _replaced(container: Value, path: ValuePath, value: Value) -> Value:
    """Return a container with exactly this cell at a path.

    Removing first is necessary: putting an equal cell would keep the old one, whose signature does
    not count as verified.
    """
    assert isinstance(container, (Map, Index))
    key = path[0]
    below = value if len(path) == 1 else _replaced(container.get(key), path[1:], value)
    return container.remove(key).put(key, below)


def _present(root: Value, path: ValuePath) -> list[Value]:
    found = get_in(root, path)
    return [] if found is None else [found]


def _falls_in(path: ValuePath, bucket: OwnerBucket) -> bool:
    # By hash: every task finds the bucket of a path without a common plan.
    return value_hash(Vector.of(path))[0] % bucket.count == bucket.number


# --- staging ------------------------------------------------------------------------------------


class Delta:
    """Loads a staged value: from its own store, otherwise from the base. A `Loader`."""

    def __init__(self, own: Callable[[bytes], bytes | None], base: CellStore) -> None:
        self._own = own
        self._base = base

    def load(self, hash: bytes) -> Value:
        """Return the value with this hash.

        Raises: MissingData: neither has it; the base has lost a cell.
        """
        encoding = self._own(hash)
        if encoding is None:
            return self._base.load(hash)
        return decode_trusted(encoding, hash, self)


def stage(
    value: Value,
    store: CellStore,
    base: CellStore | None = None,
    on_progress: Callable[[int], object] | None = None,
) -> int:
    """Put the cells of a value into a store, except those that the base has; return how many.

    The top cell is always put.

    on_progress: receives the number of cells, after each batch.
    Cost:   memory for the depth of the value times its children, independent of its size.
    """
    count = 0
    batch: list[tuple[bytes, bytes]] = []
    waiting: set[bytes] = set()
    top = value_hash(value)
    stack: list[tuple[bytes, object, bool]] = [(top, value, False)]
    while stack:
        hash, kid, is_done = stack.pop()
        if is_done:
            batch.append((hash, encode(kid)))
            waiting.add(hash)
            if len(batch) >= _BATCH_CELLS:
                count += store.put_encodings(batch)
                batch.clear()
                waiting.clear()
                if on_progress is not None:
                    on_progress(count)
            continue
        # Children come before parents in every batch, so a stored cell is complete.
        if hash in waiting or store.has(hash):
            continue
        # A cell of the base has everything below it there: a store keeps complete values only.
        if base is not None and hash != top and base.has(hash):
            continue
        # Loaded here, one path at a time: the value never is in memory as one.
        cell: Value = kid.resolve() if isinstance(kid, Ref) else kid
        stack.append((hash, cell, True))
        stack.extend((below, one, False) for below, one in branch_kids(cell))
    return count + store.put_encodings(batch)
