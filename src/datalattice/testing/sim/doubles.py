"""Doubles: a disk replaced by its old copy, and a copied node that runs beside the original."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Final

from datalattice.testing.dice import Dice
from datalattice.testing.disk import SimDisk
from datalattice.testing.sim.node import SimNode, SimWorld

RESTORES_MAX: Final = 2
"""Most restores: each leaves a branch behind, and nodes keep evidence of four in a slot."""


class Doubles:
    """Restores and clones of one node, which the dice choose.

    end: ends a node and starts it again later.
    """

    def __init__(
        self,
        world: SimWorld,
        nodes: list[SimNode],
        dice: Dice,
        end: Callable[[SimNode], None],
    ) -> None:
        self._world = world
        self._dice = dice
        self._end = end
        self._original = dice.pick(nodes)
        self.owners: set[bytes] = set()
        """Owners who may have two histories, because a copy of their disk was used."""
        self._backup: SimDisk | None = None
        self._restores = 0

    def back_up(self) -> None:
        """Copy the disk, unless the node is down."""
        if self._original.is_up:
            self._backup = _copy_of(self._original.disk)
            self._world.timeline.record(self._original.name, "is backed up")

    def restore(self) -> None:
        """Replace the disk by its backup: later writes are lost."""
        if self._backup is None or self._restores == RESTORES_MAX:
            return  # more branches than evidence keeps would be lost
        self._restores += 1
        node = self._original
        self._world.timeline.record(node.name, "is restored from its backup")
        self._world.counts["restores"] += 1
        if node.is_up:
            self._end(node)
        node.disk = _copy_of(self._backup)
        self.owners.add(node.keys.public_key)
        for watch, host in zip(self._world.watches, node.hosts.values(), strict=True):
            for checker in watch.checkers:
                checker.on_restore(host, watch.hosts)

    def clone(self, name: str) -> SimNode:
        """Return a node with the same key over a copy of the disk, or an empty one."""
        original = self._original
        double = SimNode(name, self._world, self._dice.fork(name), 0, original.keys)
        self.owners.add(original.keys.public_key)
        if original.is_up:
            double.disk = _copy_of(original.disk)
        self._world.timeline.record(name, f"is a copy of {original.name}")
        for watch, host in zip(self._world.watches, double.hosts.values(), strict=True):
            for checker in watch.checkers:
                checker.on_clone(host)
        return double


def _copy_of(disk: SimDisk) -> SimDisk:
    made = copy.deepcopy(disk)
    made.restart(power_failure=False)
    return made
