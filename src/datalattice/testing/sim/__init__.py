"""Sim: clusters in one process and one thread, from a seed - faults, hostile peers and checkers.

    outcome = Simulation(seed=7, nodes=5, faults=Faults(loss=0.1, crashes=3)).run()
    assert outcome.violation is None, outcome

See docs/simulation.md.
"""

from datalattice.testing.sim.campaign import replay, run_campaign, scenario
from datalattice.testing.sim.checkers import (
    AdmittedOnly,
    BoundedMemory,
    Checker,
    Convergence,
    Durability,
    Observed,
    SentIsDurable,
    Violation,
    neutral_checkers,
)
from datalattice.testing.sim.dice import Dice
from datalattice.testing.sim.faults import NO_FAULTS, Faults
from datalattice.testing.sim.lattice import LatticeView
from datalattice.testing.sim.lattice_checkers import (
    Authority,
    Completeness,
    ForkedDurability,
    LocalStays,
    ObservedLattice,
)
from datalattice.testing.sim.node import Kind, SimHost, SimNode, View, Workload
from datalattice.testing.sim.simulation import Outcome, Simulation, standard_kind
from datalattice.testing.sim.topology import line, mesh, random_links, ring, star
from datalattice.testing.sim.trust import (
    Blame,
    BoundedEvidence,
    BoundedHosting,
    BoundedWork,
    Named,
    Ranks,
    Soundness,
    standard_checkers,
)
from datalattice.testing.sim.workload import standard_workload

__all__ = [
    "NO_FAULTS",
    "AdmittedOnly",
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
    "ForkedDurability",
    "Kind",
    "LatticeView",
    "LocalStays",
    "Named",
    "Observed",
    "ObservedLattice",
    "Outcome",
    "Ranks",
    "SentIsDurable",
    "SimHost",
    "SimNode",
    "Simulation",
    "Soundness",
    "View",
    "Violation",
    "Workload",
    "line",
    "mesh",
    "neutral_checkers",
    "random_links",
    "replay",
    "ring",
    "run_campaign",
    "scenario",
    "standard_checkers",
    "standard_kind",
    "standard_workload",
    "star",
]
