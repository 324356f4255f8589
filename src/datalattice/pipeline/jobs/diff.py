"""Compare two roots on Spark: which keys differ, and who signed them, as rows.

    frame = diff(spark, "backup/store", "data/node@HEAD~1")
    frame.groupBy("section", "change").count().show()

The driver compares the upper cells of both trees by hash and divides the rest among tasks. Subtrees
that both sides share are not read.

Source: docs/spark-jobs.md "Diff".
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from datalattice.arrow import name_text, record_batch
from datalattice.cells import (
    ABSENT,
    Value,
    Vector,
    brief,
    decode,
    decode_message,
    encode,
    encode_message,
    is_embedded,
    to_text,
)
from datalattice.errors import UsageError
from datalattice.lattice import Lattice, SignedLattice, root_lattice
from datalattice.pipeline.jobs.comparing import PART_KEYS, Signers, ValuePair, planned, row_pairs
from datalattice.pipeline.jobs.inputs import CACHE_BYTES, JobInput, open_stores, resolve_input
from datalattice.pipeline.jobs.tasks import PAYLOADS_MAX, mapped
from datalattice.store import CellStore

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_LEASE_SECONDS: Final = 60 * 60
"""Duration of the leases on both roots: the time to read the rows."""

_BATCH_ROWS: Final = 4_096

_PAIRS_MAX: Final = 1_000_000
"""Most pairs of a plan: owners and databases in which the roots may differ."""

_COLUMNS: Final = (
    "section STRING, owner STRING, path ARRAY<STRING>, change STRING, before STRING, after STRING, "
    "signer_before STRING, signer_after STRING, valid BOOLEAN"
)


class _DiffItem(NamedTuple):
    """A pair as sent to a task: values as encodings; the task loads the cells below by hash."""

    path: bytes
    depth: int
    """Keys of the path that lead to the lattice; 0: the pair has none."""
    owner: bytes
    before: bytes | None
    after: bytes | None
    signers: Signers
    change: str


def diff(spark: SparkSession, before: str, after: str) -> DataFrame:
    """Return a row for each key that differs between two roots.

    before, after: stores or folders of nodes, each perhaps with `@` and a root.

    | column | type | what |
    |---|---|---|
    | section | STRING | the section, such as `:kv` |
    | owner | STRING | the owner: 0x and the public key in hex, or a DID; NULL without an owner |
    | path | ARRAY<STRING> | the keys below that: database and key, topic and partition, file |
    | change | STRING | added, removed, changed, or signed again |
    | before, after | STRING | the beginnings of the values |
    | signer_before, signer_after | STRING | the key that signed the value the row belongs to |
    | valid | BOOLEAN | whether that signature is valid; of two, the later one |

    Both roots are leased for an hour; read the rows within it.
    Raises: UsageError: an input is malformed. MissingData: a root is incomplete.
    Cost:   proportional to the differences.
    """
    inputs = (_leased(before), _leased(after))
    tasks = plan(*inputs)
    return mapped(spark, partial(_batches, inputs, tasks), len(tasks), _COLUMNS)


def _leased(name: str) -> JobInput:
    found = resolve_input(name)
    # A comparison looks cells up by hash; an archive has them in a stream.
    if found.is_archive:
        raise UsageError(f"{name}: an archive cannot be compared; import it into a store first")
    with CellStore.open(found.path, read_only=True, cache_bytes=CACHE_BYTES) as store:
        # The DataFrame is lazy: its tasks run after this function has returned.
        store.lease(found.root, _LEASE_SECONDS)
    return found


def plan(before: JobInput, after: JobInput) -> list[list[_DiffItem]]:
    """Return the pairs that each task compares. Raises: as `diff`."""
    # Equal hashes mean equal trees, so neither store is opened.
    if before.root == after.root:
        return []
    with (
        CellStore.open(before.path, read_only=True, cache_bytes=CACHE_BYTES) as own,
        CellStore.open(after.path, read_only=True, cache_bytes=CACHE_BYTES) as other,
    ):
        tasks: list[list[_DiffItem]] = []
        size = PART_KEYS
        for count, pair in enumerate(planned(own.load(before.root), other.load(after.root))):
            if count == _PAIRS_MAX:
                raise UsageError(f"the roots differ in more than {_PAIRS_MAX} owners and databases")
            # When there are as many tasks as allowed, the last one takes the rest.
            if size + pair.size > PART_KEYS and len(tasks) < PAYLOADS_MAX:
                tasks.append([])
                size = 0
            tasks[-1].append(_item(pair))
            size += pair.size
    return tasks


def _item(pair: ValuePair) -> _DiffItem:
    return _DiffItem(
        encode_message(Vector.of(pair.path)),
        len(pair.path) if pair.lattice is not None else 0,
        encode_message(pair.owner),
        None if pair.before is ABSENT else encode(pair.before),
        None if pair.after is ABSENT else encode(pair.after),
        pair.signers,
        pair.change,
    )


def _pair(item: _DiffItem, own: CellStore, other: CellStore) -> ValuePair:
    path = decode_message(item.path)
    assert isinstance(path, Vector)
    keys = tuple(path)
    return ValuePair(
        keys,
        ABSENT if item.before is None else decode(item.before, own),
        ABSENT if item.after is None else decode(item.after, other),
        _lattice_at(keys, item.signers) if item.depth else None,
        item.signers,
        decode_message(item.owner),
        item.change,
    )


def _lattice_at(keys: tuple[Value, ...], signers: Signers) -> Lattice | None:
    """Return the lattice of a planned pair; steps into signed values are not part of a path."""
    lattice: Lattice | None = root_lattice()
    for key in keys:
        if isinstance(lattice, SignedLattice):
            lattice = lattice.inner
        lattice = None if lattice is None else lattice.child(key)
    # A pair of a signed value was planned below the signature; its path does not show it.
    is_signed = signers.before is not None or signers.after is not None
    return lattice.inner if isinstance(lattice, SignedLattice) and is_signed else lattice


def _batches(
    inputs: tuple[JobInput, JobInput], tasks: list[list[_DiffItem]], task: int
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task."""
    if task >= len(tasks):
        return
    # An earlier task of this process that failed has left its stores marked as needed.
    open_stores.done()
    own, other = (open_stores.get(one.path) for one in inputs)
    rows = (_row(pair) for item in tasks[task] for pair in row_pairs(_pair(item, own, other)))
    while run := list(islice(rows, _BATCH_ROWS)):
        yield record_batch(run, _COLUMNS)


def _row(pair: ValuePair) -> tuple[object, ...]:
    owned = pair.owner is not None
    # The section has a column of its own, and so has the owner.
    below = pair.path[1:]
    if owned:
        below = below[_position(below, pair.owner) + 1 :]
    return (
        name_text(pair.path[0]) if pair.path else None,
        name_text(pair.owner) if owned else None,
        [name_text(key) for key in below],
        pair.kind,
        _value(pair.before),
        _value(pair.after),
        _hex(pair.signers.before),
        _hex(pair.signers.after),
        pair.signers.valid,
    )


def _position(keys: tuple[Value, ...], owner: Value) -> int:
    """Return the index of the owner among keys."""
    return next(i for i, key in enumerate(keys) if encode(key) == encode(owner))


def _value(value: object) -> str | None:
    """Return a small value as printed, a larger one as its type and size."""
    if value is ABSENT:
        return None
    # "A small value as printed, a larger one as its type and size" (docs/spark-jobs.md, Diff).
    return to_text(value) if is_embedded(value) else brief(value)


def _hex(key: bytes | None) -> str | None:
    return None if key is None else "0x" + key.hex()
