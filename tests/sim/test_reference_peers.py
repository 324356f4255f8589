"""Clusters with a peer that has the habits of the reference node."""

from __future__ import annotations

import pytest

from datalattice.sync.lattice.conversation import LatticeConversation
from datalattice.sync.replica import FETCHES
from datalattice.testing.dice import Dice
from datalattice.testing.sim import Faults, Simulation


def cluster(seed: int, *, hostile: int = 0) -> Simulation:
    dice = Dice(seed, "reference peers")
    faults = Faults.drawn(dice) if seed % 2 else Faults()
    return Simulation(seed, dice.between(1, 3), faults, references=1, hostile=hostile)


@pytest.mark.parametrize("seed", range(4))
def test_a_cluster_and_a_reference_peer_become_equal(seed: int) -> None:
    outcome = cluster(seed).run()
    assert outcome.violation is None, outcome


def test_a_reference_peer_is_told_complete_values_among_hostile_ones() -> None:
    outcome = cluster(7, hostile=1).run()
    assert outcome.violation is None, outcome


def test_a_root_alone_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    learn = LatticeConversation._learn
    monkeypatch.setattr(
        LatticeConversation, "_learn", lambda self, features: learn(self, features | {FETCHES})
    )
    outcome = cluster(2).run()
    assert outcome.violation is not None
    assert outcome.violation.rule in ("complete values", "reference convergence")
