"""Growth: rounds, messages and bytes until a change is on all nodes, by the number of nodes.

    growth.py [--plot FILE]

Simulated nodes of the product in rings and in random graphs of six links a node, each link with the
same delay and nothing lost. A round is one link delay. Either one node writes, or all write at the
same moment. The counts are exact and the same on every machine; only the seconds are not.
"""

from __future__ import annotations

import argparse
import math
import time
from collections import Counter
from dataclasses import dataclass

from datalattice.lattice import MapLattice, MaxLattice
from datalattice.sync import Pace
from datalattice.testing.sim import (
    Dice,
    Faults,
    SimChecker,
    SimHost,
    SimNode,
    Simulation,
    random_links,
    ring,
)

LINK_MS = 20
DEGREE = 6
SETTLE_MS = 15_000
LIMIT_MS = 60_000
SIZES = {"ring": (10, 30, 100), "random": (10, 30, 100, 300, 1_000)}


@dataclass(frozen=True)
class Point:
    """The figures of one cluster."""

    shape: str
    writers: str
    nodes: int
    rounds: float
    messages: int
    payload_bytes: int
    seconds: float


class Equality(SimChecker):
    """Counts the announced states, and so knows at once when all nodes announce the same one."""

    def __init__(self, nodes: int) -> None:
        self._nodes = nodes
        self._states: dict[str, bytes] = {}
        self._counts: Counter[bytes] = Counter()

    def on_open(self, node: SimHost) -> None:
        """Count the state of a new node."""
        self.on_commit(node)

    def on_commit(self, node: SimHost) -> None:
        """Count a node's new state in place of its former one."""
        before, now = self._states.get(node.name), node.state
        if before is not None:
            self._counts[before] -= 1
            if not self._counts[before]:
                del self._counts[before]
        self._states[node.name] = now
        self._counts[now] += 1

    @property
    def holds(self) -> bool:
        """Whether all nodes announce the same state."""
        return len(self._counts) == 1


def write(node: SimNode, _dice: Dice) -> None:
    """Write under the node's own name."""
    node.cursor.assoc(node.name, 1)


def measure(shape: str, nodes: int, *, all_write: bool) -> Point:
    """Run one cluster until a change, or one of every node, is on all nodes."""
    begin = time.perf_counter()
    dice = Dice(nodes, shape)
    links = ring(nodes) if shape == "ring" else random_links(nodes, min(DEGREE, nodes - 1), dice)
    equality = Equality(nodes)
    simulation = Simulation(
        nodes,
        nodes,
        Faults(delay_min_ms=LINK_MS, delay_ms=LINK_MS),
        lattice=MapLattice(MaxLattice()),
        workload=write,
        links=links,
        disks=False,
        pace=Pace(root_sync_interval_ms=10 * LIMIT_MS),  # no periodic statement helps a change
        checkers=[equality],
        events_max=10_000_000,
    )
    simulation.begin()
    # Until all are connected and have told each other their states: that is not the change.
    simulation.run_for(SETTLE_MS)
    frames, sent = simulation.network.frames, simulation.network.sent_bytes
    began_ms = simulation.timeline.now_ms
    for node in simulation.nodes if all_write else simulation.nodes[:1]:
        simulation.write(node, dice)
    while not equality.holds:
        simulation.run_for(1)
        if simulation.timeline.now_ms > began_ms + LIMIT_MS:
            raise SystemExit(f"{shape} of {nodes}: not equal within {LIMIT_MS} ms")
    return Point(
        shape,
        "all" if all_write else "one",
        nodes,
        (simulation.timeline.now_ms - began_ms) / LINK_MS,
        simulation.network.frames - frames,
        simulation.network.sent_bytes - sent,
        time.perf_counter() - begin,
    )


def exponent(points: list[tuple[float, float]]) -> float:
    """Return the slope of the straight line through the logarithms (least squares)."""
    logs = [(math.log(x), math.log(y)) for x, y in points]
    mean_x = sum(x for x, _ in logs) / len(logs)
    mean_y = sum(y for _, y in logs) / len(logs)
    above = sum((x - mean_x) * (y - mean_y) for x, y in logs)
    return above / sum((x - mean_x) ** 2 for x, _ in logs)


MEASURES = {"rounds": "rounds", "messages": "messages", "bytes": "payload_bytes"}


def fits(points: list[Point]) -> dict[tuple[str, str, str], float]:
    """Return the growth exponent by shape, writers and measure."""
    found = {}
    for shape, writers in dict.fromkeys((point.shape, point.writers) for point in points):
        group = [point for point in points if (point.shape, point.writers) == (shape, writers)]
        for name, attribute in MEASURES.items():
            pairs = [(float(p.nodes), float(getattr(p, attribute))) for p in group]
            found[shape, writers, name] = exponent(pairs)
    return found


def plot(points: list[Point], path: str) -> None:
    """Draw all measures over the number of nodes, both logarithmic."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "growth"  # else every run gives another file
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(1, 3, figsize=(11, 3.6))
    growth = fits(points)
    for panel, (name, attribute) in zip(panels, MEASURES.items(), strict=True):
        for shape, writers in dict.fromkeys((point.shape, point.writers) for point in points):
            group = [p for p in points if (p.shape, p.writers) == (shape, writers)]
            label = f"{shape}, {writers} write{'s' if writers == 'one' else ''}: "
            label += f"n^{growth[shape, writers, name]:.2f}"
            values = [getattr(p, attribute) for p in group]
            panel.loglog([p.nodes for p in group], values, marker="o", label=label)
        panel.set_title(f"{name} until all are equal")
        panel.set_xlabel("nodes")
        panel.grid(visible=True, which="both", alpha=0.2)
        panel.legend(fontsize=7, frameon=False)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Measure all sizes and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plot", help="where to write the picture")
    parser.add_argument("--nodes-max", type=int, default=1_000)
    given = parser.parse_args()
    points: list[Point] = []
    print(f"{'shape':8}{'write':>6}{'nodes':>7}{'rounds':>9}{'messages':>10}{'bytes':>14}{'s':>7}")
    for shape, sizes in SIZES.items():
        for all_write in (False, True):
            for nodes in (size for size in sizes if size <= given.nodes_max):
                point = measure(shape, nodes, all_write=all_write)
                points.append(point)
                print(
                    f"{shape:8}{point.writers:>6}{nodes:>7}{point.rounds:>9.1f}"
                    f"{point.messages:>10}{point.payload_bytes:>14,}{point.seconds:>7.1f}",
                    flush=True,
                )
    for (shape, writers, name), slope in fits(points).items():
        print(f"{shape}, {writers}: {name} grow with n^{slope:.2f}")
    if given.plot:
        plot(points, given.plot)


if __name__ == "__main__":
    main()
