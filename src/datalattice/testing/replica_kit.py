"""Replica kit: the rules for every kind of replica with its wire protocol.

`check_replica` drives two of them against each other through replicators: writes on both sides,
frames lost and repeated, connections torn. The next comparison must make them equal and leave
nothing open. A kind provides a `KitReplica` only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from datalattice.sync import (
    ROOT_SYNC_INTERVAL_MS,
    Pace,
    Peer,
    Pull,
    Replica,
    Replicator,
    Why,
    WireProtocol,
)
from datalattice.testing.dice import Dice

STEPS: Final = 60  # enough for several connections, and still quick
"""Steps of one check."""

_WRITES: Final = 0.4
"""Chance that a step is a write."""


@dataclass(frozen=True, slots=True)
class KitReplica:
    """One replica of a kind, what makes its conversations, and how its user writes a number."""

    replica: Replica
    protocol: WireProtocol
    write: Callable[[int], object]


@dataclass(slots=True)
class _End:
    kind: KitReplica
    replicator: Replicator
    inbox: deque[bytes]


class ReplicaPair:
    """Two replicas of a kind, `0` and `1`, and the frames between them."""

    def __init__(self, make: Callable[[], KitReplica], dice: Dice) -> None:
        self._dice = dice
        self.now_ms = 0
        self.finished: list[tuple[object, str | None]] = []
        self._connection = ""
        self._number = 0
        self.ends: list[_End] = []
        for _ in range(2):
            kind = make()
            self.ends.append(_End(kind, Replicator(kind.replica, kind.protocol, Pace()), deque()))
        self.connect()

    def connect(self) -> None:
        """Tear the connection and make another one; either side may dial."""
        for end in self.ends:
            if self._connection:
                end.replicator.closed(self._connection, self.now_ms)
            end.inbox.clear()  # what was on the way is lost
        self._number += 1
        self._connection = f"link {self._number}"
        dialler = self._dice.below(2)
        for side in (1 - dialler, dialler):  # the dialler last: it begins to talk
            opened = self.ends[side].replicator.open
            opened(self._connection, self.now_ms, outbound=side == dialler)

    def write(self, side: int, number: int) -> None:
        """Have a user write, and publish."""
        self.ends[side].kind.write(number)
        self.ends[side].replicator.publish(self.now_ms)

    def carry(self, *, loss: float = 0.0, repeat: float = 0.0) -> None:
        """Deliver frames until neither side sends any."""
        moved = True
        while moved:
            moved = False
            for side, end in enumerate(self.ends):
                effects = end.replicator.take_effects()
                self.finished += effects.finished
                # A kind must never close on an honest peer.
                assert not effects.closes, effects.closes
                for connection, payload in effects.sends:
                    moved = True
                    end.replicator.written(connection, 1, self.now_ms)
                    if connection == self._connection and not self._dice.chance(loss):
                        times = 1 + self._dice.chance(repeat)  # a frame twice is legal
                        self.ends[1 - side].inbox.extend([payload] * times)
                while end.inbox:
                    moved = True
                    end.replicator.receive(self._connection, end.inbox.popleft(), self.now_ms)

    def pass_time(self, ms: int, *, loss: float = 0.0) -> None:
        """Let time pass, and do what is due."""
        end_ms = self.now_ms + ms
        while self.now_ms < end_ms:
            times = (end.replicator.deadline_ms for end in self.ends)
            due_ms = min((one for one in times if one is not None), default=end_ms)
            self.now_ms = min(end_ms, max(self.now_ms + 1, due_ms))  # time goes on, whatever is due
            for end in self.ends:
                end.replicator.tick(self.now_ms)
            self.carry(loss=loss)

    @property
    def keys(self) -> list[bytes]:
        return [end.kind.replica.probe.key for end in self.ends]


def check_replica(make: Callable[[], KitReplica], seed: int = 0) -> None:
    """Check the rules for replicas; the seed decides what happens between two of them."""
    _check_alone(make)
    dice = Dice(seed, "replica kit")
    pair = ReplicaPair(make, dice)
    for step in range(STEPS):
        if dice.chance(_WRITES):
            pair.write(dice.below(2), step)
        elif dice.chance(0.1):
            pair.connect()  # torn in the middle of anything
        pair.carry(loss=0.3, repeat=0.1)
        pair.pass_time(dice.pick((0, 10, 60, 700)), loss=0.3)
    pair.pass_time(3 * ROOT_SYNC_INTERVAL_MS)  # longer than the interval of comparisons
    assert pair.keys[0] == pair.keys[1], "a calm connection has not made them equal"
    for end in pair.ends:
        assert end.replicator.missing_count == 0, "something is still wanted"
        (standing,) = end.replicator.standings
        assert standing.equal, "two equal replicas do not count as equal"
        assert standing.pending_count == 0, "something is still asked"
    _check_pull(pair)


def _check_alone(make: Callable[[], KitReplica]) -> None:
    kind = make()
    before = kind.replica.probe
    assert not kind.replica.publish(), "what nobody wrote is published"
    kind.write(1)
    assert kind.replica.publish(), "a write is not published"
    after = kind.replica.probe
    assert after.key != before.key
    assert kind.replica.news(Peer("p"), [after]) is None, "it tells what is known"
    news = kind.replica.news(Peer("p"), [before])
    assert news is not None, "it does not tell what is new"
    assert news.offers
    for why in Why:
        kind.replica.compare(Peer("p"), why)  # which it may decline
    kind.replica.forget(Peer("p"))


def _check_pull(pair: ReplicaPair) -> None:
    """Check that a pull ends once all of the peer's state is here."""
    pair.ends[0].kind.write(10_000)
    pair.ends[0].kind.replica.publish()  # of which its replicator tells nobody
    (standing,) = pair.ends[1].replicator.standings
    pair.ends[1].replicator.pull(standing.id, Pull("pulled"), pair.now_ms)
    pair.carry()
    assert pair.finished[-1:] == [("pulled", None)], "a pull has not ended well"
    assert pair.keys[0] == pair.keys[1], "a pull ended before all was here"
