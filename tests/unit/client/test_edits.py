"""Editing a folder: durable, whole, beside a running node and without one."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from datalattice.apps.queue import Queue, Topics
from datalattice.cells import (
    EMPTY_MAP,
    STAGED_BYTES,
    Blob,
    Keyword,
    Map,
    Signed,
    Value,
    Vector,
    blob_from,
    encode,
    to_python,
    value_hash,
)
from datalattice.client import (
    Folder,
    OpenFolder,
    connect,
    edit,
    editing,
    edits,
    reading,
    take_turn,
    write_key,
)
from datalattice.client.settings import NodeConfig
from datalattice.crypto import KeyPair
from datalattice.cursors import RootLattice
from datalattice.errors import (
    Backpressure,
    NoSigningKey,
    NotContained,
    StoreFailed,
    StoreFull,
    StoreLocked,
    TypeMismatch,
    UsageError,
)
from datalattice.lattice import LOCAL_KEY, assoc_in, root_lattice
from datalattice.node import Daemon, NodeServer
from datalattice.service import FolderService
from datalattice.store import CellStore
from datalattice.testing.polling import LIMIT_S

QUEUE = Keyword("queue")


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """Return a folder with a key."""
    found = Folder(tmp_path / "home")
    write_key(found.key_path, KeyPair(bytes(32)))
    return found


Work = Callable[[NodeServer], Any]


def beside_a_node(
    folder: Folder,
    work: Work,
    key_pair: KeyPair | None = None,
    service: FolderService | None = None,
) -> None:
    """Do something in another thread while a node runs in the folder."""

    async def run() -> None:
        ready: asyncio.Future[NodeServer] = asyncio.get_running_loop().create_future()
        keys = key_pair or KeyPair(bytes(32))
        daemon = Daemon(
            folder.path,
            NodeConfig(port=-1),
            key_pair=keys,
            ready=lambda _, node: ready.set_result(node),
            service=service,
        )
        async with asyncio.timeout(LIMIT_S):
            serve = asyncio.ensure_future(daemon.serve())
            try:
                await asyncio.to_thread(work, await ready)
            finally:
                daemon.stop()
                await serve

    asyncio.run(run())


def within_a_node(folder: Folder, work: Work, key_pair: KeyPair | None = None) -> None:
    """Do something in a process whose node serves the folder's users, as a daemon does."""
    config = NodeConfig(port=-1)
    with closing(FolderService(folder.path, key_pair or KeyPair(bytes(32)), config)) as service:

        def served(node: NodeServer) -> None:
            with editing(folder) as editor:
                assert isinstance(editor, edits.ServedEditor)
            work(node)

        beside_a_node(folder, served, key_pair, service)


def without(_folder: Folder, work: Callable[[NodeServer | None], None]) -> None:
    work(None)


@pytest.fixture(params=[without, beside_a_node, within_a_node])
def run(request: pytest.FixtureRequest) -> Any:
    """Return what does some work: without a node, beside one, and within one's process."""
    return request.param


@pytest.fixture(params=[beside_a_node, within_a_node])
def with_node(request: pytest.FixtureRequest) -> Any:
    """Return what does some work with a node: beside one, and within one's process."""
    return request.param


def add_one(cursor: RootLattice, keys: KeyPair) -> int:
    queue = Topics.at(cursor, keys.public_key).partition("t", 0)
    count = queue.get_meta("count") or 0
    assert isinstance(count, int)
    queue.set_meta("count", count + 1)
    return count + 1


def topic_in(folder: Folder) -> Iterator[Queue]:
    """Give the folder's own queue `t 0`, to read from."""
    with reading(folder) as root:
        cursor = RootLattice(root_lattice(), root)
        yield Topics.at(cursor, KeyPair(bytes(32)).public_key).partition("t", 0)


def count_in(folder: Folder) -> object:
    return next(one.get_meta("count") for one in topic_in(folder))


def test_an_edit_is_on_disk_and_gives_its_result(folder: Folder, run: Any) -> None:
    def work(_node: NodeServer | None) -> None:
        assert [edit(folder, add_one) for _ in range(3)] == [1, 2, 3]
        assert count_in(folder) == 3

    run(folder, work)
    assert count_in(folder) == 3


def test_who_read_within_a_node_goes_on_when_the_node_has_ended(folder: Folder) -> None:
    values = [bytes([number]) * 3_000 for number in range(50)]

    def offer(cursor: RootLattice, keys: KeyPair) -> None:
        Topics.at(cursor, keys.public_key).partition("t", 0).offer_many(values)

    with closing(OpenFolder.at(folder)) as data:

        def read() -> list[Value]:
            cursor = RootLattice(root_lattice(), data.root())
            queue = Topics.at(cursor, KeyPair(bytes(32)).public_key).partition("t", 0)
            return list(queue)

        def work(_node: NodeServer) -> None:
            edit(folder, offer)
            data.root()

        within_a_node(folder, work)
        assert read() == values
        edit(folder, offer)
        assert read() == values * 2


