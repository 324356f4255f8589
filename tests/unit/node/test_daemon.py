"""Daemon: how it ends, and what it takes over when its settings are read again."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import stat
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from datalattice.actions import (
    ActionRequest,
    AddPeer,
    CancelTask,
    CollectedGarbage,
    CollectGarbage,
    DrainNode,
    GetNodeHealth,
    GetRoot,
    GetTask,
    HealStore,
    ImportRoot,
    ListTasks,
    PullPeers,
    StartTask,
    SwapSlots,
    TaskState,
    WaitForRoot,
)
from datalattice.apps.queue import Topics
from datalattice.client import Change, Progress, Running, connect, finish, running, write_key
from datalattice.client.settings import NodeConfig
from datalattice.crypto import KeyPair
from datalattice.cursors import RootLattice
from datalattice.errors import (
    NoSigningKey,
    NoSuchPath,
    StoreError,
    StoreFull,
    Unavailable,
    UnsupportedOperation,
    UsageError,
)
from datalattice.lattice import root_lattice
from datalattice.node import Beside, Daemon, NodeServer, control, maintenance
from datalattice.node.daemon import SIGNAL_REST_S
from datalattice.protobuf import Message
from datalattice.store import CellStore
from datalattice.store.gc import Collected
from datalattice.testing.folders import append_change, node_editor
from datalattice.testing.polling import LIMIT_S


def serving(
    folder: Path,
    work: Callable[[Daemon, NodeServer], Awaitable[None]],
    config: NodeConfig | None = None,
    reload: Callable[[], NodeConfig] | None = None,
    key_pair: KeyPair | None = None,
    beside: Beside | None = None,
) -> None:
    """Do something to a daemon that serves, then have it end in order."""

    async def run() -> None:
        ready: asyncio.Future[NodeServer] = asyncio.get_running_loop().create_future()

        def serves(_: Running, node: NodeServer) -> None:
            ready.set_result(node)

        settings = config or NodeConfig(port=-1)
        daemon = Daemon(
            folder, settings, key_pair=key_pair, ready=serves, reload=reload, beside=beside
        )
        assert not daemon.stop()
        async with asyncio.timeout(LIMIT_S):
            serve = asyncio.ensure_future(daemon.serve())
            await asyncio.wait((serve, ready), return_when=asyncio.FIRST_COMPLETED)
            try:
                await work(daemon, await ready)
            finally:
                assert daemon.stop()
                await serve

    asyncio.run(run())
    assert not (folder / "running.json").exists()
    assert not (folder / "control.sock").exists()


def test_stop_ends_it_in_order_from_any_thread(tmp_path: Path) -> None:
    async def work(daemon: Daemon, _node: NodeServer) -> None:
        found = await asyncio.to_thread(running, tmp_path)
        assert found is not None
        assert (found.pid, found.address, found.http) == (os.getpid(), None, None)
        assert await asyncio.to_thread(daemon.stop)

    serving(tmp_path, work)
    assert connect(tmp_path) is None


def test_a_copy_of_a_folder_does_not_reach_the_node_of_the_original(tmp_path: Path) -> None:
    folder, copy = tmp_path / "original", tmp_path / "copy"

    async def work(_daemon: Daemon, _node: NodeServer) -> None:
        copy.mkdir()
        (copy / "running.json").write_bytes((folder / "running.json").read_bytes())
        assert await asyncio.to_thread(running, copy) is None
        assert await asyncio.to_thread(connect, copy) is None
        assert await asyncio.to_thread(running, folder) is not None

    serving(folder, work)


def test_what_a_node_keeps_is_for_its_user_alone(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "home"
    before = os.umask(0)
    try:
        keys = KeyPair(b"k" * 32)
        write_key(folder / "identity.key", keys)

        async def work(_daemon: Daemon, node: NodeServer) -> None:
            Topics.at(node.cursor, keys.public_key).partition("t", 0).offer(1)
            await node.sync()
            for path in [folder.parent, folder, *folder.rglob("*")]:
                mode = stat.S_IMODE(path.lstat().st_mode)
                assert mode == (0o700 if path.is_dir() else 0o600), path

        serving(folder, work, key_pair=keys)
    finally:
        os.umask(before)
    names = {path.name for path in folder.rglob("*")}
    assert {"identity.key", "store", "lock"} <= names


def test_a_lock_that_is_a_link_costs_no_other_file_its_contents(tmp_path: Path) -> None:
    CellStore.open(tmp_path / "store").close()
    other = tmp_path / "other"
    other.write_text("mine", "ascii")
    (tmp_path / "store" / "lock").unlink()
    (tmp_path / "store" / "lock").symlink_to(other)
    with pytest.raises(StoreError, match="lock is a link, and a lock is a file of its own"):
        CellStore.open(tmp_path / "store")
    assert other.read_text("ascii") == "mine"


def test_a_new_key_is_durable_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[str, bool]] = []

    def sync(handle: int) -> None:
        path = Path(f"/proc/self/fd/{handle}").readlink()
        synced.append((path.name, path.is_dir() and any(path.iterdir())))

    monkeypatch.setattr(os, "fsync", sync)
    write_key(tmp_path / "home" / "identity.key", KeyPair(b"k" * 32))
    # The folder's own name, the bytes of the file, and last the name of the file.
    fresh = f".identity.key.{os.getpid()}.new"
    assert synced == [(tmp_path.name, True), (fresh, False), ("home", True)]


def test_a_socket_gets_a_short_path_wherever_node_and_temporary_folder_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("n" * 100)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))

    async def work(_daemon: Daemon, _node: NodeServer) -> None:
        found = await asyncio.to_thread(running, long)
        assert found is not None
        assert len(found.control) <= control.SOCKET_PATH_BYTES_MAX
        assert await asyncio.to_thread(asked, long, GetNodeHealth())

    serving(long, work)
    assert list(long.glob("lattice-*")) == []
    refused = Mock(side_effect=OSError(28, "No space left on device"))
    monkeypatch.setattr(tempfile, "mkdtemp", refused)
    with pytest.raises(UsageError, match=r"No space left .* set TMPDIR to a folder with a short"):
        asyncio.run(Daemon(long, NodeConfig(port=-1)).serve())


def test_a_socket_that_cannot_be_made_leaves_no_folder_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("n" * 100)
    long.mkdir()
    made: list[str] = []
    make = tempfile.mkdtemp

    def noted(**given: str | None) -> str:
        made.append(make(**given))
        return made[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", noted)
    monkeypatch.setattr(socket.socket, "bind", Mock(side_effect=OSError(28, "no room")))
    with pytest.raises(UsageError, match=r"cannot make the socket .*: no room"):
        asyncio.run(Daemon(long, NodeConfig(port=-1)).serve())
    assert made
    assert not [folder for folder in made if Path(folder).exists()]


def asked(folder: Path, request: ActionRequest[Any]) -> Any:
    client = connect(folder)
    assert client is not None
    with client:
        return client.call(request)


def edited(folder: Path, keys: KeyPair, change: Change[object]) -> object:
    with node_editor(folder, keys) as editor:
        return editor.edit(change)


def test_what_cannot_be_done_is_explained_to_whoever_asks(tmp_path: Path) -> None:
    async def work(_daemon: Daemon, _node: NodeServer) -> None:
        requests: list[tuple[ActionRequest[Any], Any, str]] = [
            (SwapSlots(), NoSigningKey, "started without a key"),
            (GetTask(id=1), NoSuchPath, "has no task 1"),
            (CancelTask(id=1), NoSuchPath, "has no task 1"),
            (StartTask(), UsageError, "a task is one of heal, collect, import_root, rebuild; got"),
            (StartTask(import_root=ImportRoot()), UsageError, "needs the path of an archive"),
            (AddPeer(address="12ab"), UsageError, "or a key of 64 hex digits"),
            (AddPeer(address="h:0"), UsageError, "1 to 65535"),
            (WaitForRoot(timeout_ms=30_001), UsageError, "0 to 30000, got 30001"),
            (GetRoot(), UnsupportedOperation, "without the service that does lattice.root"),
        ]
        for request, error, words in requests:
            with pytest.raises(error, match=words):
                await asyncio.to_thread(asked, tmp_path, request)

    serving(tmp_path, work)


def test_a_fault_in_an_operation_is_told_and_degrades_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(_daemon: Daemon, node: NodeServer) -> None:
        def broken(_address: object) -> None:
            raise ZeroDivisionError("by mistake")

        monkeypatch.setattr(node, "pull", broken)
        with pytest.raises(Unavailable, match="a fault of the running node: ZeroDivisionError"):
            await asyncio.to_thread(asked, tmp_path, PullPeers())
        assert node.observer.health == "degraded: ZeroDivisionError: by mistake"

    serving(tmp_path, work)


def finished(folder: Path, task: StartTask) -> Message:
    client = connect(folder)
    assert client is not None
    with client:
        return finish(client, task, lambda _done, _total=None: None)


def test_a_long_operation_tells_how_far_it_is_until_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()

    def collected(_store: object, progress: Progress, **_more: object) -> Collected:
        progress(7)
        progress(8, 9)
        assert release.wait(LIMIT_S)
        raise StoreFull("no room")

    async def work(_daemon: Daemon, _node: NodeServer) -> None:
        monkeypatch.setattr(maintenance, "collect", collected)
        task = StartTask(collect=CollectGarbage(grace_ms=5))
        begun = [await asyncio.to_thread(asked, tmp_path, task) for _ in range(2)]
        assert [one.id for one in begun] == [1, 1]
        info = begun[0]
        while info.count != 8:
            info = await asyncio.to_thread(asked, tmp_path, GetTask(id=1))
        assert (info.kind, info.state, info.total) == ("collect", TaskState.RUNNING, 9)
        waiting = asyncio.ensure_future(asyncio.to_thread(finished, tmp_path, task))
        release.set()
        with pytest.raises(StoreFull, match="no room"):
            await waiting
        monkeypatch.undo()
        task = StartTask(collect=CollectGarbage(dry_run=True))
        made = await asyncio.to_thread(finished, tmp_path, task)
        assert isinstance(made, CollectedGarbage)
        assert made.is_dry
        tasks = (await asyncio.to_thread(asked, tmp_path, ListTasks())).tasks
        assert (tasks[0].state, tasks[-1].state) == (TaskState.FAILED, TaskState.DONE)

    serving(tmp_path, work)


def test_a_fault_of_a_long_operation_that_nobody_waits_for_degrades_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(_daemon: Daemon, node: NodeServer) -> None:
        def broken(*_arguments: object) -> None:
            raise ZeroDivisionError("by mistake")

        monkeypatch.setattr(node, "heal", broken)
        task = await asyncio.to_thread(asked, tmp_path, StartTask(heal=HealStore()))
        await node.wait_until(
            lambda node: node.observer.health == "degraded: ZeroDivisionError: by mistake"
        )
        info = await asyncio.to_thread(asked, tmp_path, GetTask(id=task.id))
        assert (info.state, info.code) == (TaskState.FAILED, Unavailable.code)
        assert info.text.startswith("a fault of the running node: ZeroDivisionError")

    serving(tmp_path, work)


def test_records_that_wait_for_room_on_the_disk_are_not_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(_daemon: Daemon, node: NodeServer) -> None:
        def full(_cursor: object) -> None:
            raise StoreFull("no room")

        monkeypatch.setattr(type(node.cursor), "sync", full)
        with pytest.raises(StoreFull, match="no room; the edit is not acknowledged"):
            await asyncio.to_thread(edited, tmp_path, key, append_change(["one"]))
        monkeypatch.undo()  # the end needs it

    key = KeyPair.generate()
    serving(tmp_path, work, key_pair=key)


def test_an_end_with_records_that_were_never_stored_says_which_are_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    key = KeyPair.generate()

    async def work(_daemon: Daemon, _node: NodeServer) -> None:
        await asyncio.to_thread(edited, tmp_path, key, append_change(["stored"]))

        def full(*_arguments: object, **_more: object) -> None:
            raise StoreFull("no room")

        monkeypatch.setattr(CellStore, "commit", full)

        def two_topics(cursor: RootLattice, keys: KeyPair) -> None:
            append_change(["one", "two"])(cursor, keys)
            append_change(["three"], "other", 3)(cursor, keys)

        with pytest.raises(StoreFull, match="if it stops before, it is lost"):
            await asyncio.to_thread(edited, tmp_path, key, two_topics)
        # What is durable is behind what the node keeps, so a later edit is refused, and not kept.
        with pytest.raises(StoreFull, match=r"^no room$"):
            await asyncio.to_thread(edited, tmp_path, key, append_change(["four"]))

    with (
        pytest.raises(StoreFull) as raised,
        caplog.at_level("ERROR", logger="datalattice.node"),
    ):
        serving(tmp_path, work, key_pair=key)
    assert "no room; lost with this stop: " in str(raised.value)
    lost = ("2 records of t 0 from offset 1 on", "1 record of other 3 from offset 0 on")
    for what in lost:
        assert what in str(raised.value)
        assert what in caplog.text
    monkeypatch.undo()
    with CellStore.open(tmp_path / "store") as store:
        root = RootLattice(root_lattice(), store.root())
        assert Topics.at(root, key.public_key).partition("t", 0).end_offset() == 1


def test_signals_that_come_together_are_one_and_a_later_one_ends_it_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)

    class Time:
        now = 5.0

        def time(self) -> float:
            return self.now

    async def work(daemon: Daemon, _node: NodeServer) -> None:
        time = Time()

        def signalled(number: signal.Signals) -> None:
            daemon._on_end_signal(number, time)  # type: ignore[arg-type]

        signalled(signal.SIGTERM)
        time.now += SIGNAL_REST_S - 0.01
        signalled(signal.SIGTERM)
        signalled(signal.SIGINT)
        assert codes == []
        time.now += 0.01
        signalled(signal.SIGINT)
        assert codes == [130]

    serving(tmp_path, work)


def test_settings_that_are_read_again_change_the_wanted_peers(tmp_path: Path) -> None:
    first = NodeConfig(port=-1, peers=("127.0.0.1:1", "127.0.0.1:2"))
    found = [NodeConfig(port=-1, peers=("tls://127.0.0.1:2", "127.0.0.1:3"))]

    def reload() -> NodeConfig:
        if not found:
            raise UsageError("node.toml is wrong")
        return found.pop()

    async def work(daemon: Daemon, node: NodeServer) -> None:
        def peers() -> list[str | None]:
            return [one.address for one in node.peers]

        node.add_peer("127.0.0.1:9")
        await node.remove_peer("127.0.0.1:1")
        for _ in range(2):  # the second time it is wrong, and nothing changes
            daemon._on_reload_signal()
            assert daemon._reloading is not None
            await daemon._reloading
            assert peers() == ["127.0.0.1:2", "127.0.0.1:9", "127.0.0.1:3"]

    serving(tmp_path, work, first, reload)


class Doors:
    """Doors that serve nothing, and note what they are told."""

    def __init__(self) -> None:
        self.taken: list[NodeConfig] = []
        self.stops = 0

    def bind(self) -> dict[str, str]:
        return {"rest": "http://127.0.0.1:1"}

    def start(self) -> None: ...

    def trouble(self) -> str | None:
        return None

    def silent_s(self) -> float:
        return 0.0

    def prepare(self, config: NodeConfig) -> Callable[[], None]:
        return lambda: self.taken.append(config)

    def stop(self) -> None:
        self.stops += 1


def test_settings_of_which_one_cannot_be_applied_change_nothing(tmp_path: Path) -> None:
    own, doors = KeyPair.generate(), Doors()
    first = NodeConfig(port=-1, peers=("127.0.0.1:1",))
    # The last address is that of this node itself, which shows only when it is added.
    peers = ("127.0.0.1:3", f"{own.public_key.hex()}@127.0.0.1:4")
    found = [NodeConfig(port=-1, peers=peers, log_level="debug"), first]

    async def work(daemon: Daemon, node: NodeServer) -> None:
        before = logging.getLogger("datalattice").level
        with pytest.raises(UsageError, match="the key of this node itself"):
            await daemon._read_again()
        assert [one.address for one in node.peers] == ["127.0.0.1:1"]
        assert doors.taken == []
        assert logging.getLogger("datalattice").level == before
        assert await daemon._read_again() == []
        assert doors.taken == [first]

    serving(tmp_path, work, first, lambda: found.pop(0), own, doors)


def test_a_node_that_drains_ends_its_doors_once_and_goes_on_for_its_owner(tmp_path: Path) -> None:
    doors = Doors()

    async def work(_daemon: Daemon, _node: NodeServer) -> None:
        def states() -> tuple[str, object]:
            found = running(tmp_path)
            assert found is not None
            return asked(tmp_path, GetNodeHealth()).health, found.doors

        assert await asyncio.to_thread(states) == ("ok", doors.bind())
        for _ in range(2):
            await asyncio.to_thread(asked, tmp_path, DrainNode())
        assert await asyncio.to_thread(states) == ("draining", None)

    serving(tmp_path, work, beside=doors)
    assert doors.stops == 1


def test_health_says_draining_and_why_doors_do_not_serve(tmp_path: Path) -> None:
    pages: list[tuple[int, str]] = []
    places: list[str] = []

    class Troubled(Doors):
        """Doors of which one does not serve; it looks at the health while they end."""

        def trouble(self) -> str:
            return "rest: its port is taken"

        def stop(self) -> None:
            look()

    def look() -> None:
        try:
            with urllib.request.urlopen(f"http://{places[0]}/health", timeout=60) as answer:
                pages.append((answer.status, answer.read().decode()))
        except urllib.error.HTTPError as error:
            with error:
                pages.append((error.code, error.read().decode()))

    async def run() -> None:
        begun = asyncio.Event()

        def ready(found: Running, _: NodeServer) -> None:
            places.append(found.http or "")
            begun.set()

        config = NodeConfig(port=-1, http_port=0)
        daemon = Daemon(tmp_path, config, ready=ready, beside=Troubled())
        task = asyncio.ensure_future(daemon.serve())
        await begun.wait()
        await asyncio.to_thread(look)
        daemon.stop()
        await task

    asyncio.run(run())
    found = [(status, json.loads(page)) for status, page in pages]
    assert [(status, page["status"]) for status, page in found] == [
        (503, "degraded"),
        (503, "draining"),
    ]
    assert found[0][1]["reasons"] == {"doors": "rest: its port is taken"}
