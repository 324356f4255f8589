"""Edit one drive and one database in several processes offline, then merge: no write may be lost.

    offline.py [--operations 10000] [--processes 3] [--seed 1] [--folder DIR]

Each process has a key of its own that may sign for the common owner, a store on disk, and a clock
whose stamps no other process uses. It makes `operations` random writes to the database and as many
to the drive, durably, and keeps a journal. Then the roots are merged in every order, and the stores
are opened by nodes that sync over loopback. All must hold the same database and drive, equal to a
plain replay of the journals in the order of time (offline_model.py). Prints one JSON document with
the writes that the merges reported as superseded; exit code 0 when all are equal.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import pickle
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from offline_model import Tree, Visible, Write, replay_keys, replay_tree

from datalattice.apps.dlfs import Drive
from datalattice.apps.kv import Database
from datalattice.cells import Value, same, to_python, value_hash
from datalattice.crypto import KeyPair
from datalattice.cursors import RootLattice
from datalattice.errors import DataLatticeError
from datalattice.lattice import MergeContext, MergeNotice, root_lattice
from datalattice.node import NodeServer, open_node
from datalattice.store import CellStore
from datalattice.testing.processes import killing

OWNER = "did:web:fleet.example"
NAME = "shared"
START_MS = 1_700_000_000_000
SYNC_EVERY = 20
MEET_S = 120.0
KEYS_MAX = 400


def key_pair(number: int) -> KeyPair:
    """Return the key of a process."""
    return KeyPair(bytes([number + 1]) * 32)


def may_sign(owner: Value, signer: bytes) -> bool:
    """Return whether a key may sign for the common owner: that of any process."""
    return owner == OWNER and any(key_pair(n).public_key == signer for n in range(16))


class SlottedClock:
    """A clock whose stamps grow with every reading, and are no other process's."""

    def __init__(self, number: int, processes: int, chance: random.Random) -> None:
        self._slot, self._processes, self._chance = number, processes, chance
        self._turn = START_MS // processes
        self.last_ms = 0

    def now_ms(self) -> int:
        """Return a new stamp."""
        self._turn += self._chance.randint(1, 4)
        self.last_ms = self._turn * self._processes + self._slot
        return self.last_ms


# --- in the processes that are offline ----------------------------------------------------------


class Editor:
    """Makes random writes, and notes those that changed something in its journals."""

    def __init__(self, root: RootLattice, number: int, processes: int, seed: int) -> None:
        self._chance = random.Random(seed * 1_000 + number)
        self._clock = SlottedClock(number, processes, self._chance)
        self._number = number
        self.database = Database.at(root, OWNER, NAME, self._clock, f"process-{number}")
        self.drive = Drive.at(root, OWNER, NAME, self._clock)
        self.on_keys: list[Write] = []
        self.on_paths: list[Write] = []

    def _note(self, journal: list[Write], operation: str, place: str, *arguments: Any) -> None:
        journal.append(Write(self._clock.last_ms, self._number, operation, place, arguments))

    def write_key(self) -> None:
        """Make one random write to the database."""
        chance, db = self._chance, self.database
        number = chance.randrange(KEYS_MAX)
        if number % 4 == 0:  # counters of their own: a delete may take increments that it never saw
            key, amount = f"count-{number}", chance.randint(-5, 9)
            db.incr(key, amount)
            self._note(self.on_keys, "incr", key, amount)
            return
        key = f"key-{number}"
        before = db.store().get(key)
        operation = chance.choice(
            ["set", "set", "del", "hset", "hset", "hdel", "sadd", "srem", "zadd", "zrem", "rpush"]
        )
        member, value = f"m{chance.randrange(6)}", chance.randrange(1_000_000)
        arguments: tuple[Any, ...] = ()
        try:
            match operation:
                case "set":
                    db.set(key, value)
                    arguments = (value,)
                case "del":
                    db.delete(key)
                case "hset":
                    db.hset(key, member, value)
                    arguments = (member, value)
                case "hdel":
                    db.hdel(key, member)
                    arguments = (member,)
                case "sadd":
                    db.sadd(key, member)
                    arguments = (member,)
                case "srem":
                    db.srem(key, member)
                    arguments = (member,)
                case "zadd":
                    db.zadd(key, float(value), member)
                    arguments = (member, float(value))
                case "zrem":
                    db.zrem(key, member)
                    arguments = (member,)
                case _:
                    db.rpush(key, value)
                    operation, arguments = "list", (to_python(db.lrange(key)),)
        except DataLatticeError:
            return  # refused, as the key has another kind of value: nothing was written
        if not same(before, db.store().get(key)):
            self._note(self.on_keys, operation, key, *arguments)

    def write_path(self) -> None:
        """Make one random write to the drive."""
        chance, drive = self._chance, self.drive
        depth = chance.randint(1, 4)
        path = "/" + "/".join(
            chance.choice("abcdefgh") + str(chance.randrange(4)) for _ in range(depth)
        )
        text = f"{self._number}:{chance.randrange(10**9)}"
        before = drive.root_hash()
        try:
            match chance.choice(
                ["write"] * 3 + ["append", "mkdir", "mkdir", "mkdir", "delete", "tree", "move"]
            ):
                case "write":
                    drive.write(path, text.encode())
                    self._note(self.on_paths, "write", path, text)
                case "append":
                    drive.append(path, text.encode())
                    self._note(self.on_paths, "write", path, drive.read(path).decode())
                case "mkdir":
                    drive.mkdir(path)
                    self._note(self.on_paths, "mkdir", path)
                case "delete":
                    drive.delete(path)
                    self._note(self.on_paths, "delete", path)
                case "tree":
                    if chance.random() < 0.05:
                        drive.remove_tree(path)
                        self._note(self.on_paths, "delete", path)
                case _:
                    target = path[:-1] + "9"
                    if drive.is_file(path) and not drive.is_dir(target):
                        content = drive.read(path).decode()
                        drive.move(path, target)
                        self._note(self.on_paths, "delete", path)
                        self._note(self.on_paths, "write", target, content)
        except DataLatticeError:
            if drive.root_hash() != before:
                raise  # an operation that is refused must not write
            return


