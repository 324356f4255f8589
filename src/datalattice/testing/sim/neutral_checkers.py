"""Neutral checkers: rules for every kind of replica.

They see the parts of a replica as names: which ones it holds, which are durable, and which ones a
message mentions.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from datalattice.sync import UNSENT_MAX
from datalattice.testing.sim.checkers import SimChecker
from datalattice.testing.sim.node import SimHost

TURNS_PER_LOOK = 7  # looking costs more than a step
"""Memory is measured after one in so many steps of a host."""


class Convergence(SimChecker):
    """Once faults have stopped, all nodes announce the same state."""

    def at_end(self, nodes: Sequence[SimHost], *, settled: bool) -> None:
        if settled and len({node.state for node in nodes}) > 1:
            told = ", ".join(f"{node.name} {node.state.hex()[:8]}" for node in nodes)
            self.fail(f"different states at the end: {told}")


class Durability(SimChecker):
    """Acknowledged parts are there after every crash, and at the end on every node."""

    def __init__(self) -> None:
        self._acknowledged: dict[str, Collection[bytes]] = {}

    def lacking(self, node: Any, names: Collection[bytes], writer: str) -> Collection[bytes]:
        """Return the parts that a writer acknowledged and a node does not have."""
        return node.lacking(names)  # type: ignore[no-any-return]

    def on_restore(self, node: Any, nodes: Sequence[Any]) -> None:
        # A restored disk has lost what it acknowledged since.
        self._acknowledged.pop(node.name, None)

    def on_ack(self, node: Any, names: Collection[bytes]) -> None:
        self._check(node, node.name)
        self._acknowledged[node.name] = names

    def on_open(self, node: Any) -> None:
        self._check(node, node.name)

    def at_end(self, nodes: Sequence[Any], *, settled: bool) -> None:
        for node in nodes:
            # After faults every node has everything.
            for writer in self._acknowledged if settled else (node.name,):
                self._check(node, writer)

    def _check(self, node: Any, writer: str) -> None:
        if self.lacking(node, self._acknowledged.get(writer, ()), writer):
            self.fail(f"{node.name} does not have what {writer} acknowledged")


class SentIsDurable(SimChecker):
    """A message mentions only parts that would survive a power failure here."""

    def on_send(self, node: SimHost, peer: str, payload: bytes) -> None:
        for name in node.told(payload) or ():
            if not node.is_durable(name):
                self.fail(f"{node.name} tells {peer} of {name.hex()[:8]} before it is durable")


class AdmittedOnly(SimChecker):
    """A peer that is not admitted receives nothing about the state here."""

    def on_send(self, node: SimHost, peer: str, payload: bytes) -> None:
        # An empty message about the state tells something, too.
        if not node.admits(peer) and node.told(payload) is not None:
            self.fail(f"{node.name} tells {peer} of its state and does not admit it")


class BoundedMemory(SimChecker):
    """What peers make a node hold stays within bounds.

    For each peer: wanted parts, requests, unwritten frames, bytes of incomplete frames. For all:
    the replica's `amounts`.
    """

    def __init__(
        self, *, wants: int = 20_000, requests: int = 64, frame_bytes: int = 1_300_000
    ) -> None:
        self._wants = wants
        self._requests = requests
        self._frame_bytes = frame_bytes
        self._turns = 0

    def on_turn(self, node: SimHost) -> None:
        self._turns += 1
        if self._turns % TURNS_PER_LOOK:  # memory moves slowly
            return
        replicator, peers = node.replicator, max(1, node.peers_count)
        for what, amount, most in node.amounts:
            self._bound(node, what, amount, most)
        self._bound(node, "wanted parts", replicator.missing_count, self._wants * peers)
        self._bound(node, "bytes of a frame", node.buffered_bytes, self._frame_bytes)
        self._bound(node, "partners", len(replicator._partners), peers)
        for partner in replicator._partners.values():
            self._bound(node, "open requests", partner.conversation.pending_count, self._requests)
            # Some frames wait for each store.
            self._bound(node, "unwritten frames", partner.unsent_count, 4 * UNSENT_MAX)

    def _bound(self, node: SimHost, what: str, amount: int, most: int) -> None:
        if amount > most:
            self.fail(f"{node.name} holds {amount} {what}, at most {most} are expected")


def neutral_checkers() -> list[SimChecker]:
    """Return new checkers for any kind of replica."""
    return [Convergence(), Durability(), SentIsDurable(), AdmittedOnly(), BoundedMemory()]
