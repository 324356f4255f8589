"""Rows of the benchmark that measure drives: one large file written, read, appended to and edited.

Each task runs in a process of its own, on a drive over a cell store and on a plain file beside it,
on the same disk with the same bytes. A write counts once it is durable: the file is synced, the
store has committed. The two take turns at writing, and medians are the row. Peak memory is that of
the writing process above its size before the task.
"""

from __future__ import annotations

import json
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from figures import Row, row

MIB = 1 << 20
PATH = "/big"
WRITES = 3
EDITS = 21
EDIT_BYTES = 4_096


def pieces(count: int) -> Iterator[bytes]:
    """Yield `count` MiB, at most 4,096, of which no two chunks are alike."""
    # Each piece begins a byte later: random bytes are slow to make, and equal chunks cost nothing.
    block = random.Random(1).randbytes(MIB + count)
    for number in range(count):
        yield block[number : number + MIB]


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class _Plain:
    """A file of the machine's own file system."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "plain"

    def write(self, count: int) -> None:
        import os

        with self._path.open("wb", buffering=0) as file:
            for piece in pieces(count):
                file.write(piece)
            os.fsync(file.fileno())

    def read(self, count: int) -> None:
        with self._path.open("rb", buffering=0) as file:
            while file.read(MIB):
                pass

    def edit(self, position: int | None, data: bytes) -> None:
        import os

        with self._path.open("ab" if position is None else "r+b", buffering=0) as file:
            if position is not None:
                file.seek(position)
            file.write(data)
            os.fsync(file.fileno())

    def close(self) -> None:
        """Nothing is open."""


class _Drive:
    """A file of a drive over a cell store."""

    def __init__(self, folder: Path) -> None:
        from datalattice.apps.dlfs import DLFSLattice, Drive
        from datalattice.cursors import RootLattice
        from datalattice.store import CellStore

        self._store = CellStore.open(folder / "store")
        root = RootLattice(DLFSLattice(), self._store.root(), on_sync=self._commit)
        self._drive = Drive(root, stage=self._store.put)

    def _commit(self, value: object) -> object:
        self._store.commit(value)
        return value

    def write(self, count: int) -> None:
        from datalattice.cells import Blob, blob_from
        from datalattice.store import WriteBuffer

        with WriteBuffer(self._store.put) as staging:
            content = blob_from(pieces(count), staging)
        assert isinstance(content, (bytes, Blob))
        self._drive.write(PATH, content)
        self._drive.sync()

    def read(self, count: int) -> None:
        for at in range(count):
            self._drive.read(PATH, at * MIB, (at + 1) * MIB)

    def edit(self, position: int | None, data: bytes) -> None:
        if position is None:
            self._drive.append(PATH, data)
        else:
            self._drive.write_at(PATH, position, data)
        self._drive.sync()

    def close(self) -> None:
        self._store.close()


def work(kind: str, task: str, folder: Path, count: int) -> dict[str, float]:
    """Do one task and return its figures. Runs in a process of its own."""
    before = _peak_bytes()
    home = (_Drive if kind == "drive" else _Plain)(folder)
    dice = random.Random(2)
    if task in ("append", "edit"):
        seconds = []
        for _ in range(EDITS):
            data = dice.randbytes(EDIT_BYTES)
            # The same places in both files, as the dice begin alike.
            position = None if task == "append" else dice.randrange(count * MIB - EDIT_BYTES)
            start = time.perf_counter()
            home.edit(position, data)
            seconds.append(time.perf_counter() - start)
        figures = {"ms": statistics.median(seconds) * 1e3}
    else:
        start = time.perf_counter()
        (home.write if task == "write" else home.read)(count)
        figures = {"rate": count / (time.perf_counter() - start)}
    figures["peak"] = (_peak_bytes() - before) / MIB
    home.close()
    return figures


def _run(kind: str, task: str, folder: Path, count: int) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, __file__, kind, task, str(folder), str(count)],
        capture_output=True,
        text=True,
        check=True,
    )
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def _in_turn(task: str, unit: str, folder: Path, count: int) -> list[dict[str, float]]:
    """Return the figures of the drive and of the plain file, each the median of its turns."""
    found: dict[str, list[dict[str, float]]] = {"drive": [], "plain": []}
    # A first write of so many bytes also pays for memory that the machine has to find.
    for _ in range(WRITES if task == "write" else 1):
        for kind, figures in found.items():
            if task == "write" and kind == "drive":
                shutil.rmtree(folder / "store", ignore_errors=True)  # equal chunks cost nothing
            figures.append(_run(kind, task, folder, count))
    return [
        sorted(figures, key=lambda one: one[unit])[len(figures) // 2] for figures in found.values()
    ]


def rows(quick: bool) -> Iterator[Row]:
    """Yield the rows of large files."""
    count = 64 if quick else 1024
    units = {"write": "rate", "read": "rate", "append": "ms", "edit": "ms"}
    folder = Path(tempfile.mkdtemp(prefix="fs-"))
    peaks: dict[str, float] = {}
    size = f"{count} MiB"
    try:
        for task, unit in units.items():
            ours, plain = _in_turn(task, unit, folder, count)
            if task in ("write", "append"):
                peaks[task] = ours["peak"]
                peaks[f"{task} of the plain file"] = plain["peak"]
            beside = {"file system": plain[unit]}
            yield row(f"fs {task} {size}", ours[unit], "MiB/s" if unit == "rate" else "ms", beside)
        yield row(f"fs peak memory {size}", peaks.pop("write"), "MiB", peaks)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    _, kind_, task_, folder_, count_ = sys.argv
    print(json.dumps(work(kind_, task_, Path(folder_), int(count_))))
