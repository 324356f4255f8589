"""Memory test: a queue of five million records on disk, in a process of less than 300 MB.

    python bench/memory_queue.py [--records N] [--dir FOLDER] [--keep]

Appends signed, durable batches, reads all records by range, and truncates in steps. Each part runs
in a process of its own; its peak resident size is printed and compared with the limit. Ends with
exit code 1 when one is above it.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rows_queue import open_queue, records

from datalattice.store import CellStore

RECORDS = 5_000_000
BATCH = 1_000
LIMIT_MB = 300


def peak_mb() -> float:
    """Return the greatest resident size of this process so far, mapped files included."""
    for line in Path("/proc/self/status").read_text("ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return 0.0


def append(store: CellStore, count: int) -> int:
    """Append until there are `count` records."""
    queue = open_queue(store)
    begin = queue.end_offset()
    for first in range(begin, count, BATCH):
        queue.offer_many(records(first, min(BATCH, count - first)))
        queue.sync()
    return count - begin


def read(store: CellStore, count: int) -> int:
    """Read all records by ranges and check each."""
    queue = open_queue(store)
    seen = 0
    for first in range(queue.start_offset(), count, BATCH):
        values = queue.range(first, first + BATCH - 1)
        assert list(values) == records(first, len(values))
        seen += len(values)
    assert seen == queue.size()
    return seen


def truncate(store: CellStore, count: int) -> int:
    """Remove the older half in uneven steps, then all but the last thousand."""
    queue = open_queue(store)
    removed = 0
    for start in (count // 5 + 1, count // 2 - 3, count - 1_000):
        removed += queue.truncate(start)
        queue.sync()
        assert queue.peek(start) == records(start, 1)[0]
        assert queue.peek(start - 1) is None
    return removed


PARTS = {"append": append, "read": read, "truncate": truncate}


def run_part(name: str, folder: Path, count: int) -> None:
    """Do one part in this process; print its name, records, seconds and peak in MB."""
    began = time.perf_counter()
    with CellStore.open(folder / "store") as store:
        done = PARTS[name](store, count)
    spent = time.perf_counter() - began
    print(f"{name} {done} {spent:.1f} {peak_mb():.0f}", flush=True)


def main() -> None:
    """Run all parts, each in its own process."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--dir", type=Path, help="folder of the store; default: a temporary one")
    parser.add_argument("--keep", action="store_true", help="keep the store")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        run_part(options.part, options.dir, options.records)
        return
    folder = options.dir or Path(tempfile.mkdtemp(prefix="datalattice-memory-"))
    worst = 0.0
    try:
        for part in PARTS:
            command = [sys.executable, __file__, "--part", part, "--dir", str(folder)]
            answer = subprocess.run(
                [*command, "--records", str(options.records)],
                check=True,
                stdout=subprocess.PIPE,
                text=True,
            )
            name, done, spent, peak = answer.stdout.split()
            rate = int(done) / max(float(spent), 0.001)
            print(f"{name:9} {int(done):>10,} records {spent:>7} s {rate:>10,.0f}/s {peak:>5} MB")
            worst = max(worst, float(peak))
    finally:
        if not options.keep:
            shutil.rmtree(folder)
    verdict = "within" if worst < LIMIT_MB else "ABOVE"
    print(f"peak {worst:.0f} MB, {verdict} the limit of {LIMIT_MB} MB")
    sys.exit(worst >= LIMIT_MB)


if __name__ == "__main__":
    main()
