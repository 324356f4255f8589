"""Keys proved on plain streams between live nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from datalattice.cells import Set
from datalattice.client.settings import NodeConfig
from datalattice.crypto import KeyPair
from datalattice.lattice import SetLattice
from datalattice.node import NodeServer, open_node
from datalattice.store import MemoryStore
from datalattice.sync import Note
from datalattice.testing.polling import LIMIT_S

T = TypeVar("T")
HERE = KeyPair(b"h" * 32)
THERE = KeyPair(b"t" * 32)


def run(work: Callable[[], Awaitable[T]]) -> T:
    async def bounded() -> T:
        async with asyncio.timeout(LIMIT_S):
            return await work()

    return asyncio.run(bounded())


def node(key_pair: KeyPair | None, *peers: str) -> NodeServer:
    store = MemoryStore()
    if not peers:
        store.commit(Set.of([1, 2, 3]))
    config = NodeConfig(port=-1 if peers else 0, plain=True, peers=peers)
    return open_node(store, key_pair=key_pair, lattice=SetLattice(), config=config)


def plain(listener: NodeServer, key: KeyPair | None = None) -> str:
    pin = "" if key is None else f"{key.public_key.hex()}@"
    return f"tcp://{pin}127.0.0.1:{listener.port}"


@pytest.mark.parametrize("pinned", [True, False])
@pytest.mark.parametrize("key_pair", [HERE, None])
def test_a_key_is_proved_and_the_nodes_converge(key_pair: KeyPair | None, pinned: bool) -> None:
    async def work() -> None:
        async with (
            node(THERE) as there,
            node(key_pair, plain(there, THERE if pinned else None)) as here,
        ):
            await here.wait_until(lambda one: one.root_hash == there.root_hash, LIMIT_S)
            (info,) = here.peers
            if pinned or key_pair is not None:
                await here.wait_until(lambda _: info.proved)
                assert info.public_key == THERE.public_key
            else:
                assert (info.proved, info.public_key) == (False, None)

    run(work)


@pytest.mark.parametrize("has_key", [True, False])
def test_who_does_not_prove_the_pinned_key_is_told_nothing(
    has_key: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        refused = asyncio.Event()
        notes: list[Note] = []
        async with node(THERE if has_key else None) as there:
            one = node(HERE, plain(there, KeyPair(b"x" * 32)))
            count = one.observer.note

            def noting(note: Note) -> None:
                notes.append(note)
                count(note)
                if note.kind == "closed-untrusted":
                    refused.set()

            monkeypatch.setattr(one.observer, "note", noting)
            async with one as here:
                await refused.wait()
                assert here.observer.counters["closed-untrusted"] >= 1
                assert here.root_hash != there.root_hash
                assert here.root == Set.of([])
                assert not here.peers[0].proved
        assert {note.kind for note in notes} == {"closed-untrusted"}

    run(work)
