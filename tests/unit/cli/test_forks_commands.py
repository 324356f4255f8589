"""Commands `lattice forks ...`: without a node, and through the running one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import datalattice
from datalattice.apps.kv import Database
from datalattice.apps.queue import Topics
from datalattice.cells import Value
from datalattice.client import read_key
from datalattice.crypto import KeyPair
from datalattice.cursors import RootLattice
from datalattice.lattice import MergeContext, root_lattice
from datalattice.store import CellStore
from datalattice.testing.clocks import StoppedClock
from datalattice.testing.folders import alone, fill, running_node

ANN = KeyPair(b"a" * 32)


def queue_root(values: list[str], stamp: int, key: KeyPair, base: Value = None) -> Value:
    root = RootLattice(root_lattice(), base, MergeContext(key_pair=key))
    queue = Topics.at(root, key.public_key, StoppedClock(stamp)).partition("orders", 0)
    queue.offer_many(values, keys=[f"k-{one}" for one in values])
    return root.get()


def kv_root(name: str, stamp: int) -> Value:
    root = RootLattice(root_lattice(), None, MergeContext(key_pair=ANN))
    Database.at(root, ANN.public_key, "shop", clock=StoppedClock(stamp)).set(name, 1)
    return root.get()


def own_fork(tmp_path: Path, lattice: Any) -> Path:
    """Make a folder whose own key wrote two histories of one log."""
    home = tmp_path / "home"
    lattice("key", "new")
    own = read_key(home / "identity.key")
    common = queue_root(["a", "b"], 100, own)
    fill(
        home,
        [
            queue_root(["r1", "r2", "r3"], 300, own, common),
            queue_root(["l1", "l2"], 200, own, common),
        ],
    )
    return home


def strangers_fork(tmp_path: Path, lattice: Any) -> Path:
    """Make a folder that keeps a branch of another owner's database."""
    home = tmp_path / "home"
    lattice("key", "new")
    fill(home, [kv_root("old", 10), kv_root("new", 20)])
    return home


@pytest.mark.parametrize("through", [alone, running_node])
def test_records_that_a_log_lost_are_listed_shown_and_appended_once(
    tmp_path: Path, lattice: Any, through: Any
) -> None:
    home = own_fork(tmp_path, lattice)
    with through(home):
        [row] = lattice("forks", "list", "--json").document
        assert (row["kind"], row["mine"], row["section"]) == ("log", True, ":queue")
        [log] = row["logs"]
        assert (log["topic"], log["partition"], log["first"], log["records"]) == ("orders", 0, 2, 2)
        shown = lattice("forks", "show", row["id"][:6]).out
        assert "in the log    offsets 2 to 4" in shown
        assert "not in it     offsets 2 to 3" in shown
        done = lattice("forks", "resolve", row["id"][:8], "--append", "--json").document
        assert done["appended"] == [{"topic": "orders", "partition": 0, "offset": 5, "count": 2}]
        assert done["removed"]
        values = lattice("queue", "range", "orders").out.split()
        assert values == ["a", "b", "r1", "r2", "r3", "l1", "l2"]
        assert lattice("forks", "list", "--json").document == []
        again = lattice("forks", "resolve", row["id"], "--append")
        assert (again.code, "no fork" in again.line()) == (1, True)
    assert lattice("forks", "list", "--json").document == []


def test_the_log_tells_where_a_slot_went_over_to_another_branch(
    tmp_path: Path, lattice: Any
) -> None:
    home = tmp_path / "home"
    lattice("key", "new")
    own, mine = read_key(home / "identity.key"), ("queue", f"0x{ANN.public_key.hex()}")
    common = queue_root(["a"], 100, ANN)
    longer = queue_root(["b"], 200, ANN, common)
    fill(home, [common, longer, queue_root(["r"], 300, ANN, common), queue_root(["o"], 400, own)])
    rows = lattice("history", "--json").document
    kinds = [one["kind"] for row in rows for one in row["changed"] if tuple(one["path"]) == mine]
    assert kinds == ["fork", "change", "change"]
    assert all(
        one["kind"] == "change"
        for row in rows
        for one in row["changed"]
        if tuple(one["path"]) != mine
    )
    (line,) = [one for one in lattice("history").out.splitlines() if "FORK" in one]
    assert "FORK: another branch of its owner" in line


@pytest.mark.parametrize("through", [alone, running_node])
def test_export_prints_the_lost_records_and_drop_forgets_them_for_good(
    tmp_path: Path, lattice: Any, through: Any
) -> None:
    home = own_fork(tmp_path, lattice)
    with through(home):
        [row] = lattice("forks", "list", "--json").document
        lines = lattice("forks", "resolve", row["id"], "--export").out.splitlines()
        assert [json.loads(line) for line in lines] == [
            {
                "topic": "orders",
                "partition": 0,
                "offset": 2 + at,
                "key": f"k-{value}",
                "value": value,
                "time": 200,
                "headers": None,
            }
            for at, value in enumerate(["l1", "l2"])
        ]
        assert len(lattice("forks", "list", "--json").document) == 1
        assert lattice("forks", "resolve", row["id"], "--drop").out == "evidence removed\n"
        assert lattice("forks", "list", "--json").document == []
    own = read_key(home / "identity.key")
    fill(home, [queue_root(["l1", "l2"], 200, own, queue_root(["a", "b"], 100, own))])
    assert lattice("forks", "list", "--json").document == []


def test_a_program_reads_what_a_branch_has_in_pages(tmp_path: Path, lattice: Any) -> None:
    home = own_fork(tmp_path, lattice)
    with datalattice.open(home) as node:
        forks = node.forks()
        (fork,) = forks.list()
        pages = [forks.show(fork.id, skip, 1) for skip in range(3)]
        assert [[one.value for one in page.records] for page in pages] == [["l1"], ["l2"], []]
        assert all(page.fork == fork for page in pages)


