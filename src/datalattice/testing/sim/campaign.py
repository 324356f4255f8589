"""Campaign: many seeds, each a cluster drawn from it, over several processes."""

from __future__ import annotations

import multiprocessing
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TextIO

from datalattice.cells import Cell
from datalattice.testing.dice import Dice
from datalattice.testing.sim.counting import counters_kind
from datalattice.testing.sim.faults import Faults
from datalattice.testing.sim.node import ReplicaKind
from datalattice.testing.sim.simulation import SimOutcome, Simulation, standard_kind
from datalattice.testing.sim.weaving import weaver_kinds

NODES_MIN: Final = 3
NODES_MAX: Final = 7
NODES_MAX_ALONE: Final = 9  # without the lattice, whose merges cost most
TWICE_EVERY: Final = 50  # a second run costs as much as the first
"""One seed in so many runs twice: both traces must be equal."""

LATTICE_KIND: Final = "lattice"

WEAVER_KIND: Final = "weaver"

OTHER_KINDS: Final[Mapping[str, Callable[[], list[ReplicaKind]]]] = {
    "counters": lambda: [counters_kind()],
    WEAVER_KIND: weaver_kinds,
}
"""Kinds that nodes may host beside the lattice, or alone."""

REPLICA_KINDS: Final = (LATTICE_KIND, *OTHER_KINDS)

EXCLUSIONS_MAX: Final = 3

CHUNK_SEEDS: Final = 10
REPORT_S: Final = 30.0
TRACE_LINES: Final = 60


def scenario(seed: int, keep: int = 0, kinds: Sequence[str] = (LATTICE_KIND,)) -> Simulation:
    """Return the cluster of a seed, whose nodes host these kinds of replicas.

    Half of the seeds have hostile peers: a third of all, or all but one of each node's peers. One
    in four keeps its faults to the end (safety), the others must converge (liveness). One in four
    has a peer with the habits of the reference node, one in five a copied node, and three in ten
    limit what strangers may store.
    """
    dice = Dice(seed, "scenario")
    has_lattice = LATTICE_KIND in kinds
    most = NODES_MAX if has_lattice else NODES_MAX_ALONE
    size = dice.between(NODES_MIN, most)  # three are the fewest with a way around
    hostile = dice.pick((0, 0, max(1, size // 3), size - 2))
    hosting = dice.chance(0.3)
    faults = Faults.drawn(dice)
    settle = dice.chance(0.75)
    references = 0 if hosting else int(dice.chance(0.25))  # a plain peer knows no quotas
    made = [standard_kind(hosting=hosting)] if has_lattice else []
    made += [kind for one in kinds if one != LATTICE_KIND for kind in OTHER_KINDS[one]()]
    if len(made) > has_lattice:
        # Dice of its own: the other draws stay.
        exclusions = Dice(seed, "members").between(0, EXCLUSIONS_MAX)
        faults = replace(faults, exclusions=exclusions)
    return Simulation(
        seed,
        size - hostile,
        faults,
        kinds=made,
        hostile=hostile if has_lattice or WEAVER_KIND in kinds else 0,
        # Reference peers speak the lattice protocol only.
        references=references if has_lattice else 0,
        settle=settle,
        # With more than 8 peers a Weaver store pushes to some of them alone, so that an update may
        # wait for the next comparison.
        clones=int(dice.chance(0.2) and size < NODES_MAX_ALONE),
        keep=keep,
    )


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a seed, as it is sent between processes."""

    seed: int
    events: int
    fault: str


def run_seed(seed: int, kinds: Sequence[str] = (LATTICE_KIND,)) -> Verdict:
    """Run a seed."""
    outcome = scenario(seed, kinds=kinds).run()
    fault = "" if outcome.violation is None else str(outcome.violation)
    if not fault and seed % TWICE_EVERY == 0:  # "the same seed gives the same events"
        again = scenario(seed, kinds=kinds).run()
        if again.trace != outcome.trace:
            fault = f"determinism: traces {outcome.trace[:16]} and {again.trace[:16]}"
    return Verdict(seed, outcome.events, fault)


def run_seeds(seeds: range, jobs: int, kinds: Sequence[str]) -> Iterator[Verdict]:
    """Run seeds in several processes; yield verdicts as they come."""
    run_one = partial(run_seed, kinds=kinds)
    if jobs == 1:
        yield from map(run_one, seeds)
        return
    # Spawned: a forked process would share the parent's threads.
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        # In chunks: sending a seed costs more than a short run.
        yield from pool.imap_unordered(run_one, seeds, chunksize=CHUNK_SEEDS)


def rerun(seed: int, kinds: Sequence[str] = (LATTICE_KIND,)) -> SimOutcome:
    """Run a seed and keep its last events."""
    return scenario(seed, keep=TRACE_LINES, kinds=kinds).run()


def run_campaign(
    seeds: range, jobs: int, out: TextIO, command: str, kinds: Sequence[str] = (LATTICE_KIND,)
) -> int:
    """Run seeds, report the progress, and return how many failed.

    command: the command that replays a seed, without the seed.
    """
    compiled = not (sys.modules[Cell.__module__].__file__ or "").endswith(".py")
    out.write(
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"kernel {'compiled' if compiled else 'pure'}; {len(seeds)} seeds from {seeds.start}, "
        f"{jobs} processes\n"
    )
    begin = told = time.monotonic()
    done = events = 0
    fewest = 0
    failed: list[Verdict] = []
    for verdict in run_seeds(seeds, jobs, kinds):
        done += 1
        events += verdict.events
        fewest = min(fewest, verdict.events) if fewest else verdict.events
        if verdict.fault:
            failed.append(verdict)
            first = verdict.fault.splitlines()[0]
            out.write(f"seed {verdict.seed} violates {first}\n  {command} {verdict.seed}\n")
        now = time.monotonic()
        if now - told > REPORT_S:
            told = now
            out.write(f"{done} seeds, {events} events, {now - begin:.0f} s\n")
            out.flush()
    took = time.monotonic() - begin
    out.write(
        f"{done} seeds, {events} events (at least {fewest} a seed), {took:.0f} s, "
        f"{1_000 * took * jobs / max(1, done):.0f} ms a seed and process; "
        f"violations: {len(failed)}\n"
    )
    for verdict in sorted(failed, key=lambda one: one.seed)[:1]:  # one is enough to begin with
        out.write(f"\nthe end of seed {verdict.seed}:\n{rerun(verdict.seed, kinds)}\n")
    return len(failed)
