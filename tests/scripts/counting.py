"""A node whose lattice and counters replicate side by side, for tests of real processes.

    python tests/scripts/counting.py FOLDER SEED [PEER]

It prints its address. It answers each line that it reads with the counts and the root hash, as a
line of JSON: `count NAME` counts once first, durably, `write TEXT` appends to the queue `t`, `read`
does nothing else. The end of the input ends it.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from datalattice.apps.queue import Topics
from datalattice.client.settings import NodeConfig
from datalattice.crypto import KeyPair
from datalattice.node import NodeServer, open_node
from datalattice.node.hosts import Host
from datalattice.store import RealDisk
from datalattice.testing.counters import Counters, CountFile, JsonProtocol


async def answer(node: NodeServer, host: Host[Counters], line: str) -> dict[str, object]:
    """Do what a line says; return what to print."""
    verb, _, rest = line.strip().partition(" ")
    if verb == "count":
        await host.write(lambda counters: counters.add(rest))
    elif verb == "write":
        assert node.owner is not None
        Topics.at(node.cursor, node.owner.public_key).partition("t", 0).offer(rest)
        await node.sync()
    counts = await host.ask(lambda counters: dict(counters.counts))
    return {"counts": counts, "root": node.root_hash.hex()}


async def main(folder: Path, seed: int, peers: list[str]) -> None:
    """Run the node until the input ends."""
    config = NodeConfig(port=0, peers=tuple(f"tls://{one}" for one in peers))
    key_pair = KeyPair(bytes([seed]) * 32)
    async with open_node(folder / "store", key_pair=key_pair, config=config) as node:
        counters = Counters(CountFile(RealDisk(), str(folder / "counters")))
        host = node.host("counters", b"", counters, JsonProtocol())
        sys.stdout.write(f"{node.address}\n")
        sys.stdout.flush()
        while line := await asyncio.to_thread(sys.stdin.readline):
            sys.stdout.write(f"{json.dumps(await answer(node, host, line))}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
