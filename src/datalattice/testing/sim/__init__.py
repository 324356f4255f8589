"""Sim: clusters in one process and one thread, from a seed - faults, hostile peers and checkers.

    outcome = Simulation(seed=7, nodes=5, faults=Faults(loss=0.1, crashes=3)).run()
    assert outcome.violation is None, outcome

See docs/simulation.md.
"""

from datalattice.testing.dice import Dice
from datalattice.testing.sim.campaign import replay, run_campaign, scenario
from datalattice.testing.sim.checkers import SimChecker, Violation
from datalattice.testing.sim.faults import NO_FAULTS, Faults
from datalattice.testing.sim.lattice import LatticeHost
from datalattice.testing.sim.lattice_checkers import (
    Authority,
    Completeness,
    ForkedDurability,
    LocalStays,
)
from datalattice.testing.sim.neutral_checkers import (
    AdmittedOnly,
    BoundedMemory,
    Convergence,
    Durability,
    SentIsDurable,
    neutral_checkers,
)
from datalattice.testing.sim.node import ReplicaKind, SimHost, SimNode, Workload
from datalattice.testing.sim.simulation import SimOutcome, Simulation, standard_kind
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
    "Completeness",
    "Convergence",
    "Dice",
    "Durability",
    "Faults",
    "ForkedDurability",
    "LatticeHost",
    "LocalStays",
    "Named",
    "Ranks",
    "ReplicaKind",
    "SentIsDurable",
    "SimChecker",
    "SimHost",
    "SimNode",
    "SimOutcome",
    "Simulation",
    "Soundness",
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
