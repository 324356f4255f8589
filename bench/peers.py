"""Peers of the cell rows: the nearest operations of two CRDT libraries, where these are installed.

Neither hashes its data, and both change their document in place; the figures are what users of
those libraries see, for work that is not the same.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from figures import installed

pycrdt, loro = installed("pycrdt"), installed("loro")


def _pycrdt_map(keys: list[str]) -> Any:
    document = pycrdt.Doc()
    entries = document.get("m", type=pycrdt.Map)
    with document.transaction():
        for i, key in enumerate(keys):
            entries[key] = i
    return document


def _pycrdt_merge(keys: list[str], runs: int) -> list[float]:
    own, other = _pycrdt_map(keys), pycrdt.Doc()
    other.apply_update(own.get_update())
    entries = other.get("m", type=pycrdt.Map)
    times = []
    for run in range(runs):
        known = own.get_state()
        with other.transaction():
            for i, key in enumerate(keys[:: len(keys) // 100]):
                entries[key] = 10**9 + i + run
        begin = time.perf_counter()
        own.apply_update(other.get_update(known))
        times.append(time.perf_counter() - begin)
    return times


def _loro_map(keys: list[str]) -> Any:
    document = loro.LoroDoc()
    entries = document.get_map("m")
    for i, key in enumerate(keys):
        entries.insert(key, i)
    document.commit()
    return document


def _loro_merge(keys: list[str], runs: int) -> list[float]:
    own, other = _loro_map(keys), loro.LoroDoc()
    other.import_(own.export(loro.ExportMode.Snapshot()))
    entries = other.get_map("m")
    times = []
    for run in range(runs):
        known = own.oplog_vv
        for i, key in enumerate(keys[:: len(keys) // 100]):
            entries.insert(key, 10**9 + i + run)
        other.commit()
        begin = time.perf_counter()
        own.import_(other.export(loro.ExportMode.Updates(known)))
        times.append(time.perf_counter() - begin)
    return times


_PUTS: dict[str, tuple[Any, Callable[[list[str]], Any]]] = {
    "pycrdt": (pycrdt, _pycrdt_map),
    "loro": (loro, _loro_map),
}
_MERGES: dict[str, tuple[Any, Callable[[list[str], int], list[float]]]] = {
    "pycrdt": (pycrdt, _pycrdt_merge),
    "loro": (loro, _loro_merge),
}


def puts_ms(keys: list[str], runs: int) -> dict[str, float]:
    """Return the median milliseconds in which each peer sets all keys, one by one."""
    found = {}
    for name, (library, work) in _PUTS.items():
        if library is not None:
            times = []
            for _ in range(runs):
                begin = time.perf_counter()
                work(keys)
                times.append((time.perf_counter() - begin) * 1000)
            found[name] = statistics.median(times)
    return found


def merges_ms(keys: list[str], runs: int) -> dict[str, float]:
    """Return the median milliseconds in which each peer takes 100 changed keys from a copy."""
    return {
        name: statistics.median(work(keys, runs)) * 1000
        for name, (library, work) in _MERGES.items()
        if library is not None
    }


def update_bytes(keys: list[str]) -> dict[str, float]:
    """Return the bytes of each peer's update for 100 changed keys."""
    found: dict[str, float] = {}
    if pycrdt is not None:
        document = _pycrdt_map(keys)
        entries, known = document.get("m", type=pycrdt.Map), document.get_state()
        with document.transaction():
            for i, key in enumerate(keys[:: len(keys) // 100]):
                entries[key] = 10**9 + i
        found["pycrdt"] = len(document.get_update(known))
    if loro is not None:
        document = _loro_map(keys)
        entries, known = document.get_map("m"), document.oplog_vv
        for i, key in enumerate(keys[:: len(keys) // 100]):
            entries.insert(key, 10**9 + i)
        document.commit()
        found["loro"] = len(document.export(loro.ExportMode.Updates(known)))
    return found


def git_clone(blocks: list[bytes]) -> tuple[float, int] | None:
    """Return (seconds, bytes of the pack) of a clone of one file a block, None without git.

    The address is file://, so that git packs and unpacks as it does over a network.
    """
    git = shutil.which("git")
    if git is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        origin, copy = Path(folder, "origin"), Path(folder, "copy")
        subprocess.run([git, "init", "--quiet", "--bare", str(origin)], check=True)
        files = "".join(f"M 100644 :{n} {n % 256:02x}/{n}\n" for n in range(1, len(blocks) + 1))
        stream = b"".join(
            b"blob\nmark :%d\ndata %d\n%b\n" % (number, len(block), block)
            for number, block in enumerate(blocks, 1)
        )
        commit = "commit refs/heads/master\ncommitter a <a@example.org> 0 +0000\ndata 0\n" + files
        command = [git, "-C", str(origin), "fast-import", "--quiet"]
        subprocess.run(command, input=stream + commit.encode(), check=True)
        subprocess.run([git, "-C", str(origin), "repack", "-adq"], check=True)
        begin = time.perf_counter()
        command = [git, "clone", "--quiet", "--bare", f"file://{origin}", str(copy)]
        subprocess.run(command, check=True)
        took = time.perf_counter() - begin
        return took, sum(path.stat().st_size for path in copy.glob("objects/pack/*.pack"))
