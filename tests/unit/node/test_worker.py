"""Worker: what its own work does to the time-outs of peers."""

from __future__ import annotations

import pytest

from datalattice.lattice import root_lattice
from datalattice.node.worker import BUSY_MS_MIN, Worker
from datalattice.store import MemoryStore
from datalattice.sync import Effects, LatticeCodec, LatticeReplica, Replicator
from datalattice.sync.replicator import ASK_TIMEOUT_MS


class Clock:
    """A clock that moves when told."""

    def __init__(self) -> None:
        self.now = 0

    def now_ms(self) -> int:
        return self.now

    def advance(self, ms: int) -> None:
        self.now += ms


@pytest.mark.parametrize(
    ("busy_ms", "notes"),
    [(BUSY_MS_MIN - 1, ["timeout"] * 2), (BUSY_MS_MIN, []), (2 * ASK_TIMEOUT_MS, [])],
)
def test_the_time_a_node_was_busy_is_not_held_against_its_peers(
    busy_ms: int, notes: list[str]
) -> None:
    clock = Clock()
    replica = LatticeReplica(MemoryStore(), root_lattice())
    replicator = Replicator(replica, LatticeCodec(replica, clock))
    seen: list[Effects] = []
    worker = Worker(replicator, seen.append, lambda error: pytest.fail(str(error)), clock)
    # It asks two things at once: to be told of changes, and for the root.
    worker._turn([lambda node, now_ms: node.open("p", now_ms, outbound=True)])
    clock.advance(ASK_TIMEOUT_MS - BUSY_MS_MIN + 1)
    worker._turn([lambda _node, _now_ms: clock.advance(busy_ms)])
    assert [note.kind for effects in seen for note in effects.notes] == notes
    clock.advance(BUSY_MS_MIN)
    worker._turn([])
    assert [note.kind for effects in seen for note in effects.notes] == ["timeout"] * 2
