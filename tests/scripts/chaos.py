"""Run five nodes in five processes under faults of all kinds; in the end they must be equal.

    chaos.py [--seconds 600] [--topology ring|star|line|all] [--seed 1]
             [--scheme tls|tcp|mixed] [--folder DIR]

Each node writes signed queue records all the time; a record counts as acknowledged once its node
has answered. Every link goes through a proxy. Meanwhile nodes are killed with SIGKILL and started
again, or stopped and continued; links are held in one direction or both, delayed, refused, and cut
at any byte; sometimes a node is cut off from all others. Then all faults end. All nodes must come
to one root with every acknowledged record, and report good health; memory and open files must not
have grown, and no process may be left.

Prints the progress, then one JSON document for each topology; exit code 1 when a rule is broken.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import platform
import random
import resource
import shutil
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from faulty_proxy import BACKWARD, FORWARD, FaultyProxy

from datalattice.actions import GetNodeHealth, whole_document
from datalattice.apps.queue import Topics
from datalattice.cells import Map, cell as kernel, missing
from datalattice.client import Running, connect
from datalattice.client.settings import NodeConfig
from datalattice.crypto import KeyPair
from datalattice.cursors import RootLattice
from datalattice.errors import DataLatticeError
from datalattice.lattice import root_lattice
from datalattice.node import Daemon, NodeServer
from datalattice.store import CellStore
from datalattice.testing.folders import node_editor

NODES: Final = 5
VETERAN: Final = 0
"""The node that is never killed, only paused and cut off: its memory shows leaks."""

TOPIC: Final = "load"
BATCH_MAX: Final = 20
WRITE_GAP_S: Final = 0.2
FAULT_S: Final = 8.0
"""Longest fault of a link; that of a node is half of it."""

START_S: Final = 100.0
CONVERGE_S: Final = 90.0
STOP_S: Final = 100.0
SAMPLE_S: Final = 0.5
MEMORY_GROWTH_MB_MAX: Final = 24.0
"""Memory in use hardly grows: from minute 2 to 10 of stores Python's objects took 31 to 36 MB and
other blocks of malloc 26 to 33. Free memory between them grew by 16 MB, left by the largest
differences that a node caught up with: malloc gave 14 MB back when it was told to trim."""

FILES_GROWTH_MAX: Final = 8
GROWTH_S_MIN: Final = 60.0
"""Shorter runs are not judged by growth: they would compare the start of a node."""

MEMORY_MB_MAX: Final = 150.0
FILES_MAX: Final = 64
"""Most memory and open files of any process at any time."""

CACHE_BYTES: Final = 4_000_000
"""Memory of a node for decoded cells: small, so that it is full before memory is compared."""

SCHEMES: Final = ("tls", "tcp")
"""Transports of links."""

MIXED: Final = "mixed"
"""Each link has one of `SCHEMES`, by chance."""

LINKS: Final = {
    "ring": [(number, (number + 1) % NODES) for number in range(NODES)],
    "star": [(number, 0) for number in range(1, NODES)],
    "line": [(number, number + 1) for number in range(NODES - 1)],
}
"""Who dials whom."""


class ChaosFailure(Exception):
    """A rule of the run was broken."""


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


# --- in the processes -----------------------------------------------------------------------------


def serve(folder: str, seed: str, *peers: str) -> None:
    """Be a node, until told to stop; print the port once it serves."""

    def ready(_running: Running, node: NodeServer) -> None:
        say(str(node.port))

    def end_with_parent() -> None:
        os.read(sys.stdin.fileno(), 1)
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()

    config = NodeConfig(port=0, plain=True, peers=peers, cache_bytes=CACHE_BYTES)
    Daemon(folder, config, key_pair=KeyPair(bytes([int(seed)]) * 32), ready=ready).run()


# --- nodes ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class Sample:
    """Memory, without mapped files, and open files of a process, `seconds` after the start."""

    seconds: float
    memory_mb: float
    files: int


@dataclass(slots=True)
class Acknowledged:
    """Records that a node acknowledged: `count` of them from `offset`, numbered from `first`.

    Numbers are never used twice: a write without an answer may be there or not.
    """

    offset: int
    first: int
    count: int


@dataclass(slots=True)
class ChaosNode:
    """A node process, its links, and the records that it acknowledged."""

    number: int
    folder: Path
    peers: list[str]
    inbound: list[FaultyProxy]
    links: list[FaultyProxy]
    process: asyncio.subprocess.Process | None = None
    busy: bool = False
    samples: list[Sample] = field(default_factory=list)
    acknowledged: list[Acknowledged] = field(default_factory=list)
    failed_writes: int = 0

    @property
    def keys(self) -> KeyPair:
        """Its identity, the same in each run."""
        return KeyPair(bytes([self.number + 1]) * 32)

    @property
    def acknowledged_count(self) -> int:
        """How many records its node acknowledged."""
        return sum(one.count for one in self.acknowledged)

    async def start(self) -> None:
        """Start the process, and lead its inbound links to its new port."""
        self.folder.mkdir(exist_ok=True)
        with (self.folder / "stderr").open("ab") as errors:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable,
                __file__,
                "node",
                str(self.folder),
                str(self.number + 1),
                *self.peers,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                # One arena of malloc. With one for each thread of the node 12 MB of 37 were free
                # and not returned after 78,000 writes to stores, which hid what was in use.
                env={**os.environ, "MALLOC_ARENA_MAX": "1"},
            )
        assert self.process.stdout is not None
        line = b""
        try:
            async with asyncio.timeout(START_S):
                line = await self.process.stdout.readline()
        except TimeoutError:
            pass  # reported below
        if not line:
            raise ChaosFailure(f"node {self.number} did not start: {self.stderr_end()}")
        for link in self.inbound:
            link.target_port = int(line)

    def stderr_end(self) -> str:
        """Return the end of its standard error."""
        return (self.folder / "stderr").read_text(errors="replace")[-2_000:]

    def signal(self, number: int) -> None:
        """Send a signal."""
        assert self.process is not None
        self.process.send_signal(number)

    async def end(self, number: int) -> int:
        """End the process by a signal; return its exit code."""
        assert self.process is not None
        self.signal(number)
        async with asyncio.timeout(STOP_S):
            return await self.process.wait()

    def sample(self, seconds: float) -> None:
        """Note memory and open files of the process."""
        assert self.process is not None
        place = Path(f"/proc/{self.process.pid}")
        try:
            resident, mapped = map(int, (place / "statm").read_text().split()[1:3])
            files = sum(1 for _ in (place / "fd").iterdir())
        except (OSError, ValueError):
            return  # it was killed just now, or this system has no /proc
        self.samples.append(
            Sample(seconds, (resident - mapped) * resource.getpagesize() / 1e6, files)
        )

    def write(self, stopping: threading.Event, chance: random.Random) -> None:
        """Write records until told to stop; on a thread of its own, as calls block."""
        number = 0
        while not stopping.is_set():
            try:
                with node_editor(self.folder, self.keys) as editor:
                    while not stopping.wait(chance.uniform(0, WRITE_GAP_S)):
                        count = chance.randint(1, BATCH_MAX)
                        first, number = number, number + count
                        values = [self.record(one) for one in range(first, number)]
                        offsets = editor.offer_many(TOPIC, 0, values)
                        self.acknowledged.append(Acknowledged(offsets.start, first, count))
            except DataLatticeError:
                self.failed_writes += 1  # it was killed; the write may be there or not
            stopping.wait(0.05)

    def record(self, number: int) -> str:
        """Return the record with a number."""
        return f"node {self.number} record {number}"

    async def status(self) -> dict[str, Any]:
        """Return the node's health as a document; empty while it does not answer."""

        def ask() -> dict[str, Any]:
            client = connect(self.folder)
            if client is None:
                return {}
            with client:
                return whole_document(client.call(GetNodeHealth()))

        try:
            return await asyncio.to_thread(ask)
        except DataLatticeError:
            return {}


