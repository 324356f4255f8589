"""Folders that were restored or cloned, as an operator meets them: commands and nodes as processes.

Nothing that was acknowledged is out of reach in the end, roots are equal, and words say what to do.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from datalattice.actions import GetNodeHealth, whole_document
from datalattice.client import connect
from datalattice.testing.polling import until
from datalattice.testing.processes import killing

PATIENCE_S = 120.0
COMMAND = [sys.executable, "-m", "datalattice.cli"]

pytestmark = [pytest.mark.once, pytest.mark.processes]

Ran = subprocess.CompletedProcess[str]
Process = subprocess.Popen[str]


def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "DATALATTICE_HOME": str(folder), "DATALATTICE_DEBUG": ""}


def lattice(folder: Path, *arguments: str) -> Ran:
    """Run one command to its end."""
    return subprocess.run(
        [*COMMAND, *arguments],
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def done(folder: Path, *arguments: str) -> str:
    ran = lattice(folder, *arguments)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def records(folder: Path) -> list[str]:
    return done(folder, "queue", "range", "orders").splitlines()


def status(folder: Path) -> Any:
    """Return what a running node says of itself, as `lattice node status` asks for it."""
    client = connect(folder)
    assert client is not None
    with client:
        return whole_document(client.call(GetNodeHealth()))


def until_equal(*folders: Path) -> None:
    until(lambda: len({status(folder)["root_hash"] for folder in folders}) == 1)


class Nodes:
    """Nodes as processes; whatever still runs at the end is ended."""

    def __init__(self) -> None:
        self._running: dict[Path, Process] = {}
        self.ending = ExitStack()

    def start(self, folder: Path, port: str = "0") -> str:
        """Start the node of a folder; return its address once it serves."""
        process = subprocess.Popen(
            [*COMMAND, "node", "start", "--port", port],
            env=environment(folder),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._running[folder] = self.ending.enter_context(killing(process))
        assert process.stdout is not None
        said = process.stdout.readline()
        assert said.startswith("listening at "), said
        return said.split()[-1]

    def stop(self, folder: Path) -> None:
        process = self._running.pop(folder)
        process.terminate()
        process.communicate(timeout=PATIENCE_S)


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    found = Nodes()
    with found.ending:
        yield found


@pytest.fixture
def peer(tmp_path: Path) -> Path:
    folder = tmp_path / "peer"
    done(folder, "key", "new")
    return folder


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    done(folder, "key", "new")
    return folder


def restore(backup: Path, home: Path) -> None:
    """Put a backup in the place of a folder; the two are never in one place at one time."""
    copy = home.with_name("copy")
    shutil.copytree(backup, copy)
    shutil.rmtree(home)
    copy.rename(home)


def test_a_restored_backup_loses_nothing_with_its_peer_and_without(
    home: Path, peer: Path, nodes: Nodes, tmp_path: Path
) -> None:
    address = nodes.start(peer)
    (home / "node.toml").write_text(f'node.peers = ["{address}"]')
    nodes.start(home)
    done(home, "queue", "offer", "orders", "common")
    nodes.stop(home)
    backup = tmp_path / "backup"
    shutil.copytree(home, backup)
    nodes.start(home)
    done(home, "queue", "offer", "orders", "later", "later still")
    until_equal(home, peer)
    nodes.stop(home)

    # Its peer runs: what it has is there before the first write.
    restore(backup, home)
    assert done(home, "queue", "offer", "orders", "behind") == "orders 0: offset 3\n"
    assert records(home) == ["common", "later", "later still", "behind"]
    nodes.start(home)
    until_equal(home, peer)
    nodes.stop(home)

    # Its peer does not run: a write is refused, until it is accepted that nobody was asked.
    nodes.stop(peer)
    restore(backup, home)
    refused = lattice(home, "queue", "offer", "orders", "x")
    assert refused.returncode == 75
    assert "copied, restored or moved" in refused.stderr
    new = [f"new{number}" for number in range(4)]
    done(home, "queue", "offer", "orders", *new, "--offline")
    nodes.start(peer, address.rpartition(":")[2])
    nodes.start(home)
    until_equal(home, peer)
    until(lambda: "two histories of orders/0; 3 records" in status(home)["health"])
    assert 'run "lattice forks list"' in status(home)["health"]
    (listed,) = json.loads(done(home, "forks", "list", "--json"))
    assert listed["next"] == "resolve --append, --export or --drop"
    id = listed["id"][:8]
    shown = done(home, "forks", "show", id)
    assert "orders/0: the two agree before offset 1." in shown
    assert "not in it     offsets 1 to 3, last write" in shown
    lost = ["later", "later still", "behind"]
    lines = done(home, "forks", "resolve", id, "--export").splitlines()
    assert [json.loads(one)["value"] for one in lines] == lost
    proof = str(tmp_path / "proof")
    done(home, "forks", "export", id, proof)
    assert done(tmp_path / "nowhere", "forks", "verify", proof).startswith("FORK: ")
    done(home, "forks", "resolve", id, "--append")
    until_equal(home, peer)
    until(lambda: status(home)["health"] == "ok")
    assert records(home) == records(peer) == ["common", *new, *lost]


def test_a_cloned_folder_is_named_at_both_ends_until_one_has_another_identity(
    home: Path, peer: Path, nodes: Nodes, tmp_path: Path
) -> None:
    address = nodes.start(peer)
    (home / "node.toml").write_text(f'node.peers = ["{address}"]')
    done(home, "queue", "offer", "orders", "common")
    clone = tmp_path / "clone"
    shutil.copytree(home, clone)
    nodes.start(home)
    nodes.start(clone)
    for folder in (home, clone):
        until(lambda: "another node runs with the identity" in status(folder)["health"])  # noqa: B023
        refused = lattice(folder, "queue", "offer", "orders", "x")
        assert (refused.returncode, refused.stdout) == (1, "")
        assert "run `lattice key identity new` in its folder" in refused.stderr
        nodes.stop(folder)
    done(clone, "key", "identity", "new")
    for folder in (home, clone):
        nodes.start(folder)
        done(folder, "queue", "offer", "orders", folder.name)
        until_equal(*{home, folder, peer})
        assert status(folder)["health"] == "ok"
    until_equal(home, clone, peer)
    assert records(home) == records(clone) == records(peer) == ["common", "home", "clone"]
