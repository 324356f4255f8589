"""Clusters step by step: what a partition, a newcomer or a stranger does, and what it costs."""

from __future__ import annotations

import pytest

from datalattice.apps.queue import Topics
from datalattice.cells import (
    Index,
    Keyword,
    Map,
    Signed,
    Value,
    Vector,
    encode,
    encode_message,
    missing,
    value_hash,
)
from datalattice.crypto import KeyPair
from datalattice.errors import MissingData
from datalattice.lattice import get_in, root_lattice, set_local
from datalattice.testing.sim import Faults, SimNode, Simulation, line

QUICK = Faults(delay_ms=1)


def cluster(size: int, links: list[tuple[int, int]] | None = None) -> Simulation:
    """Return nodes in memory, each frame a millisecond under way."""
    made = Simulation(1, size, QUICK, links=line(size) if links is None else links, disks=False)
    made.begin()
    return made


def offer(node: SimNode, count: int, width: int = 20) -> None:
    topics = Topics.at(node.cursor, node.keys.public_key, node.clock)
    queue = topics.partition("t", 0)
    size = queue.size()
    queue.offer_many([f"{node.name}-{size + n}".ljust(width, ".") for n in range(count)])
    assert node.publish()


def records(at: SimNode, of: SimNode) -> int:
    return Topics.at(at.cursor, of.keys.public_key).partition("t", 0).size()


def assert_settled(simulation: Simulation) -> None:
    """All equal, everything announced is complete, and nothing waits any more."""
    assert simulation.is_equal
    for node in simulation.nodes:
        assert missing(node.data.announced) == []
        assert node.store.root_hash() == value_hash(node.cursor.get())
        assert node.replicator.missing_count == 0
        assert node.data.intake.count == 0


def test_a_partition_heals() -> None:
    simulation = cluster(4)
    simulation.run_for(1_000)
    simulation.cut(1, 2)
    for node in simulation.nodes:
        offer(node, 50)
        simulation.run_for(30)
    simulation.run_for(1_000)
    assert len({node.state for node in simulation.nodes}) == 2
    simulation.connect(1, 2)
    simulation.run_for(1_000)
    assert_settled(simulation)


def test_a_change_costs_its_path_and_not_the_value() -> None:
    simulation = cluster(2)
    offer(simulation.nodes[0], 20_000)
    simulation.run_for(2_000)
    assert_settled(simulation)
    before = simulation.network.sent_bytes
    offer(simulation.nodes[0], 1)
    simulation.run_for(2_000)
    assert_settled(simulation)
    assert simulation.network.sent_bytes - before < 12_000


def test_a_newcomer_fetches_everything_in_batches() -> None:
    simulation = cluster(2, [])
    offer(simulation.nodes[0], 30_000, width=60)
    simulation.connect(0, 1)
    simulation.run_for(3_000)
    assert_settled(simulation)
    assert records(simulation.nodes[1], simulation.nodes[0]) == 30_000


def test_a_node_that_comes_back_has_everything_at_once() -> None:
    simulation = Simulation(1, 3, QUICK, links=line(3))
    simulation.begin()
    offer(simulation.nodes[0], 500)
    simulation.run_for(1_000)
    assert_settled(simulation)
    state = simulation.nodes[2].state
    simulation.nodes[2].end(power_failure=True)
    offer(simulation.nodes[0], 1)
    simulation.run_for(1_000)
    simulation.nodes[2].start()
    assert simulation.nodes[2].state == state
    simulation.run_for(1_000)
    assert_settled(simulation)


# --- strangers ------------------------------------------------------------------------------------


def feed(node: SimNode, path: tuple[Value, ...], value: Value) -> None:
    """Have a stranger send a value."""
    message = Vector.of([Keyword("LV"), Vector.of(path), value])
    node.replicator.open("stranger", node.steady_ms(), outbound=False)
    node.replicator.receive("stranger", encode_message(message), node.steady_ms())
    node.replicator.closed("stranger", node.steady_ms())
    node.replicator.take_effects()


def test_what_is_local_is_not_accepted() -> None:
    (receiver,) = cluster(1).nodes
    stranger = KeyPair(b"x" * 32)
    slot = Map.of([(Keyword("note"), Map.of([(Keyword("timestamp"), 1)]))])
    root = set_local(root_lattice().zero(), stranger, slot)
    before = value_hash(receiver.data.root)
    feed(receiver, (), root)
    feed(receiver, (Keyword("local"),), get_in(root, [Keyword("local")]))
    assert value_hash(receiver.data.root) == before


def test_a_path_does_not_go_around_signatures_and_owners() -> None:
    (node,) = cluster(1).nodes
    victim = node.keys
    offer(node, 1)
    before = node.state
    forger = KeyPair(b"f" * 32)
    topics = Map.of([("t", Vector.of([]))])
    queue = Keyword("queue")
    feed(node, (queue, victim.public_key), Signed.sign(forger, topics))
    feed(node, (queue,), Map.of([(victim.public_key, Signed.sign(forger, topics))]))
    feed(node, (queue, victim.public_key, Keyword("value")), topics)
    assert node.state == before


def test_a_value_that_never_completes_is_dropped_without_harm() -> None:
    (simulated,) = cluster(1).nodes
    before = simulated.state
    data = Vector.of(["x" * 200 + str(n) for n in range(300)])
    root = Index.of([(Keyword("data"), Index.of([(value_hash(data), data)]))])
    message = Vector.of([Keyword("LV"), Vector.of([]), root])
    node = simulated.replicator
    node.open("mute", 0, outbound=False)
    node.receive("mute", encode(message), 0)
    assert node.missing_count > 0
    while (deadline := node.deadline_ms) is not None and node.missing_count:
        node.tick(deadline)
    assert simulated.state == before
    assert simulated.data.intake.count == 0
    assert "dropped" in {note.kind for note in node.take_effects().notes}
    with pytest.raises(MissingData):
        simulated.store.load(value_hash(data))
