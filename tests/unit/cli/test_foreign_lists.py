"""Lists of what everybody has: what a foreign owner wrote costs them nothing but its own rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from datalattice.apps.dlfs.node import make_directory, make_file
from datalattice.apps.queue.state import ZERO_STATE
from datalattice.cells import Index, Keyword, Map, Signed, Value, Vector
from datalattice.client import folder_of
from datalattice.crypto import KeyPair
from datalattice.lattice import MergeContext, did_of, root_lattice, verify_did
from datalattice.store import CellStore

STRANGER = KeyPair(b"s" * 32)
PARTITIONS = Keyword("partitions")


def endless() -> Vector:
    """Return a vector of 16 times one vector, and so on down: a few cells, a text without end."""
    made = Vector.of(["x" * 100] * 16)
    for _ in range(9):
        made = Vector.of([made] * 16)
    return made


def topic(partition: Value) -> Index:
    return Index.of([(PARTITIONS, Map.of([(partition, ZERO_STATE)]))])


def plant(section: str, value: Value) -> None:
    """Put into the folder what a stranger signed, as a node does that met one."""
    slot = Signed.sign(STRANGER, value)
    if section == "grid":
        part: Value = Index.of(
            [(Keyword("venues"), Index.of([(did_of(STRANGER.public_key), slot)]))]
        )
    else:
        part = Map.of([(STRANGER.public_key, slot)])
    root = Index.of([(Keyword(section), part)])
    with CellStore.open(folder_of(None).store_path) as store:
        context = MergeContext(verifier=verify_did)
        store.commit(root_lattice().merge(store.root(), root, context))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Map.of([(None, topic(0))]),
        lambda: Map.of([("", topic(0))]),
        lambda: Map.of([(endless(), topic(0))]),
        lambda: Map.of([("t", topic(endless()))]),
    ],
    ids=["nil", "empty", "a name without end", "a partition without end"],
)
def test_topics_are_listed_beside_those_of_a_stranger(
    lattice: Any, owner: str, make: Callable[[], Map]
) -> None:
    assert lattice("queue", "offer", "log", "mine").code == 0
    plant("queue", make())
    ran = lattice("queue", "list", "--json")
    assert ran.code == 0, ran.err
    listed = [(one["owner"], one["topic"]) for one in ran.document]
    assert (owner, "log") in listed
    assert lattice("queue", "range", "log").out == "mine\n"


def test_databases_are_listed_beside_those_of_a_stranger(lattice: Any, owner: str) -> None:
    assert lattice("db", "set", "d", "k", "v").code == 0
    plant("kv", Map.of([("", Index.of([("k", Vector.of(("v", 0, 5, None)))]))]))
    listed = lattice("db", "list", "--json").document
    assert [(one["owner"], one["database"]) for one in listed] == [(owner, "d")]


@pytest.mark.parametrize(
    "drive",
    [
        make_file(b"no directory", 5),
        Vector.of([1, 2]),
        make_directory(Index.of([("n" * 5_000, make_file(b"", 5))]), 5),
    ],
    ids=["a file", "no node", "a name of several cells"],
)
def test_drives_are_listed_beside_those_of_a_stranger(
    lattice: Any, owner: str, drive: Value
) -> None:
    assert lattice("fs", "mkdir", "mine:/folder").code == 0
    plant("fs", Map.of([("theirs", drive)]))
    ran = lattice("fs", "drives", "--json")
    assert ran.code == 0, ran.err
    assert (owner, "mine") in [(one["owner"], one["drive"]) for one in ran.document]


@pytest.mark.usefixtures("owner")
def test_jobs_of_any_operation_are_listed(lattice: Any) -> None:
    assert lattice("db", "set", "d", "k", "v").code == 0
    job = Map.of([("status", "PENDING"), ("op", endless()), ("updated", 5)])
    plant("grid", Index.of([(Keyword("jobs"), Index.of([(b"j" * 16, job)]))]))
    ran = lattice("venue", "jobs", "--json", "--venue", did_of(STRANGER.public_key))
    assert ran.code == 0, ran.err
    assert len(ran.document) == 1


@pytest.mark.usefixtures("owner")
def test_changes_are_listed_beside_those_of_a_stranger(lattice: Any) -> None:
    assert lattice("queue", "offer", "log", "mine").code == 0
    plant("queue", Map.of([("t", topic(0))]))
    plant("queue", Map.of([("t", topic(0)), (endless(), topic(endless()))]))
    newest, older = [one["hash"] for one in lattice("history", "--json").document][:2]
    for form in ((), ("--json",)):
        ran = lattice("diff", older, newest, *form)
        assert ran.code == 0, ran.err
