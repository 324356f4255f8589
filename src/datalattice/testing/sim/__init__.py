"""Sim: clusters in one process and one thread, from a seed - faults, hostile peers and checkers.

    outcome = Simulation(seed=7, nodes=5, faults=Faults(loss=0.1, crashes=3)).run()
    assert outcome.violation is None, outcome

See docs/simulation.md.
"""

from datalattice.testing.dice import Dice as Dice
from datalattice.testing.sim.campaign import (
    rerun as rerun,
    run_campaign as run_campaign,
    scenario as scenario,
)
from datalattice.testing.sim.checkers import SimChecker as SimChecker
from datalattice.testing.sim.faults import NO_FAULTS as NO_FAULTS, Faults as Faults
from datalattice.testing.sim.lattice import LatticeHost as LatticeHost
from datalattice.testing.sim.neutral_checkers import Durability as Durability
from datalattice.testing.sim.node import SimHost as SimHost, SimNode as SimNode
from datalattice.testing.sim.simulation import SimOutcome as SimOutcome, Simulation as Simulation
from datalattice.testing.sim.topology import (
    line as line,
    mesh as mesh,
    random_links as random_links,
    ring as ring,
)
from datalattice.testing.sim.trust import standard_checkers as standard_checkers
