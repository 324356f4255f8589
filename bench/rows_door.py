"""Rows of the front door: a handle beside the cursor below it, and a reader in another process.

The handle writes through `datalattice.open`; its peer is a queue over a cursor on a store that this
program keeps open and commits to after each write. Both sync once a write, in turn, on one disk.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from subprocess import PIPE

from figures import Row, row

import datalattice
from datalattice.apps.kv import Database
from datalattice.apps.queue import Queue
from datalattice.client import Folder, editing, write_key
from datalattice.crypto import KeyPair
from datalattice.cursors import RootLattice
from datalattice.lattice import MergeContext, root_lattice
from datalattice.store import CellStore

FOLLOWER = """
import sys, time, datalattice
with datalattice.open(sys.argv[1]) as node, node.queue("ticks").follow("end") as ticks:
    print("ready", flush=True)
    for tick in ticks:
        print(time.monotonic_ns() - tick.value, flush=True)
"""

IMPORTS = """
import time
begin = time.process_time()
import datalattice
datalattice.open(":memory:").queue("log")
print(time.process_time() - begin)
"""


def per_call_us(call: Callable[[int], object], count: int) -> float:
    """Return the microseconds of one call."""
    begin = time.perf_counter()
    for number in range(count):
        call(number)
    return (time.perf_counter() - begin) / count * 1e6


def in_turn(calls: list[Callable[[int], object]], count: int, runs: int) -> list[float]:
    """Return the median microseconds of each call, measured in turn."""
    found = [[per_call_us(call, count) for call in calls] for _ in range(runs)]
    return [statistics.median(column) for column in zip(*found, strict=True)]


def handle_rows(folder: Path, runs: int, count: int) -> Iterator[Row]:
    """Yield writes and reads of a handle beside those of a cursor."""
    keys = KeyPair.generate()
    (folder / "edited").mkdir()
    write_key(folder / "edited" / "owner.key", keys)
    with (
        CellStore.open(folder / "store") as store,
        datalattice.open(folder / "data") as node,
        datalattice.open(folder / "edited"),
        editing(Folder(folder / "edited")) as editor,
    ):
        root = RootLattice(root_lattice(), None, MergeContext(key_pair=keys))
        plain = Queue.at(root, keys.public_key, "log")
        handle = node.queue("log")

        def offer_and_commit(number: int) -> None:
            plain.offer(number)
            store.commit(root.get())

        def edit(number: int) -> None:
            editor.edit(lambda cursor, own: Queue.at(cursor, own.public_key, "log").offer(number))

        ours, kept, peer = in_turn([handle.offer, edit, offer_and_commit], count, runs)
        yield row("door-write", ours, "us", {"kept editor": kept, "cursor and commit": peer})

        shop = node.database("shop")
        beside = Database.at(root, keys.public_key, "shop")
        for number in range(100):
            shop[f"key-{number}"] = beside[f"key-{number}"] = number
        ours, peer = in_turn(
            [lambda n: shop[f"key-{n % 100}"], lambda n: beside[f"key-{n % 100}"]], 20 * count, runs
        )
        yield row("door-read", ours, "us", {"cursor": peer})


def follow_rows(folder: Path, count: int) -> Iterator[Row]:
    """Yield how long after a write another process has the record, without a node."""
    command = [sys.executable, "-c", FOLLOWER, str(folder)]
    with datalattice.open(folder) as node:
        ticks = node.queue("ticks")
        # The topic exists before it is followed; "end" leaves this record out.
        ticks.offer(0)
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as follower:
            assert follower.stdout is not None
            follower.stdout.readline()
            delays_ms = []
            for _ in range(count):
                ticks.offer(time.monotonic_ns())
                delays_ms.append(int(follower.stdout.readline()) / 1e6)
            follower.kill()
    parts = statistics.quantiles(delays_ms, n=100)
    yield row("door-follow-p50", parts[49], "ms")
    yield row("door-follow-p99", parts[98], "ms")


WRITER = """
import sys, time, datalattice
with datalattice.open(sys.argv[1]) as node:
    log, longest = node.queue("shared"), 0.0
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(int(sys.argv[2])):
        begin = time.monotonic()
        log.offer(number)
        longest = max(longest, time.monotonic() - begin)
    print(longest, flush=True)
"""

WRITERS = 8


def wait_rows(folder: Path, count: int) -> Iterator[Row]:
    """Yield the longest time that one of several processes took for a write to one queue."""
    datalattice.open(folder).close()
    for name, node in (("door-wait", nullcontext()), ("door-wait-node", datalattice.serve(folder))):
        with node:
            command = [sys.executable, "-c", WRITER, str(folder), str(count)]
            writers = [
                subprocess.Popen(command, stdin=PIPE, stdout=PIPE, text=True)
                for _ in range(WRITERS)
            ]
            for writer in writers:
                assert writer.stdout is not None
                writer.stdout.readline()
            for writer in writers:
                assert writer.stdin is not None
                writer.stdin.write("go\n")
                writer.stdin.flush()
            longest = max(float(writer.communicate()[0]) for writer in writers)
        yield row(name, longest * 1e3, "ms")


def import_rows(runs: int) -> Iterator[Row]:
    """Yield the processor time of importing the package and opening a node."""
    command = [sys.executable, "-c", IMPORTS]
    with tempfile.TemporaryDirectory() as compiled:
        # An installed package has its bytecode, whatever this process was told.
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": compiled}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        found = [
            float(subprocess.check_output(command, env=environment, text=True))
            for _ in range(runs + 1)
        ]
    # Without the first, which compiles.
    yield row("door-import", statistics.median(found[1:]) * 1e3, "ms CPU")


def rows(quick: bool) -> Iterator[Row]:
    """Yield the rows."""
    runs, count = (3, 50) if quick else (7, 200)
    with tempfile.TemporaryDirectory() as folder:
        yield from handle_rows(Path(folder), runs, count)
        yield from follow_rows(Path(folder, "followed"), count)
        yield from wait_rows(Path(folder, "shared"), count)
    yield from import_rows(runs)