# --- faults ---------------------------------------------------------------------------------------


class Chaos:
    """One run of a topology: nodes, links, and the faults that they meet."""

    def __init__(self, folder: Path, topology: str, seconds: float, seed: int, scheme: str) -> None:
        self._folder = folder
        self._scheme = scheme
        self._topology = topology
        self._seconds = seconds
        self._longest_s = min(FAULT_S, seconds / 3)
        self._chance = random.Random(f"{seed} {topology}")
        self._links: list[FaultyProxy] = []
        self._nodes: list[ChaosNode] = []
        self._running: set[asyncio.Task[None]] = set()
        self._done: Counter[str] = Counter()
        self._counted: Counter[str] = Counter()
        self._began_s = time.monotonic()

    async def run(self) -> dict[str, Any]:
        """Run the topology; return the summary.

        Raises: ChaosFailure: a rule was broken.
        """
        await self._build()
        stopping = threading.Event()
        writers = [
            threading.Thread(target=node.write, args=(stopping, random.Random(node.number)))
            for node in self._nodes
        ]
        sampler = asyncio.ensure_future(self._sample())
        try:
            await asyncio.gather(*(node.start() for node in self._nodes))
            await self._share()
            for writer in writers:
                writer.start()
            await self._inject_faults()
            await self._heal()
            stopping.set()
            for writer in writers:
                await asyncio.to_thread(writer.join)
            took_s = await self._converge()
            sampler.cancel()
            await self._recover()
            await self._stop()
        finally:
            stopping.set()
            sampler.cancel()
            left = await self._clean()
        if left:
            raise ChaosFailure(f"processes are left: {left}")
        root_hash, records = await asyncio.to_thread(self._check_stores)
        return self._summary(took_s, root_hash, records)

    async def _share(self) -> None:
        """Make what the nodes write to, once all of them run."""

    def _node(self, *parts: Any) -> ChaosNode:
        return ChaosNode(*parts)

    async def _build(self) -> None:
        pairs = LINKS[self._topology]
        self._links = [await FaultyProxy.start() for _ in pairs]
        for number in range(NODES):
            mine = list(zip(pairs, self._links, strict=True))
            outbound = [link for (dialler, _), link in mine if dialler == number]
            inbound = [link for (_, dialled), link in mine if dialled == number]
            peers = [f"{self._chosen_scheme()}://127.0.0.1:{link.port}" for link in outbound]
            folder = self._folder / f"node{number}"
            self._nodes.append(self._node(number, folder, peers, inbound, outbound + inbound))

    def _chosen_scheme(self) -> str:
        return self._chance.choice(SCHEMES) if self._scheme == MIXED else self._scheme

    def _now_s(self) -> float:
        return time.monotonic() - self._began_s

    async def _sample(self) -> None:
        while True:
            for node in self._nodes:
                if node.process is not None and node.process.returncode is None:
                    node.sample(self._now_s())
            await asyncio.sleep(SAMPLE_S)

    async def _inject_faults(self) -> None:
        end_s = time.monotonic() + self._seconds
        next_word_s = time.monotonic() + 10
        while time.monotonic() < end_s:
            self._launch(self._one_fault())
            await asyncio.sleep(self._chance.uniform(0.05, 1.0))
            for task in [task for task in self._running if task.done()]:
                self._running.discard(task)
                task.result()
            if time.monotonic() > next_word_s:
                next_word_s += 10
                self._progress()

    def _launch(self, fault: Awaitable[None]) -> None:
        self._running.add(asyncio.ensure_future(fault))

    def _progress(self) -> None:
        records = sum(node.acknowledged_count for node in self._nodes)
        memory = "/".join(
            f"{node.samples[-1].memory_mb:.0f}" for node in self._nodes if node.samples
        )
        done = ", ".join(f"{count} {name}" for name, count in sorted(self._done.items()))
        say(
            f"{self._topology} {self._now_s():4.0f} s: {records} records acknowledged; {done}; "
            f"memory {memory} MB"
        )

    def _one_fault(self) -> Awaitable[None]:
        faults: list[tuple[int, Callable[[], Awaitable[None]]]] = [
            (3, self._kill),
            (2, self._pause),
            (3, self._partition),
            (1, self._isolate),
            (2, self._delay),
            (1, self._refuse),
            (4, self._cut),
        ]
        weights, choices = zip(*faults, strict=True)
        chosen: Callable[[], Awaitable[None]] = self._chance.choices(choices, weights)[0]
        return chosen()

    async def _kill(self) -> None:
        node = self._chance.choice(self._nodes)
        if node.busy or node.number == VETERAN:
            return
        node.busy = True
        self._done["kills"] += 1
        await node.end(signal.SIGKILL)
        await asyncio.sleep(self._chance.uniform(0.0, self._longest_s / 2))
        await node.start()
        node.busy = False

    async def _pause(self) -> None:
        node = self._chance.choice(self._nodes)
        if node.busy:
            return
        node.busy = True
        self._done["pauses"] += 1
        node.signal(signal.SIGSTOP)
        await asyncio.sleep(self._chance.uniform(0.1, self._longest_s / 2))
        node.signal(signal.SIGCONT)
        node.busy = False

    async def _partition(self) -> None:
        self._done["partitions"] += 1
        link = self._chance.choice(self._links)
        link.hold(*self._chance.choice([(FORWARD,), (BACKWARD,), (FORWARD, BACKWARD)]))
        await self._later(link)

    async def _isolate(self) -> None:
        self._done["isolations"] += 1
        node = self._chance.choice(self._nodes)
        for link in node.links:
            link.hold(FORWARD, BACKWARD)
        await asyncio.gather(*(self._later(link) for link in node.links))

    async def _delay(self) -> None:
        self._done["delays"] += 1
        link = self._chance.choice(self._links)
        link.delay_s = self._chance.uniform(0.005, 0.3)
        await self._later(link)

    async def _refuse(self) -> None:
        self._done["refusals"] += 1
        link = self._chance.choice(self._links)
        link.is_refusing = True
        link.cut()
        await self._later(link)

    async def _cut(self) -> None:
        self._done["cuts"] += 1
        link = self._chance.choice(self._links)
        if self._chance.random() < 0.3:
            link.cut()
        else:
            link.cut_after(self._chance.randint(0, 20_000))

    async def _later(self, link: FaultyProxy) -> None:
        await asyncio.sleep(self._chance.uniform(0.5, self._longest_s))
        if self._chance.random() < 0.3:
            link.cut()
        link.heal()

    # --- the end ------------------------------------------------------------------------------

    async def _heal(self) -> None:
        say(f"{self._topology} {self._now_s():4.0f} s: all faults end")
        await asyncio.gather(*self._running)
        for link in self._links:
            link.heal()

    async def _converge(self) -> float:
        """Wait until all nodes have one root; return the seconds since the faults ended."""
        began_s = time.monotonic()
        while True:
            found = await asyncio.gather(*(node.status() for node in self._nodes))
            hashes = {status.get("root_hash") for status in found}
            if len(hashes) == 1 and None not in hashes:
                return time.monotonic() - began_s
            if time.monotonic() - began_s > CONVERGE_S:
                raise ChaosFailure(f"no common root after {CONVERGE_S} s: {found}")
            await asyncio.sleep(0.1)

    async def _recover(self) -> None:
        """Wait until all nodes are well: one may still be waiting to dial a peer again."""
        began_s = time.monotonic()
        for node in self._nodes:
            while (status := await node.status()).get("health") != "ok":
                if time.monotonic() - began_s > CONVERGE_S:
                    raise ChaosFailure(f"node {node.number} is not well: {status}")
                await asyncio.sleep(0.1)
            self._counted.update(
                {str(name): count for name, count in status.get("counters", Map()).items()}
            )

    async def _stop(self) -> None:
        for node in self._nodes:
            code = await node.end(signal.SIGTERM)
            if code != 0:
                raise ChaosFailure(f"node {node.number} ended with {code}: {node.stderr_end()}")

    async def _clean(self) -> list[int]:
        """End everything; return processes of the nodes that none of them had reported."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        for node in self._nodes:
            if node.process is not None and node.process.returncode is None:
                node.process.kill()
                await node.process.wait()
        for link in self._links:
            await link.close()
        left = list(processes_of(self._folder))
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return left

    def _check_stores(self) -> tuple[str, int]:
        hashes = set()
        records = 0
        for holder in self._nodes:
            with CellStore.open(holder.folder / "store", read_only=True) as store:
                hashes.add(store.root_hash())
                cursor = RootLattice(root_lattice(), store.root())
                absent = missing(store.root())
                if absent or store.damage:
                    raise ChaosFailure(
                        f"{len(absent)} cells are missing on node {holder.number}; "
                        f"damage: {store.damage}"
                    )
                records = sum(check_records(cursor, writer) for writer in self._nodes)
        if len(hashes) != 1:
            raise ChaosFailure(f"the stores hold {len(hashes)} different roots")
        root_hash = hashes.pop()
        assert root_hash is not None
        return root_hash.hex(), records

    def _summary(self, took_s: float, root_hash: str, records: int) -> dict[str, Any]:
        growth = grown(self._nodes[VETERAN].samples)
        memory = [sample.memory_mb for node in self._nodes for sample in node.samples]
        files = [sample.files for node in self._nodes for sample in node.samples]
        summary = {
            "machine": machine(),
            "topology": self._topology,
            "scheme": self._scheme,
            "seconds": round(self._seconds),
            "faults": dict(sorted(self._done.items())),
            "acknowledged": sum(node.acknowledged_count for node in self._nodes),
            "records": records,
            "lost": 0,
            "failed_writes": sum(node.failed_writes for node in self._nodes),
            "carried_mb": round(sum(link.carried_bytes for link in self._links) / 1e6, 1),
            "converged_s": round(took_s, 2),
            "memory_mb_max": round(max(memory, default=0.0)),
            "memory_growth_mb": round(growth[0], 1),
            "files_max": max(files, default=0),
            "files_growth": round(growth[1]),
            "counters": dict(sorted(self._counted.items())),
            "root": root_hash[:16],
        }
        grew = growth[0] > MEMORY_GROWTH_MB_MAX or growth[1] > FILES_GROWTH_MAX
        if grew and self._seconds >= GROWTH_S_MIN:
            raise ChaosFailure(f"memory or files grew: {summary}")
        if max(memory, default=0.0) > MEMORY_MB_MAX or max(files, default=0) > FILES_MAX:
            raise ChaosFailure(f"a process used too much: {summary}")
        return summary


def check_records(cursor: RootLattice, writer: ChaosNode) -> int:
    """Check that every acknowledged record of a node is there; return the number of records."""
    queue = Topics.at(cursor, writer.keys.public_key).partition(TOPIC, 0)
    values = list(queue)
    for one in writer.acknowledged:
        wanted = [writer.record(number) for number in range(one.first, one.first + one.count)]
        found = values[one.offset : one.offset + one.count]
        if found != wanted:
            raise ChaosFailure(
                f"acknowledged {wanted[:2]}... at {one.offset}, there is {found[:2]}..."
            )
    return len(values)


def grown(samples: list[Sample]) -> tuple[float, float]:
    """Return the growth of (memory, files) from the second quarter of samples to the last."""
    quarter = len(samples) // 4
    if not quarter:
        return 0.0, 0.0
    early, late = samples[quarter : 2 * quarter], samples[-quarter:]
    return (
        statistics.median(one.memory_mb for one in late)
        - statistics.median(one.memory_mb for one in early),
        statistics.median(one.files for one in late)
        - statistics.median(one.files for one in early),
    )


def processes_of(folder: Path) -> Iterator[int]:
    """Yield the processes, other than this one, whose command line names the folder."""
    needle = os.fsencode(folder / "node")
    for place in Path("/proc").glob("[0-9]*"):
        try:
            command = (place / "cmdline").read_bytes()
        except OSError:
            continue  # it ended just now
        if needle in command and int(place.name) != os.getpid():
            yield int(place.name)


def machine() -> str:
    """Return one line about the machine."""
    model = platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        model = names[0].partition(":")[2].strip() if names else model
    mode = "pure" if kernel.__file__.endswith(".py") else "compiled"
    return f"{model}, {os.cpu_count()} cores, Python {platform.python_version()}, {mode}"


def main(kind: type[Chaos] = Chaos, scheme: str = MIXED) -> int:
    """Read the command line and run. scheme: of links, unless the command line says otherwise."""
    if len(sys.argv) > 1 and sys.argv[1] == "node":
        serve(*sys.argv[2:])
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--topology", choices=[*LINKS, "all"], default="all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--scheme", choices=[*SCHEMES, MIXED], default=scheme)
    parser.add_argument("--folder", type=Path, help="kept; a temporary one when not given")
    options = parser.parse_args()
    wanted = list(LINKS) if options.topology == "all" else [options.topology]
    with tempfile.TemporaryDirectory() as temporary:
        for topology in wanted:
            folder = (options.folder or Path(temporary)) / topology
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            try:
                chaos = kind(folder, topology, options.seconds, options.seed, options.scheme)
                summary = asyncio.run(chaos.run())
            except (ChaosFailure, DataLatticeError, TimeoutError) as error:
                say(json.dumps({"topology": topology, "error": f"{type(error).__name__}: {error}"}))
                return 1
            say(json.dumps(summary))
    return 0


if __name__ == "__main__":
    sys.exit(main())
