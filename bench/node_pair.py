"""Two nodes in two processes over loopback, and when the second one has what the first one wrote.

The node that writes runs in the measuring process. The follower is a process of its own (this file
as a script), dials it, and notes each root it comes to at the moment its event loop hears of it.
Both read one clock, the machine's monotonic one, so no delay of asking is in the figures.
"""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from datalattice.cells import value_hash
from datalattice.crypto import KeyPair
from datalattice.lattice import Lattice, SetLattice, root_lattice
from datalattice.node import Node, NodeConfig, TcpTransport, open_node
from datalattice.node.transport import Accept, Link, Listener
from datalattice.store import MemoryStore

OWNER = KeyPair(b"q" * 32)
PATIENCE_S = 120.0
LATTICES: dict[str, Callable[[], Lattice]] = {"set": SetLattice, "root": root_lattice}
MEMORY = "memory"


@dataclass(slots=True)
class Traffic:
    """Bytes that went over the links of a transport."""

    sent: int = 0
    received: int = 0

    @property
    def total(self) -> int:
        """Bytes in both directions."""
        return self.sent + self.received


class CountedLink:
    """A link that counts."""

    def __init__(self, link: Link, traffic: Traffic) -> None:
        self._link = link
        self._traffic = traffic

    def __getattr__(self, name: str) -> object:
        return getattr(self._link, name)

    async def read(self) -> bytes:
        """Return some bytes, none at the end of the stream."""
        data = await self._link.read()
        self._traffic.received += len(data)
        return data

    async def write(self, data: bytes) -> None:
        """Take bytes to be sent."""
        self._traffic.sent += len(data)
        await self._link.write(data)


class CountedTransport:
    """TCP whose bytes are counted."""

    def __init__(self) -> None:
        self.traffic = Traffic()
        self._inner = TcpTransport()

    async def dial(self, address: str) -> Link:
        """Return a link that counts."""
        return CountedLink(await self._inner.dial(address), self.traffic)  # type: ignore[return-value]

    async def listen(self, bind: str, port: int, accept: Accept) -> Listener:
        """Accept links that count."""

        def counted(link: Link) -> Awaitable[None]:
            return accept(CountedLink(link, self.traffic))  # type: ignore[arg-type]

        return await self._inner.listen(bind, port, counted)


class Follower:
    """The second process."""

    def __init__(self, where: str, lattice: str, address: str) -> None:
        command = [sys.executable, __file__, where, lattice, address]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def reached(self, root_hash: bytes) -> float:
        """Return when the follower came to a root, in seconds of `time.monotonic`; wait for it."""
        return self._ask(f"reached {root_hash.hex()}")

    def dial(self, address: str) -> float:
        """Have the follower dial an address; return when it was told."""
        return self._ask(f"dial {address}")

    def _ask(self, line: str) -> float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "the follower has ended"
        return int(answer) / 1e9


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a pair was measured to do."""

    seconds: float
    bytes: int


Write = Callable[[Node], None]


async def until_equal(
    where: str, other: str, lattice: str, write: Write, *, prepare: Write | None = None
) -> Outcome:
    """Return what it takes from the first write until the follower announces the writer's root.

    where, other: folders of the two nodes, or `memory`.
    prepare:      writes that both nodes have before it begins.
    """
    transport = CountedTransport()
    async with writer(where, lattice, transport) as node:
        assert node.address is not None
        if prepare is not None:
            await asyncio.to_thread(prepare, node)
        with Follower(other, lattice, f"tcp://{node.address}") as follower:
            await asyncio.to_thread(follower.reached, node.root_hash)
            before = transport.traffic.total
            gc.collect()
            begin = time.monotonic()
            await asyncio.to_thread(write, node)
            end = await asyncio.to_thread(follower.reached, node.root_hash)
            return Outcome(end - begin, transport.traffic.total - before)


async def first_sync(where: str, other: str, lattice: str, fill: Write) -> Outcome:
    """Return what it takes from the connection until an empty follower has the writer's value.

    The start of the follower's process is not in it.
    """
    transport = CountedTransport()
    async with writer(where, lattice, transport) as node:
        assert node.address is not None
        await asyncio.to_thread(fill, node)
        with Follower(other, lattice, "-") as follower:
            empty = LATTICES[lattice]().zero()
            await asyncio.to_thread(follower.reached, value_hash(empty))
            gc.collect()
            begin = await asyncio.to_thread(follower.dial, f"tcp://{node.address}")
            end = await asyncio.to_thread(follower.reached, node.root_hash)
            return Outcome(end - begin, transport.traffic.total)


async def visibility(
    where: str,
    other: str,
    lattice: str,
    write: Callable[[Node, int], None],
    count: int,
    gap_s: float,
) -> list[float]:
    """Return for each of `count` writes, `gap_s` apart, after what time the follower had it."""
    async with writer(where, lattice, CountedTransport()) as node:
        assert node.address is not None
        with Follower(other, lattice, f"tcp://{node.address}") as follower:
            await asyncio.to_thread(follower.reached, node.root_hash)
            begins: list[tuple[float, bytes]] = []
            gc.collect()
            for number in range(count):
                begin = time.monotonic()
                await asyncio.to_thread(write, node, number)
                begins.append((begin, node.root_hash))
                await asyncio.sleep(gap_s)
            return [
                await asyncio.to_thread(follower.reached, hash) - begin for begin, hash in begins
            ]


def writer(where: str, lattice: str, transport: CountedTransport) -> Node:
    """Return the first node, to be started."""
    return open_node(
        MemoryStore() if where == MEMORY else where,
        key_pair=OWNER,
        lattice=LATTICES[lattice](),
        transport=transport,
        config=NodeConfig(port=0),
    )


# --- the second process -------------------------------------------------------------------------


async def follow(where: str, lattice: str, address: str) -> None:
    """Be the follower.

    Lines read are `reached HASH`, answered with the moment that root was reached, and
    `dial ADDRESS`, answered with the moment it was read.
    """
    peers = () if address == "-" else (address,)
    store = MemoryStore() if where == MEMORY else where
    config = NodeConfig(port=-1, peers=peers)
    async with open_node(store, lattice=LATTICES[lattice](), config=config) as node:
        reached: dict[bytes, int] = {}
        news = asyncio.Event()

        async def watch() -> None:
            while True:
                reached.setdefault(node.root_hash, time.monotonic_ns())
                news.set()
                await node.changed()

        watcher = asyncio.ensure_future(watch())
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
        )
        while line := await reader.readline():
            moment = time.monotonic_ns()
            word, argument = line.decode().split()
            if word == "dial":
                node.add_peer(argument)
            else:
                wanted = bytes.fromhex(argument)
                while wanted not in reached:
                    news.clear()
                    await news.wait()
                moment = reached[wanted]
            sys.stdout.write(f"{moment}\n")
            sys.stdout.flush()
        watcher.cancel()


if __name__ == "__main__":
    asyncio.run(follow(*sys.argv[1:]))
