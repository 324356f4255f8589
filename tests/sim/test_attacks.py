"""Attacks from seeds: what strangers sign costs honest nodes nothing but a bounded amount of work.

Source of the rules: the design of foreign data and of forks. Each checker is also shown a fault.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from datalattice.node.observe import Noticed
from datalattice.sync.lattice import incomplete
from datalattice.sync.lattice.evidence import Evidence
from datalattice.sync.lattice.quotas import Limit, Quotas
from datalattice.testing.sim import (
    Faults,
    SimChecker,
    SimHost,
    SimOutcome,
    Simulation,
    attacks,
    hostile,
    line,
    standard_checkers,
)
from datalattice.testing.sim.attacks import Attack

pytestmark = [pytest.mark.once, pytest.mark.timeout(300)]

QUIET = Faults(delay_ms=5)
APART = Faults(delay_ms=150, partitions=4)


def attacked(
    monkeypatch: pytest.MonkeyPatch, attack: Attack, seed: int = 1, **given: Any
) -> tuple[Simulation, SimOutcome]:
    """Run two nodes with a stranger that does one thing only, and serves the cells of it."""
    monkeypatch.setattr(hostile, "ATTACKS", (attack,))
    monkeypatch.setattr(hostile, "POISON", (attack,))
    monkeypatch.setattr(hostile, "MANNERS", (hostile.serve_kept,))
    given = {"links": line(2), "events_min": 200, "writes": 20, "hostile": 1, **given}
    simulation = Simulation(seed, 2, given.pop("faults", QUIET), **given)
    return simulation, simulation.run()


def counts(simulation: Simulation) -> Counter[str]:
    return simulation._world.counts


# --- each attack is met, said, and survived -------------------------------------------------------


def test_malformed_trees_are_dropped_and_counted_and_honest_data_converges(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    simulation, outcome = attacked(monkeypatch, attacks.malform, events_min=600)
    assert outcome.violation is None, outcome
    assert counts(simulation)["unsound-cells"] > 3


def test_bombs_are_dropped_and_counted_and_honest_data_converges(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    simulation, outcome = attacked(monkeypatch, attacks.explode)
    assert outcome.violation is None, outcome
    assert counts(simulation)["too-costly"] > 0


def test_what_has_no_room_is_not_hosted_and_honest_data_converges(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    simulation, outcome = attacked(monkeypatch, attacks.overfill, hosting=True)
    assert outcome.violation is None, outcome
    assert counts(simulation)["quota-exceeded"] > 0


def test_who_signs_two_histories_is_taken_alike_everywhere_and_leaves_bounded_evidence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    simulation, outcome = attacked(monkeypatch, attacks.equivocate, events_min=1_200)
    assert outcome.violation is None, outcome
    assert all(node.data.evidence.open for node in simulation.nodes)


def test_a_peer_that_passes_on_what_is_unsound_is_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, str]] = []

    class Noted(SimChecker):
        def on_note(self, node: SimHost, kind: str, peer: str) -> None:
            seen.append((kind, peer))

    _, outcome = attacked(monkeypatch, attacks.malform, checkers=[*standard_checkers(), Noted()])
    assert outcome.violation is None, outcome
    assert ("unsound-cells", "x0") in seen


@pytest.mark.parametrize(
    ("attack", "word"),
    [
        (attacks.malform, "unsound-cells"),
        (attacks.explode, "too-costly"),
        (attacks.forge, "not-owner"),
        (attacks.dribble, "closed-framing"),
    ],
)
def test_the_health_of_honest_nodes_names_who_was_refused_and_why(
    monkeypatch: pytest.MonkeyPatch, attack: Attack, word: str
) -> None:
    said: list[str] = []

    class Read(SimChecker):
        def at_rest(self, nodes: Sequence[SimHost]) -> None:
            said.extend(str(node.noticed.get("x0")) for node in nodes)

    checkers = [*standard_checkers(), Read()]
    _, outcome = attacked(monkeypatch, attack, events_min=600, checkers=checkers)
    assert outcome.violation is None, outcome
    assert any(f"'{word}': " in one for one in said), said


# --- copies of a node -----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [1, 5])  # of these the evidence is still there at the end
def test_what_a_restored_node_and_its_former_self_acknowledged_is_in_its_log_or_in_evidence(
    seed: int,
) -> None:
    faults = Faults(loss=0.05, crashes=1, restores=2)
    simulation = Simulation(seed, 3, faults, events_min=600, writes=40)
    outcome = simulation.run()
    assert outcome.violation is None, outcome
    assert outcome.counts["restores"]
    assert any(node.data.evidence.open for node in simulation.nodes)


@pytest.mark.parametrize("seed", range(2))
def test_what_a_node_and_its_copy_acknowledged_is_in_the_log_or_in_evidence(seed: int) -> None:
    simulation = Simulation(seed, 3, APART, clones=1, events_min=600, writes=80)
    outcome = simulation.run()
    assert any(node.data.evidence.open for node in simulation.nodes)
    assert outcome.violation is None, outcome


# --- each checker sees what it is for -------------------------------------------------------------


def rule_of(outcome: SimOutcome) -> str:
    return "nothing" if outcome.violation is None else outcome.violation.rule


def test_an_unsound_cell_that_is_stored_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incomplete, "learn_cell", lambda *_: None)
    monkeypatch.setattr(incomplete, "learn_cells", lambda cells, _: len(cells))
    monkeypatch.setattr(incomplete, "check_cell", lambda *_: None)
    found = {rule_of(attacked(monkeypatch, attacks.malform, seed)[1]) for seed in range(2)}
    assert found & {"soundness", "fault", "convergence"}, found


def test_a_health_that_names_nobody_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Noticed, "add", lambda *_: None)
    assert rule_of(attacked(monkeypatch, attacks.explode)[1]) == "named"


def test_a_quota_that_is_not_kept_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Quotas, "limit_of", lambda *_: Limit(2**60, 0, "none"))
    monkeypatch.setattr(Quotas, "is_over", lambda *_: False)
    assert rule_of(attacked(monkeypatch, attacks.overfill, hosting=True)[1]) == "boundedhosting"


def test_evidence_without_bounds_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Evidence, "_bound", lambda *_: None)
    _, outcome = attacked(monkeypatch, attacks.equivocate, events_min=1_200)
    assert rule_of(outcome) == "boundedevidence"


def test_a_branch_that_leaves_no_evidence_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Evidence, "_add", lambda *_: None)
    found = {
        rule_of(Simulation(seed, 3, APART, clones=1, events_min=600, writes=80).run())
        for seed in range(3)
    }
    assert "durability" in found
