"""The fence: writes below owners wait until peers have said what was written elsewhere."""

from __future__ import annotations

import asyncio
import shutil
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from datalattice.apps.kv import Database
from datalattice.apps.queue import Queue, Topics
from datalattice.cells import Index, Keyword, Map, Signed, to_cell
from datalattice.client.fence.rules import FENCED_PATHS_MAX, owned_paths
from datalattice.client.settings import NodeConfig
from datalattice.crypto import KeyPair, KeyRing
from datalattice.cursors import RootLattice
from datalattice.errors import DataLoss, IdentityCloned, Unfenced
from datalattice.lattice import (
    LOCAL_KEY,
    MergeContext,
    OwnerLattice,
    SetLattice,
    did_of,
    root_lattice,
)
from datalattice.node import NodeServer, open_node
from datalattice.node.fencing import CLONED, UNFENCED
from datalattice.store import CellStore, MemoryStore, Store
from datalattice.sync import sign_start
from datalattice.testing.polling import LIMIT_S, until_async

OWNER = KeyPair(b"o" * 32)
ONE, TWO, THREE = (KeyPair(bytes([seed]) * 32) for seed in (1, 2, 3))


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(LIMIT_S):
            await work()

    asyncio.run(bounded())


def device(
    identity: KeyPair,
    store: Store | Path | None = None,
    *peers: NodeServer | str,
    **options: object,
) -> NodeServer:
    addresses = tuple(str(one.address) if isinstance(one, NodeServer) else one for one in peers)
    chosen = {"port": 0, "peers": addresses, **options}
    config = NodeConfig(**chosen)  # type: ignore[arg-type]
    return open_node(store or MemoryStore(), identity=identity, keys=[OWNER], config=config)


def log_of(node: NodeServer) -> Queue:
    return Topics.at(node.cursor, OWNER.public_key).partition("orders", 0)


async def offer(node: NodeServer, first: int, end: int) -> range:
    offsets = log_of(node).offer_many([f"record {number}" for number in range(first, end)])
    await node.sync()
    return offsets


