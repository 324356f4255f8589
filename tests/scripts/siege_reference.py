"""The peer of a siege that behaves like the reference node, in a process of its own.

siege_reference.py OWNERS

OWNERS are the public keys of the honest writers, in hex with commas. Lines on standard input:
`dial PORT` makes it connect to a node, `write` has its user write from then on, `rest` ends that.
Lines of JSON on standard output: first its address, then once a second the newest records it has.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

from siege_node import TOPIC, keys_of

from datalattice.apps.queue import Topics
from datalattice.cells import Value
from datalattice.cursors import RootLattice
from datalattice.lattice import MergeContext, root_lattice
from datalattice.testing.reference import ReferenceNode

WRITE_S = 1.0
REPORT_S = 1.0


def tell(report: dict[str, object]) -> None:
    """Write one line to whoever runs the siege."""
    sys.stdout.write(json.dumps(report) + "\n")
    sys.stdout.flush()


class ReferenceUser:
    """The user of the reference peer, who obeys commands."""

    def __init__(self, node: ReferenceNode, owners: list[bytes]) -> None:
        self._node = node
        self._owners = owners
        self._writes = asyncio.Event()

    async def obey(self) -> None:
        """Do what the lines of standard input say, until they end."""
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        async for line in reader:
            command, _, rest = line.decode().strip().partition(" ")
            if command == "dial":
                await self._node.dial(int(rest))
            elif command == "write":
                self._writes.set()
            else:
                self._writes.clear()

    async def write(self) -> None:
        """Append a record with the time, over and over."""
        while True:
            await self._writes.wait()
            self._node.write(self._offered)
            await asyncio.sleep(WRITE_S)

    def _offered(self, root: Value) -> Value:
        keys = self._node.peer.keys
        cursor = RootLattice(root_lattice(), root, MergeContext(key_pair=keys))
        Topics.at(cursor, keys.public_key).partition(TOPIC, 0).offer(time.time_ns())
        return cursor.get()

    async def report(self) -> None:
        """Print a report once a second."""
        while True:
            await asyncio.sleep(REPORT_S)
            peer = self._node.peer
            cursor = RootLattice(root_lattice(), peer.root)
            newest = {
                owner.hex(): Topics.at(cursor, owner).partition(TOPIC, 0).peek_last()
                for owner in self._owners
            }
            tell({"values": peer.values, "incomplete": peer.incomplete[:3], "newest": newest})


async def serve(owners: str) -> None:
    """Run until standard input ends."""
    async with ReferenceNode(keys_of(0)) as node:
        user = ReferenceUser(node, [bytes.fromhex(one) for one in owners.split(",")])
        tell({"address": node.address})
        works = [asyncio.ensure_future(work()) for work in (user.obey, user.write, user.report)]
        done, waiting = await asyncio.wait(works, return_when=asyncio.FIRST_COMPLETED)
        for work in waiting:
            work.cancel()
        for work in done:
            work.result()


if __name__ == "__main__":
    asyncio.run(serve(*sys.argv[1:]))
