"""Run the benchmark: every row of the rows_*.py beside this file, with its peers in the same run.

Prints one line a row and writes bench/latest.json: a list of {row, value, unit, peers, compiled}.
Figures of different machines compare only as ratios to the peers measured in the same run.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
from collections.abc import Iterator
from pathlib import Path

from figures import Row

HERE = Path(__file__).parent


def machine() -> str:
    """Return one line about the machine."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        model = names[0].partition(":")[2].strip() if names else model
    return (
        f"{model}, {os.cpu_count()} cores, {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}"
    )


def rows(groups: list[str], quick: bool) -> Iterator[Row]:
    """Yield the rows of the groups (the names after `rows_`), in order."""
    for group in groups:
        yield from importlib.import_module(f"rows_{group}").rows(quick)


def shown(value: float) -> str:
    """Return a figure with four significant digits."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def main() -> None:
    """Run what the command line names."""
    known = sorted(path.stem.removeprefix("rows_") for path in HERE.glob("rows_*.py"))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("groups", nargs="*", help=f"which of {', '.join(known)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="fewer runs, smaller data")
    options = parser.parse_args()
    unknown = [group for group in options.groups if group not in known]
    if unknown:
        parser.error(f"unknown group {unknown[0]!r}; accepted are {', '.join(known)}")
    print(machine(), flush=True)
    done: list[Row] = []
    for row in rows(options.groups or known, options.quick):
        done.append(row)
        peers = ", ".join(f"{name} {shown(value)}" for name, value in row["peers"].items())
        mode = "compiled" if row["compiled"] else "pure"
        print(
            f"{row['row']:22} {shown(row['value']):>12} {row['unit']:10} {mode:9} {peers}",
            flush=True,
        )
    (HERE / "latest.json").write_text(json.dumps(done, indent=1) + "\n")


if __name__ == "__main__":
    main()
