"""Real processes: many that pin beside a writer, and a writer that is killed."""

from __future__ import annotations

import subprocess
import sys
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest

from datalattice.cells import Vector, missing
from datalattice.store import CellStore
from datalattice.testing.processes import killing

PATIENCE_S = 120.0

WRITER = """
import sys
from datalattice.cells import Vector
from datalattice.store import CellStore
store = CellStore.open(sys.argv[1])
value = Vector.of([])
while True:
    value = value.append(f"{len(value)} ".ljust(200, "x"))
    print(store.commit(value).root_hash.hex(), flush=True)
"""

PINNER = """
import sys
from datalattice.store import CellStore
with CellStore.open(sys.argv[1], read_only=True) as store:
    for number in range(int(sys.argv[3])):
        name = f"{sys.argv[2]}{number}"
        hash = store.root_hash()
        store.pins.pin(hash, name)
        print(name, hash.hex(), flush=True)
        if number % 3 == 2:
            store.pins.unpin(name)
            print(name, "-", flush=True)
"""


def start(program: str, *arguments: str) -> AbstractContextManager[subprocess.Popen[str]]:
    command = [sys.executable, "-c", program, *arguments]
    return killing(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))


@pytest.mark.once
@pytest.mark.processes
def test_pins_of_many_processes_and_the_history_of_a_killed_writer(tmp_path: Path) -> None:
    path = str(tmp_path / "store")
    with ExitStack() as ending:
        writer = ending.enter_context(start(WRITER, path))
        assert writer.stdout is not None
        first = [writer.stdout.readline().strip() for _ in range(3)]
        pinners = [ending.enter_context(start(PINNER, path, name, "9")) for name in "ab"]
        told = "".join(pinner.communicate(timeout=PATIENCE_S)[0] for pinner in pinners)
        writer.kill()
        first += writer.communicate()[0].split()
    acknowledged = [text for text in first if len(text) == 64]
    wanted: dict[str, str] = {}
    for line in told.splitlines():
        name, hash = line.split()
        if hash == "-":
            del wanted[name]
        else:
            wanted[name] = hash
    assert len(wanted) == 12
    with CellStore.open(path) as store:
        assert {pin.name: pin.root_hash.hex() for pin in store.pins.all()} == wanted
        for pin in store.pins.all():
            assert missing(store.load(pin.root_hash)) == []
        remembered = [entry.root_hash.hex() for entry in store.history.entries()]
        known = {hash: place for place, hash in enumerate(acknowledged)}
        places = [known[hash] for hash in remembered if hash in known]
        assert places == sorted(places)
        assert len(remembered) - len(places) <= 2, "at most what was not told any more"
        root = store.root()
        assert isinstance(root, Vector)
        assert remembered[-1] == root.hash.hex()
