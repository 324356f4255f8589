"""Clusters of another kind of replica, alone and beside the lattice: the same rules hold for it.

Counters are compared in several rounds, kept in a file, and are for members. Each neutral checker
is shown a fault of theirs.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from datalattice.sync import Replicator
from datalattice.testing.counters import Counters, CountFile, Ranges
from datalattice.testing.disk import SimDisk, SimulatedCrash
from datalattice.testing.sim import (
    NO_FAULTS,
    Durability,
    Faults,
    Simulation,
    line,
    mesh,
    rerun,
    scenario,
)
from datalattice.testing.sim.counting import counters_kind, counters_of

pytestmark = pytest.mark.timeout(300)

ALONE = ("counters",)
BESIDE = ("lattice", "counters")
SEEDS = 8


@pytest.mark.parametrize("seed", range(SEEDS))
def test_every_seed_holds_with_counters(seed: int) -> None:
    outcome = scenario(seed, kinds=ALONE).run()
    assert outcome.violation is None, rerun(seed, ALONE)
    assert outcome.events > 1_000


@pytest.mark.parametrize("seed", [2, 3])
def test_every_seed_holds_with_counters_beside_the_lattice(seed: int) -> None:
    outcome = scenario(seed, kinds=BESIDE).run()
    assert outcome.violation is None, rerun(seed, BESIDE)


def test_the_same_seed_gives_the_same_trace() -> None:
    assert scenario(1, kinds=ALONE).run().trace == scenario(1, kinds=ALONE).run().trace


def test_the_runner_takes_kinds() -> None:
    runner = [sys.executable, "-m", "datalattice.testing.sim", "--seeds", "1", "--jobs", "1"]

    def run(kinds: str) -> subprocess.CompletedProcess[str]:
        words = [*runner, "--kinds", kinds]
        return subprocess.run(words, capture_output=True, text=True, check=False)

    ran, refused = run("counters"), run("abacus")
    assert ran.returncode == 0, ran.stderr
    assert "violations: 0" in ran.stdout
    assert refused.returncode == 2
    assert "lattice, counters, weaver, got abacus" in refused.stderr


# --- each neutral checker sees what it is for -----------------------------------------------------


def first_violation(faults: Faults = NO_FAULTS, **given: Any) -> str:
    """Return the rule that the first of a few seeds violates."""
    given = {
        "kinds": [counters_kind()],
        "links": line(3),
        "events_min": 200,
        "writes": 30,
        **given,
    }
    for seed in range(8):
        outcome = Simulation(seed, 3, faults, **given).run()
        if outcome.violation is not None:
            return outcome.violation.rule
    return "nothing"


def test_counters_with_these_faults_violate_nothing() -> None:
    for faults in (Faults(crashes=6), Faults(exclusions=2), NO_FAULTS):
        assert first_violation(faults) == "nothing"


def test_a_comparison_that_overlooks_something_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ranges, "_smaller", lambda _self, _low, _high: [])
    assert first_violation(Faults(loss=0.3)) == "convergence"


def test_counts_that_are_told_before_they_are_kept_are_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(CountFile, "save", lambda _self, _counts: None)
    assert first_violation() == "sentisdurable"


def test_counts_that_are_acknowledged_without_a_sync_are_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(SimDisk, "sync_folder", lambda self, _path: self.check_alive())
    only = counters_kind(lambda: [Durability()])
    assert first_violation(Faults(crashes=12), kinds=[only]) == "durability"


def test_a_push_around_the_gate_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Replicator, "_admits", lambda _self, _partner: True)
    assert first_violation(Faults(exclusions=2), links=mesh(3)) == "admittedonly"


def failed_comparisons() -> int:
    """Count the comparisons that are given up in a cluster without faults."""
    calm = Simulation(5, 3, kinds=[counters_kind()], events_min=300)
    return calm.run().counts.get("comparison-failed", 0)


def test_a_comparison_that_is_never_finished_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert failed_comparisons() == 0
    monkeypatch.setattr(Replicator, "_finish", lambda _self, _partner, _now_ms: None)
    assert failed_comparisons() > 0


# --- members --------------------------------------------------------------------------------------


def test_a_peer_gets_nothing_before_it_is_admitted_and_nothing_after_it_is_removed() -> None:
    made = Simulation(1, 2, kinds=[counters_kind()], links=[])
    made.begin()
    one, other = made.nodes
    one.admit(other.keys.public_key, is_admitted=False)
    made.connect(0, 1)
    counters_of(one).add("a", 1)
    assert one.publish()
    made.run_for(40_000)
    assert counters_of(other).counts == {}
    one.admit(other.keys.public_key, is_admitted=True)
    made.run_for(1_000)
    assert counters_of(other).counts == {"a": 1}
    one.admit(other.keys.public_key, is_admitted=False)
    counters_of(one).add("a", 1)
    assert one.publish()
    made.run_for(40_000)
    assert counters_of(other).counts == {"a": 1}


def test_what_was_written_while_a_peer_was_not_admitted_comes_both_ways_at_once() -> None:
    made = Simulation(1, 2, kinds=[counters_kind()], links=[(0, 1)])
    made.begin()
    made.run_for(1_000)
    one, other = made.nodes
    one.admit(other.keys.public_key, is_admitted=False)
    for node in (one, other):
        counters_of(node).add(node.name, 1)
        assert node.publish()
    made.run_for(1_000)
    one.admit(other.keys.public_key, is_admitted=True)
    made.run_for(1_000)
    assert made.is_equal


# --- the file -------------------------------------------------------------------------------------


def saved(disk: SimDisk) -> int:
    """Count up until the process ends; return the last count that was acknowledged."""
    counters = Counters(CountFile(disk, "counts"))
    acknowledged = counters.counts.get("a", 0)
    try:
        for _ in range(4):
            counters.add("a")
            counters.publish()
            acknowledged = counters.counts["a"]
    except SimulatedCrash:
        pass
    return acknowledged


@pytest.mark.parametrize("power_failure", [False, True])
def test_a_crash_at_any_step_loses_no_acknowledged_count(*, power_failure: bool) -> None:
    calm = SimDisk(0)
    assert saved(calm) == 4
    steps = calm.steps
    assert steps > 4 * 4  # create, write, sync, replace for each of four, and more
    for step in range(1, steps + 1):
        for seed in range(6):  # which unsynced changes a power failure leaves is the disk's choice
            disk = SimDisk(seed)
            disk.crash_at = step
            try:
                acknowledged = saved(disk)
            except SimulatedCrash:
                acknowledged = 0
            disk.restart(power_failure=power_failure)
            found = Counters(CountFile(disk, "counts")).counts.get("a", 0)
            assert found >= acknowledged, f"step {step}, disk {seed}"
            # What was found is there for good.
            disk.restart(power_failure=True)
            assert Counters(CountFile(disk, "counts")).counts.get("a", 0) == found
