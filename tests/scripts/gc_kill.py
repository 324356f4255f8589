"""Kill a store at random moments while it writes and collects; no reachable cell may be lost.

    gc_kill.py [--rounds 100] [--seed 1] [--folder DIR]

One process commits as fast as it can, and prints after each commit which one is durable; it also
pins roots, stages values and commits them later, and commits values again that it kept in memory. A
thread of it collects garbage all the time, with a grace of 0 to 0.5 s. A second process reads
beside
it: it leases the root and walks over all of it again and again. Both are killed with SIGKILL at
random moments. After each kill the store is opened, checked byte by byte, and compared with the
journal of acknowledged commits; in every third round the index is deleted first, so that it must be
rebuilt from the segments. At the end everything unreachable is collected, and the store must be
about as large as its live cells. Prints one JSON document; exit code 0 when nothing was lost.
"""

from __future__ import annotations

import argparse
import collections
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import IO, Any

from datalattice.cells import Map, Value, Vector, missing, same, value_hash
from datalattice.errors import DataLatticeError, MissingData
from datalattice.store import CellStore, RealDisk
from datalattice.store.files import StoreFolder
from datalattice.store.kept import Retention
from datalattice.store.kept.pins import write_pins

SEGMENT_BYTES = 65_536
KEYS = 97
PIN_EVERY = 40
PINS_KEPT = 3
FORKS_KEPT = 30
START_S = 100.0
RETENTION = Retention(3, 200, ())  # so short that roots are collected while others read them


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def text(number: int) -> str:
    return f"text {number} ".ljust(60 + number * 37 % 400, "x")


def open_store(folder: Path, *, read_only: bool = False) -> CellStore:
    return CellStore.open(
        folder, segment_bytes=SEGMENT_BYTES, retention=RETENTION, read_only=read_only
    )


def state(number: int) -> Map:
    """Return the expected contents after `number` commits."""
    numbers = range(max(1, number - KEYS + 1), number + 1)
    return Map.of({n % KEYS: text(n) for n in numbers})


# --- in the killed processes --------------------------------------------------------------------


def write(folder: Path) -> None:
    """Commit for ever, while a thread collects."""
    chance = random.Random()
    with open_store(folder) as store:
        root: Any = store.root()
        if not isinstance(root, Map):
            root = Map.of({"count": 0, "state": Map.of({}), "fork": None})
        threading.Thread(target=collect, args=(store,), daemon=True).start()
        _say("ready 0")
        forks: collections.deque[Value] = collections.deque(maxlen=FORKS_KEPT)
        while True:
            count = root["count"] + 1
            changed = root["state"].put(count % KEYS, text(count))
            root = root.put("count", count).put("state", changed)
            if count % 7 == 0:
                # Cells that no root refers to for a while: a collection may take them.
                staged = Vector.of([text(count + n) for n in range(5)])
                store.put(staged)
                time.sleep(chance.uniform(0, 0.003))
                root = root.put("staged", staged)
            before = root
            if forks and chance.random() < 0.2:
                # A value of before, which may have been collected; then the commit is refused.
                root = root.put("fork", chance.choice(forks))
            try:
                store.commit(root)
            except MissingData:
                _say(f"refused {count}")
                root = before.put("fork", None).put("staged", None)
                store.commit(root)
            forks.append(changed)
            _say(f"durable {count}")
            if count % PIN_EVERY == 0:
                store.pins.pin(value_hash(root), f"at-{count}")
                _say(f"pinned {count}")
                old = count - PINS_KEPT * PIN_EVERY
                if store.pins.get(f"at-{old}") is not None:
                    store.pins.unpin(f"at-{old}")


def collect(store: CellStore) -> None:
    """Collect for ever."""
    chance = random.Random()
    while True:
        done = store.collect(grace_ms=chance.choice([0, 20, 500]))
        _say(f"collected {done.dropped}")


def read(folder: Path) -> None:
    """Walk over the root for ever, beside the writer."""
    with open_store(folder, read_only=True) as store:
        _say("ready 0")
        while True:
            root_hash = store.root_hash()
            if root_hash is None:
                continue
            try:
                lease = store.lease(root_hash, 30)
            except MissingData:
                continue  # it was superseded, and collected, before the lease
            with lease:
                for _ in range(3):
                    absent = missing(store.load(root_hash))
                    if absent:
                        _say(f"lost {len(absent)}")
            _say("walked 1")


# --- in the process that kills ------------------------------------------------------------------


