"""The work of one merge task, and the documents that tasks and driver exchange.

A task merges some inputs, or some partials, of one unit into a new store in the staging folder, and
answers with its path.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from datalattice.cells import Value, Vector, decode_message, encode_message, value_hash
from datalattice.crypto import Entropy, SystemEntropy
from datalattice.errors import BadFormat, UsageError
from datalattice.lattice import MergeContext, root_lattice, verify_did
from datalattice.pipeline.jobs.inputs import (
    CACHE_BYTES,
    JobInput,
    open_stores,
    root_of,
    staged_encoding,
)
from datalattice.pipeline.jobs.partials import (
    Delta,
    KeyRange,
    OwnerBucket,
    Partial,
    Seal,
    Tally,
    Unit,
    UnitMerger,
    stage,
)
from datalattice.store import CellStore, copy_cells, import_cells, unsound_below
from datalattice.sync import LatticeReplica, Remark, absorb_import, is_left_out, offer_of

NAME_BYTES = 8
"""Random bytes in a folder's name, so that attempts of a task use different folders."""


@dataclass(frozen=True, slots=True)
class Reduction:
    """What every task of a merge needs."""

    staging: str
    """The folder that tasks stage in; the driver and all tasks can reach it."""
    base: str
    """The store whose cells need not be staged."""
    public_keys: tuple[bytes, ...]
    """Of the keys that the driver signs with."""
    units: tuple[Unit, ...]
    """What is merged separately; a payload names one by its number."""

    @property
    def ranges(self) -> tuple[KeyRange, ...]:
        """The units that are key ranges."""
        return tuple(one for one in self.units if isinstance(one, KeyRange))


def admit_input(staging: str, sound: str, payload: bytes) -> bytes:
    """Check an input before it is merged; return its document, which names where to read it.

    An archive is imported into a store. An input with malformed cells is imported as well, without
    the parts that a node would refuse.
    sound: a store whose cells are known to be sound, or empty.
    Raises: BadFormat: an archive is damaged. UsageError: it cannot be read. MissingData,
            Corruption: a store is incomplete.
    """
    one = read_input(json.loads(payload))
    if not one.is_archive:
        store = open_stores.get(one.path)
        known = open_stores.get(sound) if sound else None
        # Cells that the target node has were checked by its intake.
        is_sound = not unsound_below(store, one.root, known)
        open_stores.done()
        if is_sound:
            return json.dumps({**input_document(one), "left_out": [], "count": 0}).encode()
    apart: dict[bytes, bytes] = {}
    with staged_store(staging) as (store, folder):
        root = _copied(one, store, apart)
        left_out: list[Remark] = []
        if apart:
            replica = LatticeReplica(store, root_lattice(), MergeContext(verifier=verify_did))
            taken = absorb_import(replica, offer_of(root, apart))
            # What a node would refuse is left out here, so the merge of the rest is that of a node.
            left_out = [remark for remark in taken.reports if is_left_out(remark)]
            # An input whose root itself is refused has nothing to merge.
            root = b"" if root in taken.refused else value_hash(replica.root)
    made = input_document(JobInput(one.name, folder, root))
    return json.dumps(
        {
            **made,
            "left_out": [remark.text for remark in left_out],
            "count": sum(remark.count for remark in left_out),
        }
    ).encode()


def _copied(one: JobInput, store: CellStore, apart: dict[bytes, bytes]) -> bytes:
    """Copy the cells of an input into a store, unsound ones and their parents into `apart`.

    Returns the root's hash. Raises: as `admit_input`.
    """
    if not one.is_archive:
        copy_cells(open_stores.get(one.path), one.root, store, apart=apart)
        # Durable before the answer: the driver may read this store after the task's machine
        # crashed.
        store.sync()
        return one.root
    try:
        with Path(one.path).open("rb") as file:
            return import_cells(store, file.read, apart=apart)[0]
    except OSError as error:
        raise UsageError(f"{one.path}: tasks cannot read it ({error.strerror})") from None
    except BadFormat as error:
        raise BadFormat(f"{one.name}: {error}") from error


