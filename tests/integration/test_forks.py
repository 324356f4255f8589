"""Forks: a child that is forked at any moment works or is refused, and the parent goes on."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
from asyncio.selector_events import BaseSelectorEventLoop
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

import datalattice
from datalattice.actions import StopNode
from datalattice.client import Node, openfolder
from datalattice.client.openfolder import OpenFolder
from datalattice.cursors import base, collector
from datalattice.engine import lmdb
from datalattice.errors import StoreLocked, UsageError
from datalattice.store import CellStore
from datalattice.testing.children import begin_child, in_child
from datalattice.testing.folders import alone, running_node

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

PATIENCE_S = 60.0


@pytest.fixture(params=[alone, running_node])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """Make a folder with data, without a running node and beside one."""
    path = tmp_path / "data"
    with datalattice.open(path) as node, node.batch():
        node.queue("log").offer_many(["a", "b"])
        node.database("shop").update({f"k{at}": {"many": [at] * 100} for at in range(50)})
    with request.param(path):
        yield path


@contextmanager
def thread_of(work: Callable[[int], object]) -> Iterator[None]:
    """Repeat `work` in another thread, with 0, 1, 2 and so on."""
    is_over = threading.Event()
    errors: list[BaseException] = []

    def repeat() -> None:
        number = 0
        try:
            while not is_over.is_set():
                work(number)
                number += 1
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join(PATIENCE_S)
    assert not thread.is_alive(), "the parent's thread hangs"
    assert not errors, errors


# --- moments: each is a context in which the parent forks ---------------------------------------


def quiet(_node: Node) -> AbstractContextManager[object]:
    return nullcontext()


def while_a_thread_writes(node: Node) -> AbstractContextManager[object]:
    return thread_of(lambda at: node.queue("log").offer(f"thread {at}"))


@contextmanager
def while_threads_read(node: Node) -> Iterator[None]:
    with datalattice.open(node.path, read_only=True) as other, ExitStack() as stack:
        shop, log = other.database("shop"), other.queue("log")
        stack.enter_context(thread_of(lambda at: shop[f"k{at % 50}"]["many"][at % 100]))
        stack.enter_context(thread_of(lambda at: (log[at % 2], log.size())))
        yield


@contextmanager
def while_a_thread_batches(node: Node) -> Iterator[None]:
    def batch(at: int) -> None:
        with node.batch():
            node.queue("log").offer(f"batch {at}")
            node.database("shop").incr("batches")

    with thread_of(batch):
        yield
    assert node.database("shop").count("batches") > 0


@contextmanager
def while_a_thread_follows(node: Node) -> Iterator[None]:
    with node.queue("other").follow() as follow:
        thread = threading.Thread(target=next, args=(follow,))
        thread.start()
        yield
        node.queue("other").offer("end")
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), "the parent's stream is not woken"


@contextmanager
def with_streams_of_its_own(node: Node) -> Iterator[None]:
    log = node.queue("log")
    with log.follow() as follow, log.consumer("robot") as robot:
        assert (next(follow).value, next(robot).value) == ("a", "a")
        yield
        assert (next(follow).value, next(robot).value) == ("b", "b")
        assert set(robot.committed.values()) <= {1}


@contextmanager
def with_weaver_stores(node: Node) -> Iterator[None]:
    notes = node.store("notes", "kv")
    with thread_of(lambda at: notes.__setitem__("k", str(at))):
        yield


@contextmanager
def while_writes_are_delayed(node: Node) -> Iterator[None]:
    with datalattice.open(node.path, durable="sync") as other:
        other.queue("delayed").offer("parent")
        yield
        other.sync()
    assert list(node.queue("delayed")) == ["parent"]


MOMENTS = [
    quiet,
    while_a_thread_writes,
    while_threads_read,
    while_a_thread_batches,
    while_a_thread_follows,
    with_streams_of_its_own,
    with_weaver_stores,
    while_writes_are_delayed,
]


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_child_works_whatever_its_parent_does(path: Path, moment: Any) -> None:
    with datalattice.open(path) as node:
        log, shop = node.queue("log"), node.database("shop")
        kept = shop["k7"]

        def use() -> tuple[object, ...]:
            offset = log.offer("child")  # through a handle of the parent
            with datalattice.open(path) as own, own.batch():
                own.database("shop").incr("children")
            with log.follow(offset, wait=False) as follow:
                found = next(follow).value
            with log.consumer("child", wait=False) as child:
                first = next(child).value
            node.close()
            return kept["many"][3], shop_of(path)["k9"]["many"][4], found, first

        with moment(node):
            for _ in range(3):
                assert in_child(use) == (7, 9, "child", "a")
                log.offer("parent")
        values = list(log)
        assert (values.count("child"), values.count("parent"), shop.count("children")) == (3, 3, 3)
    with CellStore.open(path / "store", read_only=True) as store:
        assert store.check().is_clean


def shop_of(path: Path) -> dict[str, Any]:
    with datalattice.open(path, read_only=True) as node:
        return dict(node.database("shop"))


# --- what is the parent's ----------------------------------------------------------------------


def test_a_child_cannot_end_the_batch_of_its_parent(path: Path) -> None:
    with datalattice.open(path, wait=0.2) as node:
        log = node.queue("log")

        def leave(error: BaseException | None) -> None:
            batch.__exit__(None if error is None else type(error), error, None)

        def go_on() -> list[object]:
            with pytest.raises(UsageError, match="before a fork"):
                leave(None)
            with pytest.raises(StoreLocked, match=r"waited 0\.2 s"):
                log.offer("child")  # a write of its own waits for the parent's turn
            return list(log)

        batch = node.batch()
        batch.__enter__()
        log.offer("batch")
        assert in_child(go_on) == ["a", "b"]
        in_child(lambda: leave(KeyboardInterrupt()))
        batch.__exit__(None, None, None)
        assert in_child(lambda: log.offer("child")) == 3
        assert list(log) == ["a", "b", "batch", "child"]


@pytest.mark.parametrize("durable", ["each", "sync"])
def test_a_child_that_is_forked_in_a_write_cannot_end_it(path: Path, durable: str) -> None:
    child = -1

    def change(count: int) -> int:
        nonlocal child
        child = os.fork()
        return count + 1

    with datalattice.open(path, durable=durable) as node:
        shop = node.database("shop")
        shop["count"] = 1
        reader, writer = os.pipe()
        answer = "it works"
        try:
            shop.modify("count", change)
        except BaseException as error:
            answer = f"{type(error).__name__}: {error}"
            if child:
                raise
        if not child:
            os.write(writer, answer.encode())
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as answers:
            assert "before a fork" in answers.read()
        assert os.waitpid(child, 0)[1] == 0
        assert shop["count"] == 2
        shop["count"] = 3
    assert shop_of(path)["count"] == 3


def test_streams_of_the_parent_are_refused_and_go_on(path: Path) -> None:
    with datalattice.open(path) as node:
        log = node.queue("log")
        with log.follow() as follow, log.consumer("robot") as robot:
            calls: list[Callable[[], object]] = [
                lambda: next(follow),
                follow.poll,
                lambda: asyncio.run(anext(follow)),
                lambda: next(robot),
                lambda: robot.take(1),
                robot.commit,
                lambda: robot.seek("end"),
                robot.finish,
                robot.lag,
                lambda: robot.position,
            ]
            assert next(robot).value == "a"

            def refused() -> int:
                for call in calls:
                    with pytest.raises(UsageError, match="before a fork"):
                        call()
                robot.rewind()
                robot.close()
                follow.close()
                return len(calls)

            assert in_child(refused) == len(calls)
            assert robot.committed == {}
            assert [next(follow).value, next(robot).value] == ["a", "b"]
        with log.consumer("robot") as robot:
            assert next(robot).value == "b", "the parent committed the first entry alone"


def test_a_lease_of_the_parent_outlives_its_children(tmp_path: Path) -> None:
    with datalattice.open(tmp_path / "data") as node:
        node.queue("log").offer("a")
        with node.as_of("HEAD") as past:
            store = node._data.store()
            assert store is not None
            assert len(store.pins.leases()) == 1
            in_child(past.close)
            assert len(store.pins.leases()) == 1
            assert list(past.queue("log")) == ["a"]
        assert store.pins.leases() == []


def test_a_child_has_threads_of_its_own_to_await(path: Path) -> None:
    async def offer(value: str) -> int:
        return await node.run(node.queue("log").offer, value)

    with datalattice.open(path) as node:
        assert asyncio.run(offer("parent")) == 2
        assert in_child(lambda: asyncio.run(offer("child"))) == 3
        assert asyncio.run(offer("parent")) == 4


def test_a_child_keeps_no_lock_of_a_parent_that_is_killed(tmp_path: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "data")],
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    try:
        parent.send_signal(signal.SIGKILL)
        parent.wait(PATIENCE_S)
        with datalattice.open(tmp_path / "data") as node:
            node.queue("log").offer("after")
            with node.queue("log").consumer("robot") as robot:
                assert next(robot).value == "held"
    finally:
        os.kill(child, signal.SIGKILL)
        parent.communicate()


HOLDER = """
import os, signal, sys
import datalattice
node = datalattice.open(sys.argv[1])
log = node.queue("log")
log.offer("held")
robot = log.consumer("robot")
with node.batch():
    log.offer("lost")
    child = os.fork()
    if child:
        print(child, flush=True)
    signal.pause()