class Child:
    """A process, and the counts that it printed."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, __file__, *arguments]
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._complaint: str | None = None
        self.last: dict[str, int] = {}
        self.sums: collections.Counter[str] = collections.Counter()
        self._ready = threading.Event()
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,))
        self._reader.start()

    def _read(self, lines: IO[str]) -> None:
        for line in lines:
            if not line.endswith("\n"):
                break  # cut by the kill
            word, number = line.split()
            self.last[word] = int(number)
            self.sums[word] += int(number) if word == "collected" else 1
            self._ready.set()

    def wait_ready(self) -> None:
        if not self._ready.wait(START_S):
            raise AssertionError(f"a process did not start in {START_S} s: {self.kill()}")

    def kill(self) -> str:
        """Kill it; return the end of its standard error if it had ended by itself."""
        if self._complaint is None:
            had_ended = self._process.poll() is not None
            with self._process:
                self._process.kill()
                self._reader.join()
                assert self._process.stderr is not None
                errors = self._process.stderr.read()[-2_000:]
            self._complaint = errors if had_ended else ""
        return self._complaint


def check_store(folder: Path, durable: int, pinned: int) -> tuple[int, int]:
    """Compare a store with the journal; return the commit it is at, and its size."""
    with open_store(folder) as store:
        report = store.check()
        if not report.is_clean or report.useless or store.damage:
            raise AssertionError(f"not clean: {report} {store.damage}")
        root: Any = store.root()
        count: int = root["count"] if root is not None else 0
        # The kill may come between a commit and the line that tells of it.
        if not durable <= count <= durable + 1:
            raise AssertionError(f"commit {durable} was acknowledged, {count} is there")
        if isinstance(root, Map):
            if not same(root["state"], state(count)):
                raise AssertionError(f"commit {count} has other contents")
            if missing(root):
                raise AssertionError("cells below the root are missing")
        if pinned and store.pins.get(f"at-{pinned}") is None:
            raise AssertionError(f"the pin of commit {pinned} is lost")
        for pin in store.pins.all():
            kept: Any = store.load(pin.root_hash)
            at = int(pin.name.removeprefix("at-"))
            if missing(kept) or not same(kept["state"], state(at)):
                raise AssertionError(f"what was pinned at commit {at} is not whole")
        return count, report.size_bytes


def run(folder: Path, rounds: int, seed: int) -> dict[str, Any]:
    """Kill and check for `rounds` rounds; then collect all garbage and check the size."""
    chance = random.Random(seed)
    store = folder / "store"
    open_store(store).close()
    sums: collections.Counter[str] = collections.Counter()
    durable = pinned = largest = 0
    for number in range(rounds):
        children = [Child("write", str(store))]
        try:
            children[0].wait_ready()
            children.append(Child("read", str(store)))
            if number % 2:
                children[1].wait_ready()
            time.sleep(chance.uniform(0.01, 0.8))
        finally:
            complaints = [child.kill() for child in children]
            for child in children:
                sums += child.sums
        if any(complaints):
            raise AssertionError(f"a process ended by itself: {complaints}")
        if sums["lost"]:
            raise AssertionError("a reader with a lease missed cells")
        durable = max(durable, children[0].last.get("durable", 0))
        pinned = max(pinned, children[0].last.get("pinned", 0))
        if number % 3 == 2:
            (store / "index.state").unlink()  # the index is built anew from the log
        durable, size = check_store(store, durable, pinned)
        largest = max(largest, size)
    with open_store(store) as last:
        for pin in last.pins.all():
            last.pins.unpin(pin.name)
        with last.pins.locked():  # ends the leases of readers that were killed
            write_pins(StoreFolder(RealDisk(), str(store)), [])
        time.sleep(0.5)  # longer than the history remembers
        done = last.collect(grace_ms=0)
        left = last.check()
        if (
            not left.is_clean
            or done.bytes_after > 2 * done.bytes_live + 4 * SEGMENT_BYTES + 262_144
        ):
            raise AssertionError(f"room was not given back: {done}")
        root: Any = last.root()
        if not same(root["state"], state(durable)):
            raise AssertionError("the last collection changed the root")
    return {
        "rounds": rounds,
        "commits": durable,
        "refused": sums["refused"],
        "pins": sums["pinned"],
        "segments_dropped": sums["collected"],
        "walks": sums["walked"],
        "largest_bytes": largest,
        "last_bytes": done.bytes_after,
        "lost": 0,
    }


def main() -> int:
    """Read the command line and run."""
    if len(sys.argv) > 1 and sys.argv[1] == "write":
        write(Path(sys.argv[2]))
        return 0
    if len(sys.argv) > 1 and sys.argv[1] == "read":
        read(Path(sys.argv[2]))
        return 0
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=100)
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
