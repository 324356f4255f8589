"""`python -m datalattice.testing.sim`: run many seeds, or replay one."""

from __future__ import annotations

import argparse
import os
import sys

from datalattice.testing.sim.campaign import LATTICE_KIND, REPLICA_KINDS, rerun, run_campaign

COMMAND = "python -m datalattice.testing.sim"


def _count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError(f"a number from 1, got {count}")
    return count


def _kinds(text: str) -> tuple[str, ...]:
    kinds = tuple(dict.fromkeys(text.split(",")))
    unknown = [one for one in kinds if one not in REPLICA_KINDS]
    if unknown:
        raise argparse.ArgumentTypeError(f"{', '.join(REPLICA_KINDS)}, got {', '.join(unknown)}")
    return kinds


def main() -> int:
    """Return 0 when nothing was violated."""
    parser = argparse.ArgumentParser(prog="python -m datalattice.testing.sim", description=__doc__)
    parser.add_argument("--seeds", type=_count, default=200, help="how many seeds to run")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--jobs", type=_count, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--replay", type=int, metavar="SEED", help="run one and show its end")
    parser.add_argument(
        "--kinds",
        type=_kinds,
        default=(LATTICE_KIND,),
        metavar="KIND,...",
        help=f"replicas: {', '.join(REPLICA_KINDS)}; default: {LATTICE_KIND}",
    )
    given = parser.parse_args()
    if given.replay is not None:
        outcome = rerun(given.replay, given.kinds)
        sys.stdout.write(f"{outcome}\n")
        return 0 if outcome.violation is None else 1
    seeds = range(given.first, given.first + given.seeds)
    kinds = "" if given.kinds == (LATTICE_KIND,) else f" --kinds {','.join(given.kinds)}"
    command = f"{COMMAND}{kinds} --replay"
    return 1 if run_campaign(seeds, given.jobs, sys.stdout, command, given.kinds) else 0


if __name__ == "__main__":
    sys.exit(main())
