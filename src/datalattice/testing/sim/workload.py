"""Workload: what the users of a simulated cluster write.

A workload is a function of a node and dice that changes the node's cursor. The simulation then
publishes, and checks that nothing acknowledged is lost.
"""

from __future__ import annotations

from datalattice.apps.queue import Topics
from datalattice.cells import Index, Keyword, Map, Signed, Value, value_hash
from datalattice.clock import next_stamp
from datalattice.lattice import (
    TIMESTAMP,
    assoc_in,
    get_in,
    local_value,
    map_timestamp,
    root_lattice,
    set_local,
)
from datalattice.testing.dice import Dice
from datalattice.testing.sim.lattice_checkers import LOCAL_MARK
from datalattice.testing.sim.node import SimNode

_DATA = Keyword("data")
INFO_PATH = (Keyword("p2p"), Keyword("nodes"))
_NOTE = Keyword("note")


def standard_workload(node: SimNode, dice: Dice) -> None:
    """Write to the sections of the standard root: queues, content, node info, `:local`."""
    kind = dice.below(12)
    if kind < 6:
        offer_records(node, dice)
    elif kind < 9:
        put_blob(node, dice)
    elif kind < 11:
        announce_info(node)
    else:
        keep_private(node, dice)


def offer_records(node: SimNode, dice: Dice) -> None:
    """Offer records to a queue of this node's own."""
    count = dice.pick((1, 1, 1, 3, 40))  # mostly one, sometimes more than a leaf holds
    topics = Topics.at(node.cursor, node.keys.public_key, node.clock)
    queue = topics.partition("t", dice.below(2))
    queue.offer_many([f"{node.name} {dice.below(10**9)}".ljust(count) for _ in range(count)])


def put_blob(node: SimNode, dice: Dice) -> None:
    """Put a blob under its hash, sometimes one of several cells."""
    blob = dice.bytes(20) * dice.pick((1, 15, 15, 450))  # in one cell, in several, or as a tree
    content = Index.of([(value_hash(blob), blob)])
    node.cursor.path(_DATA).merge(content)


def announce_info(node: SimNode) -> None:
    """Announce the node's address, stamped by its own wall clock."""
    path = (*INFO_PATH, node.keys.public_key)
    before = get_in(node.cursor.get(), path)
    last_ms = map_timestamp(before.value) if isinstance(before, Signed) else 0
    # Later than the last: a clock may have been set back.
    stamp = next_stamp(node.clock.now_ms(), last_ms)
    info = Map.of([(TIMESTAMP, stamp), (Keyword("type"), f"simulated {node.name}")])
    signed = Signed.sign(node.keys, info)
    node.cursor.update(lambda root: assoc_in(root, path, signed, root_lattice()))


def keep_private(node: SimNode, dice: Dice) -> None:
    """Write to `:local`, which never leaves the node."""
    text = LOCAL_MARK.decode() + f" {node.name} {dice.bits()} ".ljust(dice.pick((10, 200)), ".")
    last = local_value(node.cursor.get(), node.keys.public_key, _NOTE)
    stamp = next_stamp(node.clock.now_ms(), map_timestamp(last))
    note = Map.of([(TIMESTAMP, stamp), ("text", text)])

    def put(root: Value) -> Value:
        held = local_value(root, node.keys.public_key)
        fields = held if isinstance(held, Map) else Map()  # the node keeps its evidence there, too
        return set_local(root, node.keys, fields.put(_NOTE, note))

    node.cursor.update(put)
