"""Staged spans: the parts of the log with the cells of large values that are not committed yet.

A commit that reaches such a value announces these parts of the log, instead of following the value
and naming its cells. Only this process knows them, and it may forget them at any time: a value that
is not known is followed cell by cell.

Source: docs/store.md "Segments and packs".
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import Final

from datalattice.cells import STAGED_BYTES
from datalattice.store.log.logstate import Pack
from datalattice.store.log.packing import LogSpan, locate, upper_bits

LARGE_BYTES = STAGED_BYTES  # not Final: tests have smaller values
"""Least length of a value whose spans are known."""

SPAN_CELLS_MIN = 4_096  # not Final, as above
"""Spans with fewer cells are not announced: the index keeps each span until its segment is gone."""

KNOWN_VALUES_MAX: Final = 65_536
"""Most values whose spans are known; of a large file each part of 1, 16, 256, ... MiB is a value
until the next larger one contains it."""


class StagedSpans:
    """The spans of known values, by hash. The caller holds a lock.

    A cell below a known value that is in none of its spans is announced already.
    """

    def __init__(self) -> None:
        self._spans: dict[bytes, list[LogSpan]] = {}
        # Values whose cells wait for their pack, and where these begin and end among its cells.
        self._waiting: list[tuple[bytes, int, int]] = []
        self._trees: list[bytes] = []

    def __len__(self) -> int:
        return len(self._spans)

    def __contains__(self, value: object) -> bool:
        return value in self._spans

    @property
    def is_waiting(self) -> bool:
        """Whether cells of known values wait for their pack."""
        return bool(self._waiting)

    @staticmethod
    def is_large(length: int) -> bool:
        """Return whether the spans of a blob of this length are worth knowing."""
        return length >= LARGE_BYTES

    @staticmethod
    def is_announced(count: int) -> bool:
        """Return whether a span with this many cells may be announced."""
        return count >= SPAN_CELLS_MIN

    def wait(self, value: bytes, first: int, stop: int) -> None:
        """Note that the staged cells `first` to before `stop` of the next pack are a value's."""
        self._spans.setdefault(value, [])
        if first < stop:
            self._waiting.append((value, first, stop))
        if len(self._spans) > KNOWN_VALUES_MAX:
            self.forget(next(iter(self._spans)))  # the one known for longest

    def join(self, value: bytes, parts: Iterable[bytes]) -> None:
        """Note that a known value contains other known values: their spans become its own."""
        below = set(parts) - {value}
        spans = [span for part in below for span in self._spans.pop(part)]
        self._spans[value] = _merged([*spans, *self._spans[value]])
        self._waiting = [
            (value if one in below else one, first, stop) for one, first, stop in self._waiting
        ]

    def forget(self, value: bytes) -> None:
        """Forget a value."""
        self._spans.pop(value, None)
        self._waiting = [one for one in self._waiting if one[0] != value]

    def forget_next(self, value: bytes) -> None:
        """Let `forget_trees` forget a value."""
        self._trees.append(value)

    def forget_trees(self) -> None:
        """Forget the values of `forget_next`, which a commit has announced or followed.

        What others sent is merged at once. Only files have parts that wait for a later commit, and
        each commit looks for the cells of all known values among those that it announces.
        """
        for value in self._trees:
            self.forget(value)
        self._trees = []

    def clear(self) -> None:
        """Forget all values: cells may have moved, or may not be in the log."""
        self._trees.clear()
        self._spans.clear()
        self._waiting.clear()

    def written(self, pack: Pack | None, count: int) -> None:
        """Note that `count` cells that waited were written, all as the staged cells of a pack."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        # Not one pack with just these staged cells: which are those of a value is not known.
        if pack is None or pack.staged != count:
            self.clear()
            return
        locations = pack.locations[len(pack.locations) - count :]
        pack_end = upper_bits(pack.end.segment, pack.end.offset)
        is_alone = count == len(pack.locations)
        for value, first, stop in waiting:
            begin = locations[first] >> 15
            end = (locations[stop - 1] >> 15) + locate(locations[stop - 1])[2]
            # Between packs there are no cells, so the spans of neighbours can be merged.
            if is_alone and first == 0:
                begin = pack_end - pack.length
            if is_alone and stop == count:
                end = pack_end
            self._spans[value] = _merged([*self._spans[value], LogSpan(begin, end, stop - first)])

    def take(self, values: Iterable[bytes]) -> tuple[list[LogSpan], list[bytes]]:
        """Return (spans for a commit to announce, values that it has to follow); forget the values.

        A value has to be followed if it has few cells for the number of its spans, and one of these
        is too short to be announced, even merged with its neighbours.
        """
        taken = {value: self._spans.pop(value) for value in dict.fromkeys(values)}
        merged = _merged([span for spans in taken.values() for span in spans])
        short = [span for span in merged if span.cells < SPAN_CELLS_MIN]
        followed = [
            value
            for value, spans in taken.items()
            if sum(span.cells for span in spans) < SPAN_CELLS_MIN * len(spans)
            and _overlap(spans, short)
        ]
        for value in followed:
            del taken[value]
        return _merged([span for spans in taken.values() for span in spans]), followed

    def forget_at(self, locations: Iterable[int]) -> None:
        """Forget the values with a cell at one of these locations; all, if one is negative."""
        bytes_at = [LogSpan(at >> 15, (at >> 15) + 1, 1) for at in sorted(locations)]
        for value, spans in list(self._spans.items()):
            # A negative location is unknown: the cell may be in any span.
            if bytes_at[0].begin < 0 or _overlap(spans, bytes_at):
                self.forget(value)


def _overlap(spans: list[LogSpan], others: list[LogSpan]) -> bool:
    """Return whether one of `others`, sorted and apart from each other, reaches into a span."""
    for begin, end, _ in spans:
        at = bisect_left(others, (end,)) - 1
        if at >= 0 and others[at].end > begin:
            return True
    return False


def _merged(spans: list[LogSpan]) -> list[LogSpan]:
    found: list[LogSpan] = []
    for span in sorted(spans):
        if found and found[-1].end == span.begin:
            found[-1] = LogSpan(found[-1].begin, span.end, found[-1].cells + span.cells)
        else:
            found.append(span)
    return found
