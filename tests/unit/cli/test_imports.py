"""`disk import --merge` and `etch import`: a stranger's file can do no more than a peer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from datalattice.apps.kv import Database
from datalattice.cells import Index, Keyword, Map, Value, value_hash
from datalattice.client import read_key
from datalattice.crypto import KeyPair
from datalattice.cursors import RootLattice
from datalattice.lattice import MergeContext, get_in, root_lattice
from datalattice.store import CellStore, export_cells
from datalattice.store.etch import EtchStore
from datalattice.sync import HostingPolicy
from datalattice.testing.clocks import StoppedClock
from datalattice.testing.folders import alone, fill, running_node
from datalattice.testing.malformed import with_malformed_database

ANN, BEN, EVE, HUGE = (KeyPair(bytes([n]) * 32) for n in range(60, 64))
KV, QUEUE, DATA = Keyword("kv"), Keyword("queue"), Keyword("data")
QUOTA = 30_000


def database(key: KeyPair, values: Mapping[str, str], stamp: int = 10) -> Value:
    root = RootLattice(root_lattice(), None, MergeContext(key_pair=key))
    made = Database.at(root, key.public_key, "shop", clock=StoppedClock(stamp))
    for name, value in values.items():
        made.set(name, value)
    return root.get()


def mixture(own: KeyPair) -> tuple[Value, Value]:
    """Return what is here, and a file's root with a part of each kind."""
    honest = database(BEN, {"b": "honest"})
    here = database(ANN, {"here": "1"}, 10)
    bad = with_malformed_database(database(EVE, {f"{n}": "x" * 200 for n in range(400)}), EVE)
    large = database(HUGE, {f"{n}": f"{n} " + "y" * 200 for n in range(200)})
    mine = database(own, {"mine": "1"}, 30)
    slots: dict[Value, Value] = {}
    for root in (honest, database(ANN, {"there": "1"}, 20), bad, large, mine):
        section = get_in(root, [KV])
        assert isinstance(section, Map)
        slots.update(section.entries())
    return here, Index.of([(KV, Map.of(slots.items())), (DATA, Index.of([]))])


def owners(home: Path) -> set[bytes]:
    with CellStore.open(home / "store", read_only=True) as store:
        section = get_in(store.root(), [KV])
        assert isinstance(section, Map)
        return {key for key, _ in section.entries() if isinstance(key, bytes)}


def written(path: Path, root: Value, kind: str) -> Path:
    if kind == "etch":
        with EtchStore.open(path) as etch:
            etch.commit(root)
        return path
    with CellStore.open(path) as store:
        store.commit(root)
        if kind == "store":
            return path
        file = path.with_suffix(".archive")
        with file.open("wb") as out:
            export_cells(store, value_hash(root), out.write)
        return file


@pytest.mark.parametrize(
    ("kind", "through"),
    [("archive", alone), ("archive", running_node), ("store", alone), ("etch", alone)],
)
def test_each_bad_part_of_a_file_costs_that_part_and_is_told(
    tmp_path: Path, lattice: Any, owner: str, through: Any, kind: str
) -> None:
    home = tmp_path / "home"
    (home / "node.toml").write_text(f"[hosting]\nowner_bytes = {QUOTA}\n")
    here, there = mixture(read_key(home / "identity.key"))
    fill(home, [here])
    source = written(tmp_path / "theirs", there, kind)
    command = ("etch", "import") if kind == "etch" else ("disk", "import", "--merge")
    settings = {} if through is alone else {"hosting": HostingPolicy(owner_bytes=QUOTA)}
    with through(home, **settings):
        ran = lattice(*command, source, "--json")
        assert ran.code == 1, ran.err
        told = {one["kind"]: one["text"] for one in ran.document["reports"]}
        assert ran.document["dropped"] == 2, ran.out
        assert ran.document["forked"] == 1
        assert EVE.public_key.hex() in told["malformed"]
        assert "do not fit together" in told["malformed"]
        assert HUGE.public_key.hex() in told["quota-exceeded"]
        assert "owner_bytes" in told["quota-exceeded"]
        assert ANN.public_key.hex() in told["owner-forked"]
        [fork] = lattice("forks", "list", "--json").document
        assert fork["owner"] == ANN.public_key.hex()
        again = lattice(*command, source)
        assert again.code == 1
        assert "left out: 2 parts" in again.err
    mine = bytes.fromhex(owner)
    assert owners(home) == {ANN.public_key, BEN.public_key, mine}
    assert lattice("disk", "check").code == 0


def test_what_the_policy_refuses_is_named(tmp_path: Path, lattice: Any, owner: str) -> None:
    assert owner
    home = tmp_path / "home"
    here, there = mixture(read_key(home / "identity.key"))
    fill(home, [here])
    source = written(tmp_path / "theirs", there, "archive")
    assert lattice("hosting", "refuse", BEN.public_key.hex()).code == 0
    ran = lattice("disk", "import", source, "--merge")
    assert ran.code == 1
    assert f"not-hosted: :kv {BEN.public_key.hex()}: this node does not host it" in ran.out
    assert BEN.public_key not in owners(home)


def test_a_file_that_is_sound_has_exit_code_0(tmp_path: Path, lattice: Any, owner: str) -> None:
    assert owner
    source = written(tmp_path / "theirs", database(BEN, {"b": "honest"}), "archive")
    ran = lattice("disk", "import", source, "--merge", "--json")
    assert (ran.code, ran.document["dropped"], ran.document["reports"]) == (0, 0, [])
    assert owners(tmp_path / "home") == {BEN.public_key}


def test_what_is_malformed_is_not_pinned(tmp_path: Path, lattice: Any, owner: str) -> None:
    assert owner
    _, there = mixture(read_key(tmp_path / "home" / "identity.key"))
    source = written(tmp_path / "theirs", there, "archive")
    ran = lattice("disk", "import", source, "--merge", "--pin", "x")
    assert ran.code == 2
    assert "is not sound" in ran.line()
    assert lattice("pin", "list", "--json").document == []
    assert lattice("history", "--json").document == []
