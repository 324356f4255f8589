"""Runs: the leaves of a log's vector, found in the encodings of its tree.

Every cell was checked when it came into the store; what only shows across cells, a node that is not
as large as the one above it says, is checked here. Pure and compiled: no Spark, no Arrow.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from mypy_extensions import i64

from datalattice.cells import read_vlq, skip_kid
from datalattice.errors import BadFormat
from datalattice.limits import FAN_OUT, HASH_BYTES
from datalattice.pipeline.places import Fetch, FetchMany

REF_BYTES: Final = 1 + HASH_BYTES
"""A reference to a cell, with its tag."""


class Run:
    """Neighbouring elements of a vector inside one encoding: `count` of them, the first at `at`."""

    __slots__ = ("at", "count", "data")

    def __init__(self, data: bytes, at: i64, count: i64) -> None:
        self.data: bytes = data
        self.at: i64 = at
        self.count: i64 = count


def runs(
    vector: bytes, first: int, stop: int, fetch: Fetch, many: FetchMany | None = None
) -> Iterator[Run]:
    """Yield the elements `first` .. `stop - 1` of a vector, in order, as they lie in its leaves.

    many: fetches the leaves below one node together, at most 16.
    Cost:   one fetch for each branch on the way; nothing outside the range is fetched.
    Raises: BadFormat: a node is not the vector that must stand there. MissingData.
    """
    count = vector_count(vector, 0)
    # Nodes still to visit, the next one last: encoding, position in it, elements, the range in it.
    todo: list[tuple[bytes, int, int, int, int]] = [(vector, 0, count, first, min(stop, count))]
    while todo:
        data, at, count, first, stop = todo.pop()
        if first >= stop:
            continue
        if data[at] == 0x20:
            data, at = fetch(data[at + 1 : at + REF_BYTES]), 0
        if vector_count(data, at) != count:
            raise BadFormat(f"a node of a log holds {vector_count(data, at)} records, not {count}")
        at = read_vlq(data, at + 1, len(data))[1]
        tail = count if count <= FAN_OUT else count % FAN_OUT
        body = count - tail
        if tail and stop > body:
            skipped = max(first - body, 0)
            run = Run(data, _skip(data, at, skipped), stop - body - skipped)
            if first >= body:
                yield run
                continue
            # The tail stands before the rest of the log, and comes after it.
            todo.append((_leaf(run), 0, run.count, 0, run.count))
        if tail:
            todo.append((data, _skip(data, at, tail), body, first, min(stop, body)))
            continue
        children = _children(data, at, count, first, stop)
        if many is not None and count <= FAN_OUT * FAN_OUT:
            children = _fetched(children, many)
        todo += children[::-1]


def _children(
    data: bytes, at: int, count: int, first: int, stop: int
) -> list[tuple[bytes, int, int, int, int]]:
    """Return the children of a tree node that meet the range."""
    block = FAN_OUT
    while block * FAN_OUT < count:
        block *= FAN_OUT
    found: list[tuple[bytes, int, int, int, int]] = []
    for start in range(0, count, block):
        if start >= stop:
            break
        size = min(block, count - start)
        if start + size > first:
            found.append((data, at, size, max(first - start, 0), min(stop - start, size)))
        at = skip_kid(data, at)
    return found


def _fetched(
    children: list[tuple[bytes, int, int, int, int]], many: FetchMany
) -> list[tuple[bytes, int, int, int, int]]:
    """Return the same children, each in its encoding."""
    found = many(
        [data[at + 1 : at + REF_BYTES] for data, at, _, _, _ in children if data[at] == 0x20]
    )
    fetched: list[tuple[bytes, int, int, int, int]] = []
    number = 0
    for data, at, count, first, stop in children:
        if data[at] == 0x20:
            fetched.append((found[number], 0, count, first, stop))
            number += 1
        else:
            fetched.append((data, at, count, first, stop))
    return fetched


def _leaf(run: Run) -> bytes:
    end = _skip(run.data, run.at, run.count)
    return bytes((0x80, run.count)) + run.data[run.at : end]


def _skip(data: bytes, at: i64, count: i64) -> i64:
    for _ in range(count):
        at = skip_kid(data, at)
    return at


def vector_count(data: bytes, at: i64) -> i64:
    """Return the number of elements of the vector at `at`.

    Raises: BadFormat: something else stands there.
    """
    if data[at] != 0x80:
        raise BadFormat(f"a vector must stand where a cell with tag {data[at]:#04x} stands")
    return read_vlq(data, at + 1, len(data))[0]
