"""An open folder: beside other processes, and while nodes start and end."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

import datalattice
from datalattice.apps.queue import Topics
from datalattice.client import (
    Folder,
    OpenFolder,
    OwnKeys,
    edit,
    openfolder,
    opening,
    reading,
    write_key,
)
from datalattice.crypto import KeyPair
from datalattice.cursors import RootLattice
from datalattice.errors import DataLoss, NoSigningKey, StoreClosed, StoreLocked, Unfenced
from datalattice.lattice import root_lattice
from datalattice.store import CellStore, RealDisk
from datalattice.testing.folders import append_change, running_node
from datalattice.testing.polling import LIMIT_S
from datalattice.testing.processes import killing

PATIENCE_S = 50.0
KEYS = KeyPair(bytes(32))

WRITER = """
import sys
from pathlib import Path
import datalattice

with datalattice.open(sys.argv[1]) as node:
    sys.stdin.readline()
    for number in range(int(sys.argv[3])):
        print(node.queue("t").offer(f"{sys.argv[2]} {number}"), flush=True)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    found = Folder(tmp_path / "home")
    write_key(found.key_path, KEYS)
    return found


@pytest.fixture
def data(folder: Folder) -> Iterator[OpenFolder]:
    with closing(OpenFolder.at(folder)) as data:
        yield data


def offer(data: OpenFolder, *values: object, wait_s: float = 10.0) -> range:
    return data.edit(OwnKeys.of(KEYS), append_change(values), wait_s)


def values_in(folder: Folder) -> list[object]:
    with reading(folder) as root:
        queue = Topics.at(RootLattice(root_lattice(), root), KEYS.public_key).partition("t", 0)
        return list(queue.range(0, queue.size() - 1)) if queue.size() else []


def test_it_writes_what_one_shot_edits_read_and_they_write_between(
    folder: Folder, data: OpenFolder
) -> None:
    wanted = []
    for number in range(10):
        assert offer(data, f"kept {number}") == range(2 * number, 2 * number + 1)
        assert edit(folder, append_change([f"one {number}"])) == range(
            2 * number + 1, 2 * number + 2
        )
        wanted += [f"kept {number}", f"one {number}"]
    root = data.root()
    assert values_in(folder) == wanted
    data.close()
    data.close()
    with pytest.raises(StoreClosed):
        offer(data, 1)
    assert root is not None


