"""Cost model of queues and sites of any number, checked at two sizes on this machine.

    python bench/scale.py [--records N] [--table]

Constants are taken from one small queue for each length of values, and from ten sites that sync;
the model then predicts queues and sites 4 and 16 times as large, which are built and measured. Ends
with exit code 1 when a prediction of cells or bytes is off by more than 5 %, one of tasks at all,
or one of time by more than 50 %. `--table` prints what the model says of a terabyte, a petabyte and
a thousand sites; docs/scale.md explains it.
"""

from __future__ import annotations

import argparse
import math
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import scale_sites
from rows_spark import BATCH_RECORDS, build_queue
from scale_sites import Push

from datalattice.limits import CHUNK_BYTES, EMBEDDED_BYTES_MAX, FAN_OUT, HASH_BYTES
from datalattice.pipeline.queue.options import parse_options
from datalattice.pipeline.queue.plan import RECORDS_PER_TASK_MAX, TASKS_MAX, task_slices
from datalattice.pipeline.queue.rows import slice_batches
from datalattice.pipeline.queue.view import read_view
from datalattice.pipeline.read_targets import encodings, open_target
from datalattice.store import CellStore

RECORDS = 20_000
GROWTH = (4, 16)
VALUE_BYTES = (100, 1_000, 100_000)
SIZE_ERROR_MAX = 0.05
TIME_ERROR_MAX = 0.5

ENTRY_BYTES = 12
"""Of a record beside its value: tag and count, no key, length, time, no headers."""
REF_BYTES = 1 + HASH_BYTES
PACKED_BYTES = 2 + HASH_BYTES
"""Of a cell in a segment beside its encoding."""
NODE_BYTES = 3 + FAN_OUT * REF_BYTES
TERABYTE = 10**12


@dataclass(frozen=True)
class Sizes:
    """Cells and bytes, and how long reading takes."""

    cells: float
    bytes: float
    """In segments."""
    tasks: int
    seconds: float
    """Of one processor, in Python."""


@dataclass(frozen=True)
class Constants:
    """Measured once: the cells and bytes that each commit rewrites, and the time of a record."""

    commit_cells: float
    commit_bytes: float
    record_seconds: float


def structure(records: int, value_bytes: int) -> tuple[float, float]:
    """Return (cells, bytes) of a log of `records` records, by the formats of cells.

    A vector has a leaf for each 16 records, and a node for each 16 below it. A record or value of
    more than 140 bytes is a cell of its own, and a long value a tree of chunks.
    """
    leaves = records / FAN_OUT
    nodes = leaves / (FAN_OUT - 1)
    cells = leaves + nodes
    size = nodes * NODE_BYTES
    value = value_bytes + 2
    if value_bytes > CHUNK_BYTES:
        levels = [math.ceil(value_bytes / CHUNK_BYTES)]
        while levels[-1] > 1:
            levels.append(math.ceil(levels[-1] / FAN_OUT))
        top = 4 + levels[-2] * REF_BYTES
        is_cell = top > EMBEDDED_BYTES_MAX
        cells += records * (sum(levels[:-1]) + is_cell)
        size += records * (value_bytes + 3 * levels[0])
        size += records * (sum(levels[:-2]) * REF_BYTES + 4 * sum(levels[1:-1]) + top * is_cell)
        entry = ENTRY_BYTES - 2 + (REF_BYTES if is_cell else top)
    elif value > EMBEDDED_BYTES_MAX:
        cells += records
        size += records * (value + 1)
        entry = REF_BYTES + ENTRY_BYTES - 2
    else:
        entry = value_bytes + ENTRY_BYTES
    if entry > EMBEDDED_BYTES_MAX:
        cells += records
        size += records * entry
        entry = REF_BYTES
    size += leaves * (2 + FAN_OUT * entry)
    return cells, size + cells * PACKED_BYTES


def predicted(constants: Constants, records: int, value_bytes: int) -> Sizes:
    """Return what the model says of a queue of `records` records."""
    cells, size = structure(records, value_bytes)
    commits = math.ceil(records / BATCH_RECORDS)
    return Sizes(
        cells + commits * constants.commit_cells,
        size + commits * constants.commit_bytes,
        min(math.ceil(records / RECORDS_PER_TASK_MAX), TASKS_MAX),
        records * constants.record_seconds,
    )