def test_a_change_that_fails_or_writes_nothing_leaves_all_as_it_is(
    folder: Folder, run: Any
) -> None:
    def fails(cursor: RootLattice, keys: KeyPair) -> None:
        add_one(cursor, keys)
        raise ZeroDivisionError

    def work(_node: NodeServer | None) -> None:
        edit(folder, add_one)
        with reading(folder) as root:
            before = root
        with pytest.raises(ZeroDivisionError):
            edit(folder, fails)
        assert edit(folder, lambda _cursor, _keys: "read") == "read"
        with reading(folder) as root:
            assert root == before

    run(folder, work)


def test_large_values_go_in_pieces(
    folder: Folder, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edits, "_BATCH_BYTES", 10_000)
    values = [bytes([n % 256]) * (n * 7) for n in range(300)]

    def offer(cursor: RootLattice, keys: KeyPair) -> range:
        return Topics.at(cursor, keys.public_key).partition("t", 0).offer_many(values)

    def work(_node: NodeServer | None) -> None:
        assert edit(folder, offer) == range(300)

    run(folder, work)
    for queue in topic_in(folder):
        assert [to_python(one) for one in queue] == values


def put_unseen(cursor: RootLattice, cell: Value, *keys: Value) -> None:
    """Write what a cursor would refuse: whoever edits may have another program."""
    cursor.adopt(lambda root: assoc_in(root, keys, cell, cursor.lattice))


def test_nobody_writes_for_another_owner(folder: Folder, with_node: Any) -> None:
    other = KeyPair(bytes([7]) * 32)

    def forge(cursor: RootLattice, keys: KeyPair) -> None:
        put_unseen(cursor, Signed.sign(keys, EMPTY_MAP), LOCAL_KEY, other.public_key)

    def unsigned(cursor: RootLattice, keys: KeyPair) -> None:
        put_unseen(cursor, EMPTY_MAP, LOCAL_KEY, keys.public_key)

    def nowhere(cursor: RootLattice, _keys: KeyPair) -> None:
        put_unseen(cursor, 1, Keyword("nowhere"))

    def work(_node: NodeServer) -> None:
        with pytest.raises(NoSigningKey, match="may not sign for its owner"):
            edit(folder, forge)
        with pytest.raises(TypeMismatch, match="takes a Signed value by a key of its owner"):
            edit(folder, unsigned)
        with pytest.raises(UsageError, match="the lattice has nothing at"):
            edit(folder, nowhere)

    with_node(folder, work)


def test_a_value_that_its_owner_signed_may_be_brought_and_not_taken_back(
    folder: Folder, with_node: Any
) -> None:
    other = KeyPair(bytes([7]) * 32)

    def bring(stamp: int) -> Callable[[RootLattice, KeyPair], None]:
        entry = Map.of({Keyword("timestamp"): stamp})
        cell = Signed.sign(other, Map.of({Keyword("k"): entry}))
        return lambda cursor, _keys: put_unseen(cursor, cell, LOCAL_KEY, other.public_key)

    def work(_node: NodeServer) -> None:
        edit(folder, bring(5))
        edit(folder, bring(6))
        with pytest.raises(NotContained, match="got an earlier or a different state"):
            edit(folder, bring(4))

    with_node(folder, work)


def test_an_edit_that_meets_a_write_of_the_node_is_made_again(
    folder: Folder, with_node: Any
) -> None:
    def work(node: NodeServer) -> None:
        seen: list[int] = []

        def change(cursor: RootLattice, keys: KeyPair) -> int:
            if len(seen) < 2:  # somebody in the node's own process is faster, twice
                add_one(node.cursor, KeyPair(bytes(32)))
                node.cursor.sync()
            seen.append(add_one(cursor, keys))
            return seen[-1]

        assert edit(folder, change) == 3
        assert seen == [1, 2, 3]
        assert count_in(folder) == 3

    with_node(folder, work)


def test_a_write_of_the_node_that_is_not_durable_yet_is_not_lost(
    folder: Folder, with_node: Any
) -> None:
    def work(node: NodeServer) -> None:
        add_one(node.cursor, KeyPair(bytes(32)))  # not synced
        assert edit(folder, add_one) == 2
        assert count_in(folder) == 2

    with_node(folder, work)


def test_an_edit_that_is_always_too_late_says_so(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, with_node: Any
) -> None:
    monkeypatch.setattr(edits, "TRIES_MAX", 3)

    def work(node: NodeServer) -> None:
        def change(cursor: RootLattice, keys: KeyPair) -> None:
            add_one(node.cursor, keys)
            add_one(cursor, keys)

        with pytest.raises(Backpressure, match="3 times while this edit was made; nothing"):
            edit(folder, change)
        assert count_in(folder) == 3

    with_node(folder, work)


def test_an_edit_beside_a_node_waits_for_another_one(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, with_node: Any
) -> None:
    def work(_node: NodeServer) -> None:
        def change(cursor: RootLattice, keys: KeyPair) -> int:
            monkeypatch.setattr(edits, "LOCK_WAIT_S", 0.01)
            with (
                ThreadPoolExecutor(1) as other,
                pytest.raises(StoreLocked, match="in vain for other threads that write"),
            ):
                other.submit(edit, folder, add_one).result()
            return add_one(cursor, keys)

        assert edit(folder, change) == 1

    with_node(folder, work)


