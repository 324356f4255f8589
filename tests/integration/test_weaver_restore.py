"""Weaver stores of folders that were restored, copied or cloned: nothing acknowledged is lost."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import datalattice
from datalattice.client import offline
from datalattice.errors import Unfenced

pytestmark = [pytest.mark.once, pytest.mark.processes, pytest.mark.timeout(180)]

TIMEOUT = 40.0


def wait(store: datalattice.KVStore[str], key: str, value: str) -> None:
    """Wait until a store has a value."""
    changes = store.watch(prefix=key, timeout=TIMEOUT)  # before the first look
    while store.get(key) != value:
        assert next(changes, None) is not None, f"{key} is {store.get(key)!r}"


def has_forked(store: datalattice.KVStore[str]) -> bool:
    return store.status().forks == 1


def until(store: datalattice.KVStore[str], condition: Callable[[], bool]) -> None:
    """Wait until a condition holds, which is looked at after each change of a store."""
    changed = threading.Event()
    end = store.store.on_change(lambda _seq: changed.set())
    while not condition():
        assert changed.wait(TIMEOUT)
        changed.clear()
    end()


def share(home: Path, guest: Path, port: int) -> None:
    """Make a store that both sites have; port: where home listens."""
    with datalattice.serve(home, port=port) as here, datalattice.serve(guest) as there:
        notes = here.store("notes", "kv")
        notes["first"] = "before the copy"
        wait(there.join(notes.invite()), "first", "before the copy")


def back_up(folder: Path, target: Path) -> None:
    """Run `lattice disk backup`, as its user does."""
    command = [sys.executable, "-m", "datalattice.cli", "--dir", str(folder)]
    command += ["disk", "backup", str(target)]
    ran = subprocess.run(command, check=False, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


def write_more(home: Path, guest: Path, port: int, count: int) -> None:
    """Write as home, and see the guest have it."""
    with datalattice.serve(home, port=port) as here, datalattice.serve(guest) as there:
        notes = here.store("notes")
        for number in range(count):
            notes[f"late {number}"] = "acknowledged"
        wait(there.store("notes"), f"late {count - 1}", "acknowledged")


def test_a_restored_folder_fetches_its_own_writes_before_it_writes(
    tmp_path: Path, port: int
) -> None:
    home, guest, backup = tmp_path / "home", tmp_path / "guest", tmp_path / "backup"
    share(home, guest, port)
    back_up(home, backup)
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


def test_a_backup_beside_writers_is_a_whole_folder_and_every_write_is_there_after_a_sync(
    tmp_path: Path, port: int
) -> None:
    home, guest, backup = tmp_path / "home", tmp_path / "guest", tmp_path / "backup"
    share(home, guest, port)
    with datalattice.serve(home, port=port) as here, datalattice.serve(guest) as there:
        notes, copy = here.store("notes"), there.store("notes")
        written = 0
        copying = threading.Thread(target=back_up, args=(home, backup))
        copying.start()
        while copying.is_alive():
            notes[f"during {written}"] = "acknowledged"
            written += 1
        copying.join()
        wait(copy, f"during {written - 1}", "acknowledged")
        here.database("shop")["opened"] = True
    assert written > 0
    shutil.rmtree(home)
    shutil.copytree(backup, home)
    with datalattice.open(home, read_only=True) as node:
        restored = node.store("notes")
        assert len(restored) == len(dict(restored)) >= 1
        assert restored.store.status().applied == restored.store.status().intentions
    with datalattice.serve(home, port=port) as here, datalattice.serve(guest) as there:
        notes, copy = here.store("notes"), there.store("notes")
        notes["after"] = "the restore"  # waits until the guest has said what it has
        wait(copy, "after", "the restore")
        assert {f"during {number}" for number in range(written)} < set(notes)
        assert dict(notes) == dict(copy)
        assert notes.status().forks == copy.status().forks == 0


def lattice(folder: Path, *words: str) -> Any:
    command = [sys.executable, "-m", "datalattice.cli", "--dir", str(folder), *words, "--json"]
    return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)


def test_a_fork_keeps_both_histories_and_the_node_that_made_it_can_join_them(
    tmp_path: Path, port: int
) -> None:
    home, guest, backup = tmp_path / "home", tmp_path / "guest", tmp_path / "backup"
    share(home, guest, port)
    back_up(home, backup)
    write_more(home, guest, port, 5)
    shutil.rmtree(home)
    shutil.copytree(backup, home)
    with datalattice.open(home) as node, offline():  # the user's own risk
        notes = node.store("notes")
        for number in range(3):
            notes[f"risky {number}"] = "acknowledged, too"
    with datalattice.serve(home, port=port) as here, datalattice.serve(guest) as there:
        notes, copy = here.store("notes"), there.store("notes")
        copy["from the guest"] = "after the fork"
        wait(notes, "from the guest", "after the fork")
        for store in (notes, copy):
            until(store, partial(has_forked, store))
    # Both histories can be read at each: one is the state, the other one is listed.
    listed = {
        name: lattice(folder, "store", "forks", "notes")
        for name, folder in (("home", home), ("guest", guest))
    }
    assert [row["operation"] for row in listed["home"]] == [
        f'(data (put "late {number}" "acknowledged"))' for number in range(5)
    ]
    assert [row["operation"] for row in listed["guest"]] == [
        f'(data (put "risky {number}" "acknowledged, too"))' for number in range(3)
    ]
    assert lattice(guest, "store", "forks", "notes", "--append")["written"] == []
    assert len(lattice(home, "store", "forks", "notes", "--append")["written"]) == 3
    assert lattice(home, "store", "forks", "notes", "--append")["written"] == []
    with datalattice.serve(home, port=port) as here, datalattice.serve(guest) as there:
        notes, copy = here.store("notes"), there.store("notes")
        notes["after"] = "it was joined"
        wait(copy, "after", "it was joined")
        assert dict(notes) == dict(copy)
        assert {f"late {number}" for number in range(5)} < set(copy)
        assert {f"risky {number}" for number in range(3)} < set(copy)
        with notes.store.read() as view:
            assert view.fsck(3) == []