@pytest.mark.parametrize("through", [alone, running_node])
def test_a_fork_of_another_owner_waits_for_that_owner(
    tmp_path: Path, lattice: Any, through: Any
) -> None:
    home = strangers_fork(tmp_path, lattice)
    with through(home):
        [row] = lattice("forks", "list", "--json").document
        assert (row["kind"], row["mine"], row["owner"]) == ("owner", False, ANN.public_key.hex())
        assert row["entries"] > 0
        shown = lattice("forks", "list").out
        assert "waits for" in shown
        [line] = [
            json.loads(line)
            for line in lattice("forks", "resolve", row["id"], "--export").out.splitlines()
            if '"old"' in line
        ]
        assert "old" in line["path"]
        refused = lattice("forks", "resolve", row["id"], "--append")
        assert refused.code == 2
        assert "left out no records" in refused.line()


def test_records_are_appended_once_peers_were_asked_and_dropped_at_once(
    tmp_path: Path, lattice: Any
) -> None:
    home = own_fork(tmp_path, lattice)
    with CellStore.open(home / "store") as store:
        store.place().settle()
    shutil.copytree(home, tmp_path / "copy")
    (tmp_path / "copy" / "node.toml").write_text('node.peers = ["127.0.0.1:1"]')
    [row] = lattice("forks", "list", "--json").document
    copy = ("--dir", tmp_path / "copy")
    refused = lattice("forks", "resolve", row["id"], "--append", *copy)
    assert (refused.code, "copied, restored or moved" in refused.line()) == (75, True)
    assert lattice("forks", "resolve", row["id"], "--append", "--offline", *copy).code == 0
    assert lattice("forks", "list", "--json", *copy).document == []
    shutil.copytree(home, tmp_path / "another")
    (tmp_path / "another" / "node.toml").write_text('node.peers = ["127.0.0.1:1"]')
    assert lattice("forks", "resolve", row["id"], "--drop", "--dir", tmp_path / "another").code == 0


def test_only_a_node_with_the_owners_key_appends(tmp_path: Path, lattice: Any) -> None:
    home = tmp_path / "home"
    lattice("key", "new")
    common = queue_root(["a"], 100, ANN)
    fill(home, [queue_root(["r"], 300, ANN, common), queue_root(["l"], 200, ANN, common)])
    [row] = lattice("forks", "list", "--json").document
    refused = lattice("forks", "resolve", row["id"], "--append")
    assert refused.code == 2
    assert ANN.public_key.hex() in refused.line()


def test_a_proof_is_written_and_checked_without_a_folder(
    tmp_path: Path, lattice: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    strangers_fork(tmp_path, lattice)
    [row] = lattice("forks", "list", "--json").document
    file = tmp_path / "proof"
    assert lattice("forks", "export", row["id"][:8], file, "--json").document["bytes"] > 100
    assert "exists already" in lattice("forks", "export", row["id"][:8], file).line()
    monkeypatch.setenv("DATALATTICE_HOME", str(tmp_path / "nowhere"))
    found = lattice("forks", "verify", file, "--json")
    assert (found.code, found.document["verdict"]) == (0, "FORK")
    assert found.document["owner"] == ANN.public_key.hex()
    assert set(found.document["cells"]) == {row["here"], row["branch"]}
    file.write_bytes(file.read_bytes()[:-1])
    assert lattice("forks", "verify", file).code == 2


@pytest.mark.parametrize("name", ["none", "folder", "none/below"])
def test_a_proof_that_cannot_be_read_has_an_exit_code_of_its_own(
    tmp_path: Path, lattice: Any, name: str
) -> None:
    (tmp_path / "folder").mkdir()
    ran = lattice("forks", "verify", tmp_path / name)
    assert (ran.code, str(tmp_path / name) in ran.line()) == (3, True)
    assert lattice("forks", "verify", tmp_path / name, "--json").error["error"] == "system"


def test_mistakes_are_one_line(tmp_path: Path, lattice: Any) -> None:
    own_fork(tmp_path, lattice)
    [row] = lattice("forks", "list", "--json").document
    for arguments, code, says in (
        (("show", "zz"), 1, "no fork 'zz'"),
        (("show", ""), 1, "no fork ''"),
        (("resolve", row["id"]), 2, "choose one of"),
        (("resolve", row["id"], "--append", "--drop"), 2, "choose one of"),
    ):
        ran = lattice("forks", *arguments)
        assert ran.code == code
        assert says in ran.line()


def test_forks_of_own_and_watched_owners_alone_degrade_a_node(tmp_path: Path, lattice: Any) -> None:
    home = strangers_fork(tmp_path, lattice)
    with running_node(home):
        status = lattice("node", "status", "--json").document
        assert status["health"] == "ok"
    with running_node(home, watched_owners=(ANN.public_key.hex(),)):
        status = lattice("node", "status", "--json").document
        assert "signed two values of :kv" in status["reasons"]["forks"]
        assert 'run "lattice forks list"' in status["health"]
        [row] = lattice("forks", "list", "--json").document
        lattice("forks", "resolve", row["id"], "--drop")
        assert lattice("node", "status", "--json").document["health"] == "ok"


def test_a_log_of_ones_own_that_lost_records_degrades_the_node(
    tmp_path: Path, lattice: Any
) -> None:
    home = own_fork(tmp_path, lattice)
    with running_node(home):
        reason = lattice("node", "status", "--json").document["reasons"]["forks"]
        assert "your key" in reason
        assert "wrote two histories of orders/0; 2 records are not in the log" in reason