@contextmanager
def staged_store(staging: str, entropy: Entropy | None = None) -> Iterator[tuple[CellStore, str]]:
    """Yield a new store in the staging folder, and its path; it is durable after the block.

    Raises: UsageError: the folder is not writable.
    """
    # Random, because Spark may run two attempts of a task at once.
    name = (entropy or SystemEntropy()).bytes(NAME_BYTES).hex()
    folder = str(Path(staging) / name)
    try:
        Path(folder).mkdir(mode=0o700)
    except OSError as error:
        raise UsageError(
            f"the staging folder {staging} cannot be written to by tasks ({error.strerror}); "
            "name one that the driver and all tasks reach under the same path"
        ) from None
    # Closing the store makes it durable, before the task answers.
    with CellStore.open(folder, cache_bytes=CACHE_BYTES) as store:
        yield store, folder


def reduce_some(reduction: Reduction, payload: bytes) -> bytes:
    """Merge some inputs or partials of one unit. Runs in a task."""
    open_stores.done()  # a task that failed before did not call it
    document = json.loads(payload)
    unit = reduction.units[document["unit"]]
    merger = UnitMerger(reduction.public_keys, reduction.ranges)
    base = open_stores.get(reduction.base)
    made = merger.merge(unit, _operands(merger, unit, document["of"], base))
    with staged_store(reduction.staging) as (store, folder):
        answer = _staged(made, store, base)
    open_stores.done()
    tally = merger.tally
    return json.dumps(
        {
            **answer,
            "path": folder,
            "dropped": tally.dropped,
            "dropped_at": [path_hex(one) for one in tally.dropped_at],
            "queue_forks": tally.queue_forks,
        }
    ).encode()


def _operands(
    merger: UnitMerger, unit: Unit, documents: list[dict[str, Any]], base: CellStore
) -> Iterator[Partial]:
    for document in documents:
        # Inputs have a name, partials do not.
        if "name" in document:
            yield merger.take(root_of(read_input(document)), unit)
        else:
            made = read_partial(document, base)
            # Signatures of deputies are zeros; a merge would drop them unless they count as
            # verified.
            if isinstance(unit, OwnerBucket):
                made.value = merger.resealed(made.value)
            yield made


def read_input(document: dict[str, Any]) -> JobInput:
    """Return the input in a document."""
    return JobInput(document["name"], document["path"], bytes.fromhex(document["root"]))


def input_document(one: JobInput) -> dict[str, Any]:
    """Return the document of an input."""
    return {"name": one.name, "path": one.path, "root": one.root.hex()}


def _staged(made: Partial, store: CellStore, base: CellStore) -> dict[str, Any]:
    # Only what the base lacks: every task and the driver can read the base.
    count = 0 if made.value is None else stage(made.value, store, base)
    forks: dict[str, list[str]] = {}
    for path, values in made.forks.items():
        count += sum(stage(value, store, base) for value in values)
        forks[path_hex(path)] = [value_hash(value).hex() for value in values]
    seals = {
        path_hex(slot): [
            [one.public_key.hex(), one.signature.hex(), one.message.hex()] for one in found
        ]
        for slot, found in made.seals.items()
    }
    root = None if made.value is None else value_hash(made.value).hex()
    return {"root": root, "staged": count, "forks": forks, "seals": seals}


def read_partial(document: dict[str, Any], base: CellStore) -> Partial:
    """Return the partial that a task staged; cells come from its store, otherwise from the base."""
    delta = Delta(partial(staged_encoding, document["path"]), base)
    forks = {
        read_path(path): [delta.load(bytes.fromhex(one)) for one in values]
        for path, values in document["forks"].items()
    }
    seals = {
        read_path(path): {Seal(*map(bytes.fromhex, one)) for one in found}
        for path, found in document["seals"].items()
    }
    root = document["root"]
    return Partial(None if root is None else delta.load(bytes.fromhex(root)), forks, seals)


def add_tally(tally: Tally, document: dict[str, Any]) -> None:
    """Add the counts in a task's answer."""
    tally.dropped += document["dropped"]
    tally.queue_forks += document["queue_forks"]
    tally.dropped_at += map(read_path, document["dropped_at"])


def path_hex(path: tuple[Value, ...]) -> str:
    """Return a path of keys as text; `read_path` is the inverse."""
    return encode_message(Vector.of(path)).hex()


def read_path(text: str) -> tuple[Value, ...]:
    """Return the path in a text."""
    found = decode_message(bytes.fromhex(text))
    assert isinstance(found, Vector)
    return tuple(found)
