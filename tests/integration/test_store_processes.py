"""Real processes: a writer killed at any moment, readers beside a writer."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from datalattice.cells import Vector, missing
from datalattice.crypto import SystemEntropy
from datalattice.store import CellStore
from datalattice.testing.processes import killing

PATIENCE_S = 120.0

WRITER = """
import sys
from datalattice.cells import Vector
from datalattice.store import CellStore
store = CellStore.open(sys.argv[1], segment_bytes=65_536, recent_entries=200)
value = store.root() if store.root_hash() else Vector.of([])
step = int(sys.argv[2])
while True:
    begin = len(value)
    value = value.extend([f"{i} ".ljust(160, "x") for i in range(begin, begin + step)])
    store.commit(value)
    print(len(value), flush=True)
"""

READER = """
import sys
from datalattice.cells import missing
from datalattice.store import CellStore
store = CellStore.open(sys.argv[1], read_only=True)
print("ready", flush=True)
for line in sys.stdin:
    root = store.root()
    absent = missing(root) if line == "deep\\n" else []
    print(len(root), len(absent), root[len(root) - 1].split()[0], flush=True)
"""


def start(program: str, *arguments: str) -> AbstractContextManager[subprocess.Popen[str]]:
    return killing(
        subprocess.Popen(
            [sys.executable, "-c", program, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
    )


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


@pytest.mark.processes
def test_a_killed_writer_loses_nothing_acknowledged(tmp_path: Path) -> None:
    entropy = SystemEntropy()
    acknowledged = 0
    for turn in range(6):
        with start(WRITER, str(tmp_path), str(1 + 20 * (turn % 2))) as writer:
            acknowledged = int(line(writer))
            deadline = time.monotonic() + entropy.bytes(1)[0] / 500
            while time.monotonic() < deadline:
                acknowledged = int(line(writer))
            writer.kill()
            rest = writer.communicate()[0].splitlines()  # what it said before it died counts too
        complete = [text for text in rest if text.isdigit()]
        acknowledged = int(complete[-1]) if complete else acknowledged
        with CellStore.open(tmp_path, read_only=True) as reader:
            root = reader.root()
            assert isinstance(root, Vector)
            assert len(root) >= acknowledged
    with CellStore.open(tmp_path) as store:
        root = store.root()
        assert isinstance(root, Vector)
        assert len(root) >= acknowledged > 0
        assert missing(root) == []
        assert all(str(text).startswith(f"{i} ") for i, text in enumerate(root))
        assert not store.damage


@pytest.mark.processes
def test_a_reader_sees_every_acknowledged_commit(tmp_path: Path) -> None:
    CellStore.open(tmp_path).close()
    with (
        CellStore.open(tmp_path, recent_entries=300, segment_bytes=65_536) as store,
        start(READER, str(tmp_path)) as reader,
    ):
        assert line(reader) == "ready\n"
        assert reader.stdin is not None
        value = Vector.of([])
        for turn in range(60):
            begin = len(value)
            value = value.extend([f"{i} ".ljust(160, "x") for i in range(begin, begin + 17)])
            store.commit(value)
            reader.stdin.write("deep\n" if turn % 10 == 0 else "look\n")
            reader.stdin.flush()
            assert line(reader) == f"{len(value)} 0 {len(value) - 1}\n"
        reader.stdin.close()
        assert reader.wait(PATIENCE_S) == 0
