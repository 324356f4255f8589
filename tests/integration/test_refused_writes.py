"""Nodes whose users write what they may not: each is told so, and the nodes become equal."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from datalattice.apps.kv import Database
from datalattice.cells import Index, Keyword, Map, Signed
from datalattice.crypto import KeyPair
from datalattice.cursors import LatticeCursor
from datalattice.errors import UsageError
from datalattice.node import open_node
from datalattice.store import MemoryStore

KV, DATA = Keyword("kv"), Keyword("data")
ANN, BEN, EVE = (KeyPair(bytes([n]) * 32) for n in (1, 2, 3))
A, B, E = ANN.public_key, BEN.public_key, EVE.public_key
EMPTY: Map = Map()

WRONG: tuple[Callable[[LatticeCursor], None], ...] = (
    lambda cursor: cursor.path(KV, E).set(EMPTY),
    lambda cursor: cursor.path(KV, E).set(Signed.sign(ANN, EMPTY)),
    lambda cursor: cursor.path(KV, B).set(Signed.sign(ANN, EMPTY)),
    lambda cursor: cursor.path(KV, B).set(None),
    lambda cursor: cursor.path(KV, A).set(EMPTY),
    lambda cursor: cursor.path(KV).set(Map.of([(E, EMPTY)])),
    lambda cursor: cursor.path(KV).set(5),
    lambda cursor: cursor.path(Keyword("nosuch")).set(5),
    lambda cursor: cursor.path(DATA).set(Index.of([(b"x" * 32, b"y")])),
)


def test_nodes_are_equal_after_all_that_their_users_may_not_write() -> None:
    async def run() -> None:
        async with (
            open_node(MemoryStore(), key_pair=ANN, port=0) as ann,
            open_node(MemoryStore(), key_pair=BEN, port=-1, peers=[str(ann.address)]) as ben,
        ):
            Database.at(ben.cursor, B, "x")["a"] = 1
            Database.at(ann.cursor, A, "x")["a"] = 1
            await ben.sync()
            await ann.sync()
            await ann.wait_until(lambda node: node.root_hash == ben.root_hash)
            for write in WRONG:
                with pytest.raises(UsageError):
                    write(ann.cursor)
                fork = ann.cursor.fork()
                with pytest.raises(UsageError):
                    write(fork)
                fork.sync()
                await ann.sync()
                assert ann.root_hash == ben.root_hash
            Database.at(ann.cursor, A, "x")["a"] = 2
            await ann.sync()
            await ben.wait_until(lambda node: node.root_hash == ann.root_hash)
            assert Database.at(ben.cursor, A, "x")["a"] == 2
            assert Database.at(ann.cursor, B, "x")["a"] == 1

    asyncio.run(asyncio.wait_for(run(), 60))
