"""Reduction: what one task of a merge does, and the form in which tasks and driver tell each other.

A task merges some inputs, or some partials, of one unit, puts what it made into a store of its own
in the staging folder, and answers with where it is.
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
from datalattice.errors import UsageError
from datalattice.pipeline.jobs.inputs import (
    CACHE_BYTES,
    Input,
    open_stores,
    root_of,
    staged_encoding,
)
from datalattice.pipeline.jobs.partials import (
    Bucket,
    Delta,
    Merger,
    Partial,
    Range,
    Seal,
    Tally,
    Unit,
    stage,
)
from datalattice.store import CellStore, import_cells

NAME_BYTES = 8
"""Random bytes in the name of a folder, so that no two attempts of a task meet."""


@dataclass(frozen=True, slots=True)
class Reduction:
    """What all tasks of a merge know."""

    staging: str
    """The folder that tasks stage in; the driver and all tasks reach it."""
    base: str
    """The store whose cells need not be staged."""
    public_key: bytes | None
    """Of the key that signs in the end."""
    ranges: tuple[Range, ...] = ()

    def __reduce__(self) -> tuple[object, ...]:
        ranges = [unit_document(one) for one in self.ranges]
        return _restored, (self.staging, self.base, self.public_key, ranges)


def _restored(
    staging: str, base: str, public_key: bytes | None, ranges: list[dict[str, Any]]
) -> Reduction:
    units = [read_unit(one) for one in ranges]
    return Reduction(
        staging, base, public_key, tuple(one for one in units if isinstance(one, Range))
    )


def unpack(staging: str, payload: bytes) -> bytes:
    """Put the cells of an archive into a store; return its folder and the hash of its root."""
    path = payload.decode()
    with staged_store(staging) as (store, folder):
        try:
            with Path(path).open("rb") as file:
                root, _ = import_cells(store, file.read)
        except OSError as error:
            raise UsageError(f"{path}: tasks cannot read it ({error.strerror})") from None
    return json.dumps([folder, root.hex()]).encode()


@contextmanager
def staged_store(staging: str, entropy: Entropy | None = None) -> Iterator[tuple[CellStore, str]]:
    """Give a new store in the staging folder, and its path; it is durable when the block ends.

    Raises: UsageError: the folder cannot be written to.
    """
    name = (entropy or SystemEntropy()).bytes(NAME_BYTES).hex()
    folder = str(Path(staging) / name)
    try:
        Path(folder).mkdir(mode=0o700)
    except OSError as error:
        raise UsageError(
            f"the staging folder {staging} cannot be written to by tasks ({error.strerror}); "
            "name one that the driver and all tasks reach under the same path"
        ) from None
    with CellStore.open(folder, cache_bytes=CACHE_BYTES) as store:
        yield store, folder


def reduce_some(reduction: Reduction, payload: bytes) -> bytes:
    """Merge some inputs or partials of one unit; the work of a task."""
    open_stores.done()  # whatever became of the task before
    document = json.loads(payload)
    unit = read_unit(document["unit"])
    merger = Merger(reduction.public_key, reduction.ranges)
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
            "dropped_at": [path_text(one) for one in tally.dropped_at],
            "queue_forks": tally.queue_forks,
        }
    ).encode()


def _operands(
    merger: Merger, unit: Unit, documents: list[dict[str, Any]], base: CellStore
) -> Iterator[Partial]:
    for document in documents:
        if "name" in document:
            one = Input(document["name"], document["path"], bytes.fromhex(document["root"]))
            yield merger.take(root_of(one), unit)
        else:
            made = read_partial(document, base)
            if isinstance(unit, Bucket):
                made.value = merger.resealed(made.value)
            yield made


def input_document(one: Input) -> dict[str, Any]:
    """Return an input as tasks are told it."""
    return {"name": one.name, "path": one.path, "root": one.root.hex()}


def _staged(made: Partial, store: CellStore, base: CellStore) -> dict[str, Any]:
    count = 0 if made.value is None else stage(made.value, store, base)
    forks: dict[str, list[str]] = {}
    for path, values in made.forks.items():
        count += sum(stage(value, store, base) for value in values)
        forks[path_text(path)] = [value_hash(value).hex() for value in values]
    seals = {
        path_text(slot): [
            [one.public_key.hex(), one.signature.hex(), one.message.hex()] for one in found
        ]
        for slot, found in made.seals.items()
    }
    root = None if made.value is None else value_hash(made.value).hex()
    return {"root": root, "staged": count, "forks": forks, "seals": seals}


def read_partial(document: dict[str, Any], base: CellStore) -> Partial:
    """Return what a task staged; cells are loaded from its store, else from the base."""
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
    """Add what a task's merges reported."""
    tally.dropped += document["dropped"]
    tally.queue_forks += document["queue_forks"]
    tally.dropped_at += map(read_path, document["dropped_at"])


def unit_document(unit: Unit) -> dict[str, Any]:
    """Return a unit in the form that tasks are told."""
    if isinstance(unit, Bucket):
        return {"bucket": [unit.number, unit.count]}
    return {
        "slot": path_text(unit.slot),
        "name": path_text((unit.name,)),
        "low": None if unit.low is None else unit.low.hex(),
        "high": None if unit.high is None else unit.high.hex(),
    }


def read_unit(document: dict[str, Any]) -> Unit:
    """Return the unit of a document."""
    if "bucket" in document:
        return Bucket(*document["bucket"])
    low, high = document["low"], document["high"]
    return Range(
        read_path(document["slot"]),
        read_path(document["name"])[0],
        None if low is None else bytes.fromhex(low),
        None if high is None else bytes.fromhex(high),
    )


def path_text(path: tuple[Value, ...]) -> str:
    """Return a path of keys as text that reads back as exactly these keys."""
    return encode_message(Vector.of(path)).hex()


def read_path(text: str) -> tuple[Value, ...]:
    """Return the path of a text."""
    found = decode_message(bytes.fromhex(text))
    assert isinstance(found, Vector)
    return tuple(found)
