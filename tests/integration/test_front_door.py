"""The front door under stress: one contract in every setting; processes, kills, nodes that end."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import select
import signal
import subprocess
import sys
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import datalattice
from datalattice.actions import StopNode
from datalattice.client import Node
from datalattice.client.settings import NodeConfig
from datalattice.errors import OutcomeUnknown, PeerUnavailable, ReadOnly, Timeout
from datalattice.node import Daemon
from datalattice.testing.children import begin_child
from datalattice.testing.folders import alone, running_node
from datalattice.testing.polling import until
from datalattice.testing.processes import killing

PATIENCE_S = 120.0

SERVE = "import sys; from datalattice.cli import start; sys.exit(start())"

WRITER = """
import sys
import datalattice
with datalattice.open(sys.argv[1]) as node:
    log = node.queue("log")
    number = 0
    while True:
        print(log.offer(f"{sys.argv[2]} {number}"), flush=True)
        number += 1
"""


# --- one contract ------------------------------------------------------------------------------


def write_all(node: Node) -> None:
    """Make what `check_handles` finds."""
    with node.batch():
        node.queue("log").offer_many(["a", "b"], keys=["x", "y"])
        node.topic("many", 2).offer("one", key="k")
        node.database("shop")["tea"] = {"price": [3, 4]}
        node.drive("papers").write("/plan.txt", b"first")
        node.venue().register('{"name": "Iris"}')


def check_handles(node: Node) -> None:
    """Check what each kind of handle reads, and that looking at what is not there is quiet."""
    own = node.owner
    for owner in (None, own, own.key, own.hex, own.did, "own", own.hex[:12]):
        log = node.queue("log", owner=owner)
        assert (log[0], log[-1], log[0:9], log.size()) == ("a", "b", ["a", "b"], 2)
    entries = list(node.queue("log").follow(wait=False))
    assert [(one.owner, one.offset, one.key, one.value) for one in entries] == [
        (own, 0, "x", "a"),
        (own, 1, "y", "b"),
    ]
    assert node.topic("many").num_partitions == 2
    assert [one.value for one in node.feed("many").follow(wait=False)] == ["one"]
    assert node.database("shop")["tea"] == {"price": [3, 4]}
    assert node.drive("papers").read("/plan.txt") == b"first"
    assert len(node.venue().view()) == 1
    assert (node.topics(), node.databases(), node.drives()) == (
        ["log", "many"],
        ["shop"],
        ["papers"],
    )
    assert node.queue("none").size() == 0
    assert dict(node.database("none")) == {}
    assert node.topics() == ["log", "many"]
    assert node.cursor().get() is node.cursor().get()
    for handle in (node.queue("log"), node.database("shop"), node.drive("papers"), node):
        assert repr(handle)


@contextmanager
def embedded(path: Path) -> Iterator[Node]:
    with datalattice.open(path) as node:
        write_all(node)
        yield node


@contextmanager
def beside_a_node(path: Path) -> Iterator[Node]:
    datalattice.open(path).close()
    with running_node(path), embedded(path) as node:
        yield node


@contextmanager
def delayed(path: Path) -> Iterator[Node]:
    with datalattice.open(path, durable="sync") as node:
        write_all(node)
        yield node


@contextmanager
def in_memory(_path: Path) -> Iterator[Node]:
    with datalattice.open(":memory:") as node:
        write_all(node)
        yield node


@contextmanager
def of_the_past(path: Path) -> Iterator[Node]:
    with embedded(path) as node:
        now = node.history()[0].hash
        node.queue("log").offer("later")
        node.database("other")["x"] = 1
        with node.as_of(now) as past:
            yield past


@contextmanager
def read_only(path: Path) -> Iterator[Node]:
    with embedded(path), datalattice.open(path, read_only=True) as node:
        yield node


SETTINGS = [embedded, beside_a_node, delayed, in_memory, of_the_past, read_only]


@pytest.mark.parametrize("setting", SETTINGS)
def test_handles_keep_one_contract_in_every_setting(setting: Any, tmp_path: Path) -> None:
    with setting(tmp_path / "data") as node:
        check_handles(node)
        writes: list[Callable[[], object]] = [
            lambda: node.queue("log").offer("c"),
            lambda: node.topic("many").offer("c", key="k"),
            lambda: node.database("shop").incr("visits"),
            lambda: node.drive("papers").write("/more.txt", b"more"),
            lambda: node.cursor("data").set({}),
            node.batch().__enter__,
        ]
        if setting in (of_the_past, read_only):
            for write in writes:
                with pytest.raises(ReadOnly):
                    write()
            check_handles(node)
        else:
            assert writes[0]() == 2
            assert node.queue("log")[2] == "c"


# --- processes and kills ----------------------------------------------------------------------


def started(*arguments: str | Path) -> AbstractContextManager[subprocess.Popen[str]]:
    command = [sys.executable, "-c", *map(str, arguments)]
    return killing(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))


@contextmanager
def a_node(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Have a node run in a process of its own; it is killed at the end."""
    with started(SERVE, "--dir", path, "node", "start", "--port", "0") as process:
        assert process.stdout is not None
        assert process.stdout.readline(), "it says when it serves"
        yield process


