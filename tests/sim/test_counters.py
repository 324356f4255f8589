"""Clusters of another kind of replica: counters, compared in several rounds, without a disk."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from datalattice.cells import Value
from datalattice.sync import Replica, Replicator, WireProtocol
from datalattice.testing.counters import Counters, JsonProtocol, Ranges
from datalattice.testing.sim import Checker, Faults, Observed, SimNode, Simulation
from datalattice.testing.sim.dice import Dice
from datalattice.testing.sim.trust import general_checkers

SEEDS = 12


class NothingIsLost(Checker):
    """In the end every node has at least what anybody published, of each name."""

    def __init__(self) -> None:
        self._published: dict[str, int] = {}

    def on_ack(self, node: Observed, value: Value) -> None:
        """Note what a node published."""
        for name, count in counters_of(node).counts.items():
            self._published[name] = max(count, self._published.get(name, 0))

    def at_end(self, nodes: Sequence[Observed], *, settled: bool) -> None:
        """Look for less."""
        for node in nodes if settled else ():
            counts = counters_of(node).counts
            for name, count in self._published.items():
                if counts.get(name, 0) < count:
                    self.fail(f"{node.name} counts {counts.get(name)} of {name}, not {count}")


def counters_of(node: Observed | SimNode) -> Counters:
    assert isinstance(node.replica, Counters)
    return node.replica


def open_counters(_node: SimNode) -> tuple[Replica, WireProtocol]:
    return Counters(), JsonProtocol()


def count_up(node: SimNode, dice: Dice) -> None:
    counters_of(node).add(f"{node.name} {dice.between(0, 20)}", dice.between(1, 3))


def cluster(seed: int) -> Simulation:
    dice = Dice(seed, "counters")
    return Simulation(
        seed,
        dice.between(2, 5),
        Faults(
            loss=dice.pick((0.0, 0.05, 0.2)),
            repeat=0.05,
            reorder=0.05,
            delay_ms=dice.pick((5, 40)),
            resets=dice.between(0, 4),
            partitions=dice.between(0, 2),
            pauses=dice.between(0, 2),
        ),
        replica=open_counters,
        workload=count_up,
        disks=False,
        checkers=[*general_checkers(), NothingIsLost()],
    )


@pytest.mark.parametrize("seed", range(SEEDS))
def test_counters_become_equal(seed: int) -> None:
    outcome = cluster(seed).run()
    assert outcome.violation is None, outcome


def test_the_same_seed_gives_the_same_trace() -> None:
    assert cluster(1).run().trace == cluster(1).run().trace


def test_a_comparison_that_overlooks_something_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ranges, "_smaller", lambda _self, _low, _high: [])
    outcomes = [cluster(seed).run() for seed in range(4)]
    assert any(one.violation is not None for one in outcomes)


def failed_comparisons() -> int:
    """Count the comparisons that are given up in a cluster without faults."""
    calm = Simulation(5, 3, replica=open_counters, workload=count_up, disks=False, events_min=300)
    return calm.run().counts.get("comparison-failed", 0)


def test_a_comparison_that_is_never_finished_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert failed_comparisons() == 0
    monkeypatch.setattr(Replicator, "_finish", lambda _self, _partner, _now_ms: None)
    assert failed_comparisons() > 0
