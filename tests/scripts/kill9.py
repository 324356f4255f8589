"""Kill a writing node at random moments, many times; nothing acknowledged may be lost.

    kill9.py [--rounds 50] [--seed 1] [--folder DIR]

One process writes numbered records as fast as it can and prints after each batch how many are
durable; it is connected to a second node. Both are killed with SIGKILL at random moments. After
each kill of the writer its store is opened and read; at the end both nodes must come to the same
root. Prints one JSON document; exit code 0 when nothing was lost.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

from datalattice.apps.queue import Topics
from datalattice.cells import Value, missing
from datalattice.client.network import probe
from datalattice.crypto import KeyPair
from datalattice.cursors import RootLattice
from datalattice.errors import DataLatticeError
from datalattice.lattice import root_lattice
from datalattice.node import open_node
from datalattice.store import CellStore
from datalattice.testing.ports import held_port

TOPIC = "load"
KEYS = KeyPair(b"9" * 32)
CONVERGE_S = 60.0
START_S = 100.0


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


# --- in the killed processes --------------------------------------------------------------------


async def write(folder: str, peer: str, batch_max: int) -> None:
    """Append numbered records for ever; print the end offset after each durable batch."""
    chance = random.Random()
    async with open_node(folder, key_pair=KEYS, port=0, peers=[peer] if peer else []) as node:
        queue = Topics.at(node.cursor, KEYS.public_key).partition(TOPIC, 0)
        _say(f"ready {node.address}")
        while batch_max:
            end = queue.end_offset()
            count = chance.randint(1, batch_max)
            queue.offer_many([f"record {number}" for number in range(end, end + count)])
            await node.sync()
            _say(f"durable {end + count}")
        await asyncio.Event().wait()


async def follow(folder: str, port: int) -> None:
    """Be a second node."""
    async with open_node(folder, port=port) as node:
        _say(f"ready {node.address}")
        await asyncio.Event().wait()


# --- in the process that kills ------------------------------------------------------------------


class Child:
    """A node process, with the address and the durable count that it printed."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, __file__, *arguments]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.durable = 0
        self.address = ""
        self._ready = threading.Event()
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,))
        self._reader.start()

    def _read(self, lines: IO[str]) -> None:
        for word, value in printed_pairs(lines):
            if word == "ready":
                self.address = value
                self._ready.set()
            else:
                self.durable = int(value)

    def wait_ready(self) -> None:
        if not self._ready.wait(START_S):
            raise AssertionError(f"a node did not start in {START_S} s")

    def kill(self) -> None:
        with self._process:
            self._process.kill()
            self._reader.join()


def printed_pairs(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield the word and the value of each whole line that a child printed."""
    for line in lines:
        if not line.endswith("\n"):
            return  # cut by the kill, perhaps within its first word
        word, value = line.split()
        yield word, value


def check_store(folder: Path, durable: int, checked: int) -> int:
    """Return the end offset after a kill.

    Raises: AssertionError: an acknowledged record is not there, or the store is damaged.
    """
    with CellStore.open(folder) as store:
        root = store.root()
        queue = Topics.at(RootLattice(root_lattice(), root), KEYS.public_key).partition(TOPIC, 0)
        end = queue.end_offset()
        if end < durable:
            raise AssertionError(f"{durable} records were acknowledged, {end} are there")
        for offset, value in enumerate(queue.range(checked, end - 1), checked):
            if value != f"record {offset}":
                raise AssertionError(f"record {offset} reads {value!r}")
        if store.damage:
            raise AssertionError(f"damage: {store.damage}")
        return end


def check_complete(folder: Path) -> Value:
    """Check that all cells below a store's root are there; return the root's hash."""
    with CellStore.open(folder) as store:
        absent = missing(store.root())
        if absent:
            raise AssertionError(f"{len(absent)} cells are missing in {folder}")
        return store.root_hash()


def run(folder: Path, rounds: int, seed: int) -> dict[str, Any]:
    """Kill and check for `rounds` rounds; then let both nodes converge."""
    chance = random.Random(seed)
    mine, other = folder / "writer", folder / "follower"
    durable = checked = 0
    with held_port() as held, ExitStack() as following:
        port = str(held)
        follower = child(following, "follow", str(other), port)
        follower.wait_ready()
        for _ in range(rounds):
            batch_max = str(chance.choice([1, 20, 500]))
            with ExitStack() as writing:
                writer = child(writing, "write", str(mine), follower.address, batch_max)
                writer.wait_ready()
                time.sleep(chance.uniform(0.01, 0.5))
                if chance.random() < 0.3:
                    following.close()
                    follower = child(following, "follow", str(other), port)
                    time.sleep(chance.uniform(0.0, 0.3))
            durable = max(durable, writer.durable)
            checked = check_store(mine, durable, max(0, checked - 5))
        follower.wait_ready()
        return _converge(mine, other, follower, following, rounds, checked)


def child(ending: ExitStack, *arguments: str) -> Child:
    """Return a new process, which is killed at the end of the stack."""
    made = Child(*arguments)
    ending.callback(made.kill)
    return made


def _converge(
    mine: Path, other: Path, follower: Child, following: ExitStack, rounds: int, records: int
) -> dict[str, Any]:
    with following, ExitStack() as writing:
        writer = child(writing, "write", str(mine), follower.address, "0")
        began = time.monotonic()
        writer.wait_ready()
        while probe(writer.address).root_hash != probe(follower.address).root_hash:
            if time.monotonic() - began > CONVERGE_S:
                raise AssertionError(f"the nodes did not converge in {CONVERGE_S} s")
            time.sleep(0.05)
        took = time.monotonic() - began
    if check_complete(mine) != check_complete(other):
        raise AssertionError("the stores hold different roots")
    return {"rounds": rounds, "records": records, "lost": 0, "converged_s": round(took, 3)}


def main() -> int:
    """Read the command line and run."""
    if len(sys.argv) > 1 and sys.argv[1] == "write":
        asyncio.run(write(sys.argv[2], sys.argv[3], int(sys.argv[4])))
        return 0
    if len(sys.argv) > 1 and sys.argv[1] == "follow":
        asyncio.run(follow(sys.argv[2], int(sys.argv[3])))
        return 0
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    try:
        if options.folder is not None:
            _say(json.dumps(run(options.folder, options.rounds, options.seed)))
        else:
            with tempfile.TemporaryDirectory() as folder:
                _say(json.dumps(run(Path(folder), options.rounds, options.seed)))
    except (AssertionError, DataLatticeError) as error:
        _say(json.dumps({"error": f"{type(error).__name__}: {error}"}))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
