"""Bombs: small values that stand for huge ones, as a hostile peer may send them.

A few cells that refer to one another many times hold more directories, records or members than any
machine could visit.
"""

from __future__ import annotations

from datalattice.apps.dlfs import make_directory, make_file
from datalattice.cells import Index, Keyword, Map, Value, Vector, decode, encode, value_hash
from datalattice.crypto import sha3_256
from datalattice.limits import EMBEDDED_BYTES_MAX
from datalattice.testing.cells_kit import CellDict


def repeated_log(element: Value, levels: int) -> Vector:
    """Return a vector of 16 ** (levels + 1) equal elements, in a cell for each level."""
    cells = CellDict()
    cell = b"\x80\x10" + encode(element) * 16
    count = 16
    for _ in range(levels):
        child = cell
        if len(cell) > EMBEDDED_BYTES_MAX:
            child = b"\x20" + sha3_256(cell)
            cells[sha3_256(cell)] = cell
        count *= 16
        cell = b"\x80" + _length(count) + child * 16
    found = decode(cell, cells)
    assert isinstance(found, Vector)
    return found


def _length(count: int) -> bytes:
    out = [count & 0x7F]
    while count := count >> 7:
        out.append((count & 0x7F) | 0x80)
    return bytes(reversed(out))


def topics(partitions: dict[int, Value]) -> Map:
    """Return the queues of an owner: one topic with these states."""
    return Map.of([("t", Index.of([(Keyword("partitions"), Map.of(list(partitions.items())))]))])


def queue_state(entries: Vector, start: int, time: int) -> Vector:
    """Return the state of a partition."""
    return Vector.of((entries, Map.of([]), time, start))


def queue_bombs(levels: int, partitions: int = 1) -> list[tuple[Value, Value]]:
    """Return pairs of queues, (own, other), that a join could compare or cut record by record."""
    log = repeated_log(1, levels)
    a = queue_state(log, 0, 5)
    found: list[tuple[Value, Value]] = []
    shorter = log.take(len(log) - 16)
    for b in (queue_state(log, 1, 9), queue_state(log, 16, 9), queue_state(shorter, 5, 9)):
        numbers = range(partitions)
        found.append((topics(dict.fromkeys(numbers, a)), topics(dict.fromkeys(numbers, b))))
    return found


def drive_bomb(width: int, names: int, levels: int, tag: str = "x") -> Value:
    """Return a directory with `width` distinct ones on each level, each with `names` names below.

    No directory is newer than its base; only a file on the lowest level is.
    """
    layer: list[Value] = [make_file(b"x", 10)] * width
    for _ in range(levels):
        made: list[Value] = []
        for i in range(width):
            entries = [(f"n{j:x}", layer[(i * names + j) % width]) for j in range(names)]
            entries.append((f"z{tag}{i}", make_file(b"x", 10 + i)))
            made.append(make_directory(Index.of(entries), 0, base=5))
        layer = made
    return layer[0]


def pair_bomb(width: int, names: int, levels: int, tag: str) -> Value:
    """Return a directory that differs from that of another tag or width far down, everywhere."""
    layer: list[Value] = [
        make_directory(Index.of([(f"f{tag}", make_file(b"x", 100 + i))]), 1) for i in range(width)
    ]
    for _ in range(levels):
        layer = [
            make_directory(
                Index.of([(f"n{j:x}", layer[(i * names + j) % width]) for j in range(names)]), 1
            )
            for i in range(width)
        ]
    return layer[0]


def database_bomb(keys: int, members: int, time: int) -> Index:
    """Return a database in which many keys hold one large set."""
    names = [f"m{number}" for number in range(members)]
    held = Index.of([(value_hash(name), Vector.of((name, time, 0))) for name in names])
    return Index.of([(f"k{n}", Vector.of((held, 2, time + n, None))) for n in range(keys)])
