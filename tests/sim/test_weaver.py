"""Clusters of Weaver stores, alone and beside the lattice: nodes converge to one log and state."""

from __future__ import annotations

import pytest

from datalattice.sync import Regard, Step
from datalattice.sync.reconcile import RangeMessage
from datalattice.sync.weaver import RangeComparison, WeaverReplica
from datalattice.testing.sim import Faults, Simulation, rerun, scenario, weaverattacks
from datalattice.testing.sim.weaving import CHILD, TEAM, weaver_kinds
from datalattice.weaver import Ingested, WeaverStore

pytestmark = [pytest.mark.once, pytest.mark.timeout(300)]

ALONE = ("weaver",)
BESIDE = ("lattice", "weaver")


@pytest.mark.parametrize("seed", range(4))
def test_every_seed_holds_with_weaver_stores(seed: int) -> None:
    outcome = scenario(seed, kinds=ALONE).run()
    assert outcome.violation is None, rerun(seed, ALONE)
    assert outcome.events > 1_000


def test_a_seed_holds_with_weaver_stores_beside_the_lattice() -> None:
    outcome = scenario(2, kinds=BESIDE).run()
    assert outcome.violation is None, rerun(2, BESIDE)


def test_the_same_seed_gives_the_same_trace() -> None:
    assert scenario(3, kinds=ALONE).run().trace == scenario(3, kinds=ALONE).run().trace


def attacked(seed: int, nodes: int = 3) -> Simulation:
    return Simulation(
        seed, nodes, Faults(loss=0.05, resets=2, exclusions=1), kinds=weaver_kinds(), hostile=1
    )


@pytest.mark.parametrize("attack", weaverattacks.WEAVER_ATTACKS, ids=lambda one: one.__name__)
def test_every_attack_is_met(
    attack: weaverattacks.WeaverAttack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weaverattacks, "WEAVER_ATTACKS", (attack,))
    outcome = attacked(1).run()
    assert outcome.violation is None, outcome


@pytest.mark.parametrize("manner", weaverattacks.WEAVER_MANNERS, ids=lambda manner: manner.__name__)
def test_every_manner_to_answer_is_met(
    manner: weaverattacks.WeaverManner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weaverattacks, "WEAVER_MANNERS", (manner,))
    outcome = attacked(2).run()
    assert outcome.violation is None, outcome


def test_nine_nodes_with_two_stores_become_equal() -> None:
    faults = Faults(loss=0.1, repeat=0.1, reorder=0.1, resets=4, crashes=2, exclusions=2)
    outcome = Simulation(5, 9, faults, kinds=weaver_kinds(), events_min=3_000).run()
    assert outcome.violation is None, outcome


def test_what_belongs_to_one_store_never_reaches_the_other() -> None:
    simulation = Simulation(6, 3, Faults(loss=0.1), kinds=weaver_kinds())
    assert simulation.run().violation is None
    team, child = (set(simulation.nodes[0].hosts[name].held) for name in (TEAM, CHILD))
    assert team
    assert child
    assert team.isdisjoint(child)


@pytest.mark.parametrize(
    ("owner", "name", "fault"),
    [
        (WeaverReplica, "regard", "admits everybody"),
        (RangeComparison, "receive", "compares nothing"),
        (WeaverStore, "take", "keeps nothing"),
    ],
)
def test_a_fault_is_noticed_within_a_few_seeds(
    owner: type, name: str, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = {
        "admits everybody": lambda *_: Regard.STRANGER,
        "compares nothing": lambda *_: Step((RangeMessage(done=True),), is_done=True),
        "keeps nothing": lambda *_, **__: Ingested((), (), (), (), (), ()),
    }
    monkeypatch.setattr(owner, name, faults[fault])
    assert any(scenario(seed, kinds=ALONE).run().violation for seed in range(6))
