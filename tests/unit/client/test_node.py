"""`datalattice.open` and its node: one set of rules, embedded and beside a running node."""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import datalattice
from datalattice.client import Folder, Node, editing, name_owner, write_key
from datalattice.crypto import KeyPair
from datalattice.errors import (
    NoSigningKey,
    NoSuchPath,
    PeerUnavailable,
    ReadOnly,
    StoreClosed,
    StoreLocked,
    UsageError,
)
from datalattice.store import CellStore
from datalattice.testing.folders import running_node
from datalattice.testing.polling import LIMIT_S

OTHER = KeyPair(bytes([7]) * 32)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def node(path: Path) -> Iterator[Node]:
    with datalattice.open(path) as node:
        yield node


def served(path: Path) -> AbstractContextManager[object]:
    return running_node(path)


def embedded(_path: Path) -> AbstractContextManager[object]:
    return nullcontext()


@pytest.fixture(params=[embedded, served])
def way(request: pytest.FixtureRequest, path: Path) -> Iterator[None]:
    """Run a test without a running node, and beside one."""
    datalattice.open(path).close()
    with request.param(path):
        yield


def test_a_folder_and_its_key_are_made_and_found_again(path: Path) -> None:
    with datalattice.open(path) as node:
        own = node.owner
        assert node.queue("log").offer("hello") == 0
        assert not node.owners() or node.owners() == [own]
    with datalattice.open(path) as node:
        assert node.owner == own
        assert list(node.queue("log")) == ["hello"]
        assert (node.topics(), node.databases(), node.drives()) == (["log"], [], [])


def test_opening_reads_and_writes_nothing_in_the_store(path: Path) -> None:
    with datalattice.open(path) as node:
        assert node.queue("log").size() == 0
        assert dict(node.database("shop")) == {}
    assert not (path / "store").exists()


@pytest.mark.usefixtures("way")
def test_what_is_written_here_is_read_by_other_processes_and_the_other_way(
    node: Node, path: Path
) -> None:
    script = (
        "import datalattice, sys\n"
        "with datalattice.open(sys.argv[1]) as node:\n"
        "    print(node.queue('log').offer('there'), *node.queue('log'))\n"
    )
    node.queue("log").offer("here")
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "1 here there\n"
    assert list(node.queue("log")) == ["here", "there"]


@pytest.mark.usefixtures("way")
def test_two_nodes_of_a_process_share_the_folder(node: Node, path: Path) -> None:
    with datalattice.open(path, read_only=True) as other, datalattice.open(path) as third:
        node.queue("log").offer(1)
        third.queue("log").offer(2)
        assert list(other.queue("log")) == list(node.queue("log")) == [1, 2]
        assert other._data is node._data
        with pytest.raises(ReadOnly, match="opened with read_only"):
            other.queue("log").offer(3)
    assert node.queue("log").offer(3) == 2


# --- batches ---------------------------------------------------------------------------------


@pytest.mark.parametrize("durable", ["each", "sync"])
@pytest.mark.usefixtures("way")
def test_a_batch_is_one_root_and_reads_what_it_wrote(path: Path, durable: str) -> None:
    with datalattice.open(path, durable=durable) as node, datalattice.open(path) as other:
        shop, log = node.database("shop"), node.queue("log")
        with node.batch():
            shop["tea"] = 3
            with node.batch():  # joins the outer one
                log.offer_many(["a", "b"])
            assert (shop["tea"], log.size()) == (3, 2)
            if durable == "each":
                assert other.queue("log").size() == 0
        node.sync()
        assert (other.database("shop")["tea"], other.queue("log").size()) == (3, 2)
        assert [len(node.history()), log.size()][1] == 2


@pytest.mark.parametrize("durable", ["each", "sync"])
@pytest.mark.usefixtures("way")
def test_an_exception_undoes_a_batch(path: Path, durable: str) -> None:
    undone: list[int] = []
    with datalattice.open(path, durable=durable) as node:
        shop = node.database("shop")
        shop["tea"] = 3

        def fail() -> None:
            with node.batch():
                shop["tea"] = 4
                assert node._binding.on_undo(lambda: undone.append(1))
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail()
        assert shop["tea"] == 3
        assert undone == [1]
        assert not node._binding.on_undo(lambda: undone.append(2))