@pytest.mark.processes
def test_a_writer_that_is_killed_loses_nothing_and_holds_nobody_up(tmp_path: Path) -> None:
    path = tmp_path / "data"
    given: dict[int, str] = {}
    with datalattice.open(path) as node:
        log = node.queue("log")
        for run in range(3):
            with started(WRITER, path, f"run{run}") as process:
                assert process.stdout is not None
                for number in range(10):
                    given[int(process.stdout.readline())] = f"run{run} {number}"
                    given[log.offer(f"own {run} {number}")] = f"own {run} {number}"
                process.kill()
                rest = process.stdout.read().split()
            given.update((int(at), f"run{run} {10 + n}") for n, at in enumerate(rest))
        found = list(log)
    assert {offset: found[offset] for offset in given} == given
    assert len(set(found)) == len(found), "nothing is there twice"


@pytest.mark.processes
def test_a_node_that_is_killed_leaves_each_write_decided(tmp_path: Path) -> None:
    path = tmp_path / "data"
    decided: dict[int, str] = {}
    unknown: list[str] = []
    with datalattice.open(path) as node:
        log = node.queue("log")
        log.offer("first")
        for run in range(3):
            with a_node(path) as process:
                killer = threading.Timer(0.05 * (run + 1), process.send_signal, [signal.SIGKILL])
                killer.start()
                for number in range(60):
                    value = f"{run} {number}"
                    try:
                        decided[log.offer(value)] = value
                    except OutcomeUnknown:
                        unknown.append(value)
                killer.join()
        found = list(log)
    assert {offset: found[offset] for offset in decided} == decided
    assert len(set(found)) == len(found), "nothing was written twice"
    assert set(found) <= {"first", *decided.values(), *unknown}
    assert not unknown, "one writer: looking decides each of its writes"


def killed_at_sync(number: int, work: Callable[[], object]) -> int:
    """Do `work` in a child that is killed before its sync `number`; return the child's id."""
    child = os.fork()
    if not child:
        code = 1
        try:
            syncs = count(1)

            def before(sync: Callable[[int], None], descriptor: int) -> None:
                if next(syncs) == number:
                    os.kill(os.getpid(), signal.SIGKILL)
                sync(descriptor)

            os.fsync = partial(before, os.fsync)
            os.fdatasync = partial(before, os.fdatasync)
            work()
            code = 0
        finally:
            os._exit(code)
    return child


SYNCS_MAX = 100


def ended_or_serves(ended: Callable[[], bool], node: Node) -> bool:
    return ended() or node.running is not None


