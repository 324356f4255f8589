"""Spans: columns as Arrow lays them out, written without an object for each entry.

Byte strings are ranges of one text, which is laid together from whole leaves: that copies a leaf
once, where a copy of each byte string would cost more than all else that is done for a record.
Pure and compiled: no Arrow.
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter, write_i32_le, write_i64_le
from mypy_extensions import i32, i64

from datalattice.errors import BadFormat, LimitExceeded

TEXT_BYTES_MAX: Final = 2**31 - 1
"""Bytes of one text: Arrow counts the bytes of a column in 32 bits, and so does Spark."""


class Longs:
    """64-bit integers, little-endian, and a mark for each: 1, or 0 where there is none."""

    def __init__(self) -> None:
        self.numbers: Final = BytesWriter()
        self.marks: Final = BytesWriter()
        self.absent: i64 = 0
        """How many are none."""

    def add(self, number: i64) -> None:
        """Append a number."""
        write_i64_le(self.numbers, number)
        self.marks.append(1)

    def add_none(self) -> None:
        """Append none."""
        write_i64_le(self.numbers, 0)
        self.marks.append(0)
        self.absent += 1


class Spans:
    """Byte strings by where each begins and ends in a text, and a mark for each as in `Longs`.

    Every number is 4 bytes, little-endian, and none is less than the one before: what lies between
    an end and the next begin belongs to no byte string of this column.
    """

    def __init__(self) -> None:
        self.bounds: Final = BytesWriter()
        self.marks: Final = BytesWriter()
        self.absent: i64 = 0
        """How many are none."""
        self.last: i64 = 0
        """Where the last one ends."""

    def add(self, first: i64, end: i64) -> None:
        """Append a byte string; `first` is not less than `last`."""
        write_i32_le(self.bounds, i32(first))
        write_i32_le(self.bounds, i32(end))
        self.marks.append(1)
        self.last = end

    def add_none(self) -> None:
        """Append none."""
        write_i32_le(self.bounds, i32(self.last))
        write_i32_le(self.bounds, i32(self.last))
        self.marks.append(0)
        self.absent += 1


class Sheet:
    """The text that spans are ranges of, as pieces that follow one another."""

    def __init__(self, byte_max: int = TEXT_BYTES_MAX) -> None:
        self._byte_max: i64 = byte_max
        self._pieces: list[bytes] = []
        self._size: i64 = 0
        self._leaf = b""
        self._leaf_at: i64 = -1

    def turn_to(self, leaf: bytes) -> None:
        """Note the leaf that the next ranges come from; it becomes a piece with the first."""
        self._leaf = leaf
        self._leaf_at = -1

    def add_range(self, spans: Spans, data: bytes, first: i64, end: i64) -> None:
        """Append the byte string that stands at `first` .. `end` of a cell.

        Raises: LimitExceeded: the text gets too long. BadFormat: the cell ends before.
        """
        if end > len(data):
            raise BadFormat(f"a cell of {len(data)} bytes ends inside a text or blob")
        if data is self._leaf:
            if self._leaf_at < 0:
                self._leaf_at = self._lay(data)
            if self._leaf_at + first >= spans.last:
                spans.add(self._leaf_at + first, self._leaf_at + end)
                return
        self.add(spans, data[first:end])

    def add(self, spans: Spans, part: bytes) -> None:
        """Append a byte string of its own.

        Raises: LimitExceeded: the text gets too long.
        """
        first = self._lay(part)
        spans.add(first, self._size)

    def check_room(self, size: i64) -> None:
        """Check that so many bytes more have room.

        Raises: LimitExceeded: they have not.
        """
        whole: i64 = self._size + size
        if whole > self._byte_max or whole < 0:
            raise LimitExceeded(
                f"keys and values of {int(self._size) + int(size)} bytes come together in one "
                f"batch of rows, which holds {self._byte_max}; leave the column of the long ones "
                "away"
            )

    def _lay(self, piece: bytes) -> i64:
        """Append a piece; return where it begins."""
        at: i64 = self._size
        self.check_room(len(piece))
        self._pieces.append(piece)
        self._size = at + len(piece)
        return at

    def text(self) -> bytes:
        """Return the text."""
        if len(self._pieces) != 1:
            self._pieces = [b"".join(self._pieces)]
        return self._pieces[0]
