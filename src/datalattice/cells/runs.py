"""Find the leaves of a Vector in the encodings of its tree, without building it.

Each cell was validated alone on its way into the store. This module checks cells against each
other: a node must be as large as its parent says.

Source: CAD003; docs/cells.md "Vector and List".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from mypy_extensions import i64, mypyc_attr

from datalattice.cells.cell import TAG_REF
from datalattice.cells.scan import block_size, read_vlq, skip_kid
from datalattice.cells.vectors import TAG_VECTOR
from datalattice.errors import BadFormat, MissingData
from datalattice.limits import FAN_OUT, HASH_BYTES

FetchCell = Callable[[bytes], bytes]
"""Returns the encoding of a cell by its hash; raises MissingData."""

REF_BYTES: Final = 1 + HASH_BYTES
"""Length of a reference to a cell, tag included."""


@mypyc_attr(acyclic=True)
class CellRange:
    """The encoding of a cell: the bytes `at` .. `end` of `data`, which may have other cells too."""

    __slots__ = ("at", "data", "end")

    def __init__(self, data: bytes, at: i64, end: i64) -> None:
        self.data: bytes = data
        self.at: i64 = at
        self.end: i64 = end

    def encoding(self) -> bytes:
        """Return the encoding alone."""
        data: bytes = self.data
        return data[self.at : self.end] if self.end - self.at < len(data) else data


FetchCells = Callable[[list[bytes], int], Sequence[CellRange]]
"""Returns the encodings of cells in the order of their hashes; raises MissingData.

