"""Sketch cells: the arithmetic of a keyed rateless sketch, item by item.

A cell is the XOR of the ids that map to it and the XOR of their checks. An id is 64 bits, held here
as a signed integer, so that the compiled kernel keeps it in a machine word.

    mix(z)    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9, z = (z ^ z >> 27) * 0x94d049bb133111eb,
              z ^ z >> 31, all modulo 2**64
    check     the low 32 bits of mix(id ^ the salt of checks)
    places    p = mix(id ^ the salt of places) | 1, place 0; the next one after p = p * MULTIPLIER:
              place += ceil((place + 1.5) * (2**32 / sqrt(double(p) + 1) - 1))

Source: Yang, Gilad and Alizadeh, "Practical Rateless Set Reconciliation" (SIGCOMM 2024).
"""

from __future__ import annotations

from array import array
from math import sqrt
from typing import Final

from mypy_extensions import i64

PLACE_MAX: Final = 1 << 40
"""Places end here, far behind the last cell of any sketch, so that no place overflows."""

_MIX_1: Final = 0xBF58476D1CE4E5B9 - 2**64
_MIX_2: Final = 0x94D049BB133111EB - 2**64
_MULTIPLIER: Final = 0xDA942042E4DD58B5 - 2**64
_IS_COMPILED = not __file__.endswith(".py")


class SketchAborted(Exception):
    """The cells are not the difference of two sets, or decode badly: the attempt has failed."""


def _signed(value: int) -> int:
    """Return a product modulo 2**64, as a signed integer."""
    return ((value + (1 << 63)) & ((1 << 64) - 1)) - (1 << 63)


def mix(value: i64) -> i64:
    """Return the finaliser of splitmix64 of a signed 64-bit integer, as one."""
    z: i64 = (value ^ ((value >> 30) & 0x3FFFFFFFF)) * _MIX_1
    if not _IS_COMPILED:  # a product of machine words is reduced already
        z = _signed(z)
    z = (z ^ ((z >> 27) & 0x1FFFFFFFFF)) * _MIX_2
    if not _IS_COMPILED:
        z = _signed(z)
    return z ^ ((z >> 31) & 0x1FFFFFFFF)


def check_of(id: i64, salt: i64) -> i64:
    """Return the check of an id, 0 to 2**32 - 1."""
    return mix(id ^ salt) & 0xFFFFFFFF


class PlaceWalk:
    """The cells of one id, in ascending order: `place` is the present one."""

    __slots__ = ("place", "state")

    def __init__(self) -> None:
        self.state: i64 = 0
        self.place: i64 = 0

    def start(self, id: i64, salt: i64) -> None:
        """Go to the first cell of an id."""
        self.state = mix(id ^ salt) | 1
        self.place = 0

    def advance(self) -> None:
        """Go to the next cell."""
        p: i64 = self.state * _MULTIPLIER
        if not _IS_COMPILED:
            p = _signed(p)
        self.state = p
        # The high half is exact as a double, so the sum is rounded once: it is double(p).
        unsigned = float((p >> 32) & 0xFFFFFFFF) * 4294967296.0 + float(p & 0xFFFFFFFF)
        step = (float(self.place) + 1.5) * (4294967296.0 / sqrt(unsigned + 1.0) - 1.0)
        # "Clamped before the integer cast."
        if step >= float(PLACE_MAX - self.place):
            self.place = PLACE_MAX
            return
        whole: i64 = i64(step)
        if float(whole) < step:
            whole += 1
        self.place += whole


def spread(
    ids: array[int],
    states: array[int],
    places: array[int],
    salts: tuple[int, int],
    cells: array[int],
    checks: array[int],
) -> None:
    """Add ids to the cells from their places on, and move them behind the last cell.

    states, places: where the walk of each id is. salts: of checks, of places.
    """
    walk = PlaceWalk()
    end: i64 = len(cells)
    for number in range(len(ids)):
        if places[number] >= end:  # nothing of it is in these cells
            continue
        id: i64 = ids[number]
        check = check_of(id, salts[0])
        walk.state, walk.place = states[number], places[number]
        while walk.place < end:
            cells[walk.place] ^= id
            checks[walk.place] ^= check
            walk.advance()
        states[number], places[number] = walk.state, walk.place


class SketchDecoder:
    """Recovers the ids in which two sets differ from the XOR of their cells, as these arrive.

    Each recovered id is removed from its cells one by one. The steps are at most `steps_max` times
    the number of cells, so a peer cannot choose how long it takes.
    """

    def __init__(self, salts: tuple[int, int], steps_max: int) -> None:
        """salts: of checks, of places."""
        self._check_salt: i64 = salts[0]
        self._place_salt: i64 = salts[1]
        self._steps_max: i64 = steps_max
        self._steps: i64 = 0
        self._cells: list[int] = []
        self._checks: list[int] = []
        self._states: dict[int, int] = {}
        self._places: dict[int, int] = {}

    @property
    def ids(self) -> list[int]:
        """The ids recovered so far."""
        return list(self._states)

    @property
    def is_complete(self) -> bool:
        """Whether all cells are zero."""
        return not any(self._cells) and not any(self._checks)

    def add(self, cells: array[int], checks: array[int]) -> None:
        """Take in the next cells, each the XOR of both sides', and recover what they allow.

        Raises: SketchAborted: an id comes twice, there are more ids than cells, or it takes too
                many steps.
        """
        begin = len(self._cells)
        self._cells.extend(cells)
        self._checks.extend(checks)
        walk = PlaceWalk()
        for id, state in list(self._states.items()):  # ids known already are in the new cells, too
            walk.state, walk.place = state, self._places[id]
            self._remove(id, walk, None)
        queue = list(range(begin, len(self._cells)))  # only new cells can have become pure
        while queue:
            self._look_at(queue.pop(), walk, queue)

    def _look_at(self, place: i64, walk: PlaceWalk, queue: list[int]) -> None:
        id: i64 = self._cells[place]
        if id == 0 or self._checks[place] != check_of(id, self._check_salt):
            return  # not pure: several ids, or none
        # "A pure cell counts only if its id maps to that cell."
        walk.start(id, self._place_salt)
        while walk.place < place:
            walk.advance()
            self._steps += 1
        self._check_steps()
        if walk.place != place:
            return  # a cell that looks pure by chance
        if id in self._states:
            raise SketchAborted("an id was recovered twice")  # impossible with cells of two sets
        if len(self._states) >= len(self._cells):
            raise SketchAborted("more ids than cells")
        walk.start(id, self._place_salt)
        self._remove(id, walk, queue)

    def _remove(self, id: i64, walk: PlaceWalk, queue: list[int] | None) -> None:
        check = check_of(id, self._check_salt)
        end: i64 = len(self._cells)
        while walk.place < end:
            place = walk.place
            self._cells[place] ^= id
            self._checks[place] ^= check
            if queue is not None:
                queue.append(place)  # a cell that changed may be pure now
            walk.advance()
            self._steps += 1
        self._check_steps()
        self._states[id], self._places[id] = walk.state, walk.place

    def _check_steps(self) -> None:
        # After each walk: one has at most as many steps as there are cells.
        if self._steps > self._steps_max * len(self._cells):
            raise SketchAborted(f"more than {self._steps_max} steps a cell")
