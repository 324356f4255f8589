"""Peers: an effort to stay connected that ends when nobody wants it any more."""

from __future__ import annotations

import asyncio
import contextlib

from datalattice.crypto import SeededEntropy
from datalattice.node import MemoryTransport
from datalattice.node.peers import Call, Peers
from datalattice.node.transport import Link


def test_an_effort_ends_even_when_its_cancellation_gets_lost() -> None:
    async def work() -> None:
        net = MemoryTransport()
        serving = asyncio.Event()

        async def accept(link: Link) -> None:
            await link.read()

        async def serve(_call: Call) -> str:
            serving.set()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            return "a cancellation was swallowed"

        listener = await net.listen("memory", 0, accept)
        peers = Peers(net, serve, SeededEntropy(1))
        address = f"memory:{listener.port}"
        async with asyncio.timeout(20):
            peers.add(address)
            await serving.wait()
            await peers.close()
            serving.clear()
            peers.add("memory:1")
            await peers.remove("memory:1")
        assert not serving.is_set(), "dialled again after the end"
        await listener.close()

    asyncio.run(work())