def work(folder: Path, number: int, processes: int, operations: int, seed: int) -> None:
    """Be one of the processes."""
    with CellStore.open(folder) as store:
        root = RootLattice(
            root_lattice(),
            store.root(),
            MergeContext(key_pair=key_pair(number), verifier=may_sign),
            on_sync=lambda value: _committed(store, value),
        )
        # Journals are written at the end, so they are complete: these processes are not killed.
        editor = Editor(root, number, processes, seed)
        for count in range(operations):
            editor.write_key()
            editor.write_path()
            if count % SYNC_EVERY == 0:
                root.sync()
        root.sync()
    journal = (editor.on_keys, editor.on_paths)
    folder.with_suffix(".journal").write_bytes(pickle.dumps(journal))


def _committed(store: CellStore, value: Value) -> Value:
    store.commit(value)
    return value


# --- merging ------------------------------------------------------------------------------------


def shared(root: Value) -> tuple[bytes, bytes]:
    """Return the hashes of the database and of the drive below a root."""
    cursor = reader(root)
    return (
        value_hash(Database.at(cursor, OWNER, NAME).store()),
        Drive.at(cursor, OWNER, NAME).root_hash(),
    )


def reader(root: Value) -> RootLattice:
    """Return a cursor that verifies what it reads."""
    return RootLattice(root_lattice(), root, MergeContext(verifier=may_sign))


def merge_in_every_order(roots: list[Value]) -> tuple[Value, Counter[str], int]:
    """Check that all orders give one result; return it, the reports, and the number of orders."""
    reports: Counter[str] = Counter()

    def report(what: MergeNotice) -> None:
        reports[f"{what.path[0]} {what.kind}"] += 1

    context = MergeContext(key_pair=key_pair(0), verifier=may_sign, report=report)
    quiet = MergeContext(key_pair=key_pair(0), verifier=may_sign)
    lattice = root_lattice()
    results: list[Value] = []
    for order in itertools.permutations(roots):
        first = not results  # one order reports; the others would report the same again
        joined = order[0]
        for other in order[1:]:
            joined = lattice.merge(joined, other, context if first else quiet)
        results.append(joined)
        joined = order[-1]
        for other in reversed(order[:-1]):  # the other grouping, with own and other exchanged
            joined = lattice.merge(other, joined, quiet)
        results.append(joined)
    found = {shared(result) for result in results}
    if len(found) != 1:
        raise AssertionError(f"{len(results)} orders of merging gave {len(found)} results")
    return results[0], reports, len(results)


async def meet_over_loopback(folders: list[Path]) -> tuple[bytes, bytes]:
    """Run nodes on the stores, each connected to the first, until equal; return their hashes."""
    nodes: list[NodeServer] = []
    began = time.monotonic()
    try:
        for number, folder in enumerate(folders):
            peers = [nodes[0].address or ""] if nodes else []
            node = open_node(
                folder, key_pair=key_pair(number), port=0, peers=peers, verifier=may_sign
            )
            nodes.append(await node.__aenter__())
        while len({(node.root_hash, *shared(node.root)) for node in nodes}) > 1:
            if time.monotonic() - began > MEET_S:
                raise AssertionError(f"the nodes did not agree in {MEET_S:.0f} s")
            await asyncio.sleep(0.1)
        return shared(nodes[0].root)
    finally:
        for node in nodes:
            await node.close()