"""


# --- locks --------------------------------------------------------------------------------------


def held_by_a_thread(locks: list[Any]) -> AbstractContextManager[object]:
    """Have another thread hold locks."""
    held, end = threading.Event(), threading.Event()

    def hold() -> None:
        with ExitStack() as stack:
            for lock in locks:
                stack.enter_context(lock)
            held.set()
            end.wait(PATIENCE_S)

    @contextmanager
    def holding() -> Iterator[None]:
        thread = threading.Thread(target=hold)
        thread.start()
        assert held.wait(PATIENCE_S)
        try:
            yield
        finally:
            end.set()
            thread.join(PATIENCE_S)

    return holding()


@pytest.mark.parametrize("durable", ["each", "sync"])
def test_locks_that_threads_hold_are_free_in_a_child(path: Path, durable: str) -> None:
    with datalattice.open(path, durable=durable) as node:
        log, shop = node.queue("log"), node.database("shop")
        kept = shop["k7"]
        log.offer("parent")
        asyncio.run(node.run(node.sync))
        data, store = node._data, node._data.store()
        assert isinstance(data, OpenFolder)
        assert isinstance(store, CellStore)
        delayed = node._binding._delayed

        def use() -> tuple[object, ...]:
            offset = log.offer("child")
            with log.follow(offset, wait=False) as own:
                value = next(own).value
            with datalattice.open(path) as other, other.batch():
                other.database("shop").incr("children")
            found = asyncio.run(node.run(kept["many"].__getitem__, 3))
            node.close()
            return value, found, shop_of(path)["children"]

        with log.follow() as follow:
            locks = [
                data._lock,
                data._turns._changed,
                data._groups._lock,
                data._edit_turn.threads._lock,
                store._refresh_lock,
                store._lending,
                store._adopting,
                store._cache._lock,
                store._index._lock,
                store._segments._lock,
                store.history._lock,
                follow._bell.flag._cond,  # type: ignore[attr-defined]
                node._pool._shutdown_lock,  # type: ignore[union-attr]
                openfolder._opening,
                lmdb._shared_lock,
                collector.collector_paused._lock,
                base._swapping,
                *([] if delayed is None else [delayed._changed]),
            ]
            with held_by_a_thread(locks):
                result = begin_child(use)
            assert result() == ("child", 7, 1)
            log.offer("parent")
            assert [next(follow).value for _ in range(5)][2:] == ["parent", "child", "parent"]


def test_a_node_in_memory_is_copied() -> None:
    with datalattice.open(":memory:") as node:
        log, notes = node.queue("log"), node.store("notes", "kv")
        notes["k"] = "parent"
        log.offer("parent")

        def use() -> tuple[object, ...]:
            log.offer("child")
            notes["k"] = "child"
            return log[0], log[-1], notes["k"]

        turn = node._data._threads  # type: ignore[attr-defined]
        with held_by_a_thread([turn._lock, node._data._groups._lock]):  # type: ignore[attr-defined]
            result = begin_child(use)
        assert result() == ("parent", "child", "child")
        assert (list(log), notes["k"]) == (["parent"], "parent")
        with thread_of(lambda at: log.offer(f"thread {at}")):
            for _ in range(5):
                assert in_child(use)[1:] == ("child", "child")


@contextmanager
def living_child() -> Iterator[int]:
    """Fork a child that does nothing until the end."""
    child = os.fork()
    if not child:
        signal.pause()
    try:
        yield child
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_child_keeps_no_socket_of_a_node_that_ends(tmp_path: Path, port: int) -> None:
    path = tmp_path / "data"
    with ExitStack() as stack:
        with datalattice.serve(path, port=port) as node:
            node.queue("log").offer("parent")
            with socket.create_connection(("127.0.0.1", port)) as peer:
                peer.settimeout(PATIENCE_S)
                stack.enter_context(living_child())
                assert in_child(lambda: node.queue("log").offer("child")) == 1
                in_child(node.close)
                stop = threading.Thread(target=node.ask, args=(StopNode(),))
                stop.start()
                while peer.recv(1_024):
                    pass
                stop.join(PATIENCE_S)
        with datalattice.serve(path, port=port) as node:
            assert list(node.queue("log")) == ["parent", "child"]


def test_a_child_keeps_no_connection_that_was_accepted_just_before(
    tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    accepted, has_forked = threading.Event(), threading.Event()
    go_on = BaseSelectorEventLoop._accept_connection2  # type: ignore[attr-defined]

    async def wait_for_the_fork(self: BaseSelectorEventLoop, *given: Any) -> None:
        accepted.set()
        await asyncio.to_thread(has_forked.wait, PATIENCE_S)
        await go_on(self, *given)

    with ExitStack() as stack, datalattice.serve(tmp_path / "data", port=port) as node:
        monkeypatch.setattr(BaseSelectorEventLoop, "_accept_connection2", wait_for_the_fork)
        with socket.create_connection(("127.0.0.1", port)) as peer:
            peer.settimeout(PATIENCE_S)
            assert accepted.wait(PATIENCE_S)
            stack.enter_context(living_child())
            monkeypatch.undo()
            has_forked.set()
            stop = threading.Thread(target=node.ask, args=(StopNode(),))
            stop.start()
            while peer.recv(1_024):
                pass
            stop.join(PATIENCE_S)


def test_a_child_can_leave_the_context_of_a_served_node(tmp_path: Path) -> None:
    context = datalattice.serve(tmp_path / "data")
    node = context.__enter__()
    node.queue("log").offer("parent")
    in_child(lambda: context.__exit__(None, None, None))
    assert node.queue("log").offer("parent") == 1
    assert node.running is not None
    context.__exit__(None, None, None)


# --- the ends of children -----------------------------------------------------------------------

ENDS = """
import multiprocessing, os, sys
import datalattice