@pytest.fixture
def silence() -> Iterator[str]:
    """Give the address of a listener that takes connections and never says anything."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def is_connected(node: NodeServer) -> Callable[[], bool]:
    return lambda: node.peers[0].connected


# --- a peer that answers --------------------------------------------------------------------------


@pytest.mark.parametrize("turn", range(5))
def test_a_restored_node_appends_behind_what_its_peer_has(turn: int) -> None:
    """The first append after the start, which nothing but the fence holds back."""

    async def work() -> None:
        restored = MemoryStore()
        async with device(ONE, restored) as first:
            await offer(first, 0, 50)
        async with device(TWO) as peer:
            lattice, context = root_lattice(), MergeContext(key_pair=OWNER)
            later = RootLattice(lattice, restored.root(), context)
            queue = Topics.at(later, OWNER.public_key).partition("orders", 0)
            queue.offer_many([f"record {number}" for number in range(50, 100 + turn)])
            peer.cursor.merge(later.get())
            await peer.sync()
            async with device(ONE, restored, peer) as again:
                assert again.is_fenced
                assert again.observer.health == "ok"
                assert await offer(again, 0, 5) == range(100 + turn, 105 + turn)

    run(work)


def test_a_pull_returns_when_the_live_value_has_what_the_peer_has() -> None:
    async def work() -> None:
        async with device(TWO) as peer:
            await offer(peer, 0, 2_000)
            for seed in range(5, 15):
                node = open_node(MemoryStore(), key_pair=KeyPair(bytes([seed]) * 32))
                async with node:
                    node.add_peer(peer.address)
                    await node.wait_until(
                        lambda one: one.peers[0].connected or one.root_hash != b""
                    )
                    await until_async(is_connected(node))
                    await asyncio.gather(node.pull(), node.pull())
                    assert log_of(node).size() == 2_000
                    assert node.root_hash == peer.root_hash

    run(work)


def test_nothing_waits_without_peers_without_keys_or_without_owned_sections(silence: str) -> None:
    async def work() -> None:
        nodes = [
            device(ONE),
            open_node(MemoryStore(), config=NodeConfig(port=0, peers=(silence,))),
            open_node(
                MemoryStore(),
                key_pair=ONE,
                lattice=SetLattice(),
                config=NodeConfig(port=0, peers=(silence,)),
            ),
        ]
        for node in nodes:
            async with node:
                assert not node.is_fenced
                assert node.observer.health == "ok"
                assert "unfenced-starts" not in node.observer.counters

    run(work)


# --- nobody who answers ---------------------------------------------------------------------------


def test_without_an_answer_in_time_writes_are_accepted_and_the_node_says_so(silence: str) -> None:
    async def work() -> None:
        async with device(ONE, None, silence, fence_wait_ms=50) as node:
            assert not node.is_fenced
            assert await offer(node, 0, 5) == range(5)
            assert node.observer.counters["unfenced-starts"] == 1
            assert "writing without having asked a peer" in node.observer.health

    run(work)


def test_the_first_answer_of_a_peer_ends_being_unfenced(port: int) -> None:
    async def work() -> None:
        async with device(TWO, port=port) as peer:
            address = str(peer.address)
        async with device(ONE, None, address, fence_wait_ms=20) as node:
            assert node.observer.has(UNFENCED)
            await offer(node, 0, 5)
            async with device(TWO, None, port=port):
                await until_async(lambda: node.is_fenced)
                assert not node.observer.has(UNFENCED)

    run(work)


def test_one_peer_that_answers_is_enough_when_another_is_silent(silence: str) -> None:
    async def work() -> None:
        async with device(TWO) as peer:
            await offer(peer, 0, 7)
            peers = (silence, str(peer.address))
            async with device(ONE, None, *peers, fence_wait_ms=5_000) as node:
                await until_async(lambda: node.is_fenced)
                assert await offer(node, 0, 1) == range(7, 8)

    run(work)


def test_a_peer_with_an_old_value_changes_nothing_and_counts_as_asked() -> None:
    async def work() -> None:
        own = MemoryStore()
        async with device(ONE, own) as node, device(TWO, None, node) as old:
            await offer(node, 0, 3)
            await old.pull()
            kept = old.root
        async with device(ONE, own) as node:
            await offer(node, 3, 9)
        async with device(TWO) as old:
            old.cursor.merge(kept)
            await old.sync()
            async with device(ONE, own, old) as node:
                assert node.is_fenced
                assert await offer(node, 9, 10) == range(9, 10)

    run(work)


def forged_store() -> MemoryStore:
    """Return a store with a log in the owner's slot that somebody else has signed."""
    lattice = root_lattice()
    elsewhere = RootLattice(lattice, lattice.zero(), MergeContext(key_pair=THREE))
    Topics.at(elsewhere, THREE.public_key).partition("orders", 0).offer("forged")
    forged = elsewhere.get(Keyword("queue"), THREE.public_key)
    assert isinstance(forged, Signed)
    store = MemoryStore()
    store.commit(Index.of([(Keyword("queue"), Map.of([(OWNER.public_key, forged)]))]))
    return store


def test_a_peer_with_a_forged_value_does_not_count_as_asked() -> None:
    async def work() -> None:
        liar = device(TWO, forged_store())
        async with liar, device(ONE, None, liar, fence_wait_ms=300) as node:
            assert not node.is_fenced
            assert log_of(node).size() == 0
            assert await offer(node, 0, 1) == range(1)

    run(work)


def test_a_peer_whose_cells_never_come_does_not_count_and_others_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work() -> None:
        async with device(TWO) as slow, device(THREE) as quick:
            await offer(slow, 0, 3_000)
            monkeypatch.setattr(
                slow._replica.views, "supply", lambda hashes: [None for _ in hashes]
            )
            known = MemoryStore()
            async with device(ONE, known) as node:
                Database.at(node.cursor, OWNER.public_key, "d")["k"] = 1  # so it asks for little
                await node.sync()
            async with device(ONE, known, slow, fence_wait_ms=200) as node:
                assert not node.is_fenced
            async with device(ONE, known, slow, quick, fence_wait_ms=2_000) as node:
                await until_async(lambda: node.is_fenced)

    run(work)