@pytest.mark.parametrize("durable", ["each", "sync"])
@pytest.mark.usefixtures("way")
def test_what_is_done_atomically_is_one_root_or_nothing(path: Path, durable: str) -> None:
    undone: list[int] = []
    with datalattice.open(path, durable=durable) as node, datalattice.open(path) as other:
        shop, log = node.database("shop"), node.queue("log")

        def work() -> int:
            shop["tea"] = 3
            assert node.atomically(lambda: log.offer("a")) == log.size() - 1  # a part of it
            assert (shop["tea"], other.queue("log").size()) == (3, 0)
            return log.offer("b")

        def fail() -> None:
            shop["tea"] = 4
            assert node._binding.on_undo(lambda: undone.append(1))
            raise ZeroDivisionError

        assert node.atomically(work) == 1
        with pytest.raises(ZeroDivisionError):
            node.atomically(fail)
        assert undone == [1]
        node.sync()
        assert (other.database("shop")["tea"], list(other.queue("log"))) == (3, ["a", "b"])


def test_what_is_done_atomically_returns_what_was_written(path: Path) -> None:
    datalattice.open(path).close()
    tries: list[range] = []
    undone: list[int] = []
    with running_node(path), datalattice.open(path) as node:
        log = node.queue("log")

        def work() -> range:
            tries.append(log.offer_many(["a", "b"]))
            assert node._binding.on_undo(partial(undone.append, len(tries)))
            if len(tries) == 1:
                with editing(Folder(path)) as editor:  # the node appends it at once
                    editor.offer_many("log", 0, ["first"])
            return tries[-1]

        assert node.atomically(work) == range(1, 3)
        assert list(log) == ["first", "a", "b"]
    assert tries == [range(2), range(1, 3)]
    assert undone == [1]


@pytest.mark.usefixtures("way")
def test_a_batch_is_of_one_thread(node: Node) -> None:
    log = node.queue("log")
    began, done = threading.Event(), threading.Event()

    def write() -> None:
        began.wait()
        assert log.size() == 0
        done.set()
        log.offer("outside")  # waits for the batch to end

    thread = threading.Thread(target=write)
    thread.start()
    with node.batch():
        log.offer("inside")
        began.set()
        done.wait()
    thread.join()
    assert list(log) == ["inside", "outside"]


def test_a_write_inside_edit_that_fails_leaves_nothing(node: Node) -> None:
    shop = node.database("shop")

    def change(cursor: Any) -> None:
        datalattice.Database.at(cursor, node._binding.own, "shop")["tea"] = 1
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        node._binding.edit(change)
    with node.batch():
        shop["x"] = 1
        with pytest.raises(ZeroDivisionError):
            node._binding.edit(change)
    assert dict(shop) == {"x": 1}


# --- durable="sync" --------------------------------------------------------------------------


@pytest.mark.usefixtures("way")
def test_delayed_writes_are_read_here_and_durable_after_sync(path: Path) -> None:
    with datalattice.open(path, durable="sync") as node, datalattice.open(path) as other:
        log = node.queue("log")
        assert [log.offer(n) for n in range(5)] == list(range(5))
        assert list(log) == list(range(5))
        node.sync()
        assert list(other.queue("log")) == list(range(5))
        log.offer(5)
    with datalattice.open(path) as node:
        assert list(node.queue("log")) == list(range(6))


@pytest.mark.usefixtures("way")
def test_delayed_writes_give_way_to_another_writer(path: Path) -> None:
    with datalattice.open(path, durable="sync") as node, datalattice.open(path) as other:
        offsets = []
        for n in range(5):
            offsets.append(node.queue("log").offer(f"delayed {n}"))
            offsets.append(other.queue("log").offer(f"at once {n}"))
        assert offsets == list(range(10))


