"""Faults: what goes wrong in a simulation, how much and how often."""

from __future__ import annotations

from dataclasses import dataclass

from datalattice.testing.dice import Dice


@dataclass(frozen=True, slots=True)
class Faults:
    """What goes wrong. By default nothing; frames take `delay_min_ms` to `delay_ms`.

    loss, repeat, reorder: chances that a frame is lost, arrives twice, overtakes others.
    split:       chance that a frame arrives in two pieces, cut at any byte.
    resets:      connections that are torn, often inside a frame.
    partitions:  times that frames between some nodes stall or are lost, in one or both directions.
    crashes:     processes that end, half of them with a power failure; two in three end in the
                 middle of a write or sync.
    disk_errors: writes and syncs that fail: the disk is full or broken.
    pauses:      processes that stop for a while.
    jumps:       wall clocks that are set, by up to an hour; `skew_ms` is their first error.
    restores:    times that a node's disk is replaced by an old copy.
    exclusions:  times that the others exclude a node for a while, each at its own time; one node is
                 not admitted at first. Only replicas for members take notice.
    """

    loss: float = 0.0
    repeat: float = 0.0
    reorder: float = 0.0
    split: float = 0.0
    delay_min_ms: int = 1
    delay_ms: int = 5
    resets: int = 0
    partitions: int = 0
    crashes: int = 0
    disk_errors: int = 0
    pauses: int = 0
    jumps: int = 0
    skew_ms: int = 0
    restores: int = 0
    exclusions: int = 0

    @classmethod
    def drawn(cls, dice: Dice) -> Faults:
        """Return random faults, each kind with a chance to be absent.

        All kinds at once would hide much: a node that is always down meets no other fault.
        """

        def some(value: float) -> float:
            return value if dice.chance(0.6) else 0.0  # each kind may be absent

        def count(most: int) -> int:
            return dice.between(1, most) if dice.chance(0.6) else 0

        return cls(
            loss=some(dice.pick((0.02, 0.1, 0.25))),
            repeat=some(dice.pick((0.02, 0.15))),
            reorder=some(dice.pick((0.05, 0.3))),
            split=some(dice.pick((0.1, 0.4))),
            delay_ms=dice.pick((1, 5, 40, 150)),
            resets=count(8),
            partitions=count(5),
            crashes=count(6),
            disk_errors=count(4),
            pauses=count(4),
            jumps=count(4),
            skew_ms=dice.pick((0, 100, 3_600_000)),
            restores=dice.pick((0, 0, 0, 1, 2)),
        )


NO_FAULTS = Faults()
"""Nothing goes wrong; frames take up to 5 ms."""
