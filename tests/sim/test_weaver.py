"""Clusters of Weaver stores, alone and beside the lattice: nodes converge to one log and state."""

from __future__ import annotations

import pytest

from datalattice.sync import Regard, Step
from datalattice.sync.reconcile import RangeMessage
from datalattice.sync.weaver import RangeComparison, WeaverReplica
from datalattice.testing.sim import replay, scenario
from datalattice.weaver import Ingested, WeaverStore

pytestmark = [pytest.mark.once, pytest.mark.timeout(300)]

ALONE = ("weaver",)
BESIDE = ("lattice", "weaver")


@pytest.mark.parametrize("seed", range(4))
def test_every_seed_holds_with_weaver_stores(seed: int) -> None:
    outcome = scenario(seed, kinds=ALONE).run()
    assert outcome.violation is None, replay(seed, ALONE)
    assert outcome.events > 1_000


def test_a_seed_holds_with_weaver_stores_beside_the_lattice() -> None:
    outcome = scenario(2, kinds=BESIDE).run()
    assert outcome.violation is None, replay(2, BESIDE)


def test_the_same_seed_gives_the_same_trace() -> None:
    assert scenario(3, kinds=ALONE).run().trace == scenario(3, kinds=ALONE).run().trace


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
