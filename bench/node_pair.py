"""Two nodes in two processes over loopback: the time until the second has the first one's writes.

The node that writes runs in the measuring process. The follower is a process of its own (this file
as a script), dials it, and notes the time at which its event loop hears of each root. Both read one
clock, the machine's monotonic one, so the figures contain no delay of asking.
"""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Self
from unittest import mock

from datalattice.cells import value_hash
from datalattice.client.settings import NodeConfig
from datalattice.crypto import KeyPair
from datalattice.lattice import Lattice, SetLattice, root_lattice
from datalattice.node import NodeServer, open_node
from datalattice.node.transport.tcp import TcpLink
from datalattice.store import MemoryStore

OWNER = KeyPair(b"q" * 32)
PATIENCE_S = 120.0
LATTICES: dict[str, Callable[[], Lattice]] = {"set": SetLattice, "root": root_lattice}
MEMORY = "memory"


class Traffic:
    """Bytes of all TCP connections of this process while it is open, as they go over the wire."""

    def __init__(self) -> None:
        self.bytes = 0

    def __enter__(self) -> Self:
        read, write = TcpLink.read, TcpLink.write

        async def counted_read(link: TcpLink) -> bytes:
            data = await read(link)
            self.bytes += len(data)
            return data

        async def counted_write(link: TcpLink, data: bytes) -> None:
            self.bytes += len(data)
            await write(link, data)

        self._saved = mock.patch.multiple(TcpLink, read=counted_read, write=counted_write)
        self._saved.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._saved.stop()


class Follower:
    """The second process."""

    def __init__(self, where: str, lattice: str, address: str) -> None:
        command = [sys.executable, __file__, where, lattice, address]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.kill()
        self._process.communicate()

    def reached(self, root_hash: bytes) -> float:
        """Wait until the follower has a root; return when, in seconds of `time.monotonic`."""
        return self._ask(f"reached {root_hash.hex()}")

    def seen(self, root_hash: bytes) -> float | None:
        """Return when the follower had a root, None if it never did."""
        return self._ask(f"seen {root_hash.hex()}") or None

    def dial(self, address: str) -> float:
        """Have the follower dial an address; return when it read the request."""
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
    """Time and bytes that were measured for a pair."""

    seconds: float
    bytes: int


Write = Callable[[NodeServer], None]


@dataclass(frozen=True, slots=True)
class Pair:
    """How two nodes are set up.

    where, other: their folders, or `memory`.
    lattice:      one of LATTICES.
    scheme:       `tcp` or `tls`.
    """

    where: str
    other: str
    lattice: str
    scheme: str = "tcp"

    def writer(self) -> NodeServer:
        """Return the first node, to be started."""
        return open_node(
            MemoryStore() if self.where == MEMORY else self.where,
            key_pair=OWNER,
            lattice=LATTICES[self.lattice](),
            config=NodeConfig(port=0, plain=self.scheme == "tcp"),
        )

    def address(self, writer: NodeServer) -> str:
        """Return what the follower dials."""
        return f"{self.scheme}://127.0.0.1:{writer.port}"

    def follower(self, address: str = "-") -> Follower:
        """Return the second node, running."""
        return Follower(self.other, self.lattice, address)


async def until_equal(pair: Pair, write: Write) -> Outcome:
    """Return time and bytes from the first write until the follower announces the same root."""
    with Traffic() as traffic:
        async with pair.writer() as node:
            with pair.follower(pair.address(node)) as follower:
                await asyncio.to_thread(follower.reached, node.root_hash)
                before = traffic.bytes
                gc.collect()
                begin = time.monotonic()
                await asyncio.to_thread(write, node)
                end = await asyncio.to_thread(follower.reached, node.root_hash)
                return Outcome(end - begin, traffic.bytes - before)


async def first_sync(pair: Pair, fill: Write) -> Outcome:
    """Return time and bytes from dialling until an empty follower has the writer's value."""
    with Traffic() as traffic:
        async with pair.writer() as node:
            await asyncio.to_thread(fill, node)
            with pair.follower() as follower:
                empty = LATTICES[pair.lattice]().zero()
                await asyncio.to_thread(follower.reached, value_hash(empty))
                gc.collect()
                begin = await asyncio.to_thread(follower.dial, pair.address(node))
                end = await asyncio.to_thread(follower.reached, node.root_hash)
                return Outcome(end - begin, traffic.bytes)


async def visibility(
    pair: Pair, write: Callable[[NodeServer, int], None], count: int, gap_s: float
) -> list[float]:
    """Return the seconds until the follower had each of `count` writes, `gap_s` apart."""
    loop = asyncio.get_running_loop()
    async with pair.writer() as node:
        # One thread writes: of two in turn each would find colder caches.
        with pair.follower(pair.address(node)) as follower, ThreadPoolExecutor(1) as writer:
            await asyncio.to_thread(follower.reached, node.root_hash)
            begins: list[tuple[float, bytes]] = []
            gc.collect()
            for number in range(count):
                begin = time.monotonic()
                await loop.run_in_executor(writer, write, node, number)
                begins.append((begin, node.root_hash))
                await asyncio.sleep(gap_s)
            end = await asyncio.to_thread(follower.reached, node.root_hash)
            found = []
            for begin, hash in reversed(begins):
                # A root that the follower skipped is contained in the next one that it had.
                seen = await asyncio.to_thread(follower.seen, hash)
                end = seen or end
                found.append(end - begin)
            return found


# --- the second process -------------------------------------------------------------------------


async def follow(where: str, lattice: str, address: str) -> None:
    """Be the follower.

    Lines read are `reached HASH`, answered with the moment at which that root was reached, once it
    is; `seen HASH`, answered at once, with 0 when it was not; and `dial ADDRESS`, answered with the
    moment at which it was read.
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

        gc.collect()  # as the writer does: garbage of the start must not count
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
            elif word == "seen":
                moment = reached.get(bytes.fromhex(argument), 0)
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
