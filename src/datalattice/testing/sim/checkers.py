"""Checkers: what must hold in every simulation, each a small object that is told what happens.

A checker overrides the hooks it needs and calls `fail`. It sees replicas of one kind. Those here
hold for every kind; what holds for lattices besides is in `lattice_checkers` and `trust`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Generic, NoReturn, Protocol, TypeVar

from datalattice.sync import UNSENT_MAX, Replica, Replicator

TURNS_PER_LOOK = 7
"""Memory is measured after one turn of a replica in so many."""


class Violation(Exception):
    """Something that must hold does not. `rule` names it."""

    def __init__(self, rule: str, text: str) -> None:
        super().__init__(f"{rule}: {text}")
        self.rule = rule
        self.text = text


class Observed(Protocol):
    """What a checker sees of a replica on an honest node that is up.

    Names stand for parts, as the kind of replica defines them; they are the same on all nodes.
    """

    @property
    def name(self) -> str:
        """What the node is called."""
        ...

    @property
    def state(self) -> bytes:
        """What two nodes have in common when they have converged."""
        ...

    @property
    def held(self) -> Collection[bytes]:
        """Names of the parts that its user sees, published or not."""
        ...

    def covers(self, name: bytes) -> bool:
        """Return whether its user sees a part that some node held, or what has replaced it."""
        ...

    def is_durable(self, name: bytes) -> bool:
        """Return whether a part, or what has replaced it, were there if the power failed now."""
        ...

    def told(self, payload: bytes) -> Collection[bytes] | None:
        """Return the names of the parts that rest here by what a message of it says.

        None: the message says nothing of what is here.
        """
        ...

    def admits(self, peer: str) -> bool:
        """Return whether its operator lets it speak to a peer, by the peer's name."""
        ...

    @property
    def amounts(self) -> Iterable[tuple[str, int, int]]:
        """What the replica itself holds on behalf of peers: (what, how much, at most how much)."""
        ...

    @property
    def replica(self) -> Replica:
        """What replicates."""
        ...

    @property
    def replicator(self) -> Replicator:
        """What moves its messages."""
        ...

    @property
    def is_up(self) -> bool:
        """Whether the node runs."""
        ...

    @property
    def noticed(self) -> Mapping[str, Mapping[str, object]]:
        """What the node's health says of peers, by their names."""
        ...

    @property
    def buffered_bytes(self) -> int:
        """Most bytes that it holds of a frame that is not whole."""
        ...

    @property
    def peers_count(self) -> int:
        """Connections that it has."""
        ...


O = TypeVar("O", bound=Observed, contravariant=True)  # noqa: E741, PLC0105


class Checker(Generic[O]):
    """Told what happens; every hook does nothing by itself."""

    rule = ""
    """What it calls the rule; the name of the class where it is empty."""

    def fail(self, text: str) -> NoReturn:
        """End the run.

        Raises: Violation: always.
        """
        raise Violation(self.rule or type(self).__name__.lower(), text)

    def on_begin(self, nodes: Sequence[O]) -> None:
        """Note which nodes there will be; none is open yet."""

    def on_open(self, node: O) -> None:
        """Look at a node that has opened its store, at the beginning or after it ended."""

    def on_restore(self, node: O, nodes: Sequence[O]) -> None:
        """Note that a node has ended and will open an old copy of its disk; `nodes` are all."""

    def on_clone(self, node: O) -> None:
        """Note that a node is about to open a copy of the disk of another one with its key."""

    def on_ack(self, node: O, names: Collection[bytes]) -> None:
        """Note that a node told its user that parts with these names are durable."""

    def on_commit(self, node: O) -> None:
        """Look at a node that announces another value than before."""

    def on_send(self, node: O, peer: str, payload: bytes) -> None:
        """Look at a message that a node sends to a peer."""

    def on_note(self, node: O, kind: str, peer: str) -> None:
        """Note what a node has counted and logged, and whom it names."""

    def on_close(self, node: O, peer: str, reason: str) -> None:
        """Note that a node parts with a peer."""

    def on_turn(self, node: O) -> None:
        """Look at a node that has done something."""

    def at_rest(self, nodes: Sequence[O]) -> None:
        """Look at the nodes that run when all is done, before their last restart."""

    def at_end(self, nodes: Sequence[O], *, settled: bool) -> None:
        """Look at the end. `settled`: faults had stopped, so that all must be equal."""


