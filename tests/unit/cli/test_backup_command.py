"""Command `lattice disk backup`, and what `lattice disk` says of weaver stores."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import datalattice
from datalattice.engine import open_engine
from datalattice.weaver import STORE_TABLES, PeerStatus, SystemBatch


@pytest.fixture
def home(lattice: Any, tmp_path: Path) -> Path:
    """Make a folder with a queue and a store of five intentions."""
    assert lattice("queue", "offer", "log", "a record").code == 0
    for key, value in (("title", "Shopping"), ("title", "Groceries"), ("tea", "3")):
        assert lattice("kv", "put", "notes", key, value).code == 0
    return tmp_path / "home"


def test_a_copy_has_all_of_a_folder_and_is_one(lattice: Any, home: Path, tmp_path: Path) -> None:
    (home / "node.toml").write_text("[node]\nport = 0\n")
    copy = tmp_path / "copy"
    ran = lattice("disk", "backup", copy, "--json")
    assert ran.code == 0, ran.err
    assert (ran.document["stores"], ran.document["intentions"]) == (1, 5)
    assert ran.document["files"] == ["node.toml", "identity.key"]
    assert (copy / "identity.key").stat().st_mode & 0o777 == 0o600
    assert lattice("kv", "get", "notes", "title", "-d", copy).out == "Groceries\n"
    assert lattice("queue", "tail", "log", "-d", copy).out == "a record\n"
    assert lattice("disk", "check", "-d", copy).code == 0
    lattice("kv", "put", "notes", "tea", "4")
    lattice("queue", "offer", "log", "another record")
    assert lattice("disk", "backup", copy).code == 0
    assert lattice("kv", "get", "notes", "tea", "-d", copy).out == "4\n"
    assert lattice("queue", "tail", "log", "-d", copy).out == "a record\nanother record\n"


def test_keys_are_left_out_where_that_is_asked(lattice: Any, home: Path, tmp_path: Path) -> None:
    assert home.is_dir()
    assert lattice("disk", "backup", tmp_path / "copy", "--without-keys").code == 0
    assert not list((tmp_path / "copy").glob("**/*.key"))


def test_a_copy_that_has_more_stays_as_it_is(lattice: Any, home: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    assert lattice("disk", "backup", copy).code == 0
    lattice("kv", "put", "notes", "later", "only in the copy", "-d", copy)
    ran = lattice("disk", "backup", copy)
    assert (ran.code, "has data that this node lacks" in ran.line()) == (2, True)
    assert lattice("kv", "get", "notes", "later", "-d", copy).out == "only in the copy\n"
    shutil.rmtree(home / "weaver")  # a folder that began anew
    other = tmp_path / "other"
    shutil.copytree(copy, other)
    assert lattice("disk", "backup", other).code == 2
    assert lattice("disk", "backup", home).line().startswith(f"{home} is the folder itself")


def test_a_restored_copy_is_in_doubt_and_so_is_its_queue(
    lattice: Any, home: Path, tmp_path: Path
) -> None:
    with datalattice.open(home) as node:
        peer = SystemBatch().set_peer_status(b"p" * 32, PeerStatus.ACTIVE)
        node.store("notes").store.write_system(peer)
    assert lattice("disk", "backup", tmp_path / "copy").code == 0
    shutil.rmtree(home)
    shutil.copytree(tmp_path / "copy", home)
    ran = lattice("kv", "put", "notes", "tea", "5")
    assert ran.code == 75
    assert "copied, restored or moved" in ran.line()
    assert "copied, restored or moved" in lattice("store", "open", "notes").out
    (home / "node.toml").write_text('[node]\npeers = ["127.0.0.1:1"]\nfence_moved_wait_ms = 100\n')
    assert lattice("queue", "offer", "log", "more").code == 75
    (home / "node.toml").unlink()
    assert lattice("kv", "put", "notes", "tea", "5", "--offline").code == 0
    assert lattice("kv", "put", "notes", "tea", "6").code == 0
    document = lattice("store", "open", "notes", "--json").document
    assert document["doubt"] == "it was written to without having asked a peer; no answer since"


def test_settings_may_accept_that_no_peer_is_asked(
    lattice: Any, home: Path, tmp_path: Path
) -> None:
    with datalattice.open(home) as node:
        peer = SystemBatch().set_peer_status(b"p" * 32, PeerStatus.ACTIVE)
        node.store("notes").store.write_system(peer)
    shutil.copytree(home, tmp_path / "copy")
    (tmp_path / "copy" / "node.toml").write_text("node.accept_unfenced = true\n")
    assert lattice("kv", "put", "notes", "tea", "5", "-d", tmp_path / "copy").code == 0


def test_stats_and_check_know_weaver_stores(lattice: Any, home: Path) -> None:
    document = lattice("disk", "stats", "--json").document
    assert (document["stores"], document["intentions"]) == (1, 5)
    sizes = [(home / "weaver" / name).stat().st_size for name in ("data.mdb", "journal")]
    assert document["weaver_bytes"] == sum(sizes)
    assert "intentions" in lattice("disk", "stats").out
    assert lattice("disk", "check", "--json").document["weaver"]["faults"] == []
    engine = open_engine(home / "weaver", STORE_TABLES)
    with engine.write() as txn:
        (key, row), *_ = list(txn.scan("witness"))[2:]
        txn.put("witness", key, row[:-1] + bytes([row[-1] ^ 1]))
    engine.close()
    ran = lattice("disk", "check")
    assert ran.code == 1
    assert ran.out.splitlines()[-1] == "damaged"
    assert "weaver store is damaged" in ran.line()


def test_a_folder_with_weaver_stores_alone_has_figures_and_a_copy(
    lattice: Any, tmp_path: Path
) -> None:
    lattice("kv", "put", "notes", "tea", "3")
    assert lattice("disk", "stats", "--json").document["intentions"] == 3
    assert lattice("disk", "check").code == 0
    assert lattice("disk", "backup", tmp_path / "copy").code == 0
    assert lattice("kv", "get", "notes", "tea", "-d", tmp_path / "copy").out == "3\n"