def test_a_node_that_is_not_closed_is_flushed_at_exit_with_a_warning(path: Path) -> None:
    script = (
        "import datalattice, sys\n"
        "node = datalattice.open(sys.argv[1], durable='sync')\n"
        "node.queue('log').offer('kept')\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "always", "-c", script, str(path)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "ResourceWarning: a node with unflushed writes was not closed" in done.stderr
    with datalattice.open(path) as node:
        assert list(node.queue("log")) == ["kept"]


def test_a_flush_that_failed_is_raised_and_made_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with datalattice.open(path, durable="sync") as node:
        log = node.queue("log")
        log.offer(0)
        edit = type(node._data).edit

        def fails(*_arguments: object, **_named: object) -> None:
            raise StoreLocked("no turn")

        monkeypatch.setattr(type(node._data), "edit", fails)
        with pytest.raises(StoreLocked, match="no turn"):
            node.sync()
        monkeypatch.setattr(type(node._data), "edit", edit)
        assert list(log) == [0]
        log.offer(1)
    with datalattice.open(path) as node:
        assert list(node.queue("log")) == [0, 1]


# --- the past --------------------------------------------------------------------------------


@pytest.mark.usefixtures("way")
def test_the_past_is_shown_and_kept(node: Node, path: Path) -> None:
    prices = node.database("prices")
    prices["tea"] = 3
    before = datetime.now(UTC)
    prices["tea"] = 4
    first = node.history()[1]
    for ref in ("HEAD~1", first.hash, first.ref, first.hash.hex(), first.time, before):
        with node.as_of(ref) as past:
            # A time in milliseconds may be that of both writes.
            wanted = (3, 4) if isinstance(ref, datetime) else (3,)
            assert past.database("prices")["tea"] in wanted
            with pytest.raises(ReadOnly, match="shows the past"):
                past.database("prices")["tea"] = 5
    with datalattice.open(path, as_of="HEAD~1") as past:
        prices["tea"] = 5
        assert past.database("prices")["tea"] == 3
        with CellStore.open(path / "store", read_only=True) as store:
            assert len(store.pins.leases()) == 1
    with CellStore.open(path / "store", read_only=True) as store:
        assert store.pins.leases() == []
    with pytest.raises(UsageError, match="needs a zone"):
        node.as_of(datetime(2026, 1, 1))  # noqa: DTZ001 - what is refused
    with pytest.raises(UsageError):
        node.as_of("nothing of that name")


# --- owners and keys -------------------------------------------------------------------------


def test_data_is_own_unless_an_owner_is_named(node: Node, path: Path) -> None:
    with datalattice.open(path, key=OTHER) as other:
        other.queue("log").offer("theirs")
        assert other.owner.key == OTHER.public_key
    node.queue("log").offer("mine")
    name_owner(Folder(path), "north", OTHER.public_key)
    for owner in ("north", OTHER.public_key, OTHER.public_key.hex(), OTHER.public_key.hex()[:6]):
        theirs = node.queue("log", owner=owner)
        assert list(theirs) == ["theirs"]
        with pytest.raises(NoSigningKey):
            theirs.offer("not mine")
    assert list(node.queue("log", owner="own")) == ["mine"]
    assert [str(owner) for owner in node.owners()].count("north") == 1
    assert node.topics(owner="north") == ["log"]


def test_keys_are_named_by_name_path_or_pair(node: Node, path: Path) -> None:
    folder = Folder(path)
    write_key(folder.named_key_path("shop"), OTHER)
    for key in ("shop", str(folder.named_key_path("shop")), folder.named_key_path("shop"), OTHER):
        with datalattice.open(path, key=key) as other:
            assert other.owner.key == OTHER.public_key
    assert node.owner.key != OTHER.public_key
    with pytest.raises(NoSigningKey, match=r"no key 'missing'; .* `lattice key new missing -d "):
        datalattice.open(path, key="missing")
    with pytest.raises(NoSigningKey, match="no key at"):
        datalattice.open(path, key=path / "missing.key")


def test_a_folder_that_is_missing_is_made_only_to_be_written(path: Path) -> None:
    for options in ({"create": False}, {"read_only": True}, {"as_of": "HEAD"}):
        with pytest.raises(NoSuchPath, match="there is no folder"):
            datalattice.open(path, **options)
    assert not path.exists()
    path.mkdir()
    with datalattice.open(path, read_only=True) as node:
        with pytest.raises(NoSigningKey, match="no own data"):
            node.queue("log")
        assert list(node.queue("log", owner=OTHER.public_key)) == []
        assert "no key" in repr(node)
    assert list(path.iterdir()) == []
    with pytest.raises(UsageError, match='durable is "each" or "sync"'):
        datalattice.open(path, durable="never")
    with pytest.raises(NoSuchPath, match="nothing was written yet"):
        datalattice.open(path, as_of="HEAD")


@pytest.mark.parametrize(
    ("option", "value", "accepted"),
    [
        ("path", 5, "path is a folder, as text or a Path, got 5"),
        ("path", b"data", "path is a folder, as text or a Path, got b'data'"),
        ("key", 5, "key is a name, the path of a key file, or a KeyPair, got 5"),
        ("as_of", 5, "as_of is a root's name, its hash or a datetime, got 5"),
        ("wait", "x", "wait is 0 or more seconds, got 'x'"),
        ("wait", None, "wait is 0 or more seconds, got None"),
        ("wait", -0.1, "wait is 0 or more seconds, got -0.1"),
        ("wait", float("nan"), "wait is 0 or more seconds, got nan"),
    ],
)
def test_an_option_of_another_kind_is_named(
    path: Path, option: str, value: Any, accepted: str
) -> None:
    datalattice.open(path, wait=0).close()
    with pytest.raises(UsageError) as caught:
        datalattice.open(**{"path": path, option: value})
    assert str(caught.value) == accepted


def test_the_default_folder_is_that_of_the_environment(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATALATTICE_HOME", str(path))
    with datalattice.open() as node:
        node.queue("log").offer(1)
    assert (path / "store").is_dir()


# --- life ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("way")
def test_after_close_handles_raise_and_values_stay(path: Path) -> None:
    node = datalattice.open(path)
    log = node.queue("log")
    log.offer({"items": [{"name": "x" * 500}, {"name": "y" * 500}]})
    with datalattice.open(path) as other:
        value: Any = other.queue("log").peek(0)
    handles: list[object] = [log, node.topic("log"), node.feed("log"), node.database("shop")]
    handles += [node.drive("files"), node.venue(), node.cursor("kv")]
    node.close()
    node.close()
    with pytest.raises(StoreClosed):
        log.size()
    with pytest.raises(StoreClosed):
        log.offer(1)
    with pytest.raises(StoreClosed):
        node.as_of("HEAD")
    assert value["items"][1]["name"] == "y" * 500
    assert "closed" in repr(node)
    for handle in handles:
        assert repr(handle).endswith(": StoreClosed>")


def test_nodes_that_are_dropped_are_closed_later(path: Path) -> None:
    log = datalattice.open(path).queue("log")
    gc.collect()
    assert log.offer(1) == 0, "a handle keeps its node open"
    data = log.cursor._watched()._binding._data  # type: ignore[attr-defined]
    del log
    gc.collect()
    with datalattice.open(path) as node:
        assert node._data._users == 1  # type: ignore[attr-defined]
    assert data._is_closed


def test_a_busy_writer_is_named_after_the_wait(path: Path) -> None:
    with datalattice.open(path, wait=0.05) as node:
        node.queue("log").offer(0)
        with (
            CellStore.open(path / "store", wait_s=10),
            pytest.raises(StoreLocked, match=f"0.05 s in vain.*process {os.getpid()}"),
        ):
            node.queue("log").offer(1)
        with node.batch():
            node.queue("log").offer(1)
            found: list[BaseException] = []

            def write() -> None:
                try:
                    node.queue("log").offer(2)
                except StoreLocked as error:
                    found.append(error)

            thread = threading.Thread(target=write)
            thread.start()
            thread.join()
            assert "another thread of this process" in str(found[0])


def test_nodes_start_and_end_between_writes(node: Node, path: Path) -> None:
    log = node.queue("log")
    for number in range(3):
        log.offer(f"alone {number}")
        with running_node(path):
            assert node.running is not None
            assert node.address is not None
            log.offer(f"beside {number}")
        assert node.running is None
    assert list(log) == [f"{how} {n}" for n in range(3) for how in ("alone", "beside")]
    with pytest.raises(PeerUnavailable, match="no node runs in"):
        node.peers()


@pytest.mark.usefixtures("way")
def test_a_forked_child_opens_anew(node: Node) -> None:
    log = node.queue("log")
    log.offer("parent")
    with node.batch():
        log.offer("batch")
        child = os.fork()
        if not child:
            code = 1
            try:
                code = 0 if list(log) == ["parent"] else 2
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
    child = os.fork()
    if not child:
        code = 1
        try:
            log.offer("child")
            node.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    log.offer("after")
    assert list(log) == ["parent", "batch", "child", "after"]


@pytest.mark.usefixtures("way")
def test_a_node_pickles_as_its_path_and_options(node: Node) -> None:
    node.queue("log").offer(1)
    with pickle.loads(pickle.dumps(node)) as other:
        assert list(other.queue("log")) == [1]
        assert other.owner == node.owner


@pytest.mark.usefixtures("way")
def test_handles_pickle_as_their_names(node: Node) -> None:
    node.queue("log", 3).offer(1)
    node.topic("many", 2).offer("x", key="k")
    node.database("shop")["tea"] = 3
    node.drive("papers").write("/a", b"a")
    node.venue().register('{"name": "Iris"}')
    queue, database, drive, topic, feed, venue = pickle.loads(
        pickle.dumps(
            (
                node.queue("log", 3, of=int),
                node.database("shop"),
                node.drive("papers"),
                node.topic("many", 2),
                node.feed("log"),
                node.venue(),
            )
        )
    )
    assert queue.offer(2) == 1
    assert list(queue) == list(node.queue("log", 3)) == list(feed) == [1, 2]
    assert (database["tea"], drive.read("/a"), topic.num_partitions) == (3, b"a", 2)
    assert venue.did == node.venue().did
    with (
        datalattice.open(":memory:") as other,
        pytest.raises(UsageError, match="cannot be pickled: only"),
    ):
        pickle.dumps(other.queue("log"))


def test_open_loads_nothing_of_the_server() -> None:
    script = (
        "import sys, datalattice\n"
        "datalattice.open\n"
        "print([one for one in sys.modules if one.startswith(('datalattice.node', "
        "'datalattice.pipeline', 'datalattice.cli.', 'datalattice.sync', 'asyncio', 'pyarrow'))])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


@pytest.mark.usefixtures("way")
def test_changes_of_any_process_wake(node: Node, path: Path) -> None:
    woken = threading.Event()
    end = node.queue("log").cursor.subscribe(woken.set)
    node.queue("log").offer(1)
    assert woken.is_set(), "at once in this process"
    woken.clear()
    script = "import datalattice, sys; datalattice.open(sys.argv[1]).queue('log').offer(2)"
    subprocess.run([sys.executable, "-c", script, str(path)], check=True)
    assert woken.wait(LIMIT_S)
    end()


@pytest.mark.usefixtures("way")
def test_calls_are_awaited_in_threads(path: Path) -> None:
    async def run() -> list[object]:
        async with datalattice.open(path, wait=LIMIT_S) as node:
            log = node.queue("log")
            await asyncio.gather(*[node.run(log.offer, n) for n in range(10)])
            with node.batch():
                assert await node.run(log.offer, "batch") == 10
                assert log.size() == 11
            return list(log)

    found = asyncio.run(run())
    assert sorted(found[:10], key=str) == list(range(10))
    assert found[10] == "batch"


def test_a_node_in_memory_forgets() -> None:
    with datalattice.open(":memory:") as node, datalattice.open(":memory:", key=OTHER) as other:
        assert node.owner != other.owner
        with node.batch():
            node.queue("log").offer(1)
        assert list(node.queue("log")) == [1]
        assert list(other.queue("log")) == []
        assert ":memory:" in repr(node)
        assert "log" in node._repr_html_()
        release = node._binding.hold("robot")
        with pytest.raises(StoreLocked):
            node._binding.hold("robot")
        release()
        node._binding.hold("robot")()
        node.queue("log").offer(2)
        assert [one.ref for one in node.history()][:2] == ["HEAD", "HEAD~1"]
        with node.as_of("HEAD~1") as past:
            assert list(past.queue("log")) == [1]
        with pytest.raises(UsageError, match="cannot be pickled"):
            pickle.dumps(node)
        with pytest.raises(PeerUnavailable, match="no node runs in memory"):
            node.add_peer("localhost:1")
    with pytest.raises(UsageError, match="no key files"):
        datalattice.open(":memory:", key="name")


def test_names_are_held_by_one_at_a_time(node: Node, path: Path) -> None:
    release = node._binding.hold("robot")
    with datalattice.open(path) as other, pytest.raises(StoreLocked, match="robot: in use"):
        other._binding.hold("robot")
    release()
    node._binding.hold("robot")()


def test_repr_and_the_notebook_table_say_what_is_there(node: Node, path: Path) -> None:
    assert f"<Node {path}, own {node.owner}: empty>" == repr(node)
    node.queue("log").offer(1)
    node.queue("other").offer(1)
    node.database("shop")["tea"] = 3
    assert repr(node) == f"<Node {path}, own {node.owner}: 2 topics, 1 database>"
    for word in ("topic", "log", "database", "shop"):
        assert word in node._repr_html_()


def test_reports_of_merges_come_as_events(node: Node) -> None:
    here = node.database("shop")
    fork = here.fork()
    fork["tea"] = 3
    here["tea"] = 4
    fork.sync()
    with node.events(wait=False) as events:
        found = list(events)
    assert [type(one).__name__ for one in found] == ["WriteSuperseded"]
    with node.events(timeout=0.01) as events:
        assert len(list(events)) == 1, "the last ones are kept"


def test_what_was_read_stays_readable_until_nothing_refers_to_it(path: Path) -> None:
    with datalattice.open(path) as node:
        node.queue("log").offer({"long": ["x" * 500, "y" * 500]})
        value: Any = node.queue("log")[0]
    with CellStore.open(path / "store", wait_s=10) as store:  # it holds no lock any more
        store.put(1)
    assert value["long"][1] == "y" * 500
