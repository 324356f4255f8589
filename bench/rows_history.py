"""Rows of the benchmark that measure former roots: what a snapshot costs, and reading old ones.

A map of 100,000 keys gets 1,000 snapshots, each with 10 changed values. Room is that of the whole
folder, index and history included. Beside it: a copy of an SQLite file for each snapshot, a table
of former values in SQLite (no snapshots: only what changed), and git, where it is installed, with
the map as one file of lines, packed by `git gc`, over 100 snapshots.
"""

from __future__ import annotations

import random
import shutil
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from figures import Row, row

from datalattice.cells import Map, changes
from datalattice.store import CellStore

CHANGED = 10
GIT_SNAPSHOTS = 100


def rows(quick: bool) -> Iterator[Row]:
    """Yield the rows."""
    keys, snapshots = (10_000, 100) if quick else (100_000, 1_000)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        ours, seconds, reading_s, diff_s = _ours(path / "store", keys, snapshots)
        peers = {
            "SQLite, a copy each": _sqlite_copy(path / "copy.db", keys),
            "SQLite, former values": _sqlite_versions(path / "versions.db", keys, snapshots),
        }
        if shutil.which("git"):
            peers["git, packed"] = _git(path / "git", keys, min(snapshots, GIT_SNAPSHOTS))
    yield row("history room", ours, "B/snapshot", peers)
    yield row("history snapshots", snapshots / seconds, "1/s")
    yield row("history read old", reading_s * 1e6, "us")
    yield row("history diff", diff_s * 1e6, "us")


def _value(key: int, version: int) -> str:
    return f"value {key} of version {version}"


def _changes(keys: int, snapshots: int) -> Iterator[tuple[int, list[int]]]:
    chosen = random.Random(5)
    for version in range(1, snapshots + 1):
        yield version, chosen.sample(range(keys), CHANGED)


def _ours(path: Path, keys: int, snapshots: int) -> tuple[float, float, float, float]:
    """Return bytes a snapshot, seconds for all, and for reading and comparing old ones."""
    with CellStore.open(path) as store:
        store.commit(Map.of((f"key {key}", _value(key, 0)) for key in range(keys)))
    before = _room(path)
    with CellStore.open(path) as store:
        began = time.perf_counter()
        for version, chosen in _changes(keys, snapshots):
            value = store.root()
            assert isinstance(value, Map)
            for key in chosen:
                value = value.put(f"key {key}", _value(key, version))
            store.commit(value)
        seconds = time.perf_counter() - began
    room = (_room(path) - before) / snapshots
    with CellStore.open(path, read_only=True) as store:
        entries = store.history.entries()
        began = time.perf_counter()
        asked = random.Random(6).sample(entries, min(200, len(entries)))
        for entry in asked:
            root = store.load(entry.root_hash)
            assert isinstance(root, Map)
            assert root["key 7"]
        reading_s = (time.perf_counter() - began) / len(asked)
        began = time.perf_counter()
        places = random.Random(7).sample(range(len(entries) - 1), min(50, len(entries) - 1))
        for place in places:
            pair = (store.load(one.root_hash) for one in entries[place : place + 2])
            assert len(list(changes(*pair))) == CHANGED
        diff_s = (time.perf_counter() - began) / len(places)
    return room, seconds, reading_s, diff_s


def _room(path: Path) -> int:
    # Blocks: `st_size` of a sparse or preallocated file says nothing about the disk.
    return sum(one.stat().st_blocks * 512 for one in path.rglob("*") if one.is_file())


def _sqlite_copy(path: Path, keys: int) -> float:
    with sqlite3.connect(path) as db:
        db.execute("create table kv (key text primary key, value text) without rowid")
        db.executemany(
            "insert into kv values (?, ?)", ((f"key {key}", _value(key, 0)) for key in range(keys))
        )
    db.close()
    return float(path.stat().st_size)


def _sqlite_versions(path: Path, keys: int, snapshots: int) -> float:
    _sqlite_copy(path, keys)
    with sqlite3.connect(path) as db:
        db.execute(
            "create table old (key text, version integer, value text, primary key (key, version)) "
            "without rowid"
        )
    before = path.stat().st_size
    for version, chosen in _changes(keys, snapshots):
        with db:
            for key in chosen:
                name = f"key {key}"
                db.execute(
                    "insert into old select key, ?, value from kv where key = ?", (version, name)
                )
                db.execute("update kv set value = ? where key = ?", (_value(key, version), name))
    db.close()
    return (path.stat().st_size - before) / snapshots


def _git(path: Path, keys: int, snapshots: int) -> float:
    path.mkdir()

    def git(*arguments: str) -> None:
        command = ["git", "-c", "user.name=x", "-c", "user.email=x@x", "-C", str(path), *arguments]
        subprocess.run(command, check=True, capture_output=True)

    lines = [f"key {key}\t{_value(key, 0)}\n" for key in range(keys)]
    git("init", "-q")
    git("config", "gc.auto", "0")  # packed once, at the end, and never while it is measured

    def snapshot() -> None:
        (path / "map").write_text("".join(lines))
        git("add", "map")
        git("commit", "-q", "-m", "x")

    snapshot()
    git("gc", "-q")
    before = _room(path / ".git")
    for version, chosen in _changes(keys, snapshots):
        for key in chosen:
            lines[key] = f"key {key}\t{_value(key, version)}\n"
        snapshot()
    git("gc", "-q")
    return (_room(path / ".git") - before) / snapshots
