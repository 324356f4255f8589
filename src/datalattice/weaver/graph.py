"""Graph: a history of operations as a drawing of Unicode lines, the oldest on top.

    ⊙─╮    (put "tea" "3")
    │ ●    (put "tea" "4")
    ● │    (put "tea" "5")
    ○⟨╯    (put "tea" "6")

Every edge runs in a lane: a column that it has to itself from the row of the parent to that of the
child. The last child of a node goes on in the node's own column, every other child gets a lane that
leaves the node sideways, and a node stands in the leftmost lane that reaches it.

Source: docs/weaver.md "History as a graph"
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from datalattice.clock import Hlc

NORMAL, MERGE, ROOT = "●", "○", "⊙"

ARROW: Final = "⟨"
"""Beside a merge that lines reach from the right; none comes from the left."""

EMPTY_TEXT: Final = "(no history found)"

UP, DOWN, LEFT, RIGHT = 1, 2, 4, 8

LINES: Final = " ││││╯╮┤─╰╭├─┴┬┼"
"""The character of a cell by the directions in which lines leave it: UP 1, DOWN 2, LEFT 4, RIGHT 8.

Rule: crossings are resolved a cell at a time: vertical and horizontal give a cross, a corner and a
line give a tee.
"""

# Bright ones after the plain ones; black and white are left out.
COLOURS: Final = (31, 32, 33, 34, 35, 36, 91, 92, 93, 94, 95, 96)
"""Twelve terminal colours of authors."""


@dataclass(frozen=True, slots=True)
class GraphNode:
    """One operation of a drawn history.

    deps:   hashes of the operations that it depends on; those outside the drawing are not drawn.
    label:  text on one line; detail: the same over several lines, for when it does not fit.
    """

    label: str
    author: bytes
    stamp: Hlc
    deps: tuple[bytes, ...] = ()
    detail: Sequence[str] = ()


def draw_graph(
    nodes: Mapping[bytes, GraphNode], *, width: int | None = None, colour: bool = False
) -> Iterator[str]:
    """Yield the lines of the drawing.

    width:  columns of the terminal; None: no label is too long.
    colour: mark each operation with the colour of its author.
    """
    if not nodes:  # a text, not an empty output
        yield EMPTY_TEXT
        return
    layout = _GraphLayout(nodes)
    margin = 2 * layout.width + 1
    for row, hash in enumerate(layout.order):
        node = nodes[hash]
        text = layout.text(row)
        if colour:
            at = 2 * layout.columns[hash]
            text = f"{text[:at]}\x1b[{author_colour(node.author)}m{text[at]}\x1b[0m{text[at + 1 :]}"
        fits = width is None or margin + len(node.label) <= width or not node.detail
        first, *others = [node.label] if fits else node.detail
        yield f"{text} {first}".rstrip()
        below = layout.continued(row)
        yield from (f"{below} {line}".rstrip() for line in others)


def author_colour(author: bytes) -> int:
    """Return the terminal colour of an author, chosen by the XOR of its first four bytes."""
    mixed = 0
    for byte in author[:4]:  # the same colour for an author in every drawing
        mixed ^= byte
    return COLOURS[mixed % len(COLOURS)]


def row_order(nodes: Mapping[bytes, GraphNode]) -> list[bytes]:
    """Return the hashes with dependencies first, the oldest first where that leaves a choice."""
    children: dict[bytes, list[bytes]] = {hash: [] for hash in nodes}
    missing: dict[bytes, int] = {}
    for hash, node in nodes.items():
        parents = _parents(nodes, node)
        missing[hash] = len(parents)
        for parent in parents:
            children[parent].append(hash)
    # The priority is (wall, counter, hash): equal clocks do not leave the order open.
    ready = [(nodes[hash].stamp, hash) for hash, count in missing.items() if count == 0]
    heapq.heapify(ready)
    order = []
    while ready:
        _, hash = heapq.heappop(ready)
        order.append(hash)
        for child in children[hash]:
            missing[child] -= 1
            if missing[child] == 0:
                heapq.heappush(ready, (nodes[child].stamp, child))
    return order


def _parents(nodes: Mapping[bytes, GraphNode], node: GraphNode) -> list[bytes]:
    # "those outside the drawing are not drawn"
    return [dep for dep in dict.fromkeys(node.deps) if dep in nodes]


@dataclass(slots=True)
class _Lanes:
    """Columns, each with the row until which it is in use."""

    busy_until: list[int] = field(default_factory=list)

    def take(self, row: int, until: int) -> int:
        """Take the leftmost column that is free at `row`, until row `until`; return it."""
        for column, busy in enumerate(self.busy_until):
            # "reuse needs one row gap": two lines never look like one.
            if busy + 1 < row:
                self.busy_until[column] = until
                return column
        self.busy_until.append(until)
        return len(self.busy_until) - 1


class _GraphLayout:
    """Rows, columns and the lines between them."""

    def __init__(self, nodes: Mapping[bytes, GraphNode]) -> None:
        self._nodes = nodes
        self.order: Final = row_order(nodes)
        self._rows = {hash: row for row, hash in enumerate(self.order)}
        self.columns: Final[dict[bytes, int]] = {}
        self._lines: dict[tuple[int, int], int] = {}
        self._parents = {hash: _parents(nodes, nodes[hash]) for hash in self.order}
        children: dict[bytes, list[bytes]] = {hash: [] for hash in self.order}
        for hash in self.order:
            for parent in self._parents[hash]:
                children[parent].append(hash)
        lanes = _Lanes()
        self._reserved: dict[tuple[bytes, bytes], int] = {}
        for hash in self.order:
            self._place(hash, children[hash], lanes)
        self.width: Final = len(lanes.busy_until)

    def _place(self, hash: bytes, children: list[bytes], lanes: _Lanes) -> None:
        """Choose the column of one operation, draw the lines that reach it, reserve lanes below."""
        row, reserved = self._rows[hash], self._reserved
        last = self._rows[children[-1]] if children else row
        parents = self._parents[hash]
        if parents:
            # "one parent: the parent's column unless another line occupies it; merge: the smallest"
            column = min(reserved[parent, hash] for parent in parents)
            lanes.busy_until[column] = last  # its own until its last child
        else:
            column = lanes.take(row, last)
        self.columns[hash] = column
        for parent in parents:
            self._draw(parent, hash, reserved[parent, hash])
        # "all but the last get columns reserved from the parent's row to the child's"
        for child in children[:-1]:
            reserved[hash, child] = lanes.take(row, self._rows[child])
        if children:
            reserved[hash, children[-1]] = column

    def _draw(self, parent: bytes, child: bytes, lane: int) -> None:
        top, bottom = self._rows[parent], self._rows[child]
        self._sideways(top, self.columns[parent], lane)
        for row in range(top, bottom):
            self._add(row, lane, DOWN)
            self._add(row + 1, lane, UP)
        self._sideways(bottom, self.columns[child], lane)

    def _sideways(self, row: int, one: int, other: int) -> None:
        for column in range(min(one, other), max(one, other)):
            self._add(row, column, RIGHT)
            self._add(row, column + 1, LEFT)

    def _add(self, row: int, column: int, direction: int) -> None:
        self._lines[row, column] = self._lines.get((row, column), 0) | direction

    def text(self, row: int) -> str:
        """Return the cells of a row, two characters a column."""
        # "Markers always win": no line passes through one, since every lane has its own column.
        hash = self.order[row]
        own = self.columns[hash]
        marker = self._marker(hash)
        shown = []
        for column in range(self.width):
            lines = self._lines.get((row, column), 0)
            shown.append(marker if column == own else LINES[lines])
            shown.append("─" if lines & RIGHT else " ")
        # A line reaches the merge from the right.
        if any(self._reserved[parent, hash] > own for parent in self._parents[hash]):
            shown[2 * own + 1] = ARROW
        return "".join(shown)

    def continued(self, row: int) -> str:
        """Return the cells below a row, for further lines of its label."""
        return "".join(
            "│ " if self._lines.get((row, column), 0) & DOWN else "  "
            for column in range(self.width)
        )

    def _marker(self, hash: bytes) -> str:
        if not self._parents[hash]:
            return ROOT
        # By what it depends on, drawn or not.
        return MERGE if len(set(self._nodes[hash].deps)) > 1 else NORMAL