# --- who waits ------------------------------------------------------------------------------------


def test_writes_from_threads_wait_for_the_fence_and_what_is_the_nodes_own_does_not(
    silence: str,
) -> None:
    async def work() -> None:
        node = device(ONE, None, silence, fence_wait_ms=20_000)
        await node.start()
        try:
            begun, done = threading.Event(), threading.Event()

            def write() -> None:
                begun.set()
                log_of(node).offer("x")
                done.set()

            thread = threading.Thread(target=write)
            thread.start()
            await asyncio.to_thread(begun.wait)
            with pytest.raises(Unfenced, match=r"await node.fenced\(\)"):
                log_of(node).offer("from the event loop, which must not wait")
            own = node.cursor.path(LOCAL_KEY, ONE.public_key, Keyword("value"))
            own.set(to_cell({Keyword("a"): {Keyword("timestamp"): 1}}))
            assert log_of(node).size() == 0  # reading does not wait
            assert not done.is_set()
            node._fence._until_s = 0.0  # the time for an answer is over
            node._fence.woken()
            await node.fenced()
            await asyncio.to_thread(done.wait)
            assert log_of(node).size() == 1
            thread.join()
        finally:
            await node.close()

    run(work)


def test_a_peer_that_is_back_after_long_is_asked_before_the_next_write(port: int) -> None:
    async def work() -> None:
        theirs = MemoryStore()
        async with device(TWO, theirs, port=port) as peer:
            await offer(peer, 0, 3)
            address = str(peer.address)
            options = {"fence_again_ms": 1, "fence_wait_ms": 5_000}
            node = device(ONE, None, address, **options)
            await node.start()
            await node.fenced()
            assert log_of(node).size() == 3
        try:
            await until_async(lambda: not node.peers[0].connected)
            # What was written elsewhere meanwhile, on the third device of the owner.
            async with device(TWO, theirs, port=port) as peer:
                await offer(peer, 3, 60)
                await until_async(is_connected(node))
                await asyncio.sleep(0)  # the fence hears of it
                offsets = await asyncio.to_thread(log_of(node).offer_many, ["a", "b"])
                assert offsets == range(60, 62)
        finally:
            await node.close()

    run(work)


# --- copied folders -------------------------------------------------------------------------------


def copied(source: Path, target: Path) -> Path:
    shutil.copytree(source, target)
    return target


def test_a_folder_that_stays_where_it_is_starts_as_usual(tmp_path: Path) -> None:
    async def work() -> None:
        for turn in range(3):
            async with device(ONE, tmp_path / "a", "127.0.0.1:1", fence_wait_ms=20) as node:
                assert await offer(node, turn, turn + 1) == range(turn, turn + 1)
        (tmp_path / "a").rename(tmp_path / "b")  # on the same disk it is the same folder
        async with device(ONE, tmp_path / "b", "127.0.0.1:1", fence_wait_ms=20) as node:
            assert await offer(node, 3, 4) == range(3, 4)

    run(work)


def test_a_copied_folder_refuses_to_write_until_a_peer_was_asked(tmp_path: Path, port: int) -> None:
    async def work() -> None:
        async with device(ONE, tmp_path / "a") as node:
            await offer(node, 0, 5)
        copy = copied(tmp_path / "a", tmp_path / "copy")
        waits = {"fence_moved_wait_ms": 50, "fence_wait_ms": 10_000}
        async with device(TWO, port=port) as peer:
            address = str(peer.address)
        for _ in range(2):  # it stays a copied folder however often it is started
            async with device(ONE, copy, address, **waits) as node:
                assert log_of(node).size() == 5
                with pytest.raises(Unfenced, match="copied, restored or moved"):
                    log_of(node).offer("x")
                with pytest.raises(Unfenced):
                    await node.fenced()
                assert "copied, restored or moved" in node.observer.health
        async with (
            device(TWO, None, port=port),
            device(ONE, copy, address, **waits) as node,
        ):
            await until_async(lambda: node.is_fenced)
            assert await offer(node, 5, 6) == range(5, 6)
        # It belongs there from now on.
        async with device(ONE, copy, address, fence_wait_ms=20) as node:
            assert await offer(node, 6, 7) == range(6, 7)

    run(work)


