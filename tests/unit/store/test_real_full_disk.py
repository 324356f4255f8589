"""Disks of the operating system that fill: small file systems, and a limit of a file's size."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from datalattice.cells import Map, missing
from datalattice.engine import LmdbEngine
from datalattice.errors import StoreFull
from datalattice.store import CellStore
from datalattice.store.log.freespace import RESERVE_FILE

DISK_BYTES = 48 << 20
SPARE_BYTES = 8 << 20
CELLS = 30_000

KILLED = f"""
import os, sys
from datalattice.cells import Map
from datalattice.store import CellStore
store = CellStore.open(sys.argv[1], spare_bytes={SPARE_BYTES})
store.commit(Map.of({{f"key {{n}}": f"text {{n}} ".ljust(150, "x") for n in range({CELLS})}}))
store.space.ask()
os._exit(0)
"""

LIMITED = f"""
import os, resource, sys
from datalattice.cells import Map
from datalattice.store import CellStore
store = CellStore.open(sys.argv[1])
value = Map.of({{f"key {{n}}": f"text {{n}} ".ljust(150, "x") for n in range({CELLS})}})
store.commit(value)
before = store.root_hash()
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
store.close()
resource_left = os.path.getsize(os.path.join(sys.argv[1], "index", "data.mdb"))
assert resource_left <= 300_000, resource_left
print(before.hex())
"""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system in memory, which takes the rights of an administrator."""
    if not sys.platform.startswith("linux") or os.geteuid() or shutil.which("mount") is None:
        pytest.skip("mounting a small file system takes Linux and the rights of its administrator")
    folder = tmp_path / "disk"
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", folder],
        check=False,
        capture_output=True,
        text=True,
    )
    if made.returncode:
        pytest.skip(f"no small file system can be mounted here: {made.stderr.strip()}")
    try:
        yield folder
    finally:
        # What a test has left open goes with it.
        subprocess.run(["umount", "--lazy", folder], check=True)


def fill(folder: Path) -> Path:
    """Take every byte that is free."""
    path = folder / "filler"
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4_096))
    return path


def run(code: str, folder: Path) -> str:
    """Run Python code in a process of its own; return what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", code, folder], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_killed_store_on_a_full_disk_starts_collects_and_closes(small_disk: Path) -> None:
    folder = small_disk / "store"
    run(KILLED, folder)
    assert (folder / RESERVE_FILE).stat().st_size > CELLS * 100
    fill(small_disk)
    assert shutil.disk_usage(small_disk).free == 0
    with CellStore.open(folder, spare_bytes=SPARE_BYTES) as store:
        # A node writes files of its own before it serves.
        assert shutil.disk_usage(small_disk).free > CELLS * 100
        root = store.root()
        assert isinstance(root, Map)
        assert len(root) == CELLS
        store.collect(grace_ms=0)
    with CellStore.open(folder, spare_bytes=SPARE_BYTES) as store:
        assert missing(store.root()) == []
        assert store.check().is_clean


def test_a_store_whose_index_finds_no_room_at_the_end_closes_and_loses_nothing(
    tmp_path: Path,
) -> None:
    if sys.platform == "win32":
        pytest.skip("Windows has no limit of a file's size")
    folder = tmp_path / "store"
    before = run(LIMITED, folder).strip()
    with CellStore.open(folder) as store:
        root = store.root_hash()
        assert root is not None
        assert root.hex() == before
        assert missing(store.root()) == []
        assert store.check().is_clean


def test_tables_on_a_full_disk_say_that_there_is_no_room(small_disk: Path) -> None:
    engine = LmdbEngine(small_disk / "tables", ["t"], durable=False)
    filler = fill(small_disk)
    for left in (0, 4_096, 40_960):  # none of it fits, or a part of it
        os.truncate(filler, filler.stat().st_size - left)

        def write() -> None:
            with engine.write() as txn:
                txn.put_many("t", ((n.to_bytes(8, "big"), bytes(1_000)) for n in range(1_000)))

        with pytest.raises(StoreFull, match="no room left"):
            write()
    filler.unlink()
    write()
    engine.close()
