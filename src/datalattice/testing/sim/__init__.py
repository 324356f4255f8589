"""Sim: clusters in one process and one thread, from a seed - faults, hostile peers and checkers.

    outcome = Simulation(seed=7, nodes=5, faults=Faults(loss=0.1, crashes=3)).run()
    assert outcome.violation is None, outcome

See docs/simulation.md.
"""

from datalattice.testing.sim.campaign import replay, run_campaign, scenario
from datalattice.testing.sim.checkers import (
    Authority,
    BoundedMemory,
    Checker,
    Completeness,
    Convergence,
    Durability,
    LocalStays,
    Observed,
    Violation,
)
from datalattice.testing.sim.dice import Dice
from datalattice.testing.sim.faults import NO_FAULTS, Faults
from datalattice.testing.sim.node import OpenReplica, SimNode, open_lattice
from datalattice.testing.sim.simulation import Outcome, Simulation
from datalattice.testing.sim.topology import line, mesh, random_links, ring, star
from datalattice.testing.sim.trust import (
    Blame,
    BoundedEvidence,
    BoundedHosting,
    BoundedWork,
    Named,
    Ranks,
    Soundness,
    general_checkers,
    standard_checkers,
)
from datalattice.testing.sim.workload import Workload, standard_workload

__all__ = [
    "NO_FAULTS",
    "Authority",
    "Blame",
    "BoundedEvidence",
    "BoundedHosting",
    "BoundedMemory",
    "BoundedWork",
    "Checker",
    "Completeness",
    "Convergence",
    "Dice",
    "Durability",
    "Faults",
    "LocalStays",
    "Named",
    "Observed",
    "OpenReplica",
    "Outcome",
    "Ranks",
    "SimNode",
    "Simulation",
    "Soundness",
    "Violation",
    "Workload",
    "general_checkers",
    "line",
    "mesh",
    "open_lattice",
    "random_links",
    "replay",
    "ring",
    "run_campaign",
    "scenario",
    "standard_checkers",
    "standard_workload",
    "star",
]
