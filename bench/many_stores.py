"""Two nodes with many Weaver stores: memory and threads of each, bytes of an idle connection.

    python bench/many_stores.py [--stores N] [--idle SECONDS]

Each node is a process of its own. The first makes a store and N children of it; the second joins by
one invite, and the children follow by themselves. Each node writes one key to every child.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from many_replicas import IDLE_S, memory_kb, run_two

import datalattice
from datalattice.actions import GetNodeHealth
from datalattice.client import connect
from datalattice.weaver import KVStore

STORES = 200
PARENT = "parent"


def names(count: int) -> list[str]:
    """Return the names of the children."""
    return [f"store {number:04}" for number in range(count)]


def traffic(folder: Path) -> int:
    """Return how many bytes the node of a folder has sent to its peers."""
    client = connect(folder)
    assert client is not None
    with client:
        return client.call(GetNodeHealth()).bytes_out


def children(node: datalattice.Node, parent: Any, count: int) -> list[KVStore[str]]:
    """Return the children of a joined store, once all are here."""
    while len(node.stores(parent)) < count:
        time.sleep(0.02)
    return [node.store(name, parent=parent) for name in names(count)]


def agree(stores: list[KVStore[str]]) -> None:
    """Wait until every store has the keys of both nodes."""
    for store in stores:
        while dict(store) != {"first": "1", "second": "1"}:
            time.sleep(0.01)


def measure(name: str, token: str | None, folder: Path, count: int, idle_s: float) -> None:
    """Run one node: the first prints an invite, both their figures as JSON once they are equal."""
    with datalattice.serve(folder) as node:
        bare_kb = memory_kb()
        if token is None:
            parent = node.store(PARENT, "kv")
            stores = [node.store(one, "kv", parent=parent) for one in names(count)]
            alone_kb = memory_kb()
            print(parent.invite(), flush=True)
        else:
            stores, alone_kb = children(node, node.join(token), count), bare_kb
        for store in stores:
            store[name] = "1"
        agree(stores)
        print("equal", flush=True)
        time.sleep(2)  # until the news of the last writes have come
        before, cpu_s = traffic(folder), time.process_time()
        time.sleep(idle_s)
        document: dict[str, Any] = {
            "idle_bytes_out": traffic(folder) - before,
            "idle_cpu_s": round(time.process_time() - cpu_s, 3),
            "memory_kb": {"bare": bare_kb, "alone": alone_kb, "connected": memory_kb()},
            "threads": threading.active_count(),
            "lanes": sum("lanes" in one.name for one in threading.enumerate()),
            "files": sum(1 for _ in Path("/proc/self/fd").iterdir()),
        }
        print(json.dumps(document), flush=True)
        sys.stdin.readline()  # both are measured before either ends


def main() -> int:
    """Run two nodes and print their figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--stores", type=int, default=STORES)
    parser.add_argument("--idle", type=float, default=IDLE_S)
    parser.add_argument("--node", help=argparse.SUPPRESS)
    parser.add_argument("--token", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.node is not None:
        measure(options.node, options.token, options.folder, options.stores, options.idle)
        return 0
    command = [sys.executable, __file__, "--stores", str(options.stores)]
    command += ["--idle", str(options.idle)]
    with tempfile.TemporaryDirectory() as base:

        def begin(name: str, *more: str) -> list[str]:
            return [*command, "--node", name, "--folder", f"{base}/{name}", *more]

        run_two(begin("first"), lambda token: begin("second", "--token", token))
    return 0


if __name__ == "__main__":
    sys.exit(main())
