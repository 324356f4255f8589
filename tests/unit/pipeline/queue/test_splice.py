"""Splice: records laid end to end, put into leaves, are the log that offers make."""

from __future__ import annotations

from typing import Any

import pytest

from datalattice.apps.queue import make_entry
from datalattice.cells import Vector, branch_hashes, decode, encode, may_refer, same, to_cell
from datalattice.limits import CHUNK_BYTES, EMBEDDED_BYTES_MAX
from datalattice.pipeline.queue.splice import spliced_records
from datalattice.store import MemoryStore

VALUES: list[Any] = [
    *(b"x" * size for size in (0, 1, 118, 119, 120, 121, 136, 137, 138, 139, 140, 141, 1_000)),
    *(b"x" * size for size in (CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 70_000)),
    *("ü" * size for size in (0, 1, 68, 70, 500, 1_023, 1_024, 1_025, 2_048, 2_049, 40_000)),
    *(0, -1, 1 << 62, 1 << 800, 1 << 3_000, 1.5, float("nan"), True, False),
    to_cell({"a": [1, "x" * 300], "b": b"y" * 9_000}),
    to_cell({"short": b"y" * 9_000}),
    to_cell(list(range(100))),
]
KEYS: list[Any] = [None, "k", b"k" * 60, "k" * 200, 5, None, b"k" * 5_000]
HEADERS: list[Any] = [None, {"h": "1"}, {}, {"h": "x" * 200}, None]


def columns(count: int, first: int = 0) -> tuple[list[Any], list[Any], list[int], list[Any]]:
    """Return keys, values, times and headers of so many records, each kind of value among them."""
    rows = range(first, first + count)
    return (
        [KEYS[row % len(KEYS)] for row in rows],
        [VALUES[row % len(VALUES)] for row in rows],
        [1_700_000_000_000 + row if row % 11 else row for row in rows],
        [HEADERS[row % len(HEADERS)] for row in rows],
    )


def entries(count: int, first: int = 0) -> list[Vector]:
    return [
        make_entry(to_cell(key), to_cell(value), stamp, to_cell(header))
        for key, value, stamp, header in zip(*columns(count, first), strict=True)
    ]


def packed(count: int, first: int = 0) -> tuple[bytes, list[int], list[tuple[bytes, bytes]]]:
    """Return (records end to end, where each ends, cells below them)."""
    keys, values, stamps, headers = columns(count, first)
    cells: list[tuple[bytes, bytes]] = []
    rows = spliced_records(keys, values, stamps, headers, cells)
    ends = [sum(map(len, rows[: row + 1])) for row in range(count)]
    return b"".join(rows), ends, cells


def grown(log: Vector, store: MemoryStore, count: int, first: int) -> Vector:
    """Return a log with more records, as the driver puts them there, all of it in the store."""
    data, ends, below = packed(count, first)
    store.put_encodings(below)
    made, leaves = log.extend_packed(data, ends, store)
    store.put_encodings(leaves)
    store.put(made)
    found = decode(encode(made), store)
    assert isinstance(found, Vector)
    return found


@pytest.mark.parametrize("before", [0, 1, 15, 16, 17, 31, 32, 255, 256, 257, 300])
def test_a_log_goes_on_with_records_as_with_entries(before: int) -> None:
    for parts in ([1], [15], [16], [17], [3, 0, 13, 40], [300], [7, 290, 5, 16]):
        store = MemoryStore()
        expected = Vector.of(entries(before))
        store.put(expected)
        log = decode(encode(expected), store)
        assert isinstance(log, Vector)
        at = before
        for count in parts:
            log = grown(log, store, count, at)
            expected = expected.extend(entries(count, at))
            at += count
        assert log.hash == expected.hash
        assert all(same(one, other) for one, other in zip(log, expected, strict=True))


def test_short_leaves_stand_in_the_cell_above() -> None:
    rows = [encode(number) for number in range(600)]
    ends = [sum(map(len, rows[: row + 1])) for row in range(600)]
    made, cells = Vector().extend_packed(b"".join(rows), ends, MemoryStore())
    assert same(made, Vector.of(range(600)))
    assert not cells


def test_a_record_is_a_cell_of_its_own_where_it_is_long() -> None:
    for size in range(100, 130):
        cells: list[tuple[bytes, bytes]] = []
        row = spliced_records(None, [b"x" * size], [1_700_000_000_000], None, cells)[0]
        entry = make_entry(None, b"x" * size, 1_700_000_000_000)
        is_long = len(encode(entry)) > EMBEDDED_BYTES_MAX
        assert row == (b"\x20" + entry.hash if is_long else encode(entry))
        assert cells == ([(entry.hash, encode(entry))] if is_long else [])


def test_what_surely_has_no_references_has_none() -> None:
    plain = 0
    for entry in entries(200):
        for value in (entry, *entry, Vector.of([entry] * 3)):
            refers = bool(branch_hashes(encode(value)))
            assert may_refer(encode(value)) or not refers
            plain += not may_refer(encode(value))
    assert plain > 300
    assert not may_refer(encode(Vector.of([make_entry(None, b"x" * 90, 1_700_000_000_000)] * 16)))
    assert not may_refer(encode(b"x" * CHUNK_BYTES))
    assert may_refer(b"\x80")