def test_an_edit_syncs_once(
    folder: Folder, data: OpenFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(data, 0)
    data._turns._keep_s = 1e6
    syncs: list[int] = []
    monkeypatch.setattr(os, "fdatasync", syncs.append)
    monkeypatch.setattr(os, "fsync", syncs.append)
    for number in range(1, 11):
        offer(data, number)
        with data._turns._changed:
            if data._turns._is_held:
                data._turns._give_back()
    assert len(syncs) == 10
    data.close()
    assert values_in(folder) == list(range(11))


def test_it_needs_a_key(tmp_path: Path) -> None:
    with pytest.raises(NoSigningKey):
        edit(Folder(tmp_path), append_change([1]))


def test_nodes_start_and_end_between_its_edits(folder: Folder, data: OpenFolder) -> None:
    for number in range(3):
        offer(data, f"alone {number}")
        with running_node(folder.path):
            offer(data, f"beside {number}")
            with data.editor(OwnKeys.of(KEYS)) as editor:
                assert editor.stage("a text of its own " * 20)
            edit(folder, append_change([f"one {number}"]))
            offer(data, f"again {number}")
            assert data.root() is not None
    offer(data, "last")
    wanted = [f"{how} {n}" for n in range(3) for how in ("alone", "beside", "one", "again")]
    assert values_in(folder) == [*wanted, "last"]


def test_one_that_begins_beside_a_node_goes_on_without(folder: Folder) -> None:
    edit(folder, append_change([0]))
    with closing(OpenFolder.at(folder)) as data:
        with running_node(folder.path):
            assert data.root() is not None
            offer(data, 1)
        offer(data, 2)
    assert values_in(folder) == [0, 1, 2]


def test_a_writer_that_stays_is_named(folder: Folder, data: OpenFolder) -> None:
    offer(data, 0)
    with (
        CellStore.open(folder.store_path, wait_s=PATIENCE_S),
        pytest.raises(StoreLocked, match=f"waited 0.01 s in vain.*process {os.getpid()}"),
    ):
        offer(data, 1, wait_s=0.01)
    assert offer(data, 1) == range(1, 2)


def test_a_restored_folder_is_checked_anew(
    folder: Folder, data: OpenFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked = []

    def check(*_arguments: object, **_named: object) -> None:
        checked.append(1)
        if len(checked) == 2:
            raise Unfenced("no peer was asked")

    monkeypatch.setattr(openfolder, "check_writable", check)
    offer(data, 0)
    CellStore.open(folder.store_path, wait_s=PATIENCE_S).close()
    offer(data, 1)
    assert len(checked) == 1
    CellStore.open(folder.store_path, wait_s=PATIENCE_S).close()
    shutil.copytree(folder.store_path, tmp_path / "copy")
    shutil.rmtree(folder.store_path)
    shutil.copytree(tmp_path / "copy", folder.store_path)
    with pytest.raises(Unfenced):
        offer(data, 2)
    assert offer(data, 2) == range(2, 3), "the check held"
    assert len(checked) == 3


def test_lost_commits_stop_it(folder: Folder, data: OpenFolder) -> None:
    offer(data, 0)
    CellStore.open(folder.store_path, wait_s=PATIENCE_S).close()
    RealDisk().remove(f"{folder.store_path}/end")
    with pytest.raises(DataLoss, match="cannot be excluded"):
        offer(data, 1)
    with pytest.raises(DataLoss):
        offer(data, 1)


def test_threads_share_it_beside_a_node_and_without(folder: Folder, data: OpenFolder) -> None:
    def write(name: str) -> None:
        for number in range(5):
            offsets.append(offer(data, f"{name}{number}")[0])

    offsets: list[int] = []
    threads = [threading.Thread(target=write, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    with running_node(folder.path):
        for thread in threads:
            thread.join()
    assert sorted(offsets) == list(range(20)), "none lost, none given twice"
    assert len(set(values_in(folder))) == 20


def test_a_forked_child_writes_with_an_editor_of_its_own(folder: Folder, data: OpenFolder) -> None:
    offer(data, "parent")
    child = os.fork()
    if not child:
        code = 1
        try:
            offer(data, "child")
            data.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert offer(data, "after") == range(2, 3)
    assert values_in(folder) == ["parent", "child", "after"]


@pytest.mark.processes
@pytest.mark.parametrize("count", [2, 4, 8])
def test_processes_append_to_one_queue(
    folder: Folder, data: OpenFolder, count: int, ending: ExitStack
) -> None:
    each = 48 // count
    pipe, writers = subprocess.PIPE, []
    for number in range(count):
        command = [sys.executable, "-c", WRITER, str(folder.path), f"w{number}", str(each)]
        started = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        writers.append(ending.enter_context(killing(started)))
    own = [offer(data, f"own {number}")[0] for number in range(each)]
    outs = [writer.communicate("go\n", PATIENCE_S)[0] for writer in writers]
    assert [writer.returncode for writer in writers] == [0] * count
    offsets = [int(line) for out in outs for line in out.split()] + own
    assert sorted(offsets) == list(range(each * (count + 1)))
    found = values_in(folder)
    for name in ["own", *(f"w{number}" for number in range(count))]:
        assert [v for v in found if str(v).startswith(f"{name} ")] == [
            f"{name} {n}" for n in range(each)
        ]
    assert opening.LOCK_WAIT_S > 1


def test_what_changes_before_the_thread_looks_that_looks_for_changes_wakes_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begins, look = threading.Event(), OpenFolder._look
    script = "import datalattice, sys; datalattice.open(sys.argv[1]).queue('log').offer('there')"

    def late(folder: OpenFolder) -> object:
        assert begins.wait(PATIENCE_S)
        return look(folder)

    monkeypatch.setattr(OpenFolder, "_look", late)
    with (
        datalattice.open(tmp_path) as node,
        node.queue("log").follow(timeout=LIMIT_S) as entries,
    ):
        bell = entries._bell.flag
        wait = bell.wait

        def written_meanwhile(timeout: float | None = None) -> bool:
            bell.wait = wait  # type: ignore[method-assign]
            subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True)
            begins.set()
            return wait(timeout)

        bell.wait = written_meanwhile  # type: ignore[method-assign]
        assert next(entries).value == "there"
