"""Clusters from seeds: nothing acknowledged is lost, nothing forged is taken, all become equal."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from datalattice.cells import Cell, Index, Keyword, Map, Vector, references, value_hash
from datalattice.lattice import MapLattice, MaxLattice, get_in
from datalattice.sync import Pace, Probe, Replicator
from datalattice.sync.lattice import incomplete, latticestate
from datalattice.sync.partner import Partner
from datalattice.testing.disk import SimFile
from datalattice.testing.sim import (
    NO_FAULTS,
    Dice,
    Faults,
    LatticeHost,
    SimChecker,
    SimHost,
    SimNode,
    Simulation,
    attacks,
    campaign,
    hostile,
    line,
    node,
    rerun,
    run_campaign,
    scenario,
    timeline,
)
from datalattice.wire import FrameBuffer

COMPILED = not (sys.modules[Cell.__module__].__file__ or "").endswith(".py")
CHUNK = 5
VECTOR_TAG = 0x80


def chunks() -> list[range]:
    """Return the seeds of this run: those of both modes together are the 200 of a full one."""
    seeds = range(CHUNK)
    if os.environ.get("DATALATTICE_PROFILE", "quick") != "quick":
        seeds = range(10, 200) if COMPILED else range(10)
    return [seeds[at : at + CHUNK] for at in range(0, len(seeds), CHUNK)]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seeds", chunks(), ids=lambda seeds: f"from-{seeds.start}")
def test_every_seed_holds(seeds: range) -> None:
    for seed in seeds:
        outcome = scenario(seed).run()
        assert outcome.violation is None, rerun(seed)
        assert outcome.events > 1_000


# --- reproducible ---------------------------------------------------------------------------------

TRACES = """
from datalattice.testing.sim import scenario
print([scenario(seed).run().trace for seed in (4, 10)])
"""


def test_the_same_seed_gives_the_same_trace_in_every_process() -> None:
    told = {
        subprocess.run(
            [sys.executable, "-c", TRACES],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for hash_seed in ("1", "2")
    }
    assert told == {str([scenario(seed).run().trace for seed in (4, 10)])}


def test_another_seed_gives_another_trace() -> None:
    assert len({Simulation(seed, 3, events_min=0, writes=3).run().trace for seed in range(4)}) == 4


# --- each checker sees what it is for -------------------------------------------------------------


def first_violation(faults: Faults = NO_FAULTS, **given: Any) -> str:
    """Return the rule that the first of a few seeds violates."""
    given = {"links": line(3), "events_min": 100, "writes": 20, **given}
    for seed in range(8):
        outcome = Simulation(seed, 3, faults, **given).run()
        if outcome.violation is not None:
            return outcome.violation.rule
    return "nothing"


def test_a_write_acknowledged_before_it_is_synced_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimFile, "sync", lambda self: self._disk.check_alive())
    assert first_violation(Faults(crashes=12)) == "durability"


def test_a_signature_that_is_not_checked_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datalattice.cells.tagged.verify", lambda *_: True)
    monkeypatch.setattr(hostile, "ATTACKS", (attacks.forge,))
    assert first_violation(hostile=1) == "authority"


def test_an_update_lost_in_the_broadcast_window_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    flush = Replicator._flush

    def forgetful(self: Replicator, partner: Partner, now_ms: int) -> None:
        flush(self, partner, now_ms)
        partner.has_news = False

    monkeypatch.setattr(Replicator, "_flush", forgetful)
    assert first_violation() in {"convergence", "last update"}


def test_a_timer_by_the_wall_clock_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    pushed = Partner.pushed

    def by_the_wall(
        self: Partner, probe: Probe, now_ms: int, pace: Pace, *, is_whole: bool = True
    ) -> None:
        pushed(self, probe, now_ms, pace, is_whole=is_whole)
        self.compare_after_ms = timeline.EPOCH_MS

    monkeypatch.setattr(Partner, "pushed", by_the_wall)
    assert first_violation(Faults(loss=0.6)) == "convergence"


def test_a_commit_with_a_missing_cell_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_of_leaves(encoding: bytes) -> list[bytes]:
        return [] if encoding[0] == VECTOR_TAG else references(encoding)

    def put_vector(node: SimNode, dice: Dice) -> None:
        value = Vector.of([dice.bytes(300) for _ in range(10)])
        node.cursor.path(Keyword("data")).merge(Index.of([(value_hash(value), value)]))

    monkeypatch.setattr(incomplete, "references", not_of_leaves)
    assert first_violation(workload=put_vector) == "completeness"


def test_local_data_that_leaves_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latticestate, "replicable", lambda root: root)
    assert first_violation() == "localstays"


def test_frames_without_a_limit_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "FrameBuffer", lambda _limit: FrameBuffer(2**40))
    monkeypatch.setattr(hostile, "ATTACKS", (attacks.dribble,))
    assert first_violation(hostile=2) == "boundedmemory"


# --- what users do with it ------------------------------------------------------------------------


class Greatest(SimChecker):
    """A user's own: a counter never steps back on a node."""

    def __init__(self) -> None:
        self.seen: dict[str, int] = {}

    def on_commit(self, node: LatticeHost) -> None:
        value = get_in(node.data.announced, [node.name])
        now = value if isinstance(value, int) else 0
        if now < self.seen.get(node.name, 0):
            self.fail(f"{node.name} steps back to {now}")
        self.seen[node.name] = now


