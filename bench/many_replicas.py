"""Two nodes with many replicas: memory and threads of each, and bytes of an idle connection.

    python bench/many_replicas.py [--replicas N] [--idle SECONDS]

Each node is a process of its own; they are connected over TLS. Every replica is a table of counters
with one count of its own, made on either node before they meet.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from datalattice.client.settings import NodeConfig
from datalattice.crypto import KeyPair
from datalattice.node import NodeServer, open_node
from datalattice.node.hosts import Host
from datalattice.store import MemoryStore
from datalattice.testing.counters import Counters, JsonProtocol

REPLICAS = 500
IDLE_S = 35.0
"""Longer than the interval at which states are compared."""


def memory_kb() -> int:
    """Return the resident memory of this process in kB; its peak where the system gives no more."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    text = status.read_text()
    return int(text.partition("VmRSS:")[2].split()[0])


def own(host: Host[Counters], name: str, number: int) -> Any:
    """Return the write of a node's own count to one of its replicas, to be awaited."""
    return host.write(lambda counters: counters.add(name, number + 1))


async def agree(hosts: list[Host[Counters]]) -> None:
    """Wait until every replica has the counts of both nodes."""
    for number, host in enumerate(hosts):
        expected = {"first": number + 1, "second": number + 1}
        while await host.ask(lambda counters: counters.counts) != expected:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def measure(name: str, peer: str | None, replicas: int, idle_s: float) -> None:
    """Run one node: print its address, then its figures as JSON once both nodes are equal."""
    key_pair = KeyPair(name.encode().ljust(32))
    async with open_node(MemoryStore(), key_pair=key_pair, config=NodeConfig(port=0)) as node:
        bare_kb = memory_kb()
        hosts = [
            node.host("counters", number.to_bytes(2, "big"), Counters(), JsonProtocol())
            for number in range(replicas)
        ]
        await asyncio.gather(*(own(host, name, number) for number, host in enumerate(hosts)))
        alone_kb = memory_kb()
        print(node.address, flush=True)
        if peer is not None:
            node.add_peer(f"tls://{peer}")
        await agree(hosts)
        began_s = time.perf_counter()
        if peer is None:
            print("equal", flush=True)
        document = await idle(node, idle_s)
        document["memory_kb"] = {"bare": bare_kb, "replicas": alone_kb, "connected": memory_kb()}
        document["threads"] = threading.active_count()
        document["lanes"] = sum("lanes" in one.name for one in threading.enumerate())
        document["waited_s"] = round(time.perf_counter() - began_s, 1)
        print(json.dumps(document), flush=True)
        await asyncio.to_thread(sys.stdin.readline)  # both are measured before either ends


async def idle(node: NodeServer, seconds: float) -> dict[str, Any]:
    """Return the bytes that a node sends and its processor time while nothing is written."""
    (connection,) = node.connections
    before, cpu_s = connection.traffic.bytes_out, time.process_time()
    await asyncio.sleep(seconds)
    return {
        "idle_bytes_out": connection.traffic.bytes_out - before,
        "idle_cpu_s": round(time.process_time() - cpu_s, 3),
    }


def main() -> int:
    """Run two nodes and print their figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--replicas", type=int, default=REPLICAS)
    parser.add_argument("--idle", type=float, default=IDLE_S)
    parser.add_argument("--node", help=argparse.SUPPRESS)
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.node is not None:
        asyncio.run(measure(options.node, options.peer, options.replicas, options.idle))
        return 0
    command = [sys.executable, __file__, "--replicas", str(options.replicas)]
    command += ["--idle", str(options.idle), "--node"]
    run_two([*command, "first"], lambda address: [*command, "second", "--peer", address])
    return 0


def run_two(one: list[str], other: Callable[[str], list[str]]) -> None:
    """Run two nodes until both were measured, and print their figures.

    other: returns the command of the second node from the first line that the first prints. Then
    each prints a line when it is equal to the other, and its figures.
    """
    run = partial(subprocess.Popen, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with run(one) as first:
        assert first.stdout is not None
        told = first.stdout.readline().strip()
        began_s = time.perf_counter()
        with run(other(told)) as second:
            assert second.stdout is not None
            first.stdout.readline()
            print(f"equal after {time.perf_counter() - began_s:.1f} s, with the second's start")
            second.stdout.readline()
            for name, node in (("first", first), ("second", second)):
                assert node.stdout is not None
                print(name, node.stdout.readline().strip())
            for node in (first, second):
                node.communicate("\n")


if __name__ == "__main__":
    sys.exit(main())