def test_a_lock_of_editors_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    with pytest.raises(StoreFailed, match=r"gone/lock: cannot be written \(No such file"):
        take_turn(str(tmp_path / "gone" / "lock"), 0, "edit to end")


def test_a_node_whose_disk_is_full_keeps_the_edit(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, with_node: Any
) -> None:
    def work(node: NodeServer) -> None:
        def full(_cursor: object) -> None:
            raise StoreFull("no room")

        monkeypatch.setattr(type(node.cursor), "sync", full)
        with pytest.raises(StoreFull, match="no room; the edit is not acknowledged"):
            edit(folder, add_one)
        monkeypatch.undo()
        assert edit(folder, add_one) == 2

    with_node(folder, work)


def test_a_node_with_another_key_refuses(folder: Folder, with_node: Any) -> None:
    def work(_node: NodeServer) -> None:
        edit(folder, _add_or_clear)  # it may be taken as news of the folder's key
        with pytest.raises(NotContained, match="got an earlier or a different state"):
            edit(folder, _add_or_clear)

    with_node(folder, work, KeyPair(bytes([9]) * 32))


def _add_or_clear(cursor: RootLattice, keys: KeyPair) -> None:
    place = cursor.path(QUEUE, keys.public_key, Keyword("value"))
    if place.get() is None:
        add_one(cursor, keys)
    else:
        place.set(EMPTY_MAP)


def test_staged_values_are_there_for_a_later_edit(folder: Folder, run: Any) -> None:
    def work(_node: NodeServer | None) -> None:
        with editing(folder) as editor:
            value = Map.of({n: bytes(200) + bytes([n]) for n in range(100)})
            editor.stage(value)

            def offer(cursor: RootLattice, keys: KeyPair) -> None:
                Topics.at(cursor, keys.public_key).partition("t", 0).offer(value)

            editor.edit(offer)

    run(folder, work)


def test_parts_of_a_large_file_are_leased_and_announced_by_where_they_lie(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces = [random.Random(number).randbytes(STAGED_BYTES) for number in range(17)]

    def work(node: NodeServer) -> None:
        monkeypatch.setattr(edits, "KEEP_EVERY_S", 0)
        assert isinstance(node.store, CellStore)
        with editing(folder) as editor:
            part = blob_from(pieces[:16])
            assert isinstance(part, Blob)
            made = blob_from(pieces, editor.stage)
            assert part.hash in node.store._spans
            assert node.store.pins.leases()
            node.store.collect(grace_ms=0)

            def offer(cursor: RootLattice, keys: KeyPair) -> None:
                Topics.at(cursor, keys.public_key).partition("t", 0).offer(made)

            editor.edit(offer)
        assert node.store.announced(part.hash)
        assert node.store.check().is_clean

    within_a_node(folder, work)


def test_staged_values_outlive_collections_of_the_node(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, with_node: Any
) -> None:
    """What waits for its edit for longer than the grace of the store is leased, once for all."""

    def work(node: NodeServer) -> None:
        monkeypatch.setattr(edits, "KEEP_EVERY_S", 0)
        assert isinstance(node.store, CellStore)
        leases = node.store.pins.leases
        with editing(folder) as editor:
            parts = [blob_from([bytes([number]) * 20_000]) for number in range(20)]
            for part in parts:
                editor.stage(part)
            assert len(leases()) == 20
            editor.stage(Vector.of(parts[:10]))
            assert len(leases()) == 11
            monkeypatch.setattr(edits, "KEPT_MAX", 8)
            editor.stage(Map.of({1: bytes(300)}))
            assert len(leases()) == 1
            node.store.collect(grace_ms=0)

            def offer(cursor: RootLattice, keys: KeyPair) -> None:
                Topics.at(cursor, keys.public_key).partition("t", 0).offer(Vector.of(parts))

            editor.edit(offer)
        assert leases() == []
        assert node.store.check().is_clean

    with_node(folder, work)


@pytest.mark.parametrize("count", [32, 33, 300])
def test_values_that_wait_for_their_edit_take_a_bounded_number_of_places(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, count: int, with_node: Any
) -> None:
    monkeypatch.setattr(edits, "_WAITING_MAX", 32)
    values = [bytes(200) + number.to_bytes(2, "big") for number in range(count)]

    def work(node: NodeServer) -> None:
        assert isinstance(node.store, CellStore)
        with editing(folder) as editor:
            assert isinstance(editor, edits.NodeEditor)
            for value in values:
                editor.stage_cells([(value_hash(value), encode(value))])
                assert len(editor._staged) <= 32
            assert (len(editor._staged) == count) == (count <= 32)
            monkeypatch.setattr(edits, "KEEP_EVERY_S", 0)
            editor.stage_cells([])
            node.store.collect(grace_ms=0)
            assert not node.store.missing(map(value_hash, values))

    with_node(folder, work)


def test_without_a_key_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(NoSigningKey):
        edit(Folder(tmp_path), add_one)
    assert connect(tmp_path) is None
    assert not (tmp_path / "store").exists()
