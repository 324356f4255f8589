"""Weaver stores of folders that were restored, copied or cloned: nothing acknowledged is lost."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import datalattice
from datalattice.errors import Unfenced

pytestmark = [pytest.mark.once, pytest.mark.processes, pytest.mark.timeout(180)]

TIMEOUT = 40.0


def wait(store: datalattice.KVStore[str], key: str, value: str) -> None:
    """Wait until a store has a value."""
    changes = store.watch(prefix=key, timeout=TIMEOUT)  # before the first look
    while store.get(key) != value:
        assert next(changes, None) is not None, f"{key} is {store.get(key)!r}"


def shared(home: Path, guest: Path) -> int:
    """Make a store that both sites have; return where home listens."""
    with datalattice.serve(home) as here, datalattice.serve(guest) as there:
        notes = here.store("notes", "kv")
        notes["first"] = "before the copy"
        wait(there.join(notes.invite()), "first", "before the copy")
        assert here.address is not None
        return int(here.address.rpartition(":")[2])


def write_more(home: Path, guest: Path, port: int, count: int) -> None:
    """Write as home, and see the guest have it."""
    with datalattice.serve(home, port=port) as here, datalattice.serve(guest) as there:
        notes = here.store("notes")
        for number in range(count):
            notes[f"late {number}"] = "acknowledged"
        wait(there.store("notes"), f"late {count - 1}", "acknowledged")


def test_a_restored_folder_fetches_its_own_writes_before_it_writes(tmp_path: Path) -> None:
    home, guest, backup = tmp_path / "home", tmp_path / "guest", tmp_path / "backup"
    port = shared(home, guest)
    shutil.copytree(home, backup)
    write_more(home, guest, port, 300)
    shutil.rmtree(home)
    shutil.copytree(backup, home)
    with datalattice.open(home) as node:
        notes = node.store("notes")
        with pytest.raises(Unfenced, match="lattice node start"):
            notes["too early"] = "would fork"
        assert notes["first"] == "before the copy"  # reading goes on
    with datalattice.serve(home, port=port) as here, datalattice.serve(guest) as there:
        notes, copy = here.store("notes"), there.store("notes")
        wait(notes, "late 299", "acknowledged")
        notes["after"] = "the restore"
        wait(copy, "after", "the restore")
        assert dict(notes) == dict(copy)
        assert len(notes) == 302
        assert notes.status().forks == copy.status().forks == 0
