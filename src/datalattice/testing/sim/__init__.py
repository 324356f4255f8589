"""Sim: clusters in one process and one thread, from a seed - faults, hostile peers and checkers.

    outcome = Simulation(seed=7, nodes=5, faults=Faults(loss=0.1, crashes=3)).run()
    assert outcome.violation is None, outcome

See docs/simulation.md.
"""

from datalattice.testing.dice import Dice
from datalattice.testing.sim.campaign import replay, run_campaign, scenario
from datalattice.testing.sim.checkers import SimChecker
from datalattice.testing.sim.faults import NO_FAULTS, Faults
from datalattice.testing.sim.lattice import LatticeHost
from datalattice.testing.sim.neutral_checkers import Durability
from datalattice.testing.sim.node import SimHost, SimNode
from datalattice.testing.sim.simulation import SimOutcome, Simulation
from datalattice.testing.sim.topology import line, mesh, random_links, ring
from datalattice.testing.sim.trust import standard_checkers

__all__ = [
    "NO_FAULTS",
    "Dice",
    "Durability",
    "Faults",
    "LatticeHost",
    "SimChecker",
    "SimHost",
    "SimNode",
    "SimOutcome",
    "Simulation",
    "line",
    "mesh",
    "random_links",
    "replay",
    "ring",
    "run_campaign",
    "scenario",
    "standard_checkers",
]