def check_keys(root: Value, writes: list[Write]) -> int:
    """Check that each key shows what the replay shows; return the number of keys."""
    database = Database.at(reader(root), OWNER, NAME)
    expected = replay_keys(writes)
    for key, wanted in expected.items():
        shown = _shown(database, key)
        if shown != wanted:
            raise AssertionError(f"{key} shows {shown}, its writes give {wanted}")
    unknown = set(database) - set(expected)
    if unknown:
        raise AssertionError(f"keys that no process wrote: {sorted(unknown)[:5]}")
    return len(expected)


def _shown(database: Database, key: str) -> Visible:
    content: Any
    match database.type(key):
        case None:
            return None
        case "hash":
            content = dict(database.hgetall(key).entries())
        case "set":
            content = dict.fromkeys(database.smembers(key), True)
        case "zset":
            content = {member: database.zscore(key, member) for member in database.zrange(key)}
        case "counter":
            return "counter", database.count(key)
        case "list":
            return "list", to_python(database.lrange(key))
        case kind:
            return kind, database[key]
    return (database.type(key) or "", content) if content else None


def read_tree(drive: Drive, path: str = "/") -> Tree:
    """Return the tree of a drive: contents of files by name, and trees of directories."""
    return {
        entry.name: read_tree(drive, entry.path)
        if entry.is_dir
        else drive.read(entry.path).decode()
        for entry in drive.entries(path)
    }


def check_tree(root: Value, writes: list[Write]) -> int:
    """Check that the drive shows what the replay shows; return the number of files."""
    shown, wanted = read_tree(Drive.at(reader(root), OWNER, NAME)), replay_tree(writes)
    if shown != wanted:
        raise AssertionError(f"the drive differs from its writes at {_difference(shown, wanted)}")
    return json.dumps(shown).count('"') // 4


def _difference(shown: Tree, wanted: Tree) -> str:
    for name in sorted({*shown, *wanted}):
        one, two = shown.get(name), wanted.get(name)
        if one != two:
            if isinstance(one, dict) and isinstance(two, dict):
                return f"/{name}{_difference(one, two)}"
            return f"/{name}: shown {one!r}, wanted {two!r}"
    return ""


def run(folder: Path, processes: int, operations: int, seed: int) -> dict[str, Any]:
    """Write in all processes, merge, and compare with the replay."""
    folders = [folder / f"process-{number}" for number in range(processes)]
    began = time.monotonic()
    with ExitStack() as ending:
        children = []
        for number, place in enumerate(folders):
            numbers = map(str, (number, processes, operations, seed))
            child = subprocess.Popen([sys.executable, __file__, "work", str(place), *numbers])
            children.append(ending.enter_context(killing(child)))
        codes = [child.wait() for child in children]
    if any(codes):
        raise AssertionError("a process failed")
    wrote_s = time.monotonic() - began
    journals = [pickle.loads(place.with_suffix(".journal").read_bytes()) for place in folders]
    on_keys = [write for keys, _ in journals for write in keys]
    on_paths = [write for _, paths in journals for write in paths]
    with ExitStack() as opened:
        stores = [CellStore.open(place, read_only=True) for place in folders]
        for store in stores:
            opened.enter_context(store)
        began = time.monotonic()
        joined, reports, orders = merge_in_every_order([store.root() for store in stores])
        merged_s = (time.monotonic() - began) / orders
        keys, paths = check_keys(joined, on_keys), check_tree(joined, on_paths)
        expected = shared(joined)
    began = time.monotonic()
    if asyncio.run(meet_over_loopback(folders)) != expected:
        raise AssertionError("the nodes agree, but not on the join of the roots")
    return {
        "processes": processes,
        "operations": operations,
        "writes": {"database": len(on_keys), "drive": len(on_paths)},
        "compared": {"keys": keys, "files": paths},
        "orders": orders,
        "reported": dict(sorted(reports.items())),
        "wrote_s": round(wrote_s, 1),
        "merged_s": round(merged_s, 3),
        "met_s": round(time.monotonic() - began, 1),
        "lost": 0,
    }


def main() -> int:
    """Read the command line and run."""
    if len(sys.argv) > 1 and sys.argv[1] == "work":
        number, processes, operations, seed = map(int, sys.argv[3:7])
        work(Path(sys.argv[2]), number, processes, operations, seed)
        return 0
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--operations", type=int, default=10_000)
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    arguments = (options.processes, options.operations, options.seed)
    try:
        if options.folder is not None:
            report = run(options.folder, *arguments)
        else:
            with tempfile.TemporaryDirectory() as folder:
                report = run(Path(folder), *arguments)
    except (AssertionError, DataLatticeError) as error:
        report = {"error": f"{type(error).__name__}: {error}"}
    sys.stdout.write(json.dumps(report) + "\n")
    return 1 if "error" in report else 0


if __name__ == "__main__":
    sys.exit(main())
