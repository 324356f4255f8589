"""Counting: counters as a kind of replica of a simulation, in a file on each disk, for members.

Nodes host it beside the lattice or alone: the code that runs a simulation knows neither of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, Final

from datalattice.sync import Replica, WireProtocol
from datalattice.testing.counters import Counters, CountFile, JsonProtocol, text_part
from datalattice.testing.dice import Dice
from datalattice.testing.sim.network import HostName
from datalattice.testing.sim.neutral_checkers import neutral_checkers
from datalattice.testing.sim.node import KindWatch, ReplicaKind, SimHost, SimNode

COUNTERS: Final[HostName] = ("counters", b"toy")

_FOLDER: Final = "counters"

NAMES_MAX: Final = 20  # few, so that counts are overtaken
"""Names of a node's own that its user counts under."""


def counters_of(node: SimNode) -> Counters:
    """Return the counters of a node."""
    replica = node.hosts[COUNTERS].replica
    assert isinstance(replica, Counters)
    return replica


def open_counters(node: SimNode) -> Counters:
    """Open the counters on a node's disk, for the members that its operator admits."""
    file = CountFile(node.disk, _FOLDER) if node.world.disks else None
    return Counters(file, node.admitted)


def count_once(node: SimNode, dice: Dice) -> None:
    """Count under one of the node's own names."""
    name = f"{node.name} {dice.between(0, NAMES_MAX)}"
    counters_of(node).add(name, dice.between(1, 3))


class CountersHost(SimHost):
    """Counters on a node. A part is the count of a name; a greater count replaces it.

    opened_by: makes the counters when the node starts.
    counts:    (name, count) of every part that was held anywhere.
    """

    def __init__(
        self,
        node: SimNode,
        watch: KindWatch,
        opened_by: Callable[[SimNode], Counters],
        counts: dict[bytes, tuple[str, int]],
    ) -> None:
        super().__init__(node, watch)
        self._opened_by = opened_by
        self._counts = counts
        self._read: tuple[bytes | None, dict[str, int]] = (None, {})

    def make(self) -> tuple[Replica, WireProtocol]:
        return self._opened_by(self.node), JsonProtocol()

    @property
    def _replica(self) -> Counters:
        assert isinstance(self.replica, Counters)
        return self.replica

    @property
    def held(self) -> Collection[bytes]:
        names = []
        for name, count in self._replica.counts.items():
            names.append(text_part(json.dumps([name, count])).hash)
            self._counts[names[-1]] = name, count
        return names

    def lacking(self, names: Collection[bytes]) -> Collection[bytes]:
        counts = self._replica.counts
        made = [(name, *self._counts[name]) for name in names]
        # A greater count replaces a smaller one.
        return [name for name, counted, count in made if counts.get(counted, 0) < count]

    def is_durable(self, name: bytes) -> bool:
        part = self._replica.part(name)
        if part is None:
            return False  # a name that no part here has
        counted, count = json.loads(part.data)
        # Read from what a power failure would leave.
        return self._on_disk().get(counted, 0) >= int(count)

    def _on_disk(self) -> dict[str, int]:
        if not self.node.world.disks:
            return self._replica.counts
        data = self.node.disk.durable(f"{_FOLDER}/counts")
        if data is not None and data != self._read[0]:  # parsed once for each state of the disk
            self._read = data, json.loads(data)
        return {} if data is None else self._read[1]

    def told(self, payload: bytes) -> Collection[bytes] | None:
        """Return the parts of an offer, an answer or a round; None where it has nothing of ours."""
        match json.loads(payload):
            case ["offer", _, list(hashes), _]:
                return list(map(bytes.fromhex, hashes))
            case ["round", _, list(ranges)]:
                listed = [one[2] for one in ranges if isinstance(one[2], list)]
                return [bytes.fromhex(hash) for hashes in listed for hash in hashes]
            case ["answer", _, list(texts)]:
                return [text_part(text).hash for text in texts if text is not None] or None
        return None

    def admits(self, peer: str) -> bool:
        return self.node.world.keys.get(peer) in self.node.admitted


def counters_kind(
    checkers: Callable[[], list[Any]] = neutral_checkers,
    opened_by: Callable[[SimNode], Counters] = open_counters,
) -> ReplicaKind:
    """Return counters as a kind of replica."""
    host = partial(CountersHost, opened_by=opened_by, counts={})
    return ReplicaKind(COUNTERS, host, count_once, checkers)
