"""Topology: who dials whom."""

from __future__ import annotations

from collections import deque

from datalattice.testing.dice import Dice

Topology = list[tuple[int, int]]


def ring(nodes: int) -> Topology:
    """Return a ring."""
    # Two nodes have one link.
    return [(index, (index + 1) % nodes) for index in range(nodes)] if nodes > 2 else line(nodes)


def line(nodes: int) -> Topology:
    """Return a line."""
    return [(index, index + 1) for index in range(nodes - 1)]


def star(nodes: int) -> Topology:
    """Return a star: all dial the first."""
    return [(index, 0) for index in range(1, nodes)]


def mesh(nodes: int) -> Topology:
    """Return a link for every pair."""
    return [(low, high) for low in range(nodes) for high in range(low + 1, nodes)]


def random_links(nodes: int, degree: int, dice: Dice) -> Topology:
    """Return a ring in random order, and chords until nodes have about `degree` links each."""
    order = dice.shuffled(range(nodes))
    found = dict.fromkeys((order[low], order[high]) for low, high in ring(nodes))
    while len(found) * 2 < nodes * degree:
        low, high = dice.below(nodes), dice.below(nodes)
        if low != high and (high, low) not in found:  # one link for each pair, whoever dials
            found[low, high] = None
    return list(found)


def draw_links(nodes: int, dice: Dice) -> Topology:
    """Return links of a random kind."""
    kind = dice.below(5)
    if kind < 4:
        return (ring, line, star, mesh)[kind](nodes)
    return random_links(nodes, min(3, nodes - 1), dice)


def diameter(nodes: int, links: Topology) -> int:
    """Return the greatest distance of two nodes, in links."""
    beside: list[list[int]] = [[] for _ in range(nodes)]
    for low, high in links:
        beside[low].append(high)
        beside[high].append(low)
    greatest = 0
    for start in range(nodes):
        distance = {start: 0}
        front = deque([start])
        while front:
            here = front.popleft()
            for there in beside[here]:
                if there not in distance:
                    distance[there] = distance[here] + 1
                    front.append(there)
        greatest = max(greatest, *distance.values())
    return greatest
