"""Collect a large store of which half is garbage; print the time and the peak of its memory.

    collect_size.py [--millions 10]

Building and collecting are processes of their own, so that the memory is that of the collection.
`anonymous` is memory that no file backs; mapped segments and index pages, which the system takes
back when it needs room, are counted in `resident` only.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from datalattice.cells import Value, Vector
from datalattice.store import CellStore
from datalattice.store.kept import KEEP_NOTHING

BATCH = 50_000
"""Cells that are written at a time; half of them are garbage at once."""

POLL_S = 0.05


def build(folder: str, cells: int) -> None:
    """Fill a store with `cells` cells."""
    with CellStore.open(folder, retention=KEEP_NOTHING) as store:
        live: list[Value] = []
        for number in range(cells // BATCH):
            texts = [f"{number} {i}".ljust(150, "x") for i in range(BATCH)]
            store.put(Vector.of(texts[BATCH // 2 :]))
            live.append(Vector.of(texts[: BATCH // 2]))
            store.commit(Vector.of(live))


def collect(folder: str) -> None:
    """Collect a store and print the report as JSON."""
    with CellStore.open(folder, retention=KEEP_NOTHING) as store:
        start = time.perf_counter()
        done = store.collect(grace_ms=0)
        seconds = time.perf_counter() - start
    cells = done.cells_live + done.cells_dead
    report = {
        "cells": cells,
        "live": done.cells_live,
        "dead": done.cells_dead,
        "mb_before": done.bytes_before >> 20,
        "mb_after": done.bytes_after >> 20,
        "seconds": round(seconds, 1),
        "cells_per_s": round(cells / seconds),
    }
    print(json.dumps(report))


def memory_kb(process: int, field: str) -> int:
    """Return a memory field of the status of a process, in kB; 0 once it has ended."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith(field + ":"))


def main() -> None:
    """Build, collect, watch."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--millions", type=float, default=10.0)
    parser.add_argument("--build", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--collect", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.build:
        build(options.build[0], int(options.build[1]))
        return
    if options.collect:
        collect(options.collect)
        return
    with tempfile.TemporaryDirectory(prefix="datalattice-bench-") as folder:
        own = [sys.executable, __file__]
        cells = int(options.millions * 1_000_000)
        subprocess.run([*own, "--build", folder + "/store", str(cells)], check=True)
        command = [*own, "--collect", folder + "/store"]
        peaks = {"anonymous": 0, "resident": 0}
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            while process.poll() is None:
                for name, field in (("anonymous", "RssAnon"), ("resident", "VmRSS")):
                    peaks[name] = max(peaks[name], memory_kb(process.pid, field))
                time.sleep(POLL_S)
            assert process.stdout is not None
            report = json.loads(process.stdout.read())
    report.update({f"{name}_mb": size >> 10 for name, size in peaks.items()})
    print(json.dumps(report))


if __name__ == "__main__":
    main()
