"""Dice: every random choice of a simulation or kit, from one seed.

Each part of a simulation has its own dice (`fork`), so that one more choice in one part does not
change the others. The same seed gives the same choices on every machine and interpreter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol, TypeVar

from datalattice.crypto import sha3_256

T = TypeVar("T")

_MASK: Final = 2**64 - 1


class Dice:
    """Reproducible chances (SplitMix64). It is an `Entropy`, for simulations alone."""

    def __init__(self, seed: int, name: str = "") -> None:
        self._seed = seed
        self._name = name
        self._state = int.from_bytes(sha3_256(f"datalattice-dice:{seed}:{name}".encode())[:8])

    def fork(self, name: str) -> Dice:
        """Return dice of the same seed for another part."""
        return Dice(self._seed, f"{self._name}/{name}")

    def bits(self) -> int:
        self._state = state = (self._state + 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ state >> 30) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ state >> 27) * 0x94D049BB133111EB) & _MASK
        return state ^ state >> 31

    def below(self, count: int) -> int:
        """Return a number from 0 to `count` - 1."""
        return self.bits() % count

    def between(self, low: int, high: int) -> int:
        """Return a number from `low` to `high`, both included."""
        return low + self.bits() % (high - low + 1)

    def chance(self, probability: float) -> bool:
        """Return True with this probability."""
        return probability > 0 and self.bits() < probability * 2**64

    def pick(self, choices: Sequence[T]) -> T:
        return choices[self.bits() % len(choices)]

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """Return the items in another order."""
        rest = list(items)
        return [rest.pop(self.below(len(rest))) for _ in items]

    def bytes(self, count: int) -> bytes:
        words = (count + 7) // 8
        return b"".join(self.bits().to_bytes(8, "big") for _ in range(words))[:count]


class Chance(Protocol):
    """The part of `random.Random` that generators of values use."""

    def randrange(self, start: int, stop: int | None = None, /) -> int:
        """Return a number below `start`, or from `start` and below `stop`."""
        ...

    def choice(self, seq: Sequence[T], /) -> T:
        """Return one of `seq`."""
        ...