def test_a_writer_that_is_killed_between_any_two_syncs_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "data"
    known: dict[int, str] = {}
    for number in range(1, SYNCS_MAX):
        reader, writer = os.pipe()

        def write(number: int = number, writer: int = writer) -> None:
            with datalattice.open(path) as node:
                for at in range(3):
                    value = f"{number} {at}"
                    os.write(writer, f"{node.queue('log').offer(value)} {value}\n".encode())

        child = killed_at_sync(number, write)
        os.close(writer)
        with os.fdopen(reader) as lines:
            known |= {
                int(at): rest.rstrip() for at, _, rest in (one.partition(" ") for one in lines)
            }
        status = os.waitpid(child, 0)[1]
        with datalattice.open(path) as node:
            log = node.queue("log")
            known[log.offer(f"own {number}")] = f"own {number}"
            found = list(log)
        assert {at: found[at] for at in known} == known
        assert len(set(found)) == len(found), "nothing is there twice"
        if not status:
            assert number > 5, "the kills came between its syncs"
            return
        assert os.WTERMSIG(status) == signal.SIGKILL
    pytest.fail("each writer was killed")


def test_a_node_that_is_killed_between_any_two_syncs_leaves_each_write_decided(
    tmp_path: Path,
) -> None:
    path = tmp_path / "data"
    decided: dict[int, str] = {}

    def serve() -> None:
        with datalattice.open(path) as own:
            keys = own._binding.keys
        assert keys is not None
        asyncio.run(Daemon(path, NodeConfig(port=0), key_pair=keys.identity).serve())

    with datalattice.open(path) as node:
        log = node.queue("log")
        decided[log.offer("first")] = "first"
        for number in range(1, SYNCS_MAX):
            child = killed_at_sync(number, serve)
            end: list[int] = []

            def ended(child: int = child, end: list[int] = end) -> bool:
                if not end:
                    found, status = os.waitpid(child, os.WNOHANG)
                    end.extend([status] if found else [])
                return bool(end)

            until(partial(ended_or_serves, ended, node))
            for at in range(3):
                decided[log.offer(f"{number} {at}")] = f"{number} {at}"
            with suppress(PeerUnavailable, Timeout):  # it was killed
                node.ask(StopNode())
            until(ended)
            found = list(log)
            assert {at: found[at] for at in decided} == decided
            assert len(set(found)) == len(found), "nothing is there twice"
            if not end[0]:
                assert number > 5, "the kills came between its syncs"
                return
            assert os.WTERMSIG(end[0]) == signal.SIGKILL
    pytest.fail("each node was killed")


@pytest.mark.processes
def test_nodes_start_and_stop_under_load(tmp_path: Path) -> None:
    path = tmp_path / "data"
    offsets: list[int] = []
    unknown: list[object] = []
    is_over = threading.Event()
    with datalattice.open(path) as node:
        log, shop = node.queue("log"), node.database("shop")

        def load(name: str) -> None:
            number = 0
            while not is_over.is_set():
                try:
                    with node.batch():
                        offset = log.offer(f"{name} {number}")
                        shop.incr("count")
                    offsets.append(offset)
                except OutcomeUnknown:  # the other thread wrote before one could look
                    unknown.append(f"{name} {number}")
                number += 1

        with ThreadPoolExecutor(2) as threads, ExitStack() as ending:
            ending.callback(is_over.set)
            loads = [threads.submit(load, name) for name in "ab"]
            for _ in range(20):
                with running_node(path):
                    size = log.size()
                    ends_s = time.monotonic() + PATIENCE_S
                    while log.size() < size + 4:
                        assert time.monotonic() < ends_s, "writing goes on beside the node"
                        log.cursor.get()
            is_over.set()
            for one in loads:
                one.result()
        assert len(set(offsets)) == len(offsets), "none is given twice"
        assert len(set(log)) == shop.count("count") == log.size(), "each batch is whole"
        missing = set(range(log.size())) - set(offsets)
        assert {log[offset] for offset in missing} <= set(unknown), "none is lost"