The number is how many bytes the cells below them have, about, if these are requested next; else 0.
"""


def whole_cells(encodings: Iterable[bytes | None]) -> list[CellRange | None]:
    """Return encodings as ranges, and None as None."""
    return [None if one is None else CellRange(one, 0, len(one)) for one in encodings]


def none_missing(hashes: list[bytes], found: Sequence[CellRange | None]) -> list[CellRange]:
    """Return the cells with these hashes. Raises: MissingData: one of them is None."""
    cells = [cell for cell in found if cell is not None]
    if len(cells) < len(found):
        raise MissingData([hashes[found.index(None)]])
    return cells


@mypyc_attr(acyclic=True)
class ElementRun:
    """`count` neighbouring elements of a vector inside `data`, the first at `at`.

    All of them end at `end` or before.
    """

    __slots__ = ("at", "count", "data", "end")

    def __init__(self, data: bytes, at: i64, end: i64, count: i64) -> None:
        self.data: bytes = data
        self.at: i64 = at
        self.end: i64 = end
        self.count: i64 = count


@mypyc_attr(acyclic=True)
class _Node:
    """A node to visit: where its encoding or the reference to it is, and the range to read."""

    __slots__ = ("at", "count", "data", "end", "first", "stop")

    def __init__(self, data: bytes, at: i64, end: i64, count: i64, first: i64, stop: i64) -> None:
        self.data: bytes = data
        self.at: i64 = at
        self.end: i64 = end
        self.count: i64 = count
        self.first: i64 = first
        self.stop: i64 = stop


def element_runs(
    vector: bytes, first: int, stop: int, fetch: FetchCell, many: FetchCells | None = None
) -> Iterator[ElementRun]:
    """Yield the elements `first` .. `stop - 1` of a vector in order, as runs within its leaves.

    many: fetches up to 256 leaves together, and the nodes above them.
    Cost:   one fetch for each branch on the way; nothing outside the range is fetched.
    Memory: with `many` 256 leaves and what it reads with them.
    Raises: BadFormat: a node is not the expected vector. MissingData.
    """
    count = vector_count(vector, 0)
    todo = [_Node(vector, 0, len(vector), count, first, min(stop, count))]  # the next one last
    below: i64 = 0  # bytes of the leaves that were fetched last below several nodes
    while todo:
        node = todo.pop()
        data, at, end, count = node.data, node.at, node.end, node.count
        first, stop = node.first, node.stop
        if first >= stop:  # a subtree outside the range is never fetched
            continue
        if data[at] == TAG_REF:
            data, at = fetch(data[at + 1 : at + REF_BYTES]), 0
            end = len(data)
        at = _children_at(data, at, count)
        # "if the count is no multiple of 16, the last count mod 16 elements stand first"
        tail = count if count <= FAN_OUT else count % FAN_OUT
        body = count - tail
        if tail and stop > body:
            skipped = max(first - body, 0)
            run = ElementRun(data, _skip(data, at, skipped), end, stop - body - skipped)
            if first >= body:
                yield run
                continue
            # The tail comes first in the encoding and last in the vector: it is popped after the
            # elements before it.
            leaf = _leaf(run)
            todo.append(_Node(leaf, 0, len(leaf), run.count, 0, run.count))
        if tail:
            todo.append(_Node(data, _skip(data, at, tail), end, body, first, min(stop, body)))
            continue
        children = _children(data, at, count, first, stop)
        # The leaves below this node are fetched together.
        if many is not None and count <= FAN_OUT**3:
            if count > FAN_OUT**2:
                _fetch(children, many, below)
                children = _grandchildren(children)
            below = _fetch(children, many, 0)
            leaves = _leaves(children)
            if leaves is not None:
                yield from leaves
                continue
        todo += children[::-1]  # the stack gives the last one first


def _children_at(data: bytes, at: i64, count: i64) -> i64:
    """Return where the children of the node at `at` begin.

    Raises: BadFormat: it is not a vector of `count` elements.
    """
    found, children_at = _vector_head(data, at)
    if found != count:  # checked here: validation saw each cell alone
        raise BadFormat(f"a node of a vector has {found} elements, not {count}")
    return children_at


def _children(data: bytes, at: i64, count: i64, first: i64, stop: i64) -> list[_Node]:
    """Return the children of a tree node that meet the range; the first one is at `at`."""
    block: i64 = block_size(count)
    found: list[_Node] = []
    start: i64 = 0
    while start < min(count, stop):
        size: i64 = min(block, count - start)
        end: i64 = skip_kid(data, at)
        if start + size > first:
            found.append(_Node(data, at, end, size, max(first - start, 0), min(stop - start, size)))
        at = end
        start += block
    return found


def _grandchildren(children: list[_Node]) -> list[_Node]:
    """Return the children of tree nodes; a leaf, or a node with a tail, stays as it is."""
    found: list[_Node] = []
    for node in children:
        count: i64 = node.count
        if count > FAN_OUT and count % FAN_OUT == 0:
            at = _children_at(node.data, node.at, count)
            found += _children(node.data, at, count, node.first, node.stop)
        else:
            found.append(node)
    return found


def _leaves(children: list[_Node]) -> list[ElementRun] | None:
    """Return the elements of fetched leaves; None if a child is not a whole leaf."""
    found: list[ElementRun] = []
    for node in children:
        data: bytes = node.data
        at: i64 = node.at
        count: i64 = node.count
        end: i64 = node.end
        if count > FAN_OUT or end < at + 2 or data[at] != TAG_VECTOR or data[at + 1] != count:
            return None
        at = _skip(data, at + 2, node.first)
        found.append(ElementRun(data, at, end, node.stop - node.first))
    return found


def _fetch(children: list[_Node], many: FetchCells, below: i64) -> i64:
    """Replace references by encodings; return how many bytes these have."""
    references = [node for node in children if node.data[node.at] == TAG_REF]
    hashes = [node.data[node.at + 1 : node.at + REF_BYTES] for node in references]
    size: i64 = 0
    for node, cell in zip(references, many(hashes, below), strict=True):
        node.data = cell.data
        node.at = cell.at
        node.end = cell.end
        size += cell.end - cell.at
    return size


def _leaf(run: ElementRun) -> bytes:
    end = _skip(run.data, run.at, run.count)
    return bytes((TAG_VECTOR, run.count)) + run.data[run.at : end]


def _skip(data: bytes, at: i64, count: i64) -> i64:
    while count > 0:
        at = skip_kid(data, at)
        count -= 1
    return at


def vector_count(data: bytes, at: i64) -> i64:
    """Return the number of elements of the vector at `at`.

    Raises: BadFormat: there is no vector at `at`.
    """
    return _vector_head(data, at)[0]


def _vector_head(data: bytes, at: i64) -> tuple[i64, i64]:
    """Return the number of elements of the vector at `at`, and where its children begin."""
    if data[at] != TAG_VECTOR:
        raise BadFormat(f"a node of a vector is a vector, got a cell with tag {data[at]:#04x}")
    return read_vlq(data, at + 1, len(data))
