"""Fork vectors: which of two forked values is the greater, and what their join is.

A file has the format `forks-1`. Each vector names a lattice and holds `own`, `other` and `join` as
messages with their hashes, and `greater`: own, other, or neither where the elements are equal and
the hashes of the signed cells decide.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from datalattice.apps.dlfs import DLFSLattice
from datalattice.apps.grid import JOB_LATTICE
from datalattice.apps.kv import KVStoreLattice
from datalattice.apps.queue import topic_map_lattice
from datalattice.cells import Value, decode_message, value_hash
from datalattice.conformance.checks import (
    Fields,
    Mismatch,
    expect,
)
from datalattice.conformance.registry import Case, VectorFormat, register_format, register_kind
from datalattice.conformance.runner import listed_vectors
from datalattice.lattice import Lattice, LWWLattice, MapLattice, SetLattice, Walk, verdict

_FORMAT: Final = "forks-1"
FORK_KIND: Final = "fork"

FORK_LATTICES: Final[dict[str, Lattice]] = {
    "queue": topic_map_lattice(),
    "kv": KVStoreLattice(),
    "dlfs": DLFSLattice(),
    "set": SetLattice(),
    "lww": MapLattice(LWWLattice()),
    "job": JOB_LATTICE,
}
"""The lattices of fork vectors by name."""

ANSWERS: Final = {1: "own", -1: "other", 0: "neither"}


def _cases(document: Fields) -> Iterable[Case]:
    return [Case(name, fields.text("kind"), fields) for name, fields in listed_vectors(document)]


def _read(fields: Fields, name: str) -> Value:
    stated = fields.fields(name)
    stated.only("message", "hash")
    value = decode_message(stated.hex("message"))
    # The message and its hash: a changed vector is noticed before it is judged.
    expect(f"hash of {name}", stated.hex("hash"), value_hash(value))
    return value


def run_fork(fields: Fields) -> None:
    """Check the order of two values, from both sides, and their join."""
    fields.only("id", "kind", "lattice", "own", "other", "greater", "join")
    lattice = FORK_LATTICES.get(fields.text("lattice"))
    if lattice is None:
        raise Mismatch(f"lattice: one of {', '.join(FORK_LATTICES)}, got {fields['lattice']!r}")
    own, other = _read(fields, "own"), _read(fields, "other")
    found = verdict(lattice.latest(own, other, Walk()))
    fields.expect("greater", ANSWERS[found])
    # Replicas must decide alike, from whichever side they look.
    expect("the other way round", -found, verdict(lattice.latest(other, own, Walk())))
    join = _read(fields, "join")
    expect("join", value_hash(join).hex(), value_hash(lattice.merge(own, other)).hex())


register_format(
    VectorFormat("fork vectors", lambda document: document.get("format") == _FORMAT, _cases)
)
register_kind(FORK_KIND, run_fork)
