"""Several writers of one store, in threads and processes, take turns."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest

from datalattice.cells import Vector
from datalattice.errors import DataLoss, StoreClosed, StoreLocked
from datalattice.store import CellStore, WriteTurn
from datalattice.testing.polling import LIMIT_S
from datalattice.testing.processes import killing

PATIENCE_S = LIMIT_S

WRITER = """
import sys
from functools import partial
from datalattice.cells import Vector
from datalattice.store import CellStore, WriteTurn

path, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
turn = WriteTurn(partial(CellStore.open, path, wait_s=100))
print("ready", flush=True)
sys.stdin.readline()
for number in range(count):
    with turn.write(30) as store:
        root = store.root()
        offset = len(root)
        store.commit(root.append(f"{name} {number}".ljust(200)))
    print(offset, flush=True)
turn.close()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    with CellStore.open(path) as store:
        store.commit(Vector.of([]))
    return path


@pytest.fixture
def turn(path: Path) -> Iterator[WriteTurn]:
    turn = WriteTurn(partial(CellStore.open, path, wait_s=10), keep_s=1e6)
    yield turn
    turn.close()


def add(store: CellStore, text: str) -> None:
    root = store.root()
    assert isinstance(root, Vector)
    store.commit(root.append(text.ljust(200)))


@contextmanager
def begin(path: Path, name: str, count: int) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", WRITER, str(path), name, str(count)]
    pipe = subprocess.PIPE
    with killing(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        yield writer


def texts(path: Path) -> list[str]:
    with CellStore.open(path, wait_s=10) as store:
        assert store.check().is_clean
        root = store.root()
        assert isinstance(root, Vector)
        return [str(text).strip() for text in root]


def test_the_lock_is_kept_after_a_write_and_given_back_later(path: Path) -> None:
    turn = WriteTurn(partial(CellStore.open, path), keep_s=1e6)
    with turn.write() as store:
        add(store, "one")
    with pytest.raises(StoreLocked):
        CellStore.open(path)
    turn._keep_s = 0.0
    while turn.is_held:  # nobody waits for it
        time.sleep(0)
    CellStore.open(path, wait_s=10).close()
    assert turn.store is store
    assert store.read_only
    with turn.write() as again, turn.write() as nested:
        assert again is nested is store
        add(store, "two")
    turn.close()
    turn.close()
    with pytest.raises(StoreClosed), turn.write():
        pass
    assert texts(path) == ["one", "two"]


def test_who_waits_gets_it_when_a_write_is_done(path: Path, turn: WriteTurn) -> None:
    with turn.write() as store:
        add(store, "mine")
        with pytest.raises(StoreLocked, match=f"waited .* in vain.*process {os.getpid()}"):
            CellStore.open(path, wait_s=0.01)
    done = threading.Event()

    def write() -> None:
        with CellStore.open(path, wait_s=PATIENCE_S) as other:
            add(other, "another one's")
        done.set()

    thread = threading.Thread(target=write)
    thread.start()
    number = 0
    while not done.is_set():  # a writer that never pauses
        with turn.write(PATIENCE_S) as store:
            add(store, f"{number}")
            number += 1
    thread.join()
    assert texts_of(store).count("another one's") == 1
    assert len(texts_of(store)) == number + 2


def texts_of(store: CellStore) -> list[str]:
    root = store.root()
    assert isinstance(root, Vector)
    return [str(text).strip() for text in root]


def test_threads_write_in_one_turn(path: Path, turn: WriteTurn, ending: ExitStack) -> None:
    def write(name: str) -> None:
        for number in range(20):
            with turn.write(PATIENCE_S) as store, lock:
                add(store, f"{name}{number}")

    lock = threading.Lock()
    other = ending.enter_context(begin(path, "p", 20))
    threads = [threading.Thread(target=write, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    other.communicate("go\n", PATIENCE_S)
    for thread in threads:
        thread.join()
    turn.close()
    assert sorted(texts(path)) == sorted(
        [f"{name}{number}" for name in "abcd" for number in range(20)]
        + [f"p {number}" for number in range(20)]
    )


@pytest.mark.processes
@pytest.mark.parametrize("count", [2, 8])
def test_processes_append_to_one_vector(path: Path, count: int, ending: ExitStack) -> None:
    each = 120 // count
    writers = [ending.enter_context(begin(path, f"w{number}", each)) for number in range(count)]
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    lines = [writer.communicate(timeout=PATIENCE_S)[0].split("\n") for writer in writers]
    assert [writer.returncode for writer in writers] == [0] * count
    offsets = [int(line) for out in lines for line in out[:-1]]
    assert sorted(offsets) == list(range(count * each)), "none lost, none given twice"
    found = texts(path)
    for number in range(count):
        own = [text for text in found if text.startswith(f"w{number} ")]
        assert own == [f"w{number} {n}" for n in range(each)]


@pytest.mark.processes
def test_a_killed_writer_keeps_nobody_waiting(
    path: Path, turn: WriteTurn, ending: ExitStack
) -> None:
    for kill in range(6):
        writer = ending.enter_context(begin(path, f"k{kill}", 100_000))
        assert writer.stdin is not None
        assert writer.stdout is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
        acknowledged = [int(writer.stdout.readline()) for _ in range(3 + 2 * kill)]
        with turn.write(PATIENCE_S) as store:
            add(store, f"between {kill}")
        acknowledged.append(int(writer.stdout.readline()))
        writer.kill()
        # Not `communicate`, which leaves out what `readline` has taken from the pipe already.
        rest = writer.stdout.read().split("\n")
        acknowledged += [int(line) for line in rest if line]
        with turn.write(PATIENCE_S) as store:
            found = texts_of(store)
            assert all(found[at].startswith(f"k{kill} ") for at in acknowledged)
            assert [found[at] for at in acknowledged] == [
                f"k{kill} {number}" for number in range(len(acknowledged))
            ]
            add(store, f"behind {kill}")
    turn.close()
    assert texts(path)[-1] == "behind 5"


def test_a_forked_child_opens_the_store_anew(path: Path) -> None:
    turn = WriteTurn(partial(CellStore.open, path, wait_s=PATIENCE_S), keep_s=0.02)
    with turn.write() as store:
        add(store, "parent")
    child = os.fork()
    if not child:
        code = 1
        try:
            with turn.write(PATIENCE_S) as own:
                add(own, "child")
            turn.close()
            code = 0
        finally:
            os._exit(code)
    for number in range(20):
        with turn.write(PATIENCE_S) as store:
            add(store, f"{number}")
    assert os.waitpid(child, 0)[1] == 0
    turn.close()
    assert sorted(texts(path)) == sorted(["parent", "child", *map(str, range(20))])


def test_what_is_checked_after_opening_is_checked_until_it_holds(path: Path) -> None:
    calls = []

    def check(_store: CellStore) -> None:
        calls.append(time.monotonic())
        if len(calls) < 3:
            raise DataLoss("not yet")

    turn = WriteTurn(partial(CellStore.open, path, wait_s=10), check=check, keep_s=0.01)
    for _ in range(2):
        with pytest.raises(DataLoss), turn.write(10):
            pass
    for number in range(3):
        with turn.write(10) as store:
            add(store, f"{number}")
        CellStore.open(path, wait_s=10).close()
    assert len(calls) == 3, "and then only when the store is another one"
    turn.close()


def test_a_close_waits_for_a_writer_and_no_longer(path: Path) -> None:
    turn = WriteTurn(partial(CellStore.open, path), keep_s=1e6)
    closing, waits = threading.Thread(target=turn.close), threading.Event()
    wait = turn._changed.wait

    def waiting(timeout: float | None = None) -> bool:
        if threading.current_thread() is closing:
            waits.set()
        return wait(timeout)

    turn._changed.wait = waiting  # type: ignore[method-assign]
    with turn.write() as store:
        closing.start()
        assert waits.wait(PATIENCE_S)
        add(store, "one")
        assert closing.is_alive()
    closing.join(LIMIT_S)
    assert not closing.is_alive()
    assert texts(path) == ["one"]