def test_a_copied_folder_writes_at_once_where_that_is_accepted(tmp_path: Path) -> None:
    async def work() -> None:
        async with device(ONE, tmp_path / "a") as node:
            await offer(node, 0, 5)
        copy = copied(tmp_path / "a", tmp_path / "copy")
        waits = {"fence_moved_wait_ms": 50, "accept_unfenced": True}
        async with device(ONE, copy, "127.0.0.1:1", **waits) as node:
            assert await offer(node, 5, 6) == range(5, 6)
            assert node.observer.has(UNFENCED)

    run(work)


def test_a_copied_folder_without_peers_has_nobody_to_ask(tmp_path: Path) -> None:
    async def work() -> None:
        async with device(ONE, tmp_path / "a") as node:
            await offer(node, 0, 5)
        async with device(ONE, copied(tmp_path / "a", tmp_path / "copy")) as node:
            assert await offer(node, 5, 6) == range(5, 6)
            assert node.observer.health == "ok"

    run(work)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"place": 5}', '{"place": {"machine": ""}}'])
def test_a_place_that_cannot_be_read_is_reason_for_care(tmp_path: Path, text: str) -> None:
    async def work() -> None:
        async with device(ONE, tmp_path / "a") as node:
            await offer(node, 0, 5)
        (tmp_path / "a" / "place.json").write_text(text)
        async with device(ONE, tmp_path / "a", "127.0.0.1:1", fence_moved_wait_ms=20) as node:
            with pytest.raises(Unfenced):
                log_of(node).offer("x")

    run(work)


def test_the_place_of_a_store_is_no_part_of_it(tmp_path: Path) -> None:
    async def work() -> None:
        async with device(ONE, tmp_path / "a") as node:
            await offer(node, 0, 5)

    run(work)
    assert (tmp_path / "a" / "place.json").exists()
    with CellStore.open(tmp_path / "a") as store:
        assert store.damage == ()


# --- lost commits ---------------------------------------------------------------------------------


def cut(folder: Path) -> None:
    """Cut the acknowledged end of a node's log, and go on without it."""
    file = max((folder / "segments").iterdir())
    with file.open("r+b") as handle:
        handle.truncate(file.stat().st_size - 10)
    CellStore.open(folder, repair=True).close()


def test_a_node_that_lost_commits_writes_once_a_peer_has_said_what_they_were(
    tmp_path: Path,
) -> None:
    async def work() -> None:
        async with (
            device(TWO, tmp_path / "peer") as peer,
            device(ONE, tmp_path / "a", peer) as node,
        ):
            await offer(node, 0, 5)
            await until_async(lambda: peer.root_hash == node.root_hash)
        cut(tmp_path / "a")
        for peers in ((), ("127.0.0.1:1",)):
            async with device(ONE, tmp_path / "a", *peers, fence_moved_wait_ms=20) as node:
                with pytest.raises(DataLoss, match="a peer has to be reached first"):
                    log_of(node).offer("x")
                assert "acknowledged" in node.observer.health
        async with (
            device(TWO, tmp_path / "peer") as peer,
            device(ONE, tmp_path / "a", peer) as node,
        ):
            assert node.is_fenced
            assert await offer(node, 5, 6) == range(5, 6)
            assert node.observer.health == "ok"
        with CellStore.open(tmp_path / "a") as store:
            assert store.loss is None

    run(work)


# --- two nodes with one identity ------------------------------------------------------------------