def measured(folder: Path, records: int, value_bytes: int) -> Sizes:
    """Build a queue; return its cells, bytes and tasks, and the time to read it."""
    import pyarrow as pa

    build_queue(folder, records, value_bytes)
    with CellStore.open(folder, read_only=True) as store:
        stats = store.stats()
    options = parse_options(
        {"store": str(folder), "valueFormat": "bytes", "columns": "offset,value"}
    )
    source = open_target(options.target)
    view = read_view(source.root(), options, must_exist=True)
    parts = task_slices(
        view,
        {name: log.start for name, log in view.items()},
        {name: log.end for name, log in view.items()},
        lambda loss: sys.exit(str(loss)),
    )
    schema = pa.schema([("offset", pa.int64()), ("value", pa.binary())])
    fetch = encodings(source)
    times = []
    for _ in range(3):  # the first one warms up
        begin = time.process_time()
        rows = sum(
            batch.num_rows
            for part in parts
            for batch in slice_batches(part, options, schema, fetch)
        )
        times.append(time.process_time() - begin)
    assert rows == records
    return Sizes(stats.cells, stats.bytes, len(parts), min(times))


def calibrated(found: Sizes, records: int, value_bytes: int) -> Constants:
    """Return the constants of the model, from a measured queue."""
    cells, size = structure(records, value_bytes)
    commits = math.ceil(records / BATCH_RECORDS)
    return Constants(
        (found.cells - cells) / commits,
        (found.bytes - size) / commits,
        found.seconds / records,
    )


def compare(name: str, model: Sizes, found: Sizes) -> bool:
    """Print a prediction beside the measurement; return whether the error is within its limit."""
    good = True
    for part, limit in (("cells", SIZE_ERROR_MAX), ("bytes", SIZE_ERROR_MAX), ("tasks", 0.0)):
        said, is_so = getattr(model, part), getattr(found, part)
        error = said / is_so - 1
        good &= abs(error) <= limit
        print(f"{name:>24} {part:8} predicted {said:>14,.0f}  is {is_so:>14,.0f}  {error:+.1%}")
    error = model.seconds / found.seconds - 1
    good &= abs(error) <= TIME_ERROR_MAX
    print(
        f"{name:>24} {'seconds':8} predicted {model.seconds:>14.2f}  is "
        f"{found.seconds:>14.2f}  {error:+.1%}",
        flush=True,
    )
    return good


def compare_push(sites: int, model: Push, found: Push) -> bool:
    """Print the prediction of a push beside the measurement; return as `compare`."""
    good = True
    for part, limit in (
        ("wire", SIZE_ERROR_MAX),
        ("stored", SIZE_ERROR_MAX),
        ("seconds", TIME_ERROR_MAX),
    ):
        said, is_so = getattr(model, part), getattr(found, part)
        error = said / is_so - 1
        good &= abs(error) <= limit
        name = f"{sites:,} sites, a push"
        print(f"{name:>24} {part:8} predicted {said:>14,.7g}  is {is_so:>14,.7g}  {error:+.1%}")
    return good


def table(constants: dict[int, Constants]) -> None:
    """Print what a terabyte and a petabyte of values need."""
    print(
        f"{'values':>10} {'of':>8} {'records':>10} {'cells':>10} {'store':>10} {'index':>10}",
        end="",
    )
    print(f" {'tasks':>10} {'core-hours':>11}")
    for value_bytes, found in constants.items():
        for total, name in ((TERABYTE, "1 TB"), (1_000 * TERABYTE, "1 PB")):
            records = total // value_bytes
            model = predicted(found, records, value_bytes)
            print(
                f"{name:>10} {value_bytes:>8} {records:>10.2g} {model.cells:>10.2g} "
                f"{model.bytes:>10.3g} {model.cells * INDEX_BYTES:>10.2g} {model.tasks:>10,} "
                f"{model.seconds / 3600:>11,.1f}"
            )


INDEX_BYTES = 120
"""Of a cell in the ordered table on disk: a million small records have 7.9 MB for 67,000 cells."""


def main() -> None:
    """Calibrate, predict, measure, compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--records", type=int, default=RECORDS, help="of the smallest queue")
    parser.add_argument(
        "--table", action="store_true", help="also print the table of docs/scale.md"
    )
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="bench-scale-"))
    good = True
    constants: dict[int, Constants] = {}
    try:
        for value_bytes in VALUE_BYTES:
            records = max(options.records // max(value_bytes // 1_000, 1), 200)
            at = folder / f"{value_bytes}"
            first = measured(at / "0", records, value_bytes)
            constants[value_bytes] = calibrated(first, records, value_bytes)
            print(f"{value_bytes} bytes: {constants[value_bytes]}", flush=True)
            for times in GROWTH:
                model = predicted(constants[value_bytes], times * records, value_bytes)
                found = measured(at / str(times), times * records, value_bytes)
                good &= compare(f"{times * records:,} x {value_bytes}", model, found)
            shutil.rmtree(at)
        push = scale_sites.measured(scale_sites.SITES)
        print(f"sites: {push}", flush=True)
        for sites, said, is_so in scale_sites.checks(push):
            good &= compare_push(sites, said, is_so)
    finally:
        shutil.rmtree(folder)
    if options.table:
        table(constants)
        scale_sites.table(push)
    sys.exit(not good)


if __name__ == "__main__":
    main()