class Convergence(Checker[Observed]):
    """When faults have stopped, all nodes announce the same."""

    def at_end(self, nodes: Sequence[Observed], *, settled: bool) -> None:
        """Compare what is announced."""
        if settled and len({node.state for node in nodes}) > 1:
            told = ", ".join(f"{node.name} {node.state.hex()[:8]}" for node in nodes)
            self.fail(f"different states at the end: {told}")


class Durability(Checker[O]):
    """What was acknowledged is there after every crash, and at the end on every node."""

    def __init__(self) -> None:
        self._acknowledged: dict[str, Collection[bytes]] = {}

    def covers(self, node: O, name: bytes, writer: str) -> bool:
        """Return whether a node has what a writer acknowledged."""
        return node.covers(name)

    def on_restore(self, node: O, nodes: Sequence[O]) -> None:
        """Expect nothing any more that was on its disk alone."""
        self._acknowledged.pop(node.name, None)

    def on_ack(self, node: O, names: Collection[bytes]) -> None:
        """Remember what was acknowledged last: what was so before must be contained in it."""
        self._check(node, node.name)
        self._acknowledged[node.name] = names

    def on_open(self, node: O) -> None:
        """Look for what this node acknowledged in what it has read from its disk."""
        self._check(node, node.name)

    def at_end(self, nodes: Sequence[O], *, settled: bool) -> None:
        """Look for what every node acknowledged on every node."""
        for node in nodes:
            for writer in self._acknowledged if settled else (node.name,):
                self._check(node, writer)

    def _check(self, node: O, writer: str) -> None:
        for name in self._acknowledged.get(writer, ()):
            if not self.covers(node, name, writer):
                self.fail(f"{node.name} does not have what {writer} acknowledged")


class SentIsDurable(Checker[Observed]):
    """What a message says of the state here would be here after a power failure, too."""

    def on_send(self, node: Observed, peer: str, payload: bytes) -> None:
        """Look for each part on the disk."""
        for name in node.told(payload) or ():
            if not node.is_durable(name):
                self.fail(f"{node.name} tells {peer} of {name.hex()[:8]} before it is durable")


class AdmittedOnly(Checker[Observed]):
    """A peer that is not admitted is told nothing of what is here."""

    def on_send(self, node: Observed, peer: str, payload: bytes) -> None:
        """Look what goes to whom."""
        if not node.admits(peer) and node.told(payload) is not None:
            self.fail(f"{node.name} tells {peer} of its state and does not admit it")


class BoundedMemory(Checker[Observed]):
    """What peers make a node hold stays under named bounds.

    Per peer: parts wanted, requests, frames not yet written, bytes of unfinished frames. Together:
    what the replica keeps on behalf of peers.
    """

    def __init__(
        self, *, wants: int = 20_000, requests: int = 64, frame_bytes: int = 1_300_000
    ) -> None:
        self._wants = wants
        self._requests = requests
        self._frame_bytes = frame_bytes
        self._turns = 0

    def on_turn(self, node: Observed) -> None:
        """Measure, now and then."""
        self._turns += 1
        if self._turns % TURNS_PER_LOOK:
            return
        replicator, peers = node.replicator, max(1, node.peers_count)
        for what, amount, most in node.amounts:
            self._bound(node, what, amount, most)
        self._bound(node, "wanted parts", replicator.missing_count, self._wants * peers)
        self._bound(node, "bytes of a frame", node.buffered_bytes, self._frame_bytes)
        self._bound(node, "partners", len(replicator._partners), peers)
        for partner in replicator._partners.values():
            self._bound(node, "open requests", partner.conversation.pending_count, self._requests)
            self._bound(node, "unwritten frames", partner.unsent_count, 4 * UNSENT_MAX)

    def _bound(self, node: Observed, what: str, amount: int, most: int) -> None:
        if amount > most:
            self.fail(f"{node.name} holds {amount} {what}, at most {most} are expected")


def neutral_checkers() -> list[Checker[Observed]]:
    """Return new checkers of what holds for every kind of replica."""
    return [Convergence(), Durability[Observed](), SentIsDurable(), AdmittedOnly(), BoundedMemory()]