def count_up(node: SimNode, dice: Dice) -> None:
    value = node.cursor.get(node.name)
    step = 1 + dice.below(3)
    node.cursor.assoc(node.name, step + (value if isinstance(value, int) else 0))


def test_a_lattice_workload_and_checker_of_ones_own() -> None:
    checker = Greatest()
    simulation = Simulation(
        7,
        4,
        Faults(loss=0.1, crashes=3, partitions=2),
        lattice=MapLattice(MaxLattice()),
        workload=count_up,
        checkers=[checker],
    )
    outcome = simulation.run()
    assert outcome.violation is None, outcome
    values = [simulated.cursor.get() for simulated in simulation.nodes]
    assert all(isinstance(value, Map) and value.get("n0") == checker.seen["n0"] for value in values)


def test_an_exception_of_a_node_is_a_violation_with_its_trace() -> None:
    def broken(_node: SimNode, _dice: Dice) -> None:
        raise ZeroDivisionError("a user's fault")

    outcome = Simulation(1, 3, workload=broken, keep=20).run()
    assert outcome.violation is not None
    assert outcome.violation.rule == "fault"
    assert "a user's fault" in str(outcome)
    assert len(outcome.lines) == 20


def test_users_may_sync_by_the_cursor() -> None:
    def synced(node: SimNode, dice: Dice) -> None:
        count_up(node, dice)
        node.cursor.sync()

    simulation = Simulation(
        2, 3, Faults(crashes=4), lattice=MapLattice(MaxLattice()), workload=synced
    )
    assert simulation.run().violation is None


def test_the_runner_spreads_seeds_over_processes() -> None:
    runner = [sys.executable, "-m", "datalattice.testing.sim"]
    ran = subprocess.run(
        [*runner, "--first", "8", "--seeds", "2", "--jobs", "2"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "2 seeds, " in ran.stdout
    assert "violations: 0" in ran.stdout


def test_a_campaign_tells_what_failed_and_how_to_see_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def short(seed: int, keep: int = 0, kinds: Sequence[str] = ()) -> Simulation:
        assert kinds == ("lattice",)
        return Simulation(seed, 3, checkers=[Grumbling()], keep=keep)

    monkeypatch.setattr(campaign, "scenario", short)
    out = io.StringIO()
    assert run_campaign(range(4, 5), 1, out, "replay") == 1
    told = out.getvalue()
    assert "seed 4 violates grumbling: no" in told
    assert "replay 4" in told
    assert "n0   opens" in told


class Grumbling(SimChecker):
    def on_commit(self, node: SimHost) -> None:
        self.fail("no")
