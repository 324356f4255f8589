"""Several processes edit one folder at once, beside a running node and without one."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from datalattice.apps.queue import Topics
from datalattice.client import Folder, edit, reading, waiting, write_key
from datalattice.crypto import KeyPair
from datalattice.cursors import RootLattice
from datalattice.lattice import root_lattice
from datalattice.testing.processes import killing

PATIENCE_S = 120.0
EDITORS = 4
EDITS = 15
COMMAND = [sys.executable, "-m", "datalattice.cli", "node", "start", "--port", "0"]

ADD = """
import sys
from pathlib import Path
from datalattice.apps.queue import Topics
from datalattice.client import Folder, edit, waiting

def add_one(cursor, keys):
    queue = Topics.at(cursor, keys.public_key).partition("t", 0)
    queue.set_meta("count", (queue.get_meta("count") or 0) + 1)
    queue.set_meta(sys.argv[2], (queue.get_meta(sys.argv[2]) or 0) + 1)

sys.stdin.read()  # all begin together
for _ in range(int(sys.argv[3])):
    with waiting(float(sys.argv[4])):
        edit(Folder(Path(sys.argv[1])), add_one)
"""

pytestmark = [pytest.mark.once, pytest.mark.processes]


def add_one(cursor: RootLattice, keys: KeyPair) -> None:
    queue = Topics.at(cursor, keys.public_key).partition("t", 0)
    count = queue.get_meta("count") or 0
    assert isinstance(count, int)
    queue.set_meta("count", count + 1)


@pytest.mark.parametrize("with_node", [True, False])
def test_no_edit_is_lost_and_none_is_made_twice(tmp_path: Path, with_node: bool) -> None:
    folder = Folder(tmp_path / "home")
    keys = KeyPair(bytes(32))
    write_key(folder.key_path, keys)
    edit(folder, add_one)
    with ExitStack() as ending:

        def start(*command: str) -> subprocess.Popen[str]:
            pipe = subprocess.PIPE
            process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
            return ending.enter_context(killing(process))

        node = start(*COMMAND, "--dir", str(folder.path)) if with_node else None
        if node is not None:
            assert node.stdout is not None
            assert node.stdout.readline().startswith("listening at ")
        editors = [
            start(sys.executable, "-c", ADD, str(folder.path), f"e{n}", str(EDITS), str(PATIENCE_S))
            for n in range(EDITORS)
        ]
        for one in editors:
            assert one.stdin is not None
            one.stdin.close()
        for _ in range(EDITS):
            with waiting(PATIENCE_S):
                edit(folder, add_one)
        assert [one.wait(PATIENCE_S) for one in editors] == [0] * EDITORS
        if node is not None:
            node.terminate()
            node.wait(PATIENCE_S)
    with reading(folder) as root:
        mq = Topics.at(RootLattice(root_lattice(), root), keys.public_key)
        queue = mq.partition("t", 0)
        assert queue.get_meta("count") == 1 + EDITS * (EDITORS + 1)
        assert [queue.get_meta(f"e{n}") for n in range(EDITORS)] == [EDITS] * EDITORS
