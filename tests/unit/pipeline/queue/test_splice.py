"""Splice: entries as bytes are the entries, or there is a reason to look at them."""

from __future__ import annotations

import pytest

from datalattice.cells import Value, Vector, decode, encode, make_blob, same
from datalattice.limits import EMBEDDED_BYTES_MAX
from datalattice.pipeline.queue.leaves import runs
from datalattice.pipeline.queue.splice import take_small
from datalattice.store import MemoryStore


def spliced(entries: list[Value]) -> list[bytes | None]:
    """Return the rows of each leaf of a stored log, joined; None for a leaf that is not small."""
    log = Vector.of(entries)
    store = MemoryStore()
    store.put(log)

    def fetch(hash: bytes) -> bytes:
        found = store.get_encoding(hash)
        assert found is not None
        return found

    found: list[bytes | None] = []
    for run in runs(encode(log), 0, len(log), fetch):
        rows: list[bytes] = [b"before"]
        size = take_small(run, rows)
        assert rows[0] == b"before"
        if size < 0:
            assert len(rows) == 1
            found.append(None)
        else:
            assert size == sum(map(len, rows[1:]))
            assert len(rows) == run.count + 1
            found.extend(rows[1:])
    return found


@pytest.mark.parametrize("count", [1, 15, 16, 17, 33, 300])
def test_small_entries_are_copied_in_order(count: int) -> None:
    entries: list[Value] = [Vector.of([None, number, 5, None]) for number in range(count)]
    rows = spliced(entries)
    assert len(rows) == count
    for row, entry in zip(rows, entries, strict=True):
        assert row is not None
        assert same(decode(row), entry)


def test_a_log_goes_on_with_rows_as_with_entries() -> None:
    entries: list[Value] = [
        Vector.of([str(number), b"\x00" * (number % 90), 5, None]) for number in range(200)
    ]
    rows = [row for row in spliced(entries) if row is not None]
    base = Vector.of([Vector.of([None, 1, 2, None])] * 7)
    assert same(base.extend_encoded(rows), base.extend(entries))


def entry_of_bytes(size: int) -> Vector:
    """Return an entry whose encoding has that many bytes."""
    key = b"k" * 60
    rest = size - len(encode(Vector.of([key, b"", 5, None])))
    made = Vector.of([key, b"x" * rest, 5, None])
    assert len(encode(made)) == size
    return made


@pytest.mark.parametrize(
    ("entry", "is_small"),
    [
        (entry_of_bytes(EMBEDDED_BYTES_MAX - 1), True),
        (entry_of_bytes(EMBEDDED_BYTES_MAX), True),
        (entry_of_bytes(EMBEDDED_BYTES_MAX + 1), False),
        (Vector.of([None, make_blob(b"x" * 10_000), 5, None]), False),
        (Vector.of([Vector.of([make_blob(b"x" * 10_000)]), 1, 5, None]), False),
    ],
)
def test_what_is_a_branch_or_has_one_is_left_alone(entry: Vector, is_small: bool) -> None:
    small = Vector.of([None, 1, 5, None])
    for entries in ([entry], [small] * 15 + [entry], [entry] + [small] * 20):
        rows = spliced(list(entries))
        assert (None not in rows) == is_small