@pytest.mark.parametrize("is_running", [False, True], ids=["stopped", "running"])
def test_two_live_nodes_with_one_identity_refuse_to_write_until_one_gets_another(
    tmp_path: Path, is_running: bool
) -> None:
    """The folder was copied while its node ran, or while it did not."""

    async def work() -> None:
        async with device(ONE, tmp_path / "a") as node:
            await offer(node, 0, 5)
        if not is_running:
            copy = copied(tmp_path / "a", tmp_path / "copy")
        async with device(TWO) as relay, device(ONE, tmp_path / "a", relay) as one:
            if is_running:
                copy = copied(tmp_path / "a", tmp_path / "copy")
            async with device(ONE, copy, relay) as two:
                await until_async(lambda: all(node.observer.has(CLONED) for node in (one, two)))
                for node in (one, two):
                    with pytest.raises(IdentityCloned, match="lattice key identity new"):
                        log_of(node).offer("x")
                    assert "another node runs with the identity" in node.observer.health
                    assert node.observer.counters["identity-cloned"] == 1
                assert relay.observer.health == "ok"
                assert relay.observer.counters["peer-cloned"] == 1
        async with (
            device(TWO) as relay,
            device(ONE, tmp_path / "a", relay) as one,
            device(THREE, copy, relay) as two,
        ):
            await until_async(lambda: one.root_hash == two.root_hash == relay.root_hash)
            assert one.observer.health == two.observer.health == "ok"
            assert await offer(one, 5, 6) == range(5, 6)

    run(work)


@pytest.mark.parametrize("scheme", ["", "tcp://"], ids=["tls", "plain"])
def test_two_copies_that_know_only_each_other_refuse_to_write(tmp_path: Path, scheme: str) -> None:
    """No third node tells them: the one that dials and the one that is dialled find out."""

    async def work() -> None:
        is_plain = bool(scheme)
        async with device(ONE, tmp_path / "a") as node:
            await offer(node, 0, 5)
        copy = copied(tmp_path / "a", tmp_path / "copy")
        async with device(ONE, tmp_path / "a", plain=is_plain) as one:
            address = f"{scheme}{one.address}"
            # No peer answers: what refuses writes is known long before that is given up.
            async with device(ONE, copy, address, accept_unfenced=True) as two:
                await until_async(lambda: all(node.observer.has(CLONED) for node in (one, two)))
                for node in (one, two):
                    with pytest.raises(IdentityCloned, match="lattice key identity new"):
                        log_of(node).offer("x")
                await until_async(lambda: one.connection_count == two.connection_count == 0)

    run(work)


def test_a_node_is_no_twin_of_its_own_former_starts(tmp_path: Path) -> None:
    """A peer may not have noticed that the node's last connection is gone."""

    async def work() -> None:
        starts = []
        for turn in range(3):
            async with device(ONE, tmp_path / "a") as node:
                await offer(node, turn, turn + 1)
                assert node._fence.start is not None
                starts.append(node._fence.start)
                for start in starts:
                    node._fence.cloned(start)
                assert node.observer.health == "ok"
        copy = copied(tmp_path / "a", tmp_path / "copy")
        async with device(ONE, copy) as node:
            for start in starts[:-1]:
                node._fence.cloned(start)
            assert await offer(node, 3, 4) == range(3, 4)
            node._fence.cloned(starts[-1])  # the one that may run on where the copy was made from
            with pytest.raises(IdentityCloned):
                log_of(node).offer("x")
        async with device(ONE, tmp_path / "a") as node:
            node._fence.cloned(sign_start(ONE, 12345, 0))
            with pytest.raises(IdentityCloned):
                log_of(node).offer("x")

    run(work)


# --- what is asked for ----------------------------------------------------------------------------


def test_the_slots_of_all_owners_here_are_asked_for_and_of_many_the_root() -> None:
    context = MergeContext(key_pair=ONE)
    lattice = root_lattice()
    paths = owned_paths(lattice, context)
    assert {path[1] for path in paths} == {ONE.public_key}
    sections = {path[0] for path in paths}
    assert Keyword("queue") in sections
    assert LOCAL_KEY not in sections
    assert all(isinstance(lattice.child(one), OwnerLattice) for one in sections)
    venue = (Keyword("grid"), Keyword("venues"), did_of(ONE.public_key))
    assert owned_paths(lattice, context, has_venue=True) == [*paths, venue]
    many = [KeyPair(bytes([seed]) * 32) for seed in range(FENCED_PATHS_MAX)]
    assert owned_paths(lattice, MergeContext(keys=KeyRing(*many))) == [()]
