"""Commands that write without a node: what was written elsewhere is asked for first."""

from __future__ import annotations

import gc
import shutil
from pathlib import Path
from typing import Any

import pytest

from datalattice.client import Folder, offline, read_key_pairs
from datalattice.client.fence import ask_peers
from datalattice.client.settings import load_settings
from datalattice.store import CellStore
from datalattice.testing.folders import running_node

NOWHERE = "127.0.0.1:1"
COPIED = "this folder was copied, restored or moved"


def begin(lattice: Any, tmp_path: Path) -> Path:
    """Make a folder with 5 records, a backup from when it had 3, and a node's folder with all."""
    home = tmp_path / "home"
    lattice("key", "new")
    lattice("queue", "offer", "log", "a", "b", "c")
    shutil.copytree(home, tmp_path / "backup")
    lattice("queue", "offer", "log", "d", "e")
    shutil.copytree(home, tmp_path / "peer")
    return home


def peers(home: Path, *addresses: str) -> None:
    (home / "node.toml").write_text(f"node.peers = {list(addresses)}")


def restore(home: Path, tmp_path: Path) -> None:
    """Put the backup in the place of the folder, as a machine does that was lost."""
    with CellStore.open(tmp_path / "backup" / "store") as store:
        store.place().settle()  # a node wrote to the backed-up folder, at another place than this
    shutil.rmtree(home)
    shutil.copytree(tmp_path / "backup", home)


def values(lattice: Any) -> list[str]:
    found: list[str] = lattice("queue", "range", "log").out.split()
    return found


def test_a_restored_folder_appends_behind_what_a_peer_has(lattice: Any, tmp_path: Path) -> None:
    home = begin(lattice, tmp_path)
    restore(home, tmp_path)
    with running_node(tmp_path / "peer", has_key=False) as peer:
        peers(home, str(peer.address))
        offered = lattice("queue", "offer", "log", "f")
    assert (offered.code, offered.err) == (0, "")
    assert values(lattice) == list("abcdef")


def test_copies_of_a_folder_count_in_columns_of_their_own(lattice: Any, tmp_path: Path) -> None:
    home = tmp_path / "home"
    lattice("key", "new")
    lattice("db", "incr", "shop", "visits", "7")
    shutil.copytree(home, tmp_path / "backup")
    lattice("db", "incr", "shop", "visits", "10")
    gc.collect()  # as the end of a process would, before its folder moves
    others = [home.rename(tmp_path / "original")]
    for name in ("one", "two"):
        others.append(Path(shutil.copytree(tmp_path / "backup", tmp_path / name)))
        for amount in ("100", "1000"):
            lattice("db", "incr", "shop", "visits", amount, "--dir", others[-1])
    shutil.copytree(tmp_path / "backup", home)
    lattice("db", "incr", "shop", "visits", "10000")
    for other in others:
        archive = tmp_path / f"{other.name}.cells"
        assert lattice("disk", "export", "HEAD", archive, "--dir", other).code == 0
        assert lattice("disk", "import", archive, "--merge").code == 0
    assert lattice("db", "get", "shop", "visits").out == f"{7 + 10 + 2 * 1_100 + 10_000}\n"


def test_without_a_peer_a_restored_folder_is_written_to_only_offline(
    lattice: Any, tmp_path: Path
) -> None:
    home = begin(lattice, tmp_path)
    restore(home, tmp_path)
    peers(home, NOWHERE)
    for command in ("queue offer log f", "queue truncate log 1", "db set shop k 1"):
        refused = lattice(*command.split())
        assert refused.code == 75
        assert refused.line().startswith(COPIED)
        assert "--offline" in refused.line()
    assert values(lattice) == list("abc")
    assert lattice("queue", "offer", "log", "f", "--offline").code == 0
    assert values(lattice) == list("abcf")
    with CellStore.open(home / "store") as store:
        assert store.place().unfenced_ms is not None  # a node that starts here is degraded


def test_a_copy_is_noticed_though_only_commands_without_peers_wrote_there(
    lattice: Any, tmp_path: Path
) -> None:
    home = begin(lattice, tmp_path)
    peers(home, NOWHERE)
    assert lattice("queue", "offer", "log", "f").code == 0, "it lies where it was"
    home.rename(tmp_path / "lost")  # not removed: the copy might get its inodes
    shutil.copytree(tmp_path / "backup", home)
    peers(home, NOWHERE)
    assert lattice("queue", "offer", "log", "f").line().startswith(COPIED)


def test_where_a_folder_lies_as_it_did_a_peer_out_of_reach_is_told_and_does_not_matter(
    lattice: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    home = begin(lattice, tmp_path)
    peers(home, NOWHERE)
    assert lattice("queue", "offer", "log", "f").code == 0
    assert values(lattice) == list("abcdef")
    assert "writing without having asked a peer (127.0.0.1:1: " in caplog.text


def test_nothing_is_asked_without_peers_and_a_wrong_setting_is_one_line(
    lattice: Any, tmp_path: Path
) -> None:
    home = begin(lattice, tmp_path)
    restore(home, tmp_path)
    assert lattice("queue", "offer", "log", "f").code == 0
    (home / "node.toml").write_text("node.peers = 5")
    refused = lattice("queue", "offer", "log", "g")
    assert (refused.code, "peers" in refused.line()) == (2, True)


def test_the_choice_to_be_offline_ends_with_its_command(lattice: Any, tmp_path: Path) -> None:
    home = begin(lattice, tmp_path)
    peers(home, NOWHERE)
    for _ in range(2):
        restore(home, tmp_path)
        peers(home, NOWHERE)
        assert lattice("db", "set", "shop", "k", "1").code == 75
        assert lattice("db", "set", "shop", "k", "1", "--offline").code == 0
    config = load_settings(home / "node.toml", {}, {}).config
    keys = read_key_pairs(Folder(home))
    with offline(), CellStore.open(home / "store") as store:
        assert ask_peers(Folder(home), store, keys, config) is not None


# --- lost commits ---------------------------------------------------------------------------------


def lose(home: Path) -> None:
    """Cut the end of the log, which was acknowledged, and go on without it."""
    file = home / "store" / "segments" / "00000001.seg"
    with file.open("r+b") as handle:
        handle.truncate(file.stat().st_size - 10)
    CellStore.open(home / "store", repair=True).close()


def test_a_loss_is_accepted_once_a_peer_has_said_what_was_written(
    lattice: Any, tmp_path: Path
) -> None:
    home = begin(lattice, tmp_path)
    lose(home)
    assert values(lattice) == list("abc")
    peers(home, NOWHERE)
    for command in (("queue", "offer", "log", "f"), ("disk", "heal", "--accept-loss")):
        refused = lattice(*command)
        assert refused.code == 1
        assert refused.line().endswith("lattice disk heal --accept-loss --offline")
    with running_node(tmp_path / "peer", has_key=False) as peer:
        peers(home, str(peer.address))
        assert lattice("queue", "offer", "log", "f").code == 0
    assert values(lattice) == list("abcdef")
    with CellStore.open(home / "store") as store:
        assert store.loss is None


def test_a_loss_is_accepted_offline_where_that_is_asked_for(lattice: Any, tmp_path: Path) -> None:
    home = begin(lattice, tmp_path)
    lose(home)
    peers(home, NOWHERE)
    assert lattice("disk", "heal", "--accept-loss", "--offline").code == 0
    assert lattice("queue", "offer", "log", "f", "--offline").code == 0
    assert values(lattice) == list("abcf")
