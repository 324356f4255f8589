"""One honest node of a siege: it writes, watches the others' writes, and reports once a second.

siege_node.py FOLDER NUMBER OWNERS [PEER ...]

OWNERS are the public keys of all honest writers, in hex with commas. Lines of JSON on standard
output: first the addresses of the node, then reports: the delay of each record of another writer
(in seconds), processor time of the process and of frames by the key that sent them, memory,
counters, health.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections import Counter, defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any

from datalattice.apps.kv import Database
from datalattice.apps.queue import Queue, Topics
from datalattice.cells import Keyword, Vector, value_hash
from datalattice.client import Running
from datalattice.client.settings import NodeConfig
from datalattice.crypto import KeyPair
from datalattice.errors import DataLatticeError
from datalattice.lattice import get_in
from datalattice.node import Daemon, NodeServer
from datalattice.sync import HostingPolicy, Replicator, UnsignedPolicy

TOPIC = "siege"
SECTIONS = Keyword("queue"), Keyword("kv")
WRITE_S = 0.5
REPORT_S = 1.0
KEPT_RECORDS = 1_024
"""Records that a writer keeps: it drops older ones, so that honest data does not grow."""

STRANGERS_BYTES = 64_000_000
UNSIGNED_BYTES = 3_000_000
CONNECTIONS_MAX = 48
"""Few, so that idle strangers are evicted in a short siege, too."""

Tell = dict[str, Any]


def keys_of(number: int) -> KeyPair:
    """Return the key of an honest node; 0: of the peer that behaves like the reference node."""
    return KeyPair(bytes([number + 1]) * 32)


def tell(report: Tell) -> None:
    """Write one line to whoever runs the siege."""
    sys.stdout.write(json.dumps(report) + "\n")
    sys.stdout.flush()


class Accounts:
    """Processor time of frames, by the proven key of the peer that sent them."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        receive = Replicator.receive

        def counting(replicator: Replicator, id: str, payload: bytes, now_ms: int) -> None:
            partner = replicator._partners.get(id)
            key = None if partner is None else partner.peer.public_key
            began_s = time.thread_time()
            try:
                receive(replicator, id, payload, now_ms)
            finally:
                who = "no key" if key is None else key.hex()
                self.seconds[who] += time.thread_time() - began_s

        Replicator.receive = counting  # type: ignore[assignment, method-assign]


class NodeUser:
    """The user of one node, who writes and watches."""

    def __init__(
        self, node: NodeServer, number: int, owners: list[bytes], accounts: Accounts
    ) -> None:
        self._node = node
        self._own = keys_of(number).public_key
        self._others = [owner for owner in owners if owner != self._own]
        self._numbers = {owner: number for number, owner in enumerate(owners)}
        self._seen: dict[bytes, int] = {}
        self._accounts = accounts
        self._lags: list[tuple[int, float]] = []  # number of the writer, seconds
        self._written = 0
        self._newest = 0  # the time in the last record
        self._rests = False
        self._errors: Counter[str] = Counter()

    def _queue(self, owner: bytes) -> Queue:
        return Topics.at(self._node.cursor, owner).partition(TOPIC, 0)

    async def write(self) -> None:
        """Append a record with the time, and set a key, over and over."""
        await self._node.fenced()
        queue = self._queue(self._own)
        database = Database.at(self._node.cursor, self._own, TOPIC)
        while not self._rests:
            try:
                newest = time.time_ns()
                queue.offer(newest)
                database["last"] = self._written
                if queue.size() >= 2 * KEPT_RECORDS:
                    queue.truncate(queue.start_offset() + KEPT_RECORDS)
                await self._node.sync()
                self._written, self._newest = self._written + 1, newest
            except DataLatticeError as error:
                self._errors[f"{error.code}: {error}"] += 1
            await asyncio.sleep(WRITE_S)

    def rest(self) -> None:
        """Write no more."""
        self._rests = True

    async def watch(self) -> None:
        """Note the delay of each record of the others."""
        for owner in self._others:
            self._seen[owner] = self._queue(owner).end_offset()
        last = b""
        while True:
            with suppress(DataLatticeError, TimeoutError):
                await self._node.wait_until(lambda node: node.root_hash != last, 1.0)  # noqa: B023
            last, now_ns = self._node.root_hash, time.time_ns()
            for owner in self._others:
                queue = self._queue(owner)
                end = queue.end_offset()
                for written in queue.range(self._seen[owner], end - 1):
                    if isinstance(written, int):
                        self._lags.append((self._numbers[owner], (now_ns - written) / 1e9))
                self._seen[owner] = max(end, self._seen[owner])

    def _honest_hash(self) -> bytes:
        """Return the hash of all data of honest owners.

        Data of strangers differs between nodes: each keeps what it had room for when it came.
        """
        root = self._node.root
        owners = (self._own, *self._others)
        return value_hash(
            Vector.of([get_in(root, (part, one)) for part in SECTIONS for one in sorted(owners)])
        )

    async def report(self) -> None:
        """Print a report once a second."""
        while True:
            await asyncio.sleep(REPORT_S)
            lags, self._lags = self._lags, []
            tell(
                {
                    "time": time.time(),
                    "lags": lags,
                    "written": self._written,
                    "newest": self._newest,
                    "errors": dict(self._errors),
                    "cpu_s": time.process_time(),
                    "frames_s": dict(self._accounts.seconds),
                    "rss": _rss_bytes(),
                    "honest": self._honest_hash().hex(),
                    "counters": dict(self._node.observer.counters),
                    "reasons": dict(self._node.observer.reasons),
                    "noticed": {
                        name: one["kinds"] for name, one in self._node.observer.noticed.items()
                    },
                }
            )


def _rss_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def main(folder: str, number: str, owners: str, *peers: str) -> None:
    """Run until told to stop."""
    accounts = Accounts()
    tasks: list[asyncio.Task[None]] = []

    def ready(running: Running, node: NodeServer) -> None:
        tell({"address": running.address, "http": running.http})
        known = [bytes.fromhex(one) for one in owners.split(",")]
        for peer in known[1:]:  # nodes that start later dial this one, and are wanted as well
            if peer != keys_of(int(number)).public_key:
                node.add_peer(public_key=peer)
        user = NodeUser(node, int(number), known, accounts)
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, user.rest)
        for work in (user.write, user.watch, user.report):
            task = asyncio.ensure_future(work())
            task.add_done_callback(_ended)
            tasks.append(task)

    def _ended(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            tell({"ended": repr(task.exception())})

    config = NodeConfig(
        port=0,
        http_port=0,
        plain=True,
        ping_reply="timestamp",
        peers=peers,
        connections_max=CONNECTIONS_MAX,
        root_sync_interval_ms=5_000,
        hosting=HostingPolicy(
            strangers_bytes=STRANGERS_BYTES,
            unsigned={"data": UnsignedPolicy(strangers_bytes=UNSIGNED_BYTES)},
            allow=tuple(owners.split(",")),
        ),
        log_level="info",
        log_format="json",
    )
    Daemon(folder, config, key_pair=keys_of(int(number)), ready=ready).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
