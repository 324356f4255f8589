"""Columns in Arrow's layout, written without an object for each entry.

Byte strings are ranges of one long text, which is joined from leaves. So each leaf is copied once.
Copying each byte string would take longer than all other work on a record. The module is compiled
and does not use Arrow.
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter, write_i32_le, write_i64_le
from mypy_extensions import i32, i64

from datalattice.errors import BadFormat, LimitExceeded

TEXT_BYTES_MAX: Final = 2**31 - 1
"""Longest text: Arrow and Spark use 32-bit offsets."""


class Longs:
    """64-bit integers, little-endian; an absent entry is 0, and its position is in `gaps`."""

    def __init__(self) -> None:
        self.numbers: Final = BytesWriter()
        self.gaps: Final = BytesWriter()
        """Positions of absent entries, 4 bytes each, little-endian."""
        self.count: i64 = 0
        """Number of entries."""
        self.absent: i64 = 0
        """Number of absent entries."""

    def add(self, number: i64) -> None:
        """Append a number."""
        write_i64_le(self.numbers, number)
        self.count += 1

    def add_none(self) -> None:
        """Append an absent entry."""
        write_i64_le(self.numbers, 0)  # Arrow has a number for every entry
        write_i32_le(self.gaps, i32(self.count))
        self.count += 1
        self.absent += 1


class Spans:
    """Byte strings as ranges of a text; the positions of absent entries are in `gaps`.

    Bounds are 4 bytes each, little-endian, in ascending order; an absent entry has none. The bytes
    between the end of one entry and the beginning of the next belong to no entry of this column.
    """

    def __init__(self) -> None:
        self.bounds: Final = BytesWriter()
        self.gaps: Final = BytesWriter()
        """Positions of absent entries, 4 bytes each, little-endian."""
        self.count: i64 = 0
        """Number of entries."""
        self.absent: i64 = 0
        """Number of absent entries."""
        self.last: i64 = 0
        """End of the last entry."""

    def add(self, first: i64, end: i64) -> None:
        """Append the byte string at `first` .. `end`; `first` is at least `last`."""
        write_i64_le(self.bounds, first | (end << 32))  # both bounds in one call
        self.count += 1
        self.last = end

    def add_none(self) -> None:
        """Append an absent entry."""
        write_i32_le(self.gaps, i32(self.count))
        self.count += 1
        self.absent += 1


class Sheet:
    """The text whose ranges are `Spans`, kept as a list of pieces."""

    def __init__(self, byte_max: int = TEXT_BYTES_MAX) -> None:
        self._byte_max: i64 = byte_max
        self._pieces: list[bytes] = []
        self._size: i64 = 0
        self._leaf = b""
        self._leaf_begin: i64 = 0
        self._leaf_end: i64 = 0
        self._leaf_at: i64 = -1

    def turn_to(self, data: bytes, begin: i64, end: i64) -> None:
        """Set the leaf of the next ranges, which lie in `begin` .. `end` of `data`.

        It becomes a piece of the text with its first range.
        """
        # Where the leaf is most of the bytes, they are the piece: a part of them is a copy.
        if end - begin > len(data) // 2:
            begin, end = 0, len(data)
        self._leaf = data
        self._leaf_begin = begin
        self._leaf_end = end
        self._leaf_at = -1

    def add_range(self, spans: Spans, data: bytes, first: i64, end: i64) -> None:
        """Append the byte string at `first` .. `end` of a cell.

        Raises: LimitExceeded: the text is too long. BadFormat: the cell ends before `end`.
        """
        # A cell of another node, or a damaged one, may claim a longer string than it has.
        limit: i64 = len(data)
        in_leaf = data is self._leaf
        if in_leaf:
            limit = self._leaf_end
        if end > limit:
            raise BadFormat("a cell ends inside a text or blob")
        if in_leaf:
            # A leaf without any range is not copied.
            if self._leaf_at < 0:
                whole = self._leaf_end - self._leaf_begin == len(data)
                piece = data if whole else data[self._leaf_begin : self._leaf_end]
                self._leaf_at = self._lay(piece)
            # Bounds must ascend, so an earlier range, such as a key after its value, is copied.
            at: i64 = self._leaf_at - self._leaf_begin
            if at + first >= spans.last:
                spans.add(at + first, at + end)
                return
        self.add(spans, data[first:end])

    def add(self, spans: Spans, part: bytes) -> None:
        """Append a byte string that is not part of the present leaf.

        Raises: LimitExceeded: the text is too long.
        """
        first = self._lay(part)
        spans.add(first, self._size)

    def check_room(self, size: i64) -> None:
        """Check that `size` more bytes fit into the text. Raises: LimitExceeded: they do not."""
        total: i64 = self._size + size
        # The sum of two 63-bit counts is below 0 if it overflows.
        if total > self._byte_max or total < 0:
            raise LimitExceeded(
                f"keys and values of one batch of rows take {int(self._size) + int(size)} bytes, "
                f"more than the {self._byte_max} that it holds; leave out the column of the long "
                "ones"
            )

    def _lay(self, piece: bytes) -> i64:
        """Append a piece; return its position."""
        at: i64 = self._size
        self.check_room(len(piece))
        self._pieces.append(piece)
        self._size = at + len(piece)
        return at

    def text(self) -> bytes:
        """Return the text."""
        # Joined once, when the columns are made.
        if len(self._pieces) != 1:
            self._pieces = [b"".join(self._pieces)]
        return self._pieces[0]