def work(log, name):
    log.offer(name)

node = datalattice.open(sys.argv[1], durable="sync")
other = datalattice.open(sys.argv[1])
log = other.queue("log")
log.offer("parent")
past = other.as_of("HEAD")
robot = log.consumer("robot")
assert next(robot).value == "a"
pending = node.queue("pending")
pending.offer("parent")

context = multiprocessing.get_context("fork")
with context.Pool(2) as pool:
    pool.starmap(work, [(log, "child"), (log, "child")])
process = context.Process(target=work, args=(log, "child"))
process.start()
process.join()
assert process.exitcode == 0
child = os.fork()
if not child:
    log.offer("child")
    sys.exit()  # exit handlers run, and finalizers of all that the parent has open
assert os.waitpid(child, 0)[1] == 0
store = other._data.store()
assert len(store.pins.leases()) == 1, store.pins.leases()
assert robot.committed == {}, "a child committed"
pending.offer("again")
node.close()
with datalattice.open(sys.argv[1]) as after:
    assert list(after.queue("pending")) == ["parent", "again"], list(after.queue("pending"))
    try:
        after.queue("log").consumer("robot")
    except datalattice.Unavailable:
        pass
    else:
        raise AssertionError("a child released the name of its parent's consumer")
other.close()
"""


@pytest.mark.processes
def test_children_end_with_their_exit_handlers(path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", ENDS, str(path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert (done.returncode, done.stderr) == (0, "")
    with datalattice.open(path) as node:
        assert list(node.queue("log")) == ["a", "b", "parent", *["child"] * 4]