OVERTAKEN_MAX = 30
"""Writes of one other process while a process waits for its turn: up to 12 on a busy machine."""


@pytest.mark.processes
@pytest.mark.parametrize("way", [alone, running_node])
@pytest.mark.parametrize(
    ("count", "is_beside_busy"), [(2, False), (4, False), (8, False), (1, True), (4, True)]
)
def test_processes_that_offer_to_one_queue_wait_for_few_writes(
    tmp_path: Path, way: Any, count: int, is_beside_busy: bool
) -> None:
    path, each = tmp_path / "data", 96 // (count + is_beside_busy)
    with datalattice.open(path) as node:
        node.queue("log").offer("first")
    begin, begun = os.pipe()
    end, ended = os.pipe()
    os.set_blocking(end, False)

    def offer(name: str, is_over: Callable[[int], bool]) -> list[tuple[int, float, float]]:
        """Offer until it is over; return offsets, and when each offer began and ended."""
        made: list[tuple[int, float, float]] = []
        with datalattice.open(path, wait=PATIENCE_S) as node:
            log = node.queue("log")
            os.read(begin, 1)
            while not is_over(len(made)):
                began_s = time.monotonic()
                offset = log.offer(f"{name} {len(made)}")
                made.append((offset, began_s, time.monotonic()))
        return made

    with way(path):
        limits: list[tuple[str, Callable[[int], bool]]] = [
            (f"w{number}", lambda made: made >= each) for number in range(count)
        ]
        if is_beside_busy:  # it never pauses, until the others have ended
            limits.append(("busy", lambda _: bool(select.select([end], [], [], 0)[0])))
        children = [begin_child(partial(offer, *limit)) for limit in limits]
        os.write(begun, b"!" * len(children))
        found = [child() for child in children[:count]]
        os.write(ended, b"!")
        found += [child() for child in children[count:]]
    for descriptor in (begin, begun, end, ended):
        os.close(descriptor)
    assert sorted(offset for made in found for offset, _, _ in made) == list(
        range(1, 1 + sum(map(len, found)))
    ), "none lost, none given twice"
    ends = [[ended_s for _, _, ended_s in made] for made in found]
    overtaken = [
        bisect_left(other, ended_s) - bisect_left(other, began_s)
        for made in found
        for _, began_s, ended_s in made
        for other in ends
        if other != [one_s for _, _, one_s in made]
    ]
    assert max(overtaken) <= OVERTAKEN_MAX


def _offer_in_child(log: Any, name: str) -> None:
    for number in range(5):
        log.offer(f"{name} {number}")


@pytest.mark.processes
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_children_write_through_the_handles_they_are_given(tmp_path: Path, method: str) -> None:
    context: Any = multiprocessing.get_context(method)
    with datalattice.open(tmp_path / "data") as node:
        log = node.queue("log")
        log.offer("parent")
        children: list[Any] = [
            context.Process(target=_offer_in_child, args=(log, name)) for name in "ab"
        ]
        for child in children:
            child.start()
        _offer_in_child(log, "parent")
        for child in children:
            child.join(PATIENCE_S)
            assert child.exitcode == 0
        assert len(set(log)) == log.size() == 16


def test_nodes_leave_no_thread_and_no_descriptor(tmp_path: Path) -> None:
    def opened() -> int:
        return sum(1 for _ in Path("/proc/self/fd").iterdir())

    def use(path: Path) -> None:
        with datalattice.open(path) as node, node.queue("log").follow(wait=False) as entries:
            node.queue("log").offer("x")
            assert [one.value for one in entries][-1] == "x"

    use(tmp_path / "first")
    before = opened(), threading.active_count()
    for number in range(5):
        use(tmp_path / f"{number}")
    gc.collect()
    ends_s = time.monotonic() + PATIENCE_S
    # The thread that looks for changes opens files for a moment, and ends after a while.
    while opened() > before[0] or threading.active_count() > before[1]:
        assert time.monotonic() < ends_s, "descriptors or threads are left"
